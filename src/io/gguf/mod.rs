//! The format GGUF, in which language models and others are distributed: a header with metadata and the place of each
//! tensor, then the elements, many of them quantised. Little-endian, versions 2 and 3.
//!
//! <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>

mod header;
mod value;

pub use value::{GgufArray, GgufField, GgufValue};

use super::fetched::Kept;
use super::file::{Bytes, Part};
use super::range_source::RangeSource;
use super::{foreign_dtype, malformed, missing};
use crate::base::block_format::BlockFormat;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::device::Device;
use crate::engine::staging::ByteSource;
use crate::quantized::QuantizedTensor;
use crate::tensor::Tensor;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A type of the format: its number and name, and the elements and bytes of a block.
struct Type {
    number: u32,
    name: &'static str,
    elements: u64,
    bytes: u64,
    kind: Kind,
}

/// What becomes of a tensor of a type.
#[derive(Clone, Copy)]
enum Kind {
    Dense(DType),
    Quantized(BlockFormat),
    /// This crate cannot load it.
    Foreign,
}

const fn dense(number: u32, name: &'static str, dtype: DType) -> Type {
    Type::new(number, name, 1, dtype.size_in_bytes() as u64, Kind::Dense(dtype))
}

const fn quantized(number: u32, format: BlockFormat) -> Type {
    let (elements, bytes) = (format.block_elements() as u64, format.block_bytes() as u64);
    Type::new(number, format.name(), elements, bytes, Kind::Quantized(format))
}

const fn foreign(number: u32, name: &'static str, elements: u64, bytes: u64) -> Type {
    Type::new(number, name, elements, bytes, Kind::Foreign)
}

/// All types, as `ggml.h` numbers them. The numbers between them belonged to types that it has no longer.
static TYPES: [Type; 34] = [
    dense(0, "F32", DType::F32),
    dense(1, "F16", DType::F16),
    quantized(2, BlockFormat::Q4_0),
    quantized(3, BlockFormat::Q4_1),
    quantized(6, BlockFormat::Q5_0),
    quantized(7, BlockFormat::Q5_1),
    quantized(8, BlockFormat::Q8_0),
    foreign(9, "Q8_1", 32, 40),
    quantized(10, BlockFormat::Q2_K),
    quantized(11, BlockFormat::Q3_K),
    quantized(12, BlockFormat::Q4_K),
    quantized(13, BlockFormat::Q5_K),
    quantized(14, BlockFormat::Q6_K),
    foreign(15, "Q8_K", 256, 292),
    foreign(16, "IQ2_XXS", 256, 66),
    foreign(17, "IQ2_XS", 256, 74),
    foreign(18, "IQ3_XXS", 256, 98),
    foreign(19, "IQ1_S", 256, 50),
    quantized(20, BlockFormat::IQ4_NL),
    foreign(21, "IQ3_S", 256, 110),
    foreign(22, "IQ2_S", 256, 82),
    quantized(23, BlockFormat::IQ4_XS),
    dense(24, "I8", DType::I8),
    foreign(25, "I16", 1, 2),
    dense(26, "I32", DType::I32),
    dense(27, "I64", DType::I64),
    dense(28, "F64", DType::F64),
    foreign(29, "IQ1_M", 256, 56),
    dense(30, "BF16", DType::BF16),
    quantized(34, BlockFormat::TQ1_0),
    quantized(35, BlockFormat::TQ2_0),
    quantized(39, BlockFormat::MXFP4),
    foreign(40, "NVFP4", 64, 36),
    foreign(41, "Q1_0", 128, 18),
];

/// The dtypes of tensors that are not quantised.
const DTYPES: [DType; 7] = [DType::F32, DType::F16, DType::BF16, DType::F64, DType::I8, DType::I32, DType::I64];

