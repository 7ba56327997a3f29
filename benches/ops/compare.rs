//! Comparison with a table measured before: which figures fell.

use crate::report::{Report, Row};
use std::fmt;

/// How much a figure may fall beyond the spreads of both.
const ALLOWANCE: f64 = 0.10;

/// A row that fell.
#[derive(Debug, Clone, PartialEq)]
pub struct Fall {
    pub name: String,
    /// What is compared: a ratio to a ceiling, or a figure in this unit.
    pub unit: String,
    pub before: f64,
    pub now: f64,
    /// The part of it that may be lost.
    pub allowed: f64,
}

impl fmt::Display for Fall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fall { name, unit, before, now, allowed } = self;
        let (lost, allowed) = (100.0 * (1.0 - now / before), 100.0 * allowed);
        write!(f, "{name}: {now:.3} {unit}, was {before:.3}: {lost:.1} % less, {allowed:.1} % are allowed")
    }
}

/// What a comparison found.
#[derive(Debug, Default, PartialEq)]
pub struct Comparison {
    /// Rows that both tables have.
    pub compared: usize,
    /// Rows of this run that the table before does not have.
    pub new: Vec<String>,
    pub falls: Vec<Fall>,
}

/// Compares the rows that both tables have by their ratios. Without a ceiling, the value decides, but only on GPUs.
pub fn compare(before: &Report, now: &Report) -> Comparison {
    let mut comparison = Comparison::default();
    for row in &now.rows {
        let Some(old) = before.rows.iter().find(|old| old.name == row.name) else {
            comparison.new.push(row.name.clone());
            continue;
        };
        let Some((unit, was, is)) = scores(old, row, now.is_gpu()) else { continue };
        comparison.compared += 1;
        let allowed = ALLOWANCE + old.spread + row.spread;
        if is.is_nan() || is < was * (1.0 - allowed) {
            comparison.falls.push(Fall { name: row.name.clone(), unit, before: was, now: is, allowed });
        }
    }
    comparison
}

/// Returns the unit and the two figures that are compared. Larger is better.
fn scores(old: &Row, new: &Row, gpu: bool) -> Option<(String, f64, f64)> {
    match (old.ratio, new.ratio) {
        (Some(old), Some(new)) => Some(("of the ceiling".into(), old, new)),
        _ => (gpu && old.unit == new.unit).then(|| (new.unit.clone(), old.value, new.value)),
    }
}
