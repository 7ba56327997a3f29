//! Depthwise convolutions, in which each channel has a kernel of its own, and max pooling. Memory limits both, so each
//! invocation computes several neighbouring outputs from registers, and loads each input once for all of them.

use super::elements::{Elements, Quads, Strides, lowest, take_apart};
use super::epilogue::{self, Epilogue, Finishing, Outputs};
use super::parameters::{Each, Form, Size, View, parameters, times};
use super::window::{DeclaredWindow, WindowForm};
use super::{Family, Units, volume};
use crate::base::dtype::DType;
use crate::shader::{KernelBuilder, Type, Value};
use std::cell::RefCell;

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 64;

/// What becomes of the elements of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum DepthwiseOp {
    /// The sum of their products with the factors of the channel. Padding is 0.
    Convolution,
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
    /// Rows and columns of the kernel.
    pub kernel: [u32; 2],
    pub stride: [u32; 2],
    /// Rows and columns of outputs that an invocation computes. Columns count quads, if these are along them.
    pub tile: [u32; 2],
    pub epilogue: Option<Box<Epilogue>>,
}

/// The axis along which four outputs are computed together, as they lie side by side in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum QuadAxis {
    /// Inputs are loaded by fours, too, from multiples of four on.
    Channels,
    /// The number of columns is a multiple of four. Inputs are loaded one by one, or by fours from multiples of four
    /// on. The first tap is then this many columns behind such a place.
    Columns(Option<u32>),
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
    /// Along channels and taps.
    weight: Option<View> = (config.op == DepthwiseOp::Convolution).then_some(View(2)),
    epilogue: Option<Epilogue> => config.epilogue.as_deref(),
}

impl Depthwise {
    /// Returns the outputs that an invocation computes, along channels, rows and columns.
    fn outputs(&self) -> [u32; 3] {
        let [rows, columns] = self.tile;
        match self.quads {
            QuadAxis::Channels => [4, rows, columns],
            QuadAxis::Columns(_) => [1, rows, 4 * columns],
        }
    }

    /// Returns the number of invocations for these images, channels, rows and columns of outputs.
    pub fn invocations(&self, [images, lengths @ ..]: [usize; 4]) -> usize {
        let each = lengths.iter().zip(self.outputs());
        each.fold(images, |n, (length, own)| n.saturating_mul(length.div_ceil(own as usize)))
    }
}

/// Loads elements as quads, or one by one.
enum Source<'k> {
    Quads(&'k KernelBuilder, Quads<'k>),
    Elements(Elements<'k>),
}

impl<'k> Source<'k> {
    fn new(k: &'k KernelBuilder, name: &str, dtype: DType, in_quads: bool) -> Self {
        match in_quads {
            true => Source::Quads(k, Quads::input(k, name, dtype)),
            false => Source::Elements(Elements::input(k, name, dtype)),
        }
    }

    fn load(&self, index: Value<'k>) -> Value<'k> {
        match self {
            Source::Quads(k, quads) => quads.load(k, index / 4),
            Source::Elements(elements) => elements.load(index),
        }
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
        let blocks = |length: Value<'k>, own: u32| if own == 1 { length } else { (length + (own - 1)) / own };
        let [channels, rows, columns] =
            [(channels, own_channels), (windows[0].output, own_rows), (windows[1].output, own_columns)]
                .map(|(length, own)| blocks(length, own));
        let (image, [channel, row, column]) = match self.quads {
            QuadAxis::Channels => {
                let (image, at) = take_apart(k.global_index(), &[rows, columns, channels]);
                (image, [at[2], at[0], at[1]])
            }
            QuadAxis::Columns(_) => {
                let (image, at) = take_apart(k.global_index(), &[channels, rows, columns]);
                (image, [at[0], at[1], at[2]])
            }
        };
        Place { image, channel: channel * own_channels, row: row * own_rows, column: column * own_columns }
    }

    /// Returns the index of an output.
    fn index<'k>(
        &self,
        place: &Place<'k>,
        channels: Value<'k>,
        windows: &[DeclaredWindow<'k>],
        [row, column]: [Value<'k>; 2],
    ) -> Value<'k> {
        let [rows, columns] = [windows[0].output, windows[1].output];
        match self.quads {
            QuadAxis::Channels => ((place.image * rows + row) * columns + column) * channels + place.channel,
            QuadAxis::Columns(_) => ((place.image * channels + place.channel) * rows + row) * columns + column,
        }
    }
}

/// The inputs of an invocation.
struct Input<'k> {
    x: Source<'k>,
    at: Strides<'k>,
    /// An element that exists.
    first: Value<'k>,
    /// The places of the first tap, which wrap if they are in the padding.
    row: Value<'k>,
    column: Value<'k>,
    lengths: [Value<'k>; 2],
    quads: QuadAxis,
    /// What padding is.
    padding: Value<'k>,
}

impl<'k> Input<'k> {
    /// Loads some neighbouring columns of a row.
    fn row(&self, row: u32, columns: u32) -> Vec<Value<'k>> {
        let y = self.row + row;
        let row_inside = y.lt(self.lengths[0]);
        let start = self.first + y * self.at.stride(2);
        let load = |x: Value<'k>| {
            let inside = row_inside & x.lt(self.lengths[1]);
            let index = inside.select(start + x * self.at.stride(1), self.first);
            let element = self.x.load(index);
            inside.select(element, if element.ty().lanes == 1 { self.padding } else { self.padding.splat(4) })
        };
        match self.quads {
            QuadAxis::Columns(Some(behind)) => {
                let quads = (0..(behind + columns).div_ceil(4)).map(|quad| load(self.column - behind + 4 * quad));
                let all: Vec<_> = quads.flat_map(|quad| quad.lanes()).collect();
                all[behind as usize..][..columns as usize].to_vec()
            }
            _ => (0..columns).map(|column| load(self.column + column)).collect(),
        }
    }
}

