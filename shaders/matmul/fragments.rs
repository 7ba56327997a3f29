//! Products on matrix units, from tiles in workgroup memory that are ordered as lanes hold them. A lane finds its
//! elements of a unit's operand in 16 contiguous bytes, and no two lanes use the same bank. The lane's sums are
//! neighbours in a row.
//!
//! Drivers do not say which lane holds which element. This file uses the order of NVIDIA's GPUs, row by row as in their
//! `mma` instructions (PTX ISA, "Matrix Fragments for mma.m16n8k16"). On other GPUs the kernel fails its test, and is
//! not used.
//!
//! The lines of a 16 x 16 operand run along the depth. Lane `4 g + t` of a subgroup holds the elements `2 t`,
//! `2 t + 1`, `2 t + 8` and `2 t + 9` of the lines `g` and `g + 8`. Two reorderings make these elements contiguous in
//! memory:
//!
//! - Along the depth, the order of addition does not matter if it is the same for both operands. So a lane takes four
//!   neighbours instead. Eight neighbours are 16 bytes in memory, for two units.
//! - Across the depth, the order of columns does not matter. So column `2 t + v + 8 h` of unit `u`, of four, is column
//!   `32 v + 8 t + 4 h + u` of 64. A lane then has eight neighbours twice, and the four lanes of a row have 32
//!   contiguous columns.

use super::cooperative::{LANES, UnitLayout, multiply};
use super::exit::Exit;
use super::lane_sums::LaneSums;
use super::{Along, Matmul, Matrix, ProductBlock, in_runs};
use crate::shader::{
    Access, Array, CooperativeMatrix, KernelBuilder, MatrixRole, MatrixType, MatrixVar, Scalar, Type, Value, Var,
};
use crate::tuning::UnitBlock;

/// The sizes of a unit.
const UNIT: u32 = 16;

/// Elements of the depth that are loaded at a time: 128 bytes of each line.
const STEP: u32 = 64;

/// Tiles that a step fills, one for each of the two stages of workgroup memory, and slices in a tile. A slice has the
/// depth of a unit.
const TILES: u32 = 2;
const SLICES: u32 = 2;

/// Elements in a vector.
const PER_VECTOR: u32 = 8;

/// Rows and columns of a subgroup's part, in units.
const PART: u32 = UnitBlock::FRAGMENTS_PART / UNIT;

/// Returns the number of vectors of a block's tiles.
pub(super) fn vectors(block: UnitBlock) -> u32 {
    TILES * SLICES * (block.shape[0] + block.shape[1]) / UNIT * LANES
}

/// Returns the place of a lane's vector among the vectors of a unit. Lanes that store together use different banks, and
/// so do lanes that load together.
fn slot<'k>(g: Value<'k>, t: Value<'k>, slice: Value<'k>) -> Value<'k> {
    (g ^ slice) * 4 + (t ^ ((g >> 1) & 3))
}

/// An operand, and the tiles that it is loaded to.
struct FragmentSide<'k> {
    k: &'k KernelBuilder,
    buffer: Array<'k>,
    memory: Array<'k>,
    along: Along,
    role: MatrixRole,
    /// The operand's first unit in a tile, and the number of its units in each slice.
    base: u32,
    units: u32,
    subgroups: u32,
    /// The lane's first vector, and the distance between lines, in vectors.
    first: Value<'k>,
    line: Value<'k>,
    /// The lane's places in the tile.
    places: Vec<Value<'k>>,
    loaded: Vec<Var<'k>>,
}

