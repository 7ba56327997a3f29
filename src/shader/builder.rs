//! [`KernelBuilder`]: owns the SPIR-V under construction. Types, constants, built-ins and the finished module.

use super::cooperative::Matrices;
use super::module::{Access, Code, Module};
use super::signature::{Signature, SlotKind};
use super::target::{Dialect, ParameterBlock, Target};
use super::types::{Scalar, Type};
use super::value::Value;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::features::Features;
use rspirv::binary::Assemble;
use rspirv::dr::{Builder, InsertPoint, Instruction, Operand};
use rspirv::spirv::{
    AddressingModel, BuiltIn, Capability, Decoration, ExecutionMode, ExecutionModel, FunctionControl, MemoryModel, Op,
    StorageClass, Word,
};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};

/// How deep branches and loops may nest. The branches around stores of checked kernels count. naga writes a loop as two
/// blocks of WGSL, which allows 127 nested blocks ("Limits"). Mesa's software device leaves out code inside 80
/// branches.
const MAX_NESTING: usize = 60;

/// The workgroups in a row of a folded dispatch. Kernels know the number: reading it would take as long as reading a
/// parameter from memory. The smaller it is, the fewer surplus workgroups the last row has. It is a power of two, as
/// workgroups of kernels over elements are: then the last row ends at 2^32 elements or before, and no index wraps.
pub(crate) const FOLDED_ROW: u32 = 1 << 12;

/// For values that were computed in a branch or loop that may not have run.
const OUT_OF_SCOPE: &str =
    "a value is used outside of the branch or loop in which it was computed; keep it in a variable (`var`)";

/// Builds one kernel. Everything that is recorded through it is appended to the kernel's `main`.
///
/// A mistake in a kernel, such as adding a float to an integer, does not panic. [`finish`](Self::finish) returns the
/// first one.
pub struct KernelBuilder {
    name: String,
    target: Target,
    workgroup: u32,
    /// Whether undefined operations get a meaning: see [`checked`](Self::checked).
    pub(super) checked: bool,
    pub(super) state: RefCell<State>,
    error: Cell<Option<String>>,
}

/// A buffer of the kernel.
struct Binding {
    variable: Word,
    element: Type,
    access: Access,
    /// The same buffer once more, with the lanes of its vectors as elements: a variable, or the type of a pointer to it
    /// if buffers are reached by their addresses.
    lanes: Option<Word>,
}

pub(super) struct State {
    pub(super) module: Builder,
    math: Word,
    main: Word,
    /// The parameter block. In the OpenCL dialect, each word is a function parameter instead.
    block: Word,
    parameters: Vec<(Type, Word)>,
    /// The words that hold buffers' addresses, two for each buffer.
    address_words: Vec<usize>,
    bindings: Vec<Binding>,
    /// The buffers and parameters by name, in the order of declaration.
    signature: Signature,
    types: HashMap<Type, Word>,
    /// The cooperative matrices, if the kernel has declared to use them.
    pub(super) matrices: Option<Matrices>,
    /// Whether the kernel follows Vulkan's own memory model.
    pub(super) memory_model: bool,
    constants: HashMap<(Type, u64), Word>,
    arrays: HashMap<Type, Word>,
    builtins: HashMap<BuiltIn, Word>,
    interface: Vec<Word>,
    pub(super) workgroup_memory: u32,
    pub(super) local_memory: u32,
    requires: Features,
    large_registers: bool,
    prefers_bindings: bool,
    narrow_subgroups: bool,
    /// Whether invocations wait for each other.
    pub(super) waits: bool,
    /// The variable with the first of the invocations whose [turn](KernelBuilder::turn) it is.
    pub(super) turn: Option<Word>,
    /// Whether drivers may neither contract nor rearrange what is computed now.
    as_written: bool,
    /// The sums and products that were computed so.
    rounded: HashSet<Word>,
    scopes: Scopes,
}

impl State {
    /// Whether nothing is declared or computed yet.
    pub(super) fn is_empty(&self) -> bool {
        self.types.is_empty() && self.bindings.is_empty() && self.parameters.is_empty()
    }

    /// Whether the invocations of a workgroup share anything.
    pub(super) fn shares(&self) -> bool {
        self.waits || self.workgroup_memory > 0 || self.requires.subgroups || self.matrices.is_some()
    }

    /// Returns the variables that no invocation changes: the parameter block and the built-ins.
    pub(super) fn constant_memory(&self) -> HashSet<Word> {
        self.builtins.values().copied().chain([self.block]).collect()
    }
}

/// The open branches and loop bodies, and the scope in which each id was made. Ids of the outermost scope are left out.
#[derive(Default)]
struct Scopes {
    open: Vec<u32>,
    opened: u32,
    of: HashMap<Word, u32>,
}

