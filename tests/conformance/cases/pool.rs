//! Pooling.

use super::{floats, shaped};
use crate::compare::{Expected, Sample, check};
use crate::full_tier;
use crate::layouts::Layout;
use crate::reference::array;
use crate::reference::functions::maximum;
use crate::reference::inputs::{Domain, Inputs};
use crate::reference::numbers::limits;
use crate::reference::window::{Slide, adaptive_windows, lifted, padded, window_counts, windows};
use crate::suite::{Outcome, Suite};
use crate::tolerance::{EPS, EXACT, Table, Tolerance};
use marquetry::{DType, Device, PoolConfig, Result, Tensor};
use ndarray::Array5;

pub const TOLERANCES: Table = &[
    (
        &[
            "max_pool1d",
            "max_pool2d",
            "max_pool3d",
            "adaptive_max_pool1d",
            "adaptive_max_pool2d",
            "adaptive_max_pool3d",
            "global_max_pool",
        ],
        Tolerance { reason: "the result is a number of the input", ..EXACT },
    ),
    (
        &[
            "avg_pool1d",
            "avg_pool2d",
            "avg_pool3d",
            "adaptive_avg_pool1d",
            "adaptive_avg_pool2d",
            "adaptive_avg_pool3d",
            "global_avg_pool",
        ],
        Tolerance {
            ulp: 3.0,
            of_scale: EPS,
            reason: "n additions, each within eps of the sum of magnitudes (the scale), and a division",
            ..EXACT
        },
    ),
    (
        &["lp_pool1d", "lp_pool2d", "lp_pool3d"],
        Tolerance {
            ulp: 32.0,
            of_scale: EPS,
            reason: "powers within 16 ulp, summed up (n roundings), and a root within 16 ulp",
            ..EXACT
        },
    ),
];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fold {
    Max,
    Average,
    Norm(f64),
}

struct Operation {
    name: &'static str,
    axes: usize,
    fold: Fold,
    call: fn(&Tensor, &PoolConfig) -> Result<Tensor>,
}

const OPERATIONS: [Operation; 9] = [
    Operation { name: "max_pool1d", axes: 1, fold: Fold::Max, call: Tensor::max_pool1d },
    Operation { name: "max_pool2d", axes: 2, fold: Fold::Max, call: Tensor::max_pool2d },
    Operation { name: "max_pool3d", axes: 3, fold: Fold::Max, call: Tensor::max_pool3d },
    Operation { name: "avg_pool1d", axes: 1, fold: Fold::Average, call: Tensor::avg_pool1d },
    Operation { name: "avg_pool2d", axes: 2, fold: Fold::Average, call: Tensor::avg_pool2d },
    Operation { name: "avg_pool3d", axes: 3, fold: Fold::Average, call: Tensor::avg_pool3d },
    Operation { name: "lp_pool1d", axes: 1, fold: Fold::Norm(3.0), call: |x, windows| x.lp_pool1d(3.0, windows) },
    Operation { name: "lp_pool2d", axes: 2, fold: Fold::Norm(2.0), call: |x, windows| x.lp_pool2d(2.0, windows) },
    Operation { name: "lp_pool3d", axes: 3, fold: Fold::Norm(1.0), call: |x, windows| x.lp_pool3d(1.0, windows) },
];

