//! Normalisations: each row of elements becomes a function of the whole row. The elements along some axes form a row.

use super::Family;
use super::elements::{Elements, Quads};
use super::elementwise::{InputLayout, RESULTS};
use super::epilogue::{Epilogue, Outputs, Store};
use super::expr::{BinaryOp, Expr, UnaryOp};
use super::parameters::{Float, Form, Size, View, parameters};
use super::prologue::{Head, Prologue};
use super::rows::RowsType;
use super::workgroup::{Member, Spot, Team, Turn, tree};
use crate::base::dtype::DType;
use crate::shader::{Dialect, KernelBuilder, Type, Value};
use smallvec::SmallVec;
use std::rc::Rc;

/// The function of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum NormalizeOp {
    /// `exp(x - max) / sum(exp(x - max))`
    Softmax,
    /// `x - max - log(sum(exp(x - max)))`
    LogSoftmax,
    /// `(x - mean) / sqrt(variance + eps)`, with the biased variance.
    LayerNorm,
    /// `x / sqrt(mean(x^2) + eps)`
    RmsNorm,
    /// `x / max(sqrt(sum(x^2)), eps)`
    L2,
}

impl NormalizeOp {
    pub const ALL: [NormalizeOp; 5] =
        [NormalizeOp::Softmax, NormalizeOp::LogSoftmax, NormalizeOp::LayerNorm, NormalizeOp::RmsNorm, NormalizeOp::L2];

    /// True if the operation has a parameter eps.
    pub fn has_eps(self) -> bool {
        !matches!(self, NormalizeOp::Softmax | NormalizeOp::LogSoftmax)
    }
}

/// The most loads of a member whose weights and biases are loaded before the row is added up.
const MOST_EARLY: u32 = 8;

/// How much larger than the subtracted number a row's largest one may be. Up to here, their difference is rounded by at
/// most 2^-21, so its exponential is off by as much of itself.
const MOST_ABOVE: f32 = 16.0;

/// The elements of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Load {
    Element,
    /// Four elements of a row. They are contiguous in input, output, weight and bias, from multiples of four on.
    Along,
    /// One element of each of four rows. They are contiguous in input and output, from multiples of four on.
    Across,
}

impl Load {
    /// The number of elements of each row in a load.
    pub fn along(self) -> u32 {
        if self == Load::Along { 4 } else { 1 }
    }

    /// The number of rows in a load.
    pub fn across(self) -> u32 {
        if self == Load::Across { 4 } else { 1 }
    }

    /// Returns the dtype of the output for elements of `dtype`. It has 32 bits or more, unless quads are stored.
    pub fn output(self, dtype: DType) -> DType {
        if self == Load::Element { dtype.widened() } else { dtype }
    }
}

/// Where a row is kept between the passes over it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Held {
    /// In memory. Each pass reads the row again.
    Memory(Turn),
    /// In the results, as exponentials, until their sum is known: for softmax of `f32` by fours, by a subgroup, without
    /// an epilogue.
    Results(Turn),
    /// In the registers of the team. Each member has this many loads, every `team.size()`th of the row.
    Registers(u32),
}

/// A normalisation, followed by `y weight + bias` if the kernel has them. The output is contiguous, and
/// [`Load::output`] gives its dtype. Its buffers are, in order: the elements, the other inputs of the prologue, weight
/// and bias, the inputs of the epilogue, the results, the terms that the epilogue keeps, and the elements that the
/// prologue keeps.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Normalize {
    pub op: NormalizeOp,
    pub rows: RowsType,
    /// The expression of the elements, if they are not just loaded.
    pub prologue: Option<Box<Prologue>>,
    /// True if the elements are stored too, because something else reads them.
    pub keeps_elements: bool,
    /// The expression of the results. If single elements are stored, they have 32 bits or more.
    pub epilogue: Option<Box<Epilogue>>,
    pub weight: bool,
    pub bias: bool,
    /// True if a row is a group of channels with a weight and a bias each. If not, each element of a row has its own.
    pub per_channel: bool,
    pub team: Team,
    /// The lanes of the device's subgroups, if the kernel uses them.
    pub subgroup: Option<u32>,
    pub load: Load,
    pub held: Held,
}

