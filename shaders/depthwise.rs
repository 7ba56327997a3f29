//! Depthwise convolutions, in which each channel has a kernel of its own, and max pooling. Memory limits both, so each
//! invocation computes several neighbouring outputs from registers, and loads each input once for all of them.

use super::elements::{Elements, Octets, Quads, Strides, lowest, take_apart};
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
    /// The number of inputs that are loaded at once, from multiples of this number on: 1, 4, or 8 of 16 bits each.
    pub load: u32,
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
    /// Along channels and taps.
    weight: Option<View> = (config.op == DepthwiseOp::Convolution).then_some(View(2)),
    epilogue: Option<Epilogue> => config.epilogue.as_deref(),
}

impl Depthwise {
    /// Whether the elements beside the padding stand for it. They change no maximum: padding is shorter than a window,
    /// so each window that reaches into it holds them.
    fn reads_nearest(&self) -> bool {
        self.op == DepthwiseOp::Max && self.quads == QuadAxis::Channels
    }

    /// Returns the outputs that an invocation computes, along channels, rows and columns.
    fn outputs(&self) -> [u32; 3] {
        let [rows, columns] = self.tile;
        match self.quads {
            QuadAxis::Channels => [self.load, rows, columns],
            QuadAxis::Columns(_) => [1, rows, 4 * columns],
        }
    }

    /// Returns the number of invocations for these images, channels, rows and columns of outputs.
    pub fn invocations(&self, [images, lengths @ ..]: [usize; 4]) -> usize {
        let each = lengths.iter().zip(self.outputs());
        each.fold(images, |n, (length, own)| n.saturating_mul(length.div_ceil(own as usize)))
    }
}

/// Loads elements one by one, or several at once as quads.
enum Source<'k> {
    Elements(Elements<'k>),
    Quads(&'k KernelBuilder, Quads<'k>),
    Octets(&'k KernelBuilder, Octets<'k>),
}

impl<'k> Source<'k> {
    fn new(k: &'k KernelBuilder, name: &str, dtype: DType, load: u32) -> Self {
        match load {
            8 => Source::Octets(k, Octets::input(k, name, dtype)),
            4 => Source::Quads(k, Quads::input(k, name, dtype)),
            _ => Source::Elements(Elements::input(k, name, dtype)),
        }
    }

    fn load(&self, index: Value<'k>) -> Vec<Value<'k>> {
        match self {
            Source::Elements(elements) => vec![elements.load(index)],
            Source::Quads(k, quads) => vec![quads.load(k, index / 4)],
            Source::Octets(k, octets) => octets.load(k, index / 8).to_vec(),
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
    load: u32,
    /// What padding is. Without, an element in the padding is the nearest one beside it.
    padding: Option<Value<'k>>,
}

impl<'k> Input<'k> {
    /// Loads some neighbouring columns of a row: a number each, or quads of channels.
    fn row(&self, row: u32, columns: u32) -> Vec<Vec<Value<'k>>> {
        let y = self.row + row;
        let Some(padding) = self.padding else {
            let start = self.first + nearest(y, self.lengths[0]) * self.at.stride(2);
            let index = |x| start + nearest(x, self.lengths[1]) * self.at.stride(1);
            return (0..columns).map(|column| self.x.load(index(self.column + column))).collect();
        };
        let row_inside = y.lt(self.lengths[0]);
        let start = self.first + y * self.at.stride(2);
        let load = |x: Value<'k>| {
            let inside = row_inside & x.lt(self.lengths[1]);
            let index = inside.select(start + x * self.at.stride(1), self.first);
            let padded = |loaded: Value<'k>| {
                inside.select(loaded, if loaded.ty().lanes == 1 { padding } else { padding.splat(4) })
            };
            self.x.load(index).into_iter().map(padded).collect::<Vec<_>>()
        };
        match self.quads {
            QuadAxis::Columns(behind) if self.load > 1 => {
                let loads = (0..(behind + columns).div_ceil(self.load)).map(|n| self.column - behind + self.load * n);
                let all = loads.flat_map(load).flat_map(Value::lanes).map(|element| vec![element]);
                all.skip(behind as usize).take(columns as usize).collect()
            }
            _ => (0..columns).map(|column| load(self.column + column)).collect(),
        }
    }
}

/// Returns the nearest place of an axis. Places before it wrap.
fn nearest<'k>(place: Value<'k>, length: Value<'k>) -> Value<'k> {
    place.bitcast(Type::I32).max(0).bitcast(Type::U32).min(length - 1)
}

