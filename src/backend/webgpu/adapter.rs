//! Finds adapters, and describes them.

use crate::backend::fork;
use crate::backend::info::{DeviceInfo, DeviceKind, Limits, powers_of_two, uses_float_atomics, vendor_name};
use crate::backend::registry;
use crate::base::backend_kind::BackendKind;
use crate::base::environment;
use crate::base::error::Result;
use crate::base::features::{Features, MatrixUnits};
use parking_lot::Mutex;

/// Returns the devices that this backend can open, in the order of their indices.
pub(crate) async fn list() -> Result<Vec<DeviceInfo>> {
    let adapters = adapters().await?;
    Ok(adapters.iter().enumerate().map(|(index, adapter)| describe(adapter, index)).collect())
}

/// Returns the adapter with this index.
pub(super) async fn find(index: usize) -> Result<wgpu::Adapter> {
    let mut adapters = adapters().await?;
    if index < adapters.len() {
        return Ok(adapters.swap_remove(index));
    }
    let found: Vec<_> = adapters.iter().enumerate().map(|(i, a)| format!("webgpu:{i} {}", a.get_info().name)).collect();
    let reason = format!("there is no device {index}; {} found: {}", found.len(), found.join(", "));
    Err(registry::unavailable(BackendKind::WebGpu, reason))
}

/// Returns every adapter that can run kernels, at least one.
async fn adapters() -> Result<Vec<wgpu::Adapter>> {
    let (mut adapters, failure) = if cfg!(native) { (enumerate().await, String::new()) } else { request().await };
    adapters.retain(|a| a.get_downlevel_capabilities().flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS));
    if adapters.is_empty() {
        return Err(registry::no_driver(BackendKind::WebGpu, format_args!("wgpu finds no adapter{failure}")));
    }
    Ok(adapters)
}

/// Returns the one adapter that a browser gives, or why it gives none.
async fn request() -> (Vec<wgpu::Adapter>, String) {
    match instance().request_adapter(&wgpu::RequestAdapterOptions::default()).await {
        Ok(adapter) => (vec![adapter], String::new()),
        Err(error) => (Vec::new(), format!(" ({error})")),
    }
}

/// Returns the adapters of the process's one instance. Once it finds any it is kept: creating one takes up to 0.3 s.
async fn enumerate() -> Vec<wgpu::Adapter> {
    static SHARED: Mutex<Option<(u32, wgpu::Instance)>> = Mutex::new(None);
    let known = SHARED.lock().clone().filter(|(process, _)| *process == fork::process());
    let instance = known.map_or_else(instance, |(_, instance)| instance);
    let adapters = instance.enumerate_adapters(wgpu::Backends::PRIMARY).await;
    if !adapters.is_empty() {
        let earlier = SHARED.lock().replace((fork::process(), instance));
        // The instance of a parent process must not be closed here.
        std::mem::forget(earlier.filter(|(process, _)| *process != fork::process()));
    }
    adapters
}

fn instance() -> wgpu::Instance {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    // No OpenGL: it lacks most of what kernels need.
    descriptor.backends = wgpu::Backends::PRIMARY;
    // By default the driver would check what wgpu and this crate have checked already. wgpu's debug information stays
    // off in either case: naga states a source language there that older validation layers do not know.
    descriptor.flags =
        if environment::settings().validation { wgpu::InstanceFlags::VALIDATION } else { wgpu::InstanceFlags::empty() };
    wgpu::Instance::new(descriptor)
}

/// Returns the wgpu features behind the crate's, as far as the adapter has them.
pub(super) fn wgpu_features(adapter: &wgpu::Adapter) -> wgpu::Features {
    use wgpu::Features as F;
    let mut used = F::SHADER_F16 | F::SHADER_INT64 | F::SHADER_F64 | F::SUBGROUP;
    used.set(F::SHADER_FLOAT32_ATOMIC, uses_float_atomics(true));
    if cfg!(native) {
        // A browser has them too, but the times are read by waiting.
        used |= F::TIMESTAMP_QUERY | F::TIMESTAMP_QUERY_INSIDE_ENCODERS;
    }
    #[cfg(wgpu_on_vulkan)]
    if !environment::settings().force.wgsl {
        used |= super::on_vulkan::features(adapter);
    }
    adapter.features() & used
}

/// What kernels need to go to the driver as SPIR-V: the passage there, and push constants for their parameters.
pub(super) const SPIRV: wgpu::Features = wgpu::Features::PASSTHROUGH_SHADERS.union(wgpu::Features::IMMEDIATES);

/// Returns the words of a parameter block in a uniform buffer.
pub(super) fn uniform_words(limits: &wgpu::Limits) -> u32 {
    (limits.max_uniform_buffer_binding_size / 4).min(1024) as u32
}

/// Returns the words of a parameter block in push constants. wgpu tracks at most 64 of them.
fn immediate_words(limits: &wgpu::Limits) -> u32 {
    (limits.max_immediate_size / 4).min(64)
}

