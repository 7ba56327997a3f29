//! Tests of this backend alone; `contract_tests.rs` tests the contract. Without a device, these tests fail.

use super::*;
use crate::backend::contract::{MemoryUse, Step, Ticket};
use crate::backend::contract_tests::{
    add_kernel, allocate, assert_computes, assert_lost, compile, compile_add, copies_run_beside_batches, copy,
    dispatch, download, is_child, read, run_again, told, upload, upload_bytes,
};
use crate::base::error::Error;
use crate::shader::{Code, Module};
use ash::vk;

/// Opens the first device.
pub(super) fn open() -> VulkanBackend {
    VulkanBackend::open(0).unwrap()
}

/// Software devices have no family that only copies. In another process the queue for kernels stands in for one.
#[test]
fn a_queue_copies_beside_batches() {
    const CHILD: &str = "MARQUETRY_TEST_COPIES_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return copies_run_beside_batches(&open());
    }
    let test = concat!(module_path!(), "::a_queue_copies_beside_batches");
    run_again(test, &[("MARQUETRY_FORCE", "copy-queue"), ("MARQUETRY_VALIDATION", "1"), (CHILD, "1")]);
    if open().device.adapter.copy_family.is_some() {
        run_again(test, &[("MARQUETRY_VALIDATION", "1"), (CHILD, "1")]);
    }
}

#[test]
fn every_listed_device_is_described() {
    let devices = VulkanBackend::list().unwrap();
    assert!(!devices.is_empty());
    for (index, device) in devices.iter().enumerate() {
        assert_eq!((device.backend, device.index), (BackendKind::Vulkan, index));
        assert!(!device.name.is_empty() && !device.driver.is_empty() && device.memory > 0, "{device:?}");
        let limits = &device.limits;
        assert!(limits.max_buffer_bytes >= 1 << 27 && limits.max_buffer_bytes.is_multiple_of(16), "{device:?}");
        assert!(limits.max_bindings >= 4 && limits.max_parameter_words >= 32, "{device:?}");
        assert!(limits.max_workgroup_invocations >= 128 && limits.max_workgroup_memory >= 16_384, "{device:?}");
        assert!(limits.max_groups >= 65_535, "{device:?}");
        assert!(device.host_visible && device.compute_units != Some(0), "{device:?}");
        let local = device.memory_regions.iter().filter(|region| region.device_local);
        assert_eq!(local.map(|region| region.bytes).max(), Some(device.memory), "{device:?}");
        assert!(!limits.subgroup_sizes.is_empty() && limits.subgroup_sizes.is_sorted(), "{device:?}");
    }
    assert_eq!(open().info(), &devices[0]);
}

#[test]
fn an_index_out_of_range_is_refused_with_the_number_of_devices() {
    let error = VulkanBackend::open(1000).err().unwrap();
    let count = VulkanBackend::list().unwrap().len();
    assert!(matches!(error, Error::BackendUnavailable { .. }));
    assert!(error.to_string().contains(&format!("the number of devices is {count}")), "{error}");
}

#[test]
fn the_budget_is_some_of_the_memory() {
    let backend = open();
    assert!((1..=backend.info().memory).contains(&backend.budget()), "{}", backend.budget());
}

#[test]
fn a_kernel_is_entered_where_its_module_says() {
    let backend = open();
    let add = add_kernel(&backend, 0.0);
    let [name, other] = [b"main", b"also"].map(|name| u32::from_le_bytes(*name));
    let renamed = add.spirv().unwrap().iter().map(|&word| if word == name { other } else { word }).collect();
    let other = Module { code: Code::Spirv(renamed), entry_point: "also".into(), ..add };
    let kernel = compile(&backend, &other);
    let [a, sum] = [[1.0; 4], [0.0; 4]].map(|data| upload(&backend, &data));
    backend.submit(&[dispatch(kernel, [a, a, sum], 4, false)], false).unwrap();
    assert_eq!(download(&backend, sum, 4), [2.0; 4]);
    let error = backend.compile(&Module { entry_point: "a\0b".into(), ..other }, None).unwrap_err();
    assert!(matches!(error, Error::Kernel { .. }), "{error}");
}

#[test]
fn a_kernel_given_as_wgsl_is_refused() {
    let backend = open();
    let module = Module { code: Code::Wgsl("fn main() {}".into()), ..add_kernel(&backend, 0.0) };
    let error = backend.compile(&module, None).unwrap_err();
    assert!(matches!(error, Error::Kernel { .. }), "{error}");
}

/// If a device cannot check bounds for a single kernel, this only runs a kernel that keeps within them.
#[test]
fn a_kernel_that_is_not_trusted_leaves_other_buffers_alone() {
    let backend = open();
    let kernel = compile(&backend, &Module { trusted: false, ..add_kernel(&backend, 0.0) });
    let count = if backend.device.adapter.extensions.pipeline_robustness { 4096 } else { 64 };
    let buffers: Vec<_> = (0..8).map(|i| upload(&backend, &[i as f32; 64])).collect();
    backend.submit(&[dispatch(kernel, [buffers[3], buffers[3], buffers[4]], count, false)], false).unwrap();
    for (i, buffer) in buffers.iter().enumerate() {
        // The kernel reads buffer 3 and adds it to itself. What it writes beyond the end may land within buffer 4.
        let found = download(&backend, *buffer, 64);
        let expected = if i == 4 { vec![0.0, 3.0, 6.0] } else { vec![i as f32] };
        assert!(found.iter().all(|value| expected.contains(value)), "{i}: {found:?}");
    }
}

