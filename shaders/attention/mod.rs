//! Attention, `softmax(q k^T) v`, without the matrix of scores in memory. A kernel goes through the keys in blocks. If
//! a block has a larger score than the blocks before it, the kernel rescales its sums: M. Milakov and N. Gimelshein,
//! "Online normalizer calculation for softmax", 2018; T. Dao et al., "FlashAttention: Fast and Memory-Efficient Exact
//! Attention with IO-Awareness", 2022.

mod few_rows;
mod matrix_units;
mod registers;
mod workgroup;

use super::elements::{Runs, Strides, unpack_byte};
use super::epilogue::{self, Epilogue, Finishing, Outputs};
use super::pages::{BLOCK, PAGE, PageTable, Pages, scale_at};
use super::parameters::{Float, Form, Lengths, Signed, Size, View, parameters};
use super::prologue::{self, Prologue, Reader};
use super::{Family, Units, volume};
use crate::base::dtype::DType;
use crate::kernels::rotary::Pairs;
use crate::shader::{Access, Array, IntoValue, KernelBuilder, Scalar, Type, Value, Var};
use few_rows::newest::NewestBuffers;
use std::f64::consts::LOG2_E;

pub(crate) use few_rows::FewRows;
pub(crate) use few_rows::newest::{self, Append};
pub(crate) use matrix_units::AttentionUnits;

/// How the work is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum AttentionTile {
    /// Each invocation computes two rows without workgroup memory. For software devices, whose workgroup memory is
    /// slow.
    Registers {
        /// True if each lane loads the elements of one key and broadcasts them to the others. Subgroups then have at
        /// least as many lanes as a block has keys.
        broadcast: bool,
    },
    /// Each workgroup computes a block of rows from tiles in workgroup memory.
    Workgroup {
        /// The number of invocations that share four rows. Each computes the scores of four keys of a block, then some
        /// columns of the result.
        across: u32,
    },
    /// The subgroups of a workgroup share the keys of a few rows.
    FewRows(FewRows),
    /// Subgroups of 32 lanes compute rows on matrix units, from tiles in workgroup memory.
    MatrixUnits(AttentionUnits),
}

/// Attention of the queries that share keys and values. The rows are the queries of all heads of a group, one head
/// after the other. A query sees the keys from `query + backward` up to but not including `query + forward`. The output
/// is `(batch.., queries, heads, columns)` in row-major order, and has the widened dtype.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Attention {
    pub dtype: DType,
    pub batch_rank: usize,
    /// The length of a query and a key.
    pub features: u32,
    /// The length of a value.
    pub columns: u32,
    /// The dtype of the mask, if there is one. A float mask is added to the scores. In an integer mask, 0 hides a key.
    pub mask: Option<DType>,
    pub softcap: bool,
    /// Whether keys and values lie in the pages of a cache. The first batch axis has its sequences, and their lengths
    /// are known to the device alone.
    pub paged: bool,
    /// Whether rows of pages are packed: see [`packed_row`](super::pages::packed_row).
    pub packed: bool,
    /// Set if the kernel also appends the keys and values at which queries stand, one for each sequence.
    pub append: Option<Append>,
    /// The expressions of the queries, the keys, the values and the mask.
    pub prologues: [Option<Box<Prologue>>; 4],
    pub tile: AttentionTile,
    /// True if the keys are split into parts. Each part writes a row of its own with one more column: the logarithm of
    /// the sum that the row was divided by.
    pub parts: bool,
    /// The expression of the results.
    pub epilogue: Option<Box<Epilogue>>,
}

parameters! {
    config: Attention;
    host: Parameters;
    device: Declared;
    /// The length of the queries' axis.
    queries: Size,
    /// The length of the keys' axis. If keys lie in pages, the most keys of a sequence.
    keys: Size,
    /// The number of heads of the keys, the last batch axis.
    kv_heads: Size,
    /// The number of query heads that share keys and values.
    group: Size,
    /// If keys lie in pages, both reaches count from the key at which a query stands.
    forward: Signed,
    backward: Signed,
    scale: Float = Float(config.dtype),
    /// The cap of the scores.
    softcap: Option<Float> = config.softcap.then_some(Float(config.dtype)),
    /// The number of parts of the keys.
    parts: Option<Size> = config.splits_keys().then_some(Size),
    /// The keys per part. If it is not there, the kernel computes it.
    span: Option<Size> = config.has_span().then_some(Size),
    pages: Option<PageTable> = config.paged.then_some(PageTable),
    append: Option<Append> = config.append,
    /// The lengths of the batch axes.
    lengths: Lengths = Lengths(config.batch_rank),
    /// Along the batch axes, the group and the matrix.
    q: View = View(config.batch_rank + 3),
    /// Along the batch axes, the pages if there are any, and the matrix.
    k: View = View(config.batch_rank + 2 + usize::from(config.paged)),
    /// Along the same.
    v: View = View(config.batch_rank + 2 + usize::from(config.paged)),
    /// Along the batch axes, the group and the matrix.
    mask: Option<View> = config.mask.map(|_| View(config.batch_rank + 3)),
    q_prologue: Option<Prologue> => config.prologues[0].as_deref(),
    k_prologue: Option<Prologue> => config.prologues[1].as_deref(),
    v_prologue: Option<Prologue> => config.prologues[2].as_deref(),
    mask_prologue: Option<Prologue> => config.prologues[3].as_deref(),
    epilogue: Option<Epilogue> => config.epilogue.as_deref(),
}

