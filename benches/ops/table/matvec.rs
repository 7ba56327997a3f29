//! Vectors times the weights of a model, one after the other, as a language model does for a token or a few.

use super::Sizes;
use super::matmul::{Order, deviation, random};
use crate::case::{Bound, Case, Cost, Prepared, Rate};
use crate::close::check_product;
use marquetry::DType;

pub fn cases(sizes: &Sizes) -> Vec<Case> {
    let orders = [Order::RowMajor, Order::Transposed];
    let one = sizes.layers.into_iter().flat_map(|columns| orders.map(|order| case(sizes, 1, columns, order)));
    one.chain(orders.map(|order| case(sizes, 8, sizes.layers[1], order))).collect()
}

/// Products from the model's width to the layer's and back again, with other weights each time.
fn case(sizes: &Sizes, rows: usize, columns: usize, order: Order) -> Case {
    let width = sizes.width;
    let elements = width * columns;
    let count = sizes.distinct(2 * elements).next_multiple_of(2);
    let transposed = if order == Order::Transposed { "^T" } else { "" };
    let many = if rows == 1 { String::new() } else { format!("{rows}x") };
    Case {
        name: format!("matvec f16 {many}{width}->{columns} W{transposed} chain"),
        cost: Cost { flops: 2.0 * (rows * elements) as f64, bytes: 2.0 * (elements + rows * (width + columns)) as f64 },
        rate: Rate::Bytes,
        bound: Bound::Fma,
        prepare: Box::new(move |device| {
            let start = random(rows, width, 1.0, DType::F16, Order::RowMajor, device)?;
            let weight = |number: usize| {
                let (depth, columns) = if number.is_multiple_of(2) { (width, columns) } else { (columns, width) };
                random(depth, columns, deviation(depth), DType::F16, order, device)
            };
            let weights = (0..count).map(weight).collect::<marquetry::Result<Vec<_>>>()?;
            let (x, w) = (start.clone(), weights[0].clone());
            Ok(Prepared::chain(
                start,
                move |link, x| x.matmul(&weights[link % weights.len()]),
                move |y| check_product(&x, &w, y),
            ))
        }),
    }
}
