//! [`Tensor`]: a value on a device.

mod assign;
mod create;
mod display;
mod read;
mod view;

pub use create::NdArray;

use crate::backend::info::MemoryKind;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::base::shape::{Axis, Shape};
use crate::device::Device;
use crate::engine::pool::Buffer;
use crate::kernels::epilogue::Finishing;
use crate::lazy::{PendingLaunch, Placement, Producer, Storage, View, check_computes};
use std::sync::Arc;

/// An array of elements of one [`DType`] on a [`Device`].
///
/// A tensor is a value: no operation changes one, and cloning is cheap. Views (`transpose`, `narrow`, ...) share the
/// elements of the tensor they are taken from. Operations return at once; the host waits only when elements are read.
/// Most operations are put off until somebody needs their result. So a chain of elementwise operations runs as one
/// kernel, together with the product, convolution, norm or reduction before or behind it. [`realize`](Tensor::realize)
/// computes them now, and [`Device::explain`] tells what was fused.
///
/// ```
/// use marquetry::{Device, Tensor};
/// let device = Device::best()?;
/// let x = Tensor::new([[1f32, 2.0], [3.0, 4.0]], &device)?;
/// let y = (x.matmul(&x.t()?)? + 1.0)?;
/// assert_eq!(y.to_vec::<f32>()?, [6.0, 12.0, 12.0, 26.0]);
/// # Ok::<(), marquetry::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    view: View,
}

impl AsRef<View> for Tensor {
    fn as_ref(&self) -> &View {
        &self.view
    }
}

impl From<Tensor> for View {
    fn from(tensor: Tensor) -> View {
        tensor.view
    }
}

impl From<View> for Tensor {
    fn from(view: View) -> Tensor {
        Tensor { view }
    }
}

impl Tensor {
    /// A tensor whose elements a kernel writes to `buffer`.
    pub(crate) fn from_buffer(buffer: Buffer, shape: Shape, dtype: DType, device: &Device) -> Self {
        View::of_buffer(buffer, shape, dtype, device).into()
    }

    /// A tensor of its own over the elements of a producer, in row-major order.
    pub(crate) fn from_producer(
        producer: impl Producer + 'static,
        placement: Arc<Placement>,
        dtype: DType,
    ) -> Result<Tensor> {
        let view = View::of_storage(Storage::of_product(producer, placement), dtype);
        if !view.device().runtime().fuses() {
            view.buffer()?;
        }
        Ok(view.into())
    }

    /// A tensor of its own over the results of a launch.
    pub(crate) fn from_launch<F>(launch: PendingLaunch<F>) -> Result<Tensor>
    where
        F: Finishing + Send + Sync + 'static,
        F::Host: Clone + Send + Sync,
    {
        let (dtype, placement) = (launch.dtype, Placement::contiguous(launch.shape.clone(), &launch.device));
        if launch.kernel.computes() {
            check_computes(&launch.device, dtype)?;
        }
        Tensor::from_producer(launch, placement, dtype)
    }

    /// The same elements seen in another way.
    pub(crate) fn with_layout(&self, layout: Layout) -> Self {
        self.view.with_layout(layout).into()
    }

    /// The buffer behind the tensor, computed now if it has not been yet.
    pub(crate) fn buffer(&self) -> Result<&Buffer> {
        self.view.buffer()
    }

    /// A buffer that starts with the elements in row-major order.
    pub(crate) fn row_major_buffer(&self) -> Result<Buffer> {
        self.view.row_major_buffer()
    }

    /// A copy in row-major order from the start of a buffer of its own.
    pub(crate) fn copied(&self) -> Result<Tensor> {
        self.view.copied().map(Tensor::from)
    }

    pub(crate) fn layout(&self) -> &Layout {
        self.view.layout()
    }

    /// Returns the lengths of the axes.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::zeros((2, 3), DType::F32, &device)?;
    /// assert_eq!(x.shape().dims(), [2, 3]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    pub fn shape(&self) -> &Shape {
        self.view.shape()
    }

    /// Returns the lengths of the axes as a slice.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::zeros((2, 3), DType::F32, &device)?;
    /// assert_eq!(x.dims(), [2, 3]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    pub fn dims(&self) -> &[usize] {
        self.shape().dims()
    }

    /// Returns the length of one axis.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::zeros((2, 3), DType::F32, &device)?;
    /// assert_eq!((x.dim(0)?, x.dim(-1)?), (2, 3));
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`].
    pub fn dim(&self, axis: impl Into<Axis>) -> Result<usize> {
        Ok(self.shape()[axis.into().resolve(self.shape(), "dim")?])
    }

    /// Returns the number of axes.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// assert_eq!(Tensor::zeros((2, 3), DType::F32, &device)?.rank(), 2);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    pub fn rank(&self) -> usize {
        self.shape().rank()
    }

    /// Returns the number of elements.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// assert_eq!(Tensor::zeros((2, 3), DType::F32, &device)?.elem_count(), 6);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    pub fn elem_count(&self) -> usize {
        self.view.elem_count()
    }

    /// Returns the distance in elements between neighbours along each axis.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::zeros((2, 3), DType::F32, &device)?;
    /// assert_eq!((x.strides(), x.t()?.strides()), (&[3, 1][..], &[1, 3][..]));
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    pub fn strides(&self) -> &[isize] {
        self.view.strides()
    }

    /// Returns whether the elements lie in row-major order without gaps.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::zeros((2, 3), DType::F32, &device)?;
    /// assert!(x.is_contiguous() && !x.t()?.is_contiguous());
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    pub fn is_contiguous(&self) -> bool {
        self.view.is_contiguous()
    }

    /// Returns the type of the elements.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// assert_eq!(Tensor::new([1i32, 2], &device)?.dtype(), DType::I32);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    pub fn dtype(&self) -> DType {
        self.view.dtype
    }

    /// Returns the kind of memory that the elements are in. Results of operations are in [`MemoryKind::Device`].
    ///
    /// ```
    /// # use marquetry::{Device, MemoryKind, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::rand(0f32, 1.0, 4, &device)?;
    /// assert_eq!(x.memory_kind(), MemoryKind::Device);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    pub fn memory_kind(&self) -> MemoryKind {
        self.view.memory_kind()
    }

    /// Returns the device that the elements are on.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// assert_eq!(Tensor::new([1i32, 2], &device)?.device(), &device);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    pub fn device(&self) -> &Device {
        self.view.device()
    }

    #[inline]
    pub(crate) fn check_same_device(&self, other: &Tensor, op: &'static str) -> Result<()> {
        if self.view.device() == other.view.device() {
            return Ok(());
        }
        Err(Error::DeviceMismatch { op, lhs: self.view.device().to_string(), rhs: other.view.device().to_string() })
    }

    #[inline]
    pub(crate) fn check_same_dtype(&self, other: &Tensor, op: &'static str) -> Result<()> {
        if self.view.dtype == other.view.dtype {
            return Ok(());
        }
        Err(Error::DTypeMismatch { op, lhs: self.view.dtype, rhs: other.view.dtype })
    }
}
