//! Tensors from host data, and from nothing but a shape.

use super::Tensor;
use crate::backend::info::MemoryKind;
use crate::base::dtype::{DType, Element};
use crate::base::error::{Error, Result};
use crate::base::number::Number;
use crate::base::shape::Shape;
use crate::base::shape::checked_elements;
use crate::base::word::Word;
use crate::device::Device;
use crate::engine::staging::ByteSource;
use crate::kernels::expr::{BinaryOp, Domain};
use crate::lazy::ExpressionBuilder;
use std::ops::Range;

/// Host data that knows its shape: a number, and arrays, slices and vectors of such data.
pub trait NdArray {
    /// The type of the numbers.
    type Element: Element;

    /// Returns the lengths of the axes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if rows differ in length.
    fn shape(&self) -> Result<Shape>;

    /// Appends the numbers in row-major order.
    fn append_to(&self, elements: &mut Vec<Self::Element>);
}

impl<T: Element> NdArray for T {
    type Element = T;

    fn shape(&self) -> Result<Shape> {
        Ok(Shape::default())
    }

    fn append_to(&self, elements: &mut Vec<T>) {
        elements.push(*self);
    }
}

impl<A: NdArray> NdArray for [A] {
    type Element = A::Element;

    fn shape(&self) -> Result<Shape> {
        let inner = self.first().map_or_else(|| Ok(Shape::default()), NdArray::shape)?;
        for row in self {
            if row.shape()? != inner {
                let message = format!("rows of shapes {inner} and {} in one array; all must be equal", row.shape()?);
                return Err(Error::InvalidArgument { op: "new", message });
            }
        }
        Ok(std::iter::once(self.len()).chain(inner.iter().copied()).collect())
    }

    fn append_to(&self, elements: &mut Vec<A::Element>) {
        for row in self {
            row.append_to(elements);
        }
    }
}

macro_rules! nd_array_as_slice {
    ($([$($generics:tt)*] $ty:ty;)*) => {$(
        impl<$($generics)*> NdArray for $ty {
            type Element = A::Element;

            fn shape(&self) -> Result<Shape> {
                self[..].shape()
            }

            fn append_to(&self, elements: &mut Vec<A::Element>) {
                self[..].append_to(elements);
            }
        }
    )*};
}

nd_array_as_slice! {
    [A: NdArray, const N: usize] [A; N];
    [A: NdArray, const N: usize] &[A; N];
    [A: NdArray] &[A];
    [A: NdArray] Vec<A>;
    [A: NdArray] &Vec<A>;
}

const FROM_RAW_BUFFER: &str = "from_raw_buffer";

/// Bytes that are all 0 or 1.
struct TruthValues<'a>(&'a dyn ByteSource);

impl ByteSource for TruthValues<'_> {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn read(&self, range: Range<u64>, scratch: &mut Vec<u8>, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.0.read(range, scratch, &mut |bytes| {
            if let Some(byte) = bytes.iter().find(|byte| **byte > 1) {
                let message = format!("{byte} is no truth value; read bytes of any value as {}", DType::U8);
                return Err(Error::InvalidArgument { op: FROM_RAW_BUFFER, message });
            }
            take(bytes)
        })
    }
}

impl Tensor {
    /// Returns a tensor of a number or of nested arrays, slices or vectors.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1u32, 2, 3], [4, 5, 6]], &device)?;
    /// assert_eq!(x.dims(), [2, 3]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if rows differ in length; [`Error::OutOfMemory`].
    pub fn new<A: NdArray>(array: A, device: &Device) -> Result<Tensor> {
        let shape = array.shape()?;
        let mut elements = Vec::with_capacity(checked_elements(&shape, "new")?);
        array.append_to(&mut elements);
        Tensor::from_slice(&elements, shape, device)
    }

    /// Returns a tensor of numbers in row-major order.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0], (2, 2), &device)?;
    /// assert_eq!(x.t()?.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ElementCount`] if the shape holds another number of elements; [`Error::OutOfMemory`].
    pub fn from_slice<T: Element>(data: &[T], shape: impl Into<Shape>, device: &Device) -> Result<Tensor> {
        Tensor::from_slice_in(data, shape, MemoryKind::Device, device)
    }

