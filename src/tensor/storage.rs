//! What a tensor owns: a buffer, or what is to be computed yet: an elementwise expression, or a product.

use super::epilogue::{Epilogue, Produced, Producer};
use super::transposition::Transposition;
use super::{Tensor, allocate};
use crate::backend::info::MemoryKind;
use crate::base::dtype::{DType, Element};
use crate::base::error::{Error, Result};
use crate::base::layout::{Layout, collapse};
use crate::base::number::Number;
use crate::base::shape::Shape;
use crate::device::Device;
use crate::engine::pool::Buffer;
use crate::kernels::elementwise::{Elementwise, InputLayout};
use crate::kernels::expr::Expr;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::cmp::Ordering;
use std::sync::Arc;

/// A fused expression grows to at most so many operations...
const MAX_OPERATIONS: usize = 24;
/// ...over at most so many inputs, and as many words of numbers as leave room for strides in the smallest parameter block.
const MAX_INPUTS: usize = 8;
const MAX_WORDS: usize = 12;
/// An operation has up to so many operands; those that are still to come need room too.
const MOST_OPERANDS: usize = 3;

/// A number handed to a kernel at its launch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Word {
    /// Of the number widened to the type that kernels compute in.
    pub bits: u64,
    pub dtype: DType,
}

impl Word {
    pub fn new<T: Element>(number: T) -> Word {
        Word { bits: number.to_bits(), dtype: T::DTYPE }
    }

    /// A number as an element of a dtype, which must hold it if it is one of integers.
    pub fn of(number: impl Into<Number>, dtype: DType, op: &'static str) -> Result<Word> {
        Ok(Word { bits: number.into().bits(dtype, op)?, dtype })
    }

    /// Its words in a parameter block, the lowest bits first.
    pub fn words(self) -> impl Iterator<Item = u32> {
        [self.bits as u32, (self.bits >> 32) as u32].into_iter().take(self.dtype.parts())
    }
}

/// The length of numbers in a parameter block.
fn word_count(scalars: &[Word]) -> usize {
    scalars.iter().map(|word| word.dtype.parts()).sum()
}

/// An elementwise computation over the elements of `shape` in row-major order.
#[derive(Clone)]
pub(crate) struct Expression {
    expr: Expr,
    /// Broadcast to `shape`; their elements exist.
    inputs: SmallVec<[Tensor; 4]>,
    scalars: SmallVec<[Word; 4]>,
    shape: Shape,
}

enum State {
    Buffer(Arc<Buffer>),
    /// Not computed yet. It is copied into the first expression that uses it; for a second use it is computed, so that
    /// nothing is computed more than twice.
    Expression {
        expression: Box<Expression>,
        fused: bool,
    },
    /// Not computed yet. It stays an input of the expressions that use it in its order, and the first of them that is
    /// computed becomes the epilogue of its kernel.
    Product(Box<dyn Producer>),
}

pub(crate) struct Storage(Mutex<State>);

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
}

impl State {
    fn expression(expression: Expression) -> State {
        State::Expression { expression: Box::new(expression), fused: false }
    }

    /// Runs a product that has not run yet. What its kernel does not do is left to an expression.
    fn run_product(&mut self) -> Result<()> {
        if let State::Product(producer) = self {
            *self = State::produced(producer.produce(None)?)?;
        }
        Ok(())
    }

    fn produced(produced: Produced) -> Result<State> {
        let mut product = match produced {
            Produced::Finished { result, .. } => return Ok(State::Buffer(Arc::new(result))),
            Produced::Unfinished(product) => product,
        };
        if product.layout == Layout::contiguous(product.shape().clone()) {
            match Arc::try_unwrap(product.storage) {
                Ok(storage) => return Ok(storage.0.into_inner()),
                Err(shared) => product.storage = shared,
            }
        }
        Ok(State::expression(Expression::of(&product)?))
    }
}

impl Storage {
    pub fn memory_kind(&self) -> MemoryKind {
        match &*self.0.lock() {
            State::Buffer(buffer) => buffer.kind(),
            State::Expression { .. } | State::Product(_) => MemoryKind::Device,
        }
    }
}

impl Tensor {
    /// Whether nobody else can see the elements, and each has one place only. They are computed if they have not been.
    pub(super) fn holds_elements_alone(&self) -> Result<bool> {
        let buffer = self.buffer()?;
        // The storage has one, `buffer` is the other.
        Ok(!self.layout.may_overlap() && Arc::strong_count(&self.storage) == 1 && Arc::strong_count(&buffer) == 2)
    }

    /// Whether the elements are those of an expression that is still to be computed.
    pub(super) fn is_pending(&self) -> bool {
        matches!(&*self.storage.0.lock(), State::Expression { .. })
    }

