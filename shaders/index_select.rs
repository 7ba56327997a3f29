//! Rows picked by an index tensor. Each invocation copies four consecutive elements of the output.

use super::Family;
use super::elements::{Elements, Quads, Strides};
use crate::dtype::DType;
use crate::shader::{KernelBuilder, Type, Value};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 64;

/// `y[o, n, i] = x[o, index[n], i]`. Parameters: the number of elements of `y`; the lengths of its two inner axes and
/// of the middle axis of `x`; the offset of `x`, which is contiguous; offset and stride of the index. An element of 64
/// bits is two words: the inner axis and the offset count them.
///
/// An index can be checked only where it is, on the device: out of range it yields NaN for floats, the largest
/// (unsigned) or smallest (signed) number for integers, and true.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct IndexSelect {
    pub dtype: DType,
    pub index: DType,
}

impl Family for IndexSelect {
    fn name(&self) -> String {
        format!("index_select({}, {})", self.dtype, self.index)
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let [count, selected, inner, length, offset] = std::array::from_fn(|_| k.parameter(Type::U32));
        let index_at = Strides::parameters(k, 1);
        let moved = self.dtype.moved();
        let x = Elements::input(k, "x", moved);
        let index = Elements::indexes(k, "index", self.index);
        let y = Quads::output(k, "y", moved);
        // Of 64 bits, the upper word.
        let fill: Value<'k> = match self.dtype {
            DType::F64 => k.u32((f64::NAN.to_bits() >> 32) as u32),
            DType::I64 => k.u32(1 << 31),
            DType::F32 | DType::BF16 | DType::F16 => k.f32(f32::NAN),
            DType::I32 => k.i32(i32::MIN),
            DType::I8 => k.i32(i8::MIN.into()),
            DType::U32 => k.u32(u32::MAX),
            DType::U8 => k.u32(u8::MAX.into()),
            DType::Bool => k.u32(1),
        };

        let quad = k.global_index();
        let first = quad * 4;
        k.when(first.lt(count), || {
            let lanes = [0, 1, 2, 3].map(|lane| {
                let place = (first + lane).min(count - 1);
                let (outer, i) = (place / inner / selected, place % inner);
                let wanted = index.load_index(index_at.at(&[place / inner % selected]));
                let inside = wanted.lt(length);
                let source = (outer * length + inside.select(wanted, 0)) * inner + i;
                let fill = if self.dtype.size_in_bytes() == 8 { (i & 1).eq(0).select(k.u32(0), fill) } else { fill };
                inside.select(x.load(offset + source), fill)
            });
            y.store(k, quad, k.vector(&lanes));
        });
    }

    fn samples() -> Vec<Self> {
        DType::ALL.map(|dtype| IndexSelect { dtype, index: DType::U32 }).into()
    }
}
