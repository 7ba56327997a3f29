//! Steps with every number looked up and every rule checked, so that recording them cannot fail half-way.

use super::kernel::{Kernel, Pipeline};
use super::memory::Buffer;
use crate::device::backend::{BufferId, Command, KernelId, Region, Step};
use crate::device::rules::{invalid_step, unknown_buffer};
use crate::device::slots::Slots;
use crate::error::Result;
use ash::vk;
use smallvec::SmallVec;

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
    Copy { src: vk::Buffer, dst: vk::Buffer, pieces: Pieces },
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

/// A piece for each row of a region that has passed its check. Rows that touch each other on both sides are one piece,
/// and so are slices.
fn pieces(region: &Region) -> Pieces {
    let Region { extent: [size, rows, slices], src, dst } = region.merged();
    let places = (0..slices).flat_map(|slice| (0..rows).map(move |row| (slice, row)));
    places
        .map(|(slice, row)| vk::BufferCopy {
            src_offset: src.offset + slice * src.slice + row * src.row,
            dst_offset: dst.offset + slice * dst.slice + row * dst.row,
            size,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::backend::Pitch;

    fn offsets(extent: [u64; 3], src: Pitch, dst: Pitch) -> Vec<[u64; 3]> {
        let pieces = pieces(&Region { extent, src, dst });
        pieces.iter().map(|piece| [piece.src_offset, piece.dst_offset, piece.size]).collect()
    }

    #[test]
    fn what_touches_on_both_sides_is_one_piece() {
        let dense = Pitch { offset: 2, row: 4, slice: 12 };
        let gaps_in_rows = Pitch { offset: 0, row: 5, slice: 15 };
        let gaps_in_slices = Pitch { offset: 0, row: 4, slice: 13 };
        assert_eq!(offsets([4, 3, 2], dense, dense), [[2, 2, 24]]);
        assert_eq!(offsets([4, 3, 2], gaps_in_slices, dense), [[0, 2, 12], [13, 14, 12]]);
        let rows = [[2, 0, 4], [6, 5, 4], [10, 10, 4], [14, 15, 4], [18, 20, 4], [22, 25, 4]];
        assert_eq!(offsets([4, 3, 2], dense, gaps_in_rows), rows);
        // The pitch of a single row, or slice, means nothing.
        assert_eq!(offsets([4, 1, 1], gaps_in_rows, Pitch::default()), [[0, 0, 4]]);
        assert_eq!(offsets([12, 1, 2], dense, Pitch { row: 0, ..dense }), [[2, 2, 24]]);
    }
}
