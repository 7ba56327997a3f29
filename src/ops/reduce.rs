//! Reductions over any axes.

use super::rows::{Rows, lengths};
use super::{choose_team, largest_team, run_if_it_holds_much};
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::{Axes, Dims, Shape, checked_elements};
use crate::device::Device;
use crate::engine::launch::Launch;
use crate::engine::pool::Buffer;
use crate::kernels::expr::Domain;
use crate::kernels::fold::{FoldOp, buffers};
use crate::kernels::reduce::{Parameters, Reduce, Stage};
use crate::kernels::rows::RowsType;
use crate::kernels::workgroup::{Team, Turn, WORKGROUP};
use crate::lazy::{Deferred, Epilogue, Placement, Produced, Producer, allocate};
use crate::tensor::Tensor;

/// The most results of less than 32 bits that the kernel stores itself. Each takes two atomic operations, and a second
/// kernel takes a launch.
const MOST_NARROW: usize = 4096;

/// A reduction that the user calls.
#[derive(Clone, Copy, PartialEq)]
enum Reduction {
    /// A fold whose result has the tensor's dtype, or for integers the wider dtype of their sum.
    Wide(FoldOp),
    /// One of the elements.
    Element(FoldOp),
    Place(FoldOp),
    Test(FoldOp),
    Norm(FoldOp),
    Mean,
    LogSumExp,
    /// The sum of squared deviations, divided by the number of elements less this.
    Var(usize),
    /// The square root of `Var`.
    Std(usize),
}

impl Reduction {
    /// Returns the fold that does most of the work.
    fn fold(self) -> FoldOp {
        match self {
            Reduction::Wide(op)
            | Reduction::Element(op)
            | Reduction::Place(op)
            | Reduction::Test(op)
            | Reduction::Norm(op) => op,
            Reduction::Mean => FoldOp::Sum,
            Reduction::LogSumExp => FoldOp::SumExp,
            Reduction::Var(_) | Reduction::Std(_) => FoldOp::Deviations,
        }
    }

    /// Returns the dtypes that the reduction takes.
    fn domain(self) -> Domain {
        use Reduction::*;
        match self {
            Mean | Norm(_) | LogSumExp | Var(_) | Std(_) => Domain::Floats,
            Wide(_) | Element(_) | Place(_) | Test(_) => Domain::All,
        }
    }
}

impl Tensor {
    fn reduce(&self, reduction: Reduction, axes: &Dims, keep: bool, op: &'static str) -> Result<Tensor> {
        reduction.domain().check(self.dtype(), op)?;
        let kept: Dims = (0..self.rank()).filter(|axis| !axes.contains(axis)).collect();
        checked_elements(self.shape(), op)?;
        let rows = RowsToFold {
            count: checked_elements(&lengths(self, &kept), op)?,
            length: checked_elements(&lengths(self, axes), op)?,
            kept,
            axes: axes.clone(),
            op,
        };
        if rows.length == 0 && rows.count > 0 && reduction.fold().of_nothing().is_none() {
            let message = format!("no element to choose along axes {:?} of shape {}", axes.as_slice(), self.shape());
            return Err(Error::InvalidArgument { op, message });
        }
        let shape: Shape = match keep {
            true => (0..self.rank()).map(|axis| if axes.contains(&axis) { 1 } else { self.dims()[axis] }).collect(),
            false => lengths(self, &rows.kept),
        };
        let result = self.reduce_rows(reduction, &rows)?.reshape(shape)?;
        run_if_it_holds_much(&result, [self])?;
        Ok(result)
    }

    /// Returns one element per row.
    fn reduce_rows(&self, reduction: Reduction, rows: &RowsToFold) -> Result<Tensor> {
        let fold = |fold| self.fold(fold, rows, None);
        // If the sum were multiplied by the reciprocal, rounded once from f64, the mean of equal numbers could differ
        // from them.
        let mean = || fold(FoldOp::Sum)? / rows.length as f64;
        match reduction {
            Reduction::Wide(op) => fold(op)?.to_dtype(self.dtype().summed()),
            Reduction::Element(op) | Reduction::Norm(op) => fold(op)?.to_dtype(self.dtype()),
            Reduction::Place(op) => fold(op),
            Reduction::Test(op) => fold(op)?.ne(0),
            Reduction::Mean => mean()?.to_dtype(self.dtype()),
            Reduction::Var(correction) | Reduction::Std(correction) => {
                // Two kernels read the elements.
                self.realize()?;
                let deviations = self.fold(FoldOp::Deviations, rows, Some(&mean()?))?;
                let variance = (deviations / rows.length.saturating_sub(correction) as f64)?;
                let root = matches!(reduction, Reduction::Std(_));
                if root { variance.sqrt() } else { Ok(variance) }?.to_dtype(self.dtype())
            }
            Reduction::LogSumExp => {
                self.realize()?;
                // The largest element is subtracted, so that nothing overflows. If it is infinite, it alone decides.
                let zeros = Tensor::zeros(rows.count, self.dtype().widened(), self.device())?;
                let largest = if rows.length == 0 { zeros.clone() } else { fold(FoldOp::Max)? };
                let centre = largest.is_finite()?.where_cond(&largest, &zeros)?;
                let sum = self.fold(FoldOp::SumExp, rows, Some(&centre))?;
                (sum.log()? + centre)?.to_dtype(self.dtype())
            }
        }
    }

