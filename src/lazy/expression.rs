//! [`Expression`]: an elementwise operation that has not run, and the [`ExpressionBuilder`] that records it.

use super::fusion::{self, Extent};
use super::placement::Placement;
use super::storage::Storage;
use super::view::View;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::base::shape::{Dims, Shape};
use crate::base::word::Word;
use crate::device::Device;
use crate::kernels::expr::{BinaryOp, Expr, Term, TermId, UnaryOp};
use smallvec::SmallVec;
use std::sync::Arc;

/// An elementwise operation over the elements of a placement in row-major order. Its operands may be expressions that
/// have not run either: what becomes one kernel is decided when a result is needed.
///
/// It is part of the storage that it computes, so recording an operation allocates once.
#[derive(Clone, Default)]
pub(crate) struct Expression {
    /// Its inputs and its numbers are the operands.
    pub(super) expr: Expr,
    pub(super) operands: SmallVec<[Source; 2]>,
}

/// An operand of an expression.
#[derive(Clone)]
pub(super) enum Source {
    /// A tensor, broadcast to the expression's shape. `placed` is `None` if its layout is the expression's own.
    Tensor { storage: Arc<Storage>, placed: Option<Arc<Placement>> },
    /// The bits of a number.
    Number(u64),
}

impl Source {
    /// Returns the storage, if it is a tensor.
    pub fn storage(&self) -> Option<&Arc<Storage>> {
        match self {
            Source::Tensor { storage, .. } => Some(storage),
            Source::Number(_) => None,
        }
    }
}

/// An expression, and where its elements are.
#[derive(Clone)]
pub(super) struct Placed {
    pub expression: Expression,
    pub placement: Arc<Placement>,
}

impl Placed {
    /// Returns the expression of a tensor's elements in row-major order.
    pub fn of(tensor: &View) -> Result<Placed> {
        let mut builder = ExpressionBuilder::like(tensor);
        builder.tensor(tensor, "elementwise")?;
        let ExpressionBuilder { expression, placement, .. } = builder;
        Ok(Placed { expression, placement })
    }
}

impl Expression {
    /// Returns the input `operand` of this expression, which is placed at `placement`.
    pub(super) fn input(&self, operand: u8, dtype: DType, placement: &Arc<Placement>) -> Option<View> {
        let Source::Tensor { storage, placed } = &self.operands[usize::from(operand)] else { return None };
        Some(View::of_part(storage.clone(), placed.as_ref().unwrap_or(placement).clone(), dtype))
    }

    /// Returns the inputs of this expression, which is placed at `placement`, with the numbers of their operands.
    pub(super) fn inputs(&self, placement: &Arc<Placement>) -> SmallVec<[(usize, View); 2]> {
        let mut inputs: SmallVec<[(usize, View); 2]> = SmallVec::new();
        for term in self.expr.terms() {
            if let Term::Input(operand, dtype) = *term
                && inputs.iter().all(|(known, _)| *known != usize::from(operand))
                && let Some(input) = self.input(operand, dtype, placement)
            {
                inputs.push((operand.into(), input));
            }
        }
        inputs
    }

    /// Returns the storages of the tensors among the operands.
    pub(super) fn storages(&self) -> impl Iterator<Item = &Arc<Storage>> {
        self.operands.iter().filter_map(Source::storage)
    }

    /// Returns the numbers, each with its operand.
    pub(super) fn numbers(&self) -> impl Iterator<Item = (u8, Word)> {
        self.expr.terms().iter().filter_map(|term| match *term {
            Term::Scalar(operand, dtype) => match self.operands[usize::from(operand)] {
                Source::Number(bits) => Some((operand, Word::of_bits(bits, dtype))),
                Source::Tensor { .. } => None,
            },
            _ => None,
        })
    }

    /// Whether every element is the same number, whatever the shape.
    pub(super) fn is_constant(&self) -> bool {
        matches!(self.expr.terms(), [Term::Scalar(..)])
    }

    /// Returns the number of operations. A copy counts as one, so that chains of copies end, too.
    #[inline]
    pub(super) fn operations(&self) -> u8 {
        self.expr.operations().clamp(1, u8::MAX.into()) as u8
    }
}

