//! [`BatchedProduct`]: a batch of matrix products as a kernel sees it, and the forms in which its operands can be read.

use super::matmul::portable_tile;
use super::{largest_team, subgroup_lanes};
use crate::backend::info::DeviceInfo;
use crate::base::dtype::DType;
use crate::base::environment;
use crate::base::error::{Error, Result};
use crate::base::layout::{Layout, collapse};
use crate::base::shape::Dims;
use crate::base::word::Word;
use crate::device::Device;
use crate::engine::launch::Launch;
use crate::engine::pool::Buffer;
use crate::kernels::epilogue;
use crate::kernels::expr::UnaryOp;
use crate::kernels::matmul::{
    Along, Block, Broadcast, Matmul, MatmulTile, Parameters, QUAD, Reading, SizeParameters, Sizes, UnitReading,
    UnitVectors, VectorSide, Vectors, Windows, WindowsParameters,
};
use crate::kernels::parameters::Strided;
use crate::lazy::shared_buffers;
use crate::shader::FEW;
use crate::tuning;

/// At most this many rows or columns are treated as vectors, which do not fill blocks.
pub(super) const FEW_VECTORS: usize = 16;

/// A batch of products in as few axes as possible.
pub(crate) struct BatchedProduct {
    /// m, n and k.
    pub sizes: [usize; 3],
    /// The axes of the batch.
    pub lengths: Dims,
    pub lhs: Operand,
    pub rhs: Operand,
    /// Where the rows of the left operand are, if they are windows. Its strides are then 0.
    pub windows: Option<WindowsParameters>,
    /// What a norm of the left rows adds to the mean of their squares.
    pub eps: Option<Word>,
    /// The distance in elements from the column of a gate to the one that it gates.
    pub behind_gates: Option<usize>,
    /// The depth of the last part, if the depth is split and the last part has less than the others.
    pub last_depth: Option<usize>,
}

/// Where an operand's elements are: the strides along the axes of the batch, the rows and the columns.
pub(crate) struct Operand {
    pub offset: usize,
    pub batch: Dims<isize>,
    pub row: isize,
    pub column: isize,
}

impl BatchedProduct {
    pub fn new(lhs: &Layout, rhs: &Layout, sizes: [usize; 3]) -> Self {
        let rank = lhs.shape.rank() - 2;
        let (lengths, strides) = collapse(&lhs.shape[..rank], [&lhs.strides[..rank], &rhs.strides[..rank]]);
        let [lhs, rhs] = [(lhs, &strides[0]), (rhs, &strides[1])].map(|(view, batch)| Operand {
            offset: view.offset,
            batch: batch.clone(),
            row: view.strides[rank],
            column: view.strides[rank + 1],
        });
        let (windows, eps, behind_gates, last_depth) = (None, None, None, None);
        let mut problem = BatchedProduct { sizes, lengths, lhs, rhs, windows, eps, behind_gates, last_depth };
        while problem.merge_batch_into_rows() {}
        problem
    }

    /// Returns the product of the windows of a tensor, which begins at `offset`, and a matrix. If there is a batch of
    /// matrices, each of them has the next channels of the tensor.
    pub fn of_windows(offset: usize, windows: WindowsParameters, rhs: &Layout, sizes: [usize; 3]) -> Self {
        let rank = rhs.shape.rank() - 2;
        let channels = windows.present.unwrap_or(windows.channels) as isize;
        let lhs = Operand { offset, batch: (0..rank).map(|_| channels).collect(), row: 0, column: 0 };
        let [row, column] = [rhs.strides[rank], rhs.strides[rank + 1]];
        let (lengths, batch) = (rhs.shape[..rank].into(), rhs.strides[..rank].into());
        let rhs = Operand { offset: rhs.offset, batch, row, column };
        let windows = Some(windows);
        BatchedProduct { sizes, lengths, lhs, rhs, windows, eps: None, behind_gates: None, last_depth: None }
    }

    /// Returns the form of the windows, if the left operand's rows are such.
    pub fn form_of_windows(&self) -> Option<Windows> {
        let form =
            |windows: &WindowsParameters| Windows { axes: windows.windows.len(), loose: windows.present.is_some() };
        self.windows.as_ref().map(form)
    }

    /// Whether the left operand's rows are windows that begin anywhere. Columns of the right one are contiguous then.
    fn has_loose_windows(&self) -> bool {
        self.form_of_windows().is_some_and(|windows| windows.loose)
    }

