//! [`Value`]: something computed in a kernel, with the operators of Rust.

use super::builder::KernelBuilder;
use super::target::Dialect;
use super::types::{Scalar, Type};
use half::f16;
use rspirv::dr::Operand;
use rspirv::spirv::{Op, Word};
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Shl, Shr, Sub};

/// A scalar or vector in a register. Operators record instructions. Vectors are computed lane by lane. If one operand
/// is a scalar and the other a vector, the scalar is spread over the lanes.
#[derive(Clone, Copy)]
pub struct Value<'k> {
    pub(super) kernel: &'k KernelBuilder,
    pub(super) id: Word,
    pub(super) ty: Type,
}

/// The right side of an operator: a value, or a number, which takes the type of the left side.
pub trait IntoValue<'k> {
    /// Returns a number as a value of type `like`. A value keeps its type, but a scalar is spread over the lanes of
    /// `like`.
    fn into_value(self, kernel: &'k KernelBuilder, like: Type) -> Value<'k>;
}

impl<'k> IntoValue<'k> for Value<'k> {
    fn into_value(self, kernel: &'k KernelBuilder, like: Type) -> Value<'k> {
        kernel.check_own(self);
        if self.ty.lanes == 1 && like.lanes > 1 { self.splat(like.lanes) } else { self }
    }
}

