//! [`Staging`]: the host's memory through which bytes go to a device and come back.
//!
//! Bytes go in pieces. Several threads fill them, and the device copies one piece while others are filled. A buffer is
//! used again when the batch that copies it has run, so a transfer allocates nothing.

use super::pool::Allocation;
use crate::base::error::Result;
use crate::base::lock::Mutex;
use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

/// The bytes of a piece, and of a staging buffer. On an H200 larger pieces are no faster, and smaller ones cost more
/// calls.
pub(super) const PIECE: u64 = 4 << 20;

/// Uploads of at most this many bytes share a staging buffer.
pub(super) const SMALL: u64 = 64 << 10;

/// The most staging buffers each way. On an H200, 64 MiB reach the full speed.
const MOST_BUFFERS: usize = 16;

/// The most threads of a transfer. Eight fill the bus of an H200.
const MOST_THREADS: usize = 8;

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
    Idle(Arc<Allocation>),
    /// The thread may allocate one more.
    New,
    /// All are used by batches, or filled by other threads.
    None,
}

impl Staging {
    /// Takes a buffer out of the ring. [`give_back`](Self::give_back) takes it back.
    pub fn take(&self) -> Taken {
        let mut state = self.state.lock();
        // The stream holds the buffers of its commands until they have run.
        let idle = state.waiting.iter().position(|buffer| Arc::strong_count(buffer) == 1);
        if let Some(buffer) = idle.and_then(|place| state.waiting.remove(place)) {
            // What its last user did with it comes before what the host does now.
            fence(Ordering::Acquire);
            return Taken::Idle(buffer);
        }
        if state.count >= MOST_BUFFERS {
            return Taken::None;
        }
        state.count += 1;
        Taken::New
    }

    /// Puts a buffer into the ring, when its copy has been recorded. A thread that could not allocate gives back
    /// `None`.
    pub fn give_back(&self, buffer: Option<Arc<Allocation>>) {
        let mut state = self.state.lock();
        match buffer {
            Some(buffer) => state.waiting.push_back(buffer),
            None => state.count -= 1,
        }
    }

    /// Finds a place for a small upload: a staging buffer and an offset in it. `take` gets a buffer if the shared one
    /// is full. Then `fill` fills the place, and records its copy.
    pub fn share<T>(
        &self,
        bytes: u64,
        take: impl Fn() -> Result<Arc<Allocation>>,
        fill: impl FnOnce(&Arc<Allocation>, u64) -> Result<T>,
    ) -> Result<T> {
        /// Copies may begin at multiples of this.
        const ALIGNMENT: u64 = 16;
        loop {
            let mut shared = self.shared.lock();
            if let Some((buffer, taken)) = &mut *shared
                && *taken + bytes <= PIECE
            {
                let offset = *taken;
                *taken += bytes.next_multiple_of(ALIGNMENT);
                return fill(buffer, offset);
            }
            let full = shared.take();
            drop(shared);
            self.end_sharing(full);
            // This may wait for the device, or free buffers.
            let next = take()?;
            // Another thread may have taken one meanwhile.
            let other = self.shared.lock().replace((next, 0));
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

/// A staging buffer that a read uses. If the read is given up, or fails, the buffer leaves the ring: the backend may
/// still be busy with it.
pub(super) struct Lent {
    buffer: Option<Arc<Allocation>>,
    ended: bool,
    staging: Arc<Staging>,
}

impl Lent {
    pub fn new(buffer: Arc<Allocation>, staging: &Arc<Staging>) -> Lent {
        Lent { buffer: Some(buffer), ended: false, staging: staging.clone() }
    }

    /// Notes that the backend has done with the buffer.
    pub fn end(mut self) {
        self.ended = true;
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let buffer = self.buffer.take().filter(|_| self.ended);
        self.staging.give_back(buffer);
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

/// Calls `work` for each piece of `bytes` bytes, in several threads if there are many pieces. Each thread has a scratch
/// buffer. Returns the first error that was found, and begins no piece after it.
pub(super) fn for_each_piece(bytes: u64, work: impl Fn(Range<u64>, &mut Vec<u8>) -> Result<()> + Sync) -> Result<()> {
    static CORES: OnceLock<usize> = OnceLock::new();
    let cores = || *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, NonZeroUsize::get));
    let pieces = bytes.div_ceil(PIECE);
    let several = pieces > 1 && cfg!(native) && !cfg!(model_locks);
    let threads = if several { pieces.min(cores().min(MOST_THREADS) as u64) } else { 1 };
    let (next, failed, error) = (AtomicU64::new(0), AtomicBool::new(false), OnceLock::new());
    let work = || {
        let mut scratch = Vec::new();
        while !failed.load(Ordering::Relaxed) {
            let start = next.fetch_add(PIECE, Ordering::Relaxed);
            if start >= bytes {
                return;
            }
            if let Err(found) = work(start..bytes.min(start + PIECE), &mut scratch) {
                failed.store(true, Ordering::Relaxed);
                _ = error.set(found);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // If the system has no thread left, there are fewer.
            _ = std::thread::Builder::new().name("marquetry transfer".into()).spawn_scoped(scope, work);
        }
        work();
    });
    error.into_inner().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::Error;
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
