//! Files as bytes: read by position, replaced as a whole to write.

#[cfg(any(feature = "safetensors", feature = "gguf"))]
use super::fetched::Fetched;
use super::malformed;
use crate::base::error::{Error, Result};
use crate::engine::staging::ByteSource;
use std::fs::File;
use std::io::{self, ErrorKind};
#[cfg(any(feature = "npy", feature = "safetensors"))]
use std::io::{BufWriter, Write};
#[cfg(any(feature = "npy", not(any(unix, windows))))]
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
#[cfg(feature = "npy")]
use std::sync::Arc;

/// The bytes of a file. They are read when they are asked for, by any number of threads.
pub(super) struct Bytes {
    pub path: PathBuf,
    pub(super) length: u64,
    pub(super) contents: Contents,
}

pub(super) enum Contents {
    File(File),
    Owned(Vec<u8>),
    #[cfg(any(feature = "safetensors", feature = "gguf"))]
    Fetched(Fetched),
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
