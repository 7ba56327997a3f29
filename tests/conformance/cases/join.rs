//! Concatenation and stacking.

use crate::compare::{Expected, Sample, check};
use crate::layouts::Layout;
use crate::reference::index::cat;
use crate::reference::inputs::{Domain, Inputs};
use crate::reference::{ArrayD, Axis};
use crate::suite::{Outcome, Suite};
use marquetry::{DType, Device, Tensor};

/// Parts with these lengths along `axis`. The other axes are 3 and 5 long. Each part has another layout.
fn parts(lengths: &[usize], axis: usize, dtype: DType, device: &Device) -> Outcome<Vec<Sample>> {
    let layouts = [Layout::Contiguous, Layout::Transposed, Layout::Sliced, Layout::Unaligned];
    let mut inputs = Inputs::new("parts");
    let part = |(&length, layout): (&usize, Layout)| {
        let mut shape = [3, 5, 2];
        shape[axis] = length;
        layout.place(inputs.array(&shape, dtype, Domain::Special), dtype, device)
    };
    lengths.iter().zip(layouts.into_iter().cycle()).map(part).collect()
}

fn check_cat(parts: &[Sample], axis: usize) -> Outcome {
    let tensors: Vec<&Tensor> = parts.iter().map(|part| &part.tensor).collect();
    let values: Vec<ArrayD<f64>> = parts.iter().map(|part| part.values.clone()).collect();
    let expected = Expected::new(cat(&values, axis), parts[0].tensor.dtype());
    check("cat", &Tensor::cat(&tensors, axis)?, &expected)?;
    let from_the_end = axis as i32 - parts[0].values.ndim() as i32;
    check("cat", &Tensor::cat(&tensors, from_the_end)?, &expected)
}

fn check_stack(parts: &[Sample], axis: usize) -> Outcome {
    let tensors: Vec<&Tensor> = parts.iter().map(|part| &part.tensor).collect();
    let values: Vec<ArrayD<f64>> = parts.iter().map(|part| part.values.clone().insert_axis(Axis(axis))).collect();
    let expected = Expected::new(cat(&values, axis), parts[0].tensor.dtype());
    check("stack", &Tensor::stack(&tensors, axis)?, &expected)
}

pub fn add(suite: &mut Suite) {
    let lengths: [&[usize]; 10] = [
        &[4],
        &[2, 3],
        &[1, 4, 2],
        &[1, 2, 3, 4],
        &[3, 1, 2, 5, 1, 4, 2],
        &[0, 3],
        &[3, 0],
        &[2, 0, 0, 3],
        &[0, 0],
        &[33, 65],
    ];
    for dtype in DType::ALL {
        for lengths in lengths {
            for axis in 0..3 {
                let name = lengths.iter().map(usize::to_string).collect::<Vec<_>>().join("_");
                suite.add("cat", format!("{dtype}::axis_{axis}_of_{name}"), move |device| {
                    check_cat(&parts(lengths, axis, dtype, device)?, axis)
                });
            }
        }
        suite.add("cat", format!("{dtype}::same_twice"), move |device| {
            let part = parts(&[3], 0, dtype, device)?.remove(0);
            check_cat(&[part.clone(), part.clone(), part], 1)
        });
        for count in [1, 2, 4] {
            for axis in 0..=3 {
                suite.add("stack", format!("{dtype}::{count}_along_{axis}"), move |device| {
                    check_stack(&parts(&vec![5; count], 1, dtype, device)?, axis)
                });
            }
        }
        suite.add("stack", format!("{dtype}::scalars"), move |device| {
            let mut inputs = Inputs::new("scalars");
            let scalar = |_| Layout::Contiguous.place(inputs.array(&[], dtype, Domain::Normal), dtype, device);
            check_stack(&(0..5).map(scalar).collect::<Outcome<Vec<_>>>()?, 0)
        });
    }
}
