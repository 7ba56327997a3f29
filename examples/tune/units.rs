//! How fast each block is on matrix units, in products of `f16`. The names of the kernels that a device runs tell
//! whether it uses a block.

use crate::Tuner;
use crate::measure;
use crate::statistics::median;
use crate::table::{grid, speed, table};
use anyhow::Result;
use half::f16;
use marquetry::internals::tuning::{self, Candidate, Tuning, UnitBlock, Units};
use marquetry::{Device, Tensor};

/// The depth of products, rounded up to whole tiles: so long that nothing else counts.
const DEPTH: usize = 4096;
/// Blocks per compute unit that make a device full.
const FULL: usize = 8;

impl Tuner {
    /// Measures all blocks. For devices without matrix units, it prints nothing.
    pub fn tune_units(&self, tuning: &Tuning, text: &mut String) -> Result<()> {
        let features = self.device.info().features;
        if features.matrix_units.f16.is_none() || !features.timestamps {
            return Ok(());
        }
        let blocks = UnitBlock::all();
        self.progress.set_message("products on matrix units");
        self.progress.inc_length(2 * blocks.len() as u64);
        let (mut candidates, mut left_out) = (Vec::new(), Vec::new());
        for block in blocks {
            match self.candidate(tuning, block)? {
                Some(candidate) => candidates.push(candidate),
                None => left_out.push(block),
            }
        }
        *text += &table(candidates, &left_out);
        Ok(())
    }

    /// Measures the speeds of a block: with one block per compute unit, and with many.
    fn candidate(&self, tuning: &Tuning, block: UnitBlock) -> Result<Option<Candidate>> {
        let device = self.open_for_block(tuning, block)?;
        let compute_units = tuning::compute_units(device.info().compute_units);
        let measure = |blocks: usize| -> Result<Option<u32>> {
            let grid = grid(blocks, compute_units / 16);
            let Some(seconds) = self.seconds(&device, block, grid)? else { return Ok(None) };
            let [down, across] = grid;
            Ok(Some(speed(block, down * across, 2 * depth(block), compute_units, seconds)))
        };
        let (alone, full) = (measure(compute_units)?, measure(FULL * compute_units)?);
        Ok(alone.zip(full).map(|(alone, full)| Candidate { unit_block: block, alone, full }))
    }

    /// Opens a device with one block, and with a depth that is never cut.
    fn open_for_block(&self, tuning: &Tuning, block: UnitBlock) -> Result<Device> {
        let candidates = Box::leak(Box::new([Candidate { unit_block: block, alone: 1, full: 1 }]));
        let units = Units { candidates, shortest: usize::MAX, ..tuning.units.clone() };
        self.open(Tuning { units, ..tuning.clone() })
    }

    /// Returns the seconds of a product with this grid of blocks; `None` if it is computed in another way.
    fn seconds(&self, device: &Device, block: UnitBlock, [down, across]: [usize; 2]) -> Result<Option<f64>> {
        let ([rows, columns], depth) = (block.shape.map(|length| length as usize), depth(block));
        let [a, b] = [halves((down * rows, depth), device)?, halves((depth, across * columns), device)?];
        let mut runs = |count| {
            for _ in 0..count {
                a.matmul(&b)?.realize()?;
            }
            Ok(device.synchronize()?)
        };
        self.progress.inc(1);
        // The kernel is compiled and tested before anything counts.
        runs(1)?;
        let kernel = &measure::commands(device, 1, &mut runs)?[0][0].name;
        if !kernel.contains(&format!(" units {},", block.name())) {
            return Ok(None);
        }
        let estimate = self.protocol.warm_up(&mut runs)?;
        let each = measure::commands(device, self.protocol.count(estimate), &mut runs)?;
        let times: Vec<_> = each.iter().flatten().map(|command| command.duration().as_secs_f64()).collect();
        Ok(Some(median(&times)))
    }
}

/// Returns a depth that fills tiles.
fn depth(block: UnitBlock) -> usize {
    // A tile has half as many elements as bytes.
    DEPTH.next_multiple_of(block.depth as usize)
}

fn halves(shape: (usize, usize), device: &Device) -> marquetry::Result<Tensor> {
    let x = Tensor::randn(f16::ZERO, f16::ONE, shape, device)?;
    x.realize()?;
    Ok(x)
}
