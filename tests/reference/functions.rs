//! Functions of one and two numbers.

use std::f64::consts::{FRAC_2_SQRT_PI, SQRT_2};

/// The square root of 2 minus `SQRT_2`, its nearest double.
const SQRT_2_REST: f64 = -9.667_293_313_452_913e-17;

pub fn sign(x: f64) -> f64 {
    if x.is_nan() || x == 0.0 { x } else { x.signum() }
}

pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub fn gelu(x: f64) -> f64 {
    // The product with `erfc` keeps the digits if the error function is near -1. There `erfc` is steep, so the rounding
    // error of the quotient `y` counts, multiplied by the slope.
    let y = -x / SQRT_2;
    let lost = (y.mul_add(-SQRT_2, -x) - y * SQRT_2_REST) / SQRT_2;
    let slope = FRAC_2_SQRT_PI * (-y * y).exp();
    let correction = if slope > 0.0 { slope * lost } else { 0.0 };
    x * 0.5 * (libm::erfc(y) - correction)
}

pub fn gelu_tanh(x: f64) -> f64 {
    // (1 + tanh(z)) / 2 = 1 / (1 + exp(-2 z))
    let z = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    x / (1.0 + (-2.0 * z).exp())
}

pub fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

pub fn mish(x: f64) -> f64 {
    x * softplus(x).tanh()
}

pub fn hardsigmoid(x: f64) -> f64 {
    ((x + 3.0) / 6.0).clamp(0.0, 1.0)
}

pub fn selu(x: f64) -> f64 {
    let (alpha, scale) = (1.6732632423543772848170429916717, 1.0507009873554804934193349852946);
    scale * if x < 0.0 { alpha * x.exp_m1() } else { x }
}

/// The larger number. NaN if either is NaN.
pub fn maximum(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

/// The smaller number. NaN if either is NaN.
pub fn minimum(a: f64, b: f64) -> f64 {
    -maximum(-a, -b)
}

/// Integer division towards zero. 0 if the divisor is 0.
pub fn integer_division(a: i64, b: i64) -> i64 {
    if b == 0 { 0 } else { a / b }
}

/// The inverse of the error function, by Newton's method.
pub fn inverse_erf(y: f64) -> f64 {
    let mut x = 0f64;
    for _ in 0..100 {
        // Near -1 and 1 the slope is tiny. Steps of at most a half do not overshoot.
        let slope = 2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp();
        let residual = if y < 0.0 { libm::erfc(-x) - (1.0 + y) } else { (1.0 - y) - libm::erfc(x) };
        x -= (residual / slope).clamp(-0.5, 0.5);
    }
    x
}

/// The remainder of division towards zero. The dividend if the divisor is 0.
pub fn integer_fmod(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { a % b }
}

/// The remainder, with the sign of the divisor.
pub fn remainder(a: f64, b: f64) -> f64 {
    let rest = a % b;
    if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
}

/// The integer remainder, with the sign of the divisor. The dividend if the divisor is 0.
pub fn integer_remainder(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { a - (a as f64 / b as f64).floor() as i64 * b }
}

/// The power modulo 2^64. A negative exponent truncates towards zero; the result is 0 if it would be infinite.
pub fn integer_power(a: i64, b: i64) -> i64 {
    match (a, b) {
        (1, _) => 1,
        (-1, _) => 1 - 2 * (b & 1),
        (_, ..0) => 0,
        _ => a.wrapping_pow(b as u32),
    }
}

/// Shifts left and drops the bits beyond 64. 0 if `count` is outside `0..64`.
pub fn shift_left(a: i64, count: i64) -> i64 {
    if (0..64).contains(&count) { a << count } else { 0 }
}

/// Arithmetic shift to the right. A `count` outside `0..64` leaves only the sign.
pub fn shift_right(a: i64, count: i64) -> i64 {
    a >> if (0..64).contains(&count) { count } else { 63 }
}

/// 1 if the condition holds, else 0.
pub fn truth(condition: bool) -> f64 {
    condition.into()
}
