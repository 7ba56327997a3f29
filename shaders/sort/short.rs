//! Sorts pieces of a few elements: short rows, and parts of longer ones. Each invocation counts the elements that come
//! before its own one.

use super::*;

/// The most elements of a piece, and the invocations of a workgroup.
pub(crate) const LONGEST: u32 = 64;

/// Sorts pieces of rows, each by a workgroup. Buffers: the input's, then the output's.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SortShort {
    pub input: Input,
    pub output: Output,
}

parameters! {
    config: SortShort;
    host: ShortParameters;
    device: Declared;
    /// The total number of pieces.
    pieces: Size,
    /// The number of pieces of a row.
    per_row: Size,
    /// The length of a piece, at most [`LONGEST`]. The last one of a row may be shorter.
    piece: Size,
    /// The length of a row.
    length: Size,
    /// How many elements of each piece are wanted.
    taken: Size,
    /// The length of a row of sorted pieces.
    out_length: Size,
    /// All ones for descending order, else 0.
    mask: Bits,
    rows: Option<RowsType> = config.input.rows(),
}

impl Family for SortShort {
    fn name(&self) -> String {
        format!("sort_short({}{})", self.input.describe(), self.output.describe())
    }

    fn workgroup(&self) -> u32 {
        LONGEST
    }

    fn write(&self, k: &KernelBuilder) {
        let Declared { pieces, per_row, piece, length, taken, out_length, mask, rows } = self.declare(k);
        let dtype = self.input.dtype();
        let x = Reader::new(k, self.input, rows, length, self.output.places);
        let y = Writer::new(k, self.output, dtype);
        let keys: Vec<_> = (0..dtype.parts()).map(|_| k.workgroup_array(Type::U32, LONGEST)).collect();

        // Surplus pieces of a folded dispatch repeat the last one, and surplus invocations repeat the last element: all
        // of them must reach the barrier.
        let (lane, number) = (k.local_index(), k.group_index().min(pieces - 1));
        let (row, part) = (number / per_row, number % per_row);
        let count = (length - part * piece).min(piece);
        let place = part * piece + lane.min(count - 1);
        let bits = x.row(row)(place);
        let own = key(dtype, &bits, mask);
        keys.iter().zip(&own).for_each(|(keys, &word)| keys.store(lane, word));
        k.barrier();
        // Equal elements keep their order.
        let rank = k.var(k.u32(0));
        k.for_range(0, count, |other| {
            let other_key: Vec<_> = keys.iter().map(|keys| keys.load(other)).collect();
            let before = compare(&other_key, &own, |key, own| key.lt(own) | (key.eq(own) & other.lt(lane)));
            rank.set(rank.get() + before.select(k.u32(1), 0));
        });
        let rank = rank.get();
        k.when(k.group_index().lt(pieces) & lane.lt(count) & rank.lt(taken), || {
            y.store(k, row * out_length + part * taken + rank, &bits, || x.place(row, place));
        });
    }

    fn samples() -> Vec<Self> {
        let sample = |input| SortShort { input, output: Output::BOTH };
        sample_inputs().map(sample).collect()
    }
}
