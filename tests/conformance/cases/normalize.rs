//! Softmax and layer norm.

use super::{FLOATS, is_brief, shaped};
use crate::compare::{Expected, Sample, check, upload};
use crate::layouts::Layout;
use crate::reference::array;
use crate::reference::inputs::{Domain, Inputs};
use crate::reference::normalize::{layer_norm, softmax};
use crate::reference::numbers::round;
use crate::suite::{Outcome, Suite};
use marquetry::{DType, Device};

const LAYOUTS: [Layout; 7] = [
    Layout::Contiguous,
    Layout::Unaligned,
    Layout::Transposed,
    Layout::Sliced,
    Layout::Broadcast,
    Layout::Empty,
    Layout::One,
];

/// Rows that a workgroup works on together, and rows that one invocation works on.
const LENGTHS: [(&str, &[usize]); 5] =
    [("odd", &[3, 65, 7]), ("long", &[2, 5000]), ("short", &[3000, 3]), ("many", &[70, 100]), ("vector", &[130])];

fn check_softmax(input: &Sample, axis: i32) -> Outcome {
    let resolved = axis.rem_euclid(input.values.ndim() as i32) as usize;
    let (values, scale) = softmax(&input.values, resolved);
    check("softmax", &input.tensor.softmax(axis)?, &Expected::new(values, input.tensor.dtype()).with_scale(scale))
}

fn check_layer_norm(input: &Sample, axes: usize, parameters: Layout, eps: f64, device: &Device) -> Outcome {
    let dtype = input.tensor.dtype();
    let shape = &input.values.shape()[input.values.ndim() - axes..];
    let weight = shaped("weight", shape, parameters, dtype, Domain::Normal, device)?;
    let bias = shaped("bias", shape, parameters, dtype, Domain::Normal, device)?;
    let (values, scale) = layer_norm(&input.values, &weight.values, &bias.values, eps);
    let expected = Expected::new(values, dtype).with_scale(scale);
    check("layer_norm", &input.tensor.layer_norm(&weight.tensor, &bias.tensor, eps)?, &expected)
}

pub fn add(suite: &mut Suite) {
    for dtype in FLOATS {
        let mut add = |variant: String, shape: &'static [usize], layout: Layout| {
            for axis in (0..shape.len() as i32).chain([-1]) {
                suite.add("softmax", format!("{dtype}::{variant}_{axis}"), move |device| {
                    check_softmax(&shaped("softmax", shape, layout, dtype, Domain::Normal, device)?, axis)
                });
            }
            for axes in 1..=shape.len().min(2) {
                suite.add("layer_norm", format!("{dtype}::{variant}_{axes}"), move |device| {
                    let input = shaped("layer_norm", shape, layout, dtype, Domain::Normal, device)?;
                    check_layer_norm(&input, axes, Layout::Contiguous, 1e-5, device)
                });
            }
        };
        for layout in LAYOUTS.into_iter().filter(|&layout| !is_brief(dtype) || layout == Layout::Sliced) {
            let shape: &[usize] = match layout {
                Layout::Empty => &[4, 0, 6],
                Layout::One => &[1, 1, 1],
                _ => &[4, 5, 6],
            };
            add(layout.name(), shape, layout);
        }
        for (name, shape) in LENGTHS {
            add(name.to_string(), shape, Layout::Contiguous);
        }
        suite.add("softmax", format!("{dtype}::large_numbers"), move |device| {
            // exp of these overflows, the result does not.
            let values =
                Inputs::new("large").array(&[5, 40], dtype, Domain::Normal).mapv(|x| (x * 64.0).round() * 16.0);
            check_softmax(&Sample { tensor: upload(&values, dtype, device)?, values }, -1)
        });
        suite.add("softmax", format!("{dtype}::masked"), move |device| {
            // Minus infinity, as attention masks have it, is a probability of 0.
            let mut values = Inputs::new("masked").array(&[5, 40], dtype, Domain::Normal);
            for (place, x) in values.iter_mut().enumerate() {
                if place % 3 == 1 {
                    *x = f64::NEG_INFINITY;
                }
            }
            let tensor = upload(&values, dtype, device)?;
            let (probabilities, scale) = softmax(&values, 1);
            let scale = scale.mapv(|x| if x.is_nan() { 0.0 } else { x });
            check("softmax", &tensor.softmax(1)?, &Expected::new(probabilities, dtype).with_scale(scale))
        });
        for parameters in [Layout::Sliced, Layout::Broadcast, Layout::Unaligned] {
            for axes in [1, 2] {
                suite.add("layer_norm", format!("{dtype}::parameters_{}_{axes}", parameters.name()), move |device| {
                    let input = shaped("layer_norm", &[4, 5, 6], Layout::Transposed, dtype, Domain::Normal, device)?;
                    check_layer_norm(&input, axes, parameters, 1e-5, device)
                });
            }
        }
        suite.add("layer_norm", format!("{dtype}::equal_numbers"), move |device| {
            // The variance is 0: eps alone keeps from dividing by it.
            let values = array(&[2, 40], [vec![3.0; 40], vec![-7.0; 40]].concat());
            check_layer_norm(
                &Sample { tensor: upload(&values, dtype, device)?, values },
                1,
                Layout::Contiguous,
                1e-3,
                device,
            )
        });
        suite.add("layer_norm", format!("{dtype}::far_from_zero"), move |device| {
            // A variance by way of the mean of squares would lose all its digits.
            let values = Inputs::new("far").array(&[3, 64], dtype, Domain::Small).mapv(|x| round(x + 1000.0, dtype));
            let tensor = upload(&values, dtype, device)?;
            check_layer_norm(&Sample { tensor, values }, 1, Layout::Contiguous, 1e-5, device)
        });
    }
    suite.add("softmax", "f32::nan", |device| {
        let values = array(&[2, 3], vec![1.0, f64::NAN, 2.0, 0.0, 0.0, 0.0]);
        let tensor = upload(&values, DType::F32, device)?;
        let expected = array(&[2, 3], vec![f64::NAN, f64::NAN, f64::NAN, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0]);
        check("softmax", &tensor.softmax(1)?, &Expected::new(expected, DType::F32))
    });
}
