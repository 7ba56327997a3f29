//! Copies of operands that lie in an order in which a product would be slow.

use super::batched_product::{BatchedProduct, FEW_VECTORS};
use super::pad::PadMode;
use crate::base::error::Result;
use crate::kernels::matmul::{Along, QUAD};
use crate::tensor::Tensor;

/// A copied element takes at most the time of this many products from registers: on lavapipe, 2 ns beside 0.03 ns, and
/// 0.1 to 0.5 ns if an operand is read element by element.
const PRODUCTS_PER_COPY: usize = 16;

/// On units, a copied element pays if it is part of this many products. Element by element, 1024 x 1024 by 1024 x 31
/// takes 35 us on an H100, and 8 with 32 columns.
const FEWEST_USES: usize = 32;

/// Returns both operands in an order that matrix units read. The right one may have more columns than before: zeros.
/// `None` if there is nothing to copy, or if a copy does not pay.
pub(super) fn for_units(lhs: &Tensor, rhs: &Tensor, problem: &BatchedProduct) -> Result<Option<[Tensor; 2]>> {
    let [m, n, k] = problem.sizes;
    let bytes = lhs.dtype().size_in_bytes();
    let pays = |along: Option<Along>, uses: usize| match along {
        None => uses >= FEWEST_USES,
        // Units read bytes across the depth one by one.
        Some(Along::Other) => bytes == 1 && uses >= 256,
        Some(Along::Depth) => false,
    };
    let count = 16 / bytes;
    let [a, b] = problem.along(count);
    let missing = [k, n].map(|length| (length.next_multiple_of(count) - length) as isize);
    let (copy_a, copy_b) = (pays(a, n), pays(b, m));
    let unreadable = (a.is_none() && !copy_a) || (b.is_none() && !copy_b);
    // A longer depth needs copies of both.
    let copies_too_much = missing[0] > 0 && m.min(n) < FEWEST_USES;
    if unreadable || copies_too_much || !(copy_a || copy_b) {
        return Ok(None);
    }
    // Rows stay rows, as a transposed copy takes longer. But units read bytes along the depth.
    if problem.rhs.column == 1 && bytes > 1 && (copy_b || missing[0] > 0) {
        let lhs = if copy_a || missing[0] > 0 { padded(lhs, &[(0, missing[0])])? } else { lhs.clone() };
        return Ok(Some([lhs, padded(rhs, &missing.map(|missing| (0, missing)))?]));
    }
    along_depth([lhs, rhs], [copy_a, copy_b], count).map(Some)
}

/// Returns both operands in an order that lanes read which hand each other elements. `None` if there is nothing to
/// copy, if a copy does not pay, or if the device has no such lanes.
pub(super) fn for_lanes(lhs: &Tensor, rhs: &Tensor, problem: &BatchedProduct) -> Result<Option<[Tensor; 2]>> {
    let [m, n, _] = problem.sizes;
    if !BatchedProduct::may_broadcast(lhs.device(), lhs.dtype()) {
        return Ok(None);
    }
    let [copy_a, copy_b] = problem.broadcast_readings().map(|along| along.is_none());
    let copied = if copy_a { m } else { 0 } + if copy_b { n } else { 0 };
    if copied == 0 || copied.saturating_mul(PRODUCTS_PER_COPY) > m.saturating_mul(n) {
        return Ok(None);
    }
    along_depth([lhs, rhs], [copy_a, copy_b], QUAD).map(Some)
}

/// Returns both operands of a product with few columns in the order in which kernels read vectors. `None` if there is
/// nothing to copy, if a copy does not pay, or if the device computes such products in another way.
pub(super) fn for_vectors(lhs: &Tensor, rhs: &Tensor, problem: &BatchedProduct) -> Result<Option<[Tensor; 2]>> {
    let [m, n, _] = problem.sizes;
    let has_blocks = !lhs.device().tuning().matmul.blocks.is_empty();
    let pays = has_blocks && (2..=FEW_VECTORS).contains(&n) && m >= FEWEST_USES && lhs.dtype().size_in_bytes() <= 4;
    match problem.along(QUAD) {
        [Some(Along::Depth), b] if pays && b != Some(Along::Depth) => {
            along_depth([lhs, rhs], [false, true], QUAD).map(Some)
        }
        _ => Ok(None),
    }
}

/// Copies operands along the depth. Zeros fill the depth of both up to a multiple of `count` elements.
fn along_depth([lhs, rhs]: [&Tensor; 2], [copy_lhs, copy_rhs]: [bool; 2], count: usize) -> Result<[Tensor; 2]> {
    let ordered = |x: &Tensor, copy: bool| {
        let depth = x.dims()[x.rank() - 1];
        let missing = (depth.next_multiple_of(count) - depth) as isize;
        if copy || missing > 0 { padded(x, &[(0, missing)]) } else { Ok(x.clone()) }
    };
    Ok([ordered(lhs, copy_lhs)?, ordered(&rhs.t()?, copy_rhs)?.t()?])
}

/// Returns a copy with zeros behind the last axes. Matrices that a batch repeats are copied once.
fn padded(x: &Tensor, amounts: &[(isize, isize)]) -> Result<Tensor> {
    let repeated = |&axis: &usize| x.strides()[axis] == 0 && x.dims()[axis] > 1;
    let once = (0..x.rank() - 2).filter(repeated).try_fold(x.clone(), |x, axis| x.narrow(axis, 0, 1))?;
    if amounts.iter().all(|amount| *amount == (0, 0)) {
        return once.copied();
    }
    once.pad(amounts, PadMode::Constant(0.into()))
}
