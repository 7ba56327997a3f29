//! The Vulkan backend: compute on Vulkan 1.2 or newer, by way of `ash`.
//!
//! One concept per file, each using those before it: [`validation`], [`instance`], [`adapter`] (which devices there
//! are, with their [`extensions`] and [`properties`]), [`device`] (creation, errors, loss), [`memory`] (buffers),
//! [`pipeline`] (compiling), [`kernel`] (what is compiled), [`plan`] (checked steps), [`timer`] (timestamps), [`batch`]
//! (recording), [`clock`] (the device's time in the host's), [`queue`] (submission, tickets).

mod adapter;
mod batch;
mod clock;
mod device;
mod extensions;
mod instance;
mod kernel;
mod memory;
mod pipeline;
mod plan;
mod properties;
mod queue;
#[cfg(test)]
#[cfg(device_tests)]
mod tests;
mod timer;
mod validation;

use crate::backend::contract::{Backend, BufferId, Compiled, MemoryUse, ReadCallback, Step, Ticket};
use crate::backend::info::DeviceInfo;
use crate::backend::reads::Reads;
use crate::base::backend_kind::BackendKind;
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
    let adapters = adapter::all(instance::shared()?)?;
    Ok(adapters.into_iter().map(|adapter| adapter.info).collect())
}

/// A Vulkan device.
pub(crate) struct VulkanBackend {
    // The order of the fields is that of their end: the queue waits for the device, the device is closed last.
    queue: Queue,
    reads: Reads<HostView>,
    kernels: Kernels,
    memory: Memory,
    device: Arc<Device>,
}

impl VulkanBackend {
    /// Opens a device by its index.
    pub(crate) fn open(index: usize) -> Result<VulkanBackend> {
        let instance = instance::shared()?;
        let mut adapters = adapter::all(instance)?;
        if index >= adapters.len() {
            let reason = format!("there is no device {index}; the number of devices is {}", adapters.len());
            return Err(Error::BackendUnavailable { backend: BackendKind::Vulkan, reason });
        }
        let device = Arc::new(Device::open(instance, adapters.swap_remove(index))?);
        Ok(VulkanBackend {
            queue: Queue::new(device.clone())?,
            reads: Reads::new(),
            kernels: Kernels::new(device.clone()),
            memory: Memory::new(device.clone())?,
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
        self.reads.run(completed, |view| unsafe { self.memory.read(view) });
    }
}

impl Backend for VulkanBackend {
    fn info(&self) -> &DeviceInfo {
        &self.device.adapter.info
    }

    fn target(&self) -> Target {
        let info = self.info();
        Target {
            unpacks_halves: info.unpacks_halves(),
            packs_halves: info.packs_halves(),
            integer_dot_products: info.features.integer_dot_products,
            ..Target::VULKAN
        }
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

    fn budget(&self) -> u64 {
        self.device.budget()
    }

    fn binary_key(&self, _: &Module) -> Option<String> {
        pipeline::binary_key(&self.device.adapter)
    }

    fn compile(&self, module: &Module, binary: Option<&[u8]>) -> Result<Compiled> {
        self.guarded(|| {
            let compiled = self.kernels.compile(module, binary)?;
            validation::check()?;
            Ok(compiled)
        })
    }

    fn submit(&self, steps: &[Step], timed: bool) -> Result<Ticket> {
        self.guarded(|| {
            let max_groups = self.info().limits.max_groups;
            let plan = Plan::new(steps, &self.memory.buffers(), &self.kernels.all(), max_groups)?;
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
            validation::check()
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

impl Drop for VulkanBackend {
    /// Waits for the device, and answers the reads that are left.
    fn drop(&mut self) {
        let unanswered = match self.queue.finish() {
            Ok(completed) => {
                self.answer_reads(completed);
                let message = "the device was closed before the batch was submitted".to_string();
                Error::InvalidArgument { op: "read", message }
            }
            Err(error) => {
                log::error!("Vulkan: while closing the device: {error}");
                error
            }
        };
        self.reads.fail(&unanswered);
    }
}
