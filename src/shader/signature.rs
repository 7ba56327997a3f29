//! [`Signature`]: what a kernel takes, by name.

use super::module::Access;
use crate::base::dtype::DType;
use std::fmt;

/// What a kernel takes: buffers and numbers, in the order of the arguments.
///
/// Buffers are bound in this order, the first one at binding 0. Numbers fill the words of the parameter block in this
/// order. The two kinds are counted separately.
///
/// ```
/// use marquetry::{DType, Signature};
/// let signature = Signature::new("scale")
///     .input("x", DType::F32)
///     .output("y", DType::F32)
///     .scalar("factor", DType::F32);
/// assert_eq!(signature.to_string(), "scale(x: f32 tensor, y: new f32 tensor, factor: f32 number)");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    kernel: String,
    slots: Vec<Slot>,
}

/// The place of one argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slot {
    pub name: String,
    pub kind: SlotKind,
}

impl Slot {
    pub fn is_buffer(&self) -> bool {
        matches!(self.kind, SlotKind::Buffer { .. })
    }

    /// Whether it is a number that fills a word of the parameter block.
    pub fn is_word(&self) -> bool {
        matches!(self.kind, SlotKind::Scalar(DType::F32 | DType::I32 | DType::U32))
    }
}

/// What an argument is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotKind {
    /// The elements of a tensor. An index of the kernel counts units of `element_bytes`.
    Buffer { dtype: DType, access: Access, element_bytes: u32 },
    /// A word of the parameter block.
    Scalar(DType),
}

impl Signature {
    /// Returns the signature of a kernel that takes nothing yet. The name is for messages.
    pub fn new(kernel: impl Into<String>) -> Self {
        Signature { kernel: kernel.into(), slots: Vec::new() }
    }

    /// Adds a tensor that the kernel reads: its elements in row-major order without gaps. Narrow dtypes are packed in
    /// words of 32 bits: four of `u8`, `i8` or `bool`, two of `f16` or `bf16`.
    pub fn input(self, name: &str, dtype: DType) -> Self {
        self.with_buffer(name, dtype, Access::Read)
    }

    /// Adds a new tensor that the kernel writes.
    pub fn output(self, name: &str, dtype: DType) -> Self {
        self.with_buffer(name, dtype, Access::Write)
    }

    /// Adds a tensor that the kernel reads and writes. It gets a copy.
    pub fn in_out(self, name: &str, dtype: DType) -> Self {
        self.with_buffer(name, dtype, Access::ReadWrite)
    }

    /// Adds a number of 32 bits: `f32`, `i32` or `u32`.
    pub fn scalar(mut self, name: &str, dtype: DType) -> Self {
        self.push(name, SlotKind::Scalar(dtype));
        self
    }

    fn with_buffer(mut self, name: &str, dtype: DType, access: Access) -> Self {
        self.push(name, SlotKind::Buffer { dtype, access, element_bytes: dtype.size_in_bytes() as u32 });
        self
    }

    pub(crate) fn push(&mut self, name: &str, kind: SlotKind) {
        self.slots.push(Slot { name: name.into(), kind });
    }

    /// Returns the kernel's name.
    pub fn kernel(&self) -> &str {
        &self.kernel
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Returns how the kernel uses each of its buffers.
    pub(crate) fn bindings(&self) -> impl Iterator<Item = Access> {
        self.slots.iter().filter_map(|slot| match slot.kind {
            SlotKind::Buffer { access, .. } => Some(access),
            SlotKind::Scalar(_) => None,
        })
    }
}

impl fmt::Display for SlotKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SlotKind::Buffer { dtype, access: Access::Read, .. } => write!(f, "{dtype} tensor"),
            SlotKind::Buffer { dtype, access: Access::Write, .. } => write!(f, "new {dtype} tensor"),
            SlotKind::Buffer { dtype, access: Access::ReadWrite, .. } => write!(f, "{dtype} tensor (copied)"),
            SlotKind::Scalar(dtype) => write!(f, "{dtype} number"),
        }
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots: Vec<_> = self.slots.iter().map(|slot| format!("{}: {}", slot.name, slot.kind)).collect();
        write!(f, "{}({})", self.kernel, slots.join(", "))
    }
}
