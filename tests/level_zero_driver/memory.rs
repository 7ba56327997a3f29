//! Memory. Every allocation ends at a guard page. Pages of "device" memory are inaccessible to the host while no
//! pending command uses them.

use crate::Outcome;
use crate::context::Context;
use crate::device::{self, Device};
use crate::faults::settings;
use crate::ffi::*;
use crate::handles::Handle;
use crate::pointer::Pointer;
use crate::report::{misuse, note};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const PAGE: usize = 4096;

/// The least alignment of allocations.
const ALIGNMENT: usize = 16;

/// The value of the bytes between the end of an allocation and its guard page, if the alignment leaves some.
const BEHIND: u8 = 0xa5;

/// New memory up to this size is filled with ones, which are NaN as floats. Its contents are undefined.
const POISONED: usize = 1 << 20;

/// An allocation of the application.
pub struct Allocation {
    pub context: Arc<Context>,
    pub device: Option<usize>,
    kind: MemoryType,
    id: u64,
    start: usize,
    size: usize,
    mapping: Mapping,
    alive: AtomicBool,
    open: Mutex<Open>,
}

/// What pending commands use of an allocation.
#[derive(Default)]
struct Open {
    uses: usize,
    /// The addresses of accessible pages of device memory, and of what lies between them.
    pages: Option<Range<usize>>,
}

/// What a command uses of an allocation.
pub struct Use {
    pub allocation: Arc<Allocation>,
    /// The addresses of pages.
    pages: Range<usize>,
}

impl Use {
    /// Returns the use of some bytes from an address on. They are in the allocation.
    fn new(allocation: &Arc<Allocation>, address: usize, bytes: usize) -> Self {
        let pages = address / PAGE * PAGE..(address + bytes).next_multiple_of(PAGE);
        Self { allocation: allocation.clone(), pages }
    }

    /// Returns the use of a whole allocation.
    pub fn whole(allocation: &Arc<Allocation>) -> Self {
        Self::new(allocation, allocation.start, allocation.size)
    }

    /// Counts a submitted command that uses the memory.
    pub fn begin(&self) {
        self.allocation.begin_use(&self.pages);
    }

    /// Counts the end of such a command.
    pub fn end(&self) {
        self.allocation.end_use();
    }
}

/// Pages of the process: a guard page, the body, and a guard page.
struct Mapping {
    base: usize,
    body: usize,
}

impl Mapping {
    fn new(body: usize) -> Option<Self> {
        let (protection, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        let length = body.checked_add(2 * PAGE)?;
        // SAFETY: new pages at an address that the system chooses.
        let base = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        Some(Self { base: base as usize, body })
    }

    /// The addresses between the guard pages.
    fn body(&self) -> Range<usize> {
        let start = self.base + PAGE;
        start..start + self.body
    }

    /// Protects pages of the body.
    fn protect(&self, pages: &Range<usize>, protection: libc::c_int) {
        assert!(self.body().start <= pages.start && pages.end <= self.body().end, "{pages:x?} are other pages");
        // SAFETY: pages of this mapping. An access without permission shall fault.
        let result = unsafe { libc::mprotect(pages.start as *mut c_void, pages.len(), protection) };
        assert_eq!(result, 0, "mprotect: {}", std::io::Error::last_os_error());
    }

    fn contains(&self, address: usize) -> bool {
        (self.base..self.base + self.body + 2 * PAGE).contains(&address)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the pages of this mapping, which nothing refers to any longer.
        unsafe { libc::munmap(self.base as *mut c_void, self.body + 2 * PAGE) };
    }
}

/// The live allocations, by the start of their mapping.
static LIVE: Mutex<BTreeMap<usize, Arc<Allocation>>> = Mutex::new(BTreeMap::new());

pub fn live_count() -> usize {
    LIVE.lock().len()
}

fn mapped_at(live: &BTreeMap<usize, Arc<Allocation>>, address: usize) -> Option<&Arc<Allocation>> {
    let (_, allocation) = live.range(..=address).next_back()?;
    allocation.mapping.contains(address).then_some(allocation)
}

/// Returns the allocation that a pointer points into.
pub fn find(address: usize) -> Option<Arc<Allocation>> {
    let live = LIVE.lock();
    mapped_at(&live, address).filter(|allocation| allocation.holds(address, 0)).cloned()
}

/// Returns the use of `bytes` bytes at an address. `None` is host memory that the driver does not know. Fails if the
/// bytes leave the allocation.
pub fn reach(address: usize, bytes: usize) -> Outcome<Option<Use>> {
    let live = LIVE.lock();
    match mapped_at(&live, address) {
        Some(allocation) if !allocation.holds(address, bytes) => Err(misuse(
            ResultCode::ERROR_INVALID_ARGUMENT,
            format!("a copy or fill of {bytes} bytes leaves {}", allocation.describe(address)),
        )),
        allocation => Ok(allocation.map(|allocation| Use::new(allocation, address, bytes))),
    }
}

/// Describes an address to `tell`, for the fault handler. Does nothing if it would have to wait for the lock.
pub fn with_allocation_at(address: usize, tell: impl FnOnce(&Allocation)) {
    if let Some(live) = LIVE.try_lock()
        && let Some(allocation) = mapped_at(&live, address)
    {
        tell(allocation);
    }
}

impl Allocation {
    fn new(
        context: Arc<Context>,
        device: Option<usize>,
        kind: MemoryType,
        size: usize,
        alignment: usize,
    ) -> Option<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let slack = if alignment > PAGE { alignment } else { 0 };
        let mapping = Mapping::new(size.checked_next_multiple_of(PAGE)?.checked_add(slack)?)?;
        let start = (mapping.base + PAGE + mapping.body - size) & !(alignment - 1);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let (alive, open) = (AtomicBool::new(true), Mutex::default());
        let allocation = Self { context, device, kind, id, start, size, mapping, alive, open };
        let body = allocation.mapping.body();
        allocation.mapping.protect(&body, libc::PROT_READ | libc::PROT_WRITE);
        let (end, behind) = allocation.behind();
        // SAFETY: the rest of the last page, which nobody uses.
        unsafe { ptr::write_bytes(end as *mut u8, BEHIND, behind) };
        if size <= POISONED {
            // SAFETY: the allocation's own bytes, which nobody else knows yet.
            unsafe { ptr::write_bytes(start as *mut u8, 0xff, size) };
        }
        if allocation.is_device_memory() {
            allocation.mapping.protect(&body, libc::PROT_NONE);
        }
        Some(allocation)
    }

