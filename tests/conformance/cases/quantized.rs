//! Quantised weights. `scripts/quantized_reference.py` wrote the blocks and their numbers with the package `gguf`.

use super::normalize::{Layer, check_gated, check_normalized, rounding};
use super::{FLOATS, is_brief, shaped};
use crate::compare::{Expected, Sample, check, download, upload};
use crate::full_tier;
use crate::layouts::Layout;
use crate::reference::index::index_select;
use crate::reference::inputs::Domain;
use crate::reference::normalize::rms_norm;
use crate::reference::numbers::cast;
use crate::reference::{ArrayD, Axis, Slice, array, zip};
use crate::suite::{Outcome, Suite};
use crate::tolerance::{EPS, EXACT, Table, Tolerance};
use half::f16;
use marquetry::nn::{Gate, Linear};
use marquetry::{BlockFormat, DType, Device, QuantizedTensor, Tensor};
use safetensors::SafeTensors;

static DATA: &[u8] = include_bytes!("../../data/quantized.safetensors");

/// The bytes of an entry of the reference.
fn entry(name: &str) -> Vec<u8> {
    let file = SafeTensors::deserialize(DATA).expect("the reference can be read");
    file.tensor(name).expect("an entry of the reference").data().to_vec()
}

/// The numbers of an entry of the reference.
fn numbers(name: &str) -> Vec<f32> {
    entry(name).as_chunks().0.iter().map(|&four| f32::from_le_bytes(four)).collect()
}

/// The formats that the package `gguf` makes.
const QUANTIZED: [BlockFormat; 8] = [
    BlockFormat::Q4_0,
    BlockFormat::Q4_1,
    BlockFormat::Q5_0,
    BlockFormat::Q5_1,
    BlockFormat::Q8_0,
    BlockFormat::TQ1_0,
    BlockFormat::TQ2_0,
    BlockFormat::MXFP4,
];

/// A matrix of quantised weights, and its numbers.
struct Weights {
    tensor: QuantizedTensor,
    values: ArrayD<f64>,
}

/// Weights of this shape. If there are too few in the reference, they are repeated.
fn weights(format: BlockFormat, [rows, columns]: [usize; 2], device: &Device) -> Outcome<Weights> {
    let size = rows * columns / format.block_elements() * format.block_bytes();
    let bytes: Vec<u8> = entry(&format!("{format}.weights")).into_iter().cycle().take(size).collect();
    let values = numbers(&format!("{format}.weights.numbers")).into_iter().cycle().take(rows * columns);
    let values = array(&[rows, columns], values.map(f64::from).collect());
    Ok(Weights { tensor: QuantizedTensor::from_bytes(&bytes, format, (rows, columns), device)?, values })
}

/// The columns of a matrix with an odd number of blocks in a row.
fn columns(format: BlockFormat) -> usize {
    3 * format.block_elements()
}

/// The columns of a matrix whose rows lie together: whole pieces of four small blocks.
fn whole_columns(format: BlockFormat) -> usize {
    8 * format.block_elements()
}

/// Numbers of `f32`, rounded to a dtype.
fn rounded(values: &ArrayD<f64>, dtype: DType) -> ArrayD<f64> {
    values.mapv(|x| cast(x, DType::F32, dtype))
}

/// Every number must have the same bits, but NaN may be any.
fn check_bits(format: BlockFormat, device: &Device) -> Outcome {
    let (bytes, expected) = (entry(&format!("{format}.patterns")), numbers(&format!("{format}.patterns.numbers")));
    let tensor = QuantizedTensor::from_bytes(&bytes, format, expected.len(), device)?.dequantize(DType::F32)?;
    let values = array(&[expected.len()], expected.into_iter().map(f64::from).collect());
    check("dequantize", &tensor, &Expected::new(values, DType::F32))
}

