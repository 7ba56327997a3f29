//! Blocks from the host or the device, brought into the order in which kernels read them.

use super::{Part, QuantizedTensor};
use crate::backend::info::MemoryKind;
use crate::base::block_format::BlockFormat;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::device::Device;
use crate::engine::launch::Launch;
use crate::engine::pool::Buffer;
use crate::engine::staging::ByteSource;
use crate::kernels::block_planes::{BlockPlanes, Parameters, PlanePart, WORKGROUP};
use crate::kernels::blocks::MatrixParameters;
use crate::kernels::parameters::Each;
use crate::tensor::Tensor;
use std::ops::Range;

const OP: &str = "from_bytes";

/// Bytes of blocks that are on the device in both orders at once.
const CHUNK: u64 = 4 << 20;

/// The most rows that lie together: those that a workgroup on matrix units multiplies. A power of two.
const ROWS_TOGETHER: usize = 16;

/// Chunks begin at multiples of this many rows, so that their planes begin at whole words.
const WHOLE_WORDS: usize = 4;

/// A range of another source.
struct Portion<'a> {
    source: &'a dyn ByteSource,
    range: Range<u64>,
}

impl ByteSource for Portion<'_> {
    fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn read(&self, range: Range<u64>, scratch: &mut Vec<u8>, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let start = self.range.start;
        self.source.read(start + range.start..start + range.end, scratch, take)
    }
}

impl QuantizedTensor {
    /// Returns a tensor of blocks as they are in a file: in row-major order, those of a row along the last axis.
    ///
    /// ```
    /// # use marquetry::{BlockFormat, Device, QuantizedTensor};
    /// # let device = Device::best()?;
    /// let weight = QuantizedTensor::from_bytes(&[0; 2 * 144], BlockFormat::Q4_K, (2, 256), &device)?;
    /// assert_eq!((weight.dims(), weight.format()), (&[2, 256][..], BlockFormat::Q4_K));
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the last axis is no multiple of a block, or if the shape takes another number of
    /// bytes; [`Error::SizeOverflow`]; [`Error::OutOfMemory`].
    pub fn from_bytes(
        bytes: &[u8],
        format: BlockFormat,
        shape: impl Into<Shape>,
        device: &Device,
    ) -> Result<QuantizedTensor> {
        QuantizedTensor::from_source(&bytes, format, shape.into(), device)
    }

    /// The same for bytes that may be elsewhere.
    pub(crate) fn from_source(
        source: &dyn ByteSource,
        format: BlockFormat,
        shape: Shape,
        device: &Device,
    ) -> Result<QuantizedTensor> {
        let invalid = |message| Err(Error::InvalidArgument { op: OP, message });
        let Some((&columns, outer)) = shape.dims().split_last() else {
            return invalid("a scalar has no axis for blocks; give a shape with a last axis of whole blocks".into());
        };
        let each = format.block_elements();
        if columns % each != 0 {
            return invalid(format!("the last axis of shape {shape} is no multiple of {each}, the block of {format}"));
        }
        let overflow = || Error::SizeOverflow { op: OP, shape: shape.clone(), limit: usize::MAX as u64 };
        let rows = outer.iter().try_fold(1usize, |rows, &length| rows.checked_mul(length)).ok_or_else(overflow)?;
        let row_bytes = (columns / each).checked_mul(format.block_bytes()).ok_or_else(overflow)?;
        let expected = rows.checked_mul(row_bytes).ok_or_else(overflow)? as u64;
        if expected != source.bytes() {
            let message = format!("shape {shape} of {format} takes {expected} bytes, but there are {}", source.bytes());
            return invalid(message);
        }
        let parts = if rows * row_bytes == 0 {
            Vec::new()
        } else {
            // The kernel that reorders blocks runs now, also inside a capture: to its step, weights are constants.
            device.runtime().suspend_capture(|| upload(source, format, rows, columns / each, device))?
        };
        Ok(QuantizedTensor { format, shape, device: device.clone(), parts: parts.into(), rows: 0..rows })
    }
}

/// Returns a matrix of blocks that are on the device, in the order of a file. They are reordered now.
pub(super) fn from_tensor(
    blocks: &Tensor,
    format: BlockFormat,
    [rows, columns]: [usize; 2],
) -> Result<QuantizedTensor> {
    let (device, row_blocks) = (blocks.device(), columns / format.block_elements());
    let parts = if rows * row_blocks == 0 {
        Vec::new()
    } else {
        let blocks = blocks.contiguous()?;
        let (packed, start) = (blocks.buffer()?, blocks.layout().offset);
        parts(format, rows, row_blocks, device, |rows, buffer, matrix| {
            let start = start + rows.start * row_blocks * format.block_bytes();
            spread(Packed { buffer: packed, start, rows: rows.len() }, format, 0, (buffer, matrix), device)
        })?
    };
    let shape = (rows, columns).into();
    Ok(QuantizedTensor { format, shape, device: device.clone(), parts: parts.into(), rows: 0..rows })
}

/// Uploads rows of blocks.
fn upload(
    source: &dyn ByteSource,
    format: BlockFormat,
    rows: usize,
    row_blocks: usize,
    device: &Device,
) -> Result<Vec<Part>> {
    let row_bytes = (row_blocks * format.block_bytes()) as u64;
    parts(format, rows, row_blocks, device, |rows, buffer, matrix| {
        let range = rows.start as u64 * row_bytes..rows.end as u64 * row_bytes;
        reorder(&Portion { source, range }, format, rows.len(), (buffer, matrix), device)
    })
}

