//! Writes of elements to the positions in an index tensor.

use super::shaped;
use crate::compare::{Expected, Sample, check};
use crate::layouts::Layout;
use crate::reference::functions::maximum;
use crate::reference::index::scatter;
use crate::reference::inputs::{Domain, Inputs};
use crate::reference::numbers::wrap;
use crate::reference::{ArrayD, array, broadcast};
use crate::suite::{Outcome, Suite};
use crate::tolerance::{EPS, EXACT, Table, Tolerance};
use marquetry::{DType, Device, Tensor};

pub const TOLERANCES: Table = &[
    (&["scatter"], Tolerance { moves: true, reason: "nothing is computed", ..EXACT }),
    (&["scatter_max"], Tolerance { reason: "the result is a number of the dtype", ..EXACT }),
    (
        &["scatter_add", "index_add"],
        Tolerance {
            ulp: 0.5,
            of_scale: EPS,
            reason: "n additions in any order, each within eps of the sum of magnitudes (the scale)",
            ..EXACT
        },
    ),
];

type Call = fn(Tensor, &Tensor, &Tensor, usize) -> marquetry::Result<Tensor>;

struct Op {
    name: &'static str,
    call: Call,
}

const OPS: [Op; 4] = [
    Op { name: "scatter", call: |x, indexes, src, axis| x.scatter(indexes, src, axis) },
    Op { name: "scatter_add", call: |x, indexes, src, axis| x.scatter_add(indexes, src, axis) },
    Op { name: "scatter_max", call: |x, indexes, src, axis| x.scatter_max(indexes, src, axis) },
    Op { name: "index_add", call: |x, indexes, src, axis| x.index_add(indexes, src, axis) },
];

impl Op {
    fn expected(
        &self,
        x: &ArrayD<f64>,
        indexes: &ArrayD<f64>,
        src: &ArrayD<f64>,
        axis: usize,
        dtype: DType,
    ) -> Expected {
        let indexes = match self.name {
            "index_add" => {
                let mut shape = vec![1; x.ndim()];
                shape[axis] = indexes.len();
                &broadcast(&array(&shape, indexes.iter().copied().collect()), src.shape())
            }
            _ => indexes,
        };
        let sum = |a: f64, b: f64| if dtype.is_float() { a + b } else { wrap(a as i64 + b as i64, dtype) };
        let values = match self.name {
            "scatter" => scatter(x, indexes, src, axis, |_, new| new),
            "scatter_max" => scatter(x, indexes, src, axis, maximum),
            _ => {
                let magnitudes = scatter(&x.mapv(f64::abs), indexes, &src.mapv(f64::abs), axis, |a, b| a + b);
                let ones = ArrayD::ones(src.raw_dim());
                let counts = scatter(&ArrayD::zeros(x.raw_dim()), indexes, &ones, axis, |a, b| a + b);
                return Expected::new(scatter(x, indexes, src, axis, sum), dtype).with_scale(magnitudes * counts);
            }
        };
        Expected::new(values, dtype)
    }

    /// Writes to a shared tensor, whose other holders must not see it, and to a tensor with no other holder.
    fn check(&self, x: Sample, indexes: &Sample, src: &Sample, axis: usize) -> Outcome {
        let dtype = x.tensor.dtype();
        let expected = self.expected(&x.values, &indexes.values, &src.values, axis, dtype);
        let copy = (self.call)(x.tensor.clone(), &indexes.tensor, &src.tensor, axis)?;
        check(self.name, &copy, &expected)?;
        check("to_vec", &x.tensor, &Expected::new(x.values, dtype))?;
        check(self.name, &(self.call)(x.tensor, &indexes.tensor, &src.tensor, axis)?, &expected)
    }

    /// Returns the shape of the indexes and the shape of the source. Their axes do not merge with those of the target.
    fn shapes(&self, axis: usize) -> (Vec<usize>, [usize; 3]) {
        if self.name == "index_add" {
            let mut source = [4, 5, 6];
            source[axis] = 9;
            return (vec![9], source);
        }
        let mut shape = [3, 4, 5];
        shape[axis] = 9;
        (shape.to_vec(), shape.map(|n| n + 1))
    }
}

/// Indexes with many duplicates. Some are out of range.
fn indexes(shape: &[usize], length: usize, dtype: DType) -> ArrayD<f64> {
    let mut inputs = Inputs::new("scattered");
    let stray = |i: usize| match dtype {
        DType::I32 => [-1.0, i32::MIN.into(), length as f64][i % 3],
        DType::U32 => [f64::from(u32::MAX), length as f64, 1e9][i % 3],
        _ => [255.0, length as f64][i % 2],
    };
    let index = |i: usize| if i % 7 == 5 { stray(i) } else { inputs.below(length) as f64 };
    array(shape, (0..shape.iter().product()).map(index).collect())
}

fn placed(op: &Op, layouts: [Layout; 3], axis: usize, dtype: DType, index: DType, device: &Device) -> Outcome {
    let domain = if op.name.ends_with("add") { Domain::Normal } else { Domain::Special };
    let (index_shape, source_shape) = op.shapes(axis);
    let x = shaped("target", &[4, 5, 6], layouts[0], dtype, domain, device)?;
    let indexes = layouts[1].place(indexes(&index_shape, x.values.shape()[axis], index), index, device)?;
    op.check(x, &indexes, &shaped("source", &source_shape, layouts[2], dtype, domain, device)?, axis)
}

