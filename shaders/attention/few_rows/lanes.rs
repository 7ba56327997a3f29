//! Lanes compute the products. Several lanes share a key, and a subgroup takes several keys at a time.

use super::super::{Attention, AttentionBlock, Operand};
use super::FewRows;
use super::lines::{Lines, StepPage};
use super::newest::Newest;
use super::parts::Parts;
use super::row::Row;
use super::steps::{Step, Steps};
use crate::kernels::elements::Runs;
use crate::kernels::pages::BLOCK;
use crate::shader::{KernelBuilder, Scalar, Type, Value, Var};

/// A row, and what the lane has of it.
struct LaneRow<'k> {
    row: Row<'k>,
    /// The lane's features of the query, multiplied by the scale.
    query: Vec<Value<'k>>,
    /// The sums of the values in the lane's columns.
    sums: Vec<Var<'k>>,
}

/// Keys or values, and what has been loaded of them for the next step.
struct Side<'k> {
    lines: Lines<'k>,
    /// Where the scale of a packed run of this lane is, in words from the run's own words on: see
    /// [`scale_at`](crate::kernels::pages::scale_at).
    scale: Option<Value<'k>>,
    next: Vec<Var<'k>>,
    next_scales: Vec<Var<'k>>,
}

impl<'k> Side<'k> {
    /// Returns the numbers of a run that has been loaded, without its scale.
    fn numbers(&self, run: Value<'k>) -> Vec<Value<'k>> {
        let numbers = self.lines.source.unpack(run).into_iter();
        if self.scale.is_some() { numbers.map(|digit| digit.convert(Scalar::F32)).collect() } else { numbers.collect() }
    }
}

/// A workgroup at work.
struct Work<'a, 'k> {
    k: &'k KernelBuilder,
    p: &'a AttentionBlock<'k, Runs<'k>>,
    few: FewRows,
    /// The lanes that share a key.
    sharing: u32,
    subgroup: Value<'k>,
    lane: Value<'k>,
    rows: Vec<LaneRow<'k>>,
    /// Whether the lane has features of a key. `None` if all lanes do.
    has_features: Option<Value<'k>>,
    sides: [Side<'k>; 2],
    page: StepPage<'k>,
}

pub(super) fn write<'k>(p: &AttentionBlock<'k, Runs<'k>>, few: FewRows, sharing: u32, newest: Option<Newest<'_, 'k>>) {
    let work = Work::new(p, few, sharing, newest.as_ref());
    let parts = Parts::new(p, few);
    work.add_keys(newest.as_ref());
    work.share(&parts);
    parts.finish();
}

impl<'a, 'k> Work<'a, 'k> {
    fn new(p: &'a AttentionBlock<'k, Runs<'k>>, few: FewRows, sharing: u32, newest: Option<&Newest<'_, 'k>>) -> Self {
        let (k, config) = (p.kernel, &p.config);
        let (subgroup, lane) = (k.local_index() / few.lanes, k.local_index() % few.lanes);
        let run = lane % sharing;
        let side = |operand: &Operand<'k, Runs<'k>>, elements: u32| {
            let run = run.min(elements / few.per_run - 1);
            Side {
                lines: Lines::new(p, operand, few.per_run, run),
                scale: few.packed.then(|| run / (BLOCK as u32 / few.per_run) + elements / 4 - run * 4),
                next: (0..few.turns()).map(|_| k.var(operand.source.zeros(k))).collect(),
                next_scales: (0..few.turns()).filter(|_| few.packed).map(|_| k.var(k.f32(0.0))).collect(),
            }
        };
        let zero = k.f32(0.0);
        let runs = config.features / few.per_run;
        let row = |i: u32| {
            let row = k.u32(i);
            // A lane has as many features of a query as of a key, in one run or several.
            let several = few.per_run / p.q.source.length();
            let first = p.row_at(&p.q, row) / p.q.source.length();
            let run = run.min(runs - 1);
            let query: Vec<_> = match newest {
                Some(newest) => p.q.source.unpack(newest.rotated(p.q.source, first, run)),
                None => (0..several).flat_map(|i| p.q.source.load(first + run * several + i)).collect(),
            };
            let scale = Row::scale(p);
            LaneRow {
                row: Row::new(p, few, row),
                query: query.into_iter().map(|x| x * scale).collect(),
                sums: (0..few.per_run).map(|_| k.var(zero)).collect(),
            }
        };
        Work {
            k,
            p,
            few,
            sharing,
            subgroup,
            lane,
            rows: (0..few.rows).map(row).collect(),
            has_features: (runs < sharing).then(|| run.lt(runs)),
            sides: [side(&p.k, config.features), side(&p.v, config.columns)],
            page: StepPage::new(p),
        }
    }

    /// The keys that a subgroup takes side by side.
    const fn side_by_side(&self) -> u32 {
        self.few.lanes / self.sharing
    }

    /// Returns how far the lane's keys of a step are behind the first one.
    fn apart(&self) -> Vec<u32> {
        (0..self.few.turns()).map(|turn| turn * self.side_by_side()).collect()
    }

