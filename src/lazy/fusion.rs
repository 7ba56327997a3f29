//! What becomes one kernel: which pending operands are computed with an expression, and which of them are stored.

use super::cost;
use super::expression::{Expression, operations};
use super::storage::{Pending, Storage};
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
    fn of_input(view: &View) -> Extent {
        // Storages lie at multiples of 16 bytes or more.
        let address = Arc::as_ptr(&view.storage).addr() as u64;
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
pub(super) fn make_room(operands: &[View], extent: Extent, operand: &View) -> Result<Extent> {
    let Some(added) = operand.storage.pending_extent() else { return Ok(extent.and(Extent::of_input(operand))) };
    let (sum, device) = (extent.and(added), operand.device());
    if sum.fits(device) {
        return Ok(sum);
    }
    let exact = exact_extent(operands.iter().chain([operand]));
    if exact.fits(device) {
        return Ok(exact);
    }
    device.runtime().note_unfused(|| format!("an operand of shape {}: {TOO_LARGE}", operand.shape()));
    operand.buffer()?;
    Ok(extent.and(Extent::of_input(operand)))
}

/// Counts what is below some operands, each part once.
fn exact_extent<'a>(operands: impl Iterator<Item = &'a View>) -> Extent {
    let mut reached = Reached::default();
    let mut extent = Extent::default();
    for operand in operands {
        reached.visit(operand);
        extent.inputs |= operand.storage.pending_extent().unwrap_or_else(|| Extent::of_input(operand)).inputs;
    }
    let mut words: SmallVec<[Word; 16]> = SmallVec::new();
    for expression in reached.0.iter().filter_map(|node| node.expression.as_ref()) {
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

/// The storages below a result, each after those that it depends on.
#[derive(Default)]
struct Reached(SmallVec<[Node; 20]>);

struct Node {
    /// Tells the storage from others.
    storage: *const Storage,
    /// How many handles of the storage there are.
    handles: usize,
    /// What it will hold, if it is an expression.
    expression: Option<Arc<Expression>>,
    /// The nodes of the expression's operands.
    operands: SmallVec<[u8; 8]>,
    /// Whether a kernel has computed the expression before and has not stored it.
    computed: bool,
    is_product: bool,
    /// How many operands below the result name it.
    uses: usize,
}

impl Node {
    /// Whether something else may ask for the elements later.
    fn is_held(&self) -> bool {
        self.handles > self.uses
    }
}

impl Reached {
    /// Adds what an operand depends on, then the operand. Returns its node.
    fn visit(&mut self, operand: &View) -> u8 {
        let storage = Arc::as_ptr(&operand.storage);
        if let Some(known) = self.0.iter().rposition(|node| node.storage == storage) {
            self.0[known].uses += 1;
            return known as u8;
        }
        let (expression, computed, is_product) = match operand.storage.computed() {
            Some(_) => (None, false, false),
            None => match &*operand.storage.pending.lock() {
                Some(Pending::Expression { expression, computed }) => (Some(expression.clone()), *computed, false),
                Some(Pending::Product(_)) => (None, false, true),
                None => (None, false, false),
            },
        };
        let mut operands = SmallVec::new();
        if let Some(expression) = &expression {
            expression.operands.iter().for_each(|below| operands.push(self.visit(below)));
        }
        let handles = Arc::strong_count(&operand.storage);
        self.0.push(Node { storage, handles, expression, operands, computed, is_product, uses: 1 });
        (self.0.len() - 1) as u8
    }

    /// Decides for each node whether it should be stored: `beside` the result of this kernel, or by a kernel of its
    /// own.
    ///
    /// A result that somebody may ask for later is stored, unless a second computation would move fewer bytes. Nothing
    /// is computed a third time, and no product a second time. The second answer is whether a node is needed again: it
    /// is held, or a result that is held will be computed again from it.
    fn stores(&self, beside: bool) -> [Stores; 2] {
        let mut stores = Stores::from_elem(false, self.0.len());
        let is_pending = |node: &Node| node.expression.is_some() || node.is_product;
        if !self.0.iter().any(|node| is_pending(node) && node.is_held()) {
            return [stores.clone(), stores];
        }
        // Whether a node can be computed again from what will be there.
        let mut again = Stores::new();
        for node in &self.0 {
            let constant = node.expression.as_ref().is_some_and(|expression| expression.is_constant());
            let repeatable = || !node.computed && node.operands.iter().all(|&below| again[usize::from(below)]);
            again.push(if node.is_product { node.is_held() } else { constant || repeatable() });
        }
        let mut needed: Stores = self.0.iter().map(Node::is_held).collect();
        for (i, node) in self.0.iter().enumerate().rev() {
            let Some(expression) = &node.expression else {
                stores[i] = node.is_product && needed[i];
                continue;
            };
            if !needed[i] || expression.is_constant() {
                continue;
            }
            if again[i] && cost::moves_less(self.bytes_read(i), expression, beside) {
                node.operands.iter().for_each(|&below| needed[usize::from(below)] = true);
            } else {
                stores[i] = true;
            }
        }
        [stores, needed]
    }

    /// Returns the bytes that a kernel of this node alone would read.
    fn bytes_read(&self, node: usize) -> u64 {
        let mut seen = Stores::from_elem(false, self.0.len());
        seen[node] = true;
        let mut bytes = 0u64;
        for node in (0..=node).rev() {
            let Some(expression) = self.0[node].expression.as_ref().filter(|_| seen[node]) else { continue };
            for (operand, &below) in expression.operands.iter().zip(&self.0[node].operands) {
                let below = usize::from(below);
                if !std::mem::replace(&mut seen[below], true) && self.0[below].expression.is_none() {
                    bytes = bytes.saturating_add(cost::bytes(&operand.layout, operand.dtype));
                }
            }
        }
        bytes
    }
}

/// A truth value for each node.
type Stores = SmallVec<[bool; 20]>;

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
}

/// The pending results that a kernel computes and does not store, although they are needed again.
#[derive(Default)]
pub(super) struct Repeated(SmallVec<[Weak<Storage>; 2]>);

impl Repeated {
    /// Notes that a kernel computes them.
    pub fn note(&self) {
        for storage in self.0.iter().filter_map(Weak::upgrade) {
            if let Some(Pending::Expression { computed, .. }) = &mut *storage.pending.lock() {
                *computed = true;
            }
        }
    }
}

/// Fuses an expression.
struct Fuser<'a> {
    fused: Fused,
    reached: &'a Reached,
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
        let mut reached = Reached::default();
        reached.visit(self);
        reached.0.iter().any(|node| node.is_product)
    }
}

