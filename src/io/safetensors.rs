//! The format safetensors: 8 bytes with the length of the header, the header in JSON, then the elements. The header has
//! the dtype, shape and place of each tensor by its name. The elements are in row-major order and little-endian.
//!
//! <https://github.com/huggingface/safetensors>

use super::fetched::Kept;
use super::file::{Bytes, Part, failed, replace};
use super::load::{LoadConfig, load_all, load_all_async};
use super::range_source::RangeSource;
use super::{TensorInfo, foreign_dtype, malformed, missing, unknown_to_format};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::device::Device;
use crate::tensor::Tensor;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo as Entry};
use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The dtypes, by their names in the format and in this crate.
const DTYPES: [(Dtype, DType); 10] = [
    (Dtype::BOOL, DType::Bool),
    (Dtype::U8, DType::U8),
    (Dtype::I8, DType::I8),
    (Dtype::U32, DType::U32),
    (Dtype::I32, DType::I32),
    (Dtype::I64, DType::I64),
    (Dtype::F16, DType::F16),
    (Dtype::BF16, DType::BF16),
    (Dtype::F32, DType::F32),
    (Dtype::F64, DType::F64),
];

/// The number of bytes in which a header's length is written. Headers are padded to a multiple of it.
const LENGTH_BYTES: u64 = 8;

/// The longest header that is read, in bytes, as in the reference implementation.
const LONGEST_HEADER: u64 = 100_000_000;

/// The entry of a header that is not a tensor.
const METADATA: &str = "__metadata__";

/// Tensors in safetensors files: in one file, or in several shards.
///
/// Opening reads only headers. A tensor is read when it is asked for, in several threads if it is large.
///
/// ```
/// use marquetry::{Device, Tensor, io::SafeTensors};
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("model.safetensors");
/// let device = Device::best()?;
/// let weight = Tensor::new([[1f32, 2.0], [3.0, 4.0]], &device)?;
/// SafeTensors::save(&path, [("layer.weight", &weight)])?;
///
/// let file = SafeTensors::open(&path)?;
/// assert_eq!(file.names().collect::<Vec<_>>(), ["layer.weight"]);
/// assert_eq!(file.info("layer.weight")?.shape.dims(), [2, 2]);
/// assert_eq!(file.load("layer.weight", &device)?.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
/// # Ok::<(), marquetry::Error>(())
/// ```
pub struct SafeTensors {
    shards: Vec<Shard>,
    /// For each name, the number of its shard.
    places: BTreeMap<String, usize>,
}

/// One file.
struct Shard {
    bytes: Bytes,
    /// Where the bytes come from, if they come later.
    source: Option<Arc<dyn RangeSource>>,
    /// Where the elements begin.
    start: u64,
    header: Metadata,
}

