//! Copies of views: in row-major order, or as the host reads them.

use super::allocate;
use super::expression::ExpressionBuilder;
use super::transfer::{Transfer, is_fast};
use super::view::View;
use crate::backend::contract::Region;
use crate::backend::info::MemoryKind;
use crate::base::error::Result;
use crate::base::layout::Layout;
use crate::base::shape::checked_elements;
use crate::engine::pool::Buffer;
use crate::engine::transfer::Source;

impl View {
    /// Copies the view in row-major order to the start of a new buffer.
    pub fn copied(&self) -> Result<View> {
        if let Some(copy) = self.copied_natively()? {
            return Ok(copy);
        }
        if self.dtype.size_in_bytes() == 8 && !self.is_pending() {
            // Copies words, so that the device need not compute in 64 bits.
            return self.copied_within(MemoryKind::Device, "contiguous");
        }
        let mut builder = ExpressionBuilder::like(self);
        let element = builder.tensor(self, "contiguous")?;
        builder.finish(element, "contiguous")
    }

    /// Copies the view in row-major order to the start of a new buffer in memory of a given kind.
    pub fn copied_within(&self, memory: MemoryKind, op: &'static str) -> Result<View> {
        let elements = checked_elements(self.shape(), op)?;
        let bytes = (elements * self.dtype.size_in_bytes()) as u64;
        let buffer = self.device().runtime().allocate(bytes, memory)?;
        if elements > 0 {
            let dense = Layout::contiguous(self.shape().clone());
            let transfer = Transfer::new(self.layout(), &dense, self.dtype.size_in_bytes());
            transfer.run(self.buffer()?, &buffer, self.device())?;
        }
        Ok(View::of_buffer(buffer, self.shape().clone(), self.dtype, self.device()))
    }

    /// Copies in row-major order by the driver. Returns `None` if that is impossible or slow.
    pub(super) fn copied_natively(&self) -> Result<Option<View>> {
        if self.is_pending() || self.elem_count() == 0 {
            return Ok(None);
        }
        let dense = Layout::contiguous(self.shape().clone());
        let transfer = Transfer::new(self.layout(), &dense, self.dtype.size_in_bytes());
        let Some(region) = transfer.fast_region(self.device()) else { return Ok(None) };
        let buffer = allocate(self.shape(), self.dtype, self.device(), "contiguous")?;
        self.device().runtime().copy_region(self.buffer()?, &buffer, region)?;
        Ok(Some(View::of_buffer(buffer, self.shape().clone(), self.dtype, self.device())))
    }

    /// Returns the box that gathers the elements in row-major order without gaps, if a driver's copy can do that.
    pub(super) fn gathering_region(&self) -> Option<Region> {
        let dense = Layout::contiguous(self.shape().clone());
        let transfer = Transfer::new(self.layout(), &dense, self.dtype.size_in_bytes());
        // A single row may end inside a unit of the driver's copies, because buffers are padded.
        let alignment = self.device().info().limits.copy_alignment;
        let region = transfer.region_of_multiples(alignment, true)?;
        (region.extent[1..] == [1, 1] || is_fast(&region, self.device())).then_some(region)
    }

    /// Returns the buffer with the elements, and the box in it that has them in row-major order. Returns `None` if
    /// there are no elements.
    pub fn readable(&self) -> Result<Option<(Buffer, Source)>> {
        if self.elem_count() == 0 {
            return Ok(None);
        }
        let bytes = checked_elements(self.shape(), "read")? as u64 * self.dtype.size_in_bytes() as u64;
        // Pending elements are computed in row-major order, not gathered.
        let in_order = self.is_contiguous() && self.layout().offset == 0;
        let gathered = if self.is_pending() && !in_order { None } else { self.gathering_region() };
        if let Some(region) = gathered {
            return Ok(Some((self.buffer()?.clone(), Source { region, bytes })));
        }
        // Buffers are padded, so the whole is one row of whole units of any driver's copy.
        let region = Region::linear(bytes.next_multiple_of(self.device().info().limits.copy_alignment));
        Ok(Some((self.row_major_buffer()?, Source { region, bytes })))
    }

    /// Returns a buffer that starts with the elements in row-major order.
    pub fn row_major_buffer(&self) -> Result<Buffer> {
        let in_place = self.is_contiguous() && self.layout().offset == 0;
        if in_place { self.buffer().cloned() } else { self.copied()?.buffer().cloned() }
    }
}
