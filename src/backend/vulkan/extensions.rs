//! The optional extensions that are used if a device has them.

use super::instance::Instance;
use crate::backend::cooperative_matrix2::{self, Abilities};
use crate::backend::info::uses_float_atomics;
use crate::backend::units::{self, has_extension};
use crate::base::features::MatrixUnits;
use ash::prelude::VkResult;
use ash::{ext, khr, vk};
use std::ffi::{CStr, c_char};

/// The optional extensions of a device.
pub(super) struct Extensions {
    /// Compares the device's clock with the host's. This is the name under which the device has it, the old or the new
    /// one.
    pub calibrated_timestamps: Option<&'static CStr>,
    /// Reports how much memory the process may have.
    pub memory_budget: bool,
    /// Reports whether a binary made the driver's compiler unnecessary. Devices of version 1.3 need no extension for
    /// it.
    pub creation_feedback: bool,
    /// Lets single kernels choose whether the device checks the bounds of their buffers.
    pub pipeline_robustness: bool,
    /// The matrix units, which the lanes of a subgroup use together.
    pub matrix_units: MatrixUnits,
    /// What kernels use of NVIDIA's second extension for matrix units.
    pub matrices2: Abilities,
    /// Integer dot products. Devices of version 1.3 need no extension for them.
    pub dot_products: bool,
    /// Atomic sums of `f32` in buffers.
    pub float_atomics: bool,
    /// The extensions to enable.
    enabled: Vec<&'static CStr>,
}

impl Extensions {
    /// Looks up the extensions that the device offers.
    pub fn read(
        instance: &Instance,
        physical: vk::PhysicalDevice,
        base: &vk::PhysicalDeviceProperties,
        offered: &[vk::ExtensionProperties],
    ) -> Extensions {
        let mut enabled = Vec::new();
        let mut enable = |name| {
            let there = has_extension(offered, name);
            enabled.extend(there.then_some(name));
            there
        };
        // Drivers that are not fully conformant require this one.
        enable(khr::portability_subset::NAME);
        let core = base.api_version >= vk::API_VERSION_1_3;
        let creation_feedback = core || enable(ext::pipeline_creation_feedback::NAME);
        let pipeline_robustness = enable(ext::pipeline_robustness::NAME);
        // SAFETY: the physical device is of this instance, and offers these extensions.
        let told = unsafe { units::matrix_units(&instance.entry, &instance.raw, physical, offered) };
        let (matrix_units, matrices2) = told;
        if matrix_units != MatrixUnits::default() {
            enable(khr::cooperative_matrix::NAME);
        }
        if matrices2 != Abilities::default() {
            enable(cooperative_matrix2::NAME);
        }
        if matrix_units.bf16.is_some() {
            enable(units::BFLOAT16);
        }
        // SAFETY: as above, and this is its version.
        let dot_products = unsafe { units::dot_products(&instance.raw, physical, base.api_version, offered) };
        if dot_products && !core {
            enable(khr::shader_integer_dot_product::NAME);
        }
        let float_atomics = float_atomics(instance, physical, offered);
        if float_atomics {
            enable(ext::shader_atomic_float::NAME);
        }
        let calibrated_timestamps = calibrated_timestamps(instance, physical, offered);
        enabled.extend(calibrated_timestamps);
        // It extends a query of the physical device, so it need not be enabled.
        let memory_budget = has_extension(offered, ext::memory_budget::NAME);
        Extensions {
            calibrated_timestamps,
            memory_budget,
            creation_feedback,
            pipeline_robustness,
            matrix_units,
            matrices2,
            dot_products,
            float_atomics,
            enabled,
        }
    }

    /// Returns the names of the extensions to enable.
    pub fn names(&self) -> Vec<*const c_char> {
        self.enabled.iter().map(|name| name.as_ptr()).collect()
    }
}

/// Whether kernels use the device's atomic sums of `f32` in buffers.
fn float_atomics(instance: &Instance, physical: vk::PhysicalDevice, offered: &[vk::ExtensionProperties]) -> bool {
    if !has_extension(offered, ext::shader_atomic_float::NAME) {
        return false;
    }
    let mut there = vk::PhysicalDeviceShaderAtomicFloatFeaturesEXT::default();
    let mut all = vk::PhysicalDeviceFeatures2::default().push_next(&mut there);
    // SAFETY: the physical device is of this instance and has the extension of the chained structure, which outlives
    // the call.
    unsafe { instance.raw.get_physical_device_features2(physical, &mut all) };
    uses_float_atomics(there.shader_buffer_float32_atomic_add == vk::TRUE)
}

/// Returns the name of the extension that reads the device's clock, if there is one.
fn calibrated_timestamps(
    instance: &Instance,
    physical: vk::PhysicalDevice,
    offered: &[vk::ExtensionProperties],
) -> Option<&'static CStr> {
    let has_device =
        |domains: VkResult<Vec<vk::TimeDomainKHR>>| domains.is_ok_and(|all| all.contains(&vk::TimeDomainKHR::DEVICE));
    // The old name first: validation layers may not know the new one.
    if has_extension(offered, ext::calibrated_timestamps::NAME) {
        let functions = ext::calibrated_timestamps::Instance::new(&instance.entry, &instance.raw);
        // SAFETY: the physical device is of this instance, and has the extension.
        let domains = unsafe { functions.get_physical_device_calibrateable_time_domains(physical) };
        return has_device(domains).then_some(ext::calibrated_timestamps::NAME);
    }
    if has_extension(offered, khr::calibrated_timestamps::NAME) {
        let functions = khr::calibrated_timestamps::Instance::new(&instance.entry, &instance.raw);
        // SAFETY: see above.
        let domains = unsafe { functions.get_physical_device_calibrateable_time_domains(physical) };
        return has_device(domains).then_some(khr::calibrated_timestamps::NAME);
    }
    None
}
