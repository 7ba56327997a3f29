//! Measures how work is best cut on a device, and prints a file for `shaders/tuning`:
//! `cargo run --release --example tune -- --device vulkan --output shaders/tuning/acme-one.toml`.
//!
//! Each candidate is measured on a device that is opened for it alone, by the protocol of `benches/ops/measure.rs`.
//! Keys that are not measured here keep the values of the file that the device has now.

#[allow(dead_code, reason = "benches use more of it")]
#[path = "../../benches/ops/measure.rs"]
mod measure;
#[path = "../../benches/ops/statistics.rs"]
mod statistics;
mod table;
mod units;

use anyhow::{Context, Result};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use marquetry::internals::tuning::{Block, Tuning};
use marquetry::internals::{open_tuned, tuning_of};
use marquetry::{DType, Device, DeviceKind, Tensor};
use measure::{Protocol, Work};
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

/// Measure how work is best cut on a device
#[derive(Parser)]
struct Args {
    /// The device, as in `vulkan:0`; without it, the best one
    #[arg(long)]
    device: Option<String>,
    /// Write the file here instead of printing it
    #[arg(long)]
    output: Option<PathBuf>,
    /// Seconds to measure each candidate
    #[arg(long, default_value = "0.15")]
    time: f64,
    /// Seconds to keep the device busy before that
    #[arg(long, default_value = "0.3")]
    warm_up: f64,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let device: Device = args.device.as_deref().map_or_else(Device::best, str::parse)?;
    let seconds = |number| Duration::try_from_secs_f64(number).context("a number of seconds");
    let protocol = Protocol { warm_up: seconds(args.warm_up)?, time: seconds(args.time)? };
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len}, {eta} left  {msg}")?;
    let tuner = Tuner { progress: ProgressBar::new(0).with_style(style), protocol, device };
    let text = tuner.tune()?;
    tuner.progress.finish_and_clear();
    match args.output {
        Some(path) => std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?,
        None => print!("{text}"),
    }
    Ok(())
}

struct Tuner {
    device: Device,
    protocol: Protocol,
    progress: ProgressBar,
}

/// Candidates with their seconds, the fastest first.
type Ranking<T> = Vec<(T, f64)>;

/// Makes operands on a device, and returns how to run.
type Problem<'a> = &'a dyn Fn(&Device) -> marquetry::Result<measure::Run>;

impl Tuner {
    fn tune(&self) -> Result<String> {
        let info = self.device.info();
        let software = info.kind == DeviceKind::Cpu;
        let mut tuning = tuning_of(info).tuning.clone();
        let mut text = format!(
            "# {}, {}, measured by `cargo run --example tune` on {}.\n",
            info.name,
            info.driver,
            jiff::Timestamp::now().strftime("%F")
        );
        if !software {
            let model = info.name.split_whitespace().last().unwrap_or_default();
            writeln!(text, "vendor = {:?}\nwords = [{model:?}]", info.vendor)?;
        }
        self.tune_matmul(&mut tuning, if software { &[128, 256, 512] } else { &[512, 1024, 2048, 4096] }, &mut text)?;
        self.tune_units(&tuning, &mut text)?;
        self.tune_reduce(&mut tuning, if software { 1 << 11 } else { 1 << 14 }, &mut text)?;
        self.tune_copy(&mut tuning, if software { 1 << 10 } else { 1 << 13 }, &mut text)?;
        Ok(text)
    }

    /// Opens the device with other tuning data.
    fn open(&self, tuning: Tuning) -> Result<Device> {
        // The data are leaked: a device keeps them for good, and an example does not run for long.
        Ok(open_tuned(&self.device.id(), Box::leak(Box::new(tuning)))?)
    }

