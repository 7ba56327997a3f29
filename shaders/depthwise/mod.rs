//! Depthwise convolutions (each channel has a kernel of its own), convolutions of groups of 4 or 8 channels, and max
//! pooling. Memory limits them. So each invocation computes several neighbouring outputs from registers, and loads each
//! input once for all of them.

mod input;
mod maxima;

use super::elements::{Strides, lowest, take_apart};
use super::epilogue::{self, Epilogue, Finishing, Outputs};
use super::parameters::{Each, Form, Size, View, parameters, times};
use super::window::{DeclaredWindow, WindowForm};
use super::{Family, Units, volume};
use crate::base::dtype::DType;
use crate::shader::{KernelBuilder, Type, Value};
pub(crate) use input::Known;
use input::{Input, Padding, Source};
use std::cell::RefCell;

/// Invocations per workgroup, for each of the tiles below one another.
pub(crate) const WORKGROUP: u32 = 64;

/// What becomes of the elements of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum DepthwiseOp {
    /// The sum of their products with the factors of the channel. Padding is 0.
    Convolution,
    /// The same of groups of this many channels, a multiple of four, which lead to as many outputs: each channel has
    /// factors for all of them. Channels come last, and a load has four of them.
    Groups(u32),
    /// The largest one. Padding does not count.
    Max,
}

/// Windows that slide over images with a stride, and have no dilation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Depthwise {
    pub op: DepthwiseOp,
    pub dtype: DType,
    /// The dtype of the results.
    pub output: DType,
    pub quads: QuadAxis,
    /// The number of inputs that are loaded at once, from multiples of this number on: 1, 4, or 8 of 16 bits each.
    pub load: u32,
    /// Rows and columns of the kernel.
    pub kernel: [u32; 2],
    pub stride: [u32; 2],
    /// Rows and columns of outputs that an invocation computes. Columns count quads, if these are along them.
    pub tile: [u32; 2],
    /// How many tiles of a workgroup lie below one another. They share rows of inputs through the first cache.
    pub stacked: u32,
    /// Whether maxima of `f16` are found two at a time, by the device's arithmetic of halves. The device keeps
    /// subnormal halves, and a load has several elements.
    pub by_halves: bool,
    /// What all tiles have in common along rows and columns.
    pub known: [Known; 2],
    pub epilogue: Option<Box<Epilogue>>,
}

/// The axis along which four outputs are computed together, as they lie side by side in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum QuadAxis {
    /// An invocation computes as many channels as it loads at once, 4 or 8.
    Channels,
    /// The number of columns is a multiple of four. The first tap is this many columns behind a place where a load may
    /// begin.
    Columns(u32),
}

parameters! {
    config: Depthwise;
    host: Parameters;
    device: Declared;
    images: Size,
    channels: Size,
    /// The windows along rows and columns.
    windows: Each<WindowForm> = times(2),
    /// Along images, channels, rows and columns.
    x: View = View(4),
    /// Along channels and taps. In a group, along channels of the output, and taps times channels of the input.
    weight: Option<View> = (config.op != DepthwiseOp::Max).then_some(View(2)),
    epilogue: Option<Epilogue> => config.epilogue.as_deref(),
}

impl DepthwiseOp {
    /// The number of channels that each output combines.
    fn channels(self) -> u32 {
        match self {
            DepthwiseOp::Groups(channels) => channels,
            _ => 1,
        }
    }
}

impl Depthwise {
    /// Returns the outputs that an invocation computes, along channels, rows and columns.
    pub fn outputs(&self) -> [u32; 3] {
        let [rows, columns] = self.tile;
        match self.quads {
            QuadAxis::Channels => [self.load, rows, columns],
            QuadAxis::Columns(_) => [1, rows, 4 * columns],
        }
    }

    /// Returns the number of workgroups for these images, channels, rows and columns of outputs.
    pub fn groups(&self, [images, lengths @ ..]: [usize; 4]) -> usize {
        let [channels, rows, columns] = self.outputs();
        let each = lengths.iter().zip([channels, rows * self.stacked, columns]);
        let stacks = each.fold(images, |n, (length, own)| n.saturating_mul(length.div_ceil(own as usize)));
        stacks.div_ceil(WORKGROUP as usize)
    }
}

/// Where an invocation's outputs are.
struct Place<'k> {
    image: Value<'k>,
    channel: Value<'k>,
    row: Value<'k>,
    column: Value<'k>,
}

