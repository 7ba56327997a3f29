//! Makes constants of the tuning data in `shaders/tuning`: see `build/tuning.rs`. Says where wgpu may be on Vulkan,
//! and whether the tests that need devices are compiled.

#[path = "build/tuning.rs"]
mod tuning;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=shaders/tuning");
    println!("cargo::rustc-check-cfg=cfg(wgpu_on_vulkan)");
    if wgpu_may_be_on_vulkan() {
        println!("cargo::rustc-cfg=wgpu_on_vulkan");
    }
    // They need the project's setup. The package has no folder `tests`: there, `cargo test --lib` needs no driver.
    println!("cargo::rustc-check-cfg=cfg(device_tests)");
    if Path::new("tests").is_dir() {
        println!("cargo::rustc-cfg=device_tests");
    }
    match write() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn write() -> Result<(), String> {
    let root = std::env::var("CARGO_MANIFEST_DIR").map_err(|error| error.to_string())?;
    let output = std::env::var("OUT_DIR").map_err(|error| error.to_string())?;
    let entries = tuning::read(&Path::new(&root).join("shaders/tuning"))?;
    std::fs::write(Path::new(&output).join("tuning.rs"), tuning::to_rust(&entries)).map_err(|error| error.to_string())
}

/// Whether wgpu has a backend for Vulkan here. On Apple's systems it has Metal, in browsers what they have.
fn wgpu_may_be_on_vulkan() -> bool {
    let system = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    let has_vulkan = ["windows", "linux", "android", "freebsd"].contains(&&*system);
    has_vulkan && std::env::var_os("CARGO_FEATURE_WEBGPU").is_some()
}