/// The product with the rows of `weights`, the scale of its error, and the sums of magnitudes, each taken to be the
/// largest of its block. Digits between 1 and 2, a bias of up to 1.5 and an offset are added up apart. With two bits, a
/// scale is four times the largest number of its block, so their magnitudes are at most fifteen times that number.
///
/// Matrix units multiply vectors of `f16` by halves. The number, its offset, the scale and its product with
/// the digit are rounded to halves. The product is at most twice the largest number. Only those of `TQ2_0` are exact:
/// its digits are -1, 0, 1 and 2.
fn product(
    x: &ArrayD<f64>,
    weights: &ArrayD<f64>,
    format: BlockFormat,
    (dtype, device): (DType, &Device),
) -> [ArrayD<f64>; 3] {
    let columns = weights.shape()[1];
    let has_units = device.info().features.matrix_units.f16.is_some();
    let in_halves = has_units && dtype == DType::F16 && format != BlockFormat::TQ2_0;
    let halves = if in_halves { 6.0 * f64::from(f16::EPSILON) / 2.0 / EPS } else { 0.0 };
    let mut blocks = weights.clone();
    for mut row in blocks.rows_mut() {
        let row = row.as_slice_mut().expect("rows are contiguous");
        for block in row.chunks_mut(format.block_elements()) {
            let most = block.iter().fold(0f64, |most, x| most.max(x.abs()));
            block.fill(most);
        }
    }
    let shape = [&x.shape()[..x.ndim() - 1], &[weights.shape()[0]]].concat();
    let x: Vec<f64> = x.iter().copied().collect();
    let each = |weights: &ArrayD<f64>, term: &dyn Fn(f64) -> f64| {
        let weights: Vec<f64> = weights.iter().copied().collect();
        let sum = |x: &[f64], row: &[f64]| x.iter().zip(row).map(|(x, w)| term(x * w)).sum::<f64>();
        let sums = x.chunks(columns).flat_map(|x| weights.chunks(columns).map(|row| sum(x, row)).collect::<Vec<_>>());
        array(&shape, sums.collect())
    };
    let magnitudes = each(&blocks, &f64::abs);
    [each(weights, &|term| term), &magnitudes * (15.0 * (columns as f64 + 1.0) + halves), magnitudes]
}

fn check_product(x: &Sample, weights: &Weights) -> Outcome {
    check_found("matmul_quantized", &x.tensor.matmul_quantized(&weights.tensor)?, x, weights, None, x.tensor.dtype())
}

fn check_product_f32(x: &Sample, weights: &Weights) -> Outcome {
    check_found("matmul_quantized_f32", &x.tensor.matmul_quantized_f32(&weights.tensor)?, x, weights, None, DType::F32)
}

/// More than a few vectors must have met the packed numbers, or all of them the numbers in their own dtype.
fn check_found(
    op: &str,
    found: &Tensor,
    x: &Sample,
    weights: &Weights,
    bias: Option<&ArrayD<f64>>,
    output: DType,
) -> Outcome {
    let check = |numbers: &ArrayD<f64>| {
        let computed = (x.tensor.dtype(), x.tensor.device());
        let [mut values, mut scale, _] = product(&x.values, numbers, weights.tensor.format(), computed);
        if let Some(bias) = bias {
            values = zip(&values, bias, |y, b| y + b);
            scale = zip(&scale, bias, |scale, b| scale + b.abs());
        }
        check(op, found, &Expected::new(values, output).with_scale(scale))
    };
    let outcome = check(&weights.values);
    let are_few = x.values.len() / weights.values.shape()[1] <= 16;
    if outcome.is_ok() || are_few {
        return outcome;
    }
    check(&rounded(&weights.values, x.tensor.dtype()))
}

