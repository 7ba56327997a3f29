//! Products from registers alone: each invocation computes eight rows of some columns.

use super::{Matmul, Output, ProductBlock};
use crate::kernels::encoding::Width;
use crate::shader::Value;

const ROWS: u32 = 8;

/// Invocations per workgroup.
pub const WORKGROUP: u32 = 32;

/// Rows and columns of a workgroup's block.
pub const fn block(columns: u32) -> [u32; 2] {
    [ROWS, columns * WORKGROUP]
}

pub fn write<'k>(p: &ProductBlock<'k>, config: &Matmul, width: u32) {
    let k = p.k;
    let (a, b) = (p.loader(config.a, "a", Width::One), p.loader(config.b, "b", Width::One));
    let y = Output::new(p, config);
    let rows: Vec<_> = (0..ROWS).map(|r| p.first_row + r).collect();
    let columns: Vec<_> = (0..width).map(|c| p.first_column + k.local_index() + c * WORKGROUP).collect();
    // Rows and columns beyond the edge repeat the last one; they are not stored.
    let clamp = |place: Value<'k>, length: Value<'k>| place.min(length - 1);
    let zero = k.u32(0);
    let a_rows: Vec<_> = rows.iter().map(|&row| p.a.index(clamp(row, p.m), zero)).collect();
    let b_columns: Vec<_> = columns.iter().map(|&column| p.b.index(zero, clamp(column, p.n))).collect();
    let sums: Vec<_> = (0..ROWS * width).map(|_| k.var(k.number(p.accumulator, 0))).collect();
    k.for_range(0, p.depth, |i| {
        let (a_step, b_step) = (i * p.a.column_stride, i * p.b.row_stride);
        let b: Vec<_> = b_columns.iter().map(|&column| b.load(column + b_step)).collect();
        for (&row, sums) in a_rows.iter().zip(sums.chunks(width as usize)) {
            let a = a.load(row + a_step);
            for (sum, &b) in sums.iter().zip(&b) {
                sum.set(p.add_product(sum.get(), a, b));
            }
        }
    });
    let beside: Vec<_> = columns.iter().map(|&column| y.columns(p, column)).collect();
    for (&row, sums) in rows.iter().zip(sums.chunks(width as usize)) {
        for ((&column, beside), sum) in columns.iter().zip(&beside).zip(sums) {
            let inside = p.is_inside(row, column);
            k.when(inside, || {
                let beside = y.load(p, beside, |_| [row, column]);
                y.store(p, sum.get(), &beside, [row, column]);
            });
        }
    }
}
