//! Bytes between the host and a device.

use super::pool::{Allocation, Buffer};
use super::profile::Label;
use super::recording::Cost;
use super::runtime::Runtime;
use super::staging::{ByteSource, SMALL, Slot, Taken};
use super::transfer_threads::{LEAST_IN_PLACE, LEAST_STAGED, PIECE, piece_size};
use crate::backend::contract::{Command, MemoryUse, Region, Ticket};
use crate::backend::info::MemoryKind;
use crate::base::error::{Error, Result, check_may_block};
use crate::base::lock::Mutex;
use crate::shader::Access;
#[cfg(has_backend)]
use futures_channel::oneshot;
#[cfg(has_backend)]
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, mpsc};

/// The part of a buffer to read: a box of bytes. Only its first `bytes` are wanted.
pub(crate) struct Source {
    pub region: Region,
    pub bytes: u64,
}

impl Source {
    /// Whether the part is the first bytes of the buffer, without gaps.
    fn is_start(&self) -> bool {
        self.region.src.offset == 0 && self.is_row()
    }

    /// Whether the part has no gaps.
    pub fn is_row(&self) -> bool {
        self.region.extent[1..] == [1, 1]
    }

    /// Whether the part has no gaps, and is read in several pieces.
    pub fn is_long_row(&self) -> bool {
        self.is_row() && self.bytes > PIECE
    }
}

/// The largest upload, in bytes, that the host writes straight into the device's memory, if it reaches all of that. On
/// an H200, eight threads write 31 GB/s there, and through staging buffers 26 GB/s of 32 MiB, but 44 GB/s of 1 GiB.
const DIRECT: u64 = 32 << 20;

/// The largest tensor, in bytes, that the host reads in the device's memory, if it reaches all of that. On an H200 each
/// load across the bus takes 1.5 us.
pub(super) const READ_IN_PLACE: u64 = 16;

/// How many pieces of an asynchronous read are on their way at once.
#[cfg(has_backend)]
const AHEAD: usize = 4;

/// Which way bytes go.
#[derive(Clone, Copy)]
enum Direction {
    Upload,
    Readback,
}

impl Direction {
    fn memory(self) -> MemoryUse {
        match self {
            Direction::Upload => MemoryUse::Upload,
            Direction::Readback => MemoryUse::Readback,
        }
    }
}

/// A piece of a read on its way to the host.
struct Piece {
    range: Range<u64>,
    /// The batch that copies it.
    ticket: Ticket,
    slot: Slot,
}

/// Returns what to copy from a staging buffer, from `offset` on, to a range of another.
fn staged(offset: u64, range: &Range<u64>) -> Region {
    let mut region = Region::linear((range.end - range.start).next_multiple_of(4));
    (region.src.offset, region.dst.offset) = (offset, range.start);
    region
}

impl Runtime {
    /// Returns a buffer with these bytes. It does so at once, also inside a capture: to its step, they are constants.
    pub fn upload(&self, source: &dyn ByteSource, kind: MemoryKind) -> Result<Buffer> {
        let length = source.bytes();
        // If host and device share their memory, a copy would only move the bytes from one place to another. A few
        // bytes arrive sooner without one, unless all buffers that are there are in use: then many are on their way.
        // What is loaded stays together.
        let unified = self.info().unified_memory;
        let few = kind == MemoryKind::Device && length <= DIRECT && self.reaches_memory && !self.pool.is_loading();
        let shares = (unified && kind == MemoryKind::Device) || few;
        let place = if shares { MemoryKind::Shared } else { kind };
        let kept = if self.host_writes(place) { self.pool.reuse_idle(length, place) } else { None };
        let kind = if few && kept.is_none() && self.stream.is_busy() { kind } else { place };
        if self.host_writes(kind) {
            let buffer = kept.map_or_else(|| self.allocate_new(&self.pool, length, kind), Ok)?;
            self.write_in_place(&buffer, source)?;
            return Ok(buffer);
        }
        let mut idle = None;
        if length > SMALL && self.copies.exists() {
            // What is idle can be filled at once, beside kernels.
            self.copies.retire()?;
            idle = self.pool.reuse_idle(length, kind);
        }
        let buffer = idle.map_or_else(|| self.allocate_from(&self.pool, length, kind), Ok)?;
        self.write(&buffer, source)?;
        Ok(buffer)
    }

