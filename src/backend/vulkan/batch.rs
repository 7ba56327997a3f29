//! Recording: command buffers and their descriptor sets, which later batches use again.

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

/// The stages in which a queue for kernels works. It also copies.
pub(super) const WORK_STAGES: vk::PipelineStageFlags = vk::PipelineStageFlags::from_raw(
    vk::PipelineStageFlags::COMPUTE_SHADER.as_raw() | vk::PipelineStageFlags::TRANSFER.as_raw(),
);

/// All that a batch, or a program, allocates from the driver. One batch at a time uses it, and it is reset as a whole
/// for the next.
pub(super) struct Batch {
    pool: vk::CommandPool,
    /// The command buffers of the pool. The first `begun` of them have commands.
    own: Vec<vk::CommandBuffer>,
    begun: usize,
    /// Whether the first command buffer is open already, for one use.
    opened: bool,
    /// What is executed: own command buffers, and those of programs.
    sequence: Vec<vk::CommandBuffer>,
    descriptors: DescriptorPool,
    timer: Timer,
    use_: Use,
    /// The stages in which its queue works.
    stages: vk::PipelineStageFlags,
    device: Arc<Device>,
}

/// What commands are recorded for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// A batch.
    Once,
    /// A batch with timestamps.
    Timed,
    /// A program.
    Again,
}

/// A linear descriptor pool: it allocates sets one by one, and frees all of them at once.
#[derive(Default)]
struct DescriptorPool {
    handle: vk::DescriptorPool,
    sets: u32,
    descriptors: u32,
}

impl Batch {
    /// Creates an empty batch for a queue of this family, which works in these stages.
    pub fn new(device: Arc<Device>, family: u32, stages: vk::PipelineStageFlags) -> Result<Batch> {
        let info = vk::CommandPoolCreateInfo::default()
            .flags(vk::CommandPoolCreateFlags::TRANSIENT)
            .queue_family_index(family);
        // SAFETY: the device is alive and has a queue of that family.
        let pool = device.check("vkCreateCommandPool", unsafe { device.raw.create_command_pool(&info, None) })?;
        let (own, sequence, descriptors) = Default::default();
        let (timer, use_, opened) = (Timer::default(), Use::Once, false);
        Ok(Batch { pool, own, begun: 0, opened, sequence, descriptors, timer, use_, stages, device })
    }

    /// Returns the recorded commands, to be executed in this order.
    pub fn sequence(&self) -> &[vk::CommandBuffer] {
        &self.sequence
    }

    /// Returns the commands of a program. They name no other program, so they are in one command buffer.
    pub fn program(&self) -> vk::CommandBuffer {
        self.sequence.first().copied().unwrap_or_default()
    }

    /// Forgets what was recorded before, and records a plan. The device must not be executing this batch. If it comes
    /// `after_copies` of another queue, it begins with a barrier: one of that queue orders nothing here.
    ///
    /// If it is timed, two timestamps enclose each step. No step overlaps another, so the times are its own: each step
    /// waits for all before it.
    pub fn record(&mut self, plan: &Plan<'_>, use_: Use, after_copies: bool) -> Result<()> {
        let sets = self.descriptors.write_sets(&self.device, plan)?;
        self.reset(use_)?;
        let mut sets = sets.as_slice();
        if after_copies {
            let commands = self.begin(0)?;
            self.barrier(commands, self.stages, self.stages);
            self.end(commands)?;
        }
        // Each program is executed between two command buffers of the batch's own.
        for part in plan.actions.split_inclusive(|(_, action)| matches!(action, Action::Run(_))) {
            let (actions, program) = match part.split_last() {
                Some(((_, Action::Run(program)), actions)) => (actions, Some(*program)),
                _ => (part, None),
            };
            if !actions.is_empty() {
                let commands = self.begin(if use_ == Use::Timed { 2 * actions.len() as u32 } else { 0 })?;
                let used = self.record_actions(commands, actions, sets);
                sets = &sets[used..];
                self.end(commands)?;
            }
            self.sequence.extend(program);
        }
        Ok(())
    }

