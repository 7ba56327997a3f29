//! Elements picked and joined.

use super::numbers::limits;
use super::{ArrayD, Axis};
use marquetry::DType;
use ndarray::concatenate;

/// What an index out of range yields.
pub fn fill(dtype: DType) -> f64 {
    match dtype {
        _ if dtype.is_float() => f64::NAN,
        DType::I64 | DType::I32 | DType::I8 => limits(dtype).0,
        _ => limits(dtype).1,
    }
}

/// The slices along an axis that `indexes` names.
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

/// Arrays joined along an axis.
pub fn cat(parts: &[ArrayD<f64>], axis: usize) -> ArrayD<f64> {
    let views: Vec<_> = parts.iter().map(|part| part.view()).collect();
    concatenate(Axis(axis), &views).expect("arrays that fit")
}
