//! Elements of any dtype in buffers, and their indices. Narrow dtypes are packed in words, so that every device can
//! read and write them. No two invocations write the same word, except by atomic operations ([`Raw`]).

use crate::base::dtype::DType;
use crate::shader::{Access, Array, KernelBuilder, Scalar, Type, Value};

/// How many elements of a dtype share a word.
#[derive(Clone, Copy)]
enum Packing {
    Four,
    Two,
    None,
}

impl Packing {
    fn of(dtype: DType) -> Packing {
        match dtype.size_in_bytes() {
            1 => Packing::Four,
            2 => Packing::Two,
            _ => Packing::None,
        }
    }
}

/// Returns the type of four consecutive elements in memory.
fn quad_type(dtype: DType) -> Type {
    match Packing::of(dtype) {
        Packing::Four => Type::U32,
        Packing::Two => Type::vec2(Scalar::U32),
        Packing::None => Type::vec4(dtype.compute_scalar()),
    }
}

/// Returns the byte of a word that begins at bit `shift`, as a number.
pub(super) fn unpack_byte<'k>(dtype: DType, word: Value<'k>, shift: Value<'k>) -> Value<'k> {
    match dtype.compute_scalar() {
        // The shift up moves the byte's sign to the top bit. The shift down copies it.
        Scalar::I32 => (word << (shift.literal(24) - shift)).bitcast(Type::I32) >> 24,
        _ => (word >> shift) & 0xff,
    }
}

/// Returns the two halves of a word as numbers.
fn unpack_halves(dtype: DType, word: Value<'_>) -> [Value<'_>; 2] {
    if dtype == DType::BF16 { word.unpack_bf16() } else { word.unpack_f16() }
}

/// Returns the elements of a word as numbers. If elements are not packed, that is the number itself.
fn unpack_word(dtype: DType, word: Value<'_>) -> Vec<Value<'_>> {
    match Packing::of(dtype) {
        Packing::Four if dtype == DType::I8 => word.unpack_i8().to_vec(),
        Packing::Four => word.unpack_u8().to_vec(),
        Packing::Two => unpack_halves(dtype, word).to_vec(),
        Packing::None => vec![word],
    }
}

/// Returns four numbers as they are in memory.
fn pack_quad<'k>(k: &'k KernelBuilder, dtype: DType, value: Value<'k>) -> Value<'k> {
    match Packing::of(dtype) {
        Packing::Four => {
            let byte = |lane| (value.lane(lane).bitcast(Type::U32) & 0xff) << (8 * lane);
            byte(0) | byte(1) | byte(2) | byte(3)
        }
        Packing::Two => {
            let pack = |low, high| match dtype {
                DType::BF16 => k.pack_bf16(low, high),
                _ => k.pack_f16(low, high),
            };
            k.vector(&[pack(value.lane(0), value.lane(1)), pack(value.lane(2), value.lane(3))])
        }
        Packing::None => value,
    }
}

/// Returns the bits of an element of one or two bytes, from the number that it is computed as.
pub(super) fn narrowed<'k>(k: &'k KernelBuilder, dtype: DType, number: Value<'k>) -> Value<'k> {
    match dtype {
        DType::F16 => k.pack_f16(number, number) & 0xffff,
        DType::BF16 => k.pack_bf16(number, number) & 0xffff,
        _ => number.bitcast(Type::U32) & 0xff,
    }
}

/// Returns the lowest number of a dtype, which may be narrower than the type that it is computed in.
pub(super) fn lowest(k: &KernelBuilder, dtype: DType) -> Value<'_> {
    match dtype.compute_scalar() {
        Scalar::I32 => k.i32(i32::MIN >> (32 - 8 * dtype.size_in_bytes())),
        Scalar::I64 => k.number(Type::I64, 0).literal(i64::MIN),
        scalar @ (Scalar::F32 | Scalar::F64) => k.f32(f32::NEG_INFINITY).convert(scalar),
        scalar => k.number(Type { scalar, lanes: 1 }, 0),
    }
}

