//! Attention: to all tokens of a prompt, and of the next token to a cache of keys and values.

use super::Sizes;
use crate::case::{Bound, Case, Cost, Prepared, Rate};
use crate::close::{ensure_all_close, numbers, places, rounding};
use anyhow::Result;
use marquetry::{AttentionConfig, DType, Device, Tensor};

/// Queries with as many features as keys and values have.
#[derive(Clone, Copy)]
struct Attention {
    dtype: DType,
    batch: usize,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    features: usize,
    causal: bool,
}

pub fn cases(sizes: &Sizes) -> Vec<Case> {
    let mut cases = Vec::new();
    let prompt = Attention {
        dtype: DType::F16,
        batch: 1,
        heads: 32,
        kv_heads: 32,
        queries: sizes.context,
        keys: sizes.context,
        features: 128,
        causal: false,
    };
    for dtype in [DType::F16, DType::BF16] {
        for (features, kv_heads) in [(128, 32), (64, 32), (128, 8)] {
            cases
                .extend([false, true].map(|causal| Attention { dtype, features, kv_heads, causal, ..prompt }.prompt()));
        }
    }
    let token = Attention { queries: 1, causal: true, ..prompt };
    for (batch, kv_heads, keys) in [(1, 32, sizes.context), (1, 8, sizes.context), (1, 8, 512), (4, 8, sizes.context)] {
        cases.push(Attention { batch, kv_heads, keys, ..token }.token(sizes));
    }
    cases
}

impl Attention {
    fn name(self) -> String {
        let Attention { dtype, batch, heads, kv_heads, queries, keys, features, causal } = self;
        let batch = if batch == 1 { String::new() } else { format!("{batch} x ") };
        let heads = if heads == kv_heads { heads.to_string() } else { format!("{heads}/{kv_heads}") };
        let causal = if causal && queries > 1 { " causal" } else { "" };
        format!("attention {dtype} {batch}{queries} to {keys}, {heads} heads of {features}{causal}")
    }

    fn cost(self) -> Cost {
        let Attention { dtype, batch, heads, kv_heads, queries, keys, features, causal } = self;
        let pairs = batch * heads * queries * keys / if causal && queries > 1 { 2 } else { 1 };
        let rows = 2 * batch * heads * queries + 2 * batch * kv_heads * keys;
        Cost { flops: (4 * pairs * features) as f64, bytes: (dtype.size_in_bytes() * rows * features) as f64 }
    }

    fn random(self, heads: usize, tokens: usize, device: &Device) -> marquetry::Result<Tensor> {
        let x = Tensor::randn(0f32, 1.0, (self.batch, heads, tokens, self.features), device)?.to_dtype(self.dtype)?;
        x.realize()?;
        Ok(x)
    }

    fn prompt(self) -> Case {
        Case {
            name: self.name(),
            cost: self.cost(),
            rate: Rate::Flops,
            bound: Bound::Matrix(self.dtype),
            prepare: Box::new(move |device| {
                let q = self.random(self.heads, self.queries, device)?;
                let [k, v] = [(); 2].map(|()| self.random(self.kv_heads, self.keys, device));
                let (k, v) = (k?, v?);
                let config = AttentionConfig::default().causal(self.causal);
                let operands = [q.clone(), k.clone(), v.clone()];
                let run = move |_| q.scaled_dot_product_attention(&k, &v, &config);
                Ok(Prepared::alone(run, move |y| self.check(&operands, y)))
            }),
        }
    }

    /// Each token attends to another cache, and its result is the next one's query.
    fn token(self, sizes: &Sizes) -> Case {
        let count = sizes.distinct(self.cost().bytes as usize);
        Case {
            name: self.name(),
            cost: self.cost(),
            rate: Rate::Bytes,
            bound: Bound::Matrix(self.dtype),
            prepare: Box::new(move |device| {
                let start = self.random(self.heads, 1, device)?;
                let cache = || Ok([(); 2].map(|()| self.random(self.kv_heads, self.keys, device)));
                let caches = (0..count).map(|_| cache().and_then(|[k, v]| Ok([k?, v?])));
                let caches = caches.collect::<marquetry::Result<Vec<_>>>()?;
                let config = AttentionConfig::default().causal(true);
                let operands = [start.clone(), caches[0][0].clone(), caches[0][1].clone()];
                Ok(Prepared::chain(
                    start,
                    move |link, q| {
                        let [k, v] = &caches[link % caches.len()];
                        q.scaled_dot_product_attention(k, v, &config)
                    },
                    move |y| self.check(&operands, y),
                ))
            }),
        }
    }

    /// Checks some rows.
    fn check(self, [q, k, v]: &[Tensor; 3], y: &Tensor) -> Result<()> {
        let d = self.features;
        for head in places(self.heads) {
            let of_head = |x: &Tensor, head: usize| numbers(&x.narrow(0, self.batch - 1, 1)?.narrow(1, head, 1)?);
            let kv_head = head / (self.heads / self.kv_heads);
            let [q, y] = [of_head(q, head)?, of_head(y, head)?];
            let [k, v] = [of_head(k, kv_head)?, of_head(v, kv_head)?];
            for query in places(self.queries) {
                let seen = if self.causal { query + 1 + self.keys - self.queries } else { self.keys };
                let score = |key: usize| -> f64 {
                    let products = q[query * d..][..d].iter().zip(&k[key * d..][..d]).map(|(q, k)| q * k);
                    products.sum::<f64>() / (d as f64).sqrt()
                };
                let weights: Vec<f64> = (0..seen).map(|key| score(key).exp()).collect();
                let total: f64 = weights.iter().sum();
                let row = |column| (0..seen).map(|key| weights[key] * v[key * d + column]).sum::<f64>() / total;
                let expected: Vec<f64> = (0..d).map(row).collect();
                // The rounding of the weights, of the result, and some more.
                let tolerance = 4.0 * rounding(self.dtype);
                ensure_all_close(&format!("row {query} of head {head}"), &y[query * d..][..d], &expected, tolerance)?;
            }
        }
        Ok(())
    }
}
