//! An operand of a product on matrix units, on its way from its buffer to a tile in workgroup memory.

use super::Along;
use super::cooperative::UnitReading;
use super::lane_sums::place_of_column;
use super::loose::{self, Shift};
use super::windows::{Line, Lines};
use crate::kernels::blocks::{Blocks, Neighbours};
use crate::shader::{
    Array, CooperativeMatrix, KernelBuilder, MatrixLayout, MatrixRole, MatrixType, Scalar, Type, Value,
};

/// The tile of an operand: lines of vectors. One vector of padding between lines puts them into different banks.
#[derive(Clone, Copy)]
pub(super) struct UnitTile {
    pub lines: u32,
    /// Vectors in a line.
    pub line: u32,
}

impl UnitTile {
    /// The distance between lines.
    pub fn pitch(self) -> u32 {
        self.line + 1
    }

    pub fn vectors(self) -> u32 {
        self.lines * self.pitch()
    }

    /// The same without the padding.
    pub fn vectors_of_lines(self) -> u32 {
        self.lines * self.line
    }
}

/// The buffer of an operand.
pub(super) enum Source<'k> {
    Dense(Array<'k>),
    /// A quantised matrix, read along the depth, and the numbers of a block.
    Blocks(Blocks<'k>, u32),
}

/// Vectors on their way from the buffer to the tile.
pub(super) enum Vectors<'k> {
    Dense(Value<'k>),
    Loose(LooseVector<'k>),
    /// Halves, and whether they are within the depth.
    Packed(Box<Neighbours<'k>>, Option<Value<'k>>),
}

/// Two vectors of memory, of which the one for the tile is made when it is stored: until then, nothing waits for them.
pub(super) struct LooseVector<'k> {
    shift: Shift<'k>,
    loaded: [Value<'k>; 2],
    /// How many of its elements count, if not all do, and whether any does.
    left: Option<Value<'k>>,
    counts: Option<Value<'k>>,
}

impl<'k> LooseVector<'k> {
    fn vector(&self) -> Value<'k> {
        let vector = self.shift.vector(self.loaded);
        let vector = self.left.map_or(vector, |left| loose::first_elements(vector, left));
        self.counts.map_or(vector, |counts| counts.select(vector, 0))
    }
}

/// An operand, and the tile that it is loaded to.
pub(super) struct UnitSide<'k> {
    pub k: &'k KernelBuilder,
    pub source: Source<'k>,
    /// The memory of both tiles, and where this one begins.
    pub memory: Array<'k>,
    pub base: u32,
    pub tile: UnitTile,
    /// Where the subgroup's slice of the tile begins.
    pub slice: Value<'k>,
    pub along: Along,
    pub ty: MatrixType,
    /// Elements in a vector.
    pub per_vector: u32,
    /// The vectors that an invocation loads at a time.
    pub together: u32,
    pub threads: u32,
    /// Where the matrix begins, its lines, how many there are, and where the block begins.
    pub start: Value<'k>,
    pub lines: Lines<'k>,
    pub length: Value<'k>,
    pub first: Value<'k>,
    /// The depth of the product.
    pub depth: Value<'k>,
    /// Whether columns take the places in the tile at which a lane's sums are neighbours.
    pub by_lanes: bool,
    /// What this invocation finds once, for all tiles.
    pub found: Found<'k>,
}

/// What is the same for the loads of all tiles, for each load of an invocation.
pub(super) enum Found<'k> {
    Nothing,
    /// The lines, if windows are multiplied. Finding windows takes divisions.
    Lines(Vec<Line<'k>>),
    /// If lines are loose, where in a vector of memory loads begin. The depth of a tile is a multiple of a vector's.
    Loose(Vec<Shift<'k>>),
    /// If lines begin with whole vectors of a matrix in memory: where the vectors of the first tile are, and how far
    /// neighbours along the depth are apart, in vectors.
    Vectors(Vec<Value<'k>>, Value<'k>),
}

/// Whether a tile may end beyond the depth.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Inside,
    Last,
}