    /// Merges the innermost batch axis into the rows. If all left matrices along this axis are multiplied by the same
    /// right matrix, they become one tall matrix.
    fn merge_batch_into_rows(&mut self) -> bool {
        let rows = self.sizes[0];
        let (Some(&length), Some(&lhs), Some(&0)) = (self.lengths.last(), self.lhs.batch.last(), self.rhs.batch.last())
        else {
            return false;
        };
        if rows != 1 && lhs != self.lhs.row.wrapping_mul(rows as isize) {
            return false;
        }
        if rows == 1 {
            self.lhs.row = lhs;
        }
        self.sizes[0] = rows * length;
        self.lengths.pop();
        self.lhs.batch.pop();
        self.rhs.batch.pop();
        true
    }

    /// Returns the block with reads and writes that suit the memory order of the operands and the product.
    pub fn fitted(&self, block: Block) -> Block {
        let [m, n, k] = self.sizes;
        let a = match self.windows {
            Some(_) => Reading::Quads(Along::Depth),
            None => self.lhs.reading(self.lhs.row, m, self.lhs.column, k),
        };
        let b = self.rhs.reading(self.rhs.column, n, self.rhs.row, k);
        Block { a, b, whole: k.is_multiple_of(2 * block.depth as usize), quads: n.is_multiple_of(4), ..block }
    }

    /// Returns, for each operand, the axis along which `count` elements at a time lie side by side.
    pub fn along(&self, count: usize) -> [Option<Along>; 2] {
        let [m, n, k] = self.sizes;
        let windows = self.windows.as_ref();
        [
            match windows.map(|windows| windows.are_along_channels(self.lhs.offset, count)) {
                Some(are_along) => are_along.then_some(Along::Depth),
                None => self.lhs.along(self.lhs.row, m, self.lhs.column, k, count),
            },
            self.rhs.along(self.rhs.column, n, self.rhs.row, k, count),
        ]
    }

    /// Returns how matrix units read the operands, of elements of this many bytes.
    pub fn unit_readings(&self, bytes: usize) -> [Option<UnitReading>; 2] {
        let [a, b] = self.along(16 / bytes).map(|along| along.map(UnitReading::aligned));
        if bytes != 2 {
            return [a, b];
        }
        if self.has_loose_windows() {
            return [Some(UnitReading::loose(Along::Depth)); 2];
        }
        // Lines of halves begin and end anywhere.
        let a = match self.windows {
            Some(_) => a,
            None => a.or_else(|| self.lhs.unit_reading(self.lhs.row, self.lhs.column)),
        };
        [a, b.or_else(|| self.rhs.unit_reading(self.rhs.column, self.rhs.row))]
    }

    /// Returns the same product over words of four bytes along the depth, if words lie side by side by fours in both
    /// operands.
    pub fn in_words(&self) -> Option<BatchedProduct> {
        let [m, n, k] = self.sizes;
        let words = |operand: &Operand, row: isize, column: isize| Operand {
            offset: operand.offset / 4,
            batch: operand.batch.iter().map(|stride| stride / 4).collect(),
            row,
            column,
        };
        (self.windows.is_none() && self.along(16) == [Some(Along::Depth); 2]).then(|| BatchedProduct {
            sizes: [m, n, k / 4],
            lengths: self.lengths.clone(),
            lhs: words(&self.lhs, self.lhs.row / 4, 1),
            rhs: words(&self.rhs, 1, self.rhs.column / 4),
            windows: None,
            eps: None,
            behind_gates: None,
            last_depth: None,
        })
    }

    /// Returns the depths of `parts` parts, and of the last one. They are multiples of `step`, except for the last one.
    /// `None` if nothing is left for that one.
    pub fn part_depths(&self, parts: usize, step: usize) -> Option<[usize; 2]> {
        let depth = self.sizes[2];
        let each = if parts == 1 { depth } else { depth.div_ceil(parts).next_multiple_of(step) };
        let last = depth.checked_sub(each * (parts - 1)).filter(|&last| last > 0)?;
        Some([each, last])
    }

    /// Returns the products of `parts` equal parts of the depth, with the parts as one more axis of the batch.
    pub fn split_equally(&self, parts: usize) -> BatchedProduct {
        self.split(parts, [self.sizes[2] / parts; 2])
    }

