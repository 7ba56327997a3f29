//! Rows picked by an index tensor. Each invocation copies four consecutive elements of the output.

use super::Family;
use super::elements::{Elements, Quads, Strides};
use crate::dtype::DType;
use crate::shader::{KernelBuilder, Scalar, Type, Value};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 64;

/// `y[o, n, i] = x[o, index[n], i]`. Parameters: the number of elements of `y`; the lengths of its two inner axes and
/// of the middle axis of `x`; the offset of `x`, which is contiguous; offset and stride of the index.
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
        let x = Elements::input(k, "x", self.dtype);
        let index = Elements::input(k, "index", self.index);
        let y = Quads::output(k, "y", self.dtype);
        let fill: Value<'k> = match self.dtype {
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
                // As a word, a negative index is far out of range too.
                let wanted = index.load(index_at.at(&[place / inner % selected])).convert(Scalar::U32);
                let inside = wanted.lt(length);
                let source = (outer * length + inside.select(wanted, 0)) * inner + i;
                inside.select(x.load(offset + source), fill)
            });
            y.store(k, quad, k.vector(&lanes));
        });
    }

    fn samples() -> Vec<Self> {
        DType::ALL.map(|dtype| IndexSelect { dtype, index: DType::U32 }).into()
    }
}
