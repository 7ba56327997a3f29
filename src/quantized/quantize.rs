//! Quantisation on the device.

use super::QuantizedTensor;
use super::upload::parts;
use crate::base::block_format::BlockFormat;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::engine::launch::Launch;
use crate::kernels::quantize::{FORMATS, Parameters, Quantize};
use crate::tensor::Tensor;

impl Tensor {
    /// Returns the elements in blocks of a format along the last axis, as the package `gguf` for Python makes them. The
    /// formats are `Q4_0`, `Q4_1`, `Q5_0`, `Q5_1`, `Q8_0`, `TQ1_0`, `TQ2_0` and `MXFP4`: those that the package makes.
    /// Elements of `f16` and `bf16` are converted to `f32` first.
    ///
    /// The result is computed now. In a closure of [`Device::capture`](crate::Device::capture), only tensors from
    /// outside can be quantised.
    ///
    /// ```
    /// # use marquetry::{BlockFormat, DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let weight = Tensor::arange(-16f32, 16.0, &device)?.quantize(BlockFormat::Q8_0)?;
    /// let numbers = weight.dequantize(DType::F32)?.to_vec::<f32>()?;
    /// // A step is 16 / 127, so a number is off by half of that at most.
    /// assert!((0..32).all(|i| (numbers[i] - (i as f32 - 16.0)).abs() < 0.07));
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for dtypes other than `f32`, `f16` and `bf16`; [`Error::Unsupported`] for other
    /// formats, and if a row is larger than the device can bind; [`Error::InvalidArgument`] if the last axis is no
    /// multiple of a block, or if the tensor is computed inside a capture; [`Error::OutOfMemory`].
    pub fn quantize(&self, format: BlockFormat) -> Result<QuantizedTensor> {
        const OP: &str = "quantize";
        super::check_output(self.dtype(), OP)?;
        let device = self.device();
        if !FORMATS.contains(&format) {
            let feature =
                format!("quantisation to {format}; there are {}", FORMATS.map(|format| format.name()).join(", "));
            return Err(Error::Unsupported { feature, device: device.info().to_string() });
        }
        let each = format.block_elements();
        let Some((&columns, outer)) = self.dims().split_last().filter(|(columns, _)| columns.is_multiple_of(each))
        else {
            let message =
                format!("the last axis of shape {} is no multiple of {each}, the block of {format}", self.shape());
            return Err(Error::InvalidArgument { op: OP, message });
        };
        let (rows, row_blocks) = (outer.iter().product::<usize>(), columns / each);
        let parts = if rows * columns == 0 {
            Vec::new()
        } else {
            super::made_now(device, OP, || {
                let x = self.reshape((rows, columns))?.to_dtype(DType::F32)?.contiguous()?;
                let buffer = x.buffer()?;
                parts(format, rows, row_blocks, device, |rows, blocks, matrix| {
                    let (kernel, positions) = (Quantize { format }, matrix.positions(rows.len()));
                    let start = x.layout().offset + rows.start * columns;
                    let parameters = Parameters { rows: rows.len(), start, positions, matrix: matrix.clone() };
                    let groups = kernel.groups(positions);
                    device.runtime().run(Launch { kernel, buffers: &[buffer, blocks], parameters, groups })
                })
            })?
        };
        Ok(QuantizedTensor {
            format,
            shape: self.shape().clone(),
            device: device.clone(),
            parts: parts.into(),
            rows: 0..rows,
        })
    }
}
