//! The format npz: a zip archive of npy files.

use super::file::{Bytes, Reader, failed, passed_on, replace};
use super::load::{LoadConfig, load_all};
use super::npy::{Promise, encode};
use super::{TensorInfo, malformed, missing};
use crate::base::error::{Error, Result};
use crate::device::Device;
use crate::tensor::Tensor;
use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::io::{self, BufReader, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use zip::read::ZipFile;
use zip::result::ZipError;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// The ending of an array's name in the archive.
const ENDING: &str = ".npy";

/// Named arrays in a `.npz` file of numpy's.
///
/// Opening reads only the archive's directory. An array that is not compressed is read twice: once to compare its
/// checksum, and once, in several threads if it is large, to upload it.
///
/// ```
/// use marquetry::{Device, Tensor, io::Npz};
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("arrays.npz");
/// let device = Device::best()?;
/// let (x, y) = (Tensor::arange(0u32, 3, &device)?, Tensor::new([1f32, 2.0], &device)?);
/// Npz::save(&path, [("x", &x), ("y", &y)])?;
///
/// let file = Npz::open(&path)?;
/// assert_eq!(file.names().collect::<Vec<_>>(), ["x", "y"]);
/// assert_eq!(file.load("y", &device)?.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), marquetry::Error>(())
/// ```
pub struct Npz {
    bytes: Arc<Bytes>,
    archive: ZipArchive<Reader>,
    /// For each array, the number of its entry in the archive.
    entries: BTreeMap<String, usize>,
}

impl Npz {
    /// Opens a file.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read; [`Error::Format`] if it is not a whole npz file, or has two arrays of
    /// one name.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Npz::new(Bytes::open(path.as_ref())?)
    }

    /// Opens a file whose bytes are in memory already.
    ///
    /// # Errors
    /// [`Error::Format`] as for [`open`](Self::open).
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        Npz::new(Bytes::owned(bytes.into()))
    }

    fn new(bytes: Bytes) -> Result<Self> {
        let bytes = Arc::new(bytes);
        let fail = |error| not_an_archive(&bytes.path, error);
        let archive = ZipArchive::new(Reader::new(bytes.clone())).map_err(fail)?;
        // If names have the same bytes, the archive keeps only one of their entries.
        let mut unique = !archive.has_duplicate_names();
        let mut entries = BTreeMap::new();
        for (number, name) in archive.file_names().enumerate() {
            let name = name.map_err(fail)?;
            if let Some(name) = name.strip_suffix(ENDING) {
                unique &= entries.insert(name.to_string(), number).is_none();
            }
        }
        if !unique {
            return Err(malformed(&bytes.path, "not a sound npz file: two of its entries have the same name"));
        }
        Ok(Npz { bytes, archive, entries })
    }

    /// Returns the names of the arrays, sorted.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Returns the dtype and shape of an array. Reads no elements.
    ///
    /// # Errors
    /// [`Error::Format`] if there is no such array, if its header is damaged, or if its elements have a type that is
    /// none of [`DType`](crate::DType).
    pub fn info(&self, name: &str) -> Result<TensorInfo> {
        self.with(name, |promise, _| Ok(promise.info))
    }

    /// Uploads an array to a device. If it is compressed, no more is inflated than its header promises.
    ///
    /// # Errors
    /// As [`info`](Self::info); [`Error::Io`]; [`Error::Format`] if the elements are damaged, or if their number is not
    /// what the header promises; [`Error::InvalidArgument`] for bytes that are no truth values;
    /// [`Error::SizeOverflow`]; [`Error::OutOfMemory`].
    pub fn load(&self, name: &str, device: &Device) -> Result<Tensor> {
        self.with(name, |promise, entry| match self.elements(name, &promise, entry)? {
            Elements::Stored(range) => promise.upload(&self.bytes.part(range)?, device),
            Elements::Inflated(elements) => promise.upload(&&elements[..], device),
        })
    }

    /// Uploads all arrays to a device.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_all(&self, device: &Device) -> Result<HashMap<String, Tensor>> {
        self.load_with(device, LoadConfig::new())
    }

    /// Uploads the arrays that a configuration chooses: with a dtype for floats, and with progress. See
    /// [`SafeTensors::load_with`](super::SafeTensors::load_with).
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_with(&self, device: &Device, config: LoadConfig<'_>) -> Result<HashMap<String, Tensor>> {
        load_all(device, self.names(), |name| self.info(name), |name| self.load(name, device), config)
    }

    /// Writes tensors to a file without compression, as `numpy.savez` does. An existing file is replaced. Tensors are
    /// read from their devices one after the other.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Format`] for two tensors of one name or a dtype that numpy lacks; any error of the
    /// computation. After an error, an existing file is as it was.
    pub fn save<N: AsRef<str>, T: Borrow<Tensor>>(
        path: impl AsRef<Path>,
        tensors: impl IntoIterator<Item = (N, T)>,
    ) -> Result<()> {
        let path = path.as_ref();
        let fail = |error| match error {
            ZipError::Io(error) => failed(path, &error),
            error => malformed(path, format!("these tensors cannot be saved: {error}")),
        };
        replace(path, |file| {
            let mut archive = ZipWriter::new(file);
            let mut names = HashSet::new();
            for (name, tensor) in tensors {
                let name = name.as_ref();
                if !names.insert(name.to_string()) {
                    let message = format!("these tensors cannot be saved: two have the same name, `{name}`");
                    return Err(malformed(path, message));
                }
                let (header, elements) = encode(path, &format!("`{name}`"), tensor.borrow())?;
                let large = header.len() + elements.len() > u32::MAX as usize;
                let options =
                    SimpleFileOptions::default().compression_method(CompressionMethod::Stored).large_file(large);
                archive.start_file(format!("{name}{ENDING}"), options).map_err(fail)?;
                let written = archive.write_all(&header).and_then(|()| archive.write_all(&elements));
                written.map_err(|error| failed(path, &error))?;
            }
            archive.finish().map_err(fail)?;
            Ok(())
        })
    }

    /// Calls `take` with what an array's header promises, and with its entry, read up to the elements.
    fn with<R>(&self, name: &str, take: impl FnOnce(Promise, ZipFile<'_, Reader>) -> Result<R>) -> Result<R> {
        let path = &self.bytes.path;
        let known = || missing(path, name, &self.names().collect::<Vec<_>>());
        let number = *self.entries.get(name).ok_or_else(known)?;
        // A clone reads from its own position.
        let mut archive = self.archive.clone();
        let mut entry = archive.by_index(number).map_err(|error| not_an_archive(path, error))?;
        take(Promise::read(path, &format!("`{name}`"), &mut entry)?, entry)
    }

    /// Returns the bytes behind an array's header, after a comparison with the archive's checksum.
    fn elements(&self, name: &str, promise: &Promise, entry: ZipFile<'_, Reader>) -> Result<Elements> {
        let path = &self.bytes.path;
        let fail = |error| not_an_archive(path, ZipError::Io(error));
        let broken = |following| promise.broken(path, &format!("`{name}`"), following);
        let following = entry.size().saturating_sub(promise.start as u64);
        if following != promise.bytes as u64 {
            return Err(broken(following));
        }
        if entry.compression() == CompressionMethod::Stored
            && entry.compressed_size() == entry.size()
            && let Some(start) = entry.data_start()
            && let Some(end) = start.checked_add(entry.size()).filter(|end| *end <= self.bytes.length())
        {
            // The entry compares the checksum when it has been read to its end.
            io::copy(&mut BufReader::with_capacity(1 << 20, entry), &mut io::sink()).map_err(fail)?;
            return Ok(Elements::Stored(start + promise.start as u64..end));
        }
        // Reading one byte more shows whether there are more, and compares the checksum at the end.
        let mut elements = Vec::new();
        entry.take(following + 1).read_to_end(&mut elements).map_err(fail)?;
        if elements.len() != promise.bytes {
            return Err(broken(elements.len() as u64));
        }
        Ok(Elements::Inflated(elements))
    }
}

/// The elements of an array.
enum Elements {
    /// Where they are in the file.
    Stored(Range<u64>),
    Inflated(Vec<u8>),
}

impl fmt::Debug for Npz {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Npz").field("file", &self.bytes.path).field("arrays", &self.entries.len()).finish()
    }
}

fn not_an_archive(path: &Path, error: ZipError) -> Error {
    let known = if let ZipError::Io(error) = &error { passed_on(error) } else { None };
    known.unwrap_or_else(|| malformed(path, format!("not a sound npz file: {error}")))
}
