//! Functions with number arguments: `affine`, `clamp`, `powf`, `lerp`, activations, and the operators
//! `+ - * / % & | ^ << >>`, unary `-` and `!`.

use super::{floats, is_brief, layouts, numbers, sample, shaped};
use crate::compare::{Expected, Sample, check, upload};
use crate::layouts::Layout;
use crate::reference::functions::{integer_division, integer_remainder, remainder, shift_left, shift_right};
use crate::reference::inputs::{Domain, Inputs, specials};
use crate::reference::numbers::{limits, round, wrap};
use crate::reference::{ArrayD, array, zip};
use crate::suite::{Outcome, Suite};
use crate::tolerance::{EPS, EXACT, Table, Tolerance};
use marquetry::{DType, Device, Result, Tensor};

pub const TOLERANCES: Table = &[
    (&["masked_fill"], Tolerance { moves: true, reason: "nothing is computed", ..EXACT }),
    (&["prelu"], Tolerance { ulp: 0.5, reason: "one product", ..EXACT }),
    (
        &["lerp"],
        Tolerance {
            ulp: 0.5,
            of_scale: 3.0 * EPS,
            reason: "a difference, 1 - weight, and their product (the scale), each rounded, and a sum",
            ..EXACT
        },
    ),
];

const LAYOUTS: [Layout; 4] = [Layout::Contiguous, Layout::Transposed, Layout::Empty, Layout::Odd];

fn is_unsigned(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::U32)
}

/// Applies a function of doubles, and wraps the result if the dtype is an integer.
fn map(values: &ArrayD<f64>, dtype: DType, function: impl Fn(f64) -> f64) -> ArrayD<f64> {
    if dtype.is_float() { values.mapv(function) } else { values.mapv(|x| wrap(function(x) as i64, dtype)) }
}