/// Tensors in GGUF files: in one file, or in the parts of a split one.
///
/// Opening reads only headers. A tensor is read when it is asked for, in several threads if it is large. Quantised
/// tensors stay quantised: [`load_quantized`](Self::load_quantized) brings them to a device as they are.
///
/// ```no_run
/// use marquetry::{Device, io::Gguf};
///
/// let device = Device::best()?;
/// let file = Gguf::open("SmolLM2-135M-Instruct.Q4_1.gguf")?;
/// assert_eq!(file.get("general.architecture")?.as_str()?, "llama");
/// assert_eq!(file.get("llama.block_count")?.as_u32()?, 30);
/// let norm = file.load("output_norm.weight", &device)?;
/// let query = file.load_quantized("blk.0.attn_q.weight", &device)?;
/// assert_eq!((norm.dims(), query.dims()), (&[576][..], &[576, 576][..]));
/// # Ok::<(), marquetry::Error>(())
/// ```
pub struct Gguf {
    shards: Vec<Bytes>,
    /// Where the bytes of each file come from, if they come later.
    sources: Vec<Arc<dyn RangeSource>>,
    tensors: BTreeMap<String, header::Tensor>,
    metadata: BTreeMap<String, GgufValue>,
}

/// The headers of files.
#[derive(Default)]
struct Headers {
    tensors: BTreeMap<String, header::Tensor>,
    /// Of each file.
    metadata: Vec<BTreeMap<String, GgufValue>>,
}

/// What a GGUF file says about a tensor in it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GgufInfo {
    /// The type's name in the format, such as `F32` or `Q4_K`.
    pub type_name: &'static str,
    /// The lengths of the axes, the outermost one first. Files have them in the opposite order.
    pub shape: Shape,
    /// The bytes that the tensor takes in the file.
    pub bytes: u64,
    /// The type of the elements, if [`Gguf::load`] can load the tensor.
    pub dtype: Option<DType>,
    /// The format of the blocks, if [`Gguf::load_quantized`] can load the tensor.
    pub format: Option<BlockFormat>,
}

