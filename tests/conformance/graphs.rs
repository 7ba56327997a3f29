//! Random graphs of operations: pending results that share operands, are seen through views, are read early, or whose
//! handles are dropped. Each graph runs with fusion and without, on devices of its own, and both runs are compared with
//! the reference in `f64` and with each other. A failure is shrunk to a smallest graph.
//!
//! - Whole numbers are small, so every result is exact in every dtype.
//! - Real numbers carry a bound of their error: what the operands' errors become, and what `docs/numerics.md` allows.
//!   If no float sum changes its order, and the driver computes as written, both runs must give the same bits.
//! - What the kernels compute is counted by their names. No product, fold or norm may run twice. No elementwise
//!   operation may be computed a third time.

use crate::compare::{download, upload};
use crate::compiles;
use crate::full_tier;
use crate::reference::inputs::{Domain, Inputs};
use crate::reference::linear::matmul;
use crate::reference::normalize::{layer_norm, rms_norm, softmax};
use crate::reference::numbers::{round, ulp, wrap};
use crate::reference::{ArrayD, Axis, Slice, zip};
use crate::suite::Outcome;
use crate::tolerance;
use libtest_mimic::Failed;
use marquetry::{BackendKind, DType, Device, Explanation, Tensor};
use ndarray::Zip;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// Whole results beyond this are limited, so that no sum leaves the numbers that `f32` holds exactly. Narrower floats
/// round before.
const MOST: f64 = 30_000.0;

/// Real results with a larger error are dropped: within it, a wrong result could pass.
const LOOSEST: f64 = 0.25;

/// The epsilon of norms. With 1, no norm magnifies the error of its operand.
const EPS: f64 = 1.0;

/// What the elements of the inputs are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Numbers {
    /// Small whole numbers.
    Whole,
    /// Floats from -2 to 2.
    Real,
}

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
    Tanh,
    Sigmoid,
    Softmax(usize),
    /// Weight and bias are rows of the inputs with small numbers.
    LayerNorm(usize),
    RmsNorm(usize),
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

