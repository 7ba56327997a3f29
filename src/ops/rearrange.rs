//! Tensors cut into parts, repeated, rolled and flipped.

use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::base::shape::{Axes, Axis, Dims, Shape};
use crate::lazy::allocate;
use crate::tensor::Tensor;

/// An axis is cut into fewer parts than these, as each part is a tensor of its own.
const MOST_PARTS: usize = 1 << 20;

/// How [`Tensor::split`] cuts an axis. A number is the length of every part except for the last, which may be shorter.
/// An array, a slice or a vector has the length of each part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sections {
    /// Parts of one length.
    Of(usize),
    /// The lengths of all parts.
    Sizes(Vec<usize>),
}

impl From<usize> for Sections {
    fn from(size: usize) -> Self {
        Sections::Of(size)
    }
}

impl From<&[usize]> for Sections {
    fn from(sizes: &[usize]) -> Self {
        Sections::Sizes(sizes.to_vec())
    }
}

impl<const N: usize> From<[usize; N]> for Sections {
    fn from(sizes: [usize; N]) -> Self {
        Sections::Sizes(sizes.to_vec())
    }
}

impl From<Vec<usize>> for Sections {
    fn from(sizes: Vec<usize>) -> Self {
        Sections::Sizes(sizes)
    }
}

impl Tensor {
    /// Returns views of the parts of an axis, by their length or lengths: see [`Sections`].
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::arange(0u32, 5, &device)?;
    /// let [a, b, c] = &x.split(2, 0)?[..] else { panic!() };
    /// assert_eq!((a.dims(), b.to_vec::<u32>()?, c.to_vec::<u32>()?), (&[2][..], vec![2, 3], vec![4]));
    /// assert_eq!(x.split([1, 4], 0)?[1].to_vec::<u32>()?, [1, 2, 3, 4]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] for parts of length 0 of a longer axis, for lengths that
    /// do not add up to the length of the axis, and for 2^20 or more parts of one length.
    pub fn split(&self, sections: impl Into<Sections>, axis: impl Into<Axis>) -> Result<Vec<Tensor>> {
        self.cut(sections.into(), axis.into(), "split")
    }

    /// Returns views of at most `chunks` parts of an axis. All parts have one length, except for the last one, which
    /// may be shorter. As in PyTorch, there may be fewer parts; an empty axis is one part.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let parts = Tensor::arange(0u32, 7, &device)?.chunk(3, 0)?;
    /// assert_eq!(parts.iter().map(Tensor::elem_count).collect::<Vec<_>>(), [3, 3, 1]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] for 0 parts, and for 2^20 or more.
    pub fn chunk(&self, chunks: usize, axis: impl Into<Axis>) -> Result<Vec<Tensor>> {
        const OP: &str = "chunk";
        let axis = axis.into();
        if chunks == 0 {
            return Err(Error::InvalidArgument {
                op: OP,
                message: "an axis cannot be cut into 0 parts; give 1 or more".into(),
            });
        }
        let length = self.dims()[axis.resolve(self.shape(), OP)?];
        self.cut(Sections::Of(length.div_ceil(chunks)), axis, OP)
    }

