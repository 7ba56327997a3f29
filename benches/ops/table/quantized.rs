//! Rows times quantised weights: one row after the other, as for a token, and many at once, as for a prompt.

use super::Sizes;
use super::matmul::{Order, deviation, random};
use crate::case::{Bound, Case, Cost, Prepared, Rate};
use crate::close::check_product;
use half::f16;
use marquetry::{BlockFormat, DType, Device, QuantizedTensor, Result};

/// The formats that are measured, and where their blocks have halves.
const FORMATS: [(BlockFormat, &[usize]); 4] =
    [(BlockFormat::Q4_0, &[0]), (BlockFormat::Q8_0, &[0]), (BlockFormat::Q4_K, &[0, 2]), (BlockFormat::TQ2_0, &[64])];

pub fn cases(sizes: &Sizes) -> Vec<Case> {
    let mut cases = Vec::new();
    for (format, halves) in FORMATS {
        for columns in sizes.layers {
            cases.push(chain(sizes, format, halves, 1, columns));
        }
        cases.push(chain(sizes, format, halves, 8, sizes.layers[1]));
        cases.push(prompt(sizes, format, halves));
    }
    cases
}

/// Returns weights of a layer `rows -> columns`, of about the size at which numbers keep theirs.
fn weight(
    format: BlockFormat,
    halves: &[usize],
    [rows, columns]: [usize; 2],
    device: &Device,
) -> Result<QuantizedTensor> {
    let each = format.block_bytes();
    let mut bytes = vec![0; rows * columns / format.block_elements() * each];
    // Knuth's multiplicative hash.
    for (i, byte) in (0u32..).zip(&mut bytes) {
        *byte = (i.wrapping_mul(2_654_435_761) >> 21) as u8;
    }
    let scale = f16::from_f32(deviation(rows) / format.block_elements() as f32).to_le_bytes();
    for block in bytes.chunks_mut(each) {
        for &half in halves {
            block[half..half + 2].copy_from_slice(&scale);
        }
    }
    QuantizedTensor::from_bytes(&bytes, format, (columns, rows), device)
}

/// Products of a few rows from the model's width to the layer's and back again, with other weights each time.
fn chain(sizes: &Sizes, format: BlockFormat, halves: &'static [usize], rows: usize, columns: usize) -> Case {
    let width = sizes.width;
    let elements = width * columns;
    let size = elements / format.block_elements() * format.block_bytes();
    let count = sizes.distinct(size).next_multiple_of(2);
    Case {
        name: format!("matvec {format} {rows}x{width}->{columns} chain"),
        cost: Cost { flops: 2.0 * (rows * elements) as f64, bytes: (size + 2 * rows * (width + columns)) as f64 },
        rate: Rate::Bytes,
        bound: Bound::Fma,
        prepare: Box::new(move |device| {
            let start = random(rows, width, 1.0, DType::F16, Order::RowMajor, device)?;
            let weight = |number: usize| {
                let shape = if number.is_multiple_of(2) { [width, columns] } else { [columns, width] };
                weight(format, halves, shape, device)
            };
            let weights = (0..count).map(weight).collect::<Result<Vec<_>>>()?;
            let (x, w) = (start.clone(), weights[0].clone());
            Ok(Prepared::chain(
                start,
                move |link, x| x.matmul_quantized(&weights[link % weights.len()]),
                move |y| check_product(&x, &w.dequantize(DType::F32)?.t()?, y),
            ))
        }),
    }
}

/// A layer of a model on the rows of a prompt.
fn prompt(sizes: &Sizes, format: BlockFormat, halves: &'static [usize]) -> Case {
    let (rows, width) = (sizes.rows, sizes.width);
    let size = width * width / format.block_elements() * format.block_bytes();
    let count = sizes.distinct(size);
    Case {
        name: format!("matmul {format} {rows}x{width} @ {width}x{width}"),
        cost: Cost { flops: 2.0 * (rows * width * width) as f64, bytes: (size + 4 * rows * width) as f64 },
        rate: Rate::Flops,
        bound: Bound::Matrix(DType::F16),
        prepare: Box::new(move |device| {
            let x = random(rows, width, 1.0, DType::F16, Order::RowMajor, device)?;
            let weights = (0..count).map(|_| weight(format, halves, [width, width], device));
            let weights = weights.collect::<Result<Vec<_>>>()?;
            let (left, w) = (x.clone(), weights[0].clone());
            Ok(Prepared::alone(
                move |run| x.matmul_quantized(&weights[run % weights.len()]),
                move |y| check_product(&left, &w.dequantize(DType::F16)?.t()?, y),
            ))
        }),
    }
}
