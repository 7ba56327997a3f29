//! Padding and pixel shuffling.

use super::{layouts, sample, shaped};
use crate::compare::{Expected, Sample, check, upload};
use crate::full_tier;
use crate::layouts::Layout;
use crate::reference::array;
use crate::reference::inputs::{Domain, Inputs};
use crate::reference::pad::{Border, pad, pixel_shuffle, pixel_unshuffle};
use crate::suite::{Outcome, Suite};
use crate::tolerance::{EXACT, Table, Tolerance};
use marquetry::{DType, Device, PadMode};

pub const TOLERANCES: Table = &[(
    &["pad", "pad_with_zeros", "pad_with_same", "pixel_shuffle", "pixel_unshuffle"],
    Tolerance { moves: true, reason: "nothing is computed", ..EXACT },
)];

const BORDERS: [(&str, Border); 4] = [
    ("constant", Border::Constant(7.0)),
    ("reflect", Border::Reflect),
    ("replicate", Border::Replicate),
    ("circular", Border::Circular),
];

fn mode(border: Border) -> PadMode {
    match border {
        Border::Constant(number) => PadMode::Constant(number.into()),
        Border::Reflect => PadMode::Reflect,
        Border::Replicate => PadMode::Replicate,
        Border::Circular => PadMode::Circular,
    }
}

/// Pads the last axes.
fn check_pad(input: &Sample, amounts: &[(i64, i64)], border: Border) -> Outcome {
    let border = match border {
        Border::Constant(_) if input.tensor.dtype() == DType::Bool => Border::Constant(1.0),
        other => other,
    };
    let mut every = vec![(0, 0); input.values.ndim() - amounts.len()];
    every.extend(amounts);
    let expected = Expected::new(pad(&input.values, &every, border), input.tensor.dtype());
    let amounts: Vec<(isize, isize)> = amounts.iter().map(|&(a, b)| (a as isize, b as isize)).collect();
    let padded = input.tensor.pad(&amounts, mode(border))?;
    check("pad", &padded, &expected).map_err(|failed| {
        format!("{:?} by {amounts:?}\n{}", input.values.shape(), failed.message().unwrap_or_default()).into()
    })
}

/// Random shapes of three axes, each with a border. Some axes are cropped.
fn check_random(border: Border, dtype: DType, device: &Device) -> Outcome {
    let mut inputs = Inputs::new(&format!("{border:?} of {dtype}"));
    for case in 0..if full_tier() { 300 } else { 24 } {
        let shape: Vec<usize> = (0..3).map(|_| 1 + inputs.below(7)).collect();
        let mut amounts = Vec::new();
        for &length in &shape {
            let crop = [inputs.below(3), inputs.below(3)].map(|n| if inputs.below(3) == 0 { n } else { 0 });
            let rest = length.saturating_sub(crop[0] + crop[1]);
            let crop = if rest == 0 { [0, 0] } else { crop };
            let rest = length - crop[0] - crop[1];
            let longest = match border {
                Border::Constant(_) | Border::Replicate => 9,
                Border::Reflect => rest - 1,
                Border::Circular => rest,
            };
            let amount = crop.map(|n| if n > 0 { -(n as i64) } else { inputs.below(longest + 1) as i64 });
            amounts.push((amount[0], amount[1]));
        }
        let layout = [Layout::Contiguous, Layout::Transposed, Layout::Sliced][case % 3];
        check_pad(&shaped("pad", &shape, layout, dtype, Domain::Special, device)?, &amounts, border)?;
    }
    Ok(())
}

