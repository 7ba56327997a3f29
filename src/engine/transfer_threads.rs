//! [`TransferThreads`]: the threads that fill and empty buffers of the host.

use crate::base::error::{Error, Result};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(native)]
use std::{num::NonZeroUsize, sync::atomic::AtomicUsize};

/// The most bytes of a piece, and the bytes of a staging buffer. On an H200 larger pieces are no faster, and smaller
/// ones cost more calls.
pub(super) const PIECE: u64 = 4 << 20;

/// The least bytes of a piece that the host reads or writes in place, unless there are no more. One thread takes about
/// 20 us for them, and another up to 50 us to wake up and help.
pub(super) const LEAST_IN_PLACE: u64 = 256 << 10;

/// The same for a piece that goes through a staging buffer. Each is a command of its own.
pub(super) const LEAST_STAGED: u64 = 1 << 20;

/// The most threads of a transfer. Eight fill the bus of an H200.
const MOST_THREADS: usize = 8;

/// The threads that help those of the app with transfers. They start with the first transfer of several pieces, and end
/// with the device.
#[derive(Default)]
pub(super) struct TransferThreads {
    /// `None` if the system has no threads left. A browser has none.
    #[cfg(native)]
    helpers: OnceLock<Option<Helpers>>,
}

#[cfg(native)]
struct Helpers {
    pool: rayon_core::ThreadPool,
    /// How many of them help nobody.
    idle: AtomicUsize,
}

/// Some idle helpers, taken until this is dropped.
#[cfg(native)]
struct Taken<'a> {
    helpers: &'a Helpers,
    count: usize,
}

#[cfg(native)]
impl Helpers {
    /// Starts one helper less than there are threads in a transfer.
    fn start() -> Option<Helpers> {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let count = cores.min(MOST_THREADS) - 1;
        let builder = rayon_core::ThreadPoolBuilder::new().num_threads(count);
        let named = builder.thread_name(|_| "marquetry transfer".into());
        // Of 0 threads it would make as many as there are cores.
        let pool = (count > 0).then(|| named.build().ok()).flatten()?;
        Some(Helpers { pool, idle: AtomicUsize::new(count) })
    }

    /// Takes idle helpers, at most `most`. Who waited for others would wait until their whole transfer has ended.
    fn take(&self, most: usize) -> Taken<'_> {
        let rest = |idle: usize| Some(idle.saturating_sub(most));
        let idle = self.idle.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).unwrap_or_default();
        Taken { helpers: self, count: idle.min(most) }
    }
}

#[cfg(native)]
impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.helpers.idle.fetch_add(self.count, Ordering::Relaxed);
    }
}

/// The pieces of a transfer. Its threads take them one by one.
pub(super) struct Pieces {
    bytes: u64,
    /// The bytes of each piece but the last.
    size: u64,
    next: AtomicU64,
    /// The first error that was found.
    error: OnceLock<Error>,
}

impl Pieces {
    fn new(bytes: u64, least: u64) -> Pieces {
        Pieces { bytes, size: piece_size(bytes, least), next: AtomicU64::new(0), error: OnceLock::new() }
    }

    /// Takes the next piece. There is none after an error.
    pub fn take(&self) -> Option<Range<u64>> {
        if self.error.get().is_some() {
            return None;
        }
        let start = self.next.fetch_add(self.size, Ordering::Relaxed);
        (start < self.bytes).then(|| start..self.bytes.min(start + self.size))
    }

    /// Works on pieces, and keeps the first error.
    fn run(&self, work: impl Fn(&Pieces) -> Result<()>) {
        if let Err(found) = work(self) {
            _ = self.error.set(found);
        }
    }

    fn into_result(self) -> Result<()> {
        self.error.into_inner().map_or(Ok(()), Err)
    }
}

/// Returns the bytes of a piece of a transfer. They are a multiple of `least`, so that each thread has a piece, or more
/// of at most [`PIECE`] bytes.
pub(super) fn piece_size(bytes: u64, least: u64) -> u64 {
    bytes.div_ceil(MOST_THREADS as u64).max(1).next_multiple_of(least).min(PIECE)
}

