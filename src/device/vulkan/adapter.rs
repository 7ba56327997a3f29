//! Physical devices: which ones will do, and what they are.

use super::instance::{self, Instance, MINIMUM_API};
use crate::device::{BackendKind, DeviceInfo, DeviceKind, Features, Limits, powers_of_two, vendor_name};
use crate::error::Result;
use ash::{ext, khr, vk};

/// A physical device that this backend can open.
pub(super) struct Adapter {
    /// The driver's handle.
    pub physical: vk::PhysicalDevice,
    /// What the rest of the crate is told.
    pub info: DeviceInfo,
    /// The family of the one queue that is used.
    pub queue_family: u32,
    /// Its memory types and heaps.
    pub memory: vk::PhysicalDeviceMemoryProperties,
    /// The heap that device buffers come from.
    pub device_heap: usize,
    /// The unit in which memory that is not coherent is flushed and invalidated.
    pub non_coherent_atom: u64,
    /// Whether the extension for drivers that are not fully conformant is there and so must be enabled.
    pub portability_subset: bool,
}

/// Every usable device, in the order of the driver's enumeration: a device's index is its position here.
pub(super) fn all(instance: &Instance) -> Result<Vec<Adapter>> {
    // SAFETY: the instance is alive.
    let physical = unsafe { instance.raw.enumerate_physical_devices() }
        .map_err(|result| instance::unavailable(format_args!("vkEnumeratePhysicalDevices: {result}")))?;
    let mut adapters = Vec::new();
    let mut refused = Vec::new();
    for physical in physical {
        match Adapter::read(&instance.raw, physical, adapters.len()) {
            Ok(adapter) => adapters.push(adapter),
            Err(reason) => refused.push(reason),
        }
    }
    if !adapters.is_empty() {
        Ok(adapters)
    } else if refused.is_empty() {
        Err(instance::unavailable("no Vulkan device found"))
    } else {
        Err(instance::unavailable(format_args!("no Vulkan device is usable ({})", refused.join(", "))))
    }
}

impl Adapter {
    /// Reads a physical device, or says why it is not usable.
    fn read(instance: &ash::Instance, physical: vk::PhysicalDevice, index: usize) -> Result<Adapter, String> {
        // SAFETY: here and below, the physical device is of this instance.
        let base = unsafe { instance.get_physical_device_properties(physical) };
        let name = base.device_name_as_c_str().unwrap_or(c"unnamed").to_string_lossy().into_owned();
        if base.api_version < MINIMUM_API {
            let (major, minor) = (vk::api_version_major(base.api_version), vk::api_version_minor(base.api_version));
            return Err(format!("{name}: Vulkan {major}.{minor}, needs 1.2"));
        }
        // SAFETY: see above.
        let extensions = unsafe { instance.enumerate_device_extension_properties(physical) }
            .map_err(|result| format!("{name}: vkEnumerateDeviceExtensionProperties: {result}"))?;
        // SAFETY: see above.
        let families = unsafe { instance.get_physical_device_queue_family_properties(physical) };
        let queue_family = compute_family(&families).ok_or_else(|| format!("{name}: no compute queue"))?;

        let abilities = Abilities::read(instance, physical);
        if !abilities.timeline_semaphore {
            return Err(format!("{name}: no timeline semaphores"));
        }
        let properties = Properties::read(instance, physical, &base, &extensions);
        // SAFETY: see above.
        let memory = unsafe { instance.get_physical_device_memory_properties(physical) };
        let (device_heap, heap_size) = device_heap(&memory);
        let info = DeviceInfo {
            backend: BackendKind::Vulkan,
            index,
            name,
            vendor: vendor_name(base.vendor_id),
            kind: device_kind(base.device_type),
            driver: properties.driver,
            memory: heap_size,
            memory_regions: Vec::new(),
            host_visible: false,
            unified_memory: false,
            compute_units: None,
            sub_devices: 0,
            limits: properties.limits,
            features: Features { f16: abilities.f16, subgroups: properties.subgroups, timestamps: false },
        };
        Ok(Adapter {
            physical,
            info,
            queue_family,
            memory,
            device_heap,
            non_coherent_atom: base.limits.non_coherent_atom_size.max(1),
            portability_subset: instance::has_extension(&extensions, khr::portability_subset::NAME),
        })
    }
}

/// The switchable features that matter here.
struct Abilities {
    timeline_semaphore: bool,
    f16: bool,
}

