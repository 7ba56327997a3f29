//! Compares what a kernel in WGSL binds with its signature. wgpu would report a mismatch only during a launch.

use super::footprint::{Footprint, Space};
use super::module::Access;
use super::nesting::{check_source, check_types};
use super::signature::{Signature, SlotKind};
use super::spirv::{no_entry_point, wrong_stage};
use super::wgsl::{on_large_stack, without_panics};
use crate::base::error::{Error, Result};
use naga::back::pipeline_constants::process_overrides;
use naga::valid::{Capabilities, ValidationFlags, Validator};
use naga::{AddressSpace, Block, Function, Handle, ShaderStage, Statement, StorageAccess, Type, TypeInner};
use std::collections::HashSet;

/// What is known of a kernel that fits its signature.
pub(crate) struct Interface {
    /// Invocations per workgroup.
    pub workgroup: [u32; 3],
    /// For each argument, the least bytes of its buffer.
    pub least_bytes: Vec<u64>,
    /// The memory that the kernel has of its own.
    pub footprint: Footprint,
}

/// What the text says about an entry point.
struct Found {
    workgroup: [u32; 3],
    bound: Vec<Bound>,
    footprint: Footprint,
}

/// A variable that an entry point binds in group 0.
struct Bound {
    binding: usize,
    bytes: u64,
    /// How a storage buffer is used. `None` for a uniform buffer.
    access: Option<Access>,
}

/// Reads the interface of an entry point. If there is only one, it may have another name, as translated ones have.
/// Software devices take less nesting.
pub(crate) fn check(wgsl: &str, entry_point: &str, signature: &Signature, is_software: bool) -> Result<Interface> {
    let kernel = signature.kernel();
    let refuse = |message| Error::Kernel { kernel: kernel.into(), message };
    check_source(wgsl, is_software).map_err(refuse)?;
    let Found { workgroup, bound, footprint } = on_large_stack(|| without_panics(|| read(wgsl, entry_point)))
        .and_then(|found| found)
        .and_then(|found| found)
        .map_err(refuse)?;
    let buffers: Vec<usize> =
        (0..).zip(signature.slots()).filter(|(_, slot)| slot.is_buffer()).map(|(i, _)| i).collect();
    let words = signature.slots().len() - buffers.len();
    let mut least_bytes = vec![0; signature.slots().len()];
    for Bound { binding, bytes, access } in bound {
        let Some(&argument) = buffers.get(binding) else {
            check_parameters(kernel, binding, bytes, access, buffers.len(), words)?;
            continue;
        };
        let slot = &signature.slots()[argument];
        let SlotKind::Buffer { access: wanted, .. } = slot.kind else { continue };
        let fits = access.is_some_and(|access| access.writes() == wanted.writes());
        if !fits {
            let space = if wanted.writes() { "var<storage, read_write>" } else { "var<storage, read>" };
            let message = format!("the signature wants it to be a `{space}` at binding {binding}");
            return Err(Error::Argument { kernel: kernel.into(), argument: slot.name.clone(), message });
        }
        least_bytes[argument] = bytes;
    }
    Ok(Interface { workgroup, least_bytes, footprint })
}

/// Checks the parameter block: a uniform buffer at the binding behind the last buffer.
fn check_parameters(
    kernel: &str,
    binding: usize,
    bytes: u64,
    access: Option<Access>,
    buffers: usize,
    words: usize,
) -> Result<()> {
    let room = (4 * words as u64).next_multiple_of(16);
    if binding == buffers && words > 0 && access.is_none() && bytes <= room {
        return Ok(());
    }
    let message = format!(
        "binding {binding} (a variable of {bytes} bytes) does not fit the signature, which has {buffers} buffers from \
         binding 0 on and behind them a uniform block of {words} words"
    );
    Err(Error::Kernel { kernel: kernel.into(), message })
}

/// naga's message if more than 200 brackets and blocks nest.
const RECURSION: &str = "Parser recursion limit exceeded";

