//! Reads to the host and to other devices.

use super::{layouts, sample};
use crate::compare::{Expected, Sample, check, upload};
use crate::devices;
use crate::layouts::Layout;
use crate::reference::array;
use crate::reference::inputs::{Domain, Inputs};
use crate::suite::{Outcome, Suite};
use half::{bf16, f16};
use marquetry::{DType, Device, Element, Tensor};

fn check_async<T: Element>(input: &Sample) -> Outcome {
    let elements = pollster::block_on(input.tensor.to_vec_async::<T>())?;
    let got: Vec<f64> = elements.into_iter().map(T::to_f64).collect();
    let expected: Vec<f64> = input.values.iter().copied().collect();
    if got == expected { Ok(()) } else { Err(format!("expected {expected:?}, got {got:?}").into()) }
}

fn to_vec_async(dtype: DType, layout: Layout, device: &Device) -> Outcome {
    let input = sample("to_vec_async", layout, dtype, Domain::Special, device)?;
    match dtype {
        DType::Bool => check_async::<bool>(&input),
        DType::U8 => check_async::<u8>(&input),
        DType::I8 => check_async::<i8>(&input),
        DType::U32 => check_async::<u32>(&input),
        DType::I32 => check_async::<i32>(&input),
        DType::I64 => check_async::<i64>(&input),
        DType::F64 => check_async::<f64>(&input),
        DType::F16 => check_async::<f16>(&input),
        DType::BF16 => check_async::<bf16>(&input),
        _ => check_async::<f32>(&input),
    }
}

fn to_scalar(device: &Device) -> Outcome {
    let x = Tensor::arange(0i32, 24, device)?.reshape((2, 3, 4))?;
    let one = x.narrow(0, 1, 1)?.narrow(1, 2, 1)?.narrow(2, 3, 1)?;
    let (a, b, c) =
        (one.to_scalar::<i32>()?, x.sum_all()?.to_scalar::<i32>()?, Tensor::new(2.5f32, device)?.to_scalar::<f32>()?);
    if (a, b, c) == (23, 276, 2.5) { Ok(()) } else { Err(format!("got {a}, {b}, {c}").into()) }
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
                to_vec_async(dtype, layout, device)
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
    suite.add("to_scalar", "scalars", to_scalar);
}
