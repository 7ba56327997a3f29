//! Running folds along an axis, such as cumulative sums. Long rows are split into chunks:
//!
//! 1. `reduce.rs` folds each chunk to a state.
//! 2. A kernel here scans the states.
//! 3. Another one scans the elements of each chunk, from the state before the chunk on.
//!
//! On GPUs, a team reads its chunk once, in quads that lie side by side, and keeps it in registers ([`Held`]). On some
//! of them `look_back.rs` does all of this in one kernel.

use super::Family;
use super::elements::Quads;
use super::fold::{Fold, FoldOp, State, States};
use super::parameters::{Form, Size, parameters};
use super::prologue::{self, Head, Prologue};
use super::rows::{Rows, RowsType};
use super::workgroup::{Member, StateVar, Team, WORKGROUP};
use crate::base::dtype::DType;
use crate::shader::{Access, Array, KernelBuilder, Type, Value};

/// The elements or states that a kernel scans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Scanned {
    /// Elements of rows in one chunk each.
    Rows,
    /// Elements of chunks, each chunk from the state before it on.
    Chunks,
    /// States of chunks. Each becomes the state of all chunks before it.
    States,
}

/// The quads of a chunk that each member of a team holds. The rows are contiguous from multiples of four on, and have
/// whole quads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Held {
    pub quads: u32,
    /// The lanes of a subgroup, if subgroups are used.
    pub subgroup: Option<u32>,
}

/// A scan. Each chunk has a team, and each member scans neighbouring elements. Its buffers are, in order:
///
/// - For elements: the elements, the states before chunks if there are any, and the results in row-major order of the
///   whole tensor.
/// - For states: the states before and after the scan.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Scan {
    pub op: FoldOp,
    pub rows: RowsType,
    /// The expression of the elements, if the kernel scans rows of elements.
    pub prologue: Option<Box<Prologue>>,
    pub scanned: Scanned,
    pub team: Team,
    /// If members hold elements in registers. Else each scans neighbouring elements, and reads them twice.
    pub held: Option<Held>,
}

parameters! {
    config: Scan;
    host: Parameters;
    device: Declared;
    /// The total number of chunks.
    chunks: Size,
    /// The number of chunks per row.
    per_row: Size,
    /// The length of a chunk, in elements or states.
    span: Size,
    /// The length of a row, in the same unit.
    length: Size,
    /// The length of a member's part of a chunk.
    share: Size,
    /// The number of rows that lie side by side: the product of the axes inside of the scanned one.
    inner: Option<Size> = config.has_rows().then_some(Size),
    /// The rows of elements; states lie in order.
    rows: Option<RowsType> = config.has_rows().then_some(config.rows),
    prologue: Option<Prologue> => config.prologue.as_deref(),
}

impl Scan {
    /// True if the kernel scans rows of elements, not states.
    fn has_rows(&self) -> bool {
        self.scanned != Scanned::States
    }
}

impl Family for Scan {
    fn name(&self) -> String {
        let elements = prologue::describe(&self.prologue, self.rows.dtype);
        let held = self.held.map_or(String::new(), |held| format!(", holds {} x4", held.quads));
        format!("scan_{:?}({elements}, {:?}, {:?}{held})", self.op, self.scanned, self.team).to_lowercase()
    }

