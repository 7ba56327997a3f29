//! [`Recording`]: commands in order, with the barriers between them and the buffers that they pin.

use super::hazards::Hazards;
use super::pool::Allocation;
use super::profile::Label;
use super::program::{Part, Program};
use crate::backend::contract::{Command, KernelId, ProgramId, Step, Ticket};
use crate::shader::Access;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The time that a command is taken to last at least, in nanoseconds: what a small kernel behind a barrier takes a fast
/// GPU. The host records it in about half the time.
const LEAST_NANOSECONDS: u64 = 2_000;

/// What commands use. The pins keep it alive.
#[derive(Default)]
pub(crate) struct Pins {
    allocations: Vec<Arc<Allocation>>,
    programs: Vec<Arc<Program>>,
}

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
pub(crate) struct Recording {
    /// Tells it from others.
    number: u64,
    steps: Vec<Step>,
    cost: Cost,
    /// Whether the next command gets a barrier anyway.
    follows_program: bool,
    /// The newest upload of a buffer that commands use, by the queue that only copies.
    uploaded: Ticket,
    hazards: Hazards,
    pins: Pins,
    labels: Vec<Label>,
}

/// Returns a number that no recording has had. It is not 0.
fn next_number() -> u64 {
    static RECORDINGS: AtomicU64 = AtomicU64::new(1);
    RECORDINGS.fetch_add(1, Ordering::Relaxed)
}

impl Default for Recording {
    fn default() -> Recording {
        let (steps, cost, follows_program, hazards, pins, labels) = Default::default();
        let (number, uploaded) = (next_number(), Ticket(0));
        Recording { number, steps, cost, follows_program, uploaded, hazards, pins, labels }
    }
}

impl Recording {
    /// Appends a command. `uses` are the buffers it names and how it uses them. If the command touches a buffer that
    /// was written since the last barrier, or writes one that was read, it gets a barrier. Returns whether it got one.
    pub fn push<'a>(
        &mut self,
        command: impl FnOnce() -> Command,
        uses: impl Iterator<Item = (&'a Arc<Allocation>, Access)> + Clone,
        cost: Cost,
    ) -> bool {
        let is_hazard =
            |(allocation, access): (&Arc<Allocation>, Access)| self.hazards.needs_barrier(allocation.id(), access);
        let barrier = self.follows_program || uses.clone().any(is_hazard);
        if barrier {
            self.hazards.clear();
            self.follows_program = false;
        }
        for (allocation, access) in uses {
            self.hazards.note(allocation.id(), access);
            if allocation.pin(self.number) {
                self.uploaded = self.uploaded.max(allocation.uploaded());
                self.pins.allocations.push(Arc::clone(allocation));
            }
        }
        self.steps.push(Step { command: command(), barrier });
        self.add_cost(Cost { nanoseconds: cost.nanoseconds.max(LEAST_NANOSECONDS), ..cost });
        barrier
    }

    /// Appends the run of a part of a program that the backend has prepared.
    pub fn push_run(&mut self, id: ProgramId, part: &Part, program: &Arc<Program>) {
        self.steps.push(Step { command: Command::Run(id), barrier: true });
        self.note_program(program, part, part.recording.cost);
    }

    /// Appends some commands of a part of a program one by one: at most `most` from the one at `first` on. Returns
    /// their names, and how many of them have a barrier before them.
    pub fn push_steps<'a>(
        &mut self,
        part: &'a Part,
        first: usize,
        most: usize,
        program: &Arc<Program>,
    ) -> (&'a [Label], u64) {
        let (all, place) = (part.recording.steps(), self.steps.len());
        let range = first..all.len().min(first.saturating_add(most));
        self.steps.extend_from_slice(&all[range.clone()]);
        // What lies between it and the command before is not known here.
        self.steps[place].barrier = true;
        let share = |whole: u64| (u128::from(whole) * range.len() as u128 / all.len() as u128) as u64;
        let Cost { upload_bytes, nanoseconds } = part.recording.cost;
        self.note_program(program, part, Cost { upload_bytes: share(upload_bytes), nanoseconds: share(nanoseconds) });
        // The first command of a batch sees all work before it anyway.
        let barriers = self.steps[place.max(1)..].iter().filter(|step| step.barrier).count() as u64;
        (part.recording.labels.get(range).unwrap_or_default(), barriers)
    }

    fn note_program(&mut self, program: &Arc<Program>, part: &Part, cost: Cost) {
        self.uploaded = self.uploaded.max(part.recording.uploaded);
        self.pins.programs.push(Arc::clone(program));
        self.follows_program = true;
        self.add_cost(cost);
    }

    /// Names the newest command, for a profile.
    pub fn label(&mut self, label: Label) {
        self.labels.push(label);
    }

    /// Replaces the kernels of all commands.
    pub fn replace_kernels(&mut self, replace: impl Fn(KernelId) -> KernelId) {
        for step in &mut self.steps {
            if let Command::Dispatch { kernel, .. } = &mut step.command {
                *kernel = replace(*kernel);
            }
        }
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

    /// Returns the upload that a batch of these commands has to wait for (`Ticket(0)`: none).
    pub fn uploaded(&self) -> Ticket {
        self.uploaded
    }

    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    pub fn runs_program(&self) -> bool {
        !self.pins.programs.is_empty()
    }

    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Removes the commands after they have been submitted. A batch sees all work before it, so no hazards remain.
    /// Returns the pins and the names of the commands.
    pub fn clear(&mut self) -> (Pins, Vec<Label>) {
        self.steps.clear();
        (self.cost, self.follows_program) = Default::default();
        (self.number, self.uploaded) = (next_number(), Ticket(0));
        self.hazards.clear();
        (std::mem::take(&mut self.pins), std::mem::take(&mut self.labels))
    }
}
