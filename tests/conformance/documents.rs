//! The pages of `docs/` that are written from the suite: what it has shown, and the bounds that it checks.

use crate::tolerance::{DOUBLES, EPS, Table, Tolerance, tables};
use crate::{devices, full_tier, report};
use marquetry::DType;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The cells of the page's table by operation and column.
type Cells = BTreeMap<(String, &'static str), String>;

/// The columns: the dtypes, and what is no matter of one.
fn columns() -> Vec<&'static str> {
    DType::ALL.iter().map(|dtype| dtype.name()).chain(["other"]).collect()
}

/// The cells of a page.
fn cells_of(page: &str) -> Cells {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.flat_map(|row| {
        let (op, cells) = row.split_once("` | ").unwrap_or((row, ""));
        let cells = cells.trim_end_matches(" |").split(" | ").map(|cell| cell.trim().to_string());
        columns().into_iter().zip(cells).map(|(column, cell)| ((op.to_string(), column), cell))
    });
    cells.collect()
}

/// Operations by dtypes, and the devices on which all cases pass, as Markdown. The quick tier does not try all dtypes
/// of an operation on all devices: what it leaves out stays as it is on the page.
fn operations(page: &str) -> String {
    let counts = report::counts();
    let known = if full_tier() { Cells::new() } else { cells_of(page) };
    let ops: BTreeSet<&str> = counts.keys().map(|(op, ..)| *op).collect();
    let mut text = String::from(OPERATIONS);
    text += &format!("| operation | {} |\n|---|{}\n", columns().join(" | "), "---|".repeat(columns().len()));
    let mut lacking = BTreeSet::new();
    for op in ops {
        let dtypes = DType::ALL.into_iter().map(Some).chain([None]);
        let cells = dtypes.zip(columns()).map(|(dtype, column)| {
            let before = known.get(&(op.to_string(), column)).map_or("", |cell| cell);
            let mut cell = String::new();
            for device in devices::selected() {
                let letter = device[..1].to_uppercase();
                let Some(count) = counts.get(&(op, dtype, device)) else {
                    let lacking = format!("({letter})");
                    let parts = [lacking.as_str(), letter.as_str()];
                    cell += parts.into_iter().find(|part| before.contains(part)).unwrap_or_default();
                    continue;
                };
                match count.missing {
                    _ if count.passed < count.started => cell += "!",
                    Some(feature) => {
                        lacking.insert(format!("{letter} lacks {feature}"));
                        cell += &format!("({letter})");
                    }
                    None => cell += &letter,
                }
            }
            cell
        });
        text += &format!("| `{op}` | {} |\n", cells.collect::<Vec<_>>().join(" | "));
    }
    for line in lacking {
        text += &format!("\n{line}.\n");
    }
    text
}

const OPERATIONS: &str = "\
# Operations

The full tier of the conformance suite writes this page (`make ops MARQUETRY_TEST_TIER=full`). Each whole run compares
its outcome with the page. The quick tier does not try all dtypes of an operation on all devices; `make ops` alone
updates only what it has tried.

| cell | meaning |
|---|---|
| V | all cases of the operation with this dtype pass on Vulkan (lavapipe) |
| W | the same on WebGPU (wgpu on lavapipe) |
| L | the same on Level Zero (the test driver) |
| letter in brackets | the device lacks a feature, and its error says so |
| empty | the operation does not take the dtype, or it is the same for every dtype |

Some names are no methods of `Tensor`. For example, `views` tests chains of views, `fused` tests fused expressions, and
`display` tests printing.

";

/// Where the generated part of `docs/numerics.md` begins.
const BOUNDS: &str = "## Bounds\n";

/// The allowed error of every operation, as Markdown.
fn bounds() -> String {
    let mut text = String::from(BOUNDS);
    text += "\nThe conformance suite writes this table (`make ops`) and checks it on every device.\n\n";
    text += "| operations | bound for `f32` | why |\n|---|---|---|\n";
    tables().for_each(|table| text += &rows(table));
    text += DOUBLES_HEAD;
    text += "| operations | bound for `f64` | why |\n|---|---|---|\n";
    text + &rows(DOUBLES)
}

const DOUBLES_HEAD: &str = "
Functions of `f64` have their own bounds, in ulp of `f64`. All other operations have the bounds above, with the ulp and
the eps of `f64`. One ulp more is allowed, because the reference has no more digits. Random numbers of `f64` are drawn
in `f32`, with its bounds.

";

/// The rows of a table of bounds.
fn rows(table: Table) -> String {
    let row = |(ops, tolerance): &(&[&str], Tolerance)| {
        let names = ops.iter().map(|op| format!("`{op}`")).collect::<Vec<_>>().join(" ");
        format!("| {names} | {} | {} |\n", bound(tolerance), tolerance.reason)
    };
    table.iter().map(row).collect()
}

/// The allowed error in words.
fn bound(tolerance: &Tolerance) -> String {
    let Tolerance { ulp, absolute, of_scale, moves, .. } = *tolerance;
    let mut parts = Vec::new();
    if ulp > 0.0 {
        parts.push(format!("{ulp} ulp"));
    }
    if absolute > 0.0 {
        parts.push(format!("{absolute:e}"));
    }
    if of_scale > 0.0 {
        let eps = of_scale / EPS;
        parts.push(if eps < 0.01 { format!("{eps:.2e} eps of the scale") } else { format!("{eps} eps of the scale") });
    }
    match parts.is_empty() {
        true if moves => "the same bits".into(),
        true => "exact".into(),
        false => parts.join(" + "),
    }
}

/// Compares the pages with the results of this whole run, or writes them if `MARQUETRY_WRITE_DOCS` is set. Returns
/// whether they agree now.
pub fn check() -> bool {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let read = |page: &str| std::fs::read_to_string(docs.join(page)).unwrap_or_default();
    let prose = read("numerics.md").split(BOUNDS).next().unwrap_or_default().to_string();
    let pages = [("ops.md", operations(&read("ops.md"))), ("numerics.md", prose + &bounds())];
    let mut same = true;
    for (page, now) in pages {
        if std::env::var_os("MARQUETRY_WRITE_DOCS").is_some() {
            std::fs::write(docs.join(page), &now).expect("the page can be written");
        }
        if read(page) != now {
            report::complain(format_args!("docs/{page} is not what this run has shown; `make ops` writes it anew"));
            same = false;
        }
    }
    same
}
