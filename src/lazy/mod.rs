//! Computations that are deferred until somebody needs them: expressions, their fusion, products and their epilogues.

mod copy;
mod cost;
mod epilogue;
mod expression;
mod finishing;
mod fusion;
mod graph;
mod operand;
mod pending;
mod placement;
mod planned;
mod planning;
mod run;
mod storage;
mod transfer;
mod transposition;
mod view;

pub(crate) use epilogue::{Epilogue, Produced, Producer};
pub(crate) use expression::{ExpressionBuilder, check_computes};
pub(crate) use operand::{Deferred, Operand};
pub(crate) use pending::PendingLaunch;
pub(crate) use placement::Placement;
pub(crate) use planned::{PlannedLaunch, PlannedRun};
pub(crate) use storage::Storage;
pub(crate) use transfer::{PlannedTransfer, Transfer};
pub(crate) use view::View;

use crate::backend::info::MemoryKind;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::shape::{Shape, checked_elements};
use crate::device::Device;
use crate::engine::pool::Buffer;
use crate::engine::runtime::COUNTERS;
use crate::kernels::epilogue::Finishing;
use smallvec::SmallVec;

/// Returns a new device buffer for the elements of a shape.
pub(crate) fn allocate(shape: &Shape, dtype: DType, device: &Device, op: &'static str) -> Result<Buffer> {
    let bytes = checked_elements(shape, op)? as u64 * dtype.size_in_bytes() as u64;
    device.runtime().allocate(bytes, MemoryKind::Device)
}

/// Returns the buffers that a kernel binds after its results, for workgroups that share a block of them.
pub(crate) fn shared_buffers<F: Finishing>(
    kernel: &F,
    groups: usize,
    device: &Device,
    op: &'static str,
) -> Result<SmallVec<[Buffer; 2]>> {
    let Some((shape, dtype)) = kernel.shared(groups) else { return Ok(SmallVec::new()) };
    debug_assert!(groups <= COUNTERS, "surplus workgroups would count");
    let sums = allocate(&shape.into(), dtype, device, op)?;
    Ok([sums, device.runtime().counters()?].into_iter().collect())
}
