//! Reads and checks the tuning data, and writes them as constants of the types in `src/tuning`.
//!
//! `default.toml` defines the keys and their types. Every other file holds only its differences.

#[path = "../src/tuning/block.rs"]
mod block;

use block::{Block, Fragments, UnitBlock};
use std::collections::BTreeMap;
use std::path::Path;
use toml::{Table, Value};

/// A file, merged with the files that it inherits.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub name: String,
    pub vendor: String,
    pub words: Vec<String>,
    /// The tables of `default.toml` except `device`, with the file's own values.
    pub tuning: Table,
    /// The limits that kernels must fit.
    device: Table,
}

/// The keys that say which devices a file is for, and which file it inherits.
const PURPOSE: [&str; 3] = ["vendor", "words", "inherits"];

/// Reads all files of a folder.
pub fn read(folder: &Path) -> Result<Vec<Entry>, String> {
    let fail = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut files = BTreeMap::new();
    for file in std::fs::read_dir(folder).map_err(fail)? {
        let path = file.map_err(fail)?.path();
        if let (Some(name), Some("toml")) = (path.file_stem(), path.extension().and_then(|e| e.to_str())) {
            let text = std::fs::read_to_string(&path).map_err(fail)?;
            files.insert(name.to_string_lossy().into_owned(), text);
        }
    }
    entries(&files)
}

/// Returns an entry per file. `files` maps names to text.
pub fn entries(files: &BTreeMap<String, String>) -> Result<Vec<Entry>, String> {
    let parse = |(name, text): (&String, &String)| match text.parse::<Table>() {
        Ok(table) => Ok((name.clone(), table)),
        Err(error) => Err(format!("tuning {name}: {error}")),
    };
    let tables: BTreeMap<String, Table> = files.iter().map(parse).collect::<Result<_, _>>()?;
    tables.keys().map(|name| entry(&tables, name)).collect()
}

fn entry(tables: &BTreeMap<String, Table>, name: &str) -> Result<Entry, String> {
    let fail = |message: String| format!("tuning {name}: {message}");
    let mut values = inherited(tables, name, 0).map_err(fail)?;
    let own = &tables[name];
    let vendor = own.get("vendor").and_then(Value::as_str).unwrap_or_default().to_string();
    let words = own.get("words").and_then(Value::as_array).into_iter().flatten();
    let words = words.map(|word| word.as_str().map(String::from).ok_or("`words` are no texts".to_string()));
    let words = words.collect::<Result<Vec<_>, _>>().map_err(fail)?;
    let device = match values.remove("device") {
        Some(Value::Table(device)) => device,
        _ => return Err(fail("there is no table `device`".into())),
    };
    let entry = Entry { name: name.into(), vendor, words, tuning: values, device };
    entry.check().map_err(fail)?;
    Ok(entry)
}

/// Returns the values of a file, merged over the values that it inherits.
fn inherited(tables: &BTreeMap<String, Table>, name: &str, depth: usize) -> Result<Table, String> {
    let mut own = tables.get(name).ok_or_else(|| format!("it inherits from `{name}`, which is not there"))?.clone();
    let purpose: Vec<_> = PURPOSE.iter().map(|key| own.remove(*key)).collect();
    if name == "default" {
        return Ok(own);
    }
    if depth > tables.len() {
        return Err("it inherits from itself".into());
    }
    let parent = purpose[2].as_ref().and_then(Value::as_str).unwrap_or("default");
    let mut values = inherited(tables, parent, depth + 1)?;
    replace(&mut values, &own, "")?;
    Ok(values)
}

/// Overwrites values with others that have the same keys and types.
fn replace(values: &mut Table, by: &Table, path: &str) -> Result<(), String> {
    for (key, value) in by {
        let known: Vec<_> = values.keys().cloned().collect();
        let Some(old) = values.get_mut(key) else {
            return Err(format!("there is no key `{path}{key}`; default.toml has {}", known.join(", ")));
        };
        match (old, value) {
            (Value::Table(old), Value::Table(value)) => replace(old, value, &format!("{path}{key}."))?,
            (old, value) if old.same_type(value) => *old = value.clone(),
            (old, value) => {
                return Err(format!("`{path}{key}` is of type {}, not {}", old.type_str(), value.type_str()));
            }
        }
    }
    Ok(())
}

