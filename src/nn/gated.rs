//! Linear layers with gates.

use super::{Linear, RmsNorm};
use crate::base::error::Result;
use crate::kernels::expr::UnaryOp;
use crate::tensor::Tensor;

/// The function of a [`GatedLinear`] layer's gates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Gate {
    /// [`Tensor::silu`], as in Llama.
    Silu,
    /// [`Tensor::gelu`].
    Gelu,
    /// [`Tensor::gelu_tanh`], as in Gemma.
    GeluTanh,
    /// The square of [`Tensor::relu`], as in BitNet b1.58 2B4T: D. So et al., "Primer: Searching for Efficient
    /// Transformers for Language Modeling", 2021.
    ReluSquared,
}

/// A linear layer whose first outputs are gates for the other ones: `gate(x w^T) * (x v^T)`. The first half of a
/// language model's feed-forward network. N. Shazeer, "GLU Variants Improve Transformer", 2020.
///
/// ```
/// use marquetry::{Device, Tensor, nn::{Gate, GatedLinear, Linear}};
///
/// let device = Device::best()?;
/// // The weights of a gate, and of the number that it multiplies.
/// let both = Linear::new(Tensor::new([[0f32, 40.0], [1.0, 2.0]], &device)?, None);
/// let layer = GatedLinear::new(both, Gate::Silu);
/// assert_eq!(layer.forward(&Tensor::new([[3f32, 1.0]], &device)?)?.to_vec::<f32>()?, [200.0]);
/// # Ok::<(), marquetry::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct GatedLinear {
    both: Linear,
    gate: Gate,
}

impl GatedLinear {
    /// Returns the layer of a linear layer with twice as many outputs: all gates, then what they gate, such as
    /// [`Linear::load_packed`] returns.
    pub fn new(both: Linear, gate: Gate) -> GatedLinear {
        GatedLinear { both, gate }
    }

    /// Returns the layer's output. If there is no bias, one kernel computes it in these cases. It does not round the
    /// gates and what they gate.
    ///
    /// | weight | rows |
    /// |---|---|
    /// | floats | one or two |
    /// | 16-bit floats, at least 64 inputs and outputs, on NVIDIA's matrix units | up to 16 |
    /// | quantised, and `x` is `f16`, on NVIDIA's matrix units | up to 16 |
    ///
    /// # Errors
    /// As [`Linear::forward`]; [`Error::RangeOutOfBounds`](crate::Error::RangeOutOfBounds) for an odd number of
    /// outputs.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let at_once = self.gate.function().map(|gate| self.both.at_once(None, Some(gate), x)).transpose()?;
        match at_once.flatten() {
            Some(y) => Ok(y),
            None => self.gate.apply(&self.both.forward(x)?),
        }
    }

    /// Returns the layer's output for the norm of `x`. See [`Linear::forward_norm`].
    ///
    /// # Errors
    /// As [`RmsNorm::forward`] and [`forward`](Self::forward).
    pub fn forward_norm(&self, norm: &RmsNorm, x: &Tensor) -> Result<Tensor> {
        let Some(gate) = self.gate.function() else { return self.gate.apply(&self.both.forward_norm(norm, x)?) };
        if let Some(y) = self.both.at_once(Some(norm), Some(gate), x)? {
            return Ok(y);
        }
        match self.both.at_once(Some(norm), None, x)? {
            Some(both) => self.gate.apply(&both),
            None => self.forward(&norm.forward(x)?),
        }
    }
}

impl Gate {
    /// Returns the first half of the last axis, with the function applied, times the second half.
    ///
    /// ```
    /// use marquetry::{Device, Tensor, nn::Gate};
    /// let device = Device::best()?;
    /// let both = Tensor::new([[3f32, -1.0, 10.0, 20.0]], &device)?;
    /// assert_eq!(Gate::ReluSquared.apply(&both)?.to_vec::<f32>()?, [90.0, 0.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::RangeOutOfBounds`](crate::Error::RangeOutOfBounds) for an odd length;
    /// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) for integers.
    pub fn apply(self, both: &Tensor) -> Result<Tensor> {
        let outputs = both.dim(-1)?.div_ceil(2);
        let (gates, gated) = (both.narrow(-1, 0, outputs)?, both.narrow(-1, outputs, outputs)?);
        let gates = match self {
            Gate::Silu => gates.silu(),
            Gate::Gelu => gates.gelu(),
            Gate::GeluTanh => gates.gelu_tanh(),
            Gate::ReluSquared => gates.relu()?.sqr(),
        };
        gates?.mul(&gated)
    }

    /// Returns the function, if the kernel of a product has it.
    fn function(self) -> Option<UnaryOp> {
        match self {
            Gate::Silu => Some(UnaryOp::Silu),
            Gate::Gelu => Some(UnaryOp::Gelu),
            Gate::GeluTanh => Some(UnaryOp::GeluTanh),
            Gate::ReluSquared => None,
        }
    }
}
