//! The format npy of numpy's arrays: a magic number and a version, the length of the header, the header, the elements.
//!
//! <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>

use super::file::{Bytes, Reader, failed, passed_on, replace};
use super::{TensorInfo, foreign_dtype, malformed, unknown_to_format};
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::device::Device;
use crate::engine::staging::ByteSource;
use crate::tensor::Tensor;
use std::io::{self, ErrorKind, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The dtypes, by their names in numpy and in this crate.
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

/// The longest header that is read, in bytes. Any array of a sensible rank has less; numpy's own limit is 10,000.
const LONGEST_HEADER: usize = 1 << 20;

impl Tensor {
    /// Reads the array in a `.npy` file. Arrays in Fortran order become transposed views. Big-endian arrays are
    /// converted.
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
    /// [`Error::Io`] if the file cannot be read; [`Error::Format`] if it is not a whole npy file, or if its elements
    /// have a type that is none of [`DType`]; [`Error::SizeOverflow`]; [`Error::OutOfMemory`].
    pub fn read_npy(path: impl AsRef<Path>, device: &Device) -> Result<Tensor> {
        let bytes = Arc::new(Bytes::open(path.as_ref())?);
        let promise = Promise::read(&bytes.path, "the array", &mut Reader::new(bytes.clone()))?;
        let (start, length) = (promise.start as u64, promise.bytes as u64);
        let following = bytes.length().saturating_sub(start);
        if following < length {
            return Err(promise.broken(&bytes.path, "the array", following));
        }
        promise.upload(&bytes.part(start..start + length)?, device)
    }

    /// Writes the elements to a `.npy` file, in row-major order. Blocks until they are computed.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Format`] for a dtype that numpy lacks; any error of the computation.
    pub fn write_npy(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let (header, elements) = encode(path, "the tensor", self)?;
        replace(path, |file| {
            file.write_all(&header).and_then(|()| file.write_all(&elements)).map_err(|error| failed(path, &error))
        })
    }
}

/// What the header of a file promises about the elements that follow.
pub(super) struct Promise {
    pub info: TensorInfo,
    /// Where the elements begin.
    pub start: usize,
    /// How many bytes the elements have.
    pub bytes: usize,
    /// Whether neighbours along the first axis lie side by side.
    fortran_order: bool,
    big_endian: bool,
}

impl Promise {
    /// Reads a file up to its elements. `path` and `name`, as in "the array", are for errors.
    pub fn read(path: &Path, name: &str, file: &mut impl Read) -> Result<Self> {
        let (text, start) = read_header(file).map_err(|error| {
            let message = || format!("{name} does not begin as a npy file does: {error}");
            passed_on(&error).unwrap_or_else(|| malformed(path, message()))
        })?;
        let header =
            Header::parse(&text).ok_or_else(|| malformed(path, format!("the npy header of {name} is damaged")))?;
        let (order, code) = header.descr.split_at_checked(1).unwrap_or_default();
        let known = DTYPES.iter().find(|(theirs, _)| *theirs == code && "<>|=".contains(order));
        let foreign = || foreign_dtype(path, name, header.descr, &DTYPES.map(|(_, ours)| ours));
        let (_, dtype) = *known.ok_or_else(foreign)?;

        let shape = Shape::from(header.shape);
        let bytes = shape.elem_count().and_then(|elements| elements.checked_mul(dtype.size_in_bytes()));
        let bytes = bytes
            .ok_or_else(|| malformed(path, format!("{name} is to be {shape} of {dtype}, which no machine can hold")))?;
        let (fortran_order, big_endian) = (header.fortran_order, order == ">");
        Ok(Promise { info: TensorInfo { dtype, shape }, start, bytes, fortran_order, big_endian })
    }

    /// Returns the error for a wrong number of bytes.
    pub fn broken(&self, path: &Path, name: &str, following: u64) -> Error {
        let TensorInfo { dtype, shape } = &self.info;
        let bytes = self.bytes;
        let message = format!("{name} is to be {shape} of {dtype}, {bytes} bytes, but {following} bytes follow");
        malformed(path, message)
    }

    /// Uploads the array to a device.
    pub fn upload(self, elements: &dyn ByteSource, device: &Device) -> Result<Tensor> {
        let TensorInfo { dtype, shape } = self.info;
        let width = dtype.size_in_bytes();
        let elements: &dyn ByteSource =
            if self.big_endian && width > 1 { &BigEndian { elements, width } } else { elements };
        if !self.fortran_order {
            return Tensor::from_source(elements, dtype, shape, device);
        }
        let reversed: Vec<isize> = (0..shape.rank() as isize).rev().collect();
        let shape: Shape = shape.iter().rev().copied().collect();
        Tensor::from_source(elements, dtype, shape, device)?.permute(reversed)
    }
}

/// Elements whose highest byte comes first. They are read in whole elements.
struct BigEndian<'a> {
    elements: &'a dyn ByteSource,
    /// The bytes of an element.
    width: usize,
}

