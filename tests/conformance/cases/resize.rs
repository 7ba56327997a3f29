//! Resizing.

use super::{floats, shaped};
use crate::compare::{Expected, Sample, check, upload};
use crate::full_tier;
use crate::layouts::Layout;
use crate::reference::array;
use crate::reference::inputs::{Domain, Inputs};
use crate::reference::resize::{Resized, Resizing, resize};
use crate::suite::{Outcome, Suite};
use crate::tolerance::{EPS, EXACT, Table, Tolerance};
use marquetry::{CoordinateMode, DType, Device, NearestRounding, ResizeConfig, ResizeMode};
use ndarray::{Axis, Slice};

pub const TOLERANCES: Table = &[
    (
        &["resize_nearest", "upsample_nearest1d", "upsample_nearest2d", "interpolate1d", "interpolate2d"],
        Tolerance { moves: true, reason: "nothing is computed", ..EXACT },
    ),
    (
        &["resize_linear", "resize_cubic", "upsample_bilinear2d"],
        Tolerance {
            ulp: 0.5,
            of_scale: 12.0 * EPS,
            reason: "weights are polynomials of a quotient within 2.5 ulp; their products are summed (the scale)",
            ..EXACT
        },
    ),
    (
        &["resize_literal"],
        Tolerance { absolute: 1e-5, reason: "another runtime's numbers, computed in f32 and rounded", ..EXACT },
    ),
];

const COORDINATES: [CoordinateMode; 4] = [
    CoordinateMode::HalfPixel,
    CoordinateMode::PytorchHalfPixel,
    CoordinateMode::AlignCorners,
    CoordinateMode::Asymmetric,
];

const ROUNDINGS: [NearestRounding; 4] =
    [NearestRounding::Floor, NearestRounding::Ceil, NearestRounding::PreferFloor, NearestRounding::PreferCeil];

/// ONNX Runtime 1.31's results for `1 2 3 4 5`, resized to one, two, three, seven and ten elements.
const NEAREST_BY_ONNX: [(CoordinateMode, NearestRounding, &str); 16] = [
    (CoordinateMode::HalfPixel, NearestRounding::Floor, "3 14 134 1123345 1112233445"),
    (CoordinateMode::HalfPixel, NearestRounding::Ceil, "3 25 235 1233455 1223344555"),
    (CoordinateMode::HalfPixel, NearestRounding::PreferFloor, "3 24 135 1223445 1122334455"),
    (CoordinateMode::HalfPixel, NearestRounding::PreferCeil, "3 24 135 1223445 1122334455"),
    (CoordinateMode::PytorchHalfPixel, NearestRounding::Floor, "1 14 134 1123345 1112233445"),
    (CoordinateMode::PytorchHalfPixel, NearestRounding::Ceil, "1 25 235 1233455 1223344555"),
    (CoordinateMode::PytorchHalfPixel, NearestRounding::PreferFloor, "1 24 135 1223445 1122334455"),
    (CoordinateMode::PytorchHalfPixel, NearestRounding::PreferCeil, "1 24 135 1223445 1122334455"),
    (CoordinateMode::AlignCorners, NearestRounding::Floor, "1 15 135 1123345 1112233445"),
    (CoordinateMode::AlignCorners, NearestRounding::Ceil, "1 15 135 1233455 1223344555"),
    (CoordinateMode::AlignCorners, NearestRounding::PreferFloor, "1 15 135 1223445 1122334455"),
    (CoordinateMode::AlignCorners, NearestRounding::PreferCeil, "1 15 135 1223445 1122334455"),
    (CoordinateMode::Asymmetric, NearestRounding::Floor, "1 13 124 1123345 1122334455"),
    (CoordinateMode::Asymmetric, NearestRounding::Ceil, "1 14 135 1234455 1223344555"),
    (CoordinateMode::Asymmetric, NearestRounding::PreferFloor, "1 13 134 1223455 1122334455"),
    (CoordinateMode::Asymmetric, NearestRounding::PreferCeil, "1 14 134 1223455 1223344555"),
];

