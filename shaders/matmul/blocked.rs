//! Products by blocks. A workgroup goes through the depth of its block in steps, with two stages of tiles in workgroup
//! memory. While it multiplies from one stage, it loads the next step into the other.

use super::windows::{Line, Lines};
use super::{Matmul, Output, ProductBlock};
use crate::base::dtype::DType;
use crate::kernels::encoding::{Encoding, Loader, Width};
use crate::shader::{Array, Dialect, KernelBuilder, Type, Value, Var};
use crate::tuning;

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
    /// True if the product's depth is a multiple of both stages' depth, so that no load is beyond it.
    pub whole: bool,
    /// True if the row length of `y` is a multiple of four, and elements are stored in quads.
    pub quads: bool,
}

impl From<tuning::Block> for Block {
    fn from(tuning::Block { shape, part, depth }: tuning::Block) -> Self {
        Block::new(shape, part, depth)
    }
}

/// How an operand is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Reading {
    /// By contiguous quads, at multiples of four.
    Quads(Along),
    /// One by one. Neighbouring lanes read neighbours.
    Single(Along),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Along {
    /// Neighbours along the depth: columns of `a`, rows of `b`.
    Depth,
    /// Neighbours along the other axis: rows of `a`, columns of `b`.
    Other,
}

impl Block {
    /// Returns a block for operands whose rows are contiguous.
    pub const fn new(shape: [u32; 2], part: [u32; 2], depth: u32) -> Self {
        let (a, b) = (Reading::Quads(Along::Depth), Reading::Quads(Along::Other));
        Block { shape, part, depth, a, b, whole: true, quads: true }
    }

    /// Returns the blocks that are used for a dtype on every GPU: Intel's, as Intel's GPUs have the fewest registers.
    pub fn of(dtype: DType) -> Vec<Block> {
        let blocks = tuning::entry("intel").map_or(&[][..], |entry| entry.tuning.matmul.blocks);
        let blocks = match dtype {
            // A product of 64-bit integers takes several 32-bit products. No block of them stays in Intel's registers.
            DType::I64 => &[],
            DType::F64 => &blocks[blocks.len().saturating_sub(1)..],
            _ => blocks,
        };
        blocks.iter().copied().map(Block::from).collect()
    }

