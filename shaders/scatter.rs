//! Writes elements to the places that an index tensor names, or combines them with the elements there. Each invocation
//! has one index.

use super::Family;
use super::elements::{Elements, Raw};
use super::parameters::{Form, Lengths, Size, Stride, View, parameters};
use crate::base::dtype::DType;
use crate::shader::{Access, Array, KernelBuilder, Scalar, Type, Value};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 64;

/// The operation at the place that an index names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ScatterOp {
    /// The place gets the number of the last index that names it, counted from 1. Reads no source, writes `u32`.
    Mark,
    /// Writes the element of the source if `Mark` has left the number of this index. So each place is written once.
    Replace,
    /// Writes the element of the source. No other index names its place.
    Assign,
    /// Adds the element of the source. The target has the source's dtype, widened.
    Add,
    /// Keeps the larger element. The target has the source's dtype, widened.
    Max,
    /// Links the indexes that name a place into a chain. The place gets the number of one of them, counted from 1. Each
    /// index gets the number of the next one, and the last one gets 0. Reads no source, writes `u32`. One invocation
    /// follows a whole chain, so a place that very many indexes name takes long.
    Link,
}

impl ScatterOp {
    /// True if elements are combined along chains. Atomic operations work on words, from which only sums of 64-bit
    /// integers can be made.
    pub fn follows_chains(self, dtype: DType) -> bool {
        match self {
            ScatterOp::Add => dtype == DType::F64,
            ScatterOp::Max => dtype.parts() == 2,
            _ => false,
        }
    }

    /// True if elements are combined by sums of `f32`.
    pub fn adds_floats(self, dtype: DType) -> bool {
        self == ScatterOp::Add && dtype.widened() == DType::F32
    }
}

/// `y[.., index[.., i, ..], ..] = x[.., i, ..]`, or combined with it. An index out of range does nothing. Its buffers
/// are, as far as the operation has them: index, `x`, marks (and links), `y`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Scatter {
    pub op: ScatterOp,
    pub dtype: DType,
    pub index: DType,
    pub rank: usize,
    /// Whether the device adds up floats in memory by itself.
    pub float_atomics: bool,
}

parameters! {
    config: Scatter;
    host: Parameters;
    device: Declared;
    /// The number of indexes.
    count: Size,
    /// The length of the indexed axis of `y`.
    length: Size,
    /// The stride of that axis.
    stride: Stride,
    /// The lengths of the axes of the index.
    lengths: Lengths = Lengths(config.rank),
    /// `y` without the indexed axis.
    y: View = View(config.rank),
    index: View = View(config.rank),
    x: Option<View> = config.reads_source().then_some(View(config.rank)),
    /// The offset of the marks, if they are in a buffer beside `y`. They have the strides of `y`.
    marks: Option<Size> = config.reads_marks().then_some(Size),
    /// The place of the first index's link, after the marks.
    first_link: Option<Size> = config.has_links().then_some(Size),
}

impl Scatter {
    fn reads_source(&self) -> bool {
        !matches!(self.op, ScatterOp::Mark | ScatterOp::Link)
    }

    fn reads_marks(&self) -> bool {
        self.op == ScatterOp::Replace || self.op.follows_chains(self.dtype)
    }

    fn has_links(&self) -> bool {
        self.op == ScatterOp::Link || self.op.follows_chains(self.dtype)
    }
}

