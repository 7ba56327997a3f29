//! [`Parts`]: the softmax and the sums of each row over some of the keys, which invocations share to join them.

use super::super::{AttentionBlock, FLOATS, lowest};
use super::{FewRows, PAIR};
use crate::kernels::elements::Runs;
use crate::kernels::workgroup::is_last;
use crate::shader::{Access, Array, Type, Value};

/// Parts that are loaded at a time as they are joined.
const TOGETHER: u32 = 4;

/// The parts of a workgroup's subgroups, in workgroup memory.
pub(super) struct Parts<'a, 'k> {
    p: &'a AttentionBlock<'k, Runs<'k>>,
    few: FewRows,
    /// For each part: the sums of each row, and its largest exponent with the sum of the weights.
    sums: Array<'k>,
    states: Array<'k>,
    /// The number of workgroups that were ready before.
    ready: Array<'k>,
}

impl<'a, 'k> Parts<'a, 'k> {
    pub fn new(p: &'a AttentionBlock<'k, Runs<'k>>, few: FewRows) -> Self {
        let (k, count) = (p.kernel, few.subgroups * few.rows);
        Parts {
            p,
            few,
            sums: k.workgroup_array(FLOATS, count * few.quads()),
            states: k.workgroup_array(PAIR, count),
            ready: k.workgroup_array(Type::U32, 1),
        }
    }

    /// Stores the largest exponent of a subgroup's row, and the sum of its weights.
    pub fn set_state(&self, [subgroup, row]: [Value<'k>; 2], state: [Value<'k>; 2]) {
        self.states.store(subgroup * self.few.rows + row, self.p.kernel.vector(&state));
    }

    /// Stores four sums of a subgroup's row.
    pub fn set_sums(&self, [subgroup, row]: [Value<'k>; 2], quad: Value<'k>, sums: &[Value<'k>]) {
        let place = (subgroup * self.few.rows + row) * self.few.quads() + quad;
        self.sums.store(place, self.p.kernel.vector(sums));
    }

    /// Joins the parts, once all of them are there, and stores the rows.
    pub fn finish(&self) {
        self.p.kernel.barrier();
        match self.few.joined {
            true => self.join_workgroups(),
            false => self.join(self.few.subgroups, |row, quad, [_, total], sums| self.store(row, quad, total, sums)),
        }
    }

    /// Visits the quads of all rows, each by one invocation: the row, the quad, and the state and sums of `count` parts
    /// in workgroup memory, joined.
    fn join(&self, count: u32, visit: impl Fn(Value<'k>, Value<'k>, [Value<'k>; 2], Value<'k>)) {
        let (k, few) = (self.p.kernel, self.few);
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
        let (k, p) = (self.p.kernel, self.p);
        k.when((quad * 4).lt(p.config.columns) & p.batch.lt(p.batches), || p.store(row, quad * 4, sums, total));
    }

    /// Joins the parts of all workgroups, if this is the last one to have stored its part.
    fn join_workgroups(&self) {
        let (k, p, few) = (self.p.kernel, self.p, self.few);
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
