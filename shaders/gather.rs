//! Gathers elements by an index tensor. Each invocation copies four consecutive elements of the output, or 16 bytes if
//! elements that one index names lie side by side.

use super::Family;
use super::elements::{Elements, Quads, narrowed};
use super::elementwise::InputLayout;
use super::epilogue::{self, Epilogue, EpilogueInput, Finishing, Outputs};
use super::expr::{BinaryOp, Expr};
use super::parameters::{Form, Lengths, Size, Stride, View, parameters};
use super::prologue::{self, Prologue, Reader};
use crate::base::dtype::DType;
use crate::shader::{Access, KernelBuilder, Scalar, Type, Value};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 128;

/// The bytes of a unit.
const UNIT: usize = 16;

/// `y[.., i, ..] = x[.., index[.., i, ..], ..]`.
///
/// Only the device can check an index. An index out of range yields NaN for floats, the largest number for unsigned
/// integers, the smallest number for signed integers, and true for truth values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Gather {
    pub dtype: DType,
    pub index: DType,
    pub rank: usize,
    /// Whether the elements of `x` and `y` are units of 16 bytes. Each has one index.
    pub by_units: bool,
    /// The expression of the elements of `x`. 64-bit elements are only moved.
    pub prologue: Option<Box<Prologue>>,
    /// The expression of the results.
    pub epilogue: Option<Box<Epilogue>>,
}

parameters! {
    config: Gather;
    host: Parameters;
    device: Declared;
    /// The number of elements of `y`.
    count: Size,
    /// The length of the indexed axis of `x`.
    length: Size,
    /// The stride of that axis.
    stride: Stride,
    /// The lengths of the axes of `y`.
    lengths: Lengths = Lengths(config.rank),
    /// `x` without the indexed axis.
    x: View = View(config.rank),
    index: View = View(config.rank),
    prologue: Option<Prologue> => config.prologue.as_deref(),
    epilogue: Option<Epilogue> => config.epilogue.as_deref(),
}

/// Returns the element for an index out of range.
fn fill(k: &KernelBuilder, dtype: DType) -> Value<'_> {
    match dtype {
        DType::F64 => words(k, f64::NAN.to_bits()),
        DType::I64 => words(k, i64::MIN.cast_unsigned()),
        DType::F32 | DType::BF16 | DType::F16 => k.f32(f32::NAN),
        DType::I32 => k.i32(i32::MIN),
        DType::I8 => k.i32(i8::MIN.into()),
        DType::U32 => k.u32(u32::MAX),
        DType::U8 => k.u32(u8::MAX.into()),
        DType::Bool => k.u32(1),
    }
}

/// Returns a unit of such elements.
fn unit_of(k: &KernelBuilder, dtype: DType) -> Value<'_> {
    let fill = fill(k, dtype);
    let words = match dtype.size_in_bytes() {
        8 => return k.vector(&[fill.lane(0), fill.lane(1), fill.lane(0), fill.lane(1)]),
        4 => fill.bitcast(Type::U32),
        2 => narrowed(k, dtype, fill) * 0x1_0001,
        _ => narrowed(k, dtype, fill) * 0x101_0101,
    };
    words.splat(4)
}

fn words(k: &KernelBuilder, bits: u64) -> Value<'_> {
    k.vector(&[k.u32(bits as u32), k.u32((bits >> 32) as u32)])
}

impl Finishing for Gather {
    fn width(&self) -> u32 {
        4
    }

    fn stored(&self) -> DType {
        self.dtype
    }

    fn computes(&self) -> bool {
        self.dtype.parts() == 1
    }

    fn alone(&self, parameters: &Parameters) -> Option<(Gather, Parameters, usize)> {
        let per_unit = UNIT / self.dtype.size_in_bytes();
        let Parameters { count, stride, lengths, x, index, .. } = parameters;
        let (&[ref outer @ .., along], &length) = (&x.strides[..], lengths.last()?) else { return None };
        let are_whole = |numbers: &[usize]| numbers.iter().all(|number| number.is_multiple_of(per_unit));
        let are_apart = |strides: &[isize]| strides.iter().all(|stride| stride % per_unit as isize == 0);
        let lie_side_by_side = along == 1 && index.strides.last() == Some(&0);
        if self.prologue.is_some()
            || !lie_side_by_side
            || !are_whole(&[length, x.offset])
            || !are_apart(outer)
            || !are_apart(&[*stride])
        {
            return None;
        }
        let mut units = parameters.clone();
        units.count = count / per_unit;
        units.stride = stride / per_unit as isize;
        *units.lengths.last_mut()? /= per_unit;
        units.x.offset /= per_unit;
        units.x.strides.iter_mut().rev().skip(1).for_each(|stride| *stride /= per_unit as isize);
        let groups = units.count.div_ceil(WORKGROUP as usize);
        Some((Gather { by_units: true, ..self.clone() }, units, groups))
    }

