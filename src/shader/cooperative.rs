//! Cooperative matrices, for a GPU's matrix units. The lanes of a subgroup hold such a matrix together. A kernel that
//! multiplies some requires the units of their dtype and size:
//! [`Features::matrix_units`](crate::Features::matrix_units).

use super::builder::KernelBuilder;
use super::memory::Array;
use super::target::Dialect;
use super::types::{Scalar, Type};
use super::value::{IntoValue, Value};
use crate::base::dtype::DType;
use rspirv::dr::{InsertPoint, Instruction, Operand};
use rspirv::spirv::{
    Capability, CooperativeMatrixLayout, CooperativeMatrixOperands, CooperativeMatrixReduce, CooperativeMatrixUse,
    FPEncoding, FunctionControl, MemoryModel, Op, Scope, StorageClass, Word,
};
use std::collections::HashMap;

/// The role of a matrix in a product `a b + c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatrixRole {
    /// The left factor.
    A,
    /// The right factor.
    B,
    /// The addend, and the result.
    C,
}

/// The type of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatrixType {
    /// The dtype of its elements.
    pub dtype: DType,
    /// Its rows.
    pub rows: u32,
    /// Its columns.
    pub columns: u32,
    /// Its role in a product.
    pub role: MatrixRole,
}

impl MatrixType {
    /// Returns the types of `a`, `b` and `c` in a product `a b + c` of a dtype. The size `[m, n, k]` is the one that
    /// [`Features::matrix_units`](crate::Features::matrix_units) has for the dtype. `a` is `m x k`, `b` is `k x n`, and
    /// `c`, of 32 bits, is `m x n`.
    pub fn of_units(dtype: DType, [m, n, k]: [u32; 3]) -> [MatrixType; 3] {
        [
            MatrixType { dtype, rows: m, columns: k, role: MatrixRole::A },
            MatrixType { dtype, rows: k, columns: n, role: MatrixRole::B },
            MatrixType { dtype: dtype.widened(), rows: m, columns: n, role: MatrixRole::C },
        ]
    }

    fn name(self) -> String {
        format!("a {} x {} matrix of {} as {:?}", self.rows, self.columns, self.dtype, self.role)
    }
}

/// Which elements are neighbours in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatrixLayout {
    /// Elements of a row: a line is a row.
    Rows,
    /// Elements of a column: a line is a column.
    Columns,
}

/// A matrix that the lanes of a subgroup hold together: see [`KernelBuilder::use_matrices`].
#[derive(Clone, Copy)]
pub struct CooperativeMatrix<'k> {
    kernel: &'k KernelBuilder,
    id: Word,
    ty: MatrixType,
}

/// A variable that holds a cooperative matrix.
#[derive(Clone, Copy)]
pub struct MatrixVar<'k> {
    kernel: &'k KernelBuilder,
    pointer: Word,
    ty: MatrixType,
}

/// The matrices of a kernel.
#[derive(Default)]
pub(super) struct Matrices {
    types: HashMap<MatrixType, Word>,
    /// The size of its products, by dtype.
    products: HashMap<DType, [u32; 3]>,
    /// The function that returns the larger of two floats, if rows are reduced by it.
    larger: Option<Word>,
}

impl<'k> MatrixVar<'k> {
    /// Returns its current matrix.
    pub fn get(self) -> CooperativeMatrix<'k> {
        let ty = self.kernel.matrix_type(self.ty);
        let id = self.kernel.emit_id(Op::Load, ty, [Operand::IdRef(self.pointer)]);
        CooperativeMatrix { kernel: self.kernel, id, ty: self.ty }
    }

    /// Returns an element of 32 bits that the lane itself holds. The driver decides which one it is.
    pub(crate) fn element(self, index: u32) -> Value<'k> {
        let ty = Type { scalar: self.ty.dtype.compute_scalar(), lanes: 1 };
        let component = self.kernel.component_type(self.ty.dtype);
        let place = self.kernel.element_of(self.pointer, component, index);
        self.kernel.emit(Op::Load, ty, [Operand::IdRef(place)])
    }

    /// Replaces an element of 32 bits that the lane itself holds.
    pub(crate) fn set_element(self, index: u32, value: Value<'k>) {
        let component = self.kernel.component_type(self.ty.dtype);
        let place = self.kernel.element_of(self.pointer, component, index);
        self.kernel.emit_void(Op::Store, [Operand::IdRef(place), value.operand()]);
    }

    /// Replaces its matrix.
    pub fn set(self, matrix: CooperativeMatrix<'k>) {
        if self.ty != matrix.ty {
            self.kernel.fail(format!("{} is stored where {} is expected", matrix.ty.name(), self.ty.name()));
        }
        self.kernel.emit_void(Op::Store, [Operand::IdRef(self.pointer), Operand::IdRef(matrix.id)]);
    }
}

