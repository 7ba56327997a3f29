//! Samples of images at the coordinates of a grid.

use super::{ArrayD, IxDyn};
use marquetry::{GridSampleConfig, GridSampleMode, GridSamplePadding};

/// Applies the padding mode to a coordinate. Zero padding keeps it: [`grid_sample`] skips elements outside.
fn seen(place: f64, length: usize, config: GridSampleConfig) -> Option<f64> {
    let last = length as f64 - 1.0;
    match config.padding {
        GridSamplePadding::Zeros => Some(place),
        GridSamplePadding::Border => Some(place.clamp(0.0, last)),
        GridSamplePadding::Reflection => {
            let (low, high) = if config.align_corners { (0.0, last) } else { (-0.5, last + 0.5) };
            let (mut place, span) = (place, high - low);
            if span == 0.0 {
                return Some(0.0);
            }
            // Mirror at one end and then at the other, until the coordinate is inside.
            place = (place - low).rem_euclid(2.0 * span) + low;
            if place > high {
                place = 2.0 * high - place;
            }
            Some(place.clamp(0.0, last))
        }
    }
}

/// The indexes and weights of the elements that a sample reads along an axis. Some indexes may be outside.
fn taps(number: f64, length: usize, config: GridSampleConfig) -> Vec<(Option<f64>, f64)> {
    let n = length as f64;
    let place = if config.align_corners { (number + 1.0) / 2.0 * (n - 1.0) } else { ((number + 1.0) * n - 1.0) / 2.0 };
    match config.mode {
        GridSampleMode::Nearest => vec![(seen(place, length, config).map(f64::round_ties_even), 1.0)],
        GridSampleMode::Bilinear => {
            let place = seen(place, length, config).unwrap_or(f64::NAN);
            let t = place - place.floor();
            vec![(Some(place.floor()), 1.0 - t), (Some(place.floor() + 1.0), t)]
        }
        GridSampleMode::Bicubic => [-1.0, 0.0, 1.0, 2.0]
            .map(|n| {
                let (a, d) = (-0.75, (place - place.floor() - n).abs());
                let weight = if d <= 1.0 {
                    (a + 2.0) * d.powi(3) - (a + 3.0) * d.powi(2) + 1.0
                } else {
                    a * d.powi(3) - 5.0 * a * d.powi(2) + 8.0 * a * d - 4.0 * a
                };
                (seen(place.floor() + n, length, config), weight)
            })
            .to_vec(),
    }
}

/// Returns the samples and the scale of their error: the sum of the magnitudes around each sample, times the rounding
/// error of its coordinates.
pub fn grid_sample(x: &ArrayD<f64>, grid: &ArrayD<f64>, config: GridSampleConfig) -> (ArrayD<f64>, ArrayD<f64>) {
    let (height, width) = (x.shape()[2], x.shape()[3]);
    let shape = [x.shape()[0], x.shape()[1], grid.shape()[1], grid.shape()[2]];
    let mut scale = ArrayD::zeros(IxDyn(&shape));
    let values = ArrayD::from_shape_fn(IxDyn(&shape), |index| {
        let [image, channel, row, column] = [0, 1, 2, 3].map(|axis| index[axis]);
        let (across, down) = (grid[[image, row, column, 0]], grid[[image, row, column, 1]]);
        let (mut sum, mut magnitude) = (0.0, 0.0);
        for (y, y_weight) in taps(down, height, config) {
            for (z, z_weight) in taps(across, width, config) {
                let inside = |place: Option<f64>, length: usize| {
                    place.filter(|place| (0.0..length as f64).contains(place)).map(|place| place as usize)
                };
                if let (Some(y), Some(z)) = (inside(y, height), inside(z, width)) {
                    let element: f64 = x[[image, channel, y, z]];
                    sum += y_weight * z_weight * element;
                    magnitude += element.abs();
                }
            }
        }
        let error = |number: f64, length: usize| 1.0 + (number.abs() + 1.0) * length as f64;
        scale[&index] = magnitude * (error(across, width) + error(down, height));
        sum
    });
    (values, scale)
}
