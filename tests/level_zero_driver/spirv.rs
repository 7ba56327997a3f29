//! Reads the kernels of a SPIR-V module and the types of their arguments.

use rspirv::binary::Assemble;
use rspirv::dr::{Instruction, Module, Operand};
use rspirv::spirv::{Capability, ExecutionMode, Op, StorageClass, Word};

/// A kernel's name and parameters.
#[derive(Clone)]
pub struct Signature {
    pub name: String,
    pub parameters: Vec<Parameter>,
}

/// The type of a kernel argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parameter {
    /// A value with this size in bytes.
    Value(usize),
    /// A pointer to device memory.
    Memory,
    /// Memory per workgroup. The host chooses its size.
    Local,
}

/// Reads a module.
///
/// # Errors
/// The reason why the module cannot be read.
pub fn read(words: &[u32]) -> Result<Module, String> {
    rspirv::dr::load_words(words).map_err(|error| format!("error: no valid SPIR-V: {error}"))
}

/// Returns the signatures of all kernels of a module.
///
/// # Errors
/// The part of the module that is unknown.
pub fn signatures(module: &Module) -> Result<Vec<Signature>, String> {
    module.entry_points.iter().map(|entry_point| signature(module, entry_point)).collect()
}

/// Requires subgroups of one invocation in kernels that do not use subgroups. Intel's runtime then compiles them in
/// half the time, because it does not pack invocations into vectors.
pub fn with_scalar_invocations(mut module: Module) -> Vec<u32> {
    let has = |capability: Capability| {
        module.capabilities.iter().any(|declared| declared.operands == [Operand::Capability(capability)])
    };
    if !has(Capability::GroupNonUniform) && !has(Capability::Groups) && !has(Capability::SubgroupDispatch) {
        let capability = vec![Operand::Capability(Capability::SubgroupDispatch)];
        module.capabilities.push(Instruction::new(Op::Capability, None, None, capability));
        for entry_point in &module.entry_points {
            let size = [Operand::ExecutionMode(ExecutionMode::SubgroupSize), Operand::LiteralBit32(1)];
            let mode = [&entry_point.operands[1..2], &size].concat();
            module.execution_modes.push(Instruction::new(Op::ExecutionMode, None, None, mode));
        }
    }
    module.assemble()
}

fn signature(module: &Module, entry_point: &Instruction) -> Result<Signature, String> {
    let [_, Operand::IdRef(id), Operand::LiteralString(name), ..] = &entry_point.operands[..] else {
        return Err("error: an entry point without a function or a name".into());
    };
    let function = module.functions.iter().find(|function| function.def_id() == Some(*id));
    let parameters = &function.ok_or_else(|| format!("error: {name} has no function"))?.parameters;
    let parameters: Option<Vec<_>> = parameters.iter().map(|instruction| parameter(module, instruction)).collect();
    let parameters =
        parameters.ok_or_else(|| format!("error: {name} has a parameter that this driver does not know"))?;
    Ok(Signature { name: name.clone(), parameters })
}

fn parameter(module: &Module, instruction: &Instruction) -> Option<Parameter> {
    let ty = type_of(module, instruction.result_type?)?;
    match (ty.class.opcode, ty.operands.first()) {
        (Op::TypePointer, Some(Operand::StorageClass(StorageClass::CrossWorkgroup))) => Some(Parameter::Memory),
        (Op::TypePointer, Some(Operand::StorageClass(StorageClass::Workgroup))) => Some(Parameter::Local),
        _ => value_size(module, ty).map(Parameter::Value),
    }
}

/// Returns the size of a scalar or vector. A vector of three has the size of a vector of four.
fn value_size(module: &Module, ty: &Instruction) -> Option<usize> {
    match (ty.class.opcode, &ty.operands[..]) {
        (Op::TypeInt | Op::TypeFloat, [Operand::LiteralBit32(bits), ..]) => Some(*bits as usize / 8),
        (Op::TypeVector, [Operand::IdRef(component), Operand::LiteralBit32(count)]) => {
            Some(value_size(module, type_of(module, *component)?)? * count.next_power_of_two() as usize)
        }
        _ => None,
    }
}

fn type_of(module: &Module, id: Word) -> Option<&Instruction> {
    module.types_global_values.iter().find(|instruction| instruction.result_id == Some(id))
}