impl TransferThreads {
    /// Calls `work` once in each thread of a transfer of `bytes` bytes in [pieces](piece_size). It has several threads
    /// if it has several pieces. Returns the first error that was found.
    pub fn run(&self, bytes: u64, least: u64, work: impl Fn(&Pieces) -> Result<()> + Sync) -> Result<()> {
        let pieces = Pieces::new(bytes, least);
        #[cfg(native)]
        let taken = self.take_helpers(bytes.div_ceil(pieces.size));
        #[cfg(native)]
        if let Some(taken) = taken.filter(|taken| taken.count > 0) {
            taken.helpers.pool.in_place_scope(|scope| {
                for _ in 0..taken.count {
                    scope.spawn(|_| pieces.run(&work));
                }
                pieces.run(&work);
            });
            return pieces.into_result();
        }
        pieces.run(work);
        pieces.into_result()
    }

    /// Calls `work` for each piece of `bytes` bytes, in the threads of a transfer. Each thread has a scratch buffer.
    /// Returns the first error that was found, and begins no piece after it.
    pub fn for_each_piece(
        &self,
        bytes: u64,
        least: u64,
        work: impl Fn(Range<u64>, &mut Vec<u8>) -> Result<()> + Sync,
    ) -> Result<()> {
        self.run(bytes, least, |pieces| {
            let mut scratch = Vec::new();
            while let Some(piece) = pieces.take() {
                work(piece, &mut scratch)?;
            }
            Ok(())
        })
    }

    /// Takes helpers for a transfer of this many pieces.
    #[cfg(native)]
    fn take_helpers(&self, pieces: u64) -> Option<Taken<'_>> {
        // The models of the locks know their own threads alone.
        if pieces < 2 || cfg!(model_locks) {
            return None;
        }
        let helpers = self.helpers.get_or_init(Helpers::start).as_ref()?;
        Some(helpers.take(pieces.min(MOST_THREADS as u64) as usize - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::lock::Mutex;
    use std::collections::HashSet;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn pieces_cover_all_bytes_once() {
        for bytes in [0, 1, LEAST_IN_PLACE, LEAST_IN_PLACE + 1, PIECE, 9 * PIECE - 5] {
            let seen = Mutex::new(Vec::new());
            let threads = TransferThreads::default();
            threads
                .for_each_piece(bytes, LEAST_IN_PLACE, |range, _| {
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
    fn the_threads_share_a_transfer() {
        const LEAST: u64 = LEAST_STAGED;
        for (bytes, size, pieces) in [
            (0, LEAST, 0),
            (LEAST, LEAST, 1),
            (4 * LEAST, LEAST, 4),
            (9 * LEAST, 2 * LEAST, 5),
            (8 * PIECE, PIECE, 8),
            (9 * PIECE, PIECE, 9),
            (100 * PIECE, PIECE, 100),
        ] {
            assert_eq!((piece_size(bytes, LEAST), bytes.div_ceil(size)), (size, pieces), "{bytes}");
        }
    }

    #[test]
    fn the_first_error_ends_a_transfer() {
        let calls = AtomicUsize::new(0);
        let failed = TransferThreads::default().for_each_piece(1000 * PIECE, LEAST_STAGED, |range, _| {
            calls.fetch_add(1, Ordering::Relaxed);
            let message = range.start.to_string();
            if range.start < 8 * PIECE { Ok(()) } else { Err(Error::InvalidArgument { op: "upload", message }) }
        });
        assert!(failed.is_err());
        // Each thread may have begun another piece.
        assert!(calls.load(Ordering::Relaxed) <= 8 + 2 * MOST_THREADS, "{calls:?}");
    }

    #[cfg(native)]
    #[test]
    fn a_transfer_waits_for_no_other() {
        let helpers =
            Helpers { pool: rayon_core::ThreadPoolBuilder::new().build().unwrap(), idle: AtomicUsize::new(5) };
        let first = helpers.take(3);
        let second = helpers.take(7);
        let third = helpers.take(7);
        assert_eq!([first.count, second.count, third.count], [3, 2, 0]);
        drop(first);
        assert_eq!(helpers.take(7).count, 3);
        drop((second, third));
        assert_eq!(helpers.take(7).count, 5);
    }

    #[test]
    fn scratch_buffers_belong_to_threads() {
        let seen = Mutex::new(HashSet::new());
        TransferThreads::default()
            .for_each_piece(32 * PIECE, LEAST_STAGED, |_, scratch| {
                if scratch.is_empty() {
                    seen.lock().insert(std::thread::current().id());
                    scratch.push(0);
                }
                Ok(())
            })
            .unwrap();
        assert!((1..=MOST_THREADS).contains(&seen.lock().len()));
    }
}
