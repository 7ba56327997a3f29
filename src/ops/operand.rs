//! What stands at the right of a function of two elements.

use crate::tensor::Tensor;
use half::f16;

/// The second argument of a function of two elements: a tensor, or a number, which takes the dtype of the tensor at the
/// left. A number takes no memory, and no kernel of its own.
///
/// ```
/// # use marquetry::{Device, Tensor};
/// # let device = Device::best()?;
/// let x = Tensor::new([-1f32, 2.0, 5.0], &device)?;
/// assert_eq!(x.gt(0.0)?.to_vec::<u8>()?, [0, 1, 1]);
/// assert_eq!(x.maximum(&x.neg()?)?.to_vec::<f32>()?, [1.0, 2.0, 5.0]);
/// # Ok::<(), marquetry::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub enum TensorOrScalar<'a> {
    /// A tensor, which is broadcast.
    Tensor(&'a Tensor),
    /// A number. A float dtype rounds it; an integer dtype has to hold it.
    Scalar(f64),
}

impl<'a> From<&'a Tensor> for TensorOrScalar<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        TensorOrScalar::Tensor(tensor)
    }
}

macro_rules! from_number {
    ($($number:ty),+) => {$(
        impl From<$number> for TensorOrScalar<'_> {
            fn from(number: $number) -> Self {
                TensorOrScalar::Scalar(number.into())
            }
        }
    )+};
}

from_number!(f64, f32, f16, i32, u32, i8, u8);
