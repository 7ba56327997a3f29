//! Matrix units compute the products. The rows fill half of a unit's lines or less, but units are far faster than the
//! memory. Keys are factors as they lie in memory. Values are factors once the halves of two keys are brought together.
//! Weights are rounded to the dtype of the values.
//!
//! Which lane holds which elements is known of NVIDIA's GPUs: see [`unit_sums`](crate::kernels::unit_sums). Lane
//! `4 g + t` holds the scores of the row `g` and four keys, which are as many elements of its line of the next factor.

use super::super::AttentionBlock;
use super::lines::{Lines, StepPage};
use super::newest::Newest;
use super::parts::Parts;
use super::row::Row;
use super::steps::{Step, Steps};
use super::{FewRows, RUN};
use crate::base::dtype::DType;
use crate::kernels::elements::Runs;
use crate::kernels::unit_sums::{APART, Member, SHARING, UNIT};
use crate::shader::{KernelBuilder, MatrixType, MatrixVar, Value, Var};

/// The columns that eight lanes load at a time, and the units that these are.
const OCTET: u32 = 8 * RUN;
const UNITS: usize = 4;

/// Keys or values, and what has been loaded of them for the next step: some runs of each of the lane's lines.
struct Side<'k> {
    lines: Lines<'k>,
    /// How many runs a line has, and how far the lane's runs of a line are apart.
    runs: u32,
    distance: u32,
    /// The lane's place in each group of runs.
    own: Value<'k>,
    next: Vec<Vec<Var<'k>>>,
}

impl<'k> Side<'k> {
    /// Returns the first run of each group of runs. The lanes of a line load a group together.
    fn groups(&self) -> impl Iterator<Item = u32> + use<'k> {
        (0..self.runs).step_by(self.distance as usize)
    }

    /// Returns whether the lane has a run of a group. `None` if all lanes do.
    fn has_run(&self, group: u32) -> Option<Value<'k>> {
        (group + self.distance > self.runs).then(|| (self.own + group).lt(self.runs))
    }

    /// Returns the lane's run of a group, or the last one.
    fn run(&self, group: u32) -> Value<'k> {
        let run = self.own + group;
        if self.has_run(group).is_some() { run.min(self.runs - 1) } else { run }
    }
}

/// A workgroup at work.
struct Work<'a, 'k> {
    k: &'k KernelBuilder,
    p: &'a AttentionBlock<'k, Runs<'k>>,
    few: FewRows,
    types: [MatrixType; 3],
    member: Member<'k>,
    row: Row<'k>,
    /// The runs of the row's query.
    query: Vec<Value<'k>>,
    keys: Side<'k>,
    values: Side<'k>,
    page: StepPage<'k>,
    /// The sums of the row's columns, a unit for each 16 of them.
    sums: Vec<MatrixVar<'k>>,
}

pub(super) fn write<'k>(p: &AttentionBlock<'k, Runs<'k>>, few: FewRows, newest: Option<Newest<'_, 'k>>) {
    let work = Work::new(p, few, newest.as_ref());
    let parts = Parts::new(p, few);
    work.add_keys(newest.as_ref());
    work.share(&parts);
    parts.finish();
}

