//! What backends over explicit APIs share.
//!
//! Such an API leaves memory, order and waiting to its user. Its calls answer at once, and the host reads buffers in
//! place. A backend brings its parts, and the few facts that differ, as an [`Api`].

use super::contract::{
    Backend, BufferId, Command, Compiled, CopyQueue, MemoryUse, ProgramId, ReadCallback, Step, Ticket,
};
use super::info::DeviceInfo;
use super::reads::{self, Reads};
use super::registry;
use crate::base::backend_kind::BackendKind;
use crate::base::error::{Error, Result};
use crate::shader::{Module, Target};
use std::ops::Range;
use std::sync::Arc;

/// An explicit API.
pub(super) trait Api: Sized + 'static {
    const KIND: BackendKind;
    /// Its name in log messages.
    const NAME: &'static str;

    /// A device that can be opened.
    type Adapter;
    /// An open device. Each part holds it.
    type Device: Send + Sync;
    type Memory: Memory;
    type Kernels: Kernels;
    type Queue: Queue<Self>;

    /// Returns every device that can be opened, or why there is none. A device's index is its position.
    fn adapters() -> Result<Vec<Self::Adapter>>;

    /// Opens a device.
    fn open(adapter: Self::Adapter) -> Result<ExplicitBackend<Self>>;

    fn info(adapter: &Self::Adapter) -> &DeviceInfo;

    fn adapter(device: &Self::Device) -> &Self::Adapter;

    fn target(info: &DeviceInfo) -> Target;

    fn budget(device: &Self::Device) -> u64 {
        Self::info(Self::adapter(device)).memory
    }

    /// Fails once the device is lost.
    fn alive(device: &Self::Device) -> Result<()>;

    /// Fails with the messages of a validation layer, if it has any.
    fn check_validation() -> Result<()> {
        Ok(())
    }
}

/// The buffers of a device.
pub(super) trait Memory: Send + Sync {
    /// A buffer as the host sees it. Valid as long as the buffer is.
    type View: Send;

    /// See [`Backend::reserved`].
    fn reserved(&self) -> Option<u64> {
        None
    }

    /// See [`Backend::foresee`].
    fn foresee(&self, bytes: u64) {
        _ = bytes;
    }

    fn allocate(&self, bytes: u64, memory: MemoryUse) -> Result<BufferId>;

    fn free(&self, buffer: BufferId);

    /// See [`Backend::host_reads_device_memory`].
    fn host_reads_device_memory(&self) -> bool {
        false
    }

    /// See [`Backend::host_writes_device_memory`].
    fn host_writes_device_memory(&self) -> bool {
        false
    }

    fn write(&self, buffer: BufferId, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Finds the first `bytes` bytes of a buffer that the host reaches. `op` is for the error.
    fn host_view(&self, buffer: BufferId, bytes: u64, op: &'static str) -> Result<Self::View>;

    /// Returns what the device wrote.
    ///
    /// # Safety
    /// The buffer must be alive, and no unfinished batch may write it, for as long as the slice is used.
    unsafe fn read<'a>(&self, view: &'a Self::View) -> Result<&'a [u8]>;
}

/// The compiled kernels of a device. They live as long as it does.
pub(super) trait Kernels: Send + Sync {
    fn binary_key(&self, module: &Module) -> Option<String>;

    fn compile(&self, module: &Module, binary: Option<&[u8]>) -> Result<Compiled>;
}

/// A queue of a device: the one for kernels, or the one that only copies.
pub(super) trait Queue<A: Api>: Send + Sync {
    /// See [`Backend::submit_after`]. `after` is what the batch waits for on the device: a queue, and a batch that was
    /// submitted there.
    fn submit(
        &self,
        steps: &[Step],
        memory: &A::Memory,
        kernels: &A::Kernels,
        timed: bool,
        after: Option<(&Self, Ticket)>,
    ) -> Result<Ticket>;

    /// See [`Backend::prepare`].
    fn prepare(&self, steps: &[Step], memory: &A::Memory, kernels: &A::Kernels) -> Result<Option<ProgramId>>;

