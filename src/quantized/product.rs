//! Products with quantised matrices.

use super::{QuantizedTensor, Slice, check_output, self_test};
use crate::base::block_format::BlockFormat;
use crate::base::dtype::DType;
use crate::base::environment;
use crate::base::error::{Error, Result};
use crate::base::shape::{Shape, checked_elements};
use crate::kernels::block_product::{BlockProduct, BlockTile, Parameters};
use crate::kernels::blocks;
use crate::lazy::PendingLaunch;
use crate::ops::{subgroup_lanes, weighted_sum};
use crate::tensor::Tensor;
use crate::tuning;

impl Tensor {
    /// Returns the product of the vectors along the last axis and the rows of a quantised matrix, `x weight^T`. The
    /// weight has the shape `[out, in]`, as in a GGUF file. Sums are accumulated in `f32`.
    ///
    /// The numbers are exact, unless matrix units multiply them: then they and their scales are computed in this
    /// tensor's dtype. The weight stays packed. Some products of more than 16 vectors unpack it to a buffer first:
    /// those that have few results, and some on matrix units.
    ///
    /// ```
    /// # use marquetry::{BlockFormat, Device, QuantizedTensor, Tensor};
    /// # let device = Device::best()?;
    /// let row = |byte: u8| [&[0x00, 0x3c][..], &[byte; 32]].concat();
    /// let weight = QuantizedTensor::from_bytes(&[row(1), row(3)].concat(), BlockFormat::Q8_0, (2, 32), &device)?;
    /// let x = Tensor::arange(0f32, 32.0, &device)?;
    /// assert_eq!(x.matmul_quantized(&weight)?.to_vec::<f32>()?, [496.0, 1488.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::RankMismatch`] if this is a scalar or the weight is not a matrix; [`Error::ShapeMismatch`] if their
    /// last axes differ; [`Error::UnsupportedDType`] for dtypes other than `f32`, `f16` and `bf16`;
    /// [`Error::DeviceMismatch`].
    pub fn matmul_quantized(&self, weight: &QuantizedTensor) -> Result<Tensor> {
        weight.product(self, self.dtype(), "matmul_quantized")
    }

    /// Returns the same as [`matmul_quantized`](Self::matmul_quantized), but in `f32`, also for `f16` and `bf16`. The
    /// sums are not rounded to these dtypes, where they may even overflow.
    ///
    /// ```
    /// # use marquetry::{BlockFormat, DType, Device, QuantizedTensor, Tensor};
    /// # let device = Device::best()?;
    /// let row = |byte: u8| [&[0x00, 0x3c][..], &[byte; 32]].concat();
    /// let weight = QuantizedTensor::from_bytes(&[row(1), row(100)].concat(), BlockFormat::Q8_0, (2, 32), &device)?;
    /// let x = Tensor::full(127f32, 32, &device)?.to_dtype(DType::F16)?;
    /// // The largest `f16` is 65,504.
    /// assert_eq!(x.matmul_quantized_f32(&weight)?.to_vec::<f32>()?, [4064.0, 406_400.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`matmul_quantized`](Self::matmul_quantized).
    pub fn matmul_quantized_f32(&self, weight: &QuantizedTensor) -> Result<Tensor> {
        weight.product(self, DType::F32, "matmul_quantized_f32")
    }

    /// Returns the linear layer `x weight^T + bias` over the last axis, with a quantised weight of shape `[out, in]`.
    /// The bias has the shape `[out]` and the dtype of this tensor. `f16` and `bf16` are computed in `f32` and rounded
    /// once.
    ///
    /// ```
    /// # use marquetry::{BlockFormat, DType, Device, QuantizedTensor, Tensor};
    /// # let device = Device::best()?;
    /// let row = |byte: u8| [&[0x00, 0x3c][..], &[byte; 32]].concat();
    /// let weight = QuantizedTensor::from_bytes(&[row(1), row(3)].concat(), BlockFormat::Q8_0, (2, 32), &device)?;
    /// let (x, bias) = (Tensor::ones(32, DType::F32, &device)?, Tensor::new([0.5f32, 1.0], &device)?);
    /// assert_eq!(x.linear_quantized(&weight, Some(&bias))?.to_vec::<f32>()?, [32.5, 97.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`matmul_quantized`](Self::matmul_quantized), also for the bias; [`Error::DTypeMismatch`].
    pub fn linear_quantized(&self, weight: &QuantizedTensor, bias: Option<&Tensor>) -> Result<Tensor> {
        const OP: &str = "linear_quantized";
        let Some(bias) = bias else { return weight.product(self, self.dtype(), OP) };
        weight.check_device(bias, OP)?;
        self.check_same_dtype(bias, OP)?;
        let [rows, _] = weight.matrix(OP)?;
        if bias.dims() != [rows] {
            let hint = "the weight is [out, in], the bias [out]";
            let (lhs, rhs) = (weight.shape().clone(), bias.shape().clone());
            return Err(Error::ShapeMismatch { op: OP, lhs, rhs, hint });
        }
        // The product is rounded together with the bias.
        let product = weight.product(self, DType::F32, OP)?;
        weighted_sum(&[(&product, 1.0), (bias, 1.0)], self, product.shape(), OP)
    }
}

