//! Matrix products.

use super::batched_product::BatchedProduct;
use super::matrix_units::{self, Cut};
use super::ordered_operands;
use super::precision;
use super::self_test;
use crate::backend::info::MemoryKind;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::{MAX_ELEMENTS, Shape, checked_elements};
use crate::base::word::Word;
use crate::device::Device;
use crate::engine::plan_cache::{Plan, PlanKey, PlanKind};
use crate::engine::pool::Buffer;
use crate::kernels::encoding::Encoding;
use crate::kernels::epilogue;
use crate::kernels::expr::{Domain, UnaryOp};
use crate::kernels::matmul::{self, Matmul, MatmulTile, Sizes, UnitVectors, Vectors, WindowsParameters};
use crate::kernels::window::WindowParameters;
use crate::lazy::{Epilogue, Placement, Produced, Producer, allocate};
use crate::tensor::Tensor;
use crate::tuning;
use smallvec::SmallVec;

const OP: &str = "matmul";

impl Tensor {
    /// Returns the matrix product, as PyTorch's `matmul` and numpy's `@`. The last two axes are the matrices, and all
    /// axes before them are broadcast. A vector on the left is a row, a vector on the right is a column, and its axis
    /// is not in the result. Operands may have any strides: transposed or sliced operands are not copied. `f16` and
    /// `bf16` are accumulated in `f32`. Products of bytes have 32 bits, so that sums fit: `i8` gives `i32`, and `u8`
    /// gives `u32`. Sums of integers wrap.
    ///
    /// ```
    /// # use marquetry::{Device, DType, Tensor};
    /// # let device = Device::best()?;
    /// let a = Tensor::new([[1f32, 2.0], [3.0, 4.0]], &device)?;
    /// let v = Tensor::new([10f32, 1.0], &device)?;
    /// assert_eq!(a.matmul(&v)?.to_vec::<f32>()?, [12.0, 34.0]);
    /// let batch = Tensor::zeros((5, 1, 2, 3), DType::F32, &device)?;
    /// let other = Tensor::zeros((4, 3, 6), DType::F32, &device)?;
    /// assert_eq!(batch.matmul(&other)?.dims(), [5, 4, 2, 6]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::RankMismatch`] for scalars, [`Error::DTypeMismatch`],
    /// [`Error::DeviceMismatch`]; [`Error::UnsupportedDType`] for `bool`.
    pub fn matmul(&self, rhs: &Tensor) -> Result<Tensor> {
        self.product(rhs, self.dtype().summed(), OP)
    }

    /// Returns the same as [`matmul`](Self::matmul), but in `f32`, also for `f16` and `bf16`. The sums are not rounded
    /// to these dtypes, where they may even overflow.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let a = Tensor::new([[1f32, 300.0]], &device)?.to_dtype(DType::F16)?;
    /// // `f16` has no number between 65,504 and infinity.
    /// assert_eq!(a.matmul_f32(&a.t()?)?.to_vec::<f32>()?, [90_001.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for dtypes other than `f32`, `f16` and `bf16`; else as [`matmul`](Self::matmul).
    pub fn matmul_f32(&self, rhs: &Tensor) -> Result<Tensor> {
        const OP: &str = "matmul_f32";
        if !self.dtype().is_single_float() {
            return Err(Error::UnsupportedDType { op: OP, dtype: self.dtype(), expected: "f32, f16 and bf16" });
        }
        self.product(rhs, DType::F32, OP)
    }

    /// Returns the matrix product, rounded to a dtype. It is accumulated in the `widened` dtype.
    pub(crate) fn product(&self, rhs: &Tensor, output: DType, op: &'static str) -> Result<Tensor> {
        self.product_with(rhs, output, precision::operands, op)
    }

    /// Returns the same, but products of `f32` whose precision the user has reduced are not rounded.
    pub(super) fn exact_product(&self, rhs: &Tensor, output: DType, op: &'static str) -> Result<Tensor> {
        self.product_with(rhs, output, |lhs, rhs, sizes| Ok(([lhs, rhs], sizes)), op)
    }

