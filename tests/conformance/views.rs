//! Operations over random shapes and random chains of views. A failure is shrunk to a shortest chain.

use crate::compare::{Expected, Sample, check, upload};
use crate::full_tier;
use crate::reference::functions::maximum;
use crate::reference::index::{cat, index_select};
use crate::reference::inputs::{Domain, Inputs};
use crate::reference::linear::matmul;
use crate::reference::normalize::softmax;
use crate::reference::numbers::{summed, wrap};
use crate::reference::reduce::{argmax, rows, running, sorted};
use crate::reference::{ArrayD, Axis, Slice, array, broadcast, zip};
use crate::suite::Outcome;
use marquetry::{DType, Device, Tensor};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

/// A step from one view to the next. Each number is taken modulo the choices that the current view offers. So every
/// chain can be walked, even after shrinking.
#[derive(Debug, Clone)]
enum Step {
    Permute(Vec<usize>),
    Transpose(usize, usize),
    Narrow(usize, usize, usize),
    Slice(usize, usize, usize, isize),
    Broadcast(usize, usize),
    Unsqueeze(usize),
    Squeeze(usize),
    Flatten(usize, usize),
}

#[derive(Debug, Clone)]
struct Chain {
    shape: Vec<usize>,
    /// True if the viewed tensor has not been computed yet.
    pending: bool,
    steps: Vec<Step>,
    /// Chooses the axes and the second operand of the operation.
    choice: usize,
}

/// The most elements that a broadcast may reach.
const MAX_ELEMENTS: usize = 4096;

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        prop::collection::vec(0..100usize, 6).prop_map(Step::Permute),
        (0..6usize, 0..6usize).prop_map(|(a, b)| Step::Transpose(a, b)),
        (0..6usize, 0..7usize, 0..7usize).prop_map(|(axis, start, length)| Step::Narrow(axis, start, length)),
        (0..6usize, 0..7usize, 0..7usize, prop_oneof![1..4isize, -3..0isize])
            .prop_map(|(axis, start, end, step)| Step::Slice(axis, start, end, step)),
        (0..6usize, 1..4usize).prop_map(|(axis, length)| Step::Broadcast(axis, length)),
        (0..6usize).prop_map(Step::Unsqueeze),
        (0..6usize).prop_map(Step::Squeeze),
        (0..6usize, 0..6usize).prop_map(|(start, end)| Step::Flatten(start, end)),
    ]
}

fn chain() -> impl Strategy<Value = Chain> {
    // Lengths of 0 are rare: with such an axis there is nothing to compare.
    let length = prop_oneof![1 => Just(0usize), 20 => 1..6usize];
    let shape = prop_oneof![
        2 => prop::collection::vec(length, 0..=5).boxed(),
        // With equal lengths, confused axes still fit, so only the values can show the mistake.
        1 => (2..5usize, 2..5usize).prop_map(|(length, rank)| vec![length; rank]).boxed(),
    ];
    (shape, any::<bool>(), prop::collection::vec(step(), 0..6), 0..1000usize)
        .prop_map(|(shape, pending, steps, choice)| Chain { shape, pending, steps, choice })
}

impl Step {
    /// Returns the next view and the call that made it. `None` if the step does not apply.
    fn apply(&self, from: &Sample) -> Outcome<Option<(Sample, String)>> {
        let (tensor, values) = (&from.tensor, &from.values);
        let rank = values.ndim();
        if rank == 0 && !matches!(self, Step::Unsqueeze(_) | Step::Broadcast(..)) {
            return Ok(None);
        }
        let (tensor, values, call) = match self {
            Step::Permute(keys) => {
                let mut axes: Vec<usize> = (0..rank).collect();
                axes.sort_by_key(|&axis| keys.get(axis));
                let call = format!("permute({axes:?})");
                (tensor.permute(axes.as_slice())?, values.view().permuted_axes(axes).to_owned(), call)
            }
            Step::Transpose(a, b) => {
                let (a, b) = (a % rank, b % rank);
                let mut values = values.clone();
                values.swap_axes(a, b);
                (tensor.transpose(a, b)?, values, format!("transpose({a}, {b})"))
            }
            Step::Narrow(axis, start, length) => {
                let axis = axis % rank;
                let start = start % (values.shape()[axis] + 1);
                let length = length % (values.shape()[axis] - start + 1);
                let narrowed = values.slice_axis(Axis(axis), Slice::from(start..start + length)).to_owned();
                (tensor.narrow(axis, start, length)?, narrowed, format!("narrow({axis}, {start}, {length})"))
            }
            Step::Slice(axis, start, end, step) => {
                let axis = axis % rank;
                let (start, end) = (start % (values.shape()[axis] + 1), end % (values.shape()[axis] + 1));
                let (start, end) = (start.min(end), start.max(end));
                let sliced = values.slice_axis(Axis(axis), Slice::new(start as isize, Some(end as isize), *step));
                (
                    tensor.slice(axis, start..end, *step)?,
                    sliced.to_owned(),
                    format!("slice({axis}, {start}..{end}, {step})"),
                )
            }
            Step::Broadcast(axis, length) => {
                let mut shape = values.shape().to_vec();
                match shape.get_mut(*axis) {
                    Some(here) if *here == 1 => *here = *length,
                    _ => shape.insert(0, *length),
                }
                if shape.len() > 7 || shape.iter().product::<usize>() > MAX_ELEMENTS {
                    return Ok(None);
                }
                (tensor.broadcast_to(shape.as_slice())?, broadcast(values, &shape), format!("broadcast_to({shape:?})"))
            }
            Step::Unsqueeze(axis) => {
                let axis = axis % (rank + 1);
                if rank == 7 {
                    return Ok(None);
                }
                (tensor.unsqueeze(axis)?, values.clone().insert_axis(Axis(axis)), format!("unsqueeze({axis})"))
            }
            Step::Squeeze(axis) => {
                let axis = axis % rank;
                let squeezed = match values.shape()[axis] {
                    1 => values.index_axis(Axis(axis), 0).to_owned(),
                    _ => values.clone(),
                };
                (tensor.squeeze(axis)?, squeezed, format!("squeeze({axis})"))
            }
            Step::Flatten(start, end) => {
                let (start, end) = ((start % rank).min(end % rank), (start % rank).max(end % rank));
                let mut shape = values.shape().to_vec();
                let merged = shape.drain(start..=end).product();
                shape.insert(start, merged);
                let flat = array(&shape, values.iter().copied().collect());
                (tensor.flatten(start, end)?, flat, format!("flatten({start}, {end})"))
            }
        };
        Ok(Some((Sample { tensor, values }, call)))
    }
}

