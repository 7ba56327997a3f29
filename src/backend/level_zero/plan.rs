//! Steps with every number looked up and every rule checked, so that recording them fails only if the driver does.

use super::ffi::GroupCount;
use super::kernel::Kernel;
use super::memory::{Buffer, Place};
use super::region;
use crate::backend::contract::{BufferId, Command, KernelId, Region, Step};
use crate::backend::rules::{invalid_step, unknown_buffer};
use crate::backend::slots::Slots;
use crate::base::error::Result;
use smallvec::SmallVec;
use std::ptr::NonNull;

/// A batch ready to be recorded.
pub(super) struct Plan<'a> {
    /// The actions, each with whether it waits for those before it.
    pub actions: Vec<(bool, Action<'a>)>,
    /// Bytes on their way between host and device, if the batch does nothing else.
    pub transfer: Option<u64>,
}

/// What to record for a step.
pub(super) enum Action<'a> {
    Dispatch {
        kernel: &'a Kernel,
        buffers: SmallVec<[NonNull<u8>; 6]>,
        parameters: &'a [u32],
        groups: GroupCount,
    },
    /// Copies boxes, counted from the starts of the buffers. They do not touch each other.
    Copy {
        src: NonNull<u8>,
        dst: NonNull<u8>,
        regions: SmallVec<[Region; 1]>,
    },
}

impl<'a> Plan<'a> {
    /// Looks up and checks steps. `max_groups` bounds the workgroups in each dimension.
    pub fn new(steps: &'a [Step], buffers: &Slots<Buffer>, kernels: &'a [Kernel], max_groups: u32) -> Result<Plan<'a>> {
        let mut plan = Plan { actions: Vec::with_capacity(steps.len()), transfer: Some(0) };
        let find = |id: BufferId| buffers.get(id.0).ok_or_else(|| unknown_buffer("submit", id));
        for step in steps {
            let action = match &step.command {
                Command::Dispatch { kernel, buffers, parameters, groups } => {
                    plan.transfer = None;
                    let kernel = find_kernel(kernels, *kernel)?;
                    kernel.signature().check(buffers.len(), parameters.len(), *groups, max_groups)?;
                    let buffers = buffers.iter().map(|id| Ok(find(*id)?.address)).collect::<Result<_>>()?;
                    let [group_count_x, group_count_y, group_count_z] = *groups;
                    let groups = GroupCount { group_count_x, group_count_y, group_count_z };
                    Action::Dispatch { kernel, buffers, parameters, groups }
                }
                Command::CopyRegion { src, dst, region } => {
                    let (src, dst) = (find(*src)?, find(*dst)?);
                    region.check(src.bytes, dst.bytes).map_err(invalid_step)?;
                    if src.address == dst.address {
                        return Err(invalid_step("a copy within one buffer".into()));
                    }
                    let crosses = (src.place == Place::Host) != (dst.place == Place::Host);
                    plan.transfer = plan.transfer.filter(|_| crosses).map(|bytes| bytes + region.bytes());
                    let regions = region::commands(region, region::LIMIT);
                    Action::Copy { src: src.address, dst: dst.address, regions }
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