    fn product_with(
        &self,
        rhs: &Tensor,
        output: DType,
        operands: impl Fn(Tensor, Tensor, [usize; 3]) -> Result<([Tensor; 2], [usize; 3])>,
        op: &'static str,
    ) -> Result<Tensor> {
        for side in [self, rhs] {
            if side.rank() == 0 {
                return Err(Error::RankMismatch { op, expected: "1 or more", shape: side.shape().clone() });
            }
        }
        let lhs_matrix = if self.rank() == 1 { self.unsqueeze(0)? } else { self.clone() };
        let rhs_matrix = if rhs.rank() == 1 { rhs.unsqueeze(1)? } else { rhs.clone() };
        let (shape, sizes) = lhs_matrix.check_factors(&rhs_matrix, op)?;
        let ([lhs_matrix, rhs_matrix], sizes) = operands(lhs_matrix, rhs_matrix, sizes)?;
        let (lhs, rhs_matrix, around) = (lhs_matrix, rhs_matrix, None);
        let product = Product { lhs, rhs: rhs_matrix, windows: None, shape, sizes, output, around, op }.pending()?;
        let product = if rhs.rank() == 1 { product.squeeze(-1)? } else { product };
        if self.rank() == 1 { product.squeeze(if rhs.rank() == 1 { -1 } else { -2 }) } else { Ok(product) }
    }

    /// Returns the product of the windows of this tensor and a matrix, rounded to a dtype. The tensor has the axes
    /// (N, spatial.., C), of which the last one is contiguous, as the matrix's columns are. The result is
    /// (N, places.., columns of the matrix). A batch of matrices has an axis before, as the result then has: the first
    /// matrix is for the first channels, and so on. `None` if the windows are loose, and the device has no kernel for
    /// such.
    pub(super) fn product_of_windows(
        &self,
        windows: WindowsParameters,
        rhs: &Tensor,
        output: DType,
        op: &'static str,
    ) -> Result<Option<Tensor>> {
        let places: Shape =
            [self.dims()[0]].into_iter().chain(windows.windows.iter().map(|axis| axis.output)).collect();
        let (groups, [depth, n]) = split(rhs);
        let shape = groups.iter().chain(places.iter()).copied().chain([n]).collect();
        // Along the depth, loose windows have channels that are not in memory.
        let k = windows.present.map_or(depth, |present| depth / present * windows.channels);
        let rows = checked_elements(&places, op)?;
        let (lhs, rhs, sizes, is_loose) = (self.clone(), rhs.clone(), [rows, n, k], windows.present.is_some());
        let problem = BatchedProduct::of_windows(lhs.layout().offset, windows.clone(), rhs.layout(), sizes);
        let (windows, around) = (Some(windows), None);
        let product = Product { lhs, rhs, windows, shape, sizes, output, around, op };
        if is_loose && product.on_units(&problem).is_none() {
            return Ok(None);
        }
        product.pending().map(Some)
    }

    /// Returns the product of a few rows and a matrix, rounded to a dtype, with what a kernel can compute around it.
    /// `None` if no kernel can. The shapes fit together. With a gate, the matrix has two columns for each output: all
    /// gates, then what they gate.
    pub(super) fn product_of_few_rows(
        &self,
        norm: Option<(&Tensor, f64)>,
        rhs: &Tensor,
        gate: Option<UnaryOp>,
        output: DType,
        op: &'static str,
    ) -> Result<Option<Tensor>> {
        let depth = rhs.dims()[0];
        let columns = rhs.dims()[1] / if gate.is_some() { 2 } else { 1 };
        let sizes = [self.elem_count() / depth.max(1), columns, depth];
        let on_units = norm.is_none() && BatchedProduct::has_unit_vectors(self.device(), self.dtype());
        let most = if on_units { UnitVectors::MOST as usize } else { MOST_AROUND };
        let suits = self.dtype().is_single_float()
            && norm.is_none_or(|(weight, _)| weight.dtype() == self.dtype() && weight.layout().is_dense())
            && rhs.dtype() == self.dtype()
            && (1..=most).contains(&sizes[0])
            && columns > 0
            && depth > 0;
        if !suits {
            return Ok(None);
        }
        let (lhs, rhs) = (self.reshape((sizes[0], depth))?, rhs.narrow(1, 0, columns)?);
        let problem = BatchedProduct::new(lhs.layout(), rhs.layout(), sizes);
        let Some(tile) = tile_around(self.device(), self.dtype(), &problem, norm.is_some(), gate) else {
            return Ok(None);
        };
        // What gates gate is read 16 bytes at a time, a distance behind them.
        let run = 16 / self.dtype().size_in_bytes() as isize;
        let gates_fit = gate.is_none() || problem.rhs.column > 0 && problem.rhs.column % run == 0;
        let fits = match tile {
            // Without subgroups, the sums of more rows take more workgroup memory than every device has.
            MatmulTile::Vectors(tile) => sizes[0] <= MOST_AROUND && (tile.subgroup.is_some() || sizes[0] == 1),
            _ => true,
        };
        if !(gates_fit && fits) {
            return Ok(None);
        }
        let norm = norm.map(|(weight, eps)| -> Result<_> {
            weight.realize()?;
            Ok(RowNorm { weight: weight.clone(), eps: Word::of(eps, DType::F32, op)? })
        });
        let around = Some(Box::new(Around { tile, norm: norm.transpose()?, gate }));
        let shape = (sizes[0], columns).into();
        let product = Product { lhs, rhs, windows: None, shape, sizes, output, around, op }.pending()?;
        let shape: Shape = self.dims()[..self.rank() - 1].iter().copied().chain([columns]).collect();
        product.reshape(shape).map(Some)
    }