/// A product with an epilogue: `relu(x w^T) * 2 + residual`.
fn check_epilogue(x: &Sample, weights: &Weights, device: &Device) -> Outcome {
    let dtype = x.tensor.dtype();
    let y = x.tensor.matmul_quantized(&weights.tensor)?;
    let stored = array(y.dims(), download(&y)?.iter().copied().collect());
    drop(y);
    let residual = shaped("quantised residual", stored.shape(), Layout::Contiguous, dtype, Domain::Small, device)?;
    let relu = stored.mapv(|x| cast(x.max(0.0) * 2.0, DType::F64, dtype));
    let values = zip(&relu, &residual.values, |a, b| cast(a + b, DType::F64, dtype));
    let y = x.tensor.matmul_quantized(&weights.tensor)?.relu()?.mul(2)?.add(&residual.tensor)?;
    check("add", &y, &Expected::new(values, dtype))
}

/// Checks the sum of a product and a residual, and the norm of the sum, which the product's kernel may compute. The
/// product may be held, too.
fn check_norm_of_sum(format: BlockFormat, sizes: [usize; 3], dtype: DType, device: &Device) -> Outcome {
    let [count, outputs, columns] = sizes;
    let Weights { tensor, values } = weights(format, [outputs, columns], device)?;
    // Products of about 1.
    let length = (values.iter().map(|w| w * w).sum::<f64>() / outputs as f64).sqrt();
    let operand = |name: &str, shape: &[usize]| shaped(name, shape, Layout::Contiguous, dtype, Domain::Normal, device);
    let [x, residual] = [("quantised x", columns), ("quantised residual", outputs)]
        .map(|(name, columns)| operand(name, &[count, columns]));
    let (x, residual, weight) = (x?, residual?, operand("quantised norm", &[outputs])?);
    let x = upload(&x.values.mapv(|x| cast(x / length, DType::F64, dtype)), dtype, device)?;
    let product = x.matmul_quantized(&tensor)?;
    let stored = array(product.dims(), download(&product)?.iter().copied().collect());
    let sums = zip(&stored, &residual.values, |a, b| cast(a + b, DType::F64, dtype));
    let (normalized, scale) = rms_norm(&sums, &weight.values, 1e-5);
    for is_held in [false, true] {
        let product = x.matmul_quantized(&tensor)?;
        let sum = product.add(&residual.tensor)?;
        let held = is_held.then_some(product);
        let norm = sum.rms_norm(&weight.tensor, 1e-5)?;
        check("rms_norm", &norm, &Expected::new(normalized.clone(), dtype).with_scale(scale.clone()))?;
        for (tensor, expected) in [(Some(&sum), &sums), (held.as_ref(), &stored)] {
            tensor.map_or(Ok(()), |tensor| check("add", tensor, &Expected::new(expected.clone(), dtype)))?;
        }
    }
    Ok(())
}

fn check_linear(x: &Sample, weights: &Weights, device: &Device) -> Outcome {
    let dtype = x.tensor.dtype();
    let rows = weights.values.shape()[0];
    let bias = shaped("quantised bias", &[rows], Layout::Contiguous, dtype, Domain::Normal, device)?;
    let found = x.tensor.linear_quantized(&weights.tensor, Some(&bias.tensor))?;
    check_found("linear_quantized", &found, x, weights, Some(&bias.values), dtype)?;
    let layer = Linear::new(weights.tensor.clone(), bias.tensor.clone());
    let found = layer.forward_f32(&x.tensor)?;
    check_found("linear_quantized", &found, x, weights, Some(&bias.values), DType::F32)
}

