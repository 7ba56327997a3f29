//! Products by blocks: a workgroup goes through the depth of its block in steps, with two stages of tiles in its memory.
//! While it multiplies from one, it loads the next step into the other.

use super::{Matrix, Problem, add_product};
use crate::dtype::DType;
use crate::kernels::elements::{Elements, Quads};
use crate::shader::{Access, Array, KernelBuilder, Type, Value, Var};

/// The block of a workgroup, and how it is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Block {
    /// Rows and columns.
    pub shape: [u32; 2],
    /// Rows and columns that each invocation computes: multiples of 4.
    pub part: [u32; 2],
    /// The depth of a tile, a multiple of 4.
    pub depth: u32,
    pub a: Reading,
    pub b: Reading,
    /// Whether the depth of the product is a multiple of that of both stages, so that no element is beyond it.
    pub whole: bool,
    /// Whether rows of `y` are multiples of four, and stored by fours.
    pub quads: bool,
}

/// How four elements of an operand are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Reading {
    pub along: Along,
    /// Whether they lie side by side, at a multiple of four.
    pub quads: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Along {
    /// Neighbours along the depth: columns of `a`, rows of `b`.
    Depth,
    /// Neighbours along the other axis: rows of `a`, columns of `b`.
    Other,
}

impl Block {
    /// A block for operands whose rows are contiguous.
    pub const fn new(shape: [u32; 2], part: [u32; 2], depth: u32) -> Self {
        let a = Reading { along: Along::Depth, quads: true };
        Block { shape, part, depth, a, b: Reading { along: Along::Other, quads: true }, whole: true, quads: true }
    }

    /// Blocks that are used for a dtype.
    pub fn of(dtype: DType) -> Vec<Block> {
        match dtype.size_in_bytes() {
            // Products of 64-bit integers are made of so many of 32 bits that no block stays in Intel's registers.
            8 if dtype == DType::I64 => Vec::new(),
            8 => vec![Block::SMALL],
            _ => vec![Block::SMALL, Block::MIDDLE, Block::LARGE],
        }
    }

    pub const SMALL: Block = Block::new([32, 32], [4, 4], 8);
    pub const MIDDLE: Block = Block::new([64, 64], [4, 4], 16);
    pub const LARGE: Block = Block::new([64, 128], [8, 8], 16);
    /// For browsers, which have 16 KiB of workgroup memory.
    pub const LARGE_SHALLOW: Block = Block::new([64, 128], [8, 8], 8);

    pub fn name(self) -> String {
        let [rows, columns] = self.shape;
        let read = |reading: Reading| {
            let along = if reading.along == Along::Depth { "depth" } else { "other" };
            format!("{along}{}", if reading.quads { " x4" } else { "" })
        };
        let (a, b) = (read(self.a), read(self.b));
        let (whole, quads) = (if self.whole { ", whole" } else { "" }, if self.quads { ", x4" } else { "" });
        format!("{rows}x{columns}x{}, a {a}, b {b}{whole}{quads}", self.depth)
    }

    /// Invocations per workgroup.
    pub const fn workgroup(self) -> u32 {
        self.shape[0] / self.part[0] * (self.shape[1] / self.part[1])
    }

}

/// Elements between lines of a tile that are written across, so that they fall into other banks.
const PAD: u32 = 4;

/// The buffer of an operand.
#[derive(Clone, Copy)]
enum Source<'k> {
    Quads(Quads<'k>),
    Single(Elements<'k>),
}

/// An operand on its way to the tiles.
struct Side<'k> {
    k: &'k KernelBuilder,
    source: Source<'k>,
    along: Along,
    /// The length of a tile's line.
    extent: u32,
    /// Its lines in each stage.
    tile_depth: u32,
    depth_stride: Value<'k>,
    /// The depth of the product, unless nothing is beyond it.
    depth: Option<Value<'k>>,
    /// The fours that an invocation loads in each step.
    fours: Vec<Four<'k>>,
    tile: Array<'k>,
}

/// Four elements of a tile.
struct Four<'k> {
    /// Their first place in the tile.
    place: Value<'k>,
    depth: Value<'k>,
    /// Places in the matrix of the first one, or of each of those along the other axis.
    lines: Vec<Value<'k>>,
}

