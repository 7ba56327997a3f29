//! The products of a token of a language model, one after the other: in each layer queries, keys and values, the output
//! of the attention, gate and up, and down, and at the end the logits. Nothing else of the model is there.

use super::Sizes;
use super::matmul::{Order, random};
use super::quantized::{FILLINGS, Filling};
use crate::case::{Bound, Case, Cost, Prepared, Rate};
use crate::close::{numbers, rounding};
use anyhow::ensure;
use marquetry::{BlockFormat, DType, Device, QuantizedTensor, Result, Tensor};
use std::rc::Rc;

/// The sizes of a model.
#[derive(Clone, Copy)]
pub struct Model {
    pub name: &'static str,
    pub layers: usize,
    pub width: usize,
    /// The width of the keys and values.
    pub keys: usize,
    pub inner: usize,
    pub vocabulary: usize,
}

/// The weights of a layer. The matrices that multiply the same vector are one.
struct Layer {
    queries_keys_values: QuantizedTensor,
    out: QuantizedTensor,
    gate_up: QuantizedTensor,
    down: QuantizedTensor,
}

impl Model {
    /// The shapes `[out, in]` of a layer's matrices.
    fn layer(self) -> [[usize; 2]; 4] {
        let Model { width, keys, inner, .. } = self;
        [[width + 2 * keys, width], [width, width], [2 * inner, width], [width, inner]]
    }

    fn weights(self) -> usize {
        let layer: usize = self.layer().iter().map(|[rows, columns]| rows * columns).sum();
        self.layers * layer + self.vocabulary * self.width
    }
}

pub fn cases(sizes: &Sizes) -> Vec<Case> {
    let four_bits = |filling: &&Filling| matches!(filling.format, BlockFormat::Q4_0 | BlockFormat::Q4_K);
    FILLINGS.iter().filter(four_bits).map(|filling| case(sizes.model, filling)).collect()
}

fn case(model: Model, filling: &'static Filling) -> Case {
    let format = filling.format;
    let (weights, elements) = (model.weights(), format.block_elements());
    let size = weights / elements * format.block_bytes();
    Case {
        name: format!("decode {format} {}, products", model.name),
        cost: Cost { flops: 2.0 * weights as f64, bytes: size as f64 },
        rate: Rate::Bytes,
        bound: Bound::Fma,
        prepare: Box::new(move |device| {
            let start = random(1, model.width, 1.0, DType::F16, Order::RowMajor, device)?;
            let (layers, head) = load(model, filling, device)?;
            let (layers, head) = (Rc::new(layers), Rc::new(head));
            let (own, last, x) = (layers.clone(), head.clone(), start.clone());
            let check = move |y: &Tensor| {
                let times = |x: &Tensor, w: &QuantizedTensor| x.matmul(&w.dequantize(DType::F32)?.t()?);
                let exact = token(model, (&own, &last), &x.to_dtype(DType::F32)?, &times)?;
                ensure_near(&numbers(y)?, &numbers(&exact)?, model.layers)
            };
            let link = move |_, x: &Tensor| {
                let x = x.narrow(1, 0, model.width)?;
                token(model, (&layers, &head), &x, &|x, w| x.matmul_quantized(w))
            };
            Ok(Prepared::chain(start, link, check))
        }),
    }
}

/// Returns weights of a model. Matrices of a shape have the same numbers, in memory of their own.
fn load(model: Model, filling: &Filling, device: &Device) -> Result<(Vec<Layer>, QuantizedTensor)> {
    let bytes = model.layer().map(|[rows, columns]| filling.blocks([columns, rows]));
    let matrix = |i: usize| {
        let [rows, columns] = model.layer()[i];
        QuantizedTensor::from_bytes(&bytes[i], filling.format, (rows, columns), device)
    };
    let layer =
        |_| Ok(Layer { queries_keys_values: matrix(0)?, out: matrix(1)?, gate_up: matrix(2)?, down: matrix(3)? });
    let head = filling.blocks([model.width, model.vocabulary]);
    let head = QuantizedTensor::from_bytes(&head, filling.format, (model.vocabulary, model.width), device)?;
    Ok(((0..model.layers).map(layer).collect::<Result<_>>()?, head))
}

/// Returns the logits of a vector. `times` multiplies it by a matrix.
fn token(
    model: Model,
    (layers, head): (&[Layer], &QuantizedTensor),
    x: &Tensor,
    times: &dyn Fn(&Tensor, &QuantizedTensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let mut x = x.clone();
    for Layer { queries_keys_values, out, gate_up, down } in layers {
        x = times(&times(&x, queries_keys_values)?.narrow(1, 0, model.width)?, out)?;
        x = times(&times(&x, gate_up)?.narrow(1, 0, model.inner)?, down)?;
    }
    times(&x, head)
}

/// Fails unless numbers are near to exact ones. Each product rounds scales, weights and results to halves, each by
/// `2^-12` of their size or so. These errors are independent, so that they add up like the root of their number.
fn ensure_near(found: &[f64], exact: &[f64], layers: usize) -> anyhow::Result<()> {
    let tolerance = 4.0 * rounding(DType::F16) * ((4 * layers + 1) as f64).sqrt();
    let size: f64 = exact.iter().map(|x| x * x).sum();
    let off: f64 = found.iter().zip(exact).map(|(x, y)| (x - y) * (x - y)).sum();
    let off = (off / size).sqrt();
    ensure!(found.len() == exact.len() && off < tolerance, "logits are off by {off:e} of {tolerance:e}");
    Ok(())
}
