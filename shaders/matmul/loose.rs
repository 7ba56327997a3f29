//! Vectors of eight elements of 16 bits that begin anywhere in a buffer. Memory is read by 16 bytes, so each of them is
//! made of two vectors of memory.

use crate::shader::{Array, Value};

/// Elements in a vector.
pub(crate) const LENGTH: u32 = 8;

/// Where in a vector of memory another vector begins, as the bits of a number of elements: four, two and one.
#[derive(Clone, Copy)]
pub(crate) struct Shift<'k>([Value<'k>; 3]);

impl<'k> Shift<'k> {
    /// Returns where the vector begins whose first element has this index.
    pub fn of(index: Value<'k>) -> Self {
        Shift([4, 2, 1].map(|bit| (index & bit).ne(0)))
    }

    /// Returns the vector, made of the vectors of memory with its first and with its last element.
    pub fn vector(self, [first, last]: [Value<'k>; 2]) -> Value<'k> {
        let words = [first.lanes(), last.lanes()].concat();
        let Shift([by_four, by_two, by_one]) = self;
        let words: Vec<_> = (0..6).map(|i| by_four.select(words[i + 2], words[i])).collect();
        let words: Vec<_> = (0..5).map(|i| by_two.select(words[i + 1], words[i])).collect();
        let words = (0..4).map(|i| by_one.select((words[i] >> 16) | (words[i + 1] << 16), words[i]));
        first.kernel().vector(&words.collect::<Vec<_>>())
    }
}

/// Loads the vectors of memory with the first and the last element of the vector that begins at an index. If only its
/// first `count` elements are in the buffer, one at least, the last one of these counts.
pub(crate) fn load<'k>(buffer: Array<'k>, index: Value<'k>, count: Value<'k>) -> [Value<'k>; 2] {
    let last = index + (count.min(LENGTH) - 1);
    [index, last].map(|index| buffer.load(index / LENGTH))
}

/// Returns a vector with zeros behind its first `count` elements.
pub(crate) fn first_elements<'k>(vector: Value<'k>, count: Value<'k>) -> Value<'k> {
    let words = vector.lanes().into_iter().zip((0..).step_by(2)).map(|(word, first)| {
        let low = count.gt(first).select(word & 0xffff, 0);
        count.gt(first + 1).select(word, low)
    });
    vector.kernel().vector(&words.collect::<Vec<_>>())
}