/// The indexes have one slice along the axis, so none of them name the same place.
fn one_slice(op: &Op, layout: Layout, dtype: DType, device: &Device) -> Outcome {
    let x = shaped("target", &[4, 5, 6], Layout::Contiguous, dtype, Domain::Special, device)?;
    let indexes = layout.place(indexes(&[3, 1, 6], 5, DType::U32), DType::U32, device)?;
    op.check(x, &indexes, &shaped("source", &[4, 2, 6], layout, dtype, Domain::Special, device)?, 1)
}

/// Many invocations write to few elements at once.
fn contended(op: &Op, dtype: DType, device: &Device) -> Outcome {
    let x = shaped("target", &[3], Layout::Contiguous, dtype, Domain::Small, device)?;
    let indexes = Layout::Contiguous.place(indexes(&[5000], 3, DType::U32), DType::U32, device)?;
    op.check(x, &indexes, &shaped("source", &[5000], Layout::Contiguous, dtype, Domain::Small, device)?, 0)
}

fn specials(op: &Op, dtype: DType, device: &Device) -> Outcome {
    let (nan, infinity) = (f64::NAN, f64::INFINITY);
    let x = array(&[6], vec![1.0, nan, -infinity, infinity, -0.0, 2.0]);
    let src = array(&[6], vec![nan, 5.0, infinity, -infinity, -0.0, 3.0]);
    let indexes = array(&[6], (0..6).map(f64::from).collect());
    let place = |values, dtype| Layout::Contiguous.place(values, dtype, device);
    op.check(place(x, dtype)?, &place(indexes, DType::U32)?, &place(src, dtype)?, 0)
}

fn nothing(op: &Op, dtype: DType, device: &Device) -> Outcome {
    let place = |shape: &[usize], dtype| Layout::Contiguous.place(ArrayD::ones(shape), dtype, device);
    let source: &[usize] = if op.name == "index_add" { &[0, 2] } else { &[3, 2] };
    let none: &[usize] = if op.name == "index_add" { &[0] } else { &[0, 2] };
    op.check(place(&[3, 2], dtype)?, &place(none, DType::U32)?, &place(source, dtype)?, 0)?;
    // Any index into an empty axis is out of range.
    let some: &[usize] = if op.name == "index_add" { &[3] } else { &[3, 2] };
    op.check(place(&[0, 2], dtype)?, &place(some, DType::U32)?, &place(&[3, 2], dtype)?, 0)
}

/// More axes than a parameter block has strides for.
fn many_axes(op: &Op, dtype: DType, device: &Device) -> Outcome {
    let shape: &[usize] = if op.name == "index_add" { &[2] } else { &[2; 15] };
    let sample = |name: &str, layout| shaped(name, &[2; 15], layout, dtype, Domain::Small, device);
    let indexes = Layout::Contiguous.place(indexes(shape, 2, DType::U32), DType::U32, device)?;
    op.check(sample("target", Layout::Transposed)?, &indexes, &sample("source", Layout::Transposed)?, 4)
}

pub fn add(suite: &mut Suite) {
    use Layout::{Broadcast, Contiguous, Flipped, Sliced, Transposed, Unaligned};
    for op in &OPS {
        for dtype in DType::ALL {
            for axis in 0..3 {
                suite.add(op.name, format!("{dtype}::axis_{axis}"), move |device| {
                    placed(op, [Contiguous; 3], axis, dtype, DType::U32, device)
                });
            }
            // Addressing does not depend on the stored dtype: test all layouts with whole words and with parts of
            // words.
            let all = [Transposed, Sliced, Flipped, Broadcast, Unaligned];
            let layouts = if matches!(dtype, DType::F32 | DType::U8) { &all[..] } else { &all[1..2] };
            for &layout in layouts {
                for (part, variant) in [
                    ("target", [layout, Contiguous, Contiguous]),
                    ("source", [Contiguous, Contiguous, layout]),
                    ("indexes", [Contiguous, layout, Contiguous]),
                ] {
                    suite.add(op.name, format!("{dtype}::{part}_{}", layout.name()), move |device| {
                        placed(op, variant, 1, dtype, DType::U32, device)
                    });
                }
            }
            if op.name == "scatter" {
                for layout in [Contiguous, Transposed, Broadcast] {
                    suite.add(op.name, format!("{dtype}::one_slice_{}", layout.name()), move |device| {
                        one_slice(op, layout, dtype, device)
                    });
                }
            }
            suite.add(op.name, format!("{dtype}::contended"), move |device| contended(op, dtype, device));
            suite.add(op.name, format!("{dtype}::nothing"), move |device| nothing(op, dtype, device));
        }
        for index in [DType::I32, DType::U8, DType::I64] {
            suite.add(op.name, format!("f32::{index}_indexes"), move |device| {
                placed(op, [Contiguous; 3], 1, DType::F32, index, device)
            });
        }
        for dtype in [DType::F32, DType::F64] {
            suite.add(op.name, format!("{dtype}::specials"), move |device| specials(op, dtype, device));
            suite.add(op.name, format!("{dtype}::many_axes"), move |device| many_axes(op, dtype, device));
        }
    }
}
