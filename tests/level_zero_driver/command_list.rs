//! Command lists. Regular lists record commands; immediate lists submit them at once.

use crate::Outcome;
use crate::command::{Command, Rows, Work, reach};
use crate::context::Context;
use crate::device::{self, Device};
use crate::event::{self, Event};
use crate::ffi::*;
use crate::handles::{Handle, Life, Object};
use crate::kernel::Launch;
use crate::memory::Use;
use crate::pointer::Pointer;
use crate::queue::{Stream, Submission, Submitted};
use crate::report::{misuse, note};
use parking_lot::Mutex;
use std::ffi::c_void;
use std::sync::Arc;

pub struct CommandList {
    /// Shared with the submissions of the list.
    life: Arc<Life>,
    context: Arc<Context>,
    device: Device,
    ordinal: u32,
    kind: Kind,
}

enum Kind {
    Regular { recording: Mutex<Recording>, in_order: bool },
    Immediate { stream: Stream, is_synchronous: bool },
}

#[derive(Default)]
struct Recording {
    commands: Vec<Arc<Command>>,
    is_closed: bool,
}

impl Object for CommandList {
    fn life(&self) -> &Life {
        &self.life
    }

    fn context(&self) -> &Context {
        &self.context
    }
}

impl CommandList {
    /// Returns the commands of a closed list, to run on a queue of this queue group.
    pub fn closed_commands(&self, ordinal: u32) -> Outcome<Vec<Submitted>> {
        let Kind::Regular { recording, .. } = &self.kind else {
            return Err(misuse(ResultCode::ERROR_INVALID_COMMAND_LIST_TYPE, "executed an immediate command list"));
        };
        if self.ordinal != ordinal {
            let message = "executed a command list on a queue of another group";
            return Err(misuse(ResultCode::ERROR_INVALID_COMMAND_LIST_TYPE, message));
        }
        let recording = recording.lock();
        if !recording.is_closed {
            return Err(misuse(ResultCode::ERROR_INVALID_ARGUMENT, "executed a command list that is not closed"));
        }
        if self.life.is_pending() {
            return Err(misuse(ResultCode::ERROR_INVALID_ARGUMENT, "executed a command list while it runs"));
        }
        let submitted = |command: &Arc<Command>| Submitted { command: command.clone(), list: Some(self.life.clone()) };
        Ok(recording.commands.iter().map(submitted).collect())
    }

    fn recording(&self) -> Outcome<&Mutex<Recording>> {
        match &self.kind {
            Kind::Regular { recording, .. } => Ok(recording),
            Kind::Immediate { .. } => {
                Err(misuse(ResultCode::ERROR_INVALID_COMMAND_LIST_TYPE, "closed or reset an immediate command list"))
            }
        }
    }

    /// Records or submits a command.
    fn append(&self, command: Command) -> Outcome {
        self.check_memory(&command.memory)?;
        let command = Arc::new(command);
        match &self.kind {
            Kind::Regular { recording, in_order } => {
                let mut recording = recording.lock();
                if recording.is_closed {
                    return Err(misuse(ResultCode::ERROR_INVALID_ARGUMENT, "appended to a closed command list"));
                }
                recording.commands.push(command);
                if *in_order {
                    recording.commands.push(Arc::new(plain(Work::Barrier)));
                }
                Ok(())
            }
            Kind::Immediate { stream, is_synchronous } => {
                stream.submit(Submission { commands: vec![Submitted { command, list: None }], fence: None })?;
                if *is_synchronous { stream.synchronize(u64::MAX) } else { Ok(()) }
            }
        }
    }

    fn check_memory(&self, memory: &[Use]) -> Outcome {
        let mut allocations = memory.iter().map(|used| &used.allocation);
        let foreign = allocations.clone().any(|allocation| !Arc::ptr_eq(&allocation.context, &self.context));
        let remote = allocations.any(|allocation| allocation.device.is_some_and(|index| index != self.device.index));
        if foreign || remote {
            let message = "appended a command that uses memory of another context or device";
            return Err(misuse(ResultCode::ERROR_INVALID_ARGUMENT, message));
        }
        Ok(())
    }
}

/// Makes a command without events and memory.
fn plain(work: Work) -> Command {
    Command { work, signal: None, waits: Vec::new(), memory: Vec::new() }
}

