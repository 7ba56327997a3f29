//! Invocations that take turns. A software device runs the subgroups of a workgroup one after the other. To start a
//! subgroup takes it as long as some thirty additions. So if the invocations of a workgroup share nothing, one
//! subgroup does the work of all of them, in a loop.

use super::builder::KernelBuilder;
use super::types::Type;
use super::value::Value;
use rspirv::dr::{Block, Instruction, Operand};
use rspirv::spirv::{LoopControl, Op, Word};
use std::collections::HashSet;

impl KernelBuilder {
    /// Returns the first of the invocations whose turn it is. `None` if each invocation works for itself alone.
    pub(super) fn turn(&self) -> Option<Value<'_>> {
        self.lanes_in_turns()?;
        let known = self.state.borrow().turn;
        let pointer = known.unwrap_or_else(|| self.local(self.type_id(Type::U32), true));
        self.state.borrow_mut().turn = Some(pointer);
        Some(self.emit(Op::Load, Type::U32, [Operand::IdRef(pointer)]))
    }

    /// Returns how many invocations there are at once, if they may take turns.
    fn lanes_in_turns(&self) -> Option<u32> {
        let lanes = self.target().lanes_at_once?;
        // The local arrays of a checked kernel start with zeros, which they would not have in the second turn.
        let may = !self.checked && self.workgroup() > lanes && self.workgroup().is_multiple_of(lanes);
        may.then_some(lanes)
    }

    /// Makes the invocations of one subgroup do the work of the workgroup, if it shares nothing. Returns how many
    /// invocations there are then. The function must be complete.
    pub(super) fn take_turns(&self) -> u32 {
        let turn = self.state.borrow().turn.filter(|_| !self.state.borrow().shares());
        let (Some(lanes), Some(turn)) = (self.lanes_in_turns(), turn) else { return self.workgroup() };
        let (word, truth) = (self.type_id(Type::U32), self.type_id(Type::BOOL));
        let [all, step] = [self.workgroup(), lanes].map(|count| self.u32(count).id);
        let state = &mut *self.state.borrow_mut();
        let [header, inside, next, merge, has_more, before, after] = std::array::from_fn(|_| state.module.id());
        let mut constant = state.constant_memory();
        let Some(main) = state.module.module_mut().functions.first_mut() else { return self.workgroup() };
        let branch = |to| Instruction::new(Op::Branch, None, None, vec![Operand::IdRef(to)]);
        let make = |op, ty, id, operands: &[Word]| {
            Instruction::new(op, Some(ty), Some(id), operands.iter().map(|&id| Operand::IdRef(id)).collect())
        };
        let block = |label, instructions| Block {
            label: Some(Instruction::new(Op::Label, None, Some(label), Vec::new())),
            instructions,
        };

        let mut blocks = std::mem::take(&mut main.blocks).into_iter();
        let Some(first) = blocks.next() else { return self.workgroup() };
        let (mut once, each) = split(first.instructions, &mut constant);
        once.push(branch(header));
        let control = Operand::LoopControl(LoopControl::DONT_UNROLL);
        let operands = vec![Operand::IdRef(merge), Operand::IdRef(next), control];
        // The test is behind the body: see `KernelBuilder::for_some`.
        let choice = [has_more, header, merge].map(Operand::IdRef).to_vec();
        main.blocks.extend([
            Block { label: first.label, instructions: once },
            block(header, vec![Instruction::new(Op::LoopMerge, None, None, operands), branch(inside)]),
            block(inside, each),
        ]);
        main.blocks.extend(blocks);
        if let Some(end) = main.blocks.last_mut().and_then(|last| last.instructions.last_mut()) {
            *end = branch(next);
        }
        main.blocks.extend([
            block(
                next,
                vec![
                    make(Op::Load, word, before, &[turn]),
                    make(Op::IAdd, word, after, &[before, step]),
                    Instruction::new(Op::Store, None, None, [turn, after].map(Operand::IdRef).to_vec()),
                    make(Op::ULessThan, truth, has_more, &[after, all]),
                    Instruction::new(Op::BranchConditional, None, None, choice),
                ],
            ),
            block(merge, vec![Instruction::new(Op::Return, None, None, Vec::new())]),
        ]);
        lanes
    }
}

