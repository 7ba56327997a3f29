//! Text to tokens and back, with the tables of a GGUF file; and conversations to text.

use anyhow::{Context, Error, Result, bail, ensure};
use marquetry::io::Gguf;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, context};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::str::FromStr;
use tokenizers::{AddedToken, Tokenizer};

/// Types of tokens in GGUF files: those that stand for no text, and those that are found before all others.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// What stands for a space in tokens of SentencePiece.
const SPACE: &str = "\u{2581}";

/// Tokens that end a reply, by the templates of several models.
const ENDS: [&str; 5] = ["<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>"];

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
    /// The token that all texts begin with.
    first: Option<u32>,
    end: String,
}

impl Tokens {
    pub fn load(file: &Gguf) -> Result<Self> {
        let tokens = file.get("tokenizer.ggml.tokens")?.as_strings()?;
        let flag = |key: &str| file.find(key).map(|field| field.as_bool()).transpose();
        let has_prefix = flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
        let is_sentence_piece = file.get("tokenizer.ggml.model")?.as_str()? == "llama";
        let description = match file.get("tokenizer.ggml.model")?.as_str()? {
            "gpt2" => byte_level(file, tokens)?,
            "llama" => sentence_piece(file, tokens, has_prefix)?,
            model => bail!(
                "the file has a tokenizer `{model}`; this example has byte-level BPE, `gpt2`, and SentencePiece, `llama`"
            ),
        };
        let mut tokenizer = Tokenizer::from_str(&description.to_string()).map_err(Error::from_boxed)?;

        let types = file.get("tokenizer.ggml.token_type")?.as_integers()?;
        // With a space before the text, a token that is normalised would begin with one.
        let normalized = !(is_sentence_piece && has_prefix);
        // Phi 3 takes white space behind its own control tokens away.
        let name = file.find("general.name").map(|field| field.as_str()).transpose()?.unwrap_or_default();
        let strips = file.find("general.architecture").is_some_and(|field| field.as_str().is_ok_and(|x| x == "phi3"))
            || name.to_lowercase().contains("phi-3");
        let of_type = |wanted| {
            let all = tokens.iter().zip(&types).filter(move |(_, kind)| **kind == wanted);
            let added = move |token: &String| {
                let strips = strips && !["<s>", "<unk>", "<|endoftext|>"].contains(&token.as_str());
                let added = AddedToken::from(token.clone(), wanted == CONTROL).rstrip(strips);
                if wanted == CONTROL { added } else { added.normalized(normalized) }
            };
            all.map(move |(token, _)| added(token)).collect::<Vec<_>>()
        };
        tokenizer.add_special_tokens(&of_type(CONTROL));
        tokenizer.add_tokens(&of_type(USER_DEFINED));

        let id = |key: &str| file.find(key).map(|field| field.as_u32()).transpose();
        let (beginning, end) = (id("tokenizer.ggml.bos_token_id")?, id("tokenizer.ggml.eos_token_id")?);
        let text = |id: Option<u32>| id.and_then(|id| tokens.get(id as usize)).cloned().unwrap_or_default();
        let template = file.find("tokenizer.chat_template").map(|field| field.as_str()).transpose()?;
        let pre = file.find("tokenizer.ggml.pre").map(|field| field.as_str()).transpose()?;
        let adds_beginning =
            flag("tokenizer.ggml.add_bos_token")?.unwrap_or(is_sentence_piece || pre == Some("llama-bpe"));
        // Many files name only one of the tokens that end a reply.
        let known = (0..).zip(tokens).filter(|(_, token)| ENDS.contains(&token.as_str())).map(|(id, _)| id);
        Ok(Tokens {
            template: template.map(str::to_string),
            beginning: text(beginning),
            first: beginning.filter(|_| adds_beginning),
            end: text(end),
            ends: [end, id("tokenizer.ggml.eot_token_id")?].into_iter().flatten().chain(known).collect(),
            tokenizer,
        })
    }

