//! Operations that replace each row of elements, those along some axes, by a function of the whole row.

use super::Family;
use super::elements::{Elements, Grid, Strides, float_parameter};
use super::workgroup::{Team, WORKGROUP};
use crate::dtype::DType;
use crate::shader::{Access, KernelBuilder, Type, Value};

/// What is done with a row.
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

    /// Whether it has a parameter eps.
    pub fn has_eps(self) -> bool {
        !matches!(self, NormalizeOp::Softmax | NormalizeOp::LogSoftmax)
    }
}

/// A normalisation, and then `y weight + bias` as far as they are there. The output is of the widened dtype,
/// contiguous. Parameters: the number of rows, their length, the number of rows that lie side by side (the product of the axes inside of the
/// normalised ones); the lengths of the kept axes, of the normalised ones; the input's offset and strides along both;
/// eps, if the operation has one; if weights are per channel, the number of groups that the channels come in, the
/// channels of a group and the elements of a channel; offset and stride of the weight, then of the bias.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Normalize {
    pub op: NormalizeOp,
    pub dtype: DType,
    pub kept_rank: usize,
    pub normalized_rank: usize,
    pub weight: bool,
    pub bias: bool,
    /// Whether a row is a group of channels with a weight and a bias each; else each of its elements has its own.
    pub per_channel: bool,
    pub team: Team,
}

impl Normalize {
    /// The length of the parameter block.
    pub fn parameter_words(&self) -> usize {
        let affine = 2 * (usize::from(self.weight) + usize::from(self.bias));
        let channels = if self.per_channel { 3 } else { 0 };
        let eps = if self.op.has_eps() { self.dtype.parts() } else { 0 };
        4 + 2 * (self.kept_rank + self.normalized_rank) + eps + channels + affine
    }
}

impl Family for Normalize {
    fn name(&self) -> String {
        format!("{:?}({}, {:?})", self.op, self.dtype, self.team).to_lowercase()
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let (rows, length, inner) = (k.parameter(Type::U32), k.parameter(Type::U32), k.parameter(Type::U32));
        let kept = Grid::parameters(k, self.kept_rank);
        let normalized = Grid::parameters(k, self.normalized_rank);
        let strides = Strides::parameters(k, self.kept_rank + self.normalized_rank);
        let eps = self.op.has_eps().then(|| float_parameter(k, self.dtype));
        let channels: Option<[Value; 3]> = self.per_channel.then(|| std::array::from_fn(|_| k.parameter(Type::U32)));
        let x = Elements::input(k, "x", self.dtype);
        let vector = |name| (Elements::input(k, name, self.dtype), Strides::parameters(k, 1));
        let weight = self.weight.then(|| vector("weight"));
        let bias = self.bias.then(|| vector("bias"));
        let ty = Type { scalar: self.dtype.compute_scalar(), lanes: 1 };
        let y = k.buffer("y", ty, Access::Write);

        let member = self.team.join(k);
        let row = member.row.min(rows - 1);
        let coordinates = kept.coordinates(row);
        let element = |j: Value<'k>| {
            let mut coordinates = coordinates.clone();
            coordinates.extend(normalized.coordinates(j));
            x.load(strides.at(&coordinates))
        };
        let output = |j: Value<'k>| (row / inner * length + j) * inner + row % inner;
        // One invocation alone would repeat the last row's stores in surplus rows: harmless, but guarded like the rest.
        let inside = member.row.lt(rows);
        let scratch = member.scratch(ty);
        let sum =
            |term: &dyn Fn(Value<'k>) -> Value<'k>| member.sum(scratch, k.number(ty, 0), [k.u32(0), length], term);
        let squares = || {
            sum(&|j| {
                let x = element(j);
                x * x
            })
        };
        let store = |normal: &dyn Fn(Value<'k>) -> Value<'k>| {
            k.for_step(member.lane, length, member.lanes, |j| {
                let place = [channels.map_or(j, |[groups, size, inside]| row % groups * size + j / inside)];
                let normal = normal(j);
                let scaled = weight.as_ref().map_or(normal, |(weight, at)| normal * weight.load(at.at(&place)));
                let shifted = bias.as_ref().map_or(scaled, |(bias, at)| scaled + bias.load(at.at(&place)));
                k.when(inside, || y.store(output(j), shifted));
            });
        };

        let count = length.convert(ty.scalar);
        let eps = eps.unwrap_or(k.number(ty, 0));
        match self.op {
            NormalizeOp::Softmax | NormalizeOp::LogSoftmax => {
                let largest = k.var(element(k.u32(0)));
                k.for_step(member.lane, length, member.lanes, |j| largest.set(largest.get().max(element(j))));
                let [largest] = member.reduce([scratch], [largest.get()], |[a], [b]| [a.max(b)]);
                let total = sum(&|j| (element(j) - largest).exp());
                if self.op == NormalizeOp::Softmax {
                    store(&|j| (element(j) - largest).exp() / total);
                } else {
                    let log = total.log();
                    store(&|j| element(j) - largest - log);
                }
            }
            NormalizeOp::LayerNorm => {
                let mean = sum(&element) / count;
                let variance = sum(&|j| {
                    let deviation = element(j) - mean;
                    deviation * deviation
                }) / count;
                let scale = k.number(ty, 1) / (variance + eps).sqrt();
                store(&|j| (element(j) - mean) * scale);
            }
            NormalizeOp::RmsNorm => {
                let scale = k.number(ty, 1) / (squares() / count + eps).sqrt();
                store(&|j| element(j) * scale);
            }
            NormalizeOp::L2 => {
                let norm = squares().sqrt().max(eps);
                store(&|j| element(j) / norm);
            }
        }
    }

    fn samples() -> Vec<Self> {
        let mut samples = Vec::new();
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
            for op in NormalizeOp::ALL {
                let affine = matches!(op, NormalizeOp::LayerNorm | NormalizeOp::RmsNorm);
                let bias = op == NormalizeOp::LayerNorm;
                let (kept_rank, normalized_rank) = (1, 1);
                samples.extend(Team::ALL.map(|team| Normalize {
                    op,
                    dtype,
                    kept_rank,
                    normalized_rank,
                    weight: affine,
                    bias,
                    per_channel: false,
                    team,
                }));
            }
        }
        samples
    }
}
