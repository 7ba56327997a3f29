//! Copies of operands that lie in an order in which a product would be slow.

use super::batched_product::{BatchedProduct, FEW_VECTORS};
use super::pad::PadMode;
use crate::base::error::Result;
use crate::device::Device;
use crate::kernels::matmul::{Along, QUAD, UnitReading};
use crate::tensor::Tensor;

/// On software devices, a copied element pays if it is part of this many products, and the product has this many.
/// On lavapipe, a copy takes 2 ns, a product in order 0.03 ns, and one out of order 0.1 to 0.5 ns. A launch takes some
/// 20 us.
const PRODUCTS_PER_COPY: usize = 16;
const FEWEST_PRODUCTS: usize = 1 << 19;

/// On GPUs, and for bytes as words, a copied element pays if it is part of this many products. On GPUs, the depth must
/// be this great, too, or the batch must have many rows and columns. On an H100, a copy takes at least 4 us.
/// 1024 x 1024 by 1024 x 31 takes 35 us element by element, and 8 us by 16 bytes.
const FEWEST_USES: usize = 32;
const LEAST_DEPTH: usize = 256;
const MANY: usize = 128;

/// If lines of halves begin off 16 bytes, units make some two thirds of their speed. A copy takes less time than that
/// costs if the product takes this many products of numbers, and if each copied element is part of so many.
const MANY_PRODUCTS: usize = 3 << 30;
const FEWEST_LOOSE_USES: usize = 512;

/// Returns both operands in an order that matrix units read. `None` if there is nothing to copy, or if a copy does not
/// pay. `is_read` tells whether units read them as they are.
pub(super) fn for_units(
    lhs: &Tensor,
    rhs: &Tensor,
    problem: &BatchedProduct,
    is_read: bool,
) -> Result<Option<[Tensor; 2]>> {
    match lhs.dtype().size_in_bytes() {
        _ if !is_large(lhs.device(), problem) => Ok(None),
        2 => halves_for_units(lhs, rhs, problem, is_read),
        bytes => bytes_for_units([lhs, rhs], problem, 16 / bytes),
    }
}

/// The same for elements of 16 bits. Copied lines begin at multiples of 16 bytes.
fn halves_for_units(
    lhs: &Tensor,
    rhs: &Tensor,
    problem: &BatchedProduct,
    is_read: bool,
) -> Result<Option<[Tensor; 2]>> {
    let [m, n, _] = problem.sizes;
    let [a, b] = problem.unit_readings(2);
    let is_huge = products(problem) >= MANY_PRODUCTS;
    let pays = |reading: Option<UnitReading>, uses: usize| match reading {
        Some(reading) if is_read => reading.loose && is_huge && uses >= FEWEST_LOOSE_USES,
        Some(reading) => reading.loose && uses >= FEWEST_USES,
        None => uses >= FEWEST_USES,
    };
    let (copy_a, copy_b) = (pays(a, n), pays(b, m));
    let unreadable = (a.is_none() && !copy_a) || (b.is_none() && !copy_b);
    if unreadable || !(copy_a || copy_b) {
        return Ok(None);
    }
    let aligned = |x: &Tensor| {
        let length = x.dims()[x.rank() - 1];
        let missing = length.next_multiple_of(8) - length;
        padded(x, &[(0, missing as isize)])?.narrow(-1, 0, length)
    };
    // Contiguous columns stay so, as a transposed copy takes longer.
    let ordered = |x: &Tensor, copy: bool, reading: Option<UnitReading>, depth_in_rows: bool| match reading {
        _ if !copy => Ok(x.clone()),
        Some(UnitReading { along, .. }) if (along == Along::Depth) != depth_in_rows => aligned(&x.t()?)?.t(),
        _ => aligned(x),
    };
    Ok(Some([ordered(lhs, copy_a, a, true)?, ordered(rhs, copy_b, b, false)?]))
}

