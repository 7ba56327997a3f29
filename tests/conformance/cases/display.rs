//! Tensors as text, compared with PyTorch 2's output. Only the names of dtypes, devices and truth values differ.

use crate::suite::{Outcome, Suite};
use half::{bf16, f16};
use marquetry::{DType, Device, Tensor};

/// Compares with `expected`, in which `DEVICE` stands for the device string.
fn check(tensor: &Tensor, expected: &str) -> Outcome {
    let (got, expected) = (tensor.to_string(), expected.replace("DEVICE", &tensor.device().id()));
    if got == expected { Ok(()) } else { Err(format!("expected\n{expected}\ngot\n{got}").into()) }
}

fn integers(device: &Device) -> Outcome {
    check(&Tensor::new([1i32, -20, 3], device)?, "tensor([  1, -20,   3], device='DEVICE', dtype=i32)")?;
    check(
        &Tensor::new([[1u8, 2], [30, 255]], device)?,
        "tensor([[  1,   2],\n        [ 30, 255]], device='DEVICE', dtype=u8)",
    )?;
    check(&Tensor::new([-128i8, 7], device)?, "tensor([-128,    7], device='DEVICE', dtype=i8)")?;
    let text = "tensor([-9223372036854775808,  9223372036854775807], device='DEVICE',\n       dtype=i64)";
    check(&Tensor::new([i64::MIN, i64::MAX], device)?, text)?;
    check(&Tensor::new(u32::MAX, device)?, "tensor(4294967295, device='DEVICE', dtype=u32)")
}

fn floats(device: &Device) -> Outcome {
    check(
        &Tensor::new([[1f32, 2.5], [-3.0, 4.0]], device)?,
        "tensor([[ 1.0000,  2.5000],\n        [-3.0000,  4.0000]], device='DEVICE')",
    )?;
    check(&Tensor::new(0.1f32, device)?, "tensor(0.1000, device='DEVICE')")?;
    check(&Tensor::new([f16::from_f32(0.1)], device)?, "tensor([0.1000], device='DEVICE', dtype=f16)")?;
    check(&Tensor::new([0.1f64, -2.0], device)?, "tensor([ 0.1000, -2.0000], device='DEVICE', dtype=f64)")?;
    check(&Tensor::new([bf16::from_f32(0.1)], device)?, "tensor([0.1001], device='DEVICE', dtype=bf16)")
}

fn truths(device: &Device) -> Outcome {
    check(&Tensor::new([true, false], device)?, "tensor([ true, false], device='DEVICE', dtype=bool)")?;
    check(&Tensor::new(true, device)?, "tensor(true, device='DEVICE', dtype=bool)")
}

fn whole_floats(device: &Device) -> Outcome {
    check(&Tensor::new([1f32, -2.0, 300.0], device)?, "tensor([  1.,  -2., 300.], device='DEVICE')")?;
    check(&Tensor::zeros((2, 2), DType::F32, device)?, "tensor([[0., 0.],\n        [0., 0.]], device='DEVICE')")?;
    check(&Tensor::new(2f32, device)?, "tensor(2., device='DEVICE')")?;
    // The magnitudes span three decades.
    check(&Tensor::new([1f32, 2000.0], device)?, "tensor([1.0000e+00, 2.0000e+03], device='DEVICE')")?;
    check(&Tensor::new([2e8f32, 3e8], device)?, "tensor([2.0000e+08, 3.0000e+08], device='DEVICE')")
}

fn scientific(device: &Device) -> Outcome {
    check(&Tensor::new([1e-5f32, 1.0], device)?, "tensor([1.0000e-05, 1.0000e+00], device='DEVICE')")?;
    check(&Tensor::new([0.5f32, -1234.5], device)?, "tensor([ 5.0000e-01, -1.2345e+03], device='DEVICE')")?;
    check(&Tensor::new([1.5e-5f32, 0.0], device)?, "tensor([1.5000e-05, 0.0000e+00], device='DEVICE')")?;
    check(&Tensor::new(f32::MAX, device)?, "tensor(3.4028e+38, device='DEVICE')")
}

fn not_finite(device: &Device) -> Outcome {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    check(&Tensor::new([1.5f32, nan, -inf], device)?, "tensor([1.5000,    nan,   -inf], device='DEVICE')")?;
    // The finite numbers decide the width.
    check(&Tensor::new([1f32, nan, inf, -inf], device)?, "tensor([1., nan, inf, -inf], device='DEVICE')")?;
    check(&Tensor::new([0f32, nan], device)?, "tensor([0., nan], device='DEVICE')")?;
    check(&Tensor::new([1e-6f32, nan], device)?, "tensor([1.0000e-06,        nan], device='DEVICE')")
}

