//! Structured control flow: conditions, loops, barriers. Branches and loops nest at most 60 deep.

use super::builder::KernelBuilder;
use super::memory::Var;
use super::target::Dialect;
use super::types::Type;
use super::value::{IntoValue, Value};
use rspirv::dr::Operand;
use rspirv::spirv::{LoopControl, MemorySemantics, Op, Scope, SelectionControl, Word};

/// The longest loop that a compiler is asked to unroll.
const MOST_UNROLLED: u32 = 1024;

/// A condition whose other branch is still open. Dropping it closes the branch.
pub struct When<'k> {
    kernel: &'k KernelBuilder,
    merge: Word,
    scope: u32,
}

impl When<'_> {
    /// Runs `body` if the condition does not hold.
    pub fn otherwise(self, body: impl FnOnce()) {
        body();
    }
}

impl Drop for When<'_> {
    fn drop(&mut self) {
        self.kernel.close_scope(self.scope);
        self.kernel.jump(self.merge);
        self.kernel.begin(self.merge);
    }
}

impl KernelBuilder {
    fn label(&self) -> Word {
        self.state.borrow_mut().module.id()
    }

    fn begin(&self, label: Word) {
        self.check(self.state.borrow_mut().module.begin_block(Some(label)));
    }

    fn jump(&self, label: Word) {
        self.check(self.state.borrow_mut().module.branch(label));
    }

    fn scoped(&self, body: impl FnOnce()) {
        let scope = self.open_scope();
        body();
        self.close_scope(scope);
    }

    /// Runs `body` if `condition` holds. `.otherwise(..)` adds the other branch.
    pub fn when<'k>(&'k self, condition: Value<'k>, body: impl FnOnce()) -> When<'k> {
        let condition = self.condition(condition);
        let (yes, no, merge) = (self.label(), self.label(), self.label());
        self.emit_void(Op::SelectionMerge, [Operand::IdRef(merge), Operand::SelectionControl(SelectionControl::NONE)]);
        self.check(self.state.borrow_mut().module.branch_conditional(condition, yes, no, []));
        self.begin(yes);
        self.scoped(body);
        self.jump(merge);
        self.begin(no);
        When { kernel: self, merge, scope: self.open_scope() }
    }

