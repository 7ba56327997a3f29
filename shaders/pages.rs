//! How kernels find the pages of a sequence in a cache of keys and values.
//!
//! A buffer of words has the lengths of all sequences, then a table with a row for each sequence: the numbers of its
//! pages, in order. W. Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
//! 2023.

use super::parameters::{Size, parameters};
use crate::shader::{Access, Array, IntoValue, KernelBuilder, Type, Value};

/// The tokens of a page.
pub(crate) const PAGE: u32 = 64;

/// The elements of a block, if rows of pages are packed: whole numbers of 8 bits, which share a scale.
pub(crate) const BLOCK: usize = 32;

/// The largest magnitude of a whole number in a block.
pub(super) const LARGEST: f32 = 127.0;

/// Returns the bytes of a packed row: its whole numbers, then a scale of `f32` for each block. Rows can be read 16
/// bytes at a time.
pub(crate) const fn packed_row(elements: usize) -> usize {
    (elements + 4 * (elements / BLOCK)).next_multiple_of(16)
}

/// Returns the word that has the scale of a column, in a packed row that begins at a byte.
pub(super) fn scale_at<'k>(row: Value<'k>, elements: impl IntoValue<'k>, column: Value<'k>) -> Value<'k> {
    let elements = elements.into_value(row.kernel(), Type::U32);
    (row + elements) / 4 + column / BLOCK as u32
}

/// The form of the parameters that tell where sequences and their pages are.
#[derive(Debug, Clone, Default)]
pub(crate) struct PageTable;

parameters! {
    config: PageTable;
    host: Parameters;
    device: Declared;
    /// The place of the first sequence.
    first: Size,
    /// Where the table begins.
    table: Size,
    /// The length of a row in the table.
    row: Size,
}

/// The pages of a sequence.
#[derive(Clone, Copy)]
pub(super) struct Pages<'k> {
    words: Array<'k>,
    row: Value<'k>,
    /// The number of the sequence's tokens.
    pub length: Value<'k>,
}

impl<'k> Pages<'k> {
    /// Declares the buffer, and finds a sequence in it.
    pub fn new(k: &'k KernelBuilder, parameters: &Declared<'k>, sequence: Value<'k>) -> Self {
        let words = k.buffer("sequences", Type::U32, Access::Read);
        let sequence = parameters.first + sequence;
        Pages { words, row: parameters.table + sequence * parameters.row, length: words.load(sequence) }
    }

    /// Returns the page of a token.
    pub fn page_of(self, token: Value<'k>) -> Value<'k> {
        self.words.load(self.row + token / PAGE)
    }
}
