//! Resizes axes by interpolation. Each invocation computes four consecutive elements of the output, or these four of
//! several planes. A plane is what the resized axes hold. If outputs share inputs, an invocation computes four by four.

use super::Family;
use super::elements::{Elements, Octets, Quads, take_apart};
use super::interpolation::{Interpolation, Tap, combined, cubic_weights, linear_weights};
use super::parameters::{Bits, Each, Float, Form, Lengths, Signed, Size, View, parameters, times};
use crate::base::dtype::DType;
use crate::shader::{KernelBuilder, Scalar, Type, Value};

/// Added to a quotient before the division, so that a guess of the quotient is never too large.
pub(crate) const MARGIN: u32 = 16;

/// Resizes the last axes of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Resize {
    pub dtype: DType,
    pub interpolation: Interpolation,
    /// The number of axes, and how many of the last ones are resized.
    pub rank: usize,
    pub resized: usize,
    /// Whether an invocation computes the same elements of several planes, as it finds their places once for all of
    /// them. The last axis of the output has a multiple of four elements then, and one axis is not resized.
    pub by_planes: bool,
    /// How many inputs the second, third and fourth output of such a quad are behind the first one along the last axis,
    /// if this is the same for all quads. An input that several of them combine is then loaded once.
    pub steps: Option<[u32; 3]>,
    /// The same along the axis before, if `steps` are known and that axis of the output is a multiple of four, too. An
    /// invocation then computes four such quads, one below the other.
    pub row_steps: Option<[u32; 3]>,
    /// Whether all rows of inputs begin at even places. It matters for dtypes of two bytes.
    pub even_rows: bool,
    /// If an invocation computes two neighbouring quads, each of which is two inputs behind the one before: which of
    /// their inputs is the first of four that one load brings. Rows of inputs begin at multiples of four then, elements
    /// have two bytes, and no axis is resized but those that share inputs.
    pub four_from: Option<u32>,
    /// Invocations per workgroup.
    pub workgroup: u32,
}

parameters! {
    config: Resize;
    host: Parameters;
    device: Declared;
    /// The number of elements of the output.
    count: Size,
    /// The number of planes that an invocation computes, if it may be several.
    planes: Option<Size> = config.has_several_planes().then_some(Size),
    /// The lengths of the output's axes.
    lengths: Lengths = Lengths(config.rank),
    x: View = View(config.rank),
    /// A line for each resized axis that is not in `shared`.
    lines: Each<LineForm> = times(config.resized - config.shared()),
    /// The last axes, along which each four outputs share inputs in the same way.
    shared: Each<SharedLineForm> = config.shared_lines(),
    /// The coefficient of a cubic interpolation.
    a: Option<Float> = (config.interpolation == Interpolation::Cubic).then_some(Float(config.dtype)),
}

impl Resize {
    /// Returns the number of last axes along which each four outputs share inputs in the same way.
    pub fn shared(&self) -> usize {
        usize::from(self.steps.is_some()) + usize::from(self.row_steps.is_some())
    }

    /// Returns the number of fractions of such an axis.
    pub fn fractions(&self) -> usize {
        if self.interpolation == Interpolation::Nearest { 0 } else { 4 }
    }

    /// Returns the kernel, or one that shares less, if the parameters of what is shared are too many.
    pub fn fitting(self, most_words: usize) -> Self {
        let in_rows = Resize { row_steps: None, even_rows: false, four_from: None, ..self.clone() };
        let alone = Resize { steps: None, ..in_rows.clone() };
        [self, in_rows].into_iter().find(|kernel| kernel.parameter_words() <= most_words).unwrap_or(alone)
    }

    /// Returns the number of neighbouring quads that an invocation computes.
    pub fn quads(&self) -> u32 {
        if self.four_from.is_some() { 2 } else { 1 }
    }

    /// Whether an invocation may compute several planes. Two blocks of four by four are enough for it.
    pub fn has_several_planes(&self) -> bool {
        self.by_planes && !(self.four_from.is_some() && self.row_steps.is_some())
    }

