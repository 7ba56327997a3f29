//! [`LoadConfig`]: which tensors of a file are loaded, and how.

use super::TensorInfo;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::device::Device;
use crate::tensor::Tensor;
use std::collections::HashMap;
use std::fmt;

type Filter<'a> = Box<dyn Fn(&str) -> bool + 'a>;
type Progress<'a> = Box<dyn FnMut(LoadProgress<'_>) + 'a>;

/// Which tensors of a file are loaded, and how: for [`SafeTensors::load_with`](super::SafeTensors::load_with) and
/// [`Npz::load_with`](super::Npz::load_with). By default all are loaded as they are.
#[derive(Default)]
#[must_use]
pub struct LoadConfig<'a> {
    dtype: Option<DType>,
    filter: Option<Filter<'a>>,
    progress: Option<Progress<'a>>,
}

/// How far a load is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadProgress<'a> {
    /// The tensor that was loaded last.
    pub name: &'a str,
    /// Bytes of the tensors that have been loaded, as they are in the file.
    pub bytes: u64,
    /// Bytes of all tensors that are to be loaded.
    pub total: u64,
}

impl<'a> LoadConfig<'a> {
    /// Returns a configuration that loads all tensors as they are.
    pub fn new() -> Self {
        LoadConfig::default()
    }

    /// Converts floats to this dtype on the device. Integers and truth values stay as they are.
    pub fn dtype(mut self, dtype: impl Into<Option<DType>>) -> Self {
        self.dtype = dtype.into();
        self
    }

    /// Loads only the tensors for whose names `filter` returns true. The others may have any dtype.
    pub fn filter(mut self, filter: impl Fn(&str) -> bool + 'a) -> Self {
        self.filter = Some(Box::new(filter));
        self
    }

    /// Calls `progress` after each tensor.
    pub fn progress(mut self, progress: impl FnMut(LoadProgress<'_>) + 'a) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }
}

impl fmt::Debug for LoadConfig<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadConfig").field("dtype", &self.dtype).finish_non_exhaustive()
    }
}

/// Loads the tensors that `config` chooses among these.
pub(super) fn load_all<'n>(
    device: &Device,
    names: impl Iterator<Item = &'n str>,
    info: impl Fn(&str) -> Result<TensorInfo>,
    load: impl Fn(&str) -> Result<Tensor>,
    config: LoadConfig<'_>,
) -> Result<HashMap<String, Tensor>> {
    // Nothing is waited for: what `load` returns is there.
    pollster::block_on(load_all_async(device, names, info, async |name: &str| load(name), config))
}

/// The same for tensors that come later.
pub(super) async fn load_all_async<'n>(
    device: &Device,
    names: impl Iterator<Item = &'n str>,
    info: impl Fn(&str) -> Result<TensorInfo>,
    load: impl AsyncFn(&str) -> Result<Tensor>,
    LoadConfig { dtype, filter, mut progress }: LoadConfig<'_>,
) -> Result<HashMap<String, Tensor>> {
    let (mut chosen, mut total, mut foreseen) = (Vec::new(), 0u64, 0u64);
    for name in names.filter(|name| filter.as_ref().is_none_or(|filter| filter(name))) {
        let info = info(name)?;
        let elements = info.shape.elem_count().unwrap_or(usize::MAX) as u64;
        let bytes = elements.saturating_mul(info.dtype.size_in_bytes() as u64);
        chosen.push((name, bytes));
        total = total.saturating_add(bytes);
        // Buffers begin at such places at least.
        foreseen = foreseen.saturating_add(bytes.checked_next_multiple_of(256).unwrap_or(bytes));
    }
    // What is converted needs memory of both sizes.
    let _loading = device.runtime().load(if dtype.is_none() { foreseen } else { 0 });
    let (mut tensors, mut loaded) = (HashMap::with_capacity(chosen.len()), 0);
    for (name, bytes) in chosen {
        let mut tensor = load(name).await?;
        if let Some(dtype) = dtype.filter(|_| tensor.dtype().is_float()) {
            // At once, so that the memory of what was in the file is used again.
            tensor = tensor.to_dtype(dtype)?;
            tensor.realize()?;
        }
        tensors.insert(name.to_string(), tensor);
        loaded += bytes;
        if let Some(progress) = &mut progress {
            progress(LoadProgress { name, bytes: loaded, total });
        }
    }
    Ok(tensors)
}
