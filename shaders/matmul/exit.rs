//! How sums leave the matrix units. Each lane takes vectors of neighbours in a row, applies the epilogue if there is
//! one, and stores the vectors rounded. If rows begin anywhere, it stores their elements one by one.

use super::{Matmul, MatmulTile, ProductBlock, UnitLayout};
use crate::base::dtype::DType;
use crate::kernels::elements::{Quads, narrowed};
use crate::kernels::epilogue::Tail;
use crate::kernels::expr::TermId;
use crate::shader::{Access, Array, KernelBuilder, Scalar, Type, Value};

/// Bytes that an invocation stores at a time.
const VECTOR: u32 = 16;

pub(super) struct Exit<'a, 'k> {
    p: &'a ProductBlock<'k>,
    dtype: DType,
    y: Rows<'k>,
    finish: Option<Finish<'k>>,
    /// Elements in a vector.
    pub per_vector: u32,
}

/// The rows of the product in memory.
enum Rows<'k> {
    /// Whole vectors.
    Vectors(Array<'k>),
    Singles(Singles<'k>),
}

/// The epilogue of the sums.
struct Finish<'k> {
    tail: Tail<'k>,
    /// The terms of the epilogue that are stored too, because something else reads them.
    kept: Vec<(Kept<'k>, TermId)>,
}

enum Kept<'k> {
    Quads(Quads<'k>),
    Singles(Singles<'k>),
}

/// Elements of 16 or 32 bits that are stored one by one.
struct Singles<'k> {
    array: Array<'k>,
    dtype: DType,
}

impl<'k> Singles<'k> {
    fn output(k: &'k KernelBuilder, name: &str, dtype: DType) -> Self {
        let scalar = if dtype.size_in_bytes() == 2 { Scalar::F16 } else { dtype.compute_scalar() };
        Singles { array: k.buffer(name, Type { scalar, lanes: 1 }, Access::Write), dtype }
    }

    /// Stores four neighbours of a row, except for those beyond its end.
    fn store(&self, p: &ProductBlock<'k>, [row, column]: [Value<'k>; 2], four: Value<'k>) {
        for (column, number) in (0..).map(|lane: u32| column + lane).zip(four.lanes()) {
            p.k.when(p.is_inside(row, column), || {
                let element = match self.dtype.size_in_bytes() {
                    // A buffer of `f16` also takes the bits of a `bf16`.
                    2 => narrowed(p.k, self.dtype, number).bitcast(Type { scalar: Scalar::F16, lanes: 2 }).lane(0),
                    _ => number,
                };
                self.array.store(p.place(row, column), element);
            });
        }
    }
}

/// The place of vectors in their rows.
pub(super) struct Place<'k> {
    pub column: Value<'k>,
    /// For each quad of a vector, the epilogue's inputs that are the same for all rows.
    columns: Vec<Vec<Option<Value<'k>>>>,
}

impl<'a, 'k> Exit<'a, 'k> {
    pub fn new(p: &'a ProductBlock<'k>, config: &Matmul) -> Self {
        let (k, dtype) = (p.k, config.output);
        let tail = p.tail(config);
        let single = matches!(config.tile, MatmulTile::MatrixUnits(_, UnitLayout { single: true, .. }));
        let y = match single {
            true => Rows::Singles(Singles::output(k, "y", dtype)),
            false => Rows::Vectors(k.buffer("y", Type::vec4(Scalar::U32), Access::Write)),
        };
        let keep = |name: &str, dtype| match single {
            true => Kept::Singles(Singles::output(k, name, dtype)),
            false => Kept::Quads(Quads::output(k, name, dtype)),
        };
        let kept = || config.kept().map(|(name, id, dtype)| (keep(&name, dtype), id)).collect();
        let finish = tail.map(|tail| Finish { kept: kept(), tail });
        // Short vectors, so that neighbouring lanes store near each other.
        let per_vector = if single { 4 } else { VECTOR / dtype.size_in_bytes() as u32 };
        Exit { p, dtype, y, finish, per_vector }
    }

    /// True if there is an epilogue. Its code is long: unrolled many times, it would not stay in caches.
    pub fn is_finished(&self) -> bool {
        self.finish.is_some()
    }

