//! Softmax and layer norm, each with the scale that its rounding errors are measured by.

use super::{ArrayD, Axis, array};

/// `exp(x) / sum(exp(x))` along an axis. The scale of the error: an element's distance from the largest is rounded
/// before `exp` magnifies it, and a sum of `n` terms is rounded `n` times.
pub fn softmax(x: &ArrayD<f64>, axis: usize) -> (ArrayD<f64>, ArrayD<f64>) {
    let (mut values, mut scale) = (x.clone(), x.clone());
    for (mut row, mut scale) in values.lanes_mut(Axis(axis)).into_iter().zip(scale.lanes_mut(Axis(axis))) {
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, super::functions::maximum);
        let total: f64 = row.iter().map(|x| (x - largest).exp()).sum();
        let count = row.len() as f64;
        for (x, scale) in row.iter_mut().zip(scale.iter_mut()) {
            let distance = largest - *x;
            *x = (-distance).exp() / total;
            *scale = *x * (distance + count);
        }
    }
    (values, scale)
}

/// The layer norm over the last axes, those of `weight`. The scale of the error: the mean of `n` numbers is rounded `n`
/// times, which counts the more the larger the numbers are against their deviation.
pub fn layer_norm(x: &ArrayD<f64>, weight: &ArrayD<f64>, bias: &ArrayD<f64>, eps: f64) -> (ArrayD<f64>, ArrayD<f64>) {
    let length = weight.len();
    let elements: Vec<f64> = x.iter().copied().collect();
    let (mut values, mut scales) = (Vec::new(), Vec::new());
    for row in elements.chunks(length.max(1)) {
        let count = length as f64;
        let mean = row.iter().sum::<f64>() / count;
        let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
        let deviation = (variance + eps).sqrt();
        let largest = row.iter().fold(0f64, |largest, x| largest.max(x.abs()));
        for ((x, w), b) in row.iter().zip(weight).zip(bias) {
            let normal = (x - mean) / deviation;
            values.push(normal * w + b);
            scales.push(count * w.abs() * (1.0 + normal.abs()) * largest / deviation + b.abs());
        }
    }
    (array(x.shape(), values), array(x.shape(), scales))
}
