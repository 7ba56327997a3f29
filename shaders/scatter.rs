//! Elements written, or combined with those that are there, at the places that an index tensor names. Each invocation
//! has one index.

use super::Family;
use super::elements::{Elements, Grid, Raw, Strides};
use crate::dtype::DType;
use crate::shader::{Access, Array, KernelBuilder, Scalar, Type, Value};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 64;

/// What happens at the place that an index names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ScatterOp {
    /// The place gets the number of the last index that names it, counted from 1. Reads no source, writes `u32`.
    Mark,
    /// The element of the source is written, if `Mark` has left the number of this index. So each place is written once.
    Replace,
    /// The element of the source is added. The target is of the source's dtype, widened.
    Add,
    /// The larger element stays. The target is of the source's dtype, widened.
    Max,
}

/// `y[.., index[.., i, ..], ..] = x[.., i, ..]`, or combined with it; an index out of range does nothing. Parameters: the
/// number of indexes; length and stride of the axis of `y` that is indexed; the lengths of the axes of the index; of `y`
/// without that axis, of the index and (but for `Mark`) of `x` an offset and strides; for `Replace` the offset of the
/// marks, which are strided as `y`. Buffers: index, `x`, marks and `y`, those that the operation has.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Scatter {
    pub op: ScatterOp,
    pub dtype: DType,
    pub index: DType,
    pub rank: usize,
}

impl Scatter {
    pub fn parameter_words(&self) -> usize {
        let views = if self.op == ScatterOp::Mark { 2 } else { 3 };
        3 + self.rank + views * (1 + self.rank) + usize::from(self.op == ScatterOp::Replace)
    }
}

impl Family for Scatter {
    fn name(&self) -> String {
        format!("scatter_{:?}({}, {}, {} axes)", self.op, self.dtype, self.index, self.rank).to_lowercase()
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let [count, length, stride] = std::array::from_fn(|_| k.parameter(Type::U32));
        let grid = Grid::parameters(k, self.rank);
        let (y_at, index_at) = (Strides::parameters(k, self.rank), Strides::parameters(k, self.rank));
        let index = Elements::indexes(k, "index", self.index);
        let number = k.global_index();
        // Runs `act` with the coordinates of the index and the place in `y` that it names.
        let named = |act: &dyn Fn(&[Value<'k>], Value<'k>)| {
            k.when(number.lt(count), || {
                let place = grid.coordinates(number);
                let wanted = index.load_index(index_at.at(&place));
                k.when(wanted.lt(length), || act(&place, y_at.at(&place) + wanted * stride));
            });
        };
        match self.op {
            ScatterOp::Mark => {
                let marks = k.buffer("marks", Type::U32, Access::ReadWrite);
                named(&|_, at| _ = marks.atomic_max(at, number + 1));
            }
            ScatterOp::Replace => {
                let (x_at, marks_offset) = (Strides::parameters(k, self.rank), k.parameter(Type::U32));
                let x = Raw::input(k, "x", self.dtype.size_in_bytes());
                let marks = k.buffer("marks", Type::U32, Access::Read);
                let y = Raw::output(k, "y", self.dtype.size_in_bytes());
                named(&|place, at| {
                    let mark = marks.load(at - y_at.offset() + marks_offset);
                    k.when(mark.eq(number + 1), || y.replace(at, x.load(x_at.at(place))));
                });
            }
            ScatterOp::Add | ScatterOp::Max => {
                let x_at = Strides::parameters(k, self.rank);
                let x = Elements::input(k, "x", self.dtype);
                let y = k.buffer("y", Type::U32, Access::ReadWrite);
                named(&|place, at| self.combine(k, y, at, x.load(x_at.at(place))));
            }
        }
    }

    fn samples() -> Vec<Self> {
        let scatter = |op, dtype| Scatter { op, dtype, index: DType::U32, rank: 2 };
        let of = |op| DType::ALL.into_iter().filter(|dtype| dtype.parts() == 1).map(move |dtype| scatter(op, dtype));
        let combined = of(ScatterOp::Add).chain(of(ScatterOp::Max));
        of(ScatterOp::Replace).chain(combined).chain([scatter(ScatterOp::Mark, DType::U32)]).collect()
    }
}

impl Scatter {
    /// Combines `value` with a word of `y` while others do the same.
    fn combine<'k>(&self, k: &'k KernelBuilder, y: Array<'k>, at: Value<'k>, value: Value<'k>) {
        let ty = value.ty();
        let (neutral, combined): (Value, fn(Value<'k>, Value<'k>) -> Value<'k>) = match (self.op, ty.scalar) {
            (ScatterOp::Max, Scalar::U32) => {
                y.atomic_max(at, value);
                return;
            }
            (ScatterOp::Max, Scalar::I32) => (k.i32(i32::MIN), |a, b| a.max(b)),
            (ScatterOp::Max, _) => (k.f32(f32::NEG_INFINITY), |a, b| a.max(b)),
            (_, Scalar::U32 | Scalar::I32) => {
                y.atomic_add(at, value.bitcast(Type::U32));
                return;
            }
            _ => (k.f32(0.0), |a, b| a + b),
        };
        // There are no atomic operations for these. So the word is taken, with the neutral element left in its place, and
        // put back combined. What is found then is that element, or what another invocation has put there meanwhile: that
        // is to be combined next.
        let neutral = neutral.bitcast(Type::U32);
        let carried = k.var(value.bitcast(Type::U32));
        k.while_(
            || carried.get().ne(neutral),
            || {
                let taken = y.atomic_exchange(at, neutral);
                let sum = combined(taken.bitcast(ty), carried.get().bitcast(ty));
                carried.set(y.atomic_exchange(at, sum.bitcast(Type::U32)));
            },
        );
    }
}
