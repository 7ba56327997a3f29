//! [`Capture`]: the launches of a thread that are kept for a [`Program`](super::program::Program) instead of running.

use super::explain::ExplainedKernel;
use super::kernel_cache::OwnKernel;
use super::pool::{Buffer, Pool};
use super::profile::Label;
use super::recording::{Cost, Recording};
use super::runtime::Runtime;
use crate::backend::contract::{BufferId, Command, KernelId};
use crate::base::error::{Error, Result};
use crate::base::lock::thread_local;
use crate::shader::Access;
use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// A part of a program may take this long on a slow device. Drivers reset a device that one submission keeps busy for
/// some seconds (two on Windows), and estimates may be ten times too low.
const PART_NANOSECONDS: u64 = 100_000_000;

/// Tells captures apart.
pub(crate) type CaptureId = NonZeroU32;

/// A capture in progress.
pub(crate) struct Capture {
    id: CaptureId,
    /// The memory of the results.
    pool: Arc<Pool>,
    /// Three words that random numbers depend on: the seed, and how many tensors had been drawn before the run.
    generator: Buffer,
    /// Whether nothing is kept: the launches only compile their kernels.
    discards: bool,
    captured: RefCell<Captured>,
}

/// What has been captured.
#[derive(Default)]
pub(crate) struct Captured {
    /// One after the other. Each takes at most about [`PART_NANOSECONDS`].
    pub recordings: Vec<Recording>,
    /// The buffers that are not from the capture's pool.
    pub inputs: FxHashMap<BufferId, Buffer>,
    /// Buffers of the capture's pool that commands may change for the next run, and those that they do change.
    states: FxHashSet<BufferId>,
    changed: FxHashSet<BufferId>,
    /// Tensors of random numbers.
    pub draws: u32,
    /// The kernels that commands launch.
    pub launches: Vec<ExplainedKernel>,
    /// Kernels that have not been compiled yet. Commands name them by placeholders.
    pub kernels: Vec<Arc<OwnKernel>>,
    /// Kernels that are taken to be right until they have been tested.
    pub trials: Vec<Trial>,
    /// What must hold for each run, by the address of what it is about. Locks are taken in this order.
    pub requirements: BTreeMap<usize, Box<dyn Requirement>>,
}

/// What must hold for each run of a program.
pub(crate) trait Requirement: Send + Sync {
    /// The numbers that tell it from others about the same.
    fn sizes(&self) -> Vec<usize>;

    /// Fails if the program must not run now. Else what the requirement is about does not change until the result is
    /// dropped.
    fn hold(&self) -> Result<Box<dyn Held + '_>>;
}

/// A requirement that holds.
pub(crate) trait Held {
    /// Notes that the run has been recorded.
    fn done(&mut self);
}

/// A self-test of a kernel that is put off, and where its verdict goes.
pub(crate) struct Trial {
    pub verdict: Arc<OnceLock<bool>>,
    pub test: Box<dyn FnOnce() -> bool>,
}

impl Captured {
    /// Returns the number that stands for the kernel at a place among those that have not been compiled.
    fn placeholder(place: usize) -> KernelId {
        KernelId(u64::MAX - place as u64)
    }

    /// Replaces the placeholders, after all kernels have been compiled.
    pub fn name_kernels(&mut self) {
        let kernels = &self.kernels;
        let named = |id: KernelId| {
            let kernel = kernels.get((u64::MAX - id.0) as usize);
            kernel.and_then(|kernel| kernel.id()).unwrap_or(id)
        };
        self.recordings.iter_mut().for_each(|recording| recording.replace_kernels(named));
    }
}

/// What is particular to the work of a thread on a device.
#[derive(Clone)]
struct Scope {
    runtime: *const Runtime,
    /// Buffers of this pool may be used, besides those of the device's pool.
    pool: Arc<Pool>,
    capture: Option<Rc<Capture>>,
}

