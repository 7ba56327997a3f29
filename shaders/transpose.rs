//! Copies into another order of axes, through tiles in workgroup memory. Neighbouring invocations read neighbours along
//! the innermost axis of the input, and write neighbours along the innermost axis of the output.

use super::Family;
use super::elements::Raw;
use super::parameters::{Form, Lengths, Size, Stride, View, parameters};
use crate::shader::{Access, KernelBuilder, Scalar, Type, Value};

/// Invocations per workgroup: the most that every device supports.
const WORKGROUP: u32 = 128;

/// `y[.., i, .., j] = x[.., j, .., i]` for elements of 1, 2 or 4 bytes; the number of columns is a multiple of four.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Transpose {
    pub bytes: u32,
    /// The number of outer axes.
    pub outer: usize,
    /// True if the columns of `x` begin at whole words.
    pub words: bool,
    /// Rows and columns of a tile.
    pub tile: [u32; 2],
}

parameters! {
    config: Transpose;
    host: Parameters;
    device: Declared;
    /// The number of places along the outer axes.
    count: Size,
    rows: Size,
    columns: Size,
    /// The stride of a column in `x`.
    x_stride: Stride,
    /// The stride of a row in `y`.
    y_stride: Size,
    /// The lengths of the outer axes.
    lengths: Lengths = Lengths(config.outer),
    x: View = View(config.outer),
    y: View = View(config.outer),
}

impl Transpose {
    /// Elements in a word.
    fn per_word(&self) -> u32 {
        4 / self.bytes
    }

    /// Returns the rows and columns of a tile. Rows are contiguous in the input, columns in the output. If the kernel
    /// copies words, a tile has 128 bytes or more of each, and fills the workgroup memory that every device has. A side
    /// that is at least twice as long as the matrix needs is halved.
    pub fn tile(bytes: u32, words: bool, [rows, columns]: [usize; 2]) -> [u32; 2] {
        let [tile_rows, tile_columns] = match bytes {
            _ if !words => return [32, 64],
            1 => [128, 128],
            2 => [64, 128],
            _ => [64, 64],
        };
        let fitting = |side: u32, length: usize| if length <= side as usize / 2 { side / 2 } else { side };
        [fitting(tile_rows, rows), fitting(tile_columns, columns)]
    }
}

impl Family for Transpose {
    fn name(&self) -> String {
        let by = if self.words { "words" } else { "elements" };
        format!("transpose({} bytes by {by}, {:?}, {} outer axes)", self.bytes, self.tile, self.outer)
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let Declared { count, rows, columns, x_stride, y_stride, lengths, x: x_at, y: y_at } = self.declare(k);
        let x = Raw::input(k, "x", self.bytes as usize);
        let per_word = self.per_word();
        let [tile_rows, tile_columns] = self.tile;
        let y = k.buffer("y", Type { scalar: Scalar::U32, lanes: self.bytes }, Access::Write);
        // Its words hold elements that are neighbours in the output.
        let tile = k.workgroup_array(Type::U32, tile_columns / per_word * tile_rows);
        let (row_words, row_quads) = (tile_rows / per_word, tile_columns / 4);
        // Neighbours that store use different banks, and so do neighbours that load. For this, the rows of a word lie
        // apart, and their order changes every four columns.
        let place = |column: Value<'k>, row: Value<'k>| {
            let place = row % per_word * row_words + row / per_word;
            column / per_word * tile_rows + (place ^ (column / 4 * (32 / row_quads)))
        };
        let [down, across] = [(rows + (tile_rows - 1)) / tile_rows, (columns + (tile_columns - 1)) / tile_columns];
        let group = k.group_index();
        let (outer, inside) = (group / (down * across), group % (down * across));
        let (first_row, first_column) = (inside % down * tile_rows, inside / down * tile_columns);
        // A folded dispatch has surplus workgroups.
        let outer_place = lengths.coordinates(outer.min(count - 1));
        let lane = k.local_index();
        let x_start = x_at.at(&outer_place);
        for pass in 0..row_words * tile_columns / per_word / WORKGROUP {
            let item = lane + pass * WORKGROUP;
            let (row, column) = (item % row_words * per_word, item / row_words * per_word);
            // Beyond the edge the last ones are read again.
            let word = |of: u32| {
                let start = x_start + (first_column + column + of).min(columns - 1) * x_stride;
                if self.words {
                    return x.word(start + (first_row + row).min(rows - 1));
                }
                let elements = (0..per_word).map(|e| (x.load(start + (first_row + row + e).min(rows - 1)), e));
                elements.map(|(x, e)| x << (8 * self.bytes * e)).reduce(|a, b| a | b).unwrap_or(k.u32(0))
            };
            let words: Vec<_> = (0..per_word).map(word).collect();
            for (of, word) in (0..).zip(self.turned(words)) {
                tile.store(place(column, row + of), word);
            }
        }
        k.barrier();
        let column = lane % row_quads * 4;
        for pass in 0..tile_rows * row_quads / WORKGROUP {
            let row = lane / row_quads + pass * (WORKGROUP / row_quads);
            let inside = outer.lt(count) & (first_row + row).lt(rows) & (first_column + column).lt(columns);
            k.when(inside, || {
                let index = y_at.at(&outer_place) + (first_row + row) * y_stride + first_column + column;
                let words: Vec<_> =
                    (0..self.bytes).map(|word| tile.load(place(column + word * per_word, row))).collect();
                y.store(index / 4, if let [word] = words[..] { word } else { k.vector(&words) });
            });
        }
    }

    fn samples() -> Vec<Self> {
        [(1, false), (1, true), (2, false), (2, true), (4, true)]
            .map(|(bytes, words)| Transpose { bytes, outer: 1, words, tile: Transpose::tile(bytes, words, [1024; 2]) })
            .into()
    }
}

impl Transpose {
    /// Transposes as many words as a word has elements. The first result has the first elements of all words.
    fn turned<'k>(&self, words: Vec<Value<'k>>) -> Vec<Value<'k>> {
        if words.len() == 1 {
            return words;
        }
        let bits = 8 * self.bytes;
        let mask = (1 << bits) - 1;
        let of = |place: u32| {
            let elements = (0..).zip(&words).map(|(to, &word)| ((word >> (bits * place)) & mask) << (bits * to));
            elements.reduce(|a, b| a | b)
        };
        (0..self.per_word()).filter_map(of).collect()
    }
}
