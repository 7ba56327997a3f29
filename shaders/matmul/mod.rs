//! Batched matrix products `y = a b` over operands of any strides, accumulated in 32 bits or more. Each kind of tile
//! has a file.

mod blocked;
mod broadcast;
mod cooperative;
mod exit;
mod fragments;
mod lane_sums;
pub(crate) mod loose;
mod registers;
mod unit_operand;
mod unit_vectors;
mod vectors;
mod windows;

pub(crate) use blocked::{Along, Block, Reading};
pub(crate) use broadcast::{Broadcast, QUAD};
pub(crate) use cooperative::{UnitLayout, UnitReading};
pub(crate) use unit_vectors::UnitVectors;
pub(crate) use vectors::{VectorSide, Vectors};
pub(crate) use windows::{Windows, WindowsParameters};

use self::windows::{DeclaredWindows, Lines};
use super::blocks::{BlockMatrix, DeclaredMatrix, fit_halves};
use super::elements::{Quads, Runs, Strides};
use super::elementwise::InputLayout;
use super::encoding::{Encoding, Loader, Width};
use super::epilogue::{self, Epilogue, EpilogueInput, Finishing, Tail};
use super::parameters::{Float, Form, Lengths, Size, View, parameters};
use super::{Family, Units, volume};
use crate::base::block_format::BlockFormat;
use crate::base::dtype::DType;
use crate::kernels::elementwise::outputs;
use crate::kernels::expr::{BinaryOp, Expr, TermId, UnaryOp};
use crate::shader::{Access, Array, KernelBuilder, Type, Value};
use crate::tuning::{Fragments, UnitBlock};

/// How the work is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum MatmulTile {
    /// Each workgroup computes a block from tiles of both operands in workgroup memory.
    Workgroup(Block),
    /// Each workgroup computes a block on matrix units.
    MatrixUnits(UnitBlock, UnitLayout),
    /// Each workgroup computes a few outputs for a few vectors.
    Vectors(Vectors),
    /// The same on matrix units.
    UnitVectors(UnitVectors),
    /// Lanes broadcast the elements of `a` to each other. For software devices: their loads are slow, and workgroup
    /// memory is no faster.
    Broadcast(Broadcast),
    /// Each invocation computes 8 rows of some columns from registers alone, for any strides. For software devices.
    Registers {
        /// Columns per invocation. With more columns, each element of `a` is used more often.
        columns: u32,
    },
}

/// A matrix product. `y` is in row-major order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Matmul {
    /// The left operand. Depths, offsets and strides count its factors.
    pub a: Encoding,
    /// The right operand. Its factors have as many elements as the left operand's.
    pub b: Encoding,
    /// The dtype of `y`: the dtype of the sums, or another one to which they are rounded. With an epilogue, it is the
    /// epilogue's dtype.
    pub output: DType,
    pub batch_rank: usize,
    /// If the rows of the left operand are the windows of a convolution, their form.
    pub windows: Option<Windows>,
    pub tile: MatmulTile,
    /// The expression that the kernel computes from the product before it stores it.
    pub epilogue: Option<Box<Epilogue>>,
}

/// The form of a product's own parameters, without the epilogue's.
pub(crate) struct Sizes {
    pub batch_rank: usize,
}

parameters! {
    config: Sizes;
    host: SizeParameters;
    device: DeclaredSizes;
    /// The number of products.
    batches: Size,
    m: Size,
    n: Size,
    /// The depth, k.
    depth: Size,
    /// The lengths of the batch axes.
    lengths: Lengths = Lengths(config.batch_rank),
    /// Along the batch axes, rows and columns.
    a: View = View(config.batch_rank + 2),
    /// Along the batch axes, rows and columns.
    b: View = View(config.batch_rank + 2),
}

parameters! {
    config: Matmul;
    host: Parameters;
    device: Declared;
    sizes: Sizes = config.sizes(),
    windows: Option<Windows> = config.windows,
    /// The right operand, if it is quantised. A column of the operand is a row of the quantised matrix.
    matrix: Option<BlockMatrix> = config.b.matrix(),
    /// What a norm of the rows adds to the mean of their squares.
    eps: Option<Float> = config.tile.is_normalized().then_some(Float(config.dtype())),
    /// The distance in elements from the column of a gate to the one that it gates.
    behind_gates: Option<Size> = config.tile.is_gated().then_some(Size),
    /// The depth of the last part. All others have the depth of the sizes.
    last_depth: Option<Size> = config.tile.has_unequal_parts().then_some(Size),
    epilogue: Option<Epilogue> => config.epilogue.as_deref(),
}

