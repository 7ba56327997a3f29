//! Views, fixed and random, and operations over random views.

use super::{is_brief, shaped};
use crate::compare::{Expected, Sample, check};
use crate::layouts::Layout;
use crate::reference::inputs::Domain;
use crate::reference::{ArrayD, Axis, IxDyn, Slice, array, broadcast};
use crate::suite::{Outcome, Suite};
use crate::views::{self, Property};
use marquetry::{DType, Device, Tensor};
use ndarray::Dimension;

/// A view or a reshape by the crate, and the expected elements.
struct View {
    op: &'static str,
    variant: &'static str,
    call: fn(&Tensor) -> marquetry::Result<Tensor>,
    model: fn(&ArrayD<f64>) -> ArrayD<f64>,
}

fn reshape(x: &ArrayD<f64>, shape: &[usize]) -> ArrayD<f64> {
    array(shape, x.iter().copied().collect())
}

fn permuted(x: &ArrayD<f64>, axes: [usize; 3]) -> ArrayD<f64> {
    x.view().permuted_axes(axes.to_vec()).to_owned()
}

fn sliced(x: &ArrayD<f64>, axis: usize, slice: Slice) -> ArrayD<f64> {
    x.slice_axis(Axis(axis), slice).to_owned()
}

fn unfolded(x: &ArrayD<f64>, axis: usize, size: usize, step: usize) -> ArrayD<f64> {
    let mut shape = x.shape().to_vec();
    shape[axis] = (shape[axis] - size) / step + 1;
    shape.push(size);
    ArrayD::from_shape_fn(shape, |place| {
        let mut place = place.slice().to_vec();
        let within = place.pop().unwrap();
        place[axis] = place[axis] * step + within;
        x[&place[..]]
    })
}

/// The elements at other indexes.
fn gather(x: &ArrayD<f64>, shape: &[usize], index: impl Fn(&[usize]) -> [usize; 3]) -> ArrayD<f64> {
    ArrayD::from_shape_fn(shape, |i| x[&index(i.slice())[..]])
}

/// The elements at other places in row-major order.
fn placed(x: &ArrayD<f64>, shape: &[usize], place: impl Fn(&[usize]) -> usize) -> ArrayD<f64> {
    let elements: Vec<f64> = x.iter().copied().collect();
    ArrayD::from_shape_fn(shape, |i| elements[place(i.slice())])
}

macro_rules! view {
    ($op:ident, $variant:literal, $call:expr, $model:expr) => {
        View { op: stringify!($op), variant: $variant, call: $call, model: $model }
    };
}