    /// Returns the shape of a product of matrices, and its m, n and k.
    pub(super) fn check_factors(&self, rhs: &Tensor, op: &'static str) -> Result<(Shape, [usize; 3])> {
        self.check_same_device(rhs, op)?;
        self.check_same_dtype(rhs, op)?;
        Domain::Numbers.check(self.dtype(), op)?;
        let mismatch = |hint| Error::ShapeMismatch { op, lhs: self.shape().clone(), rhs: rhs.shape().clone(), hint };
        let (lhs_batch, [m, k]) = split(self);
        let (rhs_batch, [rhs_k, n]) = split(rhs);
        if k != rhs_k {
            return Err(mismatch("the first one's last axis and the second one's last but one must be equal"));
        }
        if lhs_batch == rhs_batch {
            return Ok((Shape::joined(lhs_batch, &[m, n]), [m, n, k]));
        }
        let batch = Shape::from(lhs_batch)
            .broadcast_with(&rhs_batch.into(), op)
            .map_err(|_| mismatch("the axes before the last two must be equal or 1"))?;
        Ok((Shape::joined(&batch, &[m, n]), [m, n, k]))
    }

    /// Fails for dtypes that no sum of products has: `bool` and 8-bit integers.
    pub(super) fn check_products(&self, op: &'static str) -> Result<()> {
        if self.dtype() == self.dtype().summed() {
            return Ok(());
        }
        Err(Error::UnsupportedDType { op, dtype: self.dtype(), expected: "floats, i32, u32 and i64" })
    }
}

/// Chooses the tile of a product, from those that any device can compute.
pub(crate) fn portable_tile(device: &Device, dtype: DType, problem: &BatchedProduct) -> MatmulTile {
    let [m, n, k] = problem.sizes;
    let tuning = &device.tuning().matmul;
    let limits = &device.info().limits;
    let fits = |block: &&tuning::Block| {
        block.workgroup_memory(dtype.size_in_bytes().max(4) as u32) <= limits.max_workgroup_memory
            && block.invocations() <= limits.max_workgroup_invocations
    };
    let blocks = || tuning.blocks.iter().filter(fits);
    // A product of 64-bit integers takes several 32-bit products, and no larger tile stays in Intel's registers.
    let (Some(smallest), false) = (blocks().next_back(), dtype == DType::I64) else {
        // Lanes share the depth of a single output: with the other tiles, most lanes would be idle.
        if m * n == 1
            && k >= tuning.shortest
            && let Some(vectors) = problem.few_vectors(device, dtype)
        {
            return MatmulTile::Vectors(vectors);
        }
        if let Some(tile) = problem.broadcast(device, dtype) {
            return tile;
        }
        // A workgroup has 32 columns, or more if few of them are wasted. 64-bit sums take twice the registers.
        return MatmulTile::Registers {
            columns: if n < 96 || dtype.size_in_bytes() == 8 { 1 } else { tuning.columns },
        };
    };
    if let Some(vectors) = problem.few_vectors(device, dtype) {
        return MatmulTile::Vectors(vectors);
    }
    // Half of a block may not be idle, if there is a smaller one.
    let busy = |block: &&tuning::Block| {
        2 * n > block.shape[1] as usize && problem.blocks(block.shape).is_none_or(|count| count >= tuning.busy)
    };
    let largest = if dtype.size_in_bytes() == 8 { None } else { blocks().find(busy) };
    MatmulTile::Workgroup(problem.fitted((*largest.unwrap_or(smallest)).into()))
}

