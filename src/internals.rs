//! Items that this crate's tests, benches and examples need beyond its API. They may change with every version.

pub use crate::device::open_tuned;
pub use crate::engine::catalogue::catalogue;
pub use crate::engine::runtime::tuning_of;

/// The tuning data.
pub mod tuning {
    pub use crate::tuning::*;
}

/// Parts of kernels that need matrix units, which no device of the tests has.
#[cfg(all(test, has_vulkan, device_tests))]
mod tests {
    use crate::kernels::block_product::BlockTile;
    use crate::kernels::blocks::{BYTES, Blocks, DeclaredMatrix, Scale, units};
    use crate::kernels::matmul::loose::{self, Shift};
    use crate::shader::{Access, KernelBuilder, Scalar, Type};
    use crate::{Argument, BlockFormat, DType, Device, Kernel, Result, Tensor};
    use half::f16;
    use safetensors::SafeTensors;

    /// The index of the first 16 bytes of each plane of blocks, and the words of all planes.
    fn in_planes(format: BlockFormat, blocks: &[u8]) -> (Vec<u32>, Vec<u32>) {
        let (mut planes, mut words) = (Vec::new(), Vec::new());
        for (plane, range) in format.planes().iter().enumerate() {
            // Neighbour `i` is in byte `BYTES[i]`, and number `BYTES[i]` is in byte `i`.
            let order = if plane < format.integer_planes() { BYTES } else { [0, 1, 2, 3] };
            planes.push(words.len() as u32 / 4);
            let bytes = blocks.chunks(format.block_bytes()).flat_map(|block| &block[range.clone()]);
            let mut bytes: Vec<u8> = bytes.copied().collect();
            bytes.resize(bytes.len().next_multiple_of(16), 0);
            let word = |bytes: &[u8; 4]| u32::from_le_bytes(order.map(|byte| bytes[byte as usize]));
            words.extend(bytes.as_chunks().0.iter().map(word));
        }
        (planes, words)
    }

