//! Tests of this backend alone; `contract_tests.rs` tests the contract. Without a device, these tests fail.

use super::*;
use crate::backend::contract::{MemoryUse, Ticket};
use crate::backend::contract_tests::{
    add_kernel, allocate, assert_lost, compile, copies_run_beside_batches, dispatch, download, read, run_again, told,
    upload,
};
use crate::base::error::Error;
use crate::shader::{Access, Code, Module};

/// Opens the first device.
pub(super) fn open() -> LevelZeroBackend {
    LevelZeroBackend::open(0).unwrap_or_else(|error| panic!("a Level Zero device: run `make setup` ({error})"))
}

#[test]
fn every_listed_device_is_described() {
    let devices = LevelZeroBackend::list().unwrap();
    assert!(!devices.is_empty());
    for (index, device) in devices.iter().enumerate() {
        assert_eq!((device.backend, device.index), (BackendKind::LevelZero, index));
        assert!(!device.name.is_empty() && !device.vendor.is_empty() && device.memory > 0, "{device:?}");
        assert!(device.driver.starts_with("Level Zero 1."), "{device:?}");
        assert!(device.memory_regions.iter().any(|region| region.bytes == device.memory && region.device_local));
        assert!(device.compute_units.is_some_and(|units| units > 0), "{device:?}");
        let limits = &device.limits;
        assert!(limits.max_buffer_bytes >= 1 << 27 && limits.max_buffer_bytes.is_multiple_of(16), "{device:?}");
        assert!(limits.max_bindings >= 16 && limits.max_parameter_words >= 64, "{device:?}");
        assert!(limits.max_workgroup_invocations >= 128 && limits.max_workgroup_memory >= 16_384, "{device:?}");
        assert!(limits.max_groups >= 65_535 && limits.copy_alignment == 1, "{device:?}");
        assert_eq!(device.features.subgroups, !limits.subgroup_sizes.is_empty(), "{device:?}");
        assert!(limits.subgroup_sizes.is_sorted(), "{device:?}");
        assert!(device.features.timestamps && device.host_visible, "{device:?}");
    }
    let backend = open();
    assert_eq!(backend.info(), &devices[0]);
    assert_eq!(backend.budget(), devices[0].memory);
}

#[test]
fn an_index_out_of_range_is_refused_with_the_number_of_devices() {
    let error = LevelZeroBackend::open(1000).err().unwrap();
    let count = LevelZeroBackend::list().unwrap().len();
    assert!(matches!(error, Error::BackendUnavailable { .. }));
    assert!(error.to_string().contains(&format!("the number of devices is {count}")), "{error}");
}

/// The test driver's device is integrated. In another process it is discrete.
#[test]
fn the_host_does_not_reach_a_discrete_devices_own_memory() {
    const CHILD: &str = "MARQUETRY_TEST_DISCRETE_CHILD";
    let backend = open();
    let [own] = allocate(&backend, 16);
    if backend.info().unified_memory {
        assert!(std::env::var_os(CHILD).is_none(), "a discrete device");
        backend.write(own, 0, &[7; 4]).unwrap();
        assert_eq!(told(&read(&backend, own, 4, Ticket(0))).unwrap(), [7; 4]);
        let test = concat!(module_path!(), "::the_host_does_not_reach_a_discrete_devices_own_memory");
        return run_again(test, &[("LEVEL_ZERO_TEST_DISCRETE", "1"), (CHILD, "1")]);
    }
    assert!(!backend.host_reads_device_memory());
    assert!(matches!(backend.write(own, 0, &[0; 4]).unwrap_err(), Error::InvalidArgument { op: "write", .. }));
    let answer = told(&read(&backend, own, 4, Ticket(0)));
    assert!(matches!(answer.unwrap_err(), Error::InvalidArgument { op: "read", .. }));
}

#[test]
fn the_copy_engine_runs_beside_the_compute_engine() {
    // The test driver has a group for copies.
    copies_run_beside_batches(&open());
}

