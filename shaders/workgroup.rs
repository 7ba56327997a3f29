//! Folds and scans over the invocations of a workgroup.

use super::elements::Quads;
use super::fold::{Combine, Fold, State};
use crate::shader::{Array, KernelBuilder, Type, Value, Var};

/// Whether this workgroup is the last of `workgroups` that come here. Each has stored something for all of them before.
/// The element of `counts` at `place` counts those that have come. The last one sets it to 0 again. The invocations of
/// a workgroup share the answer through the first element of `memory`, which is workgroup memory of words.
pub(super) fn is_last<'k>(counts: Array<'k>, place: Value<'k>, workgroups: Value<'k>, memory: Array<'k>) -> Value<'k> {
    let k = place.kernel();
    k.barrier_of_all();
    k.when(k.local_index().eq(0), || {
        let before = counts.count_for_all(place);
        let lanes = memory.element().lanes;
        memory.store(0, if lanes == 1 { before } else { before.splat(lanes) });
        k.when(before.eq(workgroups - 1), || _ = counts.atomic_exchange(place, 0));
    });
    k.barrier_of_all();
    let before = memory.load(0);
    (if memory.element().lanes == 1 { before } else { before.lane(0) }).eq(workgroups - 1)
}

/// The invocations that work on one row. One invocation alone is for short rows, and for software devices, whose
/// workgroup memory is slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Team {
    Invocation,
    Workgroup(u32),
    /// `members` invocations for each of `side_by_side` rows, which share a workgroup. If rows lie side by side in
    /// memory, neighbouring invocations work on neighbouring elements.
    Columns {
        members: u32,
        side_by_side: u32,
    },
}

/// Invocations per workgroup if each works alone, and the size of the usual team.
pub(crate) const WORKGROUP: u32 = 64;

/// The elements of a row that a member takes at a time. Several loads are in flight at once this way, as WGSL cannot
/// ask for a loop to be unrolled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Turn {
    /// One element: for software devices.
    Single,
    /// Several elements, one per load.
    Singles,
    /// Several quads, one per load. Each is contiguous, from a multiple of four on.
    Quads,
    /// This many quads, in rows that are whole turns and not empty: for software devices, which go at least once
    /// through each loop, also through one for the rest of a row.
    WholeQuads(u32),
}

impl Turn {
    /// The number of loads of a turn.
    const fn loads(self) -> u32 {
        match self {
            Turn::Single => 1,
            Turn::Singles => 8,
            Turn::Quads => 4,
            Turn::WholeQuads(loads) => loads,
        }
    }

    /// True if a row may end within a turn. Its last loads then come one after the other.
    const fn has_rest(self) -> bool {
        matches!(self, Turn::Singles | Turn::Quads)
    }

    /// Runs `body` for the first load of each of a member's turns: `start`, and each `stride`th one up to `end`.
    fn go_through<'k>(self, start: Value<'k>, end: Value<'k>, stride: u32, body: impl FnOnce(Value<'k>)) {
        match self {
            Turn::WholeQuads(_) => start.kernel().for_some(start, end, stride, body),
            _ => start.kernel().for_step(start, end, stride, body),
        }
    }

    /// The number of elements of a load.
    pub const fn width(self) -> u32 {
        if matches!(self, Turn::Quads | Turn::WholeQuads(_)) { 4 } else { 1 }
    }
}

/// A load of a member's turn.
#[derive(Clone, Copy)]
pub(super) struct Spot<'k> {
    /// The turn's first load, and how many loads after that one this one is.
    pub first: Value<'k>,
    pub behind: u32,
}

impl<'k> Spot<'k> {
    /// Returns the load `index` of a row.
    pub fn of(index: Value<'k>) -> Self {
        Spot { first: index, behind: 0 }
    }

