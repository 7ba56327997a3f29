//! Running folds along long rows in one kernel: each workgroup looks back at what the ones before it have told
//! (D. Merrill and M. Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back", 2016).
//!
//! A workgroup holds a chunk of a row, and tells the state of it. As many chunks as a workgroup has invocations are a
//! group. The state before a chunk is the one before its group, and the states of the chunks before it in the group.
//! The last workgroup of a group tells the state before the next group, if there is one. So states are always combined
//! in the same order, and results are the same bits in every run, whoever is sooner.
//!
//! Nobody promises that an earlier workgroup goes on while a later one waits. So after some tries a workgroup computes
//! by itself what it misses.

use super::Family;
use super::elements::Quads;
use super::fold::{Combine, Fold, FoldOp, State};
use super::parameters::{Form, Size, parameters};
use super::rows::{Rows, RowsType};
use super::scan::{Held, Part};
use super::workgroup::{Member, StateVar, Team, WORKGROUP};
use crate::base::dtype::DType;
use crate::shader::{Access, Array, KernelBuilder, Type, Value};

/// A scan of rows that have whole quads. Its buffers are, in order: the elements, what workgroups tell, all 0 at first,
/// and the results in row-major order of the whole tensor. The numbers of a state have 32 bits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct LookBack {
    pub op: FoldOp,
    pub rows: RowsType,
    /// The invocations of a workgroup, and the chunks of a group.
    pub members: u32,
    pub held: Held,
}

parameters! {
    config: LookBack;
    host: Parameters;
    device: Declared;
    /// The total number of chunks.
    chunks: Size,
    /// The number of chunks of a row.
    per_row: Size,
    /// The length of a row in quads.
    quads: Size,
    /// The states that can be told: one for each chunk of all rows, and one for each group.
    states: Size,
    /// How often a workgroup looks for what another one has to tell.
    tries: Size,
    rows: RowsType = config.rows,
}

/// Words for each number that is told. Each has half of the number, and tells by its lowest bit that it is there. So no
/// order of memory is needed.
pub(crate) const WORDS: usize = 2;
const THERE: u32 = 1;

/// What workgroups tell each other.
struct Told<'k> {
    k: &'k KernelBuilder,
    words: Array<'k>,
    types: Vec<Type>,
    /// How many states there are. The first words of all of them come first.
    states: Value<'k>,
    tries: Value<'k>,
}

impl<'k> Told<'k> {
    fn tell(&self, place: Value<'k>, state: &[Value<'k>]) {
        for (number, word) in state.iter().zip((0..).step_by(WORDS)) {
            let bits = number.bitcast(Type::U32);
            let halves = [bits & !0xffff_u32, bits << 16];
            for (half, word) in halves.into_iter().zip(word..) {
                self.words.atomic_exchange(self.states * word + place, half | THERE);
            }
        }
    }

    /// Returns a state, and 1 if it has been told.
    fn look(&self, place: Value<'k>) -> (State<'k>, Value<'k>) {
        let word = |word: u32| self.words.atomic_load(self.states * word + place);
        let words: Vec<_> = (0..(self.types.len() * WORDS) as u32).map(word).collect();
        let there = words.iter().copied().reduce(|a, b| a & b).map_or(self.k.u32(THERE), |all| all & THERE);
        let number = |(halves, &ty): (&[Value<'k>], &Type)| ((halves[0] & !0xffff_u32) | (halves[1] >> 16)).bitcast(ty);
        (words.chunks(WORDS).zip(&self.types).map(number).collect(), there)
    }

    /// Looks again and again, for some tries. Sets `state` to what is told. Returns 1 if something is.
    fn wait(&self, place: Value<'k>, state: &StateVar<'k>) -> Value<'k> {
        let k = self.k;
        let (left, found) = (k.var(self.tries), k.var(k.u32(0)));
        let look = || {
            let (told, there) = self.look(place);
            left.set(left.get() - 1);
            k.when(there.ne(0), || {
                state.set(&told);
                found.set(1);
                left.set(0);
            });
        };
        k.while_(|| left.get().ne(0), look);
        found.get()
    }
}

