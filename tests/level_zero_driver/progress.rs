//! Waiting for work. Every completion is announced under one lock, so one condition variable serves all waiters.

use crate::Outcome;
use crate::ffi::ResultCode;
use parking_lot::{Condvar, Mutex};
use std::time::{Duration, Instant};

static LOCK: Mutex<()> = Mutex::new(());
static CHANGED: Condvar = Condvar::new();

/// Makes a change that a thread may wait for.
pub fn announce(change: impl FnOnce()) {
    let _guard = LOCK.lock();
    change();
    CHANGED.notify_all();
}

/// Blocks until the condition holds.
pub fn wait_until(condition: impl Fn() -> bool) {
    let mut guard = LOCK.lock();
    while !condition() {
        CHANGED.wait(&mut guard);
    }
}

/// Blocks until the condition holds. Returns `NOT_READY` after `timeout` nanoseconds; `u64::MAX` waits forever.
pub fn wait_for(timeout: u64, condition: impl Fn() -> bool) -> Outcome {
    if timeout == u64::MAX {
        wait_until(condition);
        return Ok(());
    }
    let deadline = Instant::now().checked_add(Duration::from_nanos(timeout));
    let mut guard = LOCK.lock();
    while !condition() {
        let expired = match deadline {
            Some(deadline) => timeout == 0 || CHANGED.wait_until(&mut guard, deadline).timed_out(),
            None => {
                CHANGED.wait(&mut guard);
                false
            }
        };
        if expired && !condition() {
            return Err(ResultCode::NOT_READY);
        }
    }
    Ok(())
}

/// Returns the time in nanoseconds on `CLOCK_MONOTONIC`, the clock of all timestamps.
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is valid.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
