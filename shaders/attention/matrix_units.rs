//! Attention on matrix units. A subgroup computes 16 rows. It holds their queries, and their sums over the keys so far,
//! as matrices. The workgroup goes through the keys in stages: while its subgroups multiply the keys and values in
//! workgroup memory, the next ones are loaded to registers.
//!
//! Only the driver knows which lane holds which element of a matrix. But matrices of one type hold theirs in the same
//! order. So the rows' largest scores, and all that depends on them, are matrices too, with the same number in each
//! column: each lane then combines elements of the same row. Two things take more: a row's largest score is found
//! among its columns, and the weights of keys, which are results, become factors. NVIDIA's second extension has
//! instructions for both (SPV_NV_cooperative_matrix2), but its conversion to `bf16` rounds as the driver likes. So for
//! `bf16`, the kernel assumes that a lane holds the same elements of a result and of a factor, in the same order.
//! NVIDIA's GPUs do so; the self-test finds out whether a device does. Without the extension, both go through workgroup
//! memory.

use super::{AttentionBlock, FLOATS, lowest};
use crate::base::dtype::DType;
use crate::kernels::pages::{PAGE, Pages, scale_at};
use crate::shader::{
    Array, CooperativeMatrix, KernelBuilder, MatrixLayout, MatrixType, MatrixVar, Scalar, Type, Value, Var,
};
use crate::tuning::UnitBlock;
use std::f64::consts::LOG2_E;

/// How matrix units compute attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct AttentionUnits {
    /// The subgroups of a workgroup.
    pub subgroups: u32,
    /// The keys of a stage, a multiple of 32.
    pub keys: u32,
    /// Whether the units reduce rows, and weights become factors without memory.
    pub reductions: bool,
}

/// The rows and columns of a matrix.
const UNIT: u32 = 16;

/// The elements of a matrix that a lane holds.
const HELD: u32 = UNIT * UNIT / LANES;

const LANES: u32 = UnitBlock::LANES;

/// Elements in a vector of 16 bytes.
const PER_VECTOR: u32 = 8;

/// The vectors of a line of a subgroup's scratch memory: 16 floats, or 32 numbers of 16 bits. One more lets lines begin
/// in different banks.
const LINE: u32 = 4;
const SCRATCH_PITCH: u32 = LINE + 1;
const SCRATCH: u32 = UNIT * SCRATCH_PITCH;

/// A row's sums are rescaled once an exponent is larger by this than the largest one at the last time. Until then,
/// weights may be larger than 1, up to 2^8.
const SLACK: f64 = 8.0;

/// Weights are cut to `bf16`, which takes fewer instructions than rounding. That takes 0 to 2^-7 of a weight away, and
/// `2^-8 / (2 ln 2)` on average if logarithms of weights are spread evenly. So exponents are larger by this. Their
/// total has weights before the cut, and is divided by `2^CUT`. So a weight differs by -0.0050 to 0.0028, and by 0 on
/// average. The largest one, 1.0028, is cut to 1. (Exponents beyond 2^16 have no such digits. There, weights of 1 are
/// 0.0028 too large.)
const CUT: f64 = 0.004_071;

impl AttentionUnits {
    /// The size of the units' products.
    pub const UNITS: [u32; 3] = [UNIT; 3];

    /// With fewer rows, most of a subgroup's would be missing.
    pub const LEAST_ROWS: usize = UNIT as usize;

    /// Returns the ways for rows of at most `length` elements, those with the largest blocks first.
    pub fn for_lengths(length: usize, reductions: bool) -> impl Iterator<Item = AttentionUnits> {
        // Longer keys and values would not fit into workgroup memory.
        let keys = if length <= 128 { 64 } else { 32 };
        [8, 4, 2].into_iter().map(move |subgroups| AttentionUnits { subgroups, keys, reductions })
    }

