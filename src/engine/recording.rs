//! [`Recording`]: commands in order, with the barriers between them and the buffers that they pin.

use super::pool::Allocation;
use super::profile::Label;
use crate::backend::contract::{BufferId, Command, Step};
use crate::shader::Access;
use rustc_hash::FxHashMap;
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
    /// The buffers that commands have used since the last barrier, and whether they have written them.
    used: FxHashMap<BufferId, bool>,
    pins: Pins,
    labels: Vec<Label>,
}

impl Recording {
    /// Appends a command. `uses` are the buffers it names and how it uses them. If the command touches a buffer that
    /// was written since the last barrier, or writes one that was read, it gets a barrier.
    pub fn push<'a>(
        &mut self,
        command: Command,
        uses: impl Iterator<Item = (&'a Arc<Allocation>, Access)> + Clone,
        cost: Cost,
    ) {
        let is_hazard = |(allocation, access): (&Arc<Allocation>, Access)| {
            self.used.get(&allocation.id()).is_some_and(|written| *written || access.writes())
        };
        let barrier = uses.clone().any(is_hazard);
        if barrier {
            self.used.clear();
        }
        for (allocation, access) in uses {
            *self.used.entry(allocation.id()).or_default() |= access.writes();
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
        self.used.clear();
        (std::mem::take(&mut self.pins), std::mem::take(&mut self.labels))
    }
}
