//! The trials made of the cases: each on each device.

use crate::suite::{Case, Suite, missing_feature};
use crate::{captured, cases, devices, full_tier, report};
use libtest_mimic::{Failed, Trial};
use marquetry::{DType, Device};
use std::collections::HashSet;
use std::time::Instant;

/// Every case on every device of this run.
pub fn trials() -> Vec<Trial> {
    let mut suite = Suite::default();
    cases::add_all(&mut suite);
    let mut trials = Vec::new();
    // Operations, and the first words of their variants, mostly dtypes.
    let mut ops: HashSet<&str> = HashSet::new();
    let mut kinds: HashSet<(&str, &str)> = HashSet::new();
    for case in &suite.cases {
        let is_new_kind = kinds.insert((case.op, case.variant.split("::").next().unwrap_or_default()));
        let first = match is_new_kind {
            true if ops.insert(case.op) => First::OfOperation,
            true => First::OfDtype,
            false => First::Not,
        };
        for device in devices::selected() {
            if !is_tried(case, first, device) {
                continue;
            }
            let (op, run) = (case.op, case.run.clone());
            let opens = OPENING.iter().any(|part| case.variant.contains(part));
            if captured::is_chosen(op, &case.variant, device) {
                let run = run.clone();
                let name = format!("{device}::captured::{op}::{}", case.variant);
                trials.push(trial(name, opens, move || {
                    let device = devices::open(device)?;
                    let failure = captured::try_captured(&*run, &device).err();
                    let missing = failure.as_ref().and_then(|failed| allowed_to_lack(&device, failed));
                    if missing.is_some() { Ok(()) } else { failure.map_or(Ok(()), Err) }
                }));
            }
            let variant = case.variant.clone();
            trials.push(trial(format!("{device}::{op}::{variant}"), opens, move || {
                let device_here = devices::open(device)?;
                let start = Instant::now();
                let failure = run(&device_here).err();
                let missing = failure.as_ref().and_then(|failed| allowed_to_lack(&device_here, failed));
                report::ended(op, &variant, device, start.elapsed(), failure.as_ref().map_or(Ok(()), |_| Err(missing)));
                if missing.is_some() { Ok(()) } else { failure.map_or(Ok(()), Err) }
            }));
        }
    }
    trials
}

fn trial(name: String, opens_devices: bool, work: impl FnOnce() -> Result<(), Failed> + Send + 'static) -> Trial {
    Trial::test(name, move || devices::work(opens_devices, work))
}

/// What is in the names of cases that open devices.
const OPENING: [&str; 2] = ["random_graphs", "compiled_for_many_shapes"];

/// What a case is the first of, in the order in which cases are listed.
#[derive(Clone, Copy, PartialEq)]
enum First {
    OfOperation,
    /// Of its operation with this dtype.
    OfDtype,
    Not,
}

/// Operations whose kernels take long to compile.
const HEAVY: [&str; 18] = [
    "conv2d",
    "conv3d",
    "conv_transpose2d",
    "conv_transpose3d",
    "forward_norm",
    "fused",
    "gated",
    "kv_cache",
    "linear_quantized",
    "logsumexp",
    "matmul",
    "matmul_f32",
    "matmul_quantized",
    "multinomial",
    "sample_top_k",
    "sampler",
    "scaled_dot_product_attention",
    "sort",
];

/// Whether a case is tried on a device. If the quick tier tries all devices, the first case of each operation is tried
/// on all of them. The first case of each dtype is tried on Vulkan or on WebGPU, and a third of them on Level Zero. Of
/// other cases half as many are tried, fewer of dtypes other than `f32`, and of heavy operations: most of the time goes
/// into the compilation of kernels, and each dtype has its own. Random graphs of `f32` are tried like first cases.
fn is_tried(case: &Case, first: First, device: &str) -> bool {
    if full_tier() || !devices::are_all_selected() {
        return true;
    }
    if case.op == "catalogue" {
        // It generates the kernels of all devices.
        return device == "vulkan";
    }
    let of_dtype = match report::dtype_of(&case.variant) {
        Some(DType::F32) | None => 2,
        Some(DType::F16) => 4,
        Some(_) => 8,
    };
    let of_operation = if HEAVY.contains(&case.op) { 2 } else { 1 };
    let rarity = match first {
        First::OfOperation => return true,
        First::OfDtype => 1,
        First::Not if case.variant.starts_with("f32::random_graphs") => 1,
        First::Not => of_dtype * of_operation,
    };
    let number = number(&format!("{}::{}", case.op, case.variant));
    match device {
        "vulkan" => number.is_multiple_of(2 * rarity),
        "webgpu" => number % (2 * rarity) == 1,
        _ => number.is_multiple_of(3 * rarity),
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