    fn workgroup(&self) -> u32 {
        self.team.workgroup()
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let Declared { chunks, per_row, span, length, share, inner, rows, prologue } = self.declare(k);
        let member = self.team.join(k);
        // As in reductions, surplus chunks of a folded dispatch repeat the last one.
        let chunk = member.row.min(chunks - 1);
        let inside = member.row.lt(chunks);
        let row = chunk / per_row;
        let chunk_of_row = chunk % per_row;
        let chunk_start = chunk_of_row * span;
        let chunk_end = chunk_start + (length - chunk_start).min(span);
        let start = (chunk_start + member.lane * share).min(chunk_end);
        let end = (start + share).min(chunk_end);

        let ty = |dtype: DType| Type { scalar: dtype.compute_scalar(), lanes: 1 };
        let dtype = self.prologue.as_ref().map_or(self.rows.dtype, |prologue| prologue.expr.dtype());
        let fold = self.op.fold(k, ty(dtype));
        let types = self.op.state(dtype);
        if let (Some(held), Some(rows)) = (self.held, rows.clone()) {
            let place = self.prologue.is_some().then(|| (rows.kept.coordinates(row), rows.along.clone()));
            let load = Rows::quads(k, rows, self.rows.dtype, row);
            let head =
                self.prologue.as_ref().zip(prologue).map(|(config, at)| Head::new(k, "p", config, at)).zip(place);
            let before = (self.scanned == Scanned::Chunks)
                .then(|| States::declare(k, "before", &types, Access::Read).load(chunk));
            let y = Quads::output(k, "y", self.op.output(dtype));
            let quad = |j: Value<'k>| match &head {
                Some((head, place)) => head.apply_in_row(k, load(j), place, j),
                None => load(j),
            };
            // The first chunk of a row has no state before it.
            let first = || fold.identity.clone().unwrap_or_else(|| (fold.map)(quad(k.u32(0)).lane(0), k.u32(0)));
            let before = before.map(|before| {
                let choose = |(&first, before)| chunk_of_row.eq(0).select(first, before);
                first().iter().zip(before).map(choose).collect()
            });
            let before = before.unwrap_or_else(first);
            let quads = [chunk_start, chunk_end, span].map(|place| place / 4);
            let output = Type { lanes: 4, ..ty(self.op.output(dtype)) };
            scan_held(
                member.in_subgroups(held.subgroup),
                held.quads,
                &fold,
                before,
                quads,
                output,
                (&quad, &|j, four| {
                    k.when(inside, || y.store(k, row * (length / 4) + j, four));
                }),
            );
            return;
        }
        let scratch = member.scratch(types.iter().map(|&dtype| ty(dtype)));
        // Scans a chunk from the state `before` it on. `output` gets the state before each element or state, and the
        // state after it.
        let scan = |before: Option<State<'k>>,
                    state: &dyn Fn(Value<'k>) -> State<'k>,
                    output: &dyn Fn(Value<'k>, &StateVar<'k>, State<'k>)| {
            let first = fold.identity.clone().unwrap_or_else(|| state(k.u32(0)));
            let running = StateVar::new(k, &first);
            if self.team != Team::Invocation {
                k.for_range(start, end, |j| running.set(&(fold.combine)(&running.get(), &state(j))));
            }
            // The first chunk of a row has no state before it.
            let before = before.map_or(first.clone(), |before| {
                let choose = |(&first, before)| chunk_of_row.eq(0).select(first, before);
                first.iter().zip(before).map(choose).collect()
            });
            running.set(&member.prefix(&fold.combine, &scratch, before, running.get()));
            k.for_range(start, end, |j| output(j, &running, (fold.combine)(&running.get(), &state(j))));
        };
        if let (Some(inner), Some(rows)) = (inner, rows) {
            let place = self.prologue.is_some().then(|| (rows.kept.coordinates(row), rows.along.clone()));
            let load = Rows::input(k, rows, self.rows.dtype).row(row);
            let head = self.prologue.as_ref().zip(prologue).map(|(config, at)| Head::new(k, "p", config, at));
            let head = head.zip(place);
            let element = |j| match &head {
                Some((head, place)) => head.apply_in_row(k, load(j), place, j),
                None => load(j),
            };
            let before = (self.scanned == Scanned::Chunks)
                .then(|| States::declare(k, "before", &types, Access::Read).load(chunk));
            let y = k.buffer("y", ty(self.op.output(dtype)), Access::Write);
            scan(before, &|j| (fold.map)(element(j), j), &|j, running, next| {
                running.set(&next);
                let index = (row / inner * length + j) * inner + row % inner;
                k.when(inside, || y.store(index, (fold.finish)(&next, j)));
            });
        } else {
            let states = States::declare(k, "states", &types, Access::Read);
            let y = States::declare(k, "y", &types, Access::Write);
            scan(None, &|j| states.load(row * length + j), &|j, running, next| {
                k.when(inside, || y.store(row * length + j, &running.get()));
                running.set(&next);
            });
        }
    }

    fn samples() -> Vec<Self> {
        let mut samples = Vec::new();
        for op in [FoldOp::Sum, FoldOp::Prod, FoldOp::Max] {
            for (scanned, team) in [
                (Scanned::Rows, Team::Invocation),
                (Scanned::Chunks, Team::Workgroup(WORKGROUP)),
                (Scanned::States, Team::Workgroup(WORKGROUP)),
            ] {
                let rank = usize::from(scanned != Scanned::States);
                let rows = RowsType { dtype: DType::F32, kept_rank: rank, row_rank: rank };
                samples.push(Scan { op, rows, prologue: None, scanned, team, held: None });
            }
        }
        // Over one axis of the kept ones and one of the rows.
        let prologue = prologue::sample().map(|prologue| Prologue { rank: 2, ..*prologue }.into());
        let rows = RowsType { dtype: DType::F16, kept_rank: 1, row_rank: 1 };
        samples.extend([samples[0].clone(), samples[1].clone()].map(|sample| Scan {
            rows,
            prologue: prologue.clone(),
            ..sample
        }));
        let held = Some(Held { quads: 2, subgroup: None });
        samples.extend([samples[1].clone(), samples[7].clone()].map(|sample| Scan { held, ..sample }));
        samples
    }
}

/// How a team's members load a quad of elements, and store one of results.
type Quadwise<'a, 'k> = (&'a dyn Fn(Value<'k>) -> Value<'k>, &'a dyn Fn(Value<'k>, Value<'k>));

