//! Batched matrix products `y = a b` over operands of any strides, accumulated in 32 bits or more. Each way to cut the
//! work has a file.

mod blocked;
mod broadcast;
mod cooperative;
mod registers;
mod vectors;

pub(crate) use blocked::{Along, Block, Reading};
pub(crate) use broadcast::QUAD;
pub(crate) use cooperative::{UnitBlock, UnitLayout};
pub(crate) use vectors::{Side, Vectors};

use super::Family;
use super::elements::{Grid, Quads, Strides};
use super::epilogue::{Epilogue, Tail};
use crate::dtype::DType;
use crate::shader::{Access, Array, KernelBuilder, Type, Value};

/// How the work is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Tile {
    /// Each workgroup computes a block from tiles of both operands in workgroup memory.
    Workgroup(Block),
    /// Each workgroup computes a block on matrix units.
    MatrixUnits(UnitBlock, UnitLayout),
    /// Each workgroup computes a few numbers of the products of a few vectors.
    Vectors(Vectors),
    /// Each invocation computes 12 rows of two columns from registers; lanes hand each other the elements of `a`, which
    /// lie side by side along the depth: for software devices, where loads are slow, and workgroup memory is no faster.
    Broadcast {
        /// The axis along which elements of `b` lie side by side.
        b: Along,
    },
    /// Each invocation computes 8 rows of some columns from registers alone, whatever the strides: for software devices.
    Registers {
        /// Columns per invocation: the more, the more often each element of `a` is used.
        columns: u32,
    },
}

/// A matrix product. Parameters: the number of batches, m, n and k; the lengths of the batch axes; per operand its
/// offset and its strides along the batch axes, rows and columns; those of the epilogue. `y` is in row-major order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Matmul {
    pub dtype: DType,
    /// That of `y`: the dtype in which sums are kept, or another one to which they are rounded; with an epilogue, its dtype.
    pub output: DType,
    pub batch_rank: usize,
    pub tile: Tile,
    /// What becomes of the product before it is stored.
    pub epilogue: Option<Box<Epilogue>>,
}

impl Matmul {
    /// The length of the parameter block for so many batch axes, without an epilogue.
    pub fn parameter_words(batch_rank: usize) -> usize {
        4 + batch_rank + 2 * (3 + batch_rank)
    }

    /// The length of the rows of `y` in memory, of which a product has `n` columns: matrix units store whole vectors.
    pub fn row(&self, n: usize) -> usize {
        match self.tile {
            Tile::MatrixUnits(..) => n.next_multiple_of(16 / self.output.size_in_bytes()),
            _ => n,
        }
    }
}

impl Tile {
    /// Rows and columns of a workgroup's block.
    pub const fn block(self) -> [u32; 2] {
        match self {
            Tile::Workgroup(block) => block.shape,
            Tile::MatrixUnits(block, _) => block.shape,
            Tile::Vectors(vectors) => vectors.block(),
            Tile::Broadcast { .. } => broadcast::BLOCK,
            Tile::Registers { columns } => registers::block(columns),
        }
    }
}

impl Tile {
    /// Whether neighbours are stored together, and so may be narrow.
    pub fn stores_vectors(self) -> bool {
        match self {
            Tile::Workgroup(block) => block.quads,
            Tile::MatrixUnits(..) => true,
            Tile::Vectors(vectors) => vectors.stored_quads,
            Tile::Broadcast { .. } | Tile::Registers { .. } => false,
        }
    }
}

/// Rows of blocks whose blocks are neighbours in the order of workgroups, so that they meet their operands in caches.
const BAND: u32 = 8;

/// The problem, and the block that a workgroup works on.
struct Problem<'k> {
    k: &'k KernelBuilder,
    m: Value<'k>,
    n: Value<'k>,
    depth: Value<'k>,
    /// Where the batch's matrices begin, and their strides along rows and columns.
    a: Matrix<'k>,
    b: Matrix<'k>,
    accumulator: Type,
    batch: Value<'k>,
    last_batch: Value<'k>,
    /// Whether there is such a batch: a folded dispatch has surplus workgroups.
    real: Value<'k>,
    first_row: Value<'k>,
    first_column: Value<'k>,
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

impl<'k> Problem<'k> {
    fn new(k: &'k KernelBuilder, config: &Matmul) -> Self {
        let [batches, m, n, depth] = std::array::from_fn(|_| k.parameter(Type::U32));
        let grid = Grid::parameters(k, config.batch_rank);
        let [a_at, b_at] = [0, 1].map(|_| Strides::parameters(k, config.batch_rank + 2));

        let [rows, columns] = config.tile.block();
        let across = (n + (columns - 1)) / columns;
        let down = (m + (rows - 1)) / rows;
        let block = k.group_index();
        let (batch, block) = (block / (across * down), block % (across * down));
        let band = block / (across * BAND);
        let height = (down - band * BAND).min(BAND);
        let inside = block % (across * BAND);
        let last_batch = batches - 1;
        let coordinates = grid.coordinates(batch.min(last_batch));
        Problem {
            k,
            m,
            n,
            depth,
            a: Matrix::new(k, &a_at, &coordinates),
            b: Matrix::new(k, &b_at, &coordinates),
            accumulator: Type { scalar: config.dtype.compute_scalar(), lanes: 1 },
            batch,
            last_batch,
            real: batch.lt(batches),
            first_row: (band * BAND + inside % height) * rows,
            first_column: inside / height * columns,
        }
    }

