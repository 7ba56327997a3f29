//! How an expression runs: by a kernel of its own, or as the epilogue of a product.

use super::allocate;
use super::epilogue::NormOfResult;
use super::expression::{Expression, Placed, Source};
use super::finishing::EpiloguePlan;
use super::fusion::Fused;
use super::graph::Graph;
use super::placement::Placement;
use super::planning::{FusedPlan, is_strided};
use super::storage::{Pending, Storage};
use super::transposition::Transposition;
use crate::base::error::{Error, Result};
use crate::base::shape::checked_elements;
use crate::device::Device;
use crate::engine::launch::Launch;
use crate::engine::pool::Buffer;
use smallvec::SmallVec;
use std::sync::Arc;

/// Launches the kernel of an expression, or the kernel of a product among its inputs. Pending results that are needed
/// later are stored too, and perhaps a norm.
pub(super) fn compute(
    expression: &Expression,
    placement: &Arc<Placement>,
    norm: Option<&NormOfResult>,
) -> Result<Buffer> {
    let device = &placement.device;
    let _span = device.runtime().plan_span();
    compute_others(expression, device)?;
    if let Some(result) = run_planned(expression, placement, norm)? {
        return Ok(result);
    }
    loop {
        let graph = Graph::new(expression, placement);
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
            Some(product) => finish_product(&fused, product, &graph, norm)?,
            // Another thread has run it.
            None if graph.has_product() => continue,
            None => compute_elements(fused, &graph, device)?,
        };
        if let Some(result) = result {
            return Ok(result);
        }
    }
}

/// Inside a capture, computes what an expression depends on and was recorded elsewhere. It is not part of the step, so
/// no kernel of the step may store it.
pub(super) fn compute_others(expression: &Expression, device: &Device) -> Result<()> {
    let Some(capture) = device.runtime().capture_id() else { return Ok(()) };
    let mut below: Vec<Arc<Storage>> = expression.storages().cloned().collect();
    let mut seen: Vec<*const Storage> = Vec::new();
    while let Some(storage) = below.pop() {
        if seen.contains(&Arc::as_ptr(&storage)) {
            continue;
        }
        seen.push(Arc::as_ptr(&storage));
        let pending = storage.pending.lock();
        match &*pending {
            Some(other) if other.capture() != Some(capture) => {
                drop(pending);
                storage.buffer()?;
            }
            Some(Pending::Expression { expression, .. }) => below.extend(expression.storages().cloned()),
            _ => {}
        }
    }
    Ok(())
}

/// Launches a kernel that was planned before. Returns `None` if there is none, or it does not suit the product.
fn run_planned(
    expression: &Expression,
    placement: &Arc<Placement>,
    norm: Option<&NormOfResult>,
) -> Result<Option<Buffer>> {
    let runtime = placement.device.runtime();
    // Without expressions: a plan needs none.
    let graph = &mut Graph::empty(false);
    graph.add_root(expression, placement);
    let key = graph.take_key();
    if graph.has_product() {
        return runtime.with_plan(key, |plan: &EpiloguePlan| plan.run(graph, placement, norm)).unwrap_or(Ok(None));
    }
    runtime.with_plan(key, |plan: &FusedPlan| plan.run(graph, &placement.device)).ok().transpose()
}

/// Computes the expression as the epilogue of the input `product`. If that is impossible, the product runs alone, and
/// this returns `None`.
fn finish_product(
    fused: &Fused,
    product: usize,
    graph: &Graph<'_>,
    norm: Option<&NormOfResult>,
) -> Result<Option<Buffer>> {
    let accumulator = match &*fused.inputs[product].storage.pending.lock() {
        Some(Pending::Product { producer, .. }) => producer.accumulator(),
        _ => return Ok(None),
    };
    let plan = EpiloguePlan::new(fused, product, accumulator, graph);
    let result = plan.run(graph, &fused.placement, norm)?;
    if result.is_some() && graph.products() == 1 {
        fused.placement.device.runtime().keep_plan(graph.key(), plan);
    }
    Ok(result)
}

/// Launches the kernel of an expression over buffers. If it has too many strides for one launch, some operands are
/// computed apart, and this returns `None`. Transposing copies are not planned.
fn compute_elements(fused: Fused, graph: &Graph<'_>, device: &Device) -> Result<Option<Buffer>> {
    let Some(Placed { expression: root, placement }) = graph.expression(Graph::ROOT) else { return Ok(None) };
    if checked_elements(fused.shape(), "elementwise")? == 0 {
        let allocate = |dtype| allocate(fused.shape(), dtype, device, "elementwise");
        for kept in &fused.kept {
            kept.storage.keep(allocate(kept.dtype)?);
        }
        return allocate(fused.expr.dtype()).map(Some);
    }
    if fused.copies()
        && fused.kept.is_empty()
        && let [input] = &fused.inputs[..]
        && let Some(Transposition { kernel, parameters, groups }) = Transposition::new(input)
    {
        let output = allocate(fused.shape(), fused.expr.dtype(), device, "elementwise")?;
        device.runtime().run(Launch { kernel, buffers: &[input.buffer()?, &output], parameters, groups })?;
        fused.repeated.note();
        return Ok(Some(output));
    }
    if let Some(plan) = fused.plan(graph, device)? {
        let result = plan.run(graph, device)?;
        device.runtime().keep_plan(graph.key(), plan);
        return Ok(Some(result));
    }
    if !graph.is_computed() {
        root.storages().try_for_each(|storage| storage.buffer().map(drop))?;
        return Ok(None);
    }
    // A copy of an operand in order needs no strides.
    let inputs = root.inputs(placement);
    let strided = inputs.iter().rfind(|(_, input)| is_strided(input)).filter(|_| !fused.copies());
    let Some((operand, strided)) = strided else {
        let feature = format!("an elementwise operation over shape {}, whose axes do not merge", fused.shape());
        return Err(Error::Unsupported { feature, device: device.to_string() });
    };
    let mut with_copy = root.clone();
    let copy = strided.copied()?;
    with_copy.operands[*operand] = Source::Tensor { placed: Some(copy.placement().clone()), storage: copy.storage };
    compute(&with_copy, placement, None).map(Some)
}
