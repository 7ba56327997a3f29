//! [`Weights`]: the tensors of a file, under a prefix of their names.

use super::Matrix;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::device::Device;
#[cfg(feature = "gguf")]
use crate::io::Gguf;
#[cfg(feature = "npy")]
use crate::io::Npz;
#[cfg(feature = "safetensors")]
use crate::io::SafeTensors;
use crate::tensor::Tensor;
use std::fmt;
use std::sync::Arc;

/// A file with weights. Made from each of its variants' files by `into()`.
#[derive(Debug)]
#[non_exhaustive]
pub enum WeightFile {
    /// A safetensors file, or several shards.
    #[cfg(feature = "safetensors")]
    SafeTensors(SafeTensors),
    /// A GGUF file, or the parts of a split one.
    #[cfg(feature = "gguf")]
    Gguf(Gguf),
    /// An npz file.
    #[cfg(feature = "npy")]
    Npz(Npz),
}

#[cfg(feature = "safetensors")]
impl From<SafeTensors> for WeightFile {
    fn from(file: SafeTensors) -> Self {
        WeightFile::SafeTensors(file)
    }
}

#[cfg(feature = "gguf")]
impl From<Gguf> for WeightFile {
    fn from(file: Gguf) -> Self {
        WeightFile::Gguf(file)
    }
}

#[cfg(feature = "npy")]
impl From<Npz> for WeightFile {
    fn from(file: Npz) -> Self {
        WeightFile::Npz(file)
    }
}

impl WeightFile {
    fn contains(&self, name: &str) -> bool {
        match self {
            #[cfg(feature = "safetensors")]
            WeightFile::SafeTensors(file) => file.contains(name),
            #[cfg(feature = "gguf")]
            WeightFile::Gguf(file) => file.info(name).is_ok(),
            #[cfg(feature = "npy")]
            WeightFile::Npz(file) => file.contains(name),
        }
    }

    /// Returns the names of all tensors.
    fn names(&self) -> Vec<&str> {
        match self {
            #[cfg(feature = "safetensors")]
            WeightFile::SafeTensors(file) => file.names().collect(),
            #[cfg(feature = "gguf")]
            WeightFile::Gguf(file) => file.names().collect(),
            #[cfg(feature = "npy")]
            WeightFile::Npz(file) => file.names().collect(),
        }
    }

    fn load(&self, name: &str, device: &Device) -> Result<Matrix> {
        match self {
            #[cfg(feature = "safetensors")]
            WeightFile::SafeTensors(file) => file.load(name, device).map(Matrix::Dense),
            #[cfg(feature = "gguf")]
            WeightFile::Gguf(file) if file.info(name)?.format.is_some() => {
                file.load_quantized(name, device).map(Matrix::Quantized)
            }
            #[cfg(feature = "gguf")]
            WeightFile::Gguf(file) => file.load(name, device).map(Matrix::Dense),
            #[cfg(feature = "npy")]
            WeightFile::Npz(file) => file.load(name, device).map(Matrix::Dense),
        }
    }
}

/// The tensors of a file whose names begin with a prefix, and the device and dtype in which they are loaded.
///
/// ```
/// # #[cfg(feature = "safetensors")] {
/// use marquetry::{DType, Device, Tensor, io::SafeTensors, nn::{Linear, Weights}};
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("model.safetensors");
/// let device = Device::best()?;
/// let (weight, bias) = (Tensor::ones((3, 2), DType::F32, &device)?, Tensor::zeros(3, DType::F32, &device)?);
/// SafeTensors::save(&path, [("layers.0.output.weight", &weight), ("layers.0.output.bias", &bias)])?;
///
/// let weights = Weights::new(SafeTensors::open(&path)?, &device).dtype(DType::F16);
/// let layer = weights.at("layers.0");
/// let output = Linear::load(&layer.at("output"))?;
/// let x = Tensor::ones((1, 2), DType::F16, &device)?;
/// assert_eq!(output.forward(&x)?.to_dtype(DType::F32)?.to_vec::<f32>()?, [2.0, 2.0, 2.0]);
/// # }
/// # Ok::<(), marquetry::Error>(())
/// ```
#[derive(Clone)]
pub struct Weights {
    file: Arc<WeightFile>,
    prefix: String,
    device: Device,
    dtype: Option<DType>,
}

impl Weights {
    /// Returns all tensors of a file. They are loaded to `device` when they are asked for.
    ///
    /// Loading takes some memory beside the weights, which the device keeps for other tensors. When all weights are
    /// there, [`Device::trim`] gives it back to the driver.
    pub fn new(file: impl Into<WeightFile>, device: &Device) -> Weights {
        #[cfg_attr(not(native), allow(clippy::arc_with_non_send_sync, reason = "a source stays in its page"))]
        let file = Arc::new(file.into());
        Weights { file, prefix: String::new(), device: device.clone(), dtype: None }
    }

