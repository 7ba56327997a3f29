//! Products with many vectors whose kernel unpacks the matrix as it loads a tile.

use super::{QuantizedTensor, Slice, self_test};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::layout::Layout;
use crate::base::shape::Shape;
use crate::kernels::blocks::fit_halves;
use crate::kernels::encoding::Encoding;
use crate::kernels::matmul::{Along, Block, Matmul, MatmulTile, Parameters, Reading, UnitReading};
use crate::lazy::PendingLaunch;
use crate::ops::matrix_units::{self, Cut};
use crate::ops::{BatchedProduct, portable_tile, precision};
use crate::tensor::Tensor;
use crate::tuning::{Fragments, UnitBlock};

/// A byte of a number is written once, and read once from a cache, before a product reads the number.
const UNPACKED_BYTES: usize = 2 * 2;

impl QuantizedTensor {
    /// Returns the product of a matrix's rows and some of this one's, rounded to a dtype. `None` if it is better to
    /// unpack the numbers first.
    pub(super) fn tiled(
        &self,
        x: &Tensor,
        slice: Slice<'_>,
        output: DType,
        op: &'static str,
    ) -> Result<Option<Tensor>> {
        let problem = self.tiled_problem(x, slice);
        let kernel = problem.as_ref().and_then(|problem| self.tiled_kernel(x.dtype(), problem, output));
        let (Some(problem), Some((kernel, parts))) = (problem, kernel) else { return Ok(None) };
        self.run_tiled(x, slice, &problem.split_equally(parts), kernel, output, op).map(Some)
    }

    /// Returns the product as kernels see it. `None` if they cannot count its numbers in 32 bits.
    pub(super) fn tiled_problem(&self, x: &Tensor, slice: Slice<'_>) -> Option<BatchedProduct> {
        let columns = x.dims()[1];
        (slice.part.rows).checked_mul(columns).filter(|&end| u32::try_from(end).is_ok())?;
        let strides = [1, columns as isize].as_slice().into();
        let weight = Layout { shape: (columns, slice.rows).into(), strides, offset: 0 };
        Some(BatchedProduct::new(x.layout(), &weight, [x.dims()[0], slice.rows, columns]))
    }

    /// Chooses the kernel of a product with vectors of a dtype, and the number of parts of the depth.
    fn tiled_kernel(&self, dtype: DType, problem: &BatchedProduct, output: DType) -> Option<(Matmul, usize)> {
        let (device, [_, n, _]) = (&self.device, problem.sizes);
        let kernel = |tile: MatmulTile, output| Matmul {
            a: Encoding::Dense(dtype),
            b: Encoding::Blocks(self.format),
            output,
            batch_rank: usize::from(tile.has_parts()),
            windows: None,
            tile,
            epilogue: None,
        };
        if precision::is_less(device, dtype, problem.sizes) {
            return None;
        }
        if matrix_units::unit(device, dtype, problem.sizes).is_some() {
            let (tile, parts) = self.unit_tile(dtype, problem)?;
            let kernel = kernel(tile, output);
            return (kernel.row(n) == n && self_test::is_tile_trusted(device, &kernel)).then_some((kernel, parts));
        }
        let tile = portable_tile(device, DType::F32, problem);
        let MatmulTile::Workgroup(Block { b: Reading::Quads(Along::Depth), quads, .. }) = tile else { return None };
        // Few results are computed in parts of the depth, which several kernels add up.
        (problem.parts(device, tile) == 1).then(|| (kernel(tile, if quads { output } else { DType::F32 }), 1))
    }

    /// Chooses the tile on matrix units, which multiply halves, and the number of parts of the depth.
    fn unit_tile(&self, dtype: DType, problem: &BatchedProduct) -> Option<(MatmulTile, usize)> {
        if dtype != DType::F16 || !fit_halves(self.format) {
            return None;
        }
        let (device, units) = (&self.device, &self.device.tuning().units);
        let unit = matrix_units::unit(device, dtype, problem.sizes)?;
        let cuts = matrix_units::cuts(device.info(), units, dtype, problem, unit);
        let unpacks = |cut: &&Cut| match cut.tile {
            MatmulTile::MatrixUnits(UnitBlock { fragments: Fragments::None, .. }, layout) => {
                [layout.a, layout.b] == [UnitReading::aligned(Along::Depth); 2] && (layout.whole || !layout.parts)
            }
            _ => false,
        };
        let found = cuts.iter().find(unpacks)?;
        let [_, rows, columns] = problem.sizes;
        let unpacking = (UNPACKED_BYTES as f64) * rows as f64 * columns as f64 / units.bandwidth as f64;
        (found.time <= cuts.first()?.time + unpacking).then_some((found.tile, found.splits))
    }

    pub(super) fn run_tiled(
        &self,
        x: &Tensor,
        slice: Slice<'_>,
        problem: &BatchedProduct,
        kernel: Matmul,
        output: DType,
        op: &'static str,
    ) -> Result<Tensor> {
        let device = self.device.clone();
        let parameters = Parameters { matrix: Some(slice.matrix()), ..problem.all_parameters(None) };
        let groups = problem.groups(&device, &kernel)?;
        let inputs = [x.buffer()?.clone(), slice.part.buffer.clone()].into_iter().collect();
        let shape = Shape::from((x.dims()[0], slice.rows));
        Tensor::from_launch(PendingLaunch { kernel, parameters, groups, inputs, shape, dtype: output, device, op })
    }
}
