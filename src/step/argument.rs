//! [`Argument`]: a named tensor of a step.

use super::CAPTURE;
use crate::backend::contract::BufferId;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::base::shape::Shape;
use crate::device::Device;
use crate::engine::pool::Buffer;
use crate::lazy::{PlannedTransfer, Transfer, View};
use crate::tensor::Tensor;
use std::fmt;
use std::sync::OnceLock;

/// A named tensor of a step.
pub(super) struct Argument {
    pub name: String,
    pub view: View,
    /// The quad of a scalar in its block of scalars.
    pub quad: Option<usize>,
    /// The copies from a dense tensor to this one, and back.
    dense_copies: OnceLock<[PlannedTransfer; 2]>,
}

impl Argument {
    pub fn new(name: String, view: View, quad: Option<usize>) -> Self {
        Argument { name, view, quad, dense_copies: OnceLock::new() }
    }

    pub fn id(&self) -> Result<BufferId> {
        Ok(self.view.buffer()?.allocation().id())
    }

    /// Fails if a tensor cannot be the value of this argument.
    pub fn check(&self, value: &Tensor, what: &str, op: &'static str) -> Result<()> {
        let View { dtype, .. } = self.view;
        if value.shape() == self.view.shape() && value.dtype() == dtype {
            return Ok(());
        }
        let (name, shape) = (&self.name, self.view.shape());
        let (got, of) = (value.dtype(), value.shape());
        let message = format!("the {what} `{name}` is {dtype} of shape {shape}, got {got} of shape {of}");
        Err(Error::InvalidArgument { op, message })
    }

    /// Copies a tensor's elements to the argument's memory.
    pub fn set(&self, value: &Tensor) -> Result<()> {
        let value: &View = value.as_ref();
        if value.elem_count() == 0 {
            return Ok(());
        }
        let (from, to, device) = (value.buffer()?, self.view.buffer()?, value.device());
        match value.layout() {
            layout if layout.offset == 0 && layout.is_contiguous() => self.dense_copies()?[0].run(from, to, device),
            layout => Transfer::new(layout, self.view.layout(), value.dtype.size_in_bytes()).run(from, to, device),
        }
    }

    /// Returns a new tensor of the elements that the argument has now.
    pub fn get(&self, buffer: Buffer) -> Result<Tensor> {
        let View { dtype, .. } = self.view;
        if self.view.elem_count() > 0 {
            self.dense_copies()?[1].run(self.view.buffer()?, &buffer, self.view.device())?;
        }
        Ok(Tensor::from_buffer(buffer, self.view.shape().clone(), dtype, self.view.device()))
    }

    fn dense_copies(&self) -> Result<&[PlannedTransfer; 2]> {
        if let Some(planned) = self.dense_copies.get() {
            return Ok(planned);
        }
        let (own, dense) = (self.view.layout(), Layout::contiguous(self.view.shape().clone()));
        let plan = |from, to| Transfer::new(from, to, self.view.dtype.size_in_bytes()).plan(self.view.device());
        let planned = [plan(&dense, own)?, plan(own, &dense)?];
        Ok(self.dense_copies.get_or_init(|| planned))
    }
}

/// Finds an argument by its name.
pub(super) fn position(arguments: &[Argument], name: &str, what: &str, op: &'static str) -> Result<usize> {
    arguments.iter().position(|argument| argument.name == name).ok_or_else(|| {
        let message = format!("there is no {what} `{name}`; the step has {}", Names(arguments));
        Error::InvalidArgument { op, message }
    })
}

/// Fails if a tensor is on another device than the step.
pub(super) fn check_device(tensor: &Tensor, device: &Device, op: &'static str) -> Result<()> {
    if tensor.device() == device {
        return Ok(());
    }
    Err(Error::DeviceMismatch { op, lhs: device.to_string(), rhs: tensor.device().to_string() })
}

/// Fails if an argument has this name.
pub(super) fn check_new<'a>(arguments: impl IntoIterator<Item = &'a Argument>, name: &str) -> Result<()> {
    if arguments.into_iter().all(|argument| argument.name != name) {
        return Ok(());
    }
    let message = format!("two arguments are named `{name}`; give each a name of its own");
    Err(Error::InvalidArgument { op: CAPTURE, message })
}

/// Prints arguments: `x: f32 [1, 2], scale: f32 []`.
pub(super) struct Names<'a>(pub &'a [Argument]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(f, self.0.iter().map(|Argument { name, view, .. }| (&**name, view.dtype, view.shape())))
    }
}

/// Writes names, dtypes and shapes.
pub(super) fn write_list<'a>(
    f: &mut fmt::Formatter<'_>,
    tensors: impl ExactSizeIterator<Item = (&'a str, DType, &'a Shape)>,
) -> fmt::Result {
    if tensors.len() == 0 {
        return f.write_str("none");
    }
    for (place, (name, dtype, shape)) in tensors.enumerate() {
        let comma = if place > 0 { ", " } else { "" };
        write!(f, "{comma}`{name}` ({dtype} of shape {shape})")?;
    }
    Ok(())
}
