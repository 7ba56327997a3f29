//! Physical devices: which ones are usable, and what they are.

use super::extensions::Extensions;
use super::instance::{self, Instance, MINIMUM_API};
use super::properties::Properties;
use crate::backend::info::{DeviceInfo, DeviceKind, MemoryRegion, vendor_name};
use crate::backend::units;
use crate::base::backend_kind::BackendKind;
use crate::base::environment;
use crate::base::error::Result;
use crate::base::features::{Features, MatrixUnits};
use ash::vk;
use smallvec::SmallVec;

/// A physical device that this backend can open.
pub(super) struct Adapter {
    /// The driver's handle.
    pub physical: vk::PhysicalDevice,
    /// The description for the rest of the crate.
    pub info: DeviceInfo,
    /// The properties of version 1.0 of the API.
    pub base: vk::PhysicalDeviceProperties,
    /// The optional extensions that it has and that are used.
    pub extensions: Extensions,
    /// Whether kernels can reach buffers by their addresses.
    pub addresses: bool,
    /// The family of the queue for kernels.
    pub queue_family: u32,
    /// The family of the queue that only copies, if there is one.
    pub copy_family: Option<u32>,
    /// The number of bits that the queues' timestamps have; 0 if they have none.
    pub timestamp_bits: u32,
    /// Its memory types and heaps.
    pub memory: vk::PhysicalDeviceMemoryProperties,
    /// The heap that device buffers come from.
    pub device_heap: usize,
}