    /// Forgets what was recorded before, and opens the first command buffer, so that the next plan is recorded sooner.
    /// The device must not be executing this batch.
    pub fn open(&mut self) -> Result<()> {
        if !self.opened {
            self.reset(Use::Once)?;
            self.open_next()?;
            self.opened = true;
        }
        Ok(())
    }

    /// Forgets what was recorded before, and records only a timestamp.
    pub fn record_timestamp(&mut self) -> Result<()> {
        self.reset(Use::Timed)?;
        let commands = self.begin(1)?;
        self.note_time(commands, 0);
        self.end(commands)
    }

    /// Returns the timestamps, once the device has executed the batch. `None` if it has none.
    pub fn timestamps(&self) -> Result<Option<Vec<u64>>> {
        let timestamps = || if self.begun == 0 { Ok(Vec::new()) } else { self.timer.read(&self.device) };
        (self.use_ == Use::Timed).then(timestamps).transpose()
    }

    /// Empties the command buffers.
    fn reset(&mut self, use_: Use) -> Result<()> {
        (self.use_, self.begun) = (use_, 0);
        self.sequence.clear();
        // Programs are never opened beforehand, and all others are for one use.
        if self.opened {
            return Ok(());
        }
        // SAFETY: the commands are not being executed, and only this batch has the pool.
        let reset = unsafe { self.device.raw.reset_command_pool(self.pool, vk::CommandPoolResetFlags::empty()) };
        self.device.check("vkResetCommandPool", reset)
    }

    /// Begins to record the next command buffer, with this many timestamps.
    fn begin(&mut self, timestamps: u32) -> Result<vk::CommandBuffer> {
        if !std::mem::take(&mut self.opened) {
            self.open_next()?;
        }
        let commands = self.own[self.begun];
        self.timer.begin(&self.device, timestamps)?;
        self.begun += 1;
        self.sequence.push(commands);
        Ok(commands)
    }

    /// Opens the next command buffer.
    fn open_next(&mut self) -> Result<()> {
        let raw = &self.device.raw;
        if self.begun == self.own.len() {
            let info = vk::CommandBufferAllocateInfo::default()
                .command_pool(self.pool)
                .level(vk::CommandBufferLevel::PRIMARY)
                .command_buffer_count(1);
            // SAFETY: the pool is of this device.
            let allocated = unsafe { raw.allocate_command_buffers(&info) };
            self.own.extend(self.device.check("vkAllocateCommandBuffers", allocated)?);
        }
        let flags = match self.use_ {
            Use::Again => vk::CommandBufferUsageFlags::SIMULTANEOUS_USE,
            Use::Once | Use::Timed => vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT,
        };
        let info = vk::CommandBufferBeginInfo::default().flags(flags);
        // SAFETY: the command buffer is new, or was reset with its pool.
        let begun = unsafe { raw.begin_command_buffer(self.own[self.begun], &info) };
        self.device.check("vkBeginCommandBuffer", begun)
    }

    fn end(&self, commands: vk::CommandBuffer) -> Result<()> {
        // SAFETY: the command buffer is being recorded.
        let ended = unsafe { self.device.raw.end_command_buffer(commands) };
        self.device.check("vkEndCommandBuffer", ended)
    }

    fn note_time(&self, commands: vk::CommandBuffer, index: usize) {
        self.timer.write(&self.device, commands, index as u32);
    }

