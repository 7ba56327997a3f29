//! [`View`]: the elements of a storage, seen through a layout.

use super::epilogue::NormOfResult;
use super::fusion::Extent;
use super::placement::Placement;
use super::storage::{Pending, Storage};
use crate::backend::info::MemoryKind;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::layout::Layout;
use crate::base::shape::Shape;
use crate::base::word::Word;
use crate::device::Device;
use crate::engine::pool::Buffer;
use std::sync::Arc;

/// The inside of a [`Tensor`](crate::Tensor), and what an expression or a kernel reads.
#[derive(Clone)]
pub(crate) struct View {
    pub(super) storage: Arc<Storage>,
    /// `None` if it is the storage's own.
    pub(super) placement: Option<Arc<Placement>>,
    pub dtype: DType,
    /// The size of the expression that was recorded, if it was one.
    pub(super) extent: Extent,
}

impl AsRef<View> for View {
    fn as_ref(&self) -> &View {
        self
    }
}

impl View {
    /// Returns the view of all that `storage` holds or will hold.
    #[inline]
    pub fn of_storage(storage: Storage, dtype: DType) -> View {
        View { storage: Arc::new(storage), placement: None, dtype, extent: Extent::default() }
    }

    /// Returns the view of the elements that a kernel writes to `buffer`, in row-major order.
    pub fn of_buffer(buffer: Buffer, shape: Shape, dtype: DType, device: &Device) -> View {
        View::of_storage(Storage::of_buffer(buffer, shape, device), dtype)
    }

    /// Returns the view of what a storage holds, seen through a layout.
    pub(super) fn of_part(storage: Arc<Storage>, placement: Arc<Placement>, dtype: DType) -> View {
        View { storage, placement: Some(placement), dtype, extent: Extent::default() }
    }

    /// Returns the same elements in another layout.
    pub fn with_layout(&self, layout: Layout) -> View {
        View { placement: Some(Placement::new(layout, self.device())), ..self.clone() }
    }

    #[inline]
    pub(super) fn placement(&self) -> &Arc<Placement> {
        self.placement.as_ref().unwrap_or(&self.storage.placement)
    }

    pub fn layout(&self) -> &Layout {
        &self.placement().layout
    }

    pub fn device(&self) -> &Device {
        &self.storage.placement.device
    }

    pub fn shape(&self) -> &Shape {
        &self.layout().shape
    }

    pub fn strides(&self) -> &[isize] {
        &self.layout().strides
    }

    pub fn elem_count(&self) -> usize {
        self.placement().elements()
    }

    pub fn is_contiguous(&self) -> bool {
        self.layout().is_contiguous()
    }

    pub fn memory_kind(&self) -> MemoryKind {
        self.storage.memory_kind()
    }

    /// Whether nobody else can see the elements, and no two of them overlap. Computes them if that has not been done.
    pub fn holds_elements_alone(&self) -> Result<bool> {
        let buffer = self.buffer()?;
        let is_alone = Arc::strong_count(&self.storage) == 1 && self.device().runtime().may_change(buffer);
        Ok(is_alone && !self.layout().may_overlap())
    }

    /// Returns the RMS norm of the rows along the last axis, if the elements are an expression over a product whose
    /// kernel computes both. Whether it does or not, the elements have been computed then. The weight has the same
    /// dtype.
    pub fn normalized_by_product(&self, weight: &View, eps: Word) -> Result<Option<Buffer>> {
        let (Some(&length), true) = (self.shape().last(), weight.layout().is_dense()) else { return Ok(None) };
        let is_whole = self.layout().is_all(self.storage.placement.elements());
        if !is_whole || !self.is_expression() || !self.depends_on_product() {
            return Ok(None);
        }
        let norm = NormOfResult::new(weight.buffer()?.clone(), length, eps);
        self.storage.compute_with_norm(&norm)?;
        Ok(norm.into_normalized())
    }

    /// Whether the elements have been computed.
    pub fn is_computed(&self) -> bool {
        self.storage.computed().is_some()
    }

    /// Whether the elements belong to an expression that has not been computed.
    pub(super) fn is_pending(&self) -> bool {
        self.storage.computed().is_none() && matches!(&*self.storage.pending.lock(), Some(Pending::Expression { .. }))
    }

    /// Returns the size of the expression that was recorded, unless it has been computed.
    #[inline]
    pub(super) fn pending_extent(&self) -> Option<Extent> {
        (self.extent.operations() > 0 && self.storage.computed().is_none()).then_some(self.extent)
    }

    /// Whether the elements were recorded as an expression, and have not been computed.
    pub fn is_expression(&self) -> bool {
        self.pending_extent().is_some()
    }

    /// Returns the buffer behind the tensor. Computes it if that has not been done.
    pub fn buffer(&self) -> Result<&Buffer> {
        self.storage.buffer()
    }

    /// Whether the elements belong to a product that has not run.
    pub(super) fn waits(&self) -> bool {
        self.storage.computed().is_none() && matches!(&*self.storage.pending.lock(), Some(Pending::Product { .. }))
    }

    /// Whether this is all of a product that has not run yet, in its order.
    pub(super) fn is_product(&self) -> bool {
        self.waits() && self.layout().is_all(self.storage.placement.elements())
    }
}
