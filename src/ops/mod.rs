//! What tensors can do: one file per family, with its checks and its choice of kernel.

mod arithmetic;
mod binary;
mod conv;
mod convert;
mod grid_sample;
mod index;
mod join;
mod matmul;
mod normalize;
mod pad;
mod pixel_shuffle;
mod pool;
mod reduce;
mod resize;
mod select;
mod unary;
mod window;

pub use conv::ConvConfig;
pub use pool::PoolConfig;
pub use window::PerAxis;

pub use grid_sample::{GridSampleConfig, GridSampleMode, GridSamplePadding};
pub use pad::PadMode;
pub use resize::{CoordinateMode, NearestRounding, ResizeConfig, ResizeMode};

use crate::device::{Device, DeviceKind};
use crate::kernels::workgroup::Team;
use crate::tuning;

/// Whether kernels are chosen for a driver that runs on the processor.
fn is_software(device: &Device) -> bool {
    device.info().kind == DeviceKind::Cpu && !tuning::as_gpu()
}

/// Rows from this length on are worth a workgroup each.
const TEAM_ROW: usize = 32;

/// Who works on a row of `length` elements.
fn choose_team(device: &Device, rows: usize, length: usize) -> Team {
    // A software device runs one invocation after the other: workgroups pay only where there is nothing else to share.
    let enough_rows = if is_software(device) { 16 } else { 1 << 16 };
    if length < TEAM_ROW || rows >= enough_rows { Team::Invocation } else { Team::Workgroup }
}
