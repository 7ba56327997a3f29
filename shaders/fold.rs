//! The folds of rows, each in a line or two of mathematics. `reduce.rs` reduces rows by them, and `scan.rs` runs them
//! along rows.

use crate::base::dtype::DType;
use crate::shader::{Access, Array, KernelBuilder, Scalar, Type, Value};

/// The number that a row is folded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum FoldOp {
    Sum,
    Prod,
    Min,
    Max,
    /// The place of the first smallest element in the row; a NaN counts as smallest.
    ArgMin,
    /// The place of the first largest element in the row; a NaN counts as largest.
    ArgMax,
    /// 1 if any element is nonzero, else 0.
    Any,
    /// 1 if no element is 0, else 0.
    All,
    /// The sum of magnitudes.
    NormL1,
    /// The square root of the sum of squares.
    NormL2,
    /// The sum of the squared deviations from the mean. The kernel has subtracted the rounded mean from the row.
    Deviations,
    /// The sum of `exp(x)`.
    SumExp,
}

/// The state of a fold after some elements of a row: a few numbers.
pub(super) type State<'k> = Vec<Value<'k>>;

/// A fold of rows. It maps elements to states, combines states in any grouping that keeps their order, and turns the
/// last state into the result.
pub(super) struct Fold<'k> {
    /// The state of no elements. If there is none, a fold starts with the row's first element, as combining a state
    /// with itself changes nothing.
    pub identity: Option<State<'k>>,
    /// Returns the state of an element, from the element and its place in the row.
    pub map: Box<dyn Fn(Value<'k>, Value<'k>) -> State<'k> + 'k>,
    pub combine: Box<Combine<'k>>,
    /// Returns the result, from the last state and the number of elements.
    pub finish: Box<Finish<'k>>,
}

pub(super) type Combine<'k> = dyn Fn(&[Value<'k>], &[Value<'k>]) -> State<'k> + 'k;
type Finish<'k> = dyn Fn(&[Value<'k>], Value<'k>) -> Value<'k> + 'k;

impl FoldOp {
    /// Returns the mathematics, for elements that are computed in `ty`.
    pub(super) fn fold<'k>(self, k: &'k KernelBuilder, ty: Type) -> Fold<'k> {
        match self {
            FoldOp::Sum => Fold::sum(k, ty, |x| x),
            FoldOp::Prod => Fold::plain(k.number(ty, 1), |x| x, |a, b| a * b),
            FoldOp::Min => Fold::choice(|a, b| a.min(b)),
            FoldOp::Max => Fold::choice(|a, b| a.max(b)),
            FoldOp::ArgMin => Fold::place(|a, b| a.lt(b)),
            FoldOp::ArgMax => Fold::place(|a, b| a.gt(b)),
            FoldOp::Any => Fold::plain(k.u32(0), |x| x.ne(0).convert(Scalar::U32), |a, b| a | b),
            FoldOp::All => Fold::plain(k.u32(1), |x| x.ne(0).convert(Scalar::U32), |a, b| a & b),
            FoldOp::NormL1 => Fold::sum(k, ty, |x| x.abs()),
            FoldOp::NormL2 => Fold::scaled_squares(k, ty),
            FoldOp::Deviations => Fold::deviations(k, ty),
            FoldOp::SumExp => Fold::sum(k, ty, |x| x.exp()),
        }
    }

    /// Returns the dtypes of a state's numbers, for elements of `dtype`.
    pub fn state(self, dtype: DType) -> Vec<DType> {
        let wide = dtype.widened();
        match self {
            FoldOp::Sum | FoldOp::NormL1 | FoldOp::SumExp if wide.is_float() => vec![wide, wide],
            FoldOp::ArgMin | FoldOp::ArgMax => vec![wide, DType::U32],
            FoldOp::Any | FoldOp::All => vec![DType::U32],
            FoldOp::NormL2 => vec![wide, wide, DType::U32],
            FoldOp::Deviations => vec![wide; 3],
            _ => vec![wide],
        }
    }

    /// Returns the dtype of the result for elements of `dtype`. It has 32 bits or more, so that no two invocations
    /// write the same word.
    pub fn output(self, dtype: DType) -> DType {
        match self {
            FoldOp::ArgMin | FoldOp::ArgMax | FoldOp::Any | FoldOp::All => DType::U32,
            _ => dtype.widened(),
        }
    }

    /// Returns the result for an empty row, if it is defined.
    pub fn of_nothing(self) -> Option<u32> {
        match self {
            FoldOp::Min | FoldOp::Max | FoldOp::ArgMin | FoldOp::ArgMax => None,
            FoldOp::Prod | FoldOp::All => Some(1),
            _ => Some(0),
        }
    }
}

