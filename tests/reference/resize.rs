//! Resizing of axes by the formulas of the ONNX operator `Resize`, version 13.

use super::{ArrayD, Axis};
use marquetry::{CoordinateMode, NearestRounding, ResizeConfig, ResizeMode};

/// One axis that is resized from `from` to `to` elements, and the scale as a fraction.
#[derive(Debug, Clone, Copy)]
pub struct Resized {
    pub from: usize,
    pub to: usize,
    pub scale: (f64, f64),
}

impl Resized {
    /// Resizes an axis to a length.
    pub fn to(from: usize, to: usize) -> Self {
        Resized { from, to, scale: (to as f64, from as f64) }
    }

    /// Multiplies the length of an axis by a fraction.
    pub fn by(from: usize, scale: (f64, f64)) -> Self {
        Resized { from, to: (from as f64 * scale.0 / scale.1).floor() as usize, scale }
    }

    /// The input coordinate of output element `i`, as numerator and denominator.
    fn place(self, i: usize, coordinates: CoordinateMode) -> (f64, f64) {
        let (i, (numerator, denominator)) = (i as f64, self.scale);
        match coordinates {
            CoordinateMode::PytorchHalfPixel | CoordinateMode::AlignCorners if self.to == 1 => (0.0, 1.0),
            CoordinateMode::HalfPixel | CoordinateMode::PytorchHalfPixel => {
                ((2.0 * i + 1.0) * denominator - numerator, 2.0 * numerator)
            }
            CoordinateMode::AlignCorners => (i * (self.from as f64 - 1.0), self.to as f64 - 1.0),
            CoordinateMode::Asymmetric => (i * denominator, numerator),
        }
    }

    /// The indexes and weights of the input elements that output element `i` reads.
    fn taps(self, i: usize, config: ResizeConfig) -> Vec<(usize, f64)> {
        let (numerator, denominator) = self.place(i, config.coordinates);
        let x = numerator / denominator;
        let last = self.from as f64 - 1.0;
        // The whole part, and the remaining fraction, which is rounded only once.
        let (first, t) = (x.floor(), numerator.rem_euclid(denominator) / denominator);
        match config.mode {
            ResizeMode::Nearest(rounding) => {
                let nearest = match rounding {
                    NearestRounding::Floor => x.floor(),
                    NearestRounding::Ceil => x.ceil(),
                    NearestRounding::PreferFloor => (x - 0.5).ceil(),
                    NearestRounding::PreferCeil => (x + 0.5).floor(),
                };
                vec![(nearest.clamp(0.0, last) as usize, 1.0)]
            }
            ResizeMode::Linear => {
                let place = |n: f64| n.clamp(0.0, last) as usize;
                vec![(place(first), 1.0 - t), (place(first + 1.0), t)]
            }
            ResizeMode::Cubic(a) => {
                let weight = |n: f64| {
                    let d = (t - n).abs();
                    if d <= 1.0 {
                        (a + 2.0) * d.powi(3) - (a + 3.0) * d.powi(2) + 1.0
                    } else {
                        a * d.powi(3) - 5.0 * a * d.powi(2) + 8.0 * a * d - 4.0 * a
                    }
                };
                [-1.0, 0.0, 1.0, 2.0].map(|n| ((first + n).clamp(0.0, last) as usize, weight(n))).to_vec()
            }
            other => panic!("the reference does not know {other:?}"),
        }
    }
}

/// Resizes the last axes. Also returns each element's sum of the magnitudes that it was made from.
pub fn resize(x: &ArrayD<f64>, axes: &[Resized], config: ResizeConfig) -> (ArrayD<f64>, ArrayD<f64>) {
    let (mut values, mut magnitudes) = (x.clone(), x.mapv(f64::abs));
    for (axis, resized) in (x.ndim() - axes.len()..).zip(axes) {
        let mut shape = values.shape().to_vec();
        shape[axis] = resized.to;
        let (mut longer, mut sums) = (ArrayD::zeros(shape.clone()), ArrayD::zeros(shape));
        for i in 0..resized.to {
            for (n, (place, weight)) in resized.taps(i, config).into_iter().enumerate() {
                let element = values.index_axis(Axis(axis), place).mapv(|x| if weight == 1.0 { x } else { x * weight });
                // Store the first term without adding it to 0: the sum would lose the sign of a negative zero.
                let mut sum = longer.index_axis_mut(Axis(axis), i);
                sum.zip_mut_with(&element, |sum, &x| *sum = if n == 0 { x } else { *sum + x });
                let magnitude = magnitudes.index_axis(Axis(axis), place);
                sums.index_axis_mut(Axis(axis), i).zip_mut_with(&magnitude, |sum, &x| *sum += x);
            }
        }
        (values, magnitudes) = (longer, sums);
    }
    (values, magnitudes)
}
