//! Convolutions and transposed convolutions.

use super::channel_order::{in_channels_last, is_channels_last};
use super::depthwise::Slide;
use super::loaded::Loaded;
use super::window::{PerAxis, Window, batched};
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::number::gcd;
use crate::base::shape::checked_elements;
use crate::base::shape::{Dims, Shape};
use crate::device::Device;
use crate::kernels::Family;
use crate::kernels::conv::{Conv, Parameters};
use crate::kernels::expr::Domain;
use crate::kernels::tiles::ConvTile;
use crate::lazy::PendingLaunch;
use crate::tensor::Tensor;
use smallvec::SmallVec;

/// How a convolution goes over its input. By default: stride 1, no padding, dilation 1, one group.
///
/// ```
/// use marquetry::ConvConfig;
/// let same = ConvConfig::default().padding(1);
/// let depthwise = ConvConfig::default().stride([2, 1]).padding([(0, 1), (1, 1)]).groups(32);
/// assert_ne!(same, depthwise);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConvConfig {
    stride: PerAxis<usize>,
    padding: PerAxis<(usize, usize)>,
    dilation: PerAxis<usize>,
    output_padding: PerAxis<usize>,
    pub(super) groups: usize,
}

impl Default for ConvConfig {
    fn default() -> Self {
        ConvConfig {
            stride: PerAxis::all(1),
            padding: PerAxis::all((0, 0)),
            dilation: PerAxis::all(1),
            output_padding: PerAxis::all(0),
            groups: 1,
        }
    }
}

impl ConvConfig {
    /// Sets how far the kernel moves from one output to the next.
    #[must_use]
    pub fn stride(mut self, stride: impl Into<PerAxis<usize>>) -> Self {
        self.stride = stride.into();
        self
    }

    /// Sets the zeros around the input: the same before and after it (`1`, `[1, 2]`), or not (`[(0, 1), (2, 2)]`). A
    /// transposed convolution leaves out as much of the output.
    #[must_use]
    pub fn padding(mut self, padding: impl Into<PerAxis<(usize, usize)>>) -> Self {
        self.padding = padding.into();
        self
    }

    /// Sets the distance between neighbouring elements of the kernel.
    #[must_use]
    pub fn dilation(mut self, dilation: impl Into<PerAxis<usize>>) -> Self {
        self.dilation = dilation.into();
        self
    }

    /// Sets the number of groups that the channels are cut into; groups do not see each other. With as many groups as
    /// input channels, the convolution is depthwise.
    #[must_use]
    pub fn groups(mut self, groups: usize) -> Self {
        self.groups = groups;
        self
    }

    /// Sets how many elements a transposed convolution adds at the end of the output, to tell apart the lengths that a
    /// convolution of this stride makes equal. Less than the stride or the dilation.
    #[must_use]
    pub fn output_padding(mut self, output_padding: impl Into<PerAxis<usize>>) -> Self {
        self.output_padding = output_padding.into();
        self
    }
}