impl<'k> Fold<'k> {
    /// A fold whose state is one number, the result.
    fn plain(
        identity: Value<'k>,
        map: impl Fn(Value<'k>) -> Value<'k> + 'k,
        combine: impl Fn(Value<'k>, Value<'k>) -> Value<'k> + 'k,
    ) -> Self {
        Fold {
            identity: Some(vec![identity]),
            map: Box::new(move |x, _| vec![map(x)]),
            combine: Box::new(move |a, b| vec![combine(a[0], b[0])]),
            finish: Box::new(|state, _| state[0]),
        }
    }

    /// A fold that chooses one of the elements.
    fn choice(combine: impl Fn(Value<'k>, Value<'k>) -> Value<'k> + 'k) -> Self {
        Fold {
            identity: None,
            map: Box::new(|x, _| vec![x]),
            combine: Box::new(move |a, b| vec![combine(a[0], b[0])]),
            finish: Box::new(|state, _| state[0]),
        }
    }

    /// A fold that finds the place of the first element that is better than all others. A NaN is better than any
    /// number.
    fn place(better: impl Fn(Value<'k>, Value<'k>) -> Value<'k> + 'k) -> Self {
        Fold {
            identity: None,
            map: Box::new(|x, place| vec![x, place]),
            combine: Box::new(move |a, b| {
                let earlier = a[1].lt(b[1]);
                let by_value = better(a[0], b[0]) | (a[0].eq(b[0]) & earlier);
                let first = if a[0].ty().is_float() {
                    let (a_nan, b_nan) = (a[0].is_nan(), b[0].is_nan());
                    (a_nan & b_nan).select(earlier, a_nan | by_value)
                } else {
                    by_value
                };
                vec![first.select(a[0], b[0]), first.select(a[1], b[1])]
            }),
            finish: Box::new(|state, _| state[1]),
        }
    }

    /// The sum of a function of the elements. Sums of floats are compensated: a second number sums up the rounding
    /// errors of the additions (T. Ogita, S. Rump and S. Oishi, "Accurate Sum and Dot Product", 2005).
    pub fn sum(k: &'k KernelBuilder, ty: Type, term: impl Fn(Value<'k>) -> Value<'k> + 'k) -> Self {
        let zero = k.number(ty, 0);
        if !ty.is_float() {
            return Fold::plain(zero, term, |a, b| a + b);
        }
        Fold {
            identity: Some(vec![zero; 2]),
            map: Box::new(move |x, _| vec![term(x), zero]),
            combine: Box::new(|a, b| add(a, b).to_vec()),
            finish: Box::new(|sum, _| rounded(sum)),
        }
    }

    /// The root of the sum of squares. Squares can leave the range of the dtype even if the norm does not. So the
    /// elements are divided by a power of two before they are squared. It is the power of two below the largest
    /// magnitude, and its exponent is the state's third number.
    fn scaled_squares(k: &'k KernelBuilder, ty: Type) -> Self {
        let zero = k.number(ty, 0);
        let (fraction_bits, bias) = ty.float_format();
        // 2^(exponent - bias)
        let power = move |exponent: Value<'k>| (exponent.convert(ty.bits().scalar) << fraction_bits).bitcast(ty);
        Fold {
            identity: Some(vec![zero, zero, k.u32(1)]),
            map: Box::new(move |x, _| {
                // The clamp makes the power of two and its reciprocal normal numbers.
                let exponent = (x.bitcast(ty.bits()) >> fraction_bits) & (2 * bias + 1);
                let exponent = exponent.convert(Scalar::U32).max(1).min(2 * bias - 1);
                let x = x * power(k.u32(2 * bias) - exponent);
                vec![k.as_written(|| (x * x).apart()), zero, exponent]
            }),
            combine: Box::new(move |a, b| {
                let exponent = a[2].max(b[2]);
                let scaled = |state: &[Value<'k>]| {
                    // The square of a ratio of 2^-64 or less adds nothing.
                    let ratio = power(k.u32(bias) - (exponent - state[2]).min(64));
                    [state[0] * ratio * ratio, state[1] * ratio * ratio]
                };
                let [sum, rest] = add(&scaled(a), &scaled(b));
                vec![sum, rest, exponent]
            }),
            finish: Box::new(move |state, _| rounded(state).sqrt() * power(state[2])),
        }
    }

