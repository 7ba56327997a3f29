//! Pads tensors with a border. Each invocation gathers four consecutive elements of the output.

use super::Family;
use super::elements::{Elements, Quads};
use super::parameters::{Each, Form, Lengths, Number, Size, View, parameters, times};
use crate::base::dtype::DType;
use crate::shader::{KernelBuilder, Value};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 128;

/// The elements of the border.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Border {
    Constant,
    Reflect,
    Replicate,
    Circular,
}

/// Adds a border along any axes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Pad {
    pub dtype: DType,
    pub border: Border,
    pub rank: usize,
}

parameters! {
    config: Pad;
    host: Parameters;
    device: Declared;
    /// The number of elements of the output.
    count: Size,
    /// The lengths of the output's axes.
    lengths: Lengths = Lengths(config.rank),
    x: View = View(config.rank),
    /// Where the input is along each axis.
    axes: Each<AxisForm> = times(config.rank),
    /// The number in a constant border.
    fill: Option<Number> = (config.border == Border::Constant).then_some(Number(config.dtype)),
}

/// The form of an axis.
#[derive(Default)]
pub(crate) struct AxisForm;

parameters! {
    config: AxisForm;
    host: AxisParameters;
    device: DeclaredAxis;
    /// The number of elements before the input.
    before: Size,
    /// The length of the input.
    length: Size,
}

impl Border {
    /// Returns the input coordinate for an output coordinate. For reflection, the border on either side is shorter than
    /// the input. For circular padding, it is at most as long.
    fn source<'k>(self, place: Value<'k>, &DeclaredAxis { before, length }: &DeclaredAxis<'k>) -> Value<'k> {
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
        let Declared { count, lengths, x: x_at, axes, fill } = self.declare(k);
        let x = Elements::input(k, "x", self.dtype);
        let y = Quads::output(k, "y", self.dtype);

        let quad = k.global_index();
        k.when((quad * 4).lt(count), || {
            let places = lengths.quad_coordinates(k, quad, count);
            let sources: Vec<Value> =
                (places.iter().zip(&axes)).map(|(&place, axis)| self.border.source(place, axis)).collect();
            let Some(fill) = fill else {
                return y.store(k, quad, x.gather_lanes(k, x_at.at(&sources)));
            };
            // As a word, a coordinate before the input wraps, so it is not below the length either.
            let inside = sources.iter().zip(&axes).map(|(&source, axis)| source.lt(axis.length));
            let inside = inside.reduce(|all, inside| all & inside).unwrap_or(k.bool(true));
            let first = x_at.offset();
            let elements = x.gather_lanes(k, inside.select(x_at.at(&sources), first));
            y.store(k, quad, inside.select(elements, fill));
        });
    }

    fn samples() -> Vec<Self> {
        let borders = [Border::Constant, Border::Reflect, Border::Replicate, Border::Circular];
        borders.map(|border| Pad { dtype: DType::F32, border, rank: 3 }).into()
    }
}
