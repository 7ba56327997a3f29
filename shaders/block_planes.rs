//! Brings blocks from the order of a file into the order in which kernels read them.

use super::Family;
use super::blocks::{BYTES, Order};
use super::elements::Raw;
use super::parameters::{Form, Size, parameters};
use crate::shader::{Access, KernelBuilder, Type, Value};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 128;

/// Copies one part of every block, without what is between the parts. An invocation copies a word, and puts the bytes
/// of [integers](PlanePart::Integers) in the order in which kernels read them. Blocks are in
/// row-major order before, in their [`Order`] after that.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct BlockPlanes {
    /// The blocks of a piece of a row.
    pub piece: u32,
    pub part: PlanePart,
}

/// What a part of a block has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum PlanePart {
    /// A byte or a half.
    Narrow,
    /// Words, as they are.
    Words,
    /// Bytes with packed integers, in the order of [`BYTES`].
    Integers,
}

parameters! {
    config: BlockPlanes;
    host: Parameters;
    device: Declared;
    /// The number of rows.
    rows: Size,
    /// The blocks of a row.
    row_blocks: Size,
    /// The binary logarithm of the number of rows that lie together.
    together: Size,
    /// The number of positions.
    positions: Size,
    /// The bytes of a block.
    bytes: Size,
    /// The first byte of the first block's part.
    first: Size,
    /// The bytes of the part.
    length: Size,
    /// The word at which the first part is stored.
    start: Size,
}

impl Family for BlockPlanes {
    fn name(&self) -> String {
        format!("block planes({:?}, {} in a piece)", self.part, self.piece).to_lowercase()
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn touched(&self, Parameters { positions, bytes, .. }: &Parameters) -> u64 {
        *positions as u64 * *bytes as u64
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let Declared { rows, row_blocks, together, positions, bytes, first, length, start } = self.declare(k);
        let order = Order::new(self.piece, row_blocks, together);
        let packed = Raw::input(k, "packed", 1);
        let planes = k.buffer("planes", Type::U32, Access::Write);
        let word = k.global_index();
        let count = positions * length;
        k.when((word * 4).lt(count), || {
            let place = |byte: Value<'k>| {
                let [row, block] = order.at(byte / length);
                // Positions beyond the matrix repeat a row. No kernel reads them.
                (row.min(rows - 1) * row_blocks + block) * bytes + first + byte % length
            };
            let of_word = (self.part != PlanePart::Narrow).then(|| place(word * 4));
            let is_integers = self.part == PlanePart::Integers;
            let byte = |i: u32| {
                let place = of_word.map_or_else(|| place((word * 4 + i).min(count - 1)), |place| place + i);
                packed.load(place) << (8 * if is_integers { BYTES[i as usize] } else { i })
            };
            planes.store(start + word, byte(0) | byte(1) | byte(2) | byte(3));
        });
    }

    fn samples() -> Vec<Self> {
        let parts = [PlanePart::Narrow, PlanePart::Words, PlanePart::Integers];
        let sample = |piece| parts.map(|part| BlockPlanes { piece, part });
        [1, 4].into_iter().flat_map(sample).collect()
    }
}
