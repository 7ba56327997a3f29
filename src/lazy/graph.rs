//! [`Graph`]: the pending expressions below a result, and which of them are stored.

use super::cost;
use super::expression::{Expression, operations};
use super::storage::{Pending, Storage};
use crate::base::word::Word;
use crate::engine::plan_cache::{PlanKey, PlanKind};
use smallvec::SmallVec;
use std::sync::Arc;

/// An expression, the root, and the storages below it.
pub(super) struct Graph<'a> {
    root: &'a Expression,
    /// The nodes of the root's operands.
    operands: Below,
    nodes: Nodes,
}

/// Storages, each after those that it depends on.
#[derive(Default)]
pub(super) struct Nodes {
    all: SmallVec<[Node; 20]>,
    /// The nodes of the operands of all nodes.
    operands: SmallVec<[u8; 64]>,
}

/// The nodes of an expression's operands.
type Below = SmallVec<[u8; 8]>;

/// A truth value for each node.
pub(super) type Stores = SmallVec<[bool; 20]>;

/// An operand or a number of an expression. The number of the root is [`Graph::ROOT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub node: u8,
    pub index: u8,
}

pub(super) struct Node {
    /// Tells the storage from others.
    storage: *const Storage,
    /// What it will hold, if it is an expression.
    pub expression: Option<Arc<Expression>>,
    /// How many handles of the storage there are.
    handles: u32,
    /// How many operands below the result name it.
    uses: u32,
    /// The index of its first operand in the operands of [`Nodes`].
    operands: u32,
    /// The operations of the expression; if it was recorded, with all that was pending below it then.
    pub recorded: u8,
    /// Whether a kernel has computed the expression before and has not stored it.
    computed: bool,
    is_product: bool,
}

impl Node {
    /// Whether something else may ask for the elements later.
    fn is_held(&self) -> bool {
        self.handles > self.uses
    }
}

impl Nodes {
    /// Returns the pending expressions.
    pub fn expressions(&self) -> impl Iterator<Item = &Arc<Expression>> {
        self.all.iter().filter_map(|node| node.expression.as_ref())
    }

    pub fn has_product(&self) -> bool {
        self.all.iter().any(|node| node.is_product)
    }

    /// Returns the nodes of a node's operands.
    fn operands(&self, node: &Node) -> &[u8] {
        let count = node.expression.as_ref().map_or(0, |expression| expression.operands.len());
        &self.operands[node.operands as usize..][..count]
    }

    /// Adds what an operand depends on, then the operand. Returns its node.
    pub fn visit(&mut self, operand: &Arc<Storage>) -> u8 {
        let storage = Arc::as_ptr(operand);
        if let Some(known) = self.all.iter().rposition(|node| node.storage == storage) {
            self.all[known].uses += 1;
            return known as u8;
        }
        let (expression, computed, is_product) = match operand.computed() {
            Some(_) => (None, false, false),
            None => match &*operand.pending.lock() {
                Some(Pending::Expression { expression, computed }) => (Some(expression.clone()), *computed, false),
                Some(Pending::Product(_)) => (None, false, true),
                None => (None, false, false),
            },
        };
        let mut operands = self.operands.len() as u32;
        if let Some(expression) = &expression {
            let mut below = Below::new();
            expression.operands.iter().for_each(|operand| below.push(self.visit(&operand.storage)));
            operands = self.operands.len() as u32;
            self.operands.extend_from_slice(&below);
        }
        let handles = Arc::strong_count(operand) as u32;
        // What a product has left was not recorded.
        let of = |expression: &Arc<Expression>| operand.recorded().unwrap_or_else(|| operations(&expression.expr));
        let recorded = expression.as_ref().map_or(0, of);
        debug_assert!(self.all.len() < usize::from(Graph::ROOT), "an expression has few operations");
        self.all.push(Node { storage, expression, handles, uses: 1, operands, recorded, computed, is_product });
        (self.all.len() - 1) as u8
    }
}

impl<'a> Graph<'a> {
    /// The number of the root.
    pub const ROOT: u8 = u8::MAX;

    /// Returns the graph of what an expression depends on.
    pub fn below(root: &'a Expression) -> Graph<'a> {
        let mut nodes = Nodes::default();
        let mut operands = Below::new();
        root.operands.iter().for_each(|operand| operands.push(nodes.visit(&operand.storage)));
        Graph { root, operands, nodes }
    }

    pub fn root(&self) -> &'a Expression {
        self.root
    }

    /// Returns the nodes of the operands of a node, or of the root.
    pub fn operands(&self, node: u8) -> &[u8] {
        if node == Graph::ROOT { &self.operands } else { self.nodes.operands(self.node(node)) }
    }

    pub fn node(&self, node: u8) -> &Node {
        &self.nodes.all[usize::from(node)]
    }

    pub fn has_product(&self) -> bool {
        self.nodes.has_product()
    }

    /// Whether all operands of the root have buffers.
    pub fn is_computed(&self) -> bool {
        self.nodes.all.iter().all(|node| node.expression.is_none() && !node.is_product)
    }

    fn expression(&self, node: u8) -> &Expression {
        if node == Graph::ROOT { self.root } else { self.node(node).expression.as_deref().unwrap_or(self.root) }
    }

    /// Returns the storage of an operand.
    pub fn storage(&self, Part { node, index }: Part) -> &Arc<Storage> {
        &self.expression(node).operands[usize::from(index)].storage
    }

    /// Returns the place of an operand's first element.
    pub fn offset(&self, Part { node, index }: Part) -> usize {
        // The layout of an expression has no offset.
        self.expression(node).operands[usize::from(index)].layout.as_ref().map_or(0, |layout| layout.offset)
    }

