//! Products of a few vectors and a quantised matrix, which is read once. Each kind of tile has a file.

mod lanes;
mod units;

use super::blocks::{BlockMatrix, Blocks, fit_halves};
use super::elementwise::InputLayout;
use super::epilogue::{Epilogue, EpilogueInput, Finishing, Outputs};
use super::expr::{BinaryOp, Expr, UnaryOp};
use super::parameters::{Float, Form, Size, parameters};
use super::unit_sums::{self, LANES, SHARING, UNIT};
use super::{Family, Units};
use crate::base::block_format::BlockFormat;
use crate::base::dtype::DType;
use crate::base::word::Word;
use crate::kernels::epilogue;
use crate::shader::{IntoValue, KernelBuilder, Value};

/// How a workgroup divides its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum BlockTile {
    /// The invocations share the depth of four rows, or each has four rows of its own.
    Lanes {
        /// Invocations per workgroup.
        members: u32,
        /// The lanes of the device's subgroups, if these are used: to add up what they share, or to load the vectors
        /// for each other.
        subgroup: Option<u32>,
        own_rows: bool,
    },
    /// Matrix units multiply 16 rows at a time by `f16`. The subgroups share the depth.
    Units {
        /// Subgroups per workgroup.
        subgroups: u32,
        /// Whether a row's units fill the steps of a subgroup.
        whole: bool,
    },
}

impl BlockTile {
    /// The rows of the matrix that a workgroup multiplies.
    pub const fn rows(self) -> u32 {
        match self {
            BlockTile::Lanes { members, own_rows: true, .. } => lanes::ROWS * members,
            BlockTile::Lanes { .. } => lanes::ROWS,
            BlockTile::Units { .. } => UNIT,
        }
    }

    /// Returns the tile on matrix units for `rows` rows of `units` units. The device needs `subgroups` subgroups to be
    /// busy, so a workgroup has more of them if there are few rows. All workgroups together have at least as many, or
    /// at most as many if they shall `fit`. They cannot if there are many rows.
    pub fn on_units(rows: usize, units: usize, subgroups: usize, fit: bool) -> Self {
        let needed = (subgroups / rows.div_ceil(UNIT as usize).max(1)).max(1);
        let power = if fit { 1 << needed.ilog2() } else { needed.next_power_of_two() };
        // If workgroups take turns, the last turn keeps more of an H200 busy with five.
        let fewest = if needed < 3 { 5 } else { 4 };
        let subgroups = power.clamp(fewest, 16) as u32;
        BlockTile::Units { subgroups, whole: units.is_multiple_of(SHARING as usize) }
    }

    /// Whether matrix units multiply vectors of a dtype by numbers of a format.
    pub fn units_take(dtype: DType, format: BlockFormat) -> bool {
        dtype == DType::F16 && fit_halves(format)
    }

    /// The most vectors that a workgroup multiplies. Without matrix units, these are `most_of_lanes`.
    pub const fn most(self, most_of_lanes: u32) -> u32 {
        match self {
            BlockTile::Lanes { .. } => most_of_lanes,
            BlockTile::Units { .. } => UNIT,
        }
    }
}

/// A few vectors times the rows of a quantised matrix.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct BlockProduct {
    pub format: BlockFormat,
    /// The dtype of the vectors.
    pub dtype: DType,
    /// The number of vectors that a workgroup multiplies.
    pub count: u32,
    /// Whether these are all vectors.
    pub is_all: bool,
    /// The dtype of the results. If they are not stored in fours, it has 32 bits.
    pub output: DType,
    /// Whether four neighbours of a result are stored together.
    pub stored_quads: bool,
    pub tile: BlockTile,
    /// On matrix units, the loads of 16 bytes of a vector, if vectors are multiplied by weights and divided by their
    /// root mean squares: an RMS norm. Workgroup memory holds all vectors.
    pub normalized: Option<u32>,
    /// On matrix units, the function of a gate, if the matrix has two rows for each result: all gates, then what they
    /// gate. The result is the function of the first one's product, times the second one's.
    pub gate: Option<UnaryOp>,
    /// On matrix units, the loads of 16 bytes of the results, if the last workgroup also stores their RMS norm. The
    /// kernel then has one vector, and does not normalise it.
    pub norm_of_results: Option<u32>,
    pub epilogue: Option<Box<Epilogue>>,
}

