//! The memory pool: whole backend buffers, kept by size class and reused in the order of the stream.

use crate::backend::contract::{Backend, BufferId, MemoryUse, Ticket};
use crate::backend::info::{DeviceInfo, DeviceKind, MemoryKind};
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::engine::cgroup::{self, Allowance};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};

/// A buffer of the backend. It is freed when its last user is gone: a tensor, the pool, or a batch that has not
/// completed.
pub(crate) struct Allocation {
    backend: Arc<dyn Backend>,
    id: BufferId,
    bytes: u64,
    /// The pool that it returns to, and its class there, if it is from one.
    home: Option<(Arc<Pool>, Class)>,
    /// How many [`Buffer`]s share it, and the bytes that they were asked for.
    loans: AtomicU32,
    lent_bytes: AtomicU64,
    /// The newest recording that holds it.
    recording: AtomicU64,
    /// The newest copy to it by the queue that only copies.
    uploaded: AtomicU64,
    /// Counts the bytes that the backend's budget limits.
    held: Option<Arc<AtomicU64>>,
}

impl Allocation {
    /// Creates a buffer. It is counted in `held` already, and will be taken off when it is freed.
    fn new(
        backend: &Arc<dyn Backend>,
        bytes: u64,
        memory: MemoryUse,
        held: Option<Arc<AtomicU64>>,
        home: Option<(Arc<Pool>, Class)>,
    ) -> Result<Arc<Self>> {
        let bytes = bytes.max(1).next_multiple_of(ALIGNMENT);
        let id = backend.allocate(bytes, memory)?;
        let (backend, (loans, lent_bytes, recording, uploaded)) = (backend.clone(), Default::default());
        Ok(Arc::new(Allocation { backend, id, bytes, home, loans, lent_bytes, recording, uploaded, held }))
    }

    /// Creates a buffer that no pool counts.
    #[cfg(test)]
    pub fn alone(backend: &Arc<dyn Backend>, bytes: u64) -> Result<Arc<Self>> {
        Allocation::new(backend, bytes, MemoryUse::Kernels(MemoryKind::Device), None, None)
    }

    pub fn id(&self) -> BufferId {
        self.id
    }

    /// Notes that a recording is going to hold it. Returns false if it does already. Recordings have unique numbers.
    #[inline]
    pub fn pin(&self, recording: u64) -> bool {
        // Only who records it stores its number, so no more than a load and a store is needed.
        let is_new = self.recording.load(Ordering::Relaxed) != recording;
        if is_new {
            self.recording.store(recording, Ordering::Relaxed);
        }
        is_new
    }

    /// Notes that the queue that only copies is going to write it. Nobody else has it.
    pub fn note_upload(&self, ticket: Ticket) {
        self.uploaded.store(ticket.0, Ordering::Relaxed);
    }

    /// Returns the newest copy to it by the queue that only copies. Whoever uses it waits for that.
    #[inline]
    pub fn uploaded(&self) -> Ticket {
        Ticket(self.uploaded.load(Ordering::Relaxed))
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.backend.free(self.id);
        if let Some(held) = &self.held {
            held.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

/// Kernels read and write four elements of up to eight bytes at once, also at the end of a buffer.
const ALIGNMENT: u64 = 32;

/// Mesa's llvmpipe keeps all memory in one file, which never shrinks. A software device frees kept buffers of this size
/// before it makes a larger one. Else tensors that grow one at a time would each make the file longer.
const LARGE: u64 = 32 << 20;

/// The size of the smallest class.
const SMALLEST_CLASS: u64 = 256;

/// Returns the size to allocate for `bytes`. There are eight classes per power of two, so at most a ninth is lost.
fn size_class(bytes: u64) -> u64 {
    let bytes = bytes.max(SMALLEST_CLASS);
    // A power of two, so no division is needed.
    let step = (1 << bytes.ilog2() >> 3).max(SMALLEST_CLASS);
    bytes.checked_add(step - 1).map_or(bytes, |sum| sum & !(step - 1))
}

/// Returns the largest class of at most `bytes` bytes.
fn class_within(bytes: u64) -> u64 {
    let bytes = bytes.max(SMALLEST_CLASS);
    let step = (1 << bytes.ilog2() >> 3).max(SMALLEST_CLASS);
    bytes / step * step
}

/// How much memory of a device is in use, from [`Device::memory_stats`](crate::Device::memory_stats).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Bytes of buffers that tensors and captured [steps](crate::Step) hold. A tensor may hold a buffer of less than
    /// twice its size.
    pub in_use: u64,
    /// Bytes of buffers that wait in the pool for reuse: at most the recent peak of `in_use`, and together with
    /// `in_use` at most one and a half times that peak. If work asks again and again for sizes of 1 MiB or more that
    /// were freed, the pool keeps them too, up to twice the peak more.
    pub cached: u64,
    /// The largest value that `in_use` has had.
    pub peak: u64,
    /// Bytes of device memory that this process may have in all, as the driver tells. If the driver does not tell, all
    /// memory of the device, or 0 if that is unknown too (WebGPU). On a software device, at most what the process's
    /// container (Linux control group) leaves. At most the limit that the app has set.
    pub budget: u64,
    /// Bytes of device memory that have been taken from the driver. Where buffers share blocks (Vulkan), some of them
    /// lie between buffers, or in blocks that are not full. Elsewhere these are the bytes of all buffers. On a software
    /// device, staging memory is part of them; on a GPU, tensors in the host's memory are not.
    pub reserved: u64,
}

/// Keeps the buffers of kernels for reuse.
///
/// A buffer returns to the pool when its last tensor is dropped, even if commands that use it have not run. All
/// commands of a device run in one order, so the commands of the next user run later.
///
/// The pool keeps no more bytes than the recent peak of the bytes in use ([`Peak`]), and with those in use no more than
/// one and a half times as many. It frees the buffers first that it has kept longest. Work that repeats and takes many
/// sizes in turn would have the driver make each of them again and again. So the pool keeps more for such work
/// ([`Repeated`]).
///
/// A buffer holds its pool, and the pool holds the buffers that it keeps. Its [owner](PoolOwner) ends that.
pub(crate) struct Pool {
    backend: Arc<dyn Backend>,
    /// Whether the device's memory is the process's own.
    is_software: bool,
    /// The bytes of the largest buffer that can be bound as a whole, and of the largest one.
    max_binding_bytes: u64,
    max_buffer_bytes: u64,
    /// Whether it keeps every buffer until it is dropped.
    keeps_all: bool,
    /// Bytes of all live allocations in the memory that the budget limits.
    held: Arc<AtomicU64>,
    /// The most of these bytes that the app allows.
    limit: Arc<AtomicU64>,
    state: Mutex<State>,
}

/// No limit of the app.
const NO_LIMIT: u64 = u64::MAX;

/// What buffers have in common that can replace each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Class {
    kind: MemoryKind,
    bytes: u64,
}

/// A buffer in the pool.
struct Cached {
    allocation: Arc<Allocation>,
    /// How many buffers had come back before it.
    number: u64,
}

impl Cached {
    /// Whether no command uses it. The stream holds the buffers of its commands until they have run.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.allocation) == 1
    }
}

