//! The stream: the order of all work on a device. It joins a recording, which finds hazards, with a submitter.

use super::host_trace::HostTrace;
use super::pool::Allocation;
use super::profile::{Label, TimedCommand};
use super::program::{Part, Program};
use super::recording::{Cost, Recording};
use super::submit_thread::SubmitThread;
use super::submitter::Submitter;
use crate::backend::contract::{Backend, Command, Ticket};
use crate::base::error::{Error, Result};
use crate::base::lock::{Mutex, MutexGuard};
use crate::shader::Access;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The order of all work on a device. Commands of many threads run in the order in which they were recorded.
pub(crate) struct Stream {
    backend: Arc<dyn Backend>,
    state: Mutex<State>,
    submitter: Arc<Submitter>,
    /// `None` once the stream is being closed.
    thread: Option<SubmitThread>,
    /// Held while timing begins or ends, and by the thread that asks for times, so that they are stored in order.
    asking: Mutex<()>,
    waits: AtomicU64,
    /// Whether a run of a program has become a batch since the last wait, other than by a flush.
    ran_program: AtomicBool,
    host_trace: Arc<HostTrace>,
}

struct State {
    recording: Recording,
    /// Set while commands are timed: the commands of batches whose times have been asked for, batch by batch.
    timing: Option<Vec<Result<Vec<TimedCommand>>>>,
    counts: Counts,
    /// Threads that record a run of a program.
    runs: u32,
}

/// What has been recorded since the stream was made.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Kernels launched.
    pub launches: u64,
    /// Commands with a barrier before them, except first commands of batches.
    pub barriers: u64,
}

impl Stream {
    pub fn new(backend: Arc<dyn Backend>, host_trace: Arc<HostTrace>) -> Self {
        let state = State { recording: Recording::default(), timing: None, counts: Counts::default(), runs: 0 };
        let submitter = Arc::new(Submitter::new(backend.clone(), host_trace.clone()));
        Stream {
            state: Mutex::new(state),
            thread: Some(SubmitThread::new(submitter.clone(), backend.info())),
            submitter,
            asking: Mutex::default(),
            waits: AtomicU64::new(0),
            ran_program: AtomicBool::new(false),
            host_trace,
            backend,
        }
    }

    /// Appends a command. `uses` are the buffers it names and how it uses them. `label` is called only while commands
    /// are timed.
    ///
    /// An error is that of an earlier submission. Then nothing has been appended.
    pub fn record<'a>(
        &self,
        command: impl FnOnce() -> Command,
        uses: impl IntoIterator<Item = (&'a Arc<Allocation>, Access), IntoIter: Clone>,
        cost: Cost,
        label: impl FnOnce() -> Label,
    ) -> Result<()> {
        let mut state = self.state.lock();
        self.check(&state)?;
        let State { recording, timing, counts, .. } = &mut *state;
        counts.barriers += u64::from(recording.push(command, uses.into_iter(), cost));
        // The command is made where it stays, so it is looked at there.
        let newest = recording.steps().last();
        counts.launches += u64::from(newest.is_some_and(|step| matches!(step.command, Command::Dispatch { .. })));
        if timing.is_some() {
            recording.label(label());
        }
        self.cut_batch(state);
        Ok(())
    }

    /// Returns the error of an earlier submission, unless a run is being recorded.
    #[inline]
    fn check(&self, state: &State) -> Result<()> {
        if state.runs > 0 {
            return Ok(());
        }
        self.submitter.take_error().map_or(Ok(()), Err)
    }

    /// Makes a batch of the recording if it is large enough, and has it submitted. If that fails, the batch stays, and
    /// the next call gets the error.
    #[inline]
    fn cut_batch(&self, mut state: MutexGuard<'_, State>) {
        if self.submitter.is_batch(&state.recording) {
            let is_timed = state.timing.is_some();
            let runs_program = state.recording.runs_program();
            let before = self.submitter.cut(&mut state.recording, is_timed);
            drop(state);
            self.submit_cut(before, runs_program, is_timed);
        }
    }

    /// Has what was cut submitted, by the submit thread or by this one. `before` batches have been cut since the device
    /// was idle.
    fn submit_cut(&self, before: u32, runs_program: bool, is_timed: bool) {
        let thread = self.thread.as_ref().filter(|_| !is_timed);
        if runs_program {
            self.ran_program.store(true, Ordering::Relaxed);
        }
        // A program keeps the device busy for long, so the thread may take its time to wake up.
        let takes = |thread: &SubmitThread| {
            thread.takes() || runs_program && self.submitter.cut_batches() == 1 && thread.wake()
        };
        let takes = thread.is_some_and(takes);
        if !takes {
            // The device does not wait until another thread is awake.
            self.submitter.submit_or_note();
            // Short work needs no help.
            if let Some(thread) = thread.filter(|_| before >= 1) {
                thread.wake();
            }
        }
        if let Err(error) = self.keep_pace(takes) {
            self.submitter.note_error(error);
        }
    }

