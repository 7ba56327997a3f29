//! What the tests of this backend share.

use super::WebGpuBackend;
use crate::device::backend::{Backend, BufferId, Command, KernelId, MemoryUse, Region, Step, Ticket};
use crate::device::{Features, MemoryKind};
use crate::error::Result;
use crate::shader::{Access, Code, Module};
use rspirv::binary::Assemble;
use rspirv::dr::{Builder, Operand};
use rspirv::spirv::{
    AddressingModel, BuiltIn, Capability, Decoration, ExecutionMode, ExecutionModel, FunctionControl, MemoryModel,
    SelectionControl, StorageClass, Word,
};
use std::sync::mpsc;

/// Opens the first device.
pub fn open() -> WebGpuBackend {
    pollster::block_on(WebGpuBackend::open(0)).unwrap_or_else(|error| panic!("{error}"))
}

/// `y[i] = a[i] + b[i] + constant` for `i < count`, with `a`, `b`, `y` at bindings 0 to 2 and `count` as parameter.
/// Different constants make different kernels.
pub fn add_kernel(constant: f32) -> Module {
    let mut b = Builder::new();
    b.set_version(1, 3);
    b.capability(Capability::Shader);
    b.memory_model(AddressingModel::Logical, MemoryModel::GLSL450);
    let void = b.type_void();
    let boolean = b.type_bool();
    let uint = b.type_int(32, 0);
    let float = b.type_float(32, None);
    let zero = b.constant_bit32(uint, 0);
    let constant_id = b.constant_bit32(float, constant.to_bits());

    let elements = b.id();
    b.type_runtime_array_id(Some(elements), float);
    b.decorate(elements, Decoration::ArrayStride, [Operand::LiteralBit32(4)]);
    let buffers = [0, 1, 2].map(|binding| block(&mut b, elements, StorageClass::StorageBuffer, binding));
    for read_only in &buffers[..2] {
        b.decorate(*read_only, Decoration::NonWritable, []);
    }
    let parameters = block(&mut b, uint, StorageClass::Uniform, 3);
    let uint3 = b.type_vector(uint, 3);
    let input = b.type_pointer(None, StorageClass::Input, uint3);
    let invocation = b.variable(input, None, StorageClass::Input, None);
    b.decorate(invocation, Decoration::BuiltIn, [Operand::BuiltIn(BuiltIn::GlobalInvocationId)]);

    let signature = b.type_function(void, []);
    let main = b.begin_function(void, None, FunctionControl::NONE, signature).unwrap();
    b.begin_block(None).unwrap();
    let position = b.load(uint3, None, invocation, None, []).unwrap();
    let i = b.composite_extract(uint, None, position, [0]).unwrap();
    let uniform = b.type_pointer(None, StorageClass::Uniform, uint);
    let count = b.access_chain(uniform, None, parameters, [zero]).unwrap();
    let count = b.load(uint, None, count, None, []).unwrap();
    let inside = b.u_less_than(boolean, None, i, count).unwrap();
    let (then, merge) = (b.id(), b.id());
    b.selection_merge(merge, SelectionControl::NONE).unwrap();
    b.branch_conditional(inside, then, merge, []).unwrap();
    b.begin_block(Some(then)).unwrap();
    let storage = b.type_pointer(None, StorageClass::StorageBuffer, float);
    let [x, y, out] = buffers.map(|buffer| b.access_chain(storage, None, buffer, [zero, i]).unwrap());
    let x = b.load(float, None, x, None, []).unwrap();
    let y = b.load(float, None, y, None, []).unwrap();
    let sum = b.f_add(float, None, x, y).unwrap();
    let sum = b.f_add(float, None, sum, constant_id).unwrap();
    b.store(out, sum, None, []).unwrap();
    b.branch(merge).unwrap();
    b.begin_block(Some(merge)).unwrap();
    b.ret().unwrap();
    b.end_function().unwrap();
    b.entry_point(ExecutionModel::GLCompute, main, "main", [invocation]);
    b.execution_mode(main, ExecutionMode::LocalSize, [64, 1, 1]);
    Module {
        name: format!("add_{constant}"),
        code: Code::Spirv(b.module().assemble()),
        entry_point: "main".into(),
        bindings: vec![Access::Read, Access::Read, Access::Write],
        parameter_words: 1,
        workgroup: [64, 1, 1],
        workgroup_memory: 0,
        requires: Features::default(),
        trusted: true,
        large_registers: false,
        large_buffers: false,
    }
}