/// The most rows of a product whose kernel normalises rows, or applies gates on lanes. Each workgroup reads all rows.
pub(crate) const MOST_AROUND: usize = 2;

/// Returns the tile of a product of a few rows with a norm, a gate or both. `None` if no kernel computes it.
fn tile_around(
    device: &Device,
    dtype: DType,
    problem: &BatchedProduct,
    normalized: bool,
    gate: Option<UnaryOp>,
) -> Option<MatmulTile> {
    if let Some(vectors) = problem.few_rows(device, dtype) {
        return Some(MatmulTile::Vectors(Vectors { normalized, gate, ..vectors }));
    }
    let units = problem.unit_vectors(device, dtype, gate).filter(|_| problem.lengths.is_empty() && !normalized)?;
    let [tile, plain] = [units, UnitVectors { gate: None, ..units }].map(MatmulTile::UnitVectors);
    let output = if tile.stores(dtype) { dtype } else { dtype.widened() };
    let is_trusted = || self_test::is_trusted(device, &Matmul::of(Encoding::Dense(dtype), output, 0, plain));
    (problem.parts(device, tile) == 1 && is_trusted()).then_some(tile)
}

/// Returns whether products of a dtype use dot products of four bytes, if both operands lie along the depth.
fn takes_words(device: &Device, dtype: DType) -> bool {
    let faster = device.info().features.integer_dot_products || device.tuning().matmul.words;
    faster && matches!(dtype, DType::I8 | DType::U8)
}

/// Parts of the depth are multiples of this many elements, or words.
const PART_ALIGNMENT: usize = 64;

/// At most this many outputs of great depth are sums of products in memory, if their operands cannot be read as
/// vectors.
const FEW_SUMS: usize = 4;

/// The most products that are summed in this way: they take memory.
const MOST_SUMMED: usize = 1 << 26;

/// Returns the axes of the batch, and the two axes of the matrices.
fn split(x: &Tensor) -> (&[usize], [usize; 2]) {
    let (batch, matrix) = x.dims().split_at(x.rank() - 2);
    (batch, [matrix[0], matrix[1]])
}

/// A product of batches of matrices of checked shapes, rounded to a dtype.
#[derive(Clone)]
struct Product {
    lhs: Tensor,
    rhs: Tensor,
    /// If the left operand's rows are windows of `lhs`, where these are.
    windows: Option<WindowsParameters>,
    /// Of the product: the axes of the batch, m and n. If rows are windows, the axes of their places replace m.
    shape: Shape,
    /// m, n and k.
    sizes: [usize; 3],
    output: DType,
    /// Few products have it, and all are moved.
    around: Option<Box<Around>>,
    op: &'static str,
}

/// What the kernel of a few rows computes around the product: a norm, a gate or both.
#[derive(Clone)]
struct Around {
    tile: MatmulTile,
    /// The norm of the rows of `lhs`.
    norm: Option<RowNorm>,
    /// The function of gates. What they gate follows in memory behind the columns of `rhs`.
    gate: Option<UnaryOp>,
}

/// An RMS norm of rows: `x / sqrt(mean(x^2) + eps) * weight`.
#[derive(Clone)]
struct RowNorm {
    /// Begins its buffer, and is contiguous.
    weight: Tensor,
    eps: Word,
}

/// A launch that computes products of some shapes.
struct PlannedProduct {
    plan: Plan<Matmul>,
    /// The size of the product, without an epilogue.
    bytes: u64,
}

impl Producer for Product {
    fn accumulator(&self) -> DType {
        self.lhs.dtype().widened()
    }

