//! Softmax and normalisations.

use super::{floats, is_brief, shaped};
use crate::compare::{Expected, Sample, check, upload};
use crate::full_tier;
use crate::layouts::Layout;
use crate::reference::functions::{gelu, gelu_tanh, sigmoid};
use crate::reference::inputs::{Domain, Inputs};
use crate::reference::linear::matmul;
use crate::reference::normalize::{batch_norm, group_norm, l2_normalize, layer_norm, log_softmax, rms_norm, softmax};
use crate::reference::numbers::round;
use crate::reference::{ArrayD, Axis, array};
use crate::suite::{Outcome, Suite};
use crate::tolerance::{EPS, EXACT, Table, Tolerance};
use marquetry::nn::{Gate, GatedLinear, Linear, RmsNorm};
use marquetry::{DType, Device, Tensor};

pub const TOLERANCES: Table = &[
    (
        &["log_softmax"],
        Tolerance {
            ulp: 1.0,
            of_scale: EPS,
            reason: "the distance from the largest, and the logarithm of a sum (the scale), are rounded",
            ..EXACT
        },
    ),
    (
        &["l2_normalize", "rms_norm"],
        Tolerance {
            ulp: 8.0,
            of_scale: EPS,
            reason: "the sum of squares is rounded (the scale), then a square root, a division and a product",
            ..EXACT
        },
    ),
    (
        &["forward_norm"],
        Tolerance {
            ulp: 0.5,
            of_scale: EPS,
            reason: "a norm within 8 eps, whose rows may be rounded to the dtype, then products and additions within \
                     eps of the sum of magnitudes (the scale)",
            ..EXACT
        },
    ),
    (
        &["gated"],
        Tolerance {
            ulp: 0.5,
            of_scale: EPS,
            reason: "as forward_norm; gates, their function and what they gate may be rounded to the dtype (the scale)",
            ..EXACT
        },
    ),
    (&["group_norm", "instance_norm"], Tolerance { ulp: 8.0, of_scale: 2.0 * EPS, reason: "as layer_norm", ..EXACT }),
    (
        &["batch_norm"],
        Tolerance {
            ulp: 0.5,
            of_scale: EPS,
            reason: "a difference, a reciprocal square root within 3 ulp, two products, a sum (the scale)",
            ..EXACT
        },
    ),
];

const LAYOUTS: [Layout; 7] = [
    Layout::Contiguous,
    Layout::Unaligned,
    Layout::Transposed,
    Layout::Sliced,
    Layout::Broadcast,
    Layout::Empty,
    Layout::One,
];

/// Rows for a whole workgroup each, and rows for one invocation each. On a software device, the lanes of a subgroup
/// load two fours at a time of rows of 320, and four of rows of 384.
const LENGTHS: [(&str, &[usize]); 7] = [
    ("odd", &[3, 65, 7]),
    ("long", &[2, 5000]),
    ("short", &[3000, 3]),
    ("many", &[70, 100]),
    ("vector", &[130]),
    ("turns_of_two", &[5, 320]),
    ("turns_of_four", &[5, 384]),
];

/// Columns that teams reduce side by side: in steps of four, and one by one.
const COLUMNS: [(&str, &[usize]); 2] = [("columns", &[2, 40, 132]), ("columns_odd", &[45, 131])];

/// Columns that become rows in the result, or rows that become columns. A GPU copies them first.
const TURNED: &[usize] = &[45, 132];

/// Rows and columns that are too long for the registers of a team.
const LONGEST: &[usize] = &[2, 20_001];
const LONGEST_COLUMNS: &[usize] = &[4200, 132];

/// Columns that have 32 members each on a GPU, as many as a subgroup of an H200 has lanes. They are too long for the
/// members' registers.
const SUBGROUP_COLUMNS: &[usize] = &[600, 5001];

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

