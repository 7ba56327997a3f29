//! The self-test of products on matrix units. Only the driver knows how lanes hold matrices, so such a kernel must
//! compute a product of known numbers correctly on each device, before it is used for others.

use super::QuantizedTensor;
use crate::base::block_format::BlockFormat;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::device::Device;
use crate::kernels::block_product::BlockTile;
use crate::ops::verdict;
use crate::tensor::Tensor;
use half::f16;

/// The columns of the units.
const VECTORS: usize = 16;

/// The blocks of a row: several steps for each of 16 subgroups, and no multiple of the lanes that share a step.
const ROW_BLOCKS: usize = 197;

/// The whole numbers repeat after this many rows or vectors, and after this many elements.
const REPEAT: usize = 13;

/// Whether a tile computes a product of known numbers correctly. The test runs once per device and tile. All formats
/// are multiplied in the same way, so one of them is tested.
pub(super) fn is_trusted(device: &Device, tile: BlockTile) -> bool {
    let rows = tile.rows() as usize + 20;
    let most = tile.most(device.tuning().quantized.vectors);
    let config = super::product::kernel(BlockFormat::Q4_0, (tile, most), VECTORS, rows, [DType::F16, DType::F32]);
    verdict(device, &config, move |device, _| {
        let found = run(device, tile, rows).map_err(|error| error.to_string())?;
        check(&found, rows)
    })
}

/// A number of a vector.
fn left(vector: usize, at: usize) -> i32 {
    ((vector * 3 + at * 5) % REPEAT) as i32 - 4
}

/// A number of a row, from -8 to 7.
fn right(row: usize, at: usize) -> i32 {
    ((row * 7 + at * 3 + row / 8) % REPEAT) as i32 - 5
}

fn run(device: &Device, tile: BlockTile, rows: usize) -> Result<Vec<f32>> {
    let columns = ROW_BLOCKS * 32;
    let block = |row: usize, first: usize| {
        let digit = |at: usize| (right(row, first + at) + 8) as u8;
        let bytes = (0..16).map(move |at| digit(at) | (digit(at + 16) << 4));
        f16::ONE.to_le_bytes().into_iter().chain(bytes).collect::<Vec<u8>>()
    };
    let bytes: Vec<u8> = (0..rows).flat_map(|row| (0..ROW_BLOCKS).flat_map(move |i| block(row, i * 32))).collect();
    let weight = QuantizedTensor::from_bytes(&bytes, BlockFormat::Q4_0, (rows, columns), device)?;
    let x: Vec<_> = (0..VECTORS * columns).map(|at| f16::from_f32(left(at / columns, at % columns) as f32)).collect();
    let x = Tensor::from_slice(&x, (VECTORS, columns), device)?;
    let y = weight.by_parts(|slice| weight.few(&x, slice, DType::F32, tile, "matmul_quantized"))?;
    y.to_vec::<f32>()
}

fn check(found: &[f32], rows: usize) -> Result<(), String> {
    for (i, &found) in found.iter().enumerate() {
        let (vector, row) = (i / rows, i % rows);
        let expected: i32 = (0..ROW_BLOCKS * 32).map(|at| left(vector, at) * right(row, at)).sum();
        if found != expected as f32 {
            return Err(format!("vector {vector} by row {row} is {found}, not {expected}"));
        }
    }
    Ok(())
}

#[cfg(all(test, has_vulkan, device_tests))]
mod tests {
    use super::*;

    #[test]
    fn right_products_are_trusted_and_wrong_ones_are_not() {
        let device = Device::vulkan(0).unwrap();
        let tile = BlockTile::Lanes { members: 64, subgroup: None, own_rows: false };
        assert!(is_trusted(&device, tile));
        let right = run(&device, tile, 24).unwrap();
        assert_eq!(check(&right, 24), Ok(()));
        // Lines swapped with those a power of two apart, in both directions.
        for distance in [1, 2, 4, 8] {
            let rows: Vec<f32> = (0..right.len()).map(|i| right[i / 24 * 24 + ((i % 24) ^ distance) % 24]).collect();
            assert!(check(&rows, 24).is_err(), "rows {distance} apart");
            let vectors: Vec<f32> = (0..right.len()).map(|i| right[((i / 24) ^ distance) * 24 + i % 24]).collect();
            assert!(check(&vectors, 24).is_err(), "vectors {distance} apart");
        }
        let message = check(&[1.0], 24).unwrap_err();
        assert!(message.starts_with("vector 0 by row 0 is 1, not"), "{message}");
    }

    #[test]
    fn what_does_not_compile_is_not_trusted() {
        let device = Device::vulkan(0).unwrap();
        assert!(device.info().features.matrix_units.f16.is_none(), "the device of the tests has matrix units");
        assert!(!is_trusted(&device, BlockTile::Units { subgroups: 4 }));
    }
}
