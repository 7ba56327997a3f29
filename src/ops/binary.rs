//! Functions of two elements, with numpy's broadcasting.

use super::TensorOrScalar;
use crate::base::error::Result;
use crate::base::number::Number;
use crate::base::word::Word;
use crate::kernels::expr::BinaryOp;
use crate::lazy::ExpressionBuilder;
use crate::tensor::Tensor;

impl Tensor {
    pub(super) fn binary(&self, rhs: TensorOrScalar, function: BinaryOp, op: &'static str) -> Result<Tensor> {
        match rhs {
            TensorOrScalar::Tensor(rhs) => self.with_tensor(rhs, function, op),
            TensorOrScalar::Scalar(number) => self.with_number(number, false, function, op),
        }
    }

    /// Returns `self op number`, or `number op self` if `reversed`.
    pub(super) fn with_number(
        &self,
        number: impl Into<Number>,
        reversed: bool,
        function: BinaryOp,
        op: &'static str,
    ) -> Result<Tensor> {
        function.domain().check(self.dtype(), op)?;
        let mut builder = ExpressionBuilder::in_order_of(self);
        let x = builder.tensor(self, op)?;
        let number = builder.scalar(Word::of(number, self.dtype(), op)?);
        let (a, b) = if reversed { (number, x) } else { (x, number) };
        let y = builder.binary(function, a, b);
        builder.finish(y, op)
    }

    fn with_tensor(&self, rhs: &Tensor, function: BinaryOp, op: &'static str) -> Result<Tensor> {
        self.check_same_device(rhs, op)?;
        self.check_same_dtype(rhs, op)?;
        function.domain().check(self.dtype(), op)?;
        let mut builder = ExpressionBuilder::broadcasting(self, rhs, op)?;
        let (a, b) = (builder.tensor(self, op)?, builder.tensor(rhs, op)?);
        let y = builder.binary(function, a, b);
        builder.finish(y, op)
    }
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident => $function:ident;)*) => {
        /// Functions of two elements. The right side is a tensor or a number ([`TensorOrScalar`]). Both tensors have
        /// the same dtype. Their shapes are broadcast as in numpy: aligned at the last axis, with lengths that are
        /// equal or 1.
        ///
        /// ```
        /// # use marquetry::{Device, Tensor};
        /// # let device = Device::best()?;
        /// let x = Tensor::new([[1i32, 2], [3, 4]], &device)?;
        /// let row = Tensor::new([10i32, 20], &device)?;
        /// assert_eq!(x.add(&row)?.to_vec::<i32>()?, [11, 22, 13, 24]);
        /// assert_eq!(x.gt(&row.sub(&x)?)?.to_vec::<bool>()?, [false; 4]);
        /// assert_eq!(x.mul(2)?.minimum(5)?.to_vec::<i32>()?, [2, 4, 5, 5]);
        /// # Ok::<(), marquetry::Error>(())
        /// ```
        impl Tensor {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch),
                /// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch),
                /// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch);
                /// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) if the function is not defined for the
                /// dtype; [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the dtype is an integer that
                /// cannot hold the number.
                pub fn $name<'a>(&self, rhs: impl Into<TensorOrScalar<'a>>) -> Result<Tensor> {
                    self.binary(rhs.into(), BinaryOp::$function, stringify!($name))
                }
            )*
        }
    };
}

binary! {
    /// Returns the sum.
    add => Add;
    /// Returns the difference.
    sub => Sub;
    /// Returns the product.
    mul => Mul;
    /// Returns the quotient. Quotients of integers are cut towards zero, and 0 if the divisor is 0.
    div => Div;
    /// Returns the larger element; NaN if one is NaN.
    maximum => Maximum;
    /// Returns the smaller element; NaN if one is NaN.
    minimum => Minimum;
    /// Returns whether the elements are equal, as `bool`.
    eq => Eq;
    /// Returns whether the elements differ, as `bool`; NaN differs from everything.
    ne => Ne;
    /// Returns whether `self < rhs`, as `bool`; false is less than true.
    lt => Lt;
    /// Returns whether `self <= rhs`, as `bool`.
    le => Le;
    /// Returns whether `self > rhs`, as `bool`.
    gt => Gt;
    /// Returns whether `self >= rhs`, as `bool`.
    ge => Ge;
    /// Returns `self` to the power of `rhs`. As in C, 1 to any power is 1, and so is any number to the power of 0. A
    /// negative float to a power that is not whole is NaN. Powers of integers wrap. If the exponent of an integer is
    /// negative, the result is cut towards zero: 0, except for the powers of 1 and -1 (numpy refuses them; the power of
    /// 0 is 0 as well).
    pow => Pow;
    /// Returns the remainder of the division that rounds down; it has the sign of the divisor (PyTorch's `remainder`).
    /// It is exact except for one addition. If the divisor is 0, floats give NaN and integers give `self`.
    rem => Rem;
    /// Returns the remainder of the division that cuts towards zero; it has the sign of `self` (Rust's `%`). It is
    /// exact. If the divisor is 0, floats give NaN and integers give `self`.
    fmod => Fmod;
    /// Returns the angle in radians, from -pi to pi, of the point with y coordinate `self` and x coordinate `rhs`.
    atan2 => Atan2;
    /// Returns the bits that both integers have; for `bool`, whether both are true.
    bitwise_and => BitwiseAnd;
    /// Returns the bits that at least one of the integers has; for `bool`, whether at least one is true.
    bitwise_or => BitwiseOr;
    /// Returns the bits that exactly one of the integers has; for `bool`, whether they differ.
    bitwise_xor => BitwiseXor;
    /// Returns the integer with its bits shifted left by `rhs`; 0 if `rhs` is outside `0..bits` of the dtype.
    shl => Shl;
    /// Returns the integer with its bits shifted right by `rhs`; signed integers are filled with copies of the sign. If
    /// `rhs` is outside `0..bits` of the dtype, the result is 0, or -1 for negative numbers.
    shr => Shr;
    /// Returns whether both elements are true or not 0, as `bool`.
    logical_and => LogicalAnd;
    /// Returns whether at least one element is true or not 0, as `bool`.
    logical_or => LogicalOr;
    /// Returns whether exactly one element is true or not 0, as `bool`.
    logical_xor => LogicalXor;
}
