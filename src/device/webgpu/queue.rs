//! Batches: encoding, submission, completion.

use super::bind::Bindings;
use super::buffer::{BufferMap, Buffers};
use super::copy::copy_region;
use super::guard::{GuardedDevice, describe, driver_error};
use super::kernel::{Kernel, Kernels};
use super::timing::{Stamps, Timings};
use crate::device::backend::{BufferId, Command, Step, Ticket};
use crate::error::Result;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The queue of a device.
pub(super) struct BatchQueue {
    gpu: Arc<GuardedDevice>,
    queue: wgpu::Queue,
    /// The newest batch that has completed, as far as wgpu has told.
    completed: Arc<AtomicU64>,
    pub timings: Timings,
    /// Locked while a batch is encoded and submitted: its parameters must not be overwritten before it is on its way.
    state: Mutex<State>,
}

struct State {
    bindings: Bindings,
    submitted: u64,
    /// Batches that may still run, with their numbers in wgpu.
    in_flight: VecDeque<(u64, wgpu::SubmissionIndex)>,
}

impl BatchQueue {
    pub fn new(gpu: Arc<GuardedDevice>, queue: wgpu::Queue) -> BatchQueue {
        let state = State { bindings: Bindings::new(Arc::clone(&gpu)), submitted: 0, in_flight: VecDeque::new() };
        let timings = Timings::new(Arc::clone(&gpu), queue.clone());
        BatchQueue { gpu, queue, completed: Arc::default(), timings, state: Mutex::new(state) }
    }

    /// Encodes and submits a batch. wgpu tracks how each dispatch uses its buffers and places the barriers.
    pub fn submit(&self, steps: &[Step], timed: bool, buffers: &Buffers, kernels: &Kernels) -> Result<Ticket> {
        let mut state = self.state.lock();
        let blocks = parameter_blocks(steps, &state.bindings);
        let arena = state.bindings.arena(blocks.len() as u64)?;
        let refuse = |error| driver_error("CommandEncoder", describe(&error));
        let encode = || {
            let stamps = timed.then(|| Stamps::new(&self.gpu.device, steps.len()));
            let (buffers, kernels) = (buffers.lock(), kernels.lock());
            let commands = self.encode(steps, stamps.as_ref(), &buffers, &kernels, &mut state.bindings)?;
            Ok((commands, stamps))
        };
        let (commands, stamps) = match self.gpu.catch(encode, refuse).and_then(|encoded| encoded) {
            Ok(encoded) => encoded,
            Err(error) => {
                state.bindings.forget_all();
                return Err(error);
            }
        };
        let refuse = |error| driver_error("Queue::submit", describe(&error));
        let submit = || {
            self.queue.write_buffer(&arena, 0, &blocks);
            self.queue.submit([commands])
        };
        let index = self.gpu.catch(submit, refuse)?;
        state.submitted += 1;
        let ticket = state.submitted;
        if let Some(stamps) = stamps {
            self.timings.keep(Ticket(ticket), stamps);
        }
        let completed = Arc::clone(&self.completed);
        self.queue.on_submitted_work_done(move || {
            completed.fetch_max(ticket, Ordering::Release);
        });
        state.in_flight.push_back((ticket, index));
        let completed = self.completed().0;
        while state.in_flight.front().is_some_and(|&(ticket, _)| ticket <= completed) {
            state.in_flight.pop_front();
        }
        Ok(Ticket(ticket))
    }

    /// The newest batch that had completed when wgpu polled last.
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
        if cfg!(not(target_arch = "wasm32")) {
            // Another thread may have polled the callback that says so, and be about to call it.
            self.completed.fetch_max(ticket.0, Ordering::Release);
        }
        Ok(())
    }

    /// Lets go of a buffer that is being freed.
    pub fn forget_buffer(&self, id: BufferId) {
        self.state.lock().bindings.forget_buffer(id);
    }

    fn encode(
        &self,
        steps: &[Step],
        stamps: Option<&Stamps>,
        buffers: &BufferMap,
        kernels: &[Kernel],
        bindings: &mut Bindings,
    ) -> Result<wgpu::CommandBuffer> {
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        // The pass that the dispatches before this step are in; a copy ends it, and so does each step that is timed.
        let mut open_pass: Option<wgpu::ComputePass<'static>> = None;
        let mut offset = 0;
        for (index, step) in steps.iter().enumerate() {
            if stamps.is_some() {
                open_pass = None;
            }
            match &step.command {
                Command::Dispatch { kernel: id, buffers: ids, parameters, groups } => {
                    let kernel = kernels.get(id.0 as usize);
                    let kernel =
                        kernel.ok_or_else(|| driver_error("submit", format!("there is no kernel {}", id.0)))?;
                    kernel.check_arguments(ids.len(), parameters.len())?;
                    let offsets: &[u32] = if parameters.is_empty() { &[] } else { &[offset] };
                    let group = bindings.group(*id, kernel, ids, buffers)?;
                    let pass = open_pass.get_or_insert_with(|| {
                        let timestamp_writes = stamps.map(|stamps| stamps.of_pass(index));
                        let descriptor = wgpu::ComputePassDescriptor { label: None, timestamp_writes };
                        encoder.begin_compute_pass(&descriptor).forget_lifetime()
                    });
                    pass.set_pipeline(kernel.pipeline());
                    pass.set_bind_group(0, group, offsets);
                    pass.dispatch_workgroups(groups[0], groups[1], groups[2]);
                    offset += bindings.stride(parameters.len()) as u32;
                }
                Command::CopyRegion { src, dst, region } => {
                    open_pass = None;
                    let (src, dst) = (buffers.find(*src, "submit")?, buffers.find(*dst, "submit")?);
                    if let Some(stamps) = stamps {
                        stamps.start(&mut encoder, index);
                    }
                    copy_region(&mut encoder, src, dst, region)?;
                    if let Some(stamps) = stamps {
                        stamps.end(&mut encoder, index);
                    }
                }
            }
        }
        drop(open_pass);
        if let Some(stamps) = stamps {
            stamps.resolve(&mut encoder);
        }
        Ok(encoder.finish())
    }
}

/// The parameter blocks of a batch, in the order of its dispatches.
fn parameter_blocks(steps: &[Step], bindings: &Bindings) -> Vec<u8> {
    let mut blocks = Vec::new();
    for step in steps {
        if let Command::Dispatch { parameters, .. } = &step.command {
            let end = blocks.len() + bindings.stride(parameters.len()) as usize;
            blocks.extend_from_slice(bytemuck::cast_slice(parameters));
            blocks.resize(end, 0);
        }
    }
    blocks
}
