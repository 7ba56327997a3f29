//! Products of `f32` with reduced precision, if the user allows it and matrix units gain by it.

use super::matrix_units;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::precision::Precision;
use crate::device::Device;
use crate::tensor::Tensor;

/// Returns the operands of a matrix product, and its m, n and k, as the device's precision computes them.
pub(super) fn operands(lhs: Tensor, rhs: Tensor, sizes: [usize; 3]) -> Result<([Tensor; 2], [usize; 3])> {
    if !is_less(lhs.device(), lhs.dtype(), sizes) {
        return Ok(([lhs, rhs], sizes));
    }
    let [m, n, _] = sizes;
    let [lhs, rhs] = rounded(&lhs, &rhs, lhs.device().precision())?;
    let depth = lhs.dims()[lhs.rank() - 1];
    Ok(([lhs, rhs], [m, n, depth]))
}

/// Whether a device computes a product of these sizes with reduced precision.
pub(crate) fn is_less(device: &Device, dtype: DType, sizes: [usize; 3]) -> bool {
    let may = dtype == DType::F32 && device.precision() != Precision::Highest;
    may && matrix_units::unit(device, DType::BF16, sizes).is_some()
}

fn rounded(lhs: &Tensor, rhs: &Tensor, precision: Precision) -> Result<[Tensor; 2]> {
    match precision {
        Precision::Highest => Ok([lhs.clone(), rhs.clone()]),
        Precision::Medium => Ok([round(lhs)?, round(rhs)?]),
        Precision::High => {
            // The parts lie side by side along the depth, so that one product adds up three.
            let ([a, a_rest], [b, b_rest]) = (parts(lhs)?, parts(rhs)?);
            Ok([Tensor::cat(&[&a, &a, &a_rest], -1)?, Tensor::cat(&[&b, &b_rest, &b], -2)?])
        }
    }
}

/// Rounds to `bf16`. A transposed tensor stays transposed in memory.
fn round(x: &Tensor) -> Result<Tensor> {
    let transposed = x.t()?;
    if transposed.is_contiguous() { transposed.to_dtype(DType::BF16)?.t() } else { x.to_dtype(DType::BF16) }
}

/// Returns a tensor rounded to `bf16`, and the rest, rounded in the same way.
fn parts(x: &Tensor) -> Result<[Tensor; 2]> {
    let first = x.to_dtype(DType::BF16)?;
    first.realize()?;
    let rest = x.sub(&first.to_dtype(DType::F32)?)?.to_dtype(DType::BF16)?;
    Ok([first, rest])
}

#[cfg(test)]
#[cfg(all(has_vulkan, device_tests))]
mod tests {
    use super::*;
    use crate::device::Device;

    /// Other devices compute these products on matrix units of `bf16`. Here kernels compute them that any device has.
    #[test]
    fn products_are_as_exact_as_they_say() {
        let device = Device::vulkan(0).unwrap();
        let [m, k, n] = [5, 96, 7];
        let numbers = |count: usize, step: usize| -> Vec<f32> {
            (0..count).map(|i| (i * step % 1009) as f32 / 504.5 - 1.0).collect()
        };
        let (a, b) = (numbers(m * k, 389), numbers(n * k, 571));
        let lhs = Tensor::from_slice(&a, (m, k), &device).unwrap();
        // The tensor is transposed, so that it stays so when it is rounded.
        let rhs = Tensor::from_slice(&b, (n, k), &device).unwrap().t().unwrap();
        for (precision, bound) in [(Precision::Medium, 2f64.powi(-8)), (Precision::High, 2f64.powi(-16))] {
            let [lhs, rhs] = rounded(&lhs, &rhs, precision).unwrap();
            let found = lhs.product(&rhs, DType::F32, "matmul").unwrap().to_vec::<f32>().unwrap();
            let mut largest = 0f64;
            for (place, &found) in found.iter().enumerate() {
                let (row, column) = (&a[place / n * k..][..k], &b[place % n * k..][..k]);
                let terms = || row.iter().zip(column).map(|(&x, &y)| f64::from(x) * f64::from(y));
                let magnitude: f64 = terms().map(f64::abs).sum();
                largest = largest.max((f64::from(found) - terms().sum::<f64>()).abs() / magnitude);
            }
            assert!(largest < bound, "{precision:?}: {largest:e}");
            // An error far below the bound would mean that nothing was rounded.
            assert!(largest > bound / 64.0, "{precision:?}: {largest:e}");
        }
    }
}
