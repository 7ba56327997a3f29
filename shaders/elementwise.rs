//! One kernel per expression: each invocation computes four consecutive elements of the output.

use super::Family;
use super::elements::{Elements, Quads, Strides};
use super::parameters::{Each, Form, Lengths, Number, Size, View, parameters, set_numbers};
use crate::base::dtype::DType;
use crate::kernels::expr::{BinaryOp, Expr, Term, TermId, UnaryOp};
use crate::shader::{KernelBuilder, Scalar, Value};
use smallvec::SmallVec;

/// Quads that each invocation of a GPU computes if elements are narrow. So as many bytes are in flight as with wide
/// elements.
const NARROW_QUADS: u32 = 4;

/// How an input's elements lie relative to the output's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum InputLayout {
    /// In the same order, contiguous, from a multiple of four on.
    Contiguous,
    /// With a stride along each axis.
    Strided,
    /// Strided, but contiguous along the innermost axis, from a multiple of four on. The length of this axis is a
    /// multiple of four.
    StridedQuads,
    /// Strided, but with only one element along the innermost axis. The length of this axis is a multiple of four.
    Repeated,
}

impl InputLayout {
    pub fn is_strided(self) -> bool {
        self != InputLayout::Contiguous
    }

    /// Returns the offset of an input as a parameter.
    pub fn offset(self, offset: usize) -> u32 {
        let offset = if self.is_strided() { offset } else { offset / 4 };
        debug_assert!(u32::try_from(offset).is_ok(), "{offset} was checked to fit a word");
        offset as u32
    }

    /// Returns the form of an input's parameters. A strided input has strides along `rank` axes. The offset of a
    /// contiguous input counts quads.
    pub(super) fn view(self, rank: usize) -> View {
        View(if self.is_strided() { rank } else { 0 })
    }
}

/// An elementwise kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Elementwise {
    pub expr: Expr,
    /// The terms that are stored beside the result, each in a buffer of its own.
    pub kept: SmallVec<[TermId; 2]>,
    pub inputs: SmallVec<[(DType, InputLayout); 4]>,
    /// The number of axes of the strided inputs.
    pub rank: usize,
    pub scalars: SmallVec<[DType; 4]>,
    /// Invocations per workgroup.
    pub invocations: u32,
    /// The quads that each invocation computes: see [`fours`](Self::fours). All are loaded first, so that several loads
    /// are in flight at once.
    pub quads: u32,
}

impl Elementwise {
    /// Returns how many quads each invocation of a GPU computes from inputs of these dtypes.
    pub fn fours(expr: &Expr, inputs: impl IntoIterator<Item = DType>) -> u32 {
        let narrow = inputs.into_iter().chain([expr.dtype()]).any(|dtype| dtype.size_in_bytes() < 4);
        if narrow { NARROW_QUADS } else { 1 }
    }

    /// The number of elements that a workgroup computes.
    pub fn elements_per_group(&self) -> usize {
        (4 * self.quads * self.invocations) as usize
    }
}

parameters! {
    config: Elementwise;
    host: Parameters;
    device: Declared;
    /// The number of elements of the output.
    count: Size,
    /// The lengths of the axes of the strided inputs.
    lengths: Lengths = Lengths(config.rank),
    inputs: Each<View> = config.inputs.iter().map(|(_, layout)| layout.view(config.rank)).collect(),
    scalars: Each<Number> = config.scalars.iter().copied().map(Number).collect(),
}

impl Parameters {
    /// Sets what differs from launch to launch: offsets, then numbers.
    pub fn set_numbers(&mut self, next: &mut dyn FnMut() -> u32) {
        set_numbers(&mut self.inputs, &mut self.scalars, next);
    }
}

/// An input in a kernel.
pub(super) enum Input<'k> {
    Contiguous(Quads<'k>, Strides<'k>),
    Strided(Elements<'k>, Strides<'k>),
    StridedQuads(Quads<'k>, Strides<'k>),
    Repeated(Elements<'k>, Strides<'k>),
}