impl Depthwise {
    /// Neighbouring invocations have neighbours in memory.
    fn place<'k>(&self, k: &'k KernelBuilder, channels: Value<'k>, windows: &[DeclaredWindow<'k>]) -> Place<'k> {
        let [own_channels, own_rows, own_columns] = self.outputs();
        let (stack, below) = match self.stacked {
            1 => (k.global_index(), k.u32(0)),
            _ => {
                let local = k.local_index();
                (k.group_index() * WORKGROUP + local % WORKGROUP, local / WORKGROUP)
            }
        };
        let blocks = |length: Value<'k>, own: u32| if own == 1 { length } else { (length + (own - 1)) / own };
        let [channels, rows, columns] =
            [(channels, own_channels), (windows[0].output, own_rows * self.stacked), (windows[1].output, own_columns)]
                .map(|(length, own)| blocks(length, own));
        let (image, [channel, row, column]) = match self.quads {
            QuadAxis::Channels => {
                let (image, at) = take_apart(stack, &[rows, columns, channels]);
                (image, [at[2], at[0], at[1]])
            }
            QuadAxis::Columns(_) => {
                let (image, at) = take_apart(stack, &[channels, rows, columns]);
                (image, [at[0], at[1], at[2]])
            }
        };
        let row = (row * self.stacked + below) * own_rows;
        Place { image, channel: channel * own_channels, row, column: column * own_columns }
    }

    /// Returns the index of an invocation's first output, and the strides of its rows and columns.
    fn outputs_at<'k>(
        &self,
        Place { image, channel, row, column }: &Place<'k>,
        channels: Value<'k>,
        windows: &[DeclaredWindow<'k>],
    ) -> (Value<'k>, [Value<'k>; 2]) {
        let [rows, columns] = [windows[0].output, windows[1].output];
        match self.quads {
            QuadAxis::Channels => {
                let index = ((*image * rows + *row) * columns + *column) * channels + *channel;
                (index, [columns * channels, channels])
            }
            QuadAxis::Columns(_) => {
                let index = ((*image * channels + *channel) * rows + *row) * columns + *column;
                (index, [columns, channels.literal(1)])
            }
        }
    }
}

/// The factors of an invocation's channels. A factor is loaded when it is used first.
struct Factors<'k> {
    op: DepthwiseOp,
    k: &'k KernelBuilder,
    weight: Source<'k>,
    at: Strides<'k>,
    channel: Value<'k>,
    loaded: RefCell<Vec<Option<Vec<Value<'k>>>>>,
}

impl<'k> Factors<'k> {
    /// Returns the factors of a tap, for the quads of the invocation's channels. In a group, for each of its channels.
    fn of_tap(&self, tap: u32) -> Vec<Value<'k>> {
        let channels = self.op.channels();
        let load = || {
            let places = (0..channels).map(|i| self.at.at(&[self.channel, self.k.u32(tap * channels + i)]));
            let factors = places.flat_map(|place| self.weight.load(place));
            factors.map(|factor| if factor.ty().lanes == 4 { factor } else { factor.splat(4) }).collect()
        };
        self.loaded.borrow_mut()[tap as usize].get_or_insert_with(load).clone()
    }

    /// Returns the sum with the products of elements and their factors added to it. The elements are a quad of channels
    /// or of columns, or all quads of a group.
    fn add(&self, sum: Value<'k>, elements: &[Value<'k>], factors: &[Value<'k>]) -> Value<'k> {
        let channels = match self.op {
            DepthwiseOp::Groups(_) => elements.iter().flat_map(|quad| quad.lanes()).map(|x| x.splat(4)).collect(),
            _ => elements.to_vec(),
        };
        let add = |sum: Value<'k>, (x, &factor): (Value<'k>, &Value<'k>)| {
            if x.ty().is_float() { x.fma(factor, sum) } else { sum + x * factor }
        };
        channels.into_iter().zip(factors).fold(sum, add)
    }
}

impl Finishing for Depthwise {
    fn width(&self) -> u32 {
        4
    }

    fn stored(&self) -> DType {
        self.output
    }

    fn columns(&self, parameters: &Parameters) -> usize {
        if self.quads == QuadAxis::Channels { parameters.channels } else { 1 }
    }

    fn with_epilogue(&self, epilogue: Box<Epilogue>) -> Self {
        Depthwise { epilogue: Some(epilogue), ..self.clone() }
    }

    fn finished(parameters: &Parameters, epilogue: epilogue::Parameters) -> Parameters {
        Parameters { epilogue: Some(epilogue), ..parameters.clone() }
    }
}