    fn produce(&self, epilogue: Option<&Epilogue>) -> Result<Produced> {
        let (device, [m, n, k]) = (self.lhs.device(), self.sizes);
        let key = match device.runtime().with_plan(self.key(epilogue), |plan: &PlannedProduct| self.run(plan, epilogue))
        {
            Ok(produced) => return produced,
            Err(key) => key,
        };
        if let Some(windows) = &self.windows {
            let (offset, rhs) = (self.lhs.layout().offset, self.rhs.layout());
            let problem = BatchedProduct::of_windows(offset, windows.clone(), rhs, self.sizes);
            return self.in_blocks(&problem, epilogue, &key);
        }
        let batch = &self.shape[..self.shape.rank() - 2];
        let operand_shape = |rows, columns| Shape::joined(batch, &[rows, columns]);
        let lhs_view = self.lhs.layout().broadcast_to(&operand_shape(m, k), self.op)?;
        let rhs_view = self.rhs.layout().broadcast_to(&operand_shape(k, n), self.op)?;
        let problem = BatchedProduct::new(&lhs_view, &rhs_view, self.sizes);
        let dtype = self.lhs.dtype();
        if let Some(Around { tile, norm, gate }) = self.around.as_deref() {
            let tile = *tile;
            let behind_gates = gate.map(|_| n * problem.rhs.column.unsigned_abs());
            let problem = BatchedProduct { eps: norm.as_ref().map(|norm| norm.eps), behind_gates, ..problem };
            let output = if tile.stores(self.output) { self.output } else { dtype.widened() };
            return self.with_kernel(&problem, Matmul::of(Encoding::Dense(dtype), output, 0, tile), epilogue, &key);
        }
        if !device.takes(&Sizes { batch_rank: problem.lengths.len() }) {
            // The batch has too many axes that do not merge. In row-major order it has one.
            let lhs = self.lhs.broadcast_to(lhs_view.shape)?.contiguous()?;
            let rhs = self.rhs.broadcast_to(rhs_view.shape)?.contiguous()?;
            return Product { lhs, rhs, ..self.clone() }.produce(epilogue);
        }
        let few = problem.unit_vectors(device, dtype, None).map(MatmulTile::UnitVectors);
        if let Some(tile) = few.filter(|&tile| problem.parts(device, tile) == 1) {
            let output = if tile.stores(self.output) { self.output } else { dtype.widened() };
            let config = Matmul::of(Encoding::Dense(dtype), output, problem.lengths.len(), tile);
            if self_test::is_trusted(device, &config) {
                return self.with_kernel(&problem, config, epilogue, &key);
            }
        }
        let (lhs, rhs) = (&self.lhs, &self.rhs);
        let has_units = matrix_units::unit_for(device, lhs.dtype(), &problem).is_some();
        let is_read = has_units && self.on_units(&problem).is_some();
        let mut ordered = None;
        if has_units || takes_words(device, lhs.dtype()) {
            ordered = ordered_operands::for_units(lhs, rhs, &problem, is_read)?;
        }
        if ordered.is_none() && !is_read {
            ordered = ordered_operands::for_vectors(lhs, rhs, &problem)?;
        }
        if ordered.is_none() && !has_units {
            ordered = ordered_operands::for_lanes(lhs, rhs, &problem)?;
        }
        if let Some([lhs, rhs]) = ordered {
            let sizes = [m, n, lhs.dims()[lhs.rank() - 1]];
            return Product { lhs, rhs, sizes, ..self.clone() }.produce(epilogue);
        }
        self.in_blocks(&problem, epilogue, &key)
    }
}

impl Product {
    /// Returns the product as a tensor. The launch waits until the product is needed, so that the same kernel can
    /// compute an expression over it.
    fn pending(self) -> Result<Tensor> {
        let Product { output, op, sizes: [m, n, k], .. } = self;
        let placement = Placement::contiguous(self.shape.clone(), self.lhs.device());
        if placement.checked_elements(op)? == 0 || k == 0 {
            return Tensor::zeros(self.shape, output, self.lhs.device());
        }
        // Windows are not in memory.
        for (rows, columns) in [(m, k), (k, n)].into_iter().skip(usize::from(self.windows.is_some())) {
            if rows.saturating_mul(columns) > MAX_ELEMENTS {
                checked_elements(&(rows, columns).into(), op)?;
            }
        }
        for side in [&self.lhs, &self.rhs] {
            side.realize()?;
        }
        Tensor::from_producer(self, placement, output)
    }

