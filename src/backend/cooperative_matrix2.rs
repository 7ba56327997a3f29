//! The parts of VK_NV_cooperative_matrix2 that kernels use. The extension is newer than the headers in `ash`.

use ash::vk;
use std::ffi::{CStr, c_void};
use std::mem::transmute;
use std::ptr;

pub(super) const NAME: &CStr = c"VK_NV_cooperative_matrix2";

/// What a device has of the extension, as far as kernels use it.
#[derive(Clone, Copy, Default, PartialEq)]
pub(super) struct Abilities {
    /// Kernels choose the sizes of matrices.
    pub flexible_dimensions: bool,
    /// Kernels reduce the rows of matrices, and turn results into factors.
    pub reductions: bool,
}

/// VkPhysicalDeviceCooperativeMatrix2FeaturesNV.
#[repr(C)]
pub(super) struct Features {
    s_type: vk::StructureType,
    p_next: *mut c_void,
    workgroup_scope: vk::Bool32,
    flexible_dimensions: vk::Bool32,
    reductions: vk::Bool32,
    conversions: vk::Bool32,
    per_element_operations: vk::Bool32,
    tensor_addressing: vk::Bool32,
    block_loads: vk::Bool32,
}

// SAFETY: layout and type are those of the specification, in which the structure extends both.
unsafe impl vk::ExtendsPhysicalDeviceFeatures2 for Features {}
// SAFETY: as above.
unsafe impl vk::ExtendsDeviceCreateInfo for Features {}

// SAFETY: as above.
unsafe impl vk::TaggedStructure for Features {
    const STRUCTURE_TYPE: vk::StructureType = vk::StructureType::from_raw(1_000_593_000);
}

impl Features {
    /// Asks for these and for no other feature.
    pub fn new(Abilities { flexible_dimensions, reductions }: Abilities) -> Self {
        let reductions = vk::Bool32::from(reductions);
        Features {
            s_type: <Self as vk::TaggedStructure>::STRUCTURE_TYPE,
            p_next: ptr::null_mut(),
            workgroup_scope: vk::FALSE,
            flexible_dimensions: vk::Bool32::from(flexible_dimensions),
            reductions,
            conversions: reductions,
            per_element_operations: vk::FALSE,
            tensor_addressing: vk::FALSE,
            block_loads: vk::FALSE,
        }
    }

    /// Returns what a driver has told.
    pub fn abilities(&self) -> Abilities {
        Abilities {
            flexible_dimensions: self.flexible_dimensions == vk::TRUE,
            reductions: [self.reductions, self.conversions] == [vk::TRUE; 2],
        }
    }
}

/// VkCooperativeMatrixFlexibleDimensionsPropertiesNV: a product that the device has, for sizes that are multiples of
/// `m`, `n` and `k`.
#[repr(C)]
#[derive(Clone)]
pub(super) struct FlexibleDimensions {
    s_type: vk::StructureType,
    p_next: *mut c_void,
    pub m: u32,
    pub n: u32,
    pub k: u32,
    pub a_type: vk::ComponentTypeKHR,
    pub b_type: vk::ComponentTypeKHR,
    pub c_type: vk::ComponentTypeKHR,
    pub result_type: vk::ComponentTypeKHR,
    pub saturating_accumulation: vk::Bool32,
    pub scope: vk::ScopeKHR,
    pub workgroup_invocations: u32,
}

impl Default for FlexibleDimensions {
    fn default() -> Self {
        FlexibleDimensions {
            s_type: vk::StructureType::from_raw(1_000_593_001),
            p_next: ptr::null_mut(),
            m: 0,
            n: 0,
            k: 0,
            a_type: vk::ComponentTypeKHR::default(),
            b_type: vk::ComponentTypeKHR::default(),
            c_type: vk::ComponentTypeKHR::default(),
            result_type: vk::ComponentTypeKHR::default(),
            saturating_accumulation: vk::FALSE,
            scope: vk::ScopeKHR::default(),
            workgroup_invocations: 0,
        }
    }
}

/// vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV.
type GetFlexibleDimensions =
    unsafe extern "system" fn(vk::PhysicalDevice, *mut u32, *mut FlexibleDimensions) -> vk::Result;

/// Returns what sizes may be multiples of, on a device with the extension. Empty if the driver does not report it.
///
/// # Safety
/// The physical device is of the instance.
pub(super) unsafe fn flexible_dimensions(
    entry: &ash::Entry,
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
) -> Vec<FlexibleDimensions> {
    let name = c"vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV";
    // SAFETY: the instance is alive.
    let function = unsafe { entry.get_instance_proc_addr(instance.handle(), name.as_ptr()) };
    let Some(function) = function else { return Vec::new() };
    // SAFETY: a function of this name has this type.
    let function = unsafe { transmute::<unsafe extern "system" fn(), GetFlexibleDimensions>(function) };
    let mut count = 0;
    // SAFETY: as the caller promises; without an array the call returns the count.
    let told = unsafe { function(physical, &raw mut count, ptr::null_mut()) };
    let mut all = vec![FlexibleDimensions::default(); if told == vk::Result::SUCCESS { count as usize } else { 0 }];
    // SAFETY: as above; the array has as many elements as `count` says, each with its type.
    let told = unsafe { function(physical, &raw mut count, all.as_mut_ptr()) };
    all.truncate(if told == vk::Result::SUCCESS { count as usize } else { 0 });
    all
}
