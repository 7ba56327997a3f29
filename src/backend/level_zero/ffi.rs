//! The part of the Level Zero interface that the crate uses, as the specification's C header declares it.
//!
//! <https://oneapi-src.github.io/level-zero-spec/level-zero/latest/core/api.html>. Rust names follow the C names:
//! `DeviceProperties` is `ze_device_properties_t`, its field `max_mem_alloc_size` is `maxMemAllocSize`, and
//! `ResultCode::NOT_READY` is `ZE_RESULT_NOT_READY`. Values that come from C are integers, never Rust enums, because a
//! newer driver may return other ones. `tests/level_zero_abi.rs` compares everything here with the header.
#![allow(dead_code, reason = "shared by the backend, the test driver and a test, none of which uses all of it")]

use std::ffi::{c_char, c_void};
use std::{fmt, ptr};

/// Declares a C enumeration: an integer with named values.
macro_rules! enumeration {
    ($(#[$meta:meta])* $name:ident { $($value:ident = $number:expr,)* }) => {
        $(#[$meta])*
        #[repr(transparent)]
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);

        #[allow(missing_docs, reason = "the specification's names")]
        impl $name {
            $(pub const $value: Self = Self($number);)*
        }
    };
}

/// Declares a C set of flags: an integer with named bits.
macro_rules! flags {
    ($(#[$meta:meta])* $name:ident { $($value:ident = $bit:expr,)* }) => {
        enumeration! { $(#[$meta])* $name { $($value = 1 << $bit,)* } }

        impl $name {
            /// Returns whether all bits of `other` are set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }
    };
}

/// Declares a handle to an object of the driver.
macro_rules! handle {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[repr(transparent)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub *mut c_void);

        impl $name {
            /// No object.
            pub const NULL: Self = Self(ptr::null_mut());

            /// Returns whether it names no object.
            pub fn is_null(self) -> bool {
                self.0.is_null()
            }
        }

        // SAFETY: a handle is an opaque name. The specification binds no object to a thread. If a function is not
        // thread-safe for an object, its callers order their calls.
        unsafe impl Send for $name {}
        // SAFETY: as above; the handle itself never changes.
        unsafe impl Sync for $name {}
    };
}

/// Declares a structure that starts with its type and a pointer to an extension. Its `Default` sets the type, and all
/// else to zero.
macro_rules! structure {
    ($(#[$meta:meta])* $name:ident: $stype:ident, $next:ty { $($field:ident: $ty:ty,)* }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy)]
        #[allow(missing_docs, reason = "the specification's names")]
        pub struct $name {
            pub stype: StructureType,
            pub next: $next,
            $(pub $field: $ty,)*
        }

        impl Default for $name {
            fn default() -> Self {
                // SAFETY: the fields are integers, arrays of integers, and pointers or handles that may be null.
                let zero: Self = unsafe { std::mem::zeroed() };
                Self { stype: StructureType::$stype, ..zero }
            }
        }
    };
}

// --- Results --------------------------------------------------------------------------------------------

/// `ze_result_t`: what every function returns.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct ResultCode(pub u32);

macro_rules! results {
    ($($name:ident = $code:expr,)*) => {
        #[allow(missing_docs, reason = "the specification's names")]
        impl ResultCode {
            $(pub const $name: Self = Self($code);)*

            /// Returns the specification's name, such as `ZE_RESULT_ERROR_DEVICE_LOST`.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($code => concat!("ZE_RESULT_", stringify!($name)),)*
                    _ => "a result that has no name here",
                }
            }
        }
    };
}

results! {
    SUCCESS = 0,
    NOT_READY = 1,
    ERROR_DEVICE_LOST = 0x7000_0001,
    ERROR_OUT_OF_HOST_MEMORY = 0x7000_0002,
    ERROR_OUT_OF_DEVICE_MEMORY = 0x7000_0003,
    ERROR_MODULE_BUILD_FAILURE = 0x7000_0004,
    ERROR_MODULE_LINK_FAILURE = 0x7000_0005,
    ERROR_DEVICE_REQUIRES_RESET = 0x7000_0006,
    ERROR_DEVICE_IN_LOW_POWER_STATE = 0x7000_0007,
    ERROR_INSUFFICIENT_PERMISSIONS = 0x7001_0000,
    ERROR_NOT_AVAILABLE = 0x7001_0001,
    ERROR_DEPENDENCY_UNAVAILABLE = 0x7002_0000,
    WARNING_DROPPED_DATA = 0x7002_0001,
    ERROR_UNINITIALIZED = 0x7800_0001,
    ERROR_UNSUPPORTED_VERSION = 0x7800_0002,
    ERROR_UNSUPPORTED_FEATURE = 0x7800_0003,
    ERROR_INVALID_ARGUMENT = 0x7800_0004,
    ERROR_INVALID_NULL_HANDLE = 0x7800_0005,
    ERROR_HANDLE_OBJECT_IN_USE = 0x7800_0006,
    ERROR_INVALID_NULL_POINTER = 0x7800_0007,
    ERROR_INVALID_SIZE = 0x7800_0008,
    ERROR_UNSUPPORTED_SIZE = 0x7800_0009,
    ERROR_UNSUPPORTED_ALIGNMENT = 0x7800_000a,
    ERROR_INVALID_SYNCHRONIZATION_OBJECT = 0x7800_000b,
    ERROR_INVALID_ENUMERATION = 0x7800_000c,
    ERROR_UNSUPPORTED_ENUMERATION = 0x7800_000d,
    ERROR_UNSUPPORTED_IMAGE_FORMAT = 0x7800_000e,
    ERROR_INVALID_NATIVE_BINARY = 0x7800_000f,
    ERROR_INVALID_GLOBAL_NAME = 0x7800_0010,
    ERROR_INVALID_KERNEL_NAME = 0x7800_0011,
    ERROR_INVALID_FUNCTION_NAME = 0x7800_0012,
    ERROR_INVALID_GROUP_SIZE_DIMENSION = 0x7800_0013,
    ERROR_INVALID_GLOBAL_WIDTH_DIMENSION = 0x7800_0014,
    ERROR_INVALID_KERNEL_ARGUMENT_INDEX = 0x7800_0015,
    ERROR_INVALID_KERNEL_ARGUMENT_SIZE = 0x7800_0016,
    ERROR_INVALID_KERNEL_ATTRIBUTE_VALUE = 0x7800_0017,
    ERROR_INVALID_MODULE_UNLINKED = 0x7800_0018,
    ERROR_INVALID_COMMAND_LIST_TYPE = 0x7800_0019,
    ERROR_OVERLAPPING_REGIONS = 0x7800_001a,
    WARNING_ACTION_REQUIRED = 0x7800_001b,
    ERROR_UNKNOWN = 0x7fff_fffe,
}

impl fmt::Display for ResultCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:#x})", self.name(), self.0)
    }
}

impl fmt::Debug for ResultCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// --- Handles --------------------------------------------------------------------------------------------

handle!(
    /// `ze_driver_handle_t`
    DriverHandle
);
handle!(
    /// `ze_device_handle_t`
    DeviceHandle
);
handle!(
    /// `ze_context_handle_t`
    ContextHandle
);
handle!(
    /// `ze_command_queue_handle_t`
    CommandQueueHandle
);
handle!(
    /// `ze_command_list_handle_t`
    CommandListHandle
);
handle!(
    /// `ze_fence_handle_t`
    FenceHandle
);
handle!(
    /// `ze_event_pool_handle_t`
    EventPoolHandle
);
handle!(
    /// `ze_event_handle_t`
    EventHandle
);
handle!(
    /// `ze_module_handle_t`
    ModuleHandle
);
handle!(
    /// `ze_module_build_log_handle_t`
    ModuleBuildLogHandle
);
handle!(
    /// `ze_kernel_handle_t`
    KernelHandle
);

// --- Enumerations and flags -----------------------------------------------------------------------------

enumeration! {
    /// `ze_structure_type_t`
    StructureType {
        DRIVER_PROPERTIES = 0x1,
        DEVICE_PROPERTIES = 0x3,
        DEVICE_COMPUTE_PROPERTIES = 0x4,
        DEVICE_MODULE_PROPERTIES = 0x5,
        COMMAND_QUEUE_GROUP_PROPERTIES = 0x6,
        DEVICE_MEMORY_PROPERTIES = 0x7,
        DEVICE_MEMORY_ACCESS_PROPERTIES = 0x8,
        DEVICE_CACHE_PROPERTIES = 0x9,
        CONTEXT_DESC = 0xd,
        COMMAND_QUEUE_DESC = 0xe,
        COMMAND_LIST_DESC = 0xf,
        EVENT_POOL_DESC = 0x10,
        EVENT_DESC = 0x11,
        FENCE_DESC = 0x12,
        DEVICE_MEM_ALLOC_DESC = 0x15,
        HOST_MEM_ALLOC_DESC = 0x16,
        MEMORY_ALLOCATION_PROPERTIES = 0x17,
        MODULE_DESC = 0x1b,
        KERNEL_DESC = 0x1d,
        KERNEL_PROPERTIES = 0x1e,
        RELAXED_ALLOCATION_LIMITS_EXP_DESC = 0x2_0001,
        // With this type in `DeviceProperties`, the timer's resolution is in cycles per second. Else it is in
        // nanoseconds per cycle.
        DEVICE_PROPERTIES_1_2 = 0x2_0006,
        // Since version 1.10.
        INIT_DRIVER_TYPE_DESC = 0x2_0021,
    }
}

/// `ze_api_version_t`: the major version in the upper half, the minor one in the lower.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ApiVersion(pub u32);

impl ApiVersion {
    /// `ZE_MAKE_VERSION`
    pub const fn new(major: u16, minor: u16) -> Self {
        Self((major as u32) << 16 | minor as u32)
    }

    /// `ZE_MAJOR_VERSION`
    pub const fn major(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// `ZE_MINOR_VERSION`
    pub const fn minor(self) -> u16 {
        self.0 as u16
    }
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major(), self.minor())
    }
}

