//! What the crate logs while a case runs.

use log::{Level, LevelFilter, Log, Metadata, Record};
use std::sync::Mutex;

static ERRORS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Logger;

static LOGGER: Logger = Logger;

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata) -> bool {
        metadata.level() <= Level::Error
    }

    fn log(&self, record: &Record) {
        if self.enabled(record.metadata()) {
            ERRORS.lock().unwrap().push(format!("{}: {}", record.target(), record.args()));
        }
    }

    fn flush(&self) {}
}

/// From now on, errors are kept: the backend logs what the browser objects to.
pub fn install_logger() {
    // A page opens a device once.
    log::set_logger(&LOGGER).expect("no other logger");
    log::set_max_level(LevelFilter::Warn);
}

/// Returns the errors since the last call.
pub fn take_errors() -> String {
    std::mem::take(&mut *ERRORS.lock().unwrap()).join("; ")
}

/// Takes what [`compiles`](crate::compiles) reports.
pub fn compiled(_: &'static str, _: &'static str, _: [u64; 2]) {}
