//! A token, and a prompt, of a language model of Llama's form. Its weights are random `f16`: only their shapes count.

use crate::{Wanted, median_us};
use anyhow::Result;
use marquetry::{AttentionConfig, DType, Device, Step, Tensor};
use std::time::{Duration, Instant};

/// Tokens of the prompt, and those for which the caches have room.
const PROMPT: usize = 512;
const CAPACITY: usize = 640;
const EPSILON: f64 = 1e-5;
const THETA: f64 = 10_000.0;

/// The sizes of a model.
struct Sizes {
    name: &'static str,
    layers: usize,
    width: usize,
    heads: usize,
    kv_heads: usize,
    /// Features of a head.
    features: usize,
    inner: usize,
    vocabulary: usize,
}

const SMALL: Sizes = Sizes {
    name: "SmolLM2-135M",
    layers: 30,
    width: 576,
    heads: 9,
    kv_heads: 3,
    features: 64,
    inner: 1536,
    vocabulary: 49_152,
};

const LARGE: Sizes = Sizes {
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
    norms: [Tensor; 2],
    queries_keys_values: Tensor,
    out: Tensor,
    gate_up: Tensor,
    down: Tensor,
}

struct Model {
    sizes: Sizes,
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Tensor,
    /// The cosines and sines of all positions.
    tables: (Tensor, Tensor),
}

/// The keys and values of a layer: `(kv_heads, CAPACITY, features)`.
type Cache = [Tensor; 2];

/// Where tokens stand in the text.
enum Place<'a> {
    /// From here on.
    Known(usize),
    /// One token at a position that the device holds.
    OnDevice {
        position: &'a Tensor,
        /// The places that the token sees.
        visible: &'a Tensor,
    },
}

impl Model {
    fn new(sizes: Sizes, device: &Device) -> Result<Model> {
        let Sizes { width, heads, kv_heads, features, inner, vocabulary, .. } = sizes;
        let matrix = |rows: usize, columns: usize| -> marquetry::Result<Tensor> {
            let weights = Tensor::randn(0f32, 0.02, (rows, columns), device)?.to_dtype(DType::F16)?;
            weights.realize()?;
            Ok(weights)
        };
        let norm = || Tensor::ones(width, DType::F16, device);
        let layer = |_| -> marquetry::Result<Layer> {
            Ok(Layer {
                norms: [norm()?, norm()?],
                queries_keys_values: matrix((heads + 2 * kv_heads) * features, width)?,
                out: matrix(width, heads * features)?,
                gate_up: matrix(2 * inner, width)?,
                down: matrix(width, inner)?,
            })
        };
        let layers = (0..sizes.layers).map(layer).collect::<marquetry::Result<_>>()?;
        let tables = Tensor::arange(0u32, CAPACITY as u32, device)?.rotary_tables(features, THETA)?;
        let (embedding, head) = (matrix(vocabulary, width)?, matrix(vocabulary, width)?);
        device.synchronize()?;
        Ok(Model { sizes, embedding, layers, norm: norm()?, head, tables })
    }

    fn caches(&self, device: &Device) -> marquetry::Result<Vec<Cache>> {
        let empty = || -> marquetry::Result<Tensor> {
            let zeros = Tensor::zeros((self.sizes.kv_heads, CAPACITY, self.sizes.features), DType::F16, device)?;
            zeros.realize()?;
            Ok(zeros)
        };
        (0..self.sizes.layers).map(|_| Ok([empty()?, empty()?])).collect()
    }

