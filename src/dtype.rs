//! Element types: [`DType`] at run time, [`Element`] at compile time.

use half::{bf16, f16};
use std::fmt;

/// The type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DType {
    /// Truth value, as comparisons give it: a byte that is 0 or 1. There is no arithmetic on it, but logic.
    Bool,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer, two's complement.
    I8,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 32-bit integer, two's complement.
    I32,
    /// IEEE 754 half precision. Arithmetic is done in `f32` and rounded to nearest even.
    F16,
    /// The upper half of an `f32`: its range with 8 bits of precision. Arithmetic is done in `f32` and rounded to
    /// nearest even.
    BF16,
    /// IEEE 754 single precision.
    F32,
}

impl DType {
    /// Every dtype.
    pub const ALL: [DType; 8] =
        [DType::Bool, DType::U8, DType::I8, DType::U32, DType::I32, DType::F16, DType::BF16, DType::F32];

    /// The size of an element in bytes.
    ///
    /// ```
    /// assert_eq!(marquetry::DType::F16.size_in_bytes(), 2);
    /// ```
    pub const fn size_in_bytes(self) -> usize {
        match self {
            DType::Bool | DType::U8 | DType::I8 => 1,
            DType::F16 | DType::BF16 => 2,
            DType::U32 | DType::I32 | DType::F32 => 4,
        }
    }

    /// Whether this is a floating-point type.
    ///
    /// ```
    /// use marquetry::DType;
    /// assert!(DType::F16.is_float() && !DType::I32.is_float());
    /// ```
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32)
    }

    /// Whether this is an integer type; truth values are none.
    ///
    /// ```
    /// use marquetry::DType;
    /// assert!(DType::I8.is_integer() && !DType::Bool.is_integer());
    /// ```
    pub const fn is_integer(self) -> bool {
        !self.is_float() && !matches!(self, DType::Bool)
    }

    /// The dtype of 32 bits or more that has all its numbers: what kernels write that do not pack.
    pub(crate) const fn widened(self) -> DType {
        match self {
            DType::Bool | DType::U8 | DType::U32 => DType::U32,
            DType::I8 | DType::I32 => DType::I32,
            DType::F16 | DType::BF16 | DType::F32 => DType::F32,
        }
    }

    /// The dtype of a sum: floats stay what they are, integers and truth values are widened, as sums of them seldom fit.
    pub(crate) const fn summed(self) -> DType {
        if self.is_float() { self } else { self.widened() }
    }

    /// The name as it is written in errors and displays: `f32`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::U8 => "u8",
            DType::I8 => "i8",
            DType::U32 => "u32",
            DType::I32 => "i32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

mod sealed {
    pub trait Sealed: Sized {
        /// Elements from a tensor's memory, which may hold any bytes.
        fn from_bytes(bytes: &[u8]) -> Vec<Self>;
        /// The bits of the value, widened to the type that kernels compute in.
        fn to_bits(self) -> u64;
    }
}

/// A Rust type that is the element of a tensor: `f32`, [`half::f16`], [`half::bf16`], `i32`, `u32`, `i8`, `u8` or `bool`.
pub trait Element: bytemuck::NoUninit + Send + Sync + PartialOrd + fmt::Debug + sealed::Sealed {
    /// The dtype of a tensor of `Self`.
    const DTYPE: DType;
    /// The value as a double, exact for every element type.
    fn to_f64(self) -> f64;
}

macro_rules! element {
    ($($ty:ty => $dtype:ident, $from_bytes:expr, $to_bits:expr;)*) => {$(
        impl sealed::Sealed for $ty {
            fn from_bytes(bytes: &[u8]) -> Vec<Self> {
                $from_bytes(bytes)
            }
            fn to_bits(self) -> u64 {
                $to_bits(self).into()
            }
        }

        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
        }
    )*};
}

element! {
    // Whatever a byte holds, no truth value is made of it that is neither true nor false.
    bool => Bool, |bytes: &[u8]| bytes.iter().map(|&byte| byte != 0).collect(), u32::from;
    u8 => U8, <[u8]>::to_vec, u32::from;
    i8 => I8, bytemuck::pod_collect_to_vec, |x| i32::cast_unsigned(i32::from(x));
    u32 => U32, bytemuck::pod_collect_to_vec, u32::from;
    i32 => I32, bytemuck::pod_collect_to_vec, i32::cast_unsigned;
    f16 => F16, bytemuck::pod_collect_to_vec, |x| f32::from(x).to_bits();
    bf16 => BF16, bytemuck::pod_collect_to_vec, |x| f32::from(x).to_bits();
    f32 => F32, bytemuck::pod_collect_to_vec, f32::to_bits;
}
