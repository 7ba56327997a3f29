//! Sorting along an axis.

use super::rows::Rows;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::checked_elements;
use crate::base::shape::{Axis, Shape};
use crate::engine::launch::Launch;
use crate::engine::pool::Buffer;
use crate::kernels::sort::{
    BlockParameters, MERGED, MergeParameters, SortBlocks, SortMerge, SortTake, TakeParameters, WORKGROUP,
};
use crate::lazy::allocate;
use crate::tensor::Tensor;

/// Sorted rows: a table with the first `taken` places of each row.
struct Sorted {
    rows: Rows,
    axis: usize,
    taken: usize,
    places: Tensor,
}

/// The runs that are being merged. Each row has `count` of them, all of `run` elements except for the last, and
/// `length` elements in all.
#[derive(Clone, Copy)]
struct Runs {
    count: usize,
    run: usize,
    length: usize,
}

impl Runs {
    /// Returns what `length` elements in runs of `run` become if each run keeps its first `most` elements.
    fn cut(length: usize, run: usize, most: usize) -> Runs {
        let (count, kept) = (length.div_ceil(run), run.min(most));
        let last = (length - (count - 1) * run).min(kept);
        Runs { count, run: kept, length: (count - 1) * kept + last }
    }

    /// Returns the runs after pairs of them have been merged.
    fn merged(self, most: usize) -> Runs {
        Runs::cut(self.length, 2 * self.run, most)
    }
}

