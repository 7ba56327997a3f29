//! The kernel language: kernels written once in Rust, generated as SPIR-V, translated to WGSL.
//!
//! A [`KernelBuilder`] records structured control flow over typed [`Value`]s and ends in a [`Module`].
//! `docs/kernels.md` shows how to write one.
//!
//! ```
//! use marquetry::shader::{Access, KernelBuilder, Target, Type};
//!
//! // y = 2 x
//! let k = KernelBuilder::new("double", Target::VULKAN, 64);
//! let x = k.buffer("x", Type::F32, Access::Read);
//! let y = k.buffer("y", Type::F32, Access::Write);
//! let count = k.parameter(Type::U32);
//! let i = k.global_index();
//! k.when(i.lt(count), || y.store(i, x.load(i) * 2.0));
//! let module = k.finish()?;
//! assert_eq!(module.bindings(), [Access::Read, Access::Write]);
//! assert_eq!(module.parameter_words(), 1);
//! # Ok::<(), marquetry::Error>(())
//! ```

mod builder;
mod control;
mod cooperative;
mod dot_product;
mod double;
mod exponential;
pub(crate) mod footprint;
mod hyperbolic;
#[cfg(has_webgpu)]
pub(crate) mod interface;
mod math;
mod memory;
mod module;
#[cfg(has_webgpu)]
pub(crate) mod nesting;
mod normal_distribution;
mod quantile;
mod signature;
pub(crate) mod spirv;
mod subgroup;
mod target;
mod trigonometric;
mod turns;
mod types;
mod value;
#[cfg(has_webgpu)]
pub(crate) mod wgsl;

pub(crate) use builder::FOLDED_ROW;
pub use builder::KernelBuilder;
pub use control::When;
pub use cooperative::{CooperativeMatrix, MatrixLayout, MatrixRole, MatrixType, MatrixVar};
pub(crate) use math::FEW;
pub use memory::{Array, Var};
pub(crate) use module::Code;
pub use module::{Access, Module};
pub use signature::Signature;
pub(crate) use signature::{Slot, SlotKind};
pub use target::{Dialect, ParameterBlock, Target};
pub use types::{Scalar, Type};
pub use value::{IntoValue, Value};

#[cfg(test)]
#[cfg(device_tests)]
pub(crate) mod tests;
