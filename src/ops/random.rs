//! Tensors of random numbers, and places drawn at random.

use super::choose_team;
use super::reduce::{fold_states, state_buffers};
use crate::base::dtype::{DType, Element};
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::base::shape::checked_elements;
use crate::base::word::Word;
use crate::device::Device;
use crate::engine::launch::Launch;
use crate::engine::pool::Buffer;
use crate::kernels::expr::Domain;
use crate::kernels::fold::FoldOp;
use crate::kernels::random::{self, Distribution, Generator, GeneratorParameters, Random, RangeParameters, WORKGROUP};
use crate::kernels::sample::{self, Sample};
use crate::kernels::workgroup::{self, Team};
use crate::lazy::allocate;
use crate::tensor::Tensor;
use half::{bf16, f16};
use smallvec::SmallVec;

/// Rows of weights are cut into chunks of this length at least, so that few draws keep the whole device busy.
const SHORTEST_CHUNK: usize = 512;

impl Tensor {
    /// Returns random numbers, evenly distributed from `low` up to but not including `high`.
    ///
    /// The generator is counter-based: the same seed ([`Device::set_seed`]) and the same sequence of calls give the
    /// same random bits on every device; scaling them may round differently. Every number is drawn with 24 bits, also
    /// numbers of `f64`.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::rand(-1f32, 1.0, (3, 4), &device)?;
    /// assert!(x.to_vec::<f32>()?.iter().all(|v| (-1.0..1.0).contains(v)));
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for integers; [`Error::InvalidArgument`] for a range that is not finite;
    /// [`Error::SizeOverflow`]; [`Error::OutOfMemory`].
    pub fn rand<T: Element>(low: T, high: T, shape: impl Into<Shape>, device: &Device) -> Result<Tensor> {
        uniform([low.to_f64(), high.to_f64()], T::DTYPE, shape.into(), device, "rand")
    }

