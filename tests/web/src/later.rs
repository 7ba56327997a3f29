//! Comparisons that wait until their case has ended: only then can elements be awaited.

use crate::compare::{self, Expected};
use crate::reference::{ArrayD, array};
use crate::suite::Outcome;
use half::{bf16, f16};
use marquetry::{DType, Element, Tensor};
use std::cell::RefCell;

struct Comparison {
    op: String,
    actual: Tensor,
    expected: Expected,
}

thread_local! {
    static WAITING: RefCell<Vec<Comparison>> = const { RefCell::new(Vec::new()) };
}

/// Begins a case.
pub fn begin() {
    WAITING.take();
}

/// Compares a tensor when its case has ended.
pub fn compare(op: &str, actual: &Tensor, expected: &Expected) {
    let comparison = Comparison { op: op.into(), actual: actual.clone(), expected: expected.clone() };
    WAITING.with_borrow_mut(|waiting| waiting.push(comparison));
}

/// Ends a case: compares what it has recorded.
pub async fn end() -> Outcome {
    for Comparison { op, actual, expected } in WAITING.take() {
        compare::compare(&op, &download(&actual).await?, &expected)?;
    }
    Ok(())
}

async fn download(tensor: &Tensor) -> Outcome<ArrayD<f64>> {
    async fn read<T: Element>(tensor: &Tensor) -> Outcome<Vec<f64>> {
        Ok(tensor.to_vec_async::<T>().await?.into_iter().map(T::to_f64).collect())
    }
    let elements = match tensor.dtype() {
        DType::Bool => read::<bool>(tensor).await?,
        DType::U8 => read::<u8>(tensor).await?,
        DType::I8 => read::<i8>(tensor).await?,
        DType::U32 => read::<u32>(tensor).await?,
        DType::I32 => read::<i32>(tensor).await?,
        DType::F16 => read::<f16>(tensor).await?,
        DType::BF16 => read::<bf16>(tensor).await?,
        DType::F32 => read::<f32>(tensor).await?,
        DType::I64 => read::<i64>(tensor).await?,
        DType::F64 => read::<f64>(tensor).await?,
        other => return Err(format!("no reading of {other}").into()),
    };
    if elements.len() != tensor.elem_count() {
        return Err(format!("read {} elements of shape {}", elements.len(), tensor.shape()).into());
    }
    Ok(array(tensor.dims(), elements))
}
