//! Gather and scatter by index, and concatenation.

use super::numbers::limits;
use super::{ArrayD, Axis, IxDyn};
use marquetry::DType;
use ndarray::concatenate;

/// The value that an index out of range reads.
pub fn fill(dtype: DType) -> f64 {
    match dtype {
        _ if dtype.is_float() => f64::NAN,
        DType::I64 | DType::I32 | DType::I8 => limits(dtype).0,
        _ => limits(dtype).1,
    }
}

/// Selects the slices at `indexes` along an axis.
pub fn index_select(x: &ArrayD<f64>, indexes: &ArrayD<f64>, axis: usize, dtype: DType) -> ArrayD<f64> {
    let mut shape = x.shape().to_vec();
    shape[axis] = indexes.len();
    let mut selected = ArrayD::from_elem(shape, fill(dtype));
    for (place, &index) in indexes.iter().enumerate() {
        if (0.0..x.shape()[axis] as f64).contains(&index) {
            selected.index_axis_mut(Axis(axis), place).assign(&x.index_axis(Axis(axis), index as usize));
        }
    }
    selected
}

/// Joins arrays along an axis.
pub fn cat(parts: &[ArrayD<f64>], axis: usize) -> ArrayD<f64> {
    let views: Vec<_> = parts.iter().map(|part| part.view()).collect();
    concatenate(Axis(axis), &views).expect("arrays that fit")
}

/// Replaces the position along an axis by an index. `None` if the index is out of range.
fn named(place: &IxDyn, index: f64, axis: usize, length: usize) -> Option<IxDyn> {
    let mut named = place.clone();
    named[axis] = index as usize;
    (0.0..length as f64).contains(&index).then_some(named)
}

/// Gathers single elements along an axis.
pub fn gather(x: &ArrayD<f64>, indexes: &ArrayD<f64>, axis: usize, dtype: DType) -> ArrayD<f64> {
    let length = x.shape()[axis];
    ArrayD::from_shape_fn(indexes.raw_dim(), |place| {
        named(&place, indexes[&place], axis, length).map_or(fill(dtype), |place| x[&place])
    })
}

/// Combines each element of `source`, in order, with the element that `indexes` names along an axis.
pub fn scatter(
    x: &ArrayD<f64>,
    indexes: &ArrayD<f64>,
    source: &ArrayD<f64>,
    axis: usize,
    combine: impl Fn(f64, f64) -> f64,
) -> ArrayD<f64> {
    let mut result = x.clone();
    let length = x.shape()[axis];
    for (place, &index) in indexes.indexed_iter() {
        if let Some(target) = named(&place, index, axis, length) {
            result[&target] = combine(result[&target], source[&place]);
        }
    }
    result
}