impl Scopes {
    /// Whether an id may be used here.
    fn reach(&self, id: Word) -> bool {
        self.of.get(&id).is_none_or(|scope| self.open.contains(scope))
    }
}

impl KernelBuilder {
    /// Starts a kernel of `workgroup` invocations per workgroup. Its dispatches have one workgroup in z.
    pub fn new(name: impl Into<String>, target: Target, workgroup: u32) -> Self {
        KernelBuilder::start(name.into(), target, workgroup, false)
    }

    /// Starts a kernel that does no harm, whatever is written in it.
    ///
    /// - Each buffer has a word of the parameter block with its last index. These words stand between the parameters,
    ///   in the order of declaration.
    /// - A load beyond the last index gives the last element. A store there is left out, and an atomic operation
    ///   changes nothing. The same holds for arrays.
    /// - Local arrays start with zeros.
    /// - Integer division by 0 gives the dividend, with remainder 0. Bits are shifted by the count modulo their number.
    pub(crate) fn checked(name: impl Into<String>, target: Target, workgroup: u32) -> Self {
        KernelBuilder::start(name.into(), target, workgroup, true)
    }

    fn start(name: String, target: Target, workgroup: u32, checked: bool) -> Self {
        let mut module = Builder::new();
        // Vulkan 1.1 and newer take 1.3, the first version with subgroup operations. OpenCL's drivers say 1.2.
        module.set_version(1, if target.dialect == Dialect::OpenCl { 2 } else { 3 });
        let math = match target.dialect {
            Dialect::Vulkan => {
                module.capability(Capability::Shader);
                if target.addresses {
                    // Indices beyond 2^31 are positive only in 64 bits.
                    for capability in [Capability::PhysicalStorageBufferAddresses, Capability::Int64] {
                        module.capability(capability);
                    }
                    module.extension("SPV_KHR_physical_storage_buffer");
                }
                let math = module.ext_inst_import("GLSL.std.450");
                module.memory_model(target.addressing(), MemoryModel::GLSL450);
                math
            }
            Dialect::OpenCl => {
                for capability in [Capability::Addresses, Capability::Kernel, Capability::Int64] {
                    module.capability(capability);
                }
                let math = module.ext_inst_import("OpenCL.std");
                module.memory_model(AddressingModel::Physical64, MemoryModel::OpenCL);
                math
            }
        };
        let (main, block, function_type) = (module.id(), module.id(), module.id());
        let void = module.type_void();
        let state = State {
            module,
            math,
            main,
            block,
            parameters: Vec::new(),
            address_words: Vec::new(),
            bindings: Vec::new(),
            signature: Signature::new(&name),
            types: HashMap::new(),
            matrices: None,
            memory_model: false,
            constants: HashMap::new(),
            arrays: HashMap::new(),
            builtins: HashMap::new(),
            interface: Vec::new(),
            workgroup_memory: 0,
            local_memory: 0,
            requires: Features::default(),
            large_registers: false,
            prefers_bindings: false,
            narrow_subgroups: false,
            waits: false,
            turn: None,
            as_written: false,
            rounded: HashSet::new(),
            scopes: Scopes::default(),
        };
        let kernel =
            KernelBuilder { name, target, workgroup, checked, state: RefCell::new(state), error: Cell::new(None) };
        {
            let module = &mut kernel.state.borrow_mut().module;
            // The function's type is appended at the end, when its parameters are known.
            kernel.check(module.begin_function(void, Some(main), FunctionControl::NONE, function_type));
            kernel.check(module.begin_block(None));
        }
        kernel
    }

    /// Asks for many registers for each of fewer invocations. Intel's GPUs offer this choice through Level Zero. It is
    /// for kernels that would spill otherwise.
    ///
    /// ```
    /// # use marquetry::shader::{KernelBuilder, Target};
    /// let k = KernelBuilder::new("large tile", Target::LEVEL_ZERO, 64);
    /// k.large_registers();
    /// assert!(k.finish()?.large_registers());
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    pub fn large_registers(&self) {
        self.state.borrow_mut().large_registers = true;
    }

    /// Makes the crate bind the kernel's buffers, also on devices where kernels are faster if they reach buffers by
    /// their addresses. For kernels that load many single words: the place of a word in a bound buffer takes fewer
    /// instructions.
    pub(crate) fn prefer_bindings(&self) {
        self.state.borrow_mut().prefers_bindings = true;
    }