impl Family for LookBack {
    fn name(&self) -> String {
        let LookBack { op, rows, members, held } = self;
        format!("scan_{op:?}({}, look back, workgroup({members}), holds {} x4)", rows.dtype, held.quads).to_lowercase()
    }

    fn workgroup(&self) -> u32 {
        self.members
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        // Some targets refuse barriers behind conditions on what others tell. None of them has this memory model.
        k.follow_memory_model();
        let Declared { chunks, per_row, quads, states, tries, rows } = self.declare(k);
        let member = Team::Workgroup(self.members).join(k).in_subgroups(self.held.subgroup);
        // As in reductions, surplus chunks of a folded dispatch repeat the last one.
        let (chunk, lane) = (member.row.min(chunks - 1), member.lane);
        let inside = member.row.lt(chunks);
        let (row, place) = (chunk / per_row, chunk % per_row);

        let ty = |dtype: DType| Type { scalar: dtype.compute_scalar(), lanes: 1 };
        let dtype = self.rows.dtype;
        let fold = self.op.fold(k, ty(dtype));
        let quad = Rows::quads(k, rows, dtype, row);
        let words = k.buffer("told", Type::U32, Access::ReadWrite);
        let types = self.op.state(dtype).into_iter().map(ty).collect();
        let told = Told { k, words, types, states, tries };
        let y = Quads::output(k, "y", self.op.output(dtype));
        let first = fold.identity.clone().unwrap_or_else(|| (fold.map)(quad(k.u32(0)).lane(0), k.u32(0)));

        let output = Type { lanes: 4, ..ty(self.op.output(dtype)) };
        let part = Part::new(member, self.held.quads, &fold, output);
        let start = place * part.quads();
        // Beyond the end of the row, its last quad is repeated. Nobody asks for the state of that chunk.
        let held = part.load(&|own| quad((start + own).min(quads - 1)));
        let (prior, own) = member.prefixes(&fold.combine, first.clone(), &[part.total(&held)]);
        k.when(inside & lane.eq(0), || told.tell(chunk, &own));

        let group = place / self.members;
        let earlier = Earlier { member, fold: &fold, first: &first, told: &told, part: &part, quad: &quad };
        let in_group = earlier.in_group(chunk, place);
        // In what is told, the states before the row's groups come after the states of all chunks.
        let groups = (per_row + (self.members - 1)) / self.members;
        let is_last = inside & (place % self.members).eq(self.members - 1) & (place + 1).lt(per_row);
        let before_group = earlier.before_group(chunks + row * groups, group, &|slot, before| {
            k.when(is_last, || told.tell(slot, &earlier.next(before, &in_group, &own)));
        });
        let before = (fold.combine)(&before_group, &in_group);
        let prior = (fold.combine)(&before, &prior[0]);
        let store = |j: Value<'k>, four| _ = k.when(inside & j.lt(quads), || y.store(k, row * quads + j, four));
        part.store(&prior, &held, &|quad| start + quad, &store);
    }

    fn samples() -> Vec<Self> {
        let rows = RowsType { dtype: DType::F32, kept_rank: 1, row_rank: 1 };
        let held = Held { quads: 2, subgroup: None };
        let sample = |op| LookBack { op, rows, members: WORKGROUP, held };
        [FoldOp::Sum, FoldOp::Max].map(sample).to_vec()
    }
}

/// Finds the state before a chunk.
struct Earlier<'a, 'k> {
    member: Member<'k>,
    fold: &'a Fold<'k>,
    /// The state before a row, or one that changes nothing.
    first: &'a State<'k>,
    told: &'a Told<'k>,
    part: &'a Part<'a, 'k>,
    /// Loads a quad of the row.
    quad: &'a dyn Fn(Value<'k>) -> Value<'k>,
}

