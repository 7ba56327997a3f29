//! Checks of results: a few elements are compared with the host's, in `f64`.

use anyhow::{Result, ensure};
use marquetry::{DType, Tensor};

/// Returns the elements of a tensor in row-major order.
pub fn numbers(x: &Tensor) -> Result<Vec<f64>> {
    let x = x.to_dtype(DType::F32)?.to_vec::<f32>()?;
    Ok(x.into_iter().map(f64::from).collect())
}

/// Returns a row of a matrix.
pub fn row(x: &Tensor, row: usize) -> Result<Vec<f64>> {
    numbers(&x.narrow(0, row, 1)?)
}

pub fn column(x: &Tensor, column: usize) -> Result<Vec<f64>> {
    numbers(&x.narrow(1, column, 1)?)
}

/// Returns the first place of an axis, one in the middle that is no round number, and the last.
pub fn places(length: usize) -> [usize; 3] {
    [0, length * 5 / 8 + usize::from(length > 8), length - 1]
}

/// Returns half a unit in the last place of 1.
pub fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        _ => 2f64.powi(-24),
    }
}

/// Fails unless a number is within a tolerance of what is expected.
pub fn ensure_close(what: &str, found: f64, expected: f64, tolerance: f64) -> Result<()> {
    let off = (found - expected).abs();
    ensure!(off <= tolerance, "{what} is {found} instead of {expected}, off by {off:e} of {tolerance:e}");
    Ok(())
}

/// Fails unless each number is within `tolerance * (1 + |expected|)` of the expected one.
pub fn ensure_all_close(what: &str, found: &[f64], expected: &[f64], tolerance: f64) -> Result<()> {
    ensure!(found.len() == expected.len(), "{what} has {} elements instead of {}", found.len(), expected.len());
    for (place, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        ensure_close(&format!("element {place} of {what}"), found, expected, tolerance * (1.0 + expected.abs()))?;
    }
    Ok(())
}

/// Checks some elements of `y = a b`.
pub fn check_product(a: &Tensor, b: &Tensor, y: &Tensor) -> Result<()> {
    let (m, n) = (a.dims()[0], b.dims()[1]);
    for i in places(m) {
        let (a_row, y_row) = (row(a, i)?, row(y, i)?);
        for j in places(n) {
            let products: Vec<f64> = a_row.iter().zip(column(b, j)?).map(|(a, b)| a * b).collect();
            ensure_sum(&format!("element ({i}, {j})"), y_row[j], &products, y.dtype())?;
        }
    }
    Ok(())
}

/// Fails unless a number is the sum of products, summed in `f32` and rounded to a dtype.
pub fn ensure_sum(what: &str, found: f64, products: &[f64], dtype: DType) -> Result<()> {
    let (sum, sizes) = products.iter().fold((0.0, 0.0), |(sum, sizes), p| (sum + p, sizes + p.abs()));
    // Each product and sum in f32 may be rounded. The errors are nearly independent, so that they add up like the root
    // of their number. Eight deviations are never reached. The result is rounded once more.
    let summing = 8.0 * (products.len() as f64).sqrt() * rounding(DType::F32) * sizes;
    ensure_close(what, found, sum, summing + rounding(dtype) * 1.01 * sum.abs())
}
