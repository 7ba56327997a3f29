//! A sequence of tokens that a model continues, one token at a time. No token comes to the host in between.

use crate::model::Model;
use anyhow::{Context, Result};
use marquetry::nn::{KvCache, Sequence};
use marquetry::{DType, Step, Tensor};

/// How tokens are chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// 0 takes the most probable token.
    pub temperature: f64,
    /// Tokens are drawn among so many of the most probable ones.
    pub top_k: usize,
}

/// The tokens of a prompt that are computed at a time. The memory for a chunk grows with them.
const CHUNK: usize = 512;

/// A model, and a sequence in its cache.
pub struct Decoder {
    pub model: Model,
    cache: KvCache,
    sequence: Sequence,
    capacity: usize,
    /// Whether a token is a run of a captured step.
    captures: bool,
    /// The work for a token, and how it chooses the next one.
    step: Option<(Sampling, Step)>,
}

impl Decoder {
    /// Returns the decoder of sequences with at most `capacity` tokens.
    pub fn new(model: Model, capacity: usize, captures: bool) -> Result<Self> {
        let mut cache = model.cache(capacity)?;
        let sequence = cache.add();
        Ok(Decoder { model, cache, sequence, capacity, captures, step: None })
    }

    /// Returns the most tokens of the sequence.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Forgets all tokens but the first ones.
    pub fn rewind(&mut self, length: usize) -> Result<()> {
        Ok(self.cache.rewind(self.sequence, length)?)
    }

    /// Appends a prompt. Returns the token `(1)` that follows it.
    pub fn prompt(&mut self, ids: &[u32], sampling: &Sampling) -> Result<Tensor> {
        let mut next = None;
        for chunk in ids.chunks(CHUNK) {
            self.cache.extend(&[(self.sequence, chunk.len())])?;
            let logits = self.model.next(&Tensor::new(chunk, self.model.device())?, &self.cache)?;
            // Only the last chunk's logits are computed: nobody asks for the others. But the cache has all tokens.
            next = Some(logits);
        }
        Ok(choose(&next.context("a prompt has a token or more")?, sampling)?)
    }

    /// Appends a token `(1)`. Returns the one that follows it.
    pub fn advance(&mut self, token: &Tensor, sampling: &Sampling) -> Result<Tensor> {
        self.cache.extend(&[(self.sequence, 1)])?;
        if !self.captures {
            return Ok(choose(&self.model.next(token, &self.cache)?, sampling)?);
        }
        let step = match self.step.take() {
            Some((with, step)) if with == *sampling => step,
            _ => self.model.device().capture(|args| {
                let token = args.input("token", 1, DType::U32)?;
                Ok([("next", choose(&self.model.next(&token, &self.cache)?, sampling)?)])
            })?,
        };
        let (_, step) = self.step.insert((*sampling, step));
        Ok(step.run([("token", token.into())])?.get("next")?.clone())
    }
}

/// Chooses a token on the device.
fn choose(logits: &Tensor, sampling: &Sampling) -> marquetry::Result<Tensor> {
    logits.sample_top_k(sampling.top_k, sampling.temperature)
}
