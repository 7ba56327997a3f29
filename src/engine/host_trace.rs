//! [`HostTrace`]: what the host does while a device is profiled.

use crate::base::clock;
use crate::base::lock::Mutex;
use crate::engine::profile::HostSpan;
use std::sync::atomic::{AtomicBool, Ordering};

/// Notes what threads do, while somebody wants to know.
#[derive(Default)]
pub(crate) struct HostTrace {
    is_on: AtomicBool,
    spans: Mutex<Vec<HostSpan>>,
}

/// Something that a thread does, until it is dropped. Most often nobody wants to know.
pub(crate) struct Span<'a>(Option<Box<Open<'a>>>);

struct Open<'a> {
    trace: &'a HostTrace,
    name: String,
    start: u64,
}

impl HostTrace {
    pub fn start(&self) {
        self.spans.lock().clear();
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Returns what has been done since the start, in the order in which it ended.
    pub fn stop(&self) -> Vec<HostSpan> {
        self.is_on.store(false, Ordering::Relaxed);
        std::mem::take(&mut self.spans.lock())
    }

    /// Notes that this thread begins with something. The first word of the name tells what.
    #[inline]
    pub fn span(&self, name: impl FnOnce() -> String) -> Span<'_> {
        let is_on = self.is_on.load(Ordering::Relaxed);
        Span(is_on.then(|| Box::new(Open { trace: self, name: name(), start: clock::now() })))
    }
}

impl Open<'_> {
    #[cold]
    fn end(self) {
        let Open { trace, name, start } = self;
        let (start, end) = (clock::instant(start), clock::instant(clock::now()));
        trace.spans.lock().push(HostSpan { name, start, end, thread: std::thread::current().id() });
    }
}

impl Drop for Span<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(open) = self.0.take() {
            open.end();
        }
    }
}