    pub fn name(self) -> String {
        let [rows, columns] = self.shape;
        let read = |reading| match reading {
            Reading::Quads(Along::Depth) => "depth x4",
            Reading::Quads(Along::Other) => "other x4",
            Reading::Single(Along::Depth) => "depth",
            Reading::Single(Along::Other) => "other",
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

/// An operand, and the tiles that it is loaded to.
struct StagedSide<'k> {
    k: &'k KernelBuilder,
    source: Source<'k>,
    /// Where the matrix begins, its lines, how many there are, and where the block begins.
    start: Value<'k>,
    lines: Lines<'k>,
    length: Value<'k>,
    first: Value<'k>,
    /// If lines are windows that are read by fours, those that this invocation loads from. They are found once, as that
    /// takes divisions.
    windows: Vec<Line<'k>>,
    /// The depth of the product, if loads may be beyond it.
    depth: Option<Value<'k>>,
    tile: StagedTile<'k>,
    threads: u32,
}

/// The buffer of an operand.
enum Source<'k> {
    Quads(Loader<'k>, Along),
    Single(Loader<'k>, Along),
}

/// Both stages of an operand's tile, with the depth as the outer axis.
struct StagedTile<'k> {
    array: Array<'k>,
    /// True if its elements are vectors of four.
    quads: bool,
    extent: u32,
    depth: u32,
}

impl<'k> StagedTile<'k> {
    fn new(k: &'k KernelBuilder, number: Type, extent: u32, depth: u32, reading: Reading) -> Self {
        let quads = reading == Reading::Quads(Along::Other);
        let array = match quads {
            true => k.workgroup_array(Type::vec4(number.scalar), 2 * depth * extent / 4),
            false => k.workgroup_array(number, 2 * depth * (extent + tuning::Block::PAD)),
        };
        StagedTile { array, quads, extent, depth }
    }

    fn store(&self, line: Value<'k>, place: Value<'k>, value: Value<'k>) {
        match self.quads {
            true => self.array.store(line * (self.extent / 4) + place / 4, value),
            false => self.array.store(line * (self.extent + tuning::Block::PAD) + place, value),
        }
    }

    /// Loads four elements of a line.
    fn four(&self, line: Value<'k>, place: Value<'k>) -> [Value<'k>; 4] {
        if self.quads {
            let four = self.array.load(line * (self.extent / 4) + place / 4);
            return [0, 1, 2, 3].map(|e| four.lane(e));
        }
        let first = line * (self.extent + tuning::Block::PAD) + place;
        [0, 1, 2, 3].map(|e| self.array.load(first + e))
    }
}

impl<'k> StagedSide<'k> {
    fn a(p: &ProductBlock<'k>, block: Block, encoding: Encoding) -> Self {
        let lines = (p.a.start, p.a_lines());
        let mut a = StagedSide::new(p, block, ("a", encoding, block.a), block.shape[0], lines, [p.m, p.first_row]);
        if p.windows.is_some() {
            if !matches!(a.source, Source::Quads(_, Along::Depth)) {
                p.k.fail("windows are read along the channels, by fours");
            }
            let place = |turn| a.place(p.k.u32(turn), Along::Depth, 4)[0];
            let line = |turn| a.lines.line((a.first + place(turn)).min(a.length - 1));
            a.windows = (0..a.turns(4)).map(line).collect();
        }
        a
    }

    fn b(p: &ProductBlock<'k>, block: Block, encoding: Encoding) -> Self {
        let lines = (p.b.start, p.b_lines());
        StagedSide::new(p, block, ("b", encoding, block.b), block.shape[1], lines, [p.n, p.first_column])
    }

    fn new(
        p: &ProductBlock<'k>,
        block: Block,
        (name, encoding, reading): (&str, Encoding, Reading),
        extent: u32,
        (start, lines): (Value<'k>, Lines<'k>),
        [length, first]: [Value<'k>; 2],
    ) -> Self {
        let tile = StagedTile::new(p.k, encoding.factor_type(), extent, block.depth, reading);
        let source = match reading {
            Reading::Quads(along) => Source::Quads(p.loader(encoding, name, Width::Four), along),
            Reading::Single(along) => Source::Single(p.loader(encoding, name, Width::One), along),
        };
        let depth = (!block.whole).then_some(p.depth);
        let threads = block.workgroup();
        StagedSide { k: p.k, source, start, lines, length, first, windows: Vec::new(), depth, tile, threads }
    }

    /// Returns the index of the first of some elements of the matrix. Beyond the edge, the last elements are repeated,
    /// and they are not stored in the product.
    fn index(&self, place: Value<'k>, depth: Value<'k>, last: [u32; 2]) -> Value<'k> {
        let place = (self.first + place).min(self.length - last[0]);
        let depth = self.depth.map_or(depth, |end| depth.min(end - last[1]));
        let (Source::Quads(source, _) | Source::Single(source, _)) = &self.source;
        let in_blocks = source.place_in_blocks(place, self.start + depth);
        in_blocks.unwrap_or_else(|| self.lines.index(&self.lines.line(place), &self.lines.depth(depth)).0)
    }

    /// Returns an element or four, or 0 beyond the depth.
    fn or_zero(&self, depth: Value<'k>, value: Value<'k>) -> Value<'k> {
        self.depth.map_or(value, |end| depth.lt(end).select(value, 0))
    }

    /// Returns the number of loads of each invocation for a tile.
    fn turns(&self, elements: u32) -> u32 {
        let count = self.tile.extent * self.tile.depth / elements;
        if !count.is_multiple_of(self.threads) {
            self.k.fail("a tile's elements do not go round");
        }
        count / self.threads
    }

    /// Returns the place and depth in the tile of the first of `elements` neighbours along an axis.
    fn place(&self, turn: Value<'k>, along: Along, elements: u32) -> [Value<'k>; 2] {
        let number = self.k.local_index() + turn * self.threads;
        match along {
            Along::Depth => {
                let per_place = self.tile.depth / elements;
                [number / per_place, number % per_place * elements]
            }
            Along::Other => {
                let per_line = self.tile.extent / elements;
                [number % per_line * elements, number / per_line]
            }
        }
    }

    /// Loads this invocation's quads for the tile that begins at a depth. If elements are read one by one,
    /// [`store`](Self::store) loads them.
    fn load(&self, from: Value<'k>) -> Vec<Value<'k>> {
        let Source::Quads(source, along) = &self.source else { return Vec::new() };
        if !self.windows.is_empty() {
            return self.load_windows(source, from);
        }
        let four = |turn| {
            let [place, depth] = self.place(self.k.u32(turn), *along, 4);
            let last = if *along == Along::Depth { [1, 4] } else { [4, 1] };
            self.or_zero(from + depth, source.load(self.index(place, from + depth, last) / 4))
        };
        (0..self.turns(4)).map(four).collect()
    }

    /// Loads this invocation's quads of windows, from a depth on.
    fn load_windows(&self, source: &Loader<'k>, from: Value<'k>) -> Vec<Value<'k>> {
        let [_, depth] = self.place(self.k.u32(0), Along::Depth, 4);
        let depth = from + depth;
        let place = self.lines.depth(self.depth.map_or(depth, |end| depth.min(end - 4)));
        let load = |line: &Line<'k>| {
            let (index, is_inside) = self.lines.index(line, &place);
            let four = source.load(index / 4);
            self.or_zero(depth, is_inside.map_or(four, |is_inside| is_inside.select(four, 0)))
        };
        self.windows.iter().map(load).collect()
    }