/// ONNX Runtime 1.31's results for `1 2 3 4 5` scaled by a factor and rounded down: half pixels, then asymmetric.
const FACTORS_BY_ONNX: [(f32, [&str; 2]); 4] = [
    (0.6, ["134", "124"]),
    (1.3, ["112334", "112344"]),
    (1.7, ["11123344", "11223345"]),
    (2.5, ["111122333445", "111223334455"]),
];

/// ONNX Runtime 1.31's results for `3 -1 4 1 / -5 9 2 6`, three rows of five: first by lengths, then by 1.6 and 1.3.
const WEIGHTED_BY_ONNX: [(Resizing, CoordinateMode, bool, [f64; 15]); 10] = [
    (
        Resizing::LINEAR,
        CoordinateMode::HalfPixel,
        false,
        [3.0, 0.2, 1.5, 3.1, 1.0, -1.0, 2.5, 3.5, 3.15, 3.5, -5.0, 4.8, 5.5, 3.2, 6.0],
    ),
    (
        Resizing::LINEAR,
        CoordinateMode::AlignCorners,
        false,
        [3.0, 0.0, 1.5, 3.25, 1.0, -1.0, 2.75, 3.5, 3.125, 3.5, -5.0, 5.5, 5.5, 3.0, 6.0],
    ),
    (
        Resizing::LINEAR,
        CoordinateMode::Asymmetric,
        false,
        [3.0, -0.2, 2.0, 2.8, 1.0, -2.333333, 4.066667, 3.866667, 3.333333, 4.333333, -5.0, 6.2, 4.8, 3.6, 6.0],
    ),
    (
        Resizing::CUBIC,
        CoordinateMode::HalfPixel,
        false,
        [
            4.032369, -0.982212, 0.96951, 3.833175, 0.346809, -1.30375, 2.715251, 3.921875, 3.029251, 3.530375,
            -6.63987, 6.412716, 6.874244, 2.225329, 6.713944,
        ],
    ),
    (
        Resizing::CUBIC,
        CoordinateMode::AlignCorners,
        false,
        [
            3.0, -0.621094, 1.40625, 3.847656, 1.0, -1.0, 2.972656, 3.921875, 3.007812, 3.5, -5.0, 6.566406, 6.4375,
            2.167969, 6.0,
        ],
    ),
    (
        Resizing::CUBIC,
        CoordinateMode::Asymmetric,
        false,
        [
            3.0, -0.775999, 2.095999, 3.376, 0.712001, -2.48148, 4.694517, 4.285853, 2.978593, 4.598372, -5.888888,
            8.095108, 5.64711, 2.731553, 7.014223,
        ],
    ),
    (
        Resizing::LINEAR,
        CoordinateMode::HalfPixel,
        true,
        [
            3.0, 0.384615, 1.115385, 3.423077, 1.115384, -0.5, 2.033654, 3.269231, 3.137019, 3.185096, -5.0, 4.153846,
            6.038461, 2.769231, 5.846154,
        ],
    ),
    (
        Resizing::LINEAR,
        CoordinateMode::Asymmetric,
        true,
        [
            3.0, -0.076923, 1.692308, 3.076923, 1.0, -2.0, 3.576923, 3.903846, 3.173077, 4.125, -5.0, 5.769231,
            5.230769, 3.230769, 6.0,
        ],
    ),
    (
        Resizing::CUBIC,
        CoordinateMode::PytorchHalfPixel,
        true,
        [
            4.126717, -0.742622, 0.284703, 4.14627, 0.65158, -0.691517, 2.087225, 3.626809, 3.127001, 3.148618,
            -6.327888, 5.397581, 7.536406, 1.93466, 6.069654,
        ],
    ),
    (
        Resizing::CUBIC,
        CoordinateMode::Asymmetric,
        true,
        [
            3.0, -0.684569, 1.67319, 3.691397, 0.852526, -2.117188, 4.11614, 4.440974, 2.849109, 4.270873, -5.84375,
            7.61223, 6.456597, 2.235718, 6.760265,
        ],
    ),
];

