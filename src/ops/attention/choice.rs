//! How the work of a call is divided.

use super::{AttentionCall, self_test};
use crate::base::dtype::DType;
use crate::base::environment;
use crate::base::error::Result;
use crate::base::layout::Layout;
use crate::engine::runtime::COUNTERS;
use crate::kernels::attention::{Attention, AttentionTile, AttentionUnits, FewRows, MAX_COLUMNS};
use crate::kernels::pages::PAGE;
use crate::ops::subgroup_lanes;
use crate::shader::FEW;
use crate::tensor::Tensor;
use crate::tuning;
use smallvec::SmallVec;

/// The most buffers that attention binds: four operands, the result, the parts of workgroups and their counts. Pages
/// have a table, and no mask. Fused expressions and new tokens bind more.
pub(super) const MOST_BINDINGS: usize = 7;

/// Returns the elements of a run of 16 bytes.
pub(super) fn run_of(dtype: DType) -> usize {
    16 / dtype.size_in_bytes()
}

/// Whether a tensor can be read 16 bytes at a time along its last axis.
pub(super) fn is_in_runs(x: &Tensor) -> bool {
    let (Layout { shape, strides, offset }, run) = (x.layout(), run_of(x.dtype()));
    let mut others = shape.iter().zip(strides).rev().skip(1);
    strides.last() == Some(&1)
        && shape.last().is_some_and(|length| length.is_multiple_of(run))
        && strides.iter().all(|&stride| stride >= 0)
        && offset.is_multiple_of(run)
        && others.all(|(&length, &stride)| length == 1 || stride.unsigned_abs().is_multiple_of(run))
}

