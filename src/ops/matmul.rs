//! Matrix products.

use super::{largest_team, subgroup_lanes};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::expr::Domain;
use crate::kernels::matmul::{Along, Block, Matmul, QUAD, Reading, Side, Tile, Vectors};
use crate::layout::{Layout, collapse};
use crate::shape::{Dims, Shape};
use crate::tensor::{Tensor, allocate, checked_elements};
use crate::tuning;

impl Tensor {
    /// The matrix product, as PyTorch's `matmul` and numpy's `@`: of the last two axes, with all axes before them
    /// broadcast. A vector at the left is a row, at the right a column, and its axis is not in the result. Any strides
    /// will do: nothing is copied for transposed or sliced operands. `f16` and `bf16` are accumulated in `f32`. Products
    /// of `i8` are `i32` and those of `u8` are `u32`, where sums of them fit; those wrap.
    ///
    /// ```
    /// # use marquetry::{Device, DType, Tensor};
    /// # let device = Device::best()?;
    /// let a = Tensor::new([[1f32, 2.0], [3.0, 4.0]], &device)?;
    /// let v = Tensor::new([10f32, 1.0], &device)?;
    /// assert_eq!(a.matmul(&v)?.to_vec::<f32>()?, [12.0, 34.0]);
    /// let batch = Tensor::zeros((5, 1, 2, 3), DType::F32, &device)?;
    /// let other = Tensor::zeros((4, 3, 6), DType::F32, &device)?;
    /// assert_eq!(batch.matmul(&other)?.dims(), [5, 4, 2, 6]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::RankMismatch`] for scalars, [`Error::DTypeMismatch`],
    /// [`Error::DeviceMismatch`]; [`Error::UnsupportedDType`] for `bool`.
    pub fn matmul(&self, rhs: &Tensor) -> Result<Tensor> {
        self.product(rhs, "matmul")?.to_dtype(self.dtype().summed())
    }

    /// The matrix product in the dtype that it is accumulated in.
    pub(super) fn product(&self, rhs: &Tensor, op: &'static str) -> Result<Tensor> {
        for side in [self, rhs] {
            if side.rank() == 0 {
                return Err(Error::RankMismatch { op, expected: "1 or more", shape: side.shape().clone() });
            }
        }
        let lhs_matrix = if self.rank() == 1 { self.unsqueeze(0)? } else { self.clone() };
        let rhs_matrix = if rhs.rank() == 1 { rhs.unsqueeze(1)? } else { rhs.clone() };
        let (batch, sizes) = lhs_matrix.check_factors(&rhs_matrix, op)?;
        let product = multiply(&lhs_matrix, &rhs_matrix, &batch, sizes, op)?;
        let product = if rhs.rank() == 1 { product.squeeze(-1)? } else { product };
        if self.rank() == 1 { product.squeeze(if rhs.rank() == 1 { -1 } else { -2 }) } else { Ok(product) }
    }

    /// The axes of the batch, and m, n and k, of a product of matrices.
    pub(super) fn check_factors(&self, rhs: &Tensor, op: &'static str) -> Result<(Shape, [usize; 3])> {
        self.check_same_device(rhs, op)?;
        self.check_same_dtype(rhs, op)?;
        Domain::Numbers.check(self.dtype(), op)?;
        let mismatch = |hint| Error::ShapeMismatch { op, lhs: self.shape().clone(), rhs: rhs.shape().clone(), hint };
        let (lhs_batch, [m, k]) = split(self);
        let (rhs_batch, [rhs_k, n]) = split(rhs);
        if k != rhs_k {
            return Err(mismatch("the first one's last axis and the second one's last but one must be equal"));
        }
        let batch = lhs_batch
            .broadcast_with(&rhs_batch, op)
            .map_err(|_| mismatch("the axes before the last two must be equal or 1"))?;
        Ok((batch, [m, n, k]))
    }

    /// Fails for dtypes that a sum of products does not have: truth values, and integers of 8 bits.
    pub(super) fn check_products(&self, op: &'static str) -> Result<()> {
        if self.dtype() == self.dtype().summed() {
            return Ok(());
        }
        Err(Error::UnsupportedDType { op, dtype: self.dtype(), expected: "floats, i32, u32 and i64" })
    }
}