    /// Measures all candidates, each on a device of its own whose data `set` has changed. Returns a ranking for each
    /// problem.
    fn rank_each<T: Copy>(
        &self,
        message: &str,
        tuning: &Tuning,
        candidates: &[T],
        set: impl Fn(&mut Tuning, T),
        problems: &[Problem<'_>],
    ) -> Result<Vec<Ranking<T>>> {
        self.progress.set_message(message.to_string());
        self.progress.inc_length((candidates.len() * problems.len()) as u64);
        let mut rankings = vec![Vec::new(); problems.len()];
        for &candidate in candidates {
            let mut tuning = tuning.clone();
            set(&mut tuning, candidate);
            let device = self.open(tuning)?;
            for (ranking, problem) in rankings.iter_mut().zip(problems) {
                let measured = self.protocol.measure(&device, &Work::Alone(problem(&device)?))?;
                ranking.push((candidate, measured.device.unwrap_or(measured.wall)));
                self.progress.inc(1);
            }
        }
        rankings.iter_mut().for_each(|ranking| ranking.sort_by(|a, b| a.1.total_cmp(&b.1)));
        Ok(rankings)
    }

    /// Measures candidates for one problem. Returns the best one and its seconds.
    fn best<T: Copy>(
        &self,
        message: &str,
        tuning: &Tuning,
        candidates: &[T],
        set: impl Fn(&mut Tuning, T),
        problem: Problem<'_>,
    ) -> Result<(T, f64)> {
        let rankings = self.rank_each(message, tuning, candidates, set, &[problem])?;
        rankings[0].first().copied().context("a candidate")
    }

    /// Finds the best way to cut products of each size, and puts the best ways of all sizes into the data.
    fn tune_matmul(&self, tuning: &mut Tuning, sizes: &[usize], text: &mut String) -> Result<()> {
        let product = |n: usize| {
            move |device: &Device| -> marquetry::Result<measure::Run> {
                let [a, b] = [random((n, n), device)?, random((n, n), device)?];
                Ok(Box::new(move |_| a.matmul(&b)))
            }
        };
        let products: Vec<_> = sizes.iter().map(|&n| product(n)).collect();
        let problems: Vec<Problem<'_>> = products.iter().map(|product| product as Problem<'_>).collect();
        let rankings = self.rank_each("products", tuning, &self.cuts(), |t, cut| cut.set(t), &problems)?;
        *text += "\n[matmul]\n";
        for (n, ranking) in sizes.iter().zip(&rankings) {
            for (cut, seconds) in ranking.iter().take(3) {
                writeln!(text, "# {n}^3: {cut}: {:.1} GFLOP/s", 2e-9 * (*n as f64).powi(3) / seconds)?;
            }
        }
        let best: Vec<(usize, Cut)> = sizes.iter().zip(&rankings).map(|(n, ranking)| (*n, ranking[0].0)).collect();
        let last = best[best.len() - 1].1;
        last.set(tuning);
        let blocks = chosen_blocks(&best);
        writeln!(text, "blocks = [{}\n]", blocks.iter().map(|(block, _)| block_text(*block)).collect::<String>())?;
        match last {
            Cut::Registers(columns) => writeln!(text, "columns = {columns}")?,
            Cut::Block(_) => {
                // The smallest block is taken if there are too few of the others.
                if let Some(busy) = blocks.iter().rev().skip(1).map(|(_, count)| *count).min() {
                    writeln!(text, "busy = {busy}")?;
                }
            }
        }
        Ok(())
    }

    /// Returns the ways to cut products that the device's limits allow.
    fn cuts(&self) -> Vec<Cut> {
        let limits = &self.device.info().limits;
        let mut cuts: Vec<Cut> = [1, 2, 4].map(Cut::Registers).into();
        for shape in [[32, 32], [32, 64], [64, 32], [64, 64], [64, 128], [128, 64], [128, 128]] {
            for part in [[4, 4], [4, 8], [8, 4], [8, 8]] {
                for depth in [8, 16] {
                    let block = Block { shape, part, depth };
                    let fits = block.fault().is_none()
                        && block.invocations() <= limits.max_workgroup_invocations.min(256)
                        && block.workgroup_memory(4) <= limits.max_workgroup_memory;
                    cuts.extend(fits.then_some(Cut::Block(block)));
                }
            }
        }
        cuts
    }

