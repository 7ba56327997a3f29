//! Resizes axes by interpolation. Each invocation computes four consecutive elements of the output.

use super::Family;
use super::elements::{Elements, Quads, quad_indices};
use super::interpolation::{Interpolation, Tap, combined, cubic_weights, linear_weights};
use super::parameters::{Bits, Each, Float, Form, Lengths, Size, View, parameters, times};
use crate::base::dtype::DType;
use crate::shader::{KernelBuilder, Scalar, Value};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 64;

/// Added to a quotient before the division, so that a guess of the quotient is never too large.
pub(crate) const MARGIN: u32 = 16;

/// Resizes the last axes of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Resize {
    pub dtype: DType,
    pub interpolation: Interpolation,
    /// The number of axes, and how many of the last ones are resized.
    pub rank: usize,
    pub resized: usize,
}

parameters! {
    config: Resize;
    host: Parameters;
    device: Declared;
    /// The number of elements of the output.
    count: Size,
    /// The lengths of the output's axes.
    lengths: Lengths = Lengths(config.rank),
    x: View = View(config.rank),
    /// A line per resized axis.
    lines: Each<LineForm> = times(config.resized),
    /// The coefficient of a cubic interpolation.
    a: Option<Float> = (config.interpolation == Interpolation::Cubic).then_some(Float(config.dtype)),
}

impl Resize {
    /// Returns the type in which weights are computed.
    fn weight_scalar(&self) -> Scalar {
        match (self.interpolation, self.dtype) {
            (Interpolation::Linear | Interpolation::Cubic, DType::F64) => Scalar::F64,
            _ => Scalar::F32,
        }
    }
}

/// The form of a line: the places in the input of the output's elements along an axis. Element `i` is at
/// `(slope i + start) / unit`. These are whole numbers, so that no rounding decides which element is the nearest.
#[derive(Default)]
pub(crate) struct LineForm;

parameters! {
    config: LineForm;
    host: LineParameters;
    device: Line;
    /// Modulo 2^32.
    slope: Bits,
    /// With `MARGIN * unit` added, modulo 2^32.
    start: Bits,
    unit: Size,
    /// `slope / unit`, rounded.
    ratio: Float = Float(DType::F32),
    /// `start / unit` without the margin, rounded.
    begin: Float = Float(DType::F32),
    /// The length of the input's axis.
    length: Size,
}

impl<'k> Line<'k> {
    /// Returns the whole part of the place of element `i`, which may be -1 or less, and the remaining fraction.
    fn place(&self, i: Value<'k>, scalar: Scalar) -> [Value<'k>; 2] {
        // The numerator may not fit 32 bits, but its rest after the guess does.
        let guess = (i.convert(Scalar::F32) * self.ratio + self.begin).floor().convert(Scalar::U32);
        let rest = i * self.slope + self.start - guess * self.unit;
        let whole = (guess + rest / self.unit).convert(Scalar::I32) - MARGIN as i32;
        let fraction = (rest % self.unit).convert(scalar) / self.unit.convert(scalar);
        [whole, fraction]
    }

    /// Returns the elements along this axis that output element `i` combines.
    fn taps(&self, config: &Resize, a: Option<Value<'k>>, stride: Value<'k>, i: Value<'k>) -> Vec<Tap<'k>> {
        let last = self.length - 1;
        let [whole, t] = self.place(i, config.weight_scalar());
        let (first, weights) = match (config.interpolation, a) {
            (Interpolation::Nearest, _) => (0, vec![None]),
            (Interpolation::Cubic, Some(a)) => (-1, cubic_weights(a, t).map(Some).to_vec()),
            _ => (0, linear_weights(t).map(Some).to_vec()),
        };
        let tap = |(n, weight)| {
            let place = (whole + n).max(0).convert(Scalar::U32).min(last);
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
        let Declared { count, lengths, x: x_at, lines, a } = self.declare(k);
        let nearest = self.interpolation == Interpolation::Nearest;
        let x = if nearest { Elements::moved(k, "x", self.dtype) } else { Elements::input(k, "x", self.dtype) };
        let y = Quads::output(k, "y", if nearest { self.dtype.moved() } else { self.dtype });

        let quad = k.global_index();
        k.when((quad * 4).lt(count), || {
            let places = lengths.coordinates(quad_indices(k, quad, count));
            let (kept, resized) = places.split_at(self.rank - self.resized);
            let taps: Vec<Vec<Tap>> = (lines.iter().zip(resized).enumerate())
                .map(|(n, (line, &i))| line.taps(self, a, x_at.stride(self.resized - n), i))
                .collect();
            if nearest {
                let index = taps.iter().flatten().fold(x_at.at(kept), |index, tap| index + tap.offset);
                return y.store_lanes(k, quad, [0, 1, 2, 3].map(|lane| index.lane(lane)).map(|index| x.load(index)));
            }
            y.store(k, quad, combined(k, x, x_at.at(kept), None, &taps));
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
