//! Spacing, rounding and wrapping of the numbers of each dtype.

use half::bf16;
use marquetry::DType;

/// Returns the sum to a double's full precision: the rounding error of each addition is summed separately (A. Neumaier,
/// "Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen", 1974).
pub fn sum(numbers: impl IntoIterator<Item = f64>) -> f64 {
    let (mut sum, mut lost) = (0.0f64, 0.0);
    for x in numbers {
        let next = sum + x;
        lost += if sum.abs() >= x.abs() { (sum - next) + x } else { (x - next) + sum };
        sum = next;
    }
    if sum.is_finite() { sum + lost } else { sum }
}

/// The distance between neighbouring floats around `x`, which must be finite.
pub fn ulp(x: f64, dtype: DType) -> f64 {
    let (fraction_bits, smallest_exponent) = match dtype {
        DType::F16 => (10, -14),
        DType::BF16 => (7, -126),
        DType::F64 => (52, -1022),
        _ => (23, -126),
    };
    let exponent = ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    // Multiply two powers: the smallest power itself is subnormal.
    2f64.powi(exponent.max(smallest_exponent)) * 2f64.powi(-fraction_bits)
}

/// Rounds to the nearest number of a float dtype, ties to even. If `x` is too large, the result is infinite. Other
/// dtypes return `x`.
pub fn round(x: f64, dtype: DType) -> f64 {
    let too_large = match dtype {
        DType::F16 => 65520.0,
        DType::BF16 => f64::from(bf16::MAX) + 2f64.powi(119),
        // The largest number plus half an ulp: a tie, which rounds up to infinity.
        DType::F32 => f64::from(f32::MAX) + 2f64.powi(103),
        _ => return x,
    };
    if x.is_nan() {
        x
    } else if x.abs() >= too_large {
        f64::INFINITY.copysign(x)
    } else {
        let quantum = ulp(x, dtype);
        ((x / quantum).round_ties_even() * quantum).copysign(x)
    }
}

/// Truncates an integer to the bits of a dtype.
pub fn wrap(x: i64, dtype: DType) -> f64 {
    match dtype {
        DType::Bool => f64::from(x != 0),
        DType::U8 => f64::from(x as u8),
        DType::I8 => f64::from(x as i8),
        DType::U32 => f64::from(x as u32),
        DType::I32 => f64::from(x as i32),
        DType::I64 => x as f64,
        _ if dtype.is_float() => x as f64,
        other => panic!("the reference does not know {other}"),
    }
}

/// The dtype of a sum: wider for 8-bit integers and Booleans.
pub fn summed(dtype: DType) -> DType {
    match dtype {
        DType::Bool | DType::U8 => DType::U32,
        DType::I8 => DType::I32,
        _ => dtype,
    }
}

/// The smallest and largest finite number.
pub fn limits(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::Bool => (0.0, 1.0),
        DType::U8 => (0.0, 255.0),
        DType::I8 => (-128.0, 127.0),
        DType::U32 => (0.0, f64::from(u32::MAX)),
        DType::I32 => (f64::from(i32::MIN), f64::from(i32::MAX)),
        DType::F16 => (-65504.0, 65504.0),
        DType::BF16 => (f64::from(bf16::MIN), f64::from(bf16::MAX)),
        // As a double, `i64::MAX` rounds up to 2^63.
        DType::I64 => (i64::MIN as f64, i64::MAX as f64),
        DType::F32 => (f64::from(f32::MIN), f64::from(f32::MAX)),
        DType::F64 => (f64::MIN, f64::MAX),
        other => panic!("the reference does not know {other}"),
    }
}

/// Converts as Rust's `as` does.
pub fn cast(x: f64, from: DType, to: DType) -> f64 {
    match (from.is_float(), to.is_float()) {
        _ if to == DType::Bool => f64::from(x != 0.0),
        (_, true) => round(x, to),
        (true, false) if x.is_nan() => 0.0,
        (true, false) => x.trunc().clamp(limits(to).0, limits(to).1) + 0.0,
        (false, false) => wrap(x as i64, to),
    }
}
