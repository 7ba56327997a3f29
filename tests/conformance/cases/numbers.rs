//! Functions with numbers: `affine`, `clamp`, `powf`, activations with a parameter, and the operators `+ - * /` and unary `-`.

use super::{FLOATS, layouts, numbers, sample};
use crate::compare::{Expected, Sample, check, upload};
use crate::layouts::Layout;
use crate::reference::functions::integer_division;
use crate::reference::inputs::{Domain, Inputs, specials};
use crate::reference::numbers::{round, wrap};
use crate::reference::{ArrayD, array, zip};
use crate::suite::{Outcome, Suite};
use marquetry::{DType, Device, Result, Tensor};

const LAYOUTS: [Layout; 4] = [Layout::Contiguous, Layout::Transposed, Layout::Empty, Layout::Odd];

fn is_unsigned(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::U32)
}

/// A function of doubles, as it is for a dtype: its result in floats, wrapped in integers.
fn map(values: &ArrayD<f64>, dtype: DType, function: impl Fn(f64) -> f64) -> ArrayD<f64> {
    if dtype.is_float() { values.mapv(function) } else { values.mapv(|x| wrap(function(x) as i64, dtype)) }
}

fn affine(dtype: DType, layout: Layout, device: &Device) -> Outcome {
    let input = sample("affine", layout, dtype, Domain::Special, device)?;
    let (scale, shift) = if dtype.is_float() { (1.7, -0.3) } else { (3.0, 11.0) };
    // Numbers are rounded to the dtype before they are used.
    let (a, b) = (round(scale, dtype), round(shift, dtype));
    let expected = Expected::new(map(&input.values, dtype, |x| x * a + b), dtype);
    let expected = expected.with_scale(input.values.mapv(|x| (x * a).abs()));
    check("affine", &input.tensor.affine(scale, shift)?, &expected)
}

fn clamp(dtype: DType, layout: Layout, device: &Device) -> Outcome {
    let input = sample("clamp", layout, dtype, Domain::Special, device)?;
    let (low, high) = match dtype {
        _ if dtype.is_float() => (-1.25, 2.5),
        DType::I64 | DType::I32 | DType::I8 => (-20.0, 30.0),
        _ => (20.0, 100.0),
    };
    check("clamp", &input.tensor.clamp(low, high)?, &Expected::new(input.values.mapv(|x| x.clamp(low, high)), dtype))
}

/// A function of floats with a parameter.
struct Parametric {
    name: &'static str,
    call: fn(&Tensor, f64) -> Result<Tensor>,
    /// The name under which the tolerance is stated.
    tolerance: &'static str,
    parameters: [f64; 2],
    exact: fn(f64, f64) -> f64,
}

const PARAMETRIC: [Parametric; 4] = [
    Parametric { name: "powf", call: Tensor::powf, tolerance: "pow", parameters: [2.0, -0.7], exact: libm::pow },
    Parametric {
        name: "leaky_relu",
        call: Tensor::leaky_relu,
        tolerance: "leaky_relu",
        parameters: [0.01, -2.0],
        exact: |x, slope| if x < 0.0 { slope * x } else { x },
    },
    Parametric {
        name: "elu",
        call: Tensor::elu,
        tolerance: "elu",
        parameters: [1.0, 0.3],
        exact: |x, alpha| if x < 0.0 { alpha * x.exp_m1() } else { x },
    },
    Parametric {
        name: "celu",
        call: Tensor::celu,
        tolerance: "celu",
        parameters: [1.0, 1.7],
        exact: |x, alpha| if x < 0.0 { alpha * (x / alpha).exp_m1() } else { x },
    },
];

impl Parametric {
    fn check(&self, input: &Sample) -> Outcome {
        let dtype = input.tensor.dtype();
        for parameter in self.parameters {
            let rounded = round(parameter, dtype);
            let values = input.values.mapv(|x| (self.exact)(x, rounded));
            check(self.tolerance, &(self.call)(&input.tensor, parameter)?, &Expected::new(values, dtype))?;
        }
        Ok(())
    }
}

fn add_parametric(suite: &mut Suite) {
    for function in &PARAMETRIC {
        let name = function.name;
        for dtype in FLOATS {
            for &layout in layouts(dtype) {
                suite.add(name, format!("{dtype}::{}", layout.name()), move |device| {
                    function.check(&sample(name, layout, dtype, Domain::Special, device)?)
                });
            }
            suite.add(name, format!("{dtype}::special"), move |device| {
                let values = specials(dtype);
                let values = array(&[values.len()], values);
                function.check(&Sample { tensor: upload(&values, dtype, device)?, values })
            });
            suite.add(name, format!("{dtype}::sweep"), move |device| {
                let values = Inputs::new(name).sweep(4096, dtype, f64::INFINITY);
                function.check(&Sample { tensor: upload(&values, dtype, device)?, values })
            });
        }
    }
}