    /// Returns the products of parts of these depths: the last one's is the second.
    pub fn split(&self, parts: usize, [each, last]: [usize; 2]) -> BatchedProduct {
        BatchedProduct { last_depth: (last < each).then_some(last), ..self.part(0, each, parts) }
    }

    /// Returns the products of `parts` parts of this depth. The first part begins at `first`.
    pub fn part(&self, first: usize, depth: usize, parts: usize) -> BatchedProduct {
        let [m, n, _] = self.sizes;
        let split = |operand: &Operand, stride: isize| {
            let batch = operand.batch.iter().copied().chain((parts > 1).then_some(depth as isize * stride)).collect();
            let offset = operand.offset.wrapping_add_signed(first as isize * stride);
            Operand { offset, batch, ..*operand }
        };
        BatchedProduct {
            sizes: [m, n, depth],
            lengths: self.lengths.iter().copied().chain((parts > 1).then_some(parts)).collect(),
            lhs: split(&self.lhs, self.lhs.column),
            // The kernel finds its part of the depth in each window, and in the weights of loose ones.
            rhs: split(&self.rhs, if self.has_loose_windows() { 0 } else { self.rhs.row }),
            windows: self.windows.clone(),
            eps: None,
            behind_gates: None,
            last_depth: None,
        }
    }

    /// Returns how many parts the depth is computed in. It is 1, unless the depth is great and blocks of this tile are
    /// too few to keep the device busy.
    pub fn parts(&self, device: &Device, tile: MatmulTile) -> usize {
        let tuning = &device.tuning().matmul;
        let longest = self.sizes[2] / tuning.shortest;
        let blocks = self.blocks(tile.block()).unwrap_or(usize::MAX).max(1);
        if longest < 2 || self.windows.is_some() || !device.takes(&Sizes { batch_rank: self.lengths.len() + 1 }) {
            return 1;
        }
        // A power of two divides most depths.
        tuning.busy.div_ceil(blocks).next_power_of_two().min(1 << longest.ilog2())
    }

    pub fn batches(&self) -> usize {
        self.lengths.iter().product()
    }

    /// Returns the number of blocks of this size, if it can be counted.
    pub fn blocks(&self, [rows, columns]: [u32; 2]) -> Option<usize> {
        let [m, n, _] = self.sizes;
        self.batches().checked_mul(m.div_ceil(rows as usize))?.checked_mul(n.div_ceil(columns as usize))
    }

    /// Runs a kernel. The buffers are both operands, the inputs of an epilogue, and the product.
    pub fn launch(
        &self,
        device: &Device,
        kernel: Matmul,
        buffers: &[&Buffer],
        epilogue: Option<epilogue::Parameters>,
    ) -> Result<()> {
        let (runtime, groups) = (device.runtime(), self.groups(device, &kernel)?);
        let parameters = self.all_parameters(epilogue);
        let others = shared_buffers(&kernel, groups, device, "matmul")?;
        if others.is_empty() {
            return runtime.run(Launch { kernel, buffers, parameters, groups });
        }
        let buffers: Vec<&Buffer> = buffers.iter().copied().chain(&others).collect();
        runtime.run(Launch { kernel, buffers: &buffers, parameters, groups })
    }

    pub fn groups(&self, device: &Device, config: &Matmul) -> Result<usize> {
        self.blocks(config.tile.block()).ok_or_else(|| {
            let feature = format!("{} products of {:?} elements in one kernel", self.batches(), self.sizes);
            Error::Unsupported { feature, device: device.info().to_string() }
        })
    }

