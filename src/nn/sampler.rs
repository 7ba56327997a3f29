//! Drawing the next tokens of sequences.

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::device::Device;
use crate::engine::launch::Launch;
use crate::kernels::next_token::{IN_PROMPT, MOST_TOKENS, Settings};
use crate::kernels::store;
use crate::lazy::allocate;
use crate::tensor::Tensor;
use std::fmt;

/// How a [`Sampler`] draws the tokens of a sequence.
///
/// These rules apply in this order. `p` are the probabilities, and the defaults change nothing.
///
/// | setting | default | what it does |
/// |---|---|---|
/// | [`repetition`](Self::repetition) `r` | 1 | logits of tokens in the text: `x / r` if `x > 0`, else `x r` (1) |
/// | [`frequency`](Self::frequency) `f` | 0 | subtracts `f n` from logits of tokens that were drawn `n` times (2) |
/// | [`presence`](Self::presence) `q` | 0 | subtracts `q` from logits of tokens that were drawn (2) |
/// | [`temperature`](Self::temperature) `t` | 1 | divides the logits: `p = softmax(x / t)` |
/// | [`min_p`](Self::min_p) `m` | 0 | leaves out tokens with `p < m max(p)` (3) |
/// | [`top_k`](Self::top_k) `k` | none | leaves out tokens that are less probable than the `k`th one |
/// | [`top_p`](Self::top_p) `c` | none | leaves out tokens if more probable ones have `c` of the sum (4) |
///
/// 1. N. Keskar et al., "CTRL: A Conditional Transformer Language Model for Controllable Generation", 2019. The text is
///    what was [observed](Sampler::observe) and what was drawn.
/// 2. As in OpenAI's API. Tokens of the prompt do not count.
/// 3. M. Nguyen et al., "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs", 2024.
/// 4. A. Holtzman et al., "The Curious Case of Neural Text Degeneration", 2020: nucleus sampling.
///
/// ```
/// use marquetry::nn::Sampling;
/// let sampling = Sampling::default().temperature(0.7).top_k(40).top_p(0.95).repetition(1.1).seed(1);
/// # let _ = sampling;
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    temperature: f32,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: f32,
    repetition: f32,
    presence: f32,
    frequency: f32,
    seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        let (temperature, repetition) = (1.0, 1.0);
        let (top_k, top_p, min_p, presence, frequency, seed) = (None, None, 0.0, 0.0, 0.0, 0);
        Sampling { temperature, top_k, top_p, min_p, repetition, presence, frequency, seed }
    }
}

impl Sampling {
    /// Returns settings that take the most probable token, the first one of several.
    pub fn greedy() -> Self {
        Sampling::default().temperature(0.0)
    }

    /// Sets what logits are divided by: 0 or more. At 0, the most probable token is taken.
    #[must_use]
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.temperature = temperature;
        self
    }

    /// Leaves out tokens that are less probable than the `tokens`th one. Those that are as probable can be drawn. 1 is
    /// the same as temperature 0.
    #[must_use]
    pub fn top_k(mut self, tokens: impl Into<Option<usize>>) -> Self {
        self.top_k = tokens.into();
        self
    }

    /// Draws among the most probable tokens whose probabilities add up to `p`, from 0 to 1. The token that reaches the
    /// sum is one of them, and so are others that are as probable. The probabilities of the tokens that the other rules
    /// leave add up to 1.
    #[must_use]
    pub fn top_p(mut self, p: impl Into<Option<f32>>) -> Self {
        self.top_p = p.into();
        self
    }

    /// Sets the least probability of a token as a part of the largest one, from 0 to 1.
    #[must_use]
    pub fn min_p(mut self, p: f32) -> Self {
        self.min_p = p;
        self
    }

    /// Sets the penalty for tokens that stand in the text: more than 0. Above 1 it makes them less probable.
    #[must_use]
    pub fn repetition(mut self, penalty: f32) -> Self {
        self.repetition = penalty;
        self
    }

    /// Sets the penalty for tokens that have been drawn.
    #[must_use]
    pub fn presence(mut self, penalty: f32) -> Self {
        self.presence = penalty;
        self
    }

    /// Sets the penalty for each time that a token has been drawn.
    #[must_use]
    pub fn frequency(mut self, penalty: f32) -> Self {
        self.frequency = penalty;
        self
    }

    /// Sets the seed of the random numbers.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Returns an error if a setting is out of range, as [`Sampler::start`] does.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], which names the setting.
    pub fn check(&self) -> Result<()> {
        let Sampling { temperature, top_k, top_p, min_p, repetition, presence, frequency, .. } = *self;
        let checks = [
            (
                "temperature",
                temperature,
                temperature >= 0.0 && temperature.is_finite(),
                "must be 0 or more, and finite",
            ),
            ("top_k", top_k.map_or(1.0, |k| k as f32), top_k != Some(0), "must be 1 or more"),
            ("top_p", top_p.unwrap_or(1.0), (0.0..=1.0).contains(&top_p.unwrap_or(1.0)), "must be from 0 to 1"),
            ("min_p", min_p, (0.0..=1.0).contains(&min_p), "must be from 0 to 1"),
            ("repetition", repetition, repetition.is_normal() && repetition > 0.0, "must be a normal number above 0"),
            ("presence", presence, presence.is_finite(), "must be finite"),
            ("frequency", frequency, frequency.is_finite(), "must be finite"),
        ];
        match checks.into_iter().find(|(.., holds, _)| !holds) {
            None => Ok(()),
            Some((name, number, _, rule)) => {
                Err(Error::InvalidArgument { op: "Sampling", message: format!("`{name}` {rule}, not {number}") })
            }
        }
    }

    /// Returns what the kernel needs.
    fn settings(&self) -> Result<Settings> {
        self.check()?;
        let Sampling { temperature, top_k, top_p, min_p, repetition, presence, frequency, seed } = *self;
        let temperature = if top_k == Some(1) { 0.0 } else { temperature };
        let top_k = top_k.and_then(|k| u32::try_from(k).ok());
        let top_p = top_p.filter(|&p| p < 1.0);
        Ok(Settings { temperature, top_k, top_p, min_p, repetition, presence, frequency, seed })
    }
}