impl Abilities {
    fn read(instance: &ash::Instance, physical: vk::PhysicalDevice) -> Abilities {
        let mut v11 = vk::PhysicalDeviceVulkan11Features::default();
        let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
        let mut all = vk::PhysicalDeviceFeatures2::default().push_next(&mut v11).push_next(&mut v12);
        // SAFETY: the device has the API version of the chained structures, which outlive the call.
        unsafe { instance.get_physical_device_features2(physical, &mut all) };
        Abilities {
            timeline_semaphore: v12.timeline_semaphore == vk::TRUE,
            f16: v11.storage_buffer16_bit_access == vk::TRUE && v12.shader_float16 == vk::TRUE,
        }
    }
}

/// The family of the compute queue. One without graphics is best: it does not stand in line behind the drawing of the
/// application or the desktop, and drivers watch it with more patience for long kernels.
fn compute_family(families: &[vk::QueueFamilyProperties]) -> Option<u32> {
    let find = |unwanted: vk::QueueFlags| {
        families.iter().zip(0..).find_map(|(family, index)| {
            let fits = family.queue_count > 0
                && family.queue_flags.contains(vk::QueueFlags::COMPUTE)
                && !family.queue_flags.intersects(unwanted);
            fits.then_some(index)
        })
    };
    find(vk::QueueFlags::GRAPHICS).or_else(|| find(vk::QueueFlags::empty()))
}

/// The largest device-local heap: its index and size. Device buffers come from that one alone; where there is a second,
/// it often is a window onto the first, so that a sum would count memory twice.
fn device_heap(memory: &vk::PhysicalDeviceMemoryProperties) -> (usize, u64) {
    let heaps = memory.memory_heaps_as_slice().iter().enumerate();
    heaps
        .filter(|(_, heap)| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL))
        .map(|(index, heap)| (index, heap.size))
        .max_by_key(|(_, size)| *size)
        .unwrap_or_default()
}

/// What sort of hardware the driver says it is.
fn device_kind(kind: vk::PhysicalDeviceType) -> DeviceKind {
    match kind {
        vk::PhysicalDeviceType::DISCRETE_GPU => DeviceKind::Discrete,
        vk::PhysicalDeviceType::INTEGRATED_GPU => DeviceKind::Integrated,
        vk::PhysicalDeviceType::VIRTUAL_GPU => DeviceKind::Virtual,
        vk::PhysicalDeviceType::CPU => DeviceKind::Cpu,
        _ => DeviceKind::Other,
    }
}

/// What the properties behind version 1.0 of the API tell.
struct Properties {
    driver: String,
    limits: Limits,
    subgroups: bool,
}

impl Properties {
    fn read(
        instance: &ash::Instance,
        physical: vk::PhysicalDevice,
        base: &vk::PhysicalDeviceProperties,
        extensions: &[vk::ExtensionProperties],
    ) -> Properties {
        let mut v11 = vk::PhysicalDeviceVulkan11Properties::default();
        let mut v12 = vk::PhysicalDeviceVulkan12Properties::default();
        let mut sizes = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
        let mut maintenance = vk::PhysicalDeviceMaintenance4Properties::default();
        let core = base.api_version >= vk::API_VERSION_1_3;
        let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut v11).push_next(&mut v12);
        if core || instance::has_extension(extensions, ext::subgroup_size_control::NAME) {
            all = all.push_next(&mut sizes);
        }
        if core || instance::has_extension(extensions, khr::maintenance4::NAME) {
            all = all.push_next(&mut maintenance);
        }
        // SAFETY: the device knows each chained structure by its version or extension, and all outlive the call.
        unsafe { instance.get_physical_device_properties2(physical, &mut all) };
        Properties {
            driver: driver(&v12),
            limits: limits(&base.limits, &v11, &sizes, &maintenance),
            subgroups: subgroups(&v11),
        }
    }
}

/// The driver's name and version.
fn driver(properties: &vk::PhysicalDeviceVulkan12Properties<'_>) -> String {
    let name = properties.driver_name_as_c_str().unwrap_or_default().to_string_lossy();
    let version = properties.driver_info_as_c_str().unwrap_or_default().to_string_lossy();
    format!("{name} {version}").trim().to_string()
}

