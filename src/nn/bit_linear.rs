//! Linear layers of BitNet b1.58, with ternary weights.

#[cfg(has_io)]
use super::Weights;
use super::linear::{wide, wide_bias};
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::quantized::{QuantizedTensor, check_output};
use crate::tensor::Tensor;

/// The largest number of 8 bits, which the largest magnitude of a token becomes.
const LARGEST: f64 = 127.0;

/// Smaller magnitudes than this count as this one, so that a token of zeros can be divided by its largest.
const SMALLEST: f64 = 1e-5;

/// How a [`BitLinear`] applies the scale of its weight: the `linear_class` of the model's `quantization_config`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BitLinearClass {
    /// `bitlinear`: the product is divided by the scale, and then the bias is added.
    BitLinear,
    /// `autobitlinear`, as in `microsoft/bitnet-b1.58-2B-4T`: the sum of product and bias is multiplied by the scale.
    AutoBitLinear,
}

/// The linear layer of BitNet b1.58: a ternary weight, and activations that are rounded to 8 bits per token.
///
/// Each token has the scale `t = 127 / max(|x|)`. The maximum counts as at least 1e-5. The activations become the whole
/// numbers `q = clamp(round(t x), -128, 127)`. If two are equally near, the even one is taken. The results are:
///
/// | class | result |
/// |---|---|
/// | [`BitLinearClass::BitLinear`] | `q weight^T / (t weight_scale) + bias` |
/// | [`BitLinearClass::AutoBitLinear`] | `(q weight^T / t + bias) weight_scale` |
///
/// All is computed in `f32`, and the result is rounded once to the dtype of `x`. The sums of `q weight^T` are exact if
/// `in` is at most 18,000. The method is that of S. Ma and others, "The Era of 1-bit LLMs: All Large Language Models
/// are in 1.58 Bits", 2024. The formulas are those of `integrations/bitnet.py` in the Python package `transformers`
/// 4.57. If the model is in `f32`, results are the same except for the last digits. If it is in `f16` or `bf16`, that
/// package rounds more:
///
/// | class | what it rounds to the dtype of the model |
/// |---|---|
/// | `BitLinear` | `t`, before it multiplies `x`; `q weight^T`; the quotient; the sum with the bias |
/// | `AutoBitLinear` | `q / t`; the sum of product and bias; the result |
///
/// ```
/// use marquetry::{Device, QuantizedTensor, Tensor, nn::{BitLinear, BitLinearClass}};
///
/// let device = Device::best()?;
/// // Rows 0 and 2 hold 1, row 1 holds -1, row 3 holds 0.
/// let weight = QuantizedTensor::from_bitnet(&Tensor::full(0b01_10_00_10u8, (1, 256), &device)?)?;
/// let scale = Tensor::new([0.5f32], &device)?;
/// let layer = BitLinear::new(weight, &scale, None, BitLinearClass::AutoBitLinear)?;
/// let x = Tensor::full(127f32, 256, &device)?;
/// assert_eq!(layer.forward(&x)?.to_vec::<f32>()?, [16_256.0, -16_256.0, 16_256.0, 0.0]);
/// # Ok::<(), marquetry::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct BitLinear {
    weight: QuantizedTensor,
    /// One number of `f32`.
    weight_scale: Tensor,
    /// In `f32`.
    bias: Option<Tensor>,
    class: BitLinearClass,
}

