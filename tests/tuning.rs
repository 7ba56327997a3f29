//! The tuning data: what the build script refuses, and that the tests run the kernels of every entry.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../examples/tune/table.rs"]
mod table;
#[path = "../build/tuning.rs"]
mod tuning;

use marquetry::internals::tuning::{Candidate, Fragments, UnitBlock};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use table::{grid, speed, table};
use tuning::{Entry, entries, read, to_rust};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).into()
}

/// The entries with another file beside `default.toml`.
fn with(text: &str) -> Result<Vec<Entry>, String> {
    let default = std::fs::read_to_string(root().join("shaders/tuning/default.toml")).unwrap();
    entries(&BTreeMap::from([("default".to_string(), default), ("other".to_string(), text.to_string())]))
}

#[test]
fn a_file_says_only_where_it_differs() {
    let found = with("vendor = \"ACME\"\nwords = [\"One\"]\n[matmul]\nbusy = 7").unwrap();
    let [default, other] = &found[..] else { panic!("{found:?}") };
    assert_eq!((&*other.name, &*other.vendor, &other.words[..]), ("other", "ACME", &["One".to_string()][..]));
    assert_eq!(other.tuning["matmul"]["busy"].as_integer(), Some(7));
    assert_eq!(other.tuning["matmul"]["blocks"], default.tuning["matmul"]["blocks"]);
    assert!(to_rust(&found).contains("words: &[\"One\"], tuning: Tuning { "));
}

