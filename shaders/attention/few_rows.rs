//! Attention of a few rows, which share each key. Memory bandwidth limits it, so keys and values are read once, 16
//! bytes at a time, and loaded ahead. Several lanes share a key, and a subgroup takes several keys at a time. The
//! subgroups of a workgroup share the keys, and so do workgroups: the last one to finish joins the parts, in order.

use super::{AttentionBlock, FLOATS, lowest};
use crate::base::dtype::DType;
use crate::kernels::elements::Runs;
use crate::kernels::pages::{BLOCK, PAGE};
use crate::kernels::workgroup::is_last;
use crate::shader::{Access, Array, KernelBuilder, Scalar, Type, Value, Var};
use std::f64::consts::LOG2_E;

/// How workgroups divide the keys of a few rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FewRows {
    /// The rows.
    pub rows: u32,
    /// Whether each head has one query.
    pub is_step: bool,
    /// The subgroups of a workgroup, and their lanes.
    subgroups: u32,
    lanes: u32,
    /// The lanes that share a key, a power of two, and the elements of a run of 16 bytes.
    sharing: u32,
    per_run: u32,
    /// Whether keys and values are packed rows.
    pub packed: bool,
    /// Whether several workgroups share the keys. Their parts are joined.
    pub joined: bool,
}

/// Parts that are loaded at a time as they are joined.
const TOGETHER: u32 = 4;

impl FewRows {
    /// With more rows, sums would not fit the registers.
    const MOST: usize = 8;

    /// Returns how the rows of some heads and queries are divided. Subgroups have `lanes` lanes. Keys and values have
    /// at most `length` elements of this dtype, or are packed. `None` if a subgroup cannot hold a key.
    pub fn new(
        (dtype, packed): (DType, bool),
        [heads, queries]: [usize; 2],
        length: usize,
        lanes: u32,
    ) -> Option<FewRows> {
        let rows = heads * queries;
        let per_run = if packed { 16 } else { 16 / dtype.size_in_bytes() };
        let sharing = length.div_ceil(per_run).next_power_of_two();
        let fits = (1..=FewRows::MOST).contains(&rows) && (1..=lanes as usize).contains(&sharing);
        let [rows, sharing, per_run] = [rows, sharing, per_run].map(|n| n as u32);
        let subgroups = if sharing * per_run * rows > 1024 { 4 } else { 8 };
        let is_step = queries == 1;
        fits.then_some(FewRows { rows, is_step, subgroups, lanes, sharing, per_run, packed, joined: false })
    }

    /// Returns the same for workgroups that share the keys or do not.
    pub fn joined(self, joined: bool) -> FewRows {
        FewRows { joined, ..self }
    }

    /// Returns samples, with the features and columns of keys and values.
    pub fn samples() -> Vec<(DType, FewRows, [u32; 2])> {
        let sample = |(dtype, packed, rows, length, joined)| {
            let few = FewRows::new((dtype, packed), [rows, 1], length, 32)?.joined(joined);
            let columns = if packed { length } else { length - few.per_run as usize };
            Some((dtype, few, [length, columns].map(|n| n as u32)))
        };
        let all = [
            (DType::F16, false, 1, 128, true),
            (DType::BF16, false, 4, 80, false),
            (DType::F32, false, 8, 64, true),
            (DType::F16, true, 1, 128, true),
            (DType::BF16, true, 4, 96, false),
            (DType::F32, true, 8, 64, true),
        ];
        all.into_iter().filter_map(sample).collect()
    }

    pub fn name(self) -> String {
        let step = if self.is_step { ", a step" } else { "" };
        let joined = if self.joined { ", joined" } else { "" };
        format!("{} rows{step}, {} subgroups, {} lanes a key{joined}", self.rows, self.subgroups, self.sharing)
    }

    pub const fn workgroup(self) -> u32 {
        self.subgroups * self.lanes
    }

    /// The bytes of workgroup memory.
    pub const fn memory(self) -> u32 {
        self.subgroups * self.rows * (16 * self.quads() + 8) + 4
    }

    /// How many workgroups have as many subgroups as that.
    pub fn workgroups(self, subgroups: usize) -> usize {
        // With several rows, a subgroup has more to compute, and half as many are enough.
        subgroups / self.subgroups as usize / if self.rows == 1 { 1 } else { 2 }
    }