    /// Returns one element per row, in the kernel's dtype. `centre` holds a number per row, which is subtracted from
    /// the row's elements. The launch waits until the result is needed.
    fn fold(&self, fold: FoldOp, rows: &RowsToFold, centre: Option<&Tensor>) -> Result<Tensor> {
        let (dtype, device) = (fold.output(self.dtype()), self.device());
        if rows.length == 0 || rows.count == 0 {
            let one = fold.of_nothing() == Some(1);
            return if one {
                Tensor::ones(rows.count, dtype, device)
            } else {
                Tensor::zeros(rows.count, dtype, device)
            };
        }
        let centre = centre.map(Tensor::row_major_buffer).transpose()?;
        let folded = Folded { fold, x: Deferred::new(self)?, rows: rows.clone(), centre };
        Tensor::from_producer(folded, Placement::contiguous(rows.count.into(), device), dtype)
    }
}

/// The rows of a reduction.
#[derive(Clone)]
struct RowsToFold {
    kept: Dims,
    axes: Dims,
    /// The number of rows, and the length of each.
    count: usize,
    length: usize,
    op: &'static str,
}

/// One element per row, which has not been computed.
struct Folded {
    fold: FoldOp,
    x: Deferred,
    rows: RowsToFold,
    centre: Option<Buffer>,
}

impl Producer for Folded {
    fn accumulator(&self) -> DType {
        self.fold.output(self.x.dtype())
    }

    fn produce(&self, epilogue: Option<&Epilogue>) -> Result<Produced> {
        let (fold, op, device) = (self.fold, self.rows.op, self.x.device());
        // A kernel's parameters do not depend on who works on the rows.
        let (stage, team, turn) = (Stage::Whole, Team::Invocation, Turn::Single);
        let kernel = |rows, prologue| Reduce { op: fold, rows, prologue, epilogue: None, stage, team, turn };
        let rows =
            Rows::deferred(&self.x, &self.rows.kept, &self.rows.axes, device.tuning().loads.several, &kernel, op)?;
        let chunk = chunk_length(device, &rows);
        let last = if chunk == rows.length {
            let inputs = rows.inputs().cloned().chain(self.centre.clone()).collect();
            let team = team_of(device, &rows, rows.count, chunk);
            Stages::whole(fold, &rows, team, turn_of(device, &rows), inputs)
        } else {
            let inputs: Vec<&Buffer> = rows.inputs().chain(&self.centre).collect();
            let states = fold_chunks(device, fold, &rows, &inputs, chunk, op)?;
            let sizes = [rows.count, rows.length.div_ceil(chunk), rows.length];
            Stages::end(device, fold, rows.dtype(), sizes, states)
        };
        let shape = Shape::from(rows.count);
        if let Some(epilogue) = epilogue
            && let Some((kernel, parameters)) = last.finished(epilogue, device)
        {
            let groups = last.groups;
            return epilogue.run(&last.inputs, &[], (device, op), |buffers| {
                device.runtime().run(Launch { kernel, buffers, parameters, groups })
            });
        }
        let dtype = self.accumulator();
        let output = allocate(&shape, dtype, device, op)?;
        let buffers: Vec<&Buffer> = last.inputs.iter().chain([&output]).collect();
        let Stages { kernel, parameters, groups, .. } = last;
        device.runtime().run(Launch { kernel, buffers: &buffers, parameters, groups })?;
        if epilogue.is_none() {
            return Ok(Produced::Finished { result: output, kept: Default::default() });
        }
        Ok(Produced::unfinished(Tensor::from_buffer(output, shape, dtype, device)))
    }
}

/// The last kernel of a reduction, which stores the results.
struct Stages {
    kernel: Reduce,
    parameters: Parameters,
    groups: usize,
    inputs: Vec<Buffer>,
}

