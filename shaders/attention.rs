//! Attention, `softmax(q k^T) v`, without the matrix of scores in memory. A kernel goes through the keys in blocks. If
//! a block has a larger score than the blocks before it, the kernel rescales its sums: M. Milakov and N. Gimelshein,
//! "Online normalizer calculation for softmax", 2018; T. Dao et al., "FlashAttention: Fast and Memory-Efficient Exact
//! Attention with IO-Awareness", 2022.

use super::elements::Strides;
use super::epilogue::{self, Epilogue, Finishing, Outputs};
use super::parameters::{Float, Form, Lengths, Signed, Size, View, parameters};
use super::prologue::{self, Prologue, Reader};
use super::{Family, Units, volume};
use crate::base::dtype::DType;
use crate::shader::{Array, IntoValue, KernelBuilder, Scalar, Type, Value, Var};

/// How the work is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum AttentionTile {
    /// Each invocation computes two rows without workgroup memory. For software devices, whose workgroup memory is
    /// slow.
    Registers {
        /// True if each lane loads the elements of one key and broadcasts them to the others. Subgroups then have at
        /// least as many lanes as a block has keys.
        broadcast: bool,
    },
    /// Each workgroup computes a block of rows from tiles in workgroup memory.
    Workgroup {
        /// The number of invocations that share four rows. Each computes the scores of four keys of a block, then some
        /// columns of the result.
        across: u32,
    },
}

/// Attention of the queries that share keys and values. The rows are the queries of all heads of a group, one head
/// after the other. A query sees the keys from `query + backward` up to but not including `query + forward`. The output
/// is `(batch.., queries, heads, columns)` in row-major order, and has the widened dtype.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Attention {
    pub dtype: DType,
    pub batch_rank: usize,
    /// The length of a query and a key.
    pub features: u32,
    /// The length of a value.
    pub columns: u32,
    /// The dtype of the mask, if there is one. A float mask is added to the scores. In an integer mask, 0 hides a key.
    pub mask: Option<DType>,
    pub softcap: bool,
    /// The expressions of the queries, the keys, the values and the mask.
    pub prologues: [Option<Box<Prologue>>; 4],
    pub tile: AttentionTile,
    /// True if the keys are split into parts. Each part writes a row of its own with one more column: the logarithm of
    /// the sum that the row was divided by.
    pub parts: bool,
    /// The expression of the results.
    pub epilogue: Option<Box<Epilogue>>,
}

parameters! {
    config: Attention;
    host: Parameters;
    device: Declared;
    /// The length of the queries' axis.
    queries: Size,
    /// The length of the keys' axis.
    keys: Size,
    /// The number of heads of the keys, the last batch axis.
    kv_heads: Size,
    /// The number of query heads that share keys and values.
    group: Size,
    forward: Signed,
    backward: Signed,
    scale: Float = Float(config.dtype),
    /// The cap of the scores.
    softcap: Option<Float> = config.softcap.then_some(Float(config.dtype)),
    /// The keys per part.
    span: Option<Size> = config.parts.then_some(Size),
    /// The lengths of the batch axes.
    lengths: Lengths = Lengths(config.batch_rank),
    /// Along the batch axes, the group and the matrix.
    q: View = View(config.batch_rank + 3),
    /// Along the batch axes and the matrix.
    k: View = View(config.batch_rank + 2),
    /// Along the batch axes and the matrix.
    v: View = View(config.batch_rank + 2),
    /// Along the batch axes, the group and the matrix.
    mask: Option<View> = config.mask.map(|_| View(config.batch_rank + 3)),
    q_prologue: Option<Prologue> => config.prologues[0].as_deref(),
    k_prologue: Option<Prologue> => config.prologues[1].as_deref(),
    v_prologue: Option<Prologue> => config.prologues[2].as_deref(),
    mask_prologue: Option<Prologue> => config.prologues[3].as_deref(),
    epilogue: Option<Epilogue> => config.epilogue.as_deref(),
}

impl Parameters {
    /// Sets what differs from launch to launch: numbers, then offsets.
    pub fn set_numbers(&mut self, next: &mut dyn FnMut() -> u32) {
        self.scale.set_words(next);
        self.softcap.iter_mut().for_each(|cap| cap.set_words(next));
        for operand in [&mut self.q, &mut self.k, &mut self.v].into_iter().chain(&mut self.mask) {
            operand.offset = next() as usize;
        }
    }
}

