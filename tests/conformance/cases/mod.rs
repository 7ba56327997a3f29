//! The cases, one file per family of operations.

mod assign;
pub mod attention;
mod binary;
mod catalogue;
pub mod compact;
pub mod conv;
mod convert;
mod create;
mod display;
pub mod einsum;
mod epilogue;
mod fusion;
pub mod gemm;
pub mod grid_sample;
pub mod index;
mod join;
mod large;
mod matmul;
pub mod normalize;
pub mod numbers;
pub mod pad;
pub mod pool;
pub mod random;
mod read;
pub mod rearrange;
pub mod reduce;
pub mod resize;
mod scalars;
pub mod scan;
pub mod scatter;
mod select;
pub mod sort;
mod unary;
mod view;
mod wide;

use crate::compare::Sample;
use crate::full_tier;
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
    scan::add(suite);
    sort::add(suite);
    matmul::add(suite);
    epilogue::add(suite);
    gemm::add(suite);
    einsum::add(suite);
    normalize::add(suite);
    attention::add(suite);
    index::add(suite);
    scatter::add(suite);
    compact::add(suite);
    rearrange::add(suite);
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
    wide::add(suite);
    scalars::add(suite);
    catalogue::add(suite);
}

/// The floats that are computed in `f32`, which all functions of floats take.
const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Whether a dtype computes and is packed as others that have every case: in the quick tier it has a telling few.
fn is_brief(dtype: DType) -> bool {
    matches!(dtype, DType::Bool | DType::I8 | DType::BF16 | DType::I64 | DType::F64) && !full_tier()
}

/// The layouts that a dtype is tried with.
fn layouts(dtype: DType) -> &'static [Layout] {
    if is_brief(dtype) { &[Layout::Contiguous, Layout::Sliced] } else { &Layout::ALL }
}

/// All floats.
fn floats() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|dtype| dtype.is_float())
}

/// All dtypes but truth values.
fn numbers() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|&dtype| dtype != DType::Bool)
}

/// The dtypes that sums of products have; one of a kind in the quick tier.
fn summed() -> Vec<DType> {
    let one_of_a_kind = [DType::F32, DType::F16, DType::I32];
    numbers().filter(|dtype| dtype.size_in_bytes() > 1 && (full_tier() || one_of_a_kind.contains(dtype))).collect()
}

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
