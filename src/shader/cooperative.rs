//! Cooperative matrices: matrices that the lanes of a subgroup hold together, for a GPU's matrix units. A kernel that
//! multiplies some requires the units of their dtype and size: [`Features::matrix_units`](crate::Features::matrix_units).

use super::builder::KernelBuilder;
use super::memory::Array;
use super::target::Dialect;
use super::types::Type;
use super::value::Value;
use crate::dtype::DType;
use rspirv::dr::{InsertPoint, Instruction, Operand};
use rspirv::spirv::{
    Capability, CooperativeMatrixLayout, CooperativeMatrixOperands, CooperativeMatrixUse, FPEncoding, MemoryModel, Op,
    Scope, Word,
};
use std::collections::HashMap;

/// What a matrix is in a product `a b + c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Operator {
    A,
    B,
    C,
}

/// The type of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct MatrixType {
    pub dtype: DType,
    pub rows: u32,
    pub columns: u32,
    pub operator: Operator,
}

/// Which elements are neighbours in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum MatrixLayout {
    Rows,
    Columns,
}

/// A matrix held by a subgroup.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'k> {
    kernel: &'k KernelBuilder,
    id: Word,
    ty: MatrixType,
}

/// A variable that holds one.
#[derive(Clone, Copy)]
pub(crate) struct MatrixVar<'k> {
    kernel: &'k KernelBuilder,
    pointer: Word,
    ty: MatrixType,
}

impl<'k> MatrixVar<'k> {
    pub fn get(self) -> Matrix<'k> {
        let ty = self.kernel.matrix_type(self.ty);
        let id = self.kernel.emit_id(Op::Load, ty, [Operand::IdRef(self.pointer)]);
        Matrix { kernel: self.kernel, id, ty: self.ty }
    }

    pub fn set(self, matrix: Matrix<'k>) {
        self.kernel.emit_void(Op::Store, [Operand::IdRef(self.pointer), Operand::IdRef(matrix.id)]);
    }
}

impl<'k> Matrix<'k> {
    /// `self b + c`.
    pub fn multiply_add(self, b: Matrix<'k>, c: Matrix<'k>) -> Matrix<'k> {
        let fits = (self.ty.operator, b.ty.operator, c.ty.operator) == (Operator::A, Operator::B, Operator::C)
            && (self.ty.rows, self.ty.columns, b.ty.columns) == (c.ty.rows, b.ty.rows, c.ty.columns)
            && (self.ty.dtype, self.ty.dtype.widened()) == (b.ty.dtype, c.ty.dtype);
        if !fits {
            self.kernel.fail(format!("{:?} {:?} + {:?}", self.ty, b.ty, c.ty));
        }
        let size = [c.ty.rows, c.ty.columns, b.ty.rows];
        self.kernel.require(|features| {
            if let Some(units) = features.matrix_units.of_mut(self.ty.dtype) {
                *units = Some(size);
            }
        });
        let ty = self.kernel.matrix_type(c.ty);
        let mut operands = [self.id, b.id, c.id].map(Operand::IdRef).to_vec();
        if self.ty.dtype == DType::I8 {
            operands.push(Operand::CooperativeMatrixOperands(
                CooperativeMatrixOperands::MATRIX_A_SIGNED_COMPONENTS_KHR
                    | CooperativeMatrixOperands::MATRIX_B_SIGNED_COMPONENTS_KHR
                    | CooperativeMatrixOperands::MATRIX_C_SIGNED_COMPONENTS_KHR
                    | CooperativeMatrixOperands::MATRIX_RESULT_SIGNED_COMPONENTS_KHR,
            ));
        }
        let id = self.kernel.emit_id(Op::CooperativeMatrixMulAddKHR, ty, operands);
        Matrix { kernel: self.kernel, id, ty: c.ty }
    }
}

