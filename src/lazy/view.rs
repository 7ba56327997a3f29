//! [`View`]: the elements of a storage, seen through a layout.

use super::storage::{Pending, Storage};
use crate::backend::info::MemoryKind;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::layout::Layout;
use crate::base::shape::Shape;
use crate::device::Device;
use crate::engine::pool::Buffer;
use std::sync::Arc;

/// The inside of a [`Tensor`](crate::Tensor), and what an expression or a kernel reads.
#[derive(Clone)]
pub(crate) struct View {
    pub(super) storage: Arc<Storage>,
    pub layout: Arc<Layout>,
    pub dtype: DType,
}

impl AsRef<View> for View {
    fn as_ref(&self) -> &View {
        self
    }
}

impl View {
    /// Returns the view of all that `storage` will hold, in row-major order.
    pub fn of_storage(storage: Storage, shape: Shape, dtype: DType) -> View {
        View::of_all(storage, Arc::new(Layout::contiguous(shape)), dtype)
    }

    /// Returns the view of all that `storage` will hold, through a layout that is contiguous and has no offset.
    #[inline]
    pub(super) fn of_all(storage: Storage, layout: Arc<Layout>, dtype: DType) -> View {
        View { storage: Arc::new(storage), layout, dtype }
    }

    /// Returns the view of the elements that a kernel writes to `buffer`, in row-major order.
    pub fn of_buffer(buffer: Buffer, shape: Shape, dtype: DType, device: &Device) -> View {
        View::of_storage(Storage::of_buffer(buffer, device), shape, dtype)
    }

    /// Returns the same elements in another layout.
    pub fn with_layout(&self, layout: impl Into<Arc<Layout>>) -> View {
        let layout = layout.into();
        View { storage: self.storage.clone(), layout, dtype: self.dtype }
    }

    pub fn device(&self) -> &Device {
        &self.storage.device
    }

    pub fn shape(&self) -> &Shape {
        &self.layout.shape
    }

    /// Whether a layout has the same shape.
    #[inline]
    pub fn has_shape(&self, layout: &Arc<Layout>) -> bool {
        Arc::ptr_eq(&self.layout, layout) || self.layout.shape.iter().eq(layout.shape.iter())
    }

    pub fn strides(&self) -> &[isize] {
        &self.layout.strides
    }

    pub fn elem_count(&self) -> usize {
        self.layout.elements()
    }

    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    pub fn memory_kind(&self) -> MemoryKind {
        self.storage.memory_kind()
    }

    /// Whether nobody else can see the elements, and no two of them overlap. Computes them if that has not been done.
    pub fn holds_elements_alone(&self) -> Result<bool> {
        let handles = [Arc::strong_count(self.buffer()?), Arc::strong_count(&self.storage)];
        Ok(!self.layout.may_overlap() && handles == [1, 1])
    }

    /// Whether the elements belong to an expression that has not been computed.
    pub(super) fn is_pending(&self) -> bool {
        self.storage.computed().is_none() && matches!(&*self.storage.pending.lock(), Some(Pending::Expression { .. }))
    }

    /// Whether the elements were recorded as an expression, and have not been computed.
    pub fn is_expression(&self) -> bool {
        self.storage.pending_extent().is_some()
    }

    /// Returns the buffer behind the tensor. Computes it if that has not been done.
    pub fn buffer(&self) -> Result<&Arc<Buffer>> {
        self.storage.buffer()
    }

    /// Whether the elements belong to a product that has not run.
    pub(super) fn waits(&self) -> bool {
        self.storage.computed().is_none() && matches!(&*self.storage.pending.lock(), Some(Pending::Product(_)))
    }

    /// Whether this is all of a product that has not run yet, in its order.
    pub(super) fn is_product(&self) -> bool {
        if self.storage.computed().is_some() {
            return false;
        }
        let elements = match &*self.storage.pending.lock() {
            Some(Pending::Product(producer)) => producer.elements(),
            _ => return false,
        };
        self.layout.is_all(elements)
    }
}

/// Whether two layouts are equal.
pub(super) fn is_same(a: &Arc<Layout>, b: &Arc<Layout>) -> bool {
    Arc::ptr_eq(a, b) || a == b
}
