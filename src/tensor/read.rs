//! Elements back on the host, or on another device.

use super::Tensor;
use crate::device::Device;
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::memory::Buffer;
use std::sync::Arc;

impl Tensor {
    /// The elements in row-major order. Blocks until they are computed.
    ///
    /// In a browser, where nothing may block, use [`to_vec_async`](Self::to_vec_async).
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1u8, 2], [3, 4]], &device)?;
    /// assert_eq!(x.t()?.to_vec::<u8>()?, [1, 3, 2, 4]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] where `T` is not the tensor's dtype; whatever went wrong in the computation.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.check_element::<T>("to_vec")?;
        self.read(bytemuck::pod_collect_to_vec)
    }

    /// The same without blocking.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([1f32, 2.0], &device)?;
    /// assert_eq!(pollster::block_on(x.to_vec_async::<f32>())?, [1.0, 2.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`to_vec`](Self::to_vec).
    pub async fn to_vec_async<T: Element>(&self) -> Result<Vec<T>> {
        self.check_element::<T>("to_vec_async")?;
        let Some((buffer, bytes)) = self.readable()? else { return Ok(Vec::new()) };
        self.device.runtime().read_async(&buffer, bytes, bytemuck::pod_collect_to_vec).await
    }

    /// The only element of a tensor. Blocks until it is computed.
    ///
    /// # Errors
    /// [`Error::ElementCount`] where there is not just one; else as [`to_vec`](Self::to_vec).
    pub fn to_scalar<T: Element>(&self) -> Result<T> {
        if self.elem_count() != 1 {
            return Err(Error::ElementCount { op: "to_scalar", shape: self.shape().clone(), elements: 1 });
        }
        let elements = self.to_vec::<T>()?;
        Ok(elements[0])
    }

    /// The tensor on another device, which may be of another backend. Blocks until the elements are computed; they
    /// travel through host memory.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([1f32, 2.0], &device)?;
    /// for info in Device::list() {
    ///     let there = x.to_device(&info.id().parse()?)?;
    ///     assert_eq!(there.to_vec::<f32>()?, [1.0, 2.0]);
    /// }
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// Whatever went wrong in the computation; [`Error::OutOfMemory`] on the other device.
    pub fn to_device(&self, device: &Device) -> Result<Tensor> {
        if self.device == *device {
            return Ok(self.clone());
        }
        let bytes = self.read(<[u8]>::to_vec)?;
        let buffer = device.runtime().upload(&bytes)?;
        Ok(Tensor::from_buffer(buffer, self.shape().clone(), self.dtype, device))
    }

    fn check_element<T: Element>(&self, op: &'static str) -> Result<()> {
        if T::DTYPE == self.dtype {
            return Ok(());
        }
        Err(Error::DTypeMismatch { op, lhs: T::DTYPE, rhs: self.dtype })
    }

    fn read<R: Send + Default + 'static>(&self, convert: impl FnOnce(&[u8]) -> R + Send + 'static) -> Result<R> {
        let Some((buffer, bytes)) = self.readable()? else { return Ok(R::default()) };
        self.device.runtime().read(&buffer, bytes, convert)
    }

    /// The buffer that starts with the elements in row-major order, and their size; `None` where there are none.
    fn readable(&self) -> Result<Option<(Arc<Buffer>, u64)>> {
        if self.elem_count() == 0 {
            return Ok(None);
        }
        let bytes = super::checked_elements(self.shape(), "read")? as u64 * self.dtype.size_in_bytes() as u64;
        Ok(Some((self.row_major_buffer()?, bytes)))
    }

    /// A buffer that starts with the elements in row-major order.
    pub(crate) fn row_major_buffer(&self) -> Result<Arc<Buffer>> {
        let in_place = self.is_contiguous() && self.layout.offset == 0;
        if in_place { self.buffer() } else { self.copied()?.buffer() }
    }
}