macro_rules! number_into_value {
    ($($number:ty),+) => {$(
        impl<'k> IntoValue<'k> for $number {
            fn into_value(self, kernel: &'k KernelBuilder, like: Type) -> Value<'k> {
                let bits = match like.scalar {
                    Scalar::F32 => (self as f32).to_bits().into(),
                    Scalar::F64 => (self as f64).to_bits(),
                    Scalar::F16 => f16::from_f64(self as f64).to_bits().into(),
                    Scalar::I32 => (self as i32).cast_unsigned().into(),
                    Scalar::I64 => (self as i64).cast_unsigned(),
                    Scalar::U32 => (self as u32).into(),
                    Scalar::Bool => u64::from(self as u32 != 0),
                };
                kernel.constant(like, bits)
            }
        }
    )+};
}

number_into_value!(i32, u32, i64, f32, f64);

/// The instructions of an operator, by the kind of its operands.
struct Opcodes {
    symbol: &'static str,
    float: Option<Op>,
    signed: Option<Op>,
    unsigned: Option<Op>,
    bool: Option<Op>,
}

impl Opcodes {
    const fn arithmetic(symbol: &'static str, float: Op, signed: Op, unsigned: Op) -> Self {
        Opcodes { symbol, float: Some(float), signed: Some(signed), unsigned: Some(unsigned), bool: None }
    }

    const fn bits(symbol: &'static str, signed: Op, unsigned: Op, bool: Option<Op>) -> Self {
        Opcodes { symbol, float: None, signed: Some(signed), unsigned: Some(unsigned), bool }
    }

    fn select(&self, ty: Type) -> Option<Op> {
        match ty.scalar {
            Scalar::F32 | Scalar::F64 | Scalar::F16 => self.float,
            Scalar::I32 | Scalar::I64 => self.signed,
            Scalar::U32 => self.unsigned,
            Scalar::Bool => self.bool,
        }
    }
}

/// Whether an instruction shifts bits.
fn is_shift(op: Op) -> bool {
    matches!(op, Op::ShiftLeftLogical | Op::ShiftRightArithmetic | Op::ShiftRightLogical)
}

impl<'k> Value<'k> {
    /// Its type.
    pub fn ty(self) -> Type {
        self.ty
    }

    pub(super) fn operand(self) -> Operand {
        Operand::IdRef(self.id)
    }

    /// Returns a number as a value of this value's type.
    pub fn literal(self, number: impl IntoValue<'k>) -> Value<'k> {
        number.into_value(self.kernel, self.ty)
    }

    fn binary(self, rhs: impl IntoValue<'k>, opcodes: &Opcodes, result: impl Fn(Type) -> Type) -> Value<'k> {
        if opcodes.select(self.ty).is_some_and(is_shift) && self.ty.scalar == Scalar::I64 {
            return self.shift_wide(rhs, opcodes);
        }
        let rhs = rhs.into_value(self.kernel, self.ty);
        let lhs = if self.ty.lanes == 1 && rhs.ty.lanes > 1 { self.splat(rhs.ty.lanes) } else { self };
        match opcodes.select(lhs.ty) {
            // naga takes these for the scalar operators `&&` and `||`.
            Some(Op::LogicalAnd) if lhs.ty.lanes > 1 && lhs.ty == rhs.ty => lhs.select(rhs, 0),
            Some(Op::LogicalOr) if lhs.ty.lanes > 1 && lhs.ty == rhs.ty => lhs.select(lhs.literal(1), rhs),
            // Intel's offline compiler (22.43) fails on the instruction.
            Some(Op::LogicalNotEqual) if lhs.ty == rhs.ty => lhs.select(!rhs, rhs),
            Some(op) if lhs.ty == rhs.ty => {
                let rhs = if lhs.kernel.checked { lhs.defined_operand(op, rhs) } else { rhs };
                if op == Op::SRem {
                    // Vulkan leaves the instruction undefined for negative numbers, and NVIDIA's driver makes use of
                    // that.
                    let quotient = lhs.kernel.emit(Op::SDiv, lhs.ty, [lhs.operand(), rhs.operand()]);
                    return lhs - quotient * rhs;
                }
                lhs.kernel.emit(op, result(lhs.ty), [lhs.operand(), rhs.operand()])
            }
            _ => {
                self.kernel.fail(format!("`{}` is not defined between {} and {}", opcodes.symbol, lhs.ty, rhs.ty));
                lhs.kernel.constant(result(lhs.ty), 0u32)
            }
        }
    }

    /// Returns the operand, or another one if the instruction's result would be undefined with it.
    fn defined_operand(self, op: Op, rhs: Value<'k>) -> Value<'k> {
        match op {
            Op::UDiv | Op::UMod => rhs.eq(0).select(rhs.literal(1), rhs),
            Op::SDiv | Op::SRem => {
                let smallest = if self.ty.scalar == Scalar::I64 { i64::MIN } else { i32::MIN.into() };
                let overflow = rhs.eq(-1) & self.eq(smallest);
                (rhs.eq(0) | overflow).select(rhs.literal(1), rhs)
            }
            _ if is_shift(op) => rhs & (8 * self.ty.lane().size_in_bytes() - 1),
            _ => rhs,
        }
    }

    /// Shifts 64 bits. The count has 32 bits in WGSL, and 64 bits for compilers of OpenCL.
    fn shift_wide(self, count: impl IntoValue<'k>, opcodes: &Opcodes) -> Value<'k> {
        let scalar = if self.kernel.target().dialect == Dialect::Vulkan { Scalar::U32 } else { Scalar::I64 };
        let count = count.into_value(self.kernel, self.ty.with_scalar(scalar));
        let fits = count.ty.is_integer() && count.ty.lanes == self.ty.lanes;
        let Some(op) = opcodes.select(self.ty).filter(|_| fits) else {
            self.kernel.fail(format!("`{}` is not defined between {} and {}", opcodes.symbol, self.ty, count.ty));
            return self;
        };
        let count = count.convert(scalar);
        let count = if self.kernel.checked { self.defined_operand(op, count) } else { count };
        self.kernel.emit(op, self.ty, [self.operand(), count.operand()])
    }

    fn compare(self, rhs: impl IntoValue<'k>, opcodes: &Opcodes) -> Value<'k> {
        self.binary(rhs, opcodes, |ty| ty.with_scalar(Scalar::Bool))
    }

    /// `self < rhs`. False if a side is NaN.
    pub fn lt(self, rhs: impl IntoValue<'k>) -> Value<'k> {
        self.compare(rhs, &Opcodes::arithmetic("<", Op::FOrdLessThan, Op::SLessThan, Op::ULessThan))
    }

    /// `self <= rhs`. False if a side is NaN.
    pub fn le(self, rhs: impl IntoValue<'k>) -> Value<'k> {
        self.compare(rhs, &Opcodes::arithmetic("<=", Op::FOrdLessThanEqual, Op::SLessThanEqual, Op::ULessThanEqual))
    }

    /// `self > rhs`. False if a side is NaN.
    pub fn gt(self, rhs: impl IntoValue<'k>) -> Value<'k> {
        self.compare(rhs, &Opcodes::arithmetic(">", Op::FOrdGreaterThan, Op::SGreaterThan, Op::UGreaterThan))
    }

    /// `self >= rhs`. False if a side is NaN.
    pub fn ge(self, rhs: impl IntoValue<'k>) -> Value<'k> {
        let ops = Opcodes::arithmetic(">=", Op::FOrdGreaterThanEqual, Op::SGreaterThanEqual, Op::UGreaterThanEqual);
        self.compare(rhs, &ops)
    }

    /// `self == rhs`. False if a side is NaN.
    pub fn eq(self, rhs: impl IntoValue<'k>) -> Value<'k> {
        let ops = Opcodes {
            bool: Some(Op::LogicalEqual),
            ..Opcodes::arithmetic("==", Op::FOrdEqual, Op::IEqual, Op::IEqual)
        };
        self.compare(rhs, &ops)
    }

    /// `self != rhs`. True if a side is NaN.
    pub fn ne(self, rhs: impl IntoValue<'k>) -> Value<'k> {
        // The instruction is not used: on its way through WGSL it becomes one that is false for NaN.
        !self.eq(rhs)
    }

    /// Chooses between two values, lane by lane: `yes` if this condition holds, else `no`. `no` may be a number.
    pub fn select(self, yes: Value<'k>, no: impl IntoValue<'k>) -> Value<'k> {
        self.kernel.check_own(yes);
        let no = no.into_value(self.kernel, yes.ty);
        let condition = if self.ty.lanes == 1 && yes.ty.lanes > 1 { self.splat(yes.ty.lanes) } else { self };
        if condition.ty != yes.ty.with_scalar(Scalar::Bool) || yes.ty != no.ty {
            self.kernel.fail(format!("select: {} chooses between {} and {}", self.ty, yes.ty, no.ty));
            return yes;
        }
        self.kernel.emit(Op::Select, yes.ty, [condition.operand(), yes.operand(), no.operand()])
    }

    /// The same bits as another type of the same size. Through WGSL, no bits of 32-bit numbers become halves, or the
    /// other way round.
    pub fn bitcast(self, ty: Type) -> Value<'k> {
        let ty = self.kernel.possible(ty);
        if ty == self.ty {
            return self;
        }
        // naga would keep the number of lanes, and so make a number of 32 bits.
        if self.kernel.target().wgsl && (self.ty.scalar == Scalar::F16) != (ty.scalar == Scalar::F16) {
            self.kernel.fail(format!("bitcast from {} to {ty} through WGSL: naga translates none", self.ty));
        }
        if self.ty.size_in_bytes() != ty.size_in_bytes() || self.ty.scalar == Scalar::Bool {
            self.kernel.fail(format!("bitcast from {} to {ty}", self.ty));
        }
        if self.kernel.type_id(ty) == self.kernel.type_id(self.ty) {
            return Value { ty, ..self };
        }
        self.kernel.emit(Op::Bitcast, ty, [self.operand()])
    }

    /// Converts to the nearest value of another type, lane by lane. A float is cut towards zero to an integer; it
    /// saturates, and NaN becomes 0. An integer is cut modulo 2^32. A truth value becomes 0 or 1.
    pub fn convert(self, scalar: Scalar) -> Value<'k> {
        let ty = self.ty.with_scalar(scalar);
        let emit = |op| self.kernel.emit(op, ty, [self.operand()]);
        match (self.ty.scalar, scalar) {
            (from, to) if from == to => self,
            (Scalar::Bool, _) => self.select(self.kernel.number(ty, 1), 0),
            (_, Scalar::Bool) => self.ne(0),
            (Scalar::I32, Scalar::U32) | (Scalar::U32, Scalar::I32) => self.bitcast(ty),
            (Scalar::I32, Scalar::I64) | (Scalar::I64, Scalar::I32) => emit(Op::SConvert),
            (Scalar::I64, Scalar::U32) => self.convert(Scalar::I32).bitcast(ty),
            // Goes through a signed type, because the unsigned instruction would want an unsigned one.
            (Scalar::U32, Scalar::I64) => {
                self.bitcast(self.ty.with_scalar(Scalar::I32)).convert(scalar) & i64::from(u32::MAX)
            }
            (Scalar::I32 | Scalar::I64, Scalar::F32 | Scalar::F64 | Scalar::F16) => emit(Op::ConvertSToF),
            (Scalar::U32, Scalar::F32 | Scalar::F64 | Scalar::F16) => emit(Op::ConvertUToF),
            (Scalar::F32 | Scalar::F64 | Scalar::F16, Scalar::F32 | Scalar::F64 | Scalar::F16) => emit(Op::FConvert),
            (Scalar::F16, Scalar::I32 | Scalar::I64 | Scalar::U32) => self.convert(Scalar::F32).convert(scalar),
            // The instructions leave out-of-range values undefined, so these are chosen separately.
            (Scalar::F32 | Scalar::F64, Scalar::I32 | Scalar::I64) => {
                let (smallest, largest) = match scalar {
                    Scalar::I64 => (i64::MIN, i64::MAX),
                    _ => (i32::MIN.into(), i32::MAX.into()),
                };
                // A power of two. The largest integer is one less, and a float may be unable to hold it.
                let end = -(smallest as f64);
                let below = self.lt(-end);
                let inside = self.ge(-end) & self.lt(end);
                let cut = self.kernel.emit(Op::ConvertFToS, ty, [inside.select(self, 0).operand()]);
                let nan = self.is_nan();
                let limit = below.select(cut.literal(smallest), largest);
                inside.select(cut, nan.select(cut.literal(0), limit))
            }
            (Scalar::F32 | Scalar::F64, Scalar::U32) => {
                let inside = self.gt(-1.0) & self.lt(4294967296.0);
                let cut = self.kernel.emit(Op::ConvertFToU, ty, [(inside & self.gt(0)).select(self, 0).operand()]);
                let above = self.ge(4294967296.0);
                inside.select(cut, above.select(cut.literal(u32::MAX), 0))
            }
            _ => self.kernel_mistake(format!("no conversion from {} to {ty}", self.ty), ty),
        }
    }

    fn kernel_mistake(self, message: String, ty: Type) -> Value<'k> {
        self.kernel.fail(message);
        self.kernel.constant(ty, 0u32)
    }

    /// The bits of the absolute value of a float of 32 or 64 bits.
    pub(crate) fn magnitude(self) -> Value<'k> {
        match self.ty.scalar {
            Scalar::F32 => self.bitcast(self.ty.bits()) & i32::MAX,
            Scalar::F64 => self.bitcast(self.ty.bits()) & i64::MAX,
            _ => self.kernel_mistake(format!("the magnitude of {}", self.ty), self.ty.bits()),
        }
    }

    /// The bits of infinity, in the type of the bits of a float.
    pub(super) fn infinity_bits(self) -> Value<'k> {
        let bits = match self.ty.scalar {
            Scalar::F64 => f64::INFINITY.to_bits(),
            _ => f32::INFINITY.to_bits().into(),
        };
        self.kernel.constant(self.ty.bits(), bits)
    }

    /// Whether a lane is NaN, by its bits: WGSL lets a compiler assume that `x == x`.
    pub fn is_nan(self) -> Value<'k> {
        self.magnitude().gt(self.infinity_bits())
    }

    /// Whether a lane is an infinity, by its bits.
    pub fn is_infinite(self) -> Value<'k> {
        self.magnitude().eq(self.infinity_bits())
    }

    /// Returns the kernel that computes it.
    pub(crate) fn kernel(self) -> &'k KernelBuilder {
        self.kernel
    }

    /// Whether a lane is neither NaN nor an infinity, by its bits.
    pub fn is_finite(self) -> Value<'k> {
        self.magnitude().lt(self.infinity_bits())
    }

    /// A vector whose lanes are all this scalar.
    pub fn splat(self, lanes: u32) -> Value<'k> {
        let ty = Type { scalar: self.ty.scalar, lanes };
        if self.ty.lanes != 1 || !matches!(lanes, 2 | 4) {
            return self.kernel_mistake(format!("splat of {} over {lanes} lanes", self.ty), ty);
        }
        self.kernel.emit(Op::CompositeConstruct, ty, (0..lanes).map(|_| self.operand()))
    }

    /// A lane of a vector.
    pub fn lane(self, lane: u32) -> Value<'k> {
        if self.ty.lanes == 1 && lane == 0 {
            return self;
        }
        if lane >= self.ty.lanes {
            return self.kernel_mistake(format!("lane {lane} of {}", self.ty), self.ty.lane());
        }
        self.kernel.emit(Op::CompositeExtract, self.ty.lane(), [self.operand(), Operand::LiteralBit32(lane)])
    }

    /// A vector's lanes.
    pub fn lanes(self) -> Vec<Value<'k>> {
        (0..self.ty.lanes).map(|lane| self.lane(lane)).collect()
    }
}

