//! Convolutions as matrix products. If the kernel has one tap, the tensor itself is an operand. Else its windows are:
//! their elements are never laid out in memory.

use super::batched_product::BatchedProduct;
use super::channel_order::{channels_first, channels_last, in_channels_last, is_channels_last};
use super::conv::{ConvConfig, Convolution, Sizes};
use super::matrix_units;
use super::pad::PadMode;
use super::window::Window;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::shape::{Dims, Shape};
use crate::device::Device;
use crate::kernels::matmul::{self, QUAD, Windows, WindowsParameters};
use crate::kernels::parameters::Form;
use crate::tensor::Tensor;
use smallvec::SmallVec;

/// With fewer output channels, most of a block that is computed without matrix units would be idle, and most lanes of a
/// software device.
const FEWEST_OUTPUTS: usize = 8;
const FEWEST_OUTPUTS_OF_LANES: usize = 12;

/// From this many products per output channel on, a block takes less time than other kernels, even for one channel, if
/// channels come last. On an H100, 2^21.8 products take 27 instead of 41 us.
const PRODUCTS_OF_ONE_OUTPUT: usize = 1 << 21;

/// If channels come first, other kernels load neighbours of a row. A block takes less time from this many output
/// channels on, up to this many places. For 2^12.6 places a block takes 41 instead of 72 us, but for 2^15 places 108
/// instead of 95.
const OUTPUTS_OF_FEW_PLACES: usize = 4;
const FEW_PLACES: usize = 1 << 14;

/// A product of less depth gains nothing over other kernels.
const LEAST_DEPTH: usize = 32;

/// With fewer products than this, the launches around the products of groups, or of a transposed convolution's phase,
/// take longer than one kernel that needs none. On an H100, a transposed convolution of four phases of 2^29.6 products
/// takes a sixth of that kernel's time, of which the copies around each product are 10 us. The limit of software
/// devices is a guess.
const FEWEST_OF_GROUPS: usize = 1 << 22;
const FEWEST_OF_PHASES: usize = 1 << 25;
const FEWEST_OF_LANES: usize = 1 << 16;

/// Halves in a vector of matrix units.
const OCTET: usize = 8;

/// Below this number of products, a copy that pads the channels takes longer than reading them where they are.
const FEW_PRODUCTS: usize = 3 << 28;

impl Convolution {
    /// Returns the convolution of checked sizes as a product. It is not transposed, and has no bias. The result has the
    /// dtype `output` and the order in memory that `x` has: channels last, or the images' channels one after the other.
    /// `None` if another kernel suits it better.
    pub(super) fn as_product(
        &self,
        x: &Tensor,
        weight: &Tensor,
        sizes: &Sizes,
        output: DType,
    ) -> Result<Option<Tensor>> {
        if sizes.windows.iter().all(Window::is_pointwise) {
            let suits = sizes.groups == 1 || sizes.fill_blocks();
            return if suits { self.pointwise(x, weight, sizes.groups, output).map(Some) } else { Ok(None) };
        }
        let Some((together, lengths)) = self.channels_together(x, sizes) else { return Ok(None) };
        // Only matrix units read octets, and loose ones only of halves.
        if together == OCTET
            && x.dtype().size_in_bytes() == 2
            && let Some(y) = self.of_loose_windows(x, weight, sizes, output, lengths)?
        {
            return Ok(Some(y));
        }
        self.of_windows(x, weight, sizes, output, together).map(Some)
    }

    /// Whether the convolution of these sizes is computed as a product that fills blocks.
    pub(super) fn fills_blocks(&self, x: &Tensor, sizes: &Sizes) -> bool {
        let is_pointwise = sizes.windows.iter().all(Window::is_pointwise);
        sizes.fill_blocks() && (is_pointwise || self.channels_together(x, sizes).is_some())
    }

