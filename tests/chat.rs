//! A language model from end to end: the model of the `chat` example, its tokens, and the command line.
//!
//! `tests/data/smollm2.*` hold another implementation's results for four prompts, computed in `f32` from the same
//! quantised weights: tokens, logits, and the tokens that follow if the most probable one is always taken. They come
//! with the margins between the two most probable ones. If a margin is small, rounding decides.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

#[path = "../examples/chat/architecture.rs"]
#[allow(dead_code, reason = "the example uses the rest")]
mod architecture;
#[path = "../examples/chat/chat.rs"]
mod conversation;
#[path = "../examples/chat/decoder.rs"]
mod decoder;
#[path = "../examples/chat/model.rs"]
#[allow(dead_code, reason = "the example uses the rest")]
mod model;
#[path = "../examples/chat/tokens.rs"]
mod tokens;

#[macro_use]
mod each_device;
mod gguf_file;

use architecture::Config;
use conversation::Chat;
use decoder::Decoder;
use gguf_file::{File, Value};
use marquetry::io::{Gguf, Npz};
use marquetry::nn::{KvCache, Sampling, Sequence};
use marquetry::{DType, Device, Tensor};
use model::Model;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::AtomicBool;
use tokens::{Message, Tokens};

/// Logits reach 30. The reference sums in another order.
const TOLERANCE: f32 = 2e-3;
/// Below this margin, rounding may choose another token than in the reference.
const CLEAR_MARGIN: f32 = 0.05;
const CAPACITY: usize = 128;

#[derive(Deserialize)]
struct Sample {
    prompt: String,
    prompt_ids: Vec<u32>,
    greedy_new_ids: Vec<u32>,
    text: String,
    top1_minus_top2: Vec<f32>,
}

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn model_folder() -> PathBuf {
    std::env::var_os("MARQUETRY_SMOLLM2").map_or_else(|| root("target/smollm2"), PathBuf::from)
}

fn path() -> PathBuf {
    model_folder().join("SmolLM2-135M-Instruct.Q4_1.gguf")
}

fn file() -> Gguf {
    Gguf::open(path()).unwrap_or_else(|error| panic!("`make setup` brings the model: {error}"))
}

fn load(device: &Device) -> Model {
    pollster::block_on(Model::load(file(), CAPACITY, DType::F32, device)).unwrap()
}

fn samples() -> BTreeMap<String, Sample> {
    serde_json::from_slice(&std::fs::read(root("tests/data/smollm2.json")).unwrap()).unwrap()
}

/// The samples that the model continues: one in the quick tier, because software devices take seconds for each.
fn continued() -> BTreeMap<String, Sample> {
    samples().into_iter().filter(|(name, _)| full_tier() || name == "chat").collect()
}

fn full_tier() -> bool {
    std::env::var("MARQUETRY_TEST_TIER").is_ok_and(|tier| tier == "full")
}

/// A cache with a sequence.
struct Context {
    cache: KvCache,
    sequence: Sequence,
}

impl Context {
    fn new(model: &Model) -> Self {
        let mut cache = model.cache(1, CAPACITY, None).unwrap();
        let sequence = cache.add();
        Context { cache, sequence }
    }

    /// Announces tokens.
    fn extend(&mut self, ids: &[u32], device: &Device) -> Tensor {
        self.cache.extend(&[(self.sequence, ids.len())]).unwrap();
        Tensor::new(ids, device).unwrap()
    }

    /// Returns the logits behind tokens.
    fn next(&mut self, model: &Model, ids: &[u32]) -> Tensor {
        let vectors = model.forward(&self.extend(ids, model.device()), &self.cache).unwrap();
        model.logits(&vectors.narrow(0, ids.len() - 1, 1).unwrap()).unwrap()
    }
}

