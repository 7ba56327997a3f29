//! Sorts rows of any length by one digit of the keys after the other, the lowest one first. For each digit:
//!
//! 1. [`SortCount`] counts the elements of each digit in each block.
//! 2. A running sum over these counts, digit by digit and then block by block, tells where the elements go.
//! 3. [`SortScatter`] sorts each block by the digit, and moves the elements there.

use super::block::{BITS, Block};
use super::*;

/// The bits by which the blocks are sorted at a time, and the digits of these bits.
const DIGIT_BITS: u32 = 8;
pub(crate) const DIGITS: u32 = 1 << DIGIT_BITS;

/// Counts the elements of each digit. Buffers: the elements, or their bits; for each row, the counts of the first digit
/// in each block, then those of the second one, and so on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SortCount {
    pub input: Input,
    /// The invocations of a workgroup, and the elements of a block for each.
    pub lanes: u32,
    pub each: u32,
}

parameters! {
    config: SortCount;
    host: CountParameters;
    device: DeclaredCount;
    /// The total number of blocks.
    blocks: Size,
    /// The number of blocks per row.
    per_row: Size,
    /// The length of a row.
    length: Size,
    /// The first bit of the digit.
    shift: Bits,
    /// All ones for descending order, else 0.
    mask: Bits,
    rows: Option<RowsType> = config.input.rows(),
}

/// Moves the elements of a row into the order of a digit. Buffers: those of the input, the running sums of the counts,
/// and those of the output.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SortScatter {
    pub input: Input,
    pub output: Output,
    pub lanes: u32,
    pub each: u32,
    /// The lanes of a subgroup, if subgroups are used.
    pub subgroup: Option<u32>,
}

parameters! {
    config: SortScatter;
    host: ScatterParameters;
    device: DeclaredScatter;
    /// The total number of blocks.
    blocks: Size,
    /// The number of blocks per row.
    per_row: Size,
    /// The length of a row.
    length: Size,
    /// The first bit of the digit.
    shift: Bits,
    /// All ones for descending order, else 0.
    mask: Bits,
    rows: Option<RowsType> = config.input.rows(),
}

/// Returns the word of a key in which a digit begins, and the bit of this word.
fn digit_place<'k>(key: &[Value<'k>], shift: Value<'k>) -> (Value<'k>, Value<'k>) {
    (if let &[low, high] = key { shift.lt(32).select(low, high) } else { key[0] }, shift & 31)
}

/// A block of a row.
struct Place<'k> {
    row: Value<'k>,
    /// The number of the block in the row, its first element, and the number of its elements.
    block: Value<'k>,
    start: Value<'k>,
    count: Value<'k>,
    /// Whether the dispatch has this block. If it is folded, surplus blocks repeat the last one.
    inside: Value<'k>,
}

impl<'k> Place<'k> {
    fn new(k: &'k KernelBuilder, [blocks, per_row, length]: [Value<'k>; 3], size: u32) -> Self {
        let group = k.group_index();
        let number = group.min(blocks - 1);
        let (row, block) = (number / per_row, number % per_row);
        let start = block * size;
        Place { row, block, start, count: (length - start).min(size), inside: group.lt(blocks) }
    }
}

impl Family for SortCount {
    fn name(&self) -> String {
        format!("sort_count({}, {} x {})", self.input.describe(), self.lanes, self.each)
    }

    fn workgroup(&self) -> u32 {
        self.lanes
    }

    fn write(&self, k: &KernelBuilder) {
        let DeclaredCount { blocks, per_row, length, shift, mask, rows } = self.declare(k);
        let (dtype, lanes) = (self.input.dtype(), self.lanes);
        let x = Reader::new(k, self.input, rows, length, false);
        let y = k.buffer("counts", Type::U32, Access::Write);
        let counts = k.workgroup_array(Type::U32, DIGITS);
        let lane = k.local_index();
        k.for_step(lane, DIGITS, lanes, |digit| counts.store(digit, 0));
        k.barrier();
        let Place { row, block, start, count, inside } = Place::new(k, [blocks, per_row, length], lanes * self.each);
        let load = x.row(row);
        let places = (0..self.each).map(|e| lane + e * lanes);
        let elements: Vec<_> = places.map(|place| (place, load(start + place.min(count - 1)))).collect();
        for (place, bits) in elements {
            let (word, bit) = digit_place(&key(dtype, &bits, mask), shift);
            k.when(place.lt(count), || _ = counts.atomic_add((word >> bit) & (DIGITS - 1), 1));
        }
        k.barrier();
        k.when(inside, || {
            k.for_step(lane, DIGITS, lanes, |digit| {
                y.store((row * DIGITS + digit) * per_row + block, counts.load(digit))
            });
        });
    }

