//! Arithmetic with numbers, and the operators `+ - * / % & | ^ << >> !`.

use super::TensorOrScalar;
use crate::base::error::{Error, Result};
use crate::base::number::Number;
use crate::base::word::Word;
use crate::kernels::expr::{BinaryOp, Domain, UnaryOp};
use crate::lazy::ExpressionBuilder;
use crate::tensor::Tensor;
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Shl, Shr, Sub};

impl Tensor {
    /// Returns `self * scale + shift`. The numbers are doubles, which hold integers exactly up to 2^53.
    /// [`mul`](Self::mul) and [`add`](Self::add) take larger integers exactly.
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
    /// [`Error::InvalidArgument`] if the dtype is an integer that cannot hold the numbers; [`Error::UnsupportedDType`]
    /// for `bool`.
    pub fn affine(&self, scale: f64, shift: f64) -> Result<Tensor> {
        Domain::Numbers.check(self.dtype(), "affine")?;
        let mut builder = ExpressionBuilder::in_order_of(self);
        let x = builder.tensor(self, "affine")?;
        let scale = builder.scalar(Word::of(scale, self.dtype(), "affine")?);
        let shift = builder.scalar(Word::of(shift, self.dtype(), "affine")?);
        let scaled = builder.binary(BinaryOp::Mul, x, scale);
        let y = builder.binary(BinaryOp::Add, scaled, shift);
        builder.finish(y, "affine")
    }

    /// Returns each element, limited to at least `low` and at most `high`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the dtype is an integer that cannot hold the numbers; [`Error::UnsupportedDType`]
    /// for `bool`.
    pub fn clamp(&self, low: impl Into<Number>, high: impl Into<Number>) -> Result<Tensor> {
        self.clamped(low.into(), high.into(), "clamp")
    }

    fn clamped(&self, low: Number, high: Number, op: &'static str) -> Result<Tensor> {
        Domain::Numbers.check(self.dtype(), op)?;
        let mut builder = ExpressionBuilder::in_order_of(self);
        let x = builder.tensor(self, op)?;
        let low = builder.scalar(Word::of(low, self.dtype(), op)?);
        let high = builder.scalar(Word::of(high, self.dtype(), op)?);
        let raised = builder.binary(BinaryOp::Maximum, x, low);
        let y = builder.binary(BinaryOp::Minimum, raised, high);
        builder.finish(y, op)
    }

    /// Returns each element, limited to at least -1 and at most 1.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for unsigned integers.
    pub fn hardtanh(&self) -> Result<Tensor> {
        self.clamped(Number::Integer(-1), Number::Integer(1), "hardtanh")
    }

    /// Returns each float to the power of a number; see [`pow`](Self::pow). As in PyTorch, these powers are other
    /// functions, which are faster and more exact:
    ///
    /// | exponent | function |
    /// |---|---|
    /// | 1 | `x` |
    /// | 2 | [`sqr`](Self::sqr) |
    /// | 3 | `x sqr(x)` |
    /// | 0.5 | [`sqrt`](Self::sqrt): NaN for negative infinity |
    /// | -0.5 | [`rsqrt`](Self::rsqrt) |
    /// | -1 | [`recip`](Self::recip) |
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
    /// [`Error::UnsupportedDType`] for integers and `bool`.
    pub fn powf(&self, exponent: f64) -> Result<Tensor> {
        Domain::Floats.check(self.dtype(), "powf")?;
        let unary = |function| self.unary(function, "powf");
        match exponent {
            1.0 => Ok(self.clone()),
            2.0 => unary(UnaryOp::Sqr),
            3.0 => self.binary((&unary(UnaryOp::Sqr)?).into(), BinaryOp::Mul, "powf"),
            0.5 => unary(UnaryOp::Sqrt),
            -0.5 => unary(UnaryOp::Rsqrt),
            -1.0 => unary(UnaryOp::Recip),
            _ => self.with_number(exponent, false, BinaryOp::Pow, "powf"),
        }
    }

    /// Returns `x` for positive numbers, else `slope x`.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for integers and `bool`.
    pub fn leaky_relu(&self, slope: f64) -> Result<Tensor> {
        self.with_number(slope, false, BinaryOp::LeakyRelu, "leaky_relu")
    }

