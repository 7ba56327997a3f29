//! Tensors of random numbers, and places drawn at random.

use super::choose_team;
use crate::base::dtype::{DType, Element};
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::base::shape::checked_elements;
use crate::base::word::Word;
use crate::device::Device;
use crate::engine::launch::Launch;
use crate::kernels::expr::Domain;
use crate::kernels::random::{self, Distribution, GeneratorParameters, Random, RangeParameters, WORKGROUP};
use crate::kernels::sample::{self, Sample};
use crate::lazy::allocate;
use crate::tensor::Tensor;
use half::{bf16, f16};

impl Tensor {
    /// Random numbers, evenly distributed from `low` up to but not including `high`.
    ///
    /// The generator is counter-based: the same seed ([`Device::set_seed`]) and the same sequence of calls give the
    /// same random bits on every device; scaling them may round differently. Every number is drawn with 24 bits, those
    /// of `f64` too.
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
        let (low, high) = (low.to_f64(), high.to_f64());
        let range = high - low;
        if !(if T::DTYPE == DType::F64 { range } else { (range as f32).into() }).is_finite() {
            let message = format!("the range from {low} to {high} is wider than the largest {}", T::DTYPE);
            return Err(Error::InvalidArgument { op: "rand", message });
        }
        let numbers = scaled(Distribution::Uniform, [low, range], T::DTYPE, shape.into(), device, "rand")?;
        // Rounding may reach the end.
        if low < high { numbers.clamp(low, next_below(high, T::DTYPE)) } else { Ok(numbers) }
    }

    /// Random numbers from the normal distribution. See [`rand`](Self::rand) for the generator; the numbers of two
    /// devices may differ in the last bits: each is within 4 ulp of what the random bits stand for, of `f32`, in which numbers
    /// of `f64` are drawn, too.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for integers; [`Error::SizeOverflow`]; [`Error::OutOfMemory`].
    pub fn randn<T: Element>(mean: T, deviation: T, shape: impl Into<Shape>, device: &Device) -> Result<Tensor> {
        let numbers = [mean.to_f64(), deviation.to_f64()];
        scaled(Distribution::Normal, numbers, T::DTYPE, shape.into(), device, "randn")
    }

    /// Random numbers from the Gumbel distribution, `location - scale * log(-log(u))` for uniform numbers `u`. See
    /// [`rand`](Self::rand) for the generator; each is within 4 ulp of `f32`, in which they are drawn, of what the random bits
    /// stand for.
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

    /// Random integers from `low` up to but not including `high` (PyTorch's `randint`): the same on every device. See
    /// [`rand`](Self::rand) for the generator.
    ///
    /// Each is the upper half of the product of 32 random bits (of `i64` 64) and the number of integers, `n` (D. Lemire,
    /// "Fast Random Integer Generation in an Interval", 2019, without the rejection): their probabilities differ by at
    /// most 2^-32 (2^-64), and not at all where `n` is a power of two.
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
    /// [`Error::UnsupportedDType`] for floats; [`Error::InvalidArgument`] where `low` is not below `high`;
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
        let length = Word { bits: high.to_bits().wrapping_sub(low.to_bits()), dtype: wide };
        let range = RangeParameters { length: length.words().collect(), first: Word::new(low).words().collect() };
        draw(distribution, Some(range), wide, shape.into(), device, OP)?.to_dtype(T::DTYPE)
    }

    /// Ones, each with the probability that the element at its place tells, and zeros; in the dtype of this tensor, which
    /// holds floats. What is below 0 or NaN counts as 0, what is above 1 as 1.
    ///
    /// The uniform numbers behind it are those of [`rand`](Self::rand), multiples of 2^-24: the result is the same on every
    /// device.
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

    /// Places along the last axis drawn at random, in proportion to the weights there, which are floats and need not add
    /// up to 1; `u32`. The result's last axis has the samples, in the order in which they are drawn.
    ///
    /// With replacement, each is drawn independently of the others. Without it, no place is drawn twice: the samples are
    /// those of the largest `log(weight)`, in `f32`, with noise of the Gumbel distribution added (W. Kool et al., "Stochastic Beams
    /// and Where to Find Them", 2019; the same as P. Efraimidis and P. Spirakis, 2006, draw by exponential numbers).
    ///
    /// No weight may be negative or NaN, and as many as are to be drawn without replacement (else one) must be above 0: on
    /// the device, where the weights are, nothing can be reported, and places come out that mean nothing.
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
    /// samples of an empty axis, or for more samples than places without replacement; [`Error::SizeOverflow`] where the
    /// random numbers behind the samples, one per sample and weight, are too many to be counted; [`Error::OutOfMemory`].
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

    /// `k` different places along the last axis, drawn at random with the probabilities `softmax(logits / temperature)`
    /// (Gumbel top-k sampling, see [`multinomial`](Self::multinomial)), computed in `f32`; `u32`, in the order in which they are
    /// drawn. At temperature 0 these are the places of the `k` largest logits.
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
    /// [`Error::UnsupportedDType`] for integers; [`Error::RankMismatch`] for a scalar; [`Error::InvalidArgument`] for more
    /// samples than places, or a temperature that is negative or not finite; [`Error::SizeOverflow`],
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

    /// One place along the last axis, drawn at random from those of the `k` largest logits with the probabilities
    /// `softmax(logits / temperature)` among these, computed in `f32`; `u32`, without that axis. The next token of a language model, say. At
    /// temperature 0 it is the place of the largest logit; `k` from the axis's length on admits all places.
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
    /// [`Error::UnsupportedDType`] for integers; [`Error::RankMismatch`] for a scalar; [`Error::InvalidArgument`] for no
    /// places to draw from, or a temperature that is negative or not finite; [`Error::SizeOverflow`],
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
            let team = choose_team(self.device(), draws, length);
            let parameters = sample::Parameters {
                draws,
                per_row: samples,
                length,
                offset: logits.layout().offset,
                generator: next_random(self.device()),
            };
            let (buffers, groups) = ([&*logits.buffer()?, &output], team.groups(draws));
            self.device().runtime().run(Launch { kernel: Sample { team }, buffers: &buffers, parameters, groups })?;
        }
        Ok(Tensor::from_buffer(output, shape, DType::U32, self.device()))
    }
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
        let parameters = random::Parameters { count: elements, generator: next_random(device), range };
        let groups = elements.div_ceil(4).div_ceil(WORKGROUP as usize);
        device.runtime().run(Launch { kernel: Random { distribution }, buffers: &[&buffer], parameters, groups })?;
    }
    Ok(Tensor::from_buffer(buffer, shape, dtype, device))
}

/// Returns what the random bits of the next tensor depend on.
fn next_random(device: &Device) -> GeneratorParameters {
    let [key_low, key_high, sequence] = device.runtime().next_random();
    GeneratorParameters { key_low, key_high, sequence }
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
