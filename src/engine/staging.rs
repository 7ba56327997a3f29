//! [`Staging`]: the host's memory through which bytes go to a device and come back.
//!
//! Bytes go in pieces. Several threads fill them, and the device copies one piece while others are filled. A buffer is
//! used again when the batch that copies it has run, so a transfer allocates nothing.

use super::pool::Allocation;
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

/// The bytes of a piece, and of a staging buffer. On an H200 larger pieces are no faster, and smaller ones cost more
/// calls.
pub(super) const PIECE: u64 = 4 << 20;

/// Uploads of at most this many bytes share a staging buffer.
pub(super) const SMALL: u64 = PIECE / 2;

/// The most staging buffers each way. On an H200, 64 MiB reach the full speed.
const MOST_BUFFERS: usize = 16;

/// The most threads of a transfer. Eight fill the bus of an H200.
const MOST_THREADS: usize = 8;

/// Parts of a buffer begin at multiples of this, the largest atom of memory that is not coherent. So no two parts are
/// flushed together.
const ALIGNMENT: u64 = 256;

/// Staging buffers of one direction.
#[derive(Default)]
pub(super) struct Staging {
    state: Mutex<State>,
    /// The buffer that small uploads share, and how many of its bytes are taken.
    shared: Mutex<Option<(Arc<Allocation>, u64)>>,
}

#[derive(Default)]
struct State {
    /// Those that nobody fills, the one used longest ago first. Batches in flight may use them.
    waiting: VecDeque<Arc<Allocation>>,
    /// All that there are.
    count: usize,
}

/// What a thread gets that wants a staging buffer.
pub(super) enum Taken {
    /// No command uses it.
    Idle(Slot),
    /// The thread may allocate one more.
    New,
    /// All are used by batches, or by other threads.
    None,
}

/// A staging buffer in use. It returns to its ring when it is dropped.
pub(super) struct Slot {
    buffer: Arc<Allocation>,
    /// `None` if it belongs to no ring.
    ring: Option<Arc<Staging>>,
    /// Whether the backend may be busy with it, although no command uses it. Then it leaves the ring instead.
    busy: bool,
}

impl Slot {
    /// Returns a buffer that is freed after its use.
    pub fn apart(buffer: Arc<Allocation>) -> Slot {
        Slot { buffer, ring: None, busy: false }
    }

    pub fn buffer(&self) -> &Arc<Allocation> {
        &self.buffer
    }

    /// Notes whether the backend may be busy with the buffer.
    pub fn set_busy(&mut self, busy: bool) {
        self.busy = busy;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(ring) = &self.ring {
            ring.give_back((!self.busy).then(|| self.buffer.clone()));
        }
    }
}

impl Staging {
    /// Takes a buffer out of the ring.
    pub fn take(self: &Arc<Self>) -> Taken {
        let mut state = self.state.lock();
        // The stream holds the buffers of its commands until they have run.
        let idle = state.waiting.iter().position(|buffer| Arc::strong_count(buffer) == 1);
        if let Some(buffer) = idle.and_then(|place| state.waiting.remove(place)) {
            // What its last user did with it comes before what the host does now.
            fence(Ordering::Acquire);
            return Taken::Idle(self.slot(buffer));
        }
        if state.count >= MOST_BUFFERS {
            return Taken::None;
        }
        state.count += 1;
        Taken::New
    }

    /// Adds the buffer that [`Taken::New`] allows, or notes that there is none.
    pub fn add(self: &Arc<Self>, allocated: Result<Arc<Allocation>>) -> Result<Slot> {
        allocated.map(|buffer| self.slot(buffer)).inspect_err(|_| self.give_back(None))
    }

    fn slot(self: &Arc<Self>, buffer: Arc<Allocation>) -> Slot {
        Slot { buffer, ring: Some(self.clone()), busy: false }
    }

    fn give_back(&self, buffer: Option<Arc<Allocation>>) {
        let mut state = self.state.lock();
        match buffer {
            Some(buffer) => state.waiting.push_back(buffer),
            None => state.count -= 1,
        }
    }

    /// Finds a place for a small upload: a staging buffer and an offset in it. `take` gets a buffer if the shared one
    /// is full.
    pub fn share(&self, bytes: u64, take: impl Fn() -> Result<Slot>) -> Result<(Arc<Allocation>, u64)> {
        loop {
            let mut shared = self.shared.lock();
            if let Some((buffer, taken)) = &mut *shared
                && *taken + bytes <= PIECE
            {
                let offset = *taken;
                *taken += bytes.next_multiple_of(ALIGNMENT);
                // It is not idle while the caller holds it.
                return Ok((buffer.clone(), offset));
            }
            let full = shared.take();
            drop(shared);
            self.end_sharing(full);
            // This may wait for the device, or free buffers.
            let mut next = take()?;
            if next.ring.take().is_none() {
                // It is as large as this upload.
                return Ok((next.buffer.clone(), 0));
            }
            // Another thread may have taken one meanwhile.
            let other = self.shared.lock().replace((next.buffer.clone(), 0));
            self.end_sharing(other);
        }
    }

