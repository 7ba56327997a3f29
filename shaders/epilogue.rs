//! Epilogues: elementwise expressions that the kernel of a product computes before it stores the product. The product
//! is one of their inputs. The others are loaded at its place.

use super::elements::Grid;
use super::elementwise::{Evaluation, Input, InputLayout};
use super::parameters::{Each, Lengths, Number, View, parameters};
use crate::base::dtype::DType;
use crate::kernels::expr::{Expr, TermId};
use crate::shader::{KernelBuilder, Value};
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

impl EpilogueInput {
    fn view(self, rank: usize) -> View {
        self.layout.view(1 + if self.by_row { rank } else { 0 })
    }
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
        let load = |((input, _), known): (&(Input<'k>, bool), &Option<Value<'k>>)| {
            known.unwrap_or_else(|| input.load(k, first / 4, &coordinates))
        };
        self.inputs.iter().zip(known).map(load).collect()
    }

    /// Returns the value of each term, for one element or for four.
    pub fn evaluate(&self, loaded: &[Value<'k>], product: Value<'k>, index: Value<'k>) -> Vec<Value<'k>> {
        let values = [loaded, &[product]].concat();
        Evaluation { values: &values, scalars: &self.scalars, index }.evaluate(&self.expr)
    }
}
