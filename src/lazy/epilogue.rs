//! Expressions that the kernel of a product computes where it stores its elements.

use super::planning::{is_strided, strided_layout};
use super::view::View;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::layout::collapse_all;
use crate::base::shape::Dims;
use crate::base::shape::Shape;
use crate::base::word::Word;
use crate::engine::pool::Buffer;
use crate::kernels::elementwise::InputLayout;
use crate::kernels::epilogue::{Epilogue as Config, EpilogueInput, Parameters};
use crate::kernels::expr::Expr;
use crate::kernels::parameters::Strided;
use smallvec::SmallVec;

/// What computes a tensor by a kernel that can finish its elements. It holds operands that have been computed.
pub(crate) trait Producer: Send + Sync {
    /// The number of elements.
    fn elements(&self) -> usize;

    /// The dtype that they have in the kernel, before they are rounded to that of the tensor.
    fn accumulator(&self) -> DType;

    /// Launches the kernel, with an epilogue if there is one and the kernel can do it.
    fn produce(&self, epilogue: Option<&Epilogue>) -> Result<Produced>;
}

/// What a kernel has made.
pub(crate) enum Produced {
    /// All that was asked for, in row-major order.
    Finished {
        result: Buffer,
        /// The elements before the epilogue, if it has asked for them.
        kept: Option<Buffer>,
    },
    /// The elements alone.
    Unfinished(View),
}

impl Produced {
    /// The elements alone, as a tensor that is made of the kernel's output.
    pub fn unfinished(elements: impl Into<View>) -> Produced {
        Produced::Unfinished(elements.into())
    }
}

/// An expression over a product.
pub(crate) struct Epilogue<'a> {
    /// Over the inputs and, as the last one, the product as its kernel has it.
    pub expr: Expr,
    /// Broadcast to the shape; they have buffers.
    pub inputs: SmallVec<[&'a View; 4]>,
    pub scalars: &'a [Word],
    pub shape: &'a Shape,
    /// The product's dtype, if somebody else waits for it.
    pub kept: Option<DType>,
}

impl Epilogue<'_> {
    /// The part of the kernel's configuration and of its parameters, for a product with rows of so many elements whose kernel
    /// stores fours or less at a time. `None` where the inputs' strides do not follow the rows.
    pub fn plan(&self, columns: usize, fours: bool) -> Option<(Config, Parameters)> {
        let dims = self.shape.dims();
        let strided = |input: &&View| !fours || is_strided(input);
        let rank = match dims.last() {
            Some(&last) if last == columns => dims.len() - 1,
            _ if columns == 1 || !self.inputs.iter().any(strided) => dims.len(),
            _ => return None,
        };
        let differs = |input: &View| (0..rank).any(|axis| dims[axis] > 1 && input.strides()[axis] != 0);
        let by_row = |input: &&View| strided(input) && differs(input);
        let views: Vec<&[isize]> = self.inputs.iter().filter(|x| by_row(x)).map(|x| &x.strides()[..rank]).collect();
        let (lengths, strides) =
            if views.is_empty() { Default::default() } else { collapse_all(&dims[..rank], &views) };

        let mut strides = strides.into_iter();
        let inputs = self.inputs.iter().map(|input| {
            let (dtype, by_row, offset) = (input.dtype, by_row(input), input.layout.offset);
            if !strided(input) {
                let at = Strided { offset: offset / 4, strides: Dims::new() };
                return (EpilogueInput { dtype, layout: InputLayout::Contiguous, by_row }, at);
            }
            let mut strides = if by_row { strides.next().unwrap_or_default() } else { Default::default() };
            strides.push(input.strides().get(rank).copied().unwrap_or(0));
            let layout = if fours { strided_layout(input, &[columns], &strides) } else { InputLayout::Strided };
            (EpilogueInput { dtype, layout, by_row }, Strided { offset, strides })
        });
        let (inputs, views) = inputs.unzip();
        let scalars = self.scalars.iter().map(|word| word.dtype).collect();
        let config = Config { expr: self.expr.clone(), inputs, rank: lengths.len(), scalars, kept: self.kept };
        let scalars = self.scalars.iter().copied().collect();
        Some((config, Parameters { rows: lengths, inputs: views, scalars }))
    }
}
