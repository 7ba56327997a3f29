//! Command queues, fences, and the thread behind each queue and each immediate command list.

use crate::Outcome;
use crate::command::Command;
use crate::context::Context;
use crate::device::Device;
use crate::faults::settings;
use crate::ffi::*;
use crate::handles::{Handle, Life, Object};
use crate::opencl::{self, opencl};
use crate::pointer::Pointer;
use crate::progress;
use crate::report::{misuse, note};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How long an unordered stream waits for more commands before it starts. With more commands at hand, it can run them
/// in an unintended order.
const GATHER: Duration = Duration::from_micros(200);

/// Commands that are submitted together.
#[derive(Default)]
pub struct Submission {
    pub commands: Vec<Submitted>,
    pub fence: Option<Arc<Signal>>,
}

/// A command, and the life of its recorded list, if any.
pub struct Submitted {
    pub command: Arc<Command>,
    pub list: Option<Arc<Life>>,
}

impl Submission {
    /// True if the next submission cannot overtake this one.
    fn is_closed(&self) -> bool {
        self.fence.is_some() || self.commands.last().is_some_and(|last| last.command.is_barrier())
    }
}

/// A thread that runs submissions.
///
/// Level Zero orders little: between two barriers, commands may run in any order, even across command lists. So an
/// unordered stream runs the last commands first, as far as events allow. This reveals missing barriers.
pub struct Stream {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    context: Arc<Context>,
    in_order: bool,
    waiting: Mutex<Vec<Submission>>,
    /// The number of commands and fences that have not completed.
    pending: AtomicUsize,
    quit: AtomicBool,
}

impl Stream {
    pub fn new(context: Arc<Context>, in_order: bool) -> Outcome<Self> {
        let queue = opencl::Queue::new(opencl())?;
        let shared = Arc::new(Shared {
            context,
            in_order,
            waiting: Mutex::default(),
            pending: AtomicUsize::new(0),
            quit: AtomicBool::new(false),
        });
        let worker = shared.clone();
        let thread = thread::Builder::new().name("level-zero-queue".into()).spawn(move || worker.serve(&queue));
        Ok(Self { shared, thread: Some(thread.map_err(|_| ResultCode::ERROR_OUT_OF_HOST_MEMORY)?) })
    }

    /// Submits commands. If one of them cannot run, none is submitted.
    pub fn submit(&self, submission: Submission) -> Outcome {
        submission.commands.iter().try_for_each(|submitted| submitted.command.check_alive())?;
        self.shared.context.count_submission().inspect_err(|_| progress::announce(|| {}))?;
        for Submitted { command, list } in &submission.commands {
            command.begin_use();
            list.iter().for_each(|list| list.begin_use());
        }
        let pending = submission.commands.len() + usize::from(submission.fence.is_some());
        self.shared.pending.fetch_add(pending, Ordering::SeqCst);
        progress::announce(|| self.shared.waiting.lock().push(submission));
        Ok(())
    }

    /// Waits until all submissions have completed.
    pub fn synchronize(&self, timeout: u64) -> Outcome {
        progress::wait_for(timeout, || !self.is_busy() || self.shared.context.check().is_err())?;
        self.shared.context.check()
    }

    pub fn is_busy(&self) -> bool {
        self.shared.pending.load(Ordering::SeqCst) > 0
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        progress::announce(|| self.shared.quit.store(true, Ordering::SeqCst));
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            note("the thread of a queue has panicked");
        }
    }
}

impl Shared {
    fn serve(&self, queue: &opencl::Queue) {
        loop {
            progress::wait_until(|| !self.waiting.lock().is_empty() || self.quit.load(Ordering::SeqCst));
            if !self.in_order && !self.waiting.lock().last().is_some_and(Submission::is_closed) {
                thread::sleep(GATHER);
            }
            let submissions = std::mem::take(&mut *self.waiting.lock());
            if submissions.is_empty() {
                return;
            }
            self.run_all(submissions, queue);
        }
    }

    fn run_all(&self, submissions: Vec<Submission>, queue: &opencl::Queue) {
        let mut group = Vec::new();
        for submission in submissions {
            thread::sleep(settings().slow);
            for submitted in submission.commands {
                if self.in_order || submitted.command.is_barrier() {
                    self.run_group(&mut group, queue);
                    self.run(submitted, queue);
                } else {
                    group.push(submitted);
                }
            }
            if let Some(fence) = submission.fence {
                self.run_group(&mut group, queue);
                progress::announce(|| {
                    self.pending.fetch_sub(1, Ordering::SeqCst);
                    fence.signalled.store(true, Ordering::SeqCst);
                });
            }
        }
        self.run_group(&mut group, queue);
    }

    /// Runs commands that only events order. It always picks the last command that is ready.
    fn run_group(&self, group: &mut Vec<Submitted>, queue: &opencl::Queue) {
        while !group.is_empty() {
            progress::wait_until(|| group.iter().any(|submitted| submitted.command.is_ready()) || self.is_over());
            let last = group.iter().rposition(|submitted| submitted.command.is_ready()).unwrap_or(group.len() - 1);
            self.run(group.remove(last), queue);
        }
    }