    /// Returns how many loads of the row lie before this one.
    pub fn index(self) -> Value<'k> {
        if self.behind == 0 { self.first } else { self.first + self.behind }
    }

    /// Loads the quad of a row whose first quad is `row`.
    pub fn load(self, k: &'k KernelBuilder, quads: Quads<'k>, row: Value<'k>) -> Value<'k> {
        let (quads, quad) = self.place(k, quads, row);
        quads.load(k, quad)
    }

    /// Stores a quad in the same way.
    pub fn store(self, k: &'k KernelBuilder, quads: Quads<'k>, row: Value<'k>, value: Value<'k>) {
        let (quads, quad) = self.place(k, quads, row);
        quads.store(k, quad, value);
    }

    /// Returns the quads from the turn's first load on, and the place among them.
    fn place(self, k: &'k KernelBuilder, quads: Quads<'k>, row: Value<'k>) -> (Quads<'k>, Value<'k>) {
        let first = row + self.first;
        if self.behind == 0 { (quads, first) } else { (quads.after(first), k.u32(self.behind)) }
    }
}

/// Turns of a member that are folded into a block before the block joins the rest. A compensated sum of `n` terms in
/// sequence loses up to n^2 2^-48 of the sum of their magnitudes.
const BLOCK: u32 = 1024;