impl Fused {
    /// Fuses what is below an expression into it. What cannot be fused is computed.
    pub fn new(expression: &Expression, device: &Device) -> Result<Fused> {
        Fused::keeping(MAX_KEPT, expression, device)
    }

    /// The same for an operand of another kernel, which may be able to store one thing beside its result.
    pub fn as_operand(expression: &Expression, keeps: bool, device: &Device) -> Result<Fused> {
        Fused::keeping(usize::from(keeps), expression, device)
    }

    fn keeping(most_kept: usize, expression: &Expression, device: &Device) -> Result<Fused> {
        if expression.operands.iter().all(|operand| operand.storage.computed().is_some()) {
            return Ok(Fused::alone(expression));
        }
        loop {
            if let Some(fused) = Fused::attempt(most_kept, expression, device)? {
                return Ok(fused);
            }
        }
    }

    /// Returns an expression into which nothing is fused, because its operands have been computed.
    fn alone(expression: &Expression) -> Fused {
        Fused {
            expr: expression.expr.clone(),
            inputs: expression.operands.iter().cloned().collect(),
            held: SmallVec::from_elem(false, expression.operands.len()),
            scalars: SmallVec::from_slice(&expression.scalars),
            layout: expression.layout.clone(),
            kept: SmallVec::new(),
            repeated: Repeated::default(),
        }
    }

