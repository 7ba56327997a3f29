//! The inputs of a tile: neighbouring elements of an image, each loaded once.

use super::QuadAxis;
use crate::base::dtype::DType;
use crate::kernels::elements::{Elements, Octets, Quads, Strides};
use crate::shader::{KernelBuilder, Scalar, Type, Value};
use std::ops::Range;

/// What is known of every tile along an axis, so that a kernel need not look.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Known {
    /// Which of a tile's inputs lie inside, counted from the first tap of its first window.
    pub inputs: Range<u32>,
    /// Whether all outputs of a tile exist.
    pub outputs: bool,
}

/// The inputs of an invocation.
pub(super) struct Input<'a, 'k> {
    pub x: Source<'k>,
    pub at: Strides<'k>,
    /// The first element of the image and the channel.
    pub first: Value<'k>,
    /// The places of the first tap, which wrap if they are in the padding.
    pub row: Value<'k>,
    pub column: Value<'k>,
    pub lengths: [Value<'k>; 2],
    pub known: &'a [Known; 2],
    pub quads: QuadAxis,
    pub load: u32,
    /// The number of loads of a column.
    pub loads: u32,
    pub padding: Padding<'k>,
}

/// What a load has brought, and where from.
pub(super) struct Loaded<'k> {
    pub packed: Value<'k>,
    pub row: Along<'k>,
    pub column: Along<'k>,
}

/// What stands in the place of elements outside the images.
#[derive(Clone, Copy)]
pub(super) enum Padding<'k> {
    Zero,
    Number(Value<'k>),
    /// The nearest element.
    Nearest,
}

/// A place along an axis.
#[derive(Clone, Copy)]
pub(super) struct Along<'k> {
    /// The nearest place inside the axis.
    pub nearest: Value<'k>,
    /// Whether the place itself is inside. `None` if it is for sure.
    pub is_inside: Option<Value<'k>>,
}

impl<'k> Along<'k> {
    /// Places before the axis wrap.
    fn new(place: Value<'k>, length: Value<'k>, is_known: bool) -> Self {
        if is_known {
            return Along { nearest: place, is_inside: None };
        }
        let nearest = place.bitcast(Type::I32).max(0).bitcast(Type::U32).min(length - 1);
        Along { nearest, is_inside: Some(place.lt(length)) }
    }
}

