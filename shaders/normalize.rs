//! Operations that replace each row of elements along an axis by a function of the whole row.

use super::Family;
use super::elements::{Elements, Grid, Strides};
use super::workgroup::{Team, WORKGROUP};
use crate::dtype::DType;
use crate::shader::{Access, KernelBuilder, Scalar, Type, Value};

/// What is done with a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum NormalizeOp {
    /// `exp(x - max) / sum(exp(x - max))`
    Softmax,
    /// `(x - mean) / sqrt(variance + eps) * weight + bias`, with the biased variance. J. L. Ba et al., "Layer
    /// Normalization", 2016.
    LayerNorm,
}

/// A normalisation. The output is `f32`, contiguous. Parameters: the number of rows, their length, the number of rows
/// that lie side by side (the product of the axes inside of the normalised one); the lengths of the kept axes; the
/// input's offset and strides along the kept axes, then along the normalised one; for the layer norm, offset and
/// stride of the weight and of the bias, and eps.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Normalize {
    pub op: NormalizeOp,
    pub dtype: DType,
    pub kept_rank: usize,
    pub team: Team,
}

impl Normalize {
    /// The length of the parameter block for so many kept axes.
    pub fn parameter_words(op: NormalizeOp, kept_rank: usize) -> usize {
        let affine = if op == NormalizeOp::LayerNorm { 5 } else { 0 };
        5 + 2 * kept_rank + affine
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
        let strides = Strides::parameters(k, self.kept_rank + 1);
        let x = Elements::input(k, "x", self.dtype);

        let member = self.team.join(k);
        let row = member.row.min(rows - 1);
        let coordinates = kept.coordinates(row);
        let element = |j: Value<'k>| {
            let mut coordinates = coordinates.clone();
            coordinates.push(j);
            x.load(strides.at(&coordinates))
        };
        let output = |j: Value<'k>| (row / inner * length + j) * inner + row % inner;
        let each = |body: &dyn Fn(Value<'k>)| k.for_step(member.lane, length, member.lanes, body);
        // One invocation alone would repeat the last row's stores in surplus rows: harmless, but guarded like the rest.
        let inside = member.row.lt(rows);
        let scratch = member.scratch(Type::F32);
        let sum = |term: &dyn Fn(Value<'k>) -> Value<'k>| member.sum(scratch, k.f32(0.0), [k.u32(0), length], term);

        match self.op {
            NormalizeOp::Softmax => {
                let y = k.buffer("y", Type::F32, Access::Write);
                let largest = k.var(element(k.u32(0)));
                each(&|j| largest.set(largest.get().max(element(j))));
                let [largest] = member.reduce([scratch], [largest.get()], |[a], [b]| [a.max(b)]);
                let total = sum(&|j| (element(j) - largest).exp());
                each(&|j| {
                    k.when(inside, || y.store(output(j), (element(j) - largest).exp() / total));
                });
            }
            NormalizeOp::LayerNorm => {
                let (weight, bias) = (Elements::input(k, "weight", self.dtype), Elements::input(k, "bias", self.dtype));
                let (weight_at, bias_at) = (Strides::parameters(k, 1), Strides::parameters(k, 1));
                let eps = k.parameter(Type::F32);
                let y = k.buffer("y", Type::F32, Access::Write);
                let count = length.convert(Scalar::F32);
                let mean = sum(&element) / count;
                let variance = sum(&|j| {
                    let deviation = element(j) - mean;
                    deviation * deviation
                }) / count;
                let scale = k.f32(1.0) / (variance + eps).sqrt();
                each(&|j| {
                    let affine =
                        (element(j) - mean) * scale * weight.load(weight_at.at(&[j])) + bias.load(bias_at.at(&[j]));
                    k.when(inside, || y.store(output(j), affine));
                });
            }
        }
    }

    fn samples() -> Vec<Self> {
        let mut samples = Vec::new();
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_single_float()) {
            for op in [NormalizeOp::Softmax, NormalizeOp::LayerNorm] {
                samples.extend(Team::ALL.map(|team| Normalize { op, dtype, kept_rank: 1, team }));
            }
        }
        samples
    }
}
