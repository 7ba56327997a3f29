//! Appends to caches of keys and values.

use super::attention::PagedLayer;
use crate::base::error::{Error, Result};
use crate::engine::launch::Launch;
use crate::kernels::cache_append::{CacheAppend, Parameters, WORKGROUP};
use crate::kernels::parameters::Strided;
use crate::kernels::rotary::Pairs;
use crate::lazy::allocate;
use crate::tensor::Tensor;

/// How queries and keys are rotated: the pairs, and the cosines and sines, `(positions, pairs)`.
pub(crate) struct Rotation<'a> {
    pub pairs: Pairs,
    pub cos: &'a Tensor,
    pub sin: &'a Tensor,
}

impl PagedLayer<'_> {
    /// Checks the queries, keys and values of new tokens, and how they are rotated.
    pub fn check_new(
        &self,
        [query, key, value]: [&Tensor; 3],
        rotation: Option<&Rotation<'_>>,
        op: &'static str,
    ) -> Result<()> {
        let mismatch = |lhs: &Tensor, rhs: &Tensor, hint| {
            Err(Error::ShapeMismatch { op, lhs: lhs.shape().clone(), rhs: rhs.shape().clone(), hint })
        };
        for tensor in [query, key, value] {
            self.cache.check_same_device(tensor, op)?;
            if tensor.dtype() != self.dtype {
                return Err(Error::DTypeMismatch { op, lhs: self.dtype, rhs: tensor.dtype() });
            }
        }
        let [_, _, kv_heads, ..] = self.cache.dims()[..] else { unreachable!("caches have five axes") };
        let features = self.features;
        let tokens = self.count * self.each;
        if key.dims() != [tokens, kv_heads, features] {
            let hint = "keys (the first) are (tokens, kv_heads, features), as many as `extend` announced; a layer of \
                        the cache (the second) has (2, pages, kv_heads, tokens of a page, features)";
            return mismatch(key, self.cache, hint);
        }
        if value.shape() != key.shape() {
            return mismatch(key, value, "there must be as many values as keys, in as many heads");
        }
        let heads = query.dims()[1];
        if query.dims() != [tokens, heads, features] || heads == 0 || !heads.is_multiple_of(kv_heads) {
            let hint = "queries (the first) are (tokens, heads, features), and their heads are a multiple of those of \
                        the keys";
            return mismatch(query, key, hint);
        }
        if let Some(Rotation { cos, .. }) = rotation {
            self.cache.check_same_device(cos, op)?;
            if cos.dims()[0] < self.most {
                let message = format!(
                    "the rotary embedding has {} positions, and a sequence of the cache up to {}; make it as long",
                    cos.dims()[0],
                    self.most
                );
                return Err(Error::InvalidArgument { op, message });
            }
            if 2 * cos.dims()[1] > features {
                return mismatch(cos, key, "the embedding (the first) has at most features / 2 pairs");
            }
        }
        Ok(())
    }

    /// Writes the keys and values of new tokens, which have been checked. Returns the queries. Queries and keys are
    /// rotated, if there are pairs.
    pub fn append(
        &self,
        [query, key, value]: [&Tensor; 3],
        rotation: Option<Rotation<'_>>,
        op: &'static str,
    ) -> Result<Tensor> {
        let [_, _, kv_heads, _, stride] = self.cache.dims()[..] else { unreachable!("caches have five axes") };
        let (tokens, heads, features) = (self.count * self.each, query.dims()[1], self.features);
        let output = allocate(query.shape(), query.dtype(), query.device(), op)?;
        let at = |tensor: &Tensor| Strided::from(tensor.layout());
        let [q, k, v] = [query, key, value].map(at);
        let (cos, sin) = rotation.as_ref().map(|rotation| (rotation.cos, rotation.sin)).unzip();
        let config = CacheAppend {
            dtype: query.dtype(),
            rotation: rotation.as_ref().map(|rotation| (rotation.pairs, rotation.cos.dtype())),
            packed: self.packed,
        };
        let parameters = Parameters {
            each: self.each,
            tokens,
            heads,
            kv_heads,
            features,
            pairs: cos.map_or(0, |cos| cos.dims()[1]),
            pages: self.places.clone(),
            values: self.cache.strides()[0].unsigned_abs(),
            stride,
            q,
            k,
            v,
            cos: cos.map(at),
            sin: sin.map(at),
        };
        let mut buffers = vec![self.sequences, query.buffer()?, key.buffer()?, value.buffer()?];
        for table in cos.into_iter().chain(sin) {
            buffers.push(table.buffer()?);
        }
        buffers.extend([&output, self.cache.buffer()?]);
        let quads = tokens * (heads + 2 * kv_heads) * features / 4;
        let groups = quads.div_ceil(WORKGROUP as usize);
        query.device().runtime().run(Launch { kernel: config, buffers: &buffers, parameters, groups })?;
        Ok(Tensor::from_buffer(output, query.shape().clone(), query.dtype(), query.device()))
    }
}
