//! The backend contract: all that the rest of the crate asks of a backend.
//!
//! `docs/architecture.md` describes it in prose. A backend knows buffers, kernels and commands, and nothing of tensors.
//! Numbers name resources, so a [`Command`] is plain data. The stream can batch, reorder and replay commands without
//! knowing the backend.

use crate::backend::info::{DeviceInfo, MemoryKind};
use crate::base::error::{Error, Result};
use crate::shader::{Module, Target};
use smallvec::SmallVec;
use std::ops::Range;

/// Names a buffer of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BufferId(pub u64);

/// Names a compiled kernel of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct KernelId(pub u64);

/// Names a program of a backend: steps that it has recorded, to run them many times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ProgramId(pub u64);

/// A point in a device's history: the batch with this number and all earlier ones. Batches count from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(pub u64);

/// What a buffer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum MemoryUse {
    /// Kernels read and write it, and copies use it as source and destination. The host reaches it if the kind says so
    /// and the device has [`DeviceInfo::host_visible`].
    Kernels(MemoryKind),
    /// The host writes it, then it is the source of copies.
    Upload,
    /// The destination of copies, then the host reads it once.
    Readback,
}

/// Where the bytes of a box lie in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Pitch {
    /// The box's first byte.
    pub offset: u64,
    /// Bytes from a row to the next.
    pub row: u64,
    /// Bytes from a slice to the next.
    pub slice: u64,
}

/// A box of bytes in one buffer, and a box of the same size in another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Region {
    /// Bytes per row, rows per slice, slices; none is 0.
    pub extent: [u64; 3],
    pub src: Pitch,
    pub dst: Pitch,
}

/// Contiguous bytes on both sides of a copy: where they begin, and their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub src: u64,
    pub dst: u64,
    pub bytes: u64,
}

impl Region {
    /// Returns the region of the first `bytes` bytes of both buffers.
    pub fn linear(bytes: u64) -> Region {
        let pitch = Pitch { offset: 0, row: bytes, slice: bytes };
        Region { extent: [bytes, 1, 1], src: pitch, dst: pitch }
    }

    /// Returns the number of bytes to copy.
    pub fn bytes(&self) -> u64 {
        self.extent.iter().product()
    }

    /// Returns the same box with as few rows and slices as possible: it merges those that are contiguous on both sides.
    /// The box must have passed its check.
    pub fn merged(&self) -> Region {
        let Region { extent: [mut width, mut rows, mut slices], mut src, mut dst } = *self;
        let evenly_spaced = |pitch: &Pitch| pitch.row.checked_mul(rows) == Some(pitch.slice);
        if rows > 1 && evenly_spaced(&src) && evenly_spaced(&dst) {
            (rows, slices) = (rows * slices, 1);
        }
        if rows == 1 || [src.row, dst.row] == [width; 2] {
            // The slices are rows now.
            (width, rows, slices) = (width * rows, slices, 1);
            (src.row, dst.row) = (src.slice, dst.slice);
        }
        if [src.row, dst.row] == [width; 2] && slices == 1 {
            (width, rows) = (width * rows, 1);
        }
        Region { extent: [width, rows, slices], src, dst }
    }

    /// Returns the rows of the box, merged if they touch on both sides. The box must have passed its check.
    pub fn rows(&self) -> impl Iterator<Item = Row> + use<> {
        let Region { extent: [bytes, rows, slices], src, dst } = self.merged();
        (0..slices).flat_map(move |slice| {
            (0..rows).map(move |row| {
                let [src, dst] = [src, dst].map(|pitch| pitch.offset + slice * pitch.slice + row * pitch.row);
                Row { src, dst, bytes }
            })
        })
    }

    /// Checks that the box can be copied between two buffers of these sizes. It must not be empty, must lie within
    /// both, and its rows must not overlap on either side. If not, returns the broken rule.
    pub fn check(&self, src_bytes: u64, dst_bytes: u64) -> Result<(), String> {
        if self.extent.contains(&0) {
            return Err(format!("nothing is to be copied, the extent being {:?}", self.extent));
        }
        for (side, pitch, bytes) in [("source", self.src, src_bytes), ("destination", self.dst, dst_bytes)] {
            let end = pitch.end(self.extent)?;
            if end > bytes {
                return Err(format!("the box ends at byte {end} of the {side}, which has {bytes}"));
            }
        }
        Ok(())
    }
}

impl Pitch {
    /// Returns the end of a box that is not empty.
    fn end(&self, [row, rows, slices]: [u64; 3]) -> Result<u64, String> {
        let slice = span("rows", row, rows, self.row)?;
        let all = span("slices", slice, slices, self.slice)?;
        all.checked_add(self.offset).ok_or_else(|| format!("an offset of {} bytes is beyond all buffers", self.offset))
    }
}