    /// The index in `y`.
    fn place(&self, row: Value<'k>, column: Value<'k>) -> Value<'k> {
        (self.batch * self.m + row) * self.n + column
    }

    /// What an epilogue takes beside an element of the product or four. Beyond the edge it takes what is at the edge.
    fn load_beside(&self, tail: &Tail<'k>, places: &[[Value<'k>; 2]]) -> Vec<Value<'k>> {
        let first_row = self.batch.min(self.last_batch) * self.m;
        let inside = |&[row, column]: &[Value<'k>; 2]| [first_row + row.min(self.m - 1), column.min(self.n - 1)];
        let places: Vec<_> = places.iter().map(inside).collect();
        tail.load(self.k, places[0][0] * self.n + places[0][1], &places)
    }
}

/// Where products go, finished by an epilogue if there is one: four neighbours together, rounded to a dtype, or one by one.
struct Output<'k> {
    y: Store<'k>,
    /// Where they go as they are, for somebody else.
    kept: Option<Store<'k>>,
    tail: Option<Tail<'k>>,
}

#[derive(Clone, Copy)]
enum Store<'k> {
    Quads(Quads<'k>),
    Single(Array<'k>),
}

/// What an epilogue takes beside four neighbours of a product: all at once, or one by one.
struct Beside<'k>(Vec<Vec<Value<'k>>>);

impl<'k> Store<'k> {
    fn new(k: &'k KernelBuilder, name: &str, dtype: DType, quads: bool) -> Self {
        match quads {
            true => Store::Quads(Quads::output(k, name, dtype)),
            false => {
                Store::Single(k.buffer(name, Type { scalar: dtype.compute_scalar(), lanes: 1 }, Access::Write))
            }
        }
    }

    fn store(self, k: &'k KernelBuilder, place: Value<'k>, value: Value<'k>) {
        match self {
            Store::Quads(y) => y.store(k, place / 4, value),
            Store::Single(y) => y.store(place, value),
        }
    }
}

impl<'k> Output<'k> {
    fn new(p: &Problem<'k>, config: &Matmul) -> Self {
        let quads = config.tile.stores_vectors();
        let epilogue = config.epilogue.as_ref();
        let tail = epilogue.map(|epilogue| Tail::declare(p.k, epilogue));
        let y = Store::new(p.k, "y", config.output, quads);
        let kept = epilogue.and_then(|epilogue| epilogue.kept).map(|dtype| Store::new(p.k, "kept", dtype, quads));
        Output { y, kept, tail }
    }

    /// Loads what an epilogue takes beside four neighbours, of which `element` says where they are in the product.
    fn load(&self, p: &Problem<'k>, element: impl Fn(u32) -> [Value<'k>; 2]) -> Beside<'k> {
        Beside(match self.y {
            Store::Quads(_) => vec![self.load_at(p, &[0, 1, 2, 3].map(element))],
            Store::Single(_) => (0..4).map(|e| self.load_at(p, &[element(e)])).collect(),
        })
    }

    fn load_at(&self, p: &Problem<'k>, places: &[[Value<'k>; 2]]) -> Vec<Value<'k>> {
        self.tail.as_ref().map_or_else(Vec::new, |tail| p.load_beside(tail, places))
    }

    /// Stores four neighbours, of which `element` says where they are in the product.
    fn store(&self, p: &Problem<'k>, four: Value<'k>, beside: &Beside<'k>, element: impl Fn(u32) -> [Value<'k>; 2]) {
        let store = |e: u32, value| {
            let [row, column] = element(e);
            p.k.when(row.lt(p.m) & column.lt(p.n) & p.real, || {
                self.store_at(p, value, &beside.0[e as usize], [row, column]);
            });
        };
        match self.y {
            Store::Quads(_) => store(0, four),
            Store::Single(_) => (0..4).for_each(|e| store(e, four.lane(e))),
        }
    }

    /// Stores an element, or four neighbours, at a place that is in the product.
    fn store_at(&self, p: &Problem<'k>, value: Value<'k>, beside: &[Value<'k>], [row, column]: [Value<'k>; 2]) {
        let place = p.place(row, column);
        if let Some(kept) = self.kept {
            kept.store(p.k, place, value);
        }
        let finished = self.tail.as_ref().map_or(value, |tail| {
            let index = if value.ty().lanes == 1 { place } else { p.k.vector(&[0, 1, 2, 3].map(|e| place + e)) };
            tail.evaluate(beside, value, index)
        });
        self.y.store(p.k, place, finished);
    }
}