impl<'k> UnitSide<'k> {
    /// Finds what is the same for all tiles.
    pub fn find(&mut self, by_lines: bool, reading: UnitReading) {
        let turns = 0..self.turns();
        if by_lines {
            let line = |turn| self.lines.line(self.inside(self.place(turn)[0]));
            self.found = Found::Lines(turns.map(line).collect());
        } else if reading.loose {
            let shift = |turn| {
                let [across, depth] = self.across_and_depth(turn, self.k.u32(0));
                Shift::of(self.index(self.first + across, depth))
            };
            self.found = Found::Loose(turns.map(shift).collect());
        } else if let (Source::Dense(_), Some(runs)) = (&self.source, self.lines.runs_along_depth(self.per_vector)) {
            let vector = |turn| {
                let [across, depth] = self.across_and_depth(turn, self.k.u32(0));
                self.index(self.inside(across), depth) / self.per_vector
            };
            self.found = Found::Vectors(turns.map(vector).collect(), runs);
        }
    }

    /// Returns the place in the matrix of a place in the block, across the depth. Beyond the edge, it is the last one.
    fn inside(&self, place: Value<'k>) -> Value<'k> {
        (self.first + place).min(self.length - 1)
    }

    /// Returns the index of an element of a matrix, by its place across the depth and its depth.
    fn index(&self, place: Value<'k>, depth: Value<'k>) -> Value<'k> {
        self.lines.index(&self.lines.line(place), &self.lines.depth(depth)).0
    }

