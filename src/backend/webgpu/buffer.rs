//! Buffers.

use super::guard::{GuardedDevice, describe, driver_error};
use crate::backend::contract::{BufferId, MemoryUse};
use crate::base::error::{Error, Result};
use parking_lot::{RwLock, RwLockReadGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// All buffers of a device. wgpu keeps a buffer alive while submitted work uses it.
pub(super) struct Buffers {
    gpu: Arc<GuardedDevice>,
    /// The largest buffer that a kernel can bind, and the largest possible buffer.
    limits: (u64, u64),
    last_id: AtomicU64,
    in_use: AtomicU64,
    live: RwLock<BufferMap>,
}

#[derive(Default)]
pub(super) struct BufferMap(HashMap<BufferId, wgpu::Buffer>);

impl BufferMap {
    /// Returns a buffer. `call` is for the error.
    pub fn find(&self, id: BufferId, call: &'static str) -> Result<&wgpu::Buffer> {
        self.0.get(&id).ok_or_else(|| driver_error(call, format!("there is no buffer {}", id.0)))
    }
}

impl Buffers {
    pub fn new(gpu: Arc<GuardedDevice>, max_binding_bytes: u64) -> Buffers {
        let limits = (max_binding_bytes, gpu.device.limits().max_buffer_size);
        Buffers { gpu, limits, last_id: AtomicU64::new(0), in_use: AtomicU64::new(0), live: RwLock::default() }
    }

    pub fn allocate(&self, bytes: u64, memory: MemoryUse) -> Result<BufferId> {
        use wgpu::BufferUsages as Usage;
        let (usage, limit) = match memory {
            MemoryUse::Kernels(_) => (Usage::STORAGE | Usage::COPY_SRC | Usage::COPY_DST, self.limits.0),
            MemoryUse::Upload => (Usage::MAP_WRITE | Usage::COPY_SRC, self.limits.1),
            MemoryUse::Readback => (Usage::MAP_READ | Usage::COPY_DST, self.limits.1),
        };
        let in_use = self.in_use.load(Ordering::Relaxed);
        if bytes > limit {
            return Err(Error::OutOfMemory { requested: bytes, in_use, limit });
        }
        let mapped_at_creation = memory == MemoryUse::Upload;
        let descriptor = wgpu::BufferDescriptor { label: None, size: bytes, usage, mapped_at_creation };
        let buffer = self.gpu.catch(
            || self.gpu.device.create_buffer(&descriptor),
            |error| match error {
                // WebGPU reports no limit. So this is what the driver gave so far, and at least one buffer.
                wgpu::Error::OutOfMemory { .. } => {
                    Error::OutOfMemory { requested: bytes, in_use, limit: in_use.max(bytes) }
                }
                error => driver_error("Device::create_buffer", describe(&error)),
            },
        )?;
        let id = BufferId(self.last_id.fetch_add(1, Ordering::Relaxed) + 1);
        self.in_use.fetch_add(bytes, Ordering::Relaxed);
        self.live.write().0.insert(id, buffer);
        Ok(id)
    }

    /// Removes a buffer. Returns whether bind groups may still name it.
    pub fn free(&self, id: BufferId) -> bool {
        let Some(buffer) = self.live.write().0.remove(&id) else { return false };
        self.in_use.fetch_sub(buffer.size(), Ordering::Relaxed);
        buffer.usage().contains(wgpu::BufferUsages::STORAGE)
    }

    /// Fills an upload buffer and hands it to the device. It can be written only once.
    pub fn write(&self, id: BufferId, offset: u64, bytes: &[u8]) -> Result<()> {
        self.gpu.check_lost()?;
        let buffer = self.get(id, "write")?;
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

    /// Returns a buffer. `call` is for the error.
    pub fn get(&self, id: BufferId, call: &'static str) -> Result<wgpu::Buffer> {
        self.live.read().find(id, call).cloned()
    }

    /// Returns all live buffers, for a thread that looks up many.
    pub fn lock(&self) -> RwLockReadGuard<'_, BufferMap> {
        self.live.read()
    }
}
