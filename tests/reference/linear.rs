//! Matrix products and einsum.

use super::numbers::{summed, wrap};
use super::{ArrayD, IxDyn, array, broadcast, broadcast_shape};
use marquetry::{DType, Gemm, GemmStridedBatched, MatrixBatch, MatrixOrder};

/// What a [`Gemm`] holds.
#[derive(Debug, Clone, Copy)]
pub struct Product {
    pub trans_a: bool,
    pub trans_b: bool,
    pub alpha: f64,
    pub beta: f64,
}

impl Default for Product {
    fn default() -> Self {
        Product { trans_a: false, trans_b: false, alpha: 1.0, beta: 0.0 }
    }
}

impl Product {
    pub fn config(self) -> Gemm {
        Gemm::default().trans_a(self.trans_a).trans_b(self.trans_b).alpha(self.alpha).beta(self.beta)
    }
}

/// What a [`MatrixBatch`] holds.
#[derive(Debug, Clone, Copy)]
pub struct Matrices {
    pub leading: usize,
    pub stride: usize,
    pub offset: usize,
}

impl Matrices {
    pub fn config(self) -> MatrixBatch {
        MatrixBatch::new(self.leading).stride(self.stride).offset(self.offset)
    }
}

/// What a [`GemmStridedBatched`] holds.
#[derive(Debug, Clone, Copy)]
pub struct StridedProducts {
    pub product: Product,
    pub order: MatrixOrder,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub batch: usize,
    pub a: Matrices,
    pub b: Matrices,
    pub c: Matrices,
}

impl StridedProducts {
    pub fn config(self) -> GemmStridedBatched {
        GemmStridedBatched::new([self.m, self.n, self.k])
            .gemm(self.product.config())
            .order(self.order)
            .batch(self.batch)
            .a(self.a.config())
            .b(self.b.config())
            .c(self.c.config())
    }
}

/// The product as in numpy's `@`. For floats, also each element's sum of the magnitudes of its terms.
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

    // Row by row of `b`, in the order in which it is stored.
    let (mut values, mut magnitudes) = (Vec::new(), Vec::new());
    for row in 0..batch.iter().product::<usize>() * m {
        let factors = &a[row * k..][..k];
        let rows = b[row / m * k * n..].chunks(n.max(1));
        let terms = factors.iter().zip(rows);
        if dtype.is_float() {
            let (mut sums, mut scales) = (vec![0.0; n], vec![0.0; n]);
            for (a, row) in terms {
                for ((sum, scale), b) in sums.iter_mut().zip(&mut scales).zip(row) {
                    *sum += a * b;
                    *scale += (a * b).abs();
                }
            }
            values.extend(sums);
            magnitudes.extend(scales);
        } else {
            let mut sums = vec![0i64; n];
            for (a, row) in terms {
                for (sum, b) in sums.iter_mut().zip(row) {
                    *sum = sum.wrapping_add((*a as i64).wrapping_mul(*b as i64));
                }
            }
            values.extend(sums.into_iter().map(|sum| wrap(sum, summed(dtype))));
            magnitudes.extend(vec![0.0; n]);
        }
    }
    let mut shape = batch;
    shape.extend((!row).then_some(m).into_iter().chain((!column).then_some(n)));
    (array(&shape, values), array(&shape, magnitudes))
}

/// `alpha a b + beta c`, and the scale of its error: the magnitudes of the terms of `a b` and of `beta c`.
pub fn gemm(
    product: &(ArrayD<f64>, ArrayD<f64>),
    c: &ArrayD<f64>,
    Product { alpha, beta, .. }: Product,
    dtype: DType,
) -> (ArrayD<f64>, ArrayD<f64>) {
    // Where a factor is 0, so is the term, whatever it is made of.
    let times = |factor: f64, x: f64| if factor == 0.0 { 0.0 } else { factor * x };
    let values = super::zip(&product.0, c, |p, c| times(alpha, p) + times(beta, c));
    let values = if dtype.is_float() { values } else { values.mapv(|x| wrap(x as i64, dtype)) };
    let magnitudes = super::zip(&product.1, c, |p, c| times(alpha, p).abs() + times(beta, c).abs());
    (values, magnitudes)
}

