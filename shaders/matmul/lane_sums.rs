//! How sums leave from the registers of the lanes that hold them.
//!
//! Which lane holds which sums is known of NVIDIA's GPUs: see `unit_sums.rs`. Of a unit's 16 x 16 sums, lane `4 g + t`
//! has four of row `g`, and then four of row `g + 8`. They are of the columns `2 t`, `2 t + 1`, `2 t + 8` and
//! `2 t + 9`.

use super::ProductBlock;
use super::exit::{Exit, Place};
use crate::kernels::unit_sums::{APART, Member, SHARING, UNIT};
use crate::shader::{Array, KernelBuilder, MatrixVar, Scalar, Type, Value};

/// Columns that the lanes of a row hold together: eight each, of two units.
const TOGETHER: u32 = 2 * UNIT;

/// Returns the column of a tile that takes a column of the product, so that a lane holds eight neighbours: column
/// `8 t + 4 u + 2 h + v` of each 32 is column `2 t + 8 h + v` of unit `u`.
pub(super) fn place_of_column(column: Value<'_>) -> Value<'_> {
    let within = column % TOGETHER;
    column - within + within / 4 % 2 * UNIT + within / 2 % 2 * 8 + within / 8 * 2 + within % 2
}

/// The sums that a lane holds. It has eight neighbouring columns of each 32, as two fours.
pub(super) struct LaneSums<'a, 'k> {
    pub p: &'a ProductBlock<'k>,
    pub exit: &'a Exit<'a, 'k>,
    /// Where the subgroup's part of the product begins.
    pub first: [Value<'k>; 2],
    /// The part's rows and columns, in units. A lane has as many fours in a row as there are columns.
    pub units: [u32; 2],
    /// Where sums wait if there is an epilogue, so that there can be a loop: at least as many vectors as the
    /// invocations have fours in two rows.
    pub memory: Array<'k>,
    pub invocations: u32,
}

impl<'k> LaneSums<'_, 'k> {
    /// Stores the sums from a row and a column on; others store what is before. `four` returns four neighbours: of a
    /// row of units, of the lane's first or second row in it, and which of the lane's fours in that row.
    pub fn store(&self, own: Option<[Value<'k>; 2]>, four: impl Fn(u32, u32, u32) -> Value<'k>) {
        let (k, exit, [rows, fours]) = (self.p.k, self.exit, self.units);
        let per_vector = exit.per_vector / 4;
        let places = (0..fours).step_by(per_vector as usize).map(|first| (first, exit.place(self.column(first))));
        let places: Vec<_> = places.collect();
        let store = |row: Value<'k>, place: &Place<'k>, sums: &dyn Fn() -> Vec<Value<'k>>| match own {
            Some([first_row, first_column]) => {
                let is_own = row.ge(first_row) & place.column.ge(first_column);
                k.when(is_own, || exit.store(row, place, sums));
            }
            None => exit.store(row, place, sums),
        };
        if exit.is_finished() {
            k.barrier();
        }
        let words = Type::vec4(Scalar::U32);
        let wait = |half: Value<'k>, e: u32| (half * fours + e) * self.invocations + k.local_index();
        let load = |half, e| self.memory.load(wait(half, e)).bitcast(words.with_scalar(self.p.accumulator.scalar));
        for i in 0..rows {
            if exit.is_finished() {
                for (half, e) in [0, 1].into_iter().flat_map(|half| (0..fours).map(move |e| (half, e))) {
                    self.memory.store(wait(k.u32(half), e), four(i, half, e).bitcast(words));
                }
                k.for_rolled(0, 2, 1, |half| {
                    for &(first, ref place) in &places {
                        let sums = || (first..first + per_vector).map(|e| load(half, e)).collect();
                        store(self.row(i, half), place, &sums);
                    }
                });
            } else {
                for half in 0..2 {
                    for &(first, ref place) in &places {
                        let sums = || (first..first + per_vector).map(|e| four(i, half, e)).collect();
                        store(self.row(i, k.u32(half)), place, &sums);
                    }
                }
            }
        }
    }

    /// Stores sums in 16 bits, without an epilogue. The columns of the tile have kept their order, so the lanes of a
    /// row exchange pairs of columns. `unit` returns the sums of a unit, by its row and column among units.
    pub fn store_pairs(&self, unit: impl Fn(u32, u32) -> MatrixVar<'k>) {
        let (k, [rows, columns]) = (self.p.k, self.units);
        let member = Member::new(k);
        let places = (0..rows)
            .flat_map(|i| [0, 1].map(|half| (i, half)))
            .flat_map(|(i, half)| (0..columns).step_by(2).map(move |first| (i, half, first)));
        // All exchanges come before the first store, so that none waits for another.
        let exchanged = places.map(|(i, half, first)| {
            let pair = |pair: u32| {
                let element = |e| unit(i, first + pair / 2).element(4 * half + pair % 2 * 2 + e);
                self.exit.pack(element(0), element(1))
            };
            let words = exchanged(k, &member, [0, 1, 2, 3].map(pair));
            (self.row(i, k.u32(half)), self.column(first), k.vector(&words))
        });
        for (row, column, words) in exchanged.collect::<Vec<_>>() {
            self.exit.store_words(row, column, words);
        }
    }

    /// Returns the lane's first or second row in a row of units.
    fn row(&self, i: u32, half: Value<'k>) -> Value<'k> {
        self.first[0] + Member::new(self.p.k).g + (half * APART + i * UNIT)
    }

    /// Returns the first column of one of the lane's fours.
    fn column(&self, four: u32) -> Value<'k> {
        self.first[1] + Member::new(self.p.k).t * 8 + (four / 2 * TOGETHER + four % 2 * 4)
    }
}

/// Exchanges the words of lanes that share lines: word `j` of lane `t` becomes word `t` of lane `j`.
fn exchanged<'k>(k: &'k KernelBuilder, member: &Member<'k>, mut words: [Value<'k>; 4]) -> [Value<'k>; 4] {
    let lane = member.g * SHARING + member.t;
    for bit in [1, 2] {
        let (partner, is_upper) = (lane ^ bit, (lane & bit).ne(k.u32(0)));
        for lower in [0, 3 - bit as usize] {
            let upper = lower + bit as usize;
            let received = is_upper.select(words[lower], words[upper]).subgroup_shuffle(partner);
            let kept = [is_upper.select(received, words[lower]), is_upper.select(words[upper], received)];
            [words[lower], words[upper]] = kept;
        }
    }
    words
}

