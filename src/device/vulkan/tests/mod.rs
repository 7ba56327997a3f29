//! The contract, kept on the machine's first Vulkan device. Without one, these tests fail.

mod batches;
mod copies;
mod kernels;
mod memory;
mod reads;
mod timings;

use super::*;
use crate::device::backend::{Command, KernelId, Region};
use crate::device::{Features, MemoryKind};
use crate::shader::{Access, Code};
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
    named_kernel("main")
}

/// The same with this entry point.
fn named_kernel(entry_point: &str) -> Module {
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
    b.entry_point(spirv::ExecutionModel::GLCompute, main, entry_point, [invocation]);
    b.execution_mode(main, spirv::ExecutionMode::LocalSize, [GROUP, 1, 1]);
    Module {
        name: "add".into(),
        code: Code::Spirv(b.module().assemble()),
        entry_point: entry_point.into(),
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
    Step { command: Command::CopyRegion { src, dst, region: Region::linear(bytes) }, barrier }
}

/// Bytes rounded up to what a buffer may have.
fn whole(bytes: usize) -> u64 {
    bytes.next_multiple_of(16) as u64
}

/// Makes a kernel ready.
fn compile(backend: &VulkanBackend, module: &Module) -> KernelId {
    backend.compile(module, None).unwrap().kernel
}

/// Memory of the device's own.
const DEVICE: MemoryUse = MemoryUse::Kernels(MemoryKind::Device);

/// A device buffer with these numbers in it.
fn upload(backend: &VulkanBackend, data: &[f32]) -> BufferId {
    upload_bytes(backend, bytemuck::cast_slice(data))
}

/// The first numbers in a device buffer, once all that was submitted is done.
fn download(backend: &VulkanBackend, buffer: BufferId, count: usize) -> Vec<f32> {
    bytemuck::pod_collect_to_vec(&download_bytes(backend, buffer, 4 * count))
}

/// A device buffer with these bytes in it.
fn upload_bytes(backend: &VulkanBackend, data: &[u8]) -> BufferId {
    let staging = backend.allocate(whole(data.len()), MemoryUse::Upload).unwrap();
    let buffer = backend.allocate(whole(data.len()), DEVICE).unwrap();
    backend.write(staging, data).unwrap();
    let ticket = backend.submit(&[copy(staging, buffer, data.len() as u64, false)], false).unwrap();
    backend.wait(ticket).unwrap();
    backend.free(staging);
    buffer
}

/// The first bytes of a device buffer, once all that was submitted is done.
fn download_bytes(backend: &VulkanBackend, buffer: BufferId, bytes: usize) -> Vec<u8> {
    let staging = backend.allocate(whole(bytes), MemoryUse::Readback).unwrap();
    let ticket = backend.submit(&[copy(buffer, staging, bytes as u64, false)], false).unwrap();
    let data = wait_for(backend, staging, bytes as u64, ticket);
    backend.free(staging);
    data
}

/// The first bytes of a buffer that the host reaches, once a batch has completed.
fn wait_for(backend: &VulkanBackend, buffer: BufferId, bytes: u64, after: Ticket) -> Vec<u8> {
    let answer = read(backend, buffer, bytes, after);
    backend.wait(after).unwrap();
    answer.recv().unwrap().unwrap()
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
    let count = list().unwrap().len();
    assert!(matches!(error, Error::BackendUnavailable { .. }));
    assert!(error.to_string().contains(&format!("the number of devices is {count}")), "{error}");
}