impl Entry {
    /// Checks that the kernels fit the device.
    fn check(&self) -> Result<(), String> {
        for (table, values) in &self.tuning {
            for (key, value) in values.as_table().into_iter().flatten() {
                if value.as_integer().is_some_and(|number| !(1..1 << 32).contains(&number)) {
                    return Err(format!("`{table}.{key}` is {value}, and has to be from 1 to 2^32 - 1"));
                }
            }
        }
        let blocks = self.blocks()?;
        for (place, block) in blocks.iter().enumerate() {
            // The smallest block also computes 64-bit numbers.
            let bytes = if place + 1 == blocks.len() { 8 } else { 4 };
            let [rows, columns] = block.shape;
            let fail = |message: String| Err(format!("the block of {rows} x {columns}: {message}"));
            if let Some(fault) = block.fault() {
                return fail(fault);
            }
            for (needed, key) in [
                (block.invocations(), "invocations"),
                (block.workgroup_memory(bytes), "workgroup_memory"),
                (block.registers(), "registers"),
            ] {
                let has = self.device.get(key).and_then(Value::as_integer).unwrap_or(0);
                if i64::from(needed) > has {
                    return fail(format!("it takes {needed} {}, the device has {has}", key.replace('_', " ")));
                }
            }
        }
        let area = |block: &Block| block.shape[0] * block.shape[1];
        if !blocks.is_sorted_by_key(|block| std::cmp::Reverse(area(block))) {
            return Err("`matmul.blocks` do not begin with the largest".into());
        }
        self.check_units()
    }

    fn check_units(&self) -> Result<(), String> {
        let candidates = self.tuning.get("units").and_then(|units| units.get("candidates")).and_then(Value::as_array);
        for value in candidates.into_iter().flatten() {
            let Some(block) = candidate(value) else { return Err(format!("{value} is no candidate")) };
            if let Some(fault) = block.fault() {
                let [rows, columns] = block.shape;
                return Err(format!("the block of {rows} x {columns} on matrix units: {fault}"));
            }
        }
        Ok(())
    }

    fn blocks(&self) -> Result<Vec<Block>, String> {
        let blocks = self.tuning.get("matmul").and_then(|matmul| matmul.get("blocks")).and_then(Value::as_array);
        blocks.into_iter().flatten().map(|value| block(value).ok_or(format!("{value} is no block"))).collect()
    }
}

fn block(value: &Value) -> Option<Block> {
    let block = Block { shape: pair(value, "shape")?, part: pair(value, "part")?, depth: number(value.get("depth")?)? };
    has_keys(value, 3).then_some(block)
}

/// Reads the block of a candidate, and checks that the candidate has its speeds.
fn candidate(value: &Value) -> Option<UnitBlock> {
    let block = value.get("unit_block")?;
    let speeds = ["alone", "full"].map(|key| value.get(key).and_then(number).filter(|speed| *speed > 0));
    let found = UnitBlock {
        shape: pair(block, "shape")?,
        part: pair(block, "part")?,
        depth: number(block.get("depth")?)?,
        slices: number(block.get("slices")?)?,
        fragments: Fragments::parse(block.get("fragments")?.as_str()?)?,
    };
    (speeds.iter().all(Option::is_some) && has_keys(block, 5) && has_keys(value, 3)).then_some(found)
}

fn number(value: &Value) -> Option<u32> {
    u32::try_from(value.as_integer()?).ok()
}

fn pair(value: &Value, key: &str) -> Option<[u32; 2]> {
    match value.get(key)?.as_array()?.as_slice() {
        [a, b] => Some([number(a)?, number(b)?]),
        _ => None,
    }
}

fn has_keys(value: &Value, count: usize) -> bool {
    value.as_table().is_some_and(|table| table.len() == count)
}

/// Writes the table `ENTRIES`, with the types in `src/tuning`.
pub fn to_rust(entries: &[Entry]) -> String {
    let entries = entries.iter().map(|Entry { name, vendor, words, tuning, .. }| {
        let tuning = expression("tuning", &Value::Table(tuning.clone()));
        format!("    Entry {{ name: {name:?}, vendor: {vendor:?}, words: &{words:?}, tuning: {tuning} }},\n")
    });
    format!("/// Every entry.\npub static ENTRIES: &[Entry] = &[\n{}];\n", entries.collect::<String>())
}

/// Writes a value as a Rust expression. A table becomes a struct that is named like its key, and a word a variant of an
/// enum that is named like its key.
fn expression(key: &str, value: &Value) -> String {
    match value {
        Value::Table(table) => {
            let fields: Vec<_> =
                table.iter().map(|(key, value)| format!("{key}: {}", expression(key, value))).collect();
            format!("{} {{ {} }}", type_name(key), fields.join(", "))
        }
        Value::Array(values) => {
            let items: Vec<_> = values.iter().map(|value| expression(key, value)).collect();
            let numbers = !values.is_empty() && values.iter().all(|value| value.is_integer());
            format!("{}[{}]", if numbers { "" } else { "&" }, items.join(", "))
        }
        Value::String(word) => format!("{}::{}", type_name(key), capital(word)),
        other => other.to_string(),
    }
}

/// Returns the type for a key: `Block` for `blocks`, `Matmul` for `matmul`, `UnitBlock` for `unit_block`.
fn type_name(key: &str) -> String {
    let one = if ["blocks", "candidates"].contains(&key) { &key[..key.len() - 1] } else { key };
    one.split('_').map(capital).collect()
}

fn capital(word: &str) -> String {
    word[..1].to_uppercase() + &word[1..]
}
