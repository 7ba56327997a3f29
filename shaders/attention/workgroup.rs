//! Attention from tiles in workgroup memory: each invocation computes the scores of four rows for four keys, then some
//! columns of these rows.

use super::{Attention, AttentionBlock, Operand, Softmax, WORKGROUP, larger};
use crate::kernels::epilogue::Finishing;
use crate::shader::{Array, KernelBuilder, Value, Var};

/// The sizes of the tiles in workgroup memory.
struct Tiles {
    /// The number of invocations that share four rows, and the number of such groups of rows.
    across: u32,
    down: u32,
    /// The features of the queries and keys that are in the tiles at a time.
    depth: u32,
    /// The columns of the values in groups of four, and the values that are in the tile at a time.
    quads: u32,
    values: u32,
}

impl Tiles {
    fn new(across: u32, config: &Attention) -> Self {
        let depth = if across == 8 && config.dtype.parts() == 1 { 16 } else { 8 };
        let (down, columns) = (WORKGROUP / across, config.columns);
        let quads = columns.div_ceil(4);
        // As many values as fit in the memory of the queries and keys.
        let slice = depth * (across + down);
        let values = 1 << (slice / quads).min(4 * across).ilog2();
        Tiles { across, down, depth, quads, values }
    }

    /// Returns the distance in vectors between features, for queries and for keys. One vector of padding lets
    /// neighbouring invocations store to different banks.
    fn pitch(&self) -> (u32, u32) {
        (self.down + 1, self.across + 1)
    }

    fn slice(&self) -> u32 {
        let (queries, keys) = self.pitch();
        (self.depth * (queries + keys)).max(self.values * self.quads)
    }
}

/// Returns the places of this invocation's share of `count` items. The last place may be beyond the end.
fn share<'k>(k: &'k KernelBuilder, count: u32) -> impl Iterator<Item = Value<'k>> {
    (0..count).step_by(WORKGROUP as usize).map(|first| k.local_index() + first)
}

/// Stores an item unless its place is beyond the end.
fn store_shared<'k>(k: &'k KernelBuilder, count: u32, place: Value<'k>, store: impl FnOnce()) {
    if count.is_multiple_of(WORKGROUP) { store() } else { drop(k.when(place.lt(count), store)) }
}

/// Combines the values of the invocations that share four rows. Each of them gets the result.
fn across_rows<'k>(
    k: &'k KernelBuilder,
    scratch: Array<'k>,
    across: u32,
    value: Value<'k>,
    combine: impl Fn(Value<'k>, Value<'k>) -> Value<'k>,
) -> Value<'k> {
    let lane = k.local_index();
    scratch.store(lane, value);
    k.barrier();
    let mut half = across / 2;
    while half > 0 {
        k.when((lane % across).lt(half), || {
            scratch.store(lane, combine(scratch.load(lane), scratch.load(lane + half)));
        });
        k.barrier();
        half /= 2;
    }
    let result = scratch.load(lane / across * across);
    // The memory is reused, so all invocations must have read the result before one writes again.
    k.barrier();
    result
}

