//! Stable sorting of rows. Keys are words with the same order as the elements. The kernels move the bits of an element,
//! and compute its key when they need it. So zeros keep their sign, and NaN keep their bits. Elements of 64 bits are
//! two words, the lower one first, and so are their keys. No device need compute in 64 bits.
//!
//! | file | what it sorts |
//! |---|---|
//! | `short.rs` | rows of a few elements, and pieces of longer ones, by counting |
//! | `row.rs` | rows that a workgroup can hold |
//! | `radix.rs` | longer rows, by one digit of the keys after the other |
//! | `merge.rs` | on software devices, rows whose pieces are sorted |
//! | `select.rs` | nothing. It selects the elements that come first, for the others to sort |
//! | `take.rs` | nothing. It takes elements by the places that the others found |
//!
//! `block.rs` sorts what a workgroup holds, for `row.rs` and `radix.rs`.

mod block;
mod merge;
mod radix;
mod row;
mod select;
mod short;
mod take;

pub(crate) use block::memory;
pub(crate) use merge::{MERGED, MergeParameters, SortMerge};
pub(crate) use radix::{BlockParameters, Blocks, CountParameters, DIGITS, ScatterParameters, SortCount, SortScatter};
pub(crate) use row::{RowParameters, SortRow};
pub(crate) use select::{SelectParameters, SortSelect};
pub(crate) use short::{LONGEST, ShortParameters, SortShort};
pub(crate) use take::{SortTake, TakeParameters};

use super::Family;
use super::elements::{Quads, Raw};
use super::parameters::{Bits, Form, Size, parameters};
use super::rows::{DeclaredRows, Rows, RowsType};
use super::workgroup::{Member, Team};
use crate::base::dtype::DType;
use crate::shader::{Access, Array, KernelBuilder, Type, Value};

/// Invocations per workgroup of the kernels that share no memory, and the smallest workgroup of the others.
pub(crate) const WORKGROUP: u32 = 64;

/// Where a kernel finds what it sorts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Input {
    /// In the rows of a tensor.
    Rows(RowsType),
    /// In a table of elements' bits that an earlier kernel has written. It may have written a table of their places,
    /// too.
    Table { dtype: DType, places: bool },
}

/// What a kernel writes: tables of elements' bits, and of their places in the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Output {
    pub bits: bool,
    pub places: bool,
}

impl Input {
    fn dtype(self) -> DType {
        match self {
            Input::Rows(rows) => rows.dtype,
            Input::Table { dtype, .. } => dtype,
        }
    }

    fn rows(self) -> Option<RowsType> {
        match self {
            Input::Rows(rows) => Some(rows),
            Input::Table { .. } => None,
        }
    }

    fn describe(self) -> String {
        match self {
            Input::Rows(rows) => rows.dtype.to_string(),
            Input::Table { dtype, places: true } => format!("{dtype} and places"),
            Input::Table { dtype, places: false } => format!("{dtype} in order"),
        }
    }
}

impl Output {
    pub const BOTH: Output = Output { bits: true, places: true };

    fn describe(self) -> &'static str {
        match (self.bits, self.places) {
            (true, false) => ", elements alone",
            (false, true) => ", places alone",
            _ => "",
        }
    }
}

/// The sign bit of a word.
const SIGN: u32 = 0x8000_0000;

/// The bits of a key.
pub(crate) fn key_bits(dtype: DType) -> u32 {
    8 * dtype.size_in_bytes() as u32
}

/// Returns the bits of each word of a key that matter.
fn key_mask(dtype: DType) -> u32 {
    u32::MAX >> (32 - key_bits(dtype).min(32))
}

/// Returns the key of an element from its bits: words with the order of the dtype's elements, the lower one first. NaN
/// are the largest, and both zeros are equal. `mask` is all ones for descending order, else 0.
fn key<'k>(dtype: DType, bits: &[Value<'k>], mask: Value<'k>) -> Vec<Value<'k>> {
    let key = match *bits {
        [low, high] if dtype == DType::I64 => vec![low, high ^ SIGN],
        [low, high] => wide_float_key(low, high),
        _ => vec![narrow_key(dtype, bits[0])],
    };
    let ones = key_mask(dtype);
    key.into_iter().map(|word| word ^ (if ones == u32::MAX { mask } else { mask & ones })).collect()
}

