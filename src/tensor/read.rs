//! Elements back on the host, on another device, or in other memory.

use super::Tensor;
use crate::backend::info::MemoryKind;
use crate::base::dtype::Element;
use crate::base::error::{Error, Result, check_may_block};
use crate::device::Device;
use crate::engine::pool::Buffer;
use crate::engine::transfer::Source;

impl Tensor {
    /// Returns the elements in row-major order. Blocks until they are computed.
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
    /// [`Error::ElementType`] if `T` is not the tensor's dtype; whatever went wrong in the computation.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        const OP: &str = "to_vec";
        self.check_element::<T>(OP)?;
        let Some((buffer, source)) = self.view.readable().map_err(Error::named(OP))? else { return Ok(Vec::new()) };
        let runtime = self.view.device().runtime();
        let mut elements = if source.is_long_row() { T::zeros(self.elem_count()) } else { Vec::new() };
        let read = match T::bytes_mut(&mut elements).filter(|bytes| !bytes.is_empty()) {
            Some(bytes) => runtime.read_into(&buffer, &source, bytes).map(|()| elements),
            None => runtime.read(&buffer, &source, T::from_bytes),
        };
        read.map_err(Error::named(OP))
    }

    /// Copies the elements, in row-major order, to memory that is there. Blocks until they are computed. Many elements
    /// arrive sooner than in a new vector, whose memory the system has to find first.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([1f32, 2.0, 3.0], &device)?;
    /// let mut row = [0f32; 3];
    /// x.read_into(&mut row)?;
    /// assert_eq!(row, [1.0, 2.0, 3.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ElementCount`] if there are not as many elements; else as [`to_vec`](Self::to_vec). After an error of
    /// the device, the memory may hold a part of the elements.
    pub fn read_into<T: Element>(&self, into: &mut [T]) -> Result<()> {
        const OP: &str = "read_into";
        let Some((buffer, source)) = self.readable_into(OP, into)? else { return Ok(()) };
        let runtime = self.view.device().runtime();
        let read = match T::bytes_mut(into) {
            Some(bytes) if source.is_row() => runtime.read_into(&buffer, &source, bytes),
            _ => runtime.read(&buffer, &source, T::from_bytes).map(|elements| into.copy_from_slice(&elements)),
        };
        read.map_err(Error::named(OP))
    }

    /// The same without blocking.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([1f32, 2.0, 3.0], &device)?;
    /// let mut row = [0f32; 3];
    /// pollster::block_on(x.read_into_async(&mut row))?;
    /// assert_eq!(row, [1.0, 2.0, 3.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`read_into`](Self::read_into).
    pub async fn read_into_async<T: Element>(&self, into: &mut [T]) -> Result<()> {
        const OP: &str = "read_into_async";
        let Some((buffer, source)) = self.readable_into(OP, into)? else { return Ok(()) };
        let runtime = self.view.device().runtime();
        let read = match T::bytes_mut(into) {
            Some(bytes) if source.is_row() => runtime.read_into_async(&buffer, &source, bytes).await,
            _ => {
                let read = runtime.read_async(&buffer, &source, T::from_bytes).await;
                read.map(|elements| into.copy_from_slice(&elements))
            }
        };
        read.map_err(Error::named(OP))
    }

    /// Returns what to read if the elements fit.
    fn readable_into<T: Element>(&self, op: &'static str, into: &[T]) -> Result<Option<(Buffer, Source)>> {
        self.check_element::<T>(op)?;
        if self.elem_count() != into.len() {
            return Err(Error::ElementCount { op, shape: self.shape().clone(), elements: into.len() });
        }
        self.view.readable().map_err(Error::named(op))
    }

    /// Returns the elements in row-major order without blocking.
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
        self.view
            .device()
            .runtime()
            .read_async(&buffer, &source, T::from_bytes)
            .await
            .map_err(Error::named("to_vec_async"))
    }

    /// Returns the elements of a vector. Blocks until they are computed.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::arange(1u32, 4, &device)?;
    /// assert_eq!(x.to_vec1::<u32>()?, [1, 2, 3]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::RankMismatch`] if there is not one axis; else as [`to_vec`](Self::to_vec).
    pub fn to_vec1<T: Element>(&self) -> Result<Vec<T>> {
        const OP: &str = "to_vec1";
        let [_] = self.lengths(OP, "1 (any for `to_vec`)")?;
        self.to_vec().map_err(Error::named(OP))
    }

    /// Returns the rows of a matrix. Blocks until they are computed.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::arange(1u32, 7, &device)?.reshape((2, 3))?;
    /// assert_eq!(x.to_vec2::<u32>()?, [[1, 2, 3], [4, 5, 6]]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::RankMismatch`] if there are not two axes; [`Error::InvalidArgument`] for millions of empty rows; else
    /// as [`to_vec`](Self::to_vec).
    pub fn to_vec2<T: Element>(&self) -> Result<Vec<Vec<T>>> {
        const OP: &str = "to_vec2";
        let [rows, columns] = self.lengths(OP, "2 (any for `to_vec`)")?;
        self.check_vectors(rows, OP)?;
        let mut elements = self.to_vec().map_err(Error::named(OP))?.into_iter();
        Ok((0..rows).map(|_| elements.by_ref().take(columns).collect()).collect())
    }

    /// Returns the matrices of a tensor of three axes, each as its rows. Blocks until they are computed.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::arange(1u32, 9, &device)?.reshape((2, 2, 2))?;
    /// assert_eq!(x.to_vec3::<u32>()?, [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::RankMismatch`] if there are not three axes; else as [`to_vec2`](Self::to_vec2).
    pub fn to_vec3<T: Element>(&self) -> Result<Vec<Vec<Vec<T>>>> {
        const OP: &str = "to_vec3";
        let [matrices, rows, columns] = self.lengths(OP, "3 (any for `to_vec`)")?;
        self.check_vectors(matrices.saturating_mul(rows.saturating_add(1)), OP)?;
        let mut elements = self.to_vec().map_err(Error::named(OP))?.into_iter();
        let mut matrix = || (0..rows).map(|_| elements.by_ref().take(columns).collect()).collect();
        Ok((0..matrices).map(|_| matrix()).collect())
    }

    /// Returns the only element of a tensor. Blocks until it is computed.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::arange(1u32, 5, &device)?;
    /// assert_eq!(x.sum_all()?.to_scalar::<u32>()?, 10);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is not just one; else as [`to_vec`](Self::to_vec).
    pub fn to_scalar<T: Element>(&self) -> Result<T> {
        const OP: &str = "to_scalar";
        self.check_scalar(OP)?;
        check_may_block(OP, "to_scalar_async")?;
        let elements = self.to_vec::<T>().map_err(Error::named(OP))?;
        Ok(elements[0])
    }

    /// The same without blocking.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// # pollster::block_on(async {
    /// let x = Tensor::arange(1u32, 5, &device)?;
    /// assert_eq!(x.sum_all()?.to_scalar_async::<u32>().await?, 10);
    /// # Ok::<(), marquetry::Error>(())
    /// # })?;
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`to_scalar`](Self::to_scalar).
    pub async fn to_scalar_async<T: Element>(&self) -> Result<T> {
        const OP: &str = "to_scalar_async";
        self.check_scalar(OP)?;
        let elements = self.to_vec_async::<T>().await.map_err(Error::named(OP))?;
        Ok(elements[0])
    }

    fn check_scalar(&self, op: &'static str) -> Result<()> {
        if self.elem_count() == 1 {
            return Ok(());
        }
        let message = format!(
            "takes a tensor of one element, but shape {} has {}; pick one with `i`, or read all with `to_vec`",
            self.shape(),
            self.elem_count()
        );
        Err(Error::InvalidArgument { op, message })
    }

    /// Returns the tensor on another device, which may be of another backend. Blocks until the elements are computed;
    /// they travel through host memory.
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
        if self.view.device() == device {
            return Ok(self.clone());
        }
        check_may_block("to_device", "to_device_async")?;
        let bytes = self.to_bytes().map_err(Error::named("to_device"))?;
        Tensor::from_raw_buffer(&bytes, self.view.dtype, self.shape(), device)
    }

    /// The same without blocking.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// # pollster::block_on(async {
    /// let x = Tensor::new([1f32, 2.0], &device)?;
    /// assert_eq!(x.to_device_async(&device).await?.to_vec_async::<f32>().await?, [1.0, 2.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// # })?;
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`to_device`](Self::to_device).
    pub async fn to_device_async(&self, device: &Device) -> Result<Tensor> {
        const OP: &str = "to_device_async";
        if self.view.device() == device {
            return Ok(self.clone());
        }
        let bytes = match self.view.readable().map_err(Error::named(OP))? {
            None => Vec::new(),
            Some((buffer, source)) => {
                let runtime = self.view.device().runtime();
                runtime.read_async(&buffer, &source, <[u8]>::to_vec).await.map_err(Error::named(OP))?
            }
        };
        Tensor::from_raw_buffer(&bytes, self.view.dtype, self.shape(), device)
    }

    /// The bytes of the elements in row-major order. Blocks until they are computed.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>> {
        self.read(<[u8]>::to_vec)
    }

    /// Returns the tensor in memory of another kind; itself if it is there already.
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
    /// [`Error::OutOfMemory`], [`Error::Unsupported`] if the device has no such memory.
    pub fn to_memory(&self, memory: MemoryKind) -> Result<Tensor> {
        if self.memory_kind() == memory {
            Ok(self.clone())
        } else {
            self.view.copied_within(memory, "to_memory").map(Tensor::from)
        }
    }

    /// Returns the lengths of as many axes as there must be.
    fn lengths<const N: usize>(&self, op: &'static str, expected: &'static str) -> Result<[usize; N]> {
        let mismatch = |_| Error::RankMismatch { op, expected, shape: self.shape().clone() };
        self.dims().try_into().map_err(mismatch)
    }

    /// Checks that so many vectors for the elements fit the memory of the host. A shape of no elements may have any
    /// number.
    fn check_vectors(&self, vectors: usize, op: &'static str) -> Result<()> {
        const MOST: usize = 1 << 24;
        if self.elem_count() > 0 || vectors <= MOST {
            return Ok(());
        }
        let message = format!(
            "shape {} has no elements, but takes more than {MOST} vectors; read it with `to_vec`, which is empty",
            self.shape()
        );
        Err(Error::InvalidArgument { op, message })
    }

    pub(super) fn check_element<T: Element>(&self, op: &'static str) -> Result<()> {
        if T::DTYPE == self.view.dtype {
            return Ok(());
        }
        Err(Error::ElementType { op, asked: T::DTYPE, dtype: self.view.dtype })
    }

    fn read<R: Send + Default + 'static>(&self, convert: impl FnOnce(&[u8]) -> R + Send + 'static) -> Result<R> {
        let Some((buffer, source)) = self.view.readable()? else { return Ok(R::default()) };
        self.view.device().runtime().read(&buffer, &source, convert)
    }
}
