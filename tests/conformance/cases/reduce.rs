//! Reductions.

use super::{floats, is_brief, shaped};
use crate::compare::{DOUBLE, Expected, Sample, check, upload};
use crate::layouts::Layout;
use crate::reference::array;
use crate::reference::functions::{maximum, minimum};
use crate::reference::inputs::{Domain, Inputs};
use crate::reference::numbers::{round, sum, summed, wrap};
use crate::reference::reduce::{argmax, argmin, kept_shape, logsumexp, logsumexp_scale, norm, rows, variance};
use crate::suite::{Outcome, Suite};
use crate::tolerance::{EPS, EXACT, Table, Tolerance};
use marquetry::{DType, Device, Result, Tensor};

pub const TOLERANCES: Table = &[
    (
        &["sum", "norm_l1"],
        Tolerance {
            ulp: 0.5,
            of_scale: EPS / 2.0,
            reason: "compensated: rounded once, and 2^-25 of the sum of magnitudes (the scale), whatever the length",
            ..EXACT
        },
    ),
    (&["mean"], Tolerance { ulp: 3.5, of_scale: EPS / 2.0, reason: "as sum, and a division", ..EXACT }),
    (
        &["prod"],
        Tolerance {
            ulp: 0.5,
            of_scale: EPS,
            reason: "a rounding per element (the scale: that many products)",
            ..EXACT
        },
    ),
    (
        &["var", "var_with"],
        Tolerance {
            ulp: 8.0,
            of_scale: 16.0 * EPS * EPS,
            reason: "a difference, a square, a compensated sum, a division; the rounding of the mean, squared (the scale: \
                     the largest square)",
            ..EXACT
        },
    ),
    (
        &["std", "std_with"],
        Tolerance {
            ulp: 8.0,
            of_scale: 4.0 * EPS,
            reason: "as var, and a square root (the scale: the largest magnitude)",
            ..EXACT
        },
    ),
    (
        &["logsumexp"],
        Tolerance {
            ulp: 1.0,
            of_scale: 6.0 * EPS,
            reason: "differences from the largest (the scale: weighted, and the result's parts), exp, a sum, log",
            ..EXACT
        },
    ),
    (&["norm_l2"], Tolerance { ulp: 5.0, reason: "squares, a compensated sum, a square root within 3 ulp", ..EXACT }),
    (&["any", "all", "argmin"], Tolerance { reason: "the result is an integer", ..EXACT }),
];

/// The dtype of a result.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// The tensor's dtype, widened for narrow integers.
    Wide,
    /// The tensor's dtype.
    Same,
    /// The tensor's dtype, for floats only.
    Float,
    Place,
    /// The dtype of comparisons.
    Test,
}

struct Reduction {
    name: &'static str,
    call: fn(&Tensor, &[i32]) -> Result<Tensor>,
    keepdim: fn(&Tensor, &[i32]) -> Result<Tensor>,
    all: fn(&Tensor) -> Result<Tensor>,
    kind: Kind,
    domain: Domain,
    of_row: fn(&[f64]) -> f64,
    /// The scale of the error.
    scale: fn(&[f64]) -> f64,
}

macro_rules! reductions {
    ($($name:ident $keepdim:ident $all:ident $(($argument:expr))? $kind:ident $domain:ident $of_row:expr, $scale:expr;)*) => {
        &[$(Reduction {
            name: stringify!($name),
            call: |x, axes| x.$name(axes $(, $argument)?),
            keepdim: |x, axes| x.$keepdim(axes $(, $argument)?),
            all: |x| x.$all($($argument)?),
            kind: Kind::$kind,
            domain: Domain::$domain,
            of_row: $of_row,
            scale: $scale,
        }),*]
    };
}

/// The reductions that are tested with every layout. The others read their elements in the same way and get a few.
const REDUCTIONS: &[Reduction] = reductions! {
    sum sum_keepdim sum_all Wide Normal |row| sum(row.iter().copied()), magnitude;
    mean mean_keepdim mean_all Float Normal mean, |row| magnitude(row) / row.len() as f64;
    min min_keepdim min_all Same Special |row| row.iter().copied().reduce(minimum).unwrap(), none;
    max max_keepdim max_all Same Special |row| row.iter().copied().reduce(maximum).unwrap(), none;
    argmax argmax_keepdim argmax_all Place Special argmax, none;
};

