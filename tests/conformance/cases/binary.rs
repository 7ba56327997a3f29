//! Functions of two elements.

use super::{floats, is_brief, layouts, shaped};
use crate::compare::{Expected, Sample, check, upload};
use crate::layouts::Layout;
use crate::reference::functions::{
    integer_division, integer_fmod, integer_power, integer_remainder, maximum, minimum, remainder, shift_left,
    shift_right, truth,
};
use crate::reference::inputs::{Domain, Inputs, specials};
use crate::reference::numbers::{round, wrap};
use crate::reference::{ArrayD, array, broadcast, zip};
use crate::suite::{Outcome, Suite};
use marquetry::{DType, Device, Result, Tensor};

struct Function {
    name: &'static str,
    call: fn(&Tensor, &Tensor) -> Result<Tensor>,
    with_number: fn(&Tensor, f64) -> Result<Tensor>,
    float: fn(f64, f64) -> f64,
    /// The function for integers, if it is not the same.
    integer: Option<fn(i64, i64) -> i64>,
}

macro_rules! functions {
    ($($name:ident, $float:expr $(, $integer:expr)?;)*) => {
        &[$(Function {
            name: stringify!($name),
            call: |a, b| a.$name(b),
            with_number: |a, b| a.$name(b),
            float: $float,
            integer: functions!(@integer $($integer)?),
        }),*]
    };
    (@integer) => { None };
    (@integer $integer:expr) => { Some($integer) };
}

const FUNCTIONS: &[Function] = functions! {
    add, |a, b| a + b, i64::wrapping_add;
    sub, |a, b| a - b, i64::wrapping_sub;
    mul, |a, b| a * b, i64::wrapping_mul;
    div, |a, b| a / b, integer_division;
    maximum, maximum;
    minimum, minimum;
    eq, |a, b| (a == b).into();
    ne, |a, b| (a != b).into();
    lt, |a, b| (a < b).into();
    le, |a, b| (a <= b).into();
    gt, |a, b| (a > b).into();
    ge, |a, b| (a >= b).into();
    pow, libm::pow, integer_power;
    rem, remainder, integer_remainder;
    fmod, |a, b| a % b, integer_fmod;
    atan2, f64::atan2;
    bitwise_and, no_floats, |a, b| a & b;
    bitwise_or, no_floats, |a, b| a | b;
    bitwise_xor, no_floats, |a, b| a ^ b;
    shl, no_floats, shift_left;
    shr, no_floats, shift_right;
    logical_and, |a, b| truth(a != 0.0 && b != 0.0);
    logical_or, |a, b| truth(a != 0.0 || b != 0.0);
    logical_xor, |a, b| truth((a != 0.0) != (b != 0.0));
};

/// Stands for a missing function of floats.
fn no_floats(_: f64, _: f64) -> f64 {
    unreachable!("the function is of integers only")
}

/// Pairs of intervals in which functions of floats are tested densely.
const DENSE: &[(&str, [[f64; 2]; 2])] = &[
    ("pow", [[0.0, 20.0], [-30.0, 30.0]]),
    ("pow", [[0.5, 2.0], [-128.0, 128.0]]),
    ("pow", [[0.99, 1.01], [-8000.0, 8000.0]]),
    ("pow", [[0.5, 1.9], [-1020.0, 1020.0]]),
    ("rem", [[-1e9, 1e9], [-3.0, 3.0]]),
    ("fmod", [[-1e9, 1e9], [-3.0, 3.0]]),
    ("fmod", [[-1e30, 1e30], [-1e-30, 1e-30]]),
    ("atan2", [[-4.0, 4.0], [-4.0, 4.0]]),
];

/// Shapes that broadcast to one another.
const BROADCASTS: [(&str, &[usize], &[usize]); 6] = [
    ("outer", &[3, 1], &[1, 4]),
    ("scalar_left", &[], &[7, 9]),
    ("scalar_right", &[7, 9], &[]),
    ("ranks", &[4, 5, 6], &[6]),
    ("middle", &[4, 1, 6], &[2, 1, 5, 1]),
    ("empty", &[3, 1], &[1, 0]),
];

