//! Generators of inputs, which are the same in every run and on every device.

use super::numbers::{limits, round, wrap};
use super::{ArrayD, array, threefry::threefry};
use marquetry::DType;

/// The distribution of the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Domain {
    /// Normally distributed, mixed with zeros, tiny numbers, large numbers and (for integers) extreme numbers.
    Special,
    /// As `Special`, without numbers whose product leaves the dtype: for operations that sum.
    Normal,
    /// Whole numbers from -8 to 8 (from 0 to 8 if unsigned): their sums and products are exact.
    Small,
    /// Floats near 1, or integers as in `Normal`: for products.
    Factor,
    /// As `Small`, but mostly zeros.
    Sparse,
    /// Angles in the range for which `sin` and `cos` promise their accuracy.
    Angle,
}

/// A generator of inputs.
pub struct Inputs {
    key: [u32; 2],
    drawn: u32,
}

impl Inputs {
    /// A generator seeded with a name.
    pub fn new(name: &str) -> Self {
        // FNV-1a
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        Inputs { key: [hash as u32, (hash >> 32) as u32], drawn: 0 }
    }

    fn words(&mut self) -> [u32; 2] {
        self.drawn += 1;
        threefry(self.key, [self.drawn, 0])
    }

    /// Returns a seed for another generator.
    pub fn seed(&mut self) -> [u8; 32] {
        std::array::from_fn(|_| self.words()[0] as u8)
    }

    /// A number in `[0, 1)`.
    pub fn uniform(&mut self) -> f64 {
        let [a, b] = self.words();
        ((u64::from(a) << 21) ^ u64::from(b >> 11)) as f64 / 2f64.powi(53)
    }

    /// A whole number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.uniform() * end as f64) as usize
    }

    /// A normally distributed number (G. Box and M. Muller, 1958).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    fn number(&mut self, dtype: DType, domain: Domain) -> f64 {
        match domain {
            _ if dtype == DType::Bool => self.below(2) as f64,
            Domain::Small => {
                let low = limits(dtype).0.max(-8.0);
                (self.uniform() * (9.0 - low)).floor() + low
            }
            Domain::Sparse if self.below(24) > 0 => 0.0,
            Domain::Sparse => 1.0 + self.below(8) as f64,
            Domain::Factor if dtype.is_float() => round((self.normal() * 0.1).exp(), dtype),
            Domain::Angle => {
                round(self.normal() * 10f64.powi(self.below(4) as i32).min(2500.0), dtype).clamp(-9984.0, 9984.0)
            }
            Domain::Special | Domain::Normal if dtype.is_float() => round(self.normal() * 3.0, dtype),
            Domain::Special | Domain::Normal | Domain::Factor => wrap((self.normal() * 100.0) as i64, dtype),
        }
    }

    /// An array of numbers.
    pub fn array(&mut self, shape: &[usize], dtype: DType, domain: Domain) -> ArrayD<f64> {
        let mut numbers: Vec<f64> = (0..shape.iter().product()).map(|_| self.number(dtype, domain)).collect();
        let strewn = match domain {
            Domain::Special => finite_specials(dtype),
            Domain::Normal if dtype.is_float() => vec![0.0, -0.0],
            Domain::Angle => vec![0.0, -0.0, 9984.0, -9984.0, round(std::f64::consts::PI, dtype)],
            Domain::Normal | Domain::Small | Domain::Factor | Domain::Sparse => Vec::new(),
        };
        // Only if they stay a minority.
        if numbers.len() > 2 * strewn.len() {
            for special in strewn {
                let place = self.below(numbers.len());
                numbers[place] = special;
            }
        }
        array(shape, numbers)
    }

    /// Numbers of all magnitudes and both signs. None is subnormal in `f64`, or for other dtypes in `f32`.
    pub fn sweep(&mut self, count: usize, dtype: DType, largest: f64) -> ArrayD<f64> {
        let low = match dtype {
            DType::F16 => 2f64.powi(-24),
            DType::F64 => f64::MIN_POSITIVE,
            _ => f32::MIN_POSITIVE.into(),
        };
        let high = limits(dtype).1.min(largest);
        let numbers = (0..count).map(|_| {
            let magnitude = (low.ln() + self.uniform() * (high.ln() - low.ln())).exp().clamp(low, high);
            round(if self.below(2) == 0 { magnitude } else { -magnitude }, dtype)
        });
        array(&[count], numbers.collect())
    }
}

/// Numbers at the edges of a dtype, all finite. None is subnormal as `f32`.
pub fn finite_specials(dtype: DType) -> Vec<f64> {
    let (low, high) = limits(dtype);
    let numbers = match dtype {
        DType::F32 | DType::BF16 | DType::F64 => {
            vec![0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-30, -1e-30, 1e30, -1e30, 88.0, -88.0]
        }
        DType::F16 => vec![0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 2f64.powi(-24), -6e-5, 6e4, -6e4, 11.0],
        DType::I32 => vec![0.0, 1.0, -1.0, low, low + 1.0, high, 65536.0],
        DType::I8 => vec![0.0, 1.0, -1.0, low, low + 1.0, high, 64.0],
        // The product of any two is exact as a double.
        DType::I64 => vec![0.0, 1.0, -1.0, -67_108_865.0, 67_108_863.0, 4_294_967.0, -65536.0],
        DType::Bool => vec![0.0, 1.0],
        DType::U32 | DType::U8 => vec![0.0, 1.0, high, high - 1.0, (high + 1.0) / 2.0],
        other => panic!("the reference does not know {other}"),
    };
    numbers.into_iter().map(|x| round(x, dtype)).collect()
}

/// The finite special numbers, and for floats also the limits, infinities and NaN.
pub fn specials(dtype: DType) -> Vec<f64> {
    let mut numbers = finite_specials(dtype);
    if dtype.is_float() {
        let (low, high) = limits(dtype);
        let tiny = match dtype {
            DType::F16 => 2f64.powi(-14),
            DType::F64 => f64::MIN_POSITIVE,
            _ => f32::MIN_POSITIVE.into(),
        };
        if dtype == DType::F64 {
            numbers.extend([1e300, -1e300, 1e-300, 1e150, -709.0, 709.5, 1.0 + f64::EPSILON, 2f64.powi(53) - 1.0]);
        }
        numbers.extend([low, high, tiny, -tiny, f64::INFINITY, f64::NEG_INFINITY, f64::NAN]);
    }
    numbers
}
