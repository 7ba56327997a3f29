//! Language models from GGUF files. Weights stay quantised on the device; everything else has a dtype of floats.
//!
//! H. Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", 2023. What other architectures do
//! otherwise stands in `architecture.rs`.

use crate::architecture::Config;
use anyhow::{Context, Result, bail};
use marquetry::io::Gguf;
use marquetry::nn::{
    BitLinear, BitLinearClass, Embedding, Gate, GatedLinear, KvCache, KvCacheConfig, Linear, Matrix, RmsNorm, Rope,
    WeightFile, Weights,
};
use marquetry::{AttentionConfig, BlockFormat, DType, Device, Tensor};

/// Matrices that multiply the same vectors. Their results follow each other.
enum Projection {
    Plain(Linear),
    Ternary(Vec<BitLinear>),
}

impl Projection {
    fn load(weights: &Weights, names: &[&str], ternary: bool) -> Result<Self> {
        if !ternary {
            return Ok(Projection::Plain(Linear::load_packed(weights, names)?));
        }
        let layer = |name: &&str| {
            let weights = weights.at(name);
            let Matrix::Quantized(weight) = weights.matrix("weight")? else {
                bail!("the weights of `{name}` are not ternary");
            };
            let scale = match weights.optional("scale")? {
                Some(scale) => scale,
                None => Tensor::ones(1, DType::F32, weights.device())?,
            };
            Ok(BitLinear::new(weight, &scale, weights.optional("bias")?, BitLinearClass::AutoBitLinear)?)
        };
        Ok(Projection::Ternary(names.iter().map(layer).collect::<Result<_>>()?))
    }

    fn forward(&self, x: &Tensor) -> marquetry::Result<Tensor> {
        match self {
            Projection::Plain(linear) => linear.forward(x),
            Projection::Ternary(layers) => {
                let parts = layers.iter().map(|layer| layer.forward(x)).collect::<marquetry::Result<Vec<_>>>()?;
                Tensor::cat(&parts, -1)
            }
        }
    }

    fn forward_norm(&self, norm: &RmsNorm, x: &Tensor) -> marquetry::Result<Tensor> {
        match self {
            Projection::Plain(linear) => linear.forward_norm(norm, x),
            Projection::Ternary(_) => self.forward(&norm.forward(x)?),
        }
    }
}

/// The projections to the gates and to what they let through.
enum GateUp {
    Plain(GatedLinear),
    Ternary(Projection, Gate),
}

impl GateUp {
    fn load(weights: &Weights, config: &Config) -> Result<Self> {
        let packed: &[&str] = if weights.contains("ffn_gate.weight") { &["ffn_gate", "ffn_up"] } else { &["ffn_up"] };
        let gate = config.architecture.gate;
        Ok(match Projection::load(weights, packed, config.architecture.ternary)? {
            Projection::Plain(both) => GateUp::Plain(GatedLinear::new(both, gate)),
            both @ Projection::Ternary(_) => GateUp::Ternary(both, gate),
        })
    }

    fn forward_norm(&self, norm: &RmsNorm, x: &Tensor) -> marquetry::Result<Tensor> {
        match self {
            GateUp::Plain(layer) => layer.forward_norm(norm, x),
            GateUp::Ternary(both, gate) => gate.apply(&both.forward_norm(norm, x)?),
        }
    }
}

/// Attention between the tokens, then a gated network for each token. The output of each is added to its input. Norms
/// that only some models have are optional.
struct Layer {
    attention_norm: RmsNorm,
    /// To queries, keys and values.
    packed: Projection,
    /// Of the features of each head.
    query_norm: Option<RmsNorm>,
    key_norm: Option<RmsNorm>,
    mixed_norm: Option<RmsNorm>,
    output: Projection,
    attention_output_norm: Option<RmsNorm>,
    network_norm: RmsNorm,
    gate_up: GateUp,
    gated_norm: Option<RmsNorm>,
    down: Projection,
    network_output_norm: Option<RmsNorm>,
    attention: AttentionConfig,
    /// Which of the model's embeddings of positions it uses.
    rope: usize,
}

impl Layer {
    fn load(weights: &Weights, config: &Config, number: usize) -> Result<Self> {
        let norm = |name: &str| RmsNorm::load(&weights.at(name), config.eps);
        let optional = |name: &str| match weights.contains(&format!("{name}.weight")) {
            true => norm(name).map(Some),
            false => Ok(None),
        };
        let packed: &[&str] =
            if weights.contains("attn_qkv.weight") { &["attn_qkv"] } else { &["attn_q", "attn_k", "attn_v"] };
        let projection = |names| Projection::load(weights, names, config.architecture.ternary);
        let window = config.window(number);
        Ok(Layer {
            attention_norm: norm("attn_norm")?,
            packed: projection(packed)?,
            query_norm: optional("attn_q_norm")?,
            key_norm: optional("attn_k_norm")?,
            mixed_norm: optional("attn_sub_norm")?,
            output: projection(&["attn_output"])?,
            attention_output_norm: optional("post_attention_norm")?,
            network_norm: norm("ffn_norm")?,
            gate_up: GateUp::load(weights, config)?,
            gated_norm: optional("ffn_sub_norm")?,
            down: projection(&["ffn_down"])?,
            network_output_norm: optional("post_ffw_norm")?,
            attention: AttentionConfig::default()
                .causal(true)
                .scale(config.scale)
                .softcap(config.score_cap)
                .sliding_window(window),
            rope: usize::from(window.is_some()),
        })
    }

