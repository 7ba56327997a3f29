//! Attention.

mod choice;
mod paged;
mod self_test;

pub(crate) use paged::{MOST_TOKENS, PagedLayer};

use super::loaded::Loaded;
use super::run_if_it_holds_much;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::{Layout, collapse_all};
use crate::base::shape::checked_elements;
use crate::base::shape::{Dims, Shape};
use crate::base::word::Word;
use crate::device::Device;
use crate::engine::plan_cache::{PlanKey, PlanKind};
use crate::kernels::attention::{Attention, AttentionTile, MAX_COLUMNS, Parameters};
use crate::kernels::expr::Domain;
use crate::kernels::parameters::Strided;
use crate::lazy::{PendingLaunch, Placement, PlannedLaunch, PlannedRun};
use crate::tensor::Tensor;
use choice::run_of;
use smallvec::SmallVec;
use std::sync::Arc;

const OP: &str = "scaled_dot_product_attention";

/// What [`Tensor::scaled_dot_product_attention`] does beside attention itself. By default: all queries see all keys.
///
/// Queries and keys are aligned at their ends: the last query stands at the last key. So a few new queries see all of a
/// cache of keys, and with as many queries as keys the `i`th query stands at the `i`th key.
///
/// ```
/// use marquetry::AttentionConfig;
/// // Gemma 2
/// let config = AttentionConfig::default().causal(true).softcap(50.0).sliding_window(4096);
/// // What a model's file leaves out stays as it is by default.
/// let (softcap, sliding_window) = (None, None);
/// let config = AttentionConfig::default().softcap(softcap).sliding_window(sliding_window);
/// # let _ = config;
/// ```
#[derive(Debug, Clone, Default)]
pub struct AttentionConfig {
    mask: Option<Tensor>,
    causal: bool,
    sliding_window: Option<usize>,
    scale: Option<f64>,
    softcap: Option<f64>,
}

impl AttentionConfig {
    /// Sets which keys a query sees, broadcast to `(batch.., heads, queries, keys)`. Of `bool`, true for those that it
    /// sees, as in PyTorch; `u8` is read as `bool`, 0 as false and all else as true. Floats (`f32` or the queries'
    /// dtype) are added to the scores. Mind that [`masked_fill`](Tensor::masked_fill) takes masks the other way: true
    /// for what is replaced.
    #[must_use]
    pub fn mask(mut self, mask: impl Into<Option<Tensor>>) -> Self {
        self.mask = mask.into();
        self
    }

    /// Sets whether a query sees no key behind its own. If there are more keys than queries, PyTorch's `is_causal`
    /// aligns them at their beginnings: for that, narrow keys and values to as many as there are queries.
    #[must_use]
    pub fn causal(mut self, causal: bool) -> Self {
        self.causal = causal;
        self
    }

    /// Sets how many keys a query sees in each direction, its own included. With `causal`, it sees its own and those
    /// before it.
    #[must_use]
    pub fn sliding_window(mut self, keys: impl Into<Option<usize>>) -> Self {
        self.sliding_window = keys.into();
        self
    }

    /// Returns the same with a window of at most so many keys.
    pub(crate) fn within(&self, most: Option<usize>) -> AttentionConfig {
        let window = self.sliding_window.into_iter().chain(most).min();
        AttentionConfig { sliding_window: window, ..self.clone() }
    }

    /// Sets what products are multiplied by; `1 / sqrt(d)` by default.
    #[must_use]
    pub fn scale(mut self, scale: impl Into<Option<f64>>) -> Self {
        self.scale = scale.into();
        self
    }

    /// Sets a cap of the scores: they become `cap * tanh(score / cap)`, before a mask is added.
    #[must_use]
    pub fn softcap(mut self, cap: impl Into<Option<f64>>) -> Self {
        self.softcap = cap.into();
        self
    }
}