    fn shared_lines(&self) -> Each<SharedLineForm> {
        let form = || SharedLineForm { fractions: self.fractions(), dtype: self.dtype };
        (0..self.shared()).map(|_| form()).collect()
    }

    /// Returns the type in which weights are computed.
    fn weight_scalar(&self) -> Scalar {
        match (self.interpolation, self.dtype) {
            (Interpolation::Linear | Interpolation::Cubic, DType::F64) => Scalar::F64,
            _ => Scalar::F32,
        }
    }

    /// Returns the weights of the inputs around a place that is `t` behind an input, and the first of these inputs,
    /// counted from that one. The nearest one has no weight.
    fn weights<'k>(&self, a: Option<Value<'k>>, t: Value<'k>) -> (i32, Vec<Option<Value<'k>>>) {
        match (self.interpolation, a) {
            (Interpolation::Nearest, _) => (0, vec![None]),
            (Interpolation::Cubic, Some(a)) => (-1, cubic_weights(a, t).map(Some).to_vec()),
            _ => (0, linear_weights(t).map(Some).to_vec()),
        }
    }
}

/// The form of a line: the places in the input of the output's elements along an axis. Element `i` is at
/// `(slope i + start) / unit`. These are whole numbers, so that no rounding decides which element is the nearest.
#[derive(Default)]
pub(crate) struct LineForm;

parameters! {
    config: LineForm;
    host: LineParameters;
    device: Line;
    /// Modulo 2^32.
    slope: Bits,
    /// With `MARGIN * unit` added, modulo 2^32.
    start: Bits,
    unit: Size,
    /// `slope / unit`, rounded.
    ratio: Float = Float(DType::F32),
    /// `start / unit` without the margin, rounded.
    begin: Float = Float(DType::F32),
    /// The length of the input's axis.
    length: Size,
}

impl<'k> Line<'k> {
    /// Returns the whole part of the place of element `i`, which may be -1 or less, and the remaining fraction.
    fn place(&self, i: Value<'k>, scalar: Scalar) -> [Value<'k>; 2] {
        // The numerator may not fit 32 bits, but its rest after the guess does.
        let guess = (i.convert(Scalar::F32) * self.ratio + self.begin).floor().convert(Scalar::U32);
        let rest = i * self.slope + self.start - guess * self.unit;
        let whole = (guess + rest / self.unit).convert(Scalar::I32) - MARGIN as i32;
        let fraction = (rest % self.unit).convert(scalar) / self.unit.convert(scalar);
        [whole, fraction]
    }

    /// Returns the elements along this axis that output element `i` combines.
    fn taps(&self, config: &Resize, a: Option<Value<'k>>, stride: Value<'k>, i: Value<'k>) -> Vec<Tap<'k>> {
        let [whole, t] = self.place(i, config.weight_scalar());
        let (first, weights) = config.weights(a, t);
        let tap = |(n, weight)| Tap { offset: self.offset(whole + n, stride), inside: None, weight };
        (first..).zip(weights).map(tap).collect()
    }

    /// Returns the offset of the input at a place, or of the nearest one if the place is outside.
    fn offset(&self, place: Value<'k>, stride: Value<'k>) -> Value<'k> {
        nearest_inside(place, self.length) * stride
    }
}

/// Returns the place, or the nearest one on an axis of this length.
fn nearest_inside<'k>(place: Value<'k>, length: Value<'k>) -> Value<'k> {
    place.max(0).convert(Scalar::U32).min(length - 1)
}

/// The form of a line whose outputs go on by a whole number of inputs from quad to quad.
pub(crate) struct SharedLineForm {
    /// The number of fractions, if any. The nearest element needs none.
    fractions: usize,
    dtype: DType,
}

parameters! {
    config: SharedLineForm;
    host: SharedLineParameters;
    device: SharedLine;
    /// The place of the first output, rounded down.
    first: Signed,
    /// How many inputs a quad is behind the one before it.
    step: Size,
    /// What is left of the places of a quad's outputs.
    fractions: Each<Float> = (0..config.fractions).map(|_| Float(config.dtype)).collect(),
    /// The length of the input's axis.
    length: Size,
}