    /// Begins to record a run of a program, and what belongs to it. Until [`end_run`](Self::end_run), nothing that is
    /// appended is refused. Else a part of the run would be missing, or one that is queued would seem to have failed.
    pub fn begin_run(&self) -> Result<()> {
        let mut state = self.state.lock();
        self.check(&state)?;
        state.runs += 1;
        Ok(())
    }

    pub fn end_run(&self) {
        self.state.lock().runs -= 1;
    }

    /// Appends a run of a program. Other threads' commands may come between its parts.
    pub fn run(&self, program: &Arc<Program>) {
        for part in &program.parts {
            let mut state = self.state.lock();
            state.counts.launches += part.launches;
            match part.id {
                // Each command is timed apart.
                Some(id) if state.timing.is_none() => {
                    state.counts.barriers += part.barriers + u64::from(!state.recording.is_empty());
                    state.recording.push_run(id, part, program);
                    self.cut_batch(state);
                }
                _ => {
                    drop(state);
                    self.run_steps(part, program);
                }
            }
        }
    }

    /// Appends the commands of a part of a program one by one. The device begins with the first ones while the others
    /// are encoded.
    fn run_steps(&self, part: &Part, program: &Arc<Program>) {
        const PIECE: usize = 16;
        for first in (0..part.recording.steps().len()).step_by(PIECE) {
            let mut state = self.state.lock();
            let State { recording, timing, counts, .. } = &mut *state;
            let (labels, barriers) = recording.push_steps(part, first, PIECE, program);
            counts.barriers += barriers;
            if timing.is_some() {
                labels.iter().for_each(|label| recording.label(label.clone()));
            }
            self.cut_batch(state);
        }
    }

    /// Counts bytes that the host has written in place and that wait for commands to use them.
    pub fn note_upload(&self, bytes: u64) {
        self.state.lock().recording.add_cost(Cost { upload_bytes: bytes, nanoseconds: 0 });
    }

    /// Submits what has been recorded. Returns the ticket of the newest batch.
    pub fn flush(&self) -> Result<Ticket> {
        if let Some(error) = self.submitter.take_error() {
            return Err(error);
        }
        let mut state = self.state.lock();
        if !state.recording.is_empty() {
            let is_timed = state.timing.is_some();
            self.submitter.cut(&mut state.recording, is_timed);
        }
        // Not those that others cut from here on.
        let newest = self.submitter.newest_cut();
        drop(state);
        self.submitter.submit()?;
        // Most callers wait next, and then release what has run.
        self.keep_pace(self.submitter.has_few_in_flight())?;
        Ok(newest)
    }

    /// Releases the buffers of batches that have completed.
    pub fn retire(&self) -> Result<()> {
        let completed = self.submitter.retire()?;
        let is_timed = self.state.lock().timing.is_some();
        if is_timed {
            self.collect_times(completed);
        }
        Ok(())
    }

    /// If too many batches are ahead of the device, waits for the oldest ones. Releases the buffers of those that have
    /// completed, unless somebody else soon does that.
    fn keep_pace(&self, others_retire: bool) -> Result<()> {
        if !others_retire {
            self.retire()?;
        }
        self.submitter.behind().map_or(Ok(()), |ticket| self.wait_for(ticket))
    }

    /// Whether batches are on their way, as far as is known without asking the device.
    pub fn is_busy(&self) -> bool {
        self.submitter.oldest().is_some() || self.submitter.cut_batches() > 0
    }

