//! Depthwise convolutions (each channel has a kernel of its own), convolutions of groups of 4 or 8 channels, and max
//! pooling. Memory limits them. So each invocation computes several neighbouring outputs from registers, and loads each
//! input once for all of them.

use super::elements::{Elements, Octets, Quads, Strides, lowest, take_apart};
use super::epilogue::{self, Epilogue, Finishing, Outputs};
use super::parameters::{Each, Form, Size, View, parameters, times};
use super::window::{DeclaredWindow, WindowForm};
use super::{Family, Units, volume};
use crate::base::dtype::DType;
use crate::shader::{KernelBuilder, Scalar, Type, Value, Var};
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
    fn outputs(&self) -> [u32; 3] {
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
        self.unpack(self.load_packed(index))
    }

    /// Loads elements as they are, to be unpacked later.
    fn load_packed(&self, index: Value<'k>) -> Value<'k> {
        match self {
            Source::Elements(elements) => elements.load(index),
            Source::Quads(_, quads) => quads.load_packed(index / 4),
            Source::Octets(_, octets) => octets.load_packed(index / 8),
        }
    }

    fn unpack(&self, packed: Value<'k>) -> Vec<Value<'k>> {
        match self {
            Source::Elements(_) => vec![packed],
            Source::Quads(k, quads) => vec![quads.unpack(k, packed)],
            Source::Octets(k, octets) => octets.unpack(k, packed).to_vec(),
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
struct Input<'a, 'k> {
    x: Source<'k>,
    at: Strides<'k>,
    /// The first element of the image and the channel.
    first: Value<'k>,
    /// The places of the first tap, which wrap if they are in the padding.
    row: Value<'k>,
    column: Value<'k>,
    lengths: [Value<'k>; 2],
    quads: QuadAxis,
    load: u32,
    /// The number of loads of a column.
    loads: u32,
    padding: Padding<'k>,
    /// Becomes nonzero in [`NAN_BITS`] if a half that was loaded is NaN.
    any_nan: Option<&'a Var<'k>>,
}

/// The bits of [`nan_among_halves`] that matter.
const NAN_BITS: u32 = 0x8000_8000;

/// Sets the highest bit of each half that is NaN. Nothing is carried from one half to the other.
fn nan_among_halves(word: Value<'_>) -> Value<'_> {
    (word & 0x7fff_7fff) + 0x03ff_03ff
}

/// What stands in the place of elements outside the images.
#[derive(Clone, Copy)]
enum Padding<'k> {
    Zero,
    Number(Value<'k>),
    /// The nearest element.
    Nearest,
}

/// A place along an axis.
#[derive(Clone, Copy)]
struct Along<'k> {
    /// The nearest place inside the axis.
    nearest: Value<'k>,
    is_inside: Value<'k>,
}

impl<'k> Along<'k> {
    /// Places before the axis wrap.
    fn new(place: Value<'k>, length: Value<'k>) -> Self {
        let nearest = place.bitcast(Type::I32).max(0).bitcast(Type::U32).min(length - 1);
        Along { nearest, is_inside: place.lt(length) }
    }

    /// All ones if the place is inside, else 0.
    fn mask(self) -> Value<'k> {
        self.is_inside.select(self.nearest.literal(u32::MAX), 0)
    }
}

impl<'k> Input<'_, 'k> {
    /// Loads some neighbouring columns of a row: a number each, or quads of channels.
    fn row(&self, row: u32, columns: u32) -> Vec<Vec<Value<'k>>> {
        let y = Along::new(self.row + row, self.lengths[0]);
        let start = self.first + y.nearest * self.at.stride(2);
        let load_at = |index: Value<'k>, x: Along<'k>| -> Vec<Value<'k>> {
            let packed = self.x.load_packed(index);
            if let Some(any_nan) = self.any_nan {
                packed.lanes().into_iter().for_each(|word| any_nan.set(any_nan.get() | nan_among_halves(word)));
            }
            match self.padding {
                Padding::Zero => {
                    let bits = packed.bitcast(packed.ty().with_scalar(Scalar::U32));
                    self.x.unpack((bits & (y.mask() & x.mask())).bitcast(packed.ty()))
                }
                Padding::Nearest => self.x.unpack(packed),
                // The nearest row stands for rows outside.
                Padding::Number(number) => {
                    let padded = |loaded: Value<'k>| {
                        x.is_inside.select(loaded, if loaded.ty().lanes == 1 { number } else { number.splat(4) })
                    };
                    self.x.unpack(packed).into_iter().map(padded).collect()
                }
            }
        };
        // The places of all loads of a row or a column are computed once for them.
        let load = |column: Value<'k>| {
            let x = Along::new(column, self.lengths[1]);
            let index = start + x.nearest * self.at.stride(1);
            let places = (0..self.loads).map(|n| if n == 0 { index } else { index + n * self.load });
            places.flat_map(|index| load_at(index, x)).collect::<Vec<_>>()
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
        let tile = format!("{rows}x{columns} by {by} x{load}{stacked}");
        let name = format!("depthwise {op}({dtype}{narrowed}, {height}x{width}, stride {down}x{across}, {tile})");
        self.epilogue.as_ref().map_or_else(|| name.clone(), |y| format!("{name}, {}", y.expr.describe()))
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP * self.stacked
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
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
        let is_inside = if self.stacked == 1 { is_inside } else { is_inside & place.row.lt(windows[0].output) };
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
            // An instruction finds the larger of two numbers, but not NaN. It may take subnormals of `f32` for 0, but
            // no halves.
            let may_skip_nan = self.op == DepthwiseOp::Max && self.dtype == DType::F16 && self.load > 1;
            let any_nan = may_skip_nan.then(|| k.var(zero));
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
                quads: self.quads,
                load: self.load,
                loads: if is_grouped { self.op.channels() / self.load } else { 1 },
                padding,
                any_nan: any_nan.as_ref(),
            };
            let loaded = RefCell::new(vec![None; (height * width) as usize]);
            let channel = place.channel;
            let factors = weight.map(|(weight, at)| Factors { op: self.op, k, weight, at, channel, loaded });
            // The quads of channels, and the columns of a quad.
            let (quads, each) = if by_channels { (self.load / 4, 1) } else { (1, 4) };
            let folded: Vec<_> = (0..rows * fours * quads).map(|_| k.var(initial.splat(4))).collect();
            let fold = |larger: fn(Value<'k>, Value<'k>) -> Value<'k>| {
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
                                None => larger(folded.get(), elements[q]),
                                Some((all, of_tap)) if is_grouped => all.add(folded.get(), &elements, of_tap),
                                Some((all, of_tap)) => all.add(folded.get(), &elements[q..=q], &of_tap[q..=q]),
                            });
                        }
                    }
                }
            };
            match &any_nan {
                None => fold(|a, b| a.max(b)),
                Some(any_nan) => {
                    fold(|a, b| a.larger(b));
                    k.when((any_nan.get() & NAN_BITS).ne(0), || {
                        folded.iter().for_each(|folded| folded.set(initial.splat(4)));
                        fold(|a, b| a.max(b));
                    });
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
            stacked: if quads == QuadAxis::Channels { 4 } else { 1 },
            epilogue: None,
        };
        let samples = [
            sample(DType::F32, QuadAxis::Channels, 4, 3, 1, [2, 4]),
            sample(DType::F16, QuadAxis::Channels, 8, 5, 2, [1, 2]),
            sample(DType::F16, QuadAxis::Columns(7), 8, 3, 1, [2, 1]),
            sample(DType::I32, QuadAxis::Columns(0), 1, 3, 2, [1, 1]),
        ];
        let finished = samples[0].with_epilogue(epilogue::sample());
        let max = [0, 1, 2].map(|i: usize| Depthwise { op: DepthwiseOp::Max, ..samples[i].clone() });
        let (op, dtype) = (DepthwiseOp::Groups(8), DType::F16);
        let groups = Depthwise { op, dtype, output: dtype, tile: [1, 4], ..samples[0].clone() };
        samples.into_iter().chain([finished, groups]).chain(max).collect()
    }
}
