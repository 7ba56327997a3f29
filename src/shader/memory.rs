//! What a kernel stores to: buffers, workgroup memory, local arrays and variables; atomics on them.

use super::builder::KernelBuilder;
use super::module::Access;
use super::target::Dialect;
use super::types::{Scalar, Type};
use super::value::{IntoValue, Value};
use rspirv::dr::Operand;
use rspirv::spirv::{MemorySemantics, Op, Scope, StorageClass, Word};

/// A mutable variable of an invocation.
#[derive(Clone, Copy)]
pub struct Var<'k> {
    kernel: &'k KernelBuilder,
    pointer: Word,
    ty: Type,
}

impl<'k> Var<'k> {
    /// Its value now.
    pub fn get(self) -> Value<'k> {
        self.kernel.emit(Op::Load, self.ty, [Operand::IdRef(self.pointer)])
    }

    /// Gives it a new value.
    pub fn set(self, value: impl IntoValue<'k>) {
        let value = value.into_value(self.kernel, self.ty);
        self.kernel.store(self.pointer, value, self.ty);
    }
}

/// Elements in a row: a buffer, an array in workgroup memory, or an array of one invocation.
#[derive(Clone, Copy)]
pub struct Array<'k> {
    kernel: &'k KernelBuilder,
    variable: Word,
    class: StorageClass,
    element: Type,
}

impl<'k> Array<'k> {
    fn pointer(self, index: impl IntoValue<'k>, lane: Option<Value<'k>>) -> Word {
        let kernel = self.kernel;
        let index = index.into_value(kernel, Type::U32);
        if index.ty() != Type::U32 {
            kernel.fail(format!("an index is u32, not {}", index.ty()));
        }
        let ty = if lane.is_some() { self.element.lane() } else { self.element };
        let pointer_type = kernel.pointer_type(self.class, kernel.type_id(ty));
        let mut operands = vec![Operand::IdRef(self.variable)];
        let op = match self.class {
            StorageClass::StorageBuffer => {
                // The array is the only member of the buffer's block.
                operands.extend([kernel.u32(0).operand(), index.operand()]);
                Op::AccessChain
            }
            StorageClass::CrossWorkgroup => {
                operands.push(Operand::IdRef(kernel.wide_index(index)));
                Op::InBoundsPtrAccessChain
            }
            _ => {
                operands.push(index.operand());
                Op::AccessChain
            }
        };
        operands.extend(lane.map(Value::operand));
        kernel.emit_id(op, pointer_type, operands)
    }

    /// The element at `index`.
    pub fn load(self, index: impl IntoValue<'k>) -> Value<'k> {
        let pointer = self.pointer(index, None);
        self.kernel.load_from(pointer, self.class, self.element)
    }

    /// One lane of an array of vectors, counted over all vectors.
    pub fn load_lane(self, index: impl IntoValue<'k>) -> Value<'k> {
        let index = index.into_value(self.kernel, Type::U32);
        if self.element.lanes == 1 {
            return self.load(index);
        }
        let pointer = self.pointer(index / self.element.lanes, Some(index % self.element.lanes));
        self.kernel.load_from(pointer, self.class, self.element.lane())
    }

    /// Stores an element.
    pub fn store(self, index: impl IntoValue<'k>, value: impl IntoValue<'k>) {
        let value = value.into_value(self.kernel, self.element);
        let pointer = self.pointer(index, None);
        self.kernel.store(pointer, value, self.element);
    }

    fn atomic(self, op: Op, index: impl IntoValue<'k>, operands: &[Value<'k>]) -> Value<'k> {
        let shared =
            matches!(self.class, StorageClass::StorageBuffer | StorageClass::CrossWorkgroup | StorageClass::Workgroup);
        if self.element != Type::U32 || !shared || operands.iter().any(|v| v.ty() != Type::U32) {
            self.kernel.fail("atomics work on u32 in buffers and workgroup memory");
        }
        let pointer = self.pointer(index, None);
        let scope = if self.class == StorageClass::Workgroup { Scope::Workgroup } else { Scope::Device };
        // Relaxed: barriers and the ends of kernels order memory.
        let relaxed = Operand::IdMemorySemantics(self.kernel.u32(MemorySemantics::RELAXED.bits()).id);
        let mut all =
            vec![Operand::IdRef(pointer), Operand::IdScope(self.kernel.u32(scope as u32).id), relaxed.clone()];
        if op == Op::AtomicCompareExchange {
            all.push(relaxed);
        }
        all.extend(operands.iter().map(|v| v.operand()));
        self.kernel.emit(op, Type::U32, all)
    }