impl Stages {
    /// Folds whole rows.
    fn whole(fold: FoldOp, rows: &Rows, team: Team, turn: Turn, inputs: Vec<Buffer>) -> Stages {
        let kernel = reduce(fold, rows, Stage::Whole, team, turn);
        let (parameters, groups) = parameters(&kernel, rows, rows.length);
        Stages { kernel, parameters, groups, inputs }
    }

    /// Folds the states of chunks: so many for each of the rows, which have a length.
    fn end(
        device: &Device,
        fold: FoldOp,
        dtype: DType,
        [rows, per_row, length]: [usize; 3],
        states: Vec<Buffer>,
    ) -> Stages {
        let team = enlarged(device, choose_team(device, rows, per_row), per_row);
        // The states depend only on the dtype of the computation.
        let ty = RowsType { dtype: dtype.widened(), kept_rank: 0, row_rank: 0 };
        let turn = if device.tuning().loads.several { Turn::Singles } else { Turn::Single };
        let (stage, prologue, epilogue) = (Stage::End, None, None);
        let kernel = Reduce { op: fold, rows: ty, prologue, epilogue, stage, team, turn };
        let parameters = Parameters {
            chunks: rows,
            per_row: 1,
            span: per_row,
            length: per_row,
            count: length,
            rows: None,
            prologue: None,
            epilogue: None,
        };
        Stages { kernel, parameters, groups: team.groups(rows), inputs: states }
    }

    /// Returns the kernel with an epilogue, and its parameters; `None` if the kernel cannot apply it.
    fn finished(&self, epilogue: &Epilogue, device: &Device) -> Option<(Reduce, Parameters)> {
        let (config, at) = epilogue.plan(1, false)?;
        let kernel = Reduce { epilogue: Some(config.into()), ..self.kernel.clone() };
        let few = self.parameters.chunks <= MOST_NARROW;
        let stores = |dtype: DType| few || dtype.size_in_bytes() >= 4;
        let fits = epilogue.fits(&kernel, self.inputs.len() + 1, stores, device);
        fits.then(|| (kernel, Parameters { epilogue: Some(at), ..self.parameters.clone() }))
    }
}

/// Returns the kernel that folds rows of elements.
fn reduce(fold: FoldOp, rows: &Rows, stage: Stage, team: Team, turn: Turn) -> Reduce {
    let prologue = rows.prologue.as_ref().map(|prologue| prologue.kernel.clone());
    Reduce { op: fold, rows: rows.ty, prologue, epilogue: None, stage, team, turn }
}

/// Returns the parameters of a kernel that folds rows in chunks of this length, and its workgroups.
fn parameters(kernel: &Reduce, rows: &Rows, chunk: usize) -> (Parameters, usize) {
    let per_row = rows.length.div_ceil(chunk);
    let (chunks, width) = (rows.count * per_row, kernel.turn.width() as usize);
    let parameters = Parameters {
        chunks,
        per_row,
        span: chunk / width,
        length: rows.length / width,
        count: rows.length,
        rows: Some(rows.parameters.clone()),
        prologue: rows.prologue.as_ref().map(|prologue| prologue.parameters.clone()),
        epilogue: None,
    };
    (parameters, kernel.team.groups(chunks))
}

/// Returns the states of each row's chunks: a buffer for each type of number in a state.
pub(super) fn fold_chunks(
    device: &Device,
    fold: FoldOp,
    rows: &Rows,
    inputs: &[&Buffer],
    chunk: usize,
    op: &'static str,
) -> Result<Vec<Buffer>> {
    let chunks = rows.count * rows.length.div_ceil(chunk);
    let states = state_buffers(device, fold, rows.dtype(), chunks, op)?;
    let bindings: Vec<&Buffer> = inputs.iter().copied().chain(&states).collect();
    let team = enlarged(device, team_of(device, rows, chunks, chunk), chunk);
    let kernel = reduce(fold, rows, Stage::Begin, team, turn_of(device, rows));
    let (parameters, groups) = parameters(&kernel, rows, chunk);
    device.runtime().run(Launch { kernel, buffers: &bindings, parameters, groups })?;
    Ok(states)
}

/// Returns buffers for this many states.
pub(super) fn state_buffers(
    device: &Device,
    fold: FoldOp,
    dtype: DType,
    count: usize,
    op: &'static str,
) -> Result<Vec<Buffer>> {
    let buffers = buffers(&fold.state(dtype)).into_iter();
    buffers.map(|(dtype, numbers)| allocate(&Shape::from((count, numbers)), dtype, device, op)).collect()
}