impl SafeTensors {
    /// Opens one file.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the file cannot be read; [`Error::Format`](crate::Error::Format) if it is not
    /// a whole safetensors file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        SafeTensors::open_shards([path])
    }

    /// Opens several files as one.
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`Error::Format`](crate::Error::Format) if two files have a tensor of one name.
    pub fn open_shards(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Self> {
        let shards: Result<_> = paths.into_iter().map(|path| Shard::new(Bytes::open(path.as_ref())?)).collect();
        SafeTensors::from_shards(shards?)
    }

    /// Opens the shards that an index names. An index is a file such as `model.safetensors.index.json`. Its
    /// `weight_map` names, for each tensor, the file beside the index that holds it.
    ///
    /// # Errors
    /// As [`open_shards`](Self::open_shards), and [`Error::Format`](crate::Error::Format) if the index is damaged,
    /// names a file elsewhere, or names a tensor that its file lacks.
    pub fn open_index(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let index = Bytes::open(path)?;
        if index.length() > LONGEST_HEADER {
            return Err(malformed(path, format!("not an index: it has {} bytes", index.length())));
        }
        let index = index.read(0..index.length())?;
        let index: serde_json::Value =
            serde_json::from_slice(&index).map_err(|error| malformed(path, format!("not an index: {error}")))?;
        let map = index.get("weight_map").and_then(serde_json::Value::as_object);
        let map = map.ok_or_else(|| malformed(path, "not an index: it has no object `weight_map`"))?;

        let mut files: Vec<&str> = Vec::new();
        for (name, file) in map {
            let plain = file.as_str().filter(|file| is_plain(file));
            let place = || file.as_str().map_or_else(|| file.to_string(), |file| format!("{file:?}"));
            let elsewhere = || malformed(path, format!("`{name}` is in no file beside the index, but in {}", place()));
            files.push(plain.ok_or_else(elsewhere)?);
        }
        files.sort_unstable();
        files.dedup();
        let opened = SafeTensors::open_shards(files.iter().map(|file| path.with_file_name(file)))?;
        for (name, file) in map {
            let file = file.as_str().unwrap_or_default();
            if opened.places.get(name).is_none_or(|&shard| files[shard] != file) {
                return Err(malformed(path, format!("`{name}` is not in {file}")));
            }
        }
        Ok(opened)
    }

    /// Opens a file whose bytes are in memory already.
    ///
    /// # Errors
    /// [`Error::Format`](crate::Error::Format) if the bytes are not a whole safetensors file.
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        SafeTensors::from_shards(vec![Shard::new(Bytes::owned(bytes.into()))?])
    }

    /// Opens a file whose bytes come later. Fetches only its header. Its tensors are loaded by
    /// [`load_async`](Self::load_async) and others whose names end so.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_async(source: impl RangeSource + 'static) -> Result<Self> {
        SafeTensors::open_shards_async([source]).await
    }

    /// Opens several files as one, whose bytes come later.
    ///
    /// # Errors
    /// As [`open_shards`](Self::open_shards).
    pub async fn open_shards_async(sources: impl IntoIterator<Item = impl RangeSource + 'static>) -> Result<Self> {
        let mut shards = Vec::new();
        for source in sources {
            let bytes = Bytes::open_async(&source).await?;
            let (start, header) = bytes.read_start(&source, Shard::header).await?;
            shards.push(Shard { bytes, source: Some(Arc::new(source)), start, header });
        }
        SafeTensors::from_shards(shards)
    }

    fn from_shards(shards: Vec<Shard>) -> Result<Self> {
        let mut places = BTreeMap::new();
        for (number, shard) in shards.iter().enumerate() {
            for name in shard.header.offset_keys() {
                if let Some(first) = places.insert(name.clone(), number) {
                    let first = shards[first].bytes.path.display();
                    return Err(malformed(&shard.bytes.path, format!("tensor `{name}` is also in {first}")));
                }
            }
        }
        Ok(SafeTensors { shards, places })
    }

    /// Returns the names of the tensors, sorted.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// Returns what the files say about themselves (`__metadata__`). If several files have a key, the last one counts.
    pub fn metadata(&self) -> HashMap<String, String> {
        self.shards.iter().filter_map(|shard| shard.header.metadata().clone()).flatten().collect()
    }

    /// Returns the dtype and shape of a tensor. Reads no elements.
    ///
    /// # Errors
    /// [`Error::Format`](crate::Error::Format) if there is no such tensor, or if its dtype is none of [`DType`].
    pub fn info(&self, name: &str) -> Result<TensorInfo> {
        let (shard, entry) = self.entry(name)?;
        Ok(TensorInfo { dtype: shard.dtype(name, entry)?, shape: entry.shape.as_slice().into() })
    }

    /// Uploads a tensor to a device.
    ///
    /// # Errors
    /// As [`info`](Self::info); [`Error::Io`](crate::Error::Io); [`Error::Format`](crate::Error::Format) if the file
    /// has been shortened; [`Error::InvalidArgument`](crate::Error::InvalidArgument) for bytes that are no truth
    /// values; [`Error::SizeOverflow`](crate::Error::SizeOverflow); [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn load(&self, name: &str, device: &Device) -> Result<Tensor> {
        let (shard, entry) = self.entry(name)?;
        let dtype = shard.dtype(name, entry)?;
        Tensor::from_source(&shard.elements(entry)?, dtype, entry.shape.as_slice().into(), device)
    }

    /// The same for a file whose bytes come later: fetches them first. They are dropped when the device has them.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub async fn load_async(&self, name: &str, device: &Device) -> Result<Tensor> {
        let _kept = self.fetch(name).await?;
        self.load(name, device)
    }

    /// Fetches the bytes of a tensor if they come later.
    pub(crate) async fn fetch(&self, name: &str) -> Result<Kept<'_>> {
        let (shard, entry) = self.entry(name)?;
        shard.bytes.fetch(shard.source.as_deref(), shard.place(entry)).await
    }

    /// Uploads all tensors to a device.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_all(&self, device: &Device) -> Result<HashMap<String, Tensor>> {
        self.load_with(device, LoadConfig::new())
    }

    /// Uploads the tensors that a configuration chooses: with a dtype for floats, and with progress.
    ///
    /// ```
    /// use marquetry::{DType, Device, Tensor, io::{LoadConfig, SafeTensors}};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("model.safetensors");
    /// let device = Device::best()?;
    /// let (weight, ids) = (Tensor::new([0.5f32, 2.0], &device)?, Tensor::new([7u32], &device)?);
    /// SafeTensors::save(&path, [("layer.weight", &weight), ("layer.ids", &ids), ("head", &weight)])?;
    ///
    /// let config = LoadConfig::new()
    ///     .filter(|name| name.starts_with("layer."))
    ///     .dtype(DType::F16)
    ///     .progress(|progress| println!("{} of {} bytes", progress.bytes, progress.total));
    /// let tensors = SafeTensors::open(&path)?.load_with(&device, config)?;
    /// assert_eq!(tensors.len(), 2);
    /// assert_eq!(tensors["layer.weight"].dtype(), DType::F16);
    /// assert_eq!(tensors["layer.ids"].dtype(), DType::U32);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`load`](Self::load); [`Error::Unsupported`](crate::Error::Unsupported) if the device does not compute in the
    /// dtype.
    pub fn load_with(&self, device: &Device, config: LoadConfig<'_>) -> Result<HashMap<String, Tensor>> {
        load_all(device, self.names(), |name| self.info(name), |name| self.load(name, device), config)
    }

    /// The same as [`load_all`](Self::load_all) for a file whose bytes come later. One tensor after the other is
    /// fetched.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub async fn load_all_async(&self, device: &Device) -> Result<HashMap<String, Tensor>> {
        self.load_with_async(device, LoadConfig::new()).await
    }

    /// The same as [`load_with`](Self::load_with) for a file whose bytes come later. The future is not `Send`, because
    /// the functions of the configuration need not be.
    ///
    /// # Errors
    /// As [`load_with`](Self::load_with).
    pub async fn load_with_async(&self, device: &Device, config: LoadConfig<'_>) -> Result<HashMap<String, Tensor>> {
        let load = async |name: &str| self.load_async(name, device).await;
        load_all_async(device, self.names(), |name| self.info(name), load, config).await
    }

    /// Writes tensors to a file. An existing file is replaced. Tensors are read from their devices one after the other.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io); [`Error::Format`](crate::Error::Format) for two tensors of one name, and for
    /// one that is called `__metadata__`; any error of the computation. After an error, an existing file is as it was.
    pub fn save<N: AsRef<str>, T: Borrow<Tensor>>(
        path: impl AsRef<Path>,
        tensors: impl IntoIterator<Item = (N, T)>,
    ) -> Result<()> {
        SafeTensors::save_with_metadata(path, tensors, HashMap::new())
    }

    /// The same, with metadata that the file has about itself.
    ///
    /// # Errors
    /// As [`save`](Self::save).
    pub fn save_with_metadata<N: AsRef<str>, T: Borrow<Tensor>>(
        path: impl AsRef<Path>,
        tensors: impl IntoIterator<Item = (N, T)>,
        metadata: HashMap<String, String>,
    ) -> Result<()> {
        let path = path.as_ref();
        let mut tensors: Vec<(String, T)> =
            tensors.into_iter().map(|(name, tensor)| (name.as_ref().to_string(), tensor)).collect();
        // Wide elements come first, as the format recommends, so that all are aligned. Equally wide ones are sorted by
        // name.
        tensors.sort_by(|(a, x), (b, y)| (element_bytes(y), a).cmp(&(element_bytes(x), b)));
        let header = header(path, &tensors, metadata)?;
        replace(path, |file| {
            let mut put = |bytes: &[u8]| file.write_all(bytes).map_err(|error| failed(path, &error));
            put(&(header.len() as u64).to_le_bytes())?;
            put(&header)?;
            tensors.iter().try_for_each(|(_, tensor)| put(&tensor.borrow().to_bytes()?))
        })
    }

    fn entry(&self, name: &str) -> Result<(&Shard, &Entry)> {
        let shard = self.places.get(name).map(|&shard| &self.shards[shard]);
        shard.and_then(|shard| Some((shard, shard.header.info(name)?))).ok_or_else(|| {
            let path = self.shards.first().map_or(Path::new(""), |shard| &shard.bytes.path);
            missing(path, name, &self.names().collect::<Vec<_>>())
        })
    }
}