    /// Returns how many channels at a time a product of windows reads, and of each group the places, output channels,
    /// taps and input channels. `None` if another kernel suits the convolution better.
    fn channels_together(&self, x: &Tensor, sizes: &Sizes) -> Option<(usize, [usize; 4])> {
        let taps: usize = sizes.windows.iter().map(|window| window.kernel).product();
        let places: usize = x.dims()[0] * sizes.outputs.iter().product::<usize>();
        let lengths = [places, sizes.output_channels, taps, sizes.input_channels];
        let together = channels_together(x.device(), x.dtype(), lengths, is_channels_last(x))?;
        let form = Windows { axes: sizes.windows.len(), loose: true };
        let batch_rank = usize::from(sizes.groups > 1);
        let words = form.parameter_words() + matmul::Sizes { batch_rank }.parameter_words();
        let products = lengths.iter().copied().fold(sizes.groups, usize::saturating_mul);
        let are_thin = sizes.groups > 1 && (!sizes.fill_blocks() || products < fewest_of_groups(x.device()));
        let is_too_large = words > x.device().info().limits.max_parameter_words as usize;
        let meets_little = sizes.windows.iter().any(|window| self.meets_little(window));
        (!(are_thin || is_too_large || meets_little)).then_some((together, lengths))
    }

    /// Multiplies the elements of each place.
    fn pointwise(&self, x: &Tensor, weight: &Tensor, groups: usize, output: DType) -> Result<Tensor> {
        let [rows, channels] = [weight.dims()[0], weight.dims()[1]];
        let (images, spatial) = (x.dims()[0], &x.dims()[2..]);
        let places: usize = spatial.iter().product();
        // Rows of other lengths are read more slowly, if at all.
        let on_units = matrix_units::unit(x.device(), x.dtype(), [images * places, rows / groups, channels]).is_some();
        let is_odd = on_units && !places.is_multiple_of(16 / x.dtype().size_in_bytes());
        let weight = weight.reshape((groups, rows / groups, channels))?;
        if is_channels_last(x) || is_odd {
            let last = if is_odd { channels_last(x)?.contiguous()? } else { channels_last(x)? };
            if groups == 1 {
                return channels_first(&last.exact_product(&weight.squeeze(0)?.t()?, output, self.op)?);
            }
            let of_groups = last.reshape((images * places, groups, channels))?.transpose(0, 1)?;
            let y = of_groups.exact_product(&weight.t()?, output, self.op)?;
            let shape: Shape = [&[groups, images], spatial, &[rows / groups]].concat().into();
            return joined_groups(&y.reshape(shape)?, groups, is_channels_last(x));
        }
        let y = weight.exact_product(&x.reshape((images, groups, channels, places))?, output, self.op)?;
        y.reshape([images, rows].iter().chain(spatial).copied().collect::<Shape>())
    }

    /// Multiplies windows of channels that are read `together` at a time.
    fn of_windows(&self, x: &Tensor, weight: &Tensor, sizes: &Sizes, output: DType, together: usize) -> Result<Tensor> {
        let (groups, channels) = (sizes.groups, sizes.input_channels);
        let missing = channels.next_multiple_of(together) - channels;
        // Fills the channels of each group up. Weights have the channels of one group.
        let copied = |x: &Tensor| -> Result<Tensor> {
            if missing == 0 {
                return x.copied();
            }
            let [outer @ .., all] = x.dims() else { return Ok(x.clone()) };
            let shape = |last: &[usize]| -> Shape { outer.iter().chain(last).copied().collect() };
            let amounts: SmallVec<[_; 6]> = (0..x.rank()).map(|_| (0, 0)).chain([(0, missing as isize)]).collect();
            let padded = x.reshape(shape(&[all / channels, channels]))?.pad(&amounts, PadMode::Constant(0.into()))?;
            padded.reshape(shape(&[all / channels * (channels + missing)]))
        };
        let parameters = |x: &Tensor| WindowsParameters {
            channels: channels + missing,
            present: None,
            windows: sizes.windows.iter().zip(&sizes.outputs).map(|(window, &n)| window.parameters(n)).collect(),
            strides: distances(x),
        };
        let in_order = is_channels_last(x);
        let (x, weight) = (channels_last(x)?, channels_last(weight)?);
        let are_together = |x: &Tensor| missing == 0 && x.layout().offset.is_multiple_of(together);
        let can_read = x.strides().last() == Some(&1)
            && are_together(&x)
            && parameters(&x).are_along_channels(x.layout().offset, together);
        let x = if can_read { x } else { copied(&x)? };
        let is_ready = weight.is_contiguous() && are_together(&weight);
        let weight = if is_ready { weight } else { copied(&weight)? };
        let columns = weight.dims()[0];
        let matrix = weight.reshape((columns, weight.elem_count() / columns))?.t()?;
        let matrices = of_groups(&matrix, groups)?;
        let Some(y) = x.product_of_windows(parameters(&x), &matrices, output, self.op)? else {
            unreachable!("every device multiplies windows of whole quads")
        };
        joined_groups(&y, groups, in_order)
    }

