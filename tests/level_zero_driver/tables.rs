//! The exports of the library. Applications that open it directly call the functions of the interface by name. The
//! loader calls the getters of function tables.

use crate::ffi::*;
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

static OPENED_DIRECTLY: AtomicBool = AtomicBool::new(false);

/// True if the application calls the exported functions directly, without the loader.
pub fn is_opened_directly() -> bool {
    OPENED_DIRECTLY.load(Ordering::Relaxed)
}

/// All functions of the driver, from the files that define them.
mod implementation {
    pub use crate::command_list::*;
    pub use crate::context::*;
    pub use crate::device::*;
    pub use crate::event::*;
    pub use crate::kernel::*;
    pub use crate::memory::*;
    pub use crate::module::*;
    pub use crate::queue::*;
}

/// Defines two functions for each function of the interface: one for the tables, and one exported by name.
macro_rules! entry_points {
    (
        required { $($symbol:ident => $name:ident($($parameter:ident: $ty:ty),*);)* }
        optional { $($newer:ident => $newer_name:ident($($newer_parameter:ident: $newer_ty:ty),*);)* }
    ) => {
        entry_points!($($symbol => $name($($parameter: $ty),*);)*);
        entry_points!($($newer => $newer_name($($newer_parameter: $newer_ty),*);)*);
    };
    ($($symbol:ident => $name:ident($($parameter:ident: $ty:ty),*);)*) => {
        $(
            unsafe extern "C" fn $name($($parameter: $ty),*) -> ResultCode {
                use crate::pointer::Argument as _;
                // SAFETY: the interface requires callers to pass pointers that are null or valid.
                match implementation::$name($(unsafe { $parameter.checked() }),*) {
                    Ok(()) => ResultCode::SUCCESS,
                    Err(code) => code,
                }
            }

            #[allow(non_snake_case, reason = "the specification's name")]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $symbol($($parameter: $ty),*) -> ResultCode {
                OPENED_DIRECTLY.store(true, Ordering::Relaxed);
                // SAFETY: the arguments are passed on.
                unsafe { $name($($parameter),*) }
            }
        )*
    };
}
for_each_function!(entry_points);

/// Fills a table of the loader. All its fields are function pointers. Fields for missing functions stay null, and the
/// loader reports those features as unsupported.
///
/// # Safety
/// The table must have at least as many fields as there are entries.
unsafe fn fill(table: *mut *const c_void, entries: &[*const c_void]) -> ResultCode {
    if table.is_null() {
        return ResultCode::ERROR_INVALID_NULL_POINTER;
    }
    for (index, &entry) in entries.iter().enumerate() {
        // SAFETY: as the caller promises.
        unsafe { *table.add(index) = entry };
    }
    ResultCode::SUCCESS
}

/// Defines the getters of tables. The entries are in the order of `ze_ddi.h`, and `_` is a missing function.
macro_rules! tables {
    ($($getter:ident { $($entry:tt),* })*) => {
        $(
            #[allow(non_snake_case, reason = "the loader's name")]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $getter(_version: ApiVersion, table: *mut *const c_void) -> ResultCode {
                // SAFETY: the loader passes the table that the getter is named after, of version 1.4 or newer. Newer
                // versions only add fields at the end.
                unsafe { fill(table, &[$(tables!(@ $entry)),*]) }
            }
        )*
    };
    (@ _) => { std::ptr::null() };
    (@ $entry:ident) => { $entry as *const c_void };
}

tables! {
    zeGetGlobalProcAddrTable { init }
    zeGetDriverProcAddrTable {
        driver_get, driver_get_api_version, driver_get_properties, _, driver_get_extension_properties
    }
    zeGetDeviceProcAddrTable {
        device_get, device_get_sub_devices, device_get_properties, device_get_compute_properties,
        device_get_module_properties, device_get_command_queue_group_properties, device_get_memory_properties,
        device_get_memory_access_properties, device_get_cache_properties, _, _, _, device_can_access_peer, _,
        device_get_global_timestamps
    }
    zeGetContextProcAddrTable { context_create, context_destroy, context_get_status }
    zeGetCommandQueueProcAddrTable {
        command_queue_create, command_queue_destroy, command_queue_execute_command_lists, command_queue_synchronize
    }
    zeGetCommandListProcAddrTable {
        command_list_create, command_list_create_immediate, command_list_destroy, command_list_close,
        command_list_reset, command_list_append_write_global_timestamp, command_list_append_barrier, _,
        command_list_append_memory_copy, command_list_append_memory_fill, command_list_append_memory_copy_region,
        _, _, _, _, _, _, _, command_list_append_signal_event, command_list_append_wait_on_events,
        command_list_append_event_reset, _, command_list_append_launch_kernel
    }
    zeGetFenceProcAddrTable { fence_create, fence_destroy, fence_host_synchronize, fence_query_status, fence_reset }
    zeGetEventPoolProcAddrTable { event_pool_create, event_pool_destroy }
    zeGetEventProcAddrTable {
        event_create, event_destroy, event_host_signal, event_host_synchronize, event_query_status, event_host_reset,
        event_query_kernel_timestamp
    }
    zeGetMemProcAddrTable {
        mem_alloc_shared, mem_alloc_device, mem_alloc_host, mem_free, mem_get_alloc_properties, mem_get_address_range
    }
    zeGetModuleProcAddrTable {
        module_create, module_destroy, _, module_get_native_binary, _, module_get_kernel_names
    }
    zeGetModuleBuildLogProcAddrTable { module_build_log_destroy, module_build_log_get_string }
    zeGetKernelProcAddrTable {
        kernel_create, kernel_destroy, _, kernel_set_group_size, _, _, kernel_set_argument_value,
        kernel_set_indirect_access, _, _, kernel_get_properties
    }

    // The loader refuses drivers without these tables, but the tables may be empty.
    zeGetImageProcAddrTable {}
    zeGetSamplerProcAddrTable {}
    zeGetPhysicalMemProcAddrTable {}
    zeGetVirtualMemProcAddrTable {}
    zetGetDeviceProcAddrTable {}
    zetGetContextProcAddrTable {}
    zetGetCommandListProcAddrTable {}
    zetGetKernelProcAddrTable {}
    zetGetModuleProcAddrTable {}
    zetGetDebugProcAddrTable {}
    zetGetMetricProcAddrTable {}
    zetGetMetricGroupProcAddrTable {}
    zetGetMetricQueryProcAddrTable {}
    zetGetMetricQueryPoolProcAddrTable {}
    zetGetMetricStreamerProcAddrTable {}
    zetGetTracerExpProcAddrTable {}
    zesGetDeviceProcAddrTable {}
    zesGetDriverProcAddrTable {}
    zesGetDiagnosticsProcAddrTable {}
    zesGetEngineProcAddrTable {}
    zesGetFabricPortProcAddrTable {}
    zesGetFanProcAddrTable {}
    zesGetFirmwareProcAddrTable {}
    zesGetFrequencyProcAddrTable {}
    zesGetLedProcAddrTable {}
    zesGetMemoryProcAddrTable {}
    zesGetPerformanceFactorProcAddrTable {}
    zesGetPowerProcAddrTable {}
    zesGetPsuProcAddrTable {}
    zesGetRasProcAddrTable {}
    zesGetSchedulerProcAddrTable {}
    zesGetStandbyProcAddrTable {}
    zesGetTemperatureProcAddrTable {}
}