    /// Returns random numbers, evenly distributed from `low` up to but not including `high`, with the shape, dtype and
    /// device of this tensor. The bounds are rounded to the dtype. See [`rand`](Self::rand) for the generator.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::zeros((3, 4), DType::F16, &device)?.rand_like(-1.0, 1.0)?;
    /// assert_eq!((x.dims(), x.dtype()), (&[3, 4][..], DType::F16));
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`rand`](Self::rand).
    pub fn rand_like(&self, low: f64, high: f64) -> Result<Tensor> {
        const OP: &str = "rand_like";
        Domain::Floats.check(self.dtype(), OP)?;
        let bounds = [rounded(low, self.dtype(), OP)?, rounded(high, self.dtype(), OP)?];
        uniform(bounds, self.dtype(), self.shape().clone(), self.device(), OP)
    }

    /// Returns random numbers from the normal distribution. See [`rand`](Self::rand) for the generator. The numbers of
    /// two devices may differ in the last bits: each is within 4 ulp of `f32` of what the random bits stand for.
    /// Numbers of `f64` are drawn in `f32`, too.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::randn(0f32, 1.0, (3, 4), &device)?;
    /// assert_eq!(x.dims(), [3, 4]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for integers; [`Error::SizeOverflow`]; [`Error::OutOfMemory`].
    pub fn randn<T: Element>(mean: T, deviation: T, shape: impl Into<Shape>, device: &Device) -> Result<Tensor> {
        let numbers = [mean.to_f64(), deviation.to_f64()];
        scaled(Distribution::Normal, numbers, T::DTYPE, shape.into(), device, "randn")
    }

    /// Returns random numbers from the normal distribution, with the shape, dtype and device of this tensor. See
    /// [`randn`](Self::randn).
    ///
    /// ```
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::zeros((3, 4), DType::F16, &device)?.randn_like(0.0, 1.0)?;
    /// assert_eq!((x.dims(), x.dtype()), (&[3, 4][..], DType::F16));
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`randn`](Self::randn).
    pub fn randn_like(&self, mean: f64, deviation: f64) -> Result<Tensor> {
        let shape = self.shape().clone();
        scaled(Distribution::Normal, [mean, deviation], self.dtype(), shape, self.device(), "randn_like")
    }

    /// Returns random numbers from the Gumbel distribution, `location - scale * log(-log(u))` for uniform numbers `u`.
    /// See [`rand`](Self::rand) for the generator. Each number is within 4 ulp of `f32`, in which it is drawn, of what
    /// the random bits stand for.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let noise = Tensor::gumbel(0f32, 1.0, (3, 4), &device)?;
    /// assert_eq!(noise.dims(), [3, 4]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for integers; [`Error::SizeOverflow`]; [`Error::OutOfMemory`].
    pub fn gumbel<T: Element>(location: T, scale: T, shape: impl Into<Shape>, device: &Device) -> Result<Tensor> {
        let numbers = [location.to_f64(), scale.to_f64()];
        scaled(Distribution::Gumbel, numbers, T::DTYPE, shape.into(), device, "gumbel")
    }

    /// Returns random integers from `low` up to but not including `high` (PyTorch's `randint`): the same on every
    /// device. See [`rand`](Self::rand) for the generator.
    ///
    /// Each is the upper half of the product of 32 random bits (64 for `i64`) and the number of integers, `n`
    /// (D. Lemire, "Fast Random Integer Generation in an Interval", 2019, without the rejection). Their probabilities
    /// differ by at most 2^-32 (2^-64). If `n` is a power of two, they are equal.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let dice = Tensor::rand_int(1u8, 7, 100, &device)?;
    /// assert!(dice.to_vec::<u8>()?.iter().all(|n| (1..=6).contains(n)));
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for floats; [`Error::InvalidArgument`] if `low` is not below `high`;
    /// [`Error::SizeOverflow`]; [`Error::OutOfMemory`].
    pub fn rand_int<T: Element>(low: T, high: T, shape: impl Into<Shape>, device: &Device) -> Result<Tensor> {
        const OP: &str = "rand_int";
        Domain::Integers.check(T::DTYPE, OP)?;
        if low >= high {
            let message = format!("there is no integer from {low:?} up to but not including {high:?}");
            return Err(Error::InvalidArgument { op: OP, message });
        }
        let wide = T::DTYPE.widened();
        let distribution = if wide.parts() == 1 { Distribution::Integer } else { Distribution::WideInteger };
        let length = Word::of_bits(high.to_bits().wrapping_sub(low.to_bits()), wide);
        let range = RangeParameters { length: length.words().collect(), first: Word::new(low).words().collect() };
        draw(distribution, Some(range), wide, shape.into(), device, OP)?.to_dtype(T::DTYPE)
    }

    /// Returns ones and zeros in the dtype of this tensor, which holds floats. Each element is the probability of a one
    /// at its place. An element below 0 or NaN counts as 0, one above 1 as 1.
    ///
    /// The uniform numbers behind the result are multiples of 2^-24, as in [`rand`](Self::rand): it is the same on
    /// every device.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([0f32, 1.0, 0.5], &device)?.bernoulli()?.to_vec::<f32>()?;
    /// assert!(x[0] == 0.0 && x[1] == 1.0);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for integers; [`Error::SizeOverflow`], [`Error::OutOfMemory`].
    pub fn bernoulli(&self) -> Result<Tensor> {
        const OP: &str = "bernoulli";
        Domain::Floats.check(self.dtype(), OP)?;
        let uniform = draw(Distribution::Uniform, None, DType::F32, self.shape().clone(), self.device(), OP)?;
        let wide = self.dtype().widened();
        uniform.to_dtype(wide)?.lt(&self.to_dtype(wide)?)?.to_dtype(self.dtype())
    }

    /// Returns places along the last axis drawn at random, `u32`. Their probabilities are in proportion to the weights
    /// there, which are floats and need not add up to 1. The result's last axis has the samples, in the order in which
    /// they are drawn.
    ///
    /// With replacement, each is drawn independently of the others. Without it, no place is drawn twice: the samples
    /// are the places of the largest `log(weight)`, in `f32`, with noise of the Gumbel distribution added (W. Kool et
    /// al., "Stochastic Beams and Where to Find Them", 2019; the same as P. Efraimidis and P. Spirakis, 2006, draw by
    /// exponential numbers).
    ///
    /// No weight may be negative or NaN. Without replacement, at least as many weights as samples must be above 0, else
    /// at least one. Nothing can be reported on the device: if the weights break these rules, the places mean nothing.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let weights = Tensor::new([[0f32, 3.0, 0.0], [1.0, 0.0, 2.0]], &device)?;
    /// let drawn = weights.multinomial(2, true)?;
    /// assert_eq!(drawn.dims(), [2, 2]);
    /// assert_eq!(drawn.narrow(0, 0, 1)?.to_vec::<u32>()?, [1, 1]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for integers; [`Error::RankMismatch`] for a scalar; [`Error::InvalidArgument`] for
    /// samples of an empty axis, or for more samples than places without replacement; [`Error::SizeOverflow`] if there
    /// are too many random numbers to count (one per sample and weight); [`Error::OutOfMemory`].
    pub fn multinomial(&self, samples: usize, replacement: bool) -> Result<Tensor> {
        const OP: &str = "multinomial";
        let length = self.drawn_axis(OP)?;
        let too_many = if replacement { length == 0 && samples > 0 } else { samples > length };
        if too_many {
            let rule =
                if replacement { "it must not be empty" } else { "without replacement they are at most as many" };
            let message =
                format!("{samples} samples of the {length} places in the last axis of shape {}; {rule}", self.shape());
            return Err(Error::InvalidArgument { op: OP, message });
        }
        let logits = self.to_dtype(DType::F32)?.log()?;
        if replacement { logits.draw_places(samples, OP) } else { Ok(logits.perturbed(OP)?.largest(samples, OP)?.1) }
    }

    /// Returns `k` different places along the last axis, `u32`, in the order in which they are drawn. They are drawn at
    /// random with the probabilities `softmax(logits / temperature)`, computed in `f32` (Gumbel top-k sampling, see
    /// [`multinomial`](Self::multinomial)). At temperature 0 these are the places of the `k` largest logits.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let logits = Tensor::new([1f32, 4.0, 2.0, 3.0], &device)?;
    /// assert_eq!(logits.gumbel_top_k(2, 0.0)?.to_vec::<u32>()?, [1, 3]);
    /// assert_eq!(logits.gumbel_top_k(4, 1.0)?.dims(), [4]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for integers; [`Error::RankMismatch`] for a scalar; [`Error::InvalidArgument`] for
    /// more samples than places, or a temperature that is negative or not finite; [`Error::SizeOverflow`],
    /// [`Error::OutOfMemory`].
    pub fn gumbel_top_k(&self, k: usize, temperature: f64) -> Result<Tensor> {
        const OP: &str = "gumbel_top_k";
        let length = self.drawn_axis(OP)?;
        if k > length {
            let message = format!(
                "k = {k} is more than the {length} places in the last axis of shape {}; k is at most {length}",
                self.shape()
            );
            return Err(Error::InvalidArgument { op: OP, message });
        }
        match self.cooled(temperature, OP)? {
            Some(logits) => Ok(logits.perturbed(OP)?.largest(k, OP)?.1),
            None => Ok(self.largest(k, OP)?.1),
        }
    }

    /// Returns one place along the last axis, `u32`, without that axis: the next token of a language model, for
    /// example. It is drawn at random from the places of the `k` largest logits, with the probabilities
    /// `softmax(logits / temperature)` among these, computed in `f32`. At temperature 0 it is the place of the largest
    /// logit. If `k` is the axis's length or more, all places can be drawn.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let logits = Tensor::new([[1f32, 4.0, 2.0, 3.0]], &device)?;
    /// let token = logits.sample_top_k(2, 0.8)?.to_vec::<u32>()?;
    /// assert!(token == [1] || token == [3]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for integers; [`Error::RankMismatch`] for a scalar; [`Error::InvalidArgument`] for
    /// no places to draw from, or a temperature that is negative or not finite; [`Error::SizeOverflow`],
    /// [`Error::OutOfMemory`].
    pub fn sample_top_k(&self, k: usize, temperature: f64) -> Result<Tensor> {
        const OP: &str = "sample_top_k";
        let length = self.drawn_axis(OP)?;
        if k.min(length) == 0 {
            let message = format!(
                "nothing to draw from: k = {k} of {length} places in the last axis of shape {}; both must be 1 or more",
                self.shape()
            );
            return Err(Error::InvalidArgument { op: OP, message });
        }
        let place = match self.cooled(temperature, OP)? {
            None => return self.argmax(-1).map_err(Error::named(OP)),
            Some(logits) if k >= length => logits.draw_places(1, OP)?,
            Some(logits) => {
                let (largest, places) = logits.largest(k, OP)?;
                places.take_along_dim(&largest.draw_places(1, OP)?, -1)?
            }
        };
        place.squeeze(-1)
    }

    /// Returns the length of the axis along which places are drawn.
    fn drawn_axis(&self, op: &'static str) -> Result<usize> {
        Domain::Floats.check(self.dtype(), op)?;
        checked_elements(self.shape(), op)?;
        let scalar = || Error::RankMismatch { op, expected: "1 or more", shape: self.shape().clone() };
        self.dims().last().copied().ok_or_else(scalar)
    }

    /// Returns the logits divided by `temperature`, in `f32`. `None` if it is 0, or too small to divide by.
    fn cooled(&self, temperature: f64, op: &'static str) -> Result<Option<Tensor>> {
        if !(temperature >= 0.0 && temperature.is_finite()) {
            let message =
                format!("the temperature {temperature} is negative or not finite; give 0 or a positive number");
            return Err(Error::InvalidArgument { op, message });
        }
        let scale = temperature.recip();
        if !(scale as f32).is_finite() {
            return Ok(None);
        }
        self.to_dtype(DType::F32)?.affine(scale, 0.0).map(Some)
    }

    /// Returns the `k` largest elements along the last axis, and their places.
    fn largest(&self, k: usize, op: &'static str) -> Result<(Tensor, Tensor)> {
        self.topk(k, -1, true).map_err(Error::named(op))
    }

    /// Adds noise of the Gumbel distribution to each element.
    fn perturbed(&self, op: &'static str) -> Result<Tensor> {
        self.add(&draw(Distribution::Gumbel, None, DType::F32, self.shape().clone(), self.device(), op)?)
    }

    /// Draws places for each row along the last axis, independently of each other. The elements are the logarithms of
    /// their weights, in `f32`.
    fn draw_places(&self, samples: usize, op: &'static str) -> Result<Tensor> {
        let (length, shape) = (self.dims()[self.rank() - 1], self.shape().with_length(self.rank() - 1, samples));
        let draws = checked_elements(&shape, op)?;
        checked_elements(&shape.iter().copied().chain([length]).collect(), op)?;
        let output = allocate(&shape, DType::U32, self.device(), op)?;
        if draws > 0 {
            let logits = self.contiguous()?;
            let device = self.device();
            let teams = device.tuning().reduce.teams;
            let per_draw = teams.div_ceil(draws).min(length / SHORTEST_CHUNK).max(1);
            let span = length.div_ceil(per_draw);
            let per_draw = length.div_ceil(span);
            let in_chunks = per_draw > 1;
            let team =
                if in_chunks { Team::Workgroup(workgroup::WORKGROUP) } else { choose_team(device, draws, length) };
            let states = if in_chunks {
                state_buffers(device, FoldOp::ArgMax, DType::F32, draws * per_draw, op)?
            } else {
                Vec::new()
            };
            let draw = Draw::next(device);
            let parameters = sample::Parameters {
                draws,
                per_row: samples,
                per_draw,
                span,
                length,
                offset: logits.layout().offset,
                generator: draw.parameters,
            };
            let kernel = Sample { team, generator: draw.generator, in_chunks };
            let outputs = if in_chunks { &states[..] } else { std::slice::from_ref(&output) };
            let buffers: SmallVec<[&Buffer; 4]> =
                [logits.buffer()?].into_iter().chain(outputs).chain(draw.stored.as_ref()).collect();
            device.runtime().run(Launch {
                kernel,
                buffers: &buffers,
                parameters,
                groups: team.groups(draws * per_draw),
            })?;
            if in_chunks {
                let sizes = [draws, per_draw, length];
                fold_states(device, FoldOp::ArgMax, DType::F32, sizes, states.clone(), &output)?;
            }
        }
        Ok(Tensor::from_buffer(output, shape, DType::U32, self.device()))
    }
}