impl<'k> Earlier<'_, 'k> {
    fn combine(&self) -> &Combine<'k> {
        &self.fold.combine
    }

    /// Returns the state of the chunks before a chunk in its group. Each invocation looks for one.
    fn in_group(&self, chunk: Value<'k>, place: Value<'k>) -> State<'k> {
        let Earlier { member, told, first, .. } = *self;
        let (k, lane) = (member.k, member.lane);
        let count = place % member.lanes();
        let state = StateVar::new(k, first);
        // Whether an invocation has found its state, and whether all have.
        let (known, all) = (k.workgroup_array(Type::U32, member.lanes()), k.workgroup_array(Type::U32, 1));
        k.when(lane.eq(0), || all.store(0, 1));
        k.barrier();
        k.when(lane.lt(count), || {
            let found = told.wait(chunk - count + lane, &state);
            known.store(lane, found);
            k.when(found.eq(0), || _ = all.atomic_min(0, 0));
        });
        k.barrier();
        k.when(all.load(0).eq(0), || {
            k.for_rolled(0, count, 1, |other| {
                k.when(known.load(other).eq(0), || {
                    let total = self.total(place - count + other);
                    k.when(lane.eq(other), || state.set(&total));
                });
            });
        });
        member.prefixes(self.combine(), first.clone(), &[state.get()]).1
    }

    /// Returns the state before a group. `tell` is called with it in one invocation, as soon as it is known, and with
    /// the place of the state before the next group.
    fn before_group(&self, of_groups: Value<'k>, group: Value<'k>, tell: &dyn Fn(Value<'k>, &State<'k>)) -> State<'k> {
        let Earlier { member, told, first, .. } = *self;
        let k = member.k;
        let state = StateVar::new(k, first);
        let shared: Vec<_> = first.iter().map(|number| k.workgroup_array(number.ty(), 1)).collect();
        let known = k.workgroup_array(Type::U32, 1);
        let share = || {
            tell(of_groups + group + 1, &state.get());
            shared.iter().zip(state.get()).for_each(|(array, number)| array.store(0, number));
        };
        k.when(member.lane.eq(0), || {
            let found = k.var(k.u32(1));
            k.when(group.gt(0), || found.set(told.wait(of_groups + group, &state)));
            known.store(0, found.get());
            k.when(found.get().ne(0), share);
        });
        k.barrier();
        k.when(known.load(0).eq(0), || {
            state.set(&self.before_group_anew(group));
            k.when(member.lane.eq(0), share);
            k.barrier();
        });
        shared.iter().map(|array| array.load(0)).collect()
    }

    /// Computes the state of a whole chunk, as its workgroup does.
    fn total(&self, place: Value<'k>) -> State<'k> {
        let start = place * self.part.quads();
        let own = self.part.total_again(&|own| (self.quad)(start + own));
        let (_, total) = self.member.prefixes(self.combine(), self.first.clone(), &[own]);
        self.member.k.barrier();
        total
    }

    /// Computes the state before a group, as the workgroups before it do.
    fn before_group_anew(&self, group: Value<'k>) -> State<'k> {
        let Earlier { member, first, .. } = *self;
        let (k, members) = (member.k, member.lanes());
        let before = StateVar::new(k, first);
        k.for_rolled(0, group, 1, |group| {
            let (state, last) = (StateVar::new(k, first), StateVar::new(k, first));
            k.for_rolled(0, members, 1, |chunk| {
                last.set(&self.total(group * members + chunk));
                k.when(member.lane.eq(chunk) & chunk.lt(members - 1), || state.set(&last.get()));
            });
            let (_, in_group) = member.prefixes(self.combine(), first.clone(), &[state.get()]);
            k.barrier();
            before.set(&self.next(&before.get(), &in_group, &last.get()));
        });
        before.get()
    }

    /// Returns the state before the next group, from the one before a group, the state of all its chunks but the last,
    /// and the state of the last.
    fn next(&self, before: &State<'k>, in_group: &State<'k>, last: &State<'k>) -> State<'k> {
        (self.combine())(before, &(self.combine())(in_group, last))
    }
}