    /// Returns the token that follows these, and writes their keys and values to the caches.
    fn next(&self, ids: &Tensor, place: &Place, caches: &mut Vec<Cache>) -> marquetry::Result<Tensor> {
        let Sizes { heads, kv_heads, features, inner, .. } = self.sizes;
        let tokens = ids.elem_count();
        let (cos, sin) = &self.tables;
        let (cos, sin) = match place {
            Place::Known(first) => (cos.narrow(0, *first, tokens)?, sin.narrow(0, *first, tokens)?),
            Place::OnDevice { position, .. } => {
                let position = position.reshape(1)?;
                (cos.embedding(&position)?, sin.embedding(&position)?)
            }
        };
        let mut x = self.embedding.embedding(ids)?;
        for (layer, cache) in self.layers.iter().zip(caches) {
            let y = x.rms_norm(&layer.norms[0], EPSILON)?.linear(&layer.queries_keys_values, None)?;
            let y = y.reshape((tokens, heads + 2 * kv_heads, features))?.transpose(0, 1)?;
            let turned = y.narrow(0, 0, heads + kv_heads)?.rope(&cos, &sin)?;
            let queries = turned.narrow(0, 0, heads)?;
            let new = [turned.narrow(0, heads, kv_heads)?, y.narrow(0, heads + kv_heads, kv_heads)?];
            let (seen, config) = match place {
                Place::Known(first) => {
                    write(cache, |cache, i| cache.slice_assign((.., *first..first + tokens), &new[i]))?;
                    let causal = AttentionConfig::default().causal(tokens > 1);
                    (first + tokens, causal)
                }
                Place::OnDevice { position, visible } => {
                    let rows = position.reshape((1, 1, 1))?.broadcast_to((kv_heads, 1, features))?;
                    write(cache, |cache, i| cache.scatter(&rows, &new[i], 1))?;
                    (CAPACITY, AttentionConfig::default().mask((*visible).clone()))
                }
            };
            let [keys, values] = [cache[0].narrow(1, 0, seen)?, cache[1].narrow(1, 0, seen)?];
            let y = queries.scaled_dot_product_attention(&keys, &values, &config)?;
            let y = y.transpose(0, 1)?.reshape((tokens, heads * features))?;
            x = x.add(&y.linear(&layer.out, None)?)?;
            let y = x.rms_norm(&layer.norms[1], EPSILON)?.linear(&layer.gate_up, None)?;
            let y = y.narrow(1, 0, inner)?.silu()?.mul(&y.narrow(1, inner, inner)?)?;
            x = x.add(&y.linear(&layer.down, None)?)?;
        }
        let last = x.narrow(0, tokens - 1, 1)?.rms_norm(&self.norm, EPSILON)?;
        let next = last.linear(&self.head, None)?.argmax(-1)?;
        next.realize()?;
        Ok(next)
    }

    /// Captures a token as a step.
    fn step(&self, device: &Device) -> Result<Step> {
        let caches = self.caches(device)?;
        Ok(device.capture(|args| {
            let (ids, position) = (args.input("ids", 1, DType::U32)?, args.input("position", (), DType::U32)?);
            let name = |layer: usize, what: usize| format!("{layer} {}", ["keys", "values"][what]);
            let mut states = Vec::new();
            for (i, [keys, values]) in caches.iter().enumerate() {
                states.push([args.state(name(i, 0), keys)?, args.state(name(i, 1), values)?]);
            }
            let visible = &Tensor::arange(0u32, CAPACITY as u32, device)?.le(&position)?;
            visible.realize()?;
            let next = self.next(&ids, &Place::OnDevice { position: &position, visible }, &mut states)?;
            for (i, cache) in states.into_iter().enumerate() {
                for (what, state) in cache.into_iter().enumerate() {
                    args.update(&name(i, what), state)?;
                }
            }
            Ok([("next", next)])
        })?)
    }
}

/// Replaces keys and values. Their tensors are given away, so that they are changed in place.
fn write(cache: &mut Cache, change: impl Fn(Tensor, usize) -> marquetry::Result<Tensor>) -> marquetry::Result<()> {
    for (i, tensor) in cache.iter_mut().enumerate() {
        let nothing = Tensor::zeros(0, tensor.dtype(), tensor.device())?;
        *tensor = change(std::mem::replace(tensor, nothing), i)?;
    }
    Ok(())
}

