//! The contract, kept on the machine's first Level Zero device. Without one, these tests fail.

use super::*;
use crate::device::backend::{Command, KernelId, Pitch, Region};
use crate::device::{BackendKind, Features, MemoryKind};
use crate::profile;
use crate::shader::{Access, Code, KernelBuilder, Type};
use proptest::prelude::*;
use std::sync::mpsc;

/// Invocations per workgroup of the test kernel.
const GROUP: u32 = 64;

const DEVICE: MemoryUse = MemoryUse::Kernels(MemoryKind::Device);
const SHARED: MemoryUse = MemoryUse::Kernels(MemoryKind::Shared);
const HOST: MemoryUse = MemoryUse::Kernels(MemoryKind::Host);

/// The first device.
pub(super) fn open() -> LevelZeroBackend {
    LevelZeroBackend::open(0).unwrap_or_else(|error| panic!("a Level Zero device: run `make setup` ({error})"))
}

/// A kernel for `y[i] = a[i] + b[i]` where `i < count`, `count` being the one parameter.
fn add_kernel() -> Module {
    let k = KernelBuilder::new("add", Target::LEVEL_ZERO, GROUP);
    let count = k.parameter(Type::U32);
    let [a, b] = ["a", "b"].map(|name| k.buffer(name, Type::F32, Access::Read));
    let y = k.buffer("y", Type::F32, Access::Write);
    let i = k.global_index();
    k.when(i.lt(count), || y.store(i, a.load(i) + b.load(i)));
    k.finish().unwrap()
}

fn compile(backend: &LevelZeroBackend, module: &Module) -> KernelId {
    backend.compile(module, None).unwrap().kernel
}

fn dispatch(kernel: KernelId, buffers: [BufferId; 3], count: u32, barrier: bool) -> Step {
    let groups = [count.div_ceil(GROUP), 1, 1];
    let command =
        Command::Dispatch { kernel, buffers: buffers.as_slice().into(), parameters: [count].as_slice().into(), groups };
    Step { command, barrier }
}

fn copy(src: BufferId, dst: BufferId, bytes: u64, barrier: bool) -> Step {
    Step { command: Command::CopyRegion { src, dst, region: Region::linear(bytes) }, barrier }
}

/// Bytes rounded up to what a buffer may have.
fn whole(bytes: usize) -> u64 {
    bytes.next_multiple_of(16) as u64
}

/// A device buffer with these numbers in it.
fn upload(backend: &LevelZeroBackend, data: &[f32]) -> BufferId {
    let bytes = size_of_val(data);
    let staging = backend.allocate(whole(bytes), MemoryUse::Upload).unwrap();
    let buffer = backend.allocate(whole(bytes), DEVICE).unwrap();
    backend.write(staging, bytemuck::cast_slice(data)).unwrap();
    let ticket = backend.submit(&[copy(staging, buffer, bytes as u64, false)], false).unwrap();
    backend.wait(ticket).unwrap();
    backend.free(staging);
    buffer
}

/// The first numbers in a device buffer, once all that was submitted is done.
fn download(backend: &LevelZeroBackend, buffer: BufferId, count: usize) -> Vec<f32> {
    let bytes = 4 * count as u64;
    let staging = backend.allocate(whole(4 * count), MemoryUse::Readback).unwrap();
    let ticket = backend.submit(&[copy(buffer, staging, bytes, false)], false).unwrap();
    let data = read_now(backend, staging, bytes, ticket);
    backend.free(staging);
    bytemuck::pod_collect_to_vec(&data)
}

/// Asks for a read; the answer comes through the channel, which closes with the callback.
fn read(backend: &LevelZeroBackend, buffer: BufferId, bytes: u64, after: Ticket) -> mpsc::Receiver<Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel();
    let done = move |result: Result<&[u8]>| sender.send(result.map(<[u8]>::to_vec)).unwrap();
    backend.read(buffer, bytes, after, Box::new(done));
    receiver
}

/// Waits for a batch and reads a buffer that the host reaches.
fn read_now(backend: &LevelZeroBackend, buffer: BufferId, bytes: u64, after: Ticket) -> Vec<u8> {
    let answer = read(backend, buffer, bytes, after);
    backend.wait(after).unwrap();
    answer.recv().unwrap().unwrap()
}

