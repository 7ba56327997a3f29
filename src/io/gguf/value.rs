//! What a GGUF file says about itself: values of 13 types.

use super::malformed;
use crate::base::error::{Error, Result};
use std::path::Path;

/// A value in the metadata of a [`Gguf`](super::Gguf) file.
///
/// ```
/// use marquetry::io::{GgufArray, GgufValue};
/// let value = GgufValue::Array(GgufArray::I32(vec![1, 2]));
/// assert_eq!(value.type_name(), "an array of i32");
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the variants are the types")]
pub enum GgufValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(GgufArray),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array in the metadata of a [`Gguf`](super::Gguf) file. All its elements have one type.
///
/// ```
/// use marquetry::io::GgufArray;
/// let tokens = GgufArray::String(vec!["a".into(), "b".into()]);
/// assert_eq!(tokens.len(), 2);
/// assert!(!tokens.is_empty());
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the variants are the types")]
pub enum GgufArray {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    Array(Vec<GgufArray>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl GgufValue {
    /// Returns the name of the type, for messages.
    pub fn type_name(&self) -> &'static str {
        match self {
            GgufValue::U8(_) => "a u8",
            GgufValue::I8(_) => "an i8",
            GgufValue::U16(_) => "a u16",
            GgufValue::I16(_) => "an i16",
            GgufValue::U32(_) => "a u32",
            GgufValue::I32(_) => "an i32",
            GgufValue::F32(_) => "an f32",
            GgufValue::Bool(_) => "a bool",
            GgufValue::String(_) => "a string",
            GgufValue::Array(array) => array.type_name(),
            GgufValue::U64(_) => "a u64",
            GgufValue::I64(_) => "an i64",
            GgufValue::F64(_) => "an f64",
        }
    }

    /// Returns an integer of any type.
    fn integer(&self) -> Option<i128> {
        Some(match *self {
            GgufValue::U8(value) => value.into(),
            GgufValue::I8(value) => value.into(),
            GgufValue::U16(value) => value.into(),
            GgufValue::I16(value) => value.into(),
            GgufValue::U32(value) => value.into(),
            GgufValue::I32(value) => value.into(),
            GgufValue::U64(value) => value.into(),
            GgufValue::I64(value) => value.into(),
            _ => return None,
        })
    }
}

impl GgufArray {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        match self {
            GgufArray::U8(elements) => elements.len(),
            GgufArray::I8(elements) => elements.len(),
            GgufArray::U16(elements) => elements.len(),
            GgufArray::I16(elements) => elements.len(),
            GgufArray::U32(elements) => elements.len(),
            GgufArray::I32(elements) => elements.len(),
            GgufArray::F32(elements) => elements.len(),
            GgufArray::Bool(elements) => elements.len(),
            GgufArray::String(elements) => elements.len(),
            GgufArray::Array(elements) => elements.len(),
            GgufArray::U64(elements) => elements.len(),
            GgufArray::I64(elements) => elements.len(),
            GgufArray::F64(elements) => elements.len(),
        }
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn type_name(&self) -> &'static str {
        match self {
            GgufArray::U8(_) => "an array of u8",
            GgufArray::I8(_) => "an array of i8",
            GgufArray::U16(_) => "an array of u16",
            GgufArray::I16(_) => "an array of i16",
            GgufArray::U32(_) => "an array of u32",
            GgufArray::I32(_) => "an array of i32",
            GgufArray::F32(_) => "an array of f32",
            GgufArray::Bool(_) => "an array of bool",
            GgufArray::String(_) => "an array of strings",
            GgufArray::Array(_) => "an array of arrays",
            GgufArray::U64(_) => "an array of u64",
            GgufArray::I64(_) => "an array of i64",
            GgufArray::F64(_) => "an array of f64",
        }
    }

    fn integers(&self) -> Option<Vec<i64>> {
        fn widened<T: Copy + Into<i64>>(elements: &[T]) -> Option<Vec<i64>> {
            Some(elements.iter().map(|&element| element.into()).collect())
        }
        match self {
            GgufArray::U8(elements) => widened(elements),
            GgufArray::I8(elements) => widened(elements),
            GgufArray::U16(elements) => widened(elements),
            GgufArray::I16(elements) => widened(elements),
            GgufArray::U32(elements) => widened(elements),
            GgufArray::I32(elements) => widened(elements),
            GgufArray::U64(elements) => elements.iter().map(|&element| element.try_into().ok()).collect(),
            GgufArray::I64(elements) => Some(elements.clone()),
            _ => None,
        }
    }
}