impl<'k> Side<'k> {
    /// `length` is that of the matrix across the depth, `first` where the block begins there.
    fn new(p: &Problem<'k>, block: Block, name: &str, dtype: DType, is_a: bool) -> Self {
        let k = p.k;
        let Reading { along, quads } = if is_a { block.a } else { block.b };
        let source = match quads {
            true => Source::Quads(Quads::input(k, name, dtype)),
            false => Source::Single(Elements::input(k, name, dtype)),
        };
        let Matrix { start, row_stride, column_stride } = if is_a { p.a } else { p.b };
        let (extent, length, first) =
            if is_a { (block.shape[0], p.m, p.first_row) } else { (block.shape[1], p.n, p.first_column) };
        let (stride, depth_stride) = if is_a { (row_stride, column_stride) } else { (column_stride, row_stride) };
        let tile = match along {
            Along::Depth => k.workgroup_array(p.accumulator, 2 * block.depth * (extent + PAD)),
            Along::Other => k.workgroup_array(Type::vec4(p.accumulator.scalar), 2 * block.depth * extent / 4),
        };
        // Rows and columns beyond the edge repeat the last one; they are not stored.
        let line = |place: Value<'k>, last: u32| start + (first + place).min(length - last) * stride;
        let (lane, threads) = (k.local_index(), block.workgroup());
        let fours = (0..extent * block.depth / 4 / threads).map(|pass| match along {
            Along::Depth => {
                let per_line = block.depth / 4;
                let place = lane / per_line + pass * (threads / per_line);
                Four { place, depth: lane % per_line * 4, lines: vec![line(place, 1)] }
            }
            Along::Other => {
                let per_line = extent / 4;
                let place = lane % per_line * 4;
                let lines = match quads {
                    true => vec![line(place, 4)],
                    false => (0..4).map(|e| line(place + e, 1)).collect(),
                };
                Four { place, depth: lane / per_line + pass * (threads / per_line), lines }
            }
        });
        let fours = fours.collect();
        let depth = (!block.whole).then_some(p.depth);
        let tile_depth = block.depth;
        Side { k, source, along, extent, tile_depth, depth_stride, depth, fours, tile }
    }

    /// The elements of this invocation for the tile that begins at a depth.
    fn load(&self, from: Value<'k>) -> Vec<Value<'k>> {
        self.fours.iter().map(|four| self.load_four(four, from + four.depth)).collect()
    }

    fn load_four(&self, four: &Four<'k>, depth: Value<'k>) -> Value<'k> {
        let k = self.k;
        // Within the matrix; what is beyond becomes 0.
        let within = |place: Value<'k>, last: u32| self.depth.map_or(place, |length| place.min(length - last));
        let or_zero = |place: Value<'k>, value: Value<'k>| match self.depth {
            Some(length) => place.lt(length).select(value, 0),
            None => value,
        };
        match (self.source, self.along) {
            (Source::Quads(source), Along::Depth) => {
                or_zero(depth, source.load(k, (four.lines[0] + within(depth, 4)) / 4))
            }
            (Source::Quads(source), Along::Other) => {
                or_zero(depth, source.load(k, (four.lines[0] + within(depth, 1) * self.depth_stride) / 4))
            }
            (Source::Single(source), Along::Depth) => k.vector(&[0, 1, 2, 3].map(|e| {
                let place = depth + e;
                or_zero(place, source.load(four.lines[0] + within(place, 1) * self.depth_stride))
            })),
            (Source::Single(source), Along::Other) => {
                let step = within(depth, 1) * self.depth_stride;
                k.vector(&[0, 1, 2, 3].map(|e| or_zero(depth, source.load(four.lines[e] + step))))
            }
        }
    }