    /// Records actions other than runs of programs. Returns how many descriptor sets they bind.
    fn record_actions(
        &self,
        commands: vk::CommandBuffer,
        actions: &[(bool, Action<'_>)],
        sets: &[vk::DescriptorSet],
    ) -> usize {
        let mut used = 0;
        let mut bound = vk::Pipeline::null();
        // The parameters that were pushed last, and the pipeline layout that they are for.
        let mut pushed = (vk::PipelineLayout::null(), &[][..]);
        let timed = self.use_ == Use::Timed;
        // `copied`: there was a copy since the last barrier for all stages. `narrow`: the last barrier was for kernels
        // alone, so copies do not wait for it.
        let (mut copied, mut narrow) = (false, false);
        for (index, (barrier, action)) in actions.iter().enumerate() {
            let copies = matches!(action, Action::Copy { .. });
            if (*barrier || timed || (copies && narrow)) && index > 0 {
                narrow = !copies && !copied;
                copied = false;
                let stages = if narrow { vk::PipelineStageFlags::COMPUTE_SHADER } else { self.stages };
                self.barrier(commands, stages, stages);
            }
            copied |= copies;
            if timed {
                self.note_time(commands, 2 * index);
            }
            match action {
                Action::Dispatch { pipeline, binds, parameters, groups } => {
                    if bound != pipeline.handle {
                        bound = pipeline.handle;
                        // SAFETY: here and below: the command buffer is being recorded, and the plan has looked up and
                        // checked what the command names.
                        unsafe {
                            self.device.raw.cmd_bind_pipeline(commands, vk::PipelineBindPoint::COMPUTE, bound);
                        }
                    }
                    // Unchanged parameters are not pushed again: on an H200 a dispatch with new ones begins 0.3 us
                    // later.
                    let new = (pipeline.layout, &**parameters);
                    let changed = (pushed != new).then_some(new.1);
                    pushed = new;
                    let set = if *binds { &sets[used..=used] } else { &[] };
                    used += set.len();
                    self.dispatch(commands, *pipeline, set, changed, *groups);
                }
                Action::Copy { src, dst, pieces } => {
                    // SAFETY: see above.
                    unsafe { self.device.raw.cmd_copy_buffer(commands, *src, *dst, pieces) };
                }
                Action::Run(_) => {}
            }
            if timed {
                self.note_time(commands, 2 * index + 1);
            }
        }
        // Only a barrier makes these writes visible: to the host, and to the queue's later command buffers.
        self.barrier(commands, self.stages, self.stages | vk::PipelineStageFlags::HOST);
        used
    }

    fn dispatch(
        &self,
        commands: vk::CommandBuffer,
        pipeline: Pipeline,
        set: &[vk::DescriptorSet],
        parameters: Option<&[u32]>,
        [x, y, z]: [u32; 3],
    ) {
        let raw = &self.device.raw;
        // SAFETY: the command buffer is being recorded with this pipeline bound, and a set has its layout. The plan
        // has checked the parameters' length and the number of groups.
        unsafe {
            if !set.is_empty() {
                raw.cmd_bind_descriptor_sets(commands, vk::PipelineBindPoint::COMPUTE, pipeline.layout, 0, set, &[]);
            }
            if let Some(parameters) = parameters.filter(|parameters| !parameters.is_empty()) {
                let bytes = bytemuck::cast_slice(parameters);
                raw.cmd_push_constants(commands, pipeline.layout, vk::ShaderStageFlags::COMPUTE, 0, bytes);
            }
            raw.cmd_dispatch(commands, x, y, z);
        }
    }

    /// Makes later work in the stages `to` wait for all earlier work in the stages `from`, and see its memory effects.
    /// It names each access, because MEMORY_READ and MEMORY_WRITE make a barrier take 5.3 us instead of 2.6 on an H200.
    fn barrier(&self, commands: vk::CommandBuffer, from: vk::PipelineStageFlags, to: vk::PipelineStageFlags) {
        let writes = vk::AccessFlags::SHADER_WRITE | vk::AccessFlags::TRANSFER_WRITE;
        let barrier =
            [vk::MemoryBarrier::default().src_access_mask(accesses(from) & writes).dst_access_mask(accesses(to))];
        // SAFETY: the command buffer is being recorded.
        unsafe {
            self.device.raw.cmd_pipeline_barrier(commands, from, to, vk::DependencyFlags::empty(), &barrier, &[], &[]);
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
