//! Cases that are captured: a step of a case's work gives the same bits as the work itself, on two sets of inputs.
//!
//! A case runs three times. Twice it runs as always: on its own inputs, and on the same numbers in reverse order. Then
//! it is captured, with inputs in place of its uploads, and the step runs on both. What is compared are the tensors
//! that the case checks, up to the first one that it reads.

use crate::compare::{download, upload};
use crate::full_tier;
use crate::reference::{ArrayD, array};
use crate::suite::Outcome;
use crate::trials::number;
use marquetry::{DType, Device, Tensor};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Operations of which nothing is captured here: they draw other numbers in each run, or begin each pass outside of a
/// capture.
const LEFT_OUT: [&str; 7] = ["rand", "gumbel", "bernoulli", "multinomial", "sample", "dropout", "kv_cache"];

/// Operations that add floats in an order that differs from run to run.
const ADDING: [&str; 3] = ["scatter_add", "index_add", "scatter_reduce"];

/// One of this many cases is captured in the quick tier.
const SHARE: u64 = 20;

/// Cases that were compared, and cases that read something before they check anything.
static COMPARED: AtomicUsize = AtomicUsize::new(0);
static READING: AtomicUsize = AtomicUsize::new(0);

/// Whether a case is captured. In the quick tier, a hash of its name decides.
pub fn is_chosen(op: &str, variant: &str, device: &str) -> bool {
    let starts_with_one = |names: &[&str]| names.iter().any(|name| op.starts_with(name));
    let adds_floats = starts_with_one(&ADDING) && variant.starts_with(['f', 'b']);
    if starts_with_one(&LEFT_OUT) || adds_floats || variant.contains("random") {
        return false;
    }
    full_tier() || number(&format!("{device}::{op}::{variant}")).is_multiple_of(SHARE)
}

/// Prints how many cases were compared. Returns whether most of them were.
pub fn were_compared() -> bool {
    let [compared, reading] = [&COMPARED, &READING].map(|count| count.load(Ordering::Relaxed));
    println!("captured: {compared} cases give the same bits; {reading} read elements before they check any");
    compared > 10 * reading
}

/// What a case does in this thread.
enum Session {
    /// It runs as always, on its inputs or on their reverse.
    Plain { reversed: bool, inputs: Vec<Input>, outputs: Vec<ArrayD<f64>>, reads: bool },
    /// It is captured, on these inputs.
    Captured { inputs: VecDeque<Tensor>, outputs: Vec<Tensor> },
}

thread_local! {
    static SESSION: RefCell<Option<Session>> = const { RefCell::new(None) };
}

/// Uploads an input of a case, or returns what stands for it.
pub fn upload_or_input(
    values: &ArrayD<f64>,
    dtype: DType,
    plain: impl Fn(&ArrayD<f64>) -> Outcome<Tensor>,
) -> Outcome<Tensor> {
    let reversed = SESSION.with_borrow_mut(|session| match session {
        None => Ok(None),
        Some(Session::Plain { reversed, inputs, .. }) => {
            let mut elements: Vec<f64> = values.iter().copied().collect();
            if *reversed {
                elements.reverse();
            }
            let values = array(values.shape(), elements);
            inputs.push((values.clone(), dtype));
            Ok(Some(values))
        }
        Some(Session::Captured { inputs, .. }) => Err(inputs.pop_front()),
    });
    match reversed {
        Ok(None) => plain(values),
        Ok(Some(values)) => plain(&values),
        Err(Some(input)) => Ok(input),
        Err(None) => Err("the case has more inputs when it is captured".into()),
    }
}

/// Takes a tensor that a case would compare with its expected values. Returns false outside of a session.
pub fn takes(actual: &Tensor) -> Outcome<bool> {
    let is_plain = SESSION.with_borrow_mut(|session| match session {
        None => None,
        Some(Session::Plain { reads, .. }) => Some(!*reads),
        Some(Session::Captured { outputs, .. }) => {
            outputs.push(actual.clone());
            Some(false)
        }
    });
    let Some(is_plain) = is_plain else { return Ok(false) };
    if is_plain {
        let found = download(actual)?;
        SESSION.with_borrow_mut(|session| {
            if let Some(Session::Plain { outputs, reads, .. }) = session {
                outputs.push(found);
                // It was read for the comparison alone.
                *reads = false;
            }
        });
    }
    Ok(true)
}

