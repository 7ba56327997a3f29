//! Sums of products over a block of rows and columns: the innermost part of convolutions.

use crate::shader::{Array, KernelBuilder, Type, Value, Var};

/// How the work is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ConvTile {
    /// Each workgroup computes a block of 64 x 64 from tiles in workgroup memory. Each invocation computes 4 x 4 of it.
    Workgroup,
    /// Each invocation computes some rows of a strip of neighbouring columns, from registers alone. For products with
    /// few rows, and for software devices. These have slow workgroup memory, and an operand that is the same for all
    /// lanes is cheap.
    Registers { rows: u32, columns: u32 },
}

const BLOCK: u32 = 64;
const DEPTH: u32 = 16;
const TILE_WORKGROUP: u32 = 256;
const REGISTER_WORKGROUP: u32 = 32;

impl ConvTile {
    /// Rows and columns of a workgroup's block.
    pub const fn block(self) -> (u32, u32) {
        match self {
            ConvTile::Workgroup => (BLOCK, BLOCK),
            ConvTile::Registers { rows, columns } => (rows, columns * REGISTER_WORKGROUP),
        }
    }

    /// Neighbouring columns of one row of the output that one invocation computes.
    pub const fn strip(self) -> u32 {
        match self {
            ConvTile::Workgroup => 1,
            ConvTile::Registers { columns, .. } => columns,
        }
    }

    /// Invocations per workgroup.
    pub const fn workgroup(self) -> u32 {
        match self {
            ConvTile::Workgroup => TILE_WORKGROUP,
            ConvTile::Registers { .. } => REGISTER_WORKGROUP,
        }
    }
}

/// An invocation's part of a block, and its sums in row-major order.
pub(super) struct Sums<'k> {
    /// The rows and columns in the block.
    pub rows: Vec<Value<'k>>,
    pub columns: Vec<Value<'k>>,
    sums: Vec<Var<'k>>,
}

impl<'k> Sums<'k> {
    /// Returns zeros for the part of the block that this invocation computes.
    pub fn new(k: &'k KernelBuilder, ty: Type, tile: ConvTile) -> Self {
        let lane = k.local_index();
        let (rows, columns): (Vec<_>, Vec<_>) = match tile {
            ConvTile::Workgroup => {
                let (row, column) = (lane / 16 * 4, lane % 16 * 4);
                ((0..4).map(|r| row + r).collect(), (0..4).map(|c| column + c).collect())
            }
            ConvTile::Registers { rows, columns } => {
                ((0..rows).map(|r| k.u32(r)).collect(), (0..columns).map(|c| lane * columns + c).collect())
            }
        };
        let sums = (0..rows.len() * columns.len()).map(|_| k.var(k.number(ty, 0))).collect();
        Sums { rows, columns, sums }
    }

    /// Adds the product of every row's `a` and every column's `b`.
    pub fn add_products(&self, a: &[Value<'k>], b: &[Value<'k>]) {
        for (&a, sums) in a.iter().zip(self.sums.chunks(b.len())) {
            for (&sum, &b) in sums.iter().zip(b) {
                sum.set(if a.ty().is_float() { a.fma(b, sum.get()) } else { sum.get() + a * b });
            }
        }
    }

    /// Visits every sum with its row and column in the block.
    pub fn each(&self, mut visit: impl FnMut(Value<'k>, Value<'k>, Value<'k>)) {
        for (&row, sums) in self.rows.iter().zip(self.sums.chunks(self.columns.len())) {
            for (&column, sum) in self.columns.iter().zip(sums) {
                visit(row, column, sum.get());
            }
        }
    }
}

/// Returns the column of the block that an invocation loads in [`add_by_workgroup`].
pub(super) fn loaded_column(k: &KernelBuilder) -> Value<'_> {
    k.local_index() % BLOCK
}

/// Adds up products over the depth, from tiles in workgroup memory. `a` loads the elements of four rows at one depth,
/// and `b` loads the invocation's [`loaded_column`] at four consecutive depths. Both yield 0 outside of their matrix.
/// All invocations must call this function, with the same depth.
pub(super) fn add_by_workgroup<'k>(
    k: &'k KernelBuilder,
    ty: Type,
    sums: &Sums<'k>,
    depth: Value<'k>,
    a: impl Fn([Value<'k>; 4], Value<'k>) -> [Value<'k>; 4],
    b: impl Fn(Value<'k>) -> [Value<'k>; 4],
) {
    let lane = k.local_index();
    // Tiles of 64 x 16 and 16 x 64, both with the depth as the outer axis.
    let (a_tile, b_tile) = (k.workgroup_array(ty, DEPTH * BLOCK), k.workgroup_array(ty, DEPTH * BLOCK));
    // Neighbouring lanes load neighbouring elements of a row of `a`, and of a row of `b`.
    let (a_depth, a_rows) = (lane % DEPTH, [0, 16, 32, 48].map(|r| lane / DEPTH + r));
    let (b_depth, b_column) = (lane / BLOCK * 4, loaded_column(k));
    k.for_step(0, depth, DEPTH, |start| {
        for (row, element) in a_rows.into_iter().zip(a(a_rows, start + a_depth)) {
            a_tile.store(a_depth * BLOCK + row, element);
        }
        for (i, element) in (0..).zip(b(start + b_depth)) {
            b_tile.store((b_depth + i) * BLOCK + b_column, element);
        }
        k.barrier();
        k.for_unrolled(DEPTH, |i| {
            let load = |tile: Array<'k>, at: &[Value<'k>]| -> Vec<_> {
                at.iter().map(|&place| tile.load(i * BLOCK + place)).collect()
            };
            sums.add_products(&load(a_tile, &sums.rows), &load(b_tile, &sums.columns));
        });
        k.barrier();
    });
}
