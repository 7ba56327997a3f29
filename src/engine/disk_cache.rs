//! Binaries of kernels on disk, so that the next start of an app need not compile them.
//!
//! Each kernel has a file, named by a hash of all that its binary depends on. The file holds [`MAGIC`], the binary's
//! length (8 bytes), a 128-bit hash of the binary (XXH3), and the binary. Length and hash are little-endian. A damaged
//! file counts as missing. A file gets its name only when it is complete, so processes may share a folder.

use crate::base::environment::{self, Cache};
use crate::shader::{Code, Module};
use std::io::Write;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// The first bytes of a file; the last one is the version of the format.
const MAGIC: [u8; 8] = *b"mqkern\0\x01";
const HEADER: usize = 8 + 8 + 16;

/// A folder of binaries.
#[derive(Debug)]
pub(crate) struct DiskCache {
    folder: PathBuf,
}

impl DiskCache {
    /// Returns the cache in the folder that `MARQUETRY_CACHE` names, else in `marquetry` in the user's folder for
    /// caches. Returns `None` if the user has no such folder, or if the variable is empty.
    pub fn from_environment() -> Option<DiskCache> {
        let folder = match &environment::settings().cache {
            Cache::Folder(folder) => Some(folder.clone()),
            Cache::Nowhere => None,
            Cache::User => dirs::cache_dir().map(|caches| caches.join("marquetry")),
        };
        folder.map(|folder| DiskCache { folder })
    }

    /// Returns the path of the file for a kernel's binary. `key` is all that the binary depends on besides the kernel.
    pub fn path(&self, key: &str, module: &Module) -> PathBuf {
        let mut hash = Xxh3::new();
        let code: &[u8] = match &module.code {
            Code::Spirv(words) => bytemuck::cast_slice(words),
            Code::Wgsl(text) => text.as_bytes(),
        };
        for part in [key.as_bytes(), module.entry_point.as_bytes(), code] {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        self.folder.join(format!("{:032x}.kernel", hash.digest128()))
    }

    /// Returns the binary in a file, if the file is there and intact.
    pub fn load(&self, path: &Path) -> Option<Vec<u8>> {
        let mut contents = std::fs::read(path).ok()?;
        if !is_intact(&contents) {
            log::warn!("{} is damaged: the kernel is compiled anew", path.display());
            return None;
        }
        contents.drain(..HEADER);
        Some(contents)
    }

    /// Writes a file. A failure is logged and is no error: the next process compiles the kernel again.
    pub fn store(&self, path: &Path, binary: &[u8]) {
        if let Err(error) = self.try_store(path, binary) {
            log::warn!("{} cannot be written ({error}): the next start compiles again", path.display());
        }
    }

    fn try_store(&self, path: &Path, binary: &[u8]) -> std::io::Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        file.write_all(&header(binary))?;
        file.write_all(binary)?;
        file.persist(path)?;
        Ok(())
    }
}

fn header(binary: &[u8]) -> Vec<u8> {
    let length = (binary.len() as u64).to_le_bytes();
    [MAGIC.as_slice(), &length, &xxh3_128(binary).to_le_bytes()].concat()
}

fn is_intact(contents: &[u8]) -> bool {
    contents.split_at_checked(HEADER).is_some_and(|(found, binary)| found == header(binary))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shader::{KernelBuilder, Target};

    fn module(name: &str) -> Module {
        let k = KernelBuilder::new(name, Target::LEVEL_ZERO, 64);
        k.parameter(crate::shader::Type::U32);
        k.finish().unwrap()
    }

    #[test]
    fn what_was_stored_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let cache = DiskCache { folder: folder.path().join("new") };
        let path = cache.path("driver 1", &module("a"));
        assert_eq!(cache.load(&path), None);
        for binary in [&b"first"[..], b"", b"the second, which is longer"] {
            cache.store(&path, binary);
            assert_eq!(cache.load(&path).as_deref(), Some(binary));
        }
        assert_eq!(std::fs::read_dir(&cache.folder).unwrap().count(), 1, "no temporary files are left");
    }

    #[test]
    fn damage_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = DiskCache { folder: folder.path().into() };
        let path = cache.path("driver 1", &module("a"));
        cache.store(&path, b"a kernel's binary");
        let intact = std::fs::read(&path).unwrap();
        for length in 0..intact.len() {
            std::fs::write(&path, &intact[..length]).unwrap();
            assert_eq!(cache.load(&path), None, "cut after {length} bytes");
        }
        for place in 0..intact.len() {
            let mut flipped = intact.clone();
            flipped[place] ^= 0x10;
            std::fs::write(&path, &flipped).unwrap();
            assert_eq!(cache.load(&path), None, "a bit of byte {place} flipped");
        }
        std::fs::write(&path, [intact.as_slice(), b"!"].concat()).unwrap();
        assert_eq!(cache.load(&path), None, "a byte too many");
    }

    #[test]
    fn all_that_a_binary_depends_on_is_in_its_name() {
        let cache = DiskCache { folder: PathBuf::new() };
        let original = cache.path("driver 1", &module("a"));
        // The name of a kernel is for people, so it does not count.
        assert_eq!(original, cache.path("driver 1", &module("b")));
        assert_ne!(original, cache.path("driver 2", &module("a")));
        let mut other = module("a");
        other.entry_point = "other".into();
        assert_ne!(original, cache.path("driver 1", &other));
        let Code::Spirv(words) = &mut other.code else { panic!("kernels are generated as SPIR-V") };
        words.push(0);
        other.entry_point = "main".into();
        assert_ne!(original, cache.path("driver 1", &other));
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_no_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let cache = DiskCache { folder: file.path().join("below a file") };
        let path = cache.path("driver", &module("a"));
        cache.store(&path, b"binary");
        assert_eq!(cache.load(&path), None);
    }
}
