//! [`Loaded`]: an operand that a kernel loads at any index, through its pending expression if that pays.

use crate::base::error::Result;
use crate::base::layout::Layout;
use crate::engine::pool::Buffer;
use crate::kernels::elementwise::InputLayout;
use crate::kernels::parameters::{Form, Strided};
use crate::kernels::prologue::{Parameters, Prologue};
use crate::lazy::{Deferred, Operand, View};
use crate::tensor::Tensor;
use smallvec::SmallVec;

/// An operand of a kernel that loads elements at any index.
pub(super) struct Loaded {
    /// What the indices point into.
    pub view: View,
    /// The expression of the elements and its parameters, if they are not just loaded.
    pub prologue: Option<Box<Prologue>>,
    pub parameters: Option<Parameters>,
    /// The buffer of the view, and those of the expression's other inputs.
    pub buffers: SmallVec<[Buffer; 2]>,
}

impl Loaded {
    /// Returns an operand of which a kernel loads each element about `reads` times. If its expression is too dear for
    /// that, or does not fit into the `kernel` with `bindings` other buffers, the operand is computed first.
    pub fn new<K: Form>(
        tensor: &Tensor,
        reads: usize,
        bindings: usize,
        kernel: impl Fn(Option<Box<Prologue>>) -> K,
    ) -> Result<Loaded> {
        if !tensor.as_ref().pays_at_loads(reads) {
            return Loaded::computed(tensor);
        }
        let deferred = Deferred::new(tensor)?;
        let operand = deferred.operand(false)?;
        let Some((prologue, parameters)) = by_index(&operand) else { return Loaded::computed(tensor) };
        let (device, prologue) = (tensor.device(), Box::new(prologue));
        let fits = bindings + operand.inputs.len() <= device.info().limits.max_bindings as usize;
        if !fits || !device.takes(&kernel(Some(prologue.clone()))) {
            return Loaded::computed(tensor);
        }
        operand.note_computed();
        let buffers = operand.inputs.iter().map(|input| input.buffer().cloned()).collect::<Result<_>>()?;
        Ok(Loaded { view: operand.inputs[0].clone(), prologue: Some(prologue), parameters: Some(parameters), buffers })
    }

    /// Returns an operand that is only loaded.
    pub fn computed(tensor: &Tensor) -> Result<Loaded> {
        let buffers = [tensor.buffer()?.clone()].into_iter().collect();
        Ok(Loaded { view: tensor.as_ref().clone(), prologue: None, parameters: None, buffers })
    }
}

/// Returns the prologue of an operand whose inputs are all loaded at the index of the first one, or at one place.
/// Returns `None` if the operand is only loaded, or if another input has strides of its own.
fn by_index(operand: &Operand) -> Option<(Prologue, Parameters)> {
    let (first, others) = operand.inputs.split_first().filter(|_| !operand.is_plain())?;
    let step = |other: &View| step_beside(first.layout(), other.layout());
    let steps: SmallVec<[isize; 2]> = others.iter().map(step).collect::<Option<_>>()?;
    let prologue = Prologue {
        expr: operand.expr.clone(),
        inputs: others.iter().map(|other| (other.dtype, InputLayout::Strided)).collect(),
        rank: 1,
        scalars: operand.scalars.iter().map(|word| word.dtype).collect(),
    };
    let view = |(other, &step): (&View, &isize)| {
        // The distance between two indices, which wraps as indices do.
        let distance = if step == 0 { 0 } else { first.layout().offset };
        let offset = other.layout().offset.wrapping_sub(distance) as u32 as usize;
        Strided { offset, strides: [step].into_iter().collect() }
    };
    let inputs = others.iter().zip(&steps).map(view).collect();
    Some((prologue, Parameters { inputs, scalars: operand.scalars.iter().copied().collect() }))
}

/// Returns how far the index of an input moves if that of the first one moves by one: 1 if both have the same strides,
/// 0 if the input has one element.
fn step_beside(first: &Layout, other: &Layout) -> Option<isize> {
    let mut axes = first.shape.iter().zip(first.strides.iter().zip(&other.strides)).filter(|(length, _)| **length > 1);
    if axes.clone().all(|(_, (a, b))| a == b) {
        return Some(1);
    }
    axes.all(|(_, (_, &b))| b == 0).then_some(0)
}
