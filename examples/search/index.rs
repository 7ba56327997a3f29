//! The lines of a text with their embeddings.

use crate::model::Model;
use crate::tokens::Tokens;
use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use marquetry::Tensor;
use std::path::Path;

/// A line of the text and its number, counted from 1.
pub struct Line {
    pub number: usize,
    pub text: String,
}

/// Reads the lines of a file that are not blank.
pub fn read_lines(path: &Path) -> Result<Vec<Line>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines: Vec<Line> = text
        .lines()
        .zip(1..)
        .map(|(line, number)| Line { number, text: line.trim().to_string() })
        .filter(|line| !line.text.is_empty())
        .collect();
    ensure!(!lines.is_empty(), "{} has no text in it", path.display());
    Ok(lines)
}

/// Answers which lines are closest in meaning to a query.
pub struct Index {
    lines: Vec<Line>,
    /// One row of length 1 for each line, on the device.
    embeddings: Tensor,
    model: Model,
    tokens: Tokens,
}

impl Index {
    /// Embeds the lines, `batch` of them at a time.
    pub fn build(mut lines: Vec<Line>, batch: usize, model: Model, tokens: Tokens) -> Result<Self> {
        // Lines of similar length in a batch need little padding.
        lines.sort_by_key(|line| line.text.len());
        let style = ProgressStyle::with_template("embedding {bar:40} {pos}/{len} lines, {per_sec}, {eta} left")?;
        let progress = ProgressBar::new(lines.len() as u64).with_style(style);
        let mut parts = Vec::new();
        for batch in lines.chunks(batch) {
            let texts: Vec<&str> = batch.iter().map(|line| line.text.as_str()).collect();
            let part = model.embed(&tokens.encode(&texts)?)?;
            part.realize()?;
            // Otherwise the progress bar would run ahead of the device.
            part.device().synchronize()?;
            progress.inc(batch.len() as u64);
            parts.push(part);
        }
        progress.finish_and_clear();
        Ok(Index { embeddings: Tensor::cat(&parts, 0)?, lines, model, tokens })
    }

    /// The number of lines.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Returns the lines closest to a query, best first, with the cosine of the angle between the embeddings.
    pub fn search(&self, query: &str, top: usize) -> Result<Vec<(f32, &Line)>> {
        let query = self.model.embed(&self.tokens.encode(&[query])?)?;
        // All rows have length 1: the product is the cosine.
        let similarities: Vec<f32> = self.embeddings.matmul(&query.t()?)?.to_vec()?;
        let mut matches: Vec<(f32, &Line)> = similarities.into_iter().zip(&self.lines).collect();
        matches.sort_by(|a, b| b.0.total_cmp(&a.0));
        matches.truncate(top);
        Ok(matches)
    }
}
