//! Products of a matrix and up to 16 vectors on matrix units, from registers. The matrix is read once. The subgroups of
//! a workgroup share the depth, and each loads a step ahead.

use super::{Along, Matmul, Matrix, Output, ProductBlock, in_runs};
use crate::kernels::elements::halves;
use crate::kernels::expr::UnaryOp;
use crate::kernels::unit_sums::{self, APART, LANES, Member, SHARING, Sums, UNIT};
use crate::shader::{Access, Array, KernelBuilder, MatrixType, MatrixVar, Scalar, Type, Value, Var};

/// Rows of `a`, the vectors, times a matrix `b`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct UnitVectors {
    /// The number of vectors that a workgroup multiplies.
    pub count: u32,
    /// The axis along which 16 bytes of the matrix are contiguous.
    pub along: Along,
    /// Units of columns that a subgroup multiplies by the same vectors, if the matrix is read along the depth.
    pub columns: u32,
    pub subgroups: u32,
    /// True if the depth is a multiple of a step's.
    pub whole: bool,
    /// True if four neighbours of a vector's product are stored together.
    pub stored_quads: bool,
    /// The function of a gate, if the matrix has two columns for each output: the result is the function of the first
    /// one's product, times the second one's. The matrix is read along the depth.
    pub gate: Option<UnaryOp>,
}

/// Elements of 16 bytes.
const LOAD: u32 = 8;

/// Loads of a line in a step, if they lie along the depth.
const LOADS: u32 = 2;

impl UnitVectors {
    /// The most vectors of a workgroup.
    pub const MOST: u32 = UNIT;

    pub fn name(self) -> String {
        let UnitVectors { count, subgroups, whole, stored_quads, gate, .. } = self;
        let along = if self.along == Along::Depth { "depth" } else { "other" };
        let (whole, quads) = (if whole { ", whole" } else { "" }, if stored_quads { ", y x4" } else { "" });
        let (columns, gate) = (self.block()[1], gate.map_or(String::new(), UnaryOp::name_of_gate));
        format!("{count} rows on units, {columns} columns along {along}, {subgroups} subgroups{whole}{quads}{gate}")
    }

    /// Returns sample tiles: both ways to read the matrix, with one and two registers of vectors, and gates.
    pub fn samples() -> Vec<UnitVectors> {
        let sample = |(along, count, columns, whole)| UnitVectors {
            count,
            along,
            columns,
            subgroups: 8,
            whole,
            stored_quads: whole,
            gate: None,
        };
        let (depth, other) = (Along::Depth, Along::Other);
        let plain = [
            (depth, 8, 2, true),
            (depth, 16, 1, true),
            (depth, 5, 1, false),
            (other, 8, 1, true),
            (other, 12, 1, false),
        ];
        let gated = [(depth, 8, 2, true), (depth, 4, 1, false)].map(sample);
        let gated = gated.map(|tile| UnitVectors { gate: Some(UnaryOp::Silu), ..tile });
        plain.map(sample).into_iter().chain(gated).collect()
    }

    /// Invocations per workgroup.
    pub const fn workgroup(self) -> u32 {
        self.subgroups * LANES
    }

    /// The units of a subgroup.
    const fn units(self) -> u32 {
        match self.along {
            Along::Depth => self.columns,
            // A load has eight columns, and a unit has two of them.
            Along::Other => LOAD / 2,
        }
    }

    /// Rows and columns of a workgroup's block.
    pub const fn block(self) -> [u32; 2] {
        [self.count, self.units() * UNIT / if self.gate.is_some() { 2 } else { 1 }]
    }

    /// The depth of a subgroup's step.
    pub const fn step(self) -> u32 {
        match self.along {
            Along::Depth => SHARING * LOAD * LOADS,
            Along::Other => SHARING * LOAD,
        }
    }

    /// The bytes of workgroup memory.
    pub const fn memory(self) -> u32 {
        unit_sums::memory(self.units(), self.subgroups, self.count)
    }
}

/// An operand in runs of 16 bytes along the depth or across it.
struct Operand<'k> {
    buffer: Array<'k>,
    /// Where the lane's lines begin, or its columns at depth 0.
    lines: Vec<Value<'k>>,
    /// The distance to the next depth, if runs lie across it.
    depth_stride: Value<'k>,
    /// What has been loaded for the next step.
    next: Vec<Var<'k>>,
}