type Adaptive = (&'static str, usize, Fold, fn(&Tensor, &[usize]) -> Result<Tensor>);

const ADAPTIVE: [Adaptive; 6] = [
    ("adaptive_avg_pool1d", 1, Fold::Average, |x, lengths| x.adaptive_avg_pool1d(lengths)),
    ("adaptive_avg_pool2d", 2, Fold::Average, |x, lengths| x.adaptive_avg_pool2d(lengths)),
    ("adaptive_avg_pool3d", 3, Fold::Average, |x, lengths| x.adaptive_avg_pool3d(lengths)),
    ("adaptive_max_pool1d", 1, Fold::Max, |x, lengths| x.adaptive_max_pool1d(lengths)),
    ("adaptive_max_pool2d", 2, Fold::Max, |x, lengths| x.adaptive_max_pool2d(lengths)),
    ("adaptive_max_pool3d", 3, Fold::Max, |x, lengths| x.adaptive_max_pool3d(lengths)),
];

/// Windows over three axes. Operations with fewer axes use the last ones.
#[derive(Debug, Clone, Copy)]
struct Problem {
    outer: [usize; 2],
    length: [usize; 3],
    kernel: [usize; 3],
    slide: Slide,
    ceil_mode: bool,
    padding_counts: bool,
}

const PLAIN: Problem = Problem {
    outer: [2, 3],
    length: [4, 7, 9],
    kernel: [2, 3, 2],
    slide: Slide { stride: [2, 3, 2], ..Slide::PLAIN },
    ceil_mode: false,
    padding_counts: true,
};

const PADDED: Slide = Slide { padding: [(1, 1), (1, 2), (1, 0)], stride: [2, 2, 1], ..Slide::PLAIN };

/// Windows and images that have a kernel of their own: rows of outputs, or channels, that are multiples of four.
const FOURS: Problem = Problem {
    outer: [2, 8],
    length: [3, 9, 16],
    kernel: [2, 3, 3],
    slide: Slide { stride: [1, 2, 2], padding: [(0, 0), (1, 1), (1, 1)], ..Slide::PLAIN },
    ..PLAIN
};

/// The same with as much padding as windows may have.
const PADDED_FOURS: Problem = Problem { slide: Slide { padding: [(0, 0), (2, 1), (1, 2)], ..FOURS.slide }, ..FOURS };

/// Whether the quick tier tests fours with a dtype: with one of each size.
fn is_of_fours(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::I8)
}

/// Windows that share elements, and more of them than an invocation computes.
const FOURS_LARGE: Problem = Problem {
    outer: [1, 264],
    length: [1, 28, 32],
    kernel: [1, 3, 3],
    slide: Slide { padding: [(0, 0), (1, 1), (1, 1)], ..Slide::PLAIN },
    ..PLAIN
};

const PROBLEMS: [(&str, Problem); 16] = [
    ("plain", PLAIN),
    ("overlapping", Problem { slide: Slide::PLAIN, ..PLAIN }),
    ("apart", Problem { slide: Slide { stride: [3, 4, 5], ..Slide::PLAIN }, ..PLAIN }),
    ("padded", Problem { slide: PADDED, ..PLAIN }),
    ("padding_left_out", Problem { slide: PADDED, padding_counts: false, ..PLAIN }),
    ("ceil", Problem { ceil_mode: true, ..PLAIN }),
    ("ceil_padded", Problem { slide: Slide { stride: [3, 3, 2], ..PADDED }, ceil_mode: true, ..PLAIN }),
    (
        "ceil_padding_left_out",
        Problem { slide: Slide { stride: [3, 5, 3], ..PADDED }, ceil_mode: true, padding_counts: false, ..PLAIN },
    ),
    ("fours", FOURS),
    (
        "fours_of_one_side",
        Problem {
            kernel: [1, 2, 6],
            slide: Slide { stride: [1, 3, 1], padding: [(0, 0), (0, 1), (5, 0)], ..Slide::PLAIN },
            ..FOURS
        },
    ),
    ("whole", Problem { length: [2, 3, 4], kernel: [2, 3, 4], outer: [1, 5], ..PLAIN }),
    // Most of each window is padding, and all but a few windows begin or end in it.
    (
        "far_padded",
        Problem {
            kernel: [4, 30, 40],
            slide: Slide { stride: [1, 7, 3], padding: [(3, 2), (29, 25), (39, 38)], ..Slide::PLAIN },
            ..PLAIN
        },
    ),
    // Windows that several workgroups share.
    ("long", LONG),
    ("long_overlapping", Problem { slide: Slide { stride: [1, 5, 40], ..Slide::PLAIN }, kernel: [3, 50, 40], ..LONG }),
    ("long_padded", Problem { slide: LONG_PADDED, kernel: [5, 60, 130], ..LONG }),
    ("long_padding_left_out", Problem { slide: LONG_PADDED, kernel: [5, 60, 130], padding_counts: false, ..LONG }),
];

const LONG: Problem = Problem { outer: [1, 2], length: [3, 55, 90], kernel: [3, 55, 90], slide: Slide::PLAIN, ..PLAIN };

const LONG_PADDED: Slide = Slide { padding: [(1, 1), (5, 0), (3, 37)], ..Slide::PLAIN };

