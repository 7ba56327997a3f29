//! The parameters of a window that slides along an axis, for convolutions and pooling.

use super::parameters::{Size, parameters};

/// The form of a window along one axis.
#[derive(Default)]
pub(crate) struct WindowForm;

parameters! {
    config: WindowForm;
    host: WindowParameters;
    device: DeclaredWindow;
    /// The length of the output.
    output: Size,
    /// The length of the input.
    input: Size,
    /// The number of taps.
    kernel: Size,
    /// The distance between neighbouring places of the window.
    stride: Size,
    /// The distance between neighbouring taps.
    dilation: Size,
    /// The padding before the input.
    before: Size,
}
