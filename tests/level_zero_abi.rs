//! Compares the crate's declarations of the Level Zero interface with the specification's C header.
//!
//! The test writes the declarations to a C file that includes `<level_zero/ze_api.h>`. Structures and constants become
//! static assertions. Functions become declarations, which must match the header. The C compiler then checks the file.
//! The header is version 1.4, from Debian 12. Newer declarations are left out.
#![cfg(all(feature = "level-zero", unix))]

#[path = "../src/backend/level_zero/ffi.rs"]
mod ffi;

use ffi::*;
use std::fmt::Write;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;

/// Writes assertions on the size of a structure and the offset of every field.
macro_rules! layout {
    ($c:ident, $name:ident = $c_name:ident { $($field:ident: $c_field:ident),* }) => {
        // The list must be complete, or this pattern does not compile.
        let _ = |$name { $($field: _),* }: $name| ();
        assert_equal($c, concat!("sizeof(", stringify!($c_name), ")"), size_of::<$name>());
        $(
            let place = concat!("offsetof(", stringify!($c_name), ", ", stringify!($c_field), ")");
            assert_equal($c, place, offset_of!($name, $field));
        )*
    };
}

/// Writes assertions on the values of an enumeration or a set of flags.
macro_rules! constants {
    ($c:ident, $name:ident = $prefix:ident { $($value:ident),* }) => {
        $( assert_equal($c, concat!(stringify!($prefix), stringify!($value)), $name::$value.0 as usize); )*
    };
}

/// Writes declarations of the required functions.
macro_rules! functions {
    (
        required { $($symbol:ident => $name:ident($($parameter:ident: $ty:ty),*);)* }
        optional { $($newer:ident => $newer_name:ident($($newer_parameter:ident: $newer_ty:ty),*);)* }
    ) => {
        const FUNCTIONS: &[(&str, &[&str])] = &[$((stringify!($symbol), &[$(stringify!($ty)),*])),*];
    };
}
for_each_function!(functions);

#[test]
fn declarations_agree_with_the_header() {
    let mut c = String::from("#include <stddef.h>\n#include <level_zero/ze_api.h>\n");
    write_layouts(&mut c);
    write_constants(&mut c);
    write_functions(&mut c);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("level_zero_abi.c");
    std::fs::write(&path, c).unwrap();

    let compiler = Command::new("cc").arg("-fsyntax-only").arg(&path).output();
    let output = compiler.unwrap_or_else(|error| panic!("no C compiler, run `make setup`: {error}"));
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(!messages.contains("level_zero/ze_api.h: No such file"), "no Level Zero header, run `make setup`");
    assert!(output.status.success(), "{messages}");
}

fn assert_equal(c: &mut String, expression: &str, value: usize) {
    writeln!(c, "_Static_assert({expression} == {value:#x}, \"{value:#x} in the crate\");").unwrap();
}

fn write_functions(c: &mut String) {
    for (symbol, parameters) in FUNCTIONS {
        let parameters: Vec<_> = parameters.iter().map(|ty| c_type(ty)).collect();
        writeln!(c, "ze_result_t {symbol}({});", parameters.join(", ")).unwrap();
    }
}

/// Returns the C name of a type, which follows from the crate's name.
fn c_type(ty: &str) -> String {
    // `stringify!` may write a space after the star of a pointer.
    if let Some(pointer) = ty.strip_prefix('*').map(str::trim_start) {
        return match pointer.split_once(' ') {
            Some(("const", target)) => format!("const {}*", c_type(target)),
            Some((_, target)) => c_type(target) + "*",
            None => panic!("{ty} is no pointer"),
        };
    }
    match ty {
        "u8" | "u32" | "u64" => format!("uint{}_t", &ty[1..]),
        "usize" => "size_t".into(),
        "c_void" => "void".into(),
        "c_char" => "char".into(),
        _ => {
            let words = ty.chars().map(|letter| match letter.is_uppercase() {
                true => format!("_{}", letter.to_ascii_lowercase()),
                false => letter.to_string(),
            });
            format!("ze{}_t", words.collect::<String>())
        }
    }
}