    fn attend(
        &self,
        x: &Tensor,
        config: &Config,
        ropes: &[Rope; 2],
        cache: &KvCache,
        layer: usize,
    ) -> marquetry::Result<Tensor> {
        let (tokens, heads, kv_heads) = (x.dim(0)?, config.heads, config.kv_heads);
        let packed = self.packed.forward_norm(&self.attention_norm, x)?;
        let packed = packed.reshape((tokens, heads + 2 * kv_heads, config.head_width))?;
        let queries = normalized(self.query_norm.as_ref(), packed.narrow(1, 0, heads)?)?;
        let keys = normalized(self.key_norm.as_ref(), packed.narrow(1, heads, kv_heads)?)?;
        let values = packed.narrow(1, heads + kv_heads, kv_heads)?;
        let rope = Some(&ropes[self.rope]);
        let mixed = cache.attend(layer, [&queries, &keys, &values], rope, &self.attention)?;
        let mixed = mixed.reshape((tokens, heads * config.head_width))?;
        let output = self.output.forward(&normalized(self.mixed_norm.as_ref(), mixed)?)?;
        normalized(self.attention_output_norm.as_ref(), output)
    }

    fn network(&self, x: &Tensor) -> marquetry::Result<Tensor> {
        let gated = self.gate_up.forward_norm(&self.network_norm, x)?;
        let output = self.down.forward(&normalized(self.gated_norm.as_ref(), gated)?)?;
        normalized(self.network_output_norm.as_ref(), output)
    }
}

/// Applies a norm that not all models have.
fn normalized(norm: Option<&RmsNorm>, x: Tensor) -> marquetry::Result<Tensor> {
    norm.map_or(Ok(x.clone()), |norm| norm.forward(&x))
}

/// The model with its weights on a device.
pub struct Model {
    pub config: Config,
    embedding: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
    /// Of layers that see all tokens, and of those with a window.
    ropes: [Rope; 2],
    dtype: DType,
    device: Device,
}

impl Model {
    /// Loads a model for sequences of at most `capacity` tokens, which computes in `dtype`. The file may be elsewhere.
    pub async fn load(file: Gguf, capacity: usize, dtype: DType, device: &Device) -> Result<Self> {
        let config = Config::read(&file)?;
        let ropes = config.ropes(&file, capacity, device).await?;
        let weights = Weights::new(WeightFile::from(file), device).dtype(dtype);
        let embedding = weights.at("token_embd").load_async(Embedding::load).await?.dtype(dtype);
        // Many small models compute their logits with the matrix of the embedding.
        let head = match weights.contains("output.weight") {
            true => weights.at("output").load_async(Linear::load).await?,
            false => embedding.tied(),
        };
        let mut layers = Vec::new();
        for i in 0..config.layers {
            let layer = weights.at(format!("blk.{i}")).load_async(|layer| Layer::load(layer, &config, i)).await;
            layers.push(layer.with_context(|| format!("layer {i}"))?);
        }
        let model = Model {
            layers,
            norm: weights.at("output_norm").load_async(|weights| RmsNorm::load(weights, config.eps)).await?,
            ropes,
            dtype,
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

    /// Returns a cache for some sequences of at most `capacity` tokens each. Keys and values may be packed.
    pub fn cache(&self, sequences: usize, capacity: usize, format: Option<BlockFormat>) -> marquetry::Result<KvCache> {
        let Config { layers, kv_heads, head_width, .. } = self.config;
        let config = KvCacheConfig::new(layers, kv_heads, head_width).dtype(self.dtype).length(capacity);
        KvCache::new(&config.packed(format).sequences(sequences).window(self.config.window_of_all()), &self.device)
    }

    /// Returns the vectors `(tokens, width)` of tokens `(tokens)`, and adds them to the cache, which expects them.
    pub fn forward(&self, ids: &Tensor, cache: &KvCache) -> marquetry::Result<Tensor> {
        let mut x = self.embedding.forward(ids)?;
        if self.config.architecture.scales_embedding {
            x = x.affine((self.config.width as f64).sqrt(), 0.0)?;
        }
        for (number, layer) in self.layers.iter().enumerate() {
            x = x.add(&layer.attend(&x, &self.config, &self.ropes, cache, number)?)?;
            x = x.add(&layer.network(&x)?)?;
        }
        Ok(x)
    }

    /// Returns the logits of the token that follows each vector.
    pub fn logits(&self, x: &Tensor) -> marquetry::Result<Tensor> {
        let logits = self.head.forward_norm(&self.norm, x)?;
        match self.config.logit_cap {
            Some(cap) => logits.affine(1.0 / cap, 0.0)?.tanh()?.affine(cap, 0.0),
            None => Ok(logits),
        }
    }
}