    /// Loads the vectors of a turn that begin at a place across the depth and at a depth. Beyond the edge, other ones
    /// are repeated, and they are not stored in the product. Beyond the depth, elements are zero.
    fn vectors(&self, turn: u32, [place, depth]: [Value<'k>; 2], step: Step) -> Vectors<'k> {
        let place = self.inside(place);
        match self.source {
            Source::Dense(buffer) => {
                let (within, is_within) = self.within(depth, 1, step);
                let index = self.index(place, within);
                let left = match self.along {
                    Along::Depth if step == Step::Inside => self.k.u32(self.per_vector),
                    Along::Depth => self.depth - within,
                    Along::Other => self.length - place,
                };
                // Lines of bytes end with whole vectors.
                let is_last = step == Step::Last && self.along == Along::Depth;
                let ends_within = is_last && self.per_vector == loose::LENGTH;
                let vector = match &self.found {
                    Found::Loose(shifts) => {
                        let (shift, loaded) = (shifts[turn as usize], loose::load(buffer, index, left));
                        let left = if ends_within { Some(left) } else { None };
                        return Vectors::Loose(LooseVector { shift, loaded, left, counts: is_within });
                    }
                    _ => buffer.load(index / self.per_vector),
                };
                let vector = if ends_within { loose::first_elements(vector, left) } else { vector };
                Vectors::Dense(is_within.map_or(vector, |is_within| is_within.select(vector, 0)))
            }
            Source::Blocks(ref blocks, elements) => {
                let (within, is_within) = self.within(depth, self.per_vector * self.together, step);
                let first = blocks.element(place, self.start + within);
                let words = self.together * self.per_vector / 4;
                let neighbours = blocks.neighbours(first / elements, first % elements, words);
                Vectors::Packed(Box::new(neighbours), is_within)
            }
        }
    }

    /// Returns a depth from which `count` elements can be loaded, and whether it is the one that is asked for.
    fn within(&self, depth: Value<'k>, count: u32, step: Step) -> (Value<'k>, Option<Value<'k>>) {
        match step {
            Step::Inside => (depth, None),
            Step::Last => (depth.min(self.depth - count), Some(depth.lt(self.depth))),
        }
    }

    /// Loads this invocation's vectors of known lines, from a depth on.
    fn load_lines(&self, lines: &[Line<'k>], buffer: Array<'k>, from: Value<'k>, step: Step) -> Vec<Vectors<'k>> {
        let [_, vector] = self.place(0);
        let (within, is_within) = self.within(from + vector * self.per_vector, self.per_vector, step);
        let depth = self.lines.depth(within);
        let load = |line: &Line<'k>| {
            let (first, is_inside) = self.lines.index(line, &depth);
            let counts = is_inside.into_iter().chain(is_within).reduce(|a, b| a & b);
            if let Some(left) = depth.left {
                let (shift, loaded) = (Shift::of(first), loose::load(buffer, first, left));
                return Vectors::Loose(LooseVector { shift, loaded, left: Some(left), counts });
            }
            let vector = buffer.load(first / self.per_vector);
            Vectors::Dense(counts.map_or(vector, |counts| counts.select(vector, 0)))
        };
        lines.iter().map(load).collect()
    }

    /// Returns the number of times that an invocation loads vectors of a tile.
    fn turns(&self) -> u32 {
        self.tile.vectors_of_lines() / (self.threads * self.together)
    }

    /// Returns the line of the tile that this invocation loads, and the first vector in the line.
    fn place(&self, turn: u32) -> [Value<'k>; 2] {
        let (lane, loads) = (self.k.local_index(), self.tile.line / self.together);
        [lane / loads + turn * (self.threads / loads), lane % loads * self.together]
    }

    /// Returns where the vectors of a turn begin, across the depth and along it, in the tile that begins at a depth.
    fn across_and_depth(&self, turn: u32, from: Value<'k>) -> [Value<'k>; 2] {
        let [line, vector] = self.place(turn);
        let inside = vector * self.per_vector;
        match self.along {
            Along::Depth => [line, from + inside],
            Along::Other => [inside, from + line],
        }
    }

    /// Loads this invocation's vectors of the tile that begins at a depth.
    pub fn load(&self, from: Value<'k>, step: Step) -> Vec<Vectors<'k>> {
        match (&self.found, &self.source) {
            (Found::Lines(lines), Source::Dense(buffer)) => return self.load_lines(lines, *buffer, from, step),
            (&Found::Vectors(ref vectors, runs), Source::Dense(buffer)) if step == Step::Inside => {
                let further = match self.along {
                    Along::Depth => from / self.per_vector,
                    Along::Other => from * runs,
                };
                return vectors.iter().map(|&vector| Vectors::Dense(buffer.load(vector + further))).collect();
            }
            _ => {}
        }
        (0..self.turns()).map(|turn| self.vectors(turn, self.across_and_depth(turn, from), step)).collect()
    }

    /// Stores what was loaded to the tile.
    pub fn store(&self, loaded: &[Vectors<'k>]) {
        for (turn, loaded) in (0..).zip(loaded) {
            let [line, vector] = self.place(turn);
            let line = if self.by_lanes { place_of_column(line) } else { line };
            let values = match loaded {
                &Vectors::Dense(value) => vec![value],
                Vectors::Loose(vector) => vec![vector.vector()],
                Vectors::Packed(neighbours, is_within) => {
                    let fours = neighbours.halves();
                    let vectors = fours.chunks(2).map(|fours| {
                        let words = fours.iter().flat_map(|four| four.bitcast(Type::vec2(Scalar::U32)).lanes());
                        let vector = self.k.vector(&words.collect::<Vec<_>>());
                        is_within.map_or(vector, |is_within| is_within.select(vector, 0))
                    });
                    vectors.collect()
                }
            };
            for (i, value) in (0..).zip(values) {
                self.memory.store(line * self.tile.pitch() + vector + (self.base + i), value);
            }
        }
    }

    /// Loads the matrix for a unit, at a place across the depth and at a depth of the slice.
    pub fn unit(&self, place: Value<'k>, depth: u32) -> CooperativeMatrix<'k> {
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
