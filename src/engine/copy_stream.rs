//! [`CopyStream`]: uploads beside the [stream](super::stream), on the queue of a device that only copies.
//!
//! An upload goes here if no command in flight uses its buffer. So it waits for no kernel, and no kernel waits for it,
//! except those that use the buffer: the batch of the stream with the first of them waits on the device.

use super::host_trace::HostTrace;
use super::pool::Allocation;
use super::profile::{Label, TimedCommand};
use crate::backend::contract::{Backend, Command, CopyQueue, Region, Step, Ticket};
use crate::base::error::Result;
use crate::base::lock::Mutex;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Uploads of a device that has a queue for them.
pub(super) struct CopyStream {
    backend: Arc<dyn Backend>,
    host_trace: Arc<HostTrace>,
    state: Mutex<State>,
    submissions: AtomicU64,
    waits: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Copies that may not be done, the oldest first, with the two buffers that each uses.
    in_flight: VecDeque<(Ticket, [Arc<Allocation>; 2])>,
    /// Set while copies are timed: those that were submitted since.
    timed: Option<Vec<(Ticket, Label)>>,
}

impl CopyStream {
    pub fn new(backend: Arc<dyn Backend>, host_trace: Arc<HostTrace>) -> CopyStream {
        let (state, submissions, waits) = Default::default();
        CopyStream { backend, host_trace, state, submissions, waits }
    }

    /// Whether the device has a queue that only copies.
    pub fn exists(&self) -> bool {
        self.backend.copies().is_some()
    }

    /// Submits the copy of a box of bytes. Nobody else uses the destination. Returns false if the device has no queue
    /// for it.
    pub fn copy(&self, src: &Arc<Allocation>, dst: &Arc<Allocation>, region: Region, name: &str) -> Result<bool> {
        let Some(queue) = self.backend.copies() else { return Ok(false) };
        let span = self.host_trace.span(|| "submit".into());
        let command = Command::CopyRegion { src: src.id(), dst: dst.id(), region };
        let mut state = self.state.lock();
        let ticket = queue.submit(&[Step { command, barrier: false }], state.timed.is_some())?;
        state.in_flight.push_back((ticket, [src.clone(), dst.clone()]));
        if let Some(timed) = &mut state.timed {
            timed.push((ticket, Label { name: name.into(), bytes: region.bytes() }));
        }
        dst.note_upload(ticket);
        drop(state);
        drop(span);
        self.submissions.fetch_add(1, Ordering::Relaxed);
        self.retire(queue).map(|()| true)
    }

    /// Releases the buffers of copies that are done.
    fn retire(&self, queue: &dyn CopyQueue) -> Result<()> {
        let completed = queue.completed()?;
        let in_flight = &mut self.state.lock().in_flight;
        let done = in_flight.iter().take_while(|(ticket, _)| *ticket <= completed).count();
        let released: SmallVec<[_; 4]> = in_flight.drain(..done).collect();
        // The state is unlocked first, because a buffer may go back to the driver.
        _ = in_flight;
        drop(released);
        Ok(())
    }

    /// Blocks until the oldest copy in flight is done. Returns false if there is none.
    pub fn wait_for_oldest(&self) -> Result<bool> {
        let oldest = self.state.lock().in_flight.front().map(|(ticket, _)| *ticket);
        oldest.map_or(Ok(false), |oldest| self.wait_for(oldest).map(|()| true))
    }

    /// Blocks until all copies are done.
    pub fn wait(&self) -> Result<()> {
        let newest = self.state.lock().in_flight.back().map(|(ticket, _)| *ticket);
        newest.map_or(Ok(()), |newest| self.wait_for(newest))
    }

    fn wait_for(&self, ticket: Ticket) -> Result<()> {
        // Without a queue there is nothing in flight, except in a fork of the process, where the stream refuses all.
        let Some(queue) = self.backend.copies() else { return Ok(()) };
        self.waits.fetch_add(1, Ordering::Relaxed);
        let span = self.host_trace.span(|| "wait".into());
        queue.wait(ticket)?;
        drop(span);
        self.retire(queue)
    }

    /// Makes the device time the copies that are submitted from now on.
    pub fn start_timing(&self) {
        self.state.lock().timed = Some(Vec::new());
    }

    /// Blocks until the timed copies are done, and returns them.
    pub fn stop_timing(&self) -> Result<Vec<TimedCommand>> {
        let timed = self.state.lock().timed.take().unwrap_or_default();
        let Some(queue) = self.backend.copies() else { return Ok(Vec::new()) };
        self.wait()?;
        let times = |(ticket, label): (Ticket, Label)| {
            let times = queue.timings(ticket)?;
            Ok(times.into_iter().map(move |times| TimedCommand::new(label.clone(), times)))
        };
        let all: Result<Vec<_>> = timed.into_iter().map(times).collect();
        Ok(all?.into_iter().flatten().collect())
    }

    /// Submissions since the device was opened.
    pub fn submissions(&self) -> u64 {
        self.submissions.load(Ordering::Relaxed)
    }

    /// Times that the host has blocked.
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }
}