/// Returns the key of an element of one word at most.
fn narrow_key(dtype: DType, bits: Value<'_>) -> Value<'_> {
    let (ones, sign) = (key_mask(dtype), 1 << (key_bits(dtype) - 1));
    let infinity = match dtype {
        DType::F32 => f32::INFINITY.to_bits(),
        DType::F16 => half::f16::INFINITY.to_bits().into(),
        DType::BF16 => half::bf16::INFINITY.to_bits().into(),
        DType::I32 | DType::I8 => return bits ^ sign,
        _ => return bits,
    };
    let key = bits.gt(sign).select(bits ^ ones, bits | sign);
    (bits & (ones ^ sign)).gt(infinity).select(key.literal(ones), key)
}

/// Returns the key of an `f64`.
fn wide_float_key<'k>(low: Value<'k>, high: Value<'k>) -> Vec<Value<'k>> {
    const INFINITY: u32 = (f64::INFINITY.to_bits() >> 32) as u32;
    let beyond = |high: Value<'k>, end: u32| high.gt(end) | (high.eq(end) & low.gt(0));
    let (is_negative, is_nan) = (beyond(high, SIGN), beyond(high & !SIGN, INFINITY));
    let key = [is_negative.select(!low, low), is_negative.select(!high, high | SIGN)];
    key.map(|word| is_nan.select(word.literal(u32::MAX), word)).into()
}

/// Returns whether a key comes before another one: `by` compares their lower words if the upper ones are equal.
fn compare<'k>(a: &[Value<'k>], b: &[Value<'k>], by: impl FnOnce(Value<'k>, Value<'k>) -> Value<'k>) -> Value<'k> {
    match (a, b) {
        (&[a], &[b]) => by(a, b),
        _ => a[1].lt(b[1]) | (a[1].eq(b[1]) & by(a[0], b[0])),
    }
}

/// The buffers of an [`Input`].
struct Reader<'k> {
    bits: Raw<'k>,
    /// Whether the kernel needs places, and where they are if they are not the places in this row.
    needs_places: bool,
    places: Option<Array<'k>>,
    rows: Option<DeclaredRows<'k>>,
    /// The length of a row.
    length: Value<'k>,
}

impl<'k> Reader<'k> {
    fn new(
        k: &'k KernelBuilder,
        input: Input,
        rows: Option<DeclaredRows<'k>>,
        length: Value<'k>,
        needs_places: bool,
    ) -> Self {
        let bytes = input.dtype().size_in_bytes();
        let (bits, places) = match input {
            Input::Rows(_) => (Raw::input(k, "x", bytes), None),
            Input::Table { places, .. } => {
                let bits = Raw::input(k, "bits", bytes.max(4));
                (bits, (needs_places && places).then(|| k.buffer("places", Type::U32, Access::Read)))
            }
        };
        Reader { bits, needs_places, places, rows, length }
    }

    /// Returns a function that loads the words of the element at a place of the row.
    fn row(&self, row: Value<'k>) -> impl Fn(Value<'k>) -> Vec<Value<'k>> + '_ {
        let kept = self.rows.as_ref().map(|rows| rows.kept.coordinates(row));
        move |place| {
            let index = match self.rows.as_ref().zip(kept.as_ref()) {
                Some((rows, kept)) => rows.x.at(&[&kept[..], &rows.along.coordinates(place)].concat()),
                None => row * self.length + place,
            };
            self.bits.load(index).lanes()
        }
    }

    /// Returns a function that loads the words of the element at a place of the row, and its place in the tensor's row
    /// as the last word if the kernel needs it.
    fn elements(&self, row: Value<'k>) -> impl Fn(Value<'k>) -> Vec<Value<'k>> + '_ {
        let load = self.row(row);
        move |place| {
            let mut words = load(place);
            words.extend(self.needs_places.then(|| self.place(row, place)));
            words
        }
    }

    /// Returns the place in the tensor's row of the element at a place of this row.
    fn place(&self, row: Value<'k>, place: Value<'k>) -> Value<'k> {
        self.places.map_or(place, |places| places.load(row * self.length + place))
    }
}

/// The buffers of an [`Output`].
struct Writer<'k> {
    bits: Option<Raw<'k>>,
    places: Option<Array<'k>>,
}

impl<'k> Writer<'k> {
    fn new(k: &'k KernelBuilder, output: Output, dtype: DType) -> Self {
        let bits = output.bits.then(|| Raw::output(k, "out_bits", dtype.size_in_bytes().max(4)));
        Writer { bits, places: output.places.then(|| k.buffer("out_places", Type::U32, Access::Write)) }
    }

    /// Stores an element: its bits, and its place in the row, as far as they are asked for.
    fn store(&self, k: &'k KernelBuilder, index: Value<'k>, bits: &[Value<'k>], place: impl FnOnce() -> Value<'k>) {
        if let Some(array) = self.bits {
            array.replace(index, if let &[word] = bits { word } else { k.vector(bits) });
        }
        if let Some(places) = self.places {
            places.store(index, place());
        }
    }
}

/// Rows of each dtype.
fn sample_rows() -> impl Iterator<Item = RowsType> {
    DType::ALL.into_iter().map(|dtype| RowsType { dtype, kept_rank: 1, row_rank: 1 })
}

/// Rows of each dtype, and tables of one and of two words.
fn sample_inputs() -> impl Iterator<Item = Input> {
    let table = |dtype| Input::Table { dtype, places: true };
    sample_rows().map(Input::Rows).chain([DType::F32, DType::F64].map(table))
}
