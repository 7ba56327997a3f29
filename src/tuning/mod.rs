//! How work is divided on a device: data that are chosen by its vendor and name.
//!
//! The data are in `shaders/tuning`, one file per family of devices. The build script checks them and turns them into
//! constants.

#![allow(missing_docs, reason = "`shaders/tuning/default.toml` says what each field means")]

mod block;

pub use block::{Block, Fragments, UnitBlock};

/// How work is divided. `shaders/tuning/default.toml` says what each field means, and gives the reason for its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuning {
    pub matmul: Matmul,
    pub units: Units,
    pub quantized: Quantized,
    pub attention: Attention,
    pub conv: Conv,
    pub resize: Resize,
    pub rows: Rows,
    pub reduce: Reduce,
    pub scan: Scan,
    pub copy: Copy,
    pub sampling: Sampling,
    pub loads: Loads,
    pub workgroups: Workgroups,
    pub batch: Batch,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Matmul {
    pub blocks: &'static [Block],
    pub busy: usize,
    pub shortest: usize,
    pub columns: u32,
    pub words: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Units {
    pub candidates: &'static [Candidate],
    pub shortest: usize,
    pub addition: usize,
    pub bandwidth: usize,
    pub vectors: bool,
    pub subgroups: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    pub unit_block: UnitBlock,
    pub alone: u32,
    pub full: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Quantized {
    pub lanes_of_one: u32,
    pub lanes_of_several: u32,
    pub own_rows: bool,
    pub vectors: u32,
    pub few: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    pub workgroup: bool,
    pub parts_per_unit: usize,
    pub subgroups: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Conv {
    pub workgroup: bool,
    pub columns: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Resize {
    pub invocations: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Rows {
    pub shortest: usize,
    pub busy: usize,
    pub held: usize,
    pub column_teams: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Loads {
    pub several: bool,
    pub pairs: bool,
    pub addresses: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Workgroups {
    pub turns: bool,
    pub elementwise: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Reduce {
    pub columns: bool,
    pub teams: usize,
    pub shortest: usize,
    pub column_teams: usize,
    pub shortest_column: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Scan {
    pub look_back: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Copy {
    pub tiles: bool,
    pub driver: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    pub invocations: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    pub bandwidth: u64,
    pub products: u64,
}

impl Batch {
    /// Estimates how long a kernel takes on a slow device, from the bytes that it moves and the products that it adds
    /// up.
    pub fn nanoseconds(&self, bytes: u64, products: u64) -> u64 {
        (bytes / self.bandwidth).saturating_add(products / self.products)
    }
}

/// The data of a file. It is for the devices of a vendor with one of these words in their names. A file without words
/// is for the vendor's other devices.
#[derive(Debug, PartialEq)]
pub struct Entry {
    pub name: &'static str,
    vendor: &'static str,
    words: &'static [&'static str],
    pub tuning: Tuning,
}

include!(concat!(env!("OUT_DIR"), "/tuning.rs"));

/// Returns the number of compute units that share work. If the device does not report it, this is a guess.
pub fn compute_units(told: Option<u32>) -> usize {
    told.map_or(64, |units| units as usize)
}

/// Returns the entry with a name.
pub fn entry(name: &str) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.name == name)
}

/// Returns the entry for a device: the one with the longest word of its name, else its vendor's, else the default.
pub fn fitting(vendor: &str, name: &str, is_software: bool) -> &'static Entry {
    let by_name = |name| entry(name).unwrap_or(&ENTRIES[0]);
    if is_software {
        return by_name("software");
    }
    let of_vendor = |entry: &&Entry| {
        // If WebGPU reports no vendor, the name begins with it.
        !entry.vendor.is_empty() && (vendor == entry.vendor || name.starts_with(entry.vendor))
    };
    let length = |entry: &Entry| -> Option<usize> {
        let longest = entry.words.iter().filter(|words| begins_a_word(name, words)).map(|words| words.len()).max();
        if entry.words.is_empty() { Some(0) } else { longest }
    };
    let fitting = ENTRIES.iter().filter(of_vendor).filter_map(|entry| Some((length(entry)?, entry)));
    fitting.max_by_key(|(length, _)| *length).map_or_else(|| by_name("default"), |(_, entry)| entry)
}

/// Returns whether a text contains `words` from the beginning of a word on.
fn begins_a_word(text: &str, words: &str) -> bool {
    text.match_indices(words).any(|(place, _)| !text[..place].ends_with(|c: char| c.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_word_of_a_name_decides() {
        for (vendor, name, expected) in [
            ("NVIDIA", "NVIDIA H200", "nvidia-hopper"),
            ("NVIDIA", "NVIDIA GeForce RTX 4090", "nvidia-ada"),
            ("NVIDIA", "NVIDIA RTX 4000 Ada Generation", "nvidia-ada"),
            ("NVIDIA", "NVIDIA RTX 2000 Ada Generation", "nvidia-ada"),
            ("NVIDIA", "NVIDIA L4", "nvidia-ada"),
            ("NVIDIA", "Quadro RTX 4000", "nvidia-turing"),
            ("NVIDIA", "NVIDIA GeForce RTX 2080 Ti", "nvidia-turing"),
            ("NVIDIA", "Tesla T4", "nvidia-turing"),
            ("NVIDIA", "NVIDIA A100-SXM4-80GB", "nvidia-ampere"),
            ("NVIDIA", "NVIDIA RTX A6000", "nvidia-ampere"),
            ("NVIDIA", "NVIDIA GeForce GTX 1080", "nvidia"),
            ("AMD", "AMD Radeon RX 7900 XTX (RADV NAVI31)", "amd-rdna"),
            ("AMD", "AMD Instinct MI300X", "amd-cdna"),
            ("AMD", "AMD Radeon Graphics (RADV RENOIR)", "amd"),
            ("Intel", "Intel(R) Arc(TM) A770 Graphics", "intel-xe"),
            ("Intel", "Intel(R) Data Center GPU Max 1550", "intel-xe"),
            ("Intel", "Intel(R) Arc(TM) B580 Graphics", "intel-xe2"),
            ("Intel", "Intel(R) UHD Graphics 630", "intel"),
            // Metal reports no vendor to WebGPU.
            ("0x0000", "Apple M3 Max", "apple"),
            ("Qualcomm", "Adreno (TM) 750", "qualcomm"),
            ("Arm", "Mali-G715", "default"),
        ] {
            assert_eq!(fitting(vendor, name, false).name, expected, "{name}");
        }
        assert_eq!(fitting("Mesa", "llvmpipe (LLVM 15)", true).name, "software");
    }
}