fn op(numbers: Numbers) -> BoxedStrategy<Op> {
    let any = 0..100usize;
    let exact = prop_oneof![
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
    let inexact = prop_oneof![
        Just(Op::Tanh),
        Just(Op::Sigmoid),
        any.clone().prop_map(Op::Softmax),
        any.clone().prop_map(Op::LayerNorm),
        any.clone().prop_map(Op::RmsNorm),
    ];
    match numbers {
        Numbers::Whole => exact.boxed(),
        Numbers::Real => prop_oneof![3 => exact, 1 => inexact].boxed(),
    }
}

fn graph(numbers: Numbers) -> impl Strategy<Value = Graph> {
    let any = 0..100usize;
    let step = (op(numbers), any.clone(), prop::bool::weighted(0.1), prop::option::of(any.clone()))
        .prop_map(|(op, operand, read, drop)| Step { op, operand, read, drop });
    (2..6usize, prop::collection::vec(step, 1..20), any).prop_map(|(size, steps, order)| Graph { size, steps, order })
}

/// A result and what it should be.
#[derive(Clone)]
struct Known {
    tensor: Tensor,
    values: ArrayD<f64>,
    /// How far each element may be from its value.
    error: ArrayD<f64>,
    /// Whether the elements have the same bits with fusion and without.
    repeats: bool,
}

/// What an operation adds to the errors of its operands.
enum Rounding {
    /// Nothing: it moves, negates or chooses elements.
    None,
    /// The result is rounded to the dtype.
    Once,
    /// The result of a function of this name is rounded to the dtype.
    Function(&'static str),
    /// The result of sums is rounded to the dtype. The order of the sums may differ. The error has this scale.
    Sum(&'static str, ArrayD<f64>),
}

impl Op {
    /// The words in names of kernels that compute the operation. Conversions are not among them, because fusion adds
    /// some to round.
    fn words(self) -> &'static [&'static str] {
        match self {
            Op::Neg => &["neg"],
            Op::Abs => &["abs"],
            Op::Add(_) | Op::AddNumber(_) => &["add"],
            Op::Sub(_) => &["sub"],
            Op::Maximum(_) => &["maximum"],
            Op::Mul(_) => &["mul"],
            Op::Choose(..) => &["gt", "select"],
            Op::SumOfRows(_) => &["sum"],
            Op::LargestOfRows(_) => &["max"],
            Op::Product(_) => &["matmul"],
            Op::Tanh => &["tanh"],
            Op::Sigmoid => &["sigmoid"],
            Op::Softmax(_) => &["softmax"],
            Op::LayerNorm(_) => &["layernorm"],
            Op::RmsNorm(_) => &["rmsnorm"],
            Op::ToBoolAndBack | Op::Contiguous => &[],
            Op::Transpose | Op::Reshape | Op::Row(_) | Op::Column(_) | Op::Flip => &[],
        }
    }

    /// Whether later operations see the elements in another order.
    fn is_view(self) -> bool {
        matches!(self, Op::Transpose | Op::Reshape | Op::Row(_) | Op::Column(_) | Op::Flip)
    }

    /// Returns the result on the device, and what it should be before it is rounded. Its error is the operands' error.
    fn apply(self, x: &Known, others: &[Known], inputs: &[Known]) -> Outcome<(Known, Rounding)> {
        let (tensor, n) = (&x.tensor, x.values.shape()[0]);
        let other = |i: usize| &others[i % others.len()];
        let input = |i: usize| &inputs[1 + i % (inputs.len() - 1)];
        let spread = |row: ArrayD<f64>| row.broadcast(vec![n, n]).unwrap().to_owned();
        let fold = |x: &ArrayD<f64>, axis: usize, fold: fn(f64, f64) -> f64| {
            let row = x.map_axis(Axis(axis), |row| row.iter().copied().reduce(fold).unwrap_or_default());
            spread(row.insert_axis(Axis(axis)))
        };
        let sum = |x: &ArrayD<f64>, axis: usize| fold(x, axis, |a, b| a + b);
        let largest = |x: &ArrayD<f64>, axis: usize| fold(x, axis, f64::max);
        let moved = |tensor: Tensor, view: &dyn Fn(&ArrayD<f64>) -> ArrayD<f64>| {
            (Known { tensor, values: view(&x.values), error: view(&x.error), repeats: x.repeats }, Rounding::None)
        };
        let mapped = |tensor: Tensor, function: fn(f64) -> f64, rounding: Rounding| {
            let (values, error) = (x.values.mapv(function), x.error.clone());
            (Known { tensor, values, error, repeats: x.repeats }, rounding)
        };
        let zipped = |tensor: Tensor, y: &Known, function: fn(f64, f64) -> f64, error: fn(f64, f64) -> f64| {
            let (values, error) = (zip(&x.values, &y.values, function), zip(&x.error, &y.error, error));
            Known { tensor, values, error, repeats: x.repeats && y.repeats }
        };
        let summed = |tensor: Tensor, values: ArrayD<f64>, error: ArrayD<f64>, op: &'static str, scale: ArrayD<f64>| {
            // The scale is that of the exact operand. The operand's own error changes it by far less than a factor 2.
            (Known { tensor, values, error, repeats: false }, Rounding::Sum(op, 2.0 * scale))
        };
        // The error of what depends on truth values: without a limit if these are not certain.
        let uncertain = |x: &Known| {
            let error = |x: f64, error: f64| if error > 0.0 && x.abs() <= error { f64::INFINITY } else { 0.0 };
            zip(&x.values, &x.error, error)
        };
        Ok(match self {
            Op::Neg => mapped(tensor.neg()?, |x| -x, Rounding::None),
            Op::Abs => mapped(tensor.abs()?, f64::abs, Rounding::None),
            Op::Add(i) => (zipped(tensor.add(&other(i).tensor)?, other(i), |a, b| a + b, |a, b| a + b), Rounding::Once),
            Op::Sub(i) => (zipped(tensor.sub(&other(i).tensor)?, other(i), |a, b| a - b, |a, b| a + b), Rounding::Once),
            Op::Maximum(i) => (zipped(tensor.maximum(&other(i).tensor)?, other(i), f64::max, f64::max), Rounding::None),
            Op::Mul(i) => {
                let y = input(i);
                let product = zipped(tensor.mul(&y.tensor)?, y, |a, b| a * b, |a, _| a);
                (Known { error: zip(&x.error, &y.values, |error, y| error * y.abs()), ..product }, Rounding::Once)
            }
            Op::AddNumber(number) => {
                let y = Known { values: x.values.mapv(|_| f64::from(number)), error: 0.0 * &x.error, ..x.clone() };
                (zipped(tensor.add(number)?, &y, |a, b| a + b, |a, _| a), Rounding::Once)
            }
            Op::Choose(i, j) => {
                let (yes, condition) = (other(i), other(j));
                let chosen = condition.tensor.gt(0)?.where_cond(&yes.tensor, tensor)?;
                let choose = |a: &ArrayD<f64>, b: &ArrayD<f64>| {
                    let all = Zip::from(&condition.values).and(a).and(b);
                    all.map_collect(|&c, &a, &b| if c > 0.0 { a } else { b })
                };
                let repeats = x.repeats && yes.repeats && condition.repeats;
                let error = choose(&yes.error, &x.error) + uncertain(condition);
                (Known { tensor: chosen, values: choose(&yes.values, &x.values), error, repeats }, Rounding::None)
            }
            Op::ToBoolAndBack => {
                let truth = tensor.to_dtype(DType::Bool)?.to_dtype(tensor.dtype())?;
                let (truth, rounding) = mapped(truth, |x| f64::from(x != 0.0), Rounding::None);
                (Known { error: uncertain(x), ..truth }, rounding)
            }
            Op::Transpose => moved(tensor.t()?, &|x| x.t().to_owned()),
            Op::Reshape => {
                moved(tensor.t()?.flatten(0, 1)?.reshape((n, n))?, &|x| x.t().as_standard_layout().to_owned())
            }
            Op::Row(i) => moved(tensor.narrow(0, i % n, 1)?.broadcast_to((n, n))?, &|x| {
                spread(x.slice_axis(Axis(0), Slice::from(i % n..i % n + 1)).to_owned())
            }),
            Op::Column(i) => moved(tensor.narrow(1, i % n, 1)?.broadcast_to((n, n))?, &|x| {
                spread(x.slice_axis(Axis(1), Slice::from(i % n..i % n + 1)).to_owned())
            }),
            Op::Flip => moved(tensor.flip(0)?, &|x| x.slice_axis(Axis(0), Slice::new(0, None, -1)).to_owned()),
            Op::Contiguous => moved(tensor.contiguous()?, &ArrayD::clone),
            Op::LargestOfRows(axis) => {
                moved(tensor.max_keepdim(axis % 2)?.broadcast_to((n, n))?, &|x| largest(x, axis % 2))
            }
            Op::SumOfRows(axis) => {
                let axis = axis % 2;
                let rows = tensor.sum_keepdim(axis)?.to_dtype(tensor.dtype())?.broadcast_to((n, n))?;
                let scale = sum(&x.values.mapv(f64::abs), axis);
                summed(rows, sum(&x.values, axis), sum(&x.error, axis), "sum", scale)
            }
            Op::Product(i) => {
                let y = input(i);
                let (values, scale) = matmul(&x.values, &y.values, DType::F64);
                let error = matmul(&x.error, &y.values.mapv(f64::abs), DType::F64).0;
                summed(tensor.matmul(&y.tensor)?.to_dtype(tensor.dtype())?, values, error, "matmul", scale)
            }
            // Slopes of at most 1 and 1/4.
            Op::Tanh => mapped(tensor.tanh()?, f64::tanh, Rounding::Function("tanh")),
            Op::Sigmoid => mapped(tensor.sigmoid()?, |x| 1.0 / (1.0 + (-x).exp()), Rounding::Function("sigmoid")),
            Op::Softmax(axis) => {
                let axis = axis % 2;
                let (values, scale) = softmax(&x.values, axis);
                // Numerator and denominator change by a factor of exp(error) each.
                let factor = largest(&x.error, axis).mapv(|error| (2.0 * error).exp_m1());
                summed(tensor.softmax(axis)?, values.clone(), values * factor, "softmax", scale)
            }
            // The error of a row, as a vector, becomes no longer by a division by sqrt(variance + 1) or
            // sqrt(mean of squares + 1). No element of a vector is larger than its length.
            Op::LayerNorm(i) | Op::RmsNorm(i) => {
                let row = |y: &Known| y.values.index_axis(Axis(0), 0).to_owned();
                let row_of = |y: &Known| y.tensor.narrow(0, 0, 1)?.squeeze(0);
                let (weight, bias) = (input(i), input(i + 1));
                let length = sum(&x.error.mapv(|x| x * x), 1).mapv(f64::sqrt);
                let error = zip(&length, &row(weight), |length, weight| length * weight.abs());
                if let Op::RmsNorm(_) = self {
                    let (values, scale) = rms_norm(&x.values, &row(weight), EPS);
                    summed(tensor.rms_norm(&row_of(weight)?, EPS)?, values, error, "rms_norm", scale)
                } else {
                    let (values, scale) = layer_norm(&x.values, &row(weight), &row(bias), EPS);
                    let normal = tensor.layer_norm(&row_of(weight)?, &row_of(bias)?, EPS)?;
                    summed(normal, values, error, "layer_norm", scale)
                }
            }
        })
    }
}

impl Known {
    /// Adds what an operation may round to the error. What a driver rewrites may have other bits in another kernel.
    fn rounded(self, rounding: Rounding, rewrites: bool) -> Known {
        let dtype = self.tensor.dtype();
        let (op, scale, repeats) = match rounding {
            Rounding::None => return self,
            // `f16` and `bf16` are rounded after each operation, so nothing can be rewritten.
            Rounding::Once => ("add", 0.0 * &self.values, dtype != DType::F32 || !rewrites),
            Rounding::Function(op) => (op, 0.0 * &self.values, !rewrites),
            Rounding::Sum(op, scale) => (op, scale, false),
        };
        let tolerance = tolerance::of(op, dtype);
        let beside = |x: f64, error: f64| {
            let error = error + tolerance.ulp * ulp(x.abs() + error, DType::F32) + tolerance.absolute;
            // Subnormal results may be flushed to zero.
            error + ulp(x.abs() + error, dtype) / 2.0 + f64::from(f32::MIN_POSITIVE)
        };
        let error = zip(&self.values, &(self.error + tolerance.of_scale * scale), beside);
        Known { error, repeats: self.repeats && repeats, ..self }
    }

    /// Reads the elements. Fails unless they are as near to the values as they should be. A zero has no sign here:
    /// `f64::max` gives either.
    fn read(&self, what: &str) -> Outcome<Read> {
        let elements = download(&self.tensor)?;
        let near = elements.iter().zip(&self.values).zip(&self.error).all(|((x, y), error)| (x - y).abs() <= *error);
        if !near {
            let error = self.error.iter().copied().fold(0.0, f64::max);
            return Err(format!("{what}: expected {} within {error:e}, got {elements}", self.values).into());
        }
        Ok(Read { elements, repeats: self.repeats })
    }
}

/// What has been read of a result.
struct Read {
    elements: ArrayD<f64>,
    repeats: bool,
}

/// How often each word was recorded.
type Counts = BTreeMap<&'static str, usize>;

/// A run of a graph.
#[derive(Default)]
struct Run {
    reads: Vec<Read>,
    /// What was recorded, by the words in names of kernels.
    recorded: Counts,
}

/// The inputs of a graph, others for each `pass`. Only the first may have large numbers.
fn inputs(size: usize, numbers: Numbers, dtype: DType, pass: usize, device: &Device) -> Outcome<Vec<Known>> {
    let shape = [size, size];
    let one = |i: usize| {
        let mut inputs = Inputs::new(&format!("graph {i} of pass {pass}"));
        let values = match numbers {
            Numbers::Real => ArrayD::from_shape_simple_fn(&shape[..], || round(4.0 * inputs.uniform() - 2.0, dtype)),
            Numbers::Whole => {
                // The largest are near those that the dtype holds exactly. Their sums are rounded or wrap.
                let scale = match dtype {
                    DType::F16 => 681.0,
                    DType::BF16 => 85.0,
                    DType::I8 => 42.0,
                    _ => 333.0,
                };
                let scale = if i == 0 { scale } else { 1.0 };
                let values = inputs.array(&shape, dtype, Domain::Small);
                values.mapv(|x| x.round().clamp(-3.0, 3.0) * scale)
            }
        };
        let error = 0.0 * &values;
        Ok(Known { tensor: upload(&values, dtype, device)?, values, error, repeats: true })
    };
    (0..3).map(one).collect()
}

/// Rounds to what a dtype holds.
fn stored(x: f64, dtype: DType) -> f64 {
    if dtype.is_float() { round(x, dtype) } else { wrap(x as i64, dtype) }
}

/// Builds a graph and reads all that is left of it.
fn run_graph(graph: &Graph, inputs: &[Known], numbers: Numbers, rewrites: bool) -> Outcome<Run> {
    let mut run = Run::default();
    let mut known = inputs.to_vec();
    for (number, step) in graph.steps.iter().enumerate() {
        let mut record =
            |words: &[&'static str]| words.iter().for_each(|word| *run.recorded.entry(word).or_default() += 1);
        record(step.op.words());
        let x = known[step.operand % known.len()].clone();
        let (mut y, rounding) = step.op.apply(&x, &known, inputs)?;
        drop(x);
        if numbers == Numbers::Real {
            y = y.rounded(rounding, rewrites);
            if !y.error.iter().all(|error| *error <= LOOSEST) {
                continue;
            }
        } else {
            let dtype = y.tensor.dtype();
            y.values.mapv_inplace(|x| stored(x, dtype));
            if y.values.iter().any(|x| x.abs() > MOST) {
                record(&["maximum", "minimum"]);
                y = Known { tensor: y.tensor.clamp(-3, 3)?, values: y.values.mapv(|x| x.clamp(-3.0, 3.0)), ..y };
            }
        }
        if step.read {
            run.reads.push(y.read(&format!("step {number}"))?);
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
        run.reads.push(next.read("a result")?);
    }
    Ok(run)
}

/// Counts the words before parentheses in the names of kernels. If `views`, a kernel that sees a result through several
/// views computes it for each, and each word counts once in a kernel.
fn count_words(told: &Explanation, views: bool) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for kernel in &told.kernels {
        let words = kernel
            .name
            .match_indices('(')
            .map(|(end, _)| kernel.name[..end].rsplit(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default());
        let mut once = BTreeSet::new();
        for word in words.filter(|word| once.insert(*word) || !views) {
            *counts.entry(word).or_default() += 1;
        }
    }
    counts
}

/// Fails if kernels have computed something more often than they may.
fn check_counts(graph: &Graph, recorded: &Counts, told: &Explanation) -> Outcome {
    let counts = count_words(told, graph.steps.iter().any(|step| step.op.is_view()));
    for (&word, &recorded) in recorded {
        let computed = counts.get(word).copied().unwrap_or_default();
        let is_kernel = ["sum", "max", "matmul", "softmax", "layernorm", "rmsnorm"].contains(&word);
        let most = if is_kernel { recorded } else { 2 * recorded };
        if computed > most {
            return Err(format!("`{word}` was recorded {recorded} times and computed {computed} times:\n{told}").into());
        }
    }
    Ok(())
}

/// A device without other users, with fusion and without.
struct Devices {
    fused: Device,
    apart: Device,
    rewrites: bool,
    /// How often each word was recorded and found in the names of kernels.
    found: RefCell<BTreeMap<&'static str, [usize; 2]>>,
}

impl Devices {
    fn open(device: &Device) -> Outcome<Devices> {
        let [fused, apart] = compiles::open_pair(device)?;
        let rewrites = rewrites(&fused)?;
        Ok(Devices { fused, apart, rewrites, found: RefCell::default() })
    }

    /// Runs a graph both ways and compares the runs.
    fn try_graph(&self, graph: &Graph, numbers: Numbers, dtype: DType) -> Outcome {
        let within = |way: &'static str| {
            move |failed: Failed| -> Failed { format!("{way}: {}", failed.message().unwrap_or_default()).into() }
        };
        let run = |device: &Device, pass: usize| -> Outcome<(Run, Explanation)> {
            let inputs = inputs(graph.size, numbers, dtype, pass, device)?;
            let (run, told) = device.explain(|| run_graph(graph, &inputs, numbers, self.rewrites))?;
            Ok((run?, told))
        };
        let (apart, told_apart) = run(&self.apart, 0).map_err(within("one by one"))?;
        let (fused, told) = run(&self.fused, 0).map_err(within("fused"))?;
        // With other elements. Most launches have been planned by the first pass.
        run(&self.fused, 1).map_err(within("once more"))?;
        for (a, b) in fused.reads.iter().zip(&apart.reads) {
            if a.repeats && a.elements != b.elements {
                return Err(format!("fused {}, but one by one {}", a.elements, b.elements).into());
            }
        }
        check_counts(graph, &fused.recorded, &told)?;
        if told.kernels.len() > told_apart.kernels.len() {
            return Err(format!("fusion takes more kernels:\n{told}\none by one:\n{told_apart}").into());
        }
        let counts = count_words(&told, false);
        let mut all = self.found.borrow_mut();
        for (word, recorded) in fused.recorded {
            let [all_recorded, all_found] = all.entry(word).or_default();
            *all_recorded += recorded;
            *all_found += counts.get(word).copied().unwrap_or_default();
        }
        Ok(())
    }
}

/// Whether a device's driver computes a chain of `f32` operations otherwise than as written. Some compute `a * b + c`
/// with one rounding, and Mesa's make `b` of `(a + b) - a`. Only WGSL cannot forbid it.
fn rewrites(device: &Device) -> Outcome<bool> {
    // The square of 1 + 2^-12 is rounded to 1 + 2^-11.
    let x = Tensor::new(1f32 + 2f32.powi(-12), device)?;
    let square = Tensor::new(-1f32 - 2f32.powi(-11), device)?;
    let contracts = x.mul(&x)?.add(&square)?.to_scalar::<f32>()? != 0.0;
    // The sum is rounded to 1 + 2^-22.
    let a = Tensor::new(1f32 + 2f32.powi(-23), device)?;
    let rearranges = a.add(2f64.powi(-24))?.sub(&a)?.to_scalar::<f32>()? != 2f32.powi(-23);
    let rewrites = contracts || rearranges;
    if rewrites && device.info().backend != BackendKind::WebGpu {
        return Err(format!("rewritten: a product and a sum: {contracts}, two sums: {rearranges}").into());
    }
    Ok(rewrites)
}

/// Tries random graphs, the same in each run.
pub fn try_random(numbers: Numbers, dtype: DType, device: &Device) -> Outcome {
    let cases = if full_tier() { 1000 } else { 40 };
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let seed = Inputs::new(&format!("graphs of {dtype}")).seed();
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let devices = Devices::open(device)?;
    let result = runner.run(&graph(numbers), |graph| {
        let failed = |failed: Failed| TestCaseError::fail(failed.message().unwrap_or_default().to_string());
        devices.try_graph(&graph, numbers, dtype).map_err(failed)
    });
    compiles::report("random graphs", [&devices.fused, &devices.apart]);
    match result {
        Ok(()) => {}
        Err(TestError::Fail(reason, graph)) => {
            return Err(format!("{reason}\nthe smallest graph found: {graph:?}").into());
        }
        Err(TestError::Abort(reason)) => return Err(format!("proptest gave up: {reason}").into()),
    }
    // If names of kernels change, the counts must, too.
    match devices.found.borrow().iter().find(|(_, [recorded, found])| *recorded > 10 && *found == 0) {
        Some((word, [recorded, _])) => {
            Err(format!("`{word}` was recorded {recorded} times and is in no name of a kernel").into())
        }
        None => Ok(()),
    }
}
