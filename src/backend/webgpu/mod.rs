//! WebGPU through `wgpu`, which runs on Vulkan, Metal, Direct3D 12 or a browser.
//!
//! wgpu tracks how commands use buffers and places barriers by itself, so [`Step::barrier`] has no meaning here. A
//! kernel's parameters are a uniform buffer, because browsers have no push constants. If wgpu runs on Vulkan and the
//! crate's own kernels go to the driver as SPIR-V, only these have push constants ("immediates").

mod adapter;
mod bind;
mod buffer;
mod copy;
mod encode;
mod guard;
#[cfg(wgpu_on_vulkan)]
mod hooks;
#[cfg_attr(not(wgpu_on_vulkan), path = "no_host_memory.rs")]
mod host_memory;
mod kernel;
#[cfg(wgpu_on_vulkan)]
mod on_vulkan;
mod queue;
mod read;
#[cfg(test)]
#[cfg(device_tests)]
mod tests;
mod timing;

use crate::backend::contract::{Backend, BufferId, Compiled, MemoryUse, ProgramId, ReadCallback, Step, Ticket};
use crate::backend::info::DeviceInfo;
use crate::backend::reads;
use crate::base::error::{Error, Result};
use crate::shader::{Module, Target};
use buffer::Buffers;
use guard::{GuardedDevice, driver_error};
use host_memory::HostView;
use kernel::Kernels;
use queue::BatchQueue;
use read::Reads;
use std::ops::Range;
use std::sync::{Arc, mpsc};

pub(super) use adapter::list;

/// Opens a device by its index.
pub(super) async fn open(index: usize) -> Result<Box<dyn Backend>> {
    Ok(Box::new(WebGpuBackend::open(index).await?))
}

/// A WebGPU device.
///
/// Callbacks of reads run inside [`wait`](Backend::wait), [`completed`](Backend::completed) and
/// [`read`](Backend::read), when the device is closed, and in a browser from its event loop. They never run inside
/// `submit`, and never with anything locked.
struct WebGpuBackend {
    // The fields are dropped in this order: what views buffers first, the device last.
    /// Reads of buffers that the host reaches by itself, and how many bytes each wants.
    host_reads: reads::Reads<(HostView, u64)>,
    /// Reads of buffers that wgpu maps.
    reads: Arc<Reads>,
    buffers: Buffers,
    kernels: Kernels,
    queue: BatchQueue,
    gpu: Arc<GuardedDevice>,
    info: DeviceInfo,
}

/// Asks wgpu for a device with the features that are used, and with all limits of the adapter.
async fn request_device(adapter: &wgpu::Adapter) -> Result<(wgpu::Device, wgpu::Queue)> {
    let descriptor = wgpu::DeviceDescriptor {
        label: Some("marquetry"),
        required_features: adapter::wgpu_features(adapter),
        required_limits: adapter.limits(),
        // The crate's pool keeps and reuses buffers, so wgpu need not keep blocks beneath it.
        memory_hints: wgpu::MemoryHints::MemoryUsage,
        // SAFETY: only one feature of this sort is requested. It makes the driver enable its matrix units. Kernels
        // reach these by themselves, and use none of wgpu's code for them.
        experimental_features: unsafe { wgpu::ExperimentalFeatures::enabled() },
        ..Default::default()
    };
    #[cfg(wgpu_on_vulkan)]
    let opened = on_vulkan::open(adapter, &descriptor).await;
    #[cfg(not(wgpu_on_vulkan))]
    let opened = adapter.request_device(&descriptor).await;
    opened.map_err(|error| driver_error("Adapter::request_device", error.to_string()))
}

impl WebGpuBackend {
    /// Opens a device by its index.
    async fn open(index: usize) -> Result<WebGpuBackend> {
        let adapter = adapter::find(index).await?;
        let info = adapter::describe(&adapter, index);
        let gpu = match GuardedDevice::parked(&info) {
            Some(gpu) => gpu,
            None => {
                let (device, queue) = request_device(&adapter).await?;
                GuardedDevice::new(device, queue, info.clone())
            }
        };
        let gpu = Arc::new(gpu);
        Ok(WebGpuBackend {
            buffers: Buffers::new(Arc::clone(&gpu), info.limits.max_buffer_bytes, info.host_visible),
            kernels: Kernels::new(Arc::clone(&gpu)),
            queue: BatchQueue::new(Arc::clone(&gpu)),
            reads: Arc::default(),
            host_reads: reads::Reads::new(),
            info,
            gpu,
        })
    }

    /// Fails without timestamps. The times are read by waiting, so none are requested in a browser.
    fn check_timestamps(&self) -> Result<()> {
        if self.info.features.timestamps {
            return Ok(());
        }
        Err(Error::Unsupported { feature: "timestamps".into(), device: self.info.to_string() })
    }

    /// Runs the callbacks of reads that are due, and reports what went wrong.
    fn after_poll(&self, polled: Result<()>) -> Result<()> {
        self.answer_reads();
        polled.and_then(|()| self.gpu.check())
    }

    /// Runs the callbacks of reads that are due; of all, if the device is lost.
    fn answer_reads(&self) {
        match self.gpu.check_lost() {
            Ok(()) => {
                self.reads.finish_due();
                self.host_reads.run(self.queue.completed(), |(view, bytes)| view.read(*bytes));
            }
            Err(lost) => self.fail_reads(&lost),
        }
    }

    fn fail_reads(&self, error: &Error) {
        self.reads.fail(error);
        self.host_reads.fail(error);
    }
}

