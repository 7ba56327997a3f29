//! Products of `f16` on matrix units: a workgroup of four subgroups goes through the depth of its block in steps. Tiles of
//! both operands lie in workgroup memory; while subgroups multiply them, the next ones are loaded to registers.

use super::{Along, Matrix, Problem};
use crate::shader::{
    Access, Array, KernelBuilder, MatrixLayout, MatrixType, MatrixVar, Operator, Scalar, Type, Value,
};

/// Rows and columns of a workgroup's block.
pub const BLOCK: [u32; 2] = [128, 128];

/// Invocations per workgroup: four subgroups.
pub const WORKGROUP: u32 = 128;

/// The depth of a tile.
pub const DEPTH: u32 = 64;

/// Rows and columns that a subgroup computes.
const PART: u32 = 64;

/// Rows, columns and depth of a matrix unit's operands.
const UNIT: u32 = 16;

/// Elements in a vector of 16 bytes, which is what is loaded and stored.
const EIGHT: u32 = 8;

/// An operand on its way to its tile.
struct Side<'k> {
    k: &'k KernelBuilder,
    buffer: Array<'k>,
    tile: Array<'k>,
    along: Along,
    operator: Operator,
    /// Where the matrix begins, its length and its strides across and along the depth, and where the block begins.
    start: Value<'k>,
    length: Value<'k>,
    stride: Value<'k>,
    depth_stride: Value<'k>,
    first: Value<'k>,
}

impl<'k> Side<'k> {
    fn new(p: &Problem<'k>, operator: Operator, along: Along) -> Self {
        let k = p.k;
        let (name, Matrix { start, row_stride, column_stride }) =
            if operator == Operator::A { ("a", p.a) } else { ("b", p.b) };
        let (length, first, stride, depth_stride) = match operator {
            Operator::A => (p.m, p.first_row, row_stride, column_stride),
            _ => (p.n, p.first_column, column_stride, row_stride),
        };
        let eights = Type::vec4(Scalar::U32);
        let (lines, line) = if along == Along::Depth { (BLOCK[0], DEPTH) } else { (DEPTH, BLOCK[0]) };
        let tile = k.workgroup_array(eights, lines * (line / EIGHT + 1));
        let buffer = k.buffer(name, eights, Access::Read);
        Side { k, buffer, tile, along, operator, start, length, stride, depth_stride, first }
    }

    /// Vectors in a line of the tile, and with the gap that has lines fall into different banks.
    fn line(&self) -> [u32; 2] {
        let eights = if self.along == Along::Depth { DEPTH } else { BLOCK[0] } / EIGHT;
        [eights, eights + 1]
    }

    /// How many times all invocations load a vector for a tile.
    fn turns(&self) -> u32 {
        BLOCK[0] * DEPTH / EIGHT / WORKGROUP
    }

    /// The line and the vector in it that this invocation loads.
    fn place(&self, turn: u32) -> [Value<'k>; 2] {
        let [eights, _] = self.line();
        let lane = self.k.local_index();
        [lane / eights + turn * (WORKGROUP / eights), lane % eights]
    }

    /// Loads this invocation's vectors of the tile that begins at a depth.
    fn load(&self, from: Value<'k>) -> Vec<Value<'k>> {
        let load = |turn| {
            let [line, eight] = self.place(turn);
            // Rows and columns beyond the edge repeat the last ones; they are not stored.
            let index = match self.along {
                Along::Depth => {
                    let place = (self.first + line).min(self.length - 1);
                    self.start + place * self.stride + from + eight * EIGHT
                }
                Along::Other => {
                    let place = (self.first + eight * EIGHT).min(self.length - EIGHT);
                    self.start + (from + line) * self.depth_stride + place
                }
            };
            self.buffer.load(index / EIGHT)
        };
        (0..self.turns()).map(load).collect()
    }

    fn store(&self, loaded: &[Value<'k>]) {
        let [_, pitch] = self.line();
        for (turn, &value) in (0..).zip(loaded) {
            let [line, eight] = self.place(turn);
            self.tile.store(line * pitch + eight, value);
        }
    }

    /// The matrix for a unit, at a place across the depth and at a depth of the tile.
    fn unit(&self, place: Value<'k>, depth: u32) -> Unit<'k> {
        let [_, pitch] = self.line();
        let index = match self.along {
            Along::Depth => place * pitch + depth / EIGHT,
            Along::Other => place / EIGHT + depth * pitch,
        };
        // Lines are rows of `a` along the depth, and of `b` along the other axis.
        let rows = (self.operator == Operator::A) == (self.along == Along::Depth);
        let layout = if rows { MatrixLayout::Rows } else { MatrixLayout::Columns };
        let ty = MatrixType { scalar: Scalar::F16, rows: UNIT, columns: UNIT, operator: self.operator };
        self.tile.load_matrix(index, self.k.u32(pitch), layout, ty)
    }
}

type Unit<'k> = crate::shader::CooperativeMatrix<'k>;

pub fn write<'k>(p: &Problem<'k>, [a, b]: [Along; 2]) {
    let k = p.k;
    let (a, b) = (Side::new(p, Operator::A, a), Side::new(p, Operator::B, b));
    let y = k.buffer("y", Type::F32, Access::Write);
    let subgroup = k.local_index() / 32;
    let (row, column) = (subgroup % (BLOCK[0] / PART) * PART, subgroup / (BLOCK[0] / PART) * PART);
    let ty = MatrixType { scalar: Scalar::F32, rows: UNIT, columns: UNIT, operator: Operator::C };
    let units = PART / UNIT;
    let sums: Vec<MatrixVar> = (0..units * units).map(|_| k.zero_matrix(ty)).collect();
    let multiply = || {
        for depth in (0..DEPTH).step_by(UNIT as usize) {
            let a: Vec<_> = (0..units).map(|i| a.unit(row + i * UNIT, depth)).collect();
            let b: Vec<_> = (0..units).map(|j| b.unit(column + j * UNIT, depth)).collect();
            for (i, &a) in a.iter().enumerate() {
                for j in 0..b.len() {
                    // There and back, so that the operand that was used last is used next.
                    let j = if i % 2 == 0 { j } else { b.len() - 1 - j };
                    let sum = sums[i * b.len() + j];
                    sum.set(a.multiply_add(b[j], sum.get()));
                }
            }
        }
    };
    let sides = [&a, &b];
    for side in sides {
        side.store(&side.load(k.u32(0)));
    }
    k.barrier();
    k.for_step(DEPTH, p.depth, DEPTH, |from| {
        let loaded = sides.map(|side| side.load(from));
        multiply();
        k.barrier();
        for (side, loaded) in sides.into_iter().zip(&loaded) {
            side.store(loaded);
        }
        k.barrier();
    });
    multiply();
    for i in 0..units {
        for j in 0..units {
            let (row, column) = (p.first_row + row + i * UNIT, p.first_column + column + j * UNIT);
            k.when(row.lt(p.m) & column.lt(p.n) & p.real, || {
                let sum = sums[(i * units + j) as usize].get();
                y.store_matrix(p.place(row, column), p.n, MatrixLayout::Rows, sum);
            });
        }
    }
}
