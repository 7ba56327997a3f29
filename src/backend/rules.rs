//! Rules of the contract that a backend checks before it records a step.

use crate::backend::contract::{BufferId, KernelId, ProgramId, Region};
use crate::backend::slots::Slots;
use crate::base::error::{Error, Result};

/// Returns the error for a number that names no buffer.
pub(crate) fn unknown_buffer(op: &'static str, buffer: BufferId) -> Error {
    Error::InvalidArgument { op, message: format!("{buffer:?} does not exist") }
}

/// Looks up a buffer for a step.
pub(crate) fn find_buffer<B>(buffers: &Slots<B>, id: BufferId) -> Result<&B> {
    buffers.get(id.0).ok_or_else(|| unknown_buffer("submit", id))
}

/// Looks up a kernel for a step.
pub(crate) fn find_kernel<K>(kernels: &[K], id: KernelId) -> Result<&K> {
    let kernel = usize::try_from(id.0).ok().and_then(|index| kernels.get(index));
    kernel.ok_or_else(|| invalid_step(format!("{id:?} does not exist")))
}

/// Looks up a program for a step.
pub(crate) fn find_program<P>(programs: &Slots<P>, id: ProgramId) -> Result<&P> {
    programs.get(id.0).ok_or_else(|| invalid_step(format!("{id:?} does not exist")))
}

/// Looks up the two buffers of a copy.
pub(crate) fn find_sides<B>(buffers: &Slots<B>, src: BufferId, dst: BufferId) -> Result<[&B; 2]> {
    if src == dst {
        return Err(invalid_step("a copy within one buffer: two are needed".into()));
    }
    Ok([find_buffer(buffers, src)?, find_buffer(buffers, dst)?])
}

/// Checks a copy between two buffers of these sizes.
pub(crate) fn check_copy(region: &Region, src_bytes: u64, dst_bytes: u64) -> Result<()> {
    region.check(src_bytes, dst_bytes).map_err(|reason| invalid_step(format!("a copy cannot be done: {reason}")))
}

/// Returns the error for a step that breaks a rule of the contract.
fn invalid_step(message: String) -> Error {
    Error::InvalidArgument { op: "submit", message }
}

/// The arguments that a kernel takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Signature<'a> {
    /// Its name, for messages.
    pub name: &'a str,
    /// The number of buffers.
    pub bindings: usize,
    /// The number of 32-bit words in its parameter block.
    pub parameter_words: usize,
}

impl Signature<'_> {
    /// Checks the arguments of a dispatch. `max_groups` limits the workgroups in each dimension.
    pub fn check(&self, buffers: usize, words: usize, groups: [u32; 3], max_groups: [u32; 3]) -> Result<()> {
        let complain = |message| Err(Error::Kernel { kernel: self.name.into(), message });
        if buffers != self.bindings {
            return complain(format!("takes {} buffers, got {buffers}", self.bindings));
        }
        if words != self.parameter_words {
            return complain(format!("takes {} parameter words, got {words}", self.parameter_words));
        }
        if groups.iter().zip(max_groups).any(|(count, most)| *count > most) {
            let possible = format!("of which {max_groups:?} are possible");
            return complain(format!("launched on {groups:?} workgroups, {possible}"));
        }
        Ok(())
    }
}