#[cfg(all(test, device_tests))]
mod tests {
    use super::*;
    use crate::shader::Access;
    use crate::shader::tests::check;

    #[test]
    fn columns_lie_so_that_lanes_hold_neighbours() {
        let write = |k: &KernelBuilder| {
            let y = k.buffer("y", Type::U32, Access::Write);
            y.store(k.local_index(), place_of_column(k.local_index()));
        };
        // What the lanes of a row hold of two parts of 32 columns, and which column that is.
        let mut expected = vec![0; 64];
        for part in [0, 32] {
            for (t, u, h, v) in (0..32).map(|held| (held / 8, held / 4 % 2, held / 2 % 2, held % 2)) {
                expected[(part + 8 * t + 4 * u + 2 * h + v) as usize] = part + 16 * u + 2 * t + 8 * h + v;
            }
        }
        check(64, write, &[], 1, &expected);
    }

    #[test]
    fn lanes_of_a_row_exchange_words() {
        let write = |k: &KernelBuilder| {
            let y = k.buffer("y", Type::U32, Access::Write);
            let member = Member::new(k);
            let words = exchanged(k, &member, [0, 1, 2, 3].map(|j| member.t * 10 + j));
            for (j, word) in (0..).zip(words) {
                y.store(member.t * 4 + j, word);
            }
        };
        let expected: Vec<u32> = (0..4).flat_map(|t| (0..4).map(move |j| j * 10 + t)).collect();
        check(4, write, &[], 1, &expected);
    }
}
