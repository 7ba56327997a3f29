//! The rows of a strided tensor: the elements along some axes, for each place along the others.

use super::elements::{Elements, Grid, Quads, Strides};
use crate::base::dtype::DType;
use crate::shader::{KernelBuilder, Value};

/// What the code that reads rows depends on. Parameters: the lengths of the kept axes, of the rows' axes; the tensor's
/// offset and its strides along the kept, then along the rows' axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RowsType {
    pub dtype: DType,
    pub kept_rank: usize,
    pub row_rank: usize,
}

impl RowsType {
    pub const fn parameter_words(self) -> usize {
        1 + 2 * (self.kept_rank + self.row_rank)
    }
}

pub(super) struct Rows<'k> {
    kept: Grid<'k>,
    along: Grid<'k>,
    strides: Strides<'k>,
    x: Elements<'k>,
}

impl<'k> Rows<'k> {
    /// Declares the parameters and the buffer.
    pub fn input(k: &'k KernelBuilder, ty: RowsType) -> Self {
        Rows::of(k, ty, Elements::input)
    }

    /// The same for elements that are not computed with: see [`Elements::moved`].
    pub fn moved(k: &'k KernelBuilder, ty: RowsType) -> Self {
        Rows::of(k, ty, Elements::moved)
    }

    fn of(k: &'k KernelBuilder, ty: RowsType, x: fn(&'k KernelBuilder, &str, DType) -> Elements<'k>) -> Self {
        let (kept, along) = (Grid::parameters(k, ty.kept_rank), Grid::parameters(k, ty.row_rank));
        let strides = Strides::parameters(k, ty.kept_rank + ty.row_rank);
        Rows { kept, along, strides, x: x(k, "x", ty.dtype) }
    }

    /// The elements of a row by their places in it.
    pub fn row(self, row: Value<'k>) -> impl Fn(Value<'k>) -> Value<'k> {
        let kept = self.kept.coordinates(row);
        move |place| self.load_at(&kept, place)
    }

    /// The fours of a row by their places in it, from a buffer of its own: of rows along one axis, whose elements lie side
    /// by side from a multiple of four on.
    pub fn quads(k: &'k KernelBuilder, ty: RowsType, row: Value<'k>) -> impl Fn(Value<'k>) -> Value<'k> {
        let (kept, _) = (Grid::parameters(k, ty.kept_rank), Grid::parameters(k, ty.row_rank));
        let strides = Strides::parameters(k, ty.kept_rank + ty.row_rank);
        let x = Quads::input(k, "x", ty.dtype);
        let first = strides.at(&kept.coordinates(row)) / 4;
        move |quad| x.load(k, first + quad)
    }

    /// The element at a place of a row.
    pub fn load(&self, row: Value<'k>, place: Value<'k>) -> Value<'k> {
        self.load_at(&self.kept.coordinates(row), place)
    }

    fn load_at(&self, kept: &[Value<'k>], place: Value<'k>) -> Value<'k> {
        let coordinates = [kept, &self.along.coordinates(place)].concat();
        self.x.load(self.strides.at(&coordinates))
    }
}
