//! Recording: command lists, and the commands appended to them.

use super::device::Device;
use super::event::{Event, Events, StepEvents};
use super::ffi::*;
use super::kernel::LevelZeroKernel;
use super::plan::Action;
use super::region;
use crate::backend::contract::{Region, Step};
use crate::base::error::Result;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// A command list that is executed as a whole. Its fence tells when the device no longer uses it. One batch at a time
/// has it.
pub(super) struct List {
    handle: CommandListHandle,
    fence: FenceHandle,
    /// The group of its queue.
    pub group: u32,
    /// Whether the fence will be signalled.
    executed: bool,
    device: Arc<Device>,
}

impl List {
    /// Creates an empty list for a queue of this group.
    pub fn new(device: &Arc<Device>, queue: CommandQueueHandle, group: u32) -> Result<List> {
        let Device { api, adapter, context, .. } = &**device;
        // From here on, dropping the list destroys the parts that exist.
        let (handle, fence) = (CommandListHandle::NULL, FenceHandle::NULL);
        let mut list = List { handle, fence, group, executed: false, device: device.clone() };
        let desc = CommandListDesc { command_queue_group_ordinal: group, ..Default::default() };
        // SAFETY: context and device belong together, and the structures outlive the call.
        let code = unsafe { (api.command_list_create)(*context, adapter.device, &desc, &mut list.handle) };
        device.check("zeCommandListCreate", code)?;
        // SAFETY: the queue is alive, and the structures outlive the call.
        let code = unsafe { (api.fence_create)(queue, &FenceDesc::default(), &mut list.fence) };
        device.check("zeFenceCreate", code)?;
        Ok(list)
    }

    /// Forgets what was recorded before.
    pub fn reset(&mut self) -> Result<()> {
        self.rearm()?;
        // SAFETY: the device no longer uses the list.
        self.device.check("zeCommandListReset", unsafe { (self.device.api.command_list_reset)(self.handle) })
    }

    /// Prepares for another execution of what was recorded.
    fn rearm(&mut self) -> Result<()> {
        self.join()?;
        // SAFETY: the device no longer uses the list.
        self.device.check("zeFenceReset", unsafe { (self.device.api.fence_reset)(self.fence) })
    }

    /// Returns a recorder for this list.
    pub fn recorder(&self) -> Recorder<'_> {
        Recorder { list: self.handle, in_order: false, device: &self.device, appended: false }
    }

    /// Ends the recording.
    pub fn close(&self) -> Result<()> {
        // SAFETY: the list is alive and not being executed.
        let code = unsafe { (self.device.api.command_list_close)(self.handle) };
        self.device.check("zeCommandListClose", code)
    }

    /// Hands what was recorded to a queue of its group.
    pub fn execute(&mut self, queue: CommandQueueHandle) -> Result<()> {
        let api = self.device.api;
        // SAFETY: the list is closed and not being executed, and its owner has the queue locked.
        let code = unsafe { (api.command_queue_execute_command_lists)(queue, 1, &mut self.handle, self.fence) };
        self.device.check("zeCommandQueueExecuteCommandLists", code)?;
        self.executed = true;
        Ok(())
    }

    /// Blocks until the device no longer uses the list. When the batch's event is signalled, the device has nearly
    /// finished with it.
    fn join(&mut self) -> Result<()> {
        if std::mem::take(&mut self.executed) {
            // SAFETY: the fence is alive, and will be signalled.
            let code = unsafe { (self.device.api.fence_host_synchronize)(self.fence, self.device.patience()) };
            self.device.check("zeFenceHostSynchronize", code)?;
        }
        Ok(())
    }
}

