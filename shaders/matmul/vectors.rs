//! Products of a matrix and a few vectors. Memory bandwidth limits them, so the matrix is read once, several contiguous
//! elements at a time. The members of a workgroup share the depth.

use super::{Along, Matmul, Output, ProductBlock, in_runs};
use crate::kernels::encoding::{Loader, Width};
use crate::kernels::expr::UnaryOp;
use crate::kernels::workgroup::sum_each;
use crate::shader::{Dialect, KernelBuilder, Type, Value, Var};

/// A few vectors times a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Vectors {
    /// The kind of vectors: rows of `a` or columns of `b`.
    pub side: VectorSide,
    /// The number of vectors that a workgroup multiplies.
    pub count: u32,
    /// The axis of the matrix along which the elements of a load are contiguous.
    pub along: Along,
    /// The words of the matrix that are read at a time. They have four elements, or more if they lie along the depth.
    pub words: u32,
    /// True if four neighbours of a vector's product are stored together.
    pub stored_quads: bool,
    /// Invocations per workgroup, and how many of them lie side by side. Each of these has four outputs.
    pub members: [u32; 2],
    /// The lanes of the device's subgroups, if these are used.
    pub subgroup: Option<u32>,
    /// True if the vectors are multiplied by a weight and divided by their root mean square: an RMS norm. They are rows
    /// of `a`, and all runs lie along the depth.
    pub normalized: bool,
    /// The function of a gate, if the matrix has two columns for each output: the result is the function of the first
    /// one's product, times the second one's. The vectors are rows of `a`, and all runs lie along the depth.
    pub gate: Option<UnaryOp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum VectorSide {
    /// Rows of `a`.
    Rows,
    /// Columns of `b`.
    Columns,
}

/// Outputs of a vector that a member sums up. They are stored together.
const OUTPUTS: u32 = 4;

impl Vectors {
    /// The most vectors of a workgroup. If a workgroup has fewer, there are no others.
    pub const MOST: u32 = 8;

    pub fn name(self) -> String {
        let side = if self.side == VectorSide::Rows { "rows" } else { "columns" };
        let along = if self.along == Along::Depth { "depth" } else { "other" };
        let stored = if self.stored_quads { ", y x4" } else { "" };
        let subgroups = if self.subgroup.is_some() { ", subgroups" } else { "" };
        let (words, [members, across]) = (self.words, self.members);
        let normalized = if self.normalized { "normalized " } else { "" };
        let gate = self.gate.map_or(String::new(), UnaryOp::name_of_gate);
        format!(
            "{} {normalized}{side}, along {along} x{words}{stored}, {members} by {across}{subgroups}{gate}",
            self.count
        )
    }

    /// Returns the invocations per workgroup for products of this depth and number of outputs, and how many of them lie
    /// side by side along the outputs. They were the fastest on an H200, and their sums fit 16 KiB.
    pub fn members(along: Along, count: u32, subgroup: Option<u32>, [outputs, depth]: [usize; 2]) -> [u32; 2] {
        if subgroup.is_none_or(|lanes| lanes < 32) {
            return [(512 / count).min(256), if along == Along::Depth { 1 } else { 8 }];
        }
        match along {
            Along::Depth => [if depth < 2048 { 64 } else { 256 }, 1],
            Along::Other if count > 2 || depth < 2048 => [256, 8],
            // If there are few outputs, narrow workgroups give enough of them. If there are many, 16 members side by
            // side read whole lines of memory.
            Along::Other => [1024 / count, if outputs < 8192 { 8 } else { 16 }],
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
            VectorSide::Rows => [self.count, outputs],
            VectorSide::Columns => [outputs, self.count],
        }
    }

    /// Returns how many loads of four matrix elements a member has in flight. If other members hide the latency, few
    /// are enough. Otherwise a member has as many in flight as fit its registers.
    fn loads(self, dialect: Dialect) -> u32 {
        match (self.count, self.along) {
            _ if dialect == Dialect::OpenCl => 4,
            (1, Along::Other) => (32 / self.words).min(16),
            (2, Along::Other) => 16,
            _ => 8,
        }
    }

