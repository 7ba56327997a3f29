//! Operations that memory bandwidth limits: elementwise operations, reductions, normalisations, copies into another
//! order.

use super::{Sizes, described, power};
use crate::case::{Bound, Case, Cost, Prepared, Rate};
use crate::close::{column, ensure_all_close, ensure_close, numbers, places, row};
use anyhow::{Result, ensure};
use marquetry::{DType, Device, Tensor};
use std::cell::RefCell;

pub fn cases(sizes: &Sizes) -> Vec<Case> {
    let (side, elements) = (sizes.side, sizes.elements());
    let narrow = side / 2;
    let norm = [narrow, side / 4];
    vec![
        add(elements),
        fused(elements),
        copy(elements),
        sum_of_all(elements),
        sum_of_expression(elements),
        sum_of_rows(side),
        sum_of_columns(side),
        argmax_of_rows(side),
        running_sum([1, elements.min(1 << 26)]),
        running_sum([elements.min(1 << 26) / 4096, 4096]),
        softmax(narrow),
        softmax_of_expression(narrow),
        softmax_of_columns(side),
        layer_norm(norm),
        rms_norm(norm),
        rms_norm_of_sum(norm),
        transpose(side, DType::F32),
        transpose(side, DType::F16),
        permute(side),
    ]
}

/// Returns a case that moves this many bytes.
fn case(name: String, bytes: usize, prepare: impl Fn(&Device) -> Result<Prepared> + 'static) -> Case {
    Case { name, cost: Cost::of_memory(bytes), rate: Rate::Bytes, bound: Bound::Fma, prepare: Box::new(prepare) }
}

pub(super) fn random(shape: impl Into<marquetry::Shape>, device: &Device) -> marquetry::Result<Tensor> {
    let x = Tensor::randn(0f32, 1.0, shape, device)?;
    x.realize()?;
    Ok(x)
}

/// Returns the first and the last elements of a vector.
fn ends(x: &Tensor) -> Result<Vec<f64>> {
    const SOME: usize = 1000;
    let length = x.elem_count();
    let mut ends = numbers(&x.narrow(0, 0, SOME)?)?;
    ends.extend(numbers(&x.narrow(0, length - SOME, SOME)?)?);
    Ok(ends)
}

fn add(n: usize) -> Case {
    case(format!("add f32 {}", power(n)), 12 * n, move |device| {
        let (a, b) = (random(n, device)?, random(n, device)?);
        let (x, z) = (a.clone(), b.clone());
        let expected = move || Ok(ends(&x)?.into_iter().zip(ends(&z)?).map(|(a, b)| a + b).collect::<Vec<_>>());
        // One rounding.
        Ok(Prepared::alone(move |_| &a + &b, move |y| check_ends(y, &expected, 2f64.powi(-24))))
    })
}

fn check_ends(y: &Tensor, expected: &dyn Fn() -> Result<Vec<f64>>, tolerance: f64) -> Result<()> {
    ensure_all_close("the result", &ends(y)?, &expected()?, tolerance)
}

fn fused(n: usize) -> Case {
    case(format!("tanh(a * b + a) f32 {}", power(n)), 12 * n, move |device| {
        let (a, b) = (random(n, device)?, random(n, device)?);
        let (x, z) = (a.clone(), b.clone());
        let expected =
            move || Ok(ends(&x)?.into_iter().zip(ends(&z)?).map(|(a, b)| (a * b + a).tanh()).collect::<Vec<_>>());
        // Two roundings before tanh, whose slope is at most 1, and the few roundings of tanh.
        Ok(Prepared::alone(move |_| ((&a * &b)? + &a)?.tanh(), move |y| check_ends(y, &expected, 2f64.powi(-20))))
    })
}

fn copy(n: usize) -> Case {
    case(format!("copy f32 {} (x + 0)", power(n)), 8 * n, move |device| {
        let a = random(n, device)?;
        let x = a.clone();
        Ok(Prepared::alone(move |_| &a + 0.0, move |y| check_ends(y, &|| ends(&x), 0.0)))
    })
}

fn sum_of_all(n: usize) -> Case {
    case(format!("sum f32 {}", power(n)), 4 * n, move |device| {
        let x = random(n, device)?;
        let a = x.clone();
        Ok(Prepared::alone(move |_| x.sum_all(), move |y| check_sum(&a, &numbers(y)?[..1])))
    })
}

/// The operand of the sum is computed as it is loaded.
fn sum_of_expression(n: usize) -> Case {
    case(format!("sum of tanh(a * b + c) f32 {}", power(n)), 12 * n, move |device| {
        let [a, b, c] = [random(n, device)?, random(n, device)?, random(n, device)?];
        let x = ((&a * &b)? + &c)?.tanh()?;
        x.realize()?;
        let run = move |_| ((&a * &b)? + &c)?.tanh()?.sum_all();
        Ok(Prepared::alone(run, move |y| check_sum(&x, &numbers(y)?[..1])))
    })
}