/// The events of a command, as in the C interface.
struct Events {
    signal: Option<Arc<Event>>,
    waits: Vec<Arc<Event>>,
}

impl Events {
    fn new(signal: EventHandle, wait_count: u32, wait: Pointer<EventHandle>) -> Outcome<Self> {
        Ok(Self { signal: event::optional(signal)?, waits: event::wait_list(wait_count, wait)? })
    }

    fn command(self, work: Work, memory: Vec<Use>) -> Command {
        Command { work, signal: self.signal, waits: self.waits, memory }
    }
}

fn check_in_order(asked: bool) -> Outcome {
    if asked && device::api_version() < ApiVersion::new(1, 7) {
        let message = "lists that run in order need version 1.7 of the interface";
        return Err(misuse(ResultCode::ERROR_INVALID_ENUMERATION, message));
    }
    Ok(())
}

pub fn command_list_create(
    context: ContextHandle,
    device: DeviceHandle,
    desc: Pointer<CommandListDesc>,
    list: Pointer<CommandListHandle>,
) -> Outcome {
    let (context, device, desc) = (context.get()?, Device::get(device)?, desc.read()?);
    let ordinal = desc.command_queue_group_ordinal;
    device.check_queue(ordinal, 0)?;
    let in_order = desc.flags.contains(CommandListFlags::IN_ORDER);
    check_in_order(in_order)?;
    let kind = Kind::Regular { recording: Mutex::default(), in_order };
    let object = CommandList { life: Arc::default(), context, device, ordinal, kind };
    list.write(CommandListHandle::create(Arc::new(object)))
}

pub fn command_list_create_immediate(
    context: ContextHandle,
    device: DeviceHandle,
    desc: Pointer<CommandQueueDesc>,
    list: Pointer<CommandListHandle>,
) -> Outcome {
    let (context, device, desc) = (context.get()?, Device::get(device)?, desc.read()?);
    device.check_queue(desc.ordinal, desc.index)?;
    let in_order = desc.flags.contains(CommandQueueFlags::IN_ORDER);
    check_in_order(in_order)?;
    let stream = Stream::new(context.clone(), in_order)?;
    let kind = Kind::Immediate { stream, is_synchronous: desc.mode == CommandQueueMode::SYNCHRONOUS };
    let object = CommandList { life: Arc::default(), context, device, ordinal: desc.ordinal, kind };
    list.write(CommandListHandle::create(Arc::new(object)))
}

pub fn command_list_destroy(list: CommandListHandle) -> Outcome {
    let list = list.remove()?;
    if let Kind::Immediate { stream, .. } = &list.kind
        && stream.is_busy()
        && list.context.check().is_ok()
    {
        note("immediate command list destroyed while it is busy");
    }
    Ok(())
}

pub fn command_list_close(list: CommandListHandle) -> Outcome {
    list.get()?.recording()?.lock().is_closed = true;
    Ok(())
}

pub fn command_list_reset(list: CommandListHandle) -> Outcome {
    let list = list.get()?;
    if list.life.is_pending() {
        return Err(misuse(ResultCode::ERROR_INVALID_ARGUMENT, "command list reset while it runs"));
    }
    *list.recording()?.lock() = Recording::default();
    Ok(())
}

pub fn command_list_host_synchronize(list: CommandListHandle, timeout: u64) -> Outcome {
    match &list.get()?.kind {
        Kind::Immediate { stream, .. } => stream.synchronize(timeout),
        Kind::Regular { .. } => {
            Err(misuse(ResultCode::ERROR_INVALID_COMMAND_LIST_TYPE, "waited for a list that is not immediate"))
        }
    }
}

pub fn command_list_append_barrier(
    list: CommandListHandle,
    signal: EventHandle,
    wait_count: u32,
    wait: Pointer<EventHandle>,
) -> Outcome {
    list.get()?.append(Events::new(signal, wait_count, wait)?.command(Work::Barrier, Vec::new()))
}

pub fn command_list_append_memory_copy(
    list: CommandListHandle,
    dst: Pointer<c_void>,
    src: Pointer<c_void>,
    size: usize,
    signal: EventHandle,
    wait_count: u32,
    wait: Pointer<EventHandle>,
) -> Outcome {
    let (list, events) = (list.get()?, Events::new(signal, wait_count, wait)?);
    let (dst, src) = (dst.address(), src.address());
    let memory = reach(&[(dst, size), (src, size)])?;
    if dst < src + size && src < dst + size {
        return Err(misuse(ResultCode::ERROR_OVERLAPPING_REGIONS, "source and destination of a copy overlap"));
    }
    list.append(events.command(Work::Copy { dst, src, bytes: size }, memory))
}