/// Checks a layer whose input is normalised, with gates or without them.
fn check_around(format: BlockFormat, sizes: [usize; 3], gated: bool, dtype: DType, device: &Device) -> Outcome {
    let [rows, outputs, columns] = sizes;
    let Weights { tensor, values } = weights(format, [outputs * if gated { 2 } else { 1 }, columns], device)?;
    // Products of about 1.
    let squares = values.iter().map(|w| w * w).sum::<f64>() / outputs as f64;
    let operand = |name: &str, shape: &[usize]| -> Outcome<Sample> {
        let Sample { values, .. } = shaped(name, shape, Layout::Contiguous, dtype, Domain::Normal, device)?;
        let values = values.mapv(|x| cast(x / squares.sqrt(), DType::F64, dtype));
        Ok(Sample { tensor: upload(&values, dtype, device)?, values })
    };
    let [x, weight] = [operand("quantised x", &[rows, columns])?, operand("quantised norm", &[columns])?];
    let product = |rows: &ArrayD<f64>| {
        let [products, scale, magnitudes] = product(rows, &values, format, (dtype, device));
        // Rows of a norm within 8 eps, and products, may be rounded to the dtype.
        let rounded = magnitudes * (8.0 + rounding(dtype)) + products.mapv(|y| y.abs() * rounding(dtype));
        (products, scale + rounded)
    };
    let layer = Layer { linear: Linear::new(tensor, None), product: &product };
    if gated { check_gated(&layer, &x, &weight, Gate::Silu) } else { check_normalized(&layer, &x, &weight) }
}

/// Rows of a table, also by indexes out of range.
fn check_embedding(format: BlockFormat, dtype: DType, index: DType, device: &Device) -> Outcome {
    let weights = weights(format, [5, columns(format)], device)?;
    let ids = array(&[2, 3], vec![4.0, 0.0, 5.0, 1.0, 1.0, 200.0]);
    let ids = Layout::Contiguous.place(ids, index, device)?;
    let flat = array(&[6], ids.values.iter().copied().collect());
    let rows = index_select(&rounded(&weights.values, dtype), &flat, 0, dtype);
    let expected = Expected::new(array(&[2, 3, columns(format)], rows.into_iter().collect()), dtype);
    check("embedding", &weights.tensor.embedding(&ids.tensor, dtype)?, &expected)
}

/// Parts along the first axis, also parts of parts and none. Their rows are among others that lie together with them.
fn check_narrow(format: BlockFormat, device: &Device) -> Outcome {
    let columns = whole_columns(format);
    let Weights { tensor, values } = weights(format, [37, columns], device)?;
    let part = tensor.narrow(1, 35)?.narrow(2, 18)?;
    let expected = values.slice_axis(Axis(0), Slice::from(3..21)).to_owned();
    check("dequantize", &part.dequantize(DType::F32)?, &Expected::new(expected.clone(), DType::F32))?;
    for vectors in [2, 33] {
        let x = shaped("quantised x", &[vectors, columns], Layout::Contiguous, DType::F32, Domain::Normal, device)?;
        check_product(&x, &Weights { tensor: part.clone(), values: expected.clone() })?;
    }
    let none = tensor.narrow(37, 0)?;
    check("dequantize", &none.dequantize(DType::F16)?, &Expected::new(array(&[0, columns], vec![]), DType::F16))
}

/// Rows so long that few of them are uploaded at a time, and that few or none lie together.
fn check_long_rows(format: BlockFormat, blocks: usize, device: &Device) -> Outcome {
    let Weights { tensor, values } = weights(format, [5, blocks * format.block_elements()], device)?;
    let expected = values.slice_axis(Axis(0), Slice::from(1..3)).to_owned();
    check("dequantize", &tensor.narrow(1, 2)?.dequantize(DType::F32)?, &Expected::new(expected, DType::F32))
}

/// The blocks must be those of the reference. Their numbers tell: equal scales and integers give equal numbers.
fn check_quantize(format: BlockFormat, device: &Device) -> Outcome {
    let (blocks, inputs) = (entry(&format!("{format}.quantized")), numbers("inputs"));
    // Three blocks in a row, and whole pieces.
    for columns in [columns(format), 256] {
        let shape = [inputs.len() / columns, columns];
        let count = shape[0] * columns;
        let (inputs, blocks) = (&inputs[..count], &blocks[..count / format.block_elements() * format.block_bytes()]);
        let x = Tensor::from_slice(inputs, shape, device)?;
        let expected = QuantizedTensor::from_bytes(blocks, format, shape, device)?.dequantize(DType::F32)?;
        let expected = Expected::new(download(&expected)?, DType::F32);
        check("quantize", &x.quantize(format)?.dequantize(DType::F32)?, &expected)?;
        // The same from elements that are not contiguous.
        let x = Tensor::from_slice(inputs, shape, device)?.t()?.contiguous()?.t()?;
        check("quantize", &x.quantize(format)?.dequantize(DType::F32)?, &expected)?;
    }
    Ok(())
}

