//! Sorts rows of a few elements. The rank of an element is the number of those before it.

use super::*;

/// The most elements of a row, and the invocations of a workgroup.
pub(crate) const LONGEST: u32 = 64;

/// Sorts rows, of which a workgroup has as many as it has room for. Buffers: those of the input, then those of the
/// output.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SortShort {
    pub input: Input,
    pub output: Output,
}

parameters! {
    config: SortShort;
    host: ShortParameters;
    device: Declared;
    /// The number of rows.
    count: Size,
    /// The rows of a workgroup.
    per_group: Size,
    /// The length of a row, at most [`LONGEST`].
    length: Size,
    /// How many elements of each row are wanted.
    taken: Size,
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
        let Declared { count, per_group, length, taken, mask, rows } = self.declare(k);
        let dtype = self.input.dtype();
        let x = Reader::new(k, self.input, rows, length, self.output.places);
        let y = Writer::new(k, self.output, dtype);
        let keys: Vec<_> = (0..dtype.parts()).map(|_| k.workgroup_array(Type::U32, LONGEST)).collect();

        // Surplus invocations repeat the last element: all of them must reach the barrier.
        let (lane, group) = (k.local_index(), k.group_index());
        let place = lane % length;
        let row = (group * per_group + lane / length).min(count - 1);
        let inside = (lane / length).lt(per_group) & (group * per_group + lane / length).lt(count);
        let bits = x.row(row)(place);
        let own = key(dtype, &bits, mask);
        keys.iter().zip(&own).for_each(|(keys, &word)| keys.store(lane, word));
        k.barrier();
        // Equal elements keep their order.
        let rank = k.var(k.u32(0));
        let first = lane - place;
        k.for_range(0, length, |other| {
            // The last row of a workgroup may be cut; it is not stored then.
            let at = (first + other).min(LONGEST - 1);
            let other_key: Vec<_> = keys.iter().map(|keys| keys.load(at)).collect();
            let before = compare(&other_key, &own, |key, own| key.lt(own) | (key.eq(own) & other.lt(place)));
            rank.set(rank.get() + before.select(k.u32(1), 0));
        });
        let rank = rank.get();
        k.when(inside & rank.lt(taken), || {
            y.store(k, row * taken + rank, &bits, || x.place(row, place));
        });
    }

    fn samples() -> Vec<Self> {
        let sample = |input| SortShort { input, output: Output::BOTH };
        sample_inputs().map(sample).collect()
    }
}
