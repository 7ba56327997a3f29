//! Text to tokens and back, with the tables of a GGUF file; and conversations to text.

use anyhow::{Context, Error, Result, bail, ensure};
use marquetry::io::Gguf;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, context};
use serde_json::{Map, Value, json};
use std::str::FromStr;
use tokenizers::{AddedToken, Tokenizer};

/// Types of tokens in GGUF files: those that stand for no text, and those that are found before all others.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// A part of a conversation.
#[derive(Debug, Clone)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: &'static str,
    pub content: String,
}

/// What the file says about text.
pub struct Tokens {
    tokenizer: Tokenizer,
    template: Option<String>,
    /// Tokens that end a reply.
    ends: Vec<u32>,
    beginning: String,
    end: String,
}

impl Tokens {
    pub fn load(file: &Gguf) -> Result<Self> {
        let model = file.get("tokenizer.ggml.model")?.as_str()?;
        ensure!(model == "gpt2", "the file has a tokenizer `{model}`; this example has byte-level BPE, `gpt2`");
        let tokens = file.get("tokenizer.ggml.tokens")?.as_strings()?;
        let vocabulary: Map<String, Value> = tokens.iter().cloned().zip((0u32..).map(Value::from)).collect();
        let pairs = file.get("tokenizer.ggml.merges")?.as_strings()?.iter();
        let pair = |text: &String| {
            let (left, right) = text.split_once(' ').with_context(|| format!("the merge {text:?} is no pair"))?;
            Ok(json!([left, right]))
        };
        let merges = pairs.map(pair).collect::<Result<Vec<_>>>()?;
        let byte_level =
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true});
        // How text is cut before pairs are merged.
        let cut = match file.get("tokenizer.ggml.pre")?.as_str()? {
            "smollm" | "starcoder" | "refact" | "command-r" => {
                json!({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}, byte_level]})
            }
            "gpt-2" | "default" => byte_level.clone(),
            other => bail!("the file cuts text as `{other}`; this example knows `smollm`, `starcoder` and `gpt-2`"),
        };
        let description = json!({
            "version": "1.0", "pre_tokenizer": cut, "decoder": byte_level,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
        });
        let mut tokenizer = Tokenizer::from_str(&description.to_string()).map_err(Error::from_boxed)?;

        let types = file.get("tokenizer.ggml.token_type")?.as_integers()?;
        let of_type = |wanted| {
            let all = tokens.iter().zip(&types).filter(move |(_, kind)| **kind == wanted);
            all.map(move |(token, _)| AddedToken::from(token.clone(), wanted == CONTROL)).collect::<Vec<_>>()
        };
        tokenizer.add_special_tokens(&of_type(CONTROL));
        tokenizer.add_tokens(&of_type(USER_DEFINED));

        let id = |key: &str| file.find(key).map(|field| field.as_u32()).transpose();
        let end = id("tokenizer.ggml.eos_token_id")?;
        let text = |id: Option<u32>| id.and_then(|id| tokens.get(id as usize)).cloned().unwrap_or_default();
        let template = file.find("tokenizer.chat_template").map(|field| field.as_str()).transpose()?;
        Ok(Tokens {
            template: template.map(str::to_string),
            beginning: text(id("tokenizer.ggml.bos_token_id")?),
            end: text(end),
            ends: [end, id("tokenizer.ggml.eot_token_id")?].into_iter().flatten().collect(),
            tokenizer,
        })
    }

    /// Returns the tokens of a text. Names of control tokens in it become these tokens.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.tokenizer.encode_fast(text, false).map_err(Error::from_boxed)?.get_ids().to_vec())
    }

    /// Returns the text of tokens.
    #[cfg_attr(not(test), allow(dead_code, reason = "tests use it"))]
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.tokenizer.decode(ids, false).map_err(Error::from_boxed)
    }

    /// Returns a function from each token of a reply to the text that it completes. A character may take several.
    pub fn stream(&self) -> impl FnMut(u32) -> Result<Option<String>> {
        let mut stream = self.tokenizer.decode_stream(true);
        move |id| stream.step(id).map_err(Error::from_boxed)
    }

    pub fn ends(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// Returns the text of a conversation, up to where the assistant's reply begins, by the template in the file.
    pub fn conversation(&self, messages: &[Message]) -> Result<String> {
        let Some(template) = &self.template else {
            bail!("the file has no chat template, so it is no model for chats")
        };
        let mut environment = Environment::new();
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        environment.add_function("raise_exception", |message: String| -> Result<String, minijinja::Error> {
            Err(minijinja::Error::new(minijinja::ErrorKind::InvalidOperation, message))
        });
        let message = |message: &Message| context! { role => message.role, content => message.content.as_str() };
        let messages: Vec<minijinja::Value> = messages.iter().map(message).collect();
        let values = context! {
            messages, add_generation_prompt => true, bos_token => self.beginning.as_str(), eos_token => self.end.as_str(),
        };
        environment.render_str(template, values).context("the chat template in the file does not work")
    }
}