/// At least two elements along the kept axis, so that the kernels are the same.
fn shape(layout: Layout) -> [usize; 3] {
    match layout {
        Layout::Empty => [0, 5, 6],
        Layout::One => [2, 1, 1],
        _ => layout.shape(),
    }
}

/// The new lengths of an axis with five and an axis with six elements.
const SIZES: [(&str, [usize; 2]); 6] =
    [("up", [10, 13]), ("down", [3, 2]), ("wider", [4, 9]), ("one", [1, 1]), ("row", [1, 6]), ("empty", [0, 4])];

fn op(resizing: Resizing) -> &'static str {
    match resizing.mode {
        ResizeMode::Nearest(_) => "resize_nearest",
        ResizeMode::Linear => "resize_linear",
        _ => "resize_cubic",
    }
}

fn domain(resizing: Resizing) -> Domain {
    if matches!(resizing.mode, ResizeMode::Nearest(_)) { Domain::Special } else { Domain::Normal }
}

fn with_context(outcome: Outcome, input: &Sample, resizing: Resizing) -> Outcome {
    outcome.map_err(|failed| {
        format!("{:?} of {:?}\n{}", resizing, input.values.shape(), failed.message().unwrap_or_default()).into()
    })
}

fn check_resize(input: &Sample, size: &[usize], resizing: Resizing) -> Outcome {
    let lengths = &input.values.shape()[input.values.ndim() - size.len()..];
    let axes: Vec<Resized> = lengths.iter().zip(size).map(|(&from, &to)| Resized::to(from, to)).collect();
    let (values, scale) = resize(&input.values, &axes, resizing);
    let expected = Expected::new(values, input.tensor.dtype()).with_scale(scale);
    with_context(check(op(resizing), &input.tensor.resize(size, resizing.config())?, &expected), input, resizing)
}

fn check_resize_by(input: &Sample, scales: &[(f64, f64)], resizing: Resizing) -> Outcome {
    let lengths = &input.values.shape()[input.values.ndim() - scales.len()..];
    let axes: Vec<Resized> = lengths.iter().zip(scales).map(|(&from, &scale)| Resized::by(from, scale)).collect();
    let (values, scale) = resize(&input.values, &axes, resizing);
    let expected = Expected::new(values, input.tensor.dtype()).with_scale(scale);
    let scales: Vec<f64> = scales.iter().map(|(numerator, denominator)| numerator / denominator).collect();
    with_context(check(op(resizing), &input.tensor.resize_by(&scales, resizing.config())?, &expected), input, resizing)
}

/// Tests random lengths, modes and layouts.
fn check_random(modes: &[ResizeMode], dtype: DType, device: &Device) -> Outcome {
    let mut inputs = Inputs::new(&format!("{modes:?} of {dtype}"));
    for case in 0..if full_tier() { 400 } else { 40 } {
        let resizing = Resizing {
            mode: modes[inputs.below(modes.len())],
            coordinates: COORDINATES[inputs.below(COORDINATES.len())],
        };
        let layout = [Layout::Contiguous, Layout::Transposed, Layout::Sliced, Layout::Broadcast][case % 4];
        let shape = [2 + inputs.below(3), 1 + inputs.below(12), 1 + inputs.below(12)];
        let input = shaped("resize", &shape, layout, dtype, domain(resizing), device)?;
        if case % 3 == 0 {
            let scales = [0, 1].map(|_| (1.0 + inputs.below(40) as f64, 1.0 + inputs.below(20) as f64));
            check_resize_by(&input, &scales, resizing)?;
        } else {
            check_resize(&input, &[1 + inputs.below(20), 1 + inputs.below(20)], resizing)?;
        }
    }
    Ok(())
}

