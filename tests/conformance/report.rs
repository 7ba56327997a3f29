//! What a run has shown: passed cases per operation and device, and errors that were logged.

use crate::devices;
use log::{LevelFilter, Log, Metadata, Record};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Default, Clone, Copy)]
struct Count {
    started: usize,
    passed: usize,
}

/// Cases that could not be tried, by what the device lacks for them.
static MISSING: Mutex<BTreeMap<(&str, &str), usize>> = Mutex::new(BTreeMap::new());

static COUNTS: Mutex<BTreeMap<(&str, &str), Count>> = Mutex::new(BTreeMap::new());

pub fn started(op: &'static str, device: &'static str) {
    COUNTS.lock().unwrap().entry((op, device)).or_default().started += 1;
}

pub fn passed(op: &'static str, device: &'static str) {
    COUNTS.lock().unwrap().entry((op, device)).or_default().passed += 1;
}

pub fn missing(op: &'static str, device: &'static str, feature: &'static str) {
    COUNTS.lock().unwrap().entry((op, device)).or_default().started -= 1;
    *MISSING.lock().unwrap().entry((device, feature)).or_default() += 1;
}

/// One line per operation: `add  vulkan 28/28  webgpu 28/28`.
pub fn print_table() {
    let counts = COUNTS.lock().unwrap();
    let mut ops: Vec<&str> = counts.keys().map(|(op, _)| *op).collect();
    ops.dedup();
    let devices = devices::selected();
    let row = |name: &str, count: &dyn Fn(&str) -> Count| {
        print!("{name:<16}");
        for device in &devices {
            let Count { started, passed } = count(device);
            let mark = if passed == started { ' ' } else { '!' };
            print!("  {device} {:>9}{mark}", format!("{passed}/{started}"));
        }
        println!();
    };
    println!();
    for op in &ops {
        row(op, &|device| counts.get(&(*op, device)).copied().unwrap_or_default());
    }
    row(&format!("all {} ops", ops.len()), &|device| {
        let of_device = counts.iter().filter(|((_, other), _)| *other == device);
        of_device.fold(Count::default(), |sum, (_, count)| Count {
            started: sum.started + count.started,
            passed: sum.passed + count.passed,
        })
    });
    for ((device, feature), cases) in MISSING.lock().unwrap().iter() {
        println!("{device} lacks {feature}, which {cases} more cases need");
    }
}

struct Logger;

static LOGGER: Logger = Logger;
static ERRORS: AtomicUsize = AtomicUsize::new(0);

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata) -> bool {
        metadata.level() <= log::Level::Error
    }

    fn log(&self, record: &Record) {
        if self.enabled(record.metadata()) {
            ERRORS.fetch_add(1, Ordering::Relaxed);
            eprintln!("{} logged: {}", record.target(), record.args());
        }
    }

    fn flush(&self) {}
}

/// From now on, records of level error are printed and counted: the backends log what validation layers object to.
pub fn install_logger() {
    log::set_logger(&LOGGER).expect("no other logger");
    log::set_max_level(LevelFilter::Error);
}

pub fn logged_errors() -> usize {
    ERRORS.load(Ordering::Relaxed)
}
