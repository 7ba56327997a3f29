//! Convolutions and transposed convolutions as implicit matrix products. The kernels multiply the weight by the windows
//! of the input, without a matrix of windows in memory.
//!
//! - Rows: the output channels of a group.
//! - Columns: the places in all images.
//! - Depth: the input channels, and for each the taps. A tap is an element of the window.

use super::elements::{Elements, Strides, take_apart};
use super::epilogue::{self, Epilogue, Finishing, Outputs};
use super::parameters::{Each, Form, Size, View, parameters, times};
use super::prologue::{self, Prologue, Reader};
use super::tiles::{ConvTile, Sums, add_by_workgroup, loaded_column};
use super::window::{DeclaredWindow, WindowForm, WindowParameters};
use super::{Family, Units, volume};
use crate::base::dtype::DType;
use crate::shader::{KernelBuilder, Scalar, Type, Value};

/// A convolution over `axes` spatial axes. `y` has the widened dtype, and the bias has the dtype of the sum. `y`, the
/// weight and the bias are contiguous.
///
/// In a transposed convolution, outputs that are `stride` apart have the same taps; other outputs share no tap. Along
/// each axis such outputs form a phase. A phase is computed like a convolution of stride 1 with every `step`-th tap.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Conv {
    pub dtype: DType,
    pub axes: usize,
    pub transposed: bool,
    pub bias: bool,
    pub tile: ConvTile,
    /// True if stride and dilation are equal along the last axis, so that neighbouring outputs have neighbouring inputs
    /// at each tap. From tap to tap, a strip then needs one new input and keeps the others.
    pub slides: bool,
    /// True if the kernel skips taps that meet only padding at all places of a block. This pays if most taps do. For
    /// tiles in registers that do not slide.
    pub clipped: bool,
    /// The expression of the elements of `x`.
    pub prologue: Option<Box<Prologue>>,
    /// The expression of the results. Elements of less than 32 bits cannot be stored.
    pub epilogue: Option<Box<Epilogue>>,
}

parameters! {
    config: Conv;
    host: Parameters;
    device: Declared;
    images: Size,
    groups: Size,
    /// The number of output channels per group.
    rows: Size,
    /// The number of input channels per group.
    channels: Size,
    /// A window per axis.
    windows: Each<WindowForm> = times(config.axes),
    /// The distance between the taps of a phase, per axis of a transposed convolution.
    steps: Each<Size> = times(if config.transposed { config.axes } else { 0 }),
    x: View = View(2 + config.axes),
    weight_offset: Size,
    bias_offset: Option<Size> = config.bias.then_some(Size),
    prologue: Option<Prologue> => config.prologue.as_deref(),
    epilogue: Option<Epilogue> => config.epilogue.as_deref(),
}

/// One spatial axis. Place `q` of the phase is output `first + q * spacing`. Tap `j` of the phase is element
/// `first_tap + j * tap_step` of the kernel. At place `q`, tap `j` meets input element
/// `origin + q * stride + j * dilation`.
struct Axis<'k> {
    axis: usize,
    output: Value<'k>,
    input: Value<'k>,
    kernel: Value<'k>,
    /// The number of places, rounded up to whole strips.
    places: Value<'k>,
    first: Value<'k>,
    spacing: Value<'k>,
    /// The number of taps of the phase, and the most taps of any phase, from parameters alone.
    taps: Value<'k>,
    most_taps: Value<'k>,
    /// The range of taps that meet an element at some place of the block. If taps are not clipped, the range has all
    /// taps.
    begin: Value<'k>,
    end: Value<'k>,
    first_tap: Value<'k>,
    tap_step: Value<'k>,
    origin: Value<'k>,
    stride: Value<'k>,
    dilation: Value<'k>,
}

