//! Copies in which another axis becomes the innermost one.

use super::view::View;
use crate::base::layout::collapse;
use crate::kernels::transpose::Transpose;

/// Fewer rows or columns leave too much of a tile empty.
const FEWEST: [usize; 2] = [16, 32];

/// How a tensor is copied into row-major order through tiles.
pub(super) struct Transposition {
    pub config: Transpose,
    pub parameters: Vec<u32>,
    pub groups: usize,
}

impl Transposition {
    /// `None` where tiles do not help, or do not fit.
    pub fn new(tensor: &View) -> Option<Transposition> {
        let bytes = tensor.dtype.size_in_bytes();
        let (lengths, strides) = collapse(tensor.shape(), [tensor.strides()]);
        let x_strides = &strides[0];
        let rank = lengths.len();
        let row = x_strides.iter().position(|&stride| stride == 1)?;
        if bytes > 4 || row + 1 == rank {
            return None;
        }
        let (rows, columns) = (lengths[row], lengths[rank - 1]);
        if rows < FEWEST[0] || columns < FEWEST[1] || !columns.is_multiple_of(4) {
            return None;
        }
        let y_strides: Vec<usize> = (0..rank).map(|axis| lengths[axis + 1..].iter().product()).collect();
        let outer: Vec<usize> = (0..rank - 1).filter(|&axis| axis != row).collect();
        let per_word = 4 / bytes;
        let words = tensor.layout.offset.is_multiple_of(per_word)
            && outer.iter().chain([&(rank - 1)]).all(|&axis| x_strides[axis] % per_word as isize == 0);
        let tile = Transpose::tile(bytes as u32, words, [rows, columns]);
        let config = Transpose { bytes: bytes as u32, outer: outer.len(), words, tile };
        if config.parameter_words() > tensor.device.info().limits.max_parameter_words as usize {
            return None;
        }
        let count: usize = outer.iter().map(|&axis| lengths[axis]).product();
        let mut parameters: Vec<u32> = [count, rows, columns].map(|n| n as u32).into();
        parameters.extend([x_strides[rank - 1] as u32, y_strides[row] as u32]);
        parameters.extend(outer.iter().map(|&axis| lengths[axis] as u32));
        parameters.push(tensor.layout.offset as u32);
        parameters.extend(outer.iter().map(|&axis| x_strides[axis] as u32));
        parameters.push(0);
        parameters.extend(outer.iter().map(|&axis| y_strides[axis] as u32));
        let groups = count * rows.div_ceil(tile[0] as usize) * columns.div_ceil(tile[1] as usize);
        Some(Transposition { config, parameters, groups })
    }
}
