//! Folds and scans over the invocations of a workgroup.

use super::fold::{Fold, State};
use crate::shader::{Array, KernelBuilder, Type, Value, Var};

/// Which invocation works on what: a whole workgroup of so many invocations on one row, or one invocation (for software
/// devices, where workgroup memory is slow, and for short rows).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Team {
    Invocation,
    Workgroup(u32),
    /// So many members for each of so many rows, which share a workgroup: where rows lie side by side in memory, neighbours
    /// work on neighbours.
    Columns {
        members: u32,
        side_by_side: u32,
    },
}

/// Invocations per workgroup where each works alone, and of the usual team.
pub(crate) const WORKGROUP: u32 = 64;

/// What a member takes of a row at a time. Several loads are on their way at once, and WGSL has no way to ask for a loop
/// to be unrolled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Turn {
    /// One element: for software devices.
    Single,
    /// Some elements, by as many loads.
    Singles,
    /// The same by fours that lie side by side, at multiples of four.
    Quads,
}

impl Turn {
    /// The loads of a turn.
    const fn loads(self) -> u32 {
        match self {
            Turn::Single => 1,
            Turn::Singles => 8,
            Turn::Quads => 4,
        }
    }

    /// The elements of a load.
    pub const fn width(self) -> u32 {
        if matches!(self, Turn::Quads) { 4 } else { 1 }
    }
}

/// Turns of a member whose elements are folded by themselves before they join the rest: a compensated sum of `n` terms in
/// a row loses up to n^2 2^-48 of the sum of their magnitudes.
const BLOCK: u32 = 1024;

/// A team at work.
#[derive(Clone, Copy)]
pub(super) struct Member<'k> {
    pub k: &'k KernelBuilder,
    team: Team,
    /// The row that the team works on.
    pub row: Value<'k>,
    /// This invocation's number in the team.
    pub lane: Value<'k>,
    /// The lanes of a subgroup, if subgroups are used.
    subgroup: Option<u32>,
}

impl Team {
    pub(super) const ALL: [Team; 2] = [Team::Invocation, Team::Workgroup(WORKGROUP)];

    pub(super) fn join<'k>(self, k: &'k KernelBuilder) -> Member<'k> {
        match self {
            Team::Invocation => Member { k, team: self, row: k.global_index(), lane: k.u32(0), subgroup: None },
            Team::Workgroup(_) => Member { k, team: self, row: k.group_index(), lane: k.local_index(), subgroup: None },
            Team::Columns { side_by_side, .. } => {
                let (row, lane) = (k.local_index() % side_by_side, k.local_index() / side_by_side);
                Member { k, team: self, row: k.group_index() * side_by_side + row, lane, subgroup: None }
            }
        }
    }

    /// The invocations that work on a row.
    pub const fn size(self) -> u32 {
        match self {
            Team::Invocation => 1,
            Team::Workgroup(size) | Team::Columns { members: size, .. } => size,
        }
    }

    /// Invocations per workgroup.
    pub const fn workgroup(self) -> u32 {
        match self {
            Team::Invocation => WORKGROUP,
            Team::Workgroup(size) => size,
            Team::Columns { members, side_by_side } => members * side_by_side,
        }
    }

    /// The number of workgroups for `rows` rows.
    pub fn groups(self, rows: usize) -> usize {
        match self {
            Team::Invocation => rows.div_ceil(WORKGROUP as usize),
            Team::Workgroup(_) => rows,
            Team::Columns { side_by_side, .. } => rows.div_ceil(side_by_side as usize),
        }
    }
}

impl<'k> Member<'k> {
    /// The same in a team whose subgroups have so many lanes, neighbours in it, and combine their values by themselves.
    pub fn in_subgroups(self, lanes: Option<u32>) -> Self {
        Member { subgroup: lanes.filter(|_| matches!(self.team, Team::Workgroup(_))), ..self }
    }

    /// The size of the team.
    pub fn lanes(&self) -> u32 {
        self.team.size()
    }

