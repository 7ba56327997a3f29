//! A language model of Llama's form. Its weights are random: only their shapes count.

use marquetry::nn::{Gate, GatedLinear, KvCache, KvCacheConfig, Linear, RmsNorm, Rope};
use marquetry::{AttentionConfig, BlockFormat, DType, Device, Result, Tensor};

const EPSILON: f64 = 1e-5;
const THETA: f64 = 10_000.0;

/// The sizes of a model.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub name: &'static str,
    pub layers: usize,
    pub width: usize,
    pub heads: usize,
    pub kv_heads: usize,
    /// Features of a head.
    pub features: usize,
    pub inner: usize,
    pub vocabulary: usize,
}

pub const SMALL: Sizes = Sizes {
    name: "SmolLM2-135M",
    layers: 30,
    width: 576,
    heads: 9,
    kv_heads: 3,
    features: 64,
    inner: 1536,
    vocabulary: 49_152,
};

pub const LARGE: Sizes = Sizes {
    name: "7B",
    layers: 32,
    width: 4096,
    heads: 32,
    kv_heads: 8,
    features: 128,
    inner: 14_336,
    vocabulary: 32_000,
};

/// The weights of a layer. The matrices that multiply the same rows are one.
struct Layer {
    norms: [RmsNorm; 2],
    queries_keys_values: Linear,
    out: Linear,
    gate_up: GatedLinear,
    down: Linear,
}

/// The model. It computes in `f16`.
pub struct Model {
    pub sizes: Sizes,
    /// The bytes of weights that a token reads.
    pub weight_bytes: u64,
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
    rope: Rope,
    device: Device,
}

impl Model {
    /// Makes a model for sequences of at most `length` tokens. Its weights are `f16`, or blocks of a format.
    pub fn new(sizes: Sizes, format: Option<BlockFormat>, length: usize, device: &Device) -> Result<Model> {
        let Sizes { width, heads, kv_heads, features, inner, vocabulary, .. } = sizes;
        let mut weight_bytes = 0;
        let mut matrix = |rows: usize, columns: usize| -> Result<Linear> {
            let weights = Tensor::randn(0f32, 0.02, (rows, columns), device)?.to_dtype(DType::F16)?;
            weights.realize()?;
            let count = (rows * columns) as u64;
            Ok(match format {
                Some(format) => {
                    weight_bytes += count / format.block_elements() as u64 * format.block_bytes() as u64;
                    Linear::new(weights.quantize(format)?, None)
                }
                None => {
                    weight_bytes += count * 2;
                    Linear::new(weights, None)
                }
            })
        };
        let norm = || Ok(RmsNorm::new(Tensor::ones(width, DType::F16, device)?, EPSILON));
        let layer = |_| -> Result<Layer> {
            Ok(Layer {
                norms: [norm()?, norm()?],
                queries_keys_values: matrix((heads + 2 * kv_heads) * features, width)?,
                out: matrix(width, heads * features)?,
                gate_up: GatedLinear::new(matrix(2 * inner, width)?, Gate::Silu),
                down: matrix(width, inner)?,
            })
        };
        let layers = (0..sizes.layers).map(layer).collect::<Result<_>>()?;
        let head = matrix(vocabulary, width)?;
        let embedding = Tensor::randn(0f32, 1.0, (vocabulary, width), device)?.to_dtype(DType::F16)?;
        embedding.realize()?;
        device.synchronize()?;
        // Of the weights that were quantised.
        device.trim()?;
        let rope = Rope::new(features, THETA, length, device)?;
        Ok(Model { sizes, weight_bytes, embedding, layers, norm: norm()?, head, rope, device: device.clone() })
    }

    /// Returns a cache for sequences of as many tokens. Keys and values may be packed.
    pub fn cache(&self, sequences: usize, format: Option<BlockFormat>) -> Result<KvCache> {
        let Sizes { layers, kv_heads, features, .. } = self.sizes;
        let config = KvCacheConfig::new(layers, kv_heads, features).dtype(DType::F16).packed(format);
        KvCache::new(&config.length(self.rope.length()).sequences(sequences), &self.device)
    }

    /// Returns the tokens that follow the last `rows` of these, which the cache expects.
    pub fn next(&self, ids: &Tensor, rows: usize, cache: &KvCache) -> Result<Tensor> {
        let Sizes { heads, kv_heads, features, .. } = self.sizes;
        let tokens = ids.elem_count();
        let causal = AttentionConfig::default().causal(true);
        let mut x = self.embedding.embedding(ids)?;
        for (number, layer) in self.layers.iter().enumerate() {
            let y = layer.queries_keys_values.forward_norm(&layer.norms[0], &x)?;
            let y = y.reshape((tokens, heads + 2 * kv_heads, features))?;
            let [q, k, v] = [(0, heads), (heads, kv_heads), (heads + kv_heads, kv_heads)]
                .map(|(first, count)| y.narrow(1, first, count));
            let y = cache.attend(number, [&q?, &k?, &v?], Some(&self.rope), &causal)?;
            x = x.add(&layer.out.forward(&y.reshape((tokens, heads * features))?)?)?;
            let y = layer.gate_up.forward_norm(&layer.norms[1], &x)?;
            x = x.add(&layer.down.forward(&y)?)?;
        }
        let last = x.narrow(0, tokens - rows, rows)?;
        let next = self.head.forward_norm(&self.norm, &last)?.argmax(-1)?;
        next.realize()?;
        Ok(next)
    }

    /// Captures a token for each of `sequences`, which the cache expects.
    pub fn step(&self, sequences: usize, cache: &KvCache) -> Result<marquetry::Step> {
        self.device.capture(|args| {
            let ids = args.input("ids", sequences, DType::U32)?;
            Ok([("next", self.next(&ids, sequences, cache)?)])
        })
    }
}
