//! The compiled kernels, and the layouts that they share.

use super::device::Device;
use super::pipeline::{self, Built};
use crate::backend::contract::{Compiled, KernelId, check_fits};
use crate::backend::explicit;
use crate::backend::rules::Signature;
use crate::base::error::{Error, Result};
use crate::shader::Module;
use ash::vk;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// The compiled kernels of a device. They live as long as it does.
pub(super) struct Kernels {
    kernels: RwLock<Vec<VulkanKernel>>,
    layouts: Mutex<Layouts>,
    device: Arc<Device>,
}

/// A compiled kernel.
pub(super) struct VulkanKernel {
    /// For messages.
    name: String,
    /// What a dispatch binds.
    pub pipeline: Pipeline,
    /// The number of storage buffers it takes.
    pub bindings: usize,
    /// Whether it reaches them by their addresses. Then no buffer is bound.
    pub addresses: bool,
    /// The number of 32-bit words in its parameter block.
    parameter_words: usize,
}

/// What a dispatch binds.
#[derive(Clone, Copy)]
pub(super) struct Pipeline {
    pub handle: vk::Pipeline,
    pub layout: vk::PipelineLayout,
    pub set_layout: vk::DescriptorSetLayout,
}

/// Layouts by what they depend on. Most kernels share them.
#[derive(Default)]
struct Layouts {
    /// By the number of storage buffers.
    sets: HashMap<u32, vk::DescriptorSetLayout>,
    /// By the number of storage buffers and of parameter bytes.
    pipelines: HashMap<(u32, u32), vk::PipelineLayout>,
}

impl VulkanKernel {
    /// Returns the arguments that it takes.
    pub fn signature(&self) -> Signature<'_> {
        Signature { name: &self.name, bindings: self.bindings, parameter_words: self.parameter_words }
    }
}

impl Kernels {
    /// Creates an empty list.
    pub fn new(device: Arc<Device>) -> Kernels {
        Kernels { kernels: RwLock::default(), layouts: Mutex::default(), device }
    }

    /// Returns the kernels by number, to look up many at once.
    pub fn all(&self) -> RwLockReadGuard<'_, Vec<VulkanKernel>> {
        self.kernels.read()
    }

    /// Fails if the addresses do not fit behind the parameters.
    fn check_addresses(&self, module: &Module) -> Result<()> {
        let words = module.parameter_words + 2 * module.bindings.len();
        let limit = self.device.adapter.info.limits.max_addressed_words as usize;
        if !module.addresses || words <= limit {
            return Ok(());
        }
        let buffers = module.bindings.len();
        let feature = format!(
            "{} parameter words and the addresses of {buffers} buffers, one of which is too large to be bound, which kernel \
             `{}` needs (limit {limit} words)",
            module.parameter_words, module.name
        );
        Err(Error::Unsupported { feature, device: self.device.describe() })
    }
}

impl explicit::Kernels for Kernels {
    fn binary_key(&self, _: &Module) -> Option<String> {
        pipeline::binary_key(&self.device.adapter)
    }

    /// Compiles a kernel. Several threads can do so at once.
    fn compile(&self, module: &Module, binary: Option<&[u8]>) -> Result<Compiled> {
        check_fits(module, &self.device.adapter.info)?;
        self.check_addresses(module)?;
        let (set_layout, layout) = self.layouts.lock().get(&self.device, module)?;
        let Built { handle, binary, reused } = pipeline::build(&self.device, module, layout, binary)?;
        let kernel = VulkanKernel {
            name: module.name.clone(),
            pipeline: Pipeline { handle, layout, set_layout },
            bindings: module.bindings.len(),
            addresses: module.addresses,
            parameter_words: module.parameter_words,
        };
        let mut kernels = self.kernels.write();
        kernels.push(kernel);
        Ok(Compiled { kernel: KernelId(kernels.len() as u64 - 1), binary, reused })
    }
}

impl Layouts {
    /// Returns the layouts for a kernel, and makes them if they are missing.
    fn get(&mut self, device: &Device, module: &Module) -> Result<(vk::DescriptorSetLayout, vk::PipelineLayout)> {
        let buffers = module.bindings.len() as u32;
        let (bindings, address_words) = if module.addresses { (0, 2 * buffers) } else { (buffers, 0) };
        let parameter_bytes = 4 * (module.parameter_words as u32 + address_words);
        let set = match self.sets.entry(bindings) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => *entry.insert(create_set_layout(device, bindings)?),
        };
        let pipeline = match self.pipelines.entry((bindings, parameter_bytes)) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => *entry.insert(create_pipeline_layout(device, set, parameter_bytes)?),
        };
        Ok((set, pipeline))
    }
}

/// Creates the layout of a set of this many storage buffers.
fn create_set_layout(device: &Device, bindings: u32) -> Result<vk::DescriptorSetLayout> {
    let bindings: Vec<_> = (0..bindings)
        .map(|binding| {
            vk::DescriptorSetLayoutBinding::default()
                .binding(binding)
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .descriptor_count(1)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
        })
        .collect();
    let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
    // SAFETY: the device is alive, and the number of bindings is within its limits.
    let created = unsafe { device.raw.create_descriptor_set_layout(&info, None) };
    device.check("vkCreateDescriptorSetLayout", created)
}

/// Creates the layout of a pipeline with one set and this many bytes of push constants.
fn create_pipeline_layout(
    device: &Device,
    set: vk::DescriptorSetLayout,
    parameter_bytes: u32,
) -> Result<vk::PipelineLayout> {
    let sets = [set];
    let range = [vk::PushConstantRange::default().stage_flags(vk::ShaderStageFlags::COMPUTE).size(parameter_bytes)];
    let ranges = if parameter_bytes == 0 { &range[..0] } else { &range };
    let info = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets).push_constant_ranges(ranges);
    // SAFETY: the set layout is of this device, and the range is within its limits.
    let created = unsafe { device.raw.create_pipeline_layout(&info, None) };
    device.check("vkCreatePipelineLayout", created)
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let layouts = self.layouts.get_mut();
        // SAFETY: the backend drops its queue first, which waits for the device: nothing uses them any more.
        unsafe {
            self.kernels
                .get_mut()
                .iter()
                .for_each(|kernel| self.device.raw.destroy_pipeline(kernel.pipeline.handle, None));
            layouts.pipelines.values().for_each(|layout| self.device.raw.destroy_pipeline_layout(*layout, None));
            layouts.sets.values().for_each(|layout| self.device.raw.destroy_descriptor_set_layout(*layout, None));
        }
    }
}
