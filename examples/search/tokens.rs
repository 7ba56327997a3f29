//! Text to tokens.

use anyhow::{Error, Result};
use serde::Deserialize;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{
    Encoding, Model, NormalizedString, Normalizer, OffsetType, PaddingDirection, PostProcessor, PreTokenizedString,
    PreTokenizer, TruncationDirection,
};

/// The most tokens of a text that the model was trained on.
const MAX_TOKENS: usize = 256;

/// Cuts text into the tokens that a model knows: what BERT needs of a `tokenizer.json`. The type
/// `tokenizers::Tokenizer` reads every such file, but it would make the page half as large again, with two
/// engines for regular expressions. It also finds names of special tokens in a text, which are plain text here.
#[derive(Deserialize)]
pub struct Tokens {
    normalizer: BertNormalizer,
    pre_tokenizer: BertPreTokenizer,
    model: WordPiece,
    post_processor: TemplateProcessing,
}

impl Tokens {
    /// Takes the text of a `tokenizer.json`. Its padding and length are for another use, and ignored.
    pub fn new(json: &[u8]) -> Result<Self> {
        Ok(serde_json::from_slice(json)?)
    }

    /// Returns the tokens of each text, padded to the longest one.
    pub fn encode(&self, texts: &[&str]) -> Result<Vec<Encoding>> {
        let encoded = texts.iter().map(|text| self.encode_one(text)).collect::<tokenizers::Result<Vec<_>>>();
        let mut encoded = encoded.map_err(Error::from_boxed)?;
        let longest = encoded.iter().map(Encoding::len).max().unwrap_or(0);
        for encoding in &mut encoded {
            encoding.pad(longest, 0, 0, "[PAD]", PaddingDirection::Right);
        }
        Ok(encoded)
    }

    fn encode_one(&self, text: &str) -> tokenizers::Result<Encoding> {
        let mut normalized = NormalizedString::from(text);
        self.normalizer.normalize(&mut normalized)?;
        let mut words = PreTokenizedString::from(normalized);
        self.pre_tokenizer.pre_tokenize(&mut words)?;
        words.tokenize(|word| self.model.tokenize(word.get()))?;
        let mut encoding = words.into_encoding(None, 0, OffsetType::None)?;
        let most = MAX_TOKENS - self.post_processor.added_tokens(false);
        encoding.truncate(most, 0, TruncationDirection::Right);
        self.post_processor.process(encoding, None, true)
    }
}
