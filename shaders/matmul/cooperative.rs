//! Products on matrix units. A workgroup goes through the depth of its block in steps, with tiles of both operands in
//! workgroup memory. While subgroups multiply the tiles, the next ones are loaded to registers. The sums leave through
//! workgroup memory: there, lanes find neighbours to add up, round and store together. If it is known which lane holds
//! which sums, they may leave from registers.

use super::exit::{Exit, Place};
use super::fragments;
use super::lane_sums::LaneSums;
use super::unit_operand::{Found, Source, Step, UnitSide, UnitTile};
use super::windows::Lines;
use super::{Along, Matmul, Part, ProductBlock};
use crate::base::dtype::DType;
use crate::kernels::blocks::Blocks;
use crate::kernels::encoding::Encoding;
use crate::kernels::workgroup::is_last;
use crate::shader::{
    Access, Array, CooperativeMatrix, KernelBuilder, MatrixLayout, MatrixRole, MatrixType, MatrixVar, Scalar, Type,
    Value,
};
use crate::tuning::{self, Fragments, UnitBlock};

/// How the operands and the product lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct UnitLayout {
    /// The size of a unit's product.
    pub unit: [u32; 3],
    pub a: UnitReading,
    pub b: UnitReading,
    /// True if the product's depth is a multiple of the tile's, so that no load is beyond it.
    pub whole: bool,
    /// True if the depth is split into parts, one per workgroup. The last workgroup that is done adds up all parts.
    pub parts: bool,
    /// True if rows of the product begin anywhere, so that elements are stored one by one.
    pub single: bool,
}

/// How an operand is read, 16 bytes at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct UnitReading {
    pub along: Along,
    /// True if lines begin anywhere. Each load then takes parts of two vectors. Elements have 16 bits.
    pub loose: bool,
}

impl UnitReading {
    /// Reads lines that begin with whole vectors.
    pub const fn aligned(along: Along) -> Self {
        UnitReading { along, loose: false }
    }

    /// Reads lines that begin anywhere.
    pub const fn loose(along: Along) -> Self {
        UnitReading { along, loose: true }
    }

    fn name(self) -> String {
        let loose = if self.loose { "loose " } else { "" };
        format!("{loose}{}", if self.along == Along::Depth { "depth" } else { "other" })
    }
}

pub(super) const LANES: u32 = UnitBlock::LANES;

/// Bytes that an invocation loads and stores at a time.
pub(super) const VECTOR: u32 = 16;

impl UnitBlock {
    /// Returns the blocks that some GPU uses.
    pub fn all() -> Vec<UnitBlock> {
        let candidates = tuning::ENTRIES.iter().flat_map(|entry| entry.tuning.units.candidates);
        let mut all = Vec::new();
        for candidate in candidates {
            if !all.contains(&candidate.unit_block) {
                all.push(candidate.unit_block);
            }
        }
        all
    }

    /// Returns the block's name in the names of kernels.
    pub fn name(self) -> String {
        let UnitBlock { shape: [rows, columns], part: [part_rows, part_columns], depth, slices, fragments } = self;
        let fragments = match fragments {
            Fragments::None => "",
            Fragments::Sums => " sums",
            Fragments::All => " fragments",
        };
        format!("{rows}x{columns}x{depth}/{part_rows}x{part_columns}x{slices}{fragments}")
    }

    /// Returns the block with this name, if the name is valid.
    pub fn parse(name: &str) -> Option<UnitBlock> {
        let (sizes, fragments) = match name.split_once(' ') {
            None => (name, Fragments::None),
            Some((sizes, "sums")) => (sizes, Fragments::Sums),
            Some((sizes, "fragments")) => (sizes, Fragments::All),
            Some(_) => return None,
        };
        let (block, part) = sizes.split_once('/')?;
        let three = |text: &str| -> Option<[u32; 3]> {
            // No block is larger. This also keeps computations of a block's needs within 32 bits.
            let size = |text: &str| text.parse().ok().filter(|size| (1..=4096).contains(size));
            let numbers: Option<Vec<u32>> = text.split('x').map(size).collect();
            numbers?.try_into().ok()
        };
        let ([rows, columns, depth], [part_rows, part_columns, slices]) = (three(block)?, three(part)?);
        let block = UnitBlock { shape: [rows, columns], part: [part_rows, part_columns], depth, slices, fragments };
        block.fault().is_none().then_some(block)
    }