fn empty(device: &Device) -> Outcome {
    check(&Tensor::zeros(0, DType::F32, device)?, "tensor([], device='DEVICE')")?;
    check(&Tensor::zeros((2, 0), DType::F32, device)?, "tensor([], device='DEVICE', size=(2, 0))")?;
    check(&Tensor::zeros((0, 3), DType::I32, device)?, "tensor([], device='DEVICE', size=(0, 3), dtype=i32)")
}

fn cubes(device: &Device) -> Outcome {
    let x = Tensor::arange(0i32, 8, device)?.reshape((2, 2, 2))?;
    let text =
        "tensor([[[0, 1],\n         [2, 3]],\n\n        [[4, 5],\n         [6, 7]]], device='DEVICE', dtype=i32)";
    check(&x, text)?;
    // A view is printed with its own shape and order.
    let text =
        "tensor([[[0, 4],\n         [2, 6]],\n\n        [[1, 5],\n         [3, 7]]], device='DEVICE', dtype=i32)";
    check(&x.permute([2, 1, 0])?, text)
}

/// Lines hold 80 characters, including the suffix.
fn long_lines(device: &Device) -> Outcome {
    let text = "tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14, 15, 16, 17,\n        \
                18, 19, 20, 21, 22, 23, 24], device='DEVICE', dtype=i32)";
    check(&Tensor::arange(0i32, 25, device)?, text)?;
    let text = "tensor([[0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 0., 1., 2., 3., 4., 5., 6., 7.],\n        \
                [8., 9., 0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 0., 1., 2., 3., 4., 5.]],\n       device='DEVICE')";
    let digits: Vec<f32> = (0..36).map(|i| (i % 10) as f32).collect();
    check(&Tensor::from_slice(&digits, (2, 18), device)?, text)
}

/// Tensors with more than a thousand elements show only the ends of each axis.
fn summarised(device: &Device) -> Outcome {
    let text = "tensor([   0,    1,    2,  ..., 1998, 1999, 2000], device='DEVICE',\n       dtype=i32)";
    check(&Tensor::arange(0i32, 2001, device)?, text)?;
    let text = "tensor([[   0,    1,    2,  ...,   37,   38,   39],\n        \
                [  40,   41,   42,  ...,   77,   78,   79],\n        \
                [  80,   81,   82,  ...,  117,  118,  119],\n        \
                ...,\n        \
                [1480, 1481, 1482,  ..., 1517, 1518, 1519],\n        \
                [1520, 1521, 1522,  ..., 1557, 1558, 1559],\n        \
                [1560, 1561, 1562,  ..., 1597, 1598, 1599]], device='DEVICE',\n       dtype=i32)";
    check(&Tensor::arange(0i32, 1600, device)?.reshape((40, 40))?, text)?;
    // An axis of length six is shown whole.
    let text = "tensor([[ 0,  1,  2,  ..., 37, 38, 39],\n        \
                [40, 41, 42,  ..., 77, 78, 79],\n        \
                [ 0,  1,  2,  ..., 37, 38, 39],\n        \
                [40, 41, 42,  ..., 77, 78, 79],\n        \
                [ 0,  1,  2,  ..., 37, 38, 39],\n        \
                [40, 41, 42,  ..., 77, 78, 79]], device='DEVICE', dtype=i32)";
    let numbers: Vec<i32> = (0..1200).map(|i| i % 80).collect();
    check(&Tensor::from_slice(&numbers, (6, 200), device)?, text)?;
    // A tensor with a thousand elements is not summarised.
    let thousand = Tensor::zeros(1000, DType::F32, device)?.to_string();
    if thousand.matches("0.").count() == 1000 { Ok(()) } else { Err("not all of a thousand are shown".into()) }
}

fn debug(device: &Device) -> Outcome {
    let x = Tensor::zeros((2, 3), DType::U8, device)?;
    let (got, expected) = (format!("{x:?}"), format!("Tensor {{ shape=[2, 3], dtype=u8, device='{}' }}", device.id()));
    if got == expected { Ok(()) } else { Err(format!("expected {expected}, got {got}").into()) }
}

pub fn add(suite: &mut Suite) {
    suite.add("display", "integers", integers);
    suite.add("display", "floats", floats);
    suite.add("display", "truths", truths);
    suite.add("display", "whole_floats", whole_floats);
    suite.add("display", "scientific", scientific);
    suite.add("display", "not_finite", not_finite);
    suite.add("display", "empty", empty);
    suite.add("display", "cubes", cubes);
    suite.add("display", "long_lines", long_lines);
    suite.add("display", "summarised", summarised);
    suite.add("display", "debug", debug);
}