    /// Returns how the product of a matrix and a few vectors is computed. `None` if this is no such product, or if the
    /// operands cannot be read by fours, the vectors along the depth.
    pub fn few_vectors(&self, device: &Device, dtype: DType) -> Option<Vectors> {
        let [m, n, k] = self.sizes;
        let a = self.lhs.reading(self.lhs.row, m, self.lhs.column, k);
        let b = self.rhs.reading(self.rhs.column, n, self.rhs.row, k);
        let (side, few, outputs, vectors, matrix) = match () {
            _ if m <= FEW_VECTORS && m <= n => (VectorSide::Rows, m, n, a, b),
            _ if n <= FEW_VECTORS => (VectorSide::Columns, n, m, b, a),
            _ => return None,
        };
        let (Reading::Quads(Along::Depth), Reading::Quads(along)) = (vectors, matrix) else { return None };
        if dtype.size_in_bytes() > 4 || self.windows.is_some() {
            return None;
        }
        let count = (few.next_power_of_two() as u32).min(Vectors::MOST);
        let stored_quads = outputs.is_multiple_of(4) && (side == VectorSide::Rows || n == 1);
        let subgroup = subgroup_lanes(device);
        let [members, across] = Vectors::members(along, count, subgroup, [outputs, k]);
        let members = [members.min(largest_team(device)), across];
        // A load takes 16 bytes, or else four elements.
        let bytes = dtype.size_in_bytes();
        let words = if self.along(16 / bytes) == [Some(Along::Depth); 2] { 4 } else { bytes as u32 };
        Some(Vectors { side, count, along, words, stored_quads, members, subgroup, normalized: false, gate: None })
    }

    /// Returns the tile of a few rows that are read along the depth, as the matrix is. Such a tile can normalise rows
    /// and apply gates. `None` if another tile computes the product.
    pub fn few_rows(&self, device: &Device, dtype: DType) -> Option<Vectors> {
        if !self.lengths.is_empty() || self.unit_vectors(device, dtype, None).is_some() {
            return None;
        }
        let tile = portable_tile(device, dtype, self);
        match tile {
            MatmulTile::Vectors(vectors @ Vectors { side: VectorSide::Rows, along: Along::Depth, .. })
                if self.parts(device, tile) == 1 =>
            {
                Some(vectors)
            }
            _ => None,
        }
    }

    /// Whether matrix units multiply a few vectors of a dtype from registers.
    pub fn has_unit_vectors(device: &Device, dtype: DType) -> bool {
        let force = &environment::settings().force;
        let may_use = !force.no_units && force.unit_blocks.is_empty();
        let units = &device.info().features.matrix_units;
        device.tuning().units.vectors && may_use && dtype.size_in_bytes() == 2 && units.multiply(dtype, [16; 3])
    }

    /// Returns how matrix units multiply vectors of a dtype from registers. `None` if the device is not known to do so,
    /// if an operand cannot be read 16 bytes at a time, or if tiles in workgroup memory are faster. The vectors are
    /// read along the depth, and with a gate the matrix, too.
    pub fn unit_vectors(&self, device: &Device, dtype: DType, gate: Option<UnaryOp>) -> Option<UnitVectors> {
        BatchedProduct::has_unit_vectors(device, dtype).then(|| self.in_unit_vectors(device.info(), gate)).flatten()
    }

    /// The same for devices that can do so.
    fn in_unit_vectors(&self, info: &DeviceInfo, gate: Option<UnaryOp>) -> Option<UnitVectors> {
        let [m, n, k] = self.sizes;
        if m < 2 || n < 64 || k < 64 || self.windows.is_some() {
            return None;
        }
        let [Some(Along::Depth), Some(along)] = self.along(8) else { return None };
        if gate.is_some() && along != Along::Depth {
            return None;
        }
        let vectors = |columns, subgroups| {
            // Vectors of other numbers share a kernel.
            let count = (m.next_power_of_two() as u32).min(UnitVectors::MOST);
            let tile = UnitVectors { count, along, columns, subgroups, whole: true, stored_quads: false, gate };
            let (step, stored_quads) = (tile.step() as usize, n.is_multiple_of(4));
            UnitVectors { whole: k.is_multiple_of(step), stored_quads, ..tile }
        };
        let groups = |columns| self.blocks(vectors(columns, 1).block()).unwrap_or(usize::MAX);
        let compute_units = tuning::compute_units(info.compute_units);
        // With more units of columns, a subgroup reads the vectors less often. But then there are fewer workgroups.
        let (narrow, wide, enough) = match along {
            Along::Depth => (1, 2, compute_units / 2),
            Along::Other => (2, 4, compute_units * 3 / 2),
        };
        let columns = match along {
            _ if groups(wide) >= enough => wide,
            // If there are very few workgroups, twice as many are faster, though their loads are half as long.
            Along::Other if groups(narrow) <= compute_units / 4 && (512..=1024).contains(&k) => 1,
            _ => narrow,
        };
        let groups = groups(columns);
        // Each row of blocks reads the whole matrix.
        let rows = m.div_ceil(UnitVectors::MOST as usize);
        let outputs = self.batches().saturating_mul(m).saturating_mul(n);
        // What was measured on an H200: docs/experiments.md, "Neighbouring loads of a lane".
        let (most, may_read_twice) = match along {
            Along::Depth => (1152, true),
            // Tiles are faster for many columns, and as they can cut the depth, for few.
            Along::Other => (1024, n <= 8192 && groups >= compute_units / 2),
        };
        let is_small = outputs <= most * compute_units && k <= 1024;
        let is_read_twice = rows == 2 && may_read_twice && self.lengths.is_empty() && k >= 1024;
        if !(rows == 1 || is_small || is_read_twice) || groups / self.batches() > FEW / 2 {
            return None;
        }
        let busy = if rows == 1 { 16 } else { (16 * compute_units / groups).clamp(8, 16) };
        let steps = k.div_ceil(vectors(columns, 1).step() as usize);
        let subgroups = (1 << busy.min(steps).ilog2()).max(4);
        let tiles = [subgroups, (subgroups / 2).max(4), 4].into_iter().map(|subgroups| vectors(columns, subgroups));
        let fits = |tile: &UnitVectors| {
            tile.memory() <= info.limits.max_workgroup_memory
                && tile.workgroup() <= info.limits.max_workgroup_invocations
        };
        tiles.into_iter().find(fits)
    }

