//! Functions of two elements, with numpy's broadcasting.

use crate::error::Result;
use crate::expr::{BinaryOp, Expr};
use crate::tensor::{Fusion, Tensor};

impl Tensor {
    fn binary(&self, rhs: &Tensor, function: BinaryOp, op: &'static str) -> Result<Tensor> {
        self.check_same_device(rhs, op)?;
        self.check_same_dtype(rhs, op)?;
        let mut fusion = Fusion::new(self.shape().broadcast_with(rhs.shape(), op)?);
        let (a, b) = (fusion.tensor(self, op)?, fusion.tensor(rhs, op)?);
        fusion.finish(Expr::Binary(function, a.into(), b.into()), self.device(), op)
    }
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident => $function:ident;)*) => {
        /// Functions of two elements. Both sides have one dtype; their shapes are broadcast as numpy does it: aligned
        /// at the last axis, equal or 1.
        ///
        /// ```
        /// # use marquetry::{Device, Tensor};
        /// # let device = Device::best()?;
        /// let x = Tensor::new([[1i32, 2], [3, 4]], &device)?;
        /// let row = Tensor::new([10i32, 20], &device)?;
        /// assert_eq!(x.add(&row)?.to_vec::<i32>()?, [11, 22, 13, 24]);
        /// assert_eq!(x.gt(&row.sub(&x)?)?.to_vec::<u8>()?, [0, 0, 0, 0]);
        /// # Ok::<(), marquetry::Error>(())
        /// ```
        impl Tensor {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch),
                /// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch),
                /// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch).
                pub fn $name(&self, rhs: &Tensor) -> Result<Tensor> {
                    self.binary(rhs, BinaryOp::$function, stringify!($name))
                }
            )*
        }
    };
}

binary! {
    /// The sum.
    add => Add;
    /// The difference.
    sub => Sub;
    /// The product.
    mul => Mul;
    /// The quotient; of integers cut towards zero, and 0 where the divisor is 0.
    div => Div;
    /// The larger element; NaN if one is NaN.
    maximum => Maximum;
    /// The smaller element; NaN if one is NaN.
    minimum => Minimum;
    /// 1 where the elements are equal, else 0, as `u8`.
    eq => Eq;
    /// 1 where the elements differ, else 0, as `u8`.
    ne => Ne;
    /// 1 where `self < rhs`, else 0, as `u8`.
    lt => Lt;
    /// 1 where `self <= rhs`, else 0, as `u8`.
    le => Le;
    /// 1 where `self > rhs`, else 0, as `u8`.
    gt => Gt;
    /// 1 where `self >= rhs`, else 0, as `u8`.
    ge => Ge;
}
