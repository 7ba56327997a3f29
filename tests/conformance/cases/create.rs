//! Tensors from host data, and tensors made from a shape alone.

use crate::compare::{Expected, check, upload};
use crate::reference::inputs::{Domain, Inputs};
use crate::reference::numbers::{round, wrap};
use crate::reference::{ArrayD, array};
use crate::suite::{Outcome, Suite};
use half::{bf16, f16};
use marquetry::{DType, Device, Element, Tensor};

const SHAPES: [&[usize]; 7] = [&[], &[1], &[7], &[3, 5], &[3, 65, 7], &[2, 0, 3], &[2, 1, 2, 1, 2, 1, 3]];

fn constants(dtype: DType, device: &Device) -> Outcome {
    for shape in SHAPES {
        let all = |x| Expected::new(ArrayD::from_elem(shape, x), dtype);
        check("zeros", &Tensor::zeros(shape, dtype, device)?, &all(0.0))?;
        check("ones", &Tensor::ones(shape, dtype, device)?, &all(1.0))?;
    }
    Ok(())
}

fn full<T: Element>(numbers: &[T], device: &Device) -> Outcome {
    for &number in numbers {
        for shape in SHAPES {
            let expected = Expected::new(ArrayD::from_elem(shape, number.to_f64()), T::DTYPE);
            check("full", &Tensor::full(number, shape, device)?, &expected)?;
        }
        // A constant has no buffer of its own. Views of it and expressions with it must still work.
        let seven = Tensor::full(number, (2, 3), device)?;
        let expected = Expected::new(ArrayD::from_elem([3, 1, 2].as_slice(), number.to_f64()), T::DTYPE);
        check("full", &seven.t()?.unsqueeze(1)?, &expected)?;
        let expected = Expected::new(ArrayD::from_elem([4, 1].as_slice(), number.to_f64()), T::DTYPE);
        check(
            "full",
            &Tensor::cat(&[seven.narrow(0, 0, 1)?.t()?, Tensor::full(number, (1, 1), device)?], 0)?,
            &expected,
        )?;
    }
    Ok(())
}

fn from_slice(dtype: DType, device: &Device) -> Outcome {
    for shape in SHAPES {
        let values = Inputs::new("host data").array(shape, dtype, Domain::Special);
        check("from_slice", &upload(&values, dtype, device)?, &Expected::new(values, dtype))?;
    }
    Ok(())
}

fn new(device: &Device) -> Outcome {
    let expected = |shape: &[usize], elements: &[f64], dtype| Expected::new(array(shape, elements.to_vec()), dtype);
    check("new", &Tensor::new(2.5f32, device)?, &expected(&[], &[2.5], DType::F32))?;
    check("new", &Tensor::new([1u8, 2, 255], device)?, &expected(&[3], &[1.0, 2.0, 255.0], DType::U8))?;
    check("new", &Tensor::new([-1i8, 127], device)?, &expected(&[2], &[-1.0, 127.0], DType::I8))?;
    check("new", &Tensor::new([true, false, true], device)?, &expected(&[3], &[1.0, 0.0, 1.0], DType::Bool))?;
    check("new", &Tensor::new([[1i32, -2], [3, 4]], device)?, &expected(&[2, 2], &[1.0, -2.0, 3.0, 4.0], DType::I32))?;
    let nested = vec![vec![[1u32], [2]], vec![[3], [4]], vec![[5], [6]]];
    let flat = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    check("new", &Tensor::new(&nested, device)?, &expected(&[3, 2, 1], &flat, DType::U32))?;
    check("new", &Tensor::new(nested.as_slice(), device)?, &expected(&[3, 2, 1], &flat, DType::U32))?;
    let borrowed: &[f16; 2] = &[f16::ONE; 2];
    check("new", &Tensor::new(borrowed, device)?, &expected(&[2], &[1.0, 1.0], DType::F16))?;
    check("new", &Tensor::new([[0f32; 0]; 3], device)?, &expected(&[3, 0], &[], DType::F32))?;
    let ragged = Tensor::new(vec![vec![1f32], vec![2.0, 3.0]], device);
    match ragged {
        Err(error) if error.to_string().contains("[1]") && error.to_string().contains("[2]") => Ok(()),
        other => Err(format!("rows of two lengths gave {other:?}").into()),
    }
}

