//! When the steps of a batch ran: timestamps, converted to the host's clock.

use super::guard::{GuardedDevice, describe, driver_error};
use crate::backend::contract::Ticket;
use crate::base::clock::now;
use crate::base::error::Result;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The most timed batches that are kept until somebody asks for their timings. Each has 32 bytes of buffers per step.
const MAX_BATCHES: usize = 1024;

/// The nanoseconds after which the two clocks are compared again. Crystals drift apart by up to 100 us per second.
const CALIBRATION_LASTS: u64 = 1_000_000_000;

/// How many times a calibration compares the clocks.
const CALIBRATION_TRIES: usize = 5;

/// Steps whose timestamps fit into a query set.
const SET_STEPS: usize = wgpu::QUERY_SET_MAX_QUERIES as usize / 2;

/// The timings of a device's batches.
pub(super) struct Timings {
    gpu: Arc<GuardedDevice>,
    kept: Mutex<BTreeMap<Ticket, Stamps>>,
    clock: Mutex<Option<Clock>>,
}

impl Timings {
    pub fn new(gpu: Arc<GuardedDevice>) -> Timings {
        Timings { gpu, kept: Mutex::default(), clock: Mutex::default() }
    }

    /// Keeps the timestamps of a batch that was submitted.
    pub fn keep(&self, ticket: Ticket, stamps: Stamps) {
        let mut kept = self.kept.lock();
        kept.insert(ticket, stamps);
        if kept.len() > MAX_BATCHES {
            kept.pop_first();
        }
    }

    /// Returns when each step of a batch ran, in nanoseconds of [`now`]. The batch has completed. It can be asked for
    /// once.
    pub fn take(&self, ticket: Ticket) -> Result<Vec<Range<u64>>> {
        let stamps = self.kept.lock().remove(&ticket).ok_or_else(|| {
            let reason = "was not timed, or its timings were told before or have been forgotten";
            driver_error("timings", format!("batch {} {reason}", ticket.0))
        })?;
        let ticks = stamps.read(&self.gpu)?;
        let clock = self.clock()?;
        let times = ticks.chunks_exact(2).map(|step| [clock.nanoseconds(step[0]), clock.nanoseconds(step[1])]);
        // WebGPU does not promise that timestamps ascend.
        Ok(times.map(|[start, end]| start..end.max(start)).collect())
    }

    /// Returns a recent comparison of the clocks.
    fn clock(&self) -> Result<Clock> {
        let mut clock = self.clock.lock();
        match *clock {
            Some(clock) if now().saturating_sub(clock.host) < CALIBRATION_LASTS => Ok(clock),
            _ => Ok(*clock.insert(self.calibrate()?)),
        }
    }

    /// Compares the clocks while the device is idle.
    fn calibrate(&self) -> Result<Clock> {
        self.gpu.poll(wgpu::PollType::wait_indefinitely())?;
        let period = f64::from(self.gpu.queue.get_timestamp_period());
        let mut closest = self.compare_clocks()?;
        for _ in 1..CALIBRATION_TRIES {
            let next = self.compare_clocks()?;
            if next.0.end - next.0.start < closest.0.end - closest.0.start {
                closest = next;
            }
        }
        let (host, ticks) = closest;
        Ok(Clock { ticks, host: host.start.midpoint(host.end), period })
    }

    /// Writes a timestamp on the device. Returns the span of the host's time in which it did, and the timestamp.
    fn compare_clocks(&self) -> Result<(Range<u64>, u64)> {
        let refuse = |error| driver_error("timings", describe(&error));
        let encode = || {
            let stamps = Stamps::new(&self.gpu.device, 1);
            let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
            stamps.start(&mut encoder, 0);
            stamps.end(&mut encoder, 0);
            stamps.resolve(&mut encoder);
            (encoder.finish(), stamps)
        };
        let (commands, stamps) = self.gpu.catch(encode, refuse)?;
        let start = now();
        let index = self.gpu.catch(|| self.gpu.queue.submit([commands]), refuse)?;
        self.gpu.poll(wgpu::PollType::Wait { submission_index: Some(index), timeout: None })?;
        let end = now();
        let ticks = stamps.read(&self.gpu)?;
        Ok((start..end, ticks[0]))
    }
}