impl Drop for CopyStream {
    fn drop(&mut self) {
        // Buffers may be freed only when no copy uses them. If the device is lost, none does.
        let newest = self.state.get_mut().in_flight.back().map(|(ticket, _)| *ticket);
        if let (Some(queue), Some(newest)) = (self.backend.copies(), newest)
            && let Err(error) = queue.wait(newest)
        {
            log::debug!("the device was closed with an error: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::info::{DeviceKind, MemoryKind};
    use crate::engine::pool::Buffer;
    use crate::engine::runtime::Runtime;
    use crate::engine::stream::tests::{Lazy, LazyCopies};

    const MIB: usize = 1 << 20;

    /// The copies that each batch of a device waits for.
    type Awaited = Arc<Mutex<Vec<Ticket>>>;

    /// Opens a GPU with a queue that only copies.
    fn open() -> (Runtime, Arc<LazyCopies>, Awaited) {
        let queue: Arc<LazyCopies> = Arc::default();
        let mut lazy = Lazy::new(DeviceKind::Discrete, 0);
        lazy.info.unified_memory = false;
        lazy.copy_queue = Some(queue.clone());
        let awaited = lazy.awaited.clone();
        (Runtime::new(Box::new(lazy)), queue, awaited)
    }

    fn upload(runtime: &Runtime, bytes: usize) -> Buffer {
        runtime.upload(&&vec![1u8; bytes][..], MemoryKind::Device).unwrap()
    }

    /// Uses two buffers in a batch of the stream.
    fn use_both(runtime: &Runtime, [src, dst]: [&Buffer; 2]) {
        runtime.copy_region(src, dst, Region::linear(16)).unwrap();
        runtime.stream.flush().unwrap();
    }

    #[test]
    fn only_batches_that_use_a_buffer_wait_for_its_upload() {
        let (runtime, queue, awaited) = open();
        let others = [(); 2].map(|()| runtime.allocate(MIB as u64, MemoryKind::Device).unwrap());
        use_both(&runtime, others.each_ref());
        let buffer = upload(&runtime, 10 * MIB);
        assert_eq!((queue.submitted.lock().len(), awaited.lock().len()), (3, 1), "pieces of 4, 4 and 2 MiB");
        use_both(&runtime, others.each_ref());
        use_both(&runtime, [&buffer, &others[0]]);
        use_both(&runtime, others.each_ref());
        assert_eq!(*awaited.lock(), [0, 0, 3, 0].map(Ticket));
        runtime.synchronize().unwrap();
        assert_eq!(queue.completed().unwrap(), Ticket(3), "whoever waits for the device waits for them");
        assert_eq!(runtime.stats().submissions, 4 + 3);
    }

    #[test]
    fn an_upload_to_a_buffer_in_use_keeps_its_place_among_the_batches() {
        let (runtime, queue, awaited) = open();
        let [buffer, other] = [4 * MIB, MIB].map(|bytes| upload(&runtime, bytes));
        let submitted = || queue.submitted.lock().len();
        assert_eq!(submitted(), 1, "a few bytes go with the batches");
        let bytes = vec![2u8; 4 * MIB];
        let write = || runtime.write(&buffer, &&bytes[..]).unwrap();
        write();
        assert_eq!(submitted(), 1, "the first copy may not be done");
        runtime.synchronize().unwrap();
        write();
        assert_eq!(submitted(), 2, "nobody uses the buffer");
        runtime.copies.wait().unwrap();
        runtime.copy_region(&buffer, &other, Region::linear(16)).unwrap();
        write();
        assert_eq!(submitted(), 2, "a command that was recorded uses it");
        runtime.stream.flush().unwrap();
        assert_eq!(awaited.lock().last(), Some(&Ticket(2)));
        runtime.synchronize().unwrap();
        let shared = buffer.clone();
        write();
        assert_eq!(submitted(), 2, "somebody else could use it meanwhile");
        drop(shared);
    }

    /// The device copies nothing before it is waited for: all staging buffers are in use most of the time.
    #[test]
    fn uploads_wait_for_the_oldest_when_no_staging_is_left() {
        let (runtime, queue, _) = open();
        let buffer = upload(&runtime, 200 * MIB);
        assert_eq!(queue.submitted.lock().len(), 50);
        assert!(queue.waits.load(Ordering::Relaxed) >= 50 - 16 - 8, "{:?}", queue.waits);
        drop(buffer);
        assert!(runtime.trim().unwrap() >= 200 * MIB as u64);
        assert_eq!(queue.completed().unwrap(), Ticket(50));
    }

    #[test]
    fn a_buffer_that_is_uploaded_is_not_idle() {
        let (runtime, queue, _) = open();
        drop(upload(&runtime, 4 * MIB));
        assert!(runtime.pool.reuse_idle(4 * MIB as u64, MemoryKind::Device).is_none());
        drop(upload(&runtime, 4 * MIB));
        assert_eq!(queue.submitted.lock().len(), 1, "the pool's only buffer is in use, so the batches keep the order");
    }

    #[test]
    fn profiles_show_uploads_among_the_other_commands() {
        let (runtime, ..) = open();
        let (buffer, profile) = runtime.profile(|| upload(&runtime, 6 * MIB)).unwrap();
        let found: Vec<_> = profile.commands.iter().map(|command| (&*command.name, command.bytes)).collect();
        assert_eq!(found, [("upload", 4 << 20), ("upload", 2 << 20)]);
        drop(buffer);
    }
}
