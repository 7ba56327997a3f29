//! Text to tokens.

use anyhow::{Error, Result};
use tokenizers::{Encoding, PaddingParams, Tokenizer, TruncationParams};

/// The most tokens of a text that the model was trained on.
const MAX_TOKENS: usize = 256;

/// Cuts text into the tokens that a model knows.
pub struct Tokens(Tokenizer);

impl Tokens {
    /// Takes the text of a `tokenizer.json`. Its padding and length are for another use, and ignored.
    pub fn new(json: &[u8]) -> Result<Self> {
        let load = || {
            let mut tokenizer = Tokenizer::from_bytes(json)?;
            let truncation = TruncationParams { max_length: MAX_TOKENS, ..Default::default() };
            tokenizer.with_truncation(Some(truncation))?.with_padding(Some(PaddingParams::default()));
            Ok(Tokens(tokenizer))
        };
        load().map_err(Error::from_boxed)
    }

    /// Returns the tokens of each text, padded to the longest one.
    pub fn encode(&self, texts: &[&str]) -> Result<Vec<Encoding>> {
        self.0.encode_batch(texts.to_vec(), true).map_err(Error::from_boxed)
    }
}