#[test]
fn every_listed_device_is_described() {
    let devices = list().unwrap();
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
    let count = list().unwrap().len();
    assert!(matches!(error, Error::BackendUnavailable { .. }));
    assert!(error.to_string().contains(&format!("the number of devices is {count}")), "{error}");
}

#[test]
fn bytes_come_back_as_they_went() {
    let backend = open();
    // The last one is large enough for the copy engine.
    for count in [1, 5, 63, 1000, 65_537, (1 << 20) + 3] {
        let data: Vec<f32> = (0..count).map(|i| i as f32 * 0.5 - 7.0).collect();
        let buffer = upload(&backend, &data);
        assert_eq!(download(&backend, buffer, count), data, "{count}");
        backend.free(buffer);
    }
}

#[test]
fn the_host_reaches_what_is_not_the_devices_own() {
    let backend = open();
    let kernel = compile(&backend, &add_kernel());
    for kind in [SHARED, HOST] {
        let [a, b, y] = [(); 3].map(|()| backend.allocate(1024, kind).unwrap());
        let data: Vec<f32> = (0..256).map(|i| i as f32).collect();
        backend.write(a, bytemuck::cast_slice(&data)).unwrap();
        backend.write(b, bytemuck::cast_slice(&[0.5f32; 256])).unwrap();
        let ticket = backend.submit(&[dispatch(kernel, [a, b, y], 256, false)], false).unwrap();
        let sums: Vec<f32> = bytemuck::pod_collect_to_vec(&read_now(&backend, y, 1024, ticket));
        assert_eq!(sums, data.iter().map(|x| x + 0.5).collect::<Vec<_>>(), "{kind:?}");
    }
    let own = backend.allocate(16, DEVICE).unwrap();
    assert!(matches!(backend.write(own, &[0; 4]).unwrap_err(), Error::InvalidArgument { op: "write", .. }));
    let answer = read(&backend, own, 4, Ticket(0)).recv().unwrap();
    assert!(matches!(answer.unwrap_err(), Error::InvalidArgument { op: "read", .. }));
}

#[test]
fn a_kernel_computes_up_to_its_count() {
    let backend = open();
    let kernel = compile(&backend, &add_kernel());
    let a: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let buffers = [upload(&backend, &a), upload(&backend, &[0.25; 1000]), upload(&backend, &[-1.0; 1000])];
    // The first has no workgroups at all.
    let steps = [dispatch(kernel, buffers, 0, false), dispatch(kernel, buffers, 777, false)];
    let ticket = backend.submit(&steps, false).unwrap();
    backend.wait(ticket).unwrap();
    let expected: Vec<f32> = (0..1000).map(|i| if i < 777 { i as f32 + 0.25 } else { -1.0 }).collect();
    assert_eq!(download(&backend, buffers[2], 1000), expected);
}

#[test]
fn barriers_order_a_chain_within_a_batch() {
    let backend = open();
    let kernel = compile(&backend, &add_kernel());
    let n = 5000;
    let [x, one, y] = [vec![0.0; n], vec![1.0; n], vec![0.0; n]].map(|data| upload(&backend, &data));
    let steps: Vec<_> = (0..100)
        .map(|i| dispatch(kernel, if i % 2 == 0 { [x, one, y] } else { [y, one, x] }, n as u32, true))
        .collect();
    backend.submit(&steps, false).unwrap();
    assert_eq!(download(&backend, x, n), vec![100.0; n]);
}

#[test]
fn a_batch_sees_what_earlier_batches_wrote() {
    let backend = open();
    let kernel = compile(&backend, &add_kernel());
    let n = 5000;
    let [x, one, y] = [vec![0.0; n], vec![1.0; n], vec![0.0; n]].map(|data| upload(&backend, &data));
    for _ in 0..50 {
        backend.submit(&[dispatch(kernel, [x, one, y], n as u32, false)], false).unwrap();
        backend.submit(&[dispatch(kernel, [y, one, x], n as u32, false)], false).unwrap();
    }
    assert_eq!(download(&backend, x, n), vec![100.0; n]);
}

