//! Takes the elements at the places found. Buffers: the elements, the places, the results.

use super::*;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SortTake {
    pub rows: RowsType,
}

parameters! {
    config: SortTake;
    host: TakeParameters;
    device: Declared;
    /// The total number of elements to take.
    count: Size,
    /// The number of elements to take per row.
    per_row: Size,
    rows: RowsType = config.rows,
}

impl Family for SortTake {
    fn name(&self) -> String {
        format!("sort_take({})", self.rows.dtype)
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write(&self, k: &KernelBuilder) {
        let Declared { count, per_row, rows } = self.declare(k);
        let dtype = self.rows.dtype;
        let x = Rows::moved(k, rows, dtype);
        let places = k.buffer("places", Type::U32, Access::Read);
        let y = Quads::output(k, "y", dtype.moved());
        let quad = k.global_index();
        k.when((quad * 4).lt(count), || {
            let lanes = [0, 1, 2, 3].map(|lane| {
                let index = (quad * 4 + lane).min(count - 1);
                x.load(index / per_row, places.load(index))
            });
            y.store_lanes(k, quad, lanes);
        });
    }

    fn samples() -> Vec<Self> {
        sample_rows().map(|rows| SortTake { rows }).collect()
    }
}