impl BitLinear {
    /// Returns the layer of a ternary weight `[out, in]`, as [`QuantizedTensor::from_bitnet`] returns it, of a scale,
    /// and of a bias `[out]`, which may be `None`. The scale is one number. Both may be of any float dtype.
    ///
    /// # Errors
    /// [`Error::RankMismatch`] if the weight is not a matrix; [`Error::InvalidArgument`] if the scale is not one
    /// number; [`Error::ShapeMismatch`], [`Error::UnsupportedDType`], [`Error::DeviceMismatch`].
    pub fn new(
        weight: QuantizedTensor,
        weight_scale: &Tensor,
        bias: impl Into<Option<Tensor>>,
        class: BitLinearClass,
    ) -> Result<BitLinear> {
        const OP: &str = "new";
        let bias = bias.into();
        let [rows, _] = *weight.dims() else {
            let expected = "2 (the weight, [out, in])";
            return Err(Error::RankMismatch { op: OP, expected, shape: weight.shape().clone() });
        };
        for other in [weight_scale].into_iter().chain(&bias) {
            if other.device() != weight.device() {
                let (lhs, rhs) = (weight.device().to_string(), other.device().to_string());
                return Err(Error::DeviceMismatch { op: OP, lhs, rhs });
            }
        }
        if weight_scale.elem_count() != 1 {
            let message = format!("the weight scale has shape {}; give one number", weight_scale.shape());
            return Err(Error::InvalidArgument { op: OP, message });
        }
        let weight_scale = wide(&weight_scale.flatten_all()?, OP)?;
        let bias = bias.map(|bias| wide_bias(&bias, weight.shape(), rows, OP)).transpose()?;
        Ok(BitLinear { weight, weight_scale, bias, class })
    }

    /// Loads the packed bytes `weight`, the number `weight_scale`, and `bias` if it is there. A dtype of `weights` is
    /// not applied.
    ///
    /// # Errors
    /// As [`Weights::tensor`], [`QuantizedTensor::from_bitnet`] and [`new`](Self::new).
    #[cfg(has_io)]
    pub fn load(weights: &Weights, class: BitLinearClass) -> Result<BitLinear> {
        // The scale and the bias are added and multiplied in `f32`, so a rounding would only lose digits.
        let weights = weights.clone().dtype(None);
        let weight = QuantizedTensor::from_bitnet(&weights.tensor("weight")?)?;
        BitLinear::new(weight, &weights.tensor("weight_scale")?, weights.optional("bias")?, class)
    }

    /// Returns the layer of `x`, whose last axis has the numbers of a token.
    ///
    /// # Errors
    /// [`Error::RankMismatch`] if `x` is a scalar; [`Error::ShapeMismatch`] if its last axis and that of the weight
    /// differ; [`Error::UnsupportedDType`] for dtypes other than `f32`, `f16` and `bf16`; [`Error::DeviceMismatch`];
    /// [`Error::InvalidArgument`] if tokens have no numbers.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        const OP: &str = "forward";
        check_output(x.dtype(), OP)?;
        let Some(&features) = x.dims().last() else {
            return Err(Error::RankMismatch { op: OP, expected: "1 or more", shape: x.shape().clone() });
        };
        if features != self.weight.dims()[1] {
            let hint = "the last axes must be equal: the weight is [out, in]";
            let (lhs, rhs) = (x.shape().clone(), self.weight.shape().clone());
            return Err(Error::ShapeMismatch { op: OP, lhs, rhs, hint });
        }
        self.apply(x).map_err(Error::named(OP))
    }

    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let numbers = x.to_dtype(DType::F32)?;
        let largest = numbers.abs()?.max_keepdim(-1)?.maximum(SMALLEST)?;
        let token_scale = (LARGEST / &largest)?;
        // `f16` has these whole numbers, and matrix units multiply it.
        let rounded = numbers.mul(&token_scale)?.round()?.clamp(-128, 127)?.to_dtype(DType::F16)?;
        let product = rounded.matmul_quantized_f32(&self.weight)?;
        let with_bias = |y: Tensor| match &self.bias {
            Some(bias) => y.add(bias),
            None => Ok(y),
        };
        let y = match self.class {
            BitLinearClass::BitLinear => with_bias(product.div(&token_scale.mul(&self.weight_scale)?)?)?,
            BitLinearClass::AutoBitLinear => with_bias(product.div(&token_scale)?)?.mul(&self.weight_scale)?,
        };
        y.to_dtype(x.dtype())
    }
}
