//! Sorts rows that a workgroup can hold.

use super::block::{BITS, Block};
use super::*;

/// Sorts rows. Each row has a workgroup. Buffers: the input's, then the output's.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SortRow {
    pub input: Input,
    pub output: Output,
    /// The invocations of a workgroup, and how many elements each holds.
    pub lanes: u32,
    pub each: u32,
    /// The lanes of a subgroup, if subgroups are used.
    pub subgroup: Option<u32>,
}

parameters! {
    config: SortRow;
    host: RowParameters;
    device: Declared;
    /// The number of rows.
    count: Size,
    /// The length of a row.
    length: Size,
    /// How many elements of each row are wanted.
    taken: Size,
    /// All ones for descending order, else 0.
    mask: Bits,
    rows: Option<RowsType> = config.input.rows(),
}

impl Family for SortRow {
    fn name(&self) -> String {
        let (lanes, each) = (self.lanes, self.each);
        format!("sort_row({}{}, {lanes} x {each})", self.input.describe(), self.output.describe())
    }

    fn workgroup(&self) -> u32 {
        self.lanes
    }

    fn write(&self, k: &KernelBuilder) {
        let Declared { count, length, taken, mask, rows } = self.declare(k);
        let dtype = self.input.dtype();
        let x = Reader::new(k, self.input, rows, length, self.output.places);
        let y = Writer::new(k, self.output, dtype);
        let member = Team::Workgroup(self.lanes).join(k).in_subgroups(self.subgroup);
        let block = Block::new(member, self.each, length);
        // A folded dispatch has surplus rows: they repeat the last one, as all invocations must reach the barriers.
        let row = member.row.min(count - 1);
        let load = x.elements(row);
        let words: Vec<_> = block.places().into_iter().map(|place| load(place.min(length - 1))).collect();
        let parts = dtype.parts();
        let sorted = block.sort(&words, key_bits(dtype) / BITS, |turn, words| {
            let key = key(dtype, &words[..parts], mask);
            let word = if let &[low, high] = &key[..] { turn.lt(8).select(low, high) } else { key[0] };
            (word >> ((turn & 7) * BITS)) & ((1 << BITS) - 1)
        });
        let inside = member.row.lt(count);
        for (place, words) in block.places().into_iter().zip(sorted) {
            k.when(inside & place.lt(taken), || y.store(k, row * taken + place, &words[..parts], || words[parts]));
        }
    }

    fn samples() -> Vec<Self> {
        let sample = |input| SortRow { input, output: Output::BOTH, lanes: 64, each: 5, subgroup: None };
        let alone = [true, false].map(|bits| Output { bits, places: !bits });
        let f32s = sample_rows().find(|rows| rows.dtype == DType::F32).map(Input::Rows);
        let alone = f32s.into_iter().flat_map(|input| alone.map(|output| SortRow { output, ..sample(input) }));
        sample_inputs().map(sample).chain(alone).collect()
    }
}
