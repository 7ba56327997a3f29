//! Event pools and events.

use crate::Outcome;
use crate::context::Context;
use crate::device::Device;
use crate::ffi::*;
use crate::handles::{Handle, Life, Object};
use crate::pointer::Pointer;
use crate::progress;
use crate::report::misuse;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

pub struct EventPool {
    life: Life,
    context: Arc<Context>,
    flags: EventPoolFlags,
    count: u32,
    used: Mutex<BTreeSet<u32>>,
}

impl Object for EventPool {
    const OWNS_OTHERS: bool = true;

    fn life(&self) -> &Life {
        &self.life
    }

    fn context(&self) -> &Context {
        &self.context
    }
}

pub struct Event {
    life: Life,
    pool: Arc<EventPool>,
    index: u32,
    /// The start and end times of the command that signalled the event. `None` if the event is not signalled.
    times: Mutex<Option<(u64, u64)>>,
}

impl Object for Event {
    fn life(&self) -> &Life {
        &self.life
    }

    fn context(&self) -> &Context {
        &self.pool.context
    }
}

impl Event {
    pub fn is_signalled(&self) -> bool {
        self.times.lock().is_some()
    }

    /// Signals the event for a command with these start and end times. Call it in [`progress::announce`]: then this
    /// reference is dropped before any waiting thread continues and may destroy the event.
    pub fn set(self: Arc<Self>, times: (u64, u64)) {
        *self.times.lock() = Some(times);
    }

    pub fn reset(&self) {
        progress::announce(|| *self.times.lock() = None);
    }
}

pub fn event_pool_create(
    context: ContextHandle,
    desc: Pointer<EventPoolDesc>,
    device_count: u32,
    devices: Pointer<DeviceHandle>,
    pool: Pointer<EventPoolHandle>,
) -> Outcome {
    let (context, desc) = (context.get()?, desc.read()?);
    for device in devices.read_all(if devices.is_null() { 0 } else { device_count as usize })? {
        Device::get(device)?;
    }
    if desc.count == 0 {
        return Err(ResultCode::ERROR_INVALID_SIZE);
    }
    let used = Mutex::default();
    let object = EventPool { life: Life::default(), context, flags: desc.flags, count: desc.count, used };
    pool.write(EventPoolHandle::create(Arc::new(object)))
}

pub fn event_pool_destroy(pool: EventPoolHandle) -> Outcome {
    pool.remove().map(drop)
}

pub fn event_create(pool: EventPoolHandle, desc: Pointer<EventDesc>, event: Pointer<EventHandle>) -> Outcome {
    let (pool, index) = (pool.get()?, desc.read()?.index);
    if index >= pool.count {
        return Err(ResultCode::ERROR_INVALID_ARGUMENT);
    }
    if !pool.used.lock().insert(index) {
        return Err(misuse(ResultCode::ERROR_INVALID_ARGUMENT, format!("two events at index {index} of a pool")));
    }
    let object = Event { life: Life::default(), pool, index, times: Mutex::new(None) };
    event.write(EventHandle::create(Arc::new(object)))
}

pub fn event_destroy(event: EventHandle) -> Outcome {
    let event = event.remove()?;
    event.pool.used.lock().remove(&event.index);
    Ok(())
}

pub fn event_host_signal(event: EventHandle) -> Outcome {
    let (event, now) = (event.get()?, progress::now());
    progress::announce(|| event.set((now, now)));
    Ok(())
}

pub fn event_host_synchronize(event: EventHandle, timeout: u64) -> Outcome {
    let event = event.get()?;
    progress::wait_for(timeout, || event.is_signalled() || event.context().check().is_err())?;
    event.context().check()
}

pub fn event_query_status(event: EventHandle) -> Outcome {
    event_host_synchronize(event, 0)
}

pub fn event_host_reset(event: EventHandle) -> Outcome {
    event.get()?.reset();
    Ok(())
}

pub fn event_query_kernel_timestamp(event: EventHandle, result: Pointer<KernelTimestampResult>) -> Outcome {
    let event = event.get()?;
    if !event.pool.flags.contains(EventPoolFlags::KERNEL_TIMESTAMP) {
        let message = "timestamp of an event whose pool has no timestamps";
        return Err(misuse(ResultCode::ERROR_INVALID_ARGUMENT, message));
    }
    let (kernel_start, kernel_end) = event.times.lock().ok_or(ResultCode::NOT_READY)?;
    let times = KernelTimestampData { kernel_start, kernel_end };
    result.write(KernelTimestampResult { global: times, context: times })
}

/// Returns the events that a command waits for.
pub fn wait_list(count: u32, events: Pointer<EventHandle>) -> Outcome<Vec<Arc<Event>>> {
    events.read_all(count as usize)?.into_iter().map(EventHandle::get).collect()
}

/// Returns the event that a command signals, if any.
pub fn optional(event: EventHandle) -> Outcome<Option<Arc<Event>>> {
    if event.is_null() { Ok(None) } else { event.get().map(Some) }
}