    /// Returns the bytes of workgroup memory, for the tiles and later for the sums.
    pub(crate) fn memory(self, dtype: DType, layout: UnitLayout) -> u32 {
        if self.fragments == Fragments::All {
            return VECTOR * fragments::vectors(self);
        }
        let tiles: u32 = self.tiles(dtype, layout).into_iter().map(UnitTile::vectors).sum();
        let strips = self.parts() * self.slices * self.strip(layout.unit).vectors();
        VECTOR * strips.max(tiles)
    }

    /// Returns the tiles of both operands.
    fn tiles(self, dtype: DType, layout: UnitLayout) -> [UnitTile; 2] {
        let bytes = dtype.size_in_bytes() as u32;
        [(layout.a, self.shape[0]), (layout.b, self.shape[1])].map(|(reading, extent)| match reading.along {
            Along::Depth => UnitTile { lines: extent, line: self.depth / VECTOR },
            Along::Other => UnitTile { lines: self.depth / bytes, line: extent * bytes / VECTOR },
        })
    }

    /// Returns the strip through which a subgroup's sums leave: a row of units.
    fn strip(self, unit: [u32; 3]) -> UnitTile {
        UnitTile { lines: unit[0], line: self.part[1] / 4 }
    }
}

impl UnitLayout {
    /// Returns sample layouts for each dtype: every layout with the units that GPUs have, and some with the units that
    /// are chosen if kernels may choose.
    pub fn samples() -> Vec<(DType, UnitLayout)> {
        let mut samples = Vec::new();
        for (dtype, depth) in [(DType::F16, 16), (DType::BF16, 16), (DType::I8, 32), (DType::U8, 32)] {
            let sizes = (0..8).map(|bits| ([16, 16, depth], bits)).chain([
                ([16, 32, depth], 0),
                ([16, 32, depth], 7),
                ([16, 32, depth], 8),
            ]);
            samples.extend(sizes.map(|(unit, bits)| {
                let reading = |bit| UnitReading::aligned(if bits & bit == 0 { Along::Depth } else { Along::Other });
                let (a, b) = (reading(1), reading(2));
                (dtype, UnitLayout { unit, a, b, whole: bits & 4 == 0, parts: bits == 8, single: false })
            }));
            let [by_depth, by_other] = [Along::Depth, Along::Other].map(UnitReading::loose);
            let layout = |a, b| UnitLayout { unit: [16, 16, depth], a, b, whole: false, parts: false, single: true };
            let in_parts = UnitLayout { whole: true, parts: true, ..layout(by_depth, by_other) };
            let aligned = UnitReading::aligned(Along::Depth);
            let unequal = UnitLayout { parts: true, single: false, ..layout(aligned, aligned) };
            let by_vectors = UnitLayout { single: false, ..layout(by_depth, by_depth) };
            let loose = [layout(by_depth, by_other), layout(by_other, by_depth), in_parts, unequal, by_vectors];
            samples.extend(loose.into_iter().filter(|_| dtype.size_in_bytes() == 2).map(|layout| (dtype, layout)));
        }
        samples
    }

    /// True if there is a kernel of this block for operands in this layout.
    pub fn suits(self, block: UnitBlock, dtype: DType) -> bool {
        let UnitLayout { unit, a, b, whole, parts, single } = self;
        let has_halves = dtype.size_in_bytes() == 2;
        let from_registers = unit == [16; 3] && has_halves && !(parts || single);
        let fragments_suit = match block.fragments {
            Fragments::None => true,
            Fragments::Sums => from_registers,
            Fragments::All => from_registers && whole && (a, b.loose) == (UnitReading::aligned(Along::Depth), false),
        };
        let is_whole = block.part.iter().zip(unit).all(|(part, unit)| part.is_multiple_of(unit));
        is_whole && fragments_suit && (has_halves || !(a.loose || b.loose))
    }

