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
    /// Held while buffers are released.
    retiring: Mutex<()>,
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
        let (state, retiring, submissions, waits) = Default::default();
        CopyStream { backend, host_trace, state, retiring, submissions, waits }
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
            timed.push((ticket, Label::copy(name, region.bytes())));
        }
        dst.note_upload(ticket);
        drop(state);
        drop(span);
        self.submissions.fetch_add(1, Ordering::Relaxed);
        self.retire().map(|()| true)
    }

    /// Releases the buffers of copies that are done.
    pub fn retire(&self) -> Result<()> {
        self.with_queue(|queue| self.retire_from(queue)).map(Option::unwrap_or_default)
    }

    fn retire_from(&self, queue: &dyn CopyQueue) -> Result<()> {
        let completed = queue.completed()?;
        // Whoever returns finds that all of them have been released, also those that another thread has taken out.
        let _retiring = self.retiring.lock();
        let mut state = self.state.lock();
        let done = state.in_flight.iter().take_while(|(ticket, _)| *ticket <= completed).count();
        let released: SmallVec<[_; 4]> = state.in_flight.drain(..done).collect();
        // A buffer may go back to the driver, which takes its time.
        drop(state);
        drop(released);
        Ok(())
    }

    /// Calls `work` if the device has a queue that only copies. A fork of the process has none: the locks may be held
    /// by threads that are not there.
    fn with_queue<T>(&self, work: impl FnOnce(&dyn CopyQueue) -> Result<T>) -> Result<Option<T>> {
        self.backend.copies().map(work).transpose()
    }

    /// Blocks until the oldest copy in flight is done. Returns false if there is none.
    pub fn wait_for_oldest(&self) -> Result<bool> {
        let waited = self.with_queue(|queue| {
            let oldest = self.state.lock().in_flight.front().map(|(ticket, _)| *ticket);
            oldest.map(|oldest| self.wait_for(queue, oldest)).transpose()
        })?;
        Ok(waited.flatten().is_some())
    }

    /// Returns the newest submission, if it may be in flight.
    #[cfg(has_backend)]
    pub fn newest(&self) -> Ticket {
        self.state.lock().in_flight.back().map_or(Ticket(0), |(ticket, _)| *ticket)
    }

    /// Blocks until all copies are done.
    pub fn wait(&self) -> Result<()> {
        let waited = self.with_queue(|queue| {
            let newest = self.state.lock().in_flight.back().map(|(ticket, _)| *ticket);
            newest.map_or(Ok(()), |newest| self.wait_for(queue, newest))
        });
        waited.map(Option::unwrap_or_default)
    }

    fn wait_for(&self, queue: &dyn CopyQueue, ticket: Ticket) -> Result<()> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        let span = self.host_trace.span(|| "wait".into());
        queue.wait(ticket)?;
        drop(span);
        self.retire_from(queue)
    }

    /// Makes the device time the copies that are submitted from now on.
    pub fn start_timing(&self) {
        self.state.lock().timed = Some(Vec::new());
    }

    /// Blocks until the timed copies are done, and returns them.
    pub fn stop_timing(&self) -> Result<Vec<TimedCommand>> {
        let timed = self.with_queue(|queue| {
            let timed = self.state.lock().timed.take().unwrap_or_default();
            self.wait()?;
            let times = |(ticket, label): (Ticket, Label)| {
                let times = queue.timings(ticket)?;
                Ok(times.into_iter().map(move |times| TimedCommand::beside(label.clone(), times)))
            };
            let all: Result<Vec<_>> = timed.into_iter().map(times).collect();
            Ok(all?.into_iter().flatten().collect())
        });
        timed.map(Option::unwrap_or_default)
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
        if let Err(error) = self.wait() {
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
        assert_eq!((queue.submitted.lock().len(), awaited.lock().len()), (5, 1), "pieces of 2 MiB");
        use_both(&runtime, others.each_ref());
        use_both(&runtime, [&buffer, &others[0]]);
        use_both(&runtime, others.each_ref());
        assert_eq!(*awaited.lock(), [0, 0, 5, 0].map(Ticket));
        runtime.synchronize().unwrap();
        assert_eq!(queue.completed().unwrap(), Ticket(5), "whoever waits for the device waits for them");
        assert_eq!(runtime.stats().submissions, 4 + 5);
    }

    #[test]
    fn an_upload_to_a_buffer_in_use_keeps_its_place_among_the_batches() {
        let (runtime, queue, awaited) = open();
        let [buffer, other] = [4 * MIB, MIB].map(|bytes| upload(&runtime, bytes));
        let submitted = || queue.submitted.lock().len();
        assert_eq!(submitted(), 4, "four pieces; a few bytes go with the batches");
        let bytes = vec![2u8; 4 * MIB];
        let write = || runtime.write(&buffer, &&bytes[..]).unwrap();
        write();
        assert_eq!(submitted(), 4, "the first upload may not be done");
        runtime.synchronize().unwrap();
        write();
        assert_eq!(submitted(), 8, "nobody uses the buffer");
        runtime.copies.wait().unwrap();
        runtime.copy_region(&buffer, &other, Region::linear(16)).unwrap();
        write();
        assert_eq!(submitted(), 8, "a command that was recorded uses it");
        runtime.stream.flush().unwrap();
        assert_eq!(awaited.lock().last(), Some(&Ticket(8)));
        runtime.synchronize().unwrap();
        let shared = buffer.clone();
        write();
        assert_eq!(submitted(), 8, "somebody else could use it meanwhile");
        drop(shared);
    }

    /// Copies that are done hold no buffer, although nobody has waited for them.
    #[test]
    fn uploads_follow_each_other_to_one_buffer() {
        let (runtime, queue, _) = open();
        let bytes = vec![2u8; 4 * MIB];
        let buffer = upload(&runtime, 4 * MIB);
        let finish = || queue.completed.store(queue.submitted.lock().len() as u64, Ordering::Relaxed);
        finish();
        runtime.write(&buffer, &&bytes[..]).unwrap();
        assert_eq!(queue.submitted.lock().len(), 8);
        drop(buffer);
        finish();
        let again = upload(&runtime, 4 * MIB);
        assert_eq!(queue.submitted.lock().len(), 12, "the pool's buffer is idle");
        finish();
        drop(again);
        assert_eq!(runtime.memory_stats().cached, runtime.memory_stats().peak);
    }

    /// The host reads a few bytes of such buffers where they are, so it writes there, too.
    #[test]
    fn nothing_is_copied_to_what_the_host_reads_in_place() {
        let queue: Arc<LazyCopies> = Arc::default();
        let mut lazy = Lazy::new(DeviceKind::Discrete, 0);
        (lazy.info.unified_memory, lazy.host_writes, lazy.copy_queue) = (false, true, Some(queue.clone()));
        let runtime = Runtime::new(Box::new(lazy));
        let bytes = vec![2u8; 40 * MIB];
        let buffer = runtime.upload(&&bytes[..], MemoryKind::Shared).unwrap();
        runtime.write(&buffer, &&bytes[..4 * MIB]).unwrap();
        assert_eq!(runtime.stats().submissions, 0, "in place");
        runtime.write(&buffer, &&bytes[..]).unwrap();
        let other = runtime.upload(&&bytes[..MIB], MemoryKind::Device).unwrap();
        use_both(&runtime, [&buffer, &other]);
        runtime.write(&buffer, &&bytes[..4 * MIB]).unwrap();
        assert_eq!(queue.submitted.lock().len(), 0);
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
        assert_eq!(queue.submitted.lock().len(), 4, "the pool's only buffer is in use, so the batches keep the order");
    }

    #[test]
    fn profiles_show_uploads_among_the_other_commands() {
        let (runtime, ..) = open();
        let (buffer, profile) = runtime.profile(|| upload(&runtime, 6 * MIB)).unwrap();
        let found: Vec<_> = profile.commands.iter().map(|command| (&*command.name, command.bytes)).collect();
        assert_eq!(found, [("upload", 1 << 20); 6]);
        drop(buffer);
    }
}
