//! [`Graph`]: the pending expressions below a result, and which of them are stored.

use super::cost;
use super::expression::{Expression, Placed, Source};
use super::placement::Placement;
use super::storage::{Pending, Storage};
use crate::base::layout::Layout;
use crate::engine::plan_cache::{PlanKey, PlanKind};
use smallvec::SmallVec;
use std::ops::Deref;
use std::sync::Arc;

/// An expression, the root, and the storages below it.
pub(super) struct Graph<'a> {
    /// Each after those that it depends on.
    nodes: SmallVec<[Node<'a>; 20]>,
    /// The operands of each node, one node after the other, then the root's.
    operands: SmallVec<[Operand; 40]>,
    /// The first operand of the root.
    root: usize,
    key: PlanKey,
    /// What the nodes and the root compute, if it was asked for.
    expressions: Option<Vec<Option<Placed>>>,
}

/// What a storage was when the graph was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Computed,
    Expression {
        /// Whether a kernel has computed it before and has not stored it.
        repeated: bool,
        /// Of the expression, with all that was pending below it when it was recorded.
        operations: u8,
    },
    Product,
}

pub(super) struct Node<'a> {
    /// Tells the storage from others.
    address: *const Storage,
    state: State,
    /// `None` if its elements are pending, and it is sure that nobody holds them.
    pub storage: Option<Handle<'a>>,
    /// How many handles of the storage there are.
    handles: u32,
    /// How many operands below the result name it.
    uses: u32,
    /// The first of its operands in the operands of the graph.
    operands: u32,
    /// Where the first view of a buffer begins.
    start: Option<usize>,
}

/// A handle of a storage. What the root names keeps it alive, so such a storage needs no handle of the graph's own.
pub(super) enum Handle<'a> {
    Borrowed(&'a Arc<Storage>),
    Owned(Arc<Storage>),
}

impl Deref for Handle<'_> {
    type Target = Arc<Storage>;
    fn deref(&self) -> &Arc<Storage> {
        match self {
            Handle::Borrowed(storage) => storage,
            Handle::Owned(storage) => storage,
        }
    }
}

/// An operand of an expression.
#[derive(Clone, Copy)]
pub(super) struct Operand {
    /// `None` if it is a number.
    pub node: Option<u8>,
    /// The place of the first element, or the bits of the number.
    pub value: u64,
}

/// An operand of a graph, seen through the views of the expressions above it.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    pub operand: usize,
    /// How far these move its first element.
    moved: isize,
}

impl Seen {
    /// Returns the operand of which a plan for the graph sees this layout.
    pub fn new(graph: &Graph, operand: usize, layout: &Layout) -> Seen {
        Seen { operand, moved: (layout.offset as u64).wrapping_sub(graph.operands[operand].value) as isize }
    }

    /// Returns the place of the first element, in another graph for the plan.
    pub fn offset(self, graph: &Graph) -> usize {
        (graph.operands[self.operand].value as usize).wrapping_add_signed(self.moved)
    }
}

/// A truth value for each node.
pub(super) type Stores = SmallVec<[bool; 20]>;

impl Node<'_> {
    /// Whether something else may ask for the elements later.
    fn is_held(&self) -> bool {
        self.handles > self.uses
    }

    fn is_expression(&self) -> bool {
        matches!(self.state, State::Expression { .. })
    }

    fn is_product(&self) -> bool {
        self.state == State::Product
    }

    /// Returns the operations of its expression, with all that was pending below it when it was recorded.
    pub fn operations(&self) -> u8 {
        if let State::Expression { operations, .. } = self.state { operations } else { 0 }
    }
}

impl<'a> Graph<'a> {
    /// The number of the root.
    pub const ROOT: u8 = u8::MAX;

