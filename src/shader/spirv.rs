//! What a SPIR-V module that somebody brings says of itself. It is read word by word, so that instructions and
//! capabilities which `rspirv` does not know yet are passed over.

use crate::device::Features;
use rspirv::spirv::{Capability, ExecutionMode, MAGIC_NUMBER, Op};

/// An entry point of a module, and what the module as a whole asks for.
pub(crate) struct EntryPoint {
    /// Invocations per workgroup, where the module tells.
    pub local_size: Option<[u32; 3]>,
    /// What the module's capabilities require, of what this crate knows of.
    pub requires: Features,
}

/// The words behind the number of each instruction, with that number.
fn instructions(words: &[u32]) -> impl Iterator<Item = (u32, &[u32])> {
    let mut rest = words.get(5..).unwrap_or_default();
    std::iter::from_fn(move || {
        let first = *rest.first()?;
        let (operands, behind) = rest.get(1..)?.split_at_checked((first as usize >> 16).checked_sub(1)?)?;
        rest = behind;
        Some((first & 0xffff, operands))
    })
}

/// A string literal: UTF-8 up to a zero byte, the first byte in the lowest bits.
fn text(words: &[u32]) -> String {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes()).take_while(|&byte| byte != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

/// Finds an entry point by its name. The error says what there is instead.
pub(crate) fn entry_point(words: &[u32], name: &str) -> Result<EntryPoint, String> {
    if words.first() != Some(&MAGIC_NUMBER) {
        return Err(format!("not SPIR-V: the first word is not {MAGIC_NUMBER:#010x}"));
    }
    let mut entry_points = Vec::new();
    let mut requires = Features::default();
    for (number, operands) in instructions(words) {
        match operands {
            &[capability, ..] if number == Op::Capability as u32 => require(&mut requires, capability),
            [_, id, literal @ ..] if number == Op::EntryPoint as u32 => entry_points.push((*id, text(literal))),
            _ => {}
        }
    }
    let Some((id, _)) = entry_points.iter().find(|(_, other)| other == name) else {
        return Err(no_entry_point(name, entry_points.iter().map(|(_, name)| &**name)));
    };
    let local_size = instructions(words).find_map(|(number, operands)| match *operands {
        [of, mode, x, y, z]
            if number == Op::ExecutionMode as u32 && of == *id && mode == ExecutionMode::LocalSize as u32 =>
        {
            Some([x, y, z])
        }
        _ => None,
    });
    Ok(EntryPoint { local_size, requires })
}

/// Says that there is no entry point of a name, and which there are.
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shader::{Access, KernelBuilder, Target, Type};

    fn words(write: impl FnOnce(&KernelBuilder)) -> Vec<u32> {
        let k = KernelBuilder::new("sample", Target { integer_dot_products: true, ..Target::VULKAN }, 32);
        write(&k);
        k.finish().unwrap().spirv().unwrap().to_vec()
    }

    #[test]
    fn a_module_tells_what_it_requires() {
        let plain = entry_point(&words(|_| ()), "main").unwrap();
        assert_eq!((plain.local_size, plain.requires), (Some([32, 1, 1]), Features::default()));
        let halves = words(|k| _ = k.buffer("x", Type::F16, Access::Read).load(0));
        assert_eq!(entry_point(&halves, "main").unwrap().requires, Features { f16: true, ..Default::default() });
        let subgroups = words(|k| _ = k.u32(1).subgroup_sum());
        assert_eq!(
            entry_point(&subgroups, "main").unwrap().requires,
            Features { subgroups: true, ..Default::default() }
        );
        let dots = words(|k| _ = k.u32(1).dot_u8(k.u32(2), k.u32(3)));
        assert_eq!(
            entry_point(&dots, "main").unwrap().requires,
            Features { integer_dot_products: true, ..Default::default() }
        );
    }

    #[test]
    fn whatever_the_words_are_it_ends() {
        let words = words(|_| ());
        for length in 0..words.len() {
            _ = entry_point(&words[..length], "main");
        }
        for place in 5..words.len() {
            let mut broken = words.clone();
            // An instruction of no words, and one that is longer than the module.
            for word in [0, 0xffff_000f] {
                broken[place] = word;
                _ = entry_point(&broken, "main");
            }
        }
    }
}
