//! Memory that a kernel stores to, with atomics: buffers, workgroup memory, local arrays and variables.

use super::builder::KernelBuilder;
use super::module::Access;
use super::types::{Scalar, Type};
use super::value::{IntoValue, Value};
use crate::base::dtype::DType;
use rspirv::dr::Operand;
use rspirv::spirv::{
    Capability, GlslStd450Op, MemoryAccess, MemorySemantics, Op, OpenclStd100Op, Scope, StorageClass, Word,
};

/// The most bytes of all local arrays of a checked kernel. WGSL guarantees as many ("Limits", function address space).
pub(super) const MAX_LOCAL_MEMORY: u32 = 8192;

/// A mutable variable of an invocation.
#[derive(Clone, Copy)]
pub struct Var<'k> {
    kernel: &'k KernelBuilder,
    pointer: Word,
    ty: Type,
}

impl<'k> Var<'k> {
    /// Returns its current value.
    pub fn get(self) -> Value<'k> {
        self.kernel.emit(Op::Load, self.ty, [Operand::IdRef(self.pointer)])
    }

    /// Replaces its value.
    pub fn set(self, value: impl IntoValue<'k>) {
        let value = value.into_value(self.kernel, self.ty);
        self.kernel.store(self.pointer, StorageClass::Function, value, self.ty);
    }
}

/// Elements in a row: a buffer, an array in workgroup memory, or an array of one invocation.
#[derive(Clone, Copy)]
pub struct Array<'k> {
    kernel: &'k KernelBuilder,
    variable: Word,
    class: StorageClass,
    element: Type,
    /// The type of an element in memory. It may hold two lanes as one number: see [`Target::loads_in_pairs`].
    stored: Type,
    writable: bool,
    /// Set in checked kernels.
    last: Option<Last>,
    /// The element that has the index 0, if it is not the first one in memory.
    first: Option<Value<'k>>,
}

/// Where the last index of an array is found.
#[derive(Clone, Copy)]
enum Last {
    Constant(u32),
    /// In a word of the parameter block.
    Word(usize),
}

impl<'k> Array<'k> {
    pub(super) fn index(self, index: impl IntoValue<'k>) -> Value<'k> {
        let index = index.into_value(self.kernel, Type::U32);
        if index.ty() != Type::U32 {
            self.kernel.fail(format!("an index is u32, not {}", index.ty()));
            return self.kernel.u32(0);
        }
        index
    }

    /// Returns the last index, in a checked kernel.
    pub(super) fn last(self) -> Option<Value<'k>> {
        self.last.map(|last| match last {
            Last::Constant(index) => self.kernel.u32(index),
            Last::Word(word) => self.kernel.load_word(word),
        })
    }

