//! Selection of the nonzero elements.

use super::{layouts, shaped};
use crate::compare::{Expected, Sample, check};
use crate::layouts::Layout;
use crate::reference::inputs::{Domain, Inputs};
use crate::reference::{ArrayD, IxDyn, array, broadcast, broadcast_shape};
use crate::suite::{Outcome, Suite};
use crate::tolerance::{EXACT, Table, Tolerance};
use marquetry::{DType, Device, Tensor};
use ndarray::Dimension;

pub const TOLERANCES: Table = &[
    (&["nonzero"], Tolerance { reason: "the result is an integer", ..EXACT }),
    (&["masked_select"], Tolerance { moves: true, reason: "nothing is computed", ..EXACT }),
];

/// Zeros, with nonzero numbers in a pattern.
fn mask(shape: &[usize], dtype: DType, density: f64) -> ArrayD<f64> {
    let mut inputs = Inputs::new("mask");
    let numbers = inputs.array(shape, dtype, Domain::Special);
    numbers.mapv(|x| if inputs.uniform() < density { x } else { 0.0 })
}

fn check_nonzero(x: &Sample) -> Outcome {
    let rank = x.values.ndim();
    let places = x.values.indexed_iter().filter(|(_, value)| **value != 0.0);
    let rows: Vec<f64> = places.clone().flat_map(|(place, _)| place.slice().to_vec()).map(|i| i as f64).collect();
    let expected = Expected::new(array(&[places.count(), rank], rows), DType::U32);
    check("nonzero", &x.tensor.nonzero()?, &expected)?;
    check("nonzero", &pollster::block_on(x.tensor.nonzero_async())?, &expected)
}

fn check_masked(x: &Sample, mask: &Sample) -> Outcome {
    let shape = broadcast_shape(x.values.shape(), mask.values.shape());
    let (values, mask_values) = (broadcast(&x.values, &shape), broadcast(&mask.values, &shape));
    let selected: Vec<f64> = values.iter().zip(&mask_values).filter(|(_, m)| **m != 0.0).map(|(x, _)| *x).collect();
    let expected = Expected::new(array(&[selected.len()], selected), x.tensor.dtype());
    check("masked_select", &x.tensor.masked_select(&mask.tensor)?, &expected)?;
    check("masked_select", &pollster::block_on(x.tensor.masked_select_async(&mask.tensor))?, &expected)
}

/// Blocks that end within a tile, full blocks, empty blocks, and more blocks than one tile has.
fn sizes(device: &Device) -> Outcome {
    for size in [1, 63, 64, 255, 256, 257, 1000, 20_000, 64 * 256 + 1] {
        for density in [0.0, 0.01, 0.5, 1.0] {
            let mut inputs = Inputs::new("mask");
            let values = (0..size).map(|_| f64::from(inputs.uniform() < density)).collect();
            check_nonzero(&Layout::Contiguous.place(array(&[size], values), DType::U8, device)?)?;
        }
    }
    Ok(())
}

/// Blocks that are longer than the shortest block.
fn many(device: &Device) -> Outcome {
    let count = 3_000_001u32;
    let odd = Tensor::arange(0u32, count, device)?.rem(&Tensor::full(1001u32, (), device)?)?;
    let places = odd.eq(&Tensor::full(7u32, (), device)?)?.nonzero()?;
    let expected: Vec<f64> = (0..count).filter(|i| i % 1001 == 7).map(f64::from).collect();
    check("nonzero", &places, &Expected::new(array(&[expected.len(), 1], expected), DType::U32))
}

fn scalars(device: &Device) -> Outcome {
    for value in [0.0, 3.0] {
        check_nonzero(&Layout::Contiguous.place(ArrayD::from_elem(IxDyn(&[]), value), DType::F32, device)?)?;
    }
    let nan = Layout::Contiguous.place(array(&[3], vec![f64::NAN, 0.0, -0.0]), DType::F32, device)?;
    check_nonzero(&nan)
}

pub fn add(suite: &mut Suite) {
    suite.add("nonzero", "sizes", sizes);
    suite.add("nonzero", "many", many);
    suite.add("nonzero", "scalars", scalars);
    for dtype in DType::ALL {
        for &layout in layouts(dtype) {
            suite.add("nonzero", format!("{dtype}::{}", layout.name()), move |device| {
                check_nonzero(&layout.place(mask(&layout.shape(), dtype, 0.4), dtype, device)?)
            });
            suite.add("masked_select", format!("{dtype}::{}", layout.name()), move |device| {
                let x = shaped("selected", &layout.shape(), layout, dtype, Domain::Special, device)?;
                check_masked(&x, &layout.place(mask(&layout.shape(), DType::U8, 0.4), DType::U8, device)?)
            });
        }
        suite.add("masked_select", format!("{dtype}::broadcast_both"), move |device| {
            let x = shaped("selected", &[4, 1, 6], Layout::Contiguous, dtype, Domain::Special, device)?;
            for mask_dtype in [DType::U8, DType::U32, DType::I32, DType::Bool] {
                let mask = mask(&[5, 1], mask_dtype, 0.6);
                check_masked(&x, &Layout::Contiguous.place(mask, mask_dtype, device)?)?;
            }
            Ok(())
        });
    }
}