/// Folds the states of chunks to a result for each row: see [`Stages::end`].
pub(super) fn fold_states(
    device: &Device,
    fold: FoldOp,
    dtype: DType,
    sizes: [usize; 3],
    states: Vec<Buffer>,
    output: &Buffer,
) -> Result<()> {
    let Stages { kernel, parameters, groups, inputs } = Stages::end(device, fold, dtype, sizes, states);
    let buffers: Vec<&Buffer> = inputs.iter().chain([output]).collect();
    device.runtime().run(Launch { kernel, buffers: &buffers, parameters, groups })
}

/// Whether neighbouring invocations go down neighbouring columns.
fn by_columns(device: &Device, rows: &Rows) -> bool {
    rows.are_columns && rows.count >= WORKGROUP as usize && device.tuning().reduce.columns
}

/// Chooses who works on a chunk of a row.
fn team_of(device: &Device, rows: &Rows, chunks: usize, length: usize) -> Team {
    if by_columns(device, rows) { Team::Invocation } else { choose_team(device, chunks, length) }
}

/// Returns a larger workgroup for long rows, which are much work for a small one.
fn enlarged(device: &Device, team: Team, length: usize) -> Team {
    match team {
        Team::Workgroup(_) if device.tuning().loads.several && length >= 1024 => {
            Team::Workgroup(largest_team(device).min(256))
        }
        team => team,
    }
}

/// Chooses how a team goes through its rows.
fn turn_of(device: &Device, rows: &Rows) -> Turn {
    match () {
        _ if !device.tuning().loads.several => Turn::Single,
        _ if rows.are_quads => Turn::Quads,
        _ => Turn::Singles,
    }
}

/// Returns the length of the chunks that each row is cut into, so that few long rows keep the whole device busy.
fn chunk_length(device: &Device, rows: &Rows) -> usize {
    let tuning = &device.tuning().reduce;
    let (teams, shortest) = match by_columns(device, rows) {
        true => (tuning.column_teams, tuning.shortest_column),
        false => (tuning.teams, tuning.shortest),
    };
    // The most elements that one team adds up without losing digits: see `Fold::sum`.
    const LONGEST: usize = 1 << 20;
    let (rows, length) = (rows.count, rows.length);
    let per_row = usize::div_ceil(teams, rows.max(1)).min(length / shortest).max(length.div_ceil(LONGEST)).max(1);
    // Chunks are whole fours.
    length.div_ceil(per_row).next_multiple_of(4).min(length)
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident, $keepdim:ident, $all:ident $(($argument:ident))? => $reduction:expr;)*) => {
        /// Reductions over one axis, several (`[0, -1]`) or all of them.
        ///
        /// Sums of floats are compensated, also in means, variances and norms. Whatever their length, they are within
        /// half a unit in the last place of the result plus 2^-25 of the sum of magnitudes (for `f64`, 2^-54).
        ///
        /// ```
        /// # use marquetry::{Device, Tensor};
        /// # let device = Device::best()?;
        /// let x = Tensor::new([[1f32, 5.0, 3.0], [4.0, 2.0, 6.0]], &device)?;
        /// assert_eq!(x.sum(0)?.to_vec::<f32>()?, [5.0, 7.0, 9.0]);
        /// assert_eq!(x.mean_keepdim(-1)?.dims(), [2, 1]);
        /// assert_eq!(x.max([0, 1])?.to_scalar::<f32>()?, 6.0);
        /// assert_eq!(x.argmax(1)?.to_vec::<u32>()?, [1, 2]);
        /// assert_eq!(x.var(1)?.to_vec::<f32>()?, [4.0, 4.0]);
        /// assert_eq!(x.var_with(1, 0)?.to_vec::<f32>()?, [8.0 / 3.0, 8.0 / 3.0]);
        /// # Ok::<(), marquetry::Error>(())
        /// ```
        impl Tensor {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// [`Error::AxisOutOfRange`], [`Error::DuplicateAxis`]; [`Error::InvalidArgument`] if there is no
                /// element to choose; [`Error::UnsupportedDType`] for means, variances, norms and exponentials of
                /// integers and `bool`.
                pub fn $name(&self, axes: impl Into<Axes> $(, $argument: usize)?) -> Result<Tensor> {
                    let axes = axes.into().resolve(self.shape(), stringify!($name))?;
                    self.reduce($reduction, &axes, false, stringify!($name))
                }

                #[doc = concat!("Returns the same as [`", stringify!($name), "`](Self::", stringify!($name), "),")]
                /// but the axes stay, with length 1.
                ///
                /// # Errors
                #[doc = concat!("As [`", stringify!($name), "`](Self::", stringify!($name), ").")]
                pub fn $keepdim(&self, axes: impl Into<Axes> $(, $argument: usize)?) -> Result<Tensor> {
                    let axes = axes.into().resolve(self.shape(), stringify!($keepdim))?;
                    self.reduce($reduction, &axes, true, stringify!($keepdim))
                }

                #[doc = concat!("Returns [`", stringify!($name), "`](Self::", stringify!($name), ")")]
                /// over all axes, as a scalar.
                ///
                /// # Errors
                #[doc = concat!("As [`", stringify!($name), "`](Self::", stringify!($name), ").")]
                pub fn $all(&self $(, $argument: usize)?) -> Result<Tensor> {
                    let axes = (0..self.rank()).collect();
                    self.reduce($reduction, &axes, false, stringify!($all))
                }
            )*
        }
    };
}

