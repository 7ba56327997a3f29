//! The contract, kept on the machine's first Vulkan device. Without one, these tests fail.

use super::*;
use crate::device::Features;
use crate::device::backend::Command;
use crate::shader::Access;
use rspirv::binary::Assemble;
use rspirv::dr::{Builder, Operand};
use rspirv::spirv;
use std::sync::mpsc;

/// Invocations per workgroup of the test kernel.
const GROUP: u32 = 64;

/// The first device.
pub(super) fn open() -> VulkanBackend {
    VulkanBackend::open(0).unwrap()
}

/// A kernel for `y[i] = a[i] + b[i]` where `i < count`, `count` being the one parameter.
fn add_kernel() -> Module {
    let mut b = Builder::new();
    b.set_version(1, 3);
    b.capability(spirv::Capability::Shader);
    b.memory_model(spirv::AddressingModel::Logical, spirv::MemoryModel::GLSL450);
    let void = b.type_void();
    let boolean = b.type_bool();
    let float = b.type_float(32, None);
    let uint = b.type_int(32, 0);
    let uint3 = b.type_vector(uint, 3);
    let zero = b.constant_bit32(uint, 0);

    let floats = b.type_runtime_array(float);
    b.decorate(floats, spirv::Decoration::ArrayStride, [Operand::LiteralBit32(4)]);
    let pointer = b.type_pointer(None, spirv::StorageClass::StorageBuffer, float);
    let block = block_pointer(&mut b, floats, spirv::StorageClass::StorageBuffer);
    let buffers = [0, 1, 2].map(|binding| {
        let variable = b.variable(block, None, spirv::StorageClass::StorageBuffer, None);
        b.decorate(variable, spirv::Decoration::DescriptorSet, [Operand::LiteralBit32(0)]);
        b.decorate(variable, spirv::Decoration::Binding, [Operand::LiteralBit32(binding)]);
        variable
    });
    let parameters = block_pointer(&mut b, uint, spirv::StorageClass::PushConstant);
    let parameters = b.variable(parameters, None, spirv::StorageClass::PushConstant, None);
    let parameter_pointer = b.type_pointer(None, spirv::StorageClass::PushConstant, uint);
    let input = b.type_pointer(None, spirv::StorageClass::Input, uint3);
    let invocation = b.variable(input, None, spirv::StorageClass::Input, None);
    let built_in = Operand::BuiltIn(spirv::BuiltIn::GlobalInvocationId);
    b.decorate(invocation, spirv::Decoration::BuiltIn, [built_in]);

    let signature = b.type_function(void, []);
    let main = b.begin_function(void, None, spirv::FunctionControl::NONE, signature).unwrap();
    b.begin_block(None).unwrap();
    let id = b.load(uint3, None, invocation, None, []).unwrap();
    let index = b.composite_extract(uint, None, id, [0]).unwrap();
    let count = b.access_chain(parameter_pointer, None, parameters, [zero]).unwrap();
    let count = b.load(uint, None, count, None, []).unwrap();
    let inside = b.u_less_than(boolean, None, index, count).unwrap();
    let (then, end) = (b.id(), b.id());
    b.selection_merge(end, spirv::SelectionControl::NONE).unwrap();
    b.branch_conditional(inside, then, end, []).unwrap();
    b.begin_block(Some(then)).unwrap();
    let [x, y, sum] = buffers.map(|buffer| b.access_chain(pointer, None, buffer, [zero, index]).unwrap());
    let x = b.load(float, None, x, None, []).unwrap();
    let y = b.load(float, None, y, None, []).unwrap();
    let added = b.f_add(float, None, x, y).unwrap();
    b.store(sum, added, None, []).unwrap();
    b.branch(end).unwrap();
    b.begin_block(Some(end)).unwrap();
    b.ret().unwrap();
    b.end_function().unwrap();
    b.entry_point(spirv::ExecutionModel::GLCompute, main, "main", [invocation]);
    b.execution_mode(main, spirv::ExecutionMode::LocalSize, [GROUP, 1, 1]);
    Module {
        name: "add".into(),
        code: Code::Spirv(b.module().assemble()),
        entry_point: "main".into(),
        bindings: vec![Access::Read, Access::Read, Access::Write],
        parameter_words: 1,
        workgroup: [GROUP, 1, 1],
        workgroup_memory: 0,
        requires: Features::default(),
        trusted: true,
        large_registers: false,
        large_buffers: false,
    }
}

