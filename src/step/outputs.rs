//! [`Outputs`]: what a run of a step returns.

use super::argument::write_list;
use crate::base::error::{Error, Result};
use crate::tensor::Tensor;
use std::fmt;
use std::sync::Arc;

/// The outputs of a run of a [`Step`](crate::Step).
#[derive(Clone)]
pub struct Outputs {
    pub(super) names: Arc<[String]>,
    pub(super) tensors: Vec<Tensor>,
}

impl Outputs {
    /// Returns an output by its name.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if no output has this name.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        let place = self.names.iter().position(|known| known == name);
        place.map(|place| &self.tensors[place]).ok_or_else(|| {
            let message = format!("there is no output `{name}`; the step has {self}");
            Error::InvalidArgument { op: "get", message }
        })
    }

    /// Returns the outputs in the order in which the closure returned them.
    pub fn into_tensors(self) -> Vec<Tensor> {
        self.tensors
    }
}

impl fmt::Display for Outputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensors = self.names.iter().zip(&self.tensors);
        write_list(f, tensors.map(|(name, tensor)| (&**name, tensor.dtype(), tensor.shape())))
    }
}

impl fmt::Debug for Outputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Outputs({self})")
    }
}