/// An order of elements in memory that is not row-major.
struct Order {
    shape: Shape,
    /// The axes from the outermost one in memory to the innermost one. The expression has its axes in this order.
    axes: Dims,
}

/// Records an elementwise operation: the terms of its expression, in the order in which they are computed.
pub(crate) struct ExpressionBuilder {
    expression: Expression,
    placement: Arc<Placement>,
    /// If the result is not in row-major order.
    order: Option<Box<Order>>,
    /// The size of the kernel, if everything below is fused into it.
    extent: Extent,
}

impl Order {
    /// Returns where elements are, with the axes of the shape.
    fn seen(&self, placement: &Placement) -> Arc<Placement> {
        let mut inverse: Dims = Dims::from_elem(0, self.axes.len());
        self.axes.iter().enumerate().for_each(|(place, &axis)| inverse[axis] = place);
        Placement::new(placement.permuted(&inverse), &placement.device)
    }
}

impl ExpressionBuilder {
    /// Starts an expression over the elements of `shape`.
    pub fn new(shape: Shape, device: &Device) -> Self {
        ExpressionBuilder::over(Placement::contiguous(shape, device))
    }

    /// Starts an expression over the elements of a tensor's shape.
    #[inline]
    pub fn like(tensor: &impl AsRef<View>) -> Self {
        let tensor = tensor.as_ref();
        match tensor.placement.as_ref() {
            None => ExpressionBuilder::over(tensor.storage.placement.clone()),
            Some(placement) if placement.is_dense() => ExpressionBuilder::over(placement.clone()),
            Some(placement) => ExpressionBuilder::new(placement.shape.clone(), &placement.device),
        }
    }

    /// Starts an expression over the elements of a tensor's shape. If the tensor has no gaps, the result has its order
    /// in memory, as in PyTorch. So images whose channels come last keep that order.
    #[inline]
    pub fn in_order_of(tensor: &impl AsRef<View>) -> Self {
        let tensor = tensor.as_ref();
        match tensor.placement.as_ref() {
            Some(placement) if !placement.is_contiguous() => ExpressionBuilder::in_order(tensor, placement),
            _ => ExpressionBuilder::like(tensor),
        }
    }

    fn in_order(tensor: &View, placement: &Placement) -> Self {
        let Some(axes) = placement.order() else { return ExpressionBuilder::like(tensor) };
        let Layout { shape, .. } = placement.permuted(&axes);
        let own = &tensor.storage.placement;
        let whole = own.is_dense() && own.shape == shape;
        let ordered = if whole { own.clone() } else { Placement::contiguous(shape, &placement.device) };
        let order = Order { shape: placement.shape.clone(), axes };
        ExpressionBuilder { order: Some(Box::new(order)), ..ExpressionBuilder::over(ordered) }
    }

    /// Starts an expression over the elements of the shape that two tensors broadcast to. Its result has the order in
    /// memory of a tensor with this shape. If they differ, a tensor in row-major order decides, else the first one.
    #[inline]
    pub fn broadcasting(a: &impl AsRef<View>, b: &impl AsRef<View>, op: &'static str) -> Result<Self> {
        let [a, b] = [a.as_ref(), b.as_ref()];
        if a.placement().has_shape_of(b.placement()) {
            let row_major = [a, b].into_iter().find(|side| side.placement().is_dense());
            return Ok(row_major.map_or_else(|| ExpressionBuilder::in_order_of(a), ExpressionBuilder::like));
        }
        let shape = a.shape().broadcast_with(b.shape(), op)?;
        let same = [a, b].into_iter().find(|side| side.shape() == &shape);
        Ok(same.map_or_else(|| ExpressionBuilder::new(shape.clone(), a.device()), ExpressionBuilder::in_order_of))
    }

    /// `placement` is contiguous and has no offset.
    #[inline]
    fn over(placement: Arc<Placement>) -> Self {
        ExpressionBuilder { expression: Expression::default(), placement, order: None, extent: Extent::default() }
    }

