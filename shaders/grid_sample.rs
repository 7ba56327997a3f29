//! Samples images at a grid of places. Each invocation computes four consecutive elements of the output.

use super::Family;
use super::elements::{Elements, Quads};
use super::interpolation::{Interpolation, Tap, combined, cubic_weights, linear_weights};
use super::parameters::{Float, Form, Lengths, Size, View, parameters};
use crate::base::dtype::DType;
use crate::shader::{KernelBuilder, Scalar, Value};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 64;

/// The coefficient of the cubic convolution.
const CUBIC: f32 = -0.75;

/// The padding outside of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Outside {
    Zeros,
    Border,
    Reflection,
}

/// Samples `x` of `[batch, channels, height, width]` at `grid` of `[batch, rows, columns, 2]`. Places have the
/// precision of the more precise dtype of the two.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct GridSample {
    pub dtype: DType,
    pub grid: DType,
    pub interpolation: Interpolation,
    pub outside: Outside,
}

parameters! {
    config: GridSample;
    host: Parameters;
    device: Declared;
    /// The number of elements of the output.
    count: Size,
    /// The lengths of the output's axes.
    lengths: Lengths = Lengths(4),
    x: View = View(4),
    grid: View = View(4),
    vertical: AxisForm = AxisForm(config.places()),
    horizontal: AxisForm = AxisForm(config.places()),
}

/// The form of an axis of the image, with the dtype in which places are computed.
pub(crate) struct AxisForm(DType);

parameters! {
    config: AxisForm;
    host: AxisParameters;
    device: DeclaredAxis;
    /// The number of elements along the axis.
    length: Float = Float(config.0),
    /// The length of the part that the numbers from -1 to 1 span.
    span: Float = Float(config.0),
    /// The start of that part.
    start: Float = Float(config.0),
}

/// An axis of the image.
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
    fn new(DeclaredAxis { length, span, start }: DeclaredAxis<'k>) -> Self {
        ImageAxis { last: length - 1.0, span, start }
    }

    /// Returns the place to read for a place that may be outside. A NaN becomes 0. With [`Outside::Zeros`] it becomes a
    /// place outside.
    fn seen(&self, place: Value<'k>, outside: Outside) -> Value<'k> {
        let place = match outside {
            Outside::Zeros => return place.abs().lt(1e9).select(place, -100.0),
            Outside::Border => place,
            Outside::Reflection => {
                // Back and forth between the two ends of the span.
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

    /// Returns the elements that a sample at `number` combines. Numbers from -1 to 1 are inside of the image.
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
        let Declared { count, lengths, x: x_at, grid: grid_at, vertical, horizontal } = self.declare(k);
        let [vertical, horizontal] = [vertical, horizontal].map(ImageAxis::new);
        let x = Elements::input(k, "x", self.dtype);
        let grid = Elements::input(k, "grid", self.grid);
        let y = Quads::output(k, "y", self.dtype);

        let quad = k.global_index();
        k.when((quad * 4).lt(count), || {
            let coordinates = lengths.quad_coordinates(k, quad, count);
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
