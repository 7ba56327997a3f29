//! What becomes one kernel: which pending operands are computed with an expression, and which of them are stored.

use super::cost;
use super::expression::{Expression, Source, operations};
use super::graph::{Graph, Nodes, Part, Stores};
use super::storage::Storage;
use super::view::{View, is_same};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::layout::Layout;
use crate::base::shape::Shape;
use crate::base::word::{Word, word_count};
use crate::device::Device;
use crate::kernels::expr::{Expr, Term, TermId};
use smallvec::SmallVec;
use std::sync::{Arc, Weak};

/// The most operations that are fused into an operation.
const MAX_OPERATIONS: usize = 24;
/// The most inputs of a fused expression, and the most words of its numbers. This leaves room for strides in the
/// smallest parameter block.
const MAX_INPUTS: usize = 8;
const MAX_WORDS: usize = 12;
/// The most operands of an operation. Operands that are still to come need room too.
const MOST_OPERANDS: usize = 3;
/// The most pending results that a kernel stores beside its own.
const MAX_KEPT: usize = 3;

const TOO_LARGE: &str = "together they would have too many operations, inputs or numbers for one kernel";

/// An estimate of the size of a fused expression. What several operands share counts several times, except for inputs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Extent {
    pub operations: u8,
    /// The words of its numbers.
    pub words: u8,
    /// A bit for each input. Two may have the same one.
    inputs: u64,
}

impl Extent {
    fn of_input(storage: &Arc<Storage>) -> Extent {
        // Storages lie at multiples of 16 bytes or more.
        let address = Arc::as_ptr(storage).addr() as u64;
        let bit = (address >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        Extent { inputs: 1 << bit, ..Extent::default() }
    }

    fn and(self, other: Extent) -> Extent {
        Extent {
            operations: self.operations.saturating_add(other.operations),
            words: self.words.saturating_add(other.words),
            inputs: self.inputs | other.inputs,
        }
    }

    fn fits(self, device: &Device) -> bool {
        let bindings = device.info().limits.max_bindings as usize - 1;
        usize::from(self.operations) <= MAX_OPERATIONS
            && self.inputs.count_ones() as usize + MOST_OPERANDS - 1 <= bindings.min(MAX_INPUTS)
            && usize::from(self.words) <= MAX_WORDS
    }
}

/// Returns the extent of an expression over `operands` with one operand more. If the operand's own pending expression
/// is too large to be fused, computes it now.
#[inline(always)]
pub(super) fn make_room(operands: &[Source], extent: Extent, operand: &View) -> Result<Extent> {
    let pending = operand.storage.pending_extent();
    let sum = extent.and(pending.unwrap_or_else(|| Extent::of_input(&operand.storage)));
    if pending.is_none() || sum.fits(operand.device()) { Ok(sum) } else { make_room_exactly(operands, extent, operand) }
}

/// The same if the estimate is too large.
fn make_room_exactly(operands: &[Source], extent: Extent, operand: &View) -> Result<Extent> {
    let device = operand.device();
    let exact = exact_extent(operands.iter().map(|source| &source.storage).chain([&operand.storage]));
    if exact.fits(device) {
        return Ok(exact);
    }
    device.runtime().note_unfused(|| format!("an operand of shape {}: {TOO_LARGE}", operand.shape()));
    operand.buffer()?;
    Ok(extent.and(Extent::of_input(&operand.storage)))
}

/// Counts what is below some operands, each part once.
fn exact_extent<'a>(operands: impl Iterator<Item = &'a Arc<Storage>>) -> Extent {
    let mut nodes = Nodes::default();
    let mut extent = Extent::default();
    for operand in operands {
        nodes.visit(operand);
        extent.inputs |= operand.pending_extent().unwrap_or_else(|| Extent::of_input(operand)).inputs;
    }
    let mut words: SmallVec<[Word; 16]> = SmallVec::new();
    for expression in nodes.expressions() {
        extent.operations = extent.operations.saturating_add(operations(&expression.expr));
        for &word in &expression.scalars {
            if !words.contains(&word) {
                words.push(word);
            }
        }
    }
    extent.words = word_count(&words).min(255) as u8;
    extent
}

/// A pending result that a kernel stores beside its own.
pub(super) struct Kept {
    pub term: TermId,
    pub dtype: DType,
    pub storage: Arc<Storage>,
}

/// An expression with everything that is fused into it.
pub(super) struct Fused {
    pub expr: Expr,
    /// Broadcast to the shape. Each is computed already, or is a product.
    pub inputs: SmallVec<[View; 4]>,
    /// For each input, whether it is a product that somebody may ask for later.
    pub held: SmallVec<[bool; 4]>,
    pub scalars: SmallVec<[Word; 4]>,
    pub layout: Arc<Layout>,
    pub kept: SmallVec<[Kept; 2]>,
    pub repeated: Repeated,
    pub parts: Parts,
}