pub(super) fn write<'k>(p: &AttentionBlock<'k>, across: u32) {
    let (k, config) = (p.kernel, &p.config);
    let tiles = Tiles::new(across, config);
    let [slice, weights_tile, scratch] =
        [tiles.slice(), 4 * WORKGROUP, WORKGROUP].map(|length| k.workgroup_array(config.rows(), length));
    let lane = k.local_index();
    let (x, y) = (lane % across, lane / across);
    let zeros = k.number(config.rows(), 0);

    // Rows beyond the last one repeat it; they are not stored.
    let rows = [0, 1, 2, 3].map(|r| (p.first_row + y * 4 + r).min(p.rows - 1));
    let seen = rows.map(|row| p.keys_of_row(row));
    let (first_seen, count_seen) = (k.vector(&seen.map(|[first, _]| first)), k.vector(&seen.map(|[_, count]| count)));
    let mask = p.mask.as_ref().map(|mask| (mask, rows.map(|row| p.row_at(mask, row))));

    // The indices of the queries that this invocation loads to workgroup memory.
    let q_rows: Vec<_> = share(k, tiles.depth * tiles.down)
        .map(|place| place / tiles.depth)
        .map(|quad| [0, 1, 2, 3].map(|r| p.row_at(&p.q, (p.first_row + quad * 4 + r).min(p.rows - 1))))
        .collect();

    let softmax = Softmax::new(k, zeros);
    let per_lane = tiles.quads.div_ceil(across);
    let sums: Vec<_> = (0..4 * per_lane).map(|_| k.var(zeros)).collect();
    let [start, end] = p.keys;
    let (keys_met, block_keys) = p.loop_bounds(4 * across);
    k.for_step(0, keys_met, 4 * across, |met| {
        let first = start + met;
        let scores = products(p, &tiles, &q_rows, slice, first);
        let score = |(i, sum): (u32, Var<'k>)| {
            let key = first + x * 4 + i;
            let seen = (key.splat(4) - first_seen).lt(count_seen) & key.lt(end).splat(4);
            let key = key.min(p.seq_kv - 1);
            let mask = mask.map(|(mask, rows)| mask.load_four(rows, key));
            p.score(sum.get(), seen, mask)
        };
        let scores: Vec<_> = (0..).zip(scores).map(score).collect();
        let (weights, rescale) = softmax.add(&scores, |largest| across_rows(k, scratch, across, largest, larger));
        for (i, &weight) in (0..).zip(&weights) {
            weights_tile.store((x * 4 + i) * tiles.down + y, weight);
        }
        sums.iter().for_each(|sum| sum.set(sum.get() * rescale));
        k.for_step(0, block_keys(first), tiles.values, |done| {
            for place in share(k, tiles.values * tiles.quads) {
                let key = first + done + place / tiles.quads;
                let row = p.v.row_at(key.min(p.seq_kv - 1));
                let column = |c| (place % tiles.quads * 4 + c).min(config.columns - 1);
                store_shared(k, tiles.values * tiles.quads, place, || {
                    let values = p.v.load_each([row; 4], [0, 1, 2, 3].map(column));
                    slice.store(place, key.lt(end).select(values, zeros));
                });
            }
            k.barrier();
            k.for_range(0, tiles.values, |value| {
                let weight = weights_tile.load((done + value) * tiles.down + y);
                for (n, sums) in (0..).zip(sums.chunks(4)) {
                    // Quads beyond the last one repeat it; they are not stored.
                    let v = slice.load(value * tiles.quads + (x + n * across).min(tiles.quads - 1));
                    for (c, sum) in (0..).zip(sums) {
                        sum.set(weight.fma(v.lane(c), sum.get()));
                    }
                }
            });
            k.barrier();
        });
    });

    let total = across_rows(k, scratch, across, softmax.total.get(), |a, b| a + b);
    let largest = softmax.largest.get();
    for r in 0..4 {
        let row = p.first_row + y * 4 + r;
        k.when(row.lt(p.rows) & p.batch.lt(p.batches), || {
            for (n, quad) in (0..).zip(sums.chunks(4)) {
                let column = (x + n * across) * 4;
                let quad: Vec<_> = quad.iter().map(|sum| sum.get().lane(r)).collect();
                if config.width() == 4 {
                    k.when(column.lt(config.columns), || p.store(row, column, k.vector(&quad), total.lane(r)));
                    continue;
                }
                for (c, &sum) in (0..).zip(&quad) {
                    let column = column + c;
                    k.when(column.lt(config.columns), || p.store(row, column, sum, total.lane(r)));
                }
            }
            if config.parts {
                k.when(x.eq(0), || p.store_weight(row, largest.lane(r), total.lane(r)));
            }
        });
    }
}

/// Returns the products of an invocation's four rows with its four keys of the block that begins at `first`. Each key
/// has a vector with the products of the four rows.
fn products<'k>(
    p: &AttentionBlock<'k>,
    tiles: &Tiles,
    q_rows: &[[Value<'k>; 4]],
    slice: Array<'k>,
    first: Value<'k>,
) -> Vec<Var<'k>> {
    let (k, features) = (p.kernel, p.config.features);
    let Tiles { across, down, depth, .. } = *tiles;
    let (q_pitch, k_pitch) = tiles.pitch();
    let k_tile = depth * q_pitch;
    let lane = k.local_index();
    let (x, y) = (lane % across, lane / across);
    let sums: Vec<_> = (0..4).map(|_| k.var(k.number(p.config.rows(), 0))).collect();
    k.for_step(0, features, depth, |start| {
        // Neighbouring lanes read neighbouring features, of four rows.
        let load = |operand: &Operand<'k>, feature: Value<'k>, rows: [Value<'k>; 4]| {
            if features.is_multiple_of(depth) {
                return operand.load_four(rows, feature);
            }
            let elements = operand.load_four(rows, feature.min(features - 1));
            feature.lt(features).select(elements, k.number(p.config.number(), 0))
        };
        for (place, &rows) in share(k, depth * down).zip(q_rows) {
            store_shared(k, depth * down, place, || {
                let queries = load(&p.q, start + place % depth, rows) * p.scale;
                slice.store(place % depth * q_pitch + place / depth, queries);
            });
        }
        for place in share(k, depth * across) {
            store_shared(k, depth * across, place, || {
                let keys = [0, 1, 2, 3].map(|i| (first + place / depth * 4 + i).min(p.seq_kv - 1));
                let keys = load(&p.k, start + place % depth, keys.map(|key| p.k.row_at(key)));
                slice.store(place % depth * k_pitch + place / depth + k_tile, keys);
            });
        }
        k.barrier();
        k.for_range(0, depth, |feature| {
            let queries = slice.load(feature * q_pitch + y);
            let keys = slice.load(feature * k_pitch + x + k_tile);
            for (i, sum) in (0..).zip(&sums) {
                sum.set(queries.fma(keys.lane(i), sum.get()));
            }
        });
        k.barrier();
    });
    sums
}
