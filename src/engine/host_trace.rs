//! [`HostTrace`]: what the host does, while a device is profiled or a logger wants to know.

use crate::base::clock;
use crate::base::lock::Mutex;
use crate::engine::profile::HostSpan;
use log::Level;
use std::sync::atomic::{AtomicBool, Ordering};

/// The target of the log messages that tell what the host has done, at the level `trace`.
const TARGET: &str = "marquetry::spans";

/// Notes what threads do, while somebody wants to know.
#[derive(Default)]
pub(crate) struct HostTrace {
    is_profiled: AtomicBool,
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
        self.is_profiled.store(true, Ordering::Relaxed);
    }

    /// Returns what has been done since the start, in the order in which it ended.
    pub fn stop(&self) -> Vec<HostSpan> {
        self.is_profiled.store(false, Ordering::Relaxed);
        std::mem::take(&mut self.spans.lock())
    }

    /// Notes that this thread begins with something. The first word of the name tells what.
    #[inline]
    pub fn span(&self, name: impl FnOnce() -> String) -> Span<'_> {
        let is_wanted = self.is_profiled.load(Ordering::Relaxed) || log::log_enabled!(target: TARGET, Level::Trace);
        Span(is_wanted.then(|| Box::new(Open { trace: self, name: name(), start: clock::now() })))
    }
}

impl Open<'_> {
    #[cold]
    fn end(self) {
        let Open { trace, name, start } = self;
        let end = clock::now();
        log::trace!(target: TARGET, "{name}: {:.1} us", end.saturating_sub(start) as f64 / 1000.0);
        if trace.is_profiled.load(Ordering::Relaxed) {
            let (start, end) = (clock::instant(start), clock::instant(end));
            trace.spans.lock().push(HostSpan { name, start, end, thread: std::thread::current().id() });
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use log::{LevelFilter, Log, Metadata, Record};

    /// Keeps the spans of this test.
    struct Kept(Mutex<Vec<String>>);

    impl Log for Kept {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == TARGET
        }

        fn log(&self, record: &Record<'_>) {
            let message = record.args().to_string();
            if self.enabled(record.metadata()) && message.starts_with("test ") {
                self.0.lock().push(message);
            }
        }

        fn flush(&self) {}
    }

    #[test]
    fn a_logger_gets_spans_without_a_profile() {
        let kept: &'static Kept = Box::leak(Box::new(Kept(Mutex::default())));
        let trace = HostTrace::default();
        drop(trace.span(|| panic!("nobody wants to know")));
        log::set_logger(kept).expect("no other test has a logger");
        log::set_max_level(LevelFilter::Debug);
        drop(trace.span(|| panic!("nobody wants to know so much")));
        log::set_max_level(LevelFilter::Trace);
        let outer = trace.span(|| "test outer".into());
        drop(trace.span(|| "test inner".into()));
        drop(outer);
        log::set_max_level(LevelFilter::Off);
        let messages = kept.0.lock();
        assert!(messages[0].starts_with("test inner: ") && messages[0].ends_with(" us"), "{messages:?}");
        assert!(messages[1].starts_with("test outer: ") && messages.len() == 2, "{messages:?}");
        assert!(trace.stop().is_empty(), "nobody profiles");
    }
}