flags! {
    /// `ze_init_flags_t`; 0 asks for all drivers.
    InitFlags {
        GPU_ONLY = 0,
    }
}

flags! {
    /// `ze_init_driver_type_flags_t`, since version 1.10.
    InitDriverTypeFlags {
        GPU = 0,
    }
}

enumeration! {
    /// `ze_device_type_t`
    DeviceType {
        GPU = 1,
        CPU = 2,
    }
}

flags! {
    /// `ze_device_property_flags_t`
    DevicePropertyFlags {
        INTEGRATED = 0,
        SUBDEVICE = 1,
        ECC = 2,
        ONDEMANDPAGING = 3,
    }
}

flags! {
    /// `ze_device_module_flags_t`
    DeviceModuleFlags {
        FP16 = 0,
        FP64 = 1,
        INT64_ATOMICS = 2,
        DP4A = 3,
    }
}

flags! {
    /// `ze_device_fp_flags_t`
    DeviceFpFlags {
        DENORM = 0,
        INF_NAN = 1,
        ROUND_TO_NEAREST = 2,
        ROUND_TO_ZERO = 3,
        ROUND_TO_INF = 4,
        FMA = 5,
        ROUNDED_DIVIDE_SQRT = 6,
        SOFT_FLOAT = 7,
    }
}

