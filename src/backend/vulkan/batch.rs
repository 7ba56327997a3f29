//! Recording: a command buffer and its descriptor sets, which later batches use again.

use super::device::Device;
use super::kernel::Pipeline;
use super::plan::{Action, Plan};
use super::timer::Timer;
use crate::base::error::Result;
use ash::vk;
use std::sync::Arc;

/// The descriptor pool of a batch starts with room for this many sets, and for `DESCRIPTORS_PER_SET` times as many
/// descriptors. It doubles if a batch needs more.
const FIRST_SETS: u32 = 64;
const DESCRIPTORS_PER_SET: u32 = 4;

/// The stages in which this backend works.
const WORK_STAGES: vk::PipelineStageFlags = vk::PipelineStageFlags::from_raw(
    vk::PipelineStageFlags::COMPUTE_SHADER.as_raw() | vk::PipelineStageFlags::TRANSFER.as_raw(),
);

/// All that a batch allocates from the driver. One batch at a time uses it, and it is reset as a whole for the next.
pub(super) struct Batch {
    pool: vk::CommandPool,
    commands: vk::CommandBuffer,
    descriptors: DescriptorPool,
    timer: Timer,
    timed: bool,
    device: Arc<Device>,
}

/// A linear descriptor pool: it allocates sets one by one, and frees all of them at once.
#[derive(Default)]
struct DescriptorPool {
    handle: vk::DescriptorPool,
    sets: u32,
    descriptors: u32,
}

impl Batch {
    /// Creates an empty batch.
    pub fn new(device: Arc<Device>) -> Result<Batch> {
        let info = vk::CommandPoolCreateInfo::default()
            .flags(vk::CommandPoolCreateFlags::TRANSIENT)
            .queue_family_index(device.adapter.queue_family);
        // SAFETY: the device is alive and has a queue of that family.
        let pool = device.check("vkCreateCommandPool", unsafe { device.raw.create_command_pool(&info, None) })?;
        // From here on, dropping the batch frees the pool.
        let mut batch = Batch {
            pool,
            commands: vk::CommandBuffer::null(),
            descriptors: DescriptorPool::default(),
            timer: Timer::default(),
            timed: false,
            device,
        };
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(pool)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(1);
        // SAFETY: the pool is of this device.
        let allocated = unsafe { batch.device.raw.allocate_command_buffers(&info) };
        let allocated = batch.device.check("vkAllocateCommandBuffers", allocated)?;
        batch.commands = allocated.first().copied().unwrap_or_default();
        Ok(batch)
    }

    /// Returns the recorded commands.
    pub fn commands(&self) -> vk::CommandBuffer {
        self.commands
    }

    /// Forgets what was recorded before, and records a plan. The device must not be executing this batch.
    ///
    /// With `timed`, two timestamps enclose each step. No step overlaps another, so the times are its own: each step
    /// waits for all before it.
    pub fn record(&mut self, plan: &Plan<'_>, timed: bool) -> Result<()> {
        let sets = self.descriptors.write_sets(&self.device, plan)?;
        self.begin(if timed { 2 * plan.actions.len() as u32 } else { 0 })?;
        self.timed = timed;
        self.record_actions(plan, &sets);
        self.end()
    }

    /// Forgets what was recorded before, and records only a timestamp.
    pub fn record_timestamp(&mut self) -> Result<()> {
        self.begin(1)?;
        self.timed = true;
        self.note_time(0);
        self.end()
    }

    /// Returns the timestamps, once the device has executed the batch. `None` if it has none.
    pub fn timestamps(&self) -> Result<Option<Vec<u64>>> {
        self.timed.then(|| self.timer.read(&self.device)).transpose()
    }

    /// Empties the command buffer, and begins to record commands with this many timestamps.
    fn begin(&mut self, timestamps: u32) -> Result<()> {
        let raw = &self.device.raw;
        // SAFETY: the commands are not being executed, and only this batch has the pool.
        let reset = unsafe { raw.reset_command_pool(self.pool, vk::CommandPoolResetFlags::empty()) };
        self.device.check("vkResetCommandPool", reset)?;
        let info = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: the command buffer was reset with its pool.
        self.device.check("vkBeginCommandBuffer", unsafe { raw.begin_command_buffer(self.commands, &info) })?;
        self.timer.begin(&self.device, self.commands, timestamps)
    }

