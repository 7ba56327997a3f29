//! WebGPU by way of `wgpu`: Vulkan, Metal, Direct3D 12 or a browser beneath.
//!
//! wgpu tracks how commands use buffers and places barriers by itself, so that [`Step::barrier`] has no meaning here.
//! A kernel's parameters are a uniform buffer, since browsers have no push constants. Only where Vulkan is beneath, and the
//! crate's own kernels go to the driver as SPIR-V, these have push constants ("immediates").

mod adapter;
mod bind;
mod buffer;
mod copy;
mod encode;
mod guard;
#[cfg(wgpu_on_vulkan)]
mod hooks;
mod kernel;
#[cfg(wgpu_on_vulkan)]
mod on_vulkan;
mod queue;
mod read;
#[cfg(test)]
#[cfg(device_tests)]
mod tests;
mod timing;

use crate::backend::contract::{Backend, BufferId, Compiled, MemoryUse, ReadCallback, Step, Ticket};
use crate::backend::info::DeviceInfo;
use crate::base::error::{Error, Result};
use crate::shader::{Module, Target};
use buffer::Buffers;
use guard::{GuardedDevice, driver_error};
use kernel::Kernels;
use queue::BatchQueue;
use read::Reads;
use std::ops::Range;
use std::sync::Arc;

pub(super) use adapter::list;

/// Opens a device by its index.
pub(super) async fn open(index: usize) -> Result<Box<dyn Backend>> {
    Ok(Box::new(WebGpuBackend::open(index).await?))
}

/// A WebGPU device.
///
/// Callbacks of reads run inside [`wait`](Backend::wait) and [`completed`](Backend::completed), and in a browser from
/// its event loop; never inside of `submit`, and never with anything locked.
struct WebGpuBackend {
    info: DeviceInfo,
    gpu: Arc<GuardedDevice>,
    buffers: Buffers,
    kernels: Kernels,
    queue: BatchQueue,
    reads: Arc<Reads>,
}

/// Has wgpu open a device with the features that are used and all that the adapter can.
async fn request_device(adapter: &wgpu::Adapter) -> Result<(wgpu::Device, wgpu::Queue)> {
    let descriptor = wgpu::DeviceDescriptor {
        label: Some("marquetry"),
        required_features: adapter::wgpu_features(adapter),
        required_limits: adapter.limits(),
        // The crate's pool keeps and reuses buffers; wgpu need not hoard blocks beneath it.
        memory_hints: wgpu::MemoryHints::MemoryUsage,
        // SAFETY: the one feature of this sort that is asked for has the driver enable its matrix units, to which kernels
        // come by themselves; none of wgpu's own code for them is used.
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
            buffers: Buffers::new(Arc::clone(&gpu), info.limits.max_buffer_bytes),
            kernels: Kernels::new(Arc::clone(&gpu)),
            queue: BatchQueue::new(Arc::clone(&gpu)),
            reads: Arc::default(),
            info,
            gpu,
        })
    }

    /// Fails where there are no timestamps. In a browser nobody could wait for them, so that none are asked for.
    fn check_timestamps(&self) -> Result<()> {
        if self.info.features.timestamps {
            return Ok(());
        }
        Err(Error::Unsupported { feature: "timestamps".into(), device: self.info.to_string() })
    }

    /// Runs the callbacks of reads that are due, and reports what went wrong.
    fn after_poll(&self, polled: Result<()>) -> Result<()> {
        match self.gpu.check_lost() {
            Ok(()) => self.reads.finish_due(),
            Err(lost) => self.reads.fail(&lost),
        }
        polled.and_then(|()| self.gpu.check())
    }
}

impl Drop for WebGpuBackend {
    fn drop(&mut self) {
        self.reads.fail(&self.gpu.lost("it was closed"));
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

    /// Those go through WGSL wherever they can, for wgpu to check.
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

    fn write(&self, buffer: BufferId, bytes: &[u8]) -> Result<()> {
        self.buffers.write(buffer, bytes)
    }

    /// WebGPU tells of no memory: 0, as [`DeviceInfo::memory`].
    fn budget(&self) -> u64 {
        self.info.memory
    }

    /// None. wgpu has pipeline caches where Vulkan is beneath only, and does not say whether one was of use; desktop
    /// drivers keep caches of their own, and the Vulkan backend is at hand where they do not.
    fn binary_key(&self, _: &Module) -> Option<String> {
        None
    }

    fn compile(&self, module: &Module, _: Option<&[u8]>) -> Result<Compiled> {
        self.gpu.check()?;
        let kernel = self.kernels.compile(module, &self.info)?;
        Ok(Compiled { kernel, binary: None, reused: false })
    }

    fn submit(&self, steps: &[Step], timed: bool) -> Result<Ticket> {
        self.gpu.check()?;
        if timed {
            self.check_timestamps()?;
        }
        self.queue.submit(steps, timed, &self.buffers, &self.kernels)
    }

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
        Ok(())
    }

    fn read(&self, buffer: BufferId, bytes: u64, after: Ticket, done: ReadCallback) {
        match self.gpu.check_lost().and_then(|()| self.buffers.get(buffer, "read")) {
            Ok(buffer) => self.reads.begin(buffer, bytes, after, done),
            Err(error) => done(Err(error)),
        }
    }
}