reductions! {
    /// Returns the sum. The sum of `u8` is `u32`, the sum of `i8` is `i32`, and the sum of `bool` is the number of true
    /// elements as `u32`. `f16` and `bf16` are summed in `f32`. Integers are summed modulo 2^32, `i64` modulo 2^64.
    sum, sum_keepdim, sum_all => Reduction::Wide(FoldOp::Sum);
    /// Returns the product, in the dtype of the sum; 1 if there are no elements. The product of `n` floats is within
    /// `n - 1` roundings of `f32` (`f64`). This holds if no product on the way, in any order, is too large or too small
    /// for that dtype.
    prod, prod_keepdim, prod_all => Reduction::Wide(FoldOp::Prod);
    /// Returns the mean; NaN if there are no elements.
    mean, mean_keepdim, mean_all => Reduction::Mean;
    /// Returns the smallest element; NaN if one is NaN. For `bool`, whether all are true.
    min, min_keepdim, min_all => Reduction::Element(FoldOp::Min);
    /// Returns the largest element; NaN if one is NaN. For `bool`, whether one is true.
    max, max_keepdim, max_all => Reduction::Element(FoldOp::Max);
    /// Returns the place (`u32`) of the first smallest element along an axis. Over several axes, it is the place in
    /// row-major order of these axes as they are given. NaN counts as smallest.
    argmin, argmin_keepdim, argmin_all => Reduction::Place(FoldOp::ArgMin);
    /// Returns the place (`u32`) of the first largest element along an axis. Over several axes, it is the place in
    /// row-major order of these axes as they are given. NaN counts as largest.
    argmax, argmax_keepdim, argmax_all => Reduction::Place(FoldOp::ArgMax);
    /// Returns whether any element is nonzero, as `bool`; NaN is nonzero. False if there are no elements.
    any, any_keepdim, any_all => Reduction::Test(FoldOp::Any);
    /// Returns whether all elements are nonzero, as `bool`; NaN is nonzero. True if there are no elements.
    all, all_keepdim, all_all => Reduction::Test(FoldOp::All);
    /// Returns the unbiased variance: the sum of squared deviations from the mean, divided by the number of elements
    /// less one. NaN for one element or none. It is computed in two passes, the mean first, and corrected for the
    /// rounding of the mean (T. Chan, G. Golub and R. LeVeque, "Algorithms for Computing the Sample Variance", 1983).
    var, var_keepdim, var_all => Reduction::Var(1);
    /// Returns the variance as the sum of squared deviations, divided by the number of elements less `correction` (at
    /// least by 0). A correction of 0 gives the biased variance, 1 gives [`var`](Self::var).
    var_with, var_with_keepdim, var_with_all (correction) => Reduction::Var(correction);
    /// Returns the standard deviation: the square root of the unbiased variance, [`var`](Self::var).
    std, std_keepdim, std_all => Reduction::Std(1);
    /// Returns the square root of [`var_with`](Self::var_with).
    std_with, std_with_keepdim, std_with_all (correction) => Reduction::Std(correction);
    /// Returns `log(sum(exp(x)))`, computed from `x - max(x)` so that it never overflows. Minus infinity if there are
    /// no elements.
    logsumexp, logsumexp_keepdim, logsumexp_all => Reduction::LogSumExp;
    /// Returns the sum of magnitudes (PyTorch's `linalg.vector_norm` with `ord=1`).
    norm_l1, norm_l1_keepdim, norm_l1_all => Reduction::Norm(FoldOp::NormL1);
    /// Returns the square root of the sum of squares (PyTorch's `linalg.vector_norm`). Squares are scaled by powers of
    /// two, so that they overflow or vanish only if the norm does.
    norm_l2, norm_l2_keepdim, norm_l2_all => Reduction::Norm(FoldOp::NormL2);
}
