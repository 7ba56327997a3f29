//! Reductions over any axes. Each team of invocations folds one row: the elements that one output element is reduced
//! from. `fold.rs` has the folds.

use super::Family;
use super::elementwise::InputLayout;
use super::epilogue::{Epilogue, EpilogueInput, Outputs};
use super::expr::{BinaryOp, Expr, UnaryOp};
use super::fold::{FoldOp, State, States};
use super::parameters::{Form, Size, parameters};
use super::prologue::{self, Head, Prologue};
use super::rows::{Rows, RowsType};
use super::workgroup::{Team, Turn, WORKGROUP};
use crate::base::dtype::DType;
use crate::shader::{Access, KernelBuilder, Type, Value};
use smallvec::SmallVec;

/// The stage of a reduction. A long row is split into chunks, each with a team of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// From elements to results.
    Whole,
    /// From elements to the states of chunks.
    Begin,
    /// From the states of chunks to results.
    End,
}

/// A reduction. Its buffers are, in order:
///
/// 1. The elements, or the states of chunks.
/// 2. The other inputs of the prologue.
/// 3. For centred operations, a number per row. The kernel subtracts it from each element of the row.
/// 4. The inputs of the epilogue.
/// 5. The results, or the states of chunks. Then the terms that the epilogue keeps.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Reduce {
    pub op: FoldOp,
    pub rows: RowsType,
    /// The expression of the elements, if they are not just loaded.
    pub prologue: Option<Box<Prologue>>,
    /// The expression of the results.
    pub epilogue: Option<Box<Epilogue>>,
    pub stage: Stage,
    pub team: Team,
    pub turn: Turn,
}

parameters! {
    config: Reduce;
    host: Parameters;
    device: Declared;
    /// The total number of chunks.
    chunks: Size,
    /// The number of chunks per row.
    per_row: Size,
    /// The length of a chunk, in loads of elements or in states.
    span: Size,
    /// The length of a row, in the same unit.
    length: Size,
    /// The number of elements of a row.
    count: Size,
    /// The rows of elements; states lie in order.
    rows: Option<RowsType> = (config.stage != Stage::End).then_some(config.rows),
    prologue: Option<Prologue> => config.prologue.as_deref(),
    epilogue: Option<Epilogue> => config.epilogue.as_deref(),
}

impl FoldOp {
    /// True if the kernel subtracts a number per row from each of its elements.
    pub const fn is_centred(self) -> bool {
        matches!(self, FoldOp::Deviations | FoldOp::SumExp)
    }
}

impl Reduce {
    /// The dtype of the elements that are folded.
    fn dtype(&self) -> DType {
        self.prologue.as_ref().map_or(self.rows.dtype, |prologue| prologue.expr.dtype())
    }
}

impl Family for Reduce {
    fn name(&self) -> String {
        let Reduce { op, stage, team, turn, .. } = self;
        let elements = prologue::describe(&self.prologue, self.rows.dtype);
        let fold = format!("{op:?}({elements}, {stage:?}, {team:?}, {turn:?})").to_lowercase();
        self.epilogue.as_ref().map_or_else(|| fold.clone(), |y| format!("{fold}, {}", y.expr.describe()))
    }