impl QuantizedTensor {
    /// Returns the product of the vectors along the last axis and this matrix's rows, rounded to a dtype.
    fn product(&self, x: &Tensor, output: DType, op: &'static str) -> Result<Tensor> {
        self.check_device(x, op)?;
        check_output(x.dtype(), op)?;
        let [rows, columns] = self.matrix(op)?;
        let Some((&last, outer)) = x.dims().split_last() else {
            return Err(Error::RankMismatch { op, expected: "1 or more", shape: x.shape().clone() });
        };
        if last != columns {
            let hint = "the last axes must be equal: the weight is [out, in]";
            return Err(Error::ShapeMismatch { op, lhs: x.shape().clone(), rhs: self.shape.clone(), hint });
        }
        let shape: Shape = outer.iter().copied().chain([rows]).collect();
        if checked_elements(&shape, op)? == 0 || columns == 0 {
            return Tensor::zeros(shape, output, &self.device);
        }
        let vectors: usize = outer.iter().product();
        let product = if vectors <= self.device.tuning().quantized.few {
            let x = loadable(&x.reshape((vectors, columns))?)?;
            let tile = self.tile(vectors, rows, x.dtype());
            self.by_parts(|slice| self.few(&x, slice, output, tile, op))?
        } else {
            let x = x.reshape((vectors, columns))?;
            self.by_parts(|slice| {
                if let Some(product) = self.tiled(&x, slice, output, op)? {
                    return Ok(product);
                }
                let weight = self.numbers(slice, slice.rows, x.dtype(), None, op)?;
                x.product(&weight.t()?, output, op)
            })?
        };
        product.reshape(shape)
    }

    /// Joins the products with the parts of the matrix.
    pub(super) fn by_parts(&self, product: impl Fn(Slice<'_>) -> Result<Tensor>) -> Result<Tensor> {
        let products = self.slices().map(product).collect::<Result<Vec<_>>>()?;
        match products {
            mut one if one.len() == 1 => Ok(one.remove(0)),
            several => Tensor::cat(&several.iter().collect::<Vec<_>>(), 1),
        }
    }

    /// Chooses the tile of a product with a few vectors.
    fn tile(&self, vectors: usize, rows: usize, dtype: DType) -> BlockTile {
        let (device, tuning) = (&self.device, &self.device.tuning().quantized);
        let units = &device.tuning().units;
        let subgroups = units.subgroups * tuning::compute_units(device.info().compute_units);
        let tile = BlockTile::on_units(rows, self.row_blocks() * blocks::units(self.format) as usize, subgroups);
        let has_units = units.vectors && device.info().features.matrix_units.multiply(DType::F16, [16; 3]);
        let may_use = has_units && !environment::settings().force.no_units;
        if may_use && BlockTile::units_take(dtype, self.format) && self_test::is_trusted(device, tile) {
            return tile;
        }
        let members = if vectors == 1 { tuning.lanes_of_one } else { tuning.lanes_of_several };
        let subgroup = subgroup_lanes(device).filter(|&lanes| members.is_multiple_of(lanes));
        BlockTile::Lanes { members, subgroup, own_rows: tuning.own_rows }
    }

    /// Multiplies a few vectors, as [`loadable`] returns them.
    pub(super) fn few(
        &self,
        x: &Tensor,
        slice: Slice<'_>,
        output: DType,
        tile: BlockTile,
        op: &'static str,
    ) -> Result<Tensor> {
        let (vectors, rows) = (x.dims()[0], slice.rows);
        let most = tile.most(self.device.tuning().quantized.vectors);
        let kernel = kernel(self.format, (tile, most), vectors, rows, [x.dtype(), output]);
        let load = 16 / x.dtype().size_in_bytes();
        let parameters = Parameters {
            vectors,
            rows,
            matrix: slice.matrix(),
            start: x.layout().offset / load,
            stride: if vectors == 1 { 0 } else { x.strides()[0] as usize / load },
            epilogue: None,
        };
        let inputs = [x.buffer()?.clone(), slice.part.buffer.clone()].into_iter().collect();
        let (groups, shape, device) = (kernel.groups(vectors, rows), Shape::from((vectors, rows)), self.device.clone());
        Tensor::from_launch(PendingLaunch { kernel, parameters, groups, inputs, shape, dtype: output, device, op })
    }
}

/// Returns the kernel that multiplies a few vectors, at most `most` in a workgroup, and the rows of a matrix.
pub(super) fn kernel(
    format: BlockFormat,
    (tile, most): (BlockTile, u32),
    vectors: usize,
    rows: usize,
    [dtype, output]: [DType; 2],
) -> BlockProduct {
    let groups = vectors.div_ceil(most as usize);
    let stored_quads = rows.is_multiple_of(4);
    BlockProduct {
        format,
        dtype,
        count: vectors.div_ceil(groups) as u32,
        is_all: groups == 1,
        output: if stored_quads { output } else { DType::F32 },
        stored_quads,
        tile,
        epilogue: None,
    }
}

/// Returns vectors that are read 16 bytes at a time: if they do not lie so, a copy.
fn loadable(x: &Tensor) -> Result<Tensor> {
    let load = 16 / x.dtype().size_in_bytes();
    let (lies, begins) = (x.strides()[1] == 1, x.layout().offset.is_multiple_of(load));
    let follows = x.dims()[0] == 1 || usize::try_from(x.strides()[0]).is_ok_and(|step| step.is_multiple_of(load));
    if lies && begins && follows { Ok(x.clone()) } else { x.copied() }
}
