//! A tensor as rows, for the kernels that read them. A row has the elements along some axes, and each place along the
//! other axes has a row.

use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::layout::collapse;
use crate::base::shape::checked_elements;
use crate::base::shape::{Dims, Shape};
use crate::engine::pool::Buffer;
use crate::kernels::parameters::{Form, Strided};
use crate::kernels::rows::{RowsParameters, RowsType};
use crate::tensor::Tensor;
use std::sync::Arc;

/// At least this many neighbours are read at once.
pub(super) const COLUMNS: usize = 32;

/// The axes of a tensor, merged if possible. There is a row for each place along the `kept` axes, and the elements of a
/// row lie `along` the others.
pub(super) struct RowAxes {
    pub kept: Dims,
    pub kept_strides: Dims<isize>,
    pub along: Dims,
    pub along_strides: Dims<isize>,
}

impl RowAxes {
    pub fn new(tensor: &Tensor, kept: &[usize], along: &[usize]) -> RowAxes {
        let part = |axes: &[usize]| {
            let strides: Dims<isize> = axes.iter().map(|&axis| tensor.strides()[axis]).collect();
            let (lengths, [strides]) = collapse(&lengths(tensor, axes), [&strides]);
            (lengths, strides)
        };
        let ((kept, kept_strides), (along, along_strides)) = (part(kept), part(along));
        RowAxes { kept, kept_strides, along, along_strides }
    }

    /// Returns the form of the parameters.
    pub fn ty(&self, dtype: DType) -> RowsType {
        RowsType { dtype, kept_rank: self.kept.len(), row_rank: self.along.len() }
    }

    /// Returns a kernel's parameters, for a first element at this offset.
    pub fn parameters(&self, offset: usize) -> RowsParameters {
        let strides = self.kept_strides.iter().chain(&self.along_strides).copied().collect();
        RowsParameters { kept: self.kept.clone(), along: self.along.clone(), x: Strided { offset, strides } }
    }

    /// Whether neighbouring rows have neighbouring elements, as the columns of a matrix have.
    pub fn are_columns(&self) -> bool {
        self.kept_strides.last() == Some(&1)
            && self.kept.last().is_some_and(|&columns| columns >= COLUMNS)
            && self.along_strides.last() != Some(&1)
    }
}

/// The rows of a tensor.
pub(super) struct Rows {
    pub buffer: Arc<Buffer>,
    pub ty: RowsType,
    /// The number of rows, and the length of each.
    pub count: usize,
    pub length: usize,
    /// Whether neighbouring rows have neighbouring elements, as the columns of a matrix have.
    pub are_columns: bool,
    /// Whether each row is whole fours of neighbours, which begin at multiples of four.
    pub are_quads: bool,
    /// Where the elements are.
    pub parameters: RowsParameters,
}

impl Rows {
    /// Returns the rows along `axes`, in the order of the axes `kept`. If the device has no room for the parameters of
    /// the `kernel` that reads them, the elements are copied into order first.
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
        let row_axes = RowAxes::new(tensor, kept, axes);
        let ty = row_axes.ty(tensor.dtype());
        if !tensor.device().takes(&kernel(ty)) {
            // There are too many axes that do not merge. In row-major order of the rows, two axes remain.
            let order: Vec<usize> = kept.iter().chain(axes).copied().collect();
            return Rows::new(&tensor.permute(order)?.reshape((count, length))?, &[0], &[1], kernel, op);
        }
        let fours = |stride: &isize| stride % 4 == 0;
        let are_quads = row_axes.along_strides[..] == [1]
            && length.is_multiple_of(4)
            && tensor.layout().offset.is_multiple_of(4)
            && row_axes.kept_strides.iter().all(fours);
        Ok(Rows {
            buffer: tensor.buffer()?,
            ty,
            count,
            length,
            are_columns: row_axes.are_columns(),
            are_quads,
            parameters: row_axes.parameters(tensor.layout().offset),
        })
    }

    /// Returns the rows along one axis, in row-major order of the others.
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

/// Returns the lengths of some axes.
pub(super) fn lengths(tensor: &Tensor, axes: &[usize]) -> Shape {
    axes.iter().map(|&axis| tensor.dims()[axis]).collect()
}
