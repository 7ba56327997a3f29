//! Reads to the host and to other devices.

use super::{layouts, sample};
use crate::compare::{Expected, Sample, check, upload};
use crate::devices;
use crate::reference::inputs::{Domain, Inputs};
use crate::reference::{Axis, array};
use crate::suite::{Outcome, Suite};
use half::{bf16, f16};
use marquetry::{DType, Device, Element, Tensor};
use ndarray::ArrayViewD;
use std::fmt::Debug;

fn check_async<T: Element>(input: &Sample) -> Outcome {
    let elements = pollster::block_on(input.tensor.to_vec_async::<T>())?;
    same(&numbers(elements), &input.values.iter().copied().collect())
}

/// Calls a generic check with the type of a dtype's elements.
macro_rules! of_dtype {
    ($check:ident, $dtype:expr, $input:expr) => {
        match $dtype {
            DType::Bool => $check::<bool>($input),
            DType::U8 => $check::<u8>($input),
            DType::I8 => $check::<i8>($input),
            DType::U32 => $check::<u32>($input),
            DType::I32 => $check::<i32>($input),
            DType::I64 => $check::<i64>($input),
            DType::F64 => $check::<f64>($input),
            DType::F16 => $check::<f16>($input),
            DType::BF16 => $check::<bf16>($input),
            _ => $check::<f32>($input),
        }
    };
}

fn same<T: PartialEq + Debug>(got: &T, expected: &T) -> Outcome {
    if got == expected { Ok(()) } else { Err(format!("expected {expected:?}, got {got:?}").into()) }
}

fn numbers<T: Element>(row: Vec<T>) -> Vec<f64> {
    row.into_iter().map(T::to_f64).collect()
}

fn rows<T: Element>(matrix: Vec<Vec<T>>) -> Vec<Vec<f64>> {
    matrix.into_iter().map(numbers).collect()
}

fn rows_of(matrix: ArrayViewD<'_, f64>) -> Vec<Vec<f64>> {
    matrix.outer_iter().map(|row| row.iter().copied().collect()).collect()
}

fn check_vec1<T: Element>(input: &Sample) -> Outcome {
    let expected = input.values.index_axis(Axis(0), 0).index_axis(Axis(1), 0).iter().copied().collect();
    same(&numbers(input.tensor.i((0, .., 0))?.to_vec1::<T>()?), &expected)
}

fn check_vec2<T: Element>(input: &Sample) -> Outcome {
    same(&rows(input.tensor.i(0)?.to_vec2::<T>()?), &rows_of(input.values.index_axis(Axis(0), 0)))
}

fn check_vec3<T: Element>(input: &Sample) -> Outcome {
    let matrices: Vec<_> = input.tensor.to_vec3::<T>()?.into_iter().map(rows).collect();
    same(&matrices, &input.values.outer_iter().map(rows_of).collect())
}

/// Rows without elements are as many as the shape says.
fn empty_rows(device: &Device) -> Outcome {
    let x = Tensor::zeros((2, 3, 0), DType::F32, device)?;
    let vectors = (x.to_vec3::<f32>()?, x.i(0)?.to_vec2::<f32>()?, x.i((0, 0))?.to_vec1::<f32>()?);
    let expected = (vec![vec![vec![]; 3]; 2], vec![vec![]; 3], vec![]);
    same(&vectors, &expected)
}

fn to_scalar(device: &Device) -> Outcome {
    let x = Tensor::arange(0i32, 24, device)?.reshape((2, 3, 4))?;
    let one = x.i((1, 2.., 3))?;
    let (a, b, c) =
        (one.to_scalar::<i32>()?, x.sum_all()?.to_scalar::<i32>()?, Tensor::new(2.5f32, device)?.to_scalar::<f32>()?);
    same(&(a, b, c), &(23, 276, 2.5))
}

/// More elements than the staging buffer of any backend, and an odd count.
fn large(device: &Device) -> Outcome {
    let values = Inputs::new("large").array(&[3_000_001], DType::U8, Domain::Special);
    check("to_vec", &upload(&values, DType::U8, device)?, &Expected::new(values, DType::U8))
}

/// Many reads, awaited in another order than they were requested.
fn overlapping(device: &Device) -> Outcome {
    let tensors: Vec<Tensor> = (0..20u32).map(|i| Tensor::arange(i, i + 100, device)).collect::<Result<_, _>>()?;
    let reads: Vec<_> = tensors.iter().map(|tensor| tensor.to_vec_async::<u32>()).collect();
    for (i, read) in reads.into_iter().enumerate().rev() {
        let (got, expected) = (pollster::block_on(read)?, (i as u32..i as u32 + 100).collect::<Vec<_>>());
        if got != expected {
            return Err(format!("read {i} gave {got:?}").into());
        }
    }
    Ok(())
}

pub fn add(suite: &mut Suite) {
    for dtype in DType::ALL {
        for &layout in layouts(dtype) {
            suite.add("to_vec", format!("{dtype}::{}", layout.name()), move |device| {
                let input = sample("to_vec", layout, dtype, Domain::Special, device)?;
                check("to_vec", &input.tensor, &Expected::new(input.values, dtype))
            });
            suite.add("to_vec_async", format!("{dtype}::{}", layout.name()), move |device| {
                let input = sample("to_vec_async", layout, dtype, Domain::Special, device)?;
                of_dtype!(check_async, dtype, &input)
            });
            let input = move |device: &Device| sample("nested", layout, dtype, Domain::Special, device);
            suite.add("to_vec1", format!("{dtype}::{}", layout.name()), move |device| {
                of_dtype!(check_vec1, dtype, &input(device)?)
            });
            suite.add("to_vec2", format!("{dtype}::{}", layout.name()), move |device| {
                of_dtype!(check_vec2, dtype, &input(device)?)
            });
            suite.add("to_vec3", format!("{dtype}::{}", layout.name()), move |device| {
                of_dtype!(check_vec3, dtype, &input(device)?)
            });
            for other in devices::selected() {
                suite.add("to_device", format!("{dtype}::{}_to_{other}", layout.name()), move |device| {
                    let input = sample("to_device", layout, dtype, Domain::Special, device)?;
                    let moved = input.tensor.to_device(&devices::open(other)?)?;
                    check("to_device", &moved, &Expected::new(input.values, dtype))
                });
            }
        }
    }
    for other in devices::selected() {
        suite.add("to_device", format!("there_and_back_{other}"), move |device| {
            let there = devices::open(other)?;
            let x = Tensor::arange(0f32, 50.0, device)?.reshape((5, 10))?.t()?;
            let y = (x.to_device(&there)? + 1.0)?.to_device(device)?;
            let expected = array(&[10, 5], (0..50).map(|i| f64::from(i % 5 * 10 + i / 5 + 1)).collect());
            check("to_device", &(y * 1.0)?, &Expected::new(expected, DType::F32))
        });
    }
    suite.add("to_vec", "u8::large", large);
    suite.add("to_vec_async", "u32::overlapping", overlapping);
    suite.add("to_vec3", "f32::empty_rows", empty_rows);
    suite.add("to_scalar", "scalars", to_scalar);
}
