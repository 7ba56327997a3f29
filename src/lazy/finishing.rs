//! [`EpiloguePlan`]: how a graph of pending expressions runs as the epilogue of the product below it.

use super::epilogue::{Epilogue, NormOfResult, Produced};
use super::fusion::Fused;
use super::graph::{Graph, Seen};
use super::placement::Placement;
use super::storage::Pending;
use super::view::View;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::layout::Layout;
use crate::base::word::Word;
use crate::engine::pool::Buffer;
use crate::kernels::expr::{Expr, Term, TermId};
use smallvec::SmallVec;

/// How a graph over one product runs as the epilogue of the product's kernel. Graphs of the same [key](Graph::key) have
/// the same plan, if their products have the same number of elements and the same accumulator.
pub(super) struct EpiloguePlan {
    /// All of the product.
    product: Seen,
    accumulator: DType,
    /// Whether somebody may ask for the product later. It is then kept last.
    held: bool,
    /// The product is the last input, in the dtype of its sums.
    expr: Expr,
    others: SmallVec<[Input; 4]>,
    scalars: SmallVec<[(usize, DType); 4]>,
    /// The terms that are kept, and the nodes that they belong to.
    terms: SmallVec<[TermId; 2]>,
    kept: SmallVec<[u8; 2]>,
    /// The nodes that the kernel computes and does not store, although they are needed again.
    repeated: SmallVec<[u8; 2]>,
}

/// An input of the epilogue, broadcast to its shape.
struct Input {
    seen: Seen,
    /// Not a placement: the device keeps the plan, so the plan must not keep the device.
    layout: Layout,
    dtype: DType,
}

impl EpiloguePlan {
    /// Plans the expression as the epilogue of the input `product`, all of a product with this accumulator.
    pub fn new(fused: &Fused, product: usize, accumulator: DType, graph: &Graph<'_>) -> EpiloguePlan {
        let Fused { expr, inputs, held, scalars, kept, parts, .. } = fused;
        let mut finished = Expr::default();
        let sum = finished.input(inputs.len() - 1, accumulator);
        let rounded = finished.cast(inputs[product].dtype, sum);
        let mut ids: SmallVec<[TermId; 12]> = SmallVec::new();
        for term in expr.terms() {
            ids.push(match *term {
                Term::Input(i, _) if usize::from(i) == product => rounded,
                Term::Input(i, dtype) => finished.input(usize::from(i) - usize::from(usize::from(i) > product), dtype),
                term => finished.push(term.map(|id| ids[id.index()])),
            });
        }
        let held = held[product];
        let terms = kept.iter().map(|kept| ids[kept.term.index()]).chain(held.then_some(rounded));
        let seen = |i: usize| Seen::new(graph, parts.inputs[i], inputs[i].layout());
        let input = |i: usize| {
            let (layout, dtype) = (inputs[i].layout().clone(), inputs[i].dtype);
            Input { seen: seen(i), layout, dtype }
        };
        EpiloguePlan {
            product: seen(product),
            accumulator,
            held,
            expr: finished,
            others: (0..inputs.len()).filter(|&i| i != product).map(input).collect(),
            scalars: parts.scalars.iter().zip(scalars).map(|(&operand, word)| (operand, word.dtype)).collect(),
            terms: terms.collect(),
            kept: parts.kept.clone(),
            repeated: parts.repeated.clone(),
        }
    }

    /// Launches the product's kernel with the epilogue, over the elements of `placement`. The kernel may compute a norm
    /// of them, too. If the epilogue is impossible, the product runs alone, and this returns `None`.
    pub fn run(&self, graph: &Graph<'_>, placement: &Placement, norm: Option<&NormOfResult>) -> Result<Option<Buffer>> {
        let Some(storage) = graph.storage(self.product.operand) else { return Ok(None) };
        let mut others: SmallVec<[View; 4]> = SmallVec::new();
        for Input { seen, layout, dtype } in &self.others {
            let Some(storage) = graph.storage(seen.operand) else { return Ok(None) };
            let offset = seen.offset(graph);
            let placement = if offset == layout.offset && storage.placement.layout == *layout {
                storage.placement.clone()
            } else {
                Placement::new(Layout { offset, ..layout.clone() }, &placement.device)
            };
            others.push(View::of_part(storage.clone(), placement, *dtype));
        }
        // Others wait for this product while they hold another one. So the kernel's other inputs are computed before
        // the lock is taken.
        others.iter().try_for_each(|other| other.buffer().map(drop))?;
        // The product's prologue may compute the same, and then has to store it. This locks what is above the product,
        // so it comes before the product's lock.
        let above = |node| graph.node(node).storage.as_ref();
        self.repeated.iter().filter_map(|&node| above(node)).for_each(|repeated| repeated.note_computed());
        let mut pending = storage.pending.lock();
        let Some(Pending::Product { producer, .. }) = &*pending else { return Ok(None) };
        let is_whole = self.product.offset(graph) == 0 && storage.placement.elements() == placement.elements();
        if !is_whole || producer.accumulator() != self.accumulator {
            return Ok(None);
        }
        let scalar = |&(operand, dtype): &(usize, DType)| Word::of_bits(graph.operands()[operand].value, dtype);
        let scalars: SmallVec<[Word; 4]> = self.scalars.iter().map(scalar).collect();
        let epilogue = Epilogue {
            expr: &self.expr,
            inputs: &others,
            scalars: &scalars,
            shape: &placement.shape,
            kept: &self.terms,
            norm,
        };
        match producer.produce(Some(&epilogue))? {
            Produced::Finished { result, kept: mut stored } => {
                if self.held
                    && let Some(product) = stored.pop()
                {
                    storage.store(&mut pending, product);
                }
                // Another thread may hold the lock of a result that is kept, and wait for the product's.
                drop(pending);
                for (&node, buffer) in self.kept.iter().zip(stored) {
                    if let Some(storage) = above(node) {
                        storage.keep(buffer);
                    }
                }
                Ok(Some(result))
            }
            product => {
                let expr = self.expr.describe();
                let reason = "the kernel before it cannot read its inputs in its order, or store its dtype";
                placement.device.runtime().note_unfused(|| format!("`{expr}`: {reason}"));
                storage.take(&mut pending, product)?;
                Ok(None)
            }
        }
    }
}