impl Gguf {
    /// Opens one file.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read; [`Error::Format`] if it is not a whole GGUF file of version 2 or 3, or
    /// if it is only a part of a split one.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Gguf::open_shards([path])
    }

    /// Opens the parts of a split file as one, in any order. Their names end in `-00001-of-00003.gguf` and so on. The
    /// first part has the metadata.
    ///
    /// ```no_run
    /// # use marquetry::io::Gguf;
    /// let parts = (1..=3).map(|part| format!("model-{part:05}-of-00003.gguf"));
    /// let file = Gguf::open_shards(parts)?;
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Error::Format`] if a part is missing or given twice, or if two parts have a tensor of
    /// one name.
    pub fn open_shards(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Self> {
        Gguf::new(paths.into_iter().map(|path| Bytes::open(path.as_ref())).collect::<Result<_>>()?)
    }

    /// Opens a file whose bytes are in memory already.
    ///
    /// ```
    /// use marquetry::io::Gguf;
    /// // A header alone: the magic number, the version, and the numbers of tensors and metadata entries.
    /// let bytes = [&b"GGUF"[..], &3u32.to_le_bytes(), &0u64.to_le_bytes(), &0u64.to_le_bytes()].concat();
    /// assert_eq!(Gguf::from_bytes(bytes)?.names().len(), 0);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Format`] as for [`open`](Self::open).
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        Gguf::new(vec![Bytes::owned(bytes.into())])
    }

    /// Opens a file whose bytes come later. Fetches only its header. Its tensors are loaded by
    /// [`load_async`](Self::load_async) and others whose names end so.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_async(source: impl RangeSource + 'static) -> Result<Self> {
        Gguf::open_shards_async([source]).await
    }

    /// Opens the parts of a split file as one, whose bytes come later.
    ///
    /// # Errors
    /// As [`open_shards`](Self::open_shards).
    pub async fn open_shards_async(sources: impl IntoIterator<Item = impl RangeSource + 'static>) -> Result<Self> {
        let (mut shards, mut kept): (Vec<Bytes>, Vec<Arc<dyn RangeSource>>) = (Vec::new(), Vec::new());
        let mut headers = Headers::default();
        for source in sources {
            let bytes = Bytes::open_async(&source).await?;
            // An attempt that misses bytes leaves no tensors behind.
            let read = |bytes: &Bytes| {
                let mut tensors = headers.tensors.clone();
                let metadata = header::read(bytes, shards.len(), &mut tensors)?;
                Ok((tensors, metadata))
            };
            let (tensors, metadata) = bytes.read_start(&source, read).await?;
            headers.tensors = tensors;
            headers.metadata.push(metadata);
            shards.push(bytes);
            kept.push(Arc::new(source));
        }
        Gguf::from_headers(shards, kept, headers)
    }

    fn new(shards: Vec<Bytes>) -> Result<Self> {
        let mut headers = Headers::default();
        for (number, bytes) in shards.iter().enumerate() {
            headers.metadata.push(header::read(bytes, number, &mut headers.tensors)?);
        }
        Gguf::from_headers(shards, Vec::new(), headers)
    }

    fn from_headers(shards: Vec<Bytes>, sources: Vec<Arc<dyn RangeSource>>, headers: Headers) -> Result<Self> {
        let Headers { tensors, mut metadata } = headers;
        let first = check_parts(&shards, &metadata, tensors.len())?;
        let metadata = if metadata.is_empty() { BTreeMap::new() } else { metadata.swap_remove(first) };
        Ok(Gguf { shards, sources, tensors, metadata })
    }

    /// Returns what the file says about itself, by key. [`get`](Self::get) gives values of known types.
    ///
    /// ```no_run
    /// # use marquetry::io::Gguf;
    /// for (key, value) in Gguf::open("model.gguf")?.metadata() {
    ///     println!("{key}: {}", value.type_name());
    /// }
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    pub fn metadata(&self) -> &BTreeMap<String, GgufValue> {
        &self.metadata
    }

    /// Returns the metadata of a key. The field has a method for each type that a caller may expect.
    ///
    /// # Errors
    /// [`Error::Format`] if there is no such key.
    pub fn get<'a>(&'a self, key: &'a str) -> Result<GgufField<'a>> {
        self.find(key).ok_or_else(|| malformed(self.path(), format!("there is no metadata `{key}`")))
    }

    /// Returns the metadata of a key, or `None` if there is no such key.
    ///
    /// ```
    /// # use marquetry::io::Gguf;
    /// # let bytes = [&b"GGUF"[..], &3u32.to_le_bytes(), &0u64.to_le_bytes(), &0u64.to_le_bytes()].concat();
    /// # let file = Gguf::from_bytes(bytes)?;
    /// let base = file.find("llama.rope.freq_base").map_or(Ok(10_000.0), |base| base.as_f64())?;
    /// # assert_eq!(base, 10_000.0);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    pub fn find<'a>(&'a self, key: &'a str) -> Option<GgufField<'a>> {
        let value = self.metadata.get(key)?;
        Some(GgufField { path: self.path(), key, value })
    }

    /// Returns the names of the tensors, sorted.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns the type and shape of a tensor. Reads no elements.
    ///
    /// # Errors
    /// [`Error::Format`] if there is no such tensor.
    pub fn info(&self, name: &str) -> Result<GgufInfo> {
        let tensor = self.tensor(name)?;
        let (dtype, format) = match tensor.kind.kind {
            Kind::Dense(dtype) => (Some(dtype), None),
            Kind::Quantized(format) => (None, Some(format)),
            Kind::Foreign => (None, None),
        };
        let bytes = tensor.range.end - tensor.range.start;
        Ok(GgufInfo { type_name: tensor.kind.name, shape: tensor.dims().collect(), bytes, dtype, format })
    }

    /// Uploads a tensor that is not quantised to a device.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the tensor is quantised; [`Error::Format`] if there is no such tensor, if its type
    /// is none of [`DType`], or if the file has been shortened; [`Error::Io`]; [`Error::SizeOverflow`];
    /// [`Error::OutOfMemory`].
    pub fn load(&self, name: &str, device: &Device) -> Result<Tensor> {
        let tensor = self.tensor(name)?;
        match tensor.kind.kind {
            Kind::Dense(dtype) => Tensor::from_source(&self.elements(tensor)?, dtype, tensor.dims().collect(), device),
            Kind::Quantized(format) => {
                let message = format!("`{name}` is quantised as {format}; load it with `load_quantized`");
                Err(Error::InvalidArgument { op: "load", message })
            }
            Kind::Foreign => {
                Err(foreign_dtype(&self.shards[tensor.shard].path, &format!("`{name}`"), tensor.kind.name, &DTYPES))
            }
        }
    }

    /// Uploads a quantised tensor to a device. It stays quantised.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the tensor is not quantised; [`Error::Format`] if there is no such tensor, if its
    /// type is none of [`BlockFormat`], or if the file has been shortened; [`Error::Io`]; [`Error::SizeOverflow`];
    /// [`Error::OutOfMemory`].
    pub fn load_quantized(&self, name: &str, device: &Device) -> Result<QuantizedTensor> {
        const OP: &str = "load_quantized";
        let tensor = self.tensor(name)?;
        match tensor.kind.kind {
            Kind::Quantized(format) => {
                let shape = tensor.dims().collect();
                QuantizedTensor::from_source(&self.elements(tensor)?, format, shape, device).map_err(Error::named(OP))
            }
            Kind::Dense(_) => {
                let message =
                    format!("`{name}` holds {}, which is not quantised; load it with `load`", tensor.kind.name);
                Err(Error::InvalidArgument { op: OP, message })
            }
            Kind::Foreign => {
                let known = BlockFormat::ALL.map(BlockFormat::name).join(", ");
                let message = format!(
                    "`{name}` holds {}, which this crate does not read; quantise the model anew, as one of {known}",
                    tensor.kind.name
                );
                Err(malformed(&self.shards[tensor.shard].path, message))
            }
        }
    }

    /// The same as [`load`](Self::load) for a file whose bytes come later: fetches them first. They are dropped when
    /// the device has them.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub async fn load_async(&self, name: &str, device: &Device) -> Result<Tensor> {
        let _kept = self.fetch(name).await?;
        self.load(name, device)
    }

    /// The same as [`load_quantized`](Self::load_quantized) for a file whose bytes come later.
    ///
    /// # Errors
    /// As [`load_quantized`](Self::load_quantized).
    pub async fn load_quantized_async(&self, name: &str, device: &Device) -> Result<QuantizedTensor> {
        let _kept = self.fetch(name).await?;
        self.load_quantized(name, device)
    }

    /// Fetches the bytes of a tensor if they come later.
    pub(crate) async fn fetch(&self, name: &str) -> Result<Kept<'_>> {
        let tensor = self.tensor(name)?;
        let source = self.sources.get(tensor.shard).map(|source| &**source);
        self.shards[tensor.shard].fetch(source, tensor.range.clone()).await
    }

    /// Uploads several quantised matrices as one: the rows of each behind those of the one before. Returns `None` if
    /// they are not all matrices of one format with rows of one length.
    pub(crate) fn load_packed(&self, names: &[&str], device: &Device) -> Result<Option<QuantizedTensor>> {
        let mut common: Option<(BlockFormat, usize)> = None;
        let (mut rows, mut parts) = (0usize, Vec::with_capacity(names.len()));
        for name in names {
            let tensor = self.tensor(name)?;
            let (Kind::Quantized(format), &[length, columns]) = (tensor.kind.kind, &*tensor.dims().collect::<Shape>())
            else {
                return Ok(None);
            };
            if *common.get_or_insert((format, columns)) != (format, columns) {
                return Ok(None);
            }
            rows = rows.saturating_add(length);
            parts.push(self.elements(tensor)?);
        }
        let Some((format, columns)) = common else { return Ok(None) };
        let packed = QuantizedTensor::from_source(&Chain(parts), format, (rows, columns).into(), device);
        packed.map(Some).map_err(Error::named("load_quantized"))
    }

    fn tensor(&self, name: &str) -> Result<&header::Tensor> {
        let known = || missing(self.path(), name, &self.names().collect::<Vec<_>>());
        self.tensors.get(name).ok_or_else(known)
    }

    fn elements(&self, tensor: &header::Tensor) -> Result<Part<'_>> {
        self.shards[tensor.shard].part(tensor.range.clone())
    }

    /// The first file, for messages.
    fn path(&self) -> &Path {
        self.shards.first().map_or(Path::new(""), |bytes| &bytes.path)
    }
}

