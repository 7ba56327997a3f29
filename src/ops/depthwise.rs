//! Depthwise convolutions and max pooling of images: what slides over each channel apart.

use super::channel_order::{channels_first, is_channels_last};
use super::window::Window;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::shape::Shape;
use crate::device::Device;
use crate::kernels::depthwise::{Depthwise, DepthwiseOp, Parameters, QuadAxis, WORKGROUP};
use crate::lazy::PendingLaunch;
use crate::tensor::Tensor;
use crate::tuning;

/// The code of a kernel has all its taps, and the inputs of several outputs. So both are few.
const MOST_TAPS: usize = 49;
const LONGEST_STRIDE: usize = 3;

/// With fewer invocations than this for each compute unit, an invocation computes fewer outputs.
const BUSY: usize = 256;

/// What slides over the images (N, C, H, W): windows along both spatial axes, and the lengths of the outputs.
pub(super) struct Slide<'a> {
    pub windows: &'a [Window],
    pub outputs: &'a [usize],
    pub op: &'static str,
}

impl Slide<'_> {
    /// Returns the convolution of each channel with its own kernel, without a bias and in the dtype `output`. It has
    /// the order in memory that `x` has. `None` if another kernel suits it better.
    pub fn convolve(&self, x: &Tensor, weight: &Tensor, output: DType) -> Result<Option<Tensor>> {
        let Some(quads) = self.quads(x) else { return Ok(None) };
        let channels = x.dims()[1];
        let weight = weight.reshape((channels, weight.elem_count() / channels))?;
        // Factors of neighbouring channels are read together.
        let in_quads = weight.strides()[0] == 1
            && weight.strides()[1].unsigned_abs().is_multiple_of(4)
            && weight.layout().offset.is_multiple_of(4);
        let weight = if quads == QuadAxis::Channels && !in_quads { weight.t()?.copied()?.t()? } else { weight };
        self.launch(x, Some(&weight), quads, output).map(Some)
    }

    /// Returns the largest element of each window, in the order in memory that `x` has. `None` if another kernel suits
    /// it better.
    pub fn max(&self, x: &Tensor) -> Result<Option<Tensor>> {
        let Some(quads) = self.quads(x) else { return Ok(None) };
        self.launch(x, None, quads, x.dtype()).map(Some)
    }

    /// Returns the axis along which four outputs lie side by side, if there is one and the windows suit the kernel.
    fn quads(&self, x: &Tensor) -> Option<QuadAxis> {
        let ([height, width], &[_, columns]) = (self.windows, self.outputs) else { return None };
        let is_short = |axis: &Window| axis.stride <= LONGEST_STRIDE && (axis.dilation == 1 || axis.kernel == 1);
        let is_small = height.kernel.saturating_mul(width.kernel) <= MOST_TAPS && is_short(height) && is_short(width);
        if !is_small || x.dtype().size_in_bytes() > 4 {
            return None;
        }
        let are_whole = |axes: [usize; 3], length: usize| {
            let others = axes.map(|axis| x.strides()[axis].unsigned_abs());
            [length, x.layout().offset].into_iter().chain(others).all(|distance| distance.is_multiple_of(4))
        };
        if is_channels_last(x) {
            return are_whole([0, 2, 3], x.dims()[1]).then_some(QuadAxis::Channels);
        }
        let in_quads = x.strides()[3] == 1 && are_whole([0, 1, 2], x.dims()[3]);
        let behind = (width.before.next_multiple_of(4) - width.before) as u32;
        columns.is_multiple_of(4).then_some(QuadAxis::Columns(in_quads.then_some(behind)))
    }

    fn launch(&self, x: &Tensor, weight: Option<&Tensor>, quads: QuadAxis, output: DType) -> Result<Tensor> {
        let lengths = [x.dims()[0], x.dims()[1], self.outputs[0], self.outputs[1]];
        let [images, channels, rows, columns] = lengths;
        let both = |size: fn(&Window) -> usize| [0, 1].map(|axis| size(&self.windows[axis]) as u32);
        let kernel = Depthwise {
            op: if weight.is_some() { DepthwiseOp::Convolution } else { DepthwiseOp::Max },
            dtype: x.dtype(),
            output,
            quads,
            kernel: both(|window| window.kernel),
            stride: both(|window| window.stride),
            tile: [1; 2],
            epilogue: None,
        };
        let kernel = Depthwise { tile: tile(x.device(), &kernel, lengths), ..kernel };
        let parameters = Parameters {
            images,
            channels,
            windows: self.windows.iter().zip(self.outputs).map(|(window, &n)| window.parameters(n)).collect(),
            x: x.layout().into(),
            weight: weight.map(|weight| weight.layout().into()),
            epilogue: None,
        };
        let groups = kernel.invocations(lengths).div_ceil(WORKGROUP as usize);
        let buffers = [Some(x), weight].into_iter().flatten().map(|x| x.buffer().cloned());
        let inputs = buffers.collect::<Result<_>>()?;
        let shape: Shape = match quads {
            QuadAxis::Channels => [images, rows, columns, channels].into(),
            QuadAxis::Columns(_) => lengths.into(),
        };
        let (device, op) = (x.device().clone(), self.op);
        let launch = PendingLaunch { kernel, parameters, groups, inputs, shape, dtype: output, device, op };
        let y = Tensor::from_launch(launch)?;
        if quads == QuadAxis::Channels { channels_first(&y) } else { Ok(y) }
    }
}

/// Returns the rows and columns of outputs that an invocation computes: many, if others keep the device busy.
fn tile(device: &Device, kernel: &Depthwise, lengths: [usize; 4]) -> [u32; 2] {
    // Windows that step over elements share few of them, and a maximum takes no time.
    if kernel.op == DepthwiseOp::Max && kernel.stride.iter().all(|&stride| stride > 1) {
        return if kernel.dtype.size_in_bytes() == 4 { [1, 1] } else { [2, 1] };
    }
    let [most, fewest] = match kernel.quads {
        QuadAxis::Channels if kernel.dtype.size_in_bytes() == 4 => [[1, 4], [1, 2]],
        QuadAxis::Channels => [[3, 4], [1, 2]],
        QuadAxis::Columns(_) => [[4, 1], [1, 1]],
    };
    let needed = tuning::compute_units(device.info().compute_units) * BUSY;
    let enough = Depthwise { tile: most, ..kernel.clone() }.invocations(lengths) >= needed;
    if enough { most } else { fewest }
}