impl<'k> Axis<'k> {
    fn tap(&self, j: Value<'k>) -> Value<'k> {
        self.first_tap + j * self.tap_step
    }

    /// Skips the taps that meet no element at the places from `low` to `high`.
    fn clip(&mut self, low: Value<'k>, high: Value<'k>, transposed: bool) {
        let signed = |value: Value<'k>| value.bitcast(Type::I32);
        let [low, high] = [low, high].map(|q| self.origin + q * self.stride);
        let (before, behind) = (signed(high).lt(0), signed(low).ge(signed(self.input)));
        let end = if transposed {
            // The next tap meets an earlier element.
            let step = low.literal(0) - self.dilation;
            self.begin = behind.select((low - self.input) / step + 1, 0);
            before.select(low.literal(0), high / step + 1)
        } else {
            let up = |distance: Value<'k>| (distance + (self.dilation - 1)) / self.dilation;
            self.begin = before.select(up(low.literal(0) - high), 0);
            behind.select(low.literal(0), up(self.input - low))
        };
        self.end = end.min(self.taps);
    }
}

/// A column: a place in an image.
struct Column<'k> {
    /// The index of the image's first element in the group's first channel.
    image: Value<'k>,
    /// Per axis, the input element that the first tap meets. If that is before the input, the number wraps.
    starts: Vec<Value<'k>>,
}

/// An index in a buffer, and whether the element is inside of its matrix.
type Source<'k> = (Value<'k>, Value<'k>);

struct ConvBlock<'k> {
    k: &'k KernelBuilder,
    transposed: bool,
    strip: u32,
    number: Type,
    groups: Value<'k>,
    rows: Value<'k>,
    columns: Value<'k>,
    channels: Value<'k>,
    axes: Vec<Axis<'k>>,
    x: Reader<'k>,
    x_at: Strides<'k>,
    weight: Elements<'k>,
    /// The index of the group's first weight, and the strides of the weight's rows and channels.
    weight_start: Value<'k>,
    weight_strides: [Value<'k>; 2],
    bias: Option<(Elements<'k>, Value<'k>)>,
    y: Outputs<'k>,
    /// The block of this workgroup. A folded dispatch has surplus workgroups, which store nothing.
    group: Value<'k>,
    block_row: Value<'k>,
    block_column: Value<'k>,
    real: Value<'k>,
}

/// Skips the taps that meet no element at any place of a block of columns.
fn clip<'k>(axes: &mut [Axis<'k>], columns: Value<'k>, [first, count]: [Value<'k>; 2], transposed: bool) {
    let lengths: Vec<_> = axes.iter().map(|axis| axis.places).collect();
    let ends = [first, first + (count - 1)].map(|column| take_apart(column.min(columns - 1), &lengths));
    let [(first_image, first), (last_image, last)] = ends;
    // If the first and the last column agree along all outer axes, the block's places along an axis lie between theirs.
    let mut same = first_image.eq(last_image);
    for ((axis, first), last) in axes.iter_mut().zip(first).zip(last) {
        // Places beyond the last output fill up a strip. Their places in the input may overflow.
        let most = (axis.output - 1 - axis.first) / axis.spacing;
        axis.clip(same.select(first, 0), same.select(last, axis.places - 1).min(most), transposed);
        same = same & first.eq(last);
    }
}

fn product<'k>(k: &'k KernelBuilder, values: impl Iterator<Item = Value<'k>>) -> Value<'k> {
    values.reduce(|a, b| a * b).unwrap_or_else(|| k.u32(1))
}

