//! Ternary weights as BitNet's safetensors files pack them, brought into blocks on the device.

use super::{QuantizedTensor, upload};
use crate::base::block_format::BlockFormat;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::tensor::Tensor;

const OP: &str = "from_bitnet";

/// The numbers of a byte.
const PER_BYTE: usize = 4;

/// The half 1, little-endian: the scale of every block.
const ONE: [u8; 2] = [0x00, 0x3c];

impl QuantizedTensor {
    /// Returns the ternary matrix of a BitNet model, from a tensor of its safetensors file. The numbers are -1, 0 and
    /// 1, in blocks of [`BlockFormat::TQ2_0`] with scale 1. The model's own scale is another tensor:
    /// [`nn::BitLinear`](crate::nn::BitLinear) applies it.
    ///
    /// `packed` holds bytes of the shape `[out / 4, in]`, as the Python package `transformers` 4.57 packs them
    /// (`unpack_weights` in `integrations/bitnet.py`). A byte has numbers of four rows, each plus 1 in two bits. Row
    /// `r` is in row `r % (out / 4)` of the bytes, from bit `2 * (r / (out / 4))` on.
    ///
    /// The result is computed now. Meanwhile the blocks are on the device twice. In a closure of
    /// [`Device::capture`](crate::Device::capture), only tensors from outside can be taken.
    ///
    /// ```
    /// # use marquetry::{DType, Device, QuantizedTensor, Tensor};
    /// # let device = Device::best()?;
    /// // Rows 0 and 2 hold 1, row 1 holds -1, row 3 holds 0.
    /// let packed = Tensor::full(0b01_10_00_10u8, (1, 256), &device)?;
    /// let weight = QuantizedTensor::from_bitnet(&packed)?;
    /// assert_eq!(weight.dims(), [4, 256]);
    /// let x = Tensor::ones(256, DType::F32, &device)?;
    /// assert_eq!(x.matmul_quantized(&weight)?.to_vec::<f32>()?, [256.0, -256.0, 256.0, 0.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for dtypes other than `u8`; [`Error::RankMismatch`] if `packed` is not a matrix;
    /// [`Error::InvalidArgument`] if its rows are no multiple of 256 long, or if it is computed inside a capture;
    /// [`Error::Unsupported`] if a row is larger than the device can bind; [`Error::SizeOverflow`];
    /// [`Error::OutOfMemory`].
    pub fn from_bitnet(packed: &Tensor) -> Result<QuantizedTensor> {
        const FORMAT: BlockFormat = BlockFormat::TQ2_0;
        if packed.dtype() != DType::U8 {
            return Err(Error::UnsupportedDType { op: OP, dtype: packed.dtype(), expected: "u8" });
        }
        let [rows, columns] = *packed.dims() else {
            let expected = "2 (the packed bytes, [out / 4, in])";
            return Err(Error::RankMismatch { op: OP, expected, shape: packed.shape().clone() });
        };
        let each = FORMAT.block_elements();
        if columns % each != 0 {
            let message = format!(
                "the last axis of shape {} is no multiple of {each}, the block of {FORMAT}; add columns of bytes \
                 0b01010101, which are zeros, and zeros to the vectors",
                packed.shape()
            );
            return Err(Error::InvalidArgument { op: OP, message });
        }
        let overflow = || Error::SizeOverflow { op: OP, shape: packed.shape().clone(), limit: usize::MAX as u64 };
        rows.checked_mul(PER_BYTE).ok_or_else(overflow)?;
        super::made_now(packed.device(), OP, || {
            let blocks = blocks(packed, [rows, columns / each])?;
            upload::from_tensor(&blocks, FORMAT, [PER_BYTE * rows, columns])
        })
    }
}

/// Returns the bytes of the blocks, in the order of a file, from a matrix of packed bytes of `rows` rows. A block has
/// two runs of 32 bytes, and then its scale. Byte `i` of a run has, two bits each, the numbers `i`, `i + 32`, `i + 64`
/// and `i + 96` of 128 neighbours.
fn blocks(packed: &Tensor, [rows, row_blocks]: [usize; 2]) -> Result<Tensor> {
    let device = packed.device();
    // The four quarters of the rows come first. In each, a byte has another place.
    let packed = packed.reshape([1, rows, 2 * row_blocks, 4, 32])?;
    let places = Tensor::new([0u8, 2, 4, 6], device)?.reshape([4, 1, 1, 1, 1])?;
    let digits = |i: usize| -> Result<Tensor> {
        let digits = packed.narrow(3, i, 1)?.shr(&places)?.bitwise_and(3)?;
        digits.shl(2 * i)
    };
    let low = digits(0)?.bitwise_or(&digits(1)?)?;
    let runs = low.bitwise_or(&digits(2)?)?.bitwise_or(&digits(3)?)?;
    let runs = runs.reshape([PER_BYTE * rows, row_blocks, 64])?;
    let scales = Tensor::new(ONE, device)?.broadcast_to([PER_BYTE * rows, row_blocks, 2])?;
    Tensor::cat(&[runs, scales], -1)
}
