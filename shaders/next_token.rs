//! Draws the next token of sequences from their logits, by the settings of each sequence. A workgroup draws the token
//! of a sequence in these steps:
//!
//! 1. Scores are logits after penalties. They are kept in memory, and their maximum is found.
//! 2. The key of a token tells how far its score lies below the maximum, in powers of two of its probability. A
//!    histogram of the keys has the count and the weight of the tokens in each bin.
//! 3. Tokens in bins beyond the `top_k`th token are left out. Each invocation puts the others of its part together.
//! 4. Three keys are found: the last one of `top_k`, the last one of `top_p`, and the drawn one. For each, prefix sums
//!    over the histogram give the bin, and those over a histogram of the bin's own keys give the key.
//! 5. Of the tokens with the drawn key, one is chosen by random bits.
//!
//! Counts are integers, and sums of floats have a fixed order. So the same logits, settings and seed give the same
//! token in every run.

use super::Family;
use super::elements::{Elements, Quads};
use super::parameters::{Form, Size, View, parameters};
use super::random::threefry;
use super::workgroup::{Member, Team, Turn};
use crate::base::dtype::DType;
use crate::shader::{Access, Array, KernelBuilder, Scalar, Type, Value};
use std::f64::consts::LN_2;

/// A step of a key is a factor `2^(-1 / STEPS)` of probability.
const STEPS: u32 = 1 << 16;

/// Tokens whose probability is below `2^-OCTAVES` of the most probable one's are never drawn.
const OCTAVES: u32 = 32;

/// The keys of a bin, and the bins.
const KEYS: u32 = 2048;
const BINS: u32 = OCTAVES * STEPS / KEYS;

/// Weights in a bin are `1 - loss / LOSS_STEPS` times the largest one. Sums of losses fit a word: they are below
/// `LOSS_STEPS / 32` each.
const LOSS_STEPS: u32 = 1 << 18;

/// The most tokens of a vocabulary.
pub(crate) const MOST_TOKENS: usize = 1 << 19;

/// The bit of a token's history that says that it stands in the prompt. The others count how often it was drawn.
pub(crate) const IN_PROMPT: u32 = 1 << 31;

/// The largest magnitude of a score. The largest float has more digits than WGSL is written with.
const LARGEST: f32 = 3.4e38;

/// More than all of a sum.
const ALL: f32 = 2.0;

/// The settings of a sequence, as words.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Settings {
    /// 0 for the most probable token.
    pub temperature: f32,
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    pub min_p: f32,
    pub repetition: f32,
    pub presence: f32,
    pub frequency: f32,
    pub seed: u64,
}

impl Settings {
    /// The words of a sequence's settings. The last one counts the tokens that have been drawn.
    pub const WORDS: usize = 12;

    /// Returns the words of a sequence that begins.
    pub fn words(&self) -> [u32; Self::WORDS] {
        let steps = f64::from(STEPS);
        let greedy = self.temperature == 0.0;
        let scale = (steps / LN_2 / f64::from(self.temperature)).min(f64::from(f32::MAX)) as f32;
        let last = f64::from(OCTAVES) * steps - 1.0;
        let last = (-f64::from(self.min_p).log2() * steps).round().clamp(0.0, last) as u32;
        [
            scale.to_bits(),
            u32::from(greedy),
            self.top_k.unwrap_or(u32::MAX),
            self.top_p.unwrap_or(ALL).to_bits(),
            // Only the largest scores have the key 0, however near the others are.
            if greedy { 0 } else { last },
            self.repetition.to_bits(),
            self.repetition.recip().to_bits(),
            self.presence.to_bits(),
            self.frequency.to_bits(),
            self.seed as u32,
            (self.seed >> 32) as u32,
            // No token has been drawn.
            0,
        ]
    }
}

/// Draws a token for each row of logits. Buffers: the logits, the settings and histories of the rows, scratch memory
/// for keys and for a list of keys with their tokens, and the tokens that are drawn.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct NextToken {
    pub dtype: DType,
    pub team: Team,
    /// The lanes of the device's subgroups, if the kernel uses them.
    pub subgroup: Option<u32>,
    /// Quads ask for rows that begin at multiples of four, of that many tokens, one after the other.
    pub turn: Turn,
}

