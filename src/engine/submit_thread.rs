//! [`SubmitThread`]: submits batches beside the threads that record them. Encoding a batch takes the host as long as
//! recording it, so two threads do both in half the time.

use super::submitter::Submitter;
use crate::backend::fork::process;
use crate::backend::info::{DeviceInfo, DeviceKind};
use crate::base::environment;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The thread looks for the next batch so long before it sleeps, because waking it takes both threads some
/// microseconds.
const SPIN: Duration = Duration::from_micros(100);

/// If so many batches wait for the thread, whoever records helps.
const MOST_WAITING: usize = 4;

/// The thread, which starts with its first batch and ends with this.
pub(super) struct SubmitThread {
    submitter: Arc<Submitter>,
    pays: bool,
    ends: Arc<AtomicBool>,
    /// `None` if it could not be started.
    thread: OnceLock<Option<JoinHandle<()>>>,
    process: u32,
}

impl SubmitThread {
    pub fn new(submitter: Arc<Submitter>, info: &DeviceInfo) -> SubmitThread {
        let (thread, process) = (OnceLock::new(), process());
        SubmitThread { submitter, pays: pays(info), ends: Arc::default(), thread, process }
    }

    /// Whether the thread will submit the batches that have been cut. It wakes up for that.
    pub fn takes(&self) -> bool {
        self.pays && self.wake() && self.submitter.cut_batches() <= MOST_WAITING
    }

    /// Wakes the thread up, so that it soon submits what is cut. Returns false if there is none.
    pub fn wake(&self) -> bool {
        if !self.pays {
            return false;
        }
        let start = || {
            let (submitter, ends) = (self.submitter.clone(), self.ends.clone());
            let thread = std::thread::Builder::new().name("marquetry submits".into());
            thread.spawn(move || work(&submitter, &ends)).ok()
        };
        let Some(thread) = self.thread.get_or_init(start) else { return false };
        thread.thread().unpark();
        true
    }
}

/// Whether a device has work for the thread. A software device needs the cores itself, and a browser has one thread.
fn pays(info: &DeviceInfo) -> bool {
    let forced = environment::settings().force.submit_thread;
    let several = || std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
    cfg!(not(any(model_locks, target_family = "wasm"))) && (forced || info.kind != DeviceKind::Cpu && several())
}

fn work(submitter: &Submitter, ends: &AtomicBool) {
    let mut since = Instant::now();
    while !ends.load(Ordering::Acquire) {
        if submitter.cut_batches() > 0 {
            let submitted = submitter.submit().and_then(|_| submitter.retire());
            since = Instant::now();
            let Err(error) = submitted else { continue };
            submitter.note_error(error);
        } else if since.elapsed() < SPIN {
            std::hint::spin_loop();
            continue;
        }
        std::thread::park();
        since = Instant::now();
    }
}

impl Drop for SubmitThread {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        let Some(Some(thread)) = self.thread.take() else { return };
        thread.thread().unpark();
        // In a process that was forked, the thread is not there. The thread itself drops this if it drops what was the
        // last to hold the device.
        if process() == self.process && thread.thread().id() != std::thread::current().id() {
            _ = thread.join();
        }
    }
}
