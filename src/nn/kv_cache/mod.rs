//! The keys and values of a language model's tokens.

mod announced;
mod pages;

use super::Rope;
use crate::base::block_format::BlockFormat;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::device::Device;
use crate::engine::launch::Launch;
use crate::engine::pool::Buffer;
use crate::kernels::pages::{BLOCK, PAGE, Parameters as Places, packed_row};
use crate::kernels::store::{MOST_QUADS, Parameters, Store};
use crate::lazy::allocate;
use crate::ops::{AttentionConfig, MOST_TOKENS, PagedLayer};
use crate::tensor::Tensor;
use announced::{Announced, Run};
use pages::{Pages, Tokens, pages_of};
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const EXTEND: &str = "extend";
const ATTEND: &str = "attend";

/// What a [`KvCache`] holds.
///
/// ```
/// use marquetry::{DType, nn::KvCacheConfig};
/// // 32 layers, 8 heads of 128 features; 4 sequences of up to 8,192 tokens, which share memory for 16,384.
/// let config = KvCacheConfig::new(32, 8, 128).dtype(DType::F16).length(8192).sequences(4).tokens(16384);
/// # let _ = config;
/// ```
#[derive(Debug, Clone)]
pub struct KvCacheConfig {
    layers: usize,
    kv_heads: usize,
    features: usize,
    dtype: DType,
    format: Option<BlockFormat>,
    length: usize,
    sequences: usize,
    tokens: Option<usize>,
    window: Option<usize>,
}

impl KvCacheConfig {
    /// Returns the configuration for a model: its layers, the key heads of a layer, and the features of a head. By
    /// default, the cache has the dtype `f32`, and one sequence of up to 2,048 tokens.
    pub fn new(layers: usize, kv_heads: usize, features: usize) -> Self {
        let (dtype, length, sequences) = (DType::F32, 2048, 1);
        let (format, tokens, window) = (None, None, None);
        KvCacheConfig { layers, kv_heads, features, dtype, format, length, sequences, tokens, window }
    }

    /// Sets the dtype of queries, keys and values: `f32`, `f16` or `bf16`.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Packs keys and values in blocks of 32 numbers: 8 bits for each, and a scale. [`BlockFormat::Q8_0`] is the only
    /// format. A row of 128 features takes 144 bytes instead of the 256 of `f16`, and one of 64 takes 80 instead of
    /// 128. Each number is wrong by at most 0.4 % of the largest one of its block.
    ///
    /// ```
    /// use marquetry::{BlockFormat, DType, nn::KvCacheConfig};
    /// let config = KvCacheConfig::new(32, 8, 128).dtype(DType::F16).packed(BlockFormat::Q8_0);
    /// # let _ = config;
    /// ```
    #[must_use]
    pub fn packed(mut self, format: impl Into<Option<BlockFormat>>) -> Self {
        self.format = format.into();
        self
    }

    /// Sets the most tokens of a sequence.
    #[must_use]
    pub fn length(mut self, tokens: usize) -> Self {
        self.length = tokens;
        self
    }

    /// Sets the most sequences that grow at a time.
    #[must_use]
    pub fn sequences(mut self, sequences: usize) -> Self {
        self.sequences = sequences;
        self
    }

    /// Sets the tokens of all sequences that there is memory for. By default, each of the sequences may have its
    /// [`length`](Self::length). Memory is taken in pages of 64 tokens.
    #[must_use]
    pub fn tokens(mut self, tokens: impl Into<Option<usize>>) -> Self {
        self.tokens = tokens.into();
        self
    }

    /// Sets how many tokens a query sees at most, its own included, if that holds for all layers. Memory of tokens
    /// that no query will see is used again. See [`AttentionConfig::sliding_window`]: layers may have smaller windows.
    #[must_use]
    pub fn window(mut self, tokens: impl Into<Option<usize>>) -> Self {
        self.window = tokens.into();
        self
    }

    /// Returns the length of a row, and the dtype of its elements in memory.
    fn row(&self) -> (usize, DType) {
        match self.format {
            Some(_) => (packed_row(self.features), DType::I8),
            None => (self.features, self.dtype),
        }
    }