    /// The parameters of a matrix of one row.
    fn one_row<'k>(k: &'k KernelBuilder, blocks: usize, planes: &[u32]) -> DeclaredMatrix<'k> {
        let [first, row_blocks, together] = [0, blocks as u32, 0].map(|number| k.u32(number));
        DeclaredMatrix { first, row_blocks, together, planes: planes.iter().map(|&plane| k.u32(plane)).collect() }
    }

    /// The numbers of blocks, unpacked to halves as for matrix units, and the sum of what their errors are relative to.
    fn unpacked(format: BlockFormat, blocks: &[u8], device: &Device) -> Result<[Vec<f32>; 2]> {
        let count = blocks.len() / format.block_bytes();
        let (planes, words) = in_planes(format, blocks);
        let (units, elements) = (units(format), format.block_elements() as u32);
        let kernel = Kernel::build("unpack", device, 32, |k| {
            let blocks = Blocks::new(k, format, one_row(k, count, &planes)).in_halves();
            let y = k.buffer("y", Type::F32, Access::Write);
            let rounded = k.buffer("rounded", Type::F32, Access::Write);
            let (block, unit) = (k.global_index() / units, k.global_index() % units);
            k.when(block.lt(count as u32), || {
                let loaded = blocks.unit(block, unit);
                for (i, place) in blocks.places(unit).iter().enumerate() {
                    k.when(place.is_there.unwrap_or_else(|| unit.lt(units)), || {
                        let Scale { factor, offset } = loaded.scale(i);
                        for (four, digits) in (0..).zip([0, 1, 2, 3].map(|four| loaded.digits(i, four))) {
                            for lane in 0..4 {
                                let product = digits.lane(lane) * factor;
                                let number = offset.map_or(product, |m| digits.lane(lane).fma(factor, m));
                                let at = block * elements + place.first() + (four * 4 + lane);
                                y.store(at, number.convert(Scalar::F32));
                                let offset = offset.unwrap_or(product);
                                let all = [number, product, offset].map(|x| x.convert(Scalar::F32).abs());
                                rounded.store(at, all[0] + all[1] * 2.0 + all[2]);
                            }
                        }
                    });
                }
            });
        })?;
        let blocks = Tensor::from_slice(&words, words.len(), device)?;
        let numbers = || Argument::output(count * elements as usize);
        let [y, rounded] =
            kernel.launch((count * units as usize).div_ceil(32), [blocks.into(), numbers(), numbers()])?;
        Ok([y.to_vec()?, rounded.to_vec()?])
    }

    /// The same numbers, eight neighbours at a time.
    fn unpacked_by_eights(format: BlockFormat, blocks: &[u8], device: &Device) -> Result<Vec<f32>> {
        let elements = format.block_elements() as u32;
        let row_blocks = blocks.len() / format.block_bytes();
        let count = row_blocks * elements as usize;
        let (planes, words) = in_planes(format, blocks);
        let kernel = Kernel::build("unpack by eights", device, 32, |k| {
            let blocks = Blocks::new(k, format, one_row(k, row_blocks, &planes)).in_halves();
            let y = k.buffer("y", Type::F32, Access::Write);
            let first = k.global_index() * 8;
            k.when(first.lt(count as u32), || {
                let fours = blocks.neighbours(first / elements, first % elements, 2).halves();
                for (at, number) in (0..).zip(fours.iter().flat_map(|four| four.lanes())) {
                    y.store(first + at, number.convert(Scalar::F32));
                }
            });
        })?;
        let blocks = Tensor::from_slice(&words, words.len(), device)?;
        let [y] = kernel.launch((count / 8).div_ceil(32), [blocks.into(), Argument::output(count)])?;
        y.to_vec()
    }

    #[test]
    fn halves_are_the_numbers_of_the_reference() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/quantized.safetensors");
        let data = std::fs::read(path).unwrap();
        let file = SafeTensors::deserialize(&data).unwrap();
        let device = Device::vulkan(0).unwrap();
        assert!(device.info().features.f16, "the device of the tests has no halves");
        for format in BlockFormat::ALL.into_iter().filter(|&format| BlockTile::units_take(DType::F16, format)) {
            let entry = |name: &str| file.tensor(&format!("{format}.{name}")).unwrap().data();
            let [found, rounded] = unpacked(format, entry("weights"), &device).unwrap();
            let expected = entry("weights.numbers").as_chunks().0.iter().map(|&four| f32::from_le_bytes(four));
            assert_eq!(found.len(), expected.len());
            assert_eq!(found, unpacked_by_eights(format, entry("weights"), &device).unwrap(), "{format}");
            for (i, ((found, rounded), expected)) in found.iter().zip(rounded).zip(expected).enumerate() {
                // The scale, its product with a digit, the offset and the number are rounded. The smallest half is
                // 2^-24.
                let bound = rounded * f16::EPSILON.to_f32() / 2.0 + 2f32.powi(-24);
                assert!((found - expected).abs() <= bound, "{format} {i}: {found}, not {expected} within {bound}");
            }
        }
    }

    /// The elements are their indices, counted from 1.
    #[test]
    fn loose_vectors_begin_and_end_anywhere() {
        const COUNT: u32 = 24;
        let device = Device::vulkan(0).unwrap();
        let kernel = Kernel::build("loose vectors", &device, 32, |k| {
            let x = k.buffer("x", Type::vec4(Scalar::U32), Access::Read);
            let y = k.buffer("y", Type::vec4(Scalar::U32), Access::Write);
            let filled = k.buffer("filled", Type::vec4(Scalar::U32), Access::Write);
            let index = k.global_index();
            k.when(index.lt(COUNT), || {
                let left = k.u32(COUNT) - index;
                let vector = Shift::of(index).vector(loose::load(x, index, left));
                y.store(index, vector);
                filled.store(index, loose::first_elements(vector, left));
            });
        });
        let words: Vec<u32> = (0..COUNT / 2).map(|word| (2 * word + 1) | (2 * word + 2) << 16).collect();
        let x = Tensor::from_slice(&words, words.len(), &device).unwrap();
        let output = || Argument::output(4 * COUNT as usize);
        let [y, filled] = kernel.unwrap().launch(1, [x.into(), output(), output()]).unwrap();
        let halves = |x: Tensor| -> Vec<u32> {
            x.to_vec::<u32>().unwrap().into_iter().flat_map(|word| [word & 0xffff, word >> 16]).collect()
        };
        let (y, filled) = (halves(y), halves(filled));
        for (at, (found, filled)) in (0..).zip(y.into_iter().zip(filled)) {
            let element = at / 8 + at % 8 + 1;
            let is_there = element <= COUNT;
            assert!(!is_there || found == element, "vector {}: {found}, not {element}", at / 8);
            assert_eq!(filled, if is_there { element } else { 0 }, "vector {}", at / 8);
        }
    }
}