/// A buffer that is read element by element, at any index.
#[derive(Clone, Copy)]
pub(super) struct Elements<'k> {
    array: Array<'k>,
    dtype: DType,
}

impl<'k> Elements<'k> {
    pub fn input(k: &'k KernelBuilder, name: &str, dtype: DType) -> Self {
        let element = match Packing::of(dtype) {
            Packing::Four | Packing::Two => Type::U32,
            Packing::None => Type { scalar: dtype.compute_scalar(), lanes: 1 },
        };
        Elements { array: k.buffer(name, element, Access::Read), dtype }
    }

    /// Declares a buffer of which four elements can be loaded at once, too.
    pub fn input_by_fours(k: &'k KernelBuilder, name: &str, dtype: DType) -> Self {
        Elements { array: k.buffer(name, quad_type(dtype), Access::Read), dtype }
    }

    /// Declares a buffer of elements that are only moved. 64-bit elements are vectors of two words.
    pub fn moved(k: &'k KernelBuilder, name: &str, dtype: DType) -> Self {
        if dtype.parts() == 1 {
            return Elements::input(k, name, dtype);
        }
        Elements { array: k.buffer(name, Type::vec2(Scalar::U32), Access::Read), dtype }
    }

    /// Loads the element at `index`, widened to the type it is computed in.
    pub fn load(self, index: Value<'k>) -> Value<'k> {
        match Packing::of(self.dtype) {
            Packing::Four => unpack_byte(self.dtype, self.array.load(index >> 2), (index & 3) << 3),
            Packing::Two => {
                let [low, high] = unpack_halves(self.dtype, self.array.load(index >> 1));
                (index & 1).eq(0).select(low, high)
            }
            Packing::None => self.array.load(index),
        }
    }

    /// Loads the elements from `4 * quad` on, if the buffer is declared for that.
    pub fn load_four(self, k: &'k KernelBuilder, quad: Value<'k>) -> Value<'k> {
        Quads { array: self.array, dtype: self.dtype }.load(k, quad)
    }

    /// Loads the element at `even + offset`. `even` is an even number, so that several loads with the same offset find
    /// their halves of words at once.
    pub fn load_behind(self, even: Value<'k>, offset: Value<'k>) -> Value<'k> {
        match Packing::of(self.dtype) {
            Packing::Two => {
                let word = self.array.load_lane((even >> 1) + (offset >> 1));
                unpack_halves(self.dtype, word >> ((offset & 1) << 4))[0]
            }
            _ => self.load(even + offset),
        }
    }

    /// Declares a buffer of indexes of any integer dtype. The device need not compute in that dtype, as indexes are
    /// read as words.
    pub fn indexes(k: &'k KernelBuilder, name: &str, dtype: DType) -> Self {
        Elements::moved(k, name, dtype)
    }

    /// Loads the index at `place`. If it is negative or does not fit, the result is `u32::MAX` or otherwise far from
    /// any length.
    pub fn load_index(self, place: Value<'k>) -> Value<'k> {
        if self.dtype != DType::I64 {
            return self.load(place).convert(Scalar::U32);
        }
        let words = self.array.load(place);
        words.lane(1).eq(0).select(words.lane(0), u32::MAX)
    }

    /// Loads the elements at some indices: a number, or a vector of several.
    pub fn gather(self, k: &'k KernelBuilder, indices: &[Value<'k>]) -> Value<'k> {
        match indices {
            &[index] => self.load(index),
            _ => k.vector(&indices.iter().map(|&index| self.load(index)).collect::<Vec<_>>()),
        }
    }

    /// Loads four elements at the indices in a vector.
    pub fn gather_lanes(self, k: &'k KernelBuilder, indices: Value<'k>) -> Value<'k> {
        self.gather(k, &[0, 1, 2, 3].map(|lane| indices.lane(lane)))
    }
}

/// A buffer of factors, of at most 32 bits each, that is read in runs of one, two or four words, or written in runs or
/// pairs.
#[derive(Clone, Copy)]
pub(super) struct Runs<'k> {
    array: Array<'k>,
    dtype: DType,
    words: u32,
}

