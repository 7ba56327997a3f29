//! Elements selected by an index tensor.

use super::loaded::Loaded;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::{Layout, collapse};
use crate::base::shape::checked_elements;
use crate::base::shape::{Axis, Shape};
use crate::kernels::expr::Domain;
use crate::kernels::gather::{Gather, Parameters, WORKGROUP};
use crate::kernels::parameters::Strided;
use crate::lazy::PendingLaunch;
use crate::tensor::Tensor;

impl Tensor {
    /// Returns the slices along `axis` that `indexes`, a vector of integers, selects.
    ///
    /// The indexes are on the device, which cannot report errors. An index out of range, also a negative one, yields a
    /// slice of one value: NaN for floats, the smallest number for signed integers, the largest for unsigned integers,
    /// true for `bool`.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1f32, 2.0], [3.0, 4.0], [5.0, 6.0]], &device)?;
    /// let rows = Tensor::new([2u32, 0], &device)?;
    /// assert_eq!(x.index_select(&rows, 0)?.to_vec::<f32>()?, [5.0, 6.0, 1.0, 2.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`], [`Error::DeviceMismatch`]; [`Error::RankMismatch`] if `indexes` is not a vector;
    /// [`Error::UnsupportedDType`] if it does not hold integers; [`Error::InvalidArgument`] if it selects slices of an
    /// empty axis.
    pub fn index_select(&self, indexes: &Tensor, axis: impl Into<Axis>) -> Result<Tensor> {
        const OP: &str = "index_select";
        let axis = axis.into().resolve(self.shape(), OP)?;
        self.check_indexes(indexes, OP)?;
        self.pick(&indexes.spread_along(axis, self.shape(), OP)?, axis, OP)
    }

    /// Returns the rows of this table, a matrix, that `ids` selects. The result has the shape of `ids` and one more
    /// axis.
    ///
    /// Ids out of range yield NaN: see [`index_select`](Self::index_select).
    ///
    /// ```
    /// # use marquetry::{Device, DType, Tensor};
    /// # let device = Device::best()?;
    /// let table = Tensor::zeros((100, 8), DType::F32, &device)?;
    /// let ids = Tensor::new([[1u32, 2, 3], [4, 5, 6]], &device)?;
    /// assert_eq!(table.embedding(&ids)?.dims(), [2, 3, 8]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::RankMismatch`] if this is not a matrix; [`Error::DeviceMismatch`]; [`Error::UnsupportedDType`] if `ids`
    /// does not hold integers; [`Error::InvalidArgument`] if it selects rows of an empty table.
    pub fn embedding(&self, ids: &Tensor) -> Result<Tensor> {
        const OP: &str = "embedding";
        self.check_indexes(ids, OP)?;
        if self.rank() != 2 {
            return Err(Error::RankMismatch { op: OP, expected: "2 (the table)", shape: self.shape().clone() });
        }
        let shape: Shape = ids.dims().iter().copied().chain([self.dims()[1]]).collect();
        checked_elements(&shape, OP)?;
        self.pick(&ids.flatten_all()?.spread_along(0, self.shape(), OP)?, 0, OP)?.reshape(shape)
    }