impl Parameters {
    /// Sets what differs from launch to launch: numbers, then offsets.
    pub fn set_numbers(&mut self, next: &mut dyn FnMut() -> u32) {
        self.scale.set_words(next);
        self.softcap.iter_mut().for_each(|cap| cap.set_words(next));
        for operand in [&mut self.q, &mut self.k, &mut self.v].into_iter().chain(&mut self.mask) {
            operand.offset = next() as usize;
        }
    }
}

impl Attention {
    /// The type in which scores and sums are computed.
    fn number(&self) -> Type {
        Type { scalar: self.dtype.compute_scalar(), lanes: 1 }
    }

    /// The type of a number for each of four rows.
    fn rows(&self) -> Type {
        Type::vec4(self.number().scalar)
    }

    /// Whether workgroups take parts of the keys.
    pub fn splits_keys(&self) -> bool {
        self.parts || self.tile.joins()
    }

    /// Whether the keys per part are a parameter. In pages, each sequence has its own number. With a mask, there might
    /// be more parameters than every device takes.
    pub fn has_span(&self) -> bool {
        self.splits_keys() && !self.paged && self.mask.is_none()
    }

    /// The length of a row of the output.
    pub fn row_length(&self) -> usize {
        self.columns as usize + usize::from(self.parts)
    }
}

impl AttentionTile {
    /// Returns the rows of a workgroup's block, and the keys that the workgroup takes at a time.
    pub const fn block(self) -> (usize, usize) {
        match self {
            AttentionTile::Registers { .. } => {
                ((registers::ROWS * registers::WORKGROUP) as usize, registers::KEYS as usize)
            }
            AttentionTile::Workgroup { across } => ((4 * WORKGROUP / across) as usize, (4 * across) as usize),
            AttentionTile::FewRows(few) => (few.rows as usize, few.step() as usize),
            AttentionTile::MatrixUnits(units) => (units.rows() as usize, units.keys as usize),
        }
    }

    /// Whether queries, keys and values are read 16 bytes at a time.
    pub const fn reads_runs(self) -> bool {
        matches!(self, AttentionTile::FewRows(_) | AttentionTile::MatrixUnits(_))
    }

    /// Returns the first of the keys that are loaded together with a key. They lie in one page.
    fn aligned(self, key: Value<'_>) -> Value<'_> {
        let together = match self {
            AttentionTile::Registers { .. } | AttentionTile::Workgroup { .. } => return key,
            AttentionTile::FewRows(few) => few.own_step(),
            AttentionTile::MatrixUnits(units) => units.keys,
        };
        debug_assert!(PAGE.is_multiple_of(together));
        key / together * together
    }

    /// Whether workgroups share the keys, and the last one joins their parts.
    pub const fn joins(self) -> bool {
        matches!(self, AttentionTile::FewRows(FewRows { joined: true, .. }))
    }

    /// Whether parts of the keys are stored apart, to be joined by other kernels.
    pub const fn stores_parts(self) -> bool {
        !matches!(self, AttentionTile::FewRows(_))
    }

    /// Returns the tile with workgroups that share the keys, if it is one that joins their parts itself.
    pub fn joining(self, joined: bool) -> Self {
        match self {
            AttentionTile::FewRows(few) => AttentionTile::FewRows(few.joined(joined)),
            other => other,
        }
    }

    fn name(self) -> String {
        match self {
            AttentionTile::Registers { broadcast: true } => "registers, broadcast".into(),
            AttentionTile::Registers { broadcast: false } => "registers".into(),
            AttentionTile::Workgroup { across } => format!("workgroup, {across} across"),
            AttentionTile::FewRows(few) => few.name(),
            AttentionTile::MatrixUnits(units) => units.name(),
        }
    }

    /// Returns how often a workgroup loads each key and value.
    pub const fn loads_per_block(self) -> usize {
        match self {
            AttentionTile::Registers { broadcast: false } => registers::WORKGROUP as usize,
            _ => 1,
        }
    }
}

/// The most columns that a kernel holds in its registers.
pub(crate) const MAX_COLUMNS: usize = 256;

const FLOATS: Type = Type::vec4(Scalar::F32);

/// The invocations of a workgroup with tiles in workgroup memory.
const WORKGROUP: u32 = 64;

/// Returns the initial value for a row's largest score: the lowest finite number. Its distance from minus infinity is a
/// number, not NaN. It is built from bits: naga writes the constant with so few digits that it is out of range.
fn lowest(k: &KernelBuilder, ty: Type) -> Value<'_> {
    let bits = match ty.scalar {
        Scalar::F64 => f64::MIN.to_bits().cast_signed().into_value(k, Type::I64),
        _ => k.u32(f32::MIN.to_bits()),
    };
    bits.opaque().bitcast(ty)
}