impl<'k> Input<'k> {
    pub fn new(k: &'k KernelBuilder, name: &str, dtype: DType, layout: InputLayout, at: Strides<'k>) -> Self {
        match layout {
            InputLayout::Contiguous => Input::Contiguous(Quads::input(k, name, dtype), at),
            InputLayout::Strided => Input::Strided(Elements::input(k, name, dtype), at),
            InputLayout::StridedQuads => Input::StridedQuads(Quads::input(k, name, dtype), at),
            InputLayout::Repeated => Input::Repeated(Elements::input(k, name, dtype), at),
        }
    }

    /// Loads the elements of a quad. `coordinates` has all four elements if some input is strided along the innermost
    /// axis, else the first. A strided input gives as many elements as there are coordinates.
    pub fn load(&self, k: &'k KernelBuilder, quad: Value<'k>, coordinates: &[Vec<Value<'k>>]) -> Value<'k> {
        match self {
            Input::Contiguous(quads, at) => quads.load(k, at.offset() + quad),
            Input::Strided(elements, strides) => {
                elements.gather(k, &coordinates.iter().map(|place| strides.at(place)).collect::<Vec<_>>())
            }
            Input::StridedQuads(quads, strides) => quads.load(k, strides.at(&coordinates[0]) / 4),
            Input::Repeated(elements, strides) => elements.load(strides.at(&coordinates[0])).splat(4),
        }
    }
}

impl Family for Elementwise {
    fn name(&self) -> String {
        self.expr.describe()
    }

    fn workgroup(&self) -> u32 {
        self.invocations
    }

    fn touched(&self, Parameters { count, .. }: &Parameters) -> u64 {
        let inputs = self.inputs.iter().map(|(dtype, _)| dtype.size_in_bytes());
        let outputs = outputs(&self.expr, &self.kept).map(|(_, _, dtype)| dtype.size_in_bytes());
        *count as u64 * inputs.chain(outputs).max().unwrap_or(0) as u64
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let Declared { count, lengths, inputs: views, scalars } = self.declare(k);
        let inputs: Vec<Input> = (self.inputs.iter().zip(views).enumerate())
            .map(|(i, (&(dtype, layout), at))| Input::new(k, &format!("x{i}"), dtype, layout, at))
            .collect();
        let outputs = outputs(&self.expr, &self.kept);
        let outputs: Vec<_> = outputs.map(|(name, id, dtype)| (Quads::output(k, &name, dtype), id)).collect();

        let has = |is: fn(&InputLayout) -> bool| self.inputs.iter().any(|(_, layout)| is(layout));
        let (by_elements, by_quads) =
            (has(|&layout| layout == InputLayout::Strided), has(|layout| layout.is_strided()));
        let last = count - 1;
        // The last quad may reach beyond the output; its surplus lanes repeat the last element.
        let places = |quad: Value<'k>| {
            [0, 1, 2, 3].map(|lane| {
                let place = quad * 4 + lane;
                place.gt(last).select(last, place)
            })
        };
        let load = |quad: Value<'k>| -> Vec<Value<'k>> {
            let coordinates = if by_elements {
                let all = lengths.quad_coordinates(k, quad, count);
                (0..4).map(|lane| all.iter().map(|place| place.lane(lane)).collect()).collect()
            } else if by_quads {
                vec![lengths.coordinates(quad * 4)]
            } else {
                Vec::new()
            };
            inputs.iter().map(|input| input.load(k, quad, &coordinates)).collect()
        };
        let first = k.group_index() * (self.quads * self.invocations) + k.local_index();
        let quads: Vec<_> = (0..self.quads).map(|turn| first + turn * self.invocations).collect();
        let loaded: Vec<_> = quads.iter().map(|&quad| load(quad.min(last / 4))).collect();
        for (&quad, values) in quads.iter().zip(&loaded) {
            k.when(quad.le(last / 4), || {
                let index = k.vector(&places(quad));
                let values = Evaluation { values, scalars: &scalars, index }.evaluate(&self.expr);
                outputs.iter().for_each(|(output, id)| output.store(k, quad, values[id.index()]));
            });
        }
    }

    fn samples() -> Vec<Self> {
        use InputLayout::{Contiguous, Repeated, Strided, StridedQuads};
        let plain = |expr: Expr, inputs: &[(DType, InputLayout)], rank| Elementwise {
            expr,
            kept: SmallVec::new(),
            inputs: SmallVec::from_slice(inputs),
            rank,
            scalars: SmallVec::new(),
            invocations: 128,
            quads: 1,
        };
        let sum = |dtype, (layout, rank)| {
            let mut expr = Expr::default();
            let (a, b) = (expr.input(0, dtype), expr.input(1, dtype));
            expr.binary(BinaryOp::Add, a, b);
            plain(expr, &[(dtype, Contiguous), (dtype, layout)], rank)
        };
        let function = |function| {
            let mut expr = Expr::default();
            let x = expr.input(0, DType::F32);
            expr.unary(function, x);
            plain(expr, &[(DType::F32, Contiguous)], 0)
        };
        // The sum is stored beside its function.
        let both = |dtype| {
            let Elementwise { mut expr, inputs, .. } = sum(dtype, (Contiguous, 0));
            let sum = expr.result();
            let sum = expr.rounded(dtype, sum);
            expr.unary(UnaryOp::Neg, sum);
            Elementwise { kept: [sum].into_iter().collect(), ..plain(expr, &inputs, 0) }
        };
        let sums =
            DType::ALL.into_iter().flat_map(|dtype| [(Contiguous, 0), (Strided, 2)].map(|layout| sum(dtype, layout)));
        let fours = [StridedQuads, Repeated].map(|layout| sum(DType::F32, (layout, 2)));
        let functions = [UnaryOp::Exp, UnaryOp::Log, UnaryOp::Sin, UnaryOp::Tanh, UnaryOp::Erf, UnaryOp::Gelu];
        let both = [DType::F32, DType::F16, DType::I8].map(both);
        sums.chain(fours).chain(functions.map(function)).chain(both).collect()
    }
}

/// The inputs of an expression, one element or four neighbours of each, and their index in the output.
pub(super) struct Evaluation<'a, 'k> {
    pub values: &'a [Value<'k>],
    pub scalars: &'a [Value<'k>],
    pub index: Value<'k>,
}

