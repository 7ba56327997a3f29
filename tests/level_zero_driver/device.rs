//! The driver and its devices. All devices are the one processor that OpenCL offers, described as a GPU.

use crate::Outcome;
use crate::faults::settings;
use crate::ffi::*;
use crate::opencl::{self, DeviceQuery, opencl};
use crate::pointer::{Pointer, copy_text, list, list_with};
use crate::report::{self, misuse};
use crate::{guard, progress, tables};
use std::ffi::c_void;
use std::sync::OnceLock;

/// The interface version through Debian 12's loader.
const LOADER_API: ApiVersion = ApiVersion::new(1, 4);
/// The interface version if an application opens this library directly. It has `zeInitDrivers`.
const DIRECT_API: ApiVersion = ApiVersion::new(1, 10);

const DRIVER: DriverHandle = DriverHandle(0x7d00_0000_0000_0000 as *mut c_void);
const FIRST_DEVICE: usize = 0x7d00_0000_0000_1000;

/// The interface version that the driver reports.
pub fn api_version() -> ApiVersion {
    let usual = if tables::is_opened_directly() { DIRECT_API } else { LOADER_API };
    settings().api.unwrap_or(usual)
}

/// A device of the driver.
#[derive(Clone, Copy)]
pub struct Device {
    pub index: usize,
}

impl Device {
    pub fn get(handle: DeviceHandle) -> Outcome<Self> {
        let index = (handle.0 as usize).checked_sub(FIRST_DEVICE);
        let index = index.filter(|&index| index < settings().devices);
        index.map(|index| Self { index }).ok_or_else(|| misuse(ResultCode::ERROR_INVALID_NULL_HANDLE, "unknown device"))
    }

    pub fn handle(index: usize) -> DeviceHandle {
        DeviceHandle((FIRST_DEVICE + index) as *mut c_void)
    }

    /// Fails if the device does not have this queue.
    pub fn check_queue(self, ordinal: u32, index: u32) -> Outcome {
        let group = queue_groups().get(ordinal as usize).copied();
        let exists = group.is_some_and(|group| index < group.num_queues);
        if exists { Ok(()) } else { Err(misuse(ResultCode::ERROR_INVALID_ARGUMENT, "no such queue group or queue")) }
    }
}

pub fn check_driver(driver: DriverHandle) -> Outcome {
    if driver == DRIVER { Ok(()) } else { Err(misuse(ResultCode::ERROR_INVALID_NULL_HANDLE, "unknown driver")) }
}

/// Device limits that the driver itself needs.
pub struct Limits {
    pub memory: u64,
    pub max_allocation: u64,
    pub group_size: u32,
    pub group_sizes: [u32; 3],
}

pub fn limits() -> &'static Limits {
    static LIMITS: OnceLock<Limits> = OnceLock::new();
    LIMITS.get_or_init(|| {
        let device = opencl();
        let sizes = device.numbers(DeviceQuery::MaxWorkItemSizes);
        Limits {
            memory: device.number(DeviceQuery::GlobalMemSize),
            max_allocation: device.number(DeviceQuery::MaxMemAllocSize),
            group_size: device.number(DeviceQuery::MaxWorkGroupSize) as u32,
            group_sizes: [0, 1, 2].map(|axis| sizes.get(axis).map_or(1, |&size| size as u32)),
        }
    })
}

/// The queue groups: one computes and copies, the other only copies.
fn queue_groups() -> [CommandQueueGroupProperties; 2] {
    use CommandQueueGroupPropertyFlags as Flags;
    let group = |flags, max_memory_fill_pattern_size| CommandQueueGroupProperties {
        flags,
        max_memory_fill_pattern_size,
        num_queues: 1,
        ..CommandQueueGroupProperties::default()
    };
    [group(Flags::COMPUTE | Flags::COPY, 128), group(Flags::COPY, 16)]
}

pub fn max_fill_pattern(ordinal: u32) -> usize {
    queue_groups()[ordinal as usize].max_memory_fill_pattern_size
}

pub fn computes(ordinal: u32) -> bool {
    queue_groups()[ordinal as usize].flags.contains(CommandQueueGroupPropertyFlags::COMPUTE)
}

pub fn init(_flags: InitFlags) -> Outcome {
    if let Err(reason) = opencl::open() {
        eprintln!("level zero test driver: {reason}; run `make setup`, and tests through `make`");
        return Err(ResultCode::ERROR_UNINITIALIZED);
    }
    report::at_exit();
    guard::install();
    Ok(())
}