/// What all tiles share: the parameters, the operands, and the block of a workgroup. Queries, keys and values are read
/// from sources of type `S`.
struct AttentionBlock<'k, S = Source<'k>> {
    kernel: &'k KernelBuilder,
    config: Attention,
    kv_heads: Value<'k>,
    group: Value<'k>,
    seq_q: Value<'k>,
    seq_kv: Value<'k>,
    forward: Value<'k>,
    backward: Value<'k>,
    scale: Value<'k>,
    softcap: Option<Value<'k>>,
    batches: Value<'k>,
    rows: Value<'k>,
    q: Operand<'k, S>,
    k: Operand<'k, S>,
    v: Operand<'k, S>,
    mask: Option<Operand<'k>>,
    y: Outputs<'k>,
    batch: Value<'k>,
    first_row: Value<'k>,
    part: Value<'k>,
    parts: Value<'k>,
    /// The keys per part.
    span: Option<Value<'k>>,
    /// The most keys of a part of any sequence, if keys lie in pages.
    most: Option<Value<'k>>,
    append: Option<newest::Declared<'k>>,
    /// The start and end of the keys that the block's rows see in this part. Without a key that the kernel appends.
    keys: [Value<'k>; 2],
}

/// An operand with a matrix per batch: where the matrix of this workgroup's batch begins, and the strides.
struct Operand<'k, S = Source<'k>> {
    source: S,
    first: Value<'k>,
    strides: Strides<'k>,
    /// Where the keys or values are, unless they are one behind the other.
    pages: Option<Pages<'k>>,
}

impl<'k, S> Operand<'k, S> {
    /// Returns the index where the row of a key or value begins.
    fn row_at(&self, key: Value<'k>) -> Value<'k> {
        let stride = self.strides.stride(2);
        match self.pages {
            Some(pages) => self.first + pages.page_of(key) * self.strides.stride(3) + key % PAGE * stride,
            None => self.first + key * stride,
        }
    }
}

/// An operand that is read element by element.
enum Source<'k> {
    Elements(Reader<'k>),
    /// The words of packed rows, which have this many elements.
    Packed(Array<'k>, u32),
}

impl<'k> Operand<'k> {
    /// Loads an element of the row that begins at index `row`.
    fn load(&self, row: Value<'k>, column: Value<'k>) -> Value<'k> {
        match &self.source {
            Source::Elements(reader) => reader.load(row + column * self.strides.stride(1)),
            Source::Packed(words, elements) => {
                let digit = unpack_byte(DType::I8, words.load((row + column) / 4), column % 4 * 8).convert(Scalar::F32);
                digit * words.load(scale_at(row, *elements, column)).bitcast(Type::F32)
            }
        }
    }

    /// Loads an element of each of four rows.
    fn load_each(&self, rows: [Value<'k>; 4], columns: [Value<'k>; 4]) -> Value<'k> {
        let places = rows.into_iter().zip(columns);
        match &self.source {
            Source::Elements(reader) => {
                let at = places.map(|(row, column)| row + column * self.strides.stride(1));
                reader.gather(&at.collect::<Vec<_>>())
            }
            Source::Packed(..) => {
                let loaded = places.map(|(row, column)| self.load(row, column)).collect::<Vec<_>>();
                rows[0].kernel().vector(&loaded)
            }
        }
    }