    /// Adds to an element of `u32` at once and returns what was there before.
    pub fn atomic_add(self, index: impl IntoValue<'k>, value: impl IntoValue<'k>) -> Value<'k> {
        let value = value.into_value(self.kernel, Type::U32);
        self.atomic(Op::AtomicIAdd, index, &[value])
    }

    /// Raises an element to at least `value` and returns what was there before.
    pub fn atomic_max(self, index: impl IntoValue<'k>, value: impl IntoValue<'k>) -> Value<'k> {
        let value = value.into_value(self.kernel, Type::U32);
        self.atomic(Op::AtomicUMax, index, &[value])
    }

    /// Lowers an element to at most `value` and returns what was there before.
    pub fn atomic_min(self, index: impl IntoValue<'k>, value: impl IntoValue<'k>) -> Value<'k> {
        let value = value.into_value(self.kernel, Type::U32);
        self.atomic(Op::AtomicUMin, index, &[value])
    }

    /// Replaces an element by `value` if it is `expected`, and returns what was there before.
    pub fn atomic_compare_exchange(
        self,
        index: impl IntoValue<'k>,
        expected: impl IntoValue<'k>,
        value: impl IntoValue<'k>,
    ) -> Value<'k> {
        let value = value.into_value(self.kernel, Type::U32);
        let expected = expected.into_value(self.kernel, Type::U32);
        self.atomic(Op::AtomicCompareExchange, index, &[value, expected])
    }
}

impl KernelBuilder {
    fn array_of(&self, variable: Word, class: StorageClass, element: Type) -> Array<'_> {
        Array { kernel: self, variable, class, element }
    }

    /// Declares the next buffer: `name` is for the reader of a dump, `element` what an index counts.
    pub fn buffer(&self, name: &str, element: Type, access: Access) -> Array<'_> {
        let variable = self.declare_buffer(name, element, access);
        let class = match self.target().dialect {
            Dialect::Vulkan => StorageClass::StorageBuffer,
            Dialect::OpenCl => StorageClass::CrossWorkgroup,
        };
        self.array_of(variable, class, element)
    }

    fn fixed_array_type(&self, element: Type, length: u32) -> Word {
        let length_id = self.u32(length).id;
        let element_id = self.type_id(element);
        self.state.borrow_mut().module.type_array(element_id, length_id)
    }

    /// An array that the workgroup's invocations share. Its first contents are undefined.
    pub fn workgroup_array(&self, element: Type, length: u32) -> Array<'_> {
        let array = self.fixed_array_type(element, length);
        let pointer = self.pointer_type(StorageClass::Workgroup, array);
        let variable = self.global(pointer, StorageClass::Workgroup);
        self.state.borrow_mut().workgroup_memory += length * element.size_in_bytes();
        self.array_of(variable, StorageClass::Workgroup, element)
    }

    /// An array of one invocation. Its first contents are undefined.
    pub fn local_array(&self, element: Type, length: u32) -> Array<'_> {
        let variable = self.local(self.fixed_array_type(element, length));
        self.array_of(variable, StorageClass::Function, element)
    }

    /// A variable with a first value.
    pub fn var<'k>(&'k self, value: Value<'k>) -> Var<'k> {
        let pointer = self.local(self.type_id(value.ty()));
        let var = Var { kernel: self, pointer, ty: value.ty() };
        var.set(value);
        var
    }

    fn store(&self, pointer: Word, value: Value<'_>, expected: Type) {
        if value.ty() != expected {
            self.fail(format!("a {} is stored where {expected} is expected", value.ty()));
        }
        self.emit_void(Op::Store, [Operand::IdRef(pointer), value.operand()]);
    }

    fn load_from(&self, pointer: Word, class: StorageClass, ty: Type) -> Value<'_> {
        // OpenCL wants the alignment of vectors in global memory told.
        let aligned = (class == StorageClass::CrossWorkgroup && ty.scalar != Scalar::Bool).then(|| {
            [Operand::MemoryAccess(rspirv::spirv::MemoryAccess::ALIGNED), Operand::LiteralBit32(ty.size_in_bytes())]
        });
        self.emit(Op::Load, ty, [Operand::IdRef(pointer)].into_iter().chain(aligned.into_iter().flatten()))
    }

    /// A u32 index as 64 bits: an index of 32 bits counts as signed in physical addressing.
    fn wide_index(&self, index: Value<'_>) -> Word {
        let wide = self.state.borrow_mut().module.type_int(64, 0);
        self.emit_id(Op::UConvert, wide, [index.operand()])
    }
}
