//! How an expression runs: by a kernel of its own, or as the epilogue of a product.

use super::allocate;
use super::epilogue::{Epilogue, Produced};
use super::expression::Expression;
use super::fusion::Fused;
use super::storage::Pending;
use super::transposition::Transposition;
use super::view::View;
use crate::base::error::Result;
use crate::base::shape::checked_elements;
use crate::device::Device;
use crate::engine::launch::Launch;
use crate::engine::pool::Buffer;
use crate::kernels::expr::{Expr, Term, TermId};
use smallvec::SmallVec;
use std::sync::Arc;

/// Launches the kernel of an expression, or the kernel of a product among its inputs. Pending results that are needed
/// later are stored too.
pub(super) fn compute(expression: &Expression, device: &Device) -> Result<Buffer> {
    loop {
        let fused = Fused::new(expression, device)?;
        let waiting: SmallVec<[usize; 4]> = (0..fused.inputs.len()).filter(|&i| fused.inputs[i].waits()).collect();
        let product = waiting.iter().copied().find(|&i| fused.inputs[i].is_product());
        let mut others = waiting.into_iter().filter(|&i| Some(i) != product).peekable();
        if others.peek().is_some() {
            for other in others {
                let storage = &fused.inputs[other].storage;
                storage.run_product(&mut storage.pending.lock())?;
            }
            // Their kernels may have computed or stored what is fused here. Or they have left an expression, which then
            // becomes part of this one.
            continue;
        }
        let Some(product) = product else { return compute_elements(fused, device) };
        if let Some(result) = finish_product(fused, product)? {
            return Ok(result);
        }
    }
}

/// Computes the expression as the epilogue of the input `product`. If that is impossible, the product runs alone, and
/// this returns `None`.
fn finish_product(fused: Fused, product: usize) -> Result<Option<Buffer>> {
    let Fused { expr, inputs, held, scalars, layout, kept, .. } = &fused;
    let View { storage, dtype, .. } = &inputs[product];
    let others: SmallVec<[&View; 4]> =
        inputs.iter().enumerate().filter(|(i, _)| *i != product).map(|(_, input)| input).collect();
    // Others wait for this product while they hold another one. So the kernel's other inputs are computed before the
    // lock is taken.
    for other in others.iter().filter(|other| !Arc::ptr_eq(&other.storage, storage)) {
        other.buffer()?;
    }
    // The product's prologue may compute the same, and then has to store it. This locks what is above the product, so
    // it comes before the product's lock.
    fused.repeated.note();
    let mut pending = storage.pending.lock();
    let Some(Pending::Product(producer)) = &*pending else { return Ok(None) };
    if others.iter().any(|other| Arc::ptr_eq(&other.storage, storage)) {
        storage.run_product(&mut pending)?;
        return Ok(None);
    }
    // The product is the last input, in the dtype of its sums.
    let mut finished = Expr::default();
    let sum = finished.input(others.len(), producer.accumulator());
    let rounded = finished.cast(*dtype, sum);
    let mut ids: SmallVec<[TermId; 12]> = SmallVec::new();
    for term in expr.terms() {
        ids.push(match *term {
            Term::Input(i, _) if usize::from(i) == product => rounded,
            Term::Input(i, dtype) => finished.input(usize::from(i) - usize::from(usize::from(i) > product), dtype),
            term => finished.push(term.map(|id| ids[id.index()])),
        });
    }
    let mut terms: SmallVec<[TermId; 2]> = kept.iter().map(|kept| ids[kept.term.index()]).collect();
    if held[product] {
        terms.push(rounded);
    }
    let epilogue = Epilogue { expr: finished, inputs: others, scalars, shape: &layout.shape, kept: terms };
    match producer.produce(Some(&epilogue))? {
        Produced::Finished { result, kept: mut stored } => {
            if held[product]
                && let Some(product) = stored.pop()
            {
                storage.store(&mut pending, product);
            }
            // Another thread may hold the lock of a result that is kept, and wait for the product's.
            drop(pending);
            kept.iter().zip(stored).for_each(|(kept, buffer)| kept.storage.keep(buffer));
            Ok(Some(result))
        }
        product => {
            let expr = epilogue.expr.describe();
            let reason = "the kernel before it cannot read its inputs in its order, or store its dtype";
            storage.device.runtime().note_unfused(|| format!("`{expr}`: {reason}"));
            storage.take(&mut pending, product)?;
            Ok(None)
        }
    }
}

/// Launches the kernel of an expression over buffers.
fn compute_elements(mut fused: Fused, device: &Device) -> Result<Buffer> {
    let elements = checked_elements(fused.shape(), "elementwise")?;
    let output = allocate(fused.shape(), fused.expr.dtype(), device, "elementwise")?;
    let allocate_kept = |dtype| allocate(fused.shape(), dtype, device, "elementwise");
    let stored: SmallVec<[Buffer; 2]> =
        fused.kept.iter().map(|kept| allocate_kept(kept.dtype)).collect::<Result<_>>()?;
    if elements > 0 {
        let copied = fused.copies() && fused.kept.is_empty() && device.tuning().copy.tiles;
        if copied
            && let [input] = &fused.inputs[..]
            && let Some(Transposition { kernel, parameters, groups }) = Transposition::new(input)
        {
            device.runtime().run(Launch { kernel, buffers: &[input.buffer()?, &output], parameters, groups })?;
            return Ok(output);
        }
        let outputs: SmallVec<[&Buffer; 4]> = [&output].into_iter().chain(&stored).collect();
        fused.launch(&outputs, device)?;
    }
    fused.kept.iter().zip(stored).for_each(|(kept, buffer)| kept.storage.keep(buffer));
    fused.repeated.note();
    Ok(output)
}