impl<'k> FragmentSide<'k> {
    fn new(
        p: &ProductBlock<'k>,
        memory: Array<'k>,
        block: UnitBlock,
        role: MatrixRole,
        along: Along,
        first_line: Value<'k>,
    ) -> Self {
        let k = p.k;
        let is_a = role == MatrixRole::A;
        let buffer = k.buffer(if is_a { "a" } else { "b" }, Type::vec4(Scalar::U32), Access::Read);
        let Matrix { start, row_stride, column_stride } = if is_a { p.a } else { p.b };
        let [across, along_depth] = if is_a { [row_stride, column_stride] } else { [column_stride, row_stride] };
        let [base, units] =
            if is_a { [0, block.shape[0] / UNIT] } else { [block.shape[0] / UNIT, block.shape[1] / UNIT] };
        let (lane, subgroup, subgroups) = (k.local_index() % LANES, k.local_index() / LANES, block.parts());
        let (eighth, quarter) = (lane % 8, lane / 8);
        let start = start / PER_VECTOR;
        let unit = |slice: Value<'k>, unit: Value<'k>| (slice * units + unit + SLICES * base) * LANES;
        let (first, line, places, vectors) = match along {
            // A lane loads one of the eight vectors of some lines.
            Along::Depth => {
                let (line, slice, t) = (in_runs(across, PER_VECTOR), eighth / 4, eighth % 4);
                let own = if is_a {
                    subgroup * UNIT + quarter
                } else {
                    subgroup / PART * (PART * UNIT) + subgroup % PART + quarter % 2 * 32 + quarter / 2 * 8
                };
                let places = (0..2).map(|i| unit(slice, subgroup) + slot(quarter + 4 * i, t, slice)).collect();
                let turns = units * 2 / subgroups;
                (start + (first_line + own) * line + eighth, line, places, 2 * turns)
            }
            // A lane loads eight columns of four lines.
            Along::Other => {
                let line = in_runs(along_depth, PER_VECTOR);
                let (slice, sixty_four) = (subgroup % SLICES, subgroup / SLICES);
                let first =
                    start + (slice * 32 + quarter * 8) * line + first_line / PER_VECTOR + sixty_four * 8 + eighth;
                let g = eighth % 4 * 2 + eighth / 4;
                (first, line, vec![unit(slice, sixty_four * 4) + slot(g, quarter, slice)], 4)
            }
        };
        let loaded = (0..vectors).map(|_| k.var(k.u32(0).splat(4))).collect();
        FragmentSide { k, buffer, memory, along, role, base, units, subgroups, first, line, places, loaded }
    }

    /// Loads the vectors of the next tiles: along the depth for all tiles at once, else for one tile.
    fn load(&self, depth: Value<'k>, tile: u32) {
        let load = |i: usize, index: Value<'k>| self.loaded[i].set(self.buffer.load(index));
        match self.along {
            Along::Depth if tile == 0 => {
                let first = self.first + depth / PER_VECTOR;
                let [four, half] = if self.role == MatrixRole::A { [4, 8] } else { [16, 4] };
                for i in 0..self.loaded.len() as u32 {
                    let line = i / 4 * self.subgroups * UNIT + i / 2 % 2 * four + i % 2 * half;
                    load(i as usize, first + self.line * line);
                }
            }
            Along::Depth => {}
            Along::Other => {
                for i in 0..4 {
                    load(i as usize, self.first + (depth + (4 * tile + i)) * self.line);
                }
            }
        }
    }

