//! [`Row`]: the running softmax of a row.

use super::super::{AttentionBlock, lowest};
use super::FewRows;
use crate::kernels::elements::Runs;
use crate::shader::{Type, Value, Var};
use std::f64::consts::LOG2_E;

/// What a lane knows of a row, while it goes through the keys.
pub(super) struct Row<'k> {
    /// The first key that the row sees, and the number of keys that it sees. `None` if each row sees all keys that the
    /// workgroup visits.
    seen: Option<[Value<'k>; 2]>,
    /// Where the row of the mask begins.
    mask: Option<Value<'k>>,
    /// The largest exponent of two so far, and the sum of the weights.
    pub largest: Var<'k>,
    pub total: Var<'k>,
}

impl<'k> Row<'k> {
    pub fn new(p: &AttentionBlock<'k, Runs<'k>>, few: FewRows, row: Value<'k>) -> Self {
        let k = p.kernel;
        // In pages, a workgroup begins at a whole step, which may be before the first key that rows see.
        let has_bounds = !few.is_step || p.config.paged;
        Row {
            seen: has_bounds.then(|| p.keys_of_row(row)),
            mask: p.mask.as_ref().map(|mask| p.row_at(mask, row)),
            largest: k.var(lowest(k, Type::F32)),
            total: k.var(k.f32(0.0)),
        }
    }

    /// Returns what products of features are multiplied by.
    pub fn scale(p: &AttentionBlock<'k, Runs<'k>>) -> Value<'k> {
        p.scale * if p.softcap.is_some() { 1.0 } else { LOG2_E }
    }

    /// Returns the weights of some keys, given their scaled products, and the factor that rescales the sums so far.
    /// Keys from `end` on weigh nothing.
    /// `of_all` turns the largest exponent of these keys into the largest of all keys that share the sums.
    pub fn weights(
        &self,
        p: &AttentionBlock<'k, Runs<'k>>,
        scores: impl Iterator<Item = (Value<'k>, Value<'k>)>,
        end: Value<'k>,
        of_all: impl Fn(Value<'k>) -> Value<'k>,
    ) -> (Vec<Value<'k>>, Value<'k>) {
        let minus_infinity = p.kernel.f32(f32::NEG_INFINITY);
        let exponent = |(key, score): (Value<'k>, Value<'k>)| {
            let score = p.softcap.map_or(score, |cap| score.divide(cap).tanh() * cap * LOG2_E);
            let seen = self.seen.map_or(key.lt(end), |[first, count]| key.lt(end) & (key - first).lt(count));
            let mask = p.mask.as_ref().zip(self.mask).map(|(mask, row)| mask.load(row, key.min(p.seq_kv - 1)));
            match mask.map(|mask| p.exponent_of_mask(seen, mask)) {
                Some((seen, exponent)) => seen.select(score + exponent, minus_infinity),
                None => seen.select(score, minus_infinity),
            }
        };
        let exponents: Vec<_> = scores.map(exponent).collect();
        let before = self.largest.get();
        let largest = of_all(exponents.iter().fold(before, |largest, &exponent| largest.larger(exponent)));
        let rescale = (before - largest).exp2_of_device();
        let weights: Vec<_> = exponents.iter().map(|&exponent| (exponent - largest).exp2_of_device()).collect();
        self.largest.set(largest);
        self.total.set(weights.iter().fold(self.total.get() * rescale, |total, &weight| total + weight));
        (weights, rescale)
    }
}
