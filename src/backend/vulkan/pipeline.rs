//! Compiling: turns SPIR-V into a pipeline, with the binary of an earlier compilation if there is one.
//!
//! A binary is the data of a pipeline cache with one pipeline in it.

use super::adapter::Adapter;
use super::device::Device;
use crate::base::error::{Error, Result};
use crate::shader::Module;
use ash::vk;
use std::ffi::CString;

/// The length of the header of a pipeline cache's data, version one (`VkPipelineCacheHeaderVersionOne`: its length, its
/// version, vendor and device, then the UUID).
const HEADER: usize = 16 + vk::UUID_SIZE;

/// A pipeline that is ready.
pub(super) struct Built {
    pub handle: vk::Pipeline,
    /// The binary for the next compilation. `None` if the given one was used, or if the driver has none.
    pub binary: Option<Vec<u8>>,
    /// Whether the given binary made the driver's compiler unnecessary.
    pub reused: bool,
}

/// Returns what the binaries of a device depend on. `None` if the driver does not report whether it used one.
pub(super) fn binary_key(adapter: &Adapter) -> Option<String> {
    let vk::PhysicalDeviceProperties { vendor_id, device_id, driver_version, pipeline_cache_uuid, .. } = adapter.base;
    let uuid = u128::from_be_bytes(pipeline_cache_uuid);
    let key = || format!("vulkan-{vendor_id:08x}-{device_id:08x}-{driver_version:08x}-{uuid:032x}");
    adapter.extensions.creation_feedback.then(key)
}

/// Compiles a kernel to a pipeline with this layout.
pub(super) fn build(
    device: &Device,
    module: &Module,
    layout: vk::PipelineLayout,
    binary: Option<&[u8]>,
) -> Result<Built> {
    let shader = Shader::new(device, module)?;
    if !device.adapter.extensions.creation_feedback {
        let handle = shader.create(layout, vk::PipelineCache::null(), None)?;
        return Ok(Built { handle, binary: None, reused: false });
    }
    let cache = Cache::new(device, binary)?;
    let (mut whole, mut stage) = (vk::PipelineCreationFeedback::default(), [vk::PipelineCreationFeedback::default()]);
    let feedback = vk::PipelineCreationFeedbackCreateInfo::default()
        .pipeline_creation_feedback(&mut whole)
        .pipeline_stage_creation_feedbacks(&mut stage);
    let handle = shader.create(layout, cache.handle, Some(feedback))?;
    let hit =
        vk::PipelineCreationFeedbackFlags::VALID | vk::PipelineCreationFeedbackFlags::APPLICATION_PIPELINE_CACHE_HIT;
    let reused = whole.flags.contains(hit) || stage.iter().any(|stage| stage.flags.contains(hit));
    let binary = if reused { None } else { cache.data() };
    Ok(Built { handle, binary, reused })
}

/// A kernel's code in the driver, destroyed when dropped. A pipeline needs it only while it is created.
struct Shader<'a> {
    handle: vk::ShaderModule,
    entry_point: CString,
    module: &'a Module,
    device: &'a Device,
}

impl<'a> Shader<'a> {
    fn new(device: &'a Device, module: &'a Module) -> Result<Self> {
        let entry_point = CString::new(module.entry_point.as_str()).map_err(|_| Error::Kernel {
            kernel: module.name.clone(),
            message: format!("the entry point {:?} has a NUL in its name", module.entry_point),
        })?;
        let info = vk::ShaderModuleCreateInfo::default().code(module.spirv()?);
        // SAFETY: the code is SPIR-V for the features of this device. This crate made it, or the user vouches for it.
        let handle = unsafe { device.raw.create_shader_module(&info, None) }
            .map_err(|code| refusal(device, module, "vkCreateShaderModule", code))?;
        Ok(Shader { handle, entry_point, module, device })
    }

    /// Creates the pipeline.
    fn create(
        &self,
        layout: vk::PipelineLayout,
        cache: vk::PipelineCache,
        mut feedback: Option<vk::PipelineCreationFeedbackCreateInfo<'_>>,
    ) -> Result<vk::Pipeline> {
        let mut checked = vk::PipelineRobustnessCreateInfoEXT::default()
            .storage_buffers(vk::PipelineRobustnessBufferBehaviorEXT::ROBUST_BUFFER_ACCESS);
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(self.handle)
            .name(&self.entry_point);
        let mut info = vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout);
        if let Some(feedback) = &mut feedback {
            info = info.push_next(feedback);
        }
        if !self.module.trusted && self.device.adapter.extensions.pipeline_robustness {
            info = info.push_next(&mut checked);
        }
        // SAFETY: shader, layout and cache are of this device. The first two belong together, and all that `info`
        // points to outlives the call.
        match unsafe { self.device.raw.create_compute_pipelines(cache, &[info], None) } {
            Ok(pipelines) => pipelines.first().copied().ok_or(vk::Result::ERROR_UNKNOWN),
            Err((_, code)) => Err(code),
        }
        .map_err(|code| refusal(self.device, self.module, "vkCreateComputePipelines", code))
    }
}

impl Drop for Shader<'_> {
    fn drop(&mut self) {
        // SAFETY: no pipeline is being created from it.
        unsafe { self.device.raw.destroy_shader_module(self.handle, None) };
    }
}

/// Returns the error for a kernel that the driver does not take.
fn refusal(device: &Device, module: &Module, call: &'static str, code: vk::Result) -> Error {
    match device.error(call, code) {
        Error::Driver { call, message, .. } => {
            Error::Kernel { kernel: module.name.clone(), message: format!("{call} failed: {message}") }
        }
        error => error,
    }
}

/// A pipeline cache for one pipeline.
struct Cache<'a> {
    handle: vk::PipelineCache,
    device: &'a Device,
}

impl<'a> Cache<'a> {
    /// Creates a cache from a binary. The cache is empty if the binary is not of this device and driver.
    fn new(device: &'a Device, binary: Option<&[u8]>) -> Result<Self> {
        let header = header(&device.adapter.base);
        let known = binary.filter(|binary| binary.starts_with(&header)).unwrap_or_default();
        let info = vk::PipelineCacheCreateInfo::default().initial_data(known);
        // SAFETY: an earlier call got the data from `vkGetPipelineCacheData`.
        let created = unsafe { device.raw.create_pipeline_cache(&info, None) };
        Ok(Cache { handle: device.check("vkCreatePipelineCache", created)?, device })
    }

    /// Returns what is in the cache. `None` if it is empty or cannot be read: the kernel runs anyway.
    fn data(&self) -> Option<Vec<u8>> {
        // SAFETY: the cache is of this device.
        let data = unsafe { self.device.raw.get_pipeline_cache_data(self.handle) };
        data.ok().filter(|data| data.len() > HEADER)
    }
}

impl Drop for Cache<'_> {
    fn drop(&mut self) {
        // SAFETY: nothing is being compiled with it.
        unsafe { self.device.raw.destroy_pipeline_cache(self.handle, None) };
    }
}

/// Returns the beginning of the data of every pipeline cache of a device.
fn header(properties: &vk::PhysicalDeviceProperties) -> [u8; HEADER] {
    let version = vk::PipelineCacheHeaderVersion::ONE.as_raw() as u32;
    let words = [HEADER as u32, version, properties.vendor_id, properties.device_id].map(u32::to_le_bytes);
    let mut header = [0; HEADER];
    let (numbers, uuid) = header.split_at_mut(16);
    numbers.copy_from_slice(words.as_flattened());
    uuid.copy_from_slice(&properties.pipeline_cache_uuid);
    header
}