/// The operation to try on the last view of a chain.
#[derive(Debug, Clone, Copy)]
pub enum Property {
    Read,
    Contiguous,
    Neg,
    Add,
    Sum,
    Max,
    ArgMax,
    CumSum,
    ArgSort,
    Softmax,
    Matmul,
    Cat,
    IndexSelect,
}

impl Property {
    pub const ALL: [Property; 13] = [
        Property::Read,
        Property::Contiguous,
        Property::Neg,
        Property::Add,
        Property::Sum,
        Property::Max,
        Property::ArgMax,
        Property::CumSum,
        Property::ArgSort,
        Property::Softmax,
        Property::Matmul,
        Property::Cat,
        Property::IndexSelect,
    ];

    /// The name of the operation.
    pub fn op(self) -> &'static str {
        match self {
            Property::Read => "views",
            Property::Contiguous => "contiguous",
            Property::Neg => "neg",
            Property::Add => "add",
            Property::Sum => "sum",
            Property::Max => "max",
            Property::ArgMax => "argmax",
            Property::CumSum => "cumsum",
            Property::ArgSort => "argsort",
            Property::Softmax => "softmax",
            Property::Matmul => "matmul",
            Property::Cat => "cat",
            Property::IndexSelect => "index_select",
        }
    }

    pub fn takes(self, dtype: DType) -> bool {
        match self {
            Property::Softmax => matches!(dtype, DType::F32 | DType::F16 | DType::BF16),
            // These read their rows as reductions do.
            Property::CumSum | Property::ArgSort => matches!(dtype, DType::F32 | DType::U8),
            Property::Matmul | Property::Neg | Property::Add => dtype != DType::Bool,
            _ => true,
        }
    }

    /// Applies the operation to the view and compares. The inputs are small whole numbers, so all but softmax is exact.
    fn check(self, x: &Sample, choice: usize) -> Outcome {
        let dtype = x.tensor.dtype();
        let rank = x.values.ndim();
        let axis = choice % rank.max(1);
        let exact = |values: ArrayD<f64>| Expected::new(values, dtype);
        let wrapped = |x: f64| if dtype.is_float() { x } else { wrap(x as i64, dtype) };
        // The set bits of `choice` select the axes.
        let axes: Vec<usize> = (0..rank).filter(|axis| (choice >> axis) & 1 == 1).collect();
        match self {
            Property::Read => check("views", &x.tensor, &exact(x.values.clone())),
            Property::Contiguous => check("contiguous", &x.tensor.contiguous()?, &exact(x.values.clone())),
            Property::Neg => check("neg", &x.tensor.neg()?, &exact(x.values.mapv(|x| wrapped(-x)))),
            Property::Add => {
                // The partner is contiguous and has length 1 along the axes that `choice` selects.
                let mut shape = x.values.shape().to_vec();
                for (axis, length) in shape.iter_mut().enumerate() {
                    if (choice >> axis) & 1 == 1 {
                        *length = 1;
                    }
                }
                let partner = Inputs::new("partner").array(&shape, dtype, Domain::Small);
                let tensor = upload(&partner, dtype, x.tensor.device())?;
                let sum = zip(&x.values, &partner, |a, b| wrapped(a + b));
                check("add", &x.tensor.add(&tensor)?, &exact(sum.clone()))?;
                check("add", &tensor.add(&x.tensor)?, &exact(sum))
            }
            Property::Sum => {
                let sum = rows(&x.values, &axes, |row| row.iter().sum());
                check("sum", &x.tensor.sum(axes.as_slice())?, &Expected::new(sum, summed(dtype)))
            }
            Property::Max | Property::ArgMax if x.values.is_empty() => {
                // Errors of empty rows are tested elsewhere.
                check("views", &x.tensor, &exact(x.values.clone()))
            }
            Property::Max => {
                let largest = rows(&x.values, &axes, |row| row.iter().copied().fold(f64::NEG_INFINITY, maximum));
                check("max", &x.tensor.max(axes.as_slice())?, &exact(largest))
            }
            Property::ArgMax => {
                let places = rows(&x.values, &axes, argmax);
                check("argmax", &x.tensor.argmax(axes.as_slice())?, &Expected::new(places, DType::U32))
            }
            Property::CumSum | Property::ArgSort if rank == 0 => check("views", &x.tensor, &exact(x.values.clone())),
            Property::CumSum => {
                let sums = Expected::new(running(&x.values, axis, |a, b| a + b), summed(dtype));
                check("cumsum", &x.tensor.cumsum(axis)?, &sums)
            }
            Property::ArgSort => {
                let [_, places] = sorted(&x.values, axis, x.values.shape()[axis], false);
                check("argsort", &x.tensor.argsort(axis, false)?, &Expected::new(places, DType::U32))
            }
            Property::Softmax if rank == 0 => check("views", &x.tensor, &exact(x.values.clone())),
            Property::Softmax => {
                let (values, scale) = softmax(&x.values, axis);
                check("softmax", &x.tensor.softmax(axis)?, &exact(values).with_scale(scale))
            }
            Property::Matmul if rank == 0 => check("views", &x.tensor, &exact(x.values.clone())),
            Property::Matmul => {
                let last = x.values.shape()[rank - 1];
                let partner = Inputs::new("partner").array(&[last, choice % 5], dtype, Domain::Small);
                let tensor = upload(&partner, dtype, x.tensor.device())?;
                check(
                    "matmul",
                    &x.tensor.matmul(&tensor)?,
                    &Expected::new(matmul(&x.values, &partner, dtype).0, summed(dtype)),
                )
            }
            Property::Cat if rank == 0 => check("views", &x.tensor, &exact(x.values.clone())),
            Property::Cat => {
                let parts = [&x.tensor, &x.tensor.contiguous()?, &x.tensor];
                let joined = cat(&[x.values.clone(), x.values.clone(), x.values.clone()], axis);
                check("cat", &Tensor::cat(&parts, axis)?, &exact(joined))
            }
            Property::IndexSelect if rank == 0 || x.values.shape()[axis] == 0 => {
                check("views", &x.tensor, &exact(x.values.clone()))
            }
            Property::IndexSelect => {
                let length = x.values.shape()[axis];
                let indexes = array(&[3], (0..3).map(|i| ((choice + i * i) % length) as f64).collect());
                let tensor = upload(&indexes, DType::U32, x.tensor.device())?;
                let selected = index_select(&x.values, &indexes, axis, dtype);
                check("index_select", &x.tensor.index_select(&tensor, axis)?, &exact(selected))
            }
        }
    }
}

