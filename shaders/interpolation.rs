//! Interpolates elements from those around a place.

use super::elements::Elements;
use crate::shader::{KernelBuilder, Value};

/// How an element is interpolated from its neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Interpolation {
    Nearest,
    Linear,
    Cubic,
}

impl Interpolation {
    /// The number of elements along an axis that an output combines.
    pub fn taps(self) -> u32 {
        match self {
            Interpolation::Nearest => 1,
            Interpolation::Linear => 2,
            Interpolation::Cubic => 4,
        }
    }
}

/// Elements along an axis from which others are interpolated.
pub(super) struct Tap<'k> {
    /// Their offset along the axis, in elements of the buffer.
    pub offset: Value<'k>,
    /// If this is false, a 0 replaces the element.
    pub inside: Option<Value<'k>>,
    /// Their weight, if it is not 1.
    pub weight: Option<Value<'k>>,
}

/// Returns the weights of the two elements around a place that is `t` after the first.
pub(super) fn linear_weights(t: Value<'_>) -> [Value<'_>; 2] {
    [t.literal(1.0) - t, t]
}

/// Returns the weights of the four elements around a place that is `t` after the second (R. Keys, "Cubic Convolution
/// Interpolation for Digital Image Processing", 1981).
pub(super) fn cubic_weights<'k>(a: Value<'k>, t: Value<'k>) -> [Value<'k>; 4] {
    let s = t.literal(1.0) - t;
    let near = |t: Value<'k>| ((a + 2.0) * t - (a + 3.0)) * t * t + 1.0;
    [a * t * s * s, near(t), near(s), a * s * t * t]
}

/// Returns the weighted sum of elements, or four sums for a vector of indices. The taps of each axis, outermost first,
/// lead from `index` to the elements.
pub(super) fn combined<'k>(
    k: &'k KernelBuilder,
    x: Elements<'k>,
    index: Value<'k>,
    inside: Option<Value<'k>>,
    axes: &[Vec<Tap<'k>>],
) -> Value<'k> {
    let Some((taps, inner)) = axes.split_first() else {
        let elements = if index.ty().lanes == 1 { x.load(index) } else { x.gather_lanes(k, index) };
        return inside.map_or(elements, |inside| inside.select(elements, 0.0));
    };
    let terms = taps.iter().map(|tap| {
        let both = inside.into_iter().chain(tap.inside).reduce(|a, b| a & b);
        let element = combined(k, x, index + tap.offset, both, inner);
        // Opaque, because a driver would turn `(1 - t) a` into `a - t a`, which is NaN if `a` is infinite.
        tap.weight.map_or(element, |weight| weight.opaque() * element)
    });
    terms.reduce(|sum, term| sum + term).unwrap_or(index)
}