    /// Computes the product on matrix units, if they can be used.
    fn in_blocks(&self, problem: &BatchedProduct, epilogue: Option<&Epilogue>, key: &PlanKey) -> Result<Produced> {
        if let Some((parts, config)) = self.on_units(problem) {
            return self.with_kernel(&parts, config, epilogue, key);
        }
        self.on_any_device(problem, epilogue, key)
    }

    /// Returns what the kernel binds before an epilogue's inputs.
    fn operands(&self) -> Result<SmallVec<[&Buffer; 4]>> {
        let mut buffers: SmallVec<[&Buffer; 4]> = SmallVec::new();
        buffers.push(self.lhs.buffer()?);
        buffers.push(self.rhs.buffer()?);
        if let Some(norm) = self.norm() {
            buffers.push(norm.weight.buffer()?);
        }
        Ok(buffers)
    }

    /// Computes the product with kernels that every device has. A tile that cannot store `output` stores the
    /// accumulated sums, which are converted afterwards.
    fn on_any_device(&self, problem: &BatchedProduct, epilogue: Option<&Epilogue>, key: &PlanKey) -> Result<Produced> {
        let (device, dtype) = (self.lhs.device(), self.lhs.dtype());
        let in_words = problem.in_words().filter(|_| takes_words(device, dtype));
        let operands = if in_words.is_some() { Encoding::Words(dtype) } else { Encoding::Dense(dtype) };
        let problem = in_words.as_ref().unwrap_or(problem);
        let tile = portable_tile(device, operands.factor(), problem);
        let parts = problem.parts(device, tile);
        if parts > 1 {
            return self.in_parts(problem, parts, operands).map(Produced::unfinished);
        }
        let output = if tile.stores(self.output) { self.output } else { dtype.widened() };
        let config = Matmul::of(operands, output, problem.lengths.len(), tile);
        let config = Matmul { windows: problem.form_of_windows(), ..config };
        self.with_kernel(problem, config, epilogue, key)
    }

    /// Computes the product with a kernel.
    fn with_kernel(
        &self,
        problem: &BatchedProduct,
        config: Matmul,
        epilogue: Option<&Epilogue>,
        key: &PlanKey,
    ) -> Result<Produced> {
        let (device, output) = (self.lhs.device(), config.output);
        if let Some(finished) = self.finished(problem, &config, epilogue, key)? {
            return Ok(finished);
        }
        if epilogue.is_none()
            && let Some(plan) = self.plan(problem, config.clone(), None)?
        {
            return self.run_first(plan, None, key);
        }
        let y = allocate(&self.shape, output, device, self.op)?;
        let mut buffers = self.operands()?;
        buffers.push(&y);
        problem.launch(device, config, &buffers, None)?;
        drop(buffers);
        self.stored(y, output, epilogue.is_none())
    }

    /// Returns the product that a kernel has stored as `output`. It is finished if there `is_nothing_else` to do.
    fn stored(&self, y: Buffer, output: DType, is_nothing_else: bool) -> Result<Produced> {
        if output == self.output && is_nothing_else {
            return Ok(Produced::Finished { result: y, kept: Default::default() });
        }
        let y = Tensor::from_buffer(y, self.shape.clone(), output, self.lhs.device());
        y.to_dtype(self.output).map(Produced::unfinished)
    }