/// An invocation as a member of a team at work.
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
    /// Returns this member of a team whose subgroups have `lanes` lanes. They are neighbours in the team, and combine
    /// their values without workgroup memory.
    pub fn in_subgroups(self, lanes: Option<u32>) -> Self {
        Member { subgroup: lanes.filter(|_| matches!(self.team, Team::Workgroup(_))), ..self }
    }

    /// The size of the team.
    pub fn lanes(&self) -> u32 {
        self.team.size()
    }

    /// Allocates workgroup memory for states: for each number of a state, an array with one element per invocation.
    pub fn scratch(&self, types: impl IntoIterator<Item = Type>) -> Vec<Array<'k>> {
        let shared = self.team != Team::Invocation;
        types.into_iter().filter(|_| shared).map(|ty| self.k.workgroup_array(ty, self.team.workgroup())).collect()
    }

    /// Returns the index in workgroup memory of the state of a member of this row.
    fn place(&self, lane: Value<'k>) -> Value<'k> {
        match self.team {
            Team::Columns { side_by_side, .. } => lane * side_by_side + self.k.local_index() % side_by_side,
            Team::Invocation | Team::Workgroup(_) => lane,
        }
    }

    /// Visits this member's loads of a row of `length` loads. The loads of a turn come together.
    pub fn each_turn(&self, turn: Turn, length: Value<'k>, visit: impl Fn(&[Spot<'k>])) {
        let (k, lanes, loads) = (self.k, self.lanes(), turn.loads());
        let whole = if turn.has_rest() { length - length % (lanes * loads) } else { length };
        turn.go_through(self.lane, whole, lanes * loads, |first| {
            visit(&(0..loads).map(|load| Spot { first, behind: load * lanes }).collect::<Vec<_>>());
        });
        if turn.has_rest() {
            k.for_step(whole + self.lane, length, lanes, |j| visit(&[Spot::of(j)]));
        }
    }

    /// Returns the sum of the team's terms within `bounds` to every member. The error is at most `log2(lanes) + 2`
    /// times 2^-24 of the sum of magnitudes, however many terms there are.
    pub fn sum(
        &self,
        zero: Value<'k>,
        turn: Turn,
        bounds: [Value<'k>; 2],
        term: impl Fn(Spot<'k>) -> Value<'k>,
    ) -> Value<'k> {
        let fold = Fold::sum(self.k, zero.ty(), |x| x);
        let own = self.fold_own(&fold, turn, || vec![zero], bounds, |at| vec![(fold.map)(term(at), at.first)]);
        self.reduce((fold.finish)(&own, zero), |a, b| a + b)
    }

    /// Folds the team's elements within `bounds`, and returns the result to every member. Bounds and places count loads
    /// of a turn. `states` returns the states of a load's elements. `first` is the state with which folds without an
    /// identity start.
    pub fn fold(
        &self,
        fold: &Fold<'k>,
        turn: Turn,
        first: impl FnOnce() -> State<'k>,
        bounds: [Value<'k>; 2],
        states: impl Fn(Value<'k>) -> Vec<State<'k>>,
    ) -> State<'k> {
        let own = self.fold_own(fold, turn, first, bounds, |at| states(at.index()));
        self.reduce_states(own, |a, b| (fold.combine)(a, b))
    }

    /// Folds this member's part: every `lanes`th load.
    fn fold_own(
        &self,
        fold: &Fold<'k>,
        turn: Turn,
        first: impl FnOnce() -> State<'k>,
        [start, end]: [Value<'k>; 2],
        states: impl Fn(Spot<'k>) -> Vec<State<'k>>,
    ) -> State<'k> {
        let (k, lanes, combine) = (self.k, self.lanes(), &fold.combine);
        let pair = |a: &State<'k>, b: &State<'k>| combine(a, b);
        let stride = lanes * turn.loads();
        let first = fold.identity.clone().unwrap_or_else(first);
        let (total, block) = (StateVar::new(k, &first), StateVar::new(k, &first));
        let whole = if turn.has_rest() { end - (end - start) % stride } else { end };
        k.for_step(start, whole, stride * BLOCK, |from| {
            block.set(&first);
            turn.go_through(from + self.lane, (from + stride * BLOCK).min(whole), stride, |first| {
                let states = (0..turn.loads()).flat_map(|load| states(Spot { first, behind: load * lanes })).collect();
                block.set(&combine(&block.get(), &tree(states, &pair)));
            });
            total.set(&combine(&total.get(), &block.get()));
        });
        if turn.has_rest() {
            k.for_step(whole + self.lane, end, lanes, |j| {
                total.set(&combine(&total.get(), &tree(states(Spot::of(j)), &pair)));
            });
        }
        total.get()
    }

    /// Combines the values of all members, and returns the result to every member. All invocations must call this
    /// function.
    pub fn reduce(&self, own: Value<'k>, combine: impl Fn(Value<'k>, Value<'k>) -> Value<'k>) -> Value<'k> {
        self.reduce_states(vec![own], |a, b| vec![combine(a[0], b[0])])[0]
    }

    /// Combines states in the same way. Each reduction has memory of its own, so it need not wait until all members
    /// have read the previous one's.
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
        // Some members combine the states of all members. Then every member combines the results.
        let parts = 1 << self.lanes().ilog2().div_ceil(2);
        store(&scratch, self.place(self.lane), &own);
        self.k.barrier();
        self.k.when(self.lane.lt(parts), || {
            store(&scratch, self.place(self.lane), &gather(self.lane, self.lanes() / parts, parts));
        });
        self.k.barrier();
        gather(self.k.u32(0), parts, 1)
    }

    /// Combines the states of a subgroup's lanes, by exchange at doubling distances.
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

    /// Combines `before`, the state before the first member, and the states of the members before this one, in order
    /// (W. Hillis and G. Steele, "Data Parallel Algorithms", 1986). All invocations must call this function, and must
    /// reach a barrier before the memory is written again. Subgroups are used if one has as many lanes as the team has
    /// subgroups.
    pub fn prefix(&self, combine: &Combine<'k>, scratch: &[Array<'k>], before: State<'k>, own: State<'k>) -> State<'k> {
        if self.team == Team::Invocation {
            return before;
        }
        if let Some(lanes) = self.subgroup.filter(|lanes| self.lanes() <= lanes * lanes) {
            return self.prefix_in_subgroups(lanes, combine, scratch, before, own);
        }
        let k = self.k;
        let state = StateVar::new(k, &own);
        k.when(self.lane.eq(0), || state.set(&combine(&before, &own)));
        store(scratch, self.lane, &state.get());
        k.barrier();
        let mut distance = 1;
        while distance < self.lanes() {
            k.when(self.lane.ge(distance), || {
                state.set(&combine(&load(scratch, self.lane - distance), &state.get()));
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

    /// Returns, for each turn, what [`prefix`](Self::prefix) returns for the members' states in it: a turn comes after
    /// all earlier ones. Also returns the state after all turns. All invocations must call this function, and must
    /// reach a barrier before they do so again.
    pub fn prefixes(
        &self,
        combine: &Combine<'k>,
        before: State<'k>,
        turns: &[State<'k>],
    ) -> (Vec<State<'k>>, State<'k>) {
        let k = self.k;
        let types: Vec<_> = before.iter().map(|number| number.ty()).collect();
        let types = || types.iter().copied();
        let per_turn = self.subgroup.map_or(u32::MAX, |lanes| self.lanes() / lanes);
        let count = per_turn.saturating_mul(turns.len() as u32);
        if let Some(lanes) = self.subgroup.filter(|&lanes| count <= lanes) {
            // Each subgroup has a state for each turn. The lanes of every subgroup combine them all.
            let subgroup = Subgroup { k };
            let scratch: Vec<_> = types().map(|ty| k.workgroup_array(ty, count)).collect();
            let within: Vec<_> = turns.iter().map(|own| subgroup.up_to(combine, own.clone(), lanes)).collect();
            let number = self.lane / lanes;
            k.when(subgroup.lane().eq(lanes - 1), || {
                (0..).zip(&within).for_each(|(turn, state)| store(&scratch, number + turn * per_turn, state));
            });
            k.barrier();
            let all = subgroup.up_to(combine, load(&scratch, subgroup.lane().min(count - 1)), count);
            let prior = |(turn, within): (u32, &State<'k>)| {
                let place = number + turn * per_turn;
                let before = subgroup.joined(combine, &before, &all, place);
                subgroup.joined(combine, &before, within, subgroup.lane())
            };
            let prior = (0..).zip(&within).map(prior).collect();
            return (prior, combine(&before, &subgroup.from(&all, k.u32(count - 1))));
        }
        let mut before = before;
        let mut prior = Vec::new();
        for own in turns {
            let own_prior = self.prefix(combine, &self.scratch(types()), before.clone(), own.clone());
            let last: Vec<_> = types().map(|ty| k.workgroup_array(ty, 1)).collect();
            k.when(self.lane.eq(self.lanes() - 1), || store(&last, k.u32(0), &combine(&own_prior, own)));
            k.barrier();
            before = load(&last, k.u32(0));
            prior.push(own_prior);
        }
        (prior, before)
    }

    /// The same. The lanes of a subgroup combine their states by exchange. Then each subgroup does so with the states
    /// of all subgroups.
    fn prefix_in_subgroups(
        &self,
        lanes: u32,
        combine: &Combine<'k>,
        scratch: &[Array<'k>],
        before: State<'k>,
        own: State<'k>,
    ) -> State<'k> {
        let (k, subgroup) = (self.k, Subgroup { k: self.k });
        let within = subgroup.up_to(combine, own, lanes);
        k.when(subgroup.lane().eq(lanes - 1), || store(scratch, self.lane / lanes, &within));
        k.barrier();
        let last = self.lanes() / lanes - 1;
        let all = subgroup.up_to(combine, load(scratch, subgroup.lane().min(last)), last + 1);
        let before = subgroup.joined(combine, &before, &all, self.lane / lanes);
        subgroup.joined(combine, &before, &within, subgroup.lane())
    }
}

/// The lanes of a subgroup, which exchange states.
struct Subgroup<'k> {
    k: &'k KernelBuilder,
}

impl<'k> Subgroup<'k> {
    fn lane(&self) -> Value<'k> {
        self.k.subgroup_lane()
    }

    /// Returns the state that a lane has.
    fn from(&self, state: &[Value<'k>], lane: Value<'k>) -> State<'k> {
        state.iter().map(|number| number.subgroup_shuffle(lane)).collect()
    }

    /// Combines the states of all lanes up to each one. Only those of the first `count` lanes matter.
    fn up_to(&self, combine: &Combine<'k>, state: State<'k>, count: u32) -> State<'k> {
        let distances = std::iter::successors(Some(1), |distance| Some(distance * 2));
        distances.take_while(|&distance| distance < count).fold(state, |state, distance| {
            let earlier = self.from(&state, self.lane().max(distance) - distance);
            choose(self.lane().ge(distance), &combine(&earlier, &state), &state)
        })
    }

    /// Combines a state and the one of all lanes before lane `place`, given the states `up_to` each lane.
    fn joined(&self, combine: &Combine<'k>, before: &State<'k>, up_to: &State<'k>, place: Value<'k>) -> State<'k> {
        let earlier = self.from(up_to, place.max(1) - 1);
        choose(place.gt(0), &combine(before, &earlier), before)
    }
}