/// `sum + a b`, in every lane.
fn add_product<'k>(sum: Value<'k>, a: Value<'k>, b: Value<'k>) -> Value<'k> {
    if a.ty().is_float() { a.fma(b, sum) } else { sum + a * b }
}

impl Family for Matmul {
    fn name(&self) -> String {
        let tile = match self.tile {
            Tile::Workgroup(block) => block.name(),
            Tile::MatrixUnits(block, layout) => format!("units {}, {}", block.name(), layout.name()),
            Tile::Vectors(vectors) => vectors.name(),
            Tile::Broadcast { b } => format!("broadcast, b by {b:?}"),
            Tile::Registers { columns } => format!("registers {columns}"),
        };
        let Some(epilogue) = &self.epilogue else {
            let output = if self.output == self.dtype.widened() { "" } else { " narrowed" };
            return format!("matmul({}{output}, {tile})", self.dtype);
        };
        let kept = if epilogue.kept.is_some() { ", kept" } else { "" };
        format!("matmul({}, {tile}{kept}), {}", self.dtype, epilogue.expr.describe())
    }

    fn workgroup(&self) -> u32 {
        match self.tile {
            Tile::Workgroup(block) => block.workgroup(),
            Tile::MatrixUnits(block, _) => block.workgroup(),
            Tile::Vectors(vectors) => vectors.workgroup(),
            Tile::Broadcast { .. } => broadcast::WORKGROUP,
            Tile::Registers { .. } => registers::WORKGROUP,
        }
    }

    fn write(&self, k: &KernelBuilder) {
        if self.dtype.size_in_bytes() == 8 || !matches!(self.tile, Tile::Registers { .. }) {
            // Sums of 64 bits take twice the room, and each invocation of a block has many.
            k.large_registers();
        }
        if let Tile::MatrixUnits(..) = self.tile {
            k.use_matrices();
        }
        let problem = Problem::new(k, self);
        match self.tile {
            Tile::Workgroup(block) => blocked::write(&problem, self, block),
            Tile::MatrixUnits(block, layout) => cooperative::write(&problem, self, block, layout),
            Tile::Vectors(vectors) => vectors::write(&problem, self, vectors),
            Tile::Broadcast { b } => broadcast::write(&problem, self, b),
            Tile::Registers { columns } => registers::write(&problem, self, columns),
        }
    }

    fn samples() -> Vec<Self> {
        let blocks = |dtype| Block::of(dtype).into_iter().map(Tile::Workgroup);
        let registers = |dtype: DType| {
            let most = if dtype.size_in_bytes() == 8 { 1 } else { 4 };
            [1, 4].into_iter().filter(move |&columns| columns <= most).map(|columns| Tile::Registers { columns })
        };
        let vectors = |dtype: DType| {
            let few = |side, along| {
                [1, Vectors::MOST].map(|count| Vectors {
                    members: Vectors::members(along, count, None, [4096; 2]),
                    side,
                    count,
                    along,
                    stored_quads: side == Side::Rows,
                    subgroup: None,
                })
            };
            let all = [few(Side::Rows, Along::Depth), few(Side::Rows, Along::Other), few(Side::Columns, Along::Depth)];
            all.into_iter().flatten().filter(move |_| dtype.size_in_bytes() <= 4).map(Tile::Vectors)
        };
        let dtypes = DType::ALL.into_iter().filter(|dtype| *dtype != DType::Bool);
        let broadcasts = |dtype: DType| {
            let tiles = [Along::Depth, Along::Other].map(|b| Tile::Broadcast { b });
            tiles.into_iter().filter(move |_| matches!(dtype.size_in_bytes(), 2 | 4))
        };
        let tiles = |dtype| {
            let tiles = registers(dtype).chain(broadcasts(dtype)).chain(blocks(dtype)).chain(vectors(dtype));
            tiles.map(move |tile| (dtype, tile))
        };
        let portable = dtypes.flat_map(tiles);
        let units = UnitLayout::samples().into_iter().flat_map(|(dtype, layout)| {
            UnitBlock::ALL.into_iter().map(move |block| (dtype, Tile::MatrixUnits(block, layout)))
        });
        let written = |(dtype, tile): (DType, Tile)| {
            let narrow = dtype.is_float() && dtype != dtype.widened() && tile.stores_vectors();
            let outputs = std::iter::once(dtype.widened()).chain(narrow.then_some(dtype));
            outputs.map(move |output| Matmul { dtype, output, batch_rank: 1, tile, epilogue: None })
        };
        portable.chain(units).flat_map(written).collect()
    }
}
