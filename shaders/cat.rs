//! Tensors joined along an axis. Each invocation gathers four consecutive elements of the output.

use super::Family;
use super::elements::{Elements, Quads};
use crate::base::dtype::DType;
use crate::shader::{KernelBuilder, Type, Value};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 128;

/// Joins `inputs` contiguous tensors. Parameters: the number of elements of the output; the length of the joined axis
/// and the number of elements inside of it; per input its offset and the place along the axis where it ends.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Cat {
    pub dtype: DType,
    pub inputs: usize,
}

impl Family for Cat {
    fn name(&self) -> String {
        format!("cat({} x {})", self.inputs, self.dtype)
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write(&self, k: &KernelBuilder) {
        let [count, length, inner] = std::array::from_fn(|_| k.parameter(Type::U32));
        let inputs: Vec<(Elements, Value, Value)> = (0..self.inputs)
            .map(|i| (Elements::input(k, &format!("x{i}"), self.dtype), k.parameter(Type::U32), k.parameter(Type::U32)))
            .collect();
        let y = Quads::output(k, "y", self.dtype);
        let zero = k.number(Type { scalar: self.dtype.compute_scalar(), lanes: 1 }, 0);

        let quad = k.global_index();
        let first = quad * 4;
        k.when(first.lt(count), || {
            let lanes = [0, 1, 2, 3].map(|lane| {
                let place = (first + lane).min(count - 1);
                let (outer, along, i) = (place / inner / length, place / inner % length, place % inner);
                let element = k.var(zero);
                let mut start = k.u32(0);
                for &(x, offset, end) in &inputs {
                    k.when(along.ge(start) & along.lt(end), || {
                        element.set(x.load(offset + (outer * (end - start) + along - start) * inner + i));
                    });
                    start = end;
                }
                element.get()
            });
            y.store(k, quad, k.vector(&lanes));
        });
    }

    fn samples() -> Vec<Self> {
        DType::ALL.map(|dtype| Cat { dtype: dtype.moved(), inputs: 2 }).into()
    }
}