impl<'a, 'k> Work<'a, 'k> {
    fn new(p: &'a AttentionBlock<'k, Runs<'k>>, few: FewRows, newest: Option<&Newest<'_, 'k>>) -> Self {
        let (k, config) = (p.kernel, &p.config);
        let types = MatrixType::of_units(config.dtype, [UNIT; 3]);
        let member = Member::new(k);
        let side = |operand, elements: u32, distance: u32, own: Value<'k>, lines: usize| {
            let runs = elements / RUN;
            let line = || (0..runs).step_by(distance as usize).map(|_| k.var(k.u32(0).splat(4))).collect();
            let next = (0..lines).map(|_| line()).collect();
            Side { lines: Lines::new(p, operand, RUN, k.u32(0)), runs, distance, own, next }
        };
        let keys = side(&p.k, config.features, SHARING, member.t, 2);
        let values = side(&p.v, config.columns, OCTET / RUN, member.g, 4);
        // Lanes without a row compute the last one again.
        let row = member.g.min(few.rows - 1);
        let first = p.row_at(&p.q, row) / RUN;
        let query = keys.groups().map(|group| {
            let run = keys.run(group);
            let run = match newest {
                Some(newest) => newest.rotated(p.q.source, first, run),
                None => p.q.source.load_packed(first + run),
            };
            or_zero(keys.has_run(group), run)
        });
        Work {
            k,
            p,
            few,
            types,
            member,
            row: Row::new(p, few, row),
            query: query.collect(),
            keys,
            values,
            page: StepPage::new(p),
            sums: (0..few.quads() / 4).map(|_| k.zero_matrix(types[2])).collect(),
        }
    }

    /// Returns how far the lane's keys of a step are behind the step's first one, and how far they are apart.
    fn own_keys(&self) -> (Value<'k>, [u32; 4]) {
        (self.member.t * 2, [0, 1, APART, APART + 1])
    }

    /// Loads what a step needs. Beyond the last key, the last one is loaded again, or what the page holds there.
    fn load(&self, side: &Side<'k>, key: Value<'k>, line: Value<'k>, apart: &[u32]) {
        let lines = side.lines.places(&self.page, [key, line], apart);
        for (next, line) in side.next.iter().zip(lines) {
            for (next, group) in next.iter().zip(side.groups()) {
                next.set(side.lines.source.load_packed(line + side.run(group)));
            }
        }
    }

    fn load_keys(&self, first: Value<'k>) {
        self.load(&self.keys, first, self.member.g, &[0, APART]);
    }

    fn load_values(&self, first: Value<'k>) {
        let (own, apart) = self.own_keys();
        self.load(&self.values, first, own, &apart);
    }

    /// Goes through the keys of this part. While a step is computed, the next one is loaded.
    fn add_keys(&self, newest: Option<&Newest<'_, 'k>>) {
        let (k, p, few) = (self.k, self.p, self.few);
        let steps = Steps::new(p, few, self.member.subgroup, newest);
        let load_first = |first| {
            self.load_keys(first);
            self.load_values(first);
        };
        steps.load_first(&self.page, load_first, |newest| self.load_newest(newest));
        steps.visit(|Step { first, end, next, has_next }| {
            let scores = self.scores();
            k.when(has_next, || self.load_keys(next));
            steps.keep_loads();
            let (own, apart) = self.own_keys();
            let keys = apart.map(|apart| first + own + apart);
            let lane = k.local_index() % few.lanes;
            let of_row = |largest: Value<'k>| {
                [1, 2].into_iter().fold(largest, |x, distance| x.larger(x.subgroup_shuffle(lane ^ distance)))
            };
            let (weights, rescale) = self.row.weights(p, keys.into_iter().zip(scores), end, of_row);
            self.add_values(&weights, rescale, keys.map(|key| key.lt(end)));
            k.when(has_next, || {
                self.load_values(next);
                self.page.find(p, next + few.step());
            });
        });
    }

    /// Loads the newest key and value as the first ones of a step, and appends them to the cache.
    fn load_newest(&self, newest: &Newest<'_, 'k>) {
        let Member { g, t, .. } = self.member;
        // The lanes that hold the first key, and its value.
        for (number, (side, is_first)) in [(&self.keys, g.eq(0)), (&self.values, t.eq(0))].into_iter().enumerate() {
            for (next, group) in side.next[0].iter().zip(side.groups()) {
                let run = side.run(group);
                let packed = newest.load(number, run);
                let is_stored = side.has_run(group).map_or(is_first, |has| is_first & has);
                self.k.when(is_stored, || newest.store(number, run, packed));
                // The other keys of the step are behind the last one.
                next.set(packed);
            }
        }
    }

    /// Returns the scaled products of the row and the lane's keys.
    fn scores(&self) -> [Value<'k>; 4] {
        let (k, types) = (self.k, self.types);
        let products = k.zero_matrix(types[2]);
        for (i, (group, query)) in self.keys.groups().zip(&self.query).enumerate() {
            let has = self.keys.has_run(group);
            let lines: Vec<_> = self.keys.next.iter().map(|line| or_zero(has, line[i].get())).collect();
            for half in 0..2 {
                let words = |run: &Value<'k>| [0, 1].map(|word| run.lane(half * 2 + word));
                let rows = only_row(words(query)).to_vec();
                let keys: Vec<_> = lines.iter().flat_map(words).collect();
                let [rows, keys] =
                    [(types[0], rows), (types[1], keys)].map(|(ty, words)| k.matrix_of_words(ty, &words));
                products.set(rows.multiply_add(keys, products.get()));
            }
        }
        let scale = Row::scale(self.p);
        [0, 1, 2, 3].map(|key| products.element(key) * scale)
    }

    /// Adds the values times their weights to the sums. Those that are not there may be no numbers.
    fn add_values(&self, weights: &[Value<'k>], rescale: Value<'k>, are_there: [Value<'k>; 4]) {
        let (k, types) = (self.k, self.types);
        let weights: Vec<_> = weights.chunks(2).map(|pair| self.rounded(pair[0], pair[1])).collect();
        let weights = k.matrix_of_words(types[0], &only_row([weights[0], weights[1]]));
        let rescale = k.matrix_of_elements(types[2], &[rescale; 8]);
        for (octet, sums) in self.sums.chunks(UNITS).enumerate() {
            let lines = self.values.next.iter().zip(&are_there);
            let runs: Vec<_> = lines.map(|(line, there)| there.select(line[octet].get(), 0)).collect();
            for (word, sum) in (0..).zip(sums) {
                let words: Vec<_> = runs.iter().map(|run| run.lane(word)).collect();
                let columns = [0, 1].map(|upper| [[0, 1], [2, 3]].map(|pair| k.halves(pair.map(|i| words[i]), upper)));
                let columns = k.matrix_of_words(types[1], &columns.concat());
                sum.set(weights.multiply_add(columns, sum.get().times(rescale)));
            }
        }
    }

    /// Returns two weights in the dtype of the units.
    fn rounded(&self, a: Value<'k>, b: Value<'k>) -> Value<'k> {
        if self.p.config.dtype == DType::BF16 { self.k.pack_bf16(a, b) } else { self.k.pack_f16(a, b) }
    }

    /// Adds up what the lanes of a row have of its weights, and stores it with the sums.
    fn share(&self, parts: &Parts<'_, 'k>) {
        let (k, Member { subgroup, g, t }) = (self.k, self.member);
        let lane = k.local_index() % self.few.lanes;
        let total = [1, 2].into_iter().fold(self.row.total.get(), |x, n| x + x.subgroup_shuffle(lane ^ n));
        let place = [subgroup, g];
        k.when(g.lt(self.few.rows), || {
            k.when(t.eq(0), || parts.set_state(place, [self.row.largest.get(), total]));
            for (octet, units) in (0..).zip(self.sums.chunks(UNITS)) {
                for (run, quad) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    // A unit has two columns of a run.
                    let units = units[quad as usize * 2..][..2].iter();
                    let sums = units.flat_map(|unit| [unit.element(run), unit.element(run + 2)]);
                    let at = (t * 2 + (octet * OCTET / RUN + run)) * 2 + quad;
                    parts.set_sums(place, at, &sums.collect::<Vec<_>>());
                }
            }
        });
    }
}

/// Returns a lane's words of an operand of rows, of which the first half is there. The others are 0.
fn only_row<'k>(words: [Value<'k>; 2]) -> [Value<'k>; 4] {
    let zero = words[0].literal(0);
    [words[0], words[1], zero, zero]
}

/// Returns a run, or zeros if it is not there.
fn or_zero<'k>(is_there: Option<Value<'k>>, run: Value<'k>) -> Value<'k> {
    is_there.map_or(run, |there| there.select(run, 0))
}
