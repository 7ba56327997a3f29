//! PP-OCRv4's text recogniser: LCNetV3, then two layers of attention along the line (SVTR). The result is the logit of
//! every character for each place along the line. One of the characters is "none" (connectionist temporal
//! classification).
//!
//! Y. Du et al., "SVTR: Scene Text Recognition with a Single Visual Model", 2022; A. Graves et al., "Connectionist
//! Temporal Classification", 2006.

use crate::layers::{Backbone, Filter, LcNet};
use crate::weights::Weights;
use anyhow::{Result, ensure};
use marquetry::nn::{Conv2d, LayerNorm, Linear};
use marquetry::{Device, PoolConfig, Tensor};
use std::path::Path;

/// The height of a line for the recogniser.
pub const HEIGHT: usize = 48;

const BACKBONE: Backbone = Backbone {
    stem: (10, 2),
    first_layer: 157,
    stages: &[
        &[([1, 1], None)],
        &[([1, 1], None), ([1, 1], None)],
        &[([2, 1], None), ([1, 1], None)],
        &[([1, 2], None), ([1, 1], None), ([1, 1], None), ([1, 1], None), ([1, 1], None)],
        &[([2, 1], Some(106)), ([1, 1], Some(117)), ([2, 1], None), ([1, 1], None)],
    ],
};

/// The window, down and across, over which the backbone's last picture is averaged.
const POOL: [usize; 2] = [3, 2];
const HEADS: usize = 8;

/// Loads a linear layer. In the file, its weight is `[in, out]`.
fn linear(weights: &Weights, n: usize) -> Result<Linear> {
    let part = |part: &str| weights.tensor(&format!("linear_{n}.{part}"));
    Ok(Linear::new(part("w_0")?.t()?, part("b_0")?))
}

fn layer_norm(weights: &Weights, n: usize, eps: f64) -> Result<LayerNorm> {
    let part = |part: &str| weights.tensor(&format!("layer_norm_{n}.{part}"));
    Ok(LayerNorm::new(part("w_0")?, part("b_0")?, eps))
}

/// Attention between the places along a line, then a small network for each place. Both take their input normalised,
/// and their output is added to it.
struct Layer {
    attention_norm: LayerNorm,
    /// Query, key and value in one.
    projection: Linear,
    output: Linear,
    norm: LayerNorm,
    inner: [Linear; 2],
}

impl Layer {
    /// Loads the layer whose first normalisation and first linear layer have these numbers.
    fn load(weights: &Weights, norm: usize, first: usize) -> Result<Self> {
        const EPS: f64 = 1e-5;
        Ok(Layer {
            attention_norm: layer_norm(weights, norm, EPS)?,
            projection: linear(weights, first)?,
            output: linear(weights, first + 1)?,
            norm: layer_norm(weights, norm + 1, EPS)?,
            inner: [linear(weights, first + 2)?, linear(weights, first + 3)?],
        })
    }

    /// `softmax(Q K^T / sqrt(d)) V` in several heads.
    fn attend(&self, x: &Tensor) -> marquetry::Result<Tensor> {
        let [batch, places, hidden] = [x.dim(0)?, x.dim(1)?, x.dim(2)?];
        let width = hidden / HEADS;
        // [batch, places, 3 hidden] -> [3, batch, heads, places, width]
        let parts = self.projection.forward(x)?.reshape([batch, places, 3, HEADS, width])?.permute([2, 0, 3, 1, 4])?;
        let scores = (parts.i(0)?.matmul(&parts.i(1)?.t()?)? * (1.0 / (width as f64).sqrt()))?;
        let mixed = scores.softmax(-1)?.matmul(&parts.i(2)?)?;
        self.output.forward(&mixed.transpose(1, 2)?.reshape((batch, places, hidden))?)
    }

    fn forward(&self, x: &Tensor) -> marquetry::Result<Tensor> {
        let x = x.add(&self.attend(&self.attention_norm.forward(x)?)?)?;
        let inner = self.inner[0].forward(&self.norm.forward(&x)?)?.silu()?;
        x.add(&self.inner[1].forward(&inner)?)
    }
}

/// A convolution with batch normalisation and `x sigmoid(x)`.
struct Swish(Conv2d);

