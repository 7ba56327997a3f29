//! Resized axes. Each invocation computes four consecutive elements of the output.

use super::Family;
use super::elements::{Elements, Grid, Quads, Strides, float_parameter, quad_indices};
use super::interpolation::{Interpolation, Tap, combined, cubic_weights, linear_weights};
use crate::base::dtype::DType;
use crate::shader::{KernelBuilder, Scalar, Type, Value};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 64;

/// What is added to a quotient before it is computed, so that a guess of it is never too large.
pub(crate) const MARGIN: u32 = 16;

/// Resizes the last axes of a tensor. Parameters: the number of elements of the output; the lengths of its axes; the
/// input's offset and strides; per resized axis a [`Line`] and the input's length; the coefficient of a cubic.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Resize {
    pub dtype: DType,
    pub interpolation: Interpolation,
    /// The axes in all, and how many of them, the last ones, are resized.
    pub rank: usize,
    pub resized: usize,
}

impl Resize {
    /// The length of the parameter block.
    pub fn parameter_words(&self) -> usize {
        let a = if self.interpolation == Interpolation::Cubic { self.dtype.parts() } else { 0 };
        2 + 2 * self.rank + 6 * self.resized + a
    }

    /// In what weights are computed.
    fn weight_scalar(&self) -> Scalar {
        match (self.interpolation, self.dtype) {
            (Interpolation::Linear | Interpolation::Cubic, DType::F64) => Scalar::F64,
            _ => Scalar::F32,
        }
    }
}

/// Where along an axis the output's elements are in the input: element `i` at `(slope i + start) / unit`. Fractions of
/// whole numbers decide without rounding which element is the nearest.
struct Line<'k> {
    slope: Value<'k>,
    /// With `MARGIN * unit` added.
    start: Value<'k>,
    unit: Value<'k>,
    /// `slope / unit` and `start / unit` (without what was added), rounded.
    ratio: Value<'k>,
    begin: Value<'k>,
    /// The last place along the axis.
    last: Value<'k>,
}

impl<'k> Line<'k> {
    fn parameters(k: &'k KernelBuilder) -> Self {
        let [slope, start, unit] = std::array::from_fn(|_| k.parameter(Type::U32));
        let [ratio, begin] = std::array::from_fn(|_| k.parameter(Type::F32));
        Line { slope, start, unit, ratio, begin, last: k.parameter(Type::U32) - 1 }
    }

    /// The whole part of the place of element `i`, which may be -1 or less, and the fraction that it leaves out.
    fn place(&self, i: Value<'k>, scalar: Scalar) -> [Value<'k>; 2] {
        // The numerator may not fit 32 bits, but what the guess leaves of it does.
        let guess = (i.convert(Scalar::F32) * self.ratio + self.begin).floor().convert(Scalar::U32);
        let rest = i * self.slope + self.start - guess * self.unit;
        let whole = (guess + rest / self.unit).convert(Scalar::I32) - MARGIN as i32;
        let fraction = (rest % self.unit).convert(scalar) / self.unit.convert(scalar);
        [whole, fraction]
    }

    /// The elements along this axis that output element `i` is made of.
    fn taps(&self, config: &Resize, a: Option<Value<'k>>, stride: Value<'k>, i: Value<'k>) -> Vec<Tap<'k>> {
        let [whole, t] = self.place(i, config.weight_scalar());
        let (first, weights) = match (config.interpolation, a) {
            (Interpolation::Nearest, _) => (0, vec![None]),
            (Interpolation::Cubic, Some(a)) => (-1, cubic_weights(a, t).map(Some).to_vec()),
            _ => (0, linear_weights(t).map(Some).to_vec()),
        };
        let tap = |(n, weight)| {
            let place = (whole + n).max(0).convert(Scalar::U32).min(self.last);
            Tap { offset: place * stride, inside: None, weight }
        };
        (first..).zip(weights).map(tap).collect()
    }
}

impl Family for Resize {
    fn name(&self) -> String {
        format!("resize({}, {:?}, {} of {})", self.dtype, self.interpolation, self.resized, self.rank).to_lowercase()
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write(&self, k: &KernelBuilder) {
        let count = k.parameter(Type::U32);
        let grid = Grid::parameters(k, self.rank);
        let strides = Strides::parameters(k, self.rank);
        let lines: Vec<Line> = (0..self.resized).map(|_| Line::parameters(k)).collect();
        let a = (self.interpolation == Interpolation::Cubic).then(|| float_parameter(k, self.dtype));
        let nearest = self.interpolation == Interpolation::Nearest;
        let x = if nearest { Elements::moved(k, "x", self.dtype) } else { Elements::input(k, "x", self.dtype) };
        let y = Quads::output(k, "y", if nearest { self.dtype.moved() } else { self.dtype });

        let quad = k.global_index();
        k.when((quad * 4).lt(count), || {
            let places = grid.coordinates(quad_indices(k, quad, count));
            let (kept, resized) = places.split_at(self.rank - self.resized);
            let taps: Vec<Vec<Tap>> = (lines.iter().zip(resized).enumerate())
                .map(|(n, (line, &i))| line.taps(self, a, strides.stride(self.resized - n), i))
                .collect();
            if nearest {
                let index = taps.iter().flatten().fold(strides.at(kept), |index, tap| index + tap.offset);
                return y.store_lanes(k, quad, [0, 1, 2, 3].map(|lane| index.lane(lane)).map(|index| x.load(index)));
            }
            y.store(k, quad, combined(k, x, strides.at(kept), None, &taps));
        });
    }

    fn samples() -> Vec<Self> {
        let sample = |dtype, interpolation| Resize { dtype, interpolation, rank: 3, resized: 2 };
        let mut samples = Vec::new();
        for dtype in DType::ALL {
            samples.push(sample(dtype, Interpolation::Nearest));
        }
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
            samples.extend([Interpolation::Linear, Interpolation::Cubic].map(|way| sample(dtype, way)));
        }
        samples
    }
}