    /// Loads the same element of four rows.
    fn load_four(&self, rows: [Value<'k>; 4], column: Value<'k>) -> Value<'k> {
        self.load_each(rows, [column; 4])
    }
}

/// The config and the parameters of a prologue, if there is one.
type Computed<'a, 'k> = Option<(&'a Prologue, prologue::Declared<'k>)>;

impl<'k, S> AttentionBlock<'k, S> {
    /// `source` declares the buffer of an operand.
    fn new(kernel: &'k KernelBuilder, config: &Attention, source: impl Fn(&str, Computed<'_, 'k>) -> S) -> Self {
        let parameters = config.declare(kernel);
        let Declared { queries: seq_q, keys: seq_kv, kv_heads, group, forward, backward, .. } = parameters;
        let Declared { scale, softcap, parts, span, epilogue, ref pages, ref append, .. } = parameters;
        let grid = &parameters.lengths;
        // Divisions by 1 take no time.
        let is_step = matches!(config.tile, AttentionTile::FewRows(FewRows { is_step: true, .. }));
        let seq_q = if is_step { kernel.u32(1) } else { seq_q };
        let rows = group * seq_q;
        // The workgroups of a sequence share its keys evenly, in whole blocks.
        let block_keys = config.tile.block().1 as u32;
        let own_span =
            |keys: Value<'k>| parts.map(|parts| (keys + parts * block_keys - 1) / (parts * block_keys) * block_keys);
        let most = config.paged.then(|| own_span(seq_kv).map_or(seq_kv, |span| span.min(seq_kv)));
        let block_rows = kernel.u32(config.tile.block().0 as u32);
        let down = (rows + block_rows - 1) / block_rows;
        let block = kernel.group_index();
        let batches = grid.size(kernel);
        let is_few = matches!(config.tile, AttentionTile::FewRows(_));
        let (batch, row_block, part) = match config.tile {
            // Blocks of the same rows are neighbours, and the last rows come first: if a query sees no key behind its
            // own, they take longest. A surplus workgroup gets a batch that is not there.
            AttentionTile::MatrixUnits(_) => {
                let (batch, from_last) = (block % batches, block / batches);
                let batch = from_last.lt(down).select(batch, batches);
                (batch, down - 1 - from_last.min(down - 1), kernel.u32(0))
            }
            AttentionTile::FewRows(_) => {
                let (batch, part) = parts.map_or((block, kernel.u32(0)), |parts| block.divide_few(parts));
                (batch, kernel.u32(0), part)
            }
            _ => {
                let (block, part) = parts.map_or((block, kernel.u32(0)), |parts| (block / parts, block % parts));
                (block / down, block % down, part)
            }
        };
        let first_row = row_block * block_rows;
        let real = batch.min(batches - 1);
        let coordinates = if is_few { grid.coordinates_of_few(real) } else { grid.coordinates(real) };
        let pages = pages.as_ref().map(|pages| Pages::new(kernel, pages, coordinates[0]));
        let seq_kv = pages.map_or(seq_kv, |pages| pages.length);
        // The last query stands at the last key.
        let from_end = |reach: Value<'k>| reach + (seq_kv - seq_q).convert(Scalar::I32);
        let reaches = [forward, backward];
        let [forward, backward] = if config.paged { reaches.map(from_end) } else { reaches };
        let span = span.or_else(|| own_span(seq_kv));

        let prologues = [parameters.q_prologue, parameters.k_prologue, parameters.v_prologue, parameters.mask_prologue];
        let mut prologues = config.prologues.iter().zip(prologues).map(|(config, at)| config.as_deref().zip(at));
        let [q, k, v] = [("q", parameters.q), ("k", parameters.k), ("v", parameters.v)].map(|(name, strides)| {
            let source = source(name, prologues.next().flatten());
            Operand { source, first: strides.at(&coordinates), strides, pages }
        });
        let mask = config.mask.zip(parameters.mask).map(|(dtype, strides)| Operand {
            source: Source::Elements(Reader::new(kernel, "mask", dtype, prologues.next().flatten())),
            first: strides.at(&coordinates),
            strides,
            pages: None,
        });
        let epilogue = config.epilogue.as_deref().zip(epilogue);
        let y = Outputs::new(kernel, config.stored(), config.width(), epilogue, None);
        let keys = [seq_kv; 2];
        let mut problem = AttentionBlock {
            kernel,
            config: config.clone(),
            kv_heads,
            group,
            seq_q,
            seq_kv,
            forward,
            backward,
            scale,
            softcap,
            batches,
            rows,
            q,
            k,
            v,
            mask,
            y,
            batch,
            first_row,
            part,
            parts: parts.unwrap_or(kernel.u32(1)),
            span,
            most,
            append: append.clone(),
            keys,
        };
        let [start, end] = problem.keys_of_block(block_rows);
        problem.keys = [start, if config.append.is_some() { end.min(seq_kv - 1) } else { end }];
        problem
    }

    /// Returns one bound of the keys that a query sees: `query + reach`, clamped to the keys that exist.
    fn seen(&self, query: Value<'k>, reach: Value<'k>) -> Value<'k> {
        let limit = self.seq_kv.convert(Scalar::I32);
        (query.convert(Scalar::I32) + reach).max(0).min(limit).convert(Scalar::U32)
    }

