//! Random graphs of operations: pending results that share operands, are seen through views, are read early, or whose
//! handles are dropped. All numbers are whole and small, so that every result is exact in every dtype: fused, run one
//! by one, and as the reference computes it. A failure is shrunk to a smallest graph.

use crate::compare::{download, upload};
use crate::full_tier;
use crate::reference::inputs::{Domain, Inputs};
use crate::reference::numbers::wrap;
use crate::reference::{ArrayD, Axis, Slice, array, zip};
use crate::suite::Outcome;
use half::f16;
use marquetry::{DType, Device, Tensor};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

/// Results beyond this are limited, so that no sum leaves the numbers that `f32` holds exactly. Halves round before.
const MOST: f64 = 30_000.0;

/// An operation on square matrices. Places and other operands are taken modulo what is there.
#[derive(Debug, Clone, Copy)]
enum Op {
    Neg,
    Abs,
    Add(usize),
    Sub(usize),
    Maximum(usize),
    /// Times one of the inputs with small numbers.
    Mul(usize),
    AddNumber(i32),
    /// The first where the second is positive, else this.
    Choose(usize, usize),
    ToBoolAndBack,
    Transpose,
    Reshape,
    Row(usize),
    Column(usize),
    Flip,
    Contiguous,
    SumOfRows(usize),
    LargestOfRows(usize),
    /// The product with one of the inputs with small numbers.
    Product(usize),
}

#[derive(Debug, Clone)]
struct Step {
    op: Op,
    operand: usize,
    /// Whether the result is read at once.
    read: bool,
    /// The handle to drop after this step, if any.
    drop: Option<usize>,
}

#[derive(Debug, Clone)]
struct Graph {
    size: usize,
    steps: Vec<Step>,
    /// Chooses the order in which the results are read.
    order: usize,
}

fn graph() -> impl Strategy<Value = Graph> {
    let any = 0..100usize;
    let op = prop_oneof![
        Just(Op::Neg),
        Just(Op::Abs),
        any.clone().prop_map(Op::Add),
        any.clone().prop_map(Op::Add),
        any.clone().prop_map(Op::Sub),
        any.clone().prop_map(Op::Maximum),
        any.clone().prop_map(Op::Mul),
        (-3..4i32).prop_map(Op::AddNumber),
        (any.clone(), any.clone()).prop_map(|(a, b)| Op::Choose(a, b)),
        Just(Op::ToBoolAndBack),
        Just(Op::Transpose),
        Just(Op::Reshape),
        any.clone().prop_map(Op::Row),
        any.clone().prop_map(Op::Column),
        Just(Op::Flip),
        Just(Op::Contiguous),
        any.clone().prop_map(Op::SumOfRows),
        any.clone().prop_map(Op::LargestOfRows),
        any.clone().prop_map(Op::Product),
    ];
    let step = (op, any.clone(), prop::bool::weighted(0.1), prop::option::of(any.clone()))
        .prop_map(|(op, operand, read, drop)| Step { op, operand, read, drop });
    (2..6usize, prop::collection::vec(step, 1..20), any).prop_map(|(size, steps, order)| Graph { size, steps, order })
}

/// A result and its exact values.
#[derive(Clone)]
struct Known {
    tensor: Tensor,
    values: ArrayD<f64>,
}

