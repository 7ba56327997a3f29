//! General matrix products, `linear`, `dot` and `outer`.

use super::{FLOATS, numbers, shaped, summed};
use crate::compare::{Expected, Sample, check, upload};
use crate::full_tier;
use crate::layouts::Layout;
use crate::reference::inputs::{Domain, Inputs};
use crate::reference::linear::{Matrices, Product, StridedProducts, gemm, gemm_strided_batched, matmul};
use crate::reference::numbers::wrap;
use crate::reference::{ArrayD, array, zip};
use crate::suite::{Outcome, Suite};
use crate::tolerance::{EPS, EXACT, Table, Tolerance};
use marquetry::nn::Linear;
use marquetry::{DType, Device, Gemm, GemmStridedBatched, MatrixOrder, Tensor};

pub const TOLERANCES: Table = &[
    (
        &["gemm", "linear", "dot"],
        Tolerance {
            ulp: 0.5,
            of_scale: EPS,
            reason: "k products and additions, the factors, a sum: each within eps of the sum of magnitudes (the scale)",
            ..EXACT
        },
    ),
    (&["outer"], Tolerance { reason: "one product", ..EXACT }),
];

/// Factors that every dtype can hold.
const FACTORS: [[f64; 2]; 5] = [[1.0, 0.0], [1.0, 1.0], [2.0, 3.0], [3.0, 0.0], [0.0, 2.0]];

/// The number of roundings in a product of depth `k`, with two factors and a sum.
fn roundings(k: usize) -> f64 {
    k as f64 + 4.0
}

fn transposed(x: &Sample, transposed: bool) -> ArrayD<f64> {
    let mut values = x.values.clone();
    if transposed {
        let rank = values.ndim();
        values.swap_axes(rank - 2, rank - 1);
    }
    values
}

fn check_gemm(a: &Sample, b: &Sample, c: &Sample, product: Product) -> Outcome {
    let dtype = a.tensor.dtype();
    let (left, right) = (transposed(a, product.trans_a), transposed(b, product.trans_b));
    let depth = left.shape()[left.ndim() - 1];
    let (values, scale) = gemm(&matmul(&left, &right, dtype), &c.values, product, dtype);
    let expected = Expected::new(values, dtype).with_scale(scale * roundings(depth));
    let config = product.config();
    check("gemm", &a.tensor.gemm(&b.tensor, Some(&c.tensor), config)?, &expected)?;
    let batch = Tensor::gemm_batched(&[&a.tensor], &[&b.tensor], &[&c.tensor], config)?;
    check("gemm", &batch[0], &expected)
}

/// Matrices of 5 x 7 and 7 x 6, stored in the given layout.
fn operands(dtype: DType, product: Product, batch: &[usize], layout: Layout, device: &Device) -> Outcome<[Sample; 2]> {
    let shape =
        |rows, columns, transposed| [batch, &if transposed { [columns, rows] } else { [rows, columns] }].concat();
    let a = shaped("gemm a", &shape(5, 7, product.trans_a), layout, dtype, Domain::Normal, device)?;
    let b = shaped("gemm b", &shape(7, 6, product.trans_b), layout, dtype, Domain::Normal, device)?;
    Ok([a, b])
}

