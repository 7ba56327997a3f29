//! Stable sorting of rows: blocks first, then pairs of sorted runs are merged until one is left. What is sorted are
//! keys, words that are ordered as the elements are, with the places of these. Those of 64-bit elements are vectors of
//! two words, the lower one first, so that no device need compute in 64 bits.

use super::Family;
use super::elements::Quads;
use super::rows::{Rows, RowsType};
use crate::base::dtype::DType;
use crate::shader::{Access, KernelBuilder, Scalar, Type, Value};

/// Invocations per workgroup, and elements of a block.
pub(crate) const WORKGROUP: u32 = 64;

/// Elements that one invocation merges.
pub(crate) const MERGED: u32 = 8;

/// The steps of a sort. A run may be cut to its first elements, where only those are wanted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Sort {
    /// Sorts blocks of neighbouring elements, each by a workgroup. Parameters: the number of blocks in all and per row;
    /// the length of a row, of a sorted run and of a row of them; a mask, all ones for descending order; those of
    /// [`RowsType`]. Buffers: the elements; the keys, the places.
    Blocks(RowsType),
    /// Merges pairs of runs. Parameters: the number of invocations in all, per row and per pair; the length of a row and of a
    /// run before and after. Buffers: keys and places before, keys and places after.
    Merge {
        /// The words of a key.
        words: usize,
    },
    /// Takes the elements at the places found. Parameters: the number of elements to take in all and per row; those of
    /// [`RowsType`]. Buffers: the elements, the places, the results.
    Take(RowsType),
}

/// The bit of a number's highest word that tells its sign.
const SIGN: u32 = 0x8000_0000;

/// The type of a key of so many words.
fn key_type(words: usize) -> Type {
    Type { scalar: Scalar::U32, lanes: words as u32 }
}

/// Compares keys by their lower words, or their only ones; where the upper words differ, those decide.
fn compare<'k>(a: Value<'k>, b: Value<'k>, by: impl FnOnce(Value<'k>, Value<'k>) -> Value<'k>) -> Value<'k> {
    if a.ty().lanes == 1 {
        return by(a, b);
    }
    let (upper_a, upper_b) = (a.lane(1), b.lane(1));
    upper_a.lt(upper_b) | (upper_a.eq(upper_b) & by(a.lane(0), b.lane(0)))
}

/// A key that is as large as the element is among those of its dtype: NaN are the largest, zeros are equal.
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

/// The same of an element of 64 bits.
fn wide_key<'k>(k: &'k KernelBuilder, dtype: DType, [low, high]: [Value<'k>; 2]) -> Value<'k> {
    if dtype == DType::I64 {
        return k.vector(&[low, high ^ SIGN]);
    }
    const INFINITY: u32 = (f64::INFINITY.to_bits() >> 32) as u32;
    let beyond = |high: Value<'k>, end: u32| high.gt(end) | (high.eq(end) & low.gt(0));
    let key = beyond(high, SIGN).select(k.vector(&[!low, !high]), k.vector(&[low, high | SIGN]));
    beyond(high & !SIGN, INFINITY).select(key.literal(u32::MAX), key)
}

impl Family for Sort {
    fn name(&self) -> String {
        match self {
            Sort::Blocks(rows) => format!("sort_blocks({})", rows.dtype),
            Sort::Merge { words: 1 } => "sort_merge".into(),
            Sort::Merge { words } => format!("sort_merge({words} words)"),
            Sort::Take(rows) => format!("sort_take({})", rows.dtype),
        }
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write(&self, k: &KernelBuilder) {
        match self {
            Sort::Blocks(rows) => sort_blocks(k, *rows),
            Sort::Merge { words } => merge(k, key_type(*words)),
            Sort::Take(rows) => take(k, *rows),
        }
    }

    fn samples() -> Vec<Self> {
        let rows = |dtype| RowsType { dtype, kept_rank: 1, row_rank: 1 };
        let mut samples = vec![Sort::Merge { words: 1 }, Sort::Merge { words: 2 }];
        samples.extend(DType::ALL.into_iter().flat_map(|dtype| [Sort::Blocks(rows(dtype)), Sort::Take(rows(dtype))]));
        samples
    }
}

fn sort_blocks(k: &KernelBuilder, rows: RowsType) {
    let [blocks, per_row, length, run, out_length, mask] = std::array::from_fn(|_| k.parameter(Type::U32));
    let x = Rows::moved(k, rows);
    let key_type = key_type(rows.dtype.parts());
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
    let own = key(k, rows.dtype, x.load(row, place)) ^ mask;
    shared.store(lane, own);
    k.barrier();
    // As many elements come before this one as are smaller, or equal and earlier.
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

fn merge<'k>(k: &'k KernelBuilder, key_type: Type) {
    let [invocations, per_row, per_pair] = std::array::from_fn(|_| k.parameter(Type::U32));
    let [length, run, out_length, out_run] = std::array::from_fn(|_| k.parameter(Type::U32));
    let (keys, places) = (k.buffer("keys", key_type, Access::Read), k.buffer("places", Type::U32, Access::Read));
    let out_keys = k.buffer("out_keys", key_type, Access::Write);
    let out_places = k.buffer("out_places", Type::U32, Access::Write);

    let i = k.global_index();
    k.when(i.lt(invocations), || {
        let (row, pair) = (i / per_row, i % per_row / per_pair);
        // The runs a and b, b perhaps shorter or empty, and the place of the first element to merge among both.
        let a = pair * 2 * run;
        let a_length = (length - a).min(run);
        let b = a + a_length;
        let b_length = (length - b).min(run);
        let first = i % per_row % per_pair * MERGED;
        let end = (a_length + b_length).min(out_run).min(first + MERGED);
        // The key at a place of a run; beyond the row, any.
        let key = |place: Value<'k>| keys.load(row * length + place.min(length - 1));
        let key_of_a = |place| key(a + place);
        let key_of_b = |place| key(b + place);
        let at_most = |a, b| compare(a, b, |a, b| a.le(b));
        // How many of the elements before it are from a (N. Deo, A. Jain and M. Medidi, "An Optimal Parallel Algorithm for
        // Merging Using Multiselection", 1994): where they are equal, those of a come first.
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

fn take(k: &KernelBuilder, rows: RowsType) {
    let [count, per_row] = std::array::from_fn(|_| k.parameter(Type::U32));
    let x = Rows::moved(k, rows);
    let places = k.buffer("places", Type::U32, Access::Read);
    let y = Quads::output(k, "y", rows.dtype.moved());
    let quad = k.global_index();
    k.when((quad * 4).lt(count), || {
        let lanes = [0, 1, 2, 3].map(|lane| {
            let index = (quad * 4 + lane).min(count - 1);
            x.load(index / per_row, places.load(index))
        });
        y.store_lanes(k, quad, lanes);
    });
}
