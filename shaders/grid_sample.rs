//! Images looked at through a grid of places. Each invocation computes four consecutive elements of the output.

use super::Family;
use super::elements::{Elements, Grid, Quads, Strides, float_parameter, quad_indices};
use super::interpolation::{Interpolation, Tap, combined, cubic_weights, linear_weights};
use crate::base::dtype::DType;
use crate::shader::{KernelBuilder, Scalar, Type, Value};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 64;

/// The coefficient of the cubic convolution.
const CUBIC: f32 = -0.75;

/// What is seen outside of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Outside {
    Zeros,
    Border,
    Reflection,
}

/// Samples `x` of `[batch, channels, height, width]` at `grid` of `[batch, rows, columns, 2]`. Parameters: the number of
/// elements of the output, the lengths of its axes; offset and strides of `x` and of `grid`; per axis of the image, the
/// vertical one first, its length, and what part of it the numbers from -1 to 1 span: how long it is, where it starts.
/// Places are as precise as the more precise of the two.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct GridSample {
    pub dtype: DType,
    pub grid: DType,
    pub interpolation: Interpolation,
    pub outside: Outside,
}

/// An axis of the image. Its length is a float, as places are.
struct ImageAxis<'k> {
    last: Value<'k>,
    span: Value<'k>,
    start: Value<'k>,
}

impl GridSample {
    /// The dtype in which places are computed.
    pub fn places(&self) -> DType {
        if [self.dtype, self.grid].contains(&DType::F64) { DType::F64 } else { DType::F32 }
    }
}

impl<'k> ImageAxis<'k> {
    fn parameters(k: &'k KernelBuilder, dtype: DType) -> Self {
        let [length, span, start] = std::array::from_fn(|_| float_parameter(k, dtype));
        ImageAxis { last: length - 1.0, span, start }
    }

    /// The place that is looked at for one that may be outside. NaN becomes 0, of zeros a place outside.
    fn seen(&self, place: Value<'k>, outside: Outside) -> Value<'k> {
        let place = match outside {
            Outside::Zeros => return place.abs().lt(1e9).select(place, -100.0),
            Outside::Border => place,
            Outside::Reflection => {
                // To and fro between the two ends of the span.
                let distance = (place - self.start).abs();
                let turns = (distance / self.span).floor();
                let rest = distance - turns * self.span;
                let back = (turns - (turns * 0.5).floor() * 2.0).ge(1.0);
                back.select(self.span - rest, rest) + self.start
            }
        };
        let place = place.gt(0.0).select(place, 0.0);
        place.lt(self.last).select(place, self.last)
    }

    /// The elements that samples at `number`, from -1 to 1 inside of the image, are made of.
    fn taps(&self, config: &GridSample, stride: Value<'k>, number: Value<'k>) -> Vec<Tap<'k>> {
        let place = (number + 1.0) * 0.5 * self.span + self.start;
        let tap = |(place, weight): (Value<'k>, Option<Value<'k>>)| {
            let inside = place.ge(0.0) & place.le(self.last);
            let offset = inside.select(place, 0.0).convert(Scalar::U32) * stride;
            let weight = weight.map(|weight| weight.convert(config.dtype.compute_scalar()));
            Tap { offset, inside: Some(inside), weight }
        };
        match config.interpolation {
            Interpolation::Nearest => vec![tap((self.seen(place, config.outside).round(), None))],
            Interpolation::Linear => {
                let place = self.seen(place, config.outside);
                let first = place.floor();
                let weights = linear_weights(place - first).map(Some);
                [first, first + 1.0].into_iter().zip(weights).map(tap).collect()
            }
            Interpolation::Cubic => {
                let first = place.floor();
                let weights = cubic_weights(place.literal(CUBIC), place - first).map(Some);
                let places = [-1.0, 0.0, 1.0, 2.0].map(|n| self.seen(first + n, config.outside));
                places.into_iter().zip(weights).map(tap).collect()
            }
        }
    }
}

impl Family for GridSample {
    fn name(&self) -> String {
        let GridSample { dtype, grid, interpolation, outside } = self;
        format!("grid_sample({dtype}, {grid}, {interpolation:?}, {outside:?})").to_lowercase()
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write(&self, k: &KernelBuilder) {
        let count = k.parameter(Type::U32);
        let lengths = Grid::parameters(k, 4);
        let [x_at, grid_at] = std::array::from_fn(|_| Strides::parameters(k, 4));
        let [vertical, horizontal] = std::array::from_fn(|_| ImageAxis::parameters(k, self.places()));
        let x = Elements::input(k, "x", self.dtype);
        let grid = Elements::input(k, "grid", self.grid);
        let y = Quads::output(k, "y", self.dtype);

        let quad = k.global_index();
        k.when((quad * 4).lt(count), || {
            let coordinates = lengths.coordinates(quad_indices(k, quad, count));
            let [image, channel, row, column] = std::array::from_fn(|axis| coordinates[axis]);
            let pair = grid_at.at(&[image, row, column]);
            let number = |at| grid.gather_lanes(k, at).convert(self.places().compute_scalar());
            let across = number(pair);
            let down = number(pair + grid_at.stride(1));
            let taps = [vertical.taps(self, x_at.stride(2), down), horizontal.taps(self, x_at.stride(1), across)];
            y.store(k, quad, combined(k, x, x_at.at(&[image, channel]), None, &taps));
        });
    }

    fn samples() -> Vec<Self> {
        let interpolations = [Interpolation::Nearest, Interpolation::Linear, Interpolation::Cubic];
        let outsides = [Outside::Zeros, Outside::Border, Outside::Reflection];
        let sample =
            |(interpolation, outside)| GridSample { dtype: DType::F32, grid: DType::F32, interpolation, outside };
        interpolations.into_iter().zip(outsides).map(sample).collect()
    }
}
