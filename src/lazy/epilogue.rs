//! Expressions that a product's kernel computes when it stores its elements.

use super::allocate;
use super::planning::{is_strided, strided_layout};
use super::view::View;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::layout::{collapse, collapse_all};
use crate::base::shape::Dims;
use crate::base::shape::Shape;
use crate::base::word::Word;
use crate::device::Device;
use crate::engine::plan_cache::PlanKey;
use crate::engine::pool::Buffer;
use crate::kernels::elementwise::InputLayout;
use crate::kernels::epilogue::{Epilogue as Config, EpilogueInput, Finishing, Parameters};
use crate::kernels::expr::{Expr, TermId};
use crate::kernels::parameters::{Form, Strided};
use smallvec::SmallVec;
use std::cell::OnceCell;

/// A tensor to be computed by a kernel that can apply an epilogue. The operands it holds have been computed.
pub(crate) trait Producer: Send + Sync {
    /// Returns the dtype of the elements in the kernel, before they are rounded to the tensor's dtype.
    fn accumulator(&self) -> DType;

    /// Launches the kernel. It applies the epilogue, if there is one and the kernel can do it.
    fn produce(&self, epilogue: Option<&Epilogue>) -> Result<Produced>;
}

/// The output of a kernel.
pub(crate) enum Produced {
    /// All that was asked for, in row-major order.
    Finished {
        result: Buffer,
        /// The terms that the epilogue keeps, in its order.
        kept: SmallVec<[Buffer; 2]>,
    },
    /// The elements without the epilogue.
    Unfinished(View),
}

impl Produced {
    /// Wraps elements without the epilogue, given as a tensor made of the kernel's output.
    pub fn unfinished(elements: impl Into<View>) -> Produced {
        Produced::Unfinished(elements.into())
    }
}

/// An expression over a product.
pub(crate) struct Epilogue<'a> {
    /// Over the inputs and the product. The product comes last, in the dtype that the kernel sums in.
    pub expr: &'a Expr,
    /// Broadcast to the shape. They have buffers.
    pub inputs: &'a [View],
    pub scalars: &'a [Word],
    pub shape: &'a Shape,
    /// The terms that are stored beside the result, because somebody may ask for them later.
    pub kept: &'a [TermId],
    /// What else the kernel may compute.
    pub norm: Option<&'a NormOfResult>,
}

/// The RMS norm along the last axis of a result, which the kernel of a product may compute beside the result.
pub(crate) struct NormOfResult {
    /// Of the result's dtype. It begins its buffer.
    weight: Buffer,
    /// The length of the rows.
    length: usize,
    eps: Word,
    normalized: OnceCell<Buffer>,
}

impl NormOfResult {
    pub fn new(weight: Buffer, length: usize, eps: Word) -> NormOfResult {
        NormOfResult { weight, length, eps, normalized: OnceCell::new() }
    }

    /// Returns the normalised rows, if a kernel has computed them.
    pub fn into_normalized(self) -> Option<Buffer> {
        self.normalized.into_inner()
    }

    /// Returns the kernel that also computes the norm, with its parameters, if there is one.
    pub fn kernel<F: Finishing>(&self, kernel: &F, parameters: &F::Host) -> Option<(F, F::Host)> {
        kernel.with_norm(parameters, self.length, self.eps)
    }

    /// Returns the buffers that the kernel binds after its results. It will have computed the norm.
    pub fn buffers(
        &self,
        epilogue: &Epilogue,
        (device, op): (&Device, &'static str),
    ) -> Result<[Buffer; NORM_BUFFERS]> {
        let normalized = allocate(epilogue.shape, epilogue.expr.dtype(), device, op)?;
        let normalized = self.normalized.get_or_init(|| normalized).clone();
        Ok([self.weight.clone(), normalized, device.runtime().counters()?])
    }
}

/// How many buffers a kernel binds for a norm.
pub(super) const NORM_BUFFERS: usize = 3;

impl Epilogue<'_> {
    /// Appends what the plan of a kernel with the epilogue depends on.
    pub fn push_key(&self, key: &mut PlanKey) {
        key.extend([self.expr.terms().len() as u64, self.kept.len() as u64, self.shape.rank() as u64]);
        key.extend(self.expr.codes());
        key.extend(self.kept.iter().map(|term| term.index() as u64));
        key.extend(self.shape.iter().map(|&length| length as u64));
        for input in self.inputs {
            key.push(input.dtype as u64 | (input.layout().offset as u64 % 4) << 8);
            key.extend(input.strides().iter().map(|&stride| stride as u64));
        }
    }