    /// Multiplies windows of halves whose channels begin anywhere. `None` if another way takes less time.
    fn of_loose_windows(
        &self,
        x: &Tensor,
        weight: &Tensor,
        sizes: &Sizes,
        output: DType,
        [places, outputs, taps, channels]: [usize; 4],
    ) -> Result<Option<Tensor>> {
        let Some(last) = sizes.windows.last() else { return Ok(None) };
        let padded = |channels: usize| channels.next_multiple_of(OCTET);
        let in_order = is_channels_last(x);
        let mut x = channels_last(x)?;
        let mut begins = distances(&x).into_iter().chain([x.layout().offset as isize]);
        let is_aligned = channels.is_multiple_of(OCTET) && begins.all(|distance| distance % OCTET as isize == 0);
        let few = [places, outputs, taps, padded(channels)].into_iter().fold(1, usize::saturating_mul) < FEW_PRODUCTS;
        let are_together = x.dims().last() == Some(&1) || x.strides().last() == Some(&1);
        let reads_in_place = are_together && !is_aligned && few;
        // The taps of a row lie side by side, and so do their channels. Together, they need less padding. But
        // neighbours in a row of the output must have no padding between them.
        let joined = last.kernel * channels;
        let lies_in_rows = are_together && x.strides()[x.rank() - 2] == channels as isize;
        let needs_copy = [last.before, last.after] != [0; 2] || !lies_in_rows;
        let saves = 2 * last.kernel * padded(channels) >= 3 * padded(joined) && !(needs_copy && reads_in_place);
        let joins =
            sizes.groups == 1 && last.dilation == 1 && saves && taps / last.kernel * padded(joined) >= LEAST_DEPTH;
        if !(joins || reads_in_place) {
            return Ok(None);
        }
        let (mut axes, mut present) = (sizes.windows.clone(), channels);
        if joins {
            let sides = [(last.before as isize, last.after as isize), (0, 0)];
            x = match sides[0] {
                _ if !needs_copy => x,
                (0, 0) => x.copied()?,
                _ => x.pad(&sides, PadMode::Constant(0.into()))?.contiguous()?,
            };
            let input = x.dims()[x.rank() - 2];
            axes.pop();
            axes.push(Window { input, kernel: 1, before: 0, after: 0, ..*last });
            present = joined;
        }
        let weight = channels_last(weight)?.contiguous()?;
        let matrix = weight.reshape((outputs * sizes.groups, taps * channels))?.t()?;
        let windows = WindowsParameters {
            channels: padded(present),
            present: Some(present),
            windows: axes.iter().zip(&sizes.outputs).map(|(window, &n)| window.parameters(n)).collect(),
            strides: distances(&x),
        };
        let y = x.product_of_windows(windows, &of_groups(&matrix, sizes.groups)?, output, self.op)?;
        y.map(|y| joined_groups(&y, sizes.groups, in_order)).transpose()
    }
}

impl Sizes {
    /// Whether each group has enough channels for blocks.
    pub(super) fn fill_blocks(&self) -> bool {
        fill_blocks([self.input_channels, self.output_channels])
    }
}

pub(super) fn fewest_of_groups(device: &Device) -> usize {
    if is_of_lanes(device) { FEWEST_OF_LANES } else { FEWEST_OF_GROUPS }
}

/// Returns the fewest products of a phase that are worth its launches.
pub(super) fn fewest_of_phases(device: &Device) -> usize {
    if is_of_lanes(device) { FEWEST_OF_LANES } else { FEWEST_OF_PHASES }
}

fn fill_blocks(channels: [usize; 2]) -> bool {
    channels.into_iter().all(|channels| channels >= FEWEST_OUTPUTS)
}

/// Returns the columns of each group of output channels as a matrix, if there are several groups.
fn of_groups(matrix: &Tensor, groups: usize) -> Result<Tensor> {
    if groups == 1 {
        return Ok(matrix.clone());
    }
    let [depth, columns] = [matrix.dims()[0], matrix.dims()[1]];
    matrix.reshape((depth, groups, columns / groups))?.transpose(0, 1)
}