impl<'k> ConvBlock<'k> {
    fn new(k: &'k KernelBuilder, config: &Conv) -> Self {
        let parameters = config.declare(k);
        let Declared { images, groups, rows, channels, windows, steps, weight_offset, bias_offset, .. } = parameters;
        let Declared { x: x_at, prologue, epilogue, .. } = parameters;
        let x = Reader::new(k, "x", config.dtype, config.prologue.as_deref().zip(prologue));
        let weight = Elements::input(k, "weight", config.dtype);
        let bias = bias_offset.map(|offset| (Elements::input(k, "bias", config.dtype.summed()), offset));
        let number = Type { scalar: config.dtype.compute_scalar(), lanes: 1 };
        let y = Outputs::new(k, config.dtype.widened(), 1, config.epilogue.as_deref().zip(epilogue), None);

        // Blocks in order: group, phase, block of rows, block of columns.
        let kernel = product(k, windows.iter().map(|window| window.kernel));
        let (block_rows, block_columns) = config.tile.block();
        let down = (rows + (block_rows - 1)) / block_rows;
        let strip = config.tile.strip();
        let places = windows.iter().enumerate().map(|(i, &DeclaredWindow { output, stride, .. })| {
            let places = if config.transposed { (output + stride - 1) / stride } else { output };
            // No strip continues in the next row.
            if i + 1 == config.axes && strip > 1 { (places + (strip - 1)) / strip * strip } else { places }
        });
        let places: Vec<Value> = places.collect();
        let columns = images * product(k, places.iter().copied());
        let across = (columns + (block_columns - 1)) / block_columns;
        let block = k.group_index();
        let (block_row, block_column) = (block / across % down * block_rows, block % across * block_columns);
        let mut batch = block / (across * down);
        let mut axes = Vec::new();
        for (i, window) in windows.iter().enumerate().rev() {
            axes.push(match steps.get(i) {
                None => dense_axis(k, i, window, places[i]),
                Some(&step) => {
                    let phases = window.stride.min(window.output);
                    let phase = batch % phases;
                    batch = batch / phases;
                    phase_axis(k, i, window, places[i], [phase, step])
                }
            });
        }
        axes.reverse();
        let group = batch.min(groups - 1);
        if config.clipped {
            clip(&mut axes, columns, [block_column, k.u32(block_columns)], config.transposed);
        }
        let (weight_strides, group_stride) = if config.transposed {
            ([kernel, rows * kernel], channels * rows * kernel)
        } else {
            ([channels * kernel, kernel], rows * channels * kernel)
        };
        ConvBlock {
            k,
            transposed: config.transposed,
            strip,
            number,
            groups,
            rows,
            columns,
            channels,
            axes,
            x,
            x_at,
            weight,
            weight_start: weight_offset + group * group_stride,
            weight_strides,
            bias,
            y,
            group,
            block_row,
            block_column,
            real: batch.lt(groups),
        }
    }

    fn x_stride(&self, axis: usize) -> Value<'k> {
        self.x_at.stride(self.axes.len() - axis)
    }

    fn channel_stride(&self) -> Value<'k> {
        self.x_at.stride(self.axes.len() + 1)
    }

    /// Returns the image and the places of a column.
    fn places(&self, column: Value<'k>) -> (Value<'k>, Vec<Value<'k>>) {
        take_apart(column, &self.axes.iter().map(|axis| axis.places).collect::<Vec<_>>())
    }

    /// Returns a column of the block. Columns beyond the last one repeat it.
    fn column(&self, in_block: Value<'k>) -> Column<'k> {
        let (image, places) = self.places((self.block_column + in_block).min(self.columns - 1));
        let starts = self.axes.iter().zip(places).map(|(axis, q)| axis.origin + q * axis.stride);
        Column { image: self.x_at.at(&[image, self.group * self.channels]), starts: starts.collect() }
    }

    /// Returns the index of a row's first weight. Rows beyond the last one repeat it.
    fn weight_row(&self, in_block: Value<'k>) -> Value<'k> {
        self.weight_start + (self.block_row + in_block).min(self.rows - 1) * self.weight_strides[0]
    }

    /// Returns the channel and the taps at a place along the depth.
    fn depth_place(&self, depth: Value<'k>) -> (Value<'k>, Vec<Value<'k>>) {
        take_apart(depth, &self.axes.iter().map(|axis| axis.most_taps).collect::<Vec<_>>())
    }

    /// Loads the weights of some rows for a channel and a tap.
    fn weights(&self, rows: &[Value<'k>], channel: Value<'k>, tap: Value<'k>) -> Vec<Value<'k>> {
        let step = tap + channel * self.weight_strides[1];
        rows.iter().map(|&row| self.weight.load(row + step)).collect()
    }

    /// Loads an element, or returns 0 if the element is not inside. Then some element that exists is loaded, and not
    /// used.
    fn load(
        &self,
        load: impl Fn(Value<'k>) -> Value<'k>,
        (index, inside): Source<'k>,
        existing: Value<'k>,
    ) -> Value<'k> {
        inside.select(load(inside.select(index, existing)), 0)
    }

    fn store(&self, row: Value<'k>, column: Value<'k>, sum: Value<'k>) {
        let (row, column) = (self.block_row + row, self.block_column + column);
        let (image, places) = self.places(column);
        let channel = self.group * self.rows + row;
        let mut inside = self.real & row.lt(self.rows) & column.lt(self.columns);
        let mut index = image * (self.groups * self.rows) + channel;
        for (axis, q) in self.axes.iter().zip(places) {
            let output = axis.first + q * axis.spacing;
            inside = if self.transposed || self.strip > 1 { inside & output.lt(axis.output) } else { inside };
            index = index * axis.output + output;
        }
        self.k.when(inside, || {
            let biased = self.bias.map(|(bias, offset)| sum + bias.load(offset + channel));
            self.y.store(self.k, index, biased.unwrap_or(sum));
        });
    }
}

/// An axis of a convolution. Every output has every tap.
fn dense_axis<'k>(
    k: &'k KernelBuilder,
    axis: usize,
    &DeclaredWindow { output, input, kernel, stride, dilation, before }: &DeclaredWindow<'k>,
    places: Value<'k>,
) -> Axis<'k> {
    let (zero, one) = (k.u32(0), k.u32(1));
    Axis {
        axis,
        output,
        input,
        kernel,
        places,
        first: zero,
        spacing: one,
        taps: kernel,
        most_taps: kernel,
        begin: zero,
        end: kernel,
        first_tap: zero,
        tap_step: one,
        origin: zero - before,
        stride,
        dilation,
    }
}

/// A phase of an axis of a transposed convolution. Input `i` and tap `t` meet at output
/// `i * stride + t * dilation - before`.
fn phase_axis<'k>(
    k: &'k KernelBuilder,
    axis: usize,
    &DeclaredWindow { output, input, kernel, stride, dilation, before }: &DeclaredWindow<'k>,
    places: Value<'k>,
    [phase, step]: [Value<'k>; 2],
) -> Axis<'k> {
    let place = phase + before;
    // The first tap with an input; there may be none. If there is one, it is among the first `step`.
    let tap = k.var(k.u32(0));
    let candidates = kernel.min(step);
    let misses = || (tap.get() * dilation % stride).ne(place % stride);
    k.while_(|| tap.get().lt(candidates) & misses(), || tap.set(tap.get() + 1));
    let first_tap = tap.get().lt(candidates).select(tap.get(), kernel);
    let signed = |value: Value<'k>| value.bitcast(Type::I32);
    let origin = signed(place - first_tap * dilation) / signed(stride);
    let taps = (kernel - first_tap + step - 1) / step;
    Axis {
        axis,
        output,
        input,
        kernel,
        places,
        first: phase,
        spacing: stride,
        taps,
        begin: k.u32(0),
        end: taps,
        most_taps: (kernel + step - 1) / step,
        first_tap,
        tap_step: step,
        origin: origin.convert(Scalar::U32),
        stride: k.u32(1),
        dilation: k.u32(0) - dilation * step / stride,
    }
}