    /// The buffer behind the tensor, computed now if it has not been yet.
    pub(crate) fn buffer(&self) -> Result<Arc<Buffer>> {
        let mut state = self.storage.0.lock();
        loop {
            match &*state {
                State::Buffer(buffer) => return Ok(buffer.clone()),
                State::Expression { expression, .. } => {
                    *state = State::Buffer(Arc::new(expression.compute(&self.device)?));
                }
                State::Product(_) => state.run_product()?,
            }
        }
    }

    /// Whether this is a product that has not run yet, all of it in its order.
    fn is_product(&self) -> bool {
        let elements = match &*self.storage.0.lock() {
            State::Product(producer) => producer.elements(),
            _ => return false,
        };
        elements == self.elem_count() && self.layout.is_contiguous() && self.layout.offset == 0
    }

    /// Runs a product that has not run yet. Tells whether there is a buffer now.
    fn run_product(&self) -> Result<bool> {
        let mut state = self.storage.0.lock();
        state.run_product()?;
        Ok(matches!(&*state, State::Buffer(_)))
    }

    /// Whether both are the same view of the same elements.
    fn is_same(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage) && self.layout == other.layout
    }

    /// The tensor's pending expression if it can be copied into one over `shape`.
    fn fusible(&self, shape: &Shape) -> Option<Expression> {
        let mut state = self.storage.0.lock();
        let State::Expression { expression, fused } = &mut *state else { return None };
        if expression.is_constant() {
            return Some((**expression).clone());
        }
        let same = expression.shape == *shape
            && self.layout.shape == *shape
            && self.layout.is_contiguous()
            && self.layout.offset == 0;
        (same && !std::mem::replace(fused, true)).then(|| (**expression).clone())
    }
}

/// An expression in the making.
pub(crate) struct Fusion {
    shape: Shape,
    inputs: SmallVec<[Tensor; 4]>,
    scalars: SmallVec<[Word; 4]>,
    operations: usize,
    /// What has been copied in, so that an operand that comes twice is the same expression twice.
    absorbed: SmallVec<[(Tensor, Expr); 2]>,
}

impl Fusion {
    /// Starts an expression over the elements of `shape`.
    pub fn new(shape: Shape) -> Self {
        Fusion { shape, inputs: SmallVec::new(), scalars: SmallVec::new(), operations: 0, absorbed: SmallVec::new() }
    }

    /// The element of a tensor, broadcast to the shape, as a part of the expression.
    pub fn tensor(&mut self, tensor: &Tensor, op: &'static str) -> Result<Expr> {
        check_computes(&tensor.device, tensor.dtype)?;
        let again = self.absorbed.iter().find(|(known, _)| known.is_same(tensor));
        if let Some((_, expr)) = again {
            return Ok(expr.clone());
        }
        let bindings = tensor.device.info().limits.max_bindings as usize - 1;
        if let Some(pending) = tensor.fusible(&self.shape)
            && self.operations + pending.expr.operations() <= MAX_OPERATIONS
            && self.inputs.len() + pending.inputs.len() + MOST_OPERANDS - 1 <= bindings.min(MAX_INPUTS)
            && word_count(&self.scalars) + word_count(&pending.scalars) <= MAX_WORDS
        {
            self.operations += pending.expr.operations();
            let input = |tensor: Tensor| {
                let dtype = tensor.dtype;
                Expr::Input(self.input(tensor), dtype)
            };
            let inputs: Vec<Expr> = pending.inputs.into_iter().map(input).collect();
            let scalars: Vec<usize> = pending.scalars.into_iter().map(|word| self.word(word)).collect();
            let mut expr = pending.expr.over(&inputs, &scalars);
            if matches!(expr.dtype(), DType::F16 | DType::BF16) && expr.operations() > 0 {
                // Rounded as if it had gone through memory, so that fusion does not show in the numbers.
                expr = Expr::Cast(expr.dtype(), expr.into());
            }
            self.absorbed.push((tensor.clone(), expr.clone()));
            return Ok(expr);
        }
        if tensor.shape() != &self.shape || !tensor.is_product() {
            tensor.buffer()?;
        }
        let view = tensor.with_layout(tensor.layout().broadcast_to(&self.shape, op)?);
        Ok(Expr::Input(self.input(view), tensor.dtype()))
    }

    /// A number as a part of the expression.
    pub fn scalar(&mut self, word: Word) -> Expr {
        Expr::Scalar(self.word(word), word.dtype)
    }

    /// The same, kept apart from numbers that are equal by chance, so that it makes no kernel of its own then.
    pub fn argument(&mut self, word: Word) -> Expr {
        self.scalars.push(word);
        Expr::Scalar(self.scalars.len() - 1, word.dtype)
    }

    fn input(&mut self, tensor: Tensor) -> usize {
        self.inputs.iter().position(|known| known.is_same(&tensor)).unwrap_or_else(|| {
            self.inputs.push(tensor);
            self.inputs.len() - 1
        })
    }

