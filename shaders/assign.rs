//! Elements written into a part of a buffer. What they mean plays no role: only how wide they are.

use super::Family;
use super::elements::{Grid, Strides};
use crate::shader::{Access, KernelBuilder, Scalar, Type};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 64;

/// What an invocation copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Unit {
    /// 8 bits of a word.
    Byte,
    /// 16 bits of a word.
    Half,
    /// 32 bits.
    Word,
    /// Four words that lie in a row and begin at a multiple of 16 bytes.
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

/// Copies between two strided views. Parameters: the number of units; the lengths of the axes; of the source, then of
/// the destination, an offset and strides in units.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Assign {
    pub unit: Unit,
    pub rank: usize,
}

impl Assign {
    pub fn parameter_words(&self) -> usize {
        1 + self.rank + 2 * (1 + self.rank)
    }
}

impl Family for Assign {
    fn name(&self) -> String {
        format!("assign({:?}, {} axes)", self.unit, self.rank).to_lowercase()
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let count = k.parameter(Type::U32);
        let grid = Grid::parameters(k, self.rank);
        let (from, to) = (Strides::parameters(k, self.rank), Strides::parameters(k, self.rank));
        let element = if self.unit == Unit::Quad { Type::vec4(Scalar::U32) } else { Type::U32 };
        let narrow = matches!(self.unit, Unit::Byte | Unit::Half);
        let x = k.buffer("x", element, Access::Read);
        let y = k.buffer("y", element, if narrow { Access::ReadWrite } else { Access::Write });

        let index = k.global_index();
        k.when(index.lt(count), || {
            let place = grid.coordinates(index);
            let (source, destination) = (from.at(&place), to.at(&place));
            if !narrow {
                y.store(destination, x.load(source));
                return;
            }
            let (per_word, bits) = (4 / self.unit.bytes() as u32, 8 * self.unit.bytes() as u32);
            let mask = (1u32 << bits) - 1;
            let new = (x.load(source / per_word) >> (source % per_word * bits)) & mask;
            // Others write the rest of the word meanwhile. As this part of it changes from `old` to `new` and nothing is
            // carried beyond it, the differences of all add up to the new word, in any order.
            let (word, shift) = (destination / per_word, destination % per_word * bits);
            let old = (y.atomic_add(word, 0) >> shift) & mask;
            y.atomic_add(word, (new - old) << shift);
        });
    }

    fn samples() -> Vec<Self> {
        [Unit::Byte, Unit::Half, Unit::Word, Unit::Quad].map(|unit| Assign { unit, rank: 2 }).into()
    }
}
