//! Views: the same elements in another shape or order, without a copy.

use super::Tensor;
use crate::base::error::{Error, Result};
use crate::base::indices::{self, Indices};
use crate::base::layout::Layout;
use crate::base::shape::{Axes, Axis, Dims, Shape};
use std::ops::RangeBounds;

impl Tensor {
    /// Returns the elements in another shape of the same number of elements. If the strides do not allow a view, the
    /// tensor is copied.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::arange(0u32, 6, &device)?.reshape((2, 3))?;
    /// assert_eq!(x.to_vec2::<u32>()?, [[0, 1, 2], [3, 4, 5]]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ElementCount`].
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        if shape.elem_count() != Some(self.elem_count()) {
            return Err(Error::ElementCount { op: "reshape", shape, elements: self.elem_count() });
        }
        match self.view.layout().reshaped(&shape) {
            Some(layout) => Ok(self.with_layout(layout)),
            None => {
                let copy = self.copied().map_err(Error::named("reshape"))?;
                Ok(copy.with_layout(Layout::contiguous(shape)))
            }
        }
    }

    /// Returns the tensor with the axes from `start` to `end` (included) as one. If their strides do not allow a view,
    /// the tensor is copied.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::zeros((2, 3, 4), DType::F32, &device)?;
    /// assert_eq!(x.flatten(1, -1)?.dims(), [2, 12]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] if `end` comes before `start`.
    pub fn flatten(&self, start: impl Into<Axis>, end: impl Into<Axis>) -> Result<Tensor> {
        let (start, end) =
            (start.into().resolve(self.shape(), "flatten")?, end.into().resolve(self.shape(), "flatten")?);
        if end < start {
            let message = format!("the last axis {end} comes before the first axis {start} of shape {}", self.shape());
            return Err(Error::InvalidArgument { op: "flatten", message });
        }
        if let Some(layout) = self.view.layout().merged(start, end) {
            return Ok(self.with_layout(layout));
        }
        let dims = self.dims();
        // An empty tensor may have other axes whose product is too long to be told.
        let merged = dims[start..=end].iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let merged = if dims[start..=end].contains(&0) { Some(0) } else { merged };
        let merged = merged.ok_or_else(|| Error::SizeOverflow {
            op: "flatten",
            shape: self.shape().clone(),
            limit: usize::MAX as u64,
        })?;
        let shape: Shape =
            dims[..start].iter().copied().chain([merged]).chain(dims[end + 1..].iter().copied()).collect();
        self.reshape(shape)
    }

    /// Returns the tensor with all axes as one.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::zeros((2, 3, 4), DType::F32, &device)?;
    /// assert_eq!(x.flatten_all()?.dims(), [24]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if it is copied.
    pub fn flatten_all(&self) -> Result<Tensor> {
        self.reshape(self.elem_count())
    }

    /// Returns the view with two axes exchanged.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::zeros((2, 3, 4), DType::F32, &device)?;
    /// assert_eq!(x.transpose(0, 2)?.dims(), [4, 3, 2]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`].
    pub fn transpose(&self, a: impl Into<Axis>, b: impl Into<Axis>) -> Result<Tensor> {
        let (a, b) = (a.into().resolve(self.shape(), "transpose")?, b.into().resolve(self.shape(), "transpose")?);
        let mut axes: Dims = (0..self.rank()).collect();
        axes.swap(a, b);
        Ok(self.with_layout(self.view.layout().permuted(&axes)))
    }

    /// Returns the view with its last two axes exchanged: the transposed matrix, or each matrix of a batch transposed.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1u32, 2, 3], [4, 5, 6]], &device)?;
    /// assert_eq!(x.t()?.to_vec2::<u32>()?, [[1, 4], [2, 5], [3, 6]]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::RankMismatch`] if there are fewer than two axes.
    pub fn t(&self) -> Result<Tensor> {
        if self.rank() < 2 {
            return Err(Error::RankMismatch { op: "t", expected: "2 or more", shape: self.shape().clone() });
        }
        self.transpose(-2, -1)
    }

    /// Returns the view whose axis `i` is axis `axes[i]` of this one.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::zeros((2, 3, 4), DType::F32, &device)?;
    /// assert_eq!(x.permute([2, 0, 1])?.dims(), [4, 2, 3]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`], [`Error::DuplicateAxis`]; [`Error::InvalidArgument`] if axes are missing.
    pub fn permute(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        let axes = axes.into().resolve(self.shape(), "permute")?;
        if axes.len() != self.rank() {
            let message = format!(
                "{} axes are given for shape {}; name each of its {} axes",
                axes.len(),
                self.shape(),
                self.rank()
            );
            return Err(Error::InvalidArgument { op: "permute", message });
        }
        Ok(self.with_layout(self.view.layout().permuted(&axes)))
    }

    /// Returns `length` elements along an axis, from `start` on.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::arange(0u32, 10, &device)?;
    /// assert_eq!(x.narrow(0, 2, 3)?.to_vec::<u32>()?, [2, 3, 4]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`], [`Error::RangeOutOfBounds`].
    pub fn narrow(&self, axis: impl Into<Axis>, start: usize, length: usize) -> Result<Tensor> {
        self.strided_range(axis.into(), start..start.saturating_add(length), 1, "narrow")
    }

    /// Returns every `step`-th element of a range along an axis. A negative step begins at the range's last element and
    /// goes back: the range tells which elements are there, the step's sign from which end they are counted.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::arange(0u32, 10, &device)?;
    /// assert_eq!(x.slice(0, 1..8, 3)?.to_vec::<u32>()?, [1, 4, 7]);
    /// assert_eq!(x.slice(-1, 8.., 1)?.to_vec::<u32>()?, [8, 9]);
    /// assert_eq!(x.slice(0, 2..8, -2)?.to_vec::<u32>()?, [7, 5, 3]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`], [`Error::RangeOutOfBounds`], [`Error::InvalidArgument`] for a step of 0.
    pub fn slice(&self, axis: impl Into<Axis>, range: impl RangeBounds<usize>, step: isize) -> Result<Tensor> {
        self.strided_range(axis.into(), range, step, "slice")
    }

    fn strided_range(
        &self,
        axis: Axis,
        range: impl RangeBounds<usize>,
        step: isize,
        op: &'static str,
    ) -> Result<Tensor> {
        let axis = axis.resolve(self.shape(), op)?;
        if step == 0 {
            return Err(Error::InvalidArgument {
                op,
                message: "a step of 0 never arrives; give 1 or another step".into(),
            });
        }
        let range = indices::resolve(&range, axis, self.shape(), op)?;
        let first = if step < 0 { range.end.saturating_sub(1) } else { range.start };
        let length = range.len().div_ceil(step.unsigned_abs());
        Ok(self.with_layout(self.view.layout().sliced(axis, first, length, step)))
    }

    /// Returns the view of an index or a range of indices along each of the first axes (candle's `i`). An index takes
    /// its axis away, and counts from the end if it is negative; a range keeps the axis. Axes that are not named are
    /// whole.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::arange(0u32, 12, &device)?.reshape((3, 4))?;
    /// assert_eq!(x.i(1)?.to_vec1::<u32>()?, [4, 5, 6, 7]);
    /// assert_eq!(x.i((.., -1))?.to_vec1::<u32>()?, [3, 7, 11]);
    /// assert_eq!(x.i((1.., ..2))?.to_vec2::<u32>()?, [[4, 5], [8, 9]]);
    /// assert_eq!(x.i((2, 3))?.to_scalar::<u32>()?, 11);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an index that leaves its axis, and for more indices than axes;
    /// [`Error::RangeOutOfBounds`].
    pub fn i(&self, indices: impl Into<Indices>) -> Result<Tensor> {
        Ok(self.with_layout(indices.into().part_of(self.view.layout(), "i")?))
    }

    /// Returns the view of the windows of `size` elements along an axis, each `step` behind the one before. The axis
    /// counts the windows, a new last axis the elements in them. Windows that overlap share elements; none is copied.
    ///
    /// Other libraries unfold an image to columns, to make a convolution a matrix product. These columns are windows
    /// along two axes; [`conv2d`](Self::conv2d) does without them.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::arange(0u32, 5, &device)?;
    /// assert_eq!(x.unfold(0, 3, 2)?.to_vec::<u32>()?, [0, 1, 2, 2, 3, 4]);
    ///
    /// let image = Tensor::arange(0u32, 24, &device)?.reshape((1, 2, 3, 4))?;
    /// let windows = image.unfold(2, 2, 1)?.unfold(3, 2, 1)?; // (1, 2, 2, 3, 2, 2)
    /// let columns = windows.permute([0, 1, 4, 5, 2, 3])?.reshape((1, 2 * 2 * 2, 2 * 3))?;
    /// assert_eq!(columns.narrow(1, 0, 1)?.to_vec::<u32>()?, [0, 1, 2, 4, 5, 6]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] for a step of 0 and for windows longer than the axis;
    /// [`Error::SizeOverflow`].
    pub fn unfold(&self, axis: impl Into<Axis>, size: usize, step: usize) -> Result<Tensor> {
        const OP: &str = "unfold";
        let axis = axis.into().resolve(self.shape(), OP)?;
        if step == 0 {
            return Err(Error::InvalidArgument { op: OP, message: "a step of 0 never arrives; give 1 or more".into() });
        }
        let length = self.dims()[axis];
        let Some(room) = length.checked_sub(size) else {
            let message = format!(
                "a window of {size} elements is longer than axis {axis} of shape {}, which has {length}; give a size \
                 of {length} at most",
                self.shape()
            );
            return Err(Error::InvalidArgument { op: OP, message });
        };
        let mut layout = self.view.layout().sliced(
            axis,
            0,
            (room / step).saturating_add(1),
            isize::try_from(step).unwrap_or(isize::MAX),
        );
        let shape: Shape = layout.shape.iter().copied().chain([size]).collect();
        if shape.elem_count().is_none() {
            return Err(Error::SizeOverflow { op: OP, shape, limit: usize::MAX as u64 });
        }
        layout.shape = shape;
        layout.strides.push(self.strides()[axis]);
        Ok(self.with_layout(layout))
    }

    /// Returns the view of the diagonals of two axes, which a new last axis replaces. `first` is the axis of rows,
    /// `second` the axis of columns. A diagonal begins `offset` columns to the right of the first element, or below it
    /// if `offset` is negative.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1u32, 2, 3], [4, 5, 6]], &device)?;
    /// assert_eq!(x.diagonal(0, 0, 1)?.to_vec::<u32>()?, [1, 5]);
    /// assert_eq!(x.diagonal(1, 0, 1)?.to_vec::<u32>()?, [2, 6]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`]; [`Error::DuplicateAxis`] if both are one axis.
    pub fn diagonal(&self, offset: isize, first: impl Into<Axis>, second: impl Into<Axis>) -> Result<Tensor> {
        const OP: &str = "diagonal";
        let axes = Axes::from((first, second)).resolve(self.shape(), OP)?;
        Ok(self.with_layout(self.view.layout().diagonal(axes[0], axes[1], offset)))
    }

    /// Returns a view with any shape and strides over the elements of this tensor in row-major order, counted from
    /// `offset` on (PyTorch's `as_strided` of a contiguous tensor). Elements may come several times, and strides may be
    /// negative. A tensor that is not contiguous is copied.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::arange(0u32, 8, &device)?;
    /// let windows = x.as_strided((3, 4), &[2, 1], 0)?;
    /// assert_eq!(windows.to_vec::<u32>()?, [0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are not as many strides as axes, or the view leaves the tensor;
    /// [`Error::SizeOverflow`].
    pub fn as_strided(&self, shape: impl Into<Shape>, strides: &[isize], offset: usize) -> Result<Tensor> {
        const OP: &str = "as_strided";
        let dense = self.contiguous().map_err(Error::named(OP))?;
        let view = dense.view.layout().strided(shape.into(), strides, offset, OP)?;
        Ok(dense.with_layout(view))
    }

    /// Returns the view repeated along new outer axes, and along axes of length 1.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1u32], [2]], &device)?;
    /// assert_eq!(x.broadcast_to((2, 3))?.to_vec::<u32>()?, [1, 1, 1, 2, 2, 2]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::SizeOverflow`].
    pub fn broadcast_to(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        if shape.elem_count().is_none() {
            return Err(Error::SizeOverflow { op: "broadcast_to", shape, limit: usize::MAX as u64 });
        }
        Ok(self.with_layout(self.view.layout().broadcast_to(&shape, "broadcast_to")?))
    }

    /// Returns the view without an axis of length 1. An axis of another length stays, as in PyTorch.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::zeros((2, 1, 3), DType::F32, &device)?;
    /// assert_eq!(x.squeeze(1)?.dims(), [2, 3]);
    /// assert_eq!(x.squeeze(0)?.dims(), [2, 1, 3]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`].
    pub fn squeeze(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        let axis = axis.into().resolve(self.shape(), "squeeze")?;
        if self.shape()[axis] != 1 {
            return Ok(self.clone());
        }
        Ok(self.with_layout(self.view.layout().without(axis)))
    }

    /// Returns the view with a new axis of length 1 before `axis`; `-1` puts it last.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::zeros((2, 3), DType::F32, &device)?;
    /// assert_eq!(x.unsqueeze(1)?.dims(), [2, 1, 3]);
    /// assert_eq!(x.unsqueeze(-1)?.dims(), [2, 3, 1]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`].
    pub fn unsqueeze(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        let axis = axis.into().resolve_position(self.shape(), "unsqueeze")?;
        let mut layout = self.view.layout().clone();
        layout.strides.insert(axis, 0);
        layout.shape = self.dims()[..axis].iter().chain(&[1]).chain(&self.dims()[axis..]).copied().collect();
        Ok(self.with_layout(layout))
    }

    /// Returns the tensor in row-major order without gaps: itself if it is so already, else a copy.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1u32, 2], [3, 4]], &device)?.t()?;
    /// assert!(!x.is_contiguous() && x.contiguous()?.is_contiguous());
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::SizeOverflow`].
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.copied() }
    }
}
