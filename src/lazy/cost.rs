//! What is worth fusing: the rules by which bytes and operations are weighed.

use super::expression::Placed;
use crate::base::dtype::DType;
use crate::base::layout::Layout;

/// The most operations of an expression that is computed again for each element that repeats it. A GPU does this many
/// while it loads the element (an H200 takes 14 operations of `f32` per byte).
const MAX_REPEATED: usize = 16;

/// The most operations for each element of an operand, over all loads of it. If the operand is stored and loaded
/// instead, it moves two times its bytes, in which an H200 computes 112 operations for each element of `f32`. But
/// kernels that load elements often are rarely limited by memory.
const MAX_AT_LOADS: usize = 32;

/// Returns the bytes that lie behind a view.
pub(super) fn bytes(layout: &Layout, dtype: DType) -> u64 {
    let repeated = |(&length, &stride): (&usize, &isize)| if stride == 0 { 1 } else { length as u64 };
    let elements = layout.shape.iter().zip(&layout.strides).map(repeated).fold(1u64, u64::saturating_mul);
    elements.saturating_mul(dtype.size_in_bytes() as u64)
}

/// Whether a second computation of an expression, which reads this many bytes, moves fewer bytes than if a kernel
/// stored it now and another loaded it later. If the kernel that needs it now cannot store it `beside` its own result,
/// that kernel would have to load it, too.
pub(super) fn moves_less(bytes_read: u64, placed: &Placed, beside: bool) -> bool {
    let stored = bytes(&placed.placement, placed.expression.expr.dtype());
    // With three times the bytes it is a tie, if somebody asks for the result at all.
    if beside { bytes_read < stored.saturating_mul(2) } else { bytes_read <= stored.saturating_mul(3) }
}

/// Whether an expression over `elements`, which takes these operations with everything below it, may be computed for
/// each of `results`, of which several may need the same element.
pub(super) fn may_repeat(operations: u8, elements: usize, results: usize) -> bool {
    results <= elements || usize::from(operations) <= MAX_REPEATED
}

/// Whether a kernel that loads each element about `reads` times may compute these operations at each load.
pub(super) fn may_compute_at_loads(operations: u8, reads: usize) -> bool {
    usize::from(operations).saturating_mul(reads) <= MAX_AT_LOADS
}