pub const TOLERANCES: Table = &[
    (&["dequantize", "quantize"], Tolerance { reason: "rounded once, as the reference in Python", ..EXACT }),
    (
        &["matmul_quantized", "matmul_quantized_f32", "linear_quantized"],
        Tolerance {
            ulp: 0.5,
            of_scale: EPS,
            reason: "k products and additions, within eps of the sum of magnitudes; halves on matrix units",
            ..EXACT
        },
    ),
];

pub fn add(suite: &mut Suite) {
    let full = full_tier();
    for format in BlockFormat::ALL {
        suite.add("dequantize", format!("{format}::patterns"), move |device| check_bits(format, device));
        // In the quick tier every format has a kernel for a vector. One, with scales of few bits and an offset, has the
        // others: compilers take long.
        let telling = full || format == BlockFormat::Q4_K;
        // The lanes of a software device load halves for four times sixteen numbers at once, if a unit has as many.
        let has_four = |dtype| dtype == DType::F16 && format == BlockFormat::Q6_K;
        for dtype in FLOATS.into_iter().filter(|&dtype| dtype == DType::F32 || telling || has_four(dtype)) {
            add_products(suite, format, dtype, telling && !is_brief(dtype));
        }
        // Ternary numbers and vectors of whole ones are what `nn::BitLinear` multiplies.
        for dtype in FLOATS.into_iter().filter(|_| telling || format == BlockFormat::TQ2_0) {
            for (count, rows) in [(1, 11), (2, 16), (33, 12)] {
                suite.add("matmul_quantized_f32", format!("{format}::{dtype}_{count}"), move |device| {
                    let shape = [count, columns(format)];
                    let x = shaped("quantised x", &shape, Layout::Contiguous, dtype, Domain::Normal, device)?;
                    check_product_f32(&x, &weights(format, [rows, columns(format)], device)?)
                });
            }
        }
        if telling || format == BlockFormat::Q8_0 {
            suite.add("dequantize", format!("{format}::parts"), move |device| check_narrow(format, device));
        }
        if !telling {
            continue;
        }
        let indexes: &[DType] = if full { &[DType::U32, DType::I32, DType::U8, DType::I64] } else { &[DType::U32] };
        for &index in indexes {
            for dtype in FLOATS.into_iter().filter(|&dtype| full || dtype == DType::F32) {
                suite.add("embedding", format!("quantised::{format}::{dtype}_{index}"), move |device| {
                    check_embedding(format, dtype, index, device)
                });
            }
        }
    }
    // Two rows lie together, then one.
    suite.add("dequantize", "long_rows", |device| check_long_rows(BlockFormat::Q8_0, 40_004, device));
    if full {
        suite.add("dequantize", "longer_rows", |device| check_long_rows(BlockFormat::TQ2_0, 33_001, device));
    }
    for format in QUANTIZED {
        suite.add("quantize", format!("{format}"), move |device| check_quantize(format, device));
    }
    suite.add("matmul_quantized", "no_vectors", |device| {
        let weights = weights(BlockFormat::Q4_0, [3, 32], device)?;
        let x = Tensor::zeros((0, 32), DType::F32, device)?;
        check(
            "matmul_quantized",
            &x.matmul_quantized(&weights.tensor)?,
            &Expected::new(array(&[0, 3], vec![]), DType::F32),
        )
    });
}

