//! The self-test of products on matrix units. Only the driver knows how lanes hold matrices, so such a kernel must
//! compute a product of known numbers correctly on each device, before it is used for others.

use super::QuantizedTensor;
use crate::base::block_format::BlockFormat;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::device::Device;
use crate::kernels::block_product::BlockTile;
use crate::kernels::encoding::Encoding;
use crate::kernels::matmul::{Matmul, MatmulTile, UnitLayout};
use crate::ops::verdict;
use crate::tensor::Tensor;
use half::f16;

const OP: &str = "matmul_quantized";

/// The whole numbers repeat after this many rows or vectors, and after this many elements.
const REPEAT: usize = 13;

/// Whether a tile computes a product of known numbers correctly. The test runs once per device and tile. All formats
/// take it for granted that lanes hold the same elements, so one of them is tested.
pub(super) fn is_trusted(device: &Device, tile: BlockTile) -> bool {
    let trial = Trial::of_few(tile);
    let sizes = [trial.vectors, trial.rows];
    let config = super::product::kernel(BlockFormat::Q4_0, (tile, device), sizes, [DType::F16, DType::F32]);
    verdict(device, &config, move |device, _| trial.check(&trial.few(device, tile).map_err(|error| error.to_string())?))
}

/// The same of a kernel that unpacks tiles.
pub(super) fn is_tile_trusted(device: &Device, kernel: &Matmul) -> bool {
    let kernel = Matmul { b: Encoding::Blocks(BlockFormat::Q4_0), output: DType::F32, ..kernel.clone() };
    verdict(device, &kernel, |device, kernel| {
        let trial = Trial::of_tile(kernel.tile);
        trial.check(&trial.tiled(device, kernel).map_err(|error| error.to_string())?)
    })
}

/// The parts of the depth that a trial computes.
fn parts(tile: MatmulTile) -> usize {
    if tile.has_parts() { 2 } else { 1 }
}

/// A product of small whole numbers: its sums are exact in `f32`.
struct Trial {
    vectors: usize,
    rows: usize,
    row_blocks: usize,
}

impl Trial {
    /// Several steps for each of 16 subgroups. Unless the tile needs whole steps, the last one is not whole.
    fn of_few(tile: BlockTile) -> Self {
        let whole = matches!(tile, BlockTile::Units { whole: true, .. });
        Trial { vectors: 16, rows: tile.rows() as usize + 20, row_blocks: if whole { 196 } else { 197 } }
    }

    /// A whole block and parts of others, and some steps of the depth.
    fn of_tile(tile: MatmulTile) -> Self {
        let [vectors, rows] = tile.block().map(|length| length as usize + 20);
        let whole = !matches!(tile, MatmulTile::MatrixUnits(_, UnitLayout { whole: false, .. }));
        Trial { vectors, rows, row_blocks: if whole { 16 * parts(tile) } else { 17 } }
    }

    fn columns(&self) -> usize {
        self.row_blocks * 32
    }

    /// A number of a vector.
    fn left(vector: usize, at: usize) -> i32 {
        ((vector * 3 + at * 5) % REPEAT) as i32 - 4
    }

    /// A number of a row, from -8 to 7.
    fn right(row: usize, at: usize) -> i32 {
        ((row * 7 + at * 3 + row / 8) % REPEAT) as i32 - 5
    }

    /// Returns the vectors and the matrix.
    fn operands(&self, device: &Device) -> Result<(Tensor, QuantizedTensor)> {
        let &Trial { vectors, rows, row_blocks } = self;
        let block = |row: usize, first: usize| {
            let digit = |at: usize| (Self::right(row, first + at) + 8) as u8;
            let bytes = (0..16).map(move |at| digit(at) | (digit(at + 16) << 4));
            f16::ONE.to_le_bytes().into_iter().chain(bytes).collect::<Vec<u8>>()
        };
        let bytes: Vec<u8> = (0..rows).flat_map(|row| (0..row_blocks).flat_map(move |i| block(row, i * 32))).collect();
        let columns = self.columns();
        let weight = QuantizedTensor::from_bytes(&bytes, BlockFormat::Q4_0, (rows, columns), device)?;
        let left = |at| f16::from_f32(Self::left(at / columns, at % columns) as f32);
        let x: Vec<_> = (0..vectors * columns).map(left).collect();
        Ok((Tensor::from_slice(&x, (vectors, columns), device)?, weight))
    }

    /// Computes the product with a tile for a few vectors.
    fn few(&self, device: &Device, tile: BlockTile) -> Result<Vec<f32>> {
        let (x, weight) = self.operands(device)?;
        let product = weight.by_parts(|slice| {
            let kernel = weight.kernel(tile, [self.vectors, slice.rows], [DType::F16, DType::F32]);
            weight.few(&x, slice, (kernel, None), DType::F32, OP)
        });
        product?.to_vec()
    }

