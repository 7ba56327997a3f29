//! The Level Zero backend: compute on Intel's GPUs, and on whatever else has a driver for the interface, through the
//! library that is found at run time.
//!
//! One concept per file, each using those before it: [`ffi`] (the interface), [`loader`] (the library), [`adapter`]
//! (which devices there are), [`device`] (context, errors, loss), [`memory`] (buffers), [`kernel`] (compilation),
//! [`region`] (copies of boxes), [`plan`] (checked steps), [`event`], [`timing`], [`batch`] (recording), [`queue`]
//! (submission, tickets).

mod adapter;
mod batch;
mod device;
mod event;
mod ffi;
mod kernel;
mod loader;
mod memory;
mod plan;
mod queue;
mod region;
#[cfg(test)]
#[cfg(device_tests)]
mod tests;
mod timing;

use crate::backend::contract::{Backend, BufferId, Compiled, MemoryUse, ReadCallback, Step, Ticket};
use crate::backend::info::DeviceInfo;
use crate::backend::reads::Reads;
use crate::base::error::{Error, Result};
use crate::shader::{Module, Target};
use device::Device;
use kernel::Kernels;
use memory::{HostView, Memory};
use plan::Plan;
use queue::Queue;
use std::ops::Range;
use std::sync::Arc;

/// The devices that this backend can open; each one's index is its position.
pub(crate) fn list() -> Result<Vec<DeviceInfo>> {
    let adapters = adapter::all(loader::shared()?)?;
    Ok(adapters.into_iter().map(|adapter| adapter.info).collect())
}

/// A Level Zero device.
pub(crate) struct LevelZeroBackend {
    // The order of the fields is that of their end: the queue waits for the device, the device is closed last.
    queue: Queue,
    reads: Reads<HostView>,
    kernels: Kernels,
    memory: Memory,
    device: Arc<Device>,
}

impl LevelZeroBackend {
    /// Opens a device by its index.
    pub(crate) fn open(index: usize) -> Result<LevelZeroBackend> {
        let loaded = loader::shared()?;
        let mut adapters = adapter::all(loaded)?;
        if index >= adapters.len() {
            let count = adapters.len();
            return Err(loader::unavailable(format_args!(
                "there is no device {index}; the number of devices is {count}"
            )));
        }
        let device = Arc::new(Device::open(&loaded.api, adapters.swap_remove(index))?);
        Ok(LevelZeroBackend {
            queue: Queue::new(device.clone())?,
            reads: Reads::new(),
            kernels: Kernels::new(device.clone()),
            memory: Memory::new(device.clone()),
            device,
        })
    }

    /// Makes a call that a lost device refuses. Whichever call finds the loss answers the pending reads.
    fn guarded<T>(&self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let result = self.device.alive().and_then(|()| call());
        if let Err(error @ Error::DeviceLost { .. }) = &result {
            self.reads.fail(error);
        }
        result
    }

    /// Answers the reads that are due.
    fn answer_reads(&self, completed: Ticket) {
        // SAFETY: only views of reads that are due are asked for.
        self.reads.run(completed, |view| Ok(unsafe { view.read() }));
    }
}

impl Backend for LevelZeroBackend {
    fn info(&self) -> &DeviceInfo {
        &self.device.adapter.info
    }

    fn target(&self) -> Target {
        let sizes = &self.info().limits.subgroup_sizes;
        // 16 lanes are an instruction's on Intel's data-centre GPUs, and two on the others, where 32 take registers.
        let chosen = sizes.iter().find(|size| **size == 16).or(sizes.first());
        let integer_dot_products = self.info().features.integer_dot_products;
        Target { subgroup_size: chosen.copied(), integer_dot_products, ..Target::LEVEL_ZERO }
    }

    fn budget(&self) -> u64 {
        self.info().memory
    }

    fn allocate(&self, bytes: u64, memory: MemoryUse) -> Result<BufferId> {
        self.guarded(|| self.memory.allocate(bytes, memory))
    }

    fn free(&self, buffer: BufferId) {
        self.memory.free(buffer);
    }

    fn write(&self, buffer: BufferId, bytes: &[u8]) -> Result<()> {
        self.guarded(|| self.memory.write(buffer, bytes))
    }

    fn binary_key(&self, module: &Module) -> Option<String> {
        Some(self.kernels.binary_key(module))
    }

    fn compile(&self, module: &Module, binary: Option<&[u8]>) -> Result<Compiled> {
        self.guarded(|| self.kernels.compile(module, binary))
    }

    fn submit(&self, steps: &[Step], timed: bool) -> Result<Ticket> {
        self.guarded(|| {
            let kernels = self.kernels.all();
            let plan = Plan::new(steps, &self.memory.buffers(), &kernels, self.info().limits.max_groups)?;
            self.queue.submit(&plan, timed)
        })
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
            Ok(())
        })
    }

    fn read(&self, buffer: BufferId, bytes: u64, after: Ticket, done: ReadCallback) {
        match self.guarded(|| self.memory.host_view(buffer, bytes, "read")) {
            Ok(view) => self.reads.add(view, after, done),
            Err(error) => return done(Err(error)),
        }
        // The batch may have completed, or the device may have been lost, before the read was in the list. A loss
        // answers all reads; after any other error the read stays there for the next wait.
        if let Ok(completed) = self.guarded(|| self.queue.completed()) {
            self.answer_reads(completed);
        }
    }
}

impl Drop for LevelZeroBackend {
    /// Waits for the device, and answers the reads that are left.
    fn drop(&mut self) {
        let unanswered = match self.queue.finish() {
            Ok(completed) => {
                self.answer_reads(completed);
                let message = "the device was closed before the batch was submitted".to_string();
                Error::InvalidArgument { op: "read", message }
            }
            Err(error) => {
                log::error!("Level Zero: while closing the device: {error}");
                error
            }
        };
        self.reads.fail(&unanswered);
    }
}
