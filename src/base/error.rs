//! The one error type of the crate.

use crate::base::backend_kind::BackendKind;
use crate::base::dtype::DType;
use crate::base::shape::Shape;
use std::path::PathBuf;

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong, with the facts needed to fix it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two shapes that an operation cannot combine.
    #[error("{op}: shapes {lhs} and {rhs} do not fit together; {hint}")]
    ShapeMismatch {
        /// The operation's name.
        op: &'static str,
        /// The first shape.
        lhs: Shape,
        /// The second shape.
        rhs: Shape,
        /// Which shapes it takes.
        hint: &'static str,
    },

    /// A tensor of the wrong rank.
    #[error("{op}: expected a tensor of {expected} dimensions, got shape {shape}")]
    RankMismatch {
        /// The operation's name.
        op: &'static str,
        /// The number of dimensions that it takes.
        expected: &'static str,
        /// The tensor's shape.
        shape: Shape,
    },

    /// A shape whose number of elements is not the number at hand.
    #[error("{op}: shape {shape} holds {} elements, but there are {elements}", shape.display_count())]
    ElementCount {
        /// The operation's name.
        op: &'static str,
        /// The shape asked for.
        shape: Shape,
        /// The number of elements at hand.
        elements: usize,
    },

    /// A read of elements as another type than they have.
    #[error(
        "{op}: the elements are {dtype}, not {asked}; read them with `{op}::<{dtype}>()`, or convert the tensor with \
         `to_dtype(DType::{asked:?})` first"
    )]
    ElementType {
        /// The operation's name.
        op: &'static str,
        /// The dtype asked for.
        asked: DType,
        /// The tensor's dtype.
        dtype: DType,
    },

    /// Two dtypes that an operation does not combine by itself.
    #[error("{op}: dtypes {lhs} and {rhs} differ; convert one side with `to_dtype(DType::{lhs:?})`")]
    DTypeMismatch {
        /// The operation's name.
        op: &'static str,
        /// The first dtype.
        lhs: DType,
        /// The second dtype.
        rhs: DType,
    },

    /// A dtype that an operation is not defined for.
    #[error("{op}: not defined for {dtype}; it takes {expected}, convert with `to_dtype`")]
    UnsupportedDType {
        /// The operation's name.
        op: &'static str,
        /// The tensor's dtype.
        dtype: DType,
        /// The dtypes that it takes.
        expected: &'static str,
    },

    /// Two tensors on different devices.
    #[error("{op}: tensors are on {lhs} and {rhs}; move one with `to_device`")]
    DeviceMismatch {
        /// The operation's name.
        op: &'static str,
        /// The first device.
        lhs: String,
        /// The second device.
        rhs: String,
    },

    /// An axis outside a tensor's rank.
    #[error("{op}: axis {axis} is out of range for shape {shape} ({})", shape.display_axes())]
    AxisOutOfRange {
        /// The operation's name.
        op: &'static str,
        /// The axis.
        axis: isize,
        /// The tensor's shape.
        shape: Shape,
    },

    /// The same axis given twice.
    #[error("{op}: axis {axis} is given twice")]
    DuplicateAxis {
        /// The operation's name.
        op: &'static str,
        /// The axis.
        axis: isize,
    },

    /// A range that leaves its axis.
    #[error("{op}: range {start}..{end} leaves axis {axis} of shape {shape}")]
    RangeOutOfBounds {
        /// The operation's name.
        op: &'static str,
        /// The axis.
        axis: usize,
        /// The first index.
        start: usize,
        /// The index behind the last one.
        end: usize,
        /// The tensor's shape.
        shape: Shape,
    },

    /// A size that this machine, or a 32-bit element index on the device, cannot hold.
    #[error("{op}: shape {shape} has more elements than the limit of {limit}")]
    SizeOverflow {
        /// The operation's name.
        op: &'static str,
        /// The shape.
        shape: Shape,
        /// The largest number of elements that is possible.
        limit: u64,
    },

    /// An argument outside its domain.
    #[error("{op}: {message}")]
    InvalidArgument {
        /// The operation's name.
        op: &'static str,
        /// What is wrong with it.
        message: String,
    },

    /// A call that would have to wait where it cannot: for anything in a browser, or for bytes of a file that come
    /// later.
    #[error("{op}: it would have to wait here; call `{twin}`, and await it")]
    WouldBlock {
        /// The operation's name.
        op: &'static str,
        /// The call that does the same without blocking.
        twin: &'static str,
    },

    /// Text that names no device.
    #[error(
        "`{text}` names no device; write `vulkan`, `webgpu` or `level-zero`, with an index if there are several, as in `vulkan:0`"
    )]
    InvalidDevice {
        /// The text.
        text: String,
    },

    /// An environment variable with a wrong value: not understood, for a feature that is not compiled in, or a folder
    /// that cannot be written. The process cannot open any device.
    #[error("environment variable {variable}: {message}")]
    Environment {
        /// The variable's name.
        variable: &'static str,
        /// What is wrong with its value, and which values are understood.
        message: String,
    },

    /// A backend that cannot be used on this machine or in this build.
    #[error("{backend} is not available: {reason}")]
    BackendUnavailable {
        /// The backend.
        backend: BackendKind,
        /// What is missing, and how to get it.
        reason: String,
    },

    /// No backend found any device.
    #[error("no usable device: {reasons}")]
    NoDevice {
        /// What each backend says.
        reasons: String,
    },

    /// Something that the device at hand cannot do.
    #[error("{device} does not support {feature}")]
    Unsupported {
        /// What it cannot do.
        feature: String,
        /// The device.
        device: String,
    },

    /// Device memory is exhausted, or a buffer is larger than the device allows. Existing tensors stay valid.
    #[error("out of memory: {}", explain_memory(*requested, *in_use, *limit))]
    OutOfMemory {
        /// The bytes asked for.
        requested: u64,
        /// The bytes in use.
        in_use: u64,
        /// The limit in bytes: of the memory, or of one buffer.
        limit: u64,
    },

    /// The device stopped working. Open it anew and create its tensors again.
    #[error("{device} was lost ({reason}); open the device anew")]
    DeviceLost {
        /// The device.
        device: String,
        /// What the driver says.
        reason: String,
    },

    /// A kernel that breaks the rules of the kernel language, or that a driver refused.
    #[error("kernel `{kernel}`: {message}")]
    Kernel {
        /// The kernel's name.
        kernel: String,
        /// What is wrong with it.
        message: String,
    },

    /// An argument that does not fit a kernel of the app: see [`Kernel::launch`](crate::Kernel::launch).
    #[error("kernel `{kernel}`, argument `{argument}`: {message}")]
    Argument {
        /// The kernel's name.
        kernel: String,
        /// The argument's name in the kernel's signature, or its number, counted from 1, as in `#3`.
        argument: String,
        /// What is wrong with it.
        message: String,
    },

    /// A file that the system failed to read or write.
    #[error("{}: {message}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What kind of failure it was.
        kind: std::io::ErrorKind,
        /// What the system says.
        message: String,
    },

    /// A file that breaks its format, or lacks what was asked for.
    #[error("{}: {message}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },

    /// A driver call that failed in a way that no other variant names.
    #[error("{backend}: {call} failed: {message}")]
    Driver {
        /// The backend.
        backend: BackendKind,
        /// The call that failed.
        call: &'static str,
        /// What the driver says.
        message: String,
    },

    /// A validation layer objected (`MARQUETRY_VALIDATION=1`).
    #[error("validation: {message}")]
    Validation {
        /// What the layer says.
        message: String,
    },
}