impl<'k> SharedLine<'k> {
    /// Returns what the outputs of a quad share, or of two quads from an even one on. `steps` tells how many inputs the
    /// second, third and fourth output of a quad are behind the first one.
    fn sharing(
        &self,
        config: &Resize,
        a: Option<Value<'k>>,
        stride: Value<'k>,
        (quad, quads): (Value<'k>, u32),
        [second, third, fourth]: [u32; 3],
    ) -> Sharing<'k> {
        let (first, weights) = match self.fractions[..] {
            [] => (0, Vec::new()),
            _ => config.weights(a, quad.kernel().vector(&self.fractions)),
        };
        let whole = self.first + (quad * self.step).bitcast(Type::I32) + first;
        let offset = |n: u32| nearest_inside(whole + n as i32, self.length) * stride;
        let offsets = (0..2 * (quads - 1) + fourth + config.interpolation.taps()).map(offset).collect();
        let steps = (0..quads).flat_map(|n| [0, second, third, fourth].map(|step| (2 * n + step) as usize)).collect();
        // Opaque, as in `combined`. Nothing is known of a weight that is a fraction itself.
        let is_fraction = |n: usize| config.interpolation == Interpolation::Linear && n == 1;
        let weights = weights.into_iter().flatten().enumerate();
        let weights = weights.map(|(n, weight)| if is_fraction(n) { weight } else { weight.opaque() }).collect();
        Sharing { offsets, steps, weights }
    }
}

/// Neighbouring outputs along an axis, and the inputs that they share.
struct Sharing<'k> {
    /// Of all inputs that any output combines.
    offsets: Vec<Value<'k>>,
    /// Each output's first input among them.
    steps: Vec<usize>,
    /// The weights of each output's inputs: a lane per output. An output of one input has none.
    weights: Vec<Value<'k>>,
}

impl<'k> Sharing<'k> {
    /// One output, which is its input.
    fn alone(k: &'k KernelBuilder) -> Self {
        Sharing { offsets: vec![k.u32(0)], steps: vec![0], weights: Vec::new() }
    }

