//! The queues: submission, and the timeline semaphores that count completed batches.

use super::Vulkan;
use super::batch::{Batch, Use, WORK_STAGES};
use super::clock::{Clock, Moment};
use super::device::Device;
use super::kernel::Kernels;
use super::memory::Memory;
use super::plan::Plan;
use super::validation;
use crate::backend::contract::{ProgramId, Step, Ticket};
use crate::backend::explicit::{self, Queue as _};
use crate::backend::info::DeviceKind;
use crate::backend::slots::Slots;
use crate::base::clock;
use crate::base::error::{Error, Result};
use ash::vk;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a wait polls before it sleeps. Waking up costs about 20 us, more than many batches take.
const SPIN: Duration = Duration::from_micros(50);

/// While several threads wait, each looks again after short sleeps, until it has waited so long. Only then it lets the
/// driver wake it up: on an H200, that came up to 10 ms late.
const DOZE: Duration = Duration::from_millis(2);
const SHORT: Duration = Duration::from_micros(50);

/// How long a wait sleeps before it checks whether another thread has found the device lost.
const NAP: Duration = Duration::from_secs(1);

/// The driver's queue. Whoever submits to it has it locked.
pub(super) type DriverQueue = Arc<Mutex<vk::Queue>>;

/// A queue of a device: the one for kernels, or the one that only copies.
pub(super) struct Queue {
    state: Mutex<State>,
    programs: Mutex<Slots<Batch>>,
    /// Its value is the number of the newest completed batch.
    timeline: vk::Semaphore,
    /// That number when it was last looked at.
    seen: AtomicU64,
    family: u32,
    /// The stages in which it works.
    stages: vk::PipelineStageFlags,
    /// How long to poll.
    spin: Duration,
    /// Threads that wait.
    waiting: AtomicU32,
    clock: Clock,
    device: Arc<Device>,
}

/// The state that submissions change.
struct State {
    queue: DriverQueue,
    /// The number of the newest batch.
    submitted: u64,
    /// The newest batch of the queue that only copies whose copies later batches see.
    seen_copies: u64,
    /// Submitted batches, oldest first, each with its number.
    in_flight: VecDeque<(u64, Batch)>,
    /// Batches for reuse, and those whose first command buffer is open.
    idle: Vec<Batch>,
    open: Vec<Batch>,
    /// The timestamps of completed batches that nobody has asked for yet.
    timestamps: HashMap<u64, Vec<u64>>,
}

impl Queue {
    /// Creates the queues of a device: the one for kernels, and the one that only copies, if there is one.
    pub fn all(device: &Arc<Device>) -> Result<(Queue, Option<Queue>)> {
        let kernels = device.adapter.queue_family;
        // SAFETY: the device was created with a queue of each family.
        let queue = |family| Arc::new(Mutex::new(unsafe { device.raw.get_device_queue(family, 0) }));
        let shared = queue(kernels);
        let copies = device.adapter.copy_family.map(|family| {
            let queue = if family == kernels { shared.clone() } else { queue(family) };
            Queue::new(device.clone(), queue, family, vk::PipelineStageFlags::TRANSFER)
        });
        Ok((Queue::new(device.clone(), shared, kernels, WORK_STAGES)?, copies.transpose()?))
    }

    fn new(device: Arc<Device>, queue: DriverQueue, family: u32, stages: vk::PipelineStageFlags) -> Result<Queue> {
        let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: the feature is enabled.
        let timeline = device.check("vkCreateSemaphore", unsafe { device.raw.create_semaphore(&info, None) })?;
        let (in_flight, idle, open, timestamps) = Default::default();
        let state = State { queue, submitted: 0, seen_copies: 0, in_flight, idle, open, timestamps };
        // A driver that runs on the processor needs the core that a poll would take.
        let spin = if device.adapter.info.kind == DeviceKind::Cpu { Duration::ZERO } else { SPIN };
        let (state, programs) = (Mutex::new(state), Mutex::new(Slots::new()));
        let (seen, waiting, clock) = (AtomicU64::new(0), AtomicU32::new(0), Clock::new(&device));
        Ok(Queue { state, programs, timeline, seen, family, stages, spin, waiting, clock, device })
    }

