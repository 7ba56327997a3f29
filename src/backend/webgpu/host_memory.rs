//! Buffers in memory that the host reaches, if wgpu runs on Vulkan.
//!
//! The host sees wgpu's own buffers only while they are mapped. wgpu clears each one before the host writes it, hands
//! it out once, and maps one that the host reads only when it polls. So the crate makes these buffers itself. Their
//! memory stays mapped, as in the Vulkan backend. Each has an allocation of the driver's to itself.

use super::guard::{GuardedDevice, describe, driver_error};
use super::hooks;
use crate::backend::contract::MemoryUse;
use crate::backend::memory_types::choose_type;
use crate::base::error::{Error, Result};
use ash::vk;
use std::ptr::NonNull;
use std::sync::Arc;
use wgpu::hal::vulkan::{Api, Buffer};

/// Where these buffers come from.
pub(super) struct HostMemory {
    device: Arc<ash::Device>,
    properties: vk::PhysicalDeviceMemoryProperties,
    /// The types that are coherent: nothing has to be flushed. Every device has one.
    coherent: u32,
}

/// The memory of a buffer, as the host sees it. The backend drops it before its device.
#[derive(Clone)]
pub(super) struct HostView(Arc<Mapped>);

/// A buffer and its memory. wgpu may have destroyed its own object, for example after a loss.
struct Mapped {
    device: Arc<ash::Device>,
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    pointer: NonNull<u8>,
    bytes: u64,
}

// SAFETY: it is only handles and an address. Those who hold the buffer order the accesses through it.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: neither wgpu nor the backend uses the buffer any more, and one of them still has the device.
        unsafe {
            self.device.destroy_buffer(self.buffer, None);
            self.device.free_memory(self.memory, None);
        }
    }
}

impl HostMemory {
    /// Returns the memory of a device that the crate has opened, not wgpu.
    pub fn of(gpu: &GuardedDevice) -> Option<HostMemory> {
        if !gpu.takes_spirv() {
            return None;
        }
        // SAFETY: nothing of the device is destroyed, except what is made here.
        let hal = unsafe { gpu.device.as_hal::<Api>() }?;
        let instance = hal.shared_instance().raw_instance();
        // SAFETY: the physical device is of this instance.
        let properties = unsafe { instance.get_physical_device_memory_properties(hal.raw_physical_device()) };
        let types = properties.memory_types_as_slice().iter().enumerate();
        let coherent = types
            .filter(|(_, kind)| kind.property_flags.contains(vk::MemoryPropertyFlags::HOST_COHERENT))
            .fold(0, |bits, (index, _)| bits | 1 << index);
        Some(HostMemory { device: Arc::new(hal.raw_device().clone()), properties, coherent })
    }

    /// Creates the buffer of a descriptor. `out_of_memory` is the error if there is no memory.
    pub fn allocate(
        &self,
        gpu: &GuardedDevice,
        descriptor: &wgpu::BufferDescriptor<'_>,
        memory: MemoryUse,
        out_of_memory: impl Fn() -> Error,
    ) -> Result<(wgpu::Buffer, HostView)> {
        let failed = |call, code| match code {
            vk::Result::ERROR_OUT_OF_DEVICE_MEMORY
            | vk::Result::ERROR_OUT_OF_HOST_MEMORY
            | vk::Result::ERROR_TOO_MANY_OBJECTS
            | vk::Result::ERROR_MEMORY_MAP_FAILED => out_of_memory(),
            code => driver_error(call, code.to_string()),
        };
        gpu.check_lost()?;
        let mapped = Arc::new(self.map(gpu, descriptor, memory, failed)?);
        let (buffer, kept) = (mapped.buffer, mapped.clone());
        let create = || {
            // SAFETY: the callback keeps the buffer as long as wgpu has it.
            let external = unsafe { Buffer::from_raw_externally_owned(buffer, Box::new(move || drop(kept))) };
            // SAFETY: the buffer is of this device, has the size and the uses of the descriptor, and its memory.
            unsafe { gpu.device.create_buffer_from_hal::<Api>(external, descriptor) }
        };
        let made = gpu.catch(create, |error| driver_error("Device::create_buffer_from_hal", describe(&error)))?;
        Ok((made, HostView(mapped)))
    }

