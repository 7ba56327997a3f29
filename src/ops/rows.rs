//! A tensor as rows, for the kernels that read them. A row has the elements along some axes, and each place along the
//! other axes has a row.

use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::layout::{Layout, collapse_all};
use crate::base::shape::checked_elements;
use crate::base::shape::{Dims, Shape};
use crate::engine::pool::Buffer;
use crate::kernels::elementwise::InputLayout;
use crate::kernels::parameters::{Form, Strided};
use crate::kernels::prologue::{self, Prologue};
use crate::kernels::rows::{RowsParameters, RowsType};
use crate::lazy::{Deferred, Operand, View};
use crate::tensor::Tensor;
use smallvec::SmallVec;

/// At least this many neighbours are read at once.
pub(super) const COLUMNS: usize = 32;

/// The axes of a tensor, merged if possible. There is a row for each place along the `kept` axes, and the elements of a
/// row lie `along` the others.
pub(super) struct RowAxes {
    pub kept: Dims,
    pub kept_strides: Dims<isize>,
    pub along: Dims,
    pub along_strides: Dims<isize>,
    /// The strides of the other inputs of a prologue, along the kept axes, then along the rows.
    pub others: SmallVec<[Dims<isize>; 2]>,
}

impl RowAxes {
    pub fn new(tensor: &Tensor, kept: &[usize], along: &[usize]) -> RowAxes {
        RowAxes::of(&[tensor.layout()], kept, along)
    }

    /// Returns the axes of several tensors of one shape, merged if all of them allow it.
    pub fn of(layouts: &[&Layout], kept: &[usize], along: &[usize]) -> RowAxes {
        let part = |axes: &[usize]| {
            let lengths: Dims = axes.iter().map(|&axis| layouts[0].shape[axis]).collect();
            let strides = |layout: &&Layout| axes.iter().map(|&axis| layout.strides[axis]).collect::<Dims<isize>>();
            let strides: SmallVec<[Dims<isize>; 4]> = layouts.iter().map(strides).collect();
            collapse_all(&lengths, &strides.iter().map(|strides| &strides[..]).collect::<SmallVec<[_; 4]>>())
        };
        let ((kept, kept_strides), (along, along_strides)) = (part(kept), part(along));
        let mut strides = kept_strides.into_iter().zip(along_strides);
        let (kept_strides, along_strides) = strides.next().unwrap_or_default();
        let others = strides.map(|(kept, along)| kept.into_iter().chain(along).collect()).collect();
        RowAxes { kept, kept_strides, along, along_strides, others }
    }

    /// Returns the form of the parameters.
    pub fn ty(&self, dtype: DType) -> RowsType {
        RowsType { dtype, kept_rank: self.kept.len(), row_rank: self.along.len() }
    }

    /// Returns a kernel's parameters, for a first element at this offset.
    pub fn parameters(&self, offset: usize) -> RowsParameters {
        let strides = self.kept_strides.iter().chain(&self.along_strides).copied().collect();
        RowsParameters { kept: self.kept.clone(), along: self.along.clone(), x: Strided { offset, strides } }
    }

    /// Whether rows of a length are whole fours of neighbours, which begin at multiples of four.
    fn are_quads(&self, offset: usize, length: usize) -> bool {
        self.along_strides[..] == [1]
            && length.is_multiple_of(4)
            && offset.is_multiple_of(4)
            && self.kept_strides.iter().all(|stride| stride % 4 == 0)
    }

    /// Whether neighbouring rows have neighbouring elements, as the columns of a matrix have.
    pub fn are_columns(&self) -> bool {
        self.kept_strides.last() == Some(&1)
            && self.kept.last().is_some_and(|&columns| columns >= COLUMNS)
            && self.along_strides.last() != Some(&1)
    }
}

/// The prologue of a kernel that reads rows.
#[derive(Clone)]
pub(super) struct RowsPrologue {
    pub kernel: Box<Prologue>,
    pub parameters: prologue::Parameters,
    /// The inputs after the rows' own elements.
    pub buffers: SmallVec<[Buffer; 2]>,
}

impl RowsPrologue {
    /// Returns the prologue of a kernel that reads rows of an operand, four elements at a time if `fours`. Returns
    /// `None` if the operand is only loaded.
    pub fn new(operand: &Operand, axes: &RowAxes, fours: bool) -> Result<Option<RowsPrologue>> {
        if operand.is_plain() {
            return Ok(None);
        }
        let Operand { expr, inputs, scalars, .. } = operand;
        let layout = |(input, strides): (&View, &Dims<isize>)| {
            let Some((last, outer)) = strides.split_last().filter(|_| fours) else { return InputLayout::Strided };
            let begins = input.layout().offset.is_multiple_of(4) && outer.iter().all(|stride| stride % 4 == 0);
            match last {
                0 => InputLayout::Repeated,
                1 if begins => InputLayout::StridedQuads,
                _ => InputLayout::Strided,
            }
        };
        let others = || inputs[1..].iter().zip(&axes.others);
        let kernel = Prologue {
            expr: expr.clone(),
            inputs: others().map(|other| (other.0.dtype, layout(other))).collect(),
            rank: axes.kept.len() + axes.along.len(),
            scalars: scalars.iter().map(|word| word.dtype).collect(),
        };
        let view = |(input, strides): (&View, &Dims<isize>)| Strided {
            offset: input.layout().offset,
            strides: strides.clone(),
        };
        let parameters =
            prologue::Parameters { inputs: others().map(view).collect(), scalars: scalars.iter().copied().collect() };
        let buffers = inputs[1..].iter().map(|input| input.buffer().cloned()).collect::<Result<_>>()?;
        Ok(Some(RowsPrologue { kernel: Box::new(kernel), parameters, buffers }))
    }
}

