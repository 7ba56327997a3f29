//! Convolutions and transposed convolutions.

use super::{numbers, shaped};
use crate::compare::{Expected, Sample, check};
use crate::full_tier;
use crate::layouts::Layout;
use crate::reference::array;
use crate::reference::inputs::{Domain, Inputs};
use crate::reference::numbers::summed;
use crate::reference::window::{Slide, conv, conv_transpose};
use crate::suite::{Outcome, Suite};
use crate::tolerance::{EPS, EXACT, Table, Tolerance};
use marquetry::{ConvConfig, DType, Device, Result, Tensor};

pub const TOLERANCES: Table = &[(
    &["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"],
    Tolerance {
        ulp: 0.5,
        of_scale: EPS,
        reason: "n products and additions, within eps of the sum of magnitudes",
        ..EXACT
    },
)];

/// The dtypes with all cases. The others share the special code of these, and get a few telling cases.
const DTYPES: [DType; 4] = [DType::F32, DType::F16, DType::I32, DType::U32];

struct Operation {
    name: &'static str,
    axes: usize,
    transposed: bool,
    call: fn(&Tensor, &Tensor, Option<&Tensor>, &ConvConfig) -> Result<Tensor>,
}

const OPERATIONS: [Operation; 6] = [
    Operation { name: "conv1d", axes: 1, transposed: false, call: Tensor::conv1d },
    Operation { name: "conv2d", axes: 2, transposed: false, call: Tensor::conv2d },
    Operation { name: "conv3d", axes: 3, transposed: false, call: Tensor::conv3d },
    Operation { name: "conv_transpose1d", axes: 1, transposed: true, call: Tensor::conv_transpose1d },
    Operation { name: "conv_transpose2d", axes: 2, transposed: true, call: Tensor::conv_transpose2d },
    Operation { name: "conv_transpose3d", axes: 3, transposed: true, call: Tensor::conv_transpose3d },
];

/// Images, groups, channels per group, and the lengths of each axis. Operations with fewer axes use the last lengths.
#[derive(Debug, Clone, Copy)]
struct Problem {
    images: usize,
    groups: usize,
    input: usize,
    output: usize,
    length: [usize; 3],
    kernel: [usize; 3],
    slide: Slide,
    bias: bool,
}

const PLAIN: Problem = Problem {
    images: 2,
    groups: 1,
    input: 3,
    output: 4,
    length: [3, 7, 9],
    kernel: [2, 3, 3],
    slide: Slide::PLAIN,
    bias: true,
};

/// Padding with one zero on both sides of every axis.
const PADDED: Slide = Slide { padding: [(1, 1); 3], ..Slide::PLAIN };

/// The problems of an operation for a dtype. The code that skips taps is the same for all dtypes, so the quick tier
/// tests it with one. It tests windows, groups and fours with floats and without transposed operations, and phases with
/// these only.
fn problems(operation: &Operation, dtype: DType) -> impl Iterator<Item = (&'static str, Problem)> {
    let all = dtype == DType::F32 || full_tier();
    let many = all || dtype == DType::F16;
    let windows = !operation.transposed && matches!(dtype, DType::F32 | DType::F16) || full_tier();
    let of_windows = ["windows", "fours", "grouped_"];
    let is_of_windows = move |name: &str| of_windows.iter().any(|first| name.starts_with(first));
    let phases = operation.transposed || full_tier();
    PROBLEMS
        .into_iter()
        .filter(move |(name, _)| all || !name.starts_with("long_kernel"))
        .filter(move |(name, _)| many || !name.starts_with("fours_large"))
        .filter(move |(name, _)| windows || !is_of_windows(name))
        .filter(move |(name, _)| phases || !name.starts_with("phases"))
}

