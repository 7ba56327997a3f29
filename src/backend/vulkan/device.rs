//! The logical device: its creation, its loss, and the errors of its calls.

use super::adapter::Adapter;
use super::instance::{self, Instance};
use crate::backend::cooperative_matrix2::{self, Abilities};
use crate::backend::parked::Parked;
use crate::backend::units::Bfloat16Features;
use crate::base::backend_kind::BackendKind;
use crate::base::environment;
use crate::base::error::{Error, Result};
use crate::base::features::{Features, MatrixUnits};
use ash::prelude::VkResult;
use ash::vk;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The driver's devices that are open and not in use, by their physical devices.
static PARKED: Parked<vk::PhysicalDevice, ash::Device> = Parked::new();

/// A logical device. Everything that was created on it holds it in an `Arc`, so it is dropped last.
pub(super) struct Device {
    /// The functions of the device.
    pub raw: ash::Device,
    /// Its description.
    pub adapter: Adapter,
    /// The instance that found it.
    pub instance: &'static Instance,
    /// Bytes that have been taken from each memory heap.
    in_use: [AtomicU64; vk::MAX_MEMORY_HEAPS],
    /// The call that found the device lost.
    lost: OnceLock<&'static str>,
}

impl Device {
    /// Opens a device with a queue of each family, and with only the features that are used.
    pub fn open(instance: &'static Instance, adapter: Adapter) -> Result<Device> {
        // SAFETY: nothing else uses a parked device.
        let works = |raw: &ash::Device| unsafe { raw.device_wait_idle() }.is_ok();
        let raw = match PARKED.take(&adapter.physical).filter(works) {
            Some(raw) => raw,
            None => Device::create(instance, &adapter)?,
        };
        Ok(Device { raw, adapter, instance, in_use: Default::default(), lost: OnceLock::new() })
    }

    fn create(instance: &Instance, adapter: &Adapter) -> Result<ash::Device> {
        let queue =
            |family: &u32| vk::DeviceQueueCreateInfo::default().queue_family_index(*family).queue_priorities(&[1.0]);
        let queues: Vec<_> = adapter.families().iter().map(queue).collect();
        let Features { f16, i64, f64, integer_dot_products, float_atomics, memory_model, .. } = adapter.info.features;
        let units = adapter.extensions.matrix_units;
        let halves = units.f16.or(units.bf16).is_some();
        let base = vk::PhysicalDeviceFeatures::default().shader_int64(i64).shader_float64(f64).shader_int16(halves);
        let mut v11 = vk::PhysicalDeviceVulkan11Features::default().storage_buffer16_bit_access(f16);
        let mut v12 = vk::PhysicalDeviceVulkan12Features::default()
            .timeline_semaphore(true)
            .host_query_reset(true)
            .buffer_device_address(adapter.addresses)
            .shader_float16(f16);
        let mut robustness = vk::PhysicalDevicePipelineRobustnessFeaturesEXT::default().pipeline_robustness(true);
        let (bytes, bf16) = (units.i8.or(units.u8).is_some(), units.bf16.is_some());
        v12 = v12.shader_int8(bytes).vulkan_memory_model(memory_model).vulkan_memory_model_device_scope(memory_model);
        let mut bfloat16 = Bfloat16Features::new(true);
        let matrices2 = adapter.extensions.matrices2;
        let mut second = cooperative_matrix2::Features::new(matrices2);
        let mut matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
        let mut dot_products =
            vk::PhysicalDeviceShaderIntegerDotProductFeatures::default().shader_integer_dot_product(true);
        let mut atomic_sums =
            vk::PhysicalDeviceShaderAtomicFloatFeaturesEXT::default().shader_buffer_float32_atomic_add(true);
        let extensions = adapter.extensions.names();
        let mut info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(&extensions)
            .enabled_features(&base)
            .push_next(&mut v11)
            .push_next(&mut v12);
        if adapter.extensions.pipeline_robustness {
            info = info.push_next(&mut robustness);
        }
        if units != MatrixUnits::default() {
            info = info.push_next(&mut matrices);
        }
        if matrices2 != Abilities::default() {
            info = info.push_next(&mut second);
        }
        if bf16 {
            info = info.push_next(&mut bfloat16);
        }
        if integer_dot_products {
            info = info.push_next(&mut dot_products);
        }
        if float_atomics {
            info = info.push_next(&mut atomic_sums);
        }
        // SAFETY: the adapter is of this instance and has the family, features and extensions that `info` names.
        unsafe { instance.raw.create_device(adapter.physical, &info, None) }
            .map_err(|result| instance::unavailable(format_args!("{}: vkCreateDevice: {result}", adapter.info)))
    }