    /// In a checked kernel, returns the index, or the last one if the index is beyond. This uses an instruction, which
    /// has one result even if its operand is undefined.
    fn within(self, index: Value<'k>) -> Value<'k> {
        let Some(last) = self.last() else { return index };
        let (glsl, opencl) = (GlslStd450Op::UMin as u32, OpenclStd100Op::u_min as u32);
        self.kernel.library(glsl, opencl, Type::U32, &[index, last])
    }

    /// Returns the elements from `first` on. If some indices are constants, their sums with `first` take no operations
    /// where addresses have 64 bits: sums of 32 bits could wrap before they are widened.
    pub(crate) fn after(self, first: Value<'k>) -> Array<'k> {
        if self.last.is_some() || self.first.is_some() {
            self.kernel.fail("only a whole array whose indices are not checked has a part");
        }
        Array { first: Some(self.index(first)), ..self }
    }

    pub(super) fn check_writable(self) {
        if !self.writable {
            self.kernel.fail("a buffer that is declared `Access::Read` is written");
        }
    }

    pub(super) fn class(self) -> StorageClass {
        self.class
    }

    /// The type of an element.
    pub(crate) fn element(self) -> Type {
        self.element
    }

    pub(super) fn kernel(self) -> &'k KernelBuilder {
        self.kernel
    }

    pub(super) fn pointer(self, index: Value<'k>, lane: Option<Value<'k>>) -> Word {
        let kernel = self.kernel;
        let ty = if lane.is_some() { self.stored.lane() } else { self.stored };
        let pointer_type = kernel.pointer_type(self.class, kernel.type_id(ty));
        let mut operands = vec![Operand::IdRef(self.variable)];
        let near = || self.first.map_or(index, |first| first + index).operand();
        let wide = || Operand::IdRef(kernel.wide_index(self.first, index));
        let op = match self.class {
            StorageClass::StorageBuffer => {
                // The array is the only member of the buffer's block.
                operands.extend([kernel.u32(0).operand(), near()]);
                Op::AccessChain
            }
            StorageClass::PhysicalStorageBuffer => {
                operands.extend([kernel.u32(0).operand(), wide()]);
                Op::AccessChain
            }
            StorageClass::CrossWorkgroup => {
                operands.push(wide());
                Op::InBoundsPtrAccessChain
            }
            _ => {
                operands.push(near());
                Op::AccessChain
            }
        };
        operands.extend(lane.map(Value::operand));
        kernel.emit_id(op, pointer_type, operands)
    }

    /// Loads the element at `index`.
    pub fn load(self, index: impl IntoValue<'k>) -> Value<'k> {
        let pointer = self.pointer(self.within(self.index(index)), None);
        self.element_from(self.kernel.load_from(pointer, self.class, self.stored))
    }

    /// Returns an element from its form in memory.
    fn element_from(self, stored: Value<'k>) -> Value<'k> {
        if self.stored == self.element {
            return stored;
        }
        let words: Vec<_> = stored.lanes().into_iter().flat_map(words_of_pair).collect();
        self.kernel.vector(&words).bitcast(self.element)
    }

    /// Returns an element in its form in memory.
    fn stored_from(self, element: Value<'k>) -> Value<'k> {
        self.kernel.check_stored(element, self.element);
        if self.stored == self.element || element.ty() != self.element {
            return element;
        }
        let words = element.bitcast(self.element.with_scalar(Scalar::U32)).convert(Scalar::I64).lanes();
        let pairs: Vec<_> = words.chunks(2).map(|pair| pair[0] | (pair[1] << 32)).collect();
        if let [pair] = pairs[..] { pair } else { self.kernel.vector(&pairs) }
    }

    /// Loads an element that another workgroup has [stored for all](Self::store_for_all).
    pub(crate) fn load_of_all(self, index: impl IntoValue<'k>) -> Value<'k> {
        let pointer = Operand::IdRef(self.pointer(self.index(index), None));
        let told = self.kernel.told_to_all(self.class, self.element, MemoryAccess::MAKE_POINTER_VISIBLE);
        self.element_from(self.kernel.emit(Op::Load, self.stored, std::iter::once(pointer).chain(told)))
    }

    /// Stores an element for other workgroups, in a kernel that follows Vulkan's memory model. This workgroup then
    /// [counts itself](Self::count_for_all). Those that find it counted can load the element.
    pub(crate) fn store_for_all(self, index: impl IntoValue<'k>, value: Value<'k>) {
        self.check_writable();
        let pointer = Operand::IdRef(self.pointer(self.index(index), None));
        let operands = [pointer, self.stored_from(value).operand()];
        let told = self.kernel.told_to_all(self.class, self.element, MemoryAccess::MAKE_POINTER_AVAILABLE);
        self.kernel.emit_void(Op::Store, operands.into_iter().chain(told));
    }

    /// Adds 1 to an element. Returns its value before. This is ordered after what the workgroup has stored for all, and
    /// before what it loads of all, if one invocation does it between two
    /// [barriers](KernelBuilder::barrier_of_all).
    pub(crate) fn count_for_all(self, index: impl IntoValue<'k>) -> Value<'k> {
        let (kernel, index) = (self.kernel, self.index(index));
        self.check_writable();
        if self.element != Type::U32 || !kernel.follows_memory_model() {
            kernel.fail("workgroups are counted in u32, in kernels that follow Vulkan's memory model");
        }
        kernel.require(|features| features.atomics = true);
        let semantics = MemorySemantics::ACQUIRE_RELEASE
            | MemorySemantics::UNIFORM_MEMORY
            | MemorySemantics::MAKE_AVAILABLE
            | MemorySemantics::MAKE_VISIBLE;
        let operands = [
            Operand::IdRef(self.pointer(index, None)),
            Operand::IdScope(kernel.u32(Scope::QueueFamily as u32).id),
            Operand::IdMemorySemantics(kernel.u32(semantics.bits()).id),
            kernel.u32(1).operand(),
        ];
        kernel.emit(Op::AtomicIAdd, Type::U32, operands)
    }

    /// Loads one lane of an array of vectors. The index counts the lanes of all vectors.
    pub fn load_lane(self, index: impl IntoValue<'k>) -> Value<'k> {
        let index = self.index(index);
        if self.element.lanes == 1 {
            return self.load(index);
        }
        if let Some(lanes) = self.as_lanes() {
            return lanes.load(index);
        }
        let (vector, lane) = (self.within(index / self.element.lanes), index % self.element.lanes);
        let load = |lane| self.kernel.load_from(self.pointer(vector, lane), self.class, self.stored.lane());
        if self.stored == self.element {
            return load(Some(lane));
        }
        let pair = load((self.stored.lanes > 1).then(|| lane >> 1));
        let [low, high] = words_of_pair(pair);
        (lane & 1).eq(0).select(low, high).bitcast(self.element.lane())
    }

    /// Returns the same buffer with the lanes of vectors as elements, if the target can. The place of a lane is then
    /// found without a quotient and a remainder.
    fn as_lanes(self) -> Option<Array<'k>> {
        if self.writable || self.last.is_some() || self.first.is_some() || self.stored != self.element {
            return None;
        }
        let lane = self.element.lane();
        let variable = self.kernel.lanes_of(self.variable, lane)?;
        Some(Array { variable, element: lane, stored: lane, ..self })
    }

    /// Stores an element.
    pub fn store(self, index: impl IntoValue<'k>, value: impl IntoValue<'k>) {
        self.check_writable();
        let index = self.index(index);
        let value = value.into_value(self.kernel, self.element);
        let value = self.stored_from(value);
        let store = || self.kernel.store(self.pointer(index, None), self.class, value, self.stored);
        match self.last() {
            Some(last) => drop(self.kernel.when(index.le(last), store)),
            None => store(),
        }
    }

    /// `neutral` replaces the first operand beyond the last index. With it the operation changes nothing.
    fn atomic(self, op: Op, index: impl IntoValue<'k>, operands: &[Value<'k>], neutral: Value<'k>) -> Value<'k> {
        let kernel = self.kernel;
        let shared = self.class == StorageClass::Workgroup || self.class == kernel.buffer_class();
        let floats = op == Op::AtomicFAddEXT;
        let (ty, here) = if floats { (Type::F32, self.class == kernel.buffer_class()) } else { (Type::U32, shared) };
        if self.element != ty || !here || operands.iter().any(|v| v.ty() != ty) {
            kernel.fail("atomics work on u32 in buffers and workgroup memory, and add f32 in buffers");
            return kernel.number(ty, 0);
        }
        self.check_writable();
        if floats {
            kernel.require(|features| features.float_atomics = true);
            kernel.capability(Capability::AtomicFloat32AddEXT);
            kernel.extension("SPV_EXT_shader_atomic_float_add");
        } else {
            kernel.require(|features| features.atomics = true);
        }
        let index = self.index(index);
        let mut operands: Vec<_> = operands.to_vec();
        if let (Some(last), false) = (self.last(), operands.is_empty()) {
            operands[0] = index.le(last).select(operands[0], neutral);
        }
        let pointer = self.pointer(self.within(index), None);
        let scope = match self.class {
            StorageClass::Workgroup => Scope::Workgroup,
            // In Vulkan's own memory model, the whole device is only an optional scope.
            _ if kernel.follows_memory_model() => Scope::QueueFamily,
            _ => Scope::Device,
        };
        // Relaxed, because barriers and the ends of kernels order memory.
        let relaxed = Operand::IdMemorySemantics(kernel.u32(MemorySemantics::RELAXED.bits()).id);
        let mut all = vec![Operand::IdRef(pointer), Operand::IdScope(kernel.u32(scope as u32).id), relaxed.clone()];
        if op == Op::AtomicCompareExchange {
            all.push(relaxed);
        }
        all.extend(operands.iter().map(|v| v.operand()));
        kernel.emit(op, ty, all)
    }

    /// Atomically loads an element.
    pub(crate) fn atomic_load(self, index: impl IntoValue<'k>) -> Value<'k> {
        self.atomic(Op::AtomicLoad, index, &[], self.kernel.u32(0))
    }

    /// Atomically adds to an element of `u32`, or to an element of `f32` in a buffer if the device has
    /// [such sums](crate::Features::float_atomics). Returns its value before.
    pub fn atomic_add(self, index: impl IntoValue<'k>, value: impl IntoValue<'k>) -> Value<'k> {
        if self.element == Type::F32 {
            let value = value.into_value(self.kernel, Type::F32);
            return self.atomic(Op::AtomicFAddEXT, index, &[value], self.kernel.f32(-0.0));
        }
        let value = value.into_value(self.kernel, Type::U32);
        self.atomic(Op::AtomicIAdd, index, &[value], self.kernel.u32(0))
    }

    /// Atomically raises an element to at least `value`. Returns its value before.
    pub fn atomic_max(self, index: impl IntoValue<'k>, value: impl IntoValue<'k>) -> Value<'k> {
        let value = value.into_value(self.kernel, Type::U32);
        self.atomic(Op::AtomicUMax, index, &[value], self.kernel.u32(0))
    }

    /// Atomically lowers an element to at most `value`. Returns its value before.
    pub fn atomic_min(self, index: impl IntoValue<'k>, value: impl IntoValue<'k>) -> Value<'k> {
        let value = value.into_value(self.kernel, Type::U32);
        self.atomic(Op::AtomicUMin, index, &[value], self.kernel.u32(u32::MAX))
    }

    /// Atomically replaces an element. Returns its value before.
    pub fn atomic_exchange(self, index: impl IntoValue<'k>, value: impl IntoValue<'k>) -> Value<'k> {
        let value = value.into_value(self.kernel, Type::U32);
        let index = self.index(index);
        // An exchange always changes something. Beyond the last index it is an addition of 0 instead.
        let exchange = || self.atomic(Op::AtomicExchange, index, &[value], value);
        let Some(last) = self.last() else { return exchange() };
        let found = self.kernel.var(self.kernel.u32(0));
        self.kernel.when(index.le(last), || found.set(exchange())).otherwise(|| found.set(self.atomic_add(index, 0)));
        found.get()
    }

    /// Atomically replaces an element by `value` if it is `expected`. Returns its value before.
    pub fn atomic_compare_exchange(
        self,
        index: impl IntoValue<'k>,
        expected: impl IntoValue<'k>,
        value: impl IntoValue<'k>,
    ) -> Value<'k> {
        let value = value.into_value(self.kernel, Type::U32);
        let expected = expected.into_value(self.kernel, Type::U32);
        self.atomic(Op::AtomicCompareExchange, index, &[value, expected], expected)
    }
}

/// Returns the words that a number of 64 bits holds, the low one first.
fn words_of_pair(pair: Value<'_>) -> [Value<'_>; 2] {
    [pair, pair >> 32].map(|word| word.convert(Scalar::U32))
}

impl KernelBuilder {
    /// Declares the next buffer. `name` is for messages and dumps, `element` is what an index counts.
    pub fn buffer(&self, name: &str, element: Type, access: Access) -> Array<'_> {
        self.typed_buffer(name, element, element.dtype(), access)
    }

    /// Declares the next buffer as words that pack the elements of a tensor of a narrow dtype, the first in the lowest
    /// bits. A word holds four of `u8`, `i8` or `bool`, or two of `f16` or `bf16`. A `bool` is written as 0 or 1. No
    /// two invocations may write one word.
    pub fn packed_buffer(&self, name: &str, dtype: DType, access: Access) -> Array<'_> {
        if dtype.size_in_bytes() >= 4 {
            self.fail(format!("buffer `{name}`: {dtype} is not packed, declare it with `buffer`"));
        }
        self.typed_buffer(name, Type::U32, dtype, access)
    }