/// What a fused expression has from its graph.
#[derive(Default)]
pub(super) struct Parts {
    pub inputs: SmallVec<[Part; 8]>,
    pub scalars: SmallVec<[Part; 8]>,
    /// The operands that are stored beside the result.
    pub kept: SmallVec<[Part; 2]>,
    /// The operands that are [`Repeated`].
    pub repeated: SmallVec<[Part; 2]>,
}

/// The pending results that a kernel computes and does not store, although they are needed again.
#[derive(Default)]
pub(super) struct Repeated(SmallVec<[Weak<Storage>; 2]>);

impl Repeated {
    /// Notes that a kernel computes them.
    pub fn note(&self) {
        self.0.iter().filter_map(Weak::upgrade).for_each(|storage| storage.note_computed());
    }
}

/// Fuses an expression.
struct Fuser<'a> {
    fused: Fused,
    graph: &'a Graph<'a>,
    stores: Stores,
    needed: Stores,
    /// The terms of the nodes that have been fused, seen through a layout.
    known: SmallVec<[(u8, Arc<Layout>, TermId); 20]>,
    /// Whether something below has been computed apart, so that the fusion starts again.
    computed: bool,
    most_kept: usize,
    /// Why the last part that could not be fused was not.
    why: &'static str,
    device: &'a Device,
    elements: usize,
}

impl View {
    /// Whether a product that has not run is below the elements, or is what they are.
    pub(super) fn depends_on_product(&self) -> bool {
        let mut nodes = Nodes::default();
        nodes.visit(&self.storage);
        nodes.has_product()
    }
}

impl Fused {
    /// Fuses what is below an expression into it. What cannot be fused is computed. Then this returns `None`: the
    /// kernels that ran may have computed or stored what else is below, so the graph is out of date.
    pub fn new(graph: &Graph, device: &Device) -> Result<Option<Fused>> {
        Fused::keeping(MAX_KEPT, graph, device)
    }

    /// The same for an operand of another kernel, which may be able to store one thing beside its result.
    pub fn as_operand(expression: &Expression, keeps: bool, device: &Device) -> Result<Fused> {
        loop {
            if let Some(fused) = Fused::keeping(keeps.into(), &Graph::below(expression), device)? {
                return Ok(fused);
            }
        }
    }

    fn keeping(most_kept: usize, graph: &Graph, device: &Device) -> Result<Option<Fused>> {
        let expression = graph.root();
        if graph.is_computed() {
            return Ok(Some(Fused::alone(expression)));
        }
        let fused = Fused {
            expr: Expr::default(),
            inputs: SmallVec::new(),
            held: SmallVec::new(),
            scalars: SmallVec::new(),
            layout: expression.layout.clone(),
            kept: SmallVec::new(),
            repeated: Repeated::default(),
            parts: Parts::default(),
        };
        let [stores, needed] = graph.stores(most_kept > 0);
        let mut fuser = Fuser {
            fused,
            stores,
            needed,
            graph,
            known: SmallVec::new(),
            computed: false,
            most_kept,
            why: "",
            device,
            elements: expression.layout.elements(),
        };
        fuser.add(Graph::ROOT, expression, &expression.layout)?;
        Ok((!fuser.computed).then_some(fuser.fused))
    }

    /// Returns an expression into which nothing is fused, because its operands have been computed.
    fn alone(expression: &Expression) -> Fused {
        let parts = |count| (0..count).map(|index| Part { node: Graph::ROOT, index: index as u8 });
        let inputs: SmallVec<[View; 4]> = expression.views().into_iter().collect();
        let (inputs_of, scalars_of) = (parts(inputs.len()), parts(expression.scalars.len()));
        Fused {
            expr: expression.expr.clone(),
            held: SmallVec::from_elem(false, inputs.len()),
            inputs,
            scalars: SmallVec::from_slice(&expression.scalars),
            layout: expression.layout.clone(),
            kept: SmallVec::new(),
            repeated: Repeated::default(),
            parts: Parts { inputs: inputs_of.collect(), scalars: scalars_of.collect(), ..Parts::default() },
        }
    }

    pub fn shape(&self) -> &Shape {
        &self.layout.shape
    }

    /// Whether this is only a copy.
    pub fn copies(&self) -> bool {
        matches!(self.expr.terms(), [Term::Input(..)])
    }
}

