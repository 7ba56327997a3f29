//! What a Vulkan driver reports about a GPU: queues, compute units, and the matrix units that kernels use. The Vulkan
//! backend asks it. wgpu reports less, so the WebGPU backend asks it too if wgpu runs on Vulkan.

use super::cooperative_matrix2::{self, Abilities, FlexibleDimensions};
use crate::backend::info::uses_dot_products;
use crate::base::dtype::DType;
use crate::base::features::MatrixUnits;
use ash::{amd, khr, nv, vk};
use std::ffi::{CStr, c_void};
use std::ptr;

/// Returns whether a list has this extension.
pub(super) fn has_extension(list: &[vk::ExtensionProperties], name: &CStr) -> bool {
    list.iter().any(|extension| extension.extension_name_as_c_str() == Ok(name))
}

/// Returns the family of the compute queue. A family without graphics is best. Its queue does not wait for the drawing
/// of the app or the desktop, and drivers let its kernels run longer. On an H200, products on matrix units take a
/// quarter less time there.
pub(super) fn compute_family(families: &[vk::QueueFamilyProperties]) -> Option<u32> {
    let find = |unwanted: vk::QueueFlags| {
        families.iter().zip(0..).find_map(|(family, index)| {
            let fits = family.queue_count > 0
                && family.queue_flags.contains(vk::QueueFlags::COMPUTE)
                && !family.queue_flags.intersects(unwanted);
            fits.then_some(index)
        })
    };
    find(vk::QueueFlags::GRAPHICS).or_else(|| find(vk::QueueFlags::empty()))
}

/// Returns the number of compute units, if the driver reports it.
///
/// # Safety
/// The physical device is of the instance, and has these extensions.
pub(super) unsafe fn compute_units(
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
    offered: &[vk::ExtensionProperties],
) -> Option<u32> {
    let mut nvidia = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
    let mut amd = vk::PhysicalDeviceShaderCorePropertiesAMD::default();
    let mut amd2 = vk::PhysicalDeviceShaderCoreProperties2AMD::default();
    let mut all = vk::PhysicalDeviceProperties2::default();
    if has_extension(offered, nv::shader_sm_builtins::NAME) {
        all = all.push_next(&mut nvidia);
    }
    if has_extension(offered, amd::shader_core_properties::NAME) {
        all = all.push_next(&mut amd);
    }
    if has_extension(offered, amd::shader_core_properties2::NAME) {
        all = all.push_next(&mut amd2);
    }
    // SAFETY: as the caller promises; the device knows each chained structure by its extension, and all outlive the
    // call.
    unsafe { instance.get_physical_device_properties2(physical, &mut all) };
    let kind = all.properties.device_type;
    count_compute_units(kind, &nvidia, &amd, &amd2)
}

/// Returns the number of compute units. If a number is 0, the driver did not fill it in.
fn count_compute_units(
    kind: vk::PhysicalDeviceType,
    nvidia: &vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV<'_>,
    amd: &vk::PhysicalDeviceShaderCorePropertiesAMD<'_>,
    amd2: &vk::PhysicalDeviceShaderCoreProperties2AMD<'_>,
) -> Option<u32> {
    if kind == vk::PhysicalDeviceType::CPU {
        return std::thread::available_parallelism().ok().and_then(|cores| u32::try_from(cores.get()).ok());
    }
    // AMD's first structure counts the units that a product has switched off, the second does not.
    let arrays = amd.shader_engine_count.saturating_mul(amd.shader_arrays_per_engine_count);
    let built = arrays.saturating_mul(amd.compute_units_per_shader_array);
    [nvidia.shader_sm_count, amd2.active_compute_unit_count, built].into_iter().find(|units| *units > 0)
}

/// Returns whether kernels use an instruction for dot products of four packed bytes.
///
/// # Safety
/// The physical device is of the instance, and has this version of the API and these extensions.
pub(super) unsafe fn dot_products(
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
    version: u32,
    offered: &[vk::ExtensionProperties],
) -> bool {
    if version < vk::API_VERSION_1_3 && !has_extension(offered, khr::shader_integer_dot_product::NAME) {
        return false;
    }
    let mut there = vk::PhysicalDeviceShaderIntegerDotProductFeatures::default();
    let mut fast = vk::PhysicalDeviceShaderIntegerDotProductProperties::default();
    // SAFETY: as the caller promises; the device knows both structures by its version or extension, and they outlive
    // the calls.
    unsafe {
        instance
            .get_physical_device_features2(physical, &mut vk::PhysicalDeviceFeatures2::default().push_next(&mut there));
        instance.get_physical_device_properties2(
            physical,
            &mut vk::PhysicalDeviceProperties2::default().push_next(&mut fast),
        );
    }
    let fast = [
        fast.integer_dot_product4x8_bit_packed_signed_accelerated,
        fast.integer_dot_product4x8_bit_packed_unsigned_accelerated,
    ];
    uses_dot_products(there.shader_integer_dot_product == vk::TRUE, fast == [vk::TRUE; 2])
}

