//! Reductions over the invocations of a workgroup.

use crate::shader::{Array, KernelBuilder, Type, Value};

/// Which invocation works on what: a whole workgroup on one row, or one invocation (for software devices, where
/// workgroup memory is slow, and for short rows).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Team {
    Invocation,
    Workgroup,
}

/// Invocations per workgroup, for both.
pub(crate) const WORKGROUP: u32 = 64;

/// Terms of a sum that a member adds up before they join its total.
const BLOCK: u32 = 256;

/// A team at work.
#[derive(Clone, Copy)]
pub(super) struct Member<'k> {
    k: &'k KernelBuilder,
    team: Team,
    /// The row that the team works on.
    pub row: Value<'k>,
    /// This invocation's number in the team, and the size of the team.
    pub lane: Value<'k>,
    pub lanes: Value<'k>,
}

impl Team {
    pub(super) const ALL: [Team; 2] = [Team::Invocation, Team::Workgroup];

    pub(super) fn join<'k>(self, k: &'k KernelBuilder) -> Member<'k> {
        match self {
            Team::Invocation => Member { k, team: self, row: k.global_index(), lane: k.u32(0), lanes: k.u32(1) },
            Team::Workgroup => {
                Member { k, team: self, row: k.group_index(), lane: k.local_index(), lanes: k.u32(WORKGROUP) }
            }
        }
    }

    /// The number of workgroups for `rows` rows.
    pub fn groups(self, rows: usize) -> usize {
        match self {
            Team::Invocation => rows.div_ceil(WORKGROUP as usize),
            Team::Workgroup => rows,
        }
    }
}

impl<'k> Member<'k> {
    /// Workgroup memory for [`reduce`](Self::reduce) and [`scan`](Self::scan): one element per invocation.
    pub fn scratch(&self, ty: Type) -> Option<Array<'k>> {
        (self.team == Team::Workgroup).then(|| self.k.workgroup_array(ty, WORKGROUP))
    }

    /// The sum of the team's terms from `start` up to `end`; every member gets it. Terms are added up in blocks first,
    /// so that a long sum does not swallow small terms.
    pub fn sum(
        &self,
        scratch: Option<Array<'k>>,
        zero: Value<'k>,
        [start, end]: [Value<'k>; 2],
        term: impl FnOnce(Value<'k>) -> Value<'k>,
    ) -> Value<'k> {
        let (k, stride) = (self.k, self.lanes * BLOCK);
        let (total, block) = (k.var(zero), k.var(zero));
        k.for_step(start, end, stride, |first| {
            block.set(zero);
            k.for_step(first + self.lane, (first + stride).min(end), self.lanes, |j| block.set(block.get() + term(j)));
            total.set(total.get() + block.get());
        });
        let [sum] = self.reduce([scratch], [total.get()], |[a], [b]| [a + b]);
        sum
    }

    /// Combines the values of all members; every member gets the result. All invocations must come here.
    pub fn reduce<const N: usize>(
        &self,
        scratch: [Option<Array<'k>>; N],
        values: [Value<'k>; N],
        combine: impl Fn([Value<'k>; N], [Value<'k>; N]) -> [Value<'k>; N],
    ) -> [Value<'k>; N] {
        let shared: Vec<Array<'k>> = scratch.into_iter().flatten().collect();
        if shared.len() < N {
            return values;
        }
        let load = |lane: Value<'k>| std::array::from_fn(|i| shared[i].load(lane));
        let store = |values: [Value<'k>; N]| {
            for (array, value) in shared.iter().zip(values) {
                array.store(self.lane, value);
            }
        };
        store(values);
        self.k.barrier();
        let mut half = WORKGROUP / 2;
        while half > 0 {
            self.k.when(self.lane.lt(half), || store(combine(load(self.lane), load(self.lane + half))));
            self.k.barrier();
            half /= 2;
        }
        let result = load(self.k.u32(0));
        // The memory is used again: nobody may write it before all have read the result.
        self.k.barrier();
        result
    }

    /// The sum of the values of the members before this one, and that of all members. All invocations must come here.
    pub fn scan(&self, scratch: Option<Array<'k>>, value: Value<'k>) -> [Value<'k>; 2] {
        let Some(shared) = scratch else { return [value.literal(0), value] };
        // After a step, each member has the sum of twice as many up to itself (W. Hillis and G. Steele, "Data Parallel
        // Algorithms", 1986).
        let sum = self.k.var(value);
        let mut distance = 1;
        while distance < WORKGROUP {
            shared.store(self.lane, sum.get());
            self.k.barrier();
            let reaches = self.lane.ge(distance);
            let before = shared.load(reaches.select(self.lane - distance, self.lane));
            sum.set(sum.get() + reaches.select(before, 0));
            self.k.barrier();
            distance *= 2;
        }
        shared.store(self.lane, sum.get());
        self.k.barrier();
        let all = shared.load(WORKGROUP - 1);
        // The memory is used again: nobody may write it before all have read the sum.
        self.k.barrier();
        [sum.get() - value, all]
    }
}