    /// Adds the element of a tensor, broadcast to the shape.
    #[inline(always)]
    pub fn tensor(&mut self, tensor: &impl AsRef<View>, op: &'static str) -> Result<TermId> {
        let tensor = tensor.as_ref();
        check_computes(tensor.device(), tensor.dtype)?;
        let ExpressionBuilder { expression: Expression { expr, operands }, placement, order, extent } = self;
        let seen = tensor.placement();
        let other = match order {
            Some(order) => {
                let ordered = seen.broadcast_to(&order.shape, op)?.permuted(&order.axes);
                (ordered != placement.layout).then(|| Placement::new(ordered, &seen.device))
            }
            None if !seen.has_shape_of(placement) => {
                Some(Placement::new(seen.broadcast_to(&placement.shape, op)?, &seen.device))
            }
            None if seen.is_same(placement) => None,
            None => Some(seen.clone()),
        };
        let is_known = |known: &Source| match known {
            Source::Tensor { storage, placed: None } => other.is_none() && Arc::ptr_eq(storage, &tensor.storage),
            Source::Tensor { storage, placed: Some(placed) } => {
                Arc::ptr_eq(storage, &tensor.storage) && other.as_ref().is_some_and(|other| placed.is_same(other))
            }
            Source::Number(_) => false,
        };
        let operand = match operands.iter().position(is_known) {
            Some(operand) => operand,
            None => {
                *extent = fusion::make_room(operands, *extent, tensor)?;
                operands.push(Source::Tensor { storage: tensor.storage.clone(), placed: other });
                operands.len() - 1
            }
        };
        Ok(expr.input(operand, tensor.dtype))
    }

    /// Adds a number.
    #[inline]
    pub fn scalar(&mut self, word: Word) -> TermId {
        let Expression { expr, operands } = &mut self.expression;
        self.extent = self.extent.and(Extent::of_words(word.dtype.parts()));
        operands.push(Source::Number(word.bits()));
        expr.scalar(operands.len() - 1, word.dtype)
    }

    /// Adds the element's place in the output, as `u32`. The output is in row-major order.
    pub fn index(&mut self) -> TermId {
        debug_assert!(self.order.is_none(), "places count in row-major order");
        self.expression.expr.push(Term::Index)
    }

    #[inline]
    pub fn unary(&mut self, op: UnaryOp, x: TermId) -> TermId {
        self.expression.expr.unary(op, x)
    }

    #[inline]
    pub fn binary(&mut self, op: BinaryOp, a: TermId, b: TermId) -> TermId {
        self.expression.expr.binary(op, a, b)
    }

    #[inline]
    pub fn select(&mut self, condition: TermId, yes: TermId, no: TermId) -> TermId {
        self.expression.expr.select(condition, yes, no)
    }

    /// Adds a conversion, unless the term has the dtype already.
    #[inline]
    pub fn cast(&mut self, dtype: DType, x: TermId) -> TermId {
        self.expression.expr.cast(dtype, x)
    }

    /// Returns the tensor of the values of the last term. It is computed when it is needed.
    #[inline(always)]
    pub fn finish<T: From<View>>(self, result: TermId, op: &'static str) -> Result<T> {
        let ExpressionBuilder { expression, placement, order, extent } = self;
        debug_assert_eq!(result, expression.expr.result(), "the result is the last term");
        placement.checked_elements(op)?;
        let dtype = expression.expr.dtype();
        check_computes(&placement.device, dtype)?;
        let extent = extent.and(Extent::of_operations(expression.operations()));
        let seen = order.map(|order| order.seen(&placement));
        let storage = Arc::new(Storage::of_expression(expression, extent.operations(), placement));
        let view = View { storage, placement: seen, dtype, extent };
        if !view.device().runtime().fuses() {
            view.buffer()?;
        }
        Ok(view.into())
    }
}

/// Fails if a device cannot compute with elements of a dtype: now, not when the result is asked for.
#[inline(always)]
pub(crate) fn check_computes(device: &Device, dtype: DType) -> Result<()> {
    // Every device computes in 32 bits.
    if dtype.parts() == 1 { Ok(()) } else { check_wide(device, dtype) }
}

fn check_wide(device: &Device, dtype: DType) -> Result<()> {
    match dtype.requires().missing_from(&device.info().features) {
        Some(feature) => Err(Error::Unsupported { feature: feature.into(), device: device.to_string() }),
        None => Ok(()),
    }
}
