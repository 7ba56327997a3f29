//! Functions of two elements.

use super::shaped;
use crate::compare::{Expected, Sample, check, upload};
use crate::layouts::Layout;
use crate::reference::functions::{integer_division, maximum, minimum};
use crate::reference::inputs::{Domain, specials};
use crate::reference::numbers::wrap;
use crate::reference::{array, broadcast, zip};
use crate::suite::{Outcome, Suite};
use marquetry::{DType, Result, Tensor};

struct Function {
    name: &'static str,
    call: fn(&Tensor, &Tensor) -> Result<Tensor>,
    float: fn(f64, f64) -> f64,
    /// For integers, where that is not the same.
    integer: Option<fn(i64, i64) -> i64>,
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
};

/// Shapes that are broadcast to one another.
const BROADCASTS: [(&str, &[usize], &[usize]); 6] = [
    ("outer", &[3, 1], &[1, 4]),
    ("scalar_left", &[], &[7, 9]),
    ("scalar_right", &[7, 9], &[]),
    ("ranks", &[4, 5, 6], &[6]),
    ("middle", &[4, 1, 6], &[2, 1, 5, 1]),
    ("empty", &[3, 1], &[1, 0]),
];

impl Function {
    fn check(&self, a: &Sample, b: &Sample) -> Outcome {
        let dtype = a.tensor.dtype();
        let values = match self.integer {
            Some(integer) if !dtype.is_float() => {
                zip(&a.values, &b.values, |a, b| wrap(integer(a as i64, b as i64), dtype))
            }
            _ => zip(&a.values, &b.values, self.float),
        };
        let compares = matches!(self.name, "eq" | "ne" | "lt" | "le" | "gt" | "ge");
        let expected = Expected::new(values, if compares { DType::U8 } else { dtype });
        check(self.name, &(self.call)(&a.tensor, &b.tensor)?, &expected)
    }
}

pub fn add(suite: &mut Suite) {
    use Layout::{Broadcast, Contiguous, Sliced, Transposed};
    for function in FUNCTIONS {
        for dtype in DType::ALL {
            let op = function.name;
            let same = Layout::ALL.map(|layout| (layout, layout));
            let mixed = [(Contiguous, Transposed), (Broadcast, Contiguous), (Transposed, Sliced), (Sliced, Broadcast)];
            for (left, right) in same.into_iter().chain(mixed) {
                let name = if left == right { left.name() } else { format!("{}_{}", left.name(), right.name()) };
                suite.add(op, format!("{dtype}::{name}"), move |device| {
                    let a = shaped(&format!("{op} left"), &left.shape(), left, dtype, Domain::Special, device)?;
                    let b = shaped(&format!("{op} right"), &right.shape(), right, dtype, Domain::Special, device)?;
                    function.check(&a, &b)
                });
            }
            for (name, left, right) in BROADCASTS {
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
                // The same tensor twice: `x / x` is not always 1, nor `x == x` always true.
                function.check(&columns, &columns)
            });
            suite.add(op, format!("{dtype}::one_buffer"), move |device| {
                let a = shaped(op, &[7, 7], Contiguous, dtype, Domain::Special, device)?;
                let transposed = Sample { tensor: a.tensor.t()?, values: a.values.t().to_owned() };
                function.check(&a, &transposed)
            });
        }
    }
}
