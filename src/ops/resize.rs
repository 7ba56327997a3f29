//! Tensors resized along their last axes.

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::collapse;
use crate::base::number::gcd;
use crate::base::shape::checked_elements;
use crate::base::shape::{Dims, Shape};
use crate::base::word::Word;
use crate::engine::launch::Launch;
use crate::kernels::expr::Domain;
use crate::kernels::interpolation::Interpolation;
use crate::kernels::parameters::Strided;
use crate::kernels::resize::{LineParameters, MARGIN, Parameters, Resize, SharedLineParameters};
use crate::lazy::allocate;
use crate::tensor::Tensor;
use crate::tuning;

/// The most elements that an invocation computes: eight quads, or two blocks of four by four. With eight blocks, an
/// H100 takes 35.4 us instead of 31.3 for the images in `docs/performance.md`.
const MOST_ELEMENTS: usize = 32;

/// The most inputs between the first and the last output of a quad, if each is loaded once.
const MOST_STEPS: u32 = 6;

/// With fewer invocations than this for each compute unit, an invocation computes fewer planes, and fewer rows.
const BUSY: usize = 512;

/// How [`Tensor::resize`] makes an element of those around its place in the input.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum ResizeMode {
    /// The nearest element, of any dtype.
    Nearest(NearestRounding),
    /// Of the two elements around the place, along each axis (bilinear, trilinear).
    Linear,
    /// Of four elements along each axis, by cubic convolution with this coefficient: -0.75 in PyTorch, -0.5 in Keys'
    /// paper ("Cubic Convolution Interpolation for Digital Image Processing", 1981) and in Pillow.
    Cubic(f64),
}

/// Which element is the nearest to a place between two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NearestRounding {
    /// The one before.
    Floor,
    /// The one behind.
    Ceil,
    /// The nearer one; halfway the one before.
    PreferFloor,
    /// The nearer one; halfway the one behind.
    PreferCeil,
}

/// Which coordinate of the input element `i` of the output is taken from, by the names of ONNX's operator `Resize`. An
/// axis of `from` elements becomes `to` long; `scale` is `to / from`, or as given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CoordinateMode {
    /// `(i + 0.5) / scale - 0.5`: elements are cells, and the outer edges stay where they are.
    HalfPixel,
    /// The same, but 0 if `to` is 1.
    PytorchHalfPixel,
    /// `i (from - 1) / (to - 1)`, whatever the scale: the first and the last element keep their places. If `to` is 1,
    /// the coordinate is 0.
    AlignCorners,
    /// `i / scale`.
    Asymmetric,
}

/// How [`Tensor::resize`] and [`Tensor::resize_by`] resize. The constants are what PyTorch has by these names.
///
/// ```
/// use marquetry::{CoordinateMode, ResizeConfig, ResizeMode};
/// let corners = ResizeConfig::LINEAR.coordinates(CoordinateMode::AlignCorners);
/// let pillow = ResizeConfig::new(ResizeMode::Cubic(-0.5));
/// assert_ne!(corners, pillow);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ResizeConfig {
    mode: ResizeMode,
    coordinates: CoordinateMode,
}

impl ResizeConfig {
    /// PyTorch's `nearest`: the element at or before `i / scale`.
    pub const NEAREST: ResizeConfig =
        ResizeConfig::new(ResizeMode::Nearest(NearestRounding::Floor)).coordinates(CoordinateMode::Asymmetric);

    /// PyTorch's `nearest-exact`, which is the nearest of Pillow and scikit-image: the cell that contains the middle of
    /// the new one.
    pub const NEAREST_EXACT: ResizeConfig = ResizeConfig::new(ResizeMode::Nearest(NearestRounding::PreferCeil));

    /// PyTorch's `linear`, `bilinear` and `trilinear` without `align_corners`.
    pub const LINEAR: ResizeConfig = ResizeConfig::new(ResizeMode::Linear);

    /// PyTorch's `bicubic` without `align_corners`.
    pub const CUBIC: ResizeConfig = ResizeConfig::new(ResizeMode::Cubic(-0.75));

