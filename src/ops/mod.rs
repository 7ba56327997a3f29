//! The operations of tensors: one file per family, with its checks and its choice of kernel.

mod arithmetic;
mod attention;
mod batched_product;
mod binary;
mod cache_append;
mod channel_order;
mod compact;
mod conv;
mod conv_phases;
mod conv_product;
mod convert;
mod depthwise;
mod diagonal;
mod einsum;
mod gemm;
mod grid_sample;
mod index;
mod join;
mod linear;
mod loaded;
mod matmul;
pub(crate) mod matrix_units;
mod next_token;
mod normalize;
mod operand;
mod ordered_operands;
mod pad;
mod pixel_shuffle;
mod pool;
pub(crate) mod precision;
mod random;
mod rearrange;
mod reduce;
mod resize;
mod roofline;
mod rotary;
mod row_cut;
mod rows;
mod scan;
mod scatter;
mod select;
mod self_test;
mod sort;
mod unary;
mod window;

pub use attention::AttentionConfig;
pub(crate) use attention::{MOST_TOKENS, PagedLayer};
pub(crate) use batched_product::BatchedProduct;
pub(crate) use cache_append::Rotation;
pub use conv::ConvConfig;
pub(crate) use conv_product::prepared_weight;
pub(crate) use gemm::weighted_sum;
pub use gemm::{Gemm, GemmStridedBatched, MatrixBatch, MatrixOrder};
pub use grid_sample::{GridSampleConfig, GridSampleMode, GridSamplePadding};
pub(crate) use matmul::{MOST_AROUND, portable_tile};
pub use operand::TensorOrScalar;
pub use pad::PadMode;
pub use pool::PoolConfig;
pub use rearrange::Sections;
pub use resize::{CoordinateMode, NearestRounding, ResizeConfig, ResizeMode};
pub(crate) use self_test::verdict;
pub use window::PerAxis;

use crate::base::error::Result;
use crate::device::Device;
use crate::kernels::workgroup::{Team, WORKGROUP};
use crate::tensor::Tensor;

/// Runs the kernel of a result that is put off, if it keeps much more in memory than the result takes: at least 1 MiB,
/// and 16 times as much.
fn run_if_it_holds_much<'a>(result: &Tensor, operands: impl IntoIterator<Item = &'a Tensor>) -> Result<()> {
    let bytes = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
    let held: usize = operands.into_iter().map(bytes).sum();
    if held >= 1 << 20 && held / 16 >= bytes(result) { result.realize() } else { Ok(()) }
}

/// Chooses whether an invocation or a workgroup works on each of `rows` rows of `length` elements.
fn choose_team(device: &Device, rows: usize, length: usize) -> Team {
    let tuning = &device.tuning().rows;
    if length < tuning.shortest || rows >= tuning.busy { Team::Invocation } else { Team::Workgroup(WORKGROUP) }
}

/// Returns the invocations of the largest team that a device has: a power of two, at most 1,024.
fn largest_team(device: &Device) -> u32 {
    device.largest_workgroup().clamp(WORKGROUP, 1024)
}

/// Returns the lanes of a subgroup if the device has only one size. Then the invocations of a workgroup fill subgroups
/// in order.
pub(crate) fn subgroup_lanes(device: &Device) -> Option<u32> {
    let info = device.info();
    match info.limits.subgroup_sizes[..] {
        [lanes] if info.features.subgroups && lanes <= WORKGROUP => Some(lanes),
        _ => None,
    }
}
