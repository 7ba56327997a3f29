//! Stable sorting of rows. Blocks are sorted first, then pairs of sorted runs are merged until one run is left. The
//! kernels sort keys, with the places of their elements. Keys are words with the same order as the elements. If
//! elements have 64 bits, keys are vectors of two words, the lower one first, so that no device need compute in 64
//! bits. If only the first elements are wanted, a run is cut to them.

use super::Family;
use super::elements::Quads;
use super::parameters::{Bits, Form, Size, parameters};
use super::rows::{Rows, RowsType};
use crate::base::dtype::DType;
use crate::shader::{Access, KernelBuilder, Scalar, Type, Value};

/// Invocations per workgroup, and elements of a block.
pub(crate) const WORKGROUP: u32 = 64;

/// Elements that one invocation merges.
pub(crate) const MERGED: u32 = 8;

/// Sorts blocks of neighbouring elements, one per workgroup. Buffers: the elements; the keys, the places.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SortBlocks {
    pub rows: RowsType,
}

parameters! {
    config: SortBlocks;
    host: BlockParameters;
    device: DeclaredBlocks;
    /// The total number of blocks.
    blocks: Size,
    /// The number of blocks per row.
    per_row: Size,
    /// The length of a row.
    length: Size,
    /// The length of a sorted run.
    run: Size,
    /// The length of a row of sorted runs.
    out_length: Size,
    /// All ones for descending order, else 0.
    mask: Bits,
    rows: RowsType = config.rows,
}

/// Merges pairs of runs. Buffers: keys and places before the merge, keys and places after it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SortMerge {
    /// The words of a key.
    pub words: usize,
}

parameters! {
    config: SortMerge;
    host: MergeParameters;
    device: DeclaredMerge;
    /// The total number of invocations.
    invocations: Size,
    /// The number of invocations per row.
    per_row: Size,
    /// The number of invocations per pair.
    per_pair: Size,
    /// The length of a row before the merge.
    length: Size,
    /// The length of a run before the merge.
    run: Size,
    /// The length of a row after the merge.
    out_length: Size,
    /// The length of a run after the merge.
    out_run: Size,
}

/// Takes the elements at the places found. Buffers: the elements, the places, the results.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SortTake {
    pub rows: RowsType,
}

parameters! {
    config: SortTake;
    host: TakeParameters;
    device: DeclaredTake;
    /// The total number of elements to take.
    count: Size,
    /// The number of elements to take per row.
    per_row: Size,
    rows: RowsType = config.rows,
}

/// The sign bit of a number's highest word.
const SIGN: u32 = 0x8000_0000;

/// Returns the type of a key of this many words.
fn key_type(words: usize) -> Type {
    Type { scalar: Scalar::U32, lanes: words as u32 }
}

/// Compares keys. `by` compares their lower words, or their only ones. If the upper words differ, they decide.
fn compare<'k>(a: Value<'k>, b: Value<'k>, by: impl FnOnce(Value<'k>, Value<'k>) -> Value<'k>) -> Value<'k> {
    if a.ty().lanes == 1 {
        return by(a, b);
    }
    let (upper_a, upper_b) = (a.lane(1), b.lane(1));
    upper_a.lt(upper_b) | (upper_a.eq(upper_b) & by(a.lane(0), b.lane(0)))
}

/// Returns a key with the order of the dtype's elements. NaN are the largest, and both zeros are equal.
fn key<'k>(k: &'k KernelBuilder, dtype: DType, x: Value<'k>) -> Value<'k> {
    if dtype.parts() == 2 {
        return wide_key(k, dtype, [x.lane(0), x.lane(1)]);
    }
    if x.ty().is_float() {
        let bits = x.bitcast(Type::U32);
        let negative = bits.gt(SIGN);
        let key = negative.select(!bits, bits | SIGN);
        x.is_nan().select(key.literal(u32::MAX), key)
    } else if x.ty() == Type::I32 {
        x.bitcast(Type::U32) ^ SIGN
    } else {
        x
    }
}