    /// The start and number of the bytes between the end of the allocation and the guard page.
    fn behind(&self) -> (usize, usize) {
        let end = self.start + self.size;
        (end, self.mapping.base + PAGE + self.mapping.body - end)
    }

    /// True if the bytes after the allocation have not changed.
    fn is_intact(&self) -> bool {
        let (end, count) = self.behind();
        self.begin_use(&(end / PAGE * PAGE..self.mapping.body().end));
        // SAFETY: the pages of memory in use are readable.
        let intact = (0..count).all(|index| unsafe { ((end + index) as *const u8).read_volatile() } == BEHIND);
        self.end_use();
        intact
    }

    fn holds(&self, address: usize, bytes: usize) -> bool {
        address >= self.start && (address - self.start).checked_add(bytes).is_some_and(|end| end <= self.size)
    }

    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::SeqCst)
    }

    pub fn is_device_memory(&self) -> bool {
        self.kind == MemoryType::DEVICE
    }

    /// The offset of an address from the start. Negative before the start.
    pub fn offset_of(&self, address: usize) -> isize {
        address.wrapping_sub(self.start) as isize
    }

    pub fn size(&self) -> usize {
        self.size
    }

    fn describe(&self, address: usize) -> String {
        format!("an allocation of {} bytes, starting at its byte {}", self.size, self.offset_of(address))
    }

    fn begin_use(&self, pages: &Range<usize>) {
        let mut open = self.open.lock();
        open.uses += 1;
        if !self.is_device_memory() || pages.is_empty() {
            return;
        }
        let all = match &open.pages {
            Some(others) => others.start.min(pages.start)..others.end.max(pages.end),
            None => pages.clone(),
        };
        if open.pages.as_ref() != Some(&all) {
            self.mapping.protect(&all, libc::PROT_READ | libc::PROT_WRITE);
            open.pages = Some(all);
        }
    }

    fn end_use(&self) {
        let mut open = self.open.lock();
        open.uses -= 1;
        if open.uses == 0
            && let Some(pages) = open.pages.take()
        {
            self.mapping.protect(&pages, libc::PROT_NONE);
        }
    }
}

fn allocate(
    context: ContextHandle,
    device: Option<DeviceHandle>,
    kind: MemoryType,
    (size, alignment): (usize, usize),
    relaxed: bool,
) -> Outcome<*mut c_void> {
    let context = context.get()?;
    let device = device.map(Device::get).transpose()?;
    if size == 0 || (!relaxed && size as u64 > device::limits().max_allocation) {
        return Err(ResultCode::ERROR_UNSUPPORTED_SIZE);
    }
    if alignment != 0 && !alignment.is_power_of_two() {
        return Err(ResultCode::ERROR_UNSUPPORTED_ALIGNMENT);
    }
    if settings().out_of_memory.is_due() {
        return Err(ResultCode::ERROR_OUT_OF_DEVICE_MEMORY);
    }
    if !fits(size) {
        return Err(out_of_memory(kind));
    }
    let index = device.map(|device| device.index);
    let allocation =
        Allocation::new(context, index, kind, size, alignment.max(ALIGNMENT)).ok_or(out_of_memory(kind))?;
    let start = allocation.start;
    LIVE.lock().insert(allocation.mapping.base, Arc::new(allocation));
    Ok(start as *mut c_void)
}

