//! What an app's SPIR-V module says about itself. It is read word by word, so instructions and capabilities that
//! `rspirv` does not know yet are skipped.

use super::target::Dialect;
use crate::base::features::Features;
use rspirv::spirv::{BuiltIn, Capability, Decoration, ExecutionMode, ExecutionModel, MAGIC_NUMBER, Op};
use std::collections::HashMap;

/// An entry point of a module, and what the module as a whole asks for.
pub(crate) struct EntryPoint {
    /// The id of its function.
    pub function: u32,
    /// Invocations per workgroup, if the module says so.
    pub local_size: Option<[u32; 3]>,
    /// The features that the module's capabilities require, as far as this crate knows them.
    pub requires: Features,
}

/// Returns the number of each instruction, and the words behind its first one.
pub(super) fn instructions(words: &[u32]) -> impl Iterator<Item = (u32, &[u32])> {
    let mut rest = words.get(5..).unwrap_or_default();
    std::iter::from_fn(move || {
        let first = *rest.first()?;
        let (operands, behind) = rest.get(1..)?.split_at_checked((first as usize >> 16).checked_sub(1)?)?;
        rest = behind;
        Some((first & 0xffff, operands))
    })
}

/// Reads a string literal: UTF-8 up to a zero byte, the first byte in the lowest bits.
fn text(words: &[u32]) -> String {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes()).take_while(|&byte| byte != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

/// Finds an entry point for a dialect by its name. The error says what there is instead.
pub(crate) fn entry_point(words: &[u32], name: &str, dialect: Dialect) -> Result<EntryPoint, String> {
    if words.first() != Some(&MAGIC_NUMBER) {
        return Err(format!("not SPIR-V: the first word is not {MAGIC_NUMBER:#010x}"));
    }
    let mut entry_points = Vec::new();
    let mut requires = Features::default();
    for (number, operands) in instructions(words) {
        match operands {
            &[capability, ..] if number == Op::Capability as u32 => require(&mut requires, capability),
            [model, id, literal @ ..] if number == Op::EntryPoint as u32 => {
                entry_points.push((*model, *id, text(literal)));
            }
            _ => {}
        }
    }
    let wanted = match dialect {
        Dialect::Vulkan => ExecutionModel::GLCompute as u32,
        Dialect::OpenCl => ExecutionModel::Kernel as u32,
    };
    let mut of_name = entry_points.iter().filter(|(.., other)| other == name);
    let Some((model, function, _)) = of_name.clone().find(|(model, ..)| *model == wanted).or(of_name.next()) else {
        return Err(no_entry_point(name, entry_points.iter().map(|(.., name)| &**name)));
    };
    check_model(name, *model, dialect)?;
    Ok(EntryPoint { function: *function, local_size: local_size(words, *function), requires })
}

fn check_model(name: &str, model: u32, dialect: Dialect) -> Result<(), String> {
    use ExecutionModel as Model;
    let other = |what: &str, other: &str| {
        format!("entry point `{name}` is {what}; this device takes {other} (`Kernel::target` tells)")
    };
    Err(match (ExecutionModel::from_u32(model), dialect) {
        (Some(Model::GLCompute), Dialect::Vulkan) | (Some(Model::Kernel), Dialect::OpenCl) => return Ok(()),
        (Some(Model::GLCompute), Dialect::OpenCl) => other("a compute shader of Vulkan", "kernels of OpenCL"),
        (Some(Model::Kernel), Dialect::Vulkan) => other("a kernel of OpenCL", "compute shaders of Vulkan"),
        (Some(Model::Vertex), _) => wrong_stage(name, "a vertex shader"),
        (Some(Model::Fragment), _) => wrong_stage(name, "a fragment shader"),
        _ => wrong_stage(name, &format!("of execution model {model}")),
    })
}

/// Returns the message that an entry point is no compute shader.
pub(super) fn wrong_stage(name: &str, what: &str) -> String {
    format!("entry point `{name}` is {what}; a kernel needs a compute entry point")
}

/// Returns the invocations per workgroup. A constant that is decorated as the size takes precedence over the entry
/// point's own mode.
fn local_size(words: &[u32], function: u32) -> Option<[u32; 3]> {
    let (mut size, mut size_ids, mut decorated) = (None, None, None);
    let mut constants = HashMap::new();
    for (number, operands) in instructions(words) {
        match (Op::from_u32(number), operands) {
            (Some(Op::ExecutionMode), &[of, mode, x, y, z])
                if of == function && mode == ExecutionMode::LocalSize as u32 =>
            {
                size = Some([x, y, z]);
            }
            (Some(Op::ExecutionModeId), &[of, mode, x, y, z])
                if of == function && mode == ExecutionMode::LocalSizeId as u32 =>
            {
                size_ids = Some([x, y, z]);
            }
            (Some(Op::Decorate), &[id, decoration, builtin])
                if decoration == Decoration::BuiltIn as u32 && builtin == BuiltIn::WorkgroupSize as u32 =>
            {
                decorated = Some(id);
            }
            (Some(Op::Constant | Op::SpecConstant), &[_, id, value]) => _ = constants.insert(id, value),
            (Some(Op::ConstantComposite | Op::SpecConstantComposite), &[_, id, x, y, z]) if decorated == Some(id) => {
                size_ids = Some([x, y, z]);
            }
            _ => {}
        }
    }
    let values = |ids: [u32; 3]| {
        let [x, y, z] = ids.map(|id| constants.get(&id).copied());
        Some([x?, y?, z?])
    };
    size_ids.and_then(values).or(size)
}

/// Returns the message that there is no entry point of a name. It lists those that there are.
pub(super) fn no_entry_point<'a>(name: &str, others: impl Iterator<Item = &'a str>) -> String {
    let others: Vec<String> = others.map(|name| format!("`{name}`")).collect();
    let others = if others.is_empty() { "none".into() } else { others.join(", ") };
    format!("no entry point `{name}`; there is {others}")
}