/// The factors of an invocation's channels. A factor is loaded when it is used first.
struct Factors<'k> {
    k: &'k KernelBuilder,
    weight: Source<'k>,
    at: Strides<'k>,
    channel: Value<'k>,
    loaded: RefCell<Vec<Option<Value<'k>>>>,
}

impl<'k> Factors<'k> {
    fn of_tap(&self, tap: u32) -> Value<'k> {
        let load = || {
            let factor = self.weight.load(self.at.at(&[self.channel, self.k.u32(tap)]));
            if factor.ty().lanes == 4 { factor } else { factor.splat(4) }
        };
        *self.loaded.borrow_mut()[tap as usize].get_or_insert_with(load)
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
        volume(&[*images, *channels].into_iter().chain(sizes).collect::<Vec<_>>())
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
            QuadAxis::Columns(Some(_)) => "columns x4",
            QuadAxis::Columns(None) => "columns",
        };
        let [_, rows, columns] = self.outputs();
        let name = format!(
            "depthwise {op}({dtype}{narrowed}, {height}x{width}, stride {down}x{across}, {rows}x{columns} by {by})"
        );
        self.epilogue.as_ref().map_or_else(|| name.clone(), |y| format!("{name}, {}", y.expr.describe()))
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write(&self, k: &KernelBuilder) {
        let Declared { images, channels, windows, x: at, weight: weight_at, epilogue } = self.declare(k);
        let by_channels = self.quads == QuadAxis::Channels;
        let x = Source::new(k, "x", self.dtype, !matches!(self.quads, QuadAxis::Columns(None)));
        let weight = weight_at.map(|at| (Source::new(k, "weight", self.dtype, by_channels), at));
        let columns_of_rows = by_channels.then_some(channels);
        let y = Outputs::new(k, self.output, 4, self.epilogue.as_deref().zip(epilogue), columns_of_rows);

        let place = self.place(k, channels, &windows);
        k.when(place.image.lt(images), || {
            let [down, along] = self.stride;
            let [height, width] = self.kernel;
            let [rows, fours] = self.tile;
            let zero = k.u32(0);
            let padding = match self.op {
                DepthwiseOp::Convolution => k.number(Type { scalar: self.dtype.compute_scalar(), lanes: 1 }, 0),
                DepthwiseOp::Max => lowest(k, self.dtype),
            };
            let input = Input {
                x,
                first: at.at(&[place.image, place.channel, zero, zero]),
                at,
                row: place.row * down - windows[0].before,
                column: place.column * along - windows[1].before,
                lengths: [windows[0].input, windows[1].input],
                quads: self.quads,
                padding,
            };
            let loaded = RefCell::new(vec![None; (height * width) as usize]);
            let channel = place.channel;
            let factors = weight.map(|(weight, at)| Factors { k, weight, at, channel, loaded });
            let folded: Vec<_> = (0..rows * fours).map(|_| k.var(padding.splat(4))).collect();
            // A quad of inputs is loaded as one, or it is made of neighbouring columns.
            let each = if by_channels { 1 } else { 4 };
            for row in 0..(rows - 1) * down + height {
                let loaded = input.row(row, (fours * each - 1) * along + width);
                let four = |first: u32| {
                    let elements: Vec<_> = (0..each).map(|e| loaded[(first + e * along) as usize]).collect();
                    if by_channels { elements[0] } else { k.vector(&elements) }
                };
                // The outputs that this row of inputs belongs to, and the row of the kernel that it meets there.
                let met = (0..rows).filter_map(|r| Some((r, row.checked_sub(r * down).filter(|&tap| tap < height)?)));
                for (r, tap) in met.flat_map(|(r, row)| (0..width).map(move |column| (r, row * width + column))) {
                    let factor = factors.as_ref().map(|factors| factors.of_tap(tap));
                    for c in 0..fours {
                        let folded = &folded[(r * fours + c) as usize];
                        let element = four(c * each * along + tap % width);
                        folded.set(match factor {
                            None => folded.get().max(element),
                            Some(factor) if element.ty().is_float() => element.fma(factor, folded.get()),
                            Some(factor) => folded.get() + element * factor,
                        });
                    }
                }
            }
            for (i, result) in (0..).zip(&folded) {
                let (row, column) = (place.row + i / fours, place.column + i % fours * each);
                k.when(row.lt(windows[0].output) & column.lt(windows[1].output), || {
                    y.store(k, self.index(&place, channels, &windows, [row, column]), result.get());
                });
            }
        });
    }

    fn samples() -> Vec<Self> {
        let sample = |dtype, quads, kernel, stride, tile| Depthwise {
            op: DepthwiseOp::Convolution,
            dtype,
            output: dtype,
            quads,
            kernel: [kernel; 2],
            stride: [stride; 2],
            tile,
            epilogue: None,
        };
        let samples = [
            sample(DType::F32, QuadAxis::Channels, 3, 1, [2, 4]),
            sample(DType::F16, QuadAxis::Channels, 5, 2, [1, 2]),
            sample(DType::F16, QuadAxis::Columns(Some(3)), 3, 1, [2, 1]),
            sample(DType::I32, QuadAxis::Columns(None), 3, 2, [1, 1]),
        ];
        let finished = samples[0].with_epilogue(epilogue::sample());
        let max = [0, 2].map(|i: usize| Depthwise { op: DepthwiseOp::Max, ..samples[i].clone() });
        samples.into_iter().chain([finished]).chain(max).collect()
    }
}
