//! Folds and scans over the invocations of a workgroup.

use super::fold::{Fold, State};
use crate::shader::{Array, KernelBuilder, Type, Value, Var};

/// Which invocation works on what: a whole workgroup of so many invocations on one row, or one invocation (for software
/// devices, where workgroup memory is slow, and for short rows).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Team {
    Invocation,
    Workgroup(u32),
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
    k: &'k KernelBuilder,
    team: Team,
    /// The row that the team works on.
    pub row: Value<'k>,
    /// This invocation's number in the team.
    pub lane: Value<'k>,
}

impl Team {
    pub(super) const ALL: [Team; 2] = [Team::Invocation, Team::Workgroup(WORKGROUP)];

    pub(super) fn join<'k>(self, k: &'k KernelBuilder) -> Member<'k> {
        match self {
            Team::Invocation => Member { k, team: self, row: k.global_index(), lane: k.u32(0) },
            Team::Workgroup(_) => Member { k, team: self, row: k.group_index(), lane: k.local_index() },
        }
    }

    /// Its invocations.
    pub const fn size(self) -> u32 {
        match self {
            Team::Invocation => 1,
            Team::Workgroup(size) => size,
        }
    }

    /// Invocations per workgroup.
    pub const fn workgroup(self) -> u32 {
        match self {
            Team::Invocation => WORKGROUP,
            Team::Workgroup(size) => size,
        }
    }

    /// The number of workgroups for `rows` rows.
    pub fn groups(self, rows: usize) -> usize {
        match self {
            Team::Invocation => rows.div_ceil(WORKGROUP as usize),
            Team::Workgroup(_) => rows,
        }
    }
}

impl<'k> Member<'k> {
    /// The size of the team.
    pub fn lanes(&self) -> u32 {
        self.team.size()
    }

    /// Workgroup memory for [`reduce`](Self::reduce) and [`prefix`](Self::prefix): one element per invocation.
    pub fn scratch(&self, ty: Type) -> Option<Array<'k>> {
        (self.team != Team::Invocation).then(|| self.k.workgroup_array(ty, self.lanes()))
    }

    /// Workgroup memory for states: one number per invocation for each of a state's.
    pub fn state_scratch(&self, types: impl IntoIterator<Item = Type>) -> Vec<Array<'k>> {
        types.into_iter().filter_map(|ty| self.scratch(ty)).collect()
    }

    /// The sum of the team's terms from `start` up to `end`; every member gets it. It is within `log2(lanes) + 2` times
    /// 2^-24 of the sum of magnitudes, however long it is.
    pub fn sum(
        &self,
        scratch: Option<Array<'k>>,
        zero: Value<'k>,
        bounds: [Value<'k>; 2],
        term: impl Fn(Value<'k>) -> Value<'k>,
    ) -> Value<'k> {
        let fold = Fold::sum(self.k, zero.ty(), |x| x);
        let own = self.fold_own(&fold, Turn::Single, || vec![zero], bounds, |j| vec![(fold.map)(term(j), j)]);
        let [sum] = self.reduce([scratch], [(fold.finish)(&own, zero)], |[a], [b]| [a + b]);
        sum
    }

    /// The team's elements from `start` up to `end`, folded; every member gets the result. Bounds and places count loads
    /// of a turn, each of which gives the `states` of its elements. `first` is the state that folds without an identity
    /// start with.
    pub fn fold(
        &self,
        fold: &Fold<'k>,
        scratch: &[Array<'k>],
        turn: Turn,
        first: impl FnOnce() -> State<'k>,
        bounds: [Value<'k>; 2],
        states: impl Fn(Value<'k>) -> Vec<State<'k>>,
    ) -> State<'k> {
        let own = self.fold_own(fold, turn, first, bounds, states);
        self.reduce_states(scratch, own, |a, b| (fold.combine)(a, b))
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
        let whole = if stride == 1 { end } else { end - (end - start) % stride };
        k.for_step(start, whole, stride * BLOCK, |from| {
            block.set(&first);
            k.for_step(from + self.lane, (from + stride * BLOCK).min(whole), stride, |j| {
                let states = (0..turn.loads()).flat_map(|load| states(j + load * lanes)).collect();
                block.set(&combine(&block.get(), &tree(states, &pair)));
            });
            total.set(&combine(&total.get(), &block.get()));
        });
        if stride > 1 {
            k.for_step(whole + self.lane, end, lanes, |j| {
                total.set(&combine(&total.get(), &tree(states(j), &pair)));
            });
        }
        total.get()
    }

    /// Combines the values of all members; every member gets the result. All invocations must come here.
    pub fn reduce<const N: usize>(
        &self,
        scratch: [Option<Array<'k>>; N],
        values: [Value<'k>; N],
        combine: impl Fn([Value<'k>; N], [Value<'k>; N]) -> [Value<'k>; N],
    ) -> [Value<'k>; N] {
        let scratch: Vec<Array<'k>> = scratch.into_iter().flatten().collect();
        let array = |values: &[Value<'k>]| std::array::from_fn(|i| values[i]);
        array(&self.reduce_states(&scratch, values.to_vec(), |a, b| combine(array(a), array(b)).to_vec()))
    }

    /// The same for states.
    fn reduce_states(
        &self,
        scratch: &[Array<'k>],
        own: State<'k>,
        combine: impl Fn(&[Value<'k>], &[Value<'k>]) -> State<'k>,
    ) -> State<'k> {
        if self.team == Team::Invocation {
            return own;
        }
        // Some members combine what all have, every member what those have.
        let parts = 1 << self.lanes().ilog2().div_ceil(2);
        let gather = |first: Value<'k>, count: u32, stride: u32| {
            tree((0..count).map(|i| load(scratch, first + i * stride)).collect(), &|a: &State<'k>, b| combine(a, b))
        };
        store(scratch, self.lane, &own);
        self.k.barrier();
        self.k.when(self.lane.lt(parts), || {
            store(scratch, self.lane, &gather(self.lane, self.lanes() / parts, parts));
        });
        self.k.barrier();
        let result = gather(self.k.u32(0), parts, 1);
        // The memory is used again: nobody may write it before all have read the result.
        self.k.barrier();
        result
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