impl fmt::Debug for SafeTensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = self.shards.iter().map(|shard| &shard.bytes.path).collect::<Vec<_>>();
        f.debug_struct("SafeTensors").field("files", &files).field("tensors", &self.places.len()).finish()
    }
}

impl Shard {
    fn new(bytes: Bytes) -> Result<Self> {
        let (start, header) = Shard::header(&bytes)?;
        Ok(Shard { bytes, source: None, start, header })
    }

    /// Reads the header, and checks it against the length of the file. Returns it, and where the elements begin.
    fn header(bytes: &Bytes) -> Result<(u64, Metadata)> {
        let fail = |message: String| malformed(&bytes.path, format!("not a safetensors file: {message}"));
        if bytes.length() < LENGTH_BYTES {
            return Err(fail(format!("it has {} bytes", bytes.length())));
        }
        let length = bytes.read(0..LENGTH_BYTES)?;
        let length = length.iter().rev().fold(0u64, |length, &byte| length << 8 | u64::from(byte));
        let start = LENGTH_BYTES.checked_add(length).filter(|start| *start <= bytes.length());
        let start = start.ok_or_else(|| fail(format!("its header of {length} bytes is cut off")))?;
        if length > LONGEST_HEADER {
            return Err(fail(format!("a header of {length} bytes is too long")));
        }
        let header = bytes.read(LENGTH_BYTES..start)?;
        let header: Metadata = serde_json::from_slice(&header).map_err(|error| fail(error.to_string()))?;
        let (expected, found) = (header.data_len() as u64, bytes.length() - start);
        if expected != found {
            let message = format!("the header tells of {expected} bytes of elements, and there are {found}");
            return Err(malformed(&bytes.path, message));
        }
        Ok((start, header))
    }

