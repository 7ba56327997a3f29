//! The cases, one file per family of operations.
//!
//! A new family is a file here and a line in the list below. `add` adds its cases to the suite. `TOLERANCES` says how
//! far its results may be from exact ones, if no other family's table does. `make ops` updates the pages in `docs/`.

use crate::compare::Sample;
use crate::full_tier;
use crate::layouts::Layout;
use crate::reference::inputs::{Domain, Inputs};
use crate::suite::{Outcome, Suite};
use crate::tolerance::Table;
use marquetry::{DType, Device};

/// Declares the modules of the families, and lists what they hold.
macro_rules! families {
    ($($family:ident $(: $tolerances:ident)?,)*) => {
        $(mod $family;)*

        /// Adds the cases of every family.
        pub fn add_all(suite: &mut Suite) {
            $($family::add(suite);)*
        }

        /// The tolerances of the families that have some of their own.
        pub const TOLERANCES: &[Table] = &[$($($family::$tolerances,)?)*];
    };
}

families! {
    unary,
    binary,
    select,
    numbers: TOLERANCES,
    convert,
    reduce: TOLERANCES,
    scan: TOLERANCES,
    sort: TOLERANCES,
    matmul,
    epilogue,
    index: TOLERANCES,
    scatter: TOLERANCES,
    compact: TOLERANCES,
    rearrange: TOLERANCES,
    conv: TOLERANCES,
    pool: TOLERANCES,
    join,
    pad: TOLERANCES,
    resize: TOLERANCES,
    grid_sample: TOLERANCES,
    einsum: TOLERANCES,
    gemm: TOLERANCES,
    normalize: TOLERANCES,
    attention: TOLERANCES,
    kv_cache,
    view,
    assign,
    create,
    random: TOLERANCES,
    sampler,
    quantized: TOLERANCES,
    read,
    display,
    fusion,
    large,
    wide,
    scalars,
    catalogue,
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
