//! Rotary position embeddings: rotates pairs of features by an angle. Each invocation computes four consecutive
//! elements.

use super::Family;
use super::elements::{Elements, Quads, Strides};
use super::parameters::{Form, Lengths, Size, View, parameters};
use crate::base::dtype::DType;
use crate::shader::{KernelBuilder, Value};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 128;

/// Which features form a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Pairs {
    /// The first and the second half: `i` and `i + half`.
    Halves,
    /// Neighbours: `2 i` and `2 i + 1`.
    Neighbours,
}

impl Pairs {
    /// Returns a feature of a row whose first features form `pairs` pairs, after their rotation. `load_x` loads a
    /// feature, `load_turn` the cosine and the sine for a pair.
    pub fn rotated<'k>(
        self,
        feature: Value<'k>,
        pairs: Value<'k>,
        load_x: impl Fn(Value<'k>) -> Value<'k>,
        load_turn: impl Fn(Value<'k>) -> [Value<'k>; 2],
    ) -> Value<'k> {
        let turned = feature.lt(pairs * 2);
        // The pair, whether this is its second feature, and the other feature.
        let (pair, second, other) = match self {
            Pairs::Halves => {
                let second = feature.ge(pairs);
                let pair = second.select(feature - pairs, feature);
                (pair, second, second.select(pair, feature + pairs))
            }
            Pairs::Neighbours => (feature >> 1, (feature & 1).eq(1), feature ^ 1),
        };
        let [this, other] = [feature, turned.select(other, feature)].map(load_x);
        let [cos, sin] = load_turn(pair.min(pairs - 1)).map(|number| number.convert(this.ty().scalar));
        let sin = second.select(sin, -sin);
        turned.select(this.fma(cos, other * sin), this)
    }

    /// Returns a run of `length` features, from `run * length` on. The pairs are whole runs. `load_x` loads a run.
    /// `load_turns` takes the first of some pairs and their number, and loads their cosines and sines.
    pub fn rotated_run<'k>(
        self,
        length: u32,
        run: Value<'k>,
        pairs: Value<'k>,
        load_x: impl Fn(Value<'k>) -> Vec<Value<'k>>,
        load_turns: impl Fn(Value<'k>, u32) -> [Vec<Value<'k>>; 2],
    ) -> Vec<Value<'k>> {
        let runs = pairs / length;
        let turned = run.lt(runs * 2);
        let this = load_x(run);
        // The other features of the pairs, their cosines, and the sines with their signs.
        let (other, cos, sin) = match self {
            Pairs::Halves => {
                let second = run.ge(runs);
                let first = second.select(run - runs, run);
                let other = load_x(turned.select(second.select(first, run + runs), run));
                let [cos, sin] = load_turns(first.min(runs - 1) * length, length);
                (other, cos, sin.into_iter().map(|sin| second.select(sin, -sin)).collect::<Vec<_>>())
            }
            Pairs::Neighbours => {
                let [cos, sin] = load_turns(turned.select(run, 0) * (length / 2), length / 2);
                let other = (0..this.len()).map(|n| this[n ^ 1]).collect();
                let signed = sin.into_iter().flat_map(|sin| [-sin, sin]).collect();
                (other, cos.into_iter().flat_map(|cos| [cos; 2]).collect(), signed)
            }
        };
        let rotated = |(n, &this): (usize, &Value<'k>)| turned.select(this.fma(cos[n], other[n] * sin[n]), this);
        this.iter().enumerate().map(rotated).collect()
    }
}

/// A pair `(a, b)` becomes `(a cos - b sin, a sin + b cos)`. Features after the last pair do not change.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Rotary {
    pub dtype: DType,
    pub table: DType,
    pub pairs: Pairs,
    /// The number of axes other than the features.
    pub rank: usize,
}

parameters! {
    config: Rotary;
    host: Parameters;
    device: Declared;
    /// The number of elements.
    count: Size,
    features: Size,
    pairs: Size,
    /// The lengths of the other axes.
    lengths: Lengths = Lengths(config.rank),
    /// Strides along the other axes, then along the features.
    x: View = View(config.rank + 1),
    /// Strides along the other axes, then along the pairs.
    cos: View = View(config.rank + 1),
    sin: View = View(config.rank + 1),
}

impl Family for Rotary {
    fn name(&self) -> String {
        format!("rotary({}, {} tables, {:?})", self.dtype, self.table, self.pairs).to_lowercase()
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let Declared { count, features, pairs, lengths, x: x_at, cos: cos_at, sin: sin_at } = self.declare(k);
        let x = Elements::input(k, "x", self.dtype);
        let (cos, sin) = (Elements::input(k, "cos", self.table), Elements::input(k, "sin", self.table));
        let y = Quads::output(k, "y", self.dtype);

        let quad = k.global_index();
        let first = quad * 4;
        k.when(first.lt(count), || {
            let lanes = [0, 1, 2, 3].map(|lane| {
                let place = (first + lane).min(count - 1);
                let (row, feature) = (lengths.coordinates(place / features), place % features);
                let at = |strides: &Strides<'k>, last: Value<'k>| strides.at(&[&row[..], &[last]].concat());
                let load_x = |feature| x.load(at(&x_at, feature));
                let load_turn = |pair| [cos.load(at(&cos_at, pair)), sin.load(at(&sin_at, pair))];
                self.pairs.rotated(feature, pairs, load_x, load_turn)
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
