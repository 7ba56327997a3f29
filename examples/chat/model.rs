//! Language models of the architecture `llama`, from a GGUF file.
//!
//! H. Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", 2023. Weights stay quantised on the
//! device; everything else is computed in `f32`.

use anyhow::{Context, Result, ensure};
use marquetry::io::Gguf;
use marquetry::nn::{Embedding, Gate, GatedLinear, KvCache, KvCacheConfig, Linear, RmsNorm, Rope, WeightFile, Weights};
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
    /// The tokens of the vocabulary.
    pub vocabulary: usize,
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
            vocabulary: file.info("token_embd.weight")?.shape.dims()[0],
            rope_features: optional("rope.dimension_count", head_width)?,
            rope_base: file.find("llama.rope.freq_base").map_or(Ok(10_000.0), |base| base.as_f64())?,
            eps: file.get("llama.attention.layer_norm_rms_epsilon")?.as_f64()?,
        })
    }
}

/// Attention between the tokens, then a gated network for each token. The output of each is added to its input.
struct Layer {
    attention_norm: RmsNorm,
    /// The projections to queries, keys and values: one product computes all three.
    packed: Linear,
    output: Linear,
    network_norm: RmsNorm,
    /// The projections to the gates and to what they let through.
    gate_up: GatedLinear,
    down: Linear,
}

impl Layer {
    fn load(weights: &Weights, eps: f64) -> Result<Self> {
        Ok(Layer {
            attention_norm: RmsNorm::load(&weights.at("attn_norm"), eps)?,
            packed: Linear::load_packed(weights, &["attn_q", "attn_k", "attn_v"])?,
            output: Linear::load(&weights.at("attn_output"))?,
            network_norm: RmsNorm::load(&weights.at("ffn_norm"), eps)?,
            gate_up: GatedLinear::new(Linear::load_packed(weights, &["ffn_gate", "ffn_up"])?, Gate::Silu),
            down: Linear::load(&weights.at("ffn_down"))?,
        })
    }

    fn attend(
        &self,
        x: &Tensor,
        config: &Config,
        rope: &Rope,
        cache: &KvCache,
        layer: usize,
    ) -> marquetry::Result<Tensor> {
        let (tokens, heads, kv_heads) = (x.dim(0)?, config.heads, config.kv_heads);
        let packed = self.packed.forward_norm(&self.attention_norm, x)?;
        let packed = packed.reshape((tokens, heads + 2 * kv_heads, config.head_width))?;
        let queries = packed.narrow(1, 0, heads)?;
        let (keys, values) = (packed.narrow(1, heads, kv_heads)?, packed.narrow(1, heads + kv_heads, kv_heads)?);
        let causal = AttentionConfig::default().causal(true);
        let mixed = cache.attend(layer, [&queries, &keys, &values], Some(rope), &causal)?;
        self.output.forward(&mixed.reshape((tokens, heads * config.head_width))?)
    }

    fn network(&self, x: &Tensor) -> marquetry::Result<Tensor> {
        let gated = self.gate_up.forward_norm(&self.network_norm, x)?;
        self.down.forward(&gated)
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

    /// Returns a cache for sequences of at most `capacity` tokens.
    pub fn cache(&self, capacity: usize) -> marquetry::Result<KvCache> {
        let Config { layers, kv_heads, head_width, .. } = self.config;
        KvCache::new(&KvCacheConfig::new(layers, kv_heads, head_width).length(capacity), &self.device)
    }

    /// Returns the vectors `(tokens, width)` of tokens `(tokens)`, and adds them to the cache, which expects them.
    pub fn forward(&self, ids: &Tensor, cache: &KvCache) -> marquetry::Result<Tensor> {
        let mut x = self.embedding.forward(ids)?;
        for (number, layer) in self.layers.iter().enumerate() {
            x = x.add(&layer.attend(&x, &self.config, &self.rope, cache, number)?)?;
            x = x.add(&layer.network(&x)?)?;
        }
        Ok(x)
    }

    /// Returns the logits of the token that follows each vector.
    pub fn logits(&self, x: &Tensor) -> marquetry::Result<Tensor> {
        self.head.forward_norm(&self.norm, x)
    }

    /// Returns the logits `(1, tokens in the vocabulary)` of the token that follows `ids`.
    pub fn next(&self, ids: &Tensor, cache: &KvCache) -> marquetry::Result<Tensor> {
        let x = self.forward(ids, cache)?;
        self.logits(&x.narrow(0, ids.dim(0)? - 1, 1)?)
    }
}