    fn end_sharing(&self, shared: Option<(Arc<Allocation>, u64)>) {
        if let Some((buffer, _)) = shared {
            self.give_back(Some(buffer));
        }
    }

    /// Takes out all buffers that nobody fills. The caller drops them when it holds no lock.
    pub fn trim(&self) -> VecDeque<Arc<Allocation>> {
        let shared = self.shared.lock().take();
        self.end_sharing(shared);
        let mut state = self.state.lock();
        state.count -= state.waiting.len();
        std::mem::take(&mut state.waiting)
    }
}

/// Where bytes for a device come from.
pub(crate) trait ByteSource: Sync {
    fn bytes(&self) -> u64;

    /// Calls `take` once with the bytes of a range. A source whose bytes are elsewhere puts them into `scratch` first.
    fn read(&self, range: Range<u64>, scratch: &mut Vec<u8>, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;
}

impl ByteSource for &[u8] {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read(&self, range: Range<u64>, _: &mut Vec<u8>, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        take(&self[range.start as usize..range.end as usize])
    }
}

/// The pieces of a transfer. Its threads take them one by one.
pub(super) struct Pieces {
    bytes: u64,
    next: AtomicU64,
    /// The first error that was found.
    error: OnceLock<Error>,
}

impl Pieces {
    /// Takes the next piece. There is none after an error.
    pub fn take(&self) -> Option<Range<u64>> {
        if self.error.get().is_some() {
            return None;
        }
        let start = self.next.fetch_add(PIECE, Ordering::Relaxed);
        (start < self.bytes).then(|| start..self.bytes.min(start + PIECE))
    }
}

/// Calls `work` once in each thread of a transfer of `bytes` bytes, which has several threads if it has many pieces.
/// Returns the first error that was found.
pub(super) fn in_threads(bytes: u64, work: impl Fn(&Pieces) -> Result<()> + Sync) -> Result<()> {
    static CORES: OnceLock<usize> = OnceLock::new();
    let cores = || *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, NonZeroUsize::get));
    let count = bytes.div_ceil(PIECE);
    let several = count > 1 && cfg!(native) && !cfg!(model_locks);
    let threads = if several { count.min(cores().min(MOST_THREADS) as u64) } else { 1 };
    let pieces = Pieces { bytes, next: AtomicU64::new(0), error: OnceLock::new() };
    let work = || {
        if let Err(found) = work(&pieces) {
            _ = pieces.error.set(found);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // If the system has no thread left, there are fewer.
            _ = std::thread::Builder::new().name("marquetry transfer".into()).spawn_scoped(scope, work);
        }
        work();
    });
    pieces.error.into_inner().map_or(Ok(()), Err)
}

/// Calls `work` for each piece of `bytes` bytes, in the threads of a transfer. Each thread has a scratch buffer.
/// Returns the first error that was found, and begins no piece after it.
pub(super) fn for_each_piece(bytes: u64, work: impl Fn(Range<u64>, &mut Vec<u8>) -> Result<()> + Sync) -> Result<()> {
    in_threads(bytes, |pieces| {
        let mut scratch = Vec::new();
        while let Some(piece) = pieces.take() {
            work(piece, &mut scratch)?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn pieces_cover_all_bytes_once() {
        for bytes in [0, 1, PIECE, PIECE + 1, 9 * PIECE - 5] {
            let seen = Mutex::new(Vec::new());
            for_each_piece(bytes, |range, _| {
                seen.lock().push(range);
                Ok(())
            })
            .unwrap();
            let mut seen = seen.into_inner();
            seen.sort_by_key(|range| range.start);
            assert!(seen.iter().all(|range| !range.is_empty() && range.end - range.start <= PIECE));
            let ends = seen.iter().map(|range| range.end);
            assert!(seen.iter().map(|range| range.start).eq(std::iter::once(0).chain(ends).take(seen.len())));
            assert_eq!(seen.last().map_or(0, |range| range.end), bytes);
        }
    }

    #[test]
    fn the_first_error_ends_a_transfer() {
        let calls = AtomicUsize::new(0);
        let failed = for_each_piece(1000 * PIECE, |range, _| {
            calls.fetch_add(1, Ordering::Relaxed);
            let message = range.start.to_string();
            if range.start < 8 * PIECE { Ok(()) } else { Err(Error::InvalidArgument { op: "upload", message }) }
        });
        assert!(failed.is_err());
        // Each thread may have begun another piece.
        assert!(calls.load(Ordering::Relaxed) <= 8 + 2 * MOST_THREADS, "{calls:?}");
    }

    #[test]
    fn scratch_buffers_belong_to_threads() {
        let threads = Mutex::new(HashSet::new());
        for_each_piece(32 * PIECE, |_, scratch| {
            if scratch.is_empty() {
                threads.lock().insert(std::thread::current().id());
                scratch.push(0);
            }
            Ok(())
        })
        .unwrap();
        assert!((1..=MOST_THREADS).contains(&threads.lock().len()));
    }
}
