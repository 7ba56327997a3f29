//! Reads: readback buffers on their way to the host.

use super::guard::driver_error;
use crate::backend::contract::{ReadCallback, Ticket};
use crate::base::error::{Error, Result};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Duration;

/// The reads that have begun and not ended. If the device is lost, wgpu forgets its reads. They are held here too, so
/// their callbacks can still be called.
#[derive(Default)]
pub(super) struct Reads {
    state: Mutex<State>,
    /// Signalled when a read advances.
    moved: Condvar,
}

#[derive(Default)]
struct State {
    last_id: u64,
    /// Reads whose buffers wgpu has not mapped yet.
    waiting: HashMap<u64, Read>,
    /// Reads that wait for a call of [`Reads::finish_due`].
    due: VecDeque<(Read, Result<(), wgpu::BufferAsyncError>)>,
    /// Reads whose callbacks are running, and their threads.
    running: Vec<(Ticket, ThreadId)>,
}

struct Read {
    buffer: wgpu::Buffer,
    bytes: u64,
    after: Ticket,
    done: ReadCallback,
}

impl Reads {
    /// Begins a read. wgpu maps the buffer when the last batch that names it has completed.
    pub fn begin(self: &Arc<Self>, buffer: wgpu::Buffer, bytes: u64, after: Ticket, done: ReadCallback) {
        let mapped_bytes = bytes.next_multiple_of(4);
        if bytes == 0 || mapped_bytes > buffer.size() {
            let message = format!("{bytes} bytes of a buffer of {}", buffer.size());
            return done(Err(driver_error("read", message)));
        }
        let id = {
            let mut state = self.state.lock();
            state.last_id += 1;
            let id = state.last_id;
            state.waiting.insert(id, Read { buffer: buffer.clone(), bytes, after, done });
            id
        };
        let reads = Arc::clone(self);
        buffer.map_async(wgpu::MapMode::Read, ..mapped_bytes, move |result| reads.mapped(id, result));
    }

    /// Called by wgpu, wherever it polls. `submit` polls too, with the queue locked, so the read ends in a later call
    /// that may run callbacks. A browser calls from its event loop, where nothing is locked.
    fn mapped(&self, id: u64, result: Result<(), wgpu::BufferAsyncError>) {
        let mut state = self.state.lock();
        if let Some(read) = state.waiting.remove(&id) {
            state.due.push_back((read, result));
        }
        drop(state);
        self.moved.notify_all();
        if cfg!(not(native)) {
            self.finish_due();
        }
    }

    /// Ends the reads whose buffers are mapped.
    pub fn finish_due(&self) {
        loop {
            let mut state = self.state.lock();
            let Some((read, result)) = state.due.pop_front() else { return };
            let running = (read.after, thread::current().id());
            state.running.push(running);
            drop(state);
            let _end = RunningEnd { reads: self, running };
            read.finish(result);
        }
    }

    /// Returns whether all reads up to a batch have ended, except those whose callbacks this thread is in. Waits a
    /// moment for the others. Another thread polled such a read or runs its callback, or the read began after the last
    /// poll and needs a new one.
    pub fn have_ended(&self, ticket: Ticket) -> bool {
        let mut state = self.state.lock();
        if state.have_ended(ticket) {
            return true;
        }
        self.moved.wait_for(&mut state, Duration::from_millis(1));
        state.have_ended(ticket)
    }

    /// Ends every read with an error.
    pub fn fail(&self, error: &Error) {
        let (waiting, due) = {
            let mut state = self.state.lock();
            (std::mem::take(&mut state.waiting), std::mem::take(&mut state.due))
        };
        for read in waiting.into_values().chain(due.into_iter().map(|(read, _)| read)) {
            (read.done)(Err(error.clone()));
        }
    }
}

impl State {
    fn have_ended(&self, ticket: Ticket) -> bool {
        let here = thread::current().id();
        self.waiting.values().all(|read| read.after > ticket)
            && self.due.iter().all(|(read, _)| read.after > ticket)
            && self.running.iter().all(|&(after, thread)| after > ticket || thread == here)
    }
}

/// Takes a read off the list of running ones, even if its callback panics.
struct RunningEnd<'a> {
    reads: &'a Reads,
    running: (Ticket, ThreadId),
}

impl Drop for RunningEnd<'_> {
    fn drop(&mut self) {
        let mut state = self.reads.state.lock();
        if let Some(place) = state.running.iter().position(|running| *running == self.running) {
            state.running.swap_remove(place);
        }
        drop(state);
        self.reads.moved.notify_all();
    }
}

impl Read {
    fn finish(self, mapped: Result<(), wgpu::BufferAsyncError>) {
        if let Err(error) = mapped {
            return (self.done)(Err(driver_error("Buffer::map_async", error.to_string())));
        }
        match self.buffer.get_mapped_range(..self.bytes.next_multiple_of(4)) {
            Ok(view) => (self.done)(Ok(&view[..self.bytes as usize])),
            Err(error) => (self.done)(Err(driver_error("Buffer::get_mapped_range", error.to_string()))),
        }
        self.buffer.unmap();
    }
}