impl Drop for List {
    fn drop(&mut self) {
        if let Err(error) = self.join() {
            log::debug!("Level Zero: {error}");
        }
        let Device { api, .. } = &*self.device;
        if !self.fence.is_null() {
            // SAFETY: it is signalled, or never will be.
            self.device.log_failure("zeFenceDestroy", unsafe { (api.fence_destroy)(self.fence) });
        }
        if !self.handle.is_null() {
            // SAFETY: the device no longer uses the list, or is lost.
            self.device.log_failure("zeCommandListDestroy", unsafe { (api.command_list_destroy)(self.handle) });
        }
    }
}

/// Steps that run any number of times. A driver may change a list when it is executed, so each run in flight has a list
/// of its own. They are kept for later runs.
pub(super) struct Program {
    steps: Vec<Step>,
    idle: Mutex<Vec<List>>,
}

impl Program {
    pub fn new(steps: &[Step]) -> Program {
        Program { steps: steps.to_vec(), idle: Mutex::default() }
    }

    /// Returns a closed list of the steps for a queue, which the device does not use. `record` records steps.
    pub fn take(
        &self,
        (queue, group): (CommandQueueHandle, u32),
        device: &Arc<Device>,
        record: impl FnOnce(&[Step], &mut Recorder<'_>) -> Result<()>,
    ) -> Result<List> {
        let idle = self.idle.lock().pop();
        if let Some(mut list) = idle {
            list.rearm()?;
            return Ok(list);
        }
        let list = List::new(device, queue, group)?;
        let mut recorder = list.recorder();
        recorder.begin(&After::default())?;
        record(&self.steps, &mut recorder)?;
        list.close()?;
        Ok(list)
    }

    /// Keeps a list for a later run. Its batch has completed.
    pub fn give_back(&self, list: List) {
        self.idle.lock().push(list);
    }
}

/// Events that a batch waits for, besides earlier batches of its engine.
#[derive(Default)]
pub(super) struct After {
    /// The end of the batch before, which had another engine.
    pub batch: Option<Arc<Event>>,
    /// A batch of another queue: the event at its end, or `None` if it has completed.
    pub other: Option<Option<Arc<Event>>>,
}

/// Appends to a command list, which its user has locked.
pub(super) struct Recorder<'a> {
    list: CommandListHandle,
    /// Whether each command waits by itself for the one before it.
    in_order: bool,
    device: &'a Device,
    /// Whether anything was appended.
    pub appended: bool,
}

impl<'a> Recorder<'a> {
    /// Creates a recorder for a list that executes in order.
    pub fn in_order(list: CommandListHandle, device: &'a Device) -> Self {
        Recorder { list, in_order: true, device, appended: false }
    }

    /// Makes what follows wait for all earlier work and for `after`.
    pub fn begin(&mut self, after: &After) -> Result<()> {
        if after.batch.is_some() || !self.in_order {
            // The batch before has itself waited for all earlier work.
            self.barrier(after.batch.as_deref(), None)?;
        }
        // What has completed waits for a barrier, too: its bytes may not be visible yet.
        after.other.as_ref().map_or(Ok(()), |event| self.barrier(event.as_deref(), None))
    }

    /// Signals `done` when everything before has completed.
    pub fn end(&mut self, done: &Event) -> Result<()> {
        self.barrier(None, Some(done))
    }

