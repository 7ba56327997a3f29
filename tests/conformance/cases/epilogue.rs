//! Matrix products with an elementwise epilogue, which the kernel of the product computes before it stores.

use super::{FLOATS, numbers, shaped};
use crate::compare::{Expected, Sample, check};
use crate::full_tier;
use crate::layouts::Layout;
use crate::reference::functions::gelu;
use crate::reference::inputs::Domain;
use crate::reference::linear::matmul;
use crate::reference::numbers::{cast, summed, wrap};
use crate::reference::{ArrayD, zip};
use crate::suite::{Outcome, Suite};
use marquetry::{DType, Device};

/// A product of small whole numbers, whose sums are exact, rounded to the dtype of the product.
fn product(shapes: [&[usize]; 2], dtype: DType, device: &Device) -> Outcome<[Sample; 3]> {
    let a = shaped("epilogue left", shapes[0], Layout::Contiguous, dtype, Domain::Small, device)?;
    let b = shaped("epilogue right", shapes[1], Layout::Contiguous, dtype, Domain::Small, device)?;
    let values = stored(matmul(&a.values, &b.values, dtype).0, summed(dtype));
    Ok([Sample { tensor: a.tensor.matmul(&b.tensor)?, values }, a, b])
}

/// Rounds exact numbers as a store to memory does.
fn stored(values: ArrayD<f64>, dtype: DType) -> ArrayD<f64> {
    values.mapv(|x| if dtype.is_float() { cast(x, DType::F64, dtype) } else { wrap(x as i64, dtype) })
}

/// `relu(a b + bias) * 3 - residual`. Each operation is rounded as if its result were stored.
fn chain(shapes: [&[usize]; 2], residual: Layout, dtype: DType, device: &Device) -> Outcome {
    let [product, ..] = product(shapes, dtype, device)?;
    let (shape, dtype) = (product.values.shape().to_vec(), summed(dtype));
    let columns = &shape[shape.len() - 1..];
    let bias = shaped("epilogue bias", columns, Layout::Contiguous, dtype, Domain::Small, device)?;
    let residual = shaped("epilogue residual", &shape, residual, dtype, Domain::Small, device)?;
    let biased = stored(zip(&product.values, &bias.values, |x, y| x + y), dtype);
    let scaled = stored(biased.mapv(|x| x.max(0.0) * 3.0), dtype);
    let values = stored(zip(&scaled, &residual.values, |x, y| x - y), dtype);
    let y = product.tensor.add(&bias.tensor)?.relu()?.mul(3)?.sub(&residual.tensor)?;
    drop(product);
    check("sub", &y, &Expected::new(values, dtype))
}

/// Results in other dtypes than the dtype of the product.
fn conversions(shapes: [&[usize]; 2], dtype: DType, device: &Device) -> Outcome {
    let results = [DType::F16, DType::I32, DType::U8, DType::Bool];
    for to in results {
        let [product, ..] = product(shapes, dtype, device)?;
        let from = summed(dtype);
        if to == DType::Bool {
            let values = product.values.mapv(|x| f64::from(x > 20.0));
            check("gt", &product.tensor.gt(20)?, &Expected::new(values, to))?;
        } else {
            let values = product.values.mapv(|x| cast(x, from, to));
            check("to_dtype", &product.tensor.to_dtype(to)?, &Expected::new(values, to))?;
        }
    }
    Ok(())
}

/// Uses a product several times, in this order, before it is dropped or read itself.
fn used_again(shapes: [&[usize]; 2], dtype: DType, device: &Device) -> Outcome {
    let [product, a, b] = product(shapes, dtype, device)?;
    let dtype = summed(dtype);
    let exact = |function: fn(f64) -> f64| Expected::new(stored(product.values.mapv(function), dtype), dtype);
    let (more, less) = (product.tensor.add(5)?, product.tensor.sub(7)?);
    let both = more.add(&less)?;
    check("add", &more, &exact(|x| x + 5.0))?;
    check("matmul", &product.tensor, &exact(|x| x))?;
    check("sub", &less, &exact(|x| x - 7.0))?;
    let sum = zip(&exact(|x| x + 5.0).values, &exact(|x| x - 7.0).values, |x, y| x + y);
    check("add", &both, &Expected::new(stored(sum, dtype), dtype))?;
    // Twice in one expression.
    let again = a.tensor.matmul(&b.tensor)?;
    check("add", &again.add(&again)?, &exact(|x| x + x))?;
    // First an expression over the product, then the product alone, then another expression.
    let again = a.tensor.matmul(&b.tensor)?;
    check("add", &again.add(1)?, &exact(|x| x + 1.0))?;
    check("matmul", &again, &exact(|x| x))?;
    check("add", &again.add(2)?, &exact(|x| x + 2.0))
}

