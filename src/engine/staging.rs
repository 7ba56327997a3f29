//! [`Staging`]: the host's memory through which bytes go to a device and come back.
//!
//! Bytes go in pieces. Several threads fill them, and the device copies one piece while others are filled. A buffer is
//! used again when the batch that copies it has run, so a transfer allocates nothing.

use super::pool::Allocation;
use super::transfer_threads::PIECE;
use crate::base::error::Result;
use crate::base::lock::Mutex;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Uploads of at most this many bytes share a staging buffer.
pub(super) const SMALL: u64 = PIECE / 2;

/// The most staging buffers each way. On an H200, 64 MiB reach the full speed.
const MOST_BUFFERS: usize = 16;

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
