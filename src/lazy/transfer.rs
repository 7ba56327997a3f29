//! Copies from one layout to another: by the driver if that is possible and fast, else by a kernel.

use crate::backend::contract::{Pitch, Region};
use crate::base::error::Result;
use crate::base::layout::{Layout, collapse};
use crate::base::shape::Dims;
use crate::device::Device;
use crate::engine::launch::Launch;
use crate::engine::plan_cache::Plan;
use crate::engine::pool::Buffer;
use crate::kernels::assign::{Assign, Parameters, Unit, WORKGROUP};
use crate::kernels::parameters::Strided;

/// From this many bytes on, a row is worth a driver command instead of an invocation for each of its words.
const NATIVE_ROW: u64 = 256;

/// A driver copies row by row. Beyond this many rows a kernel is faster.
const NATIVE_ROWS: u64 = 4096;

/// Whether the driver's copy is faster than a kernel. On a GPU behind a bus it has a fourth of the speed (850 of 3,600
/// GB/s on an H200), and each row costs time.
pub(super) fn is_fast(region: &Region, device: &Device) -> bool {
    device.tuning().copy.driver
        && region.extent[0] >= NATIVE_ROW
        && region.extent[1].saturating_mul(region.extent[2]) <= NATIVE_ROWS
}

/// A copy between two layouts of one shape. It moves units of some bytes, along as few axes as possible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Transfer {
    lengths: Dims,
    src: Strided,
    dst: Strided,
    unit: Unit,
}

impl Transfer {
    pub fn new(src: &Layout, dst: &Layout, element_bytes: usize) -> Transfer {
        if element_bytes == 8 {
            return Transfer::new(&src.in_parts(2), &dst.in_parts(2), 4);
        }
        let (lengths, strides) = collapse(&src.shape, [&src.strides, &dst.strides]);
        let [src_strides, dst_strides] = [strides[0].clone(), strides[1].clone()];
        let unit = match element_bytes {
            1 => Unit::Byte,
            2 => Unit::Half,
            _ => Unit::Word,
        };
        let (src, dst) = (
            Strided { offset: src.offset, strides: src_strides },
            Strided { offset: dst.offset, strides: dst_strides },
        );
        Transfer { lengths, src, dst, unit }
    }

    /// Whether the innermost axis is contiguous on both sides.
    fn has_rows(&self) -> bool {
        [&self.src, &self.dst].iter().all(|view| view.strides.last().is_none_or(|&stride| stride == 1))
    }

    /// Returns the same copy in larger units, if rows consist of whole units on both sides.
    fn in_units(&self, unit: Unit) -> Option<Transfer> {
        let factor = unit.bytes() / self.unit.bytes();
        let (length, outer) = match self.lengths.split_last() {
            Some((length, outer)) => (*length, outer),
            None => (1, [].as_slice()),
        };
        let divides = |n: isize| n.rem_euclid(factor as isize) == 0;
        let fits = |view: &Strided| {
            let outer_strides = &view.strides[..outer.len()];
            divides(view.offset as isize) && outer_strides.iter().all(|&stride| divides(stride))
        };
        if !self.has_rows() || !length.is_multiple_of(factor) || !fits(&self.src) || !fits(&self.dst) {
            return None;
        }
        let scale = |view: &Strided| {
            let outer = view.strides[..outer.len()].iter().map(|&stride| stride / factor as isize);
            Strided { offset: view.offset / factor, strides: outer.chain([1]).collect() }
        };
        let lengths = outer.iter().copied().chain([length / factor]).collect();
        Some(Transfer { lengths, src: scale(&self.src), dst: scale(&self.dst), unit })
    }

    /// Returns the copy as a box of bytes, if the device's driver copies it faster than a kernel.
    pub(super) fn fast_region(&self, device: &Device) -> Option<Region> {
        // Else the box would be found for nothing.
        if !device.tuning().copy.driver {
            return None;
        }
        let region = self.region_of_multiples(device.info().limits.copy_alignment, false)?;
        is_fast(&region, device).then_some(region)
    }