    /// Workgroup memory for states: one number per invocation for each of a state's.
    pub fn scratch(&self, types: impl IntoIterator<Item = Type>) -> Vec<Array<'k>> {
        let shared = self.team != Team::Invocation;
        types.into_iter().filter(|_| shared).map(|ty| self.k.workgroup_array(ty, self.team.workgroup())).collect()
    }

    /// Where in workgroup memory the state of a member of this row is.
    fn place(&self, lane: Value<'k>) -> Value<'k> {
        match self.team {
            Team::Columns { side_by_side, .. } => lane * side_by_side + self.k.local_index() % side_by_side,
            Team::Invocation | Team::Workgroup(_) => lane,
        }
    }

    /// Visits the places of this member's loads of a row of `length`, those of a turn together.
    pub fn each_turn(&self, turn: Turn, length: Value<'k>, visit: impl Fn(&[Value<'k>])) {
        let (k, lanes, loads) = (self.k, self.lanes(), turn.loads());
        let whole = if loads > 1 { length - length % (lanes * loads) } else { length };
        k.for_step(self.lane, whole, lanes * loads, |j| {
            visit(&(0..loads).map(|load| j + load * lanes).collect::<Vec<_>>());
        });
        if loads > 1 {
            k.for_step(whole + self.lane, length, lanes, |j| visit(&[j]));
        }
    }

    /// The sum of the team's terms from `start` up to `end`; every member gets it. It is within `log2(lanes) + 2` times
    /// 2^-24 of the sum of magnitudes, however long it is.
    pub fn sum(
        &self,
        zero: Value<'k>,
        turn: Turn,
        bounds: [Value<'k>; 2],
        term: impl Fn(Value<'k>) -> Value<'k>,
    ) -> Value<'k> {
        let fold = Fold::sum(self.k, zero.ty(), |x| x);
        let own = self.fold_own(&fold, turn, || vec![zero], bounds, |j| vec![(fold.map)(term(j), j)]);
        self.reduce((fold.finish)(&own, zero), |a, b| a + b)
    }

    /// The team's elements from `start` up to `end`, folded; every member gets the result. Bounds and places count loads
    /// of a turn, each of which gives the `states` of its elements. `first` is the state that folds without an identity
    /// start with.
    pub fn fold(
        &self,
        fold: &Fold<'k>,
        turn: Turn,
        first: impl FnOnce() -> State<'k>,
        bounds: [Value<'k>; 2],
        states: impl Fn(Value<'k>) -> Vec<State<'k>>,
    ) -> State<'k> {
        let own = self.fold_own(fold, turn, first, bounds, states);
        self.reduce_states(own, |a, b| (fold.combine)(a, b))
    }

    /// This member's part of the same: every `lanes`th load.
    fn fold_own(
        &self,
        fold: &Fold<'k>,
        turn: Turn,
        first: impl FnOnce() -> State<'k>,
        [start, end]: [Value<'k>; 2],
        states: impl Fn(Value<'k>) -> Vec<State<'k>>,
    ) -> State<'k> {
        let (k, lanes, combine) = (self.k, self.lanes(), &fold.combine);
        let pair = |a: &State<'k>, b: &State<'k>| combine(a, b);
        let stride = lanes * turn.loads();
        let first = fold.identity.clone().unwrap_or_else(first);
        let (total, block) = (StateVar::new(k, &first), StateVar::new(k, &first));
        let several = turn.loads() > 1;
        let whole = if several { end - (end - start) % stride } else { end };
        k.for_step(start, whole, stride * BLOCK, |from| {
            block.set(&first);
            k.for_step(from + self.lane, (from + stride * BLOCK).min(whole), stride, |j| {
                let states = (0..turn.loads()).flat_map(|load| states(j + load * lanes)).collect();
                block.set(&combine(&block.get(), &tree(states, &pair)));
            });
            total.set(&combine(&total.get(), &block.get()));
        });
        if several {
            k.for_step(whole + self.lane, end, lanes, |j| {
                total.set(&combine(&total.get(), &tree(states(j), &pair)));
            });
        }
        total.get()
    }

    /// Combines the values of all members; every member gets the result. All invocations must come here.
    pub fn reduce(&self, own: Value<'k>, combine: impl Fn(Value<'k>, Value<'k>) -> Value<'k>) -> Value<'k> {
        self.reduce_states(vec![own], |a, b| vec![combine(a[0], b[0])])[0]
    }

    /// The same for states. Each reduction has memory of its own, so that none has to wait until all have read the one
    /// before.
    fn reduce_states(&self, own: State<'k>, combine: impl Fn(&[Value<'k>], &[Value<'k>]) -> State<'k>) -> State<'k> {
        if self.team == Team::Invocation {
            return own;
        }
        let scratch = self.scratch(own.iter().map(|number| number.ty()));
        let gather = |first: Value<'k>, count: u32, stride: u32| {
            let states = (0..count).map(|i| load(&scratch, self.place(first + i * stride)));
            tree(states.collect(), &|a: &State<'k>, b| combine(a, b))
        };
        if let Some(lanes) = self.subgroup {
            let of_subgroup = self.reduce_subgroup(lanes, own, &combine);
            let subgroups = self.lanes() / lanes;
            if subgroups == 1 {
                return of_subgroup;
            }
            self.k.when((self.lane % lanes).eq(0), || store(&scratch, self.lane / lanes, &of_subgroup));
            self.k.barrier();
            return gather(self.k.u32(0), subgroups, 1);
        }
        // Some members combine what all have, every member what those have.
        let parts = 1 << self.lanes().ilog2().div_ceil(2);
        store(&scratch, self.place(self.lane), &own);
        self.k.barrier();
        self.k.when(self.lane.lt(parts), || {
            store(&scratch, self.place(self.lane), &gather(self.lane, self.lanes() / parts, parts));
        });
        self.k.barrier();
        gather(self.k.u32(0), parts, 1)
    }

    /// The states of a subgroup's lanes combined, by exchange with ever farther ones.
    fn reduce_subgroup(
        &self,
        lanes: u32,
        own: State<'k>,
        combine: &impl Fn(&[Value<'k>], &[Value<'k>]) -> State<'k>,
    ) -> State<'k> {
        let mut state = own;
        let mut distance = 1;
        while distance < lanes {
            let partner = self.k.subgroup_lane() ^ distance;
            let other: State<'k> = state.iter().map(|number| number.subgroup_shuffle(partner)).collect();
            state = combine(&state, &other);
            distance *= 2;
        }
        state
    }

    /// What the members before this one have, combined in order after `before`, the state before the first one (W. Hillis
    /// and G. Steele, "Data Parallel Algorithms", 1986). All invocations must come here, and to a barrier before the memory
    /// is written again.
    pub fn prefix(&self, fold: &Fold<'k>, scratch: &[Array<'k>], before: State<'k>, own: State<'k>) -> State<'k> {
        if self.team == Team::Invocation {
            return before;
        }
        let k = self.k;
        let state = StateVar::new(k, &own);
        k.when(self.lane.eq(0), || state.set(&(fold.combine)(&before, &own)));
        store(scratch, self.lane, &state.get());
        k.barrier();
        let mut distance = 1;
        while distance < self.lanes() {
            k.when(self.lane.ge(distance), || {
                state.set(&(fold.combine)(&load(scratch, self.lane - distance), &state.get()));
            });
            k.barrier();
            store(scratch, self.lane, &state.get());
            k.barrier();
            distance *= 2;
        }
        state.set(&before);
        k.when(self.lane.gt(0), || state.set(&load(scratch, self.lane - 1)));
        state.get()
    }
}