/// The rows of a tensor.
pub(super) struct Rows {
    pub buffer: Buffer,
    /// The expression of the elements, if they are not just loaded, with its other inputs.
    pub prologue: Option<RowsPrologue>,
    pub ty: RowsType,
    /// The number of rows, and the length of each.
    pub count: usize,
    pub length: usize,
    /// Whether neighbouring rows have neighbouring elements, as the columns of a matrix have.
    pub are_columns: bool,
    /// Whether each row is whole fours of neighbours, which begin at multiples of four.
    pub are_quads: bool,
    /// Where the elements are.
    pub parameters: RowsParameters,
}

impl Rows {
    /// Returns the rows along `axes`, in the order of the axes `kept`. If the device has no room for the parameters of
    /// the `kernel` that reads them, the elements are copied into order first.
    pub fn new<K: Form>(
        tensor: &Tensor,
        kept: &[usize],
        axes: &[usize],
        kernel: &impl Fn(RowsType) -> K,
        op: &'static str,
    ) -> Result<Rows> {
        let count = checked_elements(&lengths(tensor, kept), op)?;
        let length = checked_elements(&lengths(tensor, axes), op)?;
        checked_elements(tensor.shape(), op)?;
        let row_axes = RowAxes::new(tensor, kept, axes);
        let ty = row_axes.ty(tensor.dtype());
        if !tensor.device().takes(&kernel(ty)) {
            // There are too many axes that do not merge. In row-major order of the rows, two axes remain.
            let order: Vec<usize> = kept.iter().chain(axes).copied().collect();
            return Rows::new(&tensor.permute(order)?.reshape((count, length))?, &[0], &[1], kernel, op);
        }
        let are_quads = row_axes.are_quads(tensor.layout().offset, length);
        Ok(Rows {
            buffer: tensor.buffer()?.clone(),
            prologue: None,
            ty,
            count,
            length,
            are_columns: row_axes.are_columns(),
            are_quads,
            parameters: row_axes.parameters(tensor.layout().offset),
        })
    }

    /// Returns the rows of a tensor whose elements may still be an expression. If the kernel cannot compute it, the
    /// tensor is computed first. If `fours`, the kernel reads rows of quads four elements at a time.
    pub fn deferred<K: Form>(
        tensor: &Deferred,
        kept: &[usize],
        axes: &[usize],
        fours: bool,
        kernel: &impl Fn(RowsType, Option<Box<Prologue>>) -> K,
        op: &'static str,
    ) -> Result<Rows> {
        let operand = tensor.operand(false)?;
        if !operand.is_plain()
            && let Some(rows) = Rows::fused(&operand, kept, axes, fours, kernel, op)?
        {
            operand.note_computed();
            return Ok(rows);
        }
        let plain = if operand.is_plain() { operand } else { tensor.computed()? };
        Rows::new(&plain.inputs[0].clone().into(), kept, axes, &|rows| kernel(rows, None), op)
    }

    /// Returns the rows of an expression; `None` if it does not fit a parameter block.
    fn fused<K: Form>(
        operand: &Operand,
        kept: &[usize],
        axes: &[usize],
        fours: bool,
        kernel: &impl Fn(RowsType, Option<Box<Prologue>>) -> K,
        op: &'static str,
    ) -> Result<Option<Rows>> {
        let inputs = &operand.inputs;
        let first = &inputs[0];
        let part = |axes: &[usize]| axes.iter().map(|&axis| first.shape()[axis]).collect::<Shape>();
        let (count, length) = (checked_elements(&part(kept), op)?, checked_elements(&part(axes), op)?);
        let layouts: SmallVec<[&Layout; 4]> = inputs.iter().map(|input| input.layout()).collect();
        let row_axes = RowAxes::of(&layouts, kept, axes);
        let ty = row_axes.ty(first.dtype);
        let are_quads = row_axes.are_quads(first.layout().offset, length);
        let Some(prologue) = RowsPrologue::new(operand, &row_axes, are_quads && fours)? else { return Ok(None) };
        // A reduction also binds a number per row, and up to two buffers for its states.
        let bindings = inputs.len() + 3;
        if bindings > first.device().info().limits.max_bindings as usize
            || !first.device().takes(&kernel(ty, Some(prologue.kernel.clone())))
        {
            return Ok(None);
        }
        Ok(Some(Rows {
            buffer: first.buffer()?.clone(),
            prologue: Some(prologue),
            ty,
            count,
            length,
            are_columns: row_axes.are_columns(),
            are_quads,
            parameters: row_axes.parameters(first.layout().offset),
        }))
    }

    /// The buffers of the elements: of the rows, then the prologue's others.
    pub fn inputs(&self) -> impl Iterator<Item = &Buffer> {
        [&self.buffer].into_iter().chain(self.prologue.iter().flat_map(|prologue| &prologue.buffers))
    }

    /// The dtype of the elements, after the prologue.
    pub fn dtype(&self) -> DType {
        self.prologue.as_ref().map_or(self.ty.dtype, |prologue| prologue.kernel.expr.dtype())
    }

    /// Returns the rows along one axis, in row-major order of the others.
    pub fn along<K: Form>(
        tensor: &Tensor,
        axis: usize,
        kernel: &impl Fn(RowsType) -> K,
        op: &'static str,
    ) -> Result<Rows> {
        let kept: Dims = (0..tensor.rank()).filter(|&other| other != axis).collect();
        Rows::new(tensor, &kept, &[axis], kernel, op)
    }
}

/// Returns the lengths of some axes.
pub(super) fn lengths(tensor: &Tensor, axes: &[usize]) -> Shape {
    axes.iter().map(|&axis| tensor.dims()[axis]).collect()
}
