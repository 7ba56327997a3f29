//! The right side of a function of two elements.

use crate::base::number::Number;
use crate::tensor::Tensor;

/// The second argument of a function of two elements: a tensor, or a [`Number`] of any type, which takes the dtype of
/// the tensor at the left. A number takes no memory, and no kernel of its own.
///
/// ```
/// # use marquetry::{Device, Tensor};
/// # let device = Device::best()?;
/// let x = Tensor::new([-1f32, 2.0, 5.0], &device)?;
/// assert_eq!(x.gt(0.0)?.to_vec::<bool>()?, [false, true, true]);
/// assert_eq!(x.maximum(&x.neg()?)?.to_vec::<f32>()?, [1.0, 2.0, 5.0]);
/// # Ok::<(), marquetry::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub enum TensorOrScalar<'a> {
    /// A tensor, which is broadcast.
    Tensor(&'a Tensor),
    /// A number. A float dtype rounds it; an integer dtype has to hold it.
    Scalar(Number),
}

impl<'a> From<&'a Tensor> for TensorOrScalar<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        TensorOrScalar::Tensor(tensor)
    }
}

impl<N: Into<Number>> From<N> for TensorOrScalar<'_> {
    fn from(number: N) -> Self {
        TensorOrScalar::Scalar(number.into())
    }
}