    /// Returns the lowest and the highest query that the block has, or may have.
    fn queries_of_block(&self, block_rows: Value<'k>) -> [Value<'k>; 2] {
        let (first, last) = (self.first_row, (self.first_row + block_rows).min(self.rows) - 1);
        // If the block has rows of several heads, it may have any query.
        let one_head = (first / self.seq_q).eq(last / self.seq_q);
        [one_head.select(first % self.seq_q, 0), one_head.select(last % self.seq_q, self.seq_q - 1)]
    }

    /// Returns the start and the end of the keys that all rows of the block see. The end may be before the start.
    fn keys_of_all_rows(&self) -> [Value<'k>; 2] {
        let [lowest, highest] = self.queries_of_block(self.kernel.u32(self.config.tile.block().0 as u32));
        [self.seen(highest, self.backward), self.seen(lowest, self.forward)]
    }

    /// Returns the start and the end of the keys that some row of the block sees, in this part.
    fn keys_of_block(&self, block_rows: Value<'k>) -> [Value<'k>; 2] {
        let [lowest, highest] = self.queries_of_block(block_rows);
        let (start, end) = (self.seen(lowest, self.backward), self.seen(highest, self.forward));
        let [start, end] = match self.span {
            Some(span) => [start.max(self.part * span), end.min((self.part + 1) * span)],
            None => [start, end],
        };
        [if self.config.paged { self.config.tile.aligned(start) } else { start }, end]
    }

    /// Returns the number of keys that a workgroup goes through in blocks of `block`. Also returns a function: the
    /// number of keys that the workgroup needs of the block that begins at a key.
    ///
    /// A browser accepts barriers in such loops only if it can prove that all invocations reach them. So in a browser,
    /// every workgroup goes through the most keys of any block, in whole blocks.
    fn loop_bounds(&self, block: u32) -> (Value<'k>, impl Fn(Value<'k>) -> Value<'k> + use<'k, S>) {
        let (k, [start, end]) = (self.kernel, self.keys);
        let browser = k.target().wgsl;
        let most = if browser { self.most_keys() } else { end.max(start) - start };
        (most, move |first| if browser { k.u32(block) } else { (end - first).min(block) })
    }

    /// Returns the most keys that the rows of any block see, from parameters alone.
    fn most_keys(&self) -> Value<'k> {
        if let Some(most) = self.most {
            return most;
        }
        let rows = self.config.tile.block().0 as u32;
        // A block may have the last queries of a head and the first ones of the next.
        let one_head = (self.seq_q % rows).eq(0) | self.seq_q.le(rows);
        let queries = one_head.select(self.seq_q.min(rows), self.seq_q);
        let reach = queries.convert(Scalar::I32) + self.forward - self.backward - 1;
        let most = reach.max(0).convert(Scalar::U32).min(self.seq_kv);
        self.span.map_or(most, |span| most.min(span))
    }

    /// Returns the first key that a row sees, and the number of keys that it sees.
    fn keys_of_row(&self, row: Value<'k>) -> [Value<'k>; 2] {
        let query = row % self.seq_q;
        let (start, end) = (self.seen(query, self.backward), self.seen(query, self.forward));
        [start, end.max(start) - start]
    }

    /// Returns the index where a row of the queries or the mask begins.
    fn row_at<T>(&self, operand: &Operand<'k, T>, row: Value<'k>) -> Value<'k> {
        let (head, query) = (row / self.seq_q, row % self.seq_q);
        operand.first + head * operand.strides.stride(3) + query * operand.strides.stride(2)
    }

    /// Returns the score of a key for one row or four, from the sum of its products.
    fn score(&self, sum: Value<'k>, seen: Value<'k>, mask: Option<Value<'k>>) -> Value<'k> {
        let sum = self.softcap.map_or(sum, |cap| sum.divide(sum.literal(cap)).tanh() * cap);
        let minus_infinity = self.kernel.f32(f32::NEG_INFINITY).convert(sum.ty().scalar);
        match mask {
            Some(mask) if mask.ty().is_float() => seen.select(sum + mask.convert(sum.ty().scalar), minus_infinity),
            Some(mask) => (seen & mask.ne(0)).select(sum, minus_infinity),
            None => seen.select(sum, minus_infinity),
        }
    }

    /// Returns whether a row sees a key, given the mask's element, and what that adds to the exponent of two that the
    /// key's weight has.
    fn exponent_of_mask(&self, seen: Value<'k>, mask: Value<'k>) -> (Value<'k>, Value<'k>) {
        if !mask.ty().is_float() {
            return (seen & mask.ne(0), self.kernel.f32(0.0));
        }
        let (mask, lowest) = (mask.convert(Scalar::F32), lowest(self.kernel, Type::F32));
        let exponent = mask * LOG2_E;
        // What is finite stays so.
        (seen, (exponent.lt(lowest) & mask.ge(lowest)).select(lowest, exponent))
    }

    /// Stores a column of a row, or four columns from there on: sums divided by the total of the weights. If the row
    /// sees no key, stores 0.
    fn store(&self, row: Value<'k>, column: Value<'k>, sums: Value<'k>, total: Value<'k>) {
        let of_each = |x: Value<'k>| if self.config.width() == 1 { x } else { x.splat(self.config.width()) };
        let unseen = of_each(total.eq(0.0));
        self.store_at(self.start_of(row), column, unseen.select(sums.literal(0.0), sums / of_each(total)));
    }

    /// Stores the weight of a part's row against the rows of the other parts, as a logarithm.
    fn store_weight(&self, row: Value<'k>, largest: Value<'k>, total: Value<'k>) {
        let weight = total.eq(0.0).select(lowest(self.kernel, total.ty()), largest + total.log());
        self.store_at(self.start_of(row), self.kernel.u32(self.config.columns), weight);
    }

    /// Returns the index where the results of a row begin.
    fn start_of(&self, row: Value<'k>) -> Value<'k> {
        let (batch, kv_head) = (self.batch / self.kv_heads, self.batch % self.kv_heads);
        let (head, query) = (row / self.seq_q, row % self.seq_q);
        let head = kv_head * self.group + head;
        let place = (batch * self.seq_q + query) * (self.kv_heads * self.group) + head;
        let place = if self.config.parts { place * self.parts + self.part } else { place };
        place * self.config.row_length() as u32
    }

    /// Stores from a column on of the row whose results begin at an index.
    fn store_at(&self, start: Value<'k>, column: Value<'k>, value: Value<'k>) {
        self.y.store(self.kernel, start + column, value);
    }
}

/// The running softmax of one row or of four.
struct Softmax<'k> {
    largest: Var<'k>,
    /// The sum of the weights so far.
    total: Var<'k>,
}

