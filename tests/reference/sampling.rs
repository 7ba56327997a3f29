//! Drawing tokens from logits, by sorting and adding up.

use super::threefry::{threefry, uniform};

/// How the next token of a sequence is drawn.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    pub temperature: f64,
    pub top_k: Option<usize>,
    pub top_p: Option<f64>,
    pub min_p: f64,
    pub repetition: f64,
    pub presence: f64,
    pub frequency: f64,
    pub seed: u64,
}

/// What a sequence knows of a token: whether it stands in the prompt, and how often it was drawn.
pub type Seen = (bool, u32);

/// Tokens with the same score, and their probability together.
struct Level {
    score: f64,
    tokens: Vec<usize>,
    weight: f64,
}

/// How near a sum may come to a limit before both sides of it count. Devices round probabilities to steps of a factor
/// `2^(2^-16)`, a relative error of 5.3e-6 at most, and count them in steps of 2^-18, another 1.9e-6.
const SLACK: f64 = 1e-5;

/// How near two scores may be before they count as equal: twice the step.
const STEP: f64 = 2.2e-5;

impl Rules {
    /// Returns the tokens from which this draw chooses: those with the same scores, the most probable ones first.
    fn levels(&self, logits: &[f64], seen: &[Seen]) -> Vec<Level> {
        let score = |(&logit, &(prompt, count)): (&f64, &Seen)| {
            let repeated = if logit > 0.0 { logit / self.repetition } else { logit * self.repetition };
            let logit = if prompt || count > 0 { repeated } else { logit };
            logit - self.frequency * f64::from(count) - if count > 0 { self.presence } else { 0.0 }
        };
        let scores: Vec<f64> = logits.iter().zip(seen).map(score).collect();
        let mut order: Vec<usize> = (0..scores.len()).filter(|&token| scores[token] > f64::NEG_INFINITY).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
        let Some(&best) = order.first() else { return Vec::new() };
        let relative = |token: usize| (scores[token] - scores[best]) / self.temperature;
        let relative = |token| if scores[token] == scores[best] { 0.0 } else { relative(token) };
        let levels = order.chunk_by(|&a, &b| scores[a] == scores[b]).map(|tokens| {
            let score = relative(tokens[0]);
            Level { score, tokens: tokens.to_vec(), weight: tokens.len() as f64 * score.exp() }
        });
        let mut levels: Vec<Level> = levels.take_while(|level| level.score.exp() >= self.min_p).collect();
        let mut before = 0;
        if let Some(k) = self.top_k {
            levels.retain(|level| {
                before += level.tokens.len();
                before - level.tokens.len() < k
            });
        }
        levels
    }

    /// Returns the probability of each token.
    pub fn probabilities(&self, logits: &[f64], seen: &[Seen]) -> Vec<f64> {
        let mut levels = self.levels(logits, seen);
        levels.truncate(self.within_top_p(&levels, 0.0));
        let sum: f64 = levels.iter().map(|level| level.weight).sum();
        let mut probabilities = vec![0.0; logits.len()];
        for Level { tokens, weight, .. } in &levels {
            tokens.iter().for_each(|&token| probabilities[token] = weight / sum / tokens.len() as f64);
        }
        probabilities
    }

    /// Returns how many levels `top_p` leaves.
    fn within_top_p(&self, levels: &[Level], slack: f64) -> usize {
        let sum: f64 = levels.iter().map(|level| level.weight).sum();
        let limit = self.top_p.map_or(f64::INFINITY, |p| (p + slack) * sum);
        let mut before = 0.0;
        let more = levels.iter().position(|level| {
            before += level.weight;
            let others = before - level.weight;
            others >= limit && others > 0.0
        });
        more.unwrap_or(levels.len())
    }

    /// Returns the tokens that the `number`th draw may give. There is one, unless a sum is near a limit.
    pub fn draws(&self, logits: &[f64], seen: &[Seen], number: u32) -> Vec<usize> {
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        let levels = self.levels(logits, seen);
        let greedy = self.temperature == 0.0 || self.top_k == Some(1);
        let bits = |token: usize| if greedy { 0 } else { threefry(key, [token as u32, number])[0] };
        let chosen = |level: &Level| level.tokens.iter().copied().min_by_key(|&token| (bits(token), token));
        let mut found = Vec::new();
        for slack in [-SLACK, 0.0, SLACK] {
            let kept = &levels[..self.within_top_p(&levels, slack)];
            let sum: f64 = kept.iter().map(|level| level.weight).sum();
            let target = sum * uniform(threefry(key, [u32::MAX, number])[0]);
            let mut before = 0.0;
            for (place, level) in kept.iter().enumerate() {
                let (low, high) = (before - SLACK * sum, before + level.weight + SLACK * sum);
                before += level.weight;
                if !(low..=high).contains(&target) {
                    continue;
                }
                // Scores that count as equal.
                let near = |pair: &[Level]| pair[0].score - pair[1].score < STEP;
                let first = (0..place).rev().take_while(|&i| near(&kept[i..i + 2])).last().unwrap_or(place);
                let last = (place + 1..kept.len()).take_while(|&i| near(&kept[i - 1..i + 1])).last().unwrap_or(place);
                found.extend(kept[first..=last].iter().filter_map(chosen));
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}