/// A moment, in ticks of the device and in nanoseconds of the host.
#[derive(Clone, Copy)]
struct Clock {
    ticks: u64,
    host: u64,
    /// Nanoseconds per tick. wgpu reports it with 24 bits. This is enough for the time since the moment, but not for
    /// the time since the device started.
    period: f64,
}

impl Clock {
    fn nanoseconds(&self, ticks: u64) -> u64 {
        let later = ticks.wrapping_sub(self.ticks).cast_signed();
        self.host.saturating_add_signed((later as f64 * self.period).round() as i64)
    }
}

/// The timestamps of a batch: two per step.
pub(super) struct Stamps {
    sets: Vec<Set>,
    /// Whether timestamps can be written outside of passes.
    inside_encoders: bool,
}

/// The timestamps of up to [`SET_STEPS`] steps, on their way to the host.
struct Set {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    readback: wgpu::Buffer,
}

impl Stamps {
    /// Creates room for the timestamps of `steps` steps.
    pub fn new(device: &wgpu::Device, steps: usize) -> Stamps {
        let firsts = (0..steps).step_by(SET_STEPS);
        let sets = firsts.map(|first| Set::new(device, (steps - first).min(SET_STEPS) as u32)).collect();
        let inside_encoders = device.features().contains(wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS);
        Stamps { sets, inside_encoders }
    }

    /// Returns the timestamps that a compute pass with a single step writes.
    pub fn of_pass(&self, step: usize) -> wgpu::ComputePassTimestampWrites<'_> {
        let (query_set, query) = self.place(step);
        wgpu::ComputePassTimestampWrites {
            query_set,
            beginning_of_pass_write_index: Some(query),
            end_of_pass_write_index: Some(query + 1),
        }
    }

    /// Writes the start of a step outside of passes.
    pub fn start(&self, encoder: &mut wgpu::CommandEncoder, step: usize) {
        let (query_set, query) = self.place(step);
        self.write(encoder, query_set, query);
    }

    /// Writes the end of a step outside of passes.
    pub fn end(&self, encoder: &mut wgpu::CommandEncoder, step: usize) {
        let (query_set, query) = self.place(step);
        self.write(encoder, query_set, query + 1);
    }

    /// Makes the device hand over the timestamps, as the last work of the batch.
    pub fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        for Set { queries, resolved, readback } in &self.sets {
            encoder.resolve_query_set(queries, 0..queries.count(), resolved, 0);
            encoder.copy_buffer_to_buffer(resolved, 0, readback, 0, resolved.size());
        }
    }

    /// Returns the query set of a step, and the query of its start. The query of its end is the next one.
    fn place(&self, step: usize) -> (&wgpu::QuerySet, u32) {
        (&self.sets[step / SET_STEPS].queries, 2 * (step % SET_STEPS) as u32)
    }

    fn write(&self, encoder: &mut wgpu::CommandEncoder, query_set: &wgpu::QuerySet, query: u32) {
        if self.inside_encoders {
            return encoder.write_timestamp(query_set, query);
        }
        let timestamp_writes = wgpu::ComputePassTimestampWrites {
            query_set,
            beginning_of_pass_write_index: Some(query),
            end_of_pass_write_index: None,
        };
        let descriptor = wgpu::ComputePassDescriptor { label: None, timestamp_writes: Some(timestamp_writes) };
        drop(encoder.begin_compute_pass(&descriptor));
    }

    /// Returns all timestamps of a batch that has completed, in ticks.
    fn read(&self, gpu: &GuardedDevice) -> Result<Vec<u64>> {
        let mut ticks = Vec::new();
        for Set { readback, .. } in &self.sets {
            map(gpu, readback)?;
            let refuse = |error: wgpu::MapRangeError| driver_error("Buffer::get_mapped_range", error.to_string());
            let view = readback.get_mapped_range(..).map_err(refuse)?;
            ticks.append(&mut bytemuck::pod_collect_to_vec(&view));
        }
        Ok(ticks)
    }
}

impl Set {
    fn new(device: &wgpu::Device, steps: u32) -> Set {
        use wgpu::BufferUsages as Usage;
        let count = 2 * steps;
        let queries = wgpu::QuerySetDescriptor { label: None, ty: wgpu::QueryType::Timestamp, count };
        let size = u64::from(count * wgpu::QUERY_SIZE);
        let buffer = |usage| {
            device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
        };
        Set {
            queries: device.create_query_set(&queries),
            resolved: buffer(Usage::QUERY_RESOLVE | Usage::COPY_SRC),
            readback: buffer(Usage::COPY_DST | Usage::MAP_READ),
        }
    }
}

