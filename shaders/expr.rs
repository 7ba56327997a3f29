//! Elementwise expressions: built by operations, fused with one another, turned into kernels.

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use smallvec::SmallVec;

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
    /// Returns what the name of a kernel says of gates with this function.
    pub fn name_of_gate(self) -> String {
        format!(", gated by {self:?}").to_lowercase()
    }

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

/// A term of an expression, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct TermId(u8);

/// One step of an expression. It names the terms before it that it computes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Term {
    /// The element of an input.
    Input(u8, DType),
    /// A number that is passed at the launch, so that kernels do not differ by its value.
    Scalar(u8, DType),
    /// The element's place in the output, counted in row-major order; `u32`.
    Index,
    Unary(UnaryOp, TermId),
    Binary(BinaryOp, TermId, TermId),
    /// The second if the first is nonzero, else the third.
    Select(TermId, TermId, TermId),
    Cast(DType, TermId),
}

/// The value of one output element as a function of the input elements at the same place: terms in the order in which
/// they are computed. The last one is the result.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Expr {
    terms: SmallVec<[Term; 4]>,
}

impl Term {
    /// Whether the term is an operation, not an operand.
    fn is_operation(self) -> bool {
        !matches!(self, Term::Input(..) | Term::Scalar(..) | Term::Index)
    }

    /// Returns the same step with other terms.
    #[inline]
    pub fn map(self, id: impl Fn(TermId) -> TermId) -> Term {
        match self {
            Term::Input(..) | Term::Scalar(..) | Term::Index => self,
            Term::Unary(op, x) => Term::Unary(op, id(x)),
            Term::Binary(op, a, b) => Term::Binary(op, id(a), id(b)),
            Term::Select(c, a, b) => Term::Select(id(c), id(a), id(b)),
            Term::Cast(dtype, x) => Term::Cast(dtype, id(x)),
        }
    }

    /// The terms that it computes with.
    fn operands(self) -> SmallVec<[TermId; 3]> {
        let mut operands = SmallVec::new();
        match self {
            Term::Input(..) | Term::Scalar(..) | Term::Index => {}
            Term::Unary(_, x) | Term::Cast(_, x) => operands.push(x),
            Term::Binary(_, a, b) => operands.extend([a, b]),
            Term::Select(c, a, b) => operands.extend([c, a, b]),
        }
        operands
    }
}

impl Term {
    /// Returns a number of 32 bits that no other term has.
    fn code(self) -> u64 {
        let [kind, a, b, c] = match self {
            Term::Input(i, dtype) => [0, i, dtype as u8, 0],
            Term::Scalar(i, dtype) => [1, i, dtype as u8, 0],
            Term::Index => [2, 0, 0, 0],
            Term::Unary(op, x) => [3, op as u8, x.0, 0],
            Term::Binary(op, a, b) => [4, op as u8, a.0, b.0],
            Term::Select(condition, a, b) => [5, condition.0, a.0, b.0],
            Term::Cast(dtype, x) => [6, dtype as u8, x.0, 0],
        };
        u64::from(u32::from_le_bytes([kind, a, b, c]))
    }
}

impl TermId {
    pub fn index(self) -> usize {
        self.0.into()
    }
}

impl Expr {
    /// Appends a term and returns its number.
    #[inline]
    pub fn push(&mut self, term: Term) -> TermId {
        debug_assert!(self.terms.len() < 1 << 8, "fusion limits the number of terms");
        self.terms.push(term);
        TermId((self.terms.len() - 1) as u8)
    }

    pub fn input(&mut self, input: usize, dtype: DType) -> TermId {
        self.push(Term::Input(input as u8, dtype))
    }

    pub fn scalar(&mut self, scalar: usize, dtype: DType) -> TermId {
        self.push(Term::Scalar(scalar as u8, dtype))
    }

    pub fn unary(&mut self, op: UnaryOp, x: TermId) -> TermId {
        self.push(Term::Unary(op, x))
    }

    pub fn binary(&mut self, op: BinaryOp, a: TermId, b: TermId) -> TermId {
        self.push(Term::Binary(op, a, b))
    }

    pub fn select(&mut self, condition: TermId, yes: TermId, no: TermId) -> TermId {
        self.push(Term::Select(condition, yes, no))
    }

    /// Appends a conversion, unless the term has the dtype already.
    pub fn cast(&mut self, dtype: DType, x: TermId) -> TermId {
        if self.dtype_of(x) == dtype { x } else { self.push(Term::Cast(dtype, x)) }
    }

    /// Swaps the numbers of two inputs.
    pub fn swap_inputs(&mut self, a: usize, b: usize) {
        for term in &mut self.terms {
            if let Term::Input(input, _) = term {
                match usize::from(*input) {
                    i if i == a => *input = b as u8,
                    i if i == b => *input = a as u8,
                    _ => {}
                }
            }
        }
    }

    /// Appends a conversion that rounds a number as memory would round it, unless that changes nothing. The number is
    /// the result of operations.
    #[inline]
    pub fn rounded(&mut self, dtype: DType, x: TermId) -> TermId {
        let rounds = matches!(dtype, DType::F16 | DType::BF16);
        match self.terms[x.index()] {
            Term::Cast(already, _) if already == dtype => x,
            term if rounds && term.is_operation() => self.push(Term::Cast(dtype, x)),
            _ => x,
        }
    }

    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// Returns the codes of the terms, two in a number. They tell an expression from others with as many terms, so a
    /// key needs the count, too.
    #[inline]
    pub fn codes(&self) -> impl ExactSizeIterator<Item = u64> {
        self.terms.chunks(2).map(|pair| pair.iter().rev().fold(0, |codes, term| codes << 32 | term.code()))
    }