impl KernelBuilder {
    /// A vector of 2 or 4 scalars of one type.
    pub fn vector<'k>(&'k self, lanes: &[Value<'k>]) -> Value<'k> {
        let scalar = lanes.first().map_or(Scalar::U32, |lane| lane.ty.scalar);
        let ty = Type { scalar, lanes: lanes.len() as u32 };
        if !matches!(ty.lanes, 2 | 4) || lanes.iter().any(|lane| lane.ty != ty.lane()) {
            self.fail("a vector is made of 2 or 4 scalars of one type");
            return self.constant(ty, 0u32);
        }
        lanes.iter().for_each(|&lane| self.check_own(lane));
        self.emit(Op::CompositeConstruct, ty, lanes.iter().map(|lane| lane.operand()))
    }

    /// A number in a given type.
    pub fn number(&self, ty: Type, number: i32) -> Value<'_> {
        number.into_value(self, ty)
    }
}

macro_rules! operator {
    ($($trait:ident $method:ident $opcodes:expr;)*) => {$(
        impl<'k, R: IntoValue<'k>> $trait<R> for Value<'k> {
            type Output = Value<'k>;
            fn $method(self, rhs: R) -> Value<'k> {
                self.binary(rhs, &$opcodes, |ty| ty)
            }
        }
    )*};
}