    /// Returns `x` for positive numbers, else `weight x`. The weight is one number, or a vector with a number for each
    /// index of axis 1. A vector or scalar `x` takes one number. K. He and others, "Delving Deep into Rectifiers",
    /// 2015.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[-1f32, -1.0], [2.0, -4.0]], &device)?;
    /// let weight = Tensor::new([0.5f32, 0.25], &device)?;
    /// assert_eq!(x.prelu(&weight)?.to_vec::<f32>()?, [-0.5, -0.25, 2.0, -1.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for weights of another shape; [`Error::DTypeMismatch`], [`Error::DeviceMismatch`];
    /// [`Error::UnsupportedDType`] for integers and `bool`.
    pub fn prelu(&self, weight: &Tensor) -> Result<Tensor> {
        const OP: &str = "prelu";
        let channels = self.dims().get(1).copied().unwrap_or(1);
        if weight.rank() > 1 || (weight.elem_count() != 1 && weight.elem_count() != channels) {
            let hint = "the weight is one number, or a vector of one for each index of axis 1";
            let (lhs, rhs) = (self.shape().clone(), weight.shape().clone());
            return Err(Error::ShapeMismatch { op: OP, lhs, rhs, hint });
        }
        let mut weight = weight.flatten_all()?;
        for _ in 2..self.rank() {
            weight = weight.unsqueeze(-1)?;
        }
        let weight = if self.rank() == 0 { weight.squeeze(0)? } else { weight };
        self.binary((&weight).into(), BinaryOp::LeakyRelu, OP)
    }

