//! The format npy, an array of numpy's: a magic number and a version, the length of the header, the header, the elements.
//!
//! <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>

use super::file::{Bytes, failed, replace};
use super::{TensorInfo, foreign_dtype, malformed, unknown_to_format};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::shape::Shape;
use crate::tensor::Tensor;
use std::borrow::Cow;
use std::io::Write;
use std::path::Path;

/// The dtypes, as numpy and as this crate calls them.
const DTYPES: [(&str, DType); 9] = [
    ("b1", DType::Bool),
    ("u1", DType::U8),
    ("i1", DType::I8),
    ("u4", DType::U32),
    ("i4", DType::I32),
    ("i8", DType::I64),
    ("f2", DType::F16),
    ("f4", DType::F32),
    ("f8", DType::F64),
];

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// The elements begin at a multiple of this.
const ALIGNMENT: usize = 64;

impl Tensor {
    /// The array in a `.npy` file. Arrays in Fortran order become transposed views; big-endian ones are converted.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("x.npy");
    /// # let device = Device::best()?;
    /// Tensor::new([[1f32, 2.0], [3.0, 4.0]], &device)?.t()?.write_npy(&path)?;
    /// assert_eq!(Tensor::read_npy(&path, &device)?.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) where the file cannot be read; [`Error::Format`](crate::Error::Format) where it is
    /// no such file, or not all of it, or its elements are of a type that is none of [`DType`];
    /// [`Error::SizeOverflow`](crate::Error::SizeOverflow); [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn read_npy(path: impl AsRef<Path>, device: &Device) -> Result<Tensor> {
        let bytes = Bytes::open(path.as_ref())?;
        Array::parse(&bytes.path, "the array", &bytes)?.upload(device)
    }

    /// Writes the elements to a `.npy` file, in row-major order. Blocks until they are computed.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io); [`Error::Format`](crate::Error::Format) for a dtype that numpy does not have;
    /// whatever went wrong in the computation.
    pub fn write_npy(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let (header, elements) = encode(path, "the tensor", self)?;
        replace(path, |file| {
            file.write_all(&header).and_then(|()| file.write_all(&elements)).map_err(|error| failed(path, &error))
        })
    }
}

/// An array in memory.
pub(super) struct Array<'a> {
    info: TensorInfo,
    /// Whether the first axis is the one whose neighbours lie side by side.
    fortran_order: bool,
    big_endian: bool,
    elements: &'a [u8],
}

impl<'a> Array<'a> {
    /// Takes a file apart. `path` and `name`, as in "the array", are for errors.
    pub fn parse(path: &Path, name: &str, bytes: &'a [u8]) -> Result<Self> {
        let (header, rest) =
            split(bytes).ok_or_else(|| malformed(path, format!("{name} does not begin as a npy file does")))?;
        let header =
            Header::parse(header).ok_or_else(|| malformed(path, format!("the npy header of {name} is damaged")))?;
        let (order, code) = header.descr.split_at_checked(1).unwrap_or_default();
        let known = DTYPES.iter().find(|(theirs, _)| *theirs == code && "<>|=".contains(order));
        let foreign = || foreign_dtype(path, name, header.descr, &DTYPES.map(|(_, ours)| ours));
        let (_, dtype) = *known.ok_or_else(foreign)?;

        let shape = Shape::from(header.shape);
        let expected = shape.elem_count().and_then(|elements| elements.checked_mul(dtype.size_in_bytes()));
        let elements = expected.and_then(|expected| rest.get(..expected)).ok_or_else(|| {
            let message = format!("{name} is to be {shape} of {dtype}, but only {} bytes follow", rest.len());
            malformed(path, message)
        })?;
        let info = TensorInfo { dtype, shape };
        Ok(Array { info, fortran_order: header.fortran_order, big_endian: order == ">", elements })
    }

    pub fn info(self) -> TensorInfo {
        self.info
    }

    /// The array on a device.
    pub fn upload(self, device: &Device) -> Result<Tensor> {
        let TensorInfo { dtype, shape } = self.info;
        let mut elements = Cow::Borrowed(self.elements);
        if self.big_endian && dtype.size_in_bytes() > 1 {
            elements.to_mut().chunks_exact_mut(dtype.size_in_bytes()).for_each(<[u8]>::reverse);
        }
        if !self.fortran_order {
            return Tensor::from_raw_buffer(&elements, dtype, shape, device);
        }
        let reversed: Vec<isize> = (0..shape.rank() as isize).rev().collect();
        let shape: Shape = shape.iter().rev().copied().collect();
        Tensor::from_raw_buffer(&elements, dtype, shape, device)?.permute(reversed)
    }
}