#[test]
fn a_kernel_that_is_not_as_it_is_described_is_refused() {
    let backend = open();
    let add = add_kernel(&backend, 0.0);
    let wrong = [
        (Module { entry_point: "other".into(), ..add.clone() }, "zeKernelCreate failed"),
        (Module { entry_point: "nul\0".into(), ..add.clone() }, "is no name"),
        (Module { parameter_words: 2, ..add.clone() }, "takes 4 arguments, but 3 buffers and 2 parameter words"),
        (
            Module { bindings: add.bindings[..2].to_vec(), parameter_words: 2, ..add.clone() },
            "does not take 4 bytes as argument 2",
        ),
        (Module { bindings: vec![Access::Read], ..add.clone() }, "takes 4 arguments, but 1 buffers"),
        (Module { code: Code::Wgsl(String::new()), ..add.clone() }, "WGSL"),
        (Module { code: Code::Spirv(vec![0; 8]), ..add.clone() }, "zeModuleCreate failed"),
    ];
    for (module, expected) in wrong {
        let error = backend.compile(&module, None).unwrap_err();
        assert!(matches!(&error, Error::Kernel { kernel, .. } if kernel == "add"), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn a_kept_binary_spares_the_compiler_and_a_useless_one_does_no_harm() {
    let backend = open();
    let add = add_kernel(&backend, 0.0);
    let first = backend.compile(&add, None).unwrap();
    assert!(!first.reused);
    let binary = first.binary.unwrap();
    let again = backend.compile(&add, Some(&binary)).unwrap();
    assert!(again.reused && again.binary.is_none());
    let broken = backend.compile(&add, Some(&[7; 100])).unwrap();
    assert!(!broken.reused && broken.binary.is_some());
    let [x, y] = [[1.0; 4], [2.0; 4]].map(|data| upload(&backend, &data));
    for kernel in [first.kernel, again.kernel, broken.kernel] {
        backend.submit(&[dispatch(kernel, [x, y, y], 4, false)], false).unwrap();
    }
    assert_eq!(download(&backend, y, 4), [5.0; 4]);

    let keys = [
        add.clone(),
        Module { large_buffers: true, ..add.clone() },
        Module { large_registers: true, ..add.clone() },
        Module { large_buffers: true, large_registers: true, ..add.clone() },
    ]
    .map(|module| backend.binary_key(&module).unwrap());
    assert!(keys.iter().all(|key| key.contains(&backend.info().name)), "{keys:?}");
    assert!((1..4).all(|i| !keys[..i].contains(&keys[i])), "{keys:?}");
    let flagged = Module { large_buffers: true, large_registers: true, ..add };
    compile(&backend, &flagged);
}

#[test]
fn a_lost_device_refuses_everything_and_answers_its_reads() {
    let backend = open();
    let staging = backend.allocate(16, MemoryUse::Readback).unwrap();
    let pending = read(&backend, staging, 16, Ticket(1));
    let call = "zeCommandQueueExecuteCommandLists";
    let error = backend.device.error(call, ffi::ResultCode::ERROR_DEVICE_LOST);
    assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
    // The first call that fails answers the read.
    let error = backend.submit(&[], false).unwrap_err();
    assert!(error.to_string().contains(&format!("{call} reported it")), "{error}");
    assert!(matches!(told(&pending).unwrap_err(), Error::DeviceLost { .. }));
    assert_lost(&backend, staging);
}

/// The loader of Debian 12 has no in-order lists. So this runs all tests of the backend in another process, on the test
/// driver without a loader, which has them.
#[test]
fn in_order_lists_keep_the_contract_too() {
    const CHILD: &str = "MARQUETRY_TEST_IN_ORDER_CHILD";
    if std::env::var_os(CHILD).is_some() {
        assert!(open().device.adapter.in_order);
        return;
    }
    let driver = std::env::var_os("ZE_ENABLE_ALT_DRIVERS").expect("the test driver: run `make test`");
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["backend::level_zero::", "backend::contract_tests::level_zero::", "--test-threads=2"])
        .env("MARQUETRY_LEVEL_ZERO_LIBRARY", driver)
        .env(CHILD, "1")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    let ran = [
        "level_zero::tests::in_order_lists_keep_the_contract_too",
        "contract_tests::level_zero::an_empty_batch_completes",
    ];
    let passed = child.status.success() && ran.iter().all(|test| output.contains(&format!("{test} ... ok")));
    assert!(passed, "{output}\n{}", String::from_utf8_lossy(&child.stderr));
}