/// Random numbers, evenly distributed from `low` up to but not including `high`, which are numbers of the dtype.
fn uniform([low, high]: [f64; 2], dtype: DType, shape: Shape, device: &Device, op: &'static str) -> Result<Tensor> {
    let range = high - low;
    if !(if dtype == DType::F64 { range } else { (range as f32).into() }).is_finite() {
        let message = format!("the range from {low} to {high} is wider than the largest {dtype}");
        return Err(Error::InvalidArgument { op, message });
    }
    let numbers = scaled(Distribution::Uniform, [low, range], dtype, shape, device, op)?;
    // Rounding may reach the end.
    if low < high { numbers.clamp(low, next_below(high, dtype)) } else { Ok(numbers) }
}

/// Returns a number as an element of a float dtype.
fn rounded(number: f64, dtype: DType, op: &'static str) -> Result<f64> {
    let bits = Word::of(number, dtype, op)?.bits();
    Ok(if dtype == DType::F64 { f64::from_bits(bits) } else { f32::from_bits(bits as u32).into() })
}

/// Random numbers of a distribution of floats, scaled by the second number and shifted by the first.
fn scaled(
    distribution: Distribution,
    [shift, scale]: [f64; 2],
    dtype: DType,
    shape: Shape,
    device: &Device,
    op: &'static str,
) -> Result<Tensor> {
    Domain::Floats.check(dtype, op)?;
    let numbers = draw(distribution, None, DType::F32, shape, device, op)?;
    numbers.to_dtype(dtype.widened())?.affine(scale, shift)?.to_dtype(dtype)
}

