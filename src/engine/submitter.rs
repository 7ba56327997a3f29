//! [`Submitter`]: hands recordings to a backend as batches, in order, and holds what they pin until they have run.

use super::host_trace::HostTrace;
use super::profile::Label;
use super::recording::{Pins, Recording};
use crate::backend::contract::{Backend, Ticket};
use crate::backend::fork::process;
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The first batch for an idle device is cut once its commands may take this long. It is short, so that the device
/// starts soon.
const FIRST_NANOSECONDS: u64 = 32_000;

/// Each batch may take so much longer than the one before. It is recorded while the device runs that one. If batches
/// grew faster, the device would wait for the host.
const GROWTH_NANOSECONDS: u64 = 16_000;

/// A batch may take at most so long. While more than [`FEW`] batches are in flight, it may take twice as long with each
/// further one: the device is busy anyway, and fewer, longer batches save the host calls and waits.
const MOST_NANOSECONDS: u64 = 128_000;
const FEW: usize = 2;

/// However far the device is behind, a batch takes no longer, and has no more commands.
const LONGEST_NANOSECONDS: u64 = 100_000_000;
const MOST_COMMANDS: usize = 1024;

/// A batch is cut once it holds this many bytes on their way from the host, so that they do not pile up.
pub(super) const BATCH_UPLOAD_BYTES: u64 = 64 << 20;

/// The host runs ahead of the device by at most this many batches. Each batch holds driver memory and buffers.
pub(crate) const MAX_IN_FLIGHT: usize = 16;

/// The batches of a device, in order. Each is cut, submitted by any thread, and retired once it has run.
pub(super) struct Submitter {
    backend: Arc<dyn Backend>,
    host_trace: Arc<HostTrace>,
    /// Held by the thread that submits. It is taken before the queue's lock.
    turn: Mutex<()>,
    queue: Mutex<Queue>,
    /// A recording is long enough for a batch if the device may take so many nanoseconds for it.
    long: AtomicU64,
    /// How many batches have been cut and are not submitted yet.
    cut: AtomicUsize,
    /// Whether there is an error that nobody has got yet.
    failed: AtomicBool,
    /// Batches that have been cut, since the device was opened.
    submissions: AtomicU64,
    process: u32,
}

#[derive(Default)]
struct Queue {
    /// Batches that have been cut. The thread that submits takes them out one by one.
    cut: VecDeque<Batch>,
    in_flight: VecDeque<(Ticket, Pins)>,
    newest: u64,
    /// Batches that have been cut since the device was last known to be idle.
    since_idle: u32,
    /// Timed batches, and the names of their commands.
    timed: VecDeque<(Ticket, Vec<Label>)>,
    error: Option<Error>,
    /// Empty recordings, whose memory is used again.
    spare: Vec<Recording>,
}

struct Batch {
    recording: Recording,
    timed: bool,
}

impl Submitter {
    pub fn new(backend: Arc<dyn Backend>, host_trace: Arc<HostTrace>) -> Self {
        Submitter {
            backend,
            host_trace,
            turn: Mutex::default(),
            queue: Mutex::default(),
            long: AtomicU64::new(FIRST_NANOSECONDS),
            cut: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            submissions: AtomicU64::new(0),
            process: process(),
        }
    }

    /// Whether a recording is large enough for a batch.
    #[inline]
    pub fn is_batch(&self, recording: &Recording) -> bool {
        recording.cost().nanoseconds >= self.long.load(Ordering::Relaxed)
            || recording.steps().len() >= MOST_COMMANDS
            || recording.cost().upload_bytes >= BATCH_UPLOAD_BYTES
    }

    /// Makes a batch of a recording, which is then empty. Returns how many have been cut before since the device was
    /// idle.
    pub fn cut(&self, recording: &mut Recording, timed: bool) -> u32 {
        let mut queue = self.queue.lock();
        let before = queue.since_idle;
        let empty = queue.spare.pop().unwrap_or_default();
        queue.cut.push_back(Batch { recording: std::mem::replace(recording, empty), timed });
        self.cut.fetch_add(1, Ordering::SeqCst);
        self.submissions.fetch_add(1, Ordering::Relaxed);
        queue.since_idle = queue.since_idle.saturating_add(1);
        self.set_long(&queue);
        before
    }

    /// How many batches have been cut and are not submitted yet.
    pub fn cut_batches(&self) -> usize {
        self.cut.load(Ordering::SeqCst)
    }