    /// Returns a tensor of numbers in row-major order, in memory of this kind. Host memory can hold what is too large
    /// for the device's.
    ///
    /// ```
    /// # use marquetry::{Device, MemoryKind, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::from_slice_in(&[1f32, 2.0], 2, MemoryKind::Host, &device)?;
    /// assert_eq!(x.memory_kind(), MemoryKind::Host);
    /// assert_eq!((x + 1.0)?.to_vec::<f32>()?, [2.0, 3.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`from_slice`](Self::from_slice).
    pub fn from_slice_in<T: Element>(
        data: &[T],
        shape: impl Into<Shape>,
        memory: MemoryKind,
        device: &Device,
    ) -> Result<Tensor> {
        let shape = shape.into();
        if shape.elem_count() != Some(data.len()) {
            return Err(Error::ElementCount { op: "from_slice", shape, elements: data.len() });
        }
        checked_elements(&shape, "from_slice")?;
        let buffer = device.runtime().upload(&bytemuck::cast_slice::<T, u8>(data), memory)?;
        Ok(Tensor::from_buffer(buffer, shape, T::DTYPE, device))
    }

    /// Returns a tensor of a vector of numbers in row-major order.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::from_vec(vec![1f32, 2.0, 3.0, 4.0], (2, 2), &device)?;
    /// assert_eq!(x.to_vec2::<f32>()?, [[1.0, 2.0], [3.0, 4.0]]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`from_slice`](Self::from_slice).
    pub fn from_vec<T: Element>(data: Vec<T>, shape: impl Into<Shape>, device: &Device) -> Result<Tensor> {
        Tensor::from_slice(&data, shape, device).map_err(Error::named("from_vec"))
    }

    /// Returns a tensor of the bytes of its elements, in row-major order, little-endian. They need no alignment. Truth
    /// values are bytes of 0 or 1.
    ///
    /// ```
    /// # use marquetry::{Device, DType, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::from_raw_buffer(&[1, 0, 2, 0, 0, 0, 0, 1], DType::U32, 2, &device)?;
    /// assert_eq!(x.to_vec::<u32>()?, [0x2_0001, 0x100_0000]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the shape takes another number of bytes, or if a truth value is neither 0 nor 1;
    /// [`Error::SizeOverflow`]; [`Error::OutOfMemory`].
    pub fn from_raw_buffer(data: &[u8], dtype: DType, shape: impl Into<Shape>, device: &Device) -> Result<Tensor> {
        Tensor::from_source(&data, dtype, shape.into(), device)
    }

    /// The same for bytes that may be elsewhere.
    pub(crate) fn from_source(source: &dyn ByteSource, dtype: DType, shape: Shape, device: &Device) -> Result<Tensor> {
        let expected = checked_elements(&shape, FROM_RAW_BUFFER)?.saturating_mul(dtype.size_in_bytes());
        if expected as u64 != source.bytes() {
            let message = format!("shape {shape} of {dtype} takes {expected} bytes, but there are {}", source.bytes());
            return Err(Error::InvalidArgument { op: FROM_RAW_BUFFER, message });
        }
        let source: &dyn ByteSource = if dtype == DType::Bool { &TruthValues(source) } else { source };
        let buffer = device.runtime().upload(source, MemoryKind::Device)?;
        Ok(Tensor::from_buffer(buffer, shape, dtype, device))
    }

    /// Returns a tensor whose elements are all `value`.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// assert_eq!(Tensor::full(7i32, (1, 3), &device)?.to_vec::<i32>()?, [7, 7, 7]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::SizeOverflow`].
    pub fn full<T: Element>(value: T, shape: impl Into<Shape>, device: &Device) -> Result<Tensor> {
        Tensor::constant(Word::new(value), shape.into(), device, "full")
    }

    /// Returns a tensor of zeros.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::zeros((1, 3), DType::I32, &device)?;
    /// assert_eq!(x.to_vec::<i32>()?, [0, 0, 0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::SizeOverflow`].
    pub fn zeros(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::filled(0, shape.into(), dtype, device, "zeros")
    }

    /// Returns a tensor of ones.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::ones((1, 3), DType::F32, &device)?;
    /// assert_eq!(x.to_vec::<f32>()?, [1.0, 1.0, 1.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::SizeOverflow`].
    pub fn ones(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::filled(1, shape.into(), dtype, device, "ones")
    }

    /// Returns a tensor of zeros with the shape, dtype and device of this one.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1u8, 2]], &device)?;
    /// assert_eq!(x.zeros_like()?.to_vec2::<u8>()?, [[0, 0]]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::SizeOverflow`].
    pub fn zeros_like(&self) -> Result<Tensor> {
        self.filled_like(0, "zeros_like")
    }