    /// Runs `body` as long as `condition` holds.
    pub fn while_<'k>(&'k self, condition: impl FnOnce() -> Value<'k>, body: impl FnOnce()) {
        self.structured_loop(LoopControl::NONE, || Some(condition()), body, || None);
    }

    /// Runs `body` for each number from `start` up to but not including `end`.
    pub fn for_range<'k>(&'k self, start: impl IntoValue<'k>, end: impl IntoValue<'k>, body: impl FnOnce(Value<'k>)) {
        self.for_step(start, end, 1, body);
    }

    /// The same in steps of `step`.
    pub fn for_step<'k>(
        &'k self,
        start: impl IntoValue<'k>,
        end: impl IntoValue<'k>,
        step: impl IntoValue<'k>,
        body: impl FnOnce(Value<'k>),
    ) {
        self.counted_loop(LoopControl::NONE, start, end, step, body);
    }

    /// Runs `body` for a constant number of turns. If there are at most 1,024, asks the driver's compiler to unroll the
    /// loop.
    pub fn for_unrolled<'k>(&'k self, turns: u32, body: impl FnOnce(Value<'k>)) {
        // Some compilers unroll whatever they are asked to, until memory runs out.
        let control = if turns <= MOST_UNROLLED { LoopControl::UNROLL } else { LoopControl::NONE };
        self.counted_loop(control, 0, turns, 1, body);
    }

    /// Does what [`for_step`](Self::for_step) does. Asks the driver's compiler not to unroll the loop.
    pub fn for_rolled<'k>(
        &'k self,
        start: impl IntoValue<'k>,
        end: impl IntoValue<'k>,
        step: impl IntoValue<'k>,
        body: impl FnOnce(Value<'k>),
    ) {
        self.counted_loop(LoopControl::DONT_UNROLL, start, end, step, body);
    }

    /// Does what [`for_step`](Self::for_step) does, if `start` is below `end`. The test is behind the body: llvmpipe
    /// goes once more through the body of a loop that tests first, with no lane at work.
    pub(crate) fn for_some<'k>(
        &'k self,
        start: Value<'k>,
        end: Value<'k>,
        step: impl IntoValue<'k>,
        body: impl FnOnce(Value<'k>),
    ) {
        let counter = self.var(start);
        let step = step.into_value(self, Type::U32);
        let advance = || {
            counter.set(counter.get() + step);
            Some(counter.get().lt(end))
        };
        self.structured_loop(LoopControl::NONE, || None, || body(counter.get()), advance);
    }

    fn counted_loop<'k>(
        &'k self,
        control: LoopControl,
        start: impl IntoValue<'k>,
        end: impl IntoValue<'k>,
        step: impl IntoValue<'k>,
        body: impl FnOnce(Value<'k>),
    ) {
        let counter: Var<'k> = self.var(start.into_value(self, Type::U32));
        let end = end.into_value(self, Type::U32);
        let step = step.into_value(self, Type::U32);
        let advance = || {
            counter.set(counter.get() + step);
            None
        };
        self.structured_loop(control, || Some(counter.get().lt(end)), || body(counter.get()), advance);
    }

    /// Runs `body` until a condition does not hold that there is before it or behind it.
    fn structured_loop<'k>(
        &'k self,
        control: LoopControl,
        before: impl FnOnce() -> Option<Value<'k>>,
        body: impl FnOnce(),
        behind: impl FnOnce() -> Option<Value<'k>>,
    ) {
        let choose = |condition: Option<Value<'k>>, [yes, no]: [Word; 2]| match condition {
            Some(condition) => {
                let condition = self.condition(condition);
                self.check(self.state.borrow_mut().module.branch_conditional(condition, yes, no, []));
            }
            None => self.jump(yes),
        };
        let (header, test, inside, next, merge) =
            (self.label(), self.label(), self.label(), self.label(), self.label());
        self.jump(header);
        self.begin(header);
        let operands = [Operand::IdRef(merge), Operand::IdRef(next), Operand::LoopControl(control)];
        self.emit_void(Op::LoopMerge, operands);
        self.jump(test);
        self.begin(test);
        choose(before(), [inside, merge]);
        self.begin(inside);
        self.scoped(body);
        self.jump(next);
        self.begin(next);
        choose(behind(), [header, merge]);
        self.begin(merge);
    }

    /// Waits until all invocations of the workgroup have come here. They then see each other's writes to workgroup
    /// memory. All of them must reach the barrier.
    pub fn barrier(&self) {
        self.barrier_for(Scope::Workgroup, MemorySemantics::WORKGROUP_MEMORY);
    }

    /// The same for the lanes of a subgroup alone.
    pub(crate) fn subgroup_barrier(&self) {
        self.barrier_for(Scope::Subgroup, MemorySemantics::WORKGROUP_MEMORY);
    }

    /// The same, also for what the workgroup has [stored for all](super::Array::store_for_all), and will load of all.
    pub(crate) fn barrier_of_all(&self) {
        let buffers = match self.target().dialect {
            Dialect::Vulkan => MemorySemantics::UNIFORM_MEMORY,
            Dialect::OpenCl => MemorySemantics::CROSS_WORKGROUP_MEMORY,
        };
        self.barrier_for(Scope::Workgroup, MemorySemantics::WORKGROUP_MEMORY | buffers);
    }

    fn barrier_for(&self, scope: Scope, memory: MemorySemantics) {
        self.state.borrow_mut().waits = true;
        let scope = Operand::IdScope(self.u32(scope as u32).id);
        let mut semantics = MemorySemantics::ACQUIRE_RELEASE | memory;
        if self.follows_memory_model() {
            semantics |= MemorySemantics::MAKE_AVAILABLE | MemorySemantics::MAKE_VISIBLE;
        }
        let semantics = Operand::IdMemorySemantics(self.u32(semantics.bits()).id);
        self.emit_void(Op::ControlBarrier, [scope.clone(), scope, semantics]);
    }
}