impl AttentionCall<'_> {
    /// Returns the queries, keys and values, copied if they cannot be read 16 bytes at a time. `None` if all of them
    /// can.
    pub(super) fn in_runs(&self) -> Result<Option<[Tensor; 3]>> {
        let operands = [self.query, self.key, self.value];
        if operands.into_iter().all(is_in_runs) {
            return Ok(None);
        }
        let [query, key, value] = operands.map(|x| if is_in_runs(x) { Ok(x.clone()) } else { x.copied() });
        Ok(Some([query?, key?, value?]))
    }

    /// Whether blocks have rows of one head. On matrix units they do, unless heads are shorter than a block.
    pub(super) fn has_heads_apart(&self, tile: AttentionTile) -> bool {
        matches!(tile, AttentionTile::MatrixUnits(_)) && self.queries >= tile.block().0
    }

    /// Returns the blocks of rows of all heads.
    pub(super) fn row_blocks(&self, tile: AttentionTile) -> usize {
        let rows = tile.block().0;
        match self.has_heads_apart(tile) {
            true => self.heads * self.queries.div_ceil(rows),
            false => self.kv_heads * self.rows().div_ceil(rows),
        }
    }

    /// The rows that share keys and values.
    fn rows(&self) -> usize {
        self.heads / self.kv_heads * self.queries
    }

    pub(super) fn choose_tile(&self) -> AttentionTile {
        if let Some(few) = self.choose_few_rows() {
            return AttentionTile::FewRows(few);
        }
        if let Some(units) = self.choose_units() {
            return AttentionTile::MatrixUnits(units);
        }
        let rows = self.rows();
        // 64-bit numbers take twice the workgroup memory and registers.
        let wide = self.query.dtype().size_in_bytes() == 8;
        let device = self.query.device();
        if !device.tuning().attention.workgroup {
            AttentionTile::Registers { broadcast: device.info().has_eights_of_lanes() }
        } else if rows <= 4 && !wide {
            AttentionTile::Workgroup { across: 64 }
        } else if rows <= 16 || wide && self.columns > MAX_COLUMNS / 4 || self.columns > MAX_COLUMNS / 2 {
            AttentionTile::Workgroup { across: 16 }
        } else {
            AttentionTile::Workgroup { across: 8 }
        }
    }

    /// Returns how a few rows are divided, if the device can do so and operands can be read 16 bytes at a time. Copying
    /// keys and values would take longer than the other kernels.
    fn choose_few_rows(&self) -> Option<FewRows> {
        let device = self.query.device();
        let info = device.info();
        let lanes = subgroup_lanes(device)?;
        let can = info.features.memory_model && device.tuning().attention.workgroup;
        let dtype = self.query.dtype();
        // The kernel divides the number of a workgroup through floats, so it must be below `FEW`. If workgroups share
        // keys, they are at most `COUNTERS`. A folded dispatch has less than a row of surplus ones.
        let few_heads = self.batch.iter().product::<usize>() * self.kv_heads <= FEW / 2;
        if !can
            || !few_heads
            || self.features == 0
            || dtype.size_in_bytes() > 4
            || !is_in_runs(self.query)
            // Packed rows always are.
            || !self.packed && ![self.key, self.value].into_iter().all(is_in_runs)
        {
            return None;
        }
        let heads = self.heads / self.kv_heads;
        let few = FewRows::new((dtype, self.packed), [heads, self.queries], self.features.max(self.columns), lanes);
        let can = |few: &FewRows| {
            // Places of keys are computed in 32 bits, also of some behind the last key.
            let keys = if self.pages { 0 } else { self.keys + few.step() as usize };
            let reach = |x: &Tensor| keys * x.strides()[x.rank() - 2].unsigned_abs();
            // The keys of a step lie in one page.
            (!self.pages || few.own_step() <= PAGE)
                && few.memory() <= info.limits.max_workgroup_memory
                && few.workgroup() <= info.limits.max_workgroup_invocations
                && info.limits.max_bindings as usize >= MOST_BINDINGS
                && [self.key, self.value].into_iter().all(|x| reach(x) / run_of(dtype) <= u32::MAX as usize)
        };
        let few = few?;
        let all_keys = self.batch.iter().product::<usize>() * self.kv_heads * self.keys;
        let units = tuning::compute_units(info.compute_units);
        let on_units = few
            .on_units([self.features, self.columns], all_keys, units)
            .filter(|few| can(few) && self.units_take(*few));
        on_units.or_else(|| Some(few).filter(can))
    }

    /// Whether matrix units compute a few rows: the device has them, and a self-test has passed.
    fn units_take(&self, few: FewRows) -> bool {
        let (device, dtype) = (self.query.device(), self.query.dtype());
        let has_units = device.tuning().units.vectors
            && device.info().features.matrix_units.multiply(dtype, AttentionUnits::UNITS)
            && !environment::settings().force.no_units;
        let tile = AttentionTile::FewRows(few.of_any_queries());
        has_units && self_test::is_trusted(device, &self.config_of(tile))
    }

    /// Returns the kernel of a tile for operands as they are, with one batch axis.
    pub(super) fn config_of(&self, tile: AttentionTile) -> Attention {
        Attention {
            dtype: self.query.dtype(),
            batch_rank: 1,
            features: self.features as u32,
            columns: self.columns as u32,
            mask: self.config.mask.as_ref().map(Tensor::dtype),
            softcap: self.config.softcap.is_some(),
            paged: false,
            packed: false,
            append: None,
            prologues: Default::default(),
            tile,
            parts: false,
            epilogue: None,
        }
    }

    /// Returns how matrix units compute the result, if the device has them and a self-test has passed.
    fn choose_units(&self) -> Option<AttentionUnits> {
        let (device, dtype) = (self.query.device(), self.query.dtype());
        let info = device.info();
        let rows = self.rows();
        let (lengths, run) = ([self.features, self.columns], run_of(dtype));
        let suits = rows >= AttentionUnits::LEAST_ROWS
            && lengths.into_iter().all(|n| n > 0 && n <= MAX_COLUMNS && n.is_multiple_of(run));
        let (features, force) = (&info.features, &environment::settings().force);
        let reductions = features.matrix_units.reductions && !force.no_reductions;
        let can = features.matrix_units.multiply(dtype, AttentionUnits::UNITS) && features.subgroups;
        if !suits || !can || force.no_units {
            return None;
        }
        let fits = |units: &AttentionUnits| {
            let [features, columns] = lengths.map(|length| length as u32);
            units.workgroup() <= info.limits.max_workgroup_invocations
                && units.memory(features, columns) <= info.limits.max_workgroup_memory
        };
        let compute_units = tuning::compute_units(info.compute_units);
        let possible: SmallVec<[AttentionUnits; 6]> =
            AttentionUnits::for_lengths(self.features.max(self.columns), reductions).filter(fits).collect();
        // Large blocks read keys less often, but small ones may keep more of the device busy.
        let filling = possible.iter().find(|&&units| {
            let tile = AttentionTile::MatrixUnits(units);
            self.batch.iter().product::<usize>() * self.row_blocks(tile) >= compute_units
        });
        let units = *filling.or(possible.last())?;
        // Without reductions, kernels assume less of a device.
        let ways = [units, AttentionUnits { reductions: false, ..units }];
        let is_trusted =
            |&units: &AttentionUnits| self_test::is_trusted(device, &self.config_of(AttentionTile::MatrixUnits(units)));
        ways.into_iter().find(is_trusted)
    }

    /// Returns the keys per part: all of them, or fewer if there are too few rows to keep the device busy.
    pub(super) fn choose_span(&self, tile: AttentionTile, blocks: usize) -> usize {
        let device = self.query.device();
        let (units, tuning) = (tuning::compute_units(device.info().compute_units), &device.tuning().attention);
        let wanted = match tile {
            AttentionTile::Workgroup { .. } => tuning.parts_per_unit * units,
            AttentionTile::FewRows(few) => few.workgroups(tuning.subgroups * units).min(COUNTERS),
            _ => return self.keys,
        };
        let block = tile.block().1;
        let parts = (wanted / blocks).clamp(1, self.keys.div_ceil(block));
        self.keys.div_ceil(parts).next_multiple_of(block)
    }
}
