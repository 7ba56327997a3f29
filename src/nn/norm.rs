//! Norms over the last axis.

#[cfg(has_io)]
use super::Weights;
use crate::base::error::Result;
use crate::tensor::Tensor;

/// Layer norm over the last axis: mean 0 and variance 1, then a weight and a bias. See [`Tensor::layer_norm`].
///
/// ```
/// use marquetry::{DType, Device, Tensor, nn::LayerNorm};
///
/// let device = Device::best()?;
/// let norm = LayerNorm::new(Tensor::ones(2, DType::F32, &device)?, None, 0.0);
/// assert_eq!(norm.forward(&Tensor::new([[1f32, 3.0]], &device)?)?.to_vec::<f32>()?, [-1.0, 1.0]);
/// # Ok::<(), marquetry::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Option<Tensor>,
    eps: f64,
}

impl LayerNorm {
    /// Returns the norm with a weight, and a bias, which may be `None`.
    pub fn new(weight: Tensor, bias: impl Into<Option<Tensor>>, eps: f64) -> LayerNorm {
        LayerNorm { weight, bias: bias.into(), eps }
    }

    /// Loads `weight`, and `bias` if it is there.
    ///
    /// # Errors
    /// As [`Weights::tensor`].
    #[cfg(has_io)]
    pub fn load(weights: &Weights, eps: f64) -> Result<LayerNorm> {
        Ok(LayerNorm { weight: weights.tensor("weight")?, bias: weights.optional("bias")?, eps })
    }

    /// Returns the norm of `x`.
    ///
    /// # Errors
    /// As [`Tensor::layer_norm`].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.layer_norm(&self.weight, self.bias.as_ref(), self.eps)
    }
}

/// Root mean square norm over the last axis, then a weight. See [`Tensor::rms_norm`].
///
/// ```
/// use marquetry::{Device, Tensor, nn::RmsNorm};
///
/// let device = Device::best()?;
/// let norm = RmsNorm::new(Tensor::new([1f32, 2.0], &device)?, 0.0);
/// assert_eq!(norm.forward(&Tensor::new([[3f32, -3.0]], &device)?)?.to_vec::<f32>()?, [1.0, -2.0]);
/// # Ok::<(), marquetry::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct RmsNorm {
    weight: Tensor,
    eps: f64,
}

impl RmsNorm {
    /// Returns the norm with a weight.
    pub fn new(weight: Tensor, eps: f64) -> RmsNorm {
        RmsNorm { weight, eps }
    }

    /// Loads `weight`.
    ///
    /// # Errors
    /// As [`Weights::tensor`].
    #[cfg(has_io)]
    pub fn load(weights: &Weights, eps: f64) -> Result<RmsNorm> {
        Ok(RmsNorm { weight: weights.tensor("weight")?, eps })
    }

    /// Returns the weight, and what is added to the mean of squares.
    pub(super) fn parts(&self) -> (&Tensor, f64) {
        (&self.weight, self.eps)
    }

    /// Returns the norm of `x`.
    ///
    /// # Errors
    /// As [`Tensor::rms_norm`].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.rms_norm(&self.weight, self.eps)
    }
}
