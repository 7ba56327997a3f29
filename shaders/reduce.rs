//! Reductions over any axes: each team of invocations folds one row, the reduced elements of one output element.

use super::Family;
use super::elements::{Elements, Grid, Strides};
use super::workgroup::{Team, WORKGROUP};
use crate::dtype::DType;
use crate::shader::{Access, KernelBuilder, Type, Value};

/// What a row is folded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ReduceOp {
    Sum,
    Min,
    Max,
    /// The place of the first largest element in the row; a NaN counts as largest.
    ArgMax,
}

impl ReduceOp {
    /// The dtype of the result for elements of `dtype`: 32 bits wide, so that no two invocations write one word.
    pub fn output(self, dtype: DType) -> DType {
        match self {
            ReduceOp::ArgMax => DType::U32,
            _ => dtype.widened(),
        }
    }
}

/// A reduction. A row may be cut into chunks, each with a team and a result of its own. Parameters: the number of
/// chunks in all and per row, the length of a chunk and of a row; the lengths of the kept axes, of the reduced axes;
/// the input's offset and its strides along the kept, then along the reduced axes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Reduce {
    pub op: ReduceOp,
    pub dtype: DType,
    pub kept_rank: usize,
    pub reduced_rank: usize,
    pub team: Team,
}

impl Reduce {
    /// The length of the parameter block.
    pub fn parameter_words(kept_rank: usize, reduced_rank: usize) -> usize {
        5 + 2 * (kept_rank + reduced_rank)
    }
}

/// A value and the place where it was found.
pub(super) type Found<'k> = [Value<'k>; 2];

/// The better of two candidates for `ArgMax`.
pub(super) fn larger<'k>(a: Found<'k>, b: Found<'k>) -> Found<'k> {
    // Sorted as (is NaN, value, earlier place).
    let earlier = a[1].lt(b[1]);
    let by_value = a[0].gt(b[0]) | (a[0].eq(b[0]) & earlier);
    let first = if a[0].ty().is_float() {
        let (a_nan, b_nan) = (a[0].is_nan(), b[0].is_nan());
        (a_nan & b_nan).select(earlier, a_nan | by_value)
    } else {
        by_value
    };
    [first.select(a[0], b[0]), first.select(a[1], b[1])]
}

impl Family for Reduce {
    fn name(&self) -> String {
        format!("{:?}({}, {:?})", self.op, self.dtype, self.team).to_lowercase()
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let [chunks, per_row, span, length] = std::array::from_fn(|_| k.parameter(Type::U32));
        let kept = Grid::parameters(k, self.kept_rank);
        let reduced = Grid::parameters(k, self.reduced_rank);
        let strides = Strides::parameters(k, self.kept_rank + self.reduced_rank);
        let x = Elements::input(k, "x", self.dtype);
        let scalar = Type { scalar: self.dtype.compute_scalar(), lanes: 1 };
        let result = if self.op == ReduceOp::ArgMax { Type::U32 } else { scalar };
        let y = k.buffer("y", result, Access::Write);

        let member = self.team.join(k);
        // A folded dispatch has surplus chunks: they repeat the last one, as all invocations must reach the barriers.
        let chunk = member.row.min(chunks - 1);
        let kept_coordinates = kept.coordinates(chunk / per_row);
        let start = chunk % per_row * span;
        let end = (start + span).min(length);
        let element = |j: Value<'k>| {
            let mut coordinates = kept_coordinates.clone();
            coordinates.extend(reduced.coordinates(j));
            x.load(strides.at(&coordinates))
        };

        let store = |value: Value<'k>| {
            k.when(member.row.lt(chunks) & member.lane.eq(0), || y.store(chunk, value));
        };
        match self.op {
            ReduceOp::Sum => {
                store(member.sum(member.scratch(scalar), k.number(scalar, 0), [start, end], element));
            }
            ReduceOp::Min | ReduceOp::Max => {
                let extreme = |a: Value<'k>, b| if self.op == ReduceOp::Min { a.min(b) } else { a.max(b) };
                // Lanes without an element of their own repeat one of the row, which changes no extreme.
                let best = k.var(element(start.min(length - 1)));
                k.for_step(start + member.lane, end, member.lanes, |j| best.set(extreme(best.get(), element(j))));
                let [total] = member.reduce([member.scratch(scalar)], [best.get()], |[a], [b]| [extreme(a, b)]);
                store(total);
            }
            ReduceOp::ArgMax => {
                let (best, place) = (k.var(element(k.u32(0))), k.var(k.u32(0)));
                k.for_step(start + member.lane, end, member.lanes, |j| {
                    let [value, found] = larger([best.get(), place.get()], [element(j), j]);
                    best.set(value);
                    place.set(found);
                });
                let scratch = [member.scratch(scalar), member.scratch(Type::U32)];
                let [_, found] = member.reduce(scratch, [best.get(), place.get()], larger);
                store(found);
            }
        }
    }

    fn samples() -> Vec<Self> {
        let mut samples = Vec::new();
        for dtype in DType::ALL {
            for op in [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::ArgMax] {
                samples.extend(Team::ALL.map(|team| Reduce { op, dtype, kept_rank: 1, reduced_rank: 1, team }));
            }
        }
        samples
    }
}