/// Makes the buffers of a matrix of blocks. Each is as large as the device can bind, if a row is no larger. `fill`
/// writes rows of it to a buffer with these parameters.
pub(super) fn parts(
    format: BlockFormat,
    rows: usize,
    row_blocks: usize,
    device: &Device,
    fill: impl Fn(Range<usize>, &Buffer, &MatrixParameters) -> Result<()>,
) -> Result<Vec<Part>> {
    let row_bytes = (row_blocks * format.block_bytes()) as u64;
    let limits = &device.info().limits;
    // Indices of words and blocks have 32 bits.
    let [bound, largest] = [limits.max_binding_bytes, limits.max_buffer_bytes]
        .map(|bytes| bytes.min(u32::MAX.into()).saturating_sub(16 * format.planes().len() as u64));
    // If a row is too large to be bound, kernels reach it by address.
    let most = if row_bytes <= bound { bound } else { largest };
    let most_rows = (most / row_bytes) as usize;
    if most_rows == 0 {
        let feature = format!("a row of {row_bytes} bytes in a buffer of {most}");
        return Err(Error::Unsupported { feature, device: device.info().to_string() });
    }
    // Rows that lie together are uploaded together. Nothing fills up what pieces do not fill: it would take memory.
    let of_chunk = (CHUNK / row_bytes) as usize;
    let whole = row_blocks.is_multiple_of(format.piece_blocks());
    let most_together = if whole { ROWS_TOGETHER.min(rows).min(most_rows).min(of_chunk).max(1) } else { 1 };
    let together = most_together.ilog2();
    let rows_of_part = most_rows >> together << together;
    let part = |first: usize| {
        let rows = first..rows.min(first + rows_of_part);
        let mut matrix = MatrixParameters { first: 0, row_blocks, together: together as usize, planes: Each::new() };
        let positions = matrix.positions(rows.len());
        let mut end = 0;
        matrix.planes.extend(format.planes().iter().map(|plane| {
            let start = end;
            end += (positions * plane.len()).div_ceil(16);
            start
        }));
        let buffer = device.runtime().allocate(16 * end as u64, MemoryKind::Device)?;
        fill(rows.clone(), &buffer, &matrix)?;
        Ok(Part { buffer, rows: rows.len(), matrix })
    };
    (0..rows).step_by(rows_of_part).map(part).collect()
}

/// Uploads blocks, and brings their parts into planes of a buffer.
fn reorder(
    source: &Portion<'_>,
    format: BlockFormat,
    rows: usize,
    (buffer, matrix): (&Buffer, &MatrixParameters),
    device: &Device,
) -> Result<()> {
    // If no rows lie together, each block is like a row. Then not even a row is uploaded at once.
    let (rows, row_blocks) =
        if matrix.together == 0 { (rows * matrix.row_blocks, 1) } else { (rows, matrix.row_blocks) };
    let matrix = &MatrixParameters { row_blocks, ..matrix.clone() };
    let (runtime, row_bytes) = (device.runtime(), row_blocks * format.block_bytes());
    let whole = WHOLE_WORDS.max(1 << matrix.together);
    let chunk = ((CHUNK as usize / row_bytes / whole).max(1) * whole).min(rows);
    // All chunks go through one buffer, so a load takes little more memory than its result.
    let packed = runtime.allocate((chunk * row_bytes) as u64, MemoryKind::Device)?;
    for first in (0..rows).step_by(chunk) {
        let count = chunk.min(rows - first);
        let range = [first, first + count].map(|row| source.range.start + (row * row_bytes) as u64);
        runtime.write(&packed, &Portion { source: source.source, range: range[0]..range[1] })?;
        let packed = Packed { buffer: &packed, start: 0, rows: count };
        spread(packed, format, first, (buffer, matrix), device)?;
    }
    Ok(())
}

/// Blocks in a buffer, in the order of a file.
struct Packed<'a> {
    buffer: &'a Buffer,
    /// The first byte of the first block.
    start: usize,
    /// The number of rows.
    rows: usize,
}

/// Brings the parts of blocks into planes of a buffer. There they are the rows from `first` on, a multiple of
/// [`WHOLE_WORDS`] and of the rows that lie together.
fn spread(
    packed: Packed<'_>,
    format: BlockFormat,
    first: usize,
    (buffer, matrix): (&Buffer, &MatrixParameters),
    device: &Device,
) -> Result<()> {
    let [positions, before] = [packed.rows, first].map(|rows| matrix.positions(rows));
    for (i, (plane, start)) in format.planes().iter().zip(&matrix.planes).enumerate() {
        let length = plane.len();
        let part = match length % 4 {
            0 if i < format.integer_planes() => PlanePart::Integers,
            0 => PlanePart::Words,
            _ => PlanePart::Narrow,
        };
        let kernel = BlockPlanes { piece: format.piece_blocks() as u32, part };
        let parameters = Parameters {
            rows: packed.rows,
            row_blocks: matrix.row_blocks,
            together: matrix.together,
            positions,
            bytes: format.block_bytes(),
            first: packed.start + plane.start,
            length,
            start: 4 * start + before * length / 4,
        };
        let groups = (positions * length).div_ceil(4 * WORKGROUP as usize);
        let buffers = &[packed.buffer, buffer];
        device.runtime().run(Launch { kernel, buffers, parameters, groups })?;
    }
    Ok(())
}
