//! What becomes one kernel: which pending operands are computed with an expression, and which of them are stored.

use super::cost;
use super::expression::Expression;
use super::storage::{State, Storage};
use super::view::View;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::layout::Layout;
use crate::base::shape::Shape;
use crate::base::word::{Word, word_count};
use crate::device::Device;
use crate::kernels::expr::{Expr, Term, TermId};
use smallvec::SmallVec;
use std::sync::Arc;

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

/// The size of a fused expression, or more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    pub operations: u8,
    pub inputs: u8,
    /// The words of its numbers.
    pub words: u8,
}

impl Extent {
    const INPUT: Extent = Extent { operations: 0, inputs: 1, words: 0 };

    fn and(self, other: Extent) -> Extent {
        Extent {
            operations: self.operations.saturating_add(other.operations),
            inputs: self.inputs.saturating_add(other.inputs),
            words: self.words.saturating_add(other.words),
        }
    }

    fn fits(self, device: &Device) -> bool {
        let bindings = device.info().limits.max_bindings as usize - 1;
        usize::from(self.operations) <= MAX_OPERATIONS
            && usize::from(self.inputs) + MOST_OPERANDS - 1 <= bindings.min(MAX_INPUTS)
            && usize::from(self.words) <= MAX_WORDS
    }
}

/// Returns the size of an expression with one operand more. If the operand's pending expression is too large to be
/// fused, computes it now.
pub(super) fn make_room(operands: &[View], extent: Extent, operand: &View) -> Result<Extent> {
    let pending = match &*operand.storage.0.lock() {
        State::Expression { expression, .. } => Some(expression.extent),
        _ => None,
    };
    let Some(added) = pending else { return Ok(extent.and(Extent::INPUT)) };
    let sum = extent.and(added);
    if sum.fits(&operand.device) {
        return Ok(sum);
    }
    // What several operands share was counted several times.
    let exact = exact_extent(operands.iter().chain([operand]));
    if exact.fits(&operand.device) {
        return Ok(exact);
    }
    operand.buffer()?;
    Ok(extent.and(Extent::INPUT))
}

/// Counts what is below some operands, each part once.
fn exact_extent<'a>(operands: impl Iterator<Item = &'a View>) -> Extent {
    let mut extent = Extent::default();
    let mut reached = Reached::default();
    for operand in operands {
        reached.visit(operand);
    }
    let mut words: SmallVec<[Word; 16]> = SmallVec::new();
    for node in &reached.0 {
        let Some(expression) = &node.expression else {
            extent = extent.and(Extent::INPUT);
            continue;
        };
        extent.operations = extent.operations.saturating_add(expression.expr.operations() as u8);
        words.extend(expression.scalars.iter().copied().filter(|word| !words.contains(word)).collect::<Vec<_>>());
    }
    extent.words = word_count(&words).min(255) as u8;
    extent
}

/// The storages below a result, each after those that it depends on.
#[derive(Default)]
struct Reached(SmallVec<[Node; 12]>);

struct Node {
    storage: Arc<Storage>,
    /// What it will hold, if it is an expression.
    expression: Option<Arc<Expression>>,
    /// Whether a kernel has computed the expression before and has not stored it.
    computed: bool,
    is_product: bool,
    /// How many operands below the result name it.
    uses: usize,
}

impl Reached {
    /// Adds what an operand depends on, then the operand.
    fn visit(&mut self, operand: &View) {
        if let Some(known) = self.0.iter_mut().find(|node| Arc::ptr_eq(&node.storage, &operand.storage)) {
            known.uses += 1;
            return;
        }
        let (expression, computed, is_product) = match &*operand.storage.0.lock() {
            State::Expression { expression, computed } => (Some(expression.clone()), *computed, false),
            State::Product(_) => (None, false, true),
            State::Buffer(_) => (None, false, false),
        };
        for below in expression.iter().flat_map(|expression| &expression.operands) {
            self.visit(below);
        }
        let storage = operand.storage.clone();
        self.0.push(Node { storage, expression, computed, is_product, uses: 1 });
    }

    fn of(&self, storage: &Arc<Storage>) -> Option<usize> {
        self.0.iter().position(|node| Arc::ptr_eq(&node.storage, storage))
    }