    fn check(&self) -> Result<()> {
        const OP: &str = "KvCache::new";
        let mistake = |message| Err(Error::InvalidArgument { op: OP, message });
        let KvCacheConfig { layers, kv_heads, features, dtype, format, length, sequences, tokens, window } = *self;
        if ![DType::F32, DType::F16, DType::BF16].contains(&dtype) {
            return Err(Error::UnsupportedDType { op: OP, dtype, expected: "f32, f16 or bf16" });
        }
        if [layers, kv_heads, features, length, sequences].contains(&0) || tokens == Some(0) || window == Some(0) {
            return mistake(format!("no number of the configuration may be 0: {self:?}"));
        }
        if !features.is_multiple_of(4) || features > MOST_FEATURES {
            return mistake(format!(
                "{features} features of a head: take a multiple of 4, and {MOST_FEATURES} at most"
            ));
        }
        if let Some(format) = format.filter(|&format| format != BlockFormat::Q8_0) {
            return mistake(format!("keys and values cannot be packed as {format}; take Q8_0, or none"));
        }
        if format.is_some() && !features.is_multiple_of(BLOCK) {
            return mistake(format!("{features} features of a head: packed ones take a multiple of {BLOCK}"));
        }
        if sequences > MOST_SEQUENCES {
            return mistake(format!("{sequences} sequences at a time are too many; {MOST_SEQUENCES} are possible"));
        }
        if length > MOST_TOKENS {
            return mistake(format!("{length} tokens of a sequence are too many; {MOST_TOKENS} are possible"));
        }
        Ok(())
    }
}

/// What no length and no page is: a word that the device may not have.
const UNKNOWN: u32 = u32::MAX;

/// The most features of a head, which kernels hold in registers.
const MOST_FEATURES: usize = 256;

/// The most sequences of a pass.
const MOST_SEQUENCES: usize = 1 << 16;

/// A sequence of tokens in a [`KvCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sequence {
    slot: usize,
    /// Tells it from all other sequences.
    number: u64,
}

/// The keys and values of tokens, for all layers of a language model, and attention over them.
///
/// A cache holds several sequences, of different lengths. A pass of the model first [announces](Self::extend) the new
/// tokens of each sequence. Then each layer calls [`attend`](Self::attend) with their queries, keys and values: it
/// rotates them, writes keys and values into the cache, and computes the attention.
///
/// Keys and values lie in pages of 64 tokens, which sequences take as they grow. Nothing is copied when a sequence
/// grows, and no tensor shows the cache's memory, so nobody can see it change. Lengths and pages are in memory of the
/// device. So a captured [`Step`](crate::Step) serves all tokens: announce the new tokens, then run the step.
///
/// ```
/// use marquetry::nn::{KvCache, KvCacheConfig, Rope};
/// use marquetry::{AttentionConfig, DType, Device, Tensor};
///
/// let device = Device::best()?;
/// let rope = Rope::new(64, 10_000.0, 128, &device)?;
/// let mut cache = KvCache::new(&KvCacheConfig::new(1, 2, 64).length(128), &device)?;
/// let sequence = cache.add();
/// let causal = AttentionConfig::default().causal(true);
/// // Four heads of queries, two of keys and values: a prompt of five tokens.
/// let random = |tokens, heads| Tensor::randn(0f32, 1.0, (tokens, heads, 64), &device);
/// cache.extend(&[(sequence, 5)])?;
/// let y = cache.attend(0, [&random(5, 4)?, &random(5, 2)?, &random(5, 2)?], Some(&rope), &causal)?;
/// assert_eq!(y.dims(), [5, 4, 64]);
/// // Every further token runs the same step.
/// cache.extend(&[(sequence, 1)])?;
/// let step = device.capture(|args| {
///     let q = args.input("q", (1, 4, 64), DType::F32)?;
///     let k = args.input("k", (1, 2, 64), DType::F32)?;
///     let v = args.input("v", (1, 2, 64), DType::F32)?;
///     Ok([("y", cache.attend(0, [&q, &k, &v], Some(&rope), &causal)?)])
/// })?;
/// for token in 0..3 {
///     if token > 0 {
///         cache.extend(&[(sequence, 1)])?;
///     }
///     let (q, k, v) = (random(1, 4)?, random(1, 2)?, random(1, 2)?);
///     step.run([("q", (&q).into()), ("k", (&k).into()), ("v", (&v).into())])?;
/// }
/// assert_eq!(cache.length(sequence)?, 8);
/// # Ok::<(), marquetry::Error>(())
/// ```
pub struct KvCache {
    config: KvCacheConfig,
    /// Of each layer `(2, pages, kv_heads, PAGE, features)`: keys, then values.
    layers: Vec<Tensor>,
    /// The words that [`crate::kernels::pages`] describes, and what the device will find there.
    sequences: Buffer,
    words: Vec<u32>,
    pages: Pages,
    /// By slot. Slots without tokens are free.
    tokens: Vec<Option<(u64, Tokens)>>,
    /// What [`extend`](Self::extend) has announced last.
    announced: Arc<Announced>,
    device: Device,
}