flags! {
    /// `ze_command_queue_group_property_flags_t`
    CommandQueueGroupPropertyFlags {
        COMPUTE = 0,
        COPY = 1,
        COOPERATIVE_KERNELS = 2,
        METRICS = 3,
    }
}

flags! {
    /// `ze_memory_access_cap_flags_t`
    MemoryAccessCapFlags {
        RW = 0,
        ATOMIC = 1,
        CONCURRENT = 2,
        CONCURRENT_ATOMIC = 3,
    }
}

flags! {
    /// `ze_command_queue_flags_t`
    CommandQueueFlags {
        EXPLICIT_ONLY = 0,
        // Since version 1.7, for immediate command lists.
        IN_ORDER = 1,
    }
}

enumeration! {
    /// `ze_command_queue_mode_t`
    CommandQueueMode {
        DEFAULT = 0,
        SYNCHRONOUS = 1,
        ASYNCHRONOUS = 2,
    }
}

enumeration! {
    /// `ze_command_queue_priority_t`
    CommandQueuePriority {
        NORMAL = 0,
    }
}

flags! {
    /// `ze_command_list_flags_t`
    CommandListFlags {
        RELAXED_ORDERING = 0,
        MAXIMIZE_THROUGHPUT = 1,
        EXPLICIT_ONLY = 2,
        // Since version 1.7.
        IN_ORDER = 3,
    }
}

