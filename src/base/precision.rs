//! [`Precision`]: how exact products of `f32` are at least.

/// How exact matrix products of `f32` are at least: [`Device::set_precision`](crate::Device::set_precision). The names are
/// those of PyTorch's `set_float32_matmul_precision`. Sums are kept in `f32` whatever it is.
///
/// Less than the highest is a permission: where a device has no matrix units for `bf16`, or a product is too small for them, it is
/// computed in `f32`. Numbers as large as the largest of `bf16` (3.39e38) may become infinite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum Precision {
    /// Operands may be rounded to `bf16`: a product is within 2^-8 of the sum of its terms' magnitudes.
    Medium,
    /// Operands may be taken for the sums of two `bf16`, of which the product of the lesser parts is left out: three products,
    /// within 2^-16 of the sum of the terms' magnitudes. What is infinite may become NaN.
    High,
    /// In `f32`.
    #[default]
    Highest,
}
