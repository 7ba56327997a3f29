//! How an expression is laid out for its kernel: it merges axes, and reads four elements at a time if possible.

use super::expression::Expression;
use super::view::View;
use crate::base::error::{Error, Result};
use crate::base::layout::collapse_all;
use crate::base::shape::Dims;
use crate::device::Device;
use crate::kernels::elementwise::{Elementwise, InputLayout, Parameters};
use crate::kernels::parameters::Strided;
use smallvec::SmallVec;

impl Expression {
    /// Returns the kernel, its inputs and its parameters.
    pub(super) fn plan(
        &self,
        elements: usize,
        device: &Device,
    ) -> Result<(Elementwise, SmallVec<[View; 4]>, Parameters)> {
        let mut inputs = self.inputs.clone();
        loop {
            let strided: SmallVec<[usize; 4]> = (0..inputs.len()).filter(|&i| is_strided(&inputs[i])).collect();
            let views: Vec<&[isize]> = strided.iter().map(|&i| inputs[i].strides()).collect();
            let (lengths, strides) =
                if views.is_empty() { Default::default() } else { collapse_all(&self.shape, &views) };
            let mut layouts: SmallVec<[InputLayout; 4]> = inputs.iter().map(|_| InputLayout::Contiguous).collect();
            for (&i, strides) in strided.iter().zip(&strides) {
                layouts[i] = strided_layout(&inputs[i], &lengths, strides);
            }
            let config = Elementwise {
                expr: self.expr.clone(),
                inputs: inputs.iter().zip(&layouts).map(|(input, &layout)| (input.dtype, layout)).collect(),
                rank: lengths.len(),
                scalars: self.scalars.iter().map(|word| word.dtype).collect(),
                quads: match device.tuning().loads.several {
                    true => Elementwise::fours(&self.expr, inputs.iter().map(|input| input.dtype)),
                    false => 1,
                },
            };
            if device.takes(&config) {
                let mut strides = strides.into_iter();
                let views = inputs.iter().zip(&layouts).map(|(input, layout)| match layout {
                    InputLayout::Contiguous => Strided { offset: input.layout.offset / 4, strides: Dims::new() },
                    _ => Strided { offset: input.layout.offset, strides: strides.next().unwrap_or_default() },
                });
                let inputs_at = views.collect();
                let scalars = self.scalars.iter().copied().collect();
                let parameters = Parameters { count: elements, lengths, inputs: inputs_at, scalars };
                return Ok((config, inputs, parameters));
            }
            // There are too many strides for one launch. A copy of one input in order needs none.
            let Some(&last) = strided.last().filter(|_| !self.copies()) else {
                let feature = format!("an elementwise operation over {} axes that do not merge", lengths.len());
                return Err(Error::Unsupported { feature, device: device.to_string() });
            };
            inputs[last] = inputs[last].copied()?;
        }
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