/// A pointer to a block with one member.
fn block_pointer(b: &mut Builder, member: spirv::Word, class: spirv::StorageClass) -> spirv::Word {
    let id = b.id();
    let block = b.type_struct_id(Some(id), [member]);
    b.decorate(block, spirv::Decoration::Block, []);
    b.member_decorate(block, 0, spirv::Decoration::Offset, [Operand::LiteralBit32(0)]);
    b.type_pointer(None, class, block)
}

fn dispatch(kernel: KernelId, buffers: [BufferId; 3], count: u32, barrier: bool) -> Step {
    let groups = [count.div_ceil(GROUP), 1, 1];
    let command =
        Command::Dispatch { kernel, buffers: buffers.as_slice().into(), parameters: [count].as_slice().into(), groups };
    Step { command, barrier }
}

fn copy(src: BufferId, dst: BufferId, bytes: u64, barrier: bool) -> Step {
    Step { command: Command::Copy { src, dst, bytes }, barrier }
}

/// Bytes rounded up to what a buffer may have.
fn whole(bytes: usize) -> u64 {
    bytes.next_multiple_of(16) as u64
}

/// A device buffer with these numbers in it.
fn upload(backend: &VulkanBackend, data: &[f32]) -> BufferId {
    let bytes = size_of_val(data);
    let staging = backend.allocate(whole(bytes), MemoryUse::Upload).unwrap();
    let buffer = backend.allocate(whole(bytes), MemoryUse::Kernels(MemoryKind::Device)).unwrap();
    backend.write(staging, bytemuck::cast_slice(data)).unwrap();
    let ticket = backend.submit(&[copy(staging, buffer, bytes as u64, false)]).unwrap();
    backend.wait(ticket).unwrap();
    backend.free(staging);
    buffer
}

/// The first numbers in a device buffer, once all that was submitted is done.
fn download(backend: &VulkanBackend, buffer: BufferId, count: usize) -> Vec<f32> {
    let bytes = 4 * count as u64;
    let staging = backend.allocate(whole(4 * count), MemoryUse::Readback).unwrap();
    let ticket = backend.submit(&[copy(buffer, staging, bytes, false)]).unwrap();
    let answer = read(backend, staging, bytes, ticket);
    backend.wait(ticket).unwrap();
    let data = answer.recv().unwrap().unwrap();
    backend.free(staging);
    bytemuck::pod_collect_to_vec(&data)
}

/// Asks for a read; the answer comes through the channel, which closes with the callback.
fn read(backend: &VulkanBackend, buffer: BufferId, bytes: u64, after: Ticket) -> mpsc::Receiver<Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel();
    let done = move |result: Result<&[u8]>| sender.send(result.map(<[u8]>::to_vec)).unwrap();
    backend.read(buffer, bytes, after, Box::new(done));
    receiver
}

#[test]
fn every_listed_device_is_described() {
    let devices = list().unwrap();
    assert!(!devices.is_empty());
    for (index, device) in devices.iter().enumerate() {
        assert_eq!((device.backend, device.index), (BackendKind::Vulkan, index));
        assert!(!device.name.is_empty() && !device.driver.is_empty() && device.memory > 0, "{device:?}");
        let limits = &device.limits;
        assert!(limits.max_buffer_bytes >= 1 << 27 && limits.max_buffer_bytes.is_multiple_of(16), "{device:?}");
        assert!(limits.max_bindings >= 4 && limits.max_parameter_words >= 32, "{device:?}");
        assert!(limits.max_workgroup_invocations >= 128 && limits.max_workgroup_memory >= 16_384, "{device:?}");
        assert!(limits.max_groups >= 65_535, "{device:?}");
        assert!(!limits.subgroup_sizes.is_empty() && limits.subgroup_sizes.is_sorted(), "{device:?}");
    }
    assert_eq!(open().info(), &devices[0]);
}

#[test]
fn an_index_out_of_range_is_refused_with_the_number_of_devices() {
    let error = VulkanBackend::open(1000).err().unwrap();
    let count = list().unwrap().len();
    assert!(matches!(error, Error::BackendUnavailable { .. }));
    assert!(error.to_string().contains(&format!("the number of devices is {count}")), "{error}");
}

#[test]
fn bytes_come_back_as_they_went() {
    let backend = open();
    for count in [1, 5, 63, 1000, 65_537, (1 << 20) + 3] {
        let data: Vec<f32> = (0..count).map(|i| i as f32 * 0.5 - 7.0).collect();
        let buffer = upload(&backend, &data);
        assert_eq!(download(&backend, buffer, count), data, "{count}");
        backend.free(buffer);
    }
}