    /// True if vectors hold eight numbers of 16 bits.
    pub fn stores_halves(&self) -> bool {
        self.per_vector == 8
    }

    /// Returns the place of the vectors that begin at a column.
    pub fn place(&self, column: Value<'k>) -> Place<'k> {
        let columns = self
            .finish
            .iter()
            .flat_map(|finish| (0..self.per_vector / 4).map(|e| self.p.load_columns(&finish.tail, column + 4 * e, 4)));
        Place { column, columns: columns.collect() }
    }

    /// Stores a vector of a row. `sums` returns its sums as quads.
    pub fn store(&self, row: Value<'k>, place: &Place<'k>, sums: impl FnOnce() -> Vec<Value<'k>>) {
        let Some(finish) = &self.finish else { return self.store_vector(row, place.column, &sums()) };
        let (p, k) = (self.p, self.p.k);
        let fours: Vec<_> = (0..self.per_vector / 4).map(|e| place.column + 4 * e).collect();
        let beside = fours.iter().zip(&place.columns).map(|(&column, columns)| {
            p.load_beside(&finish.tail, &[0, 1, 2, 3].map(|lane| [row, column + lane]), columns)
        });
        let beside: Vec<_> = beside.collect();
        let sums = sums();
        let values = fours.iter().zip(&beside).zip(&sums).map(|((&column, beside), &four)| {
            let index = k.vector(&[0, 1, 2, 3].map(|lane| p.place(row, column + lane)));
            finish.tail.evaluate(beside, four, index)
        });
        let values: Vec<_> = values.collect();
        for (kept, id) in &finish.kept {
            for (&column, four) in fours.iter().zip(&values) {
                let four = four[id.index()];
                match kept {
                    Kept::Singles(singles) => singles.store(p, [row, column], four),
                    Kept::Quads(quads) => {
                        k.when(p.is_inside(row, column), || quads.store(k, p.place(row, column) / 4, four));
                    }
                }
            }
        }
        self.store_vector(row, place.column, &values.iter().map(|four| four[four.len() - 1]).collect::<Vec<_>>());
    }

    /// Stores a vector. If vectors are stored whole, rows of `y` are padded to whole vectors.
    fn store_vector(&self, row: Value<'k>, column: Value<'k>, numbers: &[Value<'k>]) {
        let p = self.p;
        match &self.y {
            Rows::Singles(singles) => {
                (0..).zip(numbers).for_each(|(e, &four): (u32, _)| singles.store(p, [row, column + 4 * e], four));
            }
            Rows::Vectors(_) => self.store_words(row, column, self.narrowed(numbers)),
        }
    }

    /// Stores the words of a vector, if vectors are stored whole.
    pub fn store_words(&self, row: Value<'k>, column: Value<'k>, words: Value<'k>) {
        let (p, Rows::Vectors(y)) = (self.p, &self.y) else {
            return self.p.k.fail("elements are stored one by one, not as vectors");
        };
        let y_row = (p.n + (self.per_vector - 1)) / self.per_vector;
        let place = (p.batch * p.m + row) * y_row + column / self.per_vector;
        p.k.when(p.is_inside(row, column), || y.store(place, words));
    }

    /// Returns a word with two numbers, rounded to 16 bits.
    pub fn pack(&self, low: Value<'k>, high: Value<'k>) -> Value<'k> {
        // On an H200, the device's conversion to `bf16` does not round to nearest.
        match self.dtype {
            DType::BF16 => self.p.k.pack_bf16(low, high),
            _ => self.p.k.pack_f16(low, high),
        }
    }

    /// Returns the bits of a vector, from vectors of four numbers.
    fn narrowed(&self, numbers: &[Value<'k>]) -> Value<'k> {
        let k = self.p.k;
        let [low, high] = numbers else { return numbers[0].bitcast(Type::vec4(Scalar::U32)) };
        let words = [low, high].map(|four| [[0, 1], [2, 3]].map(|[a, b]| self.pack(four.lane(a), four.lane(b))));
        k.vector(words.as_flattened())
    }
}