impl Matmul {
    /// Returns a product of two operands of one encoding, without an epilogue.
    pub fn of(operands: Encoding, output: DType, batch_rank: usize, tile: MatmulTile) -> Matmul {
        Matmul { a: operands, b: operands, output, batch_rank, windows: None, tile, epilogue: None }
    }

    /// True if the rows of the left operand are windows that begin anywhere.
    pub fn is_of_loose_windows(&self) -> bool {
        self.windows.is_some_and(|windows| windows.loose)
    }

    fn sizes(&self) -> Sizes {
        Sizes { batch_rank: self.batch_rank }
    }

    /// Returns the name, the term and the dtype of what is stored beside the epilogue's result.
    fn kept(&self) -> impl Iterator<Item = (String, TermId, DType)> {
        self.epilogue.iter().flat_map(|epilogue| outputs(&epilogue.expr, &epilogue.kept).skip(1))
    }

    /// The dtype of the operands' elements.
    pub fn dtype(&self) -> DType {
        self.a.dtype()
    }

    /// Returns the length in memory of a row of `y` with `n` columns.
    pub fn row(&self, n: usize) -> usize {
        self.tile.row(n, self.output)
    }
}

impl MatmulTile {
    /// Rows and columns of a workgroup's block.
    pub const fn block(self) -> [u32; 2] {
        match self {
            MatmulTile::Workgroup(block) => block.shape,
            MatmulTile::MatrixUnits(block, _) => block.shape,
            MatmulTile::Vectors(vectors) => vectors.block(),
            MatmulTile::UnitVectors(vectors) => vectors.block(),
            MatmulTile::Broadcast(broadcast) => broadcast.block(),
            MatmulTile::Registers { columns } => registers::block(columns),
        }
    }
}

impl MatmulTile {
    /// True if rows are normalised as they are multiplied. The kernel binds the norm's weights after its operands.
    pub const fn is_normalized(self) -> bool {
        matches!(self, MatmulTile::Vectors(Vectors { normalized: true, .. }))
    }

    /// True if the right operand has two columns for each output, one of which is a gate.
    pub const fn is_gated(self) -> bool {
        match self {
            MatmulTile::Vectors(Vectors { gate, .. }) | MatmulTile::UnitVectors(UnitVectors { gate, .. }) => {
                gate.is_some()
            }
            _ => false,
        }
    }

    /// True if workgroups compute parts of a block's depth, and the last of them adds up all parts.
    pub const fn has_parts(self) -> bool {
        matches!(self, MatmulTile::MatrixUnits(_, UnitLayout { parts: true, .. }))
    }

    /// True if the last part of the depth may be shorter than the others.
    pub const fn has_unequal_parts(self) -> bool {
        matches!(self, MatmulTile::MatrixUnits(_, UnitLayout { parts: true, whole: false, .. }))
    }

    /// Returns what depths of parts are multiples of, for elements of this many bytes.
    pub const fn depth_step(self, bytes: usize) -> usize {
        match self {
            MatmulTile::MatrixUnits(block, _) => block.depth as usize / bytes,
            _ => 1,
        }
    }

    /// Returns the length in memory of a row with `n` columns of a dtype. If matrix units store whole vectors, rows are
    /// padded.
    pub fn row(self, n: usize, dtype: DType) -> usize {
        match self {
            MatmulTile::MatrixUnits(_, UnitLayout { single: false, .. }) => {
                n.next_multiple_of(16 / dtype.size_in_bytes())
            }
            _ => n,
        }
    }

    /// Returns the tile that stores rows of `n` elements of a dtype without padding, if it is one of matrix units.
    pub fn with_rows(self, n: usize, dtype: DType) -> Self {
        match self {
            MatmulTile::MatrixUnits(block, layout) => {
                let single = !n.is_multiple_of(16 / dtype.size_in_bytes());
                MatmulTile::MatrixUnits(block, UnitLayout { single, ..layout })
            }
            _ => self,
        }
    }

    /// How many neighbours are stored together.
    pub fn stored_together(self) -> u32 {
        match self {
            MatmulTile::Workgroup(Block { quads: true, .. })
            | MatmulTile::Vectors(Vectors { stored_quads: true, .. })
            | MatmulTile::UnitVectors(UnitVectors { stored_quads: true, .. }) => 4,
            MatmulTile::MatrixUnits(_, UnitLayout { single: false, .. }) => 4,
            MatmulTile::Broadcast(Broadcast { pairs: true, .. }) => 2,
            _ => 1,
        }
    }

    /// True if elements of a dtype can be stored.
    pub fn stores(self, dtype: DType) -> bool {
        match (self, self.stored_together()) {
            (MatmulTile::MatrixUnits(..), _) | (_, 2) => matches!(dtype.size_in_bytes(), 2 | 4),
            (_, 4) => true,
            _ => dtype.size_in_bytes() >= 4,
        }
    }
}

