//! WebGPU by way of `wgpu`: Vulkan, Metal, Direct3D 12 or a browser beneath.
//!
//! wgpu tracks how commands use buffers and places barriers by itself, so that [`Step::barrier`] has no meaning here.
//! A kernel's parameters are a uniform buffer, since browsers have no push constants.

mod adapter;
mod bind;
mod buffer;
mod copy;
mod encode;
mod guard;
mod kernel;
mod queue;
mod read;
#[cfg(test)]
mod testing;
mod timing;

use crate::device::DeviceInfo;
use crate::device::backend::{Backend, BufferId, Compiled, MemoryUse, ReadCallback, Step, Ticket};
use crate::error::{Error, Result};
use crate::shader::{Module, Target};
use buffer::Buffers;
use guard::{GuardedDevice, driver_error};
use kernel::Kernels;
use queue::BatchQueue;
use read::Reads;
use std::ops::Range;
use std::sync::Arc;

pub(crate) use adapter::list;

/// A WebGPU device.
///
/// Callbacks of reads run inside [`wait`](Backend::wait) and [`completed`](Backend::completed), and in a browser from
/// its event loop; never inside of `submit`, and never with anything locked.
pub(crate) struct WebGpuBackend {
    info: DeviceInfo,
    gpu: Arc<GuardedDevice>,
    buffers: Buffers,
    kernels: Kernels,
    queue: BatchQueue,
    reads: Arc<Reads>,
}

impl WebGpuBackend {
    /// Opens the device of an index in [`list`].
    pub(crate) async fn open(index: usize) -> Result<WebGpuBackend> {
        let adapter = adapter::find(index).await?;
        let info = adapter::describe(&adapter, index);
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("marquetry"),
            required_features: adapter::wgpu_features(&adapter),
            required_limits: adapter.limits(),
            // The crate's pool keeps and reuses buffers; wgpu need not hoard blocks beneath it.
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            ..Default::default()
        };
        let opened = adapter.request_device(&descriptor).await;
        let (device, queue) = opened.map_err(|error| driver_error("Adapter::request_device", error.to_string()))?;
        let gpu = Arc::new(GuardedDevice::new(device, info.name.clone()));
        Ok(WebGpuBackend {
            buffers: Buffers::new(Arc::clone(&gpu), info.limits.max_buffer_bytes),
            kernels: Kernels::new(Arc::clone(&gpu)),
            queue: BatchQueue::new(Arc::clone(&gpu), queue),
            reads: Arc::default(),
            info,
            gpu,
        })
    }

    /// Fails where there are no timestamps. In a browser nobody could wait for them, so that none are asked for.
    fn check_timestamps(&self) -> Result<()> {
        if self.info.features.timestamps {
            return Ok(());
        }
        Err(Error::Unsupported { feature: "timestamps".into(), device: self.info.to_string() })
    }

    /// Runs the callbacks of reads that are due, and reports what went wrong.
    fn after_poll(&self, polled: Result<()>) -> Result<()> {
        match self.gpu.check_lost() {
            Ok(()) => self.reads.finish_due(),
            Err(lost) => self.reads.fail(&lost),
        }
        polled.and_then(|()| self.gpu.check())
    }
}

impl Drop for WebGpuBackend {
    fn drop(&mut self) {
        self.reads.fail(&self.gpu.lost("it was closed"));
    }
}

impl Backend for WebGpuBackend {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn target(&self) -> Target {
        Target::WEBGPU
    }

    fn allocate(&self, bytes: u64, memory: MemoryUse) -> Result<BufferId> {
        self.buffers.allocate(bytes, memory)
    }

    fn free(&self, buffer: BufferId) {
        if self.buffers.free(buffer) {
            self.queue.forget_buffer(buffer);
        }
    }

    fn write(&self, buffer: BufferId, bytes: &[u8]) -> Result<()> {
        self.buffers.write(buffer, bytes)
    }

    /// WebGPU tells of no memory: 0, as [`DeviceInfo::memory`].
    fn budget(&self) -> u64 {
        self.info.memory
    }