    pub fn name(self) -> String {
        let is = |is: bool, name| if is { name } else { "" };
        let ends = [is(self.whole, ", whole"), is(self.parts, ", parts"), is(self.single, ", y x1")].concat();
        let ([m, n, k], a, b) = (self.unit, self.a.name(), self.b.name());
        format!("by {m}x{n}x{k}, a {a}, b {b}{ends}")
    }
}

/// Adds the products of all matrices of `a` with all of `b` to the sums of a part.
pub(super) fn multiply<'k>(a: &[CooperativeMatrix<'k>], b: &[CooperativeMatrix<'k>], sums: &[MatrixVar<'k>]) {
    for (i, &a) in a.iter().enumerate() {
        for j in 0..b.len() {
            // Back and forth, so that the next product reuses the operand of the last one.
            let j = if i % 2 == 0 { j } else { b.len() - 1 - j };
            let sum = sums[i * b.len() + j];
            sum.set(a.multiply_add(b[j], sum.get()));
        }
    }
}

/// A workgroup at work.
struct Work<'k> {
    block: UnitBlock,
    unit: [u32; 3],
    /// The depth of the tiles in elements.
    depth: u32,
    sides: [UnitSide<'k>; 2],
    memory: Array<'k>,
    /// The subgroup's number in its slice, and the slice's number.
    number: Value<'k>,
    slice: Value<'k>,
    /// Where the subgroup's part of the block begins.
    row: Value<'k>,
    column: Value<'k>,
    sums: Vec<MatrixVar<'k>>,
}

impl<'k> Work<'k> {
    fn new(p: &ProductBlock<'k>, config: &Matmul, block: UnitBlock, layout: UnitLayout) -> Self {
        let (k, dtype) = (p.k, config.dtype());
        let bytes = dtype.size_in_bytes() as u32;
        let (depth, per_vector) = (block.depth / bytes, VECTOR / bytes);
        let tiles = block.tiles(dtype, layout);
        let source = |name, encoding| match (encoding, &p.matrix) {
            (Encoding::Blocks(format), Some(matrix)) => {
                k.prefer_bindings();
                Source::Blocks(Blocks::new(k, format, matrix.clone()).in_halves(), format.block_elements() as u32)
            }
            _ => Source::Dense(k.buffer(name, Type::vec4(Scalar::U32), Access::Read)),
        };
        let [a_source, b_source] = [source("a", config.a), source("b", config.b)];
        let memory = k.workgroup_array(Type::vec4(Scalar::U32), block.memory(dtype, layout) / VECTOR);
        let subgroup = k.local_index() / LANES;
        let (number, slice) = (subgroup % block.parts(), subgroup / block.parts());
        let [m, n, unit_depth] = layout.unit;
        let side = |i: usize,
                    source,
                    reading: UnitReading,
                    (start, lines): (Value<'k>, Lines<'k>),
                    [length, first]: [Value<'k>; 2]| {
            let (role, rows, columns) = [(MatrixRole::A, m, unit_depth), (MatrixRole::B, unit_depth, n)][i];
            let base = if i == 0 { 0 } else { tiles[0].vectors() };
            let along = reading.along;
            let in_slice = depth / block.slices * if along == Along::Depth { 1 } else { tiles[i].pitch() * per_vector };
            // Two vectors share a scale. Large blocks have packed ones, which take long to decode.
            let is_packed = matches!(source, Source::Blocks(_, 256));
            let pairs =
                tiles[i].line.is_multiple_of(2) && tiles[i].vectors_of_lines().is_multiple_of(2 * block.invocations());
            let mut side = UnitSide {
                k,
                source,
                memory,
                base,
                tile: tiles[i],
                slice: slice * (in_slice / per_vector) + base,
                along,
                ty: MatrixType { dtype, rows, columns, role },
                per_vector,
                together: if is_packed && pairs { 2 } else { 1 },
                threads: block.invocations(),
                start,
                lines,
                length,
                first,
                depth: p.depth,
                by_lanes: i == 1 && along == Along::Depth && block.fragments == Fragments::Sums,
                found: Found::Nothing,
            };
            let by_lines = i == 0 && p.windows.is_some() || config.is_of_loose_windows();
            side.find(by_lines, reading);
            side
        };
        let sides = [
            side(0, a_source, layout.a, (p.a.start, p.a_lines()), [p.m, p.first_row]),
            side(1, b_source, layout.b, (p.b.start, p.b_lines()), [p.n, p.first_column]),
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
            multiply(&a, &b, &self.sums);
        }
    }

