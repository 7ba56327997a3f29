//! Attention over the pages of a cache.

use super::{AttentionCall, AttentionConfig};
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::base::shape::{Dims, Shape};
use crate::engine::pool::Buffer;
use crate::kernels::attention::{Attention, Parameters};
use crate::kernels::pages::{self, PAGE};
use crate::kernels::parameters::Strided;
use crate::lazy::PendingLaunch;
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

    /// Returns the attention of queries `(tokens, heads, features)`, those of one sequence after the other. The last
    /// query of a sequence stands at its last key. The result is `(tokens, heads, features)`.
    pub fn attend(&self, query: &Tensor, config: &AttentionConfig, op: &'static str) -> Result<Tensor> {
        if config.mask.is_some() {
            let message = "attention over a cache takes no mask; give `causal`, a window, or the keys as a tensor";
            return Err(Error::InvalidArgument { op, message: message.into() });
        }
        let (heads, features) = (query.dim(1)?, query.dim(2)?);
        let query = query.reshape((self.count, self.each, heads, features))?.transpose(1, 2)?;
        query.realize()?;
        let [keys, values] = [self.first_page(false)?, self.first_page(true)?];
        let page = AttentionCall::new(&query, &keys, &values, config)?;
        let call = AttentionCall { keys: self.most, pages: true, packed: self.packed, ..page };
        let attended = call.attend_pages(self)?.to_dtype(query.dtype())?;
        // The next tokens of the sequences overwrite what this reads.
        attended.realize()?;
        attended.reshape((self.count * self.each, heads, features))
    }
}

impl AttentionCall<'_> {
    /// Returns the result, `(sequences, queries, heads, features)`, in the widened dtype.
    fn attend_pages(&self, layer: &PagedLayer<'_>) -> Result<Tensor> {
        let tile = self.choose_tile();
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
            span: config.has_span().then_some(span),
            pages: Some(layer.places.clone()),
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
        let inputs = [layer.sequences, self.query.buffer()?, cache, cache].into_iter().cloned().collect();
        let outer = [layer.count, self.queries, self.heads];
        let inner: &[usize] = if config.parts { &[parts, config.row_length()] } else { &[config.row_length()] };
        let shape: Shape = outer.iter().chain(inner).copied().collect();
        let (groups, dtype) = (blocks * parts, self.query.dtype().widened());
        let launch = PendingLaunch { kernel: config, parameters, groups, inputs, shape, dtype, device, op: super::OP };
        self.joined(Tensor::from_launch(launch)?)
    }
}