fn check_along(op: &'static str, input: &Sample, axis: i32) -> Outcome {
    let resolved = axis.rem_euclid(input.values.ndim() as i32) as usize;
    let ((values, scale), actual) = match op {
        "log_softmax" => (log_softmax(&input.values, resolved), input.tensor.log_softmax(axis)?),
        _ => (l2_normalize(&input.values, resolved, 1e-3), input.tensor.l2_normalize(axis, 1e-3)?),
    };
    check(op, &actual, &Expected::new(values, input.tensor.dtype()).with_scale(scale))
}

fn check_last_axes(input: &Sample, axes: usize, parameters: Layout, device: &Device) -> Outcome {
    let dtype = input.tensor.dtype();
    let shape = &input.values.shape()[input.values.ndim() - axes..];
    let weight = shaped("weight", shape, parameters, dtype, Domain::Normal, device)?;
    let (values, scale) = rms_norm(&input.values, &weight.values, 1e-5);
    let actual = input.tensor.rms_norm(&weight.tensor, 1e-5)?;
    check("rms_norm", &actual, &Expected::new(values, dtype).with_scale(scale))?;
    let (values, scale) = layer_norm(&input.values, &weight.values, &ArrayD::zeros(shape), 1e-5);
    let actual = input.tensor.layer_norm(&weight.tensor, None, 1e-5)?;
    check("layer_norm", &actual, &Expected::new(values, dtype).with_scale(scale))
}

/// Returns half an ulp at 1, in half ulps of `f32`.
pub(super) fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11) / EPS,
        DType::BF16 => 2f64.powi(-8) / EPS,
        _ => 1.0,
    }
}

/// A linear layer, and a function of rows that returns their products with the layer's weight, and the scale of the
/// products' errors. Rows and products may have been rounded to the dtype.
pub(super) struct Layer<'a> {
    pub linear: Linear,
    pub product: &'a Product<'a>,
}

type Product<'a> = dyn Fn(&ArrayD<f64>) -> (ArrayD<f64>, ArrayD<f64>) + 'a;

/// Checks a layer with gates, for rows and for their norm.
pub(super) fn check_gated(layer: &Layer<'_>, x: &Sample, weight: &Sample, gate: Gate) -> Outcome {
    let Layer { linear, product } = layer;
    let dtype = x.tensor.dtype();
    let (layer, norm) = (GatedLinear::new(linear.clone(), gate), RmsNorm::new(weight.tensor.clone(), 1e-5));
    let function = |x: f64| match gate {
        Gate::Silu => x * sigmoid(x),
        Gate::Gelu => gelu(x),
        Gate::ReluSquared => x.max(0.0).powi(2),
        _ => gelu_tanh(x),
    };
    // How fast the function grows at most.
    let growth = |x: f64| if gate == Gate::ReluSquared { 2.0 * x.abs() } else { 1.2 };
    let rounding = rounding(dtype);
    let (normalized, _) = rms_norm(&x.values, &weight.values, 1e-5);
    for (rows, output) in [(&x.values, layer.forward(&x.tensor)?), (&normalized, layer.forward_norm(&norm, &x.tensor)?)]
    {
        let (both, errors) = product(rows);
        let outputs = both.shape()[1] / 2;
        let half =
            |all: &ArrayD<f64>, first: usize| all.slice_axis(Axis(1), (first..first + outputs).into()).to_owned();
        let [gates, gated] = [0, outputs].map(|first| (half(&both, first), half(&errors, first)));
        let values = gates.0.mapv(function) * &gated.0;
        let scale = gates.0.mapv(growth) * &gates.1 * gated.0.mapv(f64::abs)
            + gates.0.mapv(|x| function(x).abs()) * &gated.1
            + values.mapv(|x| x.abs() * (2.0 * rounding + 16.0));
        check("gated", &output, &Expected::new(values, dtype).with_scale(scale))?;
    }
    Ok(())
}

/// Checks a layer for the norm of rows.
pub(super) fn check_normalized(layer: &Layer<'_>, x: &Sample, weight: &Sample) -> Outcome {
    let (normalized, _) = rms_norm(&x.values, &weight.values, 1e-5);
    let (values, errors) = (layer.product)(&normalized);
    let norm = RmsNorm::new(weight.tensor.clone(), 1e-5);
    let actual = layer.linear.forward_norm(&norm, &x.tensor)?;
    check("forward_norm", &actual, &Expected::new(values, x.tensor.dtype()).with_scale(errors))
}