    /// Returns a tile whose lanes hand each other elements, if the device's subgroups allow it and both operands are
    /// read several elements at a time.
    pub fn broadcast(&self, device: &Device, dtype: DType) -> Option<MatmulTile> {
        let [Some(_), Some(b)] = self.broadcast_readings() else { return None };
        if !BatchedProduct::may_broadcast(device, dtype) {
            return None;
        }
        let lanes = device.info().limits.subgroup_sizes.first().copied()?;
        let pairs = self.sizes[1].is_multiple_of(2);
        Some(MatmulTile::Broadcast(Broadcast { b, pairs, lanes }))
    }

    /// Returns whether lanes hand each other elements of a dtype, as far as the operands lie in order for it.
    pub fn may_broadcast(device: &Device, dtype: DType) -> bool {
        // Without loads of 64 bits, it is not known whether this is faster.
        let suits = dtype.size_in_bytes() == 2 || dtype.size_in_bytes() == 4 && device.info().features.i64;
        suits && device.tuning().matmul.blocks.is_empty() && device.info().has_eights_of_lanes()
    }

    /// Returns the axes along which lanes read both operands that they hand each other. `None` for an operand that does
    /// not lie in order for it.
    pub fn broadcast_readings(&self) -> [Option<Along>; 2] {
        let [_, n, k] = self.sizes;
        let quads = k.is_multiple_of(QUAD);
        let [a, _] = self.along(QUAD);
        let b = |along: Along| self.rhs.along(self.rhs.column, n, self.rhs.row, k, along.elements_at_once());
        let b = [Along::Depth, Along::Other].into_iter().find(|&along| b(along) == Some(along));
        [a.filter(|&along| along == Along::Depth && quads), b.filter(|_| quads)]
    }

    /// Returns the parameters of a kernel for operands that are not quantised.
    pub fn all_parameters(&self, epilogue: Option<epilogue::Parameters>) -> Parameters {
        let (eps, behind_gates) = (self.eps, self.behind_gates);
        Parameters {
            sizes: self.parameters(),
            windows: self.windows.clone(),
            matrix: None,
            eps,
            behind_gates,
            last_depth: self.last_depth,
            epilogue,
        }
    }

    fn parameters(&self) -> SizeParameters {
        let [m, n, depth] = self.sizes;
        let [a, b] = [&self.lhs, &self.rhs].map(|operand| Strided {
            offset: operand.offset,
            strides: operand.batch.iter().copied().chain([operand.row, operand.column]).collect(),
        });
        SizeParameters { batches: self.batches(), m, n, depth, lengths: self.lengths.clone(), a, b }
    }
}

impl Operand {
    /// Returns how fours of elements are read, given strides and lengths along the depth and the other axis.
    fn reading(&self, stride: isize, length: usize, depth_stride: isize, depth: usize) -> Reading {
        if let Some(along) = self.along(stride, length, depth_stride, depth, 4) {
            return Reading::Quads(along);
        }
        let near = depth_stride.unsigned_abs() < stride.unsigned_abs();
        Reading::Single(if near { Along::Depth } else { Along::Other })
    }