    /// Goes through the depth. If the last tile may end beyond it, that one comes first: the others need no care.
    fn add_products(&self, p: &ProductBlock<'k>, whole: bool) {
        let (k, zero) = (p.k, p.k.u32(0));
        let last = (p.depth - 1) / self.depth * self.depth;
        let (first, step, others) = match whole {
            true => (zero, Step::Inside, [k.u32(self.depth), p.depth]),
            false => (last, Step::Last, [zero, last]),
        };
        for side in &self.sides {
            side.store(&side.load(first, step));
        }
        k.barrier();
        k.for_step(others[0], others[1], self.depth, |from| {
            let loaded = self.sides.each_ref().map(|side| side.load(from, Step::Inside));
            self.multiply();
            k.barrier();
            for (side, loaded) in self.sides.iter().zip(&loaded) {
                side.store(loaded);
            }
            k.barrier();
        });
        self.multiply();
    }

    /// Stores the sums: from registers if it is known what lanes hold, else through workgroup memory.
    fn store(&self, p: &ProductBlock<'k>, config: &Matmul) {
        let exit = Exit::new(p, config);
        if self.block.fragments == Fragments::None {
            return self.store_strips(p, &exit);
        }
        let units = [0, 1].map(|axis| self.block.part[axis] / self.unit[axis]);
        let first = [p.first_row + self.row, p.first_column + self.column];
        let invocations = self.block.invocations();
        let sums = LaneSums { p, exit: &exit, first, units, memory: self.memory, invocations };
        let unit = |i: u32, j: u32| self.sums[(i * units[1] + j) as usize];
        if self.sides[1].by_lanes {
            let four = |i, half, j| p.k.vector(&[0, 1, 2, 3].map(|e| unit(i, j).element(4 * half + e)));
            sums.store(None, four);
        } else if exit.is_finished() || !exit.stores_halves() {
            self.store_strips(p, &exit);
        } else {
            sums.store_pairs(unit);
        }
    }

