//! Functions of one element.

use crate::error::{Error, Result};
use crate::expr::{Expr, UnaryOp};
use crate::tensor::{Fusion, Tensor};

impl Tensor {
    fn unary(&self, function: UnaryOp, op: &'static str) -> Result<Tensor> {
        if !self.dtype().is_float() && !function.takes_integers() {
            return Err(Error::UnsupportedDType { op, dtype: self.dtype(), expected: "f32 and f16" });
        }
        let mut fusion = Fusion::new(self.shape().clone());
        let x = fusion.tensor(self, op)?;
        fusion.finish(Expr::Unary(function, x.into()), self.device(), op)
    }
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $function:ident;)*) => {
        /// Functions of one element, for every dtype where it makes sense; else [`Error::UnsupportedDType`].
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
                /// [`Error::UnsupportedDType`] where the function is not defined for the dtype.
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
    /// The absolute value; of `i32::MIN` it is `i32::MIN`.
    abs => Abs;
    /// -1, 0 or 1 by the sign; NaN of NaN.
    sign => Sign;
    /// The square.
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
    /// The natural logarithm; minus infinity of 0, NaN of negative numbers.
    log => Log;
    /// The sine of an angle in radians, accurate for magnitudes up to 8192.
    sin => Sin;
    /// The cosine of an angle in radians, accurate for magnitudes up to 8192.
    cos => Cos;
    /// The hyperbolic tangent.
    tanh => Tanh;
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
}
