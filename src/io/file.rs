//! Files as bytes: read by position, or fetched in ranges; replaced as a whole to write.

use super::malformed;
#[cfg(any(feature = "safetensors", feature = "gguf"))]
use super::range_source::RangeSource;
use crate::base::error::{Error, Result};
#[cfg(any(feature = "safetensors", feature = "gguf"))]
use crate::base::lock::Mutex;
use crate::engine::staging::ByteSource;
use std::fs::File;
use std::io::{self, ErrorKind};
#[cfg(any(feature = "npy", feature = "safetensors"))]
use std::io::{BufWriter, Write};
#[cfg(any(feature = "npy", not(any(unix, windows))))]
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The bytes of a file. They are read when they are asked for, by any number of threads.
pub(super) struct Bytes {
    pub path: PathBuf,
    length: u64,
    contents: Contents,
}

enum Contents {
    File(File),
    Owned(Vec<u8>),
    #[cfg(any(feature = "safetensors", feature = "gguf"))]
    Fetched(Fetched),
}

/// The parts of a file that have been fetched, and not been dropped again.
#[cfg(any(feature = "safetensors", feature = "gguf"))]
#[derive(Default)]
struct Fetched {
    parts: Mutex<Vec<FetchedPart>>,
    /// Where the last range ends that was asked for and was not there.
    missed: Mutex<Option<u64>>,
}

/// A part of a file, and where it begins.
#[cfg(any(feature = "safetensors", feature = "gguf"))]
#[derive(Clone)]
struct FetchedPart {
    start: u64,
    bytes: Arc<Vec<u8>>,
}

/// Keeps a part that has been fetched until it is dropped.
#[cfg(any(feature = "safetensors", feature = "gguf"))]
#[must_use]
pub(crate) struct Kept<'a> {
    bytes: &'a Bytes,
    part: Option<FetchedPart>,
}

#[cfg(any(feature = "safetensors", feature = "gguf"))]
impl Drop for Kept<'_> {
    fn drop(&mut self) {
        if let (Contents::Fetched(fetched), Some(ours)) = (&self.bytes.contents, &self.part) {
            fetched.parts.lock().retain(|part| !Arc::ptr_eq(&ours.bytes, &part.bytes));
        }
    }
}

impl Bytes {
    /// Opens a file. Reads nothing.
    pub fn open(path: &Path) -> Result<Self> {
        let open = || -> io::Result<(File, u64)> {
            let file = File::open(path)?;
            let length = file.metadata()?.len();
            Ok((file, length))
        };
        let (file, length) = open().map_err(|error| failed(path, &error))?;
        Ok(Bytes { path: path.into(), length, contents: Contents::File(file) })
    }

    /// Wraps bytes that are in memory already.
    pub fn owned(bytes: Vec<u8>) -> Self {
        Bytes { path: "<memory>".into(), length: bytes.len() as u64, contents: Contents::Owned(bytes) }
    }

    /// Opens a file whose bytes come later. Fetches nothing but its length.
    #[cfg(any(feature = "safetensors", feature = "gguf"))]
    pub async fn open_async(source: &dyn RangeSource) -> Result<Self> {
        let path = PathBuf::from(source.name());
        let length = source.length().await.map_err(|error| failed(&path, &error))?;
        Ok(Bytes { path, length, contents: Contents::Fetched(Fetched::default()) })
    }

    /// Fetches a range if the bytes come later. Until the result is dropped they can be read.
    #[cfg(any(feature = "safetensors", feature = "gguf"))]
    pub async fn fetch(&self, source: Option<&dyn RangeSource>, range: Range<u64>) -> Result<Kept<'_>> {
        let nothing = Kept { bytes: self, part: None };
        let (Contents::Fetched(fetched), Some(source)) = (&self.contents, source) else { return Ok(nothing) };
        // It may lie beyond the end.
        let length = self.part(range.clone())?.bytes();
        if length == 0 {
            return Ok(nothing);
        }
        let Range { start, end } = range;
        let bytes = source.read(range).await.map_err(|error| failed(&self.path, &error))?;
        if bytes.len() as u64 != length {
            let message = format!("bytes {start} to {end} were asked for, and {} bytes came", bytes.len());
            return Err(malformed(&self.path, message));
        }
        let part = FetchedPart { start, bytes: Arc::new(bytes) };
        fetched.parts.lock().push(part.clone());
        Ok(Kept { bytes: self, part: Some(part) })
    }

    /// Reads the start of a file, whose length is not known: fetches more of it until `read` misses nothing.
    #[cfg(any(feature = "safetensors", feature = "gguf"))]
    pub async fn read_start<T>(&self, source: &dyn RangeSource, read: impl Fn(&Bytes) -> Result<T>) -> Result<T> {
        /// Most headers without a tokenizer are shorter.
        const FIRST: u64 = 256 << 10;
        let mut end = FIRST.min(self.length);
        let mut kept = vec![self.fetch(Some(source), 0..end).await?];
        loop {
            let result = read(self);
            let missed = match &self.contents {
                Contents::Fetched(fetched) => fetched.missed.lock().take(),
                _ => None,
            };
            let Some(missed) = missed.filter(|missed| end < self.length && *missed > end) else { return result };
            // Twice as much, so that few fetches are enough.
            let next = missed.max(2 * end).min(self.length);
            kept.push(self.fetch(Some(source), end..next).await?);
            end = next;
        }
    }

    /// Returns the length that the file had when it was opened.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Reads a part into memory.
    #[cfg(any(feature = "safetensors", feature = "gguf"))]
    pub fn read(&self, range: Range<u64>) -> Result<Vec<u8>> {
        let part = self.part(range)?;
        let mut bytes = vec![0; part.bytes() as usize];
        self.read_exact_at(&mut bytes, part.range.start)?;
        Ok(bytes)
    }

    /// Returns a part as a source for uploads.
    pub fn part(&self, range: Range<u64>) -> Result<Part<'_>> {
        if range.start <= range.end && range.end <= self.length {
            return Ok(Part { bytes: self, range });
        }
        let Range { start, end } = range;
        Err(malformed(&self.path, format!("bytes {start} to {end} are beyond its end at {}", self.length)))
    }

    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> Result<()> {
        let file = match &self.contents {
            Contents::File(file) => file,
            Contents::Owned(bytes) => {
                into.copy_from_slice(&bytes[offset as usize..][..into.len()]);
                return Ok(());
            }
            #[cfg(any(feature = "safetensors", feature = "gguf"))]
            Contents::Fetched(fetched) => return fetched.read(into, offset),
        };
        read_exact_at(file, into, offset).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                let message = format!("it had {} bytes when it was opened, and has been shortened since", self.length);
                malformed(&self.path, message)
            }
            _ => failed(&self.path, &error),
        })
    }
}