/// `start + i * step` below (above) `end`, counted in doubles.
fn check_arange<T: Element>(op: &str, actual: &Tensor, start: T, end: T, step: f64) -> Outcome {
    let (start, end) = (start.to_f64(), end.to_f64());
    let count = ((end - start) / step).ceil().max(0.0) as usize;
    let exact = (0..count).map(|i| start + i as f64 * step).collect::<Vec<_>>();
    let scale = (0..count).map(|i| (i as f64 * step).abs()).collect();
    let exact = if T::DTYPE.is_float() { exact } else { exact.into_iter().map(|x| wrap(x as i64, T::DTYPE)).collect() };
    check(op, actual, &Expected::new(array(&[count], exact), T::DTYPE).with_scale(array(&[count], scale)))
}

fn arange<T: Element>(ranges: &[(T, T)], device: &Device) -> Outcome {
    ranges
        .iter()
        .try_for_each(|&(start, end)| check_arange("arange", &Tensor::arange(start, end, device)?, start, end, 1.0))
}

fn arange_step<T: Element>(ranges: &[(T, T, T)], device: &Device) -> Outcome {
    ranges.iter().try_for_each(|&(start, end, step)| {
        check_arange("arange_step", &Tensor::arange_step(start, end, step, device)?, start, end, step.to_f64())
    })
}

fn half(x: f64) -> f16 {
    f16::from_f32(round(x, DType::F16) as f32)
}

