//! Products of a matrix and vectors on matrix units, from registers. A workgroup multiplies up to 16 vectors, so for
//! these the matrix is read once. The subgroups of a workgroup share the depth, and each loads a step ahead.

use super::{Along, Matmul, Matrix, Output, ProductBlock, in_runs};
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
    /// Units of columns that a subgroup multiplies by the same vectors. Across the depth, 1, 2 or 4.
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
            (other, 8, 2, true),
            (other, 12, 4, false),
            (other, 16, 1, true),
        ];
        let gated = [(depth, 8, 2, true), (depth, 4, 1, false)].map(sample);
        let gated = gated.map(|tile| UnitVectors { gate: Some(UnaryOp::Silu), ..tile });
        plain.map(sample).into_iter().chain(gated).collect()
    }

    /// Invocations per workgroup.
    pub const fn workgroup(self) -> u32 {
        self.subgroups * LANES
    }

    /// Rows and columns of a workgroup's block.
    pub const fn block(self) -> [u32; 2] {
        [self.count, self.columns * UNIT / if self.gate.is_some() { 2 } else { 1 }]
    }

    /// Loads of a vector's line in a step.
    const fn loads(self) -> u32 {
        match (self.along, self.columns) {
            // Then a lane has eight loads of 16 bytes of the matrix, else sixteen of 8 or 4.
            (Along::Other, 4) => 1,
            _ => 2,
        }
    }

    /// The depth of a subgroup's step.
    pub const fn step(self) -> u32 {
        SHARING * LOAD * self.loads()
    }

    /// The columns of a load, if the matrix is read across the depth. A unit has two of them.
    const fn run(self) -> u32 {
        2 * self.columns
    }

    /// How many lines of the matrix that a lane has are neighbours.
    const fn neighbours(self) -> u32 {
        let lines = self.columns * 2 / if self.gate.is_some() { 2 } else { 1 };
        if lines < 4 { lines } else { 4 }
    }

    /// The bytes of workgroup memory.
    pub const fn memory(self) -> u32 {
        unit_sums::memory(self.columns * UNIT, self.subgroups, self.count)
    }
}

