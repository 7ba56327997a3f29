//! Copies elements into a part of a buffer. Only the width of the elements matters, not their dtype.

use super::Family;
use super::elements::Raw;
use super::parameters::{Form, Lengths, Size, View, parameters};
use crate::shader::{Access, KernelBuilder, Scalar, Type, Value};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 128;

/// The unit that an invocation copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Unit {
    /// 8 bits of a word.
    Byte,
    /// 16 bits of a word.
    Half,
    /// 32 bits.
    Word,
    /// Four contiguous words, aligned to 16 bytes.
    Quad,
}

impl Unit {
    pub const fn bytes(self) -> usize {
        match self {
            Unit::Byte => 1,
            Unit::Half => 2,
            Unit::Word => 4,
            Unit::Quad => 16,
        }
    }
}

/// Copies between two strided views.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Assign {
    pub unit: Unit,
    pub rank: usize,
}

parameters! {
    config: Assign;
    host: Parameters;
    device: Declared;
    /// The number of units that are copied.
    count: Size,
    lengths: Lengths = Lengths(config.rank),
    /// The source, in units.
    src: View = View(config.rank),
    /// The destination, in units.
    dst: View = View(config.rank),
}

impl Family for Assign {
    fn name(&self) -> String {
        format!("assign({:?}, {} axes)", self.unit, self.rank).to_lowercase()
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let Declared { count, lengths, src, dst } = self.declare(k);
        let copy: Box<dyn Fn(Value<'k>, Value<'k>) + 'k> = if self.unit == Unit::Quad {
            let x = k.buffer("x", Type::vec4(Scalar::U32), Access::Read);
            let y = k.buffer("y", Type::vec4(Scalar::U32), Access::Write);
            Box::new(move |from, to| y.store(to, x.load(from)))
        } else {
            let (x, y) = (Raw::input(k, "x", self.unit.bytes()), Raw::output(k, "y", self.unit.bytes()));
            Box::new(move |from, to| y.replace(to, x.load(from)))
        };

        let index = k.global_index();
        k.when(index.lt(count), || {
            let place = lengths.coordinates(index);
            copy(src.at(&place), dst.at(&place));
        });
    }

    fn samples() -> Vec<Self> {
        [Unit::Byte, Unit::Half, Unit::Word, Unit::Quad].map(|unit| Assign { unit, rank: 2 }).into()
    }
}
