//! Conversions between dtypes.

use super::{is_brief, sample};
use crate::compare::{Expected, Sample, check, upload};
use crate::layouts::Layout;
use crate::reference::inputs::{Domain, specials};
use crate::reference::numbers::{cast, limits, wrap};
use crate::reference::{ArrayD, array};
use crate::suite::{Outcome, Suite};
use half::{bf16, f16};
use marquetry::{DType, Device, Tensor};

fn check_conversion(input: &Sample, to: DType) -> Outcome {
    let from = input.tensor.dtype();
    let expected = Expected::new(input.values.mapv(|x| cast(x, from, to)), to);
    check("to_dtype", &input.tensor.to_dtype(to)?, &expected)
}

/// Numbers of `from` at the edges of the conversion to `to`.
fn edges(from: DType, to: DType) -> Vec<f64> {
    let (low, high) = limits(to);
    let mut numbers = specials(from);
    let around =
        [low - 1.0, low - 0.5, low, low + 1.0, high - 1.0, high - 0.5, high, high + 0.5, high + 1.0, 2.0 * high];
    let fractions = [-1.5, -0.999, 0.999, 1.001, 254.999, 255.001, 3e9, -3e9, 1e10, -1e10];
    let all = around.into_iter().chain(fractions).chain([2f64.powi(53), -(2f64.powi(62)), 1e300, 1e19, -1e19]);
    // Keep to `i64` numbers that doubles hold, because the reference computes in doubles.
    numbers.extend(all.map(|x| {
        if from == DType::I64 {
            x.clamp(-(2f64.powi(63)), 2f64.powi(62)).trunc() + 0.0
        } else {
            cast(x, DType::F64, from)
        }
    }));
    numbers
}

/// Numbers of f32 around the numbers of a narrow dtype, and around the middle between two neighbours, where rounding is
/// decided. `number` decodes bits to a number. Bits from `infinity` on are not finite.
fn around(number: impl Fn(u16) -> f64, infinity: u16) -> ArrayD<f64> {
    let mut numbers = Vec::new();
    for bits in (0..infinity).step_by(7).chain([0, 1, 2, 0x3ff, 0x400, 0x401, infinity - 2, infinity - 1]) {
        let here = number(bits);
        // Behind the largest number, continue with the same distance.
        let next = if bits + 1 < infinity { number(bits + 1) } else { 2.0 * here - number(bits - 1) };
        for x in [here, (here + next) / 2.0] {
            let word = (x as f32).to_bits();
            numbers.extend([word.saturating_sub(1), word, word + 1].map(|word| f64::from(f32::from_bits(word))));
        }
    }
    // Subnormal numbers of f32 may be flushed to zero. They also round to zero.
    numbers.extend(numbers.clone().iter().map(|x| -x));
    array(&[numbers.len()], numbers)
}

/// Every number of a 16-bit dtype must survive unpacking and packing by a kernel. NaN stays NaN.
fn every_bf16(device: &Device) -> Outcome {
    let numbers: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    let x = Tensor::from_slice(&numbers, (256, 256), device)?;
    let wide = x.to_dtype(DType::F32)?;
    wide.realize()?;
    for back in [wide.to_dtype(DType::BF16)?.to_vec::<bf16>()?, x.t()?.contiguous()?.t()?.to_vec()?] {
        let stray = numbers.iter().zip(&back).find(|(x, y)| x.to_bits() != y.to_bits() && !(x.is_nan() && y.is_nan()));
        if let Some((x, y)) = stray {
            return Err(format!("{:#06x} became {:#06x}", x.to_bits(), y.to_bits()).into());
        }
    }
    Ok(())
}

pub fn add(suite: &mut Suite) {
    suite.add("to_dtype", "bf16_to_f32::every_number", every_bf16);
    for (from, to) in DType::ALL.into_iter().flat_map(|from| DType::ALL.map(|to| (from, to))) {
        let brief = is_brief(from) || is_brief(to);
        let layouts: &[Layout] = match brief {
            true => &[Layout::Contiguous],
            false => &[Layout::Contiguous, Layout::Sliced, Layout::Unaligned, Layout::Empty, Layout::Odd],
        };
        for &layout in layouts {
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
        let values = around(|bits| f16::from_bits(bits).to_f64(), 0x7c00);
        check_conversion(&Sample { tensor: upload(&values, DType::F32, device)?, values }, DType::F16)
    });
    suite.add("to_dtype", "f32_to_bf16::ties", |device| {
        let values = around(|bits| bf16::from_bits(bits).to_f64(), 0x7f80);
        check_conversion(&Sample { tensor: upload(&values, DType::F32, device)?, values }, DType::BF16)
    });
    for from in [DType::U32, DType::I32] {
        // Numbers of more than 24 bits: a first rounding to f32 would turn them into ties.
        suite.add("to_dtype", format!("{from}_to_bf16::ties"), move |device| {
            let middles = (24..32).map(|bits| 2f64.powi(bits) + 2f64.powi(bits - 8));
            let odd =
                middles.flat_map(|x| [x - 129.0, x - 1.0, x, x + 1.0, x + 129.0, 3.0 * x + 1.0, -x - 1.0, 1.0 - x]);
            let values: Vec<f64> = odd.map(|x| wrap(x as i64, from)).collect();
            let values = array(&[values.len()], values);
            check_conversion(&Sample { tensor: upload(&values, from, device)?, values }, DType::BF16)
        });
    }
    suite.add("to_dtype", "f16_to_f32::every_half", |device| {
        let values = (0..=u16::MAX).map(|bits| f16::from_bits(bits).to_f64()).collect();
        let values = array(&[1 << 16], values);
        check_conversion(&Sample { tensor: upload(&values, DType::F16, device)?, values }, DType::F32)
    });
}