fn add_products(suite: &mut Suite, format: BlockFormat, dtype: DType, telling: bool) {
    suite.add("dequantize", format!("{format}::{dtype}"), move |device| {
        let weights = weights(format, [3, columns(format)], device)?;
        let expected = Expected::new(rounded(&weights.values, dtype), dtype);
        check("dequantize", &weights.tensor.dequantize(dtype)?, &expected)
    });
    let counts: &[usize] = match dtype {
        _ if full_tier() => &[1, 2, 5, 16, 33, 200],
        DType::F32 if telling => &[1, 33],
        DType::F32 => &[1],
        _ => &[2],
    };
    for &count in counts {
        suite.add("matmul_quantized", format!("{format}::{dtype}_{count}"), move |device| {
            let columns = if count == 1 { whole_columns(format) } else { columns(format) };
            let x = shaped("quantised x", &[count, columns], Layout::Contiguous, dtype, Domain::Normal, device)?;
            check_product(&x, &weights(format, [37, columns], device)?)
        });
    }
    if !telling {
        return;
    }
    // So many rows that workgroups take turns.
    suite.add("matmul_quantized", format!("{format}::{dtype}_1_many_rows"), move |device| {
        let x = shaped("quantised x", &[1, columns(format)], Layout::Contiguous, dtype, Domain::Normal, device)?;
        check_product(&x, &weights(format, [17_005, columns(format)], device)?)
    });
    for layout in [Layout::Transposed, Layout::Sliced, Layout::Unaligned, Layout::Pending] {
        // More than 16 rows and columns fill tiles.
        for (count, rows) in [(2, 12), (33, 20)] {
            suite.add("matmul_quantized", format!("{format}::{dtype}_{count}_{}", layout.name()), move |device| {
                let x = shaped("quantised x", &[count, columns(format)], layout, dtype, Domain::Normal, device)?;
                check_product(&x, &weights(format, [rows, columns(format)], device)?)
            });
        }
    }
    for (name, shape, rows) in [("vector", vec![columns(format)], 9), ("batch", vec![2, 1, 2, columns(format)], 8)] {
        suite.add("matmul_quantized", format!("{format}::{dtype}_{name}"), move |device| {
            let x = shaped("quantised x", &shape, Layout::Contiguous, dtype, Domain::Normal, device)?;
            check_product(&x, &weights(format, [rows, columns(format)], device)?)
        });
    }
    for (count, outputs) in [(1, 40), (2, 13), (5, 20), (12, 20), (17, 8)] {
        for (op, gated) in [("gated", true), ("forward_norm", false)] {
            suite.add(op, format!("{dtype}::{format}_{count}_{outputs}"), move |device| {
                // The bound grows with the square of the columns.
                let columns = if format.block_elements() == 32 { whole_columns(format) } else { columns(format) };
                check_around(format, [count, outputs, columns], gated, dtype, device)
            });
        }
    }
    for (count, rows) in [(1, 11), (2, 16), (33, 19), (33, 20)] {
        suite.add("matmul_quantized", format!("{format}::{dtype}_{count}_epilogue_{rows}"), move |device| {
            let shape = [count, columns(format)];
            let x = shaped("quantised x", &shape, Layout::Contiguous, dtype, Domain::Normal, device)?;
            check_epilogue(&x, &weights(format, [rows, columns(format)], device)?, device)
        });
    }
    for (count, outputs) in [(1, 40), (1, 4104), (1, 12), (2, 24)] {
        suite.add("rms_norm", format!("{dtype}::of_sum_{format}_{count}_{outputs}"), move |device| {
            check_norm_of_sum(format, [count, outputs, columns(format)], dtype, device)
        });
    }
    for (count, rows) in [(2, 7), (2, 8), (33, 20)] {
        suite.add("linear_quantized", format!("{format}::{dtype}_{count}_{rows}"), move |device| {
            let shape = [count, columns(format)];
            let x = shaped("quantised x", &shape, Layout::Contiguous, dtype, Domain::Normal, device)?;
            check_linear(&x, &weights(format, [rows, columns(format)], device)?, device)
        });
    }
}