impl Attention {
    /// The type in which scores and sums are computed.
    fn number(&self) -> Type {
        Type { scalar: self.dtype.compute_scalar(), lanes: 1 }
    }

    /// The type of a number for each of four rows.
    fn rows(&self) -> Type {
        Type::vec4(self.number().scalar)
    }

    /// The length of a row of the output.
    pub fn row_length(&self) -> usize {
        self.columns as usize + usize::from(self.parts)
    }
}

impl AttentionTile {
    /// Returns the rows of a workgroup's block, and the keys that the workgroup takes at a time.
    pub const fn block(self) -> (usize, usize) {
        match self {
            AttentionTile::Registers { .. } => ((REGISTER_ROWS * REGISTER_WORKGROUP) as usize, REGISTER_KEYS as usize),
            AttentionTile::Workgroup { across } => ((4 * WORKGROUP / across) as usize, (4 * across) as usize),
        }
    }
}

impl AttentionTile {
    /// Returns how often a workgroup loads each key and value.
    pub const fn loads_per_block(self) -> usize {
        match self {
            AttentionTile::Registers { broadcast: false } => REGISTER_WORKGROUP as usize,
            AttentionTile::Registers { broadcast: true } | AttentionTile::Workgroup { .. } => 1,
        }
    }
}

/// The most columns that a kernel holds in its registers.
pub(crate) const MAX_COLUMNS: usize = 256;

const REGISTER_WORKGROUP: u32 = 8;
/// The rows of an invocation, and the keys that it takes at a time.
const REGISTER_ROWS: u32 = 2;
const REGISTER_KEYS: u32 = 8;
const WORKGROUP: u32 = 64;

/// Returns the initial value for a row's largest score: the lowest finite number. Its distance from minus infinity is a
/// number, not NaN. It is built from bits: naga writes the constant with so few digits that it is out of range.
fn lowest(k: &KernelBuilder, ty: Type) -> Value<'_> {
    let bits = match ty.scalar {
        Scalar::F64 => f64::MIN.to_bits().cast_signed().into_value(k, Type::I64),
        _ => k.u32(f32::MIN.to_bits()),
    };
    bits.opaque().bitcast(ty)
}

/// What both tiles share: the parameters, the operands, and the block of a workgroup.
struct AttentionBlock<'k> {
    kernel: &'k KernelBuilder,
    config: Attention,
    kv_heads: Value<'k>,
    group: Value<'k>,
    seq_q: Value<'k>,
    seq_kv: Value<'k>,
    forward: Value<'k>,
    backward: Value<'k>,
    scale: Value<'k>,
    softcap: Option<Value<'k>>,
    batches: Value<'k>,
    rows: Value<'k>,
    q: Operand<'k>,
    k: Operand<'k>,
    v: Operand<'k>,
    mask: Option<Operand<'k>>,
    y: Outputs<'k>,
    batch: Value<'k>,
    first_row: Value<'k>,
    part: Value<'k>,
    parts: Value<'k>,
    /// The keys per part.
    span: Option<Value<'k>>,
    /// The start and end of the keys that the block's rows see in this part.
    keys: [Value<'k>; 2],
}

/// An operand with a matrix per batch: where the matrix of this workgroup's batch begins, and the strides.
struct Operand<'k> {
    elements: Reader<'k>,
    first: Value<'k>,
    strides: Strides<'k>,
}

impl<'k> Operand<'k> {
    /// Returns the index where the row of a key or value begins.
    fn row_at(&self, key: Value<'k>) -> Value<'k> {
        self.first + key * self.strides.stride(2)
    }

    /// Loads an element of the row that begins at index `row`.
    fn load(&self, row: Value<'k>, column: Value<'k>) -> Value<'k> {
        self.elements.load(row + column * self.strides.stride(1))
    }

    /// Loads the same element of four rows.
    fn load_four(&self, rows: [Value<'k>; 4], column: Value<'k>) -> Value<'k> {
        self.elements.gather(&rows.map(|row| row + column * self.strides.stride(1)))
    }
}