    /// Returns a number.
    pub fn scalar(&self, Part { node, index }: Part) -> Word {
        self.expression(node).scalars[usize::from(index)]
    }

    /// Decides for each node whether it should be stored: `beside` the result of this kernel, or by a kernel of its
    /// own.
    ///
    /// A result that somebody may ask for later is stored, unless a second computation would move fewer bytes. Nothing
    /// is computed a third time, and no product a second time. The second answer is whether a node is needed again: it
    /// is held, or a result that is held will be computed again from it.
    pub fn stores(&self, beside: bool) -> [Stores; 2] {
        let mut stores = Stores::from_elem(false, self.nodes.all.len());
        let is_pending = |node: &Node| node.expression.is_some() || node.is_product;
        if !self.nodes.all.iter().any(|node| is_pending(node) && node.is_held()) {
            return [stores.clone(), stores];
        }
        // Whether a node can be computed again from what will be there.
        let mut again = Stores::new();
        for node in &self.nodes.all {
            let constant = node.expression.as_ref().is_some_and(|expression| expression.is_constant());
            let repeatable =
                || !node.computed && self.nodes.operands(node).iter().all(|&below| again[usize::from(below)]);
            again.push(if node.is_product { node.is_held() } else { constant || repeatable() });
        }
        let mut needed: Stores = self.nodes.all.iter().map(Node::is_held).collect();
        for (i, node) in self.nodes.all.iter().enumerate().rev() {
            let Some(expression) = &node.expression else {
                stores[i] = node.is_product && needed[i];
                continue;
            };
            if !needed[i] || expression.is_constant() {
                continue;
            }
            if again[i] && cost::moves_less(self.bytes_read(i), expression, beside) {
                self.nodes.operands(node).iter().for_each(|&below| needed[usize::from(below)] = true);
            } else {
                stores[i] = true;
            }
        }
        [stores, needed]
    }

    /// Returns the bytes that a kernel of this node alone would read.
    fn bytes_read(&self, node: usize) -> u64 {
        let mut seen = Stores::from_elem(false, self.nodes.all.len());
        seen[node] = true;
        let mut bytes = 0u64;
        for node in (0..=node).rev() {
            let Some(expression) = self.nodes.all[node].expression.as_ref().filter(|_| seen[node]) else { continue };
            for (operand, &below) in expression.views().iter().zip(self.nodes.operands(&self.nodes.all[node])) {
                let below = usize::from(below);
                if !std::mem::replace(&mut seen[below], true) && self.nodes.all[below].expression.is_none() {
                    bytes = bytes.saturating_add(cost::bytes(&operand.layout, operand.dtype));
                }
            }
        }
        bytes
    }

    /// Returns everything that the fusion of the graph and its launch depend on. Graphs with the same key differ only
    /// in buffers, in the values of numbers, and in the places of inputs, by multiples of four. The place of a view of
    /// a pending expression is in the key, so a loop that moves such a view makes new plans.
    pub fn key(&self) -> PlanKey {
        let (key, scalars, starts) = (PlanKey::new(PlanKind::Elementwise), SmallVec::new(), SmallVec::new());
        let mut key = GraphKey { key, scalars, starts };
        for node in &self.nodes.all {
            match &node.expression {
                Some(expression) => {
                    let held = u64::from(node.is_held()) | u64::from(node.computed) << 1;
                    let state = 1 | held << 1 | u64::from(node.recorded) << 8;
                    self.push(&mut key, expression, self.nodes.operands(node), state);
                }
                None => key.key.push(if node.is_product { 2 } else { 0 }),
            }
        }
        self.push(&mut key, self.root, &self.operands, 1);
        key.key
    }

    fn push(&self, graph_key: &mut GraphKey, expression: &Expression, operands: &[u8], state: u64) {
        let GraphKey { key, scalars, starts } = graph_key;
        let Expression { expr, layout, .. } = expression;
        let lengths = [expr.terms().len(), layout.shape.rank(), operands.len(), expression.scalars.len()];
        let lengths = lengths.into_iter().fold(0, |all, length| all << 8 | length as u64);
        key.push(state | lengths << 16);
        key.extend(expr.terms().iter().map(|term| term.code()));
        key.extend(layout.shape.iter().map(|&length| length as u64));
        for (operand, &below) in expression.operands.iter().zip(operands) {
            let seen = operand.layout.as_ref();
            let offset = seen.map_or(0, |layout| layout.offset);
            let view = u64::from(below) | u64::from(seen.is_some()) << 8;
            if self.node(below).expression.is_some() {
                key.push(view);
                key.extend(seen.map(|_| offset as u64));
            } else {
                let known = starts.iter().find(|(node, _)| *node == below);
                let start = known.map_or(offset, |(_, start)| *start);
                if known.is_none() {
                    starts.push((below, offset));
                }
                // Equal views of an input become one.
                key.push(view | (offset as u64 % 4) << 9 | u64::from(offset != start) << 11);
                key.extend((offset != start).then_some(offset.wrapping_sub(start) as u64));
            }
            if let Some(layout) = seen {
                key.extend(layout.strides.iter().map(|&stride| stride as u64));
            }
        }
        // So do equal numbers.
        for scalar in &expression.scalars {
            let first = scalars.iter().position(|known| known == scalar);
            key.push(first.unwrap_or(scalars.len()) as u64);
            scalars.push(*scalar);
        }
    }
}

/// A key, and what has been seen of the graph.
struct GraphKey {
    key: PlanKey,
    scalars: SmallVec<[Word; 8]>,
    /// Nodes that have buffers, and where the first view of each begins.
    starts: SmallVec<[(u8, usize); 8]>,
}
