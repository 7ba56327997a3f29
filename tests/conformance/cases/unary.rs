//! Functions of one element.

use super::{floats, is_brief, layouts, sample};
use crate::compare::{Expected, Sample, check, upload};
use crate::layouts::Layout;
use crate::reference::array;
use crate::reference::functions::{gelu, gelu_tanh, hardsigmoid, mish, selu, sigmoid, sign, softplus, truth};
use crate::reference::inputs::{Domain, Inputs, specials};
use crate::reference::numbers::{round, wrap};
use crate::suite::{Outcome, Suite};
use marquetry::{DType, Result, Tensor};

struct Function {
    name: &'static str,
    call: fn(&Tensor) -> Result<Tensor>,
    float: fn(f64) -> f64,
    /// The function for integers, if they have it.
    integer: Option<fn(i64) -> i64>,
}

macro_rules! functions {
    ($($name:ident, $float:expr $(, $integer:expr)?;)*) => {
        &[$(Function {
            name: stringify!($name),
            call: Tensor::$name,
            float: $float,
            integer: functions!(@integer $($integer)?),
        }),*]
    };
    (@integer) => { None };
    (@integer $integer:expr) => { Some($integer) };
}

const FUNCTIONS: &[Function] = functions! {
    neg, |x| -x, i64::wrapping_neg;
    abs, f64::abs, i64::abs;
    sign, sign, i64::signum;
    sqr, |x| x * x, |x| x.wrapping_mul(x);
    relu, |x| if x < 0.0 { 0.0 } else { x }, |x| x.max(0);
    floor, f64::floor;
    ceil, f64::ceil;
    round, f64::round_ties_even;
    trunc, f64::trunc;
    sqrt, f64::sqrt;
    rsqrt, |x| 1.0 / x.sqrt();
    recip, f64::recip;
    exp, f64::exp;
    exp2, f64::exp2;
    expm1, f64::exp_m1;
    log, f64::ln;
    log2, f64::log2;
    log1p, f64::ln_1p;
    sin, f64::sin;
    cos, f64::cos;
    tan, f64::tan;
    asin, f64::asin;
    acos, f64::acos;
    atan, f64::atan;
    sinh, f64::sinh;
    cosh, f64::cosh;
    tanh, f64::tanh;
    asinh, libm::asinh;
    acosh, |x| if x < 1.0 { f64::NAN } else { libm::acosh(x) };
    atanh, libm::atanh;
    erf, libm::erf;
    sigmoid, sigmoid;
    silu, |x| x * sigmoid(x);
    gelu, gelu;
    gelu_tanh, gelu_tanh;
    relu6, |x| if x.is_nan() { x } else { x.clamp(0.0, 6.0) }, |x| x.clamp(0, 6);
    mish, mish;
    softplus, softplus;
    softsign, |x| x / (1.0 + x.abs());
    hardsigmoid, hardsigmoid;
    hardswish, |x| x * hardsigmoid(x);
    selu, selu;
    is_nan, |x| truth(x.is_nan()), |_| 0;
    is_inf, |x| truth(x.is_infinite()), |_| 0;
    is_finite, |x| truth(x.is_finite()), |_| 1;
    logical_not, |x| truth(x == 0.0), |x| (x == 0).into();
    bitwise_not, |x| x, |x| !x;
};

/// Intervals in which a function is not flat, for dense tests. Other functions are tested from -30 to 30.
const INTERVALS: &[(&str, [f64; 2])] = &[
    ("exp2", [-126.0, 128.0]),
    ("expm1", [-20.0, 88.0]),
    ("log2", [0.0, 4.0]),
    ("log1p", [-1.0, 3.0]),
    ("tan", [-10_000.0, 10_000.0]),
    ("asin", [-1.0, 1.0]),
    ("acos", [-1.0, 1.0]),
    ("atan", [-4.0, 4.0]),
    ("asinh", [-4.0, 4.0]),
    ("acosh", [1.0, 4.0]),
    ("atanh", [-1.0, 1.0]),
];

impl Function {
    fn domain(&self) -> Domain {
        if matches!(self.name, "sin" | "cos" | "tan") { Domain::Angle } else { Domain::Special }
    }

    fn is_test(&self) -> bool {
        matches!(self.name, "is_nan" | "is_inf" | "is_finite" | "logical_not")
    }

    fn takes(&self, dtype: DType) -> bool {
        match dtype {
            DType::Bool => self.is_test() || self.name == "bitwise_not",
            _ if dtype.is_float() => self.name != "bitwise_not",
            _ => self.integer.is_some(),
        }
    }

    fn check(&self, input: &Sample) -> Outcome {
        let dtype = input.tensor.dtype();
        let values = match self.integer {
            _ if dtype == DType::Bool && self.name == "bitwise_not" => input.values.mapv(|x| 1.0 - x),
            Some(integer) if !dtype.is_float() => input.values.mapv(|x| wrap(integer(x as i64), dtype)),
            _ => input.values.mapv(self.float),
        };
        let dtype = if self.is_test() { DType::Bool } else { dtype };
        let expected = Expected::new(values, dtype).with_scale(input.values.mapv(f64::abs));
        check(self.name, &(self.call)(&input.tensor)?, &expected)
    }
}

pub fn add(suite: &mut Suite) {
    for function in FUNCTIONS {
        let op = function.name;
        let takes = |dtype: &DType| function.takes(*dtype);
        for dtype in DType::ALL.into_iter().filter(takes) {
            // There are many functions, so `bf16` and `f64` get one kernel of each.
            let layouts = if is_brief(dtype) { &[Layout::Contiguous] } else { layouts(dtype) };
            for &layout in layouts {
                suite.add(op, format!("{dtype}::{}", layout.name()), move |device| {
                    function.check(&sample(&format!("{op}::{dtype}"), layout, dtype, function.domain(), device)?)
                });
            }
            if function.domain() == Domain::Angle {
                suite.add(op, format!("{dtype}::multiples"), move |device| {
                    // Near the multiples of pi / 2, the reduced angle has few digits.
                    let multiples = (-6366..=6366).map(|n| f64::from(n) * std::f64::consts::FRAC_PI_2);
                    let values = multiples.map(|angle| round(angle, dtype)).collect();
                    let values = array(&[2 * 6366 + 1], values);
                    function.check(&Sample { tensor: upload(&values, dtype, device)?, values })
                });
            } else {
                suite.add(op, format!("{dtype}::special"), move |device| {
                    let values = specials(dtype);
                    let values = array(&[values.len()], values);
                    function.check(&Sample { tensor: upload(&values, dtype, device)?, values })
                });
            }
        }
        for dtype in floats().filter(takes) {
            suite.add(op, format!("{dtype}::dense"), move |device| {
                let known = INTERVALS.iter().find(|(name, _)| *name == op);
                let [low, high] = known.map_or([-30.0, 30.0], |(_, interval)| *interval);
                let mut inputs = Inputs::new(&format!("{op} dense"));
                let values = (0..8192).map(|_| round(low + inputs.uniform() * (high - low), dtype)).collect();
                let values = array(&[8192], values);
                function.check(&Sample { tensor: upload(&values, dtype, device)?, values })
            });
            suite.add(op, format!("{dtype}::sweep"), move |device| {
                let largest = if function.domain() == Domain::Angle { 10_000.0 } else { f64::INFINITY };
                let values = Inputs::new(op).sweep(4096, dtype, largest);
                function.check(&Sample { tensor: upload(&values, dtype, device)?, values })
            });
        }
    }
}