    fn samples() -> Vec<Self> {
        sample_inputs().map(|input| SortCount { input, lanes: 64, each: 5 }).collect()
    }
}

impl Family for SortScatter {
    fn name(&self) -> String {
        let (lanes, each) = (self.lanes, self.each);
        format!("sort_scatter({}{}, {lanes} x {each})", self.input.describe(), self.output.describe())
    }

    fn workgroup(&self) -> u32 {
        self.lanes
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let DeclaredScatter { blocks, per_row, length, shift, mask, rows } = self.declare(k);
        let (dtype, lanes) = (self.input.dtype(), self.lanes);
        let x = Reader::new(k, self.input, rows, length, self.output.places);
        let sums = k.buffer("sums", Type::U32, Access::Read);
        let y = Writer::new(k, self.output, dtype);
        let member = Team::Workgroup(lanes).join(k).in_subgroups(self.subgroup);
        let at = Place::new(k, [blocks, per_row, length], lanes * self.each);
        let block = Block::new(member, self.each, at.count);

        // Where the elements of each digit go: after those of lower digits, and of the same digit in earlier blocks.
        let targets = k.workgroup_array(Type::U32, DIGITS);
        k.for_step(member.lane, DIGITS, lanes, |digit| {
            let before = digit * per_row + at.block;
            let sum = sums.load(at.row * (per_row * DIGITS) + before.max(1) - 1);
            targets.store(digit, before.eq(0).select(k.u32(0), sum));
        });
        let load = x.row(at.row);
        let element = |place: Value<'k>| {
            let place = at.start + place.min(at.count - 1);
            let bits = load(place);
            if self.output.places { [&bits[..], &[x.place(at.row, place)]].concat() } else { bits }
        };
        let words: Vec<_> = block.places().into_iter().map(element).collect();
        let parts = dtype.parts();
        let sorted = block.sort(&words, DIGIT_BITS / BITS, |turn, words| {
            let (word, bit) = digit_place(&key(dtype, &words[..parts], mask), shift);
            (word >> (bit + turn * BITS)) & ((1 << BITS) - 1)
        });
        // Elements of a digit now lie together. They go where the first of them goes, in the same order.
        let digit = |words: &Vec<Value<'k>>| {
            let (word, bit) = digit_place(&key(dtype, &words[..parts], mask), shift);
            (word >> bit) & (DIGITS - 1)
        };
        let digits: Vec<_> = sorted.iter().map(digit).collect();
        let before = block.before(&digits);
        for ((place, &digit), before) in block.places().into_iter().zip(&digits).zip(before) {
            let is_first = place.lt(at.count) & (place.eq(0) | before.ne(digit));
            k.when(is_first, || targets.store(digit, targets.load(digit) - place));
        }
        k.barrier();
        for ((place, digit), words) in block.places().into_iter().zip(digits).zip(&sorted) {
            k.when(at.inside & place.lt(at.count), || {
                let target = at.row * length + targets.load(digit) + place;
                y.store(k, target, &words[..parts], || words[parts]);
            });
        }
    }

    fn samples() -> Vec<Self> {
        let sample = |input| SortScatter { input, output: Output::BOTH, lanes: 64, each: 5, subgroup: None };
        let alone = Input::Table { dtype: DType::U32, places: false };
        let alone = SortScatter { output: Output { bits: true, places: false }, ..sample(alone) };
        sample_inputs().map(sample).chain([alone]).collect()
    }
}
