//! Products of a few vectors and a quantised matrix in registers, for any device. The members of a workgroup share the
//! depth.

use super::BlockProduct;
use crate::base::block_format::BlockFormat;
use crate::kernels::blocks::{Sixteen, bias, has_offset, units};
use crate::kernels::elements::Runs;
use crate::kernels::workgroup::sum_each;
use crate::shader::{KernelBuilder, Type, Value, Var};

/// The rows of the matrix that a workgroup multiplies.
pub(super) const ROWS: u32 = 4;

pub(super) fn write(k: &KernelBuilder, config: &BlockProduct, members: u32, subgroup: Option<u32>) {
    let (part, x, blocks, y) = config.declare_buffers(k, || Runs::input(k, "x", config.dtype, 4));
    let lines: Vec<_> = (0..config.count).map(|vector| part.vector(vector)).collect();
    let matrix: Vec<_> = (0..ROWS).map(|row| part.row(row)).collect();
    let zero = k.number(Type::F32, 0);
    let sums: Vec<Var> = (0..config.count * ROWS).map(|_| k.var(zero)).collect();
    let (units, elements) = (units(config.format), config.format.block_elements() as u32);
    k.for_step(k.local_index(), part.row_blocks * units, members, |at| {
        let (block, unit) = (at / units, at % units);
        let decoded: Vec<_> = matrix.iter().map(|&row| blocks.unit(row + block, unit)).collect();
        for (i, place) in blocks.places(unit).iter().enumerate() {
            let add = || {
                let run = (block * elements + place.first) / x.length();
                for (&line, sums) in lines.iter().zip(sums.chunks(ROWS as usize)) {
                    let numbers = (0..16 / x.length()).flat_map(|load| x.load(line + run + load));
                    let numbers = Numbers::new(k, config.format, numbers.collect());
                    for (sum, row) in sums.iter().zip(&decoded) {
                        sum.set(numbers.times(&row[i], sum.get()));
                    }
                }
            };
            match place.is_there {
                Some(is_there) => drop(k.when(is_there, add)),
                None => add(),
            }
        }
    });

    let sums = sums.iter().map(|sum| sum.get()).collect();
    sum_each(k, (members, 1), subgroup, sums, |vector, _, numbers| {
        config.store(k, &part, &y, [vector, k.u32(0)], numbers);
    });
}

/// Sixteen neighbours of a vector, and their sum if the format wants it.
struct Numbers<'k> {
    fours: Vec<Value<'k>>,
    sum: Option<Value<'k>>,
    bias: f32,
}

impl<'k> Numbers<'k> {
    fn new(k: &'k KernelBuilder, format: BlockFormat, numbers: Vec<Value<'k>>) -> Self {
        let fours: Vec<_> = numbers.chunks(4).map(|four| k.vector(four)).collect();
        let (bias, has_offset) = (bias(format), has_offset(format));
        let sum =
            (bias != 0.0 || has_offset).then(|| across(fours[1..].iter().fold(fours[0], |sum, &four| sum + four)));
        Numbers { fours, sum, bias }
    }

    /// Returns `sum` plus the products with sixteen numbers of the matrix.
    fn times(&self, of: &Sixteen<'k>, sum: Value<'k>) -> Value<'k> {
        let (first, rest) = (self.fours[0] * of.digits[0], self.fours.iter().zip(&of.digits).skip(1));
        let products = across(rest.fold(first, |sum, (&x, &digits)| x.fma(digits, sum)));
        let Some(numbers) = self.sum else { return products.fma(of.scale, sum) };
        let products = if self.bias == 0.0 { products } else { numbers.fma(-self.bias, products) };
        let sum = products.fma(of.scale, sum);
        of.offset.map_or(sum, |offset| numbers.fma(offset, sum))
    }
}

/// Returns the sum of a vector's lanes.
fn across(four: Value<'_>) -> Value<'_> {
    (four.lane(0) + four.lane(1)) + (four.lane(2) + four.lane(3))
}