impl KvCache {
    /// Makes a cache without sequences. It takes its memory at once.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a configuration that is not possible; [`Error::UnsupportedDType`];
    /// [`Error::SizeOverflow`]; [`Error::OutOfMemory`].
    pub fn new(config: &KvCacheConfig, device: &Device) -> Result<KvCache> {
        const OP: &str = "KvCache::new";
        config.check()?;
        let KvCacheConfig { kv_heads, length, sequences, .. } = *config;
        let pages = config.tokens.map_or_else(|| pages_of(length).saturating_mul(sequences), pages_of);
        let (row, dtype) = config.row();
        let shape: Shape = [2, pages, kv_heads, PAGE as usize, row].into();
        // Kernels count elements in 32 bits.
        if shape.elem_count().is_none_or(|elements| elements > u32::MAX as usize) {
            return Err(Error::SizeOverflow { op: OP, shape, limit: u32::MAX.into() });
        }
        let layer = |_| {
            let buffer = allocate(&shape, dtype, device, OP)?;
            Ok(Tensor::from_buffer(buffer, shape.clone(), dtype, device))
        };
        let words = sequences.next_multiple_of(4).saturating_add(sequences.saturating_mul(row_of(length)));
        let sequences = allocate(&words.into(), DType::U32, device, OP)?;
        Ok(KvCache {
            layers: (0..config.layers).map(layer).collect::<Result<_>>()?,
            sequences,
            words: vec![UNKNOWN; words],
            pages: Pages::new(pages),
            tokens: Vec::new(),
            announced: Arc::default(),
            device: device.clone(),
            config: config.clone(),
        })
    }

    /// Adds a sequence without tokens.
    pub fn add(&mut self) -> Sequence {
        self.insert(Tokens::default())
    }

    fn insert(&mut self, tokens: Tokens) -> Sequence {
        static SEQUENCES: AtomicU64 = AtomicU64::new(0);
        let number = SEQUENCES.fetch_add(1, Ordering::Relaxed);
        let slot = self.tokens.iter().position(Option::is_none).unwrap_or_else(|| {
            self.tokens.push(None);
            self.tokens.len() - 1
        });
        self.tokens[slot] = Some((number, tokens));
        Sequence { slot, number }
    }

    fn find(&self, sequence: Sequence, op: &'static str) -> Result<&Tokens> {
        match self.tokens.get(sequence.slot) {
            Some(Some((number, tokens))) if *number == sequence.number => Ok(tokens),
            _ => {
                let message = "the sequence is of another cache, or was removed".into();
                Err(Error::InvalidArgument { op, message })
            }
        }
    }

    fn layer(&self, layer: usize, op: &'static str) -> Result<&Tensor> {
        self.layers.get(layer).ok_or_else(|| {
            let message = format!("the cache has {} layers, and no layer {layer}", self.layers.len());
            Error::InvalidArgument { op, message }
        })
    }

    /// Returns the number of tokens of a sequence.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a sequence that the cache does not have.
    pub fn length(&self, sequence: Sequence) -> Result<usize> {
        Ok(self.find(sequence, "length")?.length)
    }

    /// Returns how many tokens there is memory for, in pages that no sequence has.
    pub fn free_tokens(&self) -> usize {
        self.pages.free() * PAGE as usize
    }

    /// Adds a sequence with the tokens of another one. The two share their pages. If one of them grows, it first gets
    /// a copy of a page that is not full.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a sequence that the cache does not have.
    pub fn fork(&mut self, sequence: Sequence) -> Result<Sequence> {
        let tokens = self.find(sequence, "fork")?.clone();
        let shared = self.pages.share(&tokens);
        Ok(self.insert(shared))
    }

