//! Convolutions in which each channel has a kernel of its own.

use super::channel_order::{channels_first, is_channels_last};
use super::conv::{Convolution, Sizes};
use super::window::Window;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::shape::Shape;
use crate::device::Device;
use crate::kernels::depthwise::{Depthwise, Parameters, QuadAxis, WORKGROUP};
use crate::lazy::PendingLaunch;
use crate::tensor::Tensor;
use crate::tuning;

/// The code of a kernel has all its taps, and the inputs of several outputs. So both are few.
const MOST_TAPS: usize = 49;
const LONGEST_STRIDE: usize = 3;

/// With fewer invocations than this for each compute unit, an invocation computes fewer outputs.
const BUSY: usize = 256;

impl Convolution {
    /// Returns the convolution of checked sizes, without a bias, if it is depthwise and has a kernel of its own. The
    /// result has the dtype `output` and the order in memory that `x` has.
    pub(super) fn as_depthwise(
        &self,
        x: &Tensor,
        weight: &Tensor,
        sizes: &Sizes,
        output: DType,
    ) -> Result<Option<Tensor>> {
        let ([height, width], true) = (&sizes.windows[..], [sizes.input_channels, sizes.output_channels] == [1; 2])
        else {
            return Ok(None);
        };
        let taps = height.kernel.saturating_mul(width.kernel);
        let small = taps <= MOST_TAPS
            && [height, width]
                .iter()
                .all(|axis| axis.stride <= LONGEST_STRIDE && (axis.dilation == 1 || axis.kernel == 1));
        if self.transposed || !small || x.dtype().size_in_bytes() > 4 {
            return Ok(None);
        }
        let [images, channels] = [x.dims()[0], x.dims()[1]];
        let [rows, columns] = [sizes.outputs[0], sizes.outputs[1]];
        let Some(quads) = quad_axis(x, columns, width) else { return Ok(None) };
        let weight = weight.reshape((channels, taps))?;
        // Quads of channels are read together.
        let in_quads = weight.strides()[0] == 1 && weight.layout().offset.is_multiple_of(4);
        let weight = if quads == QuadAxis::Channels && !in_quads { weight.t()?.copied()?.t()? } else { weight };
        let lengths = [images, channels, rows, columns];
        let kernel = Depthwise {
            dtype: x.dtype(),
            output,
            quads,
            kernel: [height.kernel as u32, width.kernel as u32],
            stride: [height.stride as u32, width.stride as u32],
            tile: [0; 2],
            epilogue: None,
        };
        let kernel = Depthwise { tile: tile(x.device(), &kernel, lengths), ..kernel };
        let parameters = Parameters {
            images,
            channels,
            windows: sizes.windows.iter().zip(&sizes.outputs).map(|(window, &n)| window.parameters(n)).collect(),
            x: x.layout().into(),
            weight: weight.layout().into(),
            epilogue: None,
        };
        let groups = kernel.invocations(lengths).div_ceil(WORKGROUP as usize);
        let inputs = [x.buffer()?.clone(), weight.buffer()?.clone()].into_iter().collect();
        let shape: Shape = match quads {
            QuadAxis::Channels => [images, rows, columns, channels].into(),
            QuadAxis::Columns(_) => lengths.into(),
        };
        let (device, op) = (x.device().clone(), self.op);
        let y = Tensor::from_launch(PendingLaunch {
            kernel,
            parameters,
            groups,
            inputs,
            shape,
            dtype: output,
            device,
            op,
        })?;
        if quads == QuadAxis::Channels { channels_first(&y) } else { Ok(y) }.map(Some)
    }
}

/// Returns the axis along which four outputs lie side by side, if there is one.
fn quad_axis(x: &Tensor, columns: usize, window: &Window) -> Option<QuadAxis> {
    let are_whole = |axes: [usize; 3], length: usize| {
        let others = axes.map(|axis| x.strides()[axis].unsigned_abs());
        [length, x.layout().offset].into_iter().chain(others).all(|distance| distance.is_multiple_of(4))
    };
    if is_channels_last(x) {
        return are_whole([0, 2, 3], x.dims()[1]).then_some(QuadAxis::Channels);
    }
    let in_quads = x.strides()[3] == 1 && are_whole([0, 1, 2], x.dims()[3]);
    let behind = (window.before.next_multiple_of(4) - window.before) as u32;
    columns.is_multiple_of(4).then_some(QuadAxis::Columns(in_quads.then_some(behind)))
}

/// Returns the rows and columns of outputs that an invocation computes: many, if others keep the device busy.
fn tile(device: &Device, kernel: &Depthwise, lengths: [usize; 4]) -> [u32; 2] {
    let [most, fewest] = match kernel.quads {
        QuadAxis::Channels => [[2, 4], [1, 2]],
        QuadAxis::Columns(_) => [[4, 1], [1, 1]],
    };
    if let Ok(t) = std::env::var("DWTILE") {
        let v: Vec<u32> = t.split('x').map(|n| n.parse().unwrap()).collect();
        return [v[0], v[1]];
    }
    let needed = tuning::compute_units(device.info().compute_units) * BUSY;
    let enough = Depthwise { tile: most, ..kernel.clone() }.invocations(lengths) >= needed;
    if enough { most } else { fewest }
}
