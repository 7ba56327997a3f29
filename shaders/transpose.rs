//! Copies into another order of axes, through tiles. Neighbouring invocations read neighbours along the innermost axis
//! of the input. If a workgroup shares a tile, they also write neighbours along the innermost axis of the output.

use super::Family;
use super::elements::Raw;
use super::parameters::{Form, Lengths, Size, Stride, View, parameters};
use crate::shader::{Access, KernelBuilder, Scalar, Type, Value};

/// Invocations of a workgroup that share a tile: the most that every device supports.
const WORKGROUP: u32 = 128;

/// `y[.., i, .., j] = x[.., j, .., i]` for elements of 1, 2 or 4 bytes; the number of columns is a multiple of four.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Transpose {
    pub bytes: u32,
    /// The number of outer axes.
    pub outer: usize,
    pub tile: Tile,
}

/// Where elements change places. Rows are contiguous in the input, columns in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Tile {
    /// In workgroup memory.
    Workgroup {
        /// Rows and columns.
        sides: [u32; 2],
        /// True if the columns of `x` begin at whole words.
        words: bool,
    },
    /// In the registers of each invocation, four rows and four columns: for software devices. Rows come by fours, and
    /// the columns of `x` begin at fours. A workgroup has this many fours of rows, and of columns.
    Invocation { fours: [u32; 2] },
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
}

impl Tile {
    /// Returns a tile in workgroup memory. If the kernel copies words, it has 128 bytes or more of each row and column,
    /// and fills the workgroup memory that every device has. A side that is at least twice as long as the matrix needs
    /// is halved.
    pub fn of_workgroup(bytes: u32, words: bool, [rows, columns]: [usize; 2]) -> Tile {
        let [tile_rows, tile_columns] = match bytes {
            _ if !words => return Tile::Workgroup { sides: [32, 64], words },
            1 => [128, 128],
            2 => [64, 128],
            _ => [64, 64],
        };
        let fitting = |side: u32, length: usize| if length <= side as usize / 2 { side / 2 } else { side };
        Tile::Workgroup { sides: [fitting(tile_rows, rows), fitting(tile_columns, columns)], words }
    }

    /// Returns the tiles of a workgroup of at most `most` invocations, a power of two, which hold one each. A lane's
    /// neighbours have neighbouring rows.
    pub fn of_invocation([rows, columns]: [usize; 2], most: u32) -> Tile {
        let fours = |length: usize, most: u32| (length / 4).next_power_of_two().min(most as usize) as u32;
        let rows = fours(rows, 8);
        Tile::Invocation { fours: [rows, fours(columns, most / rows)] }
    }

    /// Rows and columns that a workgroup copies.
    pub fn sides(self) -> [u32; 2] {
        match self {
            Tile::Workgroup { sides, .. } => sides,
            Tile::Invocation { fours } => fours.map(|fours| 4 * fours),
        }
    }
}

/// A workgroup at work: its part of the input and of the output.
struct Part<'k> {
    k: &'k KernelBuilder,
    /// Whether there is such a part. A folded dispatch has surplus workgroups.
    exists: Value<'k>,
    rows: Value<'k>,
    columns: Value<'k>,
    first_row: Value<'k>,
    first_column: Value<'k>,
    x_start: Value<'k>,
    x_stride: Value<'k>,
    y_start: Value<'k>,
    y_stride: Value<'k>,
}

impl Family for Transpose {
    fn name(&self) -> String {
        format!("transpose({} bytes, {:?}, {} outer axes)", self.bytes, self.tile, self.outer).to_lowercase()
    }

    fn workgroup(&self) -> u32 {
        match self.tile {
            Tile::Workgroup { .. } => WORKGROUP,
            Tile::Invocation { fours: [rows, columns] } => rows * columns,
        }
    }