impl ByteSource for BigEndian<'_> {
    fn bytes(&self) -> u64 {
        self.elements.bytes()
    }

    fn read(&self, range: Range<u64>, scratch: &mut Vec<u8>, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.elements.read(range, scratch, &mut |bytes| {
            let mut turned = bytes.to_vec();
            turned.chunks_exact_mut(self.width).for_each(<[u8]>::reverse);
            take(&turned)
        })
    }
}

/// Encodes a tensor as a file: its header and its elements. `path` and `name`, as in "the array", are for errors.
pub(super) fn encode(path: &Path, name: &str, tensor: &Tensor) -> Result<(Vec<u8>, Vec<u8>)> {
    let known = DTYPES.iter().find(|(_, ours)| *ours == tensor.dtype());
    let foreign = || unknown_to_format(path, name, tensor.dtype(), &DTYPES.map(|(_, ours)| ours));
    let (code, dtype) = *known.ok_or_else(foreign)?;
    let order = if dtype.size_in_bytes() == 1 { '|' } else { '<' };
    let lengths: Vec<String> = tensor.dims().iter().map(ToString::to_string).collect();
    let comma = if lengths.len() == 1 { "," } else { "" };
    let dict =
        format!("{{'descr': '{order}{code}', 'fortran_order': False, 'shape': ({}{comma}), }}", lengths.join(", "));

    // Version 1.0 has two bytes for the length of the header, version 2.0 has four.
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

/// Reads everything before the elements. Returns the text of the header, and the number of all bytes.
fn read_header(file: &mut impl Read) -> io::Result<(String, usize)> {
    let wrong = |message: String| io::Error::new(ErrorKind::InvalidData, message);
    let mut start = [0; MAGIC.len() + 2];
    file.read_exact(&mut start)?;
    let [magic @ .., major, _] = &start;
    if magic != MAGIC {
        return Err(wrong("its magic number is missing".into()));
    }
    // The length is little-endian. It has two bytes in version 1.
    let length_bytes = match major {
        1 => 2,
        2 | 3 => 4,
        other => return Err(wrong(format!("version {other} of the format is not known"))),
    };
    let mut length = [0; 4];
    file.read_exact(&mut length[..length_bytes])?;
    let length = u32::from_le_bytes(length) as usize;
    if length > LONGEST_HEADER {
        return Err(wrong(format!("a header of {length} bytes is too long")));
    }
    let mut header = vec![0; length];
    file.read_exact(&mut header)?;
    let text = String::from_utf8(header).map_err(|error| wrong(error.to_string()))?;
    Ok((text, start.len() + length_bytes + length))
}

/// The contents of a header: a dictionary, written in Python.
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

/// Text in Python's syntax. Each method takes a part off its start.
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

    /// Takes a dtype: a string, or the list of fields of a structure.
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
