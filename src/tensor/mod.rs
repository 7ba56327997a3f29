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
use crate::lazy::{Producer, Storage, View};
use std::sync::Arc;

/// An array of elements of one [`DType`] on a [`Device`].
///
/// A tensor is a value: no operation changes one, and cloning is cheap. Views (`transpose`, `narrow`, ...) share the
/// elements of the tensor they are taken from. Operations return at once; the host waits only when elements are read.
/// Elementwise operations and matrix products are put off until somebody needs their result, so that a product and a chain of
/// them run as one kernel. [`eval`](Tensor::eval) has them computed now.
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

    /// A tensor of its own over the elements of a producer.
    pub(crate) fn from_producer(
        producer: impl Producer + 'static,
        shape: Shape,
        dtype: DType,
        device: &Device,
    ) -> Tensor {
        View::of_storage(Storage::product(producer), shape, dtype, device).into()
    }

    /// The same elements seen in another way.
    pub(crate) fn with_layout(&self, layout: Layout) -> Self {
        self.view.with_layout(layout).into()
    }

    /// The buffer behind the tensor, computed now if it has not been yet.
    pub(crate) fn buffer(&self) -> Result<Arc<Buffer>> {
        self.view.buffer()
    }

    /// A buffer that starts with the elements in row-major order.
    pub(crate) fn row_major_buffer(&self) -> Result<Arc<Buffer>> {
        self.view.row_major_buffer()
    }

    /// A copy in row-major order from the start of a buffer of its own.
    pub(crate) fn copied(&self) -> Result<Tensor> {
        self.view.copied().map(Tensor::from)
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.view.layout
    }

    /// The lengths of the axes.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::zeros((2, 3), DType::F32, &device)?;
    /// assert_eq!(x.shape().dims(), [2, 3]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    pub fn shape(&self) -> &Shape {
        &self.view.layout.shape
    }

    /// The lengths of the axes as a slice.
    pub fn dims(&self) -> &[usize] {
        self.view.layout.shape.dims()
    }

    /// The length of one axis.
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`].
    pub fn dim(&self, axis: impl Into<Axis>) -> Result<usize> {
        Ok(self.shape()[axis.into().resolve(self.shape(), "dim")?])
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.view.layout.shape.rank()
    }

    /// The number of elements.
    pub fn elem_count(&self) -> usize {
        self.view.layout.elements()
    }

    /// The distance in elements between neighbours along each axis.
    pub fn strides(&self) -> &[isize] {
        &self.view.layout.strides
    }

    /// Whether the elements lie in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.view.layout.is_contiguous()
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.view.dtype
    }

    /// The memory that the elements are in. What kernels compute is in memory of the kind [`MemoryKind::Device`].
    pub fn memory_kind(&self) -> MemoryKind {
        self.view.memory_kind()
    }

    /// Where the elements are.
    pub fn device(&self) -> &Device {
        &self.view.device
    }

    pub(crate) fn check_same_device(&self, other: &Tensor, op: &'static str) -> Result<()> {
        if self.view.device == other.view.device {
            return Ok(());
        }
        Err(Error::DeviceMismatch { op, lhs: self.view.device.to_string(), rhs: other.view.device.to_string() })
    }

    pub(crate) fn check_same_dtype(&self, other: &Tensor, op: &'static str) -> Result<()> {
        if self.view.dtype == other.view.dtype {
            return Ok(());
        }
        Err(Error::DTypeMismatch { op, lhs: self.view.dtype, rhs: other.view.dtype })
    }
}
