//! [`Operand`]: what a kernel reads through its prologue, an expression over buffers.

use super::cost;
use super::expression::Placed;
use super::fusion::{Fused, Kept, Repeated};
use super::view::View;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::word::Word;
use crate::device::Device;
use crate::engine::pool::Buffer;
use crate::kernels::expr::{Expr, Term};
use smallvec::SmallVec;

/// A tensor that a kernel will read. As long as the kernel has not been launched, it may still be a pending expression.
pub(crate) struct Deferred {
    /// Copies the tensor. It holds the only handle that the kernel needs.
    source: Placed,
}

/// The elements of a tensor as an expression over tensors that have been computed.
pub(crate) struct Operand {
    pub expr: Expr,
    /// Broadcast to one shape. There is one at least.
    pub inputs: SmallVec<[View; 4]>,
    pub scalars: SmallVec<[Word; 4]>,
    /// Whether the kernel should store the elements themselves, because somebody may ask for them later.
    pub kept: Option<KeptOperand>,
    repeated: Repeated,
}

/// A pending tensor that a kernel reads, and stores too.
pub(crate) struct KeptOperand(Kept);

impl KeptOperand {
    /// Notes that a kernel has stored the elements.
    pub fn keep(&self, buffer: Buffer) {
        self.0.storage.keep(buffer);
    }
}

impl Deferred {
    /// Defers the load of a tensor. If a product below it has not run, it runs now: its kernel computes more than the
    /// load would.
    pub fn new(tensor: &impl AsRef<View>) -> Result<Deferred> {
        let tensor = tensor.as_ref();
        if tensor.depends_on_product() {
            tensor.buffer()?;
        }
        Ok(Deferred { source: Placed::of(tensor)? })
    }

    /// Returns the tensor's elements as an expression over buffers. If `keeps`, the kernel can store the elements too.
    /// A kernel that computes the expression notes it ([`Operand::note_computed`]).
    pub fn operand(&self, keeps: bool) -> Result<Operand> {
        if self.source.expression.storages().all(|storage| storage.computed().is_some()) {
            return self.computed();
        }
        let fused = Fused::as_operand(&self.source, keeps)?;
        // The place in an operand is not the place in the result, and without an input there is nothing to load. What
        // is below the elements cannot be stored.
        let is_whole = fused.kept.iter().all(|kept| kept.term == fused.expr.result());
        let is_stored_copy = fused.copies() && !fused.kept.is_empty();
        if fused.expr.terms().contains(&Term::Index) || fused.inputs.is_empty() || !is_whole || is_stored_copy {
            return self.computed();
        }
        let Fused { mut expr, mut inputs, scalars, mut kept, repeated, .. } = fused;
        // Kernels choose their loads by the first input: one with all elements in order suits them best, and one with
        // a single element worst.
        let dense = inputs.iter().position(|input| input.is_contiguous());
        let several = || inputs.iter().position(|input| input.strides().iter().any(|&stride| stride != 0));
        if let Some(first) = dense.or_else(several) {
            inputs.swap(0, first);
            expr.swap_inputs(0, first);
        }
        for input in &inputs {
            input.buffer()?;
        }
        Ok(Operand { expr, inputs, scalars, kept: kept.pop().map(KeptOperand), repeated })
    }

    /// Returns the tensor's elements, computed apart.
    pub fn computed(&self) -> Result<Operand> {
        let Placed { expression, placement } = &self.source;
        let (_, tensor) = expression.inputs(placement).remove(0);
        tensor.buffer()?;
        Ok(Operand::plain(tensor))
    }

    pub fn device(&self) -> &Device {
        &self.source.placement.device
    }

    pub fn dtype(&self) -> DType {
        self.source.expression.expr.dtype()
    }
}

impl View {
    /// Whether the elements are a pending expression, and a kernel that loads each about `reads` times may compute it
    /// at each load.
    pub fn pays_at_loads(&self, reads: usize) -> bool {
        let Some(extent) = self.pending_extent() else { return false };
        let pays = cost::may_compute_at_loads(extent.operations(), reads);
        if !pays {
            let reason =
                || format!("an operand of shape {}: each element would be computed {reads} times", self.shape());
            self.device().runtime().note_unfused(reason);
        }
        pays
    }
}

impl Operand {
    /// Returns the elements of a tensor that has been computed.
    pub fn plain(view: View) -> Operand {
        let mut expr = Expr::default();
        expr.input(0, view.dtype);
        let (scalars, kept, repeated) = Default::default();
        Operand { expr, inputs: [view].into_iter().collect(), scalars, kept, repeated }
    }

    /// Notes that a kernel computes the expression.
    pub fn note_computed(&self) {
        self.repeated.note();
    }

    /// Whether the kernel only loads elements.
    pub fn is_plain(&self) -> bool {
        matches!(self.expr.terms(), [Term::Input(..)])
    }
}
