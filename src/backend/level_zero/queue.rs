//! The queues: submission, the order between engines, and which batches have completed.

use super::LevelZero;
use super::batch::{After, List, Program, Recorder};
use super::device::Device;
use super::event::{Event, Events, StepEvents};
use super::ffi::*;
use super::kernel::{Kernels, LevelZeroKernel};
use super::memory::Memory;
use super::plan::{Action, Plan};
use super::timing::{Moment, Timing};
use crate::backend::contract::{ProgramId, Step, Ticket};
use crate::backend::explicit;
use crate::backend::info::DeviceKind;
use crate::backend::slots::Slots;
use crate::base::error::{Error, Result};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a wait polls before it lets the driver put the thread to sleep. Waking up takes longer than many batches.
const SPIN: Duration = Duration::from_micros(50);

/// How long a wait sleeps before it checks whether the device is lost.
const NAP: Duration = Duration::from_secs(1);

/// A queue of a device: the one for kernels, or the one that only copies.
pub(super) struct Queue {
    // The fields are dropped in this order: lists before the engines that execute them.
    progress: Mutex<Progress>,
    programs: Mutex<Slots<Arc<Program>>>,
    /// Locked while a batch is recorded and submitted. It is locked before `progress`.
    state: Mutex<State>,
    completions: Arc<Events>,
    timestamps: Arc<Events>,
    /// How long to poll.
    spin: Duration,
    device: Arc<Device>,
}

/// The state that submissions change.
struct State {
    engine: Engine,
    /// For batches that run programs, if `engine` takes no lists.
    programs: Option<Engine>,
    /// The work of the newest batch, and the event at its end.
    newest: Option<(Work, Arc<Event>)>,
    /// The newest batch of another queue that batches have waited for.
    waited: Ticket,
}

/// Which engine a batch goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Commands,
    Programs,
}

/// A part of the device that executes commands on its own, in the order in which it gets them.
struct Engine {
    group: u32,
    entry: Entry,
    device: Arc<Device>,
}

/// How an engine gets its commands.
#[derive(Clone, Copy)]
enum Entry {
    /// Each as soon as it is appended to this list.
    Immediate(CommandListHandle),
    /// In lists, through this queue.
    Queue(CommandQueueHandle),
}

/// The state that completions change.
#[derive(Default)]
struct Progress {
    /// The number of the newest batch.
    submitted: u64,
    /// The number of the newest batch that has completed.
    completed: u64,
    /// The batches in between, oldest first.
    in_flight: VecDeque<Batch>,
    /// Lists for reuse.
    idle: Vec<List>,
    /// When the steps of completed batches ran, until somebody asks.
    timings: BTreeMap<u64, Result<Vec<Range<u64>>>>,
}

/// The lists of a batch, each with the program that it belongs to.
type Lists = SmallVec<[(Option<Arc<Program>>, List); 1]>;

/// A batch in flight.
struct Batch {
    /// Signalled at its end.
    done: Arc<Event>,
    lists: Lists,
    timing: Option<Timing>,
    /// What it waits for by events.
    _after: After,
}

impl Queue {
    /// Creates the queues of a device: the one for kernels, and the one that only copies, if it has an engine for that.
    pub fn all(device: &Arc<Device>) -> Result<(Queue, Option<Queue>)> {
        let queue = |group| Queue::new(device.clone(), group);
        let copies = device.adapter.copy_group.map(queue).transpose()?;
        Ok((queue(device.adapter.compute_group)?, copies))
    }

    fn new(device: Arc<Device>, group: u32) -> Result<Queue> {
        let engine = Engine::new(&device, group)?;
        // A driver that runs on the processor needs the core that a poll would take.
        let spin = if device.adapter.info.kind == DeviceKind::Cpu { Duration::ZERO } else { SPIN };
        Ok(Queue {
            progress: Mutex::default(),
            programs: Mutex::new(Slots::new()),
            state: Mutex::new(State { engine, programs: None, newest: None, waited: Ticket(0) }),
            completions: Events::completions(device.clone()),
            timestamps: Events::timestamps(device.clone()),
            spin,
            device,
        })
    }

    /// Converts the error of a batch whose commands the device executes as they are appended. If it has got some of
    /// them, the device counts as lost: its state is unknown, and trying the batch again would run them twice.
    fn half_submitted(&self, error: Error, appended: bool) -> Error {
        if appended { self.device.lose(|| format!("in the middle of a batch: {error}")) } else { error }
    }