    /// Lets the driver put the thread to sleep until a batch has completed, but no longer than [`NAP`].
    fn sleep(&self, ticket: Ticket) -> Result<()> {
        let (semaphores, values) = ([self.timeline], [ticket.0]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // SAFETY: the semaphore is of this device, and a timeline.
        match unsafe { self.device.raw.wait_semaphores(&info, NAP.as_nanos() as u64) } {
            Ok(()) | Err(vk::Result::TIMEOUT) => Ok(()),
            Err(code) => Err(self.device.error("vkWaitSemaphores", code)),
        }
    }

    /// Returns a batch that the device does not execute.
    fn idle_batch(&self) -> Result<Batch> {
        self.recycle(self.completed()?)?;
        let mut state = self.state.lock();
        let idle = state.open.pop().or_else(|| state.idle.pop());
        drop(state);
        idle.map_or_else(|| self.new_batch(), Ok)
    }

    /// Opens a batch for the next submission. The device is busy meanwhile.
    fn open_batch(&self) -> Result<()> {
        let idle = self.state.lock().idle.pop();
        let mut batch = idle.map_or_else(|| self.new_batch(), Ok)?;
        batch.open()?;
        self.state.lock().open.push(batch);
        Ok(())
    }

    fn new_batch(&self) -> Result<Batch> {
        Batch::new(self.device.clone(), self.family, self.stages)
    }

    /// Whether a batch has completed.
    fn has_completed(&self, ticket: Ticket) -> Result<bool> {
        Ok(self.seen.load(Ordering::Acquire) >= ticket.0 || self.completed()? >= ticket)
    }

    /// Keeps completed batches for reuse, and keeps their timestamps.
    fn recycle(&self, completed: Ticket) -> Result<()> {
        let state = &mut *self.state.lock();
        while state.in_flight.front().is_some_and(|(number, _)| *number <= completed.0) {
            let Some((number, batch)) = state.in_flight.pop_front() else { break };
            if let Some(timestamps) = batch.timestamps()? {
                state.timestamps.insert(number, timestamps);
            }
            state.idle.push(batch);
        }
        Ok(())
    }

    /// Returns the present moment.
    fn moment(&self) -> Result<Moment> {
        self.clock.moment(&self.device).unwrap_or_else(|| self.moment_by_batch())
    }

    /// Returns the present moment by a batch that only notes the time. It runs alone, so it runs at once. It takes no
    /// ticket.
    fn moment_by_batch(&self) -> Result<Moment> {
        let mut batch = self.idle_batch()?;
        batch.record_timestamp()?;
        let mut state = self.state.lock();
        let driver = state.queue.clone();
        let queue = driver.lock();
        // SAFETY: here and below, the lock guards the queue.
        self.device.check("vkQueueWaitIdle", unsafe { self.device.raw.queue_wait_idle(*queue) })?;
        let info = [vk::SubmitInfo::default().command_buffers(batch.sequence())];
        let before = clock::now();
        // SAFETY: the commands are recorded and not submitted yet; they are waited for below.
        let submitted = unsafe { self.device.raw.queue_submit(*queue, &info, vk::Fence::null()) };
        self.device.check("vkQueueSubmit", submitted)?;
        // SAFETY: see above.
        self.device.check("vkQueueWaitIdle", unsafe { self.device.raw.queue_wait_idle(*queue) })?;
        drop(queue);
        let span = before..clock::now();
        let timestamps = batch.timestamps()?.unwrap_or_default();
        state.idle.push(batch);
        Ok(Moment::within(&self.device, span, timestamps.first().copied().unwrap_or_default()))
    }
}

impl explicit::Queue<Vulkan> for Queue {
    /// Records and submits a batch. Threads record side by side. The order of submission gives the tickets.
    fn submit(
        &self,
        steps: &[Step],
        memory: &Memory,
        kernels: &Kernels,
        timed: bool,
        after: Option<(&Queue, Ticket)>,
    ) -> Result<Ticket> {
        let info = &self.device.adapter.info;
        let max_groups = info.limits.max_groups();
        let plan = Plan::new(steps, &memory.buffers(), &kernels.all(), &self.programs.lock(), max_groups)?;
        if timed && !info.features.timestamps {
            return Err(Error::Unsupported { feature: "timestamps".into(), device: info.to_string() });
        }
        let mut batch = self.idle_batch()?;
        // What has completed takes a barrier, too: its bytes may not be visible yet.
        let after = after.filter(|(_, ticket)| self.state.lock().seen_copies < ticket.0);
        batch.record(&plan, if timed { Use::Timed } else { Use::Once }, after.is_some())?;
        // On an idle GPU, a semaphore costs more than this look.
        let awaited = match after {
            Some((other, ticket)) if !other.has_completed(ticket)? => Some((other.timeline, ticket.0)),
            _ => None,
        };
        let (awaited, awaited_value): (Vec<_>, Vec<_>) = awaited.into_iter().unzip();
        // This is the last chance to refuse the batch. Once it is submitted, the caller must get its ticket.
        validation::check()?;
        let mut state = self.state.lock();
        let number = state.submitted + 1;
        let (semaphores, values, stages) = ([self.timeline], [number], [vk::PipelineStageFlags::ALL_COMMANDS]);
        let mut timeline = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(&awaited_value)
            .signal_semaphore_values(&values);
        let info = [vk::SubmitInfo::default()
            .command_buffers(batch.sequence())
            .wait_semaphores(&awaited)
            .wait_dst_stage_mask(&stages[..awaited.len()])
            .signal_semaphores(&semaphores)
            .push_next(&mut timeline)];
        let queue = state.queue.lock();
        // SAFETY: the commands are recorded and not submitted yet, the locks guard the queue, and each number is higher
        // than the one before. The batch is kept until the semaphore has that value. What it waits for was submitted.
        let submitted = unsafe { self.device.raw.queue_submit(*queue, &info, vk::Fence::null()) };
        drop(queue);
        self.device.check("vkQueueSubmit", submitted)?;
        state.submitted = number;
        state.seen_copies = after.map_or(0, |(_, ticket)| ticket.0).max(state.seen_copies);
        state.in_flight.push_back((number, batch));
        drop(state);
        if let Err(error) = self.open_batch() {
            // The batch has been submitted, and the next one tries this again.
            log::debug!("no batch could be opened: {error}");
        }
        Ok(Ticket(number))
    }