fn read(wgsl: &str, entry_point: &str) -> Result<Found, String> {
    let ir = naga::front::wgsl::parse_str(wgsl).map_err(|error| {
        let (text, advice) = (error.emit_to_string(wgsl), "name parts of it with `let`, or move them to functions");
        if text.contains(RECURSION) { format!("brackets and blocks nest deeper than 200; {advice}") } else { text }
    })?;
    check_types(&ir.types)?;
    let info = Validator::new(ValidationFlags::all(), Capabilities::all())
        .validate(&ir)
        .map_err(|error| error.emit_to_string(wgsl))?;
    let named = ir.entry_points.iter().position(|entry| entry.name == entry_point);
    let Some(index) = named.or((ir.entry_points.len() == 1).then_some(0)) else {
        return Err(no_entry_point(entry_point, ir.entry_points.iter().map(|entry| &*entry.name)));
    };
    let found = &ir.entry_points[index];
    match found.stage {
        ShaderStage::Compute => {}
        ShaderStage::Vertex => return Err(wrong_stage(&found.name, "a vertex shader")),
        ShaderStage::Fragment => return Err(wrong_stage(&found.name, "a fragment shader")),
        other => return Err(wrong_stage(&found.name, &format!("of the stage {other:?}"))),
    }
    // Removes the other entry points. Constants that can be overridden get the value that the text gives them.
    let chosen = Some((found.stage, &*found.name));
    let (ir, info) = process_overrides(&ir, &info, chosen, &Default::default()).map_err(|error| error.to_string())?;
    let (Some(found), uses) = (ir.entry_points.first(), info.get_entry_point(0)) else {
        return Err(no_entry_point(entry_point, [].into_iter()));
    };
    let bytes = |ty: Handle<Type>| u64::from(ir.types[ty].inner.try_size(ir.to_ctx()).unwrap_or(u32::MAX));
    let is_aggregate =
        |ty: Handle<Type>| matches!(ir.types[ty].inner, TypeInner::Array { .. } | TypeInner::Struct { .. });
    let (mut bound, mut footprint) = (Vec::new(), Footprint::default());
    for (_, variable) in ir.global_variables.iter().filter(|(handle, _)| !uses[*handle].is_empty()) {
        match variable.space {
            AddressSpace::WorkGroup => footprint.add(Space::Workgroup, bytes(variable.ty)),
            AddressSpace::Private if is_aggregate(variable.ty) => footprint.add(Space::Local, bytes(variable.ty)),
            _ => {}
        }
        let Some(place) = &variable.binding else { continue };
        if place.group != 0 {
            return Err(format!("`{}` is in group {}; everything is bound in group 0", name(variable), place.group));
        }
        let access = match variable.space {
            AddressSpace::Storage { access } if access.contains(StorageAccess::STORE) => Some(Access::ReadWrite),
            AddressSpace::Storage { .. } => Some(Access::Read),
            AddressSpace::Uniform => None,
            _ => return Err(format!("`{}` is no buffer", name(variable))),
        };
        bound.push(Bound { binding: place.binding as usize, bytes: bytes(variable.ty), access });
    }
    let locals = functions(&ir, &found.function).into_iter().flat_map(|function| function.local_variables.iter());
    for (_, variable) in locals.filter(|(_, variable)| is_aggregate(variable.ty)) {
        footprint.add(Space::Local, bytes(variable.ty));
    }
    Ok(Found { workgroup: found.workgroup_size, bound, footprint })
}

/// Returns the functions that an entry point runs: its own, and all that are called.
fn functions<'a>(ir: &'a naga::Module, entry_point: &'a Function) -> Vec<&'a Function> {
    let (mut functions, mut reached) = (vec![entry_point], HashSet::new());
    let mut blocks: Vec<&Block> = vec![&entry_point.body];
    while let Some(block) = blocks.pop() {
        for statement in block.iter() {
            match statement {
                Statement::Block(inner) => blocks.push(inner),
                Statement::If { accept, reject, .. } => blocks.extend([accept, reject]),
                Statement::Loop { body, continuing, .. } => blocks.extend([body, continuing]),
                Statement::Switch { cases, .. } => blocks.extend(cases.iter().map(|case| &case.body)),
                Statement::Call { function, .. } if reached.insert(*function) => {
                    functions.push(&ir.functions[*function]);
                    blocks.push(&ir.functions[*function].body);
                }
                _ => {}
            }
        }
    }
    functions
}

fn name(variable: &naga::GlobalVariable) -> &str {
    variable.name.as_deref().unwrap_or("a variable")
}
