//! What a kernel in WGSL binds, compared with the signature it is given: wgpu would tell only when a launch is under way.

use super::module::Access;
use super::signature::{Signature, SlotKind};
use super::spirv::no_entry_point;
use super::wgsl::without_panics;
use crate::error::{Error, Result};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use naga::{AddressSpace, StorageAccess};

/// What there is to know of a kernel that fits its signature.
pub(crate) struct Interface {
    /// Invocations per workgroup.
    pub workgroup: [u32; 3],
    /// For each argument the bytes that its buffer has at least.
    pub least_bytes: Vec<u64>,
}

/// A variable that an entry point binds in group 0.
struct Bound {
    binding: usize,
    bytes: u64,
    /// How it is used, for a storage buffer; `None` for a uniform one.
    access: Option<Access>,
}

/// Reads the interface of an entry point. It may have another name if it is the only one, as translated ones have.
pub(crate) fn check(wgsl: &str, entry_point: &str, signature: &Signature) -> Result<Interface> {
    let kernel = signature.kernel();
    let refuse = |message| Error::Kernel { kernel: kernel.into(), message };
    let (workgroup, bound) = without_panics(|| read(wgsl, entry_point)).and_then(|read| read).map_err(refuse)?;
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
    Ok(Interface { workgroup, least_bytes })
}

/// The parameter block is a uniform buffer at the binding behind the last buffer.
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

fn read(wgsl: &str, entry_point: &str) -> Result<([u32; 3], Vec<Bound>), String> {
    let ir = naga::front::wgsl::parse_str(wgsl).map_err(|error| error.emit_to_string(wgsl))?;
    let info = Validator::new(ValidationFlags::all(), Capabilities::all())
        .validate(&ir)
        .map_err(|error| error.emit_to_string(wgsl))?;
    let named = ir.entry_points.iter().position(|entry| entry.name == entry_point);
    let Some(index) = named.or((ir.entry_points.len() == 1).then_some(0)) else {
        return Err(no_entry_point(entry_point, ir.entry_points.iter().map(|entry| &*entry.name)));
    };
    let uses = info.get_entry_point(index);
    let mut bound = Vec::new();
    for (_, variable) in ir.global_variables.iter().filter(|(handle, _)| !uses[*handle].is_empty()) {
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
        let bytes = ir.types[variable.ty].inner.try_size(ir.to_ctx()).unwrap_or(u32::MAX);
        bound.push(Bound { binding: place.binding as usize, bytes: bytes.into(), access });
    }
    Ok((ir.entry_points[index].workgroup_size, bound))
}

fn name(variable: &naga::GlobalVariable) -> &str {
    variable.name.as_deref().unwrap_or("a variable")
}
