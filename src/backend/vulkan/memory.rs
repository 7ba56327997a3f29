//! Buffers, and the memory behind them.

use super::adapter::Adapter;
use super::blocks::{Blocks, Piece, Source};
use super::device::Device;
use crate::backend::contract::{BufferId, MemoryUse};
use crate::backend::explicit;
use crate::backend::info::MemoryKind;
use crate::backend::memory_types::{choose_type, shares_device_memory};
use crate::backend::rules::unknown_buffer;
use crate::backend::slots::Slots;
use crate::base::error::{Error, Result};
use ash::vk;
use parking_lot::{RwLock, RwLockReadGuard};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// The usage of every buffer.
const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
        | vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
        | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
);

/// The live buffers of a device.
pub(super) struct Memory {
    buffers: RwLock<Slots<Buffer>>,
    blocks: Blocks<Driver>,
    /// Those of staging memory. It comes and goes, and must not keep blocks that buffers have left.
    staging: Blocks<Driver>,
    device: Arc<Device>,
}

/// The driver's memory.
struct Driver(Arc<Device>);

/// A block of the driver's memory.
#[derive(Clone, Copy)]
struct Block {
    memory: vk::DeviceMemory,
    /// Its first byte, if the host reaches it.
    pointer: Option<NonNull<u8>>,
}

// SAFETY: it is only a handle and an address. The blocks order all accesses to them.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Source for Driver {
    type Block = Block;

    fn allocate(&self, memory_type: usize, bytes: u64) -> Result<Block> {
        let Driver(device) = self;
        let mut flags = vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let mut info = vk::MemoryAllocateInfo::default().allocation_size(bytes).memory_type_index(memory_type as u32);
        if device.adapter.addresses {
            info = info.push_next(&mut flags);
        }
        let kind = device.adapter.memory.memory_types[memory_type];
        let heap = kind.heap_index as usize;
        // SAFETY: the device is alive, and has the memory type.
        let allocated = unsafe { device.raw.allocate_memory(&info, None) };
        let failed = |call, code| match code {
            // Also beyond the most allocations of a driver.
            vk::Result::ERROR_OUT_OF_DEVICE_MEMORY
            | vk::Result::ERROR_OUT_OF_HOST_MEMORY
            | vk::Result::ERROR_TOO_MANY_OBJECTS
            | vk::Result::ERROR_MEMORY_MAP_FAILED => device.out_of_memory(bytes, heap),
            code => device.error(call, code),
        };
        let memory = allocated.map_err(|code| failed("vkAllocateMemory", code))?;
        let mut block = Block { memory, pointer: None };
        if kind.property_flags.contains(vk::MemoryPropertyFlags::HOST_VISIBLE) {
            // SAFETY: the memory is visible to the host, and not mapped yet.
            let mapped = unsafe { device.raw.map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty()) };
            match mapped {
                Ok(pointer) => block.pointer = NonNull::new(pointer.cast()),
                Err(code) => {
                    // SAFETY: nothing else has the memory.
                    unsafe { device.raw.free_memory(memory, None) };
                    return Err(failed("vkMapMemory", code));
                }
            }
        }
        device.count_allocated(heap, bytes);
        Ok(block)
    }

    fn free(&self, Block { memory, .. }: Block, memory_type: usize, bytes: u64) {
        let Driver(device) = self;
        device.count_freed(device.adapter.memory.memory_types[memory_type].heap_index as usize, bytes);
        // SAFETY: no buffer is bound to it any more.
        unsafe { device.raw.free_memory(memory, None) };
    }
}

/// A buffer with its memory.
pub(super) struct Buffer {
    /// The driver's handle.
    pub handle: vk::Buffer,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its address for kernels, if the device has buffer addresses.
    pub address: Option<vk::DeviceAddress>,
    piece: Piece<Block>,
    is_staging: bool,
    /// Whether the host and the device see each other's writes without more.
    is_coherent: bool,
}

/// A buffer's memory as the host sees it. Valid as long as the buffer is.
pub(super) struct HostView {
    pointer: NonNull<u8>,
    bytes: usize,
    /// What to flush or invalidate, if the memory is not coherent.
    range: Option<vk::MappedMemoryRange<'static>>,
}

// SAFETY: it is only an address and a length. Those who hold the buffer order the accesses through it.
unsafe impl Send for HostView {}

impl Memory {
    pub fn new(device: Arc<Device>) -> Memory {
        let types = device.adapter.memory.memory_types_as_slice().len();
        let [blocks, staging] = [(); 2].map(|()| Blocks::new(Driver(device.clone()), types));
        Memory { buffers: RwLock::new(Slots::new()), blocks, staging, device }
    }