    /// Decides for each node whether this kernel should store it.
    ///
    /// A result that somebody may ask for later is stored, unless a second computation would move fewer bytes. Nothing
    /// is computed a third time, and no product a second time.
    fn stores(&self) -> SmallVec<[bool; 12]> {
        // One handle is `self`'s.
        let held = |node: &Node| Arc::strong_count(&node.storage) - 1 > node.uses;
        // Whether a node can be computed again from what will be there.
        let mut again: SmallVec<[bool; 12]> = SmallVec::new();
        for node in &self.0 {
            let below = node.expression.iter().flat_map(|expression| &expression.operands);
            let repeatable = below.filter_map(|operand| self.of(&operand.storage)).all(|i| again[i]);
            let constant = node.expression.as_ref().is_some_and(|expression| expression.is_constant());
            again.push(if node.is_product { held(node) } else { constant || repeatable && !node.computed });
        }
        let mut needed: SmallVec<[bool; 12]> = self.0.iter().map(held).collect();
        let mut stores: SmallVec<[bool; 12]> = SmallVec::from_elem(false, self.0.len());
        for (i, node) in self.0.iter().enumerate().rev() {
            let Some(expression) = &node.expression else {
                stores[i] = node.is_product && needed[i];
                continue;
            };
            if !needed[i] || expression.is_constant() {
                continue;
            }
            if again[i] && cost::moves_less(self.bytes_read(i), expression) {
                for operand in &expression.operands {
                    if let Some(below) = self.of(&operand.storage) {
                        needed[below] = true;
                    }
                }
            } else {
                stores[i] = true;
            }
        }
        stores
    }

    /// Returns the bytes that a kernel of this node alone would read.
    fn bytes_read(&self, node: usize) -> u64 {
        let mut seen: SmallVec<[bool; 12]> = SmallVec::from_elem(false, self.0.len());
        seen[node] = true;
        let mut bytes = 0u64;
        for i in (0..=node).rev() {
            if !seen[i] {
                continue;
            }
            for operand in self.0[i].expression.iter().flat_map(|expression| &expression.operands) {
                let Some(below) = self.of(&operand.storage) else { continue };
                if !std::mem::replace(&mut seen[below], true) && self.0[below].expression.is_none() {
                    bytes = bytes.saturating_add(cost::bytes(&operand.layout, operand.dtype));
                }
            }
        }
        bytes
    }
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
    pub shape: Shape,
    pub kept: SmallVec<[Kept; 2]>,
}

/// What a part of an expression needs, for going back to it.
struct Mark {
    terms: usize,
    inputs: usize,
    scalars: usize,
    kept: usize,
    known: usize,
}

/// Fuses an expression.
struct Fuser<'a> {
    fused: Fused,
    reached: &'a Reached,
    stores: &'a [bool],
    /// The terms of the nodes that have been fused, seen through a layout.
    known: SmallVec<[(usize, Layout, TermId); 8]>,
    device: &'a Device,
    elements: usize,
}

impl Fused {
    /// Fuses what is below an expression into it. What cannot be fused is computed.
    pub fn new(expression: &Expression, device: &Device) -> Result<Fused> {
        let mut reached = Reached::default();
        for operand in &expression.operands {
            reached.visit(operand);
        }
        let stores = reached.stores();
        let fused = Fused {
            expr: Expr::default(),
            inputs: SmallVec::new(),
            held: SmallVec::new(),
            scalars: SmallVec::new(),
            shape: expression.shape.clone(),
            kept: SmallVec::new(),
        };
        let elements = expression.shape.elem_count().unwrap_or(usize::MAX);
        let mut fuser = Fuser { fused, reached: &reached, stores: &stores, known: SmallVec::new(), device, elements };
        let whole = Layout::contiguous(expression.shape.clone());
        fuser.add(expression, &whole, true)?;
        let fused = fuser.fused;
        for (node, store) in reached.0.iter().zip(&stores) {
            // Whoever still holds it computes it a second time.
            if node.expression.is_some()
                && !store
                && let State::Expression { computed, .. } = &mut *node.storage.0.lock()
            {
                *computed = true;
            }
        }
        Ok(fused)
    }

    /// Whether this is only a copy.
    pub fn copies(&self) -> bool {
        matches!(self.expr.terms(), [Term::Input(..)])
    }
}