/// Checks a layer with gates whose weight has floats.
fn check_gated_floats([rows, features, outputs]: [usize; 3], gate: Gate, dtype: DType, device: &Device) -> Outcome {
    let operand = |name: &str, shape: &[usize]| shaped(name, shape, Layout::Contiguous, dtype, Domain::Normal, device);
    let (x, weight) = (operand("x", &[rows, features])?, operand("weight", &[features])?);
    let matrix = operand("matrix", &[2 * outputs, features])?;
    // Products of about 1.
    let small = matrix.values.mapv(|w| round(w / (features as f64).sqrt(), dtype));
    let linear = Linear::new(upload(&small, dtype, device)?, None);
    let rounding = rounding(dtype);
    let product = |rows: &ArrayD<f64>| {
        let (values, magnitudes) = matmul(rows, &small.t().to_owned(), DType::F32);
        let errors = magnitudes * (10.0 + rounding) + values.mapv(|x| x.abs() * rounding);
        (values, errors)
    };
    check_gated(&Layer { linear, product: &product }, &x, &weight, gate)
}

/// Checks a linear layer of a norm, and what is added to it.
fn check_linear([rows, features, outputs]: [usize; 3], bias: bool, dtype: DType, device: &Device) -> Outcome {
    let operand = |name: &str, shape: &[usize]| shaped(name, shape, Layout::Contiguous, dtype, Domain::Normal, device);
    let (x, weight) = (operand("x", &[rows, features])?, operand("weight", &[features])?);
    let (matrix, residual) = (operand("matrix", &[outputs, features])?, operand("residual", &[rows, outputs])?);
    let bias = bias.then(|| operand("bias", &[outputs])).transpose()?;
    let norm = RmsNorm::new(weight.tensor, 1e-5);
    let layer = Linear::new(matrix.tensor, bias.as_ref().map(|bias| bias.tensor.clone()));
    let actual = layer.forward_norm(&norm, &x.tensor)?;
    let (normalized, _) = rms_norm(&x.values, &weight.values, 1e-5);
    let (mut values, mut scale) = matmul(&normalized, &matrix.values.t().to_owned(), DType::F32);
    let rounding = rounding(dtype);
    scale *= 10.0 + rounding;
    if let Some(bias) = bias {
        values += &bias.values;
        scale += &bias.values.mapv(f64::abs);
    }
    check("forward_norm", &actual, &Expected::new(values.clone(), dtype).with_scale(scale.clone()))?;
    // The sum with the rounded product, or with what was not rounded.
    let sum = layer.forward_norm(&norm, &x.tensor)?.add(&residual.tensor)?;
    scale += &values.mapv(|x| x.abs() * rounding);
    check("forward_norm", &sum, &Expected::new(values + &residual.values, dtype).with_scale(scale))
}

/// Returns an optional vector with one number per channel, and the numbers that it stands for.
fn vector(
    name: &str,
    there: bool,
    neutral: f64,
    channels: usize,
    dtype: DType,
    device: &Device,
) -> Outcome<(Option<Tensor>, ArrayD<f64>)> {
    if !there {
        return Ok((None, ArrayD::from_elem(vec![channels], neutral)));
    }
    let sample = shaped(name, &[channels], Layout::Sliced, dtype, Domain::Normal, device)?;
    Ok((Some(sample.tensor), sample.values))
}

fn check_groups(input: &Sample, groups: usize, [weight, bias]: [bool; 2], device: &Device) -> Outcome {
    let (dtype, channels) = (input.tensor.dtype(), input.values.shape()[1]);
    let (weight, weights) = vector("weight", weight, 1.0, channels, dtype, device)?;
    let (bias, biases) = vector("bias", bias, 0.0, channels, dtype, device)?;
    let expected = |groups| {
        let (values, scale) = group_norm(&input.values, groups, &weights, &biases, 1e-5);
        Expected::new(values, dtype).with_scale(scale)
    };
    let actual = input.tensor.group_norm(groups, weight.as_ref(), bias.as_ref(), 1e-5)?;
    check("group_norm", &actual, &expected(groups))?;
    let actual = input.tensor.instance_norm(weight.as_ref(), bias.as_ref(), 1e-5)?;
    check("instance_norm", &actual, &expected(channels))
}