macro_rules! convolutions {
    ($($(#[$doc:meta])* $name:ident, $axes:literal, $transposed:literal;)*) => {
        /// Convolutions as in PyTorch. They are cross-correlations, as the kernel is not flipped. `f16` and `bf16` are
        /// accumulated in `f32` and rounded once; integers wrap. Convolutions of `i8` and their biases are `i32`,
        /// convolutions of `u8` and their biases `u32`. Inputs may have any strides. No windows are laid out in memory.
        /// The result has its channels last in memory if the input has; convolutions are fastest so. Else the device
        /// may turn the input before, and the result after the convolution.
        impl Tensor {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// [`Error::RankMismatch`]; [`Error::ShapeMismatch`] if channels, groups and bias do not fit;
                /// [`Error::InvalidArgument`] if a stride, a dilation, a kernel or the number of groups is 0, or if a
                /// kernel is larger than the padded input; [`Error::DTypeMismatch`], [`Error::DeviceMismatch`],
                /// [`Error::SizeOverflow`]; [`Error::UnsupportedDType`] for `bool`.
                pub fn $name(&self, weight: &Tensor, bias: Option<&Tensor>, config: &ConvConfig) -> Result<Tensor> {
                    let problem = Convolution { axes: $axes, transposed: $transposed, op: stringify!($name) };
                    problem.solve(self, weight, bias, config)
                }
            )*
        }
    };
}

convolutions! {
    /// Returns the convolution of `(N, C_in, L)` or `(C_in, L)` with a weight of `(C_out, C_in / groups, K)` and a bias
    /// of `(C_out)`. The result is `(N, C_out, (L + padding - dilation (K - 1) - 1) / stride + 1)`, rounded down.
    ///
    /// ```
    /// # use marquetry::{ConvConfig, Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1f32, 2.0, 3.0, 4.0]], &device)?;
    /// let weight = Tensor::new([[[1f32, 10.0]]], &device)?;
    /// let y = x.conv1d(&weight, None, &ConvConfig::default())?;
    /// assert_eq!(y.to_vec::<f32>()?, [21.0, 32.0, 43.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    conv1d, 1, false;
    /// Returns the convolution of `(N, C_in, H, W)` or `(C_in, H, W)` with a weight of `(C_out, C_in / groups, KH, KW)`
    /// and a bias of `(C_out)`. Along each axis the output has `(length + padding - dilation (K - 1) - 1) / stride + 1`
    /// elements, rounded down.
    ///
    /// ```
    /// # use marquetry::{ConvConfig, DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::ones((1, 2, 4, 4), DType::F32, &device)?;
    /// let weight = Tensor::ones((8, 2, 3, 3), DType::F32, &device)?;
    /// let bias = Tensor::zeros(8, DType::F32, &device)?;
    /// let y = x.conv2d(&weight, Some(&bias), &ConvConfig::default().stride(2).padding(1))?;
    /// assert_eq!(y.dims(), [1, 8, 2, 2]);
    /// assert_eq!(y.narrow(1, 0, 1)?.to_vec::<f32>()?, [8.0, 12.0, 12.0, 18.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    conv2d, 2, false;
    /// Returns the convolution of `(N, C_in, D, H, W)` or `(C_in, D, H, W)` with a weight of
    /// `(C_out, C_in / groups, KD, KH, KW)` and a bias of `(C_out)`. The lengths are as for [`conv2d`](Self::conv2d).
    conv3d, 3, false;
    /// Returns the transposed convolution of `(N, C_in, L)` or `(C_in, L)` with a weight of `(C_in, C_out / groups, K)`
    /// and a bias of `(C_out)`. The result is
    /// `(N, C_out, (L - 1) stride - padding + dilation (K - 1) + output_padding + 1)`. Each element is spread over a
    /// window of the output: a transposed convolution carries the gradient of a [`conv1d`](Self::conv1d) back to its
    /// input.
    ///
    /// ```
    /// # use marquetry::{ConvConfig, Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1f32, 2.0]], &device)?;
    /// let weight = Tensor::new([[[1f32, 10.0, 100.0]]], &device)?;
    /// let y = x.conv_transpose1d(&weight, None, &ConvConfig::default().stride(2))?;
    /// assert_eq!(y.to_vec::<f32>()?, [1.0, 10.0, 102.0, 20.0, 200.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    conv_transpose1d, 1, true;
    /// Returns the transposed convolution of `(N, C_in, H, W)` or `(C_in, H, W)` with a weight of
    /// `(C_in, C_out / groups, KH, KW)` and a bias of `(C_out)`. The lengths are as for
    /// [`conv_transpose1d`](Self::conv_transpose1d).
    ///
    /// ```
    /// # use marquetry::{ConvConfig, DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::ones((1, 4, 5, 5), DType::F32, &device)?;
    /// let weight = Tensor::ones((4, 2, 2, 2), DType::F32, &device)?;
    /// let y = x.conv_transpose2d(&weight, None, &ConvConfig::default().stride(2))?;
    /// assert_eq!(y.dims(), [1, 2, 10, 10]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    conv_transpose2d, 2, true;
    /// Returns the transposed convolution of `(N, C_in, D, H, W)` or `(C_in, D, H, W)` with a weight of
    /// `(C_in, C_out / groups, KD, KH, KW)` and a bias of `(C_out)`. The lengths are as for
    /// [`conv_transpose1d`](Self::conv_transpose1d).
    conv_transpose3d, 3, true;
}

/// If a kernel has this many taps along an axis, it is worth finding the taps that meet elements.
const LONG_KERNEL: usize = 64;

/// If a kernel has more than this many times the taps that meet the input, the other taps are left out. The places of a
/// block then use different taps, so that tiles in workgroup memory cannot be used.
const FAR: usize = 8;

/// The kind of convolution.
#[derive(Clone, Copy)]
pub(super) struct Convolution {
    pub axes: usize,
    pub transposed: bool,
    pub op: &'static str,
}

/// The sizes of a convolution.
pub(super) struct Sizes {
    pub groups: usize,
    /// Channels per group.
    pub input_channels: usize,
    pub output_channels: usize,
    pub windows: Vec<Window>,
    pub outputs: Dims,
}

impl Convolution {
    fn solve(&self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, config: &ConvConfig) -> Result<Tensor> {
        let op = self.op;
        x.check_same_device(weight, op)?;
        x.check_same_dtype(weight, op)?;
        Domain::Numbers.check(x.dtype(), op)?;
        if let Some(bias) = bias {
            x.check_same_device(bias, op)?;
            if bias.dtype() != x.dtype().summed() {
                return Err(Error::DTypeMismatch { op, lhs: x.dtype().summed(), rhs: bias.dtype() });
            }
        }
        let (mut x, added) = batched(x, self.axes, op)?;
        let mut sizes = self.sizes(&x, weight, config)?;
        // The other axes of an empty weight may have any length.
        let channels = sizes.groups.checked_mul(sizes.output_channels).ok_or_else(|| Error::SizeOverflow {
            op,
            shape: weight.shape().clone(),
            limit: usize::MAX as u64,
        })?;
        if let Some(bias) = bias.filter(|bias| bias.dims() != [channels]) {
            let (lhs, rhs) = (weight.shape().clone(), bias.shape().clone());
            return Err(Error::ShapeMismatch {
                op,
                lhs,
                rhs,
                hint: "the bias (the second) has an element per output channel",
            });
        }
        let shape: Shape = [x.dims()[0], channels].iter().chain(&sizes.outputs).copied().collect();
        let mut weight = weight.clone();
        if self.axes == 1 {
            // The tensor becomes an image of one row.
            (x, weight) = (x.unsqueeze(2)?, weight.unsqueeze(2)?);
            sizes.windows.insert(0, Window::TRIVIAL);
            sizes.outputs.insert(0, 1);
        }
        let y = self.pending(&x, &weight, bias, &sizes, &shape)?;
        let y = if is_channels_last(&x) { in_channels_last(&y)? } else { y };
        if added { y.squeeze(0) } else { Ok(y) }
    }

    /// Checks the shapes against each other.
    fn sizes(&self, x: &Tensor, weight: &Tensor, config: &ConvConfig) -> Result<Sizes> {
        let (op, axes, groups) = (self.op, self.axes, config.groups);
        if weight.rank() != axes + 2 {
            let expected = ["3 (the weight)", "4 (the weight)", "5 (the weight)"][axes - 1];
            return Err(Error::RankMismatch { op, expected, shape: weight.shape().clone() });
        }
        let invalid = |message: String| Error::InvalidArgument { op, message };
        let channels = x.dims()[1];
        if groups == 0 || !channels.is_multiple_of(groups) || !weight.dims()[0].is_multiple_of(groups) {
            return Err(invalid(format!(
                "{groups} groups; they divide the channels of the input {} and of the weight {}, here {channels} and {}",
                x.shape(),
                weight.shape(),
                weight.dims()[0]
            )));
        }
        let [outer, inner] = [weight.dims()[0], weight.dims()[1]];
        let mismatch = |hint| Error::ShapeMismatch { op, lhs: x.shape().clone(), rhs: weight.shape().clone(), hint };
        let (input_channels, output_channels) = if self.transposed {
            if outer != channels {
                return Err(mismatch("the weight is (C_in, C_out / groups, kernel..), the input (N, C_in, ..)"));
            }
            (channels / groups, inner)
        } else {
            if inner != channels / groups {
                return Err(mismatch("the weight is (C_out, C_in / groups, kernel..), the input (N, C_in, ..)"));
            }
            (inner, outer / groups)
        };
        let stride = config.stride.resolve(axes, "stride", op)?;
        let dilation = config.dilation.resolve(axes, "dilation", op)?;
        let padding = config.padding.resolve(axes, "padding", op)?;
        let more = config.output_padding.resolve(axes, "output_padding", op)?;
        let (mut windows, mut outputs) = (Vec::new(), Dims::new());
        for axis in 0..axes {
            let window = Window {
                input: x.dims()[2 + axis],
                kernel: weight.dims()[2 + axis],
                stride: stride[axis],
                dilation: dilation[axis],
                before: padding[axis].0,
                after: padding[axis].1,
            };
            let window = window.checked(op)?;
            outputs.push(match self.transposed {
                true => transposed_output(&window, more[axis], op)?,
                false if more[axis] > 0 => {
                    return Err(invalid("output_padding is for transposed convolutions".into()));
                }
                false => window.places(false, op)?,
            });
            windows.push(window);
        }
        Ok(Sizes { groups, input_channels, output_channels, windows, outputs })
    }

    /// Returns whether a long kernel meets the input with few of its taps, whatever its place.
    pub(super) fn meets_little(&self, window: &Window) -> bool {
        let Window { input, kernel, stride, dilation, .. } = *window;
        let common = if self.transposed { gcd(stride as i128, dilation as i128) as usize } else { 1 };
        // A place of a transposed convolution uses every `stride / common`-th tap. These taps meet every
        // `dilation / common`-th element.
        let step = if self.transposed { stride / common } else { 1 };
        let (taps, met) = (kernel.div_ceil(step), input.div_ceil(dilation / common));
        taps >= LONG_KERNEL && taps / FAR > met
    }

    /// Returns the convolution of checked sizes. The launch waits until it is needed.
    pub(super) fn pending(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        sizes: &Sizes,
        shape: &Shape,
    ) -> Result<Tensor> {
        let (op, device, dtype) = (self.op, x.device(), x.dtype());
        let summed = dtype.summed();
        checked_elements(shape, op)?;
        checked_elements(weight.shape(), op)?;
        let with_bias = |y: Tensor, bias: Option<&Tensor>| match bias {
            Some(bias) => {
                let along_channels: Dims = shape.iter().enumerate().map(|(i, &n)| if i == 1 { n } else { 1 }).collect();
                y.add(&bias.reshape(Shape::from(along_channels))?)
            }
            None => Ok(y),
        };
        if shape.contains(&0) || x.elem_count() == 0 || weight.elem_count() == 0 {
            // All sums are empty.
            return with_bias(Tensor::zeros(shape, summed, device)?, bias);
        }
        // The bias is added before the sum is rounded.
        let unrounded = if bias.is_some() { dtype.summed().widened() } else { summed };
        let channels = [sizes.input_channels, sizes.output_channels];
        let is_depthwise = !self.transposed && channels == [1; 2];
        let slide = Slide { windows: &sizes.windows, outputs: &sizes.outputs, op };
        let y = match (is_depthwise, self.transposed) {
            (true, _) => slide.convolve(x, weight, unrounded)?,
            (_, true) => self.without_overlaps(x, weight, sizes, unrounded)?,
            _ => match slide.convolve_groups(x, weight, channels, unrounded)? {
                Some(y) => Some(y),
                None => self.as_product(x, weight, sizes, unrounded)?,
            },
        };
        if let Some(y) = y {
            let bias = bias.map(|bias| bias.to_dtype(unrounded)).transpose()?;
            let y = with_bias(y.reshape(shape)?, bias.as_ref())?.to_dtype(summed)?;
            if is_channels_last(x) || y.is_contiguous() {
                return Ok(y);
            }
            // The kernel that adds the bias cannot also change the order.
            y.realize()?;
            return y.contiguous();
        }
        if self.transposed
            && let Some(y) = self.by_phases(x, weight, bias, sizes, shape)?
        {
            return Ok(y);
        }
        // In a transposed convolution, outputs that are a stride apart use the same taps.
        let along = |axis: usize| if self.transposed { sizes.windows[axis].stride } else { 1 };
        let axes = sizes.windows.len();
        let phases: usize = (0..axes).map(|axis| along(axis).min(sizes.outputs[axis])).product();
        let mut places: Dims = (0..axes).map(|axis| sizes.outputs[axis].div_ceil(along(axis))).collect();
        let rows = sizes.output_channels;
        let clipped = sizes.windows.iter().any(|window| self.meets_little(window));
        let columns = x.dims()[0] * places.iter().product::<usize>();
        let tile = choose_tile(device, dtype, rows, columns, places[axes - 1], clipped);
        places[axes - 1] = places[axes - 1].next_multiple_of(tile.strip() as usize);
        let columns = x.dims()[0] * places.iter().product::<usize>();
        // If there are many rows, the products take the time, not the loads.
        let last = sizes.windows[axes - 1];
        let few_rows = matches!(tile, ConvTile::Registers { rows: 1, columns: 2.. });
        let slides = few_rows && !self.transposed && last.stride == last.dilation && last.kernel > 1 && !clipped;
        let (transposed, prologue, epilogue) = (self.transposed, None, None);
        let bias_inside = bias.is_some();
        let mut kernel = Conv { dtype, axes, transposed, bias: bias_inside, tile, slides, clipped, prologue, epilogue };
        if !device.takes(&kernel) {
            kernel.bias = false;
        }
        // Each block of rows loads each element for all taps.
        let taps: usize = sizes.windows.iter().map(|window| window.kernel).product();
        let reads = taps.saturating_mul(rows.div_ceil(tile.block().0 as usize));
        let x = Loaded::new(x, reads, 3, |prologue| Conv { prologue, ..kernel.clone() })?;
        kernel.prologue = x.prologue;

        let weight = weight.contiguous()?;
        let own_bias = bias.filter(|_| kernel.bias).map(Tensor::contiguous).transpose()?;
        let step = |window: &Window| window.stride / gcd(window.stride as i128, window.dilation as i128) as usize;
        let parameters = Parameters {
            images: x.view.shape()[0],
            groups: sizes.groups,
            rows,
            channels: sizes.input_channels,
            windows: sizes.windows.iter().zip(&sizes.outputs).map(|(window, &n)| window.parameters(n)).collect(),
            steps: sizes.windows.iter().filter(|_| transposed).map(step).collect(),
            x: x.view.layout().into(),
            weight_offset: weight.layout().offset,
            bias_offset: own_bias.as_ref().map(|bias| bias.layout().offset),
            prologue: x.parameters,
            epilogue: None,
        };
        let (block_rows, block_columns) = tile.block();
        let groups = [phases, rows.div_ceil(block_rows as usize), columns.div_ceil(block_columns as usize)];
        let groups = groups.iter().try_fold(sizes.groups, |n, &m| n.checked_mul(m));
        let groups = groups.ok_or_else(|| Error::SizeOverflow { op, shape: shape.clone(), limit: u32::MAX.into() })?;
        device.runtime().fold(groups, || kernel.name())?;

        let others = [Some(&weight), own_bias.as_ref()].into_iter().flatten().map(|x| x.buffer().cloned());
        let inputs = x.buffers.into_iter().map(Ok).chain(others).collect::<Result<SmallVec<_>>>()?;
        let apart = bias.filter(|_| !kernel.bias);
        let (shape, device) = (shape.clone(), device.clone());
        let pending = PendingLaunch { kernel, parameters, groups, inputs, shape, dtype: summed, device, op };
        with_bias(Tensor::from_launch(pending)?, apart)
    }
}

/// Returns the length of a transposed convolution's output along an axis.
fn transposed_output(window: &Window, output_padding: usize, op: &'static str) -> Result<usize> {
    let Window { input, stride, dilation, before, after, .. } = *window;
    if output_padding >= stride.max(dilation) {
        let message = format!(
            "an output_padding of {output_padding}; it must be less than the stride ({stride}) or the dilation ({dilation})"
        );
        return Err(Error::InvalidArgument { op, message });
    }
    if input == 0 {
        let message = "an axis of length 0 has no transposed convolution".into();
        return Err(Error::InvalidArgument { op, message });
    }
    let full = (input - 1) * stride + window.extent() + output_padding;
    full.checked_sub(before + after).ok_or_else(|| Error::InvalidArgument {
        op,
        message: format!(
            "padding ({before}, {after}) takes away more than the {full} elements of the output; pad less"
        ),
    })
}

/// Chooses the tile for output channels per group, places in all images, and places along the last axis.
fn choose_tile(device: &Device, dtype: DType, rows: usize, places: usize, last: usize, clipped: bool) -> ConvTile {
    let tuning = &device.tuning().conv;
    // A product of 64-bit integers takes several 32-bit products, and no larger tile stays in Intel's registers.
    if tuning.workgroup && rows >= 16 && dtype != DType::I64 && !clipped {
        return ConvTile::Workgroup;
    }
    let rows = if rows < 4 { 1 } else { 8 };
    // A workgroup has 32 columns, or more in whole strips if few of them are wasted. 64-bit sums take twice the
    // registers.
    let strips = places >= 96 && last >= 3 && dtype.size_in_bytes() < 8;
    ConvTile::Registers { rows, columns: if strips { tuning.columns } else { 1 } }
}