    /// See [`Backend::discard`].
    fn discard(&self, program: ProgramId);

    fn timings(&self, ticket: Ticket) -> Result<Vec<Range<u64>>>;

    /// Returns the newest batch that has completed.
    fn completed(&self) -> Result<Ticket>;

    /// Blocks until a batch has completed. Returns the newest completed batch.
    fn wait(&self, ticket: Ticket) -> Result<Ticket>;

    /// Waits for all submitted work, and returns the last batch. The device is closed next.
    fn finish(&mut self) -> Result<Ticket>;
}

/// A device that is reached through an explicit API.
pub(super) struct ExplicitBackend<A: Api> {
    // The fields are dropped in this order: the queues first, which wait for the device; the device last.
    pub queue: A::Queue,
    /// The queue that only copies.
    pub copies: Option<A::Queue>,
    pub reads: Reads<<A::Memory as Memory>::View>,
    pub kernels: A::Kernels,
    pub memory: A::Memory,
    pub device: Arc<A::Device>,
}

impl<A: Api> ExplicitBackend<A> {
    /// Describes the devices that can be opened. A device's index is its position.
    pub fn list() -> Result<Vec<DeviceInfo>> {
        Ok(A::adapters()?.iter().map(|adapter| A::info(adapter).clone()).collect())
    }

    /// Opens a device by its index.
    pub fn open(index: usize) -> Result<Self> {
        let mut adapters = A::adapters()?;
        if index >= adapters.len() {
            let reason = format!("there is no device {index}; the number of devices is {}", adapters.len());
            return Err(registry::unavailable(A::KIND, reason));
        }
        A::open(adapters.swap_remove(index))
    }

    /// Makes a call, unless the device is lost. The call that finds a loss answers the pending reads.
    fn guarded<T>(&self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let result = A::alive(&self.device).and_then(|()| call());
        if let Err(error @ Error::DeviceLost { .. }) = &result {
            self.reads.fail(error);
        }
        result
    }

    /// Answers the reads that are due.
    fn answer_reads(&self, completed: Ticket) {
        // SAFETY: `run` asks only for views of reads that are due.
        self.reads.run(completed, |view| unsafe { self.memory.read(view) });
    }
}

impl<A: Api> Backend for ExplicitBackend<A> {
    fn info(&self) -> &DeviceInfo {
        A::info(A::adapter(&self.device))
    }

    fn target(&self) -> Target {
        A::target(self.info())
    }

    fn budget(&self) -> u64 {
        A::budget(&self.device)
    }

    fn reserved(&self) -> Option<u64> {
        self.memory.reserved()
    }

    fn foresee(&self, bytes: u64) {
        self.memory.foresee(bytes);
    }

    fn allocate(&self, bytes: u64, memory: MemoryUse) -> Result<BufferId> {
        self.guarded(|| self.memory.allocate(bytes, memory))
    }

    fn free(&self, buffer: BufferId) {
        self.memory.free(buffer);
    }

    fn write(&self, buffer: BufferId, offset: u64, bytes: &[u8]) -> Result<()> {
        self.guarded(|| self.memory.write(buffer, offset, bytes))
    }

    fn host_reads_device_memory(&self) -> bool {
        self.memory.host_reads_device_memory()
    }

    fn host_writes_device_memory(&self) -> bool {
        self.memory.host_writes_device_memory()
    }

    fn binary_key(&self, module: &Module) -> Option<String> {
        self.kernels.binary_key(module)
    }

    fn compile(&self, module: &Module, binary: Option<&[u8]>) -> Result<Compiled> {
        self.guarded(|| {
            let compiled = self.kernels.compile(module, binary)?;
            A::check_validation()?;
            Ok(compiled)
        })
    }

    fn submit_after(&self, steps: &[Step], timed: bool, copies: Ticket) -> Result<Ticket> {
        let after = self.copies.as_ref().filter(|_| copies.0 > 0).map(|queue| (queue, copies));
        self.guarded(|| self.queue.submit(steps, &self.memory, &self.kernels, timed, after))
    }

