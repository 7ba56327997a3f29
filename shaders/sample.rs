//! Draws places at random by the Gumbel-max trick (E. Gumbel, 1954). A number of the Gumbel distribution is added to
//! the logarithm of each weight. The largest sum is then at each place with the probability of its weight. The kernel
//! makes the random numbers when it needs them, and never stores them.

use super::Family;
use super::fold::FoldOp;
use super::parameters::{Form, Size, parameters};
use super::random::{Generator, gumbel};
use super::workgroup::{Team, Turn};
use crate::shader::{Access, KernelBuilder, Type, Value};

/// Draws a place in each row of `x` several times, independently. `x` is contiguous and `f32`. The random numbers are
/// the elements of a tensor with one row per draw.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Sample {
    pub team: Team,
    pub generator: Generator,
}

parameters! {
    config: Sample;
    host: Parameters;
    device: Declared;
    /// The total number of draws.
    draws: Size,
    /// The number of draws per row.
    per_row: Size,
    /// The length of a row.
    length: Size,
    /// The offset of `x`.
    offset: Size,
    generator: Generator = config.generator,
}

impl Family for Sample {
    fn name(&self) -> String {
        format!("sample({:?}){}", self.team, self.generator.suffix()).to_lowercase()
    }

    fn workgroup(&self) -> u32 {
        self.team.workgroup()
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let Declared { draws, per_row, length, offset, generator } = self.declare(k);
        let x = k.buffer("x", Type::F32, Access::Read);
        let y = k.buffer("y", Type::U32, Access::Write);
        let generator = self.generator.resolve(k, generator);

        let member = self.team.join(k);
        // A folded dispatch has surplus draws: they repeat the last one, as all invocations must reach the barriers.
        let draw = member.row.min(draws - 1);
        let row = offset + draw / per_row * length;
        let element = |j: Value<'k>| {
            let place = draw * length + j;
            let [even, odd] = generator.pair(place / 2);
            x.load(row + j) + gumbel((place & 1).eq(0).select(even, odd))
        };
        let fold = FoldOp::ArgMax.fold(k, Type::F32);
        let states = |j: Value<'k>| vec![(fold.map)(element(j), j)];
        let first = || states(k.u32(0)).concat();
        let best = member.fold(&fold, Turn::Single, first, [k.u32(0), length], states);
        let drawn = (fold.finish)(&best, length);
        k.when(member.row.lt(draws) & member.lane.eq(0), || y.store(draw, drawn));
    }

    fn samples() -> Vec<Self> {
        let generators = [Generator::Given, Generator::Stored];
        generators.into_iter().flat_map(|generator| Team::ALL.map(|team| Sample { team, generator })).collect()
    }
}