    /// Returns samples for both dtypes, with the features and columns of keys and values.
    pub fn samples() -> [(DType, AttentionUnits, [u32; 2]); 4] {
        let units = |subgroups, keys, reductions| AttentionUnits { subgroups, keys, reductions };
        [
            (DType::F16, units(8, 64, true), [128, 128]),
            (DType::BF16, units(8, 64, true), [64, 128]),
            (DType::BF16, units(4, 64, false), [72, 40]),
            (DType::F16, units(2, 32, false), [256, 192]),
        ]
    }

    pub fn name(self) -> String {
        let AttentionUnits { subgroups, keys, reductions } = self;
        let reductions = if reductions { ", reductions" } else { "" };
        format!("{subgroups} subgroups on units, {keys} keys{reductions}")
    }

    /// The rows of a workgroup.
    pub const fn rows(self) -> u32 {
        self.subgroups * UNIT
    }

    pub const fn workgroup(self) -> u32 {
        self.subgroups * LANES
    }

    /// The bytes of workgroup memory. Keys have `features` elements, values `columns`.
    pub const fn memory(self, features: u32, columns: u32) -> u32 {
        16 * (self.keys * (pitch(features) + pitch(columns)) + self.subgroups * SCRATCH)
    }
}

/// Returns the distance between rows in workgroup memory, in vectors. Zeros fill a row up to whole matrices. One more
/// vector lets rows begin in different banks.
const fn pitch(elements: u32) -> u32 {
    elements.next_multiple_of(UNIT) / PER_VECTOR + 1
}

/// Keys or values. A part of workgroup memory holds those of the current stage.
struct Side<'k> {
    k: &'k KernelBuilder,
    buffer: Array<'k>,
    memory: Array<'k>,
    /// Where the part begins, and the distance between its rows.
    base: u32,
    pitch: u32,
    /// The vectors of a row, with and without the zeros behind it.
    vectors: u32,
    full: u32,
    units: AttentionUnits,
    /// Where the first key's row begins, and the distance between rows, in vectors. If there are pages, also the
    /// pages, and the distance between them.
    first: Value<'k>,
    stride: Value<'k>,
    pages: Option<(Pages<'k>, Value<'k>)>,
    /// The number of keys.
    keys: Value<'k>,
    /// Whether keys of two units alternate, as their weights do.
    alternating: bool,
    /// Of packed rows, the dtype that their elements get.
    packed: Option<DType>,
    /// This invocation's vectors of the next stage, and how far they are from the first key's row.
    next: Vec<(Var<'k>, Value<'k>)>,
}

/// A vector of a stage: the row, and the vector in the row. The condition tells whether it is there, unless it always
/// is.
struct Place<'k> {
    is_there: Option<Value<'k>>,
    row: Value<'k>,
    vector: Value<'k>,
}

