//! Epilogues: elementwise expressions that the kernel of a product computes before it stores the product. The product
//! is one of their inputs. The others are loaded at its place.

use super::Family;
use super::elements::{Grid, Quads, Raw, narrowed};
use super::elementwise::{Evaluation, Input, InputLayout, RESULTS, outputs};
use super::parameters::{Each, Lengths, Number, View, parameters, set_numbers};
use crate::base::dtype::DType;
use crate::base::word::Word;
use crate::kernels::expr::{BinaryOp, Expr, TermId, UnaryOp};
use crate::shader::{Access, Array, KernelBuilder, Type, Value};
use smallvec::SmallVec;

/// An expression over a product, which is its last input.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Epilogue {
    pub expr: Expr,
    pub inputs: SmallVec<[EpilogueInput; 4]>,
    /// The number of axes that make up the rows. 0 if no input differs between rows.
    pub rank: usize,
    pub scalars: SmallVec<[DType; 4]>,
    /// The terms that are stored beside the result, each in a buffer of its own.
    pub kept: SmallVec<[TermId; 2]>,
}

/// An input of an epilogue. If the kernel does not store four neighbours together, all inputs are strided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct EpilogueInput {
    pub dtype: DType,
    pub layout: InputLayout,
    /// True if the input has strides along the axes of the rows. If not, a strided input has one along the columns
    /// only.
    pub by_row: bool,
}

parameters! {
    config: Epilogue;
    host: Parameters;
    device: Declared;
    /// The lengths of the axes that make up the rows.
    rows: Lengths = Lengths(config.rank),
    inputs: Each<View> = config.inputs.iter().map(|input| input.view(config.rank)).collect(),
    scalars: Each<Number> = config.scalars.iter().copied().map(Number).collect(),
}

impl Parameters {
    /// Sets what differs from launch to launch: offsets, then numbers.
    pub fn set_numbers(&mut self, next: &mut dyn FnMut() -> u32) {
        set_numbers(&mut self.inputs, &mut self.scalars, next);
    }
}

impl EpilogueInput {
    fn view(self, rank: usize) -> View {
        self.layout.view(1 + if self.by_row { rank } else { 0 })
    }
}

/// Returns an epilogue for samples of kernels: `silu(y + residual)` of `f32`. `y` is kept.
pub(super) fn sample() -> Box<Epilogue> {
    let mut expr = Expr::default();
    let (residual, y) = (expr.input(0, DType::F32), expr.input(1, DType::F32));
    let sum = expr.binary(BinaryOp::Add, y, residual);
    expr.unary(UnaryOp::Silu, sum);
    let input = EpilogueInput { dtype: DType::F32, layout: InputLayout::Strided, by_row: true };
    let (inputs, kept) = ([input].into_iter().collect(), [y].into_iter().collect());
    Epilogue { expr, inputs, rank: 1, scalars: SmallVec::new(), kept }.into()
}

/// An epilogue in a kernel.
pub(super) struct Tail<'k> {
    expr: Expr,
    rows: Grid<'k>,
    inputs: Vec<(Input<'k>, bool)>,
    scalars: Vec<Value<'k>>,
}

impl<'k> Tail<'k> {
    pub fn new(k: &'k KernelBuilder, config: &Epilogue, parameters: Declared<'k>) -> Self {
        let Declared { rows, inputs: views, scalars } = parameters;
        let inputs = config
            .inputs
            .iter()
            .zip(views)
            .enumerate()
            .map(|(i, (input, at))| (Input::new(k, &format!("x{i}"), input.dtype, input.layout, at), input.by_row));
        let inputs = inputs.collect();
        Tail { expr: config.expr.clone(), rows, inputs, scalars }
    }