/// Closes a pool when it is dropped. A closed pool keeps no buffer.
pub(crate) struct PoolOwner(Arc<Pool>);

impl PoolOwner {
    /// Makes an empty pool.
    pub fn new(backend: Arc<dyn Backend>) -> PoolOwner {
        let DeviceInfo { kind, limits, .. } = backend.info();
        PoolOwner(Arc::new(Pool {
            is_software: *kind == DeviceKind::Cpu,
            max_binding_bytes: limits.max_binding_bytes,
            max_buffer_bytes: limits.max_buffer_bytes,
            backend,
            keeps_all: false,
            held: Arc::default(),
            limit: Arc::new(AtomicU64::new(NO_LIMIT)),
            state: Mutex::default(),
        }))
    }
}

impl Deref for PoolOwner {
    type Target = Arc<Pool>;
    fn deref(&self) -> &Arc<Pool> {
        &self.0
    }
}

impl Drop for PoolOwner {
    fn drop(&mut self) {
        self.state.lock().is_closed = true;
        self.trim();
    }
}

#[derive(Default)]
struct State {
    /// Whether its owner has closed it.
    is_closed: bool,
    /// In each class the newest is last.
    cached: BTreeMap<Class, VecDeque<Cached>>,
    returned: u64,
    /// Buffers that the pool has given up and batches in flight may still hold.
    given_up: Vec<Weak<Allocation>>,
    repeated: Repeated,
    peak: Peak,
    budget: Budget,
    stats: MemoryStats,
    /// Bytes of captured programs.
    programs: u64,
    /// Loads that are going on (see [`Loading`]), and how many buffers had come back before the first of them.
    loads: u32,
    returned_before_loads: u64,
}

/// A load of buffers that will stay. New buffers get no more bytes than are asked for, until this is dropped. Then the
/// pool frees what has come back to it meanwhile.
pub(crate) struct Loading {
    pool: Arc<Pool>,
}

impl Drop for Loading {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        state.loads -= 1;
        let (is_last, before) = (state.loads == 0, state.returned_before_loads);
        let mut dropped = Vec::new();
        while is_last && let Some(oldest) = state.take_oldest(|_, cached| cached.number >= before) {
            state.note_given_up(&oldest);
            dropped.push(oldest);
        }
        // The backend frees outside of the lock.
        drop(state);
        drop(dropped);
        if is_last {
            self.pool.backend.foresee(0);
        }
    }
}

/// The recent peak of the bytes in use: over the last [`Peak::WINDOW`] requests for a buffer, and at most as many
/// before.
#[derive(Default)]
struct Peak {
    this: u64,
    last: u64,
    requests: u32,
}

impl Peak {
    /// Enough for many steps of a model.
    const WINDOW: u32 = 4096;

    /// Returns whether a window begins.
    fn note(&mut self, in_use: u64) -> bool {
        let begins = self.requests == Peak::WINDOW;
        if begins {
            *self = Peak { this: 0, last: self.this, requests: 0 };
        }
        self.requests += 1;
        self.this = self.this.max(in_use);
        begins
    }

    fn bytes(&self) -> u64 {
        self.this.max(self.last)
    }
}

/// The classes that were given up in this window of requests, and what is kept beyond the peak because such classes
/// were asked for again.
#[derive(Default)]
struct Repeated {
    given_up: BTreeMap<Class, u32>,
    bytes: u64,
}

impl Repeated {
    /// A class that was given up as often is likely to be asked for again.
    const OFTEN: u32 = 2;

    /// Smaller buffers take a driver little time.
    const SMALLEST: u64 = 1 << 20;

