//! [`QuantizedTensor`]: weights in blocks of a few bits a number.

mod bitnet;
mod product;
mod quantize;
mod self_test;
mod tiled;
mod upload;

use crate::base::block_format::BlockFormat;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::{Shape, checked_elements};
use crate::device::Device;
use crate::engine::pool::Buffer;
use crate::kernels::blocks::MatrixParameters;
use crate::kernels::dequantize::{Dequantize, Parameters, TableParameters};
use crate::kernels::expr::Domain;
use crate::lazy::PendingLaunch;
use crate::tensor::Tensor;
use smallvec::SmallVec;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Quantised weights on a [`Device`]: blocks of a [`BlockFormat`] along the last axis.
///
/// It takes few operations: a product with the rows of a matrix ([`Tensor::matmul_quantized`],
/// [`Tensor::matmul_quantized_f32`], [`Tensor::linear_quantized`]), a lookup ([`embedding`](Self::embedding)), parts of
/// it ([`narrow`](Self::narrow)), and its numbers ([`dequantize`](Self::dequantize)). Cloning is cheap, and parts share
/// the memory.
///
/// On the device, the parts of the blocks are in another order than in a file, so that kernels read whole words, and
/// several rows together. If the weights are larger than the device can bind, they are in several buffers of whole
/// rows.
///
/// ```
/// use marquetry::{BlockFormat, DType, Device, QuantizedTensor, Tensor};
///
/// let device = Device::best()?;
/// // Two rows of a block each: the half 0.5 and 32 bytes. A number is 0.5 times a byte.
/// let row = |byte: u8| [&[0x00, 0x38][..], &[byte; 32]].concat();
/// let bytes = [row(2), row(255)].concat();
/// let weight = QuantizedTensor::from_bytes(&bytes, BlockFormat::Q8_0, (2, 32), &device)?;
/// assert_eq!(weight.dequantize(DType::F32)?.sum(1)?.to_vec::<f32>()?, [32.0, -16.0]);
/// let x = Tensor::ones((1, 32), DType::F32, &device)?;
/// assert_eq!(x.matmul_quantized(&weight)?.to_vec2::<f32>()?, [[32.0, -16.0]]);
/// # Ok::<(), marquetry::Error>(())
/// ```
#[derive(Clone)]
pub struct QuantizedTensor {
    format: BlockFormat,
    shape: Shape,
    device: Device,
    /// The buffers, in order.
    parts: Arc<[Part]>,
    /// The rows of the parts that belong to the tensor. All axes but the last make up the rows.
    rows: Range<usize>,
}

/// A buffer of whole rows.
struct Part {
    buffer: Buffer,
    /// The number of its rows.
    rows: usize,
    /// Where the blocks are.
    matrix: MatrixParameters,
}

/// The rows of a part that belong to a tensor.
#[derive(Clone, Copy)]
struct Slice<'a> {
    part: &'a Part,
    /// The first one's place in the part.
    first: usize,
    rows: usize,
}

impl Slice<'_> {
    fn matrix(&self) -> MatrixParameters {
        MatrixParameters { first: self.first, ..self.part.matrix.clone() }
    }
}

impl QuantizedTensor {
    /// Returns the format of the blocks.
    pub fn format(&self) -> BlockFormat {
        self.format
    }

    /// Returns the lengths of the axes, in numbers.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the lengths of the axes as a slice.
    pub fn dims(&self) -> &[usize] {
        self.shape.dims()
    }