#[expect(clippy::too_many_arguments, reason = "the interface has them")]
pub fn command_list_append_memory_fill(
    list: CommandListHandle,
    dst: Pointer<c_void>,
    pattern: Pointer<c_void>,
    pattern_size: usize,
    size: usize,
    signal: EventHandle,
    wait_count: u32,
    wait: Pointer<EventHandle>,
) -> Outcome {
    let (list, events) = (list.get()?, Events::new(signal, wait_count, wait)?);
    if !pattern_size.is_power_of_two() || pattern_size > device::max_fill_pattern(list.ordinal) {
        return Err(misuse(ResultCode::ERROR_INVALID_SIZE, format!("a fill with a pattern of {pattern_size} bytes")));
    }
    let (dst, pattern) = (dst.address(), pattern.bytes().read_all(pattern_size)?);
    let memory = reach(&[(dst, size)])?;
    list.append(events.command(Work::Fill { dst, pattern, bytes: size }, memory))
}

#[expect(clippy::too_many_arguments, reason = "the interface has them")]
pub fn command_list_append_memory_copy_region(
    list: CommandListHandle,
    dst: Pointer<c_void>,
    dst_region: Pointer<CopyRegion>,
    dst_pitch: u32,
    dst_slice_pitch: u32,
    src: Pointer<c_void>,
    src_region: Pointer<CopyRegion>,
    src_pitch: u32,
    src_slice_pitch: u32,
    signal: EventHandle,
    wait_count: u32,
    wait: Pointer<EventHandle>,
) -> Outcome {
    let (list, events) = (list.get()?, Events::new(signal, wait_count, wait)?);
    let dst = Rows::new(dst.address(), dst_region.read()?, dst_pitch, dst_slice_pitch);
    let src = Rows::new(src.address(), src_region.read()?, src_pitch, src_slice_pitch);
    if dst.extent() != src.extent() {
        return Err(misuse(ResultCode::ERROR_INVALID_SIZE, "the regions of a copy differ in size"));
    }
    let memory = reach(&[dst.span(), src.span()])?;
    list.append(events.command(Work::CopyRegion { dst, src }, memory))
}

pub fn command_list_append_launch_kernel(
    list: CommandListHandle,
    kernel: KernelHandle,
    groups: Pointer<GroupCount>,
    signal: EventHandle,
    wait_count: u32,
    wait: Pointer<EventHandle>,
) -> Outcome {
    let (list, events) = (list.get()?, Events::new(signal, wait_count, wait)?);
    if !device::computes(list.ordinal) {
        return Err(misuse(ResultCode::ERROR_INVALID_COMMAND_LIST_TYPE, "a kernel on a queue group that only copies"));
    }
    let (launch, memory) = Launch::new(kernel.get()?, groups.read()?)?;
    list.append(events.command(Work::Launch(launch), memory))
}

pub fn command_list_append_signal_event(list: CommandListHandle, event: EventHandle) -> Outcome {
    let (list, event) = (list.get()?, event.get()?);
    list.append(Command { signal: Some(event), ..plain(Work::Signal) })
}

pub fn command_list_append_wait_on_events(
    list: CommandListHandle,
    count: u32,
    events: Pointer<EventHandle>,
) -> Outcome {
    let waits = event::wait_list(count, events)?;
    list.get()?.append(Command { waits, ..plain(Work::Wait) })
}

pub fn command_list_append_event_reset(list: CommandListHandle, event: EventHandle) -> Outcome {
    list.get()?.append(plain(Work::Reset(event.get()?)))
}

pub fn command_list_append_write_global_timestamp(
    list: CommandListHandle,
    dst: Pointer<u64>,
    signal: EventHandle,
    wait_count: u32,
    wait: Pointer<EventHandle>,
) -> Outcome {
    let (list, events) = (list.get()?, Events::new(signal, wait_count, wait)?);
    let dst = dst.address();
    let memory = reach(&[(dst, size_of::<u64>())])?;
    list.append(events.command(Work::Timestamp { dst }, memory))
}