/// Maps a buffer that no batch in flight uses.
fn map(gpu: &GuardedDevice, buffer: &wgpu::Buffer) -> Result<()> {
    let (sender, receiver) = channel();
    buffer.map_async(wgpu::MapMode::Read, .., move |mapped| {
        // If the receiver is gone, the device is lost.
        let _ = sender.send(mapped);
    });
    let refuse = |message| driver_error("Buffer::map_async", message);
    loop {
        gpu.poll(wgpu::PollType::Poll)?;
        // Another thread may have polled the mapping, and be about to report it.
        match receiver.recv_timeout(Duration::from_millis(1)) {
            Ok(mapped) => return mapped.map_err(|error| refuse(error.to_string())),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(refuse("wgpu has forgotten it".into())),
        }
    }
}

#[cfg(test)]
#[cfg(device_tests)]
mod tests {
    use super::super::tests::open;
    use super::*;
    use crate::backend::contract::Backend;
    use crate::backend::contract_tests::{allocate, compile_add, copy, dispatch, download, upload};

    #[test]
    fn a_batch_may_have_more_steps_than_a_query_set() {
        let backend = open();
        let kernel = compile_add(&backend);
        let [x, ones, y] = [0.0, 1.0, 0.0].map(|value| upload(&backend, &[value; 4]));
        let round = [dispatch(kernel, [x, ones, y], 4, true), copy(y, x, 16, true)];
        let steps: Vec<_> = round.iter().cycle().take(SET_STEPS + 2).cloned().collect();
        let ticket = backend.submit(&steps, true).unwrap();
        backend.wait(ticket).unwrap();
        let times = backend.timings(ticket).unwrap();
        assert_eq!(times.len(), steps.len());
        assert!(times.windows(2).all(|pair| pair[0].end <= pair[1].start));
        assert_eq!(download(&backend, x, 4), [(SET_STEPS / 2 + 1) as f32; 4]);
    }

    #[test]
    fn only_so_many_timings_are_kept() {
        let backend = open();
        let first = backend.submit(&[], true).unwrap();
        let mut last = first;
        for _ in 0..MAX_BATCHES {
            last = backend.submit(&[], true).unwrap();
        }
        backend.wait(last).unwrap();
        assert!(backend.timings(first).unwrap_err().to_string().contains("forgotten"));
        assert_eq!(backend.timings(last).unwrap(), []);
        assert_eq!(backend.timings(Ticket(first.0 + 1)).unwrap(), []);
    }

    #[test]
    fn timestamps_outside_of_passes_need_no_feature() {
        let backend = open();
        let [src, dst] = allocate(&backend, 1 << 20).map(|id| backend.buffers.get(id, "test").unwrap().0);
        let mut stamps = Stamps::new(&backend.gpu.device, 2);
        stamps.inside_encoders = false;
        let mut encoder = backend.gpu.device.create_command_encoder(&Default::default());
        for step in 0..2 {
            stamps.start(&mut encoder, step);
            encoder.copy_buffer_to_buffer(&src, 0, &dst, 0, 1 << 20);
            stamps.end(&mut encoder, step);
        }
        stamps.resolve(&mut encoder);
        backend.gpu.queue.submit([encoder.finish()]);
        backend.gpu.poll(wgpu::PollType::wait_indefinitely()).unwrap();
        let ticks = stamps.read(&backend.gpu).unwrap();
        assert!(ticks.len() == 4 && ticks[0] > 0 && ticks.is_sorted() && ticks[0] < ticks[3], "{ticks:?}");
        backend.gpu.check().unwrap();
    }

    #[test]
    fn ticks_become_nanoseconds_around_the_moment_of_comparison() {
        let clock = Clock { ticks: 1 << 60, host: 5_000_000, period: 2.5 };
        assert_eq!(clock.nanoseconds((1 << 60) + 4), 5_000_010);
        assert_eq!(clock.nanoseconds((1 << 60) - 4), 4_999_990);
        // An impossible timestamp does not wrap around.
        assert_eq!(clock.nanoseconds(0), 0);
    }
}
