//! Devices as the drivers describe them: which ones are usable, and what they are.

use super::ffi::*;
use super::loader::{self, Api, Loaded, list_of, ok};
use crate::backend::info::{DeviceInfo, DeviceKind, Limits, MemoryRegion, uses_dot_products, vendor_name};
use crate::base::backend_kind::BackendKind;
use crate::base::error::Result;
use crate::base::features::{Features, MatrixUnits};
use std::cmp::Reverse;
use std::ffi::{CStr, c_char};

/// The oldest version of the interface that a driver may have. The structures read here are from it.
const MINIMUM_API: ApiVersion = ApiVersion::new(1, 3);

/// The first version with in-order command lists.
const IN_ORDER_API: ApiVersion = ApiVersion::new(1, 7);

/// The extension that allows buffers larger than `max_mem_alloc_size`.
const RELAXED_LIMITS: &CStr = c"ZE_experimental_relaxed_allocation_limits";

/// Buffers start at multiples of this many bytes: a cache line.
pub(super) const BUFFER_ALIGNMENT: usize = 64;

/// The most buffers of a kernel. There are fewer if the arguments lack room for as many.
const MAX_BINDINGS: u32 = 64;

/// The most parameter words of a kernel. Each is an argument that is set.
const MAX_PARAMETER_WORDS: u32 = 1024;

/// A device that this backend can open.
pub(super) struct Adapter {
    pub driver: DriverHandle,
    pub device: DeviceHandle,
    /// The description for the rest of the crate.
    pub info: DeviceInfo,
    /// The group of the queue for kernels, which also copies.
    pub compute_group: u32,
    /// A group that only copies, if there is one.
    pub copy_group: Option<u32>,
    /// Whether a command list can execute commands as they are appended, one after the other.
    pub in_order: bool,
    /// The largest allocation that needs no relaxed limits.
    pub max_allocation: u64,
    /// The memory that device buffers come from.
    pub memory_ordinal: u32,
    /// The clock of timestamps.
    pub clock: Clock,
    /// What compiled kernels depend on: the device and its driver's version.
    pub identity: String,
}

/// How timestamps count.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    /// Ticks per second.
    pub frequency: u64,
    /// The number of bits after which a kernel's timestamps wrap.
    pub bits: u32,
}

/// Returns every usable device of every driver, in the order of enumeration. A device's index is its position here.
pub(super) fn all(loaded: &Loaded) -> Result<Vec<Adapter>> {
    let mut adapters = Vec::new();
    let mut refused = Vec::new();
    for &driver in &loaded.drivers {
        let found = DriverFacts::read(&loaded.api, driver).and_then(|facts| {
            // SAFETY: the driver is initialised, and the list has room for `count` handles.
            let devices =
                list_of(DeviceHandle::NULL, |count, list| unsafe { (loaded.api.device_get)(driver, count, list) });
            Ok((facts, devices.map_err(failed("zeDeviceGet"))?))
        });
        match found {
            Err(reason) => refused.push(reason),
            Ok((facts, devices)) => {
                for device in devices {
                    match Adapter::read(&loaded.api, &facts, device, adapters.len()) {
                        Ok(adapter) => adapters.push(adapter),
                        Err(reason) => refused.push(reason),
                    }
                }
            }
        }
    }
    if !adapters.is_empty() {
        Ok(adapters)
    } else if refused.is_empty() {
        Err(loader::unavailable("the drivers find no device"))
    } else {
        Err(loader::unavailable(format_args!("no device is usable ({})", refused.join(", "))))
    }
}

/// Returns a function that says which call failed, and how.
fn failed(call: &'static str) -> impl Fn(ResultCode) -> String {
    move |code| format!("{call} failed: {code}")
}

/// Fills a structure with a call of the driver, or says which call failed.
fn query<T: Default>(call: &'static str, ask: impl FnOnce(*mut T) -> ResultCode) -> Result<T, String> {
    let mut value = T::default();
    ok(ask(&mut value)).map_err(failed(call))?;
    Ok(value)
}

/// Returns the text in a fixed field.
fn text(field: &[c_char]) -> String {
    let bytes: Vec<u8> = field.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    String::from_utf8_lossy(&bytes).trim().to_string()
}

/// What is known about a driver.
struct DriverFacts {
    handle: DriverHandle,
    api_version: ApiVersion,
    version: u32,
    relaxed_limits: bool,
}