impl KernelBuilder {
    /// Declares that the kernel uses cooperative matrices, before anything else. It then follows Vulkan's own memory model,
    /// in which loads and stores tell what others see.
    pub(crate) fn use_matrices(&self) {
        if self.target().dialect != Dialect::Vulkan {
            self.fail("cooperative matrices are there in Vulkan's dialect only");
        }
        for capability in [Capability::CooperativeMatrixKHR, Capability::VulkanMemoryModel] {
            self.capability(capability);
        }
        for extension in ["SPV_KHR_cooperative_matrix", "SPV_KHR_vulkan_memory_model"] {
            self.extension(extension);
        }
        let addressing = self.target().addressing();
        let state = &mut *self.state.borrow_mut();
        state.module.memory_model(addressing, MemoryModel::Vulkan);
        state.matrices = Some(HashMap::new());
    }

    pub(super) fn has_matrices(&self) -> bool {
        self.state.borrow().matrices.is_some()
    }

    /// The type of a matrix's elements: of a narrow dtype one that no value of a kernel has.
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
        if let Some(&id) = self.state.borrow().matrices.as_ref().and_then(|known| known.get(&ty)) {
            return id;
        }
        if !self.has_matrices() {
            self.fail("cooperative matrices are to be declared first");
        }
        let component = self.component_type(ty.dtype);
        let operator = match ty.operator {
            Operator::A => CooperativeMatrixUse::MatrixAKHR,
            Operator::B => CooperativeMatrixUse::MatrixBKHR,
            Operator::C => CooperativeMatrixUse::MatrixAccumulatorKHR,
        };
        let numbers = [Scope::Subgroup as u32, ty.rows, ty.columns, operator as u32].map(|n| self.u32(n).operand());
        let state = &mut *self.state.borrow_mut();
        let id = state.module.id();
        let operands = std::iter::once(Operand::IdRef(component)).chain(numbers).collect();
        let instruction = Instruction::new(Op::TypeCooperativeMatrixKHR, None, Some(id), operands);
        state.module.insert_types_global_values(InsertPoint::End, instruction);
        state.matrices.get_or_insert_default().insert(ty, id);
        id
    }

    /// A variable with a matrix of zeros, to add up products in.
    pub(crate) fn zero_matrix(&self, ty: MatrixType) -> MatrixVar<'_> {
        let id = self.matrix_type(ty);
        let zero = self.number(Type { scalar: ty.dtype.compute_scalar(), lanes: 1 }, 0);
        let pointer = self.local(id, false);
        let zeros = self.emit_id(Op::CompositeConstruct, id, [zero.operand()]);
        let var = MatrixVar { kernel: self, pointer, ty };
        var.set(Matrix { kernel: self, id: zeros, ty });
        var
    }

    fn matrix_layout(&self, layout: MatrixLayout) -> Operand {
        let layout = match layout {
            MatrixLayout::Rows => CooperativeMatrixLayout::RowMajorKHR,
            MatrixLayout::Columns => CooperativeMatrixLayout::ColumnMajorKHR,
        };
        self.u32(layout as u32).operand()
    }
}

impl<'k> Array<'k> {
    /// The matrix whose first element is the first one at `index`, and whose lines are `stride` elements of the array
    /// apart. The array may have any elements: the matrix's are found in their bytes.
    pub(crate) fn load_matrix(
        self,
        index: Value<'k>,
        stride: Value<'k>,
        layout: MatrixLayout,
        ty: MatrixType,
    ) -> Matrix<'k> {
        let kernel = self.kernel();
        let type_id = kernel.matrix_type(ty);
        let operands = [Operand::IdRef(self.pointer(index, None)), kernel.matrix_layout(layout), stride.operand()];
        let operands = operands.into_iter().chain(kernel.shared(self.class()));
        let id = kernel.emit_id(Op::CooperativeMatrixLoadKHR, type_id, operands);
        Matrix { kernel, id, ty }
    }

    /// Stores a matrix, as [`load_matrix`](Self::load_matrix) loads it.
    pub(crate) fn store_matrix(self, index: Value<'k>, stride: Value<'k>, layout: MatrixLayout, matrix: Matrix<'k>) {
        let pointer = Operand::IdRef(self.pointer(index, None));
        let operands = [pointer, Operand::IdRef(matrix.id), matrix.kernel.matrix_layout(layout), stride.operand()];
        let operands = operands.into_iter().chain(matrix.kernel.shared(self.class()));
        matrix.kernel.emit_void(Op::CooperativeMatrixStoreKHR, operands);
    }
}