    fn note_given_up(&mut self, class: Class) {
        if class.bytes >= Repeated::SMALLEST {
            *self.given_up.entry(class).or_default() += 1;
        }
    }

    /// Notes that the driver makes a buffer of a class.
    fn note_made(&mut self, class: Class, peak: u64) {
        if self.given_up.get(&class).is_some_and(|&times| times >= Repeated::OFTEN) {
            self.given_up.remove(&class);
            self.bytes = (self.bytes + class.bytes).min(2 * peak);
        }
    }

    /// Forgets half, as work may have changed.
    fn begin_window(&mut self) {
        self.given_up.clear();
        self.bytes /= 2;
    }
}

/// The budget when it was last asked for. Asking takes a driver up to 46 us (NVIDIA's, on an H200), more than a small
/// allocation.
#[derive(Clone, Copy, Default)]
struct Budget {
    /// `None` if it is unknown.
    bytes: Option<u64>,
    asked: bool,
    /// Bytes held when it was asked for.
    held: u64,
    /// The most bytes that the container was seen to use besides those that were taken from the driver. These count as
    /// used only once they are written, so a single look may show too few.
    others: u64,
}

impl Budget {
    /// A change that matters only if memory is scarce.
    const LITTLE: u64 = 16 << 20;

    /// Whether the answer may have changed enough to matter.
    fn is_stale(&self, held: u64) -> bool {
        let is_scarce = self.bytes.is_some_and(|bytes| held > bytes / 4 * 3);
        let much = self.bytes.map_or(0, |bytes| bytes / 16).max(Budget::LITTLE);
        !self.asked || is_scarce || held.abs_diff(self.held) > much
    }

    /// Stores what the driver tells (0: nothing) and, for a software device, what its container allows: also for what
    /// has been `reserved` beyond the bytes `held`.
    fn update(&mut self, told: u64, held: u64, reserved: u64, allowance: Option<Allowance>) {
        (self.asked, self.held) = (true, held);
        self.bytes = (told > 0).then_some(told);
        if let Some(Allowance { limit, usage }) = allowance {
            self.others = self.others.max(usage.saturating_sub(reserved));
            // A sixteenth is left for the host, for example for kernels that it compiles.
            let left = limit.saturating_sub(limit / 16 + self.others + reserved.saturating_sub(held));
            self.bytes = Some(self.bytes.map_or(left, |told| told.min(left)));
        }
    }
}

impl State {
    fn lend(&mut self, allocation: Arc<Allocation>, bytes: u64) -> Buffer {
        self.stats.in_use += allocation.bytes;
        self.note_peak();
        if self.peak.note(self.stats.in_use) {
            self.repeated.begin_window();
        }
        allocation.loans.store(1, Ordering::Relaxed);
        allocation.lent_bytes.store(bytes, Ordering::Relaxed);
        Buffer { allocation }
    }

    fn note_peak(&mut self) {
        self.stats.peak = self.stats.peak.max(self.stats.in_use + self.programs);
    }

    /// Removes the buffer that was kept longest, among the ones that `may_go`.
    fn take_oldest(&mut self, may_go: impl Fn(&Class, &Cached) -> bool) -> Option<Arc<Allocation>> {
        let oldest = |(class, cached): (&Class, &VecDeque<Cached>)| {
            let place = cached.iter().position(|cached| may_go(class, cached))?;
            Some((cached[place].number, *class, place))
        };
        let (_, class, place) = self.cached.iter().filter_map(oldest).min()?;
        self.take(class, place)
    }

    fn take(&mut self, class: Class, place: usize) -> Option<Arc<Allocation>> {
        let taken = self.cached.get_mut(&class)?.remove(place)?.allocation;
        self.stats.cached -= taken.bytes;
        Some(taken)
    }

    /// Gives up the buffers beyond the bound, and those that make `held` bytes more than `limit`. The caller drops them
    /// after it has unlocked the state.
    fn shrink(&mut self, mut held: u64, limit: u64) -> Vec<Arc<Allocation>> {
        let mut dropped = Vec::new();
        let (peak, more) = (self.peak.bytes(), self.repeated.bytes);
        let most = |stats: &MemoryStats| more + peak.min((peak + peak / 2).saturating_sub(stats.in_use));
        while self.stats.cached > most(&self.stats) || held > limit {
            let Some(oldest) = self.take_oldest(|_, _| true) else { break };
            held = held.saturating_sub(oldest.bytes);
            self.note_given_up(&oldest);
            dropped.push(oldest);
        }
        dropped
    }

    fn note_given_up(&mut self, allocation: &Arc<Allocation>) {
        if let Some((_, class)) = &allocation.home {
            self.repeated.note_given_up(*class);
        }
        if Arc::strong_count(allocation) > 1 {
            self.given_up.push(Arc::downgrade(allocation));
        }
    }

    /// Returns the bytes that were given up and that batches in flight still hold.
    fn bytes_given_up(&mut self) -> u64 {
        self.given_up.retain(|allocation| allocation.strong_count() > 0);
        self.given_up.iter().filter_map(Weak::upgrade).map(|allocation| allocation.bytes).sum()
    }
}

impl Pool {
    /// Returns an empty pool for the same device. It keeps every buffer until it is closed.
    pub fn apart(&self) -> PoolOwner {
        PoolOwner(Arc::new(Pool {
            backend: self.backend.clone(),
            keeps_all: true,
            held: self.held.clone(),
            limit: self.limit.clone(),
            state: Mutex::default(),
            ..*self
        }))
    }