/// Returns the larger value. Any result will do for a NaN: its weight is NaN whatever the largest score is.
fn larger<'k>(a: Value<'k>, b: Value<'k>) -> Value<'k> {
    a.gt(b).select(a, b)
}

impl<'k> Softmax<'k> {
    fn new(kernel: &'k KernelBuilder, like: Value<'k>) -> Self {
        let lowest = like.literal(lowest(kernel, like.ty().lane()));
        Softmax { largest: kernel.var(lowest), total: kernel.var(like.literal(0.0)) }
    }

    /// Updates the softmax with the scores of some keys. Returns their weights, and the factor that rescales the sums
    /// so far. `all_keys` turns the largest of these scores into the largest of all keys that the row meets at the
    /// time.
    fn add(&self, scores: &[Value<'k>], all_keys: impl Fn(Value<'k>) -> Value<'k>) -> (Vec<Value<'k>>, Value<'k>) {
        let before = self.largest.get();
        let largest = larger(all_keys(scores.iter().copied().fold(before, larger)), before);
        let rescale = (before - largest).exp();
        let weights: Vec<_> = scores.iter().map(|&score| (score - largest).exp()).collect();
        self.largest.set(largest);
        self.total.set(weights.iter().fold(self.total.get() * rescale, |total, &weight| total + weight));
        (weights, rescale)
    }
}

impl Finishing for Attention {
    fn width(&self) -> u32 {
        if self.columns.is_multiple_of(4) && !self.parts { 4 } else { 1 }
    }

    fn stored(&self) -> DType {
        self.dtype.widened()
    }

    fn shared(&self, groups: usize) -> Option<([usize; 3], DType)> {
        let AttentionTile::FewRows(few @ FewRows { joined: true, .. }) = self.tile else { return None };
        Some(([groups, few.rows as usize, 4 * (few.quads() + 1) as usize], DType::F32))
    }

    fn with_epilogue(&self, epilogue: Box<Epilogue>) -> Self {
        Attention { epilogue: Some(epilogue), ..self.clone() }
    }

    fn finished(parameters: &Parameters, epilogue: epilogue::Parameters) -> Parameters {
        Parameters { epilogue: Some(epilogue), ..parameters.clone() }
    }
}

impl Family for Attention {
    fn products(&self, Parameters { queries, keys, group, lengths, .. }: &Parameters) -> u64 {
        let each = (self.features + self.columns) as usize;
        volume([queries, keys, group, &each].into_iter().chain(lengths))
    }

    fn units(&self) -> Units {
        Units::of(self.dtype)
    }

