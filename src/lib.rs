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
//! `io` reads and writes; all are on by default.
//!
//! Environment variables choose what [`Device::best`] opens (`MARQUETRY_DEVICE`), turn on validation
//! (`MARQUETRY_VALIDATION=1`), and more; `docs/environment.md` lists them. The crate reads them once per process. If a
//! value is not understood, opening a device returns [`Error::Environment`].

// What a user can cause is an error, never a panic.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Without a backend nothing can be opened, and so nothing below `Device` is reached.
#![cfg_attr(not(any(feature = "vulkan", feature = "webgpu")), allow(dead_code))]

mod cache;
mod cgroup;
pub mod device;
mod disk_cache;
mod dtype;
mod dump;
mod environment;
mod error;
mod expr;
#[cfg(any(feature = "safetensors", feature = "npy"))]
pub mod io;
mod kernel;
#[path = "../shaders/mod.rs"]
mod kernels;
mod layout;
mod memory;
mod number;
mod ops;
mod profile;
mod ranges;
mod runtime;
pub mod shader;
mod shape;
mod stream;
mod tensor;
#[doc(hidden)]
pub mod tuning;

pub use device::{
    BackendKind, Device, DeviceFilter, DeviceInfo, DeviceKind, Features, Limits, MatrixUnits, MemoryKind, MemoryRegion,
};
pub use dtype::{DType, Element};
pub use error::{Error, Result};
pub use kernel::{Argument, Groups, Kernel};
pub use kernels::catalogue;
pub use memory::MemoryStats;
pub use number::Number;
pub use ops::{
    AttentionConfig, ConvConfig, CoordinateMode, Gemm, GemmStridedBatched, GridSampleConfig, GridSampleMode,
    GridSamplePadding, MatrixBatch, MatrixOrder, NearestRounding, PadMode, PerAxis, PoolConfig, Precision,
    ResizeConfig, ResizeMode, Sections, TensorOrScalar,
};
pub use profile::{Profile, TimedCommand};
pub use ranges::Ranges;
pub use runtime::Stats;
pub use shader::Signature;
pub use shape::{Axes, Axis, Shape};
pub use tensor::{NdArray, Tensor};

/// The examples of the README run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Those of the page on kernels too.
#[cfg(doctest)]
#[doc = include_str!("../docs/kernels.md")]
struct Kernels;