    /// Stores the sums, a row of units at a time, through strips of workgroup memory.
    fn store_strips(&self, p: &ProductBlock<'k>, exit: &Exit<'_, 'k>) {
        let k = p.k;
        let way = Way::new(self, p, exit);
        let parts = p.part.map(|part| Parts::new(p, &way, part, self.block.invocations()));
        let [m, n, _] = self.unit;
        let (columns, pitch) = (self.block.part[1], self.block.strip(self.unit).pitch());
        // In one slice, each subgroup loads what it has stored itself.
        let wait = || if self.block.slices == 1 { k.subgroup_barrier() } else { k.barrier() };
        for i in 0..self.block.part[0] / m {
            // The first strip takes the place of the tiles.
            if i == 0 {
                k.barrier()
            } else {
                wait()
            }
            for j in 0..columns / n {
                let sum = self.sums[(i * (columns / n) + j) as usize].get();
                self.memory.store_matrix(self.strip(self.slice) + j * n / 4, k.u32(pitch), MatrixLayout::Rows, sum);
            }
            wait();
            let sums = |turn: Value<'k>| {
                let first = way.line(turn) * pitch + way.in_line * way.fours;
                (0..way.fours).map(|e| self.sum(p, first + e)).collect::<Vec<_>>()
            };
            let store = |turn: Value<'k>| exit.store(way.row(k.u32(i), turn), &way.place, || sums(turn));
            match &parts {
                Some(parts) => {
                    (0..way.turns).for_each(|turn| parts.store(k.u32(i), turn, &sums(k.u32(turn))));
                }
                None if exit.is_finished() => k.for_rolled(0, way.turns, 1, store),
                None => (0..way.turns).for_each(|turn| store(k.u32(turn))),
            }
        }
        if let Some(parts) = parts {
            let Part { block, count, .. } = parts.part;
            k.when(is_last(parts.counts, block, count, self.memory), || {
                // Unrolled, an epilogue would not stay in caches.
                let together = if exit.is_finished() || way.rows % 2 == 1 { 1 } else { 2 };
                k.for_step(0, way.rows, together, |first| {
                    let places = (0..together).flat_map(|i| (0..way.turns).map(move |turn| (i, turn)));
                    let places: Vec<_> = places.map(|(i, turn)| (first + i, turn)).collect();
                    for (&(i, turn), sums) in places.iter().zip(parts.load(&places)) {
                        exit.store(way.row(i, k.u32(turn)), &way.place, || sums);
                    }
                });
            });
        }
    }

    /// Adds up four neighbouring sums over all slices, at a place in their strips.
    fn sum(&self, p: &ProductBlock<'k>, place: Value<'k>) -> Value<'k> {
        let wide = Type::vec4(p.accumulator.scalar);
        let part = |slice| self.memory.load(self.strip(p.k.u32(slice)) + place).bitcast(wide);
        (1..self.block.slices).fold(part(0), |sum, slice| sum + part(slice))
    }

    /// Returns where a slice's strip of this part begins.
    fn strip(&self, slice: Value<'k>) -> Value<'k> {
        (slice * self.block.parts() + self.number) * self.block.strip(self.unit).vectors()
    }
}

/// The vectors of sums that a lane stores: parts of some lines of each row of units.
struct Way<'k> {
    k: &'k KernelBuilder,
    /// The number of rows of units, and the number of lines of each row that the lane has a part of.
    rows: u32,
    turns: u32,
    /// Quads in a vector.
    fours: u32,
    lanes_per_line: u32,
    in_line: Value<'k>,
    slices: u32,
    slice: Value<'k>,
    unit_rows: u32,
    first_row: Value<'k>,
    place: Place<'k>,
}

impl<'k> Way<'k> {
    fn new(work: &Work<'k>, p: &ProductBlock<'k>, exit: &Exit<'_, 'k>) -> Self {
        let (k, m, slices) = (p.k, work.unit[0], work.block.slices);
        let lanes_per_line = work.block.part[1] / exit.per_vector;
        let turns = m * lanes_per_line / LANES / slices;
        if turns == 0 {
            k.fail("a row of units does not go round");
        }
        let in_line = k.local_index() % lanes_per_line;
        Way {
            k,
            rows: work.block.part[0] / m,
            turns,
            fours: exit.per_vector / 4,
            lanes_per_line,
            in_line,
            slices,
            slice: work.slice,
            unit_rows: m,
            first_row: p.first_row + work.row,
            place: exit.place(p.first_column + work.column + in_line * exit.per_vector),
        }
    }

    /// Returns the line in a row of units.
    fn line(&self, turn: Value<'k>) -> Value<'k> {
        let turn = turn * self.slices + self.slice;
        self.k.local_index() % LANES / self.lanes_per_line + turn * (LANES / self.lanes_per_line)
    }

    /// Returns the row of the product.
    fn row(&self, i: Value<'k>, turn: Value<'k>) -> Value<'k> {
        self.first_row + i * self.unit_rows + self.line(turn)
    }
}

/// The sums of all parts of the depth, in memory. The last workgroup that has stored its part adds up all parts, in
/// their order.
struct Parts<'a, 'k> {
    k: &'k KernelBuilder,
    way: &'a Way<'k>,
    part: Part<'k>,
    sums: Array<'k>,
    /// Per block, the number of workgroups that have stored their parts. The last one resets it to 0.
    counts: Array<'k>,
    accumulator: Type,
    invocations: u32,
}

