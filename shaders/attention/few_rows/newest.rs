//! [`Newest`]: the key and the value of a step's token. The kernel that attends to them also appends them to the cache,
//! so that a step needs no other kernel for that.

use super::super::AttentionBlock;
use super::RUN;
use crate::base::dtype::DType;
use crate::kernels::elements::Runs;
use crate::kernels::parameters::{Size, View, parameters};
use crate::kernels::rotary::Pairs;
use crate::shader::{KernelBuilder, Value};

/// How a kernel appends the token of each sequence to its pages. Keys and values are `f16` or `bf16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Append {
    /// How queries and keys are rotated. The tables are `f32` in row-major order, and the pairs are whole runs.
    pub rotation: Option<Pairs>,
}

parameters! {
    config: Append;
    host: Parameters;
    device: Declared;
    /// Strides along the sequences and the heads.
    key: View = View(2),
    value: View = View(2),
    pairs: Option<Size> = config.rotation.map(|_| Size),
}

impl Append {
    /// Returns the number of buffers of new keys and values, and of their rotation.
    pub fn bindings(self) -> usize {
        if self.rotation.is_some() { 4 } else { 2 }
    }
}

/// The buffers of the new keys and values, and the cache.
pub(in super::super) struct NewestBuffers<'k> {
    /// The keys and the values.
    sides: [Runs<'k>; 2],
    /// The pairs, the cosines and the sines.
    rotation: Option<(Pairs, [Runs<'k>; 2])>,
    pub cache: Runs<'k>,
}

impl<'k> NewestBuffers<'k> {
    pub fn new(k: &'k KernelBuilder, dtype: DType, append: Append) -> Self {
        let sides = ["key", "value"].map(|name| Runs::input(k, name, dtype, 4));
        let tables = || ["cos", "sin"].map(|name| Runs::input(k, name, DType::F32, 4));
        let rotation = append.rotation.map(|pairs| (pairs, tables()));
        NewestBuffers { sides, rotation, cache: Runs::input_and_output(k, "cache", dtype, 4) }
    }
}

/// The token of the workgroup's sequence.
pub(super) struct Newest<'a, 'k> {
    p: &'a AttentionBlock<'k, Runs<'k>>,
    buffers: NewestBuffers<'k>,
    /// The first runs of the key and the value.
    first: [Value<'k>; 2],
    pairs: Option<Value<'k>>,
    /// The token's place in its sequence.
    pub position: Value<'k>,
}

impl<'a, 'k> Newest<'a, 'k> {
    /// `None` if the kernel does not append.
    pub fn new(p: &'a AttentionBlock<'k, Runs<'k>>, buffers: Option<NewestBuffers<'k>>) -> Option<Self> {
        let (buffers, at) = buffers.zip(p.append.as_ref())?;
        let batch = p.batch.min(p.batches - 1);
        let first = [&at.key, &at.value].map(|at| at.at(&[batch / p.kv_heads, batch % p.kv_heads]) / RUN);
        Some(Newest { p, buffers, first, pairs: at.pairs, position: p.seq_kv - 1 })
    }

    /// Returns a run of a row that begins at the run `first`, rotated by the token's position.
    pub fn rotated(&self, rows: Runs<'k>, first: Value<'k>, run: Value<'k>) -> Value<'k> {
        let Some(((form, tables), pairs)) = self.buffers.rotation.zip(self.pairs) else {
            return rows.load_packed(first + run);
        };
        let turns = |first: Value<'k>, count: u32| {
            let quad = (self.position * pairs + first) / 4;
            tables.map(|table| (0..count / 4).flat_map(|n| table.load(quad + n)).collect())
        };
        rows.pack(&form.rotated_run(RUN, run, pairs, |run| rows.load(first + run), turns))
    }

    /// Returns a run of the key, which is side 0, or of the value, side 1, as the cache has it.
    pub fn load(&self, side: usize, run: Value<'k>) -> Value<'k> {
        let (rows, first) = (self.buffers.sides[side], self.first[side]);
        if side == 0 { self.rotated(rows, first, run) } else { rows.load_packed(first + run) }
    }

    /// Appends a run to the same side of the cache. Other workgroups may load it meanwhile, as what lies behind their
    /// last key, and then drop it.
    pub fn store(&self, side: usize, run: Value<'k>, packed: Value<'k>) {
        let rows = [&self.p.k, &self.p.v][side];
        self.buffers.cache.store_packed(rows.row_at(self.position) / RUN + run, packed);
    }

    /// Whether a subgroup takes the token: one of all that share the keys of a sequence.
    pub fn is_for(&self, subgroup: Value<'k>, subgroups: u32) -> Value<'k> {
        let p = self.p;
        // There are often fewer keys than workgroups could take. So the last one has least to do.
        p.part.eq(p.parts - 1) & subgroup.eq(subgroups - 1) & p.batch.lt(p.batches)
    }
}
