//! Elements of any dtype in buffers, and where they are: narrow dtypes are packed in words, so that every device can
//! read and write them; no two invocations write one word.

use crate::dtype::DType;
use crate::shader::{Access, Array, KernelBuilder, Scalar, Type, Value};

/// Four consecutive elements as they lie in memory.
fn quad_type(dtype: DType) -> Type {
    match dtype {
        DType::U8 => Type::U32,
        DType::F16 => Type::vec2(Scalar::U32),
        DType::U32 | DType::I32 | DType::F32 => Type::vec4(dtype.compute_scalar()),
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
        let element = match dtype {
            DType::U8 | DType::F16 => Type::U32,
            DType::U32 | DType::I32 | DType::F32 => Type { scalar: dtype.compute_scalar(), lanes: 1 },
        };
        Elements { array: k.buffer(name, element, Access::Read), dtype }
    }

    /// The element at `index`, widened to the type it is computed in.
    pub fn load(self, index: Value<'k>) -> Value<'k> {
        match self.dtype {
            DType::U8 => (self.array.load(index >> 2) >> ((index & 3) << 3)) & 0xff,
            DType::F16 => {
                let [low, high] = self.array.load(index >> 1).unpack_f16();
                (index & 1).eq(0).select(low, high)
            }
            DType::U32 | DType::I32 | DType::F32 => self.array.load(index),
        }
    }

    /// Four elements at any four indices.
    pub fn gather(self, k: &'k KernelBuilder, indices: &[Value<'k>; 4]) -> Value<'k> {
        k.vector(&indices.map(|index| self.load(index)))
    }

    /// The same with the indices in a vector.
    pub fn gather_lanes(self, k: &'k KernelBuilder, indices: Value<'k>) -> Value<'k> {
        self.gather(k, &[0, 1, 2, 3].map(|lane| indices.lane(lane)))
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

    /// The elements from `4 * quad` on, widened to the type they are computed in.
    pub fn load(self, k: &'k KernelBuilder, quad: Value<'k>) -> Value<'k> {
        let word = self.array.load(quad);
        match self.dtype {
            DType::U8 => k.vector(&[0, 8, 16, 24].map(|shift| (word >> shift) & 0xff)),
            DType::F16 => {
                let ([a, b], [c, d]) = (word.lane(0).unpack_f16(), word.lane(1).unpack_f16());
                k.vector(&[a, b, c, d])
            }
            DType::U32 | DType::I32 | DType::F32 => word,
        }
    }

    /// Stores the elements from `4 * quad` on, narrowed to the dtype of the buffer.
    pub fn store(self, k: &'k KernelBuilder, quad: Value<'k>, value: Value<'k>) {
        let packed = match self.dtype {
            DType::U8 => {
                let byte = |lane| (value.lane(lane) & 0xff) << (8 * lane);
                byte(0) | byte(1) | byte(2) | byte(3)
            }
            DType::F16 => {
                k.vector(&[k.pack_f16(value.lane(0), value.lane(1)), k.pack_f16(value.lane(2), value.lane(3))])
            }
            DType::U32 | DType::I32 | DType::F32 => value,
        };
        self.array.store(quad, packed);
    }
}

/// The indices of the four elements of a quad among `count`. The last quad may reach beyond: its surplus lanes repeat the
/// last element.
pub(super) fn quad_indices<'k>(k: &'k KernelBuilder, quad: Value<'k>, count: Value<'k>) -> Value<'k> {
    k.vector(&[0, 1, 2, 3].map(|lane| (quad * 4 + lane).min(count - 1)))
}

/// The lengths of some axes as parameters, with which a linear index is taken apart.
pub(super) struct Grid<'k> {
    lengths: Vec<Value<'k>>,
}

/// A strided view over a [`Grid`]: an offset and a stride per axis, as parameters.
pub(super) struct Strides<'k> {
    offset: Value<'k>,
    strides: Vec<Value<'k>>,
}

impl<'k> Grid<'k> {
    pub fn parameters(k: &'k KernelBuilder, rank: usize) -> Self {
        Grid { lengths: (0..rank).map(|_| k.parameter(Type::U32)).collect() }
    }

    /// The coordinates of a linear index, or of each lane of it, outermost axis first. The outermost one is not taken modulo its length.
    pub fn coordinates(&self, index: Value<'k>) -> Vec<Value<'k>> {
        let mut rest = index;
        let mut coordinates = Vec::with_capacity(self.lengths.len());
        for &length in self.lengths.iter().skip(1).rev() {
            coordinates.push(rest % length);
            rest = rest / length;
        }
        if !self.lengths.is_empty() {
            coordinates.push(rest);
        }
        coordinates.reverse();
        coordinates
    }
}

impl<'k> Strides<'k> {
    pub fn parameters(k: &'k KernelBuilder, rank: usize) -> Self {
        let offset = k.parameter(Type::U32);
        Strides { offset, strides: (0..rank).map(|_| k.parameter(Type::U32)).collect() }
    }

    /// The stride along an axis, counted from the last one, which is 1.
    pub fn stride(&self, from_last: usize) -> Value<'k> {
        self.strides[self.strides.len() - from_last]
    }

    /// The index in the buffer of the element at these coordinates.
    pub fn at(&self, coordinates: &[Value<'k>]) -> Value<'k> {
        coordinates.iter().zip(&self.strides).fold(self.offset, |sum, (&c, &stride)| sum + c * stride)
    }
}