const MORE: &[Reduction] = reductions! {
    prod prod_keepdim prod_all Wide Factor |row| row.iter().product(), |row| {
        row.len() as f64 * row.iter().product::<f64>().abs()
    };
    argmin argmin_keepdim argmin_all Place Special argmin, none;
    any any_keepdim any_all Test Sparse |row| f64::from(row.iter().any(|&x| x != 0.0)), none;
    all all_keepdim all_all Test Small |row| f64::from(row.iter().all(|&x| x != 0.0)), none;
    var var_keepdim var_all Float Normal |row| variance(row, 1), |row| largest(row).powi(2);
    var_with var_with_keepdim var_with_all (0) Float Normal |row| variance(row, 0), |row| largest(row).powi(2);
    std std_keepdim std_all Float Normal |row| variance(row, 1).sqrt(), largest;
    std_with std_with_keepdim std_with_all (3) Float Normal |row| variance(row, 3).sqrt(), largest;
    logsumexp logsumexp_keepdim logsumexp_all Float Normal logsumexp, logsumexp_scale;
    norm_l1 norm_l1_keepdim norm_l1_all Float Normal magnitude, magnitude;
    norm_l2 norm_l2_keepdim norm_l2_all Float Normal norm, none;
};

/// Reductions with a state of more than one number: it also holds the rounding errors of sums.
const HAVE_STATES: [&str; 3] = ["sum", "var", "norm_l2"];

fn mean(row: &[f64]) -> f64 {
    sum(row.iter().copied()) / row.len() as f64
}

fn magnitude(row: &[f64]) -> f64 {
    sum(row.iter().map(|x| x.abs()))
}

fn largest(row: &[f64]) -> f64 {
    row.iter().fold(0.0, |largest, x| x.abs().max(largest))
}

fn none(_: &[f64]) -> f64 {
    0.0
}

/// Axes for reductions of a tensor with three axes.
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
        match self.kind {
            Kind::Float => dtype.is_float(),
            _ => true,
        }
    }

    fn dtype(&self, tensor: &Tensor) -> Result<DType> {
        Ok(match self.kind {
            Kind::Wide => summed(tensor.dtype()),
            Kind::Same | Kind::Float => tensor.dtype(),
            Kind::Place => DType::U32,
            Kind::Test => tensor.eq(tensor)?.dtype(),
        })
    }

    /// True if no elements have no result.
    fn chooses(&self) -> bool {
        self.domain == Domain::Special
    }

    fn expected(&self, input: &Sample, axes: &[usize]) -> Outcome<Expected> {
        let result = self.dtype(&input.tensor)?;
        let reduced = if self.name == "prod" && !result.is_float() {
            let product = |row: &[f64]| row.iter().fold(1i64, |product, &x| product.wrapping_mul(x as i64));
            rows(&input.values, axes, |row| wrap(product(row), result))
        } else if result.is_float() {
            rows(&input.values, axes, self.of_row)
        } else {
            rows(&input.values, axes, self.of_row).mapv(|x| wrap(x as i64, result))
        };
        let factor = match (self.name, result) {
            // The reference rounds as often.
            ("prod", DType::F64) => 2.0,
            // The rounding error of the mean is squared.
            ("var" | "var_with", DType::F64) => DOUBLE,
            _ => 1.0,
        };
        Ok(Expected::new(reduced, result).with_scale(rows(&input.values, axes, self.scale) * factor))
    }

    fn check(&self, input: &Sample, axes: &[i32]) -> Outcome {
        let rank = input.values.ndim();
        let resolved: Vec<usize> = axes.iter().map(|&axis| axis.rem_euclid(rank.max(1) as i32) as usize).collect();
        let expected = self.expected(input, &resolved)?;
        check(self.name, &(self.call)(&input.tensor, axes)?, &expected)?;
        let expected = expected.reshaped(&kept_shape(input.values.shape(), &resolved));
        check(self.name, &(self.keepdim)(&input.tensor, axes)?, &expected)
    }

    fn check_all(&self, input: &Sample) -> Outcome {
        let axes: Vec<usize> = (0..input.values.ndim()).collect();
        let expected = self.expected(input, &axes)?;
        check(self.name, &(self.all)(&input.tensor)?, &expected)
    }
}

