//! Functions of one element.

use crate::base::error::Result;
use crate::kernels::expr::UnaryOp;
use crate::lazy::ExpressionBuilder;
use crate::tensor::Tensor;

impl Tensor {
    pub(super) fn unary(&self, function: UnaryOp, op: &'static str) -> Result<Tensor> {
        function.domain().check(self.dtype(), op)?;
        let mut builder = ExpressionBuilder::in_order_of(self);
        let x = builder.tensor(self, op)?;
        let y = builder.unary(function, x);
        builder.finish(y, op)
    }
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $function:ident;)*) => {
        /// Functions of one element. Each takes the dtypes for which it makes sense. Other dtypes give
        /// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType).
        ///
        /// ```
        /// # use marquetry::{Device, Tensor};
        /// # let device = Device::best()?;
        /// let x = Tensor::new([-1.5f32, 0.0, 4.0], &device)?;
        /// assert_eq!(x.abs()?.sqrt()?.to_vec::<f32>()?[2], 2.0);
        /// assert_eq!(x.relu()?.to_vec::<f32>()?, [0.0, 0.0, 4.0]);
        /// # Ok::<(), marquetry::Error>(())
        /// ```
        impl Tensor {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) if the function is not defined for the
                /// dtype.
                pub fn $name(&self) -> Result<Tensor> {
                    self.unary(UnaryOp::$function, stringify!($name))
                }
            )*
        }
    };
}

unary! {
    /// Returns the negative value; for unsigned integers modulo 2^n.
    neg => Neg;
    /// Returns the absolute value. The smallest integer, which has none, stays as it is.
    abs => Abs;
    /// Returns -1, 0 or 1 by the sign; NaN for NaN.
    sign => Sign;
    /// Returns the square (PyTorch's `square`).
    sqr => Sqr;
    /// `max(x, 0)`.
    relu => Relu;
    /// Returns the largest whole number that is not larger.
    floor => Floor;
    /// Returns the smallest whole number that is not smaller.
    ceil => Ceil;
    /// Returns the nearest whole number; if two are equally near, the even one.
    round => Round;
    /// Returns the number cut towards zero to a whole number.
    trunc => Trunc;
    /// Returns the square root; NaN for negative numbers.
    sqrt => Sqrt;
    /// Returns `1 / sqrt(x)`.
    rsqrt => Rsqrt;
    /// Returns `1 / x`.
    recip => Recip;
    /// Returns e to the power of each element.
    exp => Exp;
    /// Returns two to the power of each element.
    exp2 => Exp2;
    /// Returns `exp(x) - 1`, which keeps its digits near 0.
    expm1 => Expm1;
    /// Returns the natural logarithm; minus infinity for 0, NaN for negative numbers.
    log => Log;
    /// Returns the logarithm to base 2; minus infinity for 0, NaN for negative numbers.
    log2 => Log2;
    /// Returns `log(1 + x)`, which keeps its digits near 0; minus infinity for -1, NaN for numbers below.
    log1p => Log1p;
    /// Returns the sine of an angle in radians, accurate for magnitudes up to 10,000.
    sin => Sin;
    /// Returns the cosine of an angle in radians, accurate for magnitudes up to 10,000.
    cos => Cos;
    /// Returns the tangent of an angle in radians, accurate for magnitudes up to 10,000.
    tan => Tan;
    /// Returns the arc sine in radians; NaN outside of -1 to 1.
    asin => Asin;
    /// Returns the arc cosine in radians; NaN outside of -1 to 1.
    acos => Acos;
    /// Returns the arc tangent in radians.
    atan => Atan;
    /// Returns the hyperbolic sine.
    sinh => Sinh;
    /// Returns the hyperbolic cosine.
    cosh => Cosh;
    /// Returns the hyperbolic tangent.
    tanh => Tanh;
    /// Returns the inverse hyperbolic sine.
    asinh => Asinh;
    /// Returns the inverse hyperbolic cosine; NaN for numbers below 1.
    acosh => Acosh;
    /// Returns the inverse hyperbolic tangent; infinite for -1 and 1, NaN outside.
    atanh => Atanh;
    /// Returns the error function.
    erf => Erf;
    /// Returns `1 / (1 + exp(-x))`.
    sigmoid => Sigmoid;
    /// Returns `x sigmoid(x)`, also called swish.
    silu => Silu;
    /// Returns `x (1 + erf(x / sqrt(2))) / 2`, PyTorch's default (candle's `gelu_erf`). D. Hendrycks and K. Gimpel,
    /// "Gaussian Error Linear Units", 2016.
    gelu => Gelu;
    /// Returns `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`, which approximates [`gelu`](Self::gelu) (candle's
    /// `gelu`).
    gelu_tanh => GeluTanh;
    /// Returns `min(max(x, 0), 6)`.
    relu6 => Relu6;
    /// Returns `x tanh(softplus(x))`. D. Misra, "Mish: A Self Regularized Non-Monotonic Activation Function", 2019.
    mish => Mish;
    /// Returns `log(1 + exp(x))`.
    softplus => Softplus;
    /// Returns `x / (1 + |x|)`.
    softsign => Softsign;
    /// Returns `min(max(x + 3, 0), 6) / 6`.
    hardsigmoid => Hardsigmoid;
    /// Returns `x hardsigmoid(x)`.
    hardswish => Hardswish;
    /// Returns `1.0507 x` for positive numbers, else `1.0507 1.6733 (exp(x) - 1)`, with more digits. G. Klambauer and
    /// others, "Self-Normalizing Neural Networks", 2017.
    selu => Selu;
    /// Returns whether the element is NaN, as `bool`.
    is_nan => IsNan;
    /// Returns whether the element is an infinity, as `bool`.
    is_inf => IsInf;
    /// Returns whether the element is neither NaN nor an infinity, as `bool`.
    is_finite => IsFinite;
    /// Returns whether the element is 0 or false, as `bool`.
    logical_not => LogicalNot;
    /// Returns the integer with all bits flipped; for `bool`, the other value.
    bitwise_not => BitwiseNot;
}
