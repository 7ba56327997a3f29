//! Selection of elements by a condition.

use super::TensorOrScalar;
#[cfg(doc)]
use crate::base::error::Error;
use crate::base::error::Result;
use crate::base::word::Word;
use crate::kernels::expr::Domain;
use crate::lazy::ExpressionBuilder;
use crate::tensor::Tensor;

impl Tensor {
    /// Returns the element of `on_true` if this condition is true, else the element of `on_false`. All three are
    /// broadcast. The condition holds `bool`, or integers of any dtype: 0 is false, all else is true.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([-1f32, 2.0, -3.0], &device)?;
    /// let zero = Tensor::full(0f32, (), &device)?;
    /// let y = x.lt(&zero)?.where_cond(&zero, &x)?;
    /// assert_eq!(y.to_vec::<f32>()?, [0.0, 2.0, 0.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for a condition of floats; [`Error::ShapeMismatch`], [`Error::DTypeMismatch`],
    /// [`Error::DeviceMismatch`] between the three.
    pub fn where_cond(&self, on_true: &Tensor, on_false: &Tensor) -> Result<Tensor> {
        self.choose(on_true.into(), on_false, "where_cond")
    }

    fn choose(&self, on_true: TensorOrScalar, on_false: &Tensor, op: &'static str) -> Result<Tensor> {
        Domain::Bits.check(self.dtype(), op)?;
        self.check_same_device(on_false, op)?;
        let mut shape = self.shape().clone();
        if let TensorOrScalar::Tensor(on_true) = on_true {
            on_true.check_same_device(on_false, op)?;
            on_true.check_same_dtype(on_false, op)?;
            shape = shape.broadcast_with(on_true.shape(), op)?;
        }
        let shape = shape.broadcast_with(on_false.shape(), op)?;
        let on_true_tensor = if let TensorOrScalar::Tensor(on_true) = on_true { Some(on_true) } else { None };
        let mut operands = [Some(on_false), on_true_tensor, Some(self)].into_iter().flatten();
        let mut builder = match operands.find(|operand| operand.shape() == &shape) {
            Some(operand) => ExpressionBuilder::in_order_of(operand),
            None => ExpressionBuilder::new(shape, self.device()),
        };
        let condition = builder.tensor(self, op)?;
        let yes = match on_true {
            TensorOrScalar::Tensor(on_true) => builder.tensor(on_true, op)?,
            TensorOrScalar::Scalar(number) => builder.scalar(Word::of(number, on_false.dtype(), op)?),
        };
        let no = builder.tensor(on_false, op)?;
        let y = builder.select(condition, yes, no);
        builder.finish(y, op)
    }

    /// Returns the tensor with `value` where the mask is true. The mask holds `bool`, or integers of any dtype: 0 is
    /// false, all else is true. All are broadcast. Note that attention takes masks the other way: true for the keys
    /// that are seen ([`AttentionConfig::mask`](crate::AttentionConfig::mask)).
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let scores = Tensor::new([1f32, 2.0, 3.0], &device)?;
    /// let mask = Tensor::new([0u8, 0, 1], &device)?;
    /// assert_eq!(scores.masked_fill(&mask, f32::NEG_INFINITY)?.to_vec::<f32>()?, [1.0, 2.0, f32::NEG_INFINITY]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`where_cond`](Self::where_cond); [`Error::InvalidArgument`] if the dtype is an integer that cannot hold the
    /// number.
    pub fn masked_fill<'a>(&self, mask: &Tensor, value: impl Into<TensorOrScalar<'a>>) -> Result<Tensor> {
        mask.choose(value.into(), self, "masked_fill")
    }

    /// Computes the tensor now if it is pending, so that later uses find it done. Returns without waiting for the
    /// device.
    ///
    /// # Errors
    /// Any error of launching the computation.
    pub fn realize(&self) -> Result<()> {
        self.buffer().map(drop)
    }
}