    fn store(&self, stage: u32, elements: &[Value<'k>]) {
        for (four, &value) in self.fours.iter().zip(elements) {
            let line = four.depth + stage * self.tile_depth;
            match self.along {
                Along::Depth => {
                    for e in 0..4 {
                        self.tile.store((line + e) * (self.extent + PAD) + four.place, value.lane(e));
                    }
                }
                Along::Other => self.tile.store(line * (self.extent / 4) + four.place / 4, value),
            }
        }
    }

    /// Four elements of a line of the tile.
    fn four(&self, line: Value<'k>, place: Value<'k>) -> [Value<'k>; 4] {
        match self.along {
            Along::Depth => {
                let first = line * (self.extent + PAD) + place;
                [0, 1, 2, 3].map(|e| self.tile.load(first + e))
            }
            Along::Other => {
                let four = self.tile.load(line * (self.extent / 4) + place / 4);
                [0, 1, 2, 3].map(|e| four.lane(e))
            }
        }
    }
}

/// An invocation's part of the block: fours of rows and of columns, spread over it so that neighbouring lanes read
/// neighbouring elements of the tiles.
struct Part<'k> {
    rows: Vec<Value<'k>>,
    columns: Vec<Value<'k>>,
    /// Four columns each, row by row.
    sums: Vec<Var<'k>>,
}

impl<'k> Part<'k> {
    fn new(p: &Problem<'k>, block: Block) -> Self {
        let k = p.k;
        let [down, across] = [0, 1].map(|axis| block.shape[axis] / block.part[axis]);
        // A subgroup of 32 lanes works on 4 x 8 parts.
        let (lane, subgroup) = (k.local_index() % 32, k.local_index() / 32);
        let (x, y) = (subgroup % (across / 8) * 8 + lane % 8, subgroup / (across / 8) * 4 + lane / 8);
        let spread = |fours: u32, first: Value<'k>, lanes: u32| {
            (0..fours).map(|four| first * 4 + four * lanes * 4).collect::<Vec<_>>()
        };
        let (rows, columns) = (spread(block.part[0] / 4, y, down), spread(block.part[1] / 4, x, across));
        let zero = k.number(p.accumulator, 0).splat(4);
        let sums = (0..rows.len() * 4 * columns.len()).map(|_| k.var(zero)).collect();
        Part { rows, columns, sums }
    }

    /// Adds the products of a line of each tile.
    fn add_products(&self, k: &'k KernelBuilder, [a, b]: [&Side<'k>; 2], line: Value<'k>) {
        let columns: Vec<_> = self.columns.iter().map(|&place| k.vector(&b.four(line, place))).collect();
        let rows = self.rows.iter().flat_map(|&place| a.four(line, place));
        for (row, sums) in rows.zip(self.sums.chunks(columns.len())) {
            for (sum, &column) in sums.iter().zip(&columns) {
                sum.set(add_product(sum.get(), row.splat(4), column));
            }
        }
    }
}

pub fn write<'k>(p: &Problem<'k>, dtype: DType, block: Block) {
    let k = p.k;
    let sides = [Side::new(p, block, "a", dtype, true), Side::new(p, block, "b", dtype, false)];
    let y_type = if block.quads { Type::vec4(p.accumulator.scalar) } else { p.accumulator };
    let y = k.buffer("y", y_type, Access::Write);
    let part = Part::new(p, block);
    let load = |from: Value<'k>| {
        // The last steps load a tile that is not used.
        let from = if block.whole { from.min(p.depth - block.depth) } else { from };
        sides.each_ref().map(|side| side.load(from))
    };
    let store = |stage, elements: &[Vec<Value<'k>>; 2]| {
        sides.iter().zip(elements).for_each(|(side, elements)| side.store(stage, elements));
    };
    store(0, &load(k.u32(0)));
    k.barrier();
    k.for_step(0, p.depth, 2 * block.depth, |from| {
        for stage in 0..2 {
            let next = load(from + (stage + 1) * block.depth);
            k.for_unrolled(block.depth, |depth| {
                part.add_products(k, sides.each_ref(), depth + stage * block.depth);
            });
            store(1 - stage, &next);
            k.barrier();
        }
    });
    let rows = part.rows.iter().flat_map(|&four| (0..4).map(move |e| four + e));
    for (row, sums) in rows.zip(part.sums.chunks(part.columns.len())) {
        let row = p.first_row + row;
        for (&column, sum) in part.columns.iter().zip(sums) {
            let column = p.first_column + column;
            let inside = row.lt(p.m) & p.real;
            if block.quads {
                k.when(inside & column.lt(p.n), || y.store(p.place(row, column) / 4, sum.get()));
                continue;
            }
            for e in 0..4 {
                let column = column + e;
                k.when(inside & column.lt(p.n), || y.store(p.place(row, column), sum.get().lane(e)));
            }
        }
    }
}
