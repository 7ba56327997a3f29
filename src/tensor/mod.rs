//! [`Tensor`]: a value on a device.

mod assign;
mod create;
mod display;
mod epilogue;
mod read;
mod storage;
mod transfer;
mod transposition;
mod view;

pub use create::NdArray;
pub(crate) use epilogue::{Epilogue, Produced, Producer};
pub(crate) use storage::{Fusion, Word};

use crate::backend::info::MemoryKind;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::base::shape::{Axis, Shape};
use crate::device::Device;
use crate::engine::pool::Buffer;
use std::sync::Arc;
use storage::Storage;

/// The largest number of elements that a kernel counts with 32 bits, with room for rounding up.
pub(crate) const MAX_ELEMENTS: usize = u32::MAX as usize - 0xffff;

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
    storage: Arc<Storage>,
    layout: Layout,
    dtype: DType,
    device: Device,
}

impl Tensor {
    /// A tensor of its own over what `storage` will hold, in row-major order.
    pub(crate) fn from_storage(storage: Storage, shape: Shape, dtype: DType, device: &Device) -> Self {
        Tensor { storage: Arc::new(storage), layout: Layout::contiguous(shape), dtype, device: device.clone() }
    }

    /// A tensor whose elements a kernel writes to `buffer`.
    pub(crate) fn from_buffer(buffer: Buffer, shape: Shape, dtype: DType, device: &Device) -> Self {
        Tensor::from_storage(Storage::buffer(buffer), shape, dtype, device)
    }

    /// The same elements seen in another way.
    pub(crate) fn with_layout(&self, layout: Layout) -> Self {
        Tensor { layout, ..self.clone() }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
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
        &self.layout.shape
    }

    /// The lengths of the axes as a slice.
    pub fn dims(&self) -> &[usize] {
        self.layout.shape.dims()
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
        self.layout.shape.rank()
    }

    /// The number of elements.
    pub fn elem_count(&self) -> usize {
        self.layout.elements()
    }

    /// The distance in elements between neighbours along each axis.
    pub fn strides(&self) -> &[isize] {
        &self.layout.strides
    }

    /// Whether the elements lie in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The memory that the elements are in. What kernels compute is in memory of the kind [`MemoryKind::Device`].
    pub fn memory_kind(&self) -> MemoryKind {
        self.storage.memory_kind()
    }

    /// Where the elements are.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn check_same_device(&self, other: &Tensor, op: &'static str) -> Result<()> {
        if self.device == other.device {
            return Ok(());
        }
        Err(Error::DeviceMismatch { op, lhs: self.device.to_string(), rhs: other.device.to_string() })
    }

    pub(crate) fn check_same_dtype(&self, other: &Tensor, op: &'static str) -> Result<()> {
        if self.dtype == other.dtype {
            return Ok(());
        }
        Err(Error::DTypeMismatch { op, lhs: self.dtype, rhs: other.dtype })
    }
}

/// The number of elements of a shape that is to be stored.
pub(crate) fn checked_elements(shape: &Shape, op: &'static str) -> Result<usize> {
    shape.elem_count().filter(|&n| n <= MAX_ELEMENTS).ok_or_else(|| Error::SizeOverflow {
        op,
        shape: shape.clone(),
        limit: MAX_ELEMENTS as u64,
    })
}

/// The number of parts that kernels count, of which an element of 64 bits has two.
pub(crate) fn checked_parts(shape: &Shape, dtype: DType, op: &'static str) -> Result<usize> {
    let limit = MAX_ELEMENTS / dtype.parts();
    let elements = shape.elem_count().filter(|&n| n <= limit);
    let overflow = || Error::SizeOverflow { op, shape: shape.clone(), limit: limit as u64 };
    elements.map(|n| n * dtype.parts()).ok_or_else(overflow)
}

/// A new device buffer for the elements of a shape.
pub(crate) fn allocate(shape: &Shape, dtype: DType, device: &Device, op: &'static str) -> Result<Buffer> {
    let bytes = checked_elements(shape, op)? as u64 * dtype.size_in_bytes() as u64;
    device.runtime().allocate(bytes, MemoryKind::Device)
}
