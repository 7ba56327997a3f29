//! The largest elements of windows of halves, two at a time by the device's arithmetic of halves.

use super::input::{Input, Loaded, Padding};
use super::{Depthwise, QuadAxis};
use crate::kernels::workgroup::tree;
use crate::shader::{KernelBuilder, Scalar, Type, Value};

impl Depthwise {
    /// Returns the largest elements of windows of halves, in quads, and whether an element may be NaN. An instruction
    /// finds the larger halves of two pairs, but not NaN. So NaN is looked for in sums.
    pub(super) fn maxima_of_halves<'k>(
        &self,
        k: &'k KernelBuilder,
        input: &Input<'_, 'k>,
    ) -> (Vec<Value<'k>>, Value<'k>) {
        let [down, along] = self.stride.map(|stride| stride as usize);
        let [height, width] = self.kernel.map(|length| length as usize);
        let [rows, fours] = self.tile.map(|length| length as usize);
        let larger = |a: &[Value<'k>], b: &[Value<'k>]| a.iter().zip(b).map(|(a, &b)| a.larger(b)).collect::<Vec<_>>();
        let by_channels = self.quads == QuadAxis::Channels;
        // The pairs of each row of outputs: of each column, or before columns are folded.
        let mut folded = vec![Vec::new(); rows];
        let mut sums = Vec::new();
        let columns = if by_channels { fours } else { 4 * fours };
        for row in 0..(rows - 1) * down + height {
            let (mut pairs, sum) = input.pairs(row as u32, ((columns - 1) * along + width) as u32);
            sums.push(sum);
            if by_channels {
                let loaded: Vec<_> = pairs.chunks(self.load as usize / 2).collect();
                let window = |column: usize| {
                    let taps = loaded[column * along..][..width].iter();
                    taps.fold(Vec::new(), |a, b| if a.is_empty() { b.to_vec() } else { larger(&a, b) })
                };
                pairs = (0..columns).flat_map(window).collect();
            }
            for (r, folded) in folded.iter_mut().enumerate() {
                if row.checked_sub(r * down).is_some_and(|tap| tap < height) {
                    *folded = if folded.is_empty() { pairs.clone() } else { larger(folded, &pairs) };
                }
            }
        }
        let words = |pairs: &[Value<'k>]| pairs.iter().map(|pair| pair.bitcast(Type::U32)).collect::<Vec<_>>();
        let quads = folded.iter().flat_map(|pairs| match input.behind() {
            None => {
                let loads =
                    words(pairs).chunks(self.load as usize / 2).map(|words| k.vector(words)).collect::<Vec<_>>();
                loads.into_iter().flat_map(|load| input.x.unpack(load)).collect::<Vec<_>>()
            }
            Some(behind) => {
                let elements: Vec<_> = words(pairs).into_iter().flat_map(Value::unpack_f16).collect();
                let window = |column: usize| {
                    let taps = elements[column * along + behind as usize % 2..][..width].iter().copied();
                    taps.reduce(|a, b| a.larger(b)).unwrap_or(elements[0])
                };
                let windows: Vec<_> = (0..columns).map(window).collect();
                windows.chunks(4).map(|four| k.vector(four)).collect()
            }
        });
        let quads = quads.collect();
        let sum = tree(sums, &|&a, &b| a + b);
        (quads, (nan_among_halves(sum.bitcast(Type::U32)) & NAN_BITS).ne(0))
    }
}

impl<'k> Input<'_, 'k> {
    /// Returns the pairs of halves of some neighbouring columns of a row: of channels, or of two columns each. For
    /// columns, half of the first or of the last pair may be beside them. The second part is NaN in a half of which a
    /// pair is NaN. It may be NaN if a pair is infinite, or large.
    fn pairs(&self, row: u32, columns: u32) -> (Vec<Value<'k>>, Value<'k>) {
        let pair = |word: Value<'k>| word.bitcast(Type::vec2(Scalar::F16));
        let words = self.load(row, columns).into_iter().flat_map(|Loaded { packed, column, .. }| {
            let padded = move |word: Value<'k>| match self.padding {
                Padding::Number(_) => column.is_inside.map_or(word, |is_inside| is_inside.select(word, LOWEST_HALVES)),
                _ => word,
            };
            packed.lanes().into_iter().map(move |word| [pair(word), pair(padded(word))])
        });
        let (first, end) = match self.behind() {
            Some(behind) => (behind as usize / 2, (behind + columns).div_ceil(2) as usize),
            None => (0, usize::MAX),
        };
        let (loaded, padded): (Vec<_>, Vec<_>) = words.take(end).skip(first).map(|[a, b]| (a, b)).unzip();
        (padded, tree(loaded, &|&a, &b| a + b))
    }
}

/// The bits of [`nan_among_halves`] that matter.
const NAN_BITS: u32 = 0x8000_8000;

/// Sets the highest bit of each half that is NaN. Nothing is carried from one half to the other.
fn nan_among_halves(word: Value<'_>) -> Value<'_> {
    (word & 0x7fff_7fff) + 0x03ff_03ff
}

/// Two halves of negative infinity.
const LOWEST_HALVES: u32 = 0xfc00_fc00;
