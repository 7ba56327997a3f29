//! The stream: records commands in order, finds hazards, submits batches.

use crate::device::backend::{Backend, BufferId, Command, Step, Ticket};
use crate::error::Result;
use crate::memory::Allocation;
use crate::shader::Access;
use parking_lot::Mutex;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A batch is submitted when it has so many commands, so that the device starts while the host still records.
const BATCH_COMMANDS: usize = 256;

/// A batch is submitted when it holds so many bytes on their way from the host, so that they do not pile up.
const BATCH_UPLOAD_BYTES: u64 = 64 << 20;

/// The host runs ahead of the device by at most so many batches: each holds memory of the driver and buffers.
const MAX_IN_FLIGHT: usize = 16;

/// The order of all work on a device. Commands of many threads run in the order in which they were recorded.
pub(crate) struct Stream {
    backend: Arc<dyn Backend>,
    state: Mutex<State>,
    submissions: AtomicU64,
    waits: AtomicU64,
}

#[derive(Default)]
struct State {
    steps: Vec<Step>,
    upload_bytes: u64,
    /// What the commands since the last barrier have read and written.
    read: HashSet<BufferId>,
    written: HashSet<BufferId>,
    /// Keeps the buffers of the recorded commands alive.
    held: Vec<Arc<Allocation>>,
    newest: u64,
    in_flight: VecDeque<(Ticket, Vec<Arc<Allocation>>)>,
}

impl Stream {
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Stream { backend, state: Mutex::default(), submissions: AtomicU64::new(0), waits: AtomicU64::new(0) }
    }

    /// Appends a command. `uses` are the buffers it names and how it uses them, `upload_bytes` what it brings from the
    /// host.
    pub fn record(&self, command: Command, uses: &[(&Arc<Allocation>, Access)], upload_bytes: u64) -> Result<()> {
        let mut state = self.state.lock();
        let hazard = uses.iter().any(|(allocation, access)| {
            let id = allocation.id();
            state.written.contains(&id) || (access.writes() && state.read.contains(&id))
        });
        if hazard {
            state.read.clear();
            state.written.clear();
        }
        for (allocation, access) in uses {
            if access.reads() {
                state.read.insert(allocation.id());
            }
            if access.writes() {
                state.written.insert(allocation.id());
            }
            state.held.push(Arc::clone(allocation));
        }
        state.steps.push(Step { command, barrier: hazard });
        state.upload_bytes += upload_bytes;
        if state.steps.len() >= BATCH_COMMANDS || state.upload_bytes >= BATCH_UPLOAD_BYTES {
            self.submit(&mut state)?;
            drop(state);
            self.keep_pace()?;
        }
        Ok(())
    }

    /// Submits what has been recorded. Returns the ticket of the newest batch.
    pub fn flush(&self) -> Result<Ticket> {
        let mut state = self.state.lock();
        if !state.steps.is_empty() {
            self.submit(&mut state)?;
        }
        let newest = Ticket(state.newest);
        drop(state);
        self.keep_pace()?;
        Ok(newest)
    }

    fn submit(&self, state: &mut State) -> Result<()> {
        // If this fails, nothing was submitted: the commands stay for the next attempt.
        let ticket = self.backend.submit(&state.steps)?;
        state.steps.clear();
        let held = std::mem::take(&mut state.held);
        state.upload_bytes = 0;
        // A batch sees all that was done before it.
        state.read.clear();
        state.written.clear();
        self.submissions.fetch_add(1, Ordering::Relaxed);
        state.newest = ticket.0;
        state.in_flight.push_back((ticket, held));
        Ok(())
    }

    /// Lets go of the buffers of batches that have completed. Asking the backend may call back reads, and freeing
    /// takes its time: neither happens under the lock.
    fn retire(&self) -> Result<()> {
        let completed = self.backend.completed()?;
        let mut state = self.state.lock();
        let done = state.in_flight.iter().take_while(|(ticket, _)| *ticket <= completed).count();
        let retired: Vec<_> = state.in_flight.drain(..done).collect();
        drop(state);
        drop(retired);
        Ok(())
    }

    /// Lets go of what has run, and waits for the oldest batches where too many are in flight.
    fn keep_pace(&self) -> Result<()> {
        self.retire()?;
        let too_many = |state: &State| state.in_flight.iter().rev().nth(MAX_IN_FLIGHT).map(|(ticket, _)| *ticket);
        let behind = too_many(&self.state.lock());
        behind.map_or(Ok(()), |ticket| self.wait_for(ticket))
    }

    /// Blocks until a batch has run.
    pub fn wait_for(&self, ticket: Ticket) -> Result<()> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        self.backend.wait(ticket)?;
        self.retire()
    }

    /// Submits what has been recorded and blocks until all of it has run.
    pub fn wait(&self) -> Result<()> {
        let ticket = self.flush()?;
        self.wait_for(ticket)
    }

    /// Times that the host has blocked.
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    pub fn submissions(&self) -> u64 {
        self.submissions.load(Ordering::Relaxed)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Buffers may be freed only when no batch uses them. If the device is lost, none does.
        let flushed = self.flush().map(drop);
        let waited = self.backend.wait(Ticket(self.state.get_mut().newest));
        if let Err(error) = flushed.and(waited) {
            log::debug!("the device was closed with an error: {error}");
        }
    }
}
