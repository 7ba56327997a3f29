//! A chain of dispatches by bare calls of Vulkan: what a step costs without this crate.

#![allow(unsafe_code, reason = "bare calls of Vulkan are unsafe")]

use anyhow::{Context, Result, ensure};
use ash::vk;
use std::time::{Duration, Instant};

/// A command buffer, recorded once: dispatches of one kernel that reads and writes two buffers in turn, with a barrier
/// between any two.
pub struct Chain {
    device: ash::Device,
    queue: vk::Queue,
    commands: vk::CommandBuffer,
    /// Its value counts the submissions that have completed.
    timeline: vk::Semaphore,
    submitted: u64,
    // What has been loaded must outlive what it made.
    _instance: ash::Instance,
    _entry: ash::Entry,
}

impl Chain {
    /// Opens the first device with this name, and records `dispatches` of one workgroup. `kernel` is SPIR-V with two
    /// storage buffers of `bytes` bytes in set 0, and one word of push constants, which is `count`.
    pub fn new(name: &str, kernel: &[u32], dispatches: usize, bytes: u64, count: u32) -> Result<Chain> {
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_2);
        // SAFETY: the calls below follow the specification. What they name was created right before, for one device,
        // and lives as long as the process: a bench ends soon.
        unsafe {
            let entry = ash::Entry::load()?;
            let info = vk::InstanceCreateInfo::default().application_info(&application);
            let instance = entry.create_instance(&info, None)?;
            let of_name = |physical: &vk::PhysicalDevice| {
                let properties = instance.get_physical_device_properties(*physical);
                properties.device_name_as_c_str().is_ok_and(|found| found.to_string_lossy() == name)
            };
            let physical = instance.enumerate_physical_devices()?.into_iter().find(of_name);
            let physical = physical.with_context(|| format!("Vulkan has no device `{name}`"))?;
            let families = instance.get_physical_device_queue_family_properties(physical);
            let computes = |family: &vk::QueueFamilyProperties| family.queue_flags.contains(vk::QueueFlags::COMPUTE);
            let family = families.iter().position(computes).context("no queue computes")? as u32;
            let queues = [vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&[1.0])];
            let mut features = vk::PhysicalDeviceVulkan12Features::default().timeline_semaphore(true);
            let info = vk::DeviceCreateInfo::default().queue_create_infos(&queues).push_next(&mut features);
            let device = instance.create_device(physical, &info, None)?;

