//! `MARQUETRY_DUMP=dir`: every kernel that is compiled, written to files in all its forms.

use crate::error::Result;
use crate::kernels::KernelConfig;
use crate::shader::{Module, Target};
use rspirv::binary::Disassemble;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

fn directory() -> Option<&'static Path> {
    static DIRECTORY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let path = || std::env::var_os("MARQUETRY_DUMP").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    DIRECTORY.get_or_init(path).as_deref()
}

/// Writes `name.vulkan.spv`, `name.opencl.spv`, their disassembly beside them, and `name.wgsl` with what a browser
/// wants. A file that cannot be written is logged; a kernel that cannot be generated is an error.
pub(crate) fn write(config: &KernelConfig) -> Result<()> {
    let Some(directory) = directory() else { return Ok(()) };
    let mut hasher = DefaultHasher::new();
    config.hash(&mut hasher);
    let name: String =
        config.name().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(60).collect();
    let stem = format!("{name}.{:016x}", hasher.finish());

    for (dialect, target) in [("vulkan", Target::VULKAN), ("opencl", Target::LEVEL_ZERO)] {
        let module = config.generate(target)?;
        let bytes: &[u8] = bytemuck::cast_slice(module.spirv()?);
        save(directory, &format!("{stem}.{dialect}.spv"), bytes);
        save(directory, &format!("{stem}.{dialect}.spvasm"), disassembly(&module)?.as_bytes());
    }
    #[cfg(feature = "webgpu")]
    {
        use crate::shader::wgsl;
        let module = config.generate(Target::WEBGPU)?;
        let text = wgsl::for_browser(&wgsl::translate(&module)?, &module);
        save(directory, &format!("{stem}.wgsl"), text.as_bytes());
    }
    Ok(())
}

fn disassembly(module: &Module) -> Result<String> {
    let registers = if module.large_registers { ", large registers" } else { "" };
    let header = format!("; {}, requires: {}{registers}\n", module.name, module.requires);
    Ok(match rspirv::dr::load_words(module.spirv()?) {
        Ok(words) => header + &words.disassemble(),
        Err(error) => header + &format!("; not readable: {error}\n"),
    })
}

fn save(directory: &Path, name: &str, contents: &[u8]) {
    let path = directory.join(name);
    if let Err(error) = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&path, contents)) {
        log::error!("cannot write {}: {error}", path.display());
    }
}
