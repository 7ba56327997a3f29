//! Steps with every number looked up and every rule checked, so that recording them cannot fail half-way.

use super::kernel::{Kernel, Pipeline};
use super::memory::{Buffer, unknown_buffer};
use crate::device::backend::{BufferId, Command, KernelId, Step};
use crate::device::slots::Slots;
use crate::error::{Error, Result};
use ash::vk;

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
    Dispatch { pipeline: Pipeline, parameters: &'a [u32], groups: [u32; 3] },
    Copy { src: vk::Buffer, dst: vk::Buffer, bytes: u64 },
}

/// The error for a step that breaks a rule of the contract.
fn invalid(message: String) -> Error {
    Error::InvalidArgument { op: "submit", message }
}

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
                    check_dispatch(kernel, buffers.len(), parameters.len(), *groups, max_groups)?;
                    for buffer in buffers {
                        let buffer = find(*buffer)?;
                        plan.buffers.push(vk::DescriptorBufferInfo {
                            buffer: buffer.handle,
                            offset: 0,
                            range: buffer.bytes,
                        });
                    }
                    plan.layouts.push(kernel.pipeline.set_layout);
                    plan.set_lengths.push(kernel.bindings);
                    Action::Dispatch { pipeline: kernel.pipeline, parameters, groups: *groups }
                }
                Command::CopyRegion { src, dst, region } => {
                    let bytes = &region.bytes();
                    check_copy(find(*src)?, find(*dst)?, *bytes)?;
                    Action::Copy { src: find(*src)?.handle, dst: find(*dst)?.handle, bytes: *bytes }
                }
            };
            plan.actions.push((step.barrier, action));
        }
        Ok(plan)
    }
}

fn find_kernel(kernels: &[Kernel], id: KernelId) -> Result<&Kernel> {
    let kernel = usize::try_from(id.0).ok().and_then(|index| kernels.get(index));
    kernel.ok_or_else(|| invalid(format!("{id:?} does not exist")))
}

fn check_dispatch(kernel: &Kernel, buffers: usize, words: usize, groups: [u32; 3], max_groups: u32) -> Result<()> {
    let complain = |message| Err(Error::Kernel { kernel: kernel.name.clone(), message });
    if buffers != kernel.bindings {
        return complain(format!("takes {} buffers, got {buffers}", kernel.bindings));
    }
    if words != kernel.parameter_words {
        return complain(format!("takes {} parameter words, got {words}", kernel.parameter_words));
    }
    if groups.iter().any(|count| *count > max_groups) {
        return complain(format!(
            "launched on {groups:?} workgroups, of which {max_groups} are possible per dimension"
        ));
    }
    Ok(())
}

fn check_copy(src: &Buffer, dst: &Buffer, bytes: u64) -> Result<()> {
    if bytes == 0 || !bytes.is_multiple_of(4) || bytes > src.bytes || bytes > dst.bytes || src.handle == dst.handle {
        let (from, to) = (src.bytes, dst.bytes);
        return Err(invalid(format!(
            "a copy of {bytes} bytes from a buffer of {from} to one of {to}: \
             a multiple of 4 that fits both is needed, and two buffers"
        )));
    }
    Ok(())
}
