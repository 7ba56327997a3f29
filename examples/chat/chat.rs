//! A conversation: replies, token by token.

use crate::decoder::Decoder;
use crate::tokens::{Message, Tokens};
use anyhow::{Result, ensure};
use marquetry::Tensor;
use marquetry::nn::Sampling;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use web_time::Instant;

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

/// A model and the messages so far.
pub struct Chat {
    decoder: Decoder,
    tokens: Tokens,
    /// The tokens in the cache.
    cached: Vec<u32>,
    messages: Vec<Message>,
    /// The replies so far.
    replies: u64,
}

impl Chat {
    pub fn new(decoder: Decoder, tokens: Tokens) -> Self {
        Chat { decoder, tokens, cached: Vec::new(), messages: Vec::new(), replies: 0 }
    }

    /// Returns the number of replies so far.
    pub fn replies(&self) -> u64 {
        self.replies
    }

    /// Replies to a message, with at most so many tokens. Calls `write` with each piece of text, and ends early if
    /// `stop` becomes true.
    pub async fn reply(
        &mut self,
        message: &str,
        sampling: &Sampling,
        max_tokens: usize,
        stop: &AtomicBool,
        mut write: impl FnMut(&str) -> Result<()>,
    ) -> Result<Reply> {
        let capacity = self.decoder.capacity();
        let ids = self.fitting(message, capacity, max_tokens)?;
        // At least the last token is computed: its logits are needed.
        let common = self.cached.iter().zip(&ids).take_while(|(a, b)| a == b).count().min(ids.len() - 1);
        let common = self.decoder.rewind(0, common)?;
        self.cached.truncate(common);
        self.decoder.draw_by(0, sampling, &ids)?;

        let start = Instant::now();
        let first = self.decoder.prompt(&[&ids[common..]])?;
        self.cached.extend(&ids[common..]);
        read(&first).await?;
        let prompt_time = start.elapsed();
        let start = Instant::now();
        let (mut text, mut tokens) = (String::new(), 0);
        let mut pieces = self.tokens.stream();
        let mut newest = first;
        let reason = loop {
            let may_follow = tokens + 1 < max_tokens && self.cached.len() < capacity;
            // The device computes the next token while the host reads this one and writes its text.
            let following = may_follow.then(|| self.decoder.advance(&newest)).transpose()?;
            let token = read(&newest).await?;
            if stop.load(Ordering::Relaxed) {
                break Stop::Interrupted;
            }
            if self.tokens.ends(token) {
                break Stop::End;
            }
            if let Some(piece) = pieces(token)? {
                write(&piece)?;
                text += &piece;
            }
            tokens += 1;
            let Some(following) = following else { break Stop::Limit };
            self.cached.push(token);
            newest = following;
        };
        drop(pieces);
        let decoded = self.cached.len() - ids.len();
        // A token may have been computed that the reply does not have.
        let kept = self.decoder.rewind(0, self.cached.len())?;
        self.cached.truncate(kept);
        self.messages.push(Message { role: "assistant", content: text.clone() });
        self.replies += 1;
        Ok(Reply {
            text,
            tokens,
            prompt_tokens: ids.len() - common,
            prompt_tokens_per_second: rate(ids.len() - common, prompt_time),
            tokens_per_second: rate(decoded, start.elapsed()),
            stop: reason,
        })
    }

    /// Adds a message. Returns the tokens of the conversation. The oldest messages are left out until there is room for
    /// the reply: for `max_tokens`, or for half of the context if that is less.
    fn fitting(&mut self, message: &str, capacity: usize, max_tokens: usize) -> Result<Vec<u32>> {
        let most = capacity - max_tokens.min(capacity / 2);
        let mut messages = self.messages.clone();
        messages.push(Message { role: "user", content: message.into() });
        loop {
            let ids = self.tokens.encode_conversation(&messages)?;
            if ids.len() <= most || (messages.len() == 1 && ids.len() < capacity) {
                self.messages = messages;
                return Ok(ids);
            }
            ensure!(
                messages.len() > 1,
                "the message has {} tokens, and the context {capacity}; shorten it, or give more with --context",
                ids.len()
            );
            // A message and its reply.
            messages.drain(..2);
        }
    }
}

/// Waits for a token.
async fn read(token: &Tensor) -> Result<u32> {
    Ok(token.to_vec_async::<u32>().await?[0])
}

fn rate(tokens: usize, time: Duration) -> f64 {
    if tokens == 0 { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}
