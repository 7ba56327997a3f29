//! Finds the places of counted elements, from the running count up to each element.

use super::Family;
use super::parameters::{Form, Size, parameters};
use crate::shader::{Access, KernelBuilder, Type};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 64;

/// Writes the places where the running count goes up, in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Compact;

parameters! {
    config: Compact;
    host: Parameters;
    device: Declared;
    /// The number of counts.
    count: Size,
}

impl Family for Compact {
    fn name(&self) -> String {
        "compact".into()
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write(&self, k: &KernelBuilder) {
        let Declared { count } = self.declare(k);
        let counts = k.buffer("counts", Type::U32, Access::Read);
        let places = k.buffer("places", Type::U32, Access::Write);
        let i = k.global_index();
        k.when(i.lt(count), || {
            let (up_to_here, before) = (counts.load(i), counts.load(i.max(1) - 1));
            let before = i.eq(0).select(i, before);
            k.when(up_to_here.ne(before), || places.store(before, i));
        });
    }

    fn samples() -> Vec<Self> {
        vec![Compact]
    }
}
