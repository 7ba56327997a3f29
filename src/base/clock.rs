//! The host's clock: nanoseconds since the process first asked for the time.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

/// Nanoseconds of a clock that never goes back and is the same for all devices and threads of the process.
pub(crate) fn now() -> u64 {
    start().elapsed().as_nanos() as u64
}

/// The moment of a number from [`now`].
pub(crate) fn instant(nanoseconds: u64) -> Instant {
    start() + Duration::from_nanos(nanoseconds)
}
