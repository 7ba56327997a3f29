//! For which sort of device kernels are chosen.

use crate::device::{Device, DeviceKind};
use std::sync::LazyLock;

/// The words of `MARQUETRY_TUNING`, between commas, by which tests have kernels chosen that would not be: `gpu`, those of
/// GPUs for every device; `portable`, none that need matrix units; the name of a block, such as `128x128x128/64x64x1`, that
/// one for all products on matrix units; `splits=2`, products in so many parts of the depth where that is possible.
fn words() -> &'static [String] {
    static WORDS: LazyLock<Vec<String>> = LazyLock::new(|| {
        let words = std::env::var("MARQUETRY_TUNING").unwrap_or_default();
        words.split(',').map(|word| word.trim().to_string()).filter(|word| !word.is_empty()).collect()
    });
    &WORDS
}

/// Whether a word is among those of `MARQUETRY_TUNING`.
pub(crate) fn is_forced(is_it: impl Fn(&str) -> bool) -> bool {
    words().iter().any(|word| is_it(word))
}

/// Whether the kernels of GPUs are chosen for every device.
pub(crate) fn as_gpu() -> bool {
    is_forced(|word| word == "gpu")
}

/// Whether kernels are chosen for a driver that runs on the processor.
pub(crate) fn is_software(device: &Device) -> bool {
    device.info().kind == DeviceKind::Cpu && !as_gpu()
}