    /// Stores a tile in its stage.
    fn store(&self, tile: u32, stage: u32) {
        let k = self.k;
        // The arguments are the lines `g` and `g + 8`. Each has two words: the first and the second two elements.
        let store = |place: Value<'k>, [a, b]: [Value<'k>; 2], [c, d]: [Value<'k>; 2]| {
            let words = if self.role == MatrixRole::A { [a, c, b, d] } else { [a, b, c, d] };
            self.memory.store(place + stage, k.vector(&words));
        };
        match self.along {
            Along::Depth => {
                for (turn, pair) in (0..).zip(self.loaded.chunks(2)) {
                    let lines = [pair[0].get(), pair[1].get()];
                    let [upper, lower] = lines.map(|line| [line.lane(2 * tile), line.lane(2 * tile + 1)]);
                    let place = self.places[turn % 2] + (turn as u32 / 2 * self.subgroups * LANES);
                    store(place, upper, lower);
                }
            }
            Along::Other => {
                let lines: Vec<_> = self.loaded.iter().map(|line| line.get()).collect();
                for unit in 0..4 {
                    // The unit's columns are column `unit` and the column four places after it.
                    let [upper, lower] = [unit / 2, 2 + unit / 2].map(|word| {
                        let two = |i: usize| k.halves([lines[i].lane(word), lines[i + 1].lane(word)], unit % 2);
                        [two(0), two(2)]
                    });
                    store(self.places[0] + unit * LANES, upper, lower);
                }
            }
        }
    }

    /// Loads the lane's vectors for the units of its subgroup's part, from unit `first` on.
    fn fragments(&self, first: Value<'k>, stage: u32, slice: u32) -> Vec<Value<'k>> {
        let lane = self.k.local_index() % LANES;
        let place =
            (first + SLICES * self.base + slice * self.units) * LANES + slot(lane / 4, lane % 4, self.k.u32(slice));
        (0..PART).map(|unit| self.memory.load(place + (unit * LANES + stage))).collect()
    }

    /// Returns the unit's operand, from the vectors of the lanes.
    fn matrix(&self, fragment: Value<'k>, ty: MatrixType) -> CooperativeMatrix<'k> {
        let order = if self.role == MatrixRole::A { [0, 2, 1, 3] } else { [0, 1, 2, 3] };
        self.k.matrix_of_words(ty, &order.map(|word| fragment.lane(word)))
    }
}

/// A workgroup at work.
struct Work<'k> {
    types: [MatrixType; 3],
    sides: [FragmentSide<'k>; 2],
    memory: Array<'k>,
    /// The vectors of a stage.
    stage: u32,
    /// The first row and column of the block. A block at the edge is moved back, so that it is whole.
    first: [Value<'k>; 2],
    /// Where the subgroup's part of the block begins, in units.
    part: [Value<'k>; 2],
    sums: Vec<MatrixVar<'k>>,
}

impl<'k> Work<'k> {
    fn new(p: &ProductBlock<'k>, config: &Matmul, block: UnitBlock, layout: UnitLayout) -> Self {
        let k = p.k;
        let memory_vectors = vectors(block);
        let first = [p.first_row.min(p.m - block.shape[0]), p.first_column.min(p.n - block.shape[1])];
        let subgroup = k.local_index() / LANES;
        let down = block.shape[0] / UnitBlock::FRAGMENTS_PART;
        let part = [subgroup % down * PART, subgroup / down * PART];
        let types = MatrixType::of_units(config.dtype(), [UNIT; 3]);
        let memory = k.workgroup_array(Type::vec4(Scalar::U32), memory_vectors);
        let sides = [
            FragmentSide::new(p, memory, block, MatrixRole::A, layout.a.along, first[0]),
            FragmentSide::new(p, memory, block, MatrixRole::B, layout.b.along, first[1]),
        ];
        let sums = (0..PART * PART).map(|_| k.zero_matrix(types[2])).collect();
        Work { types, sides, memory, stage: memory_vectors / TILES, first, part, sums }
    }

    /// Loads both operands' vectors in a slice of a stage.
    fn fragments(&self, stage: u32, slice: u32) -> [Vec<Value<'k>>; 2] {
        [0, 1].map(|i| self.sides[i].fragments(self.part[i], stage * self.stage, slice))
    }

    fn multiply(&self, fragments: [Vec<Value<'k>>; 2]) {
        let [a, b] = [0, 1].map(|i| {
            let matrix = |&fragment: &Value<'k>| self.sides[i].matrix(fragment, self.types[i]);
            fragments[i].iter().map(matrix).collect::<Vec<_>>()
        });
        multiply(&a, &b, &self.sums);
    }

    /// Goes through the depth. Loaded vectors are stored one stage later, and multiplied one stage after that.
    fn add_products(&self, p: &ProductBlock<'k>) {
        let k = p.k;
        let store = |tile| self.sides.iter().for_each(|side| side.store(tile, tile * self.stage));
        let load = |depth, tile| self.sides.iter().for_each(|side| side.load(depth, tile));
        load(k.u32(0), 0);
        store(0);
        load(k.u32(0), 1);
        k.barrier();
        // The vectors of the next first slice are loaded before the products of the second slice.
        let next = self.fragments(0, 0).map(|all| all.into_iter().map(|vector| k.var(vector)).collect::<Vec<_>>());
        // Unrolled, it would not stay in caches.
        k.for_rolled(1, p.depth / STEP + 1, 1, |step| {
            // The last step loads once more, and nothing uses these vectors.
            let after = step.min(p.depth / STEP - 1) * STEP;
            for tile in 0..TILES {
                let other = 1 - tile;
                let first = next.each_ref().map(|all| all.iter().map(|vector| vector.get()).collect());
                let second = self.fragments(tile, 1);
                store(other);
                load(after, tile);
                self.multiply(first);
                k.barrier();
                for (next, found) in next.iter().flatten().zip(self.fragments(other, 0).iter().flatten()) {
                    next.set(*found);
                }
                self.multiply(second);
            }
        });
    }

    fn store(&self, p: &ProductBlock<'k>, config: &Matmul, invocations: u32) {
        let k = p.k;
        let first = [0, 1].map(|axis| self.first[axis] + self.part[axis] * UNIT);
        // If other workgroups compute an element too, they store it.
        let own = Some([p.first_row, p.first_column]);
        let exit = Exit::new(p, config);
        let sums = LaneSums { p, exit: &exit, first, units: [PART; 2], memory: self.memory, invocations };
        sums.store(own, |i, half, four| {
            // Four neighbours come from four units.
            let element = [0, 2, 1, 3][four as usize] + 4 * half;
            k.vector(&[0, 1, 2, 3].map(|j| self.sums[(i * PART + j) as usize].element(element)))
        });
    }
}

pub fn write(p: &ProductBlock, config: &Matmul, block: UnitBlock, layout: UnitLayout) {
    let work = Work::new(p, config, block, layout);
    work.add_products(p);
    work.store(p, config, block.invocations());
}