    /// Loads the inputs' elements that are the same for all rows, for one column or some neighbours.
    pub fn load_columns(&self, k: &'k KernelBuilder, columns: &[Value<'k>]) -> Vec<Option<Value<'k>>> {
        let places: Vec<_> = columns.iter().map(|&column| vec![column]).collect();
        let load = |(input, by_row): &(Input<'k>, bool)| match input {
            Input::Contiguous(..) => None,
            _ => (!by_row).then(|| input.load(k, columns[0], &places)),
        };
        self.inputs.iter().map(load).collect()
    }

    /// Loads the inputs' elements for one element of the product, or for some neighbours. `first` is the index of the
    /// first one. `places` are their rows, counted through all batches, and their columns. `known` are the elements
    /// from [`load_columns`](Self::load_columns).
    pub fn load(
        &self,
        k: &'k KernelBuilder,
        first: Value<'k>,
        places: &[[Value<'k>; 2]],
        known: &[Option<Value<'k>>],
    ) -> Vec<Value<'k>> {
        let coordinates = |&[row, column]: &[Value<'k>; 2]| [self.rows.coordinates(row), vec![column]].concat();
        let coordinates: Vec<_> = places.iter().map(coordinates).collect();
        let columns: Vec<_> = places.iter().map(|&[_, column]| vec![column]).collect();
        let load = |((input, by_row), known): (&(Input<'k>, bool), &Option<Value<'k>>)| {
            let coordinates = if *by_row { &coordinates } else { &columns };
            known.unwrap_or_else(|| input.load(k, first / 4, coordinates))
        };
        self.inputs.iter().zip(known).map(load).collect()
    }

    /// Returns the value of each term, for one element or for four.
    pub fn evaluate(&self, loaded: &[Value<'k>], product: Value<'k>, index: Value<'k>) -> Vec<Value<'k>> {
        let values = [loaded, &[product]].concat();
        Evaluation { values: &values, scalars: &self.scalars, index }.evaluate(&self.expr)
    }
}

/// A family whose kernels store their results in row-major order, and apply an epilogue before.
pub(crate) trait Finishing: Family + Clone {
    /// How many neighbours are stored together: 1 or 4.
    fn width(&self) -> u32;

    /// The dtype of the results without an epilogue.
    fn stored(&self) -> DType;

    /// Whether the kernel computes with its results, and does not only move them.
    fn computes(&self) -> bool {
        true
    }

    /// Whether the kernel can store results of a dtype, after an epilogue.
    fn stores(&self, dtype: DType, _parameters: &Self::Host) -> bool {
        self.width() == 4 || dtype.size_in_bytes() >= 4
    }

    /// The shape and the dtype of what workgroups store for each other, if several share a block of results. The kernel
    /// then binds a buffer for it and one with counters, after its results.
    fn shared(&self, _groups: usize) -> Option<([usize; 3], DType)> {
        None
    }

    /// The columns of the rows that the epilogue sees: one, if it sees the results as a line.
    fn columns(&self, _parameters: &Self::Host) -> usize {
        1
    }

    /// Returns the kernel that only stores the results, with its parameters and workgroups, if another one does so
    /// faster.
    fn alone(&self, _parameters: &Self::Host) -> Option<(Self, Self::Host, usize)> {
        None
    }

    /// Returns the kernel with an epilogue.
    fn with_epilogue(&self, epilogue: Box<Epilogue>) -> Self;

    /// Returns the kernel that also stores the RMS norm of each `length` results, with its parameters, if there is one
    /// and it pays. It binds the norm's weights, the normalised results and a buffer with counters, after its results.
    /// Its workgroups [share](Self::shared) no block.
    fn with_norm(&self, _parameters: &Self::Host, _length: usize, _eps: Word) -> Option<(Self, Self::Host)> {
        None
    }

    /// Adds the epilogue's parameters to the kernel's.
    fn finished(parameters: &Self::Host, epilogue: Parameters) -> Self::Host;
}

/// The outputs of a kernel: the results, after the epilogue if there is one, and the terms that the epilogue keeps. The
/// kernel stores them one by one, or four neighbours at a time.
pub(super) struct Outputs<'k> {
    stores: Vec<(Store<'k>, TermId)>,
    tail: Option<Tail<'k>>,
    /// The number of columns of the epilogue's rows, if they have several.
    columns: Option<Value<'k>>,
    /// The index of the last result, if four may reach beyond it.
    last: Option<Value<'k>>,
    width: u32,
}

/// A buffer that is written by elements or by quads.
pub(super) enum Store<'k> {
    Elements(Array<'k>),
    /// Elements of less than 32 bits. Several invocations may write to one word, so this takes atomic operations: for
    /// kernels with few results.
    Narrow(Raw<'k>, DType),
    Quads(Quads<'k>),
    /// Quads that another workgroup may load.
    ForAll(Quads<'k>),
}

impl<'k> Store<'k> {
    pub fn new(k: &'k KernelBuilder, name: &str, dtype: DType, width: u32) -> Self {
        if width == 4 {
            return Store::Quads(Quads::output(k, name, dtype));
        }
        if dtype.size_in_bytes() < 4 {
            return Store::Narrow(Raw::output(k, name, dtype.size_in_bytes()), dtype);
        }
        Store::Elements(k.buffer(name, Type { scalar: dtype.compute_scalar(), lanes: 1 }, Access::Write))
    }

    pub fn store(&self, k: &'k KernelBuilder, index: Value<'k>, value: Value<'k>) {
        match self {
            Store::Elements(array) => array.store(index, value),
            Store::Narrow(raw, dtype) => raw.replace(index, narrowed(k, *dtype, value)),
            Store::Quads(quads) => quads.store(k, index / 4, value),
            Store::ForAll(quads) => quads.store_for_all(k, index / 4, value),
        }
    }
}

impl<'k> Outputs<'k> {
    /// Declares the buffers: the epilogue's inputs, the results, and what is kept. Without an epilogue, results have
    /// this dtype.
    pub fn new(
        k: &'k KernelBuilder,
        dtype: DType,
        width: u32,
        epilogue: Option<(&Epilogue, Declared<'k>)>,
        columns: Option<Value<'k>>,
    ) -> Self {
        Outputs::declare(k, dtype, width, epilogue, columns, |name, dtype| Store::new(k, name, dtype, width))
    }

    /// Declares the same buffers. Results are stored four at a time. A workgroup that knows all others to be ready may
    /// [load](Self::load_packed_of_all) their results.
    pub fn for_all(k: &'k KernelBuilder, dtype: DType, epilogue: Option<(&Epilogue, Declared<'k>)>) -> Self {
        Outputs::declare(k, dtype, 4, epilogue, None, |name, dtype| match name {
            RESULTS => Store::ForAll(Quads::in_place(k, name, dtype)),
            kept => Store::new(k, kept, dtype, 4),
        })
    }

    fn declare(
        k: &'k KernelBuilder,
        dtype: DType,
        width: u32,
        epilogue: Option<(&Epilogue, Declared<'k>)>,
        columns: Option<Value<'k>>,
        mut store: impl FnMut(&str, DType) -> Store<'k>,
    ) -> Self {
        let Some((config, at)) = epilogue else {
            let stores = vec![(store(RESULTS, dtype), TermId::default())];
            return Outputs { stores, tail: None, columns, last: None, width };
        };
        let tail = Tail::new(k, config, at);
        let outputs = outputs(&config.expr, &config.kept);
        let stores = outputs.map(|(name, id, dtype)| (store(&name, dtype), id)).collect();
        Outputs { stores, tail: Some(tail), columns, last: None, width }
    }

    /// Lets the last four reach beyond the last of `count` results: what is loaded for them is the last one's.
    pub fn up_to(self, count: Value<'k>) -> Self {
        Outputs { last: Some(count - 1), ..self }
    }

    /// Loads four results as they are, if another workgroup has stored them [for all](Self::for_all).
    pub fn load_packed_of_all(&self, quad: Value<'k>) -> Value<'k> {
        match &self.stores[0].0 {
            Store::ForAll(quads) => quads.load_packed_of_all(quad),
            _ => unreachable!("the results were declared for all"),
        }
    }

    /// Stores the value at an index, or four values from there on.
    pub fn store(&self, k: &'k KernelBuilder, index: Value<'k>, value: Value<'k>) {
        let Some(tail) = &self.tail else { return self.stores[0].0.store(k, index, value) };
        let inside = |index: Value<'k>| self.last.map_or(index, |last| index.min(last));
        let indices: Vec<_> = (0..self.width).map(|lane| inside(index + lane)).collect();
        let place = |&index: &Value<'k>| match self.columns {
            Some(columns) => [index / columns, index % columns],
            None => [index, index.literal(0)],
        };
        let places: Vec<_> = indices.iter().map(place).collect();
        let loaded = tail.load(k, index, &places, &vec![None; tail.inputs.len()]);
        let index_of_each = if self.width == 1 { index } else { k.vector(&indices) };
        let values = tail.evaluate(&loaded, value, index_of_each);
        self.stores.iter().for_each(|(output, id)| output.store(k, index, values[id.index()]));
    }
}