fn vector(values: &[f64], dtype: DType, device: &Device) -> Outcome<Sample> {
    let values = array(&[values.len()], values.to_vec());
    Ok(Sample { tensor: upload(&values, dtype, device)?, values })
}

pub fn add(suite: &mut Suite) {
    for reduction in REDUCTIONS {
        for dtype in DType::ALL.into_iter().filter(|&dtype| reduction.takes(dtype)) {
            if is_brief(dtype) {
                add_some_layouts(suite, reduction, dtype);
            } else {
                add_all_layouts(suite, reduction, dtype);
            }
            add_exact(suite, reduction, dtype);
        }
    }
    for reduction in REDUCTIONS.iter().chain(MORE) {
        suite.add(reduction.name, "f32::columns", move |device| {
            for (shape, axes) in [(&[1200, 70][..], &[0][..]), (&[3, 150, 66], &[1]), (&[20, 90, 64], &[0, 1])] {
                for layout in [Layout::Contiguous, Layout::Sliced] {
                    reduction.check(&shaped("columns", shape, layout, DType::F32, reduction.domain, device)?, axes)?;
                }
            }
            Ok(())
        });
    }
    for reduction in MORE {
        for dtype in DType::ALL.into_iter().filter(|&dtype| reduction.takes(dtype)) {
            add_some_layouts(suite, reduction, dtype);
        }
    }
    for reduction in REDUCTIONS.iter().chain(MORE) {
        for dtype in DType::ALL.into_iter().filter(|&dtype| reduction.takes(dtype) && !reduction.chooses()) {
            suite.add(reduction.name, format!("{dtype}::empty"), move |device| {
                // There is nothing to read.
                let domain = reduction.domain;
                reduction.check(&shaped("empty", &[3, 0], Layout::Contiguous, dtype, domain, device)?, &[1])
            });
        }
        // For the others, only reading the elements depends on the dtype.
        let every = REDUCTIONS.iter().any(|other| other.name == reduction.name);
        let tried = |dtype: &DType| reduction.takes(*dtype) && !is_brief(*dtype) && (every || *dtype == DType::F32);
        for dtype in DType::ALL.into_iter().filter(tried) {
            add_all_axes(suite, reduction, dtype);
            if reduction.kind == Kind::Place {
                suite.add(reduction.name, format!("{dtype}::ties"), move |device| ties(reduction, dtype, device));
            }
        }
        // In doubles these have their own states, and the other reductions are built from them.
        let in_doubles = |dtype: &DType| *dtype == DType::F64 && HAVE_STATES.contains(&reduction.name);
        for dtype in floats().filter(|dtype| tried(dtype) || in_doubles(dtype)) {
            suite.add(reduction.name, format!("{dtype}::nan_and_infinity"), move |device| {
                nan_and_infinity(reduction, dtype, device)
            });
        }
        // Long rows are reduced in chunks, and then the states of the chunks are reduced. This tests each kind of
        // state.
        for dtype in [DType::F32, DType::I32, DType::F64].into_iter().filter(|dtype| tried(dtype) || in_doubles(dtype))
        {
            suite.add(reduction.name, format!("{dtype}::chunks"), move |device| {
                let (op, domain) = (reduction.name, reduction.domain);
                reduction.check(&shaped(op, &[2, 20011], Layout::Contiguous, dtype, domain, device)?, &[1])?;
                reduction.check(&shaped(op, &[20011, 2], Layout::Contiguous, dtype, domain, device)?, &[0])
            });
        }
    }
    suite.add("sum", "f16::beyond_f16", |device| {
        // The partial sums leave the range of f16, but the result does not.
        let values = array(&[4], vec![60000.0, 60000.0, -60000.0, -48000.0]);
        REDUCTIONS[0].check(&Sample { tensor: upload(&values, DType::F16, device)?, values }, &[0])
    });
    for reduction in REDUCTIONS
        .iter()
        .chain(MORE)
        .filter(|reduction| ["sum", "mean", "norm_l1", "norm_l2", "var", "std", "logsumexp"].contains(&reduction.name))
    {
        let doubles = HAVE_STATES.contains(&reduction.name).then_some(DType::F64);
        for dtype in [DType::F32].into_iter().chain(doubles) {
            suite.add(reduction.name, format!("{dtype}::long"), move |device| long(reduction, dtype, device));
        }
    }
    for dtype in [DType::F32, DType::F64] {
        suite.add("norm_l2", format!("{dtype}::large_and_small"), move |device| large_and_small(dtype, device));
        suite.add("var", format!("{dtype}::far_from_zero"), move |device| far_from_zero(dtype, device));
    }
}

