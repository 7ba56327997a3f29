//! Rows times quantised weights: one row after the other, as for a token, and many at once, as for a prompt.

use super::Sizes;
use super::matmul::{Order, deviation, random};
use crate::case::{Bound, Case, Cost, Prepared, Rate};
use crate::close::check_product;
use half::f16;
use marquetry::{BlockFormat, DType, Device, QuantizedTensor, Result};

/// How weights of a format are made of random bytes, so that a product has numbers of about its vector's size.
pub struct Filling {
    pub format: BlockFormat,
    /// Where a block has halves that its numbers are multiples of.
    scales: &'static [usize],
    /// What other bytes are: scales of one size, so that the numbers of each block are.
    others: &'static [(usize, &'static [u8])],
    /// Replaces a byte, so that the mean of its digits is 0.
    digits: fn(u8) -> u8,
    /// The standard deviation of the numbers, as multiples of a scale of 1.
    deviation: f32,
}

/// The formats that are measured.
pub const FILLINGS: [Filling; 4] = [
    Filling {
        format: BlockFormat::Q4_0,
        scales: &[0],
        others: &[],
        // -7 to 7 instead of -8 to 7.
        digits: |byte| byte | if byte & 0xf == 0 { 0x08 } else { 0 } | if byte >> 4 == 0 { 0x80 } else { 0 },
        deviation: 4.18,
    },
    Filling { format: BlockFormat::Q8_0, scales: &[0], others: &[], digits: |byte| byte, deviation: 73.9 },
    // Each eighth has the scale 2 and the minimum 15: numbers are `2 (q - 7.5)`.
    Filling {
        format: BlockFormat::Q4_K,
        scales: &[0, 2],
        others: &[(4, &[2, 2, 2, 2, 15, 15, 15, 15, 0xf2, 0xf2, 0xf2, 0xf2])],
        digits: |byte| byte,
        deviation: 9.22,
    },
    Filling {
        format: BlockFormat::TQ2_0,
        scales: &[64],
        others: &[],
        // -1 to 1: the digit 3 becomes 1.
        digits: |byte| byte & !((byte & (byte >> 1) & 0x55) << 1),
        deviation: 0.707,
    },
];

impl Filling {
    /// Returns the blocks of weights of a layer `rows -> columns`.
    pub fn blocks(&self, [rows, columns]: [usize; 2]) -> Vec<u8> {
        let each = self.format.block_bytes();
        let mut bytes = vec![0; rows * columns / self.format.block_elements() * each];
        fastrand::Rng::with_seed(1).fill(&mut bytes);
        let scale = f16::from_f32(deviation(rows) / self.deviation).to_le_bytes();
        for block in bytes.chunks_mut(each) {
            block.iter_mut().for_each(|byte| *byte = (self.digits)(*byte));
            for &at in self.scales {
                block[at..at + 2].copy_from_slice(&scale);
            }
            for &(at, others) in self.others {
                block[at..at + others.len()].copy_from_slice(others);
            }
        }
        bytes
    }

    fn weight(&self, [rows, columns]: [usize; 2], device: &Device) -> Result<QuantizedTensor> {
        QuantizedTensor::from_bytes(&self.blocks([rows, columns]), self.format, (columns, rows), device)
    }
}

pub fn cases(sizes: &Sizes) -> Vec<Case> {
    let mut cases = Vec::new();
    for filling in &FILLINGS {
        for columns in sizes.layers {
            cases.push(chain(sizes, filling, 1, columns));
        }
        cases.push(chain(sizes, filling, 8, sizes.layers[1]));
        cases.push(prompt(sizes, filling));
    }
    cases
}

/// Products of a few rows from the model's width to the layer's and back again, with other weights each time.
fn chain(sizes: &Sizes, filling: &'static Filling, rows: usize, columns: usize) -> Case {
    let format = filling.format;
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
                filling.weight(shape, device)
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
fn prompt(sizes: &Sizes, filling: &'static Filling) -> Case {
    let format = filling.format;
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
            let weights = (0..count).map(|_| filling.weight([width, width], device));
            let weights = weights.collect::<Result<Vec<_>>>()?;
            let (left, w) = (x.clone(), weights[0].clone());
            Ok(Prepared::alone(
                move |run| x.matmul_quantized(&weights[run % weights.len()]),
                move |y| check_product(&left, &w.dequantize(DType::F16)?.t()?, y),
            ))
        }),
    }
}
