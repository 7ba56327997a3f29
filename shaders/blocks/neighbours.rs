//! Neighbours of a quantised matrix, wherever they are. A kernel can read the matrix in this way as if it was dense.

use super::{Blocks, Loaded, Scale};
use crate::base::block_format::BlockFormat;
use crate::shader::Value;

/// Words of neighbours, four in each. They are decoded where they are used: meanwhile, the invocation does other work.
pub(crate) struct Neighbours<'k> {
    blocks: Blocks<'k>,
    block: Value<'k>,
    spot: Spot<'k>,
    words: u32,
    loaded: Loaded<'k>,
}

/// Where neighbours of a block are.
struct Spot<'k> {
    unit: Value<'k>,
    /// The unit's [place](Blocks::places).
    place: Value<'k>,
    /// The first word of the place's 16 bytes.
    word: Value<'k>,
    /// Whether they are the last digits of `TQ1_0`, which have a plane of their own.
    is_rest: Option<Value<'k>>,
}

impl<'k> Blocks<'k> {
    /// Loads one, two or four words of neighbours. The first number's place in its block is a multiple of their count.
    pub fn neighbours(&self, block: Value<'k>, first: Value<'k>, words: u32) -> Neighbours<'k> {
        let spot = self.spot(first);
        let blocks = Blocks { part: Some((spot.word, words)), ..self.clone() };
        let loaded = blocks.load_for(block, spot.unit, Some(spot.place));
        Neighbours { blocks, block, spot, words, loaded }
    }

    /// Returns where neighbours are: the inverse of [`places`](Blocks::places).
    fn spot(&self, first: Value<'k>) -> Spot<'k> {
        let odd = (first >> 4) & 1;
        let (unit, place) = match self.format {
            BlockFormat::Q2_K | BlockFormat::Q3_K | BlockFormat::Q6_K | BlockFormat::TQ2_0 => {
                ((first >> 7) * 2 + odd, (first >> 5) & 3)
            }
            BlockFormat::Q4_K | BlockFormat::Q5_K => ((first >> 6) * 2 + odd, (first >> 5) & 1),
            BlockFormat::IQ4_XS => (first >> 5, odd),
            BlockFormat::TQ1_0 => return self.ternary_spot(first),
            _ => (self.k.u32(0), odd),
        };
        Spot { unit, place, word: (first >> 2) & 3, is_rest: None }
    }

    fn ternary_spot(&self, first: Value<'k>) -> Spot<'k> {
        let (is_last, is_rest) = (first.ge(160), first.ge(240));
        let of_last = is_rest.select((first - 240) >> 2, (first - 160) >> 4);
        let (unit, place) = (is_last.select(self.k.u32(2), (first >> 4) & 1), is_last.select(of_last, first >> 5));
        Spot { unit, place, word: (first >> 2) & 3, is_rest: Some(is_rest) }
    }

    /// Returns the words of a unit whose first place has the numbers of `spot`: their bits are moved there.
    fn of_place(&self, loaded: &Loaded<'k>, spot: &Spot<'k>) -> Loaded<'k> {
        let &Loaded { ref words, length, runs } = loaded;
        let mut words = words.clone();
        let place = spot.place;
        let (odd, pair) = (place & 1, place >> 1);
        let (packed, others) = words.split_at_mut(runs * length);
        let shift = |words: &mut [Value<'k>], by: Value<'k>| words.iter_mut().for_each(|word| *word = *word >> by);
        let (first, second) = packed.split_at_mut(length);
        match self.format {
            BlockFormat::Q8_0 => {}
            BlockFormat::Q4_0 | BlockFormat::Q4_1 | BlockFormat::IQ4_NL | BlockFormat::IQ4_XS | BlockFormat::MXFP4 => {
                shift(first, place * 4);
            }
            BlockFormat::Q5_0 | BlockFormat::Q5_1 => {
                shift(first, place * 4);
                shift(&mut others[..1], place * 16);
            }
            BlockFormat::TQ2_0 => shift(first, place * 2),
            BlockFormat::Q4_K | BlockFormat::Q5_K => {
                shift(first, place * 4);
                shift(second, place);
                // Scales and minima have a byte for each place.
                shift(&mut others[1..], place * 8);
            }
            BlockFormat::Q2_K | BlockFormat::Q3_K | BlockFormat::Q6_K => {
                others[0] = pair.eq(0).select(others[0], others[1]) >> (odd * 16);
                match self.format {
                    BlockFormat::Q2_K => shift(first, place * 2),
                    BlockFormat::Q3_K => {
                        shift(first, place * 2);
                        shift(second, place);
                        shift(&mut others[2..3], odd * 16 + pair * 2);
                    }
                    _ => {
                        // The lower bit of the place has chosen the run.
                        shift(first, pair * 4);
                        shift(second, place * 2);
                    }
                }
            }
            BlockFormat::TQ1_0 => {
                let Some(is_rest) = spot.is_rest else { unreachable!("digits of TQ1_0 are last ones or not") };
                for (i, word) in (0..).zip(first) {
                    // All last digits are in one word. Each four of them take another power.
                    let (packed, power) = (is_rest.select(others[0], *word), is_rest.select(place + i, place));
                    // 1, 3, 9, 27 and 81.
                    let power = power.lt(4).select((self.k.u32(0x1b09_0301) >> ((power & 3) * 8)) & 0xff, 81);
                    let [even, odd] = [packed, packed >> 8].map(|word| ((word & 0x00ff_00ff) * power) & 0x00ff_00ff);
                    *word = even | (odd << 8);
                }
            }
        }
        Loaded { words, length, runs }
    }
}

impl<'k> Neighbours<'k> {
    /// Returns the numbers of each word, rounded as the reference in Python rounds them.
    pub fn exact(&self) -> Vec<Value<'k>> {
        self.decoded(|scale, digits| self.blocks.exact(scale, digits))
    }

    /// Returns the numbers of each word as halves. The blocks' digits are [halves](Blocks::in_halves).
    pub fn halves(&self) -> Vec<Value<'k>> {
        self.decoded(|Scale { factor, offset }, digits| {
            let scale = Scale { factor: factor.splat(4), offset: offset.map(|offset| offset.splat(4)) };
            scale.of_halves(digits)
        })
    }

    fn decoded(&self, number: impl Fn(Scale<'k>, Value<'k>) -> Value<'k>) -> Vec<Value<'k>> {
        let loaded = self.blocks.of_place(&self.loaded, &self.spot);
        let unit = self.blocks.decode(&loaded, self.block, self.spot.unit);
        (0..self.words as usize).map(|word| number(unit.scale(0), unit.digits(0, word))).collect()
    }
}