    /// Lets the driver put the thread to sleep until a batch has completed, but no longer than [`NAP`].
    fn sleep(&self, done: &Event) -> Result<()> {
        if done.sleep(NAP.as_nanos() as u64)? {
            return Ok(());
        }
        // SAFETY: the context is alive.
        let code = unsafe { (self.device.api.context_get_status)(self.device.context) };
        self.device.check("zeContextGetStatus", code)
    }

    /// Records a plan in lists and submits them. Between two lists of the batch's own there is one of a program, whose
    /// steps `record` records.
    fn execute(
        &self,
        plan: &Plan<'_>,
        (queue, group): (CommandQueueHandle, u32),
        after: &After,
        done: &Event,
        timestamps: Option<&Arc<Events>>,
        record: impl Fn(&[Step], &mut Recorder<'_>) -> Result<()>,
    ) -> Result<(Lists, Vec<StepEvents>)> {
        let (mut lists, mut steps, nothing) = (Lists::new(), Vec::new(), After::default());
        let mut rest = plan.actions.as_slice();
        loop {
            let program = rest.iter().position(|(_, action)| matches!(action, Action::Run(_)));
            let (actions, end) = rest.split_at(program.unwrap_or(rest.len()));
            let list = self.idle_list(queue, group)?;
            let mut recorder = list.recorder();
            recorder.begin(if lists.is_empty() { after } else { &nothing })?;
            steps.extend(recorder.actions(actions, timestamps)?);
            let Some(((_, Action::Run(program)), next)) = end.split_first() else {
                recorder.end(done)?;
                list.close()?;
                lists.push((None, list));
                break;
            };
            list.close()?;
            lists.push((None, list));
            lists.push((Some(program.clone()), program.take((queue, group), &self.device, &record)?));
            rest = next;
        }
        for place in 0..lists.len() {
            let executed = lists[place].1.execute(queue);
            executed.map_err(|error| self.half_submitted(error, place > 0))?;
        }
        Ok((lists, steps))
    }

    /// Returns an empty list for a queue.
    fn idle_list(&self, queue: CommandQueueHandle, group: u32) -> Result<List> {
        let idle = &mut self.progress.lock().idle;
        let found = idle.iter().position(|list| list.group == group).map(|index| idle.swap_remove(index));
        match found {
            None => List::new(&self.device, queue, group),
            Some(mut list) => list.reset().map(|()| list),
        }
    }
}

impl explicit::Queue<LevelZero> for Queue {
    /// Records a batch and submits it.
    fn submit(
        &self,
        steps: &[Step],
        memory: &Memory,
        kernels: &Kernels,
        timed: bool,
        after: Option<(&Queue, Ticket)>,
    ) -> Result<Ticket> {
        let info = &self.device.adapter.info;
        let kernels = kernels.all();
        let max_groups = info.limits.max_groups();
        let plan = Plan::new(steps, &memory.buffers(), &kernels, &self.programs.lock(), max_groups)?;
        if timed && !info.features.timestamps {
            return Err(Error::Unsupported { feature: "timestamps".into(), device: info.to_string() });
        }
        // Events and lists of completed batches are reused.
        self.completed()?;
        let state = &mut *self.state.lock();
        let newer = after.filter(|(_, ticket)| *ticket > state.waited);
        let other = newer.map(|(queue, ticket)| queue.progress.lock().done(ticket)).transpose()?;
        let done = Arc::new(self.completions.take()?);
        let (work, engine) = state.engine(&plan);
        // An engine keeps the order by itself, or by the barrier at the start of each batch.
        let batch = state.newest.as_ref().filter(|(newest, _)| *newest != work).map(|(_, event)| event.clone());
        let after = After { batch, other };
        let since = timed.then(|| Moment::now(&self.device)).transpose()?;
        let timestamps = timed.then_some(&self.timestamps);
        let (lists, steps) = match engine.entry {
            Entry::Immediate(list) => {
                let mut recorder = Recorder::in_order(list, &self.device);
                let mut record = || {
                    recorder.begin(&after)?;
                    let steps = recorder.actions(&plan.actions, timestamps)?;
                    recorder.end(&done).map(|()| steps)
                };
                let recorded = record();
                (Lists::new(), recorded.map_err(|error| self.half_submitted(error, recorder.appended))?)
            }
            Entry::Queue(queue) => {
                let record = |steps: &[Step], recorder: &mut Recorder<'_>| {
                    record_program(steps, recorder, memory, &kernels, max_groups)
                };
                self.execute(&plan, (queue, engine.group), &after, &done, timestamps, record)?
            }
        };
        state.newest = Some((work, done.clone()));
        state.waited = newer.map_or(state.waited, |(_, ticket)| ticket);
        let timing = since.map(|since| Timing { since, steps });
        let progress = &mut *self.progress.lock();
        progress.submitted += 1;
        progress.in_flight.push_back(Batch { done, lists, timing, _after: after });
        Ok(Ticket(progress.submitted))
    }