impl Problem {
    fn shape(&self, axes: usize) -> Vec<usize> {
        [&self.outer, &self.length[3 - axes..]].concat()
    }

    fn config(&self, axes: usize) -> PoolConfig {
        let first = 3 - axes;
        PoolConfig::new(&self.kernel[first..])
            .stride(&self.slide.stride[first..])
            .padding(&self.slide.padding[first..])
            .dilation(&self.slide.dilation[first..])
            .ceil_mode(self.ceil_mode)
            .count_include_pad(self.padding_counts)
    }

    /// The problem along the operation's axes only.
    fn along(mut self, axes: usize) -> Self {
        for axis in 0..3 - axes {
            (self.length[axis], self.kernel[axis]) = (1, 1);
            (self.slide.stride[axis], self.slide.dilation[axis], self.slide.padding[axis]) = (1, 1, (0, 0));
        }
        self
    }
}

/// The sum of magnitudes, times the number of roundings of a sum.
fn sum_scale(elements: &[f64]) -> f64 {
    elements.iter().map(|x| x.abs()).sum::<f64>()
}

fn norm(elements: &[f64], p: f64) -> f64 {
    elements.iter().map(|x| x.abs().powf(p)).sum::<f64>().powf(1.0 / p)
}

/// Reshapes to the operation's number of axes.
fn flat(x: Array5<f64>, axes: usize) -> crate::reference::ArrayD<f64> {
    let shape = [&x.shape()[..2], &x.shape()[5 - axes..]].concat();
    array(&shape, x.into_iter().collect())
}

impl Operation {
    fn expected(&self, problem: &Problem, x: &Sample) -> Expected {
        let Problem { kernel, slide, ceil_mode, .. } = problem.along(self.axes);
        let (values, dtype) = (lifted(&x.values), x.tensor.dtype());
        let counts = window_counts(problem.along(self.axes).length, kernel, slide, ceil_mode);
        let each = |x: &Array5<f64>, value: f64, f: &dyn Fn(&[f64]) -> f64| windows(x, kernel, slide, counts, value, f);
        let smallest = if dtype.is_float() { f64::NEG_INFINITY } else { limits(dtype).0 };
        let result = |x: Array5<f64>| flat(x, self.axes);
        match self.fold {
            Fold::Max => {
                let largest = |row: &[f64]| row.iter().copied().reduce(maximum).unwrap();
                Expected::new(result(each(&values, smallest, &largest)), dtype)
            }
            Fold::Average => {
                let ones = padded(&values.mapv(|_| 1.0), slide.padding, f64::from(u8::from(problem.padding_counts)));
                // The input is padded already.
                let unpadded = Slide { padding: [(0, 0); 3], ..slide };
                let divisors = windows(&ones, kernel, unpadded, counts, 0.0, |row| row.iter().sum());
                let scale = each(&values, 0.0, &sum_scale);
                let mean = each(&values, 0.0, &|row| row.iter().sum()) / divisors;
                Expected::new(result(mean), dtype).with_scale(result(scale))
            }
            Fold::Norm(p) => {
                let norm = result(each(&values, 0.0, &|row| norm(row, p)));
                let count = kernel.iter().product::<usize>() as f64;
                Expected::new(norm.clone(), dtype).with_scale(norm * count)
            }
        }
    }

    fn check(&self, problem: &Problem, x: &Sample) -> Outcome {
        check(self.name, &(self.call)(&x.tensor, &problem.config(self.axes))?, &self.expected(problem, x))
    }

    fn domain(&self) -> Domain {
        if self.fold == Fold::Max { Domain::Special } else { Domain::Normal }
    }

    fn dtypes(&self) -> Vec<DType> {
        match self.fold {
            // All dtypes over two axes. The other operations share the dtype-dependent code.
            Fold::Max if self.axes == 2 || full_tier() => DType::ALL.to_vec(),
            _ if self.axes == 2 || full_tier() => floats().collect(),
            _ => vec![DType::F32],
        }
    }
}

