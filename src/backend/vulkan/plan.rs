//! Checked steps: every number is looked up and every rule checked, so recording cannot fail half-way.

use super::batch::Batch;
use super::kernel::{Pipeline, VulkanKernel};
use super::memory::Buffer;
use crate::backend::contract::{Command, Region, Step};
use crate::backend::rules::{check_copy, find_buffer, find_kernel, find_program, find_sides};
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
        /// Whether it binds the next descriptor set.
        binds: bool,
        parameters: Cow<'a, [u32]>,
        groups: [u32; 3],
    },
    Copy {
        src: vk::Buffer,
        dst: vk::Buffer,
        pieces: Pieces,
    },
    /// Executes the commands of a program.
    Run(vk::CommandBuffer),
}

/// The pieces that a box of bytes is copied in.
type Pieces = SmallVec<[vk::BufferCopy; 1]>;

impl<'a> Plan<'a> {
    /// Looks up and checks steps among the live buffers and kernels. `max_groups` limits the workgroups in each
    /// dimension.
    pub fn new(
        steps: &'a [Step],
        live: &Slots<Buffer>,
        kernels: &[VulkanKernel],
        programs: &Slots<Batch>,
        max_groups: [u32; 3],
    ) -> Result<Plan<'a>> {
        let mut plan = Plan {
            actions: Vec::with_capacity(steps.len()),
            layouts: Vec::with_capacity(steps.len()),
            set_lengths: Vec::with_capacity(steps.len()),
            buffers: Vec::with_capacity(4 * steps.len()),
        };
        for step in steps {
            let action = match &step.command {
                Command::Dispatch { kernel, buffers, parameters, groups } => {
                    let kernel = find_kernel(kernels, *kernel)?;
                    kernel.signature().check(buffers.len(), parameters.len(), *groups, max_groups)?;
                    let buffers = buffers.iter().map(|buffer| find_buffer(live, *buffer));
                    let parameters = if kernel.addresses {
                        let mut words = Vec::with_capacity(parameters.len() + 2 * buffers.len());
                        words.extend_from_slice(parameters);
                        for buffer in buffers {
                            let address = buffer?.address.unwrap_or_default();
                            words.extend([address as u32, (address >> 32) as u32]);
                        }
                        words.into()
                    } else {
                        for buffer in buffers {
                            let buffer = buffer?;
                            plan.buffers.push(vk::DescriptorBufferInfo {
                                buffer: buffer.handle,
                                offset: 0,
                                range: buffer.bytes,
                            });
                        }
                        plan.layouts.push(kernel.pipeline.set_layout);
                        plan.set_lengths.push(kernel.bindings);
                        parameters.as_slice().into()
                    };
                    let binds = !kernel.addresses;
                    Action::Dispatch { pipeline: kernel.pipeline, binds, parameters, groups: *groups }
                }
                Command::CopyRegion { src, dst, region } => {
                    let [src, dst] = find_sides(live, *src, *dst)?;
                    check_copy(region, src.bytes, dst.bytes)?;
                    Action::Copy { src: src.handle, dst: dst.handle, pieces: pieces(region) }
                }
                Command::Run(program) => Action::Run(find_program(programs, *program)?.program()),
            };
            plan.actions.push((step.barrier, action));
        }
        Ok(plan)
    }
}

/// Returns a piece for each row of a region. The region has passed its check.
fn pieces(region: &Region) -> Pieces {
    region.rows().map(|row| vk::BufferCopy { src_offset: row.src, dst_offset: row.dst, size: row.bytes }).collect()
}