    fn prepare(&self, steps: &[Step], memory: &Memory, kernels: &Kernels) -> Result<Option<ProgramId>> {
        let (max_groups, kernels) = (self.device.adapter.info.limits.max_groups(), kernels.all());
        let (entry, group) = {
            let state = &mut *self.state.lock();
            if let (Entry::Immediate(_), None) = (&state.engine.entry, &state.programs) {
                state.programs = Some(Engine::of_lists(&self.device, state.engine.group)?);
            }
            let engine = state.programs.as_ref().unwrap_or(&state.engine);
            (engine.entry, engine.group)
        };
        let program = Program::new(steps);
        if let Entry::Queue(queue) = entry {
            let record = |steps: &[Step], recorder: &mut Recorder<'_>| {
                record_program(steps, recorder, memory, &kernels, max_groups)
            };
            program.give_back(program.take((queue, group), &self.device, record)?);
        }
        Ok(Some(ProgramId(self.programs.lock().insert(Arc::new(program)))))
    }

    fn discard(&self, program: ProgramId) {
        let discarded = self.programs.lock().remove(program.0);
        // The driver frees outside of the lock.
        drop(discarded);
    }

    fn completed(&self) -> Result<Ticket> {
        let progress = &mut *self.progress.lock();
        while let Some(batch) = progress.in_flight.front() {
            if !batch.done.is_signalled()? {
                break;
            }
            progress.retire(&self.device);
        }
        Ok(Ticket(progress.completed))
    }

    fn wait(&self, ticket: Ticket) -> Result<Ticket> {
        let done = self.progress.lock().done(ticket)?;
        let start = Instant::now();
        loop {
            self.device.alive()?;
            let completed = self.completed()?;
            match &done {
                Some(done) if completed < ticket => {
                    if start.elapsed() < self.spin {
                        std::hint::spin_loop();
                    } else {
                        self.sleep(done)?;
                    }
                }
                _ => return Ok(completed),
            }
        }
    }

    fn timings(&self, ticket: Ticket) -> Result<Vec<Range<u64>>> {
        self.completed()?;
        self.progress.lock().timings.remove(&ticket.0).unwrap_or_else(|| {
            let message = format!("batch {} was not timed, has not completed, or has been asked for", ticket.0);
            Err(Error::InvalidArgument { op: "timings", message })
        })
    }

    fn finish(&mut self) -> Result<Ticket> {
        let newest = Ticket(self.progress.get_mut().submitted);
        self.wait(newest)
    }
}

/// Records the steps of a program. It runs no other program.
fn record_program(
    steps: &[Step],
    recorder: &mut Recorder<'_>,
    memory: &Memory,
    kernels: &[LevelZeroKernel],
    max_groups: [u32; 3],
) -> Result<()> {
    let plan = Plan::new(steps, &memory.buffers(), kernels, &Slots::new(), max_groups)?;
    recorder.actions(&plan.actions, None).map(drop)
}

impl State {
    /// Returns the engine for a batch.
    fn engine(&self, plan: &Plan<'_>) -> (Work, &Engine) {
        match &self.programs {
            Some(programs) if plan.runs_programs => (Work::Programs, programs),
            _ => (Work::Commands, &self.engine),
        }
    }
}