impl<'k> Input<'_, 'k> {
    /// Loads some neighbouring columns of a row, as they are in memory.
    pub fn load(&self, row: u32, columns: u32) -> Vec<Loaded<'k>> {
        let [of_rows, of_columns] = self.known.each_ref().map(|known| &known.inputs);
        let row = Along::new(self.row + row, self.lengths[0], of_rows.contains(&row));
        // The places of all loads of a row or a column are computed once for them.
        let start = self.x.in_loads(self.first + row.nearest * self.at.stride(2));
        let stride = self.x.stride_in_loads(self.at.stride(1));
        let load = |(column, is_known): (Value<'k>, bool)| {
            let column = Along::new(column, self.lengths[1], is_known);
            let place = match self.quads {
                QuadAxis::Channels => start + column.nearest * stride,
                // Here it is columns that lie side by side, unless each is a load.
                QuadAxis::Columns(_) => start + self.x.in_loads(column.nearest * self.at.stride(1)),
            };
            let places = (0..self.loads).map(move |n| if n == 0 { place } else { place + n });
            places.map(move |place| Loaded { packed: self.x.load_packed(place), row, column })
        };
        match self.behind() {
            Some(behind) => {
                // A load is inside if its first column is.
                let first = |n: u32| {
                    let is_known = (self.load * n).checked_sub(behind).is_some_and(|n| of_columns.contains(&n));
                    (self.column - behind + self.load * n, is_known)
                };
                (0..(behind + columns).div_ceil(self.load)).map(first).flat_map(load).collect()
            }
            None => (0..columns).flat_map(|n| load((self.column + n, of_columns.contains(&n)))).collect(),
        }
    }

    /// The number of columns before the first tap in the same load, if a load has several columns.
    pub fn behind(&self) -> Option<u32> {
        match self.quads {
            QuadAxis::Columns(behind) if self.load > 1 => Some(behind),
            _ => None,
        }
    }

    /// Returns some neighbouring columns of a row: a number each, or quads of channels.
    pub fn row(&self, row: u32, columns: u32) -> Vec<Vec<Value<'k>>> {
        let unpack = |Loaded { packed, row, column }: Loaded<'k>| match self.padding {
            Padding::Zero => {
                let bits = packed.bitcast(packed.ty().with_scalar(Scalar::U32));
                let masks = [row.is_inside, column.is_inside].into_iter().flatten();
                let masks = masks.map(|is_inside| is_inside.select(self.row.literal(u32::MAX), 0));
                self.x.unpack(masks.reduce(|a, b| a & b).map_or(bits, |mask| bits & mask).bitcast(packed.ty()))
            }
            Padding::Nearest => self.x.unpack(packed),
            // The nearest row stands for rows outside.
            Padding::Number(number) => {
                let padded = |loaded: Value<'k>| {
                    let number = if loaded.ty().lanes == 1 { number } else { number.splat(4) };
                    column.is_inside.map_or(loaded, |is_inside| is_inside.select(loaded, number))
                };
                self.x.unpack(packed).into_iter().map(padded).collect()
            }
        };
        let loaded: Vec<_> = self.load(row, columns).into_iter().map(unpack).collect();
        match self.behind() {
            Some(behind) => {
                let all = loaded.concat().into_iter().flat_map(Value::lanes).map(|element| vec![element]);
                all.skip(behind as usize).take(columns as usize).collect()
            }
            None => loaded.chunks(self.loads as usize).map(<[_]>::concat).collect(),
        }
    }
}

/// Loads elements one by one, or several at once as quads.
pub(super) enum Source<'k> {
    Elements(Elements<'k>),
    Quads(&'k KernelBuilder, Quads<'k>),
    Octets(&'k KernelBuilder, Octets<'k>),
}

impl<'k> Source<'k> {
    pub fn new(k: &'k KernelBuilder, name: &str, dtype: DType, load: u32) -> Self {
        match load {
            8 => Source::Octets(k, Octets::input(k, name, dtype)),
            4 => Source::Quads(k, Quads::input(k, name, dtype)),
            _ => Source::Elements(Elements::input(k, name, dtype)),
        }
    }

    pub fn load(&self, index: Value<'k>) -> Vec<Value<'k>> {
        self.unpack(self.load_packed(self.in_loads(index)))
    }

    /// Returns how many loads lie before an element at which one may begin.
    pub fn in_loads(&self, index: Value<'k>) -> Value<'k> {
        match self {
            Source::Elements(_) => index,
            Source::Quads(..) => index / 4,
            Source::Octets(..) => index / 8,
        }
    }

    /// Returns a stride, which may be negative, in loads.
    pub fn stride_in_loads(&self, stride: Value<'k>) -> Value<'k> {
        let shifted = |shift: u32| (stride.bitcast(Type::I32) >> shift).bitcast(Type::U32);
        match self {
            Source::Elements(_) => stride,
            Source::Quads(..) => shifted(2),
            Source::Octets(..) => shifted(3),
        }
    }

    /// Loads elements as they are, to be unpacked later. `place` counts loads.
    pub fn load_packed(&self, place: Value<'k>) -> Value<'k> {
        match self {
            Source::Elements(elements) => elements.load(place),
            Source::Quads(_, quads) => quads.load_packed(place),
            Source::Octets(_, octets) => octets.load_packed(place),
        }
    }

    pub fn unpack(&self, packed: Value<'k>) -> Vec<Value<'k>> {
        match self {
            Source::Elements(_) => vec![packed],
            Source::Quads(k, quads) => vec![quads.unpack(k, packed)],
            Source::Octets(k, octets) => octets.unpack(k, packed).to_vec(),
        }
    }
}