impl<'k> AttentionBlock<'k> {
    fn new(kernel: &'k KernelBuilder, config: &Attention) -> Self {
        let parameters = config.declare(kernel);
        let Declared { queries: seq_q, keys: seq_kv, kv_heads, group, forward, backward, .. } = parameters;
        let Declared { scale, softcap, span, epilogue, .. } = parameters;
        let grid = parameters.lengths;
        let rows = group * seq_q;
        let parts = span.map_or(kernel.u32(1), |span| (seq_kv + span - 1) / span);
        let block_rows = kernel.u32(config.tile.block().0 as u32);
        let down = (rows + block_rows - 1) / block_rows;
        let block = kernel.group_index();
        let (part, batch) = (block % parts, block / parts / down);
        let first_row = block / parts % down * block_rows;
        let batches = grid.size(kernel);
        let coordinates = grid.coordinates(batch.min(batches - 1));

        let prologues = [parameters.q_prologue, parameters.k_prologue, parameters.v_prologue, parameters.mask_prologue];
        let mut prologues = config.prologues.iter().zip(prologues).map(|(config, at)| config.as_deref().zip(at));
        let mut operand = |name, dtype, strides: Strides<'k>| Operand {
            elements: Reader::new(kernel, name, dtype, prologues.next().flatten()),
            first: strides.at(&coordinates),
            strides,
        };
        let [q, k, v] = [("q", parameters.q), ("k", parameters.k), ("v", parameters.v)]
            .map(|(name, strides)| operand(name, config.dtype, strides));
        let mask = config.mask.zip(parameters.mask).map(|(dtype, strides)| operand("mask", dtype, strides));
        let epilogue = config.epilogue.as_deref().zip(epilogue);
        let y = Outputs::new(kernel, config.stored(), config.width(), epilogue, None);
        let keys = [seq_kv; 2];
        let mut problem = AttentionBlock {
            kernel,
            config: config.clone(),
            kv_heads,
            group,
            seq_q,
            seq_kv,
            forward,
            backward,
            scale,
            softcap,
            batches,
            rows,
            q,
            k,
            v,
            mask,
            y,
            batch,
            first_row,
            part,
            parts,
            span,
            keys,
        };
        problem.keys = problem.keys_of_block(block_rows);
        problem
    }

    /// Returns one bound of the keys that a query sees: `query + reach`, clamped to the keys that exist.
    fn seen(&self, query: Value<'k>, reach: Value<'k>) -> Value<'k> {
        let limit = self.seq_kv.convert(Scalar::I32);
        (query.convert(Scalar::I32) + reach).max(0).min(limit).convert(Scalar::U32)
    }

    fn keys_of_block(&self, block_rows: Value<'k>) -> [Value<'k>; 2] {
        let (first, last) = (self.first_row, (self.first_row + block_rows).min(self.rows) - 1);
        // If the block has rows of several heads, it may have any query.
        let one_head = (first / self.seq_q).eq(last / self.seq_q);
        let lowest = one_head.select(first % self.seq_q, 0);
        let highest = one_head.select(last % self.seq_q, self.seq_q - 1);
        let (start, end) = (self.seen(lowest, self.backward), self.seen(highest, self.forward));
        match self.span {
            Some(span) => [start.max(self.part * span), end.min((self.part + 1) * span)],
            None => [start, end],
        }
    }

    /// Returns the number of keys that a workgroup goes through in blocks of `block`. Also returns a function: the
    /// number of keys that the workgroup needs of the block that begins at a key.
    ///
    /// A browser accepts barriers in such loops only if it can prove that all invocations reach them. So in a browser,
    /// every workgroup goes through the most keys of any block, in whole blocks.
    fn loop_bounds(&self, block: u32) -> (Value<'k>, impl Fn(Value<'k>) -> Value<'k> + use<'k>) {
        let (k, [start, end]) = (self.kernel, self.keys);
        let browser = k.target().wgsl;
        let most = if browser { self.most_keys() } else { end.max(start) - start };
        (most, move |first| if browser { k.u32(block) } else { (end - first).min(block) })
    }

    /// Returns the most keys that the rows of any block see, from parameters alone.
    fn most_keys(&self) -> Value<'k> {
        let rows = self.config.tile.block().0 as u32;
        // A block may have the last queries of a head and the first ones of the next.
        let one_head = (self.seq_q % rows).eq(0) | self.seq_q.le(rows);
        let queries = one_head.select(self.seq_q.min(rows), self.seq_q);
        let reach = queries.convert(Scalar::I32) + self.forward - self.backward - 1;
        let most = reach.max(0).convert(Scalar::U32).min(self.seq_kv);
        self.span.map_or(most, |span| most.min(span))
    }

    /// Returns the first key that a row sees, and the number of keys that it sees.
    fn keys_of_row(&self, row: Value<'k>) -> [Value<'k>; 2] {
        let query = row % self.seq_q;
        let (start, end) = (self.seen(query, self.backward), self.seen(query, self.forward));
        [start, end.max(start) - start]
    }

    /// Returns the index where a row of the queries or the mask begins.
    fn row_at(&self, operand: &Operand<'k>, row: Value<'k>) -> Value<'k> {
        let (head, query) = (row / self.seq_q, row % self.seq_q);
        operand.first + head * operand.strides.stride(3) + query * operand.strides.stride(2)
    }

    /// Returns the score of a key for one row or four, from the sum of its products.
    fn score(&self, sum: Value<'k>, seen: Value<'k>, mask: Option<Value<'k>>) -> Value<'k> {
        let sum = self.softcap.map_or(sum, |cap| sum.divide(sum.literal(cap)).tanh() * cap);
        let minus_infinity = self.kernel.f32(f32::NEG_INFINITY).convert(sum.ty().scalar);
        match mask {
            Some(mask) if mask.ty().is_float() => seen.select(sum + mask.convert(sum.ty().scalar), minus_infinity),
            Some(mask) => (seen & mask.ne(0)).select(sum, minus_infinity),
            None => seen.select(sum, minus_infinity),
        }
    }

    /// Stores a column of a row, or four columns from there on: sums divided by the total of the weights. If the row
    /// sees no key, stores 0.
    fn store(&self, row: Value<'k>, column: Value<'k>, sums: Value<'k>, total: Value<'k>) {
        let of_each = |x: Value<'k>| if self.config.width() == 1 { x } else { x.splat(self.config.width()) };
        let unseen = of_each(total.eq(0.0));
        self.store_at(row, column, unseen.select(sums.literal(0.0), sums / of_each(total)));
    }

    /// Stores the weight of a part's row against the rows of the other parts, as a logarithm.
    fn store_weight(&self, row: Value<'k>, largest: Value<'k>, total: Value<'k>) {
        let weight = total.eq(0.0).select(lowest(self.kernel, total.ty()), largest + total.log());
        self.store_at(row, self.kernel.u32(self.config.columns), weight);
    }

    fn store_at(&self, row: Value<'k>, column: Value<'k>, value: Value<'k>) {
        let (batch, kv_head) = (self.batch / self.kv_heads, self.batch % self.kv_heads);
        let (head, query) = (row / self.seq_q, row % self.seq_q);
        let head = kv_head * self.group + head;
        let place = ((batch * self.seq_q + query) * (self.kv_heads * self.group) + head) * self.parts + self.part;
        self.y.store(self.kernel, place * self.config.row_length() as u32 + column, value);
    }
}

