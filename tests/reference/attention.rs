//! Attention and rotary embeddings. Each also returns the scale of its rounding errors.

use super::{ArrayD, array, broadcast, broadcast_shape};

/// The options of attention.
#[derive(Debug, Clone, Default)]
pub struct Attention {
    /// Added to the score of each query and key. Minus infinity hides the key.
    pub mask: Option<ArrayD<f64>>,
    pub causal: bool,
    pub window: Option<usize>,
    pub scale: Option<f64>,
    pub softcap: Option<f64>,
    /// How far the weights may be rounded, in half ulps of 1.
    pub rounding: f64,
}

/// Returns the score of a query and a key, and a bound of its rounding error in half ulps of 1.
fn score(q: &[f64], k: &[f64], mask: f64, options: &Attention) -> (f64, f64) {
    let scale = options.scale.unwrap_or(1.0 / (q.len().max(1) as f64).sqrt());
    let sum: f64 = q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() * scale;
    let magnitude: f64 = q.iter().zip(k).map(|(q, k)| (q * k * scale).abs()).sum();
    let mut error = magnitude * (q.len() as f64 + 2.0);
    let capped = options.softcap.map_or(sum, |cap| cap * (sum / cap).tanh());
    if options.softcap.is_some() {
        error += 16.0 * capped.abs();
    }
    (capped + mask, if mask == 0.0 { error } else { error + (capped + mask).abs() })
}

/// Attention of `(batch.., heads, queries, d)` with grouped heads. If a query sees no key, its row is 0.
///
/// The scale of the error: the error of a score is a relative error of its weight. So is the score's distance from the
/// largest score, because that distance is rounded. A sum of `n` weights is rounded and rescaled `n` times.
pub fn attention(q: &ArrayD<f64>, k: &ArrayD<f64>, v: &ArrayD<f64>, options: &Attention) -> (ArrayD<f64>, ArrayD<f64>) {
    let inner = |x: &ArrayD<f64>| -> [usize; 3] { x.shape()[x.ndim() - 3..].try_into().unwrap() };
    let batch_of = |x: &ArrayD<f64>| x.shape()[..x.ndim() - 3].to_vec();
    let batch = broadcast_shape(&broadcast_shape(&batch_of(q), &batch_of(k)), &batch_of(v));
    let full =
        |x: &ArrayD<f64>| -> Vec<f64> { broadcast(x, &[&batch[..], &inner(x)].concat()).iter().copied().collect() };
    let ([heads, queries, d], [kv_heads, keys, columns]) = (inner(q), inner(v));
    let mask_shape = [&batch[..], &[heads, queries, keys]].concat();
    let mask: Option<Vec<f64>> =
        options.mask.as_ref().map(|mask| broadcast(mask, &mask_shape).iter().copied().collect());
    let (q, k, v) = (full(q), full(k), full(v));
    let (mut values, mut scales) = (Vec::new(), Vec::new());
    for row in 0..batch.iter().product::<usize>() * heads * queries {
        let (head, query) = (row / queries, row % queries);
        let kv_head = head / heads * kv_heads + head % heads / (heads / kv_heads);
        let own = query as isize + keys as isize - queries as isize;
        let seen = |key: &usize| {
            let distance = own - *key as isize;
            (!options.causal || distance >= 0) && options.window.is_none_or(|window| distance.unsigned_abs() < window)
        };
        let mut scores = Vec::new();
        for key in (0..keys).filter(seen) {
            let mask = mask.as_ref().map_or(0.0, |mask| mask[row * keys + key]);
            if mask > f64::NEG_INFINITY || mask.is_nan() {
                let at = kv_head * keys + key;
                scores.push((key, score(&q[row * d..][..d], &k[at * d..][..d], mask, options)));
            }
        }
        let largest = scores.iter().fold(f64::NEG_INFINITY, |largest, (_, (score, _))| largest.max(*score));
        if largest == f64::NEG_INFINITY && scores.iter().all(|(_, (score, _))| !score.is_nan()) {
            values.extend(vec![0.0; columns]);
            scales.extend(vec![0.0; columns]);
            continue;
        }
        let total: f64 = scores.iter().map(|(_, (score, _))| (score - largest).exp()).sum();
        let weights: Vec<(usize, f64, f64)> = scores
            .iter()
            .map(|(key, (score, error))| (*key, (score - largest).exp() / total, error + (score - largest).abs()))
            .map(|(key, weight, error)| (key, weight, if weight == 0.0 { 0.0 } else { error }))
            .collect();
        let common: f64 = weights.iter().map(|(_, weight, error)| weight * error).sum();
        for column in 0..columns {
            let value = |key: usize| v[(kv_head * keys + key) * columns + column];
            values.push(weights.iter().map(|&(key, weight, _)| weight * value(key)).sum());
            let rounded = 2.0 * keys as f64 + 8.0 + common + options.rounding;
            let error: f64 =
                weights.iter().map(|&(key, weight, error)| weight * value(key).abs() * (error + rounded)).sum();
            // A subnormal half is off by half of 2^-24. The largest weight was at least 1 when it was rounded.
            let most = weights.iter().fold(0f64, |most, (_, weight, _)| most.max(*weight));
            let values: f64 = weights.iter().map(|&(key, ..)| value(key).abs()).sum();
            scales.push(error + if options.rounding > 0.0 { most * values / 2.0 } else { 0.0 });
        }
    }
    let shape = [&batch[..], &[heads, queries, columns]].concat();
    (array(&shape, values), array(&shape, scales))
}

/// The rotary embedding, and the sums of the products' magnitudes. A pair is two neighbours, or one element per half.
pub fn rotary(x: &ArrayD<f64>, cos: &ArrayD<f64>, sin: &ArrayD<f64>, neighbours: bool) -> (ArrayD<f64>, ArrayD<f64>) {
    let features = x.shape()[x.ndim() - 1];
    let pairs = cos.shape()[cos.ndim() - 1];
    let shape = [&x.shape()[..x.ndim() - 1], &[pairs]].concat();
    let (cos, sin) = (broadcast(cos, &shape), broadcast(sin, &shape));
    let (cos, sin): (Vec<f64>, Vec<f64>) = (cos.iter().copied().collect(), sin.iter().copied().collect());
    let mut values: Vec<f64> = x.iter().copied().collect();
    let mut scales = vec![0.0; values.len()];
    for row in 0..values.len() / features {
        for pair in 0..pairs {
            let first = row * features + if neighbours { 2 * pair } else { pair };
            let second = first + if neighbours { 1 } else { pairs };
            let (a, b) = (values[first], values[second]);
            let (cos, sin) = (cos[row * pairs + pair], sin[row * pairs + pair]);
            (values[first], values[second]) = (a * cos - b * sin, a * sin + b * cos);
            scales[first] = (a * cos).abs() + (b * sin).abs();
            scales[second] = (a * sin).abs() + (b * cos).abs();
        }
    }
    (array(x.shape(), values), array(x.shape(), scales))
}