/// The extension that gives kernels `bf16`. It is newer than the headers in `ash`.
pub(super) const BFLOAT16: &CStr = c"VK_KHR_shader_bfloat16";

/// VkPhysicalDeviceShaderBfloat16FeaturesKHR.
#[repr(C)]
pub(super) struct Bfloat16Features {
    s_type: vk::StructureType,
    p_next: *mut c_void,
    float: vk::Bool32,
    dot_product: vk::Bool32,
    matrices: vk::Bool32,
}

// SAFETY: layout and type are those of the specification, in which the structure extends both.
unsafe impl vk::ExtendsPhysicalDeviceFeatures2 for Bfloat16Features {}
// SAFETY: as above.
unsafe impl vk::ExtendsDeviceCreateInfo for Bfloat16Features {}

// SAFETY: as above.
unsafe impl vk::TaggedStructure for Bfloat16Features {
    const STRUCTURE_TYPE: vk::StructureType = vk::StructureType::from_raw(1_000_141_000);
}

/// VK_COMPONENT_TYPE_BFLOAT16_KHR.
const BFLOAT16_COMPONENT: vk::ComponentTypeKHR = vk::ComponentTypeKHR::from_raw(1_000_141_000);

impl Bfloat16Features {
    /// Asks for `bf16` and matrices of it, or for neither.
    pub fn new(matrices: bool) -> Self {
        let there = vk::Bool32::from(matrices);
        let s_type = <Self as vk::TaggedStructure>::STRUCTURE_TYPE;
        Bfloat16Features { s_type, p_next: ptr::null_mut(), float: there, dot_product: vk::FALSE, matrices: there }
    }
}

/// Returns the matrix units of a device, and what kernels use of its second extension for them.
///
/// # Safety
/// The physical device is of the instance, has version 1.2 of the API and these extensions.
pub(super) unsafe fn matrix_units(
    entry: &ash::Entry,
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
    offered: &[vk::ExtensionProperties],
) -> (MatrixUnits, Abilities) {
    let none = Abilities::default();
    let mut units = MatrixUnits::default();
    if !has_extension(offered, khr::cooperative_matrix::NAME) {
        return (units, none);
    }
    let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
    let mut matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
    let mut bfloat16 = Bfloat16Features::new(false);
    let mut second = cooperative_matrix2::Features::new(none);
    let mut all = vk::PhysicalDeviceFeatures2::default().push_next(&mut v12).push_next(&mut matrices);
    if has_extension(offered, BFLOAT16) {
        all = all.push_next(&mut bfloat16);
    }
    if has_extension(offered, cooperative_matrix2::NAME) {
        all = all.push_next(&mut second);
    }
    // SAFETY: as the caller promises; the device knows the chained structures by its version and extensions.
    unsafe { instance.get_physical_device_features2(physical, &mut all) };
    // Kernels hand halves to the units as 16-bit integers.
    let halves = all.features.shader_int16 == vk::TRUE;
    let mut controls = vk::PhysicalDeviceVulkan12Properties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut controls);
    // SAFETY: as above.
    unsafe { instance.get_physical_device_properties2(physical, &mut properties) };
    let memory_model = [v12.vulkan_memory_model, v12.vulkan_memory_model_device_scope] == [vk::TRUE; 2];
    if matrices.cooperative_matrix != vk::TRUE || !memory_model {
        return (units, none);
    }
    let functions = khr::cooperative_matrix::Instance::new(entry, instance);
    // SAFETY: as the caller promises, and the device has the extension.
    let shapes = unsafe { functions.get_physical_device_cooperative_matrix_properties(physical) }.unwrap_or_default();
    let abilities = second.abilities();
    let flexible = match abilities.flexible_dimensions {
        // SAFETY: as the caller promises.
        true => unsafe { cooperative_matrix2::flexible_dimensions(entry, instance, physical) },
        false => Vec::new(),
    };
    // The device converts sums to `f16`. It has to round them as other devices do.
    let rounds =
        controls.shader_rounding_mode_rte_float16 == vk::TRUE && controls.shader_denorm_preserve_float16 == vk::TRUE;
    let bytes = v12.shader_int8 == vk::TRUE;
    let (float, int, word) =
        (vk::ComponentTypeKHR::FLOAT32, vk::ComponentTypeKHR::SINT32, vk::ComponentTypeKHR::UINT32);
    for (dtype, there, factor, sum) in [
        (DType::F16, halves && v12.shader_float16 == vk::TRUE && rounds, vk::ComponentTypeKHR::FLOAT16, float),
        (DType::BF16, halves && bfloat16.matrices == vk::TRUE, BFLOAT16_COMPONENT, float),
        (DType::I8, bytes, vk::ComponentTypeKHR::SINT8, int),
        (DType::U8, bytes, vk::ComponentTypeKHR::UINT8, word),
    ] {
        let multiplies = |shape: &&vk::CooperativeMatrixPropertiesKHR<'_>| {
            (shape.a_type, shape.b_type, shape.c_type, shape.result_type) == (factor, factor, sum, sum)
                && shape.scope == vk::ScopeKHR::SUBGROUP
                && shape.saturating_accumulation == vk::FALSE
        };
        let sizes = shapes.iter().filter(multiplies).map(|shape| [shape.m_size, shape.n_size, shape.k_size]);
        let best = sizes.filter(|&size| is_used(dtype, size)).max_by_key(|size| size.iter().product::<u32>());
        let multiple = |sizes: &FlexibleDimensions| {
            (sizes.a_type, sizes.b_type, sizes.c_type, sizes.result_type) == (factor, factor, sum, sum)
                && sizes.scope == vk::ScopeKHR::SUBGROUP
                && sizes.saturating_accumulation == vk::FALSE
                && [sizes.m, 2 * sizes.n, sizes.k]
                    .iter()
                    .zip(wide(dtype))
                    .all(|(&part, size)| size.is_multiple_of(part))
        };
        let wide = flexible.iter().any(multiple).then_some(wide(dtype));
        if let Some(units) = units.of_mut(dtype).filter(|_| there) {
            *units = wide.or(best);
        }
    }
    if units == MatrixUnits::default() {
        return (units, none);
    }
    units.reductions = abilities.reductions;
    (units, Abilities { flexible_dimensions: !flexible.is_empty(), ..abilities })
}