#[test]
fn the_copy_engine_and_the_compute_engine_take_turns() {
    let backend = open();
    assert!(backend.device.adapter.copy_group.is_some(), "the test driver has a group for copies");
    let kernel = compile(&backend, &add_kernel());
    let n = 1 << 18;
    let bytes = 4 * n as u64;
    let [staging, back] = [MemoryUse::Upload, MemoryUse::Readback].map(|kind| backend.allocate(bytes, kind).unwrap());
    let [x, y] = [(); 2].map(|()| backend.allocate(bytes, DEVICE).unwrap());
    for round in 0..10 {
        let data: Vec<f32> = (0..n).map(|i| (i % 1000 + round) as f32).collect();
        backend.write(staging, bytemuck::cast_slice(&data)).unwrap();
        // None of them waits for the one before on the host.
        backend.submit(&[copy(staging, x, bytes, false)], false).unwrap();
        backend.submit(&[dispatch(kernel, [x, x, y], n as u32, false)], false).unwrap();
        backend.submit(&[dispatch(kernel, [y, x, x], n as u32, false)], false).unwrap();
        let ticket = backend.submit(&[copy(x, back, bytes, false)], round % 2 == 0).unwrap();
        let found: Vec<f32> = bytemuck::pod_collect_to_vec(&read_now(&backend, back, bytes, ticket));
        assert!(found.iter().zip(&data).all(|(found, x)| *found == 3.0 * x), "round {round}");
    }
}

#[test]
fn a_batch_may_have_thousands_of_dispatches() {
    let backend = open();
    let kernel = compile(&backend, &add_kernel());
    let [x, one] = [[0.0; 4], [1.0; 4]].map(|data| upload(&backend, &data));
    for length in [1, 3000, 10, 7000] {
        let steps: Vec<_> = (0..length).map(|_| dispatch(kernel, [x, one, x], 4, true)).collect();
        backend.submit(&steps, false).unwrap();
    }
    assert_eq!(download(&backend, x, 4), [10_011.0; 4]);
}

#[test]
fn tickets_count_batches_which_complete_in_order() {
    let backend = open();
    assert_eq!(backend.completed().unwrap(), Ticket(0));
    backend.wait(Ticket(0)).unwrap();
    let mut last = Ticket(0);
    for number in 1..=100 {
        assert_eq!(backend.submit(&[], false).unwrap(), Ticket(number));
        let completed = backend.completed().unwrap();
        assert!(last <= completed && completed <= Ticket(number));
        last = completed;
    }
    backend.wait(Ticket(60)).unwrap();
    assert!(backend.completed().unwrap() >= Ticket(60));
    backend.wait(Ticket(100)).unwrap();
    assert_eq!(backend.completed().unwrap(), Ticket(100));
}

#[test]
fn threads_share_a_kernel_and_keep_their_arguments() {
    let backend = open();
    let shared = compile(&backend, &add_kernel());
    let work = |thread: u32| {
        let own = compile(&backend, &add_kernel());
        let n = 100 + thread as usize;
        let [x, step] = [vec![0.0; n], vec![thread as f32; n]].map(|data| upload(&backend, &data));
        let mut tickets = Vec::new();
        for kernel in [own, shared].repeat(20) {
            tickets.push(backend.submit(&[dispatch(kernel, [x, step, x], n as u32, false)], false).unwrap());
        }
        assert_eq!(download(&backend, x, n), vec![40.0 * thread as f32; n]);
        backend.free(x);
        backend.free(step);
        tickets
    };
    let mut tickets: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    tickets.sort_unstable();
    tickets.dedup();
    assert_eq!(tickets.len(), 320);
}

#[test]
fn a_read_is_answered_once_and_after_its_batch() {
    let backend = open();
    let staging = backend.allocate(16, MemoryUse::Readback).unwrap();
    let x = upload(&backend, &[1.5; 4]);
    let next = Ticket(backend.completed().unwrap().0 + 1);
    let early = read(&backend, staging, 16, next);
    assert!(early.try_recv().is_err());
    assert_eq!(backend.submit(&[copy(x, staging, 16, false)], false).unwrap(), next);
    backend.wait(next).unwrap();
    let expected: Vec<u8> = bytemuck::cast_slice(&[1.5f32; 4]).to_vec();
    assert_eq!(early.recv().unwrap().unwrap(), expected);
    assert!(early.recv().is_err());
    let late = read(&backend, staging, 8, next);
    assert_eq!(late.try_recv().unwrap().unwrap(), expected[..8]);
}

