//! Elements written to the places that an index tensor selects.

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::collapse;
use crate::base::shape::{Axis, Shape};
use crate::base::shape::{checked_elements, checked_parts};
use crate::engine::launch::Launch;
use crate::kernels::parameters::Strided;
use crate::kernels::scatter::{Parameters, Scatter, ScatterOp, WORKGROUP};
use crate::tensor::Tensor;

impl Tensor {
    /// Returns the tensor with elements of `src` at the places along `axis` that `indexes` selects. With three axes and
    /// axis 1, `y[i, indexes[i, j, k], k] = src[i, j, k]`. `indexes` holds integers. If several elements go to one
    /// place, the last one in row-major order stays. An index out of range does nothing.
    ///
    /// As in PyTorch, `indexes` may be shorter than `src`, and shorter than this tensor along the other axes. The
    /// tensor is taken by value as in [`slice_assign`](Self::slice_assign): if nobody else holds its elements, they are
    /// replaced in place.
    ///
    /// ```
    /// # use marquetry::{Device, DType, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::zeros((2, 3), DType::F32, &device)?;
    /// let indexes = Tensor::new([[2u32, 0], [1, 1]], &device)?;
    /// let src = Tensor::new([[1f32, 2.0], [3.0, 4.0]], &device)?;
    /// assert_eq!(x.scatter(&indexes, &src, 1)?.to_vec::<f32>()?, [2.0, 0.0, 1.0, 0.0, 4.0, 0.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`], [`Error::DTypeMismatch`], [`Error::DeviceMismatch`]; [`Error::ShapeMismatch`] if
    /// `indexes` has another number of axes than the others, or is longer; [`Error::UnsupportedDType`] if it holds
    /// floats; [`Error::Unsupported`] if the device has no atomic operations; [`Error::SizeOverflow`] if 64-bit
    /// elements and their links are too many to be counted; [`Error::OutOfMemory`].
    pub fn scatter(self, indexes: &Tensor, src: &Tensor, axis: impl Into<Axis>) -> Result<Tensor> {
        const OP: &str = "scatter";
        let (src, axis) = self.check_scatter(indexes, src, axis.into(), OP)?;
        if indexes.elem_count() == 0 || self.elem_count() == 0 {
            return Ok(self);
        }
        // While they are pending, `src` and `indexes` may hold these elements, which would then be copied.
        src.realize()?;
        indexes.realize()?;
        let target = self.held_in_order(OP)?;
        // A single slice has one element for each place. So the place need not be told which is the last.
        let several = indexes.dims()[axis] > 1;
        let op = if several { ScatterOp::Replace } else { ScatterOp::Assign };
        let marks = several.then(|| Tensor::zeros(target.shape(), DType::U32, target.device())).transpose()?;
        let (src, marks) = (Some(&src), marks.as_ref());
        Scattering { op, target: &target, indexes, src, marks, first_link: None, axis }.run(OP)?;
        Ok(target)
    }

    /// Returns the tensor with elements of `src` added at the places along `axis` that `indexes` selects, as in
    /// [`scatter`](Self::scatter). If several elements go to one place, all are added. Floats are added in any order,
    /// so that the last bits may differ from one run to the next. `f16` and `bf16` are added in `f32` and rounded once.
    /// `f64` is added one element after the other, which takes long if very many go to one place.
    ///
    /// ```
    /// # use marquetry::{Device, DType, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::zeros(3, DType::F32, &device)?;
    /// let indexes = Tensor::new([0u32, 2, 2], &device)?;
    /// let y = x.scatter_add(&indexes, &Tensor::new([1f32, 2.0, 3.0], &device)?, 0)?;
    /// assert_eq!(y.to_vec::<f32>()?, [1.0, 0.0, 5.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`scatter`](Self::scatter); [`Error::Unsupported`] for `f64` if the device does not compute in it.
    pub fn scatter_add(self, indexes: &Tensor, src: &Tensor, axis: impl Into<Axis>) -> Result<Tensor> {
        const OP: &str = "scatter_add";
        let (src, axis) = self.check_scatter(indexes, src, axis.into(), OP)?;
        self.combined(ScatterOp::Add, indexes, &src, axis, OP)
    }

