//! Softmax and layer norm.

use super::choose_team;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernels::normalize::{Normalize, NormalizeOp};
use crate::layout::collapse;
use crate::shape::{Axis, Dims};
use crate::tensor::{Tensor, allocate, checked_elements};

/// Weight and bias of a layer norm, and what keeps it from dividing by zero.
struct Affine<'a> {
    weight: &'a Tensor,
    bias: &'a Tensor,
    eps: f64,
}

impl Tensor {
    /// `exp(x) / sum(exp(x))` along an axis, computed in `f32` from `x - max(x)` so that it never overflows.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[0f32, 0.0], [1000.0, 0.0]], &device)?;
    /// assert_eq!(x.softmax(-1)?.to_vec::<f32>()?, [0.5, 0.5, 1.0, 0.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`]; [`Error::UnsupportedDType`] for integers.
    pub fn softmax(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        self.check_float("softmax")?;
        let axis = axis.into().resolve(self.shape(), "softmax")?;
        self.normalize(NormalizeOp::Softmax, axis, None, "softmax")
    }

    /// `(x - mean) / sqrt(variance + eps) * weight + bias` over the last axes, those of `weight`; `bias` has its shape.
    /// Computed in `f32`, with the biased variance.
    ///
    /// ```
    /// # use marquetry::{Device, DType, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1f32, 3.0], [5.0, 5.0]], &device)?;
    /// let (weight, bias) = (Tensor::ones(2, DType::F32, &device)?, Tensor::zeros(2, DType::F32, &device)?);
    /// assert_eq!(x.layer_norm(&weight, &bias, 0.0001)?.to_vec::<f32>()?[2..], [0.0, 0.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] where the shapes are not the last axes of the tensor's; [`Error::DTypeMismatch`],
    /// [`Error::DeviceMismatch`]; [`Error::UnsupportedDType`] for integers.
    pub fn layer_norm(&self, weight: &Tensor, bias: &Tensor, eps: f64) -> Result<Tensor> {
        const OP: &str = "layer_norm";
        self.check_float(OP)?;
        for parameter in [weight, bias] {
            self.check_same_device(parameter, OP)?;
            self.check_same_dtype(parameter, OP)?;
        }
        let hint = "weight and bias have the shape of the tensor's last axes, at least one";
        if weight.rank() == 0 || !self.dims().ends_with(weight.dims()) {
            return Err(Error::ShapeMismatch { op: OP, lhs: self.shape().clone(), rhs: weight.shape().clone(), hint });
        }
        if weight.shape() != bias.shape() {
            return Err(Error::ShapeMismatch { op: OP, lhs: weight.shape().clone(), rhs: bias.shape().clone(), hint });
        }
        let affine = Affine { weight: &weight.flatten_all()?, bias: &bias.flatten_all()?, eps };
        if weight.rank() == 1 {
            return self.normalize(NormalizeOp::LayerNorm, self.rank() - 1, Some(affine), OP);
        }
        let rows = self.flatten(self.rank() - weight.rank(), -1)?;
        rows.normalize(NormalizeOp::LayerNorm, rows.rank() - 1, Some(affine), OP)?.reshape(self.shape())
    }

    fn normalize(&self, op: NormalizeOp, axis: usize, affine: Option<Affine>, name: &'static str) -> Result<Tensor> {
        let elements = checked_elements(self.shape(), name)?;
        let output = allocate(self.shape(), DType::F32, self.device(), name)?;
        if elements > 0 {
            let kept: Dims = (0..self.rank()).filter(|&other| other != axis).collect();
            let lengths: Dims = kept.iter().map(|&axis| self.dims()[axis]).collect();
            let strides: Dims<isize> = kept.iter().map(|&axis| self.strides()[axis]).collect();
            let (lengths, strides) = collapse(&lengths, &[&strides]);
            let limit = self.device().info().limits.max_parameter_words as usize;
            if Normalize::parameter_words(op, lengths.len()) > limit && !self.is_contiguous() {
                return self.contiguous()?.normalize(op, axis, affine, name);
            }
            let length = self.dims()[axis];
            let rows = elements / length;
            let inner: usize = self.dims()[axis + 1..].iter().product();
            let mut parameters = vec![rows as u32, length as u32, inner as u32];
            parameters.extend(lengths.iter().map(|&n| n as u32));
            parameters.push(self.layout().offset as u32);
            parameters.extend(strides[0].iter().chain([&self.strides()[axis]]).map(|&stride| stride as u32));
            let mut buffers = vec![self.buffer()?];
            if let Some(Affine { weight, bias, eps }) = affine {
                for vector in [weight, bias] {
                    buffers.push(vector.buffer()?);
                    parameters.extend([vector.layout().offset as u32, vector.strides()[0] as u32]);
                }
                parameters.push((eps as f32).to_bits());
            }
            let team = choose_team(self.device(), rows, length);
            let config = Normalize { op, dtype: self.dtype(), kept_rank: lengths.len(), team };
            let bindings: Vec<_> = buffers.iter().map(|buffer| &**buffer).chain([&output]).collect();
            self.device().runtime().launch(config, &bindings, &parameters, team.groups(rows))?;
        }
        Tensor::from_buffer(output, self.shape().clone(), DType::F32, self.device()).to_dtype(self.dtype())
    }
}