impl NextToken {
    /// Returns the most bytes of workgroup memory that a team takes: for a histogram, prefix sums, the maximum, and
    /// what is found.
    pub const fn memory(lanes: u32) -> u32 {
        4 * KEYS + 8 * lanes + 4 * lanes + 128
    }
}

parameters! {
    config: NextToken;
    host: Parameters;
    device: Declared;
    /// The tokens of the vocabulary.
    vocabulary: Size,
    /// Strides along the rows and the vocabulary.
    logits: View = View(2),
}

/// Logits, one or four at a time.
enum Logits<'k> {
    Elements(Elements<'k>),
    Quads(Quads<'k>),
}

impl Family for NextToken {
    fn name(&self) -> String {
        let NextToken { dtype, team, subgroup, turn } = self;
        let subgroups = if subgroup.is_some() { ", subgroups" } else { "" };
        format!("next_token({dtype}, {team:?}{subgroups}, {turn:?})").to_lowercase()
    }

    fn workgroup(&self) -> u32 {
        self.team.workgroup()
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let p = self.declare(k);
        let width = self.turn.width();
        let words = Type { scalar: Scalar::U32, lanes: width };
        let logits = match self.turn {
            Turn::Quads | Turn::WholeQuads(_) => Logits::Quads(Quads::input(k, "logits", self.dtype)),
            Turn::Single | Turn::Singles => Logits::Elements(Elements::input(k, "logits", self.dtype)),
        };
        let settings = k.buffer("settings", Type::U32, Access::ReadWrite);
        let history = k.buffer("history", words, Access::ReadWrite);
        let keys = k.buffer("keys", words, Access::ReadWrite);
        let list = k.buffer("list", Type::vec2(Scalar::U32), Access::ReadWrite);
        let y = k.buffer("y", Type::U32, Access::Write);

        let member = self.team.join(k).in_subgroups(self.subgroup);
        let (row, lane, lanes) = (member.row, member.lane, member.lanes());
        let first = row * (Settings::WORDS as u32);
        let word = |place: u32| settings.load(first + place);
        let number = |place: u32| word(place).bitcast(Type::F32);
        let (scale, greedy, top_k, top_p, last) = (number(0), word(1).ne(0), word(2), number(3), word(4));
        let (repetition, inverse, presence, frequency) = (number(5), number(6), number(7), number(8));
        let (seed, drawn) = ([word(9), word(10)], word(11));

        let histograms = Histograms::new(member);
        let score = |logit: Value<'k>, seen: Value<'k>| {
            let count = seen & !IN_PROMPT;
            let repeated = logit.gt(0.0).select(logit * inverse, logit * repetition);
            let penalty = frequency * count.convert(Scalar::F32) + count.ne(0).select(presence, 0.0);
            let score = seen.ne(0).select(repeated - penalty, logit);
            // What is not a number is never drawn.
            score.is_nan().select(score.literal(-LARGEST), score).max(-LARGEST).min(LARGEST)
        };
        // A row has this many loads of one or four tokens. The first one has this place.
        let loads = p.vocabulary / width;
        let start = row * loads;
        let packed = |words: &[Value<'k>]| if let &[word] = words { word } else { k.vector(words) };

        // 1. Every step from here on reads the same scores, however they were rounded.
        let best = k.var(k.f32(-LARGEST));
        member.each_turn(self.turn, loads, |spots| {
            let places: Vec<_> = spots.iter().map(|spot| spot.index()).collect();
            let load = |&place: &Value<'k>| {
                let logits = match &logits {
                    Logits::Elements(logits) => vec![logits.load(p.logits.at(&[row, place]))],
                    Logits::Quads(logits) => logits.load(k, p.logits.at(&[row, place * 4]) / 4).lanes(),
                };
                (logits, history.load(start + place).lanes())
            };
            let loaded: Vec<_> = places.iter().map(load).collect();
            for (&place, (logits, seen)) in places.iter().zip(loaded) {
                let found: Vec<_> = logits.into_iter().zip(seen).map(|(logit, seen)| score(logit, seen)).collect();
                let bits: Vec<_> = found.iter().map(|score| score.bitcast(Type::U32)).collect();
                keys.store(start + place, packed(&bits));
                best.set(found.into_iter().fold(best.get(), |best, score| best.max(score)));
            }
        });
        let best = member.reduce(best.get(), |a, b| a.max(b));

        // 2. Keys take the places of the scores.
        let each_load = |visit: &dyn Fn(Value<'k>, &[Value<'k>])| {
            member.each_turn(self.turn, loads, |spots| {
                let places: Vec<_> = spots.iter().map(|spot| spot.index()).collect();
                let loaded: Vec<_> = places.iter().map(|&place| keys.load(start + place).lanes()).collect();
                places.iter().zip(loaded).for_each(|(&place, loaded)| visit(place, &loaded));
            });
        };
        let key = |score: Value<'k>| {
            let steps = (best - score) * scale + 0.5;
            let drawable = steps.lt((OCTAVES * STEPS) as f32) & score.gt(-LARGEST);
            let key = drawable.select(steps, 0.0).convert(Scalar::U32);
            (drawable & key.le(last)).select(key, u32::MAX)
        };
        each_load(&|place, scores| {
            let found: Vec<_> = scores.iter().map(|score| key(score.bitcast(Type::F32))).collect();
            keys.store(start + place, packed(&found));
            for key in found {
                k.when(key.ne(u32::MAX), || histograms.add_with_loss(key));
            }
        });
        let bins = histograms.of_bins();

        // 3. Each invocation's part of the list has room for all of its tokens.
        let most = bins.last_below(Sum::Count, top_k, k.u32(BINS - 1));
        let own_list = row * ((p.vocabulary - 1) / (lanes * width) + 1) * (lanes * width) + lane;
        let end = k.var(own_list);
        each_load(&|place, keys| {
            for (i, &key) in (0..).zip(keys) {
                k.when((key / KEYS).le(most.index), || {
                    list.store(end.get(), k.vector(&[key, place * width + i]));
                    end.set(end.get() + lanes);
                });
            }
        });
        let end = end.get();
        let each_listed = |visit: &dyn Fn(Value<'k>, Value<'k>)| {
            k.for_step(own_list, end, lanes, |place| {
                let entry = list.load(place);
                visit(entry.lane(0), entry.lane(1));
            });
        };

        // 4.
        // Returns the last key, up to `most`, before which the sum is below `target`, and the weight up to this key.
        let last_key = |sum: Sum, target: Value<'k>, bin: Found<'k>, most: Value<'k>| {
            each_listed(&|key, _| _ = k.when((key / KEYS).eq(bin.index), || histograms.add(key % KEYS)));
            let rest = if sum == Sum::Count { target - bin.before_count } else { target - bin.before };
            let most = (most / KEYS).eq(bin.index).select(most % KEYS, KEYS - 1);
            let found = histograms.of_keys(bin.index).last_below(sum, rest, most);
            (bin.index * KEYS + found.index, bin.before + found.before + found.weight)
        };
        let (key_of_k, weight) = last_key(Sum::Count, top_k, most, last);
        let by_weight = |target: Value<'k>, most: Value<'k>| {
            last_key(Sum::Weight, target, bins.last_below(Sum::Weight, target, most / KEYS), most)
        };
        let (key_of_p, weight) = by_weight(weight * top_p, key_of_k);
        let [bits, _] = threefry(seed, [k.u32(u32::MAX), drawn]);
        let uniform = (bits >> 8).convert(Scalar::F32) * (1.0 / 16_777_216.0);
        let (key_drawn, _) = by_weight(weight * uniform, key_of_p);

        // 5.
        let [least_bits, least_token] = [0, 1].map(|_| k.workgroup_array(Type::U32, 1));
        k.when(lane.eq(0), || {
            least_bits.store(0, u32::MAX);
            least_token.store(0, u32::MAX);
        });
        k.barrier();
        let bits_of = |token: Value<'k>| greedy.select(k.u32(0), threefry(seed, [token, drawn])[0]);
        let each_candidate = |visit: &dyn Fn(Value<'k>)| {
            each_listed(&|key, token| _ = k.when(key.eq(key_drawn), || visit(token)));
        };
        each_candidate(&|token| _ = least_bits.atomic_min(0, bits_of(token)));
        k.barrier();
        let least = least_bits.load(0);
        each_candidate(&|token| {
            k.when(bits_of(token).eq(least), || _ = least_token.atomic_min(0, token));
        });
        // What was loaded before must not be loaded behind the stores that follow.
        k.barrier_of_all();
        k.when(lane.eq(0), || {
            let token = least_token.load(0);
            let found = token.lt(p.vocabulary);
            y.store(row, found.select(token, 0));
            k.when(found, || {
                let place = start + token / width;
                let seen = history.load(place).lanes();
                let more = (0..).zip(seen).map(|(i, seen)| seen + (token % width).eq(i).convert(Scalar::U32));
                let more: Vec<_> = more.collect();
                history.store(place, packed(&more));
            });
            settings.store(first + 11, drawn + 1);
        });
    }

    fn samples() -> Vec<Self> {
        let sample = |dtype, lanes, subgroup, turn| NextToken { dtype, team: Team::Workgroup(lanes), subgroup, turn };
        vec![
            sample(DType::F32, 64, None, Turn::Single),
            sample(DType::F16, 256, Some(32), Turn::Singles),
            sample(DType::BF16, 256, None, Turn::Quads),
            sample(DType::F32, 256, Some(16), Turn::Quads),
        ]
    }
}

