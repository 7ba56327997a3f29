//! Reads the header of a GGUF file. Nothing in it is trusted: a count is compared with the rest of the file before
//! anything is allocated for it.

use super::value::{GgufArray, GgufValue};
use super::{Bytes, Kind, TYPES, Type, malformed};
use crate::base::error::{Error, Result};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

const MAGIC: [u8; 4] = *b"GGUF";

/// The most axes that a tensor in a file has.
pub(super) const MOST_AXES: usize = 4;

/// How deep arrays nest. The writers that are known never nest them.
const DEEPEST: usize = 4;

/// Where tensors begin, if a file does not say so: at multiples of this many bytes.
const DEFAULT_ALIGNMENT: u64 = 32;

/// The key of the alignment.
const ALIGNMENT: &str = "general.alignment";

/// The least bytes of a metadata entry: the length of its key, its type and a value of one byte.
const LEAST_ENTRY: u64 = 8 + 4 + 1;

/// The least bytes of what a header says about a tensor: the length of its name, its rank, its type and its place.
const LEAST_TENSOR: u64 = 8 + 4 + 4 + 8;

/// Bytes that are read from the file at once.
const CHUNK: u64 = 32 << 10;

/// What a header says about a tensor.
#[derive(Clone)]
pub(super) struct Tensor {
    /// The number of the file among the shards.
    pub shard: usize,
    /// One of [`TYPES`].
    pub kind: &'static Type,
    /// The lengths of the axes, the innermost one first, and the number of axes.
    axes: [usize; MOST_AXES],
    rank: usize,
    /// Where the elements are in the file.
    pub range: Range<u64>,
    /// Where the header has the place of the elements.
    told: u64,
}

impl Tensor {
    /// Returns the lengths of the axes, the outermost one first.
    pub fn dims(&self) -> impl Iterator<Item = usize> {
        self.axes[..self.rank].iter().rev().copied()
    }
}

/// Reads values one behind the other.
struct Cursor<'a> {
    bytes: &'a Bytes,
    position: u64,
    /// A part of the file, and where it begins.
    chunk: Vec<u8>,
    start: u64,
}

/// Reads a header. Adds its tensors to those of the shards before it, and returns its metadata.
pub(super) fn read(
    bytes: &Bytes,
    shard: usize,
    tensors: &mut BTreeMap<String, Tensor>,
) -> Result<BTreeMap<String, GgufValue>> {
    let mut cursor = Cursor { bytes, position: 0, chunk: Vec::new(), start: 0 };
    if cursor.array("the magic number")? != MAGIC {
        return Err(cursor.error(0, "it does not begin with the bytes `GGUF`"));
    }
    let version = cursor.u32("the version")?;
    if !(2..=3).contains(&version) {
        let message = match version {
            _ if (1..=3).contains(&version.swap_bytes()) => {
                "it is big-endian; convert it with `gguf-convert-endian FILE little`, of the package `gguf` for Python"
                    .to_string()
            }
            _ => format!("it has version {version}, and versions 2 and 3 are read"),
        };
        return Err(cursor.error(4, message));
    }
    let tensor_count = cursor.count("tensors", LEAST_TENSOR)?;
    let entries = cursor.count("metadata entries", LEAST_ENTRY)?;

    let mut metadata = BTreeMap::new();
    for number in 0..entries {
        let place = cursor.position;
        let key = cursor.string(&format!("the key of metadata entry {number}"))?;
        match metadata.entry(key) {
            Entry::Occupied(entry) => {
                return Err(cursor.error(place, format!("the metadata has the key {} twice", shown(entry.key()))));
            }
            Entry::Vacant(entry) => {
                let value = cursor.value(entry.key())?;
                entry.insert(value);
            }
        }
    }
    let alignment = alignment(&cursor, metadata.get(ALIGNMENT))?;

    for number in 0..tensor_count {
        let place = cursor.position;
        let name = cursor.string(&format!("the name of tensor {number}"))?;
        match tensors.entry(name) {
            Entry::Occupied(entry) => {
                let message = match entry.get().shard {
                    other if other == shard => format!("two tensors have the name {}", shown(entry.key())),
                    other => format!("tensor {} is also in another file, number {}", shown(entry.key()), other + 1),
                };
                return Err(cursor.error(place, message));
            }
            Entry::Vacant(entry) => {
                let tensor = cursor.tensor(entry.key(), shard, alignment)?;
                entry.insert(tensor);
            }
        }
    }

    let start = cursor.position.checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
    for (name, tensor) in tensors.iter_mut().filter(|(_, tensor)| tensor.shard == shard) {
        let place = |offset: u64| start.checked_add(offset).filter(|place| *place <= bytes.length());
        let Range { start: first, end } = tensor.range;
        let (Some(first), Some(end)) = (place(first), place(end)) else {
            let length = end - first;
            let message = format!(
                "tensor {} has {length} bytes from {first} on behind byte {start}, and the file has {} bytes",
                shown(name),
                bytes.length()
            );
            return Err(cursor.error(tensor.told, message));
        };
        tensor.range = first..end;
    }
    Ok(metadata)
}

