//! Depthwise convolutions, convolutions of groups of 4 or 8 channels, and max pooling of images.

use super::channel_order::{channels_first, in_channels_last, is_channels_last};
use super::conv_product::fewest_of_groups;
use super::window::Window;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::shape::{Dims, Shape};
use crate::device::Device;
use crate::kernels::depthwise::{Depthwise, DepthwiseOp, Known, Parameters, QuadAxis, WORKGROUP};
use crate::kernels::parameters::Strided;
use crate::lazy::PendingLaunch;
use crate::tensor::Tensor;
use crate::tuning;

/// The code of a kernel has all its taps, and the inputs of several outputs. So both are few.
const MOST_TAPS: usize = 49;
/// The same of an output's factors, in groups of channels.
const MOST_FACTORS: usize = 72;
const LONGEST_STRIDE: usize = 3;
/// The most products of an invocation of a GPU. Longer code may not fit its cache of instructions.
const MOST_PRODUCTS: u32 = 2048;

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
        let kernel = self.kernel(DepthwiseOp::Convolution, x, (quads, load), output);
        self.launch(kernel, x, Some((&weight, weight.layout().into()))).map(Some)
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
        let kernel = self.kernel(DepthwiseOp::Groups(channels as u32), &x, by, output);
        self.launch(kernel, &x, Some((&weight, at))).map(Some)
    }

    /// Returns the largest element of each window, in the order in memory that `x` has. `None` if another kernel suits
    /// it better.
    pub fn max(&self, x: &Tensor) -> Result<Option<Tensor>> {
        let Some(by) = self.quads(x, true) else { return Ok(None) };
        self.launch(self.kernel(DepthwiseOp::Max, x, by, x.dtype()), x, None).map(Some)
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

    /// Returns what is known of all tiles.
    fn known(&self, kernel: &Depthwise) -> [Known; 2] {
        let [_, rows, columns] = kernel.outputs();
        let of_axis = |axis: usize, own: u32, stacked: u32| {
            let (window, outputs, own) = (&self.windows[axis], self.outputs[axis], own as usize);
            let fills = outputs.is_multiple_of(own * stacked as usize);
            // The first output of the last tile. If tiles do not fill the axis, it may be any output, so that lengths
            // of the input make few different kernels.
            let last = if fills { outputs - own } else { outputs - 1 };
            let end = (window.input + window.before).saturating_sub(last * window.stride);
            let inputs = (own - 1) * window.stride + window.kernel;
            Known { inputs: window.before.min(inputs) as u32..end.min(inputs) as u32, outputs: fills }
        };
        [of_axis(0, rows, kernel.stacked), of_axis(1, columns, 1)]
    }

    /// Returns the kernel for images. Its outputs are computed by fours along this axis, and a load brings `load`
    /// inputs.
    fn kernel(&self, op: DepthwiseOp, x: &Tensor, (quads, load): (QuadAxis, usize), output: DType) -> Depthwise {
        let both = |size: fn(&Window) -> usize| [0, 1].map(|axis| size(&self.windows[axis]) as u32);
        let may_have_halves = op == DepthwiseOp::Max && x.dtype() == DType::F16 && load > 1;
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
            by_halves: may_have_halves && x.device().info().packs_halves(),
            known: Default::default(),
            epilogue: None,
        };
        let kernel = tiled(x.device(), kernel, self.lengths(x));
        Depthwise { known: self.known(&kernel), ..kernel }
    }

    /// Returns the images, the channels, and the rows and columns of outputs.
    fn lengths(&self, x: &Tensor) -> [usize; 4] {
        [x.dims()[0], x.dims()[1], self.outputs[0], self.outputs[1]]
    }

    fn launch(&self, kernel: Depthwise, x: &Tensor, weight: Option<(&Tensor, Strided)>) -> Result<Tensor> {
        let lengths = self.lengths(x);
        let ([images, channels, rows, columns], quads, output) = (lengths, kernel.quads, kernel.output);
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
    let is_gpu = device.tuning().loads.several;
    let (tiles, stacked) = tiles(&kernel, is_gpu);
    let with = |tile, stacked| Depthwise { tile, stacked, ..kernel.clone() };
    let taps = kernel.kernel.iter().product::<u32>();
    let needed = tuning::compute_units(device.info().compute_units) * BUSY / WORKGROUP as usize;
    // Tiles of such maxima are small anyway.
    let is_small = kernel.op == DepthwiseOp::Max && steps(&kernel);
    let suits = |tile: &&[u32; 2]| {
        let tiled = with(**tile, 1);
        let is_short = !is_gpu || tiled.outputs().iter().product::<u32>() * taps <= MOST_PRODUCTS;
        is_small || is_short && tiled.groups(lengths) >= needed
    };
    // How many outputs tiles compute, also beside the images.
    let computed = |tile: &&[u32; 2]| -> usize {
        let [_, own @ ..] = with(**tile, 1).outputs();
        lengths[2..].iter().zip(own).map(|(length, own)| length.next_multiple_of(own as usize)).product()
    };
    match tiles.iter().filter(suits).min_by_key(computed) {
        Some(&tile) => with(tile, stacked),
        None => with(if kernel.quads == QuadAxis::Channels { [1, 2] } else { [1, 1] }, 1),
    }
}