/// Two products in one expression, and a product with its own transpose.
fn two_products(sizes: [usize; 2], dtype: DType, device: &Device) -> Outcome {
    let [rows, depth] = sizes;
    let [product, a, b] = product([&[rows, depth], &[depth, rows]], dtype, device)?;
    let dtype = summed(dtype);
    let other = a.tensor.matmul(&b.tensor)?.relu()?;
    let values = product.values.mapv(|x| x + x.max(0.0));
    let sum = product.tensor.add(&other)?;
    drop((product.tensor, other));
    check("add", &sum, &Expected::new(stored(values, dtype), dtype))?;
    let product = Sample { tensor: a.tensor.matmul(&b.tensor)?, values: product.values };
    let values = zip(&product.values, &product.values.view().reversed_axes().to_owned(), |x, y| x - y);
    check("sub", &product.tensor.sub(&product.tensor.t()?)?, &Expected::new(stored(values, dtype), dtype))?;
    // All of it in another shape, and then a part of it.
    let flat = product.tensor.reshape(rows * rows)?.neg()?.reshape((rows, rows))?;
    check("neg", &flat, &Expected::new(product.values.mapv(|x| -x), dtype))?;
    let again = a.tensor.matmul(&b.tensor)?;
    let part = product.values.slice_axis(ndarray::Axis(0), (..1).into()).mapv(|x| -x);
    check("neg", &again.narrow(0, 0, 1)?.neg()?, &Expected::new(part, dtype))
}

/// `gelu(x W^T + b)`, with one rounding of the sum.
fn activation(sizes: [usize; 3], dtype: DType, device: &Device) -> Outcome {
    let [m, k, n] = sizes;
    let x = shaped("epilogue x", &[m, k], Layout::Contiguous, dtype, Domain::Small, device)?;
    let weight = shaped("epilogue weight", &[n, k], Layout::Contiguous, dtype, Domain::Small, device)?;
    let bias = shaped("epilogue bias", &[n], Layout::Contiguous, dtype, Domain::Small, device)?;
    let exact = matmul(&x.values, &weight.values.view().reversed_axes().to_owned(), dtype).0;
    let linear = stored(zip(&exact, &bias.values, |x, y| x + y), dtype);
    let y = x.tensor.linear(&weight.tensor, Some(&bias.tensor))?.gelu()?;
    check("gelu", &y, &Expected::new(linear.mapv(gelu), dtype))
}

pub fn add(suite: &mut Suite) {
    use Layout::{Broadcast, Contiguous, Sliced, Transposed, Unaligned};
    const FOURS: [&[usize]; 2] = [&[10, 12], &[12, 8]];
    const ODD: [&[usize]; 2] = [&[7, 9], &[9, 5]];
    for dtype in numbers() {
        let often = [DType::F32, DType::F16].contains(&dtype) || full_tier();
        for (name, shapes, layout) in [
            ("fours", FOURS, Contiguous),
            ("fours", FOURS, Sliced),
            ("fours", FOURS, Broadcast),
            ("fours", FOURS, Unaligned),
            ("odd", ODD, Contiguous),
            ("odd", ODD, Transposed),
            ("batch", [&[3, 5, 8], &[3, 8, 12]], Contiguous),
            ("batch", [&[3, 5, 8], &[3, 8, 12]], Sliced),
            ("rows", [&[2, 68], &[68, 36]], Contiguous),
            ("columns", [&[36, 68], &[68, 1]], Contiguous),
            ("units_whole", [&[128, 256], &[256, 256]], Contiguous),
            ("units_overlapping", [&[145, 192], &[192, 328]], Contiguous),
            ("units_edges", [&[49, 48], &[48, 40]], Sliced),
            ("units_odd", [&[49, 48], &[48, 37]], Contiguous),
            ("units_deep", [&[48, 2048], &[2048, 64]], Contiguous),
        ] {
            let few = matches!((name, layout), ("fours", Contiguous) | ("odd", Transposed) | ("units_edges", _));
            if !(few || often) || name.starts_with("units") && dtype.size_in_bytes() > 2 {
                continue;
            }
            suite.add("matmul", format!("{dtype}::epilogue_{name}_{}", layout.name()), move |device| {
                chain(shapes, layout, dtype, device)
            });
        }
        if often {
            suite
                .add("matmul", format!("{dtype}::epilogue_used_again"), move |device| used_again(FOURS, dtype, device));
        }
        if often || dtype == DType::I8 {
            suite.add("matmul", format!("{dtype}::epilogue_to"), move |device| conversions(FOURS, dtype, device));
        }
        if dtype == DType::F32 {
            suite.add("matmul", format!("{dtype}::epilogue_odd_to"), move |device| conversions(ODD, dtype, device));
            suite.add("matmul", format!("{dtype}::epilogue_two_products"), move |device| {
                two_products([8, 12], dtype, device)
            });
        }
        if dtype == DType::F16 {
            suite.add("matmul", format!("{dtype}::epilogue_odd_used_again"), move |device| {
                used_again(ODD, dtype, device)
            });
            suite.add("matmul", format!("{dtype}::epilogue_units_used_again"), move |device| {
                used_again([&[130, 192], &[192, 264]], dtype, device)
            });
        }
        for (name, sizes) in [("fours", [10, 12, 8]), ("odd", [7, 9, 5]), ("units", [64, 64, 96])] {
            if FLOATS.contains(&dtype) && (name == "fours" || dtype == DType::F16) {
                suite.add("linear", format!("{dtype}::epilogue_gelu_{name}"), move |device| {
                    activation(sizes, dtype, device)
                });
            }
        }
    }
}
