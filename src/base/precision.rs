//! [`Precision`]: the least precision of products of `f32`.

/// The least precision of matrix products of `f32`: [`Device::set_precision`](crate::Device::set_precision). PyTorch's
/// `set_float32_matmul_precision` has the same names. Sums are always kept in `f32`.
///
/// Less than the highest is a permission. If the device has no matrix units for `bf16`, or a product is too small for
/// them, the product is computed in `f32`. Numbers as large as the largest of `bf16` (3.39e38) may become infinite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum Precision {
    /// Operands may be rounded to `bf16`. A product is within 2^-8 of the sum of its terms' magnitudes.
    Medium,
    /// Each operand may be replaced by the sum of two `bf16`. Three products are computed; the product of the lesser
    /// parts is left out. The result is within 2^-16 of the sum of the terms' magnitudes. Infinities may become NaN.
    High,
    /// Products are computed in `f32`.
    #[default]
    Highest,
}

impl Precision {
    /// All of them.
    pub(crate) const ALL: [Precision; 3] = [Precision::Medium, Precision::High, Precision::Highest];
}
