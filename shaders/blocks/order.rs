//! [`Order`]: the order of the blocks of a quantised matrix, which all planes have.
//!
//! Rows lie together, sixteen at a time: first a piece of each row, then the next piece of each. A piece is one block,
//! or four small ones. Fewer rows lie together if there are few or they are long, and none if pieces do not fill them.
//! Invocations that multiply these rows then read memory without gaps. And no plane has more than 64 bytes of a piece,
//! so neighbouring rows are in different banks of a cache.

use crate::base::block_format::BlockFormat;
use crate::kernels::parameters::{Each, Size, parameters, times};
use crate::shader::Value;

/// The form of the parameters of a matrix of blocks.
pub(crate) struct BlockMatrix(pub BlockFormat);

parameters! {
    config: BlockMatrix;
    host: MatrixParameters;
    device: DeclaredMatrix;
    /// The first row that the kernel uses.
    first: Size,
    /// The blocks of a row.
    row_blocks: Size,
    /// The binary logarithm of the number of rows that lie together.
    together: Size,
    /// The index of the first 16 bytes of each plane.
    planes: Each<Size> = times(config.0.planes().len()),
}

impl MatrixParameters {
    /// Returns the number of positions that rows take. The last rows that lie together may not be all there, but they
    /// take as many positions as others.
    pub fn positions(&self, rows: usize) -> usize {
        rows.next_multiple_of(1 << self.together) * self.row_blocks
    }
}

/// Where blocks are: their positions in every plane.
#[derive(Clone, Copy)]
pub(crate) struct Order<'k> {
    /// The blocks of a piece, a power of two.
    piece: u32,
    row_blocks: Value<'k>,
    together: Value<'k>,
}

impl<'k> Order<'k> {
    pub fn new(piece: u32, row_blocks: Value<'k>, together: Value<'k>) -> Self {
        Order { piece, row_blocks, together }
    }

    /// The number of a row among those that lie together.
    fn within(&self, row: Value<'k>) -> Value<'k> {
        row & ((row.literal(1) << self.together) - 1)
    }

    /// Returns the position of a row's first block.
    pub fn row(&self, row: Value<'k>) -> Value<'k> {
        let within = self.within(row);
        (row - within) * self.row_blocks + within * self.piece
    }

    /// Returns the position of a block of the row whose first block is at `row`.
    pub fn block(&self, row: Value<'k>, block: Value<'k>) -> Value<'k> {
        if self.piece == 1 {
            return row + (block << self.together);
        }
        let within = block & (self.piece - 1);
        row + ((block - within) << self.together) + within
    }

    /// Returns the row and the block of a position. They may be beyond the matrix.
    pub fn at(&self, position: Value<'k>) -> [Value<'k>; 2] {
        let those_together = self.row_blocks << self.together;
        let (before, inside) = (position / those_together, position % those_together);
        let piece = inside / self.piece;
        let row = (before << self.together) + self.within(piece);
        [row, (piece >> self.together) * self.piece + inside % self.piece]
    }
}
