//! Dispatches with more workgroups than one dimension allows. Such dispatches are folded.

use crate::suite::{Outcome, Suite};
use marquetry::{Device, Element, Tensor};

/// More than 65,535 workgroups of 64 invocations of 4 elements, and a multiple of none of these.
const ELEMENTS: usize = 65_535 * 64 * 4 + 999;

fn bytes() -> Vec<u8> {
    (0..ELEMENTS).map(|i| (i % 251) as u8).collect()
}

/// Compares element by element, because there are too many elements to print.
fn compare<T: Element>(actual: &Tensor, expected: impl Iterator<Item = T>) -> Outcome {
    let actual = actual.to_vec::<T>()?;
    match actual.iter().copied().zip(expected).enumerate().find(|(_, (got, expected))| got != expected) {
        Some((place, (got, expected))) => Err(format!("at {place}: expected {expected:?}, got {got:?}").into()),
        None => Ok(()),
    }
}

fn neg(device: &Device) -> Outcome {
    let bytes = bytes();
    let x = Tensor::from_slice(&bytes, ELEMENTS, device)?;
    compare(&x.neg()?, bytes.iter().map(|x| x.wrapping_neg()))
}

fn sum(device: &Device) -> Outcome {
    let bytes = bytes();
    let rows = 65_535 * 64 + 77;
    let x = Tensor::from_slice(&bytes[..2 * rows], (rows, 2), device)?;
    compare(&x.sum(1)?, bytes[..2 * rows].chunks(2).map(|row| u32::from(row[0]) + u32::from(row[1])))
}

fn cat(device: &Device) -> Outcome {
    let bytes = bytes();
    let (a, b) = bytes.split_at(1001);
    let parts = [Tensor::from_slice(a, a.len(), device)?, Tensor::from_slice(b, b.len(), device)?];
    compare(&Tensor::cat(&parts, 0)?, bytes.iter().copied())
}

fn index_select(device: &Device) -> Outcome {
    let bytes = bytes();
    let table = Tensor::arange(0u8, 251, device)?;
    compare(&table.index_select(&Tensor::from_slice(&bytes, ELEMENTS, device)?, 0)?, bytes.iter().copied())
}

fn cumsum(device: &Device) -> Outcome {
    let bytes = bytes();
    let rows = 65_535 * 64 + 77;
    let x = Tensor::from_slice(&bytes[..2 * rows], (rows, 2), device)?;
    let sums = |row: &[u8]| [u32::from(row[0]), u32::from(row[0]) + u32::from(row[1])];
    compare(&x.cumsum(1)?, bytes[..2 * rows].chunks(2).flat_map(sums))
}

fn argsort(device: &Device) -> Outcome {
    let bytes = bytes();
    // One workgroup per row.
    let rows = 65_535 + 77;
    let x = Tensor::from_slice(&bytes[..2 * rows], (rows, 2), device)?;
    let order = |row: &[u8]| if row[0] <= row[1] { [0u32, 1] } else { [1, 0] };
    compare(&x.argsort(1, false)?, bytes[..2 * rows].chunks(2).flat_map(order))
}

pub fn add(suite: &mut Suite) {
    suite.add("cumsum", "u8::many_groups", cumsum);
    suite.add("argsort", "u8::many_groups", argsort);
    suite.add("neg", "u8::many_groups", neg);
    suite.add("sum", "u8::many_groups", sum);
    suite.add("cat", "u8::many_groups", cat);
    suite.add("index_select", "u8::many_groups", index_select);
}
