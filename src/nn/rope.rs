//! Rotary position embeddings, with their tables.

use crate::base::error::Result;
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
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let positions = Tensor::arange(0, length, device)?;
        let (cos, sin) = positions.rotary_tables(dim, theta)?;
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
