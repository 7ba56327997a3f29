//! Lists a sample of every family of kernels: `cargo run --example kernels`.
//!
//! With `--intel`, reports how Intel's offline compiler compiles them for its GPUs, which need not be present:
//! `cargo run --example kernels -- --intel dg2 pvc --name matmul`.
//!
//! With `MARQUETRY_DUMP=dir`, writes them to that folder as SPIR-V of both dialects, as its disassembly, and as WGSL.

mod ocloc;

use anyhow::bail;
use clap::Parser;
use clap::builder::PossibleValuesParser;
use marquetry::internals::catalogue;
use marquetry::shader::{Module, Target};
use ocloc::{Report, Source};

#[derive(Parser)]
#[command(about = "Lists a sample of every family of kernels")]
struct Arguments {
    /// Report how Intel's compiler compiles them, for these GPUs or for all known ones
    #[arg(long, num_args = 0.., value_name = "GPU", value_parser = PossibleValuesParser::new(ocloc::GPUS))]
    intel: Option<Vec<String>>,
    /// Only kernels with this text in their name
    #[arg(long, value_name = "TEXT", default_value = "")]
    name: String,
}

fn row(kernel: &Module) -> String {
    format!(
        "{:<44} {:>9} {:>8} {:>10} {:>9} {:>7}  {}",
        kernel.name(),
        kernel.workgroup()[0],
        kernel.bindings().len(),
        kernel.parameter_words(),
        kernel.workgroup_memory(),
        kernel.spirv().map_or(0, <[u32]>::len),
        kernel.requires(),
    )
}

fn print_all(kernels: &[Module]) {
    println!(
        "{:<44} {:>9} {:>8} {:>10} {:>9} {:>7}  requires",
        "kernel", "workgroup", "buffers", "parameters", "memory", "words"
    );
    kernels.iter().for_each(|kernel| println!("{}", row(kernel)));
}

/// The name of a column, and its figure in a report.
type Column = (&'static str, fn(&Report) -> u64);

const INTEL_COLUMNS: [Column; 7] = [
    ("SIMD", |report| report.simd),
    ("registers", |report| report.registers),
    ("spilled", |report| report.spilled),
    ("scratch", |report| report.scratch),
    ("private", |report| report.private),
    ("memory", |report| report.workgroup_memory),
    ("code", |report| report.code),
];

/// Prints a row per kernel and GPU. Each GPU takes the kernels in its own form. Returns how many kernels the compiler
/// has refused.
fn print_intel(kernels: &[Vec<Module>], gpus: &[String]) -> anyhow::Result<usize> {
    if let Some(message) = ocloc::why_missing() {
        bail!(message);
    }
    let source = |kernel: &Module| -> marquetry::Result<Source> {
        let spirv = kernel.spirv()?.iter().flat_map(|word| word.to_le_bytes()).collect();
        Ok(Source { spirv, large_registers: kernel.large_registers() })
    };
    let sources = kernels.iter().map(|kernels| kernels.iter().map(source).collect());
    let sources = sources.collect::<marquetry::Result<Vec<Vec<Source>>>>()?;
    let reports: Vec<_> = std::thread::scope(|scope| {
        let each = gpus.iter().zip(&sources);
        let running: Vec<_> = each.map(|(gpu, sources)| scope.spawn(move || ocloc::compile(gpu, sources))).collect();
        running.into_iter().map(|thread| thread.join().expect("compiling does not panic")).collect()
    });
    let reports = reports.into_iter().collect::<Result<Vec<_>, _>>()?;

    let heads: String = INTEL_COLUMNS.iter().map(|(name, _)| format!(" {name:>9}")).collect();
    println!("{:<44} {:<9}{heads}", "kernel", "GPU");
    let mut refused = 0;
    for number in 0..sources.first().map_or(0, Vec::len) {
        for ((gpu, kernels), reports) in gpus.iter().zip(kernels).zip(&reports) {
            let kernel = &kernels[number];
            let cells = match &reports[number] {
                Ok(report) => INTEL_COLUMNS.iter().map(|(_, cell)| format!(" {:>9}", cell(report))).collect(),
                Err(_) if kernel.requires().f64 && !ocloc::has_f64(gpu) => " has no 64-bit floats".into(),
                Err(message) => {
                    refused += 1;
                    format!(" {message}")
                }
            };
            println!("{:<44} {gpu:<9}{cells}", kernel.name());
        }
    }
    let compiled: Vec<&Report> = reports.iter().flatten().flatten().collect();
    let in_registers = compiled.iter().filter(|report| report.is_in_registers()).count();
    println!("{in_registers} of {} keep all in registers", compiled.len());
    Ok(refused)
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let kernels = |target| -> marquetry::Result<Vec<Module>> {
        let mut kernels = catalogue(target)?;
        kernels.retain(|kernel| kernel.name().contains(&arguments.name));
        Ok(kernels)
    };
    let Some(mut gpus) = arguments.intel.clone() else {
        print_all(&kernels(Target::VULKAN)?);
        return Ok(());
    };
    if gpus.is_empty() {
        gpus = ocloc::GPUS.map(String::from).to_vec();
    }
    let of_gpu = |gpu: &String| kernels(ocloc::target(gpu));
    match print_intel(&gpus.iter().map(of_gpu).collect::<Result<Vec<_>, _>>()?, &gpus)? {
        0 => Ok(()),
        refused => bail!("{refused} times the compiler has refused a kernel"),
    }
}