impl Tensor {
    /// Returns the elements sorted along an axis, and their places (`u32`) on it before the sort. Equal elements keep
    /// their order, also if it is `descending`. NaN counts as largest, and zeros of both signs are equal. (candle:
    /// `sort_last_dim`.)
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[3f32, 1.0, 2.0], [1.0, 1.0, 0.0]], &device)?;
    /// let (values, places) = x.sort(-1, false)?;
    /// assert_eq!(values.to_vec::<f32>()?, [1.0, 2.0, 3.0, 0.0, 1.0, 1.0]);
    /// assert_eq!(places.to_vec::<u32>()?, [1, 2, 0, 2, 0, 1]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`].
    pub fn sort(&self, axis: impl Into<Axis>, descending: bool) -> Result<(Tensor, Tensor)> {
        self.sorted(axis.into(), None, descending, "sort")?.values_and_places(self, "sort")
    }

    /// Returns the places (`u32`) of the elements in the order of [`sort`](Self::sort). (candle: `arg_sort_last_dim`.)
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`].
    pub fn argsort(&self, axis: impl Into<Axis>, descending: bool) -> Result<Tensor> {
        self.sorted(axis.into(), None, descending, "argsort")?.places(self)
    }

    /// Returns the `k` largest elements along an axis, or the smallest if `largest` is false, and their places (`u32`)
    /// on it. They are sorted from the largest (or smallest) on, equal ones in the order of their places. NaN counts as
    /// largest.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([5u32, 9, 7, 9], &device)?;
    /// let (values, places) = x.topk(3, 0, true)?;
    /// assert_eq!(values.to_vec::<u32>()?, [9, 9, 7]);
    /// assert_eq!(places.to_vec::<u32>()?, [1, 3, 2]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] if the axis has fewer than `k` elements.
    pub fn topk(&self, k: usize, axis: impl Into<Axis>, largest: bool) -> Result<(Tensor, Tensor)> {
        self.sorted(axis.into(), Some(k), largest, "topk")?.values_and_places(self, "topk")
    }

    /// Sorts each row. The result has the first `taken` places of each row, or all of them.
    fn sorted(&self, axis: Axis, taken: Option<usize>, descending: bool, op: &'static str) -> Result<Sorted> {
        let axis = axis.resolve(self.shape(), op)?;
        let taken = taken.unwrap_or(self.dims()[axis]);
        if taken > self.dims()[axis] {
            let message = format!(
                "k = {taken} is more than axis {axis} of shape {} has; k is at most {}",
                self.shape(),
                self.dims()[axis]
            );
            return Err(Error::InvalidArgument { op, message });
        }
        // Of the kernels that read the rows, `SortBlocks` has the most parameters.
        let rows = Rows::along(self, axis, &|rows| SortBlocks { rows }, op)?;
        let shape = Shape::from((rows.count, taken));
        let places = if checked_elements(&shape, op)? == 0 {
            allocate(&shape, DType::U32, self.device(), op)?
        } else {
            self.sort_rows(&rows, taken, descending, op)?
        };
        let places = Tensor::from_buffer(places, shape, DType::U32, self.device());
        Ok(Sorted { rows, axis, taken, places })
    }

    fn sort_rows(&self, rows: &Rows, taken: usize, descending: bool, op: &'static str) -> Result<Buffer> {
        let (device, runtime) = (self.device(), self.device().runtime());
        // Keys and places.
        let words = self.dtype().parts();
        let key = if words == 2 { DType::I64 } else { DType::U32 };
        let table = |runs: Runs| -> Result<[Buffer; 2]> {
            let shape = Shape::from((rows.count, runs.length));
            Ok([allocate(&shape, key, device, op)?, allocate(&shape, DType::U32, device, op)?])
        };
        let mut runs = Runs::cut(rows.length, WORKGROUP as usize, taken);
        let mut sorted = table(runs)?;
        let blocks = rows.count * runs.count;
        let parameters = BlockParameters {
            blocks,
            per_row: runs.count,
            length: rows.length,
            run: runs.run,
            out_length: runs.length,
            mask: if descending { u32::MAX } else { 0 },
            rows: rows.parameters.clone(),
        };
        let [keys, places] = &sorted;
        let (kernel, buffers) = (SortBlocks { rows: rows.ty }, &[&rows.buffer, keys, places]);
        runtime.run(Launch { kernel, buffers, parameters, groups: blocks })?;
        while runs.count > 1 {
            let next = runs.merged(taken);
            let merged = table(next)?;
            let per_pair = next.run.div_ceil(MERGED as usize);
            let per_row = next.count * per_pair;
            let invocations = checked_elements(&Shape::from((rows.count, per_row)), op)?;
            let parameters = MergeParameters {
                invocations,
                per_row,
                per_pair,
                length: runs.length,
                run: runs.run,
                out_length: next.length,
                out_run: next.run,
            };
            let buffers: Vec<&Buffer> = sorted.iter().chain(&merged).collect();
            let groups = invocations.div_ceil(WORKGROUP as usize);
            runtime.run(Launch { kernel: SortMerge { words }, buffers: &buffers, parameters, groups })?;
            (sorted, runs) = (merged, next);
        }
        let [_, places] = sorted;
        Ok(places)
    }
}

impl Sorted {
    /// Returns a table of the rows as a tensor with the axis where it was.
    fn shaped(&self, table: &Tensor, like: &Tensor) -> Result<Tensor> {
        let mut shape: Vec<usize> = like.dims().to_vec();
        shape.remove(self.axis);
        shape.push(self.taken);
        let mut order: Vec<usize> = (0..like.rank() - 1).collect();
        order.insert(self.axis, like.rank() - 1);
        table.reshape(shape)?.permute(order)
    }

    fn places(&self, of: &Tensor) -> Result<Tensor> {
        self.shaped(&self.places, of)
    }

    fn values_and_places(&self, of: &Tensor, op: &'static str) -> Result<(Tensor, Tensor)> {
        let values = allocate(self.places.shape(), of.dtype(), of.device(), op)?;
        let count = self.places.elem_count();
        if count > 0 {
            let kernel = SortTake { rows: self.rows.ty };
            let parameters = TakeParameters { count, per_row: self.taken, rows: self.rows.parameters.clone() };
            let buffers = [&self.rows.buffer, self.places.buffer()?, &values];
            let groups = count.div_ceil(4).div_ceil(WORKGROUP as usize);
            of.device().runtime().run(Launch { kernel, buffers: &buffers, parameters, groups })?;
        }
        let values = Tensor::from_buffer(values, self.places.shape().clone(), of.dtype(), of.device());
        Ok((self.shaped(&values, of)?, self.places(of)?))
    }
}