/// The most loads of 16 bytes for each invocation of a workgroup that normalises results. Registers hold them.
const MOST_LOADS: u32 = 4;

parameters! {
    config: BlockProduct;
    host: Parameters;
    device: Declared;
    /// The number of vectors.
    vectors: Size,
    /// The results of a vector.
    rows: Size,
    matrix: BlockMatrix = BlockMatrix(config.format),
    /// Where the vectors begin, in loads of 16 bytes.
    start: Size,
    /// The distance between two vectors, in loads of 16 bytes.
    stride: Size,
    /// What a norm adds to the mean of squares.
    eps: Option<Float> = config.normalized.or(config.norm_of_results).is_some().then_some(Float(DType::F32)),
    epilogue: Option<Epilogue> => config.epilogue.as_deref(),
}

impl BlockProduct {
    /// Returns the number of workgroups.
    pub fn groups(&self, vectors: usize, rows: usize) -> usize {
        vectors.div_ceil(self.count as usize) * rows.div_ceil(self.tile_rows() as usize)
    }

    /// The rows of the matrix for each result.
    pub const fn rows_of_result(&self) -> u32 {
        if self.gate.is_some() { 2 } else { 1 }
    }

    /// The results of a vector that a workgroup computes.
    const fn tile_rows(&self) -> u32 {
        self.tile.rows() / self.rows_of_result()
    }

    /// Returns the bytes of workgroup memory that a kernel on matrix units takes. `None` for other tiles.
    pub fn memory_on_units(&self) -> Option<u32> {
        let BlockTile::Units { subgroups, .. } = self.tile else { return None };
        // A norm also adds up the subgroups' parts of a sum of squares.
        let parts = 4 * self.workgroup() * self.count;
        let norm = self.normalized.map_or(0, |loads| 16 * loads * self.count + parts);
        let norm_of_results = self.norm_of_results.map_or(0, |_| 4 * self.workgroup() + 4);
        Some(unit_sums::memory(UNIT, subgroups, self.count) + norm + norm_of_results)
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

    fn with_norm(&self, parameters: &Parameters, length: usize, eps: Word) -> Option<(Self, Parameters)> {
        let loads = length / units::LOAD as usize;
        let stores_halves = self.epilogue.as_ref().is_some_and(|epilogue| epilogue.expr.dtype() == DType::F16);
        // With eight vectors, a kernel with a workgroup for each is faster.
        let pays = loads <= (MOST_LOADS * self.workgroup()) as usize && self.is_all && self.count == 1;
        let can = matches!(self.tile, BlockTile::Units { .. })
            && self.normalized.is_none()
            && (self.stored_quads && stores_halves)
            && (length == parameters.rows && length.is_multiple_of(units::LOAD as usize));
        (pays && can).then(|| {
            let kernel = BlockProduct { norm_of_results: Some(loads as u32), ..self.clone() };
            (kernel, Parameters { eps: Some(eps), ..parameters.clone() })
        })
    }

    fn finished(parameters: &Parameters, epilogue: epilogue::Parameters) -> Parameters {
        Parameters { epilogue: Some(epilogue), ..parameters.clone() }
    }
}

impl Family for BlockProduct {
    fn name(&self) -> String {
        let BlockProduct { format, dtype, count, is_all, output, .. } = self;
        let vectors = if *is_all { "vectors" } else { "vectors at a time" };
        let tile = match self.tile {
            BlockTile::Lanes { members, subgroup, own_rows } => {
                let rows = if own_rows { ", own rows" } else { "" };
                let subgroups = if subgroup.is_some() { ", subgroups" } else { "" };
                format!("{members}{rows}{subgroups}")
            }
            BlockTile::Units { subgroups, whole } => {
                format!("units, {subgroups} subgroups{}", if whole { ", whole" } else { "" })
            }
        };
        let fours = if self.stored_quads { ", y x4" } else { "" };
        let normalized = self.normalized.map_or(String::new(), |loads| format!("normalized x{loads} "));
        let (vectors, gate) =
            (format!("{normalized}{vectors}"), self.gate.map_or(String::new(), UnaryOp::name_of_gate));
        let norm = if self.norm_of_results.is_some() { ", norm" } else { "" };
        let name =
            format!("block product({count} {vectors} of {dtype} by {format} to {output}, {tile}{fours}{gate}{norm})");
        self.epilogue.as_ref().map_or_else(|| name.clone(), |y| format!("{name}, {}", y.expr.describe()))
    }

