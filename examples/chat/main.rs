//! A chat with a small language model. Its weights stay quantised on the device.
//!
//! ```text
//! make setup
//! cargo run --release --features gguf --example chat -- --prompt "What is the capital of Italy?"
//! ```

mod architecture;
mod batch;
mod chat;
mod decoder;
mod model;
mod tokens;

use anyhow::{Context, Result, ensure};
use architecture::Config;
use batch::answer_all;
use chat::{Chat, Reply, Stop};
use clap::{Parser, ValueEnum};
use decoder::Decoder;
use marquetry::io::Gguf;
use marquetry::nn::Sampling;
use marquetry::{BlockFormat, DType, Device};
use model::Model;
use pollster::block_on;
use serde_json::json;
use std::io::{BufRead, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use tokens::Tokens;

/// Chat with a language model
#[derive(Parser)]
struct Args {
    /// What to ask; without it, messages are read from the terminal until an empty line
    #[arg(long)]
    prompt: Option<String>,
    /// A file with what to ask
    #[arg(long, conflicts_with = "prompt")]
    prompt_file: Option<PathBuf>,
    /// A file with a prompt in each line; all are answered at a time
    #[arg(long, conflicts_with_all = ["prompt", "prompt_file"])]
    batch_file: Option<PathBuf>,
    /// The device to run on, as in `vulkan:0` or `webgpu`; without it, the best one
    #[arg(long)]
    device: Option<String>,
    /// The most tokens of a reply
    #[arg(long, default_value = "256")]
    max_tokens: NonZeroUsize,
    /// The most tokens of the conversation; if there are more, the oldest messages are left out
    #[arg(long, default_value = "2048")]
    context: NonZeroUsize,
    /// The dtype of everything but quantised weights
    #[arg(long, default_value = "f32")]
    dtype: Float,
    /// Keep keys and values in blocks of 8-bit numbers, which take about half of the memory of f16
    #[arg(long)]
    packed_cache: bool,
    /// 0 takes the most probable token; higher numbers vary more
    #[arg(long, default_value = "0", allow_negative_numbers = true)]
    temperature: f32,
    /// Leave out tokens that are less probable than this many others
    #[arg(long, default_value = "40")]
    top_k: NonZeroUsize,
    /// Draw among the most probable tokens that have this probability together
    #[arg(long, default_value = "1", allow_negative_numbers = true)]
    top_p: f32,
    /// Draw among tokens that have at least this part of the largest probability
    #[arg(long, default_value = "0", allow_negative_numbers = true)]
    min_p: f32,
    /// Above 1, tokens that stand in the text are less probable
    #[arg(long, default_value = "1", allow_negative_numbers = true)]
    repetition: f32,
    /// Above 0, tokens that stand in the reply are less probable
    #[arg(long, default_value = "0", allow_negative_numbers = true)]
    presence: f32,
    /// The same for each time that a token stands in the reply
    #[arg(long, default_value = "0", allow_negative_numbers = true)]
    frequency: f32,
    /// Record the work for each token anew, instead of capturing it once
    #[arg(long)]
    no_capture: bool,
    /// The seed of the random numbers
    #[arg(long, default_value = "0")]
    seed: u64,
    /// Print the reply and its times as JSON
    #[arg(long)]
    json: bool,
    /// The model: a GGUF file, or a folder with one
    #[arg(long, env = "MARQUETRY_SMOLLM2", default_value = "target/smollm2")]
    model: PathBuf,
}

/// A dtype that models are computed in.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Float {
    F32,
    F16,
    Bf16,
}

impl From<Float> for DType {
    fn from(float: Float) -> DType {
        match float {
            Float::F32 => DType::F32,
            Float::F16 => DType::F16,
            Float::Bf16 => DType::BF16,
        }
    }
}

impl Args {
    fn sampling(&self) -> Sampling {
        let sampling = Sampling::default().temperature(self.temperature).top_k(self.top_k.get()).top_p(self.top_p);
        let sampling = sampling.min_p(self.min_p).repetition(self.repetition);
        sampling.presence(self.presence).frequency(self.frequency)
    }
}

/// Whether a reply is being written, and whether it should end.
static REPLYING: AtomicBool = AtomicBool::new(false);
static STOP: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(stop) => ExitCode::from(if stop == Stop::Interrupted { 130 } else { 0 }),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<Stop> {
    args.sampling().check()?;
    let prompt = match (&args.prompt, &args.prompt_file) {
        (_, Some(path)) => {
            Some(std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?)
        }
        (prompt, None) => prompt.clone(),
    };
    let batch = args.batch_file.as_deref().map(read_batch).transpose()?;
    let path = find_model(&args.model)?;
    // The first Ctrl-C ends the reply, a second one the program.
    ctrlc::set_handler(|| {
        if !REPLYING.load(Ordering::Relaxed) || STOP.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })?;

    let device: Device = args.device.as_deref().map_or_else(Device::best, str::parse)?;
    let loaded = load(&path, batch.as_deref(), args, &device);
    let (mut decoder, tokens) = loaded.with_context(|| format!("cannot use {}", path.display()))?;
    if !args.json {
        println!("device: {device}");
    }
    match (prompt, batch) {
        (_, Some(prompts)) => answer_batch(&mut decoder, &tokens, &prompts, args),
        (Some(prompt), _) => Ok(answer(&mut Chat::new(decoder, tokens), &prompt, args, &device)?.stop),
        (None, None) => converse(&mut Chat::new(decoder, tokens), args, &device),
    }
}

