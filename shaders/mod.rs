//! The kernels: one file per family, each a configuration and a plain function that
//! writes the kernel for it.

mod elements;
pub(crate) mod encoding;
pub(crate) mod epilogue;
pub(crate) mod expr;
pub(crate) mod fold;
pub(crate) mod interpolation;
pub(crate) mod parameters;
pub(crate) mod rows;
pub(crate) mod tiles;
pub(crate) mod window;
pub(crate) mod workgroup;

use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::features::MatrixUnits;
use crate::shader::{KernelBuilder, Module, Target};

/// A family of kernels. Its configuration is all that the code of one of them depends on.
pub(crate) trait Family: Sized {
    /// A name for messages and traces.
    fn name(&self) -> String;

    /// Invocations per workgroup.
    fn workgroup(&self) -> u32;

    /// Writes the kernel.
    fn write(&self, k: &KernelBuilder);

    /// Estimates how many products or elements of `f32` the kernel adds up, if that and not memory takes the time.
    fn products(&self, _parameters: &[u32]) -> u64 {
        0
    }

    /// Some of the family, for those who want to look at kernels.
    fn samples() -> Vec<Self>;
}

/// The product of some parameters, for estimates.
fn volume<'a>(parameters: impl IntoIterator<Item = &'a u32>) -> u64 {
    parameters.into_iter().fold(1, |product, &n| product.saturating_mul(n.into()))
}

/// How many times as long a sum takes in a dtype as in `f32`: units for 64 bits are few, or there are none.
fn slowness(dtype: DType) -> u64 {
    if dtype.size_in_bytes() == 8 { 16 } else { 1 }
}

macro_rules! families {
    ($($module:ident: $($family:ident),+;)*) => {
        $(pub(crate) mod $module;)*

        /// What identifies a kernel: its family and all that its code depends on.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub(crate) enum KernelConfig {
            $($($family($module::$family),)+)*
        }

        $($(
            impl From<$module::$family> for KernelConfig {
                fn from(config: $module::$family) -> Self {
                    KernelConfig::$family(config)
                }
            }
        )+)*

        impl KernelConfig {
            /// A name for messages and traces.
            pub fn name(&self) -> String {
                match self {
                    $($(KernelConfig::$family(config) => config.name(),)+)*
                }
            }

            /// Estimates how many products or elements of `f32` the kernel adds up, if that and not memory takes the time.
            pub fn products(&self, parameters: &[u32]) -> u64 {
                match self {
                    $($(KernelConfig::$family(config) => config.products(parameters),)+)*
                }
            }

            /// Generates the kernel.
            pub fn generate(&self, target: Target) -> Result<Module> {
                fn written(config: &impl Family, target: Target) -> Result<Module> {
                    let k = KernelBuilder::new(config.name(), target, config.workgroup());
                    config.write(&k);
                    k.finish()
                }
                match self {
                    $($(KernelConfig::$family(config) => written(config, target),)+)*
                }
            }

            /// Those of some targets that have what the kernel requires: there are cooperative matrices for Vulkan alone.
            pub fn targets(&self, targets: &[Target]) -> Result<Vec<Target>> {
                let everywhere = self.generate(Target::VULKAN)?.requires.matrix_units == MatrixUnits::default();
                Ok(targets.iter().copied().filter(|&target| everywhere || target == Target::VULKAN).collect())
            }

            /// Some of every family.
            pub fn samples() -> Vec<KernelConfig> {
                let mut samples = Vec::new();
                $($(samples.extend($module::$family::samples().into_iter().map(KernelConfig::from));)+)*
                samples
            }
        }
    };
}

families! {
    assign: Assign;
    attention: Attention;
    cat: Cat;
    compact: Compact;
    conv: Conv;
    elementwise: Elementwise;
    gather: Gather;
    grid_sample: GridSample;
    matmul: Matmul;
    normalize: Normalize;
    pad: Pad;
    pool: Pool;
    random: Random;
    reduce: Reduce;
    resize: Resize;
    rotary: Rotary;
    sample: Sample;
    scan: Scan;
    scatter: Scatter;
    sort: SortBlocks, SortMerge, SortTake;
    transpose: Transpose;
}