/// An operator in the four ways in which it can be written with a number.
struct Operator {
    name: &'static str,
    ways: [fn(&Tensor, f64) -> Result<Tensor>; 4],
    float: fn(f64, f64) -> f64,
    integer: fn(i64, i64) -> i64,
    tensors: [fn(&Tensor, &Tensor) -> Result<Tensor>; 4],
}

macro_rules! operators {
    ($($name:ident $symbol:tt $integer:expr;)*) => {
        &[$(Operator {
            name: stringify!($name),
            ways: [|x, n| x $symbol n, |x, n| x.clone() $symbol n, |x, n| n $symbol x, |x, n| n $symbol x.clone()],
            float: |a, b| a $symbol b,
            integer: $integer,
            tensors: [|a, b| a $symbol b, |a, b| a.clone() $symbol b, |a, b| a $symbol b.clone(), |a, b| a.clone() $symbol b.clone()],
        }),*]
    };
}

const OPERATORS: &[Operator] = operators! {
    add + i64::wrapping_add;
    sub - i64::wrapping_sub;
    mul * i64::wrapping_mul;
    div / integer_division;
};

impl Operator {
    fn apply(&self, a: f64, b: f64, dtype: DType) -> f64 {
        if dtype.is_float() { (self.float)(a, b) } else { wrap((self.integer)(a as i64, b as i64), dtype) }
    }

    fn with_number(&self, way: usize, input: &Sample) -> Outcome {
        let dtype = input.tensor.dtype();
        let number = if dtype.is_float() { 2.3 } else { 7.0 };
        let rounded = round(number, dtype);
        let values = input.values.mapv(|x| match way {
            0 | 1 => self.apply(x, rounded, dtype),
            _ => self.apply(rounded, x, dtype),
        });
        check(self.name, &(self.ways[way])(&input.tensor, number)?, &Expected::new(values, dtype))
    }

    fn with_tensor(&self, way: usize, a: &Sample, b: &Sample) -> Outcome {
        let dtype = a.tensor.dtype();
        let values = zip(&a.values, &b.values, |a, b| self.apply(a, b, dtype));
        check(self.name, &(self.tensors[way])(&a.tensor, &b.tensor)?, &Expected::new(values, dtype))
    }
}

pub fn add(suite: &mut Suite) {
    add_parametric(suite);
    for dtype in numbers() {
        for layout in LAYOUTS {
            let name = layout.name();
            suite.add("affine", format!("{dtype}::{name}"), move |device| affine(dtype, layout, device));
            suite.add("clamp", format!("{dtype}::{name}"), move |device| clamp(dtype, layout, device));
        }
        for operator in OPERATORS {
            for (way, side) in ["right_ref", "right", "left_ref", "left"].into_iter().enumerate() {
                for layout in [Layout::Contiguous, Layout::Sliced] {
                    suite.add(operator.name, format!("{dtype}::number_{side}_{}", layout.name()), move |device| {
                        operator.with_number(way, &sample(operator.name, layout, dtype, Domain::Special, device)?)
                    });
                }
            }
            suite.add(operator.name, format!("{dtype}::operator"), move |device| {
                let a = sample("operator left", Layout::Contiguous, dtype, Domain::Special, device)?;
                let b = sample("operator right", Layout::Contiguous, dtype, Domain::Special, device)?;
                (0..4).try_for_each(|way| operator.with_tensor(way, &a, &b))
            });
        }
        suite.add("neg", format!("{dtype}::operator"), move |device| {
            let input = sample("neg operator", Layout::Contiguous, dtype, Domain::Special, device)?;
            let expected = Expected::new(map(&input.values, dtype, |x| -x), dtype);
            check("neg", &(-&input.tensor)?, &expected)?;
            check("neg", &(-input.tensor.clone())?, &expected)
        });
        if is_unsigned(dtype) {
            continue;
        }
        // A negative number, which unsigned integers do not take.
        suite.add("affine", format!("{dtype}::negative"), move |device| {
            let input = sample("affine", Layout::Contiguous, dtype, Domain::Special, device)?;
            let expected = Expected::new(map(&input.values, dtype, |x| x * -2.0 - 5.0), dtype);
            let expected = expected.with_scale(input.values.mapv(|x| (x * 2.0).abs()));
            check("affine", &input.tensor.affine(-2.0, -5.0)?, &expected)
        });
    }
}