/// The running softmax of one row or of four.
struct Softmax<'k> {
    largest: Var<'k>,
    /// The sum of the weights so far.
    total: Var<'k>,
}

/// Returns the larger value. Any result will do for a NaN: its weight is NaN whatever the largest score is.
fn larger<'k>(a: Value<'k>, b: Value<'k>) -> Value<'k> {
    a.gt(b).select(a, b)
}

impl<'k> Softmax<'k> {
    fn new(kernel: &'k KernelBuilder, like: Value<'k>) -> Self {
        let lowest = like.literal(lowest(kernel, like.ty().lane()));
        Softmax { largest: kernel.var(lowest), total: kernel.var(like.literal(0.0)) }
    }

    /// Updates the softmax with the scores of some keys. Returns their weights, and the factor that rescales the sums
    /// so far. `all_keys` turns the largest of these scores into the largest of all keys that the row meets at the
    /// time.
    fn add(&self, scores: &[Value<'k>], all_keys: impl Fn(Value<'k>) -> Value<'k>) -> (Vec<Value<'k>>, Value<'k>) {
        let before = self.largest.get();
        let largest = larger(all_keys(scores.iter().copied().fold(before, larger)), before);
        let rescale = (before - largest).exp();
        let weights: Vec<_> = scores.iter().map(|&score| (score - largest).exp()).collect();
        self.largest.set(largest);
        self.total.set(weights.iter().fold(self.total.get() * rescale, |total, &weight| total + weight));
        (weights, rescale)
    }
}

impl Finishing for Attention {
    fn width(&self) -> u32 {
        if self.columns.is_multiple_of(4) && !self.parts { 4 } else { 1 }
    }

    fn stored(&self) -> DType {
        self.dtype.widened()
    }

    fn with_epilogue(&self, epilogue: Box<Epilogue>) -> Self {
        Attention { epilogue: Some(epilogue), ..self.clone() }
    }