impl Function {
    fn takes(&self, dtype: DType) -> bool {
        match self.name {
            "atan2" => dtype.is_float(),
            "bitwise_and" | "bitwise_or" | "bitwise_xor" => !dtype.is_float(),
            "shl" | "shr" => dtype.is_integer(),
            "add" | "sub" | "mul" | "div" | "rem" | "fmod" | "pow" => dtype != DType::Bool,
            _ => true,
        }
    }

    fn check(&self, a: &Sample, b: &Sample) -> Outcome {
        check(self.name, &(self.call)(&a.tensor, &b.tensor)?, &self.expected(a, &b.values))
    }

    /// Tests a number as right operand. Every integer and float dtype holds it.
    fn check_number(&self, a: &Sample, number: f64) -> Outcome {
        check(self.name, &(self.with_number)(&a.tensor, number)?, &self.expected(a, &array(&[], vec![number])))
    }

    fn expected(&self, a: &Sample, b: &ArrayD<f64>) -> Expected {
        let dtype = a.tensor.dtype();
        let values = match self.integer {
            Some(integer) if !dtype.is_float() => zip(&a.values, b, |a, b| wrap(integer(a as i64, b as i64), dtype)),
            _ => zip(&a.values, b, self.float),
        };
        let tests = ["eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor"];
        let compares = tests.contains(&self.name);
        Expected::new(values, if compares { DType::Bool } else { dtype })
    }
}

/// Tests shifts by every valid count, and some others.
fn check_shifts(dtype: DType, device: &Device) -> Outcome {
    let numbers: Vec<f64> = Inputs::new("shifts").array(&[40], dtype, Domain::Special).iter().copied().collect();
    let counts: Vec<f64> = (0..40).map(f64::from).collect();
    let [numbers, counts] = [(&[40, 1], numbers), (&[1, 40], counts)].map(|(shape, values)| array(shape, values));
    let sample =
        |values: ArrayD<f64>| -> Outcome<Sample> { Ok(Sample { tensor: upload(&values, dtype, device)?, values }) };
    let (numbers, counts) = (sample(numbers)?, sample(counts)?);
    for function in FUNCTIONS.iter().filter(|function| matches!(function.name, "shl" | "shr")) {
        function.check(&numbers, &counts)?;
    }
    Ok(())
}

fn add_dense(suite: &mut Suite) {
    for (place, &(name, intervals)) in DENSE.iter().enumerate() {
        let function = FUNCTIONS.iter().find(|function| function.name == name).expect("a function of the list");
        for dtype in [DType::F32, DType::F64] {
            suite.add(function.name, format!("{dtype}::dense_{place}"), move |device| {
                let mut inputs = Inputs::new(&format!("{name} dense"));
                let mut draw = |[low, high]: [f64; 2]| -> Outcome<Sample> {
                    let numbers = (0..8192).map(|_| round(low + inputs.uniform() * (high - low), dtype)).collect();
                    let values = array(&[8192], numbers);
                    Ok(Sample { tensor: upload(&values, dtype, device)?, values })
                };
                let [a, b] = [draw(intervals[0])?, draw(intervals[1])?];
                function.check(&a, &b)
            });
        }
    }
    for dtype in floats() {
        suite.add("pow", format!("{dtype}::whole"), move |device| {
            let power = FUNCTIONS.iter().find(|function| function.name == "pow").expect("a function of the list");
            let sample = |shape: &[usize], scale: f64| -> Outcome<Sample> {
                let values = array(shape, (-9..=9).map(|n| f64::from(n) * scale).collect());
                Ok(Sample { tensor: upload(&values, dtype, device)?, values })
            };
            power.check(&sample(&[19, 1], 0.75)?, &sample(&[1, 19], 1.0)?)
        });
    }
    suite.add("pow", "i32::whole", |device| {
        let power = FUNCTIONS.iter().find(|function| function.name == "pow").expect("a function of the list");
        let values: Vec<f64> = (-9..=9).map(f64::from).collect();
        let [base, exponent] = [[19, 1], [1, 19]].map(|shape| array(&shape, values.clone()));
        let sample = |values: ArrayD<f64>| -> Outcome<Sample> {
            Ok(Sample { tensor: upload(&values, DType::I32, device)?, values })
        };
        power.check(&sample(base)?, &sample(exponent)?)
    });
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_integer()) {
        suite.add("shl", format!("{dtype}::counts"), move |device| check_shifts(dtype, device));
    }
}

