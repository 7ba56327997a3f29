//! The table, measured on a device.

use crate::case::{Case, Rate};
use crate::ceilings::Ceilings;
use crate::measure::{Measurement, Protocol};
use crate::report::{CeilingFigure, Report, Row};
use crate::statistics::{median, spread};
use crate::table::{self, Sizes};
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use marquetry::Device;
use std::path::Path;
use std::process::Command;

pub struct Settings<'a> {
    pub protocol: Protocol,
    pub repeats: usize,
    pub filters: &'a [String],
    /// Whether to print the kernels of a run.
    pub kernels: bool,
    pub model: &'a Path,
    /// Whether to measure many sizes instead of the table.
    pub sweep: bool,
}

/// The results of a case, one for each repeat.
struct Series {
    case: Case,
    repeats: Vec<(Measurement, Option<(f64, &'static str)>)>,
}

/// Returns the report, and the cases that failed. `keep` gets the report so far after each case.
pub fn run(
    device: &Device,
    settings: &Settings,
    keep: &dyn Fn(&Report) -> Result<()>,
) -> Result<(Report, Vec<String>)> {
    let backend = device.info().backend;
    let chosen = |case: &Case| {
        let path = format!("{backend}/{}", case.name);
        settings.filters.is_empty() || settings.filters.iter().any(|filter| path.contains(filter))
    };
    let all = if settings.sweep { table::sweep(device) } else { table::cases(device, settings.model)? };
    let cases = all.into_iter().filter(chosen);
    let mut series: Vec<Series> = cases.map(|case| Series { case, repeats: Vec::new() }).collect();
    if series.is_empty() {
        return Ok((report(device, &[], &series), Vec::new()));
    }
    let mut failures = Vec::new();
    let sizes = Sizes::of(device);
    let style = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len}, {eta} left  {msg}")?;
    let progress = ProgressBar::new((settings.repeats * series.len()) as u64).with_style(style);
    progress.set_prefix(device.id());
    let mut all_ceilings = Vec::new();
    for repeat in 0..settings.repeats {
        progress.set_message("ceilings");
        let ceilings = Ceilings::measure(device, &settings.protocol, sizes.elements(), sizes.native(device))?;
        all_ceilings.push(ceilings.clone());
        for place in 0..series.len() {
            let Series { case, repeats } = &mut series[place];
            progress.set_message(case.name.clone());
            match measure(device, case, settings, repeat == 0) {
                Ok(measured) => repeats.push((measured, case.ceiling(&ceilings))),
                Err(error) => failures.push(format!("{} {}: {error:#}", device.id(), case.name)),
            }
            progress.inc(1);
            keep(&report(device, &all_ceilings, &series))?;
        }
    }
    progress.finish_and_clear();
    Ok((report(device, &all_ceilings, &series), failures))
}

/// Measures a case. The result is checked the first time.
fn measure(device: &Device, case: &Case, settings: &Settings, check: bool) -> Result<Measurement> {
    let prepared = (case.prepare)(device).context("operands")?;
    if check {
        (prepared.check)(&prepared.work.first()?)?;
    }
    let measured = settings.protocol.measure(device, &prepared.work)?;
    if settings.kernels && check {
        let (done, profile) = device.profile(|| prepared.work.first()?.realize())?;
        done?;
        println!("{}\n{profile}", case.name);
    }
    drop(prepared);
    // The next case may need buffers of other sizes.
    device.trim()?;
    Ok(measured)
}

fn row(device: &Device, series: &Series) -> Row {
    let Series { case, repeats } = series;
    let of = |figure: &dyn Fn(&Measurement) -> f64| median(&repeats.iter().map(|(m, _)| figure(m)).collect::<Vec<_>>());
    let by_host = matches!(case.rate, Rate::Count(..));
    let seconds = |m: &Measurement| m.device.filter(|_| !by_host).unwrap_or(m.wall);
    let (unit, per_run) = case.rate.per_run(case.cost, device);
    let value = per_run / of(&seconds);
    let ceilings: Option<Vec<f64>> = repeats.iter().map(|(_, ceiling)| ceiling.map(|(runs, _)| runs)).collect();
    let ratios: Option<Vec<f64>> =
        repeats.iter().map(|(m, ceiling)| ceiling.map(|(runs, _)| 1.0 / seconds(m) / runs)).collect();
    let spread = match repeats.as_slice() {
        [(only, _)] => only.spread,
        _ => match &ratios {
            Some(ratios) => spread(ratios),
            None => spread(&repeats.iter().map(|(m, _)| seconds(m)).collect::<Vec<_>>()),
        },
    };
    Row {
        name: case.name.clone(),
        device_us: repeats[0].0.device.map(|_| 1e6 * of(&|m| m.device.unwrap_or(f64::NAN))),
        steady_us: repeats[0].0.steady.map(|_| 1e6 * of(&|m| m.steady.unwrap_or(f64::NAN))),
        wall_us: 1e6 * of(&|m| m.wall),
        spread,
        value,
        unit: unit.into(),
        ceiling: ceilings.map(|runs| per_run * median(&runs)),
        bound: repeats[0].1.map(|(_, name)| name.into()),
        ratio: ratios.map(|ratios| median(&ratios)),
        intensity: case.cost.intensity(),
    }
}

/// Returns the report of as many passes as there are ceilings.
fn report(device: &Device, ceilings: &[Ceilings], series: &[Series]) -> Report {
    let info = device.info();
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let command = if arguments.is_empty() { String::new() } else { format!(" -- {}", arguments.join(" ")) };
    Report {
        device: device.id(),
        name: info.name.clone(),
        kind: info.kind.to_string(),
        driver: info.driver.clone(),
        date: jiff::Timestamp::now().strftime("%FT%TZ").to_string(),
        commit: commit(),
        command: format!("cargo bench{command}"),
        repeats: ceilings.len(),
        ceilings: medians(ceilings.iter().map(|ceilings| ceilings.figures(device)).collect()),
        rows: series.iter().filter(|series| !series.repeats.is_empty()).map(|series| row(device, series)).collect(),
    }
}

fn medians(repeats: Vec<Vec<CeilingFigure>>) -> Vec<CeilingFigure> {
    let mut figures = repeats.first().cloned().unwrap_or_default();
    for (place, figure) in figures.iter_mut().enumerate() {
        figure.value = median(&repeats.iter().map(|repeat| repeat[place].value).collect::<Vec<_>>());
    }
    figures
}

fn commit() -> String {
    let output = Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12"]).output();
    let text = output.ok().filter(|output| output.status.success()).map(|output| output.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).trim().to_string();
    if text.is_empty() { "unknown".into() } else { text }
}