    /// Returns the copy as a box whose numbers are multiples of `alignment`. If `padded`, a single row may be made
    /// longer to fit.
    pub(super) fn region_of_multiples(&self, alignment: u64, padded: bool) -> Option<Region> {
        let rank = self.lengths.len();
        if !self.has_rows() || rank > 3 {
            return None;
        }
        let bytes = self.unit.bytes() as u64;
        let mut extent = [1; 3];
        for (extent, &length) in extent.iter_mut().zip(self.lengths.iter().rev()) {
            *extent = length as u64;
        }
        extent[0] *= bytes;
        if padded && rank <= 1 {
            extent[0] = extent[0].next_multiple_of(alignment);
        }
        let pitch = |view: &Strided| {
            let stride = |axis: usize, dense: u64| match view.strides.iter().rev().nth(axis) {
                Some(&stride) => u64::try_from(stride).ok().map(|stride| stride * bytes).filter(|&s| s >= dense),
                None => Some(dense),
            };
            let row = stride(1, extent[0])?;
            let slice = stride(2, row * (extent[1] - 1) + extent[0])?;
            Some(Pitch { offset: view.offset as u64 * bytes, row, slice })
        };
        let (src, dst) = (pitch(&self.src)?, pitch(&self.dst)?);
        let numbers = [extent[0], src.offset, dst.offset];
        let pitches = [src.row, dst.row, src.slice, dst.slice];
        let used = if rank <= 1 { 0 } else { 2 * (rank - 1) };
        let aligned = numbers.iter().chain(&pitches[..used]).all(|n| n.is_multiple_of(alignment));
        aligned.then_some(Region { extent, src, dst })
    }

    /// Returns the same copy in larger units, if there are any.
    fn in_larger_units(&self) -> Option<Transfer> {
        let larger = [Unit::Quad, Unit::Word].into_iter().filter(|unit| unit.bytes() > self.unit.bytes());
        larger.filter_map(|unit| self.in_units(unit)).next()
    }

    /// Records the copy. No two elements of `dst` may lie at the same place.
    pub fn run(&self, src: &Buffer, dst: &Buffer, device: &Device) -> Result<()> {
        match self.fast_region(device) {
            Some(region) => device.runtime().copy_region(src, dst, region),
            None => self.in_larger_units().as_ref().unwrap_or(self).launch(src, dst, device),
        }
    }

    /// Plans the copy for many runs.
    pub fn plan(self, device: &Device) -> Result<PlannedTransfer> {
        if let Some(region) = self.fast_region(device) {
            return Ok(PlannedTransfer::Region(region));
        }
        let copy = self.in_larger_units().unwrap_or(self);
        let Some((kernel, parameters, groups)) = copy.kernel(device) else { return Ok(PlannedTransfer::Parts(copy)) };
        let plan = device.runtime().plan(kernel, parameters, groups, &|_, _| ())?;
        Ok(PlannedTransfer::Kernel(plan.into()))
    }

    fn launch(&self, src: &Buffer, dst: &Buffer, device: &Device) -> Result<()> {
        match self.kernel(device) {
            Some((kernel, parameters, groups)) => {
                device.runtime().run(Launch { kernel, buffers: &[src, dst], parameters, groups })
            }
            None => (0..self.lengths[0]).try_for_each(|index| self.inside(index).launch(src, dst, device)),
        }
    }

    /// Returns the kernel that copies, its parameters and the number of its workgroups. `None` if the axes are too many
    /// for one launch.
    fn kernel(&self, device: &Device) -> Option<(Assign, Parameters, usize)> {
        let kernel = Assign { unit: self.unit, rank: self.lengths.len() };
        if !device.takes(&kernel) {
            return None;
        }
        let count: usize = self.lengths.iter().product();
        let parameters =
            Parameters { count, lengths: self.lengths.clone(), src: self.src.clone(), dst: self.dst.clone() };
        Some((kernel, parameters, count.div_ceil(WORKGROUP as usize)))
    }

    /// Returns the copy at one index of the outermost axis.
    fn inside(&self, index: usize) -> Transfer {
        let view = |view: &Strided| Strided {
            offset: view.offset.wrapping_add_signed(view.strides[0].wrapping_mul(index as isize)),
            strides: view.strides[1..].iter().copied().collect(),
        };
        let (src, dst) = (view(&self.src), view(&self.dst));
        Transfer { lengths: self.lengths[1..].iter().copied().collect(), src, dst, unit: self.unit }
    }
}

