//! Tensors in files: [`SafeTensors`] (feature `safetensors`), [`Gguf`] (feature `gguf`),
//! [`Tensor::read_npy`](crate::Tensor::read_npy) and [`Npz`] (feature `npy`).
//!
//! Opening a file reads what it says about its tensors. Their elements are read when they are asked for, by position
//! and in several threads, into memory that the device copies from. Tensors that nobody asks for are not read.
//!
//! A file may also be elsewhere: a [`RangeSource`] fetches its bytes in ranges. In a browser this is the only kind, but
//! for bytes in memory.
//!
//! If a file is changed after it has been opened, tensors get the new bytes, or some of them. If it is shortened, what
//! is missing is an error. `save` is fine, because it replaces a file by renaming.

#[cfg(any(feature = "safetensors", feature = "gguf"))]
mod fetched;
mod file;
#[cfg(feature = "gguf")]
mod gguf;
#[cfg(any(feature = "npy", feature = "safetensors"))]
mod load;
#[cfg(feature = "npy")]
mod npy;
#[cfg(feature = "npy")]
mod npz;
#[cfg(any(feature = "safetensors", feature = "gguf"))]
mod range_source;
#[cfg(feature = "safetensors")]
mod safetensors;

#[cfg(feature = "gguf")]
pub use gguf::{Gguf, GgufArray, GgufField, GgufInfo, GgufValue};
#[cfg(any(feature = "npy", feature = "safetensors"))]
pub use load::{LoadConfig, LoadProgress};
#[cfg(feature = "npy")]
pub use npz::Npz;
#[cfg(any(feature = "safetensors", feature = "gguf"))]
pub use range_source::{Later, RangeSource, Shared};
#[cfg(feature = "safetensors")]
pub use safetensors::SafeTensors;

use crate::base::dtype::DType;
use crate::base::error::Error;
#[cfg(any(feature = "npy", feature = "safetensors"))]
use crate::base::shape::Shape;
use std::path::Path;

/// What a safetensors or npz file says about a tensor in it.
#[cfg(any(feature = "npy", feature = "safetensors"))]
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// The type of the elements.
    pub dtype: DType,
    /// The lengths of the axes.
    pub shape: Shape,
}

/// Returns the error for a file that breaks its format.
fn malformed(path: &Path, message: impl Into<String>) -> Error {
    Error::Format { path: path.into(), message: message.into() }
}

/// Returns the error for a tensor that a file does not have.
fn missing(path: &Path, name: &str, names: &[&str]) -> Error {
    const MENTIONED: usize = 3;
    let mut known = names.iter().take(MENTIONED).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if names.len() > MENTIONED {
        known += ", ...";
    }
    malformed(path, format!("there is no tensor `{name}` among the {} that it has ({known})", names.len()))
}

/// Returns the error for a tensor in a file whose elements have a type that tensors lack.
fn foreign_dtype(path: &Path, tensor: &str, dtype: &str, known: &[DType]) -> Error {
    malformed(path, format!("{tensor} holds {dtype}, which is none of {}", listed(known)))
}

/// Returns the error for a tensor whose dtype a format lacks.
#[cfg(any(feature = "npy", feature = "safetensors"))]
fn unknown_to_format(path: &Path, tensor: &str, dtype: DType, known: &[DType]) -> Error {
    let known = listed(known);
    malformed(path, format!("{tensor} is of {dtype}, and the format has {known}; convert it with `to_dtype`"))
}

fn listed(dtypes: &[DType]) -> String {
    dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ")
}
