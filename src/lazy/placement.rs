//! [`Placement`]: where elements are.

use crate::base::layout::Layout;
use crate::base::shape::Shape;
use crate::device::Device;
use std::ops::Deref;
use std::sync::Arc;

/// The device that elements are on, and their layout there. Tensors share it: results of elementwise operations have
/// the placement of an operand.
pub(crate) struct Placement {
    pub layout: Layout,
    pub device: Device,
}

impl Placement {
    pub fn new(layout: Layout, device: &Device) -> Arc<Placement> {
        Arc::new(Placement { layout, device: device.clone() })
    }

    /// Returns the placement of elements in row-major order, from the start on.
    pub fn contiguous(shape: Shape, device: &Device) -> Arc<Placement> {
        Placement::new(Layout::contiguous(shape), device)
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