/// The name of the buffer of a kernel's results.
pub(super) const RESULTS: &str = "y";

/// Returns the name, the term and the dtype of each output: of the result, then of the terms that are kept.
pub(super) fn outputs(expr: &Expr, kept: &[TermId]) -> impl Iterator<Item = (String, TermId, DType)> {
    let kept = kept.iter().enumerate().map(|(i, &id)| (format!("kept{i}"), id));
    [(RESULTS.to_string(), expr.result())].into_iter().chain(kept).map(|(name, id)| (name, id, expr.dtype_of(id)))
}

impl<'k> Evaluation<'_, 'k> {
    /// Returns the value of each term. What is fused has the bits of what goes through memory.
    pub fn evaluate(&self, expr: &Expr) -> Vec<Value<'k>> {
        self.index.kernel().as_written(|| self.terms(expr))
    }

    fn terms(&self, expr: &Expr) -> Vec<Value<'k>> {
        let (unique, ids) = expr.deduplicated();
        let mut values: Vec<Value<'k>> = Vec::new();
        for &term in unique.terms() {
            let of = |id: TermId| values[id.index()];
            let value = match term {
                Term::Input(i, _) => self.values[usize::from(i)],
                Term::Scalar(i, _) if self.index.ty().lanes == 1 => self.scalars[usize::from(i)],
                Term::Scalar(i, _) => self.scalars[usize::from(i)].splat(self.index.ty().lanes),
                Term::Index => self.index,
                Term::Unary(op, x) => op.apply(of(x)),
                // Compilers fold `x - x` to 0 and `x == x` to true, whatever x is.
                Term::Binary(op, a, b) if a == b => op.apply(of(a), of(b).opaque()),
                Term::Binary(op, a, b) => op.apply(of(a), of(b)),
                Term::Select(c, a, b) => of(c).ne(0).select(of(a), of(b)),
                Term::Cast(dtype, x) => self.cast(of(x), unique.dtype_of(x), dtype),
            };
            values.push(match term {
                Term::Unary(op, _) if op.is_test() => wrap(value, DType::Bool),
                Term::Binary(op, ..) if op.is_test() => wrap(value, DType::Bool),
                Term::Unary(_, x) | Term::Binary(_, x, _) => wrap(value, unique.dtype_of(x)),
                _ => value,
            });
        }
        ids.iter().map(|id| values[id.index()]).collect()
    }

    /// Converts like Rust's `as`: floats saturate to integers, and integers lose bits that do not fit.
    fn cast(&self, x: Value<'k>, from: DType, to: DType) -> Value<'k> {
        let scalar = to.compute_scalar();
        match to {
            DType::Bool => truth(x),
            DType::U8 if from.is_float() => x.convert(scalar).min(u32::from(u8::MAX)),
            DType::I8 if from.is_float() => x.convert(scalar).max(i32::from(i8::MIN)).min(i32::from(i8::MAX)),
            DType::U8 | DType::I8 => wrap(x.convert(scalar), to),
            // Rounded here, so that a fused cast gives the same number as a cast that goes through memory.
            DType::F16 => round_to_odd(x).rounded_to_f16(),
            DType::BF16 => {
                let [_, rounded] = (round_to_odd(x).to_bf16_bits() << 16).unpack_bf16();
                rounded
            }
            DType::F32 if from == DType::U32 && x.kernel().target().wgsl => nearest_f32(x),
            DType::U32 | DType::I32 | DType::I64 | DType::F32 | DType::F64 => x.convert(scalar),
        }
    }
}