    fn finished(parameters: &Parameters, epilogue: epilogue::Parameters) -> Parameters {
        Parameters { epilogue: Some(epilogue), ..parameters.clone() }
    }
}

impl Family for Attention {
    fn products(&self, Parameters { queries, keys, group, lengths, .. }: &Parameters) -> u64 {
        let each = (self.features + self.columns) as usize;
        volume([queries, keys, group, &each].into_iter().chain(lengths))
    }

    fn units(&self) -> Units {
        Units::of(self.dtype)
    }

    fn name(&self) -> String {
        let mask = self.mask.map_or(String::new(), |dtype| format!(", {dtype} mask"));
        let softcap = if self.softcap { ", softcap" } else { "" };
        let parts = if self.parts { ", parts" } else { "" };
        let (features, columns) = (self.features, self.columns);
        let operands = ["q", "k", "v", "mask"].into_iter().zip(&self.prologues);
        let computed = operands.filter_map(|(name, x)| Some(format!(", {name} = {}", x.as_ref()?.expr.describe())));
        let computed: String = computed.collect();
        let Attention { dtype, tile, .. } = self;
        let name = format!("attention({dtype}, {features} x {columns}, {tile:?}{mask}{softcap}{parts}{computed})");
        let name = name.to_lowercase();
        self.epilogue.as_ref().map_or_else(|| name.clone(), |y| format!("{name}, {}", y.expr.describe()))
    }

    fn workgroup(&self) -> u32 {
        match self.tile {
            AttentionTile::Registers { .. } => REGISTER_WORKGROUP,
            AttentionTile::Workgroup { .. } => WORKGROUP,
        }
    }

    fn write(&self, k: &KernelBuilder) {
        if self.dtype.size_in_bytes() == 8 {
            // 64-bit sums and products take twice the registers.
            k.large_registers();
        }
        let problem = AttentionBlock::new(k, self);
        match self.tile {
            AttentionTile::Registers { broadcast } => by_registers(&problem, broadcast),
            AttentionTile::Workgroup { across } => by_workgroup(&problem, across),
        }
    }

    fn samples() -> Vec<Self> {
        let registers = [true, false].map(|broadcast| AttentionTile::Registers { broadcast });
        let tiles = [AttentionTile::Workgroup { across: 8 }, AttentionTile::Workgroup { across: 64 }];
        let sample = |tile| Attention {
            dtype: DType::F32,
            batch_rank: 1,
            features: 64,
            columns: 64,
            mask: None,
            softcap: false,
            prologues: Default::default(),
            tile,
            parts: tile == AttentionTile::Workgroup { across: 64 },
            epilogue: None,
        };
        let doubles = Attention { dtype: DType::F64, ..sample(AttentionTile::Workgroup { across: 16 }) };
        let mut samples: Vec<_> = registers.into_iter().chain(tiles).map(sample).chain([doubles]).collect();
        samples.extend([0, 2].map(|i| Attention {
            mask: Some(DType::F32),
            prologues: [prologue::sample(), None, None, prologue::sample()],
            ..samples[i].clone()
        }));
        samples.extend([0, 2].map(|i| samples[i].with_epilogue(epilogue::sample())));
        samples
    }
}

/// A row of one invocation.
struct Row<'k> {
    place: Value<'k>,
    q: Value<'k>,
    mask: Option<Value<'k>>,
    seen: [Value<'k>; 2],
    softmax: Softmax<'k>,
    sums: Array<'k>,
}

impl<'k> Row<'k> {
    fn new(p: &AttentionBlock<'k>, place: Value<'k>) -> Self {
        let k = p.kernel;
        // Rows beyond the last one repeat it; they are not stored.
        let row = place.min(p.rows - 1);
        Row {
            place,
            q: p.row_at(&p.q, row),
            mask: p.mask.as_ref().map(|mask| p.row_at(mask, row)),
            seen: p.keys_of_row(row),
            softmax: Softmax::new(k, k.number(p.config.number(), 0)),
            sums: k.local_array(p.config.number(), p.config.columns),
        }
    }