parameters! {
    config: Normalize;
    host: Parameters;
    device: Declared;
    /// The number of rows.
    count: Size,
    /// The length of a row.
    length: Size,
    /// The number of rows that lie side by side: the product of the lengths of the axes inside of the normalised ones.
    inner: Size,
    rows: RowsType = config.rows,
    prologue: Option<Prologue> => config.prologue.as_deref(),
    /// The number of columns of the epilogue's rows.
    columns: Option<Size> = config.epilogue.is_some().then_some(Size),
    epilogue: Option<Epilogue> => config.epilogue.as_deref(),
    eps: Option<Float> = config.op.has_eps().then_some(Float(config.dtype())),
    channels: Option<Channels> = config.per_channel.then_some(Channels),
    weight: Option<View> = config.weight.then_some(View(1)),
    bias: Option<View> = config.bias.then_some(View(1)),
}

/// The form of rows that are groups of channels.
pub(crate) struct Channels;

parameters! {
    config: Channels;
    host: ChannelParameters;
    device: DeclaredChannels;
    /// The number of groups of channels.
    groups: Size,
    /// The number of channels of a group.
    channels: Size,
    /// The number of elements of a channel.
    elements: Size,
}

impl Normalize {
    /// The dtype of the elements that are normalised.
    pub fn dtype(&self) -> DType {
        self.prologue.as_ref().map_or(self.rows.dtype, |prologue| prologue.expr.dtype())
    }
}

impl Family for Normalize {
    fn name(&self) -> String {
        let subgroups = if self.subgroup.is_some() { ", subgroups" } else { "" };
        let kept = if self.keeps_elements { ", kept" } else { "" };
        let Normalize { op, team, load, held, .. } = self;
        let elements = self.prologue.as_ref().map_or(self.rows.dtype.to_string(), |x| x.expr.describe());
        let name = format!("{op:?}({elements}{kept}, {team:?}{subgroups}, {load:?}, {held:?})").to_lowercase();
        self.epilogue.as_ref().map_or_else(|| name.clone(), |y| format!("{name}, {}", y.expr.describe()))
    }