    /// Counts the bytes of a program's pool as in use, until the answer is dropped.
    pub fn count(self: &Arc<Self>, other: &Pool) -> Counted {
        let MemoryStats { in_use, cached, .. } = other.state.lock().stats;
        let (bytes, state) = (in_use + cached, &mut *self.state.lock());
        state.programs += bytes;
        state.note_peak();
        Counted { bytes, pool: self.clone() }
    }

    /// Begins a load of buffers of `bytes` bytes in all, or of an unknown number (0).
    pub fn load(self: &Arc<Self>, bytes: u64) -> Loading {
        let mut state = self.state.lock();
        if state.loads == 0 {
            state.returned_before_loads = state.returned;
        }
        state.loads += 1;
        drop(state);
        if bytes > 0 {
            self.backend.foresee(bytes);
        }
        Loading { pool: self.clone() }
    }

    /// Whether a load is going on.
    pub fn is_loading(&self) -> bool {
        self.state.lock().loads > 0
    }

    /// Returns a kept buffer of at least `bytes` bytes, and of less than twice the size of their class. Its contents
    /// are undefined. Commands that are recorded next may use it.
    pub fn reuse(&self, bytes: u64, kind: MemoryKind) -> Option<Buffer> {
        // The newest of a class, because its memory is most likely in caches.
        self.reuse_if(bytes, kind, |cached| cached.len().checked_sub(1))
    }

    /// The same, but no command uses the buffer, so the host may write it at once.
    pub fn reuse_idle(&self, bytes: u64, kind: MemoryKind) -> Option<Buffer> {
        let buffer = self.reuse_if(bytes, kind, |cached| cached.iter().position(Cached::is_idle))?;
        // The oldest is idle first. What previous holders did with it comes before the host's writes.
        fence(Ordering::Acquire);
        Some(buffer)
    }

    /// `find` returns the place of a suitable buffer among the kept ones of a class.
    fn reuse_if(
        &self,
        bytes: u64,
        kind: MemoryKind,
        find: impl Fn(&VecDeque<Cached>) -> Option<usize>,
    ) -> Option<Buffer> {
        let mut state = self.state.lock();
        let class = self.class_during(&state, bytes, kind);
        // Less than twice: else a tensor of halves would hold the buffer of the `f32` tensor that it was made from.
        let most = match state.loads {
            0 => class.bytes.saturating_mul(2).saturating_sub(1),
            _ => bytes.saturating_add(bytes / 32),
        };
        // Most often there is one of the class.
        if let Some(cached) = state.cached.get_mut(&class)
            && let Some(found) = find(cached).and_then(|place| cached.remove(place))
        {
            state.stats.cached -= found.allocation.bytes;
            return Some(state.lend(found.allocation, bytes));
        }
        let find = |(class, cached): (&Class, &VecDeque<Cached>)| Some((*class, find(cached)?));
        let most = most.min(self.largest_for(bytes)).max(class.bytes);
        let (class, place) = state.cached.range(Class { kind, bytes }..=Class { kind, bytes: most }).find_map(find)?;
        let allocation = state.take(class, place)?;
        Some(state.lend(allocation, bytes))
    }

    /// Returns a new buffer of at least `bytes` bytes, with undefined contents. It fails as `allocate_apart` does.
    pub fn allocate(self: &Arc<Self>, bytes: u64, kind: MemoryKind) -> Result<Buffer> {
        let state = self.state.lock();
        let (mut class, loads) = (self.class_during(&state, bytes, kind), state.loads > 0);
        drop(state);
        let size = class.bytes;
        if loads && size <= self.max_binding_bytes {
            // It returns to the class below its size, so that there are few classes. A buffer that is too large to be
            // bound keeps its size as its class: it must not serve a request for one that can be bound.
            class.bytes = class_within(size);
        }
        let allocation = self.allocate_with(size, MemoryUse::Kernels(kind), Some((self.clone(), class)))?;
        let mut state = self.state.lock();
        let buffer = state.lend(allocation, bytes);
        let peak = state.peak.bytes();
        state.repeated.note_made(class, peak);
        let given_up = self.shrink(&mut state);
        // The backend frees outside of the lock.
        drop(state);
        drop(given_up);
        Ok(buffer)
    }

    /// Returns a buffer that does not return to the pool by itself. It is for data that the host writes once, or reads
    /// once.
    ///
    /// # Errors
    /// `OutOfMemory` if the driver has no more memory, or beyond the app's limit. On a software device also beyond the
    /// budget: its driver would take more than the process may have, and the system would kill the process.
    pub fn allocate_apart(&self, bytes: u64, memory: MemoryUse) -> Result<Arc<Allocation>> {
        self.allocate_with(bytes, memory, None)
    }

