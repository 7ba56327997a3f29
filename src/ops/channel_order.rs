//! Images whose channels come first, (N, C, spatial..), or last, (N, spatial.., C).

use crate::base::error::Result;
use crate::base::shape::Dims;
use crate::tensor::Tensor;

/// Whether channels are contiguous, and the axes behind them are not.
pub(super) fn is_channels_last(x: &Tensor) -> bool {
    x.dims()[1] > 1 && x.strides()[1] == 1 && !x.is_contiguous()
}

/// Moves the axis of the channels behind all others.
pub(super) fn channels_last(x: &Tensor) -> Result<Tensor> {
    let axes: Dims<isize> = [0].into_iter().chain(2..x.rank() as isize).chain([1]).collect();
    x.permute(&axes[..])
}

/// Moves the last axis before the spatial ones.
pub(super) fn channels_first(x: &Tensor) -> Result<Tensor> {
    let axes: Dims<isize> = [0, x.rank() as isize - 1].into_iter().chain(1..x.rank() as isize - 1).collect();
    x.permute(&axes[..])
}

/// Returns the tensor with its channels last in memory.
pub(super) fn in_channels_last(x: &Tensor) -> Result<Tensor> {
    channels_first(&channels_last(x)?.contiguous()?)
}