fn check_adaptive(operation: &Adaptive, x: &Sample, counts: [usize; 3]) -> Outcome {
    let &(name, axes, fold, call) = operation;
    let values = lifted(&x.values);
    let wanted = &counts[3 - axes..];
    let mut counts = counts;
    counts[..3 - axes].fill(1);
    let mean = |row: &[f64]| row.iter().sum::<f64>() / row.len() as f64;
    let largest = |row: &[f64]| row.iter().copied().reduce(maximum).unwrap();
    let folded = if fold == Fold::Max {
        adaptive_windows(&values, counts, largest)
    } else {
        adaptive_windows(&values, counts, mean)
    };
    let scale = flat(adaptive_windows(&values, counts, sum_scale), axes);
    let expected = Expected::new(flat(folded, axes), x.tensor.dtype());
    check(name, &call(&x.tensor, wanted)?, &if fold == Fold::Max { expected } else { expected.with_scale(scale) })
}

fn random_problem(inputs: &mut Inputs, dilated: bool) -> Problem {
    loop {
        let mut three =
            |from: usize, to: usize| -> [usize; 3] { std::array::from_fn(|_| from + inputs.below(to - from)) };
        let (length, kernel, stride) = (three(1, 9), three(1, 5), three(1, 5));
        let dilation = if dilated { three(1, 3) } else { [1; 3] };
        let (before, after) = (three(0, 3), three(0, 3));
        let problem = Problem {
            outer: [inputs.below(3) + 1, inputs.below(4) + 1],
            length,
            kernel,
            slide: Slide { stride, dilation, padding: std::array::from_fn(|a| (before[a], after[a])), ..Slide::PLAIN },
            ceil_mode: inputs.below(2) == 0,
            padding_counts: inputs.below(2) == 0,
        };
        let fits = (0..3).all(|a| {
            let extent = (kernel[a] - 1) * dilation[a] + 1;
            before[a].max(after[a]) < extent && extent <= before[a] + length[a] + after[a]
        });
        if fits {
            return problem;
        }
    }
}

fn random(operation: &Operation, dtype: DType, device: &Device) -> Outcome {
    let mut inputs = Inputs::new(operation.name);
    for _ in 0..if full_tier() { 400 } else { 40 } {
        let problem = random_problem(&mut inputs, operation.fold == Fold::Max);
        let shape = problem.shape(operation.axes);
        let x = shaped("pool", &shape, Layout::Contiguous, dtype, Domain::Normal, device)?;
        operation.check(&problem, &x).map_err(|error| format!("{problem:?}: {error:?}"))?;
    }
    Ok(())
}