    /// Returns a configuration with this mode, and [`CoordinateMode::HalfPixel`].
    pub const fn new(mode: ResizeMode) -> Self {
        ResizeConfig { mode, coordinates: CoordinateMode::HalfPixel }
    }

    /// Sets where elements are taken from.
    #[must_use]
    pub const fn coordinates(mut self, coordinates: CoordinateMode) -> Self {
        self.coordinates = coordinates;
        self
    }
}

/// A positive fraction.
#[derive(Debug, Clone, Copy)]
struct Fraction {
    numerator: u64,
    denominator: u64,
}

/// Places along an axis of the input: the place of element `i` of the output is `(slope i + start) / unit`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Line {
    slope: i128,
    start: i128,
    unit: i128,
}

impl Tensor {
    /// Returns the tensor with its last axes resized to `size`, which has one to three lengths. For images of
    /// `[batch, channels, height, width]` it is `(height, width)`. No filter is applied before an axis is shortened.
    ///
    /// Places are fractions of whole numbers, so that ties are decided exactly. (PyTorch and ONNX Runtime compute
    /// places in `f32`, and may take the other element if rounding moves a tie.) Weights are computed in `f32` (`f64`
    /// for `f64`). Elements of weight 0 take part: an infinity next to the place gives NaN, as in PyTorch.
    ///
    /// ```
    /// # use marquetry::{Device, ResizeConfig, Tensor};
    /// # let device = Device::best()?;
    /// let image = Tensor::new([[[[0f32, 4.0], [8.0, 12.0]]]], &device)?;
    /// let wide = image.resize((1, 4), ResizeConfig::LINEAR)?;
    /// assert_eq!(wide.to_vec::<f32>()?, [4.0, 5.0, 7.0, 8.0]);
    /// let row = Tensor::new([1u8, 2, 3], &device)?;
    /// assert_eq!(row.resize(6, ResizeConfig::NEAREST)?.to_vec::<u8>()?, [1, 1, 2, 2, 3, 3]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for more lengths than axes, for no lengths, for more than three (cubic: two), if an
    /// empty axis is to become longer, for a coefficient that is not finite, and for axes of tens of millions of
    /// elements whose places cannot be counted in 32 bits; [`Error::UnsupportedDType`] for integers, unless the mode
    /// takes the nearest element; [`Error::SizeOverflow`]; [`Error::OutOfMemory`].
    pub fn resize(&self, size: impl Into<Shape>, config: ResizeConfig) -> Result<Tensor> {
        self.resized_to(&size.into(), config, "resize")
    }

    /// Returns the tensor with its last axes resized by these factors, one to three. An axis of `from` elements becomes
    /// `from * scale` long, rounded down. Places follow from the given factor, not from the new length (ONNX's `Resize`
    /// with scales, PyTorch's `interpolate` with a `scale_factor`).
    ///
    /// A factor stands for the simplest fraction that is the same number in `f32`: 0.6 is 3/5.
    ///
    /// ```
    /// # use marquetry::{Device, ResizeConfig, Tensor};
    /// # let device = Device::best()?;
    /// let row = Tensor::new([0f32, 10.0, 20.0], &device)?;
    /// // 1.5 * 3 = 4.5: element i is at (i + 0.5) / 1.5 - 0.5.
    /// let longer = row.resize_by(&[1.5], ResizeConfig::LINEAR)?.to_vec::<f32>()?;
    /// assert!((longer[1] - 5.0).abs() < 1e-5 && longer.len() == 4);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`resize`](Self::resize); [`Error::InvalidArgument`] for a factor that is not positive and finite.
    pub fn resize_by(&self, scales: &[f64], config: ResizeConfig) -> Result<Tensor> {
        const OP: &str = "resize_by";
        self.check_resizable(scales.len(), config, OP)?;
        let mut lines = Vec::new();
        let mut shape: Dims = self.dims().into();
        for (axis, &scale) in (self.rank() - scales.len()..).zip(scales) {
            let ratio = Fraction::simplest(scale).ok_or_else(|| {
                let message = format!("{scale} is no factor to resize by; give a positive number that is finite");
                Error::InvalidArgument { op: OP, message }
            })?;
            let length = self.dims()[axis] as u128 * u128::from(ratio.numerator) / u128::from(ratio.denominator);
            shape[axis] = usize::try_from(length).unwrap_or(usize::MAX);
            let inverse = Fraction { numerator: ratio.denominator, denominator: ratio.numerator };
            lines.push(Line::new(config.coordinates, inverse, [self.dims()[axis], shape[axis]]));
        }
        self.resample(&lines, Shape::from(shape), config, OP)
    }