    fn cut(&self, sections: Sections, axis: Axis, op: &'static str) -> Result<Vec<Tensor>> {
        let axis = axis.resolve(self.shape(), op)?;
        let length = self.dims()[axis];
        let sizes = match sections {
            Sections::Of(size) if size >= length => vec![length],
            Sections::Of(0) => {
                let message = format!(
                    "axis {axis} of shape {} cannot be cut into parts of length 0; give 1 or more",
                    self.shape()
                );
                return Err(Error::InvalidArgument { op, message });
            }
            Sections::Of(size) if length / size >= MOST_PARTS => {
                let message = format!(
                    "parts of length {size} of axis {axis} of shape {} are too many; give a larger length",
                    self.shape()
                );
                return Err(Error::InvalidArgument { op, message });
            }
            Sections::Of(size) => {
                let whole = std::iter::repeat_n(size, length / size);
                whole.chain(Some(length % size).filter(|&rest| rest > 0)).collect()
            }
            Sections::Sizes(sizes) => sizes,
        };
        let total = sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size));
        if total != Some(length) {
            let message = format!(
                "parts of lengths {sizes:?} do not make up axis {axis} of shape {}; they must add up to {length}",
                self.shape()
            );
            return Err(Error::InvalidArgument { op, message });
        }
        let mut start = 0;
        let part = |&size: &usize| {
            let part = self.with_layout(self.layout().sliced(axis, start, size, 1));
            start += size;
            part
        };
        Ok(sizes.iter().map(part).collect())
    }

    /// Returns the tensor repeated along each axis. If there are more repeats than axes, axes are added before the
    /// first one.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([1u32, 2], &device)?;
    /// assert_eq!(x.repeat(2)?.to_vec::<u32>()?, [1, 2, 1, 2]);
    /// assert_eq!(x.repeat((3, 1))?.dims(), [3, 2]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for fewer repeats than axes; [`Error::SizeOverflow`], [`Error::OutOfMemory`].
    pub fn repeat(&self, repeats: impl Into<Shape>) -> Result<Tensor> {
        let repeats = repeats.into();
        if repeats.rank() < self.rank() {
            let message = format!(
                "{} counts for shape {}, which has {} axes; give one for each axis, and more for axes before them",
                repeats.rank(),
                self.shape(),
                self.rank()
            );
            return Err(Error::InvalidArgument { op: "repeat", message });
        }
        self.repeated(&repeats, "repeat")
    }

    /// Returns the repeated tensor as [`repeat`](Self::repeat) does, but as in numpy: fewer repeats than axes are for
    /// the last axes.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1u32, 2], [3, 4]], &device)?;
    /// assert_eq!(x.tile(2)?.to_vec::<u32>()?, [1, 2, 1, 2, 3, 4, 3, 4]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::SizeOverflow`], [`Error::OutOfMemory`].
    pub fn tile(&self, repeats: impl Into<Shape>) -> Result<Tensor> {
        let repeats = repeats.into();
        let ones = std::iter::repeat_n(1, self.rank().saturating_sub(repeats.rank()));
        self.repeated(&ones.chain(repeats.iter().copied()).collect(), "tile")
    }

    /// Repeats the tensor. `repeats` has no fewer axes than the tensor.
    fn repeated(&self, repeats: &Shape, op: &'static str) -> Result<Tensor> {
        let added = repeats.rank() - self.rank();
        let lengths = std::iter::repeat_n(1, added).chain(self.dims().iter().copied());
        let strides = std::iter::repeat_n(0, added).chain(self.strides().iter().copied());
        let (mut view, mut view_strides, mut result) = (Dims::new(), Dims::new(), Dims::new());
        for ((length, stride), &times) in lengths.zip(strides).zip(repeats.iter()) {
            // A repeated axis becomes two: one with stride 0, and the axis itself.
            if times != 1 {
                view.push(times);
                view_strides.push(0);
            }
            if times == 1 || length != 1 {
                view.push(length);
                view_strides.push(stride);
            }
            let overflow = || Error::SizeOverflow { op, shape: self.shape().clone(), limit: usize::MAX as u64 };
            result.push(length.checked_mul(times).ok_or_else(overflow)?);
        }
        let (view, result) = (Shape::from(view), Shape::from(result));
        if result.elem_count().is_none() {
            return Err(Error::SizeOverflow { op, shape: result, limit: usize::MAX as u64 });
        }
        let repeated = self.with_layout(Layout { shape: view, strides: view_strides, offset: self.layout().offset });
        if *repeated.shape() == result { Ok(repeated) } else { repeated.reshape(result).map_err(Error::named(op)) }
    }

    /// Returns the elements moved along axes, each axis by its shift. A negative shift moves them backwards. Elements
    /// that leave an axis at one end come in at the other.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1u32, 2, 3], [4, 5, 6]], &device)?;
    /// assert_eq!(x.roll(&[1], -1)?.to_vec::<u32>()?, [3, 1, 2, 6, 4, 5]);
    /// assert_eq!(x.roll(&[1, -1], [0, 1])?.to_vec::<u32>()?, [5, 6, 4, 2, 3, 1]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`], [`Error::DuplicateAxis`]; [`Error::InvalidArgument`] if there is not one shift per
    /// axis; [`Error::OutOfMemory`].
    pub fn roll(&self, shifts: &[isize], axes: impl Into<Axes>) -> Result<Tensor> {
        const OP: &str = "roll";
        let axes = axes.into().resolve(self.shape(), OP)?;
        if shifts.len() != axes.len() {
            let message = format!("{} shifts for {} axes; give one for each axis", shifts.len(), axes.len());
            return Err(Error::InvalidArgument { op: OP, message });
        }
        let output = allocate(self.shape(), self.dtype(), self.device(), OP)?;
        let output = Tensor::from_buffer(output, self.shape().clone(), self.dtype(), self.device());
        if self.elem_count() == 0 {
            return Ok(output);
        }
        // Each axis that moves cuts the tensor in two. Elements that stay together are copied together.
        let mut parts = vec![(self.layout().clone(), output.layout().clone())];
        for (&axis, &shift) in axes.iter().zip(shifts) {
            let length = self.dims()[axis];
            let shift = shift.rem_euclid(length as isize) as usize;
            if shift == 0 {
                continue;
            }
            let rest = length - shift;
            let moved = |(from, to): &(Layout, Layout)| {
                let forwards = (from.sliced(axis, 0, rest, 1), to.sliced(axis, shift, rest, 1));
                let around = (from.sliced(axis, rest, shift, 1), to.sliced(axis, 0, shift, 1));
                [forwards, around]
            };
            parts = parts.iter().flat_map(moved).collect();
        }
        for (from, to) in &parts {
            output.write_part(to, &self.with_layout(from.clone()))?;
        }
        Ok(output)
    }

    /// Returns the view with the elements along `axes` in reverse order.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1u32, 2, 3], [4, 5, 6]], &device)?;
    /// assert_eq!(x.flip(1)?.to_vec::<u32>()?, [3, 2, 1, 6, 5, 4]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`], [`Error::DuplicateAxis`].
    pub fn flip(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        let axes = axes.into().resolve(self.shape(), "flip")?;
        let flipped = |layout: Layout, &axis: &usize| {
            let length = layout.shape[axis];
            layout.sliced(axis, length.saturating_sub(1), length, -1)
        };
        Ok(self.with_layout(axes.iter().fold(self.layout().clone(), flipped)))
    }
}