    fn score(&self, p: &AttentionBlock<'k>, key: Value<'k>, sum: Value<'k>) -> Value<'k> {
        let ([first, count], [_, end]) = (self.seen, p.keys);
        let mask = p.mask.as_ref().zip(self.mask).map(|(mask, row)| mask.load(row, key.min(end - 1)));
        p.score(sum, key.lt(end) & (key - first).lt(count), mask)
    }
}

fn by_registers<'k>(p: &AttentionBlock<'k>, broadcast: bool) {
    let k = p.kernel;
    // Opaque, because llvmpipe would unroll loops of constant length, and is slow to compile code that loads from
    // buffers.
    let [features, columns] = [p.config.features, p.config.columns].map(|length| k.u32(length).opaque());
    let zero = k.number(p.config.number(), 0);
    let first_row = p.first_row + k.local_index();
    let rows: Vec<_> = (0..REGISTER_ROWS).map(|i| Row::new(p, first_row + i * REGISTER_WORKGROUP)).collect();
    k.for_range(0, columns, |column| rows.iter().for_each(|row| row.sums.store(column, zero)));
    let [start, end] = p.keys;
    k.for_step(start, end, REGISTER_KEYS, |first| {
        // Keys beyond the last one repeat it; the row does not see them.
        let keys: Vec<_> = match broadcast {
            true => vec![(first + k.subgroup_lane()).min(end - 1)],
            false => (0..REGISTER_KEYS).map(|i| (first + i).min(end - 1)).collect(),
        };
        let [k_rows, v_rows] =
            [&p.k, &p.v].map(|operand| keys.iter().map(|&key| operand.row_at(key)).collect::<Vec<_>>());
        // Loads the same element of all keys.
        let load = |operand: &Operand<'k>, rows: &[Value<'k>], column| -> Vec<_> {
            let loaded: Vec<_> = rows.iter().map(|&row| operand.load(row, column)).collect();
            if broadcast { (0..REGISTER_KEYS).map(|lane| loaded[0].subgroup_broadcast(lane)).collect() } else { loaded }
        };
        let products: Vec<Vec<_>> = rows.iter().map(|_| (0..REGISTER_KEYS).map(|_| k.var(zero)).collect()).collect();
        k.for_range(0, features, |feature| {
            let keys = load(&p.k, &k_rows, feature);
            for (row, sums) in rows.iter().zip(&products) {
                let q = p.q.load(row.q, feature) * p.scale;
                keys.iter().zip(sums).for_each(|(&key, sum)| sum.set(q.fma(key, sum.get())));
            }
        });
        let weigh = |(row, sums): (&Row<'k>, &Vec<Var<'k>>)| {
            let scores: Vec<_> = (0..).zip(sums).map(|(i, sum)| row.score(p, first + i as u32, sum.get())).collect();
            row.softmax.add(&scores, |largest| largest)
        };
        let weights: Vec<_> = rows.iter().zip(&products).map(weigh).collect();
        k.for_range(0, columns, |column| {
            let values = load(&p.v, &v_rows, column);
            for (row, (weights, rescale)) in rows.iter().zip(&weights) {
                let terms = weights.iter().zip(&values);
                let before = row.sums.load(column) * *rescale;
                row.sums.store(column, terms.fold(before, |sum, (weight, &value)| weight.fma(value, sum)));
            }
        });
    });
    for Row { place, softmax, sums, .. } in &rows {
        k.when(place.lt(p.rows) & p.batch.lt(p.batches), || {
            let total = softmax.total.get();
            let width = p.config.width();
            k.for_step(0, columns, width, |column| {
                let sums: Vec<_> = (0..width).map(|i| sums.load(column + i)).collect();
                p.store(*place, column, if width == 1 { sums[0] } else { k.vector(&sums) }, total);
            });
            if p.config.parts {
                p.store_weight(*place, softmax.largest.get(), total);
            }
        });
    }
}

/// The sizes of the tiles in workgroup memory.
struct Tiles {
    /// The number of invocations that share four rows, and the number of such groups of rows.
    across: u32,
    down: u32,
    /// The features of the queries and keys that are in the tiles at a time.
    depth: u32,
    /// The columns of the values in groups of four, and the values that are in the tile at a time.
    quads: u32,
    values: u32,
}

impl Tiles {
    fn new(across: u32, config: &Attention) -> Self {
        let depth = if across == 8 && config.dtype.parts() == 1 { 16 } else { 8 };
        let (down, columns) = (WORKGROUP / across, config.columns);
        let quads = columns.div_ceil(4);
        // As many values as fit in the memory of the queries and keys.
        let slice = depth * (across + down);
        let values = 1 << (slice / quads).min(4 * across).ilog2();
        Tiles { across, down, depth, quads, values }
    }