    fn workgroup(&self) -> u32 {
        match self.tile {
            BlockTile::Lanes { members, .. } => members,
            BlockTile::Units { subgroups, .. } => subgroups * LANES,
        }
    }

    fn units(&self) -> Units {
        match self.tile {
            BlockTile::Lanes { .. } => Units::Lanes,
            BlockTile::Units { .. } => Units::Matrix,
        }
    }

    fn products(&self, &Parameters { vectors, rows, ref matrix, .. }: &Parameters) -> u64 {
        let (row_blocks, rows_of_result) = (matrix.row_blocks, self.rows_of_result() as usize);
        super::volume(&[vectors, rows, rows_of_result, row_blocks, self.format.block_elements()])
    }

    fn touched(&self, &Parameters { vectors, rows, ref matrix, .. }: &Parameters) -> u64 {
        let (row_blocks, rows_of_result) = (matrix.row_blocks, self.rows_of_result() as usize);
        let matrix = super::volume(&[rows, rows_of_result, row_blocks, self.format.block_bytes() + 2]);
        let x = super::volume(&[vectors, row_blocks, self.format.block_elements(), self.dtype.size_in_bytes()]);
        matrix.max(x).max(super::volume(&[vectors, rows, 4]))
    }

    fn write(&self, k: &KernelBuilder) {
        match self.tile {
            BlockTile::Lanes { members, subgroup, own_rows } => lanes::write(k, self, (members, own_rows), subgroup),
            BlockTile::Units { subgroups, whole } => units::write(k, self, (subgroups, whole)),
        }
    }

