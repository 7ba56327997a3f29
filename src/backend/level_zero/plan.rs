//! Checked steps: every number is looked up and every rule checked, so recording fails only if the driver does.

use super::batch::Program;
use super::ffi::GroupCount;
use super::kernel::LevelZeroKernel;
use super::memory::Buffer;
use super::region;
use crate::backend::contract::{Command, Region, Step};
use crate::backend::rules::{check_copy, find_buffer, find_kernel, find_program, find_sides};
use crate::backend::slots::Slots;
use crate::base::error::Result;
use smallvec::SmallVec;
use std::ptr::NonNull;
use std::sync::Arc;

/// A batch ready to be recorded.
pub(super) struct Plan<'a> {
    /// The actions, each with whether it waits for those before it.
    pub actions: Vec<(bool, Action<'a>)>,
    /// Whether it runs programs.
    pub runs_programs: bool,
}

/// What to record for a step.
pub(super) enum Action<'a> {
    Dispatch {
        kernel: &'a LevelZeroKernel,
        buffers: SmallVec<[NonNull<u8>; 6]>,
        parameters: &'a [u32],
        groups: GroupCount,
    },
    /// Copies boxes, whose offsets count from the starts of the buffers. The boxes do not overlap.
    Copy { src: NonNull<u8>, dst: NonNull<u8>, regions: SmallVec<[Region; 1]> },
    /// Executes the commands of a program.
    Run(Arc<Program>),
}

impl<'a> Plan<'a> {
    /// Looks up and checks steps among the live buffers and kernels. `max_groups` limits the workgroups in each
    /// dimension.
    pub fn new(
        steps: &'a [Step],
        live: &Slots<Buffer>,
        kernels: &'a [LevelZeroKernel],
        programs: &Slots<Arc<Program>>,
        max_groups: [u32; 3],
    ) -> Result<Plan<'a>> {
        let mut plan = Plan { actions: Vec::with_capacity(steps.len()), runs_programs: false };
        for step in steps {
            let action = match &step.command {
                Command::Dispatch { kernel, buffers, parameters, groups } => {
                    let kernel = find_kernel(kernels, *kernel)?;
                    kernel.signature().check(buffers.len(), parameters.len(), *groups, max_groups)?;
                    let buffers =
                        buffers.iter().map(|id| Ok(find_buffer(live, *id)?.address)).collect::<Result<_>>()?;
                    let [group_count_x, group_count_y, group_count_z] = *groups;
                    let groups = GroupCount { group_count_x, group_count_y, group_count_z };
                    Action::Dispatch { kernel, buffers, parameters, groups }
                }
                Command::CopyRegion { src, dst, region } => {
                    let [src, dst] = find_sides(live, *src, *dst)?;
                    check_copy(region, src.bytes, dst.bytes)?;
                    let regions = region::commands(region, region::LIMIT);
                    Action::Copy { src: src.address, dst: dst.address, regions }
                }
                Command::Run(program) => {
                    plan.runs_programs = true;
                    Action::Run(find_program(programs, *program)?.clone())
                }
            };
            plan.actions.push((step.barrier, action));
        }
        Ok(plan)
    }
}