fn check_batch_norm(input: &Sample, [weight, bias]: [bool; 2], device: &Device) -> Outcome {
    let (dtype, channels) = (input.tensor.dtype(), input.values.shape()[1]);
    let mean = shaped("mean", &[channels], Layout::Sliced, dtype, Domain::Normal, device)?;
    let variances = Inputs::new("variance").array(&[channels], dtype, Domain::Normal).mapv(f64::abs);
    let variance = upload(&variances, dtype, device)?;
    let (weight, weights) = vector("weight", weight, 1.0, channels, dtype, device)?;
    let (bias, biases) = vector("bias", bias, 0.0, channels, dtype, device)?;
    let eps = 0.0625;
    let (values, scale) = batch_norm(&input.values, [&mean.values, &variances, &weights, &biases], eps);
    let actual = input.tensor.batch_norm(&mean.tensor, &variance, weight.as_ref(), bias.as_ref(), eps)?;
    check("batch_norm", &actual, &Expected::new(values, dtype).with_scale(scale))
}

fn add_channels(suite: &mut Suite) {
    use Layout::{Broadcast, Contiguous, Sliced, Transposed};
    let parameters = [[true, true], [true, false], [false, true], [false, false]];
    for dtype in floats() {
        let layouts: &[Layout] =
            if dtype == DType::F32 { &[Contiguous, Transposed, Sliced, Broadcast] } else { &[Contiguous, Transposed] };
        let layouts = if is_few(dtype) { &layouts[1..] } else { layouts };
        for &layout in layouts {
            let shapes = [(&[2, 6, 5][..], 3), (&[2, 8, 9, 10], 1), (&[2, 4, 3, 5], 2), (&[3, 4], 2)];
            for (shape, groups) in shapes.into_iter().take(if is_few(dtype) { 2 } else { 4 }) {
                let name = format!("{dtype}::{}_{}_{groups}", layout.name(), shape.len());
                suite.add("group_norm", name.clone(), move |device| {
                    let input = shaped("group_norm", shape, layout, dtype, Domain::Normal, device)?;
                    check_groups(&input, groups, [true, true], device)
                });
                suite.add("batch_norm", name, move |device| {
                    let input = shaped("batch_norm", shape, layout, dtype, Domain::Normal, device)?;
                    check_batch_norm(&input, [true, true], device)
                });
            }
        }
        for given in parameters.into_iter().filter(|given| !is_few(dtype) || *given == [true, true]) {
            suite.add("group_norm", format!("{dtype}::parameters_{}_{}", given[0], given[1]), move |device| {
                let input = shaped("group_norm", &[2, 6, 5], Contiguous, dtype, Domain::Normal, device)?;
                check_groups(&input, 2, given, device)
            });
            suite.add("batch_norm", format!("{dtype}::parameters_{}_{}", given[0], given[1]), move |device| {
                let input = shaped("batch_norm", &[2, 6, 5], Contiguous, dtype, Domain::Normal, device)?;
                check_batch_norm(&input, given, device)
            });
        }
        for shape in [[2, 0, 3], [0, 4, 3], [2, 4, 0]] {
            suite.add("group_norm", format!("{dtype}::empty_{shape:?}"), move |device| {
                let input = shaped("group_norm", &shape, Contiguous, dtype, Domain::Normal, device)?;
                check(
                    "group_norm",
                    &input.tensor.group_norm(2, None, None, 1e-5)?,
                    &Expected::new(input.values.clone(), dtype),
                )?;
                check_batch_norm(&input, [true, true], device)
            });
        }
    }
}

