//! Diagonals and triangles of matrices.

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::base::shape::Shape;
use crate::base::word::Word;
use crate::device::Device;
use crate::kernels::expr::{BinaryOp, TermId};
use crate::lazy::ExpressionBuilder;
use crate::tensor::Tensor;

/// Returns the row and the column where a diagonal begins.
fn first_of_diagonal(diagonal: isize) -> [usize; 2] {
    let distance = diagonal.unsigned_abs();
    if diagonal < 0 { [distance, 0] } else { [0, distance] }
}

impl Tensor {
    /// Returns the matrices in the last two axes with zeros above a diagonal. Diagonal 0 is the main one, and positive
    /// ones are above it.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1u32, 2, 3], [4, 5, 6]], &device)?;
    /// assert_eq!(x.tril(0)?.to_vec::<u32>()?, [1, 0, 0, 4, 5, 0]);
    /// assert_eq!(x.tril(-1)?.to_vec::<u32>()?, [0, 0, 0, 4, 0, 0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::RankMismatch`] below two axes.
    pub fn tril(&self, diagonal: isize) -> Result<Tensor> {
        self.triangle(diagonal, BinaryOp::Le, "tril")
    }

    /// Returns the matrices in the last two axes with zeros below a diagonal. Diagonal 0 is the main one, and positive
    /// ones are above it.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1u32, 2, 3], [4, 5, 6]], &device)?;
    /// assert_eq!(x.triu(1)?.to_vec::<u32>()?, [0, 2, 3, 0, 0, 6]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::RankMismatch`] below two axes.
    pub fn triu(&self, diagonal: isize) -> Result<Tensor> {
        self.triangle(diagonal, BinaryOp::Ge, "triu")
    }

    /// Keeps the elements on a diagonal and on one side of it, which the comparison `side` selects.
    fn triangle(&self, diagonal: isize, side: BinaryOp, op: &'static str) -> Result<Tensor> {
        let [.., rows, columns] = *self.dims() else {
            return Err(Error::RankMismatch { op, expected: "2 or more", shape: self.shape().clone() });
        };
        let mut builder = ExpressionBuilder::like(self);
        let x = builder.tensor(self, op)?;
        // Beyond the corners all diagonals are alike.
        let most = |n: usize| isize::try_from(n).unwrap_or(isize::MAX);
        let [down, right] = first_of_diagonal(diagonal.clamp(-most(rows), most(columns)));
        let zero = Word::of(0.0, self.dtype(), op)?;
        let [down, right, rows, columns] = [down, right, rows, columns].map(|n| builder.scalar(Word::new(n as u32)));
        let zero = builder.scalar(zero);
        let [row, column] = place(&mut builder, [rows, columns]);
        let (below, beside) = (builder.binary(BinaryOp::Add, column, down), builder.binary(BinaryOp::Add, row, right));
        let on_side = builder.binary(side, below, beside);
        let y = builder.select(on_side, x, zero);
        builder.finish(y, op)
    }

    /// Returns the square matrix with ones on its main diagonal and zeros elsewhere.
    ///
    /// ```
    /// # use marquetry::{Device, DType, Tensor};
    /// # let device = Device::best()?;
    /// assert_eq!(Tensor::eye(2, DType::F32, &device)?.to_vec::<f32>()?, [1.0, 0.0, 0.0, 1.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::SizeOverflow`].
    pub fn eye(size: usize, dtype: DType, device: &Device) -> Result<Tensor> {
        const OP: &str = "eye";
        let mut builder = ExpressionBuilder::new(Shape::from((size, size)), device);
        let [zero, one] = [Word::of(0.0, dtype, OP)?, Word::of(1.0, dtype, OP)?].map(|word| builder.scalar(word));
        let sizes = [size, size].map(|n| builder.scalar(Word::new(n as u32)));
        let [row, column] = place(&mut builder, sizes);
        let on_diagonal = builder.binary(BinaryOp::Eq, row, column);
        let y = builder.select(on_diagonal, one, zero);
        builder.finish(y, OP)
    }

    /// Returns a matrix with this vector on a diagonal and zeros elsewhere, or the view of a diagonal of this matrix.
    /// Diagonal 0 is the main one, and positive ones are above it.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([1u32, 2], &device)?.diag(1)?;
    /// assert_eq!(x.to_vec::<u32>()?, [0, 1, 0, 0, 0, 2, 0, 0, 0]);
    /// assert_eq!(x.diag(1)?.to_vec::<u32>()?, [1, 2]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::RankMismatch`] for other ranks; [`Error::InvalidArgument`] for a diagonal outside of the matrix;
    /// [`Error::SizeOverflow`], [`Error::OutOfMemory`].
    pub fn diag(&self, diagonal: isize) -> Result<Tensor> {
        const OP: &str = "diag";
        match self.rank() {
            1 => {
                let length = self.elem_count();
                let size = length.saturating_add(diagonal.unsigned_abs());
                let matrix = Tensor::filled(0, (size, size).into(), self.dtype(), self.device(), OP)?;
                if length > 0 {
                    matrix.write_part(&diagonal_of(matrix.layout(), diagonal, OP)?, self)?;
                }
                Ok(matrix)
            }
            2 => Ok(self.with_layout(diagonal_of(self.layout(), diagonal, OP)?)),
            _ => Err(Error::RankMismatch { op: OP, expected: "1 or 2", shape: self.shape().clone() }),
        }
    }
}

/// Returns the view of a diagonal of a matrix.
fn diagonal_of(matrix: &Layout, diagonal: isize, op: &'static str) -> Result<Layout> {
    let [row, column] = first_of_diagonal(diagonal);
    let (rows, columns) = (matrix.shape[0], matrix.shape[1]);
    let (Some(down), Some(right)) = (rows.checked_sub(row), columns.checked_sub(column)) else {
        let message = format!(
            "diagonal {diagonal} is outside of shape {}, whose diagonals go from -{rows} to {columns}",
            matrix.shape
        );
        return Err(Error::InvalidArgument { op, message });
    };
    let length = down.min(right);
    let start = matrix.sliced(0, row, length, 1).sliced(1, column, length, 1);
    let stride = matrix.strides[0].wrapping_add(matrix.strides[1]);
    Ok(Layout { shape: length.into(), strides: [stride].into_iter().collect(), offset: start.offset })
}

/// Returns the row and the column of an output element in its matrix, which has these rows and columns.
fn place(builder: &mut ExpressionBuilder, [rows, columns]: [TermId; 2]) -> [TermId; 2] {
    let index = builder.index();
    let row = builder.binary(BinaryOp::Div, index, columns);
    let row = builder.binary(BinaryOp::Rem, row, rows);
    [row, builder.binary(BinaryOp::Rem, index, columns)]
}