    /// The same for a buffer that returns `home`.
    fn allocate_with(
        &self,
        bytes: u64,
        memory: MemoryUse,
        home: Option<(Arc<Pool>, Class)>,
    ) -> Result<Arc<Allocation>> {
        let of_the_device = match memory {
            MemoryUse::Kernels(kind) => self.is_of_the_device(kind),
            _ => self.is_software,
        };
        if !of_the_device {
            return Allocation::new(&self.backend, bytes, memory, None, home);
        }
        let limit = if self.is_software { self.known_budget() } else { self.limited(None) };
        let (limit, bytes) = (limit.unwrap_or(NO_LIMIT), bytes.max(1).next_multiple_of(ALIGNMENT));
        // It counts before it is there, so that threads do not exceed the limit together.
        let add = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= limit);
        if let Err(held) = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            return Err(Error::OutOfMemory { requested: bytes, in_use: held, limit });
        }
        let allocated = Allocation::new(&self.backend, bytes, memory, Some(self.held.clone()), home);
        allocated.inspect_err(|_| _ = self.held.fetch_sub(bytes, Ordering::Relaxed))
    }

    /// Prepares for a new buffer of `bytes` bytes: if the budget has no room for it, gives up kept buffers that are
    /// idle. A software device gives up large ones before it gets a larger one. Returns whether batches in flight hold
    /// memory that is wanted, or more than the pool may keep. Then waiting helps.
    pub fn make_room(&self, bytes: u64, kind: MemoryKind) -> bool {
        let bytes = self.class(bytes, kind).bytes;
        let budget = if self.is_of_the_device(kind) { self.known_budget() } else { None };
        let mut state = self.state.lock();
        let given_up = state.bytes_given_up();
        let mut waiting = given_up > state.peak.bytes();
        let (mut held, mut dropped) = (self.held(), Vec::new());
        loop {
            let is_scarce = budget.is_some_and(|budget| held.saturating_add(bytes) > budget);
            let sizes = match is_scarce {
                true => 0..u64::MAX,
                false if self.is_software => LARGE..bytes,
                false => break,
            };
            let is_wanted = |class: &Class| self.is_of_the_device(class.kind) && sizes.contains(&class.bytes);
            match state.take_oldest(|class, cached| is_wanted(class) && cached.is_idle()) {
                Some(oldest) => {
                    held = held.saturating_sub(oldest.bytes);
                    dropped.push(oldest);
                }
                None => {
                    let mut kept = state.cached.iter().filter(|(class, _)| is_wanted(class));
                    let is_used = kept.any(|(_, cached)| cached.iter().any(|cached| !cached.is_idle()));
                    waiting |= is_used || is_scarce && given_up > 0;
                    break;
                }
            }
        }
        // The backend frees outside of the lock.
        drop(state);
        drop(dropped);
        waiting
    }

    /// Returns the bytes of the largest buffer that a request for `bytes` bytes may get.
    fn largest_for(&self, bytes: u64) -> u64 {
        let most = if bytes <= self.max_binding_bytes { self.max_binding_bytes } else { self.max_buffer_bytes };
        most / ALIGNMENT * ALIGNMENT
    }

    fn class(&self, bytes: u64, kind: MemoryKind) -> Class {
        Class { kind, bytes: size_class(bytes).min(self.largest_for(bytes)).max(bytes) }
    }

    /// The same, or no more than what is asked for during a load.
    fn class_during(&self, state: &State, bytes: u64, kind: MemoryKind) -> Class {
        let exact = Class { kind, bytes: bytes.max(SMALLEST_CLASS) };
        if state.loads > 0 { exact } else { self.class(bytes, kind) }
    }

    /// Whether the budget limits memory of a kind.
    fn is_of_the_device(&self, kind: MemoryKind) -> bool {
        kind != MemoryKind::Host || self.is_software
    }

    /// Returns the bytes of all live allocations in the memory that the budget limits.
    fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns the bytes of device memory that have been taken from the driver.
    fn reserved(&self) -> u64 {
        self.backend.reserved().unwrap_or_else(|| self.held())
    }

    /// Returns the budget, or `None` if it is unknown. Asks for it anew if it may have changed.
    fn known_budget(&self) -> Option<u64> {
        let known = self.state.lock().budget;
        if known.is_stale(self.held()) { self.budget() } else { self.limited(known.bytes) }
    }

    /// Returns a budget, or the app's limit if that is less.
    fn limited(&self, budget: Option<u64>) -> Option<u64> {
        match self.limit.load(Ordering::Relaxed) {
            NO_LIMIT => budget,
            limit => Some(budget.map_or(limit, |budget| budget.min(limit))),
        }
    }

    /// Limits the bytes that the budget counts. Gives up the kept buffers beyond the limit.
    pub fn set_limit(&self, bytes: Option<u64>) {
        self.limit.store(bytes.unwrap_or(NO_LIMIT), Ordering::Relaxed);
        let given_up = self.shrink(&mut self.state.lock());
        drop(given_up);
    }

    /// See [`State::shrink`].
    fn shrink(&self, state: &mut State) -> Vec<Arc<Allocation>> {
        if self.keeps_all {
            return Vec::new();
        }
        state.shrink(self.held(), self.limit.load(Ordering::Relaxed))
    }

    /// Asks for the budget: what the driver tells. On a software device it is at most what its container leaves the
    /// process.
    fn budget(&self) -> Option<u64> {
        let (told, held) = (self.backend.budget(), self.held());
        let reserved = self.reserved();
        let allowance = if self.is_software { cgroup::allowance() } else { None };
        let budget = &mut self.state.lock().budget;
        budget.update(told, held, reserved, allowance);
        self.limited(budget.bytes)
    }

    /// Drops all kept buffers. Returns their bytes.
    pub fn trim(&self) -> u64 {
        let mut state = self.state.lock();
        let cached = std::mem::take(&mut state.cached);
        let bytes = std::mem::take(&mut state.stats.cached);
        state.budget = Budget::default();
        // The backend frees outside of the lock.
        drop(state);
        drop(cached);
        bytes
    }

    pub fn stats(&self) -> MemoryStats {
        let (budget, reserved) = (self.budget().unwrap_or(0), self.reserved());
        let state = self.state.lock();
        MemoryStats { budget, reserved, in_use: state.stats.in_use + state.programs, ..state.stats }
    }
}

