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

/// Each batch may take so much longer than the one before. It is recorded while the device runs that one. Faster growth
/// gains nothing.
const GROWTH_NANOSECONDS: u64 = 32_000;

/// A batch may take at most so long. While more than [`FEW`] batches are in flight, it may take twice as long with each
/// further one: the device is busy anyway, and fewer, longer batches save the host calls and waits.
const MOST_NANOSECONDS: u64 = 256_000;
const FEW: usize = 2;

/// However far the device is behind, a batch takes no longer, and has no more commands.
const LONGEST_NANOSECONDS: u64 = 100_000_000;
const MOST_COMMANDS: usize = 1024;

/// A batch is cut once it holds this many bytes on their way from the host, so that they do not pile up.
pub(super) const BATCH_UPLOAD_BYTES: u64 = 64 << 20;

/// The host runs ahead of the device by at most this many batches, cut or in flight. Each holds driver memory and
/// buffers. So many short runs of a program are queued without a wait: each may be a batch.
pub(crate) const MAX_IN_FLIGHT: usize = 32;

/// The batches of a device, in order. Each is cut, submitted by any thread, and retired once it has run.
pub(super) struct Submitter {
    backend: Arc<dyn Backend>,
    host_trace: Arc<HostTrace>,
    /// Held by the thread that submits. It is taken before the queue's lock.
    turn: Mutex<()>,
    queue: Mutex<Queue>,
    /// Held while the pins of batches that have run are dropped.
    retiring: Mutex<()>,
    /// The estimated time on the device, in nanoseconds, at which a recording becomes a batch.
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

/// A batch that is being submitted. If that fails, or panics, it goes back to the others.
struct Taken<'a> {
    batch: Option<Batch>,
    queue: &'a Mutex<Queue>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(batch) = self.batch.take() {
            self.queue.lock().cut.push_front(batch);
        }
    }
}

impl Submitter {
    pub fn new(backend: Arc<dyn Backend>, host_trace: Arc<HostTrace>) -> Self {
        Submitter {
            backend,
            host_trace,
            turn: Mutex::default(),
            queue: Mutex::default(),
            retiring: Mutex::default(),
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
        if self.is_inherited() {
            // The backend refuses whatever comes.
            recording.clear();
            return 0;
        }
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

    /// Whether this is a fork of the process that opened the device. It lacks the threads that had the locks, if there
    /// were any.
    pub fn is_inherited(&self) -> bool {
        process() != self.process
    }

    /// How many batches have been cut and are not submitted yet.
    pub fn cut_batches(&self) -> usize {
        self.cut.load(Ordering::SeqCst)
    }

    /// Submits all batches that have been cut. If this fails, those that were not submitted stay for the next attempt.
    pub fn submit(&self) -> Result<()> {
        if self.is_inherited() {
            // This is an error.
            return self.backend.completed().map(drop);
        }
        let _turn = self.turn.lock();
        self.submit_in_turn()
    }

    /// The same. An error is kept for whoever asks next.
    pub fn submit_or_note(&self) {
        if self.is_inherited() {
            return;
        }
        let _turn = self.turn.lock();
        if let Err(error) = self.submit_in_turn() {
            self.note_error(error);
        }
    }

    /// Submits all batches that have been cut. The caller has the turn.
    fn submit_in_turn(&self) -> Result<()> {
        while let Some(mut taken) = self.take_batch() {
            let Some(batch) = &mut taken.batch else { continue };
            let span = self.host_trace.span(|| "submit".into());
            let Batch { recording, timed } = batch;
            let ticket = self.backend.submit_after(recording.steps(), *timed, recording.uploaded())?;
            drop(span);
            let Some(Batch { mut recording, timed }) = taken.batch.take() else { continue };
            let (pins, labels) = recording.clear();
            let mut queue = self.queue.lock();
            debug_assert!(ticket.0 == queue.newest + 1, "batches are numbered in their order");
            queue.newest = ticket.0;
            queue.in_flight.push_back((ticket, pins));
            if timed {
                queue.timed.push_back((ticket, labels));
            }
            queue.spare.push(recording);
            self.cut.fetch_sub(1, Ordering::SeqCst);
        }
        Ok(())
    }

    fn take_batch(&self) -> Option<Taken<'_>> {
        let batch = self.queue.lock().cut.pop_front()?;
        Some(Taken { batch: Some(batch), queue: &self.queue })
    }

    /// Keeps the error of a submission for whoever asks next.
    pub fn note_error(&self, error: Error) {
        self.queue.lock().error.get_or_insert(error);
        self.failed.store(true, Ordering::Release);
    }

    /// Whether there is an error that nobody has got yet.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Returns the error of a submission that nobody has got yet.
    #[inline]
    pub fn take_error(&self) -> Option<Error> {
        if !self.has_failed() {
            return None;
        }
        let mut queue = self.queue.lock();
        self.failed.store(false, Ordering::Release);
        queue.error.take()
    }

    /// Returns the newest batch that has been cut. Batches get their numbers in this order.
    pub fn newest_cut(&self) -> Ticket {
        Ticket(self.submissions())
    }

    /// Returns the newest batch that was submitted.
    pub fn newest(&self) -> Ticket {
        if self.is_inherited() { Ticket(0) } else { Ticket(self.queue.lock().newest) }
    }

    /// Returns the oldest batch in flight.
    pub fn oldest(&self) -> Option<Ticket> {
        self.queue.lock().in_flight.front().map(|(ticket, _)| *ticket)
    }

    /// Whether few batches are in flight, as far as is known without asking the device.
    pub fn has_few_in_flight(&self) -> bool {
        self.queue.lock().in_flight.len() <= FEW
    }

    /// Returns the batch to wait for, if the host is too far ahead.
    pub fn behind(&self) -> Option<Ticket> {
        let queue = self.queue.lock();
        let most = MAX_IN_FLIGHT.saturating_sub(self.cut_batches());
        queue.in_flight.iter().rev().nth(most).map(|(ticket, _)| *ticket)
    }

    /// Drops the pins of batches that have run. Returns the newest batch that has.
    ///
    /// Asking the backend may call back reads, and dropping takes time: neither happens under the queue's lock.
    pub fn retire(&self) -> Result<Ticket> {
        let completed = self.backend.completed()?;
        // Whoever returns finds that all of them have been dropped, also those that another thread has taken out.
        let _retiring = self.retiring.lock();
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

    /// Takes out all timed batches. Those that could not be submitted are timed no more.
    pub fn take_timed(&self) -> VecDeque<(Ticket, Vec<Label>)> {
        let mut queue = self.queue.lock();
        queue.cut.iter_mut().for_each(|batch| batch.timed = false);
        std::mem::take(&mut queue.timed)
    }

    pub fn submissions(&self) -> u64 {
        self.submissions.load(Ordering::Relaxed)
    }
}
