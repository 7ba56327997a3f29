//! Batched matrix products `y = a b` over operands of any strides, accumulated in 32 bits.

use super::Family;
use super::elements::{Elements, Grid, Strides};
use crate::dtype::DType;
use crate::shader::{Access, Array, KernelBuilder, Type, Value, Var};

/// How the work is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Tile {
    /// Each workgroup computes a block of 64 x 64 from tiles in workgroup memory, each invocation 4 x 4 of it.
    Workgroup,
    /// Each invocation computes 8 rows of some columns from registers alone: for software devices, where workgroup
    /// memory is slow and an operand that is the same for all lanes is cheap.
    Registers {
        /// Columns per invocation: the more, the more often each element of `a` is used.
        columns: u32,
    },
}

/// A matrix product. Parameters: the number of batches, m, n and k; the lengths of the batch axes; per operand its
/// offset and its strides along the batch axes, rows and columns. `y` is contiguous and 32 bits wide.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Matmul {
    pub dtype: DType,
    pub batch_rank: usize,
    pub tile: Tile,
}

impl Matmul {
    /// The length of the parameter block for so many batch axes.
    pub fn parameter_words(batch_rank: usize) -> usize {
        4 + batch_rank + 2 * (3 + batch_rank)
    }
}

impl Tile {
    /// Rows and columns of a workgroup's block.
    pub const fn block(self) -> (usize, usize) {
        match self {
            Tile::Workgroup => (BLOCK as usize, BLOCK as usize),
            Tile::Registers { columns } => (REGISTER_ROWS as usize, (columns * REGISTER_WORKGROUP) as usize),
        }
    }
}

/// The two innermost axes of a matrix, counted from the last.
const COLUMN: usize = 1;
const ROW: usize = 2;

const BLOCK: u32 = 64;
const DEPTH: u32 = 16;
const TILE_WORKGROUP: u32 = 256;
const REGISTER_ROWS: u32 = 8;
const REGISTER_WORKGROUP: u32 = 32;

/// What both ways of cutting share: the problem, the operands, and the block that a workgroup works on.
struct Problem<'k> {
    k: &'k KernelBuilder,
    batches: Value<'k>,
    m: Value<'k>,
    n: Value<'k>,
    depth: Value<'k>,
    a: Elements<'k>,
    b: Elements<'k>,
    y: Array<'k>,
    a_at: Strides<'k>,
    b_at: Strides<'k>,
    accumulator: Type,
    batch: Value<'k>,
    batch_coordinates: Vec<Value<'k>>,
    block_row: Value<'k>,
    block_column: Value<'k>,
}

impl<'k> Problem<'k> {
    fn new(k: &'k KernelBuilder, config: &Matmul) -> Self {
        let [batches, m, n, depth] = std::array::from_fn(|_| k.parameter(Type::U32));
        let grid = Grid::parameters(k, config.batch_rank);
        let (a_at, b_at) =
            (Strides::parameters(k, config.batch_rank + 2), Strides::parameters(k, config.batch_rank + 2));
        let (a, b) = (Elements::input(k, "a", config.dtype), Elements::input(k, "b", config.dtype));
        let accumulator = Type { scalar: config.dtype.compute_scalar(), lanes: 1 };
        let y = k.buffer("y", accumulator, Access::Write);

        let (rows, columns) = config.tile.block();
        let (rows, columns) = (k.u32(rows as u32), k.u32(columns as u32));
        let across = (n + columns - 1) / columns;
        let down = (m + rows - 1) / rows;
        let block = k.group_index();
        let batch = block / (across * down);
        let batch_coordinates = grid.coordinates(batch.min(batches - 1));
        let (block_row, block_column) = (block / across % down * rows, block % across * columns);
        Problem {
            k,
            batches,
            m,
            n,
            depth,
            a,
            b,
            y,
            a_at,
            b_at,
            accumulator,
            batch,
            batch_coordinates,
            block_row,
            block_column,
        }
    }

    fn index(&self, at: &Strides<'k>, row: Value<'k>, column: Value<'k>) -> Value<'k> {
        let mut coordinates = self.batch_coordinates.clone();
        coordinates.extend([row, column]);
        at.at(&coordinates)
    }

    fn a(&self, row: Value<'k>, i: Value<'k>) -> Value<'k> {
        self.a.load(self.index(&self.a_at, row, i))
    }

    fn b(&self, i: Value<'k>, column: Value<'k>) -> Value<'k> {
        self.b.load(self.index(&self.b_at, i, column))
    }

    fn zeros(&self, count: u32) -> Vec<Var<'k>> {
        (0..count).map(|_| self.k.var(self.k.number(self.accumulator, 0))).collect()
    }

    fn add_product(&self, sum: Var<'k>, a: Value<'k>, b: Value<'k>) {
        let product = if a.ty().is_float() { a.fma(b, sum.get()) } else { sum.get() + a * b };
        sum.set(product);
    }

    fn store(&self, row: Value<'k>, column: Value<'k>, sum: Var<'k>) {
        let inside = row.lt(self.m) & column.lt(self.n) & self.batch.lt(self.batches);
        self.k.when(inside, || self.y.store((self.batch * self.m + row) * self.n + column, sum.get()));
    }
}

