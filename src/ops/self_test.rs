//! Self-tests of the kernels on matrix units. Only the driver knows how lanes hold matrices, and few drivers have been
//! seen. So each such kernel must compute a product of known numbers correctly on each device, before it is used for
//! others.

use super::batched_product::{BatchedProduct, Operand};
use super::window::Window;
use crate::base::dtype::{DType, Element};
use crate::base::error::Result;
use crate::device::Device;
use crate::kernels::Family;
use crate::kernels::matmul::{Along, Matmul, MatmulTile, UnitReading, UnitVectors, Windows, WindowsParameters};
use crate::lazy::allocate;
use crate::tensor::Tensor;
use crate::tuning::Fragments;
use half::{bf16, f16};
use smallvec::SmallVec;

const OP: &str = "matmul";

/// Whether a kernel has computed a product of known numbers correctly. The test runs once per device; a kernel that
/// fails is switched off.
pub(super) fn is_trusted(device: &Device, config: &Matmul) -> bool {
    verdict(device, config, |device, config| {
        let trial = Trial::new(config);
        let found = trial.run(device, config).map_err(|error| error.to_string())?;
        trial.check(config.output, &found)
    })
}

/// Whether a kernel passes a trial, which says what is wrong. It runs once per device.
pub(crate) fn verdict<F: Family + Clone + 'static>(
    device: &Device,
    config: &F,
    trial: impl FnOnce(&Device, &F) -> Result<(), String> + 'static,
) -> bool {
    let (tested, kernel) = (device.clone(), config.clone());
    device.runtime().verdict(&config.clone().into(), F::generate, move || {
        let outcome = trial(&tested, &kernel);
        if let Err(reason) = &outcome {
            let (device, kernel) = (tested.info(), kernel.name());
            log::warn!("{device}: the kernel `{kernel}` is switched off, another one is used instead: {reason}");
        }
        outcome.is_ok()
    })
}

/// A product `a b` of small whole numbers. They repeat every 7 rows and every 11 columns, so that a few sums tell all
/// others. Still, no rows or columns that a kernel could mistake for one another are alike. Most sums are larger than
/// 2048, so that `f16` and `bf16` have to round them.
struct Trial {
    sizes: [usize; 3],
    a: UnitReading,
    b: UnitReading,
}

const ROWS: usize = 7;
const COLUMNS: usize = 11;

impl Trial {
    /// Returns a product that fills one block, begins others in both directions, and takes a few steps of the depth.
    fn new(config: &Matmul) -> Trial {
        let [rows, columns] = config.tile.block().map(|length| length as usize);
        let aligned = [Along::Depth, Along::Other].map(UnitReading::aligned);
        // Lines of halves may end anywhere.
        let any_length = config.dtype().size_in_bytes() == 2 && config.windows.is_none_or(|windows| windows.loose);
        let (depth, [a, b], any_columns, any_length) = match config.tile {
            MatmulTile::MatrixUnits(block, layout) => {
                let parts = if layout.parts { 2 } else { 1 };
                let depth = (3 * block.depth as usize / config.dtype().size_in_bytes()).max(512) * parts;
                let beyond = if any_length { 13 } else { 16 };
                let depth = if layout.whole { depth } else { depth + beyond };
                // The last channels of loose windows are missing.
                let depth = if config.is_of_loose_windows() { depth.next_multiple_of(8) - 3 } else { depth };
                // Such a block at the edge is moved back, by whole vectors.
                let moves = block.fragments == Fragments::All;
                (depth, [layout.a, layout.b], !moves, any_length && !moves)
            }
            MatmulTile::UnitVectors(vectors) => {
                let steps = (vectors.step() * vectors.subgroups * 2) as usize;
                let readings = [Along::Depth, vectors.along].map(UnitReading::aligned);
                (if vectors.whole { steps } else { steps + 8 }, readings, true, false)
            }
            _ => (64, aligned, true, false),
        };
        let beyond =
            |side: UnitReading| if any_length || (side.along == Along::Depth && any_columns) { 17 } else { 16 };
        let beyond_columns = match config.tile {
            // Rows of other lengths are not stored in quads.
            MatmulTile::UnitVectors(UnitVectors { stored_quads: true, along: Along::Depth, .. }) => 20,
            _ => beyond(b),
        };
        Trial { sizes: [rows + beyond(a), columns + beyond_columns, depth], a, b }
    }