impl Tensor {
    /// Returns the attention of these queries: `softmax(q k^T / sqrt(d)) v` for each head. One kernel computes it and
    /// keeps no matrix of scores in memory.
    ///
    /// Queries are `(batch.., heads, queries, d)`, keys `(batch.., kv_heads, keys, d)`, values
    /// `(batch.., kv_heads, keys, d_v)`. The result is `(batch.., heads, queries, d_v)`. The batch axes broadcast.
    /// `heads` is a multiple of `kv_heads`: each key head serves `heads / kv_heads` consecutive query heads (grouped
    /// and multi-query attention). Operands may have any strides: the views that `transpose(1, 2)` gives of
    /// `(batch, tokens, heads, d)` are read without a copy. Sums, softmax and its statistics are computed in `f32`, or
    /// in `f64` for `f64`.
    ///
    /// In memory, the result has the tokens before the heads: `transpose(1, 2)` and a reshape to `(batch, tokens,
    /// heads * d_v)` take no copy.
    ///
    /// Matrix units compute 16 or more queries of `f16` or `bf16` that share keys. On GPUs of NVIDIA they also compute
    /// two to eight, if no operand has more than 128 columns. Then the weights of the values are rounded to that dtype.
    ///
    /// If a query sees no key, its result is zeros. That is so if `false` or minus infinity masks all keys, or if there
    /// are none. Keys that a query does not see may hold anything. The values of these keys must be finite, as they are
    /// multiplied by a weight of 0.
    ///
    /// ```
    /// # use marquetry::{AttentionConfig, Device, Tensor};
    /// # let device = Device::best()?;
    /// // One head, two queries, two keys, of one feature each.
    /// let q = Tensor::new([[[0f32], [0.0]]], &device)?;
    /// let k = Tensor::new([[[1f32], [2.0]]], &device)?;
    /// let v = Tensor::new([[[10f32], [20.0]]], &device)?;
    /// let all = q.scaled_dot_product_attention(&k, &v, &AttentionConfig::default())?;
    /// assert_eq!(all.to_vec::<f32>()?, [15.0, 15.0]);
    /// let causal = AttentionConfig::default().causal(true);
    /// let before = q.scaled_dot_product_attention(&k, &v, &causal)?;
    /// assert_eq!(before.to_vec::<f32>()?, [10.0, 15.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::RankMismatch`] below three axes; [`Error::ShapeMismatch`]; [`Error::DTypeMismatch`],
    /// [`Error::DeviceMismatch`]; [`Error::UnsupportedDType`] for integers, or for the dtype of the mask;
    /// [`Error::InvalidArgument`] for a window of 0, or for a cap that is not positive and finite;
    /// [`Error::SizeOverflow`].
    pub fn scaled_dot_product_attention(
        &self,
        key: &Tensor,
        value: &Tensor,
        config: &AttentionConfig,
    ) -> Result<Tensor> {
        let problem = AttentionCall::new(self, key, value, config)?;
        let AttentionCall { columns, .. } = problem;
        if checked_elements(&problem.output_shape(columns), OP)? == 0 || problem.keys == 0 {
            return Tensor::zeros(problem.output_shape(columns), self.dtype(), self.device());
        }
        // In memory, the tokens come before the heads.
        let turned = |unrounded: Tensor| -> Result<Tensor> {
            let output = unrounded.to_dtype(self.dtype())?;
            // Otherwise the kernel would store both.
            drop(unrounded);
            let operands = [Some(self), Some(key), Some(value), config.mask.as_ref()];
            run_if_it_holds_much(&output, operands.into_iter().flatten())?;
            output.transpose(-3, -2)
        };
        if columns <= MAX_COLUMNS {
            return turned(problem.attend()?);
        }
        // Several kernels read them.
        for tensor in [Some(self), Some(key), config.mask.as_ref()].into_iter().flatten() {
            tensor.realize()?;
        }
        // A kernel holds at most `MAX_COLUMNS` columns: the values are cut into parts.
        let parts = (0..columns).step_by(MAX_COLUMNS).map(|first| {
            let value = value.narrow(-1, first, MAX_COLUMNS.min(columns - first))?;
            AttentionCall::new(self, key, &value, config)?.attend()
        });
        turned(Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, -1)?)
    }

    /// Returns the mask `(heads, queries, keys)` of attention with linear biases, in `f32`. It is `-slope * |i - j|`
    /// for key `j` and a query that stands at key `i`. Queries and keys are aligned at their ends. If `heads` is a
    /// power of two, the slopes are `2^(-8 n / heads)` for `n` from 1 on. Otherwise the heads take the slopes of the
    /// next smaller power of two, then every second slope of the next larger one. O. Press et al., "Train Short, Test
    /// Long: Attention with Linear Biases Enables Input Length Extrapolation", 2021.
    ///
    /// With [`causal`](AttentionConfig::causal) attention, the mask for one query, `(heads, 1, keys)`, serves all
    /// queries: the masks of two queries differ by one number for each row, which does not change a softmax.
    ///
    /// ```
    /// # use marquetry::{AttentionConfig, DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let mask = Tensor::alibi_mask(8, 1, 3, &device)?;
    /// assert_eq!(mask.narrow(0, 0, 2)?.to_vec::<f32>()?, [-1.0, -0.5, 0.0, -0.5, -0.25, 0.0]);
    /// let config = AttentionConfig::default().mask(mask).causal(true);
    /// let x = Tensor::ones((2, 8, 3, 16), DType::F32, &device)?;
    /// assert_eq!(x.scaled_dot_product_attention(&x, &x, &config)?.dims(), [2, 8, 3, 16]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::SizeOverflow`].
    pub fn alibi_mask(heads: usize, queries: usize, keys: usize, device: &Device) -> Result<Tensor> {
        let shape: Shape = [heads, queries, keys].into();
        if checked_elements(&shape, "alibi_mask")? == 0 {
            return Tensor::zeros(shape, DType::F32, device);
        }
        let slopes = Tensor::from_vec(alibi_slopes(heads), (heads, 1, 1), device)?;
        let query = Tensor::arange(0u32, queries as u32, device)?.to_dtype(DType::F32)?.unsqueeze(-1)?;
        let key = Tensor::arange(0u32, keys as u32, device)?.to_dtype(DType::F32)?;
        let distance = key.sub(&(query + (keys as f64 - queries as f64))?)?.abs()?;
        distance.mul(&slopes)?.neg()
    }
}