impl Error {
    /// Returns the operation that got a wrong argument or would block; the message starts with it. `None` for all other
    /// errors.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let error = Tensor::new([1f32, 2.0], &device)?.sum(3).unwrap_err();
    /// assert_eq!(error.op(), Some("sum"));
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    pub fn op(&self) -> Option<&'static str> {
        self.clone().op_mut().copied()
    }

    /// Returns a function that renames the operation of an error to `op`, the one that was called. For operations that
    /// others implement.
    pub(crate) fn named(op: &'static str) -> impl Fn(Error) -> Error {
        move |mut error| {
            if let Some(inner) = error.op_mut() {
                *inner = op;
            }
            error
        }
    }

    fn op_mut(&mut self) -> Option<&mut &'static str> {
        match self {
            Error::ShapeMismatch { op, .. }
            | Error::RankMismatch { op, .. }
            | Error::ElementCount { op, .. }
            | Error::ElementType { op, .. }
            | Error::DTypeMismatch { op, .. }
            | Error::UnsupportedDType { op, .. }
            | Error::DeviceMismatch { op, .. }
            | Error::AxisOutOfRange { op, .. }
            | Error::DuplicateAxis { op, .. }
            | Error::RangeOutOfBounds { op, .. }
            | Error::SizeOverflow { op, .. }
            | Error::InvalidArgument { op, .. }
            | Error::WouldBlock { op, .. } => Some(op),
            _ => None,
        }
    }
}

/// Fails in a browser, where the call `op` would block. `twin` does the same without blocking.
#[inline]
pub(crate) fn check_may_block(op: &'static str, twin: &'static str) -> Result<()> {
    if cfg!(native) { Ok(()) } else { Err(Error::WouldBlock { op, twin }) }
}

/// Explains what is missing. If one buffer alone exceeds the limit, dropping other tensors would not help.
fn explain_memory(requested: u64, in_use: u64, limit: u64) -> String {
    if requested > limit {
        return format!(
            "{requested} bytes requested for one buffer, but the device has room for at most {limit}; split the tensor, \
             as with `chunk`, and compute its parts one by one"
        );
    }
    format!("{requested} bytes requested, {in_use} in use, limit {limit}; drop tensors or call `Device::trim`")
}
