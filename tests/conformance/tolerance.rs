//! How far each operation may be from the exact result, and why.
//!
//! The lower bound is the exact result minus the allowed error, and the upper bound is their sum. Both are rounded to
//! the result's dtype. A result passes if it is within the bounds.
//!
//! - `f16` results are computed in `f32`, so only the last rounding may be to `f16`.
//! - Integers must be exact.
//! - A result may be infinite only if a number within the allowed error overflows. NaN must be NaN.
//! - The sign of a zero counts only for operations that move numbers without computing: devices may ignore it in
//!   arithmetic. For the same reason, subnormal results may be flushed to zero, except in `f16`.
//! - `f64` results are compared in ulps of `f64`. One more ulp is allowed because the reference is not more precise.

use crate::cases;
use marquetry::DType;
use std::fmt;

/// The allowed error, as a sum of three parts.
pub struct Tolerance {
    /// In ulps of an `f32` at the exact result.
    pub ulp: f64,
    /// An absolute error. [`DOUBLES`] states others for `f64`.
    pub absolute: f64,
    /// A multiple of the case's own scale, such as the sum of the magnitudes of what was summed.
    pub of_scale: f64,
    /// True if the operation only moves numbers, so that signed zeros and subnormal numbers must be kept.
    pub moves: bool,
    pub reason: &'static str,
}

impl fmt::Display for Tolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ulp + {:e} + {:e} of the scale: {}", self.ulp, self.absolute, self.of_scale, self.reason)
    }
}

/// Half an ulp of an `f32` at 1: the relative error of one rounding.
pub const EPS: f64 = 1.0 / 16_777_216.0;

pub const EXACT: Tolerance = Tolerance { ulp: 0.0, absolute: 0.0, of_scale: 0.0, moves: false, reason: "" };