/// Whether windows step over elements in both directions, so that they share few of them.
fn steps(kernel: &Depthwise) -> bool {
    kernel.stride.iter().all(|&stride| stride > 1)
}

/// Returns tiles, the best one first, and how many of them make a stack. `docs/experiments.md` has their times.
fn tiles(kernel: &Depthwise, is_gpu: bool) -> (&'static [[u32; 2]], u32) {
    let by_channels = kernel.quads == QuadAxis::Channels;
    let is_narrow = kernel.dtype.size_in_bytes() < 4;
    let steps = steps(kernel);
    // The factors of many taps take registers, too.
    let few_taps = kernel.kernel.iter().product::<u32>() <= 9;
    match kernel.op {
        // A maximum takes no time beside loads.
        DepthwiseOp::Max if steps && is_narrow => (&[[2, 1]], 1),
        DepthwiseOp::Max if steps => (&[[1, 1]], if by_channels && is_gpu { 2 } else { 1 }),
        // More columns share the factors of a tap. Each row needs other ones.
        DepthwiseOp::Groups(4) if is_narrow => (&[[1, 8]], 1),
        DepthwiseOp::Groups(_) => (&[[1, 4]], 1),
        _ if !is_gpu => match (by_channels, is_narrow) {
            (true, true) => (&[[3, 4]], 1),
            (true, false) => (&[[1, 4]], 1),
            (false, _) => (&[[4, 1]], 1),
        },
        _ if by_channels => match (steps, few_taps) {
            (true, true) => (&[[2, 2]], 1),
            (true, false) => (&[[4, 4], [2, 2]], 1),
            (false, true) => (&[[4, 4], [7, 2]], 1),
            (false, false) if is_narrow => (&[[4, 2], [7, 2]], 1),
            (false, false) => (&[[2, 4], [2, 2]], 2),
        },
        _ if steps => (&[[2, 1]], 1),
        _ if is_narrow => (&[[14, 1], [8, 1], [7, 1], [4, 1]], 1),
        _ => (&[[8, 1], [7, 1], [4, 1]], 1),
    }
}

#[cfg(test)]
#[cfg(all(has_vulkan, device_tests))]
mod tests {
    use super::*;
    use half::f16;

    /// Pairs of halves have the maxima that single ones have, also beside NaN, infinities and the smallest halves.
    #[test]
    fn maxima_of_halves_are_those_of_numbers() {
        let device = Device::vulkan(0).unwrap();
        let shape = [2, 16, 13, 24];
        let special =
            [f16::NAN, f16::INFINITY, f16::NEG_INFINITY, f16::MAX, f16::MIN, f16::from_bits(1), f16::NEG_ZERO];
        let mut random = fastrand::Rng::with_seed(7);
        for ordinary in [1, 40, usize::MAX] {
            let mut element = |_| match random.usize(..ordinary.saturating_add(1)) {
                0 => special[random.usize(..special.len())],
                // Of all sizes, also subnormal.
                _ => f16::from_bits(random.u16(..0x7c00) >> random.u32(..9) | u16::from(random.bool()) << 15),
            };
            let elements: Vec<f16> = (0..shape.iter().product()).map(&mut element).collect();
            let first = Tensor::from_slice(&elements, shape, &device).unwrap();
            let last = first.permute([0, 2, 3, 1]).unwrap().contiguous().unwrap().permute([0, 3, 1, 2]).unwrap();
            for (x, stride, before) in [(&first, 1, 1), (&first, 2, 1), (&last, 1, 2), (&last, 2, 2)] {
                let window = |input| Window { input, kernel: 3, stride, before, after: before, ..Window::TRIVIAL };
                let windows = [window(13), window(24)];
                let outputs = windows.each_ref().map(|window| window.places(false, "test").unwrap());
                let slide = Slide { windows: &windows, outputs: &outputs, op: "test" };
                let by = slide.quads(x, true).unwrap();
                for tile in [[2, 1], [3, 2]] {
                    let maxima = |by_halves| {
                        let kernel = slide.kernel(DepthwiseOp::Max, x, by, DType::F16);
                        let kernel = Depthwise { tile, stacked: 1, by_halves, ..kernel };
                        let kernel = Depthwise { known: slide.known(&kernel), ..kernel };
                        let y = slide.launch(kernel, x, None).unwrap().to_vec::<f16>().unwrap();
                        y.into_iter().map(f32::from).collect::<Vec<_>>()
                    };
                    let (found, expected) = (maxima(true), maxima(false));
                    let differs = |(a, b): (&f32, &f32)| a != b && !(a.is_nan() && b.is_nan());
                    let wrong = found.iter().zip(&expected).position(differs);
                    assert_eq!(wrong, None, "{by:?}, stride {stride}, tile {tile:?}, one of {ordinary}");
                }
            }
        }
    }
}