    fn workgroup(&self) -> u32 {
        self.team.workgroup()
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let Declared { chunks, per_row, span, length, count, rows, prologue, epilogue } = self.declare(k);
        let member = self.team.join(k);
        // A folded dispatch has surplus chunks: they repeat the last one, as all invocations must reach the barriers.
        let chunk = member.row.min(chunks - 1);
        let (row, part) = match self.team {
            // Neighbouring invocations work on neighbouring rows, whose elements may be neighbours in memory.
            Team::Invocation => (chunk % (chunks / per_row), chunk / (chunks / per_row)),
            Team::Workgroup(_) | Team::Columns { .. } => (chunk / per_row, chunk % per_row),
        };
        let start = part * span;
        let bounds = [start, start + (length - start).min(span)];

        let ty = |dtype: DType| Type { scalar: dtype.compute_scalar(), lanes: 1 };
        let scalar = ty(self.dtype());
        let fold = self.op.fold(k, scalar);
        let types = self.op.state(self.dtype());
        let states: Box<dyn Fn(Value<'k>) -> Vec<State<'k>> + '_> = if let Some(rows) = rows {
            let place = self.prologue.is_some().then(|| (rows.kept.coordinates(row), rows.along.clone()));
            let loads: Box<dyn Fn(Value<'k>) -> Value<'k>> = match self.turn {
                Turn::Quads | Turn::WholeQuads(_) => Box::new(Rows::quads(k, rows, self.rows.dtype, row)),
                Turn::Single | Turn::Singles => Box::new(Rows::input(k, rows, self.rows.dtype).row(row)),
            };
            let head = self.prologue.as_ref().zip(prologue).map(|(config, at)| Head::new(k, "p", config, at));
            let head = head.zip(place);
            let width = self.turn.width();
            let elements = move |j: Value<'k>| match &head {
                Some((head, place)) => head.apply_in_row(k, loads(j), place, j),
                None => loads(j),
            };
            let centre = self.op.is_centred().then(|| k.buffer("centre", scalar, Access::Read).load(row));
            let map = &fold.map;
            Box::new(move |j| {
                let elements = elements(j).lanes().into_iter();
                let places = (0..).map(|lane| j * width + lane);
                elements.zip(places).map(|(x, place)| map(centre.map_or(x, |centre| x - centre), place)).collect()
            })
        } else {
            let states = States::declare(k, "states", &types, Access::Read);
            Box::new(move |j| vec![states.load(row * length + j)])
        };
        let first = || states(k.u32(0)).swap_remove(0);
        let stored = member.row.lt(chunks) & member.lane.eq(0);
        if self.stage == Stage::Begin {
            let y = States::declare(k, "y", &types, Access::Write);
            let result = member.fold(&fold, self.turn, first, bounds, &states);
            k.when(stored, || y.store(row * per_row + part, &result));
        } else {
            let epilogue = self.epilogue.as_deref().zip(epilogue);
            let y = Outputs::new(k, self.op.output(self.dtype()), 1, epilogue, None);
            let result = member.fold(&fold, self.turn, first, bounds, &states);
            k.when(stored, || y.store(k, chunk, (fold.finish)(&result, count)));
        }
    }

    fn samples() -> Vec<Self> {
        use FoldOp::*;
        let sample = |op, dtype, stage, team| {
            let rank = usize::from(stage != Stage::End);
            let turn = if team == Team::Invocation { Turn::Single } else { Turn::Singles };
            let rows = RowsType { dtype, kept_rank: rank, row_rank: rank };
            Reduce { op, rows, prologue: None, epilogue: None, stage, team, turn }
        };
        let mut samples = Vec::new();
        for dtype in DType::ALL {
            for op in [Sum, Min, ArgMax] {
                samples.extend(Team::ALL.map(|team| sample(op, dtype, Stage::Whole, team)));
            }
        }
        for op in [Prod, Any, All, NormL1, NormL2, Deviations, SumExp] {
            samples.extend(Team::ALL.map(|team| sample(op, DType::F32, Stage::Whole, team)));
        }
        for op in [Sum, ArgMax, NormL2] {
            samples.extend(
                [Stage::Begin, Stage::End].map(|stage| sample(op, DType::F32, stage, Team::Workgroup(WORKGROUP))),
            );
        }
        let quads = Team::Workgroup(WORKGROUP);
        samples.extend(
            [Sum, ArgMax].map(|op| Reduce { turn: Turn::Quads, ..sample(op, DType::F32, Stage::Whole, quads) }),
        );
        // exp(x + row) and the mean of the sums, with a number for each.
        let mut expr = Expr::default();
        let (x, other) = (expr.input(0, DType::F32), expr.input(1, DType::F32));
        let sum = expr.binary(BinaryOp::Add, x, other);
        expr.unary(UnaryOp::Exp, sum);
        let inputs = [(DType::F32, InputLayout::Strided)].into_iter().collect();
        let prologue = Prologue { expr, inputs, rank: 2, scalars: SmallVec::new() };
        let mut expr = Expr::default();
        let (number, sum) = (expr.input(0, DType::F32), expr.input(1, DType::F32));
        expr.binary(BinaryOp::Mul, sum, number);
        let input = EpilogueInput { dtype: DType::F32, layout: InputLayout::Strided, by_row: true };
        let kept = [sum].into_iter().collect();
        let inputs = [input].into_iter().collect();
        let epilogue = Epilogue { expr, inputs, rank: 1, scalars: SmallVec::new(), kept };
        samples.extend(Team::ALL.map(|team| Reduce {
            prologue: Some(prologue.clone().into()),
            epilogue: Some(epilogue.clone().into()),
            ..sample(Sum, DType::F32, Stage::Whole, team)
        }));
        // Results that share words.
        for narrow in [DType::F16, DType::Bool] {
            let mut expr = Expr::default();
            let sum = expr.input(0, DType::F32);
            expr.cast(narrow, sum);
            let (inputs, scalars, kept) = Default::default();
            let epilogue = Some(Epilogue { expr, inputs, rank: 0, scalars, kept }.into());
            samples.push(Reduce { epilogue, ..sample(Sum, DType::F32, Stage::Whole, Team::Workgroup(WORKGROUP)) });
        }
        samples
    }
}
