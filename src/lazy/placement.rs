//! [`Placement`]: where elements are.

use crate::base::error::Result;
use crate::base::layout::Layout;
use crate::base::shape::{MAX_ELEMENTS, Shape, checked_elements};
use crate::device::Device;
use std::ops::Deref;
use std::sync::Arc;

/// The device that elements are on, and their layout there. Tensors share it: results of elementwise operations have
/// the placement of an operand.
pub(crate) struct Placement {
    pub layout: Layout,
    pub device: Device,
    // What every operation over these elements asks for.
    elements: usize,
    is_dense: bool,
}

impl Placement {
    pub fn new(layout: Layout, device: &Device) -> Arc<Placement> {
        let (elements, is_dense) = (layout.elements(), layout.is_dense());
        Arc::new(Placement { layout, device: device.clone(), elements, is_dense })
    }

    /// Returns the placement of elements in row-major order, from the start on.
    pub fn contiguous(shape: Shape, device: &Device) -> Arc<Placement> {
        let layout = Layout::contiguous(shape);
        let elements = layout.elements();
        Arc::new(Placement { layout, device: device.clone(), elements, is_dense: true })
    }

    /// Returns the number of elements.
    #[inline]
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Returns the same, if kernels can count the elements.
    #[inline]
    pub fn checked_elements(&self, op: &'static str) -> Result<usize> {
        if self.elements <= MAX_ELEMENTS { Ok(self.elements) } else { checked_elements(&self.shape, op) }
    }

    /// Whether the elements lie in row-major order without gaps, from the start on.
    #[inline]
    pub fn is_dense(&self) -> bool {
        self.is_dense
    }

    /// Whether two placements on one device have the same shape.
    #[inline]
    pub fn has_shape_of(self: &Arc<Placement>, other: &Arc<Placement>) -> bool {
        Arc::ptr_eq(self, other) || self.shape.iter().eq(other.shape.iter())
    }

    /// Whether two placements on one device have the same layout.
    #[inline]
    pub fn is_same(self: &Arc<Placement>, other: &Arc<Placement>) -> bool {
        Arc::ptr_eq(self, other) || self.layout == other.layout
    }
}

impl Deref for Placement {
    type Target = Layout;
    fn deref(&self) -> &Layout {
        &self.layout
    }
}