    fn write(&self, k: &KernelBuilder) {
        let Declared { count, rows, columns, x_stride, y_stride, lengths, x, y } = self.declare(k);
        let [tile_rows, tile_columns] = self.tile.sides();
        let [down, across] = [(rows + (tile_rows - 1)) / tile_rows, (columns + (tile_columns - 1)) / tile_columns];
        let group = k.group_index();
        let (outer, inside) = (group / (down * across), group % (down * across));
        let (first_row, first_column) = (inside % down * tile_rows, inside / down * tile_columns);
        let place = lengths.coordinates(outer.min(count - 1));
        let (x_start, y_start, exists) = (x.at(&place), y.at(&place), outer.lt(count));
        let part = Part { k, exists, rows, columns, first_row, first_column, x_start, x_stride, y_start, y_stride };
        match self.tile {
            Tile::Workgroup { sides, words } => self.write_through_memory(&part, sides, words),
            Tile::Invocation { fours } => self.write_through_registers(&part, fours),
        }
    }

    fn samples() -> Vec<Self> {
        let through_memory = [(1, false), (1, true), (2, false), (2, true), (4, true)];
        let through_memory = through_memory.map(|(bytes, words)| (bytes, Tile::of_workgroup(bytes, words, [1024; 2])));
        let through_registers = [1, 2, 4].map(|bytes| (bytes, Tile::of_invocation([64; 2], 128)));
        let all = through_memory.into_iter().chain(through_registers);
        all.map(|(bytes, tile)| Transpose { bytes, outer: 1, tile }).collect()
    }
}

impl Transpose {
    fn write_through_memory<'k>(&self, part: &Part<'k>, [tile_rows, tile_columns]: [u32; 2], by_words: bool) {
        let &Part { k, exists, rows, columns, first_row, first_column, x_start, x_stride, y_start, y_stride } = part;
        let x = Raw::input(k, "x", self.bytes as usize);
        let per_word = self.per_word();
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
        let lane = k.local_index();
        for pass in 0..row_words * tile_columns / per_word / WORKGROUP {
            let item = lane + pass * WORKGROUP;
            let (row, column) = (item % row_words * per_word, item / row_words * per_word);
            // Beyond the edge the last ones are read again.
            let word = |of: u32| {
                let start = x_start + (first_column + column + of).min(columns - 1) * x_stride;
                if by_words {
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
            let inside = exists & (first_row + row).lt(rows) & (first_column + column).lt(columns);
            k.when(inside, || {
                let index = y_start + (first_row + row) * y_stride + first_column + column;
                let words: Vec<_> =
                    (0..self.bytes).map(|word| tile.load(place(column + word * per_word, row))).collect();
                y.store(index / 4, if let [word] = words[..] { word } else { k.vector(&words) });
            });
        }
    }

    /// Each lane copies four rows and four columns.
    fn write_through_registers(&self, part: &Part<'_>, [row_fours, _]: [u32; 2]) {
        let &Part { k, exists, rows, columns, first_row, first_column, x_start, x_stride, y_start, y_stride } = part;
        let per_word = self.per_word();
        let four = Type { scalar: Scalar::U32, lanes: self.bytes };
        let (x, y) = (k.buffer("x", four, Access::Read), k.buffer("y", four, Access::Write));
        let lane = k.local_index();
        let (row, column) = (first_row + lane % row_fours * 4, first_column + lane / row_fours * 4);
        k.when(exists & row.lt(rows) & column.lt(columns), || {
            let first = x_start + column * x_stride + row;
            let loaded: Vec<_> = (0..4).map(|of| x.load((first + x_stride * of) / 4).lanes()).collect();
            let first = y_start + row * y_stride + column;
            for word in 0..self.bytes {
                // The words of some rows, each of as many columns as there are rows.
                let beside = loaded.chunks(per_word as usize);
                let turned: Vec<_> =
                    beside.map(|of| self.turned(of.iter().map(|lanes| lanes[word as usize]).collect())).collect();
                for of in 0..per_word {
                    let words: Vec<_> = turned.iter().map(|words| words[of as usize]).collect();
                    let stored = if let [word] = words[..] { word } else { k.vector(&words) };
                    y.store((first + y_stride * (word * per_word + of)) / 4, stored);
                }
            }
        });
    }

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