/// Rows of blocks in a band. Consecutive workgroups compute the blocks of one band, so that they find their operands in
/// caches.
const BAND: u32 = 8;

/// The sizes and operands of the product, and the block that a workgroup computes.
struct ProductBlock<'k> {
    k: &'k KernelBuilder,
    m: Value<'k>,
    n: Value<'k>,
    /// The depth of the product, or of this workgroup's part of it.
    depth: Value<'k>,
    /// Where the part begins, if the depth is split.
    part_begins: Option<Value<'k>>,
    /// The matrices of the batch.
    a: Matrix<'k>,
    b: Matrix<'k>,
    /// The encoding of the factors.
    encoding: Encoding,
    /// The type of sums.
    accumulator: Type,
    batch: Value<'k>,
    last_batch: Value<'k>,
    /// True if the workgroup has a block to compute: a folded dispatch has surplus workgroups.
    real: Value<'k>,
    first_row: Value<'k>,
    first_column: Value<'k>,
    /// The part of the depth that this workgroup computes, if the depth is split.
    part: Option<Part<'k>>,
    /// The right operand, if it is quantised.
    matrix: Option<DeclaredMatrix<'k>>,
    /// The windows that are the rows of the left operand, if they are not in memory.
    windows: Option<DeclaredWindows<'k>>,
    /// What a norm of the rows adds to the mean of their squares.
    eps: Option<Value<'k>>,
    /// The distance in elements from the column of a gate to the one that it gates.
    behind_gates: Option<Value<'k>>,
    /// The parameters of the epilogue.
    epilogue: Option<epilogue::Declared<'k>>,
}

/// A part of the depth of a block.
#[derive(Clone, Copy)]
struct Part<'k> {
    /// The number of this part, and the number of parts of a block.
    number: Value<'k>,
    count: Value<'k>,
    /// The number of the block among the blocks of all products.
    block: Value<'k>,
}

/// A matrix in a buffer.
#[derive(Clone, Copy)]
struct Matrix<'k> {
    start: Value<'k>,
    row_stride: Value<'k>,
    column_stride: Value<'k>,
}

impl<'k> Matrix<'k> {
    fn new(k: &'k KernelBuilder, at: &Strides<'k>, batch: &[Value<'k>]) -> Self {
        let start = at.at(&[batch, &[k.u32(0), k.u32(0)]].concat());
        Matrix { start, row_stride: at.stride(2), column_stride: at.stride(1) }
    }

    fn index(&self, row: Value<'k>, column: Value<'k>) -> Value<'k> {
        self.start + row * self.row_stride + column * self.column_stride
    }
}