/// Splits the first block into what is the same in all turns, and the rest. `constant` has the memory that no
/// invocation changes, and gets the places in it.
fn split(instructions: Vec<Instruction>, constant: &mut HashSet<Word>) -> (Vec<Instruction>, Vec<Instruction>) {
    let mut varying = HashSet::new();
    instructions.into_iter().partition(|instruction| {
        let ids: Vec<Word> = instruction.operands.iter().filter_map(Operand::id_ref_any).collect();
        let from = ids.first().copied().unwrap_or_default();
        let is_computed = match instruction.class.opcode {
            Op::Variable => true,
            Op::Load => constant.contains(&from),
            op => is_computation(op) && !ids.iter().any(|id| varying.contains(id)),
        };
        match (instruction.result_id, is_computed) {
            (Some(place), true) if instruction.class.opcode == Op::AccessChain && constant.contains(&from) => {
                constant.insert(place);
            }
            (Some(result), false) => _ = varying.insert(result),
            _ => {}
        }
        is_computed
    })
}

/// Whether an operation is known to do nothing but compute a value from others.
fn is_computation(op: Op) -> bool {
    use Op::*;
    matches!(
        op,
        AccessChain
            | Bitcast
            | CompositeConstruct
            | CompositeExtract
            | VectorShuffle
            | ExtInst
            | UConvert
            | SConvert
            | FConvert
            | ConvertUToF
            | ConvertSToF
            | ConvertFToU
            | ConvertFToS
            | IAdd
            | ISub
            | IMul
            | UDiv
            | UMod
            | SDiv
            | SRem
            | SNegate
            | FAdd
            | FSub
            | FMul
            | FDiv
            | FNegate
            | ShiftLeftLogical
            | ShiftRightLogical
            | ShiftRightArithmetic
            | BitwiseAnd
            | BitwiseOr
            | BitwiseXor
            | Not
            | Select
            | IEqual
            | INotEqual
            | ULessThan
            | ULessThanEqual
            | UGreaterThan
            | UGreaterThanEqual
            | LogicalAnd
            | LogicalOr
            | LogicalNot
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shader::{Access, Code, Module, Target};
    use rspirv::dr::load_words;

    const IN_TURNS: Target = Target { lanes_at_once: Some(8), ..Target::VULKAN };

    /// Writes a kernel of 32 invocations.
    fn kernel(write: impl FnOnce(&KernelBuilder)) -> Module {
        let k = KernelBuilder::new("turns", IN_TURNS, 32);
        let y = k.buffer("y", Type::U32, Access::Write);
        let n = k.parameter(Type::U32);
        write(&k);
        y.store(k.global_index(), k.local_index() + n / 3);
        k.finish().unwrap()
    }

    /// Returns the operations of each block of `main`.
    fn blocks(module: &Module) -> Vec<Vec<Op>> {
        let Code::Spirv(words) = &module.code else { panic!("no SPIR-V") };
        let module = load_words(words).unwrap();
        let blocks = module.functions[0].blocks.iter();
        blocks.map(|block| block.instructions.iter().map(|i| i.class.opcode).collect()).collect()
    }

    #[test]
    fn what_is_the_same_in_all_turns_is_computed_once() {
        let module = kernel(|_| {});
        assert_eq!(module.workgroup(), [8, 1, 1]);
        let blocks = blocks(&module);
        let place = |op| blocks.iter().position(|block| block.contains(&op)).unwrap();
        assert_eq!([place(Op::UDiv), place(Op::IMul)], [0; 2], "{blocks:?}");
        assert!(place(Op::LoopMerge) < place(Op::Store), "{blocks:?}");
    }

    #[test]
    fn what_memory_holds_is_loaded_in_each_turn() {
        let k = KernelBuilder::new("turns", IN_TURNS, 32);
        let x = k.buffer("x", Type::U32, Access::ReadWrite);
        let sum = k.var(x.load(0) / 3);
        sum.set(sum.get() + k.local_index());
        x.store(0, sum.get());
        let blocks = blocks(&k.finish().unwrap());
        for op in [Op::UDiv, Op::Store, Op::IAdd] {
            assert!(!blocks[0].contains(&op), "{op:?}: {blocks:?}");
        }
    }

    #[test]
    fn invocations_that_share_something_have_no_turns() {
        let shares: [fn(&KernelBuilder); 4] = [
            KernelBuilder::barrier,
            KernelBuilder::subgroup_barrier,
            |k| _ = k.workgroup_array(Type::U32, 32),
            |k| _ = k.bool(true).subgroup_any(),
        ];
        for share in shares {
            let module = kernel(share);
            assert_eq!(module.workgroup(), [32, 1, 1]);
            assert_eq!(blocks(&module).len(), 1);
        }
    }

    #[test]
    fn workgroups_that_are_not_whole_turns_have_none() {
        for workgroup in [8, 4, 20] {
            let k = KernelBuilder::new("small", IN_TURNS, workgroup);
            k.buffer("y", Type::U32, Access::Write).store(k.global_index(), 1);
            assert_eq!(k.finish().unwrap().workgroup(), [workgroup, 1, 1]);
        }
    }
}
