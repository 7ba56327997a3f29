//! What a device is and can do.

use crate::base::backend_kind::BackendKind;
use crate::base::features::Features;
use std::fmt;

/// The kind of hardware, best first. [`Device::best`](crate::Device::best) looks in this order.
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
    /// The driver does not say.
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

/// The limits of kernels and buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The largest buffer in bytes that a kernel can address. So it is the largest tensor, too.
    pub max_buffer_bytes: u64,
    /// The largest buffer in bytes that can be bound to a kernel. The crate's own kernels reach larger buffers by
    /// address, and are compiled again for that.
    pub max_binding_bytes: u64,
    /// Storage buffers per kernel.
    pub max_bindings: u32,
    /// Words of 32 bits in a kernel's parameter block.
    pub max_parameter_words: u32,
    /// Invocations per workgroup, all dimensions multiplied.
    pub max_workgroup_invocations: u32,
    /// Bytes of workgroup memory per workgroup.
    pub max_workgroup_memory: u32,
    /// Invocations per workgroup in each dimension.
    pub max_workgroup_size: [u32; 3],
    /// Workgroups per dimension of a dispatch.
    pub max_groups: u32,
    /// The possible numbers of lanes in a subgroup, ascending. Empty if unknown.
    pub subgroup_sizes: Vec<u32>,
    /// The alignment of buffers in bytes.
    pub(crate) copy_alignment: u64,
    /// Words of 32 bits in a block that has a kernel's parameters and the addresses of its buffers. 0 if the device
    /// does not tell addresses.
    pub(crate) max_addressed_words: u32,
    /// Workgroups in the first dimension of a dispatch.
    pub(crate) max_groups_in_line: u32,
}

impl Limits {
    /// Returns the most workgroups in each dimension.
    pub(crate) fn max_groups(&self) -> [u32; 3] {
        [self.max_groups_in_line, self.max_groups, self.max_groups]
    }
}

/// The memory that holds a tensor's elements.
///
/// Kernels reach all kinds. On a device with [`DeviceInfo::unified_memory`] there is only one memory, so uploads to
/// `Device` are `Shared`. So may be uploads of at most 32 MiB to a GPU whose memory the host reaches as a whole, and
/// tensors of at most 16 bytes there: it writes and reads them in place. On a device without
/// [`DeviceInfo::host_visible`] (WebGPU, except software devices over Vulkan) all kinds are the same, and the host
/// reaches them by copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum MemoryKind {
    /// The device's own memory, the fastest for kernels. The host reaches it by copies.
    #[default]
    Device,
    /// The device's own memory, which the host reaches too. It is memory of an integrated GPU, unified shared memory
    /// that migrates, or the window that a GPU opens onto its memory. On a GPU without such a window, it is the host's.
    Shared,
    /// The host's memory, which kernels reach across the bus. For data that are read once, or do not fit elsewhere.
    Host,
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            MemoryKind::Device => "device",
            MemoryKind::Shared => "shared",
            MemoryKind::Host => "host",
        })
    }
}

/// One of a device's memories.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryRegion {
    /// The driver's name for it, or a description.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether it belongs to the device.
    pub device_local: bool,
    /// The width of its bus in bits, if the driver reports it.
    pub bus_width: Option<u32>,
    /// The clock of its bus in MHz, if the driver reports it.
    pub clock_mhz: Option<u32>,
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
    /// Bytes of device-local memory. 0 if the backend does not report it (WebGPU).
    pub memory: u64,
    /// All memories that the driver reports.
    pub memory_regions: Vec<MemoryRegion>,
    /// Whether the host reaches memory of the kinds [`MemoryKind::Shared`] and [`MemoryKind::Host`] without copies.
    pub host_visible: bool,
    /// Whether host and device share one memory. Uploads then stay where they are.
    pub unified_memory: bool,
    /// Compute units (streaming multiprocessors, Xe cores, cores of a processor), if the driver reports them.
    pub compute_units: Option<u32>,
    /// Parts of the device that can be used separately (tiles). 0 if it has none.
    pub sub_devices: u32,
    /// Its limits.
    pub limits: Limits,
    /// Its optional abilities, as far as this crate uses them.
    pub features: Features,
}

impl DeviceInfo {
    /// Returns an invented device, for tests without a device.
    #[cfg(test)]
    pub(crate) fn sample(backend: BackendKind, kind: DeviceKind, compute_units: Option<u32>) -> DeviceInfo {
        DeviceInfo {
            backend,
            index: 0,
            name: "Arc A770".into(),
            vendor: "Intel".into(),
            kind,
            driver: String::new(),
            memory: 16 << 30,
            memory_regions: Vec::new(),
            host_visible: true,
            unified_memory: false,
            compute_units,
            sub_devices: 0,
            limits: Limits {
                max_buffer_bytes: 4 << 30,
                max_binding_bytes: 4 << 30,
                max_bindings: 64,
                max_parameter_words: 64,
                max_workgroup_invocations: 1024,
                max_workgroup_memory: 65_536,
                max_workgroup_size: [1024; 3],
                max_groups: 65_535,
                subgroup_sizes: vec![8, 16, 32],
                copy_alignment: 1,
                max_addressed_words: 64,
                max_groups_in_line: 65_535,
            },
            features: Features { f16: true, timestamps: true, ..Features::default() },
        }
    }

    /// Returns the string that opens this device, such as `vulkan:0`.
    pub fn id(&self) -> String {
        format!("{}:{}", self.backend, self.index)
    }

    /// Returns whether the driver's own instruction is known to unpack halves exactly.
    pub(crate) fn unpacks_halves(&self) -> bool {
        ["NVIDIA", "Mesa"].contains(&&*self.vendor)
    }

    /// Returns whether the driver promises to round to halves as requested, and to keep subnormal halves. Only drivers
    /// that promise both have matrix units for `f16`.
    pub(crate) fn packs_halves(&self) -> bool {
        self.features.matrix_units.f16.is_some()
    }

    /// Returns whether subgroups consist of groups of eight lanes, which may exchange what they load.
    pub(crate) fn has_eights_of_lanes(&self) -> bool {
        let sizes = &self.limits.subgroup_sizes;
        self.features.subgroups && !sizes.is_empty() && sizes.iter().all(|size| [8, 16, 32].contains(size))
    }
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} {} ({}, {})", self.backend, self.index, self.name, self.kind, self.driver)
    }
}

/// Returns whether kernels use a device's instruction for integer dot products: if it is fast, or as `MARQUETRY_FORCE`
/// says. Tests force both ways.
pub(crate) fn uses_dot_products(there: bool, fast: bool) -> bool {
    there && crate::base::environment::settings().force.dot_products.unwrap_or(fast)
}

/// Returns whether kernels use a device's atomic sums of floats: unless `MARQUETRY_FORCE` says otherwise.
pub(crate) fn uses_float_atomics(there: bool) -> bool {
    there && !crate::base::environment::settings().force.no_float_atomics
}

/// Returns the vendor's name for a PCI vendor id.
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

/// Returns the powers of two from `smallest` to `largest`, both included. Empty if one of them is 0.
pub(crate) fn powers_of_two(smallest: u32, largest: u32) -> Vec<u32> {
    let next = |size: &u32| size.checked_mul(2).filter(|size| *size <= largest);
    std::iter::successors((1..=largest).contains(&smallest).then_some(smallest), next).collect()
}
