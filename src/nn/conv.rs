//! Convolutions.

#[cfg(has_io)]
use super::Weights;
use crate::base::error::Result;
use crate::ops::{ConvConfig, prepared_weight};
use crate::tensor::Tensor;

/// A weight that cannot be copied stays as it is: the layer's calls then say why.
fn prepared(weight: Tensor, config: &ConvConfig) -> Tensor {
    prepared_weight(&weight, config).unwrap_or(weight)
}

macro_rules! convolution {
    ($(#[$doc:meta])* $name:ident, $method:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub struct $name {
            weight: Tensor,
            bias: Option<Tensor>,
            config: ConvConfig,
        }

        impl $name {
            /// Returns the layer of a weight, a bias, which may be `None`, and a configuration. The weight is copied to
            /// the order that most convolutions of the device read, so that calls need not do that.
            pub fn new(weight: Tensor, bias: impl Into<Option<Tensor>>, config: ConvConfig) -> Self {
                $name { weight: prepared(weight, &config), bias: bias.into(), config }
            }

            /// Loads `weight`, and `bias` if it is there.
            ///
            /// # Errors
            /// As [`Weights::tensor`].
            #[cfg(has_io)]
            pub fn load(weights: &Weights, config: ConvConfig) -> Result<Self> {
                Ok($name::new(weights.tensor("weight")?, weights.optional("bias")?, config))
            }

            /// Returns the convolution of `x`.
            ///
            /// # Errors
            #[doc = concat!("As [`Tensor::", stringify!($method), "`].")]
            pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
                x.$method(&self.weight, self.bias.as_ref(), &self.config)
            }
        }
    };
}

convolution! {
    /// A convolution along one axis. See [`Tensor::conv1d`].
    ///
    /// ```
    /// use marquetry::{ConvConfig, Device, Tensor, nn::Conv1d};
    ///
    /// let device = Device::best()?;
    /// let layer = Conv1d::new(Tensor::new([[[1f32, 10.0]]], &device)?, None, ConvConfig::default());
    /// let x = Tensor::new([[1f32, 2.0, 3.0]], &device)?;
    /// assert_eq!(layer.forward(&x)?.to_vec::<f32>()?, [21.0, 32.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    Conv1d, conv1d
}

convolution! {
    /// A convolution along two axes. See [`Tensor::conv2d`].
    ///
    /// ```
    /// use marquetry::{ConvConfig, DType, Device, Tensor, nn::Conv2d};
    ///
    /// let device = Device::best()?;
    /// let (weight, bias) = (Tensor::ones((8, 3, 3, 3), DType::F32, &device)?, Tensor::zeros(8, DType::F32, &device)?);
    /// let layer = Conv2d::new(weight, bias, ConvConfig::default().stride(2).padding(1));
    /// let x = Tensor::ones((1, 3, 8, 8), DType::F32, &device)?;
    /// assert_eq!(layer.forward(&x)?.dims(), [1, 8, 4, 4]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    Conv2d, conv2d
}