/// A workgroup at work.
struct Work<'a, 'k> {
    k: &'k KernelBuilder,
    config: UnitVectors,
    p: &'a ProductBlock<'k>,
    types: [MatrixType; 3],
    member: Member<'k>,
    vectors: Operand<'k>,
    matrix: Operand<'k>,
    sums: Vec<MatrixVar<'k>>,
}

pub fn write<'k>(p: &ProductBlock<'k>, product: &Matmul, config: UnitVectors) {
    let work = Work::new(p, product, config);
    work.add_products();
    work.store(&Output::new(p, product));
}

impl<'a, 'k> Work<'a, 'k> {
    fn new(p: &'a ProductBlock<'k>, product: &Matmul, config: UnitVectors) -> Self {
        let (k, member) = (p.k, Member::new(p.k));
        let types = MatrixType::of_units(product.dtype(), [UNIT; 3]);
        let zero = k.u32(0).splat(4);
        let operand = |name, lines: Vec<Value<'k>>, depth_stride, loads: usize| {
            let buffer = k.buffer(name, Type::vec4(Scalar::U32), Access::Read);
            Operand { buffer, lines, depth_stride, next: (0..loads).map(|_| k.var(zero)).collect() }
        };
        // Beyond the edge, the last line is multiplied again.
        let vector = |line| p.a.index((p.first_row + member.g + line).min(p.m - 1), k.u32(0)) / LOAD;
        let vectors: Vec<_> = (0..config.count).step_by(APART as usize).map(vector).collect();
        let count = vectors.len();
        let (vectors, matrix) = match config.along {
            Along::Depth => {
                let line = |line: u32| {
                    // The columns behind a gate follow all gates.
                    let [_, columns] = config.block();
                    let column = (p.first_column + member.g + line % columns).min(p.n - 1);
                    let behind = p.behind_gates.filter(|_| line >= columns);
                    (p.b.index(k.u32(0), column) + behind.unwrap_or(k.u32(0))) / LOAD
                };
                let lines: Vec<_> = (0..config.columns * UNIT).step_by(APART as usize).map(line).collect();
                let loads = lines.len() * LOADS as usize;
                (operand("a", vectors, k.u32(1), count * LOADS as usize), operand("b", lines, k.u32(1), loads))
            }
            Along::Other => {
                let Matrix { start, row_stride, .. } = p.b;
                let columns = (start + (p.first_column + member.g * LOAD).min(p.n - LOAD)) / LOAD;
                let stride = in_runs(row_stride, LOAD);
                (operand("a", vectors, k.u32(1), count), operand("b", vec![columns], stride, LOAD as usize))
            }
        };
        let sums = (0..config.units()).map(|_| k.zero_matrix(types[2])).collect();
        Work { k, config, p, types, member, vectors, matrix, sums }
    }

    /// Loads what a step multiplies. Beyond the depth, it is 0.
    fn load(&self, step: Value<'k>) {
        let runs = self.p.depth / LOAD;
        let within = |run: Value<'k>| if self.config.whole { run } else { run.min(runs - 1) };
        let or_zero = |run: Value<'k>, vector: Value<'k>| match self.config.whole {
            true => vector,
            false => run.lt(runs).select(vector, 0),
        };
        let along = |operand: &Operand<'k>, loads: u32| {
            let places = operand.lines.iter().flat_map(|&line| (0..loads).map(move |load| (line, load)));
            for (next, (line, load)) in operand.next.iter().zip(places) {
                let run = (step * loads + load) * SHARING + self.member.t;
                next.set(or_zero(run, operand.buffer.load(line + within(run))));
            }
        };
        if self.config.along == Along::Depth {
            along(&self.vectors, LOADS);
            return along(&self.matrix, LOADS);
        }
        along(&self.vectors, 1);
        let (run, stride) = (step * SHARING + self.member.t, self.matrix.depth_stride);
        let first = self.matrix.lines[0] + within(run) * LOAD * stride;
        for (depth, next) in (0..).zip(&self.matrix.next) {
            next.set(or_zero(run, self.matrix.buffer.load(first + stride * depth)));
        }
    }

    /// Goes through the depth. While a step is multiplied, the next one is loaded.
    fn add_products(&self) {
        let (k, step) = (self.k, self.config.step());
        let steps = (self.p.depth + (step - 1)) / step;
        self.load(self.member.subgroup.min(steps - 1));
        k.for_rolled(self.member.subgroup, steps, self.config.subgroups, |step| {
            let [vectors, matrix] = [&self.vectors, &self.matrix]
                .map(|operand| operand.next.iter().map(|next| next.get()).collect::<Vec<_>>());
            // The last step loads once more, and nothing uses it.
            self.load((step + self.config.subgroups).min(steps - 1));
            match self.config.along {
                Along::Depth => self.multiply_along(&vectors, &matrix),
                Along::Other => self.multiply_across(&vectors, &matrix),
            }
        });
    }

    /// Returns the vectors for a unit: the first or the second half of loads.
    fn columns(&self, loads: &[Value<'k>], half: u32) -> Vec<Value<'k>> {
        let words = loads.iter().flat_map(|load| [0, 1].map(|word| load.lane(half * 2 + word)));
        // If there are no more than eight, the other columns are 0.
        words.chain(std::iter::repeat_n(self.k.u32(0), 2)).take(4).collect()
    }

    fn multiply(&self, unit: usize, words: &[Value<'k>], columns: &[Value<'k>]) {
        let [rows, columns] =
            [(self.types[0], words), (self.types[1], columns)].map(|(ty, words)| self.k.matrix_of_words(ty, words));
        let sum = self.sums[unit];
        sum.set(rows.multiply_add(columns, sum.get()));
    }

    fn multiply_along(&self, vectors: &[Value<'k>], matrix: &[Value<'k>]) {
        let loads = LOADS as usize;
        for (load, half) in (0..loads).flat_map(|load| [0, 1].map(|half| (load, half))) {
            let own: Vec<_> = vectors.chunks(loads).map(|line| line[load]).collect();
            let columns = self.columns(&own, half);
            for (unit, lines) in matrix.chunks(2 * loads).enumerate() {
                let words: Vec<_> = [lines[load], lines[loads + load]]
                    .iter()
                    .flat_map(|line| [0, 1].map(|word| line.lane(half * 2 + word)))
                    .collect();
                self.multiply(unit, &words, &columns);
            }
        }
    }

    fn multiply_across(&self, vectors: &[Value<'k>], matrix: &[Value<'k>]) {
        for (half, depths) in (0..).zip(matrix.chunks(4)) {
            let columns = self.columns(vectors, half);
            for unit in 0..self.config.units() {
                // The unit's lines of this lane are two neighbouring columns.
                let line =
                    |upper| [0, 2].map(|depth| halves([depths[depth].lane(unit), depths[depth + 1].lane(unit)], upper));
                self.multiply(unit as usize, &[line(0), line(1)].concat(), &columns);
            }
        }
    }

    fn store(&self, y: &Output<'k>) {
        let UnitVectors { along, subgroups, count: vectors, gate, .. } = self.config;
        let row = |unit: u32, line: u32| match along {
            Along::Depth => self.member.g + (unit * UNIT + line * APART),
            Along::Other => self.member.g * LOAD + (unit * 2 + line),
        };
        let sums = Sums { units: &self.sums, subgroups, vectors, gated: gate.is_some() };
        unit_sums::add_up(self.k, sums, &self.member, row, |[vector, column], fours| {
            let four = gate.map_or(fours[0], |gate| gate.apply(fours[0]) * fours[1]);
            let (vector, column) = (self.p.first_row + vector, self.p.first_column + column);
            let place = |e: u32| [vector, column + e];
            let beside = |first: u32| y.load(self.p, &y.columns(self.p, place(first)[1]), |e| place(first + e));
            let beside: Vec<_> = (0..4).step_by(y.together as usize).map(beside).collect();
            y.store_four(self.p, four, &beside, place);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::dtype::DType;
    use crate::kernels::encoding::Encoding;
    use crate::kernels::{KernelConfig, matmul::MatmulTile};
    use crate::shader::Target;

    #[test]
    fn tiles_take_the_memory_that_they_say() {
        for vectors in UnitVectors::samples() {
            let tile = MatmulTile::UnitVectors(vectors);
            let config = Matmul::of(Encoding::Dense(DType::F16), DType::F32, 0, tile);
            let kernel = KernelConfig::from(config).generate(Target::VULKAN).unwrap();
            assert_eq!(kernel.workgroup_memory, vectors.memory(), "{vectors:?}");
        }
    }
}