    /// Records actions other than runs of programs. With `timestamps`, returns the events that the commands of each
    /// step signal.
    pub fn actions(
        &mut self,
        actions: &[(bool, Action<'_>)],
        timestamps: Option<&Arc<Events>>,
    ) -> Result<Vec<StepEvents>> {
        let mut steps = Vec::new();
        for (index, (barrier, action)) in actions.iter().enumerate() {
            // Timed steps do not overlap.
            if (*barrier || timestamps.is_some()) && index > 0 && !self.in_order {
                self.barrier(None, None)?;
            }
            let events = self.action(action, timestamps)?;
            if timestamps.is_some() {
                steps.push(events);
            }
        }
        Ok(steps)
    }

    fn action(&mut self, action: &Action<'_>, timestamps: Option<&Arc<Events>>) -> Result<StepEvents> {
        let mut events = SmallVec::new();
        let mut signal = || -> Result<EventHandle> {
            let Some(timestamps) = timestamps else { return Ok(EventHandle::NULL) };
            events.push(timestamps.take()?);
            Ok(events.last().map_or(EventHandle::NULL, |event: &Event| event.handle))
        };
        match action {
            Action::Dispatch { groups: GroupCount { group_count_x, group_count_y, group_count_z }, .. }
                if [group_count_x, group_count_y, group_count_z].contains(&&0) => {}
            Action::Dispatch { kernel, buffers, parameters, groups } => {
                self.launch(kernel, buffers, parameters, groups, signal()?)?;
            }
            Action::Copy { src, dst, regions } => {
                for region in regions {
                    self.copy(*src, *dst, region, signal()?)?;
                }
            }
            Action::Run(_) => {}
        }
        Ok(events)
    }

    fn launch(
        &mut self,
        kernel: &LevelZeroKernel,
        buffers: &[NonNull<u8>],
        parameters: &[u32],
        groups: &GroupCount,
        signal: EventHandle,
    ) -> Result<()> {
        let kernel = kernel.with_arguments(buffers, parameters)?;
        let append = self.device.api.command_list_append_launch_kernel;
        // SAFETY: list, kernel and event are alive, and the plan has checked the number of groups.
        let code = unsafe { append(self.list, *kernel, groups, signal, 0, ptr::null_mut()) };
        self.appended("zeCommandListAppendLaunchKernel", code)
    }

    fn copy(&mut self, src: NonNull<u8>, dst: NonNull<u8>, region: &Region, signal: EventHandle) -> Result<()> {
        let [width, rows, slices] = region.extent;
        // SAFETY: here and below, the plan has checked that the region lies in both buffers.
        let (src, dst) = unsafe { (src.add(region.src.offset as usize), dst.add(region.dst.offset as usize)) };
        let (src, dst) = (src.as_ptr().cast_const().cast(), dst.as_ptr().cast());
        if region::is_row(region) {
            let append = self.device.api.command_list_append_memory_copy;
            // SAFETY: list and event are alive; for the rest see above.
            let code = unsafe { append(self.list, dst, src, width as usize, signal, 0, ptr::null_mut()) };
            return self.appended("zeCommandListAppendMemoryCopy", code);
        }
        // The region has been divided so that these numbers have 32 bits.
        let (src_row, dst_row) = (region.src.row as u32, region.dst.row as u32);
        let (src_slice, dst_slice) =
            if slices > 1 { (region.src.slice as u32, region.dst.slice as u32) } else { (0, 0) };
        let whole = CopyRegion { width: width as u32, height: rows as u32, depth: slices as u32, ..Default::default() };
        let (list, append) = (self.list, self.device.api.command_list_append_memory_copy_region);
        let none = ptr::null_mut();
        // SAFETY: see above.
        let code =
            unsafe { append(list, dst, &whole, dst_row, dst_slice, src, &whole, src_row, src_slice, signal, 0, none) };
        self.appended("zeCommandListAppendMemoryCopyRegion", code)
    }

    /// Makes later commands wait for all earlier commands in the queue, or for `after` if it is given. They see the
    /// memory effects of what they wait for.
    fn barrier(&mut self, after: Option<&Event>, signal: Option<&Event>) -> Result<()> {
        let mut after = after.map(|event| event.handle);
        let (count, events) = after.as_mut().map_or((0, ptr::null_mut()), |event| (1, ptr::from_mut(event)));
        let signal = signal.map_or(EventHandle::NULL, |event| event.handle);
        // SAFETY: the list and the events are alive.
        let code = unsafe { (self.device.api.command_list_append_barrier)(self.list, signal, count, events) };
        self.appended("zeCommandListAppendBarrier", code)
    }

    fn appended(&mut self, call: &'static str, code: ResultCode) -> Result<()> {
        self.device.check(call, code)?;
        self.appended = true;
        Ok(())
    }
}
