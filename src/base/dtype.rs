//! Element types: [`DType`] at run time, [`Element`] at compile time.

use crate::base::features::Features;
use crate::base::number::Number;
use half::{bf16, f16};
use std::fmt;

/// The type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DType {
    /// Truth value, the result of comparisons: a byte that is 0 or 1. It takes logic, but no arithmetic.
    Bool,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer, two's complement.
    I8,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 32-bit integer, two's complement.
    I32,
    /// Signed 64-bit integer, two's complement. Devices without [`Features::i64`](crate::Features::i64) can store,
    /// view, copy and sort it and take it as indexes, but not compute with it.
    I64,
    /// IEEE 754 half precision. Arithmetic is done in `f32` and rounded to nearest even.
    F16,
    /// The upper half of an `f32`: its range with 8 bits of precision. Arithmetic is done in `f32` and rounded to
    /// nearest even.
    BF16,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision. Devices without [`Features::f64`](crate::Features::f64) can store, view, copy and
    /// sort it, but not compute with it.
    F64,
}

impl DType {
    /// Every dtype.
    pub const ALL: [DType; 10] = [
        DType::Bool,
        DType::U8,
        DType::I8,
        DType::U32,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];

    /// Returns the size of an element in bytes.
    ///
    /// ```
    /// assert_eq!(marquetry::DType::F16.size_in_bytes(), 2);
    /// ```
    pub const fn size_in_bytes(self) -> usize {
        match self {
            DType::Bool | DType::U8 | DType::I8 => 1,
            DType::F16 | DType::BF16 => 2,
            DType::U32 | DType::I32 | DType::F32 => 4,
            DType::I64 | DType::F64 => 8,
        }
    }

    /// Whether this is a floating-point type.
    ///
    /// ```
    /// use marquetry::DType;
    /// assert!(DType::F16.is_float() && !DType::I32.is_float());
    /// ```
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }

    /// Whether this is a floating-point type that kernels compute in `f32`.
    pub(crate) const fn is_single_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32)
    }

    /// Whether this is an integer type. Truth values are not.
    ///
    /// ```
    /// use marquetry::DType;
    /// assert!(DType::I8.is_integer() && !DType::Bool.is_integer());
    /// ```
    pub const fn is_integer(self) -> bool {
        !self.is_float() && !matches!(self, DType::Bool)
    }

    /// Returns the dtype of at least 32 bits that holds all numbers of this one. Kernels that do not pack write this
    /// dtype.
    pub(crate) const fn widened(self) -> DType {
        match self {
            DType::Bool | DType::U8 | DType::U32 => DType::U32,
            DType::I8 | DType::I32 => DType::I32,
            DType::F16 | DType::BF16 | DType::F32 => DType::F32,
            DType::I64 | DType::F64 => self,
        }
    }

    /// Returns the dtype of a sum. Floats stay what they are. Integers and truth values are widened, because their sums
    /// seldom fit.
    pub(crate) const fn summed(self) -> DType {
        if self.is_float() { self } else { self.widened() }
    }

    /// Returns the dtype of the parts that kernels move if they do not compute. Elements of 64 bits move as words, so
    /// the device needs no 64-bit types.
    pub(crate) const fn moved(self) -> DType {
        if self.size_in_bytes() == 8 { DType::U32 } else { self }
    }

    /// Returns how many parts of the dtype [`moved`](Self::moved) make one element.
    pub(crate) const fn parts(self) -> usize {
        if self.size_in_bytes() == 8 { 2 } else { 1 }
    }

    /// Returns the features that a device must have to compute with this dtype.
    pub(crate) fn requires(self) -> Features {
        Features {
            // Kernels receive doubles, and test them for NaN, as 64-bit integers.
            i64: matches!(self, DType::I64 | DType::F64),
            f64: self == DType::F64,
            ..Features::default()
        }
    }

    /// Returns the name in errors and displays: `f32`.
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
            DType::I64 => "i64",
            DType::F64 => "f64",
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
        /// Converts a tensor's memory, which may hold any bytes, to elements.
        fn from_bytes(bytes: &[u8]) -> Vec<Self>;
        /// Returns the bits of the value, widened to the type that kernels compute in.
        fn to_bits(self) -> u64;
        /// Returns as many zeros. The system gives them their memory when they are first touched.
        fn zeros(count: usize) -> Vec<Self>;
        /// Returns the memory of elements, to be filled with any bytes. `None` for `bool`, which not all bytes are.
        fn bytes_mut(elements: &mut [Self]) -> Option<&mut [u8]>;
    }
}