    /// Submits all batches that have been cut. Returns the newest one. If this fails, the batches that were not
    /// submitted stay for the next attempt.
    pub fn submit(&self) -> Result<Ticket> {
        if process() != self.process {
            // This is a fork of the process that opened the device. It lacks the thread that had the turn, if there was
            // one, and the backend refuses it anyway.
            self.backend.completed()?;
        }
        let _turn = self.turn.lock();
        loop {
            let mut queue = self.queue.lock();
            let Some(mut batch) = queue.cut.pop_front() else { return Ok(Ticket(queue.newest)) };
            drop(queue);
            let span = self.host_trace.span(|| "submit".into());
            let submitted = self.backend.submit(batch.recording.steps(), batch.timed);
            drop(span);
            let mut queue = self.queue.lock();
            let ticket = match submitted {
                Ok(ticket) => ticket,
                Err(error) => {
                    queue.cut.push_front(batch);
                    return Err(error);
                }
            };
            let (pins, labels) = batch.recording.clear();
            queue.newest = ticket.0;
            queue.in_flight.push_back((ticket, pins));
            if batch.timed {
                queue.timed.push_back((ticket, labels));
            }
            queue.spare.push(batch.recording);
            self.cut.fetch_sub(1, Ordering::Release);
        }
    }

    /// Keeps the error of a submission for whoever asks next.
    pub fn note_error(&self, error: Error) {
        self.queue.lock().error.get_or_insert(error);
        self.failed.store(true, Ordering::Release);
    }

    /// Returns the error of a submission that nobody has got yet.
    #[inline]
    pub fn take_error(&self) -> Option<Error> {
        if !self.failed.load(Ordering::Acquire) {
            return None;
        }
        let mut queue = self.queue.lock();
        self.failed.store(false, Ordering::Release);
        queue.error.take()
    }

    /// Returns the newest batch that was submitted.
    pub fn newest(&self) -> Ticket {
        Ticket(self.queue.lock().newest)
    }

    /// Returns the oldest batch in flight.
    pub fn oldest(&self) -> Option<Ticket> {
        self.queue.lock().in_flight.front().map(|(ticket, _)| *ticket)
    }

    /// Returns the batch to wait for, if the host is too far ahead.
    pub fn behind(&self) -> Option<Ticket> {
        let queue = self.queue.lock();
        let most = MAX_IN_FLIGHT.saturating_sub(self.cut_batches());
        queue.in_flight.iter().rev().nth(most).map(|(ticket, _)| *ticket)
    }

    /// Drops the pins of batches that have run. Returns the newest batch that has.
    ///
    /// Asking the backend may call back reads, and dropping takes time: neither happens under a lock.
    pub fn retire(&self) -> Result<Ticket> {
        let completed = self.backend.completed()?;
        let mut queue = self.queue.lock();
        let done = queue.in_flight.iter().take_while(|(ticket, _)| *ticket <= completed).count();
        let retired: Vec<_> = queue.in_flight.drain(..done).collect();
        self.set_long(&queue);
        drop(queue);
        drop(retired);
        Ok(completed)
    }

    /// Notes that somebody has waited for a batch. If it was the newest, the device is idle.
    pub fn note_waited(&self, ticket: Ticket) {
        let mut queue = self.queue.lock();
        if ticket.0 >= queue.newest && self.cut_batches() == 0 {
            queue.since_idle = 0;
            self.set_long(&queue);
        }
    }

    fn set_long(&self, queue: &Queue) {
        // What waits to be submitted does not count: if such batches were longer, the device would get them later.
        let behind = queue.in_flight.len().saturating_sub(FEW);
        let long = match behind {
            0 => MOST_NANOSECONDS.min(FIRST_NANOSECONDS + GROWTH_NANOSECONDS * u64::from(queue.since_idle)),
            _ => LONGEST_NANOSECONDS.min(MOST_NANOSECONDS << behind.min(32)),
        };
        self.long.store(long, Ordering::Relaxed);
    }

    /// Takes out the oldest timed batch, if it has run.
    pub fn next_timed(&self, completed: Ticket) -> Option<(Ticket, Vec<Label>)> {
        let timed = &mut self.queue.lock().timed;
        if timed.front()?.0 <= completed { timed.pop_front() } else { None }
    }

    /// Takes out all timed batches.
    pub fn take_timed(&self) -> VecDeque<(Ticket, Vec<Label>)> {
        std::mem::take(&mut self.queue.lock().timed)
    }

    pub fn submissions(&self) -> u64 {
        self.submissions.load(Ordering::Relaxed)
    }
}