    /// Returns the tensor with the larger of its elements and the elements of `src` at the places along `axis` that
    /// `indexes` selects, as in [`scatter`](Self::scatter). If several elements go to one place, the largest of them
    /// all stays, NaN if one is NaN (PyTorch's `scatter_reduce` with `amax`). For `i64` and `f64` it takes long if very
    /// many go to one place.
    ///
    /// ```
    /// # use marquetry::{Device, DType, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::zeros(3, DType::F32, &device)?;
    /// let indexes = Tensor::new([0u32, 2, 2], &device)?;
    /// let y = x.scatter_max(&indexes, &Tensor::new([-1f32, 2.0, 3.0], &device)?, 0)?;
    /// assert_eq!(y.to_vec::<f32>()?, [0.0, 0.0, 3.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`scatter`](Self::scatter); [`Error::Unsupported`] for `f64` and `i64` if the device does not compute in
    /// them.
    pub fn scatter_max(self, indexes: &Tensor, src: &Tensor, axis: impl Into<Axis>) -> Result<Tensor> {
        const OP: &str = "scatter_max";
        let (src, axis) = self.check_scatter(indexes, src, axis.into(), OP)?;
        self.combined(ScatterOp::Max, indexes, &src, axis, OP)
    }

    /// Returns the tensor with the slices of `src` along `axis` added to the slices that `indexes`, a vector of
    /// integers, selects. Otherwise as [`scatter_add`](Self::scatter_add).
    ///
    /// ```
    /// # use marquetry::{Device, DType, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::ones((3, 2), DType::F32, &device)?;
    /// let rows = Tensor::new([2u32, 0], &device)?;
    /// let y = x.index_add(&rows, &Tensor::new([[1f32, 2.0], [3.0, 4.0]], &device)?, 0)?;
    /// assert_eq!(y.to_vec::<f32>()?, [4.0, 5.0, 1.0, 1.0, 2.0, 3.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`scatter_add`](Self::scatter_add); [`Error::RankMismatch`] if `indexes` is not a vector;
    /// [`Error::ShapeMismatch`] if `src` does not have a slice for each index, with the lengths of this tensor's
    /// slices.
    pub fn index_add(self, indexes: &Tensor, src: &Tensor, axis: impl Into<Axis>) -> Result<Tensor> {
        const OP: &str = "index_add";
        let axis = axis.into().resolve(self.shape(), OP)?;
        self.check_indexes(indexes, OP)?;
        let indexes = indexes.spread_along(axis, self.shape(), OP)?;
        if src.shape() != indexes.shape() {
            let hint = "the source must have one slice for each index, of the shape of the tensor's slices";
            return Err(Error::ShapeMismatch { op: OP, lhs: self.shape().clone(), rhs: src.shape().clone(), hint });
        }
        let (src, axis) = self.check_scatter(&indexes, src, axis.into(), OP)?;
        self.combined(ScatterOp::Add, &indexes, &src, axis, OP)
    }

    /// Checks the operands. Returns the part of the source that has indexes, and the axis as a number.
    fn check_scatter(&self, indexes: &Tensor, src: &Tensor, axis: Axis, op: &'static str) -> Result<(Tensor, usize)> {
        let axis = axis.resolve(self.shape(), op)?;
        self.check_indexes(indexes, op)?;
        self.check_same_device(src, op)?;
        self.check_same_dtype(src, op)?;
        let hint =
            "the indexes must have as many axes as the tensor, and only along the axis itself may they be longer";
        self.covering(indexes.shape(), Some(axis), op, hint)?;
        let hint = "the indexes must have as many axes as the source, none longer than the source's";
        Ok((src.covering(indexes.shape(), None, op, hint)?, axis))
    }

    /// Returns the tensor in row-major order, held by nobody else.
    fn held_in_order(self, op: &'static str) -> Result<Tensor> {
        if self.is_contiguous() { self.held_alone(op) } else { self.copied().map_err(Error::named(op)) }
    }

    /// Combines elements of the source with those that the indexes name.
    fn combined(
        self,
        op: ScatterOp,
        indexes: &Tensor,
        src: &Tensor,
        axis: usize,
        name: &'static str,
    ) -> Result<Tensor> {
        if indexes.elem_count() == 0 || self.elem_count() == 0 {
            return Ok(self);
        }
        // While they are pending, `src` and `indexes` may hold these elements, which would then be copied.
        src.realize()?;
        indexes.realize()?;
        let dtype = self.dtype();
        if op.follows_chains(dtype) {
            return self.combined_along_chains(op, indexes, src, axis, name);
        }
        let wide =
            if dtype.widened() == dtype { self } else { self.to_dtype(dtype.widened()).map_err(Error::named(name))? };
        // Kernels count the words of 64-bit sums from the start of the buffer on.
        checked_parts(wide.shape(), dtype, name)?;
        let far = wide.buffer()?.bytes() / 4 > u64::from(u32::MAX) && dtype.parts() > 1;
        let target = if far { wide.copied().map_err(Error::named(name))? } else { wide.held_alone(name)? };
        let src = Some(src);
        Scattering { op, target: &target, indexes, src, marks: None, first_link: None, axis }.run(name)?;
        target.to_dtype(dtype)
    }

