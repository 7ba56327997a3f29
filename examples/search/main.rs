//! Semantic search: finds the lines of a text that are closest in meaning to a query, whatever their words.
//!
//! ```text
//! make setup
//! cargo run --release --example search -- --query "how do plants make food from sunlight?"
//! ```

mod folder;
mod index;
mod model;
mod tokens;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use index::{Index, Line};
use indicatif::{ProgressBar, ProgressStyle};
use marquetry::Device;
use pollster::block_on;
use std::io::{BufRead, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Search a text by meaning with all-MiniLM-L6-v2
#[derive(Parser)]
struct Args {
    /// The text to search, one sentence a line
    #[arg(default_value = "examples/data/notes.txt")]
    file: PathBuf,
    /// What to look for; without it, queries are read from the terminal until an empty line
    #[arg(long)]
    query: Option<String>,
    /// The device to run on, as in `vulkan:0` or `webgpu`; without it, the best one
    #[arg(long)]
    device: Option<String>,
    /// How many lines to show
    #[arg(long, default_value = "5")]
    top: NonZeroUsize,
    /// How many lines to embed at a time
    #[arg(long, default_value = "32")]
    batch: NonZeroUsize,
    /// The folder with model.safetensors and tokenizer.json
    #[arg(long, env = "MARQUETRY_MINILM", default_value = "target/minilm")]
    model: PathBuf,
}

/// The time of each step before the first answer.
struct Times {
    open: Duration,
    load: Duration,
    embed: Duration,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let start = Instant::now();
    let lines = read_lines(&args.file)?;
    check_model(&args.model)?;

    let device: Device = args.device.as_deref().map_or_else(Device::best, str::parse)?;
    writeln!(out, "device: {device}")?;
    let open = start.elapsed();

    let (model, tokens) = folder::load(&args.model, &device)?;
    device.synchronize()?;
    let load = start.elapsed() - open;

    let style = ProgressStyle::with_template("embedding {bar:40} {pos}/{len} lines, {per_sec}, {eta} left")?;
    let bar = ProgressBar::new(lines.len() as u64).with_style(style);
    let progress = |done| bar.set_position(done as u64);
    let index = block_on(Index::build(lines, args.batch.get(), Rc::new(model), Rc::new(tokens), progress))?;
    bar.finish_and_clear();
    let embed = start.elapsed() - open - load;
    let rate = index.len() as f64 / embed.as_secs_f64();
    writeln!(out, "sentences: {} in {}, {rate:.1} sentences/s", index.len(), args.file.display())?;

    let mut times = Some(Times { open, load, embed });
    match &args.query {
        Some(query) => answer(&index, query, args.top.get(), &mut times, &mut out),
        None => converse(&index, args.top.get(), &mut times, &mut out),
    }
}

/// Reads the lines of a file that are not blank.
fn read_lines(path: &Path) -> Result<Vec<Line>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines = index::lines(&text);
    ensure!(!lines.is_empty(), "{} has no text in it", path.display());
    Ok(lines)
}

/// Reports missing files before the device is opened.
fn check_model(folder: &Path) -> Result<()> {
    for name in ["model.safetensors", "tokenizer.json"] {
        let path = folder.join(name);
        ensure!(
            path.is_file(),
            "there is no {}; run `make setup`, or name the folder of all-MiniLM-L6-v2 with --model",
            path.display()
        );
    }
    Ok(())
}

/// Answers the queries on standard input.
fn converse(index: &Index, top: usize, times: &mut Option<Times>, out: &mut impl Write) -> Result<()> {
    let mut queries = std::io::stdin().lock().lines();
    loop {
        write!(out, "\nquery (empty to end): ")?;
        out.flush()?;
        match queries.next().transpose()?.as_deref().map(str::trim) {
            Some("") => return Ok(()),
            None => return Ok(writeln!(out)?),
            Some(query) => answer(index, query, top, times, out)?,
        }
    }
}

/// Prints the best matches for a query. After the first query, it prints how long it took to get there.
fn answer(index: &Index, query: &str, top: usize, times: &mut Option<Times>, out: &mut impl Write) -> Result<()> {
    let start = Instant::now();
    let matches = block_on(index.search(query, top))?;
    let took = start.elapsed();
    writeln!(out, "\n{query}")?;
    for (place, (similarity, line)) in matches.into_iter().enumerate() {
        writeln!(out, "{:>3}. {similarity:.3}  line {:>3}: {}", place + 1, line.number, line.text)?;
    }
    match times.take() {
        Some(Times { open, load, embed }) => writeln!(
            out,
            "\nfirst result after {:.2?}: open device {open:.2?}, load model {load:.2?}, embed {embed:.2?}, query {took:.2?}",
            open + load + embed + took
        )?,
        None => writeln!(out, "\nafter {took:.2?}")?,
    }
    Ok(())
}
