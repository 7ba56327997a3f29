//! Products on matrix units: a workgroup goes through the depth of its block in steps. Tiles of both operands lie in
//! workgroup memory; while subgroups multiply them, the next ones are loaded to registers. The sums go out by way of
//! workgroup memory, where lanes find neighbours to add up, round and store together.

use super::exit::Exit;
use super::fragments;
use super::{Along, Matmul, Matrix, Problem};
use crate::dtype::DType;
use crate::shader::{
    Access, Array, CooperativeMatrix, KernelBuilder, MatrixLayout, MatrixRole, MatrixType, MatrixVar, Scalar, Type,
    Value,
};
use crate::tuning::{self, UnitBlock};

/// How the operands lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct UnitLayout {
    /// The size of a unit's product.
    pub unit: [u32; 3],
    /// The axes along which operands are read, 16 bytes at a time.
    pub a: Along,
    pub b: Along,
    /// Whether the depth of the product is a multiple of the tile's, so that no element is beyond it.
    pub whole: bool,
}

pub(super) const LANES: u32 = UnitBlock::LANES;

/// Bytes that an invocation loads and stores at a time.
pub(super) const VECTOR: u32 = 16;

impl UnitBlock {
    /// Those that some GPU uses.
    pub(crate) fn all() -> Vec<UnitBlock> {
        let candidates = tuning::ENTRIES.iter().flat_map(|entry| entry.tuning.units.candidates);
        let mut all = Vec::new();
        for candidate in candidates {
            if !all.contains(&candidate.unit_block) {
                all.push(candidate.unit_block);
            }
        }
        all
    }

    pub(crate) fn name(self) -> String {
        let UnitBlock { shape: [rows, columns], part: [part_rows, part_columns], depth, slices, fragments } = self;
        let fragments = if fragments { " fragments" } else { "" };
        format!("{rows}x{columns}x{depth}/{part_rows}x{part_columns}x{slices}{fragments}")
    }

    /// Bytes of workgroup memory: for the tiles, and later for the sums.
    pub(crate) fn memory(self, dtype: DType, layout: UnitLayout) -> u32 {
        if self.fragments {
            return VECTOR * fragments::vectors(self);
        }
        let tiles: u32 = self.tiles(dtype, layout).into_iter().map(Tile::vectors).sum();
        let strips = self.parts() * self.slices * self.strip(layout.unit).vectors();
        VECTOR * strips.max(tiles)
    }

    /// The tiles of both operands.
    fn tiles(self, dtype: DType, layout: UnitLayout) -> [Tile; 2] {
        let bytes = dtype.size_in_bytes() as u32;
        [(layout.a, self.shape[0]), (layout.b, self.shape[1])].map(|(along, extent)| match along {
            Along::Depth => Tile { lines: extent, line: self.depth / VECTOR },
            Along::Other => Tile { lines: self.depth / bytes, line: extent * bytes / VECTOR },
        })
    }

    /// A subgroup's sums on their way out: a row of units.
    fn strip(self, unit: [u32; 3]) -> Tile {
        Tile { lines: unit[0], line: self.part[1] / 4 }
    }
}

impl UnitLayout {
    /// Every layout for each dtype, with the sizes of units that GPUs have, and two with those that are chosen where kernels
    /// may choose.
    pub fn samples() -> Vec<(DType, UnitLayout)> {
        let mut samples = Vec::new();
        for (dtype, depth) in [(DType::F16, 16), (DType::BF16, 16), (DType::I8, 32), (DType::U8, 32)] {
            let sizes = (0..8).map(|bits| ([16, 16, depth], bits)).chain([([16, 32, depth], 0), ([16, 32, depth], 7)]);
            samples.extend(sizes.map(|(unit, bits)| {
                let along = |bit| if bits & bit == 0 { Along::Depth } else { Along::Other };
                (dtype, UnitLayout { unit, a: along(1), b: along(2), whole: bits & 4 == 0 })
            }));
        }
        samples
    }