    fn end(&self) -> Result<()> {
        // SAFETY: the command buffer is being recorded.
        let ended = unsafe { self.device.raw.end_command_buffer(self.commands) };
        self.device.check("vkEndCommandBuffer", ended)
    }

    fn note_time(&self, index: usize) {
        self.timer.write(&self.device, self.commands, index as u32);
    }

    fn record_actions(&self, plan: &Plan<'_>, sets: &[vk::DescriptorSet]) {
        let mut sets = sets.iter();
        let mut bound = vk::Pipeline::null();
        // The parameters that were pushed last, and the pipeline layout that they are for.
        let mut pushed = (vk::PipelineLayout::null(), &[][..]);
        // Only a barrier makes the writes of earlier batches visible. The order of submission is not enough.
        self.barrier(WORK_STAGES, WORK_STAGES);
        // `copied`: there was a copy since the last barrier for all stages. `narrow`: the last barrier was for kernels
        // alone, so copies do not wait for it.
        let (mut copied, mut narrow) = (false, false);
        for (index, (barrier, action)) in plan.actions.iter().enumerate() {
            let copies = matches!(action, Action::Copy { .. });
            if (*barrier || self.timed || (copies && narrow)) && index > 0 {
                narrow = !copies && !copied;
                copied = false;
                let stages = if narrow { vk::PipelineStageFlags::COMPUTE_SHADER } else { WORK_STAGES };
                self.barrier(stages, stages);
            }
            copied |= copies;
            if self.timed {
                self.note_time(2 * index);
            }
            match action {
                Action::Dispatch { pipeline, parameters, groups } => {
                    if bound != pipeline.handle {
                        bound = pipeline.handle;
                        // SAFETY: here and below: the command buffer is being recorded, and the plan has looked up and
                        // checked what the command names.
                        unsafe {
                            self.device.raw.cmd_bind_pipeline(self.commands, vk::PipelineBindPoint::COMPUTE, bound);
                        }
                    }
                    // Unchanged parameters are not pushed again: on an H200 a dispatch with new ones begins 0.3 us
                    // later.
                    let new = (pipeline.layout, &**parameters);
                    let changed = (pushed != new).then_some(new.1);
                    pushed = new;
                    self.dispatch(*pipeline, sets.next(), changed, *groups);
                }
                Action::Copy { src, dst, pieces } => {
                    // SAFETY: see above.
                    unsafe { self.device.raw.cmd_copy_buffer(self.commands, *src, *dst, pieces) };
                }
            }
            if self.timed {
                self.note_time(2 * index + 1);
            }
        }
        self.barrier(WORK_STAGES, vk::PipelineStageFlags::HOST);
    }

    fn dispatch(
        &self,
        pipeline: Pipeline,
        set: Option<&vk::DescriptorSet>,
        parameters: Option<&[u32]>,
        [x, y, z]: [u32; 3],
    ) {
        let raw = &self.device.raw;
        // SAFETY: the command buffer is being recorded with this pipeline bound, and the set has its layout. The plan
        // has checked the parameters' length and the number of groups.
        unsafe {
            raw.cmd_bind_descriptor_sets(
                self.commands,
                vk::PipelineBindPoint::COMPUTE,
                pipeline.layout,
                0,
                set.map(std::slice::from_ref).unwrap_or_default(),
                &[],
            );
            if let Some(parameters) = parameters.filter(|parameters| !parameters.is_empty()) {
                let bytes = bytemuck::cast_slice(parameters);
                raw.cmd_push_constants(self.commands, pipeline.layout, vk::ShaderStageFlags::COMPUTE, 0, bytes);
            }
            raw.cmd_dispatch(self.commands, x, y, z);
        }
    }

    /// Makes later work in the stages `to` wait for all earlier work in the stages `from`, and see its memory effects.
    /// It names each access, because MEMORY_READ and MEMORY_WRITE make a barrier take 5.3 us instead of 2.6 on an H200.
    fn barrier(&self, from: vk::PipelineStageFlags, to: vk::PipelineStageFlags) {
        let writes = vk::AccessFlags::SHADER_WRITE | vk::AccessFlags::TRANSFER_WRITE;
        let barrier =
            [vk::MemoryBarrier::default().src_access_mask(accesses(from) & writes).dst_access_mask(accesses(to))];
        // SAFETY: the command buffer is being recorded.
        unsafe {
            self.device.raw.cmd_pipeline_barrier(
                self.commands,
                from,
                to,
                vk::DependencyFlags::empty(),
                &barrier,
                &[],
                &[],
            );
        }
    }
}