/// Notes that a case reads a tensor itself. What it checks afterwards may depend on it.
pub fn note_read() {
    SESSION.with_borrow_mut(|session| {
        if let Some(Session::Plain { reads, .. }) = session {
            *reads = true;
        }
    });
}

/// Runs a case in a session. Returns the session, and how the case ended.
fn within(session: Session, run: &dyn Fn(&Device) -> Outcome, device: &Device) -> (Option<Session>, Outcome) {
    SESSION.set(Some(session));
    let outcome = run(device);
    (SESSION.take(), outcome)
}

/// What a case uploads: the elements and the dtype.
type Input = (ArrayD<f64>, DType);

/// The inputs and outputs of a case that runs as always.
fn plain(reversed: bool, run: &dyn Fn(&Device) -> Outcome, device: &Device) -> (Vec<Input>, Vec<ArrayD<f64>>, Outcome) {
    let session = Session::Plain { reversed, inputs: Vec::new(), outputs: Vec::new(), reads: false };
    match within(session, run, device) {
        (Some(Session::Plain { inputs, outputs, .. }), outcome) => (inputs, outputs, outcome),
        (_, outcome) => (Vec::new(), Vec::new(), outcome),
    }
}

/// Compares the runs of a case with those of a step of it.
pub fn try_captured(run: &dyn Fn(&Device) -> Outcome, device: &Device) -> Outcome {
    let (inputs, outputs, outcome) = plain(false, run, device);
    outcome?;
    let mut outcome = Ok(());
    let step = device.capture(|args| {
        let place = |(i, (values, dtype)): (usize, &Input)| args.input(i.to_string(), values.shape(), *dtype);
        let placed = inputs.iter().enumerate().map(place).collect::<marquetry::Result<_>>()?;
        let (session, ended) = within(Session::Captured { inputs: placed, outputs: Vec::new() }, run, device);
        outcome = ended;
        let Some(Session::Captured { outputs, .. }) = session else { return Ok(Vec::new()) };
        Ok(outputs.into_iter().enumerate().map(|(i, tensor)| (i.to_string(), tensor)).collect())
    })?;
    // A case that reads ends there.
    if let Err(failed) = outcome
        && !failed.message().unwrap_or_default().contains("a capture runs nothing")
    {
        return Err(failed);
    }
    let start = |inputs: &[Input]| -> Outcome<Vec<Tensor>> {
        let tensors =
            inputs.iter().map(|(values, dtype)| upload(values, *dtype, device)).collect::<Outcome<Vec<_>>>()?;
        let names: Vec<String> = (0..tensors.len()).map(|i| i.to_string()).collect();
        Ok(step.run(names.iter().zip(&tensors).map(|(name, tensor)| (name.as_str(), tensor.into())))?.into_tensors())
    };
    // Not every case takes other numbers.
    let (others, other_outputs, taken) = plain(true, run, device);
    let queued = [(start(&others), other_outputs, taken.is_ok()), (start(&inputs), outputs, true)];
    let mut compared = false;
    for (found, expected, is_valid) in queued {
        for (place, (found, expected)) in found?.iter().zip(&expected).enumerate().filter(|_| is_valid) {
            let found = download(found)?;
            let same = |a: f64, b: f64| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            if found.shape() != expected.shape() || !found.iter().zip(expected).all(|(&a, &b)| same(a, b)) {
                return Err(format!("result {place} differs: {found} captured, {expected} else").into());
            }
            compared = true;
        }
    }
    (if compared { &COMPARED } else { &READING }).fetch_add(1, Ordering::Relaxed);
    Ok(())
}
