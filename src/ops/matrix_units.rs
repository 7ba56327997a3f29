//! How products are cut for matrix units.

use super::batched_product::BatchedProduct;
use crate::backend::info::DeviceInfo;
use crate::base::dtype::DType;
use crate::base::environment;
use crate::base::force::Force;
use crate::device::Device;
use crate::engine::runtime::COUNTERS;
use crate::kernels::matmul::{MatmulTile, Sizes, UnitLayout};
use crate::kernels::parameters::Form;
use crate::tuning::{self, Candidate, Fragments, UnitBlock, Units};

/// A tile, and the number of parts of the depth that are computed apart and then added up.
pub(crate) struct Cut {
    pub tile: MatmulTile,
    pub splits: usize,
    /// The depth of the parts, and of the last one.
    pub depths: [usize; 2],
    /// The nanoseconds that the product takes, about.
    pub time: f64,
}

impl UnitBlock {
    /// Returns the work of the compute unit with the most of `blocks` blocks: the bytes of depth that it adds up for
    /// all its elements. A candidate's speed is this work per nanosecond.
    pub fn work(self, blocks: usize, depth: usize, compute_units: usize) -> f64 {
        blocks.div_ceil(compute_units) as f64 * f64::from(self.shape[0] * self.shape[1]) * depth as f64
    }
}

/// Returns the nanoseconds that a product takes with a candidate.
fn time(
    units: &Units,
    candidate: &Candidate,
    problem: &BatchedProduct,
    bytes: usize,
    (splits, depth): (usize, usize),
    compute_units: usize,
) -> f64 {
    let [m, n, _] = problem.sizes;
    let Candidate { unit_block, alone, full } = *candidate;
    let blocks = problem.blocks(unit_block.shape).unwrap_or(usize::MAX).saturating_mul(splits);
    let speed = f64::from(if blocks <= compute_units { alone } else { full });
    let addition = match splits {
        1 => 0.0,
        // Parts are written and read in 32 bits.
        _ => units.addition as f64 + (2 * 4 * problem.batches() * m * n * splits) as f64 / units.bandwidth as f64,
    };
    unit_block.work(blocks, depth * bytes, compute_units) / speed + addition
}

/// Returns the size of the units for products of a dtype, if the device has them and the product is worth it.
pub(crate) fn unit(device: &Device, dtype: DType, [m, n, k]: [usize; 3]) -> Option<[u32; 3]> {
    let worth_it = m >= 16 && n >= 16 && k >= 32 && !environment::settings().force.no_units;
    device.info().features.matrix_units.of(dtype).filter(|_| worth_it)
}

/// Returns the same for a problem. Units then also multiply fewer than 16 columns, if no other kernel is faster: if the
/// left operand's rows are windows, or if columns of halves do not lie along the depth.
pub(crate) fn unit_for(device: &Device, dtype: DType, problem: &BatchedProduct) -> Option<[u32; 3]> {
    let [m, n, k] = problem.sizes;
    let across = dtype.size_in_bytes() == 2 && n > 1 && problem.rhs.row != 1;
    let few = problem.windows.is_some() || across;
    unit(device, dtype, [m, if few { n.max(16) } else { n }, k])
}

