//! Repetition, rolling, masks and diagonals.

use super::{ArrayD, IxDyn};

/// Repeats the array along each axis. If there are more repeats than axes, axes are added in front.
pub fn repeat(x: &ArrayD<f64>, repeats: &[usize]) -> ArrayD<f64> {
    let added = repeats.len() - x.ndim();
    let lengths: Vec<usize> = std::iter::repeat_n(1, added).chain(x.shape().iter().copied()).collect();
    let shape: Vec<usize> = lengths.iter().zip(repeats).map(|(n, times)| n * times).collect();
    ArrayD::from_shape_fn(IxDyn(&shape), |place| {
        let inner: Vec<usize> = (added..shape.len()).map(|axis| place[axis] % lengths[axis]).collect();
        x[&inner[..]]
    })
}

/// Moves the elements along an axis and wraps them around its end.
pub fn roll(x: &ArrayD<f64>, shift: isize, axis: usize) -> ArrayD<f64> {
    let length = x.shape()[axis] as i128;
    ArrayD::from_shape_fn(x.raw_dim(), |mut place| {
        place[axis] = (place[axis] as i128 - shift as i128).rem_euclid(length) as usize;
        x[&place]
    })
}

/// Zeroes the elements whose row and column (in the last two axes) do not satisfy `keep`.
pub fn masked(x: &ArrayD<f64>, keep: impl Fn(i128, i128) -> bool) -> ArrayD<f64> {
    let rank = x.ndim();
    ArrayD::from_shape_fn(x.raw_dim(), |place| {
        if keep(place[rank - 2] as i128, place[rank - 1] as i128) { x[&place] } else { 0.0 }
    })
}

/// Extracts a diagonal from a matrix, or builds a matrix from a diagonal.
pub fn diag(x: &ArrayD<f64>, diagonal: isize) -> ArrayD<f64> {
    let (down, right) = ((-diagonal).max(0) as usize, diagonal.max(0) as usize);
    if x.ndim() == 1 {
        let size = x.len() + down + right;
        return ArrayD::from_shape_fn(IxDyn(&[size, size]), |place| {
            let at = place[0].wrapping_sub(down);
            if place[1].wrapping_sub(right) == at { x.get([at].as_slice()).copied().unwrap_or(0.0) } else { 0.0 }
        });
    }
    let length = (x.shape()[0] - down).min(x.shape()[1] - right);
    ArrayD::from_shape_fn(IxDyn(&[length]), |place| x[[place[0] + down, place[0] + right].as_slice()])
}
