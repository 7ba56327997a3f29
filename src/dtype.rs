//! Element types: [`DType`] at run time, [`Element`] at compile time.

use half::f16;
use std::fmt;

/// The type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DType {
    /// Unsigned 8-bit integer; also the truth value of comparisons (0 or 1).
    U8,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 32-bit integer, two's complement.
    I32,
    /// IEEE 754 half precision. Arithmetic is done in `f32` and rounded to nearest even.
    F16,
    /// IEEE 754 single precision.
    F32,
}

impl DType {
    /// Every dtype.
    pub const ALL: [DType; 5] = [DType::U8, DType::U32, DType::I32, DType::F16, DType::F32];

    /// The size of an element in bytes.
    ///
    /// ```
    /// assert_eq!(marquetry::DType::F16.size_in_bytes(), 2);
    /// ```
    pub const fn size_in_bytes(self) -> usize {
        match self {
            DType::U8 => 1,
            DType::F16 => 2,
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
        matches!(self, DType::F16 | DType::F32)
    }

    /// The dtype of 32 bits or more that has all its numbers: what kernels write that do not pack, and what sums are.
    pub(crate) const fn widened(self) -> DType {
        match self {
            DType::U8 | DType::U32 => DType::U32,
            DType::I32 => DType::I32,
            DType::F16 | DType::F32 => DType::F32,
        }
    }

    /// The name as it is written in errors and displays: `f32`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::U8 => "u8",
            DType::U32 => "u32",
            DType::I32 => "i32",
            DType::F16 => "f16",
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
    pub trait Sealed {}
}

/// A Rust type that is the element of a tensor: `f32`, [`half::f16`], `i32`, `u32` or `u8`.
pub trait Element: bytemuck::Pod + Send + Sync + PartialOrd + fmt::Debug + sealed::Sealed {
    /// The dtype of a tensor of `Self`.
    const DTYPE: DType;
    /// The value as a double, exact for every element type.
    fn to_f64(self) -> f64;
    /// The bits of the value widened to the 32-bit type that kernels compute in.
    #[doc(hidden)]
    fn to_word(self) -> u32;
}

macro_rules! element {
    ($($ty:ty => $dtype:ident, $to_word:expr;)*) => {$(
        impl sealed::Sealed for $ty {}
        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            fn to_word(self) -> u32 {
                $to_word(self)
            }
        }
    )*};
}

element! {
    u8 => U8, u32::from;
    u32 => U32, u32::from;
    i32 => I32, i32::cast_unsigned;
    f16 => F16, |x: f16| f32::from(x).to_bits();
    f32 => F32, f32::to_bits;
}