/// Converts a distance from elements to runs of `length` elements, a power of two. The distance may be negative.
fn in_runs(stride: Value<'_>, length: u32) -> Value<'_> {
    (stride.bitcast(Type::I32) >> length.ilog2() as i32).bitcast(Type::U32)
}

impl<'k> ProductBlock<'k> {
    fn new(k: &'k KernelBuilder, config: &Matmul) -> Self {
        let Declared { sizes, windows, matrix, eps, behind_gates, last_depth, epilogue } = config.declare(k);
        let DeclaredSizes { batches, m, n, depth: part_depth, lengths: grid, a: a_at, b: b_at } = sizes;

        let [rows, columns] = config.tile.block();
        let across = (n + (columns - 1)) / columns;
        let down = (m + (rows - 1)) / rows;
        let per_product = across * down;
        let group = k.group_index();
        // Without batches there is no division: it would take long compared with a product with a vector.
        let (batch, block, real) = if config.batch_rank == 0 {
            (k.u32(0), group.min(per_product - 1), group.lt(per_product))
        } else {
            let batch = group / per_product;
            (batch, group % per_product, batch.lt(batches))
        };
        let (block_row, block_column) = match config.tile {
            MatmulTile::Vectors(Vectors { count: ..Vectors::MOST, side: VectorSide::Rows, .. }) => (k.u32(0), block),
            MatmulTile::Vectors(Vectors { count: ..Vectors::MOST, side: VectorSide::Columns, .. }) => (block, k.u32(0)),
            // Blocks with the same part of the matrix are neighbours.
            MatmulTile::Vectors(Vectors { side: VectorSide::Rows, .. }) => (block % down, block / down),
            MatmulTile::Vectors(Vectors { side: VectorSide::Columns, .. }) => (block / across, block % across),
            // Blocks of the same columns are neighbours, so the matrix is read from memory once.
            MatmulTile::UnitVectors(_) => {
                let (column, row) = block.divide_few(down);
                (row, column)
            }
            _ => {
                let band = block / (across * BAND);
                let height = (down - band * BAND).min(BAND);
                let inside = block % (across * BAND);
                (band * BAND + inside % height, inside / height)
            }
        };
        let last_batch = batches - 1;
        let coordinates = grid.coordinates(batch.min(last_batch));
        // Parts of the depth are the innermost axis of the batch.
        let count = grid.innermost().filter(|_| config.tile.has_parts());
        let part = |count| Part { number: batch % count, count, block: batch / count * per_product + block };
        let whole = |batch: Value<'k>| count.map_or(batch, |count| batch / count);
        let part = count.map(part);
        let depth = match (part, last_depth) {
            (Some(Part { number, count, .. }), Some(last)) => (number + 1).eq(count).select(last, part_depth),
            _ => part_depth,
        };
        ProductBlock {
            k,
            m,
            n,
            depth,
            part_begins: part.map(|part| part.number * part_depth),
            a: Matrix::new(k, &a_at, &coordinates),
            b: Matrix::new(k, &b_at, &coordinates),
            encoding: config.a,
            accumulator: Type { scalar: config.dtype().compute_scalar(), lanes: 1 },
            batch: whole(batch),
            last_batch: whole(last_batch),
            real,
            first_row: block_row * rows,
            first_column: block_column * columns,
            part,
            matrix,
            windows,
            eps,
            behind_gates,
            epilogue,
        }
    }

    /// Returns the rows of the left operand.
    fn a_lines(&self) -> Lines<'k> {
        let Some(windows) = &self.windows else {
            return Lines::of_matrix(self.a, [self.a.row_stride, self.a.column_stride]);
        };
        Lines::of_windows(self.a.start, windows.clone(), self.part_begins)
    }

    /// Returns the columns of the right operand.
    fn b_lines(&self) -> Lines<'k> {
        let strides = [self.b.column_stride, self.b.row_stride];
        let Some(windows) = &self.windows else { return Lines::of_matrix(self.b, strides) };
        Lines::of_weights(self.b, strides, windows, self.part_begins)
    }

    /// Declares the buffer of an operand.
    fn loader(&self, encoding: Encoding, name: &str, width: Width) -> Loader<'k> {
        encoding.loader(self.k, name, width, self.matrix.as_ref())
    }

    /// Declares the buffers of the epilogue, if there is one.
    fn tail(&self, config: &Matmul) -> Option<Tail<'k>> {
        let epilogue = config.epilogue.as_ref().zip(self.epilogue.clone());
        epilogue.map(|(epilogue, parameters)| Tail::new(self.k, epilogue, parameters))
    }

    /// Returns `sum + a b`, in every lane.
    fn add_product(&self, sum: Value<'k>, a: Value<'k>, b: Value<'k>) -> Value<'k> {
        self.encoding.add_product(sum, a, b)
    }

    /// True if an element is inside of a product.
    fn is_inside(&self, row: Value<'k>, column: Value<'k>) -> Value<'k> {
        row.lt(self.m) & column.lt(self.n) & self.real
    }

    /// Returns the index in `y`.
    fn place(&self, row: Value<'k>, column: Value<'k>) -> Value<'k> {
        (self.batch * self.m + row) * self.n + column
    }

    /// Loads the epilogue's inputs for some elements of the product. Beyond the edge, loads them at the edge.
    fn load_beside(&self, tail: &Tail<'k>, places: &[[Value<'k>; 2]], columns: &[Option<Value<'k>>]) -> Vec<Value<'k>> {
        let first_row = self.batch.min(self.last_batch) * self.m;
        let inside = |&[row, column]: &[Value<'k>; 2]| [first_row + row.min(self.m - 1), column.min(self.n - 1)];
        let places: Vec<_> = places.iter().map(inside).collect();
        tail.load(self.k, places[0][0] * self.n + places[0][1], &places, columns)
    }

    /// Loads the epilogue's inputs that are the same for all rows, for some columns.
    fn load_columns(&self, tail: &Tail<'k>, first: Value<'k>, count: u32) -> Vec<Option<Value<'k>>> {
        tail.load_columns(self.k, &(0..count).map(|e| (first + e).min(self.n - 1)).collect::<Vec<_>>())
    }
}

/// Stores products, after the epilogue if there is one. Four or two neighbours are stored together, rounded to a dtype,
/// or elements one by one.
struct Output<'k> {
    y: Store<'k>,
    /// The terms of the epilogue that are stored too, because something else reads them.
    kept: Vec<(Store<'k>, TermId)>,
    tail: Option<Tail<'k>>,
    together: u32,
}