    /// Returns the tensor with elements of its last axis repeated or left out: [`resize`](Self::resize) with
    /// [`ResizeConfig::NEAREST`].
    ///
    /// # Errors
    /// As [`resize`](Self::resize).
    pub fn upsample_nearest1d(&self, size: usize) -> Result<Tensor> {
        self.resized_to(&size.into(), ResizeConfig::NEAREST, "upsample_nearest1d")
    }

    /// Returns the tensor with elements of its last two axes repeated or left out: [`resize`](Self::resize) with
    /// [`ResizeConfig::NEAREST`].
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let image = Tensor::new([[[[1u8, 2]]]], &device)?;
    /// assert_eq!(image.upsample_nearest2d(2, 4)?.to_vec::<u8>()?, [1, 1, 2, 2, 1, 1, 2, 2]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`resize`](Self::resize).
    pub fn upsample_nearest2d(&self, height: usize, width: usize) -> Result<Tensor> {
        self.resized_to(&(height, width).into(), ResizeConfig::NEAREST, "upsample_nearest2d")
    }

    /// Candle's other name for [`upsample_nearest1d`](Self::upsample_nearest1d).
    ///
    /// # Errors
    /// As [`resize`](Self::resize).
    pub fn interpolate1d(&self, size: usize) -> Result<Tensor> {
        self.resized_to(&size.into(), ResizeConfig::NEAREST, "interpolate1d")
    }

    /// Candle's other name for [`upsample_nearest2d`](Self::upsample_nearest2d).
    ///
    /// # Errors
    /// As [`resize`](Self::resize).
    pub fn interpolate2d(&self, height: usize, width: usize) -> Result<Tensor> {
        self.resized_to(&(height, width).into(), ResizeConfig::NEAREST, "interpolate2d")
    }

    /// Returns the tensor with its last two axes resized by bilinear interpolation: [`resize`](Self::resize) with
    /// [`ResizeConfig::LINEAR`].
    ///
    /// # Errors
    /// As [`resize`](Self::resize).
    pub fn upsample_bilinear2d(&self, height: usize, width: usize, align_corners: bool) -> Result<Tensor> {
        let coordinates = if align_corners { CoordinateMode::AlignCorners } else { CoordinateMode::HalfPixel };
        let config = ResizeConfig::LINEAR.coordinates(coordinates);
        self.resized_to(&(height, width).into(), config, "upsample_bilinear2d")
    }

    fn resized_to(&self, size: &Shape, config: ResizeConfig, op: &'static str) -> Result<Tensor> {
        self.check_resizable(size.rank(), config, op)?;
        let kept = self.rank() - size.rank();
        if self.dims()[kept..] == **size {
            return Ok(self.clone());
        }
        let line = |(&from, &to): (&usize, &usize)| {
            let ratio = Fraction { numerator: from as u64, denominator: to as u64 };
            Line::new(config.coordinates, ratio, [from, to])
        };
        let lines: Vec<Line> = self.dims()[kept..].iter().zip(size.iter()).map(line).collect();
        let shape = self.dims()[..kept].iter().chain(size.iter()).copied().collect();
        self.resample(&lines, shape, config, op)
    }