    pub(super) fn typed_buffer(&self, name: &str, element: Type, dtype: DType, access: Access) -> Array<'_> {
        let element = self.possible(element);
        let stored = if self.target().loads_in_pairs { element.in_pairs() } else { element };
        let (variable, word) = self.declare_buffer(name, stored, dtype, access);
        let class = self.buffer_class();
        let last = word.map(Last::Word);
        Array { kernel: self, variable, class, element, stored, writable: access.writes(), last, first: None }
    }

    fn fixed_array(&self, variable: Word, class: StorageClass, element: Type, length: u32) -> Array<'_> {
        let last = self.checked.then_some(Last::Constant(length.saturating_sub(1)));
        Array { kernel: self, variable, class, element, stored: element, writable: true, last, first: None }
    }

    /// Returns the type of an array, and its size in bytes.
    fn fixed_array_type(&self, element: Type, length: u32) -> (Word, u32) {
        if length == 0 {
            self.fail("an array has at least one element");
        }
        let length_id = self.u32(length).id;
        let element_id = self.type_id(element);
        let array = self.state.borrow_mut().module.type_array(element_id, length_id);
        (array, length.saturating_mul(element.size_in_bytes()))
    }

    /// Declares an array that the workgroup's invocations share. Its first contents are undefined.
    pub fn workgroup_array(&self, element: Type, length: u32) -> Array<'_> {
        let element = self.possible(element);
        let (array, bytes) = self.fixed_array_type(element, length);
        let pointer = self.pointer_type(StorageClass::Workgroup, array);
        let variable = self.global(pointer, StorageClass::Workgroup);
        let memory = &mut self.state.borrow_mut().workgroup_memory;
        *memory = memory.saturating_add(bytes);
        self.fixed_array(variable, StorageClass::Workgroup, element, length)
    }

    /// Declares an array of one invocation. Its first contents are undefined.
    pub fn local_array(&self, element: Type, length: u32) -> Array<'_> {
        let element = self.possible(element);
        let (array, bytes) = self.fixed_array_type(element, length);
        let variable = self.local(array, self.checked);
        let memory = &mut self.state.borrow_mut().local_memory;
        *memory = memory.saturating_add(bytes);
        if self.checked && *memory > MAX_LOCAL_MEMORY {
            self.fail(format!("local arrays of {memory} bytes; {MAX_LOCAL_MEMORY} are possible"));
        }
        self.fixed_array(variable, StorageClass::Function, element, length)
    }

    /// Declares a variable with a first value.
    pub fn var<'k>(&'k self, value: Value<'k>) -> Var<'k> {
        let pointer = self.local(self.type_id(value.ty()), false);
        let var = Var { kernel: self, pointer, ty: value.ty() };
        var.set(value);
        var
    }

    fn check_stored(&self, value: Value<'_>, expected: Type) {
        if value.ty() != expected {
            self.fail(format!("{} is stored where {expected} is expected", value.ty()));
        }
    }

    fn store(&self, pointer: Word, class: StorageClass, value: Value<'_>, expected: Type) {
        self.check_stored(value, expected);
        let operands = [Operand::IdRef(pointer), value.operand()];
        self.emit_void(Op::Store, operands.into_iter().chain(Self::told(class, expected, self.is_shared(class))));
    }

    /// Whether other invocations see memory of a class, and the memory model wants to be told so.
    fn is_shared(&self, class: StorageClass) -> bool {
        class == StorageClass::Workgroup && self.follows_memory_model()
    }

    /// Returns the operand for loads and stores of matrices that others see, too.
    pub(super) fn shared(&self, class: StorageClass) -> Option<Operand> {
        self.is_shared(class).then_some(Operand::MemoryAccess(MemoryAccess::NON_PRIVATE_POINTER))
    }

    /// Returns the operands of loads and stores whose elements other workgroups see.
    fn told_to_all(&self, class: StorageClass, ty: Type, made: MemoryAccess) -> impl Iterator<Item = Operand> {
        let scope = Operand::IdScope(self.u32(Scope::QueueFamily as u32).id);
        let told = Self::told(class, ty, true).map(move |operand| match operand {
            Operand::MemoryAccess(mask) => Operand::MemoryAccess(mask | made),
            operand => operand,
        });
        told.chain([scope])
    }

    /// Returns the operands of loads and stores: the alignment of elements reached by address, and whether others see
    /// them.
    fn told(class: StorageClass, ty: Type, shared: bool) -> impl Iterator<Item = Operand> {
        let by_address = matches!(class, StorageClass::CrossWorkgroup | StorageClass::PhysicalStorageBuffer);
        let aligned = by_address && ty.scalar != Scalar::Bool;
        let mask = if aligned { MemoryAccess::ALIGNED } else { MemoryAccess::NONE };
        let mask = mask | if shared { MemoryAccess::NON_PRIVATE_POINTER } else { MemoryAccess::NONE };
        let mask = (!mask.is_empty()).then_some(Operand::MemoryAccess(mask));
        mask.into_iter().chain(aligned.then_some(Operand::LiteralBit32(ty.size_in_bytes())))
    }

    fn load_from(&self, pointer: Word, class: StorageClass, ty: Type) -> Value<'_> {
        let told = Self::told(class, ty, self.is_shared(class));
        self.emit(Op::Load, ty, std::iter::once(Operand::IdRef(pointer)).chain(told))
    }

    /// Returns the sum of one or two indices in 64 bits. In physical addressing, an index of 32 bits counts as signed.
    fn wide_index(&self, first: Option<Value<'_>>, index: Value<'_>) -> Word {
        let wide = self.state.borrow_mut().module.type_int(64, 0);
        let widened = |index: Value<'_>| self.emit_id(Op::UConvert, wide, [index.operand()]);
        let index_id = widened(index);
        match first.map(widened) {
            Some(first_id) => self.emit_id(Op::IAdd, wide, [first_id, index_id].map(Operand::IdRef)),
            None => index_id,
        }
    }
}