/// Whether compute kernels have the subgroup operations of [`Features::subgroups`].
fn subgroups(properties: &vk::PhysicalDeviceVulkan11Properties<'_>) -> bool {
    properties.subgroup_supported_stages.contains(vk::ShaderStageFlags::COMPUTE)
        && properties.subgroup_supported_operations.contains(
            vk::SubgroupFeatureFlags::BASIC
                | vk::SubgroupFeatureFlags::VOTE
                | vk::SubgroupFeatureFlags::ARITHMETIC
                | vk::SubgroupFeatureFlags::BALLOT
                | vk::SubgroupFeatureFlags::SHUFFLE,
        )
}

/// The limits. A number that is 0 in the two last structures is one that the driver did not fill in.
fn limits(
    base: &vk::PhysicalDeviceLimits,
    v11: &vk::PhysicalDeviceVulkan11Properties<'_>,
    sizes: &vk::PhysicalDeviceSubgroupSizeControlProperties<'_>,
    maintenance: &vk::PhysicalDeviceMaintenance4Properties<'_>,
) -> Limits {
    let mut max_buffer = u64::from(base.max_storage_buffer_range).min(v11.max_memory_allocation_size);
    if maintenance.max_buffer_size != 0 {
        max_buffer = max_buffer.min(maintenance.max_buffer_size);
    }
    let (smallest, largest) = match (sizes.min_subgroup_size, sizes.max_subgroup_size) {
        (0, _) | (_, 0) => (v11.subgroup_size, v11.subgroup_size),
        known => known,
    };
    let [groups_x, groups_y, groups_z] = base.max_compute_work_group_count;
    Limits {
        max_buffer_bytes: max_buffer / 16 * 16,
        max_bindings: base.max_per_stage_descriptor_storage_buffers.min(base.max_descriptor_set_storage_buffers),
        max_parameter_words: base.max_push_constants_size / 4,
        max_workgroup_invocations: base.max_compute_work_group_invocations,
        max_workgroup_memory: base.max_compute_shared_memory_size,
        max_workgroup_size: base.max_compute_work_group_size,
        max_groups: groups_x.min(groups_y).min(groups_z),
        subgroup_sizes: powers_of_two(smallest, largest),
        buffer_alignment: base.min_storage_buffer_offset_alignment,
        copy_alignment: 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(flags: vk::QueueFlags) -> vk::QueueFamilyProperties {
        vk::QueueFamilyProperties { queue_flags: flags, queue_count: 1, ..Default::default() }
    }

    #[test]
    fn a_compute_family_without_graphics_is_preferred() {
        let all = family(vk::QueueFlags::GRAPHICS | vk::QueueFlags::COMPUTE | vk::QueueFlags::TRANSFER);
        let transfer = family(vk::QueueFlags::TRANSFER);
        let compute = family(vk::QueueFlags::COMPUTE | vk::QueueFlags::TRANSFER);
        assert_eq!(compute_family(&[all, transfer, compute]), Some(2));
        assert_eq!(compute_family(&[transfer, all]), Some(1));
        assert_eq!(compute_family(&[transfer]), None);
    }

    #[test]
    fn limits_take_the_smallest_bound_and_fall_back_where_a_driver_is_silent() {
        let base = vk::PhysicalDeviceLimits {
            max_storage_buffer_range: u32::MAX,
            max_push_constants_size: 128,
            max_compute_work_group_count: [1 << 31, 65_535, 70_000],
            ..Default::default()
        };
        let v11 = vk::PhysicalDeviceVulkan11Properties {
            max_memory_allocation_size: 1 << 33,
            subgroup_size: 32,
            ..Default::default()
        };
        let silent = limits(&base, &v11, &Default::default(), &Default::default());
        assert_eq!(silent.max_buffer_bytes, (1 << 32) - 16);
        assert_eq!(silent.max_parameter_words, 32);
        assert_eq!(silent.max_groups, 65_535);
        assert_eq!(silent.subgroup_sizes, [32]);

        let sizes = vk::PhysicalDeviceSubgroupSizeControlProperties {
            min_subgroup_size: 8,
            max_subgroup_size: 64,
            ..Default::default()
        };
        let maintenance = vk::PhysicalDeviceMaintenance4Properties { max_buffer_size: 1 << 20, ..Default::default() };
        let told = limits(&base, &v11, &sizes, &maintenance);
        assert_eq!(told.max_buffer_bytes, 1 << 20);
        assert_eq!(told.subgroup_sizes, [8, 16, 32, 64]);
    }
}
