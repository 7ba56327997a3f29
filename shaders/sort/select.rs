//! Selects the elements of each chunk that sorting would put first. They are not sorted, and keep the order of their
//! places. The first elements of the row are among those selected from all chunks.
//!
//! A workgroup holds a chunk in registers. It finds the key of the last selected element digit by digit, by histograms
//! (T. Alabi et al., "Fast K-Selection Algorithms for Graphics Processing Units", 2012). Before that, it finds a bound
//! in the same way, among one element of each invocation: the smallest key that the invocation holds. Most elements
//! are beyond the bound and take no part.

use super::*;
use crate::shader::Var;

/// The bits of a digit, and the bins of its histogram.
const DIGIT_BITS: u32 = 8;
const BINS: u32 = 1 << DIGIT_BITS;

/// An invocation holds this many turns of four neighbours.
const TURNS: u32 = 4;

/// Selects elements of chunks. Buffers: the input's, then the bits and the places of the selected elements.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SortSelect {
    pub input: Input,
    /// The invocations of a workgroup: a divisor of [`BINS`].
    pub lanes: u32,
    /// The lanes of a subgroup, if subgroups are used.
    pub subgroup: Option<u32>,
}

parameters! {
    config: SortSelect;
    host: SelectParameters;
    device: Declared;
    /// The total number of chunks.
    chunks: Size,
    /// The number of chunks per row.
    per_row: Size,
    /// The length of a row.
    length: Size,
    /// How many elements are selected from a chunk; all of them if it has fewer.
    taken: Size,
    /// The length of a row of selected elements.
    out_length: Size,
    /// All ones for descending order, else 0.
    mask: Bits,
    rows: Option<RowsType> = config.input.rows(),
}

impl SortSelect {
    /// The number of elements of a chunk.
    pub fn chunk(&self) -> u32 {
        self.lanes * TURNS * 4
    }
}

/// An element of a chunk.
struct Element<'k> {
    /// Its place in the chunk.
    place: Value<'k>,
    bits: Vec<Value<'k>>,
    key: Vec<Value<'k>>,
    /// Whether the chunk has it.
    inside: Value<'k>,
}

/// A key that was found, and how many equal ones come before it.
struct Found<'k> {
    key: Vec<Value<'k>>,
    equal: Value<'k>,
}

impl Family for SortSelect {
    fn name(&self) -> String {
        format!("sort_select({}, {})", self.input.describe(), self.lanes)
    }

    fn workgroup(&self) -> u32 {
        self.lanes
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let Declared { chunks, per_row, length, taken, out_length, mask, rows } = self.declare(k);
        let (dtype, lanes) = (self.input.dtype(), self.lanes);
        let x = Reader::new(k, self.input, rows, length, true);
        let y = Writer::new(k, Output::BOTH, dtype);
        let member = Team::Workgroup(lanes).join(k).in_subgroups(self.subgroup);
        let histogram = Histogram::new(member);

        // A folded dispatch has surplus chunks: they repeat the last one, as all invocations must reach the barriers.
        let number = member.row.min(chunks - 1);
        let (row, chunk) = (number / per_row, number % per_row);
        let start = chunk * self.chunk();
        let count = (length - start).min(self.chunk());
        let load = x.row(row);
        let element = |place: Value<'k>| {
            let bits = load(start + place.min(count - 1));
            Element { place, key: key(dtype, &bits, mask), bits, inside: place.lt(count) }
        };
        let quad = |turn: u32| [0, 1, 2, 3].map(|lane| element((member.lane + turn * lanes) * 4 + lane));
        let elements: Vec<_> = (0..TURNS).flat_map(quad).collect();

