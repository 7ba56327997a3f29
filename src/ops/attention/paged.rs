//! Attention over the pages of a cache.

use super::choice::{MOST_BINDINGS, is_in_runs, run_of};
use super::{AttentionCall, AttentionConfig};
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::base::shape::{Dims, Shape};
use crate::engine::pool::Buffer;
use crate::kernels::attention::{Append, Attention, AttentionTile, Parameters, newest};
use crate::kernels::pages::{self, PAGE};
use crate::kernels::parameters::Strided;
use crate::lazy::PendingLaunch;
use crate::ops::Rotation;
use crate::tensor::Tensor;

/// The keys and values of a layer in the pages of a cache, for sequences that follow each other in its table.
pub(crate) struct PagedLayer<'a> {
    /// `(2, pages, kv_heads, PAGE, features)`: keys, then values. If rows are packed, the last axis has their bytes.
    pub cache: &'a Tensor,
    /// The dtype of queries, keys and values, and the features of a head.
    pub dtype: DType,
    pub features: usize,
    pub packed: bool,
    /// The words that [`pages`] describes.
    pub sequences: &'a Buffer,
    pub places: pages::Parameters,
    /// The number of sequences, and the new tokens of each.
    pub count: usize,
    pub each: usize,
    /// The most tokens of a sequence.
    pub most: usize,
}

/// The farthest that a query may look: kernels count in signed 32-bit integers.
const FARTHEST: usize = 1 << 29;

/// The most tokens of a sequence in a cache.
pub(crate) const MOST_TOKENS: usize = FARTHEST - PAGE as usize;

impl PagedLayer<'_> {
    /// Returns a view of a page of keys or values, `(1, kv_heads, PAGE, features)`. If rows are packed, it stands for
    /// what they hold, and nobody reads it.
    fn first_page(&self, values: bool) -> Result<Tensor> {
        let page = self.cache.narrow(0, values.into(), 1)?.narrow(1, 0, 1)?.squeeze(0)?;
        if !self.packed {
            return Ok(page);
        }
        let shape = [1, page.dim(1)?, page.dim(2)?, self.features];
        Tensor::zeros(shape, self.dtype, page.device())
    }

    /// Writes the keys and values of new tokens, `(tokens, kv_heads, features)`, and returns the attention of their
    /// queries, `(tokens, heads, features)`. Tokens come sequence by sequence. The last query of a sequence stands at
    /// its last key. Queries and keys are rotated. The result is `(tokens, heads, features)`.
    pub fn attend(
        &self,
        new: [&Tensor; 3],
        rotation: Option<Rotation<'_>>,
        config: &AttentionConfig,
        op: &'static str,
    ) -> Result<Tensor> {
        if config.mask.is_some() {
            let message = "attention over a cache takes no mask; give `causal`, a window, or the keys as a tensor";
            return Err(Error::InvalidArgument { op, message: message.into() });
        }
        self.check_new(new, rotation.as_ref(), op)?;
        // Without pairs nothing is rotated.
        let rotation = rotation.filter(|rotation| rotation.cos.dims()[1] > 0);
        let [query, key, value] = new;
        let (heads, features) = (query.dim(1)?, query.dim(2)?);
        let of_sequences = |query: &Tensor| query.reshape((self.count, self.each, heads, features))?.transpose(1, 2);
        let pages = [self.first_page(false)?, self.first_page(true)?];
        let queries = of_sequences(query)?;
        let call = self.call(&queries, &pages, config)?;
        let tile = call.choose_tile();
        let attended = match call.appended(self, tile, [key, value], rotation.as_ref()) {
            Some(appended) => call.attend_pages(self, tile, Some(appended))?.to_dtype(query.dtype())?,
            None => {
                let queries = of_sequences(&self.append(new, rotation, op)?)?;
                let call = self.call(&queries, &pages, config)?;
                call.attend_pages(self, call.choose_tile(), None)?.to_dtype(query.dtype())?
            }
        };
        // The next tokens of the sequences overwrite what this reads.
        attended.realize()?;
        attended.reshape((self.count * self.each, heads, features))
    }

    /// Returns the call of queries `(sequences, heads, tokens, features)`.
    fn call<'a>(
        &self,
        queries: &'a Tensor,
        [keys, values]: &'a [Tensor; 2],
        config: &'a AttentionConfig,
    ) -> Result<AttentionCall<'a>> {
        let page = AttentionCall::new(queries, keys, values, config)?;
        Ok(AttentionCall { keys: self.most, pages: true, packed: self.packed, ..page })
    }
}

/// A new key and value for each sequence, `(sequences, kv_heads, features)`, which attention appends itself.
struct Appended<'a> {
    append: Append,
    rows: [&'a Tensor; 2],
    rotation: Option<&'a Rotation<'a>>,
}

impl<'a> Appended<'a> {
    fn parameters(&self) -> newest::Parameters {
        let [key, value] = self.rows.map(|rows| {
            let Layout { strides, offset, .. } = rows.layout();
            Strided { offset: *offset, strides: strides[..2].into() }
        });
        newest::Parameters { key, value, pairs: self.rotation.map(|rotation| rotation.cos.dims()[1]) }
    }

    fn buffers(&self) -> Result<Vec<&'a Buffer>> {
        let tables = self.rotation.into_iter().flat_map(|rotation| [rotation.cos, rotation.sin]);
        self.rows.into_iter().chain(tables).map(Tensor::buffer).collect()
    }
}

