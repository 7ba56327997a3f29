//! The trials made of the cases: each on each device.

use crate::suite::{Case, Suite, missing_feature};
use crate::{captured, cases, devices, full_tier, report};
use libtest_mimic::{Failed, Trial};
use marquetry::Device;
use std::collections::HashSet;

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
                    let missing = failure.as_ref().and_then(|failed| allowed_to_lack(&device, failed));
                    if missing.is_some() { Ok(()) } else { failure.map_or(Ok(()), Err) }
                }));
            }
            let variant = case.variant.clone();
            trials.push(Trial::test(format!("{device}::{op}::{variant}"), move || {
                let device_here = devices::open(device)?;
                let failure = run(&device_here).err();
                let missing = failure.as_ref().and_then(|failed| allowed_to_lack(&device_here, failed));
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

/// The feature that a device lacks for a case. Only PoCL, on which the Level Zero driver of the tests can run, may lack
/// any.
fn allowed_to_lack(device: &Device, failed: &Failed) -> Option<&'static str> {
    if devices::on_pocl() { missing_feature(device, failed) } else { None }
}

/// Returns a number by which names are shared out: the upper half of a hash, FNV-1a.
pub fn number(name: &str) -> u64 {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    hash >> 32
}