/// Returns the size that is fastest on an H200 if kernels choose it: two of the units' products side by side.
fn wide(dtype: DType) -> [u32; 3] {
    [16, 32, 32 / dtype.size_in_bytes() as u32]
}

/// Returns whether kernels can use units of a size. Parts of a block have multiples of 16 rows and columns. Tiles are
/// multiples of 64 bytes deep. Matrices begin at multiples of 16 bytes.
fn is_used(dtype: DType, [m, n, k]: [u32; 3]) -> bool {
    let bytes = dtype.size_in_bytes() as u32;
    let begins = |length: u32| (length * bytes).is_multiple_of(16);
    m == 16 && 16u32.is_multiple_of(n) && 64u32.is_multiple_of(k * bytes) && begins(n) && begins(k)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_kernels_can_use() {
        for (dtype, size, expected) in [
            (DType::F16, [16, 16, 16], true),
            (DType::F16, [16, 8, 16], true),
            (DType::F16, [8, 16, 16], false),
            (DType::F16, [16, 16, 64], false),
            (DType::F16, [32, 16, 16], false),
            (DType::I8, [16, 16, 32], true),
            (DType::I8, [16, 8, 32], false),
            (DType::I8, [16, 16, 8], false),
        ] {
            assert_eq!(is_used(dtype, size), expected, "{dtype} {size:?}");
        }
    }

    #[test]
    fn compute_units_come_from_whoever_tells() {
        let units = |nvidia, [engines, arrays, per_array]: [u32; 3], active| {
            count_compute_units(
                vk::PhysicalDeviceType::DISCRETE_GPU,
                &vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV { shader_sm_count: nvidia, ..Default::default() },
                &vk::PhysicalDeviceShaderCorePropertiesAMD {
                    shader_engine_count: engines,
                    shader_arrays_per_engine_count: arrays,
                    compute_units_per_shader_array: per_array,
                    ..Default::default()
                },
                &vk::PhysicalDeviceShaderCoreProperties2AMD { active_compute_unit_count: active, ..Default::default() },
            )
        };
        assert_eq!(units(132, [0; 3], 0), Some(132));
        assert_eq!(units(0, [4, 2, 10], 72), Some(72));
        assert_eq!(units(0, [4, 2, 10], 0), Some(80));
        assert_eq!(units(0, [0; 3], 0), None);
    }

    fn family(flags: vk::QueueFlags) -> vk::QueueFamilyProperties {
        vk::QueueFamilyProperties { queue_flags: flags, queue_count: 1, ..Default::default() }
    }

    #[test]
    fn a_compute_family_without_graphics_is_preferred() {
        let all = family(vk::QueueFlags::GRAPHICS | vk::QueueFlags::COMPUTE | vk::QueueFlags::TRANSFER);
        let transfer = family(vk::QueueFlags::TRANSFER);
        let compute = family(vk::QueueFlags::COMPUTE | vk::QueueFlags::TRANSFER);
        assert_eq!(compute_family(&[all, transfer, compute]), Some(2));
        assert_eq!(compute_family(&[transfer, all]), Some(1));
        assert_eq!(compute_family(&[transfer]), None);
    }
}
