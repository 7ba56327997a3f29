//! [`Blocks`]: reads a quantised matrix, sixteen neighbours at a time, or four neighbours anywhere.
//!
//! The formulas are those of `gguf/quants.py` in the package `gguf` 0.19.0, the reference in Python.

mod neighbours;
mod order;

pub(crate) use neighbours::Neighbours;
pub(crate) use order::{BlockMatrix, DeclaredMatrix, MatrixParameters, Order};

use crate::base::block_format::BlockFormat;
use crate::shader::{Access, Array, KernelBuilder, Scalar, Type, Value, Var};
use half::f16;
use smallvec::SmallVec;

/// The numbers among which `IQ4_NL` and `IQ4_XS` choose.
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The numbers of E2M1, doubled.
pub(super) const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// A quantised matrix in a kernel. Its buffer holds the [planes](BlockFormat::planes) of its blocks, each from a
/// multiple of 16 bytes on. In the planes with integers, four neighbours are in the bytes [`BYTES`] of a word.
/// [`Order`] says where blocks are in a plane.
///
/// A unit is the part of a block that an invocation decodes at a time: 16 bytes of the first plane, or 32 of `Q8_0`,
/// and the bits that belong to them in other planes.
#[derive(Clone)]
pub(crate) struct Blocks<'k> {
    k: &'k KernelBuilder,
    format: BlockFormat,
    words: Array<'k>,
    /// The index of the first 16 bytes of each plane.
    planes: Vec<Value<'k>>,
    order: Order<'k>,
    /// The first row that the kernel uses.
    first: Value<'k>,
    /// The words of each 16 bytes that the invocation unpacks: the first one, and how many. `None` if it unpacks all
    /// four.
    part: Option<(Value<'k>, u32)>,
    /// Whether digits are `f16`.
    in_halves: bool,
}

/// What a unit needs of memory.
struct Loaded<'k> {
    /// Runs of words of 16 bytes, and the words that belong to all of them.
    words: SmallVec<[Value<'k>; 16]>,
    /// The words of a run: all four, or those that an invocation takes.
    length: usize,
    /// The number of runs.
    runs: usize,
}

/// What a unit needs of memory, loaded for later.
pub(crate) struct Ahead<'k> {
    words: SmallVec<[Var<'k>; 16]>,
    length: usize,
    runs: usize,
}

/// A unit whose numbers can be decoded. They are decoded where they are used, so few are in registers at a time.
pub(crate) struct Unit<'a, 'k> {
    scale: Box<dyn Fn(u32) -> Scale<'k> + 'a>,
    digits: Box<dyn Fn(u32, usize) -> Value<'k> + 'a>,
}

/// What sixteen neighbours share. Each of them is `factor (digit - bias) + offset`, with the format's bias.
///
/// A digit is the packed integer as a float. If the format has [`bits`], it is `1 + integer / 2^bits`: then the integer
/// only has to be moved to the upper bits of a fraction, which is cheaper than a conversion.
///
/// [In halves](Blocks::in_halves), numbers are `factor digit + offset`.
#[derive(Clone, Copy)]
pub(crate) struct Scale<'k> {
    pub factor: Value<'k>,
    pub offset: Option<Value<'k>>,
}

impl<'a, 'k> Unit<'a, 'k> {
    fn new(scale: impl Fn(u32) -> Scale<'k> + 'a, digits: impl Fn(u32, usize) -> Value<'k> + 'a) -> Self {
        Unit { scale: Box::new(scale), digits: Box::new(digits) }
    }

    /// Returns what the neighbours at one of the unit's [places](Blocks::places) share.
    pub fn scale(&self, place: usize) -> Scale<'k> {
        (self.scale)(place as u32)
    }

    /// Returns four digits of the neighbours at one of the unit's places.
    pub fn digits(&self, place: usize, four: usize) -> Value<'k> {
        (self.digits)(place as u32, four)
    }
}

impl<'k> Loaded<'k> {
    fn run(&self, run: usize) -> SmallVec<[Value<'k>; 4]> {
        self.words[run * self.length..][..self.length].into()
    }

    fn each_run(&self) -> SmallVec<[SmallVec<[Value<'k>; 4]>; 3]> {
        (0..self.runs).map(|run| self.run(run)).collect()
    }

    /// Returns the words that belong to all runs.
    fn others(&self) -> &[Value<'k>] {
        &self.words[self.runs * self.length..]
    }
}

impl<'k> Scale<'k> {
    fn plain(factor: Value<'k>) -> Self {
        Scale { factor, offset: None }
    }