    /// Returns `self + weight (end - self)`: the point between `self` and `end` that the weight selects. All are
    /// broadcast.
    ///
    /// If the weight is 0, the result is exactly `self`, and if it is 1, exactly `end`, even if the other one is
    /// infinite or NaN. Other weights follow PyTorch's formula. Weights below 0.5 give `self + weight (end - self)`.
    /// The others give `end - (end - self) (1 - weight)`, which is NaN if `end` is infinite.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let (start, end) = (Tensor::new([0f32, 10.0], &device)?, Tensor::new([1f32, 20.0], &device)?);
    /// assert_eq!(start.lerp(&end, 0.25)?.to_vec::<f32>()?, [0.25, 12.5]);
    /// let weight = Tensor::new([0f32, 1.0], &device)?;
    /// assert_eq!(start.lerp(&end, &weight)?.to_vec::<f32>()?, [0.0, 20.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::DeviceMismatch`]; [`Error::UnsupportedDType`] for
    /// integers and `bool`.
    pub fn lerp<'a>(&self, end: &Tensor, weight: impl Into<TensorOrScalar<'a>>) -> Result<Tensor> {
        const OP: &str = "lerp";
        Domain::Floats.check(self.dtype(), OP)?;
        let weight = weight.into();
        let mut shape = self.shape().broadcast_with(end.shape(), OP)?;
        for other in [TensorOrScalar::Tensor(end), weight] {
            if let TensorOrScalar::Tensor(other) = other {
                self.check_same_device(other, OP)?;
                self.check_same_dtype(other, OP)?;
                shape = shape.broadcast_with(other.shape(), OP)?;
            }
        }
        let mut builder = ExpressionBuilder::new(shape, self.device());
        let (start, end) = (builder.tensor(self, OP)?, builder.tensor(end, OP)?);
        let number = |number: Number| Word::of(number, self.dtype(), OP);
        let [half, one] = [number(0.5.into())?, number(1.into())?].map(|word| builder.scalar(word));
        let weight = match weight {
            TensorOrScalar::Tensor(weight) => builder.tensor(weight, OP)?,
            TensorOrScalar::Scalar(weight) => builder.scalar(number(weight)?),
        };
        let distance = builder.binary(BinaryOp::Sub, end, start);
        let from_start = builder.binary(BinaryOp::Mul, distance, weight);
        let from_start = builder.binary(BinaryOp::Add, start, from_start);
        let rest = builder.binary(BinaryOp::Sub, one, weight);
        let from_end = builder.binary(BinaryOp::Mul, distance, rest);
        let from_end = builder.binary(BinaryOp::Sub, end, from_end);
        // Computed from the nearer end, which is rounded less.
        let near_start = builder.binary(BinaryOp::Lt, weight, half);
        let between = builder.select(near_start, from_start, from_end);
        // At one end the other end does not count, even if it is infinite or NaN.
        let at_end = builder.binary(BinaryOp::Eq, weight, one);
        let after_start = builder.select(at_end, end, between);
        let at_start = builder.unary(UnaryOp::LogicalNot, weight);
        let lerp = builder.select(at_start, start, after_start);
        builder.finish(lerp, OP)
    }

    /// Returns `x` for positive numbers, else `alpha (exp(x) - 1)`. D. Clevert and others, "Fast and Accurate Deep
    /// Network Learning by Exponential Linear Units", 2015.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for integers and `bool`.
    pub fn elu(&self, alpha: f64) -> Result<Tensor> {
        self.with_number(alpha, false, BinaryOp::Elu, "elu")
    }

    /// Returns `x` for positive numbers, else `alpha (exp(x / alpha) - 1)`; NaN if both `alpha` and the element are 0.
    /// J. Barron, "Continuously Differentiable Exponential Linear Units", 2017.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for integers and `bool`.
    pub fn celu(&self, alpha: f64) -> Result<Tensor> {
        self.with_number(alpha, false, BinaryOp::Celu, "celu")
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $($number:ty),+ => $name:ident $function:ident;)*) => {$(
        operators!(@tensors $trait $method $name: Tensor, Tensor; Tensor, &Tensor; &Tensor, Tensor; &Tensor, &Tensor;);
        $(operators!(@number $trait $method $number => $name $function: Tensor; &Tensor;);)+
    )*};
    (@tensors $trait:ident $method:ident $name:ident: $($lhs:ty, $rhs:ty;)*) => {$(
        impl $trait<$rhs> for $lhs {
            type Output = Result<Tensor>;
            fn $method(self, rhs: $rhs) -> Result<Tensor> {
                let rhs: &Tensor = &rhs;
                Tensor::$name(&self, rhs)
            }
        }
    )*};
    (@number $trait:ident $method:ident $number:ty => $name:ident $function:ident: $($tensor:ty;)*) => {$(
        impl $trait<$number> for $tensor {
            type Output = Result<Tensor>;
            fn $method(self, rhs: $number) -> Result<Tensor> {
                self.with_number(rhs, false, BinaryOp::$function, stringify!($name))
            }
        }

        impl $trait<$tensor> for $number {
            type Output = Result<Tensor>;
            fn $method(self, rhs: $tensor) -> Result<Tensor> {
                rhs.with_number(self, true, BinaryOp::$function, stringify!($name))
            }
        }
    )*};
    (@unary $($trait:ident $method:ident => $name:ident;)*) => {$(
        operators!(@one $trait $method => $name: Tensor; &Tensor;);
    )*};
    (@one $trait:ident $method:ident => $name:ident: $($tensor:ty;)*) => {$(
        impl $trait for $tensor {
            type Output = Result<Tensor>;
            fn $method(self) -> Result<Tensor> {
                Tensor::$name(&self)
            }
        }
    )*};
}

// The right side of an operator is a tensor or a number. Numbers have one integer type and one float type, so that the
// compiler knows the type of the literal in `x + 1`.
operators! {
    Add add f64, i64 => add Add;
    Sub sub f64, i64 => sub Sub;
    Mul mul f64, i64 => mul Mul;
    Div div f64, i64 => div Div;
    Rem rem f64, i64 => rem Rem;
    BitAnd bitand i64 => bitwise_and BitwiseAnd;
    BitOr bitor i64 => bitwise_or BitwiseOr;
    BitXor bitxor i64 => bitwise_xor BitwiseXor;
    Shl shl i64 => shl Shl;
    Shr shr i64 => shr Shr;
}

operators! { @unary
    Neg neg => neg;
    Not not => bitwise_not;
}