#[derive(Clone, Copy)]
enum Store<'k> {
    Quads(Quads<'k>),
    Pair(Runs<'k>),
    Single(Array<'k>),
}

/// The epilogue's inputs for neighbours that are stored together. [`Columns`] has the inputs that are the same for all
/// rows, [`Beside`] has all.
struct Columns<'k>(Vec<Option<Value<'k>>>);
struct Beside<'k>(Vec<Value<'k>>);

impl<'k> Store<'k> {
    fn new(k: &'k KernelBuilder, name: &str, dtype: DType, together: u32) -> Self {
        match together {
            4 => Store::Quads(Quads::output(k, name, dtype)),
            2 => Store::Pair(Runs::output_pairs(k, name, dtype)),
            _ => Store::Single(k.buffer(name, Type { scalar: dtype.compute_scalar(), lanes: 1 }, Access::Write)),
        }
    }

    fn store(self, k: &'k KernelBuilder, place: Value<'k>, value: Value<'k>) {
        match self {
            Store::Quads(y) => y.store(k, place / 4, value),
            Store::Pair(y) => y.store_pair(k, place / 2, value),
            Store::Single(y) => y.store(place, value),
        }
    }
}

impl<'k> Output<'k> {
    fn new(p: &ProductBlock<'k>, config: &Matmul) -> Self {
        let together = config.tile.stored_together();
        let tail = p.tail(config);
        let y = Store::new(p.k, "y", config.output, together);
        let kept = config.kept().map(|(name, id, dtype)| (Store::new(p.k, &name, dtype, together), id)).collect();
        Output { y, kept, tail, together }
    }