/// Checks the sum of a tensor. Sums are within half a unit in the last place plus 2^-25 of the sum of magnitudes.
fn check_sum(x: &Tensor, found: &[f64]) -> Result<()> {
    let x: Vec<f32> = x.to_vec()?;
    let (sum, sizes) = x.iter().fold((0.0, 0.0), |(sum, sizes), &x| (sum + f64::from(x), sizes + f64::from(x.abs())));
    ensure_close("the sum", found[0], sum, 2f64.powi(-24) * sum.abs() + 2f64.powi(-25) * sizes)
}

fn sum_of_rows(n: usize) -> Case {
    case(format!("sum of rows f32 {n}^2"), 4 * n * n, move |device| {
        let x = random((n, n), device)?;
        let a = x.clone();
        let check = move |y: &Tensor| {
            let sums = numbers(y)?;
            places(n).into_iter().try_for_each(|i| check_sum(&a.narrow(0, i, 1)?, &sums[i..]))
        };
        Ok(Prepared::alone(move |_| x.sum(1), check))
    })
}

fn running_sum([rows, length]: [usize; 2]) -> Case {
    case(format!("cumsum f32 {}", described([rows, length])), 8 * rows * length, move |device| {
        let x = random((rows, length), device)?;
        let a = x.clone();
        let check = move |y: &Tensor| {
            for i in places(rows) {
                let (mut sum, mut sizes) = (0.0, 0.0);
                for (j, (x, found)) in row(&a, i)?.into_iter().zip(row(y, i)?).enumerate() {
                    (sum, sizes) = (sum + x, sizes + x.abs());
                    // As for sums of floats: compensated.
                    let tolerance = 2f64.powi(-24) * sum.abs() + 2f64.powi(-23) * sizes;
                    ensure_close(&format!("sum {j} of row {i}"), found, sum, tolerance)?;
                }
            }
            Ok(())
        };
        Ok(Prepared::alone(move |_| x.cumsum(1), check))
    })
}

fn sum_of_columns(n: usize) -> Case {
    case(format!("sum of columns f32 {n}^2"), 4 * n * n, move |device| {
        let x = random((n, n), device)?;
        let a = x.clone();
        let check = move |y: &Tensor| {
            let sums = numbers(y)?;
            places(n).into_iter().try_for_each(|i| check_sum(&a.narrow(1, i, 1)?, &sums[i..]))
        };
        Ok(Prepared::alone(move |_| x.sum(0), check))
    })
}

fn argmax_of_rows(n: usize) -> Case {
    case(format!("argmax of rows f32 {n}^2"), 4 * n * n, move |device| {
        let x = random((n, n), device)?;
        let a = x.clone();
        let check = move |y: &Tensor| {
            let found: Vec<u32> = y.to_vec()?;
            for i in places(n) {
                let row = row(&a, i)?;
                let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let place = row.iter().position(|&x| x == largest);
                ensure!(place == Some(found[i] as usize), "row {i} has its largest at {place:?}, not {}", found[i]);
            }
            Ok(())
        };
        Ok(Prepared::alone(move |_| x.argmax(1), check))
    })
}

/// Checks some rows against the host's.
fn check_rows(x: &Tensor, y: &Tensor, expected: impl Fn(Vec<f64>) -> Vec<f64>, tolerance: f64) -> Result<()> {
    for i in places(x.dims()[0]) {
        ensure_all_close(&format!("row {i}"), &row(y, i)?, &expected(row(x, i)?), tolerance)?;
    }
    Ok(())
}

fn softmax(n: usize) -> Case {
    case(format!("softmax f32 {n}^2"), 8 * n * n, move |device| {
        let x = random((n, n), device)?;
        let a = x.clone();
        Ok(Prepared::alone(move |_| x.softmax(1), move |y| check_softmax(&a, y)))
    })
}

fn softmax_of_expression(n: usize) -> Case {
    case(format!("softmax of x * s + mask f32 {n}^2"), 12 * n * n, move |device| {
        let (x, mask) = (random((n, n), device)?, random((n, n), device)?);
        let a = ((&x * 0.125)? + &mask)?;
        a.realize()?;
        Ok(Prepared::alone(move |_| ((&x * 0.125)? + &mask)?.softmax(1), move |y| check_softmax(&a, y)))
    })
}

fn softmax_of_columns(n: usize) -> Case {
    case(format!("softmax of columns f32 {n}^2"), 8 * n * n, move |device| {
        let x = random((n, n), device)?;
        let a = x.t()?;
        Ok(Prepared::alone(move |_| x.softmax(0), move |y| check_softmax(&a, &y.t()?)))
    })
}

