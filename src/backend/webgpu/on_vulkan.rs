//! wgpu on Vulkan: the crate's own kernels go to the driver as SPIR-V, unchanged, and reach its matrix units.
//!
//! wgpu reports only some of the driver's matrix units, and opens devices without all that kernels need. So the crate
//! asks the driver and creates the device here.

use super::adapter::SPIRV;
use super::hooks;
use crate::backend::cooperative_matrix2::{self, Abilities};
use crate::backend::info::{DeviceInfo, DeviceKind};
use crate::backend::units::{self, Bfloat16Features};
use crate::base::features::MatrixUnits;
use ash::{ext, vk};
use std::ffi::CStr;
use wgpu::hal::vulkan::{Adapter, Api};

/// Makes wgpu enable the extension for matrices, and what the extension builds upon.
const MATRICES: wgpu::Features = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;

/// 16-bit integers, in which kernels hand halves to the units.
const SHORTS: wgpu::Features = wgpu::Features::SHADER_I16;

/// Returns the features of an adapter that let kernels go to the driver as SPIR-V, and use matrix units there.
pub(super) fn features(adapter: &wgpu::Adapter) -> wgpu::Features {
    // SAFETY: nothing of the adapter is destroyed or changed.
    let hal = unsafe { adapter.as_hal::<Api>() };
    let version = hal.map_or(0, |hal| hal.physical_device_capabilities().properties().api_version);
    match adapter.features() {
        there if there.contains(SPIRV) && version >= vk::API_VERSION_1_2 => there & (SPIRV | MATRICES | SHORTS),
        _ => wgpu::Features::empty(),
    }
}

/// Adds what the driver reports and wgpu does not.
pub(super) fn complete(adapter: &wgpu::Adapter, features: wgpu::Features, info: &mut DeviceInfo) {
    // SAFETY: nothing of the adapter is destroyed or changed.
    let Some(hal) = (unsafe { adapter.as_hal::<Api>() }) else { return };
    let (raw, physical, offered) = (hal.shared_instance().raw_instance(), hal.raw_physical_device(), offered(&hal));
    // SAFETY: the physical device is of this instance, and offers these extensions.
    info.compute_units = unsafe { units::compute_units(raw, physical, &offered) };
    if features.contains(SPIRV) {
        let version = hal.physical_device_capabilities().properties().api_version;
        // SAFETY: as above, and this is its version. wgpu enables the feature if the device has it.
        info.features.integer_dot_products = unsafe { units::dot_products(raw, physical, version, &offered) };
        // A software device has only the host's memory. A GPU may allow only 4,096 allocations, and these buffers do
        // not share any.
        let is_software = info.kind == DeviceKind::Cpu;
        (info.host_visible, info.unified_memory) = (is_software, is_software);
    }
    // Kernels on matrix units need subgroups of 32 lanes.
    if features.contains(MATRICES) && info.limits.subgroup_sizes == [32] {
        info.features.matrix_units = matrix_units(&hal).0;
        let units = &mut info.features.matrix_units;
        if !features.contains(SHORTS) {
            (units.f16, units.bf16) = (None, None);
        }
        if !info.features.f16 {
            units.f16 = None;
        }
        // wgpu enables it with the matrices.
        info.features.memory_model = true;
    }
}

/// Returns the matrix units of an adapter with the feature, and whether kernels choose the sizes of matrices.
fn matrix_units(hal: &Adapter) -> (MatrixUnits, Abilities) {
    let instance = hal.shared_instance();
    let (entry, raw) = (instance.entry(), instance.raw_instance());
    // SAFETY: the physical device is of this instance, has version 1.2 and offers these extensions.
    unsafe { units::matrix_units(entry, raw, hal.raw_physical_device(), &offered(hal)) }
}

/// Returns the extensions that the device offers.
fn offered(hal: &Adapter) -> Vec<vk::ExtensionProperties> {
    let raw = hal.shared_instance().raw_instance();
    // SAFETY: the physical device is of this instance.
    unsafe { raw.enumerate_device_extension_properties(hal.raw_physical_device()) }.unwrap_or_default()
}

