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
        let Some((quads, load)) = self.quads(x, false) else { return Ok(None) };
        let channels = x.dims()[1];
        let weight = weight.reshape((channels, weight.elem_count() / channels))?;
        // Factors of neighbouring channels are read together.
        let side_by_side = weight.strides()[0] == 1
            && weight.strides()[1].unsigned_abs().is_multiple_of(load)
            && weight.layout().offset.is_multiple_of(load);
        let weight = if quads == QuadAxis::Channels && !side_by_side { weight.t()?.copied()?.t()? } else { weight };
        self.launch(x, Some(&weight), (quads, load), output).map(Some)
    }

    /// Returns the largest element of each window, in the order in memory that `x` has. `None` if another kernel suits
    /// it better.
    pub fn max(&self, x: &Tensor) -> Result<Option<Tensor>> {
        let Some(by) = self.quads(x, true) else { return Ok(None) };
        self.launch(x, None, by, x.dtype()).map(Some)
    }

    /// Returns the axis along which four outputs lie side by side, if there is one and the windows suit the kernel. The
    /// second part is the number of inputs that can be loaded at once.
    fn quads(&self, x: &Tensor, is_maximum: bool) -> Option<(QuadAxis, usize)> {
        let ([height, width], &[_, columns]) = (self.windows, self.outputs) else { return None };
        let is_short = |axis: &Window| axis.stride <= LONGEST_STRIDE && (axis.dilation == 1 || axis.kernel == 1);
        let is_small = height.kernel.saturating_mul(width.kernel) <= MOST_TAPS && is_short(height) && is_short(width);
        if !is_small || x.dtype().size_in_bytes() > 4 || x.elem_count() == 0 {
            return None;
        }
        // A maximum takes no time beside loads. Sums of products would take too many registers for each load.
        let loads: &[usize] = if is_maximum && x.dtype().size_in_bytes() == 2 { &[8, 4] } else { &[4] };
        let load_along = |axis: usize, from_quad_to_quad: usize| {
            let distances = (0..4).filter(|&other| other != axis).map(|other| x.strides()[other].unsigned_abs());
            let distances: Vec<_> = distances.chain([x.dims()[axis], x.layout().offset, from_quad_to_quad]).collect();
            let begin_at = |load: usize| distances.iter().all(|distance| distance.is_multiple_of(load));
            loads.iter().copied().find(|&load| x.strides()[axis] == 1 && begin_at(load))
        };
        if is_channels_last(x) {
            return Some((QuadAxis::Channels, load_along(1, 0)?));
        }
        let load = load_along(3, 4 * width.stride).unwrap_or(1);
        let behind = width.before.next_multiple_of(load) - width.before;
        columns.is_multiple_of(4).then_some((QuadAxis::Columns(behind as u32), load))
    }

    fn launch(
        &self,
        x: &Tensor,
        weight: Option<&Tensor>,
        (quads, load): (QuadAxis, usize),
        output: DType,
    ) -> Result<Tensor> {
        let lengths = [x.dims()[0], x.dims()[1], self.outputs[0], self.outputs[1]];
        let [images, channels, rows, columns] = lengths;
        let both = |size: fn(&Window) -> usize| [0, 1].map(|axis| size(&self.windows[axis]) as u32);
        let kernel = Depthwise {
            op: if weight.is_some() { DepthwiseOp::Convolution } else { DepthwiseOp::Max },
            dtype: x.dtype(),
            output,
            quads,
            load: load as u32,
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
        let octets_of_columns = kernel.load == 8 && kernel.quads != QuadAxis::Channels;
        return if kernel.dtype.size_in_bytes() == 4 || octets_of_columns { [1, 1] } else { [2, 1] };
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
