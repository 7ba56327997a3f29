//! The inside of a [`Device`](crate::Device): a backend with its stream, pool and kernels.

#[cfg(all(not(native), has_backend))]
use crate::backend::contract::Ticket;
use crate::backend::contract::{Backend, Command, KernelId, MemoryUse};
use crate::backend::fork::OfProcess;
use crate::backend::info::{DeviceInfo, DeviceKind, MemoryKind};
use crate::base::clock;
use crate::base::environment;
use crate::base::error::{Error, Result, check_may_block};
use crate::base::lock::Mutex;
use crate::base::precision::Precision;
use crate::engine::capture::{self, Capture, CaptureId, Captured, Trial};
use crate::engine::copy_stream::CopyStream;
use crate::engine::disk_cache::DiskCache;
use crate::engine::explain::{ExplainedKernel, Explanation};
use crate::engine::host_trace::{HostTrace, Span};
use crate::engine::kernel_cache::{CompiledKernel, KernelCache, OwnKernel};
use crate::engine::launch::{Launch, PackedLaunch};
use crate::engine::plan_cache::{Plan, PlanCache, PlanKey};
use crate::engine::pool::{Allocation, Buffer, Loading, MemoryStats, Pool, PoolOwner};
use crate::engine::profile::{Label, Profile, TimedCommand};
use crate::engine::program::Program;
use crate::engine::recording::Cost;
use crate::engine::roofline::Roofline;
use crate::engine::staging::Staging;
use crate::engine::stream::{Counts, Stream};
use crate::engine::submitter::MAX_IN_FLIGHT;
use crate::engine::transfer::READ_IN_PLACE;
use crate::engine::transfer_threads::TransferThreads;
#[cfg(has_backend)]
use crate::engine::waiter::Waiter;
use crate::kernels::parameters::{Numbers, Words};
use crate::kernels::{Family, Generate, KernelConfig, Work};
use crate::shader::{Access, Dialect, FOLDED_ROW, Module, Target};
use crate::tuning::{self, Entry, Tuning};
#[cfg(all(native, has_backend))]
use futures_channel::{mpsc, oneshot};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Counters since the device was opened, from [`Device::stats`](crate::Device::stats).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Kernels launched.
    pub launches: u64,
    /// Batches of commands that were submitted to the device, or are about to be.
    pub submissions: u64,
    /// Kernels that the driver has compiled.
    pub compiles: u64,
    /// Kernels whose binaries were found on disk instead.
    pub reuses: u64,
    /// Times that the host has blocked for the device.
    pub waits: u64,
    /// Commands before which the device waits for all earlier commands. The others run at the same time as those before
    /// them. The first command of a batch is not counted.
    pub barriers: u64,
}

/// The state of the random number generator: a key, and how many tensors have been drawn with it.
#[derive(Default)]
struct RandomState {
    seed: u64,
    drawn: u32,
}

/// The number of counters. A dispatch of as many workgroups is never folded.
pub(crate) const COUNTERS: usize = 1 << 14;

/// An open device.
pub(crate) struct Runtime {
    // The fields drop in this order: the streams wait for the device, then buffers may go.
    pub(super) stream: Stream,
    pub(super) copies: CopyStream,
    /// See [`counters`](Runtime::counters).
    counters: Mutex<Option<Buffer>>,
    pub(super) pool: PoolOwner,
    kernels: KernelCache,
    plans: PlanCache,
    /// The staging buffers of both directions.
    pub(super) uploads: Arc<Staging>,
    pub(super) readbacks: Arc<Staging>,
    pub(super) threads: TransferThreads,
    random: Mutex<RandomState>,
    /// Which kernels have passed their self-test.
    verdicts: Mutex<HashMap<KernelConfig, Arc<OnceLock<bool>>>>,
    /// A [`Precision`], which every product asks for.
    precision: AtomicU8,
    /// Whether operations are fused.
    fuses: AtomicBool,
    /// The number of captures in progress, in any thread.
    captures: AtomicU32,
    /// The explanation in progress, and whether there is one.
    explanation: Mutex<Option<Explanation>>,
    explains: AtomicBool,
    /// How fast the device can be, once it has been measured.
    roofline: OnceLock<Roofline>,
    /// What the host does, while the device is profiled.
    host_trace: Arc<HostTrace>,
    pub(super) tuning: &'static Tuning,
    /// The form of the crate's own kernels.
    target: Target,
    info: DeviceInfo,
    /// Whether the host reaches all of the device's own memory across the bus.
    pub(super) reaches_memory: bool,
    #[cfg(has_backend)]
    pub(super) waiter: Waiter,
    pub(super) backend: Arc<dyn Backend>,
}

