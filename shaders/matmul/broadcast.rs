//! Products from registers, for software devices. Lanes broadcast the elements of `a` to each other. On these devices a
//! load costs as much as ten products, whether all lanes load one element or each lane its own.

use super::{Along, Matmul, Output, ProductBlock};
use crate::kernels::encoding::Width;
use crate::shader::{Value, Var};

/// Rows per invocation. With more, compilers take longer: docs/experiments.md, "Loads on lavapipe".
const ROWS: u32 = 14;

/// Columns per invocation.
const COLUMNS: u32 = 2;

/// Elements that are loaded at once along the depth.
pub const QUAD: usize = 4;

/// Lanes that load from one row of `a`, and rows that eight lanes load from.
const LANES: u32 = 4;
const LANE_ROWS: u32 = 2;

/// Each invocation computes 14 rows of two columns from registers. Lanes broadcast the elements of `a`, which are
/// contiguous along the depth, to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Broadcast {
    /// The axis along which elements of `b` are contiguous.
    pub b: Along,
    /// True if the row length of `y` is a multiple of two, and elements are stored in pairs.
    pub pairs: bool,
    /// Invocations per workgroup: the lanes of a subgroup.
    pub lanes: u32,
}

impl Broadcast {
    /// Rows and columns of a workgroup's block.
    pub const fn block(self) -> [u32; 2] {
        [ROWS, COLUMNS * self.lanes]
    }
}

impl Along {
    /// Returns how many elements of `b` are loaded at once along this axis.
    pub fn elements_at_once(self) -> usize {
        if self == Along::Depth { QUAD } else { 2 }
    }
}

pub fn write<'k>(p: &ProductBlock<'k>, config: &Matmul, Broadcast { b: b_along, .. }: Broadcast) {
    let (k, quad) = (p.k, QUAD as u32);
    let words = |elements: usize| Width::Words((elements * config.a.factor().size_in_bytes() / 4) as u32);
    let a = p.loader(config.a, "a", words(QUAD));
    let b = p.loader(config.b, "b", words(b_along.elements_at_once()));
    let y = Output::new(p, config);
    let (zero, lane, a_rows) = (k.u32(0), k.subgroup_lane(), p.a_lines());

    // Rows and columns beyond the edge repeat the last ones.
    let row = |row: Value<'k>| (p.first_row + row).min(p.m - 1);
    let own_row = |pair: u32| row(lane / LANES % LANE_ROWS + pair * LANE_ROWS);
    let own_rows: Vec<_> = (0..ROWS / LANE_ROWS).map(|pair| a_rows.line(own_row(pair))).collect();
    let first_column = p.first_column + k.local_index() * COLUMNS;
    let columns = [first_column, first_column + 1];
    let b_lines: Vec<_> = match b_along {
        Along::Depth => columns.map(|column| p.b.index(zero, column.min(p.n - 1)) / quad).to_vec(),
        Along::Other => (0..quad).map(|depth| p.b.index(k.u32(depth), first_column.min(p.n - 2)) / 2).collect(),
    };
    // Loads the elements of both columns at four depths.
    let load_b = |place: Value<'k>| -> Vec<[Value<'k>; 2]> {
        if b_along == Along::Depth {
            let columns: Vec<_> = b_lines.iter().map(|&column| b.load_each(column + place)).collect();
            return (0..QUAD).map(|depth| [columns[0][depth], columns[1][depth]]).collect();
        }
        let rows = b_lines.iter().map(|&row| b.load_each(row + place * p.b.row_stride * (quad / 2)));
        rows.map(|row| [row[0], row[1]]).collect()
    };

    let sums: Vec<[Var; 2]> = (0..ROWS).map(|_| [0, 1].map(|_| k.var(k.number(p.accumulator, 0)))).collect();
    // Loads the elements of a row at four depths. Those in the padding of windows are 0.
    let load_a = |(index, inside): (Value<'k>, Option<Value<'k>>)| -> Vec<Value<'k>> {
        let numbers = a.load_each(index / quad);
        let Some(inside) = inside else { return numbers };
        numbers.into_iter().map(|number| inside.select(number, k.number(number.ty(), 0))).collect()
    };
    // Each lane loads the quads at its place of the depth. For windows, finding it takes divisions. Loops over the taps
    // took longer: each saves the sums, and loads them again.
    let load_rows = |place: Value<'k>| -> Vec<_> {
        let depth = a_rows.depth(place * quad);
        own_rows.iter().map(|row| load_a(a_rows.index(row, &depth))).collect()
    };
    // Adds the products of `quads` times four depths. All loads come first, so that they overlap.
    let add = |first: Value<'k>, quads: u32| {
        let own = load_rows(if quads == 1 { first } else { first + lane % LANES });
        let b: Vec<_> = (0..quads).map(|number| load_b(first + number)).collect();
        for (number, b) in (0..).zip(b) {
            for (depth, b) in b.into_iter().enumerate() {
                for (row, sums) in (0..).zip(&sums) {
                    let own = own[(row / LANE_ROWS) as usize][depth];
                    let a = own.subgroup_broadcast(row % LANE_ROWS * LANES + number);
                    for (sum, b) in sums.iter().zip(b) {
                        sum.set(p.add_product(sum.get(), a, b));
                    }
                }
            }
        }
    };
    let quads = p.depth / quad;
    let whole = quads / LANES * LANES;
    k.for_step(0, whole, LANES, |first| add(first, LANES));
    k.for_range(whole, quads, |first| add(first, 1));

    // Stores both columns together, or one by one.
    let together = config.tile.stored_together();
    for first in (0..2).step_by(together as usize) {
        let column = columns[first];
        k.when(column.lt(p.n) & p.real, || {
            let beside_all = y.columns(p, column);
            // The last row may be stored several times.
            for (i, sums) in (0..ROWS).zip(&sums) {
                let row = row(k.u32(i));
                let beside = y.load(p, &beside_all, |e| [row, column + e]);
                let value = if together == 2 { k.vector(&[sums[0].get(), sums[1].get()]) } else { sums[first].get() };
                y.store(p, value, &beside, [row, column]);
            }
        });
    }
}