#[rustfmt::skip]
fn write_layouts(c: &mut String) {
    layout!(c, DriverProperties = ze_driver_properties_t { stype: stype, next: pNext, uuid: uuid, driver_version: driverVersion });
    layout!(c, DriverExtensionProperties = ze_driver_extension_properties_t { name: name, version: version });
    layout!(c, DeviceProperties = ze_device_properties_t { stype: stype, next: pNext, kind: type, vendor_id: vendorId, device_id: deviceId, flags: flags, subdevice_id: subdeviceId, core_clock_rate: coreClockRate, max_mem_alloc_size: maxMemAllocSize, max_hardware_contexts: maxHardwareContexts, max_command_queue_priority: maxCommandQueuePriority, num_threads_per_eu: numThreadsPerEU, physical_eu_simd_width: physicalEUSimdWidth, num_eus_per_subslice: numEUsPerSubslice, num_subslices_per_slice: numSubslicesPerSlice, num_slices: numSlices, timer_resolution: timerResolution, timestamp_valid_bits: timestampValidBits, kernel_timestamp_valid_bits: kernelTimestampValidBits, uuid: uuid, name: name });
    layout!(c, DeviceComputeProperties = ze_device_compute_properties_t { stype: stype, next: pNext, max_total_group_size: maxTotalGroupSize, max_group_size_x: maxGroupSizeX, max_group_size_y: maxGroupSizeY, max_group_size_z: maxGroupSizeZ, max_group_count_x: maxGroupCountX, max_group_count_y: maxGroupCountY, max_group_count_z: maxGroupCountZ, max_shared_local_memory: maxSharedLocalMemory, num_sub_group_sizes: numSubGroupSizes, sub_group_sizes: subGroupSizes });
    layout!(c, DeviceModuleProperties = ze_device_module_properties_t { stype: stype, next: pNext, spirv_version_supported: spirvVersionSupported, flags: flags, fp16_flags: fp16flags, fp32_flags: fp32flags, fp64_flags: fp64flags, max_arguments_size: maxArgumentsSize, printf_buffer_size: printfBufferSize, native_kernel_supported: nativeKernelSupported });
    layout!(c, CommandQueueGroupProperties = ze_command_queue_group_properties_t { stype: stype, next: pNext, flags: flags, max_memory_fill_pattern_size: maxMemoryFillPatternSize, num_queues: numQueues });
    layout!(c, DeviceMemoryProperties = ze_device_memory_properties_t { stype: stype, next: pNext, flags: flags, max_clock_rate: maxClockRate, max_bus_width: maxBusWidth, total_size: totalSize, name: name });
    layout!(c, DeviceMemoryAccessProperties = ze_device_memory_access_properties_t { stype: stype, next: pNext, host_alloc_capabilities: hostAllocCapabilities, device_alloc_capabilities: deviceAllocCapabilities, shared_single_device_alloc_capabilities: sharedSingleDeviceAllocCapabilities, shared_cross_device_alloc_capabilities: sharedCrossDeviceAllocCapabilities, shared_system_alloc_capabilities: sharedSystemAllocCapabilities });
    layout!(c, DeviceCacheProperties = ze_device_cache_properties_t { stype: stype, next: pNext, flags: flags, cache_size: cacheSize });
    layout!(c, ContextDesc = ze_context_desc_t { stype: stype, next: pNext, flags: flags });
    layout!(c, CommandQueueDesc = ze_command_queue_desc_t { stype: stype, next: pNext, ordinal: ordinal, index: index, flags: flags, mode: mode, priority: priority });
    layout!(c, CommandListDesc = ze_command_list_desc_t { stype: stype, next: pNext, command_queue_group_ordinal: commandQueueGroupOrdinal, flags: flags });
    layout!(c, CopyRegion = ze_copy_region_t { origin_x: originX, origin_y: originY, origin_z: originZ, width: width, height: height, depth: depth });
    layout!(c, FenceDesc = ze_fence_desc_t { stype: stype, next: pNext, flags: flags });
    layout!(c, EventPoolDesc = ze_event_pool_desc_t { stype: stype, next: pNext, flags: flags, count: count });
    layout!(c, EventDesc = ze_event_desc_t { stype: stype, next: pNext, index: index, signal: signal, wait: wait });
    layout!(c, KernelTimestampData = ze_kernel_timestamp_data_t { kernel_start: kernelStart, kernel_end: kernelEnd });
    layout!(c, KernelTimestampResult = ze_kernel_timestamp_result_t { global: global, context: context });
    layout!(c, DeviceMemAllocDesc = ze_device_mem_alloc_desc_t { stype: stype, next: pNext, flags: flags, ordinal: ordinal });
    layout!(c, HostMemAllocDesc = ze_host_mem_alloc_desc_t { stype: stype, next: pNext, flags: flags });
    layout!(c, RelaxedAllocationLimitsExpDesc = ze_relaxed_allocation_limits_exp_desc_t { stype: stype, next: pNext, flags: flags });
    layout!(c, MemoryAllocationProperties = ze_memory_allocation_properties_t { stype: stype, next: pNext, kind: type, id: id, page_size: pageSize });
    layout!(c, ModuleConstants = ze_module_constants_t { num_constants: numConstants, constant_ids: pConstantIds, constant_values: pConstantValues });
    layout!(c, ModuleDesc = ze_module_desc_t { stype: stype, next: pNext, format: format, input_size: inputSize, input_module: pInputModule, build_flags: pBuildFlags, constants: pConstants });
    layout!(c, KernelDesc = ze_kernel_desc_t { stype: stype, next: pNext, flags: flags, kernel_name: pKernelName });
    layout!(c, KernelUuid = ze_kernel_uuid_t { kid: kid, mid: mid });
    layout!(c, KernelProperties = ze_kernel_properties_t { stype: stype, next: pNext, num_kernel_args: numKernelArgs, required_group_size_x: requiredGroupSizeX, required_group_size_y: requiredGroupSizeY, required_group_size_z: requiredGroupSizeZ, required_num_sub_groups: requiredNumSubGroups, required_subgroup_size: requiredSubgroupSize, max_subgroup_size: maxSubgroupSize, max_num_subgroups: maxNumSubgroups, local_mem_size: localMemSize, private_mem_size: privateMemSize, spill_mem_size: spillMemSize, uuid: uuid });
    layout!(c, GroupCount = ze_group_count_t { group_count_x: groupCountX, group_count_y: groupCountY, group_count_z: groupCountZ });
}

