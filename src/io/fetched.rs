//! Files whose bytes come later: which parts of them have been fetched.

use super::file::{Bytes, Contents, failed};
use super::malformed;
use super::range_source::RangeSource;
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::engine::staging::ByteSource as _;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// The parts of a file that have been fetched, and not been dropped again.
#[derive(Default)]
pub(super) struct Fetched {
    parts: Mutex<Vec<FetchedPart>>,
    /// Where the last range ends that was asked for and was not there.
    missed: Mutex<Option<u64>>,
}

/// A part of a file, and where it begins.
#[derive(Clone)]
struct FetchedPart {
    start: u64,
    bytes: Arc<Vec<u8>>,
}

/// Keeps a part that has been fetched until it is dropped.
#[must_use]
pub(crate) struct Kept<'a> {
    bytes: &'a Bytes,
    part: Option<FetchedPart>,
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        if let (Contents::Fetched(fetched), Some(ours)) = (&self.bytes.contents, &self.part) {
            fetched.parts.lock().retain(|part| !Arc::ptr_eq(&ours.bytes, &part.bytes));
        }
    }
}

impl Bytes {
    /// Opens a file whose bytes come later. Fetches nothing but its length.
    pub async fn open_async(source: &dyn RangeSource) -> Result<Self> {
        let path = PathBuf::from(source.name());
        let length = source.length().await.map_err(|error| failed(&path, &error))?;
        Ok(Bytes { path, length, contents: Contents::Fetched(Fetched::default()) })
    }

    /// Fetches a range if the bytes come later. Until the result is dropped they can be read.
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
}

impl Fetched {
    /// Copies bytes from the parts. They may lie in several, one behind the other.
    pub fn read(&self, into: &mut [u8], offset: u64) -> Result<()> {
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