/// Returns the key of a 64-bit element.
fn wide_key<'k>(k: &'k KernelBuilder, dtype: DType, [low, high]: [Value<'k>; 2]) -> Value<'k> {
    if dtype == DType::I64 {
        return k.vector(&[low, high ^ SIGN]);
    }
    const INFINITY: u32 = (f64::INFINITY.to_bits() >> 32) as u32;
    let beyond = |high: Value<'k>, end: u32| high.gt(end) | (high.eq(end) & low.gt(0));
    let key = beyond(high, SIGN).select(k.vector(&[!low, !high]), k.vector(&[low, high | SIGN]));
    beyond(high & !SIGN, INFINITY).select(key.literal(u32::MAX), key)
}

/// Rows of each dtype.
fn sample_rows() -> impl Iterator<Item = RowsType> {
    DType::ALL.into_iter().map(|dtype| RowsType { dtype, kept_rank: 1, row_rank: 1 })
}

impl Family for SortBlocks {
    fn name(&self) -> String {
        format!("sort_blocks({})", self.rows.dtype)
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write(&self, k: &KernelBuilder) {
        let DeclaredBlocks { blocks, per_row, length, run, out_length, mask, rows } = self.declare(k);
        let dtype = self.rows.dtype;
        let x = Rows::moved(k, rows, dtype);
        let key_type = key_type(dtype.parts());
        let keys = k.buffer("keys", key_type, Access::Write);
        let places = k.buffer("places", Type::U32, Access::Write);
        let shared = k.workgroup_array(key_type, WORKGROUP);

        // A folded dispatch has surplus blocks: they repeat the last one, as all invocations must reach the barrier.
        let group = k.group_index();
        let block = group.min(blocks - 1);
        let (row, lane) = (block / per_row, k.local_index());
        let start = block % per_row * WORKGROUP;
        let count = (length - start).min(WORKGROUP);
        let place = start + lane.min(count - 1);
        let own = key(k, dtype, x.load(row, place)) ^ mask;
        shared.store(lane, own);
        k.barrier();
        // The rank is the number of elements that are smaller, or equal and earlier.
        let rank = k.var(k.u32(0));
        k.for_range(0, count, |other| {
            let before = compare(shared.load(other), own, |key, own| key.lt(own) | (key.eq(own) & other.lt(lane)));
            rank.set(rank.get() + before.select(k.u32(1), 0));
        });
        let rank = rank.get();
        k.when(group.lt(blocks) & lane.lt(count) & rank.lt(run), || {
            let index = row * out_length + block % per_row * run + rank;
            keys.store(index, own);
            places.store(index, place);
        });
    }

    fn samples() -> Vec<Self> {
        sample_rows().map(|rows| SortBlocks { rows }).collect()
    }
}

impl Family for SortMerge {
    fn name(&self) -> String {
        match self.words {
            1 => "sort_merge".into(),
            words => format!("sort_merge({words} words)"),
        }
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let DeclaredMerge { invocations, per_row, per_pair, length, run, out_length, out_run } = self.declare(k);
        let key_type = key_type(self.words);
        let (keys, places) = (k.buffer("keys", key_type, Access::Read), k.buffer("places", Type::U32, Access::Read));
        let out_keys = k.buffer("out_keys", key_type, Access::Write);
        let out_places = k.buffer("out_places", Type::U32, Access::Write);

        let i = k.global_index();
        k.when(i.lt(invocations), || {
            let (row, pair) = (i / per_row, i % per_row / per_pair);
            // The runs a and b (b may be shorter or empty), and the first element to merge, counted in both.
            let a = pair * 2 * run;
            let a_length = (length - a).min(run);
            let b = a + a_length;
            let b_length = (length - b).min(run);
            let first = i % per_row % per_pair * MERGED;
            let end = (a_length + b_length).min(out_run).min(first + MERGED);
            // Loads the key at a place of a run. Beyond the row, any key will do.
            let key = |place: Value<'k>| keys.load(row * length + place.min(length - 1));
            let key_of_a = |place| key(a + place);
            let key_of_b = |place| key(b + place);
            let at_most = |a, b| compare(a, b, |a, b| a.le(b));
            // Finds how many of the elements before `first` are from a (N. Deo, A. Jain and M. Medidi, "An Optimal
            // Parallel Algorithm for Merging Using Multiselection", 1994). If keys are equal, the elements of a come
            // first.
            let (from_a, most) = (k.var(first.max(b_length) - b_length), k.var(first.min(a_length)));
            k.while_(
                || from_a.get().lt(most.get()),
                || {
                    let middle = (from_a.get() + most.get()) / 2;
                    let more = at_most(key_of_a(middle), key_of_b(first - 1 - middle));
                    from_a.set(more.select(middle + 1, from_a.get()));
                    most.set(more.select(most.get(), middle));
                },
            );
            let from_b = k.var(first - from_a.get());
            k.for_range(first, end, |place| {
                let (i, j) = (from_a.get(), from_b.get());
                let (key_a, key_b) = (key_of_a(i), key_of_b(j));
                let is_a = j.ge(b_length) | (i.lt(a_length) & at_most(key_a, key_b));
                let source = row * length + is_a.select(a + i, b + j);
                let target = row * out_length + pair * out_run + place;
                out_keys.store(target, is_a.select(key_a, key_b));
                out_places.store(target, places.load(source));
                from_a.set(is_a.select(i + 1, i));
                from_b.set(is_a.select(j, j + 1));
            });
        });
    }

    fn samples() -> Vec<Self> {
        [1, 2].map(|words| SortMerge { words }).into()
    }
}

impl Family for SortTake {
    fn name(&self) -> String {
        format!("sort_take({})", self.rows.dtype)
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write(&self, k: &KernelBuilder) {
        let DeclaredTake { count, per_row, rows } = self.declare(k);
        let dtype = self.rows.dtype;
        let x = Rows::moved(k, rows, dtype);
        let places = k.buffer("places", Type::U32, Access::Read);
        let y = Quads::output(k, "y", dtype.moved());
        let quad = k.global_index();
        k.when((quad * 4).lt(count), || {
            let lanes = [0, 1, 2, 3].map(|lane| {
                let index = (quad * 4 + lane).min(count - 1);
                x.load(index / per_row, places.load(index))
            });
            y.store_lanes(k, quad, lanes);
        });
    }

    fn samples() -> Vec<Self> {
        sample_rows().map(|rows| SortTake { rows }).collect()
    }
}