    /// Converts floats to this dtype as they are loaded. Without a dtype they stay as in the file. Matrices that are
    /// quantised stay so.
    pub fn dtype(mut self, dtype: impl Into<Option<DType>>) -> Weights {
        self.dtype = dtype.into();
        self
    }

    /// Returns the tensors whose names begin with the prefix so far, `name` and a dot.
    pub fn at(&self, name: impl fmt::Display) -> Weights {
        Weights { prefix: format!("{}{name}.", self.prefix), ..self.clone() }
    }

    /// Returns the file.
    pub fn file(&self) -> &WeightFile {
        &self.file
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns true if there is a tensor of this name under the prefix.
    pub fn contains(&self, name: &str) -> bool {
        self.file.contains(&self.name(name))
    }

    /// Loads a tensor. If it is quantised, it is unpacked, to `f32` unless a dtype was chosen.
    ///
    /// # Errors
    /// [`Error::Format`](crate::Error::Format) if there is no such tensor; others as for the file's `load`.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        match self.matrix(name)? {
            Matrix::Dense(tensor) => Ok(tensor),
            Matrix::Quantized(tensor) => tensor.dequantize(self.dtype.unwrap_or(DType::F32)),
        }
    }

    /// Loads a tensor if it is there.
    ///
    /// # Errors
    /// As for the file's `load`.
    pub fn optional(&self, name: &str) -> Result<Option<Tensor>> {
        self.contains(name).then(|| self.tensor(name)).transpose()
    }

    /// Loads a matrix. If it is quantised, it stays so.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor).
    pub fn matrix(&self, name: &str) -> Result<Matrix> {
        self.converted(self.file.load(&self.name(name), &self.device)?)
    }

    /// Fetches the tensors under the prefix if their bytes come later, and calls `load`, which may load each of them.
    /// Then their bytes are dropped. A model is loaded so layer by layer, and the host never has all of it.
    ///
    /// ```
    /// # #[cfg(feature = "safetensors")] {
    /// # use marquetry::{DType, Device, Tensor, io::SafeTensors, nn::{Linear, Weights}};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("model.safetensors");
    /// # let device = Device::best()?;
    /// # let weight = Tensor::ones((3, 2), DType::F32, &device)?;
    /// # SafeTensors::save(&path, [("layers.0.weight", &weight), ("layers.1.weight", &weight)])?;
    /// # pollster::block_on(async {
    /// let weights = Weights::new(SafeTensors::open(&path)?, &device);
    /// let mut layers = Vec::new();
    /// for number in 0..2 {
    ///     layers.push(weights.at("layers").at(number).load_async(|layer| Linear::load(layer)).await?);
    /// }
    /// # assert_eq!(layers.len(), 2);
    /// # Ok::<(), marquetry::Error>(())
    /// # })?;
    /// # }
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for the file's `load_async`; any error of `load`.
    pub async fn load_async<T, E: From<Error>>(&self, load: impl FnOnce(&Weights) -> Result<T, E>) -> Result<T, E> {
        let names = self.file.names().into_iter().filter(|name| name.starts_with(&self.prefix));
        #[cfg(any(feature = "safetensors", feature = "gguf"))]
        let mut kept = Vec::new();
        for name in names {
            match &*self.file {
                #[cfg(feature = "safetensors")]
                WeightFile::SafeTensors(file) => kept.push(file.fetch(name).await?),
                #[cfg(feature = "gguf")]
                WeightFile::Gguf(file) => kept.push(file.fetch(name).await?),
                #[cfg(feature = "npy")]
                WeightFile::Npz(_) => _ = name,
            }
        }
        load(self)
    }

    /// Loads several quantised matrices as one, if the file can do that: the rows of each behind those of the one
    /// before.
    #[cfg_attr(not(feature = "gguf"), allow(unused_variables, reason = "only this format has quantised matrices"))]
    pub(super) fn packed(&self, names: &[String]) -> Result<Option<Matrix>> {
        match &*self.file {
            #[cfg(feature = "gguf")]
            WeightFile::Gguf(file) => {
                let names: Vec<String> = names.iter().map(|name| self.name(name)).collect();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                Ok(file.load_packed(&names, &self.device)?.map(Matrix::Quantized))
            }
            #[cfg(feature = "safetensors")]
            WeightFile::SafeTensors(_) => Ok(None),
            #[cfg(feature = "npy")]
            WeightFile::Npz(_) => Ok(None),
        }
    }

    fn converted(&self, matrix: Matrix) -> Result<Matrix> {
        match (matrix, self.dtype) {
            (Matrix::Dense(tensor), Some(dtype)) if tensor.dtype().is_float() && tensor.dtype() != dtype => {
                // At once, so that the memory of what was in the file is used again.
                let tensor = tensor.to_dtype(dtype)?;
                tensor.realize()?;
                Ok(Matrix::Dense(tensor))
            }
            (matrix, _) => Ok(matrix),
        }
    }

    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

impl fmt::Debug for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Weights").field("file", &self.file).field("prefix", &self.prefix).finish_non_exhaustive()
    }
}