const PROBLEMS: [(&str, Problem); 41] = [
    ("plain", PLAIN),
    ("no_bias", Problem { bias: false, ..PLAIN }),
    ("padded", Problem { slide: PADDED, ..PLAIN }),
    ("one_side", Problem { slide: Slide { padding: [(0, 1), (0, 2), (3, 0)], ..Slide::PLAIN }, ..PLAIN }),
    ("strided", Problem { slide: Slide { stride: [2, 2, 3], ..PADDED }, ..PLAIN }),
    ("long_stride", Problem { slide: Slide { stride: [4, 5, 4], ..Slide::PLAIN }, ..PLAIN }),
    ("dilated", Problem { slide: Slide { dilation: [2, 2, 3], ..PADDED }, ..PLAIN }),
    (
        "dilated_strided",
        Problem { slide: Slide { dilation: [2, 4, 3], stride: [2, 2, 3], ..PADDED }, length: [5, 9, 9], ..PLAIN },
    ),
    (
        "dilated_apart",
        Problem { slide: Slide { dilation: [3, 3, 2], stride: [2, 2, 3], ..PADDED }, length: [5, 9, 9], ..PLAIN },
    ),
    ("grouped", Problem { groups: 3, slide: PADDED, ..PLAIN }),
    ("depthwise", Problem { groups: 6, input: 1, output: 1, slide: PADDED, ..PLAIN }),
    (
        "depthwise_two",
        Problem { groups: 3, input: 1, output: 2, slide: Slide { stride: [1, 2, 2], ..PADDED }, ..PLAIN },
    ),
    ("fours", Problem { groups: 8, input: 1, output: 1, length: [2, 5, 8], slide: PADDED, ..PLAIN }),
    (
        "fours_strided",
        Problem {
            groups: 12,
            input: 1,
            output: 1,
            length: [1, 9, 15],
            kernel: [1, 5, 4],
            slide: Slide { stride: [1, 3, 2], padding: [(0, 0), (3, 2), (2, 1)], ..Slide::PLAIN },
            ..PLAIN
        },
    ),
    // More outputs than an invocation computes, of more images than one.
    (
        "fours_large",
        Problem { groups: 132, input: 1, output: 1, length: [1, 21, 40], kernel: [1, 3, 3], slide: PADDED, ..PLAIN },
    ),
    // The same, with rows and columns that are no multiples of what an invocation computes.
    (
        "fours_large_uneven",
        Problem { groups: 132, input: 1, output: 1, length: [1, 22, 37], kernel: [1, 3, 4], slide: PADDED, ..PLAIN },
    ),
    ("pointwise", Problem { kernel: [1; 3], input: 20, output: 18, ..PLAIN }),
    ("pointwise_strided", Problem { kernel: [1; 3], slide: Slide { stride: [2; 3], ..Slide::PLAIN }, ..PLAIN }),
    (
        "larger_than_input",
        Problem {
            length: [1, 2, 3],
            kernel: [3, 5, 5],
            slide: Slide { padding: [(1, 1), (2, 1), (1, 1)], ..Slide::PLAIN },
            ..PLAIN
        },
    ),
    ("whole_input", Problem { length: [2, 3, 4], kernel: [2, 3, 4], ..PLAIN }),
    (
        "beyond_tiles",
        Problem { images: 1, input: 17, output: 67, length: [2, 9, 11], kernel: [1, 3, 2], slide: PADDED, ..PLAIN },
    ),
    ("few_rows_of_many", Problem { images: 1, output: 5, length: [2, 12, 33], slide: PADDED, ..PLAIN }),
    // Most taps of these kernels meet padding.
    (
        "long_kernel",
        Problem {
            input: 2,
            length: [1, 2, 3],
            kernel: [1, 3, 150],
            slide: Slide { padding: [(0, 0), (2, 1), (149, 140)], ..Slide::PLAIN },
            ..PLAIN
        },
    ),
    (
        "long_kernel_transposed",
        Problem {
            input: 2,
            length: [1, 2, 3],
            kernel: [1, 3, 150],
            slide: Slide { stride: [1, 2, 2], ..Slide::PLAIN },
            ..PLAIN
        },
    ),
    (
        "long_kernel_dilated",
        Problem {
            input: 2,
            output: 17,
            length: [1, 5, 3],
            kernel: [1, 2, 300],
            slide: Slide {
                stride: [1, 2, 3],
                dilation: [1, 1, 2],
                padding: [(0, 0), (1, 0), (298, 300)],
                ..Slide::PLAIN
            },
            ..PLAIN
        },
    ),
    (
        "long_kernel_across",
        Problem {
            length: [1, 3, 5],
            kernel: [1, 70, 2],
            slide: Slide { padding: [(0, 0), (30, 39), (0, 0)], ..Slide::PLAIN },
            ..PLAIN
        },
    ),
    // Enough channels for products of windows.
    ("windows", Problem { input: 16, output: 24, length: [2, 6, 7], slide: PADDED, ..PLAIN }),
    (
        "windows_odd",
        Problem {
            input: 5,
            output: 33,
            length: [3, 8, 9],
            slide: Slide { stride: [1, 2, 3], dilation: [1, 2, 1], padding: [(1, 0), (2, 1), (0, 3)], ..Slide::PLAIN },
            ..PLAIN
        },
    ),
    (
        "windows_beyond",
        Problem {
            input: 9,
            output: 17,
            length: [1, 3, 4],
            kernel: [1, 3, 3],
            slide: Slide { dilation: [1, 5, 6], padding: [(0, 0), (5, 6), (6, 7)], ..Slide::PLAIN },
            ..PLAIN
        },
    ),
    (
        "windows_deep",
        Problem { images: 3, input: 40, output: 40, length: [1, 5, 6], kernel: [1, 3, 3], slide: PADDED, ..PLAIN },
    ),
    (
        "windows_of_one",
        Problem { kernel: [1; 3], input: 40, output: 18, slide: Slide { stride: [2; 3], ..Slide::PLAIN }, ..PLAIN },
    ),
    ("grouped_windows", Problem { groups: 2, input: 24, output: 32, length: [2, 14, 15], slide: PADDED, ..PLAIN }),
    (
        "grouped_windows_odd",
        Problem { groups: 3, input: 17, output: 25, length: [1, 22, 23], kernel: [1, 3, 2], slide: PADDED, ..PLAIN },
    ),
    ("grouped_eights", Problem { groups: 3, input: 8, output: 8, length: [2, 7, 11], slide: PADDED, ..PLAIN }),
    ("grouped_fours", Problem { groups: 3, input: 4, length: [2, 7, 11], slide: PADDED, ..PLAIN }),
    (
        "grouped_fours_strided",
        Problem {
            groups: 5,
            input: 4,
            length: [1, 9, 15],
            kernel: [1, 3, 2],
            slide: Slide { stride: [1, 3, 2], padding: [(0, 0), (2, 1), (0, 1)], ..Slide::PLAIN },
            ..PLAIN
        },
    ),
    ("grouped_pointwise", Problem { groups: 3, kernel: [1; 3], input: 12, output: 20, ..PLAIN }),
    // Transposed, the phases have one or two taps along an axis, or none. They are large enough for products.
    (
        "phases",
        Problem {
            input: 20,
            output: 24,
            length: [1, 11, 12],
            kernel: [1, 3, 4],
            slide: Slide { stride: [1, 2, 2], ..PADDED },
            ..PLAIN
        },
    ),
    // Transposed, each place has outputs of its own.
    (
        "phases_without_overlaps",
        Problem {
            input: 20,
            output: 9,
            length: [2, 4, 5],
            kernel: [1, 3, 2],
            slide: Slide { stride: [1, 3, 2], ..Slide::PLAIN },
            ..PLAIN
        },
    ),
    (
        "phases_apart",
        Problem {
            groups: 2,
            input: 17,
            output: 18,
            length: [1, 10, 12],
            kernel: [1, 5, 2],
            slide: Slide { stride: [1, 2, 3], dilation: [1, 2, 1], padding: [(0, 0), (3, 1), (1, 2)], ..Slide::PLAIN },
            ..PLAIN
        },
    ),
    ("one", Problem { images: 1, input: 1, output: 1, length: [1; 3], kernel: [1; 3], ..PLAIN }),
];