    /// Writes bytes to the start of a buffer that no command uses.
    fn write_in_place(&self, buffer: &Buffer, source: &dyn ByteSource) -> Result<()> {
        let (id, length) = (buffer.allocation().id(), source.bytes());
        self.threads.for_each_piece(length, LEAST_IN_PLACE, |piece, scratch| {
            let start = piece.start;
            source.read(piece, scratch, &mut |bytes| self.backend.write(id, start, bytes))
        })?;
        self.stream.note_upload(length);
        Ok(())
    }

    /// Copies bytes to the start of a buffer. Work that was recorded before does not see them. If no command uses the
    /// buffer, nothing has to wait: the host writes it in place, or the bytes go beside kernels.
    pub fn write(&self, buffer: &Buffer, source: &dyn ByteSource) -> Result<()> {
        self.check_owner(buffer)?;
        let (length, rewrites) = (source.bytes(), self.backend.rewrites_uploads());
        let unused = self.is_unused(buffer)?;
        if unused && self.host_writes(buffer.kind()) && (self.info().unified_memory || length <= DIRECT) {
            return self.write_in_place(buffer, source);
        }
        // Who reads a buffer in place, even a few bytes of it, does not wait for the queue that copies.
        let beside = unused && length > SMALL && !self.host_reads(buffer.kind(), 0);
        let buffer = buffer.allocation();
        if rewrites && (1..=SMALL).contains(&length) {
            let (staging, offset) = self.uploads.share(length, || self.take_staging(Direction::Upload, length))?;
            source.read(0..length, &mut Vec::new(), &mut |bytes| self.backend.write(staging.id(), offset, bytes))?;
            return self.copy_staged(&staging, offset, buffer, 0..length);
        }
        self.threads.for_each_piece(length, LEAST_STAGED, |piece, scratch| {
            let bytes = piece.end - piece.start;
            let staging = match rewrites {
                true => self.take_staging(Direction::Upload, bytes)?,
                false => Slot::apart(self.allocate_staging(bytes, MemoryUse::Upload)?),
            };
            let staging = staging.buffer();
            source.read(piece.clone(), scratch, &mut |bytes| self.backend.write(staging.id(), 0, bytes))?;
            if beside && self.copies.copy(staging, buffer, staged(0, &piece), "upload")? {
                return Ok(());
            }
            self.copy_staged(staging, 0, buffer, piece)?;
            // The device copies this piece while others are filled.
            if length > PIECE { self.stream.flush().map(drop) } else { Ok(()) }
        })
    }

    /// Whether no command uses a buffer, and no other tensor.
    fn is_unused(&self, buffer: &Buffer) -> Result<bool> {
        if !buffer.is_unused() {
            // What has run does not use it any more.
            self.stream.retire()?;
            self.copies.retire()?;
        }
        Ok(buffer.is_unused())
    }

    /// Records the copy of staged bytes to a range of a buffer.
    fn copy_staged(
        &self,
        staging: &Arc<Allocation>,
        offset: u64,
        buffer: &Arc<Allocation>,
        range: Range<u64>,
    ) -> Result<()> {
        self.copy_now("upload", staging, buffer, staged(offset, &range), range.end - range.start)
    }

    /// Takes a staging buffer for so many bytes that no command uses. Waits for the oldest batches if all are used.
    fn take_staging(&self, direction: Direction, bytes: u64) -> Result<Slot> {
        loop {
            if let Some(slot) = self.try_take_staging(direction)? {
                return Ok(slot);
            }
            let waited = match direction {
                Direction::Upload => self.wait_for_oldest()?,
                Direction::Readback => self.stream.wait_for_oldest()?,
            };
            if !waited {
                // Others fill or read all of them, maybe for long.
                return Ok(Slot::apart(self.allocate_staging(bytes, direction.memory())?));
            }
        }
    }