    /// Whether a block's kernel is there for operands that lie so.
    pub fn suits(self, block: UnitBlock, dtype: DType) -> bool {
        let UnitLayout { unit, a, whole, .. } = self;
        !block.fragments || (unit == [16; 3] && a == Along::Depth && whole && dtype.size_in_bytes() == 2)
    }

    pub fn name(self) -> String {
        let read = |along| if along == Along::Depth { "depth" } else { "other" };
        let whole = if self.whole { ", whole" } else { "" };
        let [m, n, k] = self.unit;
        format!("by {m}x{n}x{k}, a {}, b {}{whole}", read(self.a), read(self.b))
    }
}

/// The tile of an operand: lines of vectors, with a gap of one between lines, so that they fall into different banks.
#[derive(Clone, Copy)]
struct Tile {
    lines: u32,
    /// Vectors in a line.
    line: u32,
}

impl Tile {
    /// The distance between lines.
    fn pitch(self) -> u32 {
        self.line + 1
    }

    fn vectors(self) -> u32 {
        self.lines * self.pitch()
    }
}

/// An operand on its way to its tile.
struct Side<'k> {
    k: &'k KernelBuilder,
    buffer: Array<'k>,
    /// The memory of both tiles, and where this one begins.
    memory: Array<'k>,
    base: u32,
    tile: Tile,
    /// Where the subgroup's slice of it begins.
    slice: Value<'k>,
    along: Along,
    ty: MatrixType,
    /// Elements in a vector.
    per_vector: u32,
    threads: u32,
    /// Where the matrix begins, its length and its strides across and along the depth, and where the block begins.
    start: Value<'k>,
    length: Value<'k>,
    stride: Value<'k>,
    depth_stride: Value<'k>,
    first: Value<'k>,
    /// The depth of the product, unless nothing is beyond it.
    depth: Option<Value<'k>>,
}

