//! The cases, one file per family of operations.

mod assign;
mod binary;
mod catalogue;
pub mod conv;
mod convert;
mod create;
mod display;
mod fusion;
pub mod grid_sample;
mod index;
mod join;
mod large;
mod matmul;
mod normalize;
mod numbers;
pub mod pad;
pub mod pool;
mod random;
mod read;
mod reduce;
pub mod resize;
mod select;
mod unary;
mod view;

use crate::compare::Sample;
use crate::layouts::Layout;
use crate::reference::inputs::{Domain, Inputs};
use crate::suite::{Outcome, Suite};
use marquetry::{DType, Device};

pub fn add_all(suite: &mut Suite) {
    unary::add(suite);
    binary::add(suite);
    select::add(suite);
    numbers::add(suite);
    convert::add(suite);
    reduce::add(suite);
    matmul::add(suite);
    normalize::add(suite);
    index::add(suite);
    conv::add(suite);
    pool::add(suite);
    join::add(suite);
    pad::add(suite);
    resize::add(suite);
    grid_sample::add(suite);
    view::add(suite);
    assign::add(suite);
    create::add(suite);
    random::add(suite);
    read::add(suite);
    display::add(suite);
    fusion::add(suite);
    large::add(suite);
    catalogue::add(suite);
}

const FLOATS: [DType; 2] = [DType::F32, DType::F16];

/// A tensor of a layout and the layout's own shape. The name seeds the inputs.
fn sample(name: &str, layout: Layout, dtype: DType, domain: Domain, device: &Device) -> Outcome<Sample> {
    let values = Inputs::new(name).array(&layout.shape(), dtype, domain);
    layout.place(values, dtype, device)
}

/// A tensor of a layout and any shape.
fn shaped(
    name: &str,
    shape: &[usize],
    layout: Layout,
    dtype: DType,
    domain: Domain,
    device: &Device,
) -> Outcome<Sample> {
    layout.place(Inputs::new(name).array(shape, dtype, domain), dtype, device)
}