    /// Returns the distance in vectors between features, for queries and for keys. One vector of padding lets
    /// neighbouring invocations store to different banks.
    fn pitch(&self) -> (u32, u32) {
        (self.down + 1, self.across + 1)
    }

    fn slice(&self) -> u32 {
        let (queries, keys) = self.pitch();
        (self.depth * (queries + keys)).max(self.values * self.quads)
    }
}

/// Returns the places of this invocation's share of `count` items. The last place may be beyond the end.
fn share<'k>(k: &'k KernelBuilder, count: u32) -> impl Iterator<Item = Value<'k>> {
    (0..count).step_by(WORKGROUP as usize).map(|first| k.local_index() + first)
}

/// Stores an item unless its place is beyond the end.
fn store_shared<'k>(k: &'k KernelBuilder, count: u32, place: Value<'k>, store: impl FnOnce()) {
    if count.is_multiple_of(WORKGROUP) { store() } else { drop(k.when(place.lt(count), store)) }
}

/// Combines the values of the invocations that share four rows. Each of them gets the result.
fn across_rows<'k>(
    k: &'k KernelBuilder,
    scratch: Array<'k>,
    across: u32,
    value: Value<'k>,
    combine: impl Fn(Value<'k>, Value<'k>) -> Value<'k>,
) -> Value<'k> {
    let lane = k.local_index();
    scratch.store(lane, value);
    k.barrier();
    let mut half = across / 2;
    while half > 0 {
        k.when((lane % across).lt(half), || {
            scratch.store(lane, combine(scratch.load(lane), scratch.load(lane + half)));
        });
        k.barrier();
        half /= 2;
    }
    let result = scratch.load(lane / across * across);
    // The memory is reused, so all invocations must have read the result before one writes again.
    k.barrier();
    result
}

fn by_workgroup<'k>(p: &AttentionBlock<'k>, across: u32) {
    let (k, config) = (p.kernel, &p.config);
    let tiles = Tiles::new(across, config);
    let [slice, weights_tile, scratch] =
        [tiles.slice(), 4 * WORKGROUP, WORKGROUP].map(|length| k.workgroup_array(config.rows(), length));
    let lane = k.local_index();
    let (x, y) = (lane % across, lane / across);
    let zeros = k.number(config.rows(), 0);

    // Rows beyond the last one repeat it; they are not stored.
    let rows = [0, 1, 2, 3].map(|r| (p.first_row + y * 4 + r).min(p.rows - 1));
    let seen = rows.map(|row| p.keys_of_row(row));
    let (first_seen, count_seen) = (k.vector(&seen.map(|[first, _]| first)), k.vector(&seen.map(|[_, count]| count)));
    let mask = p.mask.as_ref().map(|mask| (mask, rows.map(|row| p.row_at(mask, row))));

    // The indices of the queries that this invocation loads to workgroup memory.
    let q_rows: Vec<_> = share(k, tiles.depth * tiles.down)
        .map(|place| place / tiles.depth)
        .map(|quad| [0, 1, 2, 3].map(|r| p.row_at(&p.q, (p.first_row + quad * 4 + r).min(p.rows - 1))))
        .collect();

    let softmax = Softmax::new(k, zeros);
    let per_lane = tiles.quads.div_ceil(across);
    let sums: Vec<_> = (0..4 * per_lane).map(|_| k.var(zeros)).collect();
    let [start, end] = p.keys;
    let (keys_met, block_keys) = p.loop_bounds(4 * across);
    k.for_step(0, keys_met, 4 * across, |met| {
        let first = start + met;
        let scores = products(p, &tiles, &q_rows, slice, first);
        let score = |(i, sum): (u32, Var<'k>)| {
            let key = first + x * 4 + i;
            let seen = (key.splat(4) - first_seen).lt(count_seen) & key.lt(end).splat(4);
            let key = key.min(p.seq_kv - 1);
            let mask =
                mask.map(|(mask, rows)| mask.elements.gather(&rows.map(|row| row + key * mask.strides.stride(1))));
            p.score(sum.get(), seen, mask)
        };
        let scores: Vec<_> = (0..).zip(scores).map(score).collect();
        let (weights, rescale) = softmax.add(&scores, |largest| across_rows(k, scratch, across, largest, larger));
        for (i, &weight) in (0..).zip(&weights) {
            weights_tile.store((x * 4 + i) * tiles.down + y, weight);
        }
        sums.iter().for_each(|sum| sum.set(sum.get() * rescale));
        k.for_step(0, block_keys(first), tiles.values, |done| {
            for place in share(k, tiles.values * tiles.quads) {
                let key = first + done + place / tiles.quads;
                let row = p.v.row_at(key.min(p.seq_kv - 1));
                let column = |c| (place % tiles.quads * 4 + c).min(config.columns - 1);
                store_shared(k, tiles.values * tiles.quads, place, || {
                    let v = [0, 1, 2, 3].map(|c| row + column(c) * p.v.strides.stride(1));
                    slice.store(place, key.lt(end).select(p.v.elements.gather(&v), zeros));
                });
            }
            k.barrier();
            k.for_range(0, tiles.values, |value| {
                let weight = weights_tile.load((done + value) * tiles.down + y);
                for (n, sums) in (0..).zip(sums.chunks(4)) {
                    // Quads beyond the last one repeat it; they are not stored.
                    let v = slice.load(value * tiles.quads + (x + n * across).min(tiles.quads - 1));
                    for (c, sum) in (0..).zip(sums) {
                        sum.set(weight.fma(v.lane(c), sum.get()));
                    }
                }
            });
            k.barrier();
        });
    });

    let total = across_rows(k, scratch, across, softmax.total.get(), |a, b| a + b);
    let largest = softmax.largest.get();
    for r in 0..4 {
        let row = p.first_row + y * 4 + r;
        k.when(row.lt(p.rows) & p.batch.lt(p.batches), || {
            for (n, quad) in (0..).zip(sums.chunks(4)) {
                let column = (x + n * across) * 4;
                let quad: Vec<_> = quad.iter().map(|sum| sum.get().lane(r)).collect();
                if config.width() == 4 {
                    k.when(column.lt(config.columns), || p.store(row, column, k.vector(&quad), total.lane(r)));
                    continue;
                }
                for (c, &sum) in (0..).zip(&quad) {
                    let column = column + c;
                    k.when(column.lt(config.columns), || p.store(row, column, sum, total.lane(r)));
                }
            }
            if config.parts {
                k.when(x.eq(0), || p.store_weight(row, largest.lane(r), total.lane(r)));
            }
        });
    }
}

