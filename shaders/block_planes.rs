//! Brings blocks from the order of a file into the order in which kernels read them.

use super::Family;
use super::elements::Raw;
use super::parameters::{Form, Size, parameters};
use crate::shader::{Access, KernelBuilder, Type};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 128;

/// Copies one part of every block, without what is between the parts. An invocation copies a word.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct BlockPlanes;

parameters! {
    config: BlockPlanes;
    host: Parameters;
    device: Declared;
    /// The number of blocks.
    blocks: Size,
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
        "block planes".into()
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn touched(&self, Parameters { blocks, bytes, .. }: &Parameters) -> u64 {
        *blocks as u64 * *bytes as u64
    }

    fn write(&self, k: &KernelBuilder) {
        let Declared { blocks, bytes, first, length, start } = self.declare(k);
        let packed = Raw::input(k, "packed", 1);
        let planes = k.buffer("planes", Type::U32, Access::Write);
        let word = k.global_index();
        let count = blocks * length;
        k.when((word * 4).lt(count), || {
            let byte = |i: u32| {
                let place = (word * 4 + i).min(count - 1);
                packed.load(place / length * bytes + first + place % length) << (8 * i)
            };
            planes.store(start + word, byte(0) | byte(1) | byte(2) | byte(3));
        });
    }

    fn samples() -> Vec<Self> {
        vec![BlockPlanes]
    }
}