    /// Makes drivers round each product and each sum that `work` computes. A driver of Vulkan might otherwise contract
    /// a product and a sum to one rounding, in one kernel and not in another. The OpenCL dialect forbids that
    /// everywhere, and WGSL cannot forbid it.
    pub(crate) fn as_written<T>(&self, work: impl FnOnce() -> T) -> T {
        let can_ask = self.target.dialect == Dialect::Vulkan && !self.target.wgsl;
        let before = std::mem::replace(&mut self.state.borrow_mut().as_written, can_ask);
        let result = work();
        self.state.borrow_mut().as_written = before;
        result
    }

    /// Whether drivers may combine `value`, a sum or a product, neither with what it is made of nor with what is
    /// computed now.
    pub(super) fn is_as_written(&self, value: Value<'_>) -> bool {
        let state = self.state.borrow();
        state.as_written && state.rounded.contains(&value.id)
    }

    /// Asks for the smallest subgroups that the device has, so that each lane has most registers. Only Intel's compiler
    /// needs this, for GPUs whose smallest subgroups have 16 lanes.
    ///
    /// ```
    /// # use marquetry::shader::{KernelBuilder, Target};
    /// let k = KernelBuilder::new("many rows", Target::LEVEL_ZERO.narrow_lanes(16), 64);
    /// k.narrow_subgroups();
    /// // `OpExecutionMode` has four words here. The third is the mode `SubgroupSize` (35), the fourth the lanes.
    /// assert!(k.finish()?.spirv()?.windows(2).any(|words| words == [35, 16]));
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    pub fn narrow_subgroups(&self) {
        self.state.borrow_mut().narrow_subgroups = true;
    }

    /// Returns the form that is being generated.
    pub fn target(&self) -> Target {
        self.target
    }

    /// Returns the invocations per workgroup.
    pub(super) fn workgroup(&self) -> u32 {
        self.workgroup
    }

    /// Returns what the kernel takes, as declared so far.
    pub(crate) fn signature(&self) -> Signature {
        self.state.borrow().signature.clone()
    }

    /// Keeps a mistake, if it is the first.
    pub(crate) fn fail(&self, message: impl Into<String>) {
        let first = self.error.take().unwrap_or_else(|| message.into());
        self.error.set(Some(first));
    }

    /// Keeps an error of the SPIR-V builder. A correct kernel never causes one.
    pub(super) fn check<T>(&self, result: Result<T, rspirv::dr::Error>) -> Option<T> {
        result.map_err(|error| self.fail(error.to_string())).ok()
    }

    pub(super) fn require<T>(&self, feature: impl FnOnce(&mut Features) -> T) -> T {
        feature(&mut self.state.borrow_mut().requires)
    }

    pub(super) fn capability(&self, capability: Capability) {
        let module = &mut self.state.borrow_mut().module;
        let known = module.module_ref().capabilities.iter().any(|i| i.operands[0] == Operand::Capability(capability));
        if !known {
            module.capability(capability);
        }
    }

    pub(super) fn extension(&self, name: &str) {
        let module = &mut self.state.borrow_mut().module;
        let name = Operand::LiteralString(name.into());
        if !module.module_ref().extensions.iter().any(|known| known.operands[0] == name) {
            module.module_mut().extensions.push(Instruction::new(Op::Extension, None, None, vec![name]));
        }
    }

    /// Declares an execution mode of `main`.
    pub(super) fn execution_mode(&self, mode: ExecutionMode, bits: u32) {
        let state = &mut *self.state.borrow_mut();
        let known = |declared: &Instruction| declared.operands.contains(&Operand::ExecutionMode(mode));
        if !state.module.module_ref().execution_modes.iter().any(known) {
            state.module.execution_mode(state.main, mode, [bits]);
        }
    }

    /// Returns the type. If no vector has that many lanes, notes a mistake and returns the type of one lane: no
    /// instruction may be made for each of billions of lanes.
    pub(super) fn possible(&self, ty: Type) -> Type {
        if matches!(ty.lanes, 1 | 2 | 4) {
            return ty;
        }
        self.fail(format!("{ty}: a vector has 2 or 4 lanes"));
        ty.lane()
    }

