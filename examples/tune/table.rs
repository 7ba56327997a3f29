//! The table `[units]` of `shaders/tuning`, made from the times of products on matrix units.

use marquetry::internals::tuning::{Candidate, UnitBlock};
use std::fmt::Write;

/// Returns rows and columns of blocks, as near to a square as possible. Up to `spare` of the blocks may be left over.
pub fn grid(blocks: usize, spare: usize) -> [usize; 2] {
    let rows = (1..=blocks.isqrt()).rev().find(|rows| blocks % rows <= spare).unwrap_or(1);
    [rows, blocks / rows]
}

/// Returns the bytes of depth that a compute unit adds up in a nanosecond, from the time of a product.
pub fn speed(block: UnitBlock, blocks: usize, depth: usize, compute_units: usize, seconds: f64) -> u32 {
    (block.work(blocks, depth, compute_units) / (1e9 * seconds)).round().max(1.0) as u32
}

/// Returns the table, the fastest block first, with a line for each block that the device does not use.
pub fn table(mut candidates: Vec<Candidate>, left_out: &[UnitBlock]) -> String {
    candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.full));
    let mut text = "\n[units]\n".to_string();
    for block in left_out {
        let why = "does not fit the device, or its kernel failed the self-test";
        _ = writeln!(text, "# Left out: {}, which {why}.", block.name());
    }
    let candidates: String = candidates.iter().map(candidate_text).collect();
    _ = writeln!(text, "candidates = [{candidates}\n]");
    text
}

fn candidate_text(Candidate { unit_block, alone, full }: &Candidate) -> String {
    let UnitBlock { shape, part, depth, slices, fragments } = unit_block;
    let fragments = fragments.name();
    let block = format!(
        "{{ shape = {shape:?}, part = {part:?}, depth = {depth}, slices = {slices}, fragments = {fragments:?} }}"
    );
    format!("\n  {{ unit_block = {block}, alone = {alone}, full = {full} }},")
}