    /// The same without waiting. `None` if all are used, or if there is no memory for a whole one.
    fn try_take_staging(&self, direction: Direction) -> Result<Option<Slot>> {
        let ring = match direction {
            Direction::Upload => &self.uploads,
            Direction::Readback => &self.readbacks,
        };
        match ring.take() {
            Taken::Idle(slot) => Ok(Some(slot)),
            // One attempt: whoever gets none does with less.
            Taken::New => match ring.add(self.pool.allocate_apart(PIECE, direction.memory())) {
                Err(Error::OutOfMemory { .. }) => Ok(None),
                added => added.map(Some),
            },
            Taken::None => Ok(None),
        }
    }

    /// Whether the host writes buffers of a kind in place.
    fn host_writes(&self, kind: MemoryKind) -> bool {
        self.info().host_visible && kind != MemoryKind::Device
    }

    /// Whether the host reads `bytes` bytes of a buffer in place. Across a bus it reads the device's memory at a
    /// hundredth of the speed of a copy: 256 MiB took 12 s on an H200. A few bytes arrive sooner so.
    fn host_reads(&self, kind: MemoryKind, bytes: u64) -> bool {
        let few = self.reaches_memory && bytes <= READ_IN_PLACE;
        let near = kind == MemoryKind::Host || self.info().unified_memory || few;
        self.host_writes(kind) && near || self.backend.host_reads_device_memory()
    }

    /// Records a copy, also inside a capture.
    fn copy_now(
        &self,
        name: &str,
        src: &Arc<Allocation>,
        dst: &Arc<Allocation>,
        region: Region,
        upload_bytes: u64,
    ) -> Result<()> {
        let command = Command::CopyRegion { src: src.id(), dst: dst.id(), region };
        let label = || Label::copy(name, region.bytes());
        let cost = Cost { upload_bytes, ..self.cost_of_copy(region) };
        self.stream.record(|| command, [(src, Access::Read), (dst, Access::Write)], cost, label)
    }

    fn cost_of_copy(&self, region: Region) -> Cost {
        Cost { upload_bytes: 0, nanoseconds: self.tuning.batch.nanoseconds(2 * region.bytes(), 0) }
    }

    /// Copies a box of bytes from one buffer to another.
    pub fn copy_region(&self, src: &Buffer, dst: &Buffer, region: Region) -> Result<()> {
        self.check_owner(src)?;
        self.check_owner(dst)?;
        let command = Command::CopyRegion { src: src.allocation().id(), dst: dst.allocation().id(), region };
        let label = || Label::copy("copy", region.bytes());
        let uses = [(src, Access::Read), (dst, Access::Write)].into_iter();
        self.record(|| command, uses, self.cost_of_copy(region), label)
    }

    /// Submits a read. `done` gets the bytes when they have arrived. Returns the batch to wait for, and the staging
    /// buffer, which is busy until then.
    fn start_read(
        &self,
        buffer: &Buffer,
        source: &Source,
        done: impl FnOnce(Result<&[u8]>) + Send + 'static,
    ) -> Result<(Ticket, Option<Slot>)> {
        self.refuse_capture("read", "it reads elements")?;
        self.check_owner(buffer)?;
        if self.host_reads(buffer.kind(), source.bytes) && source.is_start() {
            let ticket = self.stream.flush()?;
            // The buffer is held until then, so that nobody writes to it.
            let (id, held) = (buffer.allocation().id(), buffer.clone());
            let callback = Box::new(move |result: Result<&[u8]>| {
                done(result);
                drop(held);
            });
            self.backend.read(id, source.bytes, ticket, callback);
            return Ok((ticket, None));
        }
        let bytes = source.region.bytes();
        let kept = if bytes <= PIECE { self.try_take_staging(Direction::Readback)? } else { None };
        let mut slot = match kept {
            Some(slot) => slot,
            None => Slot::apart(self.allocate_staging(bytes, MemoryUse::Readback)?),
        };
        slot.set_busy(true);
        let staging = slot.buffer().clone();
        self.copy_now("read", buffer.allocation(), &staging, source.region, 0)?;
        let ticket = self.stream.flush()?;
        let id = staging.id();
        let callback = Box::new(move |result: Result<&[u8]>| {
            done(result);
            drop(staging);
        });
        self.backend.read(id, source.bytes, ticket, callback);
        Ok((ticket, Some(slot)))
    }