    /// Returns how matrix units read halves, given strides across and along the depth.
    fn unit_reading(&self, stride: isize, depth_stride: isize) -> Option<UnitReading> {
        let (along, pitch) = match (depth_stride, stride) {
            (1, _) => (Along::Depth, stride),
            (_, 1) => (Along::Other, depth_stride),
            _ => return None,
        };
        let mut distances = self.batch.iter().copied().chain([self.offset as isize, pitch]);
        Some(UnitReading { along, loose: distances.any(|distance| distance % 8 != 0) })
    }

    /// Returns the axis along which `count` elements at a time lie side by side, from multiples of `count` on.
    fn along(&self, stride: isize, length: usize, depth_stride: isize, depth: usize, count: usize) -> Option<Along> {
        let whole = |place: isize| place % count as isize == 0;
        if !self.offset.is_multiple_of(count) || !self.batch.iter().copied().all(whole) {
            return None;
        }
        // If there is one row or one column, the distance to the next one does not matter.
        if depth_stride == 1 && depth.is_multiple_of(count) && (length == 1 || whole(stride)) {
            return Some(Along::Depth);
        }
        (stride == 1 && length.is_multiple_of(count) && whole(depth_stride)).then_some(Along::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::info::DeviceKind;
    use crate::base::backend_kind::BackendKind;

    #[test]
    fn small_products_and_few_rows_are_multiplied_from_registers() {
        let mut info = DeviceInfo::sample(BackendKind::Vulkan, DeviceKind::Discrete, Some(132));
        info.limits.max_workgroup_memory = 48 << 10;
        info.limits.max_workgroup_invocations = 1024;
        let chosen = |batch: usize, sizes: [usize; 3], along: Along| {
            let [m, n, k] = sizes;
            let layout = |rows, columns| Layout::contiguous([batch, rows, columns].into_iter().collect());
            let right = match along {
                Along::Depth => layout(n, k).permuted(&[0, 2, 1]),
                Along::Other => layout(k, n),
            };
            let problem = BatchedProduct::new(&layout(m, k), &right, sizes);
            problem.in_unit_vectors(&info, None).map(|tile| [tile.count, tile.columns, tile.subgroups])
        };
        let (depth, other) = (Along::Depth, Along::Other);
        assert_eq!(chosen(1, [256, 256, 256], depth), Some([16, 2, 4]));
        assert_eq!(chosen(1, [256, 256, 256], other), Some([16, 2, 4]));
        assert_eq!(chosen(1, [384, 384, 384], depth), Some([16, 2, 4]));
        assert_eq!(chosen(1, [16, 1024, 1024], other), Some([16, 1, 16]));
        assert_eq!(chosen(1, [32, 512, 512], other), Some([16, 1, 8]));
        assert_eq!(chosen(1, [16, 256, 256], other), Some([16, 2, 4]));
        assert_eq!(chosen(1, [16, 2048, 1024], other), Some([16, 2, 16]));
        assert_eq!(chosen(1, [8, 4096, 4096], depth), Some([8, 2, 16]));
        assert_eq!(chosen(1, [5, 1024, 1024], depth), Some([8, 1, 16]));
        assert_eq!(chosen(1, [16, 16384, 1024], other), Some([16, 4, 8]));
        assert_eq!(chosen(1, [128, 1024, 1024], depth), Some([16, 2, 8]));
        assert_eq!(chosen(1, [32, 14336, 4096], depth), Some([16, 2, 8]));
        assert_eq!(chosen(1, [32, 4096, 14336], other), Some([16, 2, 8]));
        assert_eq!(chosen(1, [20, 2048, 2048], other), Some([16, 2, 16]));
        // The matrix would be read too often, or would take longer twice, or the depth of few blocks has to be cut.
        for (batch, sizes, along) in [
            (1, [512, 512, 512], depth),
            (1, [384, 384, 384], other),
            (1, [32, 14336, 4096], other),
            (1, [32, 1024, 4096], other),
            (1, [33, 14336, 4096], depth),
            (1, [64, 64, 14336], depth),
            (64, [32, 4096, 64], depth),
            (1, [1, 4096, 4096], depth),
        ] {
            assert_eq!(chosen(batch, sizes, along), None, "{batch} of {sizes:?}");
        }
    }
}