    /// Whether a member loads a run ahead. With a norm or gates it needs many loads for a run, and NVIDIA's driver
    /// would have few of them in flight, to save registers. On Level Zero they would not fit the registers.
    fn loads_ahead(self, dialect: Dialect) -> bool {
        dialect != Dialect::OpenCl && (self.normalized || self.gate.is_some())
    }
}

/// An operand that is read in runs: where it begins, its strides across and along the depth, its length across the
/// depth, and the block's place there.
struct Operand<'k> {
    x: Loader<'k>,
    start: Value<'k>,
    stride: Value<'k>,
    depth_stride: Value<'k>,
    length: Value<'k>,
    first: Value<'k>,
}

impl<'k> Operand<'k> {
    fn a(p: &ProductBlock<'k>, x: Loader<'k>) -> Self {
        let (stride, depth_stride) = (p.a.row_stride, p.a.column_stride);
        Operand { x, start: p.a.start, stride, depth_stride, length: p.m, first: p.first_row }
    }

    fn b(p: &ProductBlock<'k>, x: Loader<'k>) -> Self {
        let (stride, depth_stride) = (p.b.column_stride, p.b.row_stride);
        Operand { x, start: p.b.start, stride, depth_stride, length: p.n, first: p.first_column }
    }

    /// Returns the first run at a place of the block, if runs lie along the depth. Beyond the edge, the last place is
    /// read again.
    fn line(&self, place: u32) -> Value<'k> {
        (self.start + (self.first + place).min(self.length - 1) * self.stride) / self.x.length()
    }

    /// Returns the run from a place of the block on at depth 0, if runs lie across the depth. Beyond the edge, the last
    /// run is read again.
    fn column(&self, place: Value<'k>) -> Value<'k> {
        (self.start + (self.first + place).min(self.length - self.x.length())) / self.x.length()
    }
}

struct VectorKernel<'a, 'k> {
    k: &'k KernelBuilder,
    config: Vectors,
    p: &'a ProductBlock<'k>,
    vectors: Operand<'k>,
    matrix: Operand<'k>,
    /// The weights of a norm of the vectors, and what is added to the mean of their squares.
    norm: Option<(Loader<'k>, Value<'k>)>,
}

pub fn write<'k>(p: &ProductBlock<'k>, product: &Matmul, config: Vectors) {
    let k = p.k;
    // A load of the vectors covers as much depth as a load of the matrix. If the matrix is read across the depth, it
    // covers four elements, or one word of a single vector. With single words, a member goes down pairs of halves,
    // which is faster there (on an H200).
    let single = config.along == Along::Other && config.count == 1;
    let vector_words = if single { 1 } else { config.words };
    let [a_words, b_words] = match config.side {
        VectorSide::Rows => [vector_words, config.words],
        VectorSide::Columns => [config.words, vector_words],
    };
    let a = p.loader(product.a, "a", Width::Words(a_words));
    let b = p.loader(product.b, "b", Width::Words(b_words));
    let (a, b) = (Operand::a(p, a), Operand::b(p, b));
    let (vectors, matrix) = if config.side == VectorSide::Rows { (a, b) } else { (b, a) };
    let weights = |eps| (p.loader(product.a, "norm", Width::Words(config.words)), eps);
    let kernel = VectorKernel { k, config, p, vectors, matrix, norm: p.eps.map(weights) };
    let y = &Output::new(p, product);
    match config.along {
        Along::Depth => kernel.along_depth(y),
        Along::Other => kernel.along_outputs(y),
    }
}

