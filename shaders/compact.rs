//! The places of the elements that are not 0, in order: they are counted block by block, the counts are added up, and
//! each block writes its places from where those before it end.

use super::Family;
use super::elements::Elements;
use super::workgroup::{Team, WORKGROUP};
use crate::dtype::DType;
use crate::shader::{Access, KernelBuilder, Type};

/// One of the steps, each a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// How many flags of each block are 1. Parameters: the numbers of flags and of blocks, the length of a block.
    Count,
    /// The sum of the counts before each block, and that of all behind them. Parameter: the number of blocks.
    AddUp,
    /// The places of the flags that are 1. Parameters as of `Count`.
    Write,
}

/// A step of a compaction of flags, which are bytes of 0 or 1.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Compact {
    pub step: Step,
    /// Who works on a block. The counts are added up by a workgroup.
    pub team: Team,
}

impl Family for Compact {
    fn name(&self) -> String {
        format!("compact_{:?}({:?})", self.step, self.team).to_lowercase()
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write(&self, k: &KernelBuilder) {
        match self.step {
            Step::Count => self.write_count(k),
            Step::AddUp => write_sums(k),
            Step::Write => self.write_places(k),
        }
    }

    fn samples() -> Vec<Self> {
        let steps = [Step::Count, Step::Write].into_iter();
        let by_team = steps.flat_map(|step| Team::ALL.map(|team| Compact { step, team }));
        by_team.chain([Compact { step: Step::AddUp, team: Team::Workgroup }]).collect()
    }
}

impl Compact {
    fn write_count(&self, k: &KernelBuilder) {
        let [count, blocks, length] = std::array::from_fn(|_| k.parameter(Type::U32));
        let flags = Elements::input(k, "flags", DType::U8);
        let counts = k.buffer("counts", Type::U32, Access::Write);
        let member = self.team.join(k);
        let block = member.row.min(blocks - 1);
        let (start, end) = (block * length, (block * length + length).min(count));
        let total = k.var(k.u32(0));
        k.for_step(start + member.lane, end, member.lanes, |place| total.set(total.get() + flags.load(place)));
        let [sum] = member.reduce([member.scratch(Type::U32)], [total.get()], |[a], [b]| [a + b]);
        k.when(member.row.lt(blocks) & member.lane.eq(0), || counts.store(block, sum));
    }

    fn write_places(&self, k: &KernelBuilder) {
        let [count, blocks, length] = std::array::from_fn(|_| k.parameter(Type::U32));
        let flags = Elements::input(k, "flags", DType::U8);
        let starts = k.buffer("starts", Type::U32, Access::Read);
        let places = k.buffer("places", Type::U32, Access::Write);
        let member = self.team.join(k);
        let scratch = member.scratch(Type::U32);
        let block = member.row.min(blocks - 1);
        let next = k.var(starts.load(block));
        k.for_step(0, length, member.lanes, |first| {
            let place = block * length + first + member.lane;
            let inside = member.row.lt(blocks) & (first + member.lane).lt(length) & place.lt(count);
            let flag = inside.select(flags.load(place.min(count - 1)), 0);
            let [before, all] = member.scan(scratch, flag);
            k.when(flag.ne(0), || places.store(next.get() + before, place));
            next.set(next.get() + all);
        });
    }
}

fn write_sums(k: &KernelBuilder) {
    let blocks = k.parameter(Type::U32);
    let counts = k.buffer("counts", Type::U32, Access::Read);
    let sums = k.buffer("sums", Type::U32, Access::Write);
    let member = Team::Workgroup.join(k);
    let scratch = member.scratch(Type::U32);
    let sum = k.var(k.u32(0));
    k.for_step(0, blocks, member.lanes, |first| {
        let block = first + member.lane;
        let count = block.lt(blocks).select(counts.load(block.min(blocks - 1)), 0);
        let [before, all] = member.scan(scratch, count);
        k.when(block.lt(blocks), || sums.store(block, sum.get() + before));
        sum.set(sum.get() + all);
    });
    k.when(member.lane.eq(0), || sums.store(blocks, sum.get()));
}
