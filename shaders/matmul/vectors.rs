//! Products of a matrix and a few vectors, bound by memory: the matrix is read once, by fours that lie side by side, and
//! the members of a workgroup have parts of the depth each.

use super::{Along, Matmul, Output, Problem};
use crate::dtype::DType;
use crate::kernels::elements::Quads;
use crate::kernels::workgroup::tree;
use crate::shader::{Array, Dialect, KernelBuilder, Type, Value, Var};

/// A few vectors times a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Vectors {
    /// What the vectors are.
    pub side: Side,
    /// How many a workgroup multiplies.
    pub count: u32,
    /// Which axis of the matrix its fours lie along.
    pub along: Along,
    /// Whether four neighbours of a vector's product are stored together.
    pub stored_quads: bool,
    /// Invocations per workgroup, and how many of them lie side by side, each with a four of outputs.
    pub members: [u32; 2],
    /// The lanes of the device's subgroups, if these are used.
    pub subgroup: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    /// Rows of `a`.
    Rows,
    /// Columns of `b`.
    Columns,
}

/// Numbers of a vector's product that a member sums up: they are stored together.
const OUTPUTS: u32 = 4;

impl Vectors {
    /// The most vectors of a workgroup.
    pub const MOST: u32 = 8;

    pub fn name(self) -> String {
        let side = if self.side == Side::Rows { "rows" } else { "columns" };
        let along = if self.along == Along::Depth { "depth" } else { "other" };
        let stored = if self.stored_quads { ", y x4" } else { "" };
        let subgroups = if self.subgroup.is_some() { ", subgroups" } else { "" };
        let [members, across] = self.members;
        format!("{} {side}, along {along}{stored}, {members} by {across}{subgroups}", self.count)
    }

    /// So many members for products of this depth and so many outputs, as were the fastest on an H200 and as have room for
    /// their sums in 16 KiB; and how many of them lie side by side where the fours are along the outputs.
    pub fn members(along: Along, count: u32, subgroup: Option<u32>, [outputs, depth]: [usize; 2]) -> [u32; 2] {
        if subgroup.is_none_or(|lanes| lanes < 32) {
            return [(512 / count).min(256), if along == Along::Depth { 1 } else { 8 }];
        }
        match along {
            Along::Depth => match depth {
                ..2048 => [64, 1],
                2048..8192 => [256, 1],
                _ => [128, 1],
            },
            Along::Other if count > 2 => [256, 8],
            // Enough workgroups first, then whole lines of memory.
            Along::Other => [512, if outputs < 8192 { 8 } else { 16 }],
        }
    }

    /// Invocations per workgroup.
    pub const fn workgroup(self) -> u32 {
        self.members[0]
    }

    /// Rows and columns of a workgroup's block.
    pub const fn block(self) -> [u32; 2] {
        let outputs = OUTPUTS * self.members[1];
        match self.side {
            Side::Rows => [self.count, outputs],
            Side::Columns => [outputs, self.count],
        }
    }

    /// Loads of the matrix that a member has on their way at a time, as many as stay in its registers.
    fn loads(self, dtype: DType, dialect: Dialect) -> u32 {
        match (self.count, self.members[1]) {
            _ if dialect == Dialect::OpenCl => 4,
            (1, 8) if dtype.size_in_bytes() == 2 => 32,
            (1 | 2, _) => 16,
            _ => 8,
        }
    }
}

/// One of the operands: where it begins, its strides across the depth and along it, its length and the block's place across.
struct Operand<'k> {
    start: Value<'k>,
    stride: Value<'k>,
    depth_stride: Value<'k>,
    length: Value<'k>,
    first: Value<'k>,
}

impl<'k> Operand<'k> {
    fn a(p: &Problem<'k>) -> Self {
        let (stride, depth_stride) = (p.a.row_stride, p.a.column_stride);
        Operand { start: p.a.start, stride, depth_stride, length: p.m, first: p.first_row }
    }

