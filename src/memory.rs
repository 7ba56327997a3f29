//! The memory pool: whole backend buffers, cached by size class and reused in the order of the stream.

use crate::device::MemoryKind;
use crate::device::backend::{Backend, BufferId, MemoryUse};
use crate::error::Result;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// A buffer of the backend, freed when the last user is gone: a tensor, the pool, or a batch that has not completed.
pub(crate) struct Allocation {
    backend: Arc<dyn Backend>,
    id: BufferId,
    bytes: u64,
}

impl Allocation {
    pub fn new(backend: &Arc<dyn Backend>, bytes: u64, memory: MemoryUse) -> Result<Arc<Self>> {
        let bytes = bytes.max(1).next_multiple_of(ALIGNMENT);
        let id = backend.allocate(bytes, memory)?;
        Ok(Arc::new(Allocation { backend: backend.clone(), id, bytes }))
    }

    pub fn id(&self) -> BufferId {
        self.id
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.backend.free(self.id);
    }
}

/// Kernels read and write four elements of up to eight bytes at once, also at the end of a buffer.
const ALIGNMENT: u64 = 32;

/// The size of the smallest class.
const SMALLEST_CLASS: u64 = 256;

/// The size that is allocated for `bytes`: eight classes per power of two, so that at most a ninth is lost.
fn size_class(bytes: u64) -> u64 {
    let bytes = bytes.max(SMALLEST_CLASS);
    let step = (1 << bytes.ilog2() >> 3).max(SMALLEST_CLASS);
    bytes.checked_next_multiple_of(step).unwrap_or(bytes)
}

/// How much memory of a device there is in use, from [`Device::memory_stats`](crate::Device::memory_stats).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Bytes of buffers that tensors hold, rounded up to their size classes.
    pub in_use: u64,
    /// Bytes of buffers that wait in the pool to be used again.
    pub cached: u64,
    /// The largest value that `in_use` has had.
    pub peak: u64,
    /// Bytes of device memory that this process may have in all, as far as the driver tells; else all that the device
    /// has, or 0 where not even that is known (WebGPU).
    pub budget: u64,
}

/// Caches buffers for kernels.
///
/// A buffer goes back to the pool when its last tensor is dropped, though commands that use it may not have run: as
/// all commands of a device run in one order, whoever gets it next comes after them.
pub(crate) struct Pool {
    backend: Arc<dyn Backend>,
    state: Mutex<State>,
}

/// What the buffers have in common that may stand for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Class {
    kind: MemoryKind,
    bytes: u64,
}

#[derive(Default)]
struct State {
    cached: HashMap<Class, Vec<Arc<Allocation>>>,
    stats: MemoryStats,
}

impl Pool {
    pub fn new(backend: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Pool { backend, state: Mutex::default() })
    }

    /// A buffer of at least `bytes` bytes with undefined contents, which commands that are recorded next may use.
    pub fn allocate(self: &Arc<Self>, bytes: u64, kind: MemoryKind) -> Result<Buffer> {
        self.allocate_if(bytes, kind, |_| true)
    }

    /// The same, but no command is using the buffer: the host may write it at once.
    pub fn allocate_idle(self: &Arc<Self>, bytes: u64, kind: MemoryKind) -> Result<Buffer> {
        // The stream holds what its commands use until they have run.
        let buffer = self.allocate_if(bytes, kind, |cached| Arc::strong_count(cached) == 1)?;
        // Whoever held it before has done so before the host writes.
        fence(Ordering::Acquire);
        Ok(buffer)
    }

    fn allocate_if(
        self: &Arc<Self>,
        bytes: u64,
        kind: MemoryKind,
        usable: impl Fn(&Arc<Allocation>) -> bool,
    ) -> Result<Buffer> {
        let limits = &self.backend.info().limits;
        let most = if bytes <= limits.max_binding_bytes { limits.max_binding_bytes } else { limits.max_buffer_bytes };
        let class = Class { kind, bytes: size_class(bytes).min(most).max(bytes) };
        let allocation = match self.take_cached(class, usable) {
            Some(allocation) => allocation,
            None => Allocation::new(&self.backend, class.bytes, MemoryUse::Kernels(kind))?,
        };
        let stats = &mut self.state.lock().stats;
        stats.in_use += allocation.bytes;
        stats.peak = stats.peak.max(stats.in_use);
        Ok(Buffer { allocation, pool: self.clone(), class, bytes })
    }

    fn take_cached(&self, class: Class, usable: impl Fn(&Arc<Allocation>) -> bool) -> Option<Arc<Allocation>> {
        let mut state = self.state.lock();
        let cached = state.cached.get_mut(&class)?;
        // The newest first: its memory is the most likely to be in caches.
        let place = cached.iter().rposition(usable)?;
        let allocation = cached.remove(place);
        state.stats.cached -= allocation.bytes;
        Some(allocation)
    }

    /// Drops what is cached. Returns the number of bytes.
    pub fn trim(&self) -> u64 {
        let mut state = self.state.lock();
        let cached = std::mem::take(&mut state.cached);
        let bytes = std::mem::take(&mut state.stats.cached);
        // The backend frees outside of the lock.
        drop(state);
        drop(cached);
        bytes
    }

    pub fn stats(&self) -> MemoryStats {
        MemoryStats { budget: self.backend.budget(), ..self.state.lock().stats }
    }
}

/// A buffer on loan from the pool.
pub(crate) struct Buffer {
    allocation: Arc<Allocation>,
    pool: Arc<Pool>,
    class: Class,
    bytes: u64,
}

impl Buffer {
    pub fn allocation(&self) -> &Arc<Allocation> {
        &self.allocation
    }

    pub fn kind(&self) -> MemoryKind {
        self.class.kind
    }

    /// The number of bytes that were asked for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        state.stats.in_use -= self.allocation.bytes;
        state.stats.cached += self.allocation.bytes;
        state.cached.entry(self.class).or_default().push(self.allocation.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::size_class;

    #[test]
    fn size_classes_waste_little() {
        let mut previous = 0;
        for bytes in (1..100_000).chain([1 << 30, (1 << 30) + 1, 5_000_000_000, u64::MAX]) {
            let class = size_class(bytes);
            assert!(class >= bytes && class >= previous, "{bytes} -> {class}");
            assert!(bytes < 2048 || class - bytes <= bytes / 8, "{bytes} -> {class}");
            assert_eq!(size_class(class), class);
            previous = class;
        }
    }
}
