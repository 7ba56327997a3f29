//! Transposed convolutions as convolutions. Outputs that are a stride apart along each axis have one phase. They use
//! the same taps, so each phase is a convolution of the input, and together the phases are the output.

use super::channel_order::{channels_first, channels_last, in_channels_last, is_channels_last};
use super::conv::{ConvConfig, Convolution, Sizes};
use super::conv_product::{fewest_of_phases, prepared_weight};
use super::window::Window;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::number::gcd;
use crate::base::shape::{Dims, Shape};
use crate::lazy::allocate;
use crate::tensor::Tensor;

/// A transposed convolution of more phases is computed by one kernel.
const MOST_PHASES: usize = 16;

/// A phase along an axis: of the outputs `first`, `first + stride` and so on.
#[derive(Clone, Copy)]
struct Phase {
    first: usize,
    /// Their number.
    outputs: usize,
    /// The first tap that the outputs use, if they use any. The others follow at a distance.
    tap: usize,
    distance: usize,
    /// How many inputs lie before those that any output uses.
    unused: usize,
    /// Goes over the inputs that outputs use, with the taps in reverse order.
    window: Window,
}

impl Phase {
    /// Returns a phase of the window of a transposed convolution with an output of this length.
    fn new(axis: &Window, length: usize, first: usize) -> Phase {
        let Window { input, kernel, stride, dilation, before, .. } = *axis;
        let common = gcd(stride as i128, dilation as i128) as usize;
        let distance = stride / common;
        let outputs = (length - first).div_ceil(stride);
        // Output `o` uses tap `k` if `o + before - k dilation` is a multiple of the stride. The quotient is the input.
        let place = first + before;
        let tap = (0..distance.min(kernel)).find(|tap| (place % stride) == (tap * dilation) % stride);
        let Some(tap) = tap else {
            let window = Window { kernel: 0, ..*axis };
            return Phase { first, outputs, tap: 0, distance, unused: 0, window };
        };
        let (kernel, dilation_of_input) = ((kernel - tap).div_ceil(distance), dilation / common);
        // The input of the first output and the first tap, which may lie in the padding.
        let last_met = (place as isize - (tap * dilation) as isize) / stride as isize;
        let first_met = last_met - ((kernel - 1) * dilation_of_input) as isize;
        let (unused, before) = (first_met.max(0) as usize, (-first_met).max(0) as usize);
        // The padded input ends at the last tap of the last output: inputs behind it are left out.
        let needed = outputs + (kernel - 1) * dilation_of_input;
        let input = input.saturating_sub(unused).min(needed.saturating_sub(before));
        let after = needed - (before + input).min(needed);
        let window = Window { input, kernel, stride: 1, dilation: dilation_of_input, before, after };
        Phase { first, outputs, tap, distance, unused, window }
    }

    /// Returns the part of the input that the phase goes over.
    fn input(&self, x: &Tensor, axis: usize) -> Result<Tensor> {
        let length = x.dims()[axis];
        x.narrow(axis, self.unused.min(length), self.window.input.min(length))
    }

    /// Returns the taps that the phase uses, in reverse order.
    fn taps(&self, weight: &Tensor, axis: usize) -> Result<Tensor> {
        let Some(others) = self.window.kernel.checked_sub(1) else { return weight.narrow(axis, 0, 0) };
        let last = self.tap + others * self.distance;
        weight.slice(axis, self.tap..=last, -(self.distance as isize))
    }
}

impl Convolution {
    /// Returns a transposed convolution without overlaps, padding and bias, of which each place has outputs of its own:
    /// the elements of the place times the whole weight. The result has the dtype `output`. `None` for all others.
    pub(super) fn without_overlaps(
        &self,
        x: &Tensor,
        weight: &Tensor,
        sizes: &Sizes,
        output: DType,
    ) -> Result<Option<Tensor>> {
        let fits = |(window, &length): (&Window, &usize)| {
            let Window { input, kernel, stride, dilation, before, .. } = *window;
            kernel == stride && (dilation == 1 || kernel == 1) && before == 0 && length == input * stride
        };
        let has_overlaps = !sizes.windows.iter().zip(&sizes.outputs).all(fits);
        if sizes.groups > 1 || has_overlaps || !sizes.fill_blocks() {
            return Ok(None);
        }
        let [images, channels, places @ ..] = x.dims() else { return Ok(None) };
        let (outputs, taps) = (weight.dims()[1], &weight.dims()[2..]);
        let matrix = channels_last(weight)?.reshape((*channels, weight.elem_count() / channels))?;
        let y = channels_last(x)?.exact_product(&matrix, output, self.op)?;
        // Each place's outputs along an axis go behind it.
        let axes = places.len() as isize;
        let apart = y.reshape(Shape::from([&[*images], places, taps, &[outputs]].concat()))?;
        let pairs = (1..=axes).flat_map(|axis| [axis, axes + axis]);
        let order: Dims<isize> = [0].into_iter().chain(pairs).chain([2 * axes + 1]).collect();
        let whole = Shape::from([&[*images], &sizes.outputs[..], &[outputs]].concat());
        channels_first(&apart.permute(&order[..])?.contiguous()?.reshape(whole)?).map(Some)
    }

