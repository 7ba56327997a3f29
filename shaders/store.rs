//! Stores numbers that the host passes as parameters: the arguments of a step that change from run to run.

use super::Family;
use super::parameters::{Bits, Each, Form, Size, parameters, times};
use crate::shader::{Access, KernelBuilder, Scalar, Type};

/// Invocations per workgroup. One of them works.
const WORKGROUP: u32 = 32;

/// The most quads of words that fit the smallest parameter block.
pub(crate) const MOST_QUADS: usize = 6;

/// Writes neighbouring quads of words.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    pub quads: usize,
}

parameters! {
    config: Store;
    host: Parameters;
    device: Declared;
    /// The first quad to write.
    first: Size,
    words: Each<Bits> = times(4 * config.quads),
}

impl Family for Store {
    fn name(&self) -> String {
        format!("store({} quads)", self.quads)
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write(&self, k: &KernelBuilder) {
        let Declared { first, words } = self.declare(k);
        let y = k.buffer("y", Type::vec4(Scalar::U32), Access::Write);
        k.when(k.global_index().eq(0), || {
            for (quad, words) in (0..).zip(words.chunks(4)) {
                y.store(first + quad, k.vector(words));
            }
        });
    }

    fn samples() -> Vec<Self> {
        (1..=MOST_QUADS).map(|quads| Store { quads }).collect()
    }
}
