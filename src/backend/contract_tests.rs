//! Tests of the [`contract`](super::contract), on the first device of every backend that is compiled in. Without a
//! device, these tests fail. What is particular to a backend is tested beside it, with the helpers of this file.

use super::contract::{
    Backend, BufferId, Command, KernelId, MemoryUse, Pitch, ProgramId, ReadCallback, Region, Step, Ticket,
};
use crate::backend::info::{DeviceKind, MemoryKind};
use crate::backend::registry;
use crate::base::backend_kind::BackendKind;
use crate::base::clock::now;
use crate::base::error::{Error, Result};
use crate::base::features::Features;
use crate::shader::{Access, KernelBuilder, Module, Type};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::sync::mpsc;

/// Makes a test of each function on each backend. The functions of `where_the_host_reaches_buffers` run on backends
/// with [`DeviceInfo::host_visible`](super::info::DeviceInfo::host_visible).
macro_rules! on_each_backend {
    ($($name:ident)*; where_the_host_reaches_buffers: $($on_host:ident)*) => {
        #[cfg(has_vulkan)]
        mod vulkan {
            use super::{BackendKind::Vulkan, open, where_the_host_reaches_buffers};
            $(#[test] fn $name() { super::$name(&*open(Vulkan)); })*
            $(#[test] fn $on_host() { where_the_host_reaches_buffers::$on_host(&*open(Vulkan)); })*
        }
        #[cfg(has_level_zero)]
        mod level_zero {
            use super::{BackendKind::LevelZero, open, where_the_host_reaches_buffers};
            $(#[test] fn $name() { super::$name(&*open(LevelZero)); })*
            $(#[test] fn $on_host() { where_the_host_reaches_buffers::$on_host(&*open(LevelZero)); })*
        }
        #[cfg(has_webgpu)]
        mod webgpu {
            use super::{BackendKind::WebGpu, open, where_the_host_reaches_buffers};
            $(#[test] fn $name() { super::$name(&*open(WebGpu)); })*
            $(#[test] fn $on_host() {
                let test = concat!(module_path!(), "::", stringify!($on_host));
                where_the_host_reaches_buffers::through_wgpu(test, where_the_host_reaches_buffers::$on_host);
            })*
        }
    };
}

on_each_backend! {
    bytes_come_back_as_they_went
    all_kinds_of_memory_can_be_copied_between
    kernels_work_in_memory_of_every_kind
    a_buffer_beyond_the_limit_is_out_of_memory
    a_kernel_computes_up_to_its_count
    one_buffer_may_be_read_at_two_bindings
    a_kernel_that_the_device_cannot_run_is_refused
    each_step_sees_those_before_it_and_its_own_parameters
    barriers_order_a_chain_within_a_batch
    a_batch_sees_what_earlier_batches_wrote
    a_batch_may_have_thousands_of_dispatches
    programs_run_between_other_steps_and_again_while_in_flight
    programs_that_break_a_rule_are_refused
    tickets_count_batches_which_complete_in_order
    an_empty_batch_completes
    waiting_for_a_batch_of_the_future_is_an_error
    threads_compile_submit_and_read_at_once
    steps_that_break_a_rule_are_refused
    buffers_that_are_misused_are_refused
    boxes_are_copied_byte_by_byte
    a_box_that_leaves_a_buffer_is_refused
    a_readback_buffer_serves_again
    reads_of_several_batches_are_answered_by_one_wait
    a_read_that_begins_late_is_answered_by_the_next_wait
    a_wait_returns_when_callbacks_have_returned_whichever_thread_runs_them
    closing_a_device_answers_its_reads
    steps_are_timed_in_order_on_the_clock_of_the_host
    timings_are_kept_for_each_batch_until_they_are_asked_for;

    where_the_host_reaches_buffers:
    the_host_and_kernels_share_a_buffer_in_place
    a_read_is_answered_once_and_after_its_batch
    reads_of_one_buffer_may_overlap
    closing_a_device_reads_what_was_submitted
}

/// Invocations per workgroup of the test kernels.
const GROUP: u32 = 64;

/// Memory of the device's own.
pub(super) const DEVICE: MemoryUse = MemoryUse::Kernels(MemoryKind::Device);

const KINDS: [MemoryKind; 3] = [MemoryKind::Device, MemoryKind::Shared, MemoryKind::Host];

/// The first device of a backend.
fn open(kind: BackendKind) -> Box<dyn Backend> {
    match pollster::block_on(registry::open(kind, 0)) {
        Ok(backend) => backend,
        Err(error) => panic!("a {kind} device: run `make setup` ({error})"),
    }
}

/// Returns a kernel for `y[i] = a[i] + b[i] + constant` if `i < count`. `count` is its one parameter.
pub(super) fn add_kernel(backend: &dyn Backend, constant: f32) -> Module {
    let k = KernelBuilder::new("add", backend.target(), GROUP);
    let count = k.parameter(Type::U32);
    let [a, b] = ["a", "b"].map(|name| k.buffer(name, Type::F32, Access::Read));
    let y = k.buffer("y", Type::F32, Access::Write);
    let i = k.global_index();
    k.when(i.lt(count), || y.store(i, a.load(i) + b.load(i) + k.f32(constant)));
    k.finish().unwrap()
}

/// Compiles a kernel.
pub(super) fn compile(backend: &dyn Backend, module: &Module) -> KernelId {
    backend.compile(module, None).unwrap().kernel
}

/// Compiles the kernel that adds.
pub(super) fn compile_add(backend: &dyn Backend) -> KernelId {
    compile(backend, &add_kernel(backend, 0.0))
}

/// Returns a dispatch of an [`add_kernel`] with `[a, b, y]`.
pub(super) fn dispatch(kernel: KernelId, buffers: [BufferId; 3], count: u32, barrier: bool) -> Step {
    let groups = [count.div_ceil(GROUP), 1, 1];
    let command =
        Command::Dispatch { kernel, buffers: buffers.as_slice().into(), parameters: [count].as_slice().into(), groups };
    Step { command, barrier }
}

/// Returns a copy of the first `bytes` bytes.
pub(super) fn copy(src: BufferId, dst: BufferId, bytes: u64, barrier: bool) -> Step {
    copy_box(src, dst, Region::linear(bytes), barrier)
}

pub(super) fn copy_box(src: BufferId, dst: BufferId, region: Region, barrier: bool) -> Step {
    Step { command: Command::CopyRegion { src, dst, region }, barrier }
}

/// Rounds bytes up to a size that a buffer may have.
pub(super) fn whole(bytes: usize) -> u64 {
    bytes.next_multiple_of(16) as u64
}

/// Rounds bytes up to a size that may be copied.
fn copied(backend: &dyn Backend, bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(backend.info().limits.copy_alignment)
}

/// Creates buffers of `bytes` bytes in the device's own memory.
pub(super) fn allocate<const N: usize>(backend: &dyn Backend, bytes: u64) -> [BufferId; N] {
    [(); N].map(|()| backend.allocate(bytes, DEVICE).unwrap())
}

/// Creates a device buffer with these numbers in it.
pub(super) fn upload(backend: &dyn Backend, data: &[f32]) -> BufferId {
    upload_bytes(backend, bytemuck::cast_slice(data))
}

/// Creates a device buffer with these bytes in it.
pub(super) fn upload_bytes(backend: &dyn Backend, data: &[u8]) -> BufferId {
    let staging = backend.allocate(whole(data.len()), MemoryUse::Upload).unwrap();
    let buffer = backend.allocate(whole(data.len()), DEVICE).unwrap();
    backend.write(staging, 0, data).unwrap();
    let ticket = backend.submit(&[copy(staging, buffer, copied(backend, data.len()), false)], false).unwrap();
    backend.wait(ticket).unwrap();
    backend.free(staging);
    buffer
}

/// Returns the first numbers in a device buffer, after all submitted work.
pub(super) fn download(backend: &dyn Backend, buffer: BufferId, count: usize) -> Vec<f32> {
    bytemuck::pod_collect_to_vec(&download_bytes(backend, buffer, 4 * count))
}

/// Returns the first bytes of a device buffer, after all submitted work.
pub(super) fn download_bytes(backend: &dyn Backend, buffer: BufferId, bytes: usize) -> Vec<u8> {
    let staging = backend.allocate(whole(bytes), MemoryUse::Readback).unwrap();
    let ticket = backend.submit(&[copy(buffer, staging, copied(backend, bytes), false)], false).unwrap();
    let data = read_now(backend, staging, bytes as u64, ticket);
    backend.free(staging);
    data
}

/// Asks for a read. The answer comes through the channel, which closes with the callback.
pub(super) fn read(
    backend: &dyn Backend,
    buffer: BufferId,
    bytes: u64,
    after: Ticket,
) -> mpsc::Receiver<Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel();
    let done: ReadCallback = Box::new(move |result| sender.send(result.map(<[u8]>::to_vec)).unwrap());
    backend.read(buffer, bytes, after, done);
    receiver
}

/// Waits for a batch and reads a buffer that the host reaches.
pub(super) fn read_now(backend: &dyn Backend, buffer: BufferId, bytes: u64, after: Ticket) -> Vec<u8> {
    let answer = read(backend, buffer, bytes, after);
    backend.wait(after).unwrap();
    told(&answer).unwrap()
}

/// Returns the answer of a read whose callback has returned.
pub(super) fn told(answer: &mpsc::Receiver<Result<Vec<u8>>>) -> Result<Vec<u8>> {
    let result = answer.try_recv().unwrap();
    assert!(matches!(answer.try_recv(), Err(mpsc::TryRecvError::Disconnected)), "it is answered once");
    result
}

/// Runs a test again in another process with `MARQUETRY_VALIDATION` set to this, because variables belong to a whole
/// process. Returns true in that process, which does the test's work.
pub(super) fn is_child(test: &str, validation: &str) -> bool {
    const CHILD: &str = "MARQUETRY_TEST_CONTRACT_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    run_again(test, &[("MARQUETRY_VALIDATION", validation), (CHILD, "1")]);
    false
}

/// Checks the [queue that only copies](super::contract::CopyQueue).
pub(super) fn copies_run_beside_batches(backend: &dyn Backend) {
    let queue = backend.copies().expect("a queue that only copies");
    let kernel = compile_add(backend);
    let n = 1 << 18;
    let bytes = 4 * n as u64;
    let one = upload(backend, &vec![1.0; n]);
    let before = backend.submit(&[], false).unwrap();
    for round in 1..=20 {
        let data: Vec<f32> = (0..n).map(|i| (i % 1000 + round) as f32).collect();
        let staging = backend.allocate(bytes, MemoryUse::Upload).unwrap();
        let [x, y] = allocate(backend, bytes);
        backend.write(staging, 0, bytemuck::cast_slice(&data)).unwrap();
        let copied = queue.submit(&[copy(staging, x, bytes, false)], round % 2 == 0).unwrap();
        assert_eq!(copied, Ticket(round as u64), "numbers of its own");
        // The host waits for neither, or a batch comes after copies that have completed.
        if round % 3 == 0 {
            queue.wait(copied).unwrap();
        }
        let added = backend.submit_after(&[dispatch(kernel, [x, one, y], n as u32, false)], false, copied).unwrap();
        let back = backend.submit(&[dispatch(kernel, [y, one, x], n as u32, false)], false).unwrap();
        assert!(before < added && added < back);
        let found = download(backend, x, n);
        assert!(found.iter().zip(&data).all(|(found, x)| *found == x + 2.0), "round {round}");
        assert!(queue.completed().unwrap() >= copied, "a batch has waited for it");
        if round % 2 == 0 {
            let times = queue.timings(copied).unwrap();
            assert!(times.len() == 1 && times[0].start <= times[0].end && times[0].end <= now(), "{times:?}");
        }
        queue.wait(copied).unwrap();
        [staging, x, y].into_iter().for_each(|buffer| backend.free(buffer));
    }
    let invalid = |refused: Result<Ticket>| assert!(matches!(refused, Err(Error::InvalidArgument { .. })));
    invalid(queue.submit(&[dispatch(kernel, [one, one, one], 4, false)], false));
    invalid(queue.submit(&[copy(one, BufferId(u64::MAX), 16, false)], false));
    assert_invalid(backend, &queue.wait(Ticket(21)).unwrap_err(), "wait");
    // Each copy in its place, without a wait on the host.
    let [x, y] = allocate(backend, bytes);
    let steps: Vec<_> = [(one, x), (x, y)].into_iter().map(|(src, dst)| copy(src, dst, bytes, true)).collect();
    let first = queue.submit(&steps, false).unwrap();
    let second = queue.submit(&[copy(y, x, bytes, false)], false).unwrap();
    assert_eq!([first, second], [21, 22].map(Ticket));
    backend.submit_after(&[dispatch(kernel, [x, y, y], n as u32, false)], false, second).unwrap();
    assert_eq!(download(backend, y, n), vec![2.0; n]);
}

/// Runs one test of this process in another process, with these variables. `test` is its path.
pub(super) fn run_again(test: &str, variables: &[(&str, &str)]) {
    let (_, test) = test.split_once("::").unwrap();
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let [output, errors] = [&child.stdout, &child.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(child.status.success() && output.contains("1 passed"), "{variables:?}: {output}\n{errors}");
}

/// Checks that a device computes: buffers, kernels, batches and reads.
pub(super) fn assert_computes(backend: &dyn Backend) {
    let kernel = compile_add(backend);
    let [x, y] = [[1.5; 4], [0.0; 4]].map(|data| upload(backend, &data));
    let ticket = backend.submit(&[dispatch(kernel, [x, x, y], 4, false)], true).unwrap();
    assert_eq!(download(backend, y, 4), [3.0; 4]);
    assert_eq!(backend.timings(ticket).unwrap().len(), 1);
}

/// Checks that every call on a lost device reports the loss. Frees `readback`.
pub(super) fn assert_lost(backend: &dyn Backend, readback: BufferId) {
    let lost = |error: Error| assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
    lost(backend.submit(&[], false).unwrap_err());
    lost(backend.completed().unwrap_err());
    lost(backend.wait(Ticket(0)).unwrap_err());
    lost(backend.timings(Ticket(1)).unwrap_err());
    lost(backend.allocate(16, DEVICE).unwrap_err());
    lost(backend.write(readback, 0, &[]).unwrap_err());
    lost(backend.compile(&add_kernel(backend, 0.0), None).unwrap_err());
    lost(told(&read(backend, readback, 16, Ticket(0))).unwrap_err());
    backend.free(readback);
}

/// Checks that an error blames the arguments of a call. wgpu finds such mistakes itself.
fn assert_invalid(backend: &dyn Backend, error: &Error, op: &str) {
    let blames = match error {
        Error::InvalidArgument { op: found, .. } => *found == op,
        Error::Driver { .. } => backend.info().backend == BackendKind::WebGpu,
        _ => false,
    };
    assert!(blames, "{error}");
}

fn bytes_come_back_as_they_went(backend: &dyn Backend) {
    // The last ones are larger than a staging buffer.
    for bytes in [1, 3, 4, 16, 20, 252, 1000, 4096, 262_148, (1 << 20) + 13, (4 << 20) + 12] {
        let sent: Vec<u8> = (0..bytes).map(|i| (i * 31 + bytes) as u8).collect();
        let [staging, buffer, readback] = [MemoryUse::Upload, DEVICE, MemoryUse::Readback]
            .map(|memory| backend.allocate(whole(bytes), memory).unwrap());
        backend.write(staging, 0, &sent).unwrap();
        let size = copied(backend, bytes);
        let steps = [copy(staging, buffer, size, false), copy(buffer, readback, size, true)];
        let ticket = backend.submit(&steps, false).unwrap();
        assert!(read_now(backend, readback, bytes as u64, ticket) == sent, "{bytes} bytes");
        let offset = bytes / 3;
        let mut rest = vec![0; bytes - offset];
        backend.read_now(readback, offset as u64, ticket, &mut rest).unwrap();
        assert!(rest == sent[offset..], "{bytes} bytes from {offset} on");
        if backend.rewrites_uploads() {
            // A part is replaced.
            let half = bytes / 8 * 4;
            backend.write(staging, half as u64, &sent[..bytes - half]).unwrap();
            let written = [&sent[..half], &sent[..bytes - half]].concat();
            let again = backend.submit(&[copy(staging, readback, size, true)], false).unwrap();
            assert!(read_now(backend, readback, bytes as u64, again) == written, "{bytes} bytes, in two parts");
            if half > 0 {
                // The first half is on its way while the second one is written.
                let first = copied(backend, half);
                backend.submit(&[copy(staging, buffer, first, true)], false).unwrap();
                backend.write(staging, half as u64, &sent[half..]).unwrap();
                let all = backend.submit(&[copy(staging, readback, size, true)], false).unwrap();
                assert!(
                    read_now(backend, readback, bytes as u64, all) == sent,
                    "{bytes} bytes, one half after the other"
                );
                backend.submit(&[copy(staging, buffer, size, true)], false).unwrap();
            }
        }
        assert!(download_bytes(backend, buffer, bytes) == sent, "{bytes} bytes");
        [staging, buffer, readback].into_iter().for_each(|buffer| backend.free(buffer));
    }
}

fn all_kinds_of_memory_can_be_copied_between(backend: &dyn Backend) {
    let data: Vec<u8> = (0..=255).collect();
    for (from, to) in KINDS.into_iter().flat_map(|from| KINDS.map(|to| (from, to))) {
        let [src, dst] = [from, to].map(|kind| backend.allocate(256, MemoryUse::Kernels(kind)).unwrap());
        let uploaded = upload_bytes(backend, &data);
        let steps = [copy(uploaded, src, 256, false), copy(src, dst, 256, true)];
        backend.submit(&steps, false).unwrap();
        assert_eq!(download_bytes(backend, dst, 256), data, "{from} to {to}");
    }
}

fn kernels_work_in_memory_of_every_kind(backend: &dyn Backend) {
    let kernel = compile_add(backend);
    let x = upload(backend, &[2.0; 4]);
    for kind in KINDS {
        let [y, z] = [(); 2].map(|()| backend.allocate(16, MemoryUse::Kernels(kind)).unwrap());
        let steps = [dispatch(kernel, [x, x, y], 4, false), dispatch(kernel, [y, x, z], 4, true)];
        backend.submit(&steps, false).unwrap();
        assert_eq!(download(backend, z, 4), [6.0; 4], "{kind}");
    }
}

fn a_buffer_beyond_the_limit_is_out_of_memory(backend: &dyn Backend) {
    let limit = backend.info().limits.max_buffer_bytes;
    let [held] = allocate(backend, 1 << 20);
    // Vulkan's memory comes in blocks of 2 MiB and more, and a small one is kept.
    let block = if backend.info().backend == BackendKind::Vulkan { 2 << 20 } else { 0 };
    for kind in KINDS {
        let error = backend.allocate(limit + 16, MemoryUse::Kernels(kind)).unwrap_err();
        let Error::OutOfMemory { requested, in_use, limit: told } = error else { panic!("{error}") };
        assert_eq!((requested, told), (limit + 16, limit), "{kind}");
        assert!((1 << 20..=block.max(1 << 20)).contains(&in_use), "{in_use}");
    }
    backend.free(held);
    // Staging buffers may be larger than what a kernel can bind.
    for memory in [DEVICE, MemoryUse::Upload, MemoryUse::Readback] {
        let error = backend.allocate(1 << 50, memory).unwrap_err();
        let Error::OutOfMemory { requested, in_use, .. } = error else { panic!("{error}") };
        assert!(requested == 1 << 50 && in_use <= block, "{error}");
    }
}

fn a_kernel_computes_up_to_its_count(backend: &dyn Backend) {
    let kernel = compile(backend, &add_kernel(backend, 0.5));
    let a: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    for count in [777, 997] {
        let buffers = [upload(backend, &a), upload(backend, &[0.25; 1000]), upload(backend, &[-1.0; 1000])];
        // The first dispatch has no workgroups.
        let steps = [dispatch(kernel, buffers, 0, false), dispatch(kernel, buffers, count, true)];
        let ticket = backend.submit(&steps, false).unwrap();
        backend.wait(ticket).unwrap();
        let expected: Vec<f32> = (0..1000).map(|i| if i < count { i as f32 + 0.75 } else { -1.0 }).collect();
        assert_eq!(download(backend, buffers[2], 1000), expected);
    }
}

fn one_buffer_may_be_read_at_two_bindings(backend: &dyn Backend) {
    let kernel = compile_add(backend);
    let [x, y] = [[3.0; 64], [0.0; 64]].map(|data| upload(backend, &data));
    backend.submit(&[dispatch(kernel, [x, x, y], 64, false)], false).unwrap();
    assert_eq!(download(backend, y, 64), [6.0; 64]);
}

fn a_kernel_that_the_device_cannot_run_is_refused(backend: &dyn Backend) {
    let limits = backend.info().limits.clone();
    let add = add_kernel(backend, 0.0);
    let mut too_much = vec![
        (Module { workgroup: [limits.max_workgroup_invocations, 2, 1], ..add.clone() }, "invocations per workgroup"),
        (Module { workgroup: [u32::MAX; 3], ..add.clone() }, "invocations per workgroup"),
        (Module { workgroup_memory: limits.max_workgroup_memory + 4, ..add.clone() }, "bytes of workgroup memory"),
        (Module { parameter_words: limits.max_parameter_words as usize + 1, ..add.clone() }, "parameter words"),
    ];
    // Some drivers have no limit.
    if limits.max_bindings < 1 << 24 {
        let bindings = vec![Access::Read; limits.max_bindings as usize + 1];
        too_much.push((Module { bindings, ..add.clone() }, "buffers"));
    }
    for (module, expected) in too_much {
        let error = backend.compile(&module, None).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }) && error.to_string().contains(expected), "{error}");
    }
    let all = Features { f16: true, subgroups: true, ..Features::default() };
    let compiled = backend.compile(&Module { requires: all, ..add }, None);
    match all.missing_from(&backend.info().features) {
        None => assert!(compiled.is_ok(), "{compiled:?}"),
        Some(_) => assert!(matches!(compiled, Err(Error::Unsupported { .. })), "{compiled:?}"),
    }
}

fn each_step_sees_those_before_it_and_its_own_parameters(backend: &dyn Backend) {
    let kernel = compile_add(backend);
    let [x, ones, y] = [0.0, 1.0, 0.0].map(|value| upload(backend, &[value; 256]));
    // Round n leaves out the last n of 256 elements. Some rounds have a copy instead.
    let mut steps = Vec::new();
    let mut expected = ([0.0_f32; 256], [0.0_f32; 256]);
    for n in 0..100 {
        steps.push(dispatch(kernel, [x, ones, y], 256 - n, true));
        let copies = n % 10 == 0;
        steps.push(if copies { copy(y, x, 1024, true) } else { dispatch(kernel, [y, ones, x], 256 - n, true) });
        let ((x, y), end) = ((&mut expected.0, &mut expected.1), 256 - n as usize);
        (0..end).for_each(|i| y[i] = x[i] + 1.0);
        if copies {
            *x = *y;
        } else {
            (0..end).for_each(|i| x[i] = y[i] + 1.0);
        }
    }
    // Batches of several lengths, all submitted before the first one is waited for.
    let (first, rest) = steps.split_at(120);
    for batch in std::iter::once(first).chain(rest.chunks(7)) {
        backend.submit(batch, false).unwrap();
    }
    assert_eq!(download(backend, x, 256), expected.0);
}

fn barriers_order_a_chain_within_a_batch(backend: &dyn Backend) {
    let kernel = compile_add(backend);
    let n = 5000;
    let [x, one, y] = [0.0, 1.0, 0.0].map(|value| upload(backend, &vec![value; n]));
    let there_and_back = [[x, one, y], [y, one, x]].map(|buffers| dispatch(kernel, buffers, n as u32, true));
    backend.submit(&vec![there_and_back; 50].concat(), false).unwrap();
    assert_eq!(download(backend, x, n), vec![100.0; n]);
}

fn a_batch_sees_what_earlier_batches_wrote(backend: &dyn Backend) {
    let kernel = compile_add(backend);
    let n = 5000;
    let [x, one, y] = [0.0, 1.0, 0.0].map(|value| upload(backend, &vec![value; n]));
    for _ in 0..50 {
        backend.submit(&[dispatch(kernel, [x, one, y], n as u32, false)], false).unwrap();
        backend.submit(&[dispatch(kernel, [y, one, x], n as u32, false)], false).unwrap();
    }
    assert_eq!(download(backend, x, n), vec![100.0; n]);
}

fn a_batch_may_have_thousands_of_dispatches(backend: &dyn Backend) {
    let kernel = compile_add(backend);
    let [x, one, y] = [0.0, 1.0, 0.0].map(|value| upload(backend, &[value; 4]));
    let there_and_back = [[x, one, y], [y, one, x]].map(|buffers| dispatch(kernel, buffers, 4, true));
    // Some batches have more parameters than any before.
    for length in [2, 3000, 10, 7000] {
        backend.submit(&vec![there_and_back.clone(); length / 2].concat(), false).unwrap();
    }
    assert_eq!(download(backend, x, 4), [10_012.0; 4]);
}

fn programs_run_between_other_steps_and_again_while_in_flight(backend: &dyn Backend) {
    let kernel = compile_add(backend);
    let n = 5000;
    let [x, one, y, z] = [0.0, 1.0, 0.0, 0.0].map(|value| upload(backend, &vec![value; n]));
    let add = |buffers, barrier| dispatch(kernel, buffers, n as u32, barrier);
    // x += 2, by way of y.
    let steps = [add([x, one, y], false), add([y, one, x], true)];
    let Some(program) = backend.prepare(&steps).unwrap() else {
        // Nothing to gain.
        return assert_eq!(backend.info().backend, BackendKind::WebGpu);
    };
    let run = || Step { command: Command::Run(program), barrier: true };
    for _ in 0..20 {
        // First, last and in the middle of a batch, and twice without a step between.
        backend.submit(&[run()], false).unwrap();
        backend.submit(&[run(), add([x, one, z], true), copy(z, x, 4 * n as u64, true), run(), run()], false).unwrap();
        backend.submit(&[add([x, one, z], false), copy(z, x, 4 * n as u64, true)], false).unwrap();
    }
    assert_eq!(download(backend, x, n), vec![20.0 * 10.0; n]);
    // What a program does has nothing to do with what is prepared or discarded besides.
    let other = backend.prepare(&[add([one, one, y], false)]).unwrap().unwrap();
    assert_ne!(program, other);
    backend.discard(other);
    backend.submit(&[run()], false).unwrap();
    assert_eq!(download(backend, x, n), vec![202.0; n]);
    backend.discard(program);
    assert!(backend.submit(&[run()], false).is_err());
    assert_eq!(download(backend, x, n), vec![202.0; n]);
}

fn programs_that_break_a_rule_are_refused(backend: &dyn Backend) {
    let kernel = compile_add(backend);
    let [a, b, y] = allocate(backend, 16);
    backend.free(y);
    let unknown = Step { command: Command::Run(ProgramId(77)), barrier: true };
    assert!(backend.submit(std::slice::from_ref(&unknown), false).is_err());
    if backend.info().backend != BackendKind::WebGpu {
        assert!(backend.prepare(&[dispatch(kernel, [a, b, y], 4, false)]).is_err());
        let program = backend.prepare(&[dispatch(kernel, [a, a, b], 4, false)]).unwrap().unwrap();
        let nested = Step { command: Command::Run(program), barrier: true };
        assert!(backend.prepare(&[nested]).is_err(), "a program runs no other program");
    }
}

fn tickets_count_batches_which_complete_in_order(backend: &dyn Backend) {
    let kernel = compile_add(backend);
    assert_eq!(backend.completed().unwrap(), Ticket(0));
    backend.wait(Ticket(0)).unwrap();
    let buffers = allocate(backend, 1 << 20);
    let work = [dispatch(kernel, buffers, 1 << 18, false)];
    let mut last = Ticket(0);
    let mut look = |newest| {
        let completed = backend.completed().unwrap();
        assert!(last <= completed && completed <= newest, "{last:?} {completed:?}");
        last = completed;
        completed
    };
    for number in 1..=100 {
        let steps = if number % 2 == 0 { &work[..] } else { &[] };
        assert_eq!(backend.submit(steps, false).unwrap(), Ticket(number));
        look(Ticket(number));
    }
    backend.wait(Ticket(60)).unwrap();
    assert!(look(Ticket(100)) >= Ticket(60));
    while look(Ticket(100)) < Ticket(100) {}
    backend.wait(Ticket(100)).unwrap();
    backend.wait(Ticket(1)).unwrap();
}

fn an_empty_batch_completes(backend: &dyn Backend) {
    let ticket = backend.submit(&[], false).unwrap();
    backend.wait(ticket).unwrap();
    assert_eq!(backend.completed().unwrap(), ticket);
}

fn waiting_for_a_batch_of_the_future_is_an_error(backend: &dyn Backend) {
    assert_invalid(backend, &backend.wait(Ticket(1)).unwrap_err(), "wait");
    backend.submit(&[], false).unwrap();
    backend.wait(Ticket(1)).unwrap();
    assert_invalid(backend, &backend.wait(Ticket(2)).unwrap_err(), "wait");
}

fn threads_compile_submit_and_read_at_once(backend: &dyn Backend) {
    let shared = compile_add(backend);
    let work = |thread: u16| {
        let constant = f32::from(thread);
        let own = compile(backend, &add_kernel(backend, constant));
        let n = 100 + usize::from(thread);
        let step = upload(backend, &vec![1.0; n]);
        let mut tickets = Vec::new();
        for round in 1..=10_u16 {
            let [x, y] = [constant, 0.0].map(|value| upload(backend, &vec![value; n]));
            // There with the thread's own kernel, and back with the shared one.
            let steps = [dispatch(own, [x, step, y], n as u32, true), dispatch(shared, [y, step, x], n as u32, true)];
            for _ in 0..round {
                tickets.push(backend.submit(&steps, false).unwrap());
            }
            let expected = constant + f32::from(round) * (2.0 + constant);
            assert_eq!(download(backend, x, n), vec![expected; n]);
            [x, y].into_iter().for_each(|buffer| backend.free(buffer));
        }
        tickets
    };
    let mut tickets: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    tickets.sort_unstable();
    tickets.dedup();
    assert_eq!(tickets.len(), 8 * 55);
}

fn steps_that_break_a_rule_are_refused(backend: &dyn Backend) {
    let kernel = compile_add(backend);
    let [a, b, y] = [[1.0; 8].as_slice(), &[2.0; 4], &[-1.0; 4]].map(|data| upload(backend, data));
    let [gone] = allocate(backend, 16);
    backend.free(gone);
    let newest = backend.completed().unwrap();
    let good = dispatch(kernel, [a, b, y], 4, false);
    let refused = |step: Step| {
        let error = backend.submit(&[good.clone(), step.clone()], true).unwrap_err();
        (error, step)
    };
    let [mut few_buffers, mut no_parameters, mut many_groups] = [(); 3].map(|()| good.clone());
    if let Command::Dispatch { buffers, .. } = &mut few_buffers.command {
        buffers.truncate(2);
    }
    if let Command::Dispatch { parameters, .. } = &mut no_parameters.command {
        parameters.clear();
    }
    if let Command::Dispatch { groups, .. } = &mut many_groups.command {
        groups[1] = u32::MAX;
    }
    for (step, expected) in [(few_buffers, "2"), (no_parameters, "0")] {
        let (error, step) = refused(step);
        assert!(matches!(error, Error::Kernel { .. }) && error.to_string().contains(expected), "{step:?}: {error}");
    }
    if backend.info().limits.max_groups < u32::MAX {
        let (error, _) = refused(many_groups);
        match backend.info().backend {
            BackendKind::WebGpu => assert_invalid(backend, &error, "submit"),
            _ => assert!(matches!(error, Error::Kernel { .. }), "{error}"),
        }
    }
    let wrong = [
        (dispatch(KernelId(7), [a, a, b], 4, false), "7"),
        (dispatch(kernel, [a, gone, b], 4, false), "buffer"),
        (copy(gone, a, 16, false), "buffer"),
        (copy(a, gone, 16, false), "buffer"),
        (copy(a, a, 16, false), "buffer"),
        (copy(a, b, 32, false), "ends at byte 32 of the destination"),
        (copy(b, a, 20, false), "ends at byte 20 of the source"),
        (copy(a, b, 0, false), "nothing is to be copied"),
    ];
    for (step, expected) in wrong {
        let (error, step) = refused(step);
        assert_invalid(backend, &error, "submit");
        assert!(error.to_string().to_lowercase().contains(expected), "{step:?}: {error}");
    }
    assert_eq!(download(backend, y, 4), [-1.0; 4], "none of a refused batch is done");
    let next = Ticket(newest.0 + 2);
    assert_eq!(backend.submit(&[good], false).unwrap(), next, "the download took a ticket, and no refused batch");
    assert_eq!(download(backend, y, 4), [3.0; 4]);
}

fn buffers_that_are_misused_are_refused(backend: &dyn Backend) {
    let [upload, readback, gone] =
        [MemoryUse::Upload, MemoryUse::Readback, DEVICE].map(|memory| backend.allocate(16, memory).unwrap());
    backend.free(gone);
    backend.free(gone);
    assert_invalid(backend, &backend.write(gone, 0, &[0; 4]).unwrap_err(), "write");
    assert_invalid(backend, &backend.write(upload, 0, &[0; 17]).unwrap_err(), "write");
    assert_invalid(backend, &backend.write(upload, 4, &[0; 13]).unwrap_err(), "write");
    assert_invalid(backend, &backend.write(upload, u64::MAX, &[0; 4]).unwrap_err(), "write");
    for (buffer, bytes) in [(gone, 4), (readback, 17)] {
        let answer = read(backend, buffer, bytes, Ticket(0));
        assert_invalid(backend, &told(&answer).unwrap_err(), "read");
    }
    backend.write(upload, 0, &[7; 16]).unwrap();
    let ticket = backend.submit(&[copy(upload, readback, 16, false)], false).unwrap();
    assert_eq!(read_now(backend, readback, 16, ticket), [7; 16]);
}

/// Rows and slices with no gaps, or with gaps of a few bytes. All numbers are multiples of `unit`.
fn pitch([row, rows, _]: [u64; 3], unit: u64) -> impl Strategy<Value = Pitch> {
    let gaps = prop_oneof![Just((0, 0)), (1..9u64, 0..9u64), (Just(0), 1..9u64)];
    (0..70u64, gaps).prop_map(move |(offset, (gap, slice_gap))| {
        let row = row + gap * unit;
        Pitch { offset: offset * unit, row, slice: rows * row + slice_gap * unit }
    })
}

fn region(unit: u64) -> impl Strategy<Value = Region> {
    let extent = (1..40u64, 1..9u64, 1..6u64).prop_map(move |(row, rows, slices)| [row * unit, rows, slices]);
    extent.prop_flat_map(move |extent| {
        (pitch(extent, unit), pitch(extent, unit)).prop_map(move |(src, dst)| Region { extent, src, dst })
    })
}

/// Returns the size of the smallest buffer that holds a box.
fn room([row, rows, slices]: [u64; 3], pitch: &Pitch) -> u64 {
    whole((pitch.offset + (slices - 1) * pitch.slice + (rows - 1) * pitch.row + row) as usize)
}

/// Copies a box on the host, byte by byte.
fn copy_on_host(Region { extent: [row, rows, slices], src: from, dst: to }: Region, src: &[u8], dst: &mut [u8]) {
    for (slice, y, x) in (0..slices).flat_map(|slice| (0..rows).flat_map(move |y| (0..row).map(move |x| (slice, y, x))))
    {
        let place = |pitch: Pitch| (pitch.offset + slice * pitch.slice + y * pitch.row + x) as usize;
        dst[place(to)] = src[place(from)];
    }
}

fn boxes_are_copied_byte_by_byte(backend: &dyn Backend) {
    let config = ProptestConfig { failure_persistence: None, cases: 128, ..Default::default() };
    let places = prop::sample::select(KINDS.to_vec());
    let check = |(region, place): (Region, MemoryKind)| {
        let [src_bytes, dst_bytes] = [region.src, region.dst].map(|pitch| room(region.extent, &pitch));
        let source: Vec<u8> = (0..src_bytes).map(|i| (i * 7 % 251) as u8).collect();
        let mut expected = vec![0xee; dst_bytes as usize];
        let [staging, background] = [&source, &expected].map(|data| upload_bytes(backend, data));
        let between = backend.allocate(src_bytes, MemoryUse::Kernels(place)).unwrap();
        let [result] = allocate(backend, dst_bytes);
        let steps = [
            copy(staging, between, src_bytes, false),
            copy(background, result, dst_bytes, false),
            copy_box(between, result, region, true),
        ];
        backend.submit(&steps, false).unwrap();
        let found = download_bytes(backend, result, expected.len());
        copy_on_host(region, &source, &mut expected);
        [staging, background, between, result].into_iter().for_each(|buffer| backend.free(buffer));
        prop_assert_eq!(found, expected);
        Ok(())
    };
    let unit = backend.info().limits.copy_alignment;
    TestRunner::new(config).run(&(region(unit), places), check).unwrap();
}

fn a_box_that_leaves_a_buffer_is_refused(backend: &dyn Backend) {
    let [small, large] = [vec![1; 128], vec![2; 4096]].map(|data| upload_bytes(backend, &data));
    // Its last byte is the last of the small buffer.
    let wide = Pitch { offset: 4, row: 32, slice: 256 };
    let good = Region { extent: [28, 4, 1], src: wide, dst: wide };
    let far = u64::MAX - 3;
    let bad = [
        (Region { extent: [32, 4, 1], ..good }, "byte 132 of the source, which has 128"),
        (Region { extent: [28, 5, 1], ..good }, "source"),
        (Region { extent: [28, 4, 2], ..good }, "source"),
        (Region { extent: [28, 0, 1], ..good }, "nothing"),
        (Region { src: Pitch { offset: 8, ..wide }, ..good }, "source"),
        (Region { dst: Pitch { offset: 4096, ..wide }, ..good }, "destination"),
        (Region { src: Pitch { offset: far, ..wide }, ..good }, "beyond"),
        (Region { dst: Pitch { row: far, ..wide }, ..good }, "beyond"),
        (Region { dst: Pitch { row: 24, ..wide }, ..good }, "overlap"),
    ];
    for (region, expected) in bad {
        let error = backend.submit(&[copy_box(small, large, region, false)], false).unwrap_err();
        assert_invalid(backend, &error, "submit");
        assert!(error.to_string().contains(expected), "{region:?}: {error}");
    }
    assert!(backend.submit(&[copy_box(large, large, good, false)], false).is_err());
    backend.submit(&[copy_box(small, large, good, false)], false).unwrap();
    let mut expected = vec![2; 4096];
    copy_on_host(good, &[1; 128], &mut expected);
    assert_eq!(download_bytes(backend, large, 4096), expected);
}

fn a_readback_buffer_serves_again(backend: &dyn Backend) {
    let readback = backend.allocate(16, MemoryUse::Readback).unwrap();
    for value in [1.0_f32, 2.0, 3.0] {
        let source = upload(backend, &[value; 4]);
        let ticket = backend.submit(&[copy(source, readback, 16, false)], false).unwrap();
        assert_eq!(read_now(backend, readback, 4, ticket), value.to_le_bytes());
    }
}

fn reads_of_several_batches_are_answered_by_one_wait(backend: &dyn Backend) {
    let answers: Vec<_> = (0..20_u8)
        .map(|value| {
            let (source, readback) =
                (upload_bytes(backend, &[value; 16]), backend.allocate(16, MemoryUse::Readback).unwrap());
            let ticket = backend.submit(&[copy(source, readback, 16, false)], false).unwrap();
            (ticket, read(backend, readback, 16, ticket))
        })
        .collect();
    backend.wait(answers[19].0).unwrap();
    for (value, (_, answer)) in (0..).zip(answers) {
        assert_eq!(told(&answer).unwrap(), [value; 16]);
    }
}

fn a_read_that_begins_late_is_answered_by_the_next_wait(backend: &dyn Backend) {
    let source = upload(backend, &[7.0; 4]);
    let readback = backend.allocate(16, MemoryUse::Readback).unwrap();
    let ticket = backend.submit(&[copy(source, readback, 16, false)], false).unwrap();
    backend.wait(ticket).unwrap();
    assert_eq!(read_now(backend, readback, 16, ticket), 7.0_f32.to_le_bytes().repeat(4));
}

/// Reads a buffer of `readback` in each of 8 threads, a hundred times.
fn read_from_threads(backend: &dyn Backend, readback: [BufferId; 8]) {
    std::thread::scope(|scope| {
        for buffer in readback {
            scope.spawn(move || {
                for _ in 0..100 {
                    let ticket = backend.submit(&[], false).unwrap();
                    assert_eq!(read_now(backend, buffer, 16, ticket).len(), 16);
                }
            });
        }
    });
}

fn a_wait_returns_when_callbacks_have_returned_whichever_thread_runs_them(backend: &dyn Backend) {
    read_from_threads(backend, [(); 8].map(|()| backend.allocate(16, MemoryUse::Readback).unwrap()));
}

fn closing_a_device_answers_its_reads(backend: &dyn Backend) {
    let backend = open(backend.info().backend);
    let [due, never] = [(); 2].map(|()| backend.allocate(16, MemoryUse::Readback).unwrap());
    let source = upload(&*backend, &[2.0; 4]);
    let ticket = backend.submit(&[copy(source, due, 16, false)], false).unwrap();
    let answers = [read(&*backend, due, 16, ticket), read(&*backend, never, 16, Ticket(1000))];
    drop(backend);
    let [due, never] = answers.map(|answer| told(&answer));
    match due {
        Ok(bytes) => assert_eq!(bytes, 2.0_f32.to_le_bytes().repeat(4)),
        Err(error) => assert!(matches!(error, Error::DeviceLost { .. }), "{error}"),
    }
    let error = never.unwrap_err();
    assert!(matches!(error, Error::DeviceLost { .. } | Error::InvalidArgument { op: "read", .. }), "{error}");
}

/// Returns by how many nanoseconds a device's clock and the host's may differ once compared. On a busy machine, the
/// scheduler may delay the second look. With wgpu, a look takes as long as a tiny submission and the wait for it.
fn clock_slack(backend: &dyn Backend) -> u64 {
    match backend.info().backend {
        BackendKind::Vulkan | BackendKind::LevelZero => 1_000_000,
        BackendKind::WebGpu => 5_000_000,
    }
}

fn steps_are_timed_in_order_on_the_clock_of_the_host(backend: &dyn Backend) {
    let kernel = compile_add(backend);
    let n = 1 << 18;
    let bytes = 4 * n as u64;
    let [one, y] = [1.0, 0.0].map(|value| upload(backend, &vec![value; n]));
    let outputs = allocate::<10>(backend, bytes);
    // The first ten share nothing, so they could overlap if they were not timed. The others wait.
    let mut steps = outputs.map(|output| dispatch(kernel, [one, one, output], n as u32, false)).to_vec();
    let [long, short] = [n as u32, 1].map(|count| dispatch(kernel, [one, one, outputs[0]], count, true));
    steps.extend([short.clone(), long.clone(), copy(one, y, 16, true), copy(one, y, bytes, true)]);
    steps.extend([short, long, copy(one, y, 16, true)]);
    // The driver compiles at the first run.
    let ticket = backend.submit(&steps, false).unwrap();
    backend.wait(ticket).unwrap();
    let (mut longest, mut shortest) = ([0; 17], [u64::MAX; 17]);
    for round in 0..5 {
        let before = now();
        let ticket = backend.submit(&steps, true).unwrap();
        backend.wait(ticket).unwrap();
        let after = now();
        let times = backend.timings(ticket).unwrap();
        assert_eq!(times.len(), steps.len());
        assert!(times.iter().all(|time| time.start <= time.end), "{times:?}");
        assert!(times.is_sorted_by(|a, b| a.end <= b.start), "each ends before the next: {times:?}");
        let (slack, [first, .., last]) = (clock_slack(backend), &times[..]) else { panic!() };
        assert!(before <= first.start + slack && last.end <= after + slack, "{before} {times:?} {after}");
        for (step, time) in times.iter().enumerate() {
            let duration = time.end - time.start;
            (longest[step], shortest[step]) = (longest[step].max(duration), shortest[step].min(duration));
        }
        assert!(backend.timings(ticket).is_err(), "round {round} was told twice");
    }
    // The times are those of the steps: no device adds or moves megabytes in less, and short steps are short. On a busy
    // machine this holds in some rounds only.
    assert!((0..10).chain([11, 13, 15]).all(|step| shortest[step] > 100), "{shortest:?}");
    assert!(longest[11].max(longest[15]) > shortest[10].min(shortest[14]), "{longest:?} {shortest:?}");
    assert!(longest[13] > shortest[12].min(shortest[16]), "{longest:?} {shortest:?}");
    assert_eq!(download(backend, y, n), vec![1.0; n]);
}

fn timings_are_kept_for_each_batch_until_they_are_asked_for(backend: &dyn Backend) {
    let [a, b] = [[1.0; 4], [0.0; 4]].map(|data| upload(backend, &data));
    let lengths = [3, 0, 1000, 1, 2];
    let tickets = lengths.map(|length| backend.submit(&vec![copy(a, b, 16, true); length], true).unwrap());
    let untimed = backend.submit(&[copy(a, b, 16, false)], false).unwrap();
    backend.wait(untimed).unwrap();
    for (ticket, length) in tickets.into_iter().zip(lengths).rev() {
        assert_eq!(backend.timings(ticket).unwrap().len(), length);
    }
    for none in [tickets[0], untimed, Ticket(0), Ticket(untimed.0 + 1), Ticket(1000)] {
        assert_invalid(backend, &backend.timings(none).unwrap_err(), "timings");
    }
}

/// Tests for devices on which the host reaches buffers in place: a read only looks.
mod where_the_host_reaches_buffers {
    use super::*;

    /// Runs a test on WebGPU, in another process if this one forces wgpu to open the device by itself.
    pub fn through_wgpu(test: &str, run: impl FnOnce(&dyn Backend)) {
        const CHILD: &str = "MARQUETRY_TEST_REACHED_CHILD";
        let backend = open(BackendKind::WebGpu);
        if backend.rewrites_uploads() {
            return run(&*backend);
        }
        if std::env::var_os(CHILD).is_none() {
            return run_again(test, &[("MARQUETRY_FORCE", ""), ("MARQUETRY_VALIDATION", "1"), (CHILD, "1")]);
        }
        assert!(!backend.info().driver.contains("on Vulkan"), "the host reaches buffers without wgpu");
    }

    pub fn the_host_and_kernels_share_a_buffer_in_place(backend: &dyn Backend) {
        let info = backend.info();
        if !info.host_visible {
            // On GPUs wgpu makes the buffers of kernels.
            return assert!(info.backend == BackendKind::WebGpu && info.kind != DeviceKind::Cpu, "{info}");
        }
        let kernel = compile_add(backend);
        let bytes = |data: &[f32]| bytemuck::cast_slice(data).to_vec();
        for kind in [MemoryKind::Shared, MemoryKind::Host] {
            let [a, b, sum, end] = [(); 4].map(|()| backend.allocate(4000, MemoryUse::Kernels(kind)).unwrap());
            let numbers: Vec<f32> = (0..1000).map(|i| i as f32).collect();
            backend.write(a, 0, &bytes(&numbers)).unwrap();
            backend.write(b, 0, &bytes(&[2.0; 1000])).unwrap();
            let ticket = backend.submit(&[dispatch(kernel, [a, b, sum], 1000, false)], false).unwrap();
            let mut expected: Vec<f32> = numbers.iter().map(|x| x + 2.0).collect();
            assert_eq!(read_now(backend, sum, 4000, ticket), bytes(&expected), "{kind}");
            // The host's write leaves what the kernel wrote beside it.
            backend.write(sum, 0, &bytes(&[-1.0; 3])).unwrap();
            let steps = [dispatch(kernel, [sum, b, a], 1000, false), dispatch(kernel, [a, b, end], 1000, true)];
            let ticket = backend.submit(&steps, false).unwrap();
            expected[..3].fill(-1.0);
            expected.iter_mut().for_each(|x| *x += 4.0);
            assert_eq!(read_now(backend, end, 4000, ticket), bytes(&expected), "{kind}");
        }
    }

    pub fn a_read_is_answered_once_and_after_its_batch(backend: &dyn Backend) {
        let staging = backend.allocate(16, MemoryUse::Readback).unwrap();
        let x = upload(backend, &[1.5; 4]);
        let next = Ticket(backend.completed().unwrap().0 + 1);
        let early = read(backend, staging, 16, next);
        assert!(early.try_recv().is_err());
        assert_eq!(backend.submit(&[copy(x, staging, 16, false)], false).unwrap(), next);
        backend.wait(next).unwrap();
        let expected = 1.5_f32.to_le_bytes().repeat(4);
        assert_eq!(told(&early).unwrap(), expected);
        let late = read(backend, staging, 8, next);
        assert_eq!(told(&late).unwrap(), expected[..8]);
    }

    pub fn reads_of_one_buffer_may_overlap(backend: &dyn Backend) {
        read_from_threads(backend, [backend.allocate(16, MemoryUse::Readback).unwrap(); 8]);
    }

    pub fn closing_a_device_reads_what_was_submitted(backend: &dyn Backend) {
        let backend = open(backend.info().backend);
        let staging = backend.allocate(16, MemoryUse::Readback).unwrap();
        let x = upload(&*backend, &[2.0; 4]);
        let ticket = backend.submit(&[copy(x, staging, 16, false)], false).unwrap();
        let due = read(&*backend, staging, 16, ticket);
        drop(backend);
        assert_eq!(told(&due).unwrap(), 2.0_f32.to_le_bytes().repeat(4));
    }
}
