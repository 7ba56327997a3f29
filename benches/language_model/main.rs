//! How fast a language model of random weights reads prompts and writes tokens, on the best device or the one of
//! `MARQUETRY_DEVICE`.
//!
//! `cargo bench --bench language_model` measures all rows, `-- NAME..` those whose names contain one. `--kernels`
//! prints the kernels of a prompt and of a token. `--packed-cache` packs keys and values. Tokens are runs of a captured
//! step, and each is the next one's input: the host reads none. Figures are medians over rounds. Beside a token's time
//! stands the part of it that reading the weights takes, at the bandwidth that the device reaches in an addition.

mod model;

use anyhow::Result;
use marquetry::nn::{KvCache, Sequence};
use marquetry::{BlockFormat, Device, Step, Tensor};
use model::{LARGE, Model, SMALL, Sizes};
use std::time::{Duration, Instant};

/// Tokens of a round, and rounds.
const TOKENS: usize = 24;
const ROUNDS: usize = 7;
const WARM_UP: Duration = Duration::from_millis(500);
/// The tokens of a prompt that are computed at a time.
const CHUNK: usize = 512;

/// Sequences of a model that grow together.
struct Sequences<'a> {
    model: &'a Model,
    cache: KvCache,
    sequences: Vec<Sequence>,
    device: &'a Device,
}

impl<'a> Sequences<'a> {
    fn new(model: &'a Model, count: usize, format: Option<BlockFormat>, device: &'a Device) -> Result<Self> {
        let mut cache = model.cache(count, format)?;
        let sequences = (0..count).map(|_| cache.add()).collect();
        Ok(Sequences { model, cache, sequences, device })
    }

    fn extend(&mut self, tokens: usize) -> Result<()> {
        Ok(self.cache.extend(&self.sequences.iter().map(|&sequence| (sequence, tokens)).collect::<Vec<_>>())?)
    }

    fn rewind(&mut self, length: usize) -> Result<()> {
        Ok(self.sequences.iter().try_for_each(|&sequence| self.cache.rewind(sequence, length))?)
    }

    /// Computes a prompt for each sequence. Returns the tokens that follow.
    fn prompt(&mut self, tokens: usize) -> Result<Tensor> {
        let count = self.sequences.len();
        let mut next = None;
        for first in (0..tokens).step_by(CHUNK) {
            let chunk = CHUNK.min(tokens - first);
            let ids: Vec<u32> = (0..count * chunk).map(|i| (i % 1000) as u32).collect();
            self.extend(chunk)?;
            let ids = Tensor::from_slice(&ids, count * chunk, self.device)?;
            next = Some(self.model.next(&ids, count, &self.cache)?);
        }
        Ok(next.expect("a prompt has tokens"))
    }

    fn token(&mut self, step: &Step, ids: &Tensor) -> Result<Tensor> {
        self.extend(1)?;
        Ok(step.run([("ids", ids.into())])?.get("next")?.clone())
    }
}

/// Returns the median time of a round in seconds. The first round compiles kernels. Some more keep the device busy
/// until its clock is up.
fn median(device: &Device, rounds: usize, mut round: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut time = || -> Result<f64> {
        device.synchronize()?;
        let start = Instant::now();
        round()?;
        device.synchronize()?;
        Ok(start.elapsed().as_secs_f64())
    };
    time()?;
    let begin = Instant::now();
    while begin.elapsed() < WARM_UP {
        time()?;
    }
    let mut times = (0..rounds).map(|_| time()).collect::<Result<Vec<_>>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

struct Wanted {
    names: Vec<String>,
    kernels: bool,
    /// How keys and values are packed.
    cache: Option<BlockFormat>,
}

impl Wanted {
    fn has(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|wanted| name.contains(wanted.as_str()))
    }
}

fn measure(sizes: Sizes, format: Option<BlockFormat>, device: &Device, wanted: &Wanted) -> Result<()> {
    let weights = format.map_or_else(|| "f16".into(), |format| format.to_string());
    let contexts = if sizes.layers == SMALL.layers { &[512][..] } else { &[512, 4000] };
    let name = |what: String| format!("{} {weights}, {what}", sizes.name);
    let rows = contexts.iter().flat_map(|&context| [1, 8].map(|count| (context, count)));
    let rows: Vec<(usize, usize)> = rows.filter(|&(_, count)| wanted.has(&name(format!("x{count}")))).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let model = Model::new(sizes, format, contexts[contexts.len() - 1] + 2 * TOKENS, device)?;
    let bandwidth = device.roofline()?.bandwidth;
    let floor = model.weight_bytes as f64 / bandwidth;
    for (context, count) in rows {
        let mut sequences = Sequences::new(&model, count, wanted.cache, device)?;
        let prompt = median(device, 3, || {
            sequences.rewind(0)?;
            sequences.prompt(context).map(drop)
        })?;
        let row = name(format!("x{count}, prompts of {context}"));
        println!("{row:<46} {:>10.1} us {:>10.0} tokens/s", prompt * 1e6, (count * context) as f64 / prompt);
        sequences.rewind(0)?;
        let (first, profile) = device.profile(|| sequences.prompt(context))?;
        let first = first?;
        if wanted.kernels {
            println!("{profile}");
        }
        sequences.extend(1)?;
        let step = model.step(count, &sequences.cache)?;
        let tokens = |sequences: &mut Sequences<'_>| -> Result<()> {
            sequences.rewind(context)?;
            let mut ids = first.clone();
            for _ in 0..TOKENS {
                ids = sequences.token(&step, &ids)?;
            }
            Ok(())
        };
        let token = median(device, ROUNDS, || tokens(&mut sequences))? / TOKENS as f64;
        let row = name(format!("x{count}, tokens behind {context}"));
        println!(
            "{row:<46} {:>10.1} us {:>10.0} tokens/s, weights {:.3} of the time",
            token * 1e6,
            count as f64 / token,
            floor / token
        );
        if wanted.kernels {
            sequences.rewind(context)?;
            let (run, profile) = device.profile(|| sequences.token(&step, &first))?;
            run?;
            println!("{profile}");
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let device = Device::best()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let kernels = arguments.iter().any(|argument| argument == "--kernels");
    let packed = arguments.iter().any(|argument| argument == "--packed-cache");
    let names = arguments.into_iter().filter(|argument| !argument.starts_with("--")).collect();
    let wanted = Wanted { names, kernels, cache: packed.then_some(BlockFormat::Q8_0) };
    println!("{device}; memory {:.0} GB/s", device.roofline()?.bandwidth / 1e9);
    for sizes in [SMALL, LARGE] {
        for format in [None, Some(BlockFormat::Q4_0)] {
            // The weights, those of which blocks are made, and caches.
            let fits = device.info().memory >= 2 * (15 << 30) || sizes.layers == SMALL.layers;
            if fits {
                measure(sizes, format, &device, &wanted)?;
            }
        }
    }
    Ok(())
}
