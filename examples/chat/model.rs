//! Language models of the architecture `llama`, from a GGUF file.
//!
//! H. Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", 2023. Weights stay quantised on the
//! device; everything else is computed in `f32`.

use anyhow::{Context, Result, bail, ensure};
use marquetry::io::Gguf;
use marquetry::nn::{Embedding, Linear, RmsNorm, Rope, WeightFile, Weights};
use marquetry::{AttentionConfig, DType, Device, Tensor};

/// What the file says about the model.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    pub layers: usize,
    pub heads: usize,
    /// Heads of keys and values. Each serves several heads of queries.
    pub kv_heads: usize,
    /// Features of a head.
    pub head_width: usize,
    /// The most tokens that the model was trained on.
    pub context: usize,
    rope_features: usize,
    rope_base: f64,
    eps: f64,
}

impl Config {
    pub fn read(file: &Gguf) -> Result<Self> {
        let architecture = file.get("general.architecture")?.as_str()?;
        ensure!(architecture == "llama", "the model has the architecture `{architecture}`; this example runs `llama`");
        let scaling = file.find("llama.rope.scaling.type").map(|field| field.as_str()).transpose()?;
        ensure!(
            scaling.is_none_or(|kind| kind == "none") && !file.names().any(|name| name == "rope_freqs.weight"),
            "the model scales its rotary positions, which this example does not"
        );
        let number = |key: &str| -> Result<usize> { Ok(file.get(&format!("llama.{key}"))?.as_u32()? as usize) };
        let optional = |key: &str, default: usize| -> Result<usize> {
            let field = format!("llama.{key}");
            Ok(file.find(&field).map(|field| field.as_u32()).transpose()?.map_or(default, |number| number as usize))
        };
        let (width, heads) = (number("embedding_length")?, number("attention.head_count")?);
        ensure!(heads > 0, "the model has no heads");
        let head_width = optional("attention.key_length", width / heads)?;
        let kv_heads = optional("attention.head_count_kv", heads)?;
        ensure!(kv_heads > 0 && heads.is_multiple_of(kv_heads), "{heads} heads are no multiple of {kv_heads}");
        Ok(Config {
            layers: number("block_count")?,
            heads,
            kv_heads,
            head_width,
            context: number("context_length")?,
            rope_features: optional("rope.dimension_count", head_width)?,
            rope_base: file.find("llama.rope.freq_base").map_or(Ok(10_000.0), |base| base.as_f64())?,
            eps: file.get("llama.attention.layer_norm_rms_epsilon")?.as_f64()?,
        })
    }
}

/// The keys and values of the tokens so far, for each layer: `(1, heads, capacity, features)`.
pub struct Cache {
    layers: Vec<Option<(Tensor, Tensor)>>,
    /// The number of tokens.
    length: usize,
    capacity: usize,
}

impl Cache {
    pub fn new(config: &Config, capacity: usize, device: &Device) -> Result<Self> {
        let zeros = || Tensor::zeros((1, config.kv_heads, capacity, config.head_width), DType::F32, device);
        let layers = (0..config.layers).map(|_| Ok(Some((zeros()?, zeros()?)))).collect::<Result<_>>()?;
        Ok(Cache { layers, length: 0, capacity })
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Forgets all tokens but the first ones.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Writes the keys and values of new tokens, in place. Returns those of all tokens.
    fn extend(&mut self, layer: usize, keys: &Tensor, values: &Tensor) -> Result<(Tensor, Tensor)> {
        let end = self.length + keys.dim(-2)?;
        let (all_keys, all_values) = self.layers[layer].take().context("an earlier error has left the cache empty")?;
        let part = (.., .., self.length..end);
        let all_keys = all_keys.slice_assign(part.clone(), keys)?;
        let all_values = all_values.slice_assign(part, values)?;
        let seen = (all_keys.narrow(2, 0, end)?, all_values.narrow(2, 0, end)?);
        self.layers[layer] = Some((all_keys, all_values));
        Ok(seen)
    }
}

/// Attention between the tokens, then a gated network for each token. The output of each is added to its input.
struct Layer {
    attention_norm: RmsNorm,
    /// The projections to queries, keys and values: one product computes all three.
    packed: Linear,
    output: Linear,
    network_norm: RmsNorm,
    /// The projections to the gate and to what it lets through.
    gate_up: Linear,
    down: Linear,
}

impl Layer {
    fn load(weights: &Weights, eps: f64) -> Result<Self> {
        Ok(Layer {
            attention_norm: RmsNorm::load(&weights.at("attn_norm"), eps)?,
            packed: Linear::load_packed(weights, &["attn_q", "attn_k", "attn_v"])?,
            output: Linear::load(&weights.at("attn_output"))?,
            network_norm: RmsNorm::load(&weights.at("ffn_norm"), eps)?,
            gate_up: Linear::load_packed(weights, &["ffn_gate", "ffn_up"])?,
            down: Linear::load(&weights.at("ffn_down"))?,
        })
    }