    /// Returns `None` if something has been computed apart. Its kernel may have computed or stored what else is below,
    /// so the decisions of this attempt are out of date.
    fn attempt(most_kept: usize, expression: &Expression, device: &Device) -> Result<Option<Fused>> {
        let mut reached = Reached::default();
        let operands: SmallVec<[u8; 4]> = expression.operands.iter().map(|operand| reached.visit(operand)).collect();
        let fused = Fused {
            expr: Expr::default(),
            inputs: SmallVec::new(),
            held: SmallVec::new(),
            scalars: SmallVec::new(),
            layout: expression.layout.clone(),
            kept: SmallVec::new(),
            repeated: Repeated::default(),
        };
        let [stores, needed] = reached.stores(most_kept > 0);
        let mut fuser = Fuser {
            fused,
            stores,
            needed,
            reached: &reached,
            known: SmallVec::new(),
            computed: false,
            most_kept,
            why: "",
            device,
            elements: expression.layout.elements(),
        };
        fuser.add(expression, &operands, &expression.layout, true)?;
        Ok((!fuser.computed).then_some(fuser.fused))
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
    fn add(
        &mut self,
        expression: &Expression,
        nodes: &[u8],
        seen: &Arc<Layout>,
        is_root: bool,
    ) -> Result<Option<TermId>> {
        let same = is_same(seen, &expression.layout);
        let in_order = || same || seen.is_all(expression.layout.elements());
        if expression.expr.terms().contains(&Term::Index) && !in_order() {
            self.why = "its elements depend on their place, and a view has moved them";
            return Ok(None);
        }
        let scalars = self.merge_scalars(&expression.scalars);
        let mut ids: SmallVec<[TermId; 12]> = SmallVec::new();
        for term in expression.expr.terms() {
            let id = match *term {
                Term::Input(i, _) => {
                    let (operand, node) = (&expression.operands[usize::from(i)], nodes[usize::from(i)]);
                    let through = if same { None } else { operand.layout.through(seen).map(Arc::new) };
                    if !same && through.is_none() {
                        self.why = "an operand seen through a view has no strides";
                        return Ok(None);
                    }
                    let layout = through.as_ref().unwrap_or(&operand.layout);
                    let Some(term) = self.operand(operand, node, layout, is_root)? else { return Ok(None) };
                    term
                }
                Term::Scalar(i, dtype) => self.fused.expr.scalar(scalars[usize::from(i)], dtype),
                term => self.fused.expr.push(term.map(|id| ids[id.index()])),
            };
            ids.push(id);
        }
        Ok(ids.last().copied())
    }

    /// Adds an operand, seen through a layout: its expression, or itself as an input. An operand of the result `must`
    /// be added. Returns `None` if this is impossible, or if something has been computed apart.
    fn operand(&mut self, operand: &View, node: u8, layout: &Arc<Layout>, must: bool) -> Result<Option<TermId>> {
        let known = self.known.iter().rfind(|(known, seen, _)| *known == node && is_same(seen, layout));
        if let Some((.., term)) = known {
            return Ok(Some(*term));
        }
        let reached = self.reached;
        if let Some(expression) = &reached.0[usize::from(node)].expression {
            let term = self.absorb(operand, usize::from(node), expression, layout)?;
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
        let input = self.input(operand, node, layout);
        if !must && self.fused.inputs.len() > MAX_INPUTS {
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
        node: usize,
        expression: &Expression,
        seen: &Arc<Layout>,
    ) -> Result<Option<TermId>> {
        let elements = expression.layout.elements();
        let stored = self.stores[node];
        if stored && !(seen.is_all(elements) && self.fused.kept.len() < self.most_kept) {
            self.why = "it is needed again, and the kernel that reads it cannot store it";
            return Ok(None);
        }
        if !cost::may_repeat(expression.extent, elements, self.elements) {
            self.why = "it would be computed again for each element that repeats it";
            return Ok(None);
        }
        let (reached, dtype) = (self.reached, operand.dtype);
        let Some(term) = self.add(expression, &reached.0[node].operands, seen, false)? else { return Ok(None) };
        // Rounded as memory would round it, so that fusion does not change the numbers.
        let term = self.fused.expr.rounded(dtype, term);
        if stored {
            self.fused.kept.push(Kept { term, dtype, storage: operand.storage.clone() });
        } else if self.needed[node] {
            self.fused.repeated.0.push(Arc::downgrade(&operand.storage));
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

    fn input(&mut self, operand: &View, node: u8, layout: &Arc<Layout>) -> usize {
        let Fused { inputs, held, .. } = &mut self.fused;
        held.push(self.stores[usize::from(node)]);
        inputs.push(operand.with_layout(layout.clone()));
        inputs.len() - 1
    }

    /// Adds the numbers of an operation. Equal numbers of several operations become one. Those of one operation do not:
    /// if they are equal by chance, they need no kernel of their own.
    fn merge_scalars(&mut self, scalars: &[Word]) -> SmallVec<[usize; 4]> {
        if scalars.is_empty() {
            return SmallVec::new();
        }
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
}