    fn prepare(&self, steps: &[Step], memory: &Memory, kernels: &Kernels) -> Result<Option<ProgramId>> {
        if steps.is_empty() {
            return Ok(None);
        }
        let max_groups = self.device.adapter.info.limits.max_groups();
        // A program runs no other program.
        let plan = Plan::new(steps, &memory.buffers(), &kernels.all(), &Slots::new(), max_groups)?;
        let mut program = self.new_batch()?;
        program.record(&plan, Use::Again, false)?;
        validation::check()?;
        Ok(Some(ProgramId(self.programs.lock().insert(program))))
    }

    fn discard(&self, program: ProgramId) {
        let discarded = self.programs.lock().remove(program.0);
        // The driver frees outside of the lock.
        drop(discarded);
    }

    fn completed(&self) -> Result<Ticket> {
        // SAFETY: the semaphore is of this device, and a timeline.
        let value = unsafe { self.device.raw.get_semaphore_counter_value(self.timeline) };
        let completed = self.device.check("vkGetSemaphoreCounterValue", value)?;
        self.seen.fetch_max(completed, Ordering::Release);
        Ok(Ticket(completed))
    }

    fn wait(&self, ticket: Ticket) -> Result<Ticket> {
        let submitted = self.state.lock().submitted;
        if ticket.0 > submitted {
            let message = format!("batch {} was not submitted yet, the newest is {submitted}", ticket.0);
            return Err(Error::InvalidArgument { op: "wait", message });
        }
        /// Counts a thread that waits until it is dropped.
        struct Waiting<'a>(&'a AtomicU32);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let waiting = Waiting(&self.waiting);
        let start = Instant::now();
        loop {
            self.device.alive()?;
            let completed = self.completed()?;
            if completed >= ticket {
                self.recycle(completed)?;
                return Ok(completed);
            }
            let waited = start.elapsed();
            if waited < self.spin {
                std::hint::spin_loop();
            } else if waited < DOZE && waiting.0.load(Ordering::Relaxed) > 1 {
                std::thread::sleep(SHORT);
            } else {
                self.sleep(ticket)?;
            }
        }
    }

