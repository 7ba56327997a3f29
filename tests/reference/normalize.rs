//! Softmax and normalisations. Each also returns the scale of its rounding errors.

use super::{ArrayD, Axis, IxDyn, array};

/// `exp(x) / sum(exp(x))` along an axis.
///
/// The scale of the error: an element's distance from the largest is rounded, and `exp` magnifies that error. A sum of
/// `n` terms is rounded `n` times.
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

/// `log(softmax(x))` along an axis.
///
/// The scale of the error: the distance from the largest is rounded. So is the logarithm of a sum of `n` terms. The
/// relative error of that sum becomes an absolute error of the result.
pub fn log_softmax(x: &ArrayD<f64>, axis: usize) -> (ArrayD<f64>, ArrayD<f64>) {
    let (mut values, mut scale) = (x.clone(), x.clone());
    for (mut row, mut scale) in values.lanes_mut(Axis(axis)).into_iter().zip(scale.lanes_mut(Axis(axis))) {
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, super::functions::maximum);
        let log = row.iter().map(|x| (x - largest).exp()).sum::<f64>().ln();
        let count = row.len() as f64;
        for (x, scale) in row.iter_mut().zip(scale.iter_mut()) {
            let distance = largest - *x;
            *x = -distance - log;
            *scale = distance + 8.0 * log + 8.0 + count;
        }
    }
    (values, scale)
}

/// `x / max(|x|, eps)` along an axis. The scale of the error: a sum of `n` squares is rounded `n` times.
pub fn l2_normalize(x: &ArrayD<f64>, axis: usize, eps: f64) -> (ArrayD<f64>, ArrayD<f64>) {
    let mut values = x.clone();
    for mut row in values.lanes_mut(Axis(axis)) {
        let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt().max(eps);
        row.mapv_inplace(|x| x / norm);
    }
    let scale = values.mapv(f64::abs) * x.shape()[axis] as f64;
    (values, scale)
}

/// `x / sqrt(mean(x^2) + eps) * weight` over the last axes, which are the axes of `weight`. The scale of the error is
/// the same as in [`l2_normalize`].
pub fn rms_norm(x: &ArrayD<f64>, weight: &ArrayD<f64>, eps: f64) -> (ArrayD<f64>, ArrayD<f64>) {
    let length = weight.len();
    let elements: Vec<f64> = x.iter().copied().collect();
    let mut values = Vec::new();
    for row in elements.chunks(length.max(1)) {
        let mean = row.iter().map(|x| x * x).sum::<f64>() / length as f64;
        values.extend(row.iter().zip(weight).map(|(x, w)| x / (mean + eps).sqrt() * w));
    }
    let scale = values.iter().map(|x| x.abs() * length as f64).collect();
    (array(x.shape(), values), array(x.shape(), scale))
}

/// The layer norm over groups of channels (axis 1) and all later axes, with a weight and a bias per channel.
pub fn group_norm(
    x: &ArrayD<f64>,
    groups: usize,
    weight: &ArrayD<f64>,
    bias: &ArrayD<f64>,
    eps: f64,
) -> (ArrayD<f64>, ArrayD<f64>) {
    let length = x.len() / (x.shape()[0] * groups).max(1);
    let rows = array(&[x.len() / length.max(1), length], x.iter().copied().collect());
    let (ones, zeros) = (ArrayD::ones(IxDyn(&[length])), ArrayD::zeros(IxDyn(&[length])));
    let (normal, scale) = layer_norm(&rows, &ones, &zeros, eps);
    let [normal, scale] = [normal, scale].map(|rows| array(x.shape(), rows.into_iter().collect()));
    let [weight, bias] = [weight, bias].map(|vector| channels(vector, x.ndim()));
    let values = super::zip(&super::zip(&normal, &weight, |x, w| x * w), &bias, |x, b| x + b);
    (values, super::zip(&super::zip(&scale, &weight, |x, w| x * w.abs()), &bias, |x, b| x + b.abs()))
}

/// `(x - mean) / sqrt(variance + eps) * weight + bias`, with one number per channel (axis 1) in each vector. The scale
/// of the error: several functions, each with a relative error, and a sum.
pub fn batch_norm(
    x: &ArrayD<f64>,
    [mean, variance, weight, bias]: [&ArrayD<f64>; 4],
    eps: f64,
) -> (ArrayD<f64>, ArrayD<f64>) {
    let [mean, variance, weight, bias] = [mean, variance, weight, bias].map(|vector| channels(vector, x.ndim()));
    let scale = super::zip(&variance, &weight, |variance, weight| weight / (variance + eps).sqrt());
    let scaled = super::zip(&super::zip(x, &mean, |x, mean| x - mean), &scale, |x, scale| x * scale);
    let error = super::zip(&scaled, &bias, |x, bias| 12.0 * x.abs() + bias.abs());
    (super::zip(&scaled, &bias, |x, bias| x + bias), error)
}

/// Reshapes a vector to run along axis 1 of an array of `rank` axes.
fn channels(vector: &ArrayD<f64>, rank: usize) -> ArrayD<f64> {
    let mut shape = vec![1; rank];
    shape[1] = vector.len();
    array(&shape, vector.iter().copied().collect())
}

/// The layer norm over the last axes, which are the axes of `weight`.
///
/// The scale of the error: the mean of `n` numbers is rounded `n` times. The larger the numbers are relative to their
/// deviation, the more this counts.
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