/// How a product is cut.
fn choose_tile(device: &Device, dtype: DType, problem: &Problem, batches: usize) -> Tile {
    let [m, n, _] = problem.sizes;
    let tuning = &device.tuning().matmul;
    // Products of 64-bit integers are made of so many of 32 bits that no larger tile stays in Intel's registers.
    let (Some(smallest), false) = (tuning.blocks.last(), dtype == DType::I64) else {
        if let Some(tile) = problem.broadcast(device, dtype) {
            return tile;
        }
        // 32 columns per workgroup, or more: the fewer are wasted. Sums of 64 bits take twice the registers.
        return Tile::Registers { columns: if n < 96 || dtype.size_in_bytes() == 8 { 1 } else { tuning.columns } };
    };
    if let Some(vectors) = problem.few_vectors(device, dtype) {
        return Tile::Vectors(vectors);
    }
    let busy = |block: &&tuning::Block| {
        let [rows, columns] = block.shape.map(|n| n as usize);
        batches * m.div_ceil(rows) * n.div_ceil(columns) >= tuning.busy
    };
    let largest = if dtype.size_in_bytes() == 8 { None } else { tuning.blocks.iter().find(busy) };
    Tile::Workgroup(problem.fitted((*largest.unwrap_or(smallest)).into()))
}

/// So few rows or columns are vectors, which do not fill blocks.
const FEW_VECTORS: usize = 16;

/// The axes of the batch, and the two of the matrices.
fn split(x: &Tensor) -> (Shape, [usize; 2]) {
    let (batch, matrix) = x.dims().split_at(x.rank() - 2);
    (batch.into(), [matrix[0], matrix[1]])
}

/// The batched product over checked shapes, in the dtype that it is accumulated in.
fn multiply(lhs: &Tensor, rhs: &Tensor, batch: &Shape, [m, n, k]: [usize; 3], op: &'static str) -> Result<Tensor> {
    let device = lhs.device();
    let shape: Shape = batch.iter().copied().chain([m, n]).collect();
    let elements = checked_elements(&shape, op)?;
    let accumulated = lhs.dtype().widened();
    if elements == 0 || k == 0 {
        return Tensor::zeros(shape, accumulated, device);
    }
    for matrix in [(m, k), (k, n)] {
        checked_elements(&matrix.into(), op)?;
    }
    let operand_shape = |rows, columns| -> Shape { batch.iter().copied().chain([rows, columns]).collect() };
    let lhs_view = lhs.layout().broadcast_to(&operand_shape(m, k), op)?;
    let rhs_view = rhs.layout().broadcast_to(&operand_shape(k, n), op)?;
    let problem = Problem::new(&lhs_view, &rhs_view, [m, n, k]);
    let limit = device.info().limits.max_parameter_words as usize;
    if Matmul::parameter_words(problem.lengths.len()) > limit {
        // So many axes that do not merge: a batch in row-major order has one.
        let (lhs, rhs) =
            (lhs.broadcast_to(lhs_view.shape)?.contiguous()?, rhs.broadcast_to(rhs_view.shape)?.contiguous()?);
        return multiply(&lhs, &rhs, batch, [m, n, k], op);
    }

    let [m, n, _] = problem.sizes;
    let batches: usize = problem.lengths.iter().product();
    let tile = choose_tile(device, lhs.dtype(), &problem, batches);
    let output = allocate(&shape, accumulated, device, op)?;
    let [rows, columns] = tile.block().map(|n| n as usize);
    let groups = batches
        .checked_mul(m.div_ceil(rows))
        .and_then(|groups| groups.checked_mul(n.div_ceil(columns)))
        .ok_or_else(|| Error::SizeOverflow { op, shape: shape.clone(), limit: u32::MAX.into() })?;
    let config = Matmul { dtype: lhs.dtype(), batch_rank: problem.lengths.len(), tile };
    let parameters = problem.parameters(batches);
    device.runtime().launch(config, &[&*lhs.buffer()?, &*rhs.buffer()?, &output], &parameters, groups)?;
    Ok(Tensor::from_buffer(output, shape, accumulated, device))
}

/// A batch of products in as few axes as possible.
struct Problem {
    /// m, n and k.
    sizes: [usize; 3],
    /// The axes of the batch.
    lengths: Dims,
    lhs: Operand,
    rhs: Operand,
}

/// Where an operand's elements are, by strides along the axes of the batch, the rows and the columns.
struct Operand {
    offset: usize,
    batch: Dims<isize>,
    row: isize,
    column: isize,
}

impl Problem {
    fn new(lhs: &Layout, rhs: &Layout, sizes: [usize; 3]) -> Self {
        let rank = lhs.shape.rank() - 2;
        let (lengths, strides) = collapse(&lhs.shape[..rank], &[&lhs.strides[..rank], &rhs.strides[..rank]]);
        let [lhs, rhs] = [(lhs, &strides[0]), (rhs, &strides[1])].map(|(view, batch)| Operand {
            offset: view.offset,
            batch: batch.clone(),
            row: view.strides[rank],
            column: view.strides[rank + 1],
        });
        let mut problem = Problem { sizes, lengths, lhs, rhs };
        while problem.merge_batch_into_rows() {}
        problem
    }