pub fn add(suite: &mut Suite) {
    for dtype in DType::ALL {
        suite.add("zeros", format!("{dtype}::shapes"), move |device| constants(dtype, device));
        suite.add("ones", format!("{dtype}::shapes"), move |device| constants(dtype, device));
        suite.add("from_slice", format!("{dtype}::shapes"), move |device| from_slice(dtype, device));
    }
    suite.add("full", "f32::numbers", |device| full(&[-0.0f32, 0.1, f32::NAN, f32::INFINITY, 1e-40, f32::MAX], device));
    suite.add("full", "f16::numbers", |device| {
        full(&[half(-0.0), half(0.1), f16::NAN, f16::INFINITY, half(6e-8)], device)
    });
    suite.add("full", "i32::numbers", |device| full(&[i32::MIN, -1, 0, i32::MAX], device));
    suite.add("full", "u32::numbers", |device| full(&[0, u32::MAX, 1 << 31], device));
    suite.add("full", "u8::numbers", |device| full(&[0u8, 1, 255], device));
    suite.add("full", "i8::numbers", |device| full(&[i8::MIN, -1, 0, i8::MAX], device));
    suite.add("full", "f64::numbers", |device| full(&[-0.0, 0.1, f64::NAN, f64::INFINITY, f64::MAX, 5e-324], device));
    suite.add("full", "i64::numbers", |device| full(&[i64::MIN, -1, 0, 1 << 40, -(1 << 52) - 1], device));
    suite.add("full", "bool::truths", |device| full(&[false, true], device));
    suite.add("full", "bf16::numbers", |device| {
        full(&[bf16::NEG_ZERO, bf16::from_f32(0.1), bf16::NAN, bf16::INFINITY, bf16::MAX, bf16::from_bits(1)], device)
    });
    suite.add("new", "nested", new);
    suite.add("from_vec", "vectors", |device| {
        let expected = Expected::new(array(&[2, 2], vec![1.0, 2.0, 3.0, 4.0]), DType::I32);
        check("from_vec", &Tensor::from_vec(vec![1i32, 2, 3, 4], (2, 2), device)?, &expected)
    });
    suite.add("arange", "f32::ranges", |device| {
        arange(&[(0f32, 10.0), (-3.5, 4.0), (5.0, 5.0), (5.0, 2.0), (1e6, 1e6 + 70.0), (0.0, 5000.0)], device)
    });
    suite.add("arange", "f16::ranges", |device| arange(&[(half(0.0), half(10.0)), (half(-2.5), half(100.0))], device));
    suite.add("arange", "i32::ranges", |device| {
        arange(&[(0, 7), (-5, 5), (i32::MIN, i32::MIN + 3), (i32::MAX - 3, i32::MAX), (3, -3)], device)
    });
    suite.add("arange", "u32::ranges", |device| {
        arange(&[(0u32, 7), (u32::MAX - 5, u32::MAX), (9, 3), (0, 4097)], device)
    });
    suite.add("arange", "u8::ranges", |device| arange(&[(0u8, 255), (250, 255), (3, 3)], device));
    suite.add("arange", "f64::ranges", |device| arange(&[(0.5, 10.0), (1e15, 1e15 + 9.0)], device));
    suite.add("arange", "i64::ranges", |device| arange(&[(0i64, 9), (-(1 << 40), -(1 << 40) + 9), (4, 2)], device));
    suite.add("arange", "i8::ranges", |device| arange(&[(-128i8, 127), (5, 3), (-3, 9)], device));
    suite.add("arange", "bf16::ranges", |device| {
        arange(&[(bf16::ZERO, bf16::from_f32(300.0)), (bf16::from_f32(-2.5), bf16::from_f32(9.0))], device)
    });
    suite.add("arange_step", "f32::ranges", |device| {
        arange_step(
            &[(0f32, 1.0, 0.1), (1.0, 0.0, -0.25), (0.0, 1.0, -1.0), (-1.0, 1.0, 1e-3), (0.5, 100.0, 7.25)],
            device,
        )
    });
    suite.add("arange_step", "f16::ranges", |device| {
        arange_step(&[(half(0.0), half(1.0), half(0.1)), (half(9.0), half(-9.0), half(-0.5))], device)
    });
    suite.add("arange_step", "bf16::ranges", |device| {
        let brief = bf16::from_f32;
        arange_step(&[(brief(0.0), brief(1.0), brief(0.1)), (brief(9.0), brief(-9.0), brief(-0.5))], device)
    });
    suite.add("arange_step", "i32::ranges", |device| {
        arange_step(&[(0, 10, 3), (10, 0, -3), (i32::MIN, i32::MAX, i32::MAX), (5, 0, 1), (-7, 8, 5)], device)
    });
    suite.add("arange_step", "u32::ranges", |device| arange_step(&[(0u32, 10, 4), (0, u32::MAX, 1 << 30)], device));
    suite.add("arange_step", "f64::ranges", |device| arange_step(&[(0.0, 1.0, 0.1), (9.0, -9.0, -0.7)], device));
    suite.add("arange_step", "i64::ranges", |device| arange_step(&[(0, 1 << 50, 1i64 << 47), (7, -8, -5)], device));
    suite.add("arange_step", "i8::ranges", |device| arange_step(&[(100i8, -128, -50), (-5, 10, 3)], device));
    suite.add("arange_step", "u8::ranges", |device| arange_step(&[(0u8, 255, 50), (1, 10, 3)], device));
    suite.add("arange_step", "f32::refused", |device| {
        for (start, end, step) in [(0f32, 1.0, 0.0), (0.0, f32::INFINITY, 1.0), (f32::NAN, 1.0, 1.0)] {
            match Tensor::arange_step(start, end, step, device) {
                Err(error) if error.to_string().contains("arange") => {}
                other => return Err(format!("arange_step({start}, {end}, {step}) gave {other:?}").into()),
            }
        }
        Ok(())
    });
}
