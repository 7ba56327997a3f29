//! Tensors in files: [`SafeTensors`] (feature `safetensors`), [`Tensor::read_npy`](crate::Tensor::read_npy) and [`Npz`]
//! (feature `npy`).
//!
//! Files are mapped into memory and tensors are uploaded straight from there: what nobody asks for is not read. While a
//! file is open it must not be changed or shortened: what is loaded then is undefined, and an access beyond the end of a
//! shortened file ends the process. `save` replaces a file by renaming, which is fine.

mod file;
#[cfg(feature = "npy")]
mod npy;
#[cfg(feature = "npy")]
mod npz;
#[cfg(feature = "safetensors")]
mod safetensors;

#[cfg(feature = "npy")]
pub use npz::Npz;
#[cfg(feature = "safetensors")]
pub use safetensors::SafeTensors;

use crate::base::dtype::DType;
use crate::base::error::Error;
use crate::base::shape::Shape;
use std::path::Path;

/// What a file tells about a tensor in it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// The type of the elements.
    pub dtype: DType,
    /// The lengths of the axes.
    pub shape: Shape,
}

/// A file that does not hold what its format promises.
fn malformed(path: &Path, message: impl Into<String>) -> Error {
    Error::Format { path: path.into(), message: message.into() }
}

/// A tensor that a file does not have.
fn missing(path: &Path, name: &str, names: &[&str]) -> Error {
    const MENTIONED: usize = 3;
    let mut known = names.iter().take(MENTIONED).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if names.len() > MENTIONED {
        known += ", ...";
    }
    malformed(path, format!("there is no tensor `{name}` among the {} that it has ({known})", names.len()))
}

/// A tensor in a file whose elements are of a type that tensors do not have.
fn foreign_dtype(path: &Path, tensor: &str, dtype: &str, known: &[DType]) -> Error {
    malformed(path, format!("{tensor} holds {dtype}, which is none of {}", listed(known)))
}

/// A tensor whose dtype a format does not have.
fn unknown_to_format(path: &Path, tensor: &str, dtype: DType, known: &[DType]) -> Error {
    let known = listed(known);
    malformed(path, format!("{tensor} is of {dtype}, and the format has {known}; convert it with `to_dtype`"))
}

fn listed(dtypes: &[DType]) -> String {
    dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ")
}
