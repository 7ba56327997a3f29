//! Random numbers from a counter-based generator: Threefry-2x32 with 20 rounds (J. Salmon et al., "Parallel Random
//! Numbers: As Easy as 1, 2, 3", 2011). The same seed gives the same words on every device.

use super::Family;
use super::elements::Quads;
use super::parameters::{Bits, Each, Form, Size, parameters, times};
use crate::base::dtype::DType;
use crate::shader::{Access, KernelBuilder, Scalar, Type, Value};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 128;

/// The distribution of the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Distribution {
    /// Multiples of 2^-24 in `[0, 1)`.
    Uniform,
    /// Mean 0, standard deviation 1.
    Normal,
    /// Location 0, scale 1.
    Gumbel,
    /// `u32` integers of a range, modulo 2^32.
    Integer,
    /// `i64` integers of a range, modulo 2^64. They are computed in words, so that devices without `i64` make them too.
    WideInteger,
}

impl Distribution {
    /// Returns the range of the numbers, if they are integers.
    fn range(self) -> Option<Range> {
        match self {
            Distribution::Integer => Some(Range { words: 1 }),
            Distribution::WideInteger => Some(Range { words: 2 }),
            Distribution::Uniform | Distribution::Normal | Distribution::Gumbel => None,
        }
    }
}

/// A kernel that fills a buffer. Integers are `u32` or `i64`, all other numbers `f32`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Random {
    pub distribution: Distribution,
    pub generator: Generator,
}

parameters! {
    config: Random;
    host: Parameters;
    device: Declared;
    /// The number of elements.
    count: Size,
    generator: Generator = config.generator,
    range: Option<Range> = config.distribution.range(),
}

/// The form of the parameters that determine a tensor's random bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Generator {
    /// The parameters are all.
    Given,
    /// A last buffer holds the key, and the number of the tensor that has number 0 in the parameters.
    Stored,
}

parameters! {
    config: Generator;
    host: GeneratorParameters;
    device: DeclaredGenerator;
    /// The words of the key.
    key_low: Bits,
    key_high: Bits,
    /// The number of the tensor among the tensors made with that key.
    sequence: Bits,
}

impl Generator {
    /// Returns the key and the number of the tensor. It declares the last buffer, so it comes after the others.
    pub fn resolve<'k>(self, k: &'k KernelBuilder, given: DeclaredGenerator<'k>) -> DeclaredGenerator<'k> {
        if self == Generator::Given {
            return given;
        }
        let stored = k.buffer("generator", Type::U32, Access::Read);
        let [key_low, key_high, first] = [0, 1, 2].map(|word| stored.load(k.u32(word)));
        DeclaredGenerator { key_low, key_high, sequence: first + given.sequence }
    }

    /// Returns the end of a kernel's name.
    pub fn suffix(self) -> &'static str {
        if self == Generator::Given { "" } else { "(stored generator)" }
    }
}

impl<'k> DeclaredGenerator<'k> {
    /// Returns the random bits of two neighbouring elements, a word each.
    pub fn pair(&self, pair: Value<'k>) -> [Value<'k>; 2] {
        threefry([self.key_low, self.key_high], [pair, self.sequence])
    }
}

/// The form of a range of integers. Each has this many words, the lower one first.
pub(crate) struct Range {
    words: usize,
}

parameters! {
    config: Range;
    host: RangeParameters;
    device: DeclaredRange;
    /// The number of integers.
    length: Each<Bits> = times(config.words),
    /// The first integer.
    first: Each<Bits> = times(config.words),
}

fn rotate_left<'k>(x: Value<'k>, bits: u32) -> Value<'k> {
    (x << bits) | (x >> (32 - bits))
}

/// Returns two words of random bits from a key and a counter.
pub(super) fn threefry<'k>(key: [Value<'k>; 2], counter: [Value<'k>; 2]) -> [Value<'k>; 2] {
    const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
    let keys = [key[0], key[1], key[0] ^ key[1] ^ 0x1bd1_1bda_u32];
    let (mut x, mut y) = (counter[0] + keys[0], counter[1] + keys[1]);
    for round in 0..5 {
        for bits in ROTATIONS[round % 2] {
            x = x + y;
            y = rotate_left(y, bits) ^ x;
        }
        x = x + keys[(round + 1) % 3];
        y = y + keys[(round + 2) % 3] + (round as u32 + 1);
    }
    [x, y]
}