impl<'k> CooperativeMatrix<'k> {
    /// Computes `self b + c`. `self` has the [role](MatrixRole) `A`. Products of floats are added up in `f32`.
    pub fn multiply_add(self, b: CooperativeMatrix<'k>, c: CooperativeMatrix<'k>) -> CooperativeMatrix<'k> {
        let kernel = self.kernel;
        let (dtype, size) = (self.ty.dtype, [c.ty.rows, c.ty.columns, b.ty.rows]);
        if [self.ty, b.ty, c.ty] != MatrixType::of_units(dtype, size) {
            kernel.fail(format!("no product: {}, {}, {}", self.ty.name(), b.ty.name(), c.ty.name()));
        }
        let known = kernel.require(|features| features.matrix_units.of_mut(dtype).map(|units| *units = Some(size)));
        if known.is_none() {
            kernel.fail(format!("matrix units multiply f16, bf16, i8 and u8, not {dtype}"));
        }
        let known = kernel.state.borrow_mut().matrices.get_or_insert_default().products.insert(dtype, size);
        if known.is_some_and(|known| known != size) {
            kernel.fail(format!("products of {dtype} of several sizes"));
        }
        let ty = kernel.matrix_type(c.ty);
        let mut operands = [self.id, b.id, c.id].map(Operand::IdRef).to_vec();
        if dtype == DType::I8 {
            operands.push(Operand::CooperativeMatrixOperands(
                CooperativeMatrixOperands::MATRIX_A_SIGNED_COMPONENTS_KHR
                    | CooperativeMatrixOperands::MATRIX_B_SIGNED_COMPONENTS_KHR
                    | CooperativeMatrixOperands::MATRIX_C_SIGNED_COMPONENTS_KHR
                    | CooperativeMatrixOperands::MATRIX_RESULT_SIGNED_COMPONENTS_KHR,
            ));
        }
        let id = kernel.emit_id(Op::CooperativeMatrixMulAddKHR, ty, operands);
        CooperativeMatrix { kernel, id, ty: c.ty }
    }

    /// Multiplies each element of a matrix of floats by the one in the same place of another.
    pub(crate) fn times(self, factors: CooperativeMatrix<'k>) -> CooperativeMatrix<'k> {
        let (kernel, ty) = (self.kernel, self.ty);
        let operands = [self.id, factors.id].map(Operand::IdRef);
        CooperativeMatrix { kernel, id: kernel.emit_id(Op::FMul, kernel.matrix_type(ty), operands), ty }
    }

    /// Returns the largest `f32` of each row, in each column. If one is NaN, it is any of them. The kernel requires
    /// [`MatrixUnits::reductions`](crate::MatrixUnits::reductions).
    pub(crate) fn largest_of_rows(self) -> CooperativeMatrix<'k> {
        let (kernel, ty) = (self.kernel, self.ty);
        kernel.use_reductions(Capability::CooperativeMatrixReductionsNV);
        let larger = {
            let state = &mut *kernel.state.borrow_mut();
            *state.matrices.get_or_insert_default().larger.get_or_insert_with(|| state.module.id())
        };
        let operands = [
            Operand::IdRef(self.id),
            Operand::CooperativeMatrixReduce(CooperativeMatrixReduce::ROW),
            Operand::IdRef(larger),
        ];
        let id = kernel.emit_id(Op::CooperativeMatrixReduceNV, kernel.matrix_type(ty), operands);
        CooperativeMatrix { kernel, id, ty }
    }

    /// Returns a result of `f32` as a factor of `f16`. The kernel requires
    /// [`MatrixUnits::reductions`](crate::MatrixUnits::reductions).
    pub(crate) fn factor(self, ty: MatrixType) -> CooperativeMatrix<'k> {
        let kernel = self.kernel;
        kernel.use_reductions(Capability::CooperativeMatrixConversionsNV);
        kernel.round_halves();
        let id = kernel.emit_id(Op::FConvert, kernel.matrix_type(ty), [Operand::IdRef(self.id)]);
        CooperativeMatrix { kernel, id, ty }
    }
}

