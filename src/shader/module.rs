//! A finished kernel: its code, and what one must know to launch it.

use crate::base::error::{Error, Result};
use crate::base::features::Features;
use crate::shader::ParameterBlock;

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

/// The code of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Code {
    /// SPIR-V words, for all devices. For WebGPU, naga translates them.
    Spirv(Vec<u32>),
    /// WGSL, for WebGPU only.
    Wgsl(String),
}

/// A kernel with one entry point.
///
/// In the Vulkan dialect, buffer `i` is a storage buffer at set 0, binding `i`. The parameter block is an array of
/// 32-bit words. It is either the push constants, or a uniform buffer at the binding behind the last buffer
/// ([`Target::parameters`](super::Target::parameters)).
///
/// In the OpenCL dialect, the kernel's arguments are the buffers as global pointers, then one 32-bit scalar per
/// parameter word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    pub(crate) name: String,
    /// Its code.
    pub(crate) code: Code,
    /// The name of the entry point: `main` in generated kernels.
    pub(crate) entry_point: String,
    pub(crate) bindings: Vec<Access>,
    pub(crate) parameter_words: usize,
    /// Where the parameter block is, in the Vulkan dialect and in WGSL.
    pub(crate) parameters: ParameterBlock,
    pub(crate) workgroup: [u32; 3],
    pub(crate) workgroup_memory: u32,
    pub(crate) requires: Features,
    /// Whether it keeps within its buffers by itself, as the kernels of this crate do. Then no checks are added.
    pub(crate) trusted: bool,
    pub(crate) large_registers: bool,
    /// Whether it is faster if its buffers are bound.
    pub(crate) prefers_bindings: bool,
    /// Whether a buffer of more than 4 GiB will be bound. Some compilers must know (Intel's).
    pub(crate) large_buffers: bool,
    /// Whether it reaches its buffers by addresses, which follow the parameters: see [`Target`](super::Target).
    pub(crate) addresses: bool,
}

impl Module {
    /// Returns the SPIR-V words.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the kernel is given as WGSL.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns how each buffer is used, in the order of the bindings.
    pub fn bindings(&self) -> &[Access] {
        &self.bindings
    }

    /// Returns the length of the parameter block in words of 32 bits.
    pub fn parameter_words(&self) -> usize {
        self.parameter_words
    }

    /// Returns the invocations per workgroup in x, y and z.
    pub fn workgroup(&self) -> [u32; 3] {
        self.workgroup
    }

    /// Returns the bytes of workgroup memory.
    pub fn workgroup_memory(&self) -> u32 {
        self.workgroup_memory
    }

    /// Returns the features that a device must have to run the kernel.
    pub fn requires(&self) -> Features {
        self.requires
    }

    /// Returns whether the kernel wants many registers for each of fewer invocations, if the device has that choice
    /// (Intel's GPUs).
    pub fn large_registers(&self) -> bool {
        self.large_registers
    }

    /// Returns the SPIR-V words. Their entry point is `main`.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the kernel is given as WGSL, which no [`KernelBuilder`](super::KernelBuilder) makes.
    pub fn spirv(&self) -> Result<&[u32]> {
        match &self.code {
            Code::Spirv(words) => Ok(words),
            Code::Wgsl(_) => {
                let message = "it is given as WGSL, which WebGPU devices take; give SPIR-V for this one".into();
                Err(Error::Kernel { kernel: self.name.clone(), message })
            }
        }
    }
}