    fn samples() -> Vec<Self> {
        let sample = |format, dtype, count, fours| BlockProduct {
            format,
            dtype,
            count,
            is_all: count == 1,
            output: if fours { dtype } else { DType::F32 },
            stored_quads: fours,
            tile: BlockTile::Lanes { members: 64, subgroup: None, own_rows: false },
            normalized: None,
            gate: None,
            norm_of_results: None,
            epilogue: None,
        };
        let all = BlockFormat::ALL.map(|format| sample(format, DType::F32, 1, true));
        let many = BlockFormat::ALL.map(|format| sample(format, DType::F16, 2, true));
        let others = [(DType::BF16, 2, true), (DType::F16, 3, false)];
        let others = others.map(|(dtype, count, fours)| sample(BlockFormat::Q6_K, dtype, count, fours));
        let tile = BlockTile::Lanes { members: 64, subgroup: Some(32), own_rows: false };
        let subgroups = BlockProduct { tile, ..sample(BlockFormat::Q4_0, DType::F32, 4, true) };
        let own_rows = |format, dtype, count, subgroup| BlockProduct {
            tile: BlockTile::Lanes { members: 8, subgroup, own_rows: true },
            ..sample(format, dtype, count, true)
        };
        let own_rows = [
            own_rows(BlockFormat::Q4_1, DType::F32, 1, None),
            own_rows(BlockFormat::TQ1_0, DType::F16, 4, Some(8)),
            own_rows(BlockFormat::Q8_0, DType::F32, 2, Some(8)),
        ];
        let finished = sample(BlockFormat::Q8_0, DType::F32, 1, false).with_epilogue(epilogue::sample());
        let on_units =
            |subgroups, whole, config| BlockProduct { tile: BlockTile::Units { subgroups, whole }, ..config };
        let formats = BlockFormat::ALL.into_iter().filter(|&format| BlockTile::units_take(DType::F16, format));
        let units = formats.map(|format| on_units(4, true, sample(format, DType::F16, 16, true)));
        let few = on_units(16, false, sample(BlockFormat::Q4_K, DType::F16, 8, false));
        let gated = BlockProduct { gate: Some(UnaryOp::Silu), ..few.clone() };
        let normalized = BlockProduct {
            normalized: Some(300),
            gate: Some(UnaryOp::Gelu),
            ..on_units(4, true, sample(BlockFormat::Q4_0, DType::F16, 1, true))
        };
        let normalizing = on_units(16, true, sample(BlockFormat::Q4_0, DType::F16, 1, true)).with_epilogue(halves());
        let normalizing = BlockProduct { norm_of_results: Some(600), ..normalizing };
        all.into_iter()
            .chain(many)
            .chain(others)
            .chain([subgroups, finished])
            .chain(own_rows)
            .chain(units)
            .chain([few, gated, normalized, normalizing])
            .collect()
    }
}

/// Returns an epilogue for samples: `y + residual` of `f16`. `y` is kept.
fn halves() -> Box<Epilogue> {
    let mut expr = Expr::default();
    let (residual, y) = (expr.input(0, DType::F16), expr.input(1, DType::F32));
    let [residual, rounded] = [(DType::F32, residual), (DType::F16, y)].map(|(dtype, term)| expr.cast(dtype, term));
    let product = expr.cast(DType::F32, rounded);
    let sum = expr.binary(BinaryOp::Add, product, residual);
    expr.cast(DType::F16, sum);
    let input = EpilogueInput { dtype: DType::F16, layout: InputLayout::Contiguous, by_row: false };
    let (inputs, kept) = ([input].into_iter().collect(), [rounded].into_iter().collect());
    Epilogue { expr, inputs, rank: 0, scalars: Default::default(), kept }.into()
}

/// What the workgroup multiplies.
struct Part<'k> {
    /// The number of vectors.
    vectors: Value<'k>,
    /// The results of a vector.
    rows: Value<'k>,
    /// The blocks of a row.
    row_blocks: Value<'k>,
    first_vector: Value<'k>,
    first_row: Value<'k>,
    /// Where the vectors begin, and the distance between two, in loads of 16 bytes.
    start: Value<'k>,
    stride: Value<'k>,
    /// What a norm adds to the mean of squares.
    eps: Option<Value<'k>>,
}

impl<'k> Part<'k> {
    /// Returns where a vector begins, in loads of 16 bytes. Beyond the edge, the last vector is multiplied again.
    fn vector(&self, vector: impl IntoValue<'k>) -> Value<'k> {
        self.start + (self.first_vector + vector).min(self.vectors - 1) * self.stride
    }

    /// Returns the position of a row's first block. Beyond the edge, the last row is multiplied again.
    fn row(&self, blocks: &Blocks<'k>, row: impl IntoValue<'k>) -> Value<'k> {
        blocks.row((self.first_row + row).min(self.rows - 1))
    }

    /// The same of the row that a row gates.
    fn gated_row(&self, blocks: &Blocks<'k>, row: impl IntoValue<'k>) -> Value<'k> {
        blocks.row((self.first_row + row).min(self.rows - 1) + self.rows)
    }
}