    /// Combines elements along chains, which link the indexes that go to one place.
    fn combined_along_chains(
        self,
        op: ScatterOp,
        indexes: &Tensor,
        src: &Tensor,
        axis: usize,
        name: &'static str,
    ) -> Result<Tensor> {
        let places = self.elem_count();
        let links = Shape::from(places.saturating_add(indexes.elem_count()));
        checked_elements(&links, name)?;
        let target = self.held_in_order(name)?;
        let links = Tensor::zeros(links, DType::U32, target.device())?;
        let marks = links.narrow(0, 0, places)?.reshape(target.shape().clone())?;
        let (src, marks, first_link) = (Some(src), Some(&marks), Some(places));
        Scattering { op, target: &target, indexes, src, marks, first_link, axis }.run(name)?;
        Ok(target)
    }
}

/// A scatter at work. `src` is missing while places are marked, and `marks` is missing if elements are combined at
/// once.
struct Scattering<'a> {
    op: ScatterOp,
    target: &'a Tensor,
    indexes: &'a Tensor,
    src: Option<&'a Tensor>,
    marks: Option<&'a Tensor>,
    /// Where the links begin in the buffer of the marks, if chains are followed.
    first_link: Option<usize>,
    axis: usize,
}

impl Scattering<'_> {
    /// Scatters. Before elements are replaced, a launch marks which index comes last. Before chains are followed, a
    /// launch links them.
    fn run(&self, op: &'static str) -> Result<()> {
        let Some((kernel, parameters)) = self.plan(op)? else { return self.run_along_another_axis(op) };
        if let Some(target) = self.marks {
            let mark = if self.first_link.is_some() { ScatterOp::Link } else { ScatterOp::Mark };
            Scattering { op: mark, target, src: None, marks: None, ..*self }.run(op)?;
        }
        let tensors = [Some(self.indexes), self.src, self.marks, Some(self.target)].into_iter().flatten();
        let buffers: Vec<_> = tensors.map(Tensor::buffer).collect::<Result<_>>()?;
        let groups = self.indexes.elem_count().div_ceil(WORKGROUP as usize);
        self.target.device().runtime().run(Launch { kernel, buffers: &buffers, parameters, groups })
    }

    /// Returns the kernel and its parameters; `None` if there are too many axes for the parameters.
    fn plan(&self, op: &'static str) -> Result<Option<(Scatter, Parameters)>> {
        let Scattering { target, indexes, src, marks, axis, .. } = *self;
        let mut stay = target.layout().strides.clone();
        stay[axis] = 0;
        let strided = |tensor: &Tensor, strides| Strided { offset: tensor.layout().offset, strides };
        let (lengths, y, index, x) = match src {
            Some(src) => {
                let (lengths, [y, index, x]) = collapse(indexes.shape(), [&stay, indexes.strides(), src.strides()]);
                (lengths, y, index, Some(strided(src, x)))
            }
            None => {
                let (lengths, [y, index]) = collapse(indexes.shape(), [&stay, indexes.strides()]);
                (lengths, y, index, None)
            }
        };
        let dtype = src.map_or(DType::U32, Tensor::dtype);
        let float_atomics = self.op.adds_floats(dtype) && target.device().info().features.float_atomics;
        let kernel = Scatter { op: self.op, dtype, index: indexes.dtype(), rank: lengths.len(), float_atomics };
        if !target.device().takes(&kernel) {
            return Ok(None);
        }
        let parameters = Parameters {
            count: checked_elements(indexes.shape(), op)?,
            length: target.dims()[axis],
            stride: target.strides()[axis],
            lengths,
            y: strided(target, y),
            index: strided(indexes, index),
            x,
            marks: marks.map(|marks| marks.layout().offset),
            first_link: self.first_link,
        };
        Ok(Some((kernel, parameters)))
    }

    /// Runs a launch for each place along another axis than the indexed one, so that a launch has one axis less.
    fn run_along_another_axis(&self, op: &'static str) -> Result<()> {
        let lengths = self.indexes.dims();
        let other = (0..lengths.len()).find(|&i| i != self.axis && lengths[i] > 1).unwrap_or_default();
        for place in 0..lengths[other] {
            let at = |tensor: &Tensor| tensor.narrow(other, place, 1);
            let (target, indexes) = (&at(self.target)?, &at(self.indexes)?);
            let (src, marks) = (self.src.map(at).transpose()?, self.marks.map(at).transpose()?);
            let part = Scattering { target, indexes, src: src.as_ref(), marks: marks.as_ref(), ..*self };
            part.run(op)?;
        }
        Ok(())
    }
}
