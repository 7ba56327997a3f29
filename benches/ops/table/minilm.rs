//! A whole model: a batch of sentences embedded by all-MiniLM-L6-v2, as in the `search` example.

use crate::case::{Bound, Case, Cost, Prepared, Rate};
use crate::close::{ensure_close, numbers};
use anyhow::{Context, Result};
use safetensors::SafeTensors;
use serde::Deserialize;
use std::path::{Path, PathBuf};

const BATCH: usize = 32;

/// A sentence of the tests. `minilm.safetensors` has its embedding by another implementation.
#[derive(Deserialize)]
struct Sample {
    sentence: String,
    ids: Vec<u32>,
}

pub fn case(folder: &Path) -> Result<Case> {
    let folder = folder.to_path_buf();
    let samples: Vec<Sample> = serde_json::from_slice(&read("minilm.json")?)?;
    let tokens = samples.iter().map(|sample| sample.ids.len()).max().unwrap_or(0);
    Ok(Case {
        name: format!("MiniLM f32, {BATCH} sentences of {tokens} tokens"),
        cost: Cost { flops: flops(tokens), bytes: 0.0 },
        rate: Rate::Count(BATCH as f64, "sentences/s"),
        bound: Bound::Fma,
        prepare: Box::new(move |device| {
            let sentences: Vec<&str> = samples.iter().map(|sample| &*sample.sentence).cycle().take(BATCH).collect();
            let (model, tokens) = crate::folder::load(&folder, device)?;
            let encodings = tokens.encode(&sentences)?;
            Ok(Prepared::alone(move |_| model.embed(&encodings), check))
        }),
    })
}

/// Returns the operations of the model's products. Each layer has four products of the width with itself, two with four
/// times the width, and the products of the attention.
fn flops(tokens: usize) -> f64 {
    const LAYERS: usize = 6;
    const WIDTH: usize = 384;
    let per_token = LAYERS * (2 * 12 * WIDTH * WIDTH + 4 * tokens * WIDTH);
    (BATCH * tokens * per_token) as f64
}

fn read(name: &str) -> Result<Vec<u8>> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
}

fn check(embeddings: &marquetry::Tensor) -> Result<()> {
    let bytes = read("minilm.safetensors")?;
    let file = SafeTensors::deserialize(&bytes)?;
    let expected: Vec<f32> = bytemuck::pod_collect_to_vec(file.tensor("embeddings")?.data());
    for (found, expected) in numbers(embeddings)?.iter().zip(expected.iter().cycle()) {
        // The tolerance of the tests. The other implementation's own results in f32 and f64 differ by less.
        ensure_close("an element of an embedding", *found, f64::from(*expected), 2e-6)?;
    }
    Ok(())
}
