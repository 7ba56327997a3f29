//! Random numbers from a counter-based generator: Threefry-2x32 with 20 rounds (J. Salmon et al., "Parallel Random
//! Numbers: As Easy as 1, 2, 3", 2011). The same seed gives the same words on every device.

use super::Family;
use crate::shader::{Access, KernelBuilder, Scalar, Type, Value};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 64;

/// The distribution of the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Distribution {
    /// Multiples of 2^-24 in `[0, 1)`.
    Uniform,
    /// Mean 0, standard deviation 1.
    Normal,
}

/// A kernel that fills an `f32` buffer. Parameters: the number of elements, the two words of the key, and the number
/// of the tensor in the sequence of those made with that key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Random {
    pub distribution: Distribution,
}

fn rotate_left<'k>(x: Value<'k>, bits: u32) -> Value<'k> {
    (x << bits) | (x >> (32 - bits))
}

/// Two words of random bits from a key and a counter.
fn threefry<'k>(key: [Value<'k>; 2], counter: [Value<'k>; 2]) -> [Value<'k>; 2] {
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

/// The inverse of the error function, by M. Giles, "Approximating the erfinv function", 2010 (single precision).
fn inverse_erf(x: Value<'_>) -> Value<'_> {
    let w = -((x.literal(1.0) - x) * (x + 1.0)).log();
    let central = (w - 2.5).polynomial(&[
        2.810_226_4e-8,
        3.432_739_4e-7,
        -3.523_387_7e-6,
        -4.391_506_5e-6,
        2.185_808_7e-4,
        -1.253_725e-3,
        -4.177_681_6e-3,
        2.466_407_3e-1,
        1.501_409_4,
    ]);
    let tail = (w.sqrt() - 3.0).polynomial(&[
        -2.002_142_6e-4,
        1.009_505_6e-4,
        1.349_343_2e-3,
        -3.673_428_4e-3,
        5.739_507_7e-3,
        -7.622_461_3e-3,
        9.438_870_5e-3,
        1.001_674_1,
        2.832_976_8,
    ]);
    w.lt(5.0).select(central, tail) * x
}

/// The number for 32 random bits.
fn sample(distribution: Distribution, bits: Value<'_>) -> Value<'_> {
    match distribution {
        Distribution::Uniform => (bits >> 8).convert(Scalar::F32) * (1.0 / 16_777_216.0),
        Distribution::Normal => {
            // Odd multiples of 2^-24 in (-1, 1): never the ends, where the inverse is infinite.
            let odd = ((bits >> 9) * 2 + 1).convert(Scalar::F32) * (1.0 / 8_388_608.0) - 1.0;
            inverse_erf(odd) * std::f64::consts::SQRT_2
        }
    }
}

impl Family for Random {
    fn name(&self) -> String {
        format!("random_{:?}", self.distribution).to_lowercase()
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let [count, low, high, sequence] = std::array::from_fn(|_| k.parameter(Type::U32));
        let y = k.buffer("y", Type::vec4(Scalar::F32), Access::Write);
        let quad = k.global_index();
        k.when((quad * 4).lt(count), || {
            let [a, b] = threefry([low, high], [quad * 2, sequence]);
            let [c, d] = threefry([low, high], [quad * 2 + 1, sequence]);
            y.store(quad, k.vector(&[a, b, c, d].map(|bits| sample(self.distribution, bits))));
        });
    }

    fn samples() -> Vec<Self> {
        [Distribution::Uniform, Distribution::Normal].map(|distribution| Random { distribution }).into()
    }
}