            let binding = |binding| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(binding)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .descriptor_count(1)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
            };
            let bindings = [binding(0), binding(1)];
            let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
            let set_layouts = [device.create_descriptor_set_layout(&info, None)?; 2];
            let words = [vk::PushConstantRange::default().stage_flags(vk::ShaderStageFlags::COMPUTE).size(4)];
            let info =
                vk::PipelineLayoutCreateInfo::default().set_layouts(&set_layouts[..1]).push_constant_ranges(&words);
            let layout = device.create_pipeline_layout(&info, None)?;
            let module = device.create_shader_module(&vk::ShaderModuleCreateInfo::default().code(kernel), None)?;
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(c"main");
            let info = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout)];
            let pipelines = device.create_compute_pipelines(vk::PipelineCache::null(), &info, None);
            let pipeline = pipelines.map_err(|(_, code)| code)?[0];

            let memory = instance.get_physical_device_memory_properties(physical);
            let buffer = || -> Result<vk::Buffer> {
                let info = vk::BufferCreateInfo::default().size(bytes).usage(vk::BufferUsageFlags::STORAGE_BUFFER);
                let buffer = device.create_buffer(&info, None)?;
                let needs = device.get_buffer_memory_requirements(buffer);
                let suits = |kind: &usize| {
                    let flags = memory.memory_types[*kind].property_flags;
                    needs.memory_type_bits >> kind & 1 == 1 && flags.contains(vk::MemoryPropertyFlags::DEVICE_LOCAL)
                };
                let kind = (0..memory.memory_type_count as usize).find(suits).context("no memory of the device")?;
                let info = vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(kind as u32);
                device.bind_buffer_memory(buffer, device.allocate_memory(&info, None)?, 0)?;
                Ok(buffer)
            };
            let buffers = [buffer()?, buffer()?];
            let sizes = [vk::DescriptorPoolSize::default().ty(vk::DescriptorType::STORAGE_BUFFER).descriptor_count(4)];
            let info = vk::DescriptorPoolCreateInfo::default().max_sets(2).pool_sizes(&sizes);
            let pool = device.create_descriptor_pool(&info, None)?;
            let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool).set_layouts(&set_layouts);
            let sets = device.allocate_descriptor_sets(&info)?;
            for (place, set) in sets.iter().enumerate() {
                let bound = [place, 1 - place]
                    .map(|buffer| vk::DescriptorBufferInfo::default().buffer(buffers[buffer]).range(vk::WHOLE_SIZE));
                let write = vk::WriteDescriptorSet::default()
                    .dst_set(*set)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .buffer_info(&bound);
                device.update_descriptor_sets(&[write], &[]);
            }

            let info = vk::CommandPoolCreateInfo::default().queue_family_index(family);
            let pool = device.create_command_pool(&info, None)?;
            let info = vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
            let commands = device.allocate_command_buffers(&info)?[0];
            let info = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::SIMULTANEOUS_USE);
            device.begin_command_buffer(commands, &info)?;
            device.cmd_bind_pipeline(commands, vk::PipelineBindPoint::COMPUTE, pipeline);
            device.cmd_push_constants(commands, layout, vk::ShaderStageFlags::COMPUTE, 0, &count.to_ne_bytes());
            for dispatch in 0..dispatches {
                let set = [sets[dispatch % 2]];
                device.cmd_bind_descriptor_sets(commands, vk::PipelineBindPoint::COMPUTE, layout, 0, &set, &[]);
                device.cmd_dispatch(commands, 1, 1, 1);
                let barrier = vk::MemoryBarrier::default()
                    .src_access_mask(vk::AccessFlags::SHADER_WRITE)
                    .dst_access_mask(vk::AccessFlags::SHADER_READ | vk::AccessFlags::SHADER_WRITE);
                let stage = vk::PipelineStageFlags::COMPUTE_SHADER;
                let none = vk::DependencyFlags::empty();
                device.cmd_pipeline_barrier(commands, stage, stage, none, &[barrier], &[], &[]);
            }
            device.end_command_buffer(commands)?;

            let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
            let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
            let timeline = device.create_semaphore(&info, None)?;
            let queue = device.get_device_queue(family, 0);
            Ok(Chain { device, queue, commands, timeline, submitted: 0, _instance: instance, _entry: entry })
        }
    }

    /// Submits the commands, and polls until they have run. Returns how many microseconds passed until they were
    /// submitted, and until they had run.
    pub fn run(&mut self) -> Result<[f64; 2]> {
        self.submitted += 1;
        let (semaphores, values, commands) = ([self.timeline], [self.submitted], [self.commands]);
        let mut timeline = vk::TimelineSemaphoreSubmitInfo::default().signal_semaphore_values(&values);
        let info = [vk::SubmitInfo::default()
            .command_buffers(&commands)
            .signal_semaphores(&semaphores)
            .push_next(&mut timeline)];
        let start = Instant::now();
        // SAFETY: the commands have been recorded for any number of uses, nobody else has the queue, and the values of
        // the semaphore rise.
        unsafe { self.device.queue_submit(self.queue, &info, vk::Fence::null())? };
        let submitted = start.elapsed();
        // SAFETY: the semaphore is a timeline of this device.
        while unsafe { self.device.get_semaphore_counter_value(self.timeline)? } < self.submitted {
            ensure!(start.elapsed() < Duration::from_secs(10), "the device does not answer");
            std::hint::spin_loop();
        }
        Ok([submitted, start.elapsed()].map(|time| time.as_nanos() as f64 / 1e3))
    }
}
