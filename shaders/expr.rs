//! Elementwise expression trees: built by operations, fused with one another, turned into kernels.

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};

/// The dtypes that a function takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Domain {
    All,
    Numbers,
    Floats,
    Integers,
    /// Integers that index elements.
    Indexes,
    /// Integers and truth values.
    Bits,
}

impl Domain {
    fn contains(self, dtype: DType) -> bool {
        match self {
            Domain::All => true,
            Domain::Numbers => dtype != DType::Bool,
            Domain::Floats => dtype.is_float(),
            Domain::Integers | Domain::Indexes => dtype.is_integer(),
            Domain::Bits => !dtype.is_float(),
        }
    }

    /// Describes the dtypes for an error message.
    fn describe(self) -> &'static str {
        match self {
            Domain::All => "all dtypes",
            Domain::Numbers => "numbers (all dtypes but bool)",
            Domain::Floats => "f32, f16, bf16 and f64",
            Domain::Integers => "u8, i8, u32, i32 and i64",
            Domain::Indexes => "u8, i8, u32, i32 and i64 (the indexes)",
            Domain::Bits => "bool, u8, i8, u32, i32 and i64",
        }
    }

    /// Fails if the function does not take `dtype`.
    pub fn check(self, dtype: DType, op: &'static str) -> Result<()> {
        if self.contains(dtype) {
            return Ok(());
        }
        Err(Error::UnsupportedDType { op, dtype, expected: self.describe() })
    }
}

/// A function of one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum UnaryOp {
    Neg,
    Abs,
    Sign,
    Sqr,
    Floor,
    Ceil,
    Round,
    Trunc,
    Sqrt,
    Rsqrt,
    Recip,
    Exp,
    Exp2,
    Expm1,
    Log,
    Log2,
    Log1p,
    Sin,
    Cos,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Tanh,
    Asinh,
    Acosh,
    Atanh,
    Erf,
    Sigmoid,
    Relu,
    Silu,
    Gelu,
    GeluTanh,
    Relu6,
    Mish,
    Softplus,
    Softsign,
    Hardsigmoid,
    Hardswish,
    Selu,
    IsNan,
    IsInf,
    IsFinite,
    LogicalNot,
    BitwiseNot,
}

impl UnaryOp {
    /// The dtypes for which the function makes sense.
    pub fn domain(self) -> Domain {
        use UnaryOp::*;
        match self {
            IsNan | IsInf | IsFinite | LogicalNot => Domain::All,
            Neg | Abs | Sign | Sqr | Relu | Relu6 => Domain::Numbers,
            BitwiseNot => Domain::Bits,
            _ => Domain::Floats,
        }
    }

    /// True if the result is a truth value.
    pub fn is_test(self) -> bool {
        use UnaryOp::*;
        matches!(self, IsNan | IsInf | IsFinite | LogicalNot)
    }
}

/// A function of two numbers of one dtype.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    Maximum,
    Minimum,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Pow,
    Rem,
    Fmod,
    Atan2,
    BitwiseAnd,
    BitwiseOr,
    BitwiseXor,
    Shl,
    Shr,
    LogicalAnd,
    LogicalOr,
    LogicalXor,
    /// The second number is the slope below 0.
    LeakyRelu,
    /// The second number is alpha.
    Elu,
    /// The second number is alpha.
    Celu,
}

impl BinaryOp {
    /// The dtypes for which the function makes sense.
    pub fn domain(self) -> Domain {
        use BinaryOp::*;
        match self {
            LeakyRelu | Atan2 | Elu | Celu => Domain::Floats,
            Add | Sub | Mul | Div | Rem | Fmod | Pow => Domain::Numbers,
            BitwiseAnd | BitwiseOr | BitwiseXor => Domain::Bits,
            Shl | Shr => Domain::Integers,
            Maximum | Minimum | Eq | Ne | Lt | Le | Gt | Ge | LogicalAnd | LogicalOr | LogicalXor => Domain::All,
        }
    }

    /// True if the result is a truth value.
    pub fn is_test(self) -> bool {
        use BinaryOp::*;
        matches!(self, Eq | Ne | Lt | Le | Gt | Ge | LogicalAnd | LogicalOr | LogicalXor)
    }
}

/// The value of one output element as a function of the input elements at the same place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Expr {
    /// The element of an input.
    Input(usize, DType),
    /// A number that is passed at the launch, so that kernels do not differ by its value.
    Scalar(usize, DType),
    /// The element's place in the output, counted in row-major order; `u32`.
    Index,
    Unary(UnaryOp, Box<Expr>),
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    /// The second if the first is nonzero, else the third.
    Select(Box<Expr>, Box<Expr>, Box<Expr>),
    Cast(DType, Box<Expr>),
}

impl Expr {
    /// The dtype of the result.
    pub fn dtype(&self) -> DType {
        match self {
            Expr::Input(_, dtype) | Expr::Scalar(_, dtype) | Expr::Cast(dtype, _) => *dtype,
            Expr::Index => DType::U32,
            Expr::Unary(op, _) if op.is_test() => DType::Bool,
            Expr::Binary(op, ..) if op.is_test() => DType::Bool,
            Expr::Unary(_, x) => x.dtype(),
            Expr::Binary(_, a, _) => a.dtype(),
            Expr::Select(_, yes, _) => yes.dtype(),
        }
    }

    /// The number of operations. Fusion limits it.
    pub fn operations(&self) -> usize {
        match self {
            Expr::Input(..) | Expr::Scalar(..) | Expr::Index => 0,
            Expr::Unary(_, x) | Expr::Cast(_, x) => 1 + x.operations(),
            Expr::Binary(_, a, b) => 1 + a.operations() + b.operations(),
            Expr::Select(c, a, b) => 1 + c.operations() + a.operations() + b.operations(),
        }
    }

    /// Returns the tree with its inputs replaced and its scalars renumbered.
    pub fn over(&self, inputs: &[Expr], scalars: &[usize]) -> Expr {
        let again = |x: &Expr| Box::new(x.over(inputs, scalars));
        match self {
            Expr::Input(i, _) => inputs[*i].clone(),
            Expr::Scalar(i, dtype) => Expr::Scalar(scalars[*i], *dtype),
            Expr::Index => Expr::Index,
            Expr::Unary(op, x) => Expr::Unary(*op, again(x)),
            Expr::Binary(op, a, b) => Expr::Binary(*op, again(a), again(b)),
            Expr::Select(c, a, b) => Expr::Select(again(c), again(a), again(b)),
            Expr::Cast(dtype, x) => Expr::Cast(*dtype, again(x)),
        }
    }

    /// Returns a name for traces, such as `gelu(add(x0, x1))`.
    pub fn describe(&self) -> String {
        let lower = |op: &dyn std::fmt::Debug| format!("{op:?}").to_lowercase();
        match self {
            Expr::Input(i, _) => format!("x{i}"),
            Expr::Scalar(i, _) => format!("s{i}"),
            Expr::Index => "index".into(),
            Expr::Unary(op, x) => format!("{}({})", lower(op), x.describe()),
            Expr::Binary(op, a, b) => format!("{}({}, {})", lower(op), a.describe(), b.describe()),
            Expr::Select(c, a, b) => format!("select({}, {}, {})", c.describe(), a.describe(), b.describe()),
            Expr::Cast(dtype, x) => format!("{dtype}({})", x.describe()),
        }
    }
}