impl<'k> VectorKernel<'_, 'k> {
    /// Visits every `stride`th run of the vectors from `first` on, several at a time.
    fn each_run(&self, first: Value<'k>, stride: u32, at_a_time: u32, visit: impl Fn(&[Value<'k>])) {
        let k = self.k;
        let runs = self.p.depth / self.vectors.x.length();
        let whole = if at_a_time > 1 { runs - runs % (stride * at_a_time) } else { runs };
        k.for_step(first, whole, stride * at_a_time, |run| {
            visit(&(0..at_a_time).map(|i| run + i * stride).collect::<Vec<_>>());
        });
        if at_a_time > 1 {
            k.for_step(whole + first, runs, stride, |run| visit(&[run]));
        }
    }

    /// Visits the runs of a member, one at a time. What a run needs is loaded while the one before is visited.
    fn each_run_ahead(&self, load: impl Fn(Value<'k>) -> Vec<Value<'k>>, visit: impl Fn(&[Value<'k>])) {
        let (k, stride) = (self.k, self.config.workgroup());
        let runs = self.p.depth / self.vectors.x.length();
        let next: Vec<_> = load(k.local_index().min(runs - 1)).into_iter().map(|packed| k.var(packed)).collect();
        k.for_rolled(k.local_index(), runs, stride, |run| {
            let loaded: Vec<_> = next.iter().map(|next| next.get()).collect();
            k.when((run + stride).lt(runs), || {
                next.iter().zip(load(run + stride)).for_each(|(next, packed)| next.set(packed));
            });
            visit(&loaded);
        });
    }

    /// Returns the first runs of the vectors.
    fn lines(&self) -> Vec<Value<'k>> {
        (0..self.config.count).map(|vector| self.vectors.line(vector)).collect()
    }

    fn zeros(&self, count: u32, ty: Type) -> Vec<Var<'k>> {
        (0..count).map(|_| self.k.var(self.k.number(ty, 0))).collect()
    }

    /// Stores four neighbours of a vector's product.
    fn store(&self, y: &Output<'k>, vector: Value<'k>, output: Value<'k>, four: Value<'k>) {
        let (vector, output) = (self.vectors.first + vector, self.matrix.first + output);
        let place = |e| match self.config.side {
            VectorSide::Rows => [vector, output + e],
            VectorSide::Columns => [output + e, vector],
        };
        let beside = |first: u32| y.load(self.p, &y.columns(self.p, place(first)[1]), |e| place(first + e));
        let beside: Vec<_> = (0..4).step_by(y.together as usize).map(beside).collect();
        y.store_four(self.p, four, &beside, place);
    }

    /// Runs lie along the depth: each member takes some of the runs of a few outputs.
    fn along_depth(&self, y: &Output<'k>) {
        let (k, config) = (self.k, self.config);
        let (x, w) = (&self.vectors.x, &self.matrix.x);
        let (x_lines, w_lines) = (self.lines(), [0, 1, 2, 3].map(|output| self.matrix.line(output)));
        // The columns behind a gate follow all gates.
        let behind = self.p.behind_gates.map(|distance| w_lines.map(|line| line + distance / w.length()));
        let w_lines: Vec<_> = w_lines.into_iter().chain(behind.into_iter().flatten()).collect();
        let sums = self.zeros(config.count * w_lines.len() as u32, self.p.accumulator);
        let squares = self.zeros(if self.norm.is_some() { config.count } else { 0 }, self.p.accumulator);
        // In this order: a run of each line of the matrix, a run of each vector, and a run of the norm's weights.
        let load = |run: Value<'k>| -> Vec<Value<'k>> {
            let ws = w_lines.iter().map(|&line| w.load_packed(line + run));
            let xs = x_lines.iter().map(|&line| x.load_packed(line + run));
            ws.chain(xs).chain(self.norm.as_ref().map(|(weights, _)| weights.load_packed(run))).collect()
        };
        let add = |packed: &[Value<'k>]| {
            let (ws, others) = packed.split_at(w_lines.len());
            let (xs, weights) = others.split_at(x_lines.len());
            let ws: Vec<_> = ws.iter().map(|&packed| w.unpack(packed)).collect();
            let weights = self.norm.as_ref().zip(weights.first()).map(|((loader, _), &packed)| loader.unpack(packed));
            for (vector, (&packed, sums)) in xs.iter().zip(sums.chunks(w_lines.len())).enumerate() {
                let mut x = x.unpack(packed);
                if let Some(weights) = &weights {
                    let square = &squares[vector];
                    square.set(x.iter().fold(square.get(), |sum, &x| x.fma(x, sum)));
                    x.iter_mut().zip(weights).for_each(|(x, &weight)| *x = *x * weight);
                }
                for (sum, w) in sums.iter().zip(&ws) {
                    let add = |sum, (&x, &w): (&Value<'k>, &Value<'k>)| self.p.add_product(sum, x, w);
                    sum.set(x.iter().zip(w).fold(sum.get(), add));
                }
            }
        };
        if config.loads_ahead(k.target().dialect) {
            self.each_run_ahead(load, add);
        } else {
            let loads = config.loads(k.target().dialect) * 4 / w.length();
            self.each_run(k.local_index(), config.workgroup(), (loads / OUTPUTS).max(1), |runs| {
                let loaded: Vec<_> = runs.iter().map(|&run| load(run)).collect();
                loaded.iter().for_each(|loaded| add(loaded));
            });
        }
        let groups: Vec<Vec<_>> = sums
            .chunks(w_lines.len())
            .enumerate()
            .map(|(vector, sums)| sums.iter().chain(squares.get(vector)).map(|sum| sum.get()).collect())
            .collect();
        self.finish(y, &groups, 1);
    }

    /// Adds up each number over all members that are `stride` apart, and stores the results. A member has a group of
    /// numbers for each vector: four neighbours of its product, and the same behind gates, then the sum of the squares
    /// of a vector to be normalised. The quads of the first `stride` members lie side by side.
    fn finish(&self, y: &Output<'k>, groups: &[Vec<Value<'k>>], stride: u32) {
        let (k, lanes) = (self.k, self.config.workgroup());
        sum_each(k, (lanes, stride), self.config.subgroup, groups, |vector, column, sums| {
            let norm = self.norm.as_ref().zip(sums.last()).map(|((_, eps), squares)| {
                let depth = self.p.depth.convert(squares.ty().scalar);
                (squares.divide(depth) + *eps).sqrt().splat(4)
            });
            let four = |first: usize| {
                let four = k.vector(&sums[first..][..4]);
                norm.map_or(four, |norm| four / norm)
            };
            let result = self.config.gate.map_or_else(|| four(0), |gate| gate.apply(four(0)) * four(4));
            self.store(y, vector, column * 4, result);
        });
    }

    /// Quads lie along the outputs: each member takes one quad at some depths.
    fn along_outputs(&self, y: &Output<'k>) {
        let (k, count, [lanes, across]) = (self.k, self.config.count, self.config.members);
        let (column, line) = (k.local_index() % across, k.local_index() / across);
        let (x, w) = (&self.vectors.x, &self.matrix.x);
        let (x_lines, w_column) = (self.lines(), self.matrix.column(column * 4));
        let w_stride = in_runs(self.matrix.depth_stride, w.length());
        let sums = self.zeros(count, Type { lanes: 4, ..self.p.accumulator });
        let loads = self.config.loads(k.target().dialect) / x.length();
        self.each_run(line, lanes / across, loads, |runs| {
            let four = |depth| k.vector(&w.load_each(w_column + depth * w_stride));
            let fours = |run: Value<'k>| (0..x.length()).map(|e| four(run * x.length() + e)).collect();
            let ws: Vec<Vec<_>> = runs.iter().map(|&run| fours(run)).collect();
            for (&run, ws) in runs.iter().zip(&ws) {
                for (&line, sum) in x_lines.iter().zip(&sums) {
                    let add = |sum, (&x, &w): (&Value<'k>, &Value<'k>)| self.p.add_product(sum, x.splat(4), w);
                    sum.set(x.load_each(line + run).iter().zip(ws).fold(sum.get(), add));
                }
            }
        });
        let groups: Vec<_> = sums.iter().map(|sum| (0..4).map(|e| sum.get().lane(e)).collect()).collect();
        self.finish(y, &groups, across);
    }
}