    fn tune_reduce(&self, tuning: &mut Tuning, side: usize, text: &mut String) -> Result<()> {
        let sum = |axis: Option<usize>| {
            move |device: &Device| -> marquetry::Result<measure::Run> {
                let x = random((side, side), device)?;
                Ok(Box::new(move |_| axis.map_or_else(|| x.sum_all(), |axis| x.sum(axis))))
            }
        };
        *text += "\n[reduce]\n";
        let bytes = (4 * side * side) as f64;
        let teams: Vec<_> = (4..=16).step_by(2).map(|bits| 1 << bits).collect();
        let found = self.best("sums", tuning, &teams, |t, n| t.reduce.teams = n, &sum(None))?;
        tuning.reduce.teams = found.0;
        let found = self.best("sums", tuning, &[1024, 4096, 16384], |t, n| t.reduce.shortest = n, &sum(None))?;
        tuning.reduce.shortest = found.0;
        writeln!(text, "# The sum of {side}^2: {:.1} GB/s", 1e-9 * bytes / found.1)?;
        writeln!(text, "teams = {}\nshortest = {}", tuning.reduce.teams, tuning.reduce.shortest)?;

        let found =
            self.best("sums of columns", tuning, &[false, true], |t, is| t.reduce.columns = is, &sum(Some(0)))?;
        tuning.reduce.columns = found.0;
        writeln!(text, "# The sum of columns: {:.1} GB/s", 1e-9 * bytes / found.1)?;
        writeln!(text, "columns = {}", tuning.reduce.columns)?;
        if tuning.reduce.columns {
            let teams: Vec<_> = (14..=20).step_by(2).map(|bits| 1 << bits).collect();
            let found =
                self.best("sums of columns", tuning, &teams, |t, n| t.reduce.column_teams = n, &sum(Some(0)))?;
            tuning.reduce.column_teams = found.0;
            writeln!(text, "column_teams = {}", tuning.reduce.column_teams)?;
        }
        Ok(())
    }

    fn tune_copy(&self, tuning: &mut Tuning, side: usize, text: &mut String) -> Result<()> {
        let transpose = move |device: &Device| -> marquetry::Result<measure::Run> {
            let x = random((side, side), device)?;
            Ok(Box::new(move |_| x.t()?.contiguous()))
        };
        *text += "\n[copy]\n";
        let found = self.best("transposed copies", tuning, &[false, true], |t, is| t.copy.tiles = is, &transpose)?;
        tuning.copy.tiles = found.0;
        writeln!(text, "tiles = {}", tuning.copy.tiles)?;

        // A box of rows within larger ones is copied into another such box.
        let assign = move |device: &Device| -> marquetry::Result<measure::Run> {
            let source = random((side, side), device)?.narrow(1, side / 4, side / 2)?;
            let target = Tensor::zeros((side, side), DType::F32, device)?;
            target.realize()?;
            Ok(Box::new(move |_| target.clone().slice_assign((.., side / 4..3 * side / 4), &source)))
        };
        let found = self.best("copies of boxes", tuning, &[false, true], |t, is| t.copy.driver = is, &assign)?;
        writeln!(text, "driver = {}", found.0)?;
        Ok(())
    }
}

/// A way to cut products.
#[derive(Clone, Copy, PartialEq)]
enum Cut {
    Block(Block),
    Registers(u32),
}

impl Cut {
    fn set(self, tuning: &mut Tuning) {
        match self {
            Cut::Block(block) => tuning.matmul.blocks = Box::leak(Box::new([block])),
            Cut::Registers(columns) => (tuning.matmul.blocks, tuning.matmul.columns) = (&[], columns),
        }
    }
}

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Cut::Block(Block { shape: [rows, columns], part: [a, b], depth }) => {
                write!(f, "{rows} x {columns} x {depth}, {a} x {b} each")
            }
            Cut::Registers(columns) => write!(f, "registers, {columns} columns"),
        }
    }
}

/// Returns the blocks that are the best for a size, the largest first. Each comes with the smallest number of such
/// blocks for which it was the best. Two blocks of one shape cannot be told apart by their number: the one for the
/// larger products is taken. If registers are the best for the largest size, there are no blocks.
fn chosen_blocks(best: &[(usize, Cut)]) -> Vec<(Block, usize)> {
    let mut blocks: Vec<(Block, usize)> = Vec::new();
    if let Some((_, Cut::Registers(_))) = best.last() {
        return blocks;
    }
    for &(n, cut) in best {
        let Cut::Block(block) = cut else { continue };
        let [rows, columns] = block.shape.map(|size| size as usize);
        let count = blocks.iter().find(|(other, _)| *other == block).map(|(_, count)| *count);
        blocks.retain(|(other, _)| other.shape != block.shape);
        blocks.push((block, count.unwrap_or(n.div_ceil(rows) * n.div_ceil(columns))));
    }
    blocks.sort_by_key(|(block, _)| std::cmp::Reverse(block.shape[0] * block.shape[1]));
    blocks
}

fn block_text(Block { shape, part, depth }: Block) -> String {
    format!("\n  {{ shape = {shape:?}, part = {part:?}, depth = {depth} }},")
}

fn random(shape: (usize, usize), device: &Device) -> marquetry::Result<Tensor> {
    let x = Tensor::randn(0f32, 1.0, shape, device)?;
    x.realize()?;
    Ok(x)
}
