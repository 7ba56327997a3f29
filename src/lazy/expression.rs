//! [`Expression`]: an elementwise operation that has not run, and the [`ExpressionBuilder`] that records it.

use super::fusion::{self, Extent};
use super::storage::Storage;
use super::view::View;
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
pub(crate) struct Expression {
    /// Its inputs are the operands.
    pub(super) expr: Expr,
    /// Broadcast to the shape.
    pub(super) operands: SmallVec<[View; 2]>,
    pub(super) scalars: SmallVec<[Word; 2]>,
    /// The layout of the results: contiguous, without an offset.
    pub(super) layout: Arc<Layout>,
    /// The size of the kernel, if everything below is fused into it.
    pub(super) extent: Extent,
}

impl Expression {
    /// Whether every element is the same number, whatever the shape.
    pub(super) fn is_constant(&self) -> bool {
        matches!(self.expr.terms(), [Term::Scalar(..)])
    }

    /// Returns the expression of a tensor's elements in row-major order.
    pub(super) fn of(tensor: &View) -> Result<Expression> {
        let mut builder = ExpressionBuilder::new(tensor.shape().clone());
        builder.tensor(tensor, "elementwise")?;
        Ok(builder.expression())
    }
}

/// Records an elementwise operation: the terms of its expression, in the order in which they are computed.
pub(crate) struct ExpressionBuilder {
    shape: Shape,
    expr: Expr,
    operands: SmallVec<[View; 2]>,
    scalars: SmallVec<[Word; 2]>,
    extent: Extent,
}

impl ExpressionBuilder {
    /// Starts an expression over the elements of `shape`.
    #[inline]
    pub fn new(shape: Shape) -> Self {
        ExpressionBuilder {
            shape,
            expr: Expr::default(),
            operands: SmallVec::new(),
            scalars: SmallVec::new(),
            extent: Extent::default(),
        }
    }

    /// Adds the element of a tensor, broadcast to the shape.
    pub fn tensor(&mut self, tensor: &impl AsRef<View>, op: &'static str) -> Result<TermId> {
        let tensor = tensor.as_ref();
        check_computes(tensor.device(), tensor.dtype)?;
        let view = match tensor.shape() == &self.shape {
            true => tensor.clone(),
            false => tensor.with_layout(tensor.layout.broadcast_to(&self.shape, op)?),
        };
        let known = self.operands.iter().position(|known| known.is_same(&view));
        let operand = match known {
            Some(operand) => operand,
            None => {
                self.extent = fusion::make_room(&self.operands, self.extent, &view)?;
                self.operands.push(view);
                self.operands.len() - 1
            }
        };
        Ok(self.expr.input(operand, tensor.dtype))
    }

    /// Adds a number.
    pub fn scalar(&mut self, word: Word) -> TermId {
        self.extent.words = self.extent.words.saturating_add(word.dtype.parts() as u8);
        self.scalars.push(word);
        self.expr.scalar(self.scalars.len() - 1, word.dtype)
    }

    /// Adds the element's place in the output, as `u32`.
    pub fn index(&mut self) -> TermId {
        self.expr.push(Term::Index)
    }

    pub fn unary(&mut self, op: UnaryOp, x: TermId) -> TermId {
        self.expr.unary(op, x)
    }

    pub fn binary(&mut self, op: BinaryOp, a: TermId, b: TermId) -> TermId {
        self.expr.binary(op, a, b)
    }

    pub fn select(&mut self, condition: TermId, yes: TermId, no: TermId) -> TermId {
        self.expr.select(condition, yes, no)
    }

    /// Adds a conversion, unless the term has the dtype already.
    pub fn cast(&mut self, dtype: DType, x: TermId) -> TermId {
        self.expr.cast(dtype, x)
    }

    /// Returns the tensor of the values of the last term. It is computed when it is needed.
    pub fn finish<T: From<View>>(self, result: TermId, device: &Device, op: &'static str) -> Result<T> {
        debug_assert_eq!(result, self.expr.result(), "the result is the last term");
        checked_elements(&self.shape, op)?;
        let dtype = self.expr.dtype();
        check_computes(device, dtype)?;
        let expression = self.expression();
        let layout = expression.layout.clone();
        let view = View::of_all(Storage::of_expression(expression, device), layout, dtype);
        if !device.runtime().fuses() {
            view.buffer()?;
        }
        Ok(view.into())
    }

    #[inline]
    fn expression(self) -> Expression {
        let ExpressionBuilder { shape, expr, operands, scalars, mut extent } = self;
        extent.operations = extent.operations.saturating_add(operations(&expr));
        // An operand of the same shape often has the layout already.
        let same = operands.iter().find(|operand| operand.shape() == &shape && operand.layout.is_dense());
        let layout = same.map_or_else(|| Arc::new(Layout::contiguous(shape)), |operand| operand.layout.clone());
        Expression { expr, operands, scalars, layout, extent }
    }
}

/// Returns the operations of an expression. A copy counts as one, so that chains of copies end, too.
pub(super) fn operations(expr: &Expr) -> u8 {
    expr.operations().clamp(1, u8::MAX.into()) as u8
}

/// Fails if a device cannot compute with elements of a dtype: now, not when the result is asked for.
#[inline]
pub(crate) fn check_computes(device: &Device, dtype: DType) -> Result<()> {
    if dtype.parts() == 1 {
        return Ok(()); // every device computes in 32 bits
    }
    match dtype.requires().missing_from(&device.info().features) {
        Some(feature) => Err(Error::Unsupported { feature: feature.into(), device: device.to_string() }),
        None => Ok(()),
    }
}