impl Drop for WebGpuBackend {
    fn drop(&mut self) {
        // What was submitted is read. Reads of what wgpu maps fail.
        if self.buffers.rewrites_uploads() && self.queue.wait(self.queue.newest()).is_ok() {
            self.answer_reads();
        }
        self.fail_reads(&self.gpu.lost("it was closed"));
    }
}

impl Backend for WebGpuBackend {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn target(&self) -> Target {
        let info = self.info();
        let (spirv, unpacks_halves) = (self.gpu.takes_spirv(), info.unpacks_halves());
        Target {
            unpacks_halves,
            packs_halves: spirv && info.packs_halves(),
            integer_dot_products: info.features.integer_dot_products,
            ..if spirv { Target::VULKAN } else { Target::WEBGPU }
        }
    }

    /// Apps' kernels go through WGSL if they can, so that wgpu checks them.
    fn target_of_apps(&self) -> Target {
        Target { unpacks_halves: self.info().unpacks_halves(), ..Target::WEBGPU }
    }

    fn allocate(&self, bytes: u64, memory: MemoryUse) -> Result<BufferId> {
        self.buffers.allocate(bytes, memory)
    }

    fn free(&self, buffer: BufferId) {
        if self.buffers.free(buffer) {
            self.queue.forget_buffer(buffer);
        }
    }

    fn write(&self, buffer: BufferId, offset: u64, bytes: &[u8]) -> Result<()> {
        self.buffers.write(buffer, offset, bytes)
    }

    fn host_reads_device_memory(&self) -> bool {
        self.info.unified_memory
    }

    fn rewrites_uploads(&self) -> bool {
        self.buffers.rewrites_uploads()
    }

    /// Returns 0, like [`DeviceInfo::memory`], because WebGPU reports no memory.
    fn budget(&self) -> u64 {
        self.info.memory
    }

    /// Returns none. wgpu has pipeline caches only on Vulkan, and does not say whether one was of use. Desktop drivers
    /// keep caches of their own. If a driver does not, the Vulkan backend is at hand.
    fn binary_key(&self, _: &Module) -> Option<String> {
        None
    }

    fn compile(&self, module: &Module, _: Option<&[u8]>) -> Result<Compiled> {
        self.gpu.check()?;
        let kernel = self.kernels.compile(module, &self.info)?;
        Ok(Compiled { kernel, binary: None, reused: false })
    }

    fn submit_after(&self, steps: &[Step], timed: bool, _: Ticket) -> Result<Ticket> {
        self.gpu.check()?;
        if timed {
            self.check_timestamps()?;
        }
        self.queue.submit(steps, timed, &self.buffers, &self.kernels)
    }

    /// WebGPU's command buffers run once, so there are no programs. Bind groups are kept anyway.
    fn prepare(&self, _: &[Step]) -> Result<Option<ProgramId>> {
        Ok(None)
    }

    fn discard(&self, _: ProgramId) {}

    fn timings(&self, ticket: Ticket) -> Result<Vec<Range<u64>>> {
        self.gpu.check()?;
        self.check_timestamps()?;
        self.queue.timings.take(ticket)
    }

    fn completed(&self) -> Result<Ticket> {
        self.after_poll(self.gpu.poll(wgpu::PollType::Poll))?;
        Ok(self.queue.completed())
    }

    /// In a browser this returns at once: callbacks run when its event loop does.
    fn wait(&self, ticket: Ticket) -> Result<()> {
        self.after_poll(self.queue.wait(ticket))?;
        // Other threads may have polled a read that is due, and be about to call its callback.
        while cfg!(native) && !self.reads.have_ended(ticket) {
            self.after_poll(self.gpu.poll(wgpu::PollType::Poll))?;
        }
        self.host_reads.join(ticket);
        Ok(())
    }

    #[cfg(not(native))]
    fn notify(&self, _: Ticket, done: Box<dyn FnOnce() + Send>) {
        // The batch has been submitted, so it is among the work that this is about.
        self.gpu.queue.on_submitted_work_done(done);
    }

    fn read(&self, buffer: BufferId, bytes: u64, after: Ticket, done: ReadCallback) {
        let found = self.gpu.check_lost().and_then(|()| self.buffers.get(buffer, "read"));
        let checked = found.and_then(|(buffer, view)| {
            view.iter().try_for_each(|view| view.check("read", bytes))?;
            Ok((buffer, view))
        });
        match checked {
            Ok((_, Some(view))) => {
                self.host_reads.add((view, bytes), after, done);
                // The batch may have completed before the read was in the list. If this fails, the next wait answers.
                _ = self.gpu.poll(wgpu::PollType::Poll);
                self.answer_reads();
            }
            Ok((buffer, None)) => self.reads.begin(buffer, bytes, after, done),
            Err(error) => done(Err(error)),
        }
    }

    fn read_now(&self, buffer: BufferId, offset: u64, after: Ticket, into: &mut [u8]) -> Result<()> {
        let end = offset.saturating_add(into.len() as u64);
        self.gpu.check_lost()?;
        if let (_, Some(view)) = self.buffers.get(buffer, "read")? {
            reads::copy(&view.read(end)?[offset as usize..], into);
            return Ok(());
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        let take = move |bytes: &[u8]| bytes[offset as usize..].to_vec();
        let done = Box::new(move |result: Result<&[u8]>| _ = sender.send(result.map(take)));
        self.read(buffer, end, after, done);
        self.wait(after)?;
        let nothing = |_| Err(driver_error("read", "the data did not arrive".to_string()));
        into.copy_from_slice(&receiver.try_recv().unwrap_or_else(nothing)?);
        Ok(())
    }
}