fn digits(text: &str) -> Vec<f64> {
    text.chars().filter_map(|digit| digit.to_digit(10)).map(f64::from).collect()
}

fn nearest_by_onnx(dtype: DType, device: &Device) -> Outcome {
    let tensor = upload(&array(&[5], digits("12345")), dtype, device)?;
    let literal = |text: &str| Expected::new(array(&[text.len()], digits(text)), dtype);
    for (coordinates, rounding, texts) in NEAREST_BY_ONNX {
        let resizing = Resizing { mode: ResizeMode::Nearest(rounding), coordinates };
        for text in texts.split(' ') {
            check("resize_nearest", &tensor.resize(text.len(), resizing.config())?, &literal(text))?;
        }
    }
    for (scale, texts) in FACTORS_BY_ONNX {
        for (coordinates, text) in [CoordinateMode::HalfPixel, CoordinateMode::Asymmetric].into_iter().zip(texts) {
            let resizing = Resizing { coordinates, ..Resizing::NEAREST };
            check("resize_nearest", &tensor.resize_by(&[scale.into()], resizing.config())?, &literal(text))?;
        }
    }
    Ok(())
}

fn weighted_by_onnx(device: &Device) -> Outcome {
    let values = array(&[2, 4], vec![3.0, -1.0, 4.0, 1.0, -5.0, 9.0, 2.0, 6.0]);
    let tensor = upload(&values, DType::F32, device)?;
    for (resizing, coordinates, by_factor, numbers) in WEIGHTED_BY_ONNX {
        let resizing = Resizing { coordinates, ..resizing };
        let resized = if by_factor {
            tensor.resize_by(&[1.6f32.into(), 1.3f32.into()], resizing.config())?
        } else {
            tensor.resize((3, 5), resizing.config())?
        };
        let expected = Expected::new(array(&[3, 5], numbers.to_vec()), DType::F32);
        check("resize_literal", &resized, &expected).map_err(|failed| {
            libtest_mimic::Failed::from(format!("{resizing:?}\n{}", failed.message().unwrap_or_default()))
        })?;
    }
    Ok(())
}

/// The examples in PyTorch's documentation of `torch.nn.Upsample`.
fn upsample_by_pytorch(device: &Device) -> Outcome {
    let tensor = upload(&array(&[1, 1, 2, 2], digits("1234")), DType::F32, device)?;
    let expected = |rows: [[f64; 4]; 4]| Expected::new(array(&[1, 1, 4, 4], rows.concat()), DType::F32);
    let nearest = expected([[1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 2.0, 2.0], [3.0, 3.0, 4.0, 4.0], [3.0, 3.0, 4.0, 4.0]]);
    check("resize_literal", &tensor.upsample_nearest2d(4, 4)?, &nearest)?;
    check("resize_literal", &tensor.interpolate2d(4, 4)?, &nearest)?;
    let bilinear =
        expected([[1.0, 1.25, 1.75, 2.0], [1.5, 1.75, 2.25, 2.5], [2.5, 2.75, 3.25, 3.5], [3.0, 3.25, 3.75, 4.0]]);
    check("resize_literal", &tensor.upsample_bilinear2d(4, 4, false)?, &bilinear)?;
    let third = |n: f64| [0.0, 1.0, 2.0, 3.0].map(|i| (n + i) / 3.0);
    let corners = expected([third(3.0), third(5.0), third(7.0), third(9.0)]);
    check("resize_literal", &tensor.upsample_bilinear2d(4, 4, true)?, &corners)
}

