//! `MARQUETRY_DUMP=dir`: writes every compiled kernel to files, in all its forms.

use crate::base::environment;
use crate::base::error::{Error, Result};
use crate::kernels::KernelConfig;
use crate::shader::{Code, Dialect, Module, Target};
use rspirv::binary::Disassemble;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

fn directory() -> Result<Option<&'static Path>> {
    // A browser has no files. So a page does not contain what disassembles kernels, with the names of all instructions.
    if cfg!(not(native)) {
        return Ok(None);
    }
    Ok(environment::get()?.dump.as_deref())
}

/// Writes a kernel to files, in every form that has what the kernel requires.
///
/// - `name.vulkan.spv` and `name.opencl.spv`, each with its disassembly
/// - `name.able.vulkan.spv` and `name.able.opencl.spv`, if the device's instructions for dot products or halves change
///   the kernel
/// - `name.wgsl`, as a browser wants it
///
/// - `name.tuned.vulkan.spv`, with its disassembly, if the device wants loads by address or in pairs, or invocations
///   that take turns
///
/// For large buffers that are reached by address, writes only `name.addresses.vulkan.spv` with its disassembly. If a
/// file cannot be written or a kernel cannot be generated, that is an error.
pub(crate) fn write(config: &KernelConfig, own: Target, large_buffers: bool) -> Result<()> {
    let Some(directory) = directory()? else { return Ok(()) };
    let stem = stem(&config.name(), config);
    let Target { addresses, loads_in_pairs, lanes_at_once, .. } = own;
    let form = Target { addresses, loads_in_pairs, lanes_at_once, ..Target::VULKAN };
    if addresses && large_buffers {
        return save_spirv(&directory.join(stem + ".addresses"), form.dialect, &config.generate(form)?);
    }
    if form != Target::VULKAN {
        save_spirv(&directory.join(format!("{stem}.tuned")), form.dialect, &config.generate(form)?)?;
    }
    for target in config.targets(&[Target::VULKAN, Target::LEVEL_ZERO])? {
        let plain = config.generate(target)?;
        save_spirv(&directory.join(&stem), target.dialect, &plain)?;
        let halves = target.dialect == Dialect::Vulkan;
        let abilities = Target { integer_dot_products: true, unpacks_halves: halves, packs_halves: halves, ..target };
        let able = config.generate(abilities)?;
        if able.code != plain.code {
            save_spirv(&directory.join(format!("{stem}.able")), target.dialect, &able)?;
        }
    }
    #[cfg(has_webgpu)]
    if !config.targets(&[Target::WEBGPU])?.is_empty() {
        use crate::shader::wgsl;
        let module = config.generate(Target::WEBGPU)?;
        let text = wgsl::for_browser(&wgsl::translate(&module)?, &module);
        save(&directory.join(stem), "wgsl", text.as_bytes())?;
    }
    Ok(())
}

/// Writes an app's kernel in the one form that it has.
pub(crate) fn write_own(module: &Module, target: Target) -> Result<()> {
    let Some(directory) = directory()? else { return Ok(()) };
    match &module.code {
        Code::Spirv(words) => save_spirv(&directory.join(stem(&module.name, words)), target.dialect, module),
        Code::Wgsl(text) => save(&directory.join(stem(&module.name, text)), "wgsl", text.as_bytes()),
    }
}

/// Returns a file name without its ending: the kernel's name, as far as it can stand there, and a hash.
fn stem(name: &str, identity: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    identity.hash(&mut hasher);
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(60).collect();
    format!("{name}.{:016x}", hasher.finish())
}

fn save_spirv(stem: &Path, dialect: Dialect, module: &Module) -> Result<()> {
    let dialect = match dialect {
        Dialect::Vulkan => "vulkan",
        Dialect::OpenCl => "opencl",
    };
    save(stem, &format!("{dialect}.spv"), bytemuck::cast_slice(module.spirv()?))?;
    save(stem, &format!("{dialect}.spvasm"), disassembly(module)?.as_bytes())
}

fn disassembly(module: &Module) -> Result<String> {
    let registers = if module.large_registers { ", large registers" } else { "" };
    let header = format!("; {}, requires: {}{registers}\n", module.name, module.requires);
    Ok(match rspirv::dr::load_words(module.spirv()?) {
        Ok(words) => header + &words.disassemble(),
        Err(error) => header + &format!("; not readable: {error}\n"),
    })
}

fn save(stem: &Path, ending: &str, contents: &[u8]) -> Result<()> {
    let mut path = stem.as_os_str().to_owned();
    path.push(format!(".{ending}"));
    let path = PathBuf::from(path);
    let directory = path.parent().unwrap_or(Path::new(""));
    let written = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&path, contents));
    written.map_err(|error| Error::Io { kind: error.kind(), message: error.to_string(), path })
}