/// Parts of files, one behind the other.
struct Chain<'a>(Vec<Part<'a>>);

impl ByteSource for Chain<'_> {
    fn bytes(&self) -> u64 {
        self.0.iter().map(ByteSource::bytes).sum()
    }

    fn read(&self, range: Range<u64>, scratch: &mut Vec<u8>, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut whole = Vec::with_capacity((range.end - range.start) as usize);
        let mut start = 0;
        for part in &self.0 {
            let end = start + part.bytes();
            let (first, last) = (range.start.max(start), range.end.min(end));
            if first < last {
                part.read(first - start..last - start, scratch, &mut |bytes| {
                    whole.extend_from_slice(bytes);
                    Ok(())
                })?;
            }
            start = end;
        }
        take(&whole)
    }
}

impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = self.shards.iter().map(|bytes| &bytes.path).collect::<Vec<_>>();
        f.debug_struct("Gguf").field("files", &files).field("tensors", &self.tensors.len()).finish()
    }
}

/// Checks that the files are all parts of one split file, or one whole file. Returns the place of the first part.
fn check_parts(shards: &[Bytes], metadata: &[BTreeMap<String, GgufValue>], tensors: usize) -> Result<usize> {
    let field = |file: usize, key: &'static str| {
        let (value, path) = (metadata[file].get(key)?, &*shards[file].path);
        Some(GgufField { path, key, value })
    };
    let part = |file: usize| -> Result<(u64, u64)> {
        let read = |key, default| field(file, key).map_or(Ok(default), |field| field.as_u64());
        Ok((read("split.no", 0)?, read("split.count", 1)?))
    };
    let mut places = vec![None; shards.len()];
    for (file, Bytes { path, .. }) in shards.iter().enumerate() {
        let (number, count) = part(file)?;
        if count != shards.len() as u64 && !(count == 0 && shards.len() == 1) {
            let message = format!(
                "it is part {} of {count}, and {} are given; give all parts to `open_shards`",
                number.saturating_add(1),
                shards.len()
            );
            return Err(malformed(path, message));
        }
        let place = usize::try_from(number).ok().and_then(|number| places.get_mut(number));
        let place = place.ok_or_else(|| malformed(path, format!("its part number {number} is not below {count}")))?;
        if let Some(other) = place.replace(file) {
            let other = shards[other].path.display();
            return Err(malformed(path, format!("it is the same part as {other}; give each part once")));
        }
    }
    let first = places.first().copied().flatten().unwrap_or(0);
    if let Some(expected) = shards.first().and_then(|_| field(first, "split.tensors.count")) {
        let expected = expected.as_u64()?;
        if expected != tensors as u64 {
            let message = format!("all parts should have {expected} tensors together, and they have {tensors}");
            return Err(malformed(&shards[first].path, message));
        }
    }
    Ok(first)
}
