//! Layers with weights: what models are made of. Each one is a few operations of [`Tensor`](crate::Tensor).
//!
//! [`Weights`] loads layers from files, by the names that tensors have there. Weights may be quantised:
//! [`Linear`] and [`Embedding`] take them as they are. [`BitLinear`] has ternary ones.

mod bit_linear;
mod conv;
mod gated;
mod kv_cache;
mod linear;
mod norm;
mod rope;
mod sampler;
#[cfg(has_io)]
mod weights;

pub use bit_linear::{BitLinear, BitLinearClass};
pub use conv::{Conv1d, Conv2d};
pub use gated::{Gate, GatedLinear};
pub use kv_cache::{KvCache, KvCacheConfig, Sequence};
pub use linear::{Embedding, Linear, Matrix};
pub use norm::{LayerNorm, RmsNorm};
pub use rope::Rope;
pub use sampler::{Sampler, Sampling};
#[cfg(has_io)]
pub use weights::{WeightFile, Weights};