impl DriverFacts {
    fn read(api: &Api, handle: DriverHandle) -> Result<DriverFacts, String> {
        // SAFETY: here and below, the handle is of this library, and `query` gives valid pointers.
        let api_version = query("zeDriverGetApiVersion", |p| unsafe { (api.driver_get_api_version)(handle, p) })?;
        if api_version < MINIMUM_API {
            return Err(format!("a driver with version {api_version} of the interface, needs {MINIMUM_API}"));
        }
        // SAFETY: see above.
        let properties: DriverProperties =
            query("zeDriverGetProperties", |p| unsafe { (api.driver_get_properties)(handle, p) })?;
        // SAFETY: see above; the list has room for `count` extensions.
        let extensions = list_of(DriverExtensionProperties::default(), |count, list| unsafe {
            (api.driver_get_extension_properties)(handle, count, list)
        });
        let extensions = extensions.map_err(failed("zeDriverGetExtensionProperties"))?;
        let relaxed_limits =
            extensions.iter().any(|extension| text(&extension.name).as_bytes() == RELAXED_LIMITS.to_bytes());
        Ok(DriverFacts { handle, api_version, version: properties.driver_version, relaxed_limits })
    }
}

/// All that a driver reports about a device.
struct DeviceFacts {
    properties: DeviceProperties,
    compute: DeviceComputeProperties,
    module: DeviceModuleProperties,
    access: DeviceMemoryAccessProperties,
    memories: Vec<DeviceMemoryProperties>,
    groups: Vec<CommandQueueGroupProperties>,
    sub_devices: u32,
    /// Whether the clock can be read.
    timestamps: bool,
}

impl DeviceFacts {
    fn read(api: &Api, device: DeviceHandle) -> Result<DeviceFacts, String> {
        // SAFETY: here and below, the device is of this library, and `query` and `list_of` give valid pointers.
        let properties = query("zeDeviceGetProperties", |p: *mut DeviceProperties| unsafe {
            // With this type, the driver reports the timer's frequency rather than its period.
            (*p).stype = StructureType::DEVICE_PROPERTIES_1_2;
            (api.device_get_properties)(device, p)
        })?;
        // SAFETY: see above.
        let compute =
            query("zeDeviceGetComputeProperties", |p| unsafe { (api.device_get_compute_properties)(device, p) })?;
        // SAFETY: see above.
        let module =
            query("zeDeviceGetModuleProperties", |p| unsafe { (api.device_get_module_properties)(device, p) })?;
        let access = query("zeDeviceGetMemoryAccessProperties", |p| {
            // SAFETY: see above.
            unsafe { (api.device_get_memory_access_properties)(device, p) }
        })?;
        let memories = list_of(DeviceMemoryProperties::default(), |count, list| {
            // SAFETY: see above.
            unsafe { (api.device_get_memory_properties)(device, count, list) }
        });
        let groups = list_of(CommandQueueGroupProperties::default(), |count, list| {
            // SAFETY: see above.
            unsafe { (api.device_get_command_queue_group_properties)(device, count, list) }
        });
        let sub_devices = list_of(DeviceHandle::NULL, |count, list| {
            // SAFETY: see above.
            unsafe { (api.device_get_sub_devices)(device, count, list) }
        });
        let (mut on_host, mut on_device) = (0, 0);
        // SAFETY: see above.
        let clock = unsafe { (api.device_get_global_timestamps)(device, &mut on_host, &mut on_device) };
        Ok(DeviceFacts {
            properties,
            compute,
            module,
            access,
            memories: memories.map_err(failed("zeDeviceGetMemoryProperties"))?,
            groups: groups.map_err(failed("zeDeviceGetCommandQueueGroupProperties"))?,
            sub_devices: sub_devices.map_err(failed("zeDeviceGetSubDevices"))?.len() as u32,
            timestamps: ok(clock).is_ok(),
        })
    }
}

impl Adapter {
    /// Reads a device, or says why it is not usable.
    fn read(api: &Api, driver: &DriverFacts, device: DeviceHandle, index: usize) -> Result<Adapter, String> {
        let facts = DeviceFacts::read(api, device)?;
        let name = text(&facts.properties.name);
        if facts.module.spirv_version_supported == 0 {
            return Err(format!("{name}: takes no SPIR-V"));
        }
        let compute_group = compute_group(&facts.groups).ok_or_else(|| format!("{name}: no compute queue"))?;
        let copy_group = copy_group(&facts.groups);
        let DriverFacts { api_version, version, .. } = *driver;
        let (memory_ordinal, memory) = largest_memory(&facts.memories);
        let uuid: String = facts.properties.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let identity =
            format!("level-zero {name} {:#x} {uuid} driver {api_version} {version:#x}", facts.properties.device_id);
        Ok(Adapter {
            driver: driver.handle,
            device,
            info: info(&facts, driver, name, memory, index),
            compute_group,
            copy_group,
            in_order: api_version >= IN_ORDER_API && api.command_list_host_synchronize.is_some(),
            max_allocation: facts.properties.max_mem_alloc_size,
            memory_ordinal,
            clock: Clock {
                frequency: facts.properties.timer_resolution.max(1),
                bits: facts.properties.kernel_timestamp_valid_bits.clamp(1, 64),
            },
            identity,
        })
    }
}