const START: &str = "start";
const OBSERVE: &str = "observe";
const SAMPLE: &str = "sample";

/// The most sequences of a sampler. One workgroup draws for each, and all devices can launch as many.
const MOST_SEQUENCES: usize = 65_535;

/// Draws the next tokens of several sequences on the device, each by its own [`Sampling`].
///
/// Settings, random numbers and the tokens of each sequence so far are in memory of the device, and
/// [`sample`](Self::sample) is one kernel. So a captured [`Step`](crate::Step) can draw, and the next step can begin
/// before the token has come to the host. It serves other settings, too.
///
/// The tokens of a sequence depend on its settings, its seed and its logits alone, not on the other sequences. Random
/// bits come from Threefry-2x32 (see [`Tensor::rand`]), with the seed as key. They are the same on all devices. So
/// devices draw the same tokens from the same logits, unless a draw lies within 1e-5 of the limit between two tokens,
/// or two tokens are as probable within 2e-5. The reason is that probabilities are rounded to steps of a factor
/// `2^(2^-16)`: those in the same step count as equal. Tokens with less than 2^-32 of the largest probability are never
/// drawn.
///
/// ```
/// use marquetry::nn::{Sampler, Sampling};
/// use marquetry::{Device, Tensor};
///
/// let device = Device::best()?;
/// // Two sequences over a vocabulary of four tokens.
/// let mut sampler = Sampler::new(4, 2, &device)?;
/// sampler.start(0, &Sampling::greedy())?;
/// sampler.start(1, &Sampling::default().top_k(2).frequency(10.0).seed(7))?;
/// let logits = Tensor::new([[1f32, 4.0, 2.0, 3.0], [1.0, 4.0, 2.0, 3.0]], &device)?;
/// let first = sampler.sample(&logits)?.to_vec::<u32>()?;
/// assert_eq!(first[0], 1);
/// assert!(first[1] == 1 || first[1] == 3);
/// // The penalty for what was drawn is large.
/// assert_ne!(sampler.sample(&logits)?.to_vec::<u32>()?[1], first[1]);
/// # Ok::<(), marquetry::Error>(())
/// ```
///
/// To forbid tokens, replace their logits by minus infinity: the kernel that computes the logits does that on the way.
///
/// ```
/// # use marquetry::nn::{Sampler, Sampling};
/// # use marquetry::{Device, Tensor};
/// # let device = Device::best()?;
/// # let mut sampler = Sampler::new(4, 1, &device)?;
/// # sampler.start(0, &Sampling::greedy())?;
/// let logits = Tensor::new([[1f32, 4.0, 2.0, 3.0]], &device)?;
/// let forbidden = Tensor::new([false, true, false, false], &device)?;
/// let allowed = logits.masked_fill(&forbidden, f32::NEG_INFINITY)?;
/// assert_eq!(sampler.sample(&allowed)?.to_vec::<u32>()?, [3]);
/// # Ok::<(), marquetry::Error>(())
/// ```
pub struct Sampler {
    /// `(sequences, Settings::WORDS)`.
    settings: Tensor,
    /// `(sequences, vocabulary)`: whether each token stands in the prompt, and how often it was drawn.
    history: Tensor,
    started: Vec<bool>,
}

impl Sampler {
    /// Returns a sampler for some sequences over a vocabulary. It takes 4 bytes for each token of the vocabulary and
    /// sequence.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no tokens or sequences, or for more than 524,288 tokens or 65,535 sequences;
    /// [`Error::SizeOverflow`], [`Error::OutOfMemory`].
    pub fn new(vocabulary: usize, sequences: usize, device: &Device) -> Result<Self> {
        const OP: &str = "Sampler::new";
        if !(1..=MOST_TOKENS).contains(&vocabulary) || !(1..=MOST_SEQUENCES).contains(&sequences) {
            let message = format!(
                "a vocabulary of {vocabulary} tokens and {sequences} sequences; a sampler has 1 to {MOST_TOKENS} \
                 tokens, and 1 to {MOST_SEQUENCES} sequences"
            );
            return Err(Error::InvalidArgument { op: OP, message });
        }
        let zeros = |columns| -> Result<Tensor> {
            let shape = (sequences, columns).into();
            let buffer = allocate(&shape, DType::U32, device, OP)?;
            Ok(Tensor::from_buffer(buffer, shape, DType::U32, device))
        };
        let (settings, history) = (zeros(Settings::WORDS)?, zeros(vocabulary)?);
        Ok(Sampler { settings, history, started: vec![false; sequences] })
    }

