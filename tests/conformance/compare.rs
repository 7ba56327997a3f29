//! Comparison of tensors with their expected values.

use crate::captured;
use crate::reference::numbers::{round, ulp};
use crate::reference::{ArrayD, array};
use crate::suite::Outcome;
use crate::tolerance::{self, Tolerance};
use half::{bf16, f16};
use marquetry::{DType, Device, Element, Tensor};
use ndarray::Dimension;

/// A tensor and its elements.
#[derive(Clone)]
pub struct Sample {
    pub tensor: Tensor,
    pub values: ArrayD<f64>,
}

/// The exact result of an operation.
#[derive(Clone)]
pub struct Expected {
    pub values: ArrayD<f64>,
    pub dtype: DType,
    /// The tolerance's part `of_scale` is a multiple of this.
    pub scale: Option<ArrayD<f64>>,
}

impl Expected {
    pub fn new(values: ArrayD<f64>, dtype: DType) -> Self {
        Expected { values, dtype, scale: None }
    }

    pub fn with_scale(self, scale: ArrayD<f64>) -> Self {
        Expected { scale: Some(scale), ..self }
    }

    pub fn reshaped(self, shape: &[usize]) -> Self {
        let reshape = |x: ArrayD<f64>| array(shape, x.into_iter().collect());
        Expected { values: reshape(self.values), scale: self.scale.map(reshape), dtype: self.dtype }
    }
}

/// Makes a tensor from numbers of the dtype, in row-major order.
pub fn upload(values: &ArrayD<f64>, dtype: DType, device: &Device) -> Outcome<Tensor> {
    captured::upload_or_input(values, dtype, |values| uploaded(values, dtype, device))
}

fn uploaded(values: &ArrayD<f64>, dtype: DType, device: &Device) -> Outcome<Tensor> {
    fn with<T: Element>(values: &ArrayD<f64>, device: &Device, convert: impl Fn(f64) -> T) -> Outcome<Tensor> {
        Ok(Tensor::from_vec(values.iter().map(|&x| convert(x)).collect(), values.shape(), device)?)
    }
    match dtype {
        DType::Bool => with(values, device, |x| x != 0.0),
        DType::U8 => with(values, device, |x| x as u8),
        DType::I8 => with(values, device, |x| x as i8),
        DType::U32 => with(values, device, |x| x as u32),
        DType::I32 => with(values, device, |x| x as i32),
        // Convert through f32, because `f16::from_f64` drops low bits. Numbers of the dtype do not change.
        DType::F16 => with(values, device, |x| f16::from_f32(x as f32)),
        DType::BF16 => with(values, device, |x| bf16::from_f32(x as f32)),
        DType::F32 => with(values, device, |x| x as f32),
        DType::I64 => with(values, device, |x| x as i64),
        DType::F64 => with(values, device, |x| x),
        other => Err(format!("no samples of {other}").into()),
    }
}

/// Reads a tensor's elements from its device.
pub fn download(tensor: &Tensor) -> Outcome<ArrayD<f64>> {
    fn read<T: Element>(tensor: &Tensor) -> Outcome<Vec<f64>> {
        Ok(tensor.to_vec::<T>()?.into_iter().map(T::to_f64).collect())
    }
    let elements = match tensor.dtype() {
        DType::Bool => read::<bool>(tensor)?,
        DType::U8 => read::<u8>(tensor)?,
        DType::I8 => read::<i8>(tensor)?,
        DType::U32 => read::<u32>(tensor)?,
        DType::I32 => read::<i32>(tensor)?,
        DType::F16 => read::<f16>(tensor)?,
        DType::BF16 => read::<bf16>(tensor)?,
        DType::F32 => read::<f32>(tensor)?,
        DType::I64 => read::<i64>(tensor)?,
        DType::F64 => read::<f64>(tensor)?,
        other => return Err(format!("no reading of {other}").into()),
    };
    captured::note_read();
    if elements.len() != tensor.elem_count() {
        return Err(format!("read {} elements of shape {}", elements.len(), tensor.shape()).into());
    }
    Ok(array(tensor.dims(), elements))
}