    /// Returns the keys of a lane in the step that begins at a key.
    fn keys(&self, first: Value<'k>) -> Vec<Value<'k>> {
        let own = first + self.lane / self.sharing;
        self.apart().into_iter().map(|apart| own + apart).collect()
    }

    /// Loads what a step needs. Beyond the last key, the last one is loaded again, or what the page holds there. It
    /// counts as zeros.
    fn load(&self, Side { lines, scale, next, next_scales }: &Side<'k>, first: Value<'k>) {
        let runs = lines.places(&self.page, [first, self.lane / self.sharing], &self.apart());
        if let Some(scale) = *scale {
            let scales = runs.iter().map(|&run| lines.source.load_word(run * 4 + scale).bitcast(Type::F32));
            next_scales.iter().zip(scales).for_each(|(next, scale)| next.set(scale));
        }
        next.iter().zip(runs).for_each(|(next, run)| next.set(lines.source.load_packed(run)));
    }

    /// Goes through the keys of this part. While a step is computed, the next one is loaded.
    fn add_keys(&self, newest: Option<&Newest<'_, 'k>>) {
        let (k, p, few) = (self.k, self.p, self.few);
        let steps = Steps::new(p, few, self.subgroup, newest);
        steps.load_first(
            &self.page,
            |first| self.sides.iter().for_each(|side| self.load(side, first)),
            |newest| self.load_newest(newest),
        );
        steps.visit(|Step { first, end, next, has_next }| {
            let [keys, values] = &self.sides;
            let scores = self.scores(keys);
            k.when(has_next, || self.load(keys, next));
            steps.keep_loads();
            let own_keys = self.keys(first);
            let rows = self.rows.iter().zip(scores);
            let weights: Vec<_> = rows.map(|(row, scores)| self.weights(row, &own_keys, scores, end)).collect();
            for (turn, (next, key)) in values.next.iter().zip(own_keys).enumerate() {
                let is_there = key.lt(end);
                let there = is_there.select(next.get(), values.lines.source.zeros(k));
                // What a page holds behind the last key may be no number.
                let scale = values.next_scales.get(turn).map(|scale| is_there.select(scale.get(), k.f32(0.0)));
                let scaled = |weight: Value<'k>| scale.map_or(weight, |scale| weight * scale);
                let weights: Vec<_> = weights.iter().map(|weights| scaled(weights[turn])).collect();
                for (e, value) in values.numbers(there).into_iter().enumerate() {
                    for (row, weight) in self.rows.iter().zip(&weights) {
                        let sum = &row.sums[e];
                        sum.set(weight.fma(value, sum.get()));
                    }
                }
            }
            k.when(has_next, || {
                self.load(values, next);
                self.page.find(p, next + few.step());
            });
        });
    }

    /// Loads the newest key and value as the first ones of a step, and appends them to the cache.
    fn load_newest(&self, newest: &Newest<'_, 'k>) {
        let Attention { features, columns, .. } = self.p.config;
        for (number, (side, elements)) in self.sides.iter().zip([features, columns]).enumerate() {
            let runs = elements / self.few.per_run;
            let run = (self.lane % self.sharing).min(runs - 1);
            let packed = newest.load(number, run);
            self.k.when(self.lane.lt(runs), || newest.store(number, run, packed));
            // The other keys of the step are behind the last one.
            side.next[0].set(packed);
        }
    }

    /// Returns the products of each row with the keys of a step. The lanes that share a key all have them.
    fn scores(&self, keys: &Side<'k>) -> Vec<Vec<Value<'k>>> {
        let mut scores: Vec<Vec<_>> = self.rows.iter().map(|_| Vec::new()).collect();
        for (turn, next) in keys.next.iter().enumerate() {
            let key = keys.numbers(next.get());
            for (row, scores) in self.rows.iter().zip(&mut scores) {
                let terms = row.query.iter().zip(&key).skip(1);
                let sum = terms.fold(row.query[0] * key[0], |sum, (&q, &key)| q.fma(key, sum));
                let sum = keys.next_scales.get(turn).map_or(sum, |scale| sum * scale.get());
                // Lanes behind a row have loaded the end of the row.
                scores.push(self.has_features.map_or(sum, |has| has.select(sum, self.k.f32(0.0))));
            }
        }
        let mut distance = 1;
        while distance < self.sharing {
            for score in scores.iter_mut().flatten() {
                *score = *score + score.subgroup_shuffle(self.lane ^ distance);
            }
            distance *= 2;
        }
        scores
    }

    /// Adds the weights of a step's keys to a row, and returns them. The row's sums are rescaled.
    fn weights(&self, row: &LaneRow<'k>, keys: &[Value<'k>], scores: Vec<Value<'k>>, end: Value<'k>) -> Vec<Value<'k>> {
        let scores = keys.iter().copied().zip(scores);
        let (weights, rescale) = row.row.weights(self.p, scores, end, |largest| largest);
        row.sums.iter().for_each(|sum| sum.set(sum.get() * rescale));
        weights
    }

    /// Adds up what the lanes of a subgroup have summed over different keys, and stores it.
    fn share(&self, parts: &Parts<'_, 'k>) {
        let (k, few) = (self.k, self.few);
        for (i, LaneRow { row, sums, .. }) in (0..).zip(&self.rows) {
            let mut distance = self.sharing;
            while distance < few.lanes {
                let other = |var: &Var<'k>| var.get().subgroup_shuffle(self.lane ^ distance);
                let (before, found) = (row.largest.get(), other(&row.largest));
                let largest = before.larger(found);
                let rescale = (before - largest).exp2_of_device();
                row.largest.set(largest);
                for sum in sums.iter().chain([&row.total]) {
                    sum.set(sum.get() * rescale);
                    sum.set(sum.get() + other(sum));
                }
                distance *= 2;
            }
            let place = [self.subgroup, k.u32(i)];
            let state = [row.largest.get(), row.total.get()];
            k.when(self.lane.eq(0), || parts.set_state(place, state));
            k.when(self.lane.lt(self.sharing), || {
                let quads = few.per_run / 4;
                for (quad, sums) in (0..).zip(sums.chunks(4)) {
                    let sums: Vec<_> = sums.iter().map(|sum| sum.get()).collect();
                    parts.set_sums(place, self.lane * quads + quad, &sums);
                }
            });
        }
    }
}