    fn dtype(&self, name: &str, entry: &Entry) -> Result<DType> {
        let known = DTYPES.iter().find(|(theirs, _)| *theirs == entry.dtype);
        let foreign = || {
            foreign_dtype(
                &self.bytes.path,
                &format!("`{name}`"),
                &entry.dtype.to_string(),
                &DTYPES.map(|(_, ours)| ours),
            )
        };
        known.map(|(_, ours)| *ours).ok_or_else(foreign)
    }

    fn elements(&self, entry: &Entry) -> Result<Part<'_>> {
        self.bytes.part(self.place(entry))
    }

    /// Returns where the elements are in the file.
    fn place(&self, entry: &Entry) -> Range<u64> {
        let (start, end) = entry.data_offsets;
        self.start.saturating_add(start as u64)..self.start.saturating_add(end as u64)
    }
}

/// Whether this is the plain name of a file, without a folder.
fn is_plain(file: &str) -> bool {
    Path::new(file).file_name() == Some(file.as_ref()) && !file.contains('\0')
}

fn element_bytes<T: Borrow<Tensor>>(tensor: &T) -> usize {
    tensor.borrow().dtype().size_in_bytes()
}

/// The header of a file with these tensors one after the other.
fn header<T: Borrow<Tensor>>(
    path: &Path,
    tensors: &[(String, T)],
    metadata: HashMap<String, String>,
) -> Result<Vec<u8>> {
    let fail = |message: String| malformed(path, format!("these tensors cannot be saved: {message}"));
    let mut end = 0;
    let mut entries: Vec<(String, Entry)> = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        let tensor = tensor.borrow();
        if name == METADATA {
            return Err(fail(format!(
                "no tensor can be called `{METADATA}`, which the format reserves; save it by another name"
            )));
        }
        let known = DTYPES.iter().find(|(_, ours)| *ours == tensor.dtype());
        let foreign = || unknown_to_format(path, &format!("`{name}`"), tensor.dtype(), &DTYPES.map(|(_, ours)| ours));
        let (dtype, _) = *known.ok_or_else(foreign)?;
        let start = end;
        end += tensor.elem_count() * tensor.dtype().size_in_bytes();
        entries.push((name.clone(), Entry { dtype, shape: tensor.dims().to_vec(), data_offsets: (start, end) }));
    }
    let metadata = Some(metadata).filter(|metadata| !metadata.is_empty());
    let count = entries.len();
    let header = Metadata::new(metadata, entries).map_err(|error| fail(error.to_string()))?;
    if header.offset_keys().len() != count {
        return Err(fail("two have the same name".into()));
    }
    let mut header = serde_json::to_vec(&header).map_err(|error| fail(error.to_string()))?;
    header.resize(header.len().next_multiple_of(LENGTH_BYTES as usize), b' ');
    Ok(header)
}
