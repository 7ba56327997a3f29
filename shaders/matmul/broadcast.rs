//! Products from registers, for software devices. Lanes broadcast the elements of `a` to each other. On these devices a
//! load costs as much as ten products, whether all lanes load one element or each lane its own.

use super::windows::Depth;
use super::{Along, Matmul, Output, ProductBlock};
use crate::kernels::encoding::Width;
use crate::shader::{Value, Var};

/// Rows per invocation. With this number, the sums of two columns just stay in registers.
const ROWS: u32 = 14;

/// Invocations per workgroup: whole subgroups.
pub const WORKGROUP: u32 = 32;

/// Rows and columns of a workgroup's block.
pub const BLOCK: [u32; 2] = [ROWS, 2 * WORKGROUP];

/// Elements that are loaded at once along the depth.
pub const QUAD: usize = 4;

/// Lanes that load from one row of `a`, and rows that eight lanes load from.
const LANES: u32 = 4;
const LANE_ROWS: u32 = 2;

impl Along {
    /// Returns how many elements of `b` are loaded at once along this axis.
    pub fn elements_at_once(self) -> usize {
        if self == Along::Depth { QUAD } else { 2 }
    }
}

pub fn write<'k>(p: &ProductBlock<'k>, config: &Matmul, b_along: Along) {
    let (k, quad) = (p.k, QUAD as u32);
    let a = p.loader(config.a, "a", Width::Pairs(2));
    let b = p.loader(config.b, "b", Width::Pairs(b_along.elements_at_once() as u32 / 2));
    let y = Output::new(p, config);
    let (zero, lane, a_rows) = (k.u32(0), k.subgroup_lane(), p.a_lines());

    // Rows and columns beyond the edge repeat the last ones.
    let row = |row: Value<'k>| (p.first_row + row).min(p.m - 1);
    let own_row = |pair: u32| row(lane / LANES % LANE_ROWS + pair * LANE_ROWS);
    let own_rows: Vec<_> = (0..ROWS / LANE_ROWS).map(|pair| a_rows.line(own_row(pair))).collect();
    let first_column = p.first_column + k.local_index() * 2;
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
    let load_a = |(line, inside): (Value<'k>, Option<Value<'k>>), place: Value<'k>| -> Vec<Value<'k>> {
        let numbers = a.load_each(line / quad + place);
        let Some(inside) = inside else { return numbers };
        numbers.into_iter().map(|number| inside.select(number, k.number(number.ty(), 0))).collect()
    };
    // Adds the products of `quads` times four depths. `a` has what this lane has loaded.
    let add = |a: &[Vec<Value<'k>>], first: Value<'k>, quads: u32| {
        for lane in 0..quads {
            for (depth, b) in load_b(first + lane).into_iter().enumerate() {
                for (row, sums) in (0..).zip(&sums) {
                    let own = a[(row / LANE_ROWS) as usize][depth];
                    let a = own.subgroup_broadcast(row % LANE_ROWS * LANES + lane);
                    for (sum, b) in sums.iter().zip(b) {
                        sum.set(p.add_product(sum.get(), a, b));
                    }
                }
            }
        }
    };
    // Adds the products of a run of the depth, along which the rows' elements lie side by side. `before` tells how much
    // of the depth lies before the run. It is counted in quads, as the run's length is.
    let add_run = |depth: &Depth<'k>, before: Value<'k>, quads: Value<'k>| {
        let lines: Vec<_> = own_rows.iter().map(|row| a_rows.index(row, depth)).collect();
        let step = |first: Value<'k>, quads: u32| {
            let place = if quads == 1 { first } else { first + lane % LANES };
            let a: Vec<_> = lines.iter().map(|&line| load_a(line, place)).collect();
            add(&a, before + first, quads);
        };
        let whole = quads / LANES * LANES;
        k.for_step(0, whole, LANES, |first| step(first, LANES));
        k.for_range(whole, quads, |first| step(first, 1));
    };
    a_rows.each_run(k, p.depth, |depth, before, length| add_run(depth, before / quad, length / quad));

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
