//! Numbers of quantised matrices, or of some of their rows. An invocation computes the numbers of a word
//! of a unit, so that neighbours store side by side.

use super::Family;
use super::blocks::{BlockMatrix, Blocks, units};
use super::elements::Elements;
use super::epilogue::{Epilogue, Finishing, Outputs};
use super::parameters::{Form, Size, parameters};
use crate::base::block_format::BlockFormat;
use crate::base::dtype::DType;
use crate::kernels::epilogue;
use crate::shader::KernelBuilder;

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 128;

/// The numbers of a matrix, in row-major order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Dequantize {
    pub format: BlockFormat,
    /// The dtype of the results.
    pub output: DType,
    /// The dtype of the indexes that select rows, if only some are wanted. An index out of range yields NaN.
    pub index: Option<DType>,
    pub epilogue: Option<Box<Epilogue>>,
}

parameters! {
    config: Dequantize;
    host: Parameters;
    device: Declared;
    /// The number of rows of the result.
    rows: Size,
    matrix: BlockMatrix = BlockMatrix(config.format),
    /// What the indexes select from, and where they begin.
    table: Option<Table> = config.index.map(|_| Table),
    epilogue: Option<Epilogue> => config.epilogue.as_deref(),
}

/// The form of the parameters of a table.
pub(crate) struct Table;

parameters! {
    config: Table;
    host: TableParameters;
    device: DeclaredTable;
    /// The index of the first row of the matrix.
    start: Size,
    /// How many rows the matrix has.
    length: Size,
    /// The place of the first index.
    offset: Size,
}

impl Dequantize {
    /// Returns the number of workgroups for this many rows.
    pub fn groups(&self, rows: usize, row_blocks: usize) -> usize {
        (rows * row_blocks * 4 * units(self.format) as usize).div_ceil(WORKGROUP as usize)
    }
}

impl Finishing for Dequantize {
    fn width(&self) -> u32 {
        4
    }

    fn stored(&self) -> DType {
        self.output
    }

    fn with_epilogue(&self, epilogue: Box<Epilogue>) -> Self {
        Dequantize { epilogue: Some(epilogue), ..self.clone() }
    }

    fn finished(parameters: &Parameters, epilogue: epilogue::Parameters) -> Parameters {
        Parameters { epilogue: Some(epilogue), ..parameters.clone() }
    }
}

impl Family for Dequantize {
    fn name(&self) -> String {
        let rows = self.index.map_or(String::new(), |index| format!(", rows by {index}"));
        let name = format!("dequantize({} to {}{rows})", self.format, self.output);
        self.epilogue.as_ref().map_or_else(|| name.clone(), |y| format!("{name}, {}", y.expr.describe()))
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn touched(&self, Parameters { rows, matrix, .. }: &Parameters) -> u64 {
        // The results are the larger part.
        (rows * matrix.row_blocks * self.format.block_elements()) as u64 * self.output.size_in_bytes().max(4) as u64
    }

    fn write(&self, k: &KernelBuilder) {
        let Declared { rows, matrix, table, epilogue } = self.declare(k);
        let row_blocks = matrix.row_blocks;
        let word = k.global_index() & 3;
        let blocks = Blocks::new(k, self.format, matrix).of_word(word);
        let index = self.index.map(|dtype| Elements::indexes(k, "index", dtype));
        let epilogue = self.epilogue.as_deref().zip(epilogue);
        let y = Outputs::new(k, self.output, 4, epilogue, None);

        let units = units(self.format);
        let (unit, block) = ((k.global_index() >> 2) % units, (k.global_index() >> 2) / units);
        let row = block / row_blocks;
        let nan = k.f32(f32::NAN);
        k.when(row.lt(rows), || {
            let selected = index.zip(table).map(|(index, table)| {
                let wanted = index.load_index(table.offset + row) - table.start;
                let inside = wanted.lt(table.length);
                (inside.select(wanted, 0), inside)
            });
            let from = selected.map_or(row, |(wanted, _)| wanted);
            let decoded = blocks.unit(blocks.block(blocks.row(from), block % row_blocks), unit);
            for (i, place) in blocks.places(unit).iter().enumerate() {
                let store = || {
                    let number = blocks.exact(decoded.scale(i), decoded.digits(i, 0));
                    let number = selected.map_or(number, |(_, inside)| inside.select(number, nan));
                    y.store(k, block * self.format.block_elements() as u32 + place.first() + word * 4, number);
                };
                match place.is_there {
                    Some(is_there) => drop(k.when(is_there, store)),
                    None => store(),
                }
            }
        });
    }

    fn samples() -> Vec<Self> {
        let sample = |format, output, index| Dequantize { format, output, index, epilogue: None };
        let all = BlockFormat::ALL.map(|format| sample(format, DType::F32, None));
        let others = [(DType::F16, Some(DType::U32)), (DType::BF16, None), (DType::F32, Some(DType::I64))];
        let others = others.map(|(output, index)| sample(BlockFormat::Q4_K, output, index));
        let finished = sample(BlockFormat::Q8_0, DType::F32, None).with_epilogue(epilogue::sample());
        all.into_iter().chain(others).chain([finished]).collect()
    }
}