/// The slopes of attention with linear biases.
fn alibi_slopes(heads: usize) -> Vec<f32> {
    let power = 1 << heads.ilog2();
    let slopes = |count: usize| (1..=count).map(move |n| 2f64.powf(-8.0 * n as f64 / count as f64) as f32);
    slopes(power).chain(slopes(2 * power).step_by(2)).take(heads).collect()
}

/// Something of each operand: the queries, the keys, the values, and the mask if there is one.
type Each<T> = SmallVec<[T; 4]>;

/// The checked tensors of a call, and the sizes that they share.
struct AttentionCall<'a> {
    query: &'a Tensor,
    key: &'a Tensor,
    value: &'a Tensor,
    config: &'a AttentionConfig,
    /// The batch axes.
    batch: Shape,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    features: usize,
    columns: usize,
    /// Whether keys and values are pages of a cache, and whether their rows are packed.
    pages: bool,
    packed: bool,
}

/// The most queries or keys: kernels count positions in signed 32-bit integers.
const MAX_LENGTH: usize = 1 << 30;

impl<'a> AttentionCall<'a> {
    fn new(query: &'a Tensor, key: &'a Tensor, value: &'a Tensor, config: &'a AttentionConfig) -> Result<Self> {
        Domain::Floats.check(query.dtype(), OP)?;
        for tensor in [key, value] {
            query.check_same_device(tensor, OP)?;
            query.check_same_dtype(tensor, OP)?;
        }
        for tensor in [query, key, value] {
            if tensor.rank() < 3 {
                return Err(Error::RankMismatch { op: OP, expected: "3 or more", shape: tensor.shape().clone() });
            }
        }
        let mismatch = |lhs: &Tensor, rhs: &Tensor, hint| {
            Err(Error::ShapeMismatch { op: OP, lhs: lhs.shape().clone(), rhs: rhs.shape().clone(), hint })
        };
        let ([q_batch, k_batch, v_batch], [q, k, v]) =
            ([query, key, value].map(batch_axes), [query, key, value].map(inner_axes));
        if q[2] != k[2] {
            return mismatch(query, key, "queries and keys must have as many features, along their last axis");
        }
        if k[..2] != v[..2] {
            return mismatch(key, value, "there must be as many values as keys, in as many heads");
        }
        if k[0] == 0 && q[0] != 0 || k[0] != 0 && !q[0].is_multiple_of(k[0]) {
            // The usual cause is another order of the axes, with the tokens in the place of the heads.
            let hint = "queries and keys are (batch, heads, tokens, features), and the heads of the queries must be a \
                        multiple of those of the keys; if yours are (batch, tokens, heads, features), call \
                        `transpose(1, 2)` on each";
            return mismatch(query, key, hint);
        }
        let batch = q_batch.broadcast_with(&k_batch, OP).and_then(|batch| batch.broadcast_with(&v_batch, OP));
        let Ok(batch) = batch else {
            return mismatch(query, key, "the axes before the last three must be equal or 1");
        };
        if config.sliding_window == Some(0) {
            let message = "a sliding window of 0 keys has not even a query's own; give 1 or more".into();
            return Err(Error::InvalidArgument { op: OP, message });
        }
        let as_computed = |number: f64| if query.dtype() == DType::F64 { number } else { (number as f32).into() };
        if let Some(cap) = config.softcap.filter(|&cap| !(as_computed(cap) > 0.0 && as_computed(cap).is_finite())) {
            let message = format!("the cap of scores must be positive and finite, not {cap}");
            return Err(Error::InvalidArgument { op: OP, message });
        }
        if q[1].max(k[1]) > MAX_LENGTH {
            let shape = if q[1] > k[1] { query.shape() } else { key.shape() };
            return Err(Error::SizeOverflow { op: OP, shape: shape.clone(), limit: MAX_LENGTH as u64 });
        }
        let problem = AttentionCall {
            query,
            key,
            value,
            config,
            batch,
            heads: q[0],
            kv_heads: k[0],
            queries: q[1],
            keys: k[1],
            features: q[2],
            columns: v[2],
            pages: false,
            packed: false,
        };
        problem.check_mask()?;
        Ok(problem)
    }

