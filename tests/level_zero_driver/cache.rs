//! A disk cache of compiled modules, as drivers have: tests compile the same kernels again and again.

use crate::binary;
use crate::faults::settings;
use crate::opencl::{DeviceQuery, opencl};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// Loads OpenCL's binary of a module, if it was compiled with these options before.
pub fn load(spirv: &[u32], options: &str) -> Option<Vec<u8>> {
    let packed = std::fs::read(path(spirv, options)?).ok()?;
    let (compiled_from, binary) = binary::unpack(&packed)?;
    (compiled_from == spirv).then(|| binary.to_vec())
}

/// Stores a binary. Errors are ignored: the module is then compiled again.
pub fn store(spirv: &[u32], options: &str, binary: &[u8]) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let Some(path) = path(spirv, options) else { return };
    let unique = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let temporary = path.with_extension(unique);
    // Write to another name and rename: other processes read the folder.
    let written = std::fs::create_dir_all(path.parent().unwrap_or(&path))
        .and_then(|()| std::fs::write(&temporary, binary::pack(spirv, binary)))
        .and_then(|()| std::fs::rename(&temporary, &path));
    if let Err(error) = written {
        eprintln!("level zero test driver: no cache at {}: {error}", path.display());
    }
}

/// The file of a module. Its name depends on everything that the compiler's result depends on.
fn path(spirv: &[u32], options: &str) -> Option<PathBuf> {
    let folder = settings().cache.as_ref()?;
    let mut hasher = DefaultHasher::new();
    (spirv, options).hash(&mut hasher);
    (opencl().text(DeviceQuery::Name), opencl().text(DeviceQuery::DriverVersion)).hash(&mut hasher);
    std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CL_CONFIG_")).for_each(|variable| {
        variable.hash(&mut hasher);
    });
    Some(PathBuf::from(folder).join(format!("{:016x}", hasher.finish())))
}