    fn word(&mut self, word: Word) -> usize {
        self.scalars.iter().position(|known| *known == word).unwrap_or_else(|| {
            self.scalars.push(word);
            self.scalars.len() - 1
        })
    }

    /// The tensor of the expression's values, to be computed when it is needed.
    pub fn finish(self, expr: Expr, device: &Device, op: &'static str) -> Result<Tensor> {
        super::checked_elements(&self.shape, op)?;
        let (shape, dtype) = (self.shape.clone(), expr.dtype());
        check_computes(device, dtype)?;
        let expression = Expression { expr, inputs: self.inputs, scalars: self.scalars, shape: self.shape };
        Ok(Tensor::from_storage(Storage::expression(expression), shape, dtype, device))
    }
}

/// Fails where a device cannot compute with elements of a dtype: now, not when the result is asked for.
fn check_computes(device: &Device, dtype: DType) -> Result<()> {
    match dtype.requires().missing_from(&device.info().features) {
        Some(feature) => Err(Error::Unsupported { feature: feature.into(), device: device.to_string() }),
        None => Ok(()),
    }
}

impl Expression {
    /// Whether every element is the same number, whatever the shape.
    fn is_constant(&self) -> bool {
        matches!(self.expr, Expr::Scalar(..))
    }

    /// A tensor's elements in row-major order.
    fn of(tensor: &Tensor) -> Result<Expression> {
        let mut fusion = Fusion::new(tensor.shape().clone());
        let expr = fusion.tensor(tensor, "elementwise")?;
        Ok(Expression { expr, inputs: fusion.inputs, scalars: fusion.scalars, shape: fusion.shape })
    }

    /// Launches the kernel of the expression, or that of a product among its inputs.
    fn compute(&self, device: &Device) -> Result<Buffer> {
        let mut products = (0..self.inputs.len()).filter(|&i| self.inputs[i].is_product());
        let Some(product) = products.next() else { return self.compute_elements(device) };
        let others: SmallVec<[usize; 4]> = products.collect();
        let ready =
            others.into_iter().try_fold(true, |ready, i| Ok::<_, Error>(ready & self.inputs[i].run_product()?))?;
        if ready && let Some(result) = self.finish_product(product)? {
            return Ok(result);
        }
        // Products have run, and some may have left an expression.
        self.again()?.compute(device)
    }

    /// Computes the expression as the epilogue of the product that is this input. Where that cannot be, the product runs
    /// alone.
    fn finish_product(&self, product: usize) -> Result<Option<Buffer>> {
        let Tensor { storage, dtype, .. } = &self.inputs[product];
        let others: SmallVec<[&Tensor; 4]> =
            self.inputs.iter().enumerate().filter(|(i, _)| *i != product).map(|(_, input)| input).collect();
        let mut state = storage.0.lock();
        let State::Product(producer) = &*state else { return Ok(None) };
        if others.iter().any(|other| Arc::ptr_eq(&other.storage, storage)) {
            state.run_product()?;
            return Ok(None);
        }
        let sum = Expr::Input(others.len(), producer.accumulator());
        let inputs: Vec<Expr> = (0..self.inputs.len())
            .map(|i| match i.cmp(&product) {
                // Rounded as memory would round it.
                Ordering::Equal if sum.dtype() != *dtype => Expr::Cast(*dtype, sum.clone().into()),
                Ordering::Equal => sum.clone(),
                Ordering::Less => Expr::Input(i, self.inputs[i].dtype),
                Ordering::Greater => Expr::Input(i - 1, self.inputs[i].dtype),
            })
            .collect();
        let scalars: Vec<usize> = (0..self.scalars.len()).collect();
        let epilogue = Epilogue {
            expr: self.expr.over(&inputs, &scalars),
            inputs: others,
            scalars: &self.scalars,
            shape: &self.shape,
            // Nobody else can ask for it while this expression is locked and has the only handle.
            kept: (Arc::strong_count(storage) > 1).then_some(*dtype),
        };
        match producer.produce(Some(&epilogue))? {
            Produced::Finished { result, kept } => {
                if let Some(kept) = kept {
                    *state = State::Buffer(Arc::new(kept));
                }
                Ok(Some(result))
            }
            product => {
                *state = State::produced(product)?;
                Ok(None)
            }
        }
    }

    /// The same expression with those of its inputs taken in that have become expressions.
    fn again(&self) -> Result<Expression> {
        let mut fusion = Fusion::new(self.shape.clone());
        fusion.operations = self.expr.operations();
        fusion.scalars = self.scalars.clone();
        let inputs: Vec<Expr> =
            self.inputs.iter().map(|input| fusion.tensor(input, "elementwise")).collect::<Result<_>>()?;
        let scalars: Vec<usize> = (0..self.scalars.len()).collect();
        let expr = self.expr.over(&inputs, &scalars);
        Ok(Expression { expr, inputs: fusion.inputs, scalars: fusion.scalars, shape: fusion.shape })
    }

