//! marquetry
mod cache;
pub mod device;
mod dtype;
mod dump;
mod error;
mod expr;
#[path = "../shaders/mod.rs"]
mod kernels;
mod layout;
mod memory;
mod ops;
mod runtime;
mod shape;
pub mod shader;
mod stream;
mod tensor;

pub use device::{BackendKind, Device, DeviceInfo, DeviceKind, Features, Limits};
pub use dtype::{DType, Element};
pub use error::{Error, Result};
pub use kernels::catalogue;
pub use memory::MemoryStats;
pub use runtime::Stats;
pub use shape::{Axes, Axis, Shape};
pub use tensor::{NdArray, Tensor};