pub fn init_drivers(count: Pointer<u32>, drivers: Pointer<DriverHandle>, desc: Pointer<InitDriverTypeDesc>) -> Outcome {
    init(InitFlags::default())?;
    let wanted = desc.read()?.flags.contains(InitDriverTypeFlags::GPU);
    list(count, drivers, if wanted { &[DRIVER] } else { &[] })
}

pub fn driver_get(count: Pointer<u32>, drivers: Pointer<DriverHandle>) -> Outcome {
    list(count, drivers, &[DRIVER])
}

pub fn driver_get_api_version(driver: DriverHandle, version: Pointer<ApiVersion>) -> Outcome {
    check_driver(driver)?;
    version.write(api_version())
}

pub fn driver_get_properties(driver: DriverHandle, properties: Pointer<DriverProperties>) -> Outcome {
    check_driver(driver)?;
    let given = properties.read()?;
    properties.write(DriverProperties { uuid: *b"marquetry driver", driver_version: 1, ..given })
}

pub fn driver_get_extension_properties(
    driver: DriverHandle,
    count: Pointer<u32>,
    properties: Pointer<DriverExtensionProperties>,
) -> Outcome {
    check_driver(driver)?;
    let mut relaxed = DriverExtensionProperties { version: ApiVersion::new(1, 0).0, ..Default::default() };
    copy_text("ZE_experimental_relaxed_allocation_limits", &mut relaxed.name);
    list(count, properties, &[relaxed])
}

pub fn device_get(driver: DriverHandle, count: Pointer<u32>, devices: Pointer<DeviceHandle>) -> Outcome {
    check_driver(driver)?;
    let available: Vec<_> = (0..settings().devices).map(Device::handle).collect();
    list(count, devices, &available)
}

pub fn device_get_sub_devices(device: DeviceHandle, count: Pointer<u32>, subdevices: Pointer<DeviceHandle>) -> Outcome {
    Device::get(device)?;
    list(count, subdevices, &[])
}

pub fn device_get_properties(device: DeviceHandle, properties: Pointer<DeviceProperties>) -> Outcome {
    let index = Device::get(device)?.index;
    let given = properties.read()?;
    let processor = opencl();
    let flags = if settings().discrete { DevicePropertyFlags::default() } else { DevicePropertyFlags::INTEGRATED };
    // One cycle is one nanosecond. The old structure wants nanoseconds per cycle, the new one cycles per second.
    let timer_resolution = if given.stype == StructureType::DEVICE_PROPERTIES_1_2 { 1_000_000_000 } else { 1 };
    let mut answer = DeviceProperties {
        kind: DeviceType::GPU,
        vendor_id: 0x8086,
        // No Intel product has this number.
        device_id: 0xc0de,
        flags,
        subdevice_id: 0,
        core_clock_rate: processor.number(DeviceQuery::MaxClockFrequency) as u32,
        max_mem_alloc_size: limits().max_allocation,
        max_hardware_contexts: 64,
        max_command_queue_priority: 0,
        num_threads_per_eu: 1,
        physical_eu_simd_width: processor.numbers(DeviceQuery::SubGroupSizes).first().map_or(1, |&size| size as u32),
        num_eus_per_subslice: 1,
        num_subslices_per_slice: processor.number(DeviceQuery::MaxComputeUnits) as u32,
        num_slices: 1,
        timer_resolution,
        timestamp_valid_bits: 64,
        kernel_timestamp_valid_bits: 64,
        uuid: *b"marquetry devic0",
        ..given
    };
    answer.uuid[15] += index as u8;
    copy_text(&format!("{} (Level Zero test driver)", processor.text(DeviceQuery::Name)), &mut answer.name);
    properties.write(answer)
}

pub fn device_get_compute_properties(device: DeviceHandle, properties: Pointer<DeviceComputeProperties>) -> Outcome {
    Device::get(device)?;
    let [x, y, z] = limits().group_sizes;
    let subgroups = opencl().numbers(DeviceQuery::SubGroupSizes);
    let mut sub_group_sizes = [0; 8];
    for (slot, &size) in sub_group_sizes.iter_mut().zip(&subgroups) {
        *slot = size as u32;
    }
    properties.write(DeviceComputeProperties {
        max_total_group_size: limits().group_size,
        max_group_size_x: x,
        max_group_size_y: y,
        max_group_size_z: z,
        max_group_count_x: u32::MAX,
        max_group_count_y: u32::MAX,
        max_group_count_z: u32::MAX,
        max_shared_local_memory: opencl().number(DeviceQuery::LocalMemSize) as u32,
        num_sub_group_sizes: subgroups.len() as u32,
        sub_group_sizes,
        ..properties.read()?
    })
}

