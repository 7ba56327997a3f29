//! Writes the keys and values of new tokens into the pages of a cache. Queries and keys are rotated on the way, so that
//! a layer needs no kernel of its own for that.

use super::Family;
use super::elements::{Elements, Quads, Strides};
use super::pages::{BLOCK, LARGEST, PAGE, PageTable, Pages, scale_at};
use super::parameters::{Form, Size, View, parameters};
use super::rotary::Pairs;
use crate::base::dtype::DType;
use crate::shader::{Access, Array, KernelBuilder, Scalar, Type, Value};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 128;

/// Each invocation writes four consecutive features of a query, a key or a value. The cache is `(2, pages, kv_heads,
/// PAGE, features)` in row-major order, keys before values. The output has the queries, `(tokens, heads, features)`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct CacheAppend {
    pub dtype: DType,
    /// How queries and keys are rotated, and the dtype of the tables for it.
    pub rotation: Option<(Pairs, DType)>,
    /// Whether rows of the cache are packed: see [`packed_row`](super::pages::packed_row).
    pub packed: bool,
}

/// The buffer of a cache.
enum Cache<'k> {
    Plain(Quads<'k>),
    Packed(Packed<'k>),
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
    /// Where the values begin in the cache, and the length of a row: in elements, or bytes of packed rows.
    values: Size,
    stride: Size,
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
        let packed = if self.packed { ", packed" } else { "" };
        format!("append to cache({}{rotation}{packed})", self.dtype).to_lowercase()
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
        let is_there = row.lt(p.tokens * all_heads);
        // Surplus invocations repeat the last token, and store nothing.
        let (token, head) = ((row / all_heads).min(p.tokens - 1), row % all_heads);
        let pages = Pages::new(k, &p.pages, token / p.each);
        let [q, keys, values] = ["q", "k", "v"].map(|name| Elements::input(k, name, self.dtype));
        let tables = self.rotation.zip(p.cos.as_ref().zip(p.sin.as_ref())).map(|((pairs, dtype), (cos, sin))| {
            let [cos, sin] = [("cos", cos), ("sin", sin)].map(|(name, at)| (Elements::input(k, name, dtype), at));
            (pairs, [cos, sin])
        });
        let y = Quads::output(k, "y", self.dtype);
        let cache = match self.packed {
            true => Cache::Packed(Packed::new(k)),
            false => Cache::Plain(Quads::output(k, "cache", self.dtype)),
        };
        let (key, value) = (head - p.heads, head - p.heads - p.kv_heads);
        let position = pages.length - p.each + token % p.each;
        let page = pages.page_of(position);
        let row_at = |head: Value<'k>| ((page * p.kv_heads + head) * PAGE + position % PAGE) * p.stride;
        let row_of_cache = key.lt(p.kv_heads).select(row_at(key), p.values + row_at(value));

        let numbers = k.var(k.f32(0.0).splat(4));
        k.when(is_there, || {
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
            k.when(head.lt(p.heads), || {
                y.store(k, ((token * p.heads + head) * p.features + first) / 4, turned(q, &p.q, head));
            })
            .otherwise(|| {
                k.when(key.lt(p.kv_heads), || numbers.set(turned(keys, &p.k, key)))
                    .otherwise(|| numbers.set(k.vector(&load(values, &p.v, value))));
            });
        });
        let is_written = is_there & head.ge(p.heads);
        match cache {
            Cache::Plain(cache) => {
                k.when(is_written, || cache.store(k, (row_of_cache + first) / 4, numbers.get()));
            }
            Cache::Packed(cache) => cache.store(is_written, row_of_cache, [first, p.features], numbers.get()),
        }
    }

    fn samples() -> Vec<Self> {
        let rotated = |dtype, pairs, packed| CacheAppend { dtype, rotation: Some((pairs, DType::F32)), packed };
        let plain = CacheAppend { dtype: DType::BF16, rotation: None, packed: false };
        vec![
            rotated(DType::F32, Pairs::Neighbours, false),
            rotated(DType::F16, Pairs::Halves, false),
            rotated(DType::F16, Pairs::Halves, true),
            plain,
        ]
    }
}

/// The words of packed rows, and memory in which the invocations of a block compare their numbers.
struct Packed<'k> {
    words: Array<'k>,
    largest: Array<'k>,
}

impl<'k> Packed<'k> {
    /// The invocations that share a block.
    const SHARING: u32 = BLOCK as u32 / 4;

    fn new(k: &'k KernelBuilder) -> Self {
        Packed { words: k.buffer("cache", Type::U32, Access::Write), largest: k.workgroup_array(Type::F32, WORKGROUP) }
    }

    /// Stores four numbers behind the first ones of a row, if there is one: as `Q8_0`, in which the largest magnitude
    /// of a block becomes 127. All invocations must call this function.
    fn store(&self, is_written: Value<'k>, row: Value<'k>, [first, features]: [Value<'k>; 2], numbers: Value<'k>) {
        let k = row.kernel();
        let lane = k.local_index();
        let larger = |largest: Value<'k>, number: Value<'k>| largest.larger(number);
        let own = numbers.abs().lanes().into_iter().reduce(larger).unwrap_or(k.f32(0.0));
        self.largest.store(lane, own);
        k.barrier();
        let block = lane / Self::SHARING * Self::SHARING;
        let largest = (0..Self::SHARING).map(|other| self.largest.load(block + other)).fold(own, larger);
        let inverse = largest.gt(0.0).select(k.f32(LARGEST) / largest, 0.0);
        let bytes = (numbers * inverse.splat(4)).round().lanes().into_iter();
        let bytes = bytes.map(|number| number.convert(Scalar::I32).bitcast(Type::U32) & 0xff);
        let word = (0..).zip(bytes).map(|(i, byte)| byte << (8 * i)).reduce(|word, byte| word | byte);
        k.when(is_written, || {
            self.words.store((row + first) / 4, word.unwrap_or(k.u32(0)));
            k.when((lane % Self::SHARING).eq(0), || {
                let scale = (largest * (1.0 / f64::from(LARGEST))).bitcast(Type::U32);
                self.words.store(scale_at(row, features, first), scale);
            });
        });
    }
}