    /// Returns the sum of an output's inputs times their weights. `input` gets the number of an input, counted from the
    /// output's first one, and `weight` what the weights of an input are.
    fn sum(&self, weight: impl Fn(Value<'k>) -> Value<'k>, input: impl Fn(usize) -> Value<'k>) -> Value<'k> {
        let terms = self.weights.iter().enumerate().map(|(n, &own)| weight(own) * input(n));
        terms.reduce(|sum, term| sum + term).unwrap_or_else(|| input(0))
    }
}

/// Where results are stored: a quad, or two neighbouring ones at a time.
enum Results<'k> {
    Quads(Quads<'k>),
    Octets(Octets<'k>),
}

impl<'k> Results<'k> {
    fn new(k: &'k KernelBuilder, dtype: DType, quads: u32) -> Self {
        match quads {
            2 => Results::Octets(Octets::output(k, "y", dtype)),
            _ => Results::Quads(Quads::output(k, "y", dtype)),
        }
    }

    /// Stores neighbouring quads. `first` counts quads.
    fn store(&self, k: &'k KernelBuilder, first: Value<'k>, quads: &[Value<'k>]) {
        match (self, quads) {
            (Results::Quads(y), _) => (0..).zip(quads).for_each(|(n, &quad)| y.store(k, first + n, quad)),
            (Results::Octets(y), &[a, b]) => y.store(k, first / 2, [a, b]),
            _ => unreachable!("an octet has two quads"),
        }
    }

    /// The same for elements that are only moved. 64-bit elements are vectors of two words.
    fn store_lanes(&self, k: &'k KernelBuilder, first: Value<'k>, quads: &[[Value<'k>; 4]]) {
        match self {
            Results::Quads(y) => (0..).zip(quads).for_each(|(n, &lanes)| y.store_lanes(k, first + n, lanes)),
            Results::Octets(_) => self.store(k, first, &quads.iter().map(|lanes| k.vector(lanes)).collect::<Vec<_>>()),
        }
    }
}

impl Family for Resize {
    fn name(&self) -> String {
        let Resize { dtype, interpolation, rank, resized, workgroup, .. } = self;
        let planes = if self.by_planes { ", by planes" } else { "" };
        let named = |name, steps: Option<[u32; 3]>| {
            steps.map_or_else(String::new, |[b, c, d]| format!(", {name} 0-{b}-{c}-{d}"))
        };
        let (steps, rows) = (named("steps", self.steps), named("rows", self.row_steps));
        let even = if self.even_rows { ", even" } else { "" };
        let four = self.four_from.map_or_else(String::new, |first| format!(", four from {first}"));
        let shared = format!("{planes}{steps}{rows}{even}{four}");
        format!("resize({dtype}, {interpolation:?}, {resized} of {rank}{shared}, {workgroup})").to_lowercase()
    }

    fn workgroup(&self) -> u32 {
        self.workgroup
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let Declared { count, planes: own, lengths, x: x_at, lines, shared, a } = self.declare(k);
        let nearest = self.interpolation == Interpolation::Nearest;
        let x = match self.four_from {
            Some(_) => Elements::input_by_fours(k, "x", self.dtype),
            None if nearest => Elements::moved(k, "x", self.dtype),
            None => Elements::input(k, "x", self.dtype),
        };
        let y = Results::new(k, if nearest { self.dtype.moved() } else { self.dtype }, self.quads());

        let taps_at = |resized: &[Value<'k>]| -> Vec<Vec<Tap<'k>>> {
            let axes = lines.iter().zip(resized).enumerate();
            axes.map(|(n, (line, &i))| line.taps(self, a, x_at.stride(self.resized - n), i)).collect()
        };
        let store = |quad, first: Value<'k>, taps: &[Vec<Tap<'k>>]| {
            if nearest {
                let index = taps.iter().flatten().fold(first, |index, tap| index + tap.offset);
                return y.store_lanes(k, quad, &[[0, 1, 2, 3].map(|lane| x.load(index.lane(lane)))]);
            }
            y.store(k, quad, &[combined(k, x, first, None, taps)]);
        };
        if !self.by_planes {
            let quad = k.global_index();
            k.when((quad * 4).lt(count), || {
                let places = lengths.quad_coordinates(k, quad, count);
                let (kept, resized) = places.split_at(self.rank - self.resized);
                store(quad, x_at.at(kept), &taps_at(resized));
            });
            return;
        }
        let [planes, outer @ .., columns] = lengths.lengths() else { unreachable!("planes have an axis") };
        let quads = self.quads();
        let mut sizes = [outer, &[*columns / (4 * quads)]].concat();
        let rows_of_invocation = if self.row_steps.is_some() { 4 } else { 1 };
        if let (Some(_), [.., rows, _]) = (self.row_steps, &mut sizes[..]) {
            *rows = *rows / 4;
        }
        let (block, places) = take_apart(k.global_index(), &sizes);
        k.when(own.map_or(block, |own| block * own).lt(*planes), || {
            let ([outer_sizes @ .., width], [outer_places @ .., place]) = (&sizes[..], &places[..]) else {
                unreachable!("an axis is resized")
            };
            let (width, quad) = if quads == 1 { (*width, *place) } else { (*width * quads, *place * quads) };
            let each_plane = |store: &dyn Fn(Value<'k>, Value<'k>)| {
                let in_plane = |plane| {
                    let outer = outer_sizes.iter().zip(outer_places);
                    let line = outer.fold(plane, |index, (&size, &place)| index * size + place);
                    store(line * rows_of_invocation * width + quad, x_at.at(&[plane]));
                };
                match own {
                    Some(own) => k.for_range(block * own, (block * own + own).min(*planes), in_plane),
                    None => in_plane(block),
                }
            };
            let (Some(steps), [.., along]) = (self.steps, &shared[..]) else {
                let columns = k.vector(&[0, 1, 2, 3].map(|lane| quad * 4 + lane));
                let taps = taps_at(&[outer_places, &[columns]].concat());
                return each_plane(&|quad, first| store(quad, first, &taps));
            };
            let columns = along.sharing(self, a, x_at.stride(1), (quad, quads), steps);
            let (rows, places) = match (self.row_steps, &shared[..], outer_places) {
                (Some(steps), [down, _], [places @ .., row]) => {
                    (down.sharing(self, a, x_at.stride(2), (*row, 1), steps), places)
                }
                _ => (Sharing::alone(k), outer_places),
            };
            let taps = taps_at(places);
            // The inputs of a line that the outputs share.
            let inputs = |first: Value<'k>| -> Vec<Value<'k>> {
                let four = self.four_from.map(|from| {
                    let at = columns.offsets[from as usize];
                    (from as usize, x.load_four(k, first / 4 + at / 4).lanes())
                });
                let input = |(n, &at): (usize, &Value<'k>)| match (&four, &taps[..]) {
                    (Some((from, four)), _) if (*from..from + 4).contains(&n) => four[n - from],
                    (Some(_), _) => x.load_behind(first, at),
                    (None, []) if self.even_rows => x.load_behind(first, at),
                    (None, _) if nearest => x.load(first + at),
                    (None, taps) => combined(k, x, first + at, None, taps),
                };
                columns.offsets.iter().enumerate().map(input).collect()
            };
            if nearest {
                return each_plane(&|quad, first| {
                    let first = taps.iter().flatten().fold(first, |index, tap| index + tap.offset);
                    let lines: Vec<_> = rows.offsets.iter().map(|&at| inputs(first + at)).collect();
                    for (n, &step) in (0..).zip(&rows.steps) {
                        let four = |steps: &[usize]| std::array::from_fn(|lane| lines[step][steps[lane]]);
                        let fours: Vec<_> = columns.steps.chunks(4).map(four).collect();
                        y.store_lanes(k, quad + width * n, &fours);
                    }
                });
            }
            // The sums along columns, quad by quad.
            let line = |first: Value<'k>| -> Vec<Value<'k>> {
                let inputs = inputs(first);
                let quad = |steps: &[usize]| {
                    let four = |n| steps.iter().map(|step| inputs[step + n]).collect::<Vec<_>>();
                    columns.sum(|weight| weight, |n| k.vector(&four(n)))
                };
                columns.steps.chunks(4).map(quad).collect()
            };
            each_plane(&|quad, first| {
                let lines: Vec<_> = rows.offsets.iter().map(|&at| line(first + at)).collect();
                for (n, &step) in (0..).zip(&rows.steps) {
                    let sum = |four| rows.sum(|weight| weight.lane(n), |tap| lines[step + tap][four as usize]);
                    y.store(k, quad + width * n, &(0..quads).map(sum).collect::<Vec<_>>());
                }
            });
        });
    }

    fn samples() -> Vec<Self> {
        let sample = |dtype, interpolation| Resize {
            dtype,
            interpolation,
            rank: 3,
            resized: 2,
            by_planes: false,
            steps: None,
            row_steps: None,
            even_rows: false,
            four_from: None,
            workgroup: 64,
        };
        let mut samples = Vec::new();
        for dtype in DType::ALL {
            samples.push(sample(dtype, Interpolation::Nearest));
        }
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
            samples.extend([Interpolation::Linear, Interpolation::Cubic].map(|way| sample(dtype, way)));
        }
        let by_planes: Vec<_> = samples.iter().map(|sample| Resize { by_planes: true, ..sample.clone() }).collect();
        let by_two = by_planes.iter().map(|sample| Resize { steps: Some([1, 1, 2]), ..sample.clone() });
        let by_two: Vec<_> = by_two.collect();
        let by_rows = by_two.iter().map(|sample| Resize { row_steps: Some([0, 1, 1]), ..sample.clone() });
        let by_octets = by_rows.clone().filter(|sample| sample.dtype.size_in_bytes() == 2);
        samples.extend(by_octets.map(|sample| {
            let from = if sample.interpolation == Interpolation::Cubic { 2 } else { 1 };
            Resize { four_from: Some(from), workgroup: 32, ..sample }
        }));
        samples
            .extend(by_rows.flat_map(|sample| [true, false].map(|even_rows| Resize { even_rows, ..sample.clone() })));
        samples.extend(by_two);
        samples.extend(by_planes);
        samples
    }
}
