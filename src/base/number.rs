//! Numbers of any type, exact until a dtype takes them.

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use half::{bf16, f16};
use std::cmp::Ordering;
use std::fmt;

/// A number for a tensor of any dtype. Integers stay integers.
///
/// A tensor converts it to its own dtype. A float dtype rounds it to the nearest, once. An integer dtype must hold it:
/// 2.0 is 2, but 0.5 or a number out of range is an [`Error::InvalidArgument`]. `bool` holds 0 and 1.
///
/// ```
/// # use marquetry::{Device, Number, Tensor};
/// # let device = Device::best()?;
/// let x = Tensor::new([0i32, 1], &device)?;
/// assert_eq!(x.add(i32::MAX - 1)?.to_vec::<i32>()?, [i32::MAX - 1, i32::MAX]);
/// assert!(x.add(0.5).is_err() && x.add(u64::MAX).is_err());
/// assert_eq!(Number::from(2u8), Number::Integer(2));
/// # Ok::<(), marquetry::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// A whole number.
    Integer(i128),
    /// A number of a float type.
    Float(f64),
}

macro_rules! from {
    ($variant:ident: $($number:ty),+) => {$(
        impl From<$number> for Number {
            fn from(number: $number) -> Self {
                Number::$variant(number.into())
            }
        }
    )+};
}

from!(Integer: bool, u8, i8, u16, i16, u32, i32, u64, i64);
from!(Float: f16, bf16, f32, f64);

impl From<usize> for Number {
    fn from(number: usize) -> Self {
        Number::Integer(number as i128)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Integer(number) => number.fmt(f),
            // `Debug` writes an exponent instead of hundreds of digits.
            Number::Float(number) => write!(f, "{number:?}"),
        }
    }
}

impl Number {
    /// Returns the bits of the number as an element of `dtype`, widened to the type that kernels compute in.
    pub(crate) fn bits(self, dtype: DType, op: &'static str) -> Result<u64> {
        Ok(match dtype {
            DType::F64 => self.to_f64().to_bits(),
            DType::F32 => self.to_f32().to_bits().into(),
            DType::F16 => f32::from(f16::from_f32(self.to_odd_f32())).to_bits().into(),
            DType::BF16 => f32::from(bf16::from_f32(self.to_odd_f32())).to_bits().into(),
            DType::I64 => self.whole(dtype, op)? as u64,
            DType::Bool | DType::U8 | DType::I8 | DType::U32 | DType::I32 => (self.whole(dtype, op)? as u32).into(),
        })
    }

    /// Returns the whole number. The integer dtype must hold it.
    fn whole(self, dtype: DType, op: &'static str) -> Result<i128> {
        let whole = match self {
            Number::Integer(number) => Some(number),
            // If the cast saturates, the number is beyond every dtype.
            Number::Float(number) => (number.fract() == 0.0).then_some(number as i128),
        };
        let (least, most) = whole_numbers(dtype);
        whole.filter(|number| (least..=most).contains(number)).ok_or_else(|| {
            let message = format!(
                "{dtype} holds whole numbers from {least} to {most}, not {self}; give another number, \
                 or convert the tensor with `to_dtype` first"
            );
            Error::InvalidArgument { op, message }
        })
    }

    /// Returns the nearest double.
    pub(crate) fn to_f64(self) -> f64 {
        match self {
            Number::Integer(number) => number as f64,
            Number::Float(number) => number,
        }
    }

    fn to_f32(self) -> f32 {
        match self {
            Number::Integer(number) => number as f32,
            Number::Float(number) => number as f32,
        }
    }

    /// Returns an `f32` that rounds to fewer bits as the number itself does. If the number is not an `f32`, this is the
    /// neighbour whose last bit is set (S. Boldo and G. Melquiond, "When double rounding is odd", 2005).
    fn to_odd_f32(self) -> f32 {
        let near = self.to_f32();
        let magnitude = match self {
            Number::Integer(number) => (near as i128).unsigned_abs().partial_cmp(&number.unsigned_abs()),
            Number::Float(number) => f64::from(near).abs().partial_cmp(&number.abs()),
        };
        let even = near.to_bits() & 1 == 0;
        match magnitude {
            Some(Ordering::Less) if even => f32::from_bits(near.to_bits() + 1),
            Some(Ordering::Greater) if even => f32::from_bits(near.to_bits() - 1),
            _ => near,
        }
    }
}

/// Returns the greatest common divisor.
pub(crate) fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a.abs() } else { gcd(b, a % b) }
}

/// Returns the least and the greatest number of an integer dtype.
fn whole_numbers(dtype: DType) -> (i128, i128) {
    match dtype {
        DType::Bool => (0, 1),
        DType::U8 => (0, u8::MAX.into()),
        DType::I8 => (i8::MIN.into(), i8::MAX.into()),
        DType::U32 => (0, u32::MAX.into()),
        DType::I32 => (i32::MIN.into(), i32::MAX.into()),
        DType::I64 => (i64::MIN.into(), i64::MAX.into()),
        // Float dtypes take every number and round it.
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => (i128::MIN, i128::MAX),
    }
}