impl Family for Depthwise {
    fn products(&self, Parameters { images, channels, windows, .. }: &Parameters) -> u64 {
        let sizes = windows.iter().flat_map(|window| [window.output, window.kernel]);
        let each = self.op.channels() as usize;
        volume(&[*images, *channels, each].into_iter().chain(sizes).collect::<Vec<_>>())
    }

    fn units(&self) -> Units {
        Units::of(self.dtype)
    }

    fn name(&self) -> String {
        let Depthwise { op, dtype, output, kernel: [height, width], stride: [down, across], .. } = self;
        let op = format!("{op:?}").to_lowercase();
        let narrowed = if *output == dtype.widened() { "" } else { " narrowed" };
        let by = match self.quads {
            QuadAxis::Channels => "channels",
            QuadAxis::Columns(_) => "columns",
        };
        let load = self.load;
        let [_, rows, columns] = self.outputs();
        let stacked = if self.stacked == 1 { String::new() } else { format!(", {} stacked", self.stacked) };
        let halves = if self.by_halves { ", halves" } else { "" };
        let tile = format!("{rows}x{columns} by {by} x{load}{stacked}{halves}");
        let name = format!("depthwise {op}({dtype}{narrowed}, {height}x{width}, stride {down}x{across}, {tile})");
        self.epilogue.as_ref().map_or_else(|| name.clone(), |y| format!("{name}, {}", y.expr.describe()))
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP * self.stacked
    }

    fn write(&self, k: &KernelBuilder) {
        let Declared { images, channels, windows, x: at, weight: weight_at, epilogue } = self.declare(k);
        let by_channels = self.quads == QuadAxis::Channels;
        // Otherwise Intel's compiler spills hundreds of registers.
        k.narrow_subgroups();
        if self.tile.iter().product::<u32>() >= 6 || self.op.channels() > 1 {
            k.large_registers();
        }
        let x = Source::new(k, "x", self.dtype, self.load);
        let weight =
            weight_at.map(|at| (Source::new(k, "weight", self.dtype, if by_channels { self.load } else { 1 }), at));
        let columns_of_rows = by_channels.then_some(channels);
        let y = Outputs::new(k, self.output, 4, self.epilogue.as_deref().zip(epilogue), columns_of_rows);

        let place = self.place(k, channels, &windows);
        let is_inside = place.image.lt(images);
        // The last stack may reach beyond the image.
        let is_whole = self.stacked == 1 || self.known[0].outputs;
        let is_inside = if is_whole { is_inside } else { is_inside & place.row.lt(windows[0].output) };
        k.when(is_inside, || {
            let [down, along] = self.stride;
            let [height, width] = self.kernel;
            let [rows, fours] = self.tile;
            let zero = k.u32(0);
            let (initial, padding) = match self.op {
                DepthwiseOp::Convolution | DepthwiseOp::Groups(_) => {
                    (k.number(Type { scalar: self.dtype.compute_scalar(), lanes: 1 }, 0), Padding::Zero)
                }
                // An element beside the padding changes no maximum: padding is shorter than a window, so each window
                // that reaches into it holds that element.
                DepthwiseOp::Max if by_channels => (lowest(k, self.dtype), Padding::Nearest),
                DepthwiseOp::Max => (lowest(k, self.dtype), Padding::Number(lowest(k, self.dtype))),
            };
            let is_grouped = self.op.channels() > 1;
            let first_channel = match self.op {
                DepthwiseOp::Groups(channels) => place.channel / channels * channels,
                _ => place.channel,
            };
            let input = Input {
                x,
                first: at.at(&[place.image, first_channel, zero, zero]),
                at,
                row: place.row * down - windows[0].before,
                column: place.column * along - windows[1].before,
                lengths: [windows[0].input, windows[1].input],
                known: &self.known,
                quads: self.quads,
                load: self.load,
                loads: if is_grouped { self.op.channels() / self.load } else { 1 },
                padding,
            };
            let loaded = RefCell::new(vec![None; (height * width) as usize]);
            let channel = place.channel;
            let factors = weight.map(|(weight, at)| Factors { op: self.op, k, weight, at, channel, loaded });
            // The quads of channels, and the columns of a quad.
            let (quads, each) = if by_channels { (self.load / 4, 1) } else { (1, 4) };
            let folded: Vec<_> = (0..rows * fours * quads).map(|_| k.var(initial.splat(4))).collect();
            let fold = || {
                for row in 0..(rows - 1) * down + height {
                    let loaded = input.row(row, (fours * each - 1) * along + width);
                    let elements = |first: u32| match by_channels {
                        true => loaded[first as usize].clone(),
                        false => vec![k.vector(&[0, 1, 2, 3].map(|e| loaded[(first + e * along) as usize][0]))],
                    };
                    // The outputs that this row of inputs belongs to, and the row of the kernel that it meets there.
                    let met =
                        (0..rows).filter_map(|r| Some((r, row.checked_sub(r * down).filter(|&tap| tap < height)?)));
                    for (r, tap) in met.flat_map(|(r, row)| (0..width).map(move |column| (r, row * width + column))) {
                        let factors = factors.as_ref().map(|all| (all, all.of_tap(tap)));
                        for (c, q) in (0..fours).flat_map(|c| (0..quads).map(move |q| (c, q))) {
                            let folded = &folded[((r * fours + c) * quads + q) as usize];
                            let (elements, q) = (elements(c * each * along + tap % width), q as usize);
                            folded.set(match &factors {
                                None => folded.get().max(elements[q]),
                                Some((all, of_tap)) if is_grouped => all.add(folded.get(), &elements, of_tap),
                                Some((all, of_tap)) => all.add(folded.get(), &elements[q..=q], &of_tap[q..=q]),
                            });
                        }
                    }
                }
            };
            // Through WGSL, words do not become halves.
            if self.by_halves && !k.target().wgsl {
                let (maxima, any_nan) = self.maxima_of_halves(k, &input);
                folded.iter().zip(maxima).for_each(|(folded, maximum)| folded.set(maximum));
                k.when(any_nan, || {
                    folded.iter().for_each(|folded| folded.set(initial.splat(4)));
                    fold();
                });
            } else {
                fold();
            }
            let (first, [row_stride, column_stride]) = self.outputs_at(&place, channels, &windows);
            for (i, results) in (0..).zip(folded.chunks(quads as usize)) {
                let (row, column) = (i / fours, i % fours * each);
                let index = first + row_stride * row + column_stride * column;
                let store = || (0..).zip(results).for_each(|(quad, result)| y.store(k, index + 4 * quad, result.get()));
                let places = [place.row + row, place.column + column];
                let inside = places.iter().zip(&windows).zip(&self.known).filter(|(_, known)| !known.outputs);
                match inside.map(|((&place, window), _)| place.lt(window.output)).reduce(|a, b| a & b) {
                    Some(is_inside) => _ = k.when(is_inside, store),
                    None => store(),
                }
            }
        });
    }

