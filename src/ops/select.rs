//! Choosing between elements by a condition.

#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::expr::{Domain, Expr};
use crate::tensor::{Fusion, Tensor};

impl Tensor {
    /// The elements of `on_true` where this condition, of truth values or integers, is true or not 0, else those of
    /// `on_false`. All three are broadcast.
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
        const OP: &str = "where_cond";
        Domain::Bits.check(self.dtype(), OP)?;
        self.check_same_device(on_true, OP)?;
        on_true.check_same_device(on_false, OP)?;
        on_true.check_same_dtype(on_false, OP)?;
        let shape = self.shape().broadcast_with(on_true.shape(), OP)?.broadcast_with(on_false.shape(), OP)?;
        let mut fusion = Fusion::new(shape);
        let condition = fusion.tensor(self, OP)?;
        let (yes, no) = (fusion.tensor(on_true, OP)?, fusion.tensor(on_false, OP)?);
        fusion.finish(Expr::Select(condition.into(), yes.into(), no.into()), self.device(), OP)
    }

    /// Computes the tensor now, if that was put off, so that later uses find it done. Returns without waiting for the
    /// device.
    ///
    /// # Errors
    /// Whatever goes wrong in launching the computation.
    pub fn eval(&self) -> Result<()> {
        self.buffer().map(drop)
    }
}
