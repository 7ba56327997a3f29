//! What a run has shown: passed cases per operation and device, and errors that were logged.

use crate::devices;
use log::{LevelFilter, Log, Metadata, Record};
use marquetry::DType;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[derive(Default, Clone, Copy)]
pub struct Count {
    pub started: usize,
    pub passed: usize,
    /// What the cases took. Most of it is the time in which kernels are compiled.
    pub time: Duration,
    /// What the device lacks for cases that could not be tried.
    pub missing: Option<&'static str>,
}

/// What a count is of: an operation, the dtype that its variant begins with, a device.
pub type Key = (&'static str, Option<DType>, &'static str);

static COUNTS: Mutex<BTreeMap<Key, Count>> = Mutex::new(BTreeMap::new());

/// The dtype that a variant begins with.
pub fn dtype_of(variant: &str) -> Option<DType> {
    let first = variant.split(|c: char| !c.is_alphanumeric()).next();
    DType::ALL.into_iter().find(|dtype| Some(dtype.name()) == first)
}

/// A case at its end.
pub fn ended(
    op: &'static str,
    variant: &str,
    device: &'static str,
    time: Duration,
    outcome: Result<(), Option<&'static str>>,
) {
    let mut counts = COUNTS.lock().unwrap();
    let count = counts.entry((op, dtype_of(variant), device)).or_default();
    match outcome {
        Err(Some(feature)) => count.missing = Some(feature),
        _ => count.started += 1,
    }
    count.passed += usize::from(outcome.is_ok());
    count.time += time;
}

/// What has been counted so far.
pub fn counts() -> BTreeMap<Key, Count> {
    COUNTS.lock().unwrap().clone()
}

/// The kernels that each device has compiled for something, fused and one by one.
static COMPILED: Mutex<BTreeMap<(&'static str, &'static str), [u64; 2]>> = Mutex::new(BTreeMap::new());

/// Enters how many kernels a device has compiled for something, fused and one by one.
pub fn compiled(what: &'static str, device: &'static str, kernels: [u64; 2]) {
    let mut compiled = COMPILED.lock().unwrap();
    let sum = compiled.entry((what, device)).or_default();
    *sum = [sum[0] + kernels[0], sum[1] + kernels[1]];
}

/// One line per operation: `add  vulkan 28/28  webgpu 28/28  1.2 s`.
pub fn print_table() {
    let counts = COUNTS.lock().unwrap();
    let devices = devices::selected();
    let row = |name: &str, of: &dyn Fn(&str) -> bool| {
        print!("{name:<16}");
        for device in &devices {
            let counted = counts.iter().filter(|((op, _, other), _)| other == device && of(op));
            let (passed, started) =
                counted.fold((0, 0), |(passed, started), (_, count)| (passed + count.passed, started + count.started));
            let mark = if passed == started { ' ' } else { '!' };
            print!("  {device} {:>9}{mark}", format!("{passed}/{started}"));
        }
        let time: Duration = counts.iter().filter(|((op, ..), _)| of(op)).map(|(_, count)| count.time).sum();
        println!("  {:>7.1} s", time.as_secs_f64());
    };
    println!();
    let ops: BTreeSet<&str> = counts.keys().map(|(op, ..)| *op).collect();
    for op in &ops {
        row(op, &|other| other == *op);
    }
    row(&format!("all {} ops", ops.len()), &|_| true);
    let lacking: BTreeSet<_> =
        counts.iter().filter_map(|((.., device), count)| Some((device, count.missing?))).collect();
    for (device, feature) in lacking {
        println!("{device} lacks {feature}, which some cases need");
    }
    for ((what, device), [fused, apart]) in &*COMPILED.lock().unwrap() {
        println!("kernels compiled for {what} on {device}: {fused} fused, {apart} one by one");
    }
}

struct Logger;

static LOGGER: Logger = Logger;
static ERRORS: AtomicUsize = AtomicUsize::new(0);

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata) -> bool {
        // A kernel that fails its self-test is replaced with a warning; here it is an error.
        let is_error = metadata.level() <= log::Level::Error || metadata.target().ends_with("self_test");
        // Wine has no Direct3D 12 that wgpu takes.
        is_error && !(cfg!(windows) && metadata.target().starts_with("wgpu_hal::auxil::dxgi"))
    }

    fn log(&self, record: &Record) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let (target, message) = (record.target(), record.args().to_string());
        // The layer's own thread did not follow within ten seconds: "most likely a validation bug", it says.
        let is_stall = message.contains("-state-timeout");
        // wgpu names the objects of a message in records of their own.
        if is_stall || message.starts_with('\t') {
            eprintln!("\n{target} logged: {message}");
        } else {
            ERRORS.fetch_add(1, Ordering::Relaxed);
            eprintln!("\nerror: {target} logged: {message}");
        }
    }

    fn flush(&self) {}
}

/// From now on, records of level error are printed and counted: the backends log what validation layers object to.
pub fn install_logger() {
    log::set_logger(&LOGGER).expect("no other logger");
    log::set_max_level(LevelFilter::Warn);
}

/// Prints why the run fails, if no trial does. `scripts/test.py` repeats such lines at its end.
pub fn complain(reason: std::fmt::Arguments) {
    println!("error: {reason}");
}

pub fn logged_errors() -> usize {
    ERRORS.load(Ordering::Relaxed)
}
