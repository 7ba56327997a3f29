//! What becomes one kernel: which pending operands are computed with an expression, and which of them are stored.

use super::cost;
use super::expression::{Expression, Placed, Source};
use super::graph::{Graph, Stores};
use super::placement::Placement;
use super::run::compute_others;
use super::storage::Storage;
use super::view::View;
use crate::base::dtype::DType;
use crate::base::error::Result;
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
///
/// From the lowest bit: a byte for its operations, a byte for the words of its numbers, whether an operation has
/// several pending operands, whether an input was not computed, and a bit for each input. Two inputs may have the same
/// one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Extent(u64);

impl Extent {
    const JOINED: u64 = 1 << 16;
    const WAITS: u64 = 1 << 17;
    const FIRST_INPUT: u64 = 1 << 18;
    const INPUTS: u64 = 64 - 18;

    pub fn of_operations(operations: u8) -> Extent {
        Extent(operations.into())
    }

    pub fn of_words(words: usize) -> Extent {
        Extent((words.min(255) as u64) << 8)
    }

    fn of_input(storage: &Arc<Storage>) -> Extent {
        // Storages lie at multiples of 16 bytes or more.
        let hash = (Arc::as_ptr(storage).addr() as u64 >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Extent(Extent::FIRST_INPUT << (((hash >> 32) * Extent::INPUTS) >> 32))
    }

    #[inline]
    pub fn operations(self) -> u8 {
        self.0 as u8
    }

    fn words(self) -> u8 {
        (self.0 >> 8) as u8
    }

    fn inputs(self) -> usize {
        (self.0 / Extent::FIRST_INPUT).count_ones() as usize
    }

    /// Returns the extent of both together.
    #[inline]
    pub fn and(self, other: Extent) -> Extent {
        let operations = self.operations().saturating_add(other.operations());
        let words = self.words().saturating_add(other.words());
        let others = (self.0 | other.0) >> 16 << 16;
        Extent(others | u64::from(words) << 8 | u64::from(operations))
    }

    fn has_few_operations(self) -> bool {
        usize::from(self.operations()) <= MAX_OPERATIONS
    }

    fn fits(self, device: &Device) -> bool {
        let bindings = device.info().limits.max_bindings as usize - 1;
        self.has_few_operations()
            && self.inputs() + MOST_OPERANDS - 1 <= bindings.min(MAX_INPUTS)
            && usize::from(self.words()) <= MAX_WORDS
    }
}

/// Returns the extent of an expression over `operands` with one operand more. If the operand's own pending expression
/// is too large to be fused, computes it now.
#[inline(always)]
pub(super) fn make_room(operands: &[Source], extent: Extent, operand: &View) -> Result<Extent> {
    let Some(pending) = operand.pending_extent() else {
        let waits = if operand.storage.computed().is_none() { Extent::WAITS } else { 0 };
        return Ok(Extent(extent.and(Extent::of_input(&operand.storage)).0 | waits));
    };
    let mut sum = extent.and(pending);
    if extent.operations() > 0 {
        sum.0 |= Extent::JOINED;
    }
    if sum.fits(operand.device()) { Ok(sum) } else { make_room_exactly(operands, extent, operand, sum) }
}

/// The same if the estimate, `sum`, is too large.
fn make_room_exactly(operands: &[Source], extent: Extent, operand: &View, sum: Extent) -> Result<Extent> {
    let device = operand.device();
    // Operations count several times only if something has joined them.
    if sum.0 & Extent::JOINED != 0 || sum.has_few_operations() {
        let exact = exact_extent(operands.iter().filter_map(Source::storage).chain([&operand.storage]));
        if exact.fits(device) {
            return Ok(exact);
        }
    }
    device.runtime().note_unfused(|| format!("an operand of shape {}: {TOO_LARGE}", operand.shape()));
    operand.buffer()?;
    Ok(extent.and(Extent::of_input(&operand.storage)))
}

/// Counts what is below some operands, each part once.
fn exact_extent<'a>(operands: impl Iterator<Item = &'a Arc<Storage>>) -> Extent {
    let graph = Graph::of(operands);
    let mut extent = Extent(if graph.has_product() { Extent::WAITS } else { 0 });
    let mut words: SmallVec<[Word; 16]> = SmallVec::new();
    for Placed { expression, .. } in graph.expressions() {
        extent = extent.and(Extent::of_operations(expression.operations()));
        for (_, word) in expression.numbers() {
            if !words.contains(&word) {
                words.push(word);
            }
        }
    }
    let inputs = graph.inputs().map(Extent::of_input);
    inputs.fold(extent.and(Extent::of_words(word_count(&words))), Extent::and)
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
    pub placement: Arc<Placement>,
    pub kept: SmallVec<[Kept; 2]>,
    pub repeated: Repeated,
    pub parts: Parts,
}