#[test]
fn a_kernel_computes_up_to_its_count() {
    let backend = open();
    let kernel = backend.compile(&add_kernel()).unwrap();
    let a: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let buffers = [upload(&backend, &a), upload(&backend, &[0.25; 1000]), upload(&backend, &[-1.0; 1000])];
    let ticket = backend.submit(&[dispatch(kernel, buffers, 777, false)]).unwrap();
    backend.wait(ticket).unwrap();
    let expected: Vec<f32> = (0..1000).map(|i| if i < 777 { i as f32 + 0.25 } else { -1.0 }).collect();
    assert_eq!(download(&backend, buffers[2], 1000), expected);
}

#[test]
fn barriers_order_a_chain_within_a_batch() {
    let backend = open();
    let kernel = backend.compile(&add_kernel()).unwrap();
    let n = 5000;
    let [x, one, y] = [vec![0.0; n], vec![1.0; n], vec![0.0; n]].map(|data| upload(&backend, &data));
    let steps: Vec<_> = (0..100)
        .map(|i| dispatch(kernel, if i % 2 == 0 { [x, one, y] } else { [y, one, x] }, n as u32, true))
        .collect();
    backend.submit(&steps).unwrap();
    assert_eq!(download(&backend, x, n), vec![100.0; n]);
}

#[test]
fn a_batch_sees_what_earlier_batches_wrote() {
    let backend = open();
    let kernel = backend.compile(&add_kernel()).unwrap();
    let n = 5000;
    let [x, one, y] = [vec![0.0; n], vec![1.0; n], vec![0.0; n]].map(|data| upload(&backend, &data));
    for _ in 0..50 {
        backend.submit(&[dispatch(kernel, [x, one, y], n as u32, false)]).unwrap();
        backend.submit(&[dispatch(kernel, [y, one, x], n as u32, false)]).unwrap();
    }
    assert_eq!(download(&backend, x, n), vec![100.0; n]);
}