fn require(features: &mut Features, capability: u32) {
    let halves = [Capability::Float16, Capability::StorageBuffer16BitAccess];
    features.f16 |= halves.iter().any(|&known| known as u32 == capability);
    features.i64 |= capability == Capability::Int64 as u32;
    features.f64 |= capability == Capability::Float64 as u32;
    let subgroups = Capability::GroupNonUniform as u32..=Capability::GroupNonUniformQuad as u32;
    features.subgroups |= subgroups.contains(&capability);
    let dot_products = Capability::DotProductInputAll as u32..=Capability::DotProduct as u32;
    features.integer_dot_products |= dot_products.contains(&capability);
    features.float_atomics |= capability == Capability::AtomicFloat32AddEXT as u32;
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(has_webgpu)]
    use crate::shader::nesting;
    use crate::shader::{Access, KernelBuilder, Target, Type, footprint};

    fn words(write: impl FnOnce(&KernelBuilder)) -> Vec<u32> {
        let k = KernelBuilder::new("sample", Target { integer_dot_products: true, ..Target::VULKAN }, 32);
        write(&k);
        k.finish().unwrap().spirv().unwrap().to_vec()
    }

    #[test]
    fn a_module_tells_what_it_requires() {
        let plain = entry_point(&words(|_| ()), "main", Dialect::Vulkan).unwrap();
        assert_eq!((plain.local_size, plain.requires), (Some([32, 1, 1]), Features::default()));
        let halves = words(|k| _ = k.buffer("x", Type::F16, Access::Read).load(0));
        assert_eq!(
            entry_point(&halves, "main", Dialect::Vulkan).unwrap().requires,
            Features { f16: true, ..Default::default() }
        );
        let subgroups = words(|k| _ = k.u32(1).subgroup_sum());
        assert_eq!(
            entry_point(&subgroups, "main", Dialect::Vulkan).unwrap().requires,
            Features { subgroups: true, ..Default::default() }
        );
        let dots = words(|k| _ = k.u32(1).dot_u8(k.u32(2), k.u32(3)));
        assert_eq!(
            entry_point(&dots, "main", Dialect::Vulkan).unwrap().requires,
            Features { integer_dot_products: true, ..Default::default() }
        );
        let sums = words(|k| _ = k.buffer("x", Type::F32, Access::ReadWrite).atomic_add(0, 1.0));
        assert_eq!(
            entry_point(&sums, "main", Dialect::Vulkan).unwrap().requires,
            Features { float_atomics: true, ..Default::default() }
        );
    }

    #[test]
    fn whatever_the_words_are_it_ends() {
        let words = words(|k| k.workgroup_array(Type::F32, 64).store(0, 1.0));
        let read = |words: &[u32]| {
            _ = entry_point(words, "main", Dialect::Vulkan);
            _ = entry_point(words, "main", Dialect::OpenCl);
            _ = footprint::of_spirv(words, words.get(3).copied().unwrap_or(0));
            #[cfg(has_webgpu)]
            {
                _ = nesting::check_control_flow(words, true);
            }
        };
        for length in 0..words.len() {
            read(&words[..length]);
        }
        for place in 5..words.len() {
            let mut broken = words.clone();
            // An instruction of no words, and one that is longer than the module.
            for word in [0, 0xffff_000f] {
                broken[place] = word;
                read(&broken);
            }
        }
    }

    #[test]
    fn the_size_of_workgroups_may_be_constants() {
        use rspirv::binary::Assemble;
        use rspirv::dr::{Builder, Operand};
        use rspirv::spirv::FunctionControl;
        let size = |is_decorated: bool| {
            let mut b = Builder::new();
            let (void, u32) = (b.type_void(), b.type_int(32, 0));
            let sizes = [8, 4, 2].map(|size| b.spec_constant_bit32(u32, size));
            let signature = b.type_function(void, []);
            let main = b.begin_function(void, None, FunctionControl::NONE, signature).unwrap();
            b.begin_block(None).unwrap();
            b.ret().unwrap();
            b.end_function().unwrap();
            b.entry_point(ExecutionModel::GLCompute, main, "main", []);
            if is_decorated {
                b.execution_mode(main, ExecutionMode::LocalSize, [64, 1, 1]);
                let vector = b.type_vector(u32, 3);
                let all = b.spec_constant_composite(vector, sizes);
                b.decorate(all, Decoration::BuiltIn, [Operand::BuiltIn(BuiltIn::WorkgroupSize)]);
            } else {
                b.execution_mode_id(main, ExecutionMode::LocalSizeId, sizes);
            }
            entry_point(&b.module().assemble(), "main", Dialect::Vulkan).unwrap().local_size
        };
        assert_eq!([size(false), size(true)], [Some([8, 4, 2]); 2]);
    }
}