/// The views of a tensor of shape [4, 5, 6].
const VIEWS: &[View] = &[
    view!(reshape, "merge", |x| x.reshape((20, 6)), |x| reshape(x, &[20, 6])),
    view!(reshape, "split", |x| x.reshape((2, 2, 5, 3, 2)), |x| reshape(x, &[2, 2, 5, 3, 2])),
    view!(reshape, "ones", |x| x.reshape([1, 4, 1, 30, 1]), |x| reshape(x, &[1, 4, 1, 30, 1])),
    view!(flatten, "inner", |x| x.flatten(1, 2), |x| reshape(x, &[4, 30])),
    view!(flatten, "outer", |x| x.flatten(0, -2), |x| reshape(x, &[20, 6])),
    view!(flatten, "one", |x| x.flatten(1, 1), |x| x.clone()),
    view!(flatten, "all", |x| x.flatten_all(), |x| reshape(x, &[120])),
    view!(transpose, "ends", |x| x.transpose(0, 2), |x| permuted(x, [2, 1, 0])),
    view!(transpose, "negative", |x| x.transpose(-1, 1), |x| permuted(x, [0, 2, 1])),
    view!(transpose, "same", |x| x.transpose(1, 1), |x| x.clone()),
    view!(permute, "rotate", |x| x.permute([1, 2, 0]), |x| permuted(x, [1, 2, 0])),
    view!(permute, "negative", |x| x.permute((-1, -3, -2)), |x| permuted(x, [2, 0, 1])),
    view!(t, "batch", |x| x.t(), |x| permuted(x, [0, 2, 1])),
    view!(narrow, "middle", |x| x.narrow(1, 1, 3), |x| sliced(x, 1, Slice::from(1..4))),
    view!(narrow, "last", |x| x.narrow(-1, 5, 1), |x| sliced(x, 2, Slice::from(5..6))),
    view!(narrow, "nothing", |x| x.narrow(0, 4, 0), |x| sliced(x, 0, Slice::from(4..4))),
    view!(slice, "step", |x| x.slice(2, 1..6, 2), |x| sliced(x, 2, Slice::new(1, Some(6), 2))),
    view!(slice, "open", |x| x.slice(0, 1.., 3), |x| sliced(x, 0, Slice::new(1, None, 3))),
    view!(slice, "inclusive", |x| x.slice(-2, ..=3, 1), |x| sliced(x, 1, Slice::from(..4))),
    view!(slice, "long_step", |x| x.slice(1, .., isize::MAX), |x| sliced(x, 1, Slice::from(..1))),
    view!(slice, "backwards", |x| x.slice(1, .., -1), |x| sliced(x, 1, Slice::new(0, None, -1))),
    view!(slice, "backwards_step", |x| x.slice(-1, 1..6, -2), |x| sliced(x, 2, Slice::new(1, Some(6), -2))),
    view!(slice, "backwards_long_step", |x| x.slice(0, .., isize::MIN), |x| sliced(x, 0, Slice::from(3..))),
    view!(slice, "backwards_nothing", |x| x.slice(0, 2..2, -1), |x| sliced(x, 0, Slice::from(2..2))),
    view!(i, "first", |x| x.i(0), |x| x.index_axis(Axis(0), 0).to_owned()),
    view!(i, "last", |x| x.i(-1), |x| x.index_axis(Axis(0), 3).to_owned()),
    view!(i, "inner", |x| x.i((.., 2)), |x| x.index_axis(Axis(1), 2).to_owned()),
    view!(i, "range", |x| x.i(1..3), |x| sliced(x, 0, Slice::from(1..3))),
    view!(i, "nothing", |x| x.i((.., 5..)), |x| sliced(x, 1, Slice::from(5..5))),
    view!(i, "indices_and_ranges", |x| x.i((2.., -1, ..=3)), |x| {
        sliced(&sliced(x, 0, Slice::from(2..)), 2, Slice::from(..4)).index_axis(Axis(1), 4).to_owned()
    }),
    view!(i, "one_element", |x| x.i((3, 4, 5)), |x| reshape(&sliced(x, 0, Slice::from(3..)), &[30])
        .index_axis(Axis(0), 29)
        .to_owned()),
    view!(unfold, "overlapping", |x| x.unfold(-1, 3, 1), |x| unfolded(x, 2, 3, 1)),
    view!(unfold, "apart", |x| x.unfold(0, 1, 2), |x| unfolded(x, 0, 1, 2)),
    view!(unfold, "whole", |x| x.unfold(1, 5, 7), |x| unfolded(x, 1, 5, 7)),
    view!(unfold, "nothing", |x| x.unfold(1, 0, 2), |x| unfolded(x, 1, 0, 2)),
    view!(unfold, "twice", |x| x.unfold(1, 2, 1)?.unfold(2, 2, 3), |x| unfolded(&unfolded(x, 1, 2, 1), 2, 2, 3)),
    view!(diagonal, "batch", |x| x.diagonal(0, 1, 2), |x| gather(x, &[4, 5], |i| [i[0], i[1], i[1]])),
    view!(diagonal, "right", |x| x.diagonal(3, 0, -1), |x| gather(x, &[5, 3], |i| [i[1], i[0], i[1] + 3])),
    view!(diagonal, "below", |x| x.diagonal(-2, 0, 1), |x| gather(x, &[6, 2], |i| [i[1] + 2, i[1], i[0]])),
    view!(diagonal, "beyond", |x| x.diagonal(9, 0, 1), |x| gather(x, &[6, 0], |_| [0; 3])),
    view!(as_strided, "windows", |x| x.as_strided((3, 7), &[9, 4], 5), |x| placed(x, &[3, 7], |i| 5
        + 9 * i[0]
        + 4 * i[1])),
    view!(as_strided, "backwards", |x| x.as_strided((4, 6), &[-6, 1], 42), |x| placed(x, &[4, 6], |i| 42 - 6 * i[0]
        + i[1])),
    view!(as_strided, "nothing", |x| x.as_strided((4, 0), &[600, 1], 4000), |x| placed(x, &[4, 0], |_| 0)),
    view!(broadcast_to, "outer", |x| x.broadcast_to((2, 3, 4, 5, 6)), |x| broadcast(x, &[2, 3, 4, 5, 6])),
    view!(broadcast_to, "same", |x| x.broadcast_to((4, 5, 6)), |x| x.clone()),
    view!(broadcast_to, "nothing", |x| x.broadcast_to((0, 4, 5, 6)), |x| broadcast(x, &[0, 4, 5, 6])),
    view!(broadcast_to, "axis", |x| x.narrow(1, 2, 1)?.broadcast_to((4, 7, 6)), |x| {
        broadcast(&sliced(x, 1, Slice::from(2..3)), &[4, 7, 6])
    }),
    view!(unsqueeze, "first", |x| x.unsqueeze(0), |x| x.clone().insert_axis(Axis(0))),
    view!(unsqueeze, "middle", |x| x.unsqueeze(2), |x| x.clone().insert_axis(Axis(2))),
    view!(unsqueeze, "last", |x| x.unsqueeze(-1), |x| x.clone().insert_axis(Axis(3))),
    view!(squeeze, "one", |x| x.narrow(1, 3, 1)?.squeeze(1), |x| x.index_axis(Axis(1), 3).to_owned()),
    view!(squeeze, "not_one", |x| x.squeeze(0), |x| x.clone()),
    view!(contiguous, "copy", |x| x.contiguous(), |x| x.clone()),
];

