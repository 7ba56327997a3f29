//! A token, and a prompt, of a language model of Llama's form.

#[path = "../language_model/model.rs"]
#[allow(dead_code, reason = "the other bench uses the rest")]
mod model;

use crate::{Wanted, median_us};
use anyhow::Result;
use marquetry::{Device, Tensor};
use model::{LARGE, Model, SMALL, Sizes};
use std::time::Instant;

/// Tokens of the prompt, those for which the caches have room, and those of a round.
const PROMPT: usize = 512;
const CAPACITY: usize = 640;
const TOKENS: usize = 20;

/// Measures a model, and prints its rows.
fn measure(sizes: Sizes, device: &Device) -> Result<()> {
    let name = sizes.name;
    let row = |what: &str, queued: f64, done: f64| {
        println!("{:<34} {queued:>8.1} {done:>12.1}", format!("{name}: {what}"));
    };
    let count = |what: &str, count: u64| println!("{:<34} {count:>8}", format!("  {what}"));
    let us_since = |start: Instant| start.elapsed().as_secs_f64() * 1e6;
    let model = Model::new(sizes, None, CAPACITY, device)?;
    let mut cache = model.cache(1, None)?;
    let sequence = cache.add();
    let prompt: Vec<u32> = (0..PROMPT as u32).collect();
    let prompt = Tensor::from_slice(&prompt, PROMPT, device)?;
    cache.extend(&[(sequence, PROMPT)])?;
    let (start, compiles) = (Instant::now(), device.stats().compiles);
    let warm_up = || model.next(&prompt, 1, &cache).map(|next| [next]);
    let (warmed_up, profile) = device.profile(|| device.warm_up(warm_up, |_, _| ()))?;
    warmed_up?;
    row("warm-up for it, on all cores", us_since(start), 0.0);
    let compiled = profile.host.iter().filter(|span| span.name.starts_with("compile"));
    let slowest = compiled.max_by_key(|span| span.duration()).map(|span| (span.name.clone(), span.duration()));
    println!("{:<34} {slowest:?}", "  the slowest");
    count("kernels compiled", device.stats().compiles - compiles);
    let (start, compiles) = (Instant::now(), device.stats().compiles);
    let first = model.next(&prompt, 1, &cache)?;
    let queued = us_since(start);
    device.synchronize()?;
    row("first prompt of 512", queued, us_since(start));
    count("compiled besides", device.stats().compiles - compiles);
    let prompt_us = median_us(device, 5, || {
        model.next(&prompt, 1, &cache)?;
        Ok(device.synchronize()?)
    })?;
    row("prompt of 512", 0.0, prompt_us);

    let launches = device.stats().launches;
    cache.extend(&[(sequence, 1)])?;
    model.next(&first, 1, &cache)?;
    count("launches of a token", device.stats().launches - launches);
    // Each token is the next one's input, and the host reads none.
    let mut tokens = || -> Result<()> {
        cache.rewind(sequence, PROMPT)?;
        let mut ids = first.clone();
        for _ in 0..TOKENS {
            cache.extend(&[(sequence, 1)])?;
            ids = model.next(&ids, 1, &cache)?;
        }
        Ok(())
    };
    let queued = median_us(device, 11, &mut tokens)? / TOKENS as f64;
    let done = median_us(device, 11, || {
        tokens()?;
        Ok(device.synchronize()?)
    })?;
    row("token", queued, done / TOKENS as f64);

    let start = Instant::now();
    let step = model.step(1, &cache)?;
    count("capturing a token", us_since(start) as u64);
    let mut ids = first.clone();
    let mut run = |rewinds: bool| -> Result<()> {
        if rewinds {
            cache.rewind(sequence, PROMPT)?;
        }
        cache.extend(&[(sequence, 1)])?;
        ids = step.run([("ids", (&ids).into())])?.get("next")?.clone();
        Ok(())
    };
    let launches = device.stats().launches;
    run(true)?;
    count("launches of a run", device.stats().launches - launches);
    let queued = median_us(device, 31, || run(true))?;
    row("token of a step, the device idle", queued, 0.0);
    let mut runs = || (0..TOKENS).try_for_each(|token| run(token == 0));
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