pub fn add(suite: &mut Suite) {
    use Layout::{Broadcast, Contiguous, Sliced, Transposed};
    add_dense(suite);
    for function in FUNCTIONS {
        let dtype = if function.takes(DType::F32) { DType::F32 } else { DType::I32 };
        suite.add(function.name, format!("{dtype}::number"), move |device| {
            let a = shaped(function.name, &[3, 7], Contiguous, dtype, Domain::Special, device)?;
            [0.0, 3.0, 5.0].into_iter().try_for_each(|number| function.check_number(&a, number))
        });
        for dtype in DType::ALL.into_iter().filter(|&dtype| function.takes(dtype)) {
            let op = function.name;
            let same = layouts(dtype).iter().map(|&layout| (layout, layout));
            let mixed = [(Contiguous, Transposed), (Broadcast, Contiguous), (Transposed, Sliced), (Sliced, Broadcast)];
            let mixed = mixed.into_iter().filter(|_| !is_brief(dtype));
            for (left, right) in same.chain(mixed) {
                let name = if left == right { left.name() } else { format!("{}_{}", left.name(), right.name()) };
                suite.add(op, format!("{dtype}::{name}"), move |device| {
                    let a = shaped(&format!("{op} left"), &left.shape(), left, dtype, Domain::Special, device)?;
                    let b = shaped(&format!("{op} right"), &right.shape(), right, dtype, Domain::Special, device)?;
                    function.check(&a, &b)
                });
            }
            for (name, left, right) in BROADCASTS.into_iter().filter(|_| !is_brief(dtype)) {
                suite.add(op, format!("{dtype}::broadcast_{name}"), move |device| {
                    let a = shaped(&format!("{op} left"), left, Contiguous, dtype, Domain::Special, device)?;
                    let b = shaped(&format!("{op} right"), right, Contiguous, dtype, Domain::Special, device)?;
                    function.check(&a, &b)
                });
            }
            suite.add(op, format!("{dtype}::special"), move |device| {
                let numbers = specials(dtype);
                let square = [numbers.len(), numbers.len()];
                let columns = broadcast(&array(&[1, numbers.len()], numbers), &square);
                let rows = columns.t().as_standard_layout().into_owned();
                let [rows, columns] = [rows, columns].map(|values| (upload(&values, dtype, device), values));
                let rows = Sample { tensor: rows.0?, values: rows.1 };
                let columns = Sample { tensor: columns.0?, values: columns.1 };
                function.check(&rows, &columns)?;
                // The same tensor twice: `x / x` is not always 1, and `x == x` is not always true.
                function.check(&columns, &columns)?;
                if !dtype.is_float() {
                    return Ok(());
                }
                // And if the same kernel computes it. Subnormal numbers might become 0 by that.
                let values = array(&[6], vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1.5]);
                let tensor = upload(&values, dtype, device)?;
                let tensor = tensor.sub(&Tensor::zeros([6], dtype, device)?)?;
                let computed = Sample { tensor, values };
                function.check(&computed, &computed)
            });
            suite.add(op, format!("{dtype}::one_buffer"), move |device| {
                let a = shaped(op, &[7, 7], Contiguous, dtype, Domain::Special, device)?;
                let transposed = Sample { tensor: a.tensor.t()?, values: a.values.t().to_owned() };
                function.check(&a, &transposed)
            });
        }
    }
}