impl<'k> Side<'k> {
    /// The part of the memory begins at `base`. A row has `elements` elements.
    fn new(
        p: &AttentionBlock<'k, Array<'k>>,
        units: AttentionUnits,
        memory: Array<'k>,
        [base, elements]: [u32; 2],
        is_values: bool,
    ) -> Self {
        let k = p.kernel;
        let operand = if is_values { &p.v } else { &p.k };
        let mut side = Side {
            k,
            buffer: operand.source,
            memory,
            base,
            pitch: pitch(elements),
            vectors: elements.next_multiple_of(UNIT) / PER_VECTOR,
            full: elements / PER_VECTOR,
            units,
            first: operand.first / PER_VECTOR,
            stride: operand.strides.stride(2) / PER_VECTOR,
            pages: operand.pages.map(|pages| (pages, operand.strides.stride(3) / PER_VECTOR)),
            keys: p.seq_kv,
            alternating: is_values && !units.reductions,
            packed: p.config.packed.then_some(p.config.dtype),
            next: Vec::new(),
        };
        let zero = k.u32(0).splat(4);
        // A place that is not there is loaded as well, so it has to be among the stage's keys.
        let offset = |place: Place<'k>| {
            let row = place.is_there.map_or(place.row, |_| place.row.min(units.keys - 1));
            row * side.stride + place.vector.min(side.full - 1)
        };
        side.next = side.places().map(|place| (k.var(zero), offset(place))).collect();
        side
    }

    /// Returns this invocation's places of a stage.
    fn places(&self) -> impl Iterator<Item = Place<'k>> {
        let (lane, vectors, threads) = (self.k.local_index(), self.vectors, self.units.workgroup());
        let count = self.units.keys * vectors;
        (0..count.div_ceil(threads)).map(move |turn| {
            let place = lane + turn * threads;
            let is_there = ((turn + 1) * threads > count).then(|| place.lt(count));
            let (row, vector) = match threads.is_multiple_of(vectors) {
                true => (lane / vectors + turn * (threads / vectors), lane % vectors),
                false => (place / vectors, place % vectors),
            };
            Place { is_there, row, vector }
        })
    }

    /// Returns where the row of a key begins.
    fn row_at(&self, key: Value<'k>) -> Value<'k> {
        match self.pages {
            Some((pages, stride)) => self.first + pages.page_of(key) * stride + key % PAGE * self.stride,
            None => self.first + key * self.stride,
        }
    }

    /// Loads this invocation's vectors of the stage that begins at a key. All of its keys are there.
    fn load(&self, first: Value<'k>) {
        let start = self.row_at(first);
        for ((next, offset), place) in self.next.iter().zip(self.places()) {
            next.set(self.padded(&place, self.vector(start + *offset, &place)));
        }
    }

    /// The same if some of the keys may not be there. Their rows are zeros.
    fn load_last(&self, first: Value<'k>) {
        for ((next, _), place) in self.next.iter().zip(self.places()) {
            let key = first + place.row;
            let row = self.row_at(key.min(self.keys - 1));
            let loaded = self.padded(&place, self.vector(row + place.vector.min(self.full - 1), &place));
            next.set(key.lt(self.keys).select(loaded, loaded.literal(0)));
        }
    }

    /// Loads the vector of a place at an index of the buffer.
    fn vector(&self, index: Value<'k>, place: &Place<'k>) -> Value<'k> {
        let Some(dtype) = self.packed else { return self.buffer.load(index) };
        let vector = place.vector.min(self.full - 1);
        // An element is a byte.
        let scale = scale_at((index - vector) * PER_VECTOR, self.full * PER_VECTOR, vector * PER_VECTOR);
        let scale = self.buffer.load_lane(scale).bitcast(Type::F32);
        let digits = self.buffer.load(index).lanes().into_iter().flat_map(Value::unpack_i8);
        let numbers: Vec<_> = digits.map(|digit| digit.convert(Scalar::F32) * scale).collect();
        let pack = |pair: &[Value<'k>]| match dtype {
            DType::F16 => self.k.pack_f16(pair[0], pair[1]),
            _ => self.k.pack_bf16(pair[0], pair[1]),
        };
        self.k.vector(&numbers.chunks(2).map(pack).collect::<Vec<_>>())
    }

    /// Puts zeros behind a row.
    fn padded(&self, place: &Place<'k>, loaded: Value<'k>) -> Value<'k> {
        match self.full < self.vectors {
            true => place.vector.lt(self.full).select(loaded, loaded.literal(0)),
            false => loaded,
        }
    }

    /// Stores what has been loaded.
    fn store(&self) {
        for ((next, _), Place { is_there, row, vector }) in self.next.iter().zip(self.places()) {
            let line = match self.alternating {
                true => row / (2 * UNIT) * (2 * UNIT) + row % UNIT * 2 + row / UNIT % 2,
                false => row,
            };
            let store = || self.memory.store(line * self.pitch + vector + self.base, next.get());
            match is_there {
                Some(is_there) => drop(self.k.when(is_there, store)),
                None => store(),
            }
        }
    }

    /// Loads the matrix of 16 lines and 16 elements.
    fn unit(&self, line: u32, element: u32, layout: MatrixLayout, ty: MatrixType) -> CooperativeMatrix<'k> {
        let first = self.base + line * self.pitch + element / PER_VECTOR;
        self.memory.load_matrix(first, self.pitch, layout, ty)
    }
}