    /// Checks everything except the lengths.
    fn check_resizable(&self, axes: usize, config: ResizeConfig, op: &'static str) -> Result<()> {
        let most = match config.mode {
            ResizeMode::Nearest(_) => 3,
            ResizeMode::Linear => {
                Domain::Floats.check(self.dtype(), op)?;
                3
            }
            ResizeMode::Cubic(a) => {
                Domain::Floats.check(self.dtype(), op)?;
                if !(a as f32).is_finite() {
                    let message = format!("the coefficient {a} of the cubic is not finite");
                    return Err(Error::InvalidArgument { op, message });
                }
                2
            }
        };
        if !(1..=most).contains(&axes) {
            let message = format!("{axes} axes to resize; this mode resizes one to {most}");
            return Err(Error::InvalidArgument { op, message });
        }
        if axes > self.rank() {
            let message = format!("{axes} axes to resize of shape {}, which has {}", self.shape(), self.rank());
            return Err(Error::InvalidArgument { op, message });
        }
        Ok(())
    }

    /// Returns the tensor of this shape. The elements along its last axes are taken from the places on the lines.
    fn resample(&self, lines: &[Line], shape: Shape, config: ResizeConfig, op: &'static str) -> Result<Tensor> {
        let kept = self.rank() - lines.len();
        for axis in kept..self.rank() {
            if self.dims()[axis] == 0 && shape[axis] > 0 {
                let message = format!("axis {axis} is empty: there are no elements to make {} of", shape[axis]);
                return Err(Error::InvalidArgument { op, message });
            }
        }
        let elements = checked_elements(&shape, op)?;
        let (mut lengths, [mut strides]) = collapse(&self.dims()[..kept], [&self.strides()[..kept]]);
        let (interpolation, a) = match config.mode {
            ResizeMode::Nearest(_) => (Interpolation::Nearest, None),
            ResizeMode::Linear => (Interpolation::Linear, None),
            ResizeMode::Cubic(a) => (Interpolation::Cubic, Some(a)),
        };
        let quads_of_columns = shape.last().is_some_and(|columns| columns.is_multiple_of(4));
        let by_planes = elements > 0 && lengths.len() <= 1 && quads_of_columns;
        if by_planes && lengths.is_empty() {
            lengths.push(1);
            strides.push(0);
        }
        let rank = lengths.len() + lines.len();
        let steps = lines.last().filter(|_| by_planes).and_then(|line| line.rounded(config.mode).steps());
        let planes = if by_planes { lengths[0] } else { 1 };
        // A GPU needs many invocations.
        let busy = match self.device().tuning().loads.several {
            true => tuning::compute_units(self.device().info().compute_units) * BUSY,
            false => 1,
        };
        let row_steps = match (lines, &shape[..]) {
            ([.., down, _], [.., rows, _]) if steps.is_some() && rows.is_multiple_of(4) && elements / 16 >= busy => {
                down.rounded(config.mode).shared_steps(interpolation.taps())
            }
            _ => None,
        };
        let resized = lines.len();
        let even = |distance: usize| distance.is_multiple_of(2);
        let even_rows = row_steps.is_some()
            && lines.len() == 2
            && interpolation != Interpolation::Nearest
            && self.dtype().size_in_bytes() == 2
            && even(self.layout().offset)
            && self.strides().last().is_some_and(|&stride| stride >= 0)
            && self.strides()[..self.rank() - 1].iter().all(|stride| even(stride.unsigned_abs()));
        let dtype = self.dtype();
        let workgroup = self.device().tuning().resize.invocations;
        let mut kernel = Resize {
            dtype,
            interpolation,
            rank,
            resized,
            by_planes,
            steps,
            row_steps,
            even_rows,
            four_from: None,
            workgroup,
        };
        if kernel.shared() == resized {
            kernel.four_from =
                self.four_from(&lines[resized - 1].rounded(config.mode), shape[self.rank() - 1], &kernel);
        }
        let kernel = kernel.fitting(self.device().info().limits.max_parameter_words as usize);
        if !self.device().takes(&kernel) && !self.is_contiguous() {
            return self.contiguous()?.resample(lines, shape, config, op);
        }
        let output = allocate(&shape, self.dtype(), self.device(), op)?;
        if elements > 0 {
            let of_row = 4 * kernel.quads() as usize;
            let of_invocation = if kernel.row_steps.is_some() { 4 * of_row } else { of_row };
            let blocks = (elements / planes).div_ceil(of_invocation);
            let own = (blocks * planes / busy).clamp(1, MOST_ELEMENTS / of_invocation).min(planes);
            lengths.extend_from_slice(&shape[kept..]);
            strides.extend_from_slice(&self.strides()[kept..]);
            let too_long = |axis: usize| {
                let [from, to] = [self.dims()[axis], shape[axis]];
                let message =
                    format!("axis {axis} from {from} to {to} elements: too many to count places exactly in 32 bits");
                Error::InvalidArgument { op, message }
            };
            let line = |(axis, line): (usize, &Line)| {
                let [from, to] = [self.dims()[axis], shape[axis]];
                line.rounded(config.mode).parameters(from, to).ok_or_else(|| too_long(axis))
            };
            let shared = |(axis, line): (usize, &Line)| {
                let (from, line) = (self.dims()[axis], line.rounded(config.mode));
                line.shared_parameters(from, kernel.fractions(), self.dtype()).ok_or_else(|| too_long(axis))
            };
            let (alone, sharing) = lines.split_at(lines.len() - kernel.shared());
            let parameters = Parameters {
                count: elements,
                planes: kernel.has_several_planes().then_some(own),
                lengths,
                x: Strided { offset: self.layout().offset, strides },
                lines: (kept..).zip(alone).map(line).collect::<Result<_>>()?,
                shared: (kept + alone.len()..).zip(sharing).map(shared).collect::<Result<_>>()?,
                a: a.map(|a| Word::of(a, self.dtype().widened(), op)).transpose()?,
            };
            let buffers = [self.buffer()?, &output];
            let groups = (blocks * planes.div_ceil(own)).div_ceil(workgroup as usize);
            self.device().runtime().run(Launch { kernel, buffers: &buffers, parameters, groups })?;
        }
        Ok(Tensor::from_buffer(output, shape, self.dtype(), self.device()))
    }
}