/// The elements of `c` after a call, and the sum of the magnitudes of each element's terms.
pub fn gemm_strided_batched([a, b, c]: [&[f64]; 3], call: &StridedProducts, dtype: DType) -> (Vec<f64>, Vec<f64>) {
    let place = |at: Matrices, i: usize, row: usize, column: usize| {
        let (line, inside) = if call.order == MatrixOrder::RowMajor { (row, column) } else { (column, row) };
        at.offset + i * at.stride + line * at.leading + inside
    };
    let Product { trans_a, trans_b, alpha, beta } = call.product;
    let (mut values, mut magnitudes) = (c.to_vec(), vec![0.0; c.len()]);
    for i in 0..call.batch {
        for (row, column) in (0..call.m).flat_map(|row| (0..call.n).map(move |column| (row, column))) {
            let terms = (0..call.k).map(|j| {
                let left = if trans_a { place(call.a, i, j, row) } else { place(call.a, i, row, j) };
                let right = if trans_b { place(call.b, i, column, j) } else { place(call.b, i, j, column) };
                a[left] * b[right]
            });
            let at = place(call.c, i, row, column);
            let old = if beta == 0.0 { 0.0 } else { beta * c[at] };
            let sum = alpha * terms.clone().sum::<f64>() + old;
            values[at] = if dtype.is_float() { sum } else { wrap(sum as i64, dtype) };
            magnitudes[at] = alpha.abs() * terms.map(f64::abs).sum::<f64>() + old.abs();
        }
    }
    (values, magnitudes)
}

/// Sums of products over all indexes that the output does not name, and the sums of their magnitudes. The subscripts
/// must name the output: `ij,jk->ik`.
pub fn einsum(subscripts: &str, operands: &[&ArrayD<f64>], dtype: DType) -> (ArrayD<f64>, ArrayD<f64>) {
    let (inputs, output) = subscripts.split_once("->").expect("an output");
    let inputs: Vec<Vec<char>> = inputs.split(',').map(|term| term.chars().collect()).collect();
    let output: Vec<char> = output.chars().collect();
    let mut names: Vec<char> = output.clone();
    let others: Vec<char> = inputs.iter().flatten().copied().filter(|name| !output.contains(name)).collect();
    others.into_iter().for_each(|name| {
        if !names.contains(&name) {
            names.push(name);
        }
    });
    let length = |name: &char| {
        let axes = inputs.iter().zip(operands).flat_map(|(term, x)| term.iter().zip(x.shape()));
        axes.filter(|(other, _)| *other == name).map(|(_, &n)| n).fold(1, |known, n| if known == 1 { n } else { known })
    };
    let lengths: Vec<usize> = names.iter().map(length).collect();
    let shape = &lengths[..output.len()];
    let (mut values, mut magnitudes) = (ArrayD::zeros(IxDyn(shape)), ArrayD::<f64>::zeros(IxDyn(shape)));
    let mut integers = ArrayD::<i64>::zeros(IxDyn(shape));
    for index in ndarray::indices(lengths.clone()) {
        let at = |name: &char| index[names.iter().position(|other| other == name).expect("a name")];
        let factors = inputs.iter().zip(operands).map(|(term, x)| {
            let place: Vec<usize> =
                term.iter().zip(x.shape()).map(|(name, &n)| if n == 1 { 0 } else { at(name) }).collect();
            x[IxDyn(&place)]
        });
        let product: f64 = factors.clone().product();
        let place: Vec<usize> = output.iter().map(at).collect();
        values[IxDyn(&place)] += product;
        magnitudes[IxDyn(&place)] += product.abs();
        let product = factors.fold(1i64, |product, x| product.wrapping_mul(x as i64));
        integers[IxDyn(&place)] = integers[IxDyn(&place)].wrapping_add(product);
    }
    (if dtype.is_float() { values } else { integers.mapv(|x| wrap(x, dtype)) }, magnitudes)
}