    /// Returns the device that the blocks are on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the size of the blocks in bytes, as in a file. On the device they take a few bytes more.
    ///
    /// ```
    /// # use marquetry::{BlockFormat, Device, QuantizedTensor};
    /// # let device = Device::best()?;
    /// let weight = QuantizedTensor::from_bytes(&[0; 36], BlockFormat::Q4_0, (2, 32), &device)?;
    /// assert_eq!(weight.size_in_bytes(), 36);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    pub fn size_in_bytes(&self) -> usize {
        self.rows.len() * self.row_blocks() * self.format.block_bytes()
    }

    /// Returns `length` entries of the first axis from `start` on. Copies nothing.
    ///
    /// ```
    /// # use marquetry::{BlockFormat, DType, Device, QuantizedTensor};
    /// # let device = Device::best()?;
    /// let row = |byte: u8| [&[0x00, 0x3c][..], &[byte; 32]].concat();
    /// let bytes = [row(1), row(2), row(3)].concat();
    /// let weight = QuantizedTensor::from_bytes(&bytes, BlockFormat::Q8_0, (3, 32), &device)?;
    /// let part = weight.narrow(1, 2)?;
    /// assert_eq!(part.dequantize(DType::F32)?.sum(1)?.to_vec::<f32>()?, [64.0, 96.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the part is not within the axis, or if the tensor has only one axis, which blocks
    /// fill.
    pub fn narrow(&self, start: usize, length: usize) -> Result<QuantizedTensor> {
        const OP: &str = "narrow";
        let invalid = |message| Err(Error::InvalidArgument { op: OP, message });
        let [axis, _, ..] = *self.dims() else {
            return invalid(format!("shape {} has no axis but that of the blocks, which are whole", self.shape));
        };
        if start.checked_add(length).is_none_or(|end| end > axis) {
            return invalid(format!(
                "{length} entries from {start} on are not within the first of shape {}",
                self.shape
            ));
        }
        let each = self.dims()[1..self.shape.rank() - 1].iter().product::<usize>();
        let first = self.rows.start + start * each;
        let shape = self.shape.with_length(0, length);
        Ok(QuantizedTensor { shape, rows: first..first + length * each, ..self.clone() })
    }

    /// Returns the numbers as a tensor. In `f32` they are exactly those of the format's reference, the package `gguf`
    /// for Python; `f16` and `bf16` are rounded from these.
    ///
    /// ```
    /// # use marquetry::{BlockFormat, DType, Device, QuantizedTensor};
    /// # let device = Device::best()?;
    /// let bytes = [&[0x00, 0x3c][..], &[0x9f; 16]].concat();
    /// let weight = QuantizedTensor::from_bytes(&bytes, BlockFormat::Q4_0, 32, &device)?;
    /// let numbers = weight.dequantize(DType::F32)?.to_vec::<f32>()?;
    /// assert_eq!((numbers[0], numbers[31]), (7.0, 1.0));
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for dtypes other than `f32`, `f16` and `bf16`; [`Error::SizeOverflow`] for more
    /// numbers than a tensor holds.
    pub fn dequantize(&self, dtype: DType) -> Result<Tensor> {
        const OP: &str = "dequantize";
        check_output(dtype, OP)?;
        checked_elements(&self.shape, OP)?;
        let parts = self.slices().map(|slice| self.numbers(slice, slice.rows, dtype, None, OP));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        match &parts[..] {
            [] => Tensor::zeros(self.shape.clone(), dtype, &self.device),
            [whole] => whole.reshape(self.shape.clone()),
            _ => Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0)?.reshape(self.shape.clone()),
        }
    }

    /// Returns the rows of this table, a matrix, that `ids` selects, as [`Tensor::embedding`] does. Ids out of range
    /// yield NaN.
    ///
    /// ```
    /// # use marquetry::{BlockFormat, DType, Device, QuantizedTensor, Tensor};
    /// # let device = Device::best()?;
    /// let table = QuantizedTensor::from_bytes(&[0; 34 * 5], BlockFormat::Q8_0, (5, 32), &device)?;
    /// let ids = Tensor::new([[4u32, 0, 1]], &device)?;
    /// assert_eq!(table.embedding(&ids, DType::F16)?.dims(), [1, 3, 32]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::RankMismatch`] if this is not a matrix; [`Error::DeviceMismatch`]; [`Error::UnsupportedDType`] if `ids`
    /// does not hold integers, and for dtypes as in [`dequantize`](Self::dequantize); [`Error::InvalidArgument`] if
    /// `ids` selects rows of an empty table.
    pub fn embedding(&self, ids: &Tensor, dtype: DType) -> Result<Tensor> {
        const OP: &str = "embedding";
        check_output(dtype, OP)?;
        Domain::Indexes.check(ids.dtype(), OP)?;
        self.check_device(ids, OP)?;
        let [length, columns] = self.matrix(OP)?;
        let shape: Shape = ids.dims().iter().copied().chain([columns]).collect();
        let elements = checked_elements(&shape, OP)?;
        if elements == 0 {
            return Tensor::zeros(shape, dtype, &self.device);
        }
        if length == 0 {
            let message = format!("{} ids into a table of shape {}, which has no rows", ids.elem_count(), self.shape);
            return Err(Error::InvalidArgument { op: OP, message });
        }
        let ids = ids.flatten_all()?.contiguous()?;
        let slices: Vec<Slice> = self.slices().collect();
        // From the last part on: each part replaces the rows of all ids before its end.
        let mut end = length;
        let mut found: Option<Tensor> = None;
        for slice in slices.into_iter().rev() {
            let rows = self.numbers(slice, ids.elem_count(), dtype, Some((&ids, end - slice.rows)), OP)?;
            found = Some(match found {
                Some(later) => ids.lt(end as i64)?.unsqueeze(1)?.where_cond(&rows, &later)?,
                None => rows,
            });
            end -= slice.rows;
        }
        found.map_or_else(|| Tensor::zeros(shape.clone(), dtype, &self.device), |found| found.reshape(shape.clone()))
    }

    /// Returns the numbers of a slice of rows, or of those of its rows that indexes select. These count from the row
    /// that is given with them.
    fn numbers(
        &self,
        slice: Slice<'_>,
        rows: usize,
        dtype: DType,
        ids: Option<(&Tensor, usize)>,
        op: &'static str,
    ) -> Result<Tensor> {
        let row_blocks = self.row_blocks();
        let kernel =
            Dequantize { format: self.format, output: dtype, index: ids.map(|(ids, _)| ids.dtype()), epilogue: None };
        let table = ids.map(|(ids, start)| TableParameters { start, length: slice.rows, offset: ids.layout().offset });
        let parameters = Parameters { rows, matrix: slice.matrix(), table, epilogue: None };
        let mut inputs: SmallVec<[Buffer; 3]> = SmallVec::new();
        inputs.push(slice.part.buffer.clone());
        if let Some((ids, _)) = ids {
            inputs.push(ids.buffer()?.clone());
        }
        let shape = Shape::from((rows, self.columns()));
        let (groups, device) = (kernel.groups(rows, row_blocks), self.device.clone());
        Tensor::from_launch(PendingLaunch { kernel, parameters, groups, inputs, shape, dtype, device, op })
    }

    /// The length of the last axis.
    fn columns(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }

    fn row_blocks(&self) -> usize {
        self.columns() / self.format.block_elements()
    }

    /// Returns the two axes of a matrix.
    fn matrix(&self, op: &'static str) -> Result<[usize; 2]> {
        let expected = "2 (the quantised matrix)";
        self.dims().try_into().map_err(|_| Error::RankMismatch { op, expected, shape: self.shape.clone() })
    }

    fn check_device(&self, other: &Tensor, op: &'static str) -> Result<()> {
        if other.device() == &self.device {
            return Ok(());
        }
        Err(Error::DeviceMismatch { op, lhs: other.device().to_string(), rhs: self.device.to_string() })
    }

    /// The rows of the tensor, part by part.
    fn slices(&self) -> impl Iterator<Item = Slice<'_>> {
        let rows = self.rows.clone();
        let mut start = 0;
        self.parts.iter().filter_map(move |part| {
            let whole = start..start + part.rows;
            start = whole.end;
            let (first, end) = (rows.start.max(whole.start), rows.end.min(whole.end));
            (first < end).then(|| Slice { part, first: first - whole.start, rows: end - first })
        })
    }
}

impl fmt::Debug for QuantizedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QuantizedTensor({} {} on {})", self.format, self.shape, self.device)
    }
}

/// Runs `work`, which makes weights of a tensor. Inside a capture it runs at once: to the step, weights are constants.
fn made_now<T>(device: &Device, op: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let runtime = device.runtime();
    let is_captured = runtime.capture_id().is_some();
    runtime.suspend_capture(work).map_err(|error| match error {
        Error::InvalidArgument { op: "capture", .. } if is_captured => {
            let message = "the tensor is computed inside the capture; make the weights before it, from other tensors";
            Error::InvalidArgument { op, message: message.into() }
        }
        error => Error::named(op)(error),
    })
}

/// Checks that numbers can be computed in a dtype.
pub(crate) fn check_output(dtype: DType, op: &'static str) -> Result<()> {
    if matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        return Ok(());
    }
    Err(Error::UnsupportedDType { op, dtype, expected: "f32, f16 and bf16" })
}
