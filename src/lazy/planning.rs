//! How an expression is laid out for its kernel: it merges axes, and reads four elements at a time if possible.

use super::fusion::Fused;
use super::view::View;
use crate::base::error::{Error, Result};
use crate::base::layout::collapse_all;
use crate::base::shape::{Dims, Shape, checked_elements};
use crate::device::Device;
use crate::engine::plan_cache::{Plan, PlanKey};
use crate::engine::pool::Buffer;
use crate::kernels::elementwise::{Elementwise, InputLayout, Parameters};
use crate::kernels::expr::{Expr, TermId};
use crate::kernels::parameters::Strided;
use smallvec::SmallVec;

impl Fused {
    /// Launches the expression's kernel. The expression must not be empty. The first output is the result's buffer, and
    /// each term that is kept has one more.
    pub(super) fn launch(&mut self, outputs: &[&Buffer], device: &Device) -> Result<()> {
        let plan = loop {
            let (plans, key) = (device.runtime().plans(), self.key());
            if let Some(plan) = plans.find(&key) {
                break plan;
            }
            if let Some(plan) = self.plan(device)? {
                break plans.insert(key, plan);
            }
            // There are too many strides for one launch. A copy of one input in order needs none.
            let Some(last) = self.inputs.iter().rposition(is_strided).filter(|_| !self.copies()) else {
                let feature = format!("an elementwise operation over shape {}, whose axes do not merge", self.shape());
                return Err(Error::Unsupported { feature, device: device.to_string() });
            };
            self.inputs[last] = self.inputs[last].copied()?;
        };
        let mut parameters = plan.parameters.clone();
        for (at, input) in parameters.inputs.iter_mut().zip(&self.inputs) {
            at.offset = if is_strided(input) { input.layout.offset } else { input.layout.offset / 4 };
        }
        parameters.scalars = self.scalars.iter().copied().collect();
        let buffers: SmallVec<[_; 8]> = self.inputs.iter().map(View::buffer).collect::<Result<_>>()?;
        let buffers: SmallVec<[&Buffer; 12]> =
            buffers.into_iter().map(|buffer| &**buffer).chain(outputs.iter().copied()).collect();
        device.runtime().run_plan(&plan, &buffers, parameters)
    }

    /// Returns everything that the plan depends on.
    fn key(&self) -> PlanKey {
        let mut key = PlanKey::new();
        let kept = self.kept.iter().map(|kept| kept.term);
        push_expression(&mut key, &self.expr, kept, self.shape(), self.inputs.iter());
        key
    }

    /// Plans the launch. Offsets and numbers are filled in at each launch. Returns `None` if the strides do not fit a
    /// parameter block.
    fn plan(&self, device: &Device) -> Result<Option<Plan<Elementwise>>> {
        let inputs = &self.inputs;
        let strided: SmallVec<[usize; 4]> = (0..inputs.len()).filter(|&i| is_strided(&inputs[i])).collect();
        let views: Vec<&[isize]> = strided.iter().map(|&i| inputs[i].strides()).collect();
        let (lengths, strides) = if views.is_empty() { Default::default() } else { collapse_all(self.shape(), &views) };
        let mut layouts: SmallVec<[InputLayout; 4]> = inputs.iter().map(|_| InputLayout::Contiguous).collect();
        for (&i, strides) in strided.iter().zip(&strides) {
            layouts[i] = strided_layout(&inputs[i], &lengths, strides);
        }
        let kernel = Elementwise {
            expr: self.expr.clone(),
            kept: self.kept.iter().map(|kept| kept.term).collect(),
            inputs: inputs.iter().zip(&layouts).map(|(input, &layout)| (input.dtype, layout)).collect(),
            rank: lengths.len(),
            scalars: self.scalars.iter().map(|word| word.dtype).collect(),
            quads: match device.tuning().loads.several {
                true => Elementwise::fours(&self.expr, inputs.iter().map(|input| input.dtype)),
                false => 1,
            },
        };
        if !device.takes(&kernel) {
            return Ok(None);
        }
        let mut strides = strides.into_iter();
        let views = layouts.iter().map(|layout| match layout {
            InputLayout::Contiguous => Strided { offset: 0, strides: Dims::new() },
            _ => Strided { offset: 0, strides: strides.next().unwrap_or_default() },
        });
        let count = checked_elements(self.shape(), "elementwise")?;
        let scalars = self.scalars.iter().copied().collect();
        let parameters = Parameters { count, lengths, inputs: views.collect(), scalars };
        let groups = count.div_ceil(kernel.elements_per_group());
        device.runtime().plan(kernel, parameters, groups).map(Some)
    }
}

/// Appends what plans depend on of an expression over inputs, which are broadcast to a shape.
pub(super) fn push_expression<'a>(
    key: &mut PlanKey,
    expr: &Expr,
    kept: impl ExactSizeIterator<Item = TermId>,
    shape: &Shape,
    inputs: impl Iterator<Item = &'a View>,
) {
    key.extend([expr.terms().len() as u64, kept.len() as u64, shape.rank() as u64]);
    key.extend(expr.terms().iter().map(|term| term.code()));
    key.extend(kept.map(|term| term.index() as u64));
    key.extend(shape.iter().map(|&length| length as u64));
    for input in inputs {
        key.push(input.dtype as u64 | (input.layout.offset as u64 % 4) << 8);
        key.extend(input.strides().iter().map(|&stride| stride as u64));
    }
}

/// Whether the elements are not contiguous, or do not start at a multiple of four.
pub(super) fn is_strided(input: &View) -> bool {
    !(input.is_contiguous() && input.layout.offset.is_multiple_of(4))
}

/// Returns how an input is read along axes of these lengths.
pub(super) fn strided_layout(input: &View, lengths: &[usize], strides: &[isize]) -> InputLayout {
    let (Some((&inner, outer)), Some(&length)) = (strides.split_last(), lengths.last()) else {
        return InputLayout::Strided;
    };
    let fours = input.layout.offset.is_multiple_of(4) && outer.iter().all(|stride| stride % 4 == 0);
    match inner {
        _ if !length.is_multiple_of(4) => InputLayout::Strided,
        0 => InputLayout::Repeated,
        1 if fours => InputLayout::StridedQuads,
        _ => InputLayout::Strided,
    }
}