/// Returns the first queue group for kernels.
fn compute_group(groups: &[CommandQueueGroupProperties]) -> Option<u32> {
    first_group(groups, |flags| flags.contains(CommandQueueGroupPropertyFlags::COMPUTE))
}

/// Returns the first queue group that only copies.
fn copy_group(groups: &[CommandQueueGroupProperties]) -> Option<u32> {
    let (compute, copy) = (CommandQueueGroupPropertyFlags::COMPUTE, CommandQueueGroupPropertyFlags::COPY);
    first_group(groups, |flags| flags.contains(copy) && !flags.contains(compute))
}

fn first_group(
    groups: &[CommandQueueGroupProperties],
    fits: impl Fn(CommandQueueGroupPropertyFlags) -> bool,
) -> Option<u32> {
    (0..).zip(groups).find_map(|(ordinal, group)| (group.num_queues > 0 && fits(group.flags)).then_some(ordinal))
}

/// Returns the ordinal and size of the largest memory. Device buffers come only from this memory.
fn largest_memory(memories: &[DeviceMemoryProperties]) -> (u32, u64) {
    let sizes = (0..).zip(memories.iter().map(|memory| memory.total_size));
    // If several are equally large, the first.
    sizes.max_by_key(|(ordinal, size)| (*size, Reverse(*ordinal))).unwrap_or_default()
}

fn info(facts: &DeviceFacts, driver: &DriverFacts, name: String, memory: u64, index: usize) -> DeviceInfo {
    let properties = &facts.properties;
    let limits = limits(facts, if driver.relaxed_limits { memory } else { 0 });
    let integrated = properties.flags.contains(DevicePropertyFlags::INTEGRATED);
    let version = driver.version;
    let DeviceMemoryAccessProperties {
        host_alloc_capabilities: host,
        device_alloc_capabilities: device,
        shared_single_device_alloc_capabilities: shared,
        ..
    } = facts.access;
    let host_visible = host.contains(MemoryAccessCapFlags::RW) && shared.contains(MemoryAccessCapFlags::RW);
    let everywhere = |ability| [host, device, shared].iter().all(|memory| memory.contains(ability));
    DeviceInfo {
        backend: BackendKind::LevelZero,
        index,
        name,
        vendor: vendor_name(properties.vendor_id),
        kind: match properties.kind {
            DeviceType::GPU if integrated => DeviceKind::Integrated,
            DeviceType::GPU => DeviceKind::Discrete,
            DeviceType::CPU => DeviceKind::Cpu,
            _ => DeviceKind::Other,
        },
        // The number's format is the driver's own. Intel's consists of these three.
        driver: format!(
            "Level Zero {}, driver {}.{}.{}",
            driver.api_version,
            version >> 24,
            version >> 16 & 0xff,
            version & 0xffff
        ),
        memory,
        memory_regions: facts.memories.iter().map(memory_region).collect(),
        host_visible,
        unified_memory: integrated && host_visible,
        // A subslice is what Intel calls an Xe core today.
        compute_units: Some(properties.num_slices * properties.num_subslices_per_slice).filter(|units| *units > 0),
        sub_devices: facts.sub_devices,
        features: Features {
            f16: facts.module.flags.contains(DeviceModuleFlags::FP16),
            // OpenCL's dialect of SPIR-V computes addresses with them.
            i64: true,
            f64: facts.module.flags.contains(DeviceModuleFlags::FP64),
            subgroups: !limits.subgroup_sizes.is_empty(),
            matrix_units: MatrixUnits::default(),
            integer_dot_products: uses_dot_products(facts.module.flags.contains(DeviceModuleFlags::DP4A), true),
            atomics: everywhere(MemoryAccessCapFlags::ATOMIC),
            // They are an extension, `ZE_extension_float_atomics`, for which this backend does not ask.
            float_atomics: false,
            memory_model: false,
            timestamps: facts.timestamps && properties.kernel_timestamp_valid_bits > 0,
        },
        limits,
    }
}

fn memory_region(memory: &DeviceMemoryProperties) -> MemoryRegion {
    let told = |number: u32| Some(number).filter(|number| *number > 0);
    let name = text(&memory.name);
    MemoryRegion {
        name: if name.is_empty() { "device memory".into() } else { name },
        bytes: memory.total_size,
        device_local: true,
        bus_width: told(memory.max_bus_width),
        clock_mhz: told(memory.max_clock_rate),
    }
}

