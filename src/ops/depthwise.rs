//! Depthwise convolutions, convolutions of groups of 4 or 8 channels, and max pooling of images.

use super::channel_order::{channels_first, in_channels_last, is_channels_last};
use super::conv_product::fewest_of_groups;
use super::window::Window;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::shape::{Dims, Shape};
use crate::device::Device;
use crate::kernels::depthwise::{Depthwise, DepthwiseOp, Parameters, QuadAxis, WORKGROUP};
use crate::kernels::parameters::Strided;
use crate::lazy::PendingLaunch;
use crate::tensor::Tensor;
use crate::tuning;

/// The code of a kernel has all its taps, and the inputs of several outputs. So both are few.
const MOST_TAPS: usize = 49;
/// The same of an output's factors, in groups of channels.
const MOST_FACTORS: usize = 72;
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
        self.launch(DepthwiseOp::Convolution, x, Some((&weight, weight.layout().into())), (quads, load), output)
            .map(Some)
    }

    /// The same of groups of 4 or 8 channels that lead to as many outputs. They come last in the result.
    pub fn convolve_groups(
        &self,
        x: &Tensor,
        weight: &Tensor,
        [channels, outputs]: [usize; 2],
        output: DType,
    ) -> Result<Option<Tensor>> {
        if channels != outputs || ![4, 8].contains(&channels) || x.dims()[1] == channels {
            return Ok(None);
        }
        // Another order of the channels takes copies.
        let places = self.outputs.iter().copied().fold(x.dims()[0], usize::saturating_mul);
        let products = places.saturating_mul(weight.elem_count());
        let pays = is_channels_last(x) || products >= fewest_of_groups(x.device());
        if !(pays && self.are_small(channels, MOST_FACTORS)) || x.dtype().size_in_bytes() > 4 {
            return Ok(None);
        }
        let x = in_channels_last(x)?;
        let Some(by @ (QuadAxis::Channels, _)) = self.quads(&x, false) else { return Ok(None) };
        let taps = weight.elem_count() / (channels * x.dims()[1]);
        // A channel's factors for four outputs are read together.
        let weight = weight.reshape((x.dims()[1] / 4, 4, channels, taps))?.permute(&[0, 3, 2, 1][..])?.copied()?;
        let strides = Dims::from_slice(&[(taps * channels) as isize, 4]);
        let at = Strided { offset: weight.layout().offset, strides };
        self.launch(DepthwiseOp::Groups(channels as u32), &x, Some((&weight, at)), by, output).map(Some)
    }

    /// Returns the largest element of each window, in the order in memory that `x` has. `None` if another kernel suits
    /// it better.
    pub fn max(&self, x: &Tensor) -> Result<Option<Tensor>> {
        let Some(by) = self.quads(x, true) else { return Ok(None) };
        self.launch(DepthwiseOp::Max, x, None, by, x.dtype()).map(Some)
    }

    /// Whether a kernel can have all taps of the windows: `most`, times this many factors each.
    fn are_small(&self, factors: usize, most: usize) -> bool {
        let is_short = |axis: &Window| axis.stride <= LONGEST_STRIDE && (axis.dilation == 1 || axis.kernel == 1);
        let taps = self.windows.iter().fold(factors, |taps, axis| taps.saturating_mul(axis.kernel));
        self.windows.len() == 2 && taps <= most && self.windows.iter().all(is_short)
    }

    /// Returns the axis along which four outputs lie side by side, if there is one and the windows suit the kernel. The
    /// second part is the number of inputs that can be loaded at once.
    fn quads(&self, x: &Tensor, is_maximum: bool) -> Option<(QuadAxis, usize)> {
        let ([_, width], &[_, columns]) = (self.windows, self.outputs) else { return None };
        if !self.are_small(1, MOST_TAPS) || x.dtype().size_in_bytes() > 4 || x.elem_count() == 0 {
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
        op: DepthwiseOp,
        x: &Tensor,
        weight: Option<(&Tensor, Strided)>,
        (quads, load): (QuadAxis, usize),
        output: DType,
    ) -> Result<Tensor> {
        let lengths = [x.dims()[0], x.dims()[1], self.outputs[0], self.outputs[1]];
        let [images, channels, rows, columns] = lengths;
        let both = |size: fn(&Window) -> usize| [0, 1].map(|axis| size(&self.windows[axis]) as u32);
        let kernel = Depthwise {
            op,
            dtype: x.dtype(),
            output,
            quads,
            load: load as u32,
            kernel: both(|window| window.kernel),
            stride: both(|window| window.stride),
            tile: [1; 2],
            stacked: 1,
            epilogue: None,
        };
        let kernel = tiled(x.device(), kernel, lengths);
        let parameters = Parameters {
            images,
            channels,
            windows: self.windows.iter().zip(self.outputs).map(|(window, &n)| window.parameters(n)).collect(),
            x: x.layout().into(),
            weight: weight.as_ref().map(|(_, at)| at.clone()),
            epilogue: None,
        };
        let groups = kernel.groups(lengths);
        let buffers = [Some(x), weight.map(|(weight, _)| weight)].into_iter().flatten().map(|x| x.buffer().cloned());
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

/// Returns the kernel with the rows and columns of outputs that an invocation computes, and the number of tiles in a
/// stack: many outputs, if others keep the device busy.
fn tiled(device: &Device, kernel: Depthwise, lengths: [usize; 4]) -> Depthwise {
    let (is_gpu, by_channels) = (device.tuning().loads.several, kernel.quads == QuadAxis::Channels);
    let is_narrow = kernel.dtype.size_in_bytes() < 4;
    // Windows that step over elements share few of them, and a maximum takes no time.
    if kernel.op == DepthwiseOp::Max && kernel.stride.iter().all(|&stride| stride > 1) {
        let (rows, stacked) = match (is_narrow, by_channels) {
            (true, true) if is_gpu => (4, 1),
            (true, _) => (2, 1),
            (false, true) if is_gpu => (1, 2),
            (false, _) => (1, 1),
        };
        return Depthwise { tile: [rows, 1], stacked, ..kernel };
    }
    // The factors of many taps take registers, too.
    let few_taps = kernel.kernel.iter().product::<u32>() <= 9;
    let (most, stacked) = match (by_channels, is_narrow) {
        // More columns share the factors of a tap. Each row needs other ones.
        _ if kernel.op == DepthwiseOp::Groups(4) && is_narrow => ([1, 8], 1),
        _ if matches!(kernel.op, DepthwiseOp::Groups(_)) => ([1, 4], 1),
        (true, true) if is_gpu => (if few_taps { [4, 4] } else { [3, 2] }, 2),
        (true, false) if is_gpu => (if few_taps { [2, 4] } else { [2, 2] }, 2),
        (true, true) => ([3, 4], 1),
        (true, false) => ([1, 4], 1),
        (false, _) => ([4, 1], 1),
    };
    let needed = tuning::compute_units(device.info().compute_units) * BUSY / WORKGROUP as usize;
    let busy = Depthwise { tile: most, stacked: 1, ..kernel.clone() }.groups(lengths) >= needed;
    let fewest = if by_channels { [1, 2] } else { [1, 1] };
    if busy { Depthwise { tile: most, stacked, ..kernel } } else { Depthwise { tile: fewest, stacked: 1, ..kernel } }
}
