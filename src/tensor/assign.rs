//! Tensors with a part replaced.

use super::Tensor;
#[cfg(doc)]
use crate::base::error::Error;
use crate::base::error::Result;
use crate::base::indices::Indices;
use crate::base::layout::Layout;
use crate::lazy::Transfer;

impl Tensor {
    /// Returns the tensor with a part of it replaced by `src`, which is broadcast to the part's shape. The part is
    /// named as in [`i`](Self::i).
    ///
    /// The method takes the tensor by value. If no clone, no view and no operation that has not run yet holds its
    /// elements, they are replaced in place, otherwise in a copy. So a cache that is filled part by part is not copied:
    /// `cache = cache.slice_assign(.., &new)?`.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::zeros((2, 4), DType::F32, &device)?;
    /// let x = x.slice_assign((.., 1..3), &Tensor::new([[1f32, 2.0]], &device)?)?;
    /// assert_eq!(x.to_vec2::<f32>()?, [[0.0, 1.0, 2.0, 0.0], [0.0, 1.0, 2.0, 0.0]]);
    /// let x = x.slice_assign(-1, &Tensor::new(7f32, &device)?)?;
    /// assert_eq!(x.to_vec2::<f32>()?, [[0.0, 1.0, 2.0, 0.0], [7.0; 4]]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`i`](Self::i); [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::DeviceMismatch`];
    /// [`Error::OutOfMemory`] for the copy.
    pub fn slice_assign(self, indices: impl Into<Indices>, src: &Tensor) -> Result<Tensor> {
        const OP: &str = "slice_assign";
        self.check_same_device(src, OP)?;
        self.check_same_dtype(src, OP)?;
        let indices = indices.into();
        let part = indices.part_of(self.layout(), OP)?;
        let src = src.with_layout(src.layout().broadcast_to(&part.shape, OP)?);
        self.assign(|layout| indices.part_of(layout, OP), &src, OP)
    }

    /// The tensor with the elements of a part of its layout replaced by those of `src`, which has the part's shape.
    /// No two elements of the part have one place.
    pub(crate) fn assign(
        self,
        part: impl Fn(&Layout) -> Result<Layout>,
        src: &Tensor,
        op: &'static str,
    ) -> Result<Tensor> {
        if src.elem_count() == 0 {
            return Ok(self);
        }
        // Before it is asked who else holds the elements: `src` may be made of them.
        src.realize()?;
        let this = self.held_alone(op)?;
        this.write_part(&part(this.layout())?, src)?;
        Ok(this)
    }

    /// The tensor if nobody else holds its elements, else a copy, which may be written to.
    pub(crate) fn held_alone(self, op: &'static str) -> Result<Tensor> {
        if self.view.holds_elements_alone()? {
            return Ok(self);
        }
        self.view.copied_within(self.memory_kind(), op).map(Tensor::from)
    }

    /// Writes elements to a part of a tensor that nobody else holds.
    pub(crate) fn write_part(&self, part: &Layout, src: &Tensor) -> Result<()> {
        let transfer = Transfer::new(src.layout(), part, self.view.dtype.size_in_bytes());
        transfer.run(src.buffer()?, self.buffer()?, self.view.device())
    }
}
