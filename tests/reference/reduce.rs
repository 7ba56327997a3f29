//! Reductions, scans and sorting.

use super::functions::maximum;
use super::numbers::sum;
use super::{ArrayD, Axis, array};

/// Applies a function to each row: the elements along `axes`, in row-major order of `axes` as given. The other axes
/// remain.
pub fn rows(x: &ArrayD<f64>, axes: &[usize], function: impl Fn(&[f64]) -> f64) -> ArrayD<f64> {
    let kept: Vec<usize> = (0..x.ndim()).filter(|axis| !axes.contains(axis)).collect();
    let shape: Vec<usize> = kept.iter().map(|&axis| x.shape()[axis]).collect();
    let length: usize = axes.iter().map(|&axis| x.shape()[axis]).product();
    let order: Vec<usize> = kept.iter().chain(axes).copied().collect();
    let elements: Vec<f64> = x.view().permuted_axes(order).iter().copied().collect();
    let count = shape.iter().product();
    array(&shape, (0..count).map(|row: usize| function(&elements[row * length..(row + 1) * length])).collect())
}

/// The shape after a reduction that keeps the reduced axes with length 1.
pub fn kept_shape(shape: &[usize], axes: &[usize]) -> Vec<usize> {
    shape.iter().enumerate().map(|(axis, &length)| if axes.contains(&axis) { 1 } else { length }).collect()
}

/// Scans along an axis: each element becomes the fold of all elements up to it.
pub fn running(x: &ArrayD<f64>, axis: usize, fold: impl Fn(f64, f64) -> f64) -> ArrayD<f64> {
    let mut result = x.clone();
    for mut row in result.lanes_mut(Axis(axis)) {
        for place in 1..row.len() {
            row[place] = fold(row[place - 1], row[place]);
        }
    }
    result
}

/// The index of the first largest number. NaN counts as largest.
pub fn argmax(row: &[f64]) -> f64 {
    let mut best = 0;
    for (place, x) in row.iter().enumerate() {
        if (x.is_nan() && !row[best].is_nan()) || *x > row[best] {
            best = place;
        }
    }
    best as f64
}

/// The index of the first smallest number. NaN counts as smallest.
pub fn argmin(row: &[f64]) -> f64 {
    argmax(&row.iter().map(|x| -x).collect::<Vec<_>>())
}

/// The sum of squared deviations from the mean, divided by the element count minus `correction`.
pub fn variance(row: &[f64], correction: usize) -> f64 {
    let mean = sum(row.iter().copied()) / row.len() as f64;
    sum(row.iter().map(|x| (x - mean) * (x - mean))) / row.len().saturating_sub(correction) as f64
}

/// The square root of the sum of squares. A power of two scales the squares, so that they fit into doubles.
pub fn norm(row: &[f64]) -> f64 {
    let largest = row.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
    let scale = if largest.is_normal() { 2f64.powi(largest.log2().floor() as i32) } else { 1.0 };
    sum(row.iter().map(|x| (x / scale).powi(2))).sqrt() * scale
}

/// The logarithm of the sum of exponentials.
pub fn logsumexp(row: &[f64]) -> f64 {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, maximum);
    let centre = if largest.is_finite() { largest } else { 0.0 };
    sum(row.iter().map(|x| (x - centre).exp())).ln() + centre
}

/// The scale of the error of [`logsumexp`]: the logarithm, and each element's distance from the largest, weighted by
/// its share of the sum.
pub fn logsumexp_scale(row: &[f64]) -> f64 {
    let (total, largest) = (logsumexp(row), row.iter().copied().fold(f64::NEG_INFINITY, maximum));
    let distances: f64 = row.iter().map(|x| (x - total).exp() * (largest - x).min(1e9)).sum();
    1.0 + largest.abs() + (total - largest) + distances
}

/// The indexes of a row's elements in sorted order. The sort is stable, and NaN is largest.
fn argsort(row: &[f64], descending: bool) -> Vec<usize> {
    let mut places: Vec<usize> = (0..row.len()).collect();
    places.sort_by(|&a, &b| {
        let (a, b) = if descending { (row[b], row[a]) } else { (row[a], row[b]) };
        a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
    });
    places
}

/// The first `taken` elements of each sorted row along an axis, and their indexes.
pub fn sorted(x: &ArrayD<f64>, axis: usize, taken: usize, descending: bool) -> [ArrayD<f64>; 2] {
    let mut shape = x.shape().to_vec();
    shape[axis] = taken;
    let (mut values, mut places) = (ArrayD::zeros(shape.as_slice()), ArrayD::zeros(shape.as_slice()));
    let lanes = x.lanes(Axis(axis)).into_iter();
    let results = values.lanes_mut(Axis(axis)).into_iter().zip(places.lanes_mut(Axis(axis)));
    for (row, (mut values, mut places)) in lanes.zip(results) {
        let row: Vec<f64> = row.iter().copied().collect();
        for (i, place) in argsort(&row, descending).into_iter().take(taken).enumerate() {
            (values[i], places[i]) = (row[place], place as f64);
        }
    }
    [values, places]
}