    fn copies(&self) -> Option<&dyn CopyQueue> {
        self.copies.as_ref().map(|_| self as &dyn CopyQueue)
    }

    fn prepare(&self, steps: &[Step]) -> Result<Option<ProgramId>> {
        self.guarded(|| self.queue.prepare(steps, &self.memory, &self.kernels))
    }

    fn discard(&self, program: ProgramId) {
        self.queue.discard(program);
    }

    fn timings(&self, ticket: Ticket) -> Result<Vec<Range<u64>>> {
        self.guarded(|| self.queue.timings(ticket))
    }

    fn completed(&self) -> Result<Ticket> {
        self.guarded(|| self.queue.completed())
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        self.guarded(|| {
            let completed = self.queue.wait(ticket)?;
            self.answer_reads(completed);
            self.reads.join(ticket);
            A::check_validation()
        })
    }

    fn read(&self, buffer: BufferId, bytes: u64, after: Ticket, done: ReadCallback) {
        match self.guarded(|| self.memory.host_view(buffer, bytes, "read")) {
            Ok(view) => self.reads.add(view, after, done),
            Err(error) => return done(Err(error)),
        }
        // The batch may have completed, or the device may have been lost, before the read was in the list. A loss
        // answers all reads. After another error, the read stays in the list until the next wait.
        if let Ok(completed) = Backend::completed(self) {
            self.answer_reads(completed);
        }
    }

    fn read_now(&self, buffer: BufferId, offset: u64, _: Ticket, into: &mut [u8]) -> Result<()> {
        self.guarded(|| {
            let view = self.memory.host_view(buffer, offset.saturating_add(into.len() as u64), "read")?;
            // SAFETY: by the contract the buffer is kept, and the batches that write it have completed.
            let bytes = unsafe { self.memory.read(&view)? };
            reads::copy(&bytes[offset as usize..], into);
            Ok(())
        })
    }
}

impl<A: Api> ExplicitBackend<A> {
    /// Makes a call to the queue that only copies.
    fn of_copies<T>(&self, call: impl FnOnce(&A::Queue) -> Result<T>) -> Result<T> {
        let missing =
            || Error::Unsupported { feature: "a queue that only copies".into(), device: self.info().to_string() };
        self.guarded(|| call(self.copies.as_ref().ok_or_else(missing)?))
    }
}

impl<A: Api> CopyQueue for ExplicitBackend<A> {
    fn submit(&self, copies: &[Step], timed: bool) -> Result<Ticket> {
        if !copies.iter().all(|step| matches!(step.command, Command::CopyRegion { .. })) {
            let message = "the queue only copies".into();
            return Err(Error::InvalidArgument { op: "submit", message });
        }
        self.of_copies(|queue| queue.submit(copies, &self.memory, &self.kernels, timed, None))
    }

    fn timings(&self, ticket: Ticket) -> Result<Vec<Range<u64>>> {
        self.of_copies(|queue| queue.timings(ticket))
    }

    fn completed(&self) -> Result<Ticket> {
        self.of_copies(|queue| queue.completed())
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        self.of_copies(|queue| queue.wait(ticket))?;
        A::check_validation()
    }
}

impl<A: Api> Drop for ExplicitBackend<A> {
    /// Waits for the device, and answers the remaining reads.
    fn drop(&mut self) {
        if let Some(Err(error)) = self.copies.as_mut().map(A::Queue::finish) {
            log::error!("{}: while closing the device: {error}", A::NAME);
        }
        let unanswered = match self.queue.finish() {
            Ok(completed) => {
                self.answer_reads(completed);
                let message = "the device was closed before the batch was submitted".to_string();
                Error::InvalidArgument { op: "read", message }
            }
            Err(error) => {
                log::error!("{}: while closing the device: {error}", A::NAME);
                error
            }
        };
        self.reads.fail(&unanswered);
    }
}