    /// Shortens a sequence to its first tokens. Tokens that were announced must be announced again.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a sequence that the cache does not have or that is shorter, or if the window has
    /// left tokens behind that the next query would see.
    pub fn rewind(&mut self, sequence: Sequence, length: usize) -> Result<()> {
        const OP: &str = "rewind";
        let mut tokens = self.find(sequence, OP)?.clone();
        let mistake = |message| Err(Error::InvalidArgument { op: OP, message });
        if length > tokens.length {
            return mistake(format!("the sequence has {} tokens, not {length}", tokens.length));
        }
        let seen_from = self.config.window.map_or(0, |window| (length + 1).saturating_sub(window));
        let first = tokens.forgotten * PAGE as usize;
        if length > 0 && seen_from < first {
            return mistake(format!(
                "the window has left the first {first} of {} tokens behind, and token {length} would see those from \
                 {seen_from} on; rewind to 0, or to less before the end",
                tokens.length
            ));
        }
        self.pages.shorten(&mut tokens, length);
        if length == 0 {
            tokens.forgotten = 0;
        }
        self.tokens[sequence.slot] = Some((sequence.number, tokens));
        self.announced.clear();
        Ok(())
    }

    /// Removes a sequence. Its memory serves others.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a sequence that the cache does not have.
    pub fn remove(&mut self, sequence: Sequence) -> Result<()> {
        let mut tokens = self.find(sequence, "remove")?.clone();
        self.pages.shorten(&mut tokens, 0);
        self.tokens[sequence.slot] = None;
        self.announced.clear();
        Ok(())
    }

    /// Announces new tokens of some sequences, which the next pass of the model writes: for each sequence, how many.
    /// Layers then take the tokens in this order. Sequences that get equally many tokens should follow each other:
    /// one kernel serves them all.
    ///
    /// The tokens count at once. If the pass fails, [rewind](Self::rewind) the sequences.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no tokens, too many sequences or tokens, too few free pages, a sequence that the
    /// cache does not have or that is named twice, and inside a capture; [`Error::OutOfMemory`]. After an error, all
    /// sequences are as before, and nothing is announced.
    pub fn extend(&mut self, tokens: &[(Sequence, usize)]) -> Result<()> {
        let runtime = self.device.runtime();
        runtime.refuse_capture(EXTEND, "it announces tokens of one pass")?;
        let announced = self.announced.clone();
        // Steps that other threads run do not come between.
        let mut pass = announced.lock();
        pass.clear();
        self.check_extension(tokens)?;
        let before = tokens.iter().map(|&(sequence, _)| self.find(sequence, EXTEND).cloned());
        let before = before.collect::<Result<Vec<Tokens>>>()?;
        if let Err(error) = self.grow(tokens).and_then(|()| self.store_places(tokens)) {
            for (&(Sequence { slot, .. }, _), before) in tokens.iter().zip(before) {
                if let Some((_, tokens)) = &mut self.tokens[slot] {
                    self.pages.restore(tokens, before);
                }
            }
            return Err(error);
        }
        pass.set(Run::of_counts(tokens.iter().map(|&(_, more)| more)));
        Ok(())
    }

    /// Gives sequences the pages for more tokens.
    fn grow(&mut self, tokens: &[(Sequence, usize)]) -> Result<()> {
        let window = self.config.window;
        for &(Sequence { slot, .. }, _) in tokens {
            if let Some((_, tokens)) = &mut self.tokens[slot] {
                self.pages.forget(tokens, window);
            }
        }
        for &(Sequence { slot, .. }, more) in tokens {
            let Some((_, tokens)) = &mut self.tokens[slot] else { continue };
            let length = tokens.length;
            match self.pages.grow(tokens, more) {
                Some(Some([from, to])) => self.copy_page(from as usize, to as usize)?,
                Some(None) => {}
                None => {
                    let message = format!(
                        "there are too few pages of {PAGE} tokens left for {more} tokens behind {length}; remove or \
                         rewind sequences, or make the cache for more `tokens`"
                    );
                    return Err(Error::InvalidArgument { op: EXTEND, message });
                }
            }
        }
        Ok(())
    }