    /// None. wgpu has pipeline caches where Vulkan is beneath only, and does not say whether one was of use; desktop
    /// drivers keep caches of their own, and the Vulkan backend is at hand where they do not.
    fn binary_key(&self, _: &Module) -> Option<String> {
        None
    }

    fn compile(&self, module: &Module, _: Option<&[u8]>) -> Result<Compiled> {
        self.gpu.check()?;
        let kernel = self.kernels.compile(module, &self.info)?;
        Ok(Compiled { kernel, binary: None, reused: false })
    }

    fn submit(&self, steps: &[Step], timed: bool) -> Result<Ticket> {
        self.gpu.check()?;
        if timed {
            self.check_timestamps()?;
        }
        self.queue.submit(steps, timed, &self.buffers, &self.kernels)
    }

    fn timings(&self, ticket: Ticket) -> Result<Vec<Range<u64>>> {
        self.gpu.check()?;
        self.check_timestamps()?;
        self.queue.timings.take(ticket)
    }

    fn completed(&self) -> Result<Ticket> {
        self.after_poll(self.gpu.poll(wgpu::PollType::Poll))?;
        Ok(self.queue.completed())
    }

    /// In a browser this returns at once: callbacks run when its event loop does.
    fn wait(&self, ticket: Ticket) -> Result<()> {
        self.after_poll(self.queue.wait(ticket))?;
        // Other threads may have polled a read that is due, and be about to call its callback.
        while cfg!(not(target_arch = "wasm32")) && !self.reads.have_ended(ticket) {
            self.after_poll(self.gpu.poll(wgpu::PollType::Poll))?;
        }
        Ok(())
    }