impl Swish {
    fn load(weights: &Weights, conv: usize, norm: usize) -> Result<Self> {
        Ok(Swish(Filter::load(weights, conv)?.batch_norm(&format!("batch_norm2d_{norm}"))?.conv([1, 1])?))
    }

    fn forward(&self, x: &Tensor) -> marquetry::Result<Tensor> {
        self.0.forward(x)?.silu()
    }
}

/// The network with its weights on a device.
pub struct Recogniser {
    backbone: LcNet,
    /// Two convolutions lead into the attention, one leads out of it, and two join its result with its input.
    inward: [Swish; 2],
    layers: [Layer; 2],
    norm: LayerNorm,
    outward: Swish,
    joined: [Swish; 2],
    characters: Linear,
    alphabet: Vec<String>,
}

impl Recogniser {
    /// Reads `ch_PP-OCRv4_rec_infer.onnx`.
    pub fn load(path: &Path, device: &Device) -> Result<Self> {
        let weights = Weights::load(path, device)?;
        let logits = weights.array("linear_85.b_0")?.numbers.len();
        // The file leaves out the first character, which is none, and the last.
        let listed = weights.property("character")?.lines().map(String::from);
        let alphabet: Vec<String> = std::iter::once(String::new()).chain(listed).chain([" ".into()]).collect();
        ensure!(logits == alphabet.len(), "{} characters for {logits} logits", alphabet.len());
        Ok(Recogniser {
            backbone: LcNet::load(&weights, &BACKBONE)?,
            inward: [Swish::load(&weights, 142, 148)?, Swish::load(&weights, 143, 149)?],
            layers: [Layer::load(&weights, 43, 77)?, Layer::load(&weights, 45, 81)?],
            norm: layer_norm(&weights, 47, 1e-6)?,
            outward: Swish::load(&weights, 144, 150)?,
            joined: [Swish::load(&weights, 145, 151)?, Swish::load(&weights, 146, 152)?],
            characters: linear(&weights, 85)?,
            alphabet,
        })
    }

    /// Returns the logit of each character at each place, `[batch, width / 8, characters]`. Lines are
    /// `[batch, 3, HEIGHT, width]`, with numbers from -1 to 1 and blue first.
    pub fn forward(&self, lines: &Tensor) -> marquetry::Result<Tensor> {
        let stages = self.backbone.forward(lines)?;
        let around = stages[stages.len() - 1].avg_pool2d(&PoolConfig::new(POOL))?;
        let x = self.inward[1].forward(&self.inward[0].forward(&around)?)?;
        // One pixel high: [batch, hidden, 1, places] <-> [batch, places, hidden]
        let x = x.squeeze(2)?.transpose(1, 2)?;
        let x = self.layers.iter().try_fold(x, |x, layer| layer.forward(&x))?;
        let x = self.norm.forward(&x)?.transpose(1, 2)?.unsqueeze(2)?;
        let x = Tensor::cat(&[around, self.outward.forward(&x)?], 1)?;
        let x = self.joined[1].forward(&self.joined[0].forward(&x)?)?;
        self.characters.forward(&x.squeeze(2)?.transpose(1, 2)?)
    }

    /// Returns the likeliest text of each line, with the mean probability of its characters.
    pub fn decode(&self, logits: &Tensor) -> marquetry::Result<Vec<(String, f32)>> {
        let probabilities = logits.softmax(-1)?;
        let best: Vec<u32> = probabilities.argmax(-1)?.to_vec()?;
        let probability: Vec<f32> = probabilities.max(-1)?.to_vec()?;
        let places = logits.dim(1)?.max(1);
        let lines = best.chunks(places).zip(probability.chunks(places));
        Ok(lines.map(|(best, probability)| self.decode_line(best, probability)).collect())
    }

    /// Decodes a line. The same character at neighbouring places counts once. Between two equal characters there is a
    /// none.
    fn decode_line(&self, best: &[u32], probability: &[f32]) -> (String, f32) {
        let is_new = |place: usize| best[place] != 0 && (place == 0 || best[place] != best[place - 1]);
        let places: Vec<usize> = (0..best.len()).filter(|&place| is_new(place)).collect();
        let text = places.iter().map(|&place| self.alphabet[best[place] as usize].as_str()).collect();
        let sum: f32 = places.iter().map(|&place| probability[place]).sum();
        (text, sum / places.len().max(1) as f32)
    }
}
