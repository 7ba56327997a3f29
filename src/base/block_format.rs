//! [`BlockFormat`]: how blocks of quantised numbers are packed.

use std::fmt;
use std::ops::Range;

/// How the numbers of a [`QuantizedTensor`](crate::QuantizedTensor) are packed: in blocks of neighbours along the last
/// axis, which share scales.
///
/// Names and layouts are those of the
/// [GGUF specification](https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), whose `ggml-common.h` declares the
/// blocks. In the table, `d` and `m` are halves, `q` is the packed integer, and `s` and `t` are the integers that scale
/// 16 or 32 neighbours of a block.
///
/// | format | block | bytes | a number is |
/// |---|---|---|---|
/// | `Q4_0`, `Q5_0` | 32 | 18, 22 | `d (q - 8)`, `d (q - 16)` |
/// | `Q4_1`, `Q5_1` | 32 | 20, 24 | `d q + m` |
/// | `Q8_0` | 32 | 34 | `d q` |
/// | `Q2_K`, `Q4_K`, `Q5_K` | 256 | 84, 144, 176 | `d s q - m t` |
/// | `Q3_K`, `Q6_K` | 256 | 110, 210 | `d s (q - 4)`, `d s (q - 32)` |
/// | `IQ4_NL`, `IQ4_XS` | 32, 256 | 18, 136 | `d table[q]`, `d s table[q]` |
/// | `TQ1_0`, `TQ2_0` | 256 | 54, 66 | `d (q - 1)`, where `q` is 0, 1 or 2 |
/// | `MXFP4` | 32 | 17 | 2^(e - 128) `table[q]`, where `e` is a byte |
///
/// ```
/// use marquetry::BlockFormat;
/// assert_eq!(BlockFormat::Q4_0.block_elements(), 32);
/// assert_eq!(BlockFormat::Q4_0.block_bytes(), 18);
/// assert_eq!(BlockFormat::Q4_0.to_string(), "Q4_0");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types, reason = "these are the names of the specification")]
#[non_exhaustive]
pub enum BlockFormat {
    /// 4 bits, a scale for 32 numbers.
    Q4_0,
    /// 4 bits, a scale and a minimum for 32 numbers.
    Q4_1,
    /// 5 bits, a scale for 32 numbers.
    Q5_0,
    /// 5 bits, a scale and a minimum for 32 numbers.
    Q5_1,
    /// 8 bits, a scale for 32 numbers.
    Q8_0,
    /// 2 bits, a scale and a minimum of 4 bits for 16 numbers.
    Q2_K,
    /// 3 bits, a scale of 6 bits for 16 numbers.
    Q3_K,
    /// 4 bits, a scale and a minimum of 6 bits for 32 numbers.
    Q4_K,
    /// 5 bits, a scale and a minimum of 6 bits for 32 numbers.
    Q5_K,
    /// 6 bits, a scale of 8 bits for 16 numbers.
    Q6_K,
    /// 4 bits that choose among 16 numbers, a scale for 32 numbers.
    IQ4_NL,
    /// 4 bits that choose among 16 numbers, a scale of 6 bits for 32 numbers.
    IQ4_XS,
    /// Ternary numbers, five to a byte.
    TQ1_0,
    /// Ternary numbers, four to a byte.
    TQ2_0,
    /// 4-bit floats (E2M1), a power of two for 32 numbers: OCP Microscaling Formats (MX) v1.0.
    MXFP4,
}

impl BlockFormat {
    /// Every format.
    pub const ALL: [BlockFormat; 15] = [
        BlockFormat::Q4_0,
        BlockFormat::Q4_1,
        BlockFormat::Q5_0,
        BlockFormat::Q5_1,
        BlockFormat::Q8_0,
        BlockFormat::Q2_K,
        BlockFormat::Q3_K,
        BlockFormat::Q4_K,
        BlockFormat::Q5_K,
        BlockFormat::Q6_K,
        BlockFormat::IQ4_NL,
        BlockFormat::IQ4_XS,
        BlockFormat::TQ1_0,
        BlockFormat::TQ2_0,
        BlockFormat::MXFP4,
    ];

    /// Returns the number of elements of a block.
    pub const fn block_elements(self) -> usize {
        match self {
            BlockFormat::Q4_0
            | BlockFormat::Q4_1
            | BlockFormat::Q5_0
            | BlockFormat::Q5_1
            | BlockFormat::Q8_0
            | BlockFormat::IQ4_NL
            | BlockFormat::MXFP4 => 32,
            _ => 256,
        }
    }

