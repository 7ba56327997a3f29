//! Attention without workgroup memory: each invocation computes two rows.

use super::{AttentionBlock, Operand, Softmax};
use crate::kernels::epilogue::Finishing;
use crate::shader::{Array, Value, Var};

/// The invocations of a workgroup.
pub(super) const WORKGROUP: u32 = 8;
/// The rows of an invocation, and the keys that it takes at a time.
pub(super) const ROWS: u32 = 2;
pub(super) const KEYS: u32 = 8;

/// A row of one invocation.
struct Row<'k> {
    place: Value<'k>,
    q: Value<'k>,
    mask: Option<Value<'k>>,
    seen: [Value<'k>; 2],
    softmax: Softmax<'k>,
    sums: Array<'k>,
}

impl<'k> Row<'k> {
    fn new(p: &AttentionBlock<'k>, place: Value<'k>) -> Self {
        let k = p.kernel;
        // Rows beyond the last one repeat it; they are not stored.
        let row = place.min(p.rows - 1);
        Row {
            place,
            q: p.row_at(&p.q, row),
            mask: p.mask.as_ref().map(|mask| p.row_at(mask, row)),
            seen: p.keys_of_row(row),
            softmax: Softmax::new(k, k.number(p.config.number(), 0)),
            sums: k.local_array(p.config.number(), p.config.columns),
        }
    }

    fn score(&self, p: &AttentionBlock<'k>, key: Value<'k>, sum: Value<'k>) -> Value<'k> {
        let ([first, count], [_, end]) = (self.seen, p.keys);
        let mask = p.mask.as_ref().zip(self.mask).map(|(mask, row)| mask.load(row, key.min(end - 1)));
        p.score(sum, key.lt(end) & (key - first).lt(count), mask)
    }
}

pub(super) fn write<'k>(p: &AttentionBlock<'k>, broadcast: bool) {
    let k = p.kernel;
    // Opaque, because llvmpipe would unroll loops of constant length, and is slow to compile code that loads from
    // buffers.
    let [features, columns] = [p.config.features, p.config.columns].map(|length| k.u32(length).opaque());
    let zero = k.number(p.config.number(), 0);
    let first_row = p.first_row + k.local_index();
    let rows: Vec<_> = (0..ROWS).map(|i| Row::new(p, first_row + i * WORKGROUP)).collect();
    k.for_range(0, columns, |column| rows.iter().for_each(|row| row.sums.store(column, zero)));
    let [start, end] = p.keys;
    k.for_step(start, end, KEYS, |first| {
        // Keys beyond the last one repeat it; the row does not see them, and their values are zeros.
        let keys: Vec<_> = match broadcast {
            true => vec![first + k.subgroup_lane()],
            false => (0..KEYS).map(|i| first + i).collect(),
        };
        let there: Vec<_> = keys.iter().map(|key| key.lt(end)).collect();
        let keys: Vec<_> = keys.iter().map(|key| key.min(end - 1)).collect();
        let [k_rows, v_rows] =
            [&p.k, &p.v].map(|operand| keys.iter().map(|&key| operand.row_at(key)).collect::<Vec<_>>());
        // Loads the same element of all keys.
        let load = |operand: &Operand<'k>, rows: &[Value<'k>], column| -> Vec<_> {
            rows.iter().map(|&row| operand.load(row, column)).collect()
        };
        // Hands the elements of all keys to each invocation.
        let of_all = |loaded: Vec<Value<'k>>| -> Vec<_> {
            if broadcast { (0..KEYS).map(|lane| loaded[0].subgroup_broadcast(lane)).collect() } else { loaded }
        };
        let products: Vec<Vec<_>> = rows.iter().map(|_| (0..KEYS).map(|_| k.var(zero)).collect()).collect();
        k.for_range(0, features, |feature| {
            let keys = of_all(load(&p.k, &k_rows, feature));
            for (row, sums) in rows.iter().zip(&products) {
                let q = p.q.load(row.q, feature) * p.scale;
                keys.iter().zip(sums).for_each(|(&key, sum)| sum.set(q.fma(key, sum.get())));
            }
        });
        let weigh = |(row, sums): (&Row<'k>, &Vec<Var<'k>>)| {
            let scores: Vec<_> = (0..).zip(sums).map(|(i, sum)| row.score(p, first + i as u32, sum.get())).collect();
            row.softmax.add(&scores, |largest| largest)
        };
        let weights: Vec<_> = rows.iter().zip(&products).map(weigh).collect();
        k.for_range(0, columns, |column| {
            let values = load(&p.v, &v_rows, column).into_iter().zip(&there);
            let values = of_all(values.map(|(value, there)| there.select(value, zero)).collect());
            for (row, (weights, rescale)) in rows.iter().zip(&weights) {
                let terms = weights.iter().zip(&values);
                let before = row.sums.load(column) * *rescale;
                row.sums.store(column, terms.fold(before, |sum, (weight, &value)| weight.fma(value, sum)));
            }
        });
    });
    for Row { place, softmax, sums, .. } in &rows {
        k.when(place.lt(p.rows) & p.batch.lt(p.batches), || {
            let total = softmax.total.get();
            let width = p.config.width();
            k.for_step(0, columns, width, |column| {
                let sums: Vec<_> = (0..width).map(|i| sums.load(column + i)).collect();
                p.store(*place, column, if width == 1 { sums[0] } else { k.vector(&sums) }, total);
            });
            if p.config.parts {
                p.store_weight(*place, softmax.largest.get(), total);
            }
        });
    }
}