/// What is summed up along a histogram.
#[derive(Clone, Copy, PartialEq)]
enum Sum {
    Count,
    Weight,
}

/// The workgroup memory of histograms.
struct Histograms<'k> {
    member: Member<'k>,
    /// The counts of the keys of a bin; or the counts of the bins, and then the sums of their losses.
    cells: Array<'k>,
    scratch: Vec<Array<'k>>,
}

impl<'k> Histograms<'k> {
    fn new(member: Member<'k>) -> Self {
        let k = member.k;
        let cells = k.workgroup_array(Type::U32, KEYS.max(2 * BINS));
        k.for_step(member.lane, KEYS.max(2 * BINS), member.lanes(), |cell| cells.store(cell, 0));
        k.barrier();
        let scratch = member.scratch([Type::U32, Type::F32]);
        Histograms { member, cells, scratch }
    }

    /// Adds 1 to the count of a cell.
    fn add(&self, cell: Value<'k>) {
        self.cells.atomic_add(cell, 1);
    }

    /// Adds a key to its bin.
    fn add_with_loss(&self, key: Value<'k>) {
        self.add(key / KEYS);
        self.cells.atomic_add(key / KEYS + BINS, loss(key % KEYS));
    }

    /// Returns the sums along the bins, and clears the histogram.
    fn of_bins(&self) -> Cells<'k> {
        self.summed(BINS, |bin, count| {
            let losses = self.taken(bin + BINS).convert(Scalar::F32) * (1.0 / f64::from(LOSS_STEPS));
            (count - losses) * weight_of_bin(bin)
        })
    }

    /// Returns the sums along the keys of a bin, and clears the histogram.
    fn of_keys(&self, bin: Value<'k>) -> Cells<'k> {
        let weight = weight_of_bin(bin);
        self.summed(KEYS, |key, count| {
            let lost = loss(key).convert(Scalar::F32) * (1.0 / f64::from(LOSS_STEPS));
            count * (weight - lost * weight)
        })
    }

    /// Returns what a cell has, and clears it.
    fn taken(&self, cell: Value<'k>) -> Value<'k> {
        let count = self.cells.load(cell);
        self.cells.store(cell, 0);
        count
    }

    /// `weight` is of a cell and its count.
    fn summed(&self, cells: u32, weight: impl Fn(Value<'k>, Value<'k>) -> Value<'k>) -> Cells<'k> {
        let k = self.member.k;
        k.barrier();
        let own = cells / self.member.lanes();
        let first = self.member.lane * own;
        let mut sums = [k.u32(0), k.f32(0.0)];
        let mut cells = Vec::new();
        for cell in (0..own).map(|cell| first + cell) {
            let count = self.taken(cell);
            let weight = weight(cell, count.convert(Scalar::F32));
            cells.push(Cell { index: cell, before: sums, count, weight });
            sums = [sums[0] + count, sums[1] + weight];
        }
        let add = |a: &[Value<'k>], b: &[Value<'k>]| vec![a[0] + b[0], a[1] + b[1]];
        let before = self.member.prefix(&add, &self.scratch, vec![k.u32(0), k.f32(0.0)], sums.to_vec());
        for cell in &mut cells {
            cell.before = [before[0] + cell.before[0], before[1] + cell.before[1]];
        }
        Cells { k, cells, found: k.workgroup_array(Type::U32, 4), lane: self.member.lane }
    }
}

/// Returns the weight of the first key of a bin.
fn weight_of_bin(bin: Value<'_>) -> Value<'_> {
    (bin.convert(Scalar::F32) * -f64::from(KEYS) / f64::from(STEPS)).exp2()
}

/// Returns how much less than the first key of its bin a key weighs, in `LOSS_STEPS`.
fn loss(key: Value<'_>) -> Value<'_> {
    let x = key.convert(Scalar::F32) * (LN_2 / f64::from(STEPS));
    // 1 - exp(-x); the next term is below 1e-8.
    let loss = x * ((x * (1.0 / 6.0) - 0.5) * x + 1.0);
    (loss * f64::from(LOSS_STEPS) + 0.5).convert(Scalar::U32)
}

/// A cell of a histogram.
struct Cell<'k> {
    index: Value<'k>,
    /// The count and the weight of the cells before it.
    before: [Value<'k>; 2],
    count: Value<'k>,
    weight: Value<'k>,
}

/// The cells of a histogram that an invocation has.
struct Cells<'k> {
    k: &'k KernelBuilder,
    cells: Vec<Cell<'k>>,
    found: Array<'k>,
    lane: Value<'k>,
}

/// A cell that was found.
#[derive(Clone, Copy)]
struct Found<'k> {
    index: Value<'k>,
    before_count: Value<'k>,
    before: Value<'k>,
    weight: Value<'k>,
}

impl<'k> Cells<'k> {
    /// Finds the last cell with tokens before which the sum is 0 or below `target`, or the cell `most` if that comes
    /// earlier. All invocations must call this function. They find the same cell.
    fn last_below(&self, sum: Sum, target: Value<'k>, most: Value<'k>) -> Found<'k> {
        let Cells { k, cells, found, lane } = self;
        k.when(lane.eq(0), || found.store(0, 0));
        k.barrier();
        let own = cells.iter().fold(k.u32(0), |own, cell| {
            let before = cell.before[sum as usize];
            let zero = before.literal(k.number(before.ty(), 0));
            let is_below = (before.lt(target) | before.eq(zero)) & cell.count.ne(0);
            is_below.select(cell.index + 1, own)
        });
        k.when(own.ne(0), || _ = found.atomic_max(0, own));
        k.barrier();
        let index = (found.load(0).max(1) - 1).min(most);
        for cell in cells {
            k.when(cell.index.eq(index), || {
                found.store(1, cell.before[0]);
                found.store(2, cell.before[1].bitcast(Type::U32));
                found.store(3, cell.weight.bitcast(Type::U32));
            });
        }
        k.barrier();
        let [before, weight] = [2, 3].map(|place| found.load(place).bitcast(Type::F32));
        Found { index, before_count: found.load(1), before, weight }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::KernelConfig;
    use crate::shader::Target;

    #[test]
    fn kernels_take_the_memory_that_they_say() {
        for config in NextToken::samples() {
            let kernel = KernelConfig::from(config.clone()).generate(Target::VULKAN).unwrap();
            let (found, most) = (kernel.workgroup_memory, NextToken::memory(config.team.size()));
            assert!(found <= most && found + 4 * config.team.size() + 128 >= most, "{}: {found}, {most}", kernel.name);
        }
    }
}
