//! What a run has shown: passed cases per operation and device, and errors that were logged.

use crate::devices;
use log::{LevelFilter, Log, Metadata, Record};
use marquetry::DType;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Default, Clone, Copy)]
struct Count {
    started: usize,
    passed: usize,
    /// What the device lacks for cases that could not be tried.
    missing: Option<&'static str>,
}

/// What a count is of: an operation, the dtype that its variant begins with, a device.
type Key = (&'static str, Option<DType>, &'static str);

static COUNTS: Mutex<BTreeMap<Key, Count>> = Mutex::new(BTreeMap::new());

/// A case at its end.
pub fn ended(op: &'static str, variant: &str, device: &'static str, outcome: Result<(), Option<&'static str>>) {
    let first = variant.split(|c: char| !c.is_alphanumeric()).next();
    let dtype = DType::ALL.into_iter().find(|dtype| Some(dtype.name()) == first);
    let mut counts = COUNTS.lock().unwrap();
    let count = counts.entry((op, dtype, device)).or_default();
    match outcome {
        Err(Some(feature)) => count.missing = Some(feature),
        _ => count.started += 1,
    }
    count.passed += usize::from(outcome.is_ok());
}

/// One line per operation: `add  vulkan 28/28  webgpu 28/28`.
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
        println!();
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
}

/// Operations by dtypes, and the devices on which all cases pass, as Markdown.
pub fn operations() -> String {
    let counts = COUNTS.lock().unwrap();
    let ops: BTreeSet<&str> = counts.keys().map(|(op, ..)| *op).collect();
    let columns: Vec<Option<DType>> = DType::ALL.into_iter().map(Some).chain([None]).collect();
    let mut text = String::from(HEAD);
    let names = columns.iter().map(|dtype| dtype.map_or("other", DType::name));
    text +=
        &format!("| operation | {} |\n|---|{}\n", names.collect::<Vec<_>>().join(" | "), "---|".repeat(columns.len()));
    let mut lacking = BTreeSet::new();
    for op in ops {
        let cells = columns.iter().map(|&dtype| {
            let mut cell = String::new();
            for device in devices::selected() {
                let Some(count) = counts.get(&(op, dtype, device)) else { continue };
                let letter = device[..1].to_uppercase();
                match count.missing {
                    _ if count.passed < count.started => cell += "!",
                    Some(feature) => {
                        lacking.insert(format!("{letter} lacks {feature}"));
                        cell += &format!("({letter})");
                    }
                    None => cell += &letter,
                }
            }
            cell
        });
        text += &format!("| `{op}` | {} |\n", cells.collect::<Vec<_>>().join(" | "));
    }
    for line in lacking {
        text += &format!("\n{line}.\n");
    }
    text
}

const HEAD: &str = "\
# Operations

Written by the conformance suite (`make ops`), and compared with its outcome in every whole run. A letter stands for a device
on which all cases of the operation with this dtype pass: V for Vulkan (lavapipe), W for WebGPU (wgpu on the same), L for
Level Zero (the test driver). In brackets: the device lacks a feature, and says so. Names that are no method of `Tensor`
are properties of several: `views` of chains of views, `fused` of fused expressions, `display` of printing. Empty: the
operation does not take the dtype, or is not tried with it because it is the same whatever the dtype.

";

/// Compares what a whole run has shown with `docs/ops.md`, or writes it there if `MARQUETRY_WRITE_OPS` is set. Returns
/// whether they are the same now.
pub fn check_operations() -> bool {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/ops.md");
    let now = operations();
    if std::env::var_os("MARQUETRY_WRITE_OPS").is_some() {
        std::fs::write(&path, &now).expect("the table can be written");
    }
    let same = std::fs::read_to_string(&path).is_ok_and(|committed| committed == now);
    if !same {
        println!("\ndocs/ops.md is not what this run has shown; `make ops` writes it anew");
    }
    same
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