    fn a(row: usize, depth: usize) -> usize {
        (row * 3 + depth * 5) % ROWS
    }

    fn b(depth: usize, column: usize) -> usize {
        (depth * 2 + column * 3) % COLUMNS
    }

    /// Returns a number of either sign, if the dtype has signs. The mean is not 0, so that every step of the depth
    /// counts.
    fn number(dtype: DType, number: usize, count: usize) -> i32 {
        let smallest = if dtype == DType::U8 { 0 } else { -(count as i32 / 5) };
        number as i32 + smallest
    }

    /// Computes the product with the kernel.
    fn run(&self, device: &Device, config: &Matmul) -> Result<Vec<f64>> {
        let [m, n, k] = self.sizes;
        let dtype = config.dtype();
        // Elements of `a` have a row and a depth, those of `b` a column and a depth.
        let left = |i, p| Self::number(dtype, Self::a(i, p), ROWS);
        let right = |j, p| Self::number(dtype, Self::b(p, j), COLUMNS);
        let (a, a_strides) = operand(device, dtype, self.a, [m, k], left)?;
        let (b, b_strides) = operand(device, dtype, self.b, [n, k], right)?;
        // Parts of the depth are an axis of the batch.
        let parts = if config.tile.has_parts() { 2 } else { 1 };
        let batch_rank = config.batch_rank + 1 - parts;
        let place = |reading: UnitReading, [row, column]: [usize; 2]| Operand {
            offset: offset(reading),
            batch: std::iter::repeat_n(0, batch_rank).collect(),
            row: row as isize,
            column: column as isize,
        };
        // Each row is a window of one tap, and the tensor is one image with one axis.
        let channels = if config.is_of_loose_windows() { k.next_multiple_of(8) } else { k };
        let windows = config.windows.map(|Windows { axes, loose }| {
            let mut windows: SmallVec<_> = (0..axes).map(|_| Window::TRIVIAL.parameters(1)).collect();
            let mut strides: SmallVec<_> = (0..=axes).map(|_| 0).collect();
            windows[axes - 1] = Window { input: m, ..Window::TRIVIAL }.parameters(m);
            strides[axes] = a_strides[0] as isize;
            WindowsParameters { channels, present: loose.then_some(k), windows, strides }
        });
        let problem = BatchedProduct {
            windows,
            eps: None,
            behind_gates: None,
            last_depth: None,
            sizes: [m, n, channels],
            lengths: std::iter::repeat_n(1, batch_rank).collect(),
            // Windows have strides of their own.
            lhs: place(self.a, if config.windows.is_some() { [0, 0] } else { a_strides }),
            rhs: place(self.b, [b_strides[1], b_strides[0]]),
        };
        let shape = (m, config.row(n)).into();
        let y = allocate(&shape, config.output, device, OP)?;
        let Some(depths) = problem.part_depths(parts, config.tile.depth_step(dtype.size_in_bytes())) else {
            unreachable!("a trial has some steps for each part")
        };
        problem.split(parts, depths).launch(device, config.clone(), &[a.buffer()?, b.buffer()?, &y], None)?;
        let y = Tensor::from_buffer(y, shape, config.output, device);
        fn numbers<T: Element>(y: &Tensor) -> Result<Vec<f64>> {
            Ok(y.to_vec::<T>()?.into_iter().map(T::to_f64).collect())
        }
        let rows = match config.output {
            DType::F16 => numbers::<f16>(&y),
            DType::BF16 => numbers::<bf16>(&y),
            DType::F32 => numbers::<f32>(&y),
            DType::I32 => numbers::<i32>(&y),
            _ => numbers::<u32>(&y),
        }?;
        Ok(rows.chunks(config.row(n)).flat_map(|row| &row[..n]).copied().collect())
    }