fn logits_agree_with_the_reference(device: &Device) {
    let model = load(device);
    let reference = Npz::open(root("tests/data/smollm2.npz")).unwrap();
    let mut worst = 0f32;
    for (name, sample) in continued() {
        let mut context = Context::new(&model);
        let prompt = context.extend(&sample.prompt_ids, device);
        let vectors = model.forward(&prompt, &context.cache).unwrap();
        let expected = reference.load(&name, device).unwrap();
        let rows = expected.dims()[0];
        let last = vectors.narrow(0, sample.prompt_ids.len() - rows, rows).unwrap();
        let found = model.logits(&last).unwrap();
        assert_eq!(found.dims(), expected.dims());
        let error = found.sub(&expected).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        // A NaN is not below.
        assert!(error <= TOLERANCE, "{name}: {error}, more than {TOLERANCE}");
        worst = worst.max(error);
        // The same tokens one by one, through the cache and the kernels for few vectors.
        let mut context = Context::new(&model);
        for (place, &id) in sample.prompt_ids.iter().enumerate() {
            let found = context.next(&model, &[id]);
            let Some(row) = (place + rows).checked_sub(sample.prompt_ids.len()) else { continue };
            let error = found.sub(&expected.narrow(0, row, 1).unwrap()).unwrap().abs().unwrap().max_all().unwrap();
            let error = error.to_scalar::<f32>().unwrap();
            assert!(error <= TOLERANCE, "{name}, token {place} alone: {error}, more than {TOLERANCE}");
            worst = worst.max(error);
        }
    }
    println!("{device}: logits within {worst:e}");
}

fn the_most_probable_tokens_are_those_of_the_reference(device: &Device) {
    let model = load(device);
    let (mut equal, mut all) = (0, 0);
    for (name, sample) in continued() {
        let mut context = Context::new(&model);
        let mut next = sample.prompt_ids.clone();
        let expected = sample.greedy_new_ids.iter().zip(&sample.top1_minus_top2);
        for (place, (&token, &margin)) in expected.enumerate().take(if full_tier() { usize::MAX } else { 8 }) {
            let logits = context.next(&model, &next);
            let found = logits.argmax(-1).unwrap().to_vec::<u32>().unwrap()[0];
            assert!(found == token || margin < CLEAR_MARGIN, "{name}: token {place} is {found}, not {token}");
            equal += u32::from(found == token);
            all += 1;
            // What follows is that of the reference in any case.
            next = vec![token];
        }
    }
    println!("{device}: {equal} of {all} tokens are those of the reference");
}

fn chat_answers(device: &Device) {
    let question = "What is the capital of Italy? Answer in one sentence.";
    let arguments = ["--json", "--max-tokens", "12", "--context", "128", "--prompt", question];
    let output = chat(&[&["--device", &device.id()], &arguments[..]].concat(), &[]);
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{stderr}");
    let reply: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let sample = &samples()["chat"];
    assert_eq!(reply["text"].as_str().unwrap(), sample.text.trim_end_matches("<|im_end|>"));
    assert_eq!(reply["prompt_tokens"], sample.prompt_ids.len());
    assert_eq!(reply["stop"], "end");
    println!("{device}: {} and {} tokens/s", reply["prompt_tokens_per_second"], reply["tokens_per_second"]);
    // Beside the weights and the cache there is little.
    let (config, path) = (Config::read(&file()).unwrap(), path());
    let cache = 2 * config.layers * config.kv_heads * 128 * config.head_width * size_of::<f32>();
    let (reserved, file) = (reply["device_bytes"].as_u64().unwrap(), std::fs::metadata(path).unwrap().len());
    let most = file + file / 5 + cache as u64;
    assert!(reserved <= most, "{reserved} bytes are reserved for a file of {file}, more than {most}");
    println!("{device}: {reserved} bytes reserved for a file of {file}");
}