/// A kernel that a user brings: WGSL with an entry point `run`, that is not trusted.
pub fn wgsl_kernel(source: &str, bindings: &[Access], parameter_words: usize) -> Module {
    Module {
        name: "brought".into(),
        code: Code::Wgsl(source.into()),
        entry_point: "run".into(),
        bindings: bindings.to_vec(),
        parameter_words,
        trusted: false,
        ..add_kernel(0.0)
    }
}

/// A variable at `binding` that is a struct of one member.
fn block(b: &mut Builder, member: Word, class: StorageClass, binding: u32) -> Word {
    let fields = b.id();
    b.type_struct_id(Some(fields), [member]);
    b.decorate(fields, Decoration::Block, []);
    b.member_decorate(fields, 0, Decoration::Offset, [Operand::LiteralBit32(0)]);
    let pointer = b.type_pointer(None, class, fields);
    let variable = b.variable(pointer, None, class, None);
    b.decorate(variable, Decoration::DescriptorSet, [Operand::LiteralBit32(0)]);
    b.decorate(variable, Decoration::Binding, [Operand::LiteralBit32(binding)]);
    variable
}

/// A dispatch of an [`add_kernel`].
pub fn add(kernel: KernelId, a: BufferId, b: BufferId, y: BufferId, count: u32) -> Step {
    let groups = [count.div_ceil(64), 1, 1];
    let command = Command::Dispatch {
        kernel,
        buffers: [a, b, y].into_iter().collect(),
        parameters: [count].into_iter().collect(),
        groups,
    };
    Step { command, barrier: true }
}

/// A copy of the first `bytes` bytes.
pub fn copy(src: BufferId, dst: BufferId, bytes: u64) -> Step {
    copy_region(src, dst, Region::linear(bytes))
}

pub fn copy_region(src: BufferId, dst: BufferId, region: Region) -> Step {
    Step { command: Command::CopyRegion { src, dst, region }, barrier: true }
}

/// A device buffer that holds `values`.
pub fn upload(backend: &WebGpuBackend, values: &[f32]) -> BufferId {
    upload_bytes(backend, bytemuck::cast_slice(values))
}

/// A device buffer that holds `bytes`.
pub fn upload_bytes(backend: &WebGpuBackend, bytes: &[u8]) -> BufferId {
    let size = (bytes.len() as u64).next_multiple_of(16);
    let staging = backend.allocate(size, MemoryUse::Upload).unwrap();
    let buffer = backend.allocate(size, MemoryUse::Kernels(MemoryKind::Device)).unwrap();
    backend.write(staging, bytes).unwrap();
    let ticket = backend.submit(&[copy(staging, buffer, size)], false).unwrap();
    backend.wait(ticket).unwrap();
    backend.free(staging);
    buffer
}

/// Begins to read the first `bytes` bytes of a readback buffer.
pub fn read(backend: &WebGpuBackend, buffer: BufferId, bytes: u64, after: Ticket) -> mpsc::Receiver<Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel();
    let send = move |result: Result<&[u8]>| {
        // If the receiver is gone, its test has failed.
        let _ = sender.send(result.map(<[u8]>::to_vec));
    };
    backend.read(buffer, bytes, after, Box::new(send));
    receiver
}

/// The first `count` values of a device buffer.
pub fn download(backend: &WebGpuBackend, buffer: BufferId, count: usize) -> Vec<f32> {
    bytemuck::pod_collect_to_vec(&download_bytes(backend, buffer, 4 * count as u64))
}

/// The first `bytes` bytes of a device buffer.
pub fn download_bytes(backend: &WebGpuBackend, buffer: BufferId, bytes: u64) -> Vec<u8> {
    let readback = backend.allocate(bytes.next_multiple_of(16), MemoryUse::Readback).unwrap();
    let ticket = backend.submit(&[copy(buffer, readback, bytes)], false).unwrap();
    let receiver = read(backend, readback, bytes, ticket);
    backend.wait(ticket).unwrap();
    let bytes = receiver.try_recv().unwrap().unwrap();
    backend.free(readback);
    bytes
}
