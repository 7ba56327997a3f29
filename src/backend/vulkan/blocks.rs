//! [`Blocks`]: blocks of the driver's memory, cut into the pieces that buffers get.
//!
//! A driver may allow only 4,096 allocations, and each one is slow. So buffers share blocks.

use crate::base::error::Result;
use parking_lot::Mutex;
use range_alloc::RangeAllocator;
use std::ops::Range;

/// Pieces begin at multiples of this, so that they leave few gaps.
const UNIT: u64 = 256;

/// The smallest and the largest block of several pieces.
const SMALLEST: u64 = 2 << 20;
const LARGEST: u64 = 256 << 20;

/// A piece of more bytes gets a block of its own, which is no larger.
const LARGEST_PIECE: u64 = LARGEST / 4;

/// A new block is a fraction of the bytes that the blocks of its memory type have already: one part of this many. So
/// blocks are few, and little of them is unused.
const GROWTH: u64 = 8;

/// Where blocks come from.
pub(super) trait Source {
    /// Names a block.
    type Block: Copy;

    /// Takes a block of memory of a type.
    fn allocate(&self, memory_type: usize, bytes: u64) -> Result<Self::Block>;

    /// Gives a block back.
    fn free(&self, block: Self::Block, memory_type: usize, bytes: u64);
}

/// All blocks of a device.
pub(super) struct Blocks<S: Source> {
    source: S,
    /// By memory type.
    types: Mutex<Vec<OfType<S::Block>>>,
}

struct OfType<B> {
    /// `None` if the block has been given back.
    blocks: Vec<Option<Block<B>>>,
    /// Bytes of all blocks.
    bytes: u64,
    /// Bytes that will be asked for next, as far as that is known.
    foreseen: u64,
}

struct Block<B> {
    name: B,
    bytes: u64,
    free: RangeAllocator<u64>,
}

/// Memory for a buffer.
pub(super) struct Piece<B> {
    pub block: B,
    /// Its bytes in the block.
    pub range: Range<u64>,
    memory_type: usize,
    /// The place of the block in its type.
    place: usize,
}

impl<B> Piece<B> {
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// Returns the bytes of a new block, beside blocks of `bytes` bytes.
fn block_beside(bytes: u64) -> u64 {
    (bytes / GROWTH).clamp(SMALLEST, LARGEST).next_multiple_of(UNIT)
}

impl<S: Source> Blocks<S> {
    /// `memory_types` is the number of types.
    pub fn new(source: S, memory_types: usize) -> Blocks<S> {
        let empty = |_| OfType { blocks: Vec::new(), bytes: 0, foreseen: 0 };
        Blocks { source, types: Mutex::new((0..memory_types).map(empty).collect()) }
    }

    /// Notes how many bytes of a memory type will be asked for next. New blocks get as many bytes as are still to come.
    pub fn foresee(&self, memory_type: usize, bytes: u64) {
        self.types.lock()[memory_type].foreseen = bytes;
    }

    /// Returns memory of a type. If the driver has none for a usual block, this asks for a block of the piece's size.
    pub fn allocate(&self, memory_type: usize, bytes: u64, alignment: u64) -> Result<Piece<S::Block>> {
        let (bytes, alignment) = (bytes.max(1), alignment.max(UNIT));
        // The largest buffers of a driver may be no multiple of the unit.
        let bytes = if bytes > LARGEST_PIECE { bytes } else { bytes.next_multiple_of(UNIT) };
        let OfType { blocks, bytes: total, foreseen } = &mut self.types.lock()[memory_type];
        let rest = foreseen.saturating_sub(bytes);
        let found = blocks.iter_mut().enumerate().find_map(|(place, block)| {
            let block = block.as_mut()?;
            let range = block.free.allocate_range_aligned(bytes, alignment).ok()?;
            Some((place, block.name, range))
        });
        if let Some((place, block, range)) = found {
            *foreseen = rest;
            return Ok(Piece { block, range, memory_type, place });
        }
        let wanted = if bytes > LARGEST_PIECE {
            bytes
        } else {
            let size = if *foreseen > 0 { *foreseen } else { block_beside(*total) };
            size.clamp(bytes, LARGEST).next_multiple_of(UNIT)
        };
        let (name, size) = match self.source.allocate(memory_type, wanted) {
            Err(_) if wanted > bytes => (self.source.allocate(memory_type, bytes)?, bytes),
            result => (result?, wanted),
        };
        *foreseen = rest;
        *total += size;
        // A block begins at a multiple of any alignment.
        let mut free = RangeAllocator::new(0..size);
        let range = free.allocate_range(bytes).unwrap_or(0..bytes);
        let block = Some(Block { name, bytes: size, free });
        let place = blocks.iter().position(Option::is_none).unwrap_or(blocks.len());
        match blocks.get_mut(place) {
            Some(vacant) => *vacant = block,
            None => blocks.push(block),
        }
        Ok(Piece { block: name, range, memory_type, place })
    }