impl Finishing for Conv {
    fn width(&self) -> u32 {
        1
    }

    fn stored(&self) -> DType {
        self.dtype.widened()
    }

    fn with_epilogue(&self, epilogue: Box<Epilogue>) -> Self {
        Conv { epilogue: Some(epilogue), ..self.clone() }
    }

    fn finished(parameters: &Parameters, epilogue: epilogue::Parameters) -> Parameters {
        Parameters { epilogue: Some(epilogue), ..parameters.clone() }
    }
}

impl Family for Conv {
    fn products(&self, Parameters { images, groups, rows, channels, windows, .. }: &Parameters) -> u64 {
        // A convolution adds up all taps for each output element. A transposed convolution adds each input element at
        // all taps.
        let places = |window: &WindowParameters| if self.transposed { window.input } else { window.output };
        let sizes = windows.iter().flat_map(|window| [places(window), window.kernel]);
        let sizes: Vec<usize> = [*images, *groups, *rows, *channels].into_iter().chain(sizes).collect();
        volume(&sizes)
    }

    fn units(&self) -> Units {
        Units::of(self.dtype)
    }

    fn name(&self) -> String {
        let name = if self.transposed { "conv_transpose" } else { "conv" };
        let slides = if self.slides { ", slides" } else { "" };
        let clipped = if self.clipped { ", clipped" } else { "" };
        let Conv { axes, tile, bias, .. } = self;
        let x = prologue::describe(&self.prologue, self.dtype);
        let name = format!("{name}{axes}d({x}, {tile:?}, bias: {bias}{slides}{clipped})").to_lowercase();
        self.epilogue.as_ref().map_or_else(|| name.clone(), |y| format!("{name}, {}", y.expr.describe()))
    }