/// Returns an odd number below 2^24. It is never an end of the range, where a quantile is infinite.
fn odd(bits: Value<'_>) -> Value<'_> {
    ((bits >> 9) * 2 + 1).convert(Scalar::F32)
}

/// Returns the number of the Gumbel distribution for 32 random bits.
pub(super) fn gumbel(bits: Value<'_>) -> Value<'_> {
    (odd(bits) * (1.0 / 16_777_216.0)).gumbel_quantile()
}

/// Returns the upper word of a product of words. Not all devices have an instruction for it.
fn multiply_high<'k>(a: Value<'k>, b: Value<'k>) -> Value<'k> {
    let ([a_low, a_high], [b_low, b_high]) = (halves(a), halves(b));
    let middle = a_high * b_low + ((a_low * b_low) >> 16);
    let [middle_low, middle_high] = halves(middle);
    a_high * b_high + middle_high + ((a_low * b_high + middle_low) >> 16)
}

fn halves(word: Value<'_>) -> [Value<'_>; 2] {
    [word & 0xffff, word >> 16]
}

/// Returns a sum of words and its carry.
fn add<'k>(a: Value<'k>, b: Value<'k>) -> [Value<'k>; 2] {
    let sum = a + b;
    [sum, sum.lt(b).convert(Scalar::U32)]
}

/// Returns the upper two words of a product of two-word numbers, lower words first.
fn multiply_high_wide<'k>(a: [Value<'k>; 2], b: [Value<'k>; 2]) -> [Value<'k>; 2] {
    let [second, carry_0] = add(multiply_high(a[0], b[0]), a[0] * b[1]);
    let [_, carry_1] = add(second, a[1] * b[0]);
    let [third, carry_2] = add(multiply_high(a[0], b[1]), multiply_high(a[1], b[0]));
    let [third, carry_3] = add(third, a[1] * b[1]);
    let [third, carry_4] = add(third, carry_0 + carry_1);
    [third, multiply_high(a[1], b[1]) + carry_2 + carry_3 + carry_4]
}

impl Family for Random {
    fn name(&self) -> String {
        format!("random_{:?}{}", self.distribution, self.generator.suffix()).to_lowercase()
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write(&self, k: &KernelBuilder) {
        let Declared { count, generator, range } = self.declare(k);
        let range = match range {
            Some(range) if self.distribution == Distribution::WideInteger => {
                return wide_integers(self.generator, k, count, generator, &range);
            }
            range => range.map(|range| [range.length[0].splat(4), range.first[0].splat(4)]),
        };
        let scalar = if range.is_some() { Scalar::U32 } else { Scalar::F32 };
        let y = k.buffer("y", Type::vec4(scalar), Access::Write);
        let generator = self.generator.resolve(k, generator);
        let quad = k.global_index();
        k.when((quad * 4).lt(count), || {
            let ([a, b], [c, d]) = (generator.pair(quad * 2), generator.pair(quad * 2 + 1));
            let bits = k.vector(&[a, b, c, d]);
            let numbers = match (self.distribution, range) {
                (_, Some([length, first])) => multiply_high(bits, length) + first,
                (Distribution::Normal, _) => (odd(bits) * (1.0 / 8_388_608.0) - 1.0).normal_quantile(),
                (Distribution::Gumbel, _) => gumbel(bits),
                _ => (bits >> 8).convert(Scalar::F32) * (1.0 / 16_777_216.0),
            };
            y.store(quad, numbers);
        });
    }

    fn samples() -> Vec<Self> {
        use Distribution::{Gumbel, Integer, Normal, Uniform, WideInteger};
        let distributions = [Uniform, Normal, Gumbel, Integer, WideInteger];
        let generators = [Generator::Given, Generator::Stored];
        let of = |generator| distributions.map(|distribution| Random { distribution, generator });
        generators.into_iter().flat_map(of).collect()
    }
}

/// Writes integers of two words, lower words first. Each is made of both words of its own pair of random bits.
fn wide_integers<'k>(
    form: Generator,
    k: &'k KernelBuilder,
    count: Value<'k>,
    given: DeclaredGenerator<'k>,
    range: &DeclaredRange<'k>,
) {
    let [length, first] = [&range.length, &range.first].map(|words| [words[0].splat(4), words[1].splat(4)]);
    let y = Quads::output(k, "y", DType::U32);
    let generator = form.resolve(k, given);
    let quad = k.global_index();
    k.when((quad * 4).lt(count), || {
        let pairs = [0, 1, 2, 3].map(|lane| generator.pair(quad * 4 + lane));
        let bits = [0, 1].map(|word| k.vector(&pairs.map(|pair| pair[word])));
        let [low, high] = multiply_high_wide(bits, length);
        let [low, carry] = add(low, first[0]);
        let high = high + first[1] + carry;
        y.store_lanes(k, quad, [0, 1, 2, 3].map(|lane| k.vector(&[low.lane(lane), high.lane(lane)])));
    });
}