    fn samples() -> Vec<Self> {
        let sample = |dtype, quads, load, kernel, stride, tile| Depthwise {
            op: DepthwiseOp::Convolution,
            dtype,
            output: dtype,
            quads,
            load,
            kernel: [kernel; 2],
            stride: [stride; 2],
            tile,
            stacked: 1,
            by_halves: false,
            known: Default::default(),
            epilogue: None,
        };
        let samples = [
            sample(DType::F32, QuadAxis::Channels, 4, 3, 1, [4, 4]),
            sample(DType::F16, QuadAxis::Channels, 8, 5, 2, [1, 2]),
            sample(DType::F16, QuadAxis::Columns(7), 8, 3, 1, [2, 1]),
            sample(DType::I32, QuadAxis::Columns(0), 1, 3, 2, [1, 1]),
            Depthwise { stacked: 2, ..sample(DType::F32, QuadAxis::Channels, 4, 5, 1, [2, 4]) },
            Depthwise {
                known: [0..16, 4..20].map(|inputs| Known { inputs, outputs: true }),
                ..sample(DType::F16, QuadAxis::Columns(3), 4, 3, 1, [14, 1])
            },
            sample(DType::F16, QuadAxis::Channels, 4, 5, 1, [4, 2]),
        ];
        let finished = samples[0].with_epilogue(epilogue::sample());
        let max = [0, 1, 2, 3].map(|i: usize| {
            let by_halves = samples[i].dtype == DType::F16;
            Depthwise { op: DepthwiseOp::Max, by_halves, ..samples[i].clone() }
        });
        let (op, dtype) = (DepthwiseOp::Groups(8), DType::F16);
        let groups = Depthwise { op, dtype, output: dtype, tile: [1, 4], ..samples[0].clone() };
        samples.into_iter().chain([finished, groups]).chain(max).collect()
    }
}