/// Returns the form of the crate's own kernels that the tuning data choose.
fn target_of(backend: &dyn Backend, tuning: &Tuning) -> Target {
    let (target, info, loads) = (backend.target(), backend.info(), &tuning.loads);
    let lanes = if let [lanes] = info.limits.subgroup_sizes[..] { Some(lanes) } else { None };
    Target {
        loads_in_pairs: loads.pairs && info.features.i64 && target.dialect() == Dialect::Vulkan,
        addresses: loads.addresses && info.limits.max_addressed_words > 0,
        lanes_at_once: lanes.filter(|_| tuning.workgroups.turns && target.dialect() == Dialect::Vulkan),
        ..target
    }
}

/// Returns the tuning data for a device: the entry that `MARQUETRY_TUNING` names, else the one that fits best.
pub fn tuning_of(info: &DeviceInfo) -> &'static Entry {
    let is_software = info.kind == DeviceKind::Cpu;
    environment::settings().tuning.unwrap_or_else(|| tuning::fitting(&info.vendor, &info.name, is_software))
}

/// Returns the workgroups of each dimension. `None` if they are too many for the most of each dimension.
fn folded(groups: usize, most: [u32; 3]) -> Option<[u32; 3]> {
    let [line, rows, _] = most;
    match u32::try_from(groups) {
        Ok(groups) if groups <= line => Some([groups, 1, 1]),
        _ => u32::try_from(groups.div_ceil(FOLDED_ROW as usize))
            .ok()
            .filter(|&needed| needed <= rows)
            .map(|needed| [FOLDED_ROW, needed, 1]),
    }
}

/// A profile that is being taken. If it is dropped, as by a panic, the timing ends.
struct Timing<'a> {
    runtime: &'a Runtime,
    start: Instant,
    ended: bool,
}

impl Timing<'_> {
    /// Blocks until the timed commands have run, and returns the profile.
    fn end(mut self) -> Result<Profile> {
        self.ended = true;
        let runtime = self.runtime;
        let commands = runtime.stop_timing();
        let host = runtime.host_trace.stop();
        let (device, roofline) = (runtime.info().id(), runtime.roofline.get().cloned());
        Ok(Profile { device, start: self.start, end: Instant::now(), commands: commands?, host, roofline })
    }
}

impl Drop for Timing<'_> {
    fn drop(&mut self) {
        if !self.ended {
            _ = self.runtime.stop_timing();
            self.runtime.host_trace.stop();
        }
    }
}

impl Runtime {
    pub fn new(backend: Box<dyn Backend>) -> Self {
        let backend: Arc<dyn Backend> = Arc::new(OfProcess::new(backend));
        let host_trace: Arc<HostTrace> = Arc::default();
        let tuning = &tuning_of(backend.info()).tuning;
        Runtime {
            stream: Stream::new(backend.clone(), host_trace.clone()),
            copies: CopyStream::new(backend.clone(), host_trace.clone()),
            counters: Mutex::default(),
            pool: PoolOwner::new(backend.clone()),
            kernels: KernelCache::new(DiskCache::from_environment(), host_trace.clone()),
            host_trace,
            plans: PlanCache::default(),
            uploads: Arc::default(),
            readbacks: Arc::default(),
            threads: TransferThreads::default(),
            random: Mutex::default(),
            verdicts: Mutex::default(),
            precision: AtomicU8::new(Precision::default() as u8),
            fuses: AtomicBool::new(true),
            captures: AtomicU32::new(0),
            explanation: Mutex::default(),
            explains: AtomicBool::new(false),
            roofline: OnceLock::new(),
            target: target_of(&*backend, tuning),
            tuning,
            info: backend.info().clone(),
            reaches_memory: backend.host_writes_device_memory(),
            #[cfg(has_backend)]
            waiter: Waiter::default(),
            backend,
        }
    }

    /// Replaces the tuning data.
    pub fn tuned(self, tuning: &'static Tuning) -> Self {
        Runtime { target: target_of(&*self.backend, tuning), tuning, ..self }
    }

