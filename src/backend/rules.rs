//! Rules of the contract that a backend checks before it records a step.

use crate::backend::contract::BufferId;
use crate::base::error::{Error, Result};

/// The error for a number that names no buffer.
pub(crate) fn unknown_buffer(op: &'static str, buffer: BufferId) -> Error {
    Error::InvalidArgument { op, message: format!("{buffer:?} does not exist") }
}

/// The error for a step that breaks a rule of the contract.
pub(crate) fn invalid_step(message: String) -> Error {
    Error::InvalidArgument { op: "submit", message }
}

/// What a kernel takes.
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
    /// Checks what a dispatch hands over. `max_groups` bounds the workgroups in each dimension.
    pub fn check(&self, buffers: usize, words: usize, groups: [u32; 3], max_groups: u32) -> Result<()> {
        let complain = |message| Err(Error::Kernel { kernel: self.name.into(), message });
        if buffers != self.bindings {
            return complain(format!("takes {} buffers, got {buffers}", self.bindings));
        }
        if words != self.parameter_words {
            return complain(format!("takes {} parameter words, got {words}", self.parameter_words));
        }
        if groups.iter().any(|count| *count > max_groups) {
            let possible = format!("of which {max_groups} are possible per dimension");
            return complain(format!("launched on {groups:?} workgroups, {possible}"));
        }
        Ok(())
    }
}