impl<'k> Side<'k> {
    /// The vector that begins at a place across the depth and at a depth. What is beyond the edge repeats the last one,
    /// and is not stored in the product; beyond the depth there are zeros.
    fn vector(&self, place: Value<'k>, depth: Value<'k>) -> Value<'k> {
        let last = match self.along {
            Along::Depth => [1, self.per_vector],
            Along::Other => [self.per_vector, 1],
        };
        let place = (self.first + place).min(self.length - last[0]);
        let within = self.depth.map_or(depth, |end| depth.min(end - last[1]));
        let vector =
            self.buffer.load((self.start + place * self.stride + within * self.depth_stride) / self.per_vector);
        self.depth.map_or(vector, |end| depth.lt(end).select(vector, 0))
    }

    /// The line of the tile, and the vector in it, that this invocation loads.
    fn place(&self, turn: u32) -> [Value<'k>; 2] {
        let lane = self.k.local_index();
        [lane / self.tile.line + turn * (self.threads / self.tile.line), lane % self.tile.line]
    }

    /// Loads this invocation's vectors of the tile that begins at a depth.
    fn load(&self, from: Value<'k>) -> Vec<Value<'k>> {
        let turns = self.tile.lines * self.tile.line / self.threads;
        let load = |turn| {
            let [line, vector] = self.place(turn);
            let inside = vector * self.per_vector;
            match self.along {
                Along::Depth => self.vector(line, from + inside),
                Along::Other => self.vector(inside, from + line),
            }
        };
        (0..turns).map(load).collect()
    }

    fn store(&self, loaded: &[Value<'k>]) {
        for (turn, &value) in (0..).zip(loaded) {
            let [line, vector] = self.place(turn);
            self.memory.store(line * self.tile.pitch() + vector + self.base, value);
        }
    }

    /// The matrix for a unit, at a place across the depth and at a depth of the slice.
    fn unit(&self, place: Value<'k>, depth: u32) -> CooperativeMatrix<'k> {
        let pitch = self.tile.pitch();
        let index = match self.along {
            Along::Depth => place * pitch + depth / self.per_vector,
            Along::Other => place / self.per_vector + depth * pitch,
        };
        // Lines are rows of `a` along the depth, and of `b` along the other axis.
        let rows = (self.ty.role == MatrixRole::A) == (self.along == Along::Depth);
        let layout = if rows { MatrixLayout::Rows } else { MatrixLayout::Columns };
        self.memory.load_matrix(self.slice + index, self.k.u32(pitch), layout, self.ty)
    }
}

/// A workgroup at work.
struct Work<'k> {
    block: UnitBlock,
    unit: [u32; 3],
    /// The depth of the tiles in elements.
    depth: u32,
    sides: [Side<'k>; 2],
    memory: Array<'k>,
    /// The subgroup's number among those of its slice, and that of its slice.
    number: Value<'k>,
    slice: Value<'k>,
    /// Where the subgroup's part of the block begins.
    row: Value<'k>,
    column: Value<'k>,
    sums: Vec<MatrixVar<'k>>,
}

impl<'k> Work<'k> {
    fn new(p: &Problem<'k>, dtype: DType, block: UnitBlock, layout: UnitLayout) -> Self {
        let k = p.k;
        let bytes = dtype.size_in_bytes() as u32;
        let (depth, per_vector) = (block.depth / bytes, VECTOR / bytes);
        let tiles = block.tiles(dtype, layout);
        let buffers = ["a", "b"].map(|name| k.buffer(name, Type::vec4(Scalar::U32), Access::Read));
        let memory = k.workgroup_array(Type::vec4(Scalar::U32), block.memory(dtype, layout) / VECTOR);
        let subgroup = k.local_index() / LANES;
        let (number, slice) = (subgroup % block.parts(), subgroup / block.parts());
        let [m, n, unit_depth] = layout.unit;
        let side = |i: usize,
                    along,
                    matrix: Matrix<'k>,
                    [stride, depth_stride]: [Value<'k>; 2],
                    [length, first]: [Value<'k>; 2]| {
            let (role, rows, columns) = [(MatrixRole::A, m, unit_depth), (MatrixRole::B, unit_depth, n)][i];
            let base = if i == 0 { 0 } else { tiles[0].vectors() };
            let in_slice = depth / block.slices * if along == Along::Depth { 1 } else { tiles[i].pitch() * per_vector };
            Side {
                k,
                buffer: buffers[i],
                memory,
                base,
                tile: tiles[i],
                slice: slice * (in_slice / per_vector) + base,
                along,
                ty: MatrixType { dtype, rows, columns, role },
                per_vector,
                threads: block.invocations(),
                start: matrix.start,
                length,
                stride,
                depth_stride,
                first,
                depth: (!layout.whole).then_some(p.depth),
            }
        };
        let (a, b) = (p.a, p.b);
        let sides = [
            side(0, layout.a, a, [a.row_stride, a.column_stride], [p.m, p.first_row]),
            side(1, layout.b, b, [b.column_stride, b.row_stride], [p.n, p.first_column]),
        ];
        let down = block.shape[0] / block.part[0];
        let (row, column) = (number % down * block.part[0], number / down * block.part[1]);
        let ty = MatrixType { dtype: dtype.widened(), rows: m, columns: n, role: MatrixRole::C };
        let sums = (0..block.part[0] / m * (block.part[1] / n)).map(|_| k.zero_matrix(ty)).collect();
        Work { block, unit: layout.unit, depth, sides, memory, number, slice, row, column, sums }
    }

    /// Adds the products of the tiles.
    fn multiply(&self) {
        let [m, n, step] = self.unit;
        let [a, b] = &self.sides;
        let [rows, columns] = [self.block.part[0] / m, self.block.part[1] / n];
        for depth in (0..self.depth / self.block.slices).step_by(step as usize) {
            let a: Vec<_> = (0..rows).map(|i| a.unit(self.row + i * m, depth)).collect();
            let b: Vec<_> = (0..columns).map(|j| b.unit(self.column + j * n, depth)).collect();
            for (i, &a) in a.iter().enumerate() {
                for j in 0..b.len() {
                    // There and back, so that the operand that was used last is used next.
                    let j = if i % 2 == 0 { j } else { b.len() - 1 - j };
                    let sum = self.sums[i * b.len() + j];
                    sum.set(a.multiply_add(b[j], sum.get()));
                }
            }
        }
    }

    /// Goes through the depth.
    fn add_products(&self, p: &Problem<'k>) {
        let k = p.k;
        for side in &self.sides {
            side.store(&side.load(k.u32(0)));
        }
        k.barrier();
        k.for_step(self.depth, p.depth, self.depth, |from| {
            let loaded = self.sides.each_ref().map(|side| side.load(from));
            self.multiply();
            k.barrier();
            for (side, loaded) in self.sides.iter().zip(&loaded) {
                side.store(loaded);
            }
            k.barrier();
        });
        self.multiply();
    }

    /// Stores the sums, a row of units at a time, by way of strips of workgroup memory.
    fn store(&self, p: &Problem<'k>, config: &Matmul) {
        let k = p.k;
        let exit = Exit::new(p, config);
        let [m, n, _] = self.unit;
        let (columns, pitch) = (self.block.part[1], self.block.strip(self.unit).pitch());
        let lanes_per_line = columns / exit.per_vector;
        // How many lines of a strip a lane has a part of.
        let turns = m * lanes_per_line / LANES / self.block.slices;
        if turns == 0 {
            k.fail("a row of units does not go round");
        }
        let in_line = k.local_index() % lanes_per_line;
        let place = exit.place(p.first_column + self.column + in_line * exit.per_vector);
        for i in 0..self.block.part[0] / m {
            k.barrier();
            for j in 0..columns / n {
                let sum = self.sums[(i * (columns / n) + j) as usize].get();
                self.memory.store_matrix(self.strip(self.slice) + j * n / 4, k.u32(pitch), MatrixLayout::Rows, sum);
            }
            k.barrier();
            let first_row = p.first_row + self.row + i * m;
            let store = |turn: Value<'k>| {
                let turn = turn * self.block.slices + self.slice;
                let line = k.local_index() % LANES / lanes_per_line + turn * (LANES / lanes_per_line);
                exit.store(first_row + line, &place, || {
                    let first = line * pitch + in_line * (exit.per_vector / 4);
                    (0..exit.per_vector / 4).map(|e| self.sum(p, first + e)).collect()
                });
            };
            if exit.is_finished() {
                k.for_rolled(0, turns, store);
            } else {
                (0..turns).for_each(|turn| store(k.u32(turn)));
            }
        }
    }

    /// Four sums of all slices, at a place in their strips.
    fn sum(&self, p: &Problem<'k>, place: Value<'k>) -> Value<'k> {
        let wide = Type::vec4(p.accumulator.scalar);
        let part = |slice| self.memory.load(self.strip(p.k.u32(slice)) + place).bitcast(wide);
        (1..self.block.slices).fold(part(0), |sum, slice| sum + part(slice))
    }

    /// Where a slice's strip of this part begins.
    fn strip(&self, slice: Value<'k>) -> Value<'k> {
        (slice * self.block.parts() + self.number) * self.block.strip(self.unit).vectors()
    }
}

pub fn write(p: &Problem, config: &Matmul, block: UnitBlock, layout: UnitLayout) {
    let work = Work::new(p, config.dtype, block, layout);
    work.add_products(p);
    work.store(p, config);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{Family, KernelConfig, matmul::Matmul};
    use crate::shader::Target;

    #[test]
    fn blocks_take_the_memory_that_they_say() {
        let mut count = 0;
        for config in Matmul::samples() {
            let super::super::Tile::MatrixUnits(block, layout) = config.tile else { continue };
            let finished = config.epilogue.is_some();
            let (dtype, kernel) = (config.dtype, KernelConfig::from(config).generate(Target::VULKAN).unwrap());
            assert_eq!(kernel.workgroup_memory, block.memory(dtype, layout), "{}", kernel.name);
            assert!(kernel.workgroup_memory <= 48 << 10, "{}: {}", kernel.name, kernel.workgroup_memory);
            assert_eq!(kernel.requires.matrix_units.of(dtype), Some(layout.unit));
            count += usize::from(!finished);
        }
        let [fragments, tiles] =
            [true, false].map(|is| UnitBlock::all().iter().filter(|block| block.fragments == is).count());
        assert_eq!(count, tiles * 10 * (2 + 2 + 1 + 1) + fragments * 2 * (2 + 2));
    }
}