/// A Rust type that is the element of a tensor: `f64`, `f32`, [`half::f16`], [`half::bf16`], `i64`, `i32`, `u32`, `i8`,
/// `u8` or `bool`.
pub trait Element: bytemuck::NoUninit + Send + Sync + PartialOrd + fmt::Debug + Into<Number> + sealed::Sealed {
    /// The dtype of a tensor of `Self`.
    const DTYPE: DType;
    /// Converts the value to a double. An `i64` beyond 2^53 is rounded to the nearest; everything else is exact.
    /// [`Number`] is always exact.
    fn to_f64(self) -> f64;
}

/// Returns the memory of numbers.
fn filled<T: bytemuck::Pod>(elements: &mut [T]) -> Option<&mut [u8]> {
    Some(bytemuck::cast_slice_mut(elements))
}

macro_rules! element {
    ($($ty:ty => $dtype:ident, $from_bytes:expr, $bytes_mut:expr, $to_bits:expr, $to_f64:expr;)*) => {$(
        impl sealed::Sealed for $ty {
            fn from_bytes(bytes: &[u8]) -> Vec<Self> {
                $from_bytes(bytes)
            }
            fn to_bits(self) -> u64 {
                u64::from($to_bits(self))
            }
            fn zeros(count: usize) -> Vec<Self> {
                bytemuck::zeroed_vec(count)
            }
            fn bytes_mut(elements: &mut [Self]) -> Option<&mut [u8]> {
                $bytes_mut(elements)
            }
        }

        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;
            fn to_f64(self) -> f64 {
                $to_f64(self)
            }
        }
    )*};
}

element! {
    // A byte may hold anything, but a `bool` must be 0 or 1.
    bool => Bool, |bytes: &[u8]| bytes.iter().map(|&byte| byte != 0).collect(), |_| None, u32::from, f64::from;
    u8 => U8, <[u8]>::to_vec, Some, u32::from, f64::from;
    i8 => I8, bytemuck::pod_collect_to_vec, filled, |x| i32::cast_unsigned(i32::from(x)), f64::from;
    u32 => U32, bytemuck::pod_collect_to_vec, filled, u32::from, f64::from;
    i32 => I32, bytemuck::pod_collect_to_vec, filled, i32::cast_unsigned, f64::from;
    i64 => I64, bytemuck::pod_collect_to_vec, filled, i64::cast_unsigned, |x| x as f64;
    f16 => F16, bytemuck::pod_collect_to_vec, filled, |x| f32::from(x).to_bits(), f64::from;
    bf16 => BF16, bytemuck::pod_collect_to_vec, filled, |x| f32::from(x).to_bits(), f64::from;
    f32 => F32, bytemuck::pod_collect_to_vec, filled, f32::to_bits, f64::from;
    f64 => F64, bytemuck::pod_collect_to_vec, filled, f64::to_bits, f64::from;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_device_lacks_has_a_name() {
        let missing = |dtype: DType, available| dtype.requires().missing_from(&available);
        let none = Features::default();
        let integers = Features { i64: true, ..none };
        let both = Features { f64: true, ..integers };
        for dtype in DType::ALL {
            let (without, with_integers) = match dtype {
                DType::I64 => (Some("64-bit integers in kernels"), None),
                DType::F64 => (Some("64-bit floats in kernels"), Some("64-bit floats in kernels")),
                _ => (None, None),
            };
            assert_eq!((missing(dtype, none), missing(dtype, integers)), (without, with_integers), "{dtype}");
            assert_eq!(missing(dtype, both), None, "{dtype}");
        }
    }

    #[test]
    fn bytes_make_no_truth_value_that_is_neither() {
        use sealed::Sealed;
        assert_eq!(bool::from_bytes(&[0, 1, 2, 255]), [false, true, true, true]);
    }
}