/// A subgroup at work.
struct Work<'a, 'k> {
    k: &'k KernelBuilder,
    p: &'a AttentionBlock<'k, Array<'k>>,
    types: [MatrixType; 3],
    units: AttentionUnits,
    sides: [Side<'k>; 2],
    /// The memory through which the lanes of the subgroup exchange elements.
    memory: Array<'k>,
    scratch: Value<'k>,
    lane: Value<'k>,
    /// The first of the subgroup's rows.
    first_row: Value<'k>,
    /// The keys that the lane's row sees: the first one, and their number.
    seen: [Value<'k>; 2],
    /// What products are multiplied by: weights are powers of two with these exponents. Not negative.
    scale: Value<'k>,
    /// What is added to the exponents of the lane's row: minus the largest one at the last rescaling, plus [`CUT`] if
    /// weights are cut.
    offset: Var<'k>,
    /// For each row: the same, the sum of the weights in each column, and the sums of values.
    offsets: MatrixVar<'k>,
    totals: MatrixVar<'k>,
    sums: Vec<MatrixVar<'k>>,
}

impl<'a, 'k> Work<'a, 'k> {
    fn new(p: &'a AttentionBlock<'k, Array<'k>>, units: AttentionUnits) -> Self {
        let (k, config) = (p.kernel, &p.config);
        let types = MatrixType::of_units(config.dtype, [UNIT; 3]);
        let vectors = units.memory(config.features, config.columns) / 16;
        let memory = k.workgroup_array(Type::vec4(Scalar::U32), vectors);
        let values = units.keys * pitch(config.features);
        let sides = [
            Side::new(p, units, memory, [0, config.features], false),
            Side::new(p, units, memory, [values, config.columns], true),
        ];
        let (subgroup, lane) = (k.local_index() / LANES, k.local_index() % LANES);
        let scratch = subgroup * SCRATCH + (values + units.keys * pitch(config.columns));
        let first_row = p.first_row + subgroup * UNIT;
        // Rows beyond the last one repeat it; they are not stored.
        let seen = p.keys_of_row((first_row + lane / 2).min(p.rows - 1));
        let offset = -lowest(k, Type::F32);
        // So small that it does not matter, but minus infinity stays.
        let least = k.f32(1e-37);
        let scale = (p.scale.abs() * LOG2_E).larger(least);
        let columns = config.columns.div_ceil(UNIT);
        Work {
            k,
            p,
            types,
            units,
            sides,
            memory,
            scratch,
            lane,
            first_row,
            seen,
            scale,
            offset: k.var(offset),
            offsets: k.filled_matrix(types[2], offset),
            totals: k.zero_matrix(types[2]),
            sums: (0..columns).map(|_| k.zero_matrix(types[2])).collect(),
        }
    }

    /// Loads the matrices of the queries, through scratch memory. If the scale is negative, so are they.
    fn queries(&self) -> Vec<CooperativeMatrix<'k>> {
        let (k, p, features) = (self.k, self.p, self.p.config.features);
        let sign = p.scale.lt(0.0).select(k.u32(0x8000_8000), k.u32(0));
        let mut queries = Vec::new();
        for first in (0..features).step_by(2 * UNIT as usize) {
            for turn in 0..UNIT * LINE / LANES {
                let place = self.lane + turn * LANES;
                let (line, vector) = (place / LINE, place % LINE + first / PER_VECTOR);
                let row = p.row_at(&p.q, (self.first_row + line).min(p.rows - 1)) / PER_VECTOR;
                let full = features / PER_VECTOR;
                let loaded = p.q.source.load(row + vector.min(full - 1)) ^ sign.splat(4);
                let loaded = match first + 2 * UNIT <= features {
                    true => loaded,
                    false => vector.lt(full).select(loaded, loaded.literal(0)),
                };
                self.memory.store(self.scratch + line * SCRATCH_PITCH + place % LINE, loaded);
            }
            k.subgroup_barrier();
            for half in 0..2 {
                if first + half * UNIT < features {
                    let at = self.scratch + half * (UNIT / PER_VECTOR);
                    queries.push(self.memory.load_matrix(at, SCRATCH_PITCH, MatrixLayout::Rows, self.types[0]));
                }
            }
            k.subgroup_barrier();
        }
        queries
    }

    /// Where the lane's two quads of a matrix are in scratch memory: half of the row `lane / 2`.
    fn quads(&self) -> [Value<'k>; 2] {
        let first = self.scratch + self.lane / 2 * SCRATCH_PITCH + self.lane % 2 * 2;
        [first, first + 1]
    }

    /// Loads the matrix of floats that is in scratch memory.
    fn exchanged(&self) -> CooperativeMatrix<'k> {
        self.k.subgroup_barrier();
        let matrix = self.memory.load_matrix(self.scratch, SCRATCH_PITCH, MatrixLayout::Rows, self.types[2]);
        self.k.subgroup_barrier();
        matrix
    }

