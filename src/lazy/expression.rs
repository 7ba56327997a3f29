//! [`Expression`]: an elementwise operation that has not run, and the [`ExpressionBuilder`] that records it.

use super::fusion::{self, Extent};
use super::storage::Storage;
use super::view::{View, is_same};
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::base::shape::{Shape, checked_elements};
use crate::base::word::Word;
use crate::device::Device;
use crate::kernels::expr::{BinaryOp, Expr, Term, TermId, UnaryOp};
use smallvec::SmallVec;
use std::sync::Arc;

/// An elementwise operation over the elements of a shape in row-major order. Its operands may be expressions that have
/// not run either: what becomes one kernel is decided when a result is needed.
#[derive(Clone)]
pub(crate) struct Expression {
    /// Its inputs are the operands.
    pub(super) expr: Expr,
    pub(super) operands: SmallVec<[Source; 2]>,
    pub(super) scalars: SmallVec<[Word; 2]>,
    /// The layout of the results: contiguous, without an offset.
    pub(super) layout: Arc<Layout>,
}

/// An operand of an expression, broadcast to its shape.
#[derive(Clone)]
pub(super) struct Source {
    pub storage: Arc<Storage>,
    /// `None` if it is the expression's own.
    pub layout: Option<Arc<Layout>>,
}

impl Expression {
    /// Returns the layout of an operand.
    #[inline]
    pub(super) fn layout_of<'a>(&'a self, source: &'a Source) -> &'a Arc<Layout> {
        source.layout.as_ref().unwrap_or(&self.layout)
    }

    /// Returns the operands.
    pub(super) fn views(&self) -> SmallVec<[View; 2]> {
        let dtype = |operand| {
            let of_operand = |term: &Term| match *term {
                Term::Input(i, dtype) if usize::from(i) == operand => Some(dtype),
                _ => None,
            };
            self.expr.terms().iter().find_map(of_operand)
        };
        let view = |(i, source): (usize, &Source)| {
            let (storage, layout) = (source.storage.clone(), self.layout_of(source).clone());
            dtype(i).map(|dtype| View { storage, layout, dtype })
        };
        self.operands.iter().enumerate().filter_map(view).collect()
    }

    /// Whether every element is the same number, whatever the shape.
    pub(super) fn is_constant(&self) -> bool {
        matches!(self.expr.terms(), [Term::Scalar(..)])
    }

    /// Returns the expression of a tensor's elements in row-major order.
    pub(super) fn of(tensor: &View) -> Result<Expression> {
        let mut builder = ExpressionBuilder::like(tensor);
        builder.tensor(tensor, "elementwise")?;
        Ok(builder.expression)
    }
}

/// Records an elementwise operation: the terms of its expression, in the order in which they are computed.
pub(crate) struct ExpressionBuilder {
    expression: Expression,
    /// The size of the kernel, if everything below is fused into it.
    extent: Extent,
}

impl ExpressionBuilder {
    /// Starts an expression over the elements of `shape`.
    pub fn new(shape: Shape) -> Self {
        ExpressionBuilder::over(Arc::new(Layout::contiguous(shape)))
    }

    /// Starts an expression over the elements of a tensor's shape.
    #[inline]
    pub fn like(tensor: &impl AsRef<View>) -> Self {
        let layout = &tensor.as_ref().layout;
        if layout.is_dense() {
            ExpressionBuilder::over(layout.clone())
        } else {
            ExpressionBuilder::new(layout.shape.clone())
        }
    }

    /// Starts an expression over the elements of the shape that two tensors broadcast to.
    #[inline]
    pub fn broadcasting(a: &impl AsRef<View>, b: &impl AsRef<View>, op: &'static str) -> Result<Self> {
        let [a, b] = [a.as_ref(), b.as_ref()];
        if a.has_shape(&b.layout) {
            let dense = a.layout.is_dense();
            return Ok(if dense { ExpressionBuilder::over(a.layout.clone()) } else { ExpressionBuilder::like(b) });
        }
        let shape = a.shape().broadcast_with(b.shape(), op)?;
        let same = [a, b].into_iter().find(|side| side.shape() == &shape);
        Ok(same.map_or_else(|| ExpressionBuilder::new(shape.clone()), ExpressionBuilder::like))
    }

    /// `layout` is contiguous and has no offset.
    #[inline]
    fn over(layout: Arc<Layout>) -> Self {
        let (expr, operands, scalars) = Default::default();
        ExpressionBuilder { expression: Expression { expr, operands, scalars, layout }, extent: Extent::default() }
    }

    /// Adds the element of a tensor, broadcast to the shape.
    #[inline(always)]
    pub fn tensor(&mut self, tensor: &impl AsRef<View>, op: &'static str) -> Result<TermId> {
        let tensor = tensor.as_ref();
        check_computes(tensor.device(), tensor.dtype)?;
        let Expression { expr, operands, layout, .. } = &mut self.expression;
        let other = match tensor.has_shape(layout) {
            true if is_same(&tensor.layout, layout) => None,
            true => Some(tensor.layout.clone()),
            false => Some(Arc::new(tensor.layout.broadcast_to(&layout.shape, op)?)),
        };
        let is_known = |known: &Source| {
            Arc::ptr_eq(&known.storage, &tensor.storage) && known.layout.as_deref() == other.as_deref()
        };
        let operand = match operands.iter().position(is_known) {
            Some(operand) => operand,
            None => {
                self.extent = fusion::make_room(operands, self.extent, tensor)?;
                operands.push(Source { storage: tensor.storage.clone(), layout: other });
                operands.len() - 1
            }
        };
        Ok(expr.input(operand, tensor.dtype))
    }

    /// Adds a number.
    #[inline]
    pub fn scalar(&mut self, word: Word) -> TermId {
        let Expression { expr, scalars, .. } = &mut self.expression;
        self.extent.words = self.extent.words.saturating_add(word.dtype.parts() as u8);
        scalars.push(word);
        expr.scalar(scalars.len() - 1, word.dtype)
    }

    /// Adds the element's place in the output, as `u32`.
    pub fn index(&mut self) -> TermId {
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
    pub fn finish<T: From<View>>(self, result: TermId, device: &Device, op: &'static str) -> Result<T> {
        let ExpressionBuilder { expression, mut extent } = self;
        debug_assert_eq!(result, expression.expr.result(), "the result is the last term");
        checked_elements(&expression.layout.shape, op)?;
        let dtype = expression.expr.dtype();
        check_computes(device, dtype)?;
        extent.operations = extent.operations.saturating_add(operations(&expression.expr));
        let layout = expression.layout.clone();
        let view = View::of_all(Storage::of_expression(Arc::new(expression), extent, device), layout, dtype);
        if !device.runtime().fuses() {
            view.buffer()?;
        }
        Ok(view.into())
    }
}

/// Returns the operations of an expression. A copy counts as one, so that chains of copies end, too.
pub(super) fn operations(expr: &Expr) -> u8 {
    expr.operations().clamp(1, u8::MAX.into()) as u8
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
