//! What a kernel is generated for.

use rspirv::spirv::AddressingModel;

/// The flavour of SPIR-V.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// `Shader`, logical addressing, GLSL.std.450: for Vulkan, and through naga for WGSL.
    Vulkan,
    /// `Kernel`, 64-bit physical addressing, OpenCL.std: for Level Zero and OpenCL.
    OpenCl,
}

/// Where the Vulkan dialect puts the parameter block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ParameterBlock {
    /// Push constants.
    PushConstants,
    /// A uniform buffer at the binding behind the last buffer.
    Uniform,
}

/// The form in which a device wants its kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Target {
    /// The flavour of SPIR-V.
    pub dialect: Dialect,
    /// Where the parameter block is. The OpenCL dialect passes it as kernel arguments.
    pub parameters: ParameterBlock,
    /// The number of lanes in a subgroup, for kernels that use subgroups, if it can be chosen (the OpenCL dialect).
    pub subgroup_size: Option<u32>,
    /// Whether buffers are reached by their addresses instead of being bound (the Vulkan dialect). Then no limit of a
    /// binding bounds them. The addresses follow the parameters in their block, two words for each buffer, the low one
    /// first.
    pub addresses: bool,
    /// Whether the driver's instruction unpacks halves, one step instead of a dozen. Few drivers are known to keep
    /// subnormal numbers and NaN.
    pub unpacks_halves: bool,
    /// Whether the device's own conversion packs halves, one step instead of two dozen. The device promises to round to
    /// the nearest and to keep subnormal halves, if kernels tell it to (SPIR-V's `RoundingModeRTE` and `DenormPreserve`
    /// for 16 bits).
    pub packs_halves: bool,
    /// Whether integer dot products use the device's instruction instead of single products. The device has
    /// [`Features::integer_dot_products`](crate::Features::integer_dot_products).
    pub integer_dot_products: bool,
    /// Whether the kernel goes through WGSL, perhaps in a browser. WGSL cannot ask for unrolled loops, and bounds of
    /// loops around barriers have to come from parameters.
    pub wgsl: bool,
}

impl Target {
    /// Vulkan: push constants.
    pub const VULKAN: Target = Target {
        dialect: Dialect::Vulkan,
        parameters: ParameterBlock::PushConstants,
        subgroup_size: None,
        addresses: false,
        unpacks_halves: false,
        packs_halves: false,
        integer_dot_products: false,
        wgsl: false,
    };
    /// WebGPU: the parameter block is a uniform buffer, which browsers have too.
    pub const WEBGPU: Target = Target {
        dialect: Dialect::Vulkan,
        parameters: ParameterBlock::Uniform,
        subgroup_size: None,
        addresses: false,
        unpacks_halves: false,
        packs_halves: false,
        integer_dot_products: false,
        wgsl: true,
    };
    /// Level Zero and OpenCL; the compiler chooses the size of subgroups.
    pub const LEVEL_ZERO: Target = Target {
        dialect: Dialect::OpenCl,
        parameters: ParameterBlock::PushConstants,
        subgroup_size: None,
        addresses: false,
        unpacks_halves: false,
        packs_halves: false,
        integer_dot_products: false,
        wgsl: false,
    };

    /// Returns the form for launches with a buffer too large to be bound (`large`), or without one.
    pub(crate) fn for_buffers(self, large: bool) -> Target {
        Target { addresses: large && self.dialect == Dialect::Vulkan, ..self }
    }

    /// Returns how the Vulkan dialect points at memory.
    pub(super) fn addressing(self) -> AddressingModel {
        if self.addresses { AddressingModel::PhysicalStorageBuffer64 } else { AddressingModel::Logical }
    }
}
