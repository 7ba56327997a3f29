//! [`Expression`]: a deferred elementwise computation, and how it runs.

use super::allocate;
use super::epilogue::{Epilogue, Produced};
use super::storage::State;
use super::transposition::Transposition;
use super::view::View;
use crate::base::error::{Error, Result};
use crate::base::shape::{Shape, checked_elements};
use crate::base::word::Word;
use crate::device::Device;
use crate::engine::launch::Launch;
use crate::engine::pool::Buffer;
use crate::kernels::expr::Expr;
use smallvec::SmallVec;
use std::cmp::Ordering;
use std::sync::Arc;

/// An elementwise computation over the elements of `shape` in row-major order.
#[derive(Clone)]
pub(crate) struct Expression {
    pub(super) expr: Expr,
    /// Broadcast to `shape`. Each is computed already, or is a product.
    pub(super) inputs: SmallVec<[View; 4]>,
    pub(super) scalars: SmallVec<[Word; 4]>,
    pub(super) shape: Shape,
}

impl Expression {
    /// Whether every element is the same number, whatever the shape.
    pub(super) fn is_constant(&self) -> bool {
        matches!(self.expr, Expr::Scalar(..))
    }

    /// Launches the kernel of the expression, or the kernel of a product among its inputs.
    pub(super) fn compute(&self, device: &Device) -> Result<Buffer> {
        let mut products = (0..self.inputs.len()).filter(|&i| self.inputs[i].is_product());
        let Some(product) = products.next() else { return self.compute_elements(device) };
        let others: SmallVec<[usize; 4]> = products.collect();
        let ready =
            others.into_iter().try_fold(true, |ready, i| Ok::<_, Error>(ready & self.inputs[i].run_product()?))?;
        if ready && let Some(result) = self.finish_product(product)? {
            return Ok(result);
        }
        // The products have run. Some may have left an expression.
        self.again()?.compute(device)
    }

    /// Computes the expression as the epilogue of the input `product`. If that is impossible, the product runs alone,
    /// and this returns `None`.
    fn finish_product(&self, product: usize) -> Result<Option<Buffer>> {
        let View { storage, dtype, .. } = &self.inputs[product];
        let others: SmallVec<[&View; 4]> =
            self.inputs.iter().enumerate().filter(|(i, _)| *i != product).map(|(_, input)| input).collect();
        let mut state = storage.0.lock();
        let State::Product(producer) = &*state else { return Ok(None) };
        if others.iter().any(|other| Arc::ptr_eq(&other.storage, storage)) {
            state.run_product()?;
            return Ok(None);
        }
        let sum = Expr::Input(others.len(), producer.accumulator());
        let inputs: Vec<Expr> = (0..self.inputs.len())
            .map(|i| match i.cmp(&product) {
                // Rounded as memory would round it.
                Ordering::Equal if sum.dtype() != *dtype => Expr::Cast(*dtype, sum.clone().into()),
                Ordering::Equal => sum.clone(),
                Ordering::Less => Expr::Input(i, self.inputs[i].dtype),
                Ordering::Greater => Expr::Input(i - 1, self.inputs[i].dtype),
            })
            .collect();
        let scalars: Vec<usize> = (0..self.scalars.len()).collect();
        let epilogue = Epilogue {
            expr: self.expr.over(&inputs, &scalars),
            inputs: others,
            scalars: &self.scalars,
            shape: &self.shape,
            // If this expression has the only handle, nobody else can ask for the product while its state is locked.
            kept: (Arc::strong_count(storage) > 1).then_some(*dtype),
        };
        match producer.produce(Some(&epilogue))? {
            Produced::Finished { result, kept } => {
                if let Some(kept) = kept {
                    *state = State::Buffer(Arc::new(kept));
                }
                Ok(Some(result))
            }
            product => {
                *state = State::produced(product)?;
                Ok(None)
            }
        }
    }

    /// Launches the kernel of an expression over buffers.
    fn compute_elements(&self, device: &Device) -> Result<Buffer> {
        let output = allocate(&self.shape, self.expr.dtype(), device, "elementwise")?;
        let elements = checked_elements(&self.shape, "elementwise")?;
        if elements == 0 {
            return Ok(output);
        }
        if self.copies()
            && device.tuning().copy.tiles
            && let [input] = &self.inputs[..]
            && let Some(Transposition { kernel, parameters, groups }) = Transposition::new(input)
        {
            device.runtime().run(Launch { kernel, buffers: &[&*input.buffer()?, &output], parameters, groups })?;
            return Ok(output);
        }
        let (kernel, inputs, parameters) = self.plan(elements, device)?;
        let buffers: Vec<_> = inputs.iter().map(View::buffer).collect::<Result<_>>()?;
        let mut bindings: Vec<&Buffer> = buffers.iter().map(|buffer| &**buffer).collect();
        bindings.push(&output);
        let groups = elements.div_ceil(kernel.elements_per_group());
        device.runtime().run(Launch { kernel, buffers: &bindings, parameters, groups })?;
        Ok(output)
    }

    /// Whether this is only a copy.
    pub(super) fn copies(&self) -> bool {
        matches!(self.expr, Expr::Input(..))
    }
}
