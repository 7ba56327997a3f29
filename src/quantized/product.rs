//! Products with quantised matrices.

use super::{QuantizedTensor, Slice, check_output, self_test};
use crate::base::block_format::BlockFormat;
use crate::base::dtype::DType;
use crate::base::environment;
use crate::base::error::{Error, Result};
use crate::base::shape::{Shape, checked_elements};
use crate::base::word::Word;
use crate::device::Device;
use crate::kernels::Family;
use crate::kernels::block_product::{BlockProduct, BlockTile, Parameters};
use crate::kernels::blocks;
use crate::kernels::expr::UnaryOp;
use crate::lazy::PendingLaunch;
use crate::ops::{MOST_AROUND, subgroup_lanes, weighted_sum};
use crate::tensor::Tensor;
use crate::tuning::{self, UnitBlock};

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

    /// Returns [`linear_quantized`](Self::linear_quantized) without a bias, of the [`rms_norm`](Self::rms_norm) with a
    /// weight and `eps` if there is a norm. With a gate, the outputs are gates and what they gate, which are
    /// multiplied. `None` if no kernel computes all of it at once, or if something is wrong.
    pub(crate) fn linear_quantized_at_once(
        &self,
        norm: Option<(&Tensor, f64)>,
        weight: &QuantizedTensor,
        gate: Option<UnaryOp>,
    ) -> Result<Option<Tensor>> {
        const OP: &str = "linear_quantized";
        let &[rows, columns] = weight.dims() else { return Ok(None) };
        let (device, dtype, gates) = (self.device(), self.dtype(), if gate.is_some() { 2 } else { 1 });
        if self.dims().last() != Some(&columns) || self.elem_count() == 0 || weight.device != *device {
            return Ok(None);
        }
        let vectors = self.elem_count() / columns;
        let norm_fits = |(factors, _): (&Tensor, f64)| {
            (factors.dims(), factors.dtype(), factors.device()) == (&[columns][..], dtype, device)
                && factors.layout().is_dense()
                && vectors <= MOST_AROUND
                && subgroup_lanes(device) == Some(UnitBlock::LANES)
        };
        let fits = vectors <= device.tuning().quantized.few && rows.is_multiple_of(gates) && norm.is_none_or(norm_fits);
        // Gates and what they gate may lie in different parts.
        let mut slices = weight.slices();
        let (true, Some(slice), None) = (fits, slices.next(), slices.next()) else { return Ok(None) };
        let Some(tile) = weight.units(rows, dtype, norm.is_some()) else { return Ok(None) };
        let kernel = BlockProduct {
            normalized: norm.is_some().then_some((columns / LOADED_HALVES) as u32),
            gate,
            ..weight.kernel(tile, [vectors, rows / gates], [dtype; 2])
        };
        // Each workgroup normalises for itself. If they took turns, a kernel that does it once would be faster.
        let subgroups = kernel.groups(vectors, rows / gates) * (kernel.workgroup() / UnitBlock::LANES) as usize;
        let run_at_once = norm.is_none() || subgroups <= weight.busy_subgroups();
        let memory_fits =
            kernel.memory_on_units().is_some_and(|bytes| bytes <= device.info().limits.max_workgroup_memory);
        if !run_at_once || !memory_fits {
            return Ok(None);
        }
        let x = loadable(&self.reshape((vectors, columns))?)?;
        let product = weight.few(&x, slice, (kernel, norm), dtype, OP)?;
        let outer = &self.dims()[..self.rank() - 1];
        product.reshape(outer.iter().copied().chain([rows / gates]).collect::<Shape>()).map(Some)
    }
}

/// Numbers of `f16` in 16 bytes.
const LOADED_HALVES: usize = 8;

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
            self.by_parts(|slice| {
                let kernel = self.kernel(tile, [vectors, slice.rows], [x.dtype(), output]);
                self.few(&x, slice, (kernel, None), output, op)
            })?
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

    /// The subgroups of products on matrix units that keep the device busy.
    fn busy_subgroups(&self) -> usize {
        self.device.tuning().units.subgroups * tuning::compute_units(self.device.info().compute_units)
    }

    /// Returns the tile of a product with a few vectors on matrix units, if these multiply them. The workgroups of a
    /// kernel that normalises vectors run at once if they can.
    fn units(&self, rows: usize, dtype: DType, normalized: bool) -> Option<BlockTile> {
        let (device, units) = (&self.device, &self.device.tuning().units);
        let row_units = self.row_blocks() * blocks::units(self.format) as usize;
        let tile = BlockTile::on_units(rows, row_units, self.busy_subgroups(), normalized);
        let has_units = units.vectors && device.info().features.matrix_units.multiply(DType::F16, [16; 3]);
        let may_use = has_units && !environment::settings().force.no_units;
        let is_trusted = || BlockTile::units_take(dtype, self.format) && self_test::is_trusted(device, tile);
        (may_use && is_trusted()).then_some(tile)
    }

    /// Chooses the tile of a product with a few vectors.
    fn tile(&self, vectors: usize, rows: usize, dtype: DType) -> BlockTile {
        if let Some(tile) = self.units(rows, dtype, false) {
            return tile;
        }
        let tuning = &self.device.tuning().quantized;
        let members = if vectors == 1 { tuning.lanes_of_one } else { tuning.lanes_of_several };
        let subgroup = subgroup_lanes(&self.device).filter(|&lanes| members.is_multiple_of(lanes));
        BlockTile::Lanes { members, subgroup, own_rows: tuning.own_rows }
    }

    /// Returns the kernel that multiplies a few vectors, and rows of the matrix.
    pub(super) fn kernel(&self, tile: BlockTile, sizes: [usize; 2], dtypes: [DType; 2]) -> BlockProduct {
        kernel(self.format, (tile, &self.device), sizes, dtypes)
    }

    /// Multiplies a few vectors, as [`loadable`] returns them. A norm has a weight that begins its buffer, and `eps`.
    pub(super) fn few(
        &self,
        x: &Tensor,
        slice: Slice<'_>,
        (kernel, norm): (BlockProduct, Option<(&Tensor, f64)>),
        output: DType,
        op: &'static str,
    ) -> Result<Tensor> {
        let (vectors, rows) = (x.dims()[0], slice.rows / kernel.rows_of_result() as usize);
        let load = 16 / x.dtype().size_in_bytes();
        let parameters = Parameters {
            vectors,
            rows,
            matrix: slice.matrix(),
            start: x.layout().offset / load,
            stride: if vectors == 1 { 0 } else { x.strides()[0] as usize / load },
            eps: norm.map(|(_, eps)| Word::of(eps, DType::F32, op)).transpose()?,
            epilogue: None,
        };
        let weight = norm.map(|(weight, _)| weight.buffer().cloned()).transpose()?;
        let inputs = [x.buffer()?.clone()].into_iter().chain(weight).chain([slice.part.buffer.clone()]).collect();
        let (groups, shape, device) = (kernel.groups(vectors, rows), Shape::from((vectors, rows)), self.device.clone());
        Tensor::from_launch(PendingLaunch { kernel, parameters, groups, inputs, shape, dtype: output, device, op })
    }
}

/// Returns the kernel that multiplies some vectors and rows of a matrix, from a dtype to a dtype.
pub(super) fn kernel(
    format: BlockFormat,
    (tile, device): (BlockTile, &Device),
    [vectors, rows]: [usize; 2],
    [dtype, output]: [DType; 2],
) -> BlockProduct {
    let most = tile.most(device.tuning().quantized.vectors);
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
        normalized: None,
        gate: None,
        norm_of_results: None,
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