/// Bytes of a program's pool that count as in use.
pub(crate) struct Counted {
    bytes: u64,
    pool: Arc<Pool>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.pool.state.lock().programs -= self.bytes;
    }
}

/// A buffer on loan from a pool. A clone is a second loan of the same buffer, which goes back to the pool after both.
pub(crate) struct Buffer {
    allocation: Arc<Allocation>,
}

impl Buffer {
    pub fn allocation(&self) -> &Arc<Allocation> {
        &self.allocation
    }

    pub fn kind(&self) -> MemoryKind {
        self.allocation.home.as_ref().map_or(MemoryKind::Device, |(_, class)| class.kind)
    }

    /// Returns how many loans of the buffer there are.
    pub fn loans(&self) -> u32 {
        self.allocation.loans.load(Ordering::Acquire)
    }

    /// Whether neither a batch in flight, nor one that is being recorded, uses the buffer, nor any other tensor.
    pub fn is_unused(&self) -> bool {
        // Who has the only loan is the only one who could make another, or record a use.
        let is_unused = self.loans() == 1 && Arc::strong_count(&self.allocation) == 1;
        if is_unused {
            fence(Ordering::Acquire);
        }
        is_unused
    }

    /// Whether the buffer is on loan from this pool.
    pub fn is_of(&self, pool: &Arc<Pool>) -> bool {
        self.allocation.home.as_ref().is_some_and(|(home, _)| Arc::ptr_eq(home, pool))
    }