/// Opens a device. If kernels go to the driver as SPIR-V, it is the device that wgpu would open, with these changes:
///
/// - The matrix units take all that they can.
/// - The driver checks the bounds of buffers only for kernels that are not trusted.
/// - The queue is of the family that the Vulkan backend takes, not of the first one.
///
/// Without any one of these, some products on an H200 have less than nine tenths of their speed.
pub(super) async fn open(
    adapter: &wgpu::Adapter,
    descriptor: &wgpu::DeviceDescriptor<'_>,
) -> Result<(wgpu::Device, wgpu::Queue), String> {
    let wgpu::DeviceDescriptor { required_features, required_limits, memory_hints, .. } = descriptor;
    // SAFETY: nothing of the adapter is destroyed or changed.
    let hal = unsafe { adapter.as_hal::<Api>() }.filter(|_| required_features.contains(SPIRV));
    let Some(hal) = hal else {
        return adapter.request_device(descriptor).await.map_err(|error| error.to_string());
    };
    let family = compute_family(&hal);
    let (raw, extensions) =
        create(&hal, *required_features, family).map_err(|result| format!("vkCreateDevice: {result}"))?;
    // SAFETY: the device was created with what the adapter wants for these features, and with one queue of this family.
    let opened = unsafe {
        hal.device_from_raw(raw, None, &extensions, *required_features, required_limits, memory_hints, family, 0)
    };
    let opened = opened.map_err(|error| error.to_string())?;
    // SAFETY: the device was opened by this adapter, with the features that the descriptor names.
    unsafe { adapter.create_device_from_hal::<Api>(opened, descriptor) }.map_err(|error| error.to_string())
}

/// Returns the family of the queue.
fn compute_family(hal: &Adapter) -> u32 {
    let raw = hal.shared_instance().raw_instance();
    // SAFETY: the physical device is of this instance.
    let families = unsafe { raw.get_physical_device_queue_family_properties(hal.raw_physical_device()) };
    units::compute_family(&families).unwrap_or(0)
}

/// Creates a device with what wgpu enables for its features, and more. Returns it and its extensions.
fn create(
    hal: &Adapter,
    features: wgpu::Features,
    family: u32,
) -> Result<(ash::Device, Vec<&'static CStr>), vk::Result> {
    let mut extensions = hal.required_device_extensions(features);
    let mut enabled = hal.physical_device_features(&extensions, features);
    let (units, abilities) = if features.contains(MATRICES) { matrix_units(hal) } else { Default::default() };
    let choosable = units::has_extension(&offered(hal), ext::pipeline_robustness::NAME);
    let additions = [
        (units.bf16.is_some(), units::BFLOAT16),
        (abilities != Abilities::default(), cooperative_matrix2::NAME),
        (choosable, ext::pipeline_robustness::NAME),
    ];
    extensions.extend(additions.into_iter().filter_map(|(there, name)| there.then_some(name)));

    let mut bfloat16 = Bfloat16Features::new(true);
    let mut second = cooperative_matrix2::Features::new(abilities);
    let mut robustness = vk::PhysicalDevicePipelineRobustnessFeaturesEXT::default().pipeline_robustness(true);
    let names: Vec<_> = extensions.iter().map(|name| name.as_ptr()).collect();
    let queues = [vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&[1.0])];
    let mut info = vk::DeviceCreateInfo::default().queue_create_infos(&queues).enabled_extension_names(&names);
    if units.bf16.is_some() {
        info = info.push_next(&mut bfloat16);
    }
    if abilities != Abilities::default() {
        info = info.push_next(&mut second);
    }
    if choosable {
        info = info.push_next(&mut robustness);
    }
    let info = enabled.add_to_device_create(info);
    let instance = hal.shared_instance();
    // SAFETY: the adapter has the family, the extensions and their features.
    let device = unsafe { instance.raw_instance().create_device(hal.raw_physical_device(), &info, None) }?;
    Ok((hooks::install(instance, device, choosable), extensions))
}