    fn check_mask(&self) -> Result<()> {
        let Some(mask) = &self.config.mask else { return Ok(()) };
        self.query.check_same_device(mask, OP)?;
        if ![DType::Bool, DType::U8, DType::F32, self.query.dtype()].contains(&mask.dtype()) {
            let expected = "bool, u8, f32 or the dtype of the queries as a mask";
            return Err(Error::UnsupportedDType { op: OP, dtype: mask.dtype(), expected });
        }
        let shape = self.shape(self.heads, [self.queries, self.keys]);
        let fits = mask.layout().broadcast_to(&shape, OP);
        fits.map(drop).map_err(|_| Error::ShapeMismatch {
            op: OP,
            lhs: mask.shape().clone(),
            rhs: shape,
            hint: "the mask (the first) must broadcast to (batch, heads, queries, keys), with queries and keys given \
                   as (batch, heads, tokens, features)",
        })
    }

    /// Returns the shape of a matrix for each of `heads` heads.
    fn shape(&self, heads: usize, matrix: [usize; 2]) -> Shape {
        self.batch.iter().copied().chain([heads]).chain(matrix).collect()
    }

    fn output_shape(&self, columns: usize) -> Shape {
        self.shape(self.heads, [self.queries, columns])
    }

    /// Returns the result, `(batch.., queries, heads, columns)`, in the widened dtype. No size is 0.
    fn attend(&self) -> Result<Tensor> {
        let operands: Each<&Tensor> = self.operands().collect();
        if operands.iter().any(|operand| operand.as_ref().is_expression()) {
            return self.attend_anew(None);
        }
        let device = self.query.device();
        let launch = match device.runtime().with_plan(self.key(), Arc::<PlannedLaunch<Attention>>::clone) {
            Ok(launch) => launch,
            Err(key) => return self.attend_anew(Some(key)),
        };
        let (scale, softcap) = self.factors()?;
        let scalars = [scale].into_iter().chain(softcap).flat_map(Word::words);
        let offsets = operands.iter().map(|operand| operand.layout().offset as u32);
        let numbers = scalars.chain(offsets).collect();
        let inputs = operands.iter().map(|operand| operand.buffer().cloned()).collect::<Result<_>>()?;
        let (placement, dtype) = (Placement::contiguous(launch.shape.clone(), device), launch.dtype);
        let run = PlannedRun { launch, numbers, inputs, device: device.clone(), op: OP };
        let output = Tensor::from_producer(run, placement, dtype)?;
        self.joined(output)
    }

