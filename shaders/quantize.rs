//! Makes blocks of quantised numbers, as `gguf/quants.py` in the package `gguf` 0.19.0 does. An invocation makes the
//! blocks whose scales share a word.

use super::Family;
use super::blocks::{BYTES, BlockMatrix, E2M1, Order};
use super::elements::Elements;
use super::parameters::{Form, Size, parameters};
use crate::base::block_format::BlockFormat;
use crate::base::dtype::DType;
use crate::shader::{Access, Array, KernelBuilder, Scalar, Type, Value};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 64;

/// Quantises numbers of `f32`, which are contiguous.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Quantize {
    pub format: BlockFormat,
}

parameters! {
    config: Quantize;
    host: Parameters;
    device: Declared;
    /// The number of rows.
    rows: Size,
    /// Where the first number is.
    start: Size,
    /// The positions of blocks.
    positions: Size,
    matrix: BlockMatrix = BlockMatrix(config.format),
}

/// The formats that the kernel makes.
pub(crate) const FORMATS: [BlockFormat; 8] = [
    BlockFormat::Q4_0,
    BlockFormat::Q4_1,
    BlockFormat::Q5_0,
    BlockFormat::Q5_1,
    BlockFormat::Q8_0,
    BlockFormat::TQ1_0,
    BlockFormat::TQ2_0,
    BlockFormat::MXFP4,
];

impl Quantize {
    /// Returns how many blocks have their scales in a word.
    fn together(&self) -> u32 {
        let scales = self.format.planes().last().map_or(4, |plane| plane.len() as u32);
        4 / scales
    }

    /// Returns the number of workgroups.
    pub fn groups(&self, positions: usize) -> usize {
        positions.div_ceil((WORKGROUP * self.together()) as usize)
    }
}

/// Numbers of a block that decide its scale.
struct Extremes<'k> {
    least: Value<'k>,
    most: Value<'k>,
    /// The number of the largest magnitude, the first if there are several.
    farthest: Value<'k>,
}

/// A block while it is made.
struct Making<'k> {
    k: &'k KernelBuilder,
    format: BlockFormat,
    x: Elements<'k>,
    /// Where the block's first number is.
    start: Value<'k>,
    words: Array<'k>,
    /// The first word of the block's part of each plane.
    places: Vec<Value<'k>>,
}

impl<'k> Making<'k> {
    fn number(&self, element: Value<'k>) -> Value<'k> {
        self.x.load(self.start + element)
    }

    fn extremes(&self) -> Extremes<'k> {
        let k = self.k;
        let first = self.number(k.u32(0));
        let [least, most, farthest] = [0; 3].map(|_| k.var(first));
        k.for_rolled(1, self.format.block_elements() as u32, 1, |element| {
            let number = self.number(element);
            least.set(least.get().min(number));
            most.set(most.get().max(number));
            farthest.set(number.abs().gt(farthest.get().abs()).select(number, farthest.get()));
        });
        Extremes { least: least.get(), most: most.get(), farthest: farthest.get() }
    }