flags! {
    /// `ze_fence_flags_t`
    FenceFlags {
        SIGNALED = 0,
    }
}

flags! {
    /// `ze_event_pool_flags_t`
    EventPoolFlags {
        HOST_VISIBLE = 0,
        IPC = 1,
        KERNEL_TIMESTAMP = 2,
    }
}

flags! {
    /// `ze_event_scope_flags_t`
    EventScopeFlags {
        SUBDEVICE = 0,
        DEVICE = 1,
        HOST = 2,
    }
}

flags! {
    /// `ze_device_mem_alloc_flags_t`
    DeviceMemAllocFlags {
        BIAS_CACHED = 0,
        BIAS_UNCACHED = 1,
    }
}

flags! {
    /// `ze_host_mem_alloc_flags_t`
    HostMemAllocFlags {
        BIAS_CACHED = 0,
        BIAS_UNCACHED = 1,
        BIAS_WRITE_COMBINED = 2,
    }
}

flags! {
    /// `ze_relaxed_allocation_limits_exp_flags_t`
    RelaxedAllocationLimitsExpFlags {
        MAX_SIZE = 0,
    }
}

enumeration! {
    /// `ze_memory_type_t`
    MemoryType {
        UNKNOWN = 0,
        HOST = 1,
        DEVICE = 2,
        SHARED = 3,
    }
}

enumeration! {
    /// `ze_module_format_t`
    ModuleFormat {
        IL_SPIRV = 0,
        NATIVE = 1,
    }
}

flags! {
    /// `ze_kernel_flags_t`
    KernelFlags {
        FORCE_RESIDENCY = 0,
        EXPLICIT_RESIDENCY = 1,
    }
}

flags! {
    /// `ze_kernel_indirect_access_flags_t`
    KernelIndirectAccessFlags {
        HOST = 0,
        DEVICE = 1,
        SHARED = 2,
    }
}

// --- Structures -----------------------------------------------------------------------------------------

/// The bytes of a UUID: `ze_driver_uuid_t`, `ze_device_uuid_t`, `ze_native_kernel_uuid_t`.
pub type Uuid = [u8; 16];

structure! {
    /// `ze_init_driver_type_desc_t`, since version 1.10.
    InitDriverTypeDesc: INIT_DRIVER_TYPE_DESC, *const c_void {
        flags: InitDriverTypeFlags,
    }
}

structure! {
    /// `ze_driver_properties_t`
    DriverProperties: DRIVER_PROPERTIES, *mut c_void {
        uuid: Uuid,
        driver_version: u32,
    }
}

/// `ze_driver_extension_properties_t`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the specification's names")]
pub struct DriverExtensionProperties {
    pub name: [c_char; 256],
    pub version: u32,
}

impl Default for DriverExtensionProperties {
    fn default() -> Self {
        Self { name: [0; 256], version: 0 }
    }
}

structure! {
    /// `ze_device_properties_t`
    DeviceProperties: DEVICE_PROPERTIES, *mut c_void {
        kind: DeviceType,
        vendor_id: u32,
        device_id: u32,
        flags: DevicePropertyFlags,
        subdevice_id: u32,
        core_clock_rate: u32,
        max_mem_alloc_size: u64,
        max_hardware_contexts: u32,
        max_command_queue_priority: u32,
        num_threads_per_eu: u32,
        physical_eu_simd_width: u32,
        num_eus_per_subslice: u32,
        num_subslices_per_slice: u32,
        num_slices: u32,
        timer_resolution: u64,
        timestamp_valid_bits: u32,
        kernel_timestamp_valid_bits: u32,
        uuid: Uuid,
        name: [c_char; 256],
    }
}

structure! {
    /// `ze_device_compute_properties_t`
    DeviceComputeProperties: DEVICE_COMPUTE_PROPERTIES, *mut c_void {
        max_total_group_size: u32,
        max_group_size_x: u32,
        max_group_size_y: u32,
        max_group_size_z: u32,
        max_group_count_x: u32,
        max_group_count_y: u32,
        max_group_count_z: u32,
        max_shared_local_memory: u32,
        num_sub_group_sizes: u32,
        sub_group_sizes: [u32; 8],
    }
}