/// A tensor as a file: its header and its elements. `path` and `name`, as in "the array", are for errors.
pub(super) fn encode(path: &Path, name: &str, tensor: &Tensor) -> Result<(Vec<u8>, Vec<u8>)> {
    let known = DTYPES.iter().find(|(_, ours)| *ours == tensor.dtype());
    let foreign = || unknown_to_format(path, name, tensor.dtype(), &DTYPES.map(|(_, ours)| ours));
    let (code, dtype) = *known.ok_or_else(foreign)?;
    let order = if dtype.size_in_bytes() == 1 { '|' } else { '<' };
    let lengths: Vec<String> = tensor.dims().iter().map(ToString::to_string).collect();
    let comma = if lengths.len() == 1 { "," } else { "" };
    let dict =
        format!("{{'descr': '{order}{code}', 'fortran_order': False, 'shape': ({}{comma}), }}", lengths.join(", "));

    // Version 1.0 counts the header in two bytes, version 2.0 in four.
    let prefix = |length_bytes: usize| MAGIC.len() + 2 + length_bytes;
    let padded =
        |length_bytes| (prefix(length_bytes) + dict.len() + 1).next_multiple_of(ALIGNMENT) - prefix(length_bytes);
    let mut header = MAGIC.to_vec();
    let length = match u16::try_from(padded(2)) {
        Ok(length) => {
            header.extend([1, 0]);
            header.extend(length.to_le_bytes());
            usize::from(length)
        }
        Err(_) => {
            header.extend([2, 0]);
            header.extend((padded(4) as u32).to_le_bytes());
            padded(4)
        }
    };
    header.extend(format!("{dict:<width$}\n", width = length - 1).bytes());
    Ok((header, tensor.to_bytes()?))
}

/// The header and what follows it.
fn split(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let ([major, _], rest) = rest.split_first_chunk()?;
    let (length, rest) = match major {
        1 => rest.split_first_chunk().map(|(length, rest)| (u32::from(u16::from_le_bytes(*length)), rest))?,
        2 | 3 => rest.split_first_chunk().map(|(length, rest)| (u32::from_le_bytes(*length), rest))?,
        _ => return None,
    };
    let (header, elements) = rest.split_at_checked(length as usize)?;
    Some((std::str::from_utf8(header).ok()?, elements))
}

/// What a header tells: a dictionary, written in Python.
struct Header<'a> {
    descr: &'a str,
    fortran_order: bool,
    shape: Vec<usize>,
}

impl<'a> Header<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut rest = Python(text);
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        rest.token("{")?;
        while rest.token("}").is_none() {
            let key = rest.string()?;
            rest.token(":")?;
            match key {
                "descr" => descr = Some(rest.type_name()?),
                "fortran_order" => fortran_order = Some(rest.boolean()?),
                "shape" => shape = Some(rest.tuple()?),
                _ => return None,
            }
            if rest.token(",").is_none() {
                rest.token("}")?;
                break;
            }
        }
        Some(Header { descr: descr?, fortran_order: fortran_order?, shape: shape? })
    }
}

/// Text in Python's syntax, of which each method takes a part off.
struct Python<'a>(&'a str);

impl<'a> Python<'a> {
    fn token(&mut self, token: &str) -> Option<()> {
        self.0 = self.0.trim_start().strip_prefix(token)?;
        Some(())
    }

    fn string(&mut self) -> Option<&'a str> {
        let text = self.0.trim_start();
        let quote = text.chars().next().filter(|quote| "'\"".contains(*quote))?;
        let (string, rest) = text[1..].split_once(quote)?;
        self.0 = rest;
        Some(string)
    }

    /// A dtype: a string, or the list of fields of a structure.
    fn type_name(&mut self) -> Option<&'a str> {
        let text = self.0.trim_start();
        if !text.starts_with('[') {
            return self.string();
        }
        let (list, rest) = text.split_at(text.rfind(']')? + 1);
        self.0 = rest;
        Some(list)
    }

    fn boolean(&mut self) -> Option<bool> {
        self.token("True").map(|()| true).or_else(|| self.token("False").map(|()| false))
    }

    fn integer(&mut self) -> Option<usize> {
        let text = self.0.trim_start();
        let (digits, rest) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        self.0 = rest;
        digits.parse().ok()
    }

    fn tuple(&mut self) -> Option<Vec<usize>> {
        self.token("(")?;
        let mut items = Vec::new();
        while self.token(")").is_none() {
            items.push(self.integer()?);
            if self.token(",").is_none() {
                self.token(")")?;
                break;
            }
        }
        Some(items)
    }
}
