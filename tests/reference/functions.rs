//! Functions of one and two numbers.

pub fn sign(x: f64) -> f64 {
    if x.is_nan() || x == 0.0 { x } else { x.signum() }
}

pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub fn gelu(x: f64) -> f64 {
    // As a product with the complement, which keeps the digits where the error function is near -1.
    x * 0.5 * libm::erfc(-x / std::f64::consts::SQRT_2)
}

pub fn gelu_tanh(x: f64) -> f64 {
    // (1 + tanh(z)) / 2 = 1 / (1 + exp(-2 z))
    let z = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    x / (1.0 + (-2.0 * z).exp())
}

/// The larger number; NaN if one is NaN.
pub fn maximum(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

/// The smaller number; NaN if one is NaN.
pub fn minimum(a: f64, b: f64) -> f64 {
    -maximum(-a, -b)
}

/// Integer division towards zero, 0 where the divisor is 0.
pub fn integer_division(a: i64, b: i64) -> i64 {
    if b == 0 { 0 } else { a / b }
}

/// The inverse of the error function, by Newton's method.
pub fn inverse_erf(y: f64) -> f64 {
    let mut x = 0f64;
    for _ in 0..100 {
        // Towards the ends the slope is tiny: steps of at most a half keep to the right side.
        let slope = 2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp();
        let residual = if y < 0.0 { libm::erfc(-x) - (1.0 + y) } else { (1.0 - y) - libm::erfc(x) };
        x -= (residual / slope).clamp(-0.5, 0.5);
    }
    x
}
