//! When commands ran on the device.

use std::sync::OnceLock;
use std::time::Instant;

/// Nanoseconds of a clock that never goes back and is the same for all devices and threads of the process.
pub(crate) fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}
