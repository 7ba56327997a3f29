//! The conditions of compilation, each with a name: `cfg(native)` and others.

use std::path::Path;

/// Tells the compiler which conditions exist, and which of them hold.
pub fn print() {
    for (name, holds) in all() {
        println!("cargo::rustc-check-cfg=cfg({name})");
        if holds {
            println!("cargo::rustc-cfg={name}");
        }
    }
    // For the error about a backend that the target cannot have.
    println!("cargo::rustc-env=TARGET={}", variable("TARGET"));
}

/// Returns every condition, and whether it holds for this target and these features.
fn all() -> [(&'static str, bool); 13] {
    let system = variable("CARGO_CFG_TARGET_OS");
    let runs_on = |systems: &[&str]| systems.contains(&&*system);
    // WebAssembly runs in a browser: no threads, no libraries to load, and nothing may block.
    let native = !variable("CARGO_CFG_TARGET_FAMILY").split(',').any(|family| family == "wasm");

    // On Apple's systems, Vulkan runs through MoltenVK.
    let vulkan_target = native;
    let has_vulkan = vulkan_target && has_feature("VULKAN");
    let has_webgpu = has_feature("WEBGPU");
    // On Apple's systems, wgpu uses Metal.
    let wgpu_on_vulkan = has_webgpu && runs_on(&["windows", "linux", "android", "freebsd"]);
    let level_zero_target = runs_on(&["windows", "linux", "freebsd"]);
    let has_level_zero = level_zero_target && has_feature("LEVEL_ZERO");
    [
        ("native", native),
        ("vulkan_target", vulkan_target),
        ("level_zero_target", level_zero_target),
        ("has_vulkan", has_vulkan),
        ("has_webgpu", has_webgpu),
        ("has_level_zero", has_level_zero),
        // Whether wgpu may reach the GPU through Vulkan.
        ("wgpu_on_vulkan", wgpu_on_vulkan),
        // Whether a backend calls Vulkan by itself.
        ("uses_ash", has_vulkan || wgpu_on_vulkan),
        // Whether all code that backends share is used.
        ("every_backend", has_vulkan && wgpu_on_vulkan && has_level_zero),
        ("has_backend", has_vulkan || has_webgpu || has_level_zero),
        // Whether tests that need a device are compiled. They need the project's setup. The published package has no
        // folder `tests`, so its `cargo test --lib` needs no driver.
        ("device_tests", Path::new("tests").is_dir()),
        // Whether the locks are those of a model: see `src/base/lock.rs`.
        ("model_locks", std::env::var_os("MARQUETRY_MODEL_LOCKS").is_some()),
        // Whether tensors can be read from files.
        ("has_io", has_feature("SAFETENSORS") || has_feature("NPY") || has_feature("GGUF")),
    ]
}

/// Returns whether a feature of the crate is on, by its name in Cargo's variables.
fn has_feature(name: &str) -> bool {
    std::env::var_os(format!("CARGO_FEATURE_{name}")).is_some()
}

/// Returns a variable that Cargo sets, or an empty string.
fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}