impl Family for Scatter {
    fn name(&self) -> String {
        let Scatter { op, dtype, index, rank, .. } = self;
        let how = if self.float_atomics { ", float atomics" } else { "" };
        format!("scatter_{op:?}({dtype}, {index}, {rank} axes{how})").to_lowercase()
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let Declared { count, length, stride, lengths, y: y_at, index: index_at, x, marks, first_link } =
            self.declare(k);
        let index = Elements::indexes(k, "index", self.index);
        let number = k.global_index();
        // Runs `act` with the coordinates of the index and the place in `y` that it names.
        let named = |act: &dyn Fn(&[Value<'k>], Value<'k>)| {
            k.when(number.lt(count), || {
                let place = lengths.coordinates(number);
                let wanted = index.load_index(index_at.at(&place));
                k.when(wanted.lt(length), || act(&place, y_at.at(&place) + wanted * stride));
            });
        };
        match (self.op, x, marks, first_link) {
            (ScatterOp::Mark, ..) => {
                let marks = k.buffer("marks", Type::U32, Access::ReadWrite);
                named(&|_, at| _ = marks.atomic_max(at, number + 1));
            }
            (ScatterOp::Replace, Some(x_at), Some(marks_offset), _) => {
                let x = Raw::input(k, "x", self.dtype.size_in_bytes());
                let marks = k.buffer("marks", Type::U32, Access::Read);
                let y = Raw::output(k, "y", self.dtype.size_in_bytes());
                named(&|place, at| {
                    let mark = marks.load(at - y_at.offset() + marks_offset);
                    k.when(mark.eq(number + 1), || y.replace(at, x.load(x_at.at(place))));
                });
            }
            (ScatterOp::Assign, Some(x_at), ..) => {
                let x = Raw::input(k, "x", self.dtype.size_in_bytes());
                let y = Raw::output(k, "y", self.dtype.size_in_bytes());
                named(&|place, at| y.replace(at, x.load(x_at.at(place))));
            }
            (ScatterOp::Link, _, _, Some(first_link)) => {
                let links = k.buffer("links", Type::U32, Access::ReadWrite);
                named(&|_, at| {
                    let next = links.atomic_exchange(at, number + 1);
                    links.store(first_link + number, next);
                });
            }
            (ScatterOp::Add | ScatterOp::Max, Some(x_at), Some(links_offset), Some(first_link)) => {
                let x = Elements::input(k, "x", self.dtype);
                let links = k.buffer("links", Type::U32, Access::Read);
                let element = Type { scalar: self.dtype.compute_scalar(), lanes: 1 };
                let y = k.buffer("y", element, Access::ReadWrite);
                named(&|_, at| {
                    // The first index of a chain combines all elements of the chain.
                    let first = links.load(at - y_at.offset() + links_offset);
                    k.when(first.eq(number + 1), || {
                        let (link, combined) = (k.var(first), k.var(y.load(at)));
                        k.while_(
                            || link.get().gt(0),
                            || {
                                let named_too = link.get() - 1;
                                let value = x.load(x_at.at(&lengths.coordinates(named_too)));
                                let before = combined.get();
                                combined.set(if self.op == ScatterOp::Add {
                                    before + value
                                } else {
                                    before.max(value)
                                });
                                link.set(links.load(first_link + named_too));
                            },
                        );
                        y.store(at, combined.get());
                    });
                });
            }
            (ScatterOp::Add | ScatterOp::Max, Some(x_at), ..) => {
                let x = Elements::moved(k, "x", self.dtype);
                if self.float_atomics {
                    let y = k.buffer("y", Type::F32, Access::ReadWrite);
                    return named(&|place, at| _ = y.atomic_add(at, x.load(x_at.at(place))));
                }
                let y = k.buffer("y", Type::U32, Access::ReadWrite);
                named(&|place, at| self.combine(k, y, at, x.load(x_at.at(place))));
            }
            _ => k.fail("an operation lacks parameters"),
        }
    }

    fn samples() -> Vec<Self> {
        let scatter = |op, dtype| Scatter { op, dtype, index: DType::U32, rank: 2, float_atomics: false };
        let sums = DType::ALL.into_iter().filter(|&dtype| ScatterOp::Add.adds_floats(dtype));
        let sums: Vec<_> =
            sums.map(|dtype| Scatter { float_atomics: true, ..scatter(ScatterOp::Add, dtype) }).collect();
        let of = |op| DType::ALL.map(|dtype| scatter(op, dtype));
        let found = [ScatterOp::Mark, ScatterOp::Link].map(|op| scatter(op, DType::U32));
        [&of(ScatterOp::Replace)[..], &of(ScatterOp::Assign), &of(ScatterOp::Add), &of(ScatterOp::Max), &found, &sums]
            .concat()
    }
}

impl Scatter {
    /// Combines `value` with an element of `y` while other invocations do the same.
    fn combine<'k>(&self, k: &'k KernelBuilder, y: Array<'k>, at: Value<'k>, value: Value<'k>) {
        let ty = value.ty();
        if self.dtype == DType::I64 {
            // The invocation whose addition overflows the lower word carries into the upper word.
            let low = value.lane(0);
            let sum = y.atomic_add(at * 2, low) + low;
            y.atomic_add(at * 2 + 1, value.lane(1) + sum.lt(low).convert(Scalar::U32));
            return;
        }
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
        // There are no atomic operations for these. So the invocation takes the word, leaves the neutral element in its
        // place, and puts the combined word back. If it then finds another word than the neutral element there, another
        // invocation has put it there meanwhile. The invocation combines that word next.
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