    fn workgroup(&self) -> u32 {
        self.team.workgroup()
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let Declared { count, length, inner, rows, prologue, columns, epilogue, eps, channels, weight, bias } =
            self.declare(k);
        let (dtype, along, across) = (self.dtype(), self.load.along(), self.load.across());
        let x = Source::input(k, "x", self.rows.dtype, along * across);
        let head = self.prologue.as_ref().zip(prologue).map(|(config, at)| Head::new(k, "p", config, at));
        let width = if self.per_channel { 1 } else { along };
        let weight = weight.map(|at| (Source::input(k, "weight", dtype, width), at));
        let bias = bias.map(|at| (Source::input(k, "bias", dtype, width), at));
        let epilogue = self.epilogue.as_deref().zip(epilogue);
        let y = match self.held {
            Held::Results(_) => Results::Held(Quads::in_place(k, RESULTS, dtype)),
            _ => Results::Written(Outputs::new(k, self.load.output(dtype), along * across, epilogue, columns)),
        };
        let elements = self.keeps_elements.then(|| Store::new(k, "elements", dtype, along * across));

        let member = self.team.join(k).in_subgroups(self.subgroup);
        // The only row, or the first of four.
        let row = (member.row * across).min(count - across);
        let kept = rows.kept.coordinates(row);
        // Fours lie side by side along the only axis of a row.
        let by_fours = self.load == Load::Along;
        let place_in = move |lane: Value<'k>| [&kept[..], &rows.along.coordinates(lane)].concat();
        let first_four = by_fours.then(|| rows.x.at(&place_in(k.u32(0))) / 4);
        let load = move |at: Spot<'k>| {
            let place = |lane: u32| place_in(at.index() * along + lane);
            let element = match (&x, first_four) {
                (Source::Quads(x), Some(first)) => at.load(k, *x, first),
                _ => x.load(k, rows.x.at(&place(0))),
            };
            head.as_ref().map_or(element, |head| head.apply(k, element, place))
        };
        let terms = length.convert(dtype.compute_scalar());
        let ty = Type { scalar: dtype.compute_scalar(), lanes: across };
        let x = Row::new(member, self.held, ty, length / along, load);
        // From here on `j` counts loads.
        let affine = |j: Value<'k>| {
            let j = j * along;
            let channel = |at: &DeclaredChannels<'k>| row % at.groups * at.channels + j / at.elements;
            let place = [channels.as_ref().map_or(j, channel)];
            [&weight, &bias].map(|vector| vector.as_ref().map(|(source, at)| source.load(k, at.at(&place))))
        };
        // Weights and biases of a short row are on their way while it is added up. Else each load would wait for the
        // store before it. Those of a longer row would take too many registers.
        let is_short = matches!(self.held, Held::Registers(..=MOST_EARLY)) && k.target().dialect != Dialect::OpenCl;
        let early: Vec<_> = x.held_places().filter(|_| is_short).map(affine).collect();

        let row_exists = (member.row * across).lt(count);
        // Fours along a row have no neighbouring rows between them.
        let start = row * length;
        let output_place = move |j: Value<'k>| match by_fours {
            true => start + j,
            false => (row / inner * length + j) * inner + row % inner,
        };
        let one = k.number(ty, 1);
        let eps = eps.unwrap_or(k.number(ty, 0));
        let by_subgroup = self.subgroup == Some(self.team.size());
        let is_in_memory = matches!(self.held, Held::Memory(_) | Held::Results(_));
        let has_reference = self.op == NormalizeOp::Softmax && by_fours && by_subgroup && is_in_memory;
        // Without a guard, the row exists for sure.
        let compute = |guard: Option<Value<'k>>| {
            // Kept elements come first, because `softmax_in` also stores the results.
            if let Some(elements) = &elements {
                x.each(|Place { index: j, exists, .. }, element| {
                    when_all(k, [guard, exists], || elements.store(k, output_place(j * along), element));
                });
            }
            let y = match &y {
                &Results::Held(y) if has_reference => return x.softmax_in(y, start / 4),
                Results::Held(_) => return k.fail("results hold a row only for softmax, by a subgroup"),
                Results::Written(y) => y,
            };
            let y_row = match self.op {
                NormalizeOp::Softmax if has_reference => {
                    let (reference, total) = x.reference_and_total(|_, _| {});
                    let scale = one / total;
                    x.map(move |x| (x - reference).exp_below_88() * scale)
                }
                NormalizeOp::Softmax | NormalizeOp::LogSoftmax => {
                    let (largest, total) = x.largest();
                    let shifted = x.map(move |x| x - largest);
                    let exp = shifted.map(Value::exp_below_88);
                    let total = total.unwrap_or_else(|| exp.sum());
                    if self.op == NormalizeOp::Softmax {
                        let scale = one / total;
                        exp.map(move |e| e * scale)
                    } else {
                        let log = total.log();
                        shifted.map(move |x| x - log)
                    }
                }
                NormalizeOp::LayerNorm => {
                    let mean = x.sum() / terms;
                    let deviation = x.map(move |x| x - mean);
                    let variance = deviation.map(|d| d * d).sum() / terms;
                    let scale = one / (variance + eps).sqrt();
                    deviation.map(move |d| d * scale)
                }
                NormalizeOp::RmsNorm => {
                    let scale = one / (x.map(|x| x * x).sum() / terms + eps).sqrt();
                    x.map(move |x| x * scale)
                }
                NormalizeOp::L2 => {
                    let norm = x.map(|x| x * x).sum().sqrt().max(eps);
                    x.map(move |x| x / norm)
                }
            };

            y_row.each(|Place { number, index: j, exists }, normal| {
                // If a team is one invocation, surplus rows would only repeat the last row's stores. The guard covers
                // them too.
                when_all(k, [guard, exists], || {
                    let [weight, bias] = early.get(number).copied().unwrap_or_else(|| affine(j));
                    let scaled = weight.map_or(normal, |weight| normal * weight);
                    let shifted = bias.map_or(scaled, |bias| scaled + bias);
                    y.store(k, output_place(j * along), shifted);
                });
            });
        };
        // A team of one subgroup has no barriers, so surplus ones may leave all of this out.
        match by_subgroup {
            true => drop(k.when(row_exists, || compute(None))),
            false => compute(Some(row_exists)),
        }
    }

    fn samples() -> Vec<Self> {
        let mut samples = Vec::new();
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
            for op in NormalizeOp::ALL {
                let affine = matches!(op, NormalizeOp::LayerNorm | NormalizeOp::RmsNorm);
                let bias = op == NormalizeOp::LayerNorm;
                let rows = RowsType { dtype, kept_rank: 1, row_rank: 1 };
                let [invocation, workgroup] = Team::ALL;
                let columns = Team::Columns { members: 8, side_by_side: 8 };
                let (single, singles, held) =
                    (Held::Memory(Turn::Single), Held::Memory(Turn::Singles), Held::Registers(2));
                let mut cuts = vec![
                    (invocation, None, Load::Element, single),
                    (workgroup, None, Load::Element, single),
                    (workgroup, None, Load::Element, singles),
                    (workgroup, None, Load::Element, held),
                    (workgroup, None, Load::Along, held),
                    (workgroup, Some(32), Load::Along, held),
                    (workgroup, None, Load::Along, Held::Registers(MOST_EARLY + 1)),
                    (Team::Workgroup(8), Some(8), Load::Along, single),
                    (Team::Workgroup(8), Some(8), Load::Along, Held::Memory(Turn::Quads)),
                    (Team::Workgroup(8), Some(8), Load::Along, Held::Memory(Turn::WholeQuads(2))),
                ];
                if (op, dtype) == (NormalizeOp::Softmax, DType::F32) {
                    let held = [Turn::Single, Turn::WholeQuads(4)].map(Held::Results);
                    cuts.extend(held.map(|held| (Team::Workgroup(8), Some(8), Load::Along, held)));
                }
                // The caller of these operations chooses the axis of the rows.
                if matches!(op, NormalizeOp::Softmax | NormalizeOp::L2) {
                    cuts.extend([(columns, None, Load::Across, singles), (columns, None, Load::Across, held)]);
                }
                samples.extend(cuts.into_iter().map(|(team, subgroup, load, held)| Normalize {
                    op,
                    rows,
                    prologue: None,
                    keeps_elements: false,
                    epilogue: None,
                    weight: affine,
                    bias,
                    per_channel: false,
                    team,
                    subgroup,
                    load,
                    held,
                }));
            }
        }
        let fused = samples.iter().filter(|sample| sample.is_plain_layer_norm()).map(Normalize::fused);
        let fused: Vec<_> = fused.collect();
        samples.extend(fused);
        samples
    }
}