impl Tensor {
    /// Returns [`Resize::four_from`] for a resizing of the last axis to `to` elements.
    fn four_from(&self, line: &Line, to: usize, kernel: &Resize) -> Option<u32> {
        let (taps, steps) = (kernel.interpolation.taps(), kernel.steps?);
        let before = if kernel.interpolation == Interpolation::Cubic { 1 } else { 0 };
        let first = line.start.div_euclid(line.unit) - before;
        let from = (-first).rem_euclid(4);
        let begin_at_fours = self.strides()[..self.rank() - 1]
            .iter()
            .map(|stride| stride.unsigned_abs())
            .chain([self.layout().offset])
            .all(|distance| distance.is_multiple_of(4));
        let length = i128::from(2 + steps[2] + taps);
        // The fours of the first and of the last quads are inside.
        let inside = first + from >= 0 && first + from + to as i128 / 2 <= self.dims()[self.rank() - 1] as i128;
        let suits = self.dtype().size_in_bytes() == 2
            && to.is_multiple_of(8)
            && 4 * line.slope == 2 * line.unit
            && self.strides()[self.rank() - 1] == 1
            && begin_at_fours
            && from + 4 <= length
            && inside;
        suits.then_some(from as u32)
    }
}

impl Fraction {
    /// Returns the simplest fraction that is this number in `f32`; `None` if the number is not positive.
    fn simplest(number: f64) -> Option<Fraction> {
        let wanted = number as f32;
        if !(wanted.is_normal() && wanted > 0.0) {
            return None;
        }
        // The convergents of the continued fraction.
        let (mut rest, mut this, mut last) = (number, (1.0, 0.0), (0.0, 1.0));
        for _ in 0..64 {
            let whole = rest.floor();
            (this, last) = ((whole * this.0 + last.0, whole * this.1 + last.1), this);
            if (this.0 / this.1) as f32 == wanted {
                break;
            }
            rest = (rest - whole).recip();
        }
        let fits = |x: f64| x.is_finite() && x < u64::MAX as f64;
        let (numerator, denominator) = this;
        (fits(numerator) && fits(denominator))
            .then_some(Fraction { numerator: numerator as u64, denominator: denominator as u64 })
    }
}