/// Returns the limits. `relaxed` is the size that the extension allows for a buffer.
fn limits(facts: &DeviceFacts, relaxed: u64) -> Limits {
    let compute = &facts.compute;
    let known_sizes = compute.sub_group_sizes.iter().take(compute.num_sub_group_sizes as usize);
    let mut subgroup_sizes: Vec<u32> = known_sizes.copied().filter(|size| *size > 0).collect();
    subgroup_sizes.sort_unstable();
    // Pointers may take up to a quarter of the room for arguments. Parameters take the rest.
    let max_bindings = MAX_BINDINGS.min(facts.module.max_arguments_size / 32);
    let max_parameter_words = (facts.module.max_arguments_size - 8 * max_bindings) / 4;
    let max_buffer_bytes = facts.properties.max_mem_alloc_size.max(relaxed) / 16 * 16;
    Limits {
        max_buffer_bytes,
        // Intel's compiler addresses 4 GiB, unless an option says that there is more.
        max_binding_bytes: max_buffer_bytes.min(u64::from(u32::MAX) / 16 * 16),
        max_bindings,
        max_parameter_words: max_parameter_words.min(MAX_PARAMETER_WORDS),
        max_workgroup_invocations: compute.max_total_group_size,
        max_workgroup_memory: compute.max_shared_local_memory,
        max_workgroup_size: [compute.max_group_size_x, compute.max_group_size_y, compute.max_group_size_z],
        max_groups: compute.max_group_count_x.min(compute.max_group_count_y).min(compute.max_group_count_z),
        subgroup_sizes,
        copy_alignment: 1,
        max_addressed_words: 0,
        max_groups_in_line: compute.max_group_count_x,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue_group(flags: CommandQueueGroupPropertyFlags, num_queues: u32) -> CommandQueueGroupProperties {
        CommandQueueGroupProperties { flags, num_queues, ..Default::default() }
    }

    #[test]
    fn the_copy_engine_is_a_group_that_does_nothing_else() {
        let (compute, copy) = (CommandQueueGroupPropertyFlags::COMPUTE, CommandQueueGroupPropertyFlags::COPY);
        let groups = [queue_group(copy, 0), queue_group(compute | copy, 1), queue_group(copy, 2), queue_group(copy, 7)];
        assert_eq!((compute_group(&groups), copy_group(&groups)), (Some(1), Some(2)));
        assert_eq!((compute_group(&groups[..2]), copy_group(&groups[..2])), (Some(1), None));
        assert_eq!(compute_group(&groups[2..]), None);
    }

    #[test]
    fn buffers_come_from_the_largest_memory() {
        let memories = [4, 9, 9].map(|total_size| DeviceMemoryProperties { total_size, ..Default::default() });
        assert_eq!(largest_memory(&memories), (1, 9));
        assert_eq!(largest_memory(&[]), (0, 0));
    }

    #[test]
    fn limits_share_the_room_for_arguments_and_take_the_smallest_bound() {
        let mut facts = DeviceFacts {
            properties: DeviceProperties { max_mem_alloc_size: (4 << 30) + 7, ..Default::default() },
            compute: DeviceComputeProperties {
                max_group_count_x: 70_000,
                max_group_count_y: 65_535,
                max_group_count_z: u32::MAX,
                num_sub_group_sizes: 2,
                sub_group_sizes: [32, 16, 8, 0, 0, 0, 0, 0],
                ..Default::default()
            },
            module: DeviceModuleProperties { max_arguments_size: 2048, ..Default::default() },
            access: DeviceMemoryAccessProperties::default(),
            memories: Vec::new(),
            groups: Vec::new(),
            sub_devices: 0,
            timestamps: true,
        };
        let usual = limits(&facts, 0);
        assert_eq!((usual.max_bindings, usual.max_parameter_words), (64, (2048 - 64 * 8) / 4));
        assert_eq!((usual.max_groups, usual.max_buffer_bytes), (65_535, 4 << 30));
        assert_eq!(usual.subgroup_sizes, [16, 32], "the third is not one of the two");
        assert_eq!(limits(&facts, 48 << 30).max_buffer_bytes, 48 << 30);
        facts.module.max_arguments_size = 1024;
        let small = limits(&facts, 0);
        assert_eq!((small.max_bindings, small.max_parameter_words), (32, (1024 - 32 * 8) / 4));
        facts.module.max_arguments_size = u32::MAX;
        assert_eq!(limits(&facts, 0).max_parameter_words, 1024);
    }
}
