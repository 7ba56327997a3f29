//! The results of a run on a device, as JSON and as a table.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A run's figures for one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The device's string, as in `vulkan:0`.
    pub device: String,
    /// The name that its driver gives.
    pub name: String,
    pub kind: String,
    pub driver: String,
    /// When the run ended, in UTC.
    pub date: String,
    /// What `git describe` says.
    pub commit: String,
    pub command: String,
    /// How often the whole table was measured.
    pub repeats: usize,
    pub ceilings: Vec<CeilingFigure>,
    pub rows: Vec<Row>,
}

/// A ceiling, the median over the repeats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CeilingFigure {
    pub name: String,
    pub value: f64,
    pub unit: String,
}

/// A case of the table: medians over the repeats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    /// The device's time by its timestamps. A chain has none, as timestamps would keep its links apart.
    pub device_us: Option<f64>,
    /// The host's time of a run among many, without timestamps.
    pub steady_us: Option<f64>,
    /// The host's time from the launch to the end. For a chain, it is the time of the whole divided by the number of
    /// links.
    pub wall_us: f64,
    /// The median absolute deviation, as a part of the median.
    pub spread: f64,
    pub value: f64,
    pub unit: String,
    /// The most that the device can do, in the same unit, and what limits it.
    pub ceiling: Option<f64>,
    pub bound: Option<String>,
    /// The value divided by the ceiling of the same repeat.
    pub ratio: Option<f64>,
    /// Floating point operations per byte that must be read or written.
    pub intensity: Option<f64>,
}

impl Report {
    /// Returns the name of the device's files, without an extension.
    pub fn file_stem(&self) -> String {
        let backend = self.device.split(':').next().unwrap_or_default();
        // The part in brackets names the driver.
        let name = self.name.split(" (").next().unwrap_or_default();
        let words = [backend, name].into_iter().flat_map(|part| part.split(|c: char| !c.is_ascii_alphanumeric()));
        let words: Vec<_> = words.filter(|word| !word.is_empty()).map(str::to_lowercase).collect();
        words.join("-")
    }

    /// Whether the device is a GPU, whose figures count by themselves. On a shared processor, only ratios count.
    pub fn is_gpu(&self) -> bool {
        self.kind.ends_with("GPU")
    }

    pub fn read(path: &Path) -> Result<Report> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not a table of this kind", path.display()))
    }

    /// Writes `<folder>/<device>.json`.
    pub fn write(&self, folder: &Path) -> Result<PathBuf> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(self.file_stem()).with_extension("json");
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    pub fn to_markdown(&self) -> String {
        let mut text = format!(
            "## {} on {}\n\n{}, {}; {}; `{}` at {}; repeats: {}\n\n",
            self.name, self.device, self.kind, self.driver, self.date, self.command, self.commit, self.repeats
        );
        let ceilings: Vec<_> =
            self.ceilings.iter().map(|c| format!("{} {} {}", c.name, figure(c.value), c.unit)).collect();
        let _ = writeln!(text, "Ceilings: {}.\n", ceilings.join(", "));
        text += "| case | device us | steady us | wall us | spread | value | ceiling | ratio |\n|---|--:|--:|--:|--:|--:|--:|--:|\n";
        for row in &self.rows {
            let optional = |number: Option<f64>| number.map_or("-".into(), figure);
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {:.1} % | {} {} | {}{} | {} |",
                row.name,
                optional(row.device_us),
                optional(row.steady_us),
                figure(row.wall_us),
                100.0 * row.spread,
                figure(row.value),
                row.unit,
                optional(row.ceiling),
                row.bound.as_ref().map_or(String::new(), |bound| format!(" ({bound})")),
                row.ratio.map_or("-".into(), |ratio| format!("{ratio:.3}")),
            );
        }
        text
    }
}

/// Returns a number with three significant digits.
pub fn figure(number: f64) -> String {
    let decimals = (2.0 - number.abs().log10().floor()).clamp(0.0, 6.0) as usize;
    let text = format!("{number:.decimals$}");
    let (whole, rest) = text.split_once('.').map_or((&text[..], ""), |(whole, _)| (whole, &text[whole.len()..]));
    let mut grouped = String::new();
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}