fn choose<'k>(condition: Value<'k>, yes: &[Value<'k>], no: &[Value<'k>]) -> State<'k> {
    yes.iter().zip(no).map(|(&yes, &no)| condition.select(yes, no)).collect()
}

/// Adds up each of some numbers over all of the workgroup's `lanes` invocations that are `stride` apart. The numbers
/// come in groups of one size. Calls `take` with the number of a group, a place below `stride`, and the group's sums,
/// in as many invocations as there are groups and places. `subgroup` is the number of a subgroup's lanes, if these are
/// used.
pub(super) fn sum_each<'k>(
    k: &'k KernelBuilder,
    (lanes, stride): (u32, u32),
    subgroup: Option<u32>,
    groups: &[Vec<Value<'k>>],
    take: impl FnOnce(Value<'k>, Value<'k>, &[Value<'k>]),
) {
    let (group_count, size) = (groups.len() as u32, groups[0].len() as u32);
    let numbers = groups.concat();
    let lane = k.local_index();
    let (count, ty) = (numbers.len() as u32, numbers[0].ty());
    // The lanes of a subgroup add up their numbers by exchange at doubling distances.
    let subgroup = subgroup.filter(|&size| size > stride).unwrap_or(stride);
    let exchanged = |number: Value<'k>| {
        let distances = std::iter::successors(Some(stride), |distance| Some(distance * 2));
        let distances = distances.take_while(|&distance| distance < subgroup);
        distances.fold(number, |sum, distance| sum + sum.subgroup_shuffle(k.subgroup_lane() ^ distance))
    };
    let per_number = lanes / subgroup * stride;
    let pitch = per_number + 1;
    let parts = k.workgroup_array(ty, count * pitch);
    let place = lane / subgroup * stride + lane % stride;
    let numbers: Vec<_> = numbers.into_iter().map(exchanged).collect();
    k.when((lane % subgroup).lt(stride), || {
        for (i, &number) in (0..).zip(&numbers) {
            parts.store(place + i * pitch, number);
        }
    });
    k.barrier();
    let totals = k.workgroup_array(ty, count * stride);
    k.for_step(lane, count * stride, lanes, |total| {
        let first = total / stride * pitch + total % stride;
        let parts = (0..per_number / stride).map(|i| parts.load(first + i * stride)).collect();
        totals.store(total, tree(parts, &|&a, &b| a + b));
    });
    k.barrier();
    let (group, place) = (lane / stride, lane % stride);
    k.when(lane.lt(group_count * stride), || {
        let sums: Vec<_> = (0..size).map(|e| totals.load((group * size + e) * stride + place)).collect();
        take(group, place, &sums);
    });
}

/// Combines several values in a tree of pairs.
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

/// A mutable state.
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
