//! Translates SPIR-V to LLVM bitcode for OpenCL implementations that read nothing else.

use rspirv::binary::Assemble;
use rspirv::dr::{self, Instruction, Operand};
use rspirv::spirv::{Op, Word};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The translator. Newer versions write bitcode that PoCL 3.1 cannot read.
const TRANSLATOR: &str = "llvm-spirv-15";

/// Translates a module.
pub fn translate(spirv: &[u32]) -> Result<Vec<u8>, String> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("level-zero-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let folder = std::env::temp_dir();
    let (input, output) = (folder.join(format!("{name}.spv")), folder.join(format!("{name}.bc")));
    let words = without_composites(spirv)?;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    std::fs::write(&input, bytes).map_err(|error| error.to_string())?;
    let translated = Command::new(TRANSLATOR)
        .args(["-r", "--spirv-target-env=CL2.0", "-o"])
        .args([&output, &input])
        .output()
        .map_err(|error| format!("{TRANSLATOR}: {error}"))
        .and_then(|run| if run.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&run.stderr).into()) });
    let bitcode = translated.and_then(|()| std::fs::read(&output).map_err(|error| error.to_string()));
    let _ = (std::fs::remove_file(input), std::fs::remove_file(output));
    bitcode
}

/// Builds the vectors of a module lane by lane. Version 15 of the translator crashes on `OpCompositeConstruct` unless
/// all its operands are constants.
fn without_composites(spirv: &[u32]) -> Result<Vec<Word>, String> {
    let mut module = dr::load_words(spirv).map_err(|error| error.to_string())?;
    let mut next = module.header.as_ref().map_or(0, |header| header.bound);
    let mut new_id = || {
        next += 1;
        next - 1
    };
    for block in module.functions.iter_mut().flat_map(|function| &mut function.blocks) {
        let instructions = std::mem::take(&mut block.instructions);
        block.instructions = instructions.into_iter().flat_map(|i| lane_by_lane(i, &mut new_id)).collect();
    }
    if let Some(header) = &mut module.header {
        header.bound = next;
    }
    Ok(module.assemble())
}

fn lane_by_lane(instruction: Instruction, new_id: &mut impl FnMut() -> Word) -> Vec<Instruction> {
    if instruction.class.opcode != Op::CompositeConstruct {
        return vec![instruction];
    }
    let (result_type, lanes) = (instruction.result_type, instruction.operands.len());
    let mut vector = new_id();
    let mut steps = vec![Instruction::new(Op::Undef, result_type, Some(vector), vec![])];
    for (index, lane) in instruction.operands.into_iter().enumerate() {
        let result = if index + 1 == lanes { instruction.result_id.unwrap_or_default() } else { new_id() };
        let operands = vec![lane, Operand::IdRef(vector), Operand::LiteralBit32(index as u32)];
        steps.push(Instruction::new(Op::CompositeInsert, result_type, Some(result), operands));
        vector = result;
    }
    steps
}
