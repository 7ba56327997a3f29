//! Rotary position embeddings: pairs of features turned by an angle. Each invocation computes four consecutive elements.

use super::Family;
use super::elements::{Elements, Grid, Quads, Strides};
use crate::base::dtype::DType;
use crate::shader::{KernelBuilder, Type, Value};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 128;

/// Which features are a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Pairs {
    /// The first and the second half: `i` and `i + half`.
    Halves,
    /// Neighbours: `2 i` and `2 i + 1`.
    Neighbours,
}

/// A pair `(a, b)` becomes `(a cos - b sin, a sin + b cos)`; features behind the last pair stay. Parameters: the number
/// of elements, the number of features and of pairs; the lengths of the other axes; for `x` and both tables the offset,
/// and the strides along the other axes and along the features or pairs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Rotary {
    pub dtype: DType,
    pub table: DType,
    pub pairs: Pairs,
    pub rank: usize,
}

impl Rotary {
    /// The length of the parameter block for so many other axes.
    pub fn parameter_words(rank: usize) -> usize {
        3 + rank + 3 * (rank + 2)
    }
}

impl Family for Rotary {
    fn name(&self) -> String {
        format!("rotary({}, {} tables, {:?})", self.dtype, self.table, self.pairs).to_lowercase()
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let [count, features, pairs] = std::array::from_fn(|_| k.parameter(Type::U32));
        let grid = Grid::parameters(k, self.rank);
        let [x_at, cos_at, sin_at] = std::array::from_fn(|_| Strides::parameters(k, self.rank + 1));
        let x = Elements::input(k, "x", self.dtype);
        let (cos, sin) = (Elements::input(k, "cos", self.table), Elements::input(k, "sin", self.table));
        let y = Quads::output(k, "y", self.dtype);

        let quad = k.global_index();
        let first = quad * 4;
        k.when(first.lt(count), || {
            let lanes = [0, 1, 2, 3].map(|lane| {
                let place = (first + lane).min(count - 1);
                let (row, feature) = (grid.coordinates(place / features), place % features);
                let at = |strides: &Strides<'k>, last: Value<'k>| strides.at(&[&row[..], &[last]].concat());
                let turned = feature.lt(pairs * 2);
                // The pair, whether this is its second feature, and the other feature.
                let (pair, second, other) = match self.pairs {
                    Pairs::Halves => {
                        let second = feature.ge(pairs);
                        let pair = second.select(feature - pairs, feature);
                        (pair, second, second.select(pair, feature + pairs))
                    }
                    Pairs::Neighbours => (feature >> 1, (feature & 1).eq(1), feature ^ 1),
                };
                let pair = pair.min(pairs - 1);
                let other = turned.select(other, feature);
                let [this, other] = [feature, other].map(|feature| x.load(at(&x_at, feature)));
                let [cos, sin] = [cos.load(at(&cos_at, pair)), sin.load(at(&sin_at, pair))]
                    .map(|number| number.convert(this.ty().scalar));
                let sin = second.select(sin, -sin);
                turned.select(this.fma(cos, other * sin), this)
            });
            y.store(k, quad, k.vector(&lanes));
        });
    }

    fn samples() -> Vec<Self> {
        let floats = DType::ALL.into_iter().filter(|dtype| dtype.is_float());
        let both = [Pairs::Halves, Pairs::Neighbours];
        floats.flat_map(|dtype| both.map(|pairs| Rotary { dtype, table: DType::F32, pairs, rank: 2 })).collect()
    }
}