    fn workgroup(&self) -> u32 {
        self.tile.workgroup()
    }

    fn write(&self, k: &KernelBuilder) {
        if self.dtype.size_in_bytes() == 8 {
            // 64-bit sums and products take twice the registers.
            k.large_registers();
        }
        let problem = ConvBlock::new(k, self);
        let sums = Sums::new(k, problem.number, self.tile);
        match self.tile {
            ConvTile::Workgroup => by_workgroup(&problem, &sums),
            ConvTile::Registers { .. } if self.slides => by_sliding(&problem, &sums),
            ConvTile::Registers { .. } => by_registers(&problem, &sums),
        }
        sums.each(|row, column, sum| problem.store(row, column, sum));
    }

    fn samples() -> Vec<Self> {
        let tiles = [
            ConvTile::Workgroup,
            ConvTile::Registers { rows: 8, columns: 4 },
            ConvTile::Registers { rows: 1, columns: 4 },
        ];
        let mut samples = Vec::new();
        for tile in tiles {
            let (dtype, bias) = (DType::F32, true);
            let (transposed, slides, clipped) = (false, false, false);
            let (prologue, epilogue) = (None, None);
            let conv = Conv { dtype, axes: 2, transposed, bias, tile, slides, clipped, prologue, epilogue };
            samples.extend([Conv { transposed: true, ..conv.clone() }, conv]);
        }
        samples.extend(samples.last().map(|last| Conv { slides: true, ..last.clone() }));
        samples.extend([false, true].map(|transposed| Conv { transposed, clipped: true, ..samples[3].clone() }));
        let tile = ConvTile::Registers { rows: 8, columns: 1 };
        samples.extend([DType::I64, DType::F64].map(|dtype| Conv { dtype, tile, ..samples[0].clone() }));
        samples.extend([1, 3].map(|i| samples[i].with_epilogue(epilogue::sample())));
        samples.extend([1, 3, 5].map(|i| Conv { prologue: prologue::sample(), ..samples[i].clone() }));
        samples
    }
}

/// Visits the taps, and all channels of each. So the index of a tap, and whether it is inside, are computed once for
/// all channels.
fn by_registers<'k>(p: &ConvBlock<'k>, sums: &Sums<'k>) {
    let rows: Vec<_> = sums.rows.iter().map(|&row| p.weight_row(row)).collect();
    let columns: Vec<_> = sums.columns.iter().map(|&column| p.column(column)).collect();
    let sources = columns.iter().map(|column| (column.image, p.k.bool(true))).collect();
    each_tap(p, &columns, &p.axes, p.k.u32(0), sources, &|tap, sources| {
        // If the element is outside, some element of the channel is loaded and not used.
        let within = |column: &Column<'k>, &(index, inside): &Source<'k>| (inside.select(index, column.image), inside);
        let sources: Vec<Source> = columns.iter().zip(sources).map(|(column, source)| within(column, source)).collect();
        p.k.for_range(0, p.channels, |channel| {
            let x_step = channel * p.channel_stride();
            let load = |&(index, inside): &Source<'k>| inside.select(p.x.load(index + x_step), 0);
            sums.add_products(&p.weights(&rows, channel, tap), &sources.iter().map(load).collect::<Vec<_>>());
        });
    });
}

/// Visits the rows of the window, their channels, and the taps along the last axis. From tap to tap a strip's inputs
/// move on by one: one is loaded, the others are in registers.
fn by_sliding<'k>(p: &ConvBlock<'k>, sums: &Sums<'k>) {
    let k = p.k;
    let Some((along, outer)) = p.axes.split_last() else { return };
    let rows: Vec<_> = sums.rows.iter().map(|&row| p.weight_row(row)).collect();
    let column = p.column(sums.columns[0]);
    let start = column.starts[along.axis];
    let window: Vec<_> = sums.columns[1..].iter().map(|_| k.var(k.number(p.number, 0))).collect();
    let sources = vec![(column.image, k.bool(true))];
    each_tap(p, std::slice::from_ref(&column), outer, k.u32(0), sources, &|tap, sources| {
        let (row, row_inside) = sources[0];
        k.for_range(0, p.channels, |channel| {
            let x_step = channel * p.channel_stride();
            let load = |place: Value<'k>| {
                let i = start + place * along.dilation;
                let inside = row_inside & i.lt(along.input);
                let index = inside.select(row + i * p.x_stride(along.axis), column.image);
                inside.select(p.x.load(index + x_step), 0)
            };
            (0..).zip(&window).for_each(|(i, var)| var.set(load(k.u32(i))));
            k.for_range(0, along.taps, |j| {
                let last = load(j + window.len() as u32);
                let inputs: Vec<_> = window.iter().map(|var| var.get()).chain([last]).collect();
                sums.add_products(&p.weights(&rows, channel, tap * along.kernel + j), &inputs);
                window.iter().zip(&inputs[1..]).for_each(|(var, &next)| var.set(next));
            });
        });
    });
}