    /// Makes one tall matrix of the matrices at the left along the innermost axis of the batch, where all are multiplied
    /// by the same one.
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

    /// A block that reads and writes as the operands and the product lie.
    fn fitted(&self, block: Block) -> Block {
        let [m, n, k] = self.sizes;
        let a = self.lhs.reading(self.lhs.row, m, self.lhs.column, k);
        let b = self.rhs.reading(self.rhs.column, n, self.rhs.row, k);
        Block { a, b, whole: k.is_multiple_of(2 * block.depth as usize), quads: n.is_multiple_of(4), ..block }
    }

    /// How it is computed as the product of a matrix and a few vectors, if it is one and both lie so that they can be read
    /// by fours, the vectors along the depth.
    fn few_vectors(&self, device: &Device, dtype: DType) -> Option<Vectors> {
        let [m, n, k] = self.sizes;
        let a = self.lhs.reading(self.lhs.row, m, self.lhs.column, k);
        let b = self.rhs.reading(self.rhs.column, n, self.rhs.row, k);
        let (side, few, outputs, vectors, matrix) = match () {
            _ if m <= FEW_VECTORS && m <= n => (Side::Rows, m, n, a, b),
            _ if n <= FEW_VECTORS => (Side::Columns, n, m, b, a),
            _ => return None,
        };
        let (Reading::Quads(Along::Depth), Reading::Quads(along)) = (vectors, matrix) else { return None };
        if dtype.size_in_bytes() > 4 {
            return None;
        }
        let count = (few.next_power_of_two() as u32).min(Vectors::MOST);
        let stored_quads = outputs.is_multiple_of(4) && (side == Side::Rows || n == 1);
        let subgroup = subgroup_lanes(device);
        let [members, across] = Vectors::members(along, count, subgroup, [outputs, k]);
        let members = [members.min(largest_team(device)), across];
        Some(Vectors { side, count, along, stored_quads, members, subgroup })
    }

    /// A tile whose lanes hand each other elements, where the device's subgroups allow for it and both operands are read
    /// several elements at a time.
    fn broadcast(&self, device: &Device, dtype: DType) -> Option<Tile> {
        let [m, n, k] = self.sizes;
        let a = self.lhs.along(self.lhs.row, m, self.lhs.column, k, QUAD)?;
        let b = |along: Along| self.rhs.along(self.rhs.column, n, self.rhs.row, k, along.elements_at_once());
        let b = [Along::Depth, Along::Other].into_iter().find(|&along| b(along) == Some(along))?;
        // Pairs of elements of 32 bits are read as integers of 64.
        let pairs = dtype.size_in_bytes() == 2 || dtype.size_in_bytes() == 4 && device.info().features.i64;
        let fits = a == Along::Depth && k.is_multiple_of(QUAD) && pairs && device.info().has_eights_of_lanes();
        fits.then_some(Tile::Broadcast { b })
    }

    fn parameters(&self, batches: usize) -> Vec<u32> {
        let mut parameters: Vec<u32> =
            [batches].iter().chain(&self.sizes).chain(&self.lengths).map(|&n| n as u32).collect();
        for operand in [&self.lhs, &self.rhs] {
            parameters.push(operand.offset as u32);
            let strides = operand.batch.iter().chain([&operand.row, &operand.column]);
            parameters.extend(strides.map(|&stride| stride as u32));
        }
        parameters
    }
}

impl Operand {
    /// How fours of elements are read, by strides and lengths along the depth and the other axis.
    fn reading(&self, stride: isize, length: usize, depth_stride: isize, depth: usize) -> Reading {
        if let Some(along) = self.along(stride, length, depth_stride, depth, 4) {
            return Reading::Quads(along);
        }
        let near = depth_stride.unsigned_abs() < stride.unsigned_abs();
        Reading::Single(if near { Along::Depth } else { Along::Other })
    }

    /// The axis along which so many elements at a time lie side by side, at multiples of as many.
    fn along(&self, stride: isize, length: usize, depth_stride: isize, depth: usize, count: usize) -> Option<Along> {
        let whole = |place: isize| place % count as isize == 0;
        if !self.offset.is_multiple_of(count) || !self.batch.iter().copied().all(whole) {
            return None;
        }
        // Where there is one row, or one column, it does not matter how far the next would be.
        if depth_stride == 1 && depth.is_multiple_of(count) && (length == 1 || whole(stride)) {
            return Some(Along::Depth);
        }
        (stride == 1 && length.is_multiple_of(count) && whole(depth_stride)).then_some(Along::Other)
    }
}
