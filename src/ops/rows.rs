//! A tensor as rows, for kernels that read them: the elements along some axes, for each place along the others.

use crate::base::error::Result;
use crate::base::layout::collapse;
use crate::base::shape::checked_elements;
use crate::base::shape::{Dims, Shape};
use crate::engine::pool::Buffer;
use crate::kernels::parameters::{Form, Strided};
use crate::kernels::rows::{RowsParameters, RowsType};
use crate::tensor::Tensor;
use std::sync::Arc;

/// So many neighbours are read at once.
pub(super) const COLUMNS: usize = 32;

/// The rows of a tensor.
pub(super) struct Rows {
    pub buffer: Arc<Buffer>,
    pub ty: RowsType,
    /// The number of rows, and the length of each.
    pub count: usize,
    pub length: usize,
    /// Whether neighbouring rows have neighbouring elements, as columns of a matrix have.
    pub are_columns: bool,
    /// Whether the elements of each row lie side by side, by fours from a multiple of four on.
    pub are_quads: bool,
    /// Where they are.
    pub parameters: RowsParameters,
}

impl Rows {
    /// The rows along `axes`, in the order of the axes `kept`. If the device has no room for the parameters of the
    /// `kernel` that reads them, the elements are copied into order first.
    pub fn new<K: Form>(
        tensor: &Tensor,
        kept: &[usize],
        axes: &[usize],
        kernel: &impl Fn(RowsType) -> K,
        op: &'static str,
    ) -> Result<Rows> {
        let count = checked_elements(&lengths(tensor, kept), op)?;
        let length = checked_elements(&lengths(tensor, axes), op)?;
        checked_elements(tensor.shape(), op)?;
        let part = |axes: &[usize]| {
            let strides: Dims<isize> = axes.iter().map(|&axis| tensor.strides()[axis]).collect();
            let (lengths, [strides]) = collapse(&lengths(tensor, axes), [&strides]);
            (lengths, strides)
        };
        let ((kept_lengths, kept_strides), (row_lengths, row_strides)) = (part(kept), part(axes));
        let ty = RowsType { dtype: tensor.dtype(), kept_rank: kept_lengths.len(), row_rank: row_lengths.len() };
        if !tensor.device().takes(&kernel(ty)) {
            // So many axes that do not merge: in row-major order of the rows, two remain.
            let order: Vec<usize> = kept.iter().chain(axes).copied().collect();
            return Rows::new(&tensor.permute(order)?.reshape((count, length))?, &[0], &[1], kernel, op);
        }
        let are_columns = are_columns((&kept_lengths, &kept_strides), &row_strides);
        let fours = |stride: &isize| stride % 4 == 0;
        let are_quads = row_strides[..] == [1]
            && length.is_multiple_of(4)
            && tensor.layout().offset.is_multiple_of(4)
            && kept_strides.iter().all(fours);
        let strides = kept_strides.into_iter().chain(row_strides).collect();
        let x = Strided { offset: tensor.layout().offset, strides };
        let parameters = RowsParameters { kept: kept_lengths, along: row_lengths, x };
        Ok(Rows { buffer: tensor.buffer()?, ty, count, length, are_columns, are_quads, parameters })
    }

    /// The rows along one axis, in row-major order of the others.
    pub fn along<K: Form>(
        tensor: &Tensor,
        axis: usize,
        kernel: &impl Fn(RowsType) -> K,
        op: &'static str,
    ) -> Result<Rows> {
        let kept: Dims = (0..tensor.rank()).filter(|&other| other != axis).collect();
        Rows::new(tensor, &kept, &[axis], kernel, op)
    }
}

/// Whether rows with these strides lie side by side, for kept axes of these lengths and strides.
pub(super) fn are_columns((kept_lengths, kept_strides): (&[usize], &[isize]), row_strides: &[isize]) -> bool {
    kept_strides.last() == Some(&1)
        && kept_lengths.last().is_some_and(|&columns| columns >= COLUMNS)
        && row_strides.last() != Some(&1)
}

/// The lengths of some axes.
pub(super) fn lengths(tensor: &Tensor, axes: &[usize]) -> Shape {
    axes.iter().map(|&axis| tensor.dims()[axis]).collect()
}