    /// The term that is the result.
    pub fn result(&self) -> TermId {
        TermId((self.terms.len() - 1) as u8)
    }

    /// The dtype of the result.
    pub fn dtype(&self) -> DType {
        self.dtype_of(self.result())
    }

    /// The dtype of a term.
    #[inline]
    pub fn dtype_of(&self, mut id: TermId) -> DType {
        loop {
            id = match self.terms[id.index()] {
                Term::Input(_, dtype) | Term::Scalar(_, dtype) | Term::Cast(dtype, _) => return dtype,
                Term::Index => return DType::U32,
                Term::Unary(op, _) if op.is_test() => return DType::Bool,
                Term::Binary(op, ..) if op.is_test() => return DType::Bool,
                Term::Unary(_, x) | Term::Binary(_, x, _) | Term::Select(_, x, _) => x,
            }
        }
    }

    /// The number of operations. Fusion limits it.
    pub fn operations(&self) -> usize {
        self.terms.iter().filter(|term| term.is_operation()).count()
    }

    /// Returns the same expression without terms that come twice.
    pub fn deduplicated(&self) -> (Expr, SmallVec<[TermId; 12]>) {
        let mut unique = Expr::default();
        let mut ids: SmallVec<[TermId; 12]> = SmallVec::new();
        for term in &self.terms {
            let term = term.map(|id| ids[id.index()]);
            let known = unique.terms.iter().position(|&known| known == term);
            ids.push(known.map_or_else(|| unique.push(term), |known| TermId(known as u8)));
        }
        (unique, ids)
    }

    /// Returns a name for traces, such as `gelu(add(x0, x1))`. An operation that is used twice gets a name of its own:
    /// `t = add(x0, x1); mul(t, t)`.
    pub fn describe(&self) -> String {
        let mut uses = vec![0; self.terms.len()];
        self.terms.iter().flat_map(|term| term.operands()).for_each(|id| uses[id.index()] += 1);
        let lower = |op: &dyn std::fmt::Debug| format!("{op:?}").to_lowercase();
        let (mut texts, mut named): (Vec<String>, String) = (Vec::new(), String::new());
        for (i, &term) in self.terms.iter().enumerate() {
            let of = |id: TermId| &texts[id.index()];
            let text = match term {
                Term::Input(i, _) => format!("x{i}"),
                Term::Scalar(i, _) => format!("s{i}"),
                Term::Index => "index".into(),
                Term::Unary(op, x) => format!("{}({})", lower(&op), of(x)),
                Term::Binary(op, a, b) => format!("{}({}, {})", lower(&op), of(a), of(b)),
                Term::Select(c, a, b) => format!("select({}, {}, {})", of(c), of(a), of(b)),
                Term::Cast(dtype, x) => format!("{dtype}({})", of(x)),
            };
            texts.push(if uses[i] > 1 && term.is_operation() {
                named += &format!("t{i} = {text}; ");
                format!("t{i}")
            } else {
                text
            });
        }
        named + texts.last().map_or("", |text| text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Of three terms, the last code is for one.
    #[test]
    fn codes_tell_expressions_apart() {
        let (x, y, other) = (Term::Input(0, DType::F32), Term::Scalar(1, DType::F32), Term::Scalar(1, DType::F16));
        let [a, b] = [0, 1].map(TermId);
        let (sum, difference, double) =
            (Term::Binary(BinaryOp::Add, a, b), Term::Binary(BinaryOp::Sub, a, b), Term::Binary(BinaryOp::Add, a, a));
        let exprs = [[x, y, sum], [y, x, sum], [x, other, sum], [x, y, difference], [x, y, double]];
        let codes = exprs.map(|terms| -> Vec<u64> { Expr { terms: terms.as_slice().into() }.codes().collect() });
        let unique: HashSet<_> = codes.iter().collect();
        assert_eq!(unique.len(), codes.len(), "{codes:?}");
        assert!(codes.iter().all(|codes| codes.len() == 2), "{codes:?}");
    }

    #[test]
    fn what_is_used_twice_is_described_once() {
        let mut expr = Expr::default();
        let mut x = expr.input(0, DType::F32);
        for _ in 0..100 {
            x = expr.binary(BinaryOp::Add, x, x);
        }
        expr.unary(UnaryOp::Gelu, x);
        assert!(expr.describe().starts_with("t1 = add(x0, x0); t2 = add(t1, t1); "));
        assert!(expr.describe().ends_with("; gelu(add(t99, t99))"));
    }

    #[test]
    fn equal_terms_become_one() {
        let mut expr = Expr::default();
        let terms = [0, 1].map(|_| {
            let x = expr.input(0, DType::F32);
            expr.unary(UnaryOp::Exp, x)
        });
        expr.binary(BinaryOp::Sub, terms[0], terms[1]);
        let (unique, ids) = expr.deduplicated();
        assert_eq!(unique.describe(), "t1 = exp(x0); sub(t1, t1)");
        assert_eq!(ids.as_slice(), [0, 1, 0, 1, 2].map(TermId));
    }
}