    /// Returns the tokens of a text. Names of control tokens in it become these tokens.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.tokenizer.encode_fast(text, false).map_err(Error::from_boxed)?.get_ids().to_vec())
    }

    /// Returns the tokens of a conversation, up to where the assistant's reply begins.
    pub fn encode_conversation(&self, messages: &[Message]) -> Result<Vec<u32>> {
        let mut ids = self.encode(&self.conversation(messages)?)?;
        // Most templates write it themselves.
        if let Some(first) = self.first.filter(|first| ids.first() != Some(first)) {
            ids.insert(0, first);
        }
        ensure!(!ids.is_empty(), "the chat template in the file makes no text of the conversation");
        Ok(ids)
    }

    /// Returns the tokens of a conversation of one message.
    #[cfg_attr(test, allow(dead_code, reason = "tests do not use it"))]
    pub fn encode_prompt(&self, prompt: &str) -> Result<Vec<u32>> {
        self.encode_conversation(&[Message { role: "user", content: prompt.into() }])
    }

    /// Returns the text of tokens.
    #[cfg_attr(not(test), allow(dead_code, reason = "tests use it"))]
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.tokenizer.decode(ids, false).map_err(Error::from_boxed)
    }

    /// Returns a function from each token of a reply to the text that it completes. A character may take several.
    pub fn stream(&self) -> impl FnMut(u32) -> Result<Option<String>> {
        let mut stream = self.tokenizer.decode_stream(true);
        move |id| {
            if let Ok(piece) = stream.step(id) {
                return Ok(piece);
            }
            // Bytes before this token make no character, so the text of the tokens before has changed.
            stream = self.tokenizer.decode_stream(true);
            let piece = stream.step(id).map_err(Error::from_boxed)?;
            Ok(Some(format!("{}{}", char::REPLACEMENT_CHARACTER, piece.unwrap_or_default())))
        }
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
        // Templates are written for Jinja in Python, and call methods of its types.
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
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

fn vocabulary(tokens: &[String]) -> Map<String, Value> {
    tokens.iter().cloned().zip((0u32..).map(Value::from)).collect()
}

/// Returns the description of byte-level BPE, as GPT-2 has it. Text is cut before pairs are merged.
fn byte_level(file: &Gguf, tokens: &[String]) -> Result<Value> {
    let pairs = file.get("tokenizer.ggml.merges")?.as_strings()?.iter();
    let pair = |text: &String| {
        let (left, right) = text.split_once(' ').with_context(|| format!("the merge {text:?} is no pair"))?;
        Ok(json!([left, right]))
    };
    let merges = pairs.map(pair).collect::<Result<Vec<_>>>()?;
    let bytes =
        |cuts| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": cuts});
    // Contractions; words with a sign before them; numbers of so many digits; signs; spaces.
    let words = |digits: &str| {
        let contractions = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)";
        let spaces = r"\s*[\r\n]+|\s+(?!\S)|\s+";
        format!(r"{contractions}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{spaces}")
    };
    let cut_by = |pattern: String| {
        let split = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        json!([split, bytes(false)])
    };
    let (cuts, normalizer) = match file.get("tokenizer.ggml.pre")?.as_str()? {
        "smollm" | "starcoder" | "refact" | "command-r" => {
            (json!([{"type": "Digits", "individual_digits": true}, bytes(true)]), Value::Null)
        }
        "gpt-2" | "default" => (json!([bytes(true)]), Value::Null),
        "llama-bpe" => (cut_by(words("{1,3}")), Value::Null),
        "qwen2" => (cut_by(words("")), json!({"type": "NFC"})),
        other => bail!(
            "the file cuts text as `{other}`; this example knows `smollm`, `starcoder`, `gpt-2`, `llama-bpe` and `qwen2`"
        ),
    };
    Ok(json!({
        "version": "1.0", "normalizer": normalizer, "pre_tokenizer": {"type": "Sequence", "pretokenizers": cuts},
        "decoder": bytes(true),
        // Llama 3 takes a word that is a token as it is.
        "model": {"type": "BPE", "vocab": vocabulary(tokens), "merges": merges,
            "ignore_merges": file.get("tokenizer.ggml.pre")?.as_str()? == "llama-bpe"},
    }))
}

/// Returns the description of SentencePiece's BPE (T. Kudo and J. Richardson, "SentencePiece: A simple and language
/// independent subword tokenizer and detokenizer for Neural Text Processing", 2018). Two neighbours may be merged if
/// they make a token, the one with the highest score first. What is no token becomes tokens of bytes. There may be a
/// space before the text.
fn sentence_piece(file: &Gguf, tokens: &[String], has_prefix: bool) -> Result<Value> {
    let scores = file.get("tokenizer.ggml.scores")?.as_floats()?;
    ensure!(scores.len() == tokens.len(), "there are {} scores for {} tokens", scores.len(), tokens.len());
    let ids: HashMap<&str, usize> = tokens.iter().map(String::as_str).zip(0..).collect();
    let mut merges = Vec::new();
    for (token, &score) in tokens.iter().zip(&scores) {
        let cuts = token.char_indices().skip(1).map(|(cut, _)| token.split_at(cut));
        merges.extend(cuts.filter_map(|(left, right)| Some((score, ids.get(left)?, ids.get(right)?, left, right))));
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let merges: Vec<Value> = merges.into_iter().map(|(.., left, right)| json!([left, right])).collect();
    let unknown = file.find("tokenizer.ggml.unknown_token_id").map(|field| field.as_u32()).transpose()?;
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let mut normalizers = vec![replace(" ", SPACE)];
    let mut decoders = vec![replace(SPACE, " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    if has_prefix {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": SPACE}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    Ok(json!({
        "version": "1.0", "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"type": "BPE", "vocab": vocabulary(tokens), "merges": merges, "byte_fallback": true,
            "unk_token": unknown.and_then(|id| tokens.get(id as usize)), "fuse_unk": true},
    }))
}
