//! A tensor runtime for inference on whatever GPU is there.
//!
//! A [`Tensor`] lives on a [`Device`], which is reached through Vulkan, WebGPU or Level Zero. All kernels are written
//! once, in the language of [`shader`], generated as SPIR-V at run time and translated to WGSL for WebGPU.
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
//! Features `vulkan`, `webgpu` and `level-zero` choose the backends, `safetensors` and `npy` the formats of files that
//! `io` reads and writes. `disk-cache` keeps compiled kernels on disk, `chrome-trace` writes profiles for Perfetto. All
//! but `npy` are on by default; `docs/features.md` says which an app should choose.
//!
//! Environment variables choose what [`Device::best`] opens (`MARQUETRY_DEVICE`), turn on validation
//! (`MARQUETRY_VALIDATION=1`), and more; `docs/environment.md` lists them. The crate reads them once per process. If a
//! value is not understood, opening a device returns [`Error::Environment`].

// What a user can cause is an error, never a panic.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Each backend uses some of what backends share; without one, nothing below `Device` is reached.
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
mod ops;
pub mod shader;
mod tensor;
mod tuning;

pub use backend::info::{DeviceInfo, DeviceKind, Limits, MemoryKind, MemoryRegion};
pub use base::backend_kind::BackendKind;
pub use base::dtype::{DType, Element};
pub use base::error::{Error, Result};
pub use base::features::{Features, MatrixUnits};
pub use base::indices::{AxisIndex, Indices};
pub use base::number::Number;
pub use base::precision::Precision;
pub use base::shape::{Axes, Axis, Shape};
pub use device::{Device, DeviceFilter};
pub use engine::pool::MemoryStats;
pub use engine::profile::{Profile, TimedCommand};
pub use engine::runtime::Stats;
pub use kernel::{Argument, Groups, Kernel};
pub use ops::{
    AttentionConfig, ConvConfig, CoordinateMode, Gemm, GemmStridedBatched, GridSampleConfig, GridSampleMode,
    GridSamplePadding, MatrixBatch, MatrixOrder, NearestRounding, PadMode, PerAxis, PoolConfig, ResizeConfig,
    ResizeMode, Sections, TensorOrScalar,
};
pub use shader::Signature;
pub use tensor::{NdArray, Tensor};

/// The examples of the README run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Those of the page on kernels too.
#[cfg(doctest)]
#[doc = include_str!("../docs/kernels.md")]
struct Kernels;