structure! {
    /// `ze_device_module_properties_t`
    DeviceModuleProperties: DEVICE_MODULE_PROPERTIES, *mut c_void {
        spirv_version_supported: u32,
        flags: DeviceModuleFlags,
        fp16_flags: DeviceFpFlags,
        fp32_flags: DeviceFpFlags,
        fp64_flags: DeviceFpFlags,
        max_arguments_size: u32,
        printf_buffer_size: u32,
        native_kernel_supported: Uuid,
    }
}

structure! {
    /// `ze_command_queue_group_properties_t`
    CommandQueueGroupProperties: COMMAND_QUEUE_GROUP_PROPERTIES, *mut c_void {
        flags: CommandQueueGroupPropertyFlags,
        max_memory_fill_pattern_size: usize,
        num_queues: u32,
    }
}

structure! {
    /// `ze_device_memory_properties_t`
    DeviceMemoryProperties: DEVICE_MEMORY_PROPERTIES, *mut c_void {
        flags: u32,
        max_clock_rate: u32,
        max_bus_width: u32,
        total_size: u64,
        name: [c_char; 256],
    }
}

structure! {
    /// `ze_device_memory_access_properties_t`
    DeviceMemoryAccessProperties: DEVICE_MEMORY_ACCESS_PROPERTIES, *mut c_void {
        host_alloc_capabilities: MemoryAccessCapFlags,
        device_alloc_capabilities: MemoryAccessCapFlags,
        shared_single_device_alloc_capabilities: MemoryAccessCapFlags,
        shared_cross_device_alloc_capabilities: MemoryAccessCapFlags,
        shared_system_alloc_capabilities: MemoryAccessCapFlags,
    }
}

structure! {
    /// `ze_device_cache_properties_t`
    DeviceCacheProperties: DEVICE_CACHE_PROPERTIES, *mut c_void {
        flags: u32,
        cache_size: usize,
    }
}

structure! {
    /// `ze_context_desc_t`
    ContextDesc: CONTEXT_DESC, *const c_void {
        flags: u32,
    }
}

structure! {
    /// `ze_command_queue_desc_t`
    CommandQueueDesc: COMMAND_QUEUE_DESC, *const c_void {
        ordinal: u32,
        index: u32,
        flags: CommandQueueFlags,
        mode: CommandQueueMode,
        priority: CommandQueuePriority,
    }
}

structure! {
    /// `ze_command_list_desc_t`
    CommandListDesc: COMMAND_LIST_DESC, *const c_void {
        command_queue_group_ordinal: u32,
        flags: CommandListFlags,
    }
}

/// `ze_copy_region_t`: x and width in bytes, y and z in rows and slices.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs, reason = "the specification's names")]
pub struct CopyRegion {
    pub origin_x: u32,
    pub origin_y: u32,
    pub origin_z: u32,
    pub width: u32,
    pub height: u32,
    pub depth: u32,
}

structure! {
    /// `ze_fence_desc_t`
    FenceDesc: FENCE_DESC, *const c_void {
        flags: FenceFlags,
    }
}

structure! {
    /// `ze_event_pool_desc_t`
    EventPoolDesc: EVENT_POOL_DESC, *const c_void {
        flags: EventPoolFlags,
        count: u32,
    }
}

structure! {
    /// `ze_event_desc_t`
    EventDesc: EVENT_DESC, *const c_void {
        index: u32,
        signal: EventScopeFlags,
        wait: EventScopeFlags,
    }
}

/// `ze_kernel_timestamp_data_t`
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs, reason = "the specification's names")]
pub struct KernelTimestampData {
    pub kernel_start: u64,
    pub kernel_end: u64,
}

/// `ze_kernel_timestamp_result_t`
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs, reason = "the specification's names")]
pub struct KernelTimestampResult {
    pub global: KernelTimestampData,
    pub context: KernelTimestampData,
}

structure! {
    /// `ze_device_mem_alloc_desc_t`
    DeviceMemAllocDesc: DEVICE_MEM_ALLOC_DESC, *const c_void {
        flags: DeviceMemAllocFlags,
        ordinal: u32,
    }
}

structure! {
    /// `ze_host_mem_alloc_desc_t`
    HostMemAllocDesc: HOST_MEM_ALLOC_DESC, *const c_void {
        flags: HostMemAllocFlags,
    }
}