/// Returns a product of windows, (N, places.., C), as images (N, C, places..). The product of several groups has an
/// axis of groups before the others. It is copied, so that the channels of all groups lie together. They come last in
/// memory if they are `in_order`.
fn joined_groups(y: &Tensor, groups: usize, in_order: bool) -> Result<Tensor> {
    if groups == 1 {
        return channels_first(y);
    }
    let last = y.rank() as isize - 1;
    let [_, images, places @ .., channels] = y.dims() else { return Ok(y.clone()) };
    let (images, channels) = ([*images], [groups * channels]);
    let (axes, lengths): (Dims<isize>, [&[usize]; 3]) = match in_order {
        true => ((1..last).chain([0, last]).collect(), [&images, places, &channels]),
        false => ([1, 0, last].into_iter().chain(2..last).collect(), [&images, &channels, places]),
    };
    if !in_order {
        // A kernel that adds a bias could not also turn the channels fast.
        y.realize()?;
    }
    let joined = y.permute(&axes[..])?.contiguous()?.reshape(Shape::from(lengths.concat()))?;
    if in_order { channels_first(&joined) } else { Ok(joined) }
}

/// Returns the distances between images and along the spatial axes. A single image, or row, has no distance to the next
/// one, whatever its stride is.
fn distances(x: &Tensor) -> SmallVec<[isize; 4]> {
    let distance = |(&length, &stride): (&usize, &isize)| if length == 1 { 0 } else { stride };
    x.dims()[..x.rank() - 1].iter().zip(x.strides()).map(distance).collect()
}

/// Returns a weight in the order that convolutions of many places read in place.
pub(crate) fn prepared_weight(weight: &Tensor, config: &ConvConfig) -> Result<Tensor> {
    if weight.rank() < 3 {
        return Ok(weight.clone());
    }
    // A depthwise convolution reads the same tap of neighbouring channels together.
    if config.groups > 1 && weight.dims()[..2] == [config.groups, 1] {
        return in_channels_last(&weight.transpose(0, 1)?)?.transpose(0, 1);
    }
    let [outputs, channels] = [weight.dims()[0] / config.groups.max(1), weight.dims()[1]];
    if config.groups > 1 && !fill_blocks([channels, outputs]) {
        return Ok(weight.clone());
    }
    let taps = weight.dims()[2..].iter().product();
    let lengths = [usize::MAX, outputs, taps, channels];
    let in_order = match channels_together(weight.device(), weight.dtype(), lengths, false) {
        Some(together) => channels.is_multiple_of(together) || together == OCTET,
        None => false,
    };
    if in_order && taps > 1 { in_channels_last(weight) } else { Ok(weight.clone()) }
}

/// Every device has blocks for what units cannot do, except for software devices, on which lanes hand each other
/// elements.
fn is_of_lanes(device: &Device) -> bool {
    device.tuning().matmul.blocks.is_empty()
}

/// Returns how many channels at a time a product of windows reads on a device, if it computes products of a dtype and
/// these sizes in blocks: the places, output channels, taps and input channels. `in_order` tells whether channels come
/// last.
fn channels_together(
    device: &Device,
    dtype: DType,
    [places, outputs, taps, channels]: [usize; 4],
    in_order: bool,
) -> Option<usize> {
    // Missing channels are filled up with zeros.
    let depth = |together| taps.saturating_mul(channels.next_multiple_of(together));
    let on_units = 16 / dtype.size_in_bytes();
    if is_of_lanes(device) {
        let fits = outputs >= FEWEST_OUTPUTS_OF_LANES && depth(QUAD) >= LEAST_DEPTH;
        return (fits && BatchedProduct::may_broadcast(device, dtype)).then_some(QUAD);
    }
    // No other kernel is faster for few outputs.
    if matrix_units::unit(device, dtype, [places, outputs.max(16), depth(on_units)]).is_some() {
        return Some(on_units);
    }
    // A product of 64-bit integers takes several 32-bit products, and no block of them stays in registers.
    let suits = in_order || outputs >= OUTPUTS_OF_FEW_PLACES && places <= FEW_PLACES;
    let is_busy = outputs >= FEWEST_OUTPUTS || suits && places.saturating_mul(depth(QUAD)) >= PRODUCTS_OF_ONE_OUTPUT;
    let fits = is_busy && depth(QUAD) >= LEAST_DEPTH && dtype != DType::I64;
    fits.then_some(QUAD)
}