/// Measures a model, and prints its rows.
fn measure(sizes: Sizes, device: &Device) -> Result<()> {
    const TOKENS: usize = 20;
    let name = sizes.name;
    let row = |what: &str, queued: f64, done: f64| {
        println!("{:<34} {queued:>8.1} {done:>12.1}", format!("{name}: {what}"));
    };
    let model = Model::new(sizes, device)?;
    let mut caches = model.caches(device)?;
    let prompt: Vec<u32> = (0..PROMPT as u32).collect();
    let prompt = Tensor::from_slice(&prompt, PROMPT, device)?;
    let (start, compiles) = (Instant::now(), device.stats().compiles);
    let warm_up = || {
        let next = model.next(&prompt, &Place::Known(0), &mut model.caches(device)?);
        next.map(|next| [next])
    };
    let (warmed_up, profile) = device.profile(|| device.warm_up(warm_up, |_, _| ()))?;
    warmed_up?;
    let time = |time: Duration| time.as_secs_f64() * 1e6;
    row("warm-up for it, on all cores", time(start.elapsed()), 0.0);
    let compiled = profile.host.iter().filter(|span| span.name.starts_with("compile"));
    let slowest = compiled.max_by_key(|span| span.duration()).map(|span| (span.name.clone(), time(span.duration())));
    println!("{:<34} {slowest:?}", "  the slowest");
    println!("{:<34} {:>8}", "  kernels compiled", device.stats().compiles - compiles);
    let (start, compiles) = (Instant::now(), device.stats().compiles);
    let first = model.next(&prompt, &Place::Known(0), &mut caches)?;
    let queued = start.elapsed().as_secs_f64() * 1e6;
    device.synchronize()?;
    row("first prompt of 512", queued, start.elapsed().as_secs_f64() * 1e6);
    println!("{:<34} {:>8}", "  compiled besides", device.stats().compiles - compiles);
    let prompt_us = median_us(device, 5, || {
        model.next(&prompt, &Place::Known(0), &mut caches)?;
        Ok(device.synchronize()?)
    })?;
    row("prompt of 512", 0.0, prompt_us);

    let launches = device.stats().launches;
    model.next(&first, &Place::Known(PROMPT), &mut caches)?;
    println!("{:<34} {:>8}", "  launches of a token", device.stats().launches - launches);
    // Each token is the next one's input, and the host reads none.
    let tokens = |caches: &mut Vec<Cache>| -> Result<()> {
        let mut ids = first.clone();
        for i in 0..TOKENS {
            ids = model.next(&ids, &Place::Known(PROMPT + i), caches)?;
        }
        Ok(())
    };
    let queued = median_us(device, 11, || tokens(&mut caches))? / TOKENS as f64;
    let done = median_us(device, 11, || {
        tokens(&mut caches)?;
        Ok(device.synchronize()?)
    })?;
    row("token", queued, done / TOKENS as f64);

    let start = Instant::now();
    let step = model.step(device)?;
    println!("{:<34} {:>8.0}", "  capturing a token", start.elapsed().as_secs_f64() * 1e6);
    let launches = device.stats().launches;
    let mut ids = first.clone();
    let mut run = |position: usize| -> Result<()> {
        ids = step.run([("ids", (&ids).into()), ("position", position.into())])?.get("next")?.clone();
        Ok(())
    };
    run(PROMPT)?;
    println!("{:<34} {:>8}", "  launches of a run", device.stats().launches - launches);
    let queued = median_us(device, 31, || run(PROMPT))?;
    row("token of a step, the device idle", queued, 0.0);
    let mut runs = || (0..TOKENS).try_for_each(|i| run(PROMPT + i));
    let queued = median_us(device, 11, &mut runs)? / TOKENS as f64;
    let done = median_us(device, 11, || {
        runs()?;
        Ok(device.synchronize()?)
    })?;
    row("token of a step", queued, done / TOKENS as f64);
    Ok(())
}

/// Prints the rows of language models. The large one needs 15 GB.
pub fn print(device: &Device, wanted: &Wanted) -> Result<()> {
    for sizes in [SMALL, LARGE] {
        let fits = device.info().memory >= 2 * (15 << 30) || sizes.layers == SMALL.layers;
        if fits && wanted.has(&format!("token {}", sizes.name)) {
            measure(sizes, device)?;
        }
    }
    Ok(())
}
