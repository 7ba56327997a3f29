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

/// Blocks of rows, and what is done with them: a workgroup works on a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Blocks {
    pub input: Input,
    /// The invocations of a workgroup, and the elements of a block for each.
    pub lanes: u32,
    pub each: u32,
}

parameters! {
    config: Blocks;
    host: BlockParameters;
    device: DeclaredBlocks;
    /// The total number of blocks.
    count: Size,
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

/// Counts the elements of each digit. Buffers: the elements or their bits, and the counts. For each row, the counts are
/// a matrix: a digit has a row, and a block has a column.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SortCount {
    pub blocks: Blocks,
}

parameters! {
    config: SortCount;
    host: CountParameters;
    device: DeclaredCount;
    blocks: Blocks = config.blocks,
}

/// Moves the elements of rows, so that a digit is in order. Buffers: the input's, the running sums of the counts, and
/// the output's.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SortScatter {
    pub blocks: Blocks,
    pub output: Output,
    /// The lanes of a subgroup, if subgroups are used.
    pub subgroup: Option<u32>,
}

parameters! {
    config: SortScatter;
    host: ScatterParameters;
    device: DeclaredScatter;
    blocks: Blocks = config.blocks,
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
    fn new(k: &'k KernelBuilder, blocks: Blocks, at: &DeclaredBlocks<'k>) -> Self {
        let (group, size) = (k.group_index(), blocks.lanes * blocks.each);
        let number = group.min(at.count - 1);
        let (row, block) = (number / at.per_row, number % at.per_row);
        let start = block * size;
        Place { row, block, start, count: (at.length - start).min(size), inside: group.lt(at.count) }
    }
}

impl Family for SortCount {
    fn name(&self) -> String {
        let Blocks { input, lanes, each } = self.blocks;
        format!("sort_count({}, {lanes} x {each})", input.describe())
    }

    fn workgroup(&self) -> u32 {
        self.blocks.lanes
    }

    fn write(&self, k: &KernelBuilder) {
        let DeclaredCount { blocks: at } = self.declare(k);
        let Blocks { input, lanes, each } = self.blocks;
        let dtype = input.dtype();
        let Place { row, block, start, count, inside } = Place::new(k, self.blocks, &at);
        let DeclaredBlocks { per_row, length, shift, mask, rows, .. } = at;
        let x = Reader::new(k, input, rows, length, false);
        let y = k.buffer("counts", Type::U32, Access::Write);
        let counts = k.workgroup_array(Type::U32, DIGITS);
        let lane = k.local_index();
        k.for_step(lane, DIGITS, lanes, |digit| counts.store(digit, 0));
        k.barrier();
        let load = x.row(row);
        let places = (0..each).map(|e| lane + e * lanes);
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
        sample_blocks().map(|blocks| SortCount { blocks }).collect()
    }
}

impl Family for SortScatter {
    fn name(&self) -> String {
        let Blocks { input, lanes, each } = self.blocks;
        format!("sort_scatter({}{}, {lanes} x {each})", input.describe(), self.output.describe())
    }

    fn workgroup(&self) -> u32 {
        self.blocks.lanes
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let DeclaredScatter { blocks: at } = self.declare(k);
        let Blocks { input, lanes, each } = self.blocks;
        let dtype = input.dtype();
        let Place { row, block: number, start, count, inside } = Place::new(k, self.blocks, &at);
        let DeclaredBlocks { per_row, length, shift, mask, rows, .. } = at;
        let x = Reader::new(k, input, rows, length, self.output.places);
        let sums = k.buffer("sums", Type::U32, Access::Read);
        let y = Writer::new(k, self.output, dtype);
        let member = Team::Workgroup(lanes).join(k).in_subgroups(self.subgroup);
        let block = Block::new(member, each, count);

        // An element comes after all elements of lower digits. Of its own digit, elements of earlier blocks come first.
        let targets = k.workgroup_array(Type::U32, DIGITS);
        k.for_step(member.lane, DIGITS, lanes, |digit| {
            let before = digit * per_row + number;
            let sum = sums.load(row * (per_row * DIGITS) + before.max(1) - 1);
            targets.store(digit, before.eq(0).select(k.u32(0), sum));
        });
        let load = x.elements(row);
        let words: Vec<_> = block.places().into_iter().map(|place| load(start + place.min(count - 1))).collect();
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
            let is_first = place.lt(count) & (place.eq(0) | before.ne(digit));
            k.when(is_first, || targets.store(digit, targets.load(digit) - place));
        }
        k.barrier();
        for ((place, digit), words) in block.places().into_iter().zip(digits).zip(&sorted) {
            k.when(inside & place.lt(count), || {
                let target = row * length + targets.load(digit) + place;
                y.store(k, target, &words[..parts], || words[parts]);
            });
        }
    }

    fn samples() -> Vec<Self> {
        let sample = |blocks| SortScatter { blocks, output: Output::BOTH, subgroup: None };
        let input = Input::Table { dtype: DType::U32, places: false };
        let alone = sample(Blocks { input, lanes: 64, each: 5 });
        let alone = SortScatter { output: Output { bits: true, places: false }, ..alone };
        sample_blocks().map(sample).chain([alone]).collect()
    }
}

fn sample_blocks() -> impl Iterator<Item = Blocks> {
    sample_inputs().map(|input| Blocks { input, lanes: 64, each: 5 })
}