/// What a fused expression has from its graph.
#[derive(Default)]
pub(super) struct Parts {
    /// Operands of the graph.
    pub inputs: SmallVec<[usize; 8]>,
    pub scalars: SmallVec<[usize; 8]>,
    /// The nodes that are stored beside the result.
    pub kept: SmallVec<[u8; 2]>,
    /// The nodes that are [`Repeated`].
    pub repeated: SmallVec<[u8; 2]>,
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
struct Fuser<'a, 'g> {
    fused: Fused,
    graph: &'a Graph<'g>,
    stores: Stores,
    needed: Stores,
    /// The terms of the nodes that have been fused, seen through a layout.
    known: SmallVec<[(u8, Arc<Placement>, TermId); 20]>,
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
        let may_depend = match self.pending_extent() {
            Some(extent) => extent.0 & Extent::WAITS != 0,
            None => self.storage.computed().is_none(),
        };
        may_depend && Graph::of([&self.storage].into_iter()).has_product()
    }
}

impl Fused {
    /// Fuses what is below an expression into it. What cannot be fused is computed. Then this returns `None`: the
    /// kernels that ran may have computed or stored what else is below, so the graph is out of date.
    pub fn new(graph: &Graph<'_>, device: &Device) -> Result<Option<Fused>> {
        Fused::keeping(MAX_KEPT, graph, device)
    }

    /// The same for an operand of another kernel, which may be able to store one thing beside its result.
    pub fn as_operand(source: &Placed, keeps: bool) -> Result<Fused> {
        let Placed { expression, placement } = source;
        compute_others(expression, &placement.device)?;
        loop {
            if let Some(fused) = Fused::keeping(keeps.into(), &Graph::new(expression, placement), &placement.device)? {
                return Ok(fused);
            }
        }
    }

    fn keeping(most_kept: usize, graph: &Graph<'_>, device: &Device) -> Result<Option<Fused>> {
        let Some(Placed { expression, placement }) = graph.expression(Graph::ROOT) else { return Ok(None) };
        let fused = Fused {
            expr: Expr::default(),
            inputs: SmallVec::new(),
            held: SmallVec::new(),
            scalars: SmallVec::new(),
            placement: placement.clone(),
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
            elements: placement.elements(),
        };
        fuser.add(Graph::ROOT, (expression, placement), placement)?;
        Ok((!fuser.computed).then_some(fuser.fused))
    }

    pub fn shape(&self) -> &Shape {
        &self.placement.shape
    }

    /// Whether this is only a copy.
    pub fn copies(&self) -> bool {
        matches!(self.expr.terms(), [Term::Input(..)])
    }
}

impl Fuser<'_, '_> {
    /// Adds the terms of an expression whose elements are seen through a layout. Returns `None` if this is impossible.
    fn add(
        &mut self,
        node: u8,
        (expression, placement): (&Expression, &Arc<Placement>),
        seen: &Arc<Placement>,
    ) -> Result<Option<TermId>> {
        let same = seen.is_same(placement);
        let in_order = || same || seen.is_all(placement.elements());
        if expression.expr.terms().contains(&Term::Index) && !in_order() {
            self.why = "its elements depend on their place, and a view has moved them";
            return Ok(None);
        }
        let scalars = self.merge_scalars(node, expression);
        let mut ids: SmallVec<[TermId; 12]> = SmallVec::new();
        for term in expression.expr.terms() {
            let id = match *term {
                Term::Input(i, dtype) => {
                    let Some(operand) = expression.input(i, dtype, placement) else { return Ok(None) };
                    let operand = if same {
                        operand
                    } else {
                        let Some(layout) = operand.layout().through(seen) else {
                            self.why = "an operand seen through a view has no strides";
                            return Ok(None);
                        };
                        operand.with_layout(layout)
                    };
                    let Some(term) = self.operand(&operand, self.graph.operand(node, i))? else { return Ok(None) };
                    term
                }
                Term::Scalar(i, dtype) => {
                    let merged = scalars.iter().find(|(operand, _)| *operand == i);
                    let Some((_, scalar)) = merged else { return Ok(None) };
                    self.fused.expr.scalar(*scalar, dtype)
                }
                term => self.fused.expr.push(term.map(|id| ids[id.index()])),
            };
            ids.push(id);
        }
        Ok(ids.last().copied())
    }