pub fn device_get_module_properties(device: DeviceHandle, properties: Pointer<DeviceModuleProperties>) -> Outcome {
    Device::get(device)?;
    use DeviceFpFlags as Fp;
    let processor = opencl();
    let float = Fp::DENORM | Fp::INF_NAN | Fp::ROUND_TO_NEAREST | Fp::FMA;
    let if_has = |extension, flags| if processor.has(extension) { flags } else { Fp::default() };
    let optional = [
        ("cl_khr_fp16", DeviceModuleFlags::FP16),
        ("cl_khr_fp64", DeviceModuleFlags::FP64),
        ("cl_khr_int64_base_atomics", DeviceModuleFlags::INT64_ATOMICS),
        ("cl_khr_integer_dot_product", DeviceModuleFlags::DP4A),
    ];
    let present = optional.iter().filter(|(extension, _)| processor.has(extension));
    properties.write(DeviceModuleProperties {
        // OpenCL numbers SPIR-V versions with the major version in the upper half.
        spirv_version_supported: ApiVersion::new(1, 2).0,
        flags: present.fold(DeviceModuleFlags::default(), |flags, (_, flag)| flags | *flag),
        fp16_flags: if_has("cl_khr_fp16", float),
        fp32_flags: float,
        fp64_flags: if_has("cl_khr_fp64", float),
        max_arguments_size: processor.number(DeviceQuery::MaxParameterSize) as u32,
        printf_buffer_size: 0,
        native_kernel_supported: [0; 16],
        ..properties.read()?
    })
}

pub fn device_get_command_queue_group_properties(
    device: DeviceHandle,
    count: Pointer<u32>,
    properties: Pointer<CommandQueueGroupProperties>,
) -> Outcome {
    Device::get(device)?;
    let groups = queue_groups();
    list_with(count, properties, groups.len(), |index, group| {
        *group = CommandQueueGroupProperties { stype: group.stype, next: group.next, ..groups[index] };
    })
}

pub fn device_get_memory_properties(
    device: DeviceHandle,
    count: Pointer<u32>,
    properties: Pointer<DeviceMemoryProperties>,
) -> Outcome {
    Device::get(device)?;
    list_with(count, properties, 1, |_, memory| {
        (memory.flags, memory.max_clock_rate, memory.max_bus_width) = (0, 0, 64);
        memory.total_size = limits().memory;
        copy_text("memory of the processor", &mut memory.name);
    })
}

pub fn device_get_memory_access_properties(
    device: DeviceHandle,
    properties: Pointer<DeviceMemoryAccessProperties>,
) -> Outcome {
    Device::get(device)?;
    // If SPIR-V is translated to bitcode, atomic operations do not link.
    let atomic = if opencl().takes_spirv { MemoryAccessCapFlags::ATOMIC } else { MemoryAccessCapFlags::default() };
    let all = MemoryAccessCapFlags::RW | atomic;
    properties.write(DeviceMemoryAccessProperties {
        host_alloc_capabilities: all,
        device_alloc_capabilities: all,
        shared_single_device_alloc_capabilities: all,
        shared_cross_device_alloc_capabilities: MemoryAccessCapFlags::default(),
        shared_system_alloc_capabilities: MemoryAccessCapFlags::default(),
        ..properties.read()?
    })
}

pub fn device_get_cache_properties(
    device: DeviceHandle,
    count: Pointer<u32>,
    properties: Pointer<DeviceCacheProperties>,
) -> Outcome {
    Device::get(device)?;
    list_with(count, properties, 1, |_, cache| {
        cache.flags = 0;
        cache.cache_size = opencl().number(DeviceQuery::GlobalMemCacheSize) as usize;
    })
}

pub fn device_get_global_timestamps(
    device: DeviceHandle,
    host_timestamp: Pointer<u64>,
    device_timestamp: Pointer<u64>,
) -> Outcome {
    Device::get(device)?;
    let now = progress::now();
    host_timestamp.write(now)?;
    device_timestamp.write(now)
}

pub fn device_can_access_peer(device: DeviceHandle, peer: DeviceHandle, value: Pointer<u8>) -> Outcome {
    value.write(u8::from(Device::get(device)?.index == Device::get(peer)?.index))
}