    /// Returns the SPIR-V id of a type.
    pub(super) fn type_id(&self, ty: Type) -> Word {
        let ty = self.possible(ty);
        if let Some(&id) = self.state.borrow().types.get(&ty) {
            return id;
        }
        let id = if ty.lanes > 1 {
            let lane = self.type_id(ty.lane());
            self.state.borrow_mut().module.type_vector(lane, ty.lanes)
        } else {
            match ty.scalar {
                Scalar::F16 => {
                    self.require(|features| features.f16 = true);
                    self.capability(Capability::Float16);
                }
                Scalar::I64 => {
                    self.require(|features| features.i64 = true);
                    self.capability(Capability::Int64);
                }
                Scalar::F64 => {
                    self.require(|features| features.f64 = true);
                    self.capability(Capability::Float64);
                }
                _ => {}
            }
            let opencl = self.target.dialect == Dialect::OpenCl;
            let module = &mut self.state.borrow_mut().module;
            match ty.scalar {
                Scalar::Bool => module.type_bool(),
                // OpenCL's integers have no sign. Its operations have it.
                Scalar::I32 => module.type_int(32, u32::from(!opencl)),
                Scalar::U32 => module.type_int(32, 0),
                Scalar::I64 => module.type_int(64, u32::from(!opencl)),
                Scalar::F32 => module.type_float(32, None),
                Scalar::F64 => module.type_float(64, None),
                Scalar::F16 => module.type_float(16, None),
            }
        };
        self.state.borrow_mut().types.insert(ty, id);
        id
    }

    pub(super) fn pointer_type(&self, class: StorageClass, pointee: Word) -> Word {
        self.state.borrow_mut().module.type_pointer(None, class, pointee)
    }