    /// The keys that a subgroup takes side by side, and how many of these it takes at a time.
    const fn apart(self) -> u32 {
        self.lanes / self.sharing
    }

    const fn turns(self) -> u32 {
        match self.rows {
            1..=4 => 4,
            _ => 2,
        }
    }

    /// The keys of a subgroup's step, and of a workgroup's.
    pub const fn own_step(self) -> u32 {
        self.apart() * self.turns()
    }

    pub const fn step(self) -> u32 {
        self.own_step() * self.subgroups
    }

    /// The vectors of four that hold a row's sums.
    pub const fn quads(self) -> u32 {
        self.sharing * self.per_run / 4
    }

    /// The invocations that join the same quad of a row, each for some of the parts.
    fn slices(self) -> u32 {
        (self.workgroup() / (self.rows * self.quads())).clamp(1, self.subgroups)
    }
}

/// The state of a row in a lane: the largest exponent so far, the sum of the weights, and the sums of the values in
/// the lane's columns.
struct Row<'k> {
    /// The lane's features of the query, multiplied by the scale.
    query: Vec<Value<'k>>,
    /// The first key that the row sees, and the number of keys that it sees.
    seen: [Value<'k>; 2],
    /// Where the row of the mask begins.
    mask: Option<Value<'k>>,
    largest: Var<'k>,
    total: Var<'k>,
    sums: Vec<Var<'k>>,
}

/// Keys or values, and what has been loaded of them for the next step.
struct Side<'k> {
    source: Runs<'k>,
    /// Where the first key's run of this lane begins, and the distance between keys, in runs. If there are pages, also
    /// the distance between pages.
    first: Value<'k>,
    stride: Value<'k>,
    page_stride: Option<Value<'k>>,
    /// Where the scale of a packed run of this lane is, in words from the run's own words on: see
    /// [`scale_at`](crate::kernels::pages::scale_at).
    scale: Option<Value<'k>>,
    next: Vec<Var<'k>>,
    next_scales: Vec<Var<'k>>,
}

