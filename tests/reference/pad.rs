//! Padding and pixel shuffling.

use super::{ArrayD, IxDyn, array};

/// The contents of a border.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Border {
    Constant(f64),
    Reflect,
    Replicate,
    Circular,
}

impl Border {
    /// The index of the element shown at `place`, which may be outside the axis. `None` in a constant border.
    fn shown(self, place: i64, length: i64) -> Option<usize> {
        let inside = (0..length).contains(&place);
        let shown = match self {
            Border::Constant(_) => return inside.then_some(place as usize),
            Border::Replicate => place.clamp(0, length - 1),
            Border::Circular => place.rem_euclid(length),
            Border::Reflect if length == 1 => 0,
            Border::Reflect => {
                let period = 2 * (length - 1);
                let place = place.rem_euclid(period);
                place.min(period - place)
            }
        };
        Some(shown as usize)
    }
}

/// Adds the given numbers of elements before and after each axis. Negative numbers crop; cropping comes first.
pub fn pad(x: &ArrayD<f64>, amounts: &[(i64, i64)], border: Border) -> ArrayD<f64> {
    let crop = |n: i64| (-n).max(0);
    let lengths: Vec<i64> =
        x.shape().iter().zip(amounts).map(|(&n, &(before, after))| n as i64 - crop(before) - crop(after)).collect();
    let shape: Vec<usize> =
        x.shape().iter().zip(amounts).map(|(&n, &(before, after))| (n as i64 + before + after) as usize).collect();
    ArrayD::from_shape_fn(IxDyn(&shape), |index| {
        let mut source = Vec::new();
        for (axis, &(before, _)) in amounts.iter().enumerate() {
            match border.shown(index[axis] as i64 - before.max(0), lengths[axis]) {
                Some(place) => source.push(place + crop(before) as usize),
                None => break,
            }
        }
        match border {
            Border::Constant(number) if source.len() < amounts.len() => number,
            _ => x[IxDyn(&source)],
        }
    })
}

/// Turns groups of `factor`² channels (the first of three axes) into blocks of pixels.
pub fn pixel_shuffle(x: &ArrayD<f64>, factor: usize) -> ArrayD<f64> {
    let [channels, height, width] = [0, 1, 2].map(|axis| x.shape()[axis]);
    let shape = [channels / (factor * factor), height * factor, width * factor];
    ArrayD::from_shape_fn(IxDyn(&shape), |index| {
        let [c, y, z] = [0, 1, 2].map(|axis| index[axis]);
        x[[(c * factor + y % factor) * factor + z % factor, y / factor, z / factor]]
    })
}

/// Turns the pixels of each block into channels.
pub fn pixel_unshuffle(x: &ArrayD<f64>, factor: usize) -> ArrayD<f64> {
    let [channels, height, width] = [0, 1, 2].map(|axis| x.shape()[axis]);
    let mut elements = Vec::new();
    for (c, dy, dx) in
        (0..channels).flat_map(|c| (0..factor).flat_map(move |dy| (0..factor).map(move |dx| (c, dy, dx))))
    {
        for y in 0..height / factor {
            elements.extend((0..width / factor).map(|column| x[[c, y * factor + dy, column * factor + dx]]));
        }
    }
    array(&[channels * factor * factor, height / factor, width / factor], elements)
}
