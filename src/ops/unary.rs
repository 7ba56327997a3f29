//! Functions of one element.

use crate::base::error::Result;
use crate::kernels::expr::{Expr, UnaryOp};
use crate::lazy::Fusion;
use crate::tensor::Tensor;

impl Tensor {
    fn unary(&self, function: UnaryOp, op: &'static str) -> Result<Tensor> {
        function.domain().check(self.dtype(), op)?;
        let mut fusion = Fusion::new(self.shape().clone());
        let x = fusion.tensor(self, op)?;
        fusion.finish(Expr::Unary(function, x.into()), self.device(), op)
    }
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $function:ident;)*) => {
        /// Functions of one element, for every dtype where it makes sense; else
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
                /// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) where the function is not defined for the dtype.
                pub fn $name(&self) -> Result<Tensor> {
                    self.unary(UnaryOp::$function, stringify!($name))
                }
            )*
        }
    };
}

unary! {
    /// The negative value; of unsigned integers modulo 2^n.
    neg => Neg;
    /// The absolute value; of the smallest integer, which has none, itself.
    abs => Abs;
    /// -1, 0 or 1 by the sign; NaN of NaN.
    sign => Sign;
    /// The square (PyTorch's `square`).
    sqr => Sqr;
    /// `max(x, 0)`.
    relu => Relu;
    /// The largest whole number that is not larger.
    floor => Floor;
    /// The smallest whole number that is not smaller.
    ceil => Ceil;
    /// The nearest whole number, the even one of two equally near.
    round => Round;
    /// The whole number towards zero.
    trunc => Trunc;
    /// The square root; NaN of negative numbers.
    sqrt => Sqrt;
    /// `1 / sqrt(x)`.
    rsqrt => Rsqrt;
    /// `1 / x`.
    recip => Recip;
    /// e to the power of each element.
    exp => Exp;
    /// Two to the power of each element.
    exp2 => Exp2;
    /// `exp(x) - 1`, which keeps its digits near 0.
    expm1 => Expm1;
    /// The natural logarithm; minus infinity of 0, NaN of negative numbers.
    log => Log;
    /// The logarithm to base 2; minus infinity of 0, NaN of negative numbers.
    log2 => Log2;
    /// `log(1 + x)`, which keeps its digits near 0; minus infinity of -1, NaN of numbers below.
    log1p => Log1p;
    /// The sine of an angle in radians, accurate for magnitudes up to 10,000.
    sin => Sin;
    /// The cosine of an angle in radians, accurate for magnitudes up to 10,000.
    cos => Cos;
    /// The tangent of an angle in radians, accurate for magnitudes up to 10,000.
    tan => Tan;
    /// The arc sine in radians; NaN outside of -1 to 1.
    asin => Asin;
    /// The arc cosine in radians; NaN outside of -1 to 1.
    acos => Acos;
    /// The arc tangent in radians.
    atan => Atan;
    /// The hyperbolic sine.
    sinh => Sinh;
    /// The hyperbolic cosine.
    cosh => Cosh;
    /// The hyperbolic tangent.
    tanh => Tanh;
    /// The inverse hyperbolic sine.
    asinh => Asinh;
    /// The inverse hyperbolic cosine; NaN of numbers below 1.
    acosh => Acosh;
    /// The inverse hyperbolic tangent; infinite of -1 and 1, NaN outside.
    atanh => Atanh;
    /// The error function.
    erf => Erf;
    /// `1 / (1 + exp(-x))`.
    sigmoid => Sigmoid;
    /// `x sigmoid(x)`, also called swish.
    silu => Silu;
    /// `x (1 + erf(x / sqrt(2))) / 2`, PyTorch's default (candle's `gelu_erf`). D. Hendrycks and K. Gimpel,
    /// "Gaussian Error Linear Units", 2016.
    gelu => Gelu;
    /// The approximation `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2` of [`gelu`](Self::gelu) (candle's `gelu`).
    gelu_tanh => GeluTanh;
    /// `min(max(x, 0), 6)`.
    relu6 => Relu6;
    /// `x tanh(softplus(x))`. D. Misra, "Mish: A Self Regularized Non-Monotonic Activation Function", 2019.
    mish => Mish;
    /// `log(1 + exp(x))`.
    softplus => Softplus;
    /// `x / (1 + |x|)`.
    softsign => Softsign;
    /// `min(max(x + 3, 0), 6) / 6`.
    hardsigmoid => Hardsigmoid;
    /// `x hardsigmoid(x)`.
    hardswish => Hardswish;
    /// `1.0507 x` of positive numbers, else `1.0507 1.6733 (exp(x) - 1)`. G. Klambauer and others,
    /// "Self-Normalizing Neural Networks", 2017, with more digits.
    selu => Selu;
    /// Whether the element is NaN, as `bool`.
    is_nan => IsNan;
    /// Whether the element is an infinity, as `bool`.
    is_inf => IsInf;
    /// Whether the element is neither NaN nor an infinity, as `bool`.
    is_finite => IsFinite;
    /// Whether the element is 0 or false, as `bool`.
    logical_not => LogicalNot;
    /// Each bit of an integer the other way; of a truth value, the other one.
    bitwise_not => BitwiseNot;
}