/// Scans the quads from `first` to `end` from the state `before` them on, one part after the other. There are at most
/// `span` quads, a number that a compiler sees to be the same for all members.
fn scan_held<'k>(
    member: Member<'k>,
    turns: u32,
    fold: &Fold<'k>,
    before: State<'k>,
    [first, end, span]: [Value<'k>; 3],
    output: Type,
    (load, store): Quadwise<'_, 'k>,
) {
    let (k, part) = (member.k, Part::new(member, turns, fold, output));
    let running = StateVar::new(k, &before);
    k.for_step(0, span, part.quads(), |from| {
        let place = |quad: Value<'k>| first + from + quad;
        // Beyond the end, the last quad is repeated: it comes after all others, and is not stored.
        let quads = part.load(&|quad| load(place(quad).min(end - 1)));
        let (prior, after) = member.prefixes(&fold.combine, running.get(), &[part.total(&quads)]);
        running.set(&after);
        part.store(&prior[0], &quads, &place, &|quad, four| _ = k.when(quad.lt(end), || store(quad, four)));
        // The next part writes to the same memory.
        k.barrier();
    });
}

/// The part of a row that a team holds at a time. Each member has several quads that follow each other, so that members
/// combine their states once for all of them.
pub(super) struct Part<'a, 'k> {
    member: Member<'k>,
    /// The quads of a member.
    turns: u32,
    fold: &'a Fold<'k>,
    results: Array<'k>,
}

impl<'a, 'k> Part<'a, 'k> {
    /// `output` is the type of four results.
    pub fn new(member: Member<'k>, turns: u32, fold: &'a Fold<'k>, output: Type) -> Self {
        Part { member, turns, fold, results: member.k.workgroup_array(output, turns * member.lanes()) }
    }

    /// The quads of all members.
    pub fn quads(&self) -> u32 {
        self.turns * self.member.lanes()
    }

    /// Loads the member's quads. `load` loads a quad of the part.
    pub fn load(&self, load: &dyn Fn(Value<'k>) -> Value<'k>) -> Vec<Value<'k>> {
        let own = self.member.lane * self.turns;
        (0..self.turns).map(|turn| load(own + turn)).collect()
    }

    /// Returns where a member's quad is in workgroup memory. Eight neighbours' quads lie in different banks. An even
    /// number of turns would put them into the same ones.
    fn slot(&self, owner: Value<'k>, turn: Value<'k>) -> Value<'k> {
        let turns = self.turns;
        match turns % 2 {
            0 => owner * turns + (turn + owner * turns / 8) % turns,
            _ => owner * turns + turn,
        }
    }

    fn states(&self, quad: Value<'k>) -> Vec<State<'k>> {
        quad.lanes().into_iter().map(|x| (self.fold.map)(x, self.member.k.u32(0))).collect()
    }

    fn together(&self, states: &[State<'k>]) -> State<'k> {
        states[1..].iter().fold(states[0].clone(), |a, b| (self.fold.combine)(&a, b))
    }

    /// Combines the states of the member's elements.
    pub fn total(&self, quads: &[Value<'k>]) -> State<'k> {
        self.together(&quads.iter().map(|&quad| self.together(&self.states(quad))).collect::<Vec<_>>())
    }

    /// Returns the same total with few registers.
    pub fn total_again(&self, load: &dyn Fn(Value<'k>) -> Value<'k>) -> State<'k> {
        let (k, own) = (self.member.k, self.member.lane * self.turns);
        let total = StateVar::new(k, &self.together(&self.states(load(own))));
        // A compiler that sees the number of turns may unroll the loop nevertheless.
        k.for_rolled(1, k.u32(self.turns).opaque(), 1, |turn| {
            total.set(&(self.fold.combine)(&total.get(), &self.together(&self.states(load(own + turn)))));
        });
        total.get()
    }

    /// Finishes the scan of the member's quads from the state `prior` to them on. Then the members exchange the
    /// results: neighbours store neighbouring quads. `place` returns the place of a quad of the part, and `store`
    /// stores four results there.
    pub fn store(
        &self,
        prior: &State<'k>,
        quads: &[Value<'k>],
        place: &dyn Fn(Value<'k>) -> Value<'k>,
        store: &dyn Fn(Value<'k>, Value<'k>),
    ) {
        let Part { member, turns, fold, results } = self;
        let k = member.k;
        let mut state = prior.clone();
        for (turn, &quad) in (0..).zip(quads) {
            let states = self.states(quad);
            let up_to = states.iter().map(|next| {
                state = (fold.combine)(&state, next);
                (fold.finish)(&state, place(member.lane * *turns + turn))
            });
            results.store(self.slot(member.lane, k.u32(turn)), k.vector(&up_to.collect::<Vec<_>>()));
        }
        k.barrier();
        for quad in (0..*turns).map(|turn| member.lane + turn * member.lanes()) {
            store(place(quad), results.load(self.slot(quad / *turns, quad % *turns)));
        }
    }
}
