//! Matrix products.

use super::Sizes;
use crate::case::{Bound, Case, Cost, Prepared, Rate};
use crate::close::check_product;
use Order::{RowMajor, Transposed};
use anyhow::Result;
use marquetry::{DType, Device, Tensor};

/// How an operand lies in memory.
#[derive(Clone, Copy, PartialEq)]
pub enum Order {
    RowMajor,
    Transposed,
}

pub fn cases(sizes: &Sizes) -> Vec<Case> {
    let mut cases = Vec::new();
    for &n in sizes.narrow_products {
        cases.extend([DType::F16, DType::BF16].map(|dtype| square(dtype, n, RowMajor, RowMajor)));
    }
    // Matrix units multiply bytes faster than halves.
    cases.push(square(DType::I8, sizes.narrow_products[0], RowMajor, RowMajor));
    cases.extend([256, 512, 1024].map(chain));
    for columns in sizes.layers {
        cases.extend([RowMajor, Transposed].map(|order| layer(sizes, columns, order)));
    }
    cases.extend(sizes.products.iter().map(|&n| square(DType::F32, n, RowMajor, RowMajor)));
    let n = sizes.products[sizes.products.len() - 1].min(4096);
    let orders = [(Transposed, RowMajor), (RowMajor, Transposed), (Transposed, Transposed)];
    cases.extend(orders.map(|(a, b)| square(DType::F32, n, a, b)));
    cases
}

/// A square product that is compared with a native library's.
pub fn beside_native(n: usize) -> Case {
    let case = square(DType::F32, n, RowMajor, RowMajor);
    Case { name: format!("{} beside native", case.name), bound: Bound::Native, ..case }
}

/// Returns normally distributed numbers.
pub fn random(
    rows: usize,
    columns: usize,
    deviation: f32,
    dtype: DType,
    order: Order,
    device: &Device,
) -> marquetry::Result<Tensor> {
    let shape = if order == RowMajor { (rows, columns) } else { (columns, rows) };
    let x = Tensor::randn(0f32, deviation, shape, device)?.to_dtype(dtype)?;
    x.realize()?;
    if order == RowMajor { Ok(x) } else { x.t() }
}

fn cost(dtype: DType, [m, n, k]: [usize; 3]) -> Cost {
    let bytes = dtype.size_in_bytes();
    // Products of bytes are added up and written in 32 bits.
    let written = if bytes == 1 { 4 } else { bytes };
    Cost { flops: (2 * m * n * k) as f64, bytes: (bytes * (m * k + k * n) + written * m * n) as f64 }
}

fn bound(dtype: DType) -> Bound {
    if dtype == DType::F32 { Bound::Fma } else { Bound::Matrix(dtype) }
}

fn square(dtype: DType, n: usize, a: Order, b: Order) -> Case {
    let letter = |order, letter| format!("{letter}{}", if order == Transposed { "^T" } else { "" });
    let orders =
        if (a, b) == (RowMajor, RowMajor) { String::new() } else { format!(" {} {}", letter(a, "A"), letter(b, "B")) };
    Case {
        name: format!("matmul {dtype} {n}^3{orders}"),
        cost: cost(dtype, [n, n, n]),
        rate: Rate::Flops,
        bound: bound(dtype),
        prepare: Box::new(move |device| {
            let deviation = if dtype.size_in_bytes() == 1 { 30.0 } else { 1.0 };
            let [a, b] = [a, b].map(|order| random(n, n, deviation, dtype, order, device));
            product(a?, vec![b?])
        }),
    }
}

/// A product of matrices in row-major order.
pub fn plain(dtype: DType, sizes: [usize; 3]) -> Case {
    let [m, n, k] = sizes;
    Case {
        name: format!("matmul {dtype} {m}x{k} @ {k}x{n}"),
        cost: cost(dtype, sizes),
        rate: Rate::Flops,
        bound: bound(dtype),
        prepare: Box::new(move |device| {
            let a = random(m, k, 1.0, dtype, RowMajor, device)?;
            product(a, vec![random(k, n, deviation(k), dtype, RowMajor, device)?])
        }),
    }
}

/// Products with one of several matrices, another one in each run.
fn product(a: Tensor, weights: Vec<Tensor>) -> Result<Prepared> {
    let (x, w) = (a.clone(), weights[0].clone());
    Ok(Prepared::alone(move |run| a.matmul(&weights[run % weights.len()]), move |y| check_product(&x, &w, y)))
}

/// A layer of a model on the rows of a prompt.
fn layer(sizes: &Sizes, columns: usize, order: Order) -> Case {
    let (rows, width) = (sizes.rows, sizes.width);
    let count = sizes.distinct(2 * width * columns);
    let transposed = if order == Transposed { "^T" } else { "" };
    Case {
        name: format!("matmul f16 {rows}x{width} @ {width}x{columns} W{transposed}"),
        cost: cost(DType::F16, [rows, columns, width]),
        rate: Rate::Flops,
        bound: Bound::Matrix(DType::F16),
        prepare: Box::new(move |device| {
            let x = random(rows, width, 1.0, DType::F16, RowMajor, device)?;
            let weights = (0..count).map(|_| random(width, columns, deviation(width), DType::F16, order, device));
            product(x, weights.collect::<marquetry::Result<_>>()?)
        }),
    }
}

/// Returns the deviation of weights that keeps the size of numbers in a chain of products.
pub fn deviation(depth: usize) -> f32 {
    1.0 / (depth as f32).sqrt()
}

/// Small products, each with the result of the one before.
fn chain(n: usize) -> Case {
    const WEIGHTS: usize = 16;
    Case {
        name: format!("matmul f16 {n}^3 chain"),
        cost: cost(DType::F16, [n, n, n]),
        rate: Rate::Flops,
        bound: Bound::Matrix(DType::F16),
        prepare: Box::new(move |device| {
            let start = random(n, n, 1.0, DType::F16, RowMajor, device)?;
            let weights = (0..WEIGHTS).map(|_| random(n, n, deviation(n), DType::F16, RowMajor, device));
            let weights = weights.collect::<marquetry::Result<Vec<_>>>()?;
            let (x, w) = (start.clone(), weights[0].clone());
            Ok(Prepared::chain(
                start,
                move |link, x| x.matmul(&weights[link % weights.len()]),
                move |y| check_product(&x, &w, y),
            ))
        }),
    }
}