impl Normalize {
    /// Whether the sample stands for all that can have a prologue.
    fn is_plain_layer_norm(&self) -> bool {
        let stores = self.load == Load::Along || self.rows.dtype == DType::F32;
        self.op == NormalizeOp::LayerNorm && stores && self.rows.dtype != DType::F64
    }

    /// Returns the sample for `silu(layer_norm(x + other))`, which stores the sum too.
    fn fused(&self) -> Normalize {
        let (dtype, wide) = (self.rows.dtype, self.rows.dtype.widened());
        let mut expr = Expr::default();
        let (x, other) = (expr.input(0, dtype), expr.input(1, dtype));
        let sum = expr.binary(BinaryOp::Add, x, other);
        expr.rounded(dtype, sum);
        let layout = if self.load == Load::Along { InputLayout::StridedQuads } else { InputLayout::Strided };
        let inputs = [(dtype, layout)].into_iter().collect();
        let prologue = Prologue { expr, inputs, rank: 2, scalars: SmallVec::new() };
        let mut expr = Expr::default();
        let normal = expr.input(0, wide);
        let normal = expr.cast(dtype, normal);
        expr.unary(UnaryOp::Silu, normal);
        let kept = [normal].into_iter().collect();
        let epilogue = Epilogue { expr, inputs: SmallVec::new(), rank: 0, scalars: SmallVec::new(), kept };
        let (prologue, epilogue) = (Some(prologue.into()), Some(epilogue.into()));
        Normalize { prologue, epilogue, keeps_elements: true, ..self.clone() }
    }
}