/// Fails unless shape and dtype match and all elements are within the tolerance of the operation.
pub fn check(op: &str, actual: &Tensor, expected: &Expected) -> Outcome {
    if actual.dims() != expected.values.shape() {
        return Err(format!("{op}: expected shape {:?}, got {}", expected.values.shape(), actual.shape()).into());
    }
    if actual.dtype() != expected.dtype {
        return Err(format!("{op}: expected dtype {}, got {}", expected.dtype, actual.dtype()).into());
    }
    if captured::takes(actual)? {
        return Ok(());
    }
    #[cfg(target_family = "wasm")]
    crate::later::compare(op, actual, expected);
    #[cfg(not(target_family = "wasm"))]
    compare(op, &download(actual)?, expected)?;
    Ok(())
}

/// Fails unless all elements are within the tolerance of the operation.
pub fn compare(op: &str, found: &ArrayD<f64>, expected: &Expected) -> Outcome {
    let tolerance = tolerance::of(op, expected.dtype);
    let mut wrong = Vec::new();
    let scales = expected.scale.as_ref().map(|scale| scale.iter().copied().collect::<Vec<_>>());
    for (place, ((index, &exact), &got)) in expected.values.indexed_iter().zip(found).enumerate() {
        let allowed = allowed(exact, scales.as_ref().map_or(0.0, |scales| scales[place]), expected.dtype, tolerance);
        if !allowed.admits(got, expected.dtype, tolerance) {
            wrong.push(format!(
                "at {:?}: expected {exact:?} (from {:?} to {:?}), got {got:?}",
                index.slice(),
                allowed.low,
                allowed.high
            ));
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let shown = wrong.iter().take(8).map(String::as_str).collect::<Vec<_>>().join("\n  ");
    let (count, all) = (wrong.len(), expected.values.len());
    Err(format!("{op}: {count} of {all} elements are wrong\n  {shown}\nallowed: {tolerance}").into())
}

/// The ratio of an `f64` rounding error to an `f32` rounding error.
pub const DOUBLE: f64 = 1.0 / 536_870_912.0;

/// The range of allowed results.
struct Allowed {
    low: f64,
    high: f64,
    exact: f64,
}

fn allowed(exact: f64, scale: f64, dtype: DType, tolerance: &Tolerance) -> Allowed {
    if !dtype.is_float() || !exact.is_finite() {
        return Allowed { low: exact, high: exact, exact };
    }
    // An infinite scale says nothing.
    let scaled = if scale.is_finite() { tolerance.of_scale * scale } else { 0.0 };
    if dtype == DType::F64 {
        // The reference computes the same in another order, so the error is in ulps of the result and of the scale.
        let error = (tolerance.ulp + 1.0) * ulp(exact, dtype) + tolerance.absolute + scaled * DOUBLE;
        return Allowed { low: exact - error, high: exact + error, exact };
    }
    let error = tolerance.ulp * ulp(exact, DType::F32) + tolerance.absolute + scaled;
    Allowed { low: round(exact - error, dtype), high: round(exact + error, dtype), exact }
}

impl Allowed {
    fn admits(&self, got: f64, dtype: DType, tolerance: &Tolerance) -> bool {
        if self.exact.is_nan() {
            return got.is_nan();
        }
        if tolerance.moves {
            return got == self.exact && got.is_sign_negative() == self.exact.is_sign_negative();
        }
        let smallest = if dtype == DType::F64 { f64::MIN_POSITIVE } else { f32::MIN_POSITIVE.into() };
        let flushed = dtype.is_float() && dtype != DType::F16 && self.exact.abs() < smallest && got == 0.0;
        flushed || (self.low..=self.high).contains(&got)
    }
}
