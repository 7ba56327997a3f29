//! How fast each block is on matrix units, in products of `f16`. Whether a device uses a block is told by the names of the
//! kernels that it runs.

use crate::Tuner;
use crate::measure;
use crate::statistics::median;
use crate::table::{grid, speed, table};
use anyhow::Result;
use half::f16;
use marquetry::internals::tuning::{self, Candidate, Tuning, UnitBlock, Units};
use marquetry::{Device, Tensor};

/// The depth of products, or a little more: so long that all else does not count.
const DEPTH: usize = 4096;
/// Blocks per compute unit of a full device.
const FULL: usize = 8;

impl Tuner {
    /// Nothing is printed for devices without matrix units.
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

    /// The speeds of a block: with one for each compute unit, and with many.
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

    /// A device with one block, and a depth that is never cut.
    fn open_for_block(&self, tuning: &Tuning, block: UnitBlock) -> Result<Device> {
        let candidates = Box::leak(Box::new([Candidate { unit_block: block, alone: 1, full: 1 }]));
        let units = Units { candidates, shortest: usize::MAX, ..tuning.units.clone() };
        self.open(Tuning { units, ..tuning.clone() })
    }

    /// The seconds of a product of so many blocks; `None` where it is computed in another way.
    fn seconds(&self, device: &Device, block: UnitBlock, [down, across]: [usize; 2]) -> Result<Option<f64>> {
        let ([rows, columns], depth) = (block.shape.map(|length| length as usize), depth(block));
        let [a, b] = [halves((down * rows, depth), device)?, halves((depth, across * columns), device)?];
        let mut runs = |count| {
            for _ in 0..count {
                a.matmul(&b)?.eval()?;
            }
            Ok(device.synchronize()?)
        };
        self.progress.inc(1);
        // The kernel is compiled, and tested, before anything counts.
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

/// A depth that fills tiles.
fn depth(block: UnitBlock) -> usize {
    // A tile has half as many elements as bytes.
    DEPTH.next_multiple_of(block.depth as usize)
}

fn halves(shape: (usize, usize), device: &Device) -> marquetry::Result<Tensor> {
    let x = Tensor::randn(f16::ZERO, f16::ONE, shape, device)?;
    x.eval()?;
    Ok(x)
}