#[test]
fn mistakes_are_refused_by_name() {
    for (text, message) in [
        (
            "[matmul]\nbuzy = 1",
            "tuning other: there is no key `matmul.buzy`; default.toml has blocks, busy, columns, shortest, words",
        ),
        ("colour = 1", "there is no key `colour`"),
        ("[matmul]\nbusy = true", "`matmul.busy` is of type integer, not boolean"),
        ("[matmul]\nbusy = 0", "`matmul.busy` is 0, and has to be from 1"),
        ("inherits = \"nobody\"", "it inherits from `nobody`, which is not there"),
        ("inherits = \"other\"", "it inherits from itself"),
        ("[matmul]\nblocks = [{ shape = [64, 64], part = [8, 4] }]", "is no block"),
        ("[matmul", "TOML parse error"),
    ] {
        let error = with(text).unwrap_err();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn blocks_fit_their_device() {
    let block = |shape: [u32; 2], part: [u32; 2], depth: u32, device: &str| {
        with(&format!(
            "[device]\n{device}\n[matmul]\nblocks = [{{ shape = {shape:?}, part = {part:?}, depth = {depth} }}]"
        ))
    };
    let small = [64, 64];
    // A lone block is the smallest, too, and has numbers of 64 bits.
    assert!(block(small, [8, 4], 8, "workgroup_memory = 17408").is_ok());
    let memory = "64 x 64: it takes 17408 workgroup memory, the device has 17000";
    let registers = "64 x 128: it takes 88 registers, the device has 64";
    for (found, message) in [
        (block(small, [8, 4], 8, "workgroup_memory = 17000"), memory),
        (block(small, [4, 4], 16, "workgroup_memory = 40000"), "it takes 256 invocations, the device has 128"),
        (block([64, 128], [8, 8], 8, "workgroup_memory = 30000\nregisters = 64"), registers),
        (block(small, [8, 4], 6, ""), "its sizes are not multiples of 4"),
        (block(small, [12, 4], 8, ""), "its parts do not fill it"),
        (block([32, 16], [4, 4], 8, ""), "its 8 x 4 parts are no multiple of 4 x 8"),
        (block([128, 32], [8, 4], 4, ""), "its 128 invocations do not share the loads of a tile evenly"),
    ] {
        let error = found.unwrap_err();
        assert!(error.contains(message), "{error}");
    }
    let unsorted = "[device]\nworkgroup_memory = 20000\n[matmul]\nblocks = [{ shape = [32, 32], part = [4, 4], depth = 8 }, { shape = [64, 64], part = [8, 4], depth = 8 }]";
    assert!(with(unsorted).unwrap_err().contains("do not begin with the largest"));
}

#[test]
fn blocks_on_matrix_units_can_be_computed() {
    let candidate = |block: &str, speeds: &str| {
        with(&format!("[units]\ncandidates = [{{ unit_block = {{ {block} }}, {speeds} }}]")).map(drop)
    };
    let good = "shape = [128, 128], part = [64, 64], depth = 128, slices = 1, fragments = 'none'";
    assert_eq!(candidate(good, "alone = 1, full = 1"), Ok(()));
    for (block, speeds, message) in [
        (good, "alone = 1", "is no candidate"),
        (good, "alone = 1, full = 0", "is no candidate"),
        (
            "shape = [128, 128], part = [64, 64], depth = 128, fragments = 'none'",
            "alone = 1, full = 1",
            "is no candidate",
        ),
        (&good.replace("'none'", "'some'"), "alone = 1, full = 1", "is no candidate"),
        (&good.replace("1, fragments = 'none'", "2, fragments = 'sums'"), "alone = 1, full = 1", "in one slice"),
        (&good.replace("[64, 64]", "[64, 24]"), "alone = 1, full = 1", "128 x 128 on matrix units: its parts are not"),
        (&good.replace("[64, 64]", "[48, 64]"), "alone = 1, full = 1", "its parts do not fill it"),
        (
            &good.replace("slices = 1, fragments = 'none'", "slices = 8, fragments = 'none'"),
            "alone = 1, full = 1",
            "is not to be had in 8 slices",
        ),
        (&good.replace("[128, 128]", "[64, 192]"), "alone = 1, full = 1", "its 96 invocations do not share the loads"),
    ] {
        let error = candidate(block, speeds).unwrap_err();
        assert!(error.contains(message), "{error}");
    }
}

/// What `tune` prints of matrix units is taken as it is.
#[test]
fn a_measured_table_of_units_is_data() {
    let candidate = |full, unit_block| Candidate { unit_block, alone: 7, full };
    let candidates: Vec<Candidate> = (1..).zip(UnitBlock::all()).map(|(full, block)| candidate(full, block)).collect();
    let text = table(candidates.clone(), &[]);
    let units = with(&text).unwrap()[1].tuning["units"].clone();
    let found = units["candidates"].as_array().unwrap();
    let speeds = found.iter().map(|value| ["alone", "full"].map(|key| value[key].as_integer().unwrap()));
    let fastest_first: Vec<_> = (1..=candidates.len() as i64).rev().map(|full| [7, full]).collect();
    assert_eq!(speeds.collect::<Vec<_>>(), fastest_first);

    let text = table(candidates[1..].to_vec(), &[candidates[0].unit_block]);
    assert!(text.contains(&format!("# Left out: {}, which", candidates[0].unit_block.name())), "{text}");
    let entries = with(&text).unwrap();
    let [default, other] = [0, 1].map(|entry: usize| &entries[entry].tuning["units"]);
    assert_eq!(other["candidates"].as_array().unwrap().len(), candidates.len() - 1);
    assert_eq!(other["addition"], default["addition"]);
}

#[test]
fn blocks_on_matrix_units_lie_in_even_grids() {
    for (blocks, spare, expected) in
        [(132, 8, [11, 12]), (1056, 8, [32, 33]), (127, 7, [11, 11]), (127, 0, [1, 127]), (1, 0, [1, 1])]
    {
        assert_eq!(grid(blocks, spare), expected);
    }
    // 132 blocks of 128 x 128 and 8,192 bytes of depth, each on a compute unit of its own: 2,000 bytes per nanosecond.
    let block = UnitBlock { shape: [128, 128], part: [64, 64], depth: 128, slices: 1, fragments: Fragments::None };
    assert_eq!(speed(block, 132, 8192, 132, 67.1e-6), 2000);
    assert_eq!(speed(block, 8 * 132, 8192, 132, 8.0 * 67.1e-6), 2000);
    // Nobody's speed is 0.
    assert_eq!(speed(block, 1, 8192, 132, 1.0), 1);
}

/// What only decides which of the kernels runs.
const THRESHOLDS: [&str; 10] = [
    "busy",
    "held",
    "parts_per_unit",
    "shortest",
    "teams",
    "column_teams",
    "shortest_column",
    "addition",
    "bandwidth",
    "products",
];

/// All that the code of kernels depends on, key by key. Kernels of one family depend on no key of another's.
fn kernels(entry: &Entry) -> BTreeSet<String> {
    let mut kernels = BTreeSet::new();
    for (family, values) in &entry.tuning {
        let values = values.as_table().unwrap().iter().filter(|(key, _)| !THRESHOLDS.contains(&&***key));
        for (key, value) in values {
            match value.as_array() {
                Some(variants) => kernels.extend(variants.iter().map(|value| format!("{family}.{key}: {value}"))),
                None => drop(kernels.insert(format!("{family}.{key}: {value}"))),
            }
        }
    }
    kernels
}

/// The files in `shaders/tuning` whose kernels software devices run in a tier, by `tests/runs.toml`.
fn tested_files(tier: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("tests/runs.toml")).unwrap();
    let table: toml::Table = toml::from_str(&text).unwrap();
    let runs = table["run"].as_array().unwrap().iter();
    let runs = runs.filter(|run| run["tiers"].as_array().unwrap().iter().any(|name| name.as_str() == Some(tier)));
    // Without the variable, a software device runs its own.
    let file = |run: &toml::Value| {
        run["variables"].get("MARQUETRY_TUNING").map_or("software", |name| name.as_str().unwrap()).into()
    };
    runs.map(file).collect()
}

/// Each tier runs every kernel that some file has.
#[test]
fn every_tier_runs_the_kernels_of_every_file() {
    let all = read(&root().join("shaders/tuning")).unwrap();
    for tier in ["quick", "full"] {
        let mut tested = BTreeSet::new();
        for name in tested_files(tier) {
            let entry = all.iter().find(|entry| entry.name == name);
            tested
                .extend(kernels(entry.unwrap_or_else(|| panic!("tests/runs.toml names `{name}`, which is not there"))));
        }
        for entry in &all {
            let missing: Vec<_> = kernels(entry).difference(&tested).cloned().collect();
            assert!(missing.is_empty(), "no run of the {tier} tier runs what {} has: {missing:?}", entry.name);
        }
    }
}