    /// Describes the device, for errors.
    pub fn describe(&self) -> String {
        self.adapter.info.to_string()
    }

    /// Fails once the device is lost.
    pub fn alive(&self) -> Result<()> {
        match self.lost.get() {
            Some(call) => Err(self.lost_by(call)),
            None => Ok(()),
        }
    }

    /// Converts the result of a driver's call to the crate's.
    pub fn check<T>(&self, call: &'static str, result: VkResult<T>) -> Result<T> {
        result.map_err(|code| self.error(call, code))
    }

    /// Converts a driver's error to the crate's, and remembers a loss of the device.
    pub fn error(&self, call: &'static str, code: vk::Result) -> Error {
        match code {
            vk::Result::ERROR_DEVICE_LOST => self.lost_by(self.lost.get_or_init(|| call)),
            // The driver wanted this memory for itself, and does not report how much it was.
            vk::Result::ERROR_OUT_OF_HOST_MEMORY | vk::Result::ERROR_OUT_OF_DEVICE_MEMORY => {
                self.out_of_memory(0, self.adapter.device_heap)
            }
            code => Error::Driver { backend: BackendKind::Vulkan, call, message: code.to_string() },
        }
    }

    /// Returns the error for `requested` bytes that a heap does not have.
    pub fn out_of_memory(&self, requested: u64, heap: usize) -> Error {
        let limit = self.adapter.memory.memory_heaps.get(heap).map_or(0, |heap| heap.size);
        Error::OutOfMemory { requested, in_use: self.heap_in_use(heap), limit }
    }

    /// Returns the error for a buffer that no kernel could address.
    pub fn too_large(&self, requested: u64) -> Error {
        let limit = self.adapter.info.limits.max_buffer_bytes;
        Error::OutOfMemory { requested, in_use: self.heap_in_use(self.adapter.device_heap), limit }
    }

    /// Returns the bytes of device memory that this process may have in total. The driver's estimate considers what
    /// other processes use. Without an estimate, returns all there is.
    pub fn budget(&self) -> u64 {
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        if self.adapter.extensions.memory_budget {
            let mut all = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
            // SAFETY: the physical device is of this instance and knows the chained structure, which outlives the call.
            unsafe { self.instance.raw.get_physical_device_memory_properties2(self.adapter.physical, &mut all) };
        }
        match budget.heap_budget.get(self.adapter.device_heap) {
            None | Some(0) => self.adapter.info.memory,
            Some(bytes) => *bytes,
        }
    }

    /// Counts bytes that are taken from a heap.
    pub fn count_allocated(&self, heap: usize, bytes: u64) {
        if let Some(in_use) = self.in_use.get(heap) {
            in_use.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Counts bytes that go back.
    pub fn count_freed(&self, heap: usize, bytes: u64) {
        if let Some(in_use) = self.in_use.get(heap) {
            in_use.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    fn lost_by(&self, call: &'static str) -> Error {
        Error::DeviceLost { device: self.describe(), reason: format!("{call} reported it") }
    }

    /// Returns the bytes that have been taken from a heap.
    pub fn heap_in_use(&self, heap: usize) -> u64 {
        self.in_use.get(heap).map_or(0, |bytes| bytes.load(Ordering::Relaxed))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Under validation the device is destroyed, because the layer looks for leaks then.
        if self.lost.get().is_none() && !environment::settings().validation {
            return PARKED.put(self.adapter.physical, self.raw.clone());
        }
        // SAFETY: everything that was created on the device held it, and is gone.
        unsafe { self.raw.destroy_device(None) };
    }
}
