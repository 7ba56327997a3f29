//! Sorts a block of elements that a workgroup holds, by four bits of their keys at a time (N. Satish, M. Harris and
//! M. Garland, "Designing Efficient Sorting Algorithms for Manycore GPUs", 2009).
//!
//! Each invocation holds neighbouring elements in registers, and counts how many have each digit. From the counts, a
//! prefix sum over the invocations finds the rank of every element. The elements then move to their ranks through
//! workgroup memory.

use super::*;
use crate::kernels::fold::State;
use crate::shader::Var;

/// The bits by which a turn sorts.
pub(super) const BITS: u32 = 4;

/// The digits of these bits.
const DIGITS: u32 = 1 << BITS;

/// The words that hold the counts of all digits. The lower half of word `i` counts digit `i`, the upper half digit
/// `i + 8`.
const PAIRS: u32 = DIGITS / 2;

/// Returns the bytes of workgroup memory that sorting a block takes, with a word for each of [`super::DIGITS`].
pub(crate) const fn memory(lanes: u32, each: u32, subgroup: Option<u32>) -> u32 {
    let states = match subgroup {
        // The lanes of a subgroup combine the states of all subgroups.
        Some(size) if lanes / size <= size => lanes / size,
        _ => lanes + 1,
    };
    let held = if each > PAIRS { each } else { PAIRS };
    4 * (lanes * held + super::DIGITS + PAIRS * states)
}

/// A block of elements, and the workgroup that sorts it.
pub(super) struct Block<'k> {
    member: Member<'k>,
    /// The elements of an invocation: at most 15, so that four bits can count them. If the number is odd, invocations
    /// do not meet in the banks of workgroup memory.
    each: u32,
    /// A word for each element, and for each count of an invocation.
    memory: Array<'k>,
    /// The number of elements. The block has room for more.
    count: Value<'k>,
}

impl<'k> Block<'k> {
    pub fn new(member: Member<'k>, each: u32, count: Value<'k>) -> Self {
        debug_assert!(each < DIGITS, "four bits count the elements of an invocation");
        let memory = member.k.workgroup_array(Type::U32, member.lanes() * each.max(PAIRS));
        Block { member, each, memory, count }
    }

    /// The places in the block of an invocation's elements, as it loads and stores them: neighbours have neighbouring
    /// elements.
    pub fn places(&self) -> Vec<Value<'k>> {
        (0..self.each).map(|e| self.member.lane + e * self.member.lanes()).collect()
    }

    /// Sorts the elements by `turns` digits, the lowest one first. `words` has the words of the elements at
    /// [`places`](Self::places), and so has the result. Beyond the count, any words will do: they stay where they are.
    /// `digit` returns a digit from an element's words.
    pub fn sort(
        &self,
        words: &[Vec<Value<'k>>],
        turns: u32,
        digit: impl Fn(Value<'k>, &[Value<'k>]) -> Value<'k>,
    ) -> Vec<Vec<Value<'k>>> {
        let Block { member, each, .. } = *self;
        let (k, lane, lanes) = (member.k, member.lane, member.lanes());
        let held: Vec<Vec<Var>> =
            words.iter().map(|element| element.iter().map(|&word| k.var(word)).collect()).collect();
        let own = |e: u32| lane * each + e;
        self.exchange(&held, &self.places(), [own(0), k.u32(1)]);
        k.for_rolled(0, turns, 1, |turn| {
            let digit = |e: u32| {
                let words: Vec<_> = held[e as usize].iter().map(|word| word.get()).collect();
                own(e).lt(self.count).select(digit(turn, &words), DIGITS - 1)
            };
            let ranks = self.ranks(&(0..each).map(digit).collect::<Vec<_>>());
            let last = turn.eq(turns - 1);
            self.exchange(&held, &ranks, [last.select(lane, own(0)), last.select(k.u32(lanes), 1)]);
        });
        held.iter().map(|element| element.iter().map(|word| word.get()).collect()).collect()
    }

    /// Stores a word at each of this invocation's [`places`](Self::places), and returns the one before each. Before the
    /// first word comes the word itself.
    pub fn before(&self, words: &[Value<'k>]) -> Vec<Value<'k>> {
        let (k, places) = (self.member.k, self.places());
        k.barrier();
        places.iter().zip(words).for_each(|(&place, &word)| self.memory.store(place, word));
        k.barrier();
        places.iter().map(|&place| self.memory.load(place.max(1) - 1)).collect()
    }

    /// Moves elements to other places. Returns those at `first` and at each `step` from there on.
    fn exchange(&self, held: &[Vec<Var<'k>>], to: &[Value<'k>], [first, step]: [Value<'k>; 2]) {
        let k = self.member.k;
        for word in 0..held[0].len() {
            k.barrier();
            held.iter().zip(to).for_each(|(element, &place)| self.memory.store(place, element[word].get()));
            k.barrier();
            (0..).zip(held).for_each(|(e, element)| element[word].set(self.memory.load(first + step * e)));
        }
    }

    /// Returns the ranks of this invocation's elements, from their digits.
    fn ranks(&self, digits: &[Value<'k>]) -> Vec<Value<'k>> {
        let k = self.member.k;
        // Two words have four bits for each digit: the count of the elements so far. For each element, this is the
        // number of the invocation's own elements with the same digit that come before it.
        let mut counts = [k.u32(0), k.u32(0)];
        let mut before = Vec::new();
        for &digit in digits {
            let (shift, upper) = ((digit & (PAIRS - 1)) * BITS, digit.ge(PAIRS));
            before.push((upper.select(counts[1], counts[0]) >> shift) & (DIGITS - 1));
            let one = k.u32(1) << shift;
            counts = [counts[0] + upper.select(k.u32(0), one), counts[1] + upper.select(one, 0)];
        }
        let count = |word: Value<'k>, pair| (word >> (BITS * pair)) & (DIGITS - 1);
        let own: State = (0..PAIRS).map(|pair| count(counts[0], pair) | (count(counts[1], pair) << 16)).collect();
        let add = |a: &[Value<'k>], b: &[Value<'k>]| a.iter().zip(b).map(|(&a, &b)| a + b).collect();
        let (mut prior, totals) = self.member.prefixes(&add, own.iter().map(|_| k.u32(0)).collect(), &[own]);
        // Before the elements of a digit come all of lower digits.
        let mut lower = k.u32(0);
        let mut prior = prior.swap_remove(0);
        for (prior, total) in prior.iter_mut().zip(totals) {
            *prior = *prior + lower;
            lower = lower + total;
        }
        let lower_half = (lower & 0xffff) << 16;
        // Registers have no index. All elements are in registers now, so that the memory is free.
        let place = |pair: Value<'k>| pair * self.member.lanes() + self.member.lane;
        for (pair, prior) in (0..).zip(prior) {
            self.memory.store(place(k.u32(pair)), prior + lower_half);
        }
        let ranks = digits.iter().zip(before).map(|(&digit, before)| {
            let pair = self.memory.load(place(digit & (PAIRS - 1)));
            ((pair >> (digit / PAIRS * 16)) & 0xffff) + before
        });
        ranks.collect()
    }
}