    /// Returns the constant whose lanes all have these bits.
    pub(super) fn constant(&self, ty: Type, bits: impl Into<u64>) -> Value<'_> {
        let (ty, bits) = (self.possible(ty), bits.into());
        let known = self.state.borrow().constants.get(&(ty, bits)).copied();
        let id = known.unwrap_or_else(|| {
            let type_id = self.type_id(ty);
            let id = if ty.lanes > 1 {
                let lane = self.constant(ty.lane(), bits).id;
                let lanes = (0..ty.lanes).map(|_| lane);
                self.state.borrow_mut().module.constant_composite(type_id, lanes)
            } else {
                let module = &mut self.state.borrow_mut().module;
                match ty.scalar {
                    Scalar::Bool if bits != 0 => module.constant_true(type_id),
                    Scalar::Bool => module.constant_false(type_id),
                    Scalar::F16 => module.constant_bit32(type_id, bits as u32 & 0xffff),
                    Scalar::I32 | Scalar::U32 | Scalar::F32 => module.constant_bit32(type_id, bits as u32),
                    Scalar::I64 | Scalar::F64 => module.constant_bit64(type_id, bits),
                }
            };
            self.state.borrow_mut().constants.insert((ty, bits), id);
            id
        });
        Value { kernel: self, id, ty }
    }

    /// Whether a value is the constant 0.
    pub(super) fn is_zero(&self, value: Value<'_>) -> bool {
        self.state.borrow().constants.get(&(value.ty, 0)) == Some(&value.id)
    }

    /// An unsigned integer constant.
    pub fn u32(&self, value: u32) -> Value<'_> {
        self.constant(Type::U32, value)
    }

    /// A signed integer constant.
    pub fn i32(&self, value: i32) -> Value<'_> {
        self.constant(Type::I32, value as u32)
    }

    /// A float constant.
    ///
    /// WGSL has no constants for infinities and NaN, so they are made from bits at run time.
    pub fn f32(&self, value: f32) -> Value<'_> {
        if value.is_finite() {
            self.constant(Type::F32, value.to_bits())
        } else {
            // The built-in keeps the compiler from folding this back into a constant.
            let zero = self.local_index() & self.u32(0);
            (zero | value.to_bits()).bitcast(Type::F32)
        }
    }

    /// A truth constant.
    pub fn bool(&self, value: bool) -> Value<'_> {
        self.constant(Type::BOOL, u32::from(value))
    }

    /// Appends an instruction with a result.
    pub(super) fn emit(&self, op: Op, ty: Type, operands: impl IntoIterator<Item = Operand>) -> Value<'_> {
        let ty = self.possible(ty);
        let id = self.emit_id(op, self.type_id(ty), operands);
        Value { kernel: self, id, ty }
    }

    /// The same for a result that is not a value, such as a pointer.
    pub(super) fn emit_id(&self, op: Op, type_id: Word, operands: impl IntoIterator<Item = Operand>) -> Word {
        let state = &mut *self.state.borrow_mut();
        let id = state.module.id();
        if let Some(&scope) = state.scopes.open.last() {
            state.scopes.of.insert(id, scope);
        }
        if state.as_written && matches!(op, Op::FAdd | Op::FSub | Op::FMul) {
            state.rounded.insert(id);
            state.module.decorate(id, Decoration::NoContraction, []);
        }
        let instruction = Instruction::new(op, Some(type_id), Some(id), operands.into_iter().collect());
        self.append(state, instruction);
        id
    }

    /// Appends an instruction without a result.
    pub(super) fn emit_void(&self, op: Op, operands: impl IntoIterator<Item = Operand>) {
        let instruction = Instruction::new(op, None, None, operands.into_iter().collect());
        self.append(&mut self.state.borrow_mut(), instruction);
    }

    fn append(&self, state: &mut State, instruction: Instruction) {
        if !instruction.operands.iter().all(|operand| operand.id_ref_any().is_none_or(|id| state.scopes.reach(id))) {
            self.fail(OUT_OF_SCOPE);
        }
        self.check(state.module.insert_into_block(InsertPoint::End, instruction));
    }

    /// Notes that a branch or the body of a loop starts.
    pub(super) fn open_scope(&self) -> u32 {
        let scopes = &mut self.state.borrow_mut().scopes;
        scopes.opened += 1;
        scopes.open.push(scopes.opened);
        if scopes.open.len() > MAX_NESTING {
            let advice = "move the inner ones out, or keep conditions in variables";
            self.fail(format!("branches and loops nest deeper than {MAX_NESTING}; {advice}"));
        }
        scopes.opened
    }

    /// Notes that the scope ends.
    pub(super) fn close_scope(&self, scope: u32) {
        if self.state.borrow_mut().scopes.open.pop() != Some(scope) {
            self.fail("a branch ends before one that was opened in it");
        }
    }

    /// Returns the id of a truth value that control flow depends on.
    pub(super) fn condition(&self, value: Value<'_>) -> Word {
        if value.ty() != Type::BOOL {
            self.fail(format!("a condition is a truth value, not {}", value.ty()));
        }
        self.check_own(value);
        if !self.state.borrow().scopes.reach(value.id) {
            self.fail(OUT_OF_SCOPE);
        }
        value.id
    }

    /// Notes a mistake if a value comes from another kernel.
    pub(super) fn check_own(&self, value: Value<'_>) {
        if !std::ptr::eq(self, value.kernel) {
            self.fail("a value of another kernel is used");
        }
    }

    /// Calls a function of the dialect's mathematical library, given by its two numbers.
    pub(super) fn library(&self, glsl: u32, opencl: u32, ty: Type, arguments: &[Value<'_>]) -> Value<'_> {
        let number = match self.target.dialect {
            Dialect::Vulkan => glsl,
            Dialect::OpenCl => opencl,
        };
        let set = self.state.borrow().math;
        let operands = [Operand::IdRef(set), Operand::LiteralExtInstInteger(number)]
            .into_iter()
            .chain(arguments.iter().map(|a| Operand::IdRef(a.id)));
        self.emit(Op::ExtInst, ty, operands)
    }

    /// Declares a variable of module scope.
    pub(super) fn global(&self, pointer_type: Word, class: StorageClass) -> Word {
        let module = &mut self.state.borrow_mut().module;
        let id = module.id();
        let operands = vec![Operand::StorageClass(class)];
        let variable = Instruction::new(Op::Variable, Some(pointer_type), Some(id), operands);
        module.insert_types_global_values(InsertPoint::End, variable);
        id
    }

    /// Declares a variable of `main`. SPIR-V wants all of them at the start of the first block.
    pub(super) fn local(&self, type_id: Word, zeroed: bool) -> Word {
        let pointer_type = self.pointer_type(StorageClass::Function, type_id);
        let module = &mut self.state.borrow_mut().module;
        let mut operands = vec![Operand::StorageClass(StorageClass::Function)];
        if zeroed {
            operands.push(Operand::IdRef(module.constant_null(type_id)));
        }
        let id = module.id();
        let variable = Instruction::new(Op::Variable, Some(pointer_type), Some(id), operands);
        let current = module.selected_block();
        self.check(module.select_block(Some(0)));
        self.check(module.insert_into_block(InsertPoint::Begin, variable));
        self.check(module.select_block(current));
        id
    }

    /// Declares the next buffer. Returns its variable and, in a checked kernel, the word that holds its last index.
    pub(super) fn declare_buffer(
        &self,
        name: &str,
        element: Type,
        dtype: DType,
        access: Access,
    ) -> (Word, Option<usize>) {
        if element.scalar == Scalar::Bool {
            self.fail(format!("buffer `{name}`: truth values have no memory layout, use u32"));
        }
        let kind = SlotKind::Buffer { dtype, access, element_bytes: element.size_in_bytes() };
        self.state.borrow_mut().signature.push(name, kind);
        let last = self.checked.then(|| self.declare_word(Type::U32));
        let element_id = self.type_id(element);
        let variable = match self.target.dialect {
            Dialect::OpenCl => self.state.borrow_mut().module.id(),
            Dialect::Vulkan => {
                if element.scalar == Scalar::F16 {
                    self.capability(Capability::StorageBuffer16BitAccess);
                }
                let array = self.runtime_array(element, element_id);
                let pointer = self.pointer_type(self.buffer_class(), self.buffer_block(array, access));
                if self.target.addresses {
                    self.address(pointer)
                } else {
                    self.global(pointer, StorageClass::StorageBuffer)
                }
            }
        };
        let mut state = self.state.borrow_mut();
        state.module.name(variable, name.replace('\0', " "));
        state.bindings.push(Binding { variable, element, access, lanes: None });
        (variable, last)
    }

    /// Returns a buffer that is only read, with the lanes of its vectors as elements: bound twice, or by another
    /// pointer to its address. `None` if the target cannot do so.
    pub(super) fn lanes_of(&self, variable: Word, lane: Type) -> Option<Word> {
        if self.target.wgsl || self.target.dialect == Dialect::OpenCl {
            return None;
        }
        let place = self.state.borrow().bindings.iter().position(|binding| binding.variable == variable)?;
        let (known, by_address) = (self.state.borrow().bindings[place].lanes, self.target.addresses);
        let lanes = known.unwrap_or_else(|| {
            let array = self.runtime_array(lane, self.type_id(lane));
            let pointer = self.pointer_type(self.buffer_class(), self.buffer_block(array, Access::Read));
            let lanes = if by_address { pointer } else { self.global(pointer, StorageClass::StorageBuffer) };
            self.state.borrow_mut().bindings[place].lanes = Some(lanes);
            lanes
        });
        Some(if by_address { self.emit_id(Op::Bitcast, lanes, [Operand::IdRef(variable)]) } else { lanes })
    }

    /// Declares the structure of a buffer. Its only member is an array.
    fn buffer_block(&self, array: Word, access: Access) -> Word {
        let module = &mut self.state.borrow_mut().module;
        let id = module.id();
        let block = module.type_struct_id(Some(id), [array]);
        module.decorate(block, Decoration::Block, []);
        module.member_decorate(block, 0, Decoration::Offset, [Operand::LiteralBit32(0)]);
        if access == Access::Read {
            module.member_decorate(block, 0, Decoration::NonWritable, []);
        }
        block
    }

    /// Returns the storage class of buffers.
    pub(super) fn buffer_class(&self) -> StorageClass {
        match self.target.dialect {
            Dialect::OpenCl => StorageClass::CrossWorkgroup,
            Dialect::Vulkan if self.target.addresses => StorageClass::PhysicalStorageBuffer,
            Dialect::Vulkan => StorageClass::StorageBuffer,
        }
    }

    /// Declares a buffer's address in the next two words of the parameter block, and loads it.
    fn address(&self, pointer: Word) -> Word {
        let words = [(); 2].map(|()| self.declare_word(Type::U32));
        self.state.borrow_mut().address_words.extend(words);
        let address = self.vector(&words.map(|word| self.load_word(word)));
        self.emit_id(Op::Bitcast, pointer, [address.operand()])
    }

    fn runtime_array(&self, element: Type, element_id: Word) -> Word {
        let state = &mut *self.state.borrow_mut();
        *state.arrays.entry(element).or_insert_with(|| {
            // With its own id the type is not merged with others, so that the decoration stays unique.
            let id = state.module.id();
            let array = state.module.type_runtime_array_id(Some(id), element_id);
            let stride = Operand::LiteralBit32(element.size_in_bytes());
            state.module.decorate(array, Decoration::ArrayStride, [stride]);
            array
        })
    }

    /// Declares the next word of the parameter block and loads it.
    pub fn parameter(&self, ty: Type) -> Value<'_> {
        let position = self.state.borrow().signature.slots().len() + 1;
        self.named_parameter(&format!("#{position}"), ty)
    }

    /// The same with a name. Messages use it for the argument when the kernel is [launched](crate::Kernel).
    pub fn named_parameter(&self, name: &str, ty: Type) -> Value<'_> {
        if ty.lanes != 1 || ty.size_in_bytes() != 4 || ty.scalar == Scalar::Bool {
            self.fail(format!("a parameter is one word of 32 bits, not {ty}"));
        }
        self.state.borrow_mut().signature.push(name, SlotKind::Scalar(ty.dtype()));
        self.load_word(self.declare_word(self.possible(ty)))
    }

    /// Declares the next word of the parameter block and returns its index.
    fn declare_word(&self, ty: Type) -> usize {
        let state = &mut *self.state.borrow_mut();
        let id = match self.target.dialect {
            Dialect::OpenCl => state.module.id(),
            Dialect::Vulkan => state.block,
        };
        state.parameters.push((ty, id));
        state.parameters.len() - 1
    }

    /// Loads a word of the parameter block.
    pub(super) fn load_word(&self, index: usize) -> Value<'_> {
        let (ty, id) = self.state.borrow().parameters[index];
        if self.target.dialect == Dialect::OpenCl {
            return Value { kernel: self, id, ty };
        }
        let pointer_type = self.pointer_type(self.block_class(), self.type_id(Type::U32));
        let index = self.u32(index as u32);
        let pointer = self.emit_id(Op::AccessChain, pointer_type, [Operand::IdRef(id), Operand::IdRef(index.id)]);
        self.emit(Op::Load, Type::U32, [Operand::IdRef(pointer)]).bitcast(ty)
    }

    fn block_class(&self) -> StorageClass {
        match self.target.parameters {
            ParameterBlock::PushConstants => StorageClass::PushConstant,
            ParameterBlock::Uniform => StorageClass::Uniform,
        }
    }

    /// Loads a component of a three-component built-in, or a scalar built-in if `component` is `None`.
    pub(super) fn builtin(&self, builtin: BuiltIn, component: Option<u32>) -> Value<'_> {
        // OpenCL's vector built-ins count in 64 bits.
        let wide = self.target.dialect == Dialect::OpenCl && component.is_some();
        let lane = match wide {
            true => self.state.borrow_mut().module.type_int(64, 0),
            false => self.type_id(Type::U32),
        };
        let type_id = match component {
            Some(_) => self.state.borrow_mut().module.type_vector(lane, 3),
            None => lane,
        };
        let known = self.state.borrow().builtins.get(&builtin).copied();
        let variable = known.unwrap_or_else(|| {
            let pointer = self.pointer_type(StorageClass::Input, type_id);
            let variable = self.global(pointer, StorageClass::Input);
            let mut state = self.state.borrow_mut();
            state.module.decorate(variable, Decoration::BuiltIn, [Operand::BuiltIn(builtin)]);
            state.interface.push(variable);
            state.builtins.insert(builtin, variable);
            variable
        });
        let mut id = self.emit_id(Op::Load, type_id, [Operand::IdRef(variable)]);
        if let Some(component) = component {
            id = self.emit_id(Op::CompositeExtract, lane, [Operand::IdRef(id), Operand::LiteralBit32(component)]);
        }
        if wide {
            self.emit(Op::UConvert, Type::U32, [Operand::IdRef(id)])
        } else {
            Value { kernel: self, id, ty: Type::U32 }
        }
    }

    /// The invocation's index in its workgroup.
    pub fn local_index(&self) -> Value<'_> {
        let index = self.builtin(BuiltIn::LocalInvocationId, Some(0));
        self.turn().map_or(index, |first| first + index)
    }

    /// The workgroup's index in the dispatch, counted in one line. If a device runs fewer workgroups in a line (some
    /// 65,535), dispatches are folded into rows of 4,096. The last row may reach beyond the number asked for, so check
    /// the index. A kernel that is launched with `[x, y, z]` has such rows, too, or one workgroup in y and z.
    pub fn group_index(&self) -> Value<'_> {
        let column = self.builtin(BuiltIn::WorkgroupId, Some(0));
        let row = self.builtin(BuiltIn::WorkgroupId, Some(1));
        column + row * FOLDED_ROW
    }

    /// The invocation's index in the dispatch, over all workgroups. Like [`group_index`](Self::group_index), it may
    /// reach beyond the number asked for.
    pub fn global_index(&self) -> Value<'_> {
        self.group_index() * self.workgroup + self.local_index()
    }

    /// Ends the kernel and returns its module.
    ///
    /// # Errors
    /// [`Error::Kernel`] with the first mistake made in it.
    pub fn finish(self) -> Result<Module> {
        if !self.state.borrow().scopes.open.is_empty() {
            self.fail("a branch has not ended: drop what `when` returns");
        }
        self.check_matrices();
        self.emit_void(Op::Return, []);
        self.check(self.state.borrow_mut().module.select_block(None));
        self.check(self.state.borrow_mut().module.end_function());
        self.write_reductions();
        let workgroup = self.take_turns();
        match self.target.dialect {
            Dialect::Vulkan => self.finish_vulkan(),
            Dialect::OpenCl => self.finish_opencl(),
        }
        let KernelBuilder { name, state, error, .. } = self;
        if let Some(message) = error.into_inner() {
            return Err(Error::Kernel { kernel: name, message });
        }
        let mut state = state.into_inner();
        let model =
            if self.target.dialect == Dialect::Vulkan { ExecutionModel::GLCompute } else { ExecutionModel::Kernel };
        state.module.entry_point(model, state.main, "main", state.interface);
        state.module.execution_mode(state.main, ExecutionMode::LocalSize, [workgroup, 1, 1]);
        if self.target.dialect == Dialect::OpenCl {
            // Products and sums are rounded as they are written. Only `fma` fuses them.
            state.module.execution_mode(state.main, ExecutionMode::ContractionOff, []);
            let narrow = self.target.narrow_lanes.filter(|_| state.narrow_subgroups);
            if let Some(lanes) = self.target.subgroup_size.filter(|_| state.requires.subgroups).or(narrow) {
                state.module.capability(Capability::SubgroupDispatch);
                state.module.execution_mode(state.main, ExecutionMode::SubgroupSize, [lanes]);
            }
        }
        Ok(Module {
            name,
            code: Code::Spirv(state.module.module().assemble()),
            entry_point: "main".into(),
            bindings: state.bindings.iter().map(|b| b.access).collect(),
            parameter_words: state.parameters.len() - state.address_words.len(),
            parameters: self.target.parameters,
            workgroup: [workgroup, 1, 1],
            workgroup_memory: state.workgroup_memory,
            requires: state.requires,
            trusted: !self.checked,
            large_registers: state.large_registers,
            prefers_bindings: state.prefers_bindings,
            large_buffers: false,
            addresses: self.target.addresses,
        })
    }

    /// Declares the parameter block and numbers the bindings.
    fn finish_vulkan(&self) {
        self.declare_function_type(&[]);
        let word = self.type_id(Type::U32);
        let class = self.block_class();
        let state = &mut *self.state.borrow_mut();
        let module = &mut state.module;
        let variables: &[Binding] = if self.target.addresses { &[] } else { &state.bindings };
        let mut bound: Vec<Vec<Word>> =
            variables.iter().map(|b| [b.variable].into_iter().chain(b.lanes).collect()).collect();
        for binding in variables.iter().filter(|b| b.access == Access::Read) {
            [binding.variable]
                .into_iter()
                .chain(binding.lanes)
                .for_each(|v| module.decorate(v, Decoration::NonWritable, []));
        }
        if !state.parameters.is_empty() {
            let id = module.id();
            let block = module.type_struct_id(Some(id), vec![word; state.parameters.len()]);
            module.decorate(block, Decoration::Block, []);
            // Addresses come last in the block, wherever their buffers were declared.
            let (addresses, parameters): (Vec<_>, Vec<_>) =
                (0..state.parameters.len()).partition(|word| state.address_words.contains(word));
            for (place, word) in (0..).zip(parameters.into_iter().chain(addresses)) {
                module.member_decorate(block, word as u32, Decoration::Offset, [Operand::LiteralBit32(4 * place)]);
            }
            let pointer = module.type_pointer(None, class, block);
            let operands = vec![Operand::StorageClass(class)];
            let variable = Instruction::new(Op::Variable, Some(pointer), Some(state.block), operands);
            module.insert_types_global_values(InsertPoint::End, variable);
            module.name(state.block, "parameters");
            if class == StorageClass::Uniform {
                bound.push(vec![state.block]);
            }
        }
        let numbered = (0..).zip(bound).flat_map(|(index, variables)| variables.into_iter().map(move |v| (index, v)));
        for (index, variable) in numbered {
            module.decorate(variable, Decoration::DescriptorSet, [Operand::LiteralBit32(0)]);
            module.decorate(variable, Decoration::Binding, [Operand::LiteralBit32(index)]);
        }
    }

    /// Declares the arguments of `main`: buffers, then parameters.
    fn finish_opencl(&self) {
        let arguments: Vec<(Word, Word)> = {
            let (bindings, parameters): (Vec<_>, Vec<_>) = {
                let state = self.state.borrow();
                (state.bindings.iter().map(|b| (b.element, b.variable)).collect(), state.parameters.clone())
            };
            let pointers = bindings.into_iter().map(|(element, id)| {
                let element = self.type_id(element);
                (self.pointer_type(StorageClass::CrossWorkgroup, element), id)
            });
            pointers.chain(parameters.into_iter().map(|(ty, id)| (self.type_id(ty), id))).collect()
        };
        let types: Vec<Word> = arguments.iter().map(|(ty, _)| *ty).collect();
        self.declare_function_type(&types);
        if let Some(main) = self.state.borrow_mut().module.module_mut().functions.first_mut() {
            let parameter =
                |&(ty, id): &(Word, Word)| Instruction::new(Op::FunctionParameter, Some(ty), Some(id), vec![]);
            main.parameters = arguments.iter().map(parameter).collect();
        }
    }

    fn declare_function_type(&self, arguments: &[Word]) {
        let state = &mut *self.state.borrow_mut();
        let void = state.module.type_void();
        let function_type = state.module.type_function(void, arguments.iter().copied());
        if let Some(definition) = state.module.module_mut().functions.first_mut().and_then(|main| main.def.as_mut()) {
            definition.operands[1] = Operand::IdRef(function_type);
        }
    }
}