impl Progress {
    /// Keeps what the oldest batch leaves behind. The batch has completed.
    fn retire(&mut self, device: &Device) {
        let Some(batch) = self.in_flight.pop_front() else { return };
        self.completed += 1;
        for (program, list) in batch.lists {
            match program {
                Some(program) => program.give_back(list),
                None => self.idle.push(list),
            }
        }
        if let Some(timing) = batch.timing {
            self.timings.insert(self.completed, timing.ranges(device.adapter.clock));
        }
    }

    /// Returns the event at the end of a batch. `None` if the batch has completed.
    fn done(&self, ticket: Ticket) -> Result<Option<Arc<Event>>> {
        if ticket.0 > self.submitted {
            let message = format!("batch {} was not submitted yet, the newest is {}", ticket.0, self.submitted);
            return Err(Error::InvalidArgument { op: "wait", message });
        }
        let index = ticket.0.checked_sub(self.completed + 1);
        Ok(index.and_then(|index| self.in_flight.get(index as usize)).map(|batch| batch.done.clone()))
    }
}

impl Engine {
    fn new(device: &Arc<Device>, group: u32) -> Result<Engine> {
        let Device { api, adapter, context, .. } = &**device;
        if !adapter.in_order {
            return Engine::of_lists(device, group);
        }
        let desc = CommandQueueDesc { flags: CommandQueueFlags::IN_ORDER, ..Engine::queue(group) };
        let mut list = CommandListHandle::NULL;
        // SAFETY: context and device belong together, and the structures outlive the call.
        let code = unsafe { (api.command_list_create_immediate)(*context, adapter.device, &desc, &mut list) };
        device.check("zeCommandListCreateImmediate", code)?;
        Ok(Engine { group, entry: Entry::Immediate(list), device: device.clone() })
    }

    /// Returns an engine that takes lists.
    fn of_lists(device: &Arc<Device>, group: u32) -> Result<Engine> {
        let Device { api, adapter, context, .. } = &**device;
        let (desc, mut queue) = (Engine::queue(group), CommandQueueHandle::NULL);
        // SAFETY: context and device belong together, and the structures outlive the call.
        let code = unsafe { (api.command_queue_create)(*context, adapter.device, &desc, &mut queue) };
        device.check("zeCommandQueueCreate", code)?;
        Ok(Engine { group, entry: Entry::Queue(queue), device: device.clone() })
    }

    fn queue(group: u32) -> CommandQueueDesc {
        CommandQueueDesc { ordinal: group, mode: CommandQueueMode::ASYNCHRONOUS, ..Default::default() }
    }
}

impl Drop for Engine {
    /// The backend has called [`Queue::finish`], or the device is lost. But the device may not have finished with the
    /// last commands yet.
    fn drop(&mut self) {
        let Device { api, .. } = &*self.device;
        match self.entry {
            Entry::Immediate(list) => {
                if let Some(synchronize) = api.command_list_host_synchronize {
                    // SAFETY: the list is alive.
                    let code = unsafe { synchronize(list, self.device.patience()) };
                    self.device.log_failure("zeCommandListHostSynchronize", code);
                }
                // SAFETY: nobody else has the list, and the device no longer uses it, or is lost.
                self.device.log_failure("zeCommandListDestroy", unsafe { (api.command_list_destroy)(list) });
            }
            Entry::Queue(queue) => {
                // SAFETY: the queue is alive.
                let code = unsafe { (api.command_queue_synchronize)(queue, self.device.patience()) };
                self.device.log_failure("zeCommandQueueSynchronize", code);
                // SAFETY: nobody else has the queue, and the device no longer uses it, or is lost.
                self.device.log_failure("zeCommandQueueDestroy", unsafe { (api.command_queue_destroy)(queue) });
            }
        }
    }
}

#[cfg(test)]
#[cfg(device_tests)]
mod tests {
    use super::super::tests::open;
    use crate::backend::contract::Backend;

    #[test]
    fn lists_and_events_are_used_anew() {
        let backend = open();
        for _ in 0..1000 {
            let ticket = backend.submit(&[], true).unwrap();
            backend.wait(ticket).unwrap();
        }
        let progress = backend.queue.progress.lock();
        assert_eq!((progress.submitted, progress.completed, progress.in_flight.len()), (1000, 1000, 0));
        assert!(progress.idle.len() <= 2, "{} lists", progress.idle.len());
        drop(progress);
        // The newest batch keeps its event for the next one to wait for.
        assert!(backend.queue.completions.made() <= 3);
    }
}
