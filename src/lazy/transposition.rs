//! Copies that make another axis the innermost one.

use super::view::View;
use crate::base::layout::collapse;
use crate::base::shape::Dims;
use crate::kernels::parameters::Strided;
use crate::kernels::transpose::{Parameters, Tile, Transpose};

/// With fewer rows or columns, too much of a tile stays empty.
const FEWEST: [usize; 2] = [16, 32];

/// A copy of a tensor into row-major order, through tiles.
pub(super) struct Transposition {
    pub kernel: Transpose,
    pub parameters: Parameters,
    pub groups: usize,
}

impl Transposition {
    /// Returns `None` if tiles do not help, or do not fit.
    pub fn new(tensor: &View) -> Option<Transposition> {
        let bytes = tensor.dtype.size_in_bytes();
        let (lengths, [x_strides]) = collapse(tensor.shape(), [tensor.strides()]);
        let rank = lengths.len();
        let row = x_strides.iter().position(|&stride| stride == 1)?;
        if bytes > 4 || row + 1 == rank {
            return None;
        }
        let (rows, columns) = (lengths[row], lengths[rank - 1]);
        if rows < FEWEST[0] || columns < FEWEST[1] || !columns.is_multiple_of(4) {
            return None;
        }
        let y_strides: Dims<isize> =
            (0..rank).map(|axis| lengths[axis + 1..].iter().product::<usize>() as isize).collect();
        let outer: Vec<usize> = (0..rank - 1).filter(|&axis| axis != row).collect();
        // Whether the columns of the input begin at multiples of some elements.
        let begin_at = |elements: usize| {
            tensor.layout().offset.is_multiple_of(elements)
                && outer.iter().chain([&(rank - 1)]).all(|&axis| x_strides[axis] % elements as isize == 0)
        };
        let device = tensor.device();
        let tile = match device.tuning().copy.tiles {
            true => Tile::of_workgroup(bytes as u32, begin_at(4 / bytes), [rows, columns]),
            false if rows.is_multiple_of(4) && begin_at(4) => {
                Tile::of_invocation([rows, columns], device.elementwise_workgroup())
            }
            false => return None,
        };
        let kernel = Transpose { bytes: bytes as u32, outer: outer.len(), tile };
        if !device.takes(&kernel) {
            return None;
        }
        let count: usize = outer.iter().map(|&axis| lengths[axis]).product();
        let along_outer = |strides: &[isize]| outer.iter().map(|&axis| strides[axis]).collect();
        let parameters = Parameters {
            count,
            rows,
            columns,
            x_stride: x_strides[rank - 1],
            y_stride: y_strides[row].unsigned_abs(),
            lengths: outer.iter().map(|&axis| lengths[axis]).collect(),
            x: Strided { offset: tensor.layout().offset, strides: along_outer(&x_strides) },
            y: Strided { offset: 0, strides: along_outer(&y_strides) },
        };
        let [tile_rows, tile_columns] = tile.sides().map(|side| side as usize);
        let groups = count * rows.div_ceil(tile_rows) * columns.div_ceil(tile_columns);
        Some(Transposition { kernel, parameters, groups })
    }
}