    /// Returns a tensor of ones with the shape, dtype and device of this one.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1u8, 2]], &device)?;
    /// assert_eq!(x.ones_like()?.to_vec2::<u8>()?, [[1, 1]]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::SizeOverflow`].
    pub fn ones_like(&self) -> Result<Tensor> {
        self.filled_like(1, "ones_like")
    }

    /// Returns a tensor whose elements are all `value`, with the shape, dtype and device of this one.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1f32, 2.0]], &device)?;
    /// assert_eq!(x.full_like(7)?.to_vec2::<f32>()?, [[7.0, 7.0]]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the dtype is an integer that cannot hold the number; [`Error::SizeOverflow`].
    pub fn full_like(&self, value: impl Into<Number>) -> Result<Tensor> {
        self.filled_like(value, "full_like")
    }

    fn filled_like(&self, number: impl Into<Number>, op: &'static str) -> Result<Tensor> {
        Tensor::filled(number, self.shape().clone(), self.dtype(), self.device(), op)
    }

    /// The tensor with this number everywhere, for an operation of this name.
    pub(crate) fn filled(
        number: impl Into<Number>,
        shape: Shape,
        dtype: DType,
        device: &Device,
        op: &'static str,
    ) -> Result<Tensor> {
        Tensor::constant(Word::of(number, dtype, op)?, shape, device, op)
    }

    pub(crate) fn constant(word: Word, shape: Shape, device: &Device, op: &'static str) -> Result<Tensor> {
        let mut builder = ExpressionBuilder::new(shape, device);
        let value = builder.scalar(word);
        builder.finish(value, op)
    }

    /// Returns the numbers from `start` up to but not including `end`, in steps of 1.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// assert_eq!(Tensor::arange(2u32, 5, &device)?.to_vec::<u32>()?, [2, 3, 4]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`arange_step`](Self::arange_step).
    pub fn arange<T: Element>(start: T, end: T, device: &Device) -> Result<Tensor> {
        Tensor::steps(start, end, Number::Integer(1), device, "arange")
    }

    /// Returns the numbers `start + i * step` from `start` up to but not including `end`. Integers are counted and
    /// computed exactly; `f16` and `bf16` are computed in `f32`.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// assert_eq!(Tensor::arange_step(5i32, 0, -2, &device)?.to_vec::<i32>()?, [5, 3, 1]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the step is 0 or a number is not finite; [`Error::SizeOverflow`].
    pub fn arange_step<T: Element>(start: T, end: T, step: T, device: &Device) -> Result<Tensor> {
        Tensor::steps(start, end, step.into(), device, "arange_step")
    }

    fn steps<T: Element>(start: T, end: T, step: Number, device: &Device, op: &'static str) -> Result<Tensor> {
        Domain::Numbers.check(T::DTYPE, op)?;
        let Some(length) = count_steps(start.into(), end.into(), step) else {
            let message = format!(
                "there is no end to the numbers from {start:?} to {end:?} in steps of {step}; give a step other than \
                 0, and finite numbers"
            );
            return Err(Error::InvalidArgument { op, message });
        };
        let mut builder = ExpressionBuilder::new(Shape::from(length), device);
        let start = builder.scalar(Word::new(start));
        let step = builder.scalar(Word::of(step, T::DTYPE, op)?);
        // Integers wrap on the way, and so arrive where they should.
        let index = builder.index();
        let index = builder.cast(if T::DTYPE.is_single_float() { DType::F32 } else { T::DTYPE }, index);
        let advanced = builder.binary(BinaryOp::Mul, index, step);
        let y = builder.binary(BinaryOp::Add, start, advanced);
        builder.finish(y, op)
    }
}

/// How many steps from `start` stay before `end`; `None` if that is not finite. What saturates is more than a tensor
/// holds.
fn count_steps(start: Number, end: Number, step: Number) -> Option<usize> {
    if let (Number::Integer(start), Number::Integer(end), Number::Integer(step)) = (start, end, step) {
        let distance = if step < 0 { start - end } else { end - start }.max(0).unsigned_abs();
        return (step != 0).then(|| distance.div_ceil(step.unsigned_abs()).try_into().unwrap_or(usize::MAX));
    }
    let [start, end, step] = [start, end, step].map(Number::to_f64);
    let length = ((end - start) / step).ceil();
    length.is_finite().then_some(length.max(0.0) as usize)
}