impl View {
    fn check(&self, input: &Sample) -> Outcome {
        let expected = Expected::new((self.model)(&input.values), input.tensor.dtype());
        let view = (self.call)(&input.tensor)?;
        if self.op == "contiguous" && !view.is_contiguous() {
            return Err("contiguous() is not contiguous".into());
        }
        check(self.op, &view, &expected)
    }
}

fn accessors(device: &Device) -> Outcome {
    let x = Tensor::zeros((4, 5, 6), DType::F16, device)?.permute([2, 0, 1])?;
    let facts = (
        x.dims(),
        x.rank(),
        x.elem_count(),
        x.dim(-1)?,
        x.strides(),
        x.is_contiguous(),
        x.dtype(),
        x.device() == device,
    );
    if facts == (&[6, 4, 5], 3, 120, 5, &[1, 30, 6], false, DType::F16, true) {
        Ok(())
    } else {
        Err(format!("got {facts:?}").into())
    }
}

/// Permutations that change the innermost axis, with sizes that are copied through tiles.
fn in_tiles(dtype: DType, device: &Device) -> Outcome {
    for (shape, order) in [
        (&[36, 40][..], &[1, 0][..]),
        (&[132, 260], &[1, 0]),
        (&[32, 20], &[1, 0]),
        (&[64, 3, 33], &[2, 1, 0]),
        (&[2, 36, 5, 50], &[0, 3, 2, 1]),
        (&[3, 100, 70], &[2, 0, 1]),
        (&[2, 548, 3, 36], &[0, 3, 2, 1]),
    ] {
        for layout in [Layout::Contiguous, Layout::Sliced] {
            let x = shaped("tiles", shape, layout, dtype, Domain::Special, device)?;
            let expected = Expected::new(x.values.permuted_axes(IxDyn(order)), dtype);
            check("contiguous", &x.tensor.permute(order)?.contiguous()?, &expected)?;
        }
    }
    Ok(())
}

pub fn add(suite: &mut Suite) {
    for dtype in DType::ALL {
        suite.add("contiguous", format!("{dtype}::in_tiles"), move |device| in_tiles(dtype, device));
    }
    for view in VIEWS {
        for dtype in DType::ALL {
            for layout in [Layout::Contiguous, Layout::Unaligned, Layout::Transposed, Layout::Sliced, Layout::Broadcast]
            {
                if is_brief(dtype) && layout != Layout::Sliced {
                    continue;
                }
                suite.add(view.op, format!("{dtype}::{}_of_{}", view.variant, layout.name()), move |device| {
                    view.check(&shaped("view", &[4, 5, 6], layout, dtype, Domain::Special, device)?)
                });
            }
        }
    }
    suite.add("views", "accessors", accessors);
    suite.add("unfold", "assigned", |device| {
        // Its windows share elements, and so have places of their own before one changes.
        let windows = Tensor::arange(0f32, 4.0, device)?.unfold(0, 2, 1)?;
        let values = windows.slice_assign((1.., ..1), &Tensor::full(9f32, (2, 1), device)?)?;
        check("unfold", &values, &Expected::new(array(&[3, 2], vec![0.0, 1.0, 9.0, 2.0, 9.0, 3.0]), DType::F32))
    });
    for property in Property::ALL {
        let tried = |dtype| property.takes(dtype) && (!is_brief(dtype) || matches!(property, Property::Contiguous));
        for dtype in DType::ALL.into_iter().filter(|&dtype| tried(dtype)) {
            suite.add(property.op(), format!("{dtype}::random_views"), move |device| {
                views::try_random(property, dtype, device)
            });
        }
    }
}