impl<'k> Runs<'k> {
    pub fn input(k: &'k KernelBuilder, name: &str, dtype: DType, words: u32) -> Self {
        Runs::declare(k, name, dtype, words, Access::Read)
    }

    /// The same for a buffer that is written too.
    pub fn input_and_output(k: &'k KernelBuilder, name: &str, dtype: DType, words: u32) -> Self {
        Runs::declare(k, name, dtype, words, Access::ReadWrite)
    }

    /// Declares a buffer of elements of two or four bytes that is written two elements at a time.
    pub fn output_pairs(k: &'k KernelBuilder, name: &str, dtype: DType) -> Self {
        Runs::declare(k, name, dtype, dtype.size_in_bytes() as u32 / 2, Access::Write)
    }

    fn declare(k: &'k KernelBuilder, name: &str, dtype: DType, words: u32, access: Access) -> Self {
        let scalar = if dtype.size_in_bytes() < 4 { Scalar::U32 } else { dtype.compute_scalar() };
        Runs { array: k.buffer(name, Type { scalar, lanes: words }, access), dtype, words }
    }

    /// Stores the two elements of a pair, narrowed to the dtype of the buffer.
    pub fn store_pair(self, k: &'k KernelBuilder, pair: Value<'k>, value: Value<'k>) {
        let is_packed = self.dtype.size_in_bytes() == 2;
        let packed = if is_packed { self.pack_pair(k, value.lane(0), value.lane(1)) } else { value };
        self.array.store(pair, packed);
    }

    /// The number of elements of a run.
    pub fn length(self) -> u32 {
        4 * self.words / self.dtype.size_in_bytes() as u32
    }