impl KernelBuilder {
    /// Declares that the kernel uses cooperative matrices. This comes before anything else.
    ///
    /// The 32 lanes of a subgroup hold such a matrix together. The driver decides which lane has which element. All
    /// lanes must reach each load, store and product, with the same arguments, and a workgroup must have whole
    /// subgroups. Every matrix of a kernel must have a type that one of its products has.
    ///
    /// ```
    /// use marquetry::shader::{Access, MatrixLayout, MatrixType, Scalar, Type};
    /// use marquetry::{Argument, DType, Device, Kernel, Tensor};
    ///
    /// let device = Device::best()?;
    /// // If there are no units of `f16`, `Kernel::build` says so.
    /// let Some(size @ [m, n, k]) = device.info().features.matrix_units.f16 else { return Ok(()) };
    /// let [a, b, c] = MatrixType::of_units(DType::F16, size);
    /// // One subgroup multiplies matrices of the units' size. Their rows lie behind each other.
    /// let product = Kernel::build("product", &device, 32, |kernel| {
    ///     kernel.use_matrices();
    ///     // An element has eight halves or four floats.
    ///     let x = kernel.matrix_buffer("x", DType::F16, Access::Read);
    ///     let w = kernel.matrix_buffer("w", DType::F16, Access::Read);
    ///     let y = kernel.matrix_buffer("y", DType::F32, Access::Write);
    ///     let x = x.load_matrix(0, k / 8, MatrixLayout::Rows, a);
    ///     let w = w.load_matrix(0, n / 8, MatrixLayout::Rows, b);
    ///     let sum = x.multiply_add(w, kernel.zero_matrix(c).get());
    ///     y.store_matrix(0, n / 4, MatrixLayout::Rows, sum);
    /// })?;
    /// let x = Tensor::ones((m as usize, k as usize), DType::F16, &device)?;
    /// let w = Tensor::ones((k as usize, n as usize), DType::F16, &device)?;
    /// let [y] = product.launch(1, [x.into(), w.into(), Argument::output((m as usize, n as usize))])?;
    /// assert_eq!(y.to_vec::<f32>()?, vec![k as f32; (m * n) as usize]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// Such a kernel follows Vulkan's own memory model (`SPV_KHR_cooperative_matrix`, `SPV_KHR_vulkan_memory_model`).
    pub fn use_matrices(&self) {
        {
            let state = &mut *self.state.borrow_mut();
            if state.matrices.is_some() || !state.is_empty() {
                self.fail("`use_matrices` stands before anything else");
            }
            state.matrices = Some(Matrices::default());
        }
        if self.target().dialect == Dialect::Vulkan {
            self.capability(Capability::CooperativeMatrixKHR);
            self.extension("SPV_KHR_cooperative_matrix");
        }
        self.follow_memory_model();
    }

    /// Declares that the kernel follows Vulkan's own memory model. This comes before anything else.
    pub(crate) fn follow_memory_model(&self) {
        let addressing = self.target().addressing();
        self.require(|features| features.memory_model = true);
        let state = &mut *self.state.borrow_mut();
        if !state.is_empty() {
            self.fail("the memory model is chosen before anything else");
        }
        state.memory_model = true;
        if self.target().dialect == Dialect::Vulkan {
            state.module.capability(Capability::VulkanMemoryModel);
            state.module.extension("SPV_KHR_vulkan_memory_model");
            state.module.memory_model(addressing, MemoryModel::Vulkan);
        }
    }

    /// Whether the kernel follows Vulkan's own memory model.
    pub(crate) fn follows_memory_model(&self) -> bool {
        self.state.borrow().memory_model
    }

    fn use_reductions(&self, capability: Capability) {
        self.require(|features| features.matrix_units.reductions = true);
        self.capability(capability);
        self.extension("SPV_NV_cooperative_matrix2");
    }