    /// Blocks until the first bytes of a box are in `into`, in several threads if they are many. The box is one row.
    pub fn read_into(&self, buffer: &Buffer, source: &Source, into: &mut [u8]) -> Result<()> {
        self.refuse_capture("read", "it reads elements")?;
        check_may_block("read", "read_into_async")?;
        self.check_owner(buffer)?;
        let in_place = self.host_reads(buffer.kind(), source.bytes);
        let least = if in_place { LEAST_IN_PLACE } else { LEAST_STAGED };
        let size = piece_size(source.bytes, least);
        let parts: Vec<Mutex<&mut [u8]>> = into.chunks_mut(size as usize).map(Mutex::new).collect();
        let part = |piece: &Range<u64>| &parts[(piece.start / size) as usize];
        let first = source.region.src.offset;
        if in_place {
            let ticket = self.stream.flush()?;
            self.stream.wait_for(ticket)?;
            return self.threads.for_each_piece(source.bytes, least, |piece, _| {
                let id = buffer.allocation().id();
                self.backend.read_now(id, first + piece.start, ticket, &mut part(&piece).lock())
            });
        }
        self.threads.run(source.bytes, least, |pieces| {
            let mut current: Option<Piece> = None;
            loop {
                // The device copies the next piece while this one is read. Who holds a staging buffer waits for no
                // other: each might hold what another one waits for.
                let next = if current.is_some() {
                    let slot = self.try_take_staging(Direction::Readback)?;
                    slot.and_then(|slot| Some((slot, pieces.take()?)))
                } else {
                    let Some(range) = pieces.take() else { return Ok(()) };
                    Some((self.take_staging(Direction::Readback, range.end - range.start)?, range))
                };
                let next = next.map(|(slot, range)| self.begin_piece(buffer, first, slot, range)).transpose()?;
                if let Some(Piece { range, ticket, mut slot }) = current {
                    self.stream.wait_for(ticket)?;
                    self.backend.read_now(slot.buffer().id(), 0, ticket, &mut part(&range).lock())?;
                    slot.set_busy(false);
                }
                current = next;
            }
        })
    }

    /// Submits the copy of a piece to a staging buffer. `first` is the place of the first piece.
    fn begin_piece(&self, buffer: &Buffer, first: u64, mut slot: Slot, range: Range<u64>) -> Result<Piece> {
        let bytes = range.end - range.start;
        let mut region = Region::linear(bytes.next_multiple_of(self.info().limits.copy_alignment));
        region.src.offset = first + range.start;
        // After an error the backend may be busy with it.
        slot.set_busy(true);
        self.copy_now("read", buffer.allocation(), slot.buffer(), region, 0)?;
        Ok(Piece { range, ticket: self.stream.flush()?, slot })
    }

