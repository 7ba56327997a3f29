//! Conversions between dtypes.

use super::sample;
use crate::compare::{Expected, Sample, check, upload};
use crate::layouts::Layout;
use crate::reference::inputs::{Domain, specials};
use crate::reference::numbers::{cast, limits};
use crate::reference::{ArrayD, array};
use crate::suite::{Outcome, Suite};
use marquetry::DType;

fn check_conversion(input: &Sample, to: DType) -> Outcome {
    let from = input.tensor.dtype();
    let expected = Expected::new(input.values.mapv(|x| cast(x, from, to)), to);
    check("to_dtype", &input.tensor.to_dtype(to)?, &expected)
}

/// Numbers of `from` at which the conversion to `to` has an edge.
fn edges(from: DType, to: DType) -> Vec<f64> {
    let (low, high) = limits(to);
    let mut numbers = specials(from);
    let around =
        [low - 1.0, low - 0.5, low, low + 1.0, high - 1.0, high - 0.5, high, high + 0.5, high + 1.0, 2.0 * high];
    let fractions = [-1.5, -0.999, 0.999, 1.001, 254.999, 255.001, 3e9, -3e9, 1e10, -1e10];
    numbers.extend(around.into_iter().chain(fractions).map(|x| cast(x, DType::F32, from)));
    numbers
}

/// Numbers of f32 around every number of f16, and around the middle between two, where rounding is decided.
fn around_halves() -> ArrayD<f64> {
    let mut numbers = Vec::new();
    for bits in (0..0x7c00u16).step_by(7).chain([0, 1, 2, 0x3ff, 0x400, 0x401, 0x7bfe, 0x7bff]) {
        let (here, next) = (half::f16::from_bits(bits).to_f64(), half::f16::from_bits(bits + 1).to_f64());
        let middle = if next.is_finite() { (here + next) / 2.0 } else { 65520.0 };
        for x in [here, middle] {
            let word = (x as f32).to_bits();
            numbers.extend([word.saturating_sub(1), word, word + 1].map(|word| f64::from(f32::from_bits(word))));
        }
    }
    // Subnormal numbers of f32 may be flushed to zero, which they round to anyway.
    numbers.extend(numbers.clone().iter().map(|x| -x));
    array(&[numbers.len()], numbers)
}

pub fn add(suite: &mut Suite) {
    for (from, to) in DType::ALL.into_iter().flat_map(|from| DType::ALL.map(|to| (from, to))) {
        for layout in [Layout::Contiguous, Layout::Sliced, Layout::Unaligned, Layout::Empty, Layout::Odd] {
            suite.add("to_dtype", format!("{from}_to_{to}::{}", layout.name()), move |device| {
                check_conversion(&sample("to_dtype", layout, from, Domain::Special, device)?, to)
            });
        }
        suite.add("to_dtype", format!("{from}_to_{to}::edges"), move |device| {
            let values = edges(from, to);
            let values = array(&[values.len()], values);
            check_conversion(&Sample { tensor: upload(&values, from, device)?, values }, to)
        });
    }
    suite.add("to_dtype", "f32_to_f16::ties", |device| {
        let values = around_halves();
        check_conversion(&Sample { tensor: upload(&values, DType::F32, device)?, values }, DType::F16)
    });
    suite.add("to_dtype", "f16_to_f32::every_half", |device| {
        let values = (0..=u16::MAX).map(|bits| half::f16::from_bits(bits).to_f64()).collect();
        let values = array(&[1 << 16], values);
        check_conversion(&Sample { tensor: upload(&values, DType::F16, device)?, values }, DType::F32)
    });
}
