//! The rows of a strided tensor: the elements along some axes, for each place along the others.

use super::elements::{Elements, Quads};
use super::parameters::{Lengths, View, parameters};
use crate::base::dtype::DType;
use crate::shader::{KernelBuilder, Value};

/// The configuration of the code that reads rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RowsType {
    pub dtype: DType,
    pub kept_rank: usize,
    pub row_rank: usize,
}

parameters! {
    config: RowsType;
    host: RowsParameters;
    device: DeclaredRows;
    /// The lengths of the kept axes.
    kept: Lengths = Lengths(config.kept_rank),
    /// The lengths of the rows' axes.
    along: Lengths = Lengths(config.row_rank),
    /// The tensor along the kept, then along the rows' axes.
    x: View = View(config.kept_rank + config.row_rank),
}

pub(super) struct Rows<'k> {
    at: DeclaredRows<'k>,
    x: Elements<'k>,
}

impl<'k> Rows<'k> {
    /// Declares the buffer.
    pub fn input(k: &'k KernelBuilder, at: DeclaredRows<'k>, dtype: DType) -> Self {
        Rows { at, x: Elements::input(k, "x", dtype) }
    }

    /// Declares the buffer for elements that are only moved: see [`Elements::moved`].
    pub fn moved(k: &'k KernelBuilder, at: DeclaredRows<'k>, dtype: DType) -> Self {
        Rows { at, x: Elements::moved(k, "x", dtype) }
    }

    /// Returns a function that loads the element at a place of the row.
    pub fn row(self, row: Value<'k>) -> impl Fn(Value<'k>) -> Value<'k> {
        let kept = self.at.kept.coordinates(row);
        move |place| self.load_at(&kept, place)
    }

    /// Returns a function that loads the quad at a place of the row, from a buffer that is declared here. The rows run
    /// along one axis, and are contiguous from a multiple of four on.
    pub fn quads(
        k: &'k KernelBuilder,
        at: DeclaredRows<'k>,
        dtype: DType,
        row: Value<'k>,
    ) -> impl Fn(Value<'k>) -> Value<'k> {
        let x = Quads::input(k, "x", dtype);
        let first = at.x.at(&at.kept.coordinates(row)) / 4;
        move |quad| x.load(k, first + quad)
    }

    /// Loads the element at a place of a row.
    pub fn load(&self, row: Value<'k>, place: Value<'k>) -> Value<'k> {
        self.load_at(&self.at.kept.coordinates(row), place)
    }

    fn load_at(&self, kept: &[Value<'k>], place: Value<'k>) -> Value<'k> {
        let coordinates = [kept, &self.at.along.coordinates(place)].concat();
        self.x.load(self.at.x.at(&coordinates))
    }
}