    /// Blocks until a batch has run.
    pub fn wait_for(&self, ticket: Ticket) -> Result<()> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        let span = self.host_trace.span(|| "wait".into());
        self.backend.wait(ticket)?;
        drop(span);
        self.note_waited(ticket)
    }

    /// Notes that somebody has waited for a batch.
    pub fn note_waited(&self, ticket: Ticket) -> Result<()> {
        // Who has waited for a program often runs the next one at once. It then finds the thread awake.
        if self.ran_program.swap(false, Ordering::Relaxed) {
            self.thread.iter().for_each(SubmitThread::wake_early);
        }
        self.retire()?;
        self.submitter.note_waited(ticket);
        Ok(())
    }

    /// Blocks until the oldest batch in flight has run. If none is in flight, submits what has been recorded, and waits
    /// for it. Returns false if no batch has ended: there was none, or this is a browser, which cannot wait.
    pub fn wait_for_oldest(&self) -> Result<bool> {
        let before = self.submitter.oldest();
        self.retire()?;
        if self.submitter.oldest() != before {
            return Ok(true);
        }
        let recorded = !self.state.lock().recording.is_empty() || self.submitter.cut_batches() > 0;
        let ticket = match self.submitter.oldest() {
            Some(ticket) => ticket,
            None if recorded => self.flush()?,
            None => return Ok(false),
        };
        self.wait_for(ticket)?;
        Ok(self.submitter.oldest().is_none_or(|oldest| oldest > ticket))
    }

    /// Submits what has been recorded and blocks until all of it has run.
    pub fn wait(&self) -> Result<()> {
        let ticket = self.flush()?;
        self.wait_for(ticket)
    }

    /// Makes the device time the commands that are recorded from now on.
    pub fn start_timing(&self) -> Result<()> {
        // A profile that ends takes out its batches first.
        let _asking = self.asking.lock();
        let mut state = self.state.lock();
        if state.timing.is_some() {
            let message = "the device is being profiled already; profiles do not nest".into();
            return Err(Error::InvalidArgument { op: "profile", message });
        }
        if !state.recording.is_empty() {
            // Commands that were recorded before are not timed.
            self.submitter.cut(&mut state.recording, false);
        }
        state.timing = Some(Vec::new());
        drop(state);
        self.submitter.submit().inspect_err(|_| {
            self.state.lock().timing = None;
            self.submitter.take_timed();
        })
    }

    /// Blocks until the timed commands have run, and returns them.
    pub fn stop_timing(&self) -> Result<Vec<TimedCommand>> {
        let waited = self.flush().and_then(|newest| self.wait_for(newest));
        let _asking = self.asking.lock();
        let mut told = self.state.lock().timing.take().unwrap_or_default();
        // Other threads may have recorded more meanwhile.
        let submitted = self.submitter.submit();
        let batches = self.submitter.take_timed();
        let newest = batches.back().map(|(ticket, _)| *ticket);
        waited.and(submitted).and_then(|()| newest.map_or(Ok(()), |ticket| self.backend.wait(ticket)))?;
        told.extend(batches.into_iter().map(|batch| self.times_of(batch)));
        let commands: Result<Vec<_>> = told.into_iter().collect();
        Ok(commands?.into_iter().flatten().collect())
    }

    /// While commands are timed, asks for the times of batches that have completed: a backend keeps few.
    fn collect_times(&self, completed: Ticket) {
        // Asking may call back reads, which must not happen under the lock of the state.
        let _asking = self.asking.lock();
        while let Some(batch) = self.submitter.next_timed(completed) {
            let times = self.times_of(batch);
            if let Some(told) = &mut self.state.lock().timing {
                told.push(times);
            }
        }
    }

    fn times_of(&self, (ticket, labels): (Ticket, Vec<Label>)) -> Result<Vec<TimedCommand>> {
        let times = self.backend.timings(ticket)?;
        Ok(labels.into_iter().zip(times).map(|(label, times)| TimedCommand::new(label, times)).collect())
    }

    /// Times that the host has blocked.
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    pub fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    pub fn submissions(&self) -> u64 {
        self.submitter.submissions()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.thread = None;
        // Buffers may be freed only when no batch uses them. If the device is lost, none does.
        let flushed = self.flush().map(drop);
        if let Err(error) = flushed.and(self.backend.wait(self.submitter.newest())) {
            log::debug!("the device was closed with an error: {error}");
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::capture::Captured;
    use super::super::pool::PoolOwner;
    use super::super::submitter::{BATCH_UPLOAD_BYTES, MAX_IN_FLIGHT};
    use super::*;
    use crate::backend::contract::{
        BufferId, Compiled, CopyQueue, KernelId, MemoryUse, ProgramId, ReadCallback, Region, Step,
    };
    use crate::backend::info::{DeviceInfo, DeviceKind};
    use crate::base::backend_kind::BackendKind;
    use crate::shader::{Module, Target};
    use std::collections::HashMap;
    use std::ops::Range;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    /// What is copied from staging buffers.
    type Sources = Vec<(BufferId, Range<u64>)>;

    /// A device that runs a batch when it is waited for, and not before.
    pub(crate) struct Lazy {
        pub(crate) info: DeviceInfo,
        pub(crate) host_writes: bool,
        pub(crate) budget: u64,
        /// Bytes of all buffers that are alive, and how many there have been.
        pub(crate) bytes: Arc<AtomicU64>,
        pub(crate) allocations: Arc<AtomicU64>,
        batches: Mutex<Vec<Vec<bool>>>,
        /// The bytes of staging buffers, by their names. These are unique. If there is a queue that only copies, all
        /// buffers are here.
        staging: Mutex<HashMap<u64, u64>>,
        /// What each batch copies from staging buffers.
        copied: Mutex<Vec<Sources>>,
        /// Whether there are programs.
        pub(crate) has_programs: bool,
        completed: AtomicU64,
        most_in_flight: AtomicU64,
        /// Batches that the submit thread has submitted.
        by_thread: AtomicU64,
        broken: AtomicBool,
        timed: Mutex<HashMap<u64, usize>>,
        /// The queue that only copies.
        pub(crate) copy_queue: Option<Arc<LazyCopies>>,
        /// The copies that each batch waits for.
        pub(crate) awaited: Arc<Mutex<Vec<Ticket>>>,
    }

    /// A queue that copies when it is waited for, and not before.
    #[derive(Default)]
    pub(crate) struct LazyCopies {
        /// What each submission copies from, and where to.
        pub(crate) submitted: Mutex<Vec<(BufferId, Range<u64>, BufferId)>>,
        pub(crate) completed: AtomicU64,
        /// Waits for copies that were not done.
        pub(crate) waits: AtomicU64,
    }

    impl CopyQueue for LazyCopies {
        fn submit(&self, copies: &[Step], _: bool) -> Result<Ticket> {
            let mut submitted = self.submitted.lock();
            for step in copies {
                let Command::CopyRegion { src, dst, region } = &step.command else { panic!("it only copies") };
                submitted.push((*src, region.src.offset..region.src.offset + region.bytes(), *dst));
            }
            Ok(Ticket(submitted.len() as u64))
        }

        fn timings(&self, ticket: Ticket) -> Result<Vec<Range<u64>>> {
            Ok([1000 * ticket.0].map(|start| start..start + 500).into())
        }

        fn completed(&self) -> Result<Ticket> {
            Ok(Ticket(self.completed.load(Ordering::Relaxed)))
        }

        fn wait(&self, ticket: Ticket) -> Result<()> {
            if self.completed.fetch_max(ticket.0, Ordering::Relaxed) < ticket.0 {
                self.waits.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        }
    }

    impl Lazy {
        pub(crate) fn new(kind: DeviceKind, budget: u64) -> Lazy {
            Lazy {
                info: DeviceInfo::sample(BackendKind::Vulkan, kind, None),
                host_writes: false,
                budget,
                bytes: Arc::default(),
                allocations: Arc::default(),
                batches: Mutex::default(),
                staging: Mutex::default(),
                copied: Mutex::default(),
                has_programs: true,
                completed: AtomicU64::new(0),
                most_in_flight: AtomicU64::new(0),
                by_thread: AtomicU64::new(0),
                broken: AtomicBool::new(false),
                timed: Mutex::default(),
                copy_queue: None,
                awaited: Arc::default(),
            }
        }
    }

    impl Backend for Lazy {
        fn info(&self) -> &DeviceInfo {
            &self.info
        }

        fn target(&self) -> Target {
            Target::VULKAN
        }

        fn allocate(&self, bytes: u64, memory: MemoryUse) -> Result<BufferId> {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
            let number = self.allocations.fetch_add(1, Ordering::Relaxed);
            if memory == MemoryUse::Upload || memory == MemoryUse::Readback || self.copy_queue.is_some() {
                self.staging.lock().insert(u64::MAX - number, bytes);
                return Ok(BufferId(u64::MAX - number));
            }
            // Each test names its buffers by their sizes.
            Ok(BufferId(bytes / 32))
        }

        /// Panics if a copy that is not done uses the buffer.
        fn free(&self, buffer: BufferId) {
            if let Some(queue) = &self.copy_queue {
                let done = queue.completed.load(Ordering::Relaxed) as usize;
                let is_used = |(src, _, dst): &(BufferId, Range<u64>, BufferId)| [*src, *dst].contains(&buffer);
                assert!(!queue.submitted.lock().iter().skip(done).any(is_used), "{buffer:?} is in use");
            }
            let bytes = self.staging.lock().remove(&buffer.0).unwrap_or_else(|| 32 * buffer.0);
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }

        fn host_writes_device_memory(&self) -> bool {
            self.host_writes
        }

        /// Panics if a batch that has not run uses these bytes.
        fn write(&self, buffer: BufferId, offset: u64, bytes: &[u8]) -> Result<()> {
            let completed = self.completed.load(Ordering::Relaxed) as usize;
            let end = offset + bytes.len() as u64;
            for (id, range) in self.copied.lock().iter().skip(completed).flatten() {
                assert!(*id != buffer || range.end <= offset || end <= range.start, "{offset} to {end} are in use");
            }
            if let Some(queue) = &self.copy_queue {
                let done = queue.completed.load(Ordering::Relaxed) as usize;
                let is_used = queue.submitted.lock().iter().skip(done).any(|(src, ..)| *src == buffer);
                assert!(!is_used, "a copy that is not done reads {buffer:?}");
            }
            Ok(())
        }

        fn budget(&self) -> u64 {
            self.budget
        }

        fn binary_key(&self, _: &Module) -> Option<String> {
            None
        }

        fn compile(&self, _: &Module, _: Option<&[u8]>) -> Result<Compiled> {
            Ok(Compiled { kernel: KernelId(0), binary: None, reused: false })
        }

        /// Step `s` of batch `b` runs from `100 b + 10 s` for 5 ns.
        fn timings(&self, ticket: Ticket) -> Result<Vec<Range<u64>>> {
            let steps = self.timed.lock().remove(&ticket.0).expect("the batch is timed, and told once");
            Ok((0..steps as u64).map(|step| 100 * ticket.0 + 10 * step).map(|start| start..start + 5).collect())
        }

        fn submit_after(&self, steps: &[Step], timed: bool, copies: Ticket) -> Result<Ticket> {
            if self.broken.load(Ordering::Relaxed) {
                let message = "broken".to_string();
                return Err(Error::Driver { backend: BackendKind::Vulkan, call: "submit", message });
            }
            if std::thread::current().name() == Some("marquetry submits") {
                self.by_thread.fetch_add(1, Ordering::Relaxed);
            }
            let mut batches = self.batches.lock();
            let copied = |step: &Step| match &step.command {
                Command::CopyRegion { src, region, .. } => {
                    Some((*src, region.src.offset..region.src.offset + region.bytes()))
                }
                _ => None,
            };
            self.copied.lock().push(steps.iter().filter_map(copied).collect());
            self.awaited.lock().push(copies);
            batches.push(steps.iter().map(|step| step.barrier).collect());
            let submitted = batches.len() as u64;
            if timed {
                self.timed.lock().insert(submitted, steps.len());
            }
            self.most_in_flight.fetch_max(submitted - self.completed.load(Ordering::Relaxed), Ordering::Relaxed);
            Ok(Ticket(submitted))
        }

        fn copies(&self) -> Option<&dyn CopyQueue> {
            self.copy_queue.as_deref().map(|queue| queue as &dyn CopyQueue)
        }

        fn prepare(&self, steps: &[Step]) -> Result<Option<ProgramId>> {
            Ok(self.has_programs.then_some(ProgramId(steps.len() as u64)))
        }

        fn discard(&self, _: ProgramId) {}

        fn completed(&self) -> Result<Ticket> {
            Ok(Ticket(self.completed.load(Ordering::Relaxed)))
        }

        fn wait(&self, ticket: Ticket) -> Result<()> {
            self.completed.fetch_max(ticket.0, Ordering::Relaxed);
            Ok(())
        }

        fn read(&self, _: BufferId, _: u64, _: Ticket, done: ReadCallback) {
            done(Ok(&[]));
        }

        fn read_now(&self, _: BufferId, _: u64, _: Ticket, _: &mut [u8]) -> Result<()> {
            Ok(())
        }
    }

    /// Opens a device whose batches are submitted by the thread that records them.
    fn open() -> (Arc<Lazy>, Stream, impl Fn(u64) -> Arc<Allocation>) {
        open_kind(DeviceKind::Cpu)
    }

    fn open_kind(kind: DeviceKind) -> (Arc<Lazy>, Stream, impl Fn(u64) -> Arc<Allocation>) {
        let lazy = Arc::new(Lazy::new(kind, 0));
        let backend: Arc<dyn Backend> = lazy.clone();
        let stream = Stream::new(backend.clone(), Arc::default());
        (lazy, stream, move |name| Allocation::alone(&backend, 32 * name).unwrap())
    }

    fn copy(stream: &Stream, src: &Arc<Allocation>, dst: &Arc<Allocation>) -> Result<()> {
        copy_that_takes(0, stream, src, dst)
    }

    fn copy_that_takes(nanoseconds: u64, stream: &Stream, src: &Arc<Allocation>, dst: &Arc<Allocation>) -> Result<()> {
        let command = Command::CopyRegion { src: src.id(), dst: dst.id(), region: Region::linear(16) };
        let label = || Label::copy(dst.id().0.to_string(), 16);
        stream.record(
            || command,
            [(src, Access::Read), (dst, Access::Write)],
            Cost { upload_bytes: 0, nanoseconds },
            label,
        )
    }

    #[test]
    fn barriers_stand_where_hazards_are() {
        let (lazy, stream, buffer) = open();
        let [a, b, c, d, e] = [1, 2, 3, 4, 5].map(buffer);
        copy(&stream, &a, &b).unwrap();
        copy(&stream, &a, &c).unwrap(); // reads what was read
        copy(&stream, &b, &d).unwrap(); // reads what was written
        copy(&stream, &c, &a).unwrap(); // touches nothing since the barrier
        copy(&stream, &e, &b).unwrap(); // writes what was read
        copy(&stream, &a, &b).unwrap(); // writes what was written
        stream.flush().unwrap();
        assert_eq!(*lazy.batches.lock(), [[false, false, true, false, true, true]]);
    }

    #[test]
    fn the_host_does_not_run_far_ahead() {
        let (lazy, stream, buffer) = open();
        let [a, b] = [1, 2].map(buffer);
        while lazy.batches.lock().len() < 100 {
            copy(&stream, &a, &b).unwrap();
        }
        assert_eq!(lazy.most_in_flight.load(Ordering::Relaxed), MAX_IN_FLIGHT as u64 + 1);
        assert_eq!(stream.waits(), 100 - MAX_IN_FLIGHT as u64);
    }

    fn lengths(lazy: &Lazy) -> Vec<usize> {
        lazy.batches.lock().iter().map(Vec::len).collect()
    }

    #[test]
    fn an_idle_device_gets_the_first_commands_soon() {
        let (lazy, stream, buffer) = open();
        let [a, b] = [1, 2].map(buffer);
        let copies = |count| (0..count).for_each(|_| copy(&stream, &a, &b).unwrap());
        copies(16 + 32 + 48 + 1);
        stream.wait().unwrap();
        copies(16 + 32);
        assert_eq!(lengths(&lazy), [16, 32, 48, 1, 16, 32]);
    }

    #[test]
    fn batches_grow_while_the_device_is_behind() {
        let (lazy, stream, buffer) = open();
        let [a, b] = [1, 2].map(buffer);
        while lazy.batches.lock().len() < 50 {
            copy(&stream, &a, &b).unwrap();
        }
        // The device has run all but the newest batch.
        while lazy.batches.lock().len() < 100 {
            lazy.completed.store(lazy.batches.lock().len() as u64 - 1, Ordering::Relaxed);
            copy(&stream, &a, &b).unwrap();
        }
        let lengths = lengths(&lazy);
        assert!(lengths[..50].is_sorted() && lengths[50] == 1024, "{lengths:?}");
        assert!(lengths[51..].iter().all(|&length| length == 128), "{lengths:?}");
    }

    #[test]
    fn heavy_commands_make_short_batches() {
        let (lazy, stream, buffer) = open();
        let [a, b] = [1, 2].map(buffer);
        let copies = |count, nanoseconds| {
            (0..count).for_each(|_| copy_that_takes(nanoseconds, &stream, &a, &b).unwrap());
        };
        copies(2, 16_000);
        copies(4, 16_000);
        copies(2, u64::MAX);
        copies(1, 1);
        // Commands that were submitted for another reason count no more.
        stream.wait().unwrap();
        copies(1, 31_999);
        assert_eq!(lengths(&lazy), [2, 4, 1, 1, 1]);
        copies(1, 1);
        assert_eq!(lengths(&lazy), [2, 4, 1, 1, 1, 2]);
    }

    #[test]
    fn buffers_are_held_until_their_batch_has_run() {
        let (_lazy, stream, buffer) = open();
        let [a, b] = [1, 2].map(buffer);
        copy(&stream, &a, &b).unwrap();
        let ticket = stream.flush().unwrap();
        assert_eq!((Arc::strong_count(&a), Arc::strong_count(&b)), (2, 2));
        stream.wait_for(ticket).unwrap();
        assert_eq!((Arc::strong_count(&a), Arc::strong_count(&b)), (1, 1));
    }

    #[test]
    fn only_what_is_recorded_in_between_is_timed() {
        let (lazy, stream, buffer) = open();
        let [a, b, c] = [1, 2, 3].map(buffer);
        copy(&stream, &a, &b).unwrap();
        stream.start_timing().unwrap();
        assert!(stream.start_timing().unwrap_err().to_string().contains("already"));
        copy(&stream, &b, &a).unwrap();
        stream.flush().unwrap();
        copy(&stream, &b, &c).unwrap();
        copy(&stream, &a, &b).unwrap();
        let commands = stream.stop_timing().unwrap();
        copy(&stream, &a, &b).unwrap();
        stream.flush().unwrap();
        let names: Vec<_> = commands.iter().map(|command| command.name.as_str()).collect();
        assert_eq!(names, ["1", "3", "2"]);
        // Batch 1 came before, batch 4 after.
        let since_first = |command: &TimedCommand| command.start.duration_since(commands[0].start);
        assert_eq!(commands.iter().map(since_first).collect::<Vec<_>>(), [0, 100, 110].map(Duration::from_nanos));
        assert!(lazy.timed.lock().is_empty());
        stream.start_timing().unwrap();
        assert!(stream.stop_timing().unwrap().is_empty());
    }

    #[test]
    fn times_are_asked_for_as_batches_complete() {
        let (lazy, stream, buffer) = open();
        let [a, b] = [1, 2].map(buffer);
        stream.start_timing().unwrap();
        let mut copies = 0;
        while lazy.batches.lock().len() < 40 {
            copies += 1;
            copy(&stream, &a, &b).unwrap();
            assert!(lazy.timed.lock().len() <= MAX_IN_FLIGHT + 1, "a backend keeps the times of few batches");
        }
        let commands = stream.stop_timing().unwrap();
        assert_eq!(commands.len(), copies);
        let mut rest = commands.as_slice();
        let starts = lengths(&lazy).into_iter().map(|length| rest.split_off(..length).map(|batch| batch[0].start));
        assert!(starts.is_sorted());
    }

    #[test]
    fn the_oldest_batch_is_waited_for_first() {
        let (lazy, stream, buffer) = open();
        let [a, b] = [1, 2].map(buffer);
        copy(&stream, &a, &b).unwrap();
        stream.flush().unwrap();
        copy(&stream, &a, &b).unwrap();
        stream.flush().unwrap();
        copy(&stream, &a, &b).unwrap();
        let completed = || lazy.completed.load(Ordering::Relaxed);
        for ran in [1, 2, 3] {
            assert!(stream.wait_for_oldest().unwrap());
            assert_eq!(completed(), ran);
        }
        assert!(!stream.wait_for_oldest().unwrap());
    }

    #[test]
    fn bytes_from_the_host_do_not_pile_up() {
        let (lazy, stream, buffer) = open();
        let [a, b] = [1, 2].map(buffer);
        copy(&stream, &a, &b).unwrap();
        stream.note_upload(BATCH_UPLOAD_BYTES - 1);
        copy(&stream, &a, &b).unwrap();
        assert_eq!(lazy.batches.lock().len(), 0);
        stream.note_upload(1);
        copy(&stream, &a, &b).unwrap();
        assert_eq!(lazy.batches.lock().len(), 1);
    }

    /// What was recorded of a run stays, also if a part of it fills a batch that cannot be submitted.
    #[test]
    fn a_run_is_recorded_as_a_whole() {
        let (lazy, stream, buffer) = open();
        let [a, b] = [1, 2].map(buffer);
        let backend: Arc<dyn Backend> = lazy.clone();
        let pool = PoolOwner::new(backend.clone());
        let part = |commands: usize| {
            let mut recording = Recording::default();
            let command = Command::CopyRegion { src: a.id(), dst: b.id(), region: Region::linear(16) };
            for _ in 0..commands {
                let uses = [(&a, Access::Read), (&b, Access::Write)].into_iter();
                recording.push(|| command.clone(), uses, Cost::default());
            }
            recording
        };
        let mut captured = Captured::default();
        captured.recordings = vec![part(300), part(3)];
        let program = Arc::new(Program::new(captured, pool.apart(), &pool, backend).unwrap());
        copy(&stream, &b, &a).unwrap();
        lazy.broken.store(true, Ordering::Relaxed);
        stream.begin_run().unwrap();
        stream.run(&program);
        copy(&stream, &b, &a).expect("what belongs to a run is not refused");
        stream.end_run();
        lazy.broken.store(false, Ordering::Relaxed);
        assert!(matches!(stream.begin_run(), Err(Error::Driver { .. })), "the error is not lost");
        stream.begin_run().unwrap();
        stream.run(&program);
        copy(&stream, &b, &a).unwrap();
        stream.end_run();
        drop(program);
        stream.wait().unwrap();
        let batches = lazy.batches.lock();
        let first = [false, true];
        assert_eq!(*batches, [&first[..], &[true, true, true], &[true, true]], "a copy, and two runs of three each");
    }

    /// The steps of a backend without programs are submitted in pieces. Each piece waits for the work before it.
    #[test]
    fn steps_that_are_encoded_anew_are_cut() {
        let mut lazy = Lazy::new(DeviceKind::Cpu, 0);
        lazy.has_programs = false;
        let lazy = Arc::new(lazy);
        let backend: Arc<dyn Backend> = lazy.clone();
        let (stream, pool) = (Stream::new(backend.clone(), Arc::default()), PoolOwner::new(backend.clone()));
        let buffer = |name: u64| Allocation::alone(&backend, 32 * name).unwrap();
        let [a, b, c] = [1, 2, 3].map(buffer);
        let mut recording = Recording::default();
        // Two in turn that read the same.
        for dst in [&b, &c].into_iter().cycle().take(40) {
            let command = Command::CopyRegion { src: a.id(), dst: dst.id(), region: Region::linear(16) };
            recording.push(|| command, [(&a, Access::Read), (dst, Access::Write)].into_iter(), Cost::default());
        }
        let mut captured = Captured::default();
        captured.recordings = vec![recording];
        let program = Arc::new(Program::new(captured, pool.apart(), &pool, backend.clone()).unwrap());
        stream.begin_run().unwrap();
        stream.run(&program);
        lazy.broken.store(true, Ordering::Relaxed);
        stream.run(&program);
        stream.end_run();
        lazy.broken.store(false, Ordering::Relaxed);
        assert!(stream.begin_run().is_err(), "the error of the second run is not lost");
        drop(program);
        stream.wait().unwrap();
        let batches = lazy.batches.lock();
        assert_eq!(batches.iter().map(Vec::len).sum::<usize>(), 80);
        assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>()[..2], [16, 40]);
        assert!(batches.iter().all(|batch| batch[0]), "each begins with a piece, and each piece with a barrier");
        let barriers = batches.iter().map(|batch| batch[1..].iter().filter(|barrier| **barrier).count() as u64);
        assert_eq!(stream.counts().barriers, barriers.sum::<u64>());
    }

    /// An operation that fills a batch records its command also if the submission fails. The next one gets the error,
    /// and records nothing.
    #[test]
    fn the_error_of_a_batch_is_told_once() {
        let (lazy, stream, buffer) = open();
        let [a, b] = [1, 2].map(buffer);
        lazy.broken.store(true, Ordering::Relaxed);
        for _ in 0..16 {
            copy(&stream, &a, &b).unwrap();
        }
        lazy.broken.store(false, Ordering::Relaxed);
        assert!(matches!(copy(&stream, &b, &a), Err(Error::Driver { .. })));
        copy(&stream, &b, &a).unwrap();
        stream.wait().unwrap();
        assert_eq!(lengths(&lazy), [16, 1]);
    }

    /// Batches that wait to be submitted keep their order, also after a failure.
    #[test]
    fn batches_keep_their_order() {
        let (lazy, stream, buffer) = open();
        let [a, b] = [1, 2].map(buffer);
        for length in 1..=3 {
            (0..length).for_each(|_| copy(&stream, &a, &b).unwrap());
            stream.submitter.cut(&mut stream.state.lock().recording, false);
        }
        lazy.broken.store(true, Ordering::Relaxed);
        assert!(stream.flush().is_err());
        lazy.broken.store(false, Ordering::Relaxed);
        assert_eq!(stream.flush().unwrap(), Ticket(3));
        assert_eq!(lengths(&lazy), [1, 2, 3]);
    }

    /// A thread submits what another one records.
    #[test]
    fn a_thread_submits_what_others_record() {
        let (lazy, stream, buffer) = open_kind(DeviceKind::Discrete);
        let [a, b] = [1, 2].map(buffer);
        let recorded = 16 + 32 + 48 + 5;
        (0..recorded).for_each(|_| copy(&stream, &a, &b).unwrap());
        let start = std::time::Instant::now();
        while lazy.batches.lock().len() < 3 {
            assert!(start.elapsed() < Duration::from_secs(60), "the third is not submitted");
            std::thread::yield_now();
        }
        assert_eq!(lengths(&lazy), [16, 32, 48], "without a wait");
        assert!(lazy.by_thread.load(Ordering::Relaxed) <= 1, "it may be awake for the third");
        stream.wait().unwrap();
        assert_eq!(lengths(&lazy), [16, 32, 48, 5]);
        assert_eq!((Arc::strong_count(&a), Arc::strong_count(&b)), (1, 1));
        // Nobody else submits this batch.
        copy(&stream, &a, &b).unwrap();
        stream.submitter.cut(&mut stream.state.lock().recording, false);
        let start = std::time::Instant::now();
        let by_thread = lazy.by_thread.load(Ordering::Relaxed);
        while lazy.by_thread.load(Ordering::Relaxed) == by_thread {
            assert!(stream.thread.as_ref().unwrap().wake());
            assert!(start.elapsed() < Duration::from_secs(60), "the thread sleeps");
            std::thread::yield_now();
        }
        // Far more than may be in flight, while others wait.
        let copies = || (0..20_000).for_each(|_| copy(&stream, &a, &b).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| (0..100).for_each(|_| stream.wait().unwrap()));
            scope.spawn(copies);
            copies();
        });
        drop(stream);
        assert_eq!(lengths(&lazy).iter().sum::<usize>(), recorded + 1 + 40_000, "the rest is submitted at the end");
        assert!(lazy.most_in_flight.load(Ordering::Relaxed) <= 2 * MAX_IN_FLIGHT as u64 + 1);
        let batches = lazy.batches.lock();
        let first = batches.iter().flatten().filter(|barrier| !**barrier);
        assert_eq!(first.count(), batches.len(), "one in each batch has no barrier: its first");
    }

    /// Who has waited for a program runs the next one soon.
    #[test]
    fn a_wait_for_a_program_wakes_the_thread() {
        let (lazy, stream, buffer) = open_kind(DeviceKind::Discrete);
        let [a, b] = [1, 2].map(buffer);
        copy(&stream, &a, &b).unwrap();
        stream.wait().unwrap();
        // Nobody but the thread submits this batch.
        copy(&stream, &a, &b).unwrap();
        stream.submitter.cut(&mut stream.state.lock().recording, false);
        stream.wait_for(Ticket(1)).unwrap();
        assert_eq!(lazy.batches.lock().len(), 1, "the thread sleeps");
        stream.ran_program.store(true, Ordering::Relaxed);
        stream.wait_for(Ticket(1)).unwrap();
        let start = std::time::Instant::now();
        while lazy.batches.lock().len() < 2 {
            assert!(start.elapsed() < Duration::from_secs(60), "the thread still sleeps");
            std::thread::yield_now();
        }
        assert_eq!(lazy.by_thread.load(Ordering::Relaxed), 1);
    }

    /// The thread tells what it could not submit, and tries it again with the next batch.
    #[test]
    fn a_thread_tells_its_errors() {
        let (lazy, stream, buffer) = open_kind(DeviceKind::Discrete);
        let [a, b] = [1, 2].map(buffer);
        (0..16).for_each(|_| copy(&stream, &a, &b).unwrap());
        lazy.broken.store(true, Ordering::Relaxed);
        (0..32).for_each(|_| copy(&stream, &a, &b).unwrap());
        let start = std::time::Instant::now();
        let mut recorded = 0;
        let error = loop {
            assert!(start.elapsed() < Duration::from_secs(60), "nobody was told");
            match copy(&stream, &a, &b) {
                Ok(()) => recorded += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::Driver { .. }));
        lazy.broken.store(false, Ordering::Relaxed);
        // Batches that were cut meanwhile may have failed too.
        while stream.wait().is_err() {}
        assert_eq!(lengths(&lazy).iter().sum::<usize>(), 16 + 32 + recorded, "nothing is lost, nothing is doubled");
    }

    #[test]
    fn a_failed_batch_is_tried_again() {
        let (lazy, stream, buffer) = open();
        let [a, b] = [1, 2].map(buffer);
        copy(&stream, &a, &b).unwrap();
        lazy.broken.store(true, Ordering::Relaxed);
        assert!(stream.flush().is_err());
        lazy.broken.store(false, Ordering::Relaxed);
        copy(&stream, &b, &a).unwrap();
        stream.flush().unwrap();
        assert_eq!(*lazy.batches.lock(), [[false], [false]], "in order; a batch sees all work before it");
    }
}