/// Walks one chain and tries the operation on the last view.
fn try_chain(property: Property, dtype: DType, chain: &Chain, device: &Device) -> Outcome {
    let values = Inputs::new("views").array(&chain.shape, dtype, Domain::Small);
    let tensor = upload(&values, dtype, device)?;
    let mut view = Sample { tensor: if chain.pending { tensor.maximum(&tensor)? } else { tensor }, values };
    let mut path = format!("{}{:?}", if chain.pending { "pending " } else { "" }, chain.shape);
    for step in &chain.steps {
        if let Some((next, call)) = step.apply(&view)? {
            path += &format!(" -> {call} {:?}", next.values.shape());
            view = next;
        }
    }
    let outcome = property.check(&view, chain.choice);
    outcome
        .map_err(|failed| format!("{path}, choice {}\n{}", chain.choice, failed.message().unwrap_or_default()).into())
}

/// Tries an operation on random views. Each operation and dtype gets other views, the same in each run.
pub fn try_random(property: Property, dtype: DType, device: &Device) -> Outcome {
    let cases = if full_tier() { 300 } else { 32 };
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let seed = Inputs::new(&format!("{property:?} of {dtype}")).seed();
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let result = runner.run(&chain(), |chain| {
        try_chain(property, dtype, &chain, device)
            .map_err(|failed| TestCaseError::fail(failed.message().unwrap_or_default().to_string()))
    });
    match result {
        Ok(()) => Ok(()),
        Err(TestError::Fail(reason, chain)) => Err(format!("{reason}\nthe shortest chain found: {chain:?}").into()),
        Err(TestError::Abort(reason)) => Err(format!("proptest gave up: {reason}").into()),
    }
}