impl Line {
    /// Returns the line for an axis of `from` elements that becomes `to` long. An element of the output covers `ratio`
    /// elements of the input.
    fn new(coordinates: CoordinateMode, ratio: Fraction, [from, to]: [usize; 2]) -> Line {
        let [p, q] = [ratio.numerator, ratio.denominator].map(i128::from);
        let first = Line { slope: 0, start: 0, unit: 1 };
        match coordinates {
            CoordinateMode::PytorchHalfPixel | CoordinateMode::AlignCorners if to <= 1 => first,
            CoordinateMode::HalfPixel | CoordinateMode::PytorchHalfPixel => {
                Line { slope: 2 * p, start: p - q, unit: 2 * q }
            }
            CoordinateMode::AlignCorners => Line { slope: from as i128 - 1, start: 0, unit: to as i128 - 1 },
            CoordinateMode::Asymmetric => Line { slope: p, start: 0, unit: q },
        }
    }

    /// Returns the line whose integer parts are the places to read. For the nearest element, these are the rounded
    /// places.
    fn rounded(self, mode: ResizeMode) -> Line {
        let Line { slope, start, unit } = self;
        match mode {
            ResizeMode::Nearest(NearestRounding::Ceil) => Line { start: start + unit - 1, ..self },
            // ceil(x - 1/2) and floor(x + 1/2).
            ResizeMode::Nearest(NearestRounding::PreferFloor) => {
                Line { slope: 2 * slope, start: 2 * start + unit - 1, unit: 2 * unit }
            }
            ResizeMode::Nearest(NearestRounding::PreferCeil) => {
                Line { slope: 2 * slope, start: 2 * start + unit, unit: 2 * unit }
            }
            _ => self,
        }
    }

    /// Returns how many inputs the second, third and fourth of four outputs are behind the first one, if this is the
    /// same for every quad, and few.
    fn steps(self) -> Option<[u32; 3]> {
        let place = |i: i128| (self.slope * i + self.start).div_euclid(self.unit);
        let steps = [1, 2, 3].map(|i| (place(i) - place(0)) as u32);
        ((4 * self.slope) % self.unit == 0 && steps[2] <= MOST_STEPS).then_some(steps)
    }

    /// Returns the steps, if four outputs, each of which combines `taps` inputs, share some of them.
    fn shared_steps(self, taps: u32) -> Option<[u32; 3]> {
        self.steps().filter(|[.., fourth]| fourth + taps < 4 * taps)
    }

    /// Returns the line and the input's length as the kernel takes them; `None` if they do not fit 32 bits.
    fn parameters(self, from: usize, to: usize) -> Option<LineParameters> {
        let common = gcd(gcd(self.slope, self.start), self.unit);
        let [slope, start, unit] = [self.slope, self.start, self.unit].map(|n| n / common);
        let margin = i128::from(MARGIN);
        // The kernel guesses a place from numbers that are rounded to 24 bits.
        let guess_error = (((slope * (to as i128 - 1) + start.abs()) / unit) >> 22) + 2;
        let fits = guess_error <= margin && (2 * margin + 2) * unit < 1 << 32 && from < 1 << 31;
        let [ratio, begin] = [slope, start].map(|n| Word::new((n as f64 / unit as f64) as f32));
        let (slope, start) = (slope as u32, (start + margin * unit) as u32);
        fits.then_some(LineParameters { slope, start, unit: unit as usize, ratio, begin, length: from })
    }