    /// Computes a product of few outputs and great depth in parts of the depth, which are added up. Many workgroups
    /// then share an output. Sums of floats are compensated from the parts on.
    fn in_parts(&self, problem: &BatchedProduct, parts: usize, operands: Encoding) -> Result<Tensor> {
        let (device, dtype) = (self.lhs.device(), self.lhs.dtype());
        let (factor, wide) = (operands.factor(), dtype.widened());
        let is_vectors = problem.few_vectors(device, factor).is_some();
        let elements = self.shape.elem_count().unwrap_or(usize::MAX);
        let products = Shape::from((elements, self.sizes[2]));
        if !is_vectors && elements <= FEW_SUMS && products.elem_count().is_some_and(|n| n <= MOST_SUMMED) {
            let rows = self.lhs.to_dtype(wide)?.unsqueeze(-2)?;
            let columns = self.rhs.t()?.to_dtype(wide)?.unsqueeze(-3)?;
            return rows.mul(&columns)?.sum(-1)?.to_dtype(self.output);
        }
        let (lhs, rhs) = (self.lhs.buffer()?, self.rhs.buffer()?);
        let sums = |first: usize, depth: usize, parts: usize| -> Result<Tensor> {
            let part = problem.part(first, depth, parts);
            let tile = portable_tile(device, factor, &part);
            let batch_rank = part.lengths.len();
            let config = Matmul::of(operands, wide, batch_rank, tile);
            let [m, n, _] = problem.sizes;
            let shape: Shape = [problem.batches(), parts, m * n].into();
            checked_elements(&shape, self.op)?;
            let y = allocate(&shape, wide, device, self.op)?;
            part.launch(device, config.clone(), &[&*lhs, &*rhs, &y], None)?;
            Tensor::from_buffer(y, shape, wide, device).sum(1)
        };
        let depth = problem.sizes[2];
        // A part begins where a load of several elements begins.
        let each = depth / parts / PART_ALIGNMENT * PART_ALIGNMENT;
        let whole = sums(0, each, parts)?;
        let rest = depth - each * parts;
        let sum = if rest == 0 { whole } else { whole.add(&sums(each * parts, rest, 1)?)? };
        sum.reshape(self.shape.clone())?.to_dtype(self.output)
    }

    /// Returns the kernel that computes the product on matrix units, and the parts that it computes; `None` if they
    /// cannot be used.
    fn on_units(&self, problem: &BatchedProduct) -> Option<(BatchedProduct, Matmul)> {
        let (device, dtype) = (self.lhs.device(), self.lhs.dtype());
        let unit = matrix_units::unit_for(device, dtype, problem)?;
        let cuts = matrix_units::cuts(device.info(), &device.tuning().units, dtype, problem, unit);
        cuts.into_iter().find_map(|Cut { tile, splits, depths, .. }| {
            let parts = problem.split(splits, depths);
            let (output, batch_rank) = (self.output, parts.lengths.len());
            let tile = tile.with_rows(self.sizes[1], output);
            let config = Matmul::of(Encoding::Dense(dtype), output, batch_rank, tile);
            let config = Matmul { windows: problem.form_of_windows(), ..config };
            self_test::is_trusted(device, &config).then_some((parts, config))
        })
    }

    /// Computes the product and applies an epilogue; `None` if there is no epilogue, or if the kernel cannot apply it.
    fn finished(
        &self,
        problem: &BatchedProduct,
        config: &Matmul,
        epilogue: Option<&Epilogue>,
        key: &PlanKey,
    ) -> Result<Option<Produced>> {
        let (device, [_, n, _]) = (self.lhs.device(), self.sizes);
        let Some(epilogue) = epilogue else { return Ok(None) };
        let output = epilogue.expr.dtype();
        let tile = config.tile.with_rows(n, output);
        let Some((part, parameters)) = epilogue.plan(n, tile.stored_together() == 4) else { return Ok(None) };
        let kernel = Matmul { output, tile, epilogue: Some(part.into()), ..config.clone() };
        let bindings = if kernel.tile.has_parts() { 5 } else { 3 } + usize::from(self.norm().is_some());
        let halves = kernel.tile.stored_together() > 1 || device.info().features.f16;
        let stores = |dtype: DType| kernel.tile.stores(dtype) && (halves || dtype.size_in_bytes() != 2);
        if !epilogue.fits(&kernel, bindings, stores, device) {
            return Ok(None);
        }
        if let Some(plan) = self.plan(problem, kernel.clone(), Some(parameters.clone()))? {
            return self.run_first(plan, Some(epilogue), key).map(Some);
        }
        let finished = epilogue.run(self.operands()?, &[], (device, self.op), |buffers| {
            problem.launch(device, kernel, buffers, Some(parameters))
        });
        finished.map(Some)
    }