impl Family for Matmul {
    fn name(&self) -> String {
        format!("matmul({}, {:?})", self.dtype, self.tile).to_lowercase()
    }

    fn workgroup(&self) -> u32 {
        match self.tile {
            Tile::Workgroup => TILE_WORKGROUP,
            Tile::Registers { .. } => REGISTER_WORKGROUP,
        }
    }

    fn write(&self, k: &KernelBuilder) {
        if self.dtype.size_in_bytes() == 8 {
            // Sums and products of 64 bits take twice the room.
            k.large_registers();
        }
        let problem = Problem::new(k, self);
        match self.tile {
            Tile::Workgroup => by_workgroup(&problem),
            Tile::Registers { columns } => by_registers(&problem, columns),
        }
    }

    fn samples() -> Vec<Self> {
        let tiles = [Tile::Workgroup, Tile::Registers { columns: 1 }, Tile::Registers { columns: 4 }];
        let dtypes = DType::ALL.into_iter().filter(|dtype| *dtype != DType::Bool);
        // Those that an operation chooses.
        let fits = |config: &Matmul| match config.dtype {
            DType::I64 => config.tile == Tile::Registers { columns: 1 },
            DType::F64 => config.tile != Tile::Registers { columns: 4 },
            _ => true,
        };
        dtypes.flat_map(|dtype| tiles.map(|tile| Matmul { dtype, batch_rank: 1, tile })).filter(fits).collect()
    }
}

fn by_registers<'k>(p: &Problem<'k>, width: u32) {
    let k = p.k;
    let clamp = |place: Value<'k>, length: Value<'k>| place.min(length - 1);
    let rows: Vec<_> = (0..REGISTER_ROWS).map(|r| p.block_row + r).collect();
    let columns: Vec<_> = (0..width).map(|c| p.block_column + k.local_index() + c * REGISTER_WORKGROUP).collect();
    // Rows and columns beyond the edge repeat the last one; they are not stored.
    let zero = k.u32(0);
    let a_rows: Vec<_> = rows.iter().map(|&row| p.index(&p.a_at, clamp(row, p.m), zero)).collect();
    let b_columns: Vec<_> = columns.iter().map(|&column| p.index(&p.b_at, zero, clamp(column, p.n))).collect();
    let sums = p.zeros(REGISTER_ROWS * width);
    k.for_range(0, p.depth, |i| {
        let (a_step, b_step) = (i * p.a_at.stride(COLUMN), i * p.b_at.stride(ROW));
        let b: Vec<_> = b_columns.iter().map(|&column| p.b.load(column + b_step)).collect();
        for (row, sums) in a_rows.iter().zip(sums.chunks(width as usize)) {
            let a = p.a.load(*row + a_step);
            for (&sum, &b) in sums.iter().zip(&b) {
                p.add_product(sum, a, b);
            }
        }
    });
    for (&row, sums) in rows.iter().zip(sums.chunks(width as usize)) {
        for (&column, &sum) in columns.iter().zip(sums) {
            p.store(row, column, sum);
        }
    }
}

fn by_workgroup<'k>(p: &Problem<'k>) {
    let k = p.k;
    let lane = k.local_index();
    let zero = k.number(p.accumulator, 0);
    // Tiles of 64 x 16 and 16 x 64, both with the depth as the outer axis.
    let (a_tile, b_tile) =
        (k.workgroup_array(p.accumulator, DEPTH * BLOCK), k.workgroup_array(p.accumulator, DEPTH * BLOCK));
    let (column, row) = ((lane % 16) * 4, (lane / 16) * 4);
    let sums = p.zeros(16);
    k.for_step(0, p.depth, DEPTH, |start| {
        for pass in 0..DEPTH * BLOCK / TILE_WORKGROUP {
            let place = lane + pass * TILE_WORKGROUP;
            // Neighbouring lanes read neighbouring elements of a row of `a`, and of a row of `b`.
            let (r, i) = (place / DEPTH, place % DEPTH);
            let element = k.var(zero);
            k.when((p.block_row + r).lt(p.m) & (start + i).lt(p.depth), || {
                element.set(p.a(p.block_row + r, start + i));
            });
            a_tile.store(i * BLOCK + r, element.get());
            let (i, c) = (place / BLOCK, place % BLOCK);
            element.set(zero);
            k.when((p.block_column + c).lt(p.n) & (start + i).lt(p.depth), || {
                element.set(p.b(start + i, p.block_column + c));
            });
            b_tile.store(place, element.get());
        }
        k.barrier();
        k.for_unrolled(DEPTH, |i| {
            let four = |tile: Array<'k>, from: Value<'k>| [0, 1, 2, 3].map(|j| tile.load(i * BLOCK + from + j));
            let (a, b) = (four(a_tile, row), four(b_tile, column));
            for (j, &sum) in sums.iter().enumerate() {
                p.add_product(sum, a[j / 4], b[j % 4]);
            }
        });
        k.barrier();
    });
    for (j, &sum) in sums.iter().enumerate() {
        p.store(p.block_row + row + (j as u32 / 4), p.block_column + column + (j as u32 % 4), sum);
    }
}