/// Prompts of different lengths, answered together, get the replies that they get alone.
fn a_batch_is_answered_as_each_alone(device: &Device) {
    let prompts = ["What is the capital of Italy? Answer in one sentence.", "Count to three.", "Say hello."];
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{}\n\n  {}\n{}", prompts[0], prompts[1], prompts[2])).unwrap();
    let id = device.id();
    let json = |arguments: &[&str]| -> serde_json::Value {
        let common = ["--device", &id, "--json", "--max-tokens", "9", "--context", "128"];
        let output = chat(&[&common, arguments].concat(), &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let batch = json(&["--batch-file", file.path().to_str().unwrap()]);
    let answers = batch["answers"].as_array().unwrap();
    assert_eq!(answers.len(), prompts.len());
    let alone = if full_tier() { &prompts[..] } else { &prompts[..1] };
    for (answer, prompt) in answers.iter().zip(alone) {
        let reply = json(&["--prompt", prompt]);
        assert_eq!(answer["prompt"], *prompt);
        assert_eq!((&answer["text"], &answer["stop"]), (&reply["text"], &reply["stop"]), "{prompt}");
    }
}

/// A reply ends where the context is full. Its sequence begins anew, so that the others go on.
#[test]
fn a_batch_goes_on_behind_a_full_context() {
    let prompts =
        ["What is the capital of Italy? Answer in one sentence, and tell what else there is.", "Count to nine."];
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), prompts.join("\n")).unwrap();
    let json = |arguments: &[&str]| -> serde_json::Value {
        let common = ["--device", "vulkan", "--json", "--max-tokens", "24", "--context", "52"];
        let output = chat(&[&common, arguments].concat(), &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let answers = json(&["--batch-file", file.path().to_str().unwrap()])["answers"].clone();
    let replies = prompts.map(|prompt| json(&["--prompt", prompt]));
    for (answer, reply) in answers.as_array().unwrap().iter().zip(&replies) {
        assert_eq!((&answer["text"], &answer["stop"]), (&reply["text"], &reply["stop"]));
    }
    // The second one goes on for longer than the first one's sequence is new.
    let [first, second] = [0, 1].map(|i| answers[i]["tokens"].as_u64().unwrap());
    assert!(answers[0]["stop"] == "limit" && first + 2 < second, "{answers}");
}

/// Captured steps over a packed cache give the tokens that the same work gives without a capture.
#[test]
fn a_packed_cache_serves_captured_steps() {
    let reply = |arguments: &[&str]| -> serde_json::Value {
        let common = ["--device", "vulkan", "--json", "--max-tokens", "8", "--context", "2048", "--prompt", "Count."];
        let output = chat(&[&common, arguments].concat(), &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let [plain, captured, recorded] = [&[][..], &["--packed-cache"], &["--packed-cache", "--no-capture"]].map(reply);
    assert_eq!((&captured["text"], &captured["tokens"]), (&recorded["text"], &recorded["tokens"]));
    assert!(captured["device_bytes"].as_u64() < plain["device_bytes"].as_u64());
}

on_each_device! {
    logits_agree_with_the_reference
    the_most_probable_tokens_are_those_of_the_reference
    chat_answers
    a_batch_is_answered_as_each_alone
}

#[test]
fn text_becomes_the_tokens_of_the_reference() {
    let tokens = Tokens::load(&file()).unwrap();
    for (name, sample) in samples() {
        assert_eq!(tokens.encode(&sample.prompt).unwrap(), sample.prompt_ids, "{name}");
        assert_eq!(tokens.decode(&sample.greedy_new_ids).unwrap(), sample.text, "{name}");
    }
    let question = Message { role: "user", content: "What is the capital of Italy? Answer in one sentence.".into() };
    assert_eq!(tokens.conversation(&[question]).unwrap(), samples()["chat"].prompt);
    // Digits one by one; a character of several tokens comes when it is complete.
    assert_eq!(tokens.encode("2026").unwrap().len(), 4);
    let text = "Grüße 🦀, 世界";
    let mut pieces = tokens.stream();
    let ids = tokens.encode(text).unwrap();
    let pieces: Vec<String> = ids.iter().filter_map(|&id| pieces(id).unwrap()).collect();
    assert_eq!(pieces.concat(), text);
    assert!(pieces.len() < ids.len() && tokens.ends(2) && tokens.ends(0) && !tokens.ends(1));
}

/// `tests/data/tokens.json` comes from scripts/tokens_reference.py: another implementation of the merges and of the
/// template's language.
#[test]
fn texts_and_conversations_are_those_of_transformers() {
    #[derive(Deserialize)]
    struct Reference {
        texts: Vec<Text>,
        conversations: Vec<Conversation>,
        /// The tokens of the texts if they are cut in another way.
        cuts: BTreeMap<String, Vec<Vec<u32>>>,
    }
    #[derive(Deserialize)]
    struct Text {
        text: String,
        ids: Vec<u32>,
    }
    #[derive(Deserialize)]
    struct Conversation {
        messages: Vec<BTreeMap<String, String>>,
        text: String,
    }
    let bytes = std::fs::read(root("tests/data/tokens.json")).unwrap();
    let reference: Reference = serde_json::from_slice(&bytes).unwrap();
    let tokens = Tokens::load(&file()).unwrap();
    assert_eq!(reference.texts.len(), 200);
    for Text { text, ids } in &reference.texts {
        assert_eq!(tokens.encode(text).unwrap(), *ids, "{text:?}");
        assert_eq!(tokens.decode(ids).unwrap(), *text);
    }
    assert_eq!(reference.cuts.len(), 2);
    for (name, all) in &reference.cuts {
        let tokens = cut_by(name);
        assert_eq!(all.len(), reference.texts.len());
        for (Text { text, .. }, ids) in reference.texts.iter().zip(all) {
            assert_eq!(tokens.encode(text).unwrap(), *ids, "{text:?} cut as {name} does");
        }
    }
    for Conversation { messages, text } in reference.conversations {
        let role = |role: &str| ["system", "user", "assistant"].into_iter().find(|known| *known == role).unwrap();
        let messages = messages.into_iter();
        let messages = messages.map(|m| Message { role: role(&m["role"]), content: m["content"].clone() });
        assert_eq!(tokens.conversation(&messages.collect::<Vec<_>>()).unwrap(), text);
    }
}

/// The tokens and merges of the model, with text that is cut in another way.
fn cut_by(name: &str) -> Tokens {
    let file = file();
    let strings = |key: &str| {
        let strings = file.get(key).unwrap().as_strings().unwrap();
        Value::array(8, &strings.iter().map(|text| Value::string(text)).collect::<Vec<_>>())
    };
    let kinds = file.get("tokenizer.ggml.token_type").unwrap().as_integers().unwrap();
    let kinds: Vec<Value> = kinds.into_iter().map(|kind| Value::u32(kind as u32)).collect();
    let file = File::default()
        .with("tokenizer.ggml.model", Value::string("gpt2"))
        .with("tokenizer.ggml.pre", Value::string(name))
        .with("tokenizer.ggml.tokens", strings("tokenizer.ggml.tokens"))
        .with("tokenizer.ggml.merges", strings("tokenizer.ggml.merges"))
        .with("tokenizer.ggml.token_type", Value::array(4, &kinds));
    Tokens::load(&Gguf::from_bytes(file.bytes()).unwrap()).unwrap()
}

/// Runs the example, which `cargo test` has built beside the tests.
fn chat(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let tests = std::env::current_exe().unwrap();
    let folder = tests.ancestors().nth(2).unwrap().join("examples");
    let program = folder.join(format!("chat{}", std::env::consts::EXE_SUFFIX));
    assert!(program.is_file(), "run `cargo build --features gguf --example chat`: no {}", program.display());
    let mut command = Command::new(program);
    command.current_dir(root("")).env("MARQUETRY_SMOLLM2", model_folder());
    command.envs(environment.iter().copied()).args(arguments).output().unwrap()
}

#[test]
fn chat_says_what_is_wrong() {
    let refused = |arguments: &[&str], environment: &[(&str, &str)], reason: &str| {
        let output = chat(&[arguments, &["--prompt", "x"]].concat(), environment);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains(reason), "{arguments:?}: {stderr}");
    };
    refused(&["--model", "no-such-folder"], &[], "run `make setup`");
    refused(&[], &[("MARQUETRY_SMOLLM2", "no-such-folder")], "run `make setup`");
    refused(&["--device", "nonsense"], &[], "`nonsense` names no device");
    refused(&["--temperature", "-1"], &[], "`temperature` must be 0 or more");
    refused(&["--device", "vulkan", "--context", "8"], &[], "give more with --context");
    let reference = root("tests/data/reference.gguf");
    refused(&["--device", "vulkan", "--model", reference.to_str().unwrap()], &[], "metadata `llama.");
}

/// `tests/data/sentencepiece.json` comes from scripts/sentencepiece_reference.py.
#[derive(Deserialize)]
struct Vocabulary {
    has_prefix: bool,
    tokens: Vec<String>,
    scores: Vec<f32>,
    kinds: Vec<u32>,
    texts: Vec<CutText>,
}

#[derive(Deserialize)]
struct CutText {
    text: String,
    ids: Vec<u32>,
    decoded: String,
}

fn vocabularies() -> Vec<Vocabulary> {
    let bytes = std::fs::read(root("tests/data/sentencepiece.json")).unwrap();
    let vocabularies: Vec<Vocabulary> = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(vocabularies.len(), 2);
    vocabularies
}

impl Vocabulary {
    fn file(&self, template: &str) -> File {
        let strings: Vec<Value> = self.tokens.iter().map(|token| Value::string(token)).collect();
        let scores: Vec<Value> = self.scores.iter().map(|score| Value(6, score.to_le_bytes().into())).collect();
        let kinds: Vec<Value> = self.kinds.iter().copied().map(Value::u32).collect();
        File::default()
            .with("tokenizer.ggml.model", Value::string("llama"))
            .with("tokenizer.ggml.tokens", Value::array(8, &strings))
            .with("tokenizer.ggml.scores", Value::array(6, &scores))
            .with("tokenizer.ggml.token_type", Value::array(4, &kinds))
            .with("tokenizer.ggml.unknown_token_id", Value::u32(0))
            .with("tokenizer.ggml.bos_token_id", Value::u32(1))
            .with("tokenizer.ggml.eos_token_id", Value::u32(2))
            .with("tokenizer.ggml.add_space_prefix", Value(7, vec![self.has_prefix.into()]))
            .with("tokenizer.chat_template", Value::string(template))
    }

    fn id(&self, token: &str) -> u32 {
        self.tokens.iter().position(|other| other == token).unwrap() as u32
    }
}

fn tokens_of(file: &File) -> Tokens {
    Tokens::load(&Gguf::from_bytes(file.bytes()).unwrap()).unwrap()
}

#[test]
fn texts_are_cut_as_sentencepiece_cuts_them() {
    for vocabulary in vocabularies() {
        let tokens = tokens_of(&vocabulary.file("<|user|>{{ messages[0].content.strip() }}</s>"));
        assert!(vocabulary.texts.len() > 190);
        for CutText { text, ids, decoded } in &vocabulary.texts {
            assert_eq!(tokens.encode(text).unwrap(), *ids, "{text:?}");
            assert_eq!(tokens.decode(ids).unwrap(), *decoded);
        }
        // Control tokens in a text are tokens. The first one is added if the template does not write it.
        let text = &vocabulary.texts.iter().find(|text| text.text == "Hello").unwrap();
        let message = Message { role: "user", content: "  Hello\n".into() };
        let expected = [&[1, 3], &text.ids[..], &[2]].concat();
        assert_eq!(tokens.encode_conversation(&[message]).unwrap(), expected);
    }
}

/// Tokens that a file defines beside those of SentencePiece are found between letters. Those of Phi 3 take the white
/// space behind them.
#[test]
fn defined_tokens_are_found_in_texts() {
    for mut vocabulary in vocabularies() {
        vocabulary.tokens.push("<tool>".into());
        vocabulary.scores.push(0.0);
        vocabulary.kinds.push(4);
        let (tool, user) = (vocabulary.id("<tool>"), vocabulary.id("<|user|>"));
        let file = vocabulary.file("");
        let tokens = tokens_of(&file);
        let encode = |text: &str| tokens.encode(text).unwrap();
        assert_eq!(encode("a<tool>b"), [encode("a"), vec![tool], encode("b")].concat());
        assert_eq!(encode("<|user|>\nHi"), [vec![user], encode("\nHi")].concat());
        let phi = tokens_of(&file.with("general.architecture", Value::string("phi3")));
        assert_eq!(phi.encode("<|user|>\n Hi").unwrap(), [vec![user], encode("Hi")].concat());
    }
}

/// Bytes that make no character do not end a reply.
#[test]
fn streams_go_on_behind_invalid_bytes() {
    for vocabulary in vocabularies() {
        let tokens = tokens_of(&vocabulary.file(""));
        let mut pieces = tokens.stream();
        let ids = ["<0xC3>", "<0xA9>", "<0xFF>", "\u{2581}the", "\u{2581}of"].map(|token| vocabulary.id(token));
        let text: String = ids.iter().filter_map(|&id| pieces(id).unwrap()).collect();
        assert!(text.starts_with('é') && text.contains('\u{fffd}') && text.ends_with("the of"), "{text:?}");
    }
}

/// A long conversation with a model that sees a window. Old messages are left out, and the window has left behind what
/// the rest would see.
#[test]
fn conversations_may_be_longer_than_the_context_and_the_window() {
    let printable = (0x20u8..0x7d).map(|byte| String::from(byte as char).replace(' ', "\u{2581}"));
    let tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).into_iter().chain(printable).collect();
    let kinds = (0..tokens.len()).map(|id| if id < 3 { 3 } else { 1 }).collect();
    let (scores, texts) = (vec![0.0; tokens.len()], Vec::new());
    let vocabulary = Vocabulary { has_prefix: false, tokens, scores, kinds, texts };
    let template = "{% for message in messages %}{{ message.role }}: {{ message.content }} {% endfor %}assistant: ";
    let tokens = tokens_of(&vocabulary.file(template));

    let (capacity, max_tokens) = (300, 40);
    let file = Gguf::open(root("tests/data/architectures/phi3.gguf")).unwrap();
    let model = pollster::block_on(Model::load(file, capacity, DType::F32, &each_device::open("vulkan"))).unwrap();
    assert_eq!((model.config.vocabulary, model.config.window_of_all()), (vocabulary.tokens.len(), Some(20)));
    let cache = model.cache(1, capacity, None).unwrap();
    let mut chat = Chat::new(Decoder::new(model, cache, 1, capacity, true).unwrap(), tokens);
    let mut computed = Vec::new();
    for turn in 0..12 {
        let message = format!("this is message number {turn}");
        let sampling = Sampling::default().seed(turn);
        let reply =
            pollster::block_on(chat.reply(&message, &sampling, max_tokens, &AtomicBool::new(false), |_| Ok(())))
                .unwrap();
        assert_eq!(chat.replies(), turn + 1);
        assert!(reply.tokens <= max_tokens);
        computed.push(reply.prompt_tokens);
    }
    // The first replies leave the earlier tokens in the cache. Then whole conversations are computed again.
    assert!(computed[1] < 100 && computed[11] > 150, "{computed:?}");
}
