//! The folder of all-MiniLM-L6-v2.

use crate::model::Model;
use crate::tokens::Tokens;
use anyhow::{Context, Result};
use marquetry::Device;
use marquetry::io::SafeTensors;
use std::path::Path;

/// Reads `model.safetensors` and `tokenizer.json`.
pub fn load(folder: &Path, device: &Device) -> Result<(Model, Tokens)> {
    let [weights, tokens] = ["model.safetensors", "tokenizer.json"].map(|name| folder.join(name));
    let read = || Tokens::new(&std::fs::read(&tokens)?);
    let tokens = read().with_context(|| format!("cannot read {}", tokens.display()))?;
    let load = || pollster::block_on(Model::load(SafeTensors::open(&weights)?, device));
    let model = load().with_context(|| format!("{} is not this model", weights.display()))?;
    Ok((model, tokens))
}
