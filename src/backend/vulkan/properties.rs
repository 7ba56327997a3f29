//! A device's properties: its driver, its limits and its subgroups.

use crate::backend::info::{Limits, powers_of_two};
use crate::backend::units::has_extension;
use crate::base::environment;
use ash::{ext, khr, vk};

/// The largest binding in bytes if tests force addresses. All buffers except the smallest are larger.
const FORCED_BINDING: u64 = 16;

/// The properties that go beyond version 1.0 of the API.
pub(super) struct Properties {
    /// The driver's name and version.
    pub driver: String,
    pub limits: Limits,
    /// Whether compute kernels have the subgroup operations of
    /// [`Features::subgroups`](crate::base::features::Features::subgroups).
    pub subgroups: bool,
}

impl Properties {
    /// Reads the properties that the device has. `addresses` says whether kernels reach buffers by their addresses.
    pub fn read(
        instance: &ash::Instance,
        physical: vk::PhysicalDevice,
        base: &vk::PhysicalDeviceProperties,
        extensions: &[vk::ExtensionProperties],
        addresses: bool,
    ) -> Properties {
        let mut v11 = vk::PhysicalDeviceVulkan11Properties::default();
        let mut v12 = vk::PhysicalDeviceVulkan12Properties::default();
        let mut sizes = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
        let mut maintenance = vk::PhysicalDeviceMaintenance4Properties::default();
        let core = base.api_version >= vk::API_VERSION_1_3;
        let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut v11).push_next(&mut v12);
        if core || has_extension(extensions, ext::subgroup_size_control::NAME) {
            all = all.push_next(&mut sizes);
        }
        if core || has_extension(extensions, khr::maintenance4::NAME) {
            all = all.push_next(&mut maintenance);
        }
        // SAFETY: the device knows each chained structure by its version or extension, and all outlive the call.
        unsafe { instance.get_physical_device_properties2(physical, &mut all) };
        Properties {
            driver: driver(&v12),
            limits: limits(&base.limits, &v11, &sizes, &maintenance, addresses),
            subgroups: subgroups(&v11),
        }
    }
}

/// Returns the driver's name and version.
fn driver(properties: &vk::PhysicalDeviceVulkan12Properties<'_>) -> String {
    let name = properties.driver_name_as_c_str().unwrap_or_default().to_string_lossy();
    let version = properties.driver_info_as_c_str().unwrap_or_default().to_string_lossy();
    format!("{name} {version}").trim().to_string()
}

/// Returns whether compute kernels have all subgroup operations that kernels may use.
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

/// The words that the addresses of six buffers take.
const ADDRESS_WORDS: u32 = 12;

/// Returns the limits. If a number in the last two structures is 0, the driver did not fill it in.
fn limits(
    base: &vk::PhysicalDeviceLimits,
    v11: &vk::PhysicalDeviceVulkan11Properties<'_>,
    sizes: &vk::PhysicalDeviceSubgroupSizeControlProperties<'_>,
    maintenance: &vk::PhysicalDeviceMaintenance4Properties<'_>,
    addresses: bool,
) -> Limits {
    let mut max_buffer = v11.max_memory_allocation_size;
    if maintenance.max_buffer_size != 0 {
        max_buffer = max_buffer.min(maintenance.max_buffer_size);
    }
    let forced = if environment::settings().force.addresses { FORCED_BINDING } else { u64::MAX };
    let max_binding = max_buffer.min(base.max_storage_buffer_range.into()).min(forced);
    let words = base.max_push_constants_size / 4;
    let (smallest, largest) = match (sizes.min_subgroup_size, sizes.max_subgroup_size) {
        (0, _) | (_, 0) => (v11.subgroup_size, v11.subgroup_size),
        known => known,
    };
    let [groups_x, groups_y, groups_z] = base.max_compute_work_group_count;
    Limits {
        max_buffer_bytes: if addresses { max_buffer } else { max_binding } / 16 * 16,
        max_binding_bytes: max_binding / 16 * 16,
        max_bindings: base
            .max_per_stage_descriptor_storage_buffers
            .min(base.max_descriptor_set_storage_buffers)
            .min(base.max_per_stage_resources),
        // Addresses take room behind the parameters, if the device has more than the 32 words of every device.
        max_parameter_words: if addresses { words.saturating_sub(ADDRESS_WORDS).max(words.min(32)) } else { words },
        max_workgroup_invocations: base.max_compute_work_group_invocations,
        max_workgroup_memory: base.max_compute_shared_memory_size,
        max_workgroup_size: base.max_compute_work_group_size,
        max_groups: groups_x.min(groups_y).min(groups_z),
        subgroup_sizes: powers_of_two(smallest, largest),
        max_groups_in_line: groups_x,
        copy_alignment: 1,
        max_addressed_words: if addresses { words } else { 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_take_the_smallest_bound_and_fall_back_where_a_driver_is_silent() {
        let base = vk::PhysicalDeviceLimits {
            max_storage_buffer_range: u32::MAX,
            max_push_constants_size: 128,
            max_per_stage_descriptor_storage_buffers: 40,
            max_descriptor_set_storage_buffers: 60,
            max_per_stage_resources: 50,
            max_compute_work_group_count: [1 << 31, 65_535, 70_000],
            ..Default::default()
        };
        let v11 = vk::PhysicalDeviceVulkan11Properties {
            max_memory_allocation_size: 1 << 33,
            subgroup_size: 32,
            ..Default::default()
        };
        let silent = limits(&base, &v11, &Default::default(), &Default::default(), false);
        assert_eq!((silent.max_buffer_bytes, silent.max_binding_bytes), ((1 << 32) - 16, (1 << 32) - 16));
        assert_eq!(silent.max_parameter_words, 32);
        assert_eq!(silent.max_bindings, 40);
        assert_eq!(silent.max_groups(), [1 << 31, 65_535, 65_535]);
        assert_eq!(silent.subgroup_sizes, [32]);

        let sizes = vk::PhysicalDeviceSubgroupSizeControlProperties {
            min_subgroup_size: 8,
            max_subgroup_size: 64,
            ..Default::default()
        };
        let maintenance = vk::PhysicalDeviceMaintenance4Properties { max_buffer_size: 1 << 20, ..Default::default() };
        let told = limits(&base, &v11, &sizes, &maintenance, false);
        assert_eq!(told.max_buffer_bytes, 1 << 20);
        let base = vk::PhysicalDeviceLimits { max_push_constants_size: 256, ..base };
        let addressed = limits(&base, &v11, &Default::default(), &Default::default(), true);
        assert_eq!((addressed.max_buffer_bytes, addressed.max_binding_bytes), (1 << 33, (1 << 32) - 16));
        assert_eq!((addressed.max_parameter_words, addressed.max_addressed_words), (52, 64));
        assert_eq!(told.subgroup_sizes, [8, 16, 32, 64]);
    }
}
