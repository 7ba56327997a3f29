//! Concatenates tensors along an axis. Each invocation gathers four consecutive elements of the output.

use super::Family;
use super::elements::{Elements, Quads};
use super::parameters::{Each, Form, Size, parameters, times};
use crate::base::dtype::DType;
use crate::shader::{KernelBuilder, Type};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 128;

/// Joins `inputs` contiguous tensors.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Cat {
    pub dtype: DType,
    pub inputs: usize,
}

parameters! {
    config: Cat;
    host: Parameters;
    device: Declared;
    /// The number of elements of the output.
    count: Size,
    /// The length of the joined axis.
    length: Size,
    /// The product of the lengths of the axes inside of the joined one.
    inner: Size,
    inputs: Each<Input> = times(config.inputs),
}

/// The form of an input.
#[derive(Default)]
pub(crate) struct Input;

parameters! {
    config: Input;
    host: InputParameters;
    device: DeclaredInput;
    offset: Size,
    /// The place along the joined axis where the input ends.
    end: Size,
}

impl Family for Cat {
    fn name(&self) -> String {
        format!("cat({} x {})", self.inputs, self.dtype)
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write(&self, k: &KernelBuilder) {
        let Declared { count, length, inner, inputs } = self.declare(k);
        let named = |(i, input)| (Elements::input(k, &format!("x{i}"), self.dtype), input);
        let inputs: Vec<(Elements, DeclaredInput)> = inputs.into_iter().enumerate().map(named).collect();
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
                for &(x, DeclaredInput { offset, end }) in &inputs {
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
