//! [`Word`]: a number that a kernel gets at its launch.

use crate::base::dtype::{DType, Element};
use crate::base::error::Result;
use crate::base::number::Number;

/// A number handed to a kernel at its launch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Word {
    /// The bits of the number, widened to the type that kernels compute in.
    pub bits: u64,
    pub dtype: DType,
}

impl Word {
    pub fn new<T: Element>(number: T) -> Word {
        Word { bits: number.to_bits(), dtype: T::DTYPE }
    }

    /// Converts a number to an element of `dtype`. An integer dtype must hold it.
    pub fn of(number: impl Into<Number>, dtype: DType, op: &'static str) -> Result<Word> {
        Ok(Word { bits: number.into().bits(dtype, op)?, dtype })
    }

    /// Returns its words in a parameter block, the lowest bits first.
    pub fn words(self) -> impl Iterator<Item = u32> {
        [self.bits as u32, (self.bits >> 32) as u32].into_iter().take(self.dtype.parts())
    }
}

/// Returns how many words of a parameter block the numbers take.
pub(crate) fn word_count(scalars: &[Word]) -> usize {
    scalars.iter().map(|word| word.dtype.parts()).sum()
}
