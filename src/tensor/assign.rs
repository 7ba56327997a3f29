//! Tensors with a part replaced.

use super::Tensor;
use crate::base::dtype::Element;
use crate::base::error::{Error, Result};
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

    /// Returns the tensor with these elements, in row-major order.
    ///
    /// The method takes the tensor by value, as [`slice_assign`](Self::slice_assign). If nobody else holds its
    /// elements, they are replaced in place, after all work that was recorded before. So inputs of a model need no new
    /// memory: `input = input.write_from(&frame)?`. Inside a capture, the elements are constants.
    ///
    /// As any upload it returns once the bytes are copied, not once that work is done. So there is no twin for
    /// asynchronous code.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::zeros((2, 2), DType::F32, &device)?;
    /// let x = x.write_from(&[1f32, 2.0, 3.0, 4.0])?;
    /// assert_eq!(x.to_vec2::<f32>()?, [[1.0, 2.0], [3.0, 4.0]]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ElementCount`], [`Error::ElementType`] if the elements are not as many as the tensor's, or of another
    /// type; [`Error::OutOfMemory`].
    pub fn write_from<T: Element>(self, data: &[T]) -> Result<Tensor> {
        const OP: &str = "write_from";
        self.check_element::<T>(OP)?;
        if self.elem_count() != data.len() {
            return Err(Error::ElementCount { op: OP, shape: self.shape().clone(), elements: data.len() });
        }
        let runtime = self.device().runtime();
        let begins_buffer = self.is_contiguous() && self.layout().offset == 0;
        if begins_buffer
            && self.view.is_computed()
            && runtime.capture_id().is_none()
            && self.view.holds_elements_alone()?
        {
            let bytes: &[u8] = bytemuck::cast_slice(data);
            runtime.write(self.buffer()?, &bytes).map_err(Error::named(OP))?;
            return Ok(self);
        }
        Tensor::from_slice_in(data, self.shape().clone(), self.memory_kind(), self.device()).map_err(Error::named(OP))
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
