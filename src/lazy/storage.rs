//! [`Storage`]: what tensors share, a buffer or a computation that has not run.

use super::epilogue::{NormOfResult, Produced, Producer};
use super::expression::{Expression, Placed};
use super::placement::Placement;
use super::run::compute;
use crate::backend::info::MemoryKind;
use crate::base::error::Result;
use crate::base::lock::Mutex;
use crate::base::shape::Shape;
use crate::device::Device;
use crate::engine::capture::CaptureId;
use crate::engine::pool::Buffer;
use std::sync::{Arc, OnceLock};

/// The elements behind some views.
pub(crate) struct Storage {
    /// Set once, when the elements have been computed.
    buffer: OnceLock<Buffer>,
    /// What computes the elements, as long as there is no buffer.
    pub(super) pending: Mutex<Option<Pending>>,
    /// Of all elements: in row-major order, from the start on.
    pub(super) placement: Arc<Placement>,
}

/// A computation that has not run.
pub(super) enum Pending {
    Expression {
        expression: Expression,
        /// Whether a kernel has computed it for another result, and has not stored it.
        computed: bool,
        /// The operations of the expression, with all that was pending below it when it was recorded.
        operations: u8,
        /// The capture that it was recorded in.
        capture: Option<CaptureId>,
    },
    /// The first expression over its elements that is computed becomes the epilogue of its kernel.
    Product { producer: Box<dyn Producer>, capture: Option<CaptureId> },
}

impl Pending {
    /// Returns the capture that it was recorded in.
    pub fn capture(&self) -> Option<CaptureId> {
        let (Pending::Expression { capture, .. } | Pending::Product { capture, .. }) = self;
        *capture
    }
}

impl Storage {
    #[inline(always)]
    fn new(buffer: Option<Buffer>, pending: Option<Pending>, placement: Arc<Placement>) -> Storage {
        let buffer = buffer.map(OnceLock::from).unwrap_or_default();
        Storage { buffer, pending: Mutex::new(pending), placement }
    }

    pub fn of_buffer(buffer: Buffer, shape: Shape, device: &Device) -> Storage {
        Storage::new(Some(buffer), None, Placement::contiguous(shape, device))
    }

    /// `operations` counts those of the expression, with all that is pending below it.
    #[inline(always)]
    pub(super) fn of_expression(expression: Expression, operations: u8, placement: Arc<Placement>) -> Storage {
        let capture = placement.device.runtime().capture_id();
        Storage::new(None, Some(Pending::Expression { expression, computed: false, operations, capture }), placement)
    }

    /// The product's elements are placed in row-major order.
    pub fn of_product(producer: impl Producer + 'static, placement: Arc<Placement>) -> Storage {
        debug_assert!(placement.is_dense(), "a producer's elements are in row-major order");
        let (producer, capture) = (Box::new(producer), placement.device.runtime().capture_id());
        Storage::new(None, Some(Pending::Product { producer, capture }), placement)
    }

    pub fn memory_kind(&self) -> MemoryKind {
        self.buffer.get().map_or(MemoryKind::Device, |buffer| buffer.kind())
    }

    /// Returns the buffer, if the elements have been computed.
    #[inline]
    pub(super) fn computed(&self) -> Option<&Buffer> {
        self.buffer.get()
    }

    /// Returns the buffer. Computes the elements if that has not been done.
    pub fn buffer(&self) -> Result<&Buffer> {
        loop {
            if let Some(buffer) = self.buffer.get() {
                return Ok(buffer);
            }
            let mut pending = self.pending.lock();
            let runtime = self.placement.device.runtime();
            if pending.as_ref().and_then(Pending::capture) == runtime.capture_id() {
                self.compute(&mut pending)?;
            } else {
                // It was not recorded in the capture of this thread, so it is not part of the step.
                runtime.suspend_capture(|| self.compute(&mut pending))?;
            }
        }
    }

    /// Computes the elements if they are pending as an expression. The kernel of a product may compute a norm of them,
    /// too.
    pub(super) fn compute_with_norm(&self, norm: &NormOfResult) -> Result<()> {
        let mut pending = self.pending.lock();
        if let Some(Pending::Expression { expression, capture, .. }) = &*pending
            && *capture == self.placement.device.runtime().capture_id()
        {
            let buffer = compute(expression, &self.placement, Some(norm))?;
            self.store(&mut pending, buffer);
        }
        Ok(())
    }

