//! The kernels: one file per family, each a configuration and a plain function that
//! writes the kernel for it.

pub(crate) mod assign;
pub(crate) mod cat;
mod catalogue;
mod elements;
pub(crate) mod elementwise;
pub(crate) mod index_select;
pub(crate) mod matmul;
pub(crate) mod normalize;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod workgroup;

pub use catalogue::catalogue;

use crate::error::Result;
use crate::shader::{KernelBuilder, Module, Target};

/// What identifies a kernel: its family and all that its code depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum KernelConfig {
    Elementwise(elementwise::Elementwise),
    Reduce(reduce::Reduce),
    Normalize(normalize::Normalize),
    Matmul(matmul::Matmul),
    IndexSelect(index_select::IndexSelect),
    Cat(cat::Cat),
    Assign(assign::Assign),
    Random(random::Random),
}

impl KernelConfig {
    /// A name for messages and traces.
    pub fn name(&self) -> String {
        match self {
            KernelConfig::Elementwise(config) => config.name(),
            KernelConfig::Reduce(config) => config.name(),
            KernelConfig::Normalize(config) => config.name(),
            KernelConfig::Matmul(config) => config.name(),
            KernelConfig::IndexSelect(config) => config.name(),
            KernelConfig::Cat(config) => config.name(),
            KernelConfig::Assign(config) => config.name(),
            KernelConfig::Random(config) => config.name(),
        }
    }

    fn workgroup(&self) -> u32 {
        match self {
            KernelConfig::Elementwise(_) => elementwise::WORKGROUP,
            KernelConfig::Reduce(_) | KernelConfig::Normalize(_) => workgroup::WORKGROUP,
            KernelConfig::Matmul(config) => config.workgroup(),
            KernelConfig::IndexSelect(_) => index_select::WORKGROUP,
            KernelConfig::Cat(_) => cat::WORKGROUP,
            KernelConfig::Assign(_) => assign::WORKGROUP,
            KernelConfig::Random(_) => random::WORKGROUP,
        }
    }

    /// Generates the kernel.
    pub fn generate(&self, target: Target) -> Result<Module> {
        let k = KernelBuilder::new(self.name(), target, self.workgroup());
        match self {
            KernelConfig::Elementwise(config) => elementwise::write(&k, config),
            KernelConfig::Reduce(config) => reduce::write(&k, config),
            KernelConfig::Normalize(config) => normalize::write(&k, config),
            KernelConfig::Matmul(config) => matmul::write(&k, config),
            KernelConfig::IndexSelect(config) => index_select::write(&k, config),
            KernelConfig::Cat(config) => cat::write(&k, config),
            KernelConfig::Assign(config) => assign::write(&k, config),
            KernelConfig::Random(config) => random::write(&k, config),
        }
        k.finish()
    }
}