    /// Adds an operand of the graph: its expression, or itself as an input. Returns `None` if this is impossible, or if
    /// something has been computed apart.
    fn operand(&mut self, operand: &View, place: usize) -> Result<Option<TermId>> {
        let (graph, placement) = (self.graph, operand.placement());
        let Some(node) = graph.operands()[place].node else { return Ok(None) };
        let known = self.known.iter().rfind(|(known, seen, _)| *known == node && seen.is_same(placement));
        if let Some((.., term)) = known {
            return Ok(Some(*term));
        }
        if let Some(placed) = graph.expression(node) {
            let term = self.absorb(operand, node, placed)?;
            if let Some(term) = term {
                self.known.push((node, placement.clone(), term));
            } else if !self.computed {
                let why = self.why;
                self.device.runtime().note_unfused(|| format!("`{}`: {why}", placed.expression.expr.describe()));
                operand.buffer()?;
                self.computed = true;
            }
            return Ok(term);
        }
        let Fused { expr, inputs, held, parts, .. } = &mut self.fused;
        parts.inputs.push(place);
        held.push(self.stores[usize::from(node)]);
        inputs.push(operand.clone());
        // The root's own operands always have room.
        if inputs.len() > MAX_INPUTS && place < graph.operand(Graph::ROOT, 0) {
            self.why = TOO_LARGE;
            return Ok(None);
        }
        let term = expr.input(inputs.len() - 1, operand.dtype);
        self.known.push((node, placement.clone(), term));
        Ok(Some(term))
    }

    /// Adds a pending expression. Returns `None` if it has to be computed apart.
    fn absorb(&mut self, operand: &View, node: u8, placed: &Placed) -> Result<Option<TermId>> {
        let Placed { expression, placement } = placed;
        let elements = placement.elements();
        let (stored, needed) = (self.stores[usize::from(node)], self.needed[usize::from(node)]);
        if stored && !(operand.layout().is_all(elements) && self.fused.kept.len() < self.most_kept) {
            self.why = "it is needed again, and the kernel that reads it cannot store it";
            return Ok(None);
        }
        if !cost::may_repeat(self.graph.node(node).operations(), elements, self.elements) {
            self.why = "it would be computed again for each element that repeats it";
            return Ok(None);
        }
        let dtype = operand.dtype;
        let Some(term) = self.add(node, (expression, placement), operand.placement())? else { return Ok(None) };
        // Rounded as memory would round it, so that fusion does not change the numbers.
        let term = self.fused.expr.rounded(dtype, term);
        if stored {
            self.fused.kept.push(Kept { term, dtype, storage: operand.storage.clone() });
            self.fused.parts.kept.push(node);
        } else if needed {
            self.fused.repeated.0.push(Arc::downgrade(&operand.storage));
            self.fused.parts.repeated.push(node);
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

    /// Adds the numbers of an operation. Equal numbers of several operations become one. Those of one operation do not:
    /// if they are equal by chance, they need no kernel of their own.
    fn merge_scalars(&mut self, node: u8, expression: &Expression) -> SmallVec<[(u8, usize); 4]> {
        let before = self.fused.scalars.len();
        let merge = |(operand, word): (u8, Word)| {
            let Fused { scalars: all, parts, .. } = &mut self.fused;
            let known = all[..before].iter().position(|known| *known == word);
            let scalar = known.unwrap_or_else(|| {
                all.push(word);
                parts.scalars.push(self.graph.operand(node, operand));
                all.len() - 1
            });
            (operand, scalar)
        };
        expression.numbers().map(merge).collect()
    }
}