pub fn add(suite: &mut Suite) {
    for dtype in DType::ALL {
        for (name, border) in BORDERS {
            for &layout in layouts(dtype) {
                suite.add("pad", format!("{dtype}::{name}_{}", layout.name()), move |device| {
                    let amounts = match (layout, border) {
                        // An empty axis has nothing to repeat, and an axis of one element cannot be reflected.
                        (Layout::Empty, Border::Constant(_)) => [(1, 2), (2, 1), (3, 4)],
                        (Layout::Empty, _) => [(1, 2), (0, 0), (3, 4)],
                        (Layout::One, Border::Reflect) => [(0, 0); 3],
                        (Layout::One, Border::Circular) => [(1, 0), (0, 1), (1, 1)],
                        _ => [(1, 2), (2, 1), (3, 4)],
                    };
                    check_pad(&sample("pad", layout, dtype, Domain::Special, device)?, &amounts, border)
                });
            }
            suite.add("pad", format!("{dtype}::{name}_cropped"), move |device| {
                let input = sample("pad", Layout::Sliced, dtype, Domain::Special, device)?;
                check_pad(&input, &[(-1, 2), (2, -2), (-3, 1)], border)?;
                check_pad(&input, &[(-1, -2), (1, 1), (-6, 0)], border)?;
                check_pad(&input, &[(-1, -2), (0, -1), (-4, -1)], border)
            });
        }
        suite.add("pad_with_zeros", format!("{dtype}::axes"), move |device| {
            let input = sample("pad", Layout::Transposed, dtype, Domain::Special, device)?;
            for (axis, amounts) in [(0, [(2, 3), (0, 0), (0, 0)]), (1, [(0, 0), (2, 3), (0, 0)])] {
                let zeros = Expected::new(pad(&input.values, &amounts, Border::Constant(0.0)), dtype);
                check("pad_with_zeros", &input.tensor.pad_with_zeros(axis, 2, 3)?, &zeros)?;
                check("pad_with_zeros", &input.tensor.pad_with_zeros(axis - 3, 2, 3)?, &zeros)?;
                let same = Expected::new(pad(&input.values, &amounts, Border::Replicate), dtype);
                check("pad_with_same", &input.tensor.pad_with_same(axis, 2, 3)?, &same)?;
            }
            Ok(())
        });
    }
    for dtype in DType::ALL {
        suite.add("pixel_shuffle", format!("{dtype}::factors"), move |device| {
            for (shape, factor) in [([8, 3, 5], 2), ([9, 2, 1], 3), ([3, 4, 5], 1), ([0, 4, 5], 2), ([4, 0, 5], 2)] {
                for layout in [Layout::Contiguous, Layout::Transposed] {
                    let input = shaped("pixel_shuffle", &shape, layout, dtype, Domain::Special, device)?;
                    let expected = Expected::new(pixel_shuffle(&input.values, factor), dtype);
                    let shuffled = input.tensor.pixel_shuffle(factor)?;
                    check("pixel_shuffle", &shuffled, &expected)?;
                    check("pixel_unshuffle", &shuffled.pixel_unshuffle(factor)?, &Expected::new(input.values, dtype))?;
                }
            }
            // With batch axes before the channels.
            let input = shaped("pixel_shuffle", &[2, 3, 4, 2, 3], Layout::Contiguous, dtype, Domain::Special, device)?;
            let images = input.values.axis_iter(crate::reference::Axis(0));
            let expected: Vec<f64> = images
                .flat_map(|images| {
                    images.outer_iter().flat_map(|image| pixel_shuffle(&image.to_owned(), 2)).collect::<Vec<_>>()
                })
                .collect();
            let expected = Expected::new(array(&[2, 3, 1, 4, 6], expected), dtype);
            check("pixel_shuffle", &input.tensor.pixel_shuffle(2)?, &expected)
        });
        suite.add("pixel_unshuffle", format!("{dtype}::factors"), move |device| {
            for (shape, factor) in [([2, 6, 4], 2), ([1, 3, 9], 3), ([3, 4, 5], 1), ([2, 0, 4], 2)] {
                let input = shaped("pixel_unshuffle", &shape, Layout::Transposed, dtype, Domain::Special, device)?;
                let expected = Expected::new(pixel_unshuffle(&input.values, factor), dtype);
                check("pixel_unshuffle", &input.tensor.pixel_unshuffle(factor)?, &expected)?;
            }
            Ok(())
        });
    }
    for (name, border) in BORDERS {
        suite.add("pad", format!("u8::{name}_random"), move |device| check_random(border, DType::U8, device));
    }
    for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 1e-3] {
        for dtype in super::FLOATS {
            suite.add("pad", format!("{dtype}::constant_of_{number}"), move |device| {
                let input = sample("pad", Layout::Contiguous, dtype, Domain::Special, device)?;
                let border = Border::Constant(crate::reference::numbers::round(number, dtype));
                check_pad(&input, &[(1, 2), (2, 1), (3, 4)], border)
            });
        }
    }
    suite.add("pad", "u8::one_axis", |device| {
        let input = shaped("pad", &[3, 65, 7], Layout::Contiguous, DType::U8, Domain::Special, device)?;
        check_pad(&input, &[], Border::Reflect)?;
        check_pad(&input, &[(5, 0)], Border::Reflect)?;
        check_pad(&input, &[(64, 64), (0, 0)], Border::Reflect)?;
        check_pad(&input, &[(65, 65), (0, 0)], Border::Circular)?;
        check_pad(&input, &[(1, 0), (0, 0), (0, 0)], Border::Constant(9.0))
    });
    suite.add("pad", "f32::many_axes", |device| {
        // More axes than one launch has parameters for, in any order, and in a view whose axes do not merge.
        for (layout, amounts) in [
            (Layout::Contiguous, [(1, 0), (0, 1), (1, 1), (0, 0), (2, 0), (0, 0), (0, 1), (1, 1), (1, 0)]),
            (Layout::Transposed, [(0, 0), (0, 0), (0, 0), (0, 0), (1, 1), (0, 0), (0, 0), (0, 0), (0, 0)]),
        ] {
            for (_, border) in BORDERS {
                let input = shaped("pad", &[2; 9], layout, DType::F32, Domain::Special, device)?;
                let amounts = amounts
                    .map(|(a, b): (i64, i64)| if border == Border::Reflect { (a.min(1), b.min(1)) } else { (a, b) });
                check_pad(&input, &amounts, border)?;
            }
        }
        Ok(())
    });
    // From the specification of the ONNX operator Pad, version 13.
    suite.add("pad", "f32::onnx", |device| {
        let values = array(&[3, 2], vec![1.0, 1.2, 2.3, 3.4, 4.5, 5.7]);
        let values = values.mapv(|x| crate::reference::numbers::round(x, DType::F32));
        let tensor = upload(&values, DType::F32, device)?;
        for (mode, columns) in [
            (PadMode::Constant(0.into()), [None, None, Some(0), Some(1)]),
            (PadMode::Replicate, [Some(0), Some(0), Some(0), Some(1)]),
        ] {
            let row = |r: usize| columns.map(|c: Option<usize>| c.map_or(0.0, |c| values[[r, c]]));
            let expected = array(&[3, 4], [row(0), row(1), row(2)].concat());
            check("pad", &tensor.pad(&[(0, 0), (2, 0)], mode)?, &Expected::new(expected, DType::F32))?;
        }
        Ok(())
    });
}