pub fn add(suite: &mut Suite) {
    let nearest = ROUNDINGS.map(ResizeMode::Nearest);
    for dtype in DType::ALL {
        for layout in Layout::ALL {
            suite.add("resize_nearest", format!("{dtype}::{}", layout.name()), move |device| {
                let shape = shape(layout);
                let input = shaped("resize", &shape, layout, dtype, Domain::Special, device)?;
                for (mode, coordinates) in nearest.into_iter().zip(COORDINATES) {
                    check_resize(&input, &[7, 9], Resizing { mode, coordinates })?;
                }
                Ok(())
            });
        }
        suite.add("resize_nearest", format!("{dtype}::random"), move |device| check_random(&nearest, dtype, device));
        if dtype != DType::Bool {
            suite.add("resize_nearest", format!("{dtype}::onnx"), move |device| nearest_by_onnx(dtype, device));
        }
    }
    for resizing in [Resizing::NEAREST, Resizing::NEAREST_EXACT, Resizing::LINEAR, Resizing::CUBIC] {
        let name = format!("{:?}", resizing.mode).to_lowercase();
        for (size_name, size) in SIZES {
            suite.add(op(resizing), format!("f32::{name}_{size_name}"), move |device| {
                let input = shaped("resize", &[4, 5, 6], Layout::Sliced, DType::F32, domain(resizing), device)?;
                for coordinates in COORDINATES {
                    check_resize(&input, &size, Resizing { coordinates, ..resizing })?;
                }
                Ok(())
            });
        }
        suite.add(op(resizing), format!("f32::{name}_of_one_element"), move |device| {
            let input = shaped("resize", &[4, 1, 1], Layout::Contiguous, DType::F32, domain(resizing), device)?;
            for coordinates in COORDINATES {
                check_resize(&input, &[3, 5], Resizing { coordinates, ..resizing })?;
            }
            Ok(())
        });
    }
    for dtype in floats() {
        for (name, modes) in [
            ("linear", vec![ResizeMode::Linear]),
            // The coefficient of PyTorch and OpenCV, Keys' own, and an arbitrary one.
            ("cubic", vec![ResizeMode::Cubic(-0.75), ResizeMode::Cubic(-0.5), ResizeMode::Cubic(0.25)]),
        ] {
            let resizing = Resizing { mode: modes[0], ..Resizing::LINEAR };
            for layout in Layout::ALL {
                suite.add(op(resizing), format!("{dtype}::{}", layout.name()), move |device| {
                    let shape = shape(layout);
                    let input = shaped("resize", &shape, layout, dtype, Domain::Normal, device)?;
                    COORDINATES
                        .into_iter()
                        .try_for_each(|coordinates| check_resize(&input, &[7, 9], Resizing { coordinates, ..resizing }))
                });
            }
            suite.add(op(resizing), format!("{dtype}::{name}_random"), move |device| {
                check_random(&modes, dtype, device)
            });
        }
    }
    // Neighbours of an image that becomes twice as large share inputs, and are computed together.
    for dtype in DType::ALL {
        for (name, mode) in [
            ("nearest", ResizeMode::Nearest(NearestRounding::PreferFloor)),
            ("nearest_behind", ResizeMode::Nearest(NearestRounding::Ceil)),
            ("linear", ResizeMode::Linear),
            ("cubic", ResizeMode::Cubic(-0.75)),
        ] {
            if !dtype.is_float() && !name.starts_with("nearest") {
                continue;
            }
            let resizing = Resizing { mode, ..Resizing::LINEAR };
            suite.add(op(resizing), format!("{dtype}::{name}_doubled"), move |device| {
                let shape = [3, 6, 12];
                let of_layout = |layout| shaped("resize", &shape, layout, dtype, domain(resizing), device);
                let mut inputs = [Layout::Contiguous, Layout::Offset, Layout::Sliced, Layout::Flipped]
                    .into_iter()
                    .map(of_layout)
                    .collect::<Outcome<Vec<_>>>()?;
                // Rows that begin anywhere.
                let Sample { tensor, values } =
                    shaped("resize", &[3, 6, 14], Layout::Contiguous, dtype, domain(resizing), device)?;
                let values = values.slice_axis(Axis(2), Slice::from(1..13)).to_owned();
                inputs.push(Sample { tensor: tensor.narrow(2, 1, 12)?, values });
                for input in &inputs {
                    for coordinates in [CoordinateMode::HalfPixel, CoordinateMode::Asymmetric] {
                        // By blocks of rows, by rows, by elements, and one axis.
                        for size in [&[12, 24][..], &[11, 24], &[12, 23], &[24]] {
                            check_resize(input, size, Resizing { coordinates, ..resizing })?;
                        }
                    }
                }
                Ok(())
            });
        }
    }
    suite.add("resize_linear", "f32::onnx", weighted_by_onnx);
    suite.add("upsample_bilinear2d", "f32::pytorch", upsample_by_pytorch);
    suite.add("resize_nearest", "f32::constants", |_| {
        let constants = [
            (ResizeConfig::NEAREST, Resizing::NEAREST),
            (ResizeConfig::NEAREST_EXACT, Resizing::NEAREST_EXACT),
            (ResizeConfig::LINEAR, Resizing::LINEAR),
            (ResizeConfig::CUBIC, Resizing::CUBIC),
        ];
        match constants.into_iter().find(|(constant, resizing)| *constant != resizing.config()) {
            Some(different) => Err(format!("{different:?}").into()),
            None => Ok(()),
        }
    });
    for resizing in [Resizing::NEAREST_EXACT, Resizing::LINEAR] {
        suite.add(op(resizing), "f32::one_and_three_axes", move |device| {
            let input = shaped("resize", &[3, 4, 5, 6], Layout::Transposed, DType::F32, domain(resizing), device)?;
            check_resize(&input, &[9], resizing)?;
            check_resize(&input, &[3, 7, 9], resizing)?;
            check_resize(&input, &[4, 5, 6], resizing)?;
            let row = shaped("resize", &[7], Layout::Contiguous, DType::F32, domain(resizing), device)?;
            check_resize(&row, &[70], resizing)?;
            // Axes that do not merge, more than the parameters of one launch are enough for.
            let many =
                shaped("resize", &[2, 1, 2, 2, 2, 2, 2, 2], Layout::Transposed, DType::F32, domain(resizing), device)?;
            check_resize(&many, &[3, 1, 3], resizing)
        });
    }
    for (resizing, dtype) in [
        (Resizing::NEAREST, DType::U8),
        (Resizing::NEAREST, DType::I64),
        (Resizing::LINEAR, DType::F16),
        (Resizing::CUBIC, DType::F32),
    ] {
        suite.add(op(resizing), format!("{dtype}::planes"), move |device| {
            // Places are found once for several planes. The last invocations have fewer of them.
            for (shape, layout) in [([19, 3, 5], Layout::Contiguous), ([9, 5, 3], Layout::Sliced)] {
                let input = shaped("resize", &shape, layout, dtype, domain(resizing), device)?;
                check_resize(&input, &[7, 12], resizing)?;
                check_resize(&input, &[4], resizing)?;
            }
            // Four rows of the output share inputs, too.
            let input = shaped("resize", &[9, 4, 6], Layout::Sliced, dtype, domain(resizing), device)?;
            for size in [[8, 12], [16, 24], [8, 24], [16, 12], [8, 8]] {
                check_resize(&input, &size, resizing)?;
            }
            // Rows that begin in the middle of a word of halves, and columns from the last one on.
            let Sample { tensor, values } =
                shaped("resize", &[9, 4, 9], Layout::Contiguous, dtype, domain(resizing), device)?;
            let columns = values.slice_axis(Axis(2), Slice::from(..6)).to_owned();
            check_resize(&Sample { tensor: tensor.narrow(2, 0, 6)?, values: columns }, &[8, 12], resizing)?;
            let Sample { tensor, values } =
                shaped("resize", &[9, 4, 10], Layout::Contiguous, dtype, domain(resizing), device)?;
            let columns = values.slice_axis(Axis(2), Slice::new(0, Some(7), -1)).to_owned();
            check_resize(&Sample { tensor: tensor.slice(2, 0..7, -1)?, values: columns }, &[8, 28], resizing)?;
            if resizing.mode == Resizing::CUBIC.mode {
                return Ok(());
            }
            if full_tier() {
                // Large enough for a GPU to do so.
                let input = shaped("resize", &[300, 32, 32], Layout::Contiguous, dtype, domain(resizing), device)?;
                check_resize(&input, &[64, 64], resizing)?;
            }
            let input = shaped("resize", &[5, 2, 4, 6], Layout::Contiguous, dtype, domain(resizing), device)?;
            check_resize(&input, &[3, 8, 12], resizing)
        });
    }
    suite.add("resize_linear", "f64::three_axes", |device| {
        let input = shaped("resize", &[2, 2, 3, 4], Layout::Contiguous, DType::F64, Domain::Normal, device)?;
        check_resize(&input, &[4, 6, 8], Resizing::LINEAR)
    });
    suite.add("upsample_nearest1d", "u8::names", |device| {
        let input = shaped("resize", &[3, 5], Layout::Contiguous, DType::U8, Domain::Special, device)?;
        let (values, _) = resize(&input.values, &[Resized::to(5, 11)], Resizing::NEAREST);
        let expected = Expected::new(values, DType::U8);
        check("upsample_nearest1d", &input.tensor.upsample_nearest1d(11)?, &expected)?;
        check("interpolate1d", &input.tensor.interpolate1d(11)?, &expected)
    });
    suite.add("resize_nearest", "u8::long", |device| {
        // The lengths have a product above 32 bits and no common divisor. Every tie of a half occurs.
        let input = shaped("resize", &[1, 100_003], Layout::Contiguous, DType::U8, Domain::Special, device)?;
        for resizing in [Resizing::NEAREST, Resizing::NEAREST_EXACT] {
            check_resize(&input, &[99_991], resizing)?;
            check_resize(&input, &[7], resizing)?;
            check_resize(&input, &[300_007], resizing)?;
            check_resize(&input, &[200_006], resizing)?;
        }
        Ok(())
    });
    suite.add("resize_linear", "f32::long", |device| {
        // In `f32`, a coordinate near the end would be exact only to about a hundredth.
        let input = shaped("resize", &[1, 100_003], Layout::Contiguous, DType::F32, Domain::Normal, device)?;
        check_resize(&input, &[131_101], Resizing::LINEAR)?;
        check_resize(&input, &[14], Resizing::LINEAR)?;
        check_resize(&input, &[99_991], Resizing { coordinates: CoordinateMode::AlignCorners, ..Resizing::LINEAR })
    });
    for dtype in floats() {
        suite.add("resize_linear", format!("{dtype}::nan_and_infinity"), move |device| {
            let (inf, nan) = (f64::INFINITY, f64::NAN);
            let values = array(&[8], vec![1.0, 2.0, nan, 3.0, inf, 4.0, -inf, 5.0]);
            let tensor = upload(&values, dtype, device)?;
            let doubled = tensor.resize(16, ResizeConfig::LINEAR)?;
            let expected = vec![1.0, 1.25, 1.75, nan, nan, nan, nan, inf, inf, inf, inf, -inf, -inf, -inf, -inf, 5.0];
            check("resize_linear", &doubled, &Expected::new(array(&[16], expected), dtype))?;
            // Coordinates exactly on an element: its neighbour has weight 0, and 0 times infinity is NaN.
            let halved = tensor.resize(15, ResizeConfig::LINEAR.coordinates(CoordinateMode::AlignCorners))?;
            let expected = [1.0, 1.5, nan, nan, nan, nan, nan, inf, inf, inf, nan, -inf, -inf, -inf, 5.0];
            check("resize_linear", &halved, &Expected::new(array(&[15], expected.to_vec()), dtype))
        });
    }
}