    fn run(&self, Submitted { command, list }: Submitted, queue: &opencl::Queue) {
        progress::wait_until(|| command.is_ready() || self.is_over());
        let runs = self.context.check().is_ok() && command.is_ready();
        let times = runs.then(|| command.run(queue));
        // Drop everything first: the application may destroy all objects as soon as it hears of the end.
        command.end_use();
        list.iter().for_each(|list| list.end_use());
        let signal = command.signal.clone();
        drop((command, list));
        progress::announce(|| {
            self.pending.fetch_sub(1, Ordering::SeqCst);
            if let (Some(event), Some(times)) = (signal, times) {
                event.set(times);
            }
        });
    }

    /// True if waiting any longer makes no sense.
    fn is_over(&self) -> bool {
        self.quit.load(Ordering::SeqCst) || self.context.check().is_err()
    }
}

pub struct Queue {
    life: Life,
    context: Arc<Context>,
    ordinal: u32,
    is_synchronous: bool,
    stream: Stream,
}

impl Object for Queue {
    const OWNS_OTHERS: bool = true;

    fn life(&self) -> &Life {
        &self.life
    }

    fn context(&self) -> &Context {
        &self.context
    }
}

/// The state of a fence, without its handle.
#[derive(Default)]
pub struct Signal {
    signalled: AtomicBool,
    submitted: AtomicBool,
}

pub struct Fence {
    life: Life,
    queue: Arc<Queue>,
    signal: Arc<Signal>,
}

impl Object for Fence {
    fn life(&self) -> &Life {
        &self.life
    }

    fn context(&self) -> &Context {
        &self.queue.context
    }
}

impl Fence {
    fn is_signalled(&self) -> bool {
        self.signal.signalled.load(Ordering::SeqCst)
    }

    fn is_pending(&self) -> bool {
        self.signal.submitted.load(Ordering::SeqCst) && !self.is_signalled() && self.context().check().is_ok()
    }
}

pub fn command_queue_create(
    context: ContextHandle,
    device: DeviceHandle,
    desc: Pointer<CommandQueueDesc>,
    queue: Pointer<CommandQueueHandle>,
) -> Outcome {
    let (context, desc) = (context.get()?, desc.read()?);
    Device::get(device)?.check_queue(desc.ordinal, desc.index)?;
    let stream = Stream::new(context.clone(), false)?;
    let is_synchronous = desc.mode == CommandQueueMode::SYNCHRONOUS;
    let object = Queue { life: Life::default(), context, ordinal: desc.ordinal, is_synchronous, stream };
    queue.write(CommandQueueHandle::create(Arc::new(object)))
}

pub fn command_queue_destroy(queue: CommandQueueHandle) -> Outcome {
    let queue = queue.remove()?;
    if queue.stream.is_busy() && queue.context.check().is_ok() {
        note("command queue destroyed while it is busy");
    }
    Ok(())
}

pub fn command_queue_execute_command_lists(
    queue: CommandQueueHandle,
    count: u32,
    lists: Pointer<CommandListHandle>,
    fence: FenceHandle,
) -> Outcome {
    let queue = queue.get()?;
    let mut submission = Submission::default();
    for list in lists.read_all(count as usize)? {
        let list = list.get()?;
        submission.commands.extend(list.closed_commands(queue.ordinal)?);
    }
    if !fence.is_null() {
        let fence = fence.get()?;
        if fence.signal.submitted.swap(true, Ordering::SeqCst) || fence.is_signalled() {
            return Err(misuse(ResultCode::ERROR_INVALID_SYNCHRONIZATION_OBJECT, "a fence submitted without a reset"));
        }
        submission.fence = Some(fence.signal.clone());
    }
    queue.stream.submit(submission)?;
    if queue.is_synchronous { queue.stream.synchronize(u64::MAX) } else { Ok(()) }
}

pub fn command_queue_synchronize(queue: CommandQueueHandle, timeout: u64) -> Outcome {
    queue.get()?.stream.synchronize(timeout)
}

pub fn fence_create(queue: CommandQueueHandle, desc: Pointer<FenceDesc>, fence: Pointer<FenceHandle>) -> Outcome {
    let queue = queue.get()?;
    let signal = Signal::default();
    signal.signalled.store(desc.read()?.flags.contains(FenceFlags::SIGNALED), Ordering::SeqCst);
    let object = Fence { life: Life::default(), queue, signal: Arc::new(signal) };
    fence.write(FenceHandle::create(Arc::new(object)))
}

pub fn fence_destroy(fence: FenceHandle) -> Outcome {
    if fence.remove()?.is_pending() {
        note("fence destroyed before it was signalled");
    }
    Ok(())
}

pub fn fence_host_synchronize(fence: FenceHandle, timeout: u64) -> Outcome {
    let fence = fence.get()?;
    progress::wait_for(timeout, || fence.is_signalled() || fence.context().check().is_err())?;
    fence.context().check()
}

pub fn fence_query_status(fence: FenceHandle) -> Outcome {
    fence_host_synchronize(fence, 0)
}

pub fn fence_reset(fence: FenceHandle) -> Outcome {
    let fence = fence.get()?;
    if fence.is_pending() {
        return Err(misuse(ResultCode::ERROR_INVALID_ARGUMENT, "fence reset before it was signalled"));
    }
    fence.signal.signalled.store(false, Ordering::SeqCst);
    fence.signal.submitted.store(false, Ordering::SeqCst);
    Ok(())
}