    fn map(
        &self,
        gpu: &GuardedDevice,
        descriptor: &wgpu::BufferDescriptor<'_>,
        memory: MemoryUse,
        failed: impl Fn(&'static str, vk::Result) -> Error,
    ) -> Result<Mapped> {
        let uses = [
            (wgpu::BufferUsages::STORAGE, vk::BufferUsageFlags::STORAGE_BUFFER),
            (wgpu::BufferUsages::COPY_SRC, vk::BufferUsageFlags::TRANSFER_SRC),
            (wgpu::BufferUsages::COPY_DST, vk::BufferUsageFlags::TRANSFER_DST),
        ];
        let usage = uses.into_iter().filter(|(usage, _)| descriptor.usage.contains(*usage)).map(|(_, flag)| flag);
        let info = vk::BufferCreateInfo::default()
            .size(descriptor.size)
            .usage(usage.fold(vk::BufferUsageFlags::empty(), |all, flag| all | flag));
        // SAFETY: the device is alive, and the size within its limits.
        let created = unsafe { self.device.create_buffer(&info, None) };
        let buffer = created.map_err(|code| failed("vkCreateBuffer", code))?;
        // From here on, an error frees what there is.
        let mut mapped = Mapped {
            device: self.device.clone(),
            buffer,
            memory: vk::DeviceMemory::null(),
            pointer: NonNull::dangling(),
            bytes: descriptor.size,
        };
        // SAFETY: the buffer is of this device.
        let needs = unsafe { self.device.get_buffer_memory_requirements(buffer) };
        let index = choose_type(&self.properties, needs.memory_type_bits & self.coherent, memory)
            .ok_or_else(|| gpu.lacks(format!("memory for {memory:?} buffers")))?;
        let info = vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(index as u32);
        // SAFETY: the device has the memory type.
        let allocated = unsafe { self.device.allocate_memory(&info, None) };
        mapped.memory = allocated.map_err(|code| failed("vkAllocateMemory", code))?;
        // SAFETY: the memory is as large as the buffer needs, which has none yet.
        let bound = unsafe { self.device.bind_buffer_memory(buffer, mapped.memory, 0) };
        bound.map_err(|code| failed("vkBindBufferMemory", code))?;
        let flags = vk::MemoryMapFlags::empty();
        // SAFETY: a coherent type is visible to the host, and the memory is not mapped yet.
        let pointer = unsafe { self.device.map_memory(mapped.memory, 0, vk::WHOLE_SIZE, flags) };
        let pointer = pointer.map_err(|code| failed("vkMapMemory", code))?;
        mapped.pointer =
            NonNull::new(pointer.cast()).ok_or_else(|| failed("vkMapMemory", vk::Result::ERROR_UNKNOWN))?;
        Ok(mapped)
    }
}

impl HostView {
    /// Copies bytes to the buffer, from `offset` on. No unfinished batch uses these. The next submission makes them
    /// visible to the device.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset.saturating_add(bytes.len() as u64);
        self.check("write", end)?;
        // SAFETY: the memory is mapped and has these bytes. By the contract nothing else uses them.
        unsafe {
            let place = self.0.pointer.add(offset as usize);
            place.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
        }
        Ok(())
    }

    /// Returns the first `bytes` bytes. No unfinished batch writes them, and no later one as long as they are used.
    pub fn read(&self, bytes: u64) -> Result<&[u8]> {
        self.check("read", bytes)?;
        // SAFETY: the memory is mapped and has these bytes. By the contract nothing writes them.
        Ok(unsafe { std::slice::from_raw_parts(self.0.pointer.as_ptr(), bytes as usize) })
    }

    /// Fails if the buffer has fewer bytes.
    pub fn check(&self, call: &'static str, bytes: u64) -> Result<()> {
        match self.0.bytes {
            there if bytes <= there => Ok(()),
            there => Err(driver_error(call, format!("{bytes} bytes of a buffer of {there}"))),
        }
    }
}

/// Runs `record`, so that the host sees what the recorded commands write.
pub(super) fn visible<T>(record: impl FnOnce() -> T) -> T {
    hooks::visible_to_host(record)
}