    /// Stores a matrix of floats to scratch memory, and loads the lane's quads of it.
    fn quads_of(&self, matrix: CooperativeMatrix<'k>) -> [Value<'k>; 2] {
        self.memory.store_matrix(self.scratch, self.k.u32(SCRATCH_PITCH), MatrixLayout::Rows, matrix);
        self.k.subgroup_barrier();
        let quads = self.quads().map(|place| self.memory.load(place).bitcast(FLOATS));
        self.k.subgroup_barrier();
        quads
    }

    /// Combines the elements of each row. Both lanes of a row get the result.
    fn across(&self, matrix: CooperativeMatrix<'k>, combine: impl Fn(Value<'k>, Value<'k>) -> Value<'k>) -> Value<'k> {
        let [a, b] = self.quads_of(matrix);
        let lanes: Vec<_> = a.lanes().into_iter().zip(b.lanes()).map(|(a, b)| combine(a, b)).collect();
        let own = combine(combine(lanes[0], lanes[1]), combine(lanes[2], lanes[3]));
        combine(own, own.subgroup_shuffle(self.lane ^ 1))
    }

    /// Returns a matrix with the number of the lane's row in each column.
    fn spread(&self, number: Value<'k>) -> CooperativeMatrix<'k> {
        let quad = number.bitcast(Type::U32).splat(4);
        self.quads().into_iter().for_each(|place| self.memory.store(place, quad));
        self.exchanged()
    }

    /// Returns what is added to the exponents of 16 keys: minus infinity for keys that a row does not see, else the
    /// mask.
    fn bias(&self, first: Value<'k>) -> CooperativeMatrix<'k> {
        let (k, p) = (self.k, self.p);
        let minus_infinity = k.f32(f32::NEG_INFINITY);
        let mask = p.mask.as_ref().map(|mask| {
            let row = p.row_at(mask, (self.first_row + self.lane / 2).min(p.rows - 1));
            move |key: Value<'k>| mask.load(row, key.min(p.seq_kv - 1))
        });
        for (quad, place) in (0..).zip(self.quads()) {
            let biases = [0, 1, 2, 3].map(|e| {
                let key = first + self.lane % 2 * 8 + (quad * 4 + e);
                let seen = (key - self.seen[0]).lt(self.seen[1]);
                let (seen, bias) = mask.as_ref().map_or((seen, k.f32(0.0)), |mask| p.exponent_of_mask(seen, mask(key)));
                seen.select(bias, minus_infinity).bitcast(Type::U32)
            });
            self.memory.store(place, k.vector(&biases));
        }
        self.exchanged()
    }

    /// Goes through the keys: first the stages that all rows of the block see wholly, then the others. The next stage
    /// is loaded while one is added.
    fn add_products(&self) {
        let (k, p, [start, end]) = (self.k, self.p, self.p.keys);
        let queries = self.queries();
        let keys = self.units.keys;
        let stages = (end.max(start) - start + (keys - 1)) / keys;
        // If there is a mask, no stage is seen wholly.
        let [whole_start, whole_end] = if p.mask.is_some() { [start; 2] } else { p.keys_of_all_rows() };
        let before = ((whole_start.max(start) - start + (keys - 1)) / keys).min(stages);
        let whole = ((whole_end.max(start) - start) / keys).max(before) - before;
        let stage_at = |turn: Value<'k>| {
            let after = (turn - whole).lt(before).select(turn - whole, turn);
            turn.lt(whole).select(turn + before, after)
        };
        let load = |turn: Value<'k>, sides: &[Side<'k>]| {
            let first = start + stage_at(turn) * keys;
            let all_there = (first + keys).le(p.seq_kv);
            let each = |load: &dyn Fn(&Side<'k>)| sides.iter().for_each(load);
            k.when(all_there, || each(&|side| side.load(first))).otherwise(|| each(&|side| side.load_last(first)));
        };
        // The last stage is loaded once more, and nothing uses it.
        let load_after = |turn: Value<'k>, sides: &[Side<'k>]| load((turn + 1).min(stages - 1), sides);
        let store = || {
            k.barrier();
            self.sides.iter().for_each(Side::store);
            k.barrier();
        };
        load(k.u32(0), &self.sides);
        self.sides.iter().for_each(Side::store);
        // The keys that some of the subgroup's rows see.
        let some = [self.seen[0].subgroup_min(), (self.seen[0] + self.seen[1]).subgroup_max()];
        k.barrier();
        if p.mask.is_none() {
            k.for_rolled(0, whole, 1, |turn| {
                self.add_stage(&queries, None, &|sides| load_after(turn, sides));
                store();
            });
        }
        k.for_rolled(whole, stages, 1, |turn| {
            // This stage may be skipped, so the next one is loaded before.
            load_after(turn, &self.sides);
            let first = start + stage_at(turn) * keys;
            let seen = first.lt(some[1]) & (first + keys).gt(some[0]);
            k.when(seen, || self.add_stage(&queries, Some(first), &|_| ()));
            store();
        });
    }

    /// Adds the weighted values of a stage. If rows may not see all of its keys, `first` is the first one. `load` may
    /// load the next stage. The products of the scores need registers, so it does not do so before most of them are
    /// computed. Loads take time, so it does not do so later. Keys of few features are loaded after half of the
    /// products.
    fn add_stage(&self, queries: &[CooperativeMatrix<'k>], first: Option<Value<'k>>, load: &dyn Fn(&[Side<'k>])) {
        let k = self.k;
        let [a, b, c] = self.types;
        let [keys, values] = &self.sides;
        let tiles = self.units.keys / UNIT;
        let scores: Vec<_> = (0..tiles).map(|_| k.zero_matrix(c)).collect();
        let count = queries.len() as u32;
        let most = (count * 3 / 4).max(1);
        let loads: &[(u32, &[Side<'k>])] = match count {
            ..=4 => &[((count / 2).max(1), &self.sides[..1]), (most, &self.sides[1..])],
            _ => &[(most, &self.sides)],
        };
        for (i, query) in (0..).zip(queries) {
            for (tile, score) in (0..).zip(&scores) {
                let key = keys.unit(tile * UNIT, i * UNIT, MatrixLayout::Columns, b);
                score.set(query.multiply_add(key, score.get()));
            }
            loads.iter().filter(|(after, _)| i + 1 == *after).for_each(|(_, sides)| load(sides));
        }
        let scale = self.bounded(&scores, first);

        let largest = k.zero_matrix(c);
        for e in 0..HELD {
            let first = scores[0].element(e);
            largest.set_element(e, scores[1..].iter().fold(first, |most, score| most.larger(score.element(e))));
        }
        self.rescale(largest, scale);

        for e in 0..HELD {
            let offset = self.offsets.element(e);
            let mut total = self.totals.element(e);
            for score in &scores {
                let weight = score.element(e).fma(scale, offset).exp2_of_device();
                score.set_element(e, weight);
                total = total + weight;
            }
            self.totals.set_element(e, total);
        }
        for (pair, scores) in (0..).zip(scores.chunks(2)) {
            let scores = [scores[0], scores[1]];
            let weights = match self.units.reductions {
                true => scores.map(|score| self.converted_weights(score, a)),
                false => self.exchanged_weights(scores, a),
            };
            for (half, weights) in (0..).zip(weights) {
                for (i, sums) in (0..).zip(&self.sums) {
                    let line = (pair * 2 + half) * UNIT;
                    let values = values.unit(line, i * UNIT, MatrixLayout::Rows, b);
                    sums.set(weights.multiply_add(values, sums.get()));
                }
            }
        }
    }

    /// Returns the offset of a row that has found this exponent.
    fn offset_for(&self, exponent: Value<'k>, before: Value<'k>) -> Value<'k> {
        let exponent = if self.p.config.dtype == DType::BF16 { exponent - CUT } else { exponent };
        -exponent.larger(-before)
    }

    /// Rescales the sums if a row has much larger scores than before. `found` has the largest scores of some columns.
    /// Only if one is too large are the largest of all columns found. `found` is overwritten.
    fn rescale(&self, found: MatrixVar<'k>, scale: Value<'k>) {
        let k = self.k;
        let by = |factors: CooperativeMatrix<'k>| {
            for sums in self.sums.iter().chain([&self.totals]) {
                sums.set(sums.get().times(factors));
            }
        };
        // NaN in a row does not hide what others have found.
        let exponent = |e| found.element(e).fma(scale, self.offsets.element(e));
        let largest = (1..HELD).fold(exponent(0), |largest, e| largest.larger_number(exponent(e)));
        k.when(largest.gt(SLACK).subgroup_any(), || {
            if !self.units.reductions {
                let exponent = self.across(found.get(), Value::larger) * scale;
                let before = self.offset.get();
                let now = self.offset_for(exponent, before);
                self.offset.set(now);
                self.offsets.set(self.spread(now));
                by(self.spread((now - before).exp2_of_device()));
                return;
            }
            found.set(found.get().largest_of_rows());
            for e in 0..HELD {
                let before = self.offsets.element(e);
                let now = self.offset_for(found.element(e) * scale, before);
                self.offsets.set_element(e, now);
                found.set_element(e, (now - before).exp2_of_device());
            }
            by(found.get());
        });
    }

    /// Caps the scores of a stage, and hides those of keys that rows do not see. Returns the factor that makes them
    /// exponents.
    fn bounded(&self, scores: &[MatrixVar<'k>], first: Option<Value<'k>>) -> Value<'k> {
        let (k, p) = (self.k, self.p);
        let masked = p.config.mask.is_some();
        let each = |change: &dyn Fn(Value<'k>) -> Value<'k>| {
            for score in scores {
                (0..HELD).for_each(|e| score.set_element(e, change(score.element(e))));
            }
        };
        let scale = match p.softcap {
            Some(cap) => {
                let by = p.scale.abs();
                each(&|score| (score * by).divide(cap).tanh() * cap);
                k.f32(LOG2_E as f32)
            }
            None => self.scale,
        };
        // A mask is added to exponents.
        let scale = match masked {
            true => {
                each(&|score| score * scale);
                k.f32(1.0)
            }
            false => scale,
        };
        let Some(first) = first else { return scale };
        for (tile, score) in (0..).zip(scores) {
            let bias = k.zero_matrix(self.types[2]);
            bias.set(self.bias(first + tile * UNIT));
            for e in 0..HELD {
                let bias = bias.element(e);
                let hidden = bias.eq(f32::NEG_INFINITY);
                // The score of a hidden key may be anything.
                score.set_element(e, hidden.select(bias, score.element(e) + bias));
            }
        }
        scale
    }

    /// Returns the weights of a unit of keys as a factor.
    fn converted_weights(&self, weights: MatrixVar<'k>, ty: MatrixType) -> CooperativeMatrix<'k> {
        if ty.dtype == DType::F16 {
            return weights.get().factor(ty);
        }
        let pairs = (0..HELD).step_by(2).map(|e| [e, e + 1].map(|e| weights.element(e)));
        self.k.matrix_of_words(ty, &pairs.map(|pair| self.k.halves(pair, 1)).collect::<Vec<_>>())
    }

    /// Returns the weights of two units of keys as factors, through scratch memory. Keys of both alternate.
    fn exchanged_weights(&self, [a, b]: [MatrixVar<'k>; 2], ty: MatrixType) -> [CooperativeMatrix<'k>; 2] {
        let k = self.k;
        let words = k.zero_matrix(self.types[2]);
        for e in 0..HELD {
            let word = match ty.dtype {
                DType::F16 => k.pack_f16(a.element(e), b.element(e)),
                _ => k.halves([a.element(e), b.element(e)], 1),
            };
            words.set_element(e, word.bitcast(Type::F32));
        }
        self.memory.store_matrix(self.scratch, k.u32(SCRATCH_PITCH), MatrixLayout::Rows, words.get());
        k.subgroup_barrier();
        let weights = [0, 1].map(|half| {
            let first = self.scratch + half * (UNIT / PER_VECTOR);
            self.memory.load_matrix(first, SCRATCH_PITCH, MatrixLayout::Rows, ty)
        });
        k.subgroup_barrier();
        weights
    }

    /// Stores the rows: the sums, divided by the total of the weights. If a row sees no key, stores 0.
    fn store(&self) {
        let (k, p) = (self.k, self.p);
        let columns = p.config.columns;
        let total = self.across(self.totals.get(), |a, b| a + b);
        let row = self.first_row + self.lane / 2;
        let start = p.start_of(row);
        // Multiplying takes less time than dividing. Rows that see no key have -1.
        let quotient = k.f32(if p.config.dtype == DType::BF16 { CUT.exp2() as f32 } else { 1.0 }) / total;
        let factor = total.eq(0.0).select(k.f32(-1.0), quotient);
        // Keys and values are no longer needed, so a subgroup has its share of all memory. As many matrices as fit
        // there lie side by side. A row has one vector more, so that rows begin in different banks.
        let share = self.units.memory(p.config.features, columns) / (16 * self.units.subgroups);
        let fitting = (share / UNIT - 1) / LINE;
        let place = k.local_index() / LANES * share;
        k.barrier();
        for (first, matrices) in (0..columns).step_by((fitting * UNIT) as usize).zip(self.sums.chunks(fitting as usize))
        {
            let quads = matrices.len() as u32 * LINE;
            let pitch = quads + 1;
            for (i, sums) in (0..).zip(matrices) {
                self.memory.store_matrix(place + i * LINE, k.u32(pitch), MatrixLayout::Rows, sums.get());
            }
            k.subgroup_barrier();
            // In straight code, conversions to `bf16` would be much of the kernel. NVIDIA's driver then chooses slower
            // instructions in the loop over the keys. It would unroll a loop whose number of turns it knew.
            let turns = k.u32(UNIT * quads / LANES).opaque();
            k.for_rolled(0, turns, 1, |turn| {
                let index = self.lane + turn * LANES;
                let (line, quad) = (index / quads, index % quads);
                let [start, factor] = [start, factor].map(|of_row| of_row.subgroup_shuffle(line * 2));
                let sums = self.memory.load(place + line * pitch + quad).bitcast(FLOATS);
                let averages = factor.lt(0.0).splat(4).select(sums.literal(0.0), sums * factor.splat(4));
                let column = quad * 4 + first;
                let inside = (self.first_row + line).lt(p.rows) & p.batch.lt(p.batches) & column.lt(columns);
                k.when(inside, || p.store_at(start, column, averages));
            });
            k.subgroup_barrier();
        }
    }
}

pub(super) fn write<'k>(p: &AttentionBlock<'k, Array<'k>>, units: AttentionUnits) {
    let work = Work::new(p, units);
    work.add_products();
    work.store();
}
