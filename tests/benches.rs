//! The evaluation of benchmark results: medians, tables, and the comparison with an earlier table.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../benches/ops/compare.rs"]
mod compare;
#[path = "../benches/ops/report.rs"]
mod report;
#[path = "../benches/ops/statistics.rs"]
mod statistics;

use compare::{Comparison, compare};
use report::{CeilingFigure, Report, Row};
use statistics::{median, spread};

/// A report whose rows have these names, ratios and spreads.
fn report(rows: &[(&str, f64, f64)]) -> Report {
    let row = |&(name, ratio, spread): &(&str, f64, f64)| Row {
        name: name.into(),
        device_us: Some(12.3456),
        steady_us: Some(1_234_000.0),
        wall_us: 1_234_567.0,
        spread,
        value: 1000.0 * ratio,
        unit: "GB/s".into(),
        ceiling: Some(1000.0),
        bound: Some("memory".into()),
        ratio: Some(ratio),
        intensity: None,
    };
    Report {
        device: "vulkan:0".into(),
        name: "llvmpipe (LLVM 15.0.6, 256 bits)".into(),
        kind: "CPU".into(),
        driver: "Mesa 25".into(),
        date: "2026-01-01T00:00:00Z".into(),
        commit: "0123456".into(),
        command: "cargo bench".into(),
        repeats: 5,
        ceilings: vec![CeilingFigure { name: "memory".into(), value: 1000.0, unit: "GB/s".into() }],
        rows: rows.iter().map(row).collect(),
    }
}

#[test]
fn a_file_is_called_after_the_device_without_its_driver() {
    let mut report = report(&[]);
    assert_eq!(report.file_stem(), "vulkan-llvmpipe");
    (report.device, report.name) = ("level-zero:1".into(), "Intel(R) Arc(TM) A770".into());
    assert_eq!(report.file_stem(), "level-zero-intel-r-arc-tm-a770");
}

#[test]
fn what_is_written_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let report = report(&[("add", 0.1 + 0.2, 0.01)]);
    let path = report.write(folder.path()).unwrap();
    assert_eq!(Report::read(&path).unwrap(), report);
    assert!(Report::read(&folder.path().join("none.json")).is_err());
}

#[test]
fn the_table_has_a_line_per_row() {
    let text = report(&[("add", 0.5, 0.012)]).to_markdown();
    let line = text.lines().last().unwrap();
    assert_eq!(line, "| add | 12.3 | 1,234,000 | 1,234,567 | 1.2 % | 500 GB/s | 1,000 (memory) | 0.500 |");
}

#[test]
fn figures_have_three_digits() {
    let figures = [0.0123456, 9.876, 1234.5, 1_234_567.8, 100.0].map(report::figure);
    assert_eq!(figures, ["0.0123", "9.88", "1,234", "1,234,568", "100"]);
}

#[test]
fn a_median_ignores_what_is_far_off() {
    assert_eq!(median(&[3.0, 1000.0, 1.0]), 3.0);
    assert_eq!(median(&[4.0, 1.0, 2.0, 1000.0]), 3.0);
    assert!(median(&[]).is_nan());
}

#[test]
fn the_spread_is_a_part_of_the_median() {
    assert_eq!(spread(&[8.0, 10.0, 10.0, 11.0, 40.0]), 0.1);
    assert_eq!(spread(&[5.0]), 0.0);
}

#[test]
fn only_what_fell_by_more_than_the_spread_of_both_and_a_tenth_is_named() {
    let before = report(&[("add", 0.9, 0.02), ("sum", 0.8, 0.0), ("steady", 0.5, 0.0)]);
    // The limits are 15 % of 0.9 and 10 % of 0.8.
    let within = report(&[("add", 0.77, 0.03), ("sum", 0.721, 0.0), ("steady", 0.6, 0.0)]);
    assert_eq!(compare(&before, &within), Comparison { compared: 3, ..Comparison::default() });

    let below = report(&[("add", 0.76, 0.03), ("sum", 0.719, 0.0), ("steady", 0.5, 0.0)]);
    let names: Vec<_> = compare(&before, &below).falls.into_iter().map(|fall| fall.name).collect();
    assert_eq!(names, ["add", "sum"]);
}

#[test]
fn rows_that_only_one_table_has_are_not_compared() {
    let found =
        compare(&report(&[("old", 1.0, 0.0), ("both", 1.0, 0.0)]), &report(&[("both", 1.0, 0.0), ("new", 0.1, 0.0)]));
    assert_eq!(found, Comparison { compared: 1, new: vec!["new".into()], falls: vec![] });
}

#[test]
fn figures_without_a_ceiling_count_on_gpus_only() {
    let bare = |value: f64, kind: &str| {
        let mut report = report(&[("launches", value, 0.0)]);
        report.rows[0].ratio = None;
        report.kind = kind.into();
        report
    };
    assert_eq!(compare(&bare(1.0, "CPU"), &bare(0.1, "CPU")), Comparison::default());
    let found = compare(&bare(1.0, "discrete GPU"), &bare(0.1, "discrete GPU"));
    assert_eq!((found.compared, found.falls.len()), (1, 1));
    assert_eq!(found.falls[0].to_string(), "launches: 100.000 GB/s, was 1000.000: 90.0 % less, 10.0 % are allowed");
}

#[test]
fn what_is_not_a_number_has_fallen() {
    assert_eq!(compare(&report(&[("add", 0.9, 0.0)]), &report(&[("add", f64::NAN, 0.0)])).falls.len(), 1);
}
