//! Rotary position embeddings, with their tables.

use crate::base::error::{Error, Result};
use crate::device::Device;
use crate::kernels::rotary::Pairs;
use crate::ops::Rotation;
use crate::tensor::Tensor;

/// Rotary position embeddings for positions from 0 on. See [`Tensor::rope`].
///
/// ```
/// use marquetry::{DType, Device, Tensor, nn::Rope};
///
/// let device = Device::best()?;
/// let rope = Rope::new(64, 10_000.0, 128, &device)?;
/// // Four heads of a token that stands at position 7.
/// let query = Tensor::ones((1, 4, 1, 64), DType::F32, &device)?;
/// assert_eq!(rope.forward(&query, 7)?.dims(), [1, 4, 1, 64]);
/// # Ok::<(), marquetry::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Rope {
    cos: Tensor,
    sin: Tensor,
    neighbours: bool,
}

impl Rope {
    /// Returns the embedding of the first `dim` features, for `length` positions. The pairs are features `i` and
    /// `i + dim / 2`.
    ///
    /// # Errors
    /// As [`Tensor::rotary_tables`].
    pub fn new(dim: usize, theta: f64, length: usize, device: &Device) -> Result<Rope> {
        let (cos, sin) = positions(length, device)?.rotary_tables(dim, theta)?;
        Rope::of_tables(cos, sin)
    }

    /// Returns the embedding with a frequency for each pair, in radians per position. Cosines and sines are multiplied
    /// by `magnitude`. Models scale their frequencies in such ways to read longer texts than they were trained on (B.
    /// Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", 2023).
    ///
    /// ```
    /// # use marquetry::{Device, nn::Rope};
    /// # let device = Device::best()?;
    /// // 64 features, whose positions are a fourth as far from each other.
    /// let frequencies: Vec<f64> = (0..32).map(|i| 10_000f64.powf(-f64::from(i) / 32.0) / 4.0).collect();
    /// let rope = Rope::from_frequencies(&frequencies, 1.0, 512, &device)?;
    /// assert_eq!(rope.length(), 512);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a frequency or a magnitude that is not finite; [`Error::SizeOverflow`],
    /// [`Error::OutOfMemory`].
    pub fn from_frequencies(frequencies: &[f64], magnitude: f64, length: usize, device: &Device) -> Result<Rope> {
        const OP: &str = "from_frequencies";
        if let Some(number) = frequencies.iter().chain([&magnitude]).find(|number| !(**number as f32).is_finite()) {
            let message = format!("frequencies and magnitude must be finite in f32, not {number}");
            return Err(Error::InvalidArgument { op: OP, message });
        }
        let (cos, sin) = positions(length, device)?.cosines_and_sines(frequencies.to_vec(), OP)?;
        Rope::of_tables(cos.affine(magnitude, 0.0)?, sin.affine(magnitude, 0.0)?)
    }

    fn of_tables(cos: Tensor, sin: Tensor) -> Result<Rope> {
        // They are read in parts.
        cos.realize()?;
        sin.realize()?;
        Ok(Rope { cos, sin, neighbours: false })
    }

    /// Pairs features `2 i` and `2 i + 1` instead, as [`Tensor::rope_i`] does. GGUF files have the weights of Llama
    /// models in the order for this.
    pub fn neighbours(mut self) -> Rope {
        self.neighbours = true;
        self
    }

    /// Returns the number of positions.
    pub fn length(&self) -> usize {
        self.cos.dims()[0]
    }

    /// Returns what a kernel needs to rotate by the positions of its tokens.
    pub(super) fn rotation(&self) -> Rotation<'_> {
        let pairs = if self.neighbours { Pairs::Neighbours } else { Pairs::Halves };
        Rotation { pairs, cos: &self.cos, sin: &self.sin }
    }

    /// Returns `x`, `(.., tokens, features)`, whose first token stands at position `start`.
    ///
    /// # Errors
    /// As [`Tensor::rope`]; [`Error::RangeOutOfBounds`](crate::Error::RangeOutOfBounds) if the tokens go beyond the
    /// positions.
    pub fn forward(&self, x: &Tensor, start: usize) -> Result<Tensor> {
        let tokens = x.dim(-2)?;
        let (cos, sin) = (self.cos.narrow(0, start, tokens)?, self.sin.narrow(0, start, tokens)?);
        if self.neighbours { x.rope_i(&cos, &sin) } else { x.rope(&cos, &sin) }
    }
}

fn positions(length: usize, device: &Device) -> Result<Tensor> {
    Tensor::arange(0, u32::try_from(length).unwrap_or(u32::MAX), device)
}