    fn name(&self) -> String {
        let mask = self.mask.map_or(String::new(), |dtype| format!(", {dtype} mask"));
        let softcap = if self.softcap { ", softcap" } else { "" };
        let parts = if self.parts { ", parts" } else { "" };
        let paged = match self.packed {
            true => ", packed pages",
            false if self.paged => ", pages",
            false => "",
        };
        let append = match self.append {
            Some(Append { rotation: Some(pairs) }) => format!(", rotates and appends {pairs:?}").to_lowercase(),
            Some(Append { rotation: None }) => ", appends".into(),
            None => String::new(),
        };
        let (features, columns) = (self.features, self.columns);
        let operands = ["q", "k", "v", "mask"].into_iter().zip(&self.prologues);
        let computed = operands.filter_map(|(name, x)| Some(format!(", {name} = {}", x.as_ref()?.expr.describe())));
        let computed: String = computed.collect();
        let (dtype, tile) = (self.dtype, self.tile.name());
        let name = format!(
            "attention({dtype}, {features} x {columns}, {tile}{mask}{softcap}{parts}{paged}{append}{computed})"
        );
        self.epilogue.as_ref().map_or_else(|| name.clone(), |y| format!("{name}, {}", y.expr.describe()))
    }

    fn workgroup(&self) -> u32 {
        match self.tile {
            AttentionTile::Registers { .. } => registers::WORKGROUP,
            AttentionTile::Workgroup { .. } => WORKGROUP,
            AttentionTile::FewRows(few) => few.workgroup(),
            AttentionTile::MatrixUnits(units) => units.workgroup(),
        }
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        if self.dtype.size_in_bytes() == 8 {
            // 64-bit sums and products take twice the registers.
            k.large_registers();
        }
        let is_packed = |name: &str| self.packed && name != "q";
        let element = |name: &str, prologue: Computed<'_, 'k>| match is_packed(name) {
            true => Source::Packed(k.buffer(name, Type::U32, Access::Read), self.features),
            false => Source::Elements(Reader::new(k, name, self.dtype, prologue)),
        };
        match self.tile {
            AttentionTile::Registers { broadcast } => {
                registers::write(&AttentionBlock::new(k, self, element), broadcast)
            }
            AttentionTile::Workgroup { across } => workgroup::write(&AttentionBlock::new(k, self, element), across),
            AttentionTile::FewRows(few) => {
                if few.uses_units() {
                    k.use_matrices();
                } else {
                    k.follow_memory_model();
                }
                let dtype = |name: &str| if is_packed(name) { DType::I8 } else { self.dtype };
                let newest = self.append.map(|append| NewestBuffers::new(k, self.dtype, append));
                let runs = |name: &str, _: Computed<'_, '_>| match &newest {
                    Some(newest) if name != "q" => newest.cache,
                    _ => Runs::input(k, name, dtype(name), 4),
                };
                few_rows::write(&AttentionBlock::new(k, self, runs), few, newest);
            }
            AttentionTile::MatrixUnits(units) => {
                k.use_matrices();
                let words =
                    |name: &str| if is_packed(name) { Type::vec2(Scalar::U32) } else { Type::vec4(Scalar::U32) };
                let vectors = |name: &str, _: Computed<'_, '_>| k.buffer(name, words(name), Access::Read);
                matrix_units::write(&AttentionBlock::new(k, self, vectors), units);
            }
        }
    }

