//! How fast operations are, beside the most that the device can do, measured in the same run.
//!
//! ```text
//! cargo bench                                    all cases on all devices
//! cargo bench -- vulkan/matmul                   cases whose path contains this text
//! cargo bench -- --device webgpu --repeats 5
//! cargo bench -- --check                         compares with the committed tables, and fails if a case fell
//! cargo bench -- --sweep                         products and convolutions of many sizes; names cliffs
//! ```
//!
//! A table of each device goes to the standard output. After each pass, it goes to `target/bench`, with a JSON file.
//! `measure.rs` says how times are taken, `compare.rs` what is compared. On a software device only the ratios mean
//! anything.

mod case;
mod ceilings;
mod cliffs;
mod close;
mod compare;
mod measure;
mod native;
mod report;
mod run;
mod statistics;
mod table;

#[path = "../../examples/search/folder.rs"]
mod folder;
#[allow(dead_code, reason = "the example uses more of it")]
#[path = "../../examples/search/model.rs"]
mod model;
#[path = "../../examples/search/tokens.rs"]
mod tokens;

use anyhow::{Context, Result, bail};
use clap::Parser;
use compare::compare;
use marquetry::{Device, DeviceKind};
use measure::Protocol;
use report::Report;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Measure operations beside the most that the device can do
#[derive(Parser)]
struct Args {
    /// Only cases whose path, as in "vulkan/matmul f16 4096^3", contains one of these
    filters: Vec<String>,
    /// Only this device, as in `vulkan:0` or `webgpu`; without it, all
    #[arg(long)]
    device: Option<String>,
    /// How often to go through the table: 3 by default, at least 5 with --check and --save
    #[arg(long)]
    repeats: Option<usize>,
    /// Seconds to measure a case each time
    #[arg(long, default_value = "0.3")]
    time: f64,
    /// Seconds to keep the device busy before that
    #[arg(long, default_value = "0.4")]
    warm_up: f64,
    /// Print the kernels of the first run of each case, by time
    #[arg(long)]
    kernels: bool,
    /// Where to write the tables
    #[arg(long, default_value = "target/bench")]
    output: PathBuf,
    /// Compare with the tables in docs/bench, and fail if a case fell
    #[arg(long)]
    check: bool,
    /// Write the tables to docs/bench, for later comparisons
    #[arg(long, conflicts_with_all = ["check", "filters"])]
    save: bool,
    /// Measure many sizes instead of the table, and name those that take longer than larger ones; to <output>/sizes
    #[arg(long, conflicts_with = "check")]
    sweep: bool,
    /// The folder with model.safetensors and tokenizer.json of all-MiniLM-L6-v2
    #[arg(long, env = "MARQUETRY_MINILM", default_value = "target/minilm")]
    model: PathBuf,
    /// Passed by Cargo
    #[arg(long, hide = true)]
    bench: bool,
}

/// The folder of the tables to compare with.
const COMMITTED: &str = "docs/bench";

fn main() -> ExitCode {
    env_logger::init();
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let many = args.check || args.save;
    let settings = run::Settings {
        protocol: Protocol { warm_up: seconds(args.warm_up)?, time: seconds(args.time)? },
        repeats: args.repeats.unwrap_or(3).max(if many { 5 } else { 1 }),
        filters: &args.filters,
        kernels: args.kernels,
        model: &args.model,
        sweep: args.sweep,
    };
    let folder = |folder: &Path| if args.sweep { folder.join("sizes") } else { folder.into() };
    let (mut failures, mut compared, mut missing) = (Vec::new(), 0, Vec::new());
    for device in devices(args)? {
        // A run that is stopped leaves the passes that it has made.
        let keep = |report: &Report| {
            let path = report.write(&folder(&args.output))?;
            std::fs::write(path.with_extension("md"), report.to_markdown())?;
            eprintln!("pass {} of {}: {}, and .md", report.repeats, settings.repeats, path.display());
            Ok(())
        };
        let (report, wrong) = run::run(&device, &settings, &keep)?;
        failures.extend(wrong);
        if report.rows.is_empty() {
            continue;
        }
        println!("{}", report.to_markdown());
        if args.save {
            eprintln!("written: {}", report.write(&folder(Path::new(COMMITTED)))?.display());
        }
        if args.sweep {
            cliffs::cliffs(&report).iter().for_each(|cliff| println!("{} {cliff}", report.device));
        }
        if args.check {
            match check(&report)? {
                Some(falls) => {
                    compared += 1;
                    failures.extend(falls);
                }
                None => missing.push(report.file_stem()),
            }
        }
    }
    if args.check && compared == 0 {
        bail!("nothing to compare with: there is no {COMMITTED}/{}.json", missing.join(".json, "));
    }
    if failures.is_empty() { Ok(()) } else { bail!("{}", failures.join("\n  ")) }
}

fn seconds(number: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(number).with_context(|| format!("{number} is no number of seconds"))
}

fn devices(args: &Args) -> Result<Vec<Device>> {
    let names = match &args.device {
        Some(name) => vec![name.clone()],
        None => Device::list().iter().map(|info| info.id()).collect(),
    };
    names.iter().map(|name| name.parse().with_context(|| format!("device {name}"))).collect()
}

/// Returns what fell against the committed table of the device; `None` if there is no such table.
fn check(report: &Report) -> Result<Option<Vec<String>>> {
    let path = Path::new(COMMITTED).join(report.file_stem()).with_extension("json");
    if !path.is_file() {
        eprintln!(
            "{}: there is no committed table {}; `cargo bench -- --save` writes it",
            report.device,
            path.display()
        );
        return Ok(None);
    }
    let before = Report::read(&path)?;
    let found = compare(&before, report);
    for name in &found.new {
        eprintln!("{}: {name} is not in {}", report.device, path.display());
    }
    eprintln!("{}: {} cases compared with {} of {}", report.device, found.compared, path.display(), before.date);
    Ok(Some(found.falls.iter().map(|fall| format!("{} {fall}", report.device)).collect()))
}

/// Whether the device is the processor, for which sizes are smaller.
fn is_software(device: &Device) -> bool {
    device.info().kind == DeviceKind::Cpu
}