    fn b(p: &Problem<'k>) -> Self {
        let (stride, depth_stride) = (p.b.column_stride, p.b.row_stride);
        Operand { start: p.b.start, stride, depth_stride, length: p.n, first: p.first_column }
    }

    /// The index of what is at a place of the block and a depth. Beyond the edge the last of `fours` are read again.
    fn index(&self, place: Value<'k>, depth: Value<'k>, last: u32) -> Value<'k> {
        self.start + (self.first + place).min(self.length - last) * self.stride + depth * self.depth_stride
    }
}

struct Kernel<'a, 'k> {
    k: &'k KernelBuilder,
    config: Vectors,
    dtype: DType,
    p: &'a Problem<'k>,
    vectors: Operand<'k>,
    x: Quads<'k>,
    matrix: Operand<'k>,
    w: Quads<'k>,
}

pub fn write<'k>(p: &Problem<'k>, product: &Matmul, config: Vectors) {
    let (k, dtype) = (p.k, product.read_as());
    let (a, b) = (Quads::input(k, "a", dtype), Quads::input(k, "b", dtype));
    let [(vectors, x), (matrix, w)] = match config.side {
        Side::Rows => [(Operand::a(p), a), (Operand::b(p), b)],
        Side::Columns => [(Operand::b(p), b), (Operand::a(p), a)],
    };
    let kernel = Kernel { k, config, dtype, p, vectors, x, matrix, w };
    let y = &Output::new(p, product);
    match config.along {
        Along::Depth => kernel.along_depth(y),
        Along::Other => kernel.along_outputs(y),
    }
}