/// An operand in runs of 16 bytes along the depth, or of 4, 8 or 16 across it.
struct Operand<'k> {
    buffer: Array<'k>,
    /// Where the lane's lines begin, or its columns at depth 0.
    lines: Vec<Value<'k>>,
    /// The distance to the next depth, if runs lie across it.
    depth_stride: Value<'k>,
    /// What has been loaded for the next step: of each line, or of each depth.
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
        let operand = |name, lanes, lines: Vec<Value<'k>>, depth_stride, loads: usize| {
            let ty = Type { scalar: Scalar::U32, lanes };
            let (buffer, zero) = (k.buffer(name, ty, Access::Read), k.number(ty, 0));
            Operand { buffer, lines, depth_stride, next: (0..loads).map(|_| k.var(zero)).collect() }
        };
        // Beyond the edge, the last line is multiplied again.
        let vector = |line| p.a.index((p.first_row + member.g + line).min(p.m - 1), k.u32(0)) / LOAD;
        let vectors: Vec<_> = (0..config.count).step_by(APART as usize).map(vector).collect();
        let loads = config.loads() as usize;
        let count = vectors.len() * loads;
        let vectors = operand("a", 4, vectors, k.u32(1), count);
        let matrix = match config.along {
            Along::Depth => {
                let line = |line: u32| {
                    // The columns behind a gate follow all gates.
                    let outputs = config.block()[1] / APART;
                    let own = unit_sums::row(&member, line % outputs, config.neighbours());
                    let column = (p.first_column + own).min(p.n - 1);
                    let behind = p.behind_gates.filter(|_| line >= outputs);
                    (p.b.index(k.u32(0), column) + behind.unwrap_or(k.u32(0))) / LOAD
                };
                let lines: Vec<_> = (0..config.columns * 2).map(line).collect();
                let count = lines.len() * loads;
                operand("b", 4, lines, k.u32(1), count)
            }
            Along::Other => {
                let (Matrix { start, row_stride, .. }, run) = (p.b, config.run());
                let columns = (start + (p.first_column + member.g * run).min(p.n - run)) / run;
                let stride = in_runs(row_stride, run);
                operand("b", run / 2, vec![columns], stride, LOAD as usize * loads)
            }
        };
        let sums = (0..config.columns).map(|_| k.zero_matrix(types[2])).collect();
        Work { k, config, p, types, member, vectors, matrix, sums }
    }

    /// Loads what a step multiplies. Beyond the depth, it is 0.
    fn load(&self, step: Value<'k>) {
        let count = self.p.depth / LOAD;
        let within = |run: Value<'k>| if self.config.whole { run } else { run.min(count - 1) };
        let or_zero = |run: Value<'k>, vector: Value<'k>| match self.config.whole {
            true => vector,
            false => run.lt(count).select(vector, 0),
        };
        // If a lane has two runs of a line, they are neighbours: each load of the four lanes then touches all of a
        // cache line. If lanes took turns, it would touch half of one.
        let loads = self.config.loads();
        let first = (step * SHARING + self.member.t) * loads;
        let runs: Vec<_> = (0..loads).map(|load| first + load).collect();
        let along = |operand: &Operand<'k>| {
            for (&line, next) in operand.lines.iter().zip(operand.next.chunks(loads as usize)) {
                if self.config.whole {
                    let from = operand.buffer.after(line + first);
                    (0..).zip(next).for_each(|(load, next): (u32, _)| next.set(from.load(load)));
                } else {
                    runs.iter().zip(next).for_each(|(&run, next)| {
                        next.set(or_zero(run, operand.buffer.load(line + within(run))));
                    });
                }
            }
        };
        along(&self.vectors);
        if self.config.along == Along::Depth {
            return along(&self.matrix);
        }
        for (&run, depths) in runs.iter().zip(self.matrix.next.chunks(LOAD as usize)) {
            let first = self.matrix.lines[0] + within(run) * LOAD * self.matrix.depth_stride;
            for (depth, next) in (0..).zip(depths) {
                next.set(or_zero(run, self.matrix.buffer.load(first + self.matrix.depth_stride * depth)));
            }
        }
    }

    /// Goes through the depth. While a step is multiplied, the next one is loaded.
    fn add_products(&self) {
        let (k, step, subgroups) = (self.k, self.config.step(), self.config.subgroups);
        let (first, steps) = (self.member.subgroup, (self.p.depth + (step - 1)) / step);
        k.when(first.lt(steps), || {
            self.load(first);
            k.for_rolled(first + subgroups, steps, subgroups, |next| {
                let loaded = self.loaded();
                self.load(next);
                self.multiply(loaded);
            });
            self.multiply(self.loaded());
        });
    }

    fn loaded(&self) -> [Vec<Value<'k>>; 2] {
        [&self.vectors, &self.matrix].map(|operand| operand.next.iter().map(|next| next.get()).collect())
    }

    /// Multiplies what has been loaded.
    fn multiply(&self, [vectors, matrix]: [Vec<Value<'k>>; 2]) {
        let loads = self.config.loads() as usize;
        for (load, half) in (0..loads).flat_map(|load| [0, 1].map(|half| (load, half))) {
            let own = vectors.chunks(loads).flat_map(|line| words_of(line[load], half));
            // If there are no more than eight vectors, the other columns are 0.
            let own: Vec<_> = own.chain(std::iter::repeat_n(self.k.u32(0), 2)).take(4).collect();
            let columns = self.k.matrix_of_words(self.types[1], &own);
            for (unit, sum) in self.sums.iter().enumerate() {
                let words = match self.config.along {
                    Along::Depth => {
                        let lines = &matrix[unit * 2 * loads..];
                        [lines[load], lines[loads + load]].map(|line| words_of(line, half))
                    }
                    Along::Other => {
                        // The unit's lines of this lane are two neighbouring columns.
                        let depths: Vec<_> = matrix[load * LOAD as usize + half as usize * 4..]
                            .iter()
                            .map(|x| x.lane(unit as u32))
                            .take(4)
                            .collect();
                        [0, 1].map(|upper| [0, 2].map(|depth| self.k.halves([depths[depth], depths[depth + 1]], upper)))
                    }
                };
                let rows = self.k.matrix_of_words(self.types[0], &words.concat());
                sum.set(rows.multiply_add(columns, sum.get()));
            }
        }
    }

    fn store(&self, y: &Output<'k>) {
        let UnitVectors { along, subgroups, count: vectors, gate, .. } = self.config;
        let neighbours = self.config.neighbours();
        let sums = Sums { units: &self.sums, subgroups, vectors, neighbours, gated: gate.is_some() };
        unit_sums::add_up(self.k, sums, &self.member, |[vector, row], fours| {
            let column = match along {
                Along::Depth => row,
                // A lane has the columns of a run: two, or one or two fours.
                Along::Other => {
                    row % (APART * neighbours) / neighbours * self.config.run() + row / (APART * neighbours) * 4
                }
            };
            let four = gate.map_or(fours[0], |gate| gate.apply(fours[0]) * fours[1]);
            let (vector, column) = (self.p.first_row + vector, self.p.first_column + column);
            let place = |e: u32| [vector, column + e];
            let beside = |first: u32| y.load(self.p, &y.columns(self.p, place(first)[1]), |e| place(first + e));
            let beside: Vec<_> = (0..4).step_by(y.together as usize).map(beside).collect();
            y.store_four(self.p, four, &beside, place);
        });
    }
}

/// Returns the first or the second half of a load.
fn words_of(load: Value<'_>, half: u32) -> [Value<'_>; 2] {
    [0, 1].map(|word| load.lane(half * 2 + word))
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