fn check_softmax(x: &Tensor, y: &Tensor) -> Result<()> {
    let expected = |row: Vec<f64>| {
        let sum: f64 = row.iter().map(|x| x.exp()).sum();
        row.into_iter().map(|x| x.exp() / sum).collect()
    };
    // Elements are about 1 / n, and each has a few roundings of f32.
    let tolerance = 2f64.powi(-20) / x.dims()[1] as f64;
    check_rows(x, y, expected, 64.0 * tolerance)
}

const EPSILON: f64 = 1e-5;
/// A few roundings of f32 of numbers up to about 5.
const NORM_TOLERANCE: f64 = 2e-6;

fn layer_norm([rows, n]: [usize; 2]) -> Case {
    case(format!("layer norm f32 {rows}x{n}"), 8 * rows * n, move |device| {
        let x = random((rows, n), device)?;
        let (weight, bias) = (Tensor::full(2f32, n, device)?, Tensor::full(1f32, n, device)?);
        weight.realize()?;
        bias.realize()?;
        let a = x.clone();
        let expected = move |row: Vec<f64>| {
            let mean = row.iter().sum::<f64>() / n as f64;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
            row.into_iter().map(|x| 2.0 * (x - mean) / (variance + EPSILON).sqrt() + 1.0).collect()
        };
        let run = move |_| x.layer_norm(&weight, &bias, EPSILON);
        Ok(Prepared::alone(run, move |y| check_rows(&a, y, expected, NORM_TOLERANCE)))
    })
}

fn rms_norm([rows, n]: [usize; 2]) -> Case {
    case(format!("rms norm f32 {rows}x{n}"), 8 * rows * n, move |device| {
        let x = random((rows, n), device)?;
        let weight = Tensor::full(2f32, n, device)?;
        weight.realize()?;
        let a = x.clone();
        let run = move |_| x.rms_norm(&weight, EPSILON);
        Ok(Prepared::alone(run, move |y| check_rows(&a, y, rms_normed, NORM_TOLERANCE)))
    })
}

/// The sum is held, so the kernel of the norm stores it, too.
fn rms_norm_of_sum([rows, n]: [usize; 2]) -> Case {
    case(format!("rms norm of x + r, both stored, f32 {rows}x{n}"), 16 * rows * n, move |device| {
        let (x, r) = (random((rows, n), device)?, random((rows, n), device)?);
        let weight = Tensor::full(2f32, n, device)?;
        weight.realize()?;
        let a = (&x + &r)?;
        a.realize()?;
        let held = RefCell::new(None);
        let run = move |_| {
            let sum = (&x + &r)?;
            let y = sum.rms_norm(&weight, EPSILON)?;
            held.replace(Some(sum));
            Ok(y)
        };
        Ok(Prepared::alone(run, move |y| check_rows(&a, y, rms_normed, NORM_TOLERANCE)))
    })
}

fn rms_normed(row: Vec<f64>) -> Vec<f64> {
    let square = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
    row.into_iter().map(|x| 2.0 * x / (square + EPSILON).sqrt()).collect()
}

fn transpose(n: usize, dtype: DType) -> Case {
    case(format!("transpose {dtype} {n}^2"), 2 * dtype.size_in_bytes() * n * n, move |device| {
        let x = random((n, n), device)?.to_dtype(dtype)?;
        x.realize()?;
        let a = x.clone();
        let check = move |y: &Tensor| {
            places(n).into_iter().try_for_each(|i| ensure_all_close("a row", &row(y, i)?, &column(&a, i)?, 0.0))
        };
        Ok(Prepared::alone(move |_| x.t()?.contiguous(), check))
    })
}

/// The heads of a model, moved from beside each other to one after the other.
fn permute(side: usize) -> Case {
    let (heads, width) = (32, 128);
    let [batch, tokens] = [8, side * side / (8 * heads * width)];
    let shape = (batch, tokens, heads, width);
    case(format!("permute (0, 2, 1, 3) f32 {batch}x{tokens}x{heads}x{width}"), 8 * side * side, move |device| {
        let x = random(shape, device)?;
        let a = x.clone();
        let check = move |y: &Tensor| {
            for (token, head) in places(tokens).into_iter().zip(places(heads)) {
                let found = numbers(&y.narrow(0, 1, 1)?.narrow(1, head, 1)?.narrow(2, token, 1)?)?;
                let expected = numbers(&a.narrow(0, 1, 1)?.narrow(1, token, 1)?.narrow(2, head, 1)?)?;
                ensure_all_close("the numbers of a head", &found, &expected, 0.0)?;
            }
            Ok(())
        };
        Ok(Prepared::alone(move |_| x.permute([0, 2, 1, 3])?.contiguous(), check))
    })
}