    /// Returns a transposed convolution of this shape, with its bias. It has the order in memory that `x` has. `None`
    /// if another kernel suits it better.
    pub(super) fn by_phases(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        sizes: &Sizes,
        shape: &Shape,
    ) -> Result<Option<Tensor>> {
        let count = sizes.windows.iter().map(|window| window.stride).fold(1, usize::saturating_mul);
        if count > MOST_PHASES {
            return Ok(None);
        }
        let of_axis = |(window, &length): (&Window, &usize)| -> Vec<Phase> {
            (0..window.stride.min(length)).map(|first| Phase::new(window, length, first)).collect()
        };
        let phases: Vec<Vec<Phase>> = sizes.windows.iter().zip(&sizes.outputs).map(of_axis).collect();
        let plain = Convolution { transposed: false, ..*self };
        let of_phase = |phases: &[Phase]| Sizes {
            windows: phases.iter().map(|phase| phase.window).collect(),
            outputs: phases.iter().map(|phase| phase.outputs).collect(),
            ..*sizes
        };
        let most = |phases: &Vec<Phase>| phases.iter().copied().max_by_key(|phase| phase.window.kernel);
        let Some(largest) = phases.iter().map(most).collect::<Option<Vec<_>>>() else { return Ok(None) };
        let lengths = largest.iter().flat_map(|phase| [phase.window.kernel, phase.outputs]);
        let products = lengths.chain([shape[0], shape[1], sizes.input_channels]).fold(1, usize::saturating_mul);
        let launches_pay = count == 1 || products >= fewest_of_phases(x.device());
        if !launches_pay || !plain.fills_blocks(x, &of_phase(&largest)) {
            return Ok(None);
        }
        let in_order = is_channels_last(x);
        let x = if in_order { x.clone() } else { in_channels_last(x)? };
        let combinations = combinations(&phases);
        // What depends on nothing runs side by side: first all weights are put in order, then all phases are computed.
        let config = ConvConfig::default().groups(sizes.groups);
        let prepare = |phases: &Vec<Phase>| -> Result<Tensor> {
            let taps = (2..).zip(phases).try_fold(weight.clone(), |taps, (axis, phase)| phase.taps(&taps, axis))?;
            let prepared = prepared_weight(&outputs_first(&taps, sizes)?, &config)?;
            prepared.realize()?;
            Ok(prepared)
        };
        let convolve = |(phases, weight): (&Vec<Phase>, &Tensor)| -> Result<Tensor> {
            let x = (2..).zip(phases).try_fold(x.clone(), |x, (axis, phase)| phase.input(&x, axis))?;
            let outputs = phases.iter().map(|phase| phase.outputs);
            let shape = shape[..2].iter().copied().chain(outputs).collect();
            plain.pending(&x, weight, bias, &of_phase(phases), &shape)
        };
        let weights: Vec<_> = combinations.iter().map(prepare).collect::<Result<_>>()?;
        let results: Vec<_> = combinations.iter().zip(&weights).map(convolve).collect::<Result<_>>()?;
        let y = if let [only] = &results[..] {
            only.clone()
        } else {
            results.iter().try_for_each(Tensor::realize)?;
            let lengths: Shape = [&shape[..1], &sizes.outputs, &shape[1..2]].concat().into();
            let y = allocate(&lengths, x.dtype().summed(), x.device(), self.op)?;
            let y = Tensor::from_buffer(y, lengths, x.dtype().summed(), x.device());
            for (phases, result) in combinations.iter().zip(&results) {
                let axes = (1..).zip(phases).zip(&sizes.windows);
                let part = axes.fold(y.layout().clone(), |part, ((axis, phase), window)| {
                    part.sliced(axis, phase.first, phase.outputs, window.stride as isize)
                });
                y.write_part(&part, &channels_last(result)?)?;
            }
            channels_first(&y)?
        };
        let y = y.reshape(shape.clone())?;
        if in_order {
            return Ok(Some(y));
        }
        // The kernel that adds the bias cannot also change the order.
        y.realize()?;
        y.contiguous().map(Some)
    }
}

/// Returns the weight of a transposed convolution, (C, outputs of a group, kernel..), as that of a convolution:
/// (outputs of all groups, C / groups, kernel..).
fn outputs_first(weight: &Tensor, sizes: &Sizes) -> Result<Tensor> {
    let Sizes { groups, input_channels, output_channels, .. } = *sizes;
    let shape = |first: &[usize]| -> Shape { first.iter().chain(&weight.dims()[2..]).copied().collect() };
    let of_groups = weight.reshape(shape(&[groups, input_channels, output_channels]))?.transpose(1, 2)?;
    of_groups.reshape(shape(&[groups * output_channels, input_channels]))
}

/// Returns each combination of a phase of every axis.
fn combinations(axes: &[Vec<Phase>]) -> Vec<Vec<Phase>> {
    axes.iter().fold(vec![Vec::new()], |found, phases| {
        let with = |outer: Vec<Phase>| phases.iter().map(move |&phase| [&outer[..], &[phase]].concat());
        found.into_iter().flat_map(with).collect()
    })
}