    /// Writes the functions that reductions of rows call, behind `main`.
    pub(super) fn write_reductions(&self) {
        let larger = self.state.borrow().matrices.as_ref().and_then(|matrices| matrices.larger);
        let Some(larger) = larger else { return };
        let float = self.type_id(Type::F32);
        {
            let module = &mut self.state.borrow_mut().module;
            let function = module.type_function(float, [float, float]);
            self.check(module.begin_function(float, Some(larger), FunctionControl::NONE, function));
        }
        let parameter = || {
            let id = self.check(self.state.borrow_mut().module.function_parameter(float));
            id.map_or_else(|| self.f32(0.0), |id| Value { kernel: self, id, ty: Type::F32 })
        };
        let [a, b] = [(); 2].map(|()| parameter());
        self.check(self.state.borrow_mut().module.begin_block(None));
        let result = a.larger(b);
        let module = &mut self.state.borrow_mut().module;
        self.check(module.ret_value(result.id));
        self.check(module.end_function());
    }

    /// Whether the kernel has declared to use cooperative matrices.
    pub(crate) fn has_matrices(&self) -> bool {
        self.state.borrow().matrices.is_some()
    }

    /// Notes a mistake if the matrices do not fit together.
    pub(super) fn check_matrices(&self) {
        let state = self.state.borrow();
        let Some(Matrices { types, products, .. }) = &state.matrices else { return };
        if self.target().dialect != Dialect::Vulkan {
            self.fail("cooperative matrices are there in Vulkan's dialect only");
        }
        let products: Vec<_> = products.iter().flat_map(|(&dtype, &size)| MatrixType::of_units(dtype, size)).collect();
        if let Some(ty) = types.keys().find(|ty| !products.contains(ty)) {
            self.fail(format!("{} is in no product", ty.name()));
        }
        if !self.workgroup().is_multiple_of(LANES) {
            self.fail(format!("a workgroup of {} invocations has no whole subgroups of {LANES}", self.workgroup()));
        }
    }

    /// Returns the type of a matrix's elements. If the dtype is narrow, no value of a kernel has this type.
    fn component_type(&self, dtype: DType) -> Word {
        match dtype {
            DType::F16 => self.type_id(Type::F16),
            DType::BF16 => {
                self.capability(Capability::BFloat16TypeKHR);
                self.capability(Capability::BFloat16CooperativeMatrixKHR);
                self.extension("SPV_KHR_bfloat16");
                self.state.borrow_mut().module.type_float(16, Some(FPEncoding::BFloat16KHR))
            }
            DType::I8 | DType::U8 => {
                self.capability(Capability::Int8);
                self.state.borrow_mut().module.type_int(8, u32::from(dtype == DType::I8))
            }
            _ => self.type_id(Type { scalar: dtype.compute_scalar(), lanes: 1 }),
        }
    }

    fn matrix_type(&self, ty: MatrixType) -> Word {
        if let Some(&id) = self.state.borrow().matrices.as_ref().and_then(|known| known.types.get(&ty)) {
            return id;
        }
        if !self.has_matrices() {
            self.fail("cooperative matrices are to be declared first: `use_matrices`");
        }
        let component = self.component_type(ty.dtype);
        let role = match ty.role {
            MatrixRole::A => CooperativeMatrixUse::MatrixAKHR,
            MatrixRole::B => CooperativeMatrixUse::MatrixBKHR,
            MatrixRole::C => CooperativeMatrixUse::MatrixAccumulatorKHR,
        };
        let numbers = [Scope::Subgroup as u32, ty.rows, ty.columns, role as u32].map(|n| self.u32(n).operand());
        let state = &mut *self.state.borrow_mut();
        let id = state.module.id();
        let operands = std::iter::once(Operand::IdRef(component)).chain(numbers).collect();
        let instruction = Instruction::new(Op::TypeCooperativeMatrixKHR, None, Some(id), operands);
        state.module.insert_types_global_values(InsertPoint::End, instruction);
        state.matrices.get_or_insert_default().types.insert(ty, id);
        id
    }

