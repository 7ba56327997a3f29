//! How products are cut for matrix units, and copies of operands that lie so that matrix units cannot read them.

use super::matmul::Problem;
use super::pad::PadMode;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernels::matmul::{Along, Matmul, Tile, UnitBlock, UnitLayout};
use crate::tensor::Tensor;
use crate::tuning;

/// A block, and in how many slices of the depth the product is computed, which are then added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    pub block: UnitBlock,
    pub splits: usize,
}

/// A block, and how many bytes of products a compute unit adds up with it per nanosecond: where it has one workgroup, and
/// where it has all that it holds. Of an H200; what matters is how they compare.
struct Candidate {
    block: UnitBlock,
    alone: f64,
    full: f64,
}

const CANDIDATES: [Candidate; 3] = [
    Candidate { block: UnitBlock::LARGE, alone: 2000.0, full: 2500.0 },
    Candidate { block: UnitBlock::SLICED, alone: 2150.0, full: 1800.0 },
    Candidate { block: UnitBlock::SMALL, alone: 900.0, full: 1050.0 },
];

/// The least depth of a slice, and what adding up costs: nanoseconds, and bytes per nanosecond.
const LEAST_DEPTH: usize = 512;
const ADDITION: f64 = 4000.0;
const BANDWIDTH: f64 = 3000.0;

impl Candidate {
    /// Nanoseconds that a product takes.
    fn time(&self, problem: &Problem, bytes: usize, splits: usize, compute_units: usize) -> f64 {
        let [m, n, k] = problem.sizes;
        let blocks = problem.blocks(self.block.shape).unwrap_or(usize::MAX).saturating_mul(splits);
        let speed = if blocks <= compute_units { self.alone } else { self.full };
        let [rows, columns] = self.block.shape;
        let block = f64::from(rows * columns) * (k / splits * bytes) as f64 / speed;
        let addition = match splits {
            1 => 0.0,
            _ => ADDITION + 2.0 * 4.0 * (problem.batches() * m * n * splits) as f64 / BANDWIDTH,
        };
        blocks.div_ceil(compute_units) as f64 * block + addition
    }
}

/// The size of the units that compute products of a dtype, if a product is worth it.
pub(super) fn unit(device: &Device, dtype: DType, [m, n, k]: [usize; 3]) -> Option<[u32; 3]> {
    let worth_it = m >= 16 && n >= 16 && k >= 32 && !tuning::forces("portable");
    device.info().features.matrix_units.of(dtype).filter(|_| worth_it)
}

/// How a product is cut.
pub(super) fn cut(device: &Device, dtype: DType, problem: &Problem) -> Cut {
    let compute_units = device.info().compute_units.map_or(64, |units| units as usize);
    let bytes = dtype.size_in_bytes();
    let [_, n, k] = problem.sizes;
    let parameters = Matmul::parameter_words(problem.lengths.len() + 1);
    let is_possible = |splits: &usize| {
        // Rows of the parts are as long as those of the product.
        let fits = k.is_multiple_of(splits * 128 / bytes) && k / splits >= LEAST_DEPTH && n.is_multiple_of(8);
        *splits == 1 || (fits && parameters <= device.info().limits.max_parameter_words as usize)
    };
    let splits: Vec<usize> = match tuning::forced_splits() {
        Some(splits) => [splits, 1].into_iter().filter(is_possible).take(1).collect(),
        None => [1, 2, 4, 8].into_iter().filter(is_possible).collect(),
    };
    let forced = CANDIDATES.iter().find(|candidate| tuning::forces(&candidate.block.name()));
    let candidates = forced.map_or(&CANDIDATES[..], std::slice::from_ref);
    let all = candidates.iter().flat_map(|candidate| splits.iter().map(move |&splits| (candidate, splits)));
    let time = |&(candidate, splits): &(&Candidate, usize)| candidate.time(problem, bytes, splits, compute_units);
    let best = all.min_by(|a, b| time(a).total_cmp(&time(b)));
    best.map_or(Cut { block: UnitBlock::LARGE, splits: 1 }, |(best, splits)| Cut { block: best.block, splits })
}

/// A block on units of a size, where both operands are read 16 bytes at a time.
pub(super) fn tile(problem: &Problem, dtype: DType, block: UnitBlock, unit: [u32; 3]) -> Option<Tile> {
    let [a, b] = problem.along(16 / dtype.size_in_bytes());
    let whole = problem.sizes[2].is_multiple_of(block.depth as usize / dtype.size_in_bytes());
    Some(Tile::MatrixUnits(block, UnitLayout { unit, a: a?, b: b?, whole }))
}

/// Both operands so that units read them: copies of those that lie otherwise, along the depth, which zeros fill up to a
/// multiple of 16 bytes. `None` where there is nothing to copy, or it would not pay.
pub(super) fn copies(lhs: &Tensor, rhs: &Tensor, problem: &Problem) -> Result<Option<[Tensor; 2]>> {
    let [m, n, k] = problem.sizes;
    let bytes = lhs.dtype().size_in_bytes();
    let missing = k.next_multiple_of(16 / bytes) - k;
    let pays = |along: Option<Along>, uses: usize| match along {
        None => m.min(n) >= 128,
        // Units take bytes across the depth one by one.
        Some(Along::Other) => bytes == 1 && uses >= 256,
        Some(Along::Depth) => false,
    };
    let [a, b] = problem.along(16 / bytes);
    let (copy_a, copy_b) = (pays(a, n), pays(b, m));
    let unreadable = (a.is_none() && !copy_a) || (b.is_none() && !copy_b);
    if unreadable || !(copy_a || copy_b) {
        return Ok(None);
    }
    let along_depth = |x: &Tensor, copy: bool| match (missing, copy) {
        (0, false) => Ok(x.clone()),
        (0, true) => x.copied(),
        _ => x.pad(&[(0, missing as isize)], PadMode::Constant(0.0)),
    };
    Ok(Some([along_depth(lhs, copy_a)?, along_depth(&rhs.t()?, copy_b)?.t()?]))
}