#[test]
fn a_binary_spares_the_compiler_or_is_told_anew() {
    let backend = open();
    let module = add_kernel(&backend, 0.0);
    let key = backend.binary_key(&module);
    assert_eq!(key, open().binary_key(&module));
    let first = backend.compile(&module, None).unwrap();
    assert!(key.is_some() || first.binary.is_none(), "a binary without a key");
    let binary = first.binary.unwrap_or_default();
    let mut of_another_driver = binary.clone();
    of_another_driver.iter_mut().skip(16).take(16).for_each(|byte| *byte ^= 1);
    let given = [&binary[..], &of_another_driver, &[], &[0xff; 100]];
    let [a, sum] = [[1.0; 4], [0.0; 4]].map(|data| upload(&backend, &data));
    for (i, binary) in given.into_iter().enumerate() {
        let compiled = open().compile(&module, Some(binary)).unwrap();
        assert!(!compiled.reused || compiled.binary.is_none(), "{i}");
        assert!(i == 0 || !compiled.reused, "{i}");
        let kernel = backend.compile(&module, Some(binary)).unwrap().kernel;
        backend.submit(&[dispatch(kernel, [a, a, sum], 4, false)], false).unwrap();
        assert_eq!(download(&backend, sum, 4), [2.0; 4], "{i}");
    }
}

/// Runs without validation, under which closing a device destroys it.
#[test]
fn a_closed_device_is_opened_again() {
    if !is_child(concat!(module_path!(), "::a_closed_device_is_opened_again"), "0") {
        return;
    }
    let (first, second) = (open(), open());
    let [one, other] = [&first, &second].map(|backend| backend.device.raw.handle());
    assert_ne!(one, other);
    assert_computes(&first);
    drop(first);
    let again = open();
    assert_eq!(again.device.raw.handle(), one);
    assert_computes(&again);
    assert_computes(&second);
    _ = again.device.error("test", vk::Result::ERROR_DEVICE_LOST);
    drop((again, second));
    assert_eq!(open().device.raw.handle(), other, "what was lost is not opened again");
}

#[test]
fn validation_reports_a_missing_barrier() {
    if !is_child(concat!(module_path!(), "::validation_reports_a_missing_barrier"), "True") {
        return;
    }
    let backend = open();
    let kernel = compile_add(&backend);
    let [a, b, c, d, e] = allocate(&backend, 1024);
    let copies = |barrier| vec![copy(a, b, 1024, false), copy(b, c, 1024, barrier)];
    let dispatches = |barrier| vec![dispatch(kernel, [a, a, b], 256, false), dispatch(kernel, [b, a, c], 256, barrier)];
    for hazard in [&copies as &dyn Fn(bool) -> Vec<Step>, &dispatches] {
        let error = backend.submit(&hazard(false), false).unwrap_err();
        assert!(matches!(&error, Error::Validation { message } if message.contains("SYNC-HAZARD")), "{error}");
        let ticket = backend.submit(&hazard(true), false).unwrap();
        backend.wait(ticket).unwrap();
    }
    // One copy reads what a kernel wrote before a barrier that only kernels wait for.
    let mixed = [
        copy(a, b, 1024, false),
        dispatch(kernel, [b, a, c], 256, true),
        dispatch(kernel, [c, a, d], 256, true),
        copy(c, e, 1024, false),
        copy(d, b, 1024, true),
    ];
    let ticket = backend.submit(&mixed, false).unwrap();
    backend.wait(ticket).unwrap();
}

#[test]
fn timings_of_a_batch_that_has_not_run_are_refused() {
    let backend = open();
    let [a, b] = [vec![0; 1 << 24], vec![1; 1 << 24]].map(|data| upload_bytes(&backend, &data));
    let ticket = backend.submit(&vec![copy(a, b, 1 << 24, true); 50], true).unwrap();
    // 800 MiB are still in flight.
    assert!(backend.timings(ticket).is_err());
    backend.wait(ticket).unwrap();
    assert_eq!(backend.timings(ticket).unwrap().len(), 50);
}

#[test]
fn a_lost_device_refuses_everything_and_answers_its_reads() {
    let backend = open();
    let staging = backend.allocate(16, MemoryUse::Readback).unwrap();
    let pending = read(&backend, staging, 16, Ticket(1));
    let error = backend.device.error("vkQueueSubmit", vk::Result::ERROR_DEVICE_LOST);
    assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
    // The first call that fails answers the read.
    backend.submit(&[], false).unwrap_err();
    assert!(matches!(told(&pending).unwrap_err(), Error::DeviceLost { .. }));
    assert_lost(&backend, staging);
}