    fn operands(&self) -> impl Iterator<Item = &'a Tensor> {
        [self.query, self.key, self.value].into_iter().chain(&self.config.mask)
    }

    /// Returns everything that the launch depends on, beside buffers, offsets, the scale and the cap.
    fn key(&self) -> PlanKey {
        let AttentionConfig { causal, sliding_window, softcap, .. } = self.config;
        let mut key = PlanKey::new(PlanKind::Attention);
        key.push(u64::from(*causal) | u64::from(softcap.is_some()) << 1);
        key.push(sliding_window.map_or(0, |keys| keys as u64));
        for operand in self.operands() {
            let aligned = operand.layout().offset.is_multiple_of(run_of(operand.dtype()));
            key.push(operand.dtype() as u64 | (operand.rank() as u64) << 8 | u64::from(aligned) << 16);
            key.extend(operand.dims().iter().map(|&length| length as u64));
            key.extend(operand.strides().iter().map(|&stride| stride as u64));
        }
        key
    }

    /// Returns the scale and the cap of the scores.
    fn factors(&self) -> Result<(Word, Option<Word>)> {
        let word = |factor| Word::of(factor, self.query.dtype().widened(), OP);
        let scale = self.config.scale.unwrap_or(1.0 / (self.features.max(1) as f64).sqrt());
        Ok((word(scale)?, self.config.softcap.map(word).transpose()?))
    }

    /// The same if the launch has not been planned, or if an operand is a pending expression. With a `key`, the launch
    /// is planned.
    fn attend_anew(&self, key: Option<PlanKey>) -> Result<Tensor> {
        let query_shape = self.shape(self.heads, [self.queries, self.features]);
        let key_shape = self.shape(self.kv_heads, [self.keys, self.features]);
        let value_shape = self.shape(self.kv_heads, [self.keys, self.columns]);
        let mask_shape = self.shape(self.heads, [self.queries, self.keys]);
        let operands = [(self.query, query_shape), (self.key, key_shape), (self.value, value_shape)];
        let mut operands: Each<(&Tensor, Shape)> = operands.into_iter().collect();
        operands.extend(self.config.mask.as_ref().map(|mask| (mask, mask_shape)));
        // The key heads are the last batch axis. The query heads that share a key head are an axis of their own.
        let rank = self.batch.rank();
        let mut batch: Dims = self.batch.iter().copied().chain([self.kv_heads]).collect();

        let tile = self.choose_tile();
        if let AttentionTile::MatrixUnits(_) = tile
            && let Some([query, key, value]) = self.in_runs()?
        {
            return AttentionCall::new(&query, &key, &value, self.config)?.attend();
        }
        let (block_rows, block_keys) = tile.block();
        let group = self.heads / self.kv_heads;
        let apart = self.has_heads_apart(tile);
        let (kv_heads, rows_of) = if apart { (self.heads, 1) } else { (self.kv_heads, group) };
        if apart {
            batch.push(group);
        }
        let row_blocks = (rows_of * self.queries).div_ceil(block_rows);
        let blocks = self.batch.iter().product::<usize>() * self.row_blocks(tile);
        let span = self.choose_span(tile, blocks);
        let parts = self.keys.div_ceil(span);
        let tile = tile.joining(parts > 1);
        let parts_apart = parts > 1 && tile.stores_parts();
        let config = Attention { batch_rank: batch.len(), parts: parts_apart, ..self.config_of(tile) };
        let reads = [span.div_ceil(block_keys), row_blocks * tile.loads_per_block()];
        let (mut config, loaded) = self.load(config, &operands, reads)?;
        let view = |(x, (_, shape)): (&Loaded, &(&Tensor, Shape))| match x.view.shape() == shape {
            true => Ok(x.view.layout().clone()),
            false => x.view.layout().broadcast_to(shape, OP),
        };
        let views: Each<Layout> = loaded.iter().zip(&operands).map(view).collect::<Result<_>>()?;
        let batch_strides = |view: &Layout| -> Dims<isize> {
            let heads = view.strides[rank];
            // Queries and masks have the heads of a group side by side. Keys and values have one for all of them.
            let [head, in_group] = if view.shape[rank] == self.kv_heads {
                [heads, 0]
            } else {
                [heads.wrapping_mul(group as isize), heads]
            };
            view.strides[..rank].iter().copied().chain([head]).chain(apart.then_some(in_group)).collect()
        };
        let batch_views: Each<Dims<isize>> = views.iter().map(batch_strides).collect();
        let batch_views: Each<&[isize]> = batch_views.iter().map(|view| &view[..]).collect();
        let (lengths, strides) = collapse_all(&batch, &batch_views);
        config.batch_rank = lengths.len();
        let device = self.query.device();
        if !device.takes(&config) {
            return self.attend_in_order(&operands);
        }

        let wide = self.query.dtype().widened();
        let [forward, backward] = self.reach();
        let (scale, softcap) = self.factors()?;
        let mut operands_at = views.iter().zip(strides).enumerate().map(|(i, (view, strides))| {
            let of_group = if i == 0 || i == 3 { rank } else { rank + 1 };
            let strides = strides.iter().chain(&view.strides[of_group..]).copied().collect();
            Strided { offset: view.offset, strides }
        });
        let mut next = || operands_at.next().unwrap_or_default();
        let mut prologues = loaded.iter().map(|x| x.parameters.clone());
        let mut next_prologue = || prologues.next().flatten();
        let parameters = Parameters {
            queries: self.queries,
            keys: self.keys,
            kv_heads,
            group: rows_of,
            forward,
            backward,
            scale,
            softcap,
            parts: config.splits_keys().then_some(parts),
            span: config.has_span().then_some(span),
            pages: None,
            append: None,
            lengths,
            q: next(),
            k: next(),
            v: next(),
            mask: operands_at.next(),
            q_prologue: next_prologue(),
            k_prologue: next_prologue(),
            v_prologue: next_prologue(),
            mask_prologue: next_prologue(),
            epilogue: None,
        };
        let shape: Shape = self.batch.iter().copied().chain([self.queries, self.heads]).collect();
        let of_rows = |more: &[usize]| -> Shape { shape.iter().chain(more).copied().collect() };
        let (device, groups) = (device.clone(), blocks * parts);
        let inputs: SmallVec<_> = loaded.into_iter().flat_map(|x| x.buffers).collect();
        let (length, launch_parts) = (config.row_length(), config.parts);
        let shape = if launch_parts { of_rows(&[parts, length]) } else { of_rows(&[length]) };
        let launch = PendingLaunch { kernel: config, parameters, groups, inputs, shape, dtype: wide, device, op: OP };
        if let Some(key) = key {
            let planned = PlannedLaunch::new(&launch, Parameters::set_numbers);
            launch.device.runtime().keep_plan(&key, Arc::new(planned));
        }
        self.joined(Tensor::from_launch(launch)?)
    }

    /// Returns the result from the output of the kernel.
    fn joined(&self, output: Tensor) -> Result<Tensor> {
        // The results of parts have an axis more.
        if output.rank() == self.batch.rank() + 3 { Ok(output) } else { self.join(&output) }
    }

    /// Prepares the operands: each is loaded through its expression, if that pays. A kernel loads each query `reads[0]`
    /// times, and each key and value `reads[1]` times. It does so again wherever they are broadcast.
    fn load(
        &self,
        mut config: Attention,
        operands: &[(&Tensor, Shape)],
        reads: [usize; 2],
    ) -> Result<(Attention, Each<Loaded>)> {
        let mut loaded: Each<Loaded> = SmallVec::new();
        for (i, (tensor, shape)) in operands.iter().enumerate() {
            let broadcast = shape.elem_count().unwrap_or(usize::MAX).div_ceil(tensor.elem_count().max(1));
            let reads = broadcast.saturating_mul([reads[0], reads[1], reads[1], 1][i]);
            // The other operands and the result have buffers too.
            let known: usize = loaded.iter().map(|x| x.buffers.len()).sum();
            let shared = if config.tile.joins() { 2 } else { 0 };
            let bindings = known + operands.len() - i + shared;
            let in_runs = i < 3 && config.tile.reads_runs();
            let with_prologue = |prologue| {
                let mut config = config.clone();
                config.prologues[i] = prologue;
                config
            };
            let x = match in_runs {
                true => Loaded::computed(tensor)?,
                false => Loaded::new(tensor, reads, bindings, with_prologue)?,
            };
            config.prologues[i] = x.prologue.clone();
            loaded.push(x);
        }
        Ok((config, loaded))
    }

    /// Computes the result from operands in row-major order, if the batch axes do not merge and are too many for the
    /// parameters. In row-major order they merge. The mask is copied last, as its copy may be much larger.
    fn attend_in_order(&self, operands: &[(&Tensor, Shape)]) -> Result<Tensor> {
        let in_order = |(tensor, shape): &(&Tensor, Shape)| tensor.broadcast_to(shape.clone())?.contiguous();
        let dense = operands[..3].iter().all(|(tensor, shape)| tensor.is_contiguous() && tensor.shape() == shape);
        let [query, key, value] = [&operands[0], &operands[1], &operands[2]].map(in_order);
        let mask = operands.get(3).map(|mask| if dense { in_order(mask) } else { Ok(mask.0.clone()) }).transpose()?;
        let config = self.config.clone().mask(mask);
        AttentionCall::new(&query?, &key?, &value?, &config)?.attend()
    }

    /// Returns `[forward, backward]`: a query sees the keys from `query + backward` up to but not including
    /// `query + forward`.
    fn reach(&self) -> [i32; 2] {
        let (queries, keys) = (self.queries as i64, self.keys as i64);
        let window = self.config.sliding_window.map_or(i64::MAX, |window| window.min(MAX_LENGTH) as i64);
        let ahead = if self.config.causal { 1 } else { window };
        // The last query stands at the last key. Beyond these limits there are no keys.
        let forward = ahead.saturating_add(keys - queries).min(keys);
        let backward = (keys - queries).saturating_sub(window).saturating_add(1).max(-queries);
        [forward, backward].map(|reach| reach as i32)
    }

    /// Joins the results of parts of the keys, `(batch.., queries, heads, parts, columns + 1)`. Each row holds the
    /// result of a part and the logarithm of its divisor.
    fn join(&self, output: &Tensor) -> Result<Tensor> {
        let weights = output.narrow(-1, self.columns, 1)?.softmax(-2)?;
        weights.t()?.matmul(&output.narrow(-1, 0, self.columns)?)?.squeeze(-2)
    }
}

/// The axes before the last three.
fn batch_axes(x: &Tensor) -> Shape {
    x.dims()[..x.rank() - 3].into()
}

/// The last three axes: heads and a matrix.
fn inner_axes(x: &Tensor) -> [usize; 3] {
    [3, 2, 1].map(|from_last| x.dims()[x.rank() - from_last])
}