/// Operations with their tolerances.
pub type Table = &'static [(&'static [&'static str], Tolerance)];

/// Every table. A family of operations may have its own beside its cases.
pub fn tables() -> impl Iterator<Item = Table> {
    std::iter::once(TABLE).chain(cases::TOLERANCES.iter().copied())
}

const TABLE: Table = &[
    (
        &[
            "to_vec",
            "to_vec_async",
            "to_vec1",
            "to_vec2",
            "to_vec3",
            "to_scalar",
            "to_device",
            "reshape",
            "flatten",
            "transpose",
            "permute",
            "t",
            "narrow",
            "slice",
            "i",
            "unfold",
            "diagonal",
            "as_strided",
            "broadcast_to",
            "squeeze",
            "unsqueeze",
            "contiguous",
            "views",
            "index_select",
            "embedding",
            "cat",
            "slice_assign",
            "to_memory",
            "stack",
            "where_cond",
            "to_dtype",
            "full",
            "full_like",
            "zeros",
            "zeros_like",
            "ones",
            "ones_like",
            "new",
            "from_slice",
            "from_vec",
        ],
        Tolerance { moves: true, reason: "nothing is computed", ..EXACT },
    ),
    (
        &[
            "neg", "abs", "sign", "relu", "floor", "ceil", "round", "trunc", "maximum", "minimum", "min", "max",
            "clamp", "relu6", "fmod",
        ],
        Tolerance { reason: "the result is a number of the dtype", ..EXACT },
    ),
    (
        &[
            "eq",
            "ne",
            "lt",
            "le",
            "gt",
            "ge",
            "argmax",
            "is_nan",
            "is_inf",
            "is_finite",
            "logical_not",
            "logical_and",
            "logical_or",
            "logical_xor",
            "bitwise_not",
            "bitwise_and",
            "bitwise_or",
            "bitwise_xor",
            "shl",
            "shr",
        ],
        Tolerance { reason: "the result is an integer", ..EXACT },
    ),
    (&["add", "sub", "mul", "sqr"], Tolerance { reason: "Vulkan and WebGPU round these correctly", ..EXACT }),
    (
        &["div", "recip", "sqrt", "rsqrt"],
        Tolerance {
            ulp: 3.0,
            reason: "Vulkan and WebGPU allow a division 2.5 ulp; square roots use divisions",
            ..EXACT
        },
    ),
    (
        &["exp", "exp2", "log", "log2", "sigmoid"],
        Tolerance { ulp: 3.0, reason: "polynomials within 2 ulp, a sum or a division", ..EXACT },
    ),
    (&["tanh", "erf"], Tolerance { ulp: 4.0, reason: "polynomials within 2 ulp, and a division around them", ..EXACT }),
    (&["gelu"], Tolerance { ulp: 5.0, reason: "a division, two polynomials, four products, each rounded", ..EXACT }),
    (
        &[
            "expm1", "log1p", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "asinh", "acosh", "atanh",
            "softplus", "elu", "celu", "selu",
        ],
        Tolerance { ulp: 5.0, reason: "a polynomial, a division or square root before it, a sum after it", ..EXACT },
    ),
    (&["pow"], Tolerance { ulp: 16.0, reason: "the exponent multiplies the error of the logarithm", ..EXACT }),
    (&["rem"], Tolerance { ulp: 0.5, reason: "exact, and one addition", ..EXACT }),
    (&["leaky_relu"], Tolerance { ulp: 0.5, reason: "one product", ..EXACT }),
    (
        &["softsign", "hardsigmoid", "hardswish"],
        Tolerance { ulp: 4.0, reason: "a sum, a division within 2.5 ulp, a product", ..EXACT },
    ),
    (
        &["mish"],
        Tolerance {
            ulp: 10.0,
            absolute: 1.03e-36,
            reason: "exp, a sum, two products, a division; below -87.34, where exp(x) is subnormal, it may be 0: 87.34 2^-126",
            ..EXACT
        },
    ),
    (
        &["silu"],
        Tolerance {
            ulp: 4.0,
            // 89 / f32::MAX, rounded up.
            absolute: 2.7e-37,
            reason: "as sigmoid; below -88.7, where exp(-x) overflows, 0 stands for x exp(x)",
            ..EXACT
        },
    ),
    (
        &["sin", "cos"],
        Tolerance { ulp: 4.0, reason: "a reduction of the angle that keeps its digits, and a polynomial", ..EXACT },
    ),
    (
        &["gelu_tanh"],
        Tolerance {
            ulp: 6.0,
            of_scale: 4.0 * EPS,
            reason: "x times (1 + a function near -1): the rounding of that function remains, times x (the scale)",
            ..EXACT
        },
    ),
    (
        &["affine"],
        Tolerance {
            ulp: 0.5,
            of_scale: EPS,
            reason: "the product (the scale) may be rounded before the addition, or not",
            ..EXACT
        },
    ),
    (
        &["arange", "arange_step"],
        Tolerance {
            ulp: 0.5,
            of_scale: EPS,
            reason: "start + i * step with the product (the scale) rounded, or not",
            ..EXACT
        },
    ),
    (
        &["matmul", "matmul_f32"],
        Tolerance {
            ulp: 0.5,
            of_scale: EPS,
            reason: "k products and additions, within eps of the sum of magnitudes",
            ..EXACT
        },
    ),
    (
        &["softmax"],
        Tolerance {
            ulp: 8.0,
            of_scale: EPS,
            reason: "exp twice and a division; the rounding of the exponent and of the sum (the scale)",
            ..EXACT
        },
    ),
    (
        &["layer_norm"],
        Tolerance {
            ulp: 8.0,
            of_scale: 2.0 * EPS,
            reason: "mean and variance are rounded sums (the scale), then a square root and a division",
            ..EXACT
        },
    ),
    (
        &["fused"],
        Tolerance {
            ulp: 8.0,
            of_scale: EPS,
            reason: "a chain of functions; the scale of the case says how errors add up",
            ..EXACT
        },
    ),
];

/// The `f64` functions with algorithms of their own, in ulps of `f64`.
pub const DOUBLES: Table = &[
    (
        &[
            "exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "asin", "acos", "atan", "atan2", "sinh",
            "cosh", "tanh", "asinh", "acosh", "atanh", "erf",
        ],
        Tolerance { ulp: 3.0, reason: "a polynomial, two roundings around it, a division or square root", ..EXACT },
    ),
    (
        &["tan", "pow", "sigmoid", "softplus", "elu", "celu", "selu", "gelu"],
        Tolerance { ulp: 4.0, reason: "two such functions, or one and a division or product", ..EXACT },
    ),
    (
        &["silu"],
        Tolerance {
            ulp: 4.0,
            // 710 / f64::MAX, rounded up.
            absolute: 4e-306,
            reason: "as sigmoid; below -709.7, where exp(-x) overflows, 0 stands for x exp(x)",
            ..EXACT
        },
    ),
    (
        &["mish"],
        Tolerance {
            ulp: 5.0,
            // 708.4 2^-1022, rounded up.
            absolute: 1.6e-305,
            reason: "exp, a sum, two products, a division; below -708.4, where exp(x) is subnormal, it may be 0",
            ..EXACT
        },
    ),
];

/// Returns the tolerance of an operation with a result of this dtype.
pub fn of(op: &str, dtype: DType) -> &'static Tolerance {
    let doubles = std::iter::once(DOUBLES).filter(|_| dtype == DType::F64);
    let entry = doubles.chain(tables()).flatten().find(|(ops, _)| ops.contains(&op));
    &entry.unwrap_or_else(|| panic!("no tolerance is stated for `{op}`")).1
}