/// Adds every layout and set of axes, long rows, short rows, and row counts around the size of a workgroup.
fn add_all_layouts(suite: &mut Suite, reduction: &'static Reduction, dtype: DType) {
    for (name, axes) in AXES {
        for layout in [Layout::Contiguous, Layout::Transposed, Layout::Sliced, Layout::Broadcast, Layout::Unaligned] {
            add_case(suite, reduction, dtype, format!("{}_{name}", layout.name()), &[4, 5, 6], layout, axes);
        }
    }
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
        add_case(suite, reduction, dtype, name.to_string(), shape, Layout::Contiguous, axes);
    }
}

/// Adds a telling few kernels, because reading the elements is the same for all dtypes.
fn add_some_layouts(suite: &mut Suite, reduction: &'static Reduction, dtype: DType) {
    for (name, shape, layout, axes) in [
        ("sliced_last", &[4, 5, 6][..], Layout::Sliced, &[-1][..]),
        ("sliced_first", &[4, 5, 6], Layout::Sliced, &[0]),
        ("transposed_last", &[4, 5, 6], Layout::Transposed, &[2]),
        ("broadcast_middle", &[4, 5, 6], Layout::Broadcast, &[1]),
        ("long_rows", &[3, 5000], Layout::Contiguous, &[1]),
        ("long_columns", &[5000, 3], Layout::Contiguous, &[0]),
        ("sixty_five", &[2, 65], Layout::Contiguous, &[1]),
        ("no_rows", &[0, 5], Layout::Contiguous, &[1]),
    ] {
        if dtype == DType::F32 || ["sliced_last", "long_rows"].contains(&name) {
            add_case(suite, reduction, dtype, name.to_string(), shape, layout, axes);
        }
    }
}

fn add_case(
    suite: &mut Suite,
    reduction: &'static Reduction,
    dtype: DType,
    variant: String,
    shape: &'static [usize],
    layout: Layout,
    axes: &'static [i32],
) {
    suite.add(reduction.name, format!("{dtype}::{variant}"), move |device| {
        reduction.check(&shaped(reduction.name, shape, layout, dtype, reduction.domain, device)?, axes)
    });
}

/// Adds cases without rounding, so that the tolerance cannot hide a missing element.
fn add_exact(suite: &mut Suite, reduction: &'static Reduction, dtype: DType) {
    for (name, layout, axes) in [
        ("exact_long_rows", Layout::Contiguous, &[1][..]),
        ("exact_long_sliced", Layout::Sliced, &[1]),
        ("exact_long_transposed", Layout::Transposed, &[1]),
        ("exact_every", Layout::Contiguous, &[0, 1]),
    ] {
        suite.add(reduction.name, format!("{dtype}::{name}"), move |device| {
            let input = shaped(reduction.name, &[3, 1000], layout, dtype, Domain::Small, device)?;
            let resolved: Vec<usize> = axes.iter().map(|&axis| axis as usize).collect();
            let expected = Expected { scale: None, ..reduction.expected(&input, &resolved)? };
            check(reduction.name, &(reduction.call)(&input.tensor, axes)?, &expected)
        });
    }
}

fn add_all_axes(suite: &mut Suite, reduction: &'static Reduction, dtype: DType) {
    let (op, domain) = (reduction.name, reduction.domain);
    suite.add(op, format!("{dtype}::all"), move |device| {
        for layout in [Layout::Contiguous, Layout::Sliced, Layout::Odd] {
            reduction.check_all(&shaped(op, &layout.shape(), layout, dtype, domain, device)?)?;
        }
        reduction.check_all(&shaped(op, &[], Layout::Contiguous, dtype, domain, device)?)
    });
}