    /// Compares a product, rounded to a dtype, with the expected one.
    fn check(&self, dtype: DType, found: &[f64]) -> Result<(), String> {
        let [m, n, k] = self.sizes;
        let factors = if dtype == DType::U32 { DType::U8 } else { dtype };
        let sum = |i, j| -> i32 {
            let product =
                |p| Self::number(factors, Self::a(i, p), ROWS) * Self::number(factors, Self::b(p, j), COLUMNS);
            (0..k).map(product).sum()
        };
        let rounded = |sum: i32| match dtype {
            DType::F16 => f16::from_f32(sum as f32).to_f64(),
            DType::BF16 => bf16::from_f32(sum as f32).to_f64(),
            _ => f64::from(sum),
        };
        let sums: Vec<f64> = (0..ROWS * COLUMNS).map(|at| rounded(sum(at / COLUMNS, at % COLUMNS))).collect();
        if found.len() != m * n {
            return Err(format!("{} elements instead of {m} x {n}", found.len()));
        }
        for (at, &found) in found.iter().enumerate() {
            let (row, column) = (at / n, at % n);
            let expected = sums[row % ROWS * COLUMNS + column % COLUMNS];
            if found != expected {
                return Err(format!(
                    "row {row}, column {column} of a product {m} x {n} x {k}: {found}, not {expected}"
                ));
            }
        }
        Ok(())
    }
}

/// Where an operand begins, as an index of elements.
fn offset(reading: UnitReading) -> usize {
    if reading.loose { 5 } else { 0 }
}