/// Problems with an axis of length 0, or with windows only in the padding.
const EMPTY: [(&str, Problem); 4] = [
    ("no_images", Problem { images: 0, ..PLAIN }),
    ("no_outputs", Problem { output: 0, ..PLAIN }),
    ("no_inputs", Problem { input: 0, ..PLAIN }),
    (
        "no_length",
        Problem { length: [3, 0, 4], slide: Slide { padding: [(1, 1), (1, 2), (1, 1)], ..Slide::PLAIN }, ..PLAIN },
    ),
];

impl Problem {
    fn weight_shape(&self, operation: &Operation) -> Vec<usize> {
        let channels = match operation.transposed {
            true => [self.groups * self.input, self.output],
            false => [self.groups * self.output, self.input],
        };
        [&channels, &self.kernel[3 - operation.axes..]].concat()
    }

    fn input_shape(&self, operation: &Operation) -> Vec<usize> {
        [&[self.images, self.groups * self.input], &self.length[3 - operation.axes..]].concat()
    }

    fn config(&self, operation: &Operation) -> ConvConfig {
        let first = 3 - operation.axes;
        let slide = self.slide;
        ConvConfig::default()
            .stride(&slide.stride[first..])
            .dilation(&slide.dilation[first..])
            .padding(&slide.padding[first..])
            .output_padding(&slide.output_padding[first..])
            .groups(self.groups)
    }