    fn with_epilogue(&self, epilogue: Box<Epilogue>) -> Self {
        Gather { epilogue: Some(epilogue), ..self.clone() }
    }

    fn finished(parameters: &Parameters, epilogue: epilogue::Parameters) -> Parameters {
        Parameters { epilogue: Some(epilogue), ..parameters.clone() }
    }
}

impl Family for Gather {
    fn name(&self) -> String {
        let x = prologue::describe(&self.prologue, self.dtype);
        let units = if self.by_units { ", 16 bytes" } else { "" };
        let name = format!("gather({x}, {}, {} axes{units})", self.index, self.rank);
        self.epilogue.as_ref().map_or_else(|| name.clone(), |y| format!("{name}, {}", y.expr.describe()))
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn touched(&self, Parameters { count, .. }: &Parameters) -> u64 {
        if self.by_units {
            return (*count * UNIT) as u64;
        }
        // What a prologue or an epilogue computes with has four bytes at most.
        *count as u64 * self.dtype.size_in_bytes().max(self.index.size_in_bytes()).max(4) as u64
    }

    fn write(&self, k: &KernelBuilder) {
        let Declared { count, length, stride, lengths, x: x_at, index: index_at, prologue, epilogue } = self.declare(k);
        if self.by_units {
            let units = Type::vec4(Scalar::U32);
            let x = k.buffer("x", units, Access::Read);
            let index = Elements::indexes(k, "index", self.index);
            let y = k.buffer("y", units, Access::Write);
            let unit = k.global_index();
            k.when(unit.lt(count), || {
                let place = lengths.coordinates(unit);
                let wanted = index.load_index(index_at.at(&place));
                let inside = wanted.lt(length);
                let found = x.load(x_at.at(&place) + inside.select(wanted, 0) * stride);
                y.store(unit, inside.select(found, unit_of(k, self.dtype)));
            });
            return;
        }
        let x = match self.prologue.as_deref().zip(prologue) {
            Some(prologue) => Reader::new(k, "x", self.dtype, Some(prologue)),
            None => Reader::moved(k, "x", self.dtype),
        };
        let index = Elements::indexes(k, "index", self.index);
        let epilogue = self.epilogue.as_deref().zip(epilogue);
        let finished = epilogue.map(|epilogue| Outputs::new(k, self.dtype, 4, Some(epilogue), None).up_to(count));
        let moved = finished.is_none().then(|| Quads::output(k, "y", self.dtype.moved()));
        let fill = fill(k, self.dtype);

        let quad = k.global_index();
        let first = quad * 4;
        k.when(first.lt(count), || {
            let places = lengths.quad_coordinates(k, quad, count);
            let lanes = [0, 1, 2, 3].map(|lane| {
                let place: Vec<_> = places.iter().map(|place| place.lane(lane)).collect();
                let wanted = index.load_index(index_at.at(&place));
                let inside = wanted.lt(length);
                inside.select(x.load(x_at.at(&place) + inside.select(wanted, 0) * stride), fill)
            });
            if let Some(y) = &moved {
                y.store_lanes(k, quad, lanes);
            }
            if let Some(y) = &finished {
                y.store(k, first, k.vector(&lanes));
            }
        });
    }

    fn samples() -> Vec<Self> {
        let plain = DType::ALL.map(|dtype| Gather {
            dtype,
            index: DType::U32,
            rank: 2,
            by_units: false,
            prologue: None,
            epilogue: None,
        });
        let by_units = plain.iter().map(|sample| Gather { by_units: true, ..sample.clone() });
        let finished = plain.iter().filter(|sample| sample.computes() && sample.dtype != DType::Bool).map(|sample| {
            let mut expr = Expr::default();
            let (other, x) = (expr.input(0, sample.dtype), expr.input(1, sample.dtype));
            expr.binary(BinaryOp::Add, x, other);
            let input = EpilogueInput { dtype: sample.dtype, layout: InputLayout::Strided, by_row: true };
            let (inputs, scalars, kept) = ([input].into_iter().collect(), Default::default(), Default::default());
            sample.with_epilogue(Epilogue { expr, inputs, rank: 1, scalars, kept }.into())
        });
        let read = plain.iter().filter(|sample| sample.dtype == DType::F32);
        let read = read.map(|sample| Gather { prologue: prologue::sample(), ..sample.clone() });
        plain.iter().cloned().chain(finished).chain(read).chain(by_units).collect()
    }
}