/// A value in the metadata of a file, with its key. Its errors name the file and the key.
///
/// Integers convert to any type of integer that can hold them, because writers of files choose different types.
///
/// ```
/// use marquetry::io::Gguf;
/// # let string = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
/// # let count = [4u32, 30].map(u32::to_le_bytes).concat();
/// # let header = [&b"GGUF"[..], &3u32.to_le_bytes(), &0u64.to_le_bytes(), &1u64.to_le_bytes()].concat();
/// # let bytes = [header, string("llama.block_count"), count].concat();
/// let file = Gguf::from_bytes(bytes)?;
/// let layers = file.get("llama.block_count")?;
/// assert_eq!((layers.as_u32()?, layers.as_i64()?), (30, 30));
/// let error = layers.as_str().unwrap_err().to_string();
/// assert!(error.contains("`llama.block_count` is a u32, not a string"));
/// # Ok::<(), marquetry::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct GgufField<'a> {
    pub(super) path: &'a Path,
    pub(super) key: &'a str,
    pub(super) value: &'a GgufValue,
}

impl<'a> GgufField<'a> {
    /// Returns the key.
    pub fn key(&self) -> &'a str {
        self.key
    }

    /// Returns the value.
    pub fn value(&self) -> &'a GgufValue {
        self.value
    }

    /// Returns a truth value.
    ///
    /// # Errors
    /// [`Error::Format`] if the value has another type.
    pub fn as_bool(&self) -> Result<bool> {
        match self.value {
            GgufValue::Bool(value) => Ok(*value),
            _ => Err(self.is_not("a bool")),
        }
    }

    /// Returns an integer of 32 bits without sign.
    ///
    /// # Errors
    /// [`Error::Format`] if the value is no integer, or does not fit.
    pub fn as_u32(&self) -> Result<u32> {
        self.integer("a u32")
    }

    /// Returns an integer of 64 bits without sign.
    ///
    /// # Errors
    /// [`Error::Format`] if the value is no integer, or does not fit.
    pub fn as_u64(&self) -> Result<u64> {
        self.integer("a u64")
    }

    /// Returns an integer of 64 bits.
    ///
    /// # Errors
    /// [`Error::Format`] if the value is no integer, or does not fit.
    pub fn as_i64(&self) -> Result<i64> {
        self.integer("an i64")
    }

    /// Returns a float: an `f32`, or an `f64` rounded to `f32`.
    ///
    /// # Errors
    /// [`Error::Format`] if the value has another type.
    pub fn as_f32(&self) -> Result<f32> {
        match *self.value {
            GgufValue::F32(value) => Ok(value),
            GgufValue::F64(value) => Ok(value as f32),
            _ => Err(self.is_not("an f32")),
        }
    }

    /// Returns a float: an `f64` or an `f32`.
    ///
    /// # Errors
    /// [`Error::Format`] if the value has another type.
    pub fn as_f64(&self) -> Result<f64> {
        match *self.value {
            GgufValue::F32(value) => Ok(value.into()),
            GgufValue::F64(value) => Ok(value),
            _ => Err(self.is_not("an f64")),
        }
    }

    /// Returns a string.
    ///
    /// # Errors
    /// [`Error::Format`] if the value has another type.
    pub fn as_str(&self) -> Result<&'a str> {
        match self.value {
            GgufValue::String(value) => Ok(value),
            _ => Err(self.is_not("a string")),
        }
    }

    /// Returns the elements of an array of strings.
    ///
    /// # Errors
    /// [`Error::Format`] if the value has another type.
    pub fn as_strings(&self) -> Result<&'a [String]> {
        match self.value {
            GgufValue::Array(GgufArray::String(elements)) => Ok(elements),
            _ => Err(self.is_not("an array of strings")),
        }
    }

    /// Returns the elements of an array of integers of any type.
    ///
    /// # Errors
    /// [`Error::Format`] if the value has another type, or if an element does not fit.
    pub fn as_integers(&self) -> Result<Vec<i64>> {
        let integers = match self.value {
            GgufValue::Array(array) => array.integers(),
            _ => None,
        };
        integers.ok_or_else(|| self.is_not("an array of integers of at most 64 bits with a sign"))
    }

    /// Returns the elements of an array of floats of either type.
    ///
    /// # Errors
    /// [`Error::Format`] if the value has another type.
    pub fn as_floats(&self) -> Result<Vec<f64>> {
        match self.value {
            GgufValue::Array(GgufArray::F32(elements)) => Ok(elements.iter().map(|&x| x.into()).collect()),
            GgufValue::Array(GgufArray::F64(elements)) => Ok(elements.clone()),
            _ => Err(self.is_not("an array of floats")),
        }
    }

    fn integer<T: TryFrom<i128>>(&self, wanted: &str) -> Result<T> {
        let value = self.value.integer().ok_or_else(|| self.is_not(wanted))?;
        let too_large = |_| malformed(self.path, format!("metadata `{}` is {value}, which is not {wanted}", self.key));
        T::try_from(value).map_err(too_large)
    }

    fn is_not(&self, wanted: &str) -> Error {
        malformed(self.path, format!("metadata `{}` is {}, not {wanted}", self.key, self.value.type_name()))
    }
}
