//! Buffers: unified shared memory of the device, of the host, or migrating between them.

use super::adapter::BUFFER_ALIGNMENT;
use super::device::Device;
use super::ffi::*;
use crate::backend::contract::{BufferId, MemoryUse};
use crate::backend::explicit;
use crate::backend::info::MemoryKind;
use crate::backend::rules::unknown_buffer;
use crate::backend::slots::Slots;
use crate::base::error::{Error, Result};
use parking_lot::{RwLock, RwLockReadGuard};
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// The live buffers of a device.
pub(super) struct Memory {
    buffers: RwLock<Slots<Buffer>>,
    device: Arc<Device>,
}

/// A buffer: an address that is the same for host and device.
pub(super) struct Buffer {
    pub address: NonNull<u8>,
    /// Its size in bytes.
    pub bytes: u64,
    pub place: Place,
}

// SAFETY: it is only an address and a length. Those who hold the buffer order the accesses through it.
unsafe impl Send for Buffer {}
// SAFETY: see above.
unsafe impl Sync for Buffer {}

/// Where a buffer's bytes are. This decides who reaches them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In the device's memory. Only the device reaches them.
    Device,
    /// Where they were used last: they migrate, unless the device has only the host's memory.
    Shared,
    /// In the host's memory. The device reaches them across the bus.
    Host,
}

/// The start of a buffer that the host reaches. Valid as long as the buffer is.
pub(super) struct HostView {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is only an address and a length. Those who hold the buffer order the accesses through it.
unsafe impl Send for HostView {}

impl Place {
    /// Returns the place of a buffer. On a device without memory of its own the host reads results in place: the driver
    /// keeps shared memory in one place there, so nothing migrates, and the host may read beside kernels that read. How
    /// fast kernels are in it was not measured on Intel's GPUs.
    fn of(memory: MemoryUse, unified: bool) -> Place {
        match memory {
            MemoryUse::Kernels(MemoryKind::Device) if !unified => Place::Device,
            MemoryUse::Kernels(MemoryKind::Device | MemoryKind::Shared) => Place::Shared,
            MemoryUse::Kernels(MemoryKind::Host) | MemoryUse::Upload | MemoryUse::Readback => Place::Host,
        }
    }
}

impl Memory {
    /// Creates an empty list.
    pub fn new(device: Arc<Device>) -> Memory {
        Memory { buffers: RwLock::new(Slots::new()), device }
    }

    fn allocate_in(&self, bytes: u64, place: Place) -> Result<NonNull<u8>> {
        let Device { api, adapter, context, .. } = &*self.device;
        let size = usize::try_from(bytes).map_err(|_| self.device.too_large(bytes))?;
        let relaxed =
            RelaxedAllocationLimitsExpDesc { flags: RelaxedAllocationLimitsExpFlags::MAX_SIZE, ..Default::default() };
        let next = if bytes > adapter.max_allocation { (&raw const relaxed).cast() } else { ptr::null() };
        let on_device = DeviceMemAllocDesc { next, ordinal: adapter.memory_ordinal, ..Default::default() };
        let on_host = HostMemAllocDesc { next, ..Default::default() };
        let mut address: *mut c_void = ptr::null_mut();
        let out = &raw mut address;
        // SAFETY: context and device belong together, and the structures outlive the calls.
        let (call, code) = unsafe {
            match place {
                Place::Device => (
                    "zeMemAllocDevice",
                    (api.mem_alloc_device)(*context, &on_device, size, BUFFER_ALIGNMENT, adapter.device, out),
                ),
                Place::Shared => (
                    "zeMemAllocShared",
                    (api.mem_alloc_shared)(*context, &on_device, &on_host, size, BUFFER_ALIGNMENT, adapter.device, out),
                ),
                Place::Host => {
                    ("zeMemAllocHost", (api.mem_alloc_host)(*context, &on_host, size, BUFFER_ALIGNMENT, out))
                }
            }
        };
        self.device.check(call, code)?;
        NonNull::new(address.cast()).ok_or_else(|| self.device.out_of_memory(bytes))
    }

    fn destroy(&self, buffer: &Buffer) {
        self.device.count_freed(buffer.bytes);
        // SAFETY: by the contract no unfinished batch uses it, and its number no longer finds it.
        let code = unsafe { (self.device.api.mem_free)(self.device.context, buffer.address.as_ptr().cast()) };
        self.device.log_failure("zeMemFree", code);
    }

    /// Returns the live buffers, to look up many at once.
    pub fn buffers(&self) -> RwLockReadGuard<'_, Slots<Buffer>> {
        self.buffers.read()
    }
}

impl explicit::Memory for Memory {
    type View = HostView;

    fn allocate(&self, bytes: u64, memory: MemoryUse) -> Result<BufferId> {
        if bytes > self.device.adapter.info.limits.max_buffer_bytes {
            return Err(self.device.too_large(bytes));
        }
        let place = Place::of(memory, self.device.adapter.info.unified_memory);
        let address = self.allocate_in(bytes, place).map_err(|error| match error {
            Error::OutOfMemory { .. } => self.device.out_of_memory(bytes),
            error => error,
        })?;
        self.device.count_allocated(bytes);
        Ok(BufferId(self.buffers.write().insert(Buffer { address, bytes, place })))
    }

    fn free(&self, buffer: BufferId) {
        let removed = self.buffers.write().remove(buffer.0);
        match removed {
            Some(buffer) => self.destroy(&buffer),
            None => log::error!("Level Zero: {buffer:?} was freed, but does not exist"),
        }
    }

    fn host_reads_device_memory(&self) -> bool {
        self.device.adapter.info.unified_memory
    }

    fn write(&self, buffer: BufferId, offset: u64, bytes: &[u8]) -> Result<()> {
        let view = self.host_view(buffer, offset.saturating_add(bytes.len() as u64), "write")?;
        // SAFETY: the view ends where these bytes do. By the contract no unfinished batch uses them.
        unsafe {
            let start = view.address.add(offset as usize);
            start.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
        }
        Ok(())
    }

    fn host_view(&self, buffer: BufferId, bytes: u64, op: &'static str) -> Result<HostView> {
        let buffers = self.buffers.read();
        let found = buffers.get(buffer.0).ok_or_else(|| unknown_buffer(op, buffer))?;
        if found.place == Place::Device || bytes > found.bytes {
            let (place, size) = (found.place, found.bytes);
            let message = format!("the host cannot reach {bytes} bytes of {buffer:?}, which has {size} ({place:?})");
            return Err(Error::InvalidArgument { op, message });
        }
        Ok(HostView { address: found.address, bytes: bytes as usize })
    }

    unsafe fn read<'a>(&self, view: &'a HostView) -> Result<&'a [u8]> {
        // SAFETY: of that length, and the caller keeps it alive and unwritten.
        Ok(unsafe { std::slice::from_raw_parts(view.address.as_ptr(), view.bytes) })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let left: Vec<_> = self.buffers.get_mut().drain().collect();
        left.iter().for_each(|buffer| self.destroy(buffer));
    }
}