#[test]
fn a_wait_returns_when_callbacks_have_returned_whichever_thread_runs_them() {
    let backend = open();
    let staging = backend.allocate(16, MemoryUse::Readback).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let ticket = backend.submit(&[], false).unwrap();
                    let answer = read(&backend, staging, 16, ticket);
                    backend.wait(ticket).unwrap();
                    answer.try_recv().unwrap().unwrap();
                }
            });
        }
    });
}

#[test]
fn closing_a_device_answers_its_reads() {
    let backend = open();
    let staging = backend.allocate(16, MemoryUse::Readback).unwrap();
    let x = upload(&backend, &[2.0; 4]);
    let ticket = backend.submit(&[copy(x, staging, 16, false)], false).unwrap();
    let due = read(&backend, staging, 16, ticket);
    let never = read(&backend, staging, 16, Ticket(1000));
    drop(backend);
    assert_eq!(due.recv().unwrap().unwrap(), bytemuck::cast_slice::<f32, u8>(&[2.0; 4]));
    assert!(never.recv().unwrap().is_err());
}

#[test]
fn a_lost_device_refuses_everything_and_answers_its_reads() {
    let backend = open();
    let staging = backend.allocate(16, MemoryUse::Readback).unwrap();
    let pending = read(&backend, staging, 16, Ticket(1));
    let lost = |error: Error| matches!(error, Error::DeviceLost { .. });
    let code = ffi::ResultCode::ERROR_DEVICE_LOST;
    assert!(lost(backend.device.error("zeCommandQueueExecuteCommandLists", code)));
    let error = backend.submit(&[], false).unwrap_err();
    assert!(error.to_string().contains("zeCommandQueueExecuteCommandLists reported it"), "{error}");
    assert!(lost(error));
    assert!(lost(pending.recv().unwrap().unwrap_err()));
    assert!(lost(backend.completed().unwrap_err()));
    assert!(lost(backend.wait(Ticket(0)).unwrap_err()));
    assert!(lost(backend.timings(Ticket(1)).unwrap_err()));
    assert!(lost(backend.allocate(16, DEVICE).unwrap_err()));
    assert!(lost(backend.write(staging, &[]).unwrap_err()));
    assert!(lost(backend.compile(&add_kernel(), None).unwrap_err()));
    assert!(lost(read(&backend, staging, 16, Ticket(0)).recv().unwrap().unwrap_err()));
    backend.free(staging);
}

#[test]
fn a_buffer_beyond_the_limit_is_out_of_memory() {
    let backend = open();
    let limit = backend.info().limits.max_buffer_bytes;
    let held = backend.allocate(1 << 20, DEVICE).unwrap();
    for kind in [DEVICE, SHARED, HOST, MemoryUse::Upload] {
        let error = backend.allocate(limit + 16, kind).unwrap_err();
        let Error::OutOfMemory { requested, in_use, limit: told } = error else { panic!("{error}") };
        assert_eq!((requested, in_use, told), (limit + 16, 1 << 20, limit));
    }
    backend.free(held);
    let error = backend.allocate(limit + 16, DEVICE).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { in_use: 0, .. }), "{error}");
}

#[test]
fn a_kernel_that_the_device_cannot_run_is_refused() {
    let backend = open();
    let limits = backend.info().limits.clone();
    let add = add_kernel();
    let too_much = [
        Module { workgroup: [limits.max_workgroup_invocations, 2, 1], ..add.clone() },
        Module { workgroup: [u32::MAX; 3], ..add.clone() },
        Module { workgroup_memory: limits.max_workgroup_memory + 4, ..add.clone() },
        Module { parameter_words: limits.max_parameter_words as usize + 1, ..add.clone() },
    ];
    for module in too_much {
        let error = backend.compile(&module, None).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }
    let all = Features { f16: true, subgroups: true, ..Features::default() };
    let compiled = backend.compile(&Module { requires: all, ..add }, None);
    let has_all = all.missing_from(&backend.info().features).is_none();
    assert_eq!(compiled.is_ok(), has_all, "{compiled:?}");
}

