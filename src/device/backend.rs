//! The backend contract: all that the rest of the crate asks of a way to reach a GPU.
//!
//! `docs/architecture.md` tells it in prose. A backend knows buffers, kernels and commands, and nothing of tensors.
//! It is told of resources by number, so that a [`Command`] is plain data: the stream can batch, reorder and replay
//! commands without knowing the backend.

use crate::device::DeviceInfo;
use crate::error::Result;
use crate::shader::{Module, Target};
use smallvec::SmallVec;

/// Names a buffer of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BufferId(pub u64);

/// Names a compiled kernel of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct KernelId(pub u64);

/// A point in a device's history: the batch of that number and all before it. Batches count from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(pub u64);

/// What a buffer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum MemoryUse {
    /// Kernels read and write it; the source and destination of copies.
    Device,
    /// The host writes it once, then it is the source of copies.
    Upload,
    /// The destination of copies, then the host reads it once.
    Readback,
}

/// One step of work on the device.
#[derive(Debug, Clone)]
pub(crate) enum Command {
    /// Runs a kernel on `groups` workgroups, with `buffers` in the order of the kernel's bindings.
    Dispatch { kernel: KernelId, buffers: SmallVec<[BufferId; 6]>, parameters: SmallVec<[u32; 32]>, groups: [u32; 3] },
    /// Copies the first `bytes` bytes of a buffer to the start of another one; `bytes` is a multiple of 4.
    Copy { src: BufferId, dst: BufferId, bytes: u64 },
}

/// A command, and whether it must see the memory effects of all that stands before it.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub command: Command,
    /// Set by the stream where a hazard is. Without it, a step may overlap those before it. (wgpu places its own
    /// barriers.)
    #[cfg_attr(not(feature = "vulkan"), expect(dead_code, reason = "no backend that needs it is compiled in"))]
    pub barrier: bool,
}

/// Called once with a buffer's bytes, or with the error that kept them away. It must not call the backend's `wait`, nor
/// take a lock that is held around a call of `completed`.
pub(crate) type ReadCallback = Box<dyn FnOnce(Result<&[u8]>) + Send>;

/// The contract. Every method may be called from any thread.
pub(crate) trait Backend: Send + Sync {
    /// What the device is.
    fn info(&self) -> &DeviceInfo;

    /// The form in which kernels are generated for this device.
    fn target(&self) -> Target;

    /// Creates a buffer of at least `bytes` bytes (a multiple of 16, not 0). Its contents are undefined.
    fn allocate(&self, bytes: u64, memory: MemoryUse) -> Result<BufferId>;

    /// Destroys a buffer. The caller has made sure that every batch that names it has completed.
    fn free(&self, buffer: BufferId);

    /// Fills the start of an upload buffer, before the first batch that names it is submitted.
    fn write(&self, buffer: BufferId, bytes: &[u8]) -> Result<()>;

    /// Makes a kernel ready to be dispatched. Kernels live as long as the backend.
    fn compile(&self, module: &Module) -> Result<KernelId>;

    /// Hands a batch to the device and returns at once. Batches run in the order of submission, and each sees the
    /// memory effects of those before it.
    fn submit(&self, steps: &[Step]) -> Result<Ticket>;

    /// The newest batch that has completed (`Ticket(0)` if none has). Never blocks; may run the callbacks of reads that
    /// are due, which `submit` never does.
    fn completed(&self) -> Result<Ticket>;

    /// Blocks until a batch has completed, and runs the callbacks of reads that are due by then. A browser cannot
    /// block: there the callbacks run from its event loop.
    fn wait(&self, ticket: Ticket) -> Result<()>;

    /// Calls `done` exactly once, with the first `bytes` bytes of a readback buffer, when the batch `after` has
    /// completed. The caller keeps the buffer until then.
    fn read(&self, buffer: BufferId, bytes: u64, after: Ticket, done: ReadCallback);
}