    fn blocks(&self, is_staging: bool) -> &Blocks<Driver> {
        if is_staging { &self.staging } else { &self.blocks }
    }

    /// Finds memory for a buffer, and binds it.
    fn bind(&self, handle: vk::Buffer, bytes: u64, memory: MemoryUse) -> Result<Buffer> {
        // SAFETY: the buffer is of this device.
        let vk::MemoryRequirements { mut size, mut alignment, memory_type_bits } =
            unsafe { self.device.raw.get_buffer_memory_requirements(handle) };
        let properties = &self.device.adapter.memory;
        let Some(index) = choose_type(properties, memory_type_bits, memory) else {
            let feature = format!("memory for {memory:?} buffers");
            return Err(Error::Unsupported { feature, device: self.device.describe() });
        };
        let is_coherent =
            properties.memory_types[index].property_flags.contains(vk::MemoryPropertyFlags::HOST_COHERENT);
        if !is_coherent {
            // Flushing or invalidating this buffer must never touch another one.
            let atom = self.device.adapter.base.limits.non_coherent_atom_size.max(1);
            alignment = alignment.max(atom);
            size = size.next_multiple_of(atom);
        }
        let is_staging = !matches!(memory, MemoryUse::Kernels(_));
        let piece = self.blocks(is_staging).allocate(index, size, alignment)?;
        // SAFETY: the piece is of this device and fits the buffer's requirements; the buffer has no memory yet.
        let bound = unsafe { self.device.raw.bind_buffer_memory(handle, piece.block.memory, piece.range.start) };
        if let Err(error) = self.device.check("vkBindBufferMemory", bound) {
            self.blocks(is_staging).free(piece);
            return Err(error);
        }
        let address = self.device.adapter.addresses.then(|| {
            let info = vk::BufferDeviceAddressInfo::default().buffer(handle);
            // SAFETY: the device has the feature, and the buffer its memory and the usage.
            unsafe { self.device.raw.get_buffer_device_address(&info) }
        });
        Ok(Buffer { handle, bytes, address, piece, is_staging, is_coherent })
    }

    /// Returns the memory type of what is loaded. On unified memory the host writes it in place.
    fn type_of_loads(&self) -> Option<usize> {
        let Adapter { memory, info, .. } = &self.device.adapter;
        let kind = if info.unified_memory { MemoryKind::Shared } else { MemoryKind::Device };
        choose_type(memory, !0, MemoryUse::Kernels(kind))
    }

    fn destroy(&self, buffer: Buffer) {
        // SAFETY: by the contract no unfinished batch uses it, and its number no longer finds it.
        unsafe { self.device.raw.destroy_buffer(buffer.handle, None) };
        self.blocks(buffer.is_staging).free(buffer.piece);
    }

    /// Finds bytes of a buffer that the host reaches. `op` is for the error.
    fn view(&self, buffer: BufferId, Range { start, end }: Range<u64>, op: &'static str) -> Result<HostView> {
        let buffers = self.buffers.read();
        let found = buffers.get(buffer.0).ok_or_else(|| unknown_buffer(op, buffer))?;
        let pointer = found.piece.block.pointer;
        let (Some(pointer), true) = (pointer, start <= end && end <= found.bytes) else {
            let size = found.bytes;
            let message = format!("the host cannot reach bytes {start} to {end} of {buffer:?}, which has {size}");
            return Err(Error::InvalidArgument { op, message });
        };
        // Whole atoms, and no others: another thread may be writing them. Pieces begin and end with atoms.
        let atom = self.device.adapter.base.limits.non_coherent_atom_size.max(1);
        let range = (!found.is_coherent).then(|| {
            let (first, last) = (start / atom * atom, end.next_multiple_of(atom).min(found.piece.bytes()));
            vk::MappedMemoryRange::default()
                .memory(found.piece.block.memory)
                .offset(found.piece.range.start + first)
                .size(last.saturating_sub(first).max(atom))
        });
        // SAFETY: the buffer has these bytes, and its block is mapped.
        let pointer = unsafe { pointer.add((found.piece.range.start + start) as usize) };
        Ok(HostView { pointer, bytes: (end - start) as usize, range })
    }

