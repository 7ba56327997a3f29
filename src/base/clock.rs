//! The host's clock: nanoseconds since the process first asked for the time.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

/// Returns the nanoseconds of a monotonic clock, which all devices and threads of the process share.
pub(crate) fn now() -> u64 {
    start().elapsed().as_nanos() as u64
}

/// Returns the moment that a number from [`now`] stands for.
pub(crate) fn instant(nanoseconds: u64) -> Instant {
    start() + Duration::from_nanos(nanoseconds)
}