        // Each invocation's first element: if there are enough of them, the chunk's first ones are not beyond the last
        // one that would be selected of these.
        let taken_here = taken.min(count);
        let first = elements.iter().skip(1).fold(elements[0].key.clone(), |first, element| {
            let is_less = compare(&element.key, &first, |a, b| a.lt(b)) & element.inside;
            first.iter().zip(&element.key).map(|(&first, &key)| is_less.select(key, first)).collect()
        });
        let candidates = ((count + 3) / 4).min(lanes);
        let enough = taken_here.le(candidates);
        let rank = enough.select(taken_here, 1) - 1;
        let bound = histogram.nth(dtype, &[(first, elements[0].inside)], rank).key;
        let bound: Vec<_> = bound.into_iter().map(|word| enough.select(word, u32::MAX)).collect();
        let live = |element: &Element<'k>| {
            (element.key.clone(), element.inside & compare(&element.key, &bound, |a, b| a.le(b)))
        };
        let last = histogram.nth(dtype, &elements.iter().map(live).collect::<Vec<_>>(), taken_here - 1);

        // Selected are those before the last one, and the first of those that are equal to it. The lower half of a word
        // counts the former, the upper half the latter.
        let counts = |element: &Element<'k>| {
            let less = element.inside & compare(&element.key, &last.key, |a, b| a.lt(b));
            let equal = element.key.iter().zip(&last.key).fold(element.inside, |equal, (&a, &b)| equal & a.eq(b));
            less.select(k.u32(1), 0) + equal.select(k.u32(1 << 16), 0)
        };
        let counts: Vec<_> = elements.iter().map(counts).collect();
        let turns: Vec<_> = counts.chunks(4).map(|quad| vec![quad[0] + quad[1] + quad[2] + quad[3]]).collect();
        let add = |a: &[Value<'k>], b: &[Value<'k>]| vec![a[0] + b[0]];
        let (prior, _) = member.prefixes(&add, vec![k.u32(0)], &turns);
        let target = row * out_length + chunk * taken;
        for ((elements, counts), prior) in elements.chunks(4).zip(counts.chunks(4)).zip(prior) {
            let mut before = prior[0];
            for (element, &count) in elements.iter().zip(counts) {
                let (less, equal) = (before & 0xffff, before >> 16);
                let is_selected = (count & 0xffff).ne(0) | (count.ne(0) & equal.le(last.equal));
                k.when(member.row.lt(chunks) & is_selected, || {
                    let index = target + less + equal.min(last.equal + 1);
                    y.store(k, index, &element.bits, || x.place(row, start + element.place));
                });
                before = before + count;
            }
        }
    }

    fn samples() -> Vec<Self> {
        sample_inputs().map(|input| SortSelect { input, lanes: 64, subgroup: None }).collect()
    }
}

/// A histogram of digits in workgroup memory.
struct Histogram<'k> {
    member: Member<'k>,
    bins: Array<'k>,
    /// The bin that is found, and the rank in it.
    found: Array<'k>,
}

impl<'k> Histogram<'k> {
    fn new(member: Member<'k>) -> Self {
        let k = member.k;
        let bins = k.workgroup_array(Type::U32, BINS);
        k.for_step(member.lane, BINS, member.lanes(), |bin| bins.store(bin, 0));
        k.barrier();
        Histogram { member, bins, found: k.workgroup_array(Type::U32, 2) }
    }

    /// Finds the key of a rank among the workgroup's live keys. All invocations must call this function.
    fn nth(&self, dtype: DType, keys: &[(Vec<Value<'k>>, Value<'k>)], rank: Value<'k>) -> Found<'k> {
        let k = self.member.k;
        let rank = k.var(rank);
        let words = dtype.parts();
        let found: Vec<Var> = (0..words).map(|_| k.var(k.u32(0))).collect();
        let digits = key_bits(dtype).min(32) / DIGIT_BITS;
        for word in (0..words).rev() {
            // Those whose upper words were found take part.
            let live = |(key, live): &(Vec<Value<'k>>, Value<'k>)| {
                let upper = key.iter().zip(&found).skip(word + 1);
                upper.fold(*live, |live, (&key, found)| live & key.eq(found.get()))
            };
            let live: Vec<_> = keys.iter().map(live).collect();
            k.for_rolled(0, digits, 1, |digit| {
                let shift = (k.u32(digits - 1) - digit) * DIGIT_BITS;
                let prefix = found[word].get();
                for ((key, _), &live) in keys.iter().zip(&live) {
                    // A shift by all bits is not defined.
                    let differs = (key[word] ^ prefix) >> shift >> DIGIT_BITS;
                    let bin = (key[word] >> shift) & (BINS - 1);
                    k.when(live & differs.eq(0), || _ = self.bins.atomic_add(bin, 1));
                }
                let (bin, below) = self.bin_of(rank.get());
                found[word].set(prefix | (bin << shift));
                rank.set(below);
            });
        }
        Found { key: found.iter().map(|word| word.get()).collect(), equal: rank.get() }
    }

    /// Finds the bin of a rank, and the rank in it. Clears the histogram.
    fn bin_of(&self, rank: Value<'k>) -> (Value<'k>, Value<'k>) {
        let (k, lane) = (self.member.k, self.member.lane);
        let own = BINS / self.member.lanes();
        k.barrier();
        let mut cells = Vec::new();
        let mut sum = k.u32(0);
        for bin in (0..own).map(|bin| lane * own + bin) {
            let count = self.bins.load(bin);
            cells.push((bin, sum, count));
            sum = sum + count;
            self.bins.store(bin, 0);
        }
        let add = |a: &[Value<'k>], b: &[Value<'k>]| vec![a[0] + b[0]];
        let (prior, _) = self.member.prefixes(&add, vec![k.u32(0)], &[vec![sum]]);
        for (bin, before, count) in cells {
            let below = rank - (prior[0][0] + before);
            // If more come before the bin, the difference wraps.
            k.when(below.lt(count), || {
                self.found.store(0, bin);
                self.found.store(1, below);
            });
        }
        k.barrier();
        (self.found.load(0), self.found.load(1))
    }
}