/// Returns the lines of a file that are not empty.
fn read_batch(path: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let prompts: Vec<String> = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(String::from).collect();
    ensure!(!prompts.is_empty(), "{} has no prompts; write one in each line", path.display());
    Ok(prompts)
}

fn load(path: &Path, batch: Option<&[String]>, args: &Args, device: &Device) -> Result<(Decoder, Tokens)> {
    let file = Gguf::open(path)?;
    let mut capacity = args.context.get().min(Config::read(&file)?.context);
    let tokens = Tokens::load(&file)?;
    if let Some(prompts) = batch {
        // Each prompt's part of the cache is no larger than it has to be.
        let lengths = prompts.iter().map(|prompt| Ok(tokens.encode_prompt(prompt)?.len()));
        let longest = lengths.collect::<Result<Vec<_>>>()?.into_iter().max().unwrap_or_default();
        capacity = capacity.min(longest + args.max_tokens.get());
    }
    let sequences = batch.map_or(1, <[String]>::len);
    let model = block_on(Model::load(file, capacity, args.dtype.into(), device))?;
    let cache = model.cache(sequences, capacity, args.packed_cache.then_some(BlockFormat::Q8_0))?;
    Ok((Decoder::new(model, cache, sequences, capacity, !args.no_capture)?, tokens))
}

/// Returns the model's file before the device is opened.
fn find_model(path: &Path) -> Result<PathBuf> {
    if path.is_file() {
        return Ok(path.into());
    }
    let is_model = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "gguf");
    let files = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut models: Vec<PathBuf> = files.filter(is_model).collect();
    ensure!(
        models.len() == 1,
        "there are {} GGUF files in {}; run `make setup`, or name a model's file with --model",
        models.len(),
        path.display()
    );
    Ok(models.remove(0))
}

/// Answers the lines on standard input.
fn converse(chat: &mut Chat, args: &Args, device: &Device) -> Result<Stop> {
    let mut lines = std::io::stdin().lock().lines();
    loop {
        if !args.json {
            print!("\nyou (empty to end): ");
            std::io::stdout().flush()?;
        }
        match lines.next().transpose()?.as_deref().map(str::trim) {
            None | Some("") => return Ok(Stop::End),
            Some(line) => answer(chat, line, args, device)?,
        };
    }
}

/// Writes a reply as it comes, then how fast it came.
fn answer(chat: &mut Chat, prompt: &str, args: &Args, device: &Device) -> Result<Reply> {
    // Every message of a conversation is answered by other random numbers.
    let sampling = args.sampling().seed(args.seed.wrapping_add(chat.replies()));
    let mut out = std::io::stdout();
    STOP.store(false, Ordering::Relaxed);
    REPLYING.store(true, Ordering::Relaxed);
    // Before the reply: of the model, and of the cache as far as it is filled.
    let device_bytes = device.memory_stats().reserved;
    let reply = block_on(chat.reply(prompt, &sampling, args.max_tokens.get(), &STOP, |piece| {
        if !args.json {
            write!(out, "{piece}")?;
            out.flush()?;
        }
        Ok(())
    }));
    REPLYING.store(false, Ordering::Relaxed);
    let reply = reply?;
    if args.json {
        let mut object = json!(reply);
        object["device"] = json!(device.id());
        object["device_bytes"] = json!(device_bytes);
        println!("{object}");
    } else {
        println!(
            "\n\nprompt: {} tokens, {:.1} tokens/s; reply: {} tokens, {:.1} tokens/s",
            reply.prompt_tokens, reply.prompt_tokens_per_second, reply.tokens, reply.tokens_per_second
        );
    }
    Ok(reply)
}

/// Writes the replies to all prompts.
fn answer_batch(decoder: &mut Decoder, tokens: &Tokens, prompts: &[String], args: &Args) -> Result<Stop> {
    REPLYING.store(true, Ordering::Relaxed);
    let sampling = |number: usize| args.sampling().seed(args.seed.wrapping_add(number as u64));
    let progress = |ended: usize| {
        if !args.json {
            eprint!("\r{ended} of {} replies", prompts.len());
        }
    };
    let answers = answer_all(decoder, tokens, prompts, sampling, args.max_tokens.get(), &STOP, progress)?;
    if args.json {
        println!("{}", json!(answers));
    } else {
        eprintln!();
        for answer in &answers.answers {
            println!("\n> {}\n{}", answer.prompt, answer.text.trim_end());
        }
        println!(
            "\nprompts: {} tokens, {:.1} tokens/s; replies: {:.1} tokens/s",
            answers.prompt_tokens, answers.prompt_tokens_per_second, answers.tokens_per_second
        );
    }
    Ok(if STOP.load(Ordering::Relaxed) { Stop::Interrupted } else { Stop::End })
}
