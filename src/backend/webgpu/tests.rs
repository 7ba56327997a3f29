//! Tests of this backend alone; `contract_tests.rs` tests the contract. Without a device, these tests fail.

use super::*;
use crate::backend::contract_tests::{
    assert_computes, assert_lost, compile_add, copy, dispatch, download, is_child, read, read_now, told, upload,
};
use crate::backend::info::{DeviceKind, MemoryKind};
use crate::base::backend_kind::BackendKind;

/// Opens the first device.
pub(super) fn open() -> WebGpuBackend {
    pollster::block_on(WebGpuBackend::open(0)).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn opening_a_device_that_is_not_there_fails() {
    let error = pollster::block_on(WebGpuBackend::open(99)).err().unwrap();
    assert!(matches!(error, Error::BackendUnavailable { backend: BackendKind::WebGpu, .. }), "{error}");
}

#[test]
fn memory_of_every_kind_is_the_device_s() {
    let backend = open();
    // If wgpu opens the device by itself, or it has memory of its own, the host reaches only staging buffers.
    let visible = backend.gpu.takes_spirv() && backend.info().kind == DeviceKind::Cpu;
    assert_eq!((backend.info().host_visible, backend.info().unified_memory), (visible, visible));
    assert_eq!((backend.info().memory, backend.budget()), (0, 0));
    for kind in [MemoryKind::Device, MemoryKind::Shared, MemoryKind::Host] {
        let buffer = backend.allocate(16, MemoryUse::Kernels(kind)).unwrap();
        assert_eq!(backend.write(buffer, 0, &[0; 4]).is_ok(), visible, "whether the host reaches {kind} memory");
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
fn a_buffer_that_a_kernel_reads_and_writes_by_two_bindings_is_refused() {
    let backend = open();
    let kernel = compile_add(&backend);
    let [x, y] = [[1.0; 4], [0.0; 4]].map(|data| upload(&backend, &data));
    let good = dispatch(kernel, [x, x, y], 4, false);
    let error = backend.submit(&[good.clone(), dispatch(kernel, [x, y, y], 4, true)], false).unwrap_err();
    assert!(error.to_string().contains("conflict"), "{error}");
    backend.submit(&[good], false).unwrap();
    assert_eq!(download(&backend, y, 4), [2.0; 4]);
}

/// wgpu hands out its own upload buffers once.
#[test]
fn upload_buffers_are_written_again_if_the_host_reaches_them() {
    let backend = open();
    let staging = backend.allocate(16, MemoryUse::Upload).unwrap();
    backend.write(staging, 0, &[1; 16]).unwrap();
    let again = backend.write(staging, 0, &[2; 16]);
    assert_eq!(backend.rewrites_uploads(), backend.gpu.takes_spirv());
    if !backend.rewrites_uploads() {
        return assert!(again.unwrap_err().to_string().contains("written before"));
    }
    again.unwrap();
    let [readback, beyond] = [16, 32].map(|bytes| backend.allocate(bytes, MemoryUse::Readback).unwrap());
    let ticket = backend.submit(&[copy(staging, readback, 16, false)], false).unwrap();
    assert_eq!(read_now(&backend, readback, 16, ticket), [2; 16]);
    #[cfg(wgpu_on_vulkan)]
    {
        // The batch had to make its copy visible to the host. A batch whose results stay on a GPU has not.
        let before = hooks::HOST_BARRIERS.get();
        assert!(before > 0, "a batch ends with a barrier for the host");
        let [x, y] = [[1.0; 4], [0.0; 4]].map(|data| upload(&backend, &data));
        let before = hooks::HOST_BARRIERS.get();
        backend.submit(&[copy(x, y, 16, false)], false).unwrap();
        assert_eq!(hooks::HOST_BARRIERS.get() > before, backend.info().host_visible);
    }
    assert!(backend.write(staging, 8, &[3; 9]).unwrap_err().to_string().contains("17 bytes of a buffer of 16"));
    let error = told(&read(&backend, beyond, 33, ticket)).unwrap_err().to_string();
    assert!(error.contains("33 bytes of a buffer of 32"), "{error}");
    assert!(backend.read_now(beyond, 32, ticket, &mut [0; 4]).is_err());
}

/// On a GPU the host reads only copies.
#[test]
fn copies_to_the_host_are_known() {
    let backend = open();
    let gpu = Arc::clone(&backend.gpu);
    let of_a_gpu = Buffers::new(gpu, backend.info().limits.max_buffer_bytes, false);
    let kernels = MemoryUse::Kernels(MemoryKind::Device);
    let [x, y, readback] = [kernels, kernels, MemoryUse::Readback].map(|memory| of_a_gpu.allocate(16, memory).unwrap());
    let [between, back] = [y, readback].map(|to| copy(x, to, 16, false));
    let reads = |steps: &[Step]| of_a_gpu.host_reads(steps);
    assert!(!reads(&[]) && !reads(std::slice::from_ref(&between)));
    assert_eq!(reads(&[between, back]), backend.gpu.takes_spirv());
}

/// Runs without validation, under which closing a device destroys it.
#[test]
fn a_closed_device_is_opened_again() {
    if !is_child(concat!(module_path!(), "::a_closed_device_is_opened_again"), "0") {
        return;
    }
    let (first, second) = (open(), open());
    let [one, other] = [&first, &second].map(|backend| backend.gpu.device.clone());
    assert_ne!(one, other);
    assert_computes(&first);
    drop(first);
    let again = open();
    assert_eq!(again.gpu.device, one);
    assert_computes(&again);
    assert_computes(&second);
    one.destroy();
    _ = std::iter::repeat_with(|| again.completed()).find_map(Result::err).unwrap();
    drop((again, second));
    assert_eq!(open().gpu.device, other, "what was lost is not opened again");
}

#[test]
fn a_lost_device_fails_every_call_and_every_read() {
    let backend = open();
    let source = upload(&backend, &[1.0; 4]);
    let readback = backend.allocate(16, MemoryUse::Readback).unwrap();
    let ticket = backend.submit(&[copy(source, readback, 16, false)], false).unwrap();
    let received = read(&backend, readback, 16, ticket);
    backend.gpu.device.destroy();
    // wgpu reports it when the batch has run.
    let failed = std::iter::repeat_with(|| backend.completed()).find_map(Result::err).unwrap();
    assert!(matches!(failed, Error::DeviceLost { .. }), "{failed}");
    assert!(received.try_recv().is_ok(), "the callback has been called");
    assert_lost(&backend, readback);
}

#[test]
fn an_error_that_no_call_returned_comes_with_the_next_one() {
    let backend = open();
    let staging = backend.allocate(16, MemoryUse::Upload).unwrap();
    let (buffer, _) = backend.buffers.get(staging, "test").unwrap();
    // One of them is not mapped.
    buffer.unmap();
    buffer.unmap();
    let readback = backend.allocate(16, MemoryUse::Readback).unwrap();
    // A read polls, and keeps the error for a call that can return it.
    let _answer = read(&backend, readback, 16, Ticket(0));
    assert!(matches!(backend.completed().unwrap_err(), Error::Validation { .. }));
    backend.completed().unwrap();
}