/// Several values as one, by a tree of pairs.
pub(super) fn tree<T: Clone>(mut values: Vec<T>, combine: &impl Fn(&T, &T) -> T) -> T {
    while values.len() > 1 {
        let pair = |pair: &[T]| match pair {
            [a, b] => combine(a, b),
            rest => rest[0].clone(),
        };
        values = values.chunks(2).map(pair).collect();
    }
    values.swap_remove(0)
}

fn load<'k>(scratch: &[Array<'k>], lane: Value<'k>) -> State<'k> {
    scratch.iter().map(|array| array.load(lane)).collect()
}

fn store<'k>(scratch: &[Array<'k>], lane: Value<'k>, state: &[Value<'k>]) {
    for (array, &value) in scratch.iter().zip(state) {
        array.store(lane, value);
    }
}

/// A state that changes.
pub(super) struct StateVar<'k>(Vec<Var<'k>>);

impl<'k> StateVar<'k> {
    pub fn new(k: &'k KernelBuilder, first: &[Value<'k>]) -> Self {
        StateVar(first.iter().map(|&value| k.var(value)).collect())
    }

    pub fn get(&self) -> State<'k> {
        self.0.iter().map(|var| var.get()).collect()
    }

    pub fn set(&self, state: &[Value<'k>]) {
        for (var, &value) in self.0.iter().zip(state) {
            var.set(value);
        }
    }
}
