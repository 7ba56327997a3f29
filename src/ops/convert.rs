//! Conversions between dtypes.

use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::kernels::expr::Expr;
use crate::lazy::Fusion;
use crate::tensor::Tensor;

impl Tensor {
    /// The elements as another dtype, converted as Rust's `as` does it: floats to integers are cut towards zero and
    /// saturate, NaN becomes 0, integers lose high bits, numbers that a float does not hold are rounded to the nearest
    /// that it does, ties to even. A truth value is 1 or 0, and a number is true that is not 0, NaN too.
    ///
    /// ```
    /// # use marquetry::{Device, DType, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([-1.5f32, 3.99, 300.0], &device)?;
    /// assert_eq!(x.to_dtype(DType::U8)?.to_vec::<u8>()?, [0, 3, 255]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// Whatever went wrong in the computation so far.
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        let mut fusion = Fusion::new(self.shape().clone());
        let x = fusion.tensor(self, "to_dtype")?;
        fusion.finish(Expr::Cast(dtype, x.into()), self.device(), "to_dtype")
    }
}