    fn check_extension(&self, tokens: &[(Sequence, usize)]) -> Result<()> {
        let mistake = |message| Err(Error::InvalidArgument { op: EXTEND, message });
        let (limit, most) = (self.config.sequences, self.config.length);
        if tokens.is_empty() || tokens.iter().any(|&(_, more)| more == 0) {
            return mistake("each sequence must get a token or more, and there must be a sequence".into());
        }
        if tokens.len() > limit {
            return mistake(format!("{} sequences cannot grow at a time; the cache is for {limit}", tokens.len()));
        }
        let mut named = FxHashSet::default();
        for &(sequence, more) in tokens {
            let length = self.find(sequence, EXTEND)?.length;
            if length.checked_add(more).is_none_or(|all| all > most) {
                return mistake(format!(
                    "{more} tokens behind {length} are more than the {most} that a sequence may have"
                ));
            }
            if !named.insert(sequence) {
                return mistake("a sequence is named twice".into());
            }
        }
        Ok(())
    }

    /// Copies the keys and values of a page, in all layers.
    fn copy_page(&self, from: usize, to: usize) -> Result<()> {
        for layer in &self.layers {
            let copy = layer.narrow(1, from, 1)?.copied()?;
            let part = layer.narrow(1, to, 1)?;
            part.write_part(part.layout(), &copy)?;
        }
        Ok(())
    }

    /// Writes the lengths and pages of the sequences that grow, where they differ from what the device has.
    fn store_places(&mut self, tokens: &[(Sequence, usize)]) -> Result<()> {
        let (table, row) = (self.table(), row_of(self.config.length));
        let mut changed: BTreeMap<usize, [u32; 4]> = BTreeMap::new();
        for (place, &(sequence, _)) in tokens.iter().enumerate() {
            let Tokens { length, pages, forgotten } = self.find(sequence, EXTEND)?;
            let pages = (table + place * row + forgotten..).zip(pages.iter().copied());
            for (at, word) in [(place, *length as u32)].into_iter().chain(pages) {
                if self.words[at] != word {
                    let quad = changed.entry(at / 4).or_insert_with(|| self.words.as_chunks().0[at / 4]);
                    quad[at % 4] = word;
                }
            }
        }
        let changed: Vec<(usize, [u32; 4])> = changed.into_iter().collect();
        let neighbours = changed.chunk_by(|(a, _), (b, _)| a + 1 == *b).flat_map(|quads| quads.chunks(MOST_QUADS));
        for quads in neighbours {
            let (first, words) = (quads[0].0, quads.iter().flat_map(|(_, words)| *words));
            let parameters = Parameters { first, words: words.clone().collect() };
            let (kernel, buffers) = (Store { quads: quads.len() }, &[&self.sequences]);
            let stored = self.device.runtime().run(Launch { kernel, buffers, parameters, groups: 1 });
            for (known, word) in self.words[4 * first..].iter_mut().zip(words) {
                *known = if stored.is_ok() { word } else { UNKNOWN };
            }
            stored?;
        }
        Ok(())
    }

    /// Returns where the table of pages begins.
    fn table(&self) -> usize {
        self.config.sequences.next_multiple_of(4)
    }