    /// Returns what differs from launch to launch in the parameters of a [`plan`](Epilogue::plan) for the same key.
    pub fn numbers(&self, config: &Config) -> impl Iterator<Item = u32> {
        let offset = |(input, form): (&View, &EpilogueInput)| form.layout.offset(input.layout().offset);
        let scalars = self.scalars.iter().flat_map(|scalar| scalar.words());
        self.inputs.iter().zip(&config.inputs).map(offset).chain(scalars)
    }

    /// Whether a kernel can apply the epilogue: it stores all dtypes, and the device has enough bindings and
    /// parameters. `bindings` are those of the kernel without an epilogue.
    pub fn fits<F: Form>(&self, kernel: &F, bindings: usize, stores: impl Fn(DType) -> bool, device: &Device) -> bool {
        let most = device.info().limits.max_bindings as usize;
        stores(self.expr.dtype())
            && self.kept.iter().all(|&term| stores(self.expr.dtype_of(term)))
            && bindings + self.inputs.len() + self.kept.len() <= most
            && device.takes(kernel)
    }

    /// Launches a kernel with the epilogue. It binds its own inputs, the epilogue's inputs, the epilogue's outputs,
    /// then `others`: outputs of its own.
    pub fn run<'b>(
        &self,
        inputs: impl IntoIterator<Item = &'b Buffer>,
        others: &[Buffer],
        (device, op): (&Device, &'static str),
        launch: impl FnOnce(&[&Buffer]) -> Result<()>,
    ) -> Result<Produced> {
        let output = |dtype| allocate(self.shape, dtype, device, op);
        let result = output(self.expr.dtype())?;
        let kept = self.kept.iter().map(|&term| output(self.expr.dtype_of(term)));
        let kept = kept.collect::<Result<SmallVec<_>>>()?;
        let mut buffers: SmallVec<[&Buffer; 12]> = SmallVec::new();
        for input in inputs {
            buffers.push(input);
        }
        for input in self.inputs {
            buffers.push(input.buffer()?);
        }
        buffers.extend([&result].into_iter().chain(&kept).chain(others));
        launch(&buffers)?;
        drop(buffers);
        Ok(Produced::Finished { result, kept })
    }

    /// Returns the part of the kernel's configuration and of its parameters. The product has rows of `columns`
    /// elements. If `fours`, its kernel stores up to four at a time. Returns `None` if the inputs' strides do not
    /// follow the rows.
    pub fn plan(&self, columns: usize, fours: bool) -> Option<(Config, Parameters)> {
        let dims = self.shape.dims();
        let strided = |input: &View| !fours || is_strided(input);
        // The last axes may make up the columns together, as rows and columns of an image do.
        let along = |rank: usize| self.inputs.iter().all(|x| !strided(x) || column_stride(x, rank).is_some());
        let ends = (0..dims.len()).rev().find(|&rank| dims[rank..].iter().product::<usize>() == columns);
        let rank = match ends {
            Some(rank) if along(rank) => rank,
            _ if columns == 1 || !self.inputs.iter().any(strided) => dims.len(),
            _ => return None,
        };
        let differs = |input: &View| (0..rank).any(|axis| dims[axis] > 1 && input.strides()[axis] != 0);
        let by_row = |input: &View| strided(input) && differs(input);
        let views: Vec<&[isize]> = self.inputs.iter().filter(|x| by_row(x)).map(|x| &x.strides()[..rank]).collect();
        let (lengths, strides) =
            if views.is_empty() { Default::default() } else { collapse_all(&dims[..rank], &views) };

        let mut strides = strides.into_iter();
        let inputs = self.inputs.iter().map(|input| {
            let (dtype, by_row, offset) = (input.dtype, by_row(input), input.layout().offset);
            if !strided(input) {
                let at = Strided { offset: offset / 4, strides: Dims::new() };
                return (EpilogueInput { dtype, layout: InputLayout::Contiguous, by_row }, at);
            }
            let mut strides = if by_row { strides.next().unwrap_or_default() } else { Default::default() };
            strides.push(column_stride(input, rank).unwrap_or(0));
            let layout = if fours { strided_layout(input, &[columns], &strides) } else { InputLayout::Strided };
            (EpilogueInput { dtype, layout, by_row }, Strided { offset, strides })
        });
        let (inputs, views) = inputs.unzip();
        let scalars = self.scalars.iter().map(|word| word.dtype).collect();
        let config = Config { expr: self.expr.clone(), inputs, rank: lengths.len(), scalars, kept: self.kept.into() };
        let scalars = self.scalars.iter().copied().collect();
        Some((config, Parameters { rows: lengths, inputs: views, scalars }))
    }
}

/// Returns the distance between neighbours along the axes from `rank` on, if an input walks them as one.
fn column_stride(input: &View, rank: usize) -> Option<isize> {
    let (_, [strides]) = collapse(&input.shape()[rank..], [&input.strides()[rank..]]);
    match strides[..] {
        [] => Some(0),
        [stride] => Some(stride),
        _ => None,
    }
}
