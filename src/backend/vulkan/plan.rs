//! Steps with every number looked up and every rule checked, so that recording them cannot fail half-way.

use super::kernel::{Kernel, Pipeline};
use super::memory::Buffer;
use crate::backend::contract::{BufferId, Command, KernelId, Region, Step};
use crate::backend::rules::{invalid_step, unknown_buffer};
use crate::backend::slots::Slots;
use crate::base::error::Result;
use ash::vk;
use smallvec::SmallVec;
use std::borrow::Cow;

/// A batch ready to be recorded.
pub(super) struct Plan<'a> {
    /// The actions, each with whether it waits for those before it.
    pub actions: Vec<(bool, Action<'a>)>,
    /// The layouts of the dispatches' descriptor sets, in order.
    pub layouts: Vec<vk::DescriptorSetLayout>,
    /// The number of buffers in each of these sets.
    pub set_lengths: Vec<usize>,
    /// The buffers in these sets, one set after the other.
    pub buffers: Vec<vk::DescriptorBufferInfo>,
}

/// What to record for a step.
pub(super) enum Action<'a> {
    /// The parameters are followed by the addresses of buffers that are not bound.
    Dispatch {
        pipeline: Pipeline,
        parameters: Cow<'a, [u32]>,
        groups: [u32; 3],
    },
    Copy {
        src: vk::Buffer,
        dst: vk::Buffer,
        pieces: Pieces,
    },
}

/// The pieces that a box of bytes is copied in.
type Pieces = SmallVec<[vk::BufferCopy; 1]>;

impl<'a> Plan<'a> {
    /// Looks up and checks steps. `max_groups` bounds the workgroups in each dimension.
    pub fn new(steps: &'a [Step], buffers: &Slots<Buffer>, kernels: &[Kernel], max_groups: u32) -> Result<Plan<'a>> {
        let mut plan = Plan {
            actions: Vec::with_capacity(steps.len()),
            layouts: Vec::with_capacity(steps.len()),
            set_lengths: Vec::with_capacity(steps.len()),
            buffers: Vec::with_capacity(4 * steps.len()),
        };
        let find = |id: BufferId| buffers.get(id.0).ok_or_else(|| unknown_buffer("submit", id));
        for step in steps {
            let action = match &step.command {
                Command::Dispatch { kernel, buffers, parameters, groups } => {
                    let kernel = find_kernel(kernels, *kernel)?;
                    kernel.signature().check(buffers.len(), parameters.len(), *groups, max_groups)?;
                    let mut parameters = Cow::from(parameters.as_slice());
                    for buffer in buffers {
                        let buffer = find(*buffer)?;
                        if kernel.addresses {
                            let address = buffer.address.unwrap_or_default();
                            parameters.to_mut().extend([address as u32, (address >> 32) as u32]);
                            continue;
                        }
                        plan.buffers.push(vk::DescriptorBufferInfo {
                            buffer: buffer.handle,
                            offset: 0,
                            range: buffer.bytes,
                        });
                    }
                    plan.layouts.push(kernel.pipeline.set_layout);
                    plan.set_lengths.push(if kernel.addresses { 0 } else { kernel.bindings });
                    Action::Dispatch { pipeline: kernel.pipeline, parameters, groups: *groups }
                }
                Command::CopyRegion { src, dst, region } => {
                    let (src, dst) = (find(*src)?, find(*dst)?);
                    check_copy(src, dst, region)?;
                    Action::Copy { src: src.handle, dst: dst.handle, pieces: pieces(region) }
                }
            };
            plan.actions.push((step.barrier, action));
        }
        Ok(plan)
    }
}

fn find_kernel(kernels: &[Kernel], id: KernelId) -> Result<&Kernel> {
    let kernel = usize::try_from(id.0).ok().and_then(|index| kernels.get(index));
    kernel.ok_or_else(|| invalid_step(format!("{id:?} does not exist")))
}

fn check_copy(src: &Buffer, dst: &Buffer, region: &Region) -> Result<()> {
    if src.handle == dst.handle {
        return Err(invalid_step("a copy within one buffer: two are needed".into()));
    }
    region.check(src.bytes, dst.bytes).map_err(|reason| invalid_step(format!("a copy cannot be done: {reason}")))
}

/// A piece for each row of a region that has passed its check.
fn pieces(region: &Region) -> Pieces {
    region.rows().map(|row| vk::BufferCopy { src_offset: row.src, dst_offset: row.dst, size: row.bytes }).collect()
}