    /// Loads the elements of a run, widened to the type they are multiplied in.
    pub fn load(self, run: Value<'k>) -> Vec<Value<'k>> {
        self.unpack(self.load_packed(run))
    }

    /// Loads a word of the buffer.
    pub fn load_word(self, index: Value<'k>) -> Value<'k> {
        self.array.load_lane(index)
    }

    /// Returns a run of zeros.
    pub fn zeros(self, k: &'k KernelBuilder) -> Value<'k> {
        k.number(self.array.element(), 0)
    }

    /// Loads a run as it is, to be unpacked later.
    pub fn load_packed(self, run: Value<'k>) -> Value<'k> {
        self.array.load(run)
    }

    /// Stores a run as it is.
    pub fn store_packed(self, run: Value<'k>, words: Value<'k>) {
        self.array.store(run, words);
    }

    /// Returns a run of elements of two bytes as it is stored, from numbers.
    pub fn pack(self, numbers: &[Value<'k>]) -> Value<'k> {
        let k = numbers[0].kernel();
        let words = numbers.chunks(2).map(|pair| self.pack_pair(k, pair[0], pair[1]));
        k.vector(&words.collect::<Vec<_>>())
    }

    fn pack_pair(self, k: &'k KernelBuilder, a: Value<'k>, b: Value<'k>) -> Value<'k> {
        if self.dtype == DType::BF16 { k.pack_bf16(a, b) } else { k.pack_f16(a, b) }
    }

    /// Returns the elements of a run that has been loaded.
    pub fn unpack(self, words: Value<'k>) -> Vec<Value<'k>> {
        let word = |place| if self.words == 1 { words } else { words.lane(place) };
        (0..self.words).flat_map(|place| unpack_word(self.dtype, word(place))).collect()
    }
}

/// A buffer that is read four elements at a time, at multiples of four.
#[derive(Clone, Copy)]
pub(super) struct Quads<'k> {
    array: Array<'k>,
    dtype: DType,
}

impl<'k> Quads<'k> {
    pub fn input(k: &'k KernelBuilder, name: &str, dtype: DType) -> Self {
        Quads { array: k.buffer(name, quad_type(dtype), Access::Read), dtype }
    }

    pub fn output(k: &'k KernelBuilder, name: &str, dtype: DType) -> Self {
        Quads { array: k.buffer(name, quad_type(dtype), Access::Write), dtype }
    }

    /// Declares a buffer that is written, and may be read again.
    pub fn in_place(k: &'k KernelBuilder, name: &str, dtype: DType) -> Self {
        Quads { array: k.buffer(name, quad_type(dtype), Access::ReadWrite), dtype }
    }

    /// Returns the quads from `first` on: see [`Array::after`].
    pub fn after(self, first: Value<'k>) -> Self {
        Quads { array: self.array.after(first), ..self }
    }

    /// Loads the elements from `4 * quad` on, widened to the type they are computed in.
    pub fn load(self, k: &'k KernelBuilder, quad: Value<'k>) -> Value<'k> {
        self.unpack(k, self.load_packed(quad))
    }

    /// Loads the elements from `4 * quad` on as they are, to be unpacked later.
    pub fn load_packed(self, quad: Value<'k>) -> Value<'k> {
        self.array.load(quad)
    }

    /// Returns the elements of a quad that has been loaded.
    pub fn unpack(self, k: &'k KernelBuilder, packed: Value<'k>) -> Value<'k> {
        match Packing::of(self.dtype) {
            Packing::Four => k.vector(&unpack_word(self.dtype, packed)),
            Packing::Two => k.vector(&[0, 1].map(|lane| unpack_word(self.dtype, packed.lane(lane))).concat()),
            Packing::None => packed,
        }
    }

    /// Stores the elements from `4 * quad` on, narrowed to the dtype of the buffer.
    pub fn store(self, k: &'k KernelBuilder, quad: Value<'k>, value: Value<'k>) {
        self.array.store(quad, pack_quad(k, self.dtype, value));
    }

    /// The same, [for other workgroups](Array::store_for_all).
    pub fn store_for_all(self, k: &'k KernelBuilder, quad: Value<'k>, value: Value<'k>) {
        self.array.store_for_all(quad, pack_quad(k, self.dtype, value));
    }

    /// Loads the elements from `4 * quad` on as they are, if another workgroup has stored them for all.
    pub fn load_packed_of_all(self, quad: Value<'k>) -> Value<'k> {
        self.array.load_of_all(quad)
    }

    /// Stores the elements from `4 * quad` on. 64-bit elements are vectors of two words.
    pub fn store_lanes(self, k: &'k KernelBuilder, quad: Value<'k>, [a, b, c, d]: [Value<'k>; 4]) {
        if a.ty().lanes == 1 {
            return self.store(k, quad, k.vector(&[a, b, c, d]));
        }
        for (half, [a, b]) in (0..).zip([[a, b], [c, d]]) {
            self.store(k, quad * 2 + half, k.vector(&[a.lane(0), a.lane(1), b.lane(0), b.lane(1)]));
        }
    }
}

/// A buffer of 16-bit elements that is read or written eight elements at a time, at multiples of eight.
#[derive(Clone, Copy)]
pub(super) struct Octets<'k> {
    array: Array<'k>,
    dtype: DType,
}

impl<'k> Octets<'k> {
    pub fn input(k: &'k KernelBuilder, name: &str, dtype: DType) -> Self {
        Octets { array: k.buffer(name, Type::vec4(Scalar::U32), Access::Read), dtype }
    }

    pub fn output(k: &'k KernelBuilder, name: &str, dtype: DType) -> Self {
        Octets { array: k.buffer(name, Type::vec4(Scalar::U32), Access::Write), dtype }
    }

    /// Stores the elements from `8 * octet` on, narrowed to the dtype of the buffer.
    pub fn store(self, k: &'k KernelBuilder, octet: Value<'k>, quads: [Value<'k>; 2]) {
        let words = quads.map(|quad| pack_quad(k, self.dtype, quad).lanes()).concat();
        self.array.store(octet, k.vector(&words));
    }

    /// Loads the elements from `8 * octet` on as they are, to be unpacked later.
    pub fn load_packed(self, octet: Value<'k>) -> Value<'k> {
        self.array.load(octet)
    }

    /// Returns the elements of an octet that has been loaded, widened to the type they are computed in, as two vectors.
    pub fn unpack(self, k: &'k KernelBuilder, words: Value<'k>) -> [Value<'k>; 2] {
        let quad =
            |first| k.vector(&[first, first + 1].map(|word| unpack_halves(self.dtype, words.lane(word))).concat());
        [quad(0), quad(2)]
    }
}

/// A buffer of elements of one, two, four or eight bytes, whatever their dtype.
#[derive(Clone, Copy)]
pub(super) struct Raw<'k> {
    array: Array<'k>,
    bytes: u32,
}

impl<'k> Raw<'k> {
    pub fn input(k: &'k KernelBuilder, name: &str, bytes: usize) -> Self {
        Raw::declare(k, name, bytes, Access::Read)
    }

    pub fn output(k: &'k KernelBuilder, name: &str, bytes: usize) -> Self {
        Raw::declare(k, name, bytes, if bytes < 4 { Access::ReadWrite } else { Access::Write })
    }

    fn declare(k: &'k KernelBuilder, name: &str, bytes: usize, access: Access) -> Self {
        let element = if bytes == 8 { Type::vec2(Scalar::U32) } else { Type::U32 };
        Raw { array: k.buffer(name, element, access), bytes: bytes as u32 }
    }

    /// Returns the word of an element, the position of its bits in the word, and their mask.
    fn place(self, index: Value<'k>) -> (Value<'k>, Value<'k>, u32) {
        let (per_word, bits) = (4 / self.bytes, 8 * self.bytes);
        (index / per_word, index % per_word * bits, (1 << bits) - 1)
    }

    /// Loads the bits of an element.
    pub fn load(self, index: Value<'k>) -> Value<'k> {
        if self.bytes >= 4 {
            return self.array.load(index);
        }
        let (word, shift, mask) = self.place(index);
        (self.array.load(word) >> shift) & mask
    }

    /// Loads the word that begins with the element at `index`, of one, two or four bytes.
    pub fn word(self, index: Value<'k>) -> Value<'k> {
        self.array.load(index / (4 / self.bytes))
    }

    /// Replaces an element that no other invocation replaces.
    pub fn replace(self, index: Value<'k>, new: Value<'k>) {
        if self.bytes >= 4 {
            return self.array.store(index, new);
        }
        // Other invocations may write the rest of the word meanwhile. Each adds the difference between the new and the
        // old value of its part, which carries nothing into other parts. The differences add up to the new word in any
        // order.
        let (word, shift, mask) = self.place(index);
        let old = (self.array.atomic_add(word, 0) >> shift) & mask;
        self.array.atomic_add(word, (new - old) << shift);
    }
}

/// Splits a linear index into coordinates along axes of these lengths, outermost first. Returns what is left of the
/// index, then the coordinates.
pub(super) fn take_apart<'k>(index: Value<'k>, lengths: &[Value<'k>]) -> (Value<'k>, Vec<Value<'k>>) {
    take_apart_by(index, lengths, |index, length| (index / length, index % length))
}

/// The same by a function that divides: it returns the quotient and the rest.
fn take_apart_by<'k>(
    index: Value<'k>,
    lengths: &[Value<'k>],
    divide: impl Fn(Value<'k>, Value<'k>) -> (Value<'k>, Value<'k>),
) -> (Value<'k>, Vec<Value<'k>>) {
    // Not with `let mut rest = index`: rustc 1.95 then changes the argument of a caller that uses it again.
    let (rest, mut coordinates) = lengths.iter().rev().fold((index, Vec::new()), |(rest, mut found), &length| {
        let (rest, own) = divide(rest, length);
        found.push(own);
        (rest, found)
    });
    coordinates.reverse();
    (rest, coordinates)
}

/// Splits the linear indices of a quad's elements like [`take_apart`], with a lane for each element. Only the first one
/// takes divisions: each of the others is the next place. If the quad reaches beyond `count`, its surplus lanes repeat
/// the last element.
pub(super) fn take_quad_apart<'k>(
    k: &'k KernelBuilder,
    quad: Value<'k>,
    count: Value<'k>,
    lengths: &[Value<'k>],
) -> (Value<'k>, Vec<Value<'k>>) {
    let first = quad * 4;
    let (rest, coordinates) = take_apart(first, lengths);
    let mut lane = (rest, coordinates);
    let mut lanes = vec![lane.clone()];
    for number in 1..4 {
        let (rest, coordinates) = &mut lane;
        let mut moves = (first + number).lt(count);
        for (place, &length) in coordinates.iter_mut().zip(lengths).rev() {
            let next = moves.select(*place + 1, *place);
            moves = next.eq(length);
            *place = next.lt(length).select(next, 0);
        }
        *rest = moves.select(*rest + 1, *rest);
        lanes.push(lane.clone());
    }
    let rests: Vec<_> = lanes.iter().map(|(rest, _)| *rest).collect();
    let along = |axis: usize| k.vector(&lanes.iter().map(|(_, coordinates)| coordinates[axis]).collect::<Vec<_>>());
    (k.vector(&rests), (0..lengths.len()).map(along).collect())
}

/// The lengths of some axes, as parameters. They split a linear index into coordinates.
#[derive(Clone)]
pub(crate) struct Grid<'k> {
    lengths: Vec<Value<'k>>,
}

/// A strided view over a [`Grid`]: an offset and a stride per axis, as parameters.
#[derive(Clone)]
pub(crate) struct Strides<'k> {
    offset: Value<'k>,
    strides: Vec<Value<'k>>,
}

impl<'k> Grid<'k> {
    pub fn new(lengths: Vec<Value<'k>>) -> Self {
        Grid { lengths }
    }

    pub fn lengths(&self) -> &[Value<'k>] {
        &self.lengths
    }

    /// The length of the innermost axis.
    pub fn innermost(&self) -> Option<Value<'k>> {
        self.lengths.last().copied()
    }

    /// The number of elements.
    pub fn size(&self, k: &'k KernelBuilder) -> Value<'k> {
        self.lengths.iter().copied().reduce(|a, b| a * b).unwrap_or(k.u32(1))
    }

    /// Returns the coordinates of a linear index, or of each lane of a vector, outermost axis first. The outermost
    /// coordinate is not taken modulo its length.
    pub fn coordinates(&self, index: Value<'k>) -> Vec<Value<'k>> {
        let Some((_, inner)) = self.lengths.split_first() else { return Vec::new() };
        let (outermost, inner) = take_apart(index, inner);
        [&[outermost], &inner[..]].concat()
    }

    /// Returns the same for an index below [`FEW`].
    pub fn coordinates_of_few(&self, index: Value<'k>) -> Vec<Value<'k>> {
        let Some((_, inner)) = self.lengths.split_first() else { return Vec::new() };
        let (outermost, inner) = take_apart_by(index, inner, Value::divide_few);
        [&[outermost], &inner[..]].concat()
    }

    /// Returns the coordinates of a quad's elements, with a lane for each. If the quad reaches beyond `count`, its
    /// surplus lanes repeat the last element.
    pub fn quad_coordinates(&self, k: &'k KernelBuilder, quad: Value<'k>, count: Value<'k>) -> Vec<Value<'k>> {
        let Some((_, inner)) = self.lengths.split_first() else { return Vec::new() };
        let (outermost, inner) = take_quad_apart(k, quad, count, inner);
        [&[outermost], &inner[..]].concat()
    }
}

impl<'k> Strides<'k> {
    pub fn new(offset: Value<'k>, strides: Vec<Value<'k>>) -> Self {
        Strides { offset, strides }
    }

    /// The index of the first element.
    pub fn offset(&self) -> Value<'k> {
        self.offset
    }

    /// Returns the stride along an axis. Axes are counted from the last one, which is 1.
    pub fn stride(&self, from_last: usize) -> Value<'k> {
        self.strides[self.strides.len() - from_last]
    }

    /// Returns the index in the buffer of the element at these coordinates.
    pub fn at(&self, coordinates: &[Value<'k>]) -> Value<'k> {
        coordinates.iter().zip(&self.strides).fold(self.offset, |sum, (&c, &stride)| sum + c * stride)
    }
}
