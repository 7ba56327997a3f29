//! The conformance suite in a browser. `tests/web/run.mjs` opens a page, which calls what is exported here.
//!
//! A browser cannot wait, so a case only records its work. The tensors that it checks are read when it has ended. A
//! case that reads elements by itself is left out: its read is an error there, as it should be.

#![cfg(target_family = "wasm")]

mod blocking;
mod captured;
#[path = "../../conformance/cases/mod.rs"]
mod cases;
#[path = "../../conformance/compare.rs"]
mod compare;
#[path = "../../conformance/compiles.rs"]
mod compiles;
mod devices;
#[path = "../../conformance/graphs.rs"]
mod graphs;
mod later;
#[path = "../../conformance/layouts.rs"]
mod layouts;
#[path = "../../reference/mod.rs"]
mod reference;
mod report;
#[path = "../../conformance/suite.rs"]
mod suite;
#[path = "../../conformance/tolerance.rs"]
mod tolerance;
#[path = "../../conformance/views.rs"]
mod views;

use marquetry::Device;
use std::cell::OnceCell;
use suite::{Case, Outcome, Suite};
use wasm_bindgen::prelude::*;

/// Cases that await futures by blocking, and those that are about what a browser does not have.
const LEFT_OUT: [&str; 5] = ["to_vec_async", "nonzero_async", "masked_select_async", "to_device", "catalogue"];

/// Whether the full tier is asked for. It has the same cases as the quick one here.
fn full_tier() -> bool {
    false
}

thread_local! {
    static CASES: OnceCell<Vec<Case>> = const { OnceCell::new() };
}

fn with_cases<T>(work: impl FnOnce(&[Case]) -> T) -> T {
    let all = || {
        let mut suite = Suite::default();
        cases::add_all(&mut suite);
        suite.cases.retain(|case| !LEFT_OUT.contains(&case.op));
        suite.cases
    };
    CASES.with(|cases| work(cases.get_or_init(all)))
}

/// Opens the device, and returns its description.
#[wasm_bindgen]
pub async fn open() -> Result<String, JsError> {
    console_error_panic_hook::set_once();
    report::install_logger();
    let device = Device::best_async().await?;
    let features = device.info().features;
    let description = format!("{device}: {features:?}");
    devices::set(device);
    Ok(description)
}

/// Returns the names of all cases. Their places are their numbers.
#[wasm_bindgen]
pub fn names() -> Vec<String> {
    with_cases(|cases| cases.iter().map(|case| format!("{}::{}", case.op, case.variant)).collect())
}

/// Runs a case. Returns `passed`, `lacks` and a feature, `reads` if it reads by itself, or else what went wrong.
#[wasm_bindgen]
pub async fn run(number: usize) -> String {
    let device = match devices::open("webgpu") {
        Ok(device) => device,
        Err(error) => return error,
    };
    let run = with_cases(|cases| cases[number].run.clone());
    later::begin();
    let mut outcome: Outcome = run(&device);
    let recorded = later::end().await;
    let reads = |outcome: &Outcome| {
        let message = outcome.as_ref().err().and_then(|failed| failed.message());
        message.is_some_and(|message| message.contains("it would have to wait here"))
    };
    let is_cut_short = reads(&outcome);
    if is_cut_short || outcome.is_ok() {
        // What it checked before it read counts.
        outcome = recorded;
    }
    let logged = report::take_errors();
    match outcome {
        Err(failed) => match suite::missing_feature(&device, &failed) {
            Some(feature) => format!("lacks {feature}"),
            None => failed.message().unwrap_or("it failed").to_string(),
        },
        Ok(()) if !logged.is_empty() => format!("errors were logged: {logged}"),
        Ok(()) if is_cut_short => "reads".into(),
        Ok(()) => "passed".into(),
    }
}

/// Returns how many kernels have been compiled.
#[wasm_bindgen]
pub fn kernels() -> u32 {
    devices::open("webgpu").map_or(0, |device| device.stats().compiles as u32)
}

/// Calls that would block, each of which has to be an error that names its twin. Returns what is wrong, or nothing.
#[wasm_bindgen]
pub async fn blocking_calls() -> String {
    let outcome = blocking::check().await;
    let logged = report::take_errors();
    match outcome {
        // This call returns no error.
        Ok(()) if logged.contains("list: it would have to wait here; call `Device::list_async`") => String::new(),
        Ok(()) => format!("`Device::list` has not logged its twin: {logged}"),
        Err(failed) => failed.message().unwrap_or("it failed").to_string(),
    }
}