impl<'k> Side<'k> {
    /// Returns the numbers of a run that has been loaded, without its scale.
    fn numbers(&self, run: Value<'k>) -> Vec<Value<'k>> {
        let numbers = self.source.unpack(run).into_iter();
        if self.scale.is_some() { numbers.map(|digit| digit.convert(Scalar::F32)).collect() } else { numbers.collect() }
    }
}

/// A workgroup at work.
struct Work<'a, 'k> {
    k: &'k KernelBuilder,
    p: &'a AttentionBlock<'k, Runs<'k>>,
    few: FewRows,
    subgroup: Value<'k>,
    lane: Value<'k>,
    rows: Vec<Row<'k>>,
    /// Whether the lane has features of a key. `None` if all lanes do.
    has_features: Option<Value<'k>>,
    sides: [Side<'k>; 2],
    /// The page of the keys that are loaded next.
    page: Option<Var<'k>>,
    /// For each of several parts: the sums of each row, and its largest exponent with the sum of the weights.
    sums: Array<'k>,
    states: Array<'k>,
    /// The number of workgroups that were ready before.
    ready: Array<'k>,
}

impl<'a, 'k> Work<'a, 'k> {
    fn new(p: &'a AttentionBlock<'k, Runs<'k>>, few: FewRows) -> Self {
        let (k, config) = (p.kernel, &p.config);
        let (subgroup, lane) = (k.local_index() / few.lanes, k.local_index() % few.lanes);
        let run = lane % few.sharing;
        let side = |i: usize, elements: u32| {
            let (operand, runs) = ([&p.k, &p.v][i], elements / few.per_run);
            Side {
                source: operand.source,
                first: operand.first / few.per_run + run.min(runs - 1),
                stride: operand.strides.stride(2) / few.per_run,
                page_stride: operand.pages.map(|_| operand.strides.stride(3) / few.per_run),
                scale: few.packed.then(|| {
                    let run = run.min(runs - 1);
                    run / (BLOCK as u32 / few.per_run) + elements / 4 - run * 4
                }),
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
            let first = p.row_at(&p.q, row) / p.q.source.length() + run.min(runs - 1) * several;
            let query = (0..several).flat_map(|i| p.q.source.load(first + i)).collect::<Vec<_>>();
            let scale = p.scale * if p.softcap.is_some() { 1.0 } else { LOG2_E };
            Row {
                query: query.into_iter().map(|x| x * scale).collect(),
                seen: p.keys_of_row(row),
                mask: p.mask.as_ref().map(|mask| p.row_at(mask, row)),
                largest: k.var(lowest(k, Type::F32)),
                total: k.var(zero),
                sums: (0..few.per_run).map(|_| k.var(zero)).collect(),
            }
        };
        let parts = few.subgroups * few.rows;
        Work {
            k,
            p,
            few,
            subgroup,
            lane,
            rows: (0..few.rows).map(row).collect(),
            has_features: (runs < few.sharing).then(|| run.lt(runs)),
            sides: [side(0, config.features), side(1, config.columns)],
            page: p.k.pages.map(|_| k.var(k.u32(0))),
            sums: k.workgroup_array(FLOATS, parts * few.quads()),
            states: k.workgroup_array(Type::vec2(Scalar::F32), parts),
            ready: k.workgroup_array(Type::U32, 1),
        }
    }

    /// Returns the keys of a lane in the step that begins at a key.
    fn keys(&self, first: Value<'k>) -> Vec<Value<'k>> {
        let own = first + self.lane / self.few.sharing;
        (0..self.few.turns()).map(|turn| own + turn * self.few.apart()).collect()
    }

    /// Looks up the page of the step that begins at a key, before its keys are loaded. Behind the last page, that is
    /// the last one.
    fn find_page(&self, first: Value<'k>) {
        if let Some((page, pages)) = self.page.as_ref().zip(self.p.k.pages) {
            page.set(pages.page_of(first.min(self.p.seq_kv - 1)));
        }
    }

    /// Loads what a step needs. Beyond the last key, the last one is loaded again, or what the page holds there. It
    /// counts as zeros.
    fn load(&self, side: &Side<'k>, first: Value<'k>) {
        let apart = side.stride * self.few.apart();
        let own = self.lane / self.few.sharing;
        let runs: Vec<_> = match self.page.as_ref().zip(side.page_stride) {
            Some((page, page_stride)) => {
                let own = side.first + page.get() * page_stride + (first % PAGE + own) * side.stride;
                (0..self.few.turns()).map(|turn| own + apart * turn).collect()
            }
            None => {
                let last = side.first + (self.p.seq_kv - 1) * side.stride;
                let own = side.first + (first + own) * side.stride;
                (0..self.few.turns()).map(|turn| (own + apart * turn).min(last)).collect()
            }
        };
        if let Some(scale) = side.scale {
            let scales = runs.iter().map(|&run| side.source.load_word(run * 4 + scale).bitcast(Type::F32));
            side.next_scales.iter().zip(scales).for_each(|(next, scale)| next.set(scale));
        }
        side.next.iter().zip(runs).for_each(|(next, run)| next.set(side.source.load_packed(run)));
    }

    /// Goes through the keys of this part. While a step is computed, the next one is loaded.
    fn add_keys(&self) {
        let (k, few, [start, end]) = (self.k, self.few, self.p.keys);
        let count = end.max(start) - start;
        let first = start + self.subgroup * few.own_step();
        self.find_page(first);
        self.sides.iter().for_each(|side| self.load(side, first));
        self.find_page(first + few.step());
        k.for_rolled(self.subgroup * few.own_step(), count, few.step(), |met| {
            let first = start + met;
            let [keys, values] = &self.sides;
            let scores = self.scores(keys);
            self.load(keys, first + few.step());
            // An H100's compiler would otherwise load these keys after all else.
            k.subgroup_barrier();
            let weights: Vec<_> =
                self.rows.iter().zip(scores).map(|(row, scores)| self.weights(row, scores, first)).collect();
            for (turn, (next, key)) in values.next.iter().zip(self.keys(first)).enumerate() {
                let is_there = key.lt(self.p.seq_kv);
                let there = is_there.select(next.get(), values.source.zeros(k));
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
            self.load(values, first + few.step());
            self.find_page(first + 2 * few.step());
        });
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
        while distance < self.few.sharing {
            for score in scores.iter_mut().flatten() {
                *score = *score + score.subgroup_shuffle(self.lane ^ distance);
            }
            distance *= 2;
        }
        scores
    }

    /// Adds the weights of a step's keys to a row, and returns them. The row's sums are rescaled.
    fn weights(&self, row: &Row<'k>, scores: Vec<Value<'k>>, first: Value<'k>) -> Vec<Value<'k>> {
        let (p, minus_infinity) = (self.p, self.k.f32(f32::NEG_INFINITY));
        let exponent = |(key, score): (Value<'k>, Value<'k>)| {
            let score = p.softcap.map_or(score, |cap| score.divide(cap).tanh() * cap * LOG2_E);
            let seen = key.lt(p.keys[1]) & (key - row.seen[0]).lt(row.seen[1]);
            let mask = p.mask.as_ref().zip(row.mask).map(|(mask, row)| mask.load(row, key.min(p.seq_kv - 1)));
            match mask.map(|mask| p.exponent_of_mask(seen, mask)) {
                Some((seen, exponent)) => seen.select(score + exponent, minus_infinity),
                None => seen.select(score, minus_infinity),
            }
        };
        let exponents: Vec<_> = self.keys(first).into_iter().zip(scores).map(exponent).collect();
        let before = row.largest.get();
        let largest = exponents.iter().fold(before, |largest, &exponent| largest.larger(exponent));
        let rescale = (before - largest).exp2_of_device();
        let weights: Vec<_> = exponents.iter().map(|&exponent| (exponent - largest).exp2_of_device()).collect();
        row.largest.set(largest);
        row.total.set(weights.iter().fold(row.total.get() * rescale, |total, &weight| total + weight));
        row.sums.iter().for_each(|sum| sum.set(sum.get() * rescale));
        weights
    }

    /// Adds up what the lanes of a subgroup have summed over different keys, and stores it in workgroup memory.
    fn share(&self) {
        let (k, few) = (self.k, self.few);
        for (i, row) in (0..).zip(&self.rows) {
            let mut distance = few.sharing;
            while distance < few.lanes {
                let other = |var: &Var<'k>| var.get().subgroup_shuffle(self.lane ^ distance);
                let (before, found) = (row.largest.get(), other(&row.largest));
                let largest = before.larger(found);
                let rescale = (before - largest).exp2_of_device();
                row.largest.set(largest);
                for sum in row.sums.iter().chain([&row.total]) {
                    sum.set(sum.get() * rescale);
                    sum.set(sum.get() + other(sum));
                }
                distance *= 2;
            }
            let place = self.subgroup * few.rows + i;
            let state = k.vector(&[row.largest.get(), row.total.get()]);
            k.when(self.lane.eq(0), || self.states.store(place, state));
            k.when(self.lane.lt(few.sharing), || {
                let quads = few.per_run / 4;
                for quad in 0..quads {
                    let sums: Vec<_> = row.sums[quad as usize * 4..][..4].iter().map(|sum| sum.get()).collect();
                    self.sums.store(place * few.quads() + self.lane * quads + quad, k.vector(&sums));
                }
            });
        }
        k.barrier();
    }

    /// Visits the quads of all rows, each by one invocation: the row, the quad, and the state and sums of `count` parts
    /// in workgroup memory, joined.
    fn join(&self, count: u32, visit: impl Fn(Value<'k>, Value<'k>, [Value<'k>; 2], Value<'k>)) {
        let (k, few) = (self.k, self.few);
        k.for_step(k.local_index(), few.rows * few.quads(), few.workgroup(), |place| {
            let (row, quad) = (place / few.quads(), place % few.quads());
            let at = |part: u32| row + part * few.rows;
            let states: Vec<_> = (0..count).map(|part| self.states.load(at(part))).collect();
            let mut largest = states[0].lane(0);
            for state in &states[1..] {
                largest = largest.larger(state.lane(0));
            }
            let (mut total, mut sums) = (k.f32(0.0), k.f32(0.0).splat(4));
            for (part, state) in (0..).zip(&states) {
                let rescale = (state.lane(0) - largest).exp2_of_device();
                total = rescale.fma(state.lane(1), total);
                sums = rescale.splat(4).fma(self.sums.load(at(part) * few.quads() + quad), sums);
            }
            visit(row, quad, [largest, total], sums);
        });
    }

    /// Stores four columns of a row.
    fn store(&self, row: Value<'k>, quad: Value<'k>, total: Value<'k>, sums: Value<'k>) {
        let (k, p) = (self.k, self.p);
        k.when((quad * 4).lt(p.config.columns) & p.batch.lt(p.batches), || p.store(row, quad * 4, sums, total));
    }

    /// Joins the parts of all workgroups, if this is the last one to have stored its part.
    fn join_workgroups(&self) {
        let (k, p, few) = (self.k, self.p, self.few);
        let shared = k.buffer("parts", FLOATS, Access::ReadWrite);
        let counts = k.buffer("counts", Type::U32, Access::ReadWrite);
        let (quads, slices) = (few.quads(), few.slices());
        // A row has a quad more, with its state.
        let place = |part: Value<'k>, row: Value<'k>| ((p.batch * p.parts + part) * few.rows + row) * (quads + 1);
        let is_there = p.batch.lt(p.batches);
        self.join(few.subgroups, |row, quad, [largest, total], sums| {
            k.when(is_there, || {
                let first = place(p.part, row);
                shared.store_for_all(first + quad, sums);
                let zero = k.f32(0.0);
                k.when(quad.eq(0), || shared.store_for_all(first + quads, k.vector(&[largest, total, zero, zero])));
            });
        });
        // Surplus workgroups have a counter, too, and nothing to store.
        let last = is_last(counts, p.batch, p.parts, self.ready);
        k.when(last & is_there, || {
            let lowest = lowest(k, Type::F32);
            let (zero, zeros) = (k.f32(0.0), k.f32(0.0).splat(4));
            // Each slice joins some of the parts.
            k.for_step(k.local_index(), few.rows * quads * slices, few.workgroup(), |item| {
                let (slice, row) = (item / (few.rows * quads), item / quads % few.rows);
                let quad = item % quads;
                let (largest, total, sums) = (k.var(lowest), k.var(zero), k.var(zeros));
                k.for_step(slice, p.parts, slices * TOGETHER, |first| {
                    let parts: Vec<_> = (0..TOGETHER)
                        .map(|i| {
                            let part = first + i * slices;
                            let at = place(part.min(p.parts - 1), row);
                            let state = shared.load_of_all(at + quads);
                            // A part that is not there weighs nothing.
                            let is_there = part.lt(p.parts);
                            let largest = is_there.select(state.lane(0), lowest);
                            let total = is_there.select(state.lane(1), zero);
                            (largest, total, is_there.splat(4).select(shared.load_of_all(at + quad), zeros))
                        })
                        .collect();
                    let before = largest.get();
                    let now = parts.iter().fold(before, |now, (largest, ..)| now.larger(*largest));
                    let rescale = (before - now).exp2_of_device();
                    let (mut all, mut row) = (total.get() * rescale, sums.get() * rescale.splat(4));
                    for &(largest, total, sums) in &parts {
                        let rescale = (largest - now).exp2_of_device();
                        all = rescale.fma(total, all);
                        row = rescale.splat(4).fma(sums, row);
                    }
                    largest.set(now);
                    total.set(all);
                    sums.set(row);
                });
                let place = slice * few.rows + row;
                self.sums.store(place * quads + quad, sums.get());
                k.when(quad.eq(0), || self.states.store(place, k.vector(&[largest.get(), total.get()])));
            });
            k.barrier();
            self.join(slices, |row, quad, [_, total], sums| self.store(row, quad, total, sums));
        });
    }
}

pub(super) fn write<'k>(p: &AttentionBlock<'k, Runs<'k>>, few: FewRows) {
    let work = Work::new(p, few);
    work.add_keys();
    work.share();
    if few.joined {
        work.join_workgroups();
    } else {
        work.join(few.subgroups, |row, quad, [_, total], sums| work.store(row, quad, total, sums));
    }
}
