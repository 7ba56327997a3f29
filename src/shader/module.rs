//! A finished kernel: SPIR-V and what one must know to launch it.

use crate::device::Features;

/// How a kernel uses a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// The kernel only reads it.
    Read,
    /// The kernel only writes it.
    Write,
    /// The kernel does both.
    ReadWrite,
}

impl Access {
    /// Whether the kernel may read the buffer.
    pub const fn reads(self) -> bool {
        matches!(self, Access::Read | Access::ReadWrite)
    }

    /// Whether the kernel may write the buffer.
    pub const fn writes(self) -> bool {
        matches!(self, Access::Write | Access::ReadWrite)
    }
}

/// A generated kernel with one entry point, `main`.
///
/// In the Vulkan dialect buffer `i` is a storage buffer at set 0, binding `i`. The parameter block, an array of 32-bit
/// words, is either the push constants or a uniform buffer at the binding behind the last buffer, as the
/// [`Target`](super::Target) says. In the OpenCL dialect the kernel's arguments are the buffers as global pointers,
/// then one 32-bit scalar per parameter word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// The kernel's name, for messages and traces; the entry point is `main`.
    pub name: String,
    /// The SPIR-V words.
    pub spirv: Vec<u32>,
    /// How each buffer is used, in the order of the bindings.
    pub bindings: Vec<Access>,
    /// The length of the parameter block in words of 32 bits.
    pub parameter_words: usize,
    /// Invocations per workgroup in x, y and z.
    pub workgroup: [u32; 3],
    /// Bytes of workgroup memory.
    pub workgroup_memory: u32,
    /// The features that a device must have to run it.
    pub requires: Features,
}