impl AttentionCall<'_> {
    /// Returns new keys and values if the kernel that attends to them can append them.
    fn appended<'s>(
        &self,
        layer: &PagedLayer<'_>,
        tile: AttentionTile,
        rows: [&'s Tensor; 2],
        rotation: Option<&'s Rotation<'s>>,
    ) -> Option<Appended<'s>> {
        let append = Append { rotation: rotation.map(|rotation| rotation.pairs) };
        let is_plain = |table: &Tensor| {
            let is_whole = table.is_contiguous() && table.layout().offset == 0;
            is_whole && table.dtype() == DType::F32 && table.dims()[1].is_multiple_of(run_of(layer.dtype))
        };
        let tables = rotation.into_iter().flat_map(|rotation| [rotation.cos, rotation.sin]);
        // The cache is bound once.
        let bindings = MOST_BINDINGS - 1 + append.bindings();
        let device = self.query.device();
        let takes = || {
            let joining = self.config_of(tile.joining(true));
            // The first batch axis has the sequences.
            device.takes(&Attention { paged: true, append: Some(append), batch_rank: 2, ..joining })
                && device.info().limits.max_bindings as usize >= bindings
        };
        let suits = layer.each == 1
            && !self.packed
            && layer.dtype.size_in_bytes() == 2
            && matches!(tile, AttentionTile::FewRows(_))
            && rows.into_iter().all(is_in_runs)
            && tables.into_iter().all(is_plain)
            && takes();
        suits.then_some(Appended { append, rows, rotation })
    }

    /// Returns the result, `(sequences, queries, heads, features)`, in the widened dtype.
    fn attend_pages(
        &self,
        layer: &PagedLayer<'_>,
        tile: AttentionTile,
        appended: Option<Appended<'_>>,
    ) -> Result<Tensor> {
        let apart = self.has_heads_apart(tile);
        let group = self.heads / self.kv_heads;
        let (kv_heads, rows_of) = if apart { (self.heads, 1) } else { (self.kv_heads, group) };
        let mut lengths: Dims = [layer.count, self.kv_heads].into_iter().collect();
        lengths.extend(apart.then_some(group));
        let blocks = layer.count * self.row_blocks(tile);
        let span = self.choose_span(tile, blocks);
        let parts = self.keys.div_ceil(span);
        let tile = tile.joining(parts > 1);
        let config = Attention {
            dtype: self.query.dtype(),
            batch_rank: lengths.len(),
            features: self.features as u32,
            columns: self.columns as u32,
            mask: None,
            softcap: self.config.softcap.is_some(),
            paged: true,
            packed: self.packed,
            append: appended.as_ref().map(|appended| appended.append),
            prologues: Default::default(),
            tile,
            parts: parts > 1 && tile.stores_parts(),
            epilogue: None,
        };
        let window = self.config.sliding_window.map_or(FARTHEST, |window| window.min(FARTHEST)) as i32;
        let (scale, softcap) = self.factors()?;
        let Layout { strides, offset, .. } = self.query.layout();
        let [sequence, head, others @ ..] = &strides[..] else { unreachable!("queries have four axes") };
        let of_group = if apart { [head * group as isize, *head] } else { [head * group as isize, 0] };
        let in_group: &[isize] = if apart { &of_group[1..] } else { &[] };
        let q = [&[*sequence, of_group[0]], in_group, &[*head], others].concat();
        let pages_of = |values: usize| {
            let Layout { strides, offset, .. } = layer.cache.layout();
            let [side, page, head, others @ ..] = &strides[..] else { unreachable!("caches have five axes") };
            // All sequences have the same pages, and all heads of a group the same keys.
            let in_group: &[isize] = if apart { &[0] } else { &[] };
            let strides = [&[0, *head], in_group, &[*page], others].concat();
            Strided { offset: offset + values * side.unsigned_abs(), strides: strides.into_iter().collect() }
        };
        let parameters = Parameters {
            queries: self.queries,
            keys: self.keys,
            kv_heads,
            group: rows_of,
            forward: if self.config.causal { 1 } else { window },
            backward: 1 - window,
            scale,
            softcap,
            parts: config.splits_keys().then_some(parts),
            span: None,
            pages: Some(layer.places.clone()),
            append: appended.as_ref().map(Appended::parameters),
            lengths,
            q: Strided { offset: *offset, strides: q.into_iter().collect() },
            k: pages_of(0),
            v: pages_of(1),
            mask: None,
            q_prologue: None,
            k_prologue: None,
            v_prologue: None,
            mask_prologue: None,
            epilogue: None,
        };
        let device = self.query.device().clone();
        let cache = layer.cache.buffer()?;
        let of_queries = [layer.sequences, self.query.buffer()?];
        let inputs = match &appended {
            Some(appended) => appended.buffers()?.into_iter().chain([cache]).chain(of_queries).cloned().collect(),
            None => of_queries.into_iter().chain([cache, cache]).cloned().collect(),
        };
        let outer = [layer.count, self.queries, self.heads];
        let inner: &[usize] = if config.parts { &[parts, config.row_length()] } else { &[config.row_length()] };
        let shape: Shape = outer.iter().chain(inner).copied().collect();
        let (groups, dtype) = (blocks * parts, self.query.dtype().widened());
        let launch = PendingLaunch { kernel: config, parameters, groups, inputs, shape, dtype, device, op: super::OP };
        self.joined(Tensor::from_launch(launch)?)
    }
}
