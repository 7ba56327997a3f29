//! Reductions.

use super::{FLOATS, is_brief, numbers, shaped};
use crate::compare::{Expected, Sample, check, upload};
use crate::layouts::Layout;
use crate::reference::functions::{maximum, minimum};
use crate::reference::inputs::Domain;
use crate::reference::numbers::{summed, wrap};
use crate::reference::reduce::{argmax, kept_shape, rows};
use crate::reference::{ArrayD, array};
use crate::suite::{Outcome, Suite};
use marquetry::{DType, Result, Tensor};

struct Reduction {
    name: &'static str,
    call: fn(&Tensor, &[i32]) -> Result<Tensor>,
    keepdim: fn(&Tensor, &[i32]) -> Result<Tensor>,
    all: fn(&Tensor) -> Result<Tensor>,
    of_row: fn(&[f64]) -> f64,
}

macro_rules! reductions {
    ($($name:ident $keepdim:ident $all:ident $of_row:expr;)*) => {
        &[$(Reduction {
            name: stringify!($name),
            call: |x, axes| x.$name(axes),
            keepdim: |x, axes| x.$keepdim(axes),
            all: Tensor::$all,
            of_row: $of_row,
        }),*]
    };
}

const REDUCTIONS: &[Reduction] = reductions! {
    sum sum_keepdim sum_all |row| row.iter().sum();
    mean mean_keepdim mean_all |row| row.iter().sum::<f64>() / row.len() as f64;
    min min_keepdim min_all |row| row.iter().copied().reduce(minimum).unwrap();
    max max_keepdim max_all |row| row.iter().copied().reduce(maximum).unwrap();
    argmax argmax_keepdim argmax_all argmax;
};

/// Axes to reduce a tensor of three axes by.
const AXES: [(&str, &[i32]); 9] = [
    ("first", &[0]),
    ("middle", &[1]),
    ("last", &[-1]),
    ("outer", &[0, 1]),
    ("ends", &[0, 2]),
    ("swapped", &[-1, 0]),
    ("every", &[0, 1, 2]),
    ("every_swapped", &[2, 0, 1]),
    ("none", &[]),
];

impl Reduction {
    fn takes(&self, dtype: DType) -> bool {
        self.name != "mean" || dtype.is_float()
    }

    fn dtype(&self, dtype: DType) -> DType {
        match self.name {
            "argmax" => DType::U32,
            "sum" => summed(dtype),
            _ => dtype,
        }
    }

    fn domain(&self) -> Domain {
        if matches!(self.name, "sum" | "mean") { Domain::Normal } else { Domain::Special }
    }

    fn expected(&self, values: &ArrayD<f64>, dtype: DType, axes: &[usize]) -> Expected {
        let result = self.dtype(dtype);
        let reduced = rows(values, axes, self.of_row);
        let reduced = if result.is_float() { reduced } else { reduced.mapv(|x| wrap(x as i64, result)) };
        // A sum of n terms is rounded n times; a mean is a sum divided by n.
        let magnitude = rows(values, axes, |row| row.iter().map(|x| x.abs()).sum::<f64>());
        let length: usize = axes.iter().map(|&axis| values.shape()[axis]).product();
        let factor = if self.name == "mean" { 1.0 } else { length as f64 };
        Expected::new(reduced, result).with_scale(magnitude * factor)
    }

    fn check(&self, input: &Sample, axes: &[i32]) -> Outcome {
        let rank = input.values.ndim();
        let resolved: Vec<usize> = axes.iter().map(|&axis| axis.rem_euclid(rank.max(1) as i32) as usize).collect();
        let expected = self.expected(&input.values, input.tensor.dtype(), &resolved);
        check(self.name, &(self.call)(&input.tensor, axes)?, &expected)?;
        let expected = expected.reshaped(&kept_shape(input.values.shape(), &resolved));
        check(self.name, &(self.keepdim)(&input.tensor, axes)?, &expected)
    }

    fn check_all(&self, input: &Sample) -> Outcome {
        let axes: Vec<usize> = (0..input.values.ndim()).collect();
        let expected = self.expected(&input.values, input.tensor.dtype(), &axes);
        check(self.name, &(self.all)(&input.tensor)?, &expected)
    }
}

fn vector(values: &[f64], dtype: DType, device: &marquetry::Device) -> Outcome<Sample> {
    let values = array(&[values.len()], values.to_vec());
    Ok(Sample { tensor: upload(&values, dtype, device)?, values })
}

