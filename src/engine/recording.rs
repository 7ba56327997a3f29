//! [`Recording`]: commands in order, with the barriers between them and the buffers that they pin.

use super::pool::Allocation;
use super::profile::Label;
use crate::backend::contract::{BufferId, Command, Step};
use crate::shader::Access;
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// The buffers that commands use. The pins keep them alive.
pub(crate) type Pins = Vec<Arc<Allocation>>;

/// The cost of a command, as far as it matters for the size of a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Bytes on their way from the host.
    pub upload_bytes: u64,
    /// How long the device may take.
    pub nanoseconds: u64,
}

/// Commands that have been recorded and have not run. It is a value: the stream submits its own, and others may be
/// kept.
#[derive(Default)]
pub(crate) struct Recording {
    steps: Vec<Step>,
    cost: Cost,
    /// The buffers that commands have read and written since the last barrier.
    read: FxHashSet<BufferId>,
    written: FxHashSet<BufferId>,
    pins: Pins,
    labels: Vec<Label>,
}

impl Recording {
    /// Appends a command. `uses` are the buffers it names and how it uses them. If the command touches a buffer that
    /// was written since the last barrier, or writes one that was read, it gets a barrier.
    pub fn push(&mut self, command: Command, uses: &[(&Arc<Allocation>, Access)], cost: Cost) {
        let barrier = uses.iter().any(|(allocation, access)| {
            let id = allocation.id();
            self.written.contains(&id) || (access.writes() && self.read.contains(&id))
        });
        if barrier {
            self.read.clear();
            self.written.clear();
        }
        for (allocation, access) in uses {
            if access.reads() {
                self.read.insert(allocation.id());
            }
            if access.writes() {
                self.written.insert(allocation.id());
            }
            self.pins.push(Arc::clone(allocation));
        }
        self.steps.push(Step { command, barrier });
        self.add_cost(cost);
    }

    /// Names the newest command, for a profile.
    pub fn label(&mut self, label: Label) {
        self.labels.push(label);
    }

    /// Adds a cost that belongs to no command.
    pub fn add_cost(&mut self, cost: Cost) {
        self.cost.upload_bytes += cost.upload_bytes;
        self.cost.nanoseconds = self.cost.nanoseconds.saturating_add(cost.nanoseconds);
    }

    /// Returns the cost of all commands.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Removes the commands after they have been submitted. A batch sees all work before it, so no hazards remain.
    /// Returns the pins and the names of the commands.
    pub fn clear(&mut self) -> (Pins, Vec<Label>) {
        self.steps.clear();
        self.cost = Cost::default();
        self.read.clear();
        self.written.clear();
        (std::mem::take(&mut self.pins), std::mem::take(&mut self.labels))
    }
}