/// Returns the bytes from the first of `count` parts of a box to the end of the last.
fn span(parts: &str, bytes: u64, count: u64, pitch: u64) -> Result<u64, String> {
    if count > 1 && pitch < bytes {
        return Err(format!("{parts} of {bytes} bytes overlap if they are {pitch} bytes apart"));
    }
    let last = (count - 1).checked_mul(pitch);
    last.and_then(|last| last.checked_add(bytes))
        .ok_or_else(|| format!("{count} {parts} that are {pitch} bytes apart are beyond all buffers"))
}

/// One step of work on the device.
#[derive(Debug, Clone)]
pub(crate) enum Command {
    /// Runs a kernel on `groups` workgroups, with `buffers` in the order of the kernel's bindings.
    Dispatch { kernel: KernelId, buffers: SmallVec<[BufferId; 6]>, parameters: SmallVec<[u32; 32]>, groups: [u32; 3] },
    /// Copies a box of bytes from a buffer to another one. Every number in the region is a multiple of
    /// [`Limits::copy_alignment`](crate::backend::info::Limits::copy_alignment).
    CopyRegion { src: BufferId, dst: BufferId, region: Region },
    /// Runs a program, after all earlier commands and before all later ones. Its batch is not timed.
    Run(ProgramId),
}

/// A command, and whether it must see the memory effects of all earlier commands.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub command: Command,
    /// Set by the stream if there is a hazard. Without it, a step may overlap earlier steps. (wgpu places its own
    /// barriers.)
    pub barrier: bool,
}

/// A kernel that is ready.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub kernel: KernelId,
    /// What to give to `compile` the next time. `None` if it was used this time, or if there is nothing to keep.
    pub binary: Option<Vec<u8>>,
    /// Whether the given binary made the driver's compiler unnecessary.
    pub reused: bool,
}

/// Called once with a buffer's bytes, or with the error of the read. It must not call the backend's `wait`, nor take a
/// lock that is held around a call of `completed`.
pub(crate) type ReadCallback = Box<dyn FnOnce(Result<&[u8]>) + Send>;

/// The contract. Every method may be called from any thread.
pub(crate) trait Backend: Send + Sync {
    /// Describes the device.
    fn info(&self) -> &DeviceInfo;

    /// Returns the form in which the crate's own kernels are generated for this device.
    fn target(&self) -> Target;

    /// Returns the form in which the device takes the kernels of apps.
    fn target_of_apps(&self) -> Target {
        self.target()
    }

    /// Returns the bytes of device memory that this process may have in total. If the driver does not report it,
    /// returns all there is.
    fn budget(&self) -> u64;

    /// Returns the bytes of device memory that have been taken from the driver. `None` if they are the bytes of the
    /// buffers.
    fn reserved(&self) -> Option<u64> {
        None
    }

    /// Notes that a load will ask for buffers of `bytes` bytes in all, so that no more is taken from the driver. 0 ends
    /// the load.
    fn foresee(&self, bytes: u64) {
        _ = bytes;
    }

    /// Creates a buffer of at least `bytes` bytes (a multiple of 16, not 0). Its contents are undefined.
    fn allocate(&self, bytes: u64, memory: MemoryUse) -> Result<BufferId>;

    /// Destroys a buffer. The caller ensures that every batch that names it has completed.
    fn free(&self, buffer: BufferId);