#[cfg(any(feature = "safetensors", feature = "gguf"))]
impl Fetched {
    /// Copies bytes from the parts. They may lie in several, one behind the other.
    fn read(&self, into: &mut [u8], offset: u64) -> Result<()> {
        let end = offset + into.len() as u64;
        let (parts, mut filled) = (self.parts.lock().clone(), 0);
        while filled < into.len() {
            let place = offset + filled as u64;
            let holds = |part: &&FetchedPart| (part.start..part.start + part.bytes.len() as u64).contains(&place);
            let Some(part) = parts.iter().find(holds) else {
                *self.missed.lock() = Some(end);
                return Err(Error::WouldBlock { op: "load", twin: "load_async" });
            };
            let found = &part.bytes[(place - part.start) as usize..];
            let count = found.len().min(into.len() - filled);
            into[filled..filled + count].copy_from_slice(&found[..count]);
            filled += count;
        }
        Ok(())
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, into, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut into: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !into.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, into, offset) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                into = &mut into[read..];
                offset += read as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(not(any(unix, windows)))]
fn read_exact_at(mut file: &File, into: &mut [u8], offset: u64) -> io::Result<()> {
    // One thread: the position belongs to it.
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(into)
}

/// A part of a file.
pub(super) struct Part<'a> {
    bytes: &'a Bytes,
    range: Range<u64>,
}

impl ByteSource for Part<'_> {
    fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn read(&self, range: Range<u64>, scratch: &mut Vec<u8>, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let [start, end] = [range.start, range.end].map(|place| self.range.start + place);
        if let Contents::Owned(bytes) = &self.bytes.contents {
            return take(&bytes[start as usize..end as usize]);
        }
        scratch.resize((end - start) as usize, 0);
        self.bytes.read_exact_at(scratch, start)?;
        take(scratch)
    }
}

/// Reads a file from a position of its own on.
#[cfg(feature = "npy")]
#[derive(Clone)]
pub(super) struct Reader {
    pub bytes: Arc<Bytes>,
    position: u64,
}

#[cfg(feature = "npy")]
impl Reader {
    pub fn new(bytes: Arc<Bytes>) -> Self {
        Reader { bytes, position: 0 }
    }
}

#[cfg(feature = "npy")]
impl Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.bytes.length.saturating_sub(self.position);
        let count = (into.len() as u64).min(left) as usize;
        if count == 0 {
            return Ok(0);
        }
        self.bytes.read_exact_at(&mut into[..count], self.position).map_err(io::Error::other)?;
        self.position += count as u64;
        Ok(count)
    }
}

#[cfg(feature = "npy")]
impl Seek for Reader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(distance) => self.bytes.length.checked_add_signed(distance),
            SeekFrom::Current(distance) => self.position.checked_add_signed(distance),
        };
        self.position = position.ok_or(ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

/// Writes a file. It gets its name only when it is complete, so the file that it replaces may be open.
#[cfg(any(feature = "npy", feature = "safetensors"))]
pub(super) fn replace(path: &Path, write: impl FnOnce(&mut BufWriter<&File>) -> Result<()>) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file = temporary(folder).map_err(|error| failed(path, &error))?;
    let mut writer = BufWriter::new(file.as_file());
    write(&mut writer)?;
    writer.flush().map_err(|error| failed(path, &error))?;
    drop(writer);
    file.persist(path).map_err(|error| failed(path, &error.error))?;
    Ok(())
}

#[cfg(any(feature = "npy", feature = "safetensors"))]
fn temporary(folder: &Path) -> io::Result<tempfile::NamedTempFile> {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "only there do files have such permissions"))]
    let mut builder = tempfile::Builder::new();
    // Permissions as for any other new file, not for the owner alone. The process's mask applies.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder)
}

/// Returns the error of this crate that a [`Reader`] has passed on.
#[cfg(feature = "npy")]
pub(super) fn passed_on(error: &io::Error) -> Option<Error> {
    error.get_ref()?.downcast_ref::<Error>().cloned()
}

/// Returns the error for what the system says about a file.
pub(super) fn failed(path: &Path, error: &io::Error) -> Error {
    Error::Io { path: path.into(), kind: error.kind(), message: error.to_string() }
}
