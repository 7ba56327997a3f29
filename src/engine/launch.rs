//! [`Launch`]: a kernel, and everything that one run of it needs.

use super::pool::Buffer;
use crate::kernels::parameters::{Form, Words};
use crate::kernels::{Family, Generate, KernelConfig, Work};

/// One run of a kernel of this crate.
pub(crate) struct Launch<'a, F: Form> {
    /// The configuration of the kernel.
    pub kernel: F,
    /// In the order in which the kernel declares them.
    pub buffers: &'a [&'a Buffer],
    pub parameters: F::Host,
    /// The number of workgroups.
    pub groups: usize,
}

/// A launch whose parameters are words: what the engine runs.
pub(crate) struct PackedLaunch<'a> {
    pub kernel: KernelConfig,
    pub generate: Generate,
    pub buffers: &'a [&'a Buffer],
    pub parameters: Words,
    pub groups: usize,
    pub work: Work,
}

impl<'a, F: Family> From<Launch<'a, F>> for PackedLaunch<'a> {
    fn from(Launch { kernel, buffers, parameters, groups }: Launch<'a, F>) -> Self {
        let mut words = Words::new();
        kernel.push(&parameters, &mut words);
        let work = kernel.work(&parameters);
        PackedLaunch { kernel: kernel.into(), generate: F::generate, buffers, parameters: words, groups, work }
    }
}
