//! Reductions.

use super::{ArrayD, array};

/// A function of each row: of the elements along the given axes, in row-major order of those axes as they are given.
/// The other axes remain.
pub fn rows(x: &ArrayD<f64>, axes: &[usize], function: impl Fn(&[f64]) -> f64) -> ArrayD<f64> {
    let kept: Vec<usize> = (0..x.ndim()).filter(|axis| !axes.contains(axis)).collect();
    let shape: Vec<usize> = kept.iter().map(|&axis| x.shape()[axis]).collect();
    let length: usize = axes.iter().map(|&axis| x.shape()[axis]).product();
    let order: Vec<usize> = kept.iter().chain(axes).copied().collect();
    let elements: Vec<f64> = x.view().permuted_axes(order).iter().copied().collect();
    let count = shape.iter().product();
    array(&shape, (0..count).map(|row: usize| function(&elements[row * length..(row + 1) * length])).collect())
}

/// The shape after a reduction, with the reduced axes as axes of length 1.
pub fn kept_shape(shape: &[usize], axes: &[usize]) -> Vec<usize> {
    shape.iter().enumerate().map(|(axis, &length)| if axes.contains(&axis) { 1 } else { length }).collect()
}

/// The place of the first largest number; a NaN counts as largest.
pub fn argmax(row: &[f64]) -> f64 {
    let mut best = 0;
    for (place, x) in row.iter().enumerate() {
        if (x.is_nan() && !row[best].is_nan()) || *x > row[best] {
            best = place;
        }
    }
    best as f64
}