operator! {
    Add add Opcodes::arithmetic("+", Op::FAdd, Op::IAdd, Op::IAdd);
    Sub sub Opcodes::arithmetic("-", Op::FSub, Op::ISub, Op::ISub);
    Mul mul Opcodes::arithmetic("*", Op::FMul, Op::IMul, Op::IMul);
    Div div Opcodes::arithmetic("/", Op::FDiv, Op::SDiv, Op::UDiv);
    Rem rem Opcodes { float: None, ..Opcodes::arithmetic("%", Op::FRem, Op::SRem, Op::UMod) };
    BitAnd bitand Opcodes::bits("&", Op::BitwiseAnd, Op::BitwiseAnd, Some(Op::LogicalAnd));
    BitOr bitor Opcodes::bits("|", Op::BitwiseOr, Op::BitwiseOr, Some(Op::LogicalOr));
    BitXor bitxor Opcodes::bits("^", Op::BitwiseXor, Op::BitwiseXor, Some(Op::LogicalNotEqual));
    Shl shl Opcodes::bits("<<", Op::ShiftLeftLogical, Op::ShiftLeftLogical, None);
    Shr shr Opcodes::bits(">>", Op::ShiftRightArithmetic, Op::ShiftRightLogical, None);
}

impl<'k> Neg for Value<'k> {
    type Output = Value<'k>;
    fn neg(self) -> Value<'k> {
        match self.ty.scalar {
            // Intel's compiler for processors (2026.2) mixes up lanes in loops if it sees that vectors are negated.
            Scalar::F32 | Scalar::F64 if self.kernel.target().dialect == Dialect::OpenCl => {
                (self.opaque().bitcast(self.ty.bits()) ^ self.sign_bit()).bitcast(self.ty)
            }
            Scalar::F32 | Scalar::F64 | Scalar::F16 => self.kernel.emit(Op::FNegate, self.ty, [self.operand()]),
            // WGSL has no negation of unsigned integers.
            Scalar::U32 => self.literal(0) - self,
            Scalar::I32 | Scalar::I64 => self.kernel.emit(Op::SNegate, self.ty, [self.operand()]),
            Scalar::Bool => self.kernel_mistake("negation of a truth value: use `!`".into(), self.ty),
        }
    }
}

impl<'k> Not for Value<'k> {
    type Output = Value<'k>;
    fn not(self) -> Value<'k> {
        match self.ty.scalar {
            // Intel's offline compiler (22.43) fails on OpLogicalNot.
            Scalar::Bool => self.select(self.literal(0), 1),
            Scalar::I32 | Scalar::U32 | Scalar::I64 => self.kernel.emit(Op::Not, self.ty, [self.operand()]),
            Scalar::F32 | Scalar::F64 | Scalar::F16 => self.kernel_mistake("bitwise `!` of a float".into(), self.ty),
        }
    }
}