/// True if a dtype gets only a few cases, because its kernels differ from the `f32` kernels only in a type.
fn is_few(dtype: DType) -> bool {
    dtype == DType::F64 && !full_tier()
}

pub fn add(suite: &mut Suite) {
    add_channels(suite);
    for dtype in floats() {
        let mut add = |variant: String, shape: &'static [usize], layout: Layout| {
            for axis in (0..shape.len() as i32).chain([-1]) {
                suite.add("softmax", format!("{dtype}::{variant}_{axis}"), move |device| {
                    check_softmax(&shaped("softmax", shape, layout, dtype, Domain::Normal, device)?, axis)
                });
                for op in ["log_softmax", "l2_normalize"] {
                    suite.add(op, format!("{dtype}::{variant}_{axis}"), move |device| {
                        check_along(op, &shaped(op, shape, layout, dtype, Domain::Normal, device)?, axis)
                    });
                }
            }
            for axes in 1..=shape.len().min(2) {
                suite.add("layer_norm", format!("{dtype}::{variant}_{axes}"), move |device| {
                    let input = shaped("layer_norm", shape, layout, dtype, Domain::Normal, device)?;
                    check_layer_norm(&input, axes, Layout::Contiguous, 1e-5, device)
                });
                suite.add("rms_norm", format!("{dtype}::{variant}_{axes}"), move |device| {
                    let input = shaped("rms_norm", shape, layout, dtype, Domain::Normal, device)?;
                    check_last_axes(&input, axes, Layout::Contiguous, device)
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
        for (name, shape) in LENGTHS.into_iter().filter(|(name, _)| !is_few(dtype) || *name == "long") {
            add(name.to_string(), shape, Layout::Contiguous);
        }
        if dtype == DType::F32 {
            add("longest".into(), LONGEST, Layout::Contiguous);
            suite.add("softmax", "f32::columns_of_a_subgroup", move |device| {
                let columns = SUBGROUP_COLUMNS;
                check_softmax(&shaped("softmax", columns, Layout::Contiguous, dtype, Domain::Normal, device)?, 0)
            });
        }
        for (name, shape) in
            COLUMNS.into_iter().chain((dtype == DType::F32).then_some(("columns_long", LONGEST_COLUMNS)))
        {
            let axis = shape.len() - 2;
            suite.add("softmax", format!("{dtype}::{name}"), move |device| {
                check_softmax(
                    &shaped("softmax", shape, Layout::Contiguous, dtype, Domain::Normal, device)?,
                    axis as i32,
                )
            });
            for op in ["log_softmax", "l2_normalize"] {
                suite.add(op, format!("{dtype}::{name}"), move |device| {
                    let input = shaped(op, shape, Layout::Contiguous, dtype, Domain::Normal, device)?;
                    check_along(op, &input, axis as i32)
                });
            }
        }
        // 132 columns of a wider matrix. They could be taken by fours if they began at multiples of four.
        for (name, width, first) in [("columns_from_2", 136, 2), ("columns_of_133", 133, 0)] {
            suite.add("softmax", format!("{dtype}::{name}"), move |device| {
                let all = shaped("softmax", &[45, width], Layout::Contiguous, dtype, Domain::Normal, device)?;
                let tensor = all.tensor.narrow(1, first, 132)?;
                let values = all.values.slice_axis(Axis(1), (first..first + 132).into()).to_owned();
                check_softmax(&Sample { tensor, values }, 0)
            });
        }
        for axis in [0, 1] {
            suite.add("softmax", format!("{dtype}::columns_turned_{axis}"), move |device| {
                check_softmax(&shaped("softmax", TURNED, Layout::Transposed, dtype, Domain::Normal, device)?, axis)
            });
        }
        suite.add("layer_norm", format!("{dtype}::columns_turned"), move |device| {
            let input = shaped("layer_norm", TURNED, Layout::Transposed, dtype, Domain::Normal, device)?;
            check_layer_norm(&input, 1, Layout::Contiguous, 1e-5, device)
        });
        suite.add("softmax", format!("{dtype}::large_numbers"), move |device| {
            // exp of these overflows, but the result does not.
            let values =
                Inputs::new("large").array(&[5, 40], dtype, Domain::Normal).mapv(|x| (x * 64.0).round() * 16.0);
            check_softmax(&Sample { tensor: upload(&values, dtype, device)?, values }, -1)
        });
        suite.add("log_softmax", format!("{dtype}::large_numbers"), move |device| {
            let values =
                Inputs::new("large").array(&[5, 40], dtype, Domain::Normal).mapv(|x| (x * 64.0).round() * 16.0);
            check_along("log_softmax", &Sample { tensor: upload(&values, dtype, device)?, values }, -1)
        });
        suite.add("softmax", format!("{dtype}::nothing_left"), move |device| {
            // A row of minus infinity has no probabilities. The row beside it has some.
            let row = |x: f64| vec![x; 40];
            let values = array(&[2, 40], [row(f64::NEG_INFINITY), row(0.0)].concat());
            let tensor = upload(&values, dtype, device)?;
            let expected = |x: f64| Expected::new(array(&[2, 40], [row(f64::NAN), row(x)].concat()), dtype);
            check("softmax", &tensor.softmax(1)?, &expected(0.025))?;
            check("log_softmax", &tensor.log_softmax(1)?, &expected(0.025f64.ln()))
        });
        suite.add("softmax", format!("{dtype}::of_negated"), move |device| {
            // The kernels negate what they load, here by fours.
            let Sample { tensor, values } =
                shaped("negated", &[3, 1000], Layout::Contiguous, dtype, Domain::Normal, device)?;
            for (tensor, values) in [(tensor.clone(), values.clone()), (tensor.abs()?, values.mapv(f64::abs))] {
                let negated = || -> Outcome<_> { Ok(Sample { tensor: tensor.neg()?, values: -&values }) };
                check_softmax(&negated()?, 1)?;
                check_along("log_softmax", &negated()?, 1)?;
            }
            Ok(())
        });
        suite.add("l2_normalize", format!("{dtype}::zeros"), move |device| {
            let values = array(&[2, 40], vec![0.0; 80]);
            let tensor = upload(&values, dtype, device)?;
            check("l2_normalize", &tensor.l2_normalize(1, 1e-12)?, &Expected::new(values, dtype))
        });
        suite.add("softmax", format!("{dtype}::masked"), move |device| {
            // Minus infinity, as in attention masks, has probability 0.
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
            for axes in if is_few(dtype) { 1..2 } else { 1..3 } {
                suite.add("layer_norm", format!("{dtype}::parameters_{}_{axes}", parameters.name()), move |device| {
                    let input = shaped("layer_norm", &[4, 5, 6], Layout::Transposed, dtype, Domain::Normal, device)?;
                    check_layer_norm(&input, axes, parameters, 1e-5, device)?;
                    check_last_axes(&input, axes, parameters, device)
                });
            }
        }
        suite.add("layer_norm", format!("{dtype}::equal_numbers"), move |device| {
            // The variance is 0, and only eps prevents a division by 0.
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
            // A variance from the mean of squares would lose all its digits.
            let values = Inputs::new("far").array(&[3, 64], dtype, Domain::Small).mapv(|x| round(x + 1000.0, dtype));
            let tensor = upload(&values, dtype, device)?;
            check_layer_norm(&Sample { tensor, values }, 1, Layout::Contiguous, 1e-5, device)
        });
    }
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for sizes in [
            [1, 64, 48],
            [1, 4096, 260],
            [1, 2056, 12],
            [2, 256, 100],
            [5, 64, 64],
            [11, 264, 70],
            [3, 64, 3200],
            [1, 30, 7],
        ] {
            let [rows, features, outputs] = sizes;
            for (name, gate) in [
                ("silu", Gate::Silu),
                ("gelu", Gate::Gelu),
                ("gelu_tanh", Gate::GeluTanh),
                ("relu_squared", Gate::ReluSquared),
            ] {
                if name == "silu" || rows == 1 && features == 64 {
                    suite.add("gated", format!("{dtype}::{name}_{rows}_{features}_{outputs}"), move |device| {
                        check_gated_floats(sizes, gate, dtype, device)
                    });
                }
            }
            for (name, bias) in [("", false), ("_bias", true)] {
                suite.add("forward_norm", format!("{dtype}::{rows}_{features}_{outputs}{name}"), move |device| {
                    check_linear(sizes, bias, dtype, device)
                });
            }
        }
    }
    suite.add("softmax", "f32::longest_special", |device| {
        // Rows whose largest number changes often, comes late, is minus infinity or is NaN.
        let element = |row: usize, j: usize| match (row, j) {
            (0, _) => j as f64 / 128.0,
            (1, ..3456) => f64::NEG_INFINITY,
            (2, _) => f64::NEG_INFINITY,
            (3, 4000) => f64::NAN,
            _ => (j % 7) as f64,
        };
        let check_along = |axis: usize, shape: &[usize]| {
            let elements = (0..shape[0] * shape[1]).map(|i| [i / shape[1], i % shape[1]]);
            let values = array(shape, elements.map(|place| element(place[1 - axis] % 4, place[axis])).collect());
            let tensor = upload(&values, DType::F32, device)?;
            let (probabilities, scale) = softmax(&values, axis);
            let scale = scale.mapv(|x| if x.is_nan() { 0.0 } else { x });
            check("softmax", &tensor.softmax(axis)?, &Expected::new(probabilities, DType::F32).with_scale(scale))
        };
        check_along(1, &[4, LONGEST[1]])?;
        check_along(1, &[4, LONGEST_COLUMNS[0]])?;
        check_along(0, LONGEST_COLUMNS)
    });
    suite.add("softmax", "f32::far_apart", |device| {
        // Rows whose first numbers are far from the largest one. In some of them, exponentials of differences from the
        // first would be infinite, or all 0.
        let element = |row: usize, j: usize| match (row, j) {
            (0, ..40) | (1, ..40) | (2, _) => f64::NEG_INFINITY,
            (0, _) => -100.0 - (j % 5) as f64,
            (1, _) => -3e38,
            (3, 50) => 1000.0,
            (4, 50) => 16.5,
            (5, 50) => 15.5,
            (6, 50) => f64::INFINITY,
            (7, 50) => f64::NAN,
            (8, 0) => 90.0,
            (9, 50) => 3e38,
            _ => (j % 7) as f64 / 8.0,
        };
        for length in [96, 100, 320, 384, 1028] {
            let elements = (0..10 * length).map(|i| element(i / length, i % length));
            let values = array(&[10, length], elements.collect());
            let tensor = upload(&values, DType::F32, device)?;
            let (probabilities, scale) = softmax(&values, 1);
            let scale = scale.mapv(|x| if x.is_nan() { 0.0 } else { x });
            let expected = |factor: f64| {
                let (probabilities, scale) = (probabilities.mapv(|x| x * factor), scale.mapv(|x| x * factor));
                Expected::new(probabilities, DType::F32).with_scale(scale)
            };
            check("softmax", &tensor.softmax(1)?, &expected(1.0))?;
            // Fused with what comes before, which is needed too, and with what comes after.
            let half = (&tensor * 0.5)?;
            let again = (&half * 2.0)?;
            check("softmax", &again.softmax(1)?, &expected(1.0))?;
            check("softmax", &again, &Expected::new(values.clone(), DType::F32))?;
            check("softmax", &((&half * 2.0)?.softmax(1)? * 2.0)?, &expected(2.0))?;
        }
        Ok(())
    });
    suite.add("softmax", "f32::nan", |device| {
        let values = array(&[2, 3], vec![1.0, f64::NAN, 2.0, 0.0, 0.0, 0.0]);
        let tensor = upload(&values, DType::F32, device)?;
        let expected = array(&[2, 3], vec![f64::NAN, f64::NAN, f64::NAN, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0]);
        check("softmax", &tensor.softmax(1)?, &Expected::new(expected, DType::F32))
    });
}