#[test]
fn a_kernel_that_is_not_as_it_is_described_is_refused() {
    let backend = open();
    let add = add_kernel();
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
    let add = add_kernel();
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
fn steps_that_break_a_rule_are_refused() {
    let backend = open();
    let kernel = compile(&backend, &add_kernel());
    let [a, b] = [32, 16].map(|bytes| backend.allocate(bytes, DEVICE).unwrap());
    let gone = backend.allocate(16, DEVICE).unwrap();
    backend.free(gone);
    let mut few_buffers = dispatch(kernel, [a, a, b], 4, false);
    let mut no_parameters = few_buffers.clone();
    if let Command::Dispatch { buffers, .. } = &mut few_buffers.command {
        buffers.truncate(2);
    }
    if let Command::Dispatch { parameters, .. } = &mut no_parameters.command {
        parameters.clear();
    }
    for step in [few_buffers, no_parameters] {
        assert!(matches!(backend.submit(&[step], false).unwrap_err(), Error::Kernel { .. }));
    }
    let region = |extent, offset| {
        let pitch = Pitch { offset, row: 8, slice: 16 };
        let region = Region { extent, src: pitch, dst: Pitch::default() };
        Step { command: Command::CopyRegion { src: a, dst: b, region }, barrier: false }
    };
    let wrong = [
        copy(a, b, 32, false),
        copy(b, a, 17, false),
        copy(a, b, 0, false),
        copy(a, a, 16, false),
        copy(gone, a, 16, false),
        region([8, 1, 1], 25),
        region([1, 5, 1], 0),
        region([1, 1, 3], 0),
        dispatch(KernelId(7), [a, a, b], 4, false),
    ];
    for step in wrong {
        let error = backend.submit(std::slice::from_ref(&step), true).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { op: "submit", .. }), "{step:?}: {error}");
    }
    assert!(backend.write(a, &[0; 64]).is_err());
    assert_eq!(backend.submit(&[copy(a, b, 16, false)], false).unwrap(), Ticket(1), "a refused batch takes no ticket");
}

#[test]
fn steps_are_timed_on_the_hosts_clock() {
    let backend = open();
    let kernel = compile(&backend, &add_kernel());
    let n = 100_000;
    let [x, one] = [vec![0.0; n], vec![1.0; n]].map(|data| upload(&backend, &data));
    let outputs: Vec<_> = (0..20).map(|_| backend.allocate(whole(4 * n), DEVICE).unwrap()).collect();
    let y = backend.allocate(whole(4 * n), DEVICE).unwrap();
    for _ in 0..3 {
        let before = profile::now();
        // They have nothing in common, and could run side by side.
        let mut steps: Vec<_> =
            outputs.iter().map(|&output| dispatch(kernel, [one, one, output], n as u32, false)).collect();
        steps.push(copy(x, y, 4 * n as u64, true));
        let ticket = backend.submit(&steps, true).unwrap();
        backend.wait(ticket).unwrap();
        let after = profile::now();
        let ranges = backend.timings(ticket).unwrap();
        assert_eq!(ranges.len(), 21);
        assert!(ranges.iter().all(|range| range.start < range.end), "{ranges:?}");
        assert!(ranges.is_sorted_by(|a, b| a.end <= b.start), "each ends before the next: {ranges:?}");
        // Both clocks are looked at once; the looks may be as long apart as the scheduler lets another thread run.
        let slack = 1_000_000;
        assert!(ranges[0].start + slack >= before && ranges[20].end <= after + slack, "{before} {ranges:?} {after}");
        assert!(backend.timings(ticket).is_err(), "they are told once");
    }
    let untimed = backend.submit(&[dispatch(kernel, [x, one, x], 4, false)], false).unwrap();
    backend.wait(untimed).unwrap();
    assert!(matches!(backend.timings(untimed).unwrap_err(), Error::InvalidArgument { op: "timings", .. }));
    assert!(backend.timings(Ticket(1000)).is_err());
}

