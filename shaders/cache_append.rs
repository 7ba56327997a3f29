//! Writes the keys and values of new tokens into the pages of a cache. Queries and keys are rotated on the way, so that
//! a layer needs no kernel of its own for that.

use super::Family;
use super::elements::{Elements, Quads, Strides};
use super::pages::{PAGE, PageTable, Pages};
use super::parameters::{Form, Size, View, parameters};
use super::rotary::Pairs;
use crate::base::dtype::DType;
use crate::shader::{KernelBuilder, Value};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 128;

/// Each invocation writes four consecutive features of a query, a key or a value. The cache is `(2, pages, kv_heads,
/// PAGE, features)` in row-major order, keys before values. The output has the queries, `(tokens, heads, features)`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct CacheAppend {
    pub dtype: DType,
    /// How queries and keys are rotated, and the dtype of the tables for it.
    pub rotation: Option<(Pairs, DType)>,
}

parameters! {
    config: CacheAppend;
    host: Parameters;
    device: Declared;
    /// The new tokens of each sequence, and of all.
    each: Size,
    tokens: Size,
    heads: Size,
    kv_heads: Size,
    features: Size,
    pairs: Size,
    pages: PageTable,
    /// Where the values begin in the cache.
    values: Size,
    /// Strides along the tokens, the heads and the features.
    q: View = View(3),
    k: View = View(3),
    v: View = View(3),
    /// Strides along the positions and the pairs.
    cos: Option<View> = config.rotation.map(|_| View(2)),
    sin: Option<View> = config.rotation.map(|_| View(2)),
}

impl Family for CacheAppend {
    fn name(&self) -> String {
        let rotation = self.rotation.map_or(String::new(), |(pairs, table)| format!(", {table} tables, {pairs:?}"));
        format!("append to cache({}{rotation})", self.dtype).to_lowercase()
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let p = self.declare(k);
        let quads = p.features / 4;
        let place = k.global_index();
        let (row, first) = (place / quads, place % quads * 4);
        let all_heads = p.heads + p.kv_heads * 2;
        // Surplus invocations repeat the last token, and store nothing.
        let (token, head) = ((row / all_heads).min(p.tokens - 1), row % all_heads);
        let pages = Pages::new(k, &p.pages, token / p.each);
        let [q, keys, values] = ["q", "k", "v"].map(|name| Elements::input(k, name, self.dtype));
        let tables = self.rotation.zip(p.cos.as_ref().zip(p.sin.as_ref())).map(|((pairs, dtype), (cos, sin))| {
            let [cos, sin] = [("cos", cos), ("sin", sin)].map(|(name, at)| (Elements::input(k, name, dtype), at));
            (pairs, [cos, sin])
        });
        let (y, cache) = (Quads::output(k, "y", self.dtype), Quads::output(k, "cache", self.dtype));

        k.when(row.lt(p.tokens * all_heads), || {
            let position = pages.length - p.each + token % p.each;
            let page = pages.page_of(position);
            let lanes = [0, 1, 2, 3].map(|lane| first + lane);
            let load =
                |x: Elements<'k>, at: &Strides<'k>, head| lanes.map(|feature| x.load(at.at(&[token, head, feature])));
            let turned = |x: Elements<'k>, at: &Strides<'k>, head| match tables {
                Some((pairs, tables)) => lanes.map(|feature| {
                    let load = |feature| x.load(at.at(&[token, head, feature]));
                    let turn = |pair| tables.map(|(table, at)| table.load(at.at(&[position, pair])));
                    pairs.rotated(feature, p.pairs, load, turn)
                }),
                None => load(x, at, head),
            };
            let turned = |x, at, head| k.vector(&turned(x, at, head));
            let place = |head: Value<'k>| ((page * p.kv_heads + head) * PAGE + position % PAGE) * quads + first / 4;
            let (key, value) = (head - p.heads, head - p.heads - p.kv_heads);
            k.when(head.lt(p.heads), || {
                y.store(k, (token * p.heads + head) * quads + first / 4, turned(q, &p.q, head))
            })
            .otherwise(|| {
                k.when(key.lt(p.kv_heads), || cache.store(k, place(key), turned(keys, &p.k, key))).otherwise(|| {
                    cache.store(k, p.values / 4 + place(value), k.vector(&load(values, &p.v, value)));
                });
            });
        });
    }

    fn samples() -> Vec<Self> {
        let rotated = |dtype, pairs| CacheAppend { dtype, rotation: Some((pairs, DType::F32)) };
        let plain = CacheAppend { dtype: DType::BF16, rotation: None };
        vec![rotated(DType::F32, Pairs::Neighbours), rotated(DType::F16, Pairs::Halves), plain]
    }
}