    /// The part of the slide for the operation's axes.
    fn slide_of(&self, operation: &Operation) -> Slide {
        let mut slide = Slide { groups: self.groups, ..self.slide };
        for axis in 0..3 - operation.axes {
            (slide.stride[axis], slide.dilation[axis]) = (1, 1);
            (slide.padding[axis], slide.output_padding[axis]) = ((0, 0), 0);
        }
        slide
    }

    /// True if a kernel of this operation fits.
    fn fits(&self, operation: &Operation) -> bool {
        (3 - operation.axes..3).all(|a| {
            let (before, after) = self.slide.padding[a];
            let extent = (self.kernel[a] - 1) * self.slide.dilation[a] + 1;
            match operation.transposed {
                true => {
                    self.length[a] > 0
                        && self.slide.output_padding[a] < self.slide.stride[a].max(self.slide.dilation[a])
                        && (self.length[a] - 1) * self.slide.stride[a] + extent + self.slide.output_padding[a]
                            >= before + after
                }
                false => before + self.length[a] + after >= extent,
            }
        })
    }
}

/// The three operands of a problem.
struct Operands {
    x: Sample,
    weight: Sample,
    bias: Option<Sample>,
}

impl Operation {
    /// True if the operation is tested with a dtype. Two axes have all dtypes; the others share the dtype-dependent
    /// code.
    fn takes(&self, dtype: DType) -> bool {
        full_tier()
            || match self.axes {
                2 if self.transposed => [DType::F32, DType::F16, DType::I32, DType::F64].contains(&dtype),
                2 => true,
                _ => dtype == DType::F32,
            }
    }

    fn operands(
        &self,
        problem: &Problem,
        layouts: [Layout; 2],
        dtype: DType,
        domain: Domain,
        device: &Device,
    ) -> Outcome<Operands> {
        let channels = problem.groups * problem.output;
        let bias = || shaped("conv bias", &[channels], Layout::Contiguous, summed(dtype), domain, device);
        Ok(Operands {
            x: shaped("conv input", &problem.input_shape(self), layouts[0], dtype, domain, device)?,
            weight: shaped("conv weight", &problem.weight_shape(self), layouts[1], dtype, domain, device)?,
            bias: problem.bias.then(bias).transpose()?,
        })
    }

    fn check(&self, problem: &Problem, operands: &Operands, exact: bool) -> Outcome {
        let Operands { x, weight, bias } = operands;
        let dtype = summed(x.tensor.dtype());
        let reference = if self.transposed { conv_transpose } else { conv };
        let bias_values = bias.as_ref().map(|bias| &bias.values);
        let (values, magnitudes) = reference(&x.values, &weight.values, bias_values, problem.slide_of(self), dtype);
        let shape = values.shape();
        let shape = [&shape[..2], &shape[5 - self.axes..]].concat();
        // The number of rounded products and additions. For `f64` the reference rounds as often.
        let depth = (problem.input * problem.kernel.iter().product::<usize>() + 2) as f64;
        let depth = if dtype == DType::F64 { 2.0 * depth } else { depth };
        let flat = |x: ndarray::Array5<f64>| array(&shape, x.into_iter().collect());
        let mut expected = Expected::new(flat(values), dtype).with_scale(flat(magnitudes) * depth);
        if exact {
            expected.scale = None;
        }
        let bias = bias.as_ref().map(|bias| &bias.tensor);
        let actual = (self.call)(&x.tensor, &weight.tensor, bias, &problem.config(self))?;
        check(self.name, &actual, &expected)
    }
}