    /// Returns the size of a block in bytes.
    pub const fn block_bytes(self) -> usize {
        match self {
            BlockFormat::MXFP4 => 17,
            BlockFormat::Q4_0 | BlockFormat::IQ4_NL => 18,
            BlockFormat::Q4_1 => 20,
            BlockFormat::Q5_0 => 22,
            BlockFormat::Q5_1 => 24,
            BlockFormat::Q8_0 => 34,
            BlockFormat::TQ1_0 => 54,
            BlockFormat::TQ2_0 => 66,
            BlockFormat::Q2_K => 84,
            BlockFormat::Q3_K => 110,
            BlockFormat::IQ4_XS => 136,
            BlockFormat::Q4_K => 144,
            BlockFormat::Q5_K => 176,
            BlockFormat::Q6_K => 210,
        }
    }

    /// Returns the name in the specification.
    pub const fn name(self) -> &'static str {
        match self {
            BlockFormat::Q4_0 => "Q4_0",
            BlockFormat::Q4_1 => "Q4_1",
            BlockFormat::Q5_0 => "Q5_0",
            BlockFormat::Q5_1 => "Q5_1",
            BlockFormat::Q8_0 => "Q8_0",
            BlockFormat::Q2_K => "Q2_K",
            BlockFormat::Q3_K => "Q3_K",
            BlockFormat::Q4_K => "Q4_K",
            BlockFormat::Q5_K => "Q5_K",
            BlockFormat::Q6_K => "Q6_K",
            BlockFormat::IQ4_NL => "IQ4_NL",
            BlockFormat::IQ4_XS => "IQ4_XS",
            BlockFormat::TQ1_0 => "TQ1_0",
            BlockFormat::TQ2_0 => "TQ2_0",
            BlockFormat::MXFP4 => "MXFP4",
        }
    }

    /// Returns how many blocks of a row lie side by side on a device, a power of two. A plane has at most 64 bytes of
    /// them.
    pub(crate) const fn piece_blocks(self) -> usize {
        if self.block_elements() == 32 { 4 } else { 1 }
    }

    /// Returns how many of the planes, the first ones, have bytes with an integer each, or with several that lie apart.
    pub(crate) const fn integer_planes(self) -> usize {
        match self {
            BlockFormat::Q5_K | BlockFormat::Q6_K => 3,
            BlockFormat::Q8_0 | BlockFormat::Q3_K | BlockFormat::Q4_K | BlockFormat::IQ4_XS | BlockFormat::TQ1_0 => 2,
            _ => 1,
        }
    }

    /// Returns the planes in which kernels want the blocks: parts of a block's bytes. On a device, the first parts of
    /// all blocks follow each other, then their second parts. So kernels load 16 bytes of packed integers at a time,
    /// wherever the specification puts the scales. The [integers](Self::integer_planes) come first, with the bytes of
    /// each word in the order in which kernels want them. A part of 64 bytes or fewer is what four
    /// lanes load at once.
    pub(crate) fn planes(self) -> &'static [Range<usize>] {
        match self {
            BlockFormat::Q4_0 | BlockFormat::IQ4_NL => &[2..18, 0..2],
            BlockFormat::Q4_1 => &[4..20, 0..4],
            BlockFormat::Q5_0 => &[6..22, 2..6, 0..2],
            BlockFormat::Q5_1 => &[8..24, 4..8, 0..4],
            BlockFormat::Q8_0 => &[2..18, 18..34, 0..2],
            BlockFormat::Q2_K => &[16..80, 0..16, 80..84],
            BlockFormat::Q3_K => &[32..96, 0..32, 96..108, 108..110],
            BlockFormat::Q4_K => &[16..80, 80..144, 0..16],
            BlockFormat::Q5_K => &[48..112, 112..176, 16..48, 0..16],
            BlockFormat::Q6_K => &[0..64, 64..128, 128..192, 192..208, 208..210],
            BlockFormat::IQ4_XS => &[8..72, 72..136, 0..8],
            BlockFormat::TQ1_0 => &[0..48, 48..52, 52..54],
            BlockFormat::TQ2_0 => &[0..64, 64..66],
            BlockFormat::MXFP4 => &[1..17, 0..1],
        }
    }
}

impl fmt::Display for BlockFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_cover_a_block_once() {
        for format in BlockFormat::ALL {
            let mut planes = format.planes().to_vec();
            planes.sort_by_key(|plane| plane.start);
            let ends: Vec<usize> = [0].into_iter().chain(planes.iter().map(|plane| plane.end)).collect();
            assert!(planes.iter().zip(&ends).all(|(plane, &end)| plane.start == end), "{format}: {planes:?}");
            assert_eq!(ends.last(), Some(&format.block_bytes()), "{format}");
            let of_integers = &format.planes()[..format.integer_planes()];
            assert!(of_integers.iter().all(|plane| plane.len().is_multiple_of(4)), "{format}: {of_integers:?}");
            assert!(planes.iter().all(|plane| plane.len() * format.piece_blocks() <= 64), "{format}: {planes:?}");
        }
    }
}