    /// Declares a variable with a matrix of zeros, to add up products in.
    pub fn zero_matrix(&self, ty: MatrixType) -> MatrixVar<'_> {
        let id = self.matrix_type(ty);
        let component = self.component_type(ty.dtype);
        let zero = self.state.borrow_mut().module.constant_null(component);
        self.filled(ty, id, Operand::IdRef(zero))
    }

    /// Declares a variable with a matrix of elements of 32 bits, all of which are `element`.
    pub(crate) fn filled_matrix<'k>(&'k self, ty: MatrixType, element: Value<'k>) -> MatrixVar<'k> {
        self.filled(ty, self.matrix_type(ty), element.operand())
    }

    fn filled(&self, ty: MatrixType, type_id: Word, element: Operand) -> MatrixVar<'_> {
        let pointer = self.local(type_id, false);
        let id = self.emit_id(Op::CompositeConstruct, type_id, [element]);
        let var = MatrixVar { kernel: self, pointer, ty };
        var.set(CooperativeMatrix { kernel: self, id, ty });
        var
    }

    /// Returns the lower (`half` 0) or the upper halves (1) of two words as one word, the first in its low half. The
    /// kernel must multiply matrices of 16 bits: devices that do have integers of 16 bits. With these, NVIDIA's driver
    /// takes one instruction.
    pub(crate) fn halves<'k>(&'k self, [low, high]: [Value<'k>; 2], half: u32) -> Value<'k> {
        self.capability(Capability::Int16);
        let pair = {
            let module = &mut self.state.borrow_mut().module;
            let short = module.type_int(16, 0);
            module.type_vector(short, 2)
        };
        let words = [low, high].map(|word| Operand::IdRef(self.emit_id(Op::Bitcast, pair, [word.operand()])));
        let halves = words.into_iter().chain([half, 2 + half].map(Operand::LiteralBit32));
        let halves = self.emit_id(Op::VectorShuffle, pair, halves);
        self.emit(Op::Bitcast, Type::U32, [Operand::IdRef(halves)])
    }

    /// Returns a matrix. Each lane gives the elements of 16 bits that it holds, two in a word. The driver decides which
    /// elements of the matrix they are.
    pub(crate) fn matrix_of_words<'k>(&'k self, ty: MatrixType, words: &[Value<'k>]) -> CooperativeMatrix<'k> {
        let component = self.component_type(ty.dtype);
        self.capability(Capability::Int16);
        let half = self.state.borrow_mut().module.type_int(16, 0);
        let halves = words.iter().flat_map(|&word| [word & 0xffff, word >> 16]);
        self.matrix_of(ty, halves, |value| {
            let bits = self.emit_id(Op::UConvert, half, [value.operand()]);
            Operand::IdRef(self.emit_id(Op::Bitcast, component, [Operand::IdRef(bits)]))
        })
    }

    /// Returns a matrix. Each lane gives the elements that it holds, in the type in which kernels compute with the
    /// dtype. The driver decides which elements of the matrix they are.
    pub(crate) fn matrix_of_elements<'k>(&'k self, ty: MatrixType, elements: &[Value<'k>]) -> CooperativeMatrix<'k> {
        self.matrix_of(ty, elements.iter().copied(), |element| element.operand())
    }

    /// Returns a matrix. Each lane gives a value for each element that it holds, and `element` makes it one.
    fn matrix_of<'k>(
        &'k self,
        ty: MatrixType,
        values: impl Iterator<Item = Value<'k>>,
        element: impl Fn(Value<'k>) -> Operand,
    ) -> CooperativeMatrix<'k> {
        let component = self.component_type(ty.dtype);
        let var = MatrixVar { kernel: self, pointer: self.local(self.matrix_type(ty), false), ty };
        for (value, index) in values.zip(0..) {
            let element = element(value);
            let place = self.element_of(var.pointer, component, index);
            self.emit_void(Op::Store, [Operand::IdRef(place), element]);
        }
        var.get()
    }

    /// Returns a pointer to an element that the lane itself holds in a matrix.
    fn element_of(&self, matrix: Word, component: Word, index: u32) -> Word {
        let pointer = self.pointer_type(StorageClass::Function, component);
        self.emit_id(Op::AccessChain, pointer, [Operand::IdRef(matrix), self.u32(index).operand()])
    }

    /// Declares the next buffer, for matrices of a tensor's dtype. It has elements of 16 bytes, as
    /// [`load_matrix`](Array::load_matrix) wants them.
    pub fn matrix_buffer(&self, name: &str, dtype: DType, access: super::Access) -> Array<'_> {
        self.typed_buffer(name, Type::vec4(Scalar::U32), dtype, access)
    }

    fn matrix_layout(&self, layout: MatrixLayout) -> Operand {
        let layout = match layout {
            MatrixLayout::Rows => CooperativeMatrixLayout::RowMajorKHR,
            MatrixLayout::Columns => CooperativeMatrixLayout::ColumnMajorKHR,
        };
        self.u32(layout as u32).operand()
    }
}

/// The lanes of a subgroup that holds matrices.
const LANES: u32 = 32;

