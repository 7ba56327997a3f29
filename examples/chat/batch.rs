//! Several prompts at a time, as one batch of sequences of different lengths.

use crate::chat::Stop;
use crate::decoder::Decoder;
use crate::tokens::Tokens;
use anyhow::{Result, ensure};
use marquetry::nn::Sampling;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The reply to a prompt.
#[derive(Debug, Serialize)]
pub struct Answer {
    pub prompt: String,
    pub text: String,
    pub tokens: usize,
    pub stop: Stop,
}

/// The replies, and their times.
#[derive(Debug, Serialize)]
pub struct Answers {
    pub answers: Vec<Answer>,
    /// Of all prompts.
    pub prompt_tokens: usize,
    pub prompt_tokens_per_second: f64,
    /// Of all replies.
    pub tokens_per_second: f64,
}

/// Answers prompts, each with at most `max_tokens` tokens. The decoder has a sequence for each. `sampling` returns how
/// a prompt's tokens are drawn. Calls `progress` with how many replies have ended. They end early if `stop` becomes
/// true.
pub fn answer_all(
    decoder: &mut Decoder,
    tokens: &Tokens,
    prompts: &[String],
    sampling: impl Fn(usize) -> Sampling,
    max_tokens: usize,
    stop: &AtomicBool,
    mut progress: impl FnMut(usize),
) -> Result<Answers> {
    let ids = |prompt: &String| {
        let ids = tokens.encode_prompt(prompt)?;
        let capacity = decoder.capacity();
        ensure!(
            ids.len() < capacity,
            "the prompt {prompt:?} has {} tokens, and the context {capacity}; shorten it, or give more with --context",
            ids.len()
        );
        Ok(ids)
    };
    let ids = prompts.iter().map(ids).collect::<Result<Vec<_>>>()?;
    for (sequence, ids) in ids.iter().enumerate() {
        decoder.draw_by(sequence, &sampling(sequence), ids)?;
    }
    let start = Instant::now();
    let mut newest = decoder.prompt(&ids.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
    newest.to_vec::<u32>()?;
    let prompt_time = start.elapsed().as_secs_f64();

    let start = Instant::now();
    let mut lengths: Vec<usize> = ids.iter().map(Vec::len).collect();
    let mut replies: Vec<(Vec<u32>, Option<Stop>)> = vec![(Vec::new(), None); prompts.len()];
    let (mut ended, mut decoded) = (0, 0);
    while ended < prompts.len() && !stop.load(Ordering::Relaxed) {
        // A sequence that has ended goes on with the others, so that the captured step serves all. Nobody reads it.
        let full: Vec<bool> = lengths.iter().map(|&length| length == decoder.capacity()).collect();
        for (sequence, length) in lengths.iter_mut().enumerate() {
            if full[sequence] {
                *length = decoder.rewind(sequence, 0)?;
            }
            *length += 1;
        }
        // The device computes the next tokens while the host reads these.
        let following = decoder.advance(&newest)?;
        let drawn = newest.to_vec::<u32>()?;
        for (sequence, (reply, reason)) in replies.iter_mut().enumerate().filter(|(_, (_, reason))| reason.is_none()) {
            if tokens.ends(drawn[sequence]) {
                *reason = Some(Stop::End);
                continue;
            }
            reply.push(drawn[sequence]);
            if reply.len() == max_tokens || full[sequence] {
                *reason = Some(Stop::Limit);
            }
        }
        ended = replies.iter().filter(|(_, reason)| reason.is_some()).count();
        decoded += prompts.len() - ended;
        progress(ended);
        newest = following;
    }
    let seconds = start.elapsed().as_secs_f64();
    let answer = |((ids, reason), prompt): ((Vec<u32>, Option<Stop>), &String)| {
        let mut pieces = tokens.stream();
        let text: Vec<_> = ids.iter().filter_map(|&id| pieces(id).transpose()).collect::<Result<_>>()?;
        let text = text.concat();
        Ok(Answer { prompt: prompt.clone(), text, tokens: ids.len(), stop: reason.unwrap_or(Stop::Interrupted) })
    };
    let prompt_tokens: usize = ids.iter().map(Vec::len).sum();
    Ok(Answers {
        answers: replies.into_iter().zip(prompts).map(answer).collect::<Result<_>>()?,
        prompt_tokens,
        prompt_tokens_per_second: prompt_tokens as f64 / prompt_time,
        tokens_per_second: if decoded == 0 { 0.0 } else { decoded as f64 / seconds },
    })
}