/// Returns how a product may be cut for units of a size, the best cut first. There is none if the units cannot read
/// both operands. Rows of the product are padded to whole vectors.
pub(crate) fn cuts(
    info: &DeviceInfo,
    units: &Units,
    dtype: DType,
    problem: &BatchedProduct,
    unit: [u32; 3],
) -> Vec<Cut> {
    let bytes = dtype.size_in_bytes();
    let [Some(a), Some(b)] = problem.unit_readings(bytes) else { return Vec::new() };
    let [m, n, k] = problem.sizes;
    let compute_units = tuning::compute_units(info.compute_units);
    // Parts need one more axis of the batch, a depth of the last one, and two more buffers.
    let windows = problem.form_of_windows().map_or(0, |windows| windows.parameter_words());
    let parameters = 1 + windows + Sizes { batch_rank: problem.lengths.len() + 1 }.parameter_words();
    let splits_fit = parameters <= info.limits.max_parameter_words as usize && info.limits.max_bindings >= 5;
    let possible = |candidate: &'static Candidate, splits: usize| {
        let block = candidate.unit_block;
        let step = block.depth as usize / bytes;
        let depths = problem.part_depths(splits, step)?;
        let whole = k.is_multiple_of(splits * step);
        let unit = if block.fragments == Fragments::None { unit } else { [16; 3] };
        let layout = UnitLayout { unit, a, b, whole, parts: splits > 1, single: false };
        // Sums in registers leave by whole vectors of columns. Tiles of fragments also need whole blocks, and rows that
        // are in memory.
        let [rows, columns] = block.shape.map(|length| length as usize);
        let fills = match block.fragments {
            Fragments::None => true,
            Fragments::Sums => n.is_multiple_of(8),
            Fragments::All => m >= rows && n >= columns && n.is_multiple_of(8) && problem.windows.is_none(),
        };
        // A launch of few workgroups is not folded. A folded one has surplus workgroups, which would count, too.
        let counted = problem.blocks(block.shape).is_some_and(|blocks| blocks.saturating_mul(splits) <= COUNTERS);
        let fits = layout.suits(block, dtype)
            && fills
            && block.memory(dtype, layout) <= info.limits.max_workgroup_memory
            && block.invocations() <= info.limits.max_workgroup_invocations
            && (splits == 1 || (splits_fit && counted && k / splits >= units.shortest));
        let forced = &environment::settings().force;
        let forced = [forced.unit_blocks.contains(&block), forced.splits.contains(&splits)];
        // Forced cuts come first.
        let time = time(units, candidate, problem, bytes, (splits, depths[0]), compute_units);
        fits.then_some((
            forced.map(|is| !is),
            Cut { tile: MatmulTile::MatrixUnits(block, layout), splits, depths, time },
        ))
    };
    let all = units
        .candidates
        .iter()
        .flat_map(|candidate| Force::SPLITS.into_iter().filter_map(|splits| possible(candidate, splits)));
    let mut all: Vec<_> = all.collect();
    all.sort_by(|(a, x), (b, y)| a.cmp(b).then(x.time.total_cmp(&y.time)));
    all.into_iter().map(|(_, cut)| cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::info::DeviceKind;
    use crate::base::backend_kind::BackendKind;
    use crate::base::layout::Layout;

    /// Returns the blocks of an entry.
    fn blocks(entry: &str) -> Vec<UnitBlock> {
        let units = &tuning::entry(entry).unwrap().tuning.units;
        units.candidates.iter().map(|candidate| candidate.unit_block).collect()
    }

    /// Returns the block and the splits that an entry chooses for a product of `f16` on 132 compute units.
    fn chosen_by(entry: &str, sizes: [usize; 3], change: impl Fn(&mut DeviceInfo)) -> Option<(UnitBlock, usize)> {
        chosen_of(&tuning::entry(entry)?.tuning.units, sizes, change)
    }

    fn chosen_of(units: &Units, sizes: [usize; 3], change: impl Fn(&mut DeviceInfo)) -> Option<(UnitBlock, usize)> {
        let [m, n, k] = sizes;
        let mut info = DeviceInfo::sample(BackendKind::Vulkan, DeviceKind::Discrete, Some(132));
        info.limits.max_workgroup_memory = 48 << 10;
        change(&mut info);
        let layout = |rows, columns| Layout::contiguous((rows, columns).into());
        let problem = BatchedProduct::new(&layout(m, k), &layout(k, n), sizes);
        let Cut { tile, splits, .. } = cuts(&info, units, DType::F16, &problem, [16; 3]).into_iter().next()?;
        let MatmulTile::MatrixUnits(block, layout) = tile else { return None };
        assert_eq!(layout.whole, (k / splits).is_multiple_of(block.depth as usize / 2), "{sizes:?}");
        Some((block, splits))
    }

    fn chosen(sizes: [usize; 3], change: impl Fn(&mut DeviceInfo)) -> Option<(UnitBlock, usize)> {
        chosen_by("default", sizes, change)
    }

    #[test]
    fn fragments_are_of_whole_blocks() {
        let chosen = |sizes| chosen_by("nvidia-hopper", sizes, |_| ()).unwrap().0.fragments == Fragments::All;
        assert!(chosen([4096, 4096, 4096]));
        assert!(chosen([4001, 4096, 4096]));
        for sizes in [[127, 65536, 4096], [65536, 248, 4096], [4096, 4096, 4112], [512, 512, 512]] {
            assert!(!chosen(sizes), "{sizes:?}");
        }
    }

    #[test]
    fn sums_leave_registers_by_whole_vectors() {
        let chosen = |sizes| chosen_by("nvidia-hopper", sizes, |_| ()).unwrap().0.fragments;
        assert_eq!(chosen([1024, 1024, 1024]), Fragments::Sums);
        assert_eq!(chosen([1000, 1000, 1001]), Fragments::Sums);
        assert_eq!(chosen([1024, 1020, 1024]), Fragments::None);
    }

    #[test]
    fn blocks_fill_the_device() {
        let chosen = |sizes| chosen(sizes, |_| ());
        let [large, _, middle, small] = blocks("default")[..] else { panic!("other candidates") };
        assert_eq!(chosen([4096, 4096, 4096]), Some((large, 1)));
        assert_eq!(chosen([512, 512, 512]), Some((small, 1)));
        assert_eq!(chosen([1024, 1024, 1024]), Some((middle, 1)));
        // There are so few blocks that the depth is cut, but not into short parts.
        assert!(chosen([64, 64, 8192]).unwrap().1 > 1);
        assert_eq!(chosen([64, 64, 512]).unwrap().1, 1);
        // The last part may be shorter.
        assert!(chosen([64, 64, 8200]).unwrap().1 > 1);
        // Lines that begin anywhere.
        assert_eq!(chosen([64, 64, 63]), Some((small, 1)));
        assert_eq!(chosen([64, 63, 64]), Some((small, 1)));
    }

    /// `tune` computes speeds in this way.
    #[test]
    fn the_work_of_a_product_and_its_time_give_the_speed() {
        let units = &tuning::entry("default").unwrap().tuning.units;
        let candidate = &Candidate { alone: 3, full: 5, ..units.candidates[0].clone() };
        for (across, speed) in [(12, 3.0), (13, 5.0), (96, 5.0)] {
            let [m, n, k] = [11 * 128, across * 128, 4096];
            let layout = |rows, columns| Layout::contiguous((rows, columns).into());
            let problem = BatchedProduct::new(&layout(m, k), &layout(k, n), [m, n, k]);
            let time = time(units, candidate, &problem, 2, (1, k), 132);
            let found = candidate.unit_block.work(11 * across, 2 * k, 132) / time;
            assert!((found - speed).abs() < 1e-9, "{found}, not {speed}");
        }
    }

    /// `tune` puts one block at a time into the data, always with the same speeds, and never cuts the depth.
    #[test]
    fn a_lone_block_is_used_whether_the_depth_may_be_cut_or_not() {
        for block in blocks("nvidia-hopper") {
            let candidate = Candidate { unit_block: block, alone: 1, full: 1 };
            let candidates: &'static [Candidate] = Box::leak(Box::new([candidate]));
            let [rows, columns] = block.shape.map(|length| length as usize);
            let splits = |shortest, [down, across]: [usize; 2]| {
                let default = tuning::entry("default").unwrap().tuning.units.clone();
                let units = Units { candidates, shortest, ..default };
                let (chosen, splits) = chosen_of(&units, [down * rows, across * columns, 4096], |_| ()).unwrap();
                assert_eq!(chosen, block);
                splits
            };
            for grid in [[11, 12], [32, 33]] {
                assert_eq!(splits(usize::MAX, grid), 1, "{block:?}");
            }
            for grid in [[1, 1], [6, 11]] {
                assert_eq!(splits(2048, grid), if block.fragments == Fragments::None { 2 } else { 1 }, "{block:?}");
            }
        }
    }

    #[test]
    fn blocks_keep_to_the_limits() {
        let [large, _, _, small] = blocks("default")[..] else { panic!("other candidates") };
        let less = |info: &mut DeviceInfo| info.limits.max_workgroup_memory = 30 << 10;
        assert_eq!(chosen([4096, 4096, 4096], less), Some((small, 1)));
        let narrow = |info: &mut DeviceInfo| info.limits.max_workgroup_invocations = 128;
        assert_eq!(chosen([512, 512, 512], narrow).unwrap().0, large);
        let none = |info: &mut DeviceInfo| info.limits.max_workgroup_memory = 16 << 10;
        assert_eq!(chosen([512, 512, 512], none), None);
        let few = |info: &mut DeviceInfo| info.limits.max_parameter_words = 10;
        assert_eq!(chosen([64, 64, 8192], few).unwrap().1, 1);
    }
}
