//! all-MiniLM-L6-v2, a sentence-embedding model: BERT with a mean over the tokens.
//!
//! N. Reimers and I. Gurevych, "Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks", 2019.

use anyhow::Result;
use marquetry::io::SafeTensors;
use marquetry::nn::{Embedding, LayerNorm, Linear, Weights};
use marquetry::{AttentionConfig, Device, Tensor};
use tokenizers::Encoding;

const LAYERS: usize = 6;
const HEADS: usize = 12;
const EPS: f64 = 1e-12;

/// A vector for each token, from its word and its place. The model knows two types of sentence; only the first is used.
pub struct Embeddings {
    words: Embedding,
    positions: Tensor,
    types: Tensor,
    norm: LayerNorm,
}

impl Embeddings {
    fn load(weights: &Weights) -> Result<Self> {
        Ok(Embeddings {
            words: Embedding::load(&weights.at("word_embeddings"))?,
            positions: weights.tensor("position_embeddings.weight")?,
            types: weights.tensor("token_type_embeddings.weight")?,
            norm: LayerNorm::load(&weights.at("LayerNorm"), EPS)?,
        })
    }

    /// Turns token ids `[batch, tokens]` into vectors `[batch, tokens, hidden]`.
    pub fn forward(&self, ids: &Tensor) -> marquetry::Result<Tensor> {
        let words = self.words.forward(ids)?;
        let positions = self.positions.narrow(0, 0, ids.dim(1)?)?;
        let first_type = self.types.narrow(0, 0, 1)?;
        self.norm.forward(&words.add(&positions)?.add(&first_type)?)
    }
}

/// `softmax(Q K^T / sqrt(d)) V` in several heads.
struct SelfAttention {
    /// The projections to queries, keys and values, one below the other: one product computes all three.
    packed: Linear,
    output: Linear,
}

impl SelfAttention {
    fn load(weights: &Weights) -> Result<Self> {
        let packed = Linear::load_packed(&weights.at("self"), &["query", "key", "value"])?;
        Ok(SelfAttention { packed, output: Linear::load(&weights.at("output.dense"))? })
    }

    fn forward(&self, x: &Tensor, padding: &Tensor) -> marquetry::Result<Tensor> {
        let [batch, tokens, hidden] = [x.dim(0)?, x.dim(1)?, x.dim(2)?];
        let width = hidden / HEADS;
        // [batch, tokens, 3 hidden] -> [3, batch, heads, tokens, width]
        let packed = self.packed.forward(x)?.reshape([batch, tokens, 3, HEADS, width])?.permute([2, 0, 3, 1, 4])?;
        let config = AttentionConfig::default().mask(padding.clone());
        let mixed = packed.i(0)?.scaled_dot_product_attention(&packed.i(1)?, &packed.i(2)?, &config)?;
        self.output.forward(&mixed.transpose(1, 2)?.reshape((batch, tokens, hidden))?)
    }
}

/// Attention between the tokens, then a small network for each token. The output of each is added to its input and
/// normalised.
pub struct Layer {
    attention: SelfAttention,
    attention_norm: LayerNorm,
    intermediate: Linear,
    output: Linear,
    output_norm: LayerNorm,
}

impl Layer {
    fn load(weights: &Weights) -> Result<Self> {
        Ok(Layer {
            attention: SelfAttention::load(&weights.at("attention"))?,
            attention_norm: LayerNorm::load(&weights.at("attention.output.LayerNorm"), EPS)?,
            intermediate: Linear::load(&weights.at("intermediate.dense"))?,
            output: Linear::load(&weights.at("output.dense"))?,
            output_norm: LayerNorm::load(&weights.at("output.LayerNorm"), EPS)?,
        })
    }

    /// `padding`, from [`padding_bias`], is added to the attention's scores.
    pub fn forward(&self, x: &Tensor, padding: &Tensor) -> marquetry::Result<Tensor> {
        let x = self.attention_norm.forward(&self.attention.forward(x, padding)?.add(x)?)?;
        let inner = self.intermediate.forward(&x)?.gelu()?;
        self.output_norm.forward(&self.output.forward(&inner)?.add(&x)?)
    }
}

/// Turns a mask `[batch, tokens]`, 1 for a token and 0 for padding, into a bias that hides the padding from every
/// token. The bias is `[batch, heads: 1, tokens: 1, tokens]`: 0 for a token, a number far below all scores for padding.
pub fn padding_bias(mask: &Tensor) -> marquetry::Result<Tensor> {
    mask.affine(1e9, -1e9)?.unsqueeze(1)?.unsqueeze(1)
}

/// The model with its weights on a device.
pub struct Model {
    pub embeddings: Embeddings,
    pub layers: Vec<Layer>,
    device: Device,
}

impl Model {
    /// Loads the model, layer by layer. The file may be elsewhere.
    pub async fn load(file: SafeTensors, device: &Device) -> Result<Self> {
        let weights = Weights::new(file, device);
        let embeddings = weights.at("embeddings").load_async(Embeddings::load).await?;
        let mut layers = Vec::new();
        for i in 0..LAYERS {
            layers.push(weights.at(format!("encoder.layer.{i}")).load_async(Layer::load).await?);
        }
        Ok(Model { embeddings, layers, device: device.clone() })
    }

    /// Returns the tokens' vectors `[batch, tokens, hidden]` from their ids and their mask, both `[batch, tokens]`.
    pub fn forward(&self, ids: &Tensor, mask: &Tensor) -> marquetry::Result<Tensor> {
        let padding = padding_bias(mask)?;
        self.layers.iter().try_fold(self.embeddings.forward(ids)?, |x, layer| layer.forward(&x, &padding))
    }

    /// Returns one vector of length 1 for each sentence, `[batch, hidden]`: the mean of its tokens' vectors. The
    /// sentences must be padded to one length. Returns before the device has computed anything.
    pub fn embed(&self, sentences: &[Encoding]) -> marquetry::Result<Tensor> {
        let (ids, mask) = self.inputs(sentences)?;
        self.embed_ids(&ids, &mask)
    }

    /// The same for the ids and the mask of sentences, both `[batch, tokens]`.
    pub fn embed_ids(&self, ids: &Tensor, mask: &Tensor) -> marquetry::Result<Tensor> {
        let mask_column = mask.unsqueeze(-1)?;
        let sum = self.forward(ids, mask)?.mul(&mask_column)?.sum(1)?;
        let mean = sum.div(&mask_column.sum(1)?)?;
        mean.div(&mean.sqr()?.sum_keepdim(-1)?.sqrt()?)
    }

    /// Returns the ids and the mask of sentences, both `[batch, tokens]`.
    pub fn inputs(&self, sentences: &[Encoding]) -> marquetry::Result<(Tensor, Tensor)> {
        let shape = (sentences.len(), sentences.first().map_or(0, Encoding::len));
        let ids: Vec<u32> = sentences.iter().flat_map(Encoding::get_ids).copied().collect();
        let mask: Vec<f32> = sentences.iter().flat_map(Encoding::get_attention_mask).map(|&m| m as f32).collect();
        Ok((Tensor::from_vec(ids, shape, &self.device)?, Tensor::from_vec(mask, shape, &self.device)?))
    }
}
