//! Functions of one element.

use super::{FLOATS, sample};
use crate::compare::{Expected, Sample, check, upload};
use crate::layouts::Layout;
use crate::reference::array;
use crate::reference::functions::{gelu, gelu_tanh, sigmoid, sign};
use crate::reference::inputs::{Domain, Inputs, specials};
use crate::reference::numbers::wrap;
use crate::suite::{Outcome, Suite};
use marquetry::{DType, Result, Tensor};

struct Function {
    name: &'static str,
    call: fn(&Tensor) -> Result<Tensor>,
    float: fn(f64) -> f64,
    /// Where integers have the function too.
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
    log, f64::ln;
    sin, f64::sin;
    cos, f64::cos;
    tanh, f64::tanh;
    erf, libm::erf;
    sigmoid, sigmoid;
    silu, |x| x * sigmoid(x);
    gelu, gelu;
    gelu_tanh, gelu_tanh;
};

impl Function {
    fn domain(&self) -> Domain {
        if matches!(self.name, "sin" | "cos") { Domain::Angle } else { Domain::Special }
    }

    fn check(&self, input: &Sample) -> Outcome {
        let dtype = input.tensor.dtype();
        let values = match self.integer {
            Some(integer) if !dtype.is_float() => input.values.mapv(|x| wrap(integer(x as i64), dtype)),
            _ => input.values.mapv(self.float),
        };
        let expected = Expected::new(values, dtype).with_scale(input.values.mapv(f64::abs));
        check(self.name, &(self.call)(&input.tensor)?, &expected)
    }
}

pub fn add(suite: &mut Suite) {
    for function in FUNCTIONS {
        let op = function.name;
        let takes = |dtype: &DType| dtype.is_float() || function.integer.is_some();
        for dtype in DType::ALL.into_iter().filter(takes) {
            for layout in Layout::ALL {
                suite.add(op, format!("{dtype}::{}", layout.name()), move |device| {
                    function.check(&sample(&format!("{op}::{dtype}"), layout, dtype, function.domain(), device)?)
                });
            }
            if op != "sin" && op != "cos" {
                suite.add(op, format!("{dtype}::special"), move |device| {
                    let values = specials(dtype);
                    let values = array(&[values.len()], values);
                    function.check(&Sample { tensor: upload(&values, dtype, device)?, values })
                });
            }
        }
        for dtype in FLOATS {
            suite.add(op, format!("{dtype}::sweep"), move |device| {
                let largest = if function.domain() == Domain::Angle { 8192.0 } else { f64::INFINITY };
                let values = Inputs::new(op).sweep(4096, dtype, largest);
                function.check(&Sample { tensor: upload(&values, dtype, device)?, values })
            });
        }
    }
}