fn affine(dtype: DType, layout: Layout, device: &Device) -> Outcome {
    let input = sample("affine", layout, dtype, Domain::Special, device)?;
    let (scale, shift) = if dtype.is_float() { (1.7, -0.3) } else { (3.0, 11.0) };
    // Numbers are rounded to the dtype before use.
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
    /// The name of its entry in the tolerances.
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
        for dtype in floats() {
            let layouts = if is_brief(dtype) { &[Layout::Contiguous] } else { layouts(dtype) };
            for &layout in layouts {
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

/// An operator in its four forms with a number.
struct Operator {
    name: &'static str,
    ways: [fn(&Tensor, f64) -> Result<Tensor>; 4],
    float: fn(f64, f64) -> f64,
    integer: fn(i64, i64) -> i64,
    tensors: [fn(&Tensor, &Tensor) -> Result<Tensor>; 4],
}

macro_rules! operators {
    ($($name:ident $symbol:tt $float:expr, $integer:expr;)*) => {
        &[$(Operator {
            name: stringify!($name),
            ways: [|x, n| x $symbol n, |x, n| x.clone() $symbol n, |x, n| n $symbol x, |x, n| n $symbol x.clone()],
            float: $float,
            integer: $integer,
            tensors: [|a, b| a $symbol b, |a, b| a.clone() $symbol b, |a, b| a $symbol b.clone(), |a, b| a.clone() $symbol b.clone()],
        }),*]
    };
}

const OPERATORS: &[Operator] = operators! {
    add + |a, b| a + b, i64::wrapping_add;
    sub - |a, b| a - b, i64::wrapping_sub;
    mul * |a, b| a * b, i64::wrapping_mul;
    div / |a, b| a / b, integer_division;
};

const REMAINDER: &[Operator] = operators! { rem % remainder, integer_remainder; };

/// The same for operators of integers only.
struct Bitwise {
    name: &'static str,
    ways: [fn(&Tensor, i64) -> Result<Tensor>; 4],
    tensors: [fn(&Tensor, &Tensor) -> Result<Tensor>; 4],
    integer: fn(i64, i64) -> i64,
}

macro_rules! bitwise {
    ($($name:ident $symbol:tt $integer:expr;)*) => {
        &[$(Bitwise {
            name: stringify!($name),
            ways: [|x, n| x $symbol n, |x, n| x.clone() $symbol n, |x, n| n $symbol x, |x, n| n $symbol x.clone()],
            tensors: [|a, b| a $symbol b, |a, b| a.clone() $symbol b, |a, b| a $symbol b.clone(), |a, b| a.clone() $symbol b.clone()],
            integer: $integer,
        }),*]
    };
}

const BITWISE: &[Bitwise] = bitwise! {
    bitwise_and & |a, b| a & b;
    bitwise_or | |a, b| a | b;
    bitwise_xor ^ |a, b| a ^ b;
    shl << shift_left;
    shr >> shift_right;
};

fn check_bitwise(operator: &Bitwise, dtype: DType, device: &Device) -> Outcome {
    let a = sample("bitwise left", Layout::Contiguous, dtype, Domain::Special, device)?;
    let b = sample("bitwise right", Layout::Contiguous, dtype, Domain::Special, device)?;
    let exact = |a: f64, b: f64| wrap((operator.integer)(a as i64, b as i64), dtype);
    let expected = Expected::new(zip(&a.values, &b.values, exact), dtype);
    operator.tensors.iter().try_for_each(|way| check(operator.name, &way(&a.tensor, &b.tensor)?, &expected))?;
    for (place, way) in operator.ways.iter().enumerate() {
        let values = a.values.mapv(|x| if place < 2 { exact(x, 5.0) } else { exact(5.0, x) });
        check(operator.name, &way(&a.tensor, 5)?, &Expected::new(values, dtype))?;
    }
    Ok(())
}

fn prelu(input: &Sample, weight: &Sample) -> Outcome {
    let mut shape = vec![1; input.values.ndim().max(1)];
    if let Some(channels) = shape.get_mut(1) {
        *channels = weight.values.len();
    }
    let weights = array(&shape[shape.len() - input.values.ndim()..], weight.values.iter().copied().collect());
    let values = zip(&input.values, &weights, |x, w| if x < 0.0 { w * x } else { x });
    check("prelu", &input.tensor.prelu(&weight.tensor)?, &Expected::new(values, input.tensor.dtype()))
}

fn lerp(start: &Sample, end: &Sample, weight: &ArrayD<f64>, actual: &Tensor) -> Outcome {
    let distance = zip(&end.values, &start.values, |end, start| end - start);
    let way = zip(&distance, weight, |distance, weight| weight * distance);
    let values = zip(&start.values, &way, |start, way| start + way);
    let scale = zip(&distance, &zip(&start.values, &end.values, |a, b| a.abs() + b.abs()), |distance, ends| {
        distance.abs() + ends
    });
    let scale = zip(&scale, &weight.mapv(|w| 1.0 + w.abs()), |scale, weight| scale * weight);
    check("lerp", actual, &Expected::new(values, start.tensor.dtype()).with_scale(scale))
}

fn add_more(suite: &mut Suite) {
    use Layout::{Broadcast, Contiguous, Sliced, Transposed, Unaligned};
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_integer()) {
        for operator in BITWISE {
            suite
                .add(operator.name, format!("{dtype}::operator"), move |device| check_bitwise(operator, dtype, device));
        }
        suite.add("bitwise_not", format!("{dtype}::operator"), move |device| {
            let input = sample("not operator", Contiguous, dtype, Domain::Special, device)?;
            let expected = Expected::new(input.values.mapv(|x| wrap(!(x as i64), dtype)), dtype);
            check("bitwise_not", &(!&input.tensor)?, &expected)?;
            check("bitwise_not", &(!input.tensor.clone())?, &expected)
        });
    }
    for dtype in [DType::F32, DType::I32] {
        for (way, side) in ["right_ref", "right", "left_ref", "left"].into_iter().enumerate() {
            suite.add("rem", format!("{dtype}::number_{side}"), move |device| {
                REMAINDER[0].with_number(way, &sample("rem", Contiguous, dtype, Domain::Special, device)?)
            });
        }
        suite.add("rem", format!("{dtype}::operator"), move |device| {
            let a = sample("operator left", Contiguous, dtype, Domain::Special, device)?;
            let b = sample("operator right", Contiguous, dtype, Domain::Special, device)?;
            (0..4).try_for_each(|way| REMAINDER[0].with_tensor(way, &a, &b))
        });
        suite.add("clamp", format!("{dtype}::hardtanh"), move |device| {
            let input = sample("hardtanh", Contiguous, dtype, Domain::Special, device)?;
            let expected = Expected::new(input.values.mapv(|x| x.clamp(-1.0, 1.0)), dtype);
            check("clamp", &input.tensor.hardtanh()?, &expected)
        });
    }
    for dtype in floats() {
        let layouts = [(Contiguous, Contiguous), (Transposed, Sliced), (Sliced, Broadcast), (Unaligned, Unaligned)];
        for (input, weight) in layouts.into_iter().take(if is_brief(dtype) { 2 } else { 4 }) {
            suite.add("prelu", format!("{dtype}::{}_{}", input.name(), weight.name()), move |device| {
                let weight = shaped("prelu weight", &[5], weight, dtype, Domain::Normal, device)?;
                prelu(&sample("prelu", input, dtype, Domain::Special, device)?, &weight)
            });
            suite.add("lerp", format!("{dtype}::{}_{}", input.name(), weight.name()), move |device| {
                let start = sample("lerp start", input, dtype, Domain::Special, device)?;
                let end = sample("lerp end", weight, dtype, Domain::Special, device)?;
                let weights = sample("lerp weight", Contiguous, dtype, Domain::Normal, device)?;
                lerp(&start, &end, &weights.values, &start.tensor.lerp(&end.tensor, &weights.tensor)?)?;
                [0.0, 0.3, 0.75, 1.0].into_iter().try_for_each(|weight| {
                    let rounded = array(&[], vec![round(weight, dtype)]);
                    lerp(&start, &end, &rounded, &start.tensor.lerp(&end.tensor, weight)?)
                })
            });
        }
        suite.add("lerp", format!("{dtype}::ends"), move |device| {
            let start = sample("lerp start", Contiguous, dtype, Domain::Special, device)?;
            let end = sample("lerp end", Contiguous, dtype, Domain::Special, device)?;
            check("neg", &start.tensor.lerp(&end.tensor, 0)?, &Expected::new(start.values.clone(), dtype))?;
            check("neg", &start.tensor.lerp(&end.tensor, 1)?, &Expected::new(end.values, dtype))
        });
        suite.add("prelu", format!("{dtype}::ranks"), move |device| {
            for (shape, weights) in
                [(&[][..], &[][..]), (&[], &[1]), (&[6], &[1]), (&[4, 3], &[3]), (&[4, 3], &[1]), (&[2, 0], &[0])]
            {
                let input = shaped("prelu", shape, Contiguous, dtype, Domain::Special, device)?;
                prelu(&input, &shaped("prelu weight", weights, Contiguous, dtype, Domain::Normal, device)?)?;
            }
            Ok(())
        });
    }
    for dtype in numbers() {
        suite.add("square", format!("{dtype}"), move |device| {
            let input = sample("square", Contiguous, dtype, Domain::Small, device)?;
            check("sqr", &input.tensor.square()?, &Expected::new(map(&input.values, dtype, |x| x * x), dtype))
        });
    }
    for dtype in DType::ALL {
        for (input, mask) in [(Contiguous, Contiguous), (Transposed, Broadcast)] {
            suite.add("masked_fill", format!("{dtype}::{}_{}", input.name(), mask.name()), move |device| {
                let input = sample("masked_fill", input, dtype, Domain::Special, device)?;
                let values = Inputs::new("mask").array(&[5, 6], DType::U8, Domain::Small).mapv(|x| (x > 3.0).into());
                let mask = mask.place(values, DType::U8, device)?;
                let filled = |value: f64| {
                    let marked = zip(&mask.values, &input.values, |mask, x| if mask != 0.0 { value } else { x });
                    Expected::new(marked, dtype)
                };
                let value = if dtype.is_float() { f64::NEG_INFINITY } else { limits(dtype).1.min(7.0) };
                check("masked_fill", &input.tensor.masked_fill(&mask.tensor, value)?, &filled(value))?;
                let one = upload(&array(&[], vec![1.0]), dtype, device)?;
                check("masked_fill", &input.tensor.masked_fill(&mask.tensor, &one)?, &filled(1.0))
            });
        }
    }
}

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
    add_more(suite);
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
        // A negative number, which unsigned integers refuse.
        suite.add("affine", format!("{dtype}::negative"), move |device| {
            let input = sample("affine", Layout::Contiguous, dtype, Domain::Special, device)?;
            let expected = Expected::new(map(&input.values, dtype, |x| x * -2.0 - 5.0), dtype);
            let expected = expected.with_scale(input.values.mapv(|x| (x * 2.0).abs()));
            check("affine", &input.tensor.affine(-2.0, -5.0)?, &expected)
        });
    }
}
