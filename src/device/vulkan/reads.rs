//! Reads that wait for their batch.

use super::memory::{HostView, Memory};
use crate::device::backend::{ReadCallback, Ticket};
use crate::error::Error;
use parking_lot::{Condvar, Mutex};

/// A read that was asked for.
struct Read {
    view: HostView,
    after: Ticket,
    done: ReadCallback,
}

/// The reads that have not been answered yet. No lock is held while a callback runs, so that it may use the backend;
/// but it must not wait for a batch.
#[derive(Default)]
pub(super) struct Reads {
    state: Mutex<State>,
    /// Notified when a callback has returned.
    returned: Condvar,
}

#[derive(Default)]
struct State {
    pending: Vec<Read>,
    /// The batches of the reads whose callbacks are running.
    running: Vec<Ticket>,
}

/// A callback that is running, until dropped.
struct Running<'a> {
    reads: &'a Reads,
    after: Ticket,
}

impl Reads {
    /// Adds a read.
    pub fn add(&self, view: HostView, after: Ticket, done: ReadCallback) {
        self.state.lock().pending.push(Read { view, after, done });
    }

    /// Answers the reads that are due, in the order in which they were asked for.
    pub fn run(&self, completed: Ticket, memory: &Memory) {
        for (read, _running) in self.take_due(completed) {
            // SAFETY: the batch has completed, and the contract has the caller keep the buffer until `done` is called.
            (read.done)(unsafe { memory.read(&read.view) });
        }
    }

    fn take_due(&self, completed: Ticket) -> Vec<(Read, Running<'_>)> {
        let mut state = self.state.lock();
        let due: Vec<_> = state.pending.extract_if(.., |read| read.after <= completed).collect();
        state.running.extend(due.iter().map(|read| read.after));
        let running = |read: Read| {
            let after = read.after;
            (read, Running { reads: self, after })
        };
        due.into_iter().map(running).collect()
    }

    /// Blocks until the callbacks up to a batch that other threads are running have returned: whoever waited for the
    /// batch may count on them.
    pub fn join(&self, ticket: Ticket) {
        let mut state = self.state.lock();
        self.returned.wait_while(&mut state, |state| state.running.iter().any(|after| *after <= ticket));
    }

    /// Answers every read with an error.
    pub fn fail(&self, error: &Error) {
        let all = std::mem::take(&mut self.state.lock().pending);
        all.into_iter().for_each(|read| (read.done)(Err(error.clone())));
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let running = &mut self.reads.state.lock().running;
        if let Some(index) = running.iter().position(|after| *after == self.after) {
            running.swap_remove(index);
        }
        self.reads.returned.notify_all();
    }
}