impl<'a, 'k> Parts<'a, 'k> {
    fn new(p: &ProductBlock<'k>, way: &'a Way<'k>, part: Part<'k>, invocations: u32) -> Self {
        let k = p.k;
        let sums = k.buffer("parts", Type::vec4(Scalar::U32), Access::ReadWrite);
        let counts = k.buffer("counts", Type::U32, Access::ReadWrite);
        Parts { k, way, part, sums, counts, accumulator: Type::vec4(p.accumulator.scalar), invocations }
    }

    /// Returns the index of the lane's four sums. Neighbouring lanes are neighbours in memory.
    fn place(&self, number: Value<'k>, i: Value<'k>, turn: u32, four: u32) -> Value<'k> {
        let Way { rows, turns, fours, .. } = *self.way;
        let row = (self.part.block * self.part.count + number) * rows + i;
        (row * (turns * fours) + (turn * fours + four)) * self.invocations + self.k.local_index()
    }

    fn store(&self, i: Value<'k>, turn: u32, sums: &[Value<'k>]) {
        for (four, sum) in (0..).zip(sums) {
            self.sums.store_for_all(self.place(self.part.number, i, turn, four), sum.bitcast(Type::vec4(Scalar::U32)));
        }
    }

    /// Returns the sums of all parts at some places. Each place has a vector, as quads.
    fn load(&self, places: &[(Value<'k>, u32)]) -> Vec<Vec<Value<'k>>> {
        let k = self.k;
        let zero = k.number(self.accumulator, 0);
        let sums: Vec<_> =
            places.iter().map(|_| (0..self.way.fours).map(|_| k.var(zero)).collect::<Vec<_>>()).collect();
        k.for_range(0, self.part.count, |number| {
            for (&(i, turn), sums) in places.iter().zip(&sums) {
                for (four, sum) in (0..).zip(sums) {
                    let part = self.sums.load_of_all(self.place(number, i, turn, four));
                    sum.set(sum.get() + part.bitcast(self.accumulator));
                }
            }
        });
        sums.iter().map(|sums| sums.iter().map(|sum| sum.get()).collect()).collect()
    }
}

pub fn write(p: &ProductBlock, config: &Matmul, block: UnitBlock, layout: UnitLayout) {
    let work = Work::new(p, config, block, layout);
    work.add_products(p, layout.whole);
    work.store(p, config);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{Family, KernelConfig, matmul::Matmul};
    use crate::shader::Target;

    #[test]
    fn blocks_take_the_memory_that_they_say() {
        let (mut count, mut packed, mut windows) = (0, 0, 0);
        for config in Matmul::samples() {
            let super::super::MatmulTile::MatrixUnits(block, layout) = config.tile else { continue };
            let finished = config.epilogue.is_some();
            let (dtype, kernel) =
                (config.dtype(), KernelConfig::from(config.clone()).generate(Target::VULKAN).unwrap());
            assert_eq!(kernel.workgroup_memory, block.memory(dtype, layout), "{}", kernel.name);
            assert!(kernel.workgroup_memory <= 48 << 10, "{}: {}", kernel.name, kernel.workgroup_memory);
            assert_eq!(kernel.requires.matrix_units.of(dtype), Some(layout.unit));
            count += usize::from(!finished);
            packed += usize::from(matches!(config.b, Encoding::Blocks(_)));
            windows += usize::from(config.windows.is_some());
        }
        let [tiles, sums, fragments] = [Fragments::None, Fragments::Sums, Fragments::All]
            .map(|is| UnitBlock::all().iter().filter(|block| block.fragments == is).count());
        let dense = tiles * (11 * (2 + 2 + 1 + 1) + 5 * (2 + 2)) + (sums * 9 + fragments * 2) * (2 + 2);
        assert_eq!(count, dense + packed + windows);
        assert_eq!(packed, 16, "14 formats in whole steps, one in others, and one in parts");
        assert_eq!(
            windows,
            2 * 3 + 2,
            "aligned and loose: in whole steps, in others, and in parts; aligned from registers"
        );
    }
}
