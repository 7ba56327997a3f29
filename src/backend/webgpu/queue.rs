//! Batches: submission and completion.

use super::bind::Bindings;
use super::buffer::Buffers;
use super::encode::BatchEncoder;
use super::guard::{GuardedDevice, describe, driver_error};
use super::host_memory;
use super::kernel::{Kernels, WebGpuKernel};
use super::timing::{Stamps, Timings};
use crate::backend::contract::{BufferId, Command, Step, Ticket};
use crate::base::error::Result;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The queue of a device.
pub(super) struct BatchQueue {
    gpu: Arc<GuardedDevice>,
    /// The newest completed batch that wgpu has reported.
    completed: Arc<AtomicU64>,
    pub timings: Timings,
    /// Locked while a batch is encoded and submitted, so that nothing overwrites its parameters before.
    state: Mutex<State>,
}

struct State {
    bindings: Bindings,
    submitted: u64,
    /// Batches that may still run, with their numbers in wgpu.
    in_flight: VecDeque<(u64, wgpu::SubmissionIndex)>,
}

impl BatchQueue {
    pub fn new(gpu: Arc<GuardedDevice>) -> BatchQueue {
        let state = State { bindings: Bindings::new(Arc::clone(&gpu)), submitted: 0, in_flight: VecDeque::new() };
        let timings = Timings::new(Arc::clone(&gpu));
        BatchQueue { gpu, completed: Arc::default(), timings, state: Mutex::new(state) }
    }

    /// Encodes and submits a batch.
    pub fn submit(&self, steps: &[Step], timed: bool, buffers: &Buffers, kernels: &Kernels) -> Result<Ticket> {
        let mut state = self.state.lock();
        let blocks = parameter_blocks(steps, &state.bindings, &kernels.lock());
        let arena = state.bindings.arena(blocks.len() as u64)?;
        let refuse = |error| driver_error("CommandEncoder", describe(&error));
        let mut encode = || {
            let stamps = timed.then(|| Stamps::new(&self.gpu.device, steps.len()));
            let (buffers, kernels) = (buffers.lock(), kernels.lock());
            let device = &self.gpu.device;
            let encoder = BatchEncoder::new(device, &buffers, &kernels, &mut state.bindings, stamps.as_ref());
            Ok((encoder.encode(steps)?, stamps))
        };
        let encode = || if buffers.host_reads(steps) { host_memory::visible(encode) } else { encode() };
        let (commands, stamps) = match self.gpu.catch(encode, refuse).and_then(|encoded| encoded) {
            Ok(encoded) => encoded,
            Err(error) => {
                state.bindings.forget_all();
                return Err(error);
            }
        };
        let refuse = |error| driver_error("Queue::submit", describe(&error));
        let submit = || {
            if !blocks.is_empty() {
                self.gpu.queue.write_buffer(&arena, 0, &blocks);
            }
            self.gpu.queue.submit([commands])
        };
        let index = self.gpu.catch(submit, refuse)?;
        state.submitted += 1;
        let ticket = state.submitted;
        if let Some(stamps) = stamps {
            self.timings.keep(Ticket(ticket), stamps);
        }
        let completed = Arc::clone(&self.completed);
        self.gpu.queue.on_submitted_work_done(move || {
            completed.fetch_max(ticket, Ordering::Release);
        });
        state.in_flight.push_back((ticket, index));
        let completed = self.completed().0;
        while state.in_flight.front().is_some_and(|&(ticket, _)| ticket <= completed) {
            state.in_flight.pop_front();
        }
        Ok(Ticket(ticket))
    }

    /// Returns the newest batch.
    pub fn newest(&self) -> Ticket {
        Ticket(self.state.lock().submitted)
    }

    /// Returns the newest batch that had completed when wgpu polled last.
    pub fn completed(&self) -> Ticket {
        Ticket(self.completed.load(Ordering::Acquire))
    }

    /// Blocks until a batch has completed, except in a browser.
    pub fn wait(&self, ticket: Ticket) -> Result<()> {
        let state = self.state.lock();
        if ticket.0 > state.submitted {
            return Err(driver_error("wait", format!("batch {} was never submitted", ticket.0)));
        }
        let in_flight = state.in_flight.iter().find(|&&(number, _)| number == ticket.0);
        let how = match in_flight {
            Some((_, index)) => wgpu::PollType::Wait { submission_index: Some(index.clone()), timeout: None },
            None => wgpu::PollType::Poll,
        };
        drop(state);
        self.gpu.poll(how)?;
        if cfg!(native) {
            // Another thread may have polled the callback that reports it, and be about to call it.
            self.completed.fetch_max(ticket.0, Ordering::Release);
        }
        Ok(())
    }

    /// Forgets a buffer that is being freed.
    pub fn forget_buffer(&self, id: BufferId) {
        self.state.lock().bindings.forget_buffer(id);
    }
}

/// Returns the parameter blocks of a batch for the uniform buffer, in the order of its dispatches.
fn parameter_blocks(steps: &[Step], bindings: &Bindings, kernels: &[WebGpuKernel]) -> Vec<u8> {
    let mut blocks = Vec::new();
    for step in steps {
        let Command::Dispatch { kernel, parameters, .. } = &step.command else { continue };
        if kernels.get(kernel.0 as usize).is_some_and(|kernel| kernel.uniform_words() > 0) {
            let end = blocks.len() + bindings.stride(parameters.len()) as usize;
            blocks.extend_from_slice(bytemuck::cast_slice(parameters));
            blocks.resize(end, 0);
        }
    }
    blocks
}