    fn norm(&self) -> Option<&RowNorm> {
        self.around.as_ref().and_then(|around| around.norm.as_ref())
    }

    /// Returns everything that the launch depends on, beside what is filled in at each launch.
    fn key(&self, epilogue: Option<&Epilogue>) -> PlanKey {
        let mut key = PlanKey::new(PlanKind::Product);
        key.extend(self.sizes.map(|size| size as u64));
        key.push(self.lhs.dtype() as u64 | (self.output as u64) << 8 | u64::from(self.norm().is_some()) << 16);
        let gate = self.around.as_ref().and_then(|around| around.gate);
        key.push(gate.map_or(0, |gate| 1 + gate as u64));
        for side in [&self.lhs, &self.rhs] {
            // Which loads of several elements are possible depends on the offset, modulo at most 64 elements.
            key.push(side.rank() as u64 | (side.layout().offset as u64 % 64) << 8);
            key.extend(side.dims().iter().map(|&length| length as u64));
            key.extend(side.strides().iter().map(|&stride| stride as u64));
        }
        if let Some(windows) = &self.windows {
            // Every key has the strides of `lhs`, and the depth, which tells the channels.
            key.push(1 << 63 | windows.present.unwrap_or(0) as u64);
            let axis = |axis: &WindowParameters| [axis.output, axis.kernel, axis.stride, axis.dilation, axis.before];
            key.extend(windows.windows.iter().flat_map(axis).map(|size| size as u64));
        }
        if let Some(&RowNorm { eps, .. }) = self.norm() {
            key.push(eps.stored_bits());
        }
        if let Some(epilogue) = epilogue {
            epilogue.push_key(&mut key);
        }
        key
    }

    /// Plans a launch. Returns `None` if the kernel binds more than the operands, the epilogue's
    /// buffers and the product, or counts offsets in words.
    fn plan(
        &self,
        problem: &BatchedProduct,
        kernel: Matmul,
        epilogue: Option<epilogue::Parameters>,
    ) -> Result<Option<PlannedProduct>> {
        let device = self.lhs.device();
        if kernel.tile.has_parts() || kernel.a.per_factor() > 1 {
            return Ok(None);
        }
        let groups = problem.groups(device, &kernel)?;
        let parameters = problem.all_parameters(epilogue);
        let set_numbers = |parameters: &mut matmul::Parameters, next: &mut dyn FnMut() -> u32| {
            let matmul::Parameters { sizes, epilogue, .. } = parameters;
            sizes.a.offset = next() as usize;
            sizes.b.offset = next() as usize;
            if let Some(epilogue) = epilogue {
                epilogue.set_numbers(next);
            }
        };
        let bytes = checked_elements(&self.shape, self.op)? as u64 * kernel.output.size_in_bytes() as u64;
        let plan = device.runtime().plan(kernel, parameters, groups, &set_numbers)?;
        Ok(Some(PlannedProduct { plan, bytes }))
    }

    /// Runs a plan for the first time, and keeps it.
    fn run_first(&self, plan: PlannedProduct, epilogue: Option<&Epilogue>, key: &PlanKey) -> Result<Produced> {
        let produced = self.run(&plan, epilogue)?;
        self.lhs.device().runtime().keep_plan(key, plan);
        Ok(produced)
    }

    /// Runs a plan.
    fn run(&self, planned: &PlannedProduct, epilogue: Option<&Epilogue>) -> Result<Produced> {
        let PlannedProduct { plan, bytes } = planned;
        let (device, kernel) = (self.lhs.device(), &plan.kernel);
        let offsets = [&self.lhs, &self.rhs].map(|side| side.layout().offset as u32).into_iter();
        if let (Some(epilogue), Some(config)) = (epilogue, &kernel.epilogue) {
            let numbers = offsets.chain(epilogue.numbers(config));
            return epilogue.run(self.operands()?, &[], (device, self.op), |buffers| {
                device.runtime().run_plan(plan, buffers, numbers)
            });
        }
        let y = device.runtime().allocate(*bytes, MemoryKind::Device)?;
        let mut buffers = self.operands()?;
        buffers.push(&y);
        device.runtime().run_plan(plan, &buffers, offsets)?;
        drop(buffers);
        self.stored(y, kernel.output, true)
    }
}
