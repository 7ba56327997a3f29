//! Events: what the device signals. They are reused.

use super::device::Device;
use super::ffi::*;
use crate::base::error::Result;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::Arc;

/// A pool has this many events.
const POOL_SIZE: u32 = 256;

/// Events of one kind.
pub(super) struct Events {
    pool_flags: EventPoolFlags,
    scope: EventScopeFlags,
    state: Mutex<State>,
    device: Arc<Device>,
}

#[derive(Default)]
struct State {
    pools: Vec<EventPoolHandle>,
    /// Events made from the newest pool.
    made: u32,
    /// Events for reuse.
    idle: Vec<EventHandle>,
}

/// The events that the commands of a timed step signal.
pub(super) type StepEvents = SmallVec<[Event; 1]>;

/// An event that is not signalled when it is taken, and is returned when it is dropped. It is dropped after the device
/// has signalled it and nothing waits for it, or before the device has seen it.
pub(super) struct Event {
    pub handle: EventHandle,
    events: Arc<Events>,
}

impl Events {
    /// Creates events that tell that a batch has completed. The host and every queue then see all its memory effects.
    pub fn completions(device: Arc<Device>) -> Arc<Events> {
        Events::new(EventPoolFlags::HOST_VISIBLE, EventScopeFlags::HOST, device)
    }

    /// Creates events that tell when the command that signals them ran.
    pub fn timestamps(device: Arc<Device>) -> Arc<Events> {
        let flags = EventPoolFlags::HOST_VISIBLE | EventPoolFlags::KERNEL_TIMESTAMP;
        Events::new(flags, EventScopeFlags::default(), device)
    }

    fn new(pool_flags: EventPoolFlags, scope: EventScopeFlags, device: Arc<Device>) -> Arc<Events> {
        Arc::new(Events { pool_flags, scope, state: Mutex::default(), device })
    }

    /// Returns an event that is not signalled.
    pub fn take(self: &Arc<Self>) -> Result<Event> {
        let state = &mut *self.state.lock();
        let handle = match state.idle.pop() {
            None => self.make(state)?,
            Some(used) => {
                // SAFETY: the event is alive, and nobody else has it.
                let code = unsafe { (self.device.api.event_host_reset)(used) };
                if let Err(error) = self.device.check("zeEventHostReset", code) {
                    state.idle.push(used);
                    return Err(error);
                }
                used
            }
        };
        Ok(Event { handle, events: self.clone() })
    }

    /// Returns the number of events that exist.
    #[cfg(test)]
    #[cfg(device_tests)]
    pub fn made(&self) -> u32 {
        let state = self.state.lock();
        (state.pools.len() as u32).saturating_sub(1) * POOL_SIZE + state.made
    }

    fn make(&self, state: &mut State) -> Result<EventHandle> {
        let Device { api, adapter, context, .. } = &*self.device;
        if state.pools.is_empty() || state.made == POOL_SIZE {
            let desc = EventPoolDesc { flags: self.pool_flags, count: POOL_SIZE, ..Default::default() };
            let (mut pool, mut device) = (EventPoolHandle::NULL, adapter.device);
            // SAFETY: context and device belong together, and the structures outlive the call.
            let code = unsafe { (api.event_pool_create)(*context, &desc, 1, &mut device, &mut pool) };
            self.device.check("zeEventPoolCreate", code)?;
            state.pools.push(pool);
            state.made = 0;
        }
        let desc = EventDesc { index: state.made, signal: self.scope, wait: self.scope, ..Default::default() };
        let mut event = EventHandle::NULL;
        let pool = state.pools.last().copied().unwrap_or(EventPoolHandle::NULL);
        // SAFETY: the pool is alive, and no event of it has this index.
        self.device.check("zeEventCreate", unsafe { (api.event_create)(pool, &desc, &mut event) })?;
        state.made += 1;
        Ok(event)
    }
}

impl Event {
    /// Returns whether the device has signalled it.
    pub fn is_signalled(&self) -> Result<bool> {
        let device = &self.events.device;
        // SAFETY: the event is alive.
        device.check_ready("zeEventQueryStatus", unsafe { (device.api.event_query_status)(self.handle) })
    }

    /// Lets the driver put the thread to sleep until the device has signalled it, but no longer than this many
    /// nanoseconds. Returns whether it was signalled.
    pub fn sleep(&self, nanoseconds: u64) -> Result<bool> {
        let device = &self.events.device;
        // SAFETY: the event is alive.
        let code = unsafe { (device.api.event_host_synchronize)(self.handle, nanoseconds) };
        device.check_ready("zeEventHostSynchronize", code)
    }

    /// Returns when the command that signalled it started and ended, in ticks of the device's clock.
    pub fn ticks(&self) -> Result<(u64, u64)> {
        let device = &self.events.device;
        let mut result = KernelTimestampResult::default();
        // SAFETY: the event is alive and of a pool with timestamps, and the structure outlives the call.
        let code = unsafe { (device.api.event_query_kernel_timestamp)(self.handle, &mut result) };
        device.check("zeEventQueryKernelTimestamp", code)?;
        Ok((result.global.kernel_start, result.global.kernel_end))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.events.state.lock().idle.push(self.handle);
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let State { pools, idle, .. } = self.state.get_mut();
        // All events are idle: an event in use keeps this alive.
        for event in idle {
            // SAFETY: nobody else has the event.
            self.device.log_failure("zeEventDestroy", unsafe { (self.device.api.event_destroy)(*event) });
        }
        for pool in pools {
            // SAFETY: all its events are destroyed.
            self.device.log_failure("zeEventPoolDestroy", unsafe { (self.device.api.event_pool_destroy)(*pool) });
        }
    }
}
