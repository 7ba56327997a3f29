//! A conversation: replies, token by token.

use crate::model::{Cache, Model};
use crate::tokens::{Message, Tokens};
use anyhow::{Result, ensure};
use marquetry::Tensor;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How tokens are chosen.
#[derive(Debug, Clone, Copy)]
pub struct Sampling {
    /// 0 takes the most probable token.
    pub temperature: f64,
    /// Tokens are drawn among so many of the most probable ones.
    pub top_k: usize,
    pub max_tokens: usize,
}

/// Why a reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stop {
    /// The model ended it.
    End,
    /// It has `max_tokens`, or the context is full.
    Limit,
    /// The user stopped it.
    Interrupted,
}

/// A reply and its times.
#[derive(Debug, Serialize)]
pub struct Reply {
    pub text: String,
    pub tokens: usize,
    /// Tokens of the prompt that were computed. Those of earlier replies are in the cache.
    pub prompt_tokens: usize,
    pub prompt_tokens_per_second: f64,
    pub tokens_per_second: f64,
    pub stop: Stop,
}

/// A model with a cache and the messages so far.
pub struct Chat {
    model: Model,
    tokens: Tokens,
    cache: Cache,
    /// The tokens in the cache.
    cached: Vec<u32>,
    messages: Vec<Message>,
}

impl Chat {
    pub fn new(model: Model, tokens: Tokens, cache: Cache) -> Self {
        Chat { model, tokens, cache, cached: Vec::new(), messages: Vec::new() }
    }

    /// Replies to a message. Calls `write` with each piece of text, and ends early if `stop` becomes true.
    pub fn reply(
        &mut self,
        message: &str,
        sampling: &Sampling,
        stop: &AtomicBool,
        mut write: impl FnMut(&str) -> Result<()>,
    ) -> Result<Reply> {
        self.messages.push(Message { role: "user", content: message.into() });
        let ids = self.tokens.encode(&self.tokens.conversation(&self.messages)?)?;
        let capacity = self.cache.capacity();
        if ids.len() >= capacity {
            self.messages.pop();
        }
        ensure!(
            ids.len() < capacity,
            "the conversation has {} tokens, and the context {capacity}; begin a new one, or give more with --context",
            ids.len()
        );
        // At least the last token is computed: its logits are needed.
        let common = self.cached.iter().zip(&ids).take_while(|(a, b)| a == b).count().min(ids.len() - 1);
        self.cached.truncate(common);
        self.cache.truncate(common);

        let start = Instant::now();
        let mut next = self.advance(&ids[common..], sampling)?;
        let prompt_time = start.elapsed();
        let start = Instant::now();
        let (mut text, mut tokens) = (String::new(), 0);
        let mut pieces = self.tokens.stream();
        let reason = loop {
            if stop.load(Ordering::Relaxed) {
                break Stop::Interrupted;
            }
            if self.tokens.ends(next) {
                break Stop::End;
            }
            if let Some(piece) = pieces(next)? {
                write(&piece)?;
                text += &piece;
            }
            tokens += 1;
            if tokens == sampling.max_tokens || self.cached.len() == capacity {
                break Stop::Limit;
            }
            let ids = Tensor::new([[next]], self.model.device())?;
            let logits = self.model.next(&ids, &mut self.cache)?;
            self.cached.push(next);
            next = choose(&logits, sampling)?;
        };
        drop(pieces);
        let decoded = self.cached.len() - ids.len();
        self.messages.push(Message { role: "assistant", content: text.clone() });
        Ok(Reply {
            text,
            tokens,
            prompt_tokens: ids.len() - common,
            prompt_tokens_per_second: rate(ids.len() - common, prompt_time),
            tokens_per_second: rate(decoded, start.elapsed()),
            stop: reason,
        })
    }

    /// Puts tokens behind those in the cache, and chooses the next one.
    fn advance(&mut self, ids: &[u32], sampling: &Sampling) -> Result<u32> {
        let tensor = Tensor::new(ids, self.model.device())?.unsqueeze(0)?;
        let logits = self.model.next(&tensor, &mut self.cache)?;
        self.cached.extend(ids);
        choose(&logits, sampling)
    }
}

/// Chooses a token on the device, and waits for it.
fn choose(logits: &Tensor, sampling: &Sampling) -> Result<u32> {
    Ok(logits.sample_top_k(sampling.top_k, sampling.temperature)?.to_vec::<u32>()?[0])
}

fn rate(tokens: usize, time: Duration) -> f64 {
    if tokens == 0 { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}