    /// Writes the keys and values of the new tokens to a layer, and returns the attention of their queries over all
    /// tokens of their sequences.
    ///
    /// Queries are `(tokens, heads, features)`, keys and values `(tokens, kv_heads, features)`, of the cache's dtype.
    /// They have the tokens that [`extend`](Self::extend) announced, in its order. The result is `(tokens, heads,
    /// features)`. `rope` rotates queries and keys by the positions of their tokens. A query stands at its own key, so
    /// `config` is usually causal. See [`Tensor::scaled_dot_product_attention`].
    ///
    /// This is recorded now, behind all work that was recorded before. For one token of each sequence, one kernel may
    /// do all of it. Otherwise one kernel writes, and another one attends.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a layer that the cache does not have, if no tokens were announced or others than
    /// these, for a mask, and for an embedding with fewer positions than a sequence may have;
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::DeviceMismatch`]; [`Error::OutOfMemory`].
    pub fn attend(
        &self,
        layer: usize,
        [query, key, value]: [&Tensor; 3],
        rope: Option<&Rope>,
        config: &AttentionConfig,
    ) -> Result<Tensor> {
        let cache = self.layer(layer, ATTEND)?;
        let runs = self.announced.runs(&self.device)?;
        // The pages before the window may belong to others.
        let config = &config.within(self.config.window);
        let tokens: usize = runs.iter().map(|run| run.count * run.each).sum();
        for tensor in [query, key, value] {
            if tensor.rank() != 3 || tensor.dims()[0] != tokens {
                let message = format!(
                    "{tokens} tokens were announced, so queries, keys and values must be ({tokens}, heads, features), \
                     not {}",
                    tensor.shape()
                );
                return Err(Error::InvalidArgument { op: ATTEND, message });
            }
        }
        let mut first = [0; 2];
        let outputs = runs.iter().map(|&Run { count, each }| {
            let [sequence, token] = first;
            first = [sequence + count, token + count * each];
            let places = Places { first: sequence, table: self.table(), row: row_of(self.config.length) };
            let (sequences, most) = (&self.sequences, self.config.length);
            let KvCacheConfig { dtype, features, format, .. } = self.config;
            let packed = format.is_some();
            let layer = PagedLayer { cache, dtype, features, packed, sequences, places, count, each, most };
            let [q, k, v] = [query, key, value].map(|tensor| tensor.narrow(0, token, count * each));
            layer.attend([&q?, &k?, &v?], rope.map(Rope::rotation), config, ATTEND)
        });
        let outputs = outputs.collect::<Result<Vec<_>>>()?;
        match &outputs[..] {
            [output] => Ok(output.clone()),
            _ => Tensor::cat(&outputs, 0),
        }
    }

    /// Returns copies of the keys and values of a sequence in a layer, `(kv_heads, tokens, features)` each, as they are
    /// now. Packed ones are unpacked to `f32`. Keys are rotated. Tokens that the window has left behind are missing.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a layer or sequence that the cache does not have, and inside a capture;
    /// [`Error::OutOfMemory`].
    pub fn keys_and_values(&self, layer: usize, sequence: Sequence) -> Result<(Tensor, Tensor)> {
        const OP: &str = "keys_and_values";
        self.device.runtime().refuse_capture(OP, "it copies what the cache has now")?;
        let Tokens { length, pages, forgotten } = self.find(sequence, OP)?;
        let cache = self.layer(layer, OP)?;
        let length = length - forgotten * PAGE as usize;
        let KvCacheConfig { kv_heads, .. } = self.config;
        let pages = Tensor::from_slice(pages, pages.len(), &self.device)?;
        let both = cache.index_select(&pages, 1)?.transpose(1, 2)?;
        let (row, _) = self.config.row();
        let both = both.reshape((2, kv_heads, pages.elem_count() * PAGE as usize, row))?.narrow(2, 0, length)?;
        let both = if self.config.format.is_some() { self.unpacked(&both)? } else { both };
        // The next tokens overwrite what the cache has now.
        both.realize()?;
        Ok((both.narrow(0, 0, 1)?.squeeze(0)?, both.narrow(0, 1, 1)?.squeeze(0)?))
    }

    /// Returns the numbers of packed rows.
    fn unpacked(&self, rows: &Tensor) -> Result<Tensor> {
        let KvCacheConfig { features, .. } = self.config;
        let blocks = features / BLOCK;
        let shape = |last: &[usize]| -> Shape { rows.dims()[..3].iter().chain(last).copied().collect() };
        let digits = rows.narrow(3, 0, features)?.reshape(shape(&[blocks, BLOCK]))?.to_dtype(DType::F32)?;
        // Four bytes are a number.
        let scales = rows.narrow(3, features, 4 * blocks)?.copied()?;
        let scales = Tensor::from_buffer(scales.buffer()?.clone(), shape(&[blocks, 1]), DType::F32, &self.device);
        digits.mul(&scales)?.reshape(shape(&[features]))
    }
}

impl fmt::Debug for KvCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sequences = self.tokens.iter().flatten().count();
        write!(f, "KvCache({sequences} sequences; {} free tokens; on {})", self.free_tokens(), self.device.id())
    }
}

/// Returns the length of a sequence's row in the table of pages.
fn row_of(length: usize) -> usize {
    pages_of(length).next_multiple_of(4)
}
