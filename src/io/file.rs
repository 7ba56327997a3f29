//! Files as bytes: mapped to read, replaced as a whole to write.

use crate::base::error::{Error, Result};
use memmap2::Mmap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Deref;
use std::path::{Path, PathBuf};

/// The bytes of a file.
pub(super) struct Bytes {
    pub path: PathBuf,
    contents: Contents,
}

enum Contents {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Bytes {
    /// Maps a file into memory.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|error| failed(path, &error))?;
        // SAFETY: The map is only read, as bytes, and all values of bytes are valid. Nothing can keep others from
        // changing or shortening the file meanwhile; the documentation of the module forbids it.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| failed(path, &error))?;
        Ok(Bytes { path: path.into(), contents: Contents::Mapped(map) })
    }

    /// Wraps bytes that are in memory already.
    pub fn owned(bytes: Vec<u8>) -> Self {
        Bytes { path: "<memory>".into(), contents: Contents::Owned(bytes) }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.contents {
            Contents::Mapped(map) => map,
            Contents::Owned(bytes) => bytes,
        }
    }
}

/// Writes a file. It gets its name only when it is complete, so the file that it replaces may be mapped.
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

fn temporary(folder: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    // Permissions as for any other new file, not for the owner alone. The process's mask applies.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder)
}

/// Returns the error for what the system says about a file.
pub(super) fn failed(path: &Path, error: &std::io::Error) -> Error {
    Error::Io { path: path.into(), kind: error.kind(), message: error.to_string() }
}