fn add_gemm(suite: &mut Suite) {
    use Layout::{Broadcast, Contiguous, Sliced, Transposed};
    for dtype in summed() {
        for (trans_a, trans_b) in [(false, false), (false, true), (true, false), (true, true)] {
            for [alpha, beta] in FACTORS {
                // The kernel of each kind of operands contains the factors and the sum, so one transposition tests them
                // all.
                if (trans_a, trans_b) != (false, true) && [alpha, beta] != [2.0, 3.0] && !full_tier() {
                    continue;
                }
                let product = Product { trans_a, trans_b, alpha, beta };
                suite.add("gemm", format!("{dtype}::{trans_a}_{trans_b}_{alpha}_{beta}"), move |device| {
                    let [a, b] = operands(dtype, product, &[], Contiguous, device)?;
                    check_gemm(&a, &b, &shaped("gemm c", &[5, 6], Contiguous, dtype, Domain::Normal, device)?, product)
                });
            }
        }
        let product = Product { alpha: 2.0, beta: 3.0, ..Product::default() };
        for (operand, addend) in [(Transposed, Contiguous), (Sliced, Transposed), (Broadcast, Sliced)] {
            suite.add("gemm", format!("{dtype}::{}_{}", operand.name(), addend.name()), move |device| {
                let [a, b] = operands(dtype, product, &[3], operand, device)?;
                check_gemm(&a, &b, &shaped("gemm c", &[3, 5, 6], addend, dtype, Domain::Normal, device)?, product)
            });
        }
        for (name, shape) in [("row", &[6][..]), ("column", &[5, 1]), ("number", &[]), ("batch", &[3, 1, 1])] {
            suite.add("gemm", format!("{dtype}::c_{name}"), move |device| {
                let [a, b] = operands(dtype, product, &[3], Contiguous, device)?;
                check_gemm(&a, &b, &shaped("gemm c", shape, Contiguous, dtype, Domain::Normal, device)?, product)
            });
        }
        for (name, a, b) in [("depth", [3, 0], [0, 4]), ("rows", [0, 3], [3, 4])] {
            suite.add("gemm", format!("{dtype}::no_{name}"), move |device| {
                let a = shaped("gemm a", &a, Contiguous, dtype, Domain::Normal, device)?;
                let b = shaped("gemm b", &b, Contiguous, dtype, Domain::Normal, device)?;
                check_gemm(&a, &b, &shaped("gemm c", &[4], Contiguous, dtype, Domain::Normal, device)?, product)
            });
        }
    }
    for dtype in summed().into_iter().filter(|dtype| dtype.is_float()) {
        suite.add("gemm", format!("{dtype}::fractions"), move |device| {
            // Factors that f16 cannot hold must not be rounded to it.
            let factors = [0.3, -1.7].map(|x: f64| f64::from(x as f32));
            let product = Product { alpha: factors[0], beta: factors[1], ..Product::default() };
            let [a, b] = operands(dtype, product, &[], Contiguous, device)?;
            check_gemm(&a, &b, &shaped("gemm c", &[5, 6], Contiguous, dtype, Domain::Normal, device)?, product)
        });
        suite.add("gemm", format!("{dtype}::not_read"), move |device| {
            // If beta is 0, NaN in c has no effect. If alpha is 0, NaN in a and b has no effect.
            let [a, b] = operands(dtype, Product::default(), &[], Contiguous, device)?;
            let nan = upload(&array(&[5, 6], vec![f64::NAN; 30]), dtype, device)?;
            let product = Gemm::default().alpha(2.0);
            let ones = Tensor::ones((5, 6), dtype, device)?;
            let expected = a.tensor.gemm(&b.tensor, None, product)?;
            let expected = Expected::new(crate::compare::download(&expected)?, dtype);
            check("outer", &a.tensor.gemm(&b.tensor, Some(&nan), product)?, &expected)?;
            let only_c = Gemm::default().alpha(0.0).beta(2.0);
            let wide = nan.narrow(1, 0, 5)?;
            let twos = Expected::new(array(&[5, 6], vec![2.0; 30]), dtype);
            check("outer", &wide.gemm(&nan, Some(&ones), only_c)?, &twos)?;
            let zeros = Expected::new(array(&[5, 6], vec![0.0; 30]), dtype);
            check("outer", &wide.gemm(&nan, Some(&nan), Gemm::default().alpha(0.0))?, &zeros)
        });
    }
    suite.add("gemm", "f32::many", |device| {
        let (mut a, mut b, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        for i in 1..6 {
            let left = shaped("many a", &[i, 7], Contiguous, DType::F32, Domain::Small, device)?;
            let right = shaped("many b", &[7, 6 - i], Contiguous, DType::F32, Domain::Small, device)?;
            expected.push(matmul(&left.values, &right.values, DType::F32).0);
            a.push(left.tensor);
            b.push(right.tensor);
        }
        let products = Tensor::gemm_batched(&a, &b, &[], Gemm::default())?;
        let mut pairs = products.iter().zip(expected);
        pairs.try_for_each(|(product, values)| check("outer", product, &Expected::new(values, DType::F32)))
    });
}

fn flat(name: &str, length: usize, dtype: DType) -> ArrayD<f64> {
    Inputs::new(name).array(&[length], dtype, Domain::Small)
}

/// A call with gaps between rows and matrices, before the first matrix and after the last.
fn call(order: MatrixOrder, trans: [bool; 2], factors: [f64; 2]) -> StridedProducts {
    let (m, n, k, batch) = (3, 4, 5, 2);
    let gaps = |rows: usize, columns: usize, transposed: bool, gap: usize| {
        let (rows, columns) = if transposed { (columns, rows) } else { (rows, columns) };
        let (lines, line) = if order == MatrixOrder::RowMajor { (rows, columns) } else { (columns, rows) };
        Matrices { leading: line + gap, stride: lines * (line + gap) + gap, offset: gap + 1 }
    };
    let product = Product { trans_a: trans[0], trans_b: trans[1], alpha: factors[0], beta: factors[1] };
    let [a, b, c] = [gaps(m, k, trans[0], 1), gaps(k, n, trans[1], 2), gaps(m, n, false, 3)];
    StridedProducts { product, order, m, n, k, batch, a, b, c }
}

fn check_call(call: StridedProducts, dtype: DType, device: &Device) -> Outcome {
    check_call_by(call, call.config(), dtype, device)
}

fn check_call_by(call: StridedProducts, config: GemmStridedBatched, dtype: DType, device: &Device) -> Outcome {
    let [a, b, c] = ["flat a", "flat b", "flat c"].map(|name| flat(name, 80, dtype));
    let slices = [&a, &b, &c].map(|x| x.as_slice().expect("a flat array"));
    let (values, scale) = gemm_strided_batched(slices, &call, dtype);
    let expected = Expected::new(array(&[80], values), dtype);
    let expected = expected.with_scale(array(&[80], scale) * roundings(call.k));
    let [a, b, original] = [upload(&a, dtype, device)?, upload(&b, dtype, device)?, upload(&c, dtype, device)?];
    // The result is a copy, because c has another holder.
    check("gemm", &Tensor::gemm_strided_batched(&a, &b, original.clone(), config)?, &expected)?;
    check("outer", &original, &Expected::new(c, dtype))?;
    // In other shapes, and in place.
    let (a, b) = (a.reshape((8, 10))?.t()?.contiguous()?.t()?, b.reshape((2, 40))?);
    let square = original.reshape((4, 20))?;
    drop(original);
    check("gemm", &Tensor::gemm_strided_batched(&a, &b, square, config)?, &expected.reshaped(&[4, 20]))
}

fn add_calls(suite: &mut Suite) {
    for dtype in summed() {
        for order in [MatrixOrder::RowMajor, MatrixOrder::ColumnMajor] {
            for trans in [[false, false], [false, true], [true, false], [true, true]] {
                let name = format!("{dtype}::{order:?}_{}_{}", trans[0], trans[1]).to_lowercase();
                suite.add("gemm_strided_batched", name, move |device| {
                    [[1.0, 0.0], [2.0, 3.0]]
                        .into_iter()
                        .try_for_each(|factors| check_call(call(order, trans, factors), dtype, device))
                });
            }
        }
        suite.add("gemm_strided_batched", format!("{dtype}::side_by_side"), move |device| {
            // One matrix a for all. The matrices b and c lie side by side in wide rows.
            let side = |width| Matrices { leading: 2 * width + 1, stride: width, offset: 0 };
            let a = Matrices { leading: 5, stride: 0, offset: 0 };
            let call =
                StridedProducts { a, b: side(4), c: side(4), ..call(MatrixOrder::RowMajor, [false; 2], [1.0, 2.0]) };
            check_call(call, dtype, device)
        });
        suite.add("gemm_strided_batched", format!("{dtype}::without_gaps"), move |device| {
            // Where matrices lie if a call does not say it.
            for order in [MatrixOrder::RowMajor, MatrixOrder::ColumnMajor] {
                let (m, n, k, batch) = (3, 4, 5, 2);
                let product = Product { trans_a: true, beta: 3.0, ..Product::default() };
                let lines = |rows, columns| if order == MatrixOrder::RowMajor { columns } else { rows };
                let dense =
                    |rows, columns| Matrices { leading: lines(rows, columns), stride: rows * columns, offset: 0 };
                let (a, b, c) = (dense(k, m), dense(k, n), dense(m, n));
                let config = GemmStridedBatched::new([m, n, k]).gemm(product.config()).order(order).batch(batch);
                check_call_by(StridedProducts { product, order, m, n, k, batch, a, b, c }, config, dtype, device)?;
            }
            Ok(())
        });
        for (name, m, k, batch) in [("no_rows", 0, 5, 2), ("no_depth", 3, 0, 2), ("no_batch", 3, 5, 0)] {
            suite.add("gemm_strided_batched", format!("{dtype}::{name}"), move |device| {
                let whole = call(MatrixOrder::RowMajor, [false; 2], [2.0, 3.0]);
                check_call(StridedProducts { m, k, batch, ..whole }, dtype, device)
            });
        }
    }
}

fn check_linear(x: &Sample, weight: &Sample, bias: Option<&Sample>) -> Outcome {
    let dtype = x.tensor.dtype();
    let (values, scale) = matmul(&x.values, &transposed(weight, true), dtype);
    let zero = array(&[], vec![0.0]);
    let bias_values = bias.map_or(&zero, |bias| &bias.values);
    let sum = zip(&values, bias_values, |x, bias| x + bias);
    let sum = if dtype.is_float() { sum } else { sum.mapv(|x| wrap(x as i64, dtype)) };
    let scale = zip(&scale, bias_values, |scale, bias| scale + bias.abs()) * roundings(weight.values.shape()[1]);
    let actual = x.tensor.linear(&weight.tensor, bias.map(|bias| &bias.tensor))?;
    check("linear", &actual, &Expected::new(sum.clone(), dtype).with_scale(scale.clone()))?;
    if !FLOATS.contains(&dtype) {
        return Ok(());
    }
    let layer = Linear::new(weight.tensor.clone(), bias.map(|bias| bias.tensor.clone()));
    check("linear", &layer.forward_f32(&x.tensor)?, &Expected::new(sum, DType::F32).with_scale(scale))
}

pub fn add(suite: &mut Suite) {
    use Layout::{Broadcast, Contiguous, Sliced, Transposed};
    add_gemm(suite);
    add_calls(suite);
    for dtype in summed() {
        for shape in [&[7][..], &[5, 7], &[2, 3, 7], &[3, 1, 7], &[0, 7], &[2, 70, 7]] {
            suite.add("linear", format!("{dtype}::{shape:?}"), move |device| {
                let x = shaped("linear", shape, Contiguous, dtype, Domain::Normal, device)?;
                let weight = shaped("linear weight", &[6, 7], Contiguous, dtype, Domain::Normal, device)?;
                let bias = shaped("linear bias", &[6], Contiguous, dtype, Domain::Normal, device)?;
                check_linear(&x, &weight, None)?;
                check_linear(&x, &weight, Some(&bias))
            });
        }
        for layout in [Transposed, Sliced, Broadcast] {
            suite.add("linear", format!("{dtype}::{}", layout.name()), move |device| {
                let x = shaped("linear", &[4, 5, 7], layout, dtype, Domain::Normal, device)?;
                let weight = shaped("linear weight", &[6, 7], layout, dtype, Domain::Normal, device)?;
                check_linear(&x, &weight, Some(&shaped("linear bias", &[6], layout, dtype, Domain::Normal, device)?))
            });
        }
        for (length, layout) in [(0, Contiguous), (1, Contiguous), (65, Sliced), (5000, Contiguous)] {
            suite.add("dot", format!("{dtype}::{length}"), move |device| {
                let a = shaped("dot left", &[length], layout, dtype, Domain::Normal, device)?;
                let b = shaped("dot right", &[length], Contiguous, dtype, Domain::Normal, device)?;
                let (values, scale) = matmul(&a.values, &b.values, dtype);
                let expected = Expected::new(values, dtype).with_scale(scale * roundings(length));
                check("dot", &a.tensor.dot(&b.tensor)?, &expected)
            });
        }
    }
    suite.add("dot", "f16::beyond_f16", |device| {
        // The products leave the range of f16, but the result does not.
        let a = upload(&array(&[3], vec![300.0, 300.0, -300.0]), DType::F16, device)?;
        let b = upload(&array(&[3], vec![300.0, 300.0, 599.0]), DType::F16, device)?;
        check("dot", &a.dot(&b)?, &Expected::new(array(&[], vec![300.0]), DType::F16))
    });
    for dtype in numbers() {
        for layout in [Contiguous, Sliced, Broadcast] {
            suite.add("outer", format!("{dtype}::{}", layout.name()), move |device| {
                let a = shaped("outer left", &[9], layout, dtype, Domain::Small, device)?;
                let b = shaped("outer right", &[5], layout, dtype, Domain::Small, device)?;
                let column = array(&[9, 1], a.values.iter().copied().collect());
                let expected = Expected::new(zip(&column, &b.values, |a, b| a * b), dtype);
                check("outer", &a.tensor.outer(&b.tensor)?, &expected)
            });
        }
    }
}