/// The bytes of an element of arrays that hold matrices. A matrix that begins at an element is aligned as drivers want
/// it.
const ELEMENT: u32 = 16;

impl<'k> Array<'k> {
    /// Loads a matrix. Its first element is the first one at `index`, and its lines are `stride` elements of the array
    /// apart. The array is a buffer or workgroup memory. Its elements have 16 bytes, such as vectors of four `u32`. The
    /// matrix's own elements are found in these bytes. In a kernel of [`Kernel::build`](crate::Kernel::build), a matrix
    /// that is not wholly in the array is zeros.
    pub fn load_matrix(
        self,
        index: impl IntoValue<'k>,
        stride: impl IntoValue<'k>,
        layout: MatrixLayout,
        ty: MatrixType,
    ) -> CooperativeMatrix<'k> {
        let kernel = self.kernel();
        let type_id = kernel.matrix_type(ty);
        let load = |index: Value<'k>, stride: Value<'k>| {
            let operands = [Operand::IdRef(self.pointer(index, None)), kernel.matrix_layout(layout), stride.operand()];
            let operands = operands.into_iter().chain(kernel.shared(self.class()));
            let id = kernel.emit_id(Op::CooperativeMatrixLoadKHR, type_id, operands);
            CooperativeMatrix { kernel, id, ty }
        };
        let Place { index, stride, fits } = self.place(index, stride, layout, ty);
        let Some(fits) = fits else { return load(index, stride) };
        let loaded = kernel.zero_matrix(ty);
        kernel.when(fits, || loaded.set(load(index, stride)));
        loaded.get()
    }

    /// Stores a matrix, as [`load_matrix`](Self::load_matrix) loads it. In a kernel of
    /// [`Kernel::build`](crate::Kernel::build), a matrix that would not be wholly in the array is left out.
    pub fn store_matrix(
        self,
        index: impl IntoValue<'k>,
        stride: impl IntoValue<'k>,
        layout: MatrixLayout,
        matrix: CooperativeMatrix<'k>,
    ) {
        self.check_writable();
        let kernel = self.kernel();
        let store = |index: Value<'k>, stride: Value<'k>| {
            let pointer = Operand::IdRef(self.pointer(index, None));
            let operands = [pointer, Operand::IdRef(matrix.id), kernel.matrix_layout(layout), stride.operand()];
            kernel.emit_void(Op::CooperativeMatrixStoreKHR, operands.into_iter().chain(kernel.shared(self.class())));
        };
        let Place { index, stride, fits } = self.place(index, stride, layout, matrix.ty);
        match fits {
            Some(fits) => drop(kernel.when(fits, || store(index, stride))),
            None => store(index, stride),
        }
    }

    /// Returns where a matrix lies and, in a checked kernel, whether that is in the array.
    fn place(
        self,
        index: impl IntoValue<'k>,
        stride: impl IntoValue<'k>,
        layout: MatrixLayout,
        ty: MatrixType,
    ) -> Place<'k> {
        let kernel = self.kernel();
        let (index, stride) = (self.index(index), self.index(stride));
        let there = [StorageClass::Workgroup, kernel.buffer_class()].contains(&self.class());
        if self.element().size_in_bytes() != ELEMENT || !there {
            kernel.fail("matrices are in buffers and workgroup memory, in elements of 16 bytes");
        }
        let Some(last) = self.last() else { return Place { index, stride, fits: None } };
        // Drivers want to see that all lanes have the same values.
        let (index, stride) = (index.subgroup_first(), stride.subgroup_first());
        let (lines, line) = match layout {
            MatrixLayout::Rows => (ty.rows, ty.columns),
            MatrixLayout::Columns => (ty.columns, ty.rows),
        };
        let line = (line * ty.dtype.size_in_bytes() as u32).div_ceil(ELEMENT).max(1) - 1;
        // The last place at which a line may begin. The last line must begin there or before.
        let room = last - line;
        let apart = stride.le((room - index) / lines.saturating_sub(1).max(1));
        Place { index, stride, fits: Some(last.ge(line) & index.le(room) & apart) }
    }
}