    fn timings(&self, ticket: Ticket) -> Result<Vec<Range<u64>>> {
        self.recycle(self.completed()?)?;
        let timestamps = self.state.lock().timestamps.remove(&ticket.0).ok_or_else(|| {
            let what = "was not timed, has not completed, or has told its timings before";
            Error::InvalidArgument { op: "timings", message: format!("batch {} {what}", ticket.0) }
        })?;
        let moment = self.moment()?;
        let pairs = timestamps.chunks_exact(2);
        Ok(pairs.map(|pair| moment.host_time(pair[0])..moment.host_time(pair[1])).collect())
    }

    fn finish(&mut self) -> Result<Ticket> {
        // SAFETY: nobody else has the queue any more.
        let idle = unsafe { self.device.raw.device_wait_idle() };
        self.device.check("vkDeviceWaitIdle", idle)?;
        Ok(Ticket(self.state.get_mut().submitted))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: nothing was submitted, or the backend has called `finish`: the device is idle, or lost.
        unsafe { self.device.raw.destroy_semaphore(self.timeline, None) };
    }
}

#[cfg(test)]
#[cfg(device_tests)]
mod tests {
    use super::super::tests::open;
    use super::*;
    use crate::backend::contract::Backend;

    #[test]
    fn batches_are_used_anew() {
        let backend = open();
        for _ in 0..50 {
            let ticket = backend.submit(&[], false).unwrap();
            backend.wait(ticket).unwrap();
        }
        let state = backend.queue.state.lock();
        assert_eq!((state.submitted, state.in_flight.len()), (50, 0));
        assert_eq!((state.idle.len(), state.open.len()), (1, 1));
    }

    #[test]
    fn timestamps_that_nobody_asks_for_hold_no_batch() {
        let backend = open();
        for number in 1..=50 {
            let ticket = backend.submit(&[], true).unwrap();
            assert_eq!(ticket, Ticket(number));
            backend.wait(ticket).unwrap();
        }
        let state = backend.queue.state.lock();
        assert_eq!((state.idle.len(), state.open.len()), (1, 1));
        drop(state);
        assert_eq!(backend.timings(Ticket(7)).unwrap(), []);
        assert_eq!(backend.queue.state.lock().timestamps.len(), 49);
    }

    #[test]
    fn a_batch_tells_the_time_where_the_driver_does_not() {
        let backend = open();
        let before = clock::now();
        let moment = backend.queue.moment_by_batch().unwrap();
        let after = clock::now();
        assert_eq!(backend.submit(&[], false).unwrap(), Ticket(1), "it took a ticket");
        let told = backend.queue.moment().unwrap();
        let later = clock::now();
        // Each moment is the middle of a span that lies in one of these two.
        assert!((before..=after).contains(&moment.host) && (after..=later).contains(&told.host));
        // So the two clocks can differ by at most half of each.
        let slack = (after - before) / 2 + (later - after) / 2;
        assert!(moment.host_time(told.ticks).abs_diff(told.host) <= slack, "{slack}");
    }
}