    /// Fills a part of a buffer that the host reaches (not a readback buffer). No batch in flight may use these bytes.
    fn write(&self, buffer: BufferId, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Whether the host reads buffers of [`MemoryKind::Device`] as fast as its own memory.
    fn host_reads_device_memory(&self) -> bool {
        false
    }

    /// Whether the host reaches all of the device's own memory across the bus, as [`MemoryKind::Shared`]. There it
    /// writes a few bytes sooner than the device copies them.
    fn host_writes_device_memory(&self) -> bool {
        false
    }

    /// Whether upload buffers may be written again when the batches that name them have completed.
    fn rewrites_uploads(&self) -> bool {
        true
    }

    /// Names all that the binary of a kernel depends on, except the kernel itself: the device, the driver's version,
    /// the build flags. `None` if there are no binaries to keep.
    fn binary_key(&self, module: &Module) -> Option<String>;

    /// Makes a kernel ready for dispatches. Kernels live as long as the backend. `binary` is what an earlier call
    /// returned for the same module, maybe in another process with the same [`binary_key`](Self::binary_key). If it is
    /// of no use, it is ignored.
    fn compile(&self, module: &Module, binary: Option<&[u8]>) -> Result<Compiled>;

    /// Hands a batch to the device and returns at once. Batches run in the order of submission, and each sees the
    /// memory effects of earlier ones, and of the submission `copies` to the queue that only copies (`Ticket(0)`: of
    /// none). With `timed`, the device notes when each step starts and ends.
    ///
    /// Batches are numbered from 1, in the order of their submission.
    fn submit_after(&self, steps: &[Step], timed: bool, copies: Ticket) -> Result<Ticket>;

    /// The same for a batch that needs none of these copies.
    #[cfg(test)]
    fn submit(&self, steps: &[Step], timed: bool) -> Result<Ticket> {
        self.submit_after(steps, timed, Ticket(0))
    }

    /// Returns the queue that only copies, if the device has one.
    fn copies(&self) -> Option<&dyn CopyQueue> {
        None
    }

    /// Records steps once, so that [`Command::Run`] runs them any number of times, also while earlier runs are in
    /// flight. `None` if this backend has to encode them for each run anyway. The buffers outlive the program.
    fn prepare(&self, steps: &[Step]) -> Result<Option<ProgramId>>;

    /// Frees a program. The caller ensures that every batch that runs it has completed.
    fn discard(&self, program: ProgramId);

    /// Returns when each step of a batch started and ended, in nanoseconds of [`clock::now`](crate::base::clock::now).
    /// The batch was submitted with `timed` and has completed. It can be asked for once.
    fn timings(&self, ticket: Ticket) -> Result<Vec<Range<u64>>>;

    /// Returns the newest batch that has completed (`Ticket(0)` if none has). Never blocks. Unlike `submit`, it may run
    /// the callbacks of reads that are due.
    fn completed(&self) -> Result<Ticket>;

    /// Blocks until a batch has completed, and runs the callbacks of reads that are due by then. A browser cannot
    /// block: its event loop runs the callbacks.
    fn wait(&self, ticket: Ticket) -> Result<()>;

    /// In a browser, where [`wait`](Self::wait) returns at once: calls `done` from the event loop when all batches up
    /// to this one have completed.
    #[cfg(not(native))]
    fn notify(&self, ticket: Ticket, done: Box<dyn FnOnce() + Send>) {
        _ = ticket;
        done();
    }

    /// Calls `done` exactly once, with the first `bytes` bytes of a buffer, when the batch `after` has completed. The
    /// host must reach the buffer, and it is not for uploads. The caller keeps it until then, and no later batch writes
    /// it.
    fn read(&self, buffer: BufferId, bytes: u64, after: Ticket, done: ReadCallback);

    /// Fills `into` with bytes of a buffer from `offset` on. The batch `after` has completed. The rest is as for
    /// [`read`](Self::read).
    fn read_now(&self, buffer: BufferId, offset: u64, after: Ticket, into: &mut [u8]) -> Result<()>;
}

/// A queue of a device that only copies, while the device runs batches. Its submissions are numbered apart from these,
/// from 1. They run in their order, and wait for no batch. Every method may be called from any thread.
pub(crate) trait CopyQueue: Send + Sync {
    /// Hands over copies and returns at once. No batch in flight uses what they write. Otherwise as
    /// [`Backend::submit`].
    fn submit(&self, copies: &[Step], timed: bool) -> Result<Ticket>;

    /// See [`Backend::timings`].
    fn timings(&self, ticket: Ticket) -> Result<Vec<Range<u64>>>;

    /// Returns the newest submission whose copies are done (`Ticket(0)` if there is none). Never blocks.
    fn completed(&self) -> Result<Ticket>;

