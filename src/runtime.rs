//! What stands behind a [`Device`](crate::Device): a backend with its stream, pool and kernels.

use crate::cache::{Kernel, KernelCache};
use crate::device::DeviceInfo;
use crate::device::backend::{Backend, Command, MemoryUse, Region, Ticket};
use crate::error::{Error, Result};
use crate::kernels::KernelConfig;
use crate::memory::{Allocation, Buffer, MemoryStats, Pool};
use crate::shader::{Access, Module, Target};
use crate::stream::Stream;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

/// Counters since the device was opened, from [`Device::stats`](crate::Device::stats).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Kernels launched.
    pub launches: u64,
    /// Batches submitted to the device's queue.
    pub submissions: u64,
    /// Kernels compiled.
    pub compiles: u64,
    /// Times that the host has blocked for the device.
    pub waits: u64,
}

/// The state of the random number generator: a key, and how many tensors have been drawn with it.
#[derive(Default)]
struct RandomState {
    seed: u64,
    drawn: u32,
}

/// An open device.
pub(crate) struct Runtime {
    // In this order they are dropped: the stream waits for the device, then buffers may go.
    stream: Stream,
    pool: Arc<Pool>,
    kernels: KernelCache,
    random: Mutex<RandomState>,
    launches: AtomicU64,
    backend: Arc<dyn Backend>,
}

impl Runtime {
    pub fn new(backend: impl Backend + 'static) -> Self {
        let backend: Arc<dyn Backend> = Arc::new(backend);
        Runtime {
            stream: Stream::new(backend.clone()),
            pool: Pool::new(backend.clone()),
            kernels: KernelCache::default(),
            random: Mutex::default(),
            launches: AtomicU64::new(0),
            backend,
        }
    }

    pub fn info(&self) -> &DeviceInfo {
        self.backend.info()
    }

    /// Whether the device still works.
    pub fn is_alive(&self) -> bool {
        !matches!(self.backend.completed(), Err(Error::DeviceLost { .. }))
    }

    pub fn stats(&self) -> Stats {
        Stats {
            launches: self.launches.load(Ordering::Relaxed),
            submissions: self.stream.submissions(),
            compiles: self.kernels.compiles(),
            waits: self.stream.waits(),
        }
    }

    pub fn memory_stats(&self) -> MemoryStats {
        self.pool.stats()
    }

    pub fn set_seed(&self, seed: u64) {
        *self.random.lock() = RandomState { seed, drawn: 0 };
    }

    /// The key of the next random tensor: the seed's two words and the tensor's number.
    pub fn next_random(&self) -> [u32; 3] {
        let mut random = self.random.lock();
        let drawn = random.drawn;
        random.drawn = drawn.wrapping_add(1);
        [random.seed as u32, (random.seed >> 32) as u32, drawn]
    }

    pub fn synchronize(&self) -> Result<()> {
        self.stream.wait()
    }

    /// Returns cached memory to the driver.
    pub fn trim(&self) -> Result<u64> {
        let bytes = self.pool.trim();
        // Batches in flight may hold some of it until they are done.
        self.synchronize()?;
        Ok(bytes)
    }

    /// Allocates, and when memory has run out, once more without the pool's cache and what batches in flight hold.
    fn retrying<T>(&self, allocate: impl Fn() -> Result<T>) -> Result<T> {
        match allocate() {
            Err(Error::OutOfMemory { .. }) => {
                self.trim()?;
                allocate()
            }
            result => result,
        }
    }

    /// A device buffer with undefined contents.
    pub fn allocate(&self, bytes: u64) -> Result<Buffer> {
        self.retrying(|| self.pool.allocate(bytes))
    }

    fn allocate_staging(&self, bytes: u64, memory: MemoryUse) -> Result<Arc<Allocation>> {
        self.retrying(|| Allocation::new(&self.backend, bytes, memory))
    }

    /// The form in which kernels are generated for this device.
    pub fn target(&self) -> Target {
        self.backend.target()
    }

    /// Compiles a kernel that is not of this crate.
    pub fn compile(&self, module: &Module) -> Result<Kernel> {
        self.kernels.compile(module, &*self.backend)
    }

    /// Runs a kernel of this crate on `groups` workgroups.
    pub fn launch(&self, config: &KernelConfig, buffers: &[&Buffer], parameters: &[u32], groups: usize) -> Result<()> {
        let kernel = self.kernels.get(config, &*self.backend)?;
        let groups = self.fold(groups, || config.name())?;
        self.dispatch(&kernel, buffers, parameters, groups)
    }

