//! Products of a few vectors and a quantised matrix. Memory bandwidth limits them, so the matrix is read once. The
//! members of a workgroup share the depth.

use super::Family;
use super::blocks::{Blocks, Sixteen, bias, has_offset, units};
use super::elements::Runs;
use super::epilogue::{Epilogue, Finishing, Outputs};
use super::parameters::{Each, Form, Size, parameters, times};
use super::workgroup::sum_each;
use crate::base::block_format::BlockFormat;
use crate::base::dtype::DType;
use crate::kernels::epilogue;
use crate::shader::{KernelBuilder, Type, Value, Var};

/// A few vectors times the rows of a quantised matrix.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct BlockProduct {
    pub format: BlockFormat,
    /// The dtype of the vectors.
    pub dtype: DType,
    /// The number of vectors that a workgroup multiplies.
    pub count: u32,
    /// The dtype of the results. If they are not stored in fours, it has 32 bits.
    pub output: DType,
    /// Whether four neighbours of a result are stored together.
    pub stored_quads: bool,
    /// The rows of the matrix that a workgroup multiplies, a multiple of four.
    pub rows: u32,
    /// Invocations per workgroup.
    pub members: u32,
    /// The lanes of the device's subgroups, if these are used.
    pub subgroup: Option<u32>,
    pub epilogue: Option<Box<Epilogue>>,
}

parameters! {
    config: BlockProduct;
    host: Parameters;
    device: Declared;
    /// The number of vectors.
    vectors: Size,
    /// The rows of the matrix.
    rows: Size,
    /// The blocks of a row.
    row_blocks: Size,
    /// The first block of the matrix.
    first: Size,
    /// The index of the first 16 bytes of each plane.
    planes: Each<Size> = times(config.format.planes().len()),
    /// Where the vectors begin, in loads of 16 bytes.
    start: Size,
    /// The distance between two vectors, in loads of 16 bytes.
    stride: Size,
    epilogue: Option<Epilogue> => config.epilogue.as_deref(),
}

impl BlockProduct {
    /// The most vectors of a workgroup.
    pub const MOST: u32 = 8;

    /// Returns the number of workgroups.
    pub fn groups(&self, vectors: usize, rows: usize) -> usize {
        vectors.div_ceil(self.count as usize) * rows.div_ceil(self.rows as usize)
    }
}

impl Finishing for BlockProduct {
    fn width(&self) -> u32 {
        if self.stored_quads { 4 } else { 1 }
    }

    fn stored(&self) -> DType {
        self.output
    }

    fn with_epilogue(&self, epilogue: Box<Epilogue>) -> Self {
        BlockProduct { epilogue: Some(epilogue), ..self.clone() }
    }

    fn finished(parameters: &Parameters, epilogue: epilogue::Parameters) -> Parameters {
        Parameters { epilogue: Some(epilogue), ..parameters.clone() }
    }
}

impl Family for BlockProduct {
    fn name(&self) -> String {
        let BlockProduct { format, dtype, count, output, rows, members, .. } = self;
        let fours = if self.stored_quads { ", y x4" } else { "" };
        let subgroups = if self.subgroup.is_some() { ", subgroups" } else { "" };
        let name = format!(
            "block product({count} vectors of {dtype} by {rows} rows of {format} to {output}, {members}{fours}{subgroups})"
        );
        self.epilogue.as_ref().map_or_else(|| name.clone(), |y| format!("{name}, {}", y.expr.describe()))
    }

    fn workgroup(&self) -> u32 {
        self.members
    }

    fn products(&self, &Parameters { vectors, rows, row_blocks, .. }: &Parameters) -> u64 {
        super::volume(&[vectors, rows, row_blocks, self.format.block_elements()])
    }

    fn touched(&self, &Parameters { vectors, rows, row_blocks, .. }: &Parameters) -> u64 {
        let matrix = super::volume(&[rows, row_blocks, self.format.block_bytes() + 2]);
        let x = super::volume(&[vectors, row_blocks, self.format.block_elements(), self.dtype.size_in_bytes()]);
        matrix.max(x).max(super::volume(&[vectors, rows, 4]))
    }

    fn write(&self, k: &KernelBuilder) {
        let Declared { vectors, rows, row_blocks, first, planes, start, stride, epilogue } = self.declare(k);
        let x = Runs::input(k, "x", self.dtype, 4);
        let blocks = Blocks::new(k, self.format, planes);
        let epilogue = self.epilogue.as_deref().zip(epilogue);
        let y = Outputs::new(k, self.output, self.width(), epilogue, None);

        let groups = (rows + (self.rows - 1)) / self.rows;
        let (first_row, first_vector) = (k.group_index() % groups * self.rows, k.group_index() / groups * self.count);
        // Beyond the edge, the last row or vector is multiplied again.
        let lines: Vec<_> = (0..self.count).map(|v| start + (first_vector + v).min(vectors - 1) * stride).collect();
        let matrix: Vec<_> = (0..self.rows).map(|row| first + (first_row + row).min(rows - 1) * row_blocks).collect();
        let zero = k.number(Type::F32, 0);
        let sums: Vec<Var> = (0..self.count * self.rows).map(|_| k.var(zero)).collect();
        let (units, elements) = (units(self.format), self.format.block_elements() as u32);
        k.for_step(k.local_index(), row_blocks * units, self.members, |at| {
            let (block, unit) = (at / units, at % units);
            let decoded: Vec<_> = matrix.iter().map(|&row| blocks.unit(row + block, unit)).collect();
            for (i, place) in blocks.places(unit).iter().enumerate() {
                let add = || {
                    let run = (block * elements + place.first) / x.length();
                    for (&line, sums) in lines.iter().zip(sums.chunks(self.rows as usize)) {
                        let numbers = (0..16 / x.length()).flat_map(|load| x.load(line + run + load));
                        let numbers = Numbers::new(k, self.format, numbers.collect());
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
        sum_each(k, (self.members, 1), self.subgroup, sums, |four, _, numbers| {
            let fours = self.rows / 4;
            let (vector, first_row) = (first_vector + four / fours, first_row + four % fours * 4);
            if self.stored_quads {
                k.when(vector.lt(vectors) & first_row.lt(rows), || y.store(k, vector * rows + first_row, numbers));
                return;
            }
            for e in 0..4 {
                let row = first_row + e;
                k.when(vector.lt(vectors) & row.lt(rows), || y.store(k, vector * rows + row, numbers.lane(e)));
            }
        });
    }

    fn samples() -> Vec<Self> {
        let sample = |format, dtype, count, fours| BlockProduct {
            format,
            dtype,
            count,
            output: if fours { dtype } else { DType::F32 },
            stored_quads: fours,
            rows: 4,
            members: 64,
            subgroup: None,
            epilogue: None,
        };
        let all = BlockFormat::ALL.map(|format| sample(format, DType::F32, 1, true));
        let many = BlockFormat::ALL.map(|format| sample(format, DType::F16, BlockProduct::MOST, true));
        let others = [(DType::BF16, 2, true), (DType::F16, 3, false)];
        let others = others.map(|(dtype, count, fours)| sample(BlockFormat::Q6_K, dtype, count, fours));
        let subgroups = BlockProduct { subgroup: Some(32), ..sample(BlockFormat::Q4_0, DType::F32, 4, true) };
        let finished = sample(BlockFormat::Q8_0, DType::F32, 1, false).with_epilogue(epilogue::sample());
        all.into_iter().chain(many).chain(others).chain([subgroups, finished]).collect()
    }
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