/// A copy between two layouts that runs many times, each time with other buffers.
pub(crate) enum PlannedTransfer {
    Region(Region),
    Kernel(Box<Plan<Assign>>),
    /// A run takes several launches, because the axes are too many for one.
    Parts(Transfer),
}

impl PlannedTransfer {
    /// Records the copy.
    pub fn run(&self, src: &Buffer, dst: &Buffer, device: &Device) -> Result<()> {
        match self {
            PlannedTransfer::Region(region) => device.runtime().copy_region(src, dst, *region),
            PlannedTransfer::Kernel(plan) => device.runtime().run_plan(plan, &[src, dst], std::iter::empty()),
            PlannedTransfer::Parts(transfer) => transfer.launch(src, dst, device),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::shape::Shape;

    fn part(shape: &[usize], ranges: &[std::ops::Range<usize>]) -> Layout {
        let whole = Layout::contiguous(Shape::from(shape));
        ranges.iter().enumerate().fold(whole, |layout, (axis, r)| layout.sliced(axis, r.start, r.len(), 1))
    }

    #[test]
    fn boxes_are_told_in_bytes() {
        let strided = part(&[4, 5, 6], &[1..3, 2..4, 0..4]);
        let dense = Layout::contiguous((2, 2, 4).into());
        let region = Transfer::new(&strided, &dense, 4).region_of_multiples(4, false).unwrap();
        assert_eq!(region.extent, [16, 2, 2]);
        assert_eq!(region.src, Pitch { offset: 4 * (30 + 12), row: 24, slice: 120 });
        assert_eq!(region.dst, Pitch { offset: 0, row: 16, slice: 32 });
        // Dense axes merge.
        let region = Transfer::new(&dense, &dense, 2).region_of_multiples(4, false).unwrap();
        assert_eq!(region, Region::linear(32));
        // Bytes that are not whole words.
        let odd = Layout::contiguous(7.into());
        assert_eq!(Transfer::new(&odd, &odd, 1).region_of_multiples(4, false), None);
        assert_eq!(Transfer::new(&odd, &odd, 1).region_of_multiples(4, true), Some(Region::linear(8)));
        assert_eq!(Transfer::new(&odd, &odd, 1).region_of_multiples(1, false), Some(Region::linear(7)));
    }

    #[test]
    fn what_is_no_box_is_none() {
        let dense = Layout::contiguous((4, 6).into());
        let turned = Layout::contiguous((6, 4).into()).permuted(&[1, 0]);
        assert_eq!(Transfer::new(&turned, &dense, 4).region_of_multiples(4, true), None);
        let repeated = Layout::contiguous((1, 6).into()).broadcast_to(&(4, 6).into(), "test").unwrap();
        assert_eq!(Transfer::new(&repeated, &dense, 4).region_of_multiples(4, true), None);
        let four_axes = part(&[3, 3, 3, 3], &[0..2, 0..2, 0..2, 0..2]);
        let to = Layout::contiguous((2, 2, 2, 2).into());
        assert_eq!(Transfer::new(&four_axes, &to, 4).region_of_multiples(4, true), None);
    }

    #[test]
    fn units_grow_where_rows_are_whole() {
        let units = |src: &Layout, dst: &Layout, bytes| {
            let transfer = Transfer::new(src, dst, bytes);
            let larger =
                [Unit::Quad, Unit::Word].map(|unit| transfer.in_units(unit).map(|t| (t.lengths, t.dst.offset)));
            larger.map(|known| known.map(|(lengths, offset)| (lengths.to_vec(), offset)))
        };
        let to = part(&[4, 32], &[1..3, 16..32]);
        let from = Layout::contiguous((2, 16).into());
        assert_eq!(units(&from, &to, 1), [Some((vec![2, 1], 3)), Some((vec![2, 4], 12))]);
        let shifted = part(&[4, 32], &[1..3, 12..28]);
        assert_eq!(units(&from, &shifted, 1), [None, Some((vec![2, 4], 11))]);
        let odd = part(&[4, 32], &[1..3, 13..29]);
        assert_eq!(units(&from, &odd, 1), [None, None]);
        let turned = Layout::contiguous((16, 2).into()).permuted(&[1, 0]);
        assert_eq!(units(&turned, &to, 1), [None, None]);
    }
}