    /// More workgroups than the device's limit per dimension, folded into rows.
    pub fn fold(&self, groups: usize, kernel: impl FnOnce() -> String) -> Result<[u32; 3]> {
        let limit = self.info().limits.max_groups as usize;
        let rows = groups.div_ceil(limit);
        if rows > limit {
            let feature = format!("a dispatch of {groups} workgroups (kernel `{}`)", kernel());
            return Err(Error::Unsupported { feature, device: self.info().to_string() });
        }
        // As even rows as possible leave the fewest surplus groups.
        Ok([groups.div_ceil(rows.max(1)) as u32, rows as u32, 1])
    }

    /// Records the run of a compiled kernel.
    pub fn dispatch(&self, kernel: &Kernel, buffers: &[&Buffer], parameters: &[u32], groups: [u32; 3]) -> Result<()> {
        let uses: SmallVec<[_; 6]> =
            buffers.iter().zip(kernel.bindings.iter()).map(|(buffer, &access)| (buffer.allocation(), access)).collect();
        let command = Command::Dispatch {
            kernel: kernel.id,
            buffers: buffers.iter().map(|buffer| buffer.allocation().id()).collect(),
            parameters: SmallVec::from_slice(parameters),
            groups,
        };
        self.launches.fetch_add(1, Ordering::Relaxed);
        self.stream.record(command, &uses, 0)
    }

    /// A device buffer with these bytes.
    pub fn upload(&self, bytes: &[u8]) -> Result<Buffer> {
        let buffer = self.allocate(bytes.len() as u64)?;
        if !bytes.is_empty() {
            let staging = self.allocate_staging(bytes.len() as u64, MemoryUse::Upload)?;
            self.backend.write(staging.id(), bytes)?;
            self.copy(&staging, buffer.allocation(), bytes.len() as u64, bytes.len() as u64)?;
        }
        Ok(buffer)
    }

    fn copy(&self, src: &Arc<Allocation>, dst: &Arc<Allocation>, bytes: u64, upload_bytes: u64) -> Result<()> {
        let command =
            Command::CopyRegion { src: src.id(), dst: dst.id(), region: Region::linear(bytes.next_multiple_of(4)) };
        self.stream.record(command, &[(src, Access::Read), (dst, Access::Write)], upload_bytes)
    }

    /// Submits a read of the first `bytes` bytes, which are handed to `done` when they have arrived. Returns the batch
    /// to wait for.
    fn start_read(
        &self,
        buffer: &Buffer,
        bytes: u64,
        done: impl FnOnce(Result<&[u8]>) + Send + 'static,
    ) -> Result<Ticket> {
        let staging = self.allocate_staging(bytes, MemoryUse::Readback)?;
        self.copy(buffer.allocation(), &staging, bytes, 0)?;
        let ticket = self.stream.flush()?;
        let id = staging.id();
        let callback = Box::new(move |result: Result<&[u8]>| {
            done(result);
            drop(staging);
        });
        self.backend.read(id, bytes, ticket, callback);
        Ok(ticket)
    }

    /// Blocks until the first `bytes` bytes of a buffer have been handed to `convert`.
    pub fn read<T: Send + 'static>(
        &self,
        buffer: &Buffer,
        bytes: u64,
        convert: impl FnOnce(&[u8]) -> T + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = mpsc::sync_channel(1);
        // The receiver waits below; if it has gone, an error has already been returned.
        let ticket = self.start_read(buffer, bytes, move |result| _ = sender.send(result.map(convert)))?;
        let waited = self.stream.wait_for(ticket);
        let received = receiver.try_recv().unwrap_or_else(|_| Err(self.nothing_arrived()));
        // A wait reports what went wrong before; data that came along is not to be trusted.
        waited.and(received)
    }

    fn nothing_arrived(&self) -> Error {
        let message = "the data did not arrive".into();
        Error::Driver { backend: self.info().backend, call: "read", message }
    }

    /// The same without blocking: the future is ready when the bytes have arrived.
    pub async fn read_async<T: Send + 'static>(
        &self,
        buffer: &Buffer,
        bytes: u64,
        convert: impl FnOnce(&[u8]) -> T + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = futures_channel::oneshot::channel();
        let ticket = self.start_read(buffer, bytes, move |result| _ = sender.send(result.map(convert)))?;
        // A browser calls back from its event loop. Elsewhere somebody has to wait, and it must not be the executor.
        #[cfg(not(target_arch = "wasm32"))]
        let waited = {
            let (sender, waited) = futures_channel::oneshot::channel();
            let backend = self.backend.clone();
            let wait = move || _ = sender.send(backend.wait(ticket));
            std::thread::Builder::new().name("marquetry read".into()).spawn(wait).map_err(|error| {
                let message = format!("no thread to wait in: {error}");
                Error::Driver { backend: self.info().backend, call: "read", message }
            })?;
            waited
        };
        let received = receiver.await.unwrap_or_else(|_| Err(self.nothing_arrived()));
        #[cfg(not(target_arch = "wasm32"))]
        waited.await.unwrap_or(Ok(()))?;
        received
    }
}