impl Fuser<'_> {
    /// Adds the terms of an expression whose elements are seen through a layout. Returns `None` if this is impossible.
    fn add(&mut self, node: u8, expression: &Expression, seen: &Arc<Layout>) -> Result<Option<TermId>> {
        let same = is_same(seen, &expression.layout);
        let in_order = || same || seen.is_all(expression.layout.elements());
        if expression.expr.terms().contains(&Term::Index) && !in_order() {
            self.why = "its elements depend on their place, and a view has moved them";
            return Ok(None);
        }
        let scalars = self.merge_scalars(node, &expression.scalars);
        let (views, graph) = (expression.views(), self.graph);
        let mut ids: SmallVec<[TermId; 12]> = SmallVec::new();
        for term in expression.expr.terms() {
            let id = match *term {
                Term::Input(i, _) => {
                    let operand = &views[usize::from(i)];
                    let through = if same { None } else { operand.layout.through(seen).map(Arc::new) };
                    if !same && through.is_none() {
                        self.why = "an operand seen through a view has no strides";
                        return Ok(None);
                    }
                    let layout = through.as_ref().unwrap_or(&operand.layout);
                    let part = Part { node, index: i };
                    let Some(term) = self.operand(operand, graph.operands(node)[usize::from(i)], part, layout)? else {
                        return Ok(None);
                    };
                    term
                }
                Term::Scalar(i, dtype) => self.fused.expr.scalar(scalars[usize::from(i)], dtype),
                term => self.fused.expr.push(term.map(|id| ids[id.index()])),
            };
            ids.push(id);
        }
        Ok(ids.last().copied())
    }

    /// Adds the operand `part`, a `node`, seen through a layout: its expression, or itself as an input. Returns `None`
    /// if this is impossible, or if something has been computed apart.
    fn operand(&mut self, operand: &View, node: u8, part: Part, layout: &Arc<Layout>) -> Result<Option<TermId>> {
        let known = self.known.iter().rfind(|(known, seen, _)| *known == node && is_same(seen, layout));
        if let Some((.., term)) = known {
            return Ok(Some(*term));
        }
        let graph = self.graph;
        if let Some(expression) = &graph.node(node).expression {
            let term = self.absorb(operand, node, part, (expression, layout))?;
            if let Some(term) = term {
                self.known.push((node, layout.clone(), term));
            } else if !self.computed {
                let why = self.why;
                self.device.runtime().note_unfused(|| format!("`{}`: {why}", expression.expr.describe()));
                operand.buffer()?;
                self.computed = true;
            }
            return Ok(term);
        }
        let input = self.input(operand, node, part, layout);
        // The root's own operands always have room.
        if part.node != Graph::ROOT && self.fused.inputs.len() > MAX_INPUTS {
            self.why = TOO_LARGE;
            return Ok(None);
        }
        let term = self.fused.expr.input(input, operand.dtype);
        self.known.push((node, layout.clone(), term));
        Ok(Some(term))
    }

    /// Adds a pending expression. Returns `None` if it has to be computed apart.
    fn absorb(
        &mut self,
        operand: &View,
        node: u8,
        part: Part,
        (expression, seen): (&Expression, &Arc<Layout>),
    ) -> Result<Option<TermId>> {
        let elements = expression.layout.elements();
        let (stored, needed) = (self.stores[usize::from(node)], self.needed[usize::from(node)]);
        if stored && !(seen.is_all(elements) && self.fused.kept.len() < self.most_kept) {
            self.why = "it is needed again, and the kernel that reads it cannot store it";
            return Ok(None);
        }
        if !cost::may_repeat(self.graph.node(node).recorded, elements, self.elements) {
            self.why = "it would be computed again for each element that repeats it";
            return Ok(None);
        }
        let dtype = operand.dtype;
        let Some(term) = self.add(node, expression, seen)? else { return Ok(None) };
        // Rounded as memory would round it, so that fusion does not change the numbers.
        let term = self.fused.expr.rounded(dtype, term);
        if stored {
            self.fused.kept.push(Kept { term, dtype, storage: operand.storage.clone() });
            self.fused.parts.kept.push(part);
        } else if needed {
            self.fused.repeated.0.push(Arc::downgrade(&operand.storage));
            self.fused.parts.repeated.push(part);
        }
        // The result's other operands need room, too.
        let bindings = self.device.info().limits.max_bindings as usize - 1;
        let fits = self.fused.inputs.len() + self.fused.kept.len() + MOST_OPERANDS - 1 <= bindings.min(MAX_INPUTS)
            && word_count(&self.fused.scalars) <= MAX_WORDS
            && self.fused.expr.terms().len() <= 4 * MAX_OPERATIONS;
        if !fits {
            self.why = TOO_LARGE;
        }
        Ok(fits.then_some(term))
    }

    fn input(&mut self, operand: &View, node: u8, part: Part, layout: &Arc<Layout>) -> usize {
        let Fused { inputs, held, parts, .. } = &mut self.fused;
        parts.inputs.push(part);
        held.push(self.stores[usize::from(node)]);
        inputs.push(operand.with_layout(layout.clone()));
        inputs.len() - 1
    }

    /// Adds the numbers of an operation. Equal numbers of several operations become one. Those of one operation do not:
    /// if they are equal by chance, they need no kernel of their own.
    fn merge_scalars(&mut self, node: u8, scalars: &[Word]) -> SmallVec<[usize; 4]> {
        if scalars.is_empty() {
            return SmallVec::new();
        }
        let before = self.fused.scalars.len();
        let merge = |(index, &word): (usize, &Word)| {
            let Fused { scalars: all, parts, .. } = &mut self.fused;
            all[..before].iter().position(|known| *known == word).unwrap_or_else(|| {
                all.push(word);
                parts.scalars.push(Part { node, index: index as u8 });
                all.len() - 1
            })
        };
        scalars.iter().enumerate().map(merge).collect()
    }
}