    fn compute(&self, pending: &mut Option<Pending>) -> Result<()> {
        if let Some(Pending::Expression { expression, .. }) = pending {
            let buffer = compute(expression, &self.placement, None)?;
            self.store(pending, buffer);
            return Ok(());
        }
        self.run_product(pending)
    }

    /// Notes that the elements have been computed. `pending` is what the storage's lock guards.
    pub(super) fn store(&self, pending: &mut Option<Pending>, buffer: Buffer) {
        *pending = None;
        // Only who has the lock sets it, and only while something is pending.
        _ = self.buffer.set(buffer);
    }

    /// Notes that a kernel has stored the elements of an expression beside others.
    pub(super) fn keep(&self, buffer: Buffer) {
        let pending = &mut *self.pending.lock();
        if let Some(Pending::Expression { .. }) = pending {
            self.store(pending, buffer);
        }
    }

    /// Notes that a kernel has computed the elements of an expression and has not stored them.
    pub(super) fn note_computed(&self) {
        if let Some(Pending::Expression { computed, .. }) = &mut *self.pending.lock() {
            *computed = true;
        }
    }

    /// Runs a product that has not run yet. What its kernel does not do becomes an expression.
    pub(super) fn run_product(&self, pending: &mut Option<Pending>) -> Result<()> {
        if let Some(Pending::Product { producer, .. }) = pending {
            let produced = producer.produce(None)?;
            self.take(pending, produced)?;
        }
        Ok(())
    }

    /// Takes over what a product's kernel has produced.
    pub(super) fn take(&self, pending: &mut Option<Pending>, produced: Produced) -> Result<()> {
        let mut product = match produced {
            Produced::Finished { result, .. } => {
                self.store(pending, result);
                return Ok(());
            }
            Produced::Unfinished(product) => product,
        };
        debug_assert_eq!(product.shape(), &self.placement.shape, "a producer makes what it was made for");
        // A pending expression runs along the axes of its own shape.
        let has_axes = product.is_computed() || product.storage.placement.has_shape_of(&self.placement);
        if has_axes && product.layout().is_all(self.placement.elements()) {
            match Arc::try_unwrap(product.storage) {
                Ok(Storage { buffer, pending: theirs, .. }) => {
                    *pending = theirs.into_inner();
                    if let Some(buffer) = buffer.into_inner() {
                        self.store(pending, buffer);
                    }
                    return Ok(());
                }
                Err(shared) => product.storage = shared,
            }
        }
        let Placed { expression, .. } = Placed::of(&product)?;
        let operations = expression.operations();
        let capture = self.placement.device.runtime().capture_id();
        *pending = Some(Pending::Expression { expression, computed: false, operations, capture });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows with padding, which are gathered in one shape and seen in another one.
    #[cfg(all(has_vulkan, device_tests))]
    #[test]
    fn what_a_producer_leaves_may_be_pending_in_another_shape() {
        use super::super::epilogue::Epilogue;
        use crate::base::dtype::DType;
        use crate::tensor::Tensor;

        struct Padded(Tensor);
        impl Producer for Padded {
            fn accumulator(&self) -> DType {
                self.0.dtype()
            }
            fn produce(&self, _: Option<&Epilogue>) -> Result<Produced> {
                self.0.narrow(-1, 0, 3)?.reshape((5, 3)).map(Produced::unfinished)
            }
        }
        let device = Device::vulkan(0).unwrap();
        let rows = Tensor::arange(0f32, 20.0, &device).unwrap().reshape((1, 5, 4)).unwrap();
        rows.realize().unwrap();
        let seen =
            Tensor::from_producer(Padded(rows), Placement::contiguous((5, 3).into(), &device), DType::F32).unwrap();
        let expected: Vec<f32> = (0..20u8).filter(|place| place % 4 < 3).map(f32::from).collect();
        assert_eq!(seen.to_vec::<f32>().unwrap(), expected);
    }

    /// Glibc serves blocks of up to 120 bytes fast. An `Arc` adds two counts.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn a_recorded_operation_is_a_small_block() {
        assert!(size_of::<Storage>() + 2 * size_of::<usize>() <= 120, "{}", size_of::<Storage>());
    }
}