    /// Returns an empty graph. It is a large value, which the caller fills where it is.
    #[inline(always)]
    pub fn empty(with_expressions: bool) -> Graph<'a> {
        let key = PlanKey::new(PlanKind::Elementwise);
        let expressions = with_expressions.then(Vec::new);
        Graph { nodes: SmallVec::new(), operands: SmallVec::new(), root: 0, key, expressions }
    }

    /// Returns the graph of an expression.
    pub fn new(expression: &'a Expression, placement: &Arc<Placement>) -> Graph<'a> {
        let mut graph = Graph::empty(true);
        graph.add_root(expression, placement);
        let root = Placed { expression: expression.clone(), placement: placement.clone() };
        graph.expressions.get_or_insert_default().push(Some(root));
        graph
    }

    /// Returns the graph below some storages, with no root.
    pub fn of(storages: impl Iterator<Item = &'a Arc<Storage>>) -> Graph<'a> {
        let mut graph = Graph::empty(true);
        storages.for_each(|storage| _ = graph.visit(storage, Some(storage), true));
        graph
    }

    /// Makes an empty graph that of an expression.
    pub fn add_root(&mut self, expression: &'a Expression, placement: &Arc<Placement>) {
        self.root = self.visit_operands(expression, Some(expression), placement, 0, false);
        // Which nodes are held is known only now.
        for nodes in self.nodes.chunks(64) {
            let is_held = |node: &Node| node.state != State::Computed && node.is_held();
            self.key.push(nodes.iter().fold(0, |held, node| held << 1 | u64::from(is_held(node))));
        }
    }

    /// Adds what a storage depends on, then the storage, which may be `borrowed` for the life of the graph. Returns its
    /// node. `held` tells whether something above it may be held.
    fn visit(&mut self, storage: &Arc<Storage>, borrowed: Option<&'a Arc<Storage>>, held: bool) -> u8 {
        let address = Arc::as_ptr(storage);
        if let Some(known) = self.nodes.iter().rposition(|node| node.address == address) {
            self.nodes[known].uses += 1;
            return known as u8;
        }
        // Before this graph takes handles of its own.
        let handles = Arc::strong_count(storage) as u32;
        let held = held || handles > 1;
        let (mut state, mut operands, mut expression) = (State::Computed, 0, None);
        if storage.computed().is_none() {
            // Locks are taken from results down to what they depend on.
            match &*storage.pending.lock() {
                Some(Pending::Expression { expression: pending, computed, operations, .. }) => {
                    state = State::Expression { repeated: *computed, operations: *operations };
                    let code = 1 | u64::from(*computed) << 1 | u64::from(*operations) << 8;
                    operands = self.visit_operands(pending, None, &storage.placement, code, held);
                    if self.expressions.is_some() {
                        let placement = storage.placement.clone();
                        expression = Some(Placed { expression: pending.clone(), placement });
                    }
                }
                Some(Pending::Product { .. }) => state = State::Product,
                None => {}
            }
        }
        if !matches!(state, State::Expression { .. }) {
            self.key.push(if state == State::Product { 2 } else { 0 });
        }
        if let Some(expressions) = &mut self.expressions {
            expressions.push(expression);
        }
        debug_assert!(self.nodes.len() < usize::from(Graph::ROOT), "an expression has few operations");
        let handle = || borrowed.map_or_else(|| Handle::Owned(storage.clone()), Handle::Borrowed);
        let storage = (held || !matches!(state, State::Expression { .. })).then(handle);
        let operands = operands as u32;
        self.nodes.push(Node { address, state, storage, handles, uses: 1, operands, start: None });
        (self.nodes.len() - 1) as u8
    }

    /// Adds what an expression depends on, then its operands. Returns the first of these. `borrowed` is the expression,
    /// if it outlives the graph.
    ///
    /// Appends to the key what the fusion of the expression and its launch depend on. Graphs with the same key differ
    /// only in buffers, in the values of numbers, and in the places of inputs, by multiples of four. The place of a
    /// view of a pending expression is in the key, so a loop that moves such a view makes new plans.
    fn visit_operands(
        &mut self,
        expression: &Expression,
        borrowed: Option<&'a Expression>,
        placement: &Arc<Placement>,
        code: u64,
        held: bool,
    ) -> usize {
        let mut below: SmallVec<[Option<u8>; 4]> = SmallVec::new();
        for (i, operand) in expression.operands.iter().enumerate() {
            let borrowed = borrowed.and_then(|expression| expression.operands[i].storage());
            below.push(operand.storage().map(|storage| self.visit(storage, borrowed, held)));
        }
        let Expression { expr, operands } = expression;
        let (first, shape) = (self.operands.len(), &placement.shape);
        let lengths = (expr.terms().len() << 16 | shape.rank() << 8 | operands.len()) as u64;
        self.key.push(code | lengths << 16);
        self.key.extend(expr.codes());
        self.key.extend(shape.iter().map(|&length| length as u64));
        for (operand, below) in operands.iter().zip(below) {
            match (operand, below) {
                (Source::Tensor { placed, .. }, Some(node)) => self.add_view(node, placed.as_deref()),
                (&Source::Number(bits), _) => self.add_number(bits),
                (Source::Tensor { .. }, None) => {}
            }
        }
        first
    }

    #[inline]
    fn add_view(&mut self, node: u8, placed: Option<&Placement>) {
        let offset = placed.map_or(0, |placed| placed.offset);
        self.operands.push(Operand { node: Some(node), value: offset as u64 });
        let seen = &mut self.nodes[usize::from(node)];
        let view = u64::from(node) | u64::from(placed.is_some()) << 8;
        if seen.is_expression() {
            self.key.push(view);
            self.key.extend(placed.map(|_| offset as u64));
        } else {
            // Equal views of an input become one.
            let moved = offset.wrapping_sub(*seen.start.get_or_insert(offset)) as u64;
            self.key.push(view | (offset as u64 % 4) << 9 | u64::from(moved != 0) << 11);
            self.key.extend((moved != 0).then_some(moved));
        }
        if let Some(placed) = placed {
            self.key.extend(placed.strides.iter().map(|&stride| stride as u64));
        }
    }

    fn add_number(&mut self, bits: u64) {
        self.operands.push(Operand { node: None, value: bits });
        // Equal numbers become one.
        let is_equal = |operand: &Operand| operand.node.is_none() && operand.value == bits;
        self.key.push(self.operands.iter().position(is_equal).unwrap_or_default() as u64);
    }

    pub fn key(&self) -> &PlanKey {
        &self.key
    }

    /// Returns the key, which the graph then lacks. Its memory serves the next one as soon as it is dropped.
    pub fn take_key(&mut self) -> PlanKey {
        std::mem::take(&mut self.key)
    }

    /// Returns the operands of all nodes and of the root.
    pub fn operands(&self) -> &[Operand] {
        &self.operands
    }

    /// Returns the storage of an operand that is no expression.
    pub fn storage(&self, operand: usize) -> Option<&Arc<Storage>> {
        self.node(self.operands[operand].node?).storage.as_deref()
    }

    /// Returns the number of an operand of a node, or of the root, among all operands.
    pub fn operand(&self, node: u8, index: u8) -> usize {
        let first = if node == Graph::ROOT { self.root } else { self.node(node).operands as usize };
        first + usize::from(index)
    }

    pub fn node(&self, node: u8) -> &Node<'a> {
        &self.nodes[usize::from(node)]
    }

    /// Returns the expression of a node, or of the root, if it has one.
    pub fn expression(&self, node: u8) -> Option<&Placed> {
        let place = if node == Graph::ROOT { self.nodes.len() } else { node.into() };
        self.expressions.as_ref()?.get(place)?.as_ref()
    }

    /// Returns all pending expressions.
    pub fn expressions(&self) -> impl Iterator<Item = &Placed> {
        self.expressions.iter().flatten().flatten()
    }

    /// Returns the storages that have no pending expression, of a graph made [of](Graph::of) storages.
    pub fn inputs(&self) -> impl Iterator<Item = &Arc<Storage>> {
        self.nodes.iter().filter(|node| !node.is_expression()).filter_map(|node| node.storage.as_deref())
    }

    pub fn products(&self) -> usize {
        self.nodes.iter().filter(|node| node.is_product()).count()
    }

    pub fn has_product(&self) -> bool {
        self.nodes.iter().any(Node::is_product)
    }

    /// Whether all operands of the root have buffers.
    pub fn is_computed(&self) -> bool {
        self.nodes.iter().all(|node| node.state == State::Computed)
    }

    /// Decides for each node whether it should be stored: `beside` the result of this kernel, or by a kernel of its
    /// own.
    ///
    /// A result that somebody may ask for later is stored, unless a second computation would move fewer bytes. Nothing
    /// is computed a third time, and no product a second time. The second answer is whether a node is needed again: it
    /// is held, or a result that is held will be computed again from it.
    pub fn stores(&self, beside: bool) -> [Stores; 2] {
        let mut stores = Stores::from_elem(false, self.nodes.len());
        if !self.nodes.iter().any(|node| node.state != State::Computed && node.is_held()) {
            return [stores.clone(), stores];
        }
        let is_constant = |node| self.expression(node).is_some_and(|placed| placed.expression.is_constant());
        // Whether a node can be computed again from what will be there.
        let mut again = Stores::new();
        for (i, node) in (0..).zip(&self.nodes) {
            let below = || self.below(i).all(|node| again[usize::from(node)]);
            let computable = match node.state {
                State::Computed => true,
                State::Product => node.is_held(),
                State::Expression { repeated, .. } => is_constant(i) || !repeated && below(),
            };
            again.push(computable);
        }
        let mut needed: Stores = self.nodes.iter().map(Node::is_held).collect();
        for node in (0..self.nodes.len() as u8).rev() {
            let i = usize::from(node);
            let Some(placed) = self.expression(node) else {
                stores[i] = self.nodes[i].is_product() && needed[i];
                continue;
            };
            if !needed[i] || is_constant(node) {
                continue;
            }
            if again[i] && cost::moves_less(self.bytes_read(node), placed, beside) {
                self.below(node).for_each(|below| needed[usize::from(below)] = true);
            } else {
                stores[i] = true;
            }
        }
        [stores, needed]
    }

    /// Returns the nodes of the operands of a node.
    fn below(&self, node: u8) -> impl Iterator<Item = u8> {
        let count = self.expression(node).map_or(0, |placed| placed.expression.operands.len());
        self.operands[self.operand(node, 0)..][..count].iter().filter_map(|operand| operand.node)
    }

    /// Returns the bytes that a kernel of this node alone would read.
    fn bytes_read(&self, node: u8) -> u64 {
        let mut seen = Stores::from_elem(false, self.nodes.len());
        seen[usize::from(node)] = true;
        let mut bytes = 0u64;
        for node in (0..=node).rev() {
            let placed = self.expression(node).filter(|_| seen[usize::from(node)]);
            let Some(Placed { expression, placement }) = placed else { continue };
            for (operand, input) in expression.inputs(placement) {
                let Some(below) = self.operands[self.operand(node, operand as u8)].node else { continue };
                if !std::mem::replace(&mut seen[usize::from(below)], true) && !self.node(below).is_expression() {
                    bytes = bytes.saturating_add(cost::bytes(input.layout(), input.dtype));
                }
            }
        }
        bytes
    }
}
