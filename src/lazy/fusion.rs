//! [`Fusion`]: builds an expression, and decides which pending operands become part of it.

use super::expression::Expression;
use super::storage::Storage;
use super::view::View;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::{Shape, checked_elements};
use crate::base::word::{Word, word_count};
use crate::device::Device;
use crate::kernels::expr::Expr;
use smallvec::SmallVec;

/// The most operations of a fused expression.
const MAX_OPERATIONS: usize = 24;
/// The most inputs of a fused expression, and the most words of its numbers. This leaves room for strides in the
/// smallest parameter block.
const MAX_INPUTS: usize = 8;
const MAX_WORDS: usize = 12;
/// The most operands of an operation. Operands that are still to come need room too.
const MOST_OPERANDS: usize = 3;

/// An expression under construction.
pub(crate) struct Fusion {
    shape: Shape,
    inputs: SmallVec<[View; 4]>,
    scalars: SmallVec<[Word; 4]>,
    operations: usize,
    /// The operands that were copied in. An operand that comes twice is the same expression twice.
    absorbed: SmallVec<[(View, Expr); 2]>,
}

impl Fusion {
    /// Starts an expression over the elements of `shape`.
    pub fn new(shape: Shape) -> Self {
        Fusion { shape, inputs: SmallVec::new(), scalars: SmallVec::new(), operations: 0, absorbed: SmallVec::new() }
    }

    /// Adds the element of a tensor, broadcast to the shape, to the expression.
    pub fn tensor(&mut self, tensor: &impl AsRef<View>, op: &'static str) -> Result<Expr> {
        self.view(tensor.as_ref(), op)
    }

    fn view(&mut self, tensor: &View, op: &'static str) -> Result<Expr> {
        check_computes(&tensor.device, tensor.dtype)?;
        let again = self.absorbed.iter().find(|(known, _)| known.is_same(tensor));
        if let Some((_, expr)) = again {
            return Ok(expr.clone());
        }
        let bindings = tensor.device.info().limits.max_bindings as usize - 1;
        if let Some(pending) = tensor.fusible(&self.shape)
            && self.operations + pending.expr.operations() <= MAX_OPERATIONS
            && self.inputs.len() + pending.inputs.len() + MOST_OPERANDS - 1 <= bindings.min(MAX_INPUTS)
            && word_count(&self.scalars) + word_count(&pending.scalars) <= MAX_WORDS
        {
            self.operations += pending.expr.operations();
            let input = |tensor: View| {
                let dtype = tensor.dtype;
                Expr::Input(self.input(tensor), dtype)
            };
            let inputs: Vec<Expr> = pending.inputs.into_iter().map(input).collect();
            let scalars: Vec<usize> = pending.scalars.into_iter().map(|word| self.word(word)).collect();
            let mut expr = pending.expr.over(&inputs, &scalars);
            if matches!(expr.dtype(), DType::F16 | DType::BF16) && expr.operations() > 0 {
                // Rounded as memory would round it, so that fusion does not change the numbers.
                expr = Expr::Cast(expr.dtype(), expr.into());
            }
            self.absorbed.push((tensor.clone(), expr.clone()));
            return Ok(expr);
        }
        if tensor.shape() != &self.shape || !tensor.is_product() {
            tensor.buffer()?;
        }
        let view = tensor.with_layout(tensor.layout.broadcast_to(&self.shape, op)?);
        Ok(Expr::Input(self.input(view), tensor.dtype))
    }

    /// Adds a number to the expression.
    pub fn scalar(&mut self, word: Word) -> Expr {
        Expr::Scalar(self.word(word), word.dtype)
    }

    /// The same, but never merged with an equal number. Numbers that are equal by chance then need no kernel of their
    /// own.
    pub fn argument(&mut self, word: Word) -> Expr {
        self.scalars.push(word);
        Expr::Scalar(self.scalars.len() - 1, word.dtype)
    }

    fn input(&mut self, tensor: View) -> usize {
        self.inputs.iter().position(|known| known.is_same(&tensor)).unwrap_or_else(|| {
            self.inputs.push(tensor);
            self.inputs.len() - 1
        })
    }

    fn word(&mut self, word: Word) -> usize {
        self.scalars.iter().position(|known| *known == word).unwrap_or_else(|| {
            self.scalars.push(word);
            self.scalars.len() - 1
        })
    }

    /// Returns the tensor of the expression's values. It is computed when it is needed.
    pub fn finish<T: From<View>>(self, expr: Expr, device: &Device, op: &'static str) -> Result<T> {
        checked_elements(&self.shape, op)?;
        let (shape, dtype) = (self.shape.clone(), expr.dtype());
        check_computes(device, dtype)?;
        Ok(View::of_storage(Storage::expression(self.expression(expr)), shape, dtype, device).into())
    }

    fn expression(self, expr: Expr) -> Expression {
        Expression { expr, inputs: self.inputs, scalars: self.scalars, shape: self.shape }
    }
}

impl Expression {
    /// Returns the expression of a tensor's elements in row-major order.
    pub(super) fn of(tensor: &View) -> Result<Expression> {
        let mut fusion = Fusion::new(tensor.shape().clone());
        let expr = fusion.tensor(tensor, "elementwise")?;
        Ok(fusion.expression(expr))
    }

    /// Returns the same expression, and fuses the inputs into it that have become expressions.
    pub(super) fn again(&self) -> Result<Expression> {
        let mut fusion = Fusion::new(self.shape.clone());
        fusion.operations = self.expr.operations();
        fusion.scalars = self.scalars.clone();
        let inputs: Vec<Expr> =
            self.inputs.iter().map(|input| fusion.tensor(input, "elementwise")).collect::<Result<_>>()?;
        let scalars: Vec<usize> = (0..self.scalars.len()).collect();
        let expr = self.expr.over(&inputs, &scalars);
        Ok(fusion.expression(expr))
    }
}

/// Fails if a device cannot compute with elements of a dtype: now, not when the result is asked for.
fn check_computes(device: &Device, dtype: DType) -> Result<()> {
    match dtype.requires().missing_from(&device.info().features) {
        Some(feature) => Err(Error::Unsupported { feature: feature.into(), device: device.to_string() }),
        None => Ok(()),
    }
}