/// Returns a name for messages. It may be as long as the file.
fn shown(name: &str) -> String {
    const MOST: usize = 64;
    match name.char_indices().nth(MOST) {
        Some((end, _)) => format!("{:?}...", &name[..end]),
        None => format!("{name:?}"),
    }
}

fn alignment(cursor: &Cursor<'_>, value: Option<&GgufValue>) -> Result<u64> {
    let wrong = |what: String| {
        let message = format!("metadata `{ALIGNMENT}` is {what}, not a power of two of type u32");
        cursor.error(cursor.position, message)
    };
    match value {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(GgufValue::U32(value)) if value.is_power_of_two() => Ok(u64::from(*value)),
        Some(GgufValue::U32(value)) => Err(wrong(value.to_string())),
        Some(value) => Err(wrong(value.type_name().to_string())),
    }
}

impl Cursor<'_> {
    fn left(&self) -> u64 {
        self.bytes.length().saturating_sub(self.position)
    }

    /// Returns the error for what is wrong at a place.
    fn error(&self, place: u64, reason: impl AsRef<str>) -> Error {
        malformed(&self.bytes.path, format!("not a sound GGUF file: {} (byte {place})", reason.as_ref()))
    }

    /// Returns the error for something that the file is too short for.
    fn cut_off(&self, what: &str, bytes: u64) -> Error {
        self.error(self.position, format!("{what} takes {bytes} bytes, and {} are left", self.left()))
    }

    /// Fills a slice. The caller has compared its length with the rest of the file.
    fn fill(&mut self, mut into: &mut [u8]) -> Result<()> {
        while !into.is_empty() {
            let from = self.position.checked_sub(self.start).map_or(usize::MAX, |from| from as usize);
            let Some(found) = self.chunk.get(from..).filter(|found| !found.is_empty()) else {
                let end = self.position + self.left().min(CHUNK);
                self.chunk = Vec::new();
                self.chunk = self.bytes.read(self.position..end)?;
                self.start = self.position;
                if self.chunk.is_empty() {
                    return Err(self.cut_off("a value", into.len() as u64));
                }
                continue;
            };
            let count = found.len().min(into.len());
            let (part, rest) = into.split_at_mut(count);
            part.copy_from_slice(&found[..count]);
            self.position += count as u64;
            into = rest;
        }
        Ok(())
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        if self.left() < N as u64 {
            return Err(self.cut_off(what, N as u64));
        }
        let mut array = [0; N];
        self.fill(&mut array)?;
        Ok(array)
    }

    fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Reads how many items follow. Each takes at least `least` bytes.
    fn count(&mut self, items: &str, least: u64) -> Result<usize> {
        let place = self.position;
        let count = self.u64("a count")?;
        let fits = count.checked_mul(least).is_some_and(|bytes| bytes <= self.left());
        match usize::try_from(count) {
            Ok(count) if fits => Ok(count),
            _ => {
                let message =
                    format!("{count} {items} of at least {least} bytes do not fit the {} bytes left", self.left());
                Err(self.error(place, message))
            }
        }
    }

    fn string(&mut self, what: &str) -> Result<String> {
        let place = self.position;
        let length = self.u64(what)?;
        if length > self.left() {
            return Err(self.error(place, format!("{what} takes {length} bytes, and {} are left", self.left())));
        }
        let Ok(length) = usize::try_from(length) else {
            return Err(self.error(place, format!("{what} takes {length} bytes, more than this machine can hold")));
        };
        let mut bytes = vec![0; length];
        self.fill(&mut bytes)?;
        String::from_utf8(bytes).map_err(|_| self.error(place, format!("{what} is not UTF-8")))
    }

    fn bool(&mut self, what: &str) -> Result<bool> {
        let place = self.position;
        match self.array::<1>(what)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [byte] => Err(self.error(place, format!("{what} is a bool, and {byte} is neither 0 nor 1"))),
        }
    }

    fn value(&mut self, key: &str) -> Result<GgufValue> {
        let what = &format!("the value of {}", shown(key));
        let place = self.position;
        Ok(match self.u32(what)? {
            0 => GgufValue::U8(u8::from_le_bytes(self.array(what)?)),
            1 => GgufValue::I8(i8::from_le_bytes(self.array(what)?)),
            2 => GgufValue::U16(u16::from_le_bytes(self.array(what)?)),
            3 => GgufValue::I16(i16::from_le_bytes(self.array(what)?)),
            4 => GgufValue::U32(self.u32(what)?),
            5 => GgufValue::I32(i32::from_le_bytes(self.array(what)?)),
            6 => GgufValue::F32(f32::from_le_bytes(self.array(what)?)),
            7 => GgufValue::Bool(self.bool(what)?),
            8 => GgufValue::String(self.string(what)?),
            9 => GgufValue::Array(self.elements(what, 1)?),
            10 => GgufValue::U64(self.u64(what)?),
            11 => GgufValue::I64(i64::from_le_bytes(self.array(what)?)),
            12 => GgufValue::F64(f64::from_le_bytes(self.array(what)?)),
            unknown => return Err(self.error(place, format!("{what} has type {unknown}, and types 0 to 12 exist"))),
        })
    }

    /// Reads an array: the type of its elements, their number, and them.
    fn elements(&mut self, what: &str, depth: usize) -> Result<GgufArray> {
        let place = self.position;
        Ok(match self.u32(what)? {
            0 => GgufArray::U8(self.numbers(what, u8::from_le_bytes)?),
            1 => GgufArray::I8(self.numbers(what, i8::from_le_bytes)?),
            2 => GgufArray::U16(self.numbers(what, u16::from_le_bytes)?),
            3 => GgufArray::I16(self.numbers(what, i16::from_le_bytes)?),
            4 => GgufArray::U32(self.numbers(what, u32::from_le_bytes)?),
            5 => GgufArray::I32(self.numbers(what, i32::from_le_bytes)?),
            6 => GgufArray::F32(self.numbers(what, f32::from_le_bytes)?),
            7 => {
                let count = self.count("elements", 1)?;
                GgufArray::Bool((0..count).map(|_| self.bool(what)).collect::<Result<_>>()?)
            }
            8 => {
                let count = self.count("strings", 8)?;
                let mut strings = Vec::with_capacity(count);
                for _ in 0..count {
                    strings.push(self.string(what)?);
                }
                GgufArray::String(strings)
            }
            9 if depth < DEEPEST => {
                let count = self.count("arrays", 12)?;
                // Each level could promise as many as the file has room for, so that memory grows with what is read.
                let mut arrays = Vec::with_capacity(count.min(16));
                for _ in 0..count {
                    arrays.push(self.elements(what, depth + 1)?);
                }
                GgufArray::Array(arrays)
            }
            9 => return Err(self.error(place, format!("{what} nests arrays deeper than {DEEPEST}"))),
            10 => GgufArray::U64(self.numbers(what, u64::from_le_bytes)?),
            11 => GgufArray::I64(self.numbers(what, i64::from_le_bytes)?),
            12 => GgufArray::F64(self.numbers(what, f64::from_le_bytes)?),
            unknown => {
                return Err(self.error(place, format!("{what} has elements of type {unknown}; 0 to 12 exist")));
            }
        })
    }

    fn numbers<T, const N: usize>(&mut self, what: &str, from: fn([u8; N]) -> T) -> Result<Vec<T>> {
        let count = self.count("elements", N as u64)?;
        let mut numbers = Vec::with_capacity(count);
        for _ in 0..count {
            numbers.push(from(self.array(what)?));
        }
        Ok(numbers)
    }

    /// Reads what the header says about a tensor, but for its name. Its range begins behind the header.
    fn tensor(&mut self, name: &str, shard: usize, alignment: u64) -> Result<Tensor> {
        let what = &format!("tensor {}", shown(name));
        let place = self.position;
        let rank = self.u32(what)?;
        if rank as usize > MOST_AXES {
            return Err(self.error(place, format!("{what} has {rank} axes, and {MOST_AXES} are the most")));
        }
        let rank = rank as usize;
        let mut axes = [1; MOST_AXES];
        let mut elements = Some(1u64);
        for axis in &mut axes[..rank] {
            let length = self.u64(what)?;
            elements = elements.and_then(|elements| elements.checked_mul(length));
            *axis = usize::try_from(length).unwrap_or(usize::MAX);
        }
        let kind_place = self.position;
        let number = self.u32(what)?;
        let kind = TYPES.iter().find(|kind| kind.number == number);
        let kind = kind.ok_or_else(|| self.error(kind_place, format!("{what} has the unknown type {number}")))?;
        let too_large = || self.error(place, format!("{what} has more elements than a file can hold"));
        // Also within the signed numbers in which other programs count.
        let elements = elements.filter(|elements| *elements <= i64::MAX as u64).ok_or_else(too_large)?;
        if !(axes[0] as u64).is_multiple_of(kind.elements) {
            let message = format!(
                "{what} of {} has rows of {} elements, which is no multiple of {}",
                kind.name, axes[0], kind.elements
            );
            return Err(self.error(place, message));
        }
        let bytes = (elements / kind.elements).checked_mul(kind.bytes).ok_or_else(too_large)?;
        let told = self.position;
        let offset = self.u64(what)?;
        if offset % alignment != 0 {
            let message = format!("{what} begins at {offset}, which is no multiple of the alignment {alignment}");
            return Err(self.error(told, message));
        }
        let end = offset.checked_add(bytes);
        let end = end.ok_or_else(|| self.error(told, format!("{what} begins at {offset}, beyond the file's end")))?;
        Ok(Tensor { shard, kind, axes, rank, range: offset..end, told })
    }
}

impl Type {
    pub(super) const fn new(number: u32, name: &'static str, elements: u64, bytes: u64, kind: Kind) -> Type {
        Type { number, name, elements, bytes, kind }
    }
}
