//! [`Steps`]: the steps in which a subgroup goes through its keys.

use super::super::AttentionBlock;
use super::FewRows;
use super::lines::StepPage;
use super::newest::Newest;
use crate::kernels::elements::Runs;
use crate::shader::Value;

/// The steps of a subgroup. Those of a workgroup's subgroups alternate.
pub(super) struct Steps<'a, 'k> {
    p: &'a AttentionBlock<'k, Runs<'k>>,
    few: FewRows,
    /// How far the first step is behind the part's first key.
    own: Value<'k>,
    /// The token that the kernel appends, and whether this subgroup has a step for it, before all others.
    newest: Option<(&'a Newest<'a, 'k>, Value<'k>)>,
}

impl<'a, 'k> Steps<'a, 'k> {
    pub fn new(
        p: &'a AttentionBlock<'k, Runs<'k>>,
        few: FewRows,
        subgroup: Value<'k>,
        newest: Option<&'a Newest<'a, 'k>>,
    ) -> Self {
        let newest = newest.map(|newest| (newest, newest.is_for(subgroup, few.subgroups)));
        Steps { p, few, own: subgroup * few.own_step(), newest }
    }

    /// Loads the first step: by `load_newest` if it is the newest token's, else by `load`, which gets its first key.
    pub fn load_first(
        &self,
        page: &StepPage<'k>,
        load: impl FnOnce(Value<'k>),
        load_newest: impl FnOnce(&Newest<'_, 'k>),
    ) {
        let (p, first) = (self.p, self.p.keys[0] + self.own);
        page.find(p, first);
        let load = || {
            load(first);
            page.find(p, first + self.few.step());
        };
        match self.newest {
            Some((newest, is_newest)) => p.kernel.when(is_newest, || load_newest(newest)).otherwise(load),
            None => load(),
        }
    }

    /// Keeps what has been loaded where it stands. NVIDIA's compiler would otherwise load it after all else.
    pub fn keep_loads(&self) {
        // llvmpipe has shorter subgroups, and lets this barrier count as one of the workgroup. But subgroups may have
        // different numbers of steps.
        if self.few.lanes >= 32 {
            self.p.kernel.subgroup_barrier();
        }
    }

    /// Visits the steps.
    pub fn visit(&self, visit: impl FnOnce(Step<'k>)) {
        let (k, [start, end], step) = (self.p.kernel, self.p.keys, self.few.step());
        let count = end.max(start) - start;
        match self.newest {
            Some((newest, is_newest)) => {
                let more = is_newest.select(k.u32(step), 0);
                let count = count + more;
                k.for_rolled(self.own, count, step, |met| {
                    let is_first = met.lt(self.own + more);
                    let next = start + met - more + step;
                    let first = is_first.select(newest.position, next - step);
                    let end = is_first.select(newest.position + 1, end);
                    visit(Step { first, end, next, has_next: (met + step).lt(count) });
                });
            }
            None => k.for_rolled(self.own, count, step, |met| {
                let first = start + met;
                visit(Step { first, end, next: first + step, has_next: (met + step).lt(count) });
            }),
        }
    }
}

/// The keys that a subgroup takes at a time.
pub(super) struct Step<'k> {
    /// The first key.
    pub first: Value<'k>,
    /// Where keys end.
    pub end: Value<'k>,
    /// The first key of the next step, and whether there is such a step.
    pub next: Value<'k>,
    pub has_next: Value<'k>,
}