    /// The number of bytes that were asked for.
    pub fn bytes(&self) -> u64 {
        self.allocation.lent_bytes.load(Ordering::Relaxed)
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Buffer {
        self.allocation.loans.fetch_add(1, Ordering::Relaxed);
        Buffer { allocation: self.allocation.clone() }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // If this is the only loan, nobody can make another meanwhile.
        if self.loans() > 1 && self.allocation.loans.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let Some((pool, class)) = &self.allocation.home else { return };
        let mut state = pool.state.lock();
        state.stats.in_use -= self.allocation.bytes;
        if state.is_closed {
            return;
        }
        state.stats.cached += self.allocation.bytes;
        let number = state.returned;
        state.returned += 1;
        let cached = Cached { allocation: self.allocation.clone(), number };
        state.cached.entry(*class).or_default().push_back(cached);
        let given_up = pool.shrink(&mut state);
        drop(state);
        drop(given_up);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::stream::tests::Lazy;

    const KIB: u64 = 1 << 10;

    fn pool(kind: DeviceKind, budget: u64) -> (Arc<Lazy>, PoolOwner) {
        let lazy = Arc::new(Lazy::new(kind, budget));
        (lazy.clone(), PoolOwner::new(lazy))
    }

    fn bytes_of(lazy: &Lazy) -> u64 {
        lazy.bytes.load(Ordering::Relaxed)
    }

    /// As the runtime does it, without a stream.
    fn get(pool: &Arc<Pool>, bytes: u64) -> Buffer {
        let kept = pool.reuse(bytes, MemoryKind::Device);
        kept.unwrap_or_else(|| {
            pool.make_room(bytes, MemoryKind::Device);
            pool.allocate(bytes, MemoryKind::Device).unwrap()
        })
    }

    #[test]
    fn sizes_that_grow_leave_no_more_behind_than_was_in_use() {
        let (lazy, pool) = pool(DeviceKind::Discrete, 0);
        for i in 1..=200 {
            let pair = [get(&pool, i * 100 * KIB), get(&pool, i * 50 * KIB)];
            drop(pair);
            let MemoryStats { cached, peak, .. } = pool.stats();
            assert!(cached <= peak, "{cached} bytes are kept for a peak of {peak}");
            assert_eq!(bytes_of(&lazy), cached, "what is not kept is freed");
        }
        let kept = pool.stats().cached;
        assert_eq!((pool.trim(), pool.stats().cached, bytes_of(&lazy)), (kept, 0, 0));
    }

    /// As a network whose layers differ in size.
    #[test]
    fn sizes_that_come_again_and_again_are_made_a_few_times() {
        let (lazy, pool) = pool(DeviceKind::Discrete, 0);
        let run = || {
            let mut before = get(&pool, 2 << 20);
            for size in [20, 6, 14, 2, 10, 4] {
                before = get(&pool, size << 20);
            }
            drop(before);
        };
        let made = || lazy.allocations.load(Ordering::Relaxed);
        (0..6).for_each(|_| run());
        let at_first = made();
        (0..20).for_each(|_| run());
        assert_eq!(made(), at_first, "nothing is made any more");
        let MemoryStats { cached, peak, .. } = pool.stats();
        assert!(cached > peak && cached <= 3 * peak, "{cached} bytes are kept for a peak of {peak}");
        // Other work for some windows.
        (0..5 * Peak::WINDOW).for_each(|_| drop(get(&pool, KIB)));
        assert!(pool.stats().cached < 4 << 20, "{} bytes are kept for nothing", pool.stats().cached);
    }

    #[test]
    fn a_peak_of_long_ago_does_not_count() {
        let (lazy, pool) = pool(DeviceKind::Discrete, 0);
        drop([get(&pool, 100 << 20), get(&pool, KIB)]);
        for _ in 2..2 * Peak::WINDOW {
            drop(get(&pool, KIB));
            assert!(pool.stats().cached >= 100 << 20);
        }
        drop(get(&pool, KIB));
        assert_eq!((pool.stats().cached, bytes_of(&lazy)), (KIB, KIB));
        assert!(pool.stats().peak >= 100 << 20, "the statistics keep it");
    }

    #[test]
    fn a_larger_buffer_is_taken_rather_than_none() {
        let (lazy, pool) = pool(DeviceKind::Discrete, 0);
        let [small, large] = [get(&pool, 600 * KIB), get(&pool, 1024 * KIB)];
        let [small_id, large_id] = [&small, &large].map(|buffer| buffer.allocation().id());
        drop((small, large));
        let reuse = |bytes| pool.reuse(bytes, MemoryKind::Device);
        let first = reuse(520 * KIB).unwrap();
        assert_eq!(first.allocation().id(), small_id, "the smallest that will do");
        assert_eq!(first.bytes(), 520 * KIB);
        let second = reuse(520 * KIB).unwrap();
        assert_eq!(second.allocation().id(), large_id);
        assert!(reuse(520 * KIB).is_none());
        drop((first, second));
        assert!(reuse(300 * KIB).is_none(), "halves leave the buffer of their originals alone");
        assert!(reuse(250 * KIB).is_none());
        assert!(pool.reuse(600 * KIB, MemoryKind::Host).is_none());
        assert_eq!(pool.stats().cached, bytes_of(&lazy));
    }

    #[test]
    fn no_buffer_that_cannot_be_bound_stands_for_one_that_can() {
        let mut lazy = Lazy::new(DeviceKind::Discrete, 0);
        lazy.info.limits.max_binding_bytes = 1000 * KIB;
        let pool = PoolOwner::new(Arc::new(lazy));
        drop(get(&pool, 1200 * KIB));
        assert!(pool.reuse(1000 * KIB, MemoryKind::Device).is_none());
        assert!(pool.reuse(1100 * KIB, MemoryKind::Device).is_some());
    }

    #[test]
    fn what_batches_hold_is_waited_for_when_it_is_too_much() {
        let (_, pool) = pool(DeviceKind::Discrete, 0);
        let mut batches = Vec::new();
        let mut step = |size: u64| {
            let buffer = get(&pool, size * KIB);
            batches.push(buffer.allocation().clone());
            drop(buffer);
            batches.len()
        };
        // Each is larger than twice the one before, so that none can replace another.
        for size in [1000, 2100, 4300] {
            step(size);
            assert!(!pool.make_room(KIB, MemoryKind::Device));
        }
        for size in [1900, 1800, 1700] {
            step(size);
        }
        while !pool.make_room(KIB, MemoryKind::Device) {
            let steps = step(4100);
            assert!(steps < 20, "bytes that were given up are counted");
            step(600);
        }
        batches.clear();
        assert!(!pool.make_room(KIB, MemoryKind::Device));
    }

    #[test]
    fn a_container_leaves_what_others_do_not_use() {
        let mut budget = Budget::default();
        assert!(budget.is_stale(0));
        budget.update(0, 0, 0, None);
        assert_eq!((budget.bytes, budget.is_stale(Budget::LITTLE)), (None, false));
        assert!(budget.is_stale(Budget::LITTLE + 1));
        budget.update(1 << 40, 0, 0, Some(Allowance { limit: 16 << 30, usage: 3 << 30 }));
        assert_eq!(budget.bytes, Some(12 << 30));
        // Held bytes that have not been written are not in use yet, and hide nothing.
        budget.update(1 << 40, 8 << 30, 8 << 30, Some(Allowance { limit: 16 << 30, usage: 4 << 30 }));
        assert_eq!((budget.bytes, budget.is_stale(8 << 30), budget.is_stale(10 << 30)), (Some(12 << 30), false, true));
        budget.update(1 << 30, 8 << 30, 8 << 30, Some(Allowance { limit: 16 << 30, usage: 12 << 30 }));
        assert_eq!(budget.bytes, Some(1 << 30));
        budget.update(0, 0, 0, Some(Allowance { limit: 16 << 30, usage: 20 << 30 }));
        assert_eq!(budget.bytes, Some(0), "a full container leaves nothing");
        let mut budget = Budget::default();
        budget.update(0, 1 << 30, 4 << 30, Some(Allowance { limit: 16 << 30, usage: 5 << 30 }));
        assert_eq!(budget.bytes, Some(11 << 30), "what blocks waste is used");
    }

    #[test]
    fn sizes_next_to_the_limits_are_whole_and_within() {
        let mut lazy = Lazy::new(DeviceKind::Discrete, 0);
        (lazy.info.limits.max_binding_bytes, lazy.info.limits.max_buffer_bytes) = (1000 * KIB + 16, 4000 * KIB + 16);
        let pool = PoolOwner::new(Arc::new(lazy));
        for (bytes, most) in [(1000 * KIB - 5, 1000 * KIB), (4000 * KIB - 1, 4000 * KIB)] {
            let class = pool.class(bytes, MemoryKind::Device).bytes;
            assert!((bytes..=most).contains(&class) && class.is_multiple_of(ALIGNMENT), "{bytes}: {class}");
        }
    }

    #[test]
    fn the_budget_makes_room() {
        let (lazy, pool) = pool(DeviceKind::Discrete, 10_000 * KIB);
        let in_use = get(&pool, 4_000 * KIB);
        drop([get(&pool, 3_000 * KIB), get(&pool, 1_000 * KIB)]);
        assert!(!pool.make_room(1_000 * KIB, MemoryKind::Device));
        assert!(pool.stats().cached >= 4_000 * KIB, "there is room");
        assert!(!pool.make_room(4_500 * KIB, MemoryKind::Device));
        assert!(bytes_of(&lazy) + 4_500 * KIB <= 10_000 * KIB, "{} bytes are held", bytes_of(&lazy));
        assert!(!pool.make_room(7_000 * KIB, MemoryKind::Device), "no batch holds what is missing");
        assert_eq!(pool.stats().cached, 0);
        let recorded = get(&pool, 2_000 * KIB);
        let batch = recorded.allocation().clone();
        drop(recorded);
        assert!(pool.make_room(5_000 * KIB, MemoryKind::Device), "a batch does");
        drop(batch);
        assert!(!pool.make_room(5_000 * KIB, MemoryKind::Device));
        // A GPU's driver may find room elsewhere. If it does not, it says so itself.
        pool.allocate(7_000 * KIB, MemoryKind::Device).unwrap();
        drop(in_use);
    }

    #[test]
    fn a_software_device_takes_no_more_than_its_budget() {
        let (_, pool) = pool(DeviceKind::Cpu, 10_000 * KIB);
        let kept = get(&pool, 4_000 * KIB);
        for error in [
            pool.allocate(7_000 * KIB, MemoryKind::Host).err().unwrap(),
            pool.allocate_apart(7_000 * KIB, MemoryUse::Upload).err().unwrap(),
        ] {
            let Error::OutOfMemory { requested, in_use, limit } = error else { panic!("{error}") };
            assert!(requested >= 7_000 * KIB && in_use >= 4_000 * KIB && limit == 10_000 * KIB, "{error}");
        }
        pool.allocate(5_000 * KIB, MemoryKind::Host).unwrap();
        drop(kept);
    }

    #[test]
    fn a_load_takes_what_it_asks_for_and_leaves_nothing() {
        let (lazy, pool) = pool(DeviceKind::Discrete, 0);
        let size = 1000 * KIB + 32;
        drop(get(&pool, 200 * KIB));
        let before = bytes_of(&lazy);
        let [first, second] = [pool.load(0), pool.load(0)];
        let kept = get(&pool, size);
        drop(get(&pool, 2 * size));
        assert_eq!(bytes_of(&lazy), before + 3 * size, "no more than asked for");
        drop(first);
        assert_eq!(bytes_of(&lazy), before + 3 * size, "another load goes on");
        drop(second);
        assert_eq!((bytes_of(&lazy), pool.stats().cached), (before + size, before), "what was there before stays");
        drop(kept);
        // Its class is the one below its size, so it serves that.
        assert!(pool.reuse(size, MemoryKind::Device).is_none());
        assert_eq!(pool.reuse(class_within(size), MemoryKind::Device).unwrap().allocation().bytes, size);
    }

    #[test]
    fn a_load_takes_no_buffer_that_is_much_larger() {
        let (_, pool) = pool(DeviceKind::Discrete, 0);
        drop(get(&pool, 1024 * KIB));
        let _loading = pool.load(0);
        assert!(pool.reuse(980 * KIB, MemoryKind::Device).is_none());
        assert!(pool.reuse(1000 * KIB, MemoryKind::Device).is_some());
    }

    #[test]
    fn a_load_lends_no_buffer_that_cannot_be_bound() {
        let mut lazy = Lazy::new(DeviceKind::Discrete, 0);
        lazy.info.limits.max_binding_bytes = 1000 * KIB;
        let pool = PoolOwner::new(Arc::new(lazy));
        let loading = pool.load(0);
        let larger = get(&pool, 1010 * KIB);
        drop(loading);
        drop(larger);
        assert!(pool.reuse(1000 * KIB, MemoryKind::Device).is_none());
        assert!(pool.reuse(1010 * KIB, MemoryKind::Device).is_some());
    }

    #[test]
    fn a_software_device_frees_large_buffers_before_larger_ones() {
        for (kind, freed) in [(DeviceKind::Cpu, 40 << 20), (DeviceKind::Discrete, 0)] {
            let (_, pool) = pool(kind, 0);
            drop([get(&pool, 20 << 20), get(&pool, 40 << 20), get(&pool, 120 << 20)]);
            let before = pool.stats().cached;
            pool.make_room(100 << 20, MemoryKind::Device);
            assert_eq!(before - pool.stats().cached, freed, "{kind:?}");
        }
    }

    #[test]
    fn size_classes_waste_little() {
        let mut previous = 0;
        for bytes in (1..100_000).chain([1 << 30, (1 << 30) + 1, 5_000_000_000, u64::MAX]) {
            let class = size_class(bytes);
            assert!(class >= bytes && class >= previous, "{bytes} -> {class}");
            assert!(bytes < 2048 || class - bytes <= bytes / 8, "{bytes} -> {class}");
            assert_eq!(size_class(class), class);
            let within = class_within(bytes);
            assert!(within <= bytes.max(SMALLEST_CLASS) && size_class(within) == within, "{bytes} -> {within}");
            previous = class;
        }
    }
}
