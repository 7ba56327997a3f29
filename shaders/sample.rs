//! Draws places at random by the Gumbel-max trick (E. Gumbel, 1954). A number of the Gumbel distribution is added to
//! the logarithm of each weight. The largest sum is then at each place with the probability of its weight. The kernel
//! makes the random numbers when it needs them, and never stores them.

use super::Family;
use super::fold::{FoldOp, States};
use super::parameters::{Form, Size, parameters};
use super::random::{Generator, gumbel};
use super::workgroup::{Team, Turn};
use crate::base::dtype::DType;
use crate::shader::{Access, KernelBuilder, Type, Value};

/// Draws a place in each row of `x` several times, independently. `x` is contiguous and `f32`. The random numbers are
/// the elements of a tensor with one row per draw. A long row is split into chunks, each with a team of its own: then
/// the kernel writes the states of [`FoldOp::ArgMax`], and `reduce.rs` folds them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Sample {
    pub team: Team,
    pub generator: Generator,
    pub in_chunks: bool,
}

parameters! {
    config: Sample;
    host: Parameters;
    device: Declared;
    /// The total number of draws.
    draws: Size,
    /// The number of draws per row.
    per_row: Size,
    /// The number of chunks per draw, and the length of a chunk.
    per_draw: Size,
    span: Size,
    /// The length of a row.
    length: Size,
    /// The offset of `x`.
    offset: Size,
    generator: Generator = config.generator,
}

impl Family for Sample {
    fn name(&self) -> String {
        let chunks = if self.in_chunks { ", chunks" } else { "" };
        format!("sample({:?}{chunks}){}", self.team, self.generator.suffix()).to_lowercase()
    }

    fn workgroup(&self) -> u32 {
        self.team.workgroup()
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let Declared { draws, per_row, per_draw, span, length, offset, generator } = self.declare(k);
        let x = k.buffer("x", Type::F32, Access::Read);
        let chosen = (!self.in_chunks).then(|| k.buffer("y", Type::U32, Access::Write));
        let types = FoldOp::ArgMax.state(DType::F32);
        let states = self.in_chunks.then(|| States::declare(k, "y", &types, Access::Write));
        let generator = self.generator.resolve(k, generator);

        let member = self.team.join(k);
        // A folded dispatch has surplus chunks: they repeat the last one, as all invocations must reach the barriers.
        let chunk = member.row.min(draws * per_draw - 1);
        let draw = chunk / per_draw;
        let row = offset + draw / per_row * length;
        let start = chunk % per_draw * span;
        let end = start + (length - start).min(span);
        let element = |j: Value<'k>| {
            let place = draw * length + j;
            let [even, odd] = generator.pair(place / 2);
            x.load(row + j) + gumbel((place & 1).eq(0).select(even, odd))
        };
        let fold = FoldOp::ArgMax.fold(k, Type::F32);
        let state = |j: Value<'k>| vec![(fold.map)(element(j), j)];
        let best = member.fold(&fold, Turn::Single, || state(start).concat(), [start, end], state);
        k.when(member.row.lt(draws * per_draw) & member.lane.eq(0), || {
            if let Some(y) = chosen {
                y.store(draw, (fold.finish)(&best, length));
            }
            if let Some(y) = &states {
                y.store(chunk, &best);
            }
        });
    }

    fn samples() -> Vec<Self> {
        let generators = [Generator::Given, Generator::Stored];
        let teams = Team::ALL.into_iter().flat_map(|team| [false, true].map(|in_chunks| (team, in_chunks)));
        let sample = |generator| teams.clone().map(move |(team, in_chunks)| Sample { team, generator, in_chunks });
        generators.into_iter().flat_map(sample).collect()
    }
}