/// Returns every usable device, in the order of the driver's enumeration. A device's index is its position here.
pub(super) fn all(instance: &Instance) -> Result<Vec<Adapter>> {
    // SAFETY: the instance is alive.
    let physical = unsafe { instance.raw.enumerate_physical_devices() }
        .map_err(|result| instance::unavailable(format_args!("vkEnumeratePhysicalDevices: {result}")))?;
    let mut adapters = Vec::new();
    let mut refused = Vec::new();
    for physical in physical {
        match Adapter::read(instance, physical, adapters.len()) {
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
    /// Returns the families of all queues. No two are the same.
    pub fn families(&self) -> SmallVec<[u32; 2]> {
        let copies = self.copy_family.filter(|family| *family != self.queue_family);
        std::iter::once(self.queue_family).chain(copies).collect()
    }

    /// Reads a physical device, or says why it is not usable.
    fn read(instance: &Instance, physical: vk::PhysicalDevice, index: usize) -> Result<Adapter, String> {
        let raw = &instance.raw;
        // SAFETY: here and below, the physical device is of this instance.
        let base = unsafe { raw.get_physical_device_properties(physical) };
        let name = base.device_name_as_c_str().unwrap_or(c"unnamed").to_string_lossy().into_owned();
        if base.api_version < MINIMUM_API {
            let (major, minor) = (vk::api_version_major(base.api_version), vk::api_version_minor(base.api_version));
            return Err(format!("{name}: Vulkan {major}.{minor}, needs 1.2"));
        }
        // SAFETY: see above.
        let offered = unsafe { raw.enumerate_device_extension_properties(physical) }
            .map_err(|result| format!("{name}: vkEnumerateDeviceExtensionProperties: {result}"))?;
        // SAFETY: see above.
        let families = unsafe { raw.get_physical_device_queue_family_properties(physical) };
        let queue_family = units::compute_family(&families).ok_or_else(|| format!("{name}: no compute queue"))?;
        let timestamp_bits = families.get(queue_family as usize).map_or(0, |family| family.timestamp_valid_bits);

        let copy_family = match environment::settings().force.copy_queue {
            None => copy_family(&families, timestamp_bits),
            Some(true) => copy_family(&families, timestamp_bits).or(Some(queue_family)),
            Some(false) => None,
        };

        let abilities = Abilities::read(raw, physical);
        if !abilities.timeline_semaphore {
            return Err(format!("{name}: no timeline semaphores"));
        }
        let properties = Properties::read(raw, physical, &base, &offered, abilities.addresses);
        // SAFETY: see above.
        let memory = unsafe { raw.get_physical_device_memory_properties(physical) };
        let (device_heap, heap_size) = device_heap(&memory);
        let kind = device_kind(base.device_type);
        let mut info = DeviceInfo {
            backend: BackendKind::Vulkan,
            index,
            name,
            vendor: vendor_name(base.vendor_id),
            kind,
            driver: properties.driver,
            memory: heap_size,
            memory_regions: memory_regions(&memory),
            host_visible: true,
            unified_memory: is_unified(kind, &memory, device_heap),
            // SAFETY: see above.
            compute_units: unsafe { units::compute_units(raw, physical, &offered) },
            sub_devices: 0,
            limits: properties.limits,
            features: Features {
                f16: abilities.f16,
                i64: abilities.i64,
                f64: abilities.f64,
                subgroups: properties.subgroups,
                matrix_units: MatrixUnits::default(),
                integer_dot_products: false,
                atomics: true,
                float_atomics: false,
                memory_model: abilities.memory_model,
                timestamps: timestamp_bits > 0 && base.limits.timestamp_period > 0.0,
            },
        };
        let extensions = Extensions::read(instance, physical, &base, &offered);
        info.features.integer_dot_products = extensions.dot_products;
        info.features.float_atomics = extensions.float_atomics;
        // Kernels on matrix units need subgroups of 32 lanes.
        if info.limits.subgroup_sizes == [32] {
            info.features.matrix_units = extensions.matrix_units;
        }
        let addresses = abilities.addresses;
        Ok(Adapter {
            physical,
            info,
            base,
            extensions,
            addresses,
            queue_family,
            copy_family,
            timestamp_bits,
            memory,
            device_heap,
        })
    }
}

/// Returns the family of a queue that only copies, with timestamps as wide as those of the queue for kernels. Its
/// copies run beside kernels.
fn copy_family(families: &[vk::QueueFamilyProperties], timestamp_bits: u32) -> Option<u32> {
    families.iter().zip(0..).find_map(|(family, index)| {
        let besides = vk::QueueFlags::SPARSE_BINDING | vk::QueueFlags::PROTECTED;
        let fits = family.queue_count > 0
            && (family.queue_flags & !besides) == vk::QueueFlags::TRANSFER
            && family.timestamp_valid_bits == timestamp_bits;
        fits.then_some(index)
    })
}

/// The optional features that are used.
struct Abilities {
    timeline_semaphore: bool,
    addresses: bool,
    memory_model: bool,
    f16: bool,
    i64: bool,
    f64: bool,
}

impl Abilities {
    fn read(instance: &ash::Instance, physical: vk::PhysicalDevice) -> Abilities {
        let mut v11 = vk::PhysicalDeviceVulkan11Features::default();
        let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
        let mut all = vk::PhysicalDeviceFeatures2::default().push_next(&mut v11).push_next(&mut v12);
        // SAFETY: the device has the API version of the chained structures, which outlive the call.
        unsafe { instance.get_physical_device_features2(physical, &mut all) };
        let base = all.features;
        Abilities {
            timeline_semaphore: v12.timeline_semaphore == vk::TRUE,
            // Kernels compute addresses in 64 bits.
            addresses: v12.buffer_device_address == vk::TRUE && base.shader_int64 == vk::TRUE,
            // Other kernels' atomic operations are of the whole device.
            memory_model: [v12.vulkan_memory_model, v12.vulkan_memory_model_device_scope] == [vk::TRUE; 2],
            f16: v11.storage_buffer16_bit_access == vk::TRUE && v12.shader_float16 == vk::TRUE,
            i64: base.shader_int64 == vk::TRUE,
            f64: base.shader_float64 == vk::TRUE,
        }
    }
}

/// Returns the index and size of the largest device-local heap. Device buffers come only from this heap. A second one
/// is often a window onto the first, so a sum would count memory twice.
fn device_heap(memory: &vk::PhysicalDeviceMemoryProperties) -> (usize, u64) {
    let heaps = memory.memory_heaps_as_slice().iter().enumerate();
    heaps
        .filter(|(_, heap)| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL))
        .map(|(index, heap)| (index, heap.size))
        .max_by_key(|(_, size)| *size)
        .unwrap_or_default()
}

/// Describes the heaps for the rest of the crate.
fn memory_regions(memory: &vk::PhysicalDeviceMemoryProperties) -> Vec<MemoryRegion> {
    let heaps = memory.memory_heaps_as_slice().iter().enumerate();
    heaps
        .map(|(index, heap)| {
            let device_local = heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL);
            let place = if device_local { "device-local" } else { "host" };
            let name = format!("{place} heap {index}");
            MemoryRegion { name, bytes: heap.size, device_local, bus_width: None, clock_mhz: None }
        })
        .collect()
}

/// Returns whether the device has only the host's memory, so that the host reaches device buffers. A discrete GPU may
/// also open all of its memory to the host, but that memory lies behind a bus.
fn is_unified(kind: DeviceKind, memory: &vk::PhysicalDeviceMemoryProperties, device_heap: usize) -> bool {
    let reached = memory.memory_types_as_slice().iter().any(|kind| {
        kind.heap_index as usize == device_heap && kind.property_flags.contains(vk::MemoryPropertyFlags::HOST_VISIBLE)
    });
    reached && matches!(kind, DeviceKind::Integrated | DeviceKind::Cpu)
}

/// Returns the kind of hardware that the driver reports.
fn device_kind(kind: vk::PhysicalDeviceType) -> DeviceKind {
    match kind {
        vk::PhysicalDeviceType::DISCRETE_GPU => DeviceKind::Discrete,
        vk::PhysicalDeviceType::INTEGRATED_GPU => DeviceKind::Integrated,
        vk::PhysicalDeviceType::VIRTUAL_GPU => DeviceKind::Virtual,
        vk::PhysicalDeviceType::CPU => DeviceKind::Cpu,
        _ => DeviceKind::Other,
    }
}