/// Runs `body` if all conditions hold that there are.
fn when_all<'k>(k: &'k KernelBuilder, conditions: [Option<Value<'k>>; 2], body: impl FnOnce()) {
    match conditions.into_iter().flatten().reduce(|a, b| a & b) {
        Some(condition) => drop(k.when(condition, body)),
        None => body(),
    }
}

/// A buffer that is read by elements or by quads.
enum Source<'k> {
    Elements(Elements<'k>),
    Quads(Quads<'k>),
}

impl<'k> Source<'k> {
    fn input(k: &'k KernelBuilder, name: &str, dtype: DType, width: u32) -> Self {
        if width == 4 {
            Source::Quads(Quads::input(k, name, dtype))
        } else {
            Source::Elements(Elements::input(k, name, dtype))
        }
    }

    fn load(&self, k: &'k KernelBuilder, index: Value<'k>) -> Value<'k> {
        match self {
            Source::Elements(elements) => elements.load(index),
            Source::Quads(quads) => quads.load(k, index / 4),
        }
    }
}

/// The results of a kernel: four of them at a time if rows are held there.
enum Results<'k> {
    Held(Quads<'k>),
    Written(Outputs<'k>),
}

/// A row, or a function of its elements, as a team holds it.
#[derive(Clone)]
struct Row<'k> {
    member: Member<'k>,
    /// The type of a number of the row. For four rows it is a vector.
    ty: Type,
    /// The number of loads of the row.
    length: Value<'k>,
    numbers: Numbers<'k>,
}

#[derive(Clone)]
enum Numbers<'k> {
    /// Loaded from memory whenever they are needed, one turn at a time.
    Memory(Rc<dyn Fn(Spot<'k>) -> Value<'k> + 'k>, Turn),
    /// This member's numbers, with their places. The last place may be beyond the row: its number then repeats the
    /// row's last.
    Registers(Vec<(Value<'k>, Value<'k>)>),
}

/// Where a member's load of a row is.
struct Place<'k> {
    /// How many loads the member had before it, in its turn or in its registers.
    number: usize,
    /// How many loads of the row lie before it.
    index: Value<'k>,
    /// Whether it is in the row. `None` if it is for sure.
    exists: Option<Value<'k>>,
}

impl<'k> Row<'k> {
    fn new(
        member: Member<'k>,
        held: Held,
        ty: Type,
        length: Value<'k>,
        load: impl Fn(Spot<'k>) -> Value<'k> + 'k,
    ) -> Self {
        let numbers = match held {
            Held::Memory(turn) | Held::Results(turn) => Numbers::Memory(Rc::new(load), turn),
            Held::Registers(count) => {
                let places = (0..count).map(|i| member.lane + i * member.lanes());
                Numbers::Registers(places.map(|j| (j, load(Spot::of(j.min(length - 1))))).collect())
            }
        };
        Row { member, ty, length, numbers }
    }

    /// Returns the places of the numbers that this member holds, as far as they are known before the row is gone
    /// through. All are within the row.
    fn held_places(&self) -> impl Iterator<Item = Value<'k>> {
        let numbers = match &self.numbers {
            Numbers::Memory(..) => &[][..],
            Numbers::Registers(numbers) => numbers,
        };
        numbers.iter().map(|&(j, _)| j.min(self.length - 1))
    }