pub fn add(suite: &mut Suite) {
    use Layout::{Broadcast, ChannelsLast, Contiguous, Sliced, Transposed, Unaligned};
    for operation in &OPERATIONS {
        let (op, axes) = (operation.name, operation.axes);
        for dtype in operation.dtypes() {
            for (name, problem) in PROBLEMS {
                // Skipped taps and shared windows do not depend on the dtype: the quick tier tests one.
                let is_far = name.starts_with("long") || name.starts_with("far");
                let is_rare = is_far && dtype != DType::F32 || name.starts_with("fours") && !is_of_fours(dtype);
                if is_rare && !full_tier() {
                    continue;
                }
                suite.add(op, format!("{dtype}::{name}"), move |device| {
                    let x = shaped(op, &problem.shape(axes), Contiguous, dtype, operation.domain(), device)?;
                    operation.check(&problem, &x)
                });
            }
            for layout in [Transposed, Sliced, Broadcast, Unaligned] {
                suite.add(op, format!("{dtype}::{}", layout.name()), move |device| {
                    let problem = Problem { slide: PADDED, ..PLAIN };
                    let x = shaped(op, &problem.shape(axes), layout, dtype, operation.domain(), device)?;
                    operation.check(&problem, &x)
                });
            }
            suite.add(op, format!("{dtype}::random"), move |device| random(operation, dtype, device));
            suite.add(op, format!("{dtype}::no_images"), move |device| {
                let problem = Problem { outer: [0, 3], ..PLAIN };
                let x = shaped(op, &problem.shape(axes), Contiguous, dtype, operation.domain(), device)?;
                operation.check(&problem, &x)
            });
            if !is_of_fours(dtype) && !full_tier() {
                continue;
            }
            suite.add(op, format!("{dtype}::channels_last"), move |device| {
                let six_channels = Problem { outer: [2, 6], ..FOURS };
                for problem in [Problem { slide: PADDED, ..PLAIN }, FOURS, PADDED_FOURS, six_channels] {
                    let shape = problem.shape(axes);
                    let mut x = shaped(op, &shape, ChannelsLast, dtype, operation.domain(), device)?;
                    operation.check(&problem, &x)?;
                    // The same elements, backwards in memory.
                    let spatial: Vec<usize> = (2..2 + axes).collect();
                    let backwards = x.tensor.flip(spatial.clone())?.contiguous()?;
                    x.tensor = if axes == 2 { super::conv::channels_last(&backwards)? } else { backwards };
                    x.tensor = x.tensor.flip(spatial)?;
                    operation.check(&problem, &x)?;
                }
                Ok(())
            });
        }
        if op == "max_pool2d" {
            for dtype in [DType::F16, DType::F32] {
                for layout in [Contiguous, ChannelsLast] {
                    suite.add(op, format!("{dtype}::fours_large_{}", layout.name()), move |device| {
                        let x = shaped(op, &FOURS_LARGE.shape(axes), layout, dtype, operation.domain(), device)?;
                        operation.check(&FOURS_LARGE, &x)
                    });
                }
            }
        }
        for dtype in operation.dtypes().into_iter().filter(|dtype| dtype.is_float()) {
            suite.add(op, format!("{dtype}::nan_and_infinity"), move |device| {
                for problem in [Problem { slide: PADDED, ..PLAIN }, FOURS] {
                    let mut x = shaped(op, &problem.shape(axes), Contiguous, dtype, operation.domain(), device)?;
                    let special = [(0, f64::NAN), (8, f64::INFINITY), (17, f64::NEG_INFINITY), (23, f64::NAN)];
                    for (place, special) in special {
                        *x.values.iter_mut().nth(place).unwrap() = special;
                    }
                    x.tensor = crate::compare::upload(&x.values, dtype, device)?;
                    operation.check(&problem, &x)?;
                    if axes == 2 {
                        x.tensor = super::conv::channels_last(&x.tensor)?;
                        operation.check(&problem, &x)?;
                    }
                }
                Ok(())
            });
            suite.add(op, format!("{dtype}::unbatched"), move |device| {
                let problem = Problem { outer: [1, 3], ..PLAIN };
                let x = shaped(op, &problem.shape(axes), Contiguous, dtype, operation.domain(), device)?;
                let expected = operation.expected(&problem, &x);
                let shape = expected.values.shape()[1..].to_vec();
                check(op, &(operation.call)(&x.tensor.squeeze(0)?, &problem.config(axes))?, &expected.reshaped(&shape))
            });
        }
    }
    for operation in &ADAPTIVE {
        let &(op, axes, fold, _) = operation;
        let dtypes = match fold {
            _ if axes != 2 && !full_tier() => vec![DType::F32],
            Fold::Max => DType::ALL.to_vec(),
            _ => floats().collect(),
        };
        for dtype in dtypes {
            for (name, counts) in [
                ("few", [2, 3, 4]),
                ("more_than_there_are", [6, 10, 11]),
                ("one", [1, 1, 1]),
                ("even", [2, 7, 3]),
                ("none", [2, 0, 0]),
            ] {
                suite.add(op, format!("{dtype}::{name}"), move |device| {
                    for layout in [Contiguous, Transposed, Sliced] {
                        let shape = PLAIN.shape(axes);
                        let x = shaped(op, &shape, layout, dtype, Domain::Normal, device)?;
                        check_adaptive(operation, &x, counts)?;
                    }
                    Ok(())
                });
            }
        }
    }
    for dtype in floats() {
        suite.add("global_avg_pool", format!("{dtype}::axes"), move |device| {
            for axes in 1..4 {
                let x = shaped("global", &PLAIN.shape(axes), Sliced, dtype, Domain::Normal, device)?;
                let operation: Adaptive = ("global_avg_pool", axes, Fold::Average, |x, _| x.global_avg_pool());
                check_adaptive(&operation, &x, [1; 3])?;
                let operation: Adaptive = ("global_max_pool", axes, Fold::Max, |x, _| x.global_max_pool());
                check_adaptive(&operation, &x, [1; 3])?;
            }
            Ok(())
        });
    }
}
