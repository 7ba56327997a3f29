//! A sample of every family, for those who want to look at the kernels: `cargo run --example kernels`.

use super::KernelConfig;
use crate::dump;
use crate::error::Result;
use crate::shader::{Module, Target};

/// Generates a sample of every family of kernels. With `MARQUETRY_DUMP=dir` they are written there in all forms.
///
/// ```
/// use marquetry::{catalogue, shader::Target};
/// let kernels = catalogue(Target::VULKAN)?;
/// assert!(kernels.iter().any(|kernel| kernel.name.starts_with("matmul")));
/// # Ok::<(), marquetry::Error>(())
/// ```
///
/// # Errors
/// [`Error::Kernel`](crate::Error::Kernel) would be a mistake in this crate.
pub fn catalogue(target: Target) -> Result<Vec<Module>> {
    KernelConfig::samples()
        .iter()
        .map(|config| {
            dump::write(config)?;
            config.generate(target)
        })
        .collect()
}
