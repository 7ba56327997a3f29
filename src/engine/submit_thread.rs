//! [`SubmitThread`]: submits batches beside the threads that record them. Encoding a batch takes the host as long as
//! recording it, so two threads do both in half the time.

use super::submitter::{MAX_IN_FLIGHT, Submitter};
use crate::backend::info::{DeviceInfo, DeviceKind};
use crate::base::environment;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the thread looks for the next batch before it sleeps. Waking it costs both threads some microseconds, and
/// the longest batches take a few hundred to record.
const SPIN: Duration = Duration::from_micros(400);

/// The thread, which starts when it is first woken up and ends with this.
pub(super) struct SubmitThread {
    shared: Arc<Shared>,
    pays: bool,
    /// `None` if it could not be started.
    thread: OnceLock<Option<JoinHandle<()>>>,
}

struct Shared {
    submitter: Arc<Submitter>,
    /// Whether the thread looks for batches. While it does not, it has to be woken up.
    awake: AtomicBool,
    ends: AtomicBool,
}

impl SubmitThread {
    pub fn new(submitter: Arc<Submitter>, info: &DeviceInfo) -> SubmitThread {
        let shared = Shared { submitter, awake: AtomicBool::new(false), ends: AtomicBool::new(false) };
        SubmitThread { shared: Arc::new(shared), pays: pays(info), thread: OnceLock::new() }
    }

    /// Whether the thread is awake, and submits what has been cut before this call, or notes why it could not. If too
    /// many batches wait for it, others submit them, too.
    pub fn takes(&self) -> bool {
        // In one order with what the thread does before it sleeps: it sees the batch, or this sees that it sleeps.
        self.shared.awake.load(Ordering::SeqCst) && self.shared.submitter.cut_batches() <= MAX_IN_FLIGHT
    }

    /// Wakes the thread up if it sleeps, because a batch will soon be cut.
    pub fn wake_early(&self) {
        if !self.shared.awake.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Wakes the thread up, so that it submits what has been cut and looks for more. Returns false if there is none.
    pub fn wake(&self) -> bool {
        if !self.pays {
            return false;
        }
        let start = || {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("marquetry submits".into());
            thread.spawn(move || work(&shared)).ok()
        };
        let Some(thread) = self.thread.get_or_init(start) else { return false };
        thread.thread().unpark();
        true
    }
}

/// Whether a device has work for the thread. A software device needs the cores itself, and a browser has one thread.
fn pays(info: &DeviceInfo) -> bool {
    let several = || std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
    let forced = environment::settings().force.submit_thread;
    cfg!(not(any(model_locks, target_family = "wasm")))
        && forced.unwrap_or_else(|| info.kind != DeviceKind::Cpu && several())
}

/// Says that the thread is awake until it is dropped.
struct Awake<'a>(&'a AtomicBool);

impl<'a> Awake<'a> {
    fn new(awake: &'a AtomicBool) -> Self {
        awake.store(true, Ordering::SeqCst);
        Awake(awake)
    }
}

impl Drop for Awake<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

fn work(Shared { submitter, awake, ends }: &Shared) {
    let ended = || ends.load(Ordering::Acquire);
    while !ended() {
        let is_awake = Awake::new(awake);
        let (mut since, mut failed) = (Instant::now(), false);
        while !failed && since.elapsed() < SPIN && !ended() {
            if submitter.cut_batches() > 0 {
                submitter.submit_or_note();
                if let Err(error) = submitter.retire() {
                    submitter.note_error(error);
                }
                // What could not be submitted waits for the next wake-up.
                failed = submitter.has_failed();
                since = Instant::now();
            }
            std::hint::spin_loop();
        }
        drop(is_awake);
        // What was cut before others saw that this thread sleeps.
        if !failed && submitter.cut_batches() > 0 {
            continue;
        }
        if !ended() {
            std::thread::park();
        }
    }
}

impl Drop for SubmitThread {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        let Some(Some(thread)) = self.thread.take() else { return };
        thread.thread().unpark();
        if self.shared.submitter.is_inherited() {
            // In a process that was forked, the thread is not there.
            std::mem::forget(thread);
        } else if thread.thread().id() != std::thread::current().id() {
            // The thread itself drops this if it drops what was the last to hold the device.
            _ = thread.join();
        }
    }
}
