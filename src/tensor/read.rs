//! Elements back on the host, on another device, or in other memory.

use super::Tensor;
use crate::backend::info::MemoryKind;
use crate::base::dtype::Element;
use crate::base::error::{Error, Result};
use crate::device::Device;

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
    /// [`Error::ElementType`] where `T` is not the tensor's dtype; whatever went wrong in the computation.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.check_element::<T>("to_vec")?;
        self.read(T::from_bytes).map_err(Error::named("to_vec"))
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
        let Some((buffer, source)) = self.view.readable()? else { return Ok(Vec::new()) };
        self.view.device.runtime().read_async(&buffer, &source, T::from_bytes).await
    }

    /// The only element of a tensor. Blocks until it is computed.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where there is not just one; else as [`to_vec`](Self::to_vec).
    pub fn to_scalar<T: Element>(&self) -> Result<T> {
        const OP: &str = "to_scalar";
        if self.elem_count() != 1 {
            let message = format!(
                "takes a tensor of one element, but shape {} has {}; pick one with `narrow`, or read all with `to_vec`",
                self.shape(),
                self.elem_count()
            );
            return Err(Error::InvalidArgument { op: OP, message });
        }
        let elements = self.to_vec::<T>().map_err(Error::named(OP))?;
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
        if self.view.device == *device {
            return Ok(self.clone());
        }
        Tensor::from_raw_buffer(&self.to_bytes()?, self.view.dtype, self.shape(), device)
    }

    /// The bytes of the elements in row-major order. Blocks until they are computed.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>> {
        self.read(<[u8]>::to_vec)
    }

    /// The tensor in memory of another kind; itself if it is there already.
    ///
    /// ```
    /// # use marquetry::{Device, MemoryKind, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([1f32, 2.0], &device)?.to_memory(MemoryKind::Shared)?;
    /// assert_eq!(x.memory_kind(), MemoryKind::Shared);
    /// assert_eq!(x.to_vec::<f32>()?, [1.0, 2.0]); // read where it is, if the device is `host_visible`
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Unsupported`] where the device has no such memory.
    pub fn to_memory(&self, memory: MemoryKind) -> Result<Tensor> {
        if self.memory_kind() == memory {
            Ok(self.clone())
        } else {
            self.view.copied_within(memory, "to_memory").map(Tensor::from)
        }
    }

    fn check_element<T: Element>(&self, op: &'static str) -> Result<()> {
        if T::DTYPE == self.view.dtype {
            return Ok(());
        }
        Err(Error::ElementType { op, asked: T::DTYPE, dtype: self.view.dtype })
    }

    fn read<R: Send + Default + 'static>(&self, convert: impl FnOnce(&[u8]) -> R + Send + 'static) -> Result<R> {
        let Some((buffer, source)) = self.view.readable()? else { return Ok(R::default()) };
        self.view.device.runtime().read(&buffer, &source, convert)
    }
}