    /// Returns the numbers of four digits in halves. The scale is for each of them.
    pub fn of_halves(self, digits: Value<'k>) -> Value<'k> {
        self.offset.map_or_else(|| digits * self.factor, |offset| digits.fma(self.factor, offset))
    }
}

/// The bytes of a word in which four neighbours are. A word holds two halves but four bytes: one mask leaves the first
/// two neighbours in its halves, and after a shift of the word by 8 bits it leaves the other two.
pub(crate) const BYTES: [u32; 4] = [0, 2, 1, 3];

/// Where sixteen neighbours of a unit are.
pub(crate) struct Place<'k> {
    /// The place of the unit's first number in the block, a multiple of 16, and how far behind it they begin.
    unit: Value<'k>,
    behind: u32,
    /// Whether the unit has them. `None` if every unit has.
    pub is_there: Option<Value<'k>>,
}

impl<'k> Place<'k> {
    /// Returns the place of the first one of them in the block.
    pub fn first(&self) -> Value<'k> {
        self.unit + self.behind
    }

    /// Returns where the first one of them is, in runs of `length` elements. The line of numbers begins at the run
    /// `line`, and the block at an element of it. The length divides 16.
    pub fn run(&self, line: Value<'k>, block: Value<'k>, length: u32) -> Value<'k> {
        // What a unit's places have in common is computed once.
        line + (block + self.unit) / length + self.behind / length
    }
}

/// Returns the units of a block.
pub(crate) const fn units(format: BlockFormat) -> u32 {
    match format {
        BlockFormat::TQ1_0 => 3,
        BlockFormat::Q2_K | BlockFormat::Q3_K | BlockFormat::Q6_K | BlockFormat::TQ2_0 => 4,
        BlockFormat::Q4_K | BlockFormat::Q5_K | BlockFormat::IQ4_XS => 8,
        _ => 1,
    }
}

/// Whether `count` neighbouring units that begin at a multiple of `count` have one scale and no offset.
pub(crate) const fn shares_scale(format: BlockFormat, count: u32) -> bool {
    matches!(format, BlockFormat::TQ2_0) && units(format).is_multiple_of(count)
}

/// Returns the bits of a format's integers, if they become fractions.
const fn bits(format: BlockFormat) -> u32 {
    match format {
        BlockFormat::Q2_K | BlockFormat::TQ1_0 | BlockFormat::TQ2_0 => 2,
        BlockFormat::Q3_K => 3,
        BlockFormat::Q4_0 | BlockFormat::Q4_1 | BlockFormat::Q4_K => 4,
        BlockFormat::Q5_0 | BlockFormat::Q5_1 | BlockFormat::Q5_K => 5,
        BlockFormat::Q6_K => 6,
        BlockFormat::Q8_0 | BlockFormat::IQ4_NL | BlockFormat::IQ4_XS | BlockFormat::MXFP4 => 0,
    }
}

/// Returns what is subtracted from the integers of a format.
const fn bias_of_integers(format: BlockFormat) -> u32 {
    match format {
        BlockFormat::Q4_0 => 8,
        BlockFormat::Q5_0 => 16,
        BlockFormat::Q3_K => 4,
        BlockFormat::Q6_K => 32,
        BlockFormat::TQ1_0 | BlockFormat::TQ2_0 => 1,
        _ => 0,
    }
}

/// Returns what is subtracted from the digits of a format.
pub(super) fn bias(format: BlockFormat) -> f32 {
    let of_integers = bias_of_integers(format) as f32;
    match bits(format) {
        0 => of_integers,
        bits => 1.0 + of_integers / (1u32 << bits) as f32,
    }
}

/// Returns whether the numbers of a format have an offset.
pub(super) const fn has_offset(format: BlockFormat) -> bool {
    matches!(format, BlockFormat::Q4_1 | BlockFormat::Q5_1 | BlockFormat::Q2_K | BlockFormat::Q4_K | BlockFormat::Q5_K)
}

/// Whether numbers of a format can be computed in halves. Scales of `MXFP4` are beyond their range.
pub(crate) const fn fit_halves(format: BlockFormat) -> bool {
    !matches!(format, BlockFormat::MXFP4)
}

