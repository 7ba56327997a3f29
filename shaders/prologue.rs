//! Prologues: elementwise expressions that a kernel computes as it loads its operand. The operand is the first input of
//! the expression. The others are loaded at the same place.
//!
//! A kernel that reads rows gives the place as coordinates along the axes of the rows. To a kernel that loads elements
//! at any index ([`Reader`]), the operand has one axis: the index. The other inputs then have the operand's strides.

use super::elements::{Elements, Grid};
use super::elementwise::{Evaluation, Input, InputLayout};
use super::parameters::{Each, Number, View, parameters};
use crate::base::dtype::DType;
use crate::kernels::expr::{BinaryOp, Expr, Term, UnaryOp};
use crate::shader::{KernelBuilder, Value};
use smallvec::SmallVec;

/// An expression over an operand, which is its first input.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Prologue {
    pub expr: Expr,
    /// The inputs after the operand. None is contiguous: they have strides along the axes of the operand. If the kernel
    /// loads the operand element by element, all are strided.
    pub inputs: SmallVec<[(DType, InputLayout); 2]>,
    /// The number of axes of the operand.
    pub rank: usize,
    pub scalars: SmallVec<[DType; 2]>,
}

parameters! {
    config: Prologue;
    host: Parameters;
    device: Declared;
    inputs: Each<View> = config.inputs.iter().map(|(_, layout)| layout.view(config.rank)).collect(),
    scalars: Each<Number> = config.scalars.iter().copied().map(Number).collect(),
}

impl Prologue {
    /// The dtype of the operand in memory.
    pub fn operand(&self) -> DType {
        let operand = |term: &Term| if let Term::Input(0, dtype) = term { Some(*dtype) } else { None };
        self.expr.terms().iter().find_map(operand).unwrap_or(self.expr.dtype())
    }
}

/// Describes an operand for a kernel's name: by its expression, or by its dtype if it is only loaded.
pub(super) fn describe(prologue: &Option<Box<Prologue>>, dtype: DType) -> String {
    prologue.as_ref().map_or(dtype.to_string(), |prologue| prologue.expr.describe())
}

/// Returns a prologue for samples of kernels that load at any index: `relu(x + other) * number`, of halves.
pub(super) fn sample() -> Option<Box<Prologue>> {
    let mut expr = Expr::default();
    let (x, other) = (expr.input(0, DType::F16), expr.input(1, DType::F16));
    let [x, other] = [x, other].map(|term| expr.cast(DType::F32, term));
    let sum = expr.binary(BinaryOp::Add, x, other);
    let (number, relu) = (expr.scalar(0, DType::F32), expr.unary(UnaryOp::Relu, sum));
    expr.binary(BinaryOp::Mul, relu, number);
    let inputs = [(DType::F16, InputLayout::Strided)].into_iter().collect();
    Some(Prologue { expr, inputs, rank: 1, scalars: [DType::F32].into_iter().collect() }.into())
}

/// A prologue in a kernel.
pub(super) struct Head<'k> {
    expr: Expr,
    inputs: Vec<Input<'k>>,
    scalars: Vec<Value<'k>>,
}

impl<'k> Head<'k> {
    /// Declares the other inputs as `name1`, `name2` and so on.
    pub fn new(
        k: &'k KernelBuilder,
        name: &str,
        config: &Prologue,
        Declared { inputs, scalars }: Declared<'k>,
    ) -> Self {
        let views = config.inputs.iter().zip(inputs).zip(1..);
        let inputs = views.map(|((&(dtype, layout), at), i)| Input::new(k, &format!("{name}{i}"), dtype, layout, at));
        Head { expr: config.expr.clone(), inputs: inputs.collect(), scalars }
    }

    /// Returns the value of the expression for an element of the operand, or for four neighbours. `coordinates` returns
    /// the place of each.
    pub fn apply(
        &self,
        k: &'k KernelBuilder,
        operand: Value<'k>,
        coordinates: impl Fn(u32) -> Vec<Value<'k>>,
    ) -> Value<'k> {
        let lanes = operand.ty().lanes;
        // Only a strided input is loaded element by element.
        let apart = self.inputs.iter().any(|input| matches!(input, Input::Strided(..)));
        let coordinates: Vec<_> = (0..if apart { lanes } else { 1 }).map(coordinates).collect();
        let first = k.u32(0);
        let index = if lanes == 1 { first } else { first.splat(lanes) };
        let others = self.inputs.iter().map(|input| input.load(k, first, &coordinates));
        let values: Vec<_> = [operand].into_iter().chain(others).collect();
        let values = Evaluation { values: &values, scalars: &self.scalars, index }.evaluate(&self.expr);
        values[values.len() - 1]
    }

    /// Returns the value of the expression for what a kernel has loaded at place `j` of a row.
    pub fn apply_in_row(
        &self,
        k: &'k KernelBuilder,
        operand: Value<'k>,
        (kept, along): &RowPlace<'k>,
        j: Value<'k>,
    ) -> Value<'k> {
        let lanes = operand.ty().lanes;
        self.apply(k, operand, |lane| [&kept[..], &along.coordinates(j * lanes + lane)].concat())
    }
}

/// The axes of a kernel's rows: the coordinates of a row along the kept axes, and the axes of its elements.
pub(super) type RowPlace<'k> = (Vec<Value<'k>>, Grid<'k>);

/// An operand that is loaded at any index, and goes through its prologue if it has one.
pub(super) struct Reader<'k> {
    k: &'k KernelBuilder,
    elements: Elements<'k>,
    head: Option<Head<'k>>,
}

impl<'k> Reader<'k> {
    /// Declares the operand's buffer, then those of the prologue's other inputs. Without a prologue, its elements have
    /// this dtype.
    pub fn new(k: &'k KernelBuilder, name: &str, dtype: DType, prologue: Option<(&Prologue, Declared<'k>)>) -> Self {
        let loaded = prologue.as_ref().map_or(dtype, |(config, _)| config.operand());
        let elements = Elements::input(k, name, loaded);
        Reader { k, elements, head: prologue.map(|(config, at)| Head::new(k, name, config, at)) }
    }

    /// Declares a buffer of elements that are only moved.
    pub fn moved(k: &'k KernelBuilder, name: &str, dtype: DType) -> Self {
        Reader { k, elements: Elements::moved(k, name, dtype), head: None }
    }

    /// Loads the element at an index.
    pub fn load(&self, index: Value<'k>) -> Value<'k> {
        self.gather(&[index])
    }

    /// Loads the elements at some indices: a number, or a vector of several.
    pub fn gather(&self, indices: &[Value<'k>]) -> Value<'k> {
        let elements = self.elements.gather(self.k, indices);
        match &self.head {
            Some(head) => head.apply(self.k, elements, |lane| vec![indices[lane as usize]]),
            None => elements,
        }
    }
}