    fn read(&self, buffer: BufferId, bytes: u64, after: Ticket, done: ReadCallback) {
        match self.gpu.check_lost().and_then(|()| self.buffers.get(buffer, "read")) {
            Ok(buffer) => self.reads.begin(buffer, bytes, after, done),
            Err(error) => done(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{add, add_kernel, copy, download, open, read, upload};
    use super::*;
    use crate::device::backend::{Command, KernelId};
    use crate::device::{BackendKind, MemoryKind};

    #[test]
    fn bytes_come_back_from_the_device() {
        let backend = open();
        for bytes in [1_u64, 3, 4, 16, 1000, 4096, (1 << 20) + 13] {
            let size = bytes.next_multiple_of(16);
            let sent: Vec<u8> = (0..bytes).map(|i| (i * 31 + bytes) as u8).collect();
            let [staging, buffer, readback] =
                [MemoryUse::Upload, MemoryUse::Kernels(MemoryKind::Device), MemoryUse::Readback]
                    .map(|memory| backend.allocate(size, memory).unwrap());
            backend.write(staging, &sent).unwrap();
            let ticket = backend.submit(&[copy(staging, buffer, size), copy(buffer, readback, size)], false).unwrap();
            let received = read(&backend, readback, bytes, ticket);
            backend.wait(ticket).unwrap();
            assert!(received.try_recv().unwrap().unwrap() == sent, "{bytes} bytes");
            [staging, buffer, readback].into_iter().for_each(|id| backend.free(id));
        }
    }

    #[test]
    fn a_readback_buffer_serves_again() {
        let backend = open();
        let readback = backend.allocate(16, MemoryUse::Readback).unwrap();
        for value in [1.0_f32, 2.0, 3.0] {
            let source = upload(&backend, &[value; 4]);
            let ticket = backend.submit(&[copy(source, readback, 16)], false).unwrap();
            let received = read(&backend, readback, 4, ticket);
            backend.wait(ticket).unwrap();
            assert_eq!(received.try_recv().unwrap().unwrap(), value.to_le_bytes());
        }
    }

    #[test]
    fn a_read_that_begins_late_ends_in_the_next_wait() {
        let backend = open();
        let source = upload(&backend, &[7.0; 4]);
        let readback = backend.allocate(16, MemoryUse::Readback).unwrap();
        let ticket = backend.submit(&[copy(source, readback, 16)], false).unwrap();
        backend.wait(ticket).unwrap();
        let received = read(&backend, readback, 16, ticket);
        backend.wait(ticket).unwrap();
        assert_eq!(received.try_recv().unwrap().unwrap(), 7.0_f32.to_le_bytes().repeat(4));
    }

    #[test]
    fn a_kernel_adds_within_its_count() {
        let backend = open();
        let kernel = backend.compile(&add_kernel(0.5), None).unwrap().kernel;
        let values: Vec<f32> = (0..1000).map(|i| i as f32).collect();
        let (a, b) = (upload(&backend, &values), upload(&backend, &[2.0; 1000]));
        let y = upload(&backend, &[-1.0; 1000]);
        backend.submit(&[add(kernel, a, b, y, 997)], false).unwrap();
        let expected: Vec<f32> = (0..1000).map(|i| if i < 997 { i as f32 + 2.5 } else { -1.0 }).collect();
        assert_eq!(download(&backend, y, 1000), expected);
    }

    #[test]
    fn each_dispatch_sees_those_before_it_and_its_own_parameters() {
        let backend = open();
        let kernel = backend.compile(&add_kernel(0.0), None).unwrap().kernel;
        let ones = upload(&backend, &[1.0; 256]);
        let (x, y) = (upload(&backend, &[0.0; 256]), upload(&backend, &[0.0; 256]));
        // Round n leaves out the last n of 256 elements; copies break the compute pass in between.
        let mut steps = Vec::new();
        for n in 0..100 {
            steps.push(add(kernel, x, ones, y, 256 - n));
            steps.push(if n % 10 == 0 { copy(y, x, 1024) } else { add(kernel, y, ones, x, 256 - n) });
        }
        // Batches of several lengths, all submitted before the first one is waited for.
        let (first, rest) = steps.split_at(120);
        backend.submit(first, false).unwrap();
        for batch in rest.chunks(7) {
            backend.submit(batch, false).unwrap();
        }
        let got = download(&backend, x, 256);
        let mut expected = ([0.0_f32; 256], [0.0_f32; 256]);
        for n in 0..100 {
            let (x, y) = (&mut expected.0, &mut expected.1);
            (0..256 - n).for_each(|i| y[i] = x[i] + 1.0);
            if n % 10 == 0 {
                *x = *y;
            } else {
                (0..256 - n).for_each(|i| x[i] = y[i] + 1.0);
            }
        }
        assert_eq!(got, expected.0);
    }

    #[test]
    fn a_batch_may_have_more_parameters_than_any_before() {
        let backend = open();
        let kernel = backend.compile(&add_kernel(0.0), None).unwrap().kernel;
        let ones = upload(&backend, &[1.0; 4]);
        let (x, y) = (upload(&backend, &[0.0; 4]), upload(&backend, &[0.0; 4]));
        let there_and_back = [add(kernel, x, ones, y, 4), add(kernel, y, ones, x, 4)];
        backend.submit(&there_and_back, false).unwrap();
        // At 16 bytes or more apart these leave an arena of 64 KiB.
        let steps: Vec<_> = there_and_back.iter().cycle().take(5000).cloned().collect();
        backend.submit(&steps, false).unwrap();
        assert_eq!(download(&backend, x, 4), [5002.0; 4]);
    }

    #[test]
    fn one_buffer_may_be_read_at_two_bindings() {
        let backend = open();
        let kernel = backend.compile(&add_kernel(0.0), None).unwrap().kernel;
        let (x, y) = (upload(&backend, &[3.0; 64]), upload(&backend, &[0.0; 64]));
        backend.submit(&[add(kernel, x, x, y, 64)], false).unwrap();
        assert_eq!(download(&backend, y, 64), [6.0; 64]);
    }

    #[test]
    fn batches_complete_in_order() {
        let backend = open();
        let kernel = backend.compile(&add_kernel(0.0), None).unwrap().kernel;
        assert_eq!(backend.completed().unwrap(), Ticket(0));
        backend.wait(Ticket(0)).unwrap();
        let [a, b, y] = [(); 3].map(|()| backend.allocate(1 << 20, MemoryUse::Kernels(MemoryKind::Device)).unwrap());
        for number in 1..=50 {
            assert_eq!(backend.submit(&[add(kernel, a, b, y, 1 << 18)], false).unwrap(), Ticket(number));
        }
        backend.wait(Ticket(20)).unwrap();
        let mut last = backend.completed().unwrap();
        assert!(last >= Ticket(20));
        while last < Ticket(50) {
            let now = backend.completed().unwrap();
            assert!(now >= last && now <= Ticket(50));
            last = now;
        }
        backend.wait(Ticket(50)).unwrap();
        assert!(backend.wait(Ticket(51)).unwrap_err().to_string().contains("never submitted"));
    }

    #[test]
    fn an_empty_batch_completes() {
        let backend = open();
        let ticket = backend.submit(&[], false).unwrap();
        backend.wait(ticket).unwrap();
        assert_eq!(backend.completed().unwrap(), ticket);
    }

    #[test]
    fn threads_compile_submit_and_read_at_once() {
        let backend = open();
        std::thread::scope(|scope| {
            for thread in 0..8_u8 {
                let backend = &backend;
                scope.spawn(move || {
                    let constant = f32::from(thread);
                    let kernel = backend.compile(&add_kernel(constant), None).unwrap().kernel;
                    let ones = upload(backend, &[1.0; 128]);
                    for round in 1..=10_u8 {
                        let (x, y) = (upload(backend, &[constant; 128]), upload(backend, &[0.0; 128]));
                        let there_and_back = [add(kernel, x, ones, y, 128), add(kernel, y, ones, x, 128)];
                        let steps = there_and_back.iter().cycle().take(2 * usize::from(round));
                        backend.submit(&steps.cloned().collect::<Vec<_>>(), false).unwrap();
                        let expected = constant + f32::from(2 * round) * (1.0 + constant);
                        assert_eq!(download(backend, x, 128), [expected; 128]);
                        backend.free(x);
                        backend.free(y);
                    }
                });
            }
        });
    }

    #[test]
    fn memory_of_every_kind_is_the_device_s() {
        let backend = open();
        assert_eq!((backend.info().host_visible, backend.info().unified_memory), (false, false));
        assert_eq!((backend.info().memory, backend.budget()), (0, 0));
        let kernel = backend.compile(&add_kernel(0.0), None).unwrap().kernel;
        let x = upload(&backend, &[2.0; 4]);
        for kind in [MemoryKind::Device, MemoryKind::Shared, MemoryKind::Host] {
            let y = backend.allocate(16, MemoryUse::Kernels(kind)).unwrap();
            backend.submit(&[add(kernel, x, x, y, 4)], false).unwrap();
            assert_eq!(download(&backend, y, 4), [4.0; 4]);
            assert!(backend.write(y, &[0; 4]).is_err(), "the host reaches {kind} memory");
        }
    }

    #[test]
    fn a_device_without_timestamps_says_so() {
        let mut backend = open();
        backend.info.features.timestamps = false;
        for error in [backend.submit(&[], true).unwrap_err(), backend.timings(Ticket(1)).unwrap_err()] {
            assert!(matches!(&error, Error::Unsupported { feature, .. } if feature == "timestamps"), "{error}");
        }
        backend.submit(&[], false).unwrap();
    }

    #[test]
    fn opening_a_device_that_is_not_there_fails() {
        let error = pollster::block_on(WebGpuBackend::open(99)).err().unwrap();
        assert!(matches!(error, Error::BackendUnavailable { backend: BackendKind::WebGpu, .. }), "{error}");
    }

    #[test]
    fn misuse_is_an_error_and_leaves_the_device_working() {
        let backend = open();
        let kernel = backend.compile(&add_kernel(0.0), None).unwrap().kernel;
        let (x, y) = (upload(&backend, &[1.0; 4]), upload(&backend, &[0.0; 4]));
        let gone = BufferId(1 << 40);
        let mut without_parameters = add(kernel, x, x, y, 4);
        if let Command::Dispatch { parameters, .. } = &mut without_parameters.command {
            parameters.clear();
        }
        let refused = [
            (add(KernelId(9), x, x, y, 4), "no kernel 9"),
            (add(kernel, x, gone, y, 4), "no buffer"),
            (copy(x, gone, 16), "no buffer"),
            (without_parameters, "0 parameter words"),
            (copy(x, x, 16), "buffer"),
            (copy(x, y, 32), "ends at byte 32"),
            (add(kernel, x, y, y, 4), "conflict"),
        ];
        for (step, expected) in refused {
            let error = backend.submit(&[add(kernel, x, x, y, 4), step.clone()], false).unwrap_err().to_string();
            assert!(error.contains(expected), "{step:?}: {error}");
        }
        let ticket = backend.submit(&[add(kernel, x, x, y, 4)], false).unwrap();
        assert!(read(&backend, gone, 4, ticket).try_recv().unwrap().is_err());
        assert!(read(&backend, y, 32, ticket).try_recv().unwrap().is_err());
        assert!(backend.write(gone, &[0; 4]).is_err());
        assert!(backend.write(y, &[0; 4]).is_err());
        backend.free(gone);
        assert_eq!(download(&backend, y, 4), [2.0; 4]);
    }

    #[test]
    fn memory_that_there_is_not_is_an_error() {
        let backend = open();
        let held = backend.allocate(1 << 20, MemoryUse::Kernels(MemoryKind::Device)).unwrap();
        let limit = backend.info().limits.max_buffer_bytes;
        match backend.allocate(limit + 16, MemoryUse::Kernels(MemoryKind::Device)).unwrap_err() {
            Error::OutOfMemory { requested, in_use, limit: told } => {
                assert_eq!((requested, in_use, told), (limit + 16, 1 << 20, limit));
            }
            other => panic!("{other}"),
        }
        backend.free(held);
        let error = backend.allocate(1 << 50, MemoryUse::Readback).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { in_use: 0, .. }), "{error}");
    }

    #[test]
    fn an_upload_buffer_is_written_once() {
        let backend = open();
        let staging = backend.allocate(16, MemoryUse::Upload).unwrap();
        assert!(backend.write(staging, &[0; 17]).is_err());
        backend.write(staging, &[1; 16]).unwrap();
        assert!(backend.write(staging, &[2; 16]).unwrap_err().to_string().contains("written before"));
    }

    #[test]
    fn a_lost_device_fails_every_call_and_every_read() {
        let backend = open();
        let source = upload(&backend, &[1.0; 4]);
        let readback = backend.allocate(16, MemoryUse::Readback).unwrap();
        let ticket = backend.submit(&[copy(source, readback, 16)], false).unwrap();
        let received = read(&backend, readback, 16, ticket);
        backend.gpu.device.destroy();
        let lost = |error: Error| assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
        // wgpu tells of it when the batch has run.
        let failed = std::iter::repeat_with(|| backend.completed()).find_map(Result::err);
        lost(failed.unwrap());
        assert!(received.try_recv().is_ok(), "the callback has been called");
        lost(backend.allocate(16, MemoryUse::Kernels(MemoryKind::Device)).unwrap_err());
        lost(backend.write(readback, &[0; 4]).unwrap_err());
        lost(backend.compile(&add_kernel(0.0), None).unwrap_err());
        lost(backend.submit(&[], false).unwrap_err());
        lost(backend.wait(ticket).unwrap_err());
        lost(backend.timings(ticket).unwrap_err());
        lost(read(&backend, readback, 16, ticket).try_recv().unwrap().unwrap_err());
        backend.free(readback);
    }

    #[test]
    fn a_read_ends_when_its_device_is_closed() {
        let backend = open();
        let readback = backend.allocate(16, MemoryUse::Readback).unwrap();
        let received = read(&backend, readback, 16, Ticket(0));
        drop(backend);
        assert!(matches!(received.try_recv().unwrap(), Err(Error::DeviceLost { .. })));
    }

    #[test]
    fn an_error_that_no_call_returned_comes_with_the_next_one() {
        let backend = open();
        let mapped = backend.allocate(16, MemoryUse::Upload).unwrap();
        backend.buffers.get(mapped, "test").unwrap().unmap();
        backend.buffers.get(mapped, "test").unwrap().unmap();
        assert!(matches!(backend.completed().unwrap_err(), Error::Validation { .. }));
        backend.completed().unwrap();
    }
}