/// Describes an adapter.
pub(super) fn describe(adapter: &wgpu::Adapter, index: usize) -> DeviceInfo {
    let info = adapter.get_info();
    let limits = adapter.limits();
    let features = wgpu_features(adapter);
    let subgroups = features.contains(wgpu::Features::SUBGROUP);
    let kind = match info.device_type {
        wgpu::DeviceType::DiscreteGpu => DeviceKind::Discrete,
        wgpu::DeviceType::IntegratedGpu => DeviceKind::Integrated,
        wgpu::DeviceType::VirtualGpu => DeviceKind::Virtual,
        wgpu::DeviceType::Cpu => DeviceKind::Cpu,
        wgpu::DeviceType::Other => DeviceKind::Other,
    };
    let max_buffer = limits.max_buffer_size.min(limits.max_storage_buffer_binding_size) & !15;
    #[cfg_attr(not(wgpu_on_vulkan), expect(unused_mut, reason = "nobody tells more"))]
    let mut described = DeviceInfo {
        backend: BackendKind::WebGpu,
        index,
        name: if info.name.is_empty() { "WebGPU adapter".into() } else { info.name },
        vendor: vendor_name(info.vendor),
        kind,
        driver: driver_text(info.backend, &info.driver, &info.driver_info),
        // WebGPU reports no memories, and the host reaches no buffers of kernels.
        memory: 0,
        memory_regions: Vec::new(),
        host_visible: false,
        unified_memory: false,
        compute_units: if kind == DeviceKind::Cpu { processors() } else { None },
        sub_devices: 0,
        limits: Limits {
            max_buffer_bytes: max_buffer,
            max_binding_bytes: max_buffer,
            max_bindings: limits
                .max_storage_buffers_per_shader_stage
                .min(limits.max_bindings_per_bind_group.saturating_sub(1)),
            max_parameter_words: if features.contains(SPIRV) {
                immediate_words(&limits)
            } else {
                uniform_words(&limits)
            },
            max_workgroup_invocations: limits.max_compute_invocations_per_workgroup,
            max_workgroup_memory: limits.max_compute_workgroup_storage_size,
            max_groups: limits.max_compute_workgroups_per_dimension,
            max_workgroup_size: [
                limits.max_compute_workgroup_size_x,
                limits.max_compute_workgroup_size_y,
                limits.max_compute_workgroup_size_z,
            ],
            subgroup_sizes: if subgroups {
                powers_of_two(info.subgroup_min_size, info.subgroup_max_size)
            } else {
                Vec::new()
            },
            copy_alignment: wgpu::COPY_BUFFER_ALIGNMENT,
            max_addressed_words: 0,
            max_groups_in_line: limits.max_compute_workgroups_per_dimension,
        },
        features: Features {
            f16: features.contains(wgpu::Features::SHADER_F16),
            i64: features.contains(wgpu::Features::SHADER_INT64),
            f64: features.contains(wgpu::Features::SHADER_F64),
            subgroups,
            matrix_units: MatrixUnits::default(),
            integer_dot_products: false,
            atomics: true,
            float_atomics: features.contains(wgpu::Features::SHADER_FLOAT32_ATOMIC),
            memory_model: false,
            timestamps: features.contains(wgpu::Features::TIMESTAMP_QUERY),
        },
    };
    #[cfg(wgpu_on_vulkan)]
    super::on_vulkan::complete(adapter, features, &mut described);
    described
}

/// Returns the number of the processor's cores. They are the compute units of a driver that runs on them.
fn processors() -> Option<u32> {
    std::thread::available_parallelism().ok().and_then(|count| u32::try_from(count.get()).ok())
}

/// Returns the driver's name, such as "wgpu 30 on Vulkan, llvmpipe Mesa 25.0.7". A browser reports only the first part.
fn driver_text(beneath: wgpu::Backend, driver: &str, version: &str) -> String {
    let beneath = match beneath {
        wgpu::Backend::Vulkan => "Vulkan",
        wgpu::Backend::Metal => "Metal",
        wgpu::Backend::Dx12 => "Direct3D 12",
        wgpu::Backend::BrowserWebGpu => "a browser",
        other => other.to_str(),
    };
    let driver = format!("{driver} {version}");
    match driver.trim() {
        "" => format!("wgpu 30 on {beneath}"),
        driver => format!("wgpu 30 on {beneath}, {driver}"),
    }
}

#[cfg(test)]
#[cfg(device_tests)]
mod tests {
    use super::*;

    #[test]
    fn lists_devices_with_usable_limits() {
        let devices = pollster::block_on(list()).unwrap();
        for (index, device) in devices.iter().enumerate() {
            assert_eq!(device.id(), format!("webgpu:{index}"));
            assert!(!device.name.is_empty() && device.driver.starts_with("wgpu 30 on "), "{device}");
            let limits = &device.limits;
            assert!(limits.max_buffer_bytes >= 128 << 20 && limits.max_buffer_bytes % 16 == 0, "{limits:?}");
            assert!(limits.max_bindings >= 8 && [32, 64, 1024].contains(&limits.max_parameter_words), "{limits:?}");
            assert!(limits.max_workgroup_invocations >= 256 && limits.max_groups >= 65_535, "{limits:?}");
            assert!(limits.subgroup_sizes.is_sorted(), "{limits:?}");
            assert_eq!(limits.copy_alignment, 4);
            assert!(device.compute_units.is_some() || device.kind != DeviceKind::Cpu, "{device}");
            // As WGSL, parameters come in a larger uniform buffer, and wgpu opens the device.
            let reached = device.kind == DeviceKind::Cpu && limits.max_parameter_words <= 64;
            assert_eq!([device.host_visible, device.unified_memory], [reached; 2], "{device:?}");
            assert!(device.memory_regions.is_empty(), "{device:?}");
        }
    }

    #[test]
    fn an_index_that_does_not_exist_names_those_that_do() {
        let error = pollster::block_on(find(99)).unwrap_err().to_string();
        assert!(error.contains("no device 99") && error.contains("webgpu:0"), "{error}");
    }

    #[test]
    fn driver_text_leaves_out_what_is_unknown() {
        assert_eq!(driver_text(wgpu::Backend::Vulkan, "llvmpipe", "Mesa 25"), "wgpu 30 on Vulkan, llvmpipe Mesa 25");
        assert_eq!(driver_text(wgpu::Backend::BrowserWebGpu, "", ""), "wgpu 30 on a browser");
    }
}
