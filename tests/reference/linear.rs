//! Matrix products.

use super::numbers::{summed, wrap};
use super::{ArrayD, array, broadcast, broadcast_shape};
use marquetry::DType;

/// The product as numpy's `@` has it, and for floats the sum of the magnitudes that each element is summed from.
pub fn matmul(a: &ArrayD<f64>, b: &ArrayD<f64>, dtype: DType) -> (ArrayD<f64>, ArrayD<f64>) {
    let (row, column) = (a.ndim() == 1, b.ndim() == 1);
    let a = if row { a.clone().insert_axis(super::Axis(0)) } else { a.clone() };
    let b = if column { b.clone().insert_axis(super::Axis(1)) } else { b.clone() };
    let (a_batch, a_matrix) = a.shape().split_at(a.ndim() - 2);
    let (b_batch, b_matrix) = b.shape().split_at(b.ndim() - 2);
    let (m, k, n) = (a_matrix[0], a_matrix[1], b_matrix[1]);
    let batch = broadcast_shape(a_batch, b_batch);
    let full = |matrix: [usize; 2]| [&batch[..], &matrix].concat();
    let (a, b) = (broadcast(&a, &full([m, k])), broadcast(&b, &full([k, n])));
    let (a, b): (Vec<f64>, Vec<f64>) = (a.iter().copied().collect(), b.iter().copied().collect());

    let (mut values, mut magnitudes) = (Vec::new(), Vec::new());
    for i in 0..batch.iter().product() {
        for (r, c) in (0..m).flat_map(|r| (0..n).map(move |c| (r, c))) {
            let terms = (0..k).map(|j| (a[(i * m + r) * k + j], b[(i * k + j) * n + c]));
            if dtype.is_float() {
                values.push(terms.clone().map(|(a, b)| a * b).sum());
                magnitudes.push(terms.map(|(a, b)| (a * b).abs()).sum());
            } else {
                let sum = terms.fold(0i64, |sum, (a, b)| sum.wrapping_add((a as i64).wrapping_mul(b as i64)));
                values.push(wrap(sum, summed(dtype)));
                magnitudes.push(0.0);
            }
        }
    }
    let mut shape = batch;
    shape.extend((!row).then_some(m).into_iter().chain((!column).then_some(n)));
    (array(&shape, values), array(&shape, magnitudes))
}