    fn samples() -> Vec<Self> {
        let registers = [true, false].map(|broadcast| AttentionTile::Registers { broadcast });
        let tiles = [AttentionTile::Workgroup { across: 8 }, AttentionTile::Workgroup { across: 64 }];
        let sample = |tile| Attention {
            dtype: DType::F32,
            batch_rank: 1,
            features: 64,
            columns: 64,
            mask: None,
            softcap: false,
            paged: false,
            packed: false,
            append: None,
            prologues: Default::default(),
            tile,
            parts: tile == AttentionTile::Workgroup { across: 64 },
            epilogue: None,
        };
        let doubles = Attention { dtype: DType::F64, ..sample(AttentionTile::Workgroup { across: 16 }) };
        let mut samples: Vec<_> = registers.into_iter().chain(tiles).map(sample).chain([doubles]).collect();
        samples.extend([0, 2].map(|i| Attention {
            mask: Some(DType::F32),
            prologues: [prologue::sample(), None, None, prologue::sample()],
            ..samples[i].clone()
        }));
        samples.extend([0, 2].map(|i| samples[i].with_epilogue(epilogue::sample())));
        let of_pages = |plain: &Attention, packed| Attention { paged: true, packed, batch_rank: 2, ..plain.clone() };
        samples.extend([0, 2, 3].map(|i| of_pages(&samples[i], false)));
        samples.extend([0, 2, 3].map(|i| of_pages(&samples[i], true)));
        samples.extend(FewRows::samples().into_iter().flat_map(|(dtype, few, [features, columns])| {
            let plain = Attention { dtype, features, columns, ..sample(AttentionTile::FewRows(few)) };
            if few.packed {
                return vec![of_pages(&plain, true)];
            }
            let paged = of_pages(&plain, false);
            let append = Append { rotation: few.joined.then_some(Pairs::Halves) };
            let appending = Attention { append: Some(append), ..paged.clone() };
            let can_append = dtype.size_in_bytes() == 2;
            [paged, plain].into_iter().chain(can_append.then_some(appending)).collect()
        }));
        samples.extend(AttentionUnits::samples().into_iter().flat_map(|(dtype, units, [features, columns])| {
            let tile = AttentionTile::MatrixUnits(units);
            let plain = Attention { dtype, features, columns, ..sample(tile) };
            let masked = Attention { mask: Some(DType::U8), softcap: true, ..plain.clone() };
            let paged = Attention { paged: true, batch_rank: 3, ..plain.clone() };
            let packed = (features % BLOCK as u32 == 0).then(|| Attention { packed: true, ..paged.clone() });
            [plain.with_epilogue(epilogue::sample()), masked, paged, plain].into_iter().chain(packed)
        }));
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::KernelConfig;
    use crate::shader::Target;

    #[test]
    fn tiles_take_the_memory_and_the_features_that_they_say() {
        let mut counts = [0; 2];
        for config in Attention::samples() {
            let kernel = KernelConfig::from(config.clone()).generate(Target::VULKAN).unwrap();
            let required = kernel.requires;
            assert!(kernel.workgroup_memory <= 48 << 10, "{}: {}", kernel.name, kernel.workgroup_memory);
            let kind = match config.tile {
                AttentionTile::FewRows(few) => {
                    assert_eq!(kernel.workgroup_memory, few.memory(), "{}", kernel.name);
                    assert!(required.memory_model && required.subgroups);
                    let units = few.uses_units().then_some(AttentionUnits::UNITS);
                    assert_eq!(required.matrix_units.of(config.dtype), units, "{}", kernel.name);
                    0
                }
                AttentionTile::MatrixUnits(units) => {
                    assert_eq!(
                        kernel.workgroup_memory,
                        units.memory(config.features, config.columns),
                        "{}",
                        kernel.name
                    );
                    assert_eq!(required.matrix_units.of(config.dtype), Some(AttentionUnits::UNITS));
                    assert_eq!(required.matrix_units.reductions, units.reductions);
                    1
                }
                _ => continue,
            };
            counts[kind] += 1;
        }
        assert_eq!(counts, [20, 19]);
    }

    #[test]
    fn matrix_units_take_several_short_rows_of_halves() {
        let on_units = |dtype, packed, rows, lengths: [usize; 2]| {
            let few = FewRows::new((dtype, packed), [rows, 1], lengths[0].max(lengths[1]), 32).unwrap();
            few.on_units(lengths, 1 << 20, 132)
        };
        assert!(on_units(DType::F16, false, 2, [128, 64]).is_some());
        assert!(on_units(DType::BF16, false, 8, [64, 128]).is_some());
        for (dtype, packed, rows, lengths) in [
            (DType::F16, false, 1, [128; 2]),
            (DType::F16, false, 2, [136, 64]),
            (DType::F16, false, 2, [64, 136]),
            (DType::F16, true, 2, [128; 2]),
            (DType::F32, false, 2, [64; 2]),
        ] {
            assert_eq!(on_units(dtype, packed, rows, lengths), None, "{dtype}, {rows} of {lengths:?}");
        }
        let four = FewRows::new((DType::F16, false), [4, 1], 128, 32).unwrap();
        let workgroup = |keys| four.on_units([128; 2], keys, 132).map(FewRows::workgroup);
        assert_eq!([workgroup(8 * 512), workgroup(8 * 4096)], [Some(128), Some(256)]);
    }

    #[test]
    fn rows_that_a_subgroup_cannot_hold_are_refused() {
        let fits = |dtype, rows, length, lanes| FewRows::new((dtype, false), rows, length, lanes).is_some();
        assert!(fits(DType::F16, [8, 1], 256, 32) && fits(DType::F32, [1, 8], 128, 32));
        assert!(!fits(DType::F16, [9, 1], 64, 32) && !fits(DType::F16, [3, 3], 64, 32));
        assert!(!fits(DType::F32, [1, 1], 256, 32) && !fits(DType::F16, [1, 1], 128, 8));
        assert!(!fits(DType::F16, [1, 0], 64, 32));
    }
}