/// True if the device has enough free memory.
fn fits(size: usize) -> bool {
    let in_use: u64 = LIVE.lock().values().map(|allocation| allocation.size as u64).sum();
    in_use.saturating_add(size as u64) <= device::limits().memory
}

fn out_of_memory(kind: MemoryType) -> ResultCode {
    match kind {
        MemoryType::HOST => ResultCode::ERROR_OUT_OF_HOST_MEMORY,
        _ => ResultCode::ERROR_OUT_OF_DEVICE_MEMORY,
    }
}

/// True if a chain of extensions asks for more than the usual largest size.
fn is_relaxed(next: *const c_void) -> bool {
    let Ok(extension) = pointer_to::<RelaxedAllocationLimitsExpDesc>(next).read() else {
        return false;
    };
    extension.stype == StructureType::RELAXED_ALLOCATION_LIMITS_EXP_DESC
        && extension.flags.contains(RelaxedAllocationLimitsExpFlags::MAX_SIZE)
}

/// Returns the extension that a structure's `next` points to.
fn pointer_to<T>(next: *const c_void) -> Pointer<T> {
    use crate::pointer::Argument;
    // SAFETY: the interface requires that `next` is null or points to a structure that starts with its type. No such
    // structure is smaller than the one read here.
    unsafe { next.cast::<T>().checked() }
}

pub fn mem_alloc_device(
    context: ContextHandle,
    desc: Pointer<DeviceMemAllocDesc>,
    size: usize,
    alignment: usize,
    device: DeviceHandle,
    memory: Pointer<*mut c_void>,
) -> Outcome {
    let relaxed = is_relaxed(desc.read()?.next);
    memory.write(allocate(context, Some(device), MemoryType::DEVICE, (size, alignment), relaxed)?)
}

pub fn mem_alloc_host(
    context: ContextHandle,
    desc: Pointer<HostMemAllocDesc>,
    size: usize,
    alignment: usize,
    memory: Pointer<*mut c_void>,
) -> Outcome {
    let relaxed = is_relaxed(desc.read()?.next);
    memory.write(allocate(context, None, MemoryType::HOST, (size, alignment), relaxed)?)
}

pub fn mem_alloc_shared(
    context: ContextHandle,
    device_desc: Pointer<DeviceMemAllocDesc>,
    host_desc: Pointer<HostMemAllocDesc>,
    size: usize,
    alignment: usize,
    device: DeviceHandle,
    memory: Pointer<*mut c_void>,
) -> Outcome {
    let relaxed = is_relaxed(device_desc.read()?.next) || is_relaxed(host_desc.read()?.next);
    let device = (!device.is_null()).then_some(device);
    memory.write(allocate(context, device, MemoryType::SHARED, (size, alignment), relaxed)?)
}

pub fn mem_free(context: ContextHandle, memory: Pointer<c_void>) -> Outcome {
    let invalid = |message: &str| Err(misuse(ResultCode::ERROR_INVALID_ARGUMENT, message));
    let address = memory.address();
    let mut live = LIVE.lock();
    let Some(allocation) = mapped_at(&live, address).filter(|allocation| allocation.start == address).cloned() else {
        return invalid("zeMemFree of a pointer that is no allocation (any more)");
    };
    if !context.names(&allocation.context) {
        return invalid("zeMemFree with another context than that of the allocation");
    }
    live.remove(&allocation.mapping.base);
    allocation.alive.store(false, Ordering::SeqCst);
    let is_used = allocation.open.lock().uses > 0;
    if is_used && allocation.context.check().is_ok() {
        note("memory freed while pending commands use it");
    }
    if !allocation.is_intact() {
        note(format!("something has written behind the end of an allocation of {} bytes", allocation.size));
    }
    Ok(())
}

pub fn mem_get_alloc_properties(
    context: ContextHandle,
    memory: Pointer<c_void>,
    properties: Pointer<MemoryAllocationProperties>,
    device: Pointer<DeviceHandle>,
) -> Outcome {
    context.get()?;
    let allocation = find(memory.address());
    let mut answer = properties.read()?;
    answer.kind = allocation.as_ref().map_or(MemoryType::UNKNOWN, |allocation| allocation.kind);
    answer.id = allocation.as_ref().map_or(0, |allocation| allocation.id);
    answer.page_size = PAGE as u64;
    properties.write(answer)?;
    let index = allocation.and_then(|allocation| allocation.device);
    device.write_if_present(index.map_or(DeviceHandle::NULL, Device::handle));
    Ok(())
}

pub fn mem_get_address_range(
    context: ContextHandle,
    memory: Pointer<c_void>,
    base: Pointer<*mut c_void>,
    size: Pointer<usize>,
) -> Outcome {
    context.get()?;
    let allocation = find(memory.address()).ok_or(ResultCode::ERROR_INVALID_ARGUMENT)?;
    base.write_if_present(allocation.start as *mut c_void);
    size.write_if_present(allocation.size);
    Ok(())
}