/// Returns an operand whose lines lie as they are read, and its strides across and along the depth. Lines that begin
/// anywhere are an odd distance apart, others a multiple of 16 bytes.
fn operand(
    device: &Device,
    dtype: DType,
    reading: UnitReading,
    [across, depth]: [usize; 2],
    number: impl Fn(usize, usize) -> i32,
) -> Result<(Tensor, [usize; 2])> {
    let (lines, length) = if reading.along == Along::Depth { (across, depth) } else { (depth, across) };
    let vector = 16 / dtype.size_in_bytes();
    let pitch = if reading.loose { (length + 2) | 1 } else { length.next_multiple_of(vector) };
    // Elements between lines are not zero.
    let numbers = (0..offset(reading) + lines * pitch).map(|at| {
        let at = at.saturating_sub(offset(reading));
        let (line, inside) = (at / pitch, at % pitch);
        if reading.along == Along::Depth { number(line, inside) } else { number(inside, line) }
    });
    fn upload<T: Element>(numbers: impl Iterator<Item = T>, device: &Device) -> Result<Tensor> {
        let numbers: Vec<T> = numbers.collect();
        Tensor::from_slice(&numbers, numbers.len(), device)
    }
    match dtype {
        DType::F16 => upload(numbers.map(|number| f16::from_f32(number as f32)), device),
        DType::BF16 => upload(numbers.map(|number| bf16::from_f32(number as f32)), device),
        DType::I8 => upload(numbers.map(|number| number as i8), device),
        DType::U8 => upload(numbers.map(|number| number as u8), device),
        _ => upload(numbers.map(|number| number as f32), device),
    }
    .map(|x| (x, if reading.along == Along::Depth { [pitch, 1] } else { [1, pitch] }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::encoding::Encoding;

    fn trial() -> Trial {
        Trial { sizes: [80, 33, 72], a: UnitReading::aligned(Along::Depth), b: UnitReading::aligned(Along::Other) }
    }

    /// Computes the product by its definition.
    fn product(trial: &Trial, dtype: DType) -> Vec<f64> {
        let [m, n, k] = trial.sizes;
        let element = |at: usize| {
            let product = |p| {
                let a = Trial::number(dtype, Trial::a(at / n, p), ROWS);
                a * Trial::number(dtype, Trial::b(p, at % n), COLUMNS)
            };
            f64::from((0..k).map(product).sum::<i32>())
        };
        (0..m * n).map(element).collect()
    }

    #[test]
    fn a_wrong_product_is_seen() {
        let trial = trial();
        let [m, n, _] = trial.sizes;
        let right = product(&trial, DType::I32);
        assert_eq!(trial.check(DType::I32, &right), Ok(()));
        let mut wrong = right.clone();
        wrong[5 * n + 7] += 1.0;
        let message = trial.check(DType::I32, &wrong).unwrap_err();
        assert!(message.starts_with("row 5, column 7 of a product 80 x 33 x 72"), "{message}");
        // Rows or columns swapped with those a power of two apart.
        for distance in [1, 2, 4, 8, 16, 32, 64] {
            let rows: Vec<f64> = (0..m * n).map(|at| right[((at / n) ^ distance) % m * n + at % n]).collect();
            assert!(trial.check(DType::I32, &rows).is_err(), "rows {distance} apart");
            if distance < 32 {
                let columns: Vec<f64> = (0..m * n).map(|at| right[at / n * n + ((at % n) ^ distance) % n]).collect();
                assert!(trial.check(DType::I32, &columns).is_err(), "columns {distance} apart");
            }
        }
        // The last step of the depth is missing, or nothing is there.
        let shorter = Trial { sizes: [m, n, 64], ..trial };
        assert!(trial.check(DType::I32, &product(&shorter, DType::I32)).is_err());
        assert!(trial.check(DType::I32, &vec![0.0; m * n]).is_err());
        assert!(trial.check(DType::I32, &right[1..]).is_err());
        // Signed bytes instead of unsigned ones.
        assert!(trial.check(DType::U32, &right).is_err());
        assert_eq!(trial.check(DType::U32, &product(&trial, DType::U8)), Ok(()));
    }

    /// The kernels take it for granted.
    #[test]
    fn trials_of_few_vectors_have_columns_that_can_be_read_and_stored_together() {
        for vectors in UnitVectors::samples() {
            let tile = MatmulTile::UnitVectors(vectors);
            let [_, n, k] = Trial::new(&Matmul::of(Encoding::Dense(DType::F16), DType::F32, 0, tile)).sizes;
            let read = if vectors.along == Along::Other { 8 } else { 1 };
            assert!(n.is_multiple_of(tile.stored_together() as usize) && n.is_multiple_of(read), "{n}: {vectors:?}");
            assert_eq!(k.is_multiple_of(vectors.step() as usize), vectors.whole, "{k}: {vectors:?}");
        }
    }

    #[test]
    fn sums_are_rounded_to_the_nearest() {
        let trial = Trial { sizes: [16, 16, 720], ..trial() };
        let right = product(&trial, DType::BF16);
        assert!(trial.check(DType::BF16, &right).is_err(), "some sum has more than 8 bits");
        let rounded: Vec<f64> = right.iter().map(|&sum| bf16::from_f64(sum).to_f64()).collect();
        assert_eq!(trial.check(DType::BF16, &rounded), Ok(()));
    }

    /// Runs the trial with kernels that every device has.
    #[cfg(all(has_vulkan, device_tests))]
    #[test]
    fn right_kernels_are_trusted_and_wrong_ones_are_not() {
        use crate::kernels::matmul::Block;
        const BLOCK: Block = Block::new([32, 32], [4, 4], 8);
        let device = Device::vulkan(0).unwrap();
        let block = MatmulTile::Workgroup(Block { whole: false, ..BLOCK });
        for (tile, batch_rank) in [(block, 0), (block, 2), (MatmulTile::Registers { columns: 1 }, 1)] {
            for dtype in [DType::F16, DType::BF16, DType::I8, DType::U8] {
                let config = Matmul::of(Encoding::Dense(dtype), dtype.widened(), batch_rank, tile);
                assert!(is_trusted(&device, &config), "{config:?}");
            }
        }
        // A block that takes whole steps of 16 leaves out the last 8 of a depth of 40.
        let config = Matmul::of(Encoding::Dense(DType::F16), DType::F32, 0, MatmulTile::Workgroup(BLOCK));
        let trial = Trial { sizes: [48, 48, 40], ..trial() };
        let found = trial.run(&device, &config).unwrap();
        assert!(trial.check(DType::F32, &found).is_err());
    }

    /// A kernel that a device cannot compile is not used there.
    #[cfg(all(has_vulkan, device_tests))]
    #[test]
    fn what_does_not_compile_is_not_trusted() {
        use crate::kernels::matmul::UnitLayout;
        use crate::tuning::UnitBlock;
        let device = Device::vulkan(0).unwrap();
        assert!(device.info().features.matrix_units.f16.is_none(), "the device of the tests has matrix units");
        let [a, b] = [Along::Depth, Along::Other].map(UnitReading::aligned);
        let layout = UnitLayout { unit: [16; 3], a, b, whole: true, parts: false, single: false };
        let tile = MatmulTile::MatrixUnits(UnitBlock::all()[0], layout);
        let config = Matmul::of(Encoding::Dense(DType::F16), DType::F32, 0, tile);
        assert!(!is_trusted(&device, &config));
        assert!(!is_trusted(&device, &config), "the verdict is kept");
    }
}