impl Fuser<'_> {
    /// Adds the terms of an expression whose elements are seen through a layout. Returns `None` if this is impossible.
    fn add(&mut self, expression: &Expression, seen: &Layout, is_root: bool) -> Result<Option<TermId>> {
        let whole = seen.is_all(expression.shape.elem_count().unwrap_or(usize::MAX));
        if expression.expr.terms().contains(&Term::Index) && !whole {
            return Ok(None);
        }
        let mut operands: SmallVec<[TermId; 3]> = SmallVec::new();
        for operand in &expression.operands {
            let layout = if seen.shape == expression.shape && whole {
                Some(operand.layout.clone())
            } else {
                operand.layout.through(seen)
            };
            let Some(layout) = layout else { return Ok(None) };
            let Some(term) = self.operand(operand, layout, is_root)? else { return Ok(None) };
            operands.push(term);
        }
        let scalars: SmallVec<[usize; 4]> = self.merge_scalars(&expression.scalars);
        let fused = &mut self.fused;
        let mut ids: SmallVec<[TermId; 12]> = SmallVec::new();
        for term in expression.expr.terms() {
            ids.push(match *term {
                Term::Input(i, _) => operands[usize::from(i)],
                Term::Scalar(i, dtype) => fused.expr.scalar(scalars[usize::from(i)], dtype),
                term => fused.expr.push(term.map(|id| ids[id.index()])),
            });
        }
        Ok(ids.last().copied())
    }

    /// Adds an operand, seen through a layout: its expression, or itself as an input.
    fn operand(&mut self, operand: &View, layout: Layout, must: bool) -> Result<Option<TermId>> {
        let node = self.reached.of(&operand.storage);
        let known = self.known.iter().find(|(known, seen, _)| Some(*known) == node && *seen == layout);
        if let Some((.., term)) = known {
            return Ok(Some(*term));
        }
        if let Some(node) = node
            && let Some(expression) = &self.reached.0[node].expression
            && operand.is_pending()
        {
            let mark = self.mark();
            if let Some(term) = self.absorb(node, expression, &layout, operand.dtype)? {
                self.known.push((node, layout, term));
                return Ok(Some(term));
            }
            self.back_to(mark);
            operand.buffer()?;
        }
        let input = self.input(operand.with_layout(layout));
        let term = self.fused.expr.input(input, operand.dtype);
        if !must && self.fused.inputs.len() > MAX_INPUTS {
            return Ok(None);
        }
        Ok(Some(term))
    }

    /// Adds a pending expression. Returns `None` if it has to be computed apart.
    fn absorb(&mut self, node: usize, expression: &Expression, seen: &Layout, dtype: DType) -> Result<Option<TermId>> {
        let elements = expression.shape.elem_count().unwrap_or(usize::MAX);
        let stored = self.stores[node];
        if stored && !(seen.is_all(elements) && self.fused.kept.len() < MAX_KEPT)
            || !cost::may_repeat(&expression.expr, elements, self.elements)
        {
            return Ok(None);
        }
        let Some(term) = self.add(expression, seen, false)? else { return Ok(None) };
        // Rounded as memory would round it, so that fusion does not change the numbers.
        let term = self.fused.expr.rounded(dtype, term);
        if stored {
            self.fused.kept.push(Kept { term, dtype, storage: self.reached.0[node].storage.clone() });
        }
        let bindings = self.device.info().limits.max_bindings as usize - 1;
        let fits = self.fused.inputs.len() + self.fused.kept.len() <= bindings.min(MAX_INPUTS)
            && word_count(&self.fused.scalars) <= MAX_WORDS
            && self.fused.expr.operations() <= 2 * MAX_OPERATIONS;
        Ok(fits.then_some(term))
    }

    fn input(&mut self, view: View) -> usize {
        let Fused { inputs, held, .. } = &mut self.fused;
        inputs.iter().position(|known| known.is_same(&view)).unwrap_or_else(|| {
            held.push(self.reached.of(&view.storage).is_some_and(|node| self.stores[node]));
            inputs.push(view);
            inputs.len() - 1
        })
    }

    /// Adds the numbers of an operation. Equal numbers of several operations become one. Those of one operation do not:
    /// if they are equal by chance, they need no kernel of their own.
    fn merge_scalars(&mut self, scalars: &[Word]) -> SmallVec<[usize; 4]> {
        let before = self.fused.scalars.len();
        let merge = |&word: &Word| {
            let all = &mut self.fused.scalars;
            all[..before].iter().position(|known| *known == word).unwrap_or_else(|| {
                all.push(word);
                all.len() - 1
            })
        };
        scalars.iter().map(merge).collect()
    }

    fn mark(&self) -> Mark {
        Mark {
            terms: self.fused.expr.terms().len(),
            inputs: self.fused.inputs.len(),
            scalars: self.fused.scalars.len(),
            kept: self.fused.kept.len(),
            known: self.known.len(),
        }
    }

    fn back_to(&mut self, mark: Mark) {
        self.fused.expr.truncate(mark.terms);
        self.fused.inputs.truncate(mark.inputs);
        self.fused.held.truncate(mark.inputs);
        self.fused.scalars.truncate(mark.scalars);
        self.fused.kept.truncate(mark.kept);
        self.known.truncate(mark.known);
    }
}