    /// Blocks until `convert` has got bytes of a buffer.
    pub fn read<T: Send + 'static>(
        &self,
        buffer: &Buffer,
        source: &Source,
        convert: impl FnOnce(&[u8]) -> T + Send + 'static,
    ) -> Result<T> {
        check_may_block("read", "to_vec_async")?;
        if source.bytes <= READ_IN_PLACE && source.is_row() && self.host_reads(buffer.kind(), source.bytes) {
            let mut few = [0; READ_IN_PLACE as usize];
            let few = &mut few[..source.bytes as usize];
            self.read_into(buffer, source, few)?;
            return Ok(convert(few));
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        // The receiver waits below. If it is gone, an error has already been returned.
        let (ticket, mut slot) = self.start_read(buffer, source, move |result| _ = sender.send(result.map(convert)))?;
        let waited = self.stream.wait_for(ticket);
        let received = receiver.try_recv().unwrap_or_else(|_| Err(self.nothing_arrived()));
        if let (Ok(()), Some(slot)) = (&waited, &mut slot) {
            slot.set_busy(false);
        }
        // A wait reports earlier failures. After one, the data cannot be trusted.
        waited.and(received)
    }

    fn nothing_arrived(&self) -> Error {
        let message = "the data did not arrive".into();
        Error::Driver { backend: self.info().backend, call: "read", message }
    }

    /// The same without blocking: the future is ready when the bytes have arrived.
    #[cfg(has_backend)]
    pub async fn read_async<T: Send + 'static>(
        &self,
        buffer: &Buffer,
        source: &Source,
        convert: impl FnOnce(&[u8]) -> T + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = oneshot::channel();
        let (ticket, mut slot) = self.start_read(buffer, source, move |result| _ = sender.send(result.map(convert)))?;
        let waiting = self.begin_wait(ticket)?;
        let received = receiver.await.unwrap_or_else(|_| Err(self.nothing_arrived()));
        self.end_wait(ticket, waiting).await?;
        if let Some(slot) = &mut slot {
            slot.set_busy(false);
        }
        received
    }

    /// Has a thread wait for a batch. It must not be the executor's. A browser calls back from its event loop instead.
    #[cfg(has_backend)]
    pub(super) fn begin_wait(&self, ticket: Ticket) -> Result<oneshot::Receiver<Result<()>>> {
        self.waiter.wait(&self.backend, ticket, Ticket(0))
    }

    #[cfg(has_backend)]
    async fn end_wait(&self, ticket: Ticket, waiting: oneshot::Receiver<Result<()>>) -> Result<()> {
        waiting.await.unwrap_or_else(|_| Err(self.nothing_arrived()))?;
        self.stream.note_waited(ticket)
    }

    /// Submits what has been recorded, and waits without blocking until the device has done all of it.
    #[cfg(has_backend)]
    pub async fn wait_async(&self) -> Result<()> {
        let (ticket, copies) = (self.stream.flush()?, self.copies.newest());
        let waiting = self.waiter.wait(&self.backend, ticket, copies)?;
        self.end_wait(ticket, waiting).await?;
        self.copies.retire()
    }

    /// The same without a backend.
    #[cfg(not(has_backend))]
    pub async fn wait_async(&self) -> Result<()> {
        self.synchronize()
    }

    /// The same as [`read_into`](Self::read_into) without blocking.
    #[cfg(has_backend)]
    pub async fn read_into_async(&self, buffer: &Buffer, source: &Source, into: &mut [u8]) -> Result<()> {
        if !cfg!(native) {
            into.copy_from_slice(&self.read_async(buffer, source, <[u8]>::to_vec).await?);
            return Ok(());
        }
        self.refuse_capture("read", "it reads elements")?;
        self.check_owner(buffer)?;
        if self.host_reads(buffer.kind(), source.bytes) {
            let ticket = self.stream.flush()?;
            self.end_wait(ticket, self.begin_wait(ticket)?).await?;
            return self.read_into(buffer, source, into);
        }
        let first = source.region.src.offset;
        let (mut parts, mut start, mut coming) = (into.chunks_mut(PIECE as usize), 0, VecDeque::new());
        loop {
            // The device copies some pieces while one of them is read.
            while coming.len() < AHEAD
                && let Some(part) = parts.next()
            {
                let range = start..start + part.len() as u64;
                start = range.end;
                let kept = self.try_take_staging(Direction::Readback)?;
                let allocate = || Ok(Slot::apart(self.allocate_staging(range.end - range.start, MemoryUse::Readback)?));
                let slot = kept.map_or_else(allocate, Ok)?;
                let piece = self.begin_piece(buffer, first, slot, range)?;
                coming.push_back((self.begin_wait(piece.ticket)?, piece, part));
            }
            let Some((waiting, Piece { ticket, mut slot, .. }, part)) = coming.pop_front() else { return Ok(()) };
            self.end_wait(ticket, waiting).await?;
            self.backend.read_now(slot.buffer().id(), 0, ticket, part)?;
            slot.set_busy(false);
        }
    }

    /// The same without a backend.
    #[cfg(not(has_backend))]
    pub async fn read_into_async(&self, buffer: &Buffer, source: &Source, into: &mut [u8]) -> Result<()> {
        self.read_into(buffer, source, into)
    }

    /// The same without a backend. Then there is no runtime either.
    #[cfg(not(has_backend))]
    pub async fn read_async<T: Send + 'static>(
        &self,
        buffer: &Buffer,
        source: &Source,
        convert: impl FnOnce(&[u8]) -> T + Send + 'static,
    ) -> Result<T> {
        self.read(buffer, source, convert)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::info::DeviceKind;
    use crate::engine::stream::tests::Lazy;
    use std::sync::atomic::Ordering;

    /// Opens a GPU, all of whose memory the host may reach across the bus.
    fn discrete(host_reaches_memory: bool) -> Runtime {
        let mut backend = Lazy::new(DeviceKind::Discrete, 0);
        backend.info.unified_memory = false;
        backend.host_writes = host_reaches_memory;
        Runtime::new(Box::new(backend))
    }

    /// The host reads a few bytes of a result where they are.
    #[test]
    fn a_few_bytes_are_read_in_place() {
        for reaches in [true, false] {
            let runtime = discrete(reaches);
            let read = |bytes: u64| {
                let buffer = Arc::new(runtime.allocate(bytes, MemoryKind::Device).unwrap());
                let before = runtime.stats().submissions;
                let source = Source { region: Region::linear(bytes), bytes };
                runtime.read_into(&buffer, &source, &mut vec![0; bytes as usize]).unwrap();
                (buffer.kind(), runtime.stats().submissions - before)
            };
            let copied = (MemoryKind::Device, 1);
            assert_eq!(read(READ_IN_PLACE), if reaches { (MemoryKind::Shared, 0) } else { copied });
            assert_eq!(read(READ_IN_PLACE + 4), copied);
        }
    }

    /// Bytes go straight to memory that the host reaches, unless they are many. On other devices all are copied.
    #[test]
    fn bytes_are_written_in_place() {
        for reaches in [true, false] {
            let runtime = discrete(reaches);
            let upload = |bytes: u64| {
                let before = runtime.stats().submissions;
                let buffer = runtime.upload(&&vec![1u8; bytes as usize][..], MemoryKind::Device).unwrap();
                runtime.synchronize().unwrap();
                (buffer.kind(), runtime.stats().submissions > before)
            };
            let copied = (MemoryKind::Device, true);
            assert_eq!(upload(DIRECT), if reaches { (MemoryKind::Shared, false) } else { copied });
            assert_eq!(upload(DIRECT + 16), copied);
        }
    }

    /// A driver may keep each type of memory in blocks of its own. What is loaded is in one type.
    #[test]
    fn a_load_writes_nothing_in_place() {
        let runtime = discrete(true);
        let upload = || runtime.upload(&&[1u8; 100][..], MemoryKind::Device).unwrap().kind();
        let loading = runtime.pool.load(0);
        assert_eq!(upload(), MemoryKind::Device);
        drop(loading);
        assert_eq!(upload(), MemoryKind::Shared);
    }

    /// A device that runs nothing before it is waited for: all staging buffers are in use most of the time.
    #[test]
    fn transfers_allocate_nothing_twice() {
        let backend = Lazy::new(DeviceKind::Discrete, 0);
        let (bytes, allocations) = (backend.bytes.clone(), backend.allocations.clone());
        let [bytes, allocations] = [bytes, allocations].map(|counter| move || counter.load(Ordering::Relaxed));
        let runtime = Runtime::new(Box::new(backend));
        let buffer = Arc::new(runtime.allocate(100 << 20, MemoryKind::Device).unwrap());
        let (large, small) = (vec![1u8; 100 << 20], vec![2u8; 1000]);
        let transfer = || {
            runtime.write(&buffer, &&large[..]).unwrap();
            for _ in 0..10_000 {
                runtime.write(&buffer, &&small[..]).unwrap();
            }
            let source = Source { region: Region::linear(100 << 20), bytes: 100 << 20 };
            runtime.read_into(&buffer, &source, &mut vec![0; 100 << 20]).unwrap();
        };
        let held = bytes();
        transfer();
        let allocated = allocations();
        assert!(bytes() - held <= 128 << 20, "64 MiB each way");
        transfer();
        // A read takes as many buffers as threads happen to be in it at once.
        assert!(allocations() - allocated <= 8, "{} new buffers", allocations() - allocated);
        runtime.trim().unwrap();
        assert_eq!(bytes(), held, "trim frees the staging buffers");
    }
}