/// Where a matrix lies in an array.
struct Place<'k> {
    index: Value<'k>,
    stride: Value<'k>,
    fits: Option<Value<'k>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::Error;
    use crate::shader::{Access, Module, Target};

    const SIZE: [u32; 3] = [16, 16, 16];

    fn checked(write: impl FnOnce(&KernelBuilder)) -> Result<Module, String> {
        let k = KernelBuilder::checked("matrices", Target::VULKAN, 64);
        write(&k);
        k.finish().map_err(|error| match error {
            Error::Kernel { message, .. } => message,
            other => panic!("{other}"),
        })
    }

    /// Writes a product of matrices. All of them have elements of `dtype` in memory.
    fn product(k: &KernelBuilder, dtype: DType) {
        let [a, b, c] = MatrixType::of_units(dtype, SIZE);
        let x = k.matrix_buffer("x", dtype, Access::ReadWrite);
        let tile = k.workgroup_array(Type::vec4(Scalar::U32), 64);
        let stride = k.parameter(Type::U32);
        tile.store(k.local_index(), x.load(k.local_index()));
        k.barrier();
        let sum = k.zero_matrix(c);
        let (left, right) =
            (tile.load_matrix(0, 2, MatrixLayout::Rows, a), x.load_matrix(1, stride, MatrixLayout::Columns, b));
        sum.set(left.multiply_add(right, sum.get()));
        x.store_matrix(0, stride, MatrixLayout::Rows, sum.get());
    }

    #[test]
    fn products_require_their_units() {
        for dtype in [DType::F16, DType::BF16, DType::I8, DType::U8] {
            let module = checked(|k| {
                k.use_matrices();
                product(k, dtype);
            });
            let module = module.unwrap();
            assert_eq!(module.requires.matrix_units.of(dtype), Some(SIZE), "{dtype}");
            assert_eq!(module.requires.f16, dtype == DType::F16);
            assert!(module.requires.subgroups, "places are looked at by subgroups");
        }
    }

    /// A kernel with a mistake, and a part of its message.
    type Mistake<'a> = (&'a dyn Fn(&KernelBuilder), &'a str);

    #[test]
    fn mistakes_with_matrices() {
        let message = |write: &dyn Fn(&KernelBuilder)| checked(write).unwrap_err();
        let of_size = |dtype, size| MatrixType::of_units(dtype, size);
        let [a, b, c] = of_size(DType::F16, SIZE);
        let cases: [Mistake; 8] = [
            (&|k| product(k, DType::F16), "`use_matrices`"),
            (
                &|k| {
                    k.u32(1);
                    k.use_matrices();
                },
                "`use_matrices` stands before anything else",
            ),
            (
                &|k| {
                    k.use_matrices();
                    product(k, DType::F32);
                },
                "matrix units multiply f16, bf16, i8 and u8, not f32",
            ),
            (
                &|k| {
                    k.use_matrices();
                    k.zero_matrix(a);
                },
                "a 16 x 16 matrix of f16 as A is in no product",
            ),
            (
                &|k| {
                    k.use_matrices();
                    let [a, c] = [a, c].map(|ty| k.zero_matrix(ty).get());
                    a.multiply_add(a, c);
                },
                "no product: a 16 x 16 matrix of f16 as A, a 16 x 16 matrix of f16 as A",
            ),
            (
                &|k| {
                    k.use_matrices();
                    k.zero_matrix(c).set(k.zero_matrix(b).get());
                },
                "a 16 x 16 matrix of f16 as B is stored where a 16 x 16 matrix of f32 as C is expected",
            ),
            (
                &|k| {
                    k.use_matrices();
                    for size in [SIZE, [16, 8, 16]] {
                        let [a, b, c] = of_size(DType::F16, size).map(|ty| k.zero_matrix(ty).get());
                        a.multiply_add(b, c);
                    }
                },
                "products of f16 of several sizes",
            ),
            (
                &|k| {
                    k.use_matrices();
                    k.packed_buffer("x", DType::F16, Access::Read).load_matrix(0, 1, MatrixLayout::Rows, a);
                },
                "matrices are in buffers and workgroup memory, in elements of 16 bytes",
            ),
        ];
        for (write, expected) in cases {
            assert!(message(write).contains(expected), "{expected}: {}", message(write));
        }
        let odd = KernelBuilder::checked("matrices", Target::VULKAN, 48);
        odd.use_matrices();
        assert!(odd.finish().unwrap_err().to_string().contains("48 invocations has no whole subgroups of 32"));
        let opencl = KernelBuilder::checked("matrices", Target::LEVEL_ZERO, 32);
        opencl.use_matrices();
        assert!(opencl.finish().unwrap_err().to_string().contains("in Vulkan's dialect only"));
    }
}