/// Visits the taps along some axes. `visit` gets the tap's place in that part of the kernel, and each column's source.
fn each_tap<'k>(
    p: &ConvBlock<'k>,
    columns: &[Column<'k>],
    axes: &[Axis<'k>],
    tap: Value<'k>,
    sources: Vec<Source<'k>>,
    visit: &dyn Fn(Value<'k>, &[Source<'k>]),
) {
    let Some((along, inner)) = axes.split_first() else { return visit(tap, &sources) };
    p.k.for_range(along.begin, along.end, |j| {
        let moved = columns.iter().zip(&sources).map(|(column, &(index, inside))| {
            let i = column.starts[along.axis] + j * along.dilation;
            (index + i * p.x_stride(along.axis), inside & i.lt(along.input))
        });
        each_tap(p, columns, inner, tap * along.kernel + along.tap(j), moved.collect(), visit);
    });
}

fn by_workgroup<'k>(p: &ConvBlock<'k>, sums: &Sums<'k>) {
    let k = p.k;
    let depth = p.channels * product(k, p.axes.iter().map(|axis| axis.most_taps));
    let column = p.column(loaded_column(k));
    let a = |rows: [Value<'k>; 4], i: Value<'k>| {
        let (offset, inside) = p.weight_offset(i);
        rows.map(|row| {
            let inside = inside & i.lt(depth) & (p.block_row + row).lt(p.rows);
            p.load(|index| p.weight.load(index), (p.weight_row(row) + offset, inside), p.weight_start)
        })
    };
    let b = |first: Value<'k>| {
        let (mut channel, mut taps) = p.depth_place(first);
        std::array::from_fn(|i| {
            if i > 0 {
                (channel, taps) = p.next_depth(channel, &taps);
            }
            let start = (column.image + channel * p.channel_stride(), (first + i as u32).lt(depth));
            let source = taps.iter().enumerate().fold(start, |(index, inside), (axis, &j)| {
                let along = &p.axes[axis];
                let i = column.starts[axis] + j * along.dilation;
                (index + i * p.x_stride(axis), inside & i.lt(along.input) & j.lt(along.taps))
            });
            p.load(|index| p.x.load(index), source, column.image)
        })
    };
    add_by_workgroup(k, p.number, sums, depth, a, b);
}

impl<'k> ConvBlock<'k> {
    /// Returns the offset in its row of the weight for a place along the depth, and whether there is one.
    fn weight_offset(&self, depth: Value<'k>) -> Source<'k> {
        if !self.transposed {
            // The weights of a row are in the order of the depth.
            return (depth, self.k.bool(true));
        }
        let (channel, taps) = self.depth_place(depth);
        let start = (self.k.u32(0), self.k.bool(true));
        let (tap, inside) = self
            .axes
            .iter()
            .zip(taps)
            .fold(start, |(tap, inside), (axis, j)| (tap * axis.kernel + axis.tap(j), inside & j.lt(axis.taps)));
        (channel * self.weight_strides[1] + tap, inside)
    }

    /// Returns the next place along the depth: its channel and taps.
    fn next_depth(&self, channel: Value<'k>, taps: &[Value<'k>]) -> (Value<'k>, Vec<Value<'k>>) {
        let mut carry = self.k.u32(1);
        let mut next = taps.to_vec();
        for (tap, axis) in next.iter_mut().zip(&self.axes).rev() {
            let moved = *tap + carry;
            let full = moved.eq(axis.most_taps);
            *tap = full.select(self.k.u32(0), moved);
            carry = full.select(self.k.u32(1), 0);
        }
        (channel + carry, next)
    }
}
