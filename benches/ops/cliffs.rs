//! Sizes of a sweep that take longer than larger ones.

use crate::report::{Report, Row};

/// The part of the next multiple of 16's speed that a size must reach.
const LEAST: f64 = 0.8;
/// The same for numbers of 16 bits whose rows do not begin at whole words: a copy may pad them.
const LEAST_OFF_WORDS: f64 = 0.6;

/// Returns a line for each size that is slower than its bar.
pub fn cliffs(report: &Report) -> Vec<String> {
    let points: Vec<(&str, usize, &Row)> = report.rows.iter().filter_map(point).collect();
    let slower = points.iter().filter_map(|&(series, size, row)| {
        let next = size.next_multiple_of(16);
        let (.., larger) = points.iter().find(|point| point.0 == series && point.1 == next)?;
        let speed = time(larger) / time(row);
        let least = if begins_off_words(series, size) { LEAST_OFF_WORDS } else { LEAST };
        (speed < least).then(|| {
            let (here, there) = (time(row), time(larger));
            format!("{series} {size}: {here:.1} us, but {there:.1} us at {next}: {speed:.2} of its speed, not {least}")
        })
    });
    slower.collect()
}

/// Returns the series and the size of a row of a sweep.
fn point(row: &Row) -> Option<(&str, usize, &Row)> {
    let (series, size) = row.name.rsplit_once(": ")?;
    Some((series, size.parse().ok()?, row))
}

/// Whether rows of this many numbers of 16 bits lie one behind the other.
fn begins_off_words(series: &str, size: usize) -> bool {
    let axes: &[&str] = match series.contains("channels last") {
        true => &["inputs", "outputs"],
        false => &["columns", "depth", "side"],
    };
    series.contains("f16") && !size.is_multiple_of(2) && axes.iter().any(|axis| series.ends_with(axis))
}

fn time(row: &Row) -> f64 {
    row.device_us.unwrap_or(row.wall_us)
}