/// Returns what memory holds of a computed number. Bytes are computed in words, and lose the bits that a byte cannot
/// hold. Truth values keep the last bit only.
fn wrap(x: Value<'_>, dtype: DType) -> Value<'_> {
    match dtype {
        DType::Bool => x & 1,
        DType::U8 => x & 0xff,
        DType::I8 => (x << 24) >> 24,
        _ => x,
    }
}

/// Returns the `f32` that is nearest to a `u32`. Both halves are floats, so that only their sum is rounded. Chromium's
/// driver for the processor, SwiftShader, rounds twice if it converts a `u32`.
fn nearest_f32(x: Value<'_>) -> Value<'_> {
    let [high, low] = [x >> 16, x & 0xffff].map(|half| half.convert(Scalar::F32));
    high * 65536.0 + low
}

/// Returns the `f32` that rounds to fewer bits as the number itself does. If the number is no `f32`, that is the
/// neighbour whose last bit is set (S. Boldo and G. Melquiond, "When double rounding is odd", 2005).
fn round_to_odd(x: Value<'_>) -> Value<'_> {
    let near = x.convert(Scalar::F32);
    if x.ty().scalar == Scalar::F32 {
        return near;
    }
    // Opaque, because Mesa would drop a conversion there and back.
    let back = near.opaque().convert(x.ty().scalar);
    let bits = near.bitcast(near.ty().with_scalar(Scalar::U32));
    let other = back.abs().gt(x.abs()).select(bits - 1, bits + 1);
    let even = (bits & 1).eq(0);
    (even & back.ne(x)).select(other, bits).bitcast(near.ty())
}

const SQRT_2_OVER_PI: f64 = 0.797_884_560_802_865_4;
const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;
const SELU_SCALE: f64 = 1.050_700_987_355_480_5;

/// Tests a float: returns 0 or 1. For integers the result is always `of_integer`.
fn test<'k>(x: Value<'k>, of_float: impl Fn(Value<'k>) -> Value<'k>, of_integer: u32) -> Value<'k> {
    if x.ty().is_float() {
        return of_float(x).convert(Scalar::U32);
    }
    x.convert(Scalar::U32).literal(of_integer)
}

/// Returns 1 if a number is nonzero, else 0. Floats are tested by their bits, as devices take subnormals for 0.
fn truth(x: Value<'_>) -> Value<'_> {
    let x = if x.ty().is_float() { x.magnitude() } else { x };
    x.ne(0).convert(Scalar::U32)
}

impl UnaryOp {
    /// The mathematics of the function.
    pub(super) fn apply(self, x: Value<'_>) -> Value<'_> {
        let number = |n: f64| x.literal(n);
        match self {
            UnaryOp::Neg => -x,
            UnaryOp::Abs => x.abs(),
            UnaryOp::Sign => {
                let sign = x.gt(0).select(number(1.0), 0);
                if x.ty().scalar == Scalar::U32 {
                    return sign;
                }
                let sign = x.lt(0).select(number(-1.0), sign);
                if x.ty().is_float() { x.is_nan().select(x, sign) } else { sign }
            }
            UnaryOp::Sqr => x * x,
            UnaryOp::Floor => x.floor(),
            UnaryOp::Ceil => x.ceil(),
            UnaryOp::Round => x.round(),
            UnaryOp::Trunc => x.trunc(),
            UnaryOp::Sqrt => x.sqrt(),
            UnaryOp::Rsqrt => number(1.0) / x.sqrt(),
            UnaryOp::Recip => number(1.0) / x,
            UnaryOp::Exp => x.exp(),
            UnaryOp::Exp2 => x.exp2(),
            UnaryOp::Expm1 => x.expm1(),
            UnaryOp::Log => x.log(),
            UnaryOp::Log2 => x.log2(),
            UnaryOp::Log1p => x.log1p(),
            UnaryOp::Sin => x.sin_cos().0,
            UnaryOp::Cos => x.sin_cos().1,
            UnaryOp::Tan => x.tan(),
            UnaryOp::Asin => x.asin(),
            UnaryOp::Acos => x.acos(),
            UnaryOp::Atan => x.atan(),
            UnaryOp::Sinh => x.sinh(),
            UnaryOp::Cosh => x.cosh(),
            UnaryOp::Tanh => x.tanh(),
            UnaryOp::Asinh => x.asinh(),
            UnaryOp::Acosh => x.acosh(),
            UnaryOp::Atanh => x.atanh(),
            UnaryOp::Erf => x.erf(),
            UnaryOp::Sigmoid => number(1.0) / ((-x).exp() + 1.0),
            UnaryOp::Relu => x.max(0),
            UnaryOp::Silu => x.divide((-x).exp() + 1.0),
            UnaryOp::Gelu => x.gelu(),
            UnaryOp::GeluTanh => x * 0.5 * (((x + x * x * x * 0.044715) * SQRT_2_OVER_PI).tanh() + 1.0),
            UnaryOp::Relu6 => x.max(0).min(6),
            UnaryOp::Mish => {
                // tanh(log(1 + e)) = n / (n + 2) with n = e (e + 2), which is 1 from exp(20) on.
                let e = x.min(20).exp();
                let n = e * (e + 2.0);
                x * (n / (n + 2.0))
            }
            UnaryOp::Softplus => x.max(0) + (-x.abs()).exp().log1p(),
            UnaryOp::Softsign => x.divide(x.abs() + 1.0),
            UnaryOp::Hardsigmoid => (x + 3.0).max(0).min(6) / 6.0,
            UnaryOp::Hardswish => x * ((x + 3.0).max(0).min(6) / 6.0),
            UnaryOp::Selu => x.gt(0).select(x, x.expm1() * SELU_ALPHA) * SELU_SCALE,
            UnaryOp::IsNan => test(x, Value::is_nan, 0),
            UnaryOp::IsInf => test(x, Value::is_infinite, 0),
            UnaryOp::IsFinite => test(x, Value::is_finite, 1),
            UnaryOp::LogicalNot => truth(x) ^ 1,
            UnaryOp::BitwiseNot => !x,
        }
    }
}

impl BinaryOp {
    /// The mathematics of the function; comparisons give 0 or 1.
    fn apply<'k>(self, a: Value<'k>, b: Value<'k>) -> Value<'k> {
        match self {
            BinaryOp::Add => a + b,
            BinaryOp::Sub => a - b,
            BinaryOp::Mul => a * b,
            BinaryOp::Div if a.ty().is_float() => a.divide(b),
            BinaryOp::Div => integer_division(a, b),
            BinaryOp::Maximum => a.max(b),
            BinaryOp::Minimum => a.min(b),
            BinaryOp::Eq => a.eq(b).convert(Scalar::U32),
            BinaryOp::Ne => a.ne(b).convert(Scalar::U32),
            BinaryOp::Lt => a.lt(b).convert(Scalar::U32),
            BinaryOp::Le => a.le(b).convert(Scalar::U32),
            BinaryOp::Gt => a.gt(b).convert(Scalar::U32),
            BinaryOp::Ge => a.ge(b).convert(Scalar::U32),
            BinaryOp::Pow => a.pow(b),
            BinaryOp::Rem => remainder(a, b),
            BinaryOp::Fmod if a.ty().is_float() => a.fmod(b),
            BinaryOp::Fmod => a - integer_division(a, b) * b,
            BinaryOp::Atan2 => a.atan2(b),
            BinaryOp::BitwiseAnd => a & b,
            BinaryOp::BitwiseOr => a | b,
            BinaryOp::BitwiseXor => a ^ b,
            BinaryOp::Shl => is_shift(b).select(a << (b & last_bit(a)), 0),
            BinaryOp::Shr if a.ty().scalar == Scalar::U32 => is_shift(b).select(a >> (b & last_bit(a)), 0),
            // A shift beyond the last bit leaves the sign.
            BinaryOp::Shr => a >> is_shift(b).select(b, last_bit(a)),
            BinaryOp::LogicalAnd => truth(a) & truth(b),
            BinaryOp::LogicalOr => truth(a) | truth(b),
            BinaryOp::LogicalXor => truth(a) ^ truth(b),
            BinaryOp::LeakyRelu => a.gt(0).select(a, a * b),
            BinaryOp::Elu => a.gt(0).select(a, a.expm1() * b),
            BinaryOp::Celu => {
                // Near zero the curve is the line, and the quotient may be subnormal, which devices flush.
                let tiny = if a.ty().scalar == Scalar::F64 { 1e-17 } else { 1e-9 };
                let on_the_line = a.gt(0) | a.abs().lt(b.abs() * tiny);
                on_the_line.select(a, a.divide(b).expm1() * b)
            }
        }
    }
}

/// Returns the position of the highest bit of an integer.
fn last_bit(x: Value<'_>) -> u32 {
    8 * x.ty().lane().size_in_bytes() - 1
}

/// True if an integer of this type can be shifted by `count` bits.
fn is_shift(count: Value<'_>) -> Value<'_> {
    count.ge(0) & count.le(last_bit(count))
}

/// Returns the remainder of a division that rounds down. It has the divisor's sign.
fn remainder<'k>(a: Value<'k>, b: Value<'k>) -> Value<'k> {
    let rest = BinaryOp::Fmod.apply(a, b);
    if a.ty().scalar == Scalar::U32 {
        return rest;
    }
    let differ = rest.lt(0) ^ b.lt(0);
    (rest.ne(0) & b.ne(0) & differ).select(rest + b, rest)
}

/// Divides towards zero. If the instruction is undefined: `x / 0 = 0`, and the smallest integer divided by -1 wraps.
fn integer_division<'k>(a: Value<'k>, b: Value<'k>) -> Value<'k> {
    let undefined = match a.ty().scalar {
        Scalar::I32 => b.eq(0) | (a.eq(i32::MIN) & b.eq(-1)),
        Scalar::I64 => b.eq(0) | (a.eq(i64::MIN) & b.eq(-1)),
        _ => b.eq(0),
    };
    let quotient = a / undefined.select(b.literal(1), b);
    b.eq(0).select(a.literal(0), quotient)
}