impl Op {
    /// Returns the result on the device, and what it should be before it is rounded to the dtype.
    fn apply(self, x: &Known, others: &[Known], inputs: &[Known]) -> Outcome<Known> {
        let (tensor, values, n) = (&x.tensor, &x.values, x.values.shape()[0]);
        let other = |i: usize| &others[i % others.len()];
        let input = |i: usize| &inputs[1 + i % (inputs.len() - 1)];
        let spread = |row: ArrayD<f64>| row.broadcast(vec![n, n]).unwrap().to_owned();
        let folded = |axis: usize, fold: fn(f64, f64) -> f64| {
            let row = values.map_axis(Axis(axis), |row| row.iter().copied().reduce(fold).unwrap_or_default());
            spread(row.insert_axis(Axis(axis)))
        };
        let (tensor, values) = match self {
            Op::Neg => (tensor.neg()?, values.mapv(|x| -x)),
            Op::Abs => (tensor.abs()?, values.mapv(f64::abs)),
            Op::Add(i) => (tensor.add(&other(i).tensor)?, zip(values, &other(i).values, |a, b| a + b)),
            Op::Sub(i) => (tensor.sub(&other(i).tensor)?, zip(values, &other(i).values, |a, b| a - b)),
            Op::Maximum(i) => (tensor.maximum(&other(i).tensor)?, zip(values, &other(i).values, f64::max)),
            Op::Mul(i) => (tensor.mul(&input(i).tensor)?, zip(values, &input(i).values, |a, b| a * b)),
            Op::AddNumber(number) => (tensor.add(number)?, values.mapv(|x| x + f64::from(number))),
            Op::Choose(i, j) => {
                let chosen = other(j).tensor.gt(0)?.where_cond(&other(i).tensor, tensor)?;
                let both = zip(&other(i).values, &other(j).values, |a, c| if c > 0.0 { a } else { f64::NAN });
                (chosen, zip(&both, values, |a, b| if a.is_nan() { b } else { a }))
            }
            Op::ToBoolAndBack => {
                let truth = tensor.to_dtype(DType::Bool)?.to_dtype(tensor.dtype())?;
                (truth, values.mapv(|x| f64::from(x != 0.0)))
            }
            Op::Transpose => (tensor.t()?, values.t().to_owned()),
            Op::Reshape => {
                let turned = values.t().as_standard_layout().to_owned();
                (tensor.t()?.flatten(0, 1)?.reshape((n, n))?, turned)
            }
            Op::Row(i) => {
                let row = values.slice_axis(Axis(0), Slice::from(i % n..i % n + 1)).to_owned();
                (tensor.narrow(0, i % n, 1)?.broadcast_to((n, n))?, spread(row))
            }
            Op::Column(i) => {
                let column = values.slice_axis(Axis(1), Slice::from(i % n..i % n + 1)).to_owned();
                (tensor.narrow(1, i % n, 1)?.broadcast_to((n, n))?, spread(column))
            }
            Op::Flip => (tensor.flip(0)?, values.slice_axis(Axis(0), Slice::new(0, None, -1)).to_owned()),
            Op::Contiguous => (tensor.contiguous()?, values.clone()),
            Op::SumOfRows(axis) => {
                let sum = tensor.sum_keepdim(axis % 2)?.to_dtype(tensor.dtype())?.broadcast_to((n, n))?;
                (sum, folded(axis % 2, |a, b| a + b))
            }
            Op::LargestOfRows(axis) => {
                let largest = tensor.max_keepdim(axis % 2)?.broadcast_to((n, n))?;
                (largest, folded(axis % 2, f64::max))
            }
            Op::Product(i) => {
                let (a, b) = (values, &input(i).values);
                let element = |at: usize| (0..n).map(|k| a[[at / n, k]] * b[[k, at % n]]).sum();
                (tensor.matmul(&input(i).tensor)?, array(&[n, n], (0..n * n).map(element).collect()))
            }
        };
        Ok(Known { tensor, values })
    }
}

/// Rounds to what a dtype holds.
fn rounded(x: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f16::from_f64(x).to_f64(),
        dtype if dtype.is_float() => x,
        dtype => wrap(x as i64, dtype),
    }
}

/// Fails unless the elements are exactly these. A zero has no sign here: `f64::max` gives either.
fn check_exact(what: &str, tensor: &Tensor, values: &ArrayD<f64>) -> Outcome {
    let elements = download(tensor)?;
    if elements == *values {
        return Ok(());
    }
    Err(format!("{what}: expected {values}, got {elements}").into())
}

/// Builds a graph and reads all that is left of it. If `fused` is false, each operation runs before the next.
fn try_graph(graph: &Graph, dtype: DType, fused: bool, device: &Device) -> Outcome {
    let shape = [graph.size, graph.size];
    let inputs = (0..3).map(|i| {
        let values = Inputs::new(&format!("graph {i}")).array(&shape, dtype, Domain::Small);
        // The sum of two elements of the first is more than halves hold exactly.
        let scale = if i == 0 { 333.0 } else { 1.0 };
        let values = values.mapv(|x| x.round().clamp(-3.0, 3.0) * scale);
        Ok(Known { tensor: upload(&values, dtype, device)?, values })
    });
    let inputs: Vec<Known> = inputs.collect::<Outcome<_>>()?;
    let mut known = inputs.clone();
    for (number, step) in graph.steps.iter().enumerate() {
        let x = known[step.operand % known.len()].clone();
        let mut y = step.op.apply(&x, &known, &inputs)?;
        drop(x);
        y.values.mapv_inplace(|x| rounded(x, dtype));
        if y.values.iter().any(|x| x.abs() > MOST) {
            y = Known { tensor: y.tensor.clamp(-3, 3)?, values: y.values.mapv(|x| x.clamp(-3.0, 3.0)) };
        }
        if !fused {
            y.tensor.realize()?;
        }
        if step.read {
            check_exact(&format!("step {number}"), &y.tensor, &y.values)?;
        }
        known.push(y);
        if let Some(gone) = step.drop
            && known.len() > 1
        {
            known.swap_remove(gone % known.len());
        }
    }
    while !known.is_empty() {
        let next = known.swap_remove(graph.order % known.len());
        check_exact("a result", &next.tensor, &next.values)?;
    }
    Ok(())
}

/// Tries random graphs, the same in each run.
pub fn try_random(dtype: DType, device: &Device) -> Outcome {
    let cases = if full_tier() { 2000 } else { 150 };
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let seed = Inputs::new(&format!("graphs of {dtype}")).seed();
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let result = runner.run(&graph(), |graph| {
        for fused in [true, false] {
            try_graph(&graph, dtype, fused, device).map_err(|failed| {
                let way = if fused { "fused" } else { "one by one" };
                TestCaseError::fail(format!("{way}: {}", failed.message().unwrap_or_default()))
            })?;
        }
        Ok(())
    });
    match result {
        Ok(()) => Ok(()),
        Err(TestError::Fail(reason, graph)) => Err(format!("{reason}\nthe smallest graph found: {graph:?}").into()),
        Err(TestError::Abort(reason)) => Err(format!("proptest gave up: {reason}").into()),
    }
}
