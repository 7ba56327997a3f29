//! The types of values in a kernel.

use crate::base::dtype::DType;
use std::fmt;

/// A component type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scalar {
    /// A truth value. It lives in registers only, never in memory.
    Bool,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer, and the word in which narrow types are packed.
    U32,
    /// Signed 64-bit integer; a kernel that uses it requires [`Features::i64`](crate::Features::i64).
    I64,
    /// Single-precision float.
    F32,
    /// Double-precision float; a kernel that uses it requires [`Features::f64`](crate::Features::f64).
    F64,
    /// Half-precision float; a kernel that uses it requires [`Features::f16`](crate::Features::f16).
    F16,
}

/// A scalar, or a vector of 2 or 4 lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Type {
    /// The type of each lane.
    pub scalar: Scalar,
    /// 1, 2 or 4.
    pub lanes: u32,
}

impl Type {
    /// A truth value.
    pub const BOOL: Type = Type { scalar: Scalar::Bool, lanes: 1 };
    /// A signed integer.
    pub const I32: Type = Type { scalar: Scalar::I32, lanes: 1 };
    /// An unsigned integer.
    pub const U32: Type = Type { scalar: Scalar::U32, lanes: 1 };
    /// A float.
    pub const F32: Type = Type { scalar: Scalar::F32, lanes: 1 };
    /// A 64-bit integer.
    pub const I64: Type = Type { scalar: Scalar::I64, lanes: 1 };
    /// A double-precision float.
    pub const F64: Type = Type { scalar: Scalar::F64, lanes: 1 };
    /// A half-precision float.
    pub const F16: Type = Type { scalar: Scalar::F16, lanes: 1 };

    /// A vector of two lanes.
    pub const fn vec2(scalar: Scalar) -> Type {
        Type { scalar, lanes: 2 }
    }

    /// A vector of four lanes.
    pub const fn vec4(scalar: Scalar) -> Type {
        Type { scalar, lanes: 4 }
    }

    /// Returns the type with as many lanes of another scalar.
    pub const fn with_scalar(self, scalar: Scalar) -> Type {
        Type { scalar, lanes: self.lanes }
    }

    /// Returns the type of one lane.
    pub const fn lane(self) -> Type {
        Type { scalar: self.scalar, lanes: 1 }
    }

    /// Returns the type in which each two lanes of 32 bits are one number of 64 bits. Other types stay as they are.
    pub(super) const fn in_pairs(self) -> Type {
        match (self.scalar, self.lanes) {
            (Scalar::U32 | Scalar::I32 | Scalar::F32, 2 | 4) => Type { scalar: Scalar::I64, lanes: self.lanes / 2 },
            _ => self,
        }
    }

    /// Whether the lanes are floats.
    pub const fn is_float(self) -> bool {
        matches!(self.scalar, Scalar::F32 | Scalar::F64 | Scalar::F16)
    }

    /// Whether the lanes are integers.
    pub const fn is_integer(self) -> bool {
        matches!(self.scalar, Scalar::I32 | Scalar::U32 | Scalar::I64)
    }

    /// Returns the integers that hold the bits of the lanes.
    pub(crate) const fn bits(self) -> Type {
        let wide = matches!(self.scalar, Scalar::I64 | Scalar::F64);
        self.with_scalar(if wide { Scalar::I64 } else { Scalar::U32 })
    }

    /// Returns how many fraction bits a float of 32 or 64 bits has, and the bias of its exponent.
    pub(crate) const fn float_format(self) -> (u32, u32) {
        if matches!(self.scalar, Scalar::F64) { (52, 1023) } else { (23, 127) }
    }

    /// Returns the dtype of a tensor whose elements are the lanes. A truth value uses the dtype of a word.
    pub(crate) const fn dtype(self) -> DType {
        match self.scalar {
            Scalar::Bool | Scalar::U32 => DType::U32,
            Scalar::I32 => DType::I32,
            Scalar::I64 => DType::I64,
            Scalar::F32 => DType::F32,
            Scalar::F64 => DType::F64,
            Scalar::F16 => DType::F16,
        }
    }

    /// Returns the size in memory.
    pub const fn size_in_bytes(self) -> u32 {
        let lane: u32 = match self.scalar {
            Scalar::F16 => 2,
            Scalar::I64 | Scalar::F64 => 8,
            Scalar::Bool | Scalar::I32 | Scalar::U32 | Scalar::F32 => 4,
        };
        lane.saturating_mul(self.lanes)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scalar = match self.scalar {
            Scalar::Bool => "bool",
            Scalar::I32 => "i32",
            Scalar::U32 => "u32",
            Scalar::I64 => "i64",
            Scalar::F32 => "f32",
            Scalar::F64 => "f64",
            Scalar::F16 => "f16",
        };
        match self.lanes {
            1 => f.write_str(scalar),
            n => write!(f, "vec{n}<{scalar}>"),
        }
    }
}

impl DType {
    /// Returns the type in which a kernel computes with elements of this dtype. Narrow ones are widened.
    pub(crate) const fn compute_scalar(self) -> Scalar {
        match self {
            DType::Bool | DType::U8 | DType::U32 => Scalar::U32,
            DType::I8 | DType::I32 => Scalar::I32,
            DType::I64 => Scalar::I64,
            DType::F16 | DType::BF16 | DType::F32 => Scalar::F32,
            DType::F64 => Scalar::F64,
        }
    }
}