impl BlockProduct {
    /// Declares the buffers: the vectors, which `x` declares, the matrix, and the results.
    fn declare_buffers<'k, X>(
        &self,
        k: &'k KernelBuilder,
        x: impl FnOnce() -> X,
    ) -> (Part<'k>, X, Blocks<'k>, Outputs<'k>) {
        let Declared { vectors, rows, matrix, start, stride, eps, epilogue } = self.declare(k);
        let row_blocks = matrix.row_blocks;
        let x = x();
        let blocks = Blocks::new(k, self.format, matrix);
        let epilogue = self.epilogue.as_deref().zip(epilogue);
        let y = match self.norm_of_results {
            Some(_) => Outputs::for_all(k, self.output, epilogue),
            None => Outputs::new(k, self.output, self.width(), epilogue, None),
        };
        let tile_rows = self.tile_rows();
        let group = k.group_index();
        // A division takes long compared with the rest.
        let (first_row, first_vector) = if self.is_all {
            (group * tile_rows, k.u32(0))
        } else {
            let groups = (rows + (tile_rows - 1)) / tile_rows;
            (group % groups * tile_rows, group / groups * self.count)
        };
        let part = Part { vectors, rows, row_blocks, first_vector, first_row, start, stride, eps };
        (part, x, blocks, y)
    }

    /// Stores the products of a vector and four neighbouring rows of the workgroup's.
    fn store<'k>(
        &self,
        k: &'k KernelBuilder,
        part: &Part<'k>,
        y: &Outputs<'k>,
        [vector, row]: [Value<'k>; 2],
        four: Value<'k>,
    ) {
        let (vector, row) = (part.first_vector + vector, part.first_row + row);
        let store = |row: Value<'k>, value| {
            k.when(vector.lt(part.vectors) & row.lt(part.rows), || y.store(k, vector * part.rows + row, value));
        };
        if self.stored_quads {
            return store(row, four);
        }
        for e in 0..4 {
            store(row + e, four.lane(e));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::KernelConfig;
    use crate::kernels::blocks::MatrixParameters;
    use crate::shader::Target;

    #[test]
    fn results_of_one_vector_are_normalized_in_halves() {
        let tile = BlockTile::Units { subgroups: 4, whole: true };
        let samples = BlockProduct::samples();
        let normalizing = samples.iter().find(|sample| sample.norm_of_results.is_some()).unwrap();
        let plain = BlockProduct { norm_of_results: None, tile, ..normalizing.clone() };
        let eps = Word::of(0.5, DType::F32, "").unwrap();
        let with_norm = |kernel: &BlockProduct, rows, length| {
            let matrix = MatrixParameters { first: 0, row_blocks: 1, together: 1, planes: Default::default() };
            let parameters = Parameters { vectors: 1, rows, matrix, start: 0, stride: 0, eps: None, epilogue: None };
            let (kernel, parameters) = kernel.with_norm(&parameters, length, eps)?;
            assert_eq!(parameters.eps, Some(eps));
            kernel.norm_of_results
        };
        assert_eq!(with_norm(&plain, 4096, 4096), Some(512));
        // An invocation holds four loads at most.
        assert_eq!(with_norm(&plain, 4104, 4104), None);
        // Rows of another length, and no whole loads.
        assert_eq!(with_norm(&plain, 4096, 2048), None);
        assert_eq!(with_norm(&plain, 12, 12), None);
        let others = [
            BlockProduct { count: 2, ..plain.clone() },
            BlockProduct { is_all: false, ..plain.clone() },
            BlockProduct { normalized: Some(64), ..plain.clone() },
            BlockProduct { stored_quads: false, ..plain.clone() },
            BlockProduct { epilogue: Some(epilogue::sample()), ..plain.clone() },
            BlockProduct { epilogue: None, ..plain.clone() },
            BlockProduct {
                tile: BlockTile::Lanes { members: 64, subgroup: Some(32), own_rows: false },
                ..plain.clone()
            },
        ];
        for other in others {
            assert_eq!(with_norm(&other, 512, 512), None, "{}", other.name());
        }
    }

    #[test]
    fn kernels_on_units_take_the_memory_that_they_say() {
        let with_two = |sample: BlockProduct| {
            let two = sample.norm_of_results.is_none().then(|| BlockProduct { count: 2, ..sample.clone() });
            [sample].into_iter().chain(two)
        };
        for product in BlockProduct::samples().into_iter().flat_map(with_two) {
            let Some(bytes) = product.memory_on_units() else { continue };
            let kernel = KernelConfig::from(product.clone()).generate(Target::VULKAN).unwrap();
            assert_eq!(kernel.workgroup_memory, bytes, "{}", product.name());
        }
    }
}
