//! The lines of a text with their embeddings.

use crate::model::Model;
use crate::tokens::Tokens;
use anyhow::Result;
use marquetry::Tensor;
use std::rc::Rc;

/// A line of the text and its number, counted from 1.
pub struct Line {
    pub number: usize,
    pub text: String,
}

/// Returns the lines of a text that are not blank.
pub fn lines(text: &str) -> Vec<Line> {
    let numbered = text.lines().zip(1..).map(|(line, number)| Line { number, text: line.trim().to_string() });
    numbered.filter(|line| !line.text.is_empty()).collect()
}

/// Answers which lines are closest in meaning to a query.
pub struct Index {
    lines: Vec<Line>,
    /// One row of length 1 for each line, on the device.
    embeddings: Tensor,
    model: Rc<Model>,
    tokens: Rc<Tokens>,
}

impl Index {
    /// Embeds the lines, `batch` of them at a time. `progress` is told how many are done.
    pub async fn build(
        mut lines: Vec<Line>,
        batch: usize,
        model: Rc<Model>,
        tokens: Rc<Tokens>,
        progress: impl Fn(usize),
    ) -> Result<Self> {
        // Lines of similar length in a batch need little padding.
        lines.sort_by_key(|line| line.text.len());
        let (mut parts, mut done) = (Vec::new(), 0);
        for batch in lines.chunks(batch) {
            let texts: Vec<&str> = batch.iter().map(|line| line.text.as_str()).collect();
            let part = model.embed(&tokens.encode(&texts)?)?;
            part.realize()?;
            // Otherwise the progress would run ahead of the device.
            part.device().synchronize_async().await?;
            done += batch.len();
            progress(done);
            parts.push(part);
        }
        Ok(Index { embeddings: Tensor::cat(&parts, 0)?, lines, model, tokens })
    }

    /// The number of lines.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Returns the lines closest to a query, best first, with the cosine of the angle between the embeddings.
    pub async fn search(&self, query: &str, top: usize) -> Result<Vec<(f32, &Line)>> {
        let query = self.model.embed(&self.tokens.encode(&[query])?)?;
        // All rows have length 1: the product is the cosine.
        let similarities: Vec<f32> = self.embeddings.matmul(&query.t()?)?.to_vec_async().await?;
        let mut matches: Vec<(f32, &Line)> = similarities.into_iter().zip(&self.lines).collect();
        matches.sort_by(|a, b| b.0.total_cmp(&a.0));
        matches.truncate(top);
        Ok(matches)
    }
}
