//! A sequence of tokens that a model continues, one token at a time. No token comes to the host in between.

use crate::model::Model;
use anyhow::{Context, Result};
use marquetry::nn::{KvCache, Sampler, Sampling, Sequence};
use marquetry::{DType, Step, Tensor};

/// The tokens of a prompt that are computed at a time. The memory for a chunk grows with them.
const CHUNK: usize = 512;

/// A model, and a sequence in its cache.
pub struct Decoder {
    pub model: Model,
    cache: KvCache,
    sequence: Sequence,
    sampler: Sampler,
    capacity: usize,
    /// Whether a token is a run of a captured step.
    captures: bool,
    /// The work for a token.
    step: Option<Step>,
}

impl Decoder {
    /// Returns the decoder of sequences with at most `capacity` tokens.
    pub fn new(model: Model, capacity: usize, captures: bool) -> Result<Self> {
        let mut cache = model.cache(capacity)?;
        let sequence = cache.add();
        let sampler = Sampler::new(model.config.vocabulary, 1, model.device())?;
        Ok(Decoder { model, cache, sequence, sampler, capacity, captures, step: None })
    }

    /// Returns the most tokens of the sequence.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Sets how tokens are drawn from now on. `text` are the tokens of which repetitions are counted.
    pub fn draw_by(&mut self, sampling: &Sampling, text: &[u32]) -> Result<()> {
        self.sampler.start(0, sampling)?;
        Ok(self.sampler.observe(0, text)?)
    }

    /// Forgets all tokens but the first ones.
    pub fn rewind(&mut self, length: usize) -> Result<()> {
        Ok(self.cache.rewind(self.sequence, length)?)
    }

    /// Appends a prompt. Returns the token `(1)` that follows it.
    pub fn prompt(&mut self, ids: &[u32]) -> Result<Tensor> {
        let mut next = None;
        for chunk in ids.chunks(CHUNK) {
            self.cache.extend(&[(self.sequence, chunk.len())])?;
            let logits = self.model.next(&Tensor::new(chunk, self.model.device())?, &self.cache)?;
            // Only the last chunk's logits are computed: nobody asks for the others. But the cache has all tokens.
            next = Some(logits);
        }
        Ok(self.sampler.sample(&next.context("a prompt has a token or more")?)?)
    }

    /// Appends a token `(1)`. Returns the one that follows it.
    pub fn advance(&mut self, token: &Tensor) -> Result<Tensor> {
        self.cache.extend(&[(self.sequence, 1)])?;
        if !self.captures {
            return Ok(self.sampler.sample(&self.model.next(token, &self.cache)?)?);
        }
        let step = match self.step.take() {
            Some(step) => step,
            None => self.model.device().capture(|args| {
                let token = args.input("token", 1, DType::U32)?;
                Ok([("next", self.sampler.sample(&self.model.next(&token, &self.cache)?)?)])
            })?,
        };
        Ok(self.step.insert(step).run([("token", token.into())])?.get("next")?.clone())
    }
}