    /// Blocks until the copies of a submission are done.
    fn wait(&self, ticket: Ticket) -> Result<()>;
}

/// Fails with what a device lacks to run a kernel. Call this before the driver: some drivers crash on what they lack.
pub(crate) fn check_fits(module: &Module, info: &DeviceInfo) -> Result<()> {
    let unsupported = |feature| Err(Error::Unsupported { feature, device: info.to_string() });
    if let Some(feature) = module.requires.missing_from(&info.features) {
        return unsupported(format!("{feature}, which kernel `{}` requires", module.name));
    }
    let limits = &info.limits;
    let [x, y, z] = module.workgroup.map(u64::from);
    let needs = [
        ("invocations per workgroup", x.saturating_mul(y).saturating_mul(z), limits.max_workgroup_invocations),
        ("invocations per workgroup in x", x, limits.max_workgroup_size[0]),
        ("invocations per workgroup in y", y, limits.max_workgroup_size[1]),
        ("invocations per workgroup in z", z, limits.max_workgroup_size[2]),
        ("bytes of workgroup memory", module.workgroup_memory.into(), limits.max_workgroup_memory),
        ("buffers", module.bindings.len() as u64, limits.max_bindings),
        ("parameter words", module.parameter_words as u64, limits.max_parameter_words),
    ];
    match needs.into_iter().find(|(_, needed, limit)| *needed > u64::from(*limit)) {
        Some((what, needed, limit)) => {
            unsupported(format!("{needed} {what}, which kernel `{}` needs (limit {limit})", module.name))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_touches_on_both_sides_is_one_row() {
        let rows = |extent, src, dst| -> Vec<[u64; 3]> {
            Region { extent, src, dst }.rows().map(|row| [row.src, row.dst, row.bytes]).collect()
        };
        let dense = Pitch { offset: 2, row: 4, slice: 12 };
        let gaps_in_rows = Pitch { offset: 0, row: 5, slice: 15 };
        let gaps_in_slices = Pitch { offset: 0, row: 4, slice: 13 };
        assert_eq!(rows([4, 3, 2], dense, dense), [[2, 2, 24]]);
        assert_eq!(rows([4, 3, 2], gaps_in_slices, dense), [[0, 2, 12], [13, 14, 12]]);
        let apart = [[2, 0, 4], [6, 5, 4], [10, 10, 4], [14, 15, 4], [18, 20, 4], [22, 25, 4]];
        assert_eq!(rows([4, 3, 2], dense, gaps_in_rows), apart);
        // The pitch of a single row or slice is not used.
        assert_eq!(rows([4, 1, 1], gaps_in_rows, Pitch::default()), [[0, 0, 4]]);
        assert_eq!(rows([12, 1, 2], dense, Pitch { row: 0, ..dense }), [[2, 2, 24]]);
    }

    const ROWS: Pitch = Pitch { offset: 3, row: 10, slice: 100 };

    #[test]
    fn a_region_fits_up_to_the_last_byte_of_its_last_row() {
        let region = Region { extent: [5, 4, 2], src: ROWS, dst: Pitch { offset: 0, row: 5, slice: 20 } };
        // 3 + 1 slice of 100 + 3 rows of 10 + 5 bytes, and 2 * 4 * 5 bytes.
        assert_eq!(region.check(138, 40), Ok(()));
        assert!(region.check(137, 40).unwrap_err().contains("byte 138 of the source, which has 137"));
        assert!(region.check(138, 39).unwrap_err().contains("byte 40 of the destination, which has 39"));
        assert_eq!(Region::linear(8).check(8, 8), Ok(()));
        assert!(Region::linear(8).check(8, 7).is_err());
        assert!(Region::linear(0).check(8, 8).is_err());
    }

    #[test]
    fn a_pitch_counts_only_where_there_is_something_to_be_apart() {
        let none = Pitch::default();
        assert_eq!(Region { extent: [8, 1, 1], src: none, dst: none }.check(8, 8), Ok(()));
        let slices = Pitch { slice: 8, ..none };
        assert_eq!(Region { extent: [8, 1, 2], src: slices, dst: slices }.check(16, 16), Ok(()));
    }

    #[test]
    fn overlapping_rows_and_slices_are_refused_on_both_sides() {
        let good = Region { extent: [10, 4, 2], src: ROWS, dst: ROWS };
        assert_eq!(good.check(1000, 1000), Ok(()));
        let rows = Pitch { row: 9, ..ROWS };
        // Four rows take 40 bytes.
        let slices = Pitch { slice: 39, ..ROWS };
        for bad in [rows, slices] {
            assert!(Region { src: bad, ..good }.check(1000, 1000).unwrap_err().contains("overlap"));
            assert!(Region { dst: bad, ..good }.check(1000, 1000).unwrap_err().contains("overlap"));
        }
    }

    #[test]
    fn numbers_beyond_64_bits_are_refused() {
        let big = 1 << 40;
        let regions = [
            Region { extent: [1, big, 1], src: Pitch { row: big, ..ROWS }, dst: ROWS },
            Region { extent: [1, 1, big], src: Pitch { slice: big, ..ROWS }, dst: ROWS },
            Region { extent: [2, 2, 1], src: Pitch { row: u64::MAX, ..ROWS }, dst: ROWS },
            Region { extent: [1, 1, 1], src: Pitch { offset: u64::MAX, ..ROWS }, dst: ROWS },
        ];
        for region in regions {
            assert!(region.check(u64::MAX, u64::MAX).unwrap_err().contains("beyond all buffers"), "{region:?}");
        }
    }
}