    fn attend(&self, x: &Tensor, config: &Config, rope: &Rope, cache: &mut Cache, layer: usize) -> Result<Tensor> {
        let (tokens, heads, kv_heads) = (x.dim(1)?, config.heads, config.kv_heads);
        // (1, tokens, all heads, features) -> (1, all heads, tokens, features)
        let packed = self.packed.forward(&self.attention_norm.forward(x)?)?;
        let packed = packed.reshape((1, tokens, heads + 2 * kv_heads, config.head_width))?.transpose(1, 2)?;
        let turned = rope.forward(&packed.narrow(1, 0, heads + kv_heads)?, cache.length)?;
        let values = packed.narrow(1, heads + kv_heads, kv_heads)?;
        let (keys, values) = cache.extend(layer, &turned.narrow(1, heads, kv_heads)?, &values)?;
        let attention = AttentionConfig::default().causal(true);
        let mixed = turned.narrow(1, 0, heads)?.scaled_dot_product_attention(&keys, &values, &attention)?;
        Ok(self.output.forward(&mixed.transpose(1, 2)?.reshape((1, tokens, heads * config.head_width))?)?)
    }

    fn network(&self, x: &Tensor) -> Result<Tensor> {
        let both = self.gate_up.forward(&self.network_norm.forward(x)?)?;
        let width = both.dim(-1)? / 2;
        let gated = both.narrow(-1, 0, width)?.silu()?.mul(&both.narrow(-1, width, width)?)?;
        Ok(self.down.forward(&gated)?)
    }
}

/// The model with its weights on a device.
pub struct Model {
    pub config: Config,
    embedding: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
    rope: Rope,
    device: Device,
}

impl Model {
    /// Loads a model for sequences of at most `capacity` tokens.
    pub fn load(file: Gguf, capacity: usize, device: &Device) -> Result<Self> {
        let config = Config::read(&file)?;
        let weights = Weights::new(WeightFile::from(file), device).dtype(DType::F32);
        let embedding = Embedding::load(&weights.at("token_embd"))?;
        // Many small models compute their logits with the matrix of the embedding.
        let head = match weights.contains("output.weight") {
            true => Linear::load(&weights.at("output"))?,
            false => embedding.tied(),
        };
        let layer = |i| Layer::load(&weights.at(format!("blk.{i}")), config.eps).with_context(|| format!("layer {i}"));
        let model = Model {
            layers: (0..config.layers).map(layer).collect::<Result<_>>()?,
            norm: RmsNorm::load(&weights.at("output_norm"), config.eps)?,
            rope: Rope::new(config.rope_features, config.rope_base, capacity, device)?.neighbours(),
            device: device.clone(),
            config,
            embedding,
            head,
        };
        // The buffers through which the weights went are not needed again.
        device.trim()?;
        Ok(model)
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the vectors `(1, tokens, width)` of tokens `(1, tokens)`, which follow those in the cache, and adds them
    /// to the cache.
    pub fn forward(&self, ids: &Tensor, cache: &mut Cache) -> Result<Tensor> {
        let tokens = ids.dim(1)?;
        if tokens == 0 || cache.length + tokens > cache.capacity.min(self.rope.length()) {
            bail!("{tokens} tokens behind {} do not fit the context of {}", cache.length, cache.capacity);
        }
        let mut x = self.embedding.forward(ids)?;
        for (number, layer) in self.layers.iter().enumerate() {
            x = x.add(&layer.attend(&x, &self.config, &self.rope, cache, number)?)?;
            x = x.add(&layer.network(&x)?)?;
        }
        cache.length += tokens;
        Ok(x)
    }

    /// Returns the logits of the token that follows each vector.
    pub fn logits(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.head.forward(&self.norm.forward(x)?)?)
    }

    /// Returns the logits `(1, tokens in the vocabulary)` of the token that follows `ids`.
    pub fn next(&self, ids: &Tensor, cache: &mut Cache) -> Result<Tensor> {
        let x = self.forward(ids, cache)?;
        self.logits(&x.narrow(1, ids.dim(1)? - 1, 1)?.squeeze(1)?)
    }
}