    /// Returns the live buffers, to look up many at once.
    pub fn buffers(&self) -> RwLockReadGuard<'_, Slots<Buffer>> {
        self.buffers.read()
    }

    /// Makes the host see what the device wrote, if the memory is not coherent.
    fn invalidate(&self, view: &HostView) -> Result<()> {
        let Some(range) = view.range else { return Ok(()) };
        // SAFETY: the range lies within mapped memory, in whole atoms.
        let invalidated = unsafe { self.device.raw.invalidate_mapped_memory_ranges(&[range]) };
        self.device.check("vkInvalidateMappedMemoryRanges", invalidated)
    }
}

impl explicit::Memory for Memory {
    type View = HostView;

    fn reserved(&self) -> Option<u64> {
        let device_heap = self.device.adapter.device_heap;
        let shared =
            self.type_of_loads().map(|index| self.device.adapter.memory.memory_types[index].heap_index as usize);
        let others = shared.filter(|heap| *heap != device_heap).map_or(0, |heap| self.device.heap_in_use(heap));
        Some(self.device.heap_in_use(device_heap) + others)
    }

    fn foresee(&self, bytes: u64) {
        if let Some(index) = self.type_of_loads() {
            self.blocks.foresee(index, bytes);
        }
    }

    fn allocate(&self, bytes: u64, memory: MemoryUse) -> Result<BufferId> {
        if bytes > self.device.adapter.info.limits.max_buffer_bytes {
            return Err(self.device.too_large(bytes));
        }
        let addressed = match self.device.adapter.addresses {
            true => vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS,
            false => vk::BufferUsageFlags::empty(),
        };
        let families = self.device.adapter.families();
        let sharing = if families.len() > 1 { vk::SharingMode::CONCURRENT } else { vk::SharingMode::EXCLUSIVE };
        let info = vk::BufferCreateInfo::default()
            .size(bytes)
            .usage(USAGE | addressed)
            .sharing_mode(sharing)
            .queue_family_indices(&families);
        // SAFETY: the device is alive, and the size is within its limits.
        let handle = self.device.check("vkCreateBuffer", unsafe { self.device.raw.create_buffer(&info, None) })?;
        match self.bind(handle, bytes, memory) {
            Ok(buffer) => Ok(BufferId(self.buffers.write().insert(buffer))),
            Err(error) => {
                // SAFETY: nothing else has the handle.
                unsafe { self.device.raw.destroy_buffer(handle, None) };
                Err(error)
            }
        }
    }

    fn free(&self, buffer: BufferId) {
        let removed = self.buffers.write().remove(buffer.0);
        match removed {
            Some(buffer) => self.destroy(buffer),
            None => log::error!("Vulkan: {buffer:?} was freed, but does not exist"),
        }
    }

    fn host_reads_device_memory(&self) -> bool {
        let properties = &self.device.adapter.memory;
        let chosen = choose_type(properties, !0, MemoryUse::Kernels(MemoryKind::Device));
        let fast = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_CACHED;
        self.device.adapter.info.unified_memory
            && chosen.is_some_and(|index| properties.memory_types[index].property_flags.contains(fast))
    }

    fn host_writes_device_memory(&self) -> bool {
        !self.device.adapter.info.unified_memory && shares_device_memory(&self.device.adapter.memory)
    }

    /// Copies `bytes` to a buffer. The next submission makes them visible to the device.
    fn write(&self, buffer: BufferId, offset: u64, bytes: &[u8]) -> Result<()> {
        let view = self.view(buffer, offset..offset.saturating_add(bytes.len() as u64), "write")?;
        // The last atom goes beyond `bytes`. The flush must not overwrite what the device wrote there.
        self.invalidate(&view)?;
        // SAFETY: the view has that many bytes. By the contract no unfinished batch uses them.
        unsafe { view.pointer.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        if let Some(range) = view.range {
            // SAFETY: the range lies within mapped memory, in whole atoms.
            let flushed = unsafe { self.device.raw.flush_mapped_memory_ranges(&[range]) };
            self.device.check("vkFlushMappedMemoryRanges", flushed)?;
        }
        Ok(())
    }

    fn host_view(&self, buffer: BufferId, bytes: u64, op: &'static str) -> Result<HostView> {
        self.view(buffer, 0..bytes, op)
    }

    unsafe fn read<'a>(&self, view: &'a HostView) -> Result<&'a [u8]> {
        self.invalidate(view)?;
        // SAFETY: mapped, of that length, and the caller keeps it alive and unwritten.
        Ok(unsafe { std::slice::from_raw_parts(view.pointer.as_ptr(), view.bytes) })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let left: Vec<_> = self.buffers.get_mut().drain().collect();
        left.into_iter().for_each(|buffer| self.destroy(buffer));
    }
}