/// The same for bytes, which units read along the depth. Zeros fill the depth of both operands.
fn bytes_for_units([lhs, rhs]: [&Tensor; 2], problem: &BatchedProduct, count: usize) -> Result<Option<[Tensor; 2]>> {
    let [m, n, k] = problem.sizes;
    let pays = |along: Option<Along>, uses: usize| match along {
        None => uses >= FEWEST_USES,
        // Units read bytes across the depth one by one.
        Some(Along::Other) => uses >= 256,
        Some(Along::Depth) => false,
    };
    let [a, b] = problem.along(count);
    let (copy_a, copy_b) = (pays(a, n), pays(b, m));
    let unreadable = (a.is_none() && !copy_a) || (b.is_none() && !copy_b);
    // A longer depth needs copies of both.
    let longer = !k.is_multiple_of(count);
    if unreadable || !(copy_a || copy_b) || (longer && m.min(n) < FEWEST_USES) {
        return Ok(None);
    }
    along_depth([lhs, rhs], [copy_a || longer, copy_b || longer], count).map(Some)
}

/// Returns both operands in an order that lanes read which hand each other elements. `None` if there is nothing to
/// copy, if a copy does not pay, or if the device has no such lanes.
pub(super) fn for_lanes(lhs: &Tensor, rhs: &Tensor, problem: &BatchedProduct) -> Result<Option<[Tensor; 2]>> {
    let [m, n, k] = problem.sizes;
    if !BatchedProduct::may_broadcast(lhs.device(), lhs.dtype()) || !is_large(lhs.device(), problem) {
        return Ok(None);
    }
    let [a, b] = problem.broadcast_readings();
    let pairs = n.is_multiple_of(Along::Other.elements_at_once());
    let (copy_a, copy_b) = (a.is_none(), b.is_none());
    let copied = if copy_a { m } else { 0 } + if copy_b { n } else { 0 };
    if copied == 0 || copied.saturating_mul(PRODUCTS_PER_COPY) > m.saturating_mul(n) {
        return Ok(None);
    }
    if !(copy_b && pairs) {
        return along_depth([lhs, rhs], [copy_a, copy_b], QUAD).map(Some);
    }
    let missing = (k.next_multiple_of(QUAD) - k) as isize;
    let lhs = if copy_a || missing > 0 { padded(lhs, &[(0, missing)])? } else { lhs.clone() };
    Ok(Some([lhs, padded(rhs, &[(0, missing), (0, 0)])?]))
}

/// Returns both operands of a product with few columns in the order in which kernels read vectors. `None` if there is
/// nothing to copy, if a copy does not pay, or if the device computes such products in another way.
pub(super) fn for_vectors(lhs: &Tensor, rhs: &Tensor, problem: &BatchedProduct) -> Result<Option<[Tensor; 2]>> {
    let [m, n, _] = problem.sizes;
    let are_few = (2..=FEW_VECTORS).contains(&n) && lhs.dtype().size_in_bytes() <= 4;
    let pays = has_blocks(lhs.device()) && are_few && m >= FEWEST_USES && is_large(lhs.device(), problem);
    match problem.along(QUAD) {
        [Some(Along::Depth), b] if pays && b != Some(Along::Depth) => {
            along_depth([lhs, rhs], [false, true], QUAD).map(Some)
        }
        _ => Ok(None),
    }
}

/// Whether a product takes so long that copies of its operands pay.
fn is_large(device: &Device, problem: &BatchedProduct) -> bool {
    let [m, n, k] = problem.sizes;
    if has_blocks(device) {
        return problem.batches().saturating_mul(m.min(n)) >= MANY || k >= LEAST_DEPTH;
    }
    products(problem) >= FEWEST_PRODUCTS
}

/// The number of products of numbers.
fn products(problem: &BatchedProduct) -> usize {
    problem.sizes.into_iter().fold(problem.batches(), usize::saturating_mul)
}

/// GPUs compute products by blocks, software devices do not.
fn has_blocks(device: &Device) -> bool {
    !device.tuning().matmul.blocks.is_empty()
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
