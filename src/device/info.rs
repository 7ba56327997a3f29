//! What a device is and can do.

use std::fmt;

/// The three ways to reach a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum BackendKind {
    /// Vulkan 1.2 or newer.
    Vulkan,
    /// WebGPU through `wgpu`: Vulkan, Metal, Direct3D 12 or a browser beneath.
    WebGpu,
    /// oneAPI Level Zero.
    LevelZero,
}

impl BackendKind {
    /// Every backend, those not compiled in included.
    pub const ALL: [BackendKind; 3] = [BackendKind::Vulkan, BackendKind::WebGpu, BackendKind::LevelZero];

    /// The name as it is written in device strings: `vulkan`, `webgpu`, `level-zero`.
    pub const fn name(self) -> &'static str {
        match self {
            BackendKind::Vulkan => "vulkan",
            BackendKind::WebGpu => "webgpu",
            BackendKind::LevelZero => "level-zero",
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What sort of hardware a device is, best first: the order in which [`Device::best`](crate::Device::best) looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DeviceKind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the processor's memory.
    Integrated,
    /// A GPU seen through a virtual machine.
    Virtual,
    /// A driver that runs on the processor.
    Cpu,
    /// The driver does not tell.
    Other,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DeviceKind::Discrete => "discrete GPU",
            DeviceKind::Integrated => "integrated GPU",
            DeviceKind::Virtual => "virtual GPU",
            DeviceKind::Cpu => "CPU",
            DeviceKind::Other => "other",
        })
    }
}

/// Optional abilities: of a device, those it has; of a kernel, those it needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Features {
    /// 16-bit floats in storage buffers and in arithmetic.
    pub f16: bool,
    /// Subgroup arithmetic, ballot and shuffle in compute kernels.
    pub subgroups: bool,
}

impl Features {
    /// The first feature that `self` needs and `available` lacks.
    pub(crate) fn missing_from(&self, available: &Features) -> Option<&'static str> {
        if self.f16 && !available.f16 {
            Some("16-bit floats in kernels")
        } else if self.subgroups && !available.subgroups {
            Some("subgroup operations")
        } else {
            None
        }
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [(self.f16, "f16"), (self.subgroups, "subgroups")];
        let present: Vec<_> = names.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect();
        f.pad(&if present.is_empty() { "none".to_string() } else { present.join(", ") })
    }
}

/// Numbers that bound what a kernel or a buffer may be.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The largest buffer in bytes that a kernel can address, and so the largest tensor.
    pub max_buffer_bytes: u64,
    /// Storage buffers per kernel.
    pub max_bindings: u32,
    /// Words of 32 bits in a kernel's parameter block.
    pub max_parameter_words: u32,
    /// Invocations per workgroup, all dimensions multiplied.
    pub max_workgroup_invocations: u32,
    /// Bytes of workgroup memory per workgroup.
    pub max_workgroup_memory: u32,
    /// Workgroups per dimension of a dispatch.
    pub max_groups: u32,
    /// The smallest and largest number of lanes in a subgroup (1 and 1 where unknown).
    pub subgroup_size: (u32, u32),
}

/// A description of a device, from [`Device::list`](crate::Device::list) or [`Device::info`](crate::Device::info).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The backend that reaches it.
    pub backend: BackendKind,
    /// Its index in that backend, as in `vulkan:0`.
    pub index: usize,
    /// The name that the driver gives.
    pub name: String,
    /// The vendor's name, or its PCI id in hexadecimal if it is not a well-known one.
    pub vendor: String,
    /// What sort of hardware it is.
    pub kind: DeviceKind,
    /// The driver's name and version.
    pub driver: String,
    /// Bytes of device-local memory; 0 where the backend does not tell (WebGPU).
    pub memory: u64,
    /// Its limits.
    pub limits: Limits,
    /// Its optional abilities, as far as this crate uses them.
    pub features: Features,
}

impl DeviceInfo {
    /// The device string that opens this device: `vulkan:0`.
    pub fn id(&self) -> String {
        format!("{}:{}", self.backend, self.index)
    }
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} {} ({}, {})", self.backend, self.index, self.name, self.kind, self.driver)
    }
}

/// The vendor's name for a PCI vendor id.
pub(crate) fn vendor_name(id: u32) -> String {
    match id {
        0x1002 | 0x1022 => "AMD".into(),
        0x1010 => "Imagination".into(),
        0x106b => "Apple".into(),
        0x10de => "NVIDIA".into(),
        0x10005 => "Mesa".into(),
        0x13b5 => "Arm".into(),
        0x1414 => "Microsoft".into(),
        0x1ae0 => "Google".into(),
        0x5143 => "Qualcomm".into(),
        0x8086 => "Intel".into(),
        other => format!("{other:#06x}"),
    }
}
