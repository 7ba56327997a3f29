//! Buffers.

use super::guard::{GuardedDevice, describe, driver_error};
use super::host_memory::{HostMemory, HostView};
use crate::backend::contract::{BufferId, Command, MemoryUse, Step};
use crate::base::error::{Error, Result};
use parking_lot::{RwLock, RwLockReadGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// All buffers of a device. wgpu keeps a buffer alive while submitted work uses it.
pub(super) struct Buffers {
    live: RwLock<BufferMap>,
    /// Where buffers come from that the host reaches. If there is none, wgpu maps the staging buffers.
    host: Option<HostMemory>,
    /// Whether the host reaches the buffers of kernels too.
    in_place: bool,
    gpu: Arc<GuardedDevice>,
    /// The largest buffer that a kernel can bind, and the largest possible buffer.
    limits: (u64, u64),
    last_id: AtomicU64,
    in_use: AtomicU64,
}

#[derive(Default)]
pub(super) struct BufferMap(HashMap<BufferId, Buffer>);

#[derive(Clone)]
struct Buffer {
    handle: wgpu::Buffer,
    /// Its memory, if that is not wgpu's.
    view: Option<HostView>,
}

impl BufferMap {
    /// Returns a buffer. `call` is for the error.
    pub fn find(&self, id: BufferId, call: &'static str) -> Result<&wgpu::Buffer> {
        self.get(id, call).map(|buffer| &buffer.handle)
    }

    fn get(&self, id: BufferId, call: &'static str) -> Result<&Buffer> {
        self.0.get(&id).ok_or_else(|| driver_error(call, format!("there is no buffer {}", id.0)))
    }
}

impl Buffers {
    /// `in_place` says whether the host reaches all buffers.
    pub fn new(gpu: Arc<GuardedDevice>, max_binding_bytes: u64, in_place: bool) -> Buffers {
        let limits = (max_binding_bytes, gpu.device.limits().max_buffer_size);
        let host = HostMemory::of(&gpu);
        let (live, last_id, in_use) = Default::default();
        Buffers { live, host, in_place, gpu, limits, last_id, in_use }
    }

    pub fn allocate(&self, bytes: u64, memory: MemoryUse) -> Result<BufferId> {
        use wgpu::BufferUsages as Usage;
        let (usage, mapped, limit) = match memory {
            MemoryUse::Kernels(_) => {
                (Usage::STORAGE | Usage::COPY_SRC | Usage::COPY_DST, Usage::empty(), self.limits.0)
            }
            MemoryUse::Upload => (Usage::COPY_SRC, Usage::MAP_WRITE, self.limits.1),
            MemoryUse::Readback => (Usage::COPY_DST, Usage::MAP_READ, self.limits.1),
        };
        let in_use = self.in_use.load(Ordering::Relaxed);
        if bytes > limit {
            return Err(Error::OutOfMemory { requested: bytes, in_use, limit });
        }
        // WebGPU reports no limit. So this is what the driver gave so far, and at least one buffer.
        let out_of_memory = || Error::OutOfMemory { requested: bytes, in_use, limit: in_use.max(bytes) };
        let descriptor = wgpu::BufferDescriptor { label: None, size: bytes, usage, mapped_at_creation: false };
        let reached = self.host.as_ref().filter(|_| self.in_place || !matches!(memory, MemoryUse::Kernels(_)));
        let buffer = match reached {
            Some(host) => {
                let (handle, view) = host.allocate(&self.gpu, &descriptor, memory, out_of_memory)?;
                Buffer { handle, view: Some(view) }
            }
            None => {
                let mapped_at_creation = memory == MemoryUse::Upload;
                let descriptor = wgpu::BufferDescriptor { usage: usage | mapped, mapped_at_creation, ..descriptor };
                let create = || self.gpu.device.create_buffer(&descriptor);
                let handle = self.gpu.catch(create, |error| match error {
                    wgpu::Error::OutOfMemory { .. } => out_of_memory(),
                    error => driver_error("Device::create_buffer", describe(&error)),
                })?;
                Buffer { handle, view: None }
            }
        };
        let id = BufferId(self.last_id.fetch_add(1, Ordering::Relaxed) + 1);
        self.in_use.fetch_add(bytes, Ordering::Relaxed);
        self.live.write().0.insert(id, buffer);
        Ok(id)
    }

    /// Removes a buffer. Returns whether bind groups may still name it.
    pub fn free(&self, id: BufferId) -> bool {
        let Some(Buffer { handle, .. }) = self.live.write().0.remove(&id) else { return false };
        self.in_use.fetch_sub(handle.size(), Ordering::Relaxed);
        handle.usage().contains(wgpu::BufferUsages::STORAGE)
    }

    /// Whether upload buffers can be written more than once.
    pub fn rewrites_uploads(&self) -> bool {
        self.host.is_some()
    }

    /// Whether the host can read what these steps write, without wgpu.
    pub fn host_reads(&self, steps: &[Step]) -> bool {
        let live = self.live.read();
        let is_reached = |step: &Step| match step.command {
            Command::CopyRegion { dst, .. } => live.0.get(&dst).is_some_and(|buffer| buffer.view.is_some()),
            _ => false,
        };
        self.in_place || steps.iter().any(is_reached)
    }

    /// Fills a part of a buffer that the host reaches. wgpu's own upload buffers can be written only once.
    pub fn write(&self, id: BufferId, offset: u64, bytes: &[u8]) -> Result<()> {
        self.gpu.check_lost()?;
        let (buffer, view) = self.get(id, "write")?;
        if let Some(view) = view {
            return view.write(offset, bytes);
        }
        let fail = |message| Err(driver_error("write", message));
        let end = offset.saturating_add(bytes.len() as u64);
        if end > buffer.size() {
            return fail(format!("{end} bytes do not fit into a buffer of {}", buffer.size()));
        }
        match buffer.get_mapped_range_mut(..) {
            Ok(mut view) => view.slice(offset as usize..end as usize).copy_from_slice(bytes),
            Err(error) => return fail(format!("the buffer is not for uploads, or was written before: {error}")),
        }
        buffer.unmap();
        Ok(())
    }

    /// Returns a buffer, and its memory if that is not wgpu's. `call` is for the error.
    pub fn get(&self, id: BufferId, call: &'static str) -> Result<(wgpu::Buffer, Option<HostView>)> {
        self.live.read().get(id, call).cloned().map(|Buffer { handle, view }| (handle, view))
    }

    /// Returns all live buffers, for a thread that looks up many.
    pub fn lock(&self) -> RwLockReadGuard<'_, BufferMap> {
        self.live.read()
    }
}
