//! Reads from a SPIR-V module which kernels it has and what arguments they take.

use rspirv::dr::{Instruction, Module, Operand};
use rspirv::spirv::{Op, StorageClass, Word};

/// A kernel's name and parameters.
#[derive(Clone)]
pub struct Signature {
    pub name: String,
    pub parameters: Vec<Parameter>,
}

/// What a kernel takes as an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parameter {
    /// A value of that many bytes.
    Value(usize),
    /// A pointer to memory of the device.
    Memory,
    /// Memory per workgroup, whose size the host says.
    Local,
}

/// The signatures of all kernels of a module.
///
/// # Errors
/// Why the module cannot be read.
pub fn signatures(words: &[u32]) -> Result<Vec<Signature>, String> {
    let module = rspirv::dr::load_words(words).map_err(|error| format!("no valid SPIR-V: {error}"))?;
    module.entry_points.iter().map(|entry_point| signature(&module, entry_point)).collect()
}

fn signature(module: &Module, entry_point: &Instruction) -> Result<Signature, String> {
    let [_, Operand::IdRef(id), Operand::LiteralString(name), ..] = &entry_point.operands[..] else {
        return Err("an entry point without a function or a name".into());
    };
    let function = module.functions.iter().find(|function| function.def_id() == Some(*id));
    let parameters = &function.ok_or_else(|| format!("{name} has no function"))?.parameters;
    let parameters: Option<Vec<_>> = parameters.iter().map(|instruction| parameter(module, instruction)).collect();
    let parameters = parameters.ok_or_else(|| format!("{name} has a parameter that this driver does not know"))?;
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

/// The size of a scalar or vector. A vector of three takes the room of four.
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
