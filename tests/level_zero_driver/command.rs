//! The commands of a command list, and how they run.

use crate::Outcome;
use crate::event::Event;
use crate::ffi::{CopyRegion, ResultCode};
use crate::handles::Object;
use crate::kernel::Launch;
use crate::memory::{self, Use};
use crate::report::misuse;
use crate::{opencl, progress};
use std::ptr;
use std::sync::Arc;

/// The work of a command.
pub enum Work {
    /// Everything before the barrier completes before anything after it starts.
    Barrier,
    /// Only waits for the command's events, and holds up all later commands.
    Wait,
    /// Only signals the command's event. It is no barrier: it may signal before earlier commands complete.
    Signal,
    Reset(Arc<Event>),
    Copy {
        dst: usize,
        src: usize,
        bytes: usize,
    },
    CopyRegion {
        dst: Rows,
        src: Rows,
    },
    Fill {
        dst: usize,
        pattern: Vec<u8>,
        bytes: usize,
    },
    Launch(Launch),
    Timestamp {
        dst: usize,
    },
}

/// A box of bytes in memory.
#[derive(Clone, Copy)]
pub struct Rows {
    base: usize,
    region: CopyRegion,
    pitch: usize,
    slice_pitch: usize,
}

impl Rows {
    pub fn new(base: usize, region: CopyRegion, pitch: u32, slice_pitch: u32) -> Self {
        // A depth of 0 means a region of two dimensions.
        let region = CopyRegion { depth: region.depth.max(1), ..region };
        Self { base, region, pitch: pitch as usize, slice_pitch: slice_pitch as usize }
    }

    pub fn extent(&self) -> [u32; 3] {
        [self.region.width, self.region.height, self.region.depth]
    }

    fn row(&self, y: u32, z: u32) -> usize {
        let (y, z) = ((self.region.origin_y + y) as usize, (self.region.origin_z + z) as usize);
        self.base + z * self.slice_pitch + y * self.pitch + self.region.origin_x as usize
    }

    /// The offset of the first byte, and the number of bytes up to and including the last one.
    pub fn span(&self) -> (usize, usize) {
        let [width, height, depth] = self.extent();
        let first = self.row(0, 0);
        (first, self.row(height.saturating_sub(1), depth - 1) + width as usize - first)
    }

    fn starts(self) -> impl Iterator<Item = usize> {
        let [_, height, depth] = self.extent();
        (0..depth).flat_map(move |z| (0..height).map(move |y| self.row(y, z)))
    }
}

pub struct Command {
    pub work: Work,
    pub signal: Option<Arc<Event>>,
    pub waits: Vec<Arc<Event>>,
    pub memory: Vec<Use>,
}

impl Command {
    /// True if no command may move across this one.
    pub fn is_barrier(&self) -> bool {
        matches!(self.work, Work::Barrier | Work::Wait)
    }

    pub fn is_ready(&self) -> bool {
        self.waits.iter().all(|event| event.is_signalled())
    }

    /// Fails if an object that the command needs was destroyed since the command was appended.
    pub fn check_alive(&self) -> Outcome {
        let dead = |what: &str| {
            Err(misuse(ResultCode::ERROR_INVALID_ARGUMENT, format!("submitted a command whose {what} was destroyed")))
        };
        if !self.memory.iter().all(|used| used.allocation.is_alive()) {
            return dead("memory");
        }
        if let Work::Launch(launch) = &self.work
            && !launch.kernel.life().is_alive()
        {
            return dead("kernel");
        }
        if !self.events().all(|event| event.life().is_alive()) {
            return dead("event");
        }
        Ok(())
    }

    fn events(&self) -> impl Iterator<Item = &Arc<Event>> {
        let reset = if let Work::Reset(event) = &self.work { Some(event) } else { None };
        self.waits.iter().chain(&self.signal).chain(reset)
    }

    /// Marks everything that the command needs as in use, on submission.
    pub fn begin_use(&self) {
        self.memory.iter().for_each(Use::begin);
        self.events().for_each(|event| event.life().begin_use());
        if let Work::Launch(launch) = &self.work {
            launch.kernel.life().begin_use();
        }
    }

    /// Ends the use that [`Self::begin_use`] marked.
    pub fn end_use(&self) {
        self.memory.iter().for_each(Use::end);
        self.events().for_each(|event| event.life().end_use());
        if let Work::Launch(launch) = &self.work {
            launch.kernel.life().end_use();
        }
    }

    /// Runs a submitted command whose events are signalled. Returns its start and end times.
    pub fn run(&self, queue: &opencl::Queue) -> (u64, u64) {
        let start = progress::now();
        self.work.run(queue);
        (start, progress::now())
    }
}

impl Work {
    fn run(&self, queue: &opencl::Queue) {
        match self {
            Work::Barrier | Work::Wait | Work::Signal => {}
            Work::Reset(event) => event.reset(),
            Work::Copy { dst, src, bytes } => copy(*dst, *src, *bytes),
            Work::CopyRegion { dst, src } => {
                for (to, from) in dst.starts().zip(src.starts()) {
                    copy(to, from, dst.extent()[0] as usize);
                }
            }
            Work::Fill { dst, pattern, bytes } => {
                for offset in (0..*bytes).step_by(pattern.len()) {
                    copy(dst + offset, pattern.as_ptr() as usize, pattern.len().min(bytes - offset));
                }
            }
            Work::Launch(launch) => launch.run(queue),
            Work::Timestamp { dst } => {
                let now = progress::now();
                copy(*dst, &raw const now as usize, size_of::<u64>());
            }
        }
    }
}

fn copy(dst: usize, src: usize, bytes: usize) {
    // SAFETY: `memory::reach` has checked the ranges in allocations, and a pending command keeps those mapped. The
    // application promises that other host memory is valid.
    unsafe { ptr::copy(src as *const u8, dst as *mut u8, bytes) };
}

/// Returns the uses of these ranges of bytes.
pub fn reach(ranges: &[(usize, usize)]) -> Outcome<Vec<Use>> {
    let reached: Outcome<Vec<_>> = ranges.iter().map(|&(address, bytes)| memory::reach(address, bytes)).collect();
    Ok(reached?.into_iter().flatten().collect())
}
