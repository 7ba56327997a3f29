//! Conversions between dtypes.

use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::lazy::ExpressionBuilder;
use crate::tensor::Tensor;

impl Tensor {
    /// Returns the elements as another dtype, converted as by Rust's `as`. A float becomes an integer by cutting
    /// towards zero and saturating; NaN becomes 0. An integer loses its high bits. A number that a float does not hold
    /// is rounded to the nearest one that it holds, ties to even. A `bool` becomes 1 or 0. A number becomes true if it
    /// is not 0, also NaN.
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
    /// Any error of the computation so far.
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        let mut builder = ExpressionBuilder::in_order_of(self);
        let x = builder.tensor(self, "to_dtype")?;
        let y = builder.cast(dtype, x);
        builder.finish(y, "to_dtype")
    }
}