/// Returns the memory accesses of work in these stages.
fn accesses(stages: vk::PipelineStageFlags) -> vk::AccessFlags {
    use vk::{AccessFlags as Access, PipelineStageFlags as Stage};
    let all = [
        (Stage::COMPUTE_SHADER, Access::SHADER_READ | Access::SHADER_WRITE),
        (Stage::TRANSFER, Access::TRANSFER_READ | Access::TRANSFER_WRITE),
        (Stage::HOST, Access::HOST_READ),
    ];
    let of = |(stage, access)| if stages.contains(stage) { access } else { Access::empty() };
    all.into_iter().map(of).fold(Access::empty(), |all, access| all | access)
}

impl Drop for Batch {
    fn drop(&mut self) {
        // The device does not execute a batch that is dropped: it was not submitted, or the device is idle.
        self.timer.destroy(&self.device);
        // SAFETY: see above.
        unsafe {
            self.device.raw.destroy_descriptor_pool(self.descriptors.handle, None);
            self.device.raw.destroy_command_pool(self.pool, None);
        }
    }
}

impl DescriptorPool {
    /// Frees all sets, and makes the sets of a plan. One call each frees, allocates and writes them.
    fn write_sets(&mut self, device: &Device, plan: &Plan<'_>) -> Result<Vec<vk::DescriptorSet>> {
        if plan.layouts.is_empty() {
            return Ok(Vec::new());
        }
        self.reset(device, plan.layouts.len() as u32, plan.buffers.len() as u32)?;
        let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(self.handle).set_layouts(&plan.layouts);
        // SAFETY: the pool has room for these sets, and only this batch uses it.
        let allocated = unsafe { device.raw.allocate_descriptor_sets(&info) };
        let sets = device.check("vkAllocateDescriptorSets", allocated)?;
        let mut buffers = plan.buffers.as_slice();
        let mut writes = Vec::with_capacity(sets.len());
        for (set, length) in sets.iter().zip(&plan.set_lengths) {
            let (first, rest) = buffers.split_at(*length);
            buffers = rest;
            // All bindings have the same type, so one write covers several bindings.
            if !first.is_empty() {
                writes.push(
                    vk::WriteDescriptorSet::default()
                        .dst_set(*set)
                        .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                        .buffer_info(first),
                );
            }
        }
        // SAFETY: the sets are new, have that many bindings each, and the buffers are alive.
        unsafe { device.raw.update_descriptor_sets(&writes, &[]) };
        Ok(sets)
    }

    /// Empties the pool. Replaces it by a larger one if needed.
    fn reset(&mut self, device: &Device, sets: u32, descriptors: u32) -> Result<()> {
        if sets <= self.sets && descriptors <= self.descriptors {
            // SAFETY: no command that is being executed uses a set of this pool.
            let reset = unsafe { device.raw.reset_descriptor_pool(self.handle, vk::DescriptorPoolResetFlags::empty()) };
            return device.check("vkResetDescriptorPool", reset);
        }
        let max_sets = sets.max(FIRST_SETS).next_power_of_two();
        let max_descriptors = descriptors.max(DESCRIPTORS_PER_SET * max_sets).next_power_of_two();
        let size =
            [vk::DescriptorPoolSize { ty: vk::DescriptorType::STORAGE_BUFFER, descriptor_count: max_descriptors }];
        let info = vk::DescriptorPoolCreateInfo::default().max_sets(max_sets).pool_sizes(&size);
        // SAFETY: the device is alive.
        let created = unsafe { device.raw.create_descriptor_pool(&info, None) };
        let larger = device.check("vkCreateDescriptorPool", created)?;
        // SAFETY: no command that is being executed uses a set of this pool, or it is null.
        unsafe { device.raw.destroy_descriptor_pool(self.handle, None) };
        *self = DescriptorPool { handle: larger, sets: max_sets, descriptors: max_descriptors };
        Ok(())
    }
}