/// Returns an image, or weights, with its channels last in memory.
pub fn channels_last(x: &Tensor) -> Result<Tensor> {
    let last = x.permute([0, 2, 3, 1])?.contiguous()?;
    last.realize()?;
    last.permute([0, 3, 1, 2])
}

/// Returns a random problem whose kernel fits. If it is deep, each group has enough channels for matrix products.
fn random_problem(inputs: &mut Inputs, operation: &Operation, is_deep: bool) -> Problem {
    loop {
        let mut three =
            |from: usize, to: usize| -> [usize; 3] { std::array::from_fn(|_| from + inputs.below(to - from)) };
        let (length, kernel, stride, dilation) = (three(1, 9), three(1, 5), three(1, 4), three(1, 4));
        let (before, after, output_padding) = (three(0, 4), three(0, 4), three(0, 3));
        let problem = Problem {
            images: inputs.below(3) + 1,
            groups: inputs.below(3) + 1,
            input: if is_deep { 12 + inputs.below(10) } else { inputs.below(4) + 1 },
            output: if is_deep { 16 + inputs.below(10) } else { inputs.below(10) + 1 },
            length: if is_deep { length.map(|length| length + 5) } else { length },
            kernel,
            slide: Slide {
                stride,
                dilation,
                padding: std::array::from_fn(|a| (before[a], after[a])),
                output_padding: if operation.transposed { output_padding } else { [0; 3] },
                groups: 1,
            },
            bias: true,
        };
        if problem.fits(operation) {
            return problem;
        }
    }
}