structure! {
    /// `ze_relaxed_allocation_limits_exp_desc_t`, an extension of the two above: asks for more bytes than
    /// `DeviceProperties::max_mem_alloc_size`.
    RelaxedAllocationLimitsExpDesc: RELAXED_ALLOCATION_LIMITS_EXP_DESC, *const c_void {
        flags: RelaxedAllocationLimitsExpFlags,
    }
}

structure! {
    /// `ze_memory_allocation_properties_t`
    MemoryAllocationProperties: MEMORY_ALLOCATION_PROPERTIES, *mut c_void {
        kind: MemoryType,
        id: u64,
        page_size: u64,
    }
}

/// `ze_module_constants_t`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the specification's names")]
pub struct ModuleConstants {
    pub num_constants: u32,
    pub constant_ids: *const u32,
    pub constant_values: *mut *const c_void,
}

structure! {
    /// `ze_module_desc_t`
    ModuleDesc: MODULE_DESC, *const c_void {
        format: ModuleFormat,
        input_size: usize,
        input_module: *const u8,
        build_flags: *const c_char,
        constants: *const ModuleConstants,
    }
}

structure! {
    /// `ze_kernel_desc_t`
    KernelDesc: KERNEL_DESC, *const c_void {
        flags: KernelFlags,
        kernel_name: *const c_char,
    }
}

/// `ze_kernel_uuid_t`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the specification's names")]
pub struct KernelUuid {
    pub kid: [u8; 16],
    pub mid: [u8; 16],
}

structure! {
    /// `ze_kernel_properties_t`
    KernelProperties: KERNEL_PROPERTIES, *mut c_void {
        num_kernel_args: u32,
        required_group_size_x: u32,
        required_group_size_y: u32,
        required_group_size_z: u32,
        required_num_sub_groups: u32,
        required_subgroup_size: u32,
        max_subgroup_size: u32,
        max_num_subgroups: u32,
        local_mem_size: u32,
        private_mem_size: u32,
        spill_mem_size: u32,
        uuid: KernelUuid,
    }
}

/// `ze_group_count_t`
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs, reason = "the specification's names")]
pub struct GroupCount {
    pub group_count_x: u32,
    pub group_count_y: u32,
    pub group_count_z: u32,
}

// --- Functions ------------------------------------------------------------------------------------------