thread_local! {
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

/// Replaces the scope of this thread until it is dropped.
struct Entered(Option<Scope>);

impl Entered {
    fn new(scope: Option<Scope>) -> Entered {
        Entered(SCOPE.with(|current| current.replace(scope)))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        SCOPE.with(|current| *current.borrow_mut() = self.0.take());
    }
}

/// Runs `work` outside of any capture.
pub(super) fn suspended<T>(work: impl FnOnce() -> T) -> T {
    let _entered = Entered::new(None);
    work()
}

/// Runs `work`, which may use buffers of `pool`.
pub(super) fn with_pool<T>(runtime: &Runtime, pool: &Arc<Pool>, work: impl FnOnce() -> T) -> T {
    let _entered = Entered::new(Some(Scope { runtime, pool: pool.clone(), capture: None }));
    work()
}

/// Whether this thread may use a buffer that is not from the device's pool.
pub(super) fn may_use(runtime: &Runtime, buffer: &Buffer) -> bool {
    SCOPE.with(|scope| {
        let scope = scope.borrow();
        scope.as_ref().is_some_and(|scope| std::ptr::eq(scope.runtime, runtime) && buffer.is_of(&scope.pool))
    })
}

/// Whether this thread captures work of some device.
pub(super) fn is_active() -> bool {
    SCOPE.with(|scope| scope.borrow().as_ref().is_some_and(|scope| scope.capture.is_some()))
}

/// Returns the capture of this thread on a device.
pub(super) fn current(runtime: &Runtime) -> Option<Rc<Capture>> {
    SCOPE.with(|scope| {
        let scope = scope.borrow();
        let scope = scope.as_ref().filter(|scope| std::ptr::eq(scope.runtime, runtime))?;
        scope.capture.clone()
    })
}

impl Capture {
    /// Returns a capture that has not begun. `pool` is for the buffers of the program, which begin with `generator`.
    /// If it discards, its launches only compile their kernels.
    pub fn new(pool: Arc<Pool>, generator: Buffer, discards: bool) -> Capture {
        static CAPTURES: AtomicU32 = AtomicU32::new(0);
        let number = CAPTURES.fetch_add(1, Ordering::Relaxed) % (u32::MAX - 1) + 1;
        let id = NonZeroU32::new(number).unwrap_or(NonZeroU32::MAX);
        Capture { id, pool, generator, discards, captured: RefCell::default() }
    }

    /// Keeps what `work` launches on the device in this thread.
    pub fn run<T>(self: &Rc<Capture>, runtime: &Runtime, work: impl FnOnce() -> T) -> T {
        let capture = Some(self.clone());
        let _entered = Entered::new(Some(Scope { runtime, pool: self.pool.clone(), capture }));
        work()
    }

    pub fn id(&self) -> CaptureId {
        self.id
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Whether it only compiles kernels.
    pub fn discards(&self) -> bool {
        self.discards
    }

    pub fn generator(&self) -> &Buffer {
        &self.generator
    }

    /// Allows commands to change a buffer of the capture's pool for the next run.
    pub fn add_state(&self, buffer: &Buffer) {
        self.captured.borrow_mut().states.insert(buffer.allocation().id());
    }

    pub fn is_state(&self, buffer: &Buffer) -> bool {
        self.captured.borrow().states.contains(&buffer.allocation().id())
    }

    /// Whether a command changes a state.
    pub fn changes(&self, buffer: &Buffer) -> bool {
        self.captured.borrow().changed.contains(&buffer.allocation().id())
    }

    /// Returns a number that stands for a kernel until it has been compiled, together with all others.
    pub fn placeholder(&self, kernel: &Arc<OwnKernel>) -> KernelId {
        let kernels = &mut self.captured.borrow_mut().kernels;
        let place = kernels.iter().position(|known| Arc::ptr_eq(known, kernel)).unwrap_or_else(|| {
            kernels.push(kernel.clone());
            kernels.len() - 1
        });
        Captured::placeholder(place)
    }

    /// Notes what is launched, for explanations of runs.
    pub fn note_launch(&self, kernel: ExplainedKernel) {
        if !self.discards {
            self.captured.borrow_mut().launches.push(kernel);
        }
    }

    /// Puts off the self-test of a kernel. Returns false if it has been put off before.
    pub fn add_trial(&self, trial: Trial) -> bool {
        let trials = &mut self.captured.borrow_mut().trials;
        let is_new = !trials.iter().any(|known| Arc::ptr_eq(&known.verdict, &trial.verdict));
        if is_new {
            trials.push(trial);
        }
        is_new
    }

    /// Adds what must hold for each run. Returns whether no other requirement is about the same.
    pub fn require(&self, about: usize, requirement: impl Requirement + 'static) -> bool {
        let sizes = requirement.sizes();
        let requirements = &mut self.captured.borrow_mut().requirements;
        requirements.entry(about).or_insert_with(|| Box::new(requirement)).sizes() == sizes
    }

    /// Returns the number of the next random tensor among those of a run.
    pub fn next_draw(&self) -> u32 {
        let captured = &mut *self.captured.borrow_mut();
        captured.draws += 1;
        captured.draws - 1
    }

    /// Keeps a command.
    pub fn record<'a>(
        &self,
        command: impl FnOnce() -> Command,
        uses: impl Iterator<Item = (&'a Buffer, Access)> + Clone,
        cost: Cost,
        label: impl FnOnce() -> Label,
    ) {
        if self.discards {
            return;
        }
        let Captured { recordings, inputs, states, changed, .. } = &mut *self.captured.borrow_mut();
        for (buffer, access) in uses.clone() {
            let id = buffer.allocation().id();
            if !buffer.is_of(&self.pool) {
                inputs.entry(id).or_insert_with(|| buffer.clone());
            }
            if access.writes() && states.contains(&id) {
                changed.insert(id);
            }
        }
        if recordings.last().is_none_or(|recording| recording.cost().nanoseconds >= PART_NANOSECONDS) {
            recordings.push(Recording::default());
        }
        if let Some(recording) = recordings.last_mut() {
            recording.push(command, uses.map(|(buffer, access)| (buffer.allocation(), access)), cost);
            recording.label(label());
        }
    }

    /// Returns what has been captured.
    pub fn take(&self) -> Captured {
        self.captured.take()
    }
}

/// Returns the error of a call that cannot be captured.
pub(super) fn refusal(op: &'static str, what: &str) -> Error {
    let message = format!(
        "{what}, and a capture runs nothing; call it before `capture`, or return the tensor as an output and call it \
         after `run`"
    );
    Error::InvalidArgument { op, message }
}

/// Returns the error of a launch that uses a buffer of a step.
pub(super) fn stray() -> Result<()> {
    let message = "a tensor that was made inside a capture is used outside; return it as an output, and use what `run` \
                   returns";
    let message = message.into();
    Err(Error::InvalidArgument { op: "capture", message })
}
