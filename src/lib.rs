//! A tensor runtime for inference on any GPU.
//!
//! A [`Tensor`] lives on a [`Device`], which is reached through Vulkan, WebGPU or Level Zero. All kernels are written
//! once, in the language of [`shader`]. At run time the crate generates them as SPIR-V, and translates them to WGSL for
//! WebGPU.
//!
//! ```
//! use marquetry::{Device, Tensor};
//!
//! let device = Device::best()?;
//! let x = Tensor::new([[1f32, 2.0], [3.0, 4.0]], &device)?;
//! let y = x.matmul(&x.t()?)?.softmax(-1)?;
//! println!("{y}");
//! let values: Vec<f32> = y.to_vec()?;
//! assert_eq!(values.len(), 4);
//! # Ok::<(), marquetry::Error>(())
//! ```
//!
//! | feature | adds |
//! |---|---|
//! | `vulkan`, `webgpu`, `level-zero` | a backend each |
//! | `safetensors`, `npy` | the formats of files that `io` reads and writes |
//! | `gguf` | the format GGUF, which `io` reads |
//! | `disk-cache` | compiled kernels stay on disk |
//! | `chrome-trace` | profiles are written for Perfetto |
//!
//! All except `npy` and `gguf` are on by default. `docs/features.md` says which ones an app should choose.
//!
//! The crate reads its environment variables once per process. For example, `MARQUETRY_DEVICE` chooses what
//! [`Device::best`] opens, and `MARQUETRY_VALIDATION=1` turns on validation. `docs/environment.md` lists all variables.
//! If a value is not understood, opening a device returns [`Error::Environment`].

// A user's mistake causes an error, never a panic.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Each backend uses only a part of the shared code. Without a backend, nothing below `Device` is used.
#![cfg_attr(not(every_backend), allow(dead_code))]

mod backend;
mod base;
mod device;
mod engine;
#[doc(hidden)]
pub mod internals;
#[cfg(has_io)]
pub mod io;
mod kernel;
#[path = "../shaders/mod.rs"]
mod kernels;
mod lazy;
#[cfg(test)]
#[cfg(model_locks)]
mod model;
pub mod nn;
mod ops;
mod quantized;
pub mod shader;
mod step;
mod tensor;
mod tuning;

pub use backend::info::{DeviceInfo, DeviceKind, Limits, MemoryKind, MemoryRegion};
pub use base::backend_kind::BackendKind;
pub use base::block_format::BlockFormat;
pub use base::dtype::{DType, Element};
pub use base::error::{Error, Result};
pub use base::features::{Features, MatrixUnits};
pub use base::indices::{AxisIndex, Indices};
pub use base::number::Number;
pub use base::precision::Precision;
pub use base::shape::{Axes, Axis, Shape};
pub use device::{Device, DeviceFilter};
pub use engine::explain::{ExplainedKernel, Explanation};
pub use engine::pool::MemoryStats;
pub use engine::profile::{HostSpan, Profile, TimedCommand};
pub use engine::roofline::Roofline;
pub use engine::runtime::Stats;
pub use kernel::{Argument, Groups, Kernel};
pub use ops::{
    AttentionConfig, ConvConfig, CoordinateMode, Gemm, GemmStridedBatched, GridSampleConfig, GridSampleMode,
    GridSamplePadding, MatrixBatch, MatrixOrder, NearestRounding, PadMode, PerAxis, PoolConfig, ResizeConfig,
    ResizeMode, Sections, TensorOrScalar,
};
pub use quantized::QuantizedTensor;
pub use shader::Signature;
pub use step::{Arguments, Outputs, Step};
pub use tensor::{NdArray, Tensor};

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Runs the examples of `docs/kernels.md` as tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/kernels.md")]
struct Kernels;