    fn map(&self, f: impl Fn(Value<'k>) -> Value<'k> + 'k) -> Self {
        let numbers = match &self.numbers {
            Numbers::Memory(load, turn) => {
                let load = load.clone();
                Numbers::Memory(Rc::new(move |at| f(load(at))), *turn)
            }
            Numbers::Registers(numbers) => Numbers::Registers(numbers.iter().map(|&(j, x)| (j, f(x))).collect()),
        };
        Row { numbers, ..self.clone() }
    }

    /// Returns the largest number. If one is NaN, the result may be any number, as the sum of the exponentials is NaN
    /// then. If one pass computes both, also returns this sum, for the numbers less the largest.
    fn largest(&self) -> (Value<'k>, Option<Value<'k>>) {
        let own = match &self.numbers {
            // With one pass for both, each load would take a second exponential, which costs more than another pass.
            Numbers::Memory(load, turn @ Turn::Single) => {
                let first = load(Spot::of(self.member.k.u32(0)));
                let most = self.member.k.var(self.together(vec![first], Value::larger));
                self.member.each_turn(*turn, self.length, |spots| {
                    let loads = spots.iter().map(|&at| load(at)).collect();
                    most.set(most.get().larger(self.together(loads, Value::larger)));
                });
                most.get()
            }
            Numbers::Memory(load, turn) => {
                let (largest, total) = self.largest_and_total(&**load, *turn);
                return (largest, Some(total));
            }
            Numbers::Registers(numbers) => self.together(numbers.iter().map(|&(_, x)| x).collect(), Value::larger),
        };
        (self.member.reduce(own, Value::larger), None)
    }

    /// Computes both in one pass. The sum belongs to the largest number so far, and is rescaled if a larger one comes
    /// (M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax", 2018). A second number sums up the
    /// rounding errors of its additions.
    fn largest_and_total(&self, load: &dyn Fn(Spot<'k>) -> Value<'k>, turn: Turn) -> (Value<'k>, Value<'k>) {
        let (k, member) = (self.member.k, self.member);
        let zero = k.number(self.ty, 0);
        let first = self.together(vec![load(Spot::of(k.u32(0)))], Value::larger);
        let (most, sum, rest) = (k.var(first), k.var(zero), k.var(zero));
        member.each_turn(turn, self.length, |spots| {
            let numbers: Vec<_> = spots.iter().map(|&at| load(at)).collect();
            let next = most.get().larger(self.together(numbers.clone(), Value::larger));
            let shift = self.finite(next);
            let scale = (most.get() - shift).exp_below_88();
            let new = self.together(numbers.iter().map(|&x| (x - shift).exp_below_88()).collect(), |a, b| a + b);
            let [total, lost] = (sum.get() * scale).two_sum(new);
            most.set(next);
            sum.set(total);
            rest.set(rest.get() * scale + lost);
        });
        let largest = member.reduce(most.get(), Value::larger);
        let own = (sum.get() + rest.get()) * (most.get() - self.finite(largest)).exp_below_88();
        (largest, member.reduce(own, |a, b| a + b))
    }

    /// Returns a number of the row, and the sum of the exponentials of all numbers less this one. The team is a
    /// subgroup, with a load for each lane. `keep` gets the exponentials.
    ///
    /// In one pass, nothing is rescaled: the number is the largest one of the first loads. If the row has a number that
    /// is larger by more than [`MOST_ABOVE`], or none as large (as 0, if the first are negative infinities), the
    /// exponentials are inexact or no numbers at all. Then a second pass subtracts the row's largest number.
    fn reference_and_total(&self, keep: impl Fn(&Spot<'k>, Value<'k>)) -> (Value<'k>, Value<'k>) {
        let Numbers::Memory(load, turn) = &self.numbers else { unreachable!("rows in registers have no passes") };
        let (k, member, zero) = (self.member.k, self.member, self.member.k.number(self.ty, 0));
        let first = self.together(vec![load(Spot::of(member.lane))], Value::larger);
        let pass = |reference: Value<'k>| {
            let (most, sum, rest) = (k.var(first), k.var(zero), k.var(zero));
            member.each_turn(*turn, self.length, |spots| {
                let numbers: Vec<_> = spots.iter().map(|&at| load(at)).collect();
                let exponentials: Vec<_> = numbers.iter().map(|&x| (x - reference).exp_below_88()).collect();
                spots.iter().zip(&exponentials).for_each(|(at, &exponential)| keep(at, exponential));
                most.set(most.get().larger(self.together(numbers, Value::larger)));
                let [total, lost] = sum.get().two_sum(self.together(exponentials, |a, b| a + b));
                sum.set(total);
                rest.set(rest.get() + lost);
            });
            let total = member.reduce(sum.get() + rest.get(), |a, b| a + b);
            (self.finite(member.reduce(most.get(), Value::larger)), total)
        };
        let reference = self.finite(member.reduce(first, Value::larger));
        let (largest, total) = pass(reference);
        let (reference, total) = (k.var(reference), k.var(total));
        let is_far = (largest - reference.get()).gt(MOST_ABOVE) | largest.lt(reference.get());
        // If a number is NaN, lanes may have found different ones. The pass exchanges numbers between all of them.
        k.when(is_far.subgroup_any(), || {
            reference.set(largest);
            total.set(pass(largest).1);
        });
        (reference.get(), total.get())
    }

    /// Stores the row's softmax, by fours from `start` on. The results hold exponentials until their sum is known:
    /// software devices load them in less time than they compute them again.
    fn softmax_in(&self, y: Quads<'k>, start: Value<'k>) {
        let Numbers::Memory(_, turn) = &self.numbers else { unreachable!("the row is held in the results") };
        let k = self.member.k;
        let (_, total) = self.reference_and_total(|at, exponential| at.store(k, y, start, exponential));
        let scale = k.number(self.ty, 1) / total;
        self.member.each_turn(*turn, self.length, |spots| {
            let exponentials: Vec<_> = spots.iter().map(|at| at.load(k, y, start)).collect();
            for (at, exponential) in spots.iter().zip(exponentials) {
                at.store(k, y, start, exponential * scale);
            }
        });
    }

    /// Returns what is subtracted from numbers of which `x` is the largest. If all are negative infinities, that is
    /// nothing: their exponentials are 0, not NaN.
    fn finite(&self, x: Value<'k>) -> Value<'k> {
        let infinity = self.member.k.f32(f32::NEG_INFINITY).convert(self.ty.scalar);
        x.eq(infinity).select(self.member.k.number(self.ty, 0), x)
    }

    /// Returns the sum of all numbers, by pairs.
    fn sum(&self) -> Value<'k> {
        let (k, member) = (self.member.k, self.member);
        let numbers = match &self.numbers {
            Numbers::Memory(load, turn) => {
                let term = |at| self.together(vec![load(at)], |a, b| a + b);
                return member.sum(k.number(self.ty, 0), *turn, [k.u32(0), self.length], term);
            }
            Numbers::Registers(numbers) => numbers,
        };
        let mut terms: Vec<_> = numbers.iter().map(|&(_, x)| x).collect();
        if let (Some(last), Some(&(j, _))) = (terms.last_mut(), numbers.last()) {
            *last = j.lt(self.length).select(*last, 0);
        }
        member.reduce(self.together(terms, |a, b| a + b), |a, b| a + b)
    }

    /// Combines loads of the row into one number of type `ty`.
    fn together(&self, loads: Vec<Value<'k>>, combine: impl Fn(Value<'k>, Value<'k>) -> Value<'k>) -> Value<'k> {
        let combine = |a: &Value<'k>, b: &Value<'k>| combine(*a, *b);
        let load = tree(loads, &combine);
        if load.ty() == self.ty { load } else { tree(load.lanes(), &combine) }
    }

    /// Visits this member's numbers with their places.
    fn each(&self, visit: impl Fn(Place<'k>, Value<'k>)) {
        match &self.numbers {
            Numbers::Memory(load, turn) => {
                // All loads come before the first store, as a compiler must assume that they share memory.
                self.member.each_turn(*turn, self.length, |spots| {
                    let numbers: Vec<_> = spots.iter().map(|&at| load(at)).collect();
                    for (number, (at, x)) in spots.iter().zip(numbers).enumerate() {
                        visit(Place { number, index: at.index(), exists: None }, x);
                    }
                });
            }
            Numbers::Registers(numbers) => {
                for (number, &(index, x)) in numbers.iter().enumerate() {
                    let last = number + 1 == numbers.len();
                    visit(Place { number, index, exists: last.then(|| index.lt(self.length)) }, x);
                }
            }
        }
    }
}