pub fn add(suite: &mut Suite) {
    for reduction in REDUCTIONS {
        let op = reduction.name;
        for dtype in DType::ALL.into_iter().filter(|&dtype| reduction.takes(dtype)) {
            let mut add =
                |variant: String, shape: &'static [usize], layout: Layout, domain: Domain, axes: &'static [i32]| {
                    suite.add(op, format!("{dtype}::{variant}"), move |device| {
                        reduction.check(&shaped(op, shape, layout, dtype, domain, device)?, axes)
                    });
                };
            let axes =
                AXES.into_iter().filter(|(name, _)| !is_brief(dtype) || matches!(*name, "last" | "ends" | "every"));
            let layouts: &[Layout] = match is_brief(dtype) {
                true => &[Layout::Contiguous, Layout::Sliced],
                false => {
                    &[Layout::Contiguous, Layout::Transposed, Layout::Sliced, Layout::Broadcast, Layout::Unaligned]
                }
            };
            for (name, axes) in axes {
                for &layout in layouts {
                    add(format!("{}_{name}", layout.name()), &[4, 5, 6], layout, reduction.domain(), axes);
                }
            }
            // Long rows, short rows, and as many rows as a workgroup has members, more or less.
            for (name, shape, axes) in [
                ("long_rows", &[3, 5000][..], &[1][..]),
                ("long_columns", &[5000, 3], &[0]),
                ("short_rows", &[5000, 3], &[1]),
                ("short_columns", &[3, 5000], &[0]),
                ("many_long", &[65, 70], &[1]),
                ("odd", &[3, 65, 7], &[1]),
                ("odd_every", &[3, 65, 7], &[0, 1, 2]),
                ("thirty_two", &[2, 32], &[1]),
                ("sixty_four", &[2, 64], &[1]),
                ("sixty_five", &[2, 65], &[1]),
                ("no_rows", &[0, 5], &[1]),
                ("one", &[1, 1], &[0, 1]),
            ] {
                add(name.to_string(), shape, Layout::Contiguous, reduction.domain(), axes);
            }
            // Without rounding, so that no element can go missing in the tolerance.
            for (name, layout, axes) in [
                ("exact_long_rows", Layout::Contiguous, &[1][..]),
                ("exact_long_sliced", Layout::Sliced, &[1]),
                ("exact_long_transposed", Layout::Transposed, &[1]),
                ("exact_every", Layout::Contiguous, &[0, 1]),
            ] {
                suite.add(op, format!("{dtype}::{name}"), move |device| {
                    let input = shaped(op, &[3, 1000], layout, dtype, Domain::Small, device)?;
                    let resolved: Vec<usize> = axes.iter().map(|&axis| axis as usize).collect();
                    let mut expected = reduction.expected(&input.values, dtype, &resolved);
                    expected.scale = None;
                    check(op, &(reduction.call)(&input.tensor, axes)?, &expected)
                });
            }
            suite.add(op, format!("{dtype}::all"), move |device| {
                for layout in [Layout::Contiguous, Layout::Sliced, Layout::Odd] {
                    reduction.check_all(&shaped(op, &layout.shape(), layout, dtype, reduction.domain(), device)?)?;
                }
                reduction.check_all(&shaped(op, &[], Layout::Contiguous, dtype, reduction.domain(), device)?)
            });
        }
        for dtype in FLOATS.into_iter().filter(|_| op != "sum" && op != "mean") {
            suite.add(op, format!("{dtype}::nan_and_infinity"), move |device| {
                let (inf, nan) = (f64::INFINITY, f64::NAN);
                for row in [
                    vec![1.0, nan, 3.0, nan, 9.0],
                    vec![nan, nan],
                    vec![-inf, -1.0, inf, inf],
                    vec![-inf, -inf, -inf],
                    vec![inf, nan, -inf],
                    vec![0.0, 1.0, nan],
                    [vec![1.0; 100], vec![nan], vec![inf; 100]].concat(),
                    [vec![-inf; 100], vec![-5.0], vec![-inf; 100]].concat(),
                ] {
                    reduction.check(&vector(&row, dtype, device)?, &[0])?;
                }
                Ok(())
            });
        }
        for dtype in FLOATS.into_iter().filter(|_| op == "sum" || op == "mean") {
            suite.add(op, format!("{dtype}::nan_and_infinity"), move |device| {
                let (inf, nan) = (f64::INFINITY, f64::NAN);
                for row in [vec![1.0, nan, 2.0], vec![inf, 1.0], vec![-inf, 5.0, -inf], vec![inf, -inf]] {
                    reduction.check(&vector(&row, dtype, device)?, &[0])?;
                }
                Ok(())
            });
            suite.add(op, format!("{dtype}::empty"), move |device| {
                // 0 or NaN, of which no bit is read from anywhere.
                reduction.check(&shaped(op, &[3, 0], Layout::Contiguous, dtype, Domain::Normal, device)?, &[1])
            });
        }
    }
    for dtype in DType::ALL.into_iter().filter(|dtype| !dtype.is_float()) {
        suite.add("sum", format!("{dtype}::empty"), move |device| {
            REDUCTIONS[0].check(&shaped("sum", &[3, 0], Layout::Contiguous, dtype, Domain::Normal, device)?, &[1])
        });
    }
    for dtype in numbers() {
        suite.add("argmax", format!("{dtype}::ties"), move |device| {
            let mut long = vec![1.0; 300];
            (long[77], long[78], long[141], long[299]) = (2.0, 2.0, 2.0, 2.0);
            for row in [vec![5.0; 9], vec![5.0; 130], vec![0.0, 3.0, 3.0, 1.0, 3.0], long] {
                REDUCTIONS[4].check(&vector(&row, dtype, device)?, &[0])?;
            }
            Ok(())
        });
    }
    suite.add("sum", "f16::beyond_f16", |device| {
        // The partial sums leave the range of f16, the result does not.
        let values = array(&[4], vec![60000.0, 60000.0, -60000.0, -48000.0]);
        REDUCTIONS[0].check(&Sample { tensor: upload(&values, DType::F16, device)?, values }, &[0])
    });
}