/// Hands the declarations of all functions to the macro `$callback`, in two groups:
/// `required { zeInit => init(flags: InitFlags); .. } optional { .. }`.
///
/// Each declaration has a symbol, a Rust name and parameters. All functions are `unsafe extern "C"` and return
/// [`ResultCode`]. The optional ones are newer than version 1.4. The declarations use the names of this module. So
/// whoever uses the macro imports the whole module, `c_char` and `c_void`.
macro_rules! for_each_function {
    ($callback:ident) => {
        $callback! {
            required {
                zeInit => init(flags: InitFlags);
                zeDriverGet => driver_get(count: *mut u32, drivers: *mut DriverHandle);
                zeDriverGetApiVersion => driver_get_api_version(driver: DriverHandle, version: *mut ApiVersion);
                zeDriverGetProperties => driver_get_properties(driver: DriverHandle, properties: *mut DriverProperties);
                zeDriverGetExtensionProperties => driver_get_extension_properties(driver: DriverHandle, count: *mut u32, properties: *mut DriverExtensionProperties);

                zeDeviceGet => device_get(driver: DriverHandle, count: *mut u32, devices: *mut DeviceHandle);
                zeDeviceGetSubDevices => device_get_sub_devices(device: DeviceHandle, count: *mut u32, subdevices: *mut DeviceHandle);
                zeDeviceGetProperties => device_get_properties(device: DeviceHandle, properties: *mut DeviceProperties);
                zeDeviceGetComputeProperties => device_get_compute_properties(device: DeviceHandle, properties: *mut DeviceComputeProperties);
                zeDeviceGetModuleProperties => device_get_module_properties(device: DeviceHandle, properties: *mut DeviceModuleProperties);
                zeDeviceGetCommandQueueGroupProperties => device_get_command_queue_group_properties(device: DeviceHandle, count: *mut u32, properties: *mut CommandQueueGroupProperties);
                zeDeviceGetMemoryProperties => device_get_memory_properties(device: DeviceHandle, count: *mut u32, properties: *mut DeviceMemoryProperties);
                zeDeviceGetMemoryAccessProperties => device_get_memory_access_properties(device: DeviceHandle, properties: *mut DeviceMemoryAccessProperties);
                zeDeviceGetCacheProperties => device_get_cache_properties(device: DeviceHandle, count: *mut u32, properties: *mut DeviceCacheProperties);
                zeDeviceGetGlobalTimestamps => device_get_global_timestamps(device: DeviceHandle, host_timestamp: *mut u64, device_timestamp: *mut u64);
                zeDeviceCanAccessPeer => device_can_access_peer(device: DeviceHandle, peer: DeviceHandle, value: *mut u8);

                zeContextCreate => context_create(driver: DriverHandle, desc: *const ContextDesc, context: *mut ContextHandle);
                zeContextDestroy => context_destroy(context: ContextHandle);
                zeContextGetStatus => context_get_status(context: ContextHandle);

                zeCommandQueueCreate => command_queue_create(context: ContextHandle, device: DeviceHandle, desc: *const CommandQueueDesc, queue: *mut CommandQueueHandle);
                zeCommandQueueDestroy => command_queue_destroy(queue: CommandQueueHandle);
                zeCommandQueueExecuteCommandLists => command_queue_execute_command_lists(queue: CommandQueueHandle, count: u32, lists: *mut CommandListHandle, fence: FenceHandle);
                zeCommandQueueSynchronize => command_queue_synchronize(queue: CommandQueueHandle, timeout: u64);

                zeCommandListCreate => command_list_create(context: ContextHandle, device: DeviceHandle, desc: *const CommandListDesc, list: *mut CommandListHandle);
                zeCommandListCreateImmediate => command_list_create_immediate(context: ContextHandle, device: DeviceHandle, desc: *const CommandQueueDesc, list: *mut CommandListHandle);
                zeCommandListDestroy => command_list_destroy(list: CommandListHandle);
                zeCommandListClose => command_list_close(list: CommandListHandle);
                zeCommandListReset => command_list_reset(list: CommandListHandle);
                zeCommandListAppendBarrier => command_list_append_barrier(list: CommandListHandle, signal: EventHandle, wait_count: u32, wait: *mut EventHandle);
                zeCommandListAppendMemoryCopy => command_list_append_memory_copy(list: CommandListHandle, dst: *mut c_void, src: *const c_void, size: usize, signal: EventHandle, wait_count: u32, wait: *mut EventHandle);
                zeCommandListAppendMemoryFill => command_list_append_memory_fill(list: CommandListHandle, dst: *mut c_void, pattern: *const c_void, pattern_size: usize, size: usize, signal: EventHandle, wait_count: u32, wait: *mut EventHandle);
                zeCommandListAppendMemoryCopyRegion => command_list_append_memory_copy_region(list: CommandListHandle, dst: *mut c_void, dst_region: *const CopyRegion, dst_pitch: u32, dst_slice_pitch: u32, src: *const c_void, src_region: *const CopyRegion, src_pitch: u32, src_slice_pitch: u32, signal: EventHandle, wait_count: u32, wait: *mut EventHandle);
                zeCommandListAppendLaunchKernel => command_list_append_launch_kernel(list: CommandListHandle, kernel: KernelHandle, groups: *const GroupCount, signal: EventHandle, wait_count: u32, wait: *mut EventHandle);
                zeCommandListAppendSignalEvent => command_list_append_signal_event(list: CommandListHandle, event: EventHandle);
                zeCommandListAppendWaitOnEvents => command_list_append_wait_on_events(list: CommandListHandle, count: u32, events: *mut EventHandle);
                zeCommandListAppendEventReset => command_list_append_event_reset(list: CommandListHandle, event: EventHandle);
                zeCommandListAppendWriteGlobalTimestamp => command_list_append_write_global_timestamp(list: CommandListHandle, dst: *mut u64, signal: EventHandle, wait_count: u32, wait: *mut EventHandle);

                zeFenceCreate => fence_create(queue: CommandQueueHandle, desc: *const FenceDesc, fence: *mut FenceHandle);
                zeFenceDestroy => fence_destroy(fence: FenceHandle);
                zeFenceHostSynchronize => fence_host_synchronize(fence: FenceHandle, timeout: u64);
                zeFenceQueryStatus => fence_query_status(fence: FenceHandle);
                zeFenceReset => fence_reset(fence: FenceHandle);

                zeEventPoolCreate => event_pool_create(context: ContextHandle, desc: *const EventPoolDesc, device_count: u32, devices: *mut DeviceHandle, pool: *mut EventPoolHandle);
                zeEventPoolDestroy => event_pool_destroy(pool: EventPoolHandle);
                zeEventCreate => event_create(pool: EventPoolHandle, desc: *const EventDesc, event: *mut EventHandle);
                zeEventDestroy => event_destroy(event: EventHandle);
                zeEventHostSignal => event_host_signal(event: EventHandle);
                zeEventHostSynchronize => event_host_synchronize(event: EventHandle, timeout: u64);
                zeEventQueryStatus => event_query_status(event: EventHandle);
                zeEventHostReset => event_host_reset(event: EventHandle);
                zeEventQueryKernelTimestamp => event_query_kernel_timestamp(event: EventHandle, result: *mut KernelTimestampResult);

                zeMemAllocDevice => mem_alloc_device(context: ContextHandle, desc: *const DeviceMemAllocDesc, size: usize, alignment: usize, device: DeviceHandle, memory: *mut *mut c_void);
                zeMemAllocHost => mem_alloc_host(context: ContextHandle, desc: *const HostMemAllocDesc, size: usize, alignment: usize, memory: *mut *mut c_void);
                zeMemAllocShared => mem_alloc_shared(context: ContextHandle, device_desc: *const DeviceMemAllocDesc, host_desc: *const HostMemAllocDesc, size: usize, alignment: usize, device: DeviceHandle, memory: *mut *mut c_void);
                zeMemFree => mem_free(context: ContextHandle, memory: *mut c_void);
                zeMemGetAllocProperties => mem_get_alloc_properties(context: ContextHandle, memory: *const c_void, properties: *mut MemoryAllocationProperties, device: *mut DeviceHandle);
                zeMemGetAddressRange => mem_get_address_range(context: ContextHandle, memory: *const c_void, base: *mut *mut c_void, size: *mut usize);

                zeModuleCreate => module_create(context: ContextHandle, device: DeviceHandle, desc: *const ModuleDesc, module: *mut ModuleHandle, build_log: *mut ModuleBuildLogHandle);
                zeModuleDestroy => module_destroy(module: ModuleHandle);
                zeModuleGetNativeBinary => module_get_native_binary(module: ModuleHandle, size: *mut usize, binary: *mut u8);
                zeModuleGetKernelNames => module_get_kernel_names(module: ModuleHandle, count: *mut u32, names: *mut *const c_char);
                zeModuleBuildLogDestroy => module_build_log_destroy(build_log: ModuleBuildLogHandle);
                zeModuleBuildLogGetString => module_build_log_get_string(build_log: ModuleBuildLogHandle, size: *mut usize, text: *mut c_char);

                zeKernelCreate => kernel_create(module: ModuleHandle, desc: *const KernelDesc, kernel: *mut KernelHandle);
                zeKernelDestroy => kernel_destroy(kernel: KernelHandle);
                zeKernelSetGroupSize => kernel_set_group_size(kernel: KernelHandle, x: u32, y: u32, z: u32);
                zeKernelSetArgumentValue => kernel_set_argument_value(kernel: KernelHandle, index: u32, size: usize, value: *const c_void);
                zeKernelGetProperties => kernel_get_properties(kernel: KernelHandle, properties: *mut KernelProperties);
                zeKernelSetIndirectAccess => kernel_set_indirect_access(kernel: KernelHandle, flags: KernelIndirectAccessFlags);
            }
            optional {
                // Since version 1.10.
                zeInitDrivers => init_drivers(count: *mut u32, drivers: *mut DriverHandle, desc: *mut InitDriverTypeDesc);
                // Since version 1.6.
                zeCommandListHostSynchronize => command_list_host_synchronize(list: CommandListHandle, timeout: u64);
            }
        }
    };
}
pub(crate) use for_each_function;
