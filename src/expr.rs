//! Elementwise expression trees: built by operations, fused with one another, turned into kernels.

use crate::dtype::DType;

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
    Log,
    Sin,
    Cos,
    Tanh,
    Erf,
    Sigmoid,
    Relu,
    Silu,
    Gelu,
    GeluTanh,
}

impl UnaryOp {
    /// Whether the function makes sense for integers too.
    pub fn takes_integers(self) -> bool {
        use UnaryOp::*;
        matches!(self, Neg | Abs | Sign | Sqr | Relu)
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
}

impl BinaryOp {
    /// Whether the result is a truth value, of dtype `u8`.
    pub fn is_comparison(self) -> bool {
        use BinaryOp::*;
        matches!(self, Eq | Ne | Lt | Le | Gt | Ge)
    }
}

/// The value of one output element as a function of the input elements at the same place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Expr {
    /// The element of an input.
    Input(usize, DType),
    /// A number that is handed over at the launch, so that it does not make a kernel of its own.
    Scalar(usize, DType),
    /// The element's place in the output, counted in row-major order; `u32`.
    Index,
    Unary(UnaryOp, Box<Expr>),
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    /// The second where the first is not 0, else the third.
    Select(Box<Expr>, Box<Expr>, Box<Expr>),
    Cast(DType, Box<Expr>),
}

impl Expr {
    /// The dtype of the result.
    pub fn dtype(&self) -> DType {
        match self {
            Expr::Input(_, dtype) | Expr::Scalar(_, dtype) | Expr::Cast(dtype, _) => *dtype,
            Expr::Index => DType::U32,
            Expr::Unary(_, x) => x.dtype(),
            Expr::Binary(op, ..) if op.is_comparison() => DType::U8,
            Expr::Binary(_, a, _) => a.dtype(),
            Expr::Select(_, yes, _) => yes.dtype(),
        }
    }

    /// The number of operations, by which fusion is bounded.
    pub fn operations(&self) -> usize {
        match self {
            Expr::Input(..) | Expr::Scalar(..) | Expr::Index => 0,
            Expr::Unary(_, x) | Expr::Cast(_, x) => 1 + x.operations(),
            Expr::Binary(_, a, b) => 1 + a.operations() + b.operations(),
            Expr::Select(c, a, b) => 1 + c.operations() + a.operations() + b.operations(),
        }
    }

    /// The same tree with its inputs and scalars renumbered.
    pub fn renumbered(&self, inputs: &[usize], scalars: &[usize]) -> Expr {
        let again = |x: &Expr| Box::new(x.renumbered(inputs, scalars));
        match self {
            Expr::Input(i, dtype) => Expr::Input(inputs[*i], *dtype),
            Expr::Scalar(i, dtype) => Expr::Scalar(scalars[*i], *dtype),
            Expr::Index => Expr::Index,
            Expr::Unary(op, x) => Expr::Unary(*op, again(x)),
            Expr::Binary(op, a, b) => Expr::Binary(*op, again(a), again(b)),
            Expr::Select(c, a, b) => Expr::Select(again(c), again(a), again(b)),
            Expr::Cast(dtype, x) => Expr::Cast(*dtype, again(x)),
        }
    }

    /// A name for traces, such as `gelu(add(x0, x1))`.
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
