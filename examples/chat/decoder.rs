//! Sequences of tokens that a model continues together, a token each at a time. No token comes to the host in between.

use crate::model::Model;
use anyhow::Result;
use marquetry::nn::{KvCache, Sampler, Sampling, Sequence};
use marquetry::{DType, Step, Tensor};

/// The tokens of prompts that are computed at a time. The memory for them grows with their number.
const CHUNK: usize = 512;

/// The tokens of a prompt whose kernels are compiled before there is one.
const WARM_UP: usize = 40;

/// A model, and sequences in its cache.
pub struct Decoder {
    pub model: Model,
    cache: KvCache,
    sequences: Vec<Sequence>,
    sampler: Sampler,
    capacity: usize,
    /// Whether a token is a run of a captured step.
    captures: bool,
    /// The work for a token of each sequence.
    step: Option<Step>,
}

impl Decoder {
    /// Returns the decoder of some sequences, over a cache for at most `capacity` tokens of each.
    pub fn new(model: Model, mut cache: KvCache, sequences: usize, capacity: usize, captures: bool) -> Result<Self> {
        let sampler = Sampler::new(model.config.vocabulary, sequences, model.device())?;
        let sequences = (0..sequences).map(|_| cache.add()).collect();
        Ok(Decoder { model, cache, sequences, sampler, capacity, captures, step: None })
    }

    /// Returns the most tokens of a sequence.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Sets how a sequence's tokens are drawn from now on. `text` are the tokens of which repetitions are counted.
    pub fn draw_by(&mut self, sequence: usize, sampling: &Sampling, text: &[u32]) -> Result<()> {
        self.sampler.start(sequence, sampling)?;
        Ok(self.sampler.observe(sequence, text)?)
    }

    /// Forgets all tokens of a sequence but the first ones. If a window has left behind what the next token would see,
    /// it forgets all. Returns how many it keeps.
    pub fn rewind(&mut self, sequence: usize, length: usize) -> Result<usize> {
        let sequence = self.sequences[sequence];
        if self.cache.rewind(sequence, length).is_ok() {
            return Ok(length);
        }
        self.cache.rewind(sequence, 0)?;
        Ok(0)
    }

    /// Compiles the kernels of a short prompt, and of a token that follows it. `progress` is told how many of them are
    /// done, and how many there are. The cache is empty before and after it.
    #[allow(dead_code, reason = "only pages use it")]
    pub async fn warm_up(&mut self, mut progress: impl FnMut(usize, usize)) -> Result<()> {
        for sequence in 0..self.sequences.len() {
            self.sampler.start(sequence, &Sampling::default())?;
        }
        for tokens in [WARM_UP, 1] {
            let more: Vec<_> = self.sequences.iter().map(|&sequence| (sequence, tokens)).collect();
            self.cache.extend(&more)?;
            let ids = Tensor::zeros(tokens * more.len(), DType::U32, self.model.device())?;
            let work = || {
                let vectors = self.model.forward(&ids, &self.cache)?;
                Ok([self.sampler.sample(&self.model.logits(&vectors.narrow(0, 0, more.len())?)?)?])
            };
            self.model.device().warm_up_async(work, &mut progress).await?;
            for &sequence in &self.sequences {
                self.cache.rewind(sequence, 0)?;
            }
        }
        Ok(())
    }

    /// Appends a prompt to each sequence. Returns the tokens `(sequences)` that follow them.
    pub fn prompt(&mut self, prompts: &[&[u32]]) -> Result<Tensor> {
        let mut ends = Vec::new();
        for pass in passes(prompts) {
            let more: Vec<_> = pass.iter().map(|piece| (self.sequences[piece.sequence], piece.ids.len())).collect();
            self.cache.extend(&more)?;
            let ids: Vec<u32> = pass.iter().flat_map(|piece| piece.ids).copied().collect();
            let vectors = self.model.forward(&Tensor::new(ids, self.model.device())?, &self.cache)?;
            let mut end = 0;
            for piece in pass {
                end += piece.ids.len();
                if piece.is_last {
                    ends.push(vectors.narrow(0, end - 1, 1)?);
                }
            }
        }
        let logits = self.model.logits(&Tensor::cat(&ends, 0)?)?;
        Ok(self.sampler.sample(&logits)?)
    }

    /// Appends a token to each sequence, `(sequences)`. Returns the ones that follow them.
    pub fn advance(&mut self, tokens: &Tensor) -> Result<Tensor> {
        let more: Vec<_> = self.sequences.iter().map(|&sequence| (sequence, 1)).collect();
        self.cache.extend(&more)?;
        let next =
            |tokens: &Tensor| self.sampler.sample(&self.model.logits(&self.model.forward(tokens, &self.cache)?)?);
        if !self.captures {
            return Ok(next(tokens)?);
        }
        let step = match self.step.take() {
            Some(step) => step,
            None => self.model.device().capture(|args| {
                let tokens = args.input("tokens", more.len(), DType::U32)?;
                Ok([("next", next(&tokens)?)])
            })?,
        };
        Ok(self.step.insert(step).run([("tokens", tokens.into())])?.get("next")?.clone())
    }
}

/// A part of a sequence's prompt.
struct Piece<'a> {
    sequence: usize,
    ids: &'a [u32],
    is_last: bool,
}

/// Cuts prompts into passes of at most `CHUNK` tokens. The last pieces come in the order of the sequences.
fn passes<'a>(prompts: &[&'a [u32]]) -> Vec<Vec<Piece<'a>>> {
    let (mut passes, mut room) = (Vec::new(), 0);
    for (sequence, mut rest) in prompts.iter().copied().enumerate() {
        while !rest.is_empty() {
            if room == 0 {
                passes.push(Vec::new());
                room = CHUNK;
            }
            let (ids, behind) = rest.split_at(rest.len().min(room));
            room -= ids.len();
            rest = behind;
            if let Some(pass) = passes.last_mut() {
                pass.push(Piece { sequence, ids, is_last: rest.is_empty() });
            }
        }
    }
    passes
}