/// Returns random numbers of a distribution. Integers are from a range.
fn draw(
    distribution: Distribution,
    range: Option<RangeParameters>,
    dtype: DType,
    shape: Shape,
    device: &Device,
    op: &'static str,
) -> Result<Tensor> {
    let elements = checked_elements(&shape, op)?;
    let buffer = allocate(&shape, dtype, device, op)?;
    if elements > 0 {
        let draw = Draw::next(device);
        let parameters = random::Parameters { count: elements, generator: draw.parameters, range };
        let groups = elements.div_ceil(4).div_ceil(WORKGROUP as usize);
        let kernel = Random { distribution, generator: draw.generator };
        let buffers: SmallVec<[&Buffer; 2]> = [&buffer].into_iter().chain(draw.stored.as_ref()).collect();
        device.runtime().run(Launch { kernel, buffers: &buffers, parameters, groups })?;
    }
    Ok(Tensor::from_buffer(buffer, shape, dtype, device))
}

/// What the random bits of a tensor depend on.
struct Draw {
    generator: Generator,
    parameters: GeneratorParameters,
    /// The buffer of a stored generator.
    stored: Option<Buffer>,
}

impl Draw {
    /// Returns what the next tensor of a device depends on. What is captured draws other numbers in each run.
    fn next(device: &Device) -> Draw {
        match device.runtime().capturing() {
            None => {
                let [key_low, key_high, sequence] = device.runtime().next_random(1);
                let parameters = GeneratorParameters { key_low, key_high, sequence };
                Draw { generator: Generator::Given, parameters, stored: None }
            }
            // To warm up is to compile what will run without a capture.
            Some(capture) if capture.discards() => {
                let parameters = GeneratorParameters { key_low: 0, key_high: 0, sequence: 0 };
                Draw { generator: Generator::Given, parameters, stored: None }
            }
            Some(capture) => {
                let parameters = GeneratorParameters { key_low: 0, key_high: 0, sequence: capture.next_draw() };
                Draw { generator: Generator::Stored, parameters, stored: Some(capture.generator().clone()) }
            }
        }
    }
}

/// Returns the largest number of a float dtype that is smaller than `number`.
fn next_below(number: f64, dtype: DType) -> f64 {
    let below = |bits: u16| match bits {
        // The next number below both zeros is the negative subnormal next to them.
        0 | 0x8000 => 0x8001,
        bits if bits < 0x8000 => bits - 1,
        bits => bits + 1,
    };
    match dtype {
        DType::F16 => f16::from_bits(below(f16::from_f64(number).to_bits())).into(),
        DType::F64 => number.next_down(),
        DType::BF16 => bf16::from_bits(below(bf16::from_f64(number).to_bits())).into(),
        _ => (number as f32).next_down().into(),
    }
}