    /// Takes memory back. Blocks without pieces go to the driver. One stays, if it is no larger than the next block
    /// would be: it may soon be needed again.
    pub fn free(&self, piece: Piece<S::Block>) {
        let Piece { range, memory_type, place, .. } = piece;
        let OfType { blocks, bytes: total, .. } = &mut self.types.lock()[memory_type];
        if let Some(Some(block)) = blocks.get_mut(place) {
            block.free.free_range(range);
        }
        let mut keeps = true;
        for vacant in blocks {
            let Some(block) = vacant.take_if(|block| block.free.is_empty()) else { continue };
            if keeps && block.bytes <= block_beside(*total - block.bytes) {
                keeps = false;
                *vacant = Some(block);
            } else {
                *total -= block.bytes;
                self.source.free(block.name, memory_type, block.bytes);
            }
        }
    }
}

impl<S: Source> Drop for Blocks<S> {
    fn drop(&mut self) {
        for (memory_type, OfType { blocks, .. }) in self.types.get_mut().iter_mut().enumerate() {
            for block in blocks.drain(..).flatten() {
                self.source.free(block.name, memory_type, block.bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::Error;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    const MIB: u64 = 1 << 20;

    /// A driver with a number of bytes.
    #[derive(Default)]
    struct Driver {
        limit: u64,
        state: Mutex<DriverState>,
    }

    #[derive(Default)]
    struct DriverState {
        made: u32,
        /// The bytes of live blocks.
        blocks: BTreeMap<u32, u64>,
    }

    impl Driver {
        fn with(limit: u64) -> Arc<Driver> {
            Arc::new(Driver { limit, state: Mutex::default() })
        }

        fn bytes(&self) -> u64 {
            self.state.lock().blocks.values().sum()
        }

        fn blocks(&self) -> usize {
            self.state.lock().blocks.len()
        }
    }

    impl Source for Arc<Driver> {
        type Block = u32;

        fn allocate(&self, _: usize, bytes: u64) -> Result<u32> {
            let in_use = self.bytes();
            if in_use + bytes > self.limit {
                return Err(Error::OutOfMemory { requested: bytes, in_use, limit: self.limit });
            }
            let state = &mut *self.state.lock();
            state.made += 1;
            state.blocks.insert(state.made, bytes);
            Ok(state.made)
        }

        fn free(&self, block: u32, _: usize, bytes: u64) {
            assert_eq!(self.state.lock().blocks.remove(&block), Some(bytes), "each block is freed once");
        }
    }

    #[test]
    fn what_is_foreseen_fills_its_blocks() {
        // The tensors of SmolLM2-135M in halves: the embedding, and 30 layers.
        let layer = [576 * 576, 192 * 576, 192 * 576, 576 * 576, 1536 * 576, 1536 * 576, 576 * 1536, 576, 576];
        let sizes: Vec<u64> =
            [49_152 * 576].into_iter().chain([layer; 30].concat()).chain([576]).map(|n| 2 * n).collect();
        let total: u64 = sizes.iter().sum();
        let driver = Driver::with(1 << 40);
        let blocks = Blocks::new(driver.clone(), 1);
        blocks.foresee(0, sizes.iter().map(|bytes| bytes.next_multiple_of(UNIT)).sum());
        let pieces: Vec<_> = sizes.iter().map(|bytes| blocks.allocate(0, *bytes, 16).unwrap()).collect();
        let held = driver.bytes();
        assert!(held <= total + total / 100, "{held} bytes for {total}");
        pieces.into_iter().for_each(|piece| blocks.free(piece));
        assert!(driver.bytes() <= SMALLEST);
    }

    #[test]
    fn little_is_unused_without_a_forecast() {
        let driver = Driver::with(1 << 40);
        let blocks = Blocks::new(driver.clone(), 2);
        let mut pieces = Vec::new();
        for used in 1..2000 {
            pieces.push(blocks.allocate(1, MIB, 256).unwrap());
            let held = driver.bytes();
            // The newest block is an eighth, and the end of each is too small for a piece.
            assert!(held <= used * MIB * 5 / 4 + SMALLEST, "{held} bytes for {used} MiB");
        }
        assert!(driver.blocks() < 64, "{} blocks", driver.blocks());
        drop(blocks);
        assert_eq!(driver.blocks(), 0);
    }

    #[test]
    fn a_full_device_gives_what_is_left() {
        let driver = Driver::with(100 * MIB);
        let blocks = Blocks::new(driver.clone(), 1);
        let large = blocks.allocate(0, 98 * MIB, 256).unwrap();
        assert_eq!(driver.bytes(), 98 * MIB, "a large piece has a block of its own");
        let small = blocks.allocate(0, MIB, 256).unwrap();
        assert_eq!(driver.bytes(), 99 * MIB, "the usual block had no room");
        assert!(matches!(blocks.allocate(0, 2 * MIB, 256), Err(Error::OutOfMemory { .. })));
        blocks.free(large);
        assert_eq!(driver.bytes(), MIB);
        blocks.allocate(0, 2 * MIB, 256).unwrap();
        blocks.free(small);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Pieces are aligned, as large as asked for, within their blocks, and do not overlap. What is freed is merged.
        #[test]
        fn pieces_never_overlap(
            requests in proptest::collection::vec(
                (0u64..1 << 22, 0u32..14, any::<bool>(), any::<prop::sample::Index>()),
                1..200,
            )
        ) {
            let driver = Driver::with(1 << 40);
            let blocks = Blocks::new(driver.clone(), 1);
            let mut pieces: Vec<Piece<u32>> = Vec::new();
            for (bytes, alignment, frees, place) in requests {
                if frees && !pieces.is_empty() {
                    blocks.free(pieces.swap_remove(place.index(pieces.len())));
                } else {
                    let piece = blocks.allocate(0, bytes, 1 << alignment).unwrap();
                    prop_assert!(piece.bytes() >= bytes && piece.range.start.is_multiple_of(1 << alignment));
                    prop_assert!(piece.range.end <= driver.state.lock().blocks[&piece.block]);
                    pieces.push(piece);
                }
                let range = |piece: &Piece<u32>| (piece.block, piece.range.start, piece.range.end);
                let mut ranges: Vec<_> = pieces.iter().map(range).collect();
                ranges.sort_unstable();
                prop_assert!(ranges.windows(2).all(|pair| pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1));
            }
            pieces.into_iter().for_each(|piece| blocks.free(piece));
            prop_assert!(driver.blocks() <= 1 && driver.bytes() <= SMALLEST);
        }
    }
}