/// Returns the field that begins at bit `first` of each byte of a word, as the upper bits of a fraction above 1.
fn fractions<'k>(k: &'k KernelBuilder, word: Value<'k>, first: u32, bits: u32) -> Value<'k> {
    // The fraction of a float has 23 bits.
    let (to, mask) = (23 - bits, ((1 << bits) - 1) << (23 - bits));
    let fields = BYTES.map(|byte| {
        let from = 8 * byte + first;
        let moved = if from > to { word >> (from - to) } else { word << (to - from) };
        (moved & mask) | 1f32.to_bits()
    });
    k.vector(&fields).bitcast(Type::vec4(Scalar::F32))
}

/// Returns the low four bits of each byte of a word.
fn low(word: Value<'_>) -> Value<'_> {
    word & 0x0f0f_0f0f
}

/// Returns the high four bits of each byte of a word.
fn high(word: Value<'_>) -> Value<'_> {
    low(word >> 4)
}

/// Returns the low or the high four bits of each byte of a word.
fn nibbles(word: Value<'_>, half: u32) -> Value<'_> {
    if half == 0 { low(word) } else { high(word) }
}

/// Spreads the low four bits of a number over the lowest bits of the bytes of four neighbours.
fn spread(bits: Value<'_>) -> Value<'_> {
    // The factor's bits move bit i of the number to bit 8 b of the product, where b is the neighbour's byte.
    let factor = (0..).zip(BYTES).map(|(i, byte)| 1 << (8 * byte - i)).sum::<u32>();
    ((bits & 0xf) * factor) & 0x0101_0101
}

/// Returns the number of a table that each byte of a word chooses.
fn chosen<'k>(k: &'k KernelBuilder, table: [i8; 16], word: Value<'k>) -> Value<'k> {
    let packed = |first: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| table[first + i].cast_unsigned()));
    let choice = k.vector(&word.unpack_u8());
    let quarter = choice >> 2;
    let [a, b, c, d] = [0, 4, 8, 12].map(|first| choice.literal(packed(first)));
    let four = quarter.lt(2).select(quarter.eq(0).select(a, b), quarter.eq(2).select(c, d));
    let up = choice.literal(24) - ((choice & 3) << 3);
    (four << up).bitcast(Type::vec4(Scalar::I32)) >> 24
}

impl<'k> Blocks<'k> {
    /// Declares the buffer.
    pub fn new(k: &'k KernelBuilder, format: BlockFormat, matrix: DeclaredMatrix<'k>) -> Self {
        let words = k.buffer("blocks", Type::vec4(Scalar::U32), Access::Read);
        let DeclaredMatrix { first, row_blocks, together, planes } = matrix;
        let order = Order::new(format.piece_blocks() as u32, row_blocks, together);
        Blocks { k, format, words, planes, order, first, part: None, in_halves: false }
    }

    /// Returns the position of the first block of a row.
    pub fn row(&self, row: Value<'k>) -> Value<'k> {
        self.order.row(self.first + row)
    }

    /// Returns the position of a block of the row whose first block is at `row`.
    pub fn block(&self, row: Value<'k>, block: Value<'k>) -> Value<'k> {
        self.order.block(row, block)
    }

    /// Returns where an element is: the position of its block, times the elements of a block, plus its place in the
    /// block.
    pub fn element(&self, row: Value<'k>, column: Value<'k>) -> Value<'k> {
        let elements = self.format.block_elements() as u32;
        self.block(self.row(row), column / elements) * elements + column % elements
    }

    /// Makes an invocation unpack a word of each unit only, so that neighbours write side by side.
    pub fn of_word(self, word: Value<'k>) -> Self {
        Blocks { part: Some((word, 1)), ..self }
    }

    /// Makes digits `f16`.
    pub fn in_halves(self) -> Self {
        Blocks { in_halves: true, ..self }
    }

    /// Returns the field that begins at bit `first` of each byte of a word, as digits.
    fn field(&self, word: Value<'k>, first: u32) -> Value<'k> {
        let bits = bits(self.format);
        match self.in_halves {
            true => self.halves(word, [first, bits], 0, bias_of_integers(self.format)),
            false => fractions(self.k, word, first, bits),
        }
    }

    /// Returns the field of some bits, from bit `first` of each byte of a word on, less `bias`, as halves. The field's
    /// bits that are set in `flipped` are flipped.
    fn halves(&self, word: Value<'k>, [first, bits]: [u32; 2], flipped: u32, bias: u32) -> Value<'k> {
        // The fraction of a half has 10 bits. Above this number, a half has the field at its place.
        let base = 1 << (10 - first);
        let upper = u32::from(f16::from_f32(base as f32).to_bits()) ^ (flipped << first);
        let fields = [word, word >> 8].map(|word| self.with_upper(word, ((1 << bits) - 1) << first, upper));
        self.k.vector(&fields).bitcast(Type::vec4(Scalar::F16)) - (base + bias) as f32
    }

    /// Masks both halves of a word, and then flips the bits of `upper` in each. Outside of the mask, this sets them.
    fn with_upper(&self, word: Value<'k>, mask: u32, upper: u32) -> Value<'k> {
        // NVIDIA's driver takes one instruction for both, if one of the constants is in a register.
        (word & (mask * 0x0001_0001)) ^ self.k.u32(upper * 0x0001_0001).opaque()
    }

    /// Returns the integers of a word's bytes as digits, in the order of the neighbours.
    fn integers(&self, bytes: Value<'k>) -> Value<'k> {
        let four = self.k.vector(&BYTES.map(|byte| bytes.lane(byte)));
        if !self.in_halves {
            return four.convert(Scalar::F32);
        }
        four.convert(Scalar::F16) - bias_of_integers(self.format) as f32
    }

    fn plane_bytes(&self, plane: usize) -> u32 {
        self.format.planes()[plane].len() as u32
    }

    /// Returns the index of the first 16 bytes of a block's part of a plane.
    fn part_of(&self, plane: usize, block: Value<'k>) -> Value<'k> {
        self.planes[plane] + block * (self.plane_bytes(plane) / 16)
    }

    /// The same of the first or the second plane, which have as many bytes.
    fn part_of_either(&self, plane: Value<'k>, block: Value<'k>) -> Value<'k> {
        self.part_of(0, block) + plane * (self.planes[1] - self.planes[0])
    }

    /// Loads 16 bytes.
    fn four(&self, at: Value<'k>) -> [Value<'k>; 4] {
        let words = self.words.load(at);
        [0, 1, 2, 3].map(|lane| words.lane(lane))
    }

    /// Loads the words of 16 bytes that the invocation takes.
    fn run(&self, at: Value<'k>) -> SmallVec<[Value<'k>; 4]> {
        match self.part {
            None => self.four(at).into(),
            Some((first, count)) => (0..count).map(|i| self.words.load_lane(at * 4 + (first + i))).collect(),
        }
    }

    /// The places of the first neighbours of these words.
    fn starts(&self) -> SmallVec<[Value<'k>; 4]> {
        match self.part {
            None => [0, 4, 8, 12].map(|start| self.k.u32(start)).into(),
            Some((first, count)) => (0..count).map(|i| (first + i) * 4).collect(),
        }
    }

    /// Loads a word of a block's part of a plane.
    fn word(&self, plane: usize, block: Value<'k>, word: Value<'k>) -> Value<'k> {
        self.words.load_lane(self.planes[plane] * 4 + block * (self.plane_bytes(plane) / 4) + word)
    }

    fn word_at(&self, plane: usize, block: Value<'k>, word: u32) -> Value<'k> {
        self.word(plane, block, self.k.u32(word))
    }

    /// Returns the halves of a word, to compute scales with them.
    fn halves_of(&self, word: Value<'k>) -> [Value<'k>; 2] {
        if !self.in_halves {
            return word.unpack_f16();
        }
        let two = word.bitcast(Type::vec2(Scalar::F16));
        [two.lane(0), two.lane(1)]
    }

    /// Returns an integer below 256 as a number of a scale.
    fn small(&self, integer: Value<'k>) -> Value<'k> {
        if !self.in_halves {
            return integer.convert(Scalar::F32);
        }
        // Above 1024, the lowest bits of a half are an integer. This is cheaper than a conversion.
        (integer | 0x6400).bitcast(Type::vec2(Scalar::F16)).lane(0) - 1024.0
    }

    /// Returns the scale whose factor is the lower half of `head` times an integer below 256, and whose minimum, which
    /// is subtracted, is the upper half times another one. The halves of a word have the integers, behind a mask.
    fn scale_and_minimum(&self, head: Value<'k>, integers: Value<'k>, mask: u32) -> Scale<'k> {
        let [factor, subtracted] = if self.in_halves {
            let of_halves = |word: Value<'k>| word.bitcast(Type::vec2(Scalar::F16));
            // As above, with two integers at once.
            let two = (of_halves(self.with_upper(integers, mask, 0x6400)) - 1024.0) * of_halves(head);
            [two.lane(0), two.lane(1)]
        } else {
            let integers = [integers, integers >> 16].map(|integer| (integer & mask).convert(Scalar::F32));
            let [d, minimum] = head.unpack_f16();
            [d * integers[0], minimum * integers[1]]
        };
        Scale { factor, offset: Some(-subtracted) }
    }

    /// Loads the word with the half that is a block's part of a plane.
    fn word_of_half(&self, plane: usize, block: Value<'k>) -> Value<'k> {
        self.words.load_lane(self.planes[plane] * 4 + (block >> 1))
    }

    /// Returns the half that is a block's part of a plane.
    fn half(&self, word: Value<'k>, block: Value<'k>) -> Value<'k> {
        let [low, high] = self.halves_of(word);
        (block & 1).eq(0).select(low, high)
    }

    /// Returns where a unit's numbers are, sixteen at a time.
    pub fn places(&self, unit: Value<'k>) -> Vec<Place<'k>> {
        let (half, odd) = (unit >> 1, unit & 1);
        let places = |first: Value<'k>, count: u32, apart: u32| {
            (0..count).map(|s| Place { unit: first, behind: apart * s, is_there: None }).collect()
        };
        match self.format {
            BlockFormat::Q2_K | BlockFormat::Q3_K | BlockFormat::Q6_K | BlockFormat::TQ2_0 => {
                places(half * 128 + odd * 16, 4, 32)
            }
            BlockFormat::Q4_K | BlockFormat::Q5_K => places(half * 64 + odd * 16, 2, 32),
            BlockFormat::IQ4_XS => places(unit * 32, 2, 16),
            BlockFormat::TQ1_0 => {
                // The last 16 bytes have half as many neighbours per digit, and the four bytes of the second plane.
                let last = unit.eq(2);
                let first = |digit: u32| last.select(self.k.u32(160 + 16 * digit), unit * 16 + 32 * digit);
                let digits = (0..5).map(|digit| Place { unit: first(digit), behind: 0, is_there: None });
                let rest = Place { unit: self.k.u32(240), behind: 0, is_there: Some(last) };
                digits.chain([rest]).collect()
            }
            _ => places(self.k.u32(0), 2, 16),
        }
    }

    /// Loads a unit and returns it.
    pub fn unit<'a>(&'a self, block: Value<'k>, unit: Value<'k>) -> Unit<'a, 'k> {
        self.decode(&self.load(block, unit), block, unit)
    }

    /// Loads what a unit needs, for later.
    pub fn ahead(&self, block: Value<'k>, unit: Value<'k>) -> Ahead<'k> {
        let Loaded { words, length, runs } = self.load(block, unit);
        Ahead { words: words.into_iter().map(|word| self.k.var(word)).collect(), length, runs }
    }

    /// Returns the unit that was loaded before.
    pub fn unit_of<'a>(&'a self, ahead: &Ahead<'k>, block: Value<'k>, unit: Value<'k>) -> Unit<'a, 'k> {
        let &Ahead { ref words, length, runs } = ahead;
        let words = words.iter().map(|word| word.get()).collect();
        self.decode(&Loaded { words, length, runs }, block, unit)
    }

    /// Loads what another unit needs.
    pub fn load_ahead(&self, ahead: &Ahead<'k>, block: Value<'k>, unit: Value<'k>) {
        ahead.words.iter().zip(self.load(block, unit).words).for_each(|(ahead, word)| ahead.set(word));
    }

    /// Loads what a unit needs.
    fn load(&self, block: Value<'k>, unit: Value<'k>) -> Loaded<'k> {
        self.load_for(block, unit, None)
    }

    /// Loads what a unit needs, or one of its places.
    fn load_for(&self, block: Value<'k>, unit: Value<'k>, place: Option<Value<'k>>) -> Loaded<'k> {
        let (half, odd) = (unit >> 1, unit & 1);
        let run = |plane, sixteenth: Value<'k>| self.run(self.part_of(plane, block) + sixteenth);
        // The units of these formats are in two planes.
        let halves = |sixteenth: Value<'k>| self.part_of_either(unit / (units(self.format) / 2), block) + sixteenth;
        // One of two runs, if only one is wanted.
        let two = |at: &dyn Fn(Value<'k>) -> Value<'k>| match place {
            Some(place) => vec![self.run(at(place & 1))],
            None => [0, 1].map(|n| self.run(at(self.k.u32(n)))).into(),
        };
        let (word, word_of_half) =
            (|plane, word| self.word_at(plane, block, word), |plane| self.word_of_half(plane, block));
        let pair = |plane| [0, 1].map(|word| self.word(plane, block, half * 2 + word));
        let runs = match self.format {
            BlockFormat::Q8_0 => two(&|plane| self.part_of_either(plane, block)),
            BlockFormat::Q3_K => vec![run(0, unit), run(1, odd)],
            BlockFormat::Q4_K | BlockFormat::IQ4_XS => vec![self.run(halves(unit & 3))],
            BlockFormat::Q5_K => vec![self.run(halves(unit & 3)), run(2, odd)],
            BlockFormat::Q6_K => [two(&|run| halves(odd + run * 2)), vec![run(2, unit)]].concat(),
            _ => vec![run(0, unit)],
        };
        let others: SmallVec<[Value<'k>; 4]> = match self.format {
            BlockFormat::Q4_0 | BlockFormat::IQ4_NL | BlockFormat::TQ2_0 => [word_of_half(1)].into_iter().collect(),
            BlockFormat::Q8_0 => [word_of_half(2)].into_iter().collect(),
            BlockFormat::Q4_1 => [word(1, 0)].into_iter().collect(),
            BlockFormat::Q5_0 => [word(1, 0), word_of_half(2)].into_iter().collect(),
            BlockFormat::Q5_1 => [word(1, 0), word(2, 0)].into_iter().collect(),
            BlockFormat::Q2_K => pair(1).into_iter().chain([word(2, 0)]).collect(),
            BlockFormat::Q3_K => [word(2, 0), word(2, 1), word(2, 2), word_of_half(3)].into(),
            BlockFormat::Q4_K => self.four(self.part_of(2, block)).into(),
            BlockFormat::Q5_K => self.four(self.part_of(3, block)).into(),
            BlockFormat::Q6_K => pair(3).into_iter().chain([word_of_half(4)]).collect(),
            BlockFormat::IQ4_XS => [word(2, 0), word(2, 1)].into_iter().collect(),
            BlockFormat::TQ1_0 => [word(1, 0), word_of_half(2)].into_iter().collect(),
            // Four bytes, of which one is the block's.
            BlockFormat::MXFP4 => [self.words.load_lane(self.planes[1] * 4 + (block >> 2))].into_iter().collect(),
        };
        let (length, count) = (runs[0].len(), runs.len());
        Loaded { words: runs.into_iter().flatten().chain(others).collect(), length, runs: count }
    }

    /// Returns the unit that was loaded.
    fn decode<'a>(&'a self, loaded: &Loaded<'k>, block: Value<'k>, unit: Value<'k>) -> Unit<'a, 'k> {
        let decoded = self.of_integers(loaded, block, unit);
        match bits(self.format) {
            _ if self.in_halves => decoded,
            0 => decoded,
            bits => {
                let scale = decoded.scale;
                let of_fractions = move |s| {
                    let Scale { factor, offset } = scale(s);
                    Scale { factor: factor * (1 << bits) as f32, offset }
                };
                Unit { scale: Box::new(of_fractions), digits: decoded.digits }
            }
        }
    }

    /// The same with the scales of the integers.
    fn of_integers<'a>(&'a self, loaded: &Loaded<'k>, block: Value<'k>, unit: Value<'k>) -> Unit<'a, 'k> {
        let k = self.k;
        let (q, others) = (loaded.run(0), loaded.others());
        match self.format {
            BlockFormat::Q4_0 => {
                let d = self.half(others[0], block);
                Unit::new(move |_| Scale::plain(d), move |s, i| self.field(q[i], 4 * s))
            }
            BlockFormat::Q4_1 => {
                let [factor, m] = self.halves_of(others[0]);
                Unit::new(move |_| Scale { factor, offset: Some(m) }, move |s, i| self.field(q[i], 4 * s))
            }
            BlockFormat::Q5_0 | BlockFormat::Q5_1 => {
                let fifth = others[0];
                let scale = if self.format == BlockFormat::Q5_0 {
                    Scale::plain(self.half(others[1], block))
                } else {
                    let [factor, m] = self.halves_of(others[1]);
                    Scale { factor, offset: Some(m) }
                };
                let starts = self.starts();
                let five = move |s, i: usize| nibbles(q[i], s) | (spread(fifth >> (starts[i] + 16 * s)) << 4);
                Unit::new(move |_| scale, move |s, i| self.field(five(s, i), 0))
            }
            BlockFormat::Q8_0 => {
                let d = self.half(others[0], block);
                let signed = move |word: Value<'k>| match self.in_halves {
                    true => self.halves(word, [0, 8], 0x80, 128),
                    false => self.integers(k.vector(&word.unpack_i8())),
                };
                let runs = loaded.each_run();
                Unit::new(move |_| Scale::plain(d), move |s, i| signed(runs[s as usize][i]))
            }
            BlockFormat::Q2_K => self.q2_k(loaded, unit),
            BlockFormat::Q6_K => self.q6_k(loaded, block, unit),
            BlockFormat::Q3_K => self.q3_k(loaded, block, unit),
            BlockFormat::Q4_K | BlockFormat::Q5_K => self.q4_k(loaded, unit),
            BlockFormat::IQ4_NL => self.of_table(IQ4, q, self.half(others[0], block)),
            BlockFormat::IQ4_XS => {
                let &[head, lows] = others else { unreachable!("IQ4_XS has two words besides") };
                let [d, _] = self.halves_of(head);
                let high_bits = ((head >> 16) >> (unit * 2)) & 3;
                let scale = ((lows >> (unit * 4)) & 0xf) | (high_bits << 4);
                self.of_table(IQ4, q, d * (self.small(scale) - 32.0))
            }
            BlockFormat::TQ1_0 => self.tq1_0(loaded, block),
            BlockFormat::TQ2_0 => {
                let d = self.half(others[0], block);
                Unit::new(move |_| Scale::plain(d), move |s, i| self.field(q[i], 2 * s))
            }
            BlockFormat::MXFP4 => {
                let exponent = (others[0] >> ((block & 3) << 3)) & 0xff;
                // A power of two, which is subnormal for the smallest two exponents.
                let bits = exponent.lt(2).select(k.u32(0x0020_0000) << exponent, (exponent - 1) << 23);
                self.of_table(E2M1, q, bits.bitcast(Type::F32))
            }
        }
    }

    /// Numbers that four bits choose in a table.
    fn of_table<'a>(&'a self, table: [i8; 16], q: SmallVec<[Value<'k>; 4]>, factor: Value<'k>) -> Unit<'a, 'k> {
        let digits = move |s, i: usize| self.integers(chosen(self.k, table, nibbles(q[i], s)));
        Unit::new(move |_| Scale::plain(factor), digits)
    }

    fn q2_k<'a>(&'a self, loaded: &Loaded<'k>, unit: Value<'k>) -> Unit<'a, 'k> {
        let (q, others, odd) = (loaded.run(0), loaded.others(), unit & 1);
        let (head, scales) = (others[2], [0, 1].map(|word| others[word] >> (odd << 3)));
        let scale = move |s: u32| {
            let byte = scales[s as usize / 2] >> (16 * (s % 2));
            self.scale_and_minimum(head, (byte & 0xf) | ((byte & 0xf0) << 12), 0xf)
        };
        Unit::new(scale, move |s, i| self.field(q[i], 2 * s))
    }

    fn q3_k<'a>(&'a self, loaded: &Loaded<'k>, block: Value<'k>, unit: Value<'k>) -> Unit<'a, 'k> {
        let (q, masks, others) = (loaded.run(0), loaded.run(1), loaded.others());
        let (half, odd) = (unit >> 1, unit & 1);
        let d = self.half(others[3], block);
        let [lows, more, highs] = [0, 1, 2].map(|word| others[word] >> (odd << 3));
        let scale = move |s: u32| {
            let (pair, shift) = (s / 2, 16 * (s % 2));
            let lows = (if pair == 0 { lows } else { more }) >> shift;
            let highs = (highs >> shift) >> (half * 4 + 2 * pair);
            let scale = ((lows >> (half * 4)) & 0xf) | ((highs & 3) << 4);
            Scale::plain(d * (self.small(scale) - 32.0))
        };
        let three = move |s: u32, i: usize| {
            let third = ((masks[i] >> (half * 4)) >> s) & 0x0101_0101;
            ((q[i] >> (2 * s)) & 0x0303_0303) | (third << 2)
        };
        Unit::new(scale, move |s, i| self.field(three(s, i), 0))
    }

    /// `Q4_K`, and `Q5_K`, which has a plane with the fifth bits.
    fn q4_k<'a>(&'a self, loaded: &Loaded<'k>, unit: Value<'k>) -> Unit<'a, 'k> {
        let (q, pair) = (loaded.run(0), unit >> 1);
        let &[head, scales, minima, rest] = loaded.others() else { unreachable!("Q4_K has four words besides") };
        // The first four scales and minima have six bits of a byte. The others have four bits of a byte of `rest`, and
        // the upper two bits of a byte before. Of the unit's two scales and two minima, a word is made.
        let [scales, minima, rest] = [scales, minima, rest].map(|word| word >> ((pair & 1) << 4));
        let sixes = (scales & 0xffff) | (minima << 16);
        let fours = (rest & 0xffff) | ((rest << 12) & 0xffff_0000u32);
        let others = (fours & 0x0f0f_0f0f) | ((sixes >> 2) & 0xf0f0_f0f0u32);
        let all = pair.lt(2).select(sixes, others);
        let scale = move |s: u32| self.scale_and_minimum(head, all >> (8 * s), 0x3f);
        if self.format == BlockFormat::Q4_K {
            return Unit::new(scale, move |s, i| self.field(q[i], 4 * s));
        }
        let fifth = loaded.run(1);
        let five = move |s, i: usize| nibbles(q[i], s) | ((((fifth[i] >> (pair * 2)) >> s) & 0x0101_0101) << 4);
        Unit::new(scale, move |s, i| self.field(five(s, i), 0))
    }

    fn q6_k<'a>(&'a self, loaded: &Loaded<'k>, block: Value<'k>, unit: Value<'k>) -> Unit<'a, 'k> {
        let (fours, twos) = (loaded.each_run(), loaded.run(loaded.runs - 1));
        let &[low, high, d] = loaded.others() else { unreachable!("Q6_K has three words besides") };
        let (d, scales, odd) = (self.half(d, block), [low, high], unit & 1);
        let scale = move |s: u32| {
            let signed = (scales[s as usize / 2] >> ((odd << 3) + 16 * (s % 2))) & 0xff;
            Scale::plain(d * (self.small(signed ^ 0x80) - 128.0))
        };
        let six = move |s: u32, i: usize| {
            let four = nibbles(fours[s as usize % 2][i], s / 2);
            four | (((twos[i] >> (2 * s)) & 0x0303_0303) << 4)
        };
        Unit::new(scale, move |s, i| self.field(six(s, i), 0))
    }

    /// A byte holds five ternary digits, as a fraction of 256: its product with 3 has the first digit above 8 bits.
    fn tq1_0<'a>(&'a self, loaded: &Loaded<'k>, block: Value<'k>) -> Unit<'a, 'k> {
        let (k, q) = (self.k, loaded.run(0));
        let &[rest, scale] = loaded.others() else { unreachable!("TQ1_0 has two words besides") };
        let scale = self.half(scale, block);
        let powers = [1, 3, 9, 27, 81].map(|power| k.u32(power));
        let digits = move |s: u32, i: usize| {
            let (word, power) = match (s, self.part) {
                (0..5, _) => (q[i], powers[s as usize]),
                (_, None) => (rest, powers[i]),
                (_, Some((word, _))) => {
                    let [low, high] = [0, 2].map(|i| (word & 1).eq(0).select(powers[i], powers[i + 1]));
                    (rest, word.lt(2).select(low, high))
                }
            };
            // Two bytes at a time, because products have up to 16 bits.
            let [even, odd] = [word, word >> 8].map(|word| {
                let fractions = ((word & 0x00ff_00ff) * power) & 0x00ff_00ff;
                ((fractions * 3) >> 8) & 0x0003_0003
            });
            self.field(even | (odd << 8), 0)
        };
        Unit::new(move |_| Scale::plain(scale), digits)
    }

    /// Returns the numbers of a vector of digits, rounded as the reference in Python rounds them: once.
    pub fn exact(&self, of: Scale<'k>, digits: Value<'k>) -> Value<'k> {
        let unbiased = if bias(self.format) == 0.0 { digits } else { digits - bias(self.format) };
        // The product has at most 24 bits if something is added to it.
        let scaled = unbiased * of.factor;
        let number = of.offset.map_or(scaled, |offset| scaled + offset);
        if self.format != BlockFormat::MXFP4 {
            return number;
        }
        // Devices may take a subnormal scale for 0. The product is then made of bits, or of a scale that is four times
        // as large.
        let bits = of.factor.bitcast(Type::U32);
        let (size, sign) = (digits.abs(), digits.bitcast(Type::vec4(Scalar::U32)) & 0x8000_0000_u32);
        let small = ((size.convert(Scalar::U32) * bits) | sign).bitcast(Type::vec4(Scalar::F32));
        let large = (digits * 0.25) * (bits * 4).bitcast(Type::F32);
        bits.lt(1 << 23).select(size.lt(4).select(small, large), number)
    }
}
