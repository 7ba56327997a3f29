//! Reductions over any axes.

use super::{choose_team, is_software};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::expr::Domain;
use crate::kernels::reduce::{Reduce, ReduceOp};
use crate::layout::collapse;
use crate::shape::{Axes, Dims, Shape};
use crate::tensor::{Tensor, allocate, checked_elements};

/// A way to reduce, as the user knows it.
#[derive(Clone, Copy, PartialEq)]
enum Reduction {
    Sum,
    Mean,
    Min,
    Max,
    ArgMax,
}

impl Tensor {
    fn reduce(&self, reduction: Reduction, axes: &Dims, keep: bool, op: &'static str) -> Result<Tensor> {
        if reduction == Reduction::Mean {
            Domain::Floats.check(self.dtype(), op)?;
        }
        let kept: Dims = (0..self.rank()).filter(|axis| !axes.contains(axis)).collect();
        let lengths = |axes: &Dims| -> Shape { axes.iter().map(|&axis| self.dims()[axis]).collect() };
        let (rows, length) = (checked_elements(&lengths(&kept), op)?, checked_elements(&lengths(axes), op)?);
        checked_elements(self.shape(), op)?;
        if length == 0 && rows > 0 && !matches!(reduction, Reduction::Sum | Reduction::Mean) {
            let message = format!("no element to choose along axes {:?} of shape {}", axes.as_slice(), self.shape());
            return Err(Error::InvalidArgument { op, message });
        }
        let reduced = self.reduce_rows(reduction, &kept, axes, rows, length, op)?;
        let shape: Shape = match keep {
            true => (0..self.rank()).map(|axis| if axes.contains(&axis) { 1 } else { self.dims()[axis] }).collect(),
            false => lengths(&kept),
        };
        let reduced = reduced.reshape(shape)?;
        match reduction {
            // By the reciprocal in f64, rounded once, the mean of equal numbers would not always be that number.
            Reduction::Mean => (reduced / length as f64)?.to_dtype(self.dtype()),
            Reduction::Min | Reduction::Max => reduced.to_dtype(self.dtype()),
            Reduction::Sum => reduced.to_dtype(self.dtype().summed()),
            Reduction::ArgMax => Ok(reduced),
        }
    }

    /// One element per row, in the kernel's dtype.
    fn reduce_rows(
        &self,
        reduction: Reduction,
        kept: &Dims,
        reduced: &Dims,
        rows: usize,
        length: usize,
        op: &'static str,
    ) -> Result<Tensor> {
        let kernel_op = match reduction {
            Reduction::Sum | Reduction::Mean => ReduceOp::Sum,
            Reduction::Min => ReduceOp::Min,
            Reduction::Max => ReduceOp::Max,
            Reduction::ArgMax => ReduceOp::ArgMax,
        };
        let dtype = kernel_op.output(self.dtype());
        if length == 0 {
            return Tensor::zeros(rows, dtype, self.device());
        }
        let part = |axes: &Dims| {
            let dims: Dims = axes.iter().map(|&axis| self.dims()[axis]).collect();
            let strides: Dims<isize> = axes.iter().map(|&axis| self.strides()[axis]).collect();
            let (lengths, mut strides) = collapse(&dims, &[&strides]);
            (lengths, strides.remove(0))
        };
        let ((kept_lengths, kept_strides), (reduced_lengths, reduced_strides)) = (part(kept), part(reduced));
        let (kept_rank, reduced_rank) = (kept_lengths.len(), reduced_lengths.len());
        let limit = self.device().info().limits.max_parameter_words as usize;
        if Reduce::parameter_words(kept_rank, reduced_rank) > limit {
            // So many axes that do not merge: in row-major order of the rows, two remain.
            let order: Vec<usize> = kept.iter().chain(reduced).copied().collect();
            let table = self.permute(order)?.reshape((rows, length))?;
            let (kept, reduced) = (Dims::from_slice(&[0]), Dims::from_slice(&[1]));
            return table.reduce_rows(reduction, &kept, &reduced, rows, length, op);
        }
        let buffer = self.buffer()?;
        let per_row = chunks_per_row(self.device(), kernel_op, rows, length);
        let (chunks, span) = (rows * per_row, length.div_ceil(per_row));
        let output = allocate(&Shape::from(chunks), dtype, self.device(), op)?;
        if rows > 0 {
            let mut parameters = [chunks, per_row, span, length].map(|n| n as u32).to_vec();
            parameters.extend(kept_lengths.iter().chain(&reduced_lengths).map(|&n| n as u32));
            parameters.push(self.layout().offset as u32);
            parameters.extend(kept_strides.iter().chain(&reduced_strides).map(|&stride| stride as u32));
            let team = choose_team(self.device(), chunks, span);
            let config = Reduce { op: kernel_op, dtype: self.dtype(), kept_rank, reduced_rank, team };
            self.device().runtime().launch(config, &[&buffer, &output], &parameters, team.groups(chunks))?;
        }
        let partial = Tensor::from_buffer(output, chunks.into(), dtype, self.device());
        if per_row == 1 {
            return Ok(partial);
        }
        let (kept, reduced) = (Dims::from_slice(&[0]), Dims::from_slice(&[1]));
        partial.reshape((rows, per_row))?.reduce_rows(reduction, &kept, &reduced, rows, per_row, op)
    }
}

