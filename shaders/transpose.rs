//! Copies into another order of axes, through tiles in workgroup memory: neighbouring invocations read neighbours along
//! the axis that is innermost in memory before, and write neighbours along the one that is innermost then.

use super::Family;
use super::elements::{Grid, Raw, Strides};
use crate::shader::{Access, KernelBuilder, Scalar, Type, Value};

/// Rows and columns of a tile: rows lie side by side in the input, columns in the output.
pub(crate) const TILE: [u32; 2] = [32, 64];

/// Invocations per workgroup: as many as every device has.
const WORKGROUP: u32 = 128;

/// Elements between columns of a tile, so that rows fall into different banks.
const PITCH: u32 = TILE[0] + 1;

/// `y[.., i, .., j] = x[.., j, .., i]` for elements of 1, 2 or 4 bytes; the number of columns is a multiple of four.
/// Parameters: the number of outer places, rows and columns; the stride of a column in `x` and of a row in `y`; the
/// lengths of the outer axes; of `x` and of `y` an offset and strides along them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Transpose {
    pub bytes: usize,
    /// The number of outer axes.
    pub outer: usize,
}

impl Transpose {
    pub fn parameter_words(&self) -> usize {
        5 + self.outer + 2 * (1 + self.outer)
    }
}

impl Family for Transpose {
    fn name(&self) -> String {
        format!("transpose({} bytes, {} outer axes)", self.bytes, self.outer)
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write(&self, k: &KernelBuilder) {
        let [count, rows, columns, x_stride, y_stride] = std::array::from_fn(|_| k.parameter(Type::U32));
        let grid = Grid::parameters(k, self.outer);
        let [x_at, y_at] = [0, 1].map(|_| Strides::parameters(k, self.outer));
        let x = Raw::input(k, "x", self.bytes);
        let quad = match self.bytes {
            1 => Type::U32,
            2 => Type::vec2(Scalar::U32),
            _ => Type::vec4(Scalar::U32),
        };
        let y = k.buffer("y", quad, Access::Write);
        let tile = k.workgroup_array(Type::U32, TILE[1] * PITCH);

        let [down, across] = [(rows + (TILE[0] - 1)) / TILE[0], (columns + (TILE[1] - 1)) / TILE[1]];
        let group = k.group_index();
        let (outer, inside) = (group / (down * across), group % (down * across));
        let (first_row, first_column) = (inside % down * TILE[0], inside / down * TILE[1]);
        // A folded dispatch has surplus groups.
        let place = grid.coordinates(outer.min(count - 1));
        let lane = k.local_index();
        // Beyond the edge the last ones are read again.
        let x_start = x_at.at(&place) + (first_row + lane % TILE[0]).min(rows - 1);
        for pass in 0..TILE[0] * TILE[1] / WORKGROUP {
            let column = lane / TILE[0] + pass * (WORKGROUP / TILE[0]);
            let element = x.load(x_start + (first_column + column).min(columns - 1) * x_stride);
            tile.store(column * PITCH + lane % TILE[0], element);
        }
        k.barrier();
        let per_row = TILE[1] / 4;
        let column = lane % per_row * 4;
        for pass in 0..TILE[0] * per_row / WORKGROUP {
            let row = lane / per_row + pass * (WORKGROUP / per_row);
            let inside = outer.lt(count) & (first_row + row).lt(rows) & (first_column + column).lt(columns);
            k.when(inside, || {
                let index = y_at.at(&place) + (first_row + row) * y_stride + first_column + column;
                let four = [0, 1, 2, 3].map(|e| tile.load((column + e) * PITCH + row));
                y.store(index / 4, self.packed(k, four));
            });
        }
    }

    fn samples() -> Vec<Self> {
        [1, 2, 4].map(|bytes| Transpose { bytes, outer: 1 }).into()
    }
}

impl Transpose {
    /// Four elements as they lie in memory.
    fn packed<'k>(&self, k: &'k KernelBuilder, [a, b, c, d]: [Value<'k>; 4]) -> Value<'k> {
        match self.bytes {
            1 => a | (b << 8) | (c << 16) | (d << 24),
            2 => k.vector(&[a | (b << 16), c | (d << 16)]),
            _ => k.vector(&[a, b, c, d]),
        }
    }
}