/// The factors of an invocation's channels. A factor is loaded when it is used first.
struct Factors<'k> {
    k: &'k KernelBuilder,
    weight: Source<'k>,
    at: Strides<'k>,
    channel: Value<'k>,
    loaded: RefCell<Vec<Option<Vec<Value<'k>>>>>,
}

impl<'k> Factors<'k> {
    /// Returns the factors of a tap, for the quads of the invocation's channels.
    fn of_tap(&self, tap: u32) -> Vec<Value<'k>> {
        let load = || {
            let factors = self.weight.load(self.at.at(&[self.channel, self.k.u32(tap)]));
            factors.into_iter().map(|factor| if factor.ty().lanes == 4 { factor } else { factor.splat(4) }).collect()
        };
        self.loaded.borrow_mut()[tap as usize].get_or_insert_with(load).clone()
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
            QuadAxis::Columns(_) => "columns",
        };
        let load = self.load;
        let [_, rows, columns] = self.outputs();
        let name = format!(
            "depthwise {op}({dtype}{narrowed}, {height}x{width}, stride {down}x{across}, {rows}x{columns} by {by} x{load})"
        );
        self.epilogue.as_ref().map_or_else(|| name.clone(), |y| format!("{name}, {}", y.expr.describe()))
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write(&self, k: &KernelBuilder) {
        let Declared { images, channels, windows, x: at, weight: weight_at, epilogue } = self.declare(k);
        let by_channels = self.quads == QuadAxis::Channels;
        let x = Source::new(k, "x", self.dtype, self.load);
        let weight =
            weight_at.map(|at| (Source::new(k, "weight", self.dtype, if by_channels { self.load } else { 1 }), at));
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
                load: self.load,
                padding: (!self.reads_nearest()).then_some(padding),
            };
            let loaded = RefCell::new(vec![None; (height * width) as usize]);
            let channel = place.channel;
            let factors = weight.map(|(weight, at)| Factors { k, weight, at, channel, loaded });
            // The quads of channels, and the columns of a quad.
            let (quads, each) = if by_channels { (self.load / 4, 1) } else { (1, 4) };
            let folded: Vec<_> = (0..rows * fours * quads).map(|_| k.var(padding.splat(4))).collect();
            for row in 0..(rows - 1) * down + height {
                let loaded = input.row(row, (fours * each - 1) * along + width);
                let quad = |first: u32, quad: u32| match by_channels {
                    true => loaded[first as usize][quad as usize],
                    false => k.vector(&[0, 1, 2, 3].map(|e| loaded[(first + e * along) as usize][0])),
                };
                // The outputs that this row of inputs belongs to, and the row of the kernel that it meets there.
                let met = (0..rows).filter_map(|r| Some((r, row.checked_sub(r * down).filter(|&tap| tap < height)?)));
                for (r, tap) in met.flat_map(|(r, row)| (0..width).map(move |column| (r, row * width + column))) {
                    let factors = factors.as_ref().map(|factors| factors.of_tap(tap));
                    for (c, q) in (0..fours).flat_map(|c| (0..quads).map(move |q| (c, q))) {
                        let folded = &folded[((r * fours + c) * quads + q) as usize];
                        let element = quad(c * each * along + tap % width, q);
                        folded.set(match factors.as_ref().map(|factors| factors[q as usize]) {
                            None => folded.get().max(element),
                            Some(factor) if element.ty().is_float() => element.fma(factor, folded.get()),
                            Some(factor) => folded.get() + element * factor,
                        });
                    }
                }
            }
            for (i, results) in (0..).zip(folded.chunks(quads as usize)) {
                let (row, column) = (place.row + i / fours, place.column + i % fours * each);
                k.when(row.lt(windows[0].output) & column.lt(windows[1].output), || {
                    let first = self.index(&place, channels, &windows, [row, column]);
                    (0..).zip(results).for_each(|(quad, result)| y.store(k, first + 4 * quad, result.get()));
                });
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
            epilogue: None,
        };
        let samples = [
            sample(DType::F32, QuadAxis::Channels, 4, 3, 1, [2, 4]),
            sample(DType::F16, QuadAxis::Channels, 8, 5, 2, [1, 2]),
            sample(DType::F16, QuadAxis::Columns(7), 8, 3, 1, [2, 1]),
            sample(DType::I32, QuadAxis::Columns(0), 1, 3, 2, [1, 1]),
        ];
        let finished = samples[0].with_epilogue(epilogue::sample());
        let max = [0, 2].map(|i: usize| Depthwise { op: DepthwiseOp::Max, ..samples[i].clone() });
        samples.into_iter().chain([finished]).chain(max).collect()
    }
}