/// Sides of a box in a buffer: dense, or with gaps between its rows and slices.
fn pitch([width, rows, _]: [u64; 3], strided: bool) -> BoxedStrategy<Pitch> {
    if strided {
        (0..70u64, 1..9u64, 1..9u64)
            .prop_map(move |(offset, gap, space)| Pitch {
                offset,
                row: width + gap,
                slice: (width + gap) * rows + space,
            })
            .boxed()
    } else {
        (0..70u64).prop_map(move |offset| Pitch { offset, row: width, slice: width * rows }).boxed()
    }
}

fn end(region: &Region, pitch: &Pitch) -> u64 {
    let [width, rows, slices] = region.extent;
    pitch.offset + (slices - 1) * pitch.slice + (rows - 1) * pitch.row + width
}

/// What a copy makes of a destination.
fn copy_on_host(region: &Region, src: &[u8], dst: &mut [u8]) {
    let [width, rows, slices] = region.extent;
    for (slice, row) in (0..slices).flat_map(|slice| (0..rows).map(move |row| (slice, row))) {
        let at = |pitch: &Pitch| (pitch.offset + slice * pitch.slice + row * pitch.row) as usize;
        let (from, to, width) = (at(&region.src), at(&region.dst), width as usize);
        dst[to..to + width].copy_from_slice(&src[from..from + width]);
    }
}

#[test]
fn boxes_are_copied_byte_by_byte() {
    let backend = open();
    let config = ProptestConfig { failure_persistence: None, cases: 32, ..Default::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    for (from, to) in [(false, false), (false, true), (true, false), (true, true)] {
        let region = [1..40u64, 1..9, 1..6].prop_flat_map(move |extent| {
            (pitch(extent, from), pitch(extent, to)).prop_map(move |(src, dst)| Region { extent, src, dst })
        });
        let places = prop::sample::select(vec![DEVICE, SHARED, HOST]);
        let check = |(region, place): (Region, MemoryUse)| {
            let bytes = |pitch| whole(end(&region, pitch) as usize);
            let (src_bytes, dst_bytes) = (bytes(&region.src), bytes(&region.dst));
            let src: Vec<u8> = (0..src_bytes).map(|i| (i * 7 % 251) as u8).collect();
            let mut expected = vec![0xee; dst_bytes as usize];
            let staging = backend.allocate(src_bytes, MemoryUse::Upload).unwrap();
            let background = backend.allocate(dst_bytes, MemoryUse::Upload).unwrap();
            let between = backend.allocate(src_bytes, place).unwrap();
            let result = backend.allocate(dst_bytes, DEVICE).unwrap();
            let back = backend.allocate(dst_bytes, MemoryUse::Readback).unwrap();
            backend.write(staging, &src).unwrap();
            backend.write(background, &expected).unwrap();
            let command = Command::CopyRegion { src: between, dst: result, region };
            let steps = [
                copy(staging, between, src_bytes, false),
                copy(background, result, dst_bytes, false),
                Step { command, barrier: true },
                copy(result, back, dst_bytes, true),
            ];
            let ticket = backend.submit(&steps, false).unwrap();
            let found = read_now(&backend, back, dst_bytes, ticket);
            copy_on_host(&region, &src, &mut expected);
            [staging, background, between, result, back].into_iter().for_each(|buffer| backend.free(buffer));
            prop_assert_eq!(found, expected);
            Ok(())
        };
        runner.run(&(region, places), check).unwrap();
    }
}

/// The loader of Debian 12 knows no in-order lists. This runs all these tests in another process, on the test driver
/// without a loader, which has them.
#[test]
fn in_order_lists_keep_the_contract_too() {
    const CHILD: &str = "MARQUETRY_TEST_IN_ORDER_CHILD";
    if std::env::var_os(CHILD).is_some() {
        assert!(open().device.adapter.in_order);
        return;
    }
    let driver = std::env::var_os("ZE_ENABLE_ALT_DRIVERS").expect("the test driver: run `make test`");
    let (_, module) = module_path!().rsplit_once("marquetry::").unwrap();
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([module.trim_end_matches("tests"), "--test-threads=2"])
        .env("MARQUETRY_LEVEL_ZERO_LIBRARY", driver)
        .env(CHILD, "1")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    let passed = child.status.success() && output.contains("in_order_lists_keep_the_contract_too ... ok");
    assert!(passed, "{output}\n{}", String::from_utf8_lossy(&child.stderr));
}
