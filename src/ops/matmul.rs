//! Matrix products.

use super::is_software;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::expr::Domain;
use crate::kernels::matmul::{Matmul, Tile};
use crate::layout::collapse;
use crate::shape::{Dims, Shape};
use crate::tensor::{Tensor, allocate, checked_elements};

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
        const OP: &str = "matmul";
        self.check_same_device(rhs, OP)?;
        self.check_same_dtype(rhs, OP)?;
        Domain::Numbers.check(self.dtype(), OP)?;
        for side in [self, rhs] {
            if side.rank() == 0 {
                return Err(Error::RankMismatch { op: OP, expected: "1 or more", shape: side.shape().clone() });
            }
        }
        let mismatch =
            |hint| Error::ShapeMismatch { op: OP, lhs: self.shape().clone(), rhs: rhs.shape().clone(), hint };
        let lhs_matrix = if self.rank() == 1 { self.unsqueeze(0)? } else { self.clone() };
        let rhs_matrix = if rhs.rank() == 1 { rhs.unsqueeze(1)? } else { rhs.clone() };
        let (lhs_batch, [m, k]) = split(&lhs_matrix);
        let (rhs_batch, [rhs_k, n]) = split(&rhs_matrix);
        if k != rhs_k {
            return Err(mismatch("the first one's last axis and the second one's last but one must be equal"));
        }
        let batch = lhs_batch
            .broadcast_with(&rhs_batch, OP)
            .map_err(|_| mismatch("the axes before the last two must be equal or 1"))?;
        let product = multiply(&lhs_matrix, &rhs_matrix, &batch, [m, n, k])?;
        let product = if rhs.rank() == 1 { product.squeeze(-1)? } else { product };
        if self.rank() == 1 { product.squeeze(if rhs.rank() == 1 { -1 } else { -2 }) } else { Ok(product) }
    }
}

/// How a product with `n` columns is cut.
fn choose_tile(device: &Device, dtype: DType, n: usize) -> Tile {
    // Products of 64-bit integers are made of so many of 32 bits that no larger tile stays in Intel's registers.
    if !is_software(device) && dtype != DType::I64 {
        return Tile::Workgroup;
    }
    // 32 or 128 columns per workgroup: the fewer are wasted. Sums of 64 bits take twice the registers.
    Tile::Registers { columns: if n < 96 || dtype.size_in_bytes() == 8 { 1 } else { 4 } }
}

/// The axes of the batch, and the two of the matrices.
fn split(x: &Tensor) -> (Shape, [usize; 2]) {
    let (batch, matrix) = x.dims().split_at(x.rank() - 2);
    (batch.into(), [matrix[0], matrix[1]])
}

/// The batched product over checked shapes.
fn multiply(lhs: &Tensor, rhs: &Tensor, batch: &Shape, [m, n, k]: [usize; 3]) -> Result<Tensor> {
    const OP: &str = "matmul";
    let device = lhs.device();
    let shape: Shape = batch.iter().copied().chain([m, n]).collect();
    let elements = checked_elements(&shape, OP)?;
    if elements == 0 || k == 0 {
        return Tensor::zeros(shape, lhs.dtype().summed(), device);
    }
    for matrix in [(m, k), (k, n)] {
        checked_elements(&matrix.into(), OP)?;
    }
    let operand_shape = |rows, columns| -> Shape { batch.iter().copied().chain([rows, columns]).collect() };
    let lhs_view = lhs.layout().broadcast_to(&operand_shape(m, k), OP)?;
    let rhs_view = rhs.layout().broadcast_to(&operand_shape(k, n), OP)?;
    let rank = batch.rank();
    let (lengths, strides) = collapse(batch, &[&lhs_view.strides[..rank], &rhs_view.strides[..rank]]);
    let limit = device.info().limits.max_parameter_words as usize;
    if Matmul::parameter_words(lengths.len()) > limit {
        // So many axes that do not merge: a batch in row-major order has one.
        let (lhs, rhs) =
            (lhs.broadcast_to(lhs_view.shape)?.contiguous()?, rhs.broadcast_to(rhs_view.shape)?.contiguous()?);
        return multiply(&lhs, &rhs, batch, [m, n, k]);
    }

    let tile = choose_tile(device, lhs.dtype(), n);
    let batches: usize = lengths.iter().product();
    let mut parameters: Vec<u32> = [batches, m, n, k].iter().chain(&lengths).map(|&n| n as u32).collect();
    for (view, batch_strides) in [(&lhs_view, &strides[0]), (&rhs_view, &strides[1])] {
        parameters.push(view.offset as u32);
        let matrix_strides: Dims<isize> = view.strides[rank..].iter().copied().collect();
        parameters.extend(batch_strides.iter().chain(&matrix_strides).map(|&stride| stride as u32));
    }
    let accumulated = lhs.dtype().widened();
    let output = allocate(&shape, accumulated, device, OP)?;
    let (rows, columns) = tile.block();
    let groups = batches
        .checked_mul(m.div_ceil(rows))
        .and_then(|groups| groups.checked_mul(n.div_ceil(columns)))
        .ok_or_else(|| Error::SizeOverflow { op: OP, shape: shape.clone(), limit: u32::MAX.into() })?;
    let config = Matmul { dtype: lhs.dtype(), batch_rank: lengths.len(), tile };
    device.runtime().launch(config, &[&*lhs.buffer()?, &*rhs.buffer()?, &output], &parameters, groups)?;
    Tensor::from_buffer(output, shape, accumulated, device).to_dtype(lhs.dtype().summed())
}
