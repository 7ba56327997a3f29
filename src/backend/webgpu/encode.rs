//! Encodes batches as wgpu's commands.

use super::bind::Bindings;
use super::buffer::BufferMap;
use super::copy::copy_region;
use super::guard::driver_error;
use super::kernel::WebGpuKernel;
use super::timing::Stamps;
use crate::backend::contract::{BufferId, Command, KernelId, Step};
use crate::base::error::Result;

/// Encodes a batch. wgpu tracks how each step uses its buffers and places the barriers.
pub(super) struct BatchEncoder<'a> {
    /// The pass of the dispatches before this step. A copy ends it, and so does each timed step. It is declared before
    /// its encoder, so it is dropped first.
    open_pass: Option<wgpu::ComputePass<'static>>,
    encoder: wgpu::CommandEncoder,
    buffers: &'a BufferMap,
    kernels: &'a [WebGpuKernel],
    bindings: &'a mut Bindings,
    /// Where the next parameter block is in the arena.
    block_offset: u32,
    /// Set if the batch is timed.
    stamps: Option<&'a Stamps>,
}

impl<'a> BatchEncoder<'a> {
    pub fn new(
        device: &wgpu::Device,
        buffers: &'a BufferMap,
        kernels: &'a [WebGpuKernel],
        bindings: &'a mut Bindings,
        stamps: Option<&'a Stamps>,
    ) -> BatchEncoder<'a> {
        let encoder = device.create_command_encoder(&Default::default());
        BatchEncoder { open_pass: None, encoder, buffers, kernels, bindings, block_offset: 0, stamps }
    }

    pub fn encode(mut self, steps: &[Step]) -> Result<wgpu::CommandBuffer> {
        for (index, step) in steps.iter().enumerate() {
            if self.stamps.is_some() || matches!(step.command, Command::CopyRegion { .. }) {
                self.open_pass = None;
            }
            match &step.command {
                Command::Dispatch { kernel, buffers, parameters, groups } => {
                    self.dispatch(index, *kernel, buffers, parameters, *groups)?;
                }
                Command::CopyRegion { src, dst, region } => {
                    let (src, dst) = (self.buffers.find(*src, "submit")?, self.buffers.find(*dst, "submit")?);
                    if let Some(stamps) = self.stamps {
                        stamps.start(&mut self.encoder, index);
                    }
                    copy_region(&mut self.encoder, src, dst, region)?;
                    if let Some(stamps) = self.stamps {
                        stamps.end(&mut self.encoder, index);
                    }
                }
                Command::Run(program) => return Err(driver_error("submit", format!("{program:?} does not exist"))),
            }
        }
        self.open_pass = None;
        if let Some(stamps) = self.stamps {
            stamps.resolve(&mut self.encoder);
        }
        Ok(self.encoder.finish())
    }

    fn dispatch(
        &mut self,
        index: usize,
        id: KernelId,
        buffers: &[BufferId],
        parameters: &[u32],
        [x, y, z]: [u32; 3],
    ) -> Result<()> {
        let kernel = self.kernels.get(id.0 as usize);
        let kernel = kernel.ok_or_else(|| driver_error("submit", format!("there is no kernel {}", id.0)))?;
        kernel.check_arguments(buffers.len(), parameters.len())?;
        let uniform_words = kernel.uniform_words();
        let offsets: &[u32] = if uniform_words == 0 { &[] } else { &[self.block_offset] };
        self.block_offset += self.bindings.stride(uniform_words) as u32;
        let group = self.bindings.group(id, kernel, buffers, self.buffers)?;
        let pass = self.open_pass.get_or_insert_with(|| {
            let timestamp_writes = self.stamps.map(|stamps| stamps.of_pass(index));
            let descriptor = wgpu::ComputePassDescriptor { label: None, timestamp_writes };
            self.encoder.begin_compute_pass(&descriptor).forget_lifetime()
        });
        pass.set_pipeline(kernel.pipeline());
        pass.set_bind_group(0, group, offsets);
        if uniform_words < parameters.len() {
            pass.set_immediates(0, bytemuck::cast_slice(parameters));
        }
        pass.dispatch_workgroups(x, y, z);
        Ok(())
    }
}
