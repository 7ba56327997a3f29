//! Tensors with a border. Each invocation gathers four consecutive elements of the output.

use super::Family;
use super::elements::{Elements, Grid, Quads, Strides, number_parameter, quad_indices};
use crate::base::dtype::DType;
use crate::shader::{KernelBuilder, Type, Value};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 128;

/// What the border is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Border {
    Constant,
    Reflect,
    Replicate,
    Circular,
}

/// Adds a border along any axes. Parameters: the number of elements of the output, the lengths of its axes; the input's
/// offset and strides; per axis how many elements stand before the input's, and the input's length; the number that a
/// constant border is made of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Pad {
    pub dtype: DType,
    pub border: Border,
    pub rank: usize,
}

impl Pad {
    /// The length of the parameter block.
    pub fn parameter_words(border: Border, dtype: DType, rank: usize) -> usize {
        2 + 4 * rank + if border == Border::Constant { dtype.parts() } else { 0 }
    }
}

impl Border {
    /// The coordinate in the input that a coordinate in the output shows. `before` and what stands after the input are
    /// shorter than one length (reflection) or no longer (circular).
    fn source<'k>(self, place: Value<'k>, before: Value<'k>, length: Value<'k>) -> Value<'k> {
        let inner = place - before;
        match self {
            Border::Constant => inner,
            Border::Replicate => (place.max(before) - before).min(length - 1),
            Border::Reflect => {
                let behind = inner.lt(length).select(inner, (length - 1) * 2 - inner);
                place.lt(before).select(before - place, behind)
            }
            Border::Circular => {
                let behind = inner.lt(length).select(inner, inner - length);
                place.lt(before).select(inner + length, behind)
            }
        }
    }
}

impl Family for Pad {
    fn name(&self) -> String {
        format!("pad({}, {:?})", self.dtype, self.border).to_lowercase()
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write(&self, k: &KernelBuilder) {
        let count = k.parameter(Type::U32);
        let grid = Grid::parameters(k, self.rank);
        let strides = Strides::parameters(k, self.rank);
        let axes: Vec<[Value; 2]> = (0..self.rank).map(|_| [k.parameter(Type::U32), k.parameter(Type::U32)]).collect();
        let fill = (self.border == Border::Constant).then(|| number_parameter(k, self.dtype));
        let x = Elements::input(k, "x", self.dtype);
        let y = Quads::output(k, "y", self.dtype);

        let quad = k.global_index();
        k.when((quad * 4).lt(count), || {
            let places = grid.coordinates(quad_indices(k, quad, count));
            let sources: Vec<Value> = (places.iter().zip(&axes))
                .map(|(&place, &[before, length])| self.border.source(place, before, length))
                .collect();
            let Some(fill) = fill else {
                return y.store(k, quad, x.gather_lanes(k, strides.at(&sources)));
            };
            // As a word, what is before the input is beyond it too.
            let inside = sources.iter().zip(&axes).map(|(&source, &[_, length])| source.lt(length));
            let inside = inside.reduce(|all, inside| all & inside).unwrap_or(k.bool(true));
            let first = strides.at(&[]);
            let elements = x.gather_lanes(k, inside.select(strides.at(&sources), first));
            y.store(k, quad, inside.select(elements, fill));
        });
    }

    fn samples() -> Vec<Self> {
        let borders = [Border::Constant, Border::Reflect, Border::Replicate, Border::Circular];
        borders.map(|border| Pad { dtype: DType::F32, border, rank: 3 }).into()
    }
}
