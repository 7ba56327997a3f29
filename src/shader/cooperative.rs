//! Cooperative matrices: matrices that the lanes of a subgroup hold together, for a GPU's matrix units. A kernel that uses
//! one requires [`Features::matrix_units`](crate::Features::matrix_units).

use super::builder::KernelBuilder;
use super::memory::Array;
use super::types::{Scalar, Type};
use super::value::Value;
use rspirv::dr::{InsertPoint, Instruction, Operand};
use rspirv::spirv::{Capability, CooperativeMatrixLayout, CooperativeMatrixUse, Op, Scope, Word};

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
    pub scalar: Scalar,
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
            && (self.ty.rows, self.ty.columns, b.ty.columns) == (c.ty.rows, b.ty.rows, c.ty.columns);
        if !fits {
            self.kernel.fail(format!("{:?} {:?} + {:?}", self.ty, b.ty, c.ty));
        }
        let ty = self.kernel.matrix_type(c.ty);
        let operands = [self.id, b.id, c.id].map(Operand::IdRef);
        let id = self.kernel.emit_id(Op::CooperativeMatrixMulAddKHR, ty, operands);
        Matrix { kernel: self.kernel, id, ty: c.ty }
    }
}

impl KernelBuilder {
    fn matrix_type(&self, ty: MatrixType) -> Word {
        if let Some(&id) = self.state.borrow().matrices.get(&ty) {
            return id;
        }
        self.require(|features| features.matrix_units = true);
        self.capability(Capability::CooperativeMatrixKHR);
        self.extension("SPV_KHR_cooperative_matrix");
        let scalar = self.type_id(Type { scalar: ty.scalar, lanes: 1 });
        let operator = match ty.operator {
            Operator::A => CooperativeMatrixUse::MatrixAKHR,
            Operator::B => CooperativeMatrixUse::MatrixBKHR,
            Operator::C => CooperativeMatrixUse::MatrixAccumulatorKHR,
        };
        let numbers = [Scope::Subgroup as u32, ty.rows, ty.columns, operator as u32].map(|n| self.u32(n).operand());
        let state = &mut *self.state.borrow_mut();
        let id = state.module.id();
        let operands = std::iter::once(Operand::IdRef(scalar)).chain(numbers).collect();
        let instruction = Instruction::new(Op::TypeCooperativeMatrixKHR, None, Some(id), operands);
        state.module.insert_types_global_values(InsertPoint::End, instruction);
        state.matrices.insert(ty, id);
        id
    }

    /// A variable with a matrix of zeros.
    pub(crate) fn zero_matrix(&self, ty: MatrixType) -> MatrixVar<'_> {
        let id = self.matrix_type(ty);
        let zero = self.number(Type { scalar: ty.scalar, lanes: 1 }, 0);
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
    /// The matrix whose first element is the first one at `index`, and whose lines are `stride` elements of the array apart.
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
        let id = kernel.emit_id(Op::CooperativeMatrixLoadKHR, type_id, operands);
        Matrix { kernel, id, ty }
    }

    /// Stores a matrix, as [`load_matrix`](Self::load_matrix) loads it.
    pub(crate) fn store_matrix(self, index: Value<'k>, stride: Value<'k>, layout: MatrixLayout, matrix: Matrix<'k>) {
        let pointer = Operand::IdRef(self.pointer(index, None));
        let operands = [pointer, Operand::IdRef(matrix.id), matrix.kernel.matrix_layout(layout), stride.operand()];
        matrix.kernel.emit_void(Op::CooperativeMatrixStoreKHR, operands);
    }
}
