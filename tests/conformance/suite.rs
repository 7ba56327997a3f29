//! The list of all cases, and the trials made of it: each case on each device.

use crate::{captured, cases, devices, full_tier, report};
use libtest_mimic::{Failed, Trial};
use marquetry::Device;
use std::collections::HashSet;
use std::sync::Arc;

/// How a case ends. Any error becomes a failure by `?`.
pub type Outcome<T = ()> = Result<T, Failed>;

struct Case {
    op: &'static str,
    /// What of the operation is tried, such as `f32::transposed`.
    variant: String,
    run: Arc<dyn Fn(&Device) -> Outcome + Send + Sync>,
}

/// Collects the cases.
#[derive(Default)]
pub struct Suite {
    cases: Vec<Case>,
}

impl Suite {
    pub fn add(
        &mut self,
        op: &'static str,
        variant: impl Into<String>,
        run: impl Fn(&Device) -> Outcome + Send + Sync + 'static,
    ) {
        self.cases.push(Case { op, variant: variant.into(), run: Arc::new(run) });
    }
}

/// Every case on every device of this run.
pub fn trials() -> Vec<Trial> {
    let mut suite = Suite::default();
    cases::add_all(&mut suite);
    let mut trials = Vec::new();
    // Operations, and the first words of variants, mostly dtypes.
    let mut kinds: HashSet<(&str, &str)> = HashSet::new();
    for case in &suite.cases {
        let is_first = kinds.insert((case.op, case.variant.split("::").next().unwrap_or_default()));
        for device in devices::selected() {
            if !is_tried(case, is_first, device) {
                continue;
            }
            let (op, run) = (case.op, case.run.clone());
            if captured::is_chosen(op, &case.variant, device) {
                let run = run.clone();
                let name = format!("{device}::captured::{op}::{}", case.variant);
                trials.push(Trial::test(name, move || {
                    let device = devices::open(device)?;
                    let failure = captured::try_captured(&*run, &device).err();
                    let missing = failure.as_ref().and_then(|failed| missing_feature(&device, failed));
                    if missing.is_some() { Ok(()) } else { failure.map_or(Ok(()), Err) }
                }));
            }
            let variant = case.variant.clone();
            trials.push(Trial::test(format!("{device}::{op}::{variant}"), move || {
                let device_here = devices::open(device)?;
                let failure = run(&device_here).err();
                let missing = failure.as_ref().and_then(|failed| missing_feature(&device_here, failed));
                report::ended(op, &variant, device, failure.as_ref().map_or(Ok(()), |_| Err(missing)));
                if missing.is_some() { Ok(()) } else { failure.map_or(Ok(()), Err) }
            }));
        }
    }
    trials
}

/// Whether a case is tried on a device. `is_first` tells whether it is the first of its operation and dtype. If the
/// quick tier tries all devices, each case is tried on Vulkan or on WebGPU, and a third of them on Level Zero.
fn is_tried(case: &Case, is_first: bool, device: &str) -> bool {
    if is_first || full_tier() || !devices::are_all_selected() {
        return true;
    }
    let number = number(&format!("{}::{}", case.op, case.variant));
    match device {
        "vulkan" => number.is_multiple_of(2),
        "webgpu" => !number.is_multiple_of(2),
        _ => number.is_multiple_of(3),
    }
}

/// Returns a number by which names are shared out: the upper half of a hash, FNV-1a.
pub fn number(name: &str) -> u64 {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    hash >> 32
}

/// The feature for want of which a case failed: one that the device does not claim to have, and that the error names.
/// Only PoCL, on which the Level Zero driver of the tests can run, may lack any.
fn missing_feature(device: &Device, failed: &Failed) -> Option<&'static str> {
    if !devices::on_pocl() {
        return None;
    }
    let features = device.info().features;
    let lacking = [
        (features.f16, "16-bit floats"),
        (features.i64, "64-bit integers"),
        (features.f64, "64-bit floats"),
        (features.subgroups, "subgroup operations"),
        (features.atomics, "atomic operations"),
    ];
    let message = failed.message().unwrap_or_default();
    let named = |name: &str| message.contains(&format!("does not support {name}"));
    lacking.into_iter().find(|(has, name)| !has && named(name)).map(|(_, name)| name)
}
