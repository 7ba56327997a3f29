//! [`Program`]: commands that were captured once and run any number of times.

use super::capture::{Captured, Held, Requirement};
use super::explain::ExplainedKernel;
use super::pool::{Buffer, Counted, Pool, PoolOwner};
use super::recording::Recording;
use crate::backend::contract::{Backend, Command, ProgramId, Step};
use crate::base::error::Result;
use std::sync::Arc;

/// Commands that run as one. Who runs them writes their inputs before and copies their results after each run.
pub(crate) struct Program {
    /// Each is small enough for a batch.
    pub parts: Vec<Part>,
    /// The kernels that it launches.
    pub launches: Vec<ExplainedKernel>,
    requirements: Vec<Box<dyn Requirement>>,
    backend: Arc<dyn Backend>,
    /// The buffers of tensors from outside: nobody else may get them.
    _inputs: Vec<Buffer>,
    /// The memory of all other buffers.
    pool: PoolOwner,
    _counted: Counted,
}

/// Some commands of a program.
pub(crate) struct Part {
    pub recording: Recording,
    /// The number of kernels that it launches, and of commands with a barrier before them.
    pub launches: u64,
    pub barriers: u64,
    /// `None` if the backend encodes them for each run.
    pub id: Option<ProgramId>,
}

impl Program {
    /// Prepares what has been captured for runs. `pool` is the program's own, and `device` is the pool of everybody
    /// else.
    pub fn new(captured: Captured, pool: PoolOwner, device: &Arc<Pool>, backend: Arc<dyn Backend>) -> Result<Program> {
        let Captured { recordings, inputs, launches, requirements, .. } = captured;
        let requirements = requirements.into_values().collect();
        let (inputs, counted) = (inputs.into_values().collect(), device.count(&pool));
        let parts = Vec::new();
        let mut program = Program { parts, launches, requirements, backend, _inputs: inputs, pool, _counted: counted };
        for recording in recordings {
            let id = program.backend.prepare(recording.steps())?;
            let is_launch = |step: &&Step| matches!(step.command, Command::Dispatch { .. });
            let launches = recording.steps().iter().filter(is_launch).count() as u64;
            let barriers = recording.steps().iter().filter(|step| step.barrier).count() as u64;
            program.parts.push(Part { recording, launches, barriers, id });
        }
        Ok(program)
    }

    /// Fails if something does not hold that each run requires. Else it holds until the result is dropped.
    pub fn hold(&self) -> Result<Vec<Box<dyn Held + '_>>> {
        self.requirements.iter().map(|requirement| requirement.hold()).collect()
    }

    /// Returns the pool that the program's own buffers are from.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.parts.iter().filter_map(|part| part.id).for_each(|id| self.backend.discard(id));
    }
}
