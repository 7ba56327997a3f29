//! [`Word`]: a number that a kernel gets at its launch.

use crate::base::dtype::{DType, Element};
use crate::base::error::Result;
use crate::base::number::Number;
use half::{bf16, f16};

/// A number handed to a kernel at its launch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Word {
    /// The bits of the number, widened to the type that kernels compute in, the lowest first.
    words: [u32; 2],
    pub dtype: DType,
}

impl Word {
    pub fn new<T: Element>(number: T) -> Word {
        Word::of_bits(number.to_bits(), T::DTYPE)
    }

    /// Returns the number with these bits, widened to the type that kernels compute in.
    pub fn of_bits(bits: u64, dtype: DType) -> Word {
        Word { words: [bits as u32, (bits >> 32) as u32], dtype }
    }

    /// Converts a number to an element of `dtype`. An integer dtype must hold it.
    pub fn of(number: impl Into<Number>, dtype: DType, op: &'static str) -> Result<Word> {
        Ok(Word::of_bits(number.into().bits(dtype, op)?, dtype))
    }

    /// Takes other numbers as its words in a parameter block.
    pub fn set_words(&mut self, next: &mut dyn FnMut() -> u32) {
        self.words[..self.dtype.parts()].fill_with(next);
    }

    /// Returns its bits.
    pub fn bits(self) -> u64 {
        let [low, high] = self.words.map(u64::from);
        low | high << 32
    }

    /// Returns its bits as an element in memory.
    pub fn stored_bits(self) -> u64 {
        let float = f32::from_bits(self.words[0]);
        match self.dtype {
            DType::F16 => f16::from_f32(float).to_bits().into(),
            DType::BF16 => bf16::from_f32(float).to_bits().into(),
            DType::Bool | DType::U8 | DType::I8 => self.bits() & 0xff,
            DType::F32 | DType::U32 | DType::I32 => self.words[0].into(),
            DType::F64 | DType::I64 => self.bits(),
        }
    }

    /// Returns its words in a parameter block, the lowest bits first.
    pub fn words(self) -> impl Iterator<Item = u32> {
        self.words.into_iter().take(self.dtype.parts())
    }
}

/// Returns how many words of a parameter block the numbers take.
pub(crate) fn word_count(scalars: &[Word]) -> usize {
    scalars.iter().map(|word| word.dtype.parts()).sum()
}
