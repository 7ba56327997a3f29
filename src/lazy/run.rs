//! How an expression runs: by a kernel of its own, or as the epilogue of a product.

use super::allocate;
use super::epilogue::{Epilogue, Produced};
use super::expression::{Expression, Source};
use super::fusion::Fused;
use super::graph::Graph;
use super::planning::{FusedPlan, is_strided};
use super::storage::Pending;
use super::transposition::Transposition;
use super::view::View;
use crate::base::error::{Error, Result};
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
        let graph = Graph::below(expression);
        if !graph.has_product()
            && let Some(plan) = device.runtime().plans().find::<FusedPlan>(&graph.key())
        {
            return plan.run(&graph, device);
        }
        let Some(fused) = Fused::new(&graph, device)? else { continue };
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
        let result = match product {
            Some(product) => finish_product(fused, product)?,
            None => compute_elements(fused, &graph, device)?,
        };
        if let Some(result) = result {
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

/// Launches the kernel of an expression over buffers. If it has too many strides for one launch, some operands are
/// computed apart, and this returns `None`. Transposing copies are not planned.
fn compute_elements(fused: Fused, graph: &Graph, device: &Device) -> Result<Option<Buffer>> {
    let root = graph.root();
    if checked_elements(fused.shape(), "elementwise")? == 0 {
        let allocate = |dtype| allocate(fused.shape(), dtype, device, "elementwise");
        for kept in &fused.kept {
            kept.storage.keep(allocate(kept.dtype)?);
        }
        return allocate(fused.expr.dtype()).map(Some);
    }
    if fused.copies()
        && fused.kept.is_empty()
        && device.tuning().copy.tiles
        && let [input] = &fused.inputs[..]
        && let Some(Transposition { kernel, parameters, groups }) = Transposition::new(input)
    {
        let output = allocate(fused.shape(), fused.expr.dtype(), device, "elementwise")?;
        device.runtime().run(Launch { kernel, buffers: &[input.buffer()?, &output], parameters, groups })?;
        fused.repeated.note();
        return Ok(Some(output));
    }
    if let Some(plan) = fused.plan(graph, device)? {
        return device.runtime().plans().insert(&graph.key(), plan).run(graph, device).map(Some);
    }
    if !graph.is_computed() {
        root.operands.iter().try_for_each(|operand| operand.storage.buffer().map(drop))?;
        return Ok(None);
    }
    // A copy of an operand in order needs no strides.
    let operands = root.views();
    let strided = operands.iter().rposition(is_strided).filter(|_| !fused.copies());
    let Some(strided) = strided else {
        let feature = format!("an elementwise operation over shape {}, whose axes do not merge", fused.shape());
        return Err(Error::Unsupported { feature, device: device.to_string() });
    };
    let mut with_copy = root.clone();
    let copy = operands[strided].copied()?;
    with_copy.operands[strided] = Source { storage: copy.storage, layout: Some(copy.layout) };
    compute(&with_copy, device).map(Some)
}
