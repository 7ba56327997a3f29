//! Lists a sample of every family of kernels: `cargo run --example kernels`.
//!
//! With `MARQUETRY_DUMP=dir`, writes them there as SPIR-V of both dialects, as its disassembly, and as WGSL.

use marquetry::shader::{Module, Target};

fn row(kernel: &Module) -> String {
    format!(
        "{:<44} {:>9} {:>8} {:>10} {:>9} {:>7}  {}",
        kernel.name,
        kernel.workgroup[0],
        kernel.bindings.len(),
        kernel.parameter_words,
        kernel.workgroup_memory,
        kernel.spirv().map_or(0, <[u32]>::len),
        kernel.requires,
    )
}

fn main() -> marquetry::Result<()> {
    println!(
        "{:<44} {:>9} {:>8} {:>10} {:>9} {:>7}  requires",
        "kernel", "workgroup", "buffers", "parameters", "memory", "words"
    );
    for kernel in marquetry::catalogue(Target::VULKAN)? {
        println!("{}", row(&kernel));
    }
    Ok(())
}
