//! What a kernel is generated for.

use rspirv::spirv::AddressingModel;

/// The flavour of SPIR-V.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// `Shader`, logical addressing, GLSL.std.450: for Vulkan, and through naga for WGSL.
    Vulkan,
    /// `Kernel`, 64-bit physical addressing, OpenCL.std: for Level Zero and OpenCL.
    OpenCl,
}

/// Where the Vulkan dialect puts the parameter block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ParameterBlock {
    /// Push constants.
    PushConstants,
    /// A uniform buffer at the binding behind the last buffer.
    Uniform,
}

/// The form in which a device wants its kernels: [`Kernel::target`](crate::Kernel::target).
///
/// ```
/// use marquetry::shader::{Dialect, ParameterBlock, Target};
/// assert_eq!(Target::LEVEL_ZERO.dialect(), Dialect::OpenCl);
/// assert_eq!(Target::WEBGPU.parameters(), ParameterBlock::Uniform);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Target {
    pub(crate) dialect: Dialect,
    pub(crate) parameters: ParameterBlock,
    /// The number of lanes in a subgroup, for kernels that use subgroups, if it can be chosen (the OpenCL dialect).
    pub(crate) subgroup_size: Option<u32>,
    /// The number of lanes in a subgroup, for kernels that ask for [narrow
    /// ones](super::KernelBuilder::narrow_subgroups), if the compiler does not choose them by itself (the OpenCL
    /// dialect).
    pub(crate) narrow_lanes: Option<u32>,
    /// Whether buffers are reached by their addresses instead of being bound (the Vulkan dialect). Then no limit of a
    /// binding bounds them. The addresses follow the parameters in their block, two words for each buffer, the low one
    /// first.
    pub(crate) addresses: bool,
    /// Whether the driver's instruction unpacks halves, one step instead of a dozen. Few drivers are known to keep
    /// subnormal numbers and NaN.
    pub(crate) unpacks_halves: bool,
    /// Whether the device's own conversion packs halves, one step instead of two dozen. The device promises to round to
    /// the nearest and to keep subnormal halves, if kernels tell it to (SPIR-V's `RoundingModeRTE` and `DenormPreserve`
    /// for 16 bits).
    pub(crate) packs_halves: bool,
    /// Whether integer dot products use the device's instruction instead of single products. The device has
    /// [`Features::integer_dot_products`](crate::Features::integer_dot_products).
    pub(crate) integer_dot_products: bool,
    /// Whether two lanes of 32 bits are loaded and stored as one number of 64 bits. It is for software devices, which
    /// load a vector number by number. The device has [`Features::i64`](crate::Features::i64).
    pub(crate) loads_in_pairs: bool,
    /// If the invocations of a workgroup share nothing, this many do the work of all, in a loop (the Vulkan dialect).
    /// It is the number of lanes of a subgroup, for software devices whose subgroups all have as many.
    pub(crate) lanes_at_once: Option<u32>,
    /// Whether the kernel goes through WGSL, perhaps in a browser. WGSL cannot ask for unrolled loops, and bounds of
    /// loops around barriers have to come from parameters.
    pub(crate) wgsl: bool,
}

impl Target {
    /// Vulkan: push constants.
    pub const VULKAN: Target = Target {
        dialect: Dialect::Vulkan,
        parameters: ParameterBlock::PushConstants,
        subgroup_size: None,
        narrow_lanes: None,
        addresses: false,
        unpacks_halves: false,
        packs_halves: false,
        integer_dot_products: false,
        loads_in_pairs: false,
        lanes_at_once: None,
        wgsl: false,
    };
    /// WebGPU: the parameter block is a uniform buffer, which browsers have too.
    pub const WEBGPU: Target = Target {
        dialect: Dialect::Vulkan,
        parameters: ParameterBlock::Uniform,
        subgroup_size: None,
        narrow_lanes: None,
        addresses: false,
        unpacks_halves: false,
        packs_halves: false,
        integer_dot_products: false,
        loads_in_pairs: false,
        lanes_at_once: None,
        wgsl: true,
    };
    /// Level Zero and OpenCL; the compiler chooses the size of subgroups.
    pub const LEVEL_ZERO: Target = Target {
        dialect: Dialect::OpenCl,
        parameters: ParameterBlock::PushConstants,
        subgroup_size: None,
        narrow_lanes: None,
        addresses: false,
        unpacks_halves: false,
        packs_halves: false,
        integer_dot_products: false,
        loads_in_pairs: false,
        lanes_at_once: None,
        wgsl: false,
    };

    /// Returns the flavour of SPIR-V.
    pub const fn dialect(self) -> Dialect {
        self.dialect
    }

    /// Returns where the parameter block is. The OpenCL dialect passes it as kernel arguments.
    pub const fn parameters(self) -> ParameterBlock {
        self.parameters
    }

    /// Sets the number of lanes in a subgroup for kernels that ask for [narrow
    /// ones](super::KernelBuilder::narrow_subgroups).
    #[must_use]
    pub const fn narrow_lanes(mut self, lanes: u32) -> Self {
        self.narrow_lanes = Some(lanes);
        self
    }

    /// Sets whether integer dot products are the device's instruction: see
    /// [`Features::integer_dot_products`](crate::Features::integer_dot_products).
    #[must_use]
    pub const fn integer_dot_products(mut self, integer_dot_products: bool) -> Self {
        self.integer_dot_products = integer_dot_products;
        self
    }

    /// The form for launches with a buffer too large to be bound (`large`), or without one.
    pub(crate) fn for_buffers(self, large: bool) -> Target {
        Target { addresses: (self.addresses || large) && self.dialect == Dialect::Vulkan, ..self }
    }

    /// Returns how the Vulkan dialect points at memory.
    pub(super) fn addressing(self) -> AddressingModel {
        if self.addresses { AddressingModel::PhysicalStorageBuffer64 } else { AddressingModel::Logical }
    }
}