    /// Stores words of the integers, of which `pack` makes one.
    fn store(&self, plane: usize, first: u32, words: u32, pack: impl Fn(Value<'k>) -> Value<'k>) {
        let (k, place) = (self.k, self.places[plane]);
        k.for_rolled(first, first + words, 1, |word| self.words.store(place + word, pack(word)));
    }

    /// Stores integers of four bits, sixteen elements apart in a byte. Returns the fifth bits of them.
    fn store_fours(&self, integer: impl Fn(Value<'k>) -> Value<'k>) -> Value<'k> {
        let fifths = self.k.var(self.k.u32(0));
        self.store(0, 0, 4, |word| {
            let bytes = [0, 1, 2, 3].map(|byte| {
                let element = word * 4 + byte;
                let [low, high] = [integer(element), integer(element + 16)];
                fifths.set(fifths.get() | ((low >> 4) << element) | ((high >> 4) << (element + 16)));
                ((low & 0xf) | ((high & 0xf) << 4)) << (8 * BYTES[byte as usize])
            });
            bytes.into_iter().reduce(|word, byte| word | byte).unwrap_or(word)
        });
        fifths.get()
    }

    /// Stores the integers of a block, and returns the bits of its scales.
    fn make(&self) -> Value<'k> {
        let k = self.k;
        let Extremes { least, most, farthest } = self.extremes();
        let zero = k.f32(0.0);
        let inverse = |scale: Value<'k>| scale.eq(0.0).select(zero, k.f32(1.0).divide_exactly(scale));
        // The product is rounded before something is added to it.
        let scaled = |element, scale: Value<'k>| (self.number(element) * scale).opaque();
        let half = |scale: Value<'k>| k.pack_f16(scale, zero);
        match self.format {
            BlockFormat::Q4_0 | BlockFormat::Q5_0 => {
                let (levels, is_q5) = if self.format == BlockFormat::Q4_0 { (16, false) } else { (32, true) };
                let scale = farthest * (-2.0 / levels as f32);
                let inverse = inverse(scale);
                let integer = |element| {
                    let number = scaled(element, inverse) + (levels as f32 / 2.0 + 0.5);
                    number.convert(Scalar::U32).min(levels - 1)
                };
                let fifths = self.store_fours(integer);
                if is_q5 {
                    self.store(1, 0, 1, |_| fifths);
                }
                half(scale)
            }
            BlockFormat::Q4_1 | BlockFormat::Q5_1 => {
                let (most_integer, is_q5) = if self.format == BlockFormat::Q4_1 { (15, false) } else { (31, true) };
                let range = most - least;
                let scale = range.eq(0.0).select(zero, range.divide_exactly(k.f32(most_integer as f32)));
                let inverse = inverse(scale);
                let integer = |element| {
                    let number = ((self.number(element) - least) * inverse).opaque() + 0.5;
                    number.convert(Scalar::U32).min(most_integer)
                };
                let fifths = self.store_fours(integer);
                if is_q5 {
                    self.store(1, 0, 1, |_| fifths);
                }
                k.pack_f16(scale, least)
            }
            BlockFormat::Q8_0 => {
                let range = farthest.abs();
                let scale = range.eq(0.0).select(zero, range.divide_exactly(k.f32(127.0)));
                let inverse = inverse(scale);
                let byte = |element| rounded(scaled(element, inverse)).bitcast(Type::U32) & 0xff;
                for (plane, first) in [(0, 0), (1, 16)] {
                    self.store(plane, 0, 4, |word| packed(|at| byte(word * 4 + (first + at))));
                }
                half(scale)
            }
            BlockFormat::TQ1_0 | BlockFormat::TQ2_0 => {
                let scale = farthest.abs();
                let inverse = inverse(scale);
                let digit = |element| (rounded(scaled(element, inverse)) + 1).bitcast(Type::U32);
                // The digits of a byte are `stride` elements apart.
                let sum = |first: Value<'k>, stride: u32, factors: &[u32]| {
                    let digits = (0..).zip(factors).map(|(i, &factor)| digit(first + i * stride) * factor);
                    digits.reduce(|sum, digit| sum + digit).unwrap_or(first)
                };
                if self.format == BlockFormat::TQ2_0 {
                    let crumbs =
                        |word: Value<'k>, at: u32| sum((word >> 3) * 128 + (word & 7) * 4 + at, 32, &[1, 4, 16, 64]);
                    self.store(0, 0, 16, |word| packed(|at| crumbs(word, at)));
                } else {
                    // A fraction of 256, rounded up, so that multiplying it by 3 gives the digits again.
                    let fraction = |sum: Value<'k>| (sum * 256 + 242) / 243;
                    let fives = [81, 27, 9, 3, 1];
                    self.store(0, 0, 8, |word| packed(|at| fraction(sum(word * 4 + at, 32, &fives))));
                    self.store(0, 8, 4, |word| packed(|at| fraction(sum((word - 8) * 4 + 160 + at, 16, &fives))));
                    self.store(1, 0, 1, |_| packed(|at| fraction(sum(k.u32(240 + at), 4, &fives[..4]))));
                }
                half(scale)
            }
            _ => {
                // The largest number of the format is 6, so its exponent is 2. Numbers are doubled.
                let exponent = ((farthest.abs().bitcast(Type::U32) >> 23).max(2) - 2) & 0xff;
                let small = exponent.lt(2).select(k.u32(0x0020_0000) << exponent, (exponent - 1) << 23);
                let scale = small.bitcast(Type::F32);
                let nearest = |element| {
                    let number = self.number(element);
                    let (best, least) = (k.var(k.u32(0)), k.var(number.abs()));
                    for (i, candidate) in (0..).zip(E2M1).skip(1) {
                        let error = (scale * f32::from(candidate) - number).abs();
                        let is_nearer = error.lt(least.get());
                        best.set(is_nearer.select(k.u32(i), best.get()));
                        least.set(is_nearer.select(error, least.get()));
                    }
                    best.get()
                };
                self.store_fours(nearest);
                exponent
            }
        }
    }
}

/// Returns the nearest integer, away from zero at ties.
fn rounded(number: Value<'_>) -> Value<'_> {
    let size = number.abs();
    let floor = size.floor();
    let rounded = floor + ((size - floor) * 2.0).floor();
    let integer = rounded.convert(Scalar::I32);
    number.lt(0.0).select(-integer, integer)
}

/// Packs the bytes of four neighbours.
fn packed<'k>(byte: impl Fn(u32) -> Value<'k>) -> Value<'k> {
    let [a, b, c, d] = [0, 1, 2, 3].map(|i| byte(i) << (8 * BYTES[i as usize]));
    a | b | c | d
}

impl Family for Quantize {
    fn name(&self) -> String {
        format!("quantize(f32 to {})", self.format)
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn touched(&self, Parameters { positions, .. }: &Parameters) -> u64 {
        (positions * (self.format.block_elements() * 4 + self.format.block_bytes())) as u64
    }

    fn write(&self, k: &KernelBuilder) {
        let Declared { rows, start, positions, matrix } = self.declare(k);
        let row_blocks = matrix.row_blocks;
        let x = Elements::input(k, "x", DType::F32);
        let words = k.buffer("blocks", Type::U32, Access::Write);
        let (format, together) = (self.format, self.together());
        let order = Order::new(format.piece_blocks() as u32, row_blocks, matrix.together);
        let first = k.global_index() * together;
        k.when(first.lt(positions), || {
            let scales = k.var(k.u32(0));
            k.for_rolled(0, together, 1, |i| {
                let position = first + i;
                let [row, block] = order.at(position);
                k.when(row.lt(rows) & block.lt(row_blocks), || {
                    let places = matrix.planes.iter().zip(format.planes());
                    let places = places.map(|(&plane, part)| plane * 4 + position * (part.len() as u32 / 4)).collect();
                    let start = start + (row * row_blocks + block) * format.block_elements() as u32;
                    let made = Making { k, format, x, start, words, places }.make();
                    scales.set(scales.get() | (made << (i * (32 / together))));
                });
            });
            let plane = matrix.planes[matrix.planes.len() - 1];
            words.store(plane * 4 + k.global_index(), scales.get());
        });
    }

    fn samples() -> Vec<Self> {
        FORMATS.map(|format| Quantize { format }).into()
    }
}