    /// Launches the kernel of an expression over buffers.
    fn compute_elements(&self, device: &Device) -> Result<Buffer> {
        let output = allocate(&self.shape, self.expr.dtype(), device, "elementwise")?;
        let elements = super::checked_elements(&self.shape, "elementwise")?;
        if elements == 0 {
            return Ok(output);
        }
        if self.copies()
            && device.tuning().copy.tiles
            && let [input] = &self.inputs[..]
            && let Some(Transposition { config, parameters, groups }) = Transposition::new(input)
        {
            device.runtime().launch(config, &[&*input.buffer()?, &output], &parameters, groups)?;
            return Ok(output);
        }
        let (config, inputs, parameters) = self.plan(elements, device)?;
        let buffers: Vec<_> = inputs.iter().map(Tensor::buffer).collect::<Result<_>>()?;
        let mut bindings: Vec<&Buffer> = buffers.iter().map(|buffer| &**buffer).collect();
        bindings.push(&output);
        let groups = elements.div_ceil(config.elements_per_group());
        device.runtime().launch(config, &bindings, &parameters, groups)?;
        Ok(output)
    }

    /// The kernel, its inputs and its parameters.
    fn plan(&self, elements: usize, device: &Device) -> Result<(Elementwise, SmallVec<[Tensor; 4]>, Vec<u32>)> {
        let mut inputs = self.inputs.clone();
        loop {
            let strided: SmallVec<[usize; 4]> = (0..inputs.len()).filter(|&i| is_strided(&inputs[i])).collect();
            let views: Vec<&[isize]> = strided.iter().map(|&i| inputs[i].strides()).collect();
            let (lengths, strides) = if views.is_empty() { Default::default() } else { collapse(&self.shape, &views) };
            let mut layouts: SmallVec<[InputLayout; 4]> = inputs.iter().map(|_| InputLayout::Contiguous).collect();
            for (&i, strides) in strided.iter().zip(&strides) {
                layouts[i] = strided_layout(&inputs[i], &lengths, strides);
            }
            let config = Elementwise {
                expr: self.expr.clone(),
                inputs: inputs.iter().zip(&layouts).map(|(input, &layout)| (input.dtype(), layout)).collect(),
                rank: lengths.len(),
                scalars: self.scalars.iter().map(|word| word.dtype).collect(),
                quads: match device.tuning().loads.several {
                    true => Elementwise::fours(&self.expr, inputs.iter().map(Tensor::dtype)),
                    false => 1,
                },
            };
            let limit = device.runtime().info().limits.max_parameter_words as usize;
            if config.parameter_words() <= limit {
                let mut parameters = vec![elements as u32];
                parameters.extend(lengths.iter().map(|&n| n as u32));
                let mut strides = strides.into_iter();
                for (input, layout) in inputs.iter().zip(&layouts) {
                    let offset = input.layout().offset as u32;
                    match layout {
                        InputLayout::Contiguous => parameters.push(offset / 4),
                        _ => {
                            parameters.push(offset);
                            parameters.extend(strides.next().iter().flatten().map(|&stride| stride as u32));
                        }
                    }
                }
                parameters.extend(self.scalars.iter().flat_map(|word| word.words()));
                return Ok((config, inputs, parameters));
            }
            // Too many strides for one launch: a copy of one input in order needs none.
            let Some(&last) = strided.last().filter(|_| !self.copies()) else {
                let feature = format!("an elementwise operation over {} axes that do not merge", lengths.len());
                return Err(Error::Unsupported { feature, device: device.to_string() });
            };
            inputs[last] = inputs[last].copied()?;
        }
    }

    /// Whether this is nothing but a copy.
    fn copies(&self) -> bool {
        matches!(self.expr, Expr::Input(..))
    }
}

/// Whether the elements are not simply one after the other, from a multiple of four on.
pub(super) fn is_strided(input: &Tensor) -> bool {
    !(input.is_contiguous() && input.layout().offset.is_multiple_of(4))
}

/// How an input is read along axes of these lengths.
pub(super) fn strided_layout(input: &Tensor, lengths: &[usize], strides: &[isize]) -> InputLayout {
    let (Some((&inner, outer)), Some(&length)) = (strides.split_last(), lengths.last()) else {
        return InputLayout::Strided;
    };
    let fours = input.layout().offset.is_multiple_of(4) && outer.iter().all(|stride| stride % 4 == 0);
    match inner {
        _ if !length.is_multiple_of(4) => InputLayout::Strided,
        0 => InputLayout::Repeated,
        1 if fours => InputLayout::StridedQuads,
        _ => InputLayout::Strided,
    }
}