/// Into how many chunks each row is cut, so that few long rows keep the whole device busy.
fn chunks_per_row(device: &Device, op: ReduceOp, rows: usize, length: usize) -> usize {
    const SHORTEST_CHUNK: usize = 4096;
    let teams: usize = if is_software(device) { 16 } else { 2048 };
    match op {
        // Places in chunks are not places in rows.
        ReduceOp::ArgMax => 1,
        _ => teams.div_ceil(rows.max(1)).min(length / SHORTEST_CHUNK).max(1),
    }
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident, $keepdim:ident, $all:ident => $reduction:ident;)*) => {
        /// Reductions over one axis, several (`[0, -1]`) or all of them.
        ///
        /// ```
        /// # use marquetry::{Device, Tensor};
        /// # let device = Device::best()?;
        /// let x = Tensor::new([[1f32, 5.0, 3.0], [4.0, 2.0, 6.0]], &device)?;
        /// assert_eq!(x.sum(0)?.to_vec::<f32>()?, [5.0, 7.0, 9.0]);
        /// assert_eq!(x.mean_keepdim(-1)?.dims(), [2, 1]);
        /// assert_eq!(x.max([0, 1])?.to_scalar::<f32>()?, 6.0);
        /// assert_eq!(x.argmax(1)?.to_vec::<u32>()?, [1, 2]);
        /// # Ok::<(), marquetry::Error>(())
        /// ```
        impl Tensor {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// [`Error::AxisOutOfRange`], [`Error::DuplicateAxis`]; [`Error::InvalidArgument`] where there is no
                /// element to choose; [`Error::UnsupportedDType`] for the mean of integers and truth values.
                pub fn $name(&self, axes: impl Into<Axes>) -> Result<Tensor> {
                    let axes = axes.into().resolve(self.shape(), stringify!($name))?;
                    self.reduce(Reduction::$reduction, &axes, false, stringify!($name))
                }

                #[doc = concat!("Like [`", stringify!($name), "`](Self::", stringify!($name), "), but the axes stay, with length 1.")]
                ///
                /// # Errors
                #[doc = concat!("As [`", stringify!($name), "`](Self::", stringify!($name), ").")]
                pub fn $keepdim(&self, axes: impl Into<Axes>) -> Result<Tensor> {
                    let axes = axes.into().resolve(self.shape(), stringify!($keepdim))?;
                    self.reduce(Reduction::$reduction, &axes, true, stringify!($keepdim))
                }

                #[doc = concat!("Like [`", stringify!($name), "`](Self::", stringify!($name), ") over all axes; the result is a scalar.")]
                ///
                /// # Errors
                #[doc = concat!("As [`", stringify!($name), "`](Self::", stringify!($name), ").")]
                pub fn $all(&self) -> Result<Tensor> {
                    let axes = (0..self.rank()).collect();
                    self.reduce(Reduction::$reduction, &axes, false, stringify!($all))
                }
            )*
        }
    };
}

reductions! {
    /// The sum; of `u8` as `u32`, of `i8` as `i32`, and of `bool` the number of those that are true, as `u32`. `f16` and
    /// `bf16` are summed in `f32`, integers modulo 2^32.
    sum, sum_keepdim, sum_all => Sum;
    /// The mean, NaN over no elements. `f16` and `bf16` are summed in `f32`.
    mean, mean_keepdim, mean_all => Mean;
    /// The smallest element; NaN if one is NaN. Of `bool`, whether all are true.
    min, min_keepdim, min_all => Min;
    /// The largest element; NaN if one is NaN. Of `bool`, whether one is true.
    max, max_keepdim, max_all => Max;
    /// The place (`u32`) of the first largest element along an axis; over several axes, its place in row-major order
    /// of those axes as they are given. A NaN counts as largest.
    argmax, argmax_keepdim, argmax_all => ArgMax;
}