#[test]
fn a_batch_may_have_thousands_of_dispatches() {
    let backend = open();
    let kernel = backend.compile(&add_kernel()).unwrap();
    let [x, one] = [[0.0; 4], [1.0; 4]].map(|data| upload(&backend, &data));
    for length in [1, 3000, 10, 7000] {
        let steps: Vec<_> = (0..length).map(|_| dispatch(kernel, [x, one, x], 4, true)).collect();
        backend.submit(&steps).unwrap();
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
        assert_eq!(backend.submit(&[]).unwrap(), Ticket(number));
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
fn threads_compile_submit_and_read_at_once() {
    let backend = open();
    let work = |thread: u32| {
        let kernel = backend.compile(&add_kernel()).unwrap();
        let n = 100 + thread as usize;
        let [x, step] = [vec![0.0; n], vec![thread as f32; n]].map(|data| upload(&backend, &data));
        let mut tickets = Vec::new();
        for _ in 0..25 {
            tickets.push(backend.submit(&[dispatch(kernel, [x, step, x], n as u32, false)]).unwrap());
        }
        assert_eq!(download(&backend, x, n), vec![25.0 * thread as f32; n]);
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
    assert_eq!(tickets.len(), 200);
}

#[test]
fn a_read_is_answered_once_and_after_its_batch() {
    let backend = open();
    let staging = backend.allocate(16, MemoryUse::Readback).unwrap();
    let x = upload(&backend, &[1.5; 4]);
    let next = Ticket(backend.completed().unwrap().0 + 1);
    let early = read(&backend, staging, 16, next);
    assert!(early.try_recv().is_err());
    assert_eq!(backend.submit(&[copy(x, staging, 16, false)]).unwrap(), next);
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
                    let ticket = backend.submit(&[]).unwrap();
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
    let ticket = backend.submit(&[copy(x, staging, 16, false)]).unwrap();
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
    assert!(lost(backend.device.error("vkQueueSubmit", ash::vk::Result::ERROR_DEVICE_LOST)));
    assert!(lost(backend.submit(&[]).unwrap_err()));
    assert!(lost(pending.recv().unwrap().unwrap_err()));
    assert!(lost(backend.completed().unwrap_err()));
    assert!(lost(backend.wait(Ticket(0)).unwrap_err()));
    assert!(lost(backend.allocate(16, MemoryUse::Kernels(MemoryKind::Device)).unwrap_err()));
    assert!(lost(backend.write(staging, &[]).unwrap_err()));
    assert!(lost(backend.compile(&add_kernel()).unwrap_err()));
    assert!(lost(read(&backend, staging, 16, Ticket(0)).recv().unwrap().unwrap_err()));
    backend.free(staging);
}

#[test]
fn a_buffer_beyond_the_limit_is_out_of_memory() {
    let backend = open();
    let limit = backend.info().limits.max_buffer_bytes;
    let held = backend.allocate(1 << 20, MemoryUse::Kernels(MemoryKind::Device)).unwrap();
    let error = backend.allocate(limit + 16, MemoryUse::Kernels(MemoryKind::Device)).unwrap_err();
    let Error::OutOfMemory { requested, in_use, limit: told } = error else { panic!("{error}") };
    assert_eq!((requested, told), (limit + 16, limit));
    assert!((1 << 20..1 << 21).contains(&in_use), "{in_use}");
    backend.free(held);
    let error = backend.allocate(limit + 16, MemoryUse::Kernels(MemoryKind::Device)).unwrap_err();
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
        let error = backend.compile(&module).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }
    let all = Features { f16: true, subgroups: true };
    let compiled = backend.compile(&Module { requires: all, ..add });
    let has_all = all.missing_from(&backend.info().features).is_none();
    assert_eq!(compiled.is_ok(), has_all, "{compiled:?}");
}

#[test]
fn steps_that_break_a_rule_are_refused() {
    let backend = open();
    let kernel = backend.compile(&add_kernel()).unwrap();
    let [a, b] = [32, 16].map(|bytes| backend.allocate(bytes, MemoryUse::Kernels(MemoryKind::Device)).unwrap());
    let gone = backend.allocate(16, MemoryUse::Kernels(MemoryKind::Device)).unwrap();
    backend.free(gone);
    let mut few_buffers = dispatch(kernel, [a, a, b], 4, false);
    let mut no_parameters = few_buffers.clone();
    let mut many_groups = few_buffers.clone();
    if let Command::Dispatch { buffers, .. } = &mut few_buffers.command {
        buffers.truncate(2);
    }
    if let Command::Dispatch { parameters, .. } = &mut no_parameters.command {
        parameters.clear();
    }
    if let Command::Dispatch { groups, .. } = &mut many_groups.command {
        groups[1] = u32::MAX;
    }
    for step in [few_buffers, no_parameters, many_groups] {
        assert!(matches!(backend.submit(&[step]).unwrap_err(), Error::Kernel { .. }));
    }
    let wrong = [
        copy(a, b, 32, false),
        copy(a, b, 6, false),
        copy(a, b, 0, false),
        copy(a, a, 16, false),
        copy(gone, a, 16, false),
        dispatch(KernelId(7), [a, a, b], 4, false),
    ];
    for step in wrong {
        let error = backend.submit(std::slice::from_ref(&step)).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { op: "submit", .. }), "{step:?}: {error}");
    }
    assert!(backend.write(a, &[0; 64]).is_err());
    assert_eq!(backend.submit(&[copy(a, b, 16, false)]).unwrap(), Ticket(1), "a refused batch takes no ticket");
}

/// Runs itself in another process, because validation is switched on for the whole process.
#[test]
fn validation_reports_a_missing_barrier() {
    const CHILD: &str = "MARQUETRY_TEST_VALIDATION_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let (_, module) = module_path!().split_once("::").unwrap();
        let test = format!("{module}::validation_reports_a_missing_barrier");
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([&test, "--exact", "--nocapture", "--test-threads=1"])
            .env("MARQUETRY_VALIDATION", "1")
            .env(CHILD, "1")
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&child.stdout);
        assert!(
            child.status.success() && output.contains("1 passed"),
            "{output}\n{}",
            String::from_utf8_lossy(&child.stderr)
        );
        return;
    }
    let backend = open();
    let kernel = backend.compile(&add_kernel()).unwrap();
    let [a, b, c] = [(); 3].map(|()| backend.allocate(1024, MemoryUse::Kernels(MemoryKind::Device)).unwrap());
    let copies = |barrier| vec![copy(a, b, 1024, false), copy(b, c, 1024, barrier)];
    let dispatches = |barrier| vec![dispatch(kernel, [a, a, b], 256, false), dispatch(kernel, [b, a, c], 256, barrier)];
    for hazard in [&copies as &dyn Fn(bool) -> Vec<Step>, &dispatches] {
        let error = backend.submit(&hazard(false)).unwrap_err();
        assert!(matches!(&error, Error::Validation { message } if message.contains("SYNC-HAZARD")), "{error}");
        let ticket = backend.submit(&hazard(true)).unwrap();
        backend.wait(ticket).unwrap();
    }
}
