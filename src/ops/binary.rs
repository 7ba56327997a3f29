//! Functions of two elements, with numpy's broadcasting.

use super::TensorOrScalar;
use crate::base::error::Result;
use crate::base::number::Number;
use crate::base::word::Word;
use crate::kernels::expr::{BinaryOp, Expr};
use crate::lazy::Fusion;
use crate::tensor::Tensor;

impl Tensor {
    pub(super) fn binary(&self, rhs: TensorOrScalar, function: BinaryOp, op: &'static str) -> Result<Tensor> {
        match rhs {
            TensorOrScalar::Tensor(rhs) => self.with_tensor(rhs, function, op),
            TensorOrScalar::Scalar(number) => self.with_number(number, false, function, op),
        }
    }

    /// `self op number`, or `number op self` where `reversed`.
    pub(super) fn with_number(
        &self,
        number: impl Into<Number>,
        reversed: bool,
        function: BinaryOp,
        op: &'static str,
    ) -> Result<Tensor> {
        function.domain().check(self.dtype(), op)?;
        let mut fusion = Fusion::new(self.shape().clone());
        let x = fusion.tensor(self, op)?;
        let number = fusion.scalar(Word::of(number, self.dtype(), op)?);
        let (a, b) = if reversed { (number, x) } else { (x, number) };
        fusion.finish(Expr::Binary(function, a.into(), b.into()), self.device(), op)
    }

    fn with_tensor(&self, rhs: &Tensor, function: BinaryOp, op: &'static str) -> Result<Tensor> {
        self.check_same_device(rhs, op)?;
        self.check_same_dtype(rhs, op)?;
        function.domain().check(self.dtype(), op)?;
        let mut fusion = Fusion::new(self.shape().broadcast_with(rhs.shape(), op)?);
        let (a, b) = (fusion.tensor(self, op)?, fusion.tensor(rhs, op)?);
        fusion.finish(Expr::Binary(function, a.into(), b.into()), self.device(), op)
    }
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident => $function:ident;)*) => {
        /// Functions of two elements. The right side is a tensor or a number ([`TensorOrScalar`]). Tensors have one
        /// dtype; their shapes are broadcast as numpy does it: aligned at the last axis, equal or 1.
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
                /// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) where the function is not defined for
                /// the dtype; [`Error::InvalidArgument`](crate::Error::InvalidArgument) where the dtype is an integer
                /// that cannot hold the number.
                pub fn $name<'a>(&self, rhs: impl Into<TensorOrScalar<'a>>) -> Result<Tensor> {
                    self.binary(rhs.into(), BinaryOp::$function, stringify!($name))
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
    /// Whether the elements are equal, as `bool`.
    eq => Eq;
    /// Whether the elements differ, as `bool`; NaN differs from everything.
    ne => Ne;
    /// Whether `self < rhs`, as `bool`; false is less than true.
    lt => Lt;
    /// Whether `self <= rhs`, as `bool`.
    le => Le;
    /// Whether `self > rhs`, as `bool`.
    gt => Gt;
    /// Whether `self >= rhs`, as `bool`.
    ge => Ge;
    /// `self` to the power of `rhs`. As in C, 1 to any power and anything to the power of 0 are 1, and negative floats
    /// have whole powers only, else NaN. Powers of integers wrap; where the exponent is negative they are cut towards
    /// zero, so that they are 0 but for those of 1 and -1 (numpy refuses them; the power of 0 is 0 as well).
    pow => Pow;
    /// The remainder of a division that is rounded down, so that it has the sign of the divisor (PyTorch's `remainder`):
    /// exact but for one addition. Where the divisor is 0, NaN of floats, and `self` of integers.
    rem => Rem;
    /// The remainder of a division that is cut towards zero, so that it has the sign of `self` (Rust's `%`): exact.
    /// Where the divisor is 0, NaN of floats, and `self` of integers.
    fmod => Fmod;
    /// The angle in radians, from -pi to pi, of the point whose y coordinate is `self` and whose x coordinate is `rhs`.
    atan2 => Atan2;
    /// The bits of integers that both have; of truth values, whether both are true.
    bitwise_and => BitwiseAnd;
    /// The bits of integers that one has, or both; of truth values, whether one is true, or both.
    bitwise_or => BitwiseOr;
    /// The bits of integers that one has and not the other; of truth values, whether they differ.
    bitwise_xor => BitwiseXor;
    /// The integer with its bits moved up by `rhs`; 0 where that is negative or the dtype's count of bits or more.
    shl => Shl;
    /// The integer with its bits moved down by `rhs`, if it is signed with copies of the sign; where `rhs` is negative or the
    /// dtype's count of bits or more, 0, and of negative numbers -1.
    shr => Shr;
    /// Whether both elements are true, or numbers that are not 0, as `bool`.
    logical_and => LogicalAnd;
    /// Whether one element is true, or a number that is not 0, or both, as `bool`.
    logical_or => LogicalOr;
    /// Whether one element is true, or a number that is not 0, and the other is not, as `bool`.
    logical_xor => LogicalXor;
}
