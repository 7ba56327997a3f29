//! Arithmetic with numbers, and the operators `+ - * /`.

use crate::error::Result;
use crate::expr::{BinaryOp, Domain, Expr};
use crate::tensor::{Fusion, Tensor, Word};
use std::ops::{Add, Div, Mul, Neg, Sub};

impl Tensor {
    /// `self * scale + shift`.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([1f32, 2.0], &device)?;
    /// assert_eq!(x.affine(2.0, -1.0)?.to_vec::<f32>()?, [1.0, 3.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) where the dtype is an integer that cannot hold the
    /// numbers; [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) of truth values.
    pub fn affine(&self, scale: f64, shift: f64) -> Result<Tensor> {
        Domain::Numbers.check(self.dtype(), "affine")?;
        let mut fusion = Fusion::new(self.shape().clone());
        let x = fusion.tensor(self, "affine")?;
        let scale = fusion.scalar(Word::from_f64(scale, self.dtype(), "affine")?);
        let shift = fusion.scalar(Word::from_f64(shift, self.dtype(), "affine")?);
        let scaled = Expr::Binary(BinaryOp::Mul, x.into(), scale.into());
        fusion.finish(Expr::Binary(BinaryOp::Add, scaled.into(), shift.into()), self.device(), "affine")
    }

    /// Each element, but at least `low` and at most `high` (PyTorch's `clamp` and `hardtanh`).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) where the dtype is an integer that cannot hold the
    /// numbers; [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) of truth values.
    pub fn clamp(&self, low: f64, high: f64) -> Result<Tensor> {
        Domain::Numbers.check(self.dtype(), "clamp")?;
        let mut fusion = Fusion::new(self.shape().clone());
        let x = fusion.tensor(self, "clamp")?;
        let low = fusion.scalar(Word::from_f64(low, self.dtype(), "clamp")?);
        let high = fusion.scalar(Word::from_f64(high, self.dtype(), "clamp")?);
        let raised = Expr::Binary(BinaryOp::Maximum, x.into(), low.into());
        fusion.finish(Expr::Binary(BinaryOp::Minimum, raised.into(), high.into()), self.device(), "clamp")
    }

    /// Each element to the power of a number; see [`pow`](Self::pow).
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([1f32, 2.0, 3.0], &device)?;
    /// assert_eq!(x.powf(0.0)?.to_vec::<f32>()?, [1.0, 1.0, 1.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) of integers and truth values.
    pub fn powf(&self, exponent: f64) -> Result<Tensor> {
        self.with_number(exponent, false, BinaryOp::Pow, "powf")
    }

    /// `x` of positive numbers, else `slope x`.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) of integers and truth values.
    pub fn leaky_relu(&self, slope: f64) -> Result<Tensor> {
        self.with_number(slope, false, BinaryOp::LeakyRelu, "leaky_relu")
    }

    /// `x` of positive numbers, else `alpha (exp(x) - 1)`. D. Clevert and others, "Fast and Accurate Deep Network
    /// Learning by Exponential Linear Units", 2015.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) of integers and truth values.
    pub fn elu(&self, alpha: f64) -> Result<Tensor> {
        self.with_number(alpha, false, BinaryOp::Elu, "elu")
    }

    /// `x` of positive numbers, else `alpha (exp(x / alpha) - 1)`; NaN where `alpha` is 0 and so is the element.
    /// J. Barron, "Continuously Differentiable Exponential Linear Units", 2017.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) of integers and truth values.
    pub fn celu(&self, alpha: f64) -> Result<Tensor> {
        self.with_number(alpha, false, BinaryOp::Celu, "celu")
    }

    /// `self op number`, or `number op self` where `reversed`.
    fn with_number(&self, number: f64, reversed: bool, function: BinaryOp, op: &'static str) -> Result<Tensor> {
        function.domain().check(self.dtype(), op)?;
        let mut fusion = Fusion::new(self.shape().clone());
        let x = fusion.tensor(self, op)?;
        let number = fusion.scalar(Word::from_f64(number, self.dtype(), op)?);
        let (a, b) = if reversed { (number, x) } else { (x, number) };
        fusion.finish(Expr::Binary(function, a.into(), b.into()), self.device(), op)
    }
}

macro_rules! operator {
    ($($trait:ident $method:ident $function:ident;)*) => {$(
        operator!(@tensors $trait $method: Tensor, Tensor; Tensor, &Tensor; &Tensor, Tensor; &Tensor, &Tensor;);
        operator!(@number $trait $method $function: Tensor; &Tensor;);
    )*};
    (@tensors $trait:ident $method:ident: $($lhs:ty, $rhs:ty;)*) => {$(
        impl $trait<$rhs> for $lhs {
            type Output = Result<Tensor>;
            fn $method(self, rhs: $rhs) -> Result<Tensor> {
                Tensor::$method(&self, &rhs)
            }
        }
    )*};
    (@number $trait:ident $method:ident $function:ident: $($tensor:ty;)*) => {$(
        impl $trait<f64> for $tensor {
            type Output = Result<Tensor>;
            fn $method(self, rhs: f64) -> Result<Tensor> {
                self.with_number(rhs, false, BinaryOp::$function, stringify!($method))
            }
        }

        impl $trait<$tensor> for f64 {
            type Output = Result<Tensor>;
            fn $method(self, rhs: $tensor) -> Result<Tensor> {
                rhs.with_number(self, true, BinaryOp::$function, stringify!($method))
            }
        }
    )*};
}

operator! {
    Add add Add;
    Sub sub Sub;
    Mul mul Mul;
    Div div Div;
}

impl Neg for &Tensor {
    type Output = Result<Tensor>;
    fn neg(self) -> Result<Tensor> {
        Tensor::neg(self)
    }
}

impl Neg for Tensor {
    type Output = Result<Tensor>;
    fn neg(self) -> Result<Tensor> {
        Tensor::neg(&self)
    }
}
