//! Prologues: elementwise expressions that a kernel computes as it loads its operand. The operand is the first input of
//! the expression. The others are loaded at the same place.

use super::elementwise::{Evaluation, Input, InputLayout};
use super::parameters::{Each, Number, View, parameters};
use crate::base::dtype::DType;
use crate::kernels::expr::Expr;
use crate::shader::{KernelBuilder, Value};
use smallvec::SmallVec;

/// An expression over an operand, which is its first input.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Prologue {
    pub expr: Expr,
    /// The inputs after the operand. None is contiguous: they have strides along the axes of the operand. If the kernel
    /// loads the operand element by element, all are strided.
    pub inputs: SmallVec<[(DType, InputLayout); 2]>,
    /// The number of axes of the operand.
    pub rank: usize,
    pub scalars: SmallVec<[DType; 2]>,
}

parameters! {
    config: Prologue;
    host: Parameters;
    device: Declared;
    inputs: Each<View> = config.inputs.iter().map(|(_, layout)| layout.view(config.rank)).collect(),
    scalars: Each<Number> = config.scalars.iter().copied().map(Number).collect(),
}

/// A prologue in a kernel.
pub(super) struct Head<'k> {
    expr: Expr,
    inputs: Vec<Input<'k>>,
    scalars: Vec<Value<'k>>,
}

impl<'k> Head<'k> {
    pub fn new(k: &'k KernelBuilder, config: &Prologue, Declared { inputs, scalars }: Declared<'k>) -> Self {
        let views = config.inputs.iter().zip(inputs).zip(1..);
        let inputs = views.map(|((&(dtype, layout), at), i)| Input::new(k, &format!("p{i}"), dtype, layout, at));
        Head { expr: config.expr.clone(), inputs: inputs.collect(), scalars }
    }

    /// Returns the value of the expression for an element of the operand, or for four neighbours. `coordinates` returns
    /// the place of each.
    pub fn apply(
        &self,
        k: &'k KernelBuilder,
        operand: Value<'k>,
        coordinates: impl Fn(u32) -> Vec<Value<'k>>,
    ) -> Value<'k> {
        let lanes = operand.ty().lanes;
        // Only a strided input is loaded element by element.
        let apart = self.inputs.iter().any(|input| matches!(input, Input::Strided(..)));
        let coordinates: Vec<_> = (0..if apart { lanes } else { 1 }).map(coordinates).collect();
        let first = k.u32(0);
        let index = if lanes == 1 { first } else { first.splat(lanes) };
        let others = self.inputs.iter().map(|input| input.load(k, first, &coordinates));
        let values: Vec<_> = [operand].into_iter().chain(others).collect();
        let values = Evaluation { values: &values, scalars: &self.scalars, index }.evaluate(&self.expr);
        values[values.len() - 1]
    }
}