    pub fn tuning(&self) -> &'static Tuning {
        self.tuning
    }

    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Whether the device still works.
    pub fn is_alive(&self) -> bool {
        !matches!(self.backend.completed(), Err(Error::DeviceLost { .. }))
    }

    pub fn stats(&self) -> Stats {
        let Counts { launches, barriers } = self.stream.counts();
        Stats {
            launches,
            barriers,
            submissions: self.stream.submissions() + self.copies.submissions(),
            compiles: self.kernels.compiles(),
            reuses: self.kernels.reuses(),
            waits: self.stream.waits() + self.copies.waits(),
        }
    }

    pub fn memory_stats(&self) -> MemoryStats {
        self.pool.stats()
    }

    pub fn set_seed(&self, seed: u64) {
        *self.random.lock() = RandomState { seed, drawn: 0 };
    }

    /// Returns the key of the next random tensors, as many as will be drawn with it: the seed's two words and the first
    /// tensor's number.
    pub fn next_random(&self, draws: u32) -> [u32; 3] {
        let mut random = self.random.lock();
        let drawn = random.drawn;
        random.drawn = drawn.wrapping_add(draws);
        [random.seed as u32, (random.seed >> 32) as u32, drawn]
    }

    /// Returns the capture of this thread, if there is one.
    #[inline]
    pub fn capturing(&self) -> Option<Rc<Capture>> {
        if self.captures.load(Ordering::Relaxed) == 0 { None } else { capture::current(self) }
    }

    /// Returns what tells the capture of this thread from others.
    #[inline]
    pub fn capture_id(&self) -> Option<CaptureId> {
        if self.captures.load(Ordering::Relaxed) == 0 { None } else { capture::current(self).map(|this| this.id()) }
    }

    /// Captures what `work` launches in this thread. Returns the program of it, and how many tensors of random numbers
    /// it draws. The [generator](Capture::generator) has at least three words. Works again if a kernel has failed its
    /// self-test.
    pub fn capture<T>(
        &self,
        generator_bytes: u64,
        work: impl FnMut(&Capture) -> Result<T>,
    ) -> Result<(T, Program, u32)> {
        let compile = async |kernels: &[_]| self.kernels.compile_all(kernels, &*self.backend, |_, _| ());
        // Nothing is awaited: the kernels are compiled when `compile` returns.
        self.program(pollster::block_on(self.capture_all("capture", generator_bytes, false, work, compile))?)
    }

    /// The same without blocking.
    pub async fn capture_async<T>(
        self: &Arc<Self>,
        generator_bytes: u64,
        work: impl FnMut(&Capture) -> Result<T>,
    ) -> Result<(T, Program, u32)> {
        let compile = async |kernels: &[_]| self.compile_all_async(kernels, |_, _| ()).await;
        self.program(self.capture_all("capture_async", generator_bytes, false, work, compile).await?)
    }

    fn program<T>(&self, (result, captured, pool): (T, Captured, PoolOwner)) -> Result<(T, Program, u32)> {
        let draws = captured.draws;
        let program = Program::new(captured, pool, &self.pool, self.backend.clone())?;
        Ok((result, program, draws))
    }

    /// Compiles the kernels that `work` launches in this thread, and tests those that have to be. Nothing else runs.
    /// `progress` gets the number of kernels that have been compiled, and of all.
    pub fn warm_up(
        &self,
        work: impl FnMut(&Capture) -> Result<()>,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<()> {
        let compile = async |kernels: &[_]| self.kernels.compile_all(kernels, &*self.backend, &mut progress);
        pollster::block_on(self.capture_all("warm_up", 16, true, work, compile)).map(drop)
    }

    /// The same without blocking.
    pub async fn warm_up_async(
        self: &Arc<Self>,
        work: impl FnMut(&Capture) -> Result<()>,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<()> {
        let compile = async |kernels: &[_]| self.compile_all_async(kernels, &mut progress).await;
        self.capture_all("warm_up_async", 16, true, work, compile).await.map(drop)
    }

    /// Captures what `work` launches, has the kernels compiled, and tests those that have to be.
    async fn capture_all<T>(
        &self,
        op: &'static str,
        generator_bytes: u64,
        discards: bool,
        mut work: impl FnMut(&Capture) -> Result<T>,
        mut compile: impl AsyncFnMut(&[Arc<OwnKernel>]) -> Result<()>,
    ) -> Result<(T, Captured, PoolOwner)> {
        if capture::is_active() {
            let message = "this thread captures a step already; captures do not nest".into();
            return Err(Error::InvalidArgument { op, message });
        }
        loop {
            let pool = self.pool.apart();
            let generator = self.allocate_new(&pool, generator_bytes, MemoryKind::Device)?;
            let capture = Rc::new(Capture::new(pool.clone(), generator, discards));
            let result = self.run_capture(&capture, || work(&capture))?;
            let mut captured = capture.take();
            drop(capture);
            let compiled = compile(&captured.kernels).await;
            // A kernel that the driver refuses fails its test.
            let mut passed = true;
            for Trial { verdict, test } in std::mem::take(&mut captured.trials) {
                passed &= *verdict.get_or_init(test);
            }
            if passed {
                compiled?;
                captured.name_kernels();
                return Ok((result, captured, pool));
            }
        }
    }

    /// Compiles kernels in other threads, several at a time.
    #[cfg(all(native, has_backend))]
    async fn compile_all_async(
        self: &Arc<Self>,
        kernels: &[Arc<OwnKernel>],
        mut progress: impl FnMut(usize, usize),
    ) -> Result<()> {
        if kernels.is_empty() {
            return Ok(());
        }
        let (sender, mut progressed) = mpsc::unbounded();
        let (finish, finished) = oneshot::channel();
        let (runtime, kernels) = (self.clone(), kernels.to_vec());
        // If the receivers are gone, so is whoever asked.
        let work = move || {
            let progress = |done, all| _ = sender.unbounded_send((done, all));
            let compiled = runtime.kernels.compile_all(&kernels, &*runtime.backend, progress);
            drop(runtime);
            _ = finish.send(compiled);
        };
        std::thread::Builder::new().name("marquetry compiles".into()).spawn(work).map_err(|error| {
            let message = format!("no thread to compile in: {error}");
            Error::Driver { backend: self.info().backend, call: "compile", message }
        })?;
        while let Ok((done, all)) = progressed.recv().await {
            progress(done, all);
        }
        finished.await.unwrap_or_else(|_| {
            let message = "the thread that compiles has panicked".into();
            Err(Error::Driver { backend: self.info().backend, call: "compile", message })
        })
    }

    /// Compiles kernels one after the other. Between two of them, the page goes on.
    #[cfg(not(all(native, has_backend)))]
    async fn compile_all_async(
        self: &Arc<Self>,
        kernels: &[Arc<OwnKernel>],
        mut progress: impl FnMut(usize, usize),
    ) -> Result<()> {
        for (place, kernel) in kernels.iter().enumerate() {
            self.kernels.id_of(kernel, &*self.backend)?;
            #[cfg(has_backend)]
            {
                // The browser answers when it has compiled the kernel.
                _ = self.begin_wait(Ticket(0))?.await;
            }
            progress(place + 1, kernels.len());
        }
        Ok(())
    }

    /// Returns the number of a kernel for commands. Inside a capture, what has not been compiled is compiled later.
    fn id_of(&self, kernel: &Arc<OwnKernel>) -> Result<KernelId> {
        match kernel.id() {
            Some(id) => Ok(id),
            None => match self.capturing() {
                Some(capture) => Ok(capture.placeholder(kernel)),
                None => self.kernels.id_of(kernel, &*self.backend),
            },
        }
    }

    fn run_capture<T>(&self, capture: &Rc<Capture>, work: impl FnOnce() -> T) -> T {
        /// Counts the capture, also if `work` panics.
        struct Guard<'a>(&'a AtomicU32);
        impl Drop for Guard<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.captures.fetch_add(1, Ordering::Relaxed);
        let _guard = Guard(&self.captures);
        capture.run(self, work)
    }

    /// Compiles the kernels that `work` launches on buffers of a program. Nothing runs.
    pub fn compile_for(&self, program: &Program, generator: &Buffer, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let capture = Rc::new(Capture::new(program.pool().clone(), generator.clone(), true));
        self.run_capture(&capture, work)?;
        self.kernels.compile_all(&capture.take().kernels, &*self.backend, |_, _| ())
    }

    /// Returns a buffer for an argument of the program that is being captured. No command before has used it.
    pub fn allocate_argument(&self, capture: &Capture, bytes: u64) -> Result<Buffer> {
        self.allocate_new(capture.pool(), bytes, MemoryKind::Device)
    }

    /// Runs `work` at once, inside a capture. It may use the buffers of the program.
    pub fn run_meanwhile<T>(&self, capture: &Capture, work: impl FnOnce() -> T) -> T {
        capture::with_pool(self, capture.pool(), work)
    }

    /// Runs `work` outside of the capture of this thread, if there is one.
    pub fn suspend_capture<T>(&self, work: impl FnOnce() -> T) -> T {
        if self.capture_id().is_some() { capture::suspended(work) } else { work() }
    }

    /// Runs `work`, which may use the buffers of a program.
    pub fn with_buffers_of<T>(&self, program: &Program, work: impl FnOnce() -> T) -> T {
        capture::with_pool(self, program.pool(), work)
    }

    /// Records what surrounds a run of a program, and the run. `work` may use the buffers of the program. Submissions
    /// that fail meanwhile are no errors of `work`: see [`Stream::begin_run`].
    pub fn record_run<T>(&self, program: &Program, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.stream.begin_run()?;
        let result = self.with_buffers_of(program, work);
        self.stream.end_run();
        result
    }

    /// Records a run of a program.
    pub fn run_program(&self, program: &Arc<Program>) {
        self.add_to_explanation(|explanation| explanation.kernels.extend(program.launches.iter().cloned()));
        self.stream.run(program);
    }

    /// Whether the holder of one loan of a buffer may change it: nobody else has it.
    pub fn may_change(&self, buffer: &Buffer) -> bool {
        match self.capturing() {
            None => buffer.loans() == 1,
            // What is from outside is the same for each run. The step has a loan of each state.
            Some(capture) if capture.is_state(buffer) => buffer.loans() == 2,
            Some(capture) => buffer.is_of(capture.pool()) && buffer.loans() == 1,
        }
    }

    /// Fails inside a capture. `what` the operation does, and why a capture cannot do it, is for the message.
    pub fn refuse_capture(&self, op: &'static str, what: &str) -> Result<()> {
        if self.capture_id().is_some() { Err(capture::refusal(op, what)) } else { Ok(()) }
    }

    /// Runs `work`, and times the commands that are recorded meanwhile.
    pub fn profile<T>(&self, work: impl FnOnce() -> T) -> Result<(T, Profile)> {
        check_may_block("profile", "profile_async")?;
        let timing = self.start_profile("profile")?;
        let result = work();
        Ok((result, timing.end()?))
    }

    /// The same without blocking.
    pub async fn profile_async<F: Future>(&self, work: F) -> Result<(F::Output, Profile)> {
        let timing = self.start_profile("profile_async")?;
        let result = work.await;
        self.wait_async().await?;
        Ok((result, timing.end()?))
    }

    fn start_profile(&self, op: &'static str) -> Result<Timing<'_>> {
        self.refuse_capture(op, "it waits for the device")?;
        if !self.info().features.timestamps {
            return Err(Error::Unsupported { feature: "timestamps".into(), device: self.info().to_string() });
        }
        let start = clock::instant(clock::now());
        self.stream.start_timing()?;
        self.copies.start_timing();
        self.host_trace.start();
        Ok(Timing { runtime: self, start, ended: false })
    }

    /// Returns how fast the device can be. The first call measures it.
    pub fn roofline(&self, measure: impl FnOnce() -> Result<Roofline>) -> Result<Roofline> {
        if let Some(known) = self.roofline.get() {
            return Ok(known.clone());
        }
        let measured = measure()?;
        Ok(self.roofline.get_or_init(|| measured).clone())
    }

    /// Blocks until the timed commands have run. Returns them in the order in which they began.
    fn stop_timing(&self) -> Result<Vec<TimedCommand>> {
        // The stream lets the next profile begin.
        let (copies, commands) = (self.copies.stop_timing(), self.stream.stop_timing());
        let mut all = commands?;
        all.extend(copies?);
        all.sort_by_key(|command| command.start);
        Ok(all)
    }

    /// Notes that this thread plans how pending operations run, until the answer is dropped.
    #[inline]
    pub fn plan_span(&self) -> Span<'_> {
        self.host_trace.span(|| "plan".into())
    }

    /// Runs `work`, and tells which kernels are launched meanwhile.
    pub fn explain<T>(&self, work: impl FnOnce() -> T) -> Result<(T, Explanation)> {
        /// Ends the explanation, also if `work` panics.
        struct Guard<'a>(&'a Runtime);
        impl Drop for Guard<'_> {
            fn drop(&mut self) {
                self.0.explains.store(false, Ordering::Relaxed);
                *self.0.explanation.lock() = None;
            }
        }
        let mut explanation = self.explanation.lock();
        if explanation.is_some() {
            let message = "the device is explaining already; explanations do not nest".into();
            return Err(Error::InvalidArgument { op: "explain", message });
        }
        let nothing = || Explanation::new(self.info().id());
        *explanation = Some(nothing());
        drop(explanation);
        self.explains.store(true, Ordering::Relaxed);
        let guard = Guard(self);
        let result = work();
        let explanation = self.explanation.lock().take();
        drop(guard);
        Ok((result, explanation.unwrap_or_else(nothing)))
    }

    fn add_to_explanation(&self, add: impl FnOnce(&mut Explanation)) {
        if self.explains.load(Ordering::Relaxed)
            && let Some(explanation) = &mut *self.explanation.lock()
        {
            add(explanation);
        }
    }

    /// Tells an explanation why something runs by itself.
    pub fn note_unfused(&self, reason: impl FnOnce() -> String) {
        self.add_to_explanation(|explanation| explanation.not_fused.push(reason()));
    }

    pub fn precision(&self) -> Precision {
        let code = self.precision.load(Ordering::Relaxed);
        Precision::ALL.into_iter().find(|precision| *precision as u8 == code).unwrap_or_default()
    }

    pub fn set_precision(&self, precision: Precision) {
        self.precision.store(precision as u8, Ordering::Relaxed);
    }

    pub fn fuses(&self) -> bool {
        self.fuses.load(Ordering::Relaxed)
    }

    pub fn set_fusion(&self, fuses: bool) {
        self.fuses.store(fuses, Ordering::Relaxed);
    }

    pub fn synchronize(&self) -> Result<()> {
        self.refuse_capture("synchronize", "it waits for the device")?;
        check_may_block("synchronize", "synchronize_async")?;
        self.wait()
    }

    pub async fn synchronize_async(&self) -> Result<()> {
        self.refuse_capture("synchronize_async", "it waits for the device")?;
        self.wait_async().await
    }

    /// Blocks until the device has done all that was recorded.
    fn wait(&self) -> Result<()> {
        self.stream.wait()?;
        self.copies.wait()
    }

    /// Limits the memory of the device. What is kept beyond it goes back to the driver, as far as it is idle.
    pub fn set_memory_limit(&self, bytes: Option<u64>) {
        self.pool.set_limit(bytes);
    }

    /// Returns cached memory to the driver.
    pub fn trim(&self) -> Result<u64> {
        self.refuse_capture("trim", "it waits for the device")?;
        self.free_cached()
    }

    fn free_cached(&self) -> Result<u64> {
        drop((self.uploads.trim(), self.readbacks.trim()));
        let bytes = self.pool.trim();
        // Batches in flight may hold some of it until they are done.
        self.wait()?;
        Ok(bytes)
    }

    /// Allocates. If memory has run out, frees the pool's cache, waits for the batches in flight, and tries once more.
    fn retrying<T>(&self, allocate: impl Fn() -> Result<T>) -> Result<T> {
        match allocate() {
            Err(Error::OutOfMemory { .. }) => {
                self.free_cached()?;
                allocate()
            }
            result => result,
        }
    }

    /// Returns a buffer with undefined contents. A few bytes are where the host reaches them.
    pub fn allocate(&self, bytes: u64, kind: MemoryKind) -> Result<Buffer> {
        let reached = self.reaches_memory && bytes <= READ_IN_PLACE && kind == MemoryKind::Device;
        let kind = if reached { MemoryKind::Shared } else { kind };
        match self.capturing() {
            None => self.allocate_from(&self.pool, bytes, kind),
            Some(capture) => self.allocate_from(capture.pool(), bytes, kind),
        }
    }

    pub(super) fn allocate_from(&self, pool: &Arc<Pool>, bytes: u64, kind: MemoryKind) -> Result<Buffer> {
        pool.reuse(bytes, kind).map_or_else(|| self.allocate_new(pool, bytes, kind), Ok)
    }

    /// Returns a buffer if the pool has none to reuse. If too much memory is held, waits for the oldest batches first.
    pub(super) fn allocate_new(&self, pool: &Arc<Pool>, bytes: u64, kind: MemoryKind) -> Result<Buffer> {
        // Other threads may submit meanwhile. This waits for no more batches than can be in flight now.
        for _ in 0..=MAX_IN_FLIGHT + 1 {
            if !self.pool.make_room(bytes, kind) || !self.wait_for_oldest()? {
                break;
            }
        }
        self.retrying(|| pool.allocate(bytes, kind))
    }

    /// Blocks until the oldest upload in flight is done, or else the oldest batch. Returns false if there is none.
    pub(super) fn wait_for_oldest(&self) -> Result<bool> {
        Ok(self.copies.wait_for_oldest()? || self.stream.wait_for_oldest()?)
    }

    /// Begins a load of tensors of `bytes` bytes in all, or of an unknown number (0).
    pub fn load(&self, bytes: u64) -> Loading {
        self.pool.load(bytes)
    }

    pub(super) fn allocate_staging(&self, bytes: u64, memory: MemoryUse) -> Result<Arc<Allocation>> {
        self.retrying(|| self.pool.allocate_apart(bytes, memory))
    }

    /// Returns the form in which the device takes kernels of apps.
    pub fn target_of_apps(&self) -> Target {
        self.backend.target_of_apps()
    }

    /// Whether a kernel passes its self-test. The first call runs the test. Inside a capture, the kernel is taken to be
    /// right. It is compiled together with all others, and tested later.
    pub fn verdict(&self, config: &KernelConfig, generate: Generate, test: impl FnOnce() -> bool + 'static) -> bool {
        let known = self.verdicts.lock().get(config).cloned();
        let verdict = known.unwrap_or_else(|| self.verdicts.lock().entry(config.clone()).or_default().clone());
        match (verdict.get(), self.capturing()) {
            (Some(verdict), _) => *verdict,
            (None, Some(capture)) => {
                // If the kernel cannot be generated, the test says so.
                if capture.add_trial(Trial { verdict, test: Box::new(test) })
                    && let Ok(kernel) = self.own_kernel(config, generate, false)
                    && kernel.id().is_none()
                {
                    capture.placeholder(&kernel);
                }
                true
            }
            (None, None) => *verdict.get_or_init(test),
        }
    }

    /// Returns a buffer of [`COUNTERS`] zeros, in which workgroups count each other. Kernels leave zeros there.
    pub fn counters(&self) -> Result<Buffer> {
        let mut counters = self.counters.lock();
        if let Some(counters) = &*counters {
            return Ok(counters.clone());
        }
        // A vector, because an array would be part of the program's file.
        let zeros = self.upload(&&vec![0; 4 * COUNTERS][..], MemoryKind::Device)?;
        *counters = Some(zeros.clone());
        Ok(zeros)
    }

    /// Returns a kernel of this crate. The first call generates it.
    fn own_kernel(&self, config: &KernelConfig, generate: Generate, large_buffers: bool) -> Result<Arc<OwnKernel>> {
        self.kernels.get(config, generate, large_buffers, self.target, &self.info)
    }

    /// Compiles a kernel of an app.
    pub fn compile(&self, module: &Module) -> Result<CompiledKernel> {
        self.kernels.compile(module, &*self.backend)
    }

    /// Plans a launch that may run many times, each time with other `numbers` among its parameters.
    pub fn plan<F: Family + Clone>(
        &self,
        kernel: F,
        parameters: F::Host,
        groups: usize,
        numbers: Numbers<'_, F::Host>,
    ) -> Result<Plan<F>> {
        let config: KernelConfig = kernel.clone().into();
        let own = self.own_kernel(&config, F::generate, false)?;
        let grid = self.fold(groups, || config.name())?;
        let work = kernel.work(&parameters);
        let (words, places) = kernel.words_and_places(parameters, numbers);
        Ok(Plan { kernel, words, places, own, grid, work })
    }

    /// Runs the plan of a key, or returns the key if no plan is kept.
    pub fn with_plan<P: 'static, T>(&self, key: PlanKey, run: impl FnOnce(&P) -> T) -> Result<T, PlanKey> {
        self.plans.run(key, run)
    }

    /// Keeps a plan. Inside a capture it is not kept: its kernel may have a self-test before it.
    pub fn keep_plan<P: Send + Sync + 'static>(&self, key: &PlanKey, plan: P) {
        if self.capture_id().is_none() {
            self.plans.insert(key, plan);
        }
    }

    /// Runs a plan with these numbers among its parameters.
    pub fn run_plan<F: Family + Clone>(
        &self,
        plan: &Plan<F>,
        buffers: &[&Buffer],
        numbers: impl Iterator<Item = u32>,
    ) -> Result<()> {
        let mut words = Words::from_slice(&plan.words);
        let mut places = plan.places.iter();
        // The iterator loops inside: it is a chain of others.
        numbers.for_each(|number| {
            if let Some(&place) = places.next() {
                words[usize::from(place)] = number;
            }
        });
        let for_large_buffers;
        let kernel = if self.has_large(buffers) {
            let config = plan.kernel.clone().into();
            for_large_buffers = self.own_kernel(&config, F::generate, true)?;
            &for_large_buffers
        } else {
            &plan.own
        };
        let compiled = (self.id_of(kernel)?, &*kernel.bindings);
        self.dispatch_estimated(compiled, buffers, &words, plan.grid, plan.work, || plan.kernel.name())
    }

    /// Whether a buffer is too large to be bound as a whole.
    fn has_large(&self, buffers: &[&Buffer]) -> bool {
        let most = self.info.limits.max_binding_bytes;
        buffers.iter().any(|buffer| buffer.bytes() > most)
    }

    /// Runs a kernel of this crate.
    pub fn run<F: Family>(&self, launch: Launch<F>) -> Result<()> {
        self.run_packed(launch.into())
    }

    /// The same for a kernel of any family: one function, as it is large.
    fn run_packed(&self, launch: PackedLaunch) -> Result<()> {
        let PackedLaunch { kernel: config, generate, buffers, parameters, groups, work } = launch;
        let kernel = self.own_kernel(&config, generate, self.has_large(buffers))?;
        let groups = self.fold(groups, || config.name())?;
        let compiled = (self.id_of(&kernel)?, &*kernel.bindings);
        self.dispatch_estimated(compiled, buffers, &parameters, groups, work, || config.name())
    }

    /// Folds workgroups into rows if they are more than the device runs in a line.
    pub fn fold(&self, groups: usize, kernel: impl FnOnce() -> String) -> Result<[u32; 3]> {
        folded(groups, self.info().limits.max_groups()).ok_or_else(|| {
            let feature = format!("a dispatch of {groups} workgroups (kernel `{}`)", kernel());
            Error::Unsupported { feature, device: self.info().to_string() }
        })
    }

    /// Records the run of a compiled kernel. `name` is for profiles.
    pub fn dispatch(
        &self,
        kernel: &CompiledKernel,
        buffers: &[&Buffer],
        parameters: &[u32],
        groups: [u32; 3],
        name: impl Fn() -> String,
    ) -> Result<()> {
        let compiled = (kernel.id, &*kernel.bindings);
        self.dispatch_estimated(compiled, buffers, parameters, groups, Work::UNKNOWN, name)
    }

    /// The same for a kernel whose work is known.
    fn dispatch_estimated(
        &self,
        (kernel, bindings): (KernelId, &[Access]),
        buffers: &[&Buffer],
        parameters: &[u32],
        groups: [u32; 3],
        work: Work,
        name: impl Fn() -> String,
    ) -> Result<()> {
        let _span = self.host_trace.span(|| format!("record {}", name()));
        let touched = |buffer: &Buffer| buffer.bytes().min(work.touched);
        let (mut ids, mut bytes) = (SmallVec::new(), 0);
        for &buffer in buffers {
            self.check_owner(buffer)?;
            ids.push(buffer.allocation().id());
            bytes += touched(buffer);
        }
        // A command is large, so it is made where it stays.
        let command = || {
            let parameters = SmallVec::from_slice(parameters);
            Command::Dispatch { kernel, buffers: ids, parameters, groups }
        };
        let launched = || {
            let bytes_of = |does: fn(Access) -> bool| {
                let used = buffers.iter().zip(bindings).filter(|(_, access)| does(**access));
                used.map(|(buffer, _)| touched(buffer)).sum()
            };
            let (bytes_read, bytes_written) = (bytes_of(Access::reads), bytes_of(Access::writes));
            ExplainedKernel { name: name(), bytes_read, bytes_written }
        };
        match self.capturing() {
            None => self.add_to_explanation(|explanation| explanation.kernels.push(launched())),
            Some(capture) => capture.note_launch(launched()),
        }
        let label = || Label { name: name(), bytes, work: Some(work) };
        let nanoseconds = self.tuning.batch.nanoseconds(bytes, work.as_narrow_products());
        let cost = Cost { upload_bytes: 0, nanoseconds };
        self.record(command, buffers.iter().copied().zip(bindings.iter().copied()), cost, label)
    }

    /// Fails if a buffer belongs to a program, and this thread does not work for it.
    #[inline]
    pub fn check_owner(&self, buffer: &Buffer) -> Result<()> {
        if buffer.is_of(&self.pool) || capture::may_use(self, buffer) { Ok(()) } else { capture::stray() }
    }

    /// Records a command, or captures it.
    pub(super) fn record<'a>(
        &self,
        command: impl FnOnce() -> Command,
        uses: impl Iterator<Item = (&'a Buffer, Access)> + Clone,
        cost: Cost,
        label: impl FnOnce() -> Label,
    ) -> Result<()> {
        if let Some(capture) = self.capturing() {
            capture.record(command, uses, cost, label);
            return Ok(());
        }
        self.stream.record(command, uses.map(|(buffer, access)| (buffer.allocation(), access)), cost, label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::stream::tests::Lazy;
    use crate::kernels::store::Store;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn workgroups_beyond_a_line_become_rows() {
        let most = [65_535; 3];
        let (whole, several) = ([65_535, 1, 1], [4096, 17, 1]);
        assert_eq!([65_535, 65_536, 65_537].map(|n| folded(n, most)), [whole, [4096, 16, 1], several].map(Some));
        assert_eq!(folded(4096 * 65_535, most), Some([4096, 65_535, 1]));
        assert_eq!(folded(4096 * 65_535 + 1, most), None);
        assert_eq!(folded(65_537, [1 << 31, 65_535, 65_535]), Some([65_537, 1, 1]));
    }

    /// The precision is kept as a number.
    #[test]
    fn every_precision_comes_back() {
        let runtime = Runtime::new(Box::new(Lazy::new(DeviceKind::Discrete, 0)));
        assert_eq!(runtime.precision(), Precision::default());
        for precision in Precision::ALL {
            runtime.set_precision(precision);
            assert_eq!(runtime.precision(), precision);
            // A new one must be among all of them.
            match precision {
                Precision::Medium | Precision::High | Precision::Highest => {}
            }
        }
    }

    /// A kernel that fails its self-test in a capture is not used: the work is captured again.
    #[test]
    fn a_capture_begins_again_after_a_self_test_that_fails() {
        let runtime = Runtime::new(Box::new(Lazy::new(DeviceKind::Discrete, 0)));
        let [good, bad] = [1, 2].map(|quads| KernelConfig::from(Store { quads }));
        let mut verdicts = Vec::new();
        let mut tests = Arc::new(AtomicUsize::new(0));
        let (calls, _, _) = runtime
            .capture(64, |_| {
                let test = |passes| {
                    let tests = tests.clone();
                    move || {
                        tests.fetch_add(1, Ordering::Relaxed);
                        passes
                    }
                };
                let verdict = |kernel, passes| runtime.verdict(kernel, Store::generate, test(passes));
                verdicts.push([verdict(&good, true), verdict(&bad, false)]);
                verdicts.push([verdict(&good, true), verdict(&bad, false)]);
                Ok(verdicts.len())
            })
            .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(verdicts, [[true, true], [true, true], [true, false], [true, false]]);
        assert_eq!((calls, Arc::get_mut(&mut tests).map(|tests| *tests.get_mut())), (4, Some(2)));
        assert_eq!(runtime.stats().compiles, 2, "what is tested is compiled with what is launched");
    }

    /// A plan of a capture may have a kernel that has not been tested, so nobody else gets it.
    #[test]
    fn plans_of_captures_are_not_kept() {
        let runtime = Runtime::new(Box::new(Lazy::new(DeviceKind::Discrete, 0)));
        let key = |number| {
            let mut key = PlanKey::new(crate::engine::plan_cache::PlanKind::Product);
            key.push(number);
            key
        };
        let plan = |number| runtime.with_plan(key(number), |plan: &&str| *plan).ok();
        let captured = runtime.capture(64, |_| {
            runtime.keep_plan(&key(1), "on trial");
            assert!(plan(1).is_none());
            Ok(())
        });
        assert!(captured.is_ok() && plan(1).is_none());
        runtime.keep_plan(&key(2), "tested");
        assert_eq!(plan(2), Some("tested"));
    }
}
