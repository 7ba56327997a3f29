//! Operations between the lanes of a subgroup. A kernel that uses one requires
//! [`Features::subgroups`](crate::Features::subgroups).

use super::builder::KernelBuilder;
use super::types::{Scalar, Type};
use super::value::Value;
use rspirv::dr::Operand;
use rspirv::spirv::{BuiltIn, Capability, GroupOperation, Op, Scope};

impl<'k> Value<'k> {
    fn subgroup(self, op: Op, ty: Type, capability: Capability, operands: &[Operand]) -> Value<'k> {
        self.kernel.require_subgroups();
        self.kernel.capability(capability);
        let scope = Operand::IdScope(self.kernel.u32(Scope::Subgroup as u32).id);
        self.kernel.emit(op, ty, std::iter::once(scope).chain(operands.iter().cloned()))
    }

    fn subgroup_reduce(self, float: Op, signed: Op, unsigned: Op) -> Value<'k> {
        if self.ty.scalar == Scalar::Bool {
            self.kernel.fail("subgroups reduce numbers, not truth values");
        }
        let op = match self.ty.scalar {
            Scalar::F32 | Scalar::F64 | Scalar::F16 => float,
            Scalar::I32 | Scalar::I64 => signed,
            Scalar::U32 | Scalar::Bool => unsigned,
        };
        let operation = Operand::GroupOperation(GroupOperation::Reduce);
        self.subgroup(op, self.ty, Capability::GroupNonUniformArithmetic, &[operation, self.operand()])
    }

    /// The sum over the subgroup's active lanes.
    pub fn subgroup_sum(self) -> Value<'k> {
        self.subgroup_reduce(Op::GroupNonUniformFAdd, Op::GroupNonUniformIAdd, Op::GroupNonUniformIAdd)
    }

    /// The largest value of the subgroup's active lanes.
    pub fn subgroup_max(self) -> Value<'k> {
        self.subgroup_reduce(Op::GroupNonUniformFMax, Op::GroupNonUniformSMax, Op::GroupNonUniformUMax)
    }

    /// The smallest value of the subgroup's active lanes.
    pub fn subgroup_min(self) -> Value<'k> {
        self.subgroup_reduce(Op::GroupNonUniformFMin, Op::GroupNonUniformSMin, Op::GroupNonUniformUMin)
    }

    /// Whether the condition holds for any of the subgroup's active lanes.
    pub(crate) fn subgroup_any(self) -> Value<'k> {
        let condition = Operand::IdRef(self.kernel.condition(self));
        self.subgroup(Op::GroupNonUniformAny, Type::BOOL, Capability::GroupNonUniformVote, &[condition])
    }

    /// The value that another lane of the subgroup holds.
    pub fn subgroup_shuffle(self, lane: Value<'k>) -> Value<'k> {
        if lane.ty() != Type::U32 {
            self.kernel.fail(format!("a lane of a subgroup is u32, not {}", lane.ty()));
        }
        self.kernel.check_own(lane);
        let operands = [self.operand(), lane.operand()];
        self.subgroup(Op::GroupNonUniformShuffle, self.ty, Capability::GroupNonUniformShuffle, &operands)
    }

    /// The value that a given lane of the subgroup holds. Its number is known when the kernel is written.
    pub fn subgroup_broadcast(self, lane: u32) -> Value<'k> {
        let operands = [self.operand(), self.kernel.u32(lane).operand()];
        self.subgroup(Op::GroupNonUniformBroadcast, self.ty, Capability::GroupNonUniformBallot, &operands)
    }

    /// The value that the first active lane of the subgroup holds.
    pub fn subgroup_first(self) -> Value<'k> {
        self.subgroup(Op::GroupNonUniformBroadcastFirst, self.ty, Capability::GroupNonUniformBallot, &[self.operand()])
    }
}

impl KernelBuilder {
    fn require_subgroups(&self) {
        self.require(|features| features.subgroups = true);
        self.capability(Capability::GroupNonUniform);
        // The first version with these operations; kernels for OpenCL otherwise declare an older one.
        self.state.borrow_mut().module.set_version(1, 3);
    }

    /// The invocation's lane in its subgroup.
    pub fn subgroup_lane(&self) -> Value<'_> {
        self.require_subgroups();
        self.builtin(BuiltIn::SubgroupLocalInvocationId, None)
    }

    /// The number of lanes in a subgroup.
    pub fn subgroup_size(&self) -> Value<'_> {
        self.require_subgroups();
        self.builtin(BuiltIn::SubgroupSize, None)
    }
}