pub fn add(suite: &mut Suite) {
    use Layout::{Broadcast, Contiguous, Offset, Pending, PendingTransposed, Sliced, Transposed, Unaligned};
    for operation in &OPERATIONS {
        let op = operation.name;
        for dtype in numbers().filter(|&dtype| operation.takes(dtype)) {
            let few = !DTYPES.contains(&dtype) && !full_tier();
            for (name, problem) in
                problems(operation, dtype).chain(EMPTY).filter(|(_, problem)| problem.fits(operation))
            {
                if few && !["padded", "depthwise", "no_inputs"].contains(&name) {
                    continue;
                }
                suite.add(op, format!("{dtype}::{name}"), move |device| {
                    let operands = operation.operands(&problem, [Contiguous; 2], dtype, Domain::Normal, device)?;
                    operation.check(&problem, &operands, false)
                });
            }
            for layouts in [
                [Transposed, Contiguous],
                [Sliced, Contiguous],
                [Broadcast, Contiguous],
                [Unaligned, Unaligned],
                [Contiguous, Transposed],
                [Sliced, Sliced],
                [Contiguous, Broadcast],
                [Offset, Offset],
                [Pending, Contiguous],
                [PendingTransposed, Pending],
            ] {
                if few && layouts != [Sliced, Sliced] {
                    continue;
                }
                let [x, weight] = layouts.map(Layout::name);
                suite.add(op, format!("{dtype}::{x}_{weight}"), move |device| {
                    let problem = Problem { slide: PADDED, groups: 2, ..PLAIN };
                    let operands = operation.operands(&problem, layouts, dtype, Domain::Normal, device)?;
                    operation.check(&problem, &operands, false)
                });
            }
            if few && dtype.size_in_bytes() < 8 {
                continue;
            }
            // Sums of whole numbers are exact, so the tolerance cannot hide a missing product.
            suite.add(op, format!("{dtype}::exact"), move |device| {
                for (_, problem) in problems(operation, dtype).filter(|(_, problem)| problem.fits(operation)) {
                    let operands = operation.operands(&problem, [Contiguous; 2], dtype, Domain::Small, device)?;
                    operation.check(&problem, &operands, true)?;
                }
                Ok(())
            });
            suite.add(op, format!("{dtype}::random"), move |device| {
                let mut inputs = Inputs::new(op);
                for _ in 0..if full_tier() { 400 } else { 40 } {
                    let problem = random_problem(&mut inputs, operation, false);
                    let operands = operation.operands(&problem, [Contiguous; 2], dtype, Domain::Small, device)?;
                    operation.check(&problem, &operands, true).map_err(|e| format!("{problem:?}: {e:?}"))?;
                }
                Ok(())
            });
            // Channels last and first in turn.
            let are_products = operation.axes == 2 && dtype.size_in_bytes() <= 4;
            if are_products && (full_tier() || [DType::F32, DType::F16].contains(&dtype)) {
                suite.add(op, format!("{dtype}::random_deep"), move |device| {
                    let mut inputs = Inputs::new(op);
                    for turn in 0..if full_tier() { 60 } else { 6 } {
                        let problem = random_problem(&mut inputs, operation, true);
                        let mut operands =
                            operation.operands(&problem, [Contiguous; 2], dtype, Domain::Small, device)?;
                        if turn % 2 == 0 {
                            operands.x.tensor = channels_last(&operands.x.tensor)?;
                        }
                        operation.check(&problem, &operands, true).map_err(|e| format!("{problem:?}: {e:?}"))?;
                    }
                    Ok(())
                });
            }
            suite.add(op, format!("{dtype}::unbatched"), move |device| {
                let problem = Problem { images: 1, ..PLAIN };
                let Operands { x, weight, bias } =
                    operation.operands(&problem, [Contiguous; 2], dtype, Domain::Small, device)?;
                let config = problem.config(operation);
                let bias = bias.as_ref().map(|bias| &bias.tensor);
                let batched = (operation.call)(&x.tensor, &weight.tensor, bias, &config)?;
                let single = (operation.call)(&x.tensor.squeeze(0)?, &weight.tensor, bias, &config)?;
                let expected = Expected::new(crate::compare::download(&batched.squeeze(0)?)?, batched.dtype());
                check(op, &single, &expected)
            });
        }
        for (name, output_padding) in [("one", [0, 1, 1]), ("stride", [1, 0, 2])] {
            if operation.transposed {
                suite.add(op, format!("f32::output_padding_{name}"), move |device| {
                    let slide = Slide { stride: [2, 2, 3], output_padding, ..PADDED };
                    let problem = Problem { slide, ..PLAIN };
                    let operands = operation.operands(&problem, [Contiguous; 2], DType::F32, Domain::Normal, device)?;
                    operation.check(&problem, &operands, false)
                });
            }
        }
    }
    // Channels last, as in an image of bytes. If the weights lie so, too, they are not copied.
    for (dtype, weight_too) in DTYPES.into_iter().flat_map(|dtype| [false, true].map(|weight_too| (dtype, weight_too)))
    {
        let name = if weight_too { "channels_last_weight" } else { "channels_last" };
        suite.add("conv2d", format!("{dtype}::{name}"), move |device| {
            let operation = &OPERATIONS[1];
            let names = ["padded", "point", "windows", "depthwise", "grouped"];
            let of_fours = |name: &str| weight_too && ["fours", "fours_strided"].contains(&name);
            let is_tested = |name: &str| names.iter().any(|first| name.starts_with(first)) || of_fours(name);
            for (name, problem) in PROBLEMS.into_iter().filter(|(name, _)| is_tested(name)) {
                let mut operands = operation.operands(&problem, [Contiguous; 2], dtype, Domain::Small, device)?;
                operands.x.tensor = channels_last(&operands.x.tensor)?;
                if weight_too {
                    operands.weight.tensor = channels_last(&operands.weight.tensor)?;
                }
                operation.check(&problem, &operands, true).map_err(|e| format!("{name}: {e:?}"))?;
            }
            Ok(())
        });
        if weight_too {
            continue;
        }
        for (name, problem) in PROBLEMS.into_iter().filter(|(name, _)| name.starts_with("fours")) {
            suite.add("conv2d", format!("{dtype}::channels_last_{name}"), move |device| {
                let operation = &OPERATIONS[1];
                let mut operands = operation.operands(&problem, [Contiguous; 2], dtype, Domain::Small, device)?;
                let x = operands.x.tensor;
                operands.x.tensor = channels_last(&x)?;
                operation.check(&problem, &operands, true)?;
                if name.starts_with("fours_large") {
                    return Ok(());
                }
                // The same elements, backwards in memory.
                operands.x.tensor = channels_last(&x.flip([2, 3])?)?.flip([2, 3])?;
                operation.check(&problem, &operands, true)
            });
        }
    }
    // Elements that meet no window of an output do not count, even if they are infinite.
    const PLAIN_ONES: [&str; 8] = [
        "padded",
        "windows",
        "windows_odd",
        "fours",
        "pointwise",
        "grouped_windows_odd",
        "grouped_fours",
        "grouped_pointwise",
    ];
    for (operation, names) in
        [(&OPERATIONS[1], &PLAIN_ONES[..]), (&OPERATIONS[4], &["phases", "phases_apart", "phases_without_overlaps"])]
    {
        for dtype in [DType::F32, DType::F16] {
            suite.add(operation.name, format!("{dtype}::infinite_input"), move |device| {
                for (name, problem) in PROBLEMS.into_iter().filter(|(name, _)| names.contains(name)) {
                    let mut operands = operation.operands(&problem, [Contiguous; 2], dtype, Domain::Normal, device)?;
                    operands.x.values[[0, 1, 3, 3]] = f64::INFINITY;
                    operands.x.values[[1, 0, 0, 0]] = f64::NAN;
                    let first = crate::compare::upload(&operands.x.values, dtype, device)?;
                    for x in [channels_last(&first)?, first] {
                        operands.x.tensor = x;
                        operation.check(&problem, &operands, false).map_err(|e| format!("{name}: {e:?}"))?;
                    }
                }
                Ok(())
            });
        }
    }
    // Channels that come last and begin within a run of several, or weights that are a part of more channels.
    for dtype in [DType::F32, DType::F16] {
        // The stride of a single image's axis does not matter, and is 1 here.
        suite.add("conv2d", format!("{dtype}::channels_last_single"), move |device| {
            let operation = &OPERATIONS[1];
            let problem = Problem { images: 1, input: 24, output: 24, kernel: [1, 3, 3], slide: PADDED, ..PLAIN };
            let mut operands = operation.operands(&problem, [Contiguous; 2], dtype, Domain::Small, device)?;
            let last = operands.x.tensor.permute([2, 3, 1, 0])?.contiguous()?;
            operands.x.tensor = last.permute([3, 2, 0, 1])?;
            assert_eq!(operands.x.tensor.strides()[0], 1);
            operation.check(&problem, &operands, true)
        });
        suite.add("conv2d", format!("{dtype}::channels_last_parts"), move |device| {
            let operation = &OPERATIONS[1];
            for (name, problem) in PROBLEMS.into_iter().filter(|(name, _)| ["windows", "fours"].contains(name)) {
                let mut operands = operation.operands(&problem, [Contiguous; 2], dtype, Domain::Small, device)?;
                let flat = |x: &Tensor| x.permute([0, 2, 3, 1])?.contiguous()?.flatten_all();
                let begin = |x: &Tensor, by: usize| -> Result<Tensor> {
                    let dims = x.dims();
                    let last = [dims[0], dims[2], dims[3], dims[1]];
                    let all = Tensor::cat(&[&flat(x)?.narrow(0, 0, by)?, &flat(x)?], 0)?;
                    all.realize()?;
                    all.narrow(0, by, x.elem_count())?.reshape(last)?.permute([0, 3, 1, 2])
                };
                // Two more channels follow each weight's own ones.
                let wide = Tensor::cat(&[&operands.weight.tensor, &operands.weight.tensor.narrow(0, 0, 2)?], 0)?;
                let wide = channels_last(&wide.transpose(0, 1)?)?.transpose(0, 1)?;
                let [x, weight] = [operands.x.tensor.clone(), operands.weight.tensor.clone()];
                for by in [1, 4, 6] {
                    operands.x.tensor = begin(&x, by)?;
                    for part in [begin(&weight, by)?, wide.narrow(0, 0, weight.dims()[0])?] {
                        operands.weight.tensor = part;
                        operation.check(&problem, &operands, true).map_err(|e| format!("{name}, {by}: {e:?}"))?;
                    }
                }
            }
            Ok(())
        });
    }
}
