//! [`Submitter`]: hands recordings to a backend as batches, and holds what they pin until they have run.

use super::profile::Label;
use super::recording::{Pins, Recording};
use crate::backend::contract::{Backend, Ticket};
use crate::base::error::Result;
use std::collections::VecDeque;
use std::sync::Arc;

/// The first batch for an idle device is submitted once its commands may take this long. It is short, so that the
/// device starts soon.
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

/// A batch is submitted once it holds this many bytes on their way from the host, so that they do not pile up.
pub(super) const BATCH_UPLOAD_BYTES: u64 = 64 << 20;

/// The host runs ahead of the device by at most this many batches. Each batch holds driver memory and buffers.
pub(crate) const MAX_IN_FLIGHT: usize = 16;

/// The batches of a device, in order.
pub(super) struct Submitter {
    backend: Arc<dyn Backend>,
    newest: u64,
    /// Batches submitted since the device was last known to be idle.
    since_idle: u32,
    in_flight: VecDeque<(Ticket, Pins)>,
}

impl Submitter {
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Submitter { backend, newest: 0, since_idle: 0, in_flight: VecDeque::new() }
    }

    /// Whether a recording is large enough for a batch.
    pub fn is_batch(&self, recording: &Recording) -> bool {
        let behind = self.in_flight.len().saturating_sub(FEW);
        let long = match behind {
            0 => MOST_NANOSECONDS.min(FIRST_NANOSECONDS + GROWTH_NANOSECONDS * u64::from(self.since_idle)),
            _ => LONGEST_NANOSECONDS.min(MOST_NANOSECONDS << behind),
        };
        recording.cost().nanoseconds >= long
            || recording.steps().len() >= MOST_COMMANDS
            || recording.cost().upload_bytes >= BATCH_UPLOAD_BYTES
    }

    /// Submits a recording, which is then empty. Returns the batch and the names of its commands. If this fails,
    /// nothing was submitted, and the commands stay for the next attempt.
    pub fn submit(&mut self, recording: &mut Recording, timed: bool) -> Result<(Ticket, Vec<Label>)> {
        let ticket = self.backend.submit(recording.steps(), timed)?;
        let (pins, labels) = recording.clear();
        self.newest = ticket.0;
        self.since_idle = self.since_idle.saturating_add(1);
        self.in_flight.push_back((ticket, pins));
        Ok((ticket, labels))
    }

    /// Returns the newest batch.
    pub fn newest(&self) -> Ticket {
        Ticket(self.newest)
    }

    /// Returns the oldest batch that is not known to have run.
    pub fn oldest(&self) -> Option<Ticket> {
        self.in_flight.front().map(|(ticket, _)| *ticket)
    }

    /// Returns the batch to wait for, if too many are in flight.
    pub fn behind(&self) -> Option<Ticket> {
        self.in_flight.iter().rev().nth(MAX_IN_FLIGHT).map(|(ticket, _)| *ticket)
    }

    /// Takes out the pins of batches that have run. The caller drops them when it holds no lock.
    pub fn retire(&mut self, completed: Ticket) -> Vec<(Ticket, Pins)> {
        let done = self.in_flight.iter().take_while(|(ticket, _)| *ticket <= completed).count();
        self.in_flight.drain(..done).collect()
    }

    /// Notes that somebody has waited for a batch. If it was the newest, the device is idle.
    pub fn note_waited(&mut self, ticket: Ticket) {
        if ticket.0 >= self.newest {
            self.since_idle = 0;
        }
    }
}