    /// Loads the epilogue's inputs that are the same for all rows, for a column and the neighbours that are stored with
    /// it.
    fn columns(&self, p: &ProductBlock<'k>, first: Value<'k>) -> Columns<'k> {
        Columns(self.tail.as_ref().map_or_else(Vec::new, |tail| p.load_columns(tail, first, self.together)))
    }

    /// Loads the epilogue's inputs for the elements that are stored together. `place` returns the row and column of
    /// each element.
    fn load(&self, p: &ProductBlock<'k>, columns: &Columns<'k>, place: impl Fn(u32) -> [Value<'k>; 2]) -> Beside<'k> {
        let places: Vec<_> = (0..self.together).map(place).collect();
        Beside(self.tail.as_ref().map_or_else(Vec::new, |tail| p.load_beside(tail, &places, &columns.0)))
    }

    /// Stores the elements that are stored together, at a place inside of the product.
    fn store(&self, p: &ProductBlock<'k>, value: Value<'k>, beside: &Beside<'k>, [row, column]: [Value<'k>; 2]) {
        let (k, place) = (p.k, p.place(row, column));
        let Some(tail) = &self.tail else { return self.y.store(k, place, value) };
        let places: Vec<_> = (0..self.together).map(|e| place + e).collect();
        let index = if places.len() == 1 { place } else { k.vector(&places) };
        let values = tail.evaluate(&beside.0, value, index);
        for (kept, id) in &self.kept {
            kept.store(k, place, values[id.index()]);
        }
        self.y.store(k, place, values[values.len() - 1]);
    }

    /// Stores four neighbours if they are inside of the product, together or one by one. `place` returns the row and
    /// column of each. `beside` has the epilogue's inputs for each store.
    fn store_four(
        &self,
        p: &ProductBlock<'k>,
        four: Value<'k>,
        beside: &[Beside<'k>],
        place: impl Fn(u32) -> [Value<'k>; 2],
    ) {
        for (first, beside) in (0..4).step_by(self.together as usize).zip(beside) {
            let [row, column] = place(first);
            let value = if self.together == 4 { four } else { four.lane(first) };
            p.k.when(p.is_inside(row, column), || self.store(p, value, beside, [row, column]));
        }
    }
}

impl Finishing for Matmul {
    fn width(&self) -> u32 {
        self.tile.stored_together()
    }

    fn stored(&self) -> DType {
        self.output
    }

    /// Rows must not be padded.
    fn stores(&self, dtype: DType, parameters: &Parameters) -> bool {
        let n = parameters.sizes.n;
        self.tile.stores(dtype) && self.tile.row(n, dtype) == n
    }

    fn shared(&self, groups: usize) -> Option<([usize; 3], DType)> {
        let [rows, columns] = self.tile.block().map(|length| length as usize);
        self.tile.has_parts().then(|| ([groups, rows, columns], self.dtype().widened()))
    }

    fn columns(&self, parameters: &Parameters) -> usize {
        parameters.sizes.n
    }

    fn with_epilogue(&self, epilogue: Box<Epilogue>) -> Self {
        Matmul { output: epilogue.expr.dtype(), epilogue: Some(epilogue), ..self.clone() }
    }

    fn finished(parameters: &Parameters, epilogue: epilogue::Parameters) -> Parameters {
        Parameters { epilogue: Some(epilogue), ..parameters.clone() }
    }
}

impl Family for Matmul {
    fn products(&self, Parameters { sizes, last_depth, .. }: &Parameters) -> u64 {
        let SizeParameters { batches, m, n, depth, lengths, .. } = sizes;
        let missing = last_depth
            .zip(lengths.last())
            .map_or(0, |(last, parts)| volume([&(batches / parts), m, n, &(depth - last)]));
        let products = (volume([batches, m, n, depth]) - missing).saturating_mul(self.a.per_factor() as u64);
        if self.tile.is_gated() { products.saturating_mul(2) } else { products }
    }

    fn units(&self) -> Units {
        match self.tile {
            MatmulTile::MatrixUnits(..) | MatmulTile::UnitVectors(_) => Units::Matrix,
            _ => Units::of(self.dtype()),
        }
    }

    fn name(&self) -> String {
        let tile = match self.tile {
            MatmulTile::Workgroup(block) => block.name(),
            MatmulTile::MatrixUnits(block, layout) => format!("units {}, {}", block.name(), layout.name()),
            MatmulTile::Vectors(vectors) => vectors.name(),
            MatmulTile::UnitVectors(vectors) => vectors.name(),
            MatmulTile::Broadcast(Broadcast { b, pairs, .. }) => {
                format!("broadcast, b by {b:?}{}", if pairs { ", y x2" } else { "" })
            }
            MatmulTile::Registers { columns } => format!("registers {columns}"),
        };
        let words = match (self.a, self.b) {
            (Encoding::Words(_), _) => " x4".to_string(),
            (_, Encoding::Blocks(format)) => format!(" by {format}"),
            _ => String::new(),
        };
        let words = match self.windows {
            Some(Windows { axes, loose }) => format!("{} windows {axes}d{words}", if loose { " loose" } else { "" }),
            None => words,
        };
        let dtype = self.dtype();
        let Some(epilogue) = &self.epilogue else {
            let output = if self.output == dtype.widened() { "" } else { " narrowed" };
            return format!("matmul({dtype}{words}{output}, {tile})");
        };
        let kept = if epilogue.kept.is_empty() { "" } else { ", kept" };
        format!("matmul({dtype}{words}, {tile}{kept}), {}", epilogue.expr.describe())
    }

    fn workgroup(&self) -> u32 {
        match self.tile {
            MatmulTile::Workgroup(block) => block.workgroup(),
            MatmulTile::MatrixUnits(block, _) => block.invocations(),
            MatmulTile::Vectors(vectors) => vectors.workgroup(),
            MatmulTile::UnitVectors(vectors) => vectors.workgroup(),
            MatmulTile::Broadcast(broadcast) => broadcast.lanes,
            MatmulTile::Registers { .. } => registers::WORKGROUP,
        }
    }

    fn write(&self, k: &KernelBuilder) {
        if self.dtype().size_in_bytes() == 8 || !matches!(self.tile, MatmulTile::Registers { .. }) {
            // 64-bit sums take twice the registers, and each invocation of a block has many sums.
            k.large_registers();
        }
        if self.units() == Units::Matrix {
            k.use_matrices();
        }
        let problem = ProductBlock::new(k, self);
        let reads_windows =
            matches!(self.tile, MatmulTile::Workgroup(_) | MatmulTile::MatrixUnits(..) | MatmulTile::Broadcast(_));
        let reads_loosely = matches!(self.tile, MatmulTile::MatrixUnits(..));
        if self.windows.is_some() && !reads_windows || self.is_of_loose_windows() && !reads_loosely {
            k.fail("this tile does not read such windows");
        }
        match self.tile {
            MatmulTile::Workgroup(block) => blocked::write(&problem, self, block),
            MatmulTile::MatrixUnits(block, layout) if block.fragments == Fragments::All => {
                fragments::write(&problem, self, block, layout)
            }
            MatmulTile::MatrixUnits(block, layout) => cooperative::write(&problem, self, block, layout),
            MatmulTile::Vectors(vectors) => vectors::write(&problem, self, vectors),
            MatmulTile::UnitVectors(vectors) => unit_vectors::write(&problem, self, vectors),
            MatmulTile::Broadcast(broadcast) => broadcast::write(&problem, self, broadcast),
            MatmulTile::Registers { columns } => registers::write(&problem, self, columns),
        }
    }

    fn samples() -> Vec<Self> {
        let lanes = Broadcast { b: Along::Depth, pairs: true, lanes: 8 };
        let blocks = |dtype| Block::of(dtype).into_iter().map(MatmulTile::Workgroup);
        let registers = |dtype: DType| {
            let most = if dtype.size_in_bytes() == 8 { 1 } else { 4 };
            [1, 4].into_iter().filter(move |&columns| columns <= most).map(|columns| MatmulTile::Registers { columns })
        };
        let vectors = |dtype: DType| {
            let few = |side, along| {
                [1, Vectors::MOST].map(|count| Vectors {
                    members: Vectors::members(along, count, None, [4096; 2]),
                    side,
                    count,
                    along,
                    words: if count == 1 && along == Along::Depth { 4 } else { dtype.size_in_bytes() as u32 },
                    stored_quads: side == VectorSide::Rows,
                    subgroup: None,
                    normalized: false,
                    gate: None,
                })
            };
            let normalized = few(VectorSide::Rows, Along::Depth).map(|tile| {
                let gate = (tile.count == 1).then_some(UnaryOp::Silu);
                Vectors { normalized: true, gate, ..tile }
            });
            let normalized = normalized.into_iter().filter(move |_| dtype.is_float());
            let all = [
                few(VectorSide::Rows, Along::Depth),
                few(VectorSide::Rows, Along::Other),
                few(VectorSide::Columns, Along::Depth),
            ];
            let all = all.into_iter().flatten().chain(normalized);
            all.filter(move |_| dtype.size_in_bytes() <= 4).map(MatmulTile::Vectors)
        };
        let dtypes = DType::ALL.into_iter().filter(|dtype| *dtype != DType::Bool);
        let broadcasts = |dtype: DType| {
            let each = |pairs| [Along::Depth, Along::Other].map(|b| Broadcast { b, pairs, ..lanes });
            let tiles = [false, true].map(each).concat();
            tiles.into_iter().map(MatmulTile::Broadcast).filter(move |_| matches!(dtype.size_in_bytes(), 2 | 4))
        };
        let words = |dtype: DType| {
            let depth = Reading::Quads(Along::Depth);
            let blocks =
                Block::of(dtype).into_iter().map(move |block| MatmulTile::Workgroup(Block { b: depth, ..block }));
            let vectors =
                vectors(dtype).filter(|tile| matches!(tile, MatmulTile::Vectors(Vectors { along: Along::Depth, .. })));
            let broadcast = MatmulTile::Broadcast(lanes);
            let tiles = registers(dtype).chain(blocks).chain(vectors).chain([broadcast]);
            tiles.filter(move |_| matches!(dtype, DType::I8 | DType::U8))
        };
        let tiles = |dtype| {
            let words = words(dtype).map(|tile| (tile, true));
            let tiles = registers(dtype).chain(broadcasts(dtype)).chain(blocks(dtype)).chain(vectors(dtype));
            tiles.map(|tile| (tile, false)).chain(words).map(move |(tile, words)| (dtype, words, tile))
        };
        let portable = dtypes.flat_map(tiles);
        let units = UnitLayout::samples().into_iter().flat_map(|(dtype, layout)| {
            let blocks = UnitBlock::all().into_iter().filter(move |&block| layout.suits(block, dtype));
            blocks.map(move |block| (dtype, false, MatmulTile::MatrixUnits(block, layout)))
        });
        let few_on_units = UnitVectors::samples().into_iter().flat_map(|vectors| {
            [DType::F16, DType::BF16].map(|dtype| (dtype, false, MatmulTile::UnitVectors(vectors)))
        });
        let written = |(dtype, words, tile): (DType, bool, MatmulTile)| {
            let narrow = dtype.is_float() && dtype != dtype.widened() && tile.stores(dtype);
            let outputs = std::iter::once(dtype.widened()).chain(narrow.then_some(dtype));
            let encoding = if words { Encoding::Words(dtype) } else { Encoding::Dense(dtype) };
            outputs.map(move |output| Matmul::of(encoding, output, 1, tile))
        };
        let packed = |format, dtype, tile| {
            let (a, b) = (Encoding::Dense(dtype), Encoding::Blocks(format));
            Matmul { a, b, output: dtype, batch_rank: 0, windows: None, tile, epilogue: None }
        };
        let largest = Block::of(DType::F32).into_iter().take(1);
        let unpacking = |block| MatmulTile::Workgroup(Block { b: Reading::Quads(Along::Depth), ..block });
        let in_registers = |block| BlockFormat::ALL.map(|format| packed(format, DType::F32, unpacking(block)));
        let narrow =
            Block::of(DType::F16).into_iter().map(|block| packed(BlockFormat::Q4_K, DType::F16, unpacking(block)));
        let by_depth = UnitReading::aligned(Along::Depth);
        let (unit, a, b, single) = ([16; 3], by_depth, by_depth, false);
        let on_units = |(format, whole, parts)| {
            let blocks = UnitBlock::all().into_iter().filter(|block| block.fragments == Fragments::None).take(1);
            let layout = UnitLayout { unit, a, b, whole, parts, single };
            let tile = move |block| packed(format, DType::F16, MatmulTile::MatrixUnits(block, layout));
            blocks.map(move |block| Matmul { batch_rank: usize::from(parts), ..tile(block) })
        };
        let in_halves = BlockFormat::ALL.into_iter().filter(|&format| fit_halves(format));
        let in_halves = in_halves.map(|format| (format, true, false));
        let others = [(BlockFormat::Q4_0, false, false), (BlockFormat::Q4_0, true, true)];
        let on_units = in_halves.chain(others).flat_map(on_units);
        let packed: Vec<_> = largest.flat_map(in_registers).chain(narrow).chain(on_units).collect();
        let of_windows = |dtype, tile: MatmulTile, axes| {
            let batch_rank = usize::from(tile.has_parts());
            let loose = matches!(tile, MatmulTile::MatrixUnits(_, UnitLayout { a, .. }) if a.loose);
            let windows = Some(Windows { axes, loose });
            Matmul { windows, ..Matmul::of(Encoding::Dense(dtype), dtype.widened(), batch_rank, tile) }
        };
        let depth = Reading::Quads(Along::Depth);
        let in_registers =
            [(DType::F32, 2, true), (DType::F16, 3, false)].into_iter().flat_map(|(dtype, axes, whole)| {
                let block = move |block| MatmulTile::Workgroup(Block { a: depth, b: depth, whole, ..block });
                Block::of(dtype).into_iter().map(move |shape| of_windows(dtype, block(shape), axes))
            });
        let loosely = UnitReading::loose(Along::Depth);
        let ends = [(true, false), (false, false), (true, true)];
        let on_units = ends.into_iter().flat_map(|end| [(end, by_depth), (end, loosely)]);
        let on_units = on_units.flat_map(|((whole, parts), reading)| {
            let single = reading.loose;
            let layout = UnitLayout { unit, a: reading, b: reading, whole, parts, single };
            let one = |is| UnitBlock::all().into_iter().filter(move |block| block.fragments == is).take(1);
            let blocks = one(Fragments::None).chain(one(Fragments::Sums));
            let blocks = blocks.filter(move |&block| layout.suits(block, DType::F16));
            blocks.map(move |block| of_windows(DType::F16, MatmulTile::MatrixUnits(block, layout), 2))
        });
        let by_lanes = [(DType::F32, 2), (DType::F16, 1)]
            .map(|(dtype, axes)| of_windows(dtype, MatmulTile::Broadcast(lanes), axes));
        let of_windows: Vec<_> = in_registers.chain(on_units).chain(by_lanes).collect();
        let plain = portable.chain(units).chain(few_on_units).flat_map(written);
        let plain: Vec<Matmul> = plain.chain(packed).chain(of_windows).collect();
        // One of each kind of tile.
        let mut kinds = Vec::new();
        let kind = |config: &&Matmul| {
            let fragments = match config.tile {
                MatmulTile::MatrixUnits(UnitBlock { fragments, .. }, layout) => (fragments, layout.b.along),
                _ => (Fragments::None, Along::Depth),
            };
            let tile = (std::mem::discriminant(&config.tile), config.tile.stored_together(), fragments);
            let kind = (tile, config.dtype());
            let is_new = config.dtype() == DType::F16 && !kinds.contains(&kind);
            kinds.push(kind);
            is_new
        };
        let finished: Vec<Matmul> = plain.iter().filter(kind).map(Matmul::with_bias).collect();
        plain.into_iter().chain(finished).collect()
    }
}

impl Matmul {
    /// Returns the sample with an epilogue that adds a number per column.
    fn with_bias(&self) -> Matmul {
        let layout = if self.tile.stored_together() == 4 { InputLayout::StridedQuads } else { InputLayout::Strided };
        let bias = EpilogueInput { dtype: self.dtype(), layout, by_row: false };
        let wide = self.dtype().widened();
        let output = if self.tile.stores(self.dtype()) { self.dtype() } else { wide };
        let mut expr = Expr::default();
        let product = expr.input(1, wide);
        let product = expr.cast(output, product);
        let bias_term = expr.input(0, wide);
        let sum = expr.binary(BinaryOp::Add, product, bias_term);
        expr.cast(output, sum);
        let kept = [product].into_iter().collect();
        let inputs = [bias].into_iter().collect();
        let epilogue = Epilogue { expr, inputs, rank: 0, scalars: Default::default(), kept };
        Matmul { output, epilogue: Some(epilogue.into()), ..self.clone() }
    }
}
