//! The one error type of the crate.

use crate::device::BackendKind;
use crate::dtype::DType;
use crate::shape::Shape;

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong, with the facts needed to mend it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two shapes that an operation cannot combine.
    #[error("{op}: shapes {lhs} and {rhs} do not fit together; {hint}")]
    ShapeMismatch { op: &'static str, lhs: Shape, rhs: Shape, hint: &'static str },

    /// A tensor of the wrong rank.
    #[error("{op}: expected a tensor of {expected} dimensions, got shape {shape}")]
    RankMismatch { op: &'static str, expected: &'static str, shape: Shape },

    /// A shape that holds another number of elements than there are.
    #[error("{op}: shape {shape} holds {} elements, but there are {elements}", shape.display_count())]
    ElementCount { op: &'static str, shape: Shape, elements: usize },

    /// Two dtypes that an operation does not combine by itself.
    #[error("{op}: dtypes {lhs} and {rhs} differ; convert one side with `to_dtype(DType::{lhs:?})`")]
    DTypeMismatch { op: &'static str, lhs: DType, rhs: DType },

    /// A dtype that an operation is not defined for.
    #[error("{op}: not defined for {dtype}; it takes {expected}, convert with `to_dtype`")]
    UnsupportedDType { op: &'static str, dtype: DType, expected: &'static str },

    /// Two tensors on different devices.
    #[error("{op}: tensors are on {lhs} and {rhs}; move one with `to_device`")]
    DeviceMismatch { op: &'static str, lhs: String, rhs: String },

    /// An axis outside of a tensor's rank.
    #[error("{op}: axis {axis} is out of range for shape {shape} (-{rank}..{rank})", rank = shape.rank())]
    AxisOutOfRange { op: &'static str, axis: isize, shape: Shape },

    /// The same axis given twice.
    #[error("{op}: axis {axis} is given twice")]
    DuplicateAxis { op: &'static str, axis: isize },

    /// A range that leaves its axis.
    #[error("{op}: range {start}..{end} leaves axis {axis} of shape {shape}")]
    RangeOutOfBounds { op: &'static str, axis: usize, start: usize, end: usize, shape: Shape },

    /// A size that this machine, or a 32-bit element index on the device, cannot hold.
    #[error("{op}: shape {shape} has more elements than the limit of {limit}")]
    SizeOverflow { op: &'static str, shape: Shape, limit: u64 },

    /// An argument outside of its domain.
    #[error("{op}: {message}")]
    InvalidArgument { op: &'static str, message: String },

    /// Text that names no device.
    #[error("`{text}` names no device; write `vulkan`, `webgpu` or `level-zero`, with an index if there are several, as in `vulkan:0`")]
    InvalidDevice { text: String },

    /// A backend that cannot be used on this machine or in this build.
    #[error("{backend} is not available: {reason}")]
    BackendUnavailable { backend: BackendKind, reason: String },

    /// No backend found any device.
    #[error("no usable device: {reasons}")]
    NoDevice { reasons: String },

    /// Something that the device at hand cannot do.
    #[error("{device} does not support {feature}")]
    Unsupported { feature: String, device: String },

    /// Device memory is exhausted; tensors that exist stay valid.
    #[error("out of memory: {requested} bytes requested, {in_use} in use, limit {limit}; drop tensors or call `Device::trim`")]
    OutOfMemory { requested: u64, in_use: u64, limit: u64 },

    /// The device stopped working; open it anew and create its tensors again.
    #[error("{device} was lost ({reason}); open the device anew")]
    DeviceLost { device: String, reason: String },

    /// A kernel that does not follow the rules of the kernel language, or that a driver refused.
    #[error("kernel `{kernel}`: {message}")]
    Kernel { kernel: String, message: String },

    /// A call of the driver failed in a way that has no name of its own here.
    #[error("{backend}: {call} failed: {message}")]
    Driver { backend: BackendKind, call: &'static str, message: String },

    /// A validation layer objected (`MARQUETRY_VALIDATION=1`).
    #[error("validation: {message}")]
    Validation { message: String },
}