impl<'k> Kernel<'_, 'k> {
    /// Four numbers of a vector from a depth on.
    fn load_vector(&self, vector: u32, depth: Value<'k>) -> Value<'k> {
        self.x.load(self.k, self.vectors.index(self.k.u32(vector), depth, 1) / 4)
    }

    /// Visits every `stride`th four of the depth from `first` on, several at a time.
    fn each_four(&self, first: Value<'k>, stride: u32, at_a_time: u32, visit: impl Fn(&[Value<'k>])) {
        let k = self.k;
        let fours = self.p.depth / 4;
        let whole = if at_a_time > 1 { fours - fours % (stride * at_a_time) } else { fours };
        k.for_step(first, whole, stride * at_a_time, |four| {
            visit(&(0..at_a_time).map(|i| (four + i * stride) * 4).collect::<Vec<_>>());
        });
        if at_a_time > 1 {
            k.for_step(whole + first, fours, stride, |four| visit(&[four * 4]));
        }
    }

    fn zeros(&self, count: u32, ty: Type) -> Vec<Var<'k>> {
        (0..count).map(|_| self.k.var(self.k.number(ty, 0))).collect()
    }

    /// Stores four neighbours of a vector's product.
    fn store(&self, y: &Output<'k>, vector: Value<'k>, output: Value<'k>, four: Value<'k>) {
        let (vector, output) = (self.vectors.first + vector, self.matrix.first + output);
        let place = |e| match self.config.side {
            Side::Rows => [vector, output + e],
            Side::Columns => [output + e, vector],
        };
        let beside = |first: u32| y.load(self.p, &y.columns(self.p, place(first)[1]), |e| place(first + e));
        let beside: Vec<_> = (0..4).step_by(y.together as usize).map(beside).collect();
        y.store_four(self.p, four, &beside, place);
    }

    /// Fours along the depth: each member has some of them of a few outputs.
    fn along_depth(&self, y: &Output<'k>) {
        let (k, count, lanes) = (self.k, self.config.count, self.config.workgroup());
        let sums = self.zeros(count * OUTPUTS, self.p.accumulator);
        self.each_four(k.local_index(), lanes, self.config.loads(self.dtype, k.target().dialect) / OUTPUTS, |depths| {
            let w = |depth| (0..OUTPUTS).map(move |output| self.matrix.index(k.u32(output), depth, 1) / 4);
            let w: Vec<Vec<_>> =
                depths.iter().map(|&depth| w(depth).map(|quad| self.w.load(k, quad)).collect()).collect();
            for (&depth, w) in depths.iter().zip(&w) {
                for (vector, sums) in (0..).zip(sums.chunks(OUTPUTS as usize)) {
                    let x = self.load_vector(vector, depth);
                    for (sum, w) in sums.iter().zip(w) {
                        let dot = |sum, e| self.p.add_product(sum, x.lane(e), w.lane(e));
                        sum.set((0..4).fold(sum.get(), dot));
                    }
                }
            }
        });
        let sums = sums.iter().map(|sum| sum.get()).collect();
        let totals = self.across_workgroup(sums, 1);
        k.when(k.local_index().lt(count), || {
            let first = k.local_index() * OUTPUTS;
            let four = k.vector(&[0, 1, 2, 3].map(|e| totals.load(first + e)));
            self.store(y, k.local_index(), k.u32(0), four);
        });
    }

    /// The sums of each number over all members that are `stride` apart, in workgroup memory: those of the first members'
    /// first numbers, then of their second ones.
    fn across_workgroup(&self, numbers: Vec<Value<'k>>, stride: u32) -> Array<'k> {
        let (k, lanes, lane) = (self.k, self.config.workgroup(), self.k.local_index());
        let (count, ty) = (numbers.len() as u32, numbers[0].ty());
        // The lanes of a subgroup combine theirs, by exchange with ever farther ones.
        let subgroup = self.config.subgroup.filter(|&size| size > stride).unwrap_or(stride);
        let exchanged = |number: Value<'k>| {
            let distances = std::iter::successors(Some(stride), |distance| Some(distance * 2));
            let distances = distances.take_while(|&distance| distance < subgroup);
            distances.fold(number, |sum, distance| sum + sum.subgroup_shuffle(k.subgroup_lane() ^ distance))
        };
        let per_number = lanes / subgroup * stride;
        let pitch = per_number + 1;
        let parts = k.workgroup_array(ty, count * pitch);
        let place = lane / subgroup * stride + lane % stride;
        let numbers: Vec<_> = numbers.into_iter().map(exchanged).collect();
        k.when((lane % subgroup).lt(stride), || {
            for (i, &number) in (0..).zip(&numbers) {
                parts.store(place + i * pitch, number);
            }
        });
        k.barrier();
        let totals = k.workgroup_array(ty, count * stride);
        k.when(lane.lt(count * stride), || {
            let first = lane / stride * pitch + lane % stride;
            let parts = (0..per_number / stride).map(|i| parts.load(first + i * stride)).collect();
            totals.store(lane, tree(parts, &|&a, &b| a + b));
        });
        k.barrier();
        totals
    }

    /// Fours along the outputs: each member has one of them at some depths.
    fn along_outputs(&self, y: &Output<'k>) {
        let (k, count, [lanes, across]) = (self.k, self.config.count, self.config.members);
        let (column, line) = (k.local_index() % across, k.local_index() / across);
        let down = lanes / across;
        let wide = Type { lanes: 4, ..self.p.accumulator };
        let sums = self.zeros(count, wide);
        self.each_four(line, down, self.config.loads(self.dtype, k.target().dialect) / 4, |depths| {
            let w = |depth: Value<'k>| (0..4).map(move |e| self.matrix.index(column * 4, depth + e, 4) / 4);
            let w: Vec<Vec<_>> =
                depths.iter().map(|&depth| w(depth).map(|quad| self.w.load(k, quad)).collect()).collect();
            for (&depth, w) in depths.iter().zip(&w) {
                for (vector, sum) in (0..).zip(&sums) {
                    let x = self.load_vector(vector, depth);
                    let add = |sum, (e, &w): (u32, &Value<'k>)| self.p.add_product(sum, x.lane(e).splat(4), w);
                    sum.set((0..).zip(w).fold(sum.get(), add));
                }
            }
        });
        let sums = sums.iter().map(|sum| sum.get()).collect();
        let totals = self.across_workgroup(sums, across);
        k.when(k.local_index().lt(count * across), || {
            self.store(y, line, column * 4, totals.load(k.local_index()));
        });
    }
}