    /// Returns the number of tokens in the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.history.dims()[1]
    }

    /// Returns the number of sequences.
    pub fn sequences(&self) -> usize {
        self.started.len()
    }

    /// Begins a sequence: forgets its tokens, and sets how its next ones are drawn. After an error, the sequence has
    /// not begun.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a sequence that the sampler does not have, for settings out of range, and inside
    /// a capture; [`Error::OutOfMemory`].
    pub fn start(&mut self, sequence: usize, sampling: &Sampling) -> Result<()> {
        let history = self.history_of(sequence, START)?;
        let words = sampling.settings()?.words();
        self.started[sequence] = false;
        let none = Tensor::zeros(history.shape(), DType::U32, history.device())?;
        self.history.write_part(history.layout(), &none)?;
        let quads = Settings::WORDS / 4;
        let parameters = store::Parameters { first: sequence * quads, words: words.into_iter().collect() };
        let (kernel, buffers) = (store::Store { quads }, &[self.settings.buffer()?]);
        history.device().runtime().run(Launch { kernel, buffers, parameters, groups: 1 })?;
        self.started[sequence] = true;
        Ok(())
    }

    /// Tells a sequence which tokens its text has besides those that are drawn: the prompt. They count for
    /// [`repetition`](Sampling::repetition).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a sequence that the sampler does not have or that has not begun, for a token
    /// beyond the vocabulary, and inside a capture; [`Error::OutOfMemory`].
    pub fn observe(&mut self, sequence: usize, tokens: &[u32]) -> Result<()> {
        let history = self.history_of(sequence, OBSERVE)?;
        self.check_started(sequence, OBSERVE)?;
        let vocabulary = self.vocabulary();
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
            let message = format!("token {token} is beyond the vocabulary of {vocabulary} tokens");
            return Err(Error::InvalidArgument { op: OBSERVE, message });
        }
        let mut seen = vec![0; vocabulary];
        for &token in tokens {
            seen[token as usize] = IN_PROMPT;
        }
        let seen = Tensor::from_slice(&seen, history.shape(), history.device())?;
        self.history.write_part(history.layout(), &history.bitwise_or(&seen)?)
    }

    /// Returns the history of a sequence, which the host is going to change.
    fn history_of(&self, sequence: usize, op: &'static str) -> Result<Tensor> {
        self.history.device().runtime().refuse_capture(op, "it changes what the sampler knows")?;
        if sequence >= self.sequences() {
            let message = format!("the sampler has {} sequences, and no sequence {sequence}", self.sequences());
            return Err(Error::InvalidArgument { op, message });
        }
        self.history.narrow(0, sequence, 1)
    }

    fn check_started(&self, sequence: usize, op: &'static str) -> Result<()> {
        if self.started[sequence] {
            return Ok(());
        }
        let message = format!("sequence {sequence} has not begun; call `start` first");
        Err(Error::InvalidArgument { op, message })
    }

    /// Returns the next token of each sequence, `(sequences)`, `u32`. The logits are `(sequences, vocabulary)`, `f32`,
    /// `f16` or `bf16`. NaN and numbers up to -3.4e38 count as minus infinity. If no logit of a sequence is more than
    /// that, its token is 0.
    ///
    /// The kernel is recorded now, behind all work that was recorded before. It notes the tokens in the sampler.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`], [`Error::DeviceMismatch`]; [`Error::InvalidArgument`] for logits of another shape,
    /// or if a sequence has not begun; [`Error::Unsupported`] if the device has no atomic operations;
    /// [`Error::OutOfMemory`].
    pub fn sample(&self, logits: &Tensor) -> Result<Tensor> {
        let dtype = logits.dtype();
        self.history.check_same_device(logits, SAMPLE)?;
        if ![DType::F32, DType::F16, DType::BF16].contains(&dtype) {
            return Err(Error::UnsupportedDType { op: SAMPLE, dtype, expected: "f32, f16 or bf16" });
        }
        let (sequences, vocabulary) = (self.sequences(), self.vocabulary());
        if logits.dims() != [sequences, vocabulary] {
            let message = format!(
                "logits of shape {}; {sequences} sequences over {vocabulary} tokens need ({sequences}, {vocabulary})",
                logits.shape()
            );
            return Err(Error::InvalidArgument { op: SAMPLE, message });
        }
        (0..sequences).try_for_each(|sequence| self.check_started(sequence, SAMPLE))?;
        logits.next_tokens(&self.settings, &self.history, SAMPLE)
    }
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sequences, vocabulary) = (self.sequences(), self.vocabulary());
        write!(f, "Sampler({sequences} sequences over {vocabulary} tokens; on {})", self.history.device().id())
    }
}