    /// The same for a line of which [`steps`](Self::steps) are known. The kernel gets the fractions of this many
    /// outputs.
    fn shared_parameters(self, from: usize, fractions: usize, dtype: DType) -> Option<SharedLineParameters> {
        let Line { slope, start, unit } = self;
        let fraction = |i: usize| {
            let fraction = (slope * i as i128 + start).rem_euclid(unit) as f64 / unit as f64;
            if dtype == DType::F64 { Word::new(fraction) } else { Word::new(fraction as f32) }
        };
        let first = i32::try_from(start.div_euclid(unit)).ok()?;
        let step = usize::try_from(4 * slope / unit).ok()?;
        let fractions = (0..fractions).map(fraction).collect();
        (from < 1 << 31).then_some(SharedLineParameters { first, step, fractions, length: from })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Family;
    use crate::kernels::parameters::Form;

    /// Returns the place that the kernel computes from a line.
    fn place(line: &LineParameters, i: u32) -> i64 {
        let unit = line.unit as u32;
        let [ratio, begin] = [line.ratio, line.begin].map(|word| f32::from_bits(word.bits() as u32));
        let guess = (i as f32 * ratio + begin).floor() as u32;
        let rest = i.wrapping_mul(line.slope).wrapping_add(line.start).wrapping_sub(guess.wrapping_mul(unit));
        i64::from(guess) + i64::from(rest / unit) - i64::from(MARGIN)
    }

    #[test]
    fn places_are_exact_for_long_axes() {
        let modes = [ResizeMode::Linear, ResizeMode::Nearest(NearestRounding::PreferCeil)];
        for [from, to] in [[1, 1], [1, 9], [7, 3], [50_000_017, 3], [3, 16_000_057], [16_000_057, 15_999_989]] {
            for coordinates in [CoordinateMode::HalfPixel, CoordinateMode::AlignCorners, CoordinateMode::Asymmetric] {
                for mode in modes {
                    let ratio = Fraction { numerator: from as u64, denominator: to as u64 };
                    let line = Line::new(coordinates, ratio, [from, to]).rounded(mode);
                    let parameters = line.parameters(from, to).unwrap();
                    for i in (0..to as u32).step_by(to / 1000 + 1).chain([to as u32 - 1]) {
                        let exact = (line.slope * i128::from(i) + line.start).div_euclid(line.unit);
                        assert_eq!(
                            i128::from(place(&parameters, i)),
                            exact,
                            "{from} to {to}, {coordinates:?}, {mode:?}, {i}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn kernels_share_only_what_fits_the_parameters() {
        let few = 32;
        let all = |dtype, resized, interpolation| {
            let (rank, by_planes, even_rows) = (resized + 1, true, false);
            let row_steps = (resized > 1).then_some([0, 1, 1]);
            let kernel = Resize {
                dtype,
                interpolation,
                rank,
                resized,
                by_planes,
                steps: row_steps,
                row_steps,
                even_rows,
                four_from: None,
                workgroup: 64,
            };
            let fitting = kernel.clone().fitting(few);
            assert!(fitting.parameter_words() <= few, "{}", fitting.name());
            (fitting.row_steps.is_some(), fitting.steps.is_some())
        };
        let linear = [(DType::F32, 3), (DType::F64, 2), (DType::F64, 3)];
        let linear = linear.map(|(dtype, resized)| all(dtype, resized, Interpolation::Linear));
        assert_eq!(linear, [(true, true), (true, true), (false, false)]);
        assert_eq!(all(DType::F64, 2, Interpolation::Cubic), (false, true));
    }

    #[test]
    fn factors_are_simple_fractions() {
        let simplest = |number| Fraction::simplest(number).map(|x| (x.numerator, x.denominator));
        assert_eq!(simplest(2.0), Some((2, 1)));
        assert_eq!(simplest(f64::from(0.6f32)), Some((3, 5)));
        assert_eq!(simplest(1.0 / 3.0), Some((1, 3)));
        assert_eq!(simplest(f64::from(44100f32 / 16000.0)), Some((441, 160)));
        assert_eq!(simplest(1e9), Some((1_000_000_000, 1)));
        assert_eq!(simplest(0.0).or(simplest(-2.0)).or(simplest(f64::NAN)), None);
    }
}