    /// Fills a stage of the tile with the loaded quads, or with elements one by one.
    fn store(&self, stage: u32, from: Value<'k>, loaded: &[Value<'k>]) {
        let first_line = stage * self.tile.depth;
        match &self.source {
            Source::Quads(_, along) => {
                for (turn, &value) in (0..).zip(loaded) {
                    let [place, depth] = self.place(self.k.u32(turn), *along, 4);
                    match along {
                        Along::Depth => (0..4).for_each(|e| {
                            self.tile.store(depth + (first_line + e), place, value.lane(e));
                        }),
                        Along::Other => self.tile.store(depth + first_line, place, value),
                    }
                }
            }
            Source::Single(source, along) => each_turn(self.k, self.turns(1), |turn| {
                let [place, depth] = self.place(turn, *along, 1);
                let value = source.load(self.index(place, from + depth, [1, 1]));
                self.tile.store(depth + first_line, place, self.or_zero(from + depth, value));
            }),
        }
    }
}

/// Runs a short loop, unrolled if the target's registers allow.
fn each_turn<'k>(k: &'k KernelBuilder, turns: u32, body: impl Fn(Value<'k>)) {
    if k.target().dialect == Dialect::OpenCl {
        // Unrolled, its numbers would not stay in Intel's registers.
        k.for_rolled(0, turns, 1, body);
    } else if k.target().wgsl {
        // WGSL cannot ask for an unrolled loop.
        (0..turns).for_each(|turn| body(k.u32(turn)));
    } else {
        k.for_unrolled(turns, body);
    }
}

/// An invocation's part of the block: groups of four rows and four columns. They are spread over the block, so that
/// neighbouring lanes read neighbouring elements of the tiles.
struct Part<'k> {
    rows: Vec<Value<'k>>,
    columns: Vec<Value<'k>>,
    /// Vectors of four columns each, row by row.
    sums: Vec<Var<'k>>,
}

impl<'k> Part<'k> {
    fn new(p: &ProductBlock<'k>, block: Block) -> Self {
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
    fn add_products(&self, p: &ProductBlock<'k>, [a, b]: [&StagedTile<'k>; 2], line: Value<'k>) {
        let columns: Vec<_> = self.columns.iter().map(|&place| p.k.vector(&b.four(line, place))).collect();
        let rows = self.rows.iter().flat_map(|&place| a.four(line, place));
        for (row, sums) in rows.zip(self.sums.chunks(columns.len())) {
            for (sum, &column) in sums.iter().zip(&columns) {
                sum.set(p.add_product(sum.get(), row.splat(4), column));
            }
        }
    }
}

pub fn write<'k>(p: &ProductBlock<'k>, config: &Matmul, block: Block) {
    let k = p.k;
    let sides = [StagedSide::a(p, block, config.a), StagedSide::b(p, block, config.b)];
    let y = Output::new(p, config);
    let part = Part::new(p, block);
    let zero = k.u32(0);
    for side in &sides {
        side.store(0, zero, &side.load(zero));
    }
    k.barrier();
    k.for_step(0, p.depth, 2 * block.depth, |from| {
        for stage in 0..2 {
            let next = from + (stage + 1) * block.depth;
            // The last step loads a tile that is not used.
            let next = if block.whole { next.min(p.depth - block.depth) } else { next };
            let loaded = sides.each_ref().map(|side| side.load(next));
            each_turn(k, block.depth, |depth| {
                part.add_products(p, sides.each_ref().map(|side| &side.tile), depth + stage * block.depth);
            });
            for (side, loaded) in sides.iter().zip(&loaded) {
                side.store(1 - stage, next, loaded);
            }
            k.barrier();
        }
    });
    let rows = part.rows.iter().flat_map(|&four| (0..4).map(move |e| four + e));
    let firsts = || (0..4).step_by(y.together as usize);
    let fours: Vec<_> = part.columns.iter().map(|&column| p.first_column + column).collect();
    let columns: Vec<Vec<_>> =
        fours.iter().map(|&four| firsts().map(|first| y.columns(p, four + first)).collect()).collect();
    for (row, sums) in rows.zip(part.sums.chunks(fours.len())) {
        let row = p.first_row + row;
        let place = |four: Value<'k>| move |e| [row, four + e];
        // All loads of a row are in flight at once.
        let beside: Vec<Vec<_>> = (fours.iter().zip(&columns))
            .map(|(&four, columns)| {
                firsts().zip(columns).map(|(first, columns)| y.load(p, columns, place(four + first))).collect()
            })
            .collect();
        for ((&four, beside), sum) in fours.iter().zip(&beside).zip(sums) {
            y.store_four(p, sum.get(), beside, place(four));
        }
    }
}