    /// The sum of squared deviations from the mean, for elements that are deviations from a number near the mean. The
    /// result is the sum of their squares, less the square of their sum divided by their count (T. Chan, G. Golub and
    /// R. LeVeque, "Algorithms for Computing the Sample Variance", 1983, the corrected two-pass algorithm).
    fn deviations(k: &'k KernelBuilder, ty: Type) -> Self {
        let zero = k.number(ty, 0);
        Fold {
            identity: Some(vec![zero; 3]),
            map: Box::new(move |x, _| vec![k.as_written(|| (x * x).apart()), zero, x]),
            combine: Box::new(|a, b| {
                let [sum, rest] = add(a, b);
                vec![sum, rest, a[2] + b[2]]
            }),
            finish: Box::new(move |state, count| {
                let correction = state[2] * (state[2] / count.convert(ty.scalar));
                (rounded(state) - correction).max(0)
            }),
        }
    }
}

/// Adds two sums, each with its rounding errors so far.
fn add<'k>(a: &[Value<'k>], b: &[Value<'k>]) -> [Value<'k>; 2] {
    let [sum, lost] = a[0].two_sum(b[0]);
    [sum, lost.plus(a[1].plus(b[1]))]
}

/// Returns a sum and its rounding errors as one number. Infinite sums and NaN have no errors.
fn rounded<'k>(sum: &[Value<'k>]) -> Value<'k> {
    sum[0].is_finite().select(sum[0] + sum[1], sum[0])
}

/// States in memory. Each dtype has a buffer, in which the numbers of one state are contiguous.
pub(super) struct States<'k> {
    /// For each number of a state: its buffer, the numbers per state in that buffer, and its position among them.
    numbers: Vec<(Array<'k>, u32, u32)>,
}

/// Returns the dtypes of a state's numbers without repetition, and how many numbers each has.
pub(crate) fn buffers(state: &[DType]) -> Vec<(DType, usize)> {
    let mut buffers: Vec<(DType, usize)> = Vec::new();
    for &dtype in state {
        match buffers.iter_mut().find(|(known, _)| *known == dtype) {
            Some((_, count)) => *count += 1,
            None => buffers.push((dtype, 1)),
        }
    }
    buffers
}

impl<'k> States<'k> {
    /// Declares the buffers.
    pub fn declare(k: &'k KernelBuilder, name: &str, state: &[DType], access: Access) -> Self {
        let arrays: Vec<_> = buffers(state)
            .into_iter()
            .map(|(dtype, count)| {
                let ty = Type { scalar: dtype.compute_scalar(), lanes: 1 };
                (dtype, k.buffer(&format!("{name}_{dtype}"), ty, access), count as u32)
            })
            .collect();
        let mut numbers = Vec::new();
        for (place, dtype) in state.iter().enumerate() {
            let before = state[..place].iter().filter(|other| *other == dtype).count() as u32;
            let of_dtype = arrays.iter().filter(|(other, ..)| other == dtype);
            numbers.extend(of_dtype.map(|&(_, array, count)| (array, count, before)));
        }
        States { numbers }
    }

    pub fn load(&self, index: Value<'k>) -> State<'k> {
        self.numbers.iter().map(|&(array, count, place)| array.load(index * count + place)).collect()
    }

    pub fn store(&self, index: Value<'k>, state: &[Value<'k>]) {
        for (&(array, count, place), &value) in self.numbers.iter().zip(state) {
            array.store(index * count + place, value);
        }
    }
}