/// Returns the products of an invocation's four rows with its four keys of the block that begins at `first`. Each key
/// has a vector with the products of the four rows.
fn products<'k>(
    p: &AttentionBlock<'k>,
    tiles: &Tiles,
    q_rows: &[[Value<'k>; 4]],
    slice: Array<'k>,
    first: Value<'k>,
) -> Vec<Var<'k>> {
    let (k, features) = (p.kernel, p.config.features);
    let Tiles { across, down, depth, .. } = *tiles;
    let (q_pitch, k_pitch) = tiles.pitch();
    let k_tile = depth * q_pitch;
    let lane = k.local_index();
    let (x, y) = (lane % across, lane / across);
    let sums: Vec<_> = (0..4).map(|_| k.var(k.number(p.config.rows(), 0))).collect();
    k.for_step(0, features, depth, |start| {
        // Neighbouring lanes read neighbouring features, of four rows.
        let load = |operand: &Operand<'k>, feature: Value<'k>, rows: [Value<'k>; 4]| {
            if features.is_multiple_of(depth) {
                return operand.load_four(rows, feature);
            }
            let elements = operand.load_four(rows, feature.min(features - 1));
            feature.lt(features).select(elements, k.number(p.config.number(), 0))
        };
        for (place, &rows) in share(k, depth * down).zip(q_rows) {
            store_shared(k, depth * down, place, || {
                let queries = load(&p.q, start + place % depth, rows) * p.scale;
                slice.store(place % depth * q_pitch + place / depth, queries);
            });
        }
        for place in share(k, depth * across) {
            store_shared(k, depth * across, place, || {
                let keys = [0, 1, 2, 3].map(|i| (first + place / depth * 4 + i).min(p.seq_kv - 1));
                let keys = load(&p.k, start + place % depth, keys.map(|key| p.k.row_at(key)));
                slice.store(place % depth * k_pitch + place / depth + k_tile, keys);
            });
        }
        k.barrier();
        k.for_range(0, depth, |feature| {
            let queries = slice.load(feature * q_pitch + y);
            let keys = slice.load(feature * k_pitch + x + k_tile);
            for (i, sum) in (0..).zip(&sums) {
                sum.set(queries.fma(keys.lane(i), sum.get()));
            }
        });
        k.barrier();
    });
    sums
}