fn nan_and_infinity(reduction: &Reduction, dtype: DType, device: &Device) -> Outcome {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    for row in [
        vec![1.0, nan, 3.0, nan, 9.0],
        vec![nan, nan],
        vec![-inf, -1.0, inf, inf],
        vec![inf, 1.0, 2.0],
        vec![-inf, -inf, -inf],
        vec![-inf, 5.0, -inf],
        vec![inf, nan, -inf],
        vec![0.0, 1.0, nan],
        [vec![1.0; 100], vec![nan], vec![inf; 100]].concat(),
        [vec![-inf; 100], vec![-5.0], vec![-inf; 100]].concat(),
    ] {
        reduction.check(&vector(&row, dtype, device)?, &[0])?;
    }
    Ok(())
}

fn ties(reduction: &Reduction, dtype: DType, device: &Device) -> Outcome {
    let mut long = vec![2.0; 300];
    (long[77], long[78], long[141], long[299]) = (3.0, 3.0, 3.0, 3.0);
    (long[79], long[80], long[142], long[298]) = (1.0, 1.0, 1.0, 1.0);
    // Ties also occur between chunks.
    let chunks = [vec![2.0; 5000], long.clone(), vec![2.0; 15000], long.clone()].concat();
    for mut row in [vec![5.0; 9], vec![5.0; 130], vec![1.0, 3.0, 3.0, 0.0, 3.0, 0.0], long, chunks] {
        if dtype == DType::Bool {
            row.iter_mut().for_each(|x| *x = f64::from(*x > 2.0));
        }
        reduction.check(&vector(&row, dtype, device)?, &[0])?;
    }
    Ok(())
}

/// 2^20 numbers: large ones that cancel and small ones that remain.
fn long(reduction: &Reduction, dtype: DType, device: &Device) -> Outcome {
    const LENGTH: usize = 1 << 20;
    let mut inputs = Inputs::new("long");
    let mut numbers: Vec<f64> = (0..LENGTH).map(|_| round(inputs.normal() * 1e-3, DType::F32)).collect();
    for place in 0..LENGTH / 16 {
        let large = round(inputs.normal() * 10.0, DType::F32);
        let other = inputs.below(LENGTH);
        (numbers[16 * place], numbers[other]) = (large, -large);
    }
    let values = array(&[1 << 10, 1 << 10], numbers);
    let sample = Sample { tensor: upload(&values, dtype, device)?, values };
    reduction.check_all(&sample)?;
    // A few large numbers come first. A plain sum would lose the ones that follow.
    let mut numbers = vec![1.0; LENGTH + 3];
    let large = if dtype == DType::F64 { 1e16 } else { 1e8 };
    numbers[..3].copy_from_slice(&[3.0 * large, -large, -2.0 * large]);
    if reduction.name == "logsumexp" {
        numbers[0] = -3.0 * large;
    }
    reduction.check(&vector(&numbers, dtype, device)?, &[0])
}

/// Numbers whose squares are too large or too small for the dtype.
fn large_and_small(dtype: DType, device: &Device) -> Outcome {
    let norm = MORE.iter().find(|reduction| reduction.name == "norm_l2").expect("it is there");
    for row in [
        vec![3e30, -4e30, 1.0],
        vec![3e-30, 4e-30],
        vec![1e-30, 1e30, 2e-38, 2e30],
        vec![2e38; 2],
        vec![2e-38; 100],
        [vec![1e-20; 70], vec![1e20]].concat(),
        vec![0.0; 5],
    ] {
        // `f64` has eight times the exponent range.
        let power = if dtype == DType::F64 { 8 } else { 1 };
        let row: Vec<f64> = row.into_iter().map(|x: f64| round(x.powi(power), dtype)).collect();
        norm.check(&vector(&row, dtype, device)?, &[0])?;
    }
    Ok(())
}

/// A mean that is large compared to the deviations.
fn far_from_zero(dtype: DType, device: &Device) -> Outcome {
    let variance = MORE.iter().find(|reduction| reduction.name == "var").expect("it is there");
    let mut inputs = Inputs::new("far");
    for (centre, count) in [(1e4, 1000), (1e6, 20000), (1.5e7, 300)] {
        let row: Vec<f64> = (0..count).map(|_| round(centre + inputs.normal(), dtype)).collect();
        variance.check(&vector(&row, dtype, device)?, &[0])?;
    }
    variance.check(&vector(&[0.1f32.into(); 77], dtype, device)?, &[0])
}
