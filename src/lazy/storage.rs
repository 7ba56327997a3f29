//! What a tensor owns: a buffer, or a computation that has not run. That is an elementwise expression or a product.

use super::epilogue::{Produced, Producer};
use super::expression::Expression;
use crate::backend::info::MemoryKind;
use crate::base::error::Result;
use crate::engine::pool::Buffer;
use parking_lot::Mutex;
use std::sync::Arc;

pub(super) enum State {
    Buffer(Arc<Buffer>),
    /// Not computed yet. `computed` is true if a kernel has computed it for another result, and has not stored it.
    Expression {
        expression: Arc<Expression>,
        computed: bool,
    },
    /// Not computed yet. The first expression over its elements that is computed becomes the epilogue of its kernel.
    Product(Box<dyn Producer>),
}

pub(crate) struct Storage(pub(super) Mutex<State>);

impl Storage {
    pub fn buffer(buffer: Buffer) -> Self {
        Storage(Mutex::new(State::Buffer(Arc::new(buffer))))
    }

    pub fn expression(expression: Expression) -> Self {
        Storage(Mutex::new(State::expression(expression)))
    }

    pub fn product(producer: impl Producer + 'static) -> Self {
        Storage(Mutex::new(State::Product(Box::new(producer))))
    }

    pub fn memory_kind(&self) -> MemoryKind {
        match &*self.0.lock() {
            State::Buffer(buffer) => buffer.kind(),
            State::Expression { .. } | State::Product(_) => MemoryKind::Device,
        }
    }

    /// Notes that a kernel has stored the elements of an expression.
    pub(super) fn keep(&self, buffer: Buffer) {
        let mut state = self.0.lock();
        if let State::Expression { .. } = &*state {
            *state = State::Buffer(Arc::new(buffer));
        }
    }
}

impl State {
    pub(super) fn expression(expression: Expression) -> State {
        State::Expression { expression: Arc::new(expression), computed: false }
    }

    /// Runs a product that has not run yet. What its kernel does not do becomes an expression.
    pub(super) fn run_product(&mut self) -> Result<()> {
        if let State::Product(producer) = self {
            *self = State::produced(producer.produce(None)?)?;
        }
        Ok(())
    }

    pub(super) fn produced(produced: Produced) -> Result<State> {
        let mut product = match produced {
            Produced::Finished { result, .. } => return Ok(State::Buffer(Arc::new(result))),
            Produced::Unfinished(product) => product,
        };
        if product.layout.is_all(product.elem_count()) {
            match Arc::try_unwrap(product.storage) {
                Ok(storage) => return Ok(storage.0.into_inner()),
                Err(shared) => product.storage = shared,
            }
        }
        Ok(State::expression(Expression::of(&product)?))
    }
}