#[rustfmt::skip]
fn write_constants(c: &mut String) {
    constants!(c, ResultCode = ZE_RESULT_ { SUCCESS, NOT_READY, ERROR_DEVICE_LOST, ERROR_OUT_OF_HOST_MEMORY, ERROR_OUT_OF_DEVICE_MEMORY, ERROR_MODULE_BUILD_FAILURE, ERROR_MODULE_LINK_FAILURE, ERROR_DEVICE_REQUIRES_RESET, ERROR_DEVICE_IN_LOW_POWER_STATE, ERROR_INSUFFICIENT_PERMISSIONS, ERROR_NOT_AVAILABLE, ERROR_DEPENDENCY_UNAVAILABLE, WARNING_DROPPED_DATA, ERROR_UNINITIALIZED, ERROR_UNSUPPORTED_VERSION, ERROR_UNSUPPORTED_FEATURE, ERROR_INVALID_ARGUMENT, ERROR_INVALID_NULL_HANDLE, ERROR_HANDLE_OBJECT_IN_USE, ERROR_INVALID_NULL_POINTER, ERROR_INVALID_SIZE, ERROR_UNSUPPORTED_SIZE, ERROR_UNSUPPORTED_ALIGNMENT, ERROR_INVALID_SYNCHRONIZATION_OBJECT, ERROR_INVALID_ENUMERATION, ERROR_UNSUPPORTED_ENUMERATION, ERROR_UNSUPPORTED_IMAGE_FORMAT, ERROR_INVALID_NATIVE_BINARY, ERROR_INVALID_GLOBAL_NAME, ERROR_INVALID_KERNEL_NAME, ERROR_INVALID_FUNCTION_NAME, ERROR_INVALID_GROUP_SIZE_DIMENSION, ERROR_INVALID_GLOBAL_WIDTH_DIMENSION, ERROR_INVALID_KERNEL_ARGUMENT_INDEX, ERROR_INVALID_KERNEL_ARGUMENT_SIZE, ERROR_INVALID_KERNEL_ATTRIBUTE_VALUE, ERROR_INVALID_MODULE_UNLINKED, ERROR_INVALID_COMMAND_LIST_TYPE, ERROR_OVERLAPPING_REGIONS, WARNING_ACTION_REQUIRED, ERROR_UNKNOWN });
    constants!(c, StructureType = ZE_STRUCTURE_TYPE_ { DRIVER_PROPERTIES, DEVICE_PROPERTIES, DEVICE_COMPUTE_PROPERTIES, DEVICE_MODULE_PROPERTIES, COMMAND_QUEUE_GROUP_PROPERTIES, DEVICE_MEMORY_PROPERTIES, DEVICE_MEMORY_ACCESS_PROPERTIES, DEVICE_CACHE_PROPERTIES, CONTEXT_DESC, COMMAND_QUEUE_DESC, COMMAND_LIST_DESC, EVENT_POOL_DESC, EVENT_DESC, FENCE_DESC, DEVICE_MEM_ALLOC_DESC, HOST_MEM_ALLOC_DESC, MEMORY_ALLOCATION_PROPERTIES, MODULE_DESC, KERNEL_DESC, KERNEL_PROPERTIES, RELAXED_ALLOCATION_LIMITS_EXP_DESC, DEVICE_PROPERTIES_1_2 });
    constants!(c, InitFlags = ZE_INIT_FLAG_ { GPU_ONLY });
    constants!(c, DeviceType = ZE_DEVICE_TYPE_ { GPU, CPU });
    constants!(c, DevicePropertyFlags = ZE_DEVICE_PROPERTY_FLAG_ { INTEGRATED, SUBDEVICE, ECC, ONDEMANDPAGING });
    constants!(c, DeviceModuleFlags = ZE_DEVICE_MODULE_FLAG_ { FP16, FP64, INT64_ATOMICS, DP4A });
    constants!(c, DeviceFpFlags = ZE_DEVICE_FP_FLAG_ { DENORM, INF_NAN, ROUND_TO_NEAREST, ROUND_TO_ZERO, ROUND_TO_INF, FMA, ROUNDED_DIVIDE_SQRT, SOFT_FLOAT });
    constants!(c, CommandQueueGroupPropertyFlags = ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_ { COMPUTE, COPY, COOPERATIVE_KERNELS, METRICS });
    constants!(c, MemoryAccessCapFlags = ZE_MEMORY_ACCESS_CAP_FLAG_ { RW, ATOMIC, CONCURRENT, CONCURRENT_ATOMIC });
    constants!(c, CommandQueueFlags = ZE_COMMAND_QUEUE_FLAG_ { EXPLICIT_ONLY });
    constants!(c, CommandQueueMode = ZE_COMMAND_QUEUE_MODE_ { DEFAULT, SYNCHRONOUS, ASYNCHRONOUS });
    constants!(c, CommandQueuePriority = ZE_COMMAND_QUEUE_PRIORITY_ { NORMAL });
    constants!(c, CommandListFlags = ZE_COMMAND_LIST_FLAG_ { RELAXED_ORDERING, MAXIMIZE_THROUGHPUT, EXPLICIT_ONLY });
    constants!(c, FenceFlags = ZE_FENCE_FLAG_ { SIGNALED });
    constants!(c, EventPoolFlags = ZE_EVENT_POOL_FLAG_ { HOST_VISIBLE, IPC, KERNEL_TIMESTAMP });
    constants!(c, EventScopeFlags = ZE_EVENT_SCOPE_FLAG_ { SUBDEVICE, DEVICE, HOST });
    constants!(c, DeviceMemAllocFlags = ZE_DEVICE_MEM_ALLOC_FLAG_ { BIAS_CACHED, BIAS_UNCACHED });
    constants!(c, HostMemAllocFlags = ZE_HOST_MEM_ALLOC_FLAG_ { BIAS_CACHED, BIAS_UNCACHED, BIAS_WRITE_COMBINED });
    constants!(c, RelaxedAllocationLimitsExpFlags = ZE_RELAXED_ALLOCATION_LIMITS_EXP_FLAG_ { MAX_SIZE });
    constants!(c, MemoryType = ZE_MEMORY_TYPE_ { UNKNOWN, HOST, DEVICE, SHARED });
    constants!(c, ModuleFormat = ZE_MODULE_FORMAT_ { IL_SPIRV, NATIVE });
    constants!(c, KernelFlags = ZE_KERNEL_FLAG_ { FORCE_RESIDENCY, EXPLICIT_RESIDENCY });
    constants!(c, KernelIndirectAccessFlags = ZE_KERNEL_INDIRECT_ACCESS_FLAG_ { HOST, DEVICE, SHARED });
    assert_equal(c, "ZE_API_VERSION_1_4", ApiVersion::new(1, 4).0 as usize);
}