    /// Returns the elements along `axis` that `indexes` selects one by one. With three axes and axis 1,
    /// `y[i, j, k] = x[i, indexes[i, j, k], k]`. `indexes` holds integers. As in PyTorch, it may be shorter than this
    /// tensor along the other axes.
    ///
    /// Indexes out of range yield NaN: see [`index_select`](Self::index_select).
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1f32, 2.0, 3.0], [4.0, 5.0, 6.0]], &device)?;
    /// let indexes = Tensor::new([[2u32, 2], [0, 1]], &device)?;
    /// assert_eq!(x.gather(&indexes, 1)?.to_vec::<f32>()?, [3.0, 3.0, 4.0, 5.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`], [`Error::DeviceMismatch`]; [`Error::ShapeMismatch`] if `indexes` has another number
    /// of axes, or is longer along another axis; [`Error::UnsupportedDType`] if it holds floats;
    /// [`Error::InvalidArgument`] if it selects elements of an empty axis.
    pub fn gather(&self, indexes: &Tensor, axis: impl Into<Axis>) -> Result<Tensor> {
        const OP: &str = "gather";
        let axis = axis.into().resolve(self.shape(), OP)?;
        self.check_indexes(indexes, OP)?;
        let hint =
            "the indexes must have as many axes as the tensor, and only along the axis itself may they be longer";
        self.covering(indexes.shape(), Some(axis), OP, hint)?.pick(indexes, axis, OP)
    }

    /// Returns elements as [`gather`](Self::gather) does, but broadcasts this tensor and `indexes` against each other
    /// along the other axes (numpy's `take_along_axis`). With the result of [`argmax_keepdim`](Self::argmax_keepdim),
    /// it returns the elements that were found.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1f32, 3.0, 2.0], [6.0, 5.0, 4.0]], &device)?;
    /// let largest = x.take_along_dim(&x.argmax_keepdim(1)?, 1)?;
    /// assert_eq!(largest.to_vec::<f32>()?, [3.0, 6.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`gather`](Self::gather); [`Error::ShapeMismatch`] if the shapes do not broadcast.
    pub fn take_along_dim(&self, indexes: &Tensor, axis: impl Into<Axis>) -> Result<Tensor> {
        const OP: &str = "take_along_dim";
        let axis = axis.into().resolve(self.shape(), OP)?;
        self.check_indexes(indexes, OP)?;
        if indexes.rank() != self.rank() {
            let (lhs, rhs) = (self.shape().clone(), indexes.shape().clone());
            return Err(Error::ShapeMismatch {
                op: OP,
                lhs,
                rhs,
                hint: "the indexes must have as many axes as the tensor",
            });
        }
        // The axis itself is not broadcast.
        let without = |shape: &Shape, length| shape.with_length(axis, length);
        let common = without(self.shape(), 1).broadcast_with(&without(indexes.shape(), 1), OP)?;
        let x = self.layout().broadcast_to(&without(&common, self.dims()[axis]), OP)?;
        let indexes = indexes
            .layout()
            .broadcast_to(&without(&common, indexes.dims()[axis]), OP)
            .map(|layout| indexes.with_layout(layout))?;
        self.with_layout(x).pick(&indexes, axis, OP)
    }

    /// Returns a row for each index, as a new last axis of `classes` elements: 1 at the place of the index, else 0, as
    /// `u8`. An index out of range gives a row of zeros.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([2u32, 0], &device)?;
    /// assert_eq!(x.one_hot(3)?.to_vec::<u8>()?, [0, 0, 1, 1, 0, 0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for floats; [`Error::SizeOverflow`].
    pub fn one_hot(&self, classes: usize) -> Result<Tensor> {
        const OP: &str = "one_hot";
        self.check_indexes(self, OP)?;
        let shape: Shape = self.dims().iter().copied().chain([classes]).collect();
        checked_elements(&shape, OP)?;
        checked_elements(&classes.into(), OP)?;
        // As `u32`, a negative index is far out of range, too. `i64` indexes may not fit `u32`.
        let wide = if self.dtype() == DType::I64 { DType::I64 } else { DType::U32 };
        let places = Tensor::arange(0u32, classes as u32, self.device())?.to_dtype(wide)?;
        self.to_dtype(wide)?.unsqueeze(-1)?.eq(&places)?.to_dtype(DType::U8)
    }

    /// Checks that a tensor of indexes is on this device and holds integers.
    pub(super) fn check_indexes(&self, indexes: &Tensor, op: &'static str) -> Result<()> {
        self.check_same_device(indexes, op)?;
        Domain::Indexes.check(indexes.dtype(), op)
    }

    /// Spreads a vector of indexes along an axis of a shape: the same indexes for all places along the other axes.
    pub(super) fn spread_along(&self, axis: usize, shape: &Shape, op: &'static str) -> Result<Tensor> {
        if self.rank() != 1 {
            return Err(Error::RankMismatch { op, expected: "1 (the indexes)", shape: self.shape().clone() });
        }
        let strides = (0..shape.rank()).map(|i| if i == axis { self.strides()[0] } else { 0 }).collect();
        let shape = shape.with_length(axis, self.elem_count());
        Ok(self.with_layout(Layout { shape, strides, offset: self.layout().offset }))
    }

    /// Returns the part of the tensor that begins at its start and has a shape; along the axis `but`, the whole axis.
    pub(super) fn covering(
        &self,
        shape: &Shape,
        but: Option<usize>,
        op: &'static str,
        hint: &'static str,
    ) -> Result<Tensor> {
        let fits = |(axis, (here, there)): (usize, (&usize, &usize))| Some(axis) == but || there <= here;
        if shape.rank() != self.rank() || !self.dims().iter().zip(shape.iter()).enumerate().all(fits) {
            return Err(Error::ShapeMismatch { op, lhs: self.shape().clone(), rhs: shape.clone(), hint });
        }
        let axes = (0..shape.rank()).filter(|&axis| Some(axis) != but);
        Ok(self.with_layout(axes.fold(self.layout().clone(), |part, axis| part.sliced(axis, 0, shape[axis], 1))))
    }

    /// Returns the elements at the indexes along an axis. Along the other axes, both have the same lengths.
    fn pick(&self, indexes: &Tensor, axis: usize, op: &'static str) -> Result<Tensor> {
        let elements = checked_elements(indexes.shape(), op)?;
        if elements > 0 && self.dims()[axis] == 0 {
            let message = format!(
                "{} indexes into axis {axis} of shape {}, which is empty and has no elements to pick",
                indexes.dims()[axis],
                self.shape()
            );
            return Err(Error::InvalidArgument { op, message });
        }
        let (shape, dtype, device) = (indexes.shape().clone(), self.dtype(), self.device().clone());
        if elements == 0 {
            return Tensor::zeros(shape, dtype, &device);
        }
        let along = |x: &Layout| {
            let mut stay = x.strides.clone();
            stay[axis] = 0;
            collapse(indexes.shape(), [&stay, indexes.strides()])
        };
        let kernel = |x: &Layout, prologue| {
            let rank = along(x).0.len();
            Gather { dtype, index: indexes.dtype(), rank, by_units: false, prologue, epilogue: None }
        };
        // 64-bit elements are only moved.
        let x = match dtype.parts() {
            1 => {
                Loaded::new(self, elements.div_ceil(self.elem_count()), 2, |prologue| kernel(self.layout(), prologue))?
            }
            _ => Loaded::computed(self)?,
        };
        let Loaded { view, prologue, parameters, buffers } = x;
        let kernel = kernel(view.layout(), prologue);
        if !device.takes(&kernel) {
            // In row-major order, the axes before the indexed axis merge into one, and so do those after it.
            return self.contiguous()?.pick(&indexes.contiguous()?, axis, op);
        }
        let (lengths, [x, index]) = along(view.layout());
        let parameters = Parameters {
            count: elements,
            length: self.dims()[axis].min(indexes_within(indexes.dtype())),
            stride: view.strides()[axis],
            lengths,
            x: Strided { offset: view.layout().offset, strides: x },
            index: Strided { offset: indexes.layout().offset, strides: index },
            prologue: parameters,
            epilogue: None,
        };
        let inputs = buffers.into_iter().chain([indexes.buffer()?.clone()]).collect();
        let groups = elements.div_ceil(4).div_ceil(WORKGROUP as usize);
        Tensor::from_launch(PendingLaunch { kernel, parameters, groups, inputs, shape, dtype, device, op })
    }
}

/// How many indexes a kernel tells from those out of range: negative ones are large as words.
fn indexes_within(dtype: DType) -> usize {
    if matches!(dtype, DType::I8 | DType::I32) { 1 << 31 } else { u32::MAX as usize }
}