    /// Computes the product with a kernel that unpacks tiles.
    fn tiled(&self, device: &Device, kernel: &Matmul) -> Result<Vec<f32>> {
        let (x, weight) = self.operands(device)?;
        let product = weight.by_parts(|slice| {
            let Some(problem) = weight.tiled_problem(&x, slice) else { unreachable!("a trial is small") };
            weight.run_tiled(&x, slice, &problem.split_equally(parts(kernel.tile)), kernel.clone(), DType::F32, OP)
        });
        product?.to_vec()
    }

    fn check(&self, found: &[f32]) -> Result<(), String> {
        // The sums repeat like the numbers.
        let sum = |at: usize| -> i32 {
            let number = |depth| Self::left(at / REPEAT, depth) * (((at + depth * 3) % REPEAT) as i32 - 5);
            (0..self.columns()).map(number).sum()
        };
        let sums: Vec<i32> = (0..REPEAT * REPEAT).map(sum).collect();
        for (i, &found) in found.iter().enumerate() {
            let (vector, row) = (i / self.rows, i % self.rows);
            let expected = sums[vector % REPEAT * REPEAT + (row * 7 + row / 8) % REPEAT];
            if found != expected as f32 {
                return Err(format!("vector {vector} by row {row} is {found}, not {expected}"));
            }
        }
        Ok(())
    }
}

#[cfg(all(test, has_vulkan, device_tests))]
mod tests {
    use super::*;
    use crate::kernels::matmul::{Along, Block, Reading, UnitReading};
    use crate::tuning::UnitBlock;

    /// Lines swapped with those a power of two apart, in both directions, are seen.
    fn check_that_swaps_are_seen(trial: &Trial, right: &[f32]) {
        let rows = trial.rows;
        assert_eq!(trial.check(right), Ok(()));
        for distance in [1, 2, 4, 8] {
            // Among whole eights of rows.
            let moved = |row: usize| if row < rows / 16 * 16 { row ^ distance } else { row };
            let swapped: Vec<f32> = (0..right.len()).map(|i| right[i / rows * rows + moved(i % rows)]).collect();
            assert!(trial.check(&swapped).is_err(), "rows {distance} apart");
            let moved = |vector: usize| if vector < trial.vectors / 16 * 16 { vector ^ distance } else { vector };
            let swapped: Vec<f32> = (0..right.len()).map(|i| right[moved(i / rows) * rows + i % rows]).collect();
            assert!(trial.check(&swapped).is_err(), "vectors {distance} apart");
        }
    }

    #[test]
    fn right_products_are_trusted_and_wrong_ones_are_not() {
        let device = Device::vulkan(0).unwrap();
        let tile = BlockTile::Lanes { members: 64, subgroup: None, own_rows: false };
        assert!(is_trusted(&device, tile));
        let trial = Trial { rows: 24, ..Trial::of_few(tile) };
        check_that_swaps_are_seen(&trial, &trial.few(&device, tile).unwrap());
        let message = trial.check(&[1.0]).unwrap_err();
        assert!(message.starts_with("vector 0 by row 0 is 1, not"), "{message}");
    }

    /// With a kernel that every device has.
    #[test]
    fn right_tiles_are_trusted_and_wrong_ones_are_not() {
        let device = Device::vulkan(0).unwrap();
        let kernel = |whole, quads| {
            let b = Reading::Quads(Along::Depth);
            let tile = MatmulTile::Workgroup(Block { b, whole, quads, ..Block::new([32, 32], [4, 4], 8) });
            let (a, b) = (Encoding::Dense(DType::F16), Encoding::Blocks(BlockFormat::Q8_0));
            Matmul { a, b, output: DType::F16, batch_rank: 0, windows: None, tile, epilogue: None }
        };
        for kernel in [kernel(true, true), kernel(false, true), kernel(true, false)] {
            assert!(is_tile_trusted(&device, &kernel), "{kernel:?}");
        }
        let kernel = Matmul { b: Encoding::Blocks(BlockFormat::Q4_0), output: DType::F32, ..kernel(true, true) };
        let trial = Trial::of_tile(kernel.tile);
        let right = trial.tiled(&device, &kernel).unwrap();
        check_that_swaps_are_seen(&trial, &right);
        // The last step of the depth is missing.
        let shorter = Trial { row_blocks: trial.row_blocks - 1, ..trial };
        assert!(shorter.check(&right).is_err());
    }

    #[test]
    fn what_does_not_compile_is_not_trusted() {
        let device = Device::vulkan(0).unwrap();
        assert!(device.info().features.matrix_units.f16.is_none(), "the device of the tests has matrix units");
        assert!(!is_trusted(&device, BlockTile::Units { subgroups: 4, whole: true }));
        let by_depth = UnitReading::aligned(Along::Depth);
        let layout = UnitLayout { unit: [16; 3], a: by_depth, b: by_depth, whole: true, parts: false, single: false };
        let tile = MatmulTile::MatrixUnits(UnitBlock::all()[0], layout);
        let (a, b) = (Encoding::Dense(DType::F16), Encoding::Blocks(BlockFormat::Q4_0));
        let kernel = Matmul { a, b, output: DType::F16, batch_rank: 0, windows: None, tile, epilogue: None };
        assert!(!is_tile_trusted(&device, &kernel));
    }
}
